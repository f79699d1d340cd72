"""Noisy counts of cells and of segments as one estimate, and the noise of its sums."""

import numpy as np
import pytest

from kme_jax.table.cells import CellNoise, refined

SEGMENTS = np.repeat([0, 1, 2], [5, 3, 1])


def test_refined_counts_are_the_least_squares_estimates(rng):
    counts, of_segments = rng.normal(size=9), rng.normal(size=3)
    member = np.eye(3)[SEGMENTS]
    precision = np.eye(9) / 2.0**2 + member @ member.T / 0.7**2
    best = np.linalg.solve(precision, counts / 2.0**2 + member @ of_segments / 0.7**2)
    found, noise = refined(counts, 2.0, SEGMENTS, of_segments, 0.7)
    np.testing.assert_allclose(found, best, rtol=1e-12)
    np.testing.assert_allclose(noise.covariance(np.eye(9)), np.linalg.inv(precision), atol=1e-12)


def test_classes_are_refined_one_by_one(rng):
    counts, of_segments = rng.normal(size=(4, 9)), rng.normal(size=(4, 3))
    found, _ = refined(counts, 1.0, SEGMENTS, of_segments, 0.5)
    for one, row, sums in zip(found, counts, of_segments, strict=True):
        np.testing.assert_allclose(one, refined(row, 1.0, SEGMENTS, sums, 0.5)[0], rtol=1e-12)


@pytest.mark.parametrize("noise", [CellNoise(3.0), CellNoise(3.0, SEGMENTS, np.array([2.0, 4.0, 1.0]))])
def test_the_noise_of_sums_is_that_of_their_covariance(rng, noise):
    covariance = noise.covariance(np.eye(9))
    values = rng.normal(size=(2, 5, 9))
    expected = np.sqrt(np.einsum("abi,ij,abj->ab", values, covariance, values))
    np.testing.assert_allclose(noise.of(values), expected, rtol=1e-12)
    groups = np.array([0, 0, 1, 1, 1, 2, 0, 3, 3])
    of_groups = np.eye(4)[groups].T
    np.testing.assert_allclose(noise.of_groups(groups), noise.of(of_groups), rtol=1e-12)
    np.testing.assert_allclose(noise.times(2.5).of(values), 2.5 * noise.of(values), rtol=1e-12)
    np.testing.assert_allclose(noise.covariance_of_groups(groups), noise.covariance(of_groups), rtol=1e-12)
    some, start, stop = rng.random(9) < 0.7, np.array([0, 2, 4, 8, 3]), np.array([9, 7, 5, 9, 3])
    of_ranges = [some & (np.arange(9) >= a) & (np.arange(9) < b) for a, b in zip(start, stop, strict=True)]
    np.testing.assert_allclose(noise.of_ranges(some, start, stop), noise.of(np.array(of_ranges) * 1.0), atol=1e-12)
    kept = SEGMENTS != 1
    np.testing.assert_allclose(noise.on(kept).of(values[..., kept]), noise.of(values * kept), rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_no_noise_is_too_large_or_too_small(rng):
    for _ in range(200):
        sigma, spread = 10 ** rng.uniform(-6, 16, 2)
        counts, of_segments = rng.uniform(0, 1e9, 9), rng.uniform(0, 1e9, 3)
        found, noise = refined(counts, sigma, SEGMENTS, of_segments, spread)
        assert np.isfinite(found).all()
        assert np.isfinite(noise.of(rng.normal(size=9)))
        # Neither the sum of a segment nor a cell has more noise than its own count.
        assert (
            noise.of_groups(SEGMENTS) <= np.minimum(spread, np.sqrt(np.bincount(SEGMENTS)) * sigma) * (1 + 1e-9)
        ).all()
        assert (noise.of(np.eye(9)) <= sigma * (1 + 1e-9)).all()
