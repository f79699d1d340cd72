"""Denoising of noisy histograms, from the noisy counts and σ alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float, Float64, Int64, Real

from kme_jax._numerics.short_repr import short_repr

_NUM_SHIFTS, _TOGETHER = 16, 1 << 15  # shifts of intervals, and values that fit into a cache
# Penalties of an interval, in units of σ². Akaike's penalty is 2. Twice the logarithm of the number of values removes
# all noise.
_PENALTIES = (2.0, 3.0, 4.0, 6.0, 10.0, 16.0)
_NUM_SPLITS, _SPLIT = 4, 0.5
# Peaks: rounds of expectation maximisation, bounds of their share of the cells, and their least mean size, in σ.
_PEAK_ROUNDS, _PEAK_SHARES, _LEAST_PEAK = 30, (1e-6, 0.9), 2.0
_FIRST_SHARE, _FIRST_PEAK = 0.05, 6.0
_MOST_BELOW, _MOST_ABOVE = 1e6, 1e12  # in σ: beyond them squares overflow, and nothing is in doubt
_REGULAR = 3.0  # how far squared differences between phases exceed those of noise, in units of their deviation
_MOST_OFTEN = 1e3  # the largest factor of a phase
_RARELY = 20  # P(g > √(2 log(20 n))) < 0.01 / n for a standard normal g and n ≥ 4


def project_to_simplex(values: Real[np.ndarray, "*n cells"], total: float) -> Float64[np.ndarray, "*n cells"]:
    """The Euclidean projection onto {v ≥ 0, Σ v = total}, for total > 0, along the last axis (Duchi et al. 2008).

    Args:
      values: vectors, [..., n].
      total: the sum of each projected vector.
    """
    values = np.asarray(values, np.float64)
    decreasing = -np.sort(-values, axis=-1)
    ranks = np.arange(1, values.shape[-1] + 1)
    thresholds = (np.cumsum(decreasing, axis=-1) - total) / ranks
    last = np.sum(decreasing > thresholds, axis=-1, keepdims=True) - 1
    return np.maximum(values - np.take_along_axis(thresholds, np.maximum(last, 0), axis=-1), 0)


def _piecewise(
    values: Float[np.ndarray, "*n cells"], sigma: float, penalties: Sequence[float]
) -> Float[np.ndarray, "penalties *n cells"]:
    """Means over dyadic intervals along the last axis, averaged over shifts of these (Coifman & Donoho 1995).

    For each shift, the intervals minimise the squared error plus a cost for each of them (Donoho 1997). There is one
    estimate for each cost."""
    num_values, costs = values.shape[-1], sigma**2 * np.asarray(penalties)
    size = 1 << (num_values + _NUM_SHIFTS - 1).bit_length()
    rows = values.reshape(-1, num_values)
    padded = np.pad(rows, [(0, 0), (_NUM_SHIFTS - 1, size - num_values)], mode="symmetric")
    means = np.empty((len(costs), *rows.shape))
    together = max(1, _TOGETHER // (size * len(costs)))
    for first in range(0, len(rows), together):
        some = slice(first, first + together)
        means[:, some] = _over_shifts(padded[some], costs)[..., _NUM_SHIFTS - 1 :][..., :num_values]
    return means.reshape(-1, *values.shape)


def _over_shifts(
    values: Float[np.ndarray, "n window"], costs: Float[np.ndarray, "penalties"]
) -> Float[np.ndarray, "penalties n window"]:
    """The estimates of ``_piecewise``, whose intervals lie in windows of cells: one for each shift, a cell further.

    Shifts share small intervals, which are numbered by their first cell. From 16 cells on, each interval is of one
    shift: those after one another have an axis, and so have the shifts.

    Args:
      values: with 15 cells more than a window, whose number of cells is a power of two.
      costs: of an interval.
    """
    costs = costs[:, None, None]
    sums, squares, best, width = values, np.square(values), np.broadcast_to(costs, (len(costs), *values.shape)), 1
    levels: list[tuple[np.ndarray, np.ndarray]] = []
    while width <= values.shape[-1] // 2:
        if width == _NUM_SHIFTS:  # the first cells of intervals are 0 to 15, 16 to 31, ...
            costs = costs[..., None]
            sums, squares, best = (a.reshape(*a.shape[:-1], -1, _NUM_SHIFTS) for a in (sums, squares, best))
        if width < _NUM_SHIFTS:
            sums, squares, best = (a[..., :-width] + a[..., width:] for a in (sums, squares, best))
        else:
            sums, squares, best = (a[..., ::2, :] + a[..., 1::2, :] for a in (sums, squares, best))
        width *= 2
        merged_cost = squares - np.square(sums) / width + costs
        is_merged = merged_cost <= best
        best = np.where(is_merged, merged_cost, best)
        levels.append((sums / width, is_merged))
    # From the largest intervals to the smallest: where one was merged, its mean stays. Each has the sum of the means of
    # the shifts in which it or one that it is part of was merged, and the number of the other shifts.
    total, left = np.zeros(best.shape), np.ones(best.shape)
    while levels:
        means, is_merged = levels.pop()
        total = total + np.where(is_merged, left * means, 0)
        left = np.where(is_merged, 0, left)
        width //= 2
        if width >= _NUM_SHIFTS:
            total, left = (np.repeat(a, 2, axis=-2) for a in (total, left))
            if width == _NUM_SHIFTS:
                total, left = (a.reshape(*a.shape[:-2], -1) for a in (total, left))
        else:
            parents, padding = (total, left), np.zeros((*total.shape[:-1], width))
            total, left = (np.concatenate([a, padding], axis=-1) for a in parents)
            for children, of_parents in zip((total, left), parents, strict=True):
                children[..., width:] += of_parents
    return (total + left * values) / _NUM_SHIFTS


def _thresholded(
    values: Float[np.ndarray, "*n cells"], sigma: float, penalties: Sequence[float]
) -> Float[np.ndarray, "penalties *n cells"]:
    return np.stack([np.where(np.square(values) < penalty * sigma**2, 0, values) for penalty in penalties])


@short_repr
class Coupled(NamedTuple):
    """Pairs of noisy versions of noisy values, with independent noise (see :func:`coupled`).

    Attributes:
      fitted: [S, ...], for estimates.
      judges: [S, ...], by which the estimates are judged.
      sigma: standard deviation of the noise of ``fitted``.
    """

    fitted: Float64[np.ndarray, "splits *n"]
    judges: Float64[np.ndarray, "splits *n"]
    sigma: float


def coupled(values: Real[np.ndarray, "*n"], sigma: float) -> Coupled:
    """The coupled bootstrap (Oliveira, Lei & Tibshirani 2021), by which the risk of an estimate is estimated.

    With a standard normal z, values + √α σ z and values − σ z / √α have independent noise. So an estimate from the
    first can be judged by the second.

    Args:
      values: noisy values, [...].
      sigma: standard deviation of their noise.
    """
    noise = sigma * np.random.default_rng(0).normal(size=(_NUM_SPLITS, *np.shape(values)))
    return Coupled(
        values + math.sqrt(_SPLIT) * noise, values - noise / math.sqrt(_SPLIT), math.sqrt(1 + _SPLIT) * sigma
    )


def best_penalty(
    values: Real[np.ndarray, "*n cells"],
    sigma: float,
    estimator: Callable[[Float[np.ndarray, "..."], float, Sequence[float]], Float[np.ndarray, "..."]] = _piecewise,
) -> float:
    """The penalty whose estimate has the least estimated risk, see :func:`smooth` and :func:`coupled`.

    Args:
      values: noisy counts, [..., n].
      sigma: standard deviation of their noise.
      estimator: a function of values, σ and penalties, with an estimate for each penalty.
    """
    fitted, judges, sigma = coupled(values, sigma)
    risks = [np.sum(np.square(estimate - judges)) for estimate in estimator(fitted, sigma, _PENALTIES)]
    return _PENALTIES[int(np.argmin(risks))]


def smooth(
    values: Real[np.ndarray, "*n cells"], sigma: float, penalty: float | None = None
) -> Float[np.ndarray, "*n cells"]:
    """An estimate of a histogram along an ordered axis, from noisy counts, [..., n].

    The estimate is constant where noise hides the variation. A single value that stands out is kept. It consists of
    means over dyadic intervals. These minimise the squared error plus a penalty for each interval (Donoho 1997, "CART
    and best-ortho-basis"). The estimate is averaged over shifts of the intervals.

    Args:
      values: noisy counts, [..., n].
      sigma: standard deviation of their noise.
      penalty: of an interval, in units of σ²; None for that of :func:`best_penalty`.
    """
    values = np.asarray(values, np.float64)
    if sigma == 0:
        return values
    return _piecewise(values, sigma, [best_penalty(values, sigma) if penalty is None else penalty])[0]


def smooth_counts(
    values: Real[np.ndarray, "*n cells"], sigma: float, penalty: float | None = None
) -> Float[np.ndarray, "*n cells"]:
    """An estimate of a histogram of counts along an ordered axis, from noisy counts, [..., n].

    It is a smooth part, see :func:`smooth`, and peaks of single cells, see :func:`peaks`. A smooth part alone misses
    small peaks: many intervals are needed around a single cell. The smooth part is estimated again without the peaks.

    Args:
      values: noisy counts, [..., n].
      sigma: standard deviation of their noise.
      penalty: as for :func:`smooth`.
    """
    first_peaks = peaks(values - smooth(values, sigma, penalty), sigma)
    rest = smooth(values - first_peaks, sigma, penalty)
    return rest + peaks(values - rest, sigma)


def peaks(values: Real[np.ndarray, "*n cells"], sigma: float) -> Float[np.ndarray, "*n cells"]:
    """Posterior means of counts that are zero in most cells, and positive in others, [..., n].

    The prior of a count is zero with probability 1 − π, and exponential with mean m otherwise. π and m have the largest
    likelihood of all cells along the last axis, by expectation maximisation (empirical Bayes, after Johnstone &
    Silverman 2004, "Needles and straw in haystacks").

    Args:
      values: noisy counts, [..., n].
      sigma: standard deviation of their noise.
    """
    values = np.asarray(values, np.float64)
    if sigma == 0:
        return np.maximum(values, 0)
    scaled = np.clip(values / sigma, -_MOST_BELOW, _MOST_ABOVE)
    shape = (*values.shape[:-1], 1)
    share, mean = np.full(shape, _FIRST_SHARE), np.full(shape, _FIRST_PEAK)
    of_peak, size = np.zeros(values.shape), np.zeros(values.shape)
    for _ in range(_PEAK_ROUNDS):
        # Given that a cell has a peak, its size is normal with mean z and variance 1, cut off at zero.
        place = scaled - 1 / mean
        log_inside = scipy.special.log_ndtr(place)
        # The logarithm of the ratio of both densities: exponential plus normal, and normal.
        log_ratio = 0.5 * np.square(place) + 0.5 * math.log(2 * math.pi) - np.log(mean) + log_inside
        of_peak = scipy.special.expit(log_ratio + scipy.special.logit(share))
        size = np.maximum(place + np.exp(-0.5 * np.square(place) - 0.5 * math.log(2 * math.pi) - log_inside), 0)
        share = np.clip(of_peak.mean(axis=-1, keepdims=True), *_PEAK_SHARES)
        total = np.maximum(of_peak.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
        mean = np.maximum((of_peak * size).sum(axis=-1, keepdims=True) / total, _LEAST_PEAK)
    return of_peak * np.where(scaled < _MOST_ABOVE, sigma * size, values)


def threshold(values: Real[np.ndarray, "*n cells"], sigma: float) -> Float[np.ndarray, "*n cells"]:
    """Values [..., n], of which those that do not stand out from noise of standard deviation σ are set to 0.

    The threshold has the least estimated risk, see :func:`best_penalty`.
    """
    values = np.asarray(values, np.float64)
    return values if sigma == 0 else _thresholded(values, sigma, [best_penalty(values, sigma, _thresholded)])[0]


def intervals_standing_out(values: Real[np.ndarray, "n"], sigma: float) -> Int64[np.ndarray, "intervals 2"]:
    """The dyadic intervals [first, last) that stand out from noise, in order.

    An interval stands out if neither of its halves does, and its sum exceeds a level. Sums of pure noise exceed it,
    anywhere, with a probability below 0.01.

    Args:
      values: noisy counts along an ordered axis, [n].
      sigma: standard deviation of their noise.
    """
    size = 1 << max(len(values) - 1, 0).bit_length()
    sums = np.pad(np.asarray(values, np.float64), (0, size - len(values)))
    level = math.sqrt(2 * math.log(_RARELY * 2 * size)) * sigma
    inner, found, width = np.zeros(size, bool), [], 1
    while True:
        stands_out = sums > level * math.sqrt(width)
        found += [(place * width, (place + 1) * width) for place in np.flatnonzero(stands_out & ~inner).tolist()]
        if len(sums) == 1:
            break
        inner = (stands_out | inner).reshape(-1, 2).any(1)
        sums, width = sums.reshape(-1, 2).sum(1), 2 * width
    return np.minimum(np.array(sorted(found), np.int64).reshape(-1, 2), len(values))


def standing_out(values: Real[np.ndarray, "n"], sigma: float) -> tuple[int, int]:
    """The first and the last place that stand out from noise, as a range [first, last).

    All places are returned if nothing stands out.

    Args:
      values, sigma: see :func:`intervals_standing_out`.
    """
    intervals = intervals_standing_out(values, sigma)
    return (int(intervals[0, 0]), int(intervals[-1, 1])) if len(intervals) else (0, len(values))


def of_phases(
    counts: Float[np.ndarray, "cells"],
    noisy: Float[np.ndarray, "cells"],
    sigma: float,
    phases: Int64[np.ndarray, "cells"],
) -> Float64[np.ndarray, "cells"]:
    """Factors of cells, [n], after which the counts have the regular pattern of noisy counts: months, weekdays, hours.

    Smoothing removes a pattern that noise hides in each cell, though it is clear in the sums over all cells of a phase,
    such as all Mondays. If these sums differ from those of the counts by more than noise explains, each cell is
    multiplied by the ratio for its phase, up to the part that noise may explain (James & Stein 1961). Otherwise all
    factors are 1.

    Args:
      counts: estimates, not negative.
      noisy: noisy counts of the same cells.
      sigma: standard deviation of their noise.
      phases: of the cells, from 0.
    """
    number = int(phases.max()) + 1
    expected, found = (np.bincount(phases, values, number) for values in (counts, noisy))
    variances = np.maximum(np.bincount(phases, minlength=number) * sigma**2, np.finfo(float).tiny)
    differences = found - expected
    size = float(np.sum(np.square(differences) / variances))
    if size <= number + _REGULAR * math.sqrt(2 * number):
        return np.ones(len(counts))
    target = np.maximum(expected + (1 - number / size) * differences, 0)
    return np.where(expected > 0, target / np.maximum(expected, target / _MOST_OFTEN + 1e-300), 1.0)[phases]
