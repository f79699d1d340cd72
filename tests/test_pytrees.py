import dataclasses
import itertools

import jax
import numpy as np
import pytest

from kme_jax import Gaussian, GaussianSum, Laplacian, Matern32, Matern52
from kme_jax._numerics.pytrees import pytree_dataclass


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Pair:
    left: object
    name: str = dataclasses.field(metadata={"static": True})
    right: object = 0


def test_fields_come_back_in_their_places():
    pair = Pair(1.0, "a", (2.0, 3.0))
    leaves, structure = jax.tree.flatten(pair)
    assert leaves == [1.0, 2.0, 3.0]
    assert jax.tree.unflatten(structure, leaves) == pair
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(pair)]
    assert paths == [".left", ".right[0]", ".right[1]"]
    assert structure != jax.tree.structure(Pair(1.0, "b", (2.0, 3.0)))


def _kernels():
    unit = [kind(1.0) for kind in (Gaussian, Laplacian, Matern32, Matern52)]
    combined = [left + right for left, right in itertools.product(unit, unit)]
    return unit + combined + [left * right for left, right in itertools.product(unit, unit)]


def test_structures_of_different_kernels_differ():
    """Equal ones would share compiled functions: a Laplacian kernel's values would now and then be a Gaussian's."""
    structures = [jax.tree.structure(kernel) for kernel in _kernels()]
    for one, other in itertools.combinations(structures, 2):
        assert one != other
    assert [jax.tree.structure(kernel) for kernel in _kernels()] == structures


@pytest.mark.long
def test_one_jitted_function_for_all_kernels(rng):
    compiled = jax.jit(lambda kernel, x: kernel.pairwise(x, x))
    x = rng.normal(size=(3, 2)).astype(np.float32)
    # All as one program, in which each kernel is one by its place.
    every = jax.jit(lambda kernels, x: [kernel.pairwise(x, x) for kernel in kernels])(_kernels(), x)
    for kernel, expected in zip(_kernels(), every, strict=True):
        np.testing.assert_allclose(compiled(kernel, x), expected, rtol=1e-5, err_msg=str(kernel))


@pytest.mark.parametrize("kernel", [Gaussian(0.5), Laplacian(0.5), Gaussian(0.5) + Matern32(1.0), GaussianSum([[0.5]])])
def test_a_gradient_may_have_values_that_a_kernel_may_not(kernel):
    """A kernel checks that γ > 0. Its derivative by γ is negative, and an optimiser starts with zeros."""
    x, y = np.float32([0.0]), np.float32([1.0])
    slope = jax.grad(lambda k: k(x, y))(kernel)
    assert jax.tree.structure(slope) == jax.tree.structure(kernel)
    assert jax.tree.leaves(slope)[0] == pytest.approx(-np.exp(-0.5), rel=1e-5)
    assert not any(map(np.any, jax.tree.leaves(jax.tree.map(np.zeros_like, kernel))))


def test_a_batch_of_kernels():
    kernels = jax.tree.map(lambda *gammas: np.stack(gammas), Gaussian(0.5), Gaussian(2.0))
    values = jax.vmap(lambda kernel: kernel(np.float32([0.0]), np.float32([1.0])))(kernels)
    np.testing.assert_allclose(values, np.exp([-0.5, -2.0]), rtol=1e-6)
