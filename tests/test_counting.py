"""Sums of features of tables, which count several marginals at once, against counts of one marginal at a time."""

import math

import numpy as np
import pytest

from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.feature_maps.counting import Axis, MarginalCounter, RunningCounts
from kme_jax.feature_maps.table import LEVELS, Binning, Block, Moment, TableMap

BINNINGS = (
    Binning.create(5001, ordered=True, missing=True),
    Binning.create(4, ordered=False, missing=False),
    Binning.create(6, ordered=True, missing=True),
    Binning.create(70_001, ordered=True, missing=True, knots=(1, 2, 90, 4000)),
    Binning.create(1_000_000, ordered=True, missing=False),
    Binning.create(300, ordered=False, missing=True),
)


def _random_map(rng):
    """Blocks of one to four columns, some of which share bins, cut bins into parts, or miss rows; and moments."""
    bins = [
        [np.arange(b.num_cells), *(_shuffled(rng, b.num_cells, size) for size in (2, min(5, b.num_cells)))]
        for b in BINNINGS
    ]
    blocks = []
    for _ in range(40):
        columns = tuple(rng.permutation(len(BINNINGS))[: rng.integers(1, 5)].tolist())
        chosen = tuple(bins[j][rng.integers(1, 3) if len(columns) > 1 else rng.integers(3)].copy() for j in columns)
        blocks.append(Block(columns, chosen, weight=int(rng.choice([1, 3, 1 << 20, (1 << 39) - 1]))))
    blocks.append(Block((0, 3), (bins[0][0], bins[3][0]), weight=2))  # more cells than a joint table may have
    for j, parts in ((0, 5), (4, 977), (4, 70_000), (1, 1)):
        of_cells = np.full(BINNINGS[j].num_cells, -1)
        of_cells[rng.permutation(BINNINGS[j].num_cells)[:3]] = np.arange(3)
        blocks += [Block((j,), (of_cells,), weight=7), Block((j,), (of_cells,), weight=3, zoom=parts)]
    moments = (
        Moment((0,), (0,), (4999,), 1000),
        Moment((4,), (5,), (600_000,), 1 << 30),
        Moment((3, 2), (9, 1), (3000, 4), 500),
        Moment((2,), (0,), (3,), 77),
    )
    order = rng.permutation(len(blocks))
    return TableMap(BINNINGS, tuple(blocks[i] for i in order), moments)


def _shuffled(rng, num_cells, size):
    """A bin of each cell, of so many bins that each have a cell."""
    return rng.permutation(np.concatenate([np.arange(size), rng.integers(0, size, num_cells - size)]))


def _rows(rng, num_rows):
    """Codes of which many are equal, and the first and the last ones."""
    columns = [rng.integers(0, b.num_codes, num_rows) for b in BINNINGS]
    for column, binning in zip(columns, BINNINGS, strict=True):
        column[rng.random(num_rows) < 0.3] = binning.num_codes - 1
        column[rng.random(num_rows) < 0.2] = 0
    return np.stack(columns, axis=1)


def _at_level(integers, levels):
    return np.sign(integers) * (np.abs(integers) * levels // LEVELS)


def _plain(feature_map, rows, levels=None):
    """The sum of the integers of rows, one block after the other, without floats."""
    levels, sums = np.full(len(rows), LEVELS) if levels is None else levels, []
    for block in feature_map.blocks:
        bins = [
            of_cells[binning.cells(rows[:, j])]
            for j, of_cells, binning in zip(
                block.columns, block.bins, (BINNINGS[j] for j in block.columns), strict=True
            )
        ]
        counted = bins[0] >= 0
        if block.zoom:
            width = BINNINGS[block.columns[0]].width
            bins.append(rows[:, block.columns[0]] % width * block.zoom // width)
        places = np.ravel_multi_index([one[counted] for one in bins], block.shape)
        total = np.zeros(block.size, np.int64)
        np.add.at(total, places, _at_level(np.full(len(rows), block.weight), levels)[counted])
        sums.append(total)
    for moment in feature_map.moments:
        scores = [moment.scores(i, BINNINGS[j], rows[:, j]) for i, j in enumerate(moment.columns)]
        values = np.rint(moment.weight * math.prod(scores)).astype(np.int64)
        terms = [values]
        if len(moment.columns) == 1:
            terms.append((values * values + moment.weight // 2) // moment.weight)
        sums.append([_at_level(one, levels).sum() for one in terms])
    return np.concatenate(sums)


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_those_of_one_marginal_at_a_time(seed):
    """For any batches and types of arrays, with rows that the map does not cover, which count as nothing."""
    rng = np.random.default_rng(seed)
    feature_map, codes = _random_map(rng), _rows(rng, 2000)
    feature_map.validate()
    assert feature_map.num_features > 2**16
    expected = _plain(feature_map, codes)
    beyond = codes[:60].copy()
    beyond[np.arange(60), np.arange(60) % len(BINNINGS)] = rng.choice([-1, 1_000_000, 2**62, -(2**63)], 60)
    rows = rng.permutation(np.concatenate([codes, beyond]))
    for batch, convert in (
        (len(rows), np.asfortranarray),
        (999, np.asfortranarray),
        (500, lambda some: some.astype(np.float64)),
        (700, lambda some: some[::-1]),
    ):
        batches = (convert(rows[i : i + batch]) for i in range(0, len(rows), batch))
        found = integer_embedding_of_batches(feature_map, batches, len(rows))
        np.testing.assert_array_equal(found.total, expected)
    small = rows.clip(-5, 2**31 - 1).astype(np.int32)
    np.testing.assert_array_equal(integer_embedding_of_batches(feature_map, [small], len(rows)).total, expected)


@pytest.mark.parametrize("seed", range(2))
def test_sums_at_levels_are_those_of_one_marginal_at_a_time(seed):
    rng = np.random.default_rng(seed)
    feature_map, codes = _random_map(rng), _rows(rng, 20_000)
    levels = np.append(rng.integers(0, LEVELS + 1, len(codes) - 3), [0, 1, LEVELS])
    expected = _plain(feature_map, codes, levels)
    found = feature_map.integers(10**5).sum_at_levels(codes, levels)
    np.testing.assert_array_equal(found, expected)
    rows = np.concatenate([np.asfortranarray(codes), levels[:, None]], axis=1)
    rows[7, 1] = -1  # not covered
    expected -= _plain(feature_map, codes[7:8], levels[7:8])
    batches = (rows[i : i + 6000] for i in range(0, len(rows), 6000))
    whole = integer_embedding_of_batches(feature_map, batches, len(rows), rows_planned=10**5, has_levels=True)
    np.testing.assert_array_equal(whole.total, expected)


def test_many_rows():
    """More than are counted at once."""
    rng = np.random.default_rng(5)
    feature_map, codes = _random_map(rng), _rows(rng, 140_000)
    found = integer_embedding_of_batches(feature_map, [codes], len(codes)).total
    np.testing.assert_array_equal(found, _plain(feature_map, codes))
    ones = feature_map.weighted_counts(codes, np.ones(len(codes)))
    np.testing.assert_array_equal(feature_map.weighted_counts(codes), ones)


def test_joint_tables():
    """Each marginal is in one table. Tables are no larger than the largest marginal or 2¹⁶ cells, and of one kind."""
    rng = np.random.default_rng(0)
    sizes = (2, 10, 8, 5, 14, 30, 100)
    axes = [Axis(j, rng.permutation(size)) for j, size in enumerate(sizes)]
    marginals = [(0, i, j) for j in range(1, 7) for i in range(1, j)] + [(j,) for j in range(7)] + [(6, 5)]
    counter = MarginalCounter([np.asarray] * 7, axes, marginals, [None] * len(marginals))
    assert sorted(place for table in counter.tables for place in table.marginals) == list(range(len(marginals)))
    assert len(counter.tables) < len(marginals) / 2
    for table in counter.tables:
        assert math.prod(table.shape) <= max(2**16, *(math.prod(sizes[j] for j in axes) for axes in marginals))
    apart = MarginalCounter([np.asarray] * 7, axes, marginals, list(range(len(marginals))))
    assert all(len(table.marginals) == 1 for table in apart.tables)
    nothing = RunningCounts(counter, np.int64).marginals()
    assert [counts.shape for counts in nothing] == [tuple(sizes[j] for j in axes) for axes in marginals]
    assert not any(counts.any() for counts in nothing)


@pytest.mark.parametrize("sizes", [(1, 2**16), (2**16, 1), (1, 1, 2**16), (2**8, 2**8), (1, 2**16 + 1)])
def test_largest_tables_of_short_numbers(sizes):
    rows = np.stack([np.arange(10) * size // 10 for size in sizes], axis=1)
    axes = [Axis(j, np.arange(size)) for j, size in enumerate(sizes)]
    running = RunningCounts(MarginalCounter([np.asarray] * 3, axes, [tuple(range(len(sizes)))], [None]), np.int64)
    running.add(rows)
    (counts,) = running.marginals()
    expected = np.zeros(sizes, np.int64)
    np.add.at(expected, tuple(rows.T), 1)
    np.testing.assert_array_equal(counts, expected)
