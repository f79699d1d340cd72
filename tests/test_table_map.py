import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from kme_jax import PrivacyBudget
from kme_jax.embedding import integer_embedding, integer_embedding_of_batches, mean_embedding
from kme_jax.feature_maps.table import Binning, Block, Moment, TableMap
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.perturb import perturb_integers, perturb_securely
from kme_jax.privacy.verification import check_sensitivity

# A nullable number of 5000 values, a category, a small number.
BINNINGS = (
    Binning.create(5001, ordered=True, missing=True),
    Binning.create(4, ordered=False, missing=False),
    Binning.create(6, ordered=True, missing=False),
)
_CELLS = np.arange(BINNINGS[0].num_cells)
_COARSE = np.where(BINNINGS[0].num_values == _CELLS, 3, _CELLS // 400)
_LOOKED = np.where(_CELLS == 7, 0, np.where(_CELLS == 900, 1, -1))
BLOCKS = (
    Block((0,), (_CELLS,), weight=3),
    Block((1, 2), (np.arange(4), np.asarray([0, 0, 1, 1, 2, 2])), weight=2),
    Block((2, 0, 1), (np.asarray([0, 1, 1, 1, 1, 2]), _COARSE, np.asarray([0, 1, 1, 0]))),
    Block((0,), (_LOOKED,), weight=5, zoom=BINNINGS[0].width),
)
MAP = TableMap(BINNINGS, BLOCKS)
_FEATURES = jax.jit(lambda rows: MAP(rows))


def _rows(rng, num_rows=500):
    rows = np.stack([rng.integers(0, binning.num_codes, num_rows) for binning in BINNINGS], axis=1)
    rows[:40, 0] = rng.integers(7 * BINNINGS[0].width, 8 * BINNINGS[0].width, 40)
    rows[40:50, 0] = 5000
    return rows


def _places(row):
    """Where ψ(x) is not zero, and what it is there without the norm, from the definition."""
    found, start = {}, 0
    for block in BLOCKS:
        bins = [
            table[BINNINGS[j].cells(np.asarray(row[j]))] for j, table in zip(block.columns, block.bins, strict=True)
        ]
        if block.zoom:
            bins.append(row[0] % BINNINGS[0].width)
        if bins[0] >= 0:
            found[start + int(np.ravel_multi_index(bins, block.shape))] = block.weight
        start += block.size
    return found


_WITH_KNOTS = (
    Binning.create(5001, ordered=True, missing=True, knots=(1, 2, 4, 8, 3000)),
    Binning.create(5000, ordered=True, missing=False, max_cells=256, knots=tuple(1 << i for i in range(13))),
    Binning.create(3, ordered=True, missing=False, knots=(1,)),
)


def test_cells_cover_all_codes():
    for binning in (*BINNINGS, *_WITH_KNOTS):
        first = binning.first_codes()
        assert first[0] == 0
        assert first[-1] == binning.num_codes
        cells = binning.cells(np.arange(binning.num_codes))
        np.testing.assert_array_equal(cells, np.searchsorted(first, np.arange(binning.num_codes), "right") - 1)
        assert cells.max() == binning.num_cells - 1
    assert BINNINGS[0].num_cells <= 1025
    assert BINNINGS[0].cells(np.asarray([4999, 5000])).tolist() == [BINNINGS[0].num_values - 1, BINNINGS[0].num_values]
    assert Binning.create(4096, ordered=False, missing=False).num_cells == 4096


def test_cells_between_knots():
    """Each interval has as many cells, up to rounding. What short ones leave is for the others."""
    many = [np.diff(np.searchsorted(b.first_codes(), [0, *b.knots, b.num_codes - b.missing])) for b in _WITH_KNOTS]
    np.testing.assert_array_equal(many[0], [1, 1, 2, 4, 124, 124])
    np.testing.assert_array_equal(many[1], [1, 1, 2, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6])
    np.testing.assert_array_equal(many[2], [1, 2])
    for binning in _WITH_KNOTS:
        binning.validate()
        codes = np.arange(binning.num_codes)
        np.testing.assert_array_equal(jax.jit(binning.cells)(jnp.asarray(codes)), binning.cells(codes))
        assert binning.with_cells(512).with_cells(256).knots == binning.knots
    assert _WITH_KNOTS[0].with_cells(512).num_values == 128


@pytest.mark.parametrize(
    "fields",
    [{"knots": (0, 5)}, {"knots": (5, 5)}, {"knots": (99,)}, {"width": 2}, {"max_cells": 1}, {"max_cells": 2000},
     {"knots": ()}, {"ordered": False}],
)  # fmt: skip
def test_invalid_knots_are_refused(fields):
    valid = Binning.create(100, ordered=True, missing=True, knots=(5, 50))
    valid.validate()
    with pytest.raises(ValueError, match="knots"):
        dataclasses.replace(valid, **fields).validate()


def test_integer_sums_with_knots(rng):
    """Sums of integers and features agree, with cells of different widths."""
    binnings = (_WITH_KNOTS[0], BINNINGS[1])
    cells = np.arange(binnings[0].num_cells)
    feature_map = TableMap(binnings, (Block((0,), (cells,), weight=3), Block((0, 1), (cells // 100, np.arange(4)))))
    rows = np.stack([rng.integers(0, binning.num_codes, 300) for binning in binnings], axis=1)
    counts = feature_map.weighted_counts(rows)
    found = np.bincount(binnings[0].cells(rows[:, 0]), minlength=len(cells))
    np.testing.assert_array_equal(counts[: len(cells)], found)
    features = np.asarray(jax.jit(lambda x: feature_map(x))(rows.astype(np.float32)))
    expected = features.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean_embedding(feature_map, rows).coordinates, expected, atol=1e-6)


def test_features_and_counts_are_those_of_the_definition(rng):
    rows = _rows(rng)
    expected = np.zeros((len(rows), MAP.num_features))
    for row, features in zip(rows, expected, strict=True):
        for place, weight in _places(row).items():
            features[place] = weight / math.sqrt(9 + 4 + 1 + 25)
    np.testing.assert_allclose(_FEATURES(jnp.asarray(rows, jnp.float32)), expected, atol=1e-6)
    np.testing.assert_allclose(MAP.weighted_sum(rows, np.ones(len(rows))), expected.sum(0), atol=1e-9)
    weights = rng.normal(size=len(rows))
    np.testing.assert_allclose(MAP.weighted_sum(rows, weights), weights @ expected, atol=1e-9)
    tables = MAP.marginals(expected.mean(0), len(rows))
    assert [table.shape for table in tables] == [block.shape for block in BLOCKS]
    np.testing.assert_allclose(tables[1].sum(), len(rows))
    np.testing.assert_allclose(tables[3].sum(), np.sum(_LOOKED[BINNINGS[0].cells(rows[:, 0])] >= 0))


@pytest.mark.long
def test_the_kernel_is_the_product_of_features(rng):
    rows = _rows(rng, 60)
    x = jnp.asarray(rows[:30], jnp.float32)
    gram = np.asarray(jax.jit(lambda x: MAP.kernel.pairwise(x, x))(x))
    for (i, first), (j, second) in itertools.product(enumerate(rows[:30]), repeat=2):
        same = _places(first).items() & _places(second).items()
        assert gram[i, j] == pytest.approx(sum(weight**2 for _, weight in same) / 39, abs=1e-6)
    assert jax.jit(lambda x, y: MAP.kernel(x, y))(x[0], x[1]) == pytest.approx(gram[0, 1], abs=1e-6)
    assert gram.min() >= 0
    assert gram.max() <= MAP.kernel.diagonal_bound + 1e-6


def test_the_diameter_holds_and_is_reached(rng):
    rows = _rows(rng, 200)
    rows[0], rows[1] = (
        [7 * BINNINGS[0].width, 0, 0],
        [900 * BINNINGS[0].width, 1, 5],
    )  # nothing in common, all blocks counted
    features = np.asarray(_FEATURES(jnp.asarray(rows, jnp.float32)), np.float64)
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    assert distances.max() <= MAP.diameter + 1e-6
    assert distances[0, 1] == pytest.approx(MAP.diameter, abs=1e-6)
    assert np.linalg.norm(features, axis=1).max() <= MAP.diameter


def test_integers_are_exact(rng):
    rows = _rows(rng)
    integers = MAP.integers(len(rows))
    expected = np.zeros(MAP.num_features, np.int64)
    for row in rows:
        for place, weight in _places(row).items():
            expected[place] += weight
    whole = integer_embedding(MAP, rows.astype(float))
    np.testing.assert_array_equal(whole.total, expected)
    for size in (1, 7, 499):
        shuffled = rng.permutation(rows).astype(float)
        batches = (shuffled[i : i + size] for i in range(0, len(rows), size))
        np.testing.assert_array_equal(integer_embedding_of_batches(MAP, batches, len(rows)).total, expected)
    first, second = np.asarray([[7 * BINNINGS[0].width, 0, 0]]), np.asarray([[900 * BINNINGS[0].width, 1, 5]])
    difference = integers.sum(first, [True]) - integers.sum(second, [True])
    assert np.linalg.norm(difference) == pytest.approx(integers.diameter)
    assert integers.diameter == pytest.approx(integers.units * MAP.diameter)
    assert np.linalg.norm(integers.sum(first, [True])) <= integers.diameter
    np.testing.assert_allclose(mean_embedding(MAP, rows.astype(float)).coordinates * len(rows) * MAP.norm, expected)


@pytest.mark.parametrize("cell", [-1.0, 5001.0, 0.5, np.nan, np.inf])
def test_rows_that_are_no_codes_count_as_nothing(cell):
    good, bad = np.asarray([[3.0, 1.0, 2.0]]), np.asarray([[cell, 1.0, 2.0]])
    alone = integer_embedding(MAP, good)
    both = integer_embedding(MAP, np.concatenate([bad, good]))
    np.testing.assert_array_equal(both.total, alone.total)
    assert both.num_rows == 2


def test_shares_of_a_budget_compose(rng):
    budget = PrivacyBudget(1.0, 1e-6)
    blocks = [dataclasses.replace(block, weight=block.weight << 16) for block in MAP.blocks]
    fine = dataclasses.replace(MAP, blocks=tuple(blocks))
    embedding = integer_embedding(fine, _rows(rng).astype(float))
    parts = [perturb_securely(embedding, budget, share=share, fine=True).mechanism for share in (0.5, 0.15, 0.35)]
    whole = perturb_securely(embedding, budget).mechanism
    assert sum(part.rho for part in parts) <= Composition.planned(budget).rho
    assert sum(part.rho for part in parts) == pytest.approx(whole.rho, rel=1e-6)
    assert parts[0].scale == pytest.approx(whole.scale * math.sqrt(2), rel=1e-6)
    assert parts[0].epsilon < whole.epsilon == 1.0
    composition = Composition.of(parts, budget)
    assert (composition.epsilon, composition.delta, composition.secure) == (1.0, 1e-6, True)
    with pytest.raises(ValueError, match=r"spend more than \(ε, δ\)"):
        Composition.of([*parts, parts[1]], budget)
    with pytest.raises(ValueError, match="one measurement"):
        perturb_securely(embedding, PrivacyBudget(1.0, 0.0), share=0.5)


def test_noise_has_the_scale_that_it_says(rng):
    embedding, budget = integer_embedding(MAP, _rows(rng).astype(float)), PrivacyBudget(1.0, 1e-6)
    truth = embedding.total / embedding.integer_map.units / embedding.num_rows
    secure = perturb_securely(embedding, budget, share=0.3)
    simulated = perturb_integers(jax.random.key(3), embedding, budget, share=0.3)
    for noisy in (secure, simulated):
        errors = (noisy.coordinates - truth) / noisy.mechanism.scale
        # The secure noise has no seed: six standard errors of the root mean square of so many normals.
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(1, abs=6 / math.sqrt(2 * errors.size))
        assert noisy.mechanism.secure is (noisy is secure)
    assert simulated.mechanism.scale == secure.mechanism.scale


MOMENTS = (
    Moment((0,), (0,), (4999,), 1000),
    Moment((0,), (100,), (900,), 37),
    Moment((0, 2), (2000, 1), (3000, 4), 500),
)
WITH_MOMENTS = TableMap(BINNINGS, BLOCKS[:2], MOMENTS)


def test_moments_are_those_of_the_definition(rng):
    rows = _rows(rng)
    missing = rows[:, 0] == 5000

    def score(codes, low, high):
        return 2 * (np.clip(codes, low, high) - low) / (high - low) - 1

    wide, narrow, part = (
        np.where(missing, 0, score(rows[:, 0], *ends)) for ends in ((0, 4999), (100, 900), (2000, 3000))
    )
    product = part * score(rows[:, 2], 1, 4)
    expected = [[wide.sum(), (wide**2).sum()], [narrow.sum(), (narrow**2).sum()], [product.sum()]]
    coordinates = WITH_MOMENTS.weighted_sum(rows, np.full(len(rows), 1 / len(rows)))
    for ours, theirs in zip(WITH_MOMENTS.moment_sums(coordinates, len(rows)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)
    features = np.asarray(jax.jit(lambda rows: WITH_MOMENTS(rows))(jnp.asarray(rows, jnp.float32)))
    np.testing.assert_allclose(features.mean(0), coordinates, atol=1e-5)
    integers = WITH_MOMENTS.integers(len(rows))
    whole = integer_embedding(WITH_MOMENTS, rows)
    difference = whole.total / integers.units - len(rows) * coordinates
    assert np.abs(difference).max() <= len(rows) / integers.units  # each term is rounded by 1/2 at most


def test_no_two_rows_are_further_apart_than_the_diameter_with_moments(rng):
    """All rows at the ends, in the middle and beyond of each score, and random ones; the bound is attained nearly."""
    ends = itertools.product([0, 100, 500, 900, 2000, 2500, 3000, 4999, 5000], [0, 3], [0, 1, 2, 4, 5])
    rows = np.concatenate([np.asarray(list(ends)), _rows(rng, 300)])
    only = TableMap(BINNINGS, BLOCKS[:2], MOMENTS[:1])
    for feature_map, least in ((WITH_MOMENTS, 0.9), (only, 0.999)):
        features = np.stack([feature_map.weighted_sum(row[None], [1.0]) for row in rows])
        integers = feature_map.integers(2)
        whole = np.stack([integer_embedding(feature_map, np.stack([row])).total for row in rows]).astype(float)
        for vectors, diameter, norm in (
            (features, feature_map.diameter, feature_map.norm_bound),
            (whole, integers.diameter, integers.norm_bound),
        ):
            largest = pdist(vectors).max()
            assert least * diameter < largest <= diameter
            assert np.linalg.norm(vectors, axis=1).max() <= norm


def test_no_two_rows_are_further_apart_in_l1(rng):
    """Nor from the zero vector. Laplace noise is for this distance."""
    ends = itertools.product([0, 100, 500, 900, 1250, 2000, 2500, 3000, 3750, 4999, 5000], [0, 3], [0, 1, 2, 4, 5])
    rows = np.concatenate([np.asarray(list(ends)), _rows(rng, 100)])
    for feature_map, least in ((WITH_MOMENTS, 0.85), (TableMap(BINNINGS, BLOCKS[:2]), 0.999)):
        features = np.stack([feature_map.weighted_sum(row[None], [1.0]) for row in rows])
        integers = feature_map.integers(2)
        whole = np.stack([integer_embedding(feature_map, np.stack([row])).total for row in rows]).astype(float)
        for vectors, diameter in ((features, feature_map.l1_diameter), (whole, integers.l1_diameter)):
            largest = pdist(vectors, "cityblock").max()
            assert least * diameter < largest <= diameter
            assert np.abs(vectors).sum(axis=1).max() <= diameter
        noisy = perturb_securely(integer_embedding(feature_map, rows), PrivacyBudget(1.0, 0.0))
        steps = 1 / (integers.units * len(rows))
        assert noisy.mechanism.sensitivity == pytest.approx(integers.l1_diameter * steps)
        check_sensitivity(noisy.mechanism, feature_map)


@pytest.mark.parametrize(
    ("moment", "match"),
    [
        (Moment((1,), (0,), (2,), 5), "no order"),
        (Moment((0,), (0,), (5000,), 5), "other codes"),
        (Moment((0,), (7,), (7,), 5), "no range"),
        (Moment((0, 0), (0, 0), (9, 9), 5), "two different"),
        (Moment((0,), (0,), (9,), 0), "weight"),
    ],
)
def test_invalid_moments_are_refused(moment, match):
    def check():
        moment.validate()
        TableMap(BINNINGS, BLOCKS[:1], (moment,)).validate()

    with pytest.raises(ValueError, match=match):
        check()
