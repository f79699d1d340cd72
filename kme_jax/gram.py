"""Gram matrices, kernel means and double means, in tiles: memory never depends on N · M."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax import tiles
from kme_jax.kernels import UNROLLED_COLUMNS, Kernel
from kme_jax.numerics import Progress, check_columns, check_points, float64
from kme_jax.pytrees import pytree_dataclass

Array = jax.Array

_DOUBLE_MEAN_STEP = 8192  # rows of the triangle of pairs taken at a time


def gram(kernel: Kernel, x: Array, y: Array | None = None) -> Array:
    """The Gram matrix k(x_n, y_m), from direct differences: [n, d], [m, d] -> [n, m]. Traceable; y = x if None."""
    return kernel.pairwise(x, x if y is None else y)


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class KernelValues:
    """k(z_m, x_n), for ``tiles.pair_sums``; ``expand`` as in ``Kernel.pairwise``."""

    kernel: Kernel
    expand: bool = dataclasses.field(metadata={"static": True})
    num_values: ClassVar[int] = 1

    def __call__(self, points, rows):
        return (self.kernel.pairwise(points, rows, expand=self.expand),)

    def is_elementwise(self, dim):
        return dim <= UNROLLED_COLUMNS and not (self.expand and self.kernel.expands(dim))


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

    Where ``kernel.expands`` for the number of columns, distances are expanded about the points' mean: fast, and
    accurate where the points, seen from their mean, are at most some thousand bandwidths away.

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
    if kernel.is_shift_invariant and kernel.expands(points.shape[1]):
        # The expanded form is accurate about a common centre. The points are public.
        centre = points.mean(axis=0, dtype=np.float64)
        points, rows = points - centre, rows - centre
    points, rows = points.astype(dtype), rows.astype(dtype)
    sums = tiles.pair_sums(KernelValues(kernel, expand=True), points, rows, weights, devices=devices, progress=progress)
    return sums[0].astype(dtype)


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
    step = min(n, _DOUBLE_MEAN_STEP)
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
    padded = tiles.pad(points, step)
    with float64():
        on_device = jnp.asarray(padded)
        blocks = [
            np.asarray(_lower_row_sums(kernel, padded[start : start + step], on_device, np.int32(start)))
            for start in range(0, n, step)
        ]
    return np.cumsum(np.concatenate(blocks)[:n]) / np.arange(1, n + 1) ** 2
