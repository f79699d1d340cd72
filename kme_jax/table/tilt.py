"""Histograms that agree with noisy moments of their column. This is post-processing: it spends nothing.

The noise of a thousand cells adds up in the mean of a column, and more so in its standard deviation: where cells are
empty, noise that happens to be positive looks like rows, and noise that is negative cannot take them away. The mean and
the mean square of the scores are measured directly, with little noise. So the histogram is changed as little as
possible, in relative entropy, until it agrees with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.table import Binning, Moment
from kme_jax.table.cells import CellNoise

# Rows that are spread evenly over all values before a histogram is changed: moments can only change the share of a cell
# that is not empty.
_EVENLY = 0.01
_CONTRADICTS = 3.0  # distance of a noisy moment from that of the histogram, in σ
_BIASED = 2.0  # error of a denoised histogram in units of its noise
_STRONGEST = 1e12  # the largest κ, so that no number overflows
_NUM_STEPS = 200
_TOLERANCE = 1e-12  # of the squared Newton decrement


@short_repr
@dataclasses.dataclass(frozen=True)
class Moments:
    """The noisy moments of a column.

    Attributes:
      moment: which moments.
      binning: of the column.
      sums: noisy sums of the scores and of their squares over all rows, [2].
      sigma: standard deviation of the noise of ``sums``.
      num_rows: N.
    """

    moment: Moment
    binning: Binning
    sums: Float[np.ndarray, "2"]
    sigma: float
    num_rows: int


def cell_scores(
    moment: Moment,
    place: int,
    binning: Binning,
    first: Int64[np.ndarray, "cells"],
    last: Int64[np.ndarray, "cells"],
) -> Float[np.ndarray, "2 cells"]:
    """Mean and mean square of the scores of the codes from ``first`` to ``last`` − 1, [2, cells].

    All codes of a cell are equally likely. The result is exact unless scores stop to grow within the cell.

    Args:
      moment: whose scores.
      place: of the column in the moment.
      binning: of the column.
      first: the first code of each cell.
      last: the code after the last code of each cell.
    """
    middle = (first + last - 1) / 2
    low, high = moment.low[place], moment.high[place]
    scores = np.clip(2 * (middle - low) / (high - low) - 1, -1, 1)
    grows = (first >= low) & (last - 1 <= high)
    variance = np.where(grows, (np.square(last - first) - 1.0) / 12 * (2 / (high - low)) ** 2, 0)
    means = np.stack([scores, np.minimum(np.square(scores) + variance, 1)])
    return np.where(first == binning.num_codes - 1, 0.0, means) if binning.missing else means


def tilted(
    counts: Float[np.ndarray, "classes cells"],
    first: Int[np.ndarray, "cells"],
    last: Int[np.ndarray, "cells"],
    measured: Sequence[Moments],
    noise: CellNoise,
    alone: Bool[np.ndarray, "cells"] | None = None,
    known: tuple[Int[np.ndarray, "cells"], Float[np.ndarray, "bins"], Float[np.ndarray, "bins"]] | None = None,
) -> Float[np.ndarray, "classes cells"]:
    """Counts of every class and cell, [T, cells], changed so that the column agrees with its noisy moments.

    Let p be the shares of the classes and cells, and f the mean features of the moments in each cell. The new shares q
    minimise κ KL(q ‖ p) + Σ_i (Σ q f_i − m_i)² / (2 s_i²), where m and s are the noisy means and their σ, and the share
    of each class stays. Within a class they are q ∝ p exp(λ · f), with one λ for all classes. κ is the number of rows
    of which a sample would have the mean score as exactly as the occupied cells have it, with twice their noise,
    because denoising adds bias. Cells alone were not smoothed, and have their own noise. Let v be the variance of this
    noise in a cell. A cell with a larger share than κ v is known better than such a sample would know it. So only κ v
    of it takes part, and the rest stays. The sum of the counts of every class stays. Beyond the first and the last cell
    with rows, there are rows only if a moment contradicts the histogram, and only between the codes where its score
    grows. Otherwise a single row that noise puts far away, on a scale of many powers of ten, would outweigh all others.

    Args:
      counts: non-negative estimates.
      first: the first code of each cell.
      last: the code after the last code of each cell.
      measured: noisy moments of this column, at least one.
      noise: of the counts of cells, all classes together.
      alone: see ``reach.cells_alone``; None if no cell is alone.
      known: the bin of each cell, estimated counts of the bins, and their standard errors, if these are known better
        than those of cells. Then being in a bin is one more feature.
    """
    total, binning, num_rows = counts.sum(), measured[0].binning, measured[0].num_rows
    features = np.concatenate([cell_scores(m.moment, 0, binning, first, last) for m in measured])
    means = np.concatenate([m.sums for m in measured]) / num_rows
    sigmas = np.repeat([m.sigma for m in measured], 2) / num_rows
    width = np.where(first < binning.num_codes - binning.missing, last - first, 0.0)
    classes, occupied = counts.sum(1, keepdims=True) / total, counts.sum(0) > 0
    near = np.maximum.accumulate(occupied) & np.maximum.accumulate(occupied[::-1])[::-1]
    contradict = np.abs(means - features @ (counts.sum(0) / total)) > _CONTRADICTS * sigmas
    for m, pair in zip(measured, contradict.reshape(-1, 2), strict=True):
        if pair.any():
            near |= (last > m.moment.low[0]) & (first <= m.moment.high[0])
    width = np.where(near, width, 0.0) if (near & (width > 0)).any() else width
    counts = counts + classes * (_EVENLY * width / width.sum())
    counts = counts * (total / counts.sum())
    shares = counts.sum(0) / total
    centred = features[0] - features[0] @ shares
    factors = np.full(len(first), _BIASED) if alone is None else np.where(alone, 1.0, _BIASED)
    spread = np.square(factors * noise.sigma / num_rows)
    cells = binning.cells(first)[occupied]
    of_cells = np.bincount(cells, (factors * centred)[occupied], binning.num_cells)
    of_cells /= np.maximum(np.bincount(cells, minlength=binning.num_cells), 1)
    by_cells = float(noise.of(of_cells) / num_rows) ** 2
    strength = min(float(np.square(centred) @ shares) / max(by_cells, 1e-300), _STRONGEST)
    part = np.minimum(shares, strength * spread) / np.maximum(shares, 1e-300)
    moved, kept = counts / total * part, counts / total * (1 - part)
    mass = moved.sum()
    if mass == 0:  # all rows have the same score
        return counts
    if known is not None:
        features = np.concatenate([features, np.eye(len(known[1]))[known[0]].T])
        means, sigmas = np.append(means, known[1] / total), np.append(sigmas, known[2] / total)
    penalty = strength * np.square(sigmas) / mass
    closest = _closest_shares(moved / mass, features, (means - features @ kept.sum(0)) / mass, penalty)
    return total * (kept + mass * closest)


def _closest_shares(
    shares: Float[np.ndarray, "classes cells"],
    features: Float[np.ndarray, "moments cells"],
    means: Float[np.ndarray, "moments"],
    penalty: Float[np.ndarray, "moments"],
) -> Float[np.ndarray, "classes cells"]:
    """q, [T, cells]: in each class q ∝ p exp(λ · f), with the same sum as p.

    λ minimises Σ_t P_t log Σ_c p_tc exp(λ · f_c) − λ · m + Σ λ² penalty / 2, where P are the sums of the classes. The
    function is convex. Its minimum is found by Newton's method with halved steps.
    """

    of_classes = shares.sum(1, keepdims=True)
    logarithms = np.log(shares, out=np.full(shares.shape, -np.inf), where=shares > 0)

    def value(tilt):
        exponents = tilt @ features + logarithms
        most = np.maximum(exponents.max(1, keepdims=True), -1e300)  # a class may have no rows
        masses = np.exp(exponents - most)
        totals = np.maximum(masses.sum(1, keepdims=True), 1e-300)
        height = float(np.sum(of_classes * (np.log(totals) + most)))
        return height - tilt @ means + penalty @ np.square(tilt) / 2, of_classes * masses / totals

    tilt = np.zeros(len(means))
    height, closest = value(tilt)
    for _ in range(_NUM_STEPS):
        expected = closest @ features.T  # times the share of each class, [T, moments]
        gradient = expected.sum(0) - means + penalty * tilt
        covariance = (features * closest.sum(0)) @ features.T - expected.T @ (expected / np.maximum(of_classes, 1e-300))
        hessian = covariance + np.diag(penalty)
        step = -np.linalg.lstsq(hessian, gradient, rcond=1e-15)[0]
        slope = float(gradient @ step)
        if slope > -_TOLERANCE:
            break
        length = 1.0
        while length > 1e-12:
            lower, changed = value(tilt + length * step)
            if lower <= height + length * slope / 4:
                break
            length /= 2
        else:
            break
        tilt, height, closest = tilt + length * step, lower, changed
    return closest
