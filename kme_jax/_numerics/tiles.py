"""Weighted sums over rows of functions of (point, row) pairs, in tiles. Memory does not grow with N · M.

A Python loop takes one chunk of rows at a time, so that long work can report its progress. Within a chunk, one jitted
program takes all tiles. Chunks have few different shapes, so few programs are compiled. Rows are spread over devices,
which add up their sums.

On a CPU, a function that is elementwise in the coordinates is evaluated for a few rows at a time and all points of a
chunk. This is a loop over the points that stores the sums only. On a GPU, one kernel does the same for all pairs of a
chunk (``fused``). Any other function is evaluated for tiles that fit into the processor's cache. Points and rows are
copied to an accelerator once, in chunks that its memory easily holds. Results are fetched while later chunks are
computed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kme_jax._numerics import fused, resident
from kme_jax._numerics.pieces import IN_FLIGHT, PARTS, few_tiles, pad, safe_rows_within
from kme_jax._numerics.precision import Progress, check_finite, precision_of, reproducible_jit
from kme_jax._numerics.short_repr import short_repr

Array = jax.Array

_UNROLLED_ROWS = 8  # rows whose values at a point are added up in registers
# For exact sums: 2^15 values below 2^16 fit an int32, and values up to 2^38 fit the integers of float64, on up to 32
# devices.
_EXACT_TILE_ROWS = 1024
_EXACT_CHUNK_ROWS = 2**15


@short_repr
@dataclasses.dataclass(frozen=True)
class TileSizes:
    """Sizes of tiles and chunks. A chunk has a whole number of tiles.

    Attributes:
      cpu: rows and points of a tile on a CPU. It fits into the shared cache of the cores.
      gpu: rows and points of a tile on a GPU. It has enough pairs to fill the device.
      tpu: rows and points of a tile on a TPU.
      chunk_rows: rows of a chunk on a CPU.
      chunk_points: points of a chunk.
      fused_chunk_rows: rows of a chunk of the single kernel on an accelerator, which rounds sums tile by tile.
      resident_chunk_rows: rows of a chunk of tiles one after another on an accelerator, which carry sums in the
        precision of the rows.
      loop_points: the number of points of a loop over points on a CPU is rounded up to a multiple of it.
    """

    cpu: tuple[int, int] = (1024, 1024)
    gpu: tuple[int, int] = (8192, 4096)
    tpu: tuple[int, int] = (4096, 2048)
    chunk_rows: int = 32768
    chunk_points: int = 16384
    fused_chunk_rows: int = 2**21
    resident_chunk_rows: int = 2**18
    loop_points: int = 256

    def tile(self, platform: str) -> tuple[int, int]:
        """Rows and points of a tile on a platform of JAX. A platform without sizes of its own has those of a GPU."""
        return {"cpu": self.cpu, "tpu": self.tpu}.get(platform, self.gpu)


TILE_SIZES = TileSizes()


class PairFunctions(Protocol):
    """c functions f(z_m, x_n), as a pytree.

    Attributes:
      num_values: c.
    """

    num_values: ClassVar[int]

    def __call__(self, points: Array, rows: Array, /) -> tuple[Array, ...]:
        """f(z_m, x_n) for all pairs: points [m, d], rows [n, d] -> c arrays [m, n]. Finite for rows of zeros."""
        ...

    def is_elementwise(self, dim: int) -> bool:
        """Whether values for this number of columns are computed from broadcast coordinates alone."""
        ...

    # What ``fused`` can compute also has columns(points [m, d], rows [n, d]) -> fused.Columns, or None.


@functools.partial(jax.jit, static_argnames="size")
def _padded_to(array: Array, *, size: int) -> Array:
    return jnp.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))


def _ones_and_zeros(count: Array, size: int, dtype: Any) -> Array:
    """``count`` ones and then zeros, [size]."""
    return (jnp.arange(size, dtype=jnp.int32) < count).astype(dtype)


def _pieces(array: np.ndarray | Array, size: int) -> Iterator[np.ndarray | Array]:
    """Pieces of equal length along the first axis, on the device of the array. The last one is padded with zeros."""
    starts = range(0, len(array), size)
    if not isinstance(array, jax.Array):
        yield from (pad(array[start : start + size], size) for start in starts)
        return
    array = _padded_to(array, size=len(starts) * size)
    for start in starts:
        yield array if len(starts) == 1 else jax.lax.dynamic_slice_in_dim(array, start, size)


def _placed(piece: Any, place: Any) -> Any:
    """The piece on a device. It is not copied if it is there already."""
    if isinstance(piece, jax.Array) and isinstance(place, jax.Device) and piece.devices() == {place}:
        return piece
    return jax.device_put(piece, place)


def _weight_pieces(weights: np.ndarray | Array | None, num_rows: int, size: int, dtype: Any, counts: bool):
    """Pieces of the weights. Without weights: numbers of rows of the pieces if ``counts``, otherwise weights of 1."""
    if weights is not None or not counts:
        yield from _pieces(np.ones(num_rows, dtype) if weights is None else weights, size)
        return
    yield from (np.int32(min(num_rows - start, size)) for start in range(0, num_rows, size))


def _add(totals: list[Array], terms) -> list[Array]:
    return [total + term for total, term in zip(totals, terms, strict=True)]


def tile_sums(functions: PairFunctions, points: Array, rows: Array, weights: Array) -> list[Array]:
    """Σ_n a_n f(z_m, x_n) of one tile, from the values of all pairs. Traceable.

    Args:
      functions: f, c functions.
      points: z, [m, d].
      rows: x, [n, d].
      weights: a, [n].

    Returns:
      c arrays [m], of the dtype of the weights.
    """
    values = functions(points, rows)
    if functions.is_elementwise(rows.shape[1]) or weights.dtype == jnp.int32:
        # A product and a row sum fuse with the function. A select for a mask would prevent vectorisation.
        return [jnp.sum(value * weights[None, :], axis=1, dtype=weights.dtype) for value in values]
    # The values come from a matrix product and are in memory anyway: the sum is another one.
    return [jnp.matmul(value, weights, precision=jax.lax.Precision.HIGHEST) for value in values]


def loop_sums(functions: PairFunctions, points: Array, rows: Array, weights: Array) -> list[Array]:
    """As :func:`tile_sums`, in one loop over the points, for _UNROLLED_ROWS rows at a time; n is a multiple of it."""
    zeros = [jnp.zeros(points.shape[0], weights.dtype)] * functions.num_values

    def add_rows(totals, group):
        sums_of_group = zeros
        for row, weight in zip(*group, strict=True):
            sums_of_group = _add(sums_of_group, [weight * value[:, 0] for value in functions(points, row[None, :])])
        return _add(totals, sums_of_group), None

    groups = rows.reshape(-1, _UNROLLED_ROWS, rows.shape[1]), weights.reshape(-1, _UNROLLED_ROWS)
    return jax.lax.scan(add_rows, zeros, groups)[0]


@functools.partial(jax.jit, static_argnames=("tile_rows", "tile_points", "loop"))
def _chunk_sums(functions, columns, rows, weights, *, tile_rows: int, tile_points: int, loop: bool) -> Array:
    """Σ_n a_n f(z_m, x_n) of a chunk of whole tiles, [c, m].

    Args:
      functions: f.
      columns: points by columns, [d or more, m].
      rows: x, [n, d].
      weights: a, [n]; or a number k, for k rows of weight 1 and then rows of weight 0.
      tile_rows: rows of a tile.
      tile_points: points of a tile.
      loop: whether to use :func:`loop_sums`.
    """
    dim = rows.shape[1]
    weights = weights if weights.ndim else _ones_and_zeros(weights, len(rows), rows.dtype)
    row_tiles = rows.reshape(-1, tile_rows, dim), weights.reshape(-1, tile_rows)
    sums_of = loop_sums if loop else tile_sums

    def for_points(tile_columns):
        def add_rows(totals, tile):
            return _add(totals, sums_of(functions, tile_columns.T, *tile)), None

        zeros = [jnp.zeros(tile_points, weights.dtype)] * functions.num_values
        return jnp.stack(jax.lax.scan(add_rows, zeros, row_tiles)[0])

    sums = jax.lax.map(for_points, jnp.moveaxis(columns.reshape(columns.shape[0], -1, tile_points), 1, 0))
    return jnp.moveaxis(sums, 1, 0).reshape(functions.num_values, -1)


@jax.jit
def _fused_chunk_sums(functions, points, rows, weights) -> Array:
    """As :func:`_chunk_sums`, for points [m, d], in one kernel. The result [c, parts, m] has still to be summed."""
    weights = weights if weights.ndim else _ones_and_zeros(weights, len(rows), rows.dtype)
    sums = fused.sums(functions, points, rows, weights)
    parts = math.gcd(sums.shape[1], PARTS)
    return jnp.sum(sums.reshape(sums.shape[0], parts, -1, sums.shape[2]), axis=2)


@functools.lru_cache(maxsize=16)
def _over_devices(sums_of: Callable[..., Array], devices: tuple, **options) -> tuple[Callable[..., Array], Any]:
    """``sums_of`` with the rows split over devices, which add up their sums; and where rows have to be placed."""
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
        check_vma=False,  # the check would refuse the constant start of the scan's carry
    )
    return reproducible_jit(mapped, platform), NamedSharding(mesh, rows_spec)


def _whole_tiles(size: int, tile: int, chunk: int) -> tuple[int, int]:
    """The sizes of a tile and of a chunk for an axis of this size.

    There are as few chunks of at most about ``chunk`` as possible. They have equal sizes and whole numbers of tiles, so
    that there is little padding.
    """
    tile = min(tile, max(8, 1 << (size - 1).bit_length()))
    num_chunks = -(-size // max(chunk, tile))
    return tile, -(-size // (num_chunks * tile)) * tile


def _exact_tiles(size: int, chunk: int) -> tuple[int, int]:
    """As ``_whole_tiles``, with the same tile for all sizes, so that values do not depend on the size."""
    tiles = 1
    while tiles * _EXACT_TILE_ROWS < size and 2 * tiles * _EXACT_TILE_ROWS <= chunk:
        tiles *= 2
    return _EXACT_TILE_ROWS, tiles * _EXACT_TILE_ROWS


class _Plan(NamedTuple):
    """The settings of a computation of sums.

    Attributes:
      sums_of: a function of functions, points [m, d], rows [n, d] and weights [n] that returns [c, m] or [c, parts, m].
        None if ``resident`` computes the sums.
      by_columns: whether it takes points by columns, [d, m], as the loop over points on a CPU reads them.
      place: device or sharding of rows and weights.
      points_place: device or sharding of points.
      chunk_rows: n.
      chunk_points: m.
    """

    sums_of: Callable[..., Array] | None
    by_columns: bool
    place: Any
    points_place: Any
    chunk_rows: int
    chunk_points: int


def _plan(
    functions: PairFunctions,
    num_points: int,
    num_rows: int,
    dim: int,
    dtype,
    exact: bool,
    devices,
    sizes: TileSizes,
) -> _Plan:
    """The plan for numbers of points and of rows on each device."""
    platform = devices[0].platform
    elementwise = functions.is_elementwise(dim)
    on_accelerator = platform != "cpu" and not exact
    columns = fused.columns_of(functions, dim, dtype) if not exact and fused.is_supported(devices[0]) else None
    if columns is not None:
        tile_rows, tile_points = fused.tile_shape(columns, dtype)
        chunk_rows = few_tiles(num_rows, tile_rows, sizes.fused_chunk_rows)
        chunk_points = few_tiles(num_points, tile_points, sizes.chunk_points)
        if len(devices) == 1:
            return _Plan(None, False, devices[0], devices[0], chunk_rows, chunk_points)
        sums_of, place = _over_devices(_fused_chunk_sums, devices)
    else:
        loop = platform == "cpu" and elementwise
        tile_rows, tile_points = sizes.tile(platform)
        if exact:
            tile_rows, chunk_rows = _exact_tiles(num_rows, _EXACT_CHUNK_ROWS // len(devices))
        elif on_accelerator:
            tile_rows, _ = _whole_tiles(num_rows, tile_rows, sizes.resident_chunk_rows)
            chunk_rows = few_tiles(num_rows, tile_rows, sizes.resident_chunk_rows)
        else:
            tile_rows, chunk_rows = _whole_tiles(num_rows, tile_rows, sizes.chunk_rows)
        tile_points = sizes.loop_points if loop else tile_points
        tile_points, chunk_points = _whole_tiles(num_points, tile_points, sizes.chunk_points)
        tile_points = chunk_points if loop else tile_points
        sums_of, place = _over_devices(_chunk_sums, devices, tile_rows=tile_rows, tile_points=tile_points, loop=loop)
    everywhere = NamedSharding(place.mesh, PartitionSpec()) if len(devices) > 1 else place
    return _Plan(sums_of, columns is None, place, everywhere, chunk_rows * len(devices), chunk_points)


def pair_sums(
    functions: PairFunctions,
    points: np.ndarray,
    rows: np.ndarray | Array,
    weights: np.ndarray | Array | None,
    *,
    centred: bool = False,
    check: bool = False,
    largest: float | None = None,
    exact: bool = False,
    rows_planned: int | None = None,
    devices=None,
    sizes: TileSizes = TILE_SIZES,
    progress: Progress | None = None,
) -> np.ndarray:
    """Σ_n a_n f(z_m, x_n) for every m and each of the c functions f.

    Args:
      functions: f. Tiles are padded with zero rows of weight 0.
      points: z, [M, d], of the dtype to compute in, on the host. Rows and weights may be on the host or on a device.
      rows: x, [N, d], finite, of the same dtype.
      weights: a, [N], of the same dtype, or int32 if the values of the functions are int32; 1 if None.
      centred: whether the mean of the points, which are public, is subtracted from points and rows.
      check: whether to check rows that are on an accelerator. (The caller checks what is on the host.)
      largest: rows count only if no entry is larger in size, or NaN. For rows without weights.
      exact: whether to compute exact sums. For functions with integer values (below 2^16 in int32, up to 2^38 in
        float64) and weights 0 and 1. No sum is rounded, and a value does not depend on the other rows.
      rows_planned: the number of rows for which the shape of a chunk is chosen; N if None. If N is private, a public
        number makes the same compiled program process every row, whatever N is.
      devices: JAX devices over which the rows are spread; all local devices if None.
      sizes: of tiles and chunks.
      progress: called with (pairs of chunks done, number of pairs of chunks).

    Returns:
      Sums, [c, M], on the host. Sums within a chunk have the dtype of the weights. Chunks are added in float64, or in
      int64 if ``exact``.

    Raises:
      ValueError: ``check``, and a row is not finite.
    """
    dtype = rows.dtype
    with precision_of(rows):
        devices = tuple(jax.local_devices() if devices is None else devices)
        if exact:  # a chunk has at least one tile for each device, and a limited size
            devices = devices[: _EXACT_CHUNK_ROWS // _EXACT_TILE_ROWS]
        if dtype == np.float64 and jax.default_backend() == "tpu":
            devices = tuple(jax.local_devices(backend="cpu"))
        share = -(-(len(rows) if rows_planned is None else rows_planned) // len(devices))
        plan = _plan(functions, len(points), share, rows.shape[1], dtype, exact, devices, sizes)
        if plan.sums_of is None:
            sums = resident.pair_sums(
                functions,
                points,
                rows,
                weights,
                device=devices[0],
                chunk_rows=plan.chunk_rows,
                chunk_points=plan.chunk_points,
                centred=centred,
                check=check,
                largest=largest,
                skip=rows_planned is None,
                progress=progress,
            )
            if check and np.isnan(sums).any():
                check_finite(rows, "rows")()
            return sums
        if largest is not None:
            rows, weights = safe_rows_within(cast(Array, rows), largest)
        finish_check = check_finite(rows, "rows") if check else lambda: None
        if centred:
            centre = points.mean(axis=0, dtype=dtype)[None, :]
            points, rows = points - centre, rows - centre
        pieces = _pieces(points, plan.chunk_points)
        chunks = [_placed(piece.T if plan.by_columns else piece, plan.points_place) for piece in pieces]
        sums = np.zeros((functions.num_values, len(chunks) * plan.chunk_points), np.int64 if exact else np.float64)
        total, done = -(-len(rows) // plan.chunk_rows) * len(chunks), 0
        computed: collections.deque[tuple[int, Array]] = collections.deque()

        def fetch(at_most: int) -> None:
            nonlocal done
            while len(computed) > at_most:
                start, chunk_sums = computed.popleft()
                values = np.asarray(chunk_sums)
                values = values.sum(axis=1, dtype=sums.dtype) if values.ndim == 3 else values.astype(sums.dtype)
                sums[:, start : start + plan.chunk_points] += values
                done += 1
                if progress:
                    progress(done, total)

        on_host = devices[0].platform == "cpu"
        row_pieces = _pieces(rows, plan.chunk_rows)
        counts = not on_host and len(devices) == 1  # with several devices, each would need its own number
        weight_pieces = _weight_pieces(weights, len(rows), plan.chunk_rows, dtype, counts)
        for row_piece, weight_piece in zip(row_pieces, weight_pieces, strict=True):
            placed = [_placed(piece, plan.place) for piece in (row_piece, weight_piece)]
            for number, chunk in enumerate(chunks):
                computed.append((number * plan.chunk_points, plan.sums_of(functions, chunk, *placed)))
                fetch(0 if on_host else IN_FLIGHT)
        fetch(0)
        finish_check()
        return sums[:, : len(points)]
