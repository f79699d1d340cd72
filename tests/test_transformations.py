"""Functions of random variables, and conditional means, from weighted samples."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest

import kme_jax
from kme_jax import Gaussian, Laplacian, WeightedSample, uniform
from kme_jax.analysis.transformations import MAX_INPUTS, NUM_COMBINATIONS, conditional_mean, push_forward

KERNEL = Gaussian(0.5)
FOLDER = pathlib.Path(__file__).parent / "data/folders_of_0.1/release"


def _sample(rng, num_points, dim, signed=False):
    weights = rng.dirichlet(np.ones(num_points))
    if signed:
        weights = weights * np.where(rng.random(num_points) < 0.3, -1, 1)
    return WeightedSample(rng.normal(size=(num_points, dim)), weights)


def _add(x, y):
    return x + y


# -- functions of random variables


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("num_points", "dim"), [(1, 1), (7, 3), (50, 2)])
def test_an_expectation_is_that_of_the_function(rng, num_points, dim, signed):
    sample = _sample(rng, num_points, dim, signed)
    image = push_forward(lambda z: np.sin(z).sum(axis=1), sample)
    assert image.points.shape == (num_points, 1)
    expected = sample.expectation(lambda z: np.exp(np.sin(z).sum(axis=1)))
    assert image.expectation(lambda y: np.exp(y[:, 0])) == pytest.approx(expected)
    np.testing.assert_array_equal(image.weights, sample.weights)


@pytest.mark.parametrize("sizes", [(2, 3), (4, 1), (3, 1, 4), (1, 1)])
def test_all_combinations(rng, sizes):
    samples = [_sample(rng, size, 2, signed=True) for size in sizes]
    image = push_forward(lambda *z: np.hstack([*z, np.prod(z, axis=0)]), *samples)
    combinations = [
        (np.concatenate([*z, np.prod(z, axis=0)]), np.prod(w))
        for z, w in zip(
            itertools.product(*(sample.points for sample in samples)),
            itertools.product(*(sample.weights for sample in samples)),
            strict=True,
        )
    ]
    np.testing.assert_allclose(image.points, [z for z, _ in combinations])
    np.testing.assert_allclose(image.weights, [w for _, w in combinations])


def _mean_and_variance(sample):
    total = sample.weights.sum()
    mean = sample.expectation(lambda z: z[:, 0]) / total
    return mean, sample.expectation(lambda z: np.square(z[:, 0] - mean)) / total


def test_the_sum_of_independent_normals(rng):
    """N(1, 4) and N(−3, 9), by importance weights of evenly spread points."""
    grid = np.linspace(-25, 25, 200)[:, None]
    samples = []
    for mean, deviation in ((1, 2), (-3, 3)):
        density = np.exp(-np.square((grid[:, 0] - mean) / deviation) / 2)
        samples.append(WeightedSample(grid, density / density.sum()))
    exact = push_forward(_add, *samples)
    assert len(exact.points) == 40_000
    assert _mean_and_variance(exact) == pytest.approx((-2, 13), abs=1e-6)
    drawn = push_forward(_add, *samples, num_points=20_000, seed=1)
    assert len(drawn.points) == 20_000
    assert _mean_and_variance(drawn) == pytest.approx((-2, 13), abs=0.3)
    half = (grid[1, 0] - grid[0, 0]) / 2
    probability = drawn.expectation(lambda z: z[:, 0] > half)
    assert probability == pytest.approx(0.2778, abs=0.01)  # of N(−2, 13)


def test_the_sum_of_a_variable_with_itself_is_of_independent_copies(rng):
    sample = _sample(rng, 30, 1)
    _, variance = _mean_and_variance(sample)
    assert _mean_and_variance(push_forward(_add, sample, sample))[1] == pytest.approx(2 * variance)
    assert _mean_and_variance(push_forward(lambda z: z + z, sample))[1] == pytest.approx(4 * variance)


def test_drawn_combinations_are_spread_evenly(rng):
    one, other = _sample(rng, 40, 1), _sample(rng, 30, 1)
    pairs = push_forward(lambda x, y: np.hstack([x, y]), one, other, num_points=1000)
    assert pairs.points.shape == (1000, 2)
    np.testing.assert_allclose(pairs.weights, 1e-3)
    for column, sample in zip(pairs.points.T, (one, other), strict=True):
        counts = (column[:, None] == sample.points[:, 0]).sum(axis=0)
        assert (np.abs(counts - 1000 * sample.weights) < 1).all()
    again, third = (
        push_forward(lambda x, y: np.hstack([x, y]), one, other, num_points=1000, seed=seed) for seed in (0, 1)
    )
    np.testing.assert_array_equal(again.points, pairs.points)
    assert (third.points != pairs.points).any()
    correlation = np.corrcoef(pairs.points.T)[0, 1]
    assert abs(correlation) < 4 / np.sqrt(1000)


@pytest.mark.parametrize("number", [1, 100, 5000])
def test_drawn_combinations_of_signed_weights(rng, number):
    one, other = _sample(rng, 90, 1, signed=True), _sample(rng, 80, 1, signed=True)
    total = one.weights.sum() * other.weights.sum()
    drawn = push_forward(_add, one, other, num_points=number)
    assert len(drawn.weights) == number
    if number > 1:
        assert drawn.weights.sum() == pytest.approx(total)
        assert (drawn.weights < 0).any()
        assert np.abs(drawn.weights).sum() == pytest.approx(1)  # Σ |w| of all combinations
    if number == 5000:
        exact = push_forward(_add, one, other)
        assert drawn.expectation(np.tanh) == pytest.approx(exact.expectation(np.tanh), abs=0.05)


def test_many_points_are_drawn_from_by_default(rng):
    samples = [_sample(rng, size, 1) for size in (400, 300)]
    image = push_forward(_add, *samples)
    assert len(image.points) == NUM_COMBINATIONS
    means = [sample.expectation(lambda z: z)[0] for sample in samples]
    assert image.expectation(lambda z: z)[0] == pytest.approx(sum(means), abs=1e-3)


def test_values_of_any_kind_become_columns(rng):
    sample = _sample(rng, 5, 3)
    for values in (
        lambda z: z[:, 0] > 0,
        lambda z: (10 * z[:, :2]).astype(int),
        lambda z: z.astype(np.float32),
        lambda z: z[:, 0].tolist(),
    ):
        image = push_forward(values, sample)
        assert image.points.dtype == np.float64
        assert image.points.ndim == 2
    assert push_forward(lambda z: z[:, 0] > 0, sample).expectation(lambda y: y)[0] == pytest.approx(
        sample.expectation(lambda z: z[:, 0] > 0)
    )


def test_the_mechanism_is_the_weakest(rng):
    public = _sample(rng, 3, 1)
    secure = kme_jax.load(FOLDER).sample.mechanism
    weak, simulated = (dataclasses.replace(secure, **change) for change in ({"epsilon": 9.0}, {"secure": False}))
    of = {name: dataclasses.replace(public, mechanism=mechanism) for name, mechanism in
          (("secure", secure), ("weak", weak), ("simulated", simulated))}  # fmt: skip
    assert push_forward(_add, public, public).mechanism is None
    assert push_forward(np.square, of["weak"]).mechanism is weak
    assert push_forward(_add, public, of["secure"]).mechanism is secure
    assert push_forward(_add, of["weak"], of["secure"]).mechanism is weak
    assert push_forward(_add, of["weak"], of["simulated"]).mechanism is simulated


SAMPLE = uniform(np.arange(8.0).reshape(4, 2))
BAD = [
    (_add, [], {}, "expected one sample or several, got none"),
    (np.sum, [SAMPLE], {}, r"function: expected values \[n\] or \[n, d'\] with n = 4, got the shape \[\]"),
    (lambda z: z[:3], [SAMPLE], {}, r"with n = 4, got the shape \[3, 2\]"),
    (lambda z: z[:, :0], [SAMPLE], {}, r"got the shape \[4, 0\]"),
    (lambda z: z[:, :, None], [SAMPLE], {}, r"got the shape \[4, 2, 1\]"),
    (lambda z: z.astype(str), [SAMPLE], {}, "function: expected numbers, got values of <U"),
    (lambda z: np.where(z == 4, np.nan, z), [SAMPLE], {}, "function: the value of point 2 is NaN or infinite"),
    (_add, [SAMPLE, SAMPLE], {"num_points": 0}, "num_points must be at least 1"),
    (_add, [SAMPLE, SAMPLE], {"num_points": 1e4}, "num_points must be a whole number"),
    (_add, [SAMPLE, SAMPLE], {"seed": -1}, "seed must be at least 0"),
    (_add, [SAMPLE, SAMPLE.points], {}, "expected a WeightedSample, got a ndarray"),
    (_add, [SAMPLE, WeightedSample(SAMPLE.points, np.zeros(4))], {"num_points": 3}, "all weights of a sample are 0"),
    (_add, [WeightedSample(SAMPLE.points, np.full(4, np.inf))], {}, "weights: has numbers that are not finite"),
]


@pytest.mark.parametrize(("function", "samples", "options", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_transformations(function, samples, options, message):
    with pytest.raises(ValueError, match=message) as error:
        push_forward(function, *samples, **options)
    assert "\n" not in str(error.value)


# -- conditional means


def _gaussian(x, y, gamma=0.5):
    return np.exp(-gamma * np.square(x[:, None, :] - y[None, :, :]).sum(axis=2))


def test_equal_weights_give_the_closed_form(rng):
    points = rng.normal(size=(30, 4))
    mean = conditional_mean(uniform(points), [0, 2], [1, 3], KERNEL, ridge=1e-3)
    x, t = points[:, [0, 2]], points[:, [1, 3]]
    alpha = np.linalg.solve(_gaussian(x, x) + 30 * 1e-3 * np.eye(30), t)
    np.testing.assert_allclose(mean.coefficients, alpha, rtol=1e-9, atol=1e-12)
    places = rng.normal(size=(11, 2))
    np.testing.assert_allclose(mean(places), _gaussian(places, x) @ alpha, atol=1e-10)
    assert repr(mean) == "ConditionalMean(2 inputs, 2 outputs, from 30 points)"


def test_it_has_the_least_objective(rng):
    """Any other coefficients are worse, in plain NumPy."""
    sample = WeightedSample(rng.normal(size=(12, 2)), rng.dirichlet(np.ones(12)))
    mean = conditional_mean(sample, 0, 1, KERNEL, ridge=0.01)
    values = _gaussian(sample.points[:, :1], sample.points[:, :1])

    def objective(alpha):
        return sample.weights @ np.square(sample.points[:, 1] - values @ alpha) + 0.01 * alpha @ values @ alpha

    best = mean.coefficients[:, 0]
    for _ in range(50):
        assert objective(best + 0.1 * rng.normal(size=12)) > objective(best)
    gradient = 2 * values @ (sample.weights * (values @ best - sample.points[:, 1]) + 0.01 * best)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_equal_points_count_as_one_of_the_sum_of_their_weights(rng):
    points, weights = rng.normal(size=(20, 3)), rng.dirichlet(np.ones(20))
    twice = weights.copy()
    twice[4] *= 2
    doubled = WeightedSample(points, twice)
    repeated = WeightedSample(np.concatenate([points, points[4:5]]), np.append(weights, weights[4]))
    places = rng.normal(size=(9, 2))
    one, other = (conditional_mean(sample, [0, 1], 2, KERNEL, ridge=0.1)(places) for sample in (doubled, repeated))
    np.testing.assert_allclose(one, other, atol=1e-9)
    unchanged = conditional_mean(WeightedSample(points, weights), [0, 1], 2, KERNEL, ridge=0.1)(places)
    assert np.abs(one - unchanged).max() > 1e-3


def test_points_of_weight_zero_do_not_count(rng):
    points = rng.normal(size=(15, 2))
    weights = np.where(np.arange(15) < 9, 1 / 9, 0)
    mean = conditional_mean(WeightedSample(points, weights), 0, 1, KERNEL, ridge=0.01)
    kept = conditional_mean(uniform(points[:9]), 0, 1, KERNEL, ridge=0.01)
    np.testing.assert_array_equal(mean.inputs, kept.inputs)
    np.testing.assert_allclose(mean.coefficients, kept.coefficients)


def test_it_finds_a_conditional_mean(rng):
    """E[Y | X = x] = sin 2x, from points with noise; a function of columns gives the same as columns."""
    x = rng.uniform(-2, 2, 500)
    points = np.stack([x, np.sin(2 * x) + 0.2 * rng.normal(size=500)], axis=1)
    places = np.linspace(-1.8, 1.8, 25)[:, None]
    mean = conditional_mean(uniform(points), 0, 1, Gaussian(2.0), ridge=1e-3)
    np.testing.assert_allclose(mean(places)[:, 0], np.sin(2 * places[:, 0]), atol=0.1)
    functions = conditional_mean(uniform(points), lambda z: z[:, 0], lambda z: z[:, 1:], Gaussian(2.0), ridge=1e-3)
    np.testing.assert_array_equal(functions(places), mean(places))
    assert np.abs(mean(np.array([[50.0]]))).max() < 1e-9  # far from all inputs


def test_small_ridges_and_large_ones(rng):
    points = rng.normal(size=(40, 2))
    near = conditional_mean(uniform(points), 0, 1, Laplacian(3.0), ridge=1e-11)
    np.testing.assert_allclose(near(points[:, :1]), points[:, 1:], atol=1e-4)  # it interpolates
    far = conditional_mean(uniform(points), 0, 1, KERNEL, ridge=1e6)
    assert np.abs(far(points[:, :1])).max() < 1e-5


WIDE = uniform(np.zeros((MAX_INPUTS + 1, 2)))
SIGNED = WeightedSample(SAMPLE.points, np.array([0.5, 0.6, 0.1, -0.2]))
BAD_REGRESSIONS = [
    (SIGNED, 0, 1, 0.1, r"weights that are not negative, and the smallest is -0\.2; adaptive_weights\(.*signed=False"),
    (WeightedSample(SAMPLE.points, np.zeros(4)), 0, 1, 0.1, "weights: all of them are 0"),
    (WIDE, 0, 1, 0.1, "at most 10000 points, got 10001: synthesise fewer"),
    (SAMPLE, 2, 1, 0.1, "inputs: a column must be at most 1, got 2"),
    (SAMPLE, 0, [0, -1], 0.1, "targets: a column must be at least 0, got -1"),
    (SAMPLE, [], 1, 0.1, "inputs: expected a column or several, got none"),
    (SAMPLE, 0, "age", 0.1, "targets: a column must be a whole number"),
    (SAMPLE, 0, lambda z: z[1:], 0.1, r"targets: expected values \[n\] or \[n, d'\] with n = 4"),
    (SAMPLE, lambda z: np.log(z - z), 1, 0.1, "inputs: the value of point 0 is NaN or infinite"),
    (SAMPLE, 0, 1, 0, "ridge must be positive and finite, got 0"),
    (SAMPLE, 0, 1, np.nan, "ridge must be positive and finite, got nan"),
    (SAMPLE, 0, 1, "small", "ridge must be a number"),
    (uniform(np.ones((4, 2))), 0, 1, 1e-30, "ridge: 1e-30 is too small for 4 points in float64"),
    (SAMPLE.points, 0, 1, 0.1, "expected a WeightedSample, got a ndarray"),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("sample", "inputs", "targets", "ridge", "message"), BAD_REGRESSIONS, ids=[case[-1] for case in BAD_REGRESSIONS]
)
def test_bad_regressions(sample, inputs, targets, ridge, message):
    with pytest.raises(ValueError, match=message) as error:
        conditional_mean(sample, inputs, targets, KERNEL, ridge=ridge)
    assert "\n" not in str(error.value)


def test_bad_places(rng):
    mean = conditional_mean(SAMPLE, 0, 1, KERNEL, ridge=0.1)
    with pytest.raises(ValueError, match="x: expected 1 columns, got 2"):
        mean(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="x: row 1 is NaN or infinite"):
        mean(np.array([[0.0], [np.nan]]))
