"""Sums of ``fused`` on one GPU: few programs, few copies, and one fetch for each chunk.

With a million rows the kernel takes milliseconds. A copy, a fetch or a program costs tens of microseconds each, so a
call has as few of them as possible:

* one program cuts a piece from rows that are on the device, and checks it. It is compiled for each number of rows, in
  little time, because it is simple.
* one program computes the sums of a chunk. It is compiled for few sizes.
* parameters and the common centre come in one copy, and points in another one.
* sums come in one fetch. It also tells whether all rows are finite: if one is not, all sums are NaN.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics import fused
from kme_jax._numerics.pieces import IN_FLIGHT, PARTS, pad, safe_rows_within
from kme_jax._numerics.precision import Progress, is_on_accelerator, reproducible_jit

Array = jax.Array


@functools.partial(jax.jit, static_argnames=("size", "check"))
def cut_piece(array: Array, weights: Array | None, start: Any, largest: Any, *, size: int, check: bool):
    """``size`` rows of an array and of the weights from ``start`` on (from 0 if None), with zeros after the end.

    With a ``largest``, rows that have a larger entry, or NaN, become zeros, and their weights 0; all others have weight
    1.

    Also the state of the piece, [2]: how many of its rows are rows of the array (which is exact in float32, because it
    is below 2^24); and 1, or NaN if one is not finite.
    """

    def cut(values):
        missing = -len(values) % size
        padded = jnp.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1))
        return padded if start is None else jax.lax.dynamic_slice_in_dim(padded, start, size)

    rows, weights = cut(array), None if weights is None else cut(weights)
    count = jnp.minimum(len(array) - (0 if start is None else start), size)
    if largest is not None:
        rows, inside = safe_rows_within(rows, largest)
        weights = jnp.where(jnp.arange(size, dtype=jnp.int32) < count, inside, 0)
    unit = jnp.where(jnp.isfinite(rows).all(), 1, jnp.nan) if check else 1
    state = jnp.stack([count.astype(rows.dtype), jnp.asarray(unit, rows.dtype)])
    return rows, weights, state


def chunk_of_sums(numbers, columns, rows, weights, state, *, structure, centred: bool, skip: bool) -> Array:
    """Σ_n a_n f(z_m, x_n) of a chunk, [c, parts, m]. The parts have still to be summed.

    No argument of the kernel may be a slice of an argument of this program: XLA would pass a pointer into it, which can
    have an alignment that the kernel's loads do not support.

    Args:
      numbers: the leaves of f, and the mean of all points if ``centred``, [leaves + d].
      columns: z by columns, [d, m].
      rows: x, [n, d].
      weights: a, [n]; 1 if None. Rows beyond the count of the state have weight 0.
      state: of the rows, see :func:`cut_piece`.
      structure: of f as a pytree.
      centred: whether the mean of all points is subtracted from z and x.
      skip: whether to skip rows beyond the count.
    """
    num_leaves, points = structure.num_leaves, columns.T
    functions = jax.tree.unflatten(structure, [numbers[k] for k in range(num_leaves)])
    count, unit = state[0].astype(jnp.int32), state[1]
    inside = jnp.arange(rows.shape[0], dtype=jnp.int32) < count
    if centred:
        centre = numbers[None, num_leaves:]
        points, rows = points - centre, jnp.where(inside[:, None], rows - centre, 0)
    weights = jnp.where(inside, unit, 0) if weights is None else weights * unit
    sums = fused.sums(functions, points, rows, weights, state if skip else None)
    parts = math.gcd(sums.shape[1], PARTS)
    return jnp.sum(sums.reshape(sums.shape[0], parts, -1, sums.shape[2]), axis=2)


@functools.cache
def program_for(platform: str):
    """:func:`chunk_of_sums`, compiled for the devices of a platform."""
    return reproducible_jit(chunk_of_sums, platform, static_argnames=("structure", "centred", "skip"))


def _on(device: Any, array: np.ndarray | Array) -> Array:
    """The array on the device. It is not copied if it is there already."""
    there = isinstance(array, jax.Array) and array.devices() == {device}
    return cast(Array, array) if there else jax.device_put(array, device)


def _start(start: int, starts: range) -> np.int32 | None:
    """An argument of :func:`cut_piece`. If there is a single piece, there is none to copy."""
    return None if len(starts) == 1 else np.int32(start)


def _row_chunks(
    rows, weights, size: int, device: Any, check: bool, largest: float | None
) -> Iterator[tuple[Any, Any, Any]]:
    """Pieces of the rows and of the weights on the device, and their states, see :func:`cut_piece`."""
    starts = range(0, len(rows), size)
    if is_on_accelerator(rows) or largest is not None:
        rows = _on(device, rows)
        weights = None if weights is None else _on(device, weights)
        for start in starts:
            yield cut_piece(rows, weights, _start(start, starts), largest, size=size, check=check)
        return
    for start in starts:
        piece = rows[start : start + size]
        placed = jax.device_put(pad(piece, size), device)
        part = None if weights is None else np.asarray(weights[start : start + size])
        yield placed, part if part is None else pad(part, size), np.array([len(piece), 1], rows.dtype)


def _point_chunks(points: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The columns of each chunk of ``size`` points, [d, size]."""
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        columns = np.zeros((points.shape[1], size), points.dtype)
        columns[:, : len(piece)] = piece.T
        yield columns


def pair_sums(
    functions: Any,
    points: np.ndarray,
    rows: np.ndarray | Array,
    weights: np.ndarray | Array | None,
    *,
    device: Any,
    chunk_rows: int,
    chunk_points: int,
    centred: bool,
    check: bool,
    largest: float | None,
    skip: bool,
    progress: Progress | None,
) -> np.ndarray:
    """Σ_n a_n f(z_m, x_n) for every m and each of the c functions f: float64 [c, M], on the host.

    Args:
      functions: f, as ``fused.sums`` takes them.
      points: z, [M, d], on the host.
      rows: x, [N, d], of the same dtype, on the host or on the device.
      weights: a, [N], of the same dtype; 1 if None.
      device: the GPU.
      chunk_rows: rows of a chunk, a whole number of tiles of ``fused``.
      chunk_points: points of a chunk, a whole number of tiles of ``fused``.
      centred: whether the mean of the points is subtracted from points and rows.
      check: whether to return NaN for all m if a row that is on the device is not finite.
      largest: rows that have a larger entry, or NaN, do not count. For rows without weights.
      skip: whether to save the time of the zeros after the last row. The time then shows the number of rows.
      progress: called with (pairs of chunks done, number of pairs of chunks).
    """
    leaves, structure = jax.tree.flatten(functions)
    starts = range(0, len(points), chunk_points)
    sums = np.zeros((functions.num_values, len(starts) * chunk_points))
    row_chunks = _row_chunks(rows, weights, chunk_rows, device, check, largest)
    centre = points.mean(axis=0, dtype=points.dtype) if centred else ()
    numbers: Any = np.asarray([*leaves, *centre], points.dtype)
    point_chunks: list[Any] = list(_point_chunks(points, chunk_points))
    if len(rows) > chunk_rows:  # they are used again and again
        numbers, point_chunks = jax.device_put((numbers, point_chunks), device)
    total, done = -(-len(rows) // chunk_rows) * len(starts), 0
    computed: collections.deque[tuple[int, Array]] = collections.deque()
    program = program_for(device.platform)

    def fetch(at_most: int) -> None:
        nonlocal done
        while len(computed) > at_most:
            start, chunk_sums = computed.popleft()
            sums[:, start : start + chunk_points] += np.asarray(chunk_sums).astype(np.float64).sum(axis=1)
            done += 1
            if progress:
                progress(done, total)

    for chunk, chunk_weights, state in row_chunks:
        for start, columns in zip(starts, point_chunks, strict=True):
            args = numbers, columns, chunk, chunk_weights, state
            chunk_sums = program(*args, structure=structure, centred=centred, skip=skip)
            chunk_sums.copy_to_host_async()  # it begins when the sums are there, without a word from the host
            computed.append((start, chunk_sums))
            fetch(IN_FLIGHT)
    fetch(0)
    return sums[:, : len(points)]
