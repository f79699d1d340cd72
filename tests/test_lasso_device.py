"""The Lasso for feature vectors on a GPU. These tests run its programs on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax._numerics.precision import float64
from kme_jax.synthesis import l1_ball_least_squares, lasso, lasso_device, lasso_path
from kme_jax.synthesis.interior_point import minimised_on_the_host


def _random(dtype, num_weights=200, num_features=80):
    """Random features with near-duplicates among them, on a device and on the host, and a target."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_weights, num_features)) / np.sqrt(num_features)
    features[1::3] = features[: len(features[1::3])] + 1e-4 * features[1::3]
    target = features.T @ rng.laplace(size=num_weights) / num_weights + 0.01 * rng.normal(size=num_features)
    return features.astype(dtype), target


def _smooth(num_points=300, num_features=200):
    """Float32 features of points so close to each other that their Gram matrix has a rank of about 30."""
    rng = np.random.default_rng(1)
    angles = np.outer(rng.uniform(-3, 3, size=num_points), rng.normal(size=num_features // 2))
    features = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(num_features / 2)
    target = features[:5].mean(axis=0) + 0.02 * rng.normal(size=num_features)
    return features.astype(np.float32), target


def _on_device(features):
    with float64():
        return jnp.asarray(features)


def _path(features, target, penalty, sizes, tolerance):
    problem = lasso.DeviceLeastSquares(_on_device(features), target)
    return list(lasso.solve_path(problem, penalty, sizes, tolerance))


def _check(features, target, penalty, sizes, tolerance):
    """Compares each solution with its optimality conditions and with the solver on the host."""
    allowed = tolerance * 0.5 * target @ target
    on_host = lasso_path(features, target, penalty, sizes, tolerance=tolerance)
    found = _path(features, target, penalty, sizes, tolerance)
    for (weights, report), (_, host), size in zip(found, on_host, sizes, strict=True):
        used = features[:size].astype(np.float64)
        residual = target - weights @ used
        correlation, norm = used @ residual, np.abs(weights).sum()
        primal = 0.5 * residual @ residual + penalty * norm
        shrunk = residual * min(1, penalty / np.abs(correlation).max())
        gap = primal - 0.5 * (target @ target - np.sum((target - shrunk) ** 2))
        assert report.converged
        assert report.objective[-1] == pytest.approx(primal, rel=1e-9)
        assert report.gap == pytest.approx(gap, abs=1e-12)
        assert gap <= allowed
        assert -host.gap <= host.objective[-1] - primal + 1e-12
        assert primal - host.objective[-1] <= allowed
        # Σ_m |w_m| (λ − sign(w_m) a_mᵀr) is a part of the gap, and all of it where |aᵀr| ≤ λ.
        assert penalty * norm - weights @ correlation <= allowed + 1e-12
    return found


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("penalty", "least", "most"), [(2e-2, 3, 40), pytest.param(1e-5, 80, 200, marks=pytest.mark.long)]
)
def test_growing_sizes_with_few_and_with_many_weights(dtype, penalty, least, most):
    features, target = _random(dtype)
    found = _check(features, target, penalty, [1, 20, 140, 200], 1e-6)
    assert least <= np.count_nonzero(found[-1][0]) <= most


@pytest.mark.parametrize("penalty", [pytest.param(1e-2, marks=pytest.mark.long), 1e-4])
def test_nearly_parallel_vectors(penalty):
    features, target = _smooth()
    found = _check(features, target, penalty, [3, 128, 129, 300], 1e-5)
    assert np.count_nonzero(found[-1][0]) <= 60  # most weights are zero, exactly


def test_a_working_set_that_grows_finds_all_weights(monkeypatch):
    features, target = _random(np.float32)
    sizes, solve = [], lasso.DeviceRows.solve

    def counted(rows, inner, weights, working, *arguments):
        sizes.append(len(working))
        return solve(rows, inner, weights, working, *arguments)

    monkeypatch.setattr(lasso.DeviceRows, "solve", counted)
    _check(features, target, 1e-5, [200], 1e-6)
    assert sizes[0] == 128
    assert sizes == sorted(sizes)
    assert len(sizes) > 1


@pytest.mark.long
def test_first_order_steps_for_large_working_sets():
    features, target = _random(np.float32)
    problem = lasso.DeviceLeastSquares(_on_device(features[::3]), target)
    expected = _path(features[::3], target, 1e-4, [67], 1e-9)[0][0]
    problem.solver.large = 10
    ((weights, report),) = lasso.solve_path(problem, 1e-4, [67], 1e-6)
    assert report.converged
    assert problem.solver.first_order_helps
    np.testing.assert_allclose(weights @ features[::3], expected @ features[::3], atol=1e-3)
    # Nearly parallel vectors need another method, which takes over.
    features, target = _smooth()
    problem = lasso.DeviceLeastSquares(_on_device(features), target)
    problem.solver.large = 10
    ((_, report),) = lasso.solve_path(problem, 1e-5, [300], 1e-9)
    assert report.converged
    assert not problem.solver.first_order_helps


def test_no_weight_is_needed():
    features, target = _random(np.float32)
    largest = np.abs(features @ target).max()
    for y, penalty in ((target, 1.001 * largest), (np.zeros_like(target), 0.1)):
        ((weights, report),) = _path(features, y, penalty, [200], 1e-7)
        assert not weights.any()
        assert report.converged
        assert report.num_iterations == 0
    ((weights, report),) = _path(np.zeros((10, 8)), np.ones(8), 0.1, [10], 1e-7)
    assert not weights.any()
    assert report.converged


def test_the_scale_of_the_vectors_does_not_matter():
    features, target = _random(np.float64)
    ((plain, _),) = _path(features, target, 1e-3, [200], 1e-9)
    ((scaled, report),) = _path(1e3 * features, 1e-3 * target, 1e-3, [200], 1e-9)
    assert report.converged
    np.testing.assert_allclose(1e6 * scaled @ features, plain @ features, atol=1e-4)


@pytest.mark.long
def test_features_on_a_gpu_choose_this_solver(monkeypatch):
    features, target = _smooth()
    assert lasso_device.fits(jnp.asarray(features)) == (jax.default_backend() == "gpu")
    assert not lasso_device.fits(features)
    used = []
    monkeypatch.setattr(lasso, "fits", lambda features: not used.append(features.shape))
    on_device = jnp.asarray(features)
    ((weights, _),) = lasso_path(on_device, target, 1e-3, [300])
    ((expected, _),) = lasso_path(features.astype(np.float64), target, 1e-3, [300])
    np.testing.assert_allclose(weights @ features, expected @ features, atol=1e-2)
    weights, report = l1_ball_least_squares(on_device, target, radius=0.5, tolerance=1e-8)
    expected, _ = l1_ball_least_squares(features.astype(np.float64), target, radius=0.5, tolerance=1e-8)
    assert used == [features.shape] * 2  # arrays in the host's memory are not asked about
    assert report.converged
    assert np.abs(weights).sum() <= 0.5 + 1e-12
    np.testing.assert_allclose(weights @ features, expected @ features, atol=1e-3)


@pytest.mark.long
def test_the_host_and_the_device_take_the_same_steps():
    features, target = _random(np.float64)
    features = features[:60]
    problem = features @ features.T, features @ target, 1e-3, float(target @ target)
    on_host, taken = minimised_on_the_host(*problem, 1e-8)
    rows = lasso_device.DeviceRows(_on_device(features))
    arguments = problem[1], np.zeros(60), np.arange(60), *problem[2:]
    on_device, taken_there = rows.solve(*arguments, 1e-8)
    assert taken == taken_there
    assert np.array_equal(on_host != 0, on_device != 0)
    np.testing.assert_allclose(on_device, on_host, rtol=0, atol=1e-8 * np.abs(on_host).max())


@pytest.mark.parametrize("share", [0.999, 1.001])  # of the λ from which on no weight is needed
def test_a_matrix_without_full_rank(share):
    vectors = np.repeat(np.eye(3), 4, axis=0)  # each feature vector comes four times
    inner = vectors @ np.array([3.0, -2.0, 0.1])
    penalty = 3 * share
    weights, _ = minimised_on_the_host(vectors @ vectors.T, inner, penalty, 13.01, 1e-10)
    np.testing.assert_allclose(weights @ vectors, [max(3 - penalty, 0), 0, 0], atol=1e-6)


def test_invalid_values():
    features = np.ones((4, 3), np.float32)
    features[2, 1] = np.nan
    with pytest.raises(ValueError, match="must be finite"):
        lasso.DeviceLeastSquares(jnp.asarray(features), np.ones(3))
    with pytest.raises(ValueError, match="do not fit"):
        lasso.DeviceLeastSquares(jnp.ones((4, 3)), np.ones(4))


def test_few_shapes_are_compiled():
    rows = lasso.DeviceRows(jnp.zeros((2500, 1)))
    sizes = [rows.working_size(count) for count in range(1, 2501)]
    assert sorted(set(sizes)) == [128, 256, 512, 1024, 1536, 2048, 2500]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
