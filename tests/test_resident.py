"""Sums on one GPU, with a plain function in place of the kernel. The CPU plays the GPU."""

import collections
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import FourierMap, Gaussian, Laplacian, embedding, gram, mean_embedding
from kme_jax._numerics import fused, precision, resident, tiles
from kme_jax._numerics.exp2 import exp2_by_polynomial
from kme_jax._numerics.precision import precision_of

SMALL = tiles.TileSizes(fused_chunk_rows=2048, chunk_points=512)  # several chunks of both


def _plain_sums(functions, points, rows, weights, count=None, *, interpret=None):
    """``fused.sums`` by plain arrays. Rows beyond the count may hold anything."""
    form = functions.columns(points, rows)
    num_columns = form.rows.shape[1]
    z = [form.points[:, c, None] for c in range(num_columns)]
    x = [form.rows[None, :, c] for c in range(num_columns)]
    kept = jnp.arange(rows.shape[0]) < (rows.shape[0] if count is None else count[0].astype(int))
    tile_rows = fused.tile_shape(num_columns, rows.dtype)[0]
    sums = []
    for values in form.values(functions, z, x, exp2_by_polynomial):
        terms = jnp.where(kept[None, :], values * weights[None, :], 0)
        sums.append(jnp.sum(terms.reshape(points.shape[0], -1, tile_rows), axis=2).T)
    return jnp.stack(sums)


@pytest.fixture
def on_gpu(monkeypatch):
    """Makes the library treat the CPU as a GPU that has the kernel."""
    monkeypatch.setattr(fused, "sums", _plain_sums)
    monkeypatch.setattr(fused, "is_supported", lambda device: True)
    for module in (precision, resident, gram, embedding):
        monkeypatch.setattr(module, "is_on_accelerator", lambda array: isinstance(array, jax.Array))
    # JAX keeps the traces of a function. Those of a new function are of the kernel that is in place now.
    sums, programs = resident.chunk_of_sums, resident.program_for
    monkeypatch.setattr(resident, "chunk_of_sums", lambda *args, **options: sums(*args, **options))
    programs.cache_clear()
    yield
    programs.cache_clear()


def _exact(kernel, points, rows):
    with precision.float64():
        return np.asarray(kernel.pairwise(points.astype(np.float64), rows.astype(np.float64)))


@pytest.mark.parametrize(
    ("kernel", "dim", "dtype", "error"),
    [
        (Gaussian(0.1), 2, np.float32, 1e-6),
        # Expanded about the mean of the points.
        pytest.param(Gaussian(0.1), 12, np.float64, 1e-13, marks=pytest.mark.long),
        pytest.param(Gaussian(0.1), 12, np.float32, 1e-5, marks=pytest.mark.long),
        pytest.param(Laplacian(0.3), 3, np.float64, 1e-13, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_sums_from_the_host_and_from_the_device(kernel, dim, dtype, error, on_gpu, rng):
    points, rows = (rng.normal(5, 1, (size, dim)).astype(dtype) for size in (700, 5001))
    weights = rng.normal(size=5001).astype(dtype)
    exact = _exact(kernel, points, rows)
    functions, centred = gram.KernelValues(kernel, expand=True), kernel.expands(dim)
    with precision_of(rows):
        placed = jax.device_put(points), jax.device_put(rows), jax.device_put(weights)
        sums = gram.kernel_sums(kernel, points, rows, weights)
        np.testing.assert_allclose(sums, exact @ weights, rtol=0, atol=5001 * error)
        for z in (points, placed[0]):
            for x, a in ((rows, weights), placed[1:], (placed[1], weights)):
                np.testing.assert_array_equal(gram.kernel_sums(kernel, z, x, a), sums)
                means = gram.kernel_mean(kernel, z, x)
                np.testing.assert_allclose(means, exact.mean(axis=1), rtol=0, atol=error)
                assert means.dtype == dtype
        for x in (rows, placed[1]):
            calls = []
            options = {"centred": centred, "sizes": SMALL, "progress": lambda *done, calls=calls: calls.append(done)}
            (chunks,) = tiles.pair_sums(functions, points, x, weights, **options)
            np.testing.assert_allclose(chunks, exact @ weights, rtol=0, atol=5001 * error)
            assert calls[-1] == (len(calls), len(calls))
            assert len(calls) > 2


@pytest.mark.parametrize("sizes", [tiles.TILE_SIZES, SMALL], ids=["one chunk", "chunks"])
def test_a_row_that_is_not_finite_is_named(sizes, on_gpu, rng, monkeypatch):
    monkeypatch.setattr(tiles, "pair_sums", functools.partial(tiles.pair_sums, sizes=sizes))
    points, rows = rng.normal(size=(30, 2)), rng.normal(size=(5001, 2)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        bad = rows.copy()
        bad[4077, 1] = value
        for given in (bad, jax.device_put(bad)):
            with pytest.raises(ValueError, match="rows: row 4077 is NaN or infinite"):
                gram.kernel_mean(Gaussian(0.3), points.astype(np.float32), given)
        with pytest.raises(ValueError, match="points: row 4077 is NaN or infinite"):
            gram.kernel_mean(Gaussian(0.3), jax.device_put(bad), jax.device_put(rows))


def test_a_sum_that_overflows_is_no_error(on_gpu):
    """Only rows that are not finite are: NaN in the sums makes the library look at them."""
    rows, weights = jnp.ones((2, 1), jnp.float32), np.array([np.inf, -np.inf], np.float32)
    assert np.isnan(gram.kernel_sums(Gaussian(1.0), np.ones((1, 1), np.float32), rows, weights)).all()


def test_few_programs_are_compiled_for_many_kernels_and_points(on_gpu, rng):
    rows = jax.device_put(rng.normal(size=(3000, 2)).astype(np.float32))
    for gamma, num_points in ((0.1, 30), (0.2, 30), (0.3, 400), (4, 512)):
        gram.kernel_mean(Gaussian(gamma), rng.normal(size=(num_points, 2)).astype(np.float32), rows)
    assert cast(Any, resident.program_for(jax.default_backend())).num_programs() == 1


def test_rows_after_the_last_one_take_no_time_unless_the_number_is_private(on_gpu, rng, monkeypatch):
    """The time must not show the number of rows, if it is private."""
    counts = []

    def look(functions, points, rows, weights, count=None):
        counts.append(count is not None)
        return _plain_sums(functions, points, rows, weights, count)

    monkeypatch.setattr(fused, "sums", look)
    points, rows = rng.normal(size=(9, 2)), rng.normal(size=(100, 2))
    functions = gram.KernelValues(Gaussian(0.3), expand=False)
    for planned in (None, 200):
        (sums,) = tiles.pair_sums(functions, points, rows, None, rows_planned=planned)
        np.testing.assert_allclose(sums, _exact(Gaussian(0.3), points, rows).sum(axis=1), rtol=1e-12)
    assert counts == [True, False]


def test_a_call_has_two_programs_and_one_fetch(on_gpu, rng, monkeypatch):
    used = collections.Counter()

    def counted(name, function):
        def call(*args, **kwargs):
            used[name] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(resident, "cut_piece", counted("piece", resident.cut_piece))
    program = resident.program_for(jax.default_backend())
    monkeypatch.setattr(resident, "program_for", lambda platform: counted("sums", program))
    monkeypatch.setattr(jax, "device_put", counted("put", jax.device_put))
    rows = jax.device_put(rng.normal(size=(3000, 2)).astype(np.float32))
    used.clear()
    gram.kernel_mean(Gaussian(0.5), rng.normal(size=(300, 2)).astype(np.float32), rows)
    assert used == {"piece": 1, "sums": 1}


def test_means_of_fourier_features(on_gpu, rng):
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 600, 2)
    rows = rng.normal(size=(3000, 2)).astype(np.float32)
    rows[7, 1], rows[8, 0] = np.nan, 1e30
    exact = np.asarray(fourier(np.delete(rows, [7, 8], axis=0)), np.float64).sum(axis=0) / 3000
    for given in (rows, jnp.asarray(rows)):
        np.testing.assert_allclose(mean_embedding(fourier, given).coordinates, exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize("on_device", [False, True])
def test_rows_beyond_a_bound_do_not_count(on_device, on_gpu, rng):
    points, rows = rng.normal(size=(9, 2)), rng.uniform(-1, 1, size=(100, 2))
    expected = _exact(Gaussian(0.3), points, np.delete(rows, [3, 50, 99], axis=0)).sum(axis=1)
    rows[[3, 50, 99], 1] = 1.5, np.nan, -np.inf
    functions = gram.KernelValues(Gaussian(0.3), expand=False)
    with precision_of(rows):
        placed = jax.device_put(rows) if on_device else rows
        (sums,) = tiles.pair_sums(functions, points, placed, None, largest=1.0)
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
