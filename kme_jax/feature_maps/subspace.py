"""ψ(x): coordinates of k(x, ·) in an orthonormal basis of span{k(z_m, ·)}, z public ([B] algorithm 1, lines 2 to 6).

The basis is that of sequential Gram–Schmidt in the order of the points. A point whose squared residual norm is at most
``tolerance`` is dropped. This is the published rule; Gram matrices of smooth kernels have low numerical rank.
In matrices: with S the kept points and K_SS = L Lᵀ (Cholesky), the basis is b_f = Σ_s B[f, s] k(z_s, ·) with
B = L⁻¹, and ψ(x) = B k_S(x). As B is lower triangular, its leading F(M) × F(M) block is the basis of the first M
points. So one factorisation serves every prefix of the points.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int, Real

from kme_jax import gram
from kme_jax._numerics import tiles
from kme_jax._numerics.exact import exact_product
from kme_jax._numerics.precision import (
    Progress,
    check_points,
    float64,
    in_float64,
    reproducible_jit,
)
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, check_positive, require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap
from kme_jax.kernels import Kernel

Array = jax.Array

DEFAULT_TOLERANCE = 1e-5  # [B], published code: a point is dropped if its squared residual norm is at most this
_BLOCK = 256  # points that are factorised at a time, by matrix products of this width
_TILE = 512  # B consists of square tiles of this size, so that one program serves every M and F

# Spectral norms are bounded by products with random vectors (see _norm_bound).
_NUM_PROBES = 10
_PROBE_FACTOR = 10.0  # the failure probability is _PROBE_FACTOR ** -_NUM_PROBES = 1e-10
_NUM_LOOKED_AT, _ROUNDING = 128, 1e-10  # points at which the facts of a kernel are checked
_PROBE_SEED = 20180610
_NUM_CHECKS = 4  # random vectors that a map read from a file is checked with
_MAX_DEVIATION = 0.01  # a basis B is refused if the bound of ‖B K_SS Bᵀ − I‖ is larger


def _rank_revealing_cholesky(residual: Array, tolerance: Array) -> tuple[Array, Array]:
    """The Cholesky factor in the order of the points, without the points whose pivot is not above the tolerance.

    Args:
      residual: Gram matrix of the residuals of these points after all earlier blocks, [b, b].
      tolerance: a point is dropped if its squared residual norm is at most this.

    Returns:
      factor: lower triangular with zero columns at dropped points, [b, b].
      kept: which points were kept, [b].
    """
    size = residual.shape[0]
    index = jnp.arange(size, dtype=jnp.int32)

    def step(j, state):
        residual, factor, kept = state
        pivot = residual[j, j]
        keep = pivot > tolerance
        column = jnp.where(keep & (index >= j), residual[:, j] / jnp.sqrt(jnp.where(keep, pivot, 1)), 0)
        return residual - column[:, None] * column[None, :], factor.at[:, j].set(column), kept.at[j].set(keep)

    state = (residual, jnp.zeros_like(residual), jnp.zeros(size, bool))
    _, factor, kept = jax.lax.fori_loop(0, size, step, state)
    return factor, kept


@reproducible_jit
def _to_pivots(kernel, points, pivot_points, num_pivots):
    """k(z_n, s) of points [n, d] and the first ``num_pivots`` pivots s of a tile [t, d], and 0 for the other pivots:
    [n, t]."""
    is_pivot = jnp.arange(len(pivot_points), dtype=jnp.int32) < num_pivots
    return jnp.where(is_pivot[None, :], gram.gram(kernel, points, pivot_points), 0)


@functools.partial(reproducible_jit, donate_argnames="total")
def _add_product(total, left, tile):
    """total + left · tile."""
    return total + left @ tile


@functools.partial(reproducible_jit, donate_argnames="total")
def _add_transposed_product(total, left, tile):
    """total + left · tileᵀ."""
    return total + left @ tile.T


@functools.partial(reproducible_jit, donate_argnames="total")
def _add_product_of_transposed(total, tile, right):
    """total + tileᵀ · right."""
    return total + tile.T @ right


@reproducible_jit
def _explained(total, coordinates):
    """The total [b, b] plus the share of a block's Gram matrix that its coordinates [b, t] explain."""
    return total + coordinates @ coordinates.T


@reproducible_jit
def _factorise(kernel, block, num_valid, explained, tolerance):
    """Extends the basis by the points of one block.

    Args:
      block: points, [b, d]. Only the first ``num_valid`` count.
      explained: the share of their Gram matrix that earlier points explain, [b, b].
      tolerance: see _rank_revealing_cholesky.

    Returns:
      inverse: the new rows of B in the columns of the block's points, [b, b], with the kept points first.
      order: the indices of the block's points in this order, [b].
      kept: which points were kept, in the order of the block, [b].
    """
    size = block.shape[0]
    residual = gram.gram(kernel, block) - explained
    valid = jnp.arange(size, dtype=jnp.int32) < num_valid
    residual = jnp.where(valid[:, None] & valid[None, :], residual, 0)
    factor, kept = _rank_revealing_cholesky(residual, tolerance)
    # Kept points first, in order; dropped ones become an identity block, so that the inverse exists.
    order = jnp.argsort(~kept, stable=True)
    kept_sorted = kept[order]
    both = kept_sorted[:, None] & kept_sorted[None, :]
    factor = jnp.where(both, factor[order][:, order], jnp.eye(size, dtype=factor.dtype))
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
    return jnp.where(both, inverse, 0), order, kept


@reproducible_jit
def _reordered(inverse, order, coordinates):
    """The factor of the rows of one tile in the new rows of B: − inverse · (coordinates in that order), [b, t]."""
    return -(inverse @ coordinates[order])


@functools.partial(reproducible_jit, donate_argnames="tile")
def _write_rows(tile, rows, start):
    """The tile with its rows from ``start`` on replaced by ``rows`` [b, ·]. Rows outside of the tile are ignored."""
    size = len(rows)  # JAX moves a slice that does not fit, so margins make room for every slice
    margins = jnp.pad(tile, ((size, size), (0, 0)))
    return jax.lax.dynamic_update_slice(margins, rows, (start + size, jnp.zeros_like(start)))[size:-size]


@functools.partial(reproducible_jit, donate_argnames="tile")
def _write_corner(tile, corner, row_start, column_start):
    """The tile with a matrix [b, b] written from (row_start, column_start) on. Elements outside of the tile are
    ignored."""
    size = len(corner)
    margins = jnp.pad(tile, size)
    written = jax.lax.dynamic_update_slice(margins, corner, (row_start + size, column_start + size))
    return written[size:-size, size:-size]


class _Builder:
    """B and its pivots in tiles. Python loops over the tiles, so that the same programs serve any number of them.

    Attributes:
      rank: F, the number of points kept so far.
      pivot_points: the kept points in tiles [t, d], padded with zeros.
      tiles: ``tiles[i]`` is row i of the tiles of B. It has i + 1 tiles [t, t].
    """

    def __init__(self, kernel: Kernel, dim: int):
        self._kernel, self._dim, self.rank = kernel, dim, 0
        self.pivot_points: list[Array] = []
        self.tiles: list[list[Array]] = []

    def add(self, block: np.ndarray, num_valid: int, tolerance: float) -> np.ndarray:
        """Extends the basis by the first ``num_valid`` points of a block [b, d]. Returns which were kept, [b]."""
        new_rows = [jnp.zeros((_BLOCK, _TILE)) for _ in self.tiles]
        coordinates, explained = [], jnp.zeros((_BLOCK, _BLOCK))
        to_pivots = [self._to_pivots(block, j) for j in range(len(self.tiles))]
        for row in self.tiles:
            total = jnp.zeros((_BLOCK, _TILE))
            for left, tile in zip(to_pivots[: len(row)], row, strict=True):
                total = _add_transposed_product(total, left, tile)
            coordinates.append(total)
            explained = _explained(explained, total)
        inverse, order, kept = _factorise(self._kernel, block, np.int32(num_valid), explained, np.float64(tolerance))
        for row, row_coordinates in zip(self.tiles, coordinates, strict=True):
            left = _reordered(inverse, order, row_coordinates)
            for j, tile in enumerate(row):
                new_rows[j] = _add_product(new_rows[j], left, tile)
        kept = np.asarray(kept)
        self._append(block[np.asarray(order)], new_rows, inverse, int(kept.sum()))
        return kept

    def _append(self, points: np.ndarray, new_rows: list[Array], inverse: Array, num_new: int) -> None:
        first = self.rank // _TILE
        self.rank += num_new
        while len(self.tiles) * _TILE < self.rank:
            self.pivot_points.append(jnp.zeros((_TILE, self._dim)))
            self.tiles.append([jnp.zeros((_TILE, _TILE)) for _ in range(len(self.tiles) + 1)])
        start = self.rank - num_new
        for i in range(first, len(self.tiles)):
            row_start = np.int32(start - i * _TILE)
            self.pivot_points[i] = _write_rows(self.pivot_points[i], points, row_start)
            row = self.tiles[i]
            for j, rows in enumerate(new_rows):
                row[j] = _write_rows(row[j], rows, row_start)
            for j in range(first, len(row)):
                row[j] = _write_corner(row[j], inverse, row_start, np.int32(start - j * _TILE))

    def _to_pivots(self, points: np.ndarray | Array, j: int) -> Array:
        return _to_pivots(self._kernel, points, self.pivot_points[j], np.int32(self.rank - j * _TILE))

    def basis(self) -> np.ndarray:
        """B on the host, [F, F]."""
        basis = np.zeros((self.rank, self.rank))
        for i, row in enumerate(self.tiles):
            for j, tile in enumerate(row):
                target = basis[i * _TILE : (i + 1) * _TILE, j * _TILE : (j + 1) * _TILE]
                target[:] = np.asarray(tile)[: target.shape[0], : target.shape[1]]
        return basis

    def probes(self, key: Array) -> tuple[np.ndarray, np.ndarray]:
        """(B K Bᵀ − I) Ω and (BᵀB)⁴ Ω, where Ω is Gaussian with _NUM_PROBES columns."""
        probes = np.asarray(jax.random.normal(key, (len(self.tiles), _TILE, _NUM_PROBES), np.float64))
        used = np.arange(len(self.tiles) * _TILE).reshape(-1, _TILE, 1) < self.rank
        probes = list(jnp.asarray(np.where(used, probes, 0)))
        vectors = self._times_transposed(probes)
        products = []
        for points in self.pivot_points:
            total = jnp.zeros((_TILE, _NUM_PROBES))
            for j, tile_vectors in enumerate(vectors):
                total = _add_product(total, self._to_pivots(points, j), tile_vectors)
            products.append(total)
        deviation = [product - probe for product, probe in zip(self._times(products), probes, strict=True)]
        power = probes
        for _ in range(4):
            power = self._times_transposed(self._times(power))
        return np.concatenate(deviation), np.concatenate(power)

    def _times(self, vectors: list[Array]) -> list[Array]:
        """B V."""
        totals = []
        for row in self.tiles:
            total = jnp.zeros_like(vectors[0])
            for tile, tile_vectors in zip(row, vectors, strict=False):
                total = _add_product(total, tile, tile_vectors)
            totals.append(total)
        return totals

    def _times_transposed(self, vectors: list[Array]) -> list[Array]:
        """Bᵀ V."""
        totals = [jnp.zeros_like(tile_vectors) for tile_vectors in vectors]
        for row, tile_vectors in zip(self.tiles, vectors, strict=True):
            for j, tile in enumerate(row):
                totals[j] = _add_product_of_transposed(totals[j], tile, tile_vectors)
        return totals


def _norm_bound(power: int, products: np.ndarray) -> float:
    """An upper bound of ‖A‖₂ from Y = Aᵖ Ω, where Ω is Gaussian with _NUM_PROBES columns: ‖A‖ᵖ ≤ 10 √(2/π) max_i ‖y_i‖,
    except with probability 1e-10 over Ω (Dixon 1983; Halko, Martinsson & Tropp 2011, lemma 4.1)."""
    largest = float(np.max(np.linalg.norm(products, axis=0)))
    return (_PROBE_FACTOR * math.sqrt(2 / math.pi) * largest) ** (1 / power)


def _check_facts(kernel: Kernel, points: Float64[np.ndarray, "M d"]) -> None:
    """Refuses a kernel whose values at some of the points contradict its facts, on which the noise rests.

    This is no proof that they are true.

    Raises:
      ValueError: it is no kernel, JAX cannot trace it, values are not in float64, k(z, z) is above ``diagonal_bound``,
        ``pairwise`` is another function than ``__call__``, a value is negative though ``is_nonnegative``, or the Gram
        matrix has a negative eigenvalue or is not symmetric.
    """
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel: expected a kernel, such as Gaussian(gamma=0.5), got a {type(kernel).__name__}")
    if any(leaf is kernel for leaf in jax.tree.leaves(kernel)):
        raise ValueError(
            f"{type(kernel).__name__}: JAX cannot trace this kernel: decorate its class with kme_jax.pytree_dataclass"
        )
    looked_at = points[np.linspace(0, len(points) - 1, _NUM_LOOKED_AT).astype(int)]  # always so many: one program
    values, most, name = np.asarray(gram.gram(kernel, looked_at)), kernel.diagonal_bound, type(kernel).__name__
    if values.dtype != np.float64:
        raise ValueError(
            f"{name}: its values at points in float64 are in {values.dtype}: let it keep the type of points"
        )
    rounding = _ROUNDING * max(1.0, float(np.abs(values).max()))
    following = np.roll(looked_at, -1, axis=0)
    expected = np.asarray(_by_definition(kernel, looked_at, following))
    pairwise = np.diagonal(np.roll(values, -1, axis=1))
    worst = int(np.argmax(np.abs(pairwise - expected)))
    if not abs(pairwise[worst] - expected[worst]) <= rounding:
        raise ValueError(
            f"{name}: pairwise gives {pairwise[worst]:.4g} for two points, where the kernel of two points gives "
            f"{expected[worst]:.4g}"
        )
    largest = float(np.diag(values).max())
    if not largest <= most + rounding:
        raise ValueError(f"{name}: k(z, z) is {largest:.4g} at a point, above diagonal_bound = {most:.4g}")
    if kernel.is_nonnegative and not float(values.min()) >= -rounding:
        raise ValueError(f"{name}: k is {values.min():.4g} at two points, but is_nonnegative is True")
    symmetric = float(np.abs(values - values.T).max()) <= rounding
    if not symmetric or float(np.linalg.eigvalsh(values)[0]) < -rounding * _NUM_LOOKED_AT:
        raise ValueError(f"{name}: it is not a kernel: its values at the points are not a positive semidefinite matrix")


@reproducible_jit
def _by_definition(kernel, x, y):
    """k(x_n, y_n) of two points each, for points [n, d]."""
    return jax.vmap(kernel)(x, y)


@reproducible_jit
def _features(kernel, points, pivot_points, basis):
    return gram.gram(kernel, points, pivot_points) @ basis.T


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SubspaceMap(FeatureMap):
    """Coordinates in an orthonormal basis of span{k(z_1, ·), ..., k(z_M, ·)}, see ``kme_jax.feature_maps.subspace``.

    Build one with :meth:`from_points`.

    Attributes:
      kernel: k.
      points: the public points z, float64 [M, d].
      pivots: indices of the F kept points, increasing, [F].
      basis: B, float64 [F, F], lower triangular, on the host.
      lambda_max: upper bound of λmax(B K_SS Bᵀ), which would be 1 without the rounding in B; see :attr:`diameter`.
      basis_norm: upper bound (within a factor of about 2) of ‖B‖₂, which amplifies an error in k_S(x).
      tolerance: the tolerance of the drop rule.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, SubspaceMap
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> features = SubspaceMap.from_points(Gaussian(gamma=0.5), points)
      >>> print(f"{features.num_features} features, diameter {features.diameter:.4f}")
      19 features, diameter 1.4142
    """

    kernel: Kernel
    points: Float64[np.ndarray, "M d"]
    pivots: Int[np.ndarray, "F"]
    basis: Float64[np.ndarray, "F F"]
    lambda_max: float
    basis_norm: float
    tolerance: float

    @classmethod
    @in_float64
    @shows_progress("basis")
    def from_points(
        cls,
        kernel: Kernel,
        points: Real[AnyArray, "M d"],
        *,
        tolerance: float = DEFAULT_TOLERANCE,
        progress: Progress | bool = False,
    ) -> SubspaceMap:
        """Orthonormalises the points in their order.

        Args:
          kernel: k.
          points: z, [M, d]. They must not depend on private rows. If they include rows of the database, these rows must
            be public anyway, and are not protected. Duplicates, and points in the span of earlier ones, are dropped
            from the basis.
          tolerance: a point is dropped if its squared residual norm is at most this; > 0.
          progress: True for a bar, or a function that is called with (points done, M).

        Raises:
          ValueError: if points are not a finite [M, d] array, or the tolerance is not positive, or not below any
            k(z, z), or too small for an orthonormal basis in float64; or values of the kernel at the points contradict
            what it states.
        """
        points = check_points(points, "points").astype(np.float64)
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        num_points, dim = points.shape
        _check_facts(kernel, points)
        builder, pivots = _Builder(kernel, dim), []
        for start in range(0, num_points, _BLOCK):
            block = points[start : start + _BLOCK]
            num_valid = len(block)
            block = np.pad(block, ((0, _BLOCK - num_valid), (0, 0)))
            pivots.append(start + np.flatnonzero(builder.add(block, num_valid, tolerance)))
            if callable(progress):
                progress(start + num_valid, num_points)
        if builder.rank == 0:
            raise ValueError(f"tolerance {tolerance} drops every point: it must be below k(z, z) of some point")
        deviation, power = builder.probes(jax.random.key(_PROBE_SEED))
        lambda_max = 1 + _norm_bound(1, deviation)
        if not lambda_max <= 1 + _MAX_DEVIATION:
            raise ValueError(
                f"tolerance {tolerance} is too small for these points in float64: the basis deviates from an "
                f"orthonormal one by {lambda_max - 1:.2g}; use a larger tolerance, such as "
                f"{max(100 * tolerance, DEFAULT_TOLERANCE):g}"
            )
        return cls(
            kernel=kernel,
            points=points,
            pivots=np.concatenate(pivots),
            basis=builder.basis(),
            lambda_max=lambda_max,
            basis_norm=math.sqrt(_norm_bound(4, power)),
            tolerance=tolerance,
        )

    def validate(self):
        check_array(self.points, "points", "f", (None, None))
        check_array(self.pivots, "pivots", "i", (None,))
        increasing = (
            self.pivots[0] >= 0 and self.pivots[-1] < self.num_points and bool((np.diff(self.pivots) > 0).all())
        )
        require(increasing, "pivots: expected increasing indices of points")
        check_array(self.basis, "basis", "f", (self.num_features, self.num_features))
        require(1 <= self.lambda_max <= 1 + _MAX_DEVIATION, f"lambda_max: expected 1 to {1 + _MAX_DEVIATION}")
        largest = float(np.sqrt(np.max(np.sum(np.square(self.basis), axis=1))))
        require(largest <= self.basis_norm < math.inf, "basis_norm: smaller than the norm of a row of the basis")
        check_positive("tolerance", self.tolerance)
        # λmax − 1 is 8 times the largest of ten ‖(B K_SS Bᵀ − I) v‖ (``_norm_bound``). The v here are unpredictable.
        for vector in np.random.default_rng().normal(size=(_NUM_CHECKS, self.num_features)):
            product = self.weighted_sum(self.pivot_points, self.basis.T @ vector)
            deviation = float(np.linalg.norm(product - vector))
            most = self.lambda_max - 1 + 1e-9 * math.sqrt(self.num_features)
            require(deviation <= most, "basis: it is not an orthonormal basis for these points")

    @property
    def num_features(self) -> int:
        return self.pivots.shape[0]

    @property
    def public_inputs(self):
        return ("kernel", "public points")

    @property
    def public_points(self):
        return self.points

    def integers(self, num_rows):
        return SubspaceIntegers.create(self, num_rows)

    @property
    def num_points(self) -> int:
        """M, with dropped points included."""
        return self.points.shape[0]

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def pivot_points(self) -> Float64[AnyArray, "F d"]:
        """The kept points, [F, d]."""
        return self.points[self.pivots]

    @property
    def diameter(self) -> float:
        """√(2 κ λmax) for a kernel k ≥ 0 with k(x, x) ≤ κ, and 2 √(κ λmax) for any other.

        Formal guarantee, in exact arithmetic for the matrix B that is stored (with its rounding errors):
        ψ(x) − ψ(x′) = B Φ*(φ(x) − φ(x′)), with Φ*h = (⟨k(z_s, ·), h⟩)_s, and ‖B Φ*‖² = λmax(B K_SS Bᵀ). For k ≥ 0,
        ‖φ(x) − φ(x′)‖² = k(x, x) + k(x′, x′) − 2 k(x, x′) ≤ 2κ; in general it is at most 4κ ([B] lemma 13).
        The squared distance of φ(x) from the zero vector is at most κ. λmax is at most 1 + ‖B K_SS Bᵀ − I‖. Ten random
        probes bound this norm, see :attr:`failure_probability`.
        """
        return self._diameter(self.lambda_max)

    def _diameter(self, lambda_max: float) -> float:
        factor = 2 if self.kernel.is_nonnegative else 4
        return math.sqrt(factor * self.kernel.diagonal_bound * lambda_max)

    @property
    def failure_probability(self) -> float:
        """1e-10: the probability that the bound of ‖B K_SS Bᵀ − I‖ is too small (``_norm_bound``).

        It is over the ten random probes, which are fixed independently of points and rows. The diameter of this map
        uses one such bound. The diameter of ``SubspaceIntegers`` uses a bound of ‖B‖ too, and has twice the
        probability."""
        return _PROBE_FACTOR**-_NUM_PROBES

    @property
    def certain_diameter(self) -> float:
        """:attr:`diameter` with :attr:`certain_lambda_max` instead of λmax."""
        return self._diameter(self.certain_lambda_max)

    @functools.cached_property
    def certain_lambda_max(self) -> float:
        """λmax ≤ 1 + ‖B K_SS Bᵀ − I‖_F, a bound that cannot fail. It takes F³ operations once.

        The products are rounded: the error of each entry is at most γ (|B| |K_SS| |B|ᵀ), with γ = n u / (1 − n u) for
        n = 2F + 2 operations in a row and the unit roundoff u (Higham 2002, section 3.5), for any order of summation.
        """
        with float64():
            values = np.asarray(gram.gram(self.kernel, jnp.asarray(self.pivot_points)))
        size, sizes = len(values), np.abs(self.basis)
        deviation = self.basis @ values @ self.basis.T - np.eye(size)
        chain = (2 * size + 2) * 2.0**-53
        rounding = 1.01 * chain / (1 - chain) * float(np.linalg.norm(sizes @ np.abs(values) @ sizes.T))
        return 1 + float(np.linalg.norm(deviation)) + rounding

    @property
    def published_diameter(self) -> float:
        """2 √κ: [B] lemma 13, with k(x, x) ≤ κ = 1 there, for an exactly orthonormal basis."""
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def row_bound(self) -> float:
        """1e100. Squares up to this size, and their sums, are far from overflow."""
        return 1e100

    def rank_at(self, num_points: int | Int[np.ndarray, "n"]) -> np.integer | Int[np.ndarray, "n"]:
        """F of the first M points, for one M or an array of them."""
        return np.searchsorted(self.pivots, num_points, side="left")

    def prefix(self, num_points: int) -> SubspaceMap:
        """The map of the first M points, without a new factorisation.

        λmax and ‖B‖ of a leading block of B (and of B K Bᵀ, by Cauchy's interlacing) are at most those of all of B.
        So the bounds hold for the prefix too.

        Raises:
          ValueError: if M is not in 1, ..., :attr:`num_points`.
        """
        if not 1 <= num_points <= self.num_points:
            raise ValueError(f"num_points must be between 1 and {self.num_points}, got {num_points}")
        rank = int(self.rank_at(num_points))
        return dataclasses.replace(
            self, points=self.points[:num_points], pivots=self.pivots[:rank], basis=self.basis[:rank, :rank]
        )

    def __call__(self, x: Float64[AnyArray, "n d"]) -> Float64[Array, "n F"]:
        """ψ(x_n) = B k_S(x_n): [n, d] -> [n, F] in float64.

        Call this within ``kme_jax.float64()``. In float32, ‖B‖ would amplify the error of a kernel
        value far beyond the noise of a release.

        Raises:
          ValueError: if x is float32.
        """
        x, basis = jnp.asarray(x), jnp.asarray(self.basis)
        if x.dtype != jnp.float64 or basis.dtype != jnp.float64:
            raise ValueError("SubspaceMap needs float64 rows: call it within kme_jax.float64()")
        return _features(self.kernel, x, jnp.asarray(self.pivot_points), basis)

    def features_of_points(self, num_rows: int, num_columns: int) -> Float64[Array, "rows columns"]:
        """ψ(z_m) of the public points, padded to a size that is the same for many maps: [num_rows, num_columns].

        Rows after row M repeat the features of the last point. Columns after column F are zero. Call this within
        ``kme_jax.float64()``.
        """
        points = np.pad(self.points, [(0, num_rows - self.num_points), (0, 0)], mode="edge")
        missing = num_columns - self.num_features
        pivot_points = np.pad(self.pivot_points, [(0, missing), (0, 0)], mode="edge")
        return _features(self.kernel, points, pivot_points, np.pad(self.basis, (0, missing)))

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        """B Σ_n a_n k_S(x_n): one kernel sum, and then one product.

        The kernel sum uses direct differences, as the basis and the proof do."""
        rows, weights = np.asarray(rows, np.float64), np.asarray(weights, np.float64)
        values, points = gram.KernelValues(self.kernel, expand=False), np.asarray(self.pivot_points)
        sums = tiles.pair_sums(
            values, points, rows, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        return self.basis @ sums[0]

    def expand(self, coordinates: Float[AnyArray, "F *r"]) -> Float64[np.ndarray, "M *r"]:
        """Weights w [M] with Σ_m w_m k(z_m, ·) = Σ_f β_f b_f, zero at dropped points ([B] algorithm 1, line 8).

        Args:
          coordinates: β, [F], or r vectors β as columns, [F, r].

        Returns:
          w, [M] or [M, r].
        """
        weights = np.zeros((self.num_points, *np.shape(coordinates)[1:]))
        weights[self.pivots] = self.basis.T @ np.asarray(coordinates, np.float64)
        return weights


# -- in integers


_KERNEL_BITS = 38  # the sum of a chunk of 2^15 rows is at most 2^53, so it is exact in float64
_BASIS_BITS = 40  # binary digits of B after the point


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class IntegerKernelValues:
    """Integers round(s k(z, x)) between 0 (or −sκ) and sκ, as float64, for ``tiles.pair_sums``.

    Attributes:
      kernel: k.
      units: s.
    """

    kernel: Kernel
    units: float
    num_values: ClassVar[int] = 1

    def __call__(self, points: Float[AnyArray, "m d"], rows: Float[AnyArray, "n d"]) -> tuple[Float[Array, "m n"]]:
        (value,) = gram.KernelValues(self.kernel, expand=False)(points, rows)
        most = jnp.ceil(self.units * self.kernel.diagonal_bound)
        least = 0 if self.kernel.is_nonnegative else -most
        return (jnp.clip(jnp.rint(self.units * value), least, most),)

    def is_elementwise(self, dim):
        return gram.KernelValues(self.kernel, expand=False).is_elementwise(dim)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class SubspaceIntegers(IntegerMap):
    """q(x) = round(s k_S(x)). B is applied once, to the sum, in exact arithmetic.

    Attributes:
      feature_map: a SubspaceMap.
      units: s, a power of two.
    """

    feature_map: SubspaceMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float

    @classmethod
    def create(cls, feature_map: SubspaceMap, num_rows: int) -> SubspaceIntegers:
        """See ``FeatureMap.integers``."""
        most = math.ceil(math.log2(max(num_rows, 2)))
        feature_map.kernel.evaluation_error(feature_map.dim)
        kappa = math.ceil(max(0.0, math.log2(feature_map.kernel.diagonal_bound)))
        bits = min(_KERNEL_BITS, MAX_SUM_BITS - most) - kappa
        if bits < 20:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, float(2**bits))

    @property
    def diameter(self) -> float:
        """s √(2κλ) + ‖B‖ √F (1 + 2 s e) + √F, plus the effect of rounding B to multiples of 2^-40. Here e is the error
        of k in float64, and λ = λmax + ‖B‖² F e.

        Formal guarantee: with q(x) = s k_S(x) + r, |r_i| ≤ ½ + s e, ‖B q(x) − B q(x′)‖ ≤ s ‖ψ(x) − ψ(x′)‖ +
        2 ‖B‖ √F (½ + s e). Rounding the product to integers moves each coordinate of two neighbours by at most ½,
        which is √F in total. Let B′ be B rounded to multiples of 2^-40. B′ − B is known, and moves ‖B k_S‖ by no more
        than ‖B′ − B‖ times the norm of a difference of k_S, which is at most 2κ√F. ‖ψ(x) − ψ(x′)‖² ≤ 2κλ
        (``SubspaceMap.diameter``), where λmax was bounded for the Gram matrix as computed. The norm of that matrix is
        off by at most F e. Clamping q to the range of s k moves it towards s k_S.
        """
        return self._diameter(self.feature_map.lambda_max, self.feature_map.basis_norm)

    @property
    def failure_probability(self) -> float:
        """2e-10: 1e-10 for the bound of λmax and 1e-10 for that of ‖B‖, each over ten random vectors."""
        return 2e-10

    @property
    def certain_diameter(self) -> float:
        """:attr:`diameter` with Frobenius norms: ‖B‖ ≤ ‖B‖_F, and ``SubspaceMap.certain_lambda_max``."""
        subspace = self.feature_map
        return self._diameter(subspace.certain_lambda_max, float(np.linalg.norm(subspace.basis)))

    def _diameter(self, lambda_max: float, basis_norm: float) -> float:
        subspace, size = self.feature_map, self.feature_map.num_features
        kappa, error = subspace.kernel.diagonal_bound, subspace.kernel.evaluation_error(subspace.dim)
        factor = 2 if subspace.kernel.is_nonnegative else 4
        exact = math.sqrt(factor * kappa * (lambda_max + basis_norm**2 * size * error))
        moved = size * 2.0 ** -(_BASIS_BITS + 1)
        exact += moved * 2 * kappa * math.sqrt(size)
        kernel_rounding = (basis_norm + moved) * math.sqrt(size) * (1 + 2 * self.units * error)
        return (self.units * exact + kernel_rounding + math.sqrt(size)) * (1 + 1e-12)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        sums = tiles.pair_sums(
            IntegerKernelValues(self.feature_map.kernel, self.units),
            np.asarray(self.feature_map.pivot_points),
            np.asarray(rows, np.float64),
            np.asarray(usable, np.float64),
            exact=True,
            rows_planned=rows_planned,
            devices=devices,
            progress=progress,
        )
        return sums[0].astype(np.int64)

    def released(self, total):
        product = exact_product(self.feature_map.basis, total, _BASIS_BITS)
        # No entry exceeds 2^61 if the error of the kernel is as stated. Clipping never increases distances.
        return np.clip(product, -(2**MAX_SUM_BITS), 2**MAX_SUM_BITS).astype(np.int64)
