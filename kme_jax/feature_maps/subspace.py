"""ψ(x): coordinates of k(x, ·) in an orthonormal basis of span{k(z_m, ·)}, z public ([B] algorithm 1, lines 2 to 6).

The basis is what sequential Gram–Schmidt gives in the order of the points, where a point whose squared residual norm
is at most ``tolerance`` is dropped (the published rule; Gram matrices of smooth kernels have low numerical rank).
In matrices: with S the kept points and K_SS = L Lᵀ (Cholesky), the basis is b_f = Σ_s B[f, s] k(z_s, ·) with
B = L⁻¹, and ψ(x) = B k_S(x). As B is lower triangular, its leading F(M) × F(M) block is the basis of the first M
points: one factorisation serves every prefix.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax import gram, tiles
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.kernels import Kernel
from kme_jax.numerics import Progress, check_points, in_float64
from kme_jax.pytrees import pytree_dataclass

Array = jax.Array

DEFAULT_TOLERANCE = 1e-5  # [B], published code: a squared residual norm at or below it drops the point
_BLOCK = 256  # points factorised at a time; the work is matrix products of this width
_CAPACITY_STEP = 1024  # B is grown by this many rows, so that few shapes are compiled

# Spectral norms are bounded by products with random vectors (see _norm_bound).
_NUM_PROBES = 10
_PROBE_FACTOR = 10.0  # failure probability _PROBE_FACTOR ** -_NUM_PROBES = 1e-10
_PROBE_SEED = 20180610
_MAX_DEVIATION = 0.01  # a basis less orthonormal than this is refused


def _rank_revealing_cholesky(residual: Array, tolerance: Array) -> tuple[Array, Array]:
    """Cholesky in the given order, dropping a pivot that is not above the tolerance.

    Args:
      residual: Gram matrix of what earlier blocks left of these points, [b, b].
      tolerance: squared residual norm at or below which a point is dropped.

    Returns:
      factor: lower triangular with zero columns at dropped points, [b, b].
      kept: which points were kept, [b].
    """
    size = residual.shape[0]
    index = jnp.arange(size, dtype=jnp.int32)

    def step(j, state):
        left, factor, kept = state
        pivot = left[j, j]
        keep = pivot > tolerance
        column = jnp.where(keep & (index >= j), left[:, j] / jnp.sqrt(jnp.where(keep, pivot, 1)), 0)
        return left - column[:, None] * column[None, :], factor.at[:, j].set(column), kept.at[j].set(keep)

    state = (residual, jnp.zeros_like(residual), jnp.zeros(size, bool))
    _, factor, kept = jax.lax.fori_loop(0, size, step, state)
    return factor, kept


@functools.partial(jax.jit, donate_argnames=("basis", "pivot_points"))
def _add_block(kernel, block, num_valid, basis, pivot_points, rank, tolerance):
    """Extends the basis by the points of one block.

    Args:
      block: points, [b, d], of which the first ``num_valid`` count.
      basis: B, [capacity, capacity], zero beyond ``rank``; rank + b ≤ capacity.
      pivot_points: the kept points, [capacity, d].
      rank: F so far.
      tolerance: see _rank_revealing_cholesky.

    Returns:
      basis, pivot_points, kept [b] (in the block's order).
    """
    size, capacity = block.shape[0], basis.shape[0]
    is_pivot = jnp.arange(capacity, dtype=jnp.int32) < rank
    to_pivots = jnp.where(is_pivot[None, :], gram.gram(kernel, block, pivot_points), 0)
    coordinates = to_pivots @ basis.T
    residual = gram.gram(kernel, block) - coordinates @ coordinates.T
    valid = jnp.arange(size, dtype=jnp.int32) < num_valid
    residual = jnp.where(valid[:, None] & valid[None, :], residual, 0)
    factor, kept = _rank_revealing_cholesky(residual, tolerance)

    # Kept points first, in order; dropped ones become an identity block, so that the inverse exists.
    order = jnp.argsort(~kept, stable=True)
    kept_sorted = kept[order]
    both = kept_sorted[:, None] & kept_sorted[None, :]
    factor = jnp.where(both, factor[order][:, order], jnp.eye(size, dtype=factor.dtype))
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
    inverse = jnp.where(both, inverse, 0)
    new_rows = -(inverse @ coordinates[order]) @ basis
    zero = jnp.zeros((), jnp.int32)
    basis = jax.lax.dynamic_update_slice(basis, new_rows, (rank, zero))
    basis = jax.lax.dynamic_update_slice(basis, inverse, (rank, rank))
    pivot_points = jax.lax.dynamic_update_slice(pivot_points, block[order], (rank, zero))
    return basis, pivot_points, kept


@functools.partial(jax.jit, static_argnames="extra")
def _grow(basis, pivot_points, *, extra: int):
    return jnp.pad(basis, ((0, extra), (0, extra))), jnp.pad(pivot_points, ((0, extra), (0, 0)))


def _norm_bound(power: int, products: Array) -> float:
    """An upper bound of ‖A‖₂ from Y = Aᵖ Ω, Ω Gaussian with _NUM_PROBES columns: ‖A‖ᵖ ≤ 10 √(2/π) max_i ‖y_i‖, except
    with probability 1e-10 over Ω (Dixon 1983; Halko, Martinsson & Tropp 2011, lemma 4.1)."""
    largest = float(jnp.max(jnp.linalg.norm(products, axis=0)))
    return (_PROBE_FACTOR * math.sqrt(2 / math.pi) * largest) ** (1 / power)


@jax.jit
def _blocked_gram_product(kernel, points, vectors):
    """K V for the Gram matrix K of the points [F, d] (F a multiple of _BLOCK) and V [F, r], without K."""
    blocks = points.reshape(-1, _BLOCK, points.shape[1])
    return jax.lax.map(lambda block: gram.gram(kernel, block, points) @ vectors, blocks).reshape(vectors.shape)


@jax.jit
def _basis_probes(kernel, basis, pivot_points, rank, key):
    """(B K Bᵀ − I) Ω and (BᵀB)⁴ Ω for the leading ``rank`` rows; basis [capacity, capacity], zero beyond."""
    is_pivot = jnp.arange(basis.shape[0], dtype=jnp.int32) < rank
    probes = jnp.where(is_pivot[:, None], jax.random.normal(key, (basis.shape[0], _NUM_PROBES), basis.dtype), 0)
    deviation = basis @ _blocked_gram_product(kernel, pivot_points, basis.T @ probes) - probes
    power = probes
    for _ in range(4):
        power = basis.T @ (basis @ power)
    return deviation, power


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SubspaceMap(FeatureMap):
    """Coordinates in an orthonormal basis of span{k(z_1, ·), ..., k(z_M, ·)}: see the module's text.

    Build one with :meth:`from_points`.

    Attributes:
      kernel: k.
      points: the public points z, float64 [M, d].
      pivots: indices of the F kept points, increasing, [F].
      basis: B, float64 [F, F], lower triangular, on the host.
      lambda_max: upper bound of λmax(B K_SS Bᵀ). 1 but for the rounding in B; see :attr:`diameter`.
      basis_norm: upper bound (within a factor of about 2) of ‖B‖₂: what an error in k_S(x) is amplified by.
      tolerance: the drop rule's tolerance.
    """

    kernel: Kernel
    points: np.ndarray
    pivots: np.ndarray
    basis: np.ndarray
    lambda_max: float
    basis_norm: float
    tolerance: float

    @classmethod
    @in_float64
    def from_points(
        cls,
        kernel: Kernel,
        points: np.ndarray,
        *,
        tolerance: float = DEFAULT_TOLERANCE,
        progress: Progress | None = None,
    ) -> SubspaceMap:
        """Orthonormalises the points in their order.

        Args:
          kernel: k.
          points: z, [M, d]. They must not depend on private rows, except for rows that are public anyway; those are
            not protected. Duplicates, and points in the span of earlier ones, are dropped from the basis.
          tolerance: squared residual norm at or below which a point is dropped, > 0.
          progress: called with (points done, points in all).

        Raises:
          ValueError: points that are not a finite [M, d] array; a tolerance that is not positive, or is above every
            k(z, z), or too small for an orthonormal basis in float64.
        """
        points = check_points(points, "points").astype(np.float64)
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        num_points, dim = points.shape
        rank, capacity = 0, 2 * _BLOCK
        basis, pivot_points = jnp.zeros((capacity, capacity)), jnp.zeros((capacity, dim))
        pivots = []
        for start in range(0, num_points, _BLOCK):
            if rank + _BLOCK > capacity:
                extra = max(_BLOCK, min(capacity, _CAPACITY_STEP))
                basis, pivot_points = _grow(basis, pivot_points, extra=extra)
                capacity += extra
            block = points[start : start + _BLOCK]
            num_valid = len(block)
            block = np.pad(block, ((0, _BLOCK - num_valid), (0, 0)))
            basis, pivot_points, kept = _add_block(
                kernel, block, np.int32(num_valid), basis, pivot_points, np.int32(rank), np.float64(tolerance)
            )
            new = start + np.flatnonzero(np.asarray(kept))
            pivots.append(new)
            rank += len(new)
            if progress:
                progress(start + num_valid, num_points)
        if rank == 0:
            raise ValueError(f"tolerance {tolerance} drops every point: it must be below k(z, z) of some point")
        deviation, power = _basis_probes(kernel, basis, pivot_points, np.int32(rank), jax.random.key(_PROBE_SEED))
        lambda_max = 1 + _norm_bound(1, deviation)
        if not lambda_max <= 1 + _MAX_DEVIATION:
            raise ValueError(
                f"tolerance {tolerance} is too small for these points in float64: the basis is orthonormal to "
                f"{lambda_max - 1:.2g} only; use a larger one, such as {max(100 * tolerance, DEFAULT_TOLERANCE):g}"
            )
        return cls(
            kernel=kernel,
            points=points,
            pivots=np.concatenate(pivots),
            basis=np.asarray(basis)[:rank, :rank],
            lambda_max=lambda_max,
            basis_norm=math.sqrt(_norm_bound(4, power)),
            tolerance=tolerance,
        )

    @property
    def num_features(self) -> int:
        return self.pivots.shape[0]

    @property
    def num_points(self) -> int:
        """M, dropped points included."""
        return self.points.shape[0]

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def pivot_points(self) -> np.ndarray:
        """The kept points, [F, d]."""
        return self.points[self.pivots]

    @property
    def diameter(self) -> float:
        """√(2 κ λmax) for a kernel k ≥ 0 with k(x, x) ≤ κ, and 2 √(κ λmax) for any other.

        Formal guarantee, in exact arithmetic for the matrix B that is stored (whatever rounding went into it):
        ψ(x) − ψ(x′) = B Φ*(φ(x) − φ(x′)), with Φ*h = (⟨k(z_s, ·), h⟩)_s, and ‖B Φ*‖² = λmax(B K_SS Bᵀ). For k ≥ 0,
        ‖φ(x) − φ(x′)‖² = k(x, x) + k(x′, x′) − 2 k(x, x′) ≤ 2κ; in general it is at most 4κ ([B] lemma 13).
        Against the zero vector it is at most κ. λmax is bounded by 1 + ‖B K_SS Bᵀ − I‖ by ten random probes, which
        fails with probability 1e-10 over probes that are fixed independently of points and rows.
        """
        factor = 2 if self.kernel.is_nonnegative else 4
        return math.sqrt(factor * self.kernel.diagonal_bound * self.lambda_max)

    @property
    def published_diameter(self) -> float:
        """2 √κ: [B] lemma 13, with k(x, x) ≤ κ = 1 there, for an exactly orthonormal basis."""
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def row_bound(self) -> float:
        """1e100: squares and their sums are far from overflow."""
        return 1e100

    def rank_at(self, num_points: int | np.ndarray) -> int | np.ndarray:
        """F of the first M points, for one M or an array of them."""
        return np.searchsorted(self.pivots, num_points, side="left")

    def prefix(self, num_points: int) -> SubspaceMap:
        """The map of the first M points, without a new factorisation.

        λmax and ‖B‖ of a leading block of B (and of B K Bᵀ, by Cauchy's interlacing) are at most those of the whole,
        so the bounds carry over.

        Raises:
          ValueError: M is not in 1, ..., :attr:`num_points`.
        """
        if not 1 <= num_points <= self.num_points:
            raise ValueError(f"num_points must be between 1 and {self.num_points}, got {num_points}")
        rank = int(self.rank_at(num_points))
        return dataclasses.replace(
            self, points=self.points[:num_points], pivots=self.pivots[:rank], basis=self.basis[:rank, :rank]
        )

    def __call__(self, x: Array) -> Array:
        """ψ(x_n) = B k_S(x_n): [n, d] -> [n, F] in float64. Call within ``numerics.float64()``: ‖B‖ amplifies the
        error of a float32 kernel value far beyond the noise of a release.

        Raises:
          ValueError: x is float32.
        """
        x, basis = jnp.asarray(x), jnp.asarray(self.basis)
        if x.dtype != jnp.float64 or basis.dtype != jnp.float64:
            raise ValueError("SubspaceMap needs float64 rows: call it within kme_jax.numerics.float64()")
        return gram.gram(self.kernel, x, jnp.asarray(self.pivot_points)) @ basis.T

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        """B Σ_n a_n k_S(x_n): one kernel sum, by direct differences as in the basis and the proof, then one product."""
        rows, weights = np.asarray(rows, np.float64), np.asarray(weights, np.float64)
        values = gram.KernelValues(self.kernel, expand=False)
        sums = tiles.pair_sums(
            values, self.pivot_points, rows, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        return self.basis @ sums[0]

    def expand(self, coordinates: np.ndarray) -> np.ndarray:
        """Weights w [M] with Σ_m w_m k(z_m, ·) = Σ_f β_f b_f, zero at dropped points ([B] algorithm 1, line 8).

        Args:
          coordinates: β, [F], or several, [F, r].
        """
        weights = np.zeros((self.num_points, *np.shape(coordinates)[1:]))
        weights[self.pivots] = self.basis.T @ np.asarray(coordinates, np.float64)
        return weights
