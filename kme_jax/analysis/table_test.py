"""Whether two tables have the same distribution in each column, from releases.

Columns are compared one by one. For each column there are noisy counts of its cells. For columns of many values there
are also noisy sums of their scores, and of the squares of these. The noise is independent and known. Cells of an
ordered column are grouped into at most 64 intervals of about equally many reference rows. The reference is the
synthetic rows of both releases, or public and synthetic rows together. Let φ be the indicators g of the groups and the
scores of a row, d the difference of the means of φ, Σ its covariance, S that of the noise, c = 1/N + 1/n, V = cΣ + S,
and A = Cov(φ, g).

For densities whose ratio is 1 + h, with a random function h of the groups of covariance K, the mean of d has the
covariance A K Aᵀ. For an ordered column, h varies along the ranks of the values, at lengths of a half and of a tenth of
all rows. For other columns, values of h are independent. With V = LLᵀ, the eigenvalues of L⁻¹ A K Aᵀ L⁻ᵀ are the
information κ about each direction of L⁻¹ d, see ``kme_jax.analysis.chi_squares`` for the statistic.

The p-value of the table is the smallest of its columns times their number (Bonferroni), so it holds for any dependence
between columns. A change of the dependence between columns alone is not found.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.linalg
from jaxtyping import Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import shown
from kme_jax.analysis.chi_squares import check_num_public, compared
from kme_jax.analysis.estimates import no_release
from kme_jax.analysis.outcome import TestResult
from kme_jax.points.release import Measurement, Release
from kme_jax.table.cells import CellNoise
from kme_jax.table.planning import Singles
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import NAMES, TableRelease
from kme_jax.table.schema import Schema
from kme_jax.table.tilt import Moments

_MOST_GROUPS = 64
_LEAST_SYNTHETIC = 1000  # synthetic rows beside public ones
_LENGTHS = (0.5, 0.1)  # of the random functions of ranks, in shares of all rows
HYPOTHESIS = "each column has the same distribution"


@short_repr
class _Side(NamedTuple):
    """What is known of a column of one table.

    Attributes:
      edges: the first code of every cell, and the number of codes, [cells + 1].
      shares: of all rows in each cell, [cells].
      noise: of the shares.
      moments: noisy sums of scores; None if there are none.
      num_rows: number of rows.
      rows_noise: standard deviation of the noise of this number.
    """

    edges: Int64[np.ndarray, "ends"]
    shares: Float64[np.ndarray, "cells"]
    noise: CellNoise
    moments: Moments | None
    num_rows: int
    rows_noise: float


def table_test(release: Any, other: Any, *, seed: int = 0) -> TestResult:
    """Tests whether each column of a released table has the same distribution as in another table. Post-processing.

    Args:
      release: of a table.
      other: another release with the same schema; or a public table with the columns of the schema: a path, a pyarrow
        table, a pandas DataFrame, or what ``open_table`` returns.
      seed: of the simulated quantiles.

    Returns:
      The result, with a p-value for each measured column.

    Raises:
      ValueError: it is no release of a table, or the other is one of points; schemas differ, or the measurement is the
        same; the table does not fit the schema (``FileError``); or
        there are less than 20 public rows.
    """
    if not isinstance(release, TableRelease):
        raise no_release(release)
    schema, second, public = release.schema, None, None
    if schema.weight is not None:
        raise ValueError("release: its rows had weights, so how far chance moves them is not known: no test is valid")
    reference = [schema.measured_codes(schema.encode(release.table, words=False))]
    if isinstance(other, TableRelease):
        if other.schema != schema:
            where = _difference(schema, other.schema)
            raise ValueError(f"release: the schemas of the two releases differ, first in {where}")
        ours, theirs = (side.measurement.measured[NAMES[0]].coordinates for side in (release, other))
        if np.array_equal(ours, theirs):
            raise ValueError("both are the same measurement: a test needs two releases, with noise of their own")
        reference.append(schema.measured_codes(schema.encode(other.table, words=False)))
        second = _sides(other)
    elif isinstance(other, Release | Measurement):
        raise ValueError("other: expected a table, got a release of points")
    else:
        source = other if isinstance(other, TableSource) else open_table(other, schema)
        if source.schema != schema:
            raise ValueError("other: it was opened with another schema; give the release's schema to open_table")
        check_num_public(source.num_rows)
        public = schema.measured_codes(np.concatenate(list(source.codes())))
        # As many synthetic rows as public ones, so that neither decides alone where rows vary; but at least 1000.
        reference = [public, reference[0][: max(len(public), _LEAST_SYNTHETIC)]]
    first, codes = _sides(release), np.concatenate(reference).astype(np.int64)
    statistics, p_values = [], {}
    for j, (name, column) in enumerate(zip(schema.measured.names, schema.measured.columns, strict=True)):
        last = column.num_codes - column.nullable if column.ordered else 0
        of_other = _public(first[j], cast(np.ndarray, public)[:, j]) if second is None else second[j]
        statistic, p_values[name] = _compare(first[j], of_other, codes[:, j], last, seed + j)
        statistics.append(statistic)
    p_value = min(1.0, min(p_values.values()) * len(p_values))
    return TestResult(HYPOTHESIS, statistics[int(np.argmin(list(p_values.values())))], p_value, p_values)


def _difference(ours: Schema, theirs: Schema) -> str:
    """What is the first that differs between two schemas: a column, or another field."""
    for one, other in itertools.zip_longest(ours.released, theirs.released):
        if one != other:
            return f"the column {shown(((one or other).name,))}"
    fields = "constraints", "dropped", "filled_from_data"
    return next((name for name in fields if getattr(ours, name) != getattr(theirs, name)), "the places of columns")


def _sides(release: TableRelease) -> list[_Side]:
    """What the first measurement says of each column."""
    measurement, num_rows = release.measurement, release.statement["num_rows"]
    layout, noise_of_rows = measurement.layout, measurement.rows_noise
    singles = Singles.read(layout, measurement.measured[NAMES[0]], denoised=False)
    counts = {j: singles.of_all(a)[0] for a, j in enumerate(layout.columns)}
    moments: list[Moments | None] = [None] * len(layout.binnings)
    if layout.split >= 0:
        smallest = min(singles.counts, key=lambda of_cells: of_cells.shape[1])
        counts[layout.split] = smallest.sum(1) if singles.classes is None else singles.classes
    for a, j in enumerate(layout.columns):
        moments[j] = singles.moments[a]
    return [
        _Side(cells.edges, counts[j] / num_rows, cells.noise, moments[j], num_rows, noise_of_rows)
        for j, cells in enumerate(measurement.measured_cells)
    ]


def _public(side: _Side, codes: Int64[np.ndarray, "n"]) -> _Side:
    """What public rows with these codes say, in the cells of the release and with its scores."""
    cells = np.searchsorted(side.edges, codes, side="right") - 1
    shares, moments = np.bincount(cells, minlength=len(side.edges) - 1) / len(codes), side.moments
    if moments is not None:
        scores = moments.moment.scores(0, moments.binning, codes)
        sums = np.array([scores.sum(), np.square(scores).sum()])
        moments = dataclasses.replace(moments, sums=sums, sigma=0.0, num_rows=len(codes))
    return _Side(side.edges, shares, CellNoise(0.0), moments, len(codes), 0.0)


def _compare(
    first: _Side, second: _Side, codes: Int64[np.ndarray, "n"], ordered: int, seed: int
) -> tuple[float, float]:
    """The statistic of a column over its mean if the hypothesis is true, and its p-value.

    Args:
      first: of the release.
      second: of the other release, or of the public rows.
      codes: of the reference rows.
      ordered: the number of codes that are in order; 0 for a column without order.
      seed: of the simulated quantiles.
    """
    edges = np.intersect1d(first.edges, second.edges)
    if ordered:
        edges = _grouped(edges, codes, ordered)
    moments = _common(first.moments, second.moments)
    groups = np.searchsorted(edges, codes, side="right") - 1
    num_groups = len(edges) - 1
    mean = shares = np.bincount(groups, minlength=num_groups) / len(codes)
    square = np.diag(shares)  # the mean of φφᵀ
    if moments is not None:
        scores = moments.moment.scores(0, moments.binning, codes)
        both = np.stack([scores, np.square(scores)])
        mean = np.concatenate([shares, both.mean(axis=1)])
        across = np.stack([np.bincount(groups, values, minlength=num_groups) for values in both]) / len(codes)
        square = np.block([[square, across.T], [across, both @ both.T / len(codes)]])
    noise, covariance = np.zeros((len(mean), len(mean))), square - np.outer(mean, mean)
    difference = _means(first, edges, moments is not None, noise, mean)
    difference -= _means(second, edges, moments is not None, noise, mean)
    total = (1 / first.num_rows + 1 / second.num_rows) * covariance + noise
    total += 1e-9 * np.diag(np.diag(total)) + 1e-12 / first.num_rows * np.eye(len(mean))
    root, with_groups = np.linalg.cholesky(total), covariance[:, :num_groups]
    kernel = np.eye(num_groups)
    if ordered:
        values = edges[:-1] < ordered
        ranks = (np.cumsum(shares) - shares / 2)[values]
        distances = np.square(ranks[:, None] - ranks[None, :])
        kernel[np.ix_(values, values)] = sum(np.exp(-distances / (2 * length**2)) for length in _LENGTHS)
    whitened = scipy.linalg.solve_triangular(root, with_groups, lower=True)  # L⁻¹ A
    form = whitened @ kernel @ whitened.T
    along = scipy.linalg.solve_triangular(root, difference, lower=True)
    information, directions = np.linalg.eigh(form)
    information = np.where(information > 1e-9, information, 0)  # all 0 if all rows have one value
    return compared(np.square(directions.T @ along), information, seed)


def _means(
    side: _Side, edges: Int64[np.ndarray, "ends"], scored: bool, noise: Float64[np.ndarray, "F F"], mean: np.ndarray
) -> Float64[np.ndarray, "F"]:
    """The noisy means of the features. The covariance of their noise is added to ``noise``.

    Args:
      side: of a release, or of public rows.
      edges: of the groups, a part of the edges of the side.
      scored: whether scores are among the features.
      noise: is changed.
      mean: of the features of the reference rows, for the noise of the number of rows.
    """
    first = np.searchsorted(side.edges, edges[:-1])
    means = np.add.reduceat(side.shares, first)
    groups = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(side.shares))))
    noise[: len(first), : len(first)] += side.noise.covariance_of_groups(groups)
    if scored:
        assert side.moments is not None
        means = np.concatenate([means, side.moments.sums / side.num_rows])
        noise[len(first) :, len(first) :] += (side.moments.sigma / side.num_rows) ** 2 * np.eye(2)
    noise += (side.rows_noise / side.num_rows) ** 2 * np.outer(mean, mean)
    return means


def _common(first: Moments | None, second: Moments | None) -> Moments | None:
    """The moments if both releases have the same scores, otherwise None."""
    if first is None or second is None:
        return None
    same = (first.moment.low, first.moment.high) == (second.moment.low, second.moment.high)
    return first if same else None


def _grouped(
    edges: Int64[np.ndarray, "ends"], codes: Int64[np.ndarray, "n"], ordered: int
) -> Int64[np.ndarray, "ends"]:
    """Edges of at most 64 groups of cells of about equally many reference rows, and those of codes without order."""
    before = np.searchsorted(np.sort(codes), edges) / len(codes)  # the share of rows below each edge
    places = np.searchsorted(before, np.linspace(0, 1, _MOST_GROUPS + 1)[1:-1] - 1e-12)
    kept = np.zeros(len(edges), bool)
    kept[np.minimum(places, len(edges) - 1)] = True
    kept |= edges >= ordered
    kept[0] = True
    return edges[kept]
