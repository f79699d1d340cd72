"""Positive-definite kernels k(x, y) on R^d, as small frozen dataclasses that are JAX pytrees.

The two-point form ``kernel(x, y)`` is the definition. :meth:`Kernel.pairwise` is the same function for all
pairs of two sets of points. Everything else in the library is tested against the two-point form.
Parameters are pytree leaves, so a jitted function is not compiled again when a bandwidth changes. To add a kernel,
derive a frozen dataclass from :class:`Kernel` and decorate it with ``kme_jax.pytree_dataclass``. A release can save it
if it is decorated with ``kme_jax.storage.storable`` too.

Each kernel states the properties that the privacy proofs use:

* ``diagonal_bound``: κ = sup k(x, x), so ‖k(x, ·)‖² ≤ κ in the RKHS.
* ``is_nonnegative``: whether k(x, y) ≥ 0 for all x, y. Then ‖k(x, ·) − k(y, ·)‖² ≤ 2κ rather than 4κ.
* ``evaluation_error``: how far a value computed in float64 may be from k(x, y).
* ``decreases_along_rays``: whether k depends on x − y alone, and 0 ≤ k(2δ) ≤ k(δ). Then Fourier features have nearly
  the same bound.

Parameters may be Python, NumPy or JAX scalars. Concrete numbers are checked; traced values are not.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float, PRNGKeyArray, Real

from kme_jax._numerics.exp2 import exp2_nonpositive
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import require

Array = jax.Array
NormalSampler = Callable[..., Float[Array, "n d"]]

# Up to this many columns, the differences are written out one by one, so that they fuse. With more, a loop adds them.
UNROLLED_COLUMNS = 16
# Up to this many columns, direct differences are as fast as the expanded form, which has to store a matrix product.
_DIRECT_COLUMNS = 8
# exp(−s) is 0 in float64 from this s on. Without a limit, a polynomial times exp(−s) would be ∞ · 0.
_FAR = 1e4


@short_repr
class Columnwise(NamedTuple):
    """A kernel in terms of single columns of two sets of points.

    Attributes:
      x: the columns of the first set, [n, p].
      y: the columns of the second set, [m, p].
      value: (kernel, columns of x, columns of y, exp2) -> k. The columns broadcast against each other. exp2 is a
        function that computes 2^e for e ≤ 0.
    """

    x: Float[AnyArray, "n p"]
    y: Float[AnyArray, "m p"]
    value: Callable[[Any, Sequence[Array], Sequence[Array], Callable[[Array], Array]], Array]


def _set_positive(kernel: object, name: str) -> None:
    """Checks a parameter that is a concrete number, and makes it a Python float: its type adapts to that of points.

    Tracers, and the placeholders that JAX puts into pytrees, pass unchecked.

    Raises:
      ValueError: if the number is not a positive, finite scalar.
    """
    value = getattr(kernel, name)
    if isinstance(value, (list, tuple)) and all(isinstance(one, (int, float)) for one in value):
        columns = "; GaussianSum has a length for each column" if isinstance(kernel, Gaussian) else ""
        raise ValueError(f"{type(kernel).__name__}: {name} must be one number, got {value!r:.50}{columns}")
    if isinstance(value, Tracer) or not isinstance(value, (int, float, str, np.generic, np.ndarray, jax.Array)):
        return
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiu" or not (np.isfinite(array) and array > 0):
        raise ValueError(f"{type(kernel).__name__}: {name} must be positive, finite and a scalar, got {value!r}")
    object.__setattr__(kernel, name, float(array))


def _floating(*points: AnyArray) -> list[Array]:
    """The points as floating-point arrays, because unsigned differences and integer squares would wrap around."""
    arrays = [jnp.asarray(x) for x in points]
    return [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float)) for x in arrays]


def two_points(
    kernel: object, x: Real[AnyArray, "*x_shape"], y: Real[AnyArray, "*y_shape"]
) -> tuple[Float[Array, "d"], Float[Array, "d"]]:
    """Two points [d] as floating-point arrays.

    Raises:
      ValueError: if they are arrays of several points, which would give a single number for all of them.
    """
    shapes = list(jnp.shape(x)), list(jnp.shape(y))
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise ValueError(
            f"{type(kernel).__name__}: expected two points of the same shape [d], got {shapes[0]} and {shapes[1]}: for "
            "several points use pairwise, or kme_jax.gram.gram"
        )
    x, y = _floating(x, y)
    return x, y


def _no_spectral_measure(kernel: Kernel) -> ValueError:
    return ValueError(
        f"{type(kernel).__name__} is not shift-invariant, or does not state it (is_shift_invariant, spectral_sample). "
        "So it has no Fourier features: give public points to algorithm1 (points=...), or to improved, measure or "
        "release (public=...); SubspaceMap.from_points makes a map of them"
    )


def _no_evaluation_error(kernel: Kernel) -> ValueError:
    return ValueError(
        f"{type(kernel).__name__}: the kernel states no bound of its rounding error (Kernel.evaluation_error), so "
        "secure noise on a subspace is not possible"
    )


def _formula_error(kernel: Kernel, dim: int) -> float:
    """``Kernel.evaluation_error`` of a Gaussian, Laplacian or Matérn kernel: 4 (d + 8) u, with u = 2^-53.

    Differences are exact to u, a squared distance to (d + 2) u, and its root to half of that. x e^-x ≤ 1/e turns this
    into an absolute error of the exponential. The exponential itself is accurate to a few u. A Matérn kernel has two
    more products.

    Raises:
      ValueError: if the kernel is of a subclass, which may compute something else.
    """
    if "evaluation_error" not in vars(type(kernel)):
        raise _no_evaluation_error(kernel)
    return 4 * (dim + 8) * 2.0**-53


def check_sets(x: Real[AnyArray, "*x_shape"], y: Real[AnyArray, "*y_shape"]) -> None:
    """Refuses what is not two sets of points [n, d] and [m, d]: columns would be broadcast, or be taken twice.

    Raises:
      ValueError: see above.
    """
    shapes = list(jnp.shape(x)), list(jnp.shape(y))
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
        raise ValueError(f"expected points [n, d] and [m, d], got the shapes {shapes[0]} and {shapes[1]}")


def _sum_over_columns(term, x: AnyArray, y: AnyArray) -> Array:
    """Σ_c term(x[n, c] − y[m, c]) as [n, m], without an [n, m, d] array. Raises the errors of :func:`check_sets`."""
    check_sets(x, y)
    d = x.shape[-1]
    if d <= UNROLLED_COLUMNS:
        columns = [term(x[:, c, None] - y[None, :, c]) for c in range(d)]
        return functools.reduce(operator.add, columns)

    def add_column(total, column):
        xc, yc = column
        return total + term(xc[:, None] - yc[None, :]), None

    zero = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
    return jax.lax.scan(add_column, zero, (x.T, y.T))[0]


def squared_distances(x: Float[AnyArray, "n d"], y: Float[AnyArray, "m d"]) -> Float[Array, "n m"]:
    """‖x_n − y_m‖² for all pairs, by direct differences: x [n, d], y [m, d] -> [n, m]."""
    return _sum_over_columns(jnp.square, x, y)


def _safe_sqrt(squared: Array) -> Array:
    """√, with derivative 0 instead of infinity at 0."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)


def orthogonal_normal(key: PRNGKeyArray, shape: tuple[int, int], dtype=None) -> Float[Array, "n d"]:
    """Rows that are each standard normal, and mutually orthogonal within consecutive blocks of d (Yu et al. 2016).

    Args:
      key: a JAX random key.
      shape: (rows, d).
      dtype: floating-point type; JAX's default if None.
    """
    num_rows, dim = shape
    num_blocks = -(-num_rows // dim)
    direction_key, length_key = jax.random.split(key)
    square = jax.random.normal(direction_key, (num_blocks, dim, dim), dtype)
    orthogonal, triangular = jnp.linalg.qr(square)
    # QR of a normal matrix is Haar distributed once the signs of R's diagonal are moved into Q.
    orthogonal = orthogonal * jnp.sign(jnp.diagonal(triangular, axis1=1, axis2=2))[:, None, :]
    lengths = jnp.linalg.norm(jax.random.normal(length_key, (num_blocks * dim, dim), dtype), axis=1)
    return (orthogonal.reshape(-1, dim) * lengths[:, None])[:num_rows]


class Kernel(abc.ABC):
    """A positive-definite kernel on R^d. ``k1 + k2`` and ``k1 * k2`` are kernels too."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # of subclasses, which are dataclasses

    @abc.abstractmethod
    def __call__(self, x: Real[AnyArray, "d"], y: Real[AnyArray, "d"]) -> Float[Array, ""]:
        """k(x, y) for two points of shape [d]; a scalar."""

    @abc.abstractmethod
    def pairwise(
        self, x: Real[AnyArray, "n d"], y: Real[AnyArray, "m d"], *, expand: bool = False
    ) -> Float[Array, "n m"]:
        """k(x_n, y_m) for all pairs: x [n, d], y [m, d] -> [n, m].

        Args:
          x: [n, d].
          y: [m, d].
          expand: allows a faster form, if the kernel has one (:meth:`expands`). Its error is relative to the distances
            of the points from the origin, not to the distances between them. So shift the points to a common centre
            first.
        """

    def columnwise(
        self, x: Real[AnyArray, "n d"], y: Real[AnyArray, "m d"], *, expand: bool = False
    ) -> Columnwise | None:
        """The kernel for a loop that holds single columns in registers, or None if it has no such form.

        Args:
          x: [n, d].
          y: [m, d].
          expand: as for :meth:`pairwise`.
        """
        del x, y, expand
        return None

    def validate(self) -> None:
        """Checks the parameters of a kernel that was read from a file.

        Raises:
          ValueError: if a number is not positive and finite.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, Kernel):
                numbers = np.asarray(value, np.float64)
                positive = numbers.size > 0 and bool(np.isfinite(numbers).all() and (numbers > 0).all())
                require(positive, f"{type(self).__name__}.{field.name}: expected positive numbers")

    def diagonal(self, x: Real[AnyArray, "n d"]) -> Float[Array, "n"]:
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

    def evaluation_error(self, dim: int) -> float:
        """A proved bound of |k(x, y) as computed in float64 − k(x, y)| on R^d.

        Secure noise on a subspace needs this bound, because the kernel values are rounded to integers there.
        A subclass does not inherit the bound, because its formula may differ. It states its own.

        Args:
          dim: d.

        Raises:
          ValueError: if this class states no bound.
        """
        del dim
        raise _no_evaluation_error(self)

    def expands(self, dim: int) -> bool:
        """Whether ``pairwise`` has a faster form (``expand``), by a matrix product, for d = ``dim`` columns."""
        del dim
        return False

    @property
    def is_shift_invariant(self) -> bool:
        """Whether k(x, y) depends on x − y alone, with k(x, x) = ``diagonal_bound`` everywhere."""
        return False

    @property
    def decreases_along_rays(self) -> bool:
        """Whether k(x, y) = k(δ), δ = x − y, with 0 ≤ k(2δ) ≤ k(δ) for all δ, and the frequencies of
        :meth:`spectral_sample` are independent (in blocks of d, for :func:`orthogonal_normal`). The proof of a
        diameter relies on this property."""
        return False

    def spectral_sample(
        self,
        key: PRNGKeyArray,
        num_frequencies: int,
        dim: int,
        dtype=None,
        *,
        normal: NormalSampler = jax.random.normal,
    ) -> Float[Array, "frequencies d"]:
        """Frequencies ω with k(x, y) = κ · E[cos ωᵀ(x − y)] (Bochner): [num_frequencies, dim], radians / unit of x.

        Args:
          key: a JAX random key.
          num_frequencies: how many to draw.
          dim: d.
          dtype: floating-point type; JAX's default if None.
          normal: (key, shape, dtype) -> array, a function that draws standard normal rows. :func:`orthogonal_normal`
            makes the frequencies of a block orthogonal (Gaussian, Matérn) or coupled in the same way (Laplacian).

        Raises:
          ValueError: if the kernel is not shift-invariant.
        """
        raise _no_spectral_measure(self)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class UnitShiftInvariant(Kernel):
    """k(x, y) = κ(x − y) ≥ 0 with k(x, x) = 1, decreasing along rays."""

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return True

    @property
    def is_shift_invariant(self) -> bool:
        return True

    @property
    def decreases_along_rays(self) -> bool:
        return True


class _OfDistance(UnitShiftInvariant):
    """A function of a distance that is a sum over columns."""

    @staticmethod
    @abc.abstractmethod
    def _term(difference: Array) -> Array:
        """The contribution of one column to the distance."""

    @abc.abstractmethod
    def _at(self, distance: Array, exp2: Callable[[Array], Array]) -> Array:
        """k as a function of the distance."""

    def pairwise(self, x, y, *, expand=False):
        del expand
        x, y = _floating(x, y)
        return self._at(_sum_over_columns(self._term, x, y), exp2_nonpositive)

    def columnwise(self, x, y, *, expand=False):
        del expand
        return Columnwise(x, y, _of_differences)


def _of_differences(kernel: _OfDistance, x, y, exp2) -> Array:
    terms = [kernel._term(a - b) for a, b in zip(x, y, strict=True)]
    return kernel._at(functools.reduce(operator.add, terms), exp2)


def _of_products(kernel: Kernel, x, y, exp2) -> Array:
    del kernel
    return exp2(functools.reduce(operator.add, [a * b for a, b in zip(x, y, strict=True)]))


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(_OfDistance):
    """k(x, y) = exp(−γ ‖x − y‖²): the convention of Balog et al. 2018, appendix B (no factor ½).

    Attributes:
      gamma: γ > 0, in 1 / (unit of x)². γ = 1 / (2ℓ²) for a length scale ℓ.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian
      >>> kernel = Gaussian(gamma=0.5)
      >>> round(float(kernel(np.array([0.0, 0.0]), np.array([1.0, 1.0]))), 4)  # exp(-1)
      0.3679
      >>> (kernel + Gaussian(gamma=5.0)).diagonal_bound
      2.0
    """

    gamma: float | Float[Array, ""]

    def evaluation_error(self, dim):
        return _formula_error(self, dim)

    def __post_init__(self):
        _set_positive(self, "gamma")

    def expands(self, dim):
        return dim > _DIRECT_COLUMNS

    def __call__(self, x, y):
        x, y = two_points(self, x, y)
        return jnp.exp(-self.gamma * jnp.sum(jnp.square(x - y)))

    @staticmethod
    def _term(difference):
        return jnp.square(difference)

    def _at(self, distance, exp2):
        return exp2(distance * (-self.gamma / math.log(2)))

    def pairwise(self, x, y, *, expand=False):
        if not (expand and self.expands(x.shape[1])):
            return super().pairwise(x, y)
        check_sets(x, y)
        x_columns, y_columns = self._exponent_columns(*_floating(x, y))
        exponent = jnp.matmul(x_columns, y_columns.T, precision=jax.lax.Precision.HIGHEST)
        return exp2_nonpositive(exponent)

    def columnwise(self, x, y, *, expand=False):
        if not (expand and self.expands(x.shape[1])):
            return super().columnwise(x, y)
        return Columnwise(*self._exponent_columns(*_floating(x, y)), _of_products)

    def _exponent_columns(self, x: Array, y: Array) -> tuple[Array, Array]:
        """d + 2 columns for each set. The inner product of two rows is the exponent of 2, that is
        (2γ xᵀy − γ‖x‖² − γ‖y‖²) / log 2. Only the exponential is then left to compute for each pair. The absolute error
        of the exponent is a few units in the last place of γ(‖x‖² + ‖y‖²)."""
        x_norm, y_norm = (jnp.sum(jnp.square(points), axis=1, keepdims=True) for points in (x, y))
        x_columns = jnp.concatenate([2 * x, -x_norm, -jnp.ones_like(x_norm)], axis=1) * (self.gamma / math.log(2))
        return x_columns, jnp.concatenate([y, jnp.ones_like(y_norm), y_norm], axis=1)

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        draws = normal(key, (num_frequencies, dim), dtype)
        return jnp.sqrt(jnp.asarray(2 * self.gamma, draws.dtype)) * draws


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class GaussianSum(UnitShiftInvariant):
    """k(x, y) = Σ_t a_t exp(−Σ_c γ_tc (x_c − y_c)²): a convex combination of Gaussian kernels.

    Each term has its own length scale for every column. A term ignores the columns with γ_tc = 0: with such terms, k is
    an ANOVA kernel (a sum of products of kernels of few columns). With multiples of one γ, k has several length scales.

    Attributes:
      gammas: γ ≥ 0, [T, d], in 1 / (unit of x)². At least one γ of every term is above 0.
      weights: a > 0, [T], scaled to the sum 1. Equal weights if None.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import GaussianSum
      >>> kernel = GaussianSum([[0.5, 0.5], [50.0, 50.0]])  # two lengths, two columns
      >>> round(float(kernel(np.array([0.0, 0.0]), np.array([1.0, 1.0]))), 4)  # (exp(-1) + exp(-100)) / 2
      0.1839
    """

    gammas: Float[AnyArray, "terms d"]
    weights: Float[AnyArray, "terms"] | None = None

    def __post_init__(self):
        known = np.ndarray | jax.Array | list | tuple
        if isinstance(self.gammas, Tracer) or not isinstance(self.gammas, known):
            return
        gammas = np.asarray(self.gammas, np.float64)
        if gammas.ndim != 2 or not gammas.size:
            raise ValueError(f"GaussianSum: gammas must be of shape [terms, columns], got {list(gammas.shape)}")
        if not (np.isfinite(gammas).all() and (gammas >= 0).all() and gammas.any(axis=1).all()):
            raise ValueError(
                "GaussianSum: gammas must be finite and not negative, and every term must have one above 0"
            )
        weights = np.ones(len(gammas)) if self.weights is None else np.asarray(self.weights, np.float64)
        if weights.shape != (len(gammas),) or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise ValueError(f"GaussianSum: weights must be positive, one for each of {len(gammas)} terms")
        object.__setattr__(self, "gammas", gammas)
        object.__setattr__(self, "weights", weights / weights.sum())

    def validate(self):
        GaussianSum(self.gammas, self.weights)  # its checks: γ may be 0, unlike numbers of other kernels

    def _in_short(self) -> str:
        return f"{self.gammas.shape[0]} terms, {self.gammas.shape[1]} columns"

    def _require_columns(self, columns: int) -> None:
        if columns != self.gammas.shape[1]:
            raise ValueError(f"GaussianSum: the kernel is for {self.gammas.shape[1]} columns, got {columns}")

    def __call__(self, x, y):
        x, y = two_points(self, x, y)
        self._require_columns(x.shape[0])
        exponents = jnp.sum(jnp.asarray(self.gammas, x.dtype) * jnp.square(x - y)[None, :], axis=1)
        return jnp.sum(jnp.asarray(self.weights, x.dtype) * jnp.exp(-exponents))

    def pairwise(self, x, y, *, expand=False):
        del expand
        x, y = _floating(x, y)
        check_sets(x, y)
        self._require_columns(x.shape[1])

        def add_term(total, term):
            gammas, weight = term
            root = jnp.sqrt(gammas)[None, :]
            exponents = squared_distances(x * root, y * root) * (-1 / math.log(2))
            return total + weight * exp2_nonpositive(exponents), None

        zero = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
        terms = jnp.asarray(self.gammas, x.dtype), jnp.asarray(self.weights, x.dtype)
        return jax.lax.scan(add_term, zero, terms)[0]

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        self._require_columns(dim)
        term_key, normal_key = jax.random.split(key)
        draws = normal(normal_key, (num_frequencies, dim), dtype)
        weights = jnp.asarray(self.weights)
        terms = jax.random.choice(term_key, len(weights), (num_frequencies,), p=weights)
        return jnp.sqrt(2 * jnp.asarray(self.gammas, draws.dtype))[terms] * draws


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Laplacian(_OfDistance):
    """k(x, y) = exp(−γ ‖x − y‖₁); its frequencies are independent Cauchy (Rahimi & Recht 2007).

    Attributes:
      gamma: γ > 0, in 1 / unit of x.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Laplacian
      >>> kernel = Laplacian(gamma=1.0)
      >>> round(float(kernel(np.array([0.0, 0.0]), np.array([0.5, 0.5]))), 4)  # exp(-1)
      0.3679
    """

    gamma: float | Float[Array, ""]

    def evaluation_error(self, dim):
        return _formula_error(self, dim)

    def __post_init__(self):
        _set_positive(self, "gamma")

    def __call__(self, x, y):
        x, y = two_points(self, x, y)
        return jnp.exp(-self.gamma * jnp.sum(jnp.abs(x - y)))

    @staticmethod
    def _term(difference):
        return jnp.abs(difference)  # no expanded form exists for the L1 distance

    def _at(self, distance, exp2):
        return exp2(distance * (-self.gamma / math.log(2)))

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        draws = normal(key, (num_frequencies, dim), dtype)
        # Normal to Cauchy by quantiles: tan(π(Φ(g) − ½)). The lower tail is used, because it is the accurate one.
        tail = jnp.maximum(jax.scipy.stats.norm.cdf(-jnp.abs(draws)), jnp.finfo(draws.dtype).tiny)
        return jnp.asarray(self.gamma, draws.dtype) * jnp.sign(draws) / jnp.tan(math.pi * tail)


@dataclasses.dataclass(frozen=True)
class _Matern(_OfDistance):
    """Matérn kernels with ν = 3/2, 5/2: a polynomial in s = √(2ν) ‖x − y‖ / ℓ times exp(−s).

    Attributes:
      length_scale: ℓ > 0, in the unit of x.
    """

    length_scale: float | Float[Array, ""]
    _two_nu: ClassVar[int]

    def __post_init__(self):
        _set_positive(self, "length_scale")

    @staticmethod
    def _term(difference):
        return jnp.square(difference)  # never expanded: √ would amplify the error of an expanded distance near 0

    @staticmethod
    @abc.abstractmethod
    def _polynomial(s: Array) -> Array:
        """The polynomial factor of exp(−s)."""

    def _at(self, distance, exp2):
        s = jnp.minimum(math.sqrt(self._two_nu) * _safe_sqrt(distance) / self.length_scale, _FAR)
        return self._polynomial(s) * exp2(s * (-1 / math.log(2)))

    def __call__(self, x, y):
        return self._at(jnp.sum(jnp.square(operator.sub(*two_points(self, x, y)))), exp2_nonpositive)

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        # The spectral density is a multivariate Student t with 2ν degrees of freedom (Rasmussen & Williams, eq. 4.15).
        normal_key, chi_key = jax.random.split(key)
        draws = normal(normal_key, (num_frequencies, dim), dtype)
        chi_squared = jax.random.chisquare(chi_key, float(self._two_nu), (num_frequencies, 1), draws.dtype)
        return draws * jnp.sqrt(self._two_nu / chi_squared) / jnp.asarray(self.length_scale, draws.dtype)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Matern32(_Matern):
    """k(x, y) = (1 + s) exp(−s), s = √3 ‖x − y‖ / ℓ (Rasmussen & Williams 2006, eq. 4.17).

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Matern32
      >>> round(float(Matern32(length_scale=1.0)(np.array([0.0]), np.array([1.0]))), 4)
      0.4834
    """

    _two_nu = 3

    def evaluation_error(self, dim):
        return _formula_error(self, dim)

    @staticmethod
    def _polynomial(s):
        return 1 + s


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Matern52(_Matern):
    """k(x, y) = (1 + s + s²/3) exp(−s), s = √5 ‖x − y‖ / ℓ (Rasmussen & Williams 2006, eq. 4.17).

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Matern52
      >>> round(float(Matern52(length_scale=1.0)(np.array([0.0]), np.array([1.0]))), 4)
      0.524
    """

    _two_nu = 5

    def evaluation_error(self, dim):
        return _formula_error(self, dim)

    @staticmethod
    def _polynomial(s):
        return 1 + s + s * s / 3


@dataclasses.dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels combined point by point."""

    left: Kernel
    right: Kernel

    def __call__(self, x, y):
        return self._combined(self.left(x, y), self.right(x, y))

    def pairwise(self, x, y, *, expand=False):
        return self._combined(self.left.pairwise(x, y, expand=expand), self.right.pairwise(x, y, expand=expand))

    @property
    def is_nonnegative(self) -> bool:
        return self.left.is_nonnegative and self.right.is_nonnegative

    def expands(self, dim):
        return self.left.expands(dim) or self.right.expands(dim)

    def columnwise(self, x, y, *, expand=False):
        del expand  # both kernels use differences, so that they can share columns
        left, right = self.left.columnwise(x, y), self.right.columnwise(x, y)
        if left is None or right is None:
            return None
        left_value, right_value = left.value, right.value

        def value(kernel, x, y, exp2):
            return kernel._combined(left_value(kernel.left, x, y, exp2), right_value(kernel.right, x, y, exp2))

        return Columnwise(x, y, value)

    @staticmethod
    @abc.abstractmethod
    def _combined(left: Array, right: Array) -> Array:
        """k from the values of the two kernels."""

    @property
    def is_shift_invariant(self) -> bool:
        return self.left.is_shift_invariant and self.right.is_shift_invariant

    @property
    def decreases_along_rays(self) -> bool:
        return self.left.decreases_along_rays and self.right.decreases_along_rays

    def _require_shift_invariant(self) -> None:
        if not self.is_shift_invariant:
            raise _no_spectral_measure(self)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Sum(_Pair):
    """k(x, y) = left(x, y) + right(x, y)."""

    @staticmethod
    def _combined(left, right):
        return left + right

    def evaluation_error(self, dim):
        return self.left.evaluation_error(dim) + self.right.evaluation_error(dim) + 2.0**-52 * self.diagonal_bound

    @property
    def diagonal_bound(self) -> float:
        return self.left.diagonal_bound + self.right.diagonal_bound

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        self._require_shift_invariant()
        left_key, right_key, choice_key = jax.random.split(key, 3)
        left = self.left.spectral_sample(left_key, num_frequencies, dim, dtype, normal=normal)
        right = self.right.spectral_sample(right_key, num_frequencies, dim, dtype, normal=normal)
        share = self.left.diagonal_bound / self.diagonal_bound
        return jnp.where(jax.random.bernoulli(choice_key, share, (num_frequencies, 1)), left, right)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Product(_Pair):
    """k(x, y) = left(x, y) · right(x, y)."""

    @staticmethod
    def _combined(left, right):
        return left * right

    def evaluation_error(self, dim):
        left, right = self.left.evaluation_error(dim), self.right.evaluation_error(dim)
        error = self.right.diagonal_bound * left + self.left.diagonal_bound * right + left * right
        return error + 2.0**-52 * self.diagonal_bound

    @property
    def diagonal_bound(self) -> float:
        return self.left.diagonal_bound * self.right.diagonal_bound

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, *, normal=jax.random.normal):
        self._require_shift_invariant()
        left_key, right_key = jax.random.split(key)
        left = self.left.spectral_sample(left_key, num_frequencies, dim, dtype, normal=normal)
        return left + self.right.spectral_sample(right_key, num_frequencies, dim, dtype, normal=normal)


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Matching(Kernel):
    """k(x, y) = the share of the columns in which x and y are equal. With a single column this is 1[x = y]."""

    def __call__(self, x, y):
        x, y = two_points(self, x, y)
        return jnp.mean(jnp.asarray(x == y, x.dtype))

    def pairwise(self, x, y, *, expand=False):
        del expand
        x, y = _floating(x, y)
        return _sum_over_columns(lambda difference: jnp.asarray(difference == 0, x.dtype), x, y) / x.shape[1]

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return True


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class OnColumns(Kernel):
    """k(x, y) = kernel(x_S, y_S) for the columns S = start, ..., stop − 1.

    Attributes:
      kernel: a kernel on R^(stop − start).
      start: the first column.
      stop: the index after the last column.

    Raises:
      ValueError: unless 0 ≤ start < stop.
    """

    kernel: Kernel
    start: int = dataclasses.field(metadata={"static": True})
    stop: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not 0 <= self.start < self.stop:
            raise ValueError(f"OnColumns: expected 0 <= start < stop, got start={self.start} and stop={self.stop}")

    def _require_columns(self, *points: AnyArray) -> None:
        columns = min(x.shape[-1] for x in points)
        if columns < self.stop:
            raise ValueError(f"OnColumns: columns {self.start} to {self.stop - 1} of points with {columns} columns")

    def __call__(self, x, y):
        x, y = two_points(self, x, y)
        self._require_columns(x, y)
        return self.kernel(x[self.start : self.stop], y[self.start : self.stop])

    def pairwise(self, x, y, *, expand=False):
        self._require_columns(x, y)
        columns = slice(self.start, self.stop)
        return self.kernel.pairwise(x[:, columns], y[:, columns], expand=expand)

    @property
    def diagonal_bound(self) -> float:
        return self.kernel.diagonal_bound

    @property
    def is_nonnegative(self) -> bool:
        return self.kernel.is_nonnegative
