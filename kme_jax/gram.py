"""Gram matrices, kernel means and double means, in tiles: memory never depends on N · M.

Sums over pairs run over chunks of rows in a Python loop (so that long work can report its progress and rows may
come from anywhere), and within a chunk over tiles small enough for the processor's cache in one jitted scan. All
chunks have one shape, so each function compiles once for a kernel, a dtype and a number of columns.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kme_jax.kernels import Kernel
from kme_jax.numerics import Progress, check_columns, check_points, float64, precision_of

Array = jax.Array

# Rows and points per tile: a float64 tile fits into a core's share of the cache on a CPU; an accelerator wants
# enough pairs to fill the device. Chunks are whole tiles.
_TILES = {"cpu": (2048, 512), "gpu": (8192, 4096), "tpu": (4096, 2048)}
_CHUNK_ROWS = 32768
_CHUNK_POINTS = 4096


def gram(kernel: Kernel, x: Array, y: Array | None = None) -> Array:
    """The Gram matrix k(x_n, y_m), from direct differences: [n, d], [m, d] -> [n, m]. Traceable; y = x if None."""
    return kernel.pairwise(x, x if y is None else y)


def _tile_shape() -> tuple[int, int]:
    return _TILES.get(jax.default_backend(), _TILES["gpu"])


def _pad(array: np.ndarray, multiple: int) -> np.ndarray:
    """Zeros appended to the first axis up to a multiple."""
    missing = -len(array) % multiple
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


@functools.partial(jax.jit, static_argnames=("tile_rows", "tile_points"))
def _chunk_sums(kernel, points, rows, weights, *, tile_rows: int, tile_points: int) -> Array:
    """Σ_n a_n k(z_m, x_n): points [m, d], rows [n, d], weights a [n] -> [m]; m and n are whole tiles."""
    dim = rows.shape[1]
    row_tiles, weight_tiles = rows.reshape(-1, tile_rows, dim), weights.reshape(-1, 1, tile_rows)

    def for_points(point_tile):
        def add_rows(total, tile):
            row_tile, weight_tile = tile
            # A product and a row sum fuse with the exponential; a select here would keep it from being vectorised.
            return total + jnp.sum(kernel.pairwise(point_tile, row_tile, expand=True) * weight_tile, axis=1), None

        zero = jnp.zeros(tile_points, rows.dtype)
        return jax.lax.scan(add_rows, zero, (row_tiles, weight_tiles))[0]

    return jax.lax.map(for_points, points.reshape(-1, tile_points, dim)).reshape(-1)


@functools.lru_cache(maxsize=8)
def _sharded_chunk_sums(devices: tuple, tile_rows: int, tile_points: int):
    """:func:`_chunk_sums` with the rows split over the devices, which add their sums up."""
    mesh = Mesh(np.asarray(devices), ("rows",))
    rows_spec, everywhere = PartitionSpec("rows"), PartitionSpec()

    def local(kernel, points, rows, weights):
        sums = _chunk_sums(kernel, points, rows, weights, tile_rows=tile_rows, tile_points=tile_points)
        return jax.lax.psum(sums, "rows")

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(everywhere, everywhere, rows_spec, rows_spec),
        out_specs=everywhere,
        check_vma=False,  # the scan's carry starts as a constant, which the check takes for unvarying
    )
    return jax.jit(mapped), NamedSharding(mesh, rows_spec)


def _whole_tiles(size: int, tile: int, chunk: int) -> tuple[int, int]:
    """(tile, chunk) for an axis of this size: small inputs are not padded to a whole chunk."""
    tile = min(tile, max(8, 1 << (size - 1).bit_length()))
    chunk = max(chunk, tile)
    return tile, min(chunk, -(-size // tile) * tile)


def kernel_sums(
    kernel: Kernel,
    points: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    devices=None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Σ_n a_n k(z_m, x_n) for every m, in the wider of the two dtypes (float64 whatever JAX's global setting is).

    Args:
      kernel: k.
      points: z, [M, d].
      rows: x, [N, d], finite.
      weights: a, [N]; 1 if None.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (pairs of chunks done, pairs of chunks in all).

    Returns:
      [M], on the host. Partial sums are added in float64.

    Raises:
      ValueError: shapes that do not fit.
    """
    points, rows = check_points(points, "points"), check_points(rows, "rows")
    check_columns(rows, points.shape[1], "rows")
    dtype = np.result_type(points, rows)
    weights = np.ones(len(rows), dtype) if weights is None else np.asarray(weights, dtype)
    if weights.shape != (len(rows),):
        raise ValueError(f"weights: expected shape [{len(rows)}], one for each row, got {list(weights.shape)}")
    with precision_of(points, rows):
        devices = tuple(jax.local_devices() if devices is None else devices)
        if dtype == np.float64 and jax.default_backend() == "tpu":
            devices = tuple(jax.local_devices(backend="cpu"))
        tile_rows, tile_points = _tile_shape()
        tile_rows, chunk_rows = _whole_tiles(-(-len(rows) // len(devices)), tile_rows, _CHUNK_ROWS)
        tile_points, chunk_points = _whole_tiles(len(points), tile_points, _CHUNK_POINTS)
        chunk_rows *= len(devices)
        # The expanded form of distances is accurate about a common centre. The points are public, and a shift of
        # both sets changes nothing for a shift-invariant kernel.
        centre = points.mean(axis=0, dtype=np.float64) if kernel.is_shift_invariant else np.zeros(points.shape[1])
        num_points, points = len(points), _pad((points - centre).astype(dtype), chunk_points)
        if len(devices) > 1:
            sums_of, place = _sharded_chunk_sums(devices, tile_rows, tile_points)
        else:
            sums_of = functools.partial(_chunk_sums, tile_rows=tile_rows, tile_points=tile_points)
            place = devices[0]
        sums = np.zeros(len(points), np.float64)
        row_starts, point_starts = range(0, len(rows), chunk_rows), range(0, len(points), chunk_points)
        total, done = len(row_starts) * len(point_starts), 0
        for row_start in row_starts:
            chunk = slice(row_start, row_start + chunk_rows)
            row_chunk = jax.device_put(_pad((rows[chunk] - centre).astype(dtype), chunk_rows), place)
            weight_chunk = jax.device_put(_pad(weights[chunk], chunk_rows), place)  # padding has weight 0
            for start in point_starts:
                part = slice(start, start + chunk_points)
                sums[part] += np.asarray(sums_of(kernel, points[part], row_chunk, weight_chunk), np.float64)
                done += 1
                if progress:
                    progress(done, total)
        return sums[:num_points].astype(dtype)


def kernel_mean(
    kernel: Kernel, points: np.ndarray, rows: np.ndarray, *, devices=None, progress: Progress | None = None
) -> np.ndarray:
    """(1/N) Σ_n k(z_m, x_n), the empirical kernel mean embedding evaluated at the points: see :func:`kernel_sums`."""
    return kernel_sums(kernel, points, rows, devices=devices, progress=progress) / np.shape(rows)[0]


def double_mean(kernel: Kernel, rows: np.ndarray, *, devices=None, progress: Progress | None = None) -> float:
    """(1/N²) Σ_{n, n'} k(x_n, x_n') = ‖μ̂_X‖², each unordered pair evaluated once.

    Args:
      kernel: k.
      rows: x, [N, d], finite.
      devices: as for :func:`kernel_sums`.
      progress: called with (pairs of rows done, pairs of rows in all).
    """
    rows = check_points(rows, "rows")
    n = len(rows)
    step = min(n, _CHUNK_POINTS * 2)
    total, done = n * (n + 1) // 2, 0
    pair_sum = 0.0
    for start in range(0, n, step):
        mine, later = rows[start : start + step], rows[start + step :]
        within = kernel_sums(kernel, mine, mine, devices=devices)
        pair_sum += float(within.sum(dtype=np.float64))
        if len(later):
            across = kernel_sums(kernel, mine, later, devices=devices)
            pair_sum += 2 * float(across.sum(dtype=np.float64))
        done += len(mine) * (len(mine) + 1) // 2 + len(mine) * len(later)
        if progress:
            progress(done, total)
    return pair_sum / n**2


@jax.jit
def _lower_row_sums(kernel, block, points, start):
    """2 Σ_{j < i} k(z_i, z_j) + k(z_i, z_i) for the rows i of a block that starts at ``start``."""
    i = start + jnp.arange(block.shape[0], dtype=jnp.int32)
    j = jnp.arange(points.shape[0], dtype=jnp.int32)
    twice_below = jnp.where(j[None, :] < i[:, None], 2, jnp.where(j[None, :] == i[:, None], 1, 0))
    return jnp.sum(kernel.pairwise(block, points) * twice_below.astype(points.dtype), axis=1)


def prefix_double_means(kernel: Kernel, points: np.ndarray) -> np.ndarray:
    """(1/M²) Σ_{i, j ≤ M} k(z_i, z_j) for every prefix M = 1, ..., [M] in float64: the squared norm of the uniform
    weighting of the first M points."""
    points = check_points(points, "points").astype(np.float64)
    n = len(points)
    step = min(n, 256)
    padded = _pad(points, step)
    with float64():
        on_device = jnp.asarray(padded)
        blocks = [
            np.asarray(_lower_row_sums(kernel, padded[start : start + step], on_device, np.int32(start)))
            for start in range(0, n, step)
        ]
    return np.cumsum(np.concatenate(blocks)[:n]) / np.arange(1, n + 1) ** 2
