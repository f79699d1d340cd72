"""Weighted sums over rows of functions of (point, row) pairs, in tiles: memory never depends on N · M.

Chunks of rows are taken in a Python loop (so that long work can report its progress), and within a chunk tiles in one
jitted program. Chunks have few shapes, so each function compiles for few of them. Rows are spread over devices, which
add their sums up.

A function that is elementwise in the coordinates is, on a CPU, taken for a few rows at a time against all points of a
chunk: a loop over the points in which nothing but the sums is stored. On a GPU one kernel does the same for all pairs
of a chunk (``fused``). What has no such form, or needs a matrix product first, is taken for tiles that fit into the
processor's cache. An accelerator gets points, and each row, once, in chunks as large as its memory easily holds;
results are fetched while later chunks are computed.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kme_jax._numerics import fused
from kme_jax._numerics.precision import Progress, precision_of, reproducible_jit

Array = jax.Array

# Rows and points per tile: on a CPU a tile fits into the cache that cores share; an accelerator wants enough pairs to
# fill the device. Chunks are whole tiles.
_TILES = {"cpu": (1024, 1024), "gpu": (8192, 4096), "tpu": (4096, 2048)}
_CHUNK_ROWS = 32768
_CHUNK_POINTS = 16384
# Rows of a chunk on an accelerator: of the one kernel, whose sums are rounded tile by tile; and of tiles one after
# another, whose sums are carried on in the rows' own precision.
_FUSED_CHUNK_ROWS, _RESIDENT_CHUNK_ROWS = 2**21, 2**18
_PARTS = 4  # sums of a chunk that are fetched to be added in float64
_IN_FLIGHT = 4  # chunks that are computed ahead of what is fetched
# Rows whose values at a point are computed and added up in registers, and what the points of such a loop are rounded
# up to.
_UNROLLED_ROWS = 8
_LOOP_POINTS = 256
# Where sums must be exact: 2^15 values below 2^16 fit an int32, and up to 2^38 float64's integers, on up to 32 devices.
_EXACT_TILE_ROWS = 1024
_EXACT_CHUNK_ROWS = 2**15


class PairFunctions(Protocol):
    """c functions f(z_m, x_n), as a pytree.

    Attributes:
      num_values: c.
    """

    num_values: ClassVar[int]

    def __call__(self, points: Array, rows: Array) -> tuple[Array, ...]:
        """f(z_m, x_n) for all pairs: points [m, d], rows [n, d] -> c arrays [m, n]. Finite for rows of zeros."""

    def is_elementwise(self, dim: int) -> bool:
        """Whether, for this many columns, values are computed from broadcast coordinates alone."""

    # What ``fused`` can compute also has columns(points [m, d], rows [n, d]) -> fused.Columns, or None.


def pad(array: np.ndarray, multiple: int) -> np.ndarray:
    """Zeros appended to the first axis up to a multiple."""
    missing = -len(array) % multiple
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


@functools.partial(jax.jit, static_argnames="size")
def _filled_up(array: Array, *, size: int) -> Array:
    return jnp.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))


def _ones_and_zeros(count: Array, size: int, dtype: Any) -> Array:
    """``count`` ones and then zeros, [size]."""
    return (jnp.arange(size, dtype=jnp.int32) < count).astype(dtype)


def _pieces(array: np.ndarray | Array, size: int) -> Iterator[np.ndarray | Array]:
    """Pieces of one length along the first axis, the last one filled up with zeros: on the host, or where the array
    is."""
    starts = range(0, len(array), size)
    if not isinstance(array, jax.Array):
        yield from (pad(array[start : start + size], size) for start in starts)
        return
    array = _filled_up(array, size=len(starts) * size)
    for start in starts:
        yield array if len(starts) == 1 else jax.lax.dynamic_slice_in_dim(array, start, size)


def _placed(piece: Any, place: Any) -> Any:
    """The piece where it is to be: as it is, where it is there."""
    if isinstance(piece, jax.Array) and isinstance(place, jax.Device) and piece.devices() == {place}:
        return piece
    return jax.device_put(piece, place)


def _weight_pieces(weights: np.ndarray | Array | None, num_rows: int, size: int, dtype: Any, counts: bool):
    """As :func:`_pieces`. Without weights: how many rows of each piece there are, or their weights, 1."""
    if weights is not None or not counts:
        yield from _pieces(np.ones(num_rows, dtype) if weights is None else weights, size)
        return
    yield from (np.int32(min(num_rows - start, size)) for start in range(0, num_rows, size))


def _add(totals: list[Array], terms) -> list[Array]:
    return [total + term for total, term in zip(totals, terms, strict=True)]


def _tile_sums(functions: PairFunctions, points: Array, rows: Array, weights: Array) -> list[Array]:
    """Σ_n a_n f(z_m, x_n) of one tile, from all its values."""
    values = functions(points, rows)
    if functions.is_elementwise(rows.shape[1]) or weights.dtype == jnp.int32:
        # A product and a row sum fuse with the function; a select for a mask would keep it from being vectorised.
        return [jnp.sum(value * weights[None, :], axis=1, dtype=weights.dtype) for value in values]
    # The values come from a matrix product and are in memory anyway: the sum is another one.
    return [jnp.matmul(value, weights, precision=jax.lax.Precision.HIGHEST) for value in values]


def _loop_sums(functions: PairFunctions, points: Array, rows: Array, weights: Array) -> list[Array]:
    """The same, _UNROLLED_ROWS at a time in one loop over the points; n is a multiple of that."""
    zeros = [jnp.zeros(points.shape[0], weights.dtype)] * functions.num_values

    def add_rows(totals, group):
        some = zeros
        for row, weight in zip(*group, strict=True):
            some = _add(some, [weight * value[:, 0] for value in functions(points, row[None, :])])
        return _add(totals, some), None

    groups = rows.reshape(-1, _UNROLLED_ROWS, rows.shape[1]), weights.reshape(-1, _UNROLLED_ROWS)
    return jax.lax.scan(add_rows, zeros, groups)[0]


@functools.partial(jax.jit, static_argnames=("tile_rows", "tile_points", "loop"))
def _chunk_sums(functions, columns, rows, weights, *, tile_rows: int, tile_points: int, loop: bool) -> Array:
    """Σ_n a_n f(z_m, x_n): points by columns [d or more, m], rows [n, d], weights a [n] -> [c, m]; whole tiles.

    In the place of weights there may be a number: so many rows have weight 1, and the others 0.
    """
    dim = rows.shape[1]
    weights = weights if weights.ndim else _ones_and_zeros(weights, len(rows), rows.dtype)
    row_tiles = rows.reshape(-1, tile_rows, dim), weights.reshape(-1, tile_rows)
    sums_of = _loop_sums if loop else _tile_sums

    def for_points(some_columns):
        def add_rows(totals, tile):
            return _add(totals, sums_of(functions, some_columns.T, *tile)), None

        zeros = [jnp.zeros(tile_points, weights.dtype)] * functions.num_values
        return jnp.stack(jax.lax.scan(add_rows, zeros, row_tiles)[0])

    sums = jax.lax.map(for_points, jnp.moveaxis(columns.reshape(columns.shape[0], -1, tile_points), 1, 0))
    return jnp.moveaxis(sums, 1, 0).reshape(functions.num_values, -1)


@jax.jit
def _fused_chunk_sums(functions, points, rows, weights) -> Array:
    """The same in one kernel, in parts that are still to be added up: points [m, d], rows [n, d], weights a [n] ->
    [c, parts, m]."""
    weights = weights if weights.ndim else _ones_and_zeros(weights, len(rows), rows.dtype)
    sums = fused.sums(functions, points, rows, weights)
    parts = math.gcd(sums.shape[1], _PARTS)
    return jnp.sum(sums.reshape(sums.shape[0], parts, -1, sums.shape[2]), axis=2)


@functools.lru_cache(maxsize=16)
def _over_devices(sums_of: Callable[..., Array], devices: tuple, **options) -> tuple[Callable[..., Array], Any]:
    """A function of (functions, columns, rows, weights), with the rows split over the devices, which add their sums up;
    and where rows are to be put."""
    sums_of, platform = functools.partial(sums_of, **options), devices[0].platform
    if len(devices) == 1:
        return reproducible_jit(sums_of, platform), devices[0]
    mesh = Mesh(np.asarray(devices), ("rows",))
    rows_spec, everywhere = PartitionSpec("rows"), PartitionSpec()

    def local(functions, columns, rows, weights):
        return jax.lax.psum(sums_of(functions, columns, rows, weights), "rows")

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(everywhere, everywhere, rows_spec, rows_spec),
        out_specs=everywhere,
        check_vma=False,  # the scan's carry starts as a constant, which the check takes for unvarying
    )
    return reproducible_jit(mapped, platform), NamedSharding(mesh, rows_spec)


def _whole_tiles(size: int, tile: int, chunk: int) -> tuple[int, int]:
    """(tile, chunk) for an axis of this size: as few chunks of at most about ``chunk`` as will do, of equal size, each
    a whole number of tiles, so that little is filled up with zeros."""
    tile = min(tile, max(8, 1 << (size - 1).bit_length()))
    num_chunks = -(-size // max(chunk, tile))
    return tile, -(-size // (num_chunks * tile)) * tile


def _exact_tiles(size: int, chunk: int) -> tuple[int, int]:
    """As ``_whole_tiles``, of one tile for all sizes: by how many tiles are in a chunk no value is changed."""
    tiles = 1
    while tiles * _EXACT_TILE_ROWS < size and 2 * tiles * _EXACT_TILE_ROWS <= chunk:
        tiles *= 2
    return _EXACT_TILE_ROWS, tiles * _EXACT_TILE_ROWS


def _few_tiles(size: int, tile: int, chunk: int) -> int:
    """A chunk of at most about ``chunk`` for an axis of this size: as few as will do, of equal size, each of a number
    of tiles with no more than five significant bits, so that many sizes share one shape."""
    num_tiles = -(-size // (-(-size // max(chunk, tile)) * tile))
    step = 1 << max(0, num_tiles.bit_length() - 5)
    return -(-num_tiles // step) * step * tile


class _Plan(NamedTuple):
    """How sums are computed.

    Attributes:
      sums_of: (functions, points [m, d], rows [n, d], weights [n]) -> [c, m], or [c, parts, m].
      by_columns: whether it takes points by columns, [d, m], as the loop over points of a CPU reads them.
      place: where rows and weights are to be put.
      points_place: where points are to be put.
      chunk_rows: n.
      chunk_points: m.
    """

    sums_of: Callable[..., Array]
    by_columns: bool
    place: Any
    points_place: Any
    chunk_rows: int
    chunk_points: int


def _plan(functions: PairFunctions, num_points: int, num_rows: int, dim: int, dtype, exact: bool, devices) -> _Plan:
    """The plan for so many points, and so many rows on each device."""
    platform = devices[0].platform
    elementwise = functions.is_elementwise(dim)
    resident = platform != "cpu" and not exact
    columns = fused.columns_of(functions, dim, dtype) if resident and fused.is_supported(devices[0]) else None
    if columns is not None:
        tile_rows, tile_points = fused.tile_shape(columns, dtype)
        chunk_rows = _few_tiles(num_rows, tile_rows, _FUSED_CHUNK_ROWS)
        chunk_points = _few_tiles(num_points, tile_points, _CHUNK_POINTS)
        sums_of, place = _over_devices(_fused_chunk_sums, devices)
    else:
        loop = platform == "cpu" and elementwise
        tile_rows, tile_points = _TILES.get(platform, _TILES["gpu"])
        if exact:
            tile_rows, chunk_rows = _exact_tiles(num_rows, _EXACT_CHUNK_ROWS // len(devices))
        elif resident:
            tile_rows, _ = _whole_tiles(num_rows, tile_rows, _RESIDENT_CHUNK_ROWS)
            chunk_rows = _few_tiles(num_rows, tile_rows, _RESIDENT_CHUNK_ROWS)
        else:
            tile_rows, chunk_rows = _whole_tiles(num_rows, tile_rows, _CHUNK_ROWS)
        tile_points, chunk_points = _whole_tiles(num_points, _LOOP_POINTS if loop else tile_points, _CHUNK_POINTS)
        tile_points = chunk_points if loop else tile_points
        sums_of, place = _over_devices(_chunk_sums, devices, tile_rows=tile_rows, tile_points=tile_points, loop=loop)
    everywhere = NamedSharding(place.mesh, PartitionSpec()) if len(devices) > 1 else place
    return _Plan(sums_of, columns is None, place, everywhere, chunk_rows * len(devices), chunk_points)


def pair_sums(
    functions: PairFunctions,
    points: np.ndarray | Array,
    rows: np.ndarray | Array,
    weights: np.ndarray | Array | None,
    *,
    exact: bool = False,
    rows_planned: int | None = None,
    devices=None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Σ_n a_n f(z_m, x_n) for every m and each of the c functions f.

    Args:
      functions: the functions. Tiles are filled up with zero rows of weight 0.
      points: z, [M, d], of the dtype to compute in; on the host or on a device, as rows and weights.
      rows: x, [N, d], finite, of the same dtype.
      weights: a, [N], of the same dtype; of int32 if the functions' values are; 1 if None.
      exact: for functions with integer values, below 2^16 in int32 or up to 2^38 in float64, and weights 0 and 1: no
        sum is ever rounded, and a value does not depend on what else is summed.
      rows_planned: how many rows the shape of a chunk is chosen for; N if None. Where N is private this is public, so
        that the same compiled program sees every row, whatever N.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (pairs of chunks done, pairs of chunks in all).

    Returns:
      [c, M] on the host: sums within a chunk have the weights' dtype, chunks are added in float64; in int64 if exact.
    """
    dtype = rows.dtype
    with precision_of(rows):
        devices = tuple(jax.local_devices() if devices is None else devices)
        if exact:  # so that a chunk, of one tile at least for each device, is no larger than it may be
            devices = devices[: _EXACT_CHUNK_ROWS // _EXACT_TILE_ROWS]
        if dtype == np.float64 and jax.default_backend() == "tpu":
            devices = tuple(jax.local_devices(backend="cpu"))
        share = -(-(len(rows) if rows_planned is None else rows_planned) // len(devices))
        plan = _plan(functions, len(points), share, rows.shape[1], dtype, exact, devices)
        pieces = _pieces(points, plan.chunk_points)
        parts = [_placed(piece.T if plan.by_columns else piece, plan.points_place) for piece in pieces]
        sums = np.zeros((functions.num_values, len(parts) * plan.chunk_points), np.int64 if exact else np.float64)
        total, done = -(-len(rows) // plan.chunk_rows) * len(parts), 0
        computed: collections.deque[tuple[int, Array]] = collections.deque()

        def fetch(at_most: int) -> None:
            nonlocal done
            while len(computed) > at_most:
                start, some = computed.popleft()
                values = np.asarray(some)
                values = values.sum(axis=1, dtype=sums.dtype) if values.ndim == 3 else values.astype(sums.dtype)
                sums[:, start : start + plan.chunk_points] += values
                done += 1
                if progress:
                    progress(done, total)

        on_host = devices[0].platform == "cpu"
        row_pieces = _pieces(rows, plan.chunk_rows)
        counts = not on_host and len(devices) == 1  # each of several devices would need a number of its own
        weight_pieces = _weight_pieces(weights, len(rows), plan.chunk_rows, dtype, counts)
        for row_piece, weight_piece in zip(row_pieces, weight_pieces, strict=True):
            placed = [_placed(piece, plan.place) for piece in (row_piece, weight_piece)]
            for number, part in enumerate(parts):
                computed.append((number * plan.chunk_points, plan.sums_of(functions, part, *placed)))
                fetch(0 if on_host else _IN_FLIGHT)
        fetch(0)
        return sums[:, : len(points)]
