"""The feature maps of the three measurements, as they follow from a plan and from what was chosen."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from kme_jax._numerics.validation import require
from kme_jax.feature_maps.table import COUNT_WEIGHT, Binning, Block, Moment, TableMap
from kme_jax.table.planning.layout import (
    FEW_CLASSES,
    MAX_PARTS,
    MOST_PARITIES,
    PRODUCT_COST,
    RARE_SHARES,
    SEGMENTS_SHARE,
    Layout,
    shares,
)
from kme_jax.table.planning.plan import Plan, rare_cells, wide_columns
from kme_jax.table.planning.singles import Singles

_TOTALS_OF_FEW = 0.6  # weight of a marginal without classes beside that with few classes
_CLASSES_COST = 0.5  # of the marginal of the classes alone, beside that of an average block
_MOST_MOMENT_WEIGHT = (1 << 31) - 1  # so that the square of a rounded score fits 64 bits
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
# Least cost of a product beside that of an average block, which earlier versions had. It is ``PRODUCT_COST`` if all
# products then have no larger share of the third measurement than this.
_LEAST_PRODUCT_COST, _PRODUCTS_SHARE = 0.3, 0.04
_MARGIN = 1.0  # of the scores of moments beyond the cells that stand out, in units of the range of these cells
_EARLIER_MARGIN = 2.0  # of measurements by earlier versions
_STANDS_OUT = 4.0  # how far a cell is above its neighbours, in units of σ
TRIPLES_SHARE = 0.1  # of the second measurement
_PARITY_COST = 0.5  # of a triple in the third measurement, beside that of an average block
MOST_PARENTS = 3  # of a column with rare categories


def count_map(binnings: Sequence[Binning], weight: int = COUNT_WEIGHT) -> TableMap:
    """The measurement of a private number of rows: a marginal with a single cell.

    Args:
      binnings: one for each column.
      weight: ω, in whose units noise is an integer. Earlier versions measured with 1.
    """
    return TableMap(tuple(binnings), (Block((0,), (np.zeros(binnings[0].num_cells, np.int64),), weight=weight),))


def singles_map(layout: Layout) -> TableMap:
    """The first measurement: the marginal of every column with classes and without, that of the classes themselves,
    those of the segments of columns of many values, and the moments of these columns over their public bounds."""
    blocks, of_totals = layout.single_blocks(), 0.0
    weights = [block.weight for block in blocks]
    if layout.has_totals:
        of_totals = 1.0 if layout.num_classes > FEW_CLASSES else _TOTALS_OF_FEW
        blocks += [Block(b.columns[1:], b.bins[1:], weight=round(of_totals * b.weight)) for b in blocks]
    of_segments = math.sqrt(SEGMENTS_SHARE / (1 - SEGMENTS_SHARE) * (1 + of_totals**2))
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
    cost = TRIPLES_SHARE / (1 - TRIPLES_SHARE) * len(blocks) / max(1, len(triples))
    return TableMap(layout.binnings, (*blocks, *_triples(layout, plan, triples, cost, blocks)))


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
        see ``PRODUCT_COST``.
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
        product_cost = max(_LEAST_PRODUCT_COST, min(PRODUCT_COST, most / max(1, len(products))))
    for pair in products:
        low, high = zip(*(ranges[j] for j in pair), strict=True)
        moments.append(Moment(pair, low, high, _moment_weight(product_cost, _mean_square(blocks, len(blocks)))))
    return TableMap(layout.binnings, (*blocks, *_rare_blocks(layout, plan, rare, rare_share, blocks)), tuple(moments))


def _moment_weight(cost: float, mean_square: float) -> int:
    """ω of a moment whose share of the budget is ``cost`` times that of an average block.

    A block adds 2 ω² to the squared diameter, and a moment 4 ω².

    Args:
      cost: see above.
      mean_square: the mean of the squares of the weights of blocks.
    """
    return min(max(1, round(math.sqrt(cost / 2 * mean_square))), _MOST_MOMENT_WEIGHT)


def _mean_square(blocks: Sequence[Block], number: int) -> float:
    """The sum of the squares of the weights of blocks over a number."""
    return sum(float(block.weight) ** 2 for block in blocks) / number


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


def is_triple(layout: Layout, block: Block) -> bool:
    return len(block.columns) == 3 and layout.split not in block.columns


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
            zoom = min(binning.width, MAX_PARTS)
            block = Block((j,), (bins,), zoom=zoom)
            blocks.append(dataclasses.replace(block, weight=layout.weight(zoom)))
    return blocks


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
    triples = [tuple(places[j] for j in block.columns) for block in maps[2].blocks if is_triple(layout, block)]
    require(not triples or has_triples, "a triple is measured again that was not measured")
    require(len(set(triples)) == len(triples) <= MOST_PARITIES, "a triple is measured twice, or there are too many")
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
        if not (block.zoom or is_rare or is_triple(layout, block))
    ]
    pairs: dict[tuple[int, ...], int] = {pair: i for i, pair in enumerate(layout.pairs())}
    chosen = [pairs[positions] for positions in columns if positions in pairs]
    zooms = [block for block in maps[2].blocks if block.zoom]
    for block in zooms:
        width = layout.binnings[block.columns[0]].width
        parts = min(width, MAX_PARTS)
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
