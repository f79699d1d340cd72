import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.common.mixture import mixture
from kme_jax import (
    Gaussian,
    Laplacian,
    Matern32,
    gram,
)
from kme_jax._numerics import tiles
from kme_jax._numerics.precision import float64
from tests import compiled, reference


@pytest.mark.parametrize(
    ("num_points", "num_rows", "dim"),
    [
        pytest.param(1, 1, 1, marks=pytest.mark.long),
        pytest.param(7, 13, 2, marks=pytest.mark.long),
        (513, 2049, 3),
        pytest.param(70, 5000, 6, marks=pytest.mark.long),
        pytest.param(40, 600, 12, marks=pytest.mark.long),
        pytest.param(30, 300, 25, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "kernel",
    [Gaussian(0.2), Laplacian(0.3), pytest.param(Gaussian(0.1) * Matern32(2.0), marks=pytest.mark.long)],
    ids=str,
)
def test_kernel_sums_match_brute_force(kernel, num_points, num_rows, dim, rng):
    points, rows = rng.normal(5, 1, (num_points, dim)), rng.normal(5, 1, (num_rows, dim))
    weights = rng.normal(size=num_rows)
    with float64():
        exact = np.asarray(compiled.pairwise(kernel, points, rows))
    np.testing.assert_allclose(gram.kernel_sums(kernel, points, rows), exact.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(gram.kernel_sums(kernel, points, rows, weights), exact @ weights, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gram.kernel_mean(kernel, points, rows), exact.mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize("dim", [2, pytest.param(12, marks=pytest.mark.long)])
def test_several_chunks_of_points_and_rows(dim, rng):
    sizes = tiles.TileSizes(cpu=(32, 8), gpu=(32, 8), chunk_rows=64, chunk_points=16, loop_points=8)
    points, rows = rng.normal(size=(37, dim)), rng.normal(size=(203, dim))
    calls = []
    functions = gram.KernelValues(Gaussian(0.03), expand=True)
    with float64():
        (sums,) = tiles.pair_sums(functions, points, rows, None, sizes=sizes, progress=lambda *done: calls.append(done))
    np.testing.assert_allclose(sums, reference.gaussian_gram(points, rows, 0.03).sum(axis=1), rtol=1e-12)
    assert calls == [(i + 1, len(calls)) for i in range(len(calls))]
    assert len(calls) == (12 if jax.default_backend() == "cpu" else 1)  # a GPU's kernel has larger tiles
    total = gram.sum_of_pairs(Gaussian(0.03), rows, block_rows=32)
    assert total == pytest.approx(reference.gaussian_gram(rows, rows, 0.03).sum(), rel=1e-12)
    mean = gram.double_mean(Gaussian(0.03), rows)
    assert mean == pytest.approx(reference.gaussian_gram(rows, rows, 0.03).mean(), rel=1e-12)


@pytest.mark.parametrize("kernel", [Gaussian(0.3), pytest.param(Laplacian(0.3), marks=pytest.mark.long)], ids=str)
def test_both_forms_of_a_tile_agree(kernel, rng):
    """An elementwise function: a loop over points on a CPU, whole tiles on an accelerator."""
    points, rows, weights = rng.normal(size=(24, 3)), rng.normal(size=(64, 3)), rng.normal(size=64)
    functions = gram.KernelValues(kernel, expand=True)
    assert functions.is_elementwise(3)
    with float64():
        exact = np.asarray(compiled.pairwise(kernel, points, rows))
        for sums in (tiles.loop_sums, tiles.tile_sums):
            (values,) = jax.jit(sums)(functions, points, rows, weights)
            np.testing.assert_allclose(values, exact @ weights, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dim", [pytest.param(5, marks=pytest.mark.long), 12])
def test_float32_stays_float32_and_is_close(dim, rng):
    points, rows = rng.normal(3000, 100, (50, dim)), rng.normal(3000, 100, (4000, dim))
    wide = gram.kernel_mean(Gaussian(2e-5), points, rows)
    narrow = gram.kernel_mean(Gaussian(2e-5), points.astype(np.float32), rows.astype(np.float32))
    assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
    # Coordinates of size 3000 lose 1e-4 in float32; what distances lose is small because they are centred first.
    np.testing.assert_allclose(narrow, wide, atol=3e-6)
    assert not jax.config.jax_enable_x64


def test_prefix_double_means(rng):
    points = rng.normal(size=(300, 3))
    exact = reference.gaussian_gram(points, points, 0.4)
    expected = [exact[:m, :m].mean() for m in range(1, 301)]
    np.testing.assert_allclose(gram.prefix_double_means(Gaussian(0.4), points), expected, rtol=1e-12)


@pytest.mark.parametrize(("dim", "published"), [(2, 0.21215986369), (5, 0.16729849632)])
@pytest.mark.long
def test_double_mean_of_the_published_mixture(dim, published):
    """The squared norm of the embedding of all 100 000 rows, DESIGN section 7."""
    assert gram.double_mean(Gaussian(1e-4 / dim), mixture(100_000, dim)) == pytest.approx(published, abs=1e-9)


def test_bad_shapes_are_refused(rng):
    x = rng.normal(size=(4, 2))
    with pytest.raises(ValueError, match="rows: expected 2 columns, got 3"):
        gram.kernel_sums(Gaussian(1.0), x, rng.normal(size=(4, 3)))
    with pytest.raises(ValueError, match=r"points: expected a non-empty array of shape \[rows, columns\]"):
        gram.kernel_sums(Gaussian(1.0), x[0], x)
    with pytest.raises(ValueError, match=r"weights: expected shape \[4\]"):
        gram.kernel_sums(Gaussian(1.0), x, x, np.ones(3))
    with pytest.raises(ValueError, match="row 2 is NaN or infinite"):
        gram.double_mean(Gaussian(1.0), np.where(np.arange(4)[:, None] == 2, np.nan, x))
    with pytest.raises(ValueError, match="expected numbers"):
        gram.double_mean(Gaussian(1.0), np.array([["a"]]))


@pytest.mark.parametrize("shapes", [[(3, 2), (4, 1)], [(3,), (4,)], [(3, 2), (2,)]])
def test_points_of_a_gram_matrix_have_the_same_columns(shapes):
    """A single column would be taken for all columns of the other points."""
    with pytest.raises(ValueError, match=r"expected points \[n, d\] and \[m, d\]"):
        gram.gram(Gaussian(1.0), *map(np.zeros, shapes))


@pytest.mark.long
def test_rows_are_shared_over_devices():
    code = """
import jax, numpy as np
from kme_jax import Gaussian, gram
assert jax.device_count() == 8
rng = np.random.default_rng(0)
points, rows, weights = rng.normal(size=(20, 4)), rng.normal(size=(1001, 4)), rng.normal(size=1001)
every = gram.kernel_sums(Gaussian(0.5), points, rows, weights)
one = gram.kernel_sums(Gaussian(0.5), points, rows, weights, devices=jax.devices()[:1])
np.testing.assert_allclose(every, one, rtol=1e-12)
np.testing.assert_allclose(gram.double_mean(Gaussian(0.5), rows.astype(np.float32)),
                           gram.double_mean(Gaussian(0.5), rows), rtol=1e-5)
print("shared")
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "shared", run.stderr
