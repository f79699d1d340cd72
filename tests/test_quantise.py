"""Rows of equal weight for a weighted sample: their cost, herding, and rounding."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest

import kme_jax
from kme_jax import Bounds, Gaussian, Matern32, WeightedSample, uniform
from kme_jax.synthesis import quantised as module
from kme_jax.synthesis.quantised import Quantised, quantise

KERNEL = Gaussian(0.5)
FOLDER = pathlib.Path(__file__).parent / "data/folders_of_0.1/release"


def _gaussian(x, y, gamma=0.5):
    return np.exp(-gamma * np.square(x[:, None, :] - y[None, :, :]).sum(axis=2))


def _distance(points, weights, rows, gamma=0.5):
    """The cost in plain NumPy."""
    share = np.full(len(rows), 1 / len(rows))
    squared = weights @ _gaussian(points, points, gamma) @ weights
    squared += share @ (_gaussian(rows, rows, gamma) @ share - 2 * _gaussian(rows, points, gamma) @ weights)
    return np.sqrt(max(squared, 0))


def _counts(rows, points):
    return (rows[:, None, :] == points[None, :, :]).all(axis=2).sum(axis=0)


def _sample(rng, num_points, dim, signed=False):
    weights = rng.normal(1, 2, num_points) / num_points if signed else rng.dirichlet(np.ones(num_points))
    return WeightedSample(rng.normal(size=(num_points, dim)), weights)


@pytest.fixture(scope="module")
def release():
    """Twelve points within bounds."""
    return kme_jax.load(FOLDER)


@pytest.fixture(scope="module")
def mixtures():
    """1000 points of the published mixture in 2 and in 5 columns, with weights that differ."""
    from experiments.common.mixture import mixture

    weights = np.random.default_rng(1).dirichlet(np.ones(1000))
    return {dim: (WeightedSample(mixture(1000, dim), weights), Gaussian(1e-4 / dim)) for dim in (2, 5)}


@pytest.mark.parametrize(("num_points", "dim", "num_rows"), [(1, 1, 1), (1, 2, 7), (7, 1, 1), (13, 3, 5), (30, 2, 101)])
@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("method", module.METHODS)
def test_the_cost_is_the_distance(rng, num_points, dim, num_rows, decimals, method):
    sample = _sample(rng, num_points, dim)
    quantised = quantise(sample, KERNEL, num_rows, method=method, decimals=decimals, seed=3)
    assert quantised.rows.shape == (num_rows, dim)
    assert quantised.rows.dtype == np.float64
    assert quantised.cost == pytest.approx(_distance(sample.points, sample.weights, quantised.rows), abs=1e-7)
    exact = quantise(sample, KERNEL, num_rows, method=method, seed=3)
    assert quantised.cost_of_rows == exact.cost == exact.cost_of_rows
    assert _counts(exact.rows, sample.points).sum() == num_rows  # rows are points
    if decimals is not None:
        np.testing.assert_array_equal(quantised.rows, np.round(quantised.rows, decimals))


@pytest.mark.parametrize("signed", [False, True])
def test_no_row_can_move_to_lower_the_cost(rng, signed):
    """A local optimum in plain NumPy, for points that overlap and for points that do not."""
    for num_points, num_rows in ((5, 3), (12, 7), (20, 40)):
        sample = _sample(rng, num_points, 2, signed)
        quantised = quantise(sample, KERNEL, num_rows)
        for i in range(0, num_rows, 5):
            for point in sample.points:
                moved = quantised.rows.copy()
                moved[i] = point
                assert _distance(sample.points, sample.weights, moved) > quantised.cost - 1e-6


def test_it_is_nearly_the_best_of_all_databases(rng):
    """Of the 126 databases of five rows at five points."""
    excess = []
    for _ in range(8):
        sample = _sample(rng, 5, 2)
        everything = itertools.combinations_with_replacement(sample.points, 5)
        best = min(_distance(sample.points, sample.weights, np.asarray(rows)) for rows in everything)
        excess.append(quantise(sample, KERNEL, 5).cost / best - 1)
    assert min(excess) > -1e-6
    assert np.mean(excess) < 0.05


@pytest.mark.parametrize("dim", [2, 5])
def test_herding_is_far_better_than_resampling(mixtures, dim):
    """Its cost is 8 to 25 times smaller, and falls about as one over the number of rows."""
    sample, kernel = mixtures[dim]
    costs = [quantise(sample, kernel, number).cost for number in (100, 1000, 10_000)]
    assert costs[1] < costs[0] / 5
    assert costs[2] < costs[1] / 5
    for number, cost in zip((100, 1000, 10_000), costs, strict=True):
        systematic = [quantise(sample, kernel, number, method="systematic", seed=seed).cost for seed in range(5)]
        assert cost < np.mean(systematic) / 5


def test_rounded_rows_are_chosen_among_rounded_points(mixtures):
    """Tens are a tenth of the length of the kernel. Rounding the rows afterwards costs twenty times as much."""
    sample, kernel = mixtures[2]
    exact = quantise(sample, kernel, 10_000)
    rounded = quantise(sample, kernel, 10_000, decimals=-1)
    assert (rounded.rows % 10 == 0).all()
    assert rounded.cost_of_rows == exact.cost
    assert rounded.cost < 3e-4
    afterwards = _distance(sample.points, sample.weights, np.round(exact.rows, -1)[::10], kernel.gamma)
    assert rounded.cost < afterwards / 5


def test_a_database_that_is_exact_is_found(rng):
    points = rng.normal(size=(40, 3))
    assert quantise(uniform(points), KERNEL, 40).cost == 0
    np.testing.assert_array_equal(quantise(uniform(points), KERNEL, 40).rows, points)
    sample = WeightedSample(points[:3], np.array([0.3, 0.6, 0.1]))
    quantised = quantise(sample, KERNEL, 10)
    assert _counts(quantised.rows, points[:3]).tolist() == [3, 6, 1]
    assert quantised.cost < 1e-9


def test_points_of_weight_zero_have_no_rows(rng):
    points = rng.normal(size=(9, 2))
    weights = np.array([0, 0.2, 0, 0, 0.5, 0.3, 0, 0, 0])
    quantised = quantise(WeightedSample(points, weights), KERNEL, 17)
    assert _counts(quantised.rows, points[weights == 0]).sum() == 0
    kept = quantise(WeightedSample(points[weights > 0], weights[weights > 0]), KERNEL, 17)
    np.testing.assert_array_equal(quantised.rows, kept.rows)


def test_equal_points_count_as_one(rng):
    sample = _sample(rng, 12, 2)
    twice = WeightedSample(np.repeat(sample.points, 2, axis=0), np.repeat(sample.weights / 2, 2))
    one, other = (quantise(each, KERNEL, 30) for each in (sample, twice))
    np.testing.assert_array_equal(one.rows, other.rows)
    assert one.cost == pytest.approx(other.cost)


@pytest.mark.parametrize("total", [0.5, 1.0, 2.5])
def test_weights_may_be_signed_and_have_any_sum(rng, total):
    weights = rng.normal(1, 2, 50)
    weights *= total / weights.sum()
    sample = WeightedSample(rng.normal(size=(50, 2)), weights)
    quantised = quantise(sample, KERNEL, 200)
    assert quantised.rows.shape == (200, 2)
    assert quantised.cost == pytest.approx(_distance(sample.points, weights, quantised.rows), abs=1e-7)
    positive = np.maximum(weights, 0)
    without = WeightedSample(sample.points, positive / positive.sum()).quantise(200, 0)
    assert quantised.cost < _distance(sample.points, weights, without)
    large = WeightedSample(sample.points, np.abs(weights))
    assert quantise(large, KERNEL, 30).rows.shape == (30, 2)


def test_other_kernels_and_types(rng):
    points = rng.normal(size=(20, 2)).astype(np.float32)
    weights = np.full(20, 0.05, np.float32)
    quantised = quantise(WeightedSample(points, weights), Matern32(1.0) * Gaussian(2.0) + KERNEL, 7)
    assert quantised.rows.dtype == np.float64
    assert 0 < quantised.cost < 1
    integers = WeightedSample(np.arange(6.0)[:, None], np.full(6, 1 / 6))
    assert quantise(integers, KERNEL, 6, decimals=0).cost == 0


def test_the_result_is_reproducible(rng):
    sample = _sample(rng, 30, 2)
    for method, depends in (("herding", False), ("systematic", True)):
        rows = [quantise(sample, KERNEL, 17, method=method, seed=seed).rows for seed in (0, 0, 1)]
        np.testing.assert_array_equal(rows[0], rows[1])
        assert (rows[0].tolist() != rows[2].tolist()) == depends
    np.testing.assert_array_equal(rows[0], sample.quantise(17, 0))


# -- rounding


AWKWARD = [  # lower, upper, decimals, the least and the largest number
    (0.29, 0.57, 2, 0.29, 0.57),  # 100 · 0.29 is less than 29
    (0.294, 0.5749, 2, 0.3, 0.57),
    (-0.4, 0.4, 0, 0, 0),
    (0.2, 99.7, 0, 1, 99),
    (-17, 23, -1, -10, 20),
    (0.1, 1.1, 15, 0.1, 1.1),
    (1e17, 3e17, 2, 1e17, 3e17),
    (-1e300, 1e300, 15, -1e300, 1e300),
]


@pytest.mark.parametrize(("lower", "upper", "decimals", "least", "largest"), AWKWARD)
@pytest.mark.parametrize("method", module.METHODS)
def test_rounding_stays_within_bounds(lower, upper, decimals, least, largest, method):
    bounds = Bounds.create([lower, 0], [upper, 1], ["a", "b"])
    points = bounds.from_unit(np.random.default_rng(0).uniform(size=(20, 2)))
    points[0], points[1] = bounds.lower, bounds.upper
    sample = WeightedSample(points, np.array([0.3, 0.3, *[0.4 / 18] * 18]))
    quantised = quantise(sample, KERNEL, 30, method=method, decimals=[decimals, 1], bounds=bounds)
    first, second = quantised.rows.T
    assert ((first >= lower) & (first <= upper)).all()
    assert (first.min(), first.max()) == (least, largest)
    assert not np.signbit(first[first == 0]).any()
    np.testing.assert_array_equal(second, np.round(second, 1))
    if abs(upper) < 1e9 and decimals < 15:
        np.testing.assert_array_equal(first, np.round(first, decimals))
    assert quantised.columns == ("a", "b")


def test_distances_are_those_of_scaled_rows(rng):
    bounds = Bounds.create([10, -5], [210, 5])
    unit = WeightedSample(rng.uniform(size=(30, 2)), rng.dirichlet(np.ones(30)))
    sample = WeightedSample(bounds.from_unit(unit.points), unit.weights)
    scaled = quantise(sample, KERNEL, 20, bounds=bounds)
    assert scaled.cost == pytest.approx(quantise(unit, KERNEL, 20).cost, rel=1e-6)
    np.testing.assert_allclose(bounds.to_unit(scaled.rows), quantise(unit, KERNEL, 20).rows, atol=1e-12)


def test_columns_have_their_own_decimals(rng):
    sample = _sample(rng, 20, 3)
    rows = quantise(sample, KERNEL, 15, decimals=(0, 2, -1)).rows
    for column, decimals in zip(rows.T, (0, 2, -1), strict=True):
        np.testing.assert_array_equal(column, np.round(column, decimals))
    assert (rows[:, 1] != np.round(rows[:, 1])).any()


# -- a release


def test_a_release_is_quantised_within_its_bounds(release):
    bounds, kernel = release.measurement.bounds, release.noisy.feature_map.kernel
    quantised = release.quantise(50, decimals=[0, -3])
    assert (quantised.rows >= bounds.lower).all()
    assert (quantised.rows <= bounds.upper).all()
    assert (quantised.rows == np.round(quantised.rows)).all()
    unit, rows = bounds.to_unit(release.sample.points), bounds.to_unit(quantised.rows)
    expected = _distance(unit, release.sample.weights, rows, kernel.gamma)
    assert quantised.cost == pytest.approx(expected, abs=1e-7)
    assert quantised.to_pandas().columns.tolist() == ["age", "income"]
    assert quantised.mechanism.secure
    systematic = release.quantise(50, method="systematic", seed=4)
    np.testing.assert_array_equal(systematic.rows, release.sample.quantise(50, 4))
    assert release.quantise(50).cost <= systematic.cost


def test_a_map_without_a_kernel(release):
    class Strange:
        pass

    noisy = dataclasses.replace(release.noisy, feature_map=Strange())
    strange = dataclasses.replace(release, measurement=dataclasses.replace(release.measurement, noisy=noisy))
    with pytest.raises(ValueError, match=r"^Strange has no kernel, in which cost is measured: [^\n]*$"):
        strange.quantise(10)


def test_it_is_short_and_says_its_cost(rng, release):
    quantised = quantise(_sample(rng, 20, 2), KERNEL, 10, decimals=0)
    numbers = f"cost: {quantised.cost:.3g}, {quantised.cost_of_rows:.3g} unrounded"
    assert repr(quantised) == f"Quantised(10 rows of 2 columns, {numbers})"
    assert quantised.to_pandas().columns.tolist() == ["x1", "x2"]
    simulated = dataclasses.replace(release.sample.mechanism, secure=False)
    assert "NOT PRIVATE" in repr(dataclasses.replace(quantised, mechanism=simulated))
    assert isinstance(quantised, Quantised)


# -- bad input


POINTS = np.arange(8.0).reshape(4, 2)
SIGNED = WeightedSample(POINTS, np.array([1.5, -0.5, 0.5, -0.5]))
BOUNDS = Bounds.create([0.2, 0], [0.8, 9])
INSIDE = WeightedSample(np.full((4, 2), 0.5), np.full(4, 0.25))
BAD = [
    (uniform(POINTS), 0, {}, "num_rows must be at least 1"),
    (uniform(POINTS), 10**6 + 1, {}, "num_rows must be at most 1000000"),
    (uniform(POINTS), 2.5, {}, "num_rows must be a whole number"),
    (uniform(POINTS), 5, {"method": "best"}, "method must be one of herding, systematic, got 'best'"),
    (uniform(POINTS), 5, {"seed": -1}, "seed must be at least 0"),
    (uniform(POINTS), 5, {"decimals": 1.5}, "decimals must be a whole number"),
    (uniform(POINTS), 5, {"decimals": "one"}, "decimals must be a whole number"),
    (uniform(POINTS), 5, {"decimals": 16}, "decimals must be at most 15"),
    (uniform(POINTS), 5, {"decimals": [1, 2, 3]}, "one for each of 2 columns, got 3"),
    (uniform(POINTS), 5, {"bounds": BOUNDS}, "points: a point is beyond the bounds"),
    (uniform(POINTS[:, :1]), 5, {"bounds": BOUNDS}, "bounds: expected 1 columns"),
    (INSIDE, 5, {"bounds": BOUNDS, "decimals": 0}, "no number with 0 decimals is within the bounds of x1, 0.2 and 0.8"),
    (SIGNED, 5, {"method": "systematic"}, "only probability weights can be quantised"),
    (WeightedSample(POINTS, np.zeros(4)), 5, {}, "weights: all of them are 0"),
    (WeightedSample(POINTS, np.full(4, np.nan)), 5, {}, "weights: has numbers that are not finite"),
    (WeightedSample(np.full((4, 2), np.nan), np.full(4, 0.25)), 5, {}, "points: row 0 is NaN or infinite"),
    (uniform(np.zeros((10_001, 1))), 5, {}, 'at most 10000 points, got 10001: synthesise fewer, or use method="sys'),
]


@pytest.mark.parametrize(("sample", "num_rows", "options", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input(sample, num_rows, options, message):
    with pytest.raises(ValueError, match=message) as error:
        quantise(sample, KERNEL, num_rows, **options)
    assert "\n" not in str(error.value)
