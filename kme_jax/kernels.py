"""Positive-definite kernels k(x, y) on R^d, as small frozen dataclasses that are JAX pytrees.

The two-point form ``kernel(x, y)`` is the definition; :meth:`Kernel.pairwise` is the same function for all
pairs of two sets of points, and everything else in the library is tested against the two-point form.
Parameters are pytree leaves, so a jitted function is not compiled again when a bandwidth changes.

Each kernel states what the privacy proofs need to know about it:

* ``diagonal_bound``: κ = sup k(x, x), so ‖k(x, ·)‖² ≤ κ in the RKHS;
* ``is_nonnegative``: whether k(x, y) ≥ 0 for all x, y, so ‖k(x, ·) − k(y, ·)‖² ≤ 2κ rather than 4κ.

Parameters may be Python floats, NumPy or JAX scalars; they are checked where they are concrete numbers.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import ClassVar

import jax
import jax.numpy as jnp

Array = jax.Array

# Up to this many columns differences are written out one by one (they fuse); beyond it they are looped over.
_UNROLLED_COLUMNS = 16
# From this many columns on, the expanded form of a squared distance (a matrix product) is the faster one.
_EXPANDED_FROM_COLUMNS = 4


def _require_positive(kernel: object, **parameters: object) -> None:
    """Raises ValueError for a parameter that is a plain number and not positive and finite."""
    for name, value in parameters.items():
        if isinstance(value, (int, float)) and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{type(kernel).__name__}: {name} must be positive and finite, got {value}")


def _no_spectral_measure(kernel: Kernel) -> ValueError:
    return ValueError(
        f"{type(kernel).__name__} is not shift-invariant, so it has no spectral measure: use a SubspaceMap instead of "
        "Fourier features"
    )


def _sum_over_columns(term, x: Array, y: Array) -> Array:
    """Σ_c term(x[n, c] − y[m, c]) as [n, m], without an [n, m, d] array."""
    d = x.shape[-1]
    if d <= _UNROLLED_COLUMNS:
        columns = [term(x[:, c, None] - y[None, :, c]) for c in range(d)]
        return functools.reduce(operator.add, columns)

    def add_column(total, column):
        xc, yc = column
        return total + term(xc[:, None] - yc[None, :]), None

    zero = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
    return jax.lax.scan(add_column, zero, (x.T, y.T))[0]


def squared_distances(x: Array, y: Array, *, expand: bool = False) -> Array:
    """‖x_n − y_m‖² for all pairs: x [n, d], y [m, d] -> [n, m].

    Args:
      x: points, [n, d].
      y: points, [m, d], of the same dtype.
      expand: allow ‖x‖² + ‖y‖² − 2xᵀy (clamped at 0), which is a matrix product. Its absolute error is a few
        units in the last place of ‖x‖² + ‖y‖², so shift the points to a common centre first. It is used from
        4 columns on, where it is faster.
    """
    if expand and x.shape[-1] >= _EXPANDED_FROM_COLUMNS:
        product = jnp.matmul(2 * x, y.T, precision=jax.lax.Precision.HIGHEST)
        return jnp.maximum(jnp.sum(x * x, axis=1)[:, None] + jnp.sum(y * y, axis=1)[None, :] - product, 0)
    return _sum_over_columns(jnp.square, x, y)


def _safe_sqrt(squared: Array) -> Array:
    """√, with derivative 0 instead of infinity at 0."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)


class Kernel(abc.ABC):
    """A positive-definite kernel on R^d. ``k1 + k2`` and ``k1 * k2`` are kernels too."""

    @abc.abstractmethod
    def __call__(self, x: Array, y: Array) -> Array:
        """k(x, y) for two points of shape [d]; a scalar."""

    @abc.abstractmethod
    def pairwise(self, x: Array, y: Array, *, expand: bool = False) -> Array:
        """k(x_n, y_m) for all pairs: x [n, d], y [m, d] -> [n, m].

        ``expand`` allows a faster, slightly less accurate form of distances: see :func:`squared_distances`.
        """

    def diagonal(self, x: Array) -> Array:
        """k(x_n, x_n): [n, d] -> [n]."""
        return jax.vmap(lambda row: self(row, row))(x)

    @property
    @abc.abstractmethod
    def diagonal_bound(self) -> float:
        """κ = sup k(x, x)."""

    @property
    @abc.abstractmethod
    def is_nonnegative(self) -> bool:
        """Whether k(x, y) ≥ 0 everywhere."""

    @property
    def is_shift_invariant(self) -> bool:
        """Whether k(x, y) depends on x − y alone, with k(x, x) = ``diagonal_bound`` everywhere."""
        return False

    def spectral_sample(self, key: Array, num_frequencies: int, dim: int, dtype=None) -> Array:
        """Frequencies ω with k(x, y) = κ · E[cos ωᵀ(x − y)] (Bochner): [num_frequencies, dim], 1 / unit of x.

        Args:
          key: a JAX random key.
          num_frequencies: how many to draw.
          dim: d.
          dtype: floating-point type; JAX's default if None.

        Raises:
          ValueError: the kernel is not shift-invariant.
        """
        raise _no_spectral_measure(self)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class _UnitShiftInvariant(Kernel):
    """k(x, y) = κ(x − y) ≥ 0 with k(x, x) = 1."""

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return True

    @property
    def is_shift_invariant(self) -> bool:
        return True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(_UnitShiftInvariant):
    """k(x, y) = exp(−γ ‖x − y‖²): the convention of Balog et al. 2018, appendix B (no factor ½).

    Attributes:
      gamma: γ > 0, in 1 / (unit of x)². γ = 1 / (2ℓ²) for a length scale ℓ.
    """

    gamma: float | Array

    def __post_init__(self):
        _require_positive(self, gamma=self.gamma)

    def __call__(self, x, y):
        return jnp.exp(-self.gamma * jnp.sum(jnp.square(x - y)))

    def pairwise(self, x, y, *, expand=False):
        return jnp.exp(-self.gamma * squared_distances(x, y, expand=expand))

    def spectral_sample(self, key, num_frequencies, dim, dtype=None):
        normal = jax.random.normal(key, (num_frequencies, dim), dtype)
        return jnp.sqrt(jnp.asarray(2 * self.gamma, normal.dtype)) * normal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Laplacian(_UnitShiftInvariant):
    """k(x, y) = exp(−γ ‖x − y‖₁); its frequencies are independent Cauchy (Rahimi & Recht 2007).

    Attributes:
      gamma: γ > 0, in 1 / unit of x.
    """

    gamma: float | Array

    def __post_init__(self):
        _require_positive(self, gamma=self.gamma)

    def __call__(self, x, y):
        return jnp.exp(-self.gamma * jnp.sum(jnp.abs(x - y)))

    def pairwise(self, x, y, *, expand=False):
        del expand  # no expanded form exists for the L1 distance
        return jnp.exp(-self.gamma * _sum_over_columns(jnp.abs, x, y))

    def spectral_sample(self, key, num_frequencies, dim, dtype=None):
        cauchy = jax.random.cauchy(key, (num_frequencies, dim), dtype or jnp.result_type(float))
        return jnp.asarray(self.gamma, cauchy.dtype) * cauchy


@dataclasses.dataclass(frozen=True)
class _Matern(_UnitShiftInvariant):
    """Matérn kernels with ν = 3/2, 5/2: a polynomial in s = √(2ν) ‖x − y‖ / ℓ times exp(−s).

    Attributes:
      length_scale: ℓ > 0, in the unit of x.
    """

    length_scale: float | Array
    _two_nu: ClassVar[int]

    def __post_init__(self):
        _require_positive(self, length_scale=self.length_scale)

    @staticmethod
    @abc.abstractmethod
    def _profile(s: Array) -> Array:
        """k as a function of s."""

    def __call__(self, x, y):
        return self._profile(math.sqrt(self._two_nu) * _safe_sqrt(jnp.sum(jnp.square(x - y))) / self.length_scale)

    def pairwise(self, x, y, *, expand=False):
        # √ amplifies the expanded form's error near 0, so distances are always direct differences here.
        del expand
        return self._profile(math.sqrt(self._two_nu) * _safe_sqrt(squared_distances(x, y)) / self.length_scale)

    def spectral_sample(self, key, num_frequencies, dim, dtype=None):
        # The spectral density is a multivariate Student t with 2ν degrees of freedom (Rasmussen & Williams, eq. 4.15).
        normal_key, chi_key = jax.random.split(key)
        normal = jax.random.normal(normal_key, (num_frequencies, dim), dtype)
        chi_squared = jax.random.chisquare(chi_key, float(self._two_nu), (num_frequencies, 1), normal.dtype)
        return normal * jnp.sqrt(self._two_nu / chi_squared) / jnp.asarray(self.length_scale, normal.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Matern32(_Matern):
    """k(x, y) = (1 + s) exp(−s), s = √3 ‖x − y‖ / ℓ (Rasmussen & Williams 2006, eq. 4.17)."""

    _two_nu = 3

    @staticmethod
    def _profile(s):
        return (1 + s) * jnp.exp(-s)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Matern52(_Matern):
    """k(x, y) = (1 + s + s²/3) exp(−s), s = √5 ‖x − y‖ / ℓ (Rasmussen & Williams 2006, eq. 4.17)."""

    _two_nu = 5

    @staticmethod
    def _profile(s):
        return (1 + s + s * s / 3) * jnp.exp(-s)


@dataclasses.dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels combined point by point."""

    left: Kernel
    right: Kernel

    @property
    def is_nonnegative(self) -> bool:
        return self.left.is_nonnegative and self.right.is_nonnegative

    @property
    def is_shift_invariant(self) -> bool:
        return self.left.is_shift_invariant and self.right.is_shift_invariant

    def _require_shift_invariant(self) -> None:
        if not self.is_shift_invariant:
            raise _no_spectral_measure(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sum(_Pair):
    """k(x, y) = left(x, y) + right(x, y)."""

    def __call__(self, x, y):
        return self.left(x, y) + self.right(x, y)

    def pairwise(self, x, y, *, expand=False):
        return self.left.pairwise(x, y, expand=expand) + self.right.pairwise(x, y, expand=expand)

    @property
    def diagonal_bound(self) -> float:
        return self.left.diagonal_bound + self.right.diagonal_bound

    def spectral_sample(self, key, num_frequencies, dim, dtype=None):
        self._require_shift_invariant()
        left_key, right_key, choice_key = jax.random.split(key, 3)
        left = self.left.spectral_sample(left_key, num_frequencies, dim, dtype)
        right = self.right.spectral_sample(right_key, num_frequencies, dim, dtype)
        share = self.left.diagonal_bound / self.diagonal_bound
        return jnp.where(jax.random.bernoulli(choice_key, share, (num_frequencies, 1)), left, right)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Product(_Pair):
    """k(x, y) = left(x, y) · right(x, y)."""

    def __call__(self, x, y):
        return self.left(x, y) * self.right(x, y)

    def pairwise(self, x, y, *, expand=False):
        return self.left.pairwise(x, y, expand=expand) * self.right.pairwise(x, y, expand=expand)

    @property
    def diagonal_bound(self) -> float:
        return self.left.diagonal_bound * self.right.diagonal_bound

    def spectral_sample(self, key, num_frequencies, dim, dtype=None):
        self._require_shift_invariant()
        left_key, right_key = jax.random.split(key)
        left = self.left.spectral_sample(left_key, num_frequencies, dim, dtype)
        return left + self.right.spectral_sample(right_key, num_frequencies, dim, dtype)
