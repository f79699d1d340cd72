"""The plan of a table release: which marginals of a private table are measured.

There are three measurements. Each one is planned from the noisy counts of those before it.

1. *Single columns*. The marginal of a column has a cell for each value, at most about a thousand. It is split by the
   classes of the target. If there are many classes, the marginal without classes is measured too.
2. *Pairs of columns*. All pairs are measured, in a few bins of about equal counts.
3. *Some pairs*. The pairs that are furthest from independence in the second measurement are measured again in more
   bins, as long as this lowers the error. For columns of many values, the marginals of the bins are measured again, and
   cells that stand out are cut into parts.

Bins, pairs and cells are chosen from noisy counts and public quantities alone. So the three measurements compose.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Int64, Real

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.table import Binning, Block, TableMap
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.histogram import project_to_simplex, smooth

SHARES = (0.5, 0.15, 0.35)  # of ρ, for the three measurements
_FEW_CLASSES, _MAX_CLASSES = 3, 16  # of a target that all marginals are split by
# Factors of the cube root of N / σ: the numbers of bins and of unions of an ordered column. With a larger number B the
# error of merging falls, and the error of the noise of a pair grows with B².
_BINS, _UNIONS = 1.4, 0.7
_SIGNIFICANT = 4.0  # the smallest count of a bin, in units of σ
_UNORDERED_BINS = 3  # factor for columns without order, and for columns with few cells
_GAIN = 0.6  # approximate share of the noise of a pair that remains after the fit
_MEAN_SIZE = 0.8  # E|g| for a standard normal g
_WEIGHT_UNIT = 64
_WIDE = 4  # cells of a bin, from which on a column counts as wide
_STANDS_OUT = 4.0  # how far a cell is above its neighbours, in units of σ
_MAX_PARTS = 4096  # of a cell
_EVENLY = 1e-3  # share of all rows that is spread evenly over the classes
MOST_CELLS = 1 << 24  # approximate limit of the cells of all pairs together: memory of the fit


@short_repr
@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a table, and the column by which all marginals are split, if there is one.

    Attributes:
      binnings: one for each column.
      split: index of the target column if all marginals are split by it, otherwise −1.
      target: index of the target column, or −1 if there is none.
    """

    binnings: tuple[Binning, ...]
    split: int
    target: int

    @classmethod
    def create(cls, binnings: Sequence[Binning], target: int, num_rows: int, rho: float) -> Layout:
        """The layout for a target column, or for none (−1).

        Marginals are split by a target of at most three codes. They are also split by a target of up to sixteen codes,
        if it has no more codes than an ordered column has bins. What a classifier learns about rare classes is worth
        more than the noise of the additional cells costs.

        Args:
          binnings: one for each column.
          target: index of the target column, or −1.
          num_rows: N.
          rho: ρ of all measurements.
        """
        num_codes = binnings[target].num_codes if target >= 0 and len(binnings) > 1 else math.inf
        noise = _fine_noise(math.comb(len(binnings) - 1, 2), rho)
        most = min(_MAX_CLASSES, max(_FEW_CLASSES, _num_bins(_BINS, num_rows, noise)))
        return cls(tuple(binnings), target if num_codes <= most else -1, target)

    @classmethod
    def of_plan(cls, binnings: Sequence[Binning], target: int, plan: Plan) -> Layout:
        """The layout that a plan was created for."""
        return cls(tuple(binnings), target if len(plan.bins) < len(binnings) else -1, target)

    @property
    def columns(self) -> list[int]:
        """Indices of all columns except ``split``."""
        return [j for j in range(len(self.binnings)) if j != self.split]

    @property
    def num_classes(self) -> int:
        """T, the number of classes; 1 if marginals are not split."""
        return self.binnings[self.split].num_cells if self.split >= 0 else 1

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of columns, as positions in :attr:`columns`."""
        return list(itertools.combinations(range(len(self.columns)), 2))

    @property
    def has_totals(self) -> bool:
        """Whether single columns are also measured without classes, because the noise of many classes would add up."""
        return self.num_classes > _FEW_CLASSES

    def blocks(self, marginals: Sequence[Sequence[tuple[int, Int[np.ndarray, "_"]]]]) -> list[Block]:
        """Blocks for marginals, each split by the classes.

        The sum of the errors of all cells is least if weights are in proportion to the cube root of the number of
        cells of a marginal.

        Args:
          marginals: for each one, its columns and their bins.
        """
        identity = np.arange(self.num_classes)
        split = [(self.split, identity)] if self.split >= 0 else []
        blocks = []
        for marginal in marginals:
            columns, bins = zip(*split, *marginal, strict=True) if split else zip(*marginal, strict=True)
            block = Block(tuple(columns), tuple(bins))
            blocks.append(dataclasses.replace(block, weight=round(_WEIGHT_UNIT * block.size ** (1 / 3))))
        return blocks


def shares(layout: Layout) -> tuple[float, float, float]:
    """Shares of ρ of the three measurements.

    Without pairs, single columns have all of ρ, or 0.9 of it if cells of several codes may stand out.
    """
    if layout.pairs():
        return SHARES
    return (0.9, 0.0, 0.1) if any(layout.binnings[j].width > 1 for j in layout.columns) else (1.0, 0.0, 0.0)


def _fine_noise(num_pairs: int, rho: float) -> float:
    """σ of the counts of pairs in the third measurement, if it has half of all pairs with equal weights."""
    return math.sqrt(max(1, num_pairs) / 2 / (SHARES[2] * rho))


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


def sigma(noisy: NoisyEmbedding, block: Block) -> float:
    """The standard deviation of the noise of a block's counts."""
    mechanism = noisy.mechanism
    return mechanism.scale * mechanism.num_rows * map_of(noisy).norm / block.weight


def singles_map(layout: Layout) -> TableMap:
    """The first measurement: the marginal of every column with classes, and also without if there are many classes."""
    marginals = [[(j, np.arange(layout.binnings[j].num_cells))] for j in layout.columns]
    blocks = layout.blocks(marginals)
    if layout.has_totals:
        blocks += [Block(b.columns[1:], b.bins[1:], weight=b.weight) for b in blocks]
    return TableMap(layout.binnings, tuple(blocks))


@short_repr
@dataclasses.dataclass(frozen=True)
class Singles:
    """The noisy counts of the first measurement, and estimates from them. Each list has one entry for each column.

    Attributes:
      counts: noisy counts of every class and cell, [T, cells].
      sigmas: standard deviations of the noise of ``counts``.
      totals: noisy counts of every cell, measured without classes, [cells]; None if they were not measured.
      totals_sigmas: standard deviations of the noise of ``totals``.
      sums: the best noisy estimates of the counts of every cell, all classes together, [cells].
      sums_sigmas: standard deviations of the noise of ``sums``.
      smoothed: estimates of ``counts`` after denoising, [T, cells], with Σ = N.
    """

    counts: list[Float[np.ndarray, "classes _"]]
    sigmas: list[float]
    totals: list[Float[np.ndarray, "_"]] | None
    totals_sigmas: list[float]
    sums: list[Float[np.ndarray, "_"]]
    sums_sigmas: list[float]
    smoothed: list[Float[np.ndarray, "classes _"]]

    @classmethod
    def read(cls, layout: Layout, noisy: NoisyEmbedding) -> Singles:
        """The counts of the first measurement, from its noisy embedding."""
        num_rows, feature_map = noisy.mechanism.num_rows, map_of(noisy)
        blocks, marginals = feature_map.blocks, feature_map.marginals(noisy.coordinates, num_rows)
        noises, size = [sigma(noisy, block) for block in blocks], len(layout.columns)
        counts, sigmas = [marginal.reshape(layout.num_classes, -1) for marginal in marginals[:size]], noises[:size]
        totals, totals_sigmas = (list(marginals[size:]), noises[size:]) if layout.has_totals else (None, [])
        sums = [counts_of_column.sum(0) for counts_of_column in counts]
        sums_sigmas = [noise * math.sqrt(layout.num_classes) for noise in sigmas]
        if totals is not None:
            weights = [s**2 / (s**2 + t**2) for s, t in zip(sums_sigmas, totals_sigmas, strict=True)]
            sums = [(1 - weight) * s + weight * t for weight, s, t in zip(weights, sums, totals, strict=True)]
            sums_sigmas = [s * math.sqrt(1 - weight) for weight, s in zip(weights, sums_sigmas, strict=True)]
        smoothed = []
        for a, j in enumerate(layout.columns):
            estimate = project_to_simplex(_along_values(layout.binnings[j], counts[a], sigmas[a]).reshape(-1), num_rows)
            estimate = estimate.reshape(counts[a].shape)
            if totals is not None:  # counts are scaled so that their sums over classes agree with the totals
                target = project_to_simplex(_along_values(layout.binnings[j], sums[a], sums_sigmas[a]), num_rows)
                estimate = estimate + num_rows * _EVENLY / estimate.size
                estimate = estimate * (target / estimate.sum(0))
            smoothed.append(estimate)
        return cls(counts, sigmas, totals, totals_sigmas, sums, sums_sigmas, smoothed)


def _along_values(
    binning: Binning, counts: Float[np.ndarray, "*classes cells"], noise: float
) -> Float[np.ndarray, "*classes cells"]:
    """Counts, [..., cells]; those of an ordered column are smoothed along its values."""
    if not binning.ordered:
        return counts
    return np.concatenate(
        [smooth(counts[..., : binning.num_values], noise), counts[..., binning.num_values :]], axis=-1
    )


def choose_bins(
    binning: Binning, counts: Real[np.ndarray, "cells"], num_bins: float, least: float
) -> Int64[np.ndarray, "cells"]:
    """The bin of each cell of a column, int64 [cells].

    Neighbouring cells of an ordered column are merged; a cell with more counts than a bin needs stays alone. In other
    columns the rarest cells are merged.

    Args:
      binning: of the column.
      counts: an estimate for each cell, [cells].
      num_bins: the approximate number of bins of an ordered column with many more cells.
      least: the smallest count of a bin.
    """
    values = counts[: binning.num_values]
    if binning.ordered:
        merges = len(values) > _UNORDERED_BINS * num_bins
        enough = max(least, counts.sum() / num_bins) if merges else least
        bins, current, bin_count = np.zeros(len(values), np.int64), 0, 0.0
        for i, count in enumerate(values):
            if i and (bin_count >= enough or (count >= enough and bin_count >= least / 2)):
                current, bin_count = current + 1, 0.0
            bins[i], bin_count = current, bin_count + count
        if current and bin_count < least:
            bins[bins == current] = current - 1
    else:
        most = max(2, round(_UNORDERED_BINS * num_bins))
        order = np.argsort(-values, kind="stable")
        alone = int(np.sum(values >= least))
        bins = np.empty(len(values), np.int64)
        bins[order] = np.minimum(np.arange(len(values)), min(alone, most - 1))
    if not binning.missing:
        return bins
    return np.append(bins, bins.max() + 1)


@short_repr
@dataclasses.dataclass(frozen=True)
class Plan:
    """The bins in which pairs of columns are measured. Each list has one entry for each column.

    Attributes:
      bins: the bin of every cell, for the third measurement.
      unions: the union of every bin, for the second measurement.
    """

    bins: list[Int[np.ndarray, "_"]]
    unions: list[Int[np.ndarray, "_"]]

    @classmethod
    def create(cls, layout: Layout, singles: Singles, num_rows: int, rho: float) -> Plan:
        """The plan from the first measurement, where rho is ρ of all three measurements."""
        num_pairs = max(1, len(layout.pairs()))
        fine, coarse = _fine_noise(num_pairs, rho), math.sqrt(num_pairs / (SHARES[1] * rho))
        room = math.sqrt(MOST_CELLS / layout.num_classes) / len(layout.columns)
        num_bins, num_unions = (
            max(2.0, min(_num_bins(factor, num_rows, noise), room))
            for factor, noise in ((_BINS, fine), (_UNIONS, coarse))
        )
        bins, unions = [], []
        for j, counts in zip(layout.columns, singles.smoothed, strict=True):
            binning, counts = layout.binnings[j], counts.sum(0)
            bins.append(choose_bins(binning, counts, num_bins, _SIGNIFICANT * fine))
            sums = np.bincount(bins[-1], counts)
            least = min(_SIGNIFICANT * coarse, num_rows / 10)
            unions.append(choose_bins(Binning(len(sums), binning.ordered, binning.missing, 1), sums, num_unions, least))
        return cls(bins, unions)

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

    @property
    def merged(self) -> list[Int[np.ndarray, "_"]]:
        """For each column, the union of every cell."""
        return [unions[bins] for bins, unions in zip(self.bins, self.unions, strict=True)]


def coarse_map(layout: Layout, plan: Plan) -> TableMap | None:
    """The second measurement: all pairs, in unions of bins. None if there are no pairs."""
    merged = plan.merged
    marginals = [[(layout.columns[a], merged[a]), (layout.columns[b], merged[b])] for a, b in layout.pairs()]
    return TableMap(layout.binnings, tuple(layout.blocks(marginals))) if marginals else None


def association(layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding) -> Float[np.ndarray, "pairs"]:
    """How far each pair is from independence within the classes: an approximate total variation, [pairs].

    It is computed from the second measurement. The expected contribution of its noise is subtracted.
    """
    num_rows, feature_map, distances = noisy.mechanism.num_rows, map_of(noisy), []
    merged = [
        np.stack([np.bincount(union, row) for row in counts])
        for union, counts in zip(plan.merged, singles.smoothed, strict=True)
    ]
    marginals = feature_map.marginals(noisy.coordinates, num_rows)
    for (a, b), block, marginal in zip(layout.pairs(), feature_map.blocks, marginals, strict=True):
        first, second = merged[a], merged[b]
        independent = first[:, :, None] * second[:, None, :] / np.maximum(first.sum(1), 1)[:, None, None]
        excess = np.mean(np.square(marginal.reshape(independent.shape) - independent)) - sigma(noisy, block) ** 2
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
    errors = _GAIN * _MEAN_SIZE * noise / (2 * num_rows) - np.cumsum(association[order])
    least = max(1, int(has_target.sum()))
    return sorted(order[: least + int(np.argmin(errors[least - 1 :]))].tolist())


def wide_columns(layout: Layout, plan: Plan) -> list[int]:
    """Positions in ``layout.columns`` of columns whose bins have so many cells that the noise of the cells adds up."""
    sizes = [
        (layout.binnings[j].num_cells, int(bins.max()) + 1) for j, bins in zip(layout.columns, plan.bins, strict=True)
    ]
    return [a for a, (cells, bins) in enumerate(sizes) if cells >= _WIDE * bins > _WIDE]


def zoom_blocks(layout: Layout, singles: Singles) -> list[Block]:
    """Blocks that cut cells of many codes into parts, if a cell stands out: many rows may share a value in it."""
    blocks = []
    for j, counts, spread in zip(layout.columns, singles.sums, singles.sums_sigmas, strict=True):
        binning = layout.binnings[j]
        if binning.width == 1:
            continue
        values = counts[: binning.num_values]
        near = np.stack([np.roll(values, shift) for shift in (-2, -1, 1, 2)])
        cells = np.flatnonzero(values > 2 * np.maximum(np.median(near, axis=0), 0) + _STANDS_OUT * spread)
        if len(cells):
            bins = np.full(binning.num_cells, -1)
            bins[cells] = np.arange(len(cells))
            zoom = min(binning.width, _MAX_PARTS)
            block = Block((j,), (bins,), zoom=zoom)
            blocks.append(dataclasses.replace(block, weight=round(_WEIGHT_UNIT * zoom ** (1 / 3))))
    return blocks


def pairs_map(layout: Layout, plan: Plan, chosen: Sequence[int], zooms: Sequence[Block]) -> TableMap | None:
    """The third measurement: wide columns, the chosen pairs and parts of cells. None if there is nothing to measure."""
    wide = wide_columns(layout, plan) if layout.pairs() else []
    positions = [(a,) for a in wide] + [layout.pairs()[i] for i in chosen]
    marginals = [[(layout.columns[a], plan.bins[a]) for a in columns] for columns in positions]
    blocks = (*layout.blocks(marginals), *zooms)
    return TableMap(layout.binnings, blocks) if blocks else None


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
    require(_same(maps[1], coarse_map(layout, plan)), "the second measurement is not of all pairs")
    if maps[2] is None:
        require(maps[1] is None, "the third measurement is missing")
        return
    own = [j for j in range(len(layout.binnings)) if j == layout.split]
    places = {j: a for a, j in enumerate(layout.columns)}
    columns = [
        tuple(places.get(j, -1) for j in block.columns[len(own) :]) for block in maps[2].blocks if not block.zoom
    ]
    pairs: dict[tuple[int, ...], int] = {pair: i for i, pair in enumerate(layout.pairs())}
    chosen = [pairs[positions] for positions in columns if positions in pairs]
    zooms = [block for block in maps[2].blocks if block.zoom]
    for block in zooms:
        width = layout.binnings[block.columns[0]].width
        parts = min(width, _MAX_PARTS)
        valid = width > 1 and block.zoom == parts and block.weight == round(_WEIGHT_UNIT * parts ** (1 / 3))
        require(valid, "the number of parts of a cell is invalid")
    require(len(set(chosen)) == len(chosen), "a pair is measured twice")
    require(_same(maps[2], pairs_map(layout, plan, chosen, zooms)), "the third measurement is not of pairs of the plan")


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
    units = 1.0
    num_features = 2**62  # more than any map has; Gaussian noise, which tables have, does not depend on it

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²), as for ``TableIntegers``."""
        return math.sqrt(2 * self.sum_of_squares) * (1 + 1e-12)

    @property
    def certain_diameter(self) -> float:
        """The diameter itself: it holds with probability 1."""
        return self.diameter


def largest_maps(layout: Layout) -> tuple[Largest, Largest, Largest]:
    """Bounds of the maps of the three measurements, known before any noise is drawn. They hold for all noisy counts.

    Formal guarantee: the weight of a marginal is round(64 · size^(1/3)), which increases with its size. Bins of a
    column are numbered from 0 without gaps, at most one for each cell of its binning (``choose_bins``), and there are
    no more unions than bins. So the marginal of a set of columns has at most T Π_j cells_j cells, T the number of
    classes. The first measurement has one marginal for each column, with classes, and at most one more without
    (``singles_map``), of the same weight. The second has one for each pair (``coarse_map``). The third has at most one
    for each column and each pair, and, for a column whose cells have several codes, one of the parts of cells, with a
    weight of at most 64 · 4096^(1/3) (``zoom_blocks``, ``pairs_map``). Σ ω² of each map is at most the sum of the
    squares of these bounds, as no term is negative.
    """

    def weight(size: int) -> int:
        return round(_WEIGHT_UNIT * size ** (1 / 3)) + 1  # one more, because the root is rounded

    sizes = [layout.binnings[j].num_cells for j in layout.columns]
    singles = [weight(layout.num_classes * size) for size in sizes]
    pairs = [weight(layout.num_classes * sizes[a] * sizes[b]) for a, b in layout.pairs()]
    zooms = [weight(min(layout.binnings[j].width, _MAX_PARTS)) for j in layout.columns if layout.binnings[j].width > 1]
    weights = [singles * 2, pairs, [*singles, *pairs, *zooms]]
    first, second, third = (Largest(sum(w**2 for w in of_map), max(of_map, default=1)) for of_map in weights)
    return first, second, third
