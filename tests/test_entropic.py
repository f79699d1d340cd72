import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from kme_jax import FourierMap, Gaussian, PrivacyBudget, SubspaceMap, mean_embedding, perturb
from kme_jax._numerics.precision import float64
from kme_jax.synthesis import (
    EntropicLeastSquares,
    adaptive_weights,
    adaptive_weights_batch,
    closed_form_weights,
    entropic,
    uniform,
)
from kme_jax.synthesis.entropic import EntropicBatch
from tests import compiled


def _primal(features, target, prior, penalty, weights):
    relative = scipy.special.rel_entr(weights, prior).sum()
    return 0.5 * np.sum((weights @ features - target) ** 2) + penalty * relative


def _problem(rng, num_weights=9, num_features=4):
    features = rng.normal(size=(num_weights, num_features))
    target = rng.dirichlet(np.ones(num_weights)) @ features + 0.3 * rng.normal(size=num_features)
    return features, target


@pytest.mark.parametrize("penalty", [10.0, 0.3, 1e-2])
def test_agrees_with_an_independent_solver(penalty, rng):
    features, target = _problem(rng)
    prior = np.full(9, 1 / 9)
    with float64():
        fit = EntropicLeastSquares(features, target).solve(penalty, 1e-14)
    expected = scipy.optimize.minimize(
        lambda w: _primal(features, target, prior, penalty, np.maximum(w, 1e-12)),
        prior,
        method="SLSQP",
        bounds=[(1e-12, 1)] * 9,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    assert fit.report.converged
    assert fit.weights.sum() == pytest.approx(1, abs=1e-12)
    assert fit.weights.min() > 0
    value = _primal(features, target, prior, penalty, fit.weights)
    assert value == pytest.approx(fit.report.objective[-1], rel=1e-10)
    assert value <= expected.fun + 1e-9
    np.testing.assert_allclose(fit.weights, expected.x, atol=2e-4)


def test_a_vanishing_penalty_projects_onto_the_convex_hull(rng):
    features, target = _problem(rng, 30, 5)
    with float64():
        problem, fit = EntropicLeastSquares(features, target), None
        for penalty in 10.0 ** -np.arange(9):
            fit = problem.solve(penalty, 1e-16, start=fit)
    # Non-negative least squares with a heavily weighted row for the sum.
    stacked = np.vstack([features.T, 1e4 * np.ones(30)])
    expected, _ = scipy.optimize.nnls(stacked, np.append(target, 1e4))
    np.testing.assert_allclose(fit.weights @ features, expected @ features, atol=1e-5)


@pytest.mark.parametrize(
    "max_steps", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_the_gap_holds_when_cut_short(max_steps, rng):
    features, target = _problem(rng)
    with float64():
        problem = EntropicLeastSquares(features, target)
        early, late = problem.solve(0.01, 0.0, max_steps=max_steps), problem.solve(0.01, 1e-20)
    assert not early.report.converged
    assert late.report.converged
    suboptimality = _primal(features, target, np.full(9, 1 / 9), 0.01, early.weights) - late.report.objective[-1]
    assert 0 < suboptimality <= early.report.gap
    assert 0.5 * np.sum(((early.weights - late.weights) @ features) ** 2) <= early.report.gap


def test_degrees_of_freedom_are_the_divergence_of_the_fit(rng):
    features, target = _problem(rng, 12, 4)
    penalty, step = 0.05, 1e-5
    with float64():

        def fitted(shift):
            return EntropicLeastSquares(features, target + shift).solve(penalty, 1e-22).weights @ features

        exact = sum((fitted(step * e) - fitted(-step * e)) @ e for e in np.eye(4)) / (2 * step)
        problem = EntropicLeastSquares(features, target)
        fit = problem.solve(penalty, 1e-22)
        estimate = problem.degrees_of_freedom(fit)
        problem.batch.probes = jnp.pad(2 * jnp.eye(4), [(0, 0), (0, 124)])  # of which the mean is the trace
        assert problem.degrees_of_freedom(fit) == pytest.approx(exact, rel=1e-5)
    assert abs(estimate - exact) < 4 * np.sqrt(2 * exact / 16)


def _private(points, rows, seed, epsilon, gamma=0.2):
    subspace = SubspaceMap.from_points(Gaussian(gamma), points)
    embedding = mean_embedding(subspace, rows)
    return embedding, perturb(jax.random.key(seed), embedding, PrivacyBudget(epsilon, 1e-6))


@pytest.mark.long
def test_the_risk_estimate_is_unbiased(rng):
    """Of one estimator with a fixed penalty, over draws of the noise."""
    points, rows = rng.normal(size=(25, 2)), rng.normal(0.5, 0.7, (400, 2))
    embedding, noisy = _private(points, rows, 0, 0.5)
    alpha, scale = embedding.coordinates, noisy.mechanism.scale
    with float64():
        features = np.asarray(compiled.features(noisy.feature_map, jnp.asarray(points)))
        estimates, errors = [], []
        for draw in rng.normal(size=(200, len(alpha))):
            problem = EntropicLeastSquares(features, alpha + scale * draw)
            fit = problem.solve(3 * scale**2, 1e-16)
            fitted = fit.weights @ features
            degrees = problem.degrees_of_freedom(fit)
            distance = np.sum((fitted - alpha - scale * draw) ** 2)
            estimates.append(distance - len(alpha) * scale**2 + 2 * scale**2 * degrees)
            errors.append(np.sum((fitted - alpha) ** 2))
    difference = np.subtract(estimates, errors)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(200)
    assert difference.std() / np.sqrt(200) < 0.15 * np.mean(errors)  # so the test could have failed


@pytest.mark.parametrize(
    ("num_points", "epsilon"),
    [(5, 2.0), (5, 0.05), (60, 0.05), (60, 1.0)],
)
@pytest.mark.long
def test_adaptive_weights_are_about_as_good_as_the_better_of_two(num_points, epsilon, rng):
    rows = rng.normal(0.3, 0.8, (2000, 2))
    points = rows[:num_points]
    squares = {"adaptive": [], "closed_form": [], "uniform": []}
    for seed in range(20):
        embedding, noisy = _private(points, rows, seed, epsilon)
        with float64():
            features = np.asarray(compiled.features(noisy.feature_map, jnp.asarray(points)))
        samples = {
            "adaptive": adaptive_weights(noisy)[0],
            "closed_form": closed_form_weights(noisy),
            "uniform": uniform(points),
        }
        for name, sample in samples.items():
            squares[name].append(np.sum((sample.weights @ features - embedding.coordinates) ** 2))
    risk = {name: np.mean(values) for name, values in squares.items()}
    # A choice by a noisy estimate costs about the variance of one coordinate.
    assert risk["adaptive"] <= min(risk["closed_form"], risk["uniform"]) + noisy.mechanism.variance


@pytest.mark.parametrize("copies", [1, 5])
def test_a_single_public_point(copies, rng):
    rows = rng.normal(size=(500, 2))
    _, noisy = _private(np.repeat(rows[:1], copies, axis=0), rows, 0, 1.0)
    sample, report = adaptive_weights(noisy)
    assert {candidate.kind for candidate in report.candidates} == {"uniform", "signed"}
    assert np.isfinite(sample.weights).all()
    assert report.chosen.kind == "signed"  # the length of the embedding is not 1
    assert report.chosen.share == 1
    assert sample.weights.sum() == pytest.approx(noisy.coordinates[0], rel=1e-3)


def test_weights_that_did_not_converge_are_no_candidates(rng, monkeypatch):
    rows = rng.normal(size=(500, 2))
    _, noisy = _private(rows[:30], rows, 0, 0.3)
    solve = EntropicBatch.solve
    monkeypatch.setattr(EntropicBatch, "solve", lambda *a, **k: solve(*a, **k, max_steps=0))
    _, report = adaptive_weights(noisy)
    assert {candidate.kind for candidate in report.candidates} == {"uniform", "signed"}


def test_adaptive_reports_what_it_tried(rng):
    rows = rng.normal(size=(500, 2))
    _, noisy = _private(rows[:40], rows, 0, 0.3)
    calls = []
    sample, report = adaptive_weights(noisy, progress=lambda *done: calls.append(done))
    assert report.chosen in report.candidates
    assert report.chosen.risk == min(candidate.risk for candidate in report.candidates)
    assert report.chosen.share == max(candidate.share for candidate in report.candidates)
    assert sum(candidate.share for candidate in report.candidates) == pytest.approx(1)
    larger = [candidate for candidate in report.candidates if candidate.share]
    ratio = larger[0].share / larger[-1].share
    assert ratio == pytest.approx(np.exp((larger[-1].risk - larger[0].risk) / (4 * noisy.mechanism.variance)))
    assert {candidate.kind for candidate in report.candidates} == {"uniform", "signed", "probability"}
    assert calls[-1][0] == calls[-1][1]
    assert sample.mechanism is noisy.mechanism
    assert sample.weights.sum() == pytest.approx(1)
    assert sample.weights.min() >= 0
    penalties = [c.penalty for c in report.candidates if c.kind == "probability"]
    degrees = [c.degrees_of_freedom for c in report.candidates if c.kind == "probability"]
    assert penalties == sorted(penalties, reverse=True)
    assert degrees[0] < degrees[-1] <= noisy.feature_map.num_features


def test_bad_arguments(rng):
    features, target = _problem(rng)
    with float64():
        with pytest.raises(ValueError, match="do not fit"):
            EntropicLeastSquares(features, target[:2])
        with pytest.raises(ValueError, match="penalty must be positive"):
            EntropicLeastSquares(features, target).solve(0.0, 1e-6)
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(1.0), 8, 2)
    noisy = perturb(jax.random.key(0), mean_embedding(fourier, rng.normal(size=(9, 2))), PrivacyBudget(1.0, 1e-6))
    with pytest.raises(ValueError, match="FourierMap has no points: give the points"):
        adaptive_weights(noisy)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_conjugate_gradients_solve_several_systems(preconditioned, rng):
    root = rng.normal(size=(2, 6, 6))
    matrices, right = np.eye(6) + root @ root.transpose(0, 2, 1), rng.normal(size=(2, 3, 6))
    right[0, 1] = 0
    near = np.linalg.inv(matrices + 0.1 * np.eye(6)) if preconditioned else np.stack([np.eye(6)] * 2)
    with float64():
        x, steps = entropic.conjugate_gradients(
            lambda v: v @ jnp.asarray(matrices), lambda v: v @ jnp.asarray(near), jnp.asarray(right), 1e-10
        )
    np.testing.assert_allclose(x, right @ np.linalg.inv(matrices), atol=1e-8)
    assert steps <= (8 if preconditioned else 12)


@pytest.mark.long
def test_a_batch_is_each_by_itself(rng):
    """Noise of several sizes and draws: neither the order nor the company of an embedding matters."""
    rows = rng.normal(size=(500, 2))
    subspace = SubspaceMap.from_points(Gaussian(0.2), rows[:150])
    embedding = mean_embedding(subspace, rows)
    noisy = [
        perturb(jax.random.key(seed), embedding, PrivacyBudget(epsilon, 1e-6))
        for epsilon in (0.03, 0.3, 3.0)
        for seed in range(2)
    ]
    calls = []
    together = adaptive_weights_batch(noisy, progress=lambda *done: calls.append(done))
    assert calls[-1][0] == calls[-1][1]
    lengths = set()
    for one, (sample, report) in zip(noisy, together, strict=True):
        alone, own = adaptive_weights(one)
        np.testing.assert_allclose(sample.weights, alone.weights, rtol=1e-6, atol=1e-9)
        assert report.chosen.penalty == pytest.approx(own.chosen.penalty)
        assert sample.mechanism is one.mechanism
        lengths.add(len(report.candidates))
    assert len(lengths) > 1  # some were done before others
    backwards = adaptive_weights_batch(noisy[::-1])[::-1]
    for (sample, _), (other, _) in zip(together, backwards, strict=True):
        np.testing.assert_allclose(sample.weights, other.weights, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="expected one or more"):
        adaptive_weights_batch([])
    with pytest.raises(ValueError, match="expected the same feature map"):
        adaptive_weights_batch([noisy[0], _private(rows[:5], rows, 0, 1.0)[1]])


@pytest.mark.long
@pytest.mark.parametrize(("num_weights", "num_features"), [(9, 4), (128, 128), (130, 40)])
def test_what_is_filled_up_adds_nothing(num_weights, num_features, rng):
    """Features of zeros and points of weight 0, whatever their features: the solution is that of plain NumPy."""
    features, target = _problem(rng, num_weights, num_features)
    penalty = 0.3
    sizes = entropic.padded_sizes(num_weights, num_features)
    filled = rng.normal(size=sizes)
    filled[:num_weights, :num_features] = features
    filled[:, num_features:] = 0
    with float64():
        batch = EntropicBatch(filled, target[None, :], num_weights)
        fit = batch.solve(penalty, np.asarray([1e-20]))
        weights, residual = batch.weights(fit)[0], batch.residuals(fit)[0]
        degrees = batch.degrees_of_freedom(fit)[0]
        probes = np.asarray(batch.probes)[:, :num_features]
    np.testing.assert_allclose(residual, target - weights @ features, atol=1e-9)
    expected = np.exp(features @ residual / penalty)
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-7)
    covariance = (features.T * weights) @ features - np.outer(weights @ features, weights @ features)
    share = np.eye(num_features) - np.linalg.inv(np.eye(num_features) + covariance / penalty)
    assert degrees == pytest.approx(np.einsum("kf,fg,kg->", probes, share, probes) / 16, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("invert", [False, True])
def test_both_ways_to_precondition_find_the_same(invert, rng):
    """Eigenvectors of the covariance under the prior, or inverses."""
    features, target = _problem(rng, 60, 20)
    with float64():
        batch, fit = EntropicBatch(features, target[None, :], 60, invert=invert, always_inverted=0), None
        for penalty in (1.0, 0.1, 0.01):
            fit = batch.solve(penalty, np.asarray([1e-20]), start=fit)
            batch.degrees_of_freedom(fit)
        weights, residual = batch.weights(fit)[0], batch.residuals(fit)[0]
    assert fit.converged.all()
    assert fit.inverses is not None  # they come to pay
    np.testing.assert_allclose(residual, target - weights @ features, atol=1e-9)
    expected = np.exp(features @ residual / 0.01)
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6, atol=1e-12)


@pytest.mark.long
def test_a_small_penalty_is_reached_from_afar(rng):
    """Nearly parallel features, and a penalty at which Newton's method from uniform weights gets nowhere."""
    points, rows = rng.normal(size=(100, 2)), 0.3 * rng.normal(size=(500, 2)) + rng.choice([-1, 0, 1], (500, 1))
    frequencies = 1.5 * rng.normal(size=(2, 400))

    def features(x):
        return np.concatenate([np.cos(x @ frequencies), np.sin(x @ frequencies)], axis=1) / 20

    projected = entropic.project_features(features(points), features(rows).mean(axis=0))
    with float64():
        problem = EntropicLeastSquares(*projected)
        assert not problem.solve(1e-10, 1e-12).report.converged
        fit = problem.solve_from_afar(1e-10, 1e-12)
    assert fit.report.converged
    assert fit.report.gap <= 1e-12
    # Of the convex hull, whose nearest point is a non-negative least-squares problem.
    system = np.concatenate([(projected[0] - projected[1]).T, np.ones((1, 100))])
    nearest = scipy.optimize.nnls(system, np.append(np.zeros(len(projected[1])), 1.0))[0]
    best = np.linalg.norm((nearest / nearest.sum()) @ projected[0] - projected[1])
    assert np.linalg.norm(fit.weights @ projected[0] - projected[1]) <= best + 1e-5
