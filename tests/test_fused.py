"""The kernel of sums on a GPU: its arithmetic everywhere, the kernel itself in Pallas' interpreter or on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    Laplacian,
    gram,
    mean_embedding,
)
from kme_jax._numerics import fused, tiles
from kme_jax._numerics.exp2 import exp2_by_polynomial
from kme_jax._numerics.precision import precision_of
from kme_jax.feature_maps.waves import CosSin
from kme_jax.kernels import GaussianSum, Matching, Matern32, Matern52
from tests import compiled

KERNELS = [
    (Gaussian(0.3), 2),
    (Gaussian(0.05), 20),  # by an expanded form
    (Laplacian(0.2), 5),
    (Matern32(2.0), 3),
    (Matern52(1.5), 1),
    (Gaussian(0.1) * Matern32(2.0) + Laplacian(0.3), 3),
]
ON_GPU = fused.is_supported(jax.devices()[0])
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU of compute capability 9.0, and JAX 0.11")
needs_interpreter = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="Pallas' interpreter needs JAX 0.11")


@jax.jit
def _values(functions, points, rows):
    """All values [c, m, n] from single columns."""
    form = functions.columns(jnp.asarray(points), jnp.asarray(rows))
    columns = [form.points[:, c, None] for c in range(form.points.shape[1])]
    exp2 = jnp.exp2 if rows.dtype == np.float32 else exp2_by_polynomial
    return jnp.stack(form.values(functions, columns, [form.rows[None, :, c] for c in range(form.rows.shape[1])], exp2))


@pytest.mark.parametrize(("kernel", "dim"), KERNELS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 3e-6), pytest.param(np.float64, 1e-14, marks=pytest.mark.long)]
)
def test_values_from_columns_are_the_kernel(kernel, dim, dtype, error, rng):
    points, rows = rng.normal(size=(7, dim)).astype(dtype), rng.normal(size=(9, dim)).astype(dtype)
    functions = gram.KernelValues(kernel, expand=True)
    with precision_of(rows):
        (values,) = _values(functions, points, rows)
        assert values.dtype == dtype
        exact = compiled.one_by_one(kernel, points, rows)
        np.testing.assert_allclose(values, np.asarray(exact), rtol=0, atol=error * kernel.diagonal_bound)
    assert fused.columns_of(functions, dim, np.dtype(dtype)) == (dim + 2 if kernel.expands(dim) else dim)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-5), (np.float64, 1e-12)])
def test_cosines_from_columns(dtype, error, rng):
    turns, rows = rng.normal(size=(7, 3)).astype(dtype), rng.normal(0, 10, (50, 3)).astype(dtype)
    with precision_of(rows):
        cosines, sines = _values(CosSin(), turns, rows)
        expected = jax.jit(CosSin())(turns, rows)
        np.testing.assert_allclose(cosines, expected[0], rtol=0, atol=error)  # of angles that are rounded otherwise
        np.testing.assert_allclose(sines, expected[1], rtol=0, atol=error)


def test_what_has_no_form_for_the_kernel():
    for kernel in (GaussianSum([[1.0, 2.0]]), Matching(), Gaussian(1.0) + Matching()):
        assert fused.columns_of(gram.KernelValues(kernel, expand=True), 2, np.dtype(np.float32)) is None
    functions = gram.KernelValues(Gaussian(1.0), expand=True)
    assert fused.columns_of(functions, fused.MAX_COLUMNS + 1, np.dtype(np.float32)) is None
    assert fused.columns_of(functions, 2, np.dtype(np.int32)) is None


@pytest.mark.parametrize("num_columns", range(1, fused.MAX_COLUMNS + 1))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiles_hold_whole_rows_and_fit_into_memory(num_columns, dtype):
    rows, points = fused.tile_shape(num_columns, dtype)
    assert rows * (num_columns + 1) * np.dtype(dtype).itemsize <= 32 * 1024
    assert rows >= 1
    assert points % 128 == 0


@needs_interpreter
@pytest.mark.skipif(ON_GPU, reason="the kernel itself is tested there")
@pytest.mark.parametrize(
    "functions",
    [
        pytest.param(gram.KernelValues(Gaussian(0.3), expand=True), id="kernel"),
        pytest.param(CosSin(), id="cos", marks=pytest.mark.long),
    ],
)
def test_the_kernel_in_the_interpreter(functions, rng, monkeypatch):
    """Two tiles of rows, which are smaller than on a GPU, because the interpreter takes a second for a few lines."""
    from jax.experimental.pallas import mosaic_gpu

    tile_rows, num_points = 128, fused.tile_shape(2, np.float32)[1]
    monkeypatch.setattr(fused, "tile_shape", lambda num_columns, dtype: (tile_rows, num_points))
    num_rows = 2 * tile_rows
    points, rows = (rng.normal(size=(size, 2)).astype(np.float32) for size in (num_points, num_rows))
    weights = rng.uniform(size=num_rows).astype(np.float32)
    run = jax.jit(functools.partial(fused.sums, interpret=mosaic_gpu.InterpretGPUParams()))
    values = np.asarray(functions(jnp.asarray(points), jnp.asarray(rows)), np.float64)
    for count in (None, 150):  # lines after those of the first 150 rows are skipped, so their weights may be anything
        if count is not None:
            weights[count:192], weights[192:] = 0, np.nan
        sums = run(functions, points, rows, weights, None if count is None else np.array([count], np.float32))
        assert sums.shape == (functions.num_values, 2, num_points)
        expected = values[:, :, :count] @ weights[:count]
        np.testing.assert_allclose(sums.sum(axis=1), expected, rtol=1e-5, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize(("kernel", "dim"), KERNELS, ids=str)
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-6), (np.float64, 1e-13)])
def test_the_kernel_on_a_gpu(kernel, dim, dtype, error, rng, monkeypatch):
    points, rows = rng.normal(size=(700, dim)).astype(dtype), rng.normal(size=(5001, dim)).astype(dtype)
    weights = rng.normal(size=5001).astype(dtype)
    fast = gram.kernel_sums(kernel, points, rows, weights)
    with precision_of(rows):
        on_device = [jnp.asarray(array) for array in (points, rows, weights)]
        np.testing.assert_array_equal(gram.kernel_sums(kernel, *on_device), fast)
    np.testing.assert_array_equal(gram.kernel_sums(kernel, points, rows, weights), fast)  # the same bits again
    monkeypatch.setattr(fused, "is_supported", lambda device: False)
    np.testing.assert_allclose(gram.kernel_sums(kernel, points, rows, weights), fast, rtol=0, atol=error * 5001)


@needs_gpu
def test_a_row_on_a_gpu_that_is_not_finite_is_named(rng):
    rows = rng.normal(size=(5001, 2)).astype(np.float32)
    rows[4077, 1] = np.inf
    with pytest.raises(ValueError, match="rows: row 4077 is NaN or infinite"):
        gram.kernel_mean(Gaussian(0.3), np.zeros((3, 2), np.float32), jnp.asarray(rows))


@needs_gpu
def test_means_of_fourier_features_on_a_gpu(rng):
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 600, 2)
    rows = rng.normal(size=(3000, 2)).astype(np.float32)
    rows[7, 1] = np.nan
    exact = np.asarray(fourier(np.delete(rows, 7, axis=0)), np.float64).sum(axis=0) / 3000
    for given in (rows, jnp.asarray(rows)):
        np.testing.assert_allclose(mean_embedding(fourier, given).coordinates, exact, rtol=0, atol=1e-7)


def test_many_sizes_share_few_shapes():
    chunks = [tiles.few_tiles(size, 512, 2**21) for size in range(1, 200_000, 97)]
    assert len(set(chunks)) < 100
    for size, chunk in zip(range(1, 200_000, 97), chunks, strict=True):
        assert chunk % 512 == 0
        assert size <= chunk <= max(512, 1.07 * size + 512)
    assert 5 * tiles.few_tiles(10**7, 512, 2**21) >= 10**7
    assert tiles.few_tiles(10**7, 512, 2**21) <= 2**21
