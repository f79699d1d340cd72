import numpy as np
import pytest
from scipy.optimize import minimize

from kme_jax.table.histogram import project_to_simplex, smooth, threshold


def test_projection_is_the_nearest_point(rng):
    for size in (1, 2, 7):
        values = 3 * rng.normal(size=size)
        found = project_to_simplex(values, 2.5)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(2.5)
        constraint = {"type": "eq", "fun": lambda x: x.sum() - 2.5}
        best = minimize(
            lambda x, v=values: np.sum((x - v) ** 2),
            np.full(size, 2.5 / size),
            bounds=[(0, None)] * size,
            constraints=constraint,
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(found, best.x, atol=1e-6)


def test_projection_along_the_last_axis(rng):
    values = rng.normal(size=(3, 4, 9))
    found = project_to_simplex(values, 1.0)
    np.testing.assert_allclose(found[1, 2], project_to_simplex(values[1, 2], 1.0))


def _error(estimate, truth):
    return np.sqrt(np.mean(np.square(estimate - truth)))


@pytest.mark.parametrize("size", [5, 64, 300, 1021])
def test_smoothing_finds_a_constant(rng, size):
    truth, sigma = np.full(size, 40.0), 10.0
    noisy = truth + sigma * rng.normal(size=(20, size))
    assert _error(smooth(noisy, sigma), truth) < (0.2 if size > 100 else 0.7) * sigma


def test_smoothing_keeps_what_stands_out(rng):
    truth, sigma = 100 * np.exp(-(((np.arange(200) - 80) / 30) ** 2)), 10.0
    truth[[40, 120]] = 1000.0
    estimate = smooth(truth + sigma * rng.normal(size=(50, 200)), sigma)
    assert _error(estimate[:, [40, 120]], truth[[40, 120]]) < 1.3 * sigma
    assert _error(estimate, truth) < 0.7 * sigma


def test_smoothing_without_noise_changes_nothing(rng):
    values = rng.normal(size=37)
    np.testing.assert_allclose(smooth(values, 0.0), values)


def test_thresholds_keep_what_stands_out(rng):
    truth, sigma = np.zeros(300), 5.0
    truth[::30] = 100.0
    noisy = truth + sigma * rng.normal(size=(10, 300))
    assert _error(threshold(noisy, sigma), truth) < 0.4 * sigma
    dense = truth + 50
    assert _error(threshold(dense + sigma * rng.normal(size=300), sigma), dense) < 1.2 * sigma
