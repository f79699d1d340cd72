"""Quantiles of one column of a table from its own noisy counts. Post-processing.

Let F_c be the share of rows up to cell c, of m cells. Two sums estimate N F_c: that of the counts up to c, and N less
that of the others. Their mean with weights (m − c) / m and c / m has the least noise, if that of cells is independent.
The p-quantile lies in the first cell with F_c ≥ p. So the interval is made of all cells that can be this first cell:
the noisy F_c is not significantly less than p, and that of the cell before is not significantly more. The true cell is
among them with the probability of the level at least, whatever the private rows are.

If only rows with values in a range count, from cell a + 1 to cell b, their p-quantile is that of all rows for the share
F_a + p (F_b − F_a). The noise of this share may add to that of F_c, so both reaches are added. The level is a lower
bound then, too.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Bool, Float64, Int64

from kme_jax.analysis.covariances import Covariances, Feature
from kme_jax.analysis.estimates import Estimate
from kme_jax.analysis.sums import LEAST_SIGNAL, Sums
from kme_jax.table.columns import numeric_values
from kme_jax.table.histogram import project_to_simplex


def quantile(
    sums: Sums,
    name: str,
    share: float,
    level: float,
    classes: Bool[np.ndarray, "classes"] | None = None,
    *,
    population: bool = False,
    inside: tuple[int, int] | None = None,
) -> Estimate | None:
    """A quantile of a numeric column with an interval.

    The value is that of the denoised counts. For classes it is where the noisy shares F_c pass p, after an isotonic
    regression.

    Args:
      sums: of a measurement.
      name: of the column.
      share: p, of the rows that are not more than the quantile. 0 stands for one row, the smallest.
      level: of the interval.
      classes: the classes whose rows count; None for all rows.
      population: whether the interval has the error of drawing rows from a population, too.
      inside: the range of codes [low, high) of the rows that count; None for all.

    Returns:
      None if noise hides the number of rows, or if only a part of one cell is inside.
    """
    j = sums.schema.index(name)
    of_rows = Covariances(sums, [Feature.number(sums, j)], classes)
    if not of_rows.is_known:
        return None
    counts, noise = of_rows.counts_of(j)
    binning, column = sums.layout.binnings[j], sums.schema.columns[j]
    number, num_cells = binning.num_values, len(counts)
    rows, rows_noise = of_rows.rows, of_rows.rows_noise
    if number < len(counts):  # missing cells do not count
        rows, rows_noise = rows - float(counts[number:].sum()), math.hypot(rows_noise, noise.sigma)
    if rows < max(1.0, LEAST_SIGNAL * rows_noise):
        return None
    counts, edges = counts[:number], sums.edges(j)
    low, high = (0, int(edges[number])) if inside is None else inside
    met = sums.met(j, [(low, high)])
    of_cells = met.shares[:number] > 0
    if of_cells.sum() < 2 and met.shares.max() < 1:
        return None
    below, cells = np.cumsum(counts), np.arange(1, number + 1)
    shares = (below + cells / number * (rows - below[-1])) / rows
    weights = np.pad(np.tri(number) - cells[:, None] / number, [(0, 0), (0, num_cells - number)])
    variance = np.square(noise.of(weights))
    # N is noisy as well: what is seen of it is used for the cells above.
    errors = np.sqrt(variance + np.square((cells / number - shares) * rows_noise)) / rows
    if population:
        errors = np.hypot(errors, math.sqrt(share * (1 - share) / rows))
    num_present = rows
    ends = np.flatnonzero(of_cells)[[0, -1]]
    inside_of_ends = np.array([1 - met.shares[ends[0]], met.shares[ends[1]]])  # from where to where rows count
    below_ends = _inside(shares, ends, inside_of_ends)
    noise_of_ends = np.maximum(*np.append(0, errors)[[ends, ends + 1]]) + (met.noise + met.guess) / num_present
    if inside is None:
        below_ends, noise_of_ends = np.array([0.0, 1.0]), np.zeros(2)
    rows *= float(np.diff(below_ends)[0])
    if rows < max(1.0, LEAST_SIGNAL * math.hypot(*noise_of_ends) * num_present):
        return None
    # Of all rows, so many are below the quantile. The noise of this share may add to that of the others.
    part = np.array([1 - max(share, min(1 / rows, 0.5)), max(share, min(1 / rows, 0.5))])
    reach = float(scipy.special.ndtri(0.5 + level / 2)) * (errors + float(part @ noise_of_ends))
    wanted = float(part @ below_ends)
    possible = of_cells & (shares + reach >= wanted) & (np.append(0, (shares - reach)[:-1]) < wanted)
    possible[ends[1]] |= not possible.any()
    first, last = np.flatnonzero(possible)[[0, -1]]
    if classes is None:
        estimate = np.cumsum(project_to_simplex(sums.denoised(j)[:number], num_present)) / num_present
    else:
        # Denoised counts of few rows in many cells are nearly even.
        precisions = 1 / np.square(np.maximum(errors, 1e-9))
        estimate = np.clip(scipy.optimize.isotonic_regression(shares, weights=precisions).x, 0, 1)
    wanted = float(part @ _inside(estimate, ends, inside_of_ends))
    cell = int(np.argmax(estimate >= wanted))
    before = float(estimate[cell - 1]) if cell else 0.0
    within = (wanted - before) / max(float(estimate[cell]) - before, 1e-300)
    code = int(min(edges[cell] + max(within, 0) * (edges[cell + 1] - edges[cell]), edges[cell + 1] - 1))
    found_codes = np.clip([int(edges[first]), code, int(edges[last + 1]) - 1], low, high - 1)
    low, value, high = numeric_values(column, found_codes).tolist()
    value = min(max(value, low), high)
    quantile_of_normal = 2 * float(scipy.special.ndtri(0.5 + level / 2))
    return Estimate(value, (high - low) / quantile_of_normal, low, high, level, 0.0, "direct", population)


def _inside(
    shares: Float64[np.ndarray, "cells"], cells: Int64[np.ndarray, "k"], parts: Float64[np.ndarray, "k"]
) -> Float64[np.ndarray, "k"]:
    """The shares of rows up to a part of each of k cells, from those up to all cells."""
    before, up_to = np.append(0, shares)[cells], shares[cells]
    return before + parts * (up_to - before)
