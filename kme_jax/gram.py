"""Gram matrices, kernel means and double means. They are computed in tiles, so memory does not grow with N · M."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Real

from kme_jax._numerics import fused, tiles
from kme_jax._numerics.precision import (
    Progress,
    check_columns,
    check_points,
    check_points_in_place,
    float64,
    in_float64,
    is_on_accelerator,
    precision_of,
    reproducible_jit,
)
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax.kernels import UNROLLED_COLUMNS, Kernel
from kme_jax.kernels.base import check_sets

Array = jax.Array


def gram(kernel: Kernel, x: Real[AnyArray, "n d"], y: Real[AnyArray, "m d"] | None = None) -> Float[Array, "n m"]:
    """The Gram matrix k(x_i, y_j), from direct differences. Traceable.

    Args:
      kernel: k.
      x: points, [n, d].
      y: points, [m, d]; x if None.

    Returns:
      [n, m].

    Raises:
      ValueError: if shapes mismatch.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian
      >>> from kme_jax.gram import gram
      >>> np.asarray(gram(Gaussian(gamma=0.5), np.array([[0.0, 0.0], [1.0, 1.0]], np.float32))).round(3)
      array([[1.   , 0.368],
             [0.368, 1.   ]], dtype=float32)
    """
    y = x if y is None else y
    check_sets(x, y)
    return kernel.pairwise(x, y)


_gram = reproducible_jit(gram)


@in_float64
def gram_matrix(
    kernel: Kernel, x: Float64[np.ndarray, "n d"], y: Float64[np.ndarray, "m d"]
) -> Float64[np.ndarray, "n m"]:
    """The whole matrix k(x_i, y_j) in float64, on the host and read-only, for solvers that need all of it at once.

    Points are padded, so that few shapes are compiled.

    Args:
      kernel: k.
      x: points, [n, d].
      y: points, [m, d].
    """
    padded = [tiles.pad(points, _padded_size(len(points))) for points in (x, y)]
    return np.asarray(_gram(kernel, *padded))[: len(x), : len(y)]


def _padded_size(number: int) -> int:
    return max(64, 1 << (number - 1).bit_length()) if number <= 1024 else -(-number // 512) * 512


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class KernelValues:
    """k(z_m, x_n) as a function for ``tiles.pair_sums``, with ``expand`` as in ``Kernel.pairwise``."""

    kernel: Kernel
    expand: bool = dataclasses.field(metadata={"static": True})
    num_values: ClassVar[int] = 1

    def __call__(self, points: Real[AnyArray, "m d"], rows: Real[AnyArray, "n d"]) -> tuple[Float[Array, "m n"]]:
        return (self.kernel.pairwise(points, rows, expand=self.expand),)

    def columns(self, points, rows):
        form = self.kernel.columnwise(points, rows, expand=self.expand)
        if form is None:
            return None
        return fused.Columns(form.x, form.y, lambda mine, z, x, exp2: (form.value(mine.kernel, z, x, exp2),))

    def is_elementwise(self, dim):
        return dim <= UNROLLED_COLUMNS and not (self.expand and self.kernel.expands(dim))


@shows_progress("kernel values")
def kernel_sums(
    kernel: Kernel,
    points: Real[AnyArray, "M d"],
    rows: Real[AnyArray, "N d"],
    weights: Real[AnyArray, "N"] | None = None,
    *,
    devices=None,
    progress: Progress | bool = False,
) -> Float[np.ndarray, "M"]:
    """Σ_n a_n k(z_m, x_n) for every m, in the wider of the two dtypes.

    Float64 works whatever JAX's global setting is. Rows on an accelerator are used there.

    If ``kernel.expands`` for the number of columns, squared distances are expanded about the mean of the points. This
    is fast. It is accurate if the points are at most some thousand bandwidths away from their mean.

    Args:
      kernel: k.
      points: z, [M, d].
      rows: x, [N, d], finite.
      weights: a, [N]; 1 if None.
      devices: JAX devices over which the rows are spread; all local devices if None.
      progress: True for a bar, or a function that is called with (pairs of chunks done, number of pairs of chunks).

    Returns:
      Sums, [M], on the host. Partial sums are added in float64.

    Raises:
      ValueError: shapes mismatch, or a value is not finite.
    """
    points, rows = check_points(points), check_points_in_place(rows, "rows")
    check_columns(rows, points.shape[1], "rows")
    dtype = np.result_type(points.dtype, rows.dtype)
    with precision_of(points, rows):
        points = points if points.dtype == dtype else points.astype(dtype)
        rows = rows if rows.dtype == dtype else rows.astype(dtype)
        if weights is not None:
            weights = weights.astype(dtype) if is_on_accelerator(weights) else np.asarray(weights, dtype)
            if weights.shape != (len(rows),):
                raise ValueError(f"weights: expected shape [{len(rows)}], one for each row, got {list(weights.shape)}")
        sums = tiles.pair_sums(
            KernelValues(kernel, expand=True),
            points,
            rows,
            weights,
            # The expanded form is accurate about a common centre.
            centred=kernel.is_shift_invariant and kernel.expands(points.shape[1]),
            check=True,
            devices=devices,
            progress=reporter(progress),
        )
    return sums[0].astype(dtype)


def kernel_mean(
    kernel: Kernel,
    points: Real[AnyArray, "M d"],
    rows: Real[AnyArray, "N d"],
    *,
    devices=None,
    progress: Progress | bool = False,
) -> Float[np.ndarray, "M"]:
    """(1/N) Σ_n k(z_m, x_n), the empirical mean embedding evaluated at the points, [M]. See :func:`kernel_sums`.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian
      >>> from kme_jax.gram import kernel_mean
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
      >>> kernel_mean(Gaussian(gamma=0.5), np.array([[0.0, 0.0], [3.0, 3.0]]), rows).round(3)
      array([0.498, 0.005])
    """
    return kernel_sums(kernel, points, rows, devices=devices, progress=progress) / np.shape(rows)[0]


def double_mean(
    kernel: Kernel, rows: Real[AnyArray, "N d"], *, devices=None, progress: Progress | bool = False
) -> float:
    """(1/N²) Σ_{n, n'} k(x_n, x_n') = ‖μ̂_X‖².

    On CPUs each unordered pair of blocks of rows is evaluated once. On an accelerator all ordered pairs are evaluated,
    because one program then serves all of them, and compilation takes longer than the evaluation.

    Args:
      kernel: k.
      rows: x, [N, d], finite.
      devices: as for :func:`kernel_sums`.
      progress: True for a bar, or a function that is called with (pairs of blocks done, number of pairs of blocks).

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian
      >>> from kme_jax.gram import double_mean
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
      >>> round(double_mean(Gaussian(gamma=0.5), rows), 3)
      0.333
    """
    if jax.default_backend() != "cpu":
        sums = kernel_sums(kernel, rows, rows, devices=devices, progress=progress)
        return float(sums.sum(dtype=np.float64)) / len(sums) ** 2
    rows = check_points(rows, "rows")
    return sum_of_pairs(kernel, rows, devices=devices, progress=progress) / len(rows) ** 2


@shows_progress("kernel values")
def sum_of_pairs(
    kernel: Kernel,
    rows: Float[np.ndarray, "N d"],
    *,
    block_rows: int = 8192,
    devices=None,
    progress: Progress | bool = False,
) -> float:
    """Σ_{n, n'} k(x_n, x_n'). Each unordered pair of blocks of rows is evaluated once.

    Args:
      kernel: k.
      rows: x, [N, d], finite.
      block_rows: number of rows of a block.
      devices: as for :func:`kernel_sums`.
      progress: True for a bar, or a function that is called with (pairs of blocks done, number of pairs of blocks).
    """
    # Rows of weight 0 fill the last block, so that all blocks have one shape.
    padded = tiles.pad(rows, min(len(rows), block_rows))
    weights = (np.arange(len(padded)) < len(rows)).astype(rows.dtype)
    starts = range(0, len(padded), min(len(rows), block_rows))
    blocks = [slice(start, start + starts.step) for start in starts]
    pairs = [(i, j) for i in range(len(blocks)) for j in range(i, len(blocks))]
    pair_sum = 0.0
    for done, (i, j) in enumerate(pairs):
        sums = kernel_sums(kernel, padded[blocks[i]], padded[blocks[j]], weights[blocks[j]], devices=devices)
        pair_sum += (1 if i == j else 2) * float(weights[blocks[i]] @ sums.astype(np.float64))
        if callable(progress):
            progress(done + 1, len(pairs))
    return pair_sum


@reproducible_jit
def _lower_row_sums(kernel, block, points, start):
    """2 Σ_{j < i} k(z_i, z_j) + k(z_i, z_i) for the rows i of a block [b, d] that starts at row ``start``, [b]."""
    i = start + jnp.arange(block.shape[0], dtype=jnp.int32)
    j = jnp.arange(points.shape[0], dtype=jnp.int32)
    twice_below = jnp.where(j[None, :] < i[:, None], 2, jnp.where(j[None, :] == i[:, None], 1, 0))
    return jnp.sum(kernel.pairwise(block, points) * twice_below.astype(points.dtype), axis=1)


def prefix_double_means(kernel: Kernel, points: Real[AnyArray, "M d"]) -> Float64[np.ndarray, "M"]:
    """(1/m²) Σ_{i, j ≤ m} k(z_i, z_j) for m = 1, ..., M: squared norms of the uniform weighting of the first m points.

    Args:
      kernel: k.
      points: z, [M, d].

    Returns:
      float64 [M].
    """
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
