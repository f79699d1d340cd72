"""The release of a function at fixed points: its noise, its values and what it refuses."""

import jax
import numpy as np
import pytest

from kme_jax import Gaussian, PrivacyBudget, algorithm1, mean_embedding, noisy_function
from kme_jax.feature_maps import SubspaceMap
from kme_jax.privacy import add_noise, gaussian_noise_multiplier

KERNEL, BUDGET = Gaussian(2.0), PrivacyBudget(1.0, 1e-6)
POINTS = np.linspace(-2, 2, 5)[:, None]


def _rows(num_rows=500):
    return np.random.default_rng(0).normal(size=(num_rows, 1))


def _gram(x, z):
    return np.exp(-2.0 * np.square(x - z.T))


def test_values_are_the_function_plus_noise():
    """With hardly any noise, the values are means of the kernel, and later values are within the stated bias."""
    rows = _rows()
    function = noisy_function(rows, KERNEL, POINTS, budget=PrivacyBudget(1e6, 1e-6))
    assert function.mechanism.secure
    np.testing.assert_array_equal(function.points, POINTS)
    np.testing.assert_allclose(function.values, _gram(POINTS, rows).mean(axis=1), atol=1e-5)
    later = np.linspace(-3, 3, 25)[:, None]
    values = function.at(later)
    private = _gram(later, rows).mean(axis=1)
    missed = np.abs(values.values - private)
    assert (missed <= values.largest_bias + 1e-5).all()
    assert missed.max() > 0.01
    here = function.at(POINTS)
    np.testing.assert_allclose(here.values, function.values, atol=1e-12)
    assert here.largest_bias.max() < 1e-6


@pytest.mark.slow
def test_the_noise_has_the_covariance_of_the_kernel():
    function = noisy_function(_rows(), KERNEL, POINTS, budget=BUDGET, key=jax.random.key(0))
    sigma = np.sqrt(2) * gaussian_noise_multiplier(BUDGET) / 500
    np.testing.assert_allclose(function.covariance, sigma**2 * _gram(POINTS, POINTS), rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(np.square(function.at(POINTS).standard_error), np.diag(function.covariance), rtol=1e-6)
    keys = jax.random.split(jax.random.key(1), 30)
    values = [noisy_function(_rows(), KERNEL, POINTS, budget=BUDGET, key=key).values for key in keys]
    whitened = np.linalg.solve(np.linalg.cholesky(function.covariance), (values - _gram(POINTS, _rows()).mean(1)).T)
    np.testing.assert_allclose(whitened @ whitened.T / len(keys), np.eye(5), atol=1.2)
    assert "NOT PRIVATE" in repr(function.mechanism)


def test_many_draws_have_the_covariance_of_the_kernel():
    """100 000 draws at 50 points: 99 % of the entries are within three standard errors, and all within six."""
    points, runs = np.linspace(-6, 6, 50)[:, None], 100_000
    function = noisy_function(_rows(), KERNEL, points, budget=BUDGET)
    mechanism, size = function.mechanism, len(function.noisy.coordinates)
    noise = np.asarray(add_noise(jax.random.key(1), np.zeros(runs * size, np.float32), mechanism.scale))
    draws = noise.reshape(runs, size) @ _features(points).T
    expected, measured = mechanism.scale**2 * _gram(points, points), draws.T @ draws / runs
    variances = np.diag(expected)
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / runs)
    deviations = np.abs(measured - expected) / errors
    assert np.mean(deviations < 3) > 0.99
    assert deviations.max() < 6
    np.testing.assert_allclose(function.covariance, expected, atol=1e-3 * variances.max())


def test_it_is_algorithm_1():
    """Closed-form weights w of algorithm 1 are K⁻¹ times the values, for the same key."""
    key = jax.random.key(3)
    values = noisy_function(_rows(), KERNEL, POINTS, budget=BUDGET, key=key).values
    sample = algorithm1(key, _rows(), KERNEL, POINTS, budget=BUDGET)
    np.testing.assert_allclose(_gram(POINTS, POINTS) @ sample.weights, values, rtol=1e-4, atol=1e-6)


def test_no_row_moves_the_values_by_more_than_the_noise_is_made_for():
    """In the norm of the noise, (v − v′)ᵀ K⁻¹ (v − v′), the far ends of the points are a diameter apart."""
    points = np.array([[-9.0], [0.0], [9.0]])
    subspace = SubspaceMap.from_points(KERNEL, points)
    inverse = np.linalg.inv(_gram(points, points))
    others = np.zeros((19, 1))
    moved = []
    for row in (-9.0, 0.0, 0.1, 9.0, np.nan):
        rows = np.concatenate([others, [[row]]])
        embedding = mean_embedding(subspace, rows)
        moved.append(_features(points) @ np.asarray(embedding.coordinates))
    distances = [np.sqrt((v - w) @ inverse @ (v - w)) * 20 for v in moved for w in moved]
    assert 0.95 * subspace.diameter < max(distances) <= subspace.diameter


def _features(points):
    with jax.enable_x64(True):
        return np.asarray(SubspaceMap.from_points(KERNEL, points)(points))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": np.zeros((3, 2))}, "rows: expected 2 columns"),
        ({"points": np.full((3, 1), np.inf)}, "points"),
        ({"rows": np.zeros(4)}, "rows: expected shape"),
        ({"budget": PrivacyBudget(1.0, 1e-6, "add_remove")}, "relation"),
        ({"budget": PrivacyBudget(1.0, 0.5)}, "delta must be below 1/N"),
        ({"budget": PrivacyBudget(1.0, 0.0), "key": jax.random.key(0)}, "delta"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"rows": _rows(), "kernel": KERNEL, "points": POINTS, "budget": BUDGET} | change
    with pytest.raises(ValueError, match=message) as error:
        noisy_function(**arguments)
    assert "\n" not in str(error.value)


def test_later_points_are_checked():
    function = noisy_function(_rows(), KERNEL, POINTS, budget=BUDGET, key=jax.random.key(0))
    with pytest.raises(ValueError, match="points"):
        function.at(np.zeros((3, 2)))
