import dataclasses
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.common.mixture import mixture, proposal
from kme_jax import Gaussian, Laplacian, SubspaceMap, mean_embedding
from kme_jax._numerics.precision import float64
from kme_jax.kernels import Kernel
from tests import reference


@pytest.mark.parametrize(
    ("num_points", "gamma"),
    [
        (1, 0.5),
        (40, 0.5),
        (90, 0.02),
        pytest.param(256, 0.05, marks=pytest.mark.long),
        pytest.param(300, 0.3, marks=pytest.mark.long),
    ],
)
def test_matches_gram_schmidt(num_points, gamma, rng):
    points = rng.normal(size=(num_points, 2))
    subspace = SubspaceMap.from_points(Gaussian(gamma), points, tolerance=1e-5)
    gram = reference.gaussian_gram(points, points, gamma)
    basis, kept = reference.gram_schmidt(gram, 1e-5)
    assert subspace.pivots.tolist() == kept
    with float64():
        features = np.asarray(subspace(jnp.asarray(points)))
    np.testing.assert_allclose(features, gram @ basis.T, atol=1e-7)


@pytest.mark.long
def test_every_prefix_is_the_map_of_its_points(mixture_rows):
    kernel, points = Gaussian(1e-4 / 3), mixture_rows[:700]
    whole = SubspaceMap.from_points(kernel, points)
    for num_points in (1, 2, 255, 256, 257, 600, 700):
        direct, prefix = SubspaceMap.from_points(kernel, points[:num_points]), whole.prefix(num_points)
        np.testing.assert_array_equal(prefix.pivots, direct.pivots)
        assert prefix.num_features == whole.rank_at(num_points)
        assert prefix.num_points == num_points
        np.testing.assert_allclose(prefix.basis, direct.basis, atol=1e-6 * whole.basis_norm)
    with pytest.raises(ValueError, match="between 1 and 700"):
        whole.prefix(701)


@pytest.mark.parametrize(("dim", "rank"), [(2, 120), pytest.param(5, 705, marks=pytest.mark.long)])
def test_rank_of_the_published_points(dim, rank):
    """F at M = 977 of figure 1, DESIGN section 7."""
    subspace = SubspaceMap.from_points(Gaussian(1e-4 / dim), mixture(100_000, dim)[:977])
    assert subspace.num_features == rank


@pytest.mark.slow
def test_bounds_hold_and_are_not_loose():
    for points in (mixture(100_000, 2)[:977], proposal(400, 2)):
        subspace = SubspaceMap.from_points(Gaussian(5e-5), points)
        with float64():
            basis = np.asarray(subspace.basis)
            gram = np.asarray(subspace.kernel.pairwise(subspace.pivot_points, subspace.pivot_points))
        largest = np.linalg.eigvalsh(basis @ gram @ basis.T).max()
        assert largest <= subspace.lambda_max <= 1 + 1e-3
        norm = np.linalg.norm(basis, 2)
        assert norm <= subspace.basis_norm <= 3 * norm


def test_duplicates_and_dependent_points_are_dropped(rng):
    points = rng.normal(size=(30, 2))
    twice = np.concatenate([points, points, points[:5]])
    subspace = SubspaceMap.from_points(Gaussian(0.5), twice)
    np.testing.assert_array_equal(subspace.pivots, SubspaceMap.from_points(Gaussian(0.5), points).pivots)
    assert subspace.num_points == 65
    weights = subspace.expand(np.ones(subspace.num_features))
    assert np.count_nonzero(weights[30:]) == 0
    assert SubspaceMap.from_points(Gaussian(0.5), np.ones((300, 2))).num_features == 1


class _Signed(Kernel):
    """cos(x − y) on the line: positive definite, with k = −1 attained."""

    diagonal_bound = 1.0
    is_nonnegative = False

    def __call__(self, x, y):
        return jnp.cos(x - y)[0]

    def pairwise(self, x, y, *, expand=False):
        return jnp.cos(x[:, 0, None] - y[None, :, 0])


jax.tree_util.register_static(_Signed)


@pytest.mark.parametrize(
    ("kernel", "dim"),
    [
        (Gaussian(1.0), 2),
        pytest.param(Laplacian(0.5), 3, marks=pytest.mark.slow),
        pytest.param(Gaussian(0.5) + Laplacian(1.0), 2, marks=pytest.mark.long),
        pytest.param(_Signed(), 1, marks=pytest.mark.slow),
    ],
)
def test_no_pair_of_rows_is_further_apart_than_the_diameter(kernel, dim, rng):
    """Adversarial search: gradient ascent on ‖ψ(x) − ψ(x′)‖ from many pairs, the far-apart ones included."""
    subspace = SubspaceMap.from_points(kernel, rng.normal(size=(60, dim)))
    with float64():

        def squared(pair):
            features = subspace(pair)
            return jnp.sum((features[0] - features[1]) ** 2)

        @jax.jit
        def ascend(pair):
            def step(i, state):
                pair, best = state
                value, gradient = jax.value_and_grad(squared)(pair)
                length = 0.3 * 0.98**i
                return pair + length * gradient / (1e-3 + jnp.linalg.norm(gradient)), jnp.maximum(best, value)

            return jnp.sqrt(jax.lax.fori_loop(0, 300, step, (pair, 0.0))[1])

        starts = rng.normal(0, 2, size=(60, 2, dim))
        starts[:40] = subspace.points[rng.integers(60, size=(40, 2))]  # a public point lies in the span exactly
        found = max(float(value) for value in jax.vmap(ascend)(starts))
        features = np.asarray(subspace(jnp.asarray(starts.reshape(-1, dim))))
    assert found <= subspace.diameter
    assert found >= 0.97 * subspace.diameter  # the bound is attained: a smaller one would be wrong
    assert np.linalg.norm(features, axis=1).max() <= subspace.diameter
    assert subspace.diameter <= subspace.published_diameter * math.sqrt(subspace.lambda_max)


def test_replacing_one_row_moves_the_mean_by_at_most_the_sensitivity(rng):
    subspace = SubspaceMap.from_points(Gaussian(1.0), rng.normal(size=(50, 2)))
    rows = rng.normal(size=(20, 2))
    mean = mean_embedding(subspace, rows).coordinates
    moves = []
    for replacement in (subspace.points[3], subspace.points[8], [50.0, 50.0], [np.nan, 0.0], [np.inf, 0.0]):
        changed = rows.copy()
        changed[4] = replacement
        moves.append(np.linalg.norm(mean_embedding(subspace, changed).coordinates - mean))
    assert max(moves) <= subspace.diameter / 20
    assert min(moves) > 0


# With few columns, and with so many that distances could be expanded.
@pytest.mark.parametrize("dim", [2, pytest.param(40, marks=pytest.mark.long)])
def test_the_sum_is_of_the_same_features_far_from_the_origin(dim, rng):
    """Distances must not be expanded here: points in clusters far apart would cancel to noise, amplified by B."""
    near = rng.normal(size=(30, dim)) * 0.5
    points = np.concatenate([near, near + 1e8, near - 1e5])
    subspace = SubspaceMap.from_points(Gaussian(0.5), points)
    rows = points[::7] + 0.1 * rng.normal(size=points[::7].shape)
    with float64():
        features = np.asarray(subspace(jnp.asarray(rows)))
    np.testing.assert_allclose(mean_embedding(subspace, rows).coordinates, features.mean(axis=0), atol=1e-9)
    assert np.linalg.norm(features[:, None] - features[None], axis=2).max() <= subspace.diameter


def test_the_diameter_covers_a_basis_that_is_not_orthonormal(rng):
    subspace = SubspaceMap.from_points(Gaussian(0.5), rng.normal(size=(20, 2)))
    stretched = dataclasses.replace(subspace, basis=2 * subspace.basis, lambda_max=4 * subspace.lambda_max)
    assert stretched.diameter == pytest.approx(2 * subspace.diameter)


def test_a_basis_that_lost_orthogonality_is_refused(rng):
    with pytest.raises(
        ValueError, match=r"tolerance 1e-11 is too small for these points in float64.* use a larger tolerance"
    ):
        SubspaceMap.from_points(Gaussian(0.5), rng.normal(size=(200, 1)), tolerance=1e-11)


def test_a_map_survives_pickling_in_full_precision(rng):
    subspace = SubspaceMap.from_points(Gaussian(0.5), rng.normal(size=(50, 2)))
    again = pickle.loads(pickle.dumps(subspace))
    assert again.basis.dtype == np.float64
    np.testing.assert_array_equal(again.basis, subspace.basis)
    assert again.diameter == subspace.diameter


def test_bad_arguments(rng):
    points = rng.normal(size=(5, 2))
    with pytest.raises(ValueError, match="tolerance must be positive"):
        SubspaceMap.from_points(Gaussian(1.0), points, tolerance=0)
    with pytest.raises(ValueError, match="drops every point"):
        SubspaceMap.from_points(Gaussian(1.0), points, tolerance=2.0)
    with pytest.raises(ValueError, match="row 1 is NaN"):
        SubspaceMap.from_points(Gaussian(1.0), np.array([[0.0], [np.nan]]))
    subspace = SubspaceMap.from_points(Gaussian(1.0), points)
    with pytest.raises(ValueError, match="needs float64"):
        subspace(np.float32([[1, 2]]))


@pytest.mark.long
def test_progress_and_growth_over_blocks(rng):
    points = rng.normal(0, 30, size=(1300, 2))  # nearly orthogonal: the basis grows beyond its first capacities
    calls = []
    subspace = SubspaceMap.from_points(Gaussian(1.0), points, progress=lambda *done: calls.append(done))
    assert calls[-1] == (1300, 1300)
    assert subspace.num_features > 1024
    with float64():
        gram = np.asarray(subspace.kernel.pairwise(subspace.pivot_points, subspace.pivot_points))
        basis = np.asarray(subspace.basis)
    np.testing.assert_allclose(basis @ gram @ basis.T, np.eye(len(basis)), atol=1e-9)
