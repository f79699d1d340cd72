"""ψ(x): sketches of the monomials of a row, for kernels of inner products.

A sketch is a random linear map of the monomials of a row, whose inner products are k on average. It has any number F
of features, where ``PolynomialMap`` has C(d + p, p). But its norm is not √k(x, x), and it is far larger for some rows.
So the sketch of each row is divided by its norm, and multiplied by √k(x, x). Then ‖ψ(x)‖ ≤ √κ for any sketch, which is
what the proof of the diameter needs. The constant monomial is apart. It is the same for all rows, so that it adds
nothing to the distance of two rows.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Float, Float64, Int64, PRNGKeyArray, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.balls import BallMap, row_sums
from kme_jax.feature_maps.polynomial import num_monomials
from kme_jax.kernels import DotProduct, Polynomial
from kme_jax.kernels.dot_products import in_ball, series

_BITS = 40  # of the numbers of a row, relative to the radius: sums of ± these are exact in float64, in any order
_MAX_DIM = 2**20
_MAX_FEATURES = 2**26
_SLACK = 1 + 1e-12  # for rounding: the norm of the features of a row is off by about 40 u


class SketchMap(BallMap):
    """[√a_0, v(x) √(k(x, x) − a_0) / ‖v(x)‖] for a sketch v. The first feature is left out if a_0 = 0.

    A row has zeros in the place of the quotient if v(x) is 0, or is not finite because numbers overflow.
    """

    @property
    @abc.abstractmethod
    def num_sketched(self) -> int:
        """The number of features without that of a_0."""

    @abc.abstractmethod
    def _sketches(self, x: jax.Array) -> jax.Array:
        """v of rows in the ball, up to a factor: [n, d] -> [n, sketched]. Traceable."""

    @abc.abstractmethod
    def host_sketches(self, rows: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n sketched"]:
        """The same in float64 of NumPy. Each row is computed by itself, as ``BallMap.host_features`` states."""

    @property
    def num_features(self) -> int:
        return self.num_sketched + int(self.kernel.coefficients[0] > 0)

    @property
    def diameter(self) -> float:
        """max(2 √(κ − a_0), √κ), with κ = f(R²) and a_0 = f(0), for any sketch. It cannot fail.

        Formal guarantee: the first feature √a_0 is the same for all rows. The others have the norm √(k(x, x) − a_0), or
        0, which is at most √(κ − a_0), because f grows with s ≥ 0. So two rows differ by at most 2 √(κ − a_0). The
        distance from the zero vector is ‖ψ(x)‖ ≤ √κ. No step depends on how v is computed. The factor 1 + 10⁻¹²
        covers the rounding of the norm.

        The bound is also used if k ≥ 0, where an exact map has a diameter of √(2κ). For if there are enough monomials
        for each feature (three for degree 2, ten for degree 3, in ``tests/test_sketches.py``), there are rows with
        v(x) ≈ −v(y), whose distance is within 5 % of the bound. If there are fewer monomials, searches find less: about
        6 % less for a ``TensorSketchMap`` with seven monomials of degree 3 for each feature. If there are hardly more
        monomials than features, the largest distance may be smaller by up to √2. But nothing smaller is proved (see
        ``docs/privacy.md``).
        """
        return max(2 * math.sqrt(self._largest_series()), math.sqrt(self.kernel.diagonal_bound)) * _SLACK

    def _largest_series(self) -> float:
        return self.kernel.series(self.kernel.radius**2)

    @property
    def norm_bound(self) -> float:
        """√κ."""
        constant = float(self.kernel.coefficients[0])
        return math.sqrt(max(self.kernel.diagonal_bound, constant + self._largest_series())) * _SLACK

    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ(x_n) in the precision of the rows: [n, d] -> [n, F]."""
        x = in_ball(jnp.asarray(x), self.kernel.radius)
        squared = series(self.kernel.coefficients, jnp.sum(jnp.square(x), axis=1, keepdims=True))
        sketches = self._sketches(x)
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(sketches), axis=1, keepdims=True))
        sketches = sketches / jnp.where(largest > 0, largest, 1)
        norms = jnp.sum(jnp.square(sketches), axis=1, keepdims=True)
        is_positive = (largest > 0) & (squared > 0)  # elsewhere, the derivative of a root is not finite
        factors = jnp.sqrt(jnp.where(is_positive, squared, 1) / jnp.where(is_positive, norms, 1))
        features = jnp.where(is_positive, sketches * factors, 0)
        constant = float(self.kernel.coefficients[0])
        return jnp.concatenate([jnp.full_like(squared, math.sqrt(constant)), features], 1) if constant else features

    @np.errstate(all="ignore")
    def host_features(self, rows):
        squared = np.minimum(row_sums(np.square(rows)), self.kernel.radius**2)
        sketches = self.host_sketches(rows)
        largest = np.max(np.abs(sketches), axis=1)
        usable = (largest > 0) & np.isfinite(largest)  # and not NaN: the norm is bounded whatever the sketch is
        sketches = np.where(usable[:, None], sketches, 0)
        sketches /= np.where(usable, largest, 1)[:, None]  # so that no square overflows or underflows
        norms = np.where(usable, row_sums(np.square(sketches)), 1)
        features = sketches * (np.sqrt(series(self.kernel.coefficients, squared)) / np.sqrt(norms))[:, None]
        constant = float(self.kernel.coefficients[0])
        return np.insert(features, 0, math.sqrt(constant), axis=1) if constant else features


def _checked_sizes(kernel: DotProduct, num_features: int, dim: int) -> tuple[int, int]:
    """The number of features that are sketched, and d.

    Raises:
      ValueError: see ``RandomMaclaurinMap.from_kernel``.
    """
    num_features, dim = operator.index(num_features), operator.index(dim)
    if not 1 <= dim <= _MAX_DIM:
        raise ValueError(f"dim must be from 1 to 2^20, got {dim}")
    constant = int(kernel.coefficients[0] > 0)
    if num_features < 1 + constant:
        raise ValueError(f"num_features must be at least {1 + constant} for this kernel, got {num_features}")
    if num_features > _MAX_FEATURES:
        raise ValueError(f"num_features must be at most 2^26, got {num_features}")
    if isinstance(kernel, Polynomial) and num_features >= num_monomials(kernel, dim):
        raise ValueError(
            f"{num_features} features: this kernel has only {num_monomials(kernel, dim)} monomials, so use a "
            "PolynomialMap, which is exact"
        )
    return num_features - constant, dim


def _rounded(rows: Float64[np.ndarray, "n d"], largest: float) -> Float64[np.ndarray, "n d"]:
    """Rows in multiples of 2⁻⁴⁰ of ``largest``, as whole numbers: sums of ± these have no rounding."""
    return np.rint(rows * (2.0**_BITS / largest))


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RandomMaclaurinMap(SketchMap):
    """Random Maclaurin features (Kar & Karnick 2012), divided by their norm: v_i(x) = Π_{j ≤ n_i} ω_ijᵀx.

    The entries of ω are ±1 with equal probability. A degree n_i ≥ 1 has a probability proportional to a_n R^(2n). So,
    with x/R in the place of x, (κ − a_0) E v_i(x) v_i(y) = k(x, y) − a_0. (The paper draws degrees with probability
    2^(−n−1), and multiplies by √(2^(n+1) a_n).) The error of ⟨ψ(x), ψ(y)⟩ falls like F^-½. It grows with the degree.
    Build a map with :meth:`from_kernel`.

    Attributes:
      kernel: k, of inner products. A row outside of its ball counts as the zero vector.
      signs: ω, ±1, [factors, d]. Features are in the order of their degrees. First comes the first ω of each feature,
        then the second ω of each feature of degree 2 or more, and so on.
      factors: the number of features of degree 1 or more, 2 or more, and so on.

    Examples:
      >>> import jax
      >>> from kme_jax import Exponential, RandomMaclaurinMap
      >>> features = RandomMaclaurinMap.from_kernel(jax.random.key(0), Exponential(1.0, 1.0), num_features=100, dim=20)
      >>> print(f"{features.num_features} features, diameter {features.diameter:.3f}")
      100 features, diameter 2.622
    """

    kernel: DotProduct  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    signs: Int64[AnyArray, "factors d"]
    factors: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_kernel(cls, key: PRNGKeyArray, kernel: DotProduct, num_features: int, dim: int) -> RandomMaclaurinMap:
        """Draws the signs and degrees of a map.

        Args:
          key: a JAX random key. Signs and degrees are public, and independent of the rows and of the noise.
          kernel: k, of inner products.
          num_features: F, with the feature of a_0 if it is not zero.
          dim: d.

        Raises:
          ValueError: if the kernel is not one of inner products, or d is not from 1 to 2²⁰, or F is too small or
            above 2²⁶, or the kernel is polynomial and F is not below the number of its monomials.
        """
        if not isinstance(kernel, DotProduct):
            raise ValueError(
                f"a RandomMaclaurinMap needs a kernel of inner products (Polynomial, Exponential), got "
                f"{type(kernel).__name__}; use a FourierMap"
            )
        num_sketched, dim = _checked_sizes(kernel, num_features, dim)
        degree_key, sign_key = jax.random.split(key)
        weights = kernel.coefficients * kernel.radius ** (2.0 * np.arange(len(kernel.coefficients)))
        weights[0] = 0
        uniform = np.asarray(jax.random.uniform(degree_key, (num_sketched,)), np.float64)
        shares = np.cumsum(weights) / weights.sum()
        degrees = np.minimum(np.searchsorted(shares, uniform, side="right"), np.flatnonzero(weights)[-1])
        factors = tuple(int(np.sum(degrees >= j)) for j in range(1, int(degrees.max()) + 1))
        bits = jax.random.bernoulli(sign_key, 0.5, (sum(factors), dim))
        return cls(kernel, 2 * np.asarray(bits, np.int64) - 1, factors)

    def validate(self):
        largest = len(self.kernel.coefficients) - 1
        falls = all(a >= b >= 1 for a, b in zip(self.factors, self.factors[1:] or (1,), strict=False))
        require(
            1 <= len(self.factors) <= largest and falls, "factors: expected decreasing numbers, one for each degree"
        )
        check_array(self.signs, "signs", "i", (sum(self.factors), None))
        require(bool((np.abs(self.signs) == 1).all()), "signs: expected -1 and 1")

    @property
    def num_sketched(self) -> int:
        return self.factors[0]

    @property
    def dim(self) -> int:
        return self.signs.shape[1]

    @property
    def public_inputs(self):
        return ("kernel", "signs")

    def _sketches(self, x):
        signs = jnp.asarray(self.signs, x.dtype)
        products = jnp.matmul(x / self.kernel.radius, signs.T, precision=jax.lax.Precision.HIGHEST)
        first, *others = self.factors
        total, start = products[:, :first], first
        for number in others:
            total = total.at[:, first - number :].multiply(products[:, start : start + number])
            start += number
        return total

    def host_sketches(self, rows):
        rows = _rounded(rows, self.kernel.radius)
        products = rows @ self.signs.T.astype(np.float64)  # whole numbers below 2⁵³: exact in any order
        products *= 2.0**-_BITS
        first, *others = self.factors
        total, start = products[:, :first], first
        for number in others:
            total[:, first - number :] *= products[:, start : start + number]
            start += number
        return total


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TensorSketchMap(SketchMap):
    """TensorSketch (Pham & Pagh 2013), divided by its norm: v(x) = S(x) − S(0) with S(x) = C_1 x̃ * ... * C_p x̃.

    Here x̃ = (x, √c), and * is circular convolution. The count sketch C_j x̃ adds the entries of x̃, each with a random
    sign, into random buckets (Charikar, Chen & Farach-Colton 2002). Then E ⟨S(x), S(y)⟩ = (c + ⟨x, y⟩)^p and
    E ⟨v(x), v(y)⟩ = k(x, y) − c^p. The error of ⟨ψ(x), ψ(y)⟩ falls like F^-½. Build a map with :meth:`from_kernel`.

    Attributes:
      kernel: k, polynomial. A row outside of its ball counts as the zero vector.
      buckets: the bucket of each entry of x̃ in each count sketch, [p, d + 1].
      signs: the sign of each entry of x̃ in each count sketch, ±1, [p, d + 1].
      num_buckets: the number of features without that of c^p.

    Examples:
      >>> import jax
      >>> from kme_jax import Polynomial, TensorSketchMap
      >>> features = TensorSketchMap.from_kernel(jax.random.key(0), Polynomial(3, radius=1.0), num_features=100, dim=20)
      >>> print(f"{features.num_features} features, diameter {features.diameter:.3f}")
      100 features, diameter 5.292
    """

    kernel: Polynomial  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    buckets: Int64[np.ndarray, "p entries"]
    signs: Int64[np.ndarray, "p entries"]
    num_buckets: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_kernel(cls, key: PRNGKeyArray, kernel: Polynomial, num_features: int, dim: int) -> TensorSketchMap:
        """Draws the buckets and signs of a map.

        Args:
          key: a JAX random key. Buckets and signs are public, and independent of the rows and of the noise.
          kernel: k, polynomial.
          num_features: F, with the feature of c^p if c > 0.
          dim: d.

        Raises:
          ValueError: if the kernel is not polynomial, or d is not from 1 to 2²⁰, or F is too small, or not below the
            number of monomials, or above 2²⁶.
        """
        if not isinstance(kernel, Polynomial):
            raise ValueError(
                f"a TensorSketchMap needs a Polynomial kernel, got {type(kernel).__name__}; use a "
                f"{'RandomMaclaurinMap' if isinstance(kernel, DotProduct) else 'FourierMap'}"
            )
        num_buckets, dim = _checked_sizes(kernel, num_features, dim)
        bucket_key, sign_key = jax.random.split(key)
        shape = kernel.degree, dim + 1
        buckets = np.asarray(jax.random.randint(bucket_key, shape, 0, num_buckets), np.int64)
        signs = 2 * np.asarray(jax.random.bernoulli(sign_key, 0.5, shape), np.int64) - 1
        return cls(kernel, buckets, signs, num_buckets)

    def validate(self):
        check_array(self.buckets, "buckets", "i", (self.kernel.degree, None))
        check_array(self.signs, "signs", "i", self.buckets.shape)
        require(self.dim >= 1, "buckets: expected columns and a constant")
        require(self.num_features <= _MAX_FEATURES, "num_buckets: is out of range")
        in_range = (self.buckets >= 0) & (self.buckets < self.num_buckets)
        require(bool(in_range.all()), "buckets: expected numbers from 0 to num_buckets - 1")
        require(bool((np.abs(self.signs) == 1).all()), "signs: expected -1 and 1")

    @property
    def num_sketched(self) -> int:
        return self.num_buckets

    @property
    def dim(self) -> int:
        return self.buckets.shape[1] - 1

    @property
    def public_inputs(self):
        return ("kernel", "buckets")

    def _sketches(self, x):
        constant = jnp.full_like(x[:, :1], math.sqrt(self.kernel.offset))
        rows = jnp.concatenate([x, constant], axis=1)
        rows = jnp.concatenate([rows, rows[:1].at[:, :-1].set(0)]) / self._largest()
        empty, spectra = jnp.zeros((len(rows), self.num_buckets), x.dtype), []
        for buckets, signs in zip(jnp.asarray(self.buckets), jnp.asarray(self.signs, x.dtype), strict=True):
            spectra.append(jnp.fft.rfft(empty.at[:, buckets].add(rows * signs[None, :]), axis=1))
        product = functools.reduce(operator.mul, spectra)
        sketches = jnp.fft.irfft(product, self.num_buckets, axis=1)
        return sketches[:-1] - sketches[-1:]

    def _largest(self) -> float:
        """The largest norm of x̃."""
        return math.hypot(self.kernel.radius, math.sqrt(self.kernel.offset))

    def host_sketches(self, rows):
        extended = np.full((len(rows) + 1, self.dim + 1), math.sqrt(self.kernel.offset))
        extended[:, :-1] = 0  # the last row is that of S(0)
        extended[:-1, :-1] = rows
        extended = _rounded(extended, self._largest())
        real, imaginary = np.ones(1), np.zeros(1)
        for buckets, signs in zip(self.buckets, self.signs, strict=True):
            places = np.arange(self.dim + 1), buckets
            matrix = scipy.sparse.csr_array((signs.astype(np.float64), places), (self.dim + 1, self.num_buckets))
            spectrum = np.fft.rfft(extended @ matrix, axis=1)  # of whole numbers below 2⁵³, and row by row
            a, b = spectrum.real * 2.0**-_BITS, spectrum.imag * 2.0**-_BITS
            # NumPy's product of complex numbers may round in one way within a vector and in another one at its end.
            real, imaginary = real * a - imaginary * b, real * b + imaginary * a
        sketches = np.fft.irfft(real + 1j * imaginary, self.num_buckets, axis=1)
        return sketches[:-1] - sketches[-1:]
