"""The bins of a column, chosen from estimated counts: neighbours are merged, or rare categories."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64, Real

from kme_jax.feature_maps.table import Binning

_BESIDE_FREQUENT = 0.5  # factor of the number of bins for the rows beside frequent values
# Gaps of an ordered column: the least number of cells; the largest count of a cell, and of all cells together, in units
# of the least count of a bin.
_GAP, _HARDLY, _IN_GAP = 16, 0.05, 2.0
_UNORDERED_BINS = 3  # factor for columns without order, and for columns with few cells
# Valleys: the fewest cells of a column; the part of a column over which counts are averaged; the least count of a bin
# that becomes smaller, in units of the smaller one of both; and how much lower a valley is than both of its sides.
_FEWEST_CELLS, _AVERAGED, _LEFT, _LOWER = 32, 0.02, 0.6, 0.5
_AT_KNOT = 0.5  # the least count of a bin that ends at a knot, in units of the count that it should have
# Cells of an ordered column, up to which they need not be merged into the usual number of bins. Those count that have
# together the second number of its rows: a price with two digits has few values in practice.
_FEW_CELLS, _NEARLY_ALL = 64, 0.98


def choose_bins(
    binning: Binning,
    counts: Real[np.ndarray, "cells"],
    num_bins: float,
    least: float,
    families: Sequence[Int64[np.ndarray, "cells"]] = (),
) -> Int64[np.ndarray, "cells"]:
    """The bin of each cell of a column, int64 [cells].

    Neighbouring cells of an ordered column are merged; a cell with more counts than a bin needs stays alone. In other
    columns the rarest cells are merged: those of each family that has enough counts, and neighbours among all others.

    Args:
      binning: of the column.
      counts: an estimate for each cell, [cells].
      num_bins: the approximate number of bins of an ordered column with many more cells.
      least: the smallest count of a bin.
      families: numbers of the families of cells of a column without order, the finest families first.
    """
    values = counts[: binning.num_values]
    if binning.ordered:
        merges = _num_frequent(values) > min(_UNORDERED_BINS * num_bins, max(_FEW_CELLS, num_bins))
        enough = max(least, _enough(values, num_bins)) if merges else least
        bins, current, bin_count = np.zeros(len(values), np.int64), 0, 0.0
        after_gap, at_knot = _after_gaps(values, least), _at_knots(binning)
        for i, count in enumerate(values):
            ends = (after_gap[i] and bin_count >= least) or (at_knot[i] and bin_count >= max(least, _AT_KNOT * enough))
            if i and (ends or bin_count >= enough or (count >= enough and bin_count >= least / 2)):
                current, bin_count = current + 1, 0.0
            bins[i], bin_count = current, bin_count + count
        if current and bin_count < least:
            bins[bins == current] = current - 1
        bins = _to_valleys(bins, values, least, after_gap, at_knot)
    else:
        most = max(2, round(_UNORDERED_BINS * num_bins))
        bins = _frequent_first(values, most, least, [of_cells[: len(values)] for of_cells in families])
    if not binning.missing:
        return bins
    return np.append(bins, bins.max() + 1)


def _frequent_first(
    counts: Real[np.ndarray, "cells"], most: int, least: float, families: Sequence[Int64[np.ndarray, "cells"]]
) -> Int64[np.ndarray, "cells"]:
    """The bin of each cell of a column without order, [cells]. The cells that stay alone come first, by their counts.

    The other cells of a family share a bin if they have enough counts together. If there are more bins than allowed,
    fewer cells stay alone. Of all that are left, neighbours in the list share bins of enough counts. In many lists they
    are alike: grades, postcodes, codes of diagnoses. If they are not, bins still tell more than a single one would.

    Args:
      counts: an estimate for each cell.
      most: the largest number of bins, 2 or more.
      least, families: as in :func:`choose_bins`.
    """
    order, alone = np.argsort(-counts, kind="stable"), min(int(np.sum(counts >= least)), most - 1)
    shared, left = _large_families(counts, order[alone:], least, families)
    while alone and alone + len(shared) >= most:
        alone -= 1
        shared, left = _large_families(counts, order[alone:], least, families)
    bins = np.empty(len(counts), np.int64)
    bins[order] = np.minimum(np.arange(len(counts)), alone)
    last = min(alone + len(shared), most - 1)
    left = np.sort(left)
    bins[left] = last + _neighbours(counts[left], max(least, counts[left].sum() / (most - last)))
    for place, cells in enumerate(sorted(shared, key=lambda cells: -counts[cells].sum()), start=alone):
        bins[cells] = min(place, most - 1)
    return bins


def _neighbours(counts: Real[np.ndarray, "cells"], enough: float) -> Int64[np.ndarray, "cells"]:
    """Groups of neighbouring cells that have enough counts each, numbered from 0, [cells]."""
    groups, current, group_count = np.zeros(len(counts), np.int64), 0, 0.0
    for i, count in enumerate(counts):
        if group_count >= enough:
            current, group_count = current + 1, 0.0
        groups[i], group_count = current, group_count + count
    if current and group_count < enough:
        groups[groups == current] = current - 1
    return groups


def _large_families(
    counts: Real[np.ndarray, "cells"],
    left: Int64[np.ndarray, "_"],
    least: float,
    families: Sequence[Int64[np.ndarray, "cells"]],
) -> tuple[list[Int64[np.ndarray, "_"]], Int64[np.ndarray, "_"]]:
    """The cells of each family that has enough counts, and the cells of no such family.

    Args:
      counts: an estimate for each cell.
      left: the cells that belong to families.
      least, families: as in :func:`choose_bins`.
    """
    shared = []
    for of_cells in families:
        large = np.flatnonzero(np.bincount(of_cells[left], counts[left]) >= least)
        shared += [left[of_cells[left] == family] for family in large]
        left = left[~np.isin(of_cells[left], large)]
    return shared, left


def families_of_bins(
    families: Sequence[Int64[np.ndarray, "cells"]], bins: Int64[np.ndarray, "cells"]
) -> list[Int64[np.ndarray, "_"]]:
    """The families of bins, for families of their cells. A bin with cells of several families is one by itself."""
    by_level, number = [], int(bins.max()) + 1
    for of_cells in families:
        of_bins = np.zeros(number, np.int64)
        of_bins[bins] = of_cells
        mixed = np.unique(bins[of_cells != of_bins[bins]])
        of_bins[mixed] = int(of_cells.max()) + 1 + mixed
        by_level.append(of_bins)
    return by_level


def _num_frequent(counts: Real[np.ndarray, "cells"]) -> int:
    """The least number of cells that have nearly all rows together."""
    sums = np.cumsum(-np.sort(-counts))
    return int(np.searchsorted(sums, _NEARLY_ALL * sums[-1])) + 1


def _after_gaps(counts: Real[np.ndarray, "cells"], least: float) -> Bool[np.ndarray, "cells"]:
    """The first cell of each gap in an ordered column, [cells]: a long range with hardly any row, between other rows.

    A bin ends there. Otherwise rows of the bin on both sides of the gap would be mixed: small wages and large salaries.
    """
    starts, places = np.zeros(len(counts), bool), np.flatnonzero(counts > _HARDLY * least)
    for before, after in itertools.pairwise(places.tolist()):
        starts[before + 1] |= after - before > _GAP and counts[before + 1 : after].sum() < _IN_GAP * least
    return starts


def _to_valleys(
    bins: Int64[np.ndarray, "cells"],
    counts: Real[np.ndarray, "cells"],
    least: float,
    after_gap: Bool[np.ndarray, "cells"],
    at_knot: Bool[np.ndarray, "cells"],
) -> Int64[np.ndarray, "cells"]:
    """Bins of an ordered column that end in valleys of its counts, if there are any nearby, [cells].

    Rows on both sides of a valley are often of different kinds, such as short and long films. A bin with rows of both
    would mix them. A knot is like a valley without rows. A bin of a single cell stays as it is, and so does an end at a
    gap or a knot.

    Args:
      bins: of the cells, increasing.
      counts: an estimate for each cell.
      least: the smallest count of a bin.
      after_gap: the first cells of gaps.
      at_knot: the knots.
    """
    number, cells = int(bins.max()) + 1, len(counts)
    if number == 1 or cells < _FEWEST_CELLS:
        return bins
    counts = np.maximum(np.asarray(counts, np.float64), 0)
    before = np.append(0.0, np.cumsum(counts))
    smooth = np.convolve(counts, np.ones(max(2, round(_AVERAGED * cells))), "same")
    smooth[at_knot] = -1.0
    edges = np.append(np.searchsorted(bins, np.arange(number)), cells)
    for i in range(1, number):
        first, edge, last = (int(e) for e in edges[i - 1 : i + 2])
        if after_gap[edge] or at_knot[edge] or min(edge - first, last - edge) == 1:
            continue
        left, right = before[edge] - before[first], before[last] - before[edge]
        enough = max(least, _LEFT * min(left, right))
        places = np.arange(first + 1, last)
        possible = (before[places] - before[first] >= enough) & (before[last] - before[places] >= enough)
        if possible.any():
            valley = int(places[possible][np.argmin(smooth[places[possible]])])
            sides = min(smooth[first:valley].max(), smooth[valley:last].max())  # in a tail one side is as low
            edges[i] = valley if smooth[valley] < _LOWER * sides else edge
    return np.repeat(np.arange(number), np.diff(edges))


def _at_knots(binning: Binning) -> Bool[np.ndarray, "cells"]:
    """The cells of an ordered column that are knots of its schema, [cells]. Each has a single code.

    A knot is a value where something changes, as whoever wrote the schema knows. A bin begins there, if the one before
    it is not too small.
    """
    found, knots = np.zeros(binning.num_values, bool), [k for k in binning.knots if k + 1 in binning.knots]
    found[binning.cells(np.asarray(knots, np.int64))] = True
    return found


def _enough(counts: Real[np.ndarray, "cells"], num_bins: float) -> float:
    """The count that a bin of an ordered column should have.

    It would be N / B for B bins of equal counts. But a cell with more rows than this has a bin of its own. The number
    of bins for the rows in other cells follows from their number, as B follows from N: with its cube root. It is half
    of that, because the rows beside a frequent value depend less on other columns than this value does.
    """
    total = max(float(counts.sum()), 1e-300)
    rest = float(counts[counts < total / num_bins].sum())
    if rest >= total * (1 - 1e-9):
        return total / num_bins
    return rest / max(1.0, _BESIDE_FREQUENT * num_bins * (rest / total) ** (1 / 3))
