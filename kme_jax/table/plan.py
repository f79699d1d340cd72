"""Which tables of counts of a private table are measured: three measurements, each planned by what the noise let
through of those before it.

1. *Single columns*, in as many cells as they have values (a thousand at most): split by the target's classes, and by
   themselves.
2. *Pairs of columns*, all of them, in a few bins of about equal counts.
3. *Some pairs*, in more bins: those that differ most from independence in the second, as many as pays. For columns of
   many values also the bins by themselves, and what is inside of cells that stand out.

Bins, pairs and cells are chosen from noisy counts and public quantities alone, so that the three compose.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.table import Binning, Block, TableMap
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.histogram import project_to_simplex, smooth

SHARES = (0.5, 0.15, 0.35)  # of ρ
_FEW_CLASSES, _MAX_CLASSES = 3, 16  # of a target that all tables are split by
# Bins and unions of columns with an order: so many times the cube root of N / σ. The error of merging falls with their
# number B, and that of the noise of a pair grows with B².
_BINS, _UNIONS = 1.4, 0.7
_SIGNIFICANT = 4.0  # a bin has counts of so many σ
_UNORDERED_BINS = 3  # times as many where no order says what to merge, or there is little to merge
_GAIN = 0.6  # what is left of the noise of a pair after the fit, about
_MEAN_SIZE = 0.8  # E|g| for a standard normal g
_WEIGHT_UNIT = 64
_WIDE = 4  # cells in a bin
_STANDS_OUT = 4.0  # σ
_MAX_PARTS = 4096
_EVENLY = 1e-3  # of all rows: over classes that no noisy count tells apart
_MOST_CELLS = 1 << 24  # of all pairs of all bins, about: what a fit has room for


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a table and the one, if any, that all tables of counts are split by.

    Attributes:
      binnings: of the columns.
      split: index of the target where tables are split by it, otherwise −1.
      target: its index, or −1.
    """

    binnings: tuple[Binning, ...]
    split: int
    target: int

    @classmethod
    def create(cls, binnings: Sequence[Binning], target: int, num_rows: int, rho: float) -> Layout:
        """The layout for a target column, or none (−1). Tables are split by a target of up to three codes, or of no
        more than a column has bins, and sixteen: what a classifier learns of rare classes is worth more than the noise
        of more cells.

        Args:
          binnings: of the columns.
          target: index of the column, or −1.
          num_rows: N.
          rho: ρ of all measurements.
        """
        num_codes = binnings[target].num_codes if target >= 0 and len(binnings) > 1 else math.inf
        noise = _fine_noise(math.comb(len(binnings) - 1, 2), rho)
        most = min(_MAX_CLASSES, max(_FEW_CLASSES, _num_bins(_BINS, num_rows, noise)))
        return cls(tuple(binnings), target if num_codes <= most else -1, target)

    @classmethod
    def of_plan(cls, binnings: Sequence[Binning], target: int, plan: Plan) -> Layout:
        """The one that a plan was made for."""
        return cls(tuple(binnings), target if len(plan.bins) < len(binnings) else -1, target)

    @property
    def columns(self) -> list[int]:
        """All columns but ``split``."""
        return [j for j in range(len(self.binnings)) if j != self.split]

    @property
    def num_classes(self) -> int:
        """T; 1 without a split."""
        return self.binnings[self.split].num_cells if self.split >= 0 else 1

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of :attr:`columns`, by their place in it."""
        return list(itertools.combinations(range(len(self.columns)), 2))

    @property
    def has_totals(self) -> bool:
        """Whether single columns are measured of all classes together, too: the noise of many classes would add up."""
        return self.num_classes > _FEW_CLASSES

    def blocks(self, tables: Sequence[Sequence[tuple[int, np.ndarray]]]) -> list[Block]:
        """Blocks for tables given by columns and their bins, each split by the classes. The sum of errors of all cells
        is least for weights in proportion to the cube root of the number of a table's cells."""
        identity = np.arange(self.num_classes)
        split = [(self.split, identity)] if self.split >= 0 else []
        found = []
        for table in tables:
            columns, bins = zip(*split, *table, strict=True) if split else zip(*table, strict=True)
            block = Block(tuple(columns), tuple(bins))
            found.append(dataclasses.replace(block, weight=round(_WEIGHT_UNIT * block.size ** (1 / 3))))
        return found


def shares(layout: Layout) -> tuple[float, float, float]:
    """Shares of ρ of the three measurements; where there are no pairs, all is for single columns, but for a little
    where cells of several codes may stand out."""
    if layout.pairs():
        return SHARES
    return (0.9, 0.0, 0.1) if any(layout.binnings[j].width > 1 for j in layout.columns) else (1.0, 0.0, 0.0)


def _fine_noise(num_pairs: int, rho: float) -> float:
    """σ of the counts of pairs in the third measurement, if all tables weigh the same and half of all pairs are in."""
    return math.sqrt(max(1, num_pairs) / 2 / (SHARES[2] * rho))


def _num_bins(factor: float, num_rows: int, noise: float) -> float:
    return max(2.0, factor * (num_rows / noise) ** (1 / 3))


def sigma(noisy: NoisyEmbedding, block: Block) -> float:
    """The standard deviation of the noise of a block's counts."""
    mechanism = noisy.mechanism
    return mechanism.scale * mechanism.num_rows * noisy.feature_map.norm / block.weight


def singles_map(layout: Layout) -> TableMap:
    """The first measurement: every column, split by the classes, and then every column by itself, if there are any."""
    tables = [[(j, np.arange(layout.binnings[j].num_cells))] for j in layout.columns]
    blocks = layout.blocks(tables)
    if layout.has_totals:
        blocks += [Block(b.columns[1:], b.bins[1:], weight=b.weight) for b in blocks]
    return TableMap(layout.binnings, tuple(blocks))


@dataclasses.dataclass(frozen=True)
class Singles:
    """What the first measurement says.

    Attributes:
      counts: noisy, of every class and cell of each column, [T, cells].
      sigmas: of the noise of each column's.
      totals: of all classes together, [cells]: measured by themselves, or None.
      totals_sigmas: of the noise of each column's.
      sums: the best estimates of them, [cells], with noise.
      sums_sigmas: of the noise of each column's.
      smoothed: estimates of ``counts`` without noise, [T, cells], Σ = N.
    """

    counts: list[np.ndarray]
    sigmas: list[float]
    totals: list[np.ndarray] | None
    totals_sigmas: list[float]
    sums: list[np.ndarray]
    sums_sigmas: list[float]
    smoothed: list[np.ndarray]

    @classmethod
    def read(cls, layout: Layout, noisy: NoisyEmbedding) -> Singles:
        """From the noisy embedding."""
        num_rows, blocks = noisy.mechanism.num_rows, noisy.feature_map.blocks
        tables = noisy.feature_map.marginals(noisy.coordinates, num_rows)
        noises, size = [sigma(noisy, block) for block in blocks], len(layout.columns)
        counts, sigmas = [table.reshape(layout.num_classes, -1) for table in tables[:size]], noises[:size]
        totals, totals_sigmas = (list(tables[size:]), noises[size:]) if layout.has_totals else (None, [])
        sums = [table.sum(0) for table in counts]
        sums_sigmas = [noise * math.sqrt(layout.num_classes) for noise in sigmas]
        if totals is not None:
            parts = [s**2 / (s**2 + t**2) for s, t in zip(sums_sigmas, totals_sigmas, strict=True)]
            sums = [(1 - part) * s + part * t for part, s, t in zip(parts, sums, totals, strict=True)]
            sums_sigmas = [s * math.sqrt(1 - part) for part, s in zip(parts, sums_sigmas, strict=True)]
        smoothed = []
        for a, j in enumerate(layout.columns):
            estimate = project_to_simplex(_along_values(layout.binnings[j], counts[a], sigmas[a]).reshape(-1), num_rows)
            estimate = estimate.reshape(counts[a].shape)
            if totals is not None:  # as the totals say, in proportion
                wanted = project_to_simplex(_along_values(layout.binnings[j], sums[a], sums_sigmas[a]), num_rows)
                estimate = estimate + num_rows * _EVENLY / estimate.size
                estimate = estimate * (wanted / estimate.sum(0))
            smoothed.append(estimate)
        return cls(counts, sigmas, totals, totals_sigmas, sums, sums_sigmas, smoothed)


def _along_values(binning: Binning, counts: np.ndarray, noise: float) -> np.ndarray:
    """Counts, [..., cells], smoothed where values have an order."""
    if not binning.ordered:
        return counts
    return np.concatenate(
        [smooth(counts[..., : binning.num_values], noise), counts[..., binning.num_values :]], axis=-1
    )


def choose_bins(binning: Binning, counts: np.ndarray, num_bins: float, least: float) -> np.ndarray:
    """Bins for the cells of a column, int64 [cells].

    Args:
      binning: of the column.
      counts: estimates for each cell, [cells].
      num_bins: how many there are to be, about, for a column with an order and many more cells: neighbouring cells are
        merged, and a cell with more counts than a bin needs stays alone. Without an order the rarest cells are merged.
      least: counts that a bin has to have.
    """
    values = counts[: binning.num_values]
    if binning.ordered:
        merges = len(values) > _UNORDERED_BINS * num_bins
        enough = max(least, counts.sum() / num_bins) if merges else least
        bins, current, held = np.zeros(len(values), np.int64), 0, 0.0
        for i, count in enumerate(values):
            if i and (held >= enough or (count >= enough and held >= least / 2)):
                current, held = current + 1, 0.0
            bins[i], held = current, held + count
        if current and held < least:
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


@dataclasses.dataclass(frozen=True)
class Plan:
    """How finely pairs are looked at.

    Attributes:
      bins: of the cells of every column, for the third measurement.
      unions: of these bins, for the second.
    """

    bins: list[np.ndarray]
    unions: list[np.ndarray]

    @classmethod
    def create(cls, layout: Layout, singles: Singles, num_rows: int, rho: float) -> Plan:
        """From the first measurement; ρ is that of all measurements."""
        num_pairs = max(1, len(layout.pairs()))
        fine, coarse = _fine_noise(num_pairs, rho), math.sqrt(num_pairs / (SHARES[1] * rho))
        room = math.sqrt(_MOST_CELLS / layout.num_classes) / len(layout.columns)
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
        """Refuses a plan that was read from a file and is not one for a layout.

        Raises:
          ValueError: bins of other columns or cells; numbers of bins that are left out.
        """
        require(len(self.bins) == len(self.unions) == len(layout.columns), "the plan is for other columns")
        for j, bins, unions in zip(layout.columns, self.bins, self.unions, strict=True):
            for name, numbers, size in (("bins", bins, layout.binnings[j].num_cells), ("unions", unions, None)):
                check_array(numbers, name, "i", (size,))
                complete = numbers.min() == 0 and numbers.max() < len(numbers) and np.bincount(numbers).all()
                require(bool(complete), f"{name}: a number is left out")
            require(len(unions) == int(bins.max()) + 1, "unions: expected one for each bin")

    @property
    def merged(self) -> list[np.ndarray]:
        """The union of every cell of every column."""
        return [unions[bins] for bins, unions in zip(self.bins, self.unions, strict=True)]


def coarse_map(layout: Layout, plan: Plan) -> TableMap | None:
    """The second measurement; None if there are no pairs."""
    merged = plan.merged
    tables = [[(layout.columns[a], merged[a]), (layout.columns[b], merged[b])] for a, b in layout.pairs()]
    return TableMap(layout.binnings, tuple(layout.blocks(tables))) if tables else None


def association(layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding) -> np.ndarray:
    """How far each pair is from independence within the classes: total variation, about, [pairs], by the second
    measurement, less what its noise adds."""
    num_rows, found = noisy.mechanism.num_rows, []
    merged = [
        np.stack([np.bincount(union, row) for row in counts])
        for union, counts in zip(plan.merged, singles.smoothed, strict=True)
    ]
    tables = noisy.feature_map.marginals(noisy.coordinates, num_rows)
    for (a, b), block, table in zip(layout.pairs(), noisy.feature_map.blocks, tables, strict=True):
        left, right = merged[a], merged[b]
        independent = left[:, :, None] * right[:, None, :] / np.maximum(left.sum(1), 1)[:, None, None]
        excess = np.mean(np.square(table.reshape(independent.shape) - independent)) - sigma(noisy, block) ** 2
        found.append(_MEAN_SIZE * table.size * math.sqrt(max(excess, 0)) / (2 * num_rows))
    return np.asarray(found)


def choose_pairs(layout: Layout, plan: Plan, association: np.ndarray, num_rows: int, rho: float) -> list[int]:
    """Which pairs the third measurement is of: the most associated ones, as many as make the sum of the errors of all
    pairs least, where a pair that is left out is off by its association. Pairs with the target are always in.

    Args:
      layout: the columns.
      plan: bins.
      association: of every pair.
      num_rows: N.
      rho: ρ of the third measurement.
    """
    pairs = layout.pairs()
    sizes = np.asarray([layout.num_classes * math.prod(int(plan.bins[i].max()) + 1 for i in pair) for pair in pairs])
    place = layout.columns.index(layout.target) if layout.target >= 0 > layout.split else -1
    wanted = np.asarray([place in pair for pair in pairs])
    order = np.lexsort((-association, ~wanted))
    weights = sizes[order] ** (1 / 3)
    # σ of a table is √(Σ ω² / ρ) / ω, for all that are measured, and its error half the sum of its cells' errors.
    noise = np.sqrt(np.cumsum(np.square(weights)) / rho) * np.cumsum(sizes[order] / weights)
    errors = _GAIN * _MEAN_SIZE * noise / (2 * num_rows) - np.cumsum(association[order])
    least = max(1, int(wanted.sum()))
    return sorted(order[: least + int(np.argmin(errors[least - 1 :]))].tolist())


def wide_columns(layout: Layout, plan: Plan) -> list[int]:
    """Columns, by their place, whose bins have so many cells each that the noise of the cells adds up."""
    sizes = [
        (layout.binnings[j].num_cells, int(bins.max()) + 1) for j, bins in zip(layout.columns, plan.bins, strict=True)
    ]
    return [a for a, (cells, bins) in enumerate(sizes) if cells >= _WIDE * bins > _WIDE]


def zoom_blocks(layout: Layout, singles: Singles) -> list[Block]:
    """What is inside of cells of many codes that stand out from their neighbours: values that many rows have."""
    found = []
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
            found.append(dataclasses.replace(block, weight=round(_WEIGHT_UNIT * zoom ** (1 / 3))))
    return found


def pairs_map(layout: Layout, plan: Plan, chosen: Sequence[int], zooms: Sequence[Block]) -> TableMap | None:
    """The third measurement; None if there is nothing to measure."""
    again = wide_columns(layout, plan) if layout.pairs() else []
    several = [(a,) for a in again] + [layout.pairs()[i] for i in chosen]
    tables = [[(layout.columns[a], plan.bins[a]) for a in some] for some in several]
    blocks = (*layout.blocks(tables), *zooms)
    return TableMap(layout.binnings, blocks) if blocks else None


def check_maps(layout: Layout, plan: Plan, maps: Sequence[TableMap | None]) -> None:
    """Refuses the maps of three measurements that were read from a file and are not of one plan.

    Args:
      layout: the columns.
      plan: bins.
      maps: of the three measurements; None for one that was not made.

    Raises:
      ValueError: a map that the plan does not have.
    """
    require(_same(maps[0], singles_map(layout)), "the first measurement is not of single columns")
    require(_same(maps[1], coarse_map(layout, plan)), "the second measurement is not of all pairs")
    if maps[2] is None:
        require(maps[1] is None, "the third measurement is missing")
        return
    own = [j for j in range(len(layout.binnings)) if j == layout.split]
    places = {j: a for a, j in enumerate(layout.columns)}
    tables = [tuple(places.get(j, -1) for j in block.columns[len(own) :]) for block in maps[2].blocks if not block.zoom]
    pairs = {pair: i for i, pair in enumerate(layout.pairs())}
    chosen = [pairs[table] for table in tables if table in pairs]
    zooms = [block for block in maps[2].blocks if block.zoom]
    for block in zooms:
        width = layout.binnings[block.columns[0]].width
        parts = min(width, _MAX_PARTS)
        valid = width > 1 and block.zoom == parts and block.weight == round(_WEIGHT_UNIT * parts ** (1 / 3))
        require(valid, "a cell is cut into other parts than it has")
    require(len(set(chosen)) == len(chosen), "a pair is measured twice")
    require(_same(maps[2], pairs_map(layout, plan, chosen, zooms)), "the third measurement is not of pairs of the plan")


def _same(one: TableMap | None, other: TableMap | None) -> bool:
    return one is other if one is None or other is None else one.equals(other)


@dataclasses.dataclass(frozen=True)
class Largest:
    """Bounds, over all plans, of the maps of a measurement; for ``secure_mechanism``, as an integer map without rows.

    Attributes:
      sum_of_squares: of Σ_b ω_b².
      weight: of every ω.
    """

    sum_of_squares: int
    weight: int

    failure_probability = 0.0
    units = 1.0

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²), as of ``TableIntegers``."""
        return math.sqrt(2 * self.sum_of_squares) * (1 + 1e-12)

    @property
    def certain_diameter(self) -> float:
        """The same."""
        return self.diameter


def largest_maps(layout: Layout) -> tuple[Largest, Largest, Largest]:
    """What the three measurements can be at most, whatever the noisy counts are: known before any is drawn.

    Formal guarantee: a table's weight is round(64 · size^(1/3)), increasing in its size. Bins of a column are numbered
    from 0 without gaps, at most one for each cell of its binning (``choose_bins``), and unions of bins are no more than
    bins. So a table of a set of columns has at most T Π_j cells_j cells, T the number of classes. The first measurement
    has one table for each column, with classes, and one more without (``singles_map``), of the same weight. The second
    has one for each pair (``coarse_map``). The third has at most one for each column, each pair, and, for a column
    whose cells have several codes, one of the insides of cells, with a weight of at most 64 · 4096^(1/3)
    (``zoom_blocks``, ``pairs_map``). Σ ω² of each map is at most the sum of these bounds, as Σ has no negative terms.
    """

    def weight(size: int) -> int:
        return round(_WEIGHT_UNIT * size ** (1 / 3)) + 1  # whatever the root is rounded to

    sizes = [layout.binnings[j].num_cells for j in layout.columns]
    singles = [weight(layout.num_classes * size) for size in sizes]
    pairs = [weight(layout.num_classes * sizes[a] * sizes[b]) for a, b in layout.pairs()]
    zooms = [weight(min(layout.binnings[j].width, _MAX_PARTS)) for j in layout.columns if layout.binnings[j].width > 1]
    several = [singles * 2, pairs, [*singles, *pairs, *zooms]]
    first, second, third = (Largest(sum(w**2 for w in some), max(some, default=1)) for some in several)
    return first, second, third
