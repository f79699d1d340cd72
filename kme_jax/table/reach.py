"""Where a numeric column has rows: the cells that stand out, their tails, and parts where rows must be.

Public bounds are often much wider than the rows. Noise in empty cells is then the largest error: where it happens to be
positive, it looks like rows. So estimates are 0 in all cells except those that this module names.

* *Cells that stand out* from the noise, see ``histogram.standing_out``, and the cells between them. Long gaps between
  them that have no rows are left out.
* *Tails.* Generalised Pareto tails are fitted to the noisy counts at both ends. They may end, like those of a uniform
  column, or decline slowly. A tail ends where the mean over all fits has less than one σ left, or less than noise would
  add.
* *Parts.* All cells together have N rows. So rows that are not in the cells above are elsewhere, although no cell
  shows it. Their number in any range of cells is estimated from the noisy counts of the range, from N minus those of
  the cells above, and from other noisy sums, if they are measured: the moments of the column, and counts of its bins. A
  range with significantly many rows is added.

This is post-processing: it spends nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.table import Binning
from kme_jax.table.cells import CellNoise
from kme_jax.table.histogram import intervals_standing_out, project_to_simplex, standing_out
from kme_jax.table.tilt import Moments, cell_scores

_AT_BOUND = 2.75  # how far the first and the last value stand out at least, in σ
# A tail is fitted to the outermost cells whose sum is so many times its noise.
_CLEAR = 20.0
_SHAPES = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)  # of generalised Pareto distributions
_LEAST_SCALE, _NUM_SCALES = 0.25, 40  # of generalised Pareto distributions, in cells
# Rows of a tail beyond its end, in units of σ: at most the first number, and at most the second for each cell, which is
# what noise adds to the count of an empty cell that cannot be negative.
_REST, _ADDED = 1.0, 0.4
_MARGIN = 2.0  # within which a tail ends, in units of the range of codes of the cells that stand out
# How many standard deviations the number of its rows is above 0, at least: of a part anywhere, and of a part that is
# next to the rows that were found, and within the margin.
_FAR, _NEAR = 3.5, 2.0
_AS_WELL = 4.0  # difference of twice the log-likelihoods of parts that explain the counts nearly equally well
_MOST_PARTS = 6
# A gap has at least this part of the cells. Its sum is below so many σ of its noise, and so many below what its
# neighbours say.
_LONG_GAP, _HARDLY, _CLEARLY = 1 / 8, 2.0, 4.0
_FLANK = 3.0  # the sum of the cells that lead to those that stand out, in σ of its noise
_GROWTH = 1.5  # of the distances between places where parts begin and end


@short_repr
class Known(NamedTuple):
    """Noisy sums over all rows of features of one column: of scores, or of bins that the rows are in.

    Attributes:
      features: mean features of the codes of every cell, [sums, cells].
      sums: noisy sums.
      sigmas: standard deviations of their noise, which is independent.
    """

    features: Float[np.ndarray, "sums cells"]
    sums: Float[np.ndarray, "sums"]
    sigmas: Float[np.ndarray, "sums"]

    @classmethod
    def of_moments(cls, measured: Sequence[Moments]) -> Known | None:
        """The sums of the moments of a column; None if there are none."""
        if not measured:
            return None
        first = measured[0].binning.first_codes()
        features = [cell_scores(m.moment, 0, m.binning, first[:-1], first[1:]) for m in measured]
        sums = np.concatenate([m.sums for m in measured])
        return cls(np.concatenate(features), sums, np.repeat([m.sigma for m in measured], 2))

    def with_bins(self, bins: Int[np.ndarray, "cells"], counts: Float[np.ndarray, "bins"], noise: float) -> Known:
        """These sums and noisy counts of bins with this σ."""
        features = np.eye(len(counts))[bins].T
        return Known(
            np.concatenate([self.features, features]),
            np.concatenate([self.sums, counts]),
            np.concatenate([self.sigmas, np.full(len(counts), noise)]),
        )


def cells_with_rows(
    binning: Binning,
    counts: Float[np.ndarray, "cells"],
    noise: CellNoise,
    num_rows: int,
    known: Known | None,
    at_bounds: Float[np.ndarray, "2"] | None = None,
) -> Bool[np.ndarray, "cells"]:
    """Which cells of an ordered column may have rows, [cells]. All cells may if nothing stands out.

    The first and the last value need less to stand out than others, since many rows are often at a bound.

    Args:
      binning: of the column.
      counts: noisy counts, [cells].
      noise: of ``counts``.
      num_rows: N.
      known: other noisy sums, or None.
      at_bounds: how far the first and the last value stand out, in σ, [2]. None if their counts say all about it.
    """
    size = binning.num_values
    values, inside = counts[:size], np.ones(len(counts), bool)
    sigma = noise.sigma
    if sigma == 0:
        return inside
    first, last = standing_out(values, sigma)
    inside[:size] = False
    inside[[0, size - 1]] = (values[[0, -1]] / sigma if at_bounds is None else at_bounds) > _AT_BOUND
    start, stop = _margin(binning, first, last)
    low = max(start, size - _end_of_tail(values[::-1], size - first, sigma))
    high = min(stop, _end_of_tail(values, last, sigma))
    inside[low:high] = True
    for gap in _gaps(values, sigma):
        inside[slice(*gap)] = False
    for _ in range(_MOST_PARTS):
        part = _missing_part(binning, counts, noise, num_rows, known, inside, (low, high), (start, stop))
        if part is None:
            break
        inside[slice(*part)] = True
        low, high = (part[0] if part[1] == low else low), (part[1] if part[0] == high else high)
    return inside


def cells_alone(inside: Bool[np.ndarray, "cells"], num_values: int) -> Bool[np.ndarray, "cells"]:
    """Which of the cells that may have rows have no such neighbours, [cells]: bounds that many rows share.

    Smoothing along values would take a part of their rows away.
    """
    values = np.pad(inside[:num_values], 1)
    alone = np.zeros(len(inside), bool)
    alone[:num_values] = values[1:-1] & ~values[:-2] & ~values[2:]
    return alone


def _margin(binning: Binning, first: int, last: int) -> tuple[int, int]:
    """The first and the last cell within the margin of the cells that stand out, as a range.

    The margin below a column with knots has at most as many cells as that above: on a logarithmic scale, it would reach
    down to the lower bound otherwise.
    """
    starts = binning.first_codes().astype(np.float64)[: binning.num_values + 1]
    margin = _MARGIN * (starts[last] - starts[first])
    above = starts[last] + margin
    near = (starts[1:] > starts[first] - margin) & (starts[:-1] < above)
    if binning.knots:
        beyond = max(above - starts[-1], 0) / (starts[-1] - starts[-2])  # the bound, in cells
        near &= np.arange(len(near)) >= first - (np.searchsorted(starts, above) - last + beyond)
    places = np.flatnonzero(near)
    return int(places[0]), int(places[-1]) + 1


def _end_of_tail(values: Float[np.ndarray, "cells"], last: int, noise: float) -> int:
    """The cell after the last one of the tail towards the end of ``values``, at least ``last``.

    Each fit has a shape, a scale and the number of rows of largest likelihood. Fits are weighted by their likelihoods.

    Args:
      values: noisy counts.
      last: the cell after the last one that stands out.
      noise: σ of ``values``.
    """
    if last >= len(values):
        return last
    sums = np.cumsum(values[:last][::-1])
    clear = np.flatnonzero(sums > _CLEAR * noise * np.sqrt(np.arange(1, last + 1)))
    start = last - 1 - int(clear[0]) if len(clear) else 0
    counts = values[start:] / noise
    places = np.arange(len(counts) + 1.0)
    scaled = places / np.geomspace(_LEAST_SCALE, len(counts), _NUM_SCALES)[:, None]
    beyond = np.concatenate(
        [np.exp(-scaled) if shape == 0 else np.maximum(1 + shape * scaled, 0) ** (-1 / shape) for shape in _SHAPES]
    )
    of_cells = beyond[:, :-1] - beyond[:, 1:]
    along, squares = of_cells @ counts, np.maximum(np.square(of_cells).sum(1), 1e-300)
    rows = np.maximum(along, 0) / squares
    heights = rows * (along - rows * squares / 2)
    weights = np.exp(heights - heights.max())
    least = np.minimum(_REST, _ADDED * (len(counts) - places))
    ends = np.flatnonzero(weights @ (rows[:, None] * beyond) < least * weights.sum())
    return max(last, min(len(values), start + int(ends[0]))) if len(ends) else len(values)


def _gaps(values: Float[np.ndarray, "cells"], noise: float) -> list[tuple[int, int]]:
    """Ranges of cells between those that stand out, and beyond their tails, that have no rows as far as noise shows.

    Cells between two neighbours that stand out, and their flanks, are a gap if their sum is clearly below what the
    sparser neighbour would make it, and is not clearly positive. An amount of money that is often 0, and never small,
    has one. All gaps together must not clearly have rows either: the fullest ones are no gaps otherwise.

    Args:
      values: noisy counts.
      noise: σ of ``values``.
    """
    intervals, size = intervals_standing_out(values, noise).tolist(), len(values)
    gaps = []
    for (first, end), (start, last) in itertools.pairwise(intervals):
        density = min(values[first:end].sum() / (end - first), values[start:last].sum() / (last - start))
        end += _flank(values[end:start], noise)
        start -= _flank(values[end:start][::-1], noise)
        error, total = noise * math.sqrt(max(start - end, 0)), values[end:start].sum()
        is_long = start - end >= max(1, _LONG_GAP * size)
        if is_long and total < _HARDLY * error and (start - end) * density - total > _CLEARLY * error:
            low = _end_of_tail(values[:start], end, noise)
            high = size - _end_of_tail(values[end:][::-1], size - start, noise)
            if low < high:
                gaps.append((low, high))
    gaps.sort(key=lambda gap: values[slice(*gap)].sum() / math.sqrt(gap[1] - gap[0]))
    while gaps:
        total, number = (
            sum(f(gap) for gap in gaps) for f in (lambda g: values[slice(*g)].sum(), lambda g: g[1] - g[0])
        )
        if total < _HARDLY * noise * math.sqrt(number):
            break
        gaps.pop()
    return gaps


def _flank(values: Float[np.ndarray, "cells"], noise: float) -> int:
    """The number of cells at the start of ``values`` whose sum is most certainly positive; 0 if none is."""
    if not len(values):
        return 0
    certain = np.cumsum(values) / (noise * np.sqrt(np.arange(1, len(values) + 1)))
    return int(certain.argmax()) + 1 if certain.max() > _FLANK else 0


def _ranges(
    size: int, found: tuple[int, int], near: tuple[int, int]
) -> tuple[Int64[np.ndarray, "ranges"], Int64[np.ndarray, "ranges"], Float64[np.ndarray, "ranges"]]:
    """Ranges of cells to which rows may be missing: their starts, their ends, and of how many alternatives each is one.

    Some begin and end at places whose distances grow with their distance from the rows that were found. Others are all
    dyadic intervals: among them are single cells, anywhere.
    """
    low, high = found
    ranges = [(near[0], low)] * (near[0] < low) + [(high, near[1])] * (high < near[1])
    for edges in (low - _edges(low)[::-1], high + _edges(size - high)):
        ranges += [(a, b) for i, a in enumerate(edges[:-1].tolist()) for b in edges[i + 1 :].tolist()]
    numbers, width = [1.0] * len(ranges), 1
    while width < size:
        starts = range(0, size, width)
        ranges += [(a, min(a + width, size)) for a in starts if a < low or a + width > high]
        numbers += [1.0 * len(starts)] * (len(ranges) - len(numbers))
        width *= 2
    start, stop = np.asarray(ranges, np.int64).reshape(-1, 2).T
    return start, stop, np.asarray(numbers)


def _edges(size: int) -> Int64[np.ndarray, "edges"]:
    """Places from 0 to ``size``, whose distances grow."""
    edges, width = [0], max(1, size >> 10)
    while edges[-1] < size:
        edges.append(min(size, edges[-1] + width))
        width = max(width + 1, int(_GROWTH * width))
    return np.asarray(edges)


def _missing_part(
    binning: Binning,
    counts: Float[np.ndarray, "cells"],
    noise: CellNoise,
    num_rows: int,
    known: Known | None,
    inside: Bool[np.ndarray, "cells"],
    found: tuple[int, int],
    near: tuple[int, int],
) -> tuple[int, int] | None:
    """The range of cells to which rows are missing, or None.

    If only the cells inside and those of a range have rows, then their number m in the range is known from

    * the sum of the counts of the range, with the variance of its noise: σ² n for n cells with independent noise;
    * N minus the sum of the counts inside, with the variance of its noise;
    * other sums, if they are measured: those of the rows inside are known up to noise, and each row that is moved to
      the range changes them by the difference g. With the covariance C of all of this noise, m is gᵀC⁻¹r / gᵀC⁻¹g for a
      difference r.

    These are independent up to the noise of the counts inside. The estimate is their mean, weighted by their precision.
    Twice what the range adds to the log-likelihood is the square of the estimate in standard deviations. If a range is
    one of k alternatives, 2 log k is subtracted. Of all ranges that explain the counts nearly as well as the best one,
    the nearest is taken.

    Args:
      binning, counts, noise, num_rows, known: as in ``cells_with_rows``.
      inside: the cells that are known to have rows.
      found: the range of cells that stand out, and of their tails.
      near: the range of the margin.
    """
    low, high = found
    start, stop, number = _ranges(binning.num_values, found, near)
    outside = np.append(0, np.cumsum(~inside))
    size = outside[stop] - outside[start]
    start, stop, number, size = (values[size > 0] for values in (start, stop, number, size))
    if not len(size):
        return None

    def sums_of(values: Float[np.ndarray, "... cells"]) -> Float[np.ndarray, "... ranges"]:
        until = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values * ~inside, axis=-1)], axis=-1)
        return until[..., stop] - until[..., start]

    in_range, elsewhere = np.square(noise.of_ranges(~inside, start, stop)), float(noise.of(inside * 1.0)) ** 2
    precision = 1 / in_range + 1 / elsewhere
    rows = sums_of(counts) / in_range + (num_rows - counts[inside].sum()) / elsewhere
    first = binning.first_codes()
    if known is not None:
        mean = known.features @ project_to_simplex(np.where(inside, counts, -math.inf), 1.0 * num_rows) / num_rows
        covariance = noise.covariance((known.features - mean[:, None]) * inside) + np.diag(np.square(known.sigmas))
        moved = sums_of(known.features) / size - mean[:, None]
        weighted = np.linalg.solve(covariance, moved)
        rows += (known.sums - num_rows * mean) @ weighted
        precision += np.sum(moved * weighted, axis=0)
    heights = np.where(rows > 0, np.square(rows) / precision - 2 * np.log(number), -math.inf)
    pool, least = np.ones(len(heights), bool), _FAR**2
    if heights.max() < least:
        pool, least = ((start == high) & (stop <= near[1])) | ((stop == low) & (start >= near[0])), _NEAR**2
    best = heights[pool].max(initial=-math.inf)
    if best < least:
        return None
    candidates = pool & (heights >= max(best - _AS_WELL, _NEAR**2))
    distance = np.maximum(first[stop] - first[high], first[low] - first[start])
    choice = int(np.flatnonzero(candidates)[np.argmin(distance[candidates])])
    return int(start[choice]), int(stop[choice])
