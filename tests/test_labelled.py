"""Feature maps of rows with categories and labels: definition, diameter, sums, integers."""

import itertools
import math

import jax
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    LatticeMap,
    SubspaceMap,
    integer_embedding,
    mean_embedding,
)
from kme_jax._numerics import fused, tiles
from kme_jax.feature_maps import LabelledMap, MixedMap
from kme_jax.feature_maps.table import TableMap
from tests import compiled


def _fourier(num_features=200, dim=3):
    return FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), num_features, dim)


FOURIER = _fourier()
MIXED = MixedMap(FOURIER, (2, 5, 3))
LABELLED = LabelledMap(FOURIER, 4)
MAPS = {
    "labelled": LABELLED,
    "labelled lattice": LabelledMap(LatticeMap.from_box(Gaussian(0.5), [-6.0] * 2, [6.0] * 2), 3),
    "one label": LabelledMap(FOURIER, 1),
    "mixed": MIXED,
    "labelled mixed": LabelledMap(MIXED, 4),
}


SLOW = ("labelled lattice", "one label", "labelled mixed")  # as the others, of other features or shapes


@pytest.fixture(
    params=[pytest.param(one, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, one in MAPS.items()]
)
def feature_map(request):
    return request.param


def _sizes(feature_map):
    """Codes of the columns after the numeric ones."""
    labels = (feature_map.num_labels,) if isinstance(feature_map, LabelledMap) else ()
    inner = feature_map.features if labels else feature_map
    return (inner.categories if isinstance(inner, MixedMap) else ()) + labels


def _rows(feature_map, num_rows, seed=0):
    rng, sizes = np.random.default_rng(seed), _sizes(feature_map)
    numbers = rng.normal(0, 1.5, (num_rows, feature_map.dim - len(sizes)))
    codes = np.stack([rng.integers(size, size=num_rows) for size in sizes], axis=1)
    return np.concatenate([np.clip(numbers, -5.9, 5.9), codes], axis=1).astype(np.float32)


def test_inner_products_are_the_kernel(feature_map):
    rows = _rows(feature_map, 30)
    features = np.asarray(compiled.features(feature_map, rows))
    assert features.shape == (30, feature_map.num_features)
    inner = features @ features.T
    # The numeric part is a random (or a lattice's) estimate of its kernel; the parts with codes are exact.
    base = feature_map.features if isinstance(feature_map, LabelledMap) else feature_map
    numeric = base.numeric if isinstance(base, MixedMap) else base
    numbers = np.asarray(compiled.features(numeric, rows[:, : numeric.dim]))
    expected = numbers @ numbers.T
    if isinstance(base, MixedMap):
        codes = rows[:, numeric.dim : base.dim]
        expected = expected + np.mean(codes[:, None] == codes[None], axis=2)
    if base is not feature_map:
        expected = expected * (rows[:, None, -1] == rows[None, :, -1])
    np.testing.assert_allclose(inner, expected, atol=2e-6)
    kernel = np.asarray(compiled.pairwise(feature_map.kernel, rows, rows))
    assert np.abs(inner - kernel).max() < 5 / math.sqrt(numeric.num_features / 2)
    np.testing.assert_allclose(kernel, compiled.one_by_one(feature_map.kernel, rows, rows), atol=2e-6)


def test_no_two_rows_are_further_apart_than_the_diameter(feature_map):
    rows = _rows(feature_map, 300)
    features = np.concatenate(
        [np.asarray(compiled.features(feature_map, rows), np.float64), np.zeros((1, feature_map.num_features))]
    )
    squares = np.sum(features**2, axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * features @ features.T, 0))
    assert distances.max() <= feature_map.diameter * (1 + 1e-6)
    assert distances.max() > 0.6 * feature_map.diameter  # it is no mere upper bound of anything
    assert np.sqrt(squares.max()) <= feature_map.norm_bound * (1 + 1e-6)
    assert feature_map.diameter <= feature_map.certain_diameter * (1 + 1e-12)
    assert feature_map.diameter <= feature_map.published_diameter


@pytest.mark.parametrize("kind", ["mixed", "labelled", "labelled mixed"])
def test_rows_far_apart_in_all_columns_attain_the_diameter(kind):
    """Where the features of the numbers attain theirs: opposite ends of a box, in other categories or another class."""
    lattice = LatticeMap.from_box(Gaussian(0.5), [-6.0], [6.0])
    mixed = MixedMap(lattice, (4, 2))
    feature_map, first, second = {
        "mixed": (mixed, [-6.0, 0, 0], [6.0, 1, 1]),
        "labelled": (LabelledMap(lattice, 3), [-6.0, 0], [6.0, 0]),
        "labelled mixed": (LabelledMap(mixed, 2), [-6.0, 0, 0, 1], [6.0, 1, 1, 1]),
    }[kind]
    features = np.asarray(compiled.features(feature_map, np.array([first, second], np.float32)), np.float64)
    found = np.linalg.norm(features[0] - features[1])
    assert 0.95 * feature_map.diameter < found <= feature_map.diameter


def test_diameters_are_those_of_the_proofs():
    two = 2.0  # of so few Fourier features
    assert FOURIER.diameter == two
    assert LabelledMap(FOURIER, 4).diameter == two
    assert MIXED.diameter == pytest.approx(math.sqrt(two**2 + 2))
    assert MIXED.published_diameter == pytest.approx(2 * math.sqrt(2))
    many = _fourier(20_000)
    assert many.diameter < 1.6
    assert LabelledMap(many, 4).diameter == many.diameter
    assert LabelledMap(many, 4).failure_probability == many.failure_probability > 0
    # Where rows of one class are close together, those of two classes decide.
    near = LatticeMap.from_box(Gaussian(0.5), [-6.0], [6.0])
    assert LabelledMap(near, 2).diameter == pytest.approx(max(near.diameter, math.sqrt(2) * near.norm_bound))


def test_codes_in_the_place_of_one_hot_vectors_would_break_the_guarantee():
    """The published sensitivity 2√2/n, and what integer codes up to 40 do to it."""
    rows = np.zeros((2, 6), np.float32)
    rows[1, 3:] = 1, 4, 2
    ours = np.asarray(compiled.features(MIXED, rows))
    published = np.concatenate(
        [np.asarray(compiled.features(FOURIER, rows[:, :3])), np.asarray([[0, 0, 0], [40, 15, 6]]) / 3**0.5], axis=1
    )
    assert np.linalg.norm(ours[1] - ours[0]) <= MIXED.diameter < 2 * math.sqrt(2)
    assert np.linalg.norm(published[1] - published[0]) > 5 * 2 * math.sqrt(2)


def test_sums_are_those_of_the_features(feature_map):
    rows = _rows(feature_map, 500)
    expected = np.asarray(compiled.features(feature_map, rows), np.float64).sum(axis=0)
    done = []
    mean = mean_embedding(feature_map, rows, progress=lambda *seen: done.append(seen))
    np.testing.assert_allclose(mean.coordinates * len(rows), expected, atol=5e-4)
    assert done == sorted(done)
    embedding = integer_embedding(feature_map, rows)
    integers = embedding.integer_map
    found = integers.released(embedding.total) / integers.units
    np.testing.assert_allclose(found, expected, atol=0.6 * len(rows) / integers.units + 5e-3)


def test_integers_are_exact_and_within_their_diameter(feature_map):
    rows = _rows(feature_map, 64)
    whole = integer_embedding(feature_map, rows)
    backwards = integer_embedding(feature_map, rows[::-1])
    np.testing.assert_array_equal(whole.total, backwards.total)
    integers = whole.integer_map
    each = np.stack([integer_embedding(feature_map, row[None]).total for row in rows[:12]])
    for one, other in itertools.combinations(each, 2):
        assert np.linalg.norm(one - other) <= integers.diameter
    assert max(np.linalg.norm(one) for one in each) <= integers.norm_bound
    assert integers.diameter <= integers.certain_diameter * (1 + 1e-12)
    assert integers.diameter == pytest.approx(integers.units * feature_map.diameter, rel=0.01)


@pytest.mark.parametrize("label", [-1.0, 4.0, 0.5, np.nan, np.inf])
def test_rows_with_a_label_that_is_none_count_as_nothing(label):
    feature_map = MAPS["labelled"]
    good = _rows(feature_map, 5)
    bad = good.copy()
    bad[0, -1] = label
    with_bad, without = mean_embedding(feature_map, bad), mean_embedding(feature_map, good[1:])
    np.testing.assert_allclose(with_bad.coordinates * 5, without.coordinates * 4, atol=1e-6)
    np.testing.assert_array_equal(
        integer_embedding(feature_map, bad).total, integer_embedding(feature_map, good[1:]).total
    )


def test_classes_without_rows_are_zeros(feature_map):
    if not isinstance(feature_map, LabelledMap):
        return
    rows = _rows(feature_map, 20)
    rows[:, -1] = 0
    blocks = mean_embedding(feature_map, rows).coordinates.reshape(feature_map.num_labels, -1)
    assert np.any(blocks[0])
    assert not np.any(blocks[1:])
    nothing = np.full_like(rows, np.nan)
    assert not np.any(mean_embedding(feature_map, nothing).coordinates)
    assert not np.any(integer_embedding(feature_map, nothing).total)


def test_relaxed_rows_are_mixtures_of_rows():
    rows = _rows(MIXED, 6)
    rows[2] = np.concatenate([rows[0, :3], rows[1, 3:]])  # the numbers of one row, the codes of another
    features = np.asarray(compiled.features(MIXED, rows))

    @jax.jit
    def relaxed(rows):
        parts = MIXED.relax(rows)
        return MIXED.relaxed(parts), MIXED.relaxed((parts[:1] + parts[2:3]) / 2)

    each, half = relaxed(rows)
    np.testing.assert_allclose(each, features, atol=1e-6)
    np.testing.assert_allclose(half, (features[:1] + features[2:3]) / 2, atol=1e-6)


def test_what_cannot_be_is_refused():
    for num_labels in (0, 3.0, 2.5, True, ("yes", "no")):
        with pytest.raises(ValueError, match="num_labels must be a whole number and at least 1"):
            LabelledMap(FOURIER, num_labels)
    for categories in ((), (3, 0), 4, (2.5,)):
        with pytest.raises(ValueError, match="categories"):
            MixedMap(FOURIER, categories)
    subspace = SubspaceMap.from_points(Gaussian(0.5), np.random.default_rng(0).normal(size=(5, 2)))
    with pytest.raises(ValueError, match="a LabelledMap of a SubspaceMap has no integer version"):
        LabelledMap(subspace, 2).integers(10)


def test_counts_of_codes():
    labels = np.asarray([[0.0], [2.0], [2.0], [5.0]])
    found = mean_embedding(TableMap.of_codes(3), labels)
    np.testing.assert_allclose(found.coordinates * 4, [1, 0, 2])
    assert found.feature_map.diameter == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("size", [1024, 4096])
def test_how_large_a_class_is_changes_no_row(size):
    """A row that changes its class moves the sums by its own integers and nothing else, also where a class gets one row
    more than fits into a number of tiles: by which compiled program rows are seen depends on N alone."""
    dim, num_rows = 784, 2 * size + 7
    fourier = FourierMap.from_kernel(jax.random.key(1), Gaussian(0.004), 40, dim)
    feature_map = LabelledMap(fourier, 2)
    row = np.random.default_rng(0).uniform(size=dim)
    rows = np.concatenate([np.tile(row, (num_rows, 1)), np.zeros((num_rows, 1))], axis=1)
    rows[size:, -1] = 1
    other = rows.copy()
    other[size, -1] = 0
    one, two = (integer_embedding(feature_map, some).total.reshape(2, -1) for some in (rows, other))
    np.testing.assert_array_equal(two[0] - one[0], one[1] - two[1])
    np.testing.assert_array_equal(one[0] * (size + 1), two[0] * size)  # all rows are the same
    np.testing.assert_array_equal(one[0] * (num_rows - size), one[1] * size)


def test_classes_of_any_size_are_summed_by_one_program(monkeypatch):
    shapes = []

    def traced(sums):
        def call(functions, points, rows, *args):
            shapes.append(rows.shape)
            return sums(functions, points, rows, *args)

        return call

    monkeypatch.setattr(tiles, "tile_sums", traced(tiles.tile_sums))
    monkeypatch.setattr(fused, "sums", traced(fused.sums))  # on a GPU
    fourier = FourierMap.from_kernel(jax.random.key(1), Gaussian(0.004), 40, 20)
    feature_map, rng = LabelledMap(fourier, 3), np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(size=(6000, 20)), np.zeros((6000, 1))], axis=1).astype(np.float32)
    for sizes in ((2000, 2000, 2000), (5990, 10, 0), (3000, 2900, 100)):
        rows[:, -1] = np.repeat([0, 1, 2], sizes)
        found = mean_embedding(feature_map, rows).coordinates.reshape(3, -1) * len(rows)
        features = np.asarray(compiled.features(fourier, rows[:, :-1]), np.float64)
        expected = [features[rows[:, -1] == label].sum(axis=0) for label in range(3)]
        np.testing.assert_allclose(found, expected, atol=2e-2)
    assert len(shapes) == 1


def test_progress_tells_nothing_of_the_classes():
    reports = []
    for shares in ((0.9, 0.1, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)):
        rows = _rows(LABELLED, 400)
        rows[:, -1] = np.random.default_rng(0).choice(4, 400, p=shares)
        seen = []
        integer_embedding(LABELLED, rows, progress=lambda *found, seen=seen: seen.append(found))
        reports.append(sorted(set(seen)))
    assert reports[0] == reports[1]
    assert reports[0][-1] == (400, 400)


def test_a_table_with_labels_has_the_same_noise_in_integers():
    feature_map = LabelledMap(TableMap.of_codes(5), 3)
    integers = feature_map.integers(100)
    assert integers.diameter == pytest.approx(integers.units * feature_map.diameter)
