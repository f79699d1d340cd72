import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from kme_jax import (
    Gaussian,
    MeanEmbedding,
    PrivacyBudget,
    SubspaceMap,
    WeightedSample,
    closed_form_weights,
    l1_ball_weights,
    perturb,
    uniform,
)
from kme_jax.synthesis import l1_ball_least_squares
from tests import reference


def _private(points, seed, epsilon, gamma=0.5, rows=None):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, points.shape[1])) if rows is None else rows
    subspace = SubspaceMap.from_points(Gaussian(gamma), points)
    alpha, *_ = reference.algorithm1(rows, points, gamma, np.zeros(len(points)))
    return perturb(jax.random.key(seed), MeanEmbedding(subspace, alpha, len(rows)), PrivacyBudget(epsilon, 1e-3))


def _objective(points, weights, coordinates, subspace, gamma=0.5):
    gram = reference.gaussian_gram(points, points, gamma)
    basis, _ = reference.gram_schmidt(gram, subspace.tolerance)
    return 0.5 * np.sum((coordinates - basis @ gram @ weights) ** 2)


def test_closed_form_represents_the_noisy_embedding(rng):
    points = np.concatenate([rng.normal(size=(20, 2))] * 2)
    noisy = _private(points, 3, 1.0)
    sample = closed_form_weights(noisy)
    assert sample.weights.shape == (40,)
    assert _objective(points, sample.weights, noisy.coordinates, noisy.feature_map) < 1e-18
    assert np.count_nonzero(sample.weights) == noisy.feature_map.num_features
    assert sample.mechanism == noisy.mechanism


@pytest.mark.parametrize("radius", [1.0, 2.5])
def test_l1_ball_agrees_with_an_independent_solver(radius, rng):
    points = rng.normal(size=(12, 2))
    noisy = _private(points, 4, 0.5)
    sample, report = l1_ball_weights(noisy, radius=radius, tolerance=1e-10)
    gram = reference.gaussian_gram(points, points, 0.5)
    basis, _ = reference.gram_schmidt(gram, 1e-5)
    matrix = basis @ gram

    def objective(split):  # w = p − n with p, n ≥ 0
        return 0.5 * np.sum((noisy.coordinates - matrix @ (split[:12] - split[12:])) ** 2)

    solution = minimize(
        objective,
        np.full(24, radius / 48),
        method="SLSQP",
        bounds=[(0, None)] * 24,
        constraints={"type": "ineq", "fun": lambda split: radius - split.sum()},
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    assert report.converged
    assert report.objective[-1] == pytest.approx(solution.fun, abs=1e-8)
    assert report.objective[-1] <= solution.fun + 1e-9
    assert np.abs(sample.weights).sum() <= radius + 1e-12


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), radius=st.floats(1, 5), epsilon=st.floats(0.05, 20))
def test_l1_ball_properties(seed, radius, epsilon):
    points = np.random.default_rng(seed).normal(size=(16, 2))
    noisy = _private(points, seed, epsilon)
    sample, report = l1_ball_weights(noisy, radius=radius, tolerance=1e-7)
    assert np.abs(sample.weights).sum() <= radius * (1 + 1e-12)
    assert report.gap >= -1e-12
    value = _objective(points, sample.weights, noisy.coordinates, noisy.feature_map)
    assert value == pytest.approx(report.objective[-1], abs=1e-8)
    # The gap is a certificate: no feasible weights do better than it says.
    rng = np.random.default_rng(seed + 1)
    for _ in range(20):
        other = rng.laplace(size=16)
        other *= rng.uniform() * radius / np.abs(other).sum()
        assert _objective(points, other, noisy.coordinates, noisy.feature_map) >= value - report.gap - 1e-8


def test_a_large_ball_gives_the_closed_form(rng):
    points = 2 * rng.normal(size=(10, 2))
    noisy = _private(points, 5, 5.0)
    free = closed_form_weights(noisy).weights
    sample, report = l1_ball_weights(noisy, radius=2 * np.abs(free).sum(), tolerance=1e-6)
    assert report.converged
    assert report.objective[-1] < 1e-9
    np.testing.assert_allclose(sample.weights, free, rtol=1e-2)


def test_a_solver_that_is_cut_short_says_so(rng):
    _, report = l1_ball_weights(_private(rng.normal(size=(20, 2)), 6, 0.1), tolerance=1e-15, max_solves=1)
    assert not report.converged
    assert len(report.objective) == 1
    assert report.gap > 1e-15


@pytest.mark.parametrize("radius", [0.99, math.nan])
def test_a_ball_that_is_too_small_is_refused(radius, rng):
    with pytest.raises(ValueError, match="radius must be at least 1"):
        l1_ball_weights(_private(rng.normal(size=(5, 2)), 7, 1.0), radius=radius)


def test_uniform_and_expectation(rng):
    points = rng.normal(size=(8, 3))
    sample = uniform(points)
    np.testing.assert_allclose(sample.expectation(lambda z: z), points.mean(axis=0))
    np.testing.assert_allclose(sample.expectation(lambda z: z[:, 0] > 0), (points[:, 0] > 0).mean())
    for wrong in (lambda z: z[:1], lambda z: 1.0):
        with pytest.raises(ValueError, match="expected one value for each of"):
            sample.expectation(wrong)


def test_resampling_keeps_the_expected_counts(rng):
    points, weights = np.arange(30.0)[:, None], rng.dirichlet(np.full(30, 0.3))
    sample = WeightedSample(points, weights)
    total = np.zeros(30)
    for seed in range(200):
        rows = sample.quantise(100, seed)
        counts = np.bincount(rows[:, 0].astype(int), minlength=30)
        assert rows.shape == (100, 1)
        assert (np.abs(counts - 100 * weights) < 1).all()
        total += counts
    np.testing.assert_allclose(total / 200, 100 * weights, atol=0.15)
    np.testing.assert_array_equal(sample.quantise(7, 3), sample.quantise(7, 3))


def test_only_probability_weights_can_be_quantised(rng):
    points = rng.normal(size=(3, 2))
    with pytest.raises(ValueError, match="only probability weights can be quantised"):
        WeightedSample(points, np.array([1.5, -0.6, 0.1])).quantise(10, 0)
    with pytest.raises(ValueError, match=r"sum to 0\.9"):
        WeightedSample(points, np.full(3, 0.3)).quantise(10, 0)
    with pytest.raises(ValueError, match="num_rows must be at least 1"):
        uniform(points).quantise(0, 0)
    with pytest.raises(ValueError, match="num_rows must be a whole number, got 'a'"):
        uniform(points).quantise("a", 0)


def test_nearly_equal_features_end_soon():
    """Thirty float32 features that are nearly a dozen: rounding hides the optimum of the Lasso, but not of the ball."""
    rng = np.random.default_rng(1)
    places = rng.uniform(0, 1, 12)[rng.integers(0, 12, 30)] + 0.01 * rng.normal(size=30)
    frequencies = 10 * rng.normal(size=500)

    def features(x):
        angles = x[:, None] * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(500)

    target = features(rng.beta(2, 5, 1000)).mean(axis=0) + 1e-4 * rng.normal(size=1000)
    arguments = features(places).astype(np.float32), target.astype(np.float32)
    weights, report = l1_ball_least_squares(*arguments, tolerance=4e-8)
    assert report.converged
    assert np.abs(weights).sum() <= 1 + 1e-9
    assert report.num_iterations < 30_000
