"""Pieces of arrays of few different sizes, so that few programs are compiled; and the rows that may be summed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

PARTS = 4  # sums of a chunk that are fetched to be added in float64
IN_FLIGHT = 4  # chunks that are computed ahead of what is fetched


def pad(array: np.ndarray, multiple: int) -> np.ndarray:
    """The array with zeros appended, so that the length of its first axis is a multiple."""
    missing = -len(array) % multiple
    if not missing:
        return array
    padded = np.zeros((len(array) + missing, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def few_tiles(size: int, tile: int, chunk: int) -> int:
    """The size of a chunk of at most about ``chunk`` for an axis of this size.

    There are as few chunks as possible, of equal size. Their number of tiles has at most five significant bits, so that
    many sizes share one shape.

    Args:
      size: of the axis.
      tile: size of a tile.
      chunk: approximate largest size of a chunk.
    """
    num_tiles = -(-size // (-(-size // max(chunk, tile)) * tile))
    step = 1 << max(0, num_tiles.bit_length() - 5)
    return -(-num_tiles // step) * step * tile


def safe_rows(rows: Array, usable: Array) -> tuple[Array, Array]:
    """Rows [n, d] with zeros in the place of those that are not usable, and their weights [n], 0 or 1. Traceable."""
    return jnp.where(usable[:, None], rows, 0), usable.astype(rows.dtype)


def within(rows: Array, largest: Array | float) -> Array:
    """Which rows [n, d] have no entry that is larger in size, or NaN, [n]. Traceable."""
    return (jnp.abs(rows) <= largest).all(axis=1)


@jax.jit
def safe_rows_within(rows: Array, largest: Array | float) -> tuple[Array, Array]:
    """:func:`safe_rows` for the rows :func:`within` a bound."""
    return safe_rows(rows, within(rows, largest))
