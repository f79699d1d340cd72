"""How the columns of a table are counted: cells, classes, weights, shares of the budget, and bounds of all maps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.base import MAX_SUM_BITS
from kme_jax.feature_maps.table import MAX_CELLS, Binning, Block, TableMap
from kme_jax.privacy.budget import REPLACE_ONE, Relation
from kme_jax.privacy.composition import Composition

SHARES = (0.5, 0.15, 0.35)  # of ρ, for the three measurements
COUNT_SHARE = 0.02  # of ρ, for the number of rows if it is private; the three measurements have the rest
MOST_PRIVATE_ROWS = 10**9  # if the number of rows is private
FEW_CLASSES, _MAX_CLASSES = 3, 16  # of a target that all marginals are split by
# Factors of the cube root of N / σ: the numbers of bins and of unions of an ordered column. With a larger number B the
# error of merging falls, and the error of the noise of a pair grows with B².
BINS, UNIONS = 1.4, 0.7
# Largest and smallest weight of a block of one cell. It is the number of units of integer noise in one row. So noise is
# fine, and scores are rounded to this part of their range.
_WEIGHT_UNIT, _LEAST_UNIT = 1 << 20, 1 << 12
_PLAIN_UNIT = 64  # of measurements without moments: by earlier versions, and where others would not fit 64 bits
_UNITS = (*(_WEIGHT_UNIT >> i for i in range(_WEIGHT_UNIT.bit_length() - _LEAST_UNIT.bit_length() + 1)), _PLAIN_UNIT)
_MOST_NOISE = 2.0**54  # σ, in units
# Cells of an ordered column, of each class, that count for the weight of its marginal. The noise of more cells is
# smoothed away, and would take the budget of other columns.
_COUNTED_CELLS = 64
# The numbers of cells of ordered columns. With fewer rows there are fewer cells: the sum of the cells that make up a
# part of the bounds, one of ``_NUM_PARTS``, is then less noisy than the mean count of a part is large.
_CELLS, _NUM_PARTS = (MAX_CELLS, MAX_CELLS // 2, MAX_CELLS // 4), 64
# The number of segments of an ordered column that are counted, too, and their share of what the column costs in the
# first measurement. They are counted if it has at least so many values, and if the noise of a cell is at least this
# part of the mean count of a cell.
_NUM_SEGMENTS, SEGMENTS_SHARE, _FEWEST_OF_SEGMENTS, _NOISE_OF_SEGMENTS = 16, 0.3, 48, 0.2
_MANY = 12  # cells of an ordered column, all classes together, from which on its moments are measured
_FEWEST = 3  # values of an ordered column, from which on its products with others may be measured
RARE_SHARES = (0.08, 0.2, 0.4)  # largest shares of the third measurement for rare categories, beside its other blocks
MOST_PARITIES = 8  # triples that are measured again
PRODUCT_COST = 3.0  # largest cost of a product of scores, beside that of an average block
MAX_PARTS = 4096  # of a cell


@short_repr
@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a table, and the column by which all marginals are split, if there is one.

    Attributes:
      binnings: one for each column, with the cells of this layout.
      split: index of the target column if all marginals are split by it, otherwise −1.
      target: index of the target column, or −1 if there is none.
      unit: the weight of a block of one cell. It is 64 for measurements without moments.
      has_totals: whether single columns are also measured without classes, because the noise of the classes adds up.
      has_classes: whether the column ``split`` is also measured by itself.
      counted_cells: the number of cells of an ordered column, of each class, that count for the weight of its marginal;
        None for all cells: of measurements by earlier versions.
      scores_few: whether ordered columns of few values have products, too. Earlier versions did not measure them.
      segmented: indices of the columns that are also counted in segments. Earlier versions had none.
    """

    binnings: tuple[Binning, ...]
    split: int
    target: int
    unit: int = _WEIGHT_UNIT
    has_totals: bool = False
    has_classes: bool = False
    counted_cells: int | None = _COUNTED_CELLS
    scores_few: bool = True
    segmented: tuple[int, ...] = ()

    @classmethod
    def create(
        cls, binnings: Sequence[Binning], target: int, num_rows: int, rho: float, relation: Relation = REPLACE_ONE
    ) -> Layout:
        """The layout for a target column, or for none (−1).

        Ordered columns have fewer cells if there are few rows, see ``_num_cells``.

        Marginals are split by a target of at most three codes. They are also split by a target of up to sixteen codes,
        if it has no more codes than an ordered column has bins. What a classifier learns about rare classes is worth
        more than the noise of the additional cells costs.

        Args:
          binnings: one for each column.
          target: index of the target column, or −1.
          num_rows: N, or a noisy count if N is private.
          rho: ρ of all measurements, see :func:`comparable_rho`.
          relation: which databases are neighbours.
        """
        binnings = [binning.with_cells(_num_cells(len(binnings), num_rows, rho)) for binning in binnings]
        num_codes = binnings[target].num_codes if target >= 0 and len(binnings) > 1 else math.inf
        noise = fine_noise(math.comb(len(binnings) - 1, 2), rho)
        most = min(_MAX_CLASSES, max(FEW_CLASSES, number_of_bins(BINS, num_rows, noise)))
        is_split = 1 < num_codes <= most
        split = target if is_split else -1
        segmented = tuple(j for j, b in enumerate(binnings) if _needs_segments(b, len(binnings), num_rows, rho))
        layout = cls(tuple(binnings), split, target, _WEIGHT_UNIT, is_split, is_split, segmented=segmented)
        return layout._with_room(_most_rows(num_rows, relation), rho)

    @classmethod
    def possible(
        cls, binnings: Sequence[Binning], target: int, rho: float, relation: Relation
    ) -> list[tuple[int, Layout]]:
        """The layouts for a private number of rows, each with a number of rows. Every noisy count leads to one of them,
        up to the unit, which depends on no count, and the columns with segments. Arguments as in :meth:`create`."""
        layouts = []
        for num_rows in (2, MOST_PRIVATE_ROWS):
            layout = cls.create(binnings, target, num_rows, rho, relation)
            for most in _CELLS:
                of_cells = tuple(binning.with_cells(most) for binning in binnings)
                other = dataclasses.replace(layout, binnings=of_cells, unit=_WEIGHT_UNIT)
                layouts.append((num_rows, other._with_room(MOST_PRIVATE_ROWS, rho)))
        return layouts

    @classmethod
    def of_map(
        cls, binnings: Sequence[Binning], target: int, singles: TableMap, num_columns: int, num_scored: int
    ) -> Layout:
        """The layout whose first measurement has this map.

        Args:
          binnings: one for each column.
          target: index of the target column, or −1.
          singles: the map of the first measurement.
          num_columns: the length of :attr:`columns`.
          num_scored: the length of :attr:`scored`.

        Raises:
          ValueError: the cells or the weights of the first measurement are none that :meth:`create` chooses.
        """
        by_cells = [tuple(binning.with_cells(most) for binning in binnings) for most in _CELLS]
        if singles.binnings not in by_cells:
            raise ValueError("the cells of the first measurement are unknown")
        split = target if num_columns < len(binnings) else -1
        segmented = tuple(
            b.columns[-1] for b in singles.blocks[num_columns:] if int(b.bins[-1].max()) + 1 < len(b.bins[-1])
        )
        others = len(singles.blocks) - len(segmented)
        layout = cls(singles.binnings, split, target, 1, others > num_columns, others > 2 * num_columns)
        layout = dataclasses.replace(layout, segmented=segmented)
        weights = [block.weight for block in singles.blocks[:num_columns]]
        for unit, counted_cells in itertools.product(_UNITS, (_COUNTED_CELLS, None)):
            candidate = dataclasses.replace(layout, unit=unit, counted_cells=counted_cells)
            if [block.weight for block in candidate.single_blocks()] == weights:
                return dataclasses.replace(candidate, scores_few=num_scored == len(candidate.scored))
        raise ValueError("the weights of the first measurement are unknown")

    def _with_room(self, num_rows: int, rho: float) -> Layout:
        """The layout with the largest unit for which sums over N rows, and noise, fit 64 bits under every plan."""

        def fits(layout: Layout) -> bool:
            return all(
                num_rows * largest.weight < 2**MAX_SUM_BITS
                and math.sqrt(largest.sum_of_squares / (share * rho)) < _MOST_NOISE
                for largest, share in zip(largest_maps(layout), shares(layout), strict=True)
                if share
            )

        layouts = [dataclasses.replace(self, unit=unit) for unit in _UNITS]
        return next(filter(fits, layouts), layouts[-1])

    @property
    def columns(self) -> list[int]:
        """Indices of all columns except ``split``."""
        return [j for j in range(len(self.binnings)) if j != self.split]

    @property
    def num_classes(self) -> int:
        """T, the number of classes; 1 if marginals are not split."""
        return self.binnings[self.split].num_cells if self.split >= 0 else 1

    def weight(self, size: int) -> int:
        """The weight ω of a block of so many cells.

        The sum of the errors of all cells is least if weights are in proportion to the cube root of the number of
        cells of a marginal.
        """
        return round(self.unit * size ** (1 / 3))

    @property
    def numbers(self) -> list[int]:
        """Positions in :attr:`columns` of the columns whose moments are measured: ordered, with many values."""
        if self.unit == _PLAIN_UNIT:
            return []
        binnings = [self.binnings[j] for j in self.columns]
        many = [self.num_classes * b.num_values > _MANY and b.num_values > 1 for b in binnings]
        return [a for a, b in enumerate(binnings) if b.ordered and many[a]]

    @property
    def scored(self) -> list[int]:
        """Positions in :attr:`columns` of the columns that have scores for products: ordered, with three values or
        more, and all of :attr:`numbers`."""
        if self.unit == _PLAIN_UNIT or not self.scores_few:
            return self.numbers
        binnings, numbers = [self.binnings[j] for j in self.columns], self.numbers
        return [a for a, b in enumerate(binnings) if b.ordered and (b.num_values >= _FEWEST or a in numbers)]

    def segments(self, a: int) -> Int64[np.ndarray, "cells"]:
        """The segment of every cell of the column at place a, int64 [cells]. Missing cells are one by themselves."""
        binning = self.binnings[self.columns[a]]
        segments = np.arange(binning.num_values) * _NUM_SEGMENTS // binning.num_values
        return np.append(segments, _NUM_SEGMENTS) if binning.missing else segments

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of columns, as positions in :attr:`columns`."""
        return list(itertools.combinations(range(len(self.columns)), 2))

    def triples(self) -> list[tuple[int, int, int]]:
        """All triples of columns, as positions in :attr:`columns`."""
        return list(itertools.combinations(range(len(self.columns)), 3))

    def single_blocks(self) -> list[Block]:
        """Blocks for the marginal of each column, split by the classes.

        A column that is counted in segments, too, has smaller weights. So its counts cost as much as without them.
        """
        blocks = self.blocks([[(j, np.arange(self.binnings[j].num_cells))] for j in self.columns])
        if self.counted_cells is not None:
            most = [self.num_classes * self.counted_cells if self.binnings[j].ordered else None for j in self.columns]
            blocks = [
                block if size is None else dataclasses.replace(block, weight=self.weight(min(size, block.size)))
                for block, size in zip(blocks, most, strict=True)
            ]
        for a in map(self.columns.index, self.segmented):
            weight = round(math.sqrt(1 - SEGMENTS_SHARE) * blocks[a].weight)
            blocks[a] = dataclasses.replace(blocks[a], weight=weight)
        return blocks

    def segment_blocks(self) -> list[Block]:
        """Blocks for the segments of each column of :attr:`segmented`, split by the classes."""
        return self.blocks([[(j, self.segments(self.columns.index(j)))] for j in self.segmented])

    def blocks(self, marginals: Sequence[Sequence[tuple[int, Int[np.ndarray, "_"]]]]) -> list[Block]:
        """Blocks for marginals, each split by the classes.

        Args:
          marginals: for each one, its columns and their bins.
        """
        identity = np.arange(self.num_classes)
        split = [(self.split, identity)] if self.split >= 0 else []
        blocks = []
        for marginal in marginals:
            columns, bins = zip(*split, *marginal, strict=True) if split else zip(*marginal, strict=True)
            block = Block(tuple(columns), tuple(bins))
            blocks.append(dataclasses.replace(block, weight=self.weight(block.size)))
        return blocks


def shares(layout: Layout) -> tuple[float, float, float]:
    """Shares of ρ of the three measurements.

    Without pairs, single columns have all of ρ, or 0.9 of it if cells of several codes may stand out.
    """
    if layout.pairs():
        return SHARES
    return (0.9, 0.0, 0.1) if any(layout.binnings[j].width > 1 for j in layout.columns) else (1.0, 0.0, 0.0)


def comparable_rho(planned: Composition) -> float:
    """ρ under replace_one with which the noise of counts is as large as in this composition.

    For a person with k rows, noise is k times as large as for one row, and ρ is as the square of its inverse.
    """
    rho = cast(float, planned.rho)
    return rho if planned.relation == REPLACE_ONE else 2 * (1 - COUNT_SHARE) * rho / planned.max_rows**2


def shares_of_all(layout: Layout, relation: Relation) -> tuple[float, float, float]:
    """Shares of ρ of the three measurements, beside that of the number of rows if it is private."""
    part = 1.0 if relation == REPLACE_ONE else 1 - COUNT_SHARE
    first, second, third = shares(layout)
    return part * first, part * second, part * third


def _most_rows(num_rows: int, relation: Relation) -> int:
    """The number of rows for which sums of integers have room: N, or the limit of a private N."""
    return num_rows if relation == REPLACE_ONE else MOST_PRIVATE_ROWS


def _needs_segments(binning: Binning, num_columns: int, num_rows: int, rho: float) -> bool:
    """Whether a column is counted in segments, too. It depends on public or noisy numbers alone."""
    noise = math.sqrt(num_columns / (SHARES[0] * rho))
    many = binning.ordered and binning.num_values >= _FEWEST_OF_SEGMENTS
    return many and noise * binning.num_values >= _NOISE_OF_SEGMENTS * num_rows


def fine_noise(num_pairs: int, rho: float) -> float:
    """σ of the counts of pairs in the third measurement, if it has half of all pairs with equal weights."""
    return math.sqrt(max(1, num_pairs) / 2 / (SHARES[2] * rho))


def _num_cells(num_columns: int, num_rows: int, rho: float) -> int:
    """The largest number of cells of an ordered column. It depends on public or noisy numbers alone."""
    noise = math.sqrt(num_columns / (SHARES[0] * rho))
    wanted = _NUM_PARTS * (num_rows / (_NUM_PARTS * noise)) ** 2
    return next((cells for cells in _CELLS if cells <= wanted), _CELLS[-1])


def number_of_bins(factor: float, num_rows: int, noise: float) -> float:
    """The number of bins of an ordered column, for the factor ``BINS`` or ``UNIONS`` and the noise of a pair."""
    return max(2.0, factor * (num_rows / noise) ** (1 / 3))


@short_repr
@dataclasses.dataclass(frozen=True)
class Largest:
    """Bounds that hold for the map of a measurement under every plan. ``secure_mechanism`` takes it as an integer map.

    Attributes:
      sum_of_squares: upper bound of Σ_b ω_b².
      weight: upper bound of every ω_b.
    """

    sum_of_squares: int
    weight: int

    failure_probability = 0.0
    l1_diameter = math.inf
    is_of_rows: ClassVar[bool] = True
    units = 1.0
    num_features = 2**36  # more than any map has that fits into memory

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²), as for ``TableIntegers``."""
        return math.sqrt(2 * self.sum_of_squares) * (1 + 1e-12)

    @property
    def certain_diameter(self) -> float:
        """The diameter itself: it holds with probability 1."""
        return self.diameter

    @property
    def norm_bound(self) -> float:
        """√(Σ_b ω_b²), as for ``TableIntegers``: a moment adds (2 ω + 1)² / 2 to the sum, and at most
        (√2 ω + 1/2)² to the squared norm."""
        return math.sqrt(self.sum_of_squares) * (1 + 1e-12)


def largest_maps(layout: Layout) -> tuple[Largest, Largest, Largest]:
    """Bounds of the maps of the three measurements, known before any noise is drawn. They hold for all noisy counts.

    Formal guarantee: the weight of a marginal is at most round(unit · size^(1/3)), which increases with its size. Bins
    of a column are numbered from 0 without gaps, at most one for each cell of its binning (``choose_bins``), and there
    are no more unions than bins. So the marginal of a set of columns has at most T Π_j cells_j cells, T the number of
    classes. The first measurement has one marginal for each column, with classes, at most one more without, and at most
    one of its segments, of at most the same weight each: √(2 s / (1 − s)) < 1 for a share s of segments of 0.3. It has
    at most one of the classes alone, of at most the largest of these weights (``singles_map``).
    The second has one for each pair (``coarse_map``). The third has at most one for each column and each pair, and, for
    a column whose cells have several codes, one of the parts of cells, with a weight of at most unit · 4096^(1/3)
    (``zoom_blocks``, ``pairs_map``). Σ ω² of each map is at most the sum of the squares of these bounds, as no term is
    negative. A moment adds (2 ω + 1)² / 2 ≤ 2 (ω + 1)². There is one for each column with many values in the first
    measurement, and at most one for each pair of scored columns in the third. Their weights are at most the largest
    weight of a block of the map, or √(3/2) times that of a block that is not of rare categories (``_moment_weight``,
    ``PRODUCT_COST``). The moments of single columns in the third measurement have at
    most 3/7 of what its blocks have (``_MOST_MOMENTS``), so they add less than its blocks. Rare categories add at most
    2/3 of the sum of its other blocks (``_rare_blocks``), and 1 for each pair of columns in either order.
    """

    def weight(size: int) -> int:
        return layout.weight(size) + 2  # one more, because the root is rounded, and one for the rounding of moments

    sizes = [layout.binnings[j].num_cells for j in layout.columns]
    singles = [weight(layout.num_classes * size) for size in sizes]
    pairs = [weight(layout.num_classes * sizes[a] * sizes[b]) for a, b in layout.pairs()]
    zooms = [weight(min(layout.binnings[j].width, MAX_PARTS)) for j in layout.columns if layout.binnings[j].width > 1]
    # Of all triples together: at most as much as pairs have, and 1 more for each, because weights are rounded.
    of_pairs = sum(w**2 for w in pairs)
    num_triples = math.comb(len(layout.columns), 3)
    triples = [math.isqrt(of_pairs) + num_triples + 1] if num_triples else []
    weights = [[*singles, *singles, *singles, max(singles)], [*pairs, *triples], [*singles, *pairs, *zooms]]
    num_numbers, num_scored = len(layout.numbers), len(layout.scored)
    weights[0] += [max(singles)] * 2 * num_numbers
    weights[2] += [max(weights[2]) + 1] * min(MOST_PARITIES, num_triples)
    largest = max(weights[2], default=1)
    if pairs:
        of_others = sum(weight**2 for weight in weights[2])
        of_rare = max(RARE_SHARES) / (1 - max(RARE_SHARES)) * (1 + 1e-9) * of_others
        weights[2] += [math.isqrt(math.ceil(of_rare)) + 1, *[1] * 2 * len(pairs)]
    of_blocks = math.isqrt(sum(weight**2 for weight in weights[2])) + 1
    product = math.ceil(math.sqrt(PRODUCT_COST / 2) * largest) + 1
    weights[2] += [product] * 2 * math.comb(num_scored, 2) + [of_blocks] * (num_numbers > 0)
    first, second, third = (Largest(sum(w**2 for w in of_map), max(of_map, default=1)) for of_map in weights)
    return first, second, third
