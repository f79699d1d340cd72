"""The bins in which pairs of columns are measured."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.table import Binning
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.histogram import standing_out
from kme_jax.table.planning.bins import choose_bins, families_of_bins
from kme_jax.table.planning.layout import BINS, SHARES, UNIONS, Layout, fine_noise, number_of_bins
from kme_jax.table.planning.noisy_sums import map_of
from kme_jax.table.planning.singles import SIGNIFICANT, Singles

_WIDE = 4  # cells of a bin, from which on a column counts as wide
MOST_CELLS = 1 << 24  # approximate limit of the cells of all pairs together: memory of the fit


@short_repr
@dataclasses.dataclass(frozen=True)
class Plan:
    """The bins in which pairs of columns are measured. Each list has one entry for each column.

    Attributes:
      bins: the bin of every cell, for the third measurement.
      unions: the union of every bin, for the second measurement.
      ranges: for each of ``Layout.scored``, the codes between which its scores grow in products, int64 [scored, 2].
    """

    bins: list[Int[np.ndarray, "_"]]
    unions: list[Int[np.ndarray, "_"]]
    ranges: Int64[np.ndarray, "scored 2"]

    @classmethod
    def create(
        cls,
        layout: Layout,
        singles: Singles,
        num_rows: int,
        rho: float,
        families: Mapping[int, Sequence[Int64[np.ndarray, "cells"]]],
    ) -> Plan:
        """The plan from the first measurement.

        Args:
          layout: of the columns.
          singles: the first measurement.
          num_rows: N.
          rho: ρ of all three measurements.
          families: by index of a column, those of its cells, see :func:`choose_bins`. They are public.
        """
        num_pairs = max(1, len(layout.pairs()))
        fine, coarse = fine_noise(num_pairs, rho), math.sqrt(num_pairs / (SHARES[1] * rho))
        room = math.sqrt(MOST_CELLS / layout.num_classes) / len(layout.columns)
        num_bins, num_unions = (
            max(2.0, min(number_of_bins(factor, num_rows, noise), room))
            for factor, noise in ((BINS, fine), (UNIONS, coarse))
        )
        bins, unions = [], []
        for j, counts in zip(layout.columns, singles.smoothed, strict=True):
            binning, counts, of_cells = layout.binnings[j], counts.sum(0), families.get(j, ())
            bins.append(choose_bins(binning, counts, num_bins, SIGNIFICANT * fine, of_cells))
            of_bins = Binning(int(bins[-1].max()) + 1, binning.ordered, binning.missing, 1)
            least = min(SIGNIFICANT * coarse, num_rows / 10)
            sums, of_sums = np.bincount(bins[-1], counts), families_of_bins(of_cells, bins[-1])
            unions.append(choose_bins(of_bins, sums, num_unions, least, of_sums))
        return cls(bins, unions, _score_ranges(layout, singles))

    def layout(self, binnings: Sequence[Binning], target: int, singles: NoisyEmbedding) -> Layout:
        """The layout that this plan and its first measurement were created for.

        Raises:
          ValueError: the cells or the weights of the first measurement are none that ``Layout.create`` chooses.
        """
        return Layout.of_map(binnings, target, map_of(singles), len(self.bins), len(self.ranges))

    def check(self, layout: Layout) -> None:
        """Refuses a plan that was read from a file and does not fit a layout.

        Raises:
          ValueError: the bins are for other columns or cells, or the numbering of bins has gaps.
        """
        require(len(self.bins) == len(self.unions) == len(layout.columns), "the plan is for other columns")
        for j, bins, unions in zip(layout.columns, self.bins, self.unions, strict=True):
            for name, numbers, size in (("bins", bins, layout.binnings[j].num_cells), ("unions", unions, None)):
                check_array(numbers, name, "i", (size,))
                complete = numbers.min() == 0 and numbers.max() < len(numbers) and np.bincount(numbers).all()
                require(bool(complete), f"{name}: a number is left out")
            require(len(unions) == int(bins.max()) + 1, "unions: expected one for each bin")
        check_array(self.ranges, "ranges", "i", (len(layout.scored), 2))
        for a, (low, high) in zip(layout.scored, self.ranges.tolist(), strict=True):
            binning = layout.binnings[layout.columns[a]]
            require(0 <= low < high < binning.num_codes - binning.missing, "ranges: these are no codes of the column")

    def halves(self, layout: Layout) -> list[Int[np.ndarray, "_"]]:
        """For each column, the half of every bin, 0 or 1.

        Unions have about equal counts. So the first half of the unions of an ordered column are one half, and the most
        frequent union of any other column.
        """
        halves = []
        for j, unions in zip(layout.columns, self.unions, strict=True):
            first = (int(unions.max()) + 1) // 2 if layout.binnings[j].ordered else 1
            halves.append((unions >= max(first, 1)).astype(np.int64))
        return halves

    @property
    def merged(self) -> list[Int[np.ndarray, "_"]]:
        """For each column, the union of every cell."""
        return [unions[bins] for bins, unions in zip(self.bins, self.unions, strict=True)]


def _score_ranges(layout: Layout, singles: Singles) -> Int64[np.ndarray, "scored 2"]:
    """For each column with scores, the first and the last code of the cells that stand out, int64 [scored, 2]."""
    ranges = []
    for a in layout.scored:
        binning = layout.binnings[layout.columns[a]]
        low, high = standing_out(singles.of_all(a)[0][: binning.num_values], singles.sums_sigmas[a])
        first = binning.first_codes()
        low, high = int(first[low]), int(first[high]) - 1
        ranges.append((low, high) if low < high else (0, binning.num_codes - binning.missing - 1))
    return np.asarray(ranges, np.int64).reshape(-1, 2)


def parts_of(plan: Plan) -> tuple[list[slice], list[slice], Float[np.ndarray, "bins unions"]]:
    """Where the bins and the unions of each column are among the parts, and which bins are in which union, [D, E].

    Parts are the bins of all columns, followed by the unions.

    Bins that the plan leaves as they are have no unions of their own.
    """
    ends = np.cumsum([0, *(int(bins.max()) + 1 for bins in plan.bins)])
    bins = [slice(int(i), int(j)) for i, j in itertools.pairwise(ends)]
    places, columns, size = [], [], int(ends[-1])
    for place, union in zip(bins, plan.unions, strict=True):
        number = int(union.max()) + 1
        if np.array_equal(union, np.arange(len(union))):
            places.append(place)
            continue
        members = np.zeros((int(ends[-1]), number))
        members[np.arange(place.start, place.stop), union] = 1
        places.append(slice(size, size + number))
        columns.append(members)
        size += number
    return bins, places, np.concatenate([np.zeros((int(ends[-1]), 0)), *columns], axis=1)


def wide_columns(layout: Layout, plan: Plan) -> list[int]:
    """Positions in ``layout.columns`` of columns whose bins have so many cells that the noise of the cells adds up."""
    sizes = [
        (layout.binnings[j].num_cells, int(bins.max()) + 1) for j, bins in zip(layout.columns, plan.bins, strict=True)
    ]
    return [a for a, (cells, bins) in enumerate(sizes) if cells >= _WIDE * bins > _WIDE]


def rare_cells(layout: Layout, plan: Plan, a: int) -> Int64[np.ndarray, "_"]:
    """The cells of the column at place a that share bins, because each has few rows. A column with an order has
    no such cells.

    Args:
      layout: of the columns.
      plan: the bins.
      a: place of the column in ``layout.columns``.
    """
    shared = np.bincount(plan.bins[a]) > 1
    if layout.binnings[layout.columns[a]].ordered:
        return np.zeros(0, np.int64)
    return np.flatnonzero(shared[plan.bins[a]])
