"""The plan of a table release: which marginals of a private table are measured.

There are three measurements. Each one is planned from the noisy counts of those before it.

1. *Single columns*. The marginal of a column has a cell for each value, at most about a thousand, and fewer if there
   are few rows. It is split by the classes of the target, and it is measured without classes, too. The noise of a
   thousand cells adds up. So an ordered column of many values is also counted in sixteen segments (``cells``), and its
   mean and its mean square are measured without classes.
2. *Pairs of columns*. All pairs are measured, in a few bins of about equal counts. All triples are measured in halves,
   if N and the budget leave little noise.
3. *Some pairs*. The pairs that are furthest from independence in the second measurement are measured again in more
   bins, as long as this lowers the error. The mean product of two ordered columns is measured too. For columns of many
   values, the marginals of the bins are measured again, and cells that stand out are cut into parts. Triples that
   depend on each other in a way that pairs do not show are measured again, too. So are rare categories, which share a
   bin in pairs: each by itself, together with the columns that depend most on it (``kme_jax.table.rare_fit``).

Bins, pairs and cells are chosen from noisy counts and public quantities alone. So the three measurements compose.

If the number of rows is private, another measurement comes first: of this number. A noisy count then replaces N
everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Real

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import MAX_SUM_BITS
from kme_jax.feature_maps.table import COUNT_WEIGHT, MAX_CELLS, Binning, Block, Moment, TableMap
from kme_jax.privacy.budget import REPLACE_ONE, Relation
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.cells import CellNoise, refined
from kme_jax.table.histogram import project_to_simplex, smooth_counts, standing_out
from kme_jax.table.reach import Known, cells_alone, cells_with_rows
from kme_jax.table.tilt import Moments, cell_scores, tilted

SHARES = (0.5, 0.15, 0.35)  # of ρ, for the three measurements
COUNT_SHARE = 0.02  # of ρ, for the number of rows if it is private; the three measurements have the rest
MOST_PRIVATE_ROWS = 10**9  # if the number of rows is private
_FEW_CLASSES, _MAX_CLASSES = 3, 16  # of a target that all marginals are split by
_TOTALS_OF_FEW = 0.6  # weight of a marginal without classes beside that with few classes
_CLASSES_COST = 0.5  # of the marginal of the classes alone, beside that of an average block
# Factors of the cube root of N / σ: the numbers of bins and of unions of an ordered column. With a larger number B the
# error of merging falls, and the error of the noise of a pair grows with B².
_BINS, _UNIONS = 1.4, 0.7
_BESIDE_FREQUENT = 0.5  # factor of the number of bins for the rows beside frequent values
_SIGNIFICANT = 4.0  # the smallest count of a bin, in units of σ
# Gaps of an ordered column: the least number of cells; the largest count of a cell, and of all cells together, in units
# of the least count of a bin.
_GAP, _HARDLY, _IN_GAP = 16, 0.05, 2.0
_UNORDERED_BINS = 3  # factor for columns without order, and for columns with few cells
# Cells of an ordered column, up to which they need not be merged into the usual number of bins. Those count that have
# together the second number of its rows: a price with two digits has few values in practice.
_FEW_CELLS, _NEARLY_ALL = 64, 0.98
_GAIN = 0.6  # approximate share of the noise of a pair that remains after the fit
_MEAN_SIZE = 0.8  # E|g| for a standard normal g
# The total variation of a pair that noise causes, approximately, as a part of the sum of σ over its cells by N.
ERROR_OF_NOISE = _GAIN * _MEAN_SIZE / 2
# Largest and smallest weight of a block of one cell. It is the number of units of integer noise in one row. So noise is
# fine, and scores are rounded to this part of their range.
_WEIGHT_UNIT, _LEAST_UNIT = 1 << 20, 1 << 12
_PLAIN_UNIT = 64  # of measurements without moments: by earlier versions, and where others would not fit 64 bits
_UNITS = (*(_WEIGHT_UNIT >> i for i in range(_WEIGHT_UNIT.bit_length() - _LEAST_UNIT.bit_length() + 1)), _PLAIN_UNIT)
_MOST_NOISE = 2.0**54  # σ, in units
_MOST_MOMENT_WEIGHT = (1 << 31) - 1  # so that the square of a rounded score fits 64 bits
# Cells of an ordered column, of each class, that count for the weight of its marginal. The noise of more cells is
# smoothed away, and would take the budget of other columns.
_COUNTED_CELLS = 64
# The numbers of cells of ordered columns. With fewer rows there are fewer cells: the sum of the cells that make up a
# part of the bounds, one of ``_NUM_PARTS``, is then less noisy than the mean count of a part is large.
_CELLS, _NUM_PARTS = (MAX_CELLS, MAX_CELLS // 2, MAX_CELLS // 4), 64
# The number of segments of an ordered column that are counted, too, and their share of what the column costs in the
# first measurement. They are counted if it has at least so many values, and if the noise of a cell is at least this
# part of the mean count of a cell.
_NUM_SEGMENTS, _SEGMENTS_SHARE, _FEWEST_OF_SEGMENTS, _NOISE_OF_SEGMENTS = 16, 0.3, 48, 0.2
_LITTLE = 1e-6  # rows of a cell, so that a segment without rows can have some
_MANY = 12  # cells of an ordered column, all classes together, from which on its moments are measured
_FEWEST = 3  # values of an ordered column, from which on its products with others may be measured
# Cost beside that of an average block: of the moments of a column over all of its bounds, if there are pairs and if
# there are none.
_MOMENT_COST, _ONLY_MOMENT_COST = 0.05, 0.4
# Share of ρ for the moments of a column in the third measurement, in units of 1 / (number of columns), if its rows fill
# its bounds. The noisy mean then has 2.2 times the error of a mean with an equal share of all of ρ, and other
# measurements add to it. If rows fill only a part r of the bounds, the share is r times as large, and the error √r
# times.
_MOMENT_SHARE = 0.2
_MOST_MOMENTS = 0.3  # largest share of the third measurement for moments
_LEAST_RANGE = 0.1  # the smallest range of a moment that its share is computed for, in units of the bounds
# A product is measured if the noisy correlation is at least this, and so many times its noise.
_STRONG, _CLEARLY = 0.15, 2.0
# Cost of a product beside that of an average block. It is the larger one, if all products then have no larger share of
# the third measurement than this. It is never less than the smaller one, which earlier versions had.
_PRODUCT_COST, _LEAST_PRODUCT_COST, _PRODUCTS_SHARE = 3.0, 0.3, 0.04
_MARGIN = 1.0  # of the scores of moments beyond the cells that stand out, in units of the range of these cells
_EARLIER_MARGIN = 2.0  # of measurements by earlier versions
_WIDE = 4  # cells of a bin, from which on a column counts as wide
_STANDS_OUT = 4.0  # how far a cell is above its neighbours, in units of σ
_MAX_PARTS = 4096  # of a cell
# Share of the second measurement for triples; largest number of triples; largest standard deviation of a parity.
_TRIPLES_SHARE, _MOST_TRIPLES, _PARITY_NOISE = 0.1, 4096, 0.12
# A triple is measured again if its third cumulant exceeds both its noise, in standard deviations, and a level.
_STANDS_OUT_OF_ALL, _LEAST_CUMULANT, _MOST_PARITIES = 5.0, 0.1, 8
_PARITY_COST = 0.5  # of a triple in the third measurement, beside that of an average block
# Of rare categories: largest shares of the third measurement beside its other blocks; the most parents of a column.
RARE_SHARES, MOST_PARENTS = (0.08, 0.2, 0.4), 3
EVENLY = 1e-3  # share of all rows that is spread evenly over classes and cells
_LEAST_CLASS = 0.1  # the smallest count of a class, in units of its noise
NUM_RAKES = 5  # of a histogram, to its sums over classes and to the counts of the classes
MOST_CELLS = 1 << 24  # approximate limit of the cells of all pairs together: memory of the fit


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
        noise = _fine_noise(math.comb(len(binnings) - 1, 2), rho)
        most = min(_MAX_CLASSES, max(_FEW_CLASSES, _num_bins(_BINS, num_rows, noise)))
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
    def of_plan(cls, binnings: Sequence[Binning], target: int, plan: Plan, singles: NoisyEmbedding) -> Layout:
        """The layout that a plan and its first measurement were created for.

        Raises:
          ValueError: the cells or the weights of the first measurement are none that :meth:`create` chooses.
        """
        by_cells = [tuple(binning.with_cells(most) for binning in binnings) for most in _CELLS]
        if map_of(singles).binnings not in by_cells:
            raise ValueError("the cells of the first measurement are unknown")
        binnings = map_of(singles).binnings
        split = target if len(plan.bins) < len(binnings) else -1
        num_blocks, num_columns = len(map_of(singles).blocks), len(plan.bins)
        of_columns = map_of(singles).blocks[num_columns:]
        segmented = tuple(b.columns[-1] for b in of_columns if int(b.bins[-1].max()) + 1 < len(b.bins[-1]))
        others = num_blocks - len(segmented)
        layout = cls(tuple(binnings), split, target, 1, others > num_columns, others > 2 * num_columns)
        layout = dataclasses.replace(layout, segmented=segmented)
        weights = [block.weight for block in map_of(singles).blocks[:num_columns]]
        for unit, counted_cells in itertools.product(_UNITS, (_COUNTED_CELLS, None)):
            candidate = dataclasses.replace(layout, unit=unit, counted_cells=counted_cells)
            if [block.weight for block in candidate.single_blocks()] == weights:
                few = len(plan.ranges) == len(candidate.scored)
                return dataclasses.replace(candidate, scores_few=few)
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
            weight = round(math.sqrt(1 - _SEGMENTS_SHARE) * blocks[a].weight)
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


def count_map(binnings: Sequence[Binning], weight: int = COUNT_WEIGHT) -> TableMap:
    """The measurement of a private number of rows: a marginal with a single cell.

    Args:
      binnings: one for each column.
      weight: ω, in whose units noise is an integer. Earlier versions measured with 1.
    """
    return TableMap(tuple(binnings), (Block((0,), (np.zeros(binnings[0].num_cells, np.int64),), weight=weight),))


def noisy_count(noisy: NoisyEmbedding) -> int:
    """The number that replaces a private number of rows: the noisy one, at least 2 and at most a billion."""
    (marginal,) = map_of(noisy).marginals(noisy.coordinates, noisy.mechanism.num_rows)
    return round(min(max(float(marginal[0]), 2.0), float(MOST_PRIVATE_ROWS)))


def _most_rows(num_rows: int, relation: Relation) -> int:
    """The number of rows for which sums of integers have room: N, or the limit of a private N."""
    return num_rows if relation == REPLACE_ONE else MOST_PRIVATE_ROWS


def _needs_segments(binning: Binning, num_columns: int, num_rows: int, rho: float) -> bool:
    """Whether a column is counted in segments, too. It depends on public or noisy numbers alone."""
    noise = math.sqrt(num_columns / (SHARES[0] * rho))
    many = binning.ordered and binning.num_values >= _FEWEST_OF_SEGMENTS
    return many and noise * binning.num_values >= _NOISE_OF_SEGMENTS * num_rows


def _fine_noise(num_pairs: int, rho: float) -> float:
    """σ of the counts of pairs in the third measurement, if it has half of all pairs with equal weights."""
    return math.sqrt(max(1, num_pairs) / 2 / (SHARES[2] * rho))


def _num_cells(num_columns: int, num_rows: int, rho: float) -> int:
    """The largest number of cells of an ordered column. It depends on public or noisy numbers alone."""
    noise = math.sqrt(num_columns / (SHARES[0] * rho))
    wanted = _NUM_PARTS * (num_rows / (_NUM_PARTS * noise)) ** 2
    return next((cells for cells in _CELLS if cells <= wanted), _CELLS[-1])


def _num_bins(factor: float, num_rows: int, noise: float) -> float:
    return max(2.0, factor * (num_rows / noise) ** (1 / 3))


def map_of(noisy: NoisyEmbedding) -> TableMap:
    """The map of a measurement of a table.

    Raises:
      ValueError: it is another map.
    """
    if not isinstance(noisy.feature_map, TableMap):
        raise ValueError(f"expected a TableMap, got a {type(noisy.feature_map).__name__}")
    return noisy.feature_map


def sigma(noisy: NoisyEmbedding, term: Block | Moment) -> float:
    """The standard deviation of the noise of a block's counts, or of the sums of a moment."""
    mechanism = noisy.mechanism
    return mechanism.scale * mechanism.num_rows * map_of(noisy).norm / term.weight


def block_counts(noisy: NoisyEmbedding | None) -> list[tuple[Block, Float[np.ndarray, "..."], float]]:
    """The blocks of a measurement, their noisy marginals, and the standard deviations of the noise."""
    if noisy is None:
        return []
    feature_map = map_of(noisy)
    of_blocks = feature_map.marginals(noisy.coordinates, noisy.mechanism.num_rows)
    return [(b, counts, sigma(noisy, b)) for b, counts in zip(feature_map.blocks, of_blocks, strict=True)]


def narrow_moments(layout: Layout, j: int, noisy: NoisyEmbedding | None) -> list[Moments]:
    """The moments of the column of index j in the third measurement, over the range of the cells that stand out."""
    if noisy is None:
        return []
    num_rows = noisy.mechanism.num_rows
    sums = map_of(noisy).moment_sums(noisy.coordinates, num_rows)
    return [
        Moments(moment, layout.binnings[j], values, sigma(noisy, moment), num_rows)
        for moment, values in zip(map_of(noisy).moments, sums, strict=True)
        if moment.columns == (j,)
    ]


def _moment_weight(cost: float, mean_square: float) -> int:
    """ω of a moment whose share of the budget is ``cost`` times that of an average block.

    A block adds 2 ω² to the squared diameter, and a moment 4 ω².

    Args:
      cost: see above.
      mean_square: the mean of the squares of the weights of blocks.
    """
    return min(max(1, round(math.sqrt(cost / 2 * mean_square))), _MOST_MOMENT_WEIGHT)


def singles_map(layout: Layout) -> TableMap:
    """The first measurement: the marginal of every column with classes and without, that of the classes themselves,
    those of the segments of columns of many values, and the moments of these columns over their public bounds."""
    blocks, of_totals = layout.single_blocks(), 0.0
    weights = [block.weight for block in blocks]
    if layout.has_totals:
        of_totals = 1.0 if layout.num_classes > _FEW_CLASSES else _TOTALS_OF_FEW
        blocks += [Block(b.columns[1:], b.bins[1:], weight=round(of_totals * b.weight)) for b in blocks]
    of_segments = math.sqrt(_SEGMENTS_SHARE / (1 - _SEGMENTS_SHARE) * (1 + of_totals**2))
    segments = [
        dataclasses.replace(block, weight=round(of_segments * weights[layout.columns.index(j)]))
        for j, block in zip(layout.segmented, layout.segment_blocks(), strict=True)
    ]
    size = len(blocks)
    if layout.has_classes:
        weight = max(1, round(math.sqrt(_CLASSES_COST * _mean_square([*blocks, *segments], size))))
        blocks.append(Block((layout.split,), (np.arange(layout.num_classes),), weight=weight))
    cost = _MOMENT_COST if layout.pairs() else _ONLY_MOMENT_COST
    weight, moments = _moment_weight(cost, _mean_square([*blocks, *segments], len(blocks))), []
    for j in (layout.columns[a] for a in layout.numbers):
        binning = layout.binnings[j]
        moments.append(Moment((j,), (0,), (binning.num_codes - binning.missing - 1,), weight))
    return TableMap(layout.binnings, (*blocks, *segments), tuple(moments))


def _mean_square(blocks: Sequence[Block], number: int) -> float:
    """The sum of the squares of the weights of blocks over a number."""
    return sum(float(block.weight) ** 2 for block in blocks) / number


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Noisy counts of the segments of a column.

    Attributes:
      bins: the segment of every cell, [cells].
      counts: of every class and segment, [T, segments].
      sigma: standard deviation of the noise of ``counts``.
    """

    bins: Int[np.ndarray, "cells"]
    counts: Float[np.ndarray, "classes segments"]
    sigma: float


@short_repr
@dataclasses.dataclass(frozen=True)
class Singles:
    """The noisy counts of the first measurement, and estimates from them. Each list has one entry for each column.

    Attributes:
      counts: noisy counts of every class and cell, [T, cells].
      sigmas: standard deviations of the noise of ``counts``.
      totals: noisy counts of every cell, measured without classes, [cells]; None if they were not measured.
      totals_sigmas: standard deviations of the noise of ``totals``.
      classes: noisy counts of the classes, [T]; None if they were not measured by themselves.
      classes_sigma: standard deviation of the noise of ``classes``; infinite if they were not measured.
      sums: the best noisy estimates of the counts of every cell, all classes together, [cells].
      sums_sigmas: standard deviations of the noise of ``sums``.
      segments: the segments of columns that were counted in segments, too; None for other columns.
      smoothed: estimates of ``counts`` after denoising, [T, cells], with Σ = N. They agree with the moments.
      moments: the measured moments; None for columns without.
      inside: whether each cell may have rows, [cells], see ``kme_jax.table.reach``. Estimates are 0 elsewhere, where
        positive noise looks like rows.
    """

    counts: list[Float[np.ndarray, "classes _"]]
    sigmas: list[float]
    totals: list[Float[np.ndarray, "_"]] | None
    totals_sigmas: list[float]
    classes: Float[np.ndarray, "classes"] | None
    classes_sigma: float
    sums: list[Float[np.ndarray, "_"]]
    sums_sigmas: list[float]
    segments: list[Segments | None]
    smoothed: list[Float[np.ndarray, "classes _"]]
    moments: list[Moments | None]
    inside: list[Bool[np.ndarray, "_"]]

    @classmethod
    def read(cls, layout: Layout, noisy: NoisyEmbedding, *, denoised: bool = True) -> Singles:
        """The counts of the first measurement, from its noisy embedding.

        Args:
          layout: of the columns.
          noisy: the first measurement.
          denoised: whether there are estimates. Otherwise ``smoothed`` and ``inside`` are empty lists.
        """
        num_rows, feature_map = noisy.mechanism.num_rows, map_of(noisy)
        blocks, marginals = feature_map.blocks, feature_map.marginals(noisy.coordinates, num_rows)
        noises, size = [sigma(noisy, block) for block in blocks], len(layout.columns)
        counts, sigmas = [marginal.reshape(layout.num_classes, -1) for marginal in marginals[:size]], noises[:size]
        totals, totals_sigmas = None, []
        if layout.has_totals:
            totals, totals_sigmas = list(marginals[size : 2 * size]), noises[size : 2 * size]
        classes, classes_sigma = None, math.inf
        segments: list[Segments | None] = [None] * size
        first = len(blocks) - len(layout.segmented)
        for j, marginal, noise in zip(layout.segmented, marginals[first:], noises[first:], strict=True):
            a = layout.columns.index(j)
            segments[a] = Segments(layout.segments(a), marginal.reshape(layout.num_classes, -1), noise)
        if layout.has_classes:
            classes, classes_sigma = marginals[first - 1], noises[first - 1]
        sums = [counts_of_column.sum(0) for counts_of_column in counts]
        sums_sigmas = [noise * math.sqrt(layout.num_classes) for noise in sigmas]
        if totals is not None:
            weights = [s**2 / (s**2 + t**2) for s, t in zip(sums_sigmas, totals_sigmas, strict=True)]
            sums = [(1 - weight) * s + weight * t for weight, s, t in zip(weights, sums, totals, strict=True)]
            sums_sigmas = [s * math.sqrt(1 - weight) for weight, s in zip(weights, sums_sigmas, strict=True)]
        moments: list[Moments | None] = [None] * size
        sums_of_moments = feature_map.moment_sums(noisy.coordinates, num_rows)
        for a, moment, values in zip(layout.numbers, feature_map.moments, sums_of_moments, strict=True):
            moments[a] = Moments(moment, layout.binnings[layout.columns[a]], values, sigma(noisy, moment), num_rows)
        singles = cls(
            counts, sigmas, totals, totals_sigmas, classes, classes_sigma, sums, sums_sigmas, segments, [], moments, []
        )
        if not denoised:
            return singles
        found = [singles.denoise(layout, a, num_rows) for a in range(size)]
        smoothed, inside = ([pair[i] for pair in found] for i in range(2))
        return dataclasses.replace(singles, smoothed=smoothed, inside=inside)

    def of_classes(self, a: int) -> tuple[Float[np.ndarray, "classes cells"], CellNoise]:
        """The best noisy counts of every class and cell, [T, cells], and their noise, which is independent for classes.

        Args:
          a: place of the column among all except ``Layout.split``.
        """
        return self._of_cells(a, self.counts[a], self.sigmas[a], 1)

    def of_all(self, a: int) -> tuple[Float[np.ndarray, "cells"], CellNoise]:
        """The best noisy counts of every cell, all classes together, [cells], and their noise. a as above."""
        return self._of_cells(a, self.sums[a], self.sums_sigmas[a], len(self.counts[a]))

    def _of_cells(self, a: int, counts: np.ndarray, noise: float, number: int) -> tuple[np.ndarray, CellNoise]:
        segments = self.segments[a]
        if segments is None or noise == 0:
            return counts, CellNoise(noise)
        of_segments = segments.counts if counts.ndim > 1 else segments.counts.sum(0)
        return refined(counts, noise, segments.bins, of_segments, segments.sigma * math.sqrt(number))

    def within(
        self, a: int, inside: Bool[np.ndarray, "cells"]
    ) -> tuple[
        Float[np.ndarray, "classes cells"],
        Float[np.ndarray, "cells"],
        tuple[Float[np.ndarray, "classes segments"], Float[np.ndarray, "segments"]] | None,
    ]:
        """Noisy counts of the column at place a, if only some cells have rows.

        Args:
          a: place of the column among all except ``Layout.split``.
          inside: these cells, [cells].

        Returns:
          Counts of every class and cell [T, cells]; those of all classes together [cells]; and both for the segments,
          or None if there are none. Sums of the cells inside agree with those of segments.
        """
        segments = self.segments[a]
        if segments is None or self.sigmas[a] == 0:
            return self.counts[a], self.sums[a], None
        of_all = segments.counts.sum(0), segments.sigma * math.sqrt(len(segments.counts))
        found, of_segments = [], []
        for counts, noise, of_some in (
            (self.counts[a], self.sigmas[a], (segments.counts, segments.sigma)),
            (self.sums[a], self.sums_sigmas[a], of_all),
        ):
            counts = np.array(counts)
            counts[..., inside] = refined(counts[..., inside], noise, segments.bins[inside], *of_some)[0]
            found.append(counts)
            of_segments.append(np.where(inside, counts, 0) @ np.eye(len(of_all[0]))[segments.bins])
        return found[0], found[1], (of_segments[0], of_segments[1])

    def denoise(
        self, layout: Layout, a: int, num_rows: int
    ) -> tuple[Float[np.ndarray, "classes cells"], Bool[np.ndarray, "cells"]]:
        """The entries of ``smoothed`` and ``inside`` of the column at place a.

        Args:
          layout: of the columns.
          a: place of the column among all except ``layout.split``.
          num_rows: N.
        """
        binning, moments = layout.binnings[layout.columns[a]], self.moments[a]
        sums, noise = self.of_all(a)
        inside = np.ones(len(sums), bool)
        if binning.ordered:
            at_bounds = self.at_bounds(a, binning.num_values)
            known = Known.of_moments([] if moments is None else [moments])
            inside = cells_with_rows(binning, sums, noise, num_rows, known, at_bounds)
        counts, sums, of_segments = self.within(a, inside)
        alone = cells_alone(inside, binning.num_values)
        smoothed = np.where(alone, counts, _along_values(binning, counts, self.sigmas[a]))
        estimate = np.where(inside, smoothed, -math.inf)
        of_classes = None
        if self.classes is None:
            estimate = project_to_simplex(estimate.reshape(-1), num_rows).reshape(estimate.shape)
        else:
            of_classes = class_sizes(self.classes, self.classes_sigma, num_rows)
            estimate = np.stack([project_to_simplex(row, n) for row, n in zip(estimate, of_classes, strict=True)])
        estimate = self.with_segments(a, estimate, inside, of_segments and of_segments[0])
        if self.totals is not None:  # sums over classes agree with the totals, nearly
            target = np.where(alone, sums, _along_values(binning, sums, self.sums_sigmas[a]))
            target = np.where(inside, target, -math.inf)
            target = project_to_simplex(target, num_rows)
            target = self.with_segments(a, target, inside, of_segments and of_segments[1])
            estimate = estimate + num_rows * EVENLY / estimate.size
            for _ in range(NUM_RAKES):
                estimate = estimate * (target / np.maximum(estimate.sum(0), 1e-300))
                if of_classes is not None:
                    estimate = estimate * (of_classes / np.maximum(estimate.sum(1), 1e-300))[:, None]
        if moments is not None:
            first = binning.first_codes()
            estimate = tilted(estimate, first[:-1], first[1:], [moments], noise, alone)
        return estimate, inside

    def with_segments(
        self,
        a: int,
        estimate: Float[np.ndarray, "*n cells"],
        inside: Bool[np.ndarray, "cells"],
        of_segments: Float[np.ndarray, "*n segments"] | None,
    ) -> Float[np.ndarray, "*n cells"]:
        """Non-negative counts whose sums over segments are close to noisy ones, [..., cells]. Their sum stays.

        Smoothing hides differences between cells that noise hides in the counts of cells. Those of segments show more.
        Cells that stand out of the noise by themselves stay: a value that many rows share is known well.

        Args:
          a: place of the column.
          estimate: non-negative counts.
          inside: the cells that may have rows.
          of_segments: noisy counts of segments; None for none.
        """
        segments = self.segments[a]
        if segments is None or of_segments is None:
            return estimate
        member, found = np.eye(of_segments.shape[-1])[segments.bins], np.array(estimate)
        noise = self.sigmas[a] if estimate.ndim > 1 else self.sums_sigmas[a]
        for place in np.ndindex(estimate.shape[:-1]):
            row = estimate[place]
            moves = inside & (row <= _SIGNIFICANT * noise)
            kept, total = np.where(moves, 0, row), float(row[moves].sum())
            if total > 0:
                sums = np.where(moves @ member > 0, of_segments[place] - kept @ member, -math.inf)
                row = np.where(moves, row + _LITTLE, 0)
                factors = project_to_simplex(sums, total) / np.maximum(row @ member, 1e-300)
                found[place] = kept + row * factors[segments.bins]
        return found

    def at_bounds(self, a: int, num_values: int) -> Float[np.ndarray, "2"]:
        """How far the first and the last value of a column stand out from noise, in σ, [2].

        Often all rows at a bound are of one class. Then the other classes only add noise. So the count of each class
        is taken together with that of all classes, too. One of T classes is chosen, so 2 log T is subtracted from the
        square.

        Args:
          a: place of the column among all except ``Layout.split``.
          num_values: the number of its cells that are values.
        """
        ends = [0, num_values - 1]
        all_classes = self.sums[a][ends] / max(self.sums_sigmas[a], 1e-300)
        if len(self.counts[a]) == 1 or self.sigmas[a] == 0:
            return all_classes
        along, squares = self.counts[a][:, ends] / self.sigmas[a] ** 2, self.sigmas[a] ** -2.0
        if self.totals is not None:
            along = along + self.totals[a][ends] / self.totals_sigmas[a] ** 2
            squares += self.totals_sigmas[a] ** -2.0
        of_class = along.max(0) / math.sqrt(squares)
        chosen = np.sqrt(np.maximum(np.square(np.maximum(of_class, 0)) - 2 * math.log(len(along)), 0))
        return np.maximum(all_classes, chosen)


def class_sizes(counts: Float[np.ndarray, "classes"], noise: float, num_rows: int) -> Float[np.ndarray, "classes"]:
    """Estimates of the counts of the classes, [T], from noisy ones with this σ: positive, with Σ = N.

    A class of a size that noise hides gets a small part of the noise, and at most a thousandth of all rows.
    """
    least = min(_LEAST_CLASS * noise, num_rows * EVENLY / len(counts))
    sizes = np.maximum(project_to_simplex(counts, num_rows), max(least, num_rows * 1e-12))
    return sizes * (num_rows / sizes.sum())


def _along_values(
    binning: Binning, counts: Float[np.ndarray, "*classes cells"], noise: float
) -> Float[np.ndarray, "*classes cells"]:
    """Counts, [..., cells]; those of an ordered column are smoothed along its values."""
    if not binning.ordered:
        return counts
    return np.concatenate(
        [smooth_counts(counts[..., : binning.num_values], noise), counts[..., binning.num_values :]], axis=-1
    )


def choose_bins(
    binning: Binning,
    counts: Real[np.ndarray, "cells"],
    num_bins: float,
    least: float,
    families: Sequence[Int64[np.ndarray, "cells"]] = (),
) -> Int64[np.ndarray, "cells"]:
    """The bin of each cell of a column, int64 [cells].

    Neighbouring cells of an ordered column are merged; a cell with more counts than a bin needs stays alone. In other
    columns the rarest cells are merged: those of each family that has enough counts, and all others.

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
        after_gap = _after_gaps(values, least)
        for i, count in enumerate(values):
            ends = after_gap[i] and bin_count >= least
            if i and (ends or bin_count >= enough or (count >= enough and bin_count >= least / 2)):
                current, bin_count = current + 1, 0.0
            bins[i], bin_count = current, bin_count + count
        if current and bin_count < least:
            bins[bins == current] = current - 1
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

    The other cells of a family share a bin if they have enough counts together. All that are left share the last bin.
    If there are more bins than allowed, fewer cells stay alone.

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
    bins[left] = min(alone + len(shared), most - 1)
    for place, cells in enumerate(sorted(shared, key=lambda cells: -counts[cells].sum()), start=alone):
        bins[cells] = min(place, most - 1)
    return bins


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
    found = []
    for of_cells in families:
        large = np.flatnonzero(np.bincount(of_cells[left], counts[left]) >= least)
        found += [left[of_cells[left] == family] for family in large]
        left = left[~np.isin(of_cells[left], large)]
    return found, left


def _families_of_bins(
    families: Sequence[Int64[np.ndarray, "cells"]], bins: Int64[np.ndarray, "cells"]
) -> list[Int64[np.ndarray, "_"]]:
    """The families of bins, for families of their cells. A bin with cells of several families is one by itself."""
    found, number = [], int(bins.max()) + 1
    for of_cells in families:
        of_bins = np.zeros(number, np.int64)
        of_bins[bins] = of_cells
        mixed = np.unique(bins[of_cells != of_bins[bins]])
        of_bins[mixed] = int(of_cells.max()) + 1 + mixed
        found.append(of_bins)
    return found


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
        fine, coarse = _fine_noise(num_pairs, rho), math.sqrt(num_pairs / (SHARES[1] * rho))
        room = math.sqrt(MOST_CELLS / layout.num_classes) / len(layout.columns)
        num_bins, num_unions = (
            max(2.0, min(_num_bins(factor, num_rows, noise), room))
            for factor, noise in ((_BINS, fine), (_UNIONS, coarse))
        )
        bins, unions = [], []
        for j, counts in zip(layout.columns, singles.smoothed, strict=True):
            binning, counts, of_cells = layout.binnings[j], counts.sum(0), families.get(j, ())
            bins.append(choose_bins(binning, counts, num_bins, _SIGNIFICANT * fine, of_cells))
            of_bins = Binning(int(bins[-1].max()) + 1, binning.ordered, binning.missing, 1)
            least = min(_SIGNIFICANT * coarse, num_rows / 10)
            sums, of_sums = np.bincount(bins[-1], counts), _families_of_bins(of_cells, bins[-1])
            unions.append(choose_bins(of_bins, sums, num_unions, least, of_sums))
        return cls(bins, unions, _score_ranges(layout, singles))

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


def coarse_map(layout: Layout, plan: Plan, has_triples: bool) -> TableMap | None:
    """The second measurement: all pairs, in unions of bins, and all triples, in halves. None if there are no pairs.

    Args:
      layout: of the columns.
      plan: the unions.
      has_triples: whether triples are measured, see :func:`triples_pay`. They are not split by the classes.
    """
    merged = plan.merged
    marginals = [[(layout.columns[a], merged[a]), (layout.columns[b], merged[b])] for a, b in layout.pairs()]
    if not marginals:
        return None
    blocks, triples = layout.blocks(marginals), layout.triples() if has_triples else []
    cost = _TRIPLES_SHARE / (1 - _TRIPLES_SHARE) * len(blocks) / max(1, len(triples))
    return TableMap(layout.binnings, (*blocks, *_triples(layout, plan, triples, cost, blocks)))


def _triples(
    layout: Layout, plan: Plan, triples: Sequence[tuple[int, ...]], cost: float, blocks: Sequence[Block]
) -> list[Block]:
    """Blocks of triples in halves, not split by the classes. Each costs ``cost`` times as much as an average block."""
    if not triples:
        return []
    halves = [half[bins] for half, bins in zip(plan.halves(layout), plan.bins, strict=True)]
    weight = max(1, round(math.sqrt(cost * np.mean([float(block.weight) ** 2 for block in blocks]))))
    return [
        Block(tuple(layout.columns[a] for a in triple), tuple(halves[a] for a in triple), weight=weight)
        for triple in triples
    ]


def triples_pay(layout: Layout, num_rows: int, rho: float) -> bool:
    """Whether triples of columns are measured. It depends on public sizes alone.

    A parity is the mean product of three signs, one for each half of a column. Triples are measured if there are at
    most ``_MOST_TRIPLES``, and if the noise of a parity has a standard deviation of at most ``_PARITY_NOISE``.

    Args:
      layout: of the columns.
      num_rows: N.
      rho: ρ of the second measurement.
    """
    number = math.comb(len(layout.columns), 3)
    if not 0 < number <= _MOST_TRIPLES:
        return False
    return math.sqrt(8 * number / (_TRIPLES_SHARE * rho)) <= _PARITY_NOISE * num_rows


def triple_counts(
    layout: Layout, noisy: NoisyEmbedding | None
) -> tuple[list[tuple[int, ...]], Float[np.ndarray, "n 2 2 2"], float]:
    """The triples of the second or third measurement, as positions in ``layout.columns``, with their noisy counts.

    Args:
      layout: of the columns.
      noisy: the measurement; None if there is none.

    Returns:
      The triples, their counts, [n, 2, 2, 2], and the standard deviation of the noise.
    """
    if noisy is None:
        return [], np.zeros((0, 2, 2, 2)), math.inf
    marginals = map_of(noisy).marginals(noisy.coordinates, noisy.mechanism.num_rows)
    blocks = [(b, m) for b, m in zip(map_of(noisy).blocks, marginals, strict=True) if _is_triple(layout, b)]
    if not blocks:
        return [], np.zeros((0, 2, 2, 2)), math.inf
    triples = [tuple(map(layout.columns.index, block.columns)) for block, _ in blocks]
    counts = np.zeros((len(blocks), 2, 2, 2))
    for i, (_, marginal) in enumerate(blocks):  # a column of a single bin has an empty half
        counts[i, : marginal.shape[0], : marginal.shape[1], : marginal.shape[2]] = marginal
    return triples, counts, sigma(noisy, blocks[0][0])


def _is_triple(layout: Layout, block: Block) -> bool:
    return len(block.columns) == 3 and layout.split not in block.columns


def choose_triples(layout: Layout, noisy: NoisyEmbedding) -> list[tuple[int, ...]]:
    """Triples of columns that depend on each other in a way that their pairs do not show, at most ``_MOST_PARITIES``.

    Every half of a column has a sign. The third cumulant of three signs is 0 if one of them is independent of the other
    two. If one is the product of two others that are independent and balanced, the cumulant is 1. A triple is chosen if
    its cumulant is large beside its noise, and by itself.

    Args:
      layout: of the columns.
      noisy: the second measurement.
    """
    triples, counts, noise = triple_counts(layout, noisy)
    if not triples:
        return []
    num_rows = noisy.mechanism.num_rows
    # The mean product of the signs of every subset of the three columns, [n, 2, 2, 2].
    signs = np.asarray([[1, 1], [-1, 1]])
    means = np.einsum("nijk,ai,bj,ck->nabc", counts, signs, signs, signs) / num_rows
    one = np.stack([means[:, 1, 0, 0], means[:, 0, 1, 0], means[:, 0, 0, 1]], axis=1)
    others = np.stack([means[:, 0, 1, 1], means[:, 1, 0, 1], means[:, 1, 1, 0]], axis=1)
    cumulants = np.abs(means[:, 1, 1, 1] - np.sum(one * others, axis=1) + 2 * np.prod(one, axis=1))
    products = np.stack([one[:, 1] * one[:, 2], one[:, 0] * one[:, 2], one[:, 0] * one[:, 1]], axis=1)
    # Of the cumulant, by its derivatives: the noise of all eight means is independent, and equally large.
    squares = 1 + np.sum(np.square(one), axis=1) + np.sum(np.square(2 * products - others), axis=1)
    spread = noise * math.sqrt(8) / num_rows * np.sqrt(squares)
    stands_out = (cumulants > _STANDS_OUT_OF_ALL * spread) & (cumulants > _LEAST_CUMULANT)
    order = np.argsort(-cumulants, kind="stable")
    return sorted(triples[i] for i in order[stands_out[order]][:_MOST_PARITIES])


def association(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding, *, doubt: float = 0.0
) -> Float[np.ndarray, "pairs"]:
    """How far each pair is from independence within the classes: an approximate total variation, [pairs].

    It is computed from the second measurement. The expected contribution of its noise is subtracted.

    Args:
      layout: of the columns.
      plan: the unions.
      singles: the first measurement.
      noisy: the second measurement.
      doubt: how many standard deviations of this contribution are subtracted, too.
    """
    num_rows, feature_map, distances = noisy.mechanism.num_rows, map_of(noisy), []
    merged = [
        np.stack([np.bincount(union, row) for row in counts])
        for union, counts in zip(plan.merged, singles.smoothed, strict=True)
    ]
    marginals = feature_map.marginals(noisy.coordinates, num_rows)
    for (a, b), block, marginal in zip(layout.pairs(), feature_map.blocks, marginals, strict=False):  # then triples
        first, second = merged[a], merged[b]
        independent = first[:, :, None] * second[:, None, :] / np.maximum(first.sum(1), 1)[:, None, None]
        of_noise = sigma(noisy, block) ** 2 * (1 + doubt * math.sqrt(2 / marginal.size))
        excess = np.mean(np.square(marginal.reshape(independent.shape) - independent)) - of_noise
        distances.append(_MEAN_SIZE * marginal.size * math.sqrt(max(excess, 0)) / (2 * num_rows))
    return np.asarray(distances)


def choose_pairs(
    layout: Layout, plan: Plan, association: Float[np.ndarray, "pairs"], num_rows: int, rho: float
) -> list[int]:
    """The pairs of the third measurement, as increasing positions in ``layout.pairs()``.

    The most associated pairs are chosen. Their number minimises the sum of the estimated errors of all pairs; the error
    of a pair that is not measured is its association. Pairs with the target are always measured.

    Args:
      layout: of the columns.
      plan: the bins.
      association: of every pair, [pairs].
      num_rows: N.
      rho: ρ of the third measurement.
    """
    pairs = layout.pairs()
    sizes = np.asarray([layout.num_classes * math.prod(int(plan.bins[i].max()) + 1 for i in pair) for pair in pairs])
    place = layout.columns.index(layout.target) if layout.target >= 0 > layout.split else -1
    has_target = np.asarray([place in pair for pair in pairs])
    order = np.lexsort((-association, ~has_target))
    weights = sizes[order] ** (1 / 3)
    # σ of a marginal is √(Σ ω² / ρ) / ω, with Σ over all measured marginals. Its error is half the sum of the errors
    # of its cells.
    noise = np.sqrt(np.cumsum(np.square(weights)) / rho) * np.cumsum(sizes[order] / weights)
    errors = ERROR_OF_NOISE * noise / num_rows - np.cumsum(association[order])
    least = max(1, int(has_target.sum()))
    return sorted(order[: least + int(np.argmin(errors[least - 1 :]))].tolist())


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
    """The cells of the column at place a that share a bin, because each has few rows. A column with an order has
    no such cells. Nor does one in which cells share several bins, those of their families.

    Args:
      layout: of the columns.
      plan: the bins.
      a: place of the column in ``layout.columns``.
    """
    shared = np.bincount(plan.bins[a]) > 1
    if layout.binnings[layout.columns[a]].ordered or shared.sum() != 1:
        return np.zeros(0, np.int64)
    return np.flatnonzero(shared[plan.bins[a]])


def _bins_of_rare(layout: Layout, plan: Plan, a: int) -> Int64[np.ndarray, "cells"]:
    """A bin for each rare cell of a column, and one for all others."""
    cells = rare_cells(layout, plan, a)
    bins = np.full(len(plan.bins[a]), len(cells))
    bins[cells] = np.arange(len(cells))
    return bins


def rare_size(layout: Layout, plan: Plan, a: int, b: int) -> int:
    """The number of cells of the marginal of the rare categories of the column at place a and the bins of another."""
    return (int(_bins_of_rare(layout, plan, a).max()) + 1) * (int(plan.bins[b].max()) + 1)


def is_of_rare(layout: Layout, plan: Plan, block: Block) -> bool:
    """Whether a block of the third measurement is of the rare categories of its first column and a parent."""
    if len(block.columns) != 2 or layout.split in block.columns:
        return False
    a = layout.columns.index(block.columns[0])
    return len(rare_cells(layout, plan, a)) > 0 and np.array_equal(block.bins[0], _bins_of_rare(layout, plan, a))


def _rare_blocks(
    layout: Layout, plan: Plan, rare: Sequence[tuple[int, int]], share: float, blocks: Sequence[Block]
) -> list[Block]:
    """Blocks of rare categories and a parent, not split by the classes.

    Weights are those of other marginals of this size, or smaller, so that the sum of their squares is at most
    share / (1 − share) of that of the other blocks. None is less than 1.

    Args:
      layout: of the columns.
      plan: the bins.
      rare: places of both columns in ``layout.columns``.
      share: one of ``RARE_SHARES``.
      blocks: the other blocks.
    """
    weights = [layout.weight(rare_size(layout, plan, a, b)) for a, b in rare]
    most = share / (1 - share) * sum(block.weight**2 for block in blocks)
    factor = min(1.0, math.sqrt(most / max(1, sum(weight**2 for weight in weights))))
    return [
        Block(
            (layout.columns[a], layout.columns[b]),
            (_bins_of_rare(layout, plan, a), plan.bins[b]),
            weight=max(1, math.floor(factor * weight)),
        )
        for (a, b), weight in zip(rare, weights, strict=True)
    ]


def zoom_blocks(layout: Layout, singles: Singles) -> list[Block]:
    """Blocks that cut cells of many codes into parts, if a cell stands out: many rows may share a value in it."""
    blocks = []
    for j, counts, spread in zip(layout.columns, singles.sums, singles.sums_sigmas, strict=True):
        binning = layout.binnings[j]
        if binning.width == 1:
            continue
        values = counts[: binning.num_values]
        near = np.stack([np.roll(values, shift) for shift in (-2, -1, 1, 2)])
        beside = np.sort(near, axis=0)[1]  # the second smallest: other peaks may be next to a peak
        cells = np.flatnonzero(values > 2 * np.maximum(beside, 0) + _STANDS_OUT * spread)
        if len(cells):
            bins = np.full(binning.num_cells, -1)
            bins[cells] = np.arange(len(cells))
            zoom = min(binning.width, _MAX_PARTS)
            block = Block((j,), (bins,), zoom=zoom)
            blocks.append(dataclasses.replace(block, weight=layout.weight(zoom)))
    return blocks


def correlations(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding
) -> tuple[Float[np.ndarray, "pairs"], Float[np.ndarray, "pairs"]]:
    """Noisy correlations of the scores of all pairs of columns, and the standard deviations of their noise, [pairs].

    They are computed from the unions of the second measurement. Both are 0 for pairs of columns without scores.
    """
    num_rows, feature_map = noisy.mechanism.num_rows, map_of(noisy)
    scores: dict[int, Float[np.ndarray, "unions"]] = {}
    deviations: dict[int, float] = {}
    for a, (low, high) in zip(layout.scored, plan.ranges.tolist(), strict=True):
        j, union, counts = layout.columns[a], plan.merged[a], singles.smoothed[a].sum(0)
        first = layout.binnings[j].first_codes()
        of_cells = cell_scores(Moment((j,), (low,), (high,), 1), 0, layout.binnings[j], first[:-1], first[1:])
        mean, square = of_cells @ counts / max(counts.sum(), 1e-300)
        deviations[a] = math.sqrt(max(square - mean**2, 1e-12))
        masses = np.maximum(np.bincount(union, counts), 1e-9)
        scores[a] = np.bincount(union, counts * of_cells[0]) / masses - mean
    correlation, noise = np.zeros(len(layout.pairs())), np.zeros(len(layout.pairs()))
    marginals = feature_map.marginals(noisy.coordinates, num_rows)
    for i, ((a, b), block) in enumerate(zip(layout.pairs(), feature_map.blocks, strict=False)):  # then triples
        if a in scores and b in scores:
            counts = marginals[i].reshape(-1, len(scores[a]), len(scores[b])).sum(0)
            size = math.sqrt(layout.num_classes) * np.linalg.norm(scores[a]) * np.linalg.norm(scores[b])
            unit = num_rows * deviations[a] * deviations[b]
            correlation[i], noise[i] = scores[a] @ counts @ scores[b] / unit, sigma(noisy, block) * size / unit
    return correlation, noise


def strong_pairs(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding, chosen: Sequence[int]
) -> list[tuple[int, int]]:
    """The chosen pairs of columns whose products are measured, as indices of columns.

    They are those whose correlations in the second measurement are not weak, and stand out from the noise. Where there
    are few of them, each is measured well.

    Args:
      layout: of the columns.
      plan: the unions and the ranges of scores.
      singles: the first measurement.
      noisy: the second measurement.
      chosen: positions of pairs in ``layout.pairs()``.
    """
    correlation, noise = correlations(layout, plan, singles, noisy)
    pairs = layout.pairs()
    strong = [i for i in chosen if abs(correlation[i]) >= max(_STRONG, _CLEARLY * noise[i]) and noise[i] > 0]
    return [(layout.columns[a], layout.columns[b]) for a, b in (pairs[i] for i in strong)]


def pairs_map(
    layout: Layout,
    plan: Plan,
    chosen: Sequence[int],
    zooms: Sequence[Block],
    products: Sequence[tuple[int, int]],
    triples: Sequence[tuple[int, ...]],
    rare: Sequence[tuple[int, int]] = (),
    rare_share: float = RARE_SHARES[0],
    *,
    product_cost: float | None = None,
    margin: float = _MARGIN,
) -> TableMap | None:
    """The third measurement: wide columns, the chosen pairs and triples, products of scores, moments, parts of cells,
    and rare categories.

    The scores of the moments of a single column have a margin beyond the range of its scores in products.

    Args:
      layout: of the columns.
      plan: the bins and the ranges of scores.
      chosen: positions of pairs in ``layout.pairs()``.
      zooms: blocks that cut cells into parts.
      products: indices of the columns of each product, see :func:`strong_pairs`.
      triples: positions of the columns of each triple, see :func:`choose_triples`.
      rare: places of a column with rare categories and of a parent, see ``rare_fit.choose_rare``.
      rare_share: the largest share of rare categories, one of ``RARE_SHARES``.
      product_cost: of each product, beside that of an average block. If None, it follows from the number of products,
        see ``_PRODUCT_COST``.
      margin: see ``_MARGIN``.

    Returns:
      None if there is nothing to measure.
    """
    wide = wide_columns(layout, plan) if layout.pairs() else []
    positions = [(a,) for a in wide] + [layout.pairs()[i] for i in chosen]
    marginals = [[(layout.columns[a], plan.bins[a]) for a in columns] for columns in positions]
    measured = layout.blocks(marginals)
    blocks = (*measured, *_triples(layout, plan, triples, _PARITY_COST, measured), *zooms)
    if not blocks:
        return None
    moments = []
    ranges = {layout.columns[a]: tuple(bounds) for a, bounds in zip(layout.scored, plan.ranges.tolist(), strict=True)}
    wider = {}
    for j, (low, high) in ((layout.columns[a], ranges[layout.columns[a]]) for a in layout.numbers):
        beyond, most = round(margin * (high - low)), layout.binnings[j].num_codes - layout.binnings[j].missing - 1
        low, high = max(0, low - beyond), min(most, high + beyond)
        share = _MOMENT_SHARE / len(layout.binnings) / shares(layout)[2]
        wider[j] = low, high, share * max((high - low) / most, _LEAST_RANGE)
    total = sum(share for *_, share in wider.values())
    rest = max(1 - total, 1 - _MOST_MOMENTS)  # what blocks have
    for j, (low, high, share) in wider.items():
        cost = share * min(1, (1 - rest) / total) / rest * len(blocks)
        moments.append(Moment((j,), (low,), (high,), _moment_weight(cost, _mean_square(blocks, len(blocks)))))
    if product_cost is None:
        most = _PRODUCTS_SHARE / (1 - _PRODUCTS_SHARE) * len(blocks)
        product_cost = max(_LEAST_PRODUCT_COST, min(_PRODUCT_COST, most / max(1, len(products))))
    for pair in products:
        low, high = zip(*(ranges[j] for j in pair), strict=True)
        moments.append(Moment(pair, low, high, _moment_weight(product_cost, _mean_square(blocks, len(blocks)))))
    return TableMap(layout.binnings, (*blocks, *_rare_blocks(layout, plan, rare, rare_share, blocks)), tuple(moments))


def check_maps(layout: Layout, plan: Plan, maps: Sequence[TableMap | None]) -> None:
    """Refuses the maps of three measurements that were read from a file and do not follow from one plan.

    Args:
      layout: of the columns.
      plan: the bins.
      maps: of the three measurements; None for a measurement that does not exist.

    Raises:
      ValueError: a map does not follow from the plan.
    """
    require(_same(maps[0], singles_map(layout)), "the first measurement is not of single columns")
    has_triples = maps[1] is not None and len(maps[1].blocks) > len(layout.pairs())
    second = coarse_map(layout, plan, has_triples)
    require(_same(maps[1], second), "the second measurement is not of all pairs, or of all pairs and triples")
    if maps[2] is None:
        require(maps[1] is None, "the third measurement is missing")
        return
    own = [j for j in range(len(layout.binnings)) if j == layout.split]
    places = {j: a for a, j in enumerate(layout.columns)}
    triples = [tuple(places[j] for j in block.columns) for block in maps[2].blocks if _is_triple(layout, block)]
    require(not triples or has_triples, "a triple is measured again that was not measured")
    require(len(set(triples)) == len(triples) <= _MOST_PARITIES, "a triple is measured twice, or there are too many")
    of_rare = [is_of_rare(layout, plan, block) for block in maps[2].blocks]
    rare_pairs = [block.columns for block, is_rare in zip(maps[2].blocks, of_rare, strict=True) if is_rare]
    rare = [(places[j], places[k]) for j, k in rare_pairs]
    first = [a for a, _ in rare]
    most = max(map(first.count, first), default=0)
    require(len(set(rare)) == len(rare) and most <= MOST_PARENTS, "rare categories are measured too often")
    require(all(a != b for a, b in rare), "rare categories are measured together with themselves")
    columns = [
        tuple(places.get(j, -1) for j in block.columns[len(own) :])
        for block, is_rare in zip(maps[2].blocks, of_rare, strict=True)
        if not (block.zoom or is_rare or _is_triple(layout, block))
    ]
    pairs: dict[tuple[int, ...], int] = {pair: i for i, pair in enumerate(layout.pairs())}
    chosen = [pairs[positions] for positions in columns if positions in pairs]
    zooms = [block for block in maps[2].blocks if block.zoom]
    for block in zooms:
        width = layout.binnings[block.columns[0]].width
        parts = min(width, _MAX_PARTS)
        valid = width > 1 and block.zoom == parts and block.weight == layout.weight(parts)
        require(valid, "the number of parts of a cell is invalid")
    require(len(set(chosen)) == len(chosen), "a pair is measured twice")
    products = [(m.columns[0], m.columns[1]) for m in maps[2].moments if len(m.columns) == 2]
    of_chosen = {tuple(layout.columns[a] for a in pair) for pair in (layout.pairs()[i] for i in chosen)}
    scored = {layout.columns[a] for a in layout.scored}
    require(len(set(products)) == len(products), "a product is measured twice")
    valid = all(pair in of_chosen and scored.issuperset(pair) for pair in products)
    require(valid, "a product is measured of columns that are no chosen pair with scores")
    of_plan = (
        pairs_map(layout, plan, chosen, zooms, products, triples, rare, share, product_cost=cost, margin=margin)
        for cost, margin, share in itertools.product(
            (None, _LEAST_PRODUCT_COST), (_MARGIN, _EARLIER_MARGIN), RARE_SHARES if rare else RARE_SHARES[:1]
        )
    )
    require(any(_same(maps[2], of_cost) for of_cost in of_plan), "the third measurement is not of pairs of the plan")


def _same(one: TableMap | None, other: TableMap | None) -> bool:
    return one is other if one is None or other is None else one.equals(other)


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
    ``_PRODUCT_COST``). The moments of single columns in the third measurement have at
    most 3/7 of what its blocks have (``_MOST_MOMENTS``), so they add less than its blocks. Rare categories add at most
    2/3 of the sum of its other blocks (``_rare_blocks``), and 1 for each pair of columns in either order.
    """

    def weight(size: int) -> int:
        return layout.weight(size) + 2  # one more, because the root is rounded, and one for the rounding of moments

    sizes = [layout.binnings[j].num_cells for j in layout.columns]
    singles = [weight(layout.num_classes * size) for size in sizes]
    pairs = [weight(layout.num_classes * sizes[a] * sizes[b]) for a, b in layout.pairs()]
    zooms = [weight(min(layout.binnings[j].width, _MAX_PARTS)) for j in layout.columns if layout.binnings[j].width > 1]
    # Of all triples together: at most as much as pairs have, and 1 more for each, because weights are rounded.
    of_pairs = sum(w**2 for w in pairs)
    num_triples = math.comb(len(layout.columns), 3)
    triples = [math.isqrt(of_pairs) + num_triples + 1] if num_triples else []
    weights = [[*singles, *singles, *singles, max(singles)], [*pairs, *triples], [*singles, *pairs, *zooms]]
    num_numbers, num_scored = len(layout.numbers), len(layout.scored)
    weights[0] += [max(singles)] * 2 * num_numbers
    weights[2] += [max(weights[2]) + 1] * min(_MOST_PARITIES, num_triples)
    largest = max(weights[2], default=1)
    if pairs:
        of_others = sum(weight**2 for weight in weights[2])
        of_rare = max(RARE_SHARES) / (1 - max(RARE_SHARES)) * (1 + 1e-9) * of_others
        weights[2] += [math.isqrt(math.ceil(of_rare)) + 1, *[1] * 2 * len(pairs)]
    of_blocks = math.isqrt(sum(weight**2 for weight in weights[2])) + 1
    product = math.ceil(math.sqrt(_PRODUCT_COST / 2) * largest) + 1
    weights[2] += [product] * 2 * math.comb(num_scored, 2) + [of_blocks] * (num_numbers > 0)
    first, second, third = (Largest(sum(w**2 for w in of_map), max(of_map, default=1)) for of_map in weights)
    return first, second, third
