"""Weighted sums over rows of functions of (point, row) pairs, in tiles: memory never depends on N · M.

Chunks of rows are taken in a Python loop (so that long work can report its progress), and within a chunk tiles small
enough for the processor's cache in one jitted scan. All chunks have one shape, so each function compiles once for a
dtype and a number of columns. Rows are spread over devices, which add their sums up.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kme_jax.numerics import Progress, precision_of

Array = jax.Array

# Rows and points per tile: a float64 tile fits into a core's share of the cache on a CPU; an accelerator wants
# enough pairs to fill the device. Chunks are whole tiles.
_TILES = {"cpu": (1024, 512), "gpu": (8192, 4096), "tpu": (4096, 2048)}
_CHUNK_ROWS = 32768
_CHUNK_POINTS = 4096


def pad(array: np.ndarray, multiple: int) -> np.ndarray:
    """Zeros appended to the first axis up to a multiple."""
    missing = -len(array) % multiple
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


@functools.partial(jax.jit, static_argnames=("tile_rows", "tile_points"))
def _chunk_sums(pairwise, points, rows, weights, *, tile_rows: int, tile_points: int) -> Array:
    """Σ_n a_n f(z_m, x_n): points [m, d], rows [n, d], weights a [n] -> [c, m]; m and n are whole tiles."""
    dim = rows.shape[1]
    row_tiles, weight_tiles = rows.reshape(-1, tile_rows, dim), weights.reshape(-1, tile_rows)

    def for_points(point_tile):
        def add_rows(totals, tile):
            row_tile, weight_tile = tile
            sums = pairwise(point_tile, row_tile, weight_tile)
            return [t + s for t, s in zip(totals, sums, strict=True)], None

        zeros = [jnp.zeros(tile_points, rows.dtype)] * pairwise.num_values
        return jnp.stack(jax.lax.scan(add_rows, zeros, (row_tiles, weight_tiles))[0])

    sums = jax.lax.map(for_points, points.reshape(-1, tile_points, dim))
    return jnp.moveaxis(sums, 1, 0).reshape(pairwise.num_values, -1)


@functools.lru_cache(maxsize=8)
def _sharded_chunk_sums(devices: tuple, tile_rows: int, tile_points: int):
    """:func:`_chunk_sums` with the rows split over the devices, which add their sums up."""
    mesh = Mesh(np.asarray(devices), ("rows",))
    rows_spec, everywhere = PartitionSpec("rows"), PartitionSpec()

    def local(pairwise, points, rows, weights):
        sums = _chunk_sums(pairwise, points, rows, weights, tile_rows=tile_rows, tile_points=tile_points)
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
    """(tile, chunk) for an axis of this size: as few chunks of at most about ``chunk`` as will do, of equal size, each
    a whole number of tiles, so that little is filled up with zeros."""
    tile = min(tile, max(8, 1 << (size - 1).bit_length()))
    num_chunks = -(-size // max(chunk, tile))
    return tile, -(-size // (num_chunks * tile)) * tile


def pair_sums(
    pairwise: Any,
    points: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    *,
    devices=None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Σ_n a_n f(z_m, x_n) for every m and each of the c functions f of ``pairwise``.

    Args:
      pairwise: a pytree with ``num_values`` = c, called on one tile as pairwise(points [m, d], rows [n, d], weights
        [n]) -> c arrays [m], the sums of that tile. Tiles are filled up with zero rows of weight 0.
      points: z, [M, d], of the dtype to compute in.
      rows: x, [N, d], finite, of the same dtype.
      weights: a, [N], of the same dtype.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (pairs of chunks done, pairs of chunks in all).

    Returns:
      [c, M] in float64, on the host: sums within a chunk have the inputs' dtype, chunks are added in float64.
    """
    dtype = rows.dtype
    with precision_of(rows):
        devices = tuple(jax.local_devices() if devices is None else devices)
        if dtype == np.float64 and jax.default_backend() == "tpu":
            devices = tuple(jax.local_devices(backend="cpu"))
        tile_rows, tile_points = _TILES.get(devices[0].platform, _TILES["gpu"])
        tile_rows, chunk_rows = _whole_tiles(-(-len(rows) // len(devices)), tile_rows, _CHUNK_ROWS)
        tile_points, chunk_points = _whole_tiles(len(points), tile_points, _CHUNK_POINTS)
        chunk_rows *= len(devices)
        num_points, points = len(points), pad(points, chunk_points)
        if len(devices) > 1:
            sums_of, place = _sharded_chunk_sums(devices, tile_rows, tile_points)
        else:
            sums_of = functools.partial(_chunk_sums, tile_rows=tile_rows, tile_points=tile_points)
            place = devices[0]
        sums = np.zeros((pairwise.num_values, len(points)), np.float64)
        row_starts, point_starts = range(0, len(rows), chunk_rows), range(0, len(points), chunk_points)
        total, done = len(row_starts) * len(point_starts), 0
        for row_start in row_starts:
            chunk = slice(row_start, row_start + chunk_rows)
            row_chunk = jax.device_put(pad(rows[chunk], chunk_rows), place)
            weight_chunk = jax.device_put(pad(weights[chunk], chunk_rows), place)  # padding has weight 0
            for start in point_starts:
                part = slice(start, start + chunk_points)
                sums[:, part] += np.asarray(sums_of(pairwise, points[part], row_chunk, weight_chunk), np.float64)
                done += 1
                if progress:
                    progress(done, total)
        return sums[:, :num_points]
