"""Kernels of inner products, k(x, y) = f(⟨x, y⟩), for points in a ball about the origin.

f(s) = Σ_n a_n sⁿ with a_n ≥ 0, so k is positive definite (Schoenberg 1942). Such a kernel has no bound on all of R^d.
So each kernel has a radius R, and a point outside of the ball counts as the nearest point of the ball, x min(1, R/‖x‖).
Then k(x, x) ≤ f(R²) everywhere, and k changes gradually.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import check_positive, require
from kme_jax.kernels.base import UNROLLED_COLUMNS, Kernel, check_sets, two_points

Array = jax.Array

MAX_DEGREE = 100
_MAX_EXPONENT = 20.0  # of an Exponential: its series then has at most 100 terms
_MAX_LOG_OF_POWERS = 290.0  # log10 of the largest power of the radius in its series
_NEGLIGIBLE = 2.0**-60  # the share of f(R²) that a series may leave out


def in_ball(x: Float[AnyArray, "n d"], radius: float) -> Float[Array, "n d"]:
    """The points of the ball that are nearest to the points, [n, d]. Traceable, and its derivative is finite."""
    x = jnp.asarray(x)
    # A far point is brought near first, because its square could overflow. The nearest point of the ball is the same.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=1, keepdims=True))
    x = jnp.where(largest > radius, x / jnp.where(largest > radius, largest, 1) * radius, x)
    squared = jnp.sum(jnp.square(x), axis=1, keepdims=True)
    outside = squared > radius**2
    return jnp.where(outside, x * (radius / jnp.sqrt(jnp.where(outside, squared, 1))), x)


def _floating(x: AnyArray) -> Array:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


class DotProduct(Kernel):
    """k(x, y) = f(⟨x, y⟩) in a ball, see ``kme_jax.kernels.dot_products``.

    Attributes:
      radius: R > 0, in the unit of x.
    """

    radius: float

    @property
    @abc.abstractmethod
    def coefficients(self) -> Float64[np.ndarray, "terms"]:
        """a_0, a_1, ..., of f(s) = Σ_n a_n sⁿ, [terms]. What they leave out is at most 2⁻⁶⁰ of f(R²)."""

    @abc.abstractmethod
    def _at(self, products: Array) -> Array:
        """f of inner products, elementwise."""

    def __call__(self, x, y):
        x, y = (in_ball(point[None, :], self.radius)[0] for point in two_points(self, x, y))
        return self._at(jnp.sum(x * y))

    def pairwise(self, x, y, *, expand=False):
        del expand
        check_sets(x, y)
        x, y = (in_ball(_floating(points), self.radius) for points in (x, y))
        if x.shape[1] > UNROLLED_COLUMNS:
            return self._at(jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST))
        columns = [x[:, c, None] * y[None, :, c] for c in range(x.shape[1])]
        return self._at(functools.reduce(operator.add, columns))

    @property
    def diagonal_bound(self) -> float:
        return self.series(self.radius**2) + float(self.coefficients[0])

    def series(self, squared_norm: float) -> float:
        """Σ_{n ≥ 1} a_n sⁿ for s ≥ 0: k(x, x) − a_0 for ‖x‖² = s. It has no negative term, and so no cancellation."""
        return float(series(self.coefficients, np.asarray(squared_norm, np.float64)))


def series(coefficients: Float64[np.ndarray, "terms"], values: Any) -> Any:
    """Σ_{n ≥ 1} a_n sⁿ of values s of any shape, of NumPy or JAX, by Horner's rule.

    Each step rounds a sum or a product of numbers that are not negative. So if s ≤ t, the results are in this order
    too, with their rounding.
    """
    total = 0 * values
    for coefficient in reversed(coefficients[1:].tolist()):
        total = (total + coefficient) * values
    return total


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Polynomial(DotProduct):
    """k(x, y) = (c + ⟨x, y⟩)^p for points within R. A point further out counts as the nearest point of the ball.

    The distance of two embeddings is a distance of their moments of degree p, and of lower degrees if c > 0.

    Attributes:
      degree: p, from 1 to 100.
      radius: R > 0, in the unit of x.
      offset: c ≥ 0, in the unit of x². With c = 0 all moments are of degree p.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Polynomial
      >>> kernel = Polynomial(degree=2, radius=2.0)
      >>> float(kernel(np.array([1.0, 0.5]), np.array([1.0, 1.0])))  # (1 + 1.5)²
      6.25
      >>> kernel.diagonal_bound  # (1 + 4)²
      25.0
    """

    degree: int = dataclasses.field(metadata={"static": True})
    radius: float = dataclasses.field(metadata={"static": True})
    offset: float = dataclasses.field(default=1.0, metadata={"static": True})

    def __post_init__(self):
        object.__setattr__(self, "degree", operator.index(self.degree))
        _set_floats(self, "radius", "offset")
        self._check()

    def _check(self) -> None:
        if not 1 <= self.degree <= MAX_DEGREE:
            raise ValueError(f"Polynomial: degree must be from 1 to {MAX_DEGREE}, got {self.degree}")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"Polynomial: radius must be positive and finite, got {self.radius}")
        if not (math.isfinite(self.offset) and self.offset >= 0):
            raise ValueError(f"Polynomial: offset must be finite and not negative, got {self.offset}")
        if not _is_within_range(self.offset + self.radius * self.radius, self.degree):
            raise ValueError(f"Polynomial: (offset + radius²)^degree is out of range for {self}; scale the columns")

    def validate(self):
        self._check()

    @property
    def coefficients(self):
        powers = range(self.degree + 1)
        return np.array([math.comb(self.degree, n) * self.offset ** (self.degree - n) for n in powers], np.float64)

    @property
    def diagonal_bound(self) -> float:
        """(c + R²)^p."""
        return (self.offset + self.radius**2) ** self.degree

    @property
    def is_nonnegative(self) -> bool:
        """Whether p is even, or c ≥ R²."""
        return self.degree % 2 == 0 or self.offset >= self.radius**2

    def evaluation_error(self, dim):
        """4 p (d + 8) u κ, with u = 2^-53.

        The norm of a point that is moved into the ball is off by (d/2 + 3) u, relative to R, and its direction by less.
        So an inner product is off by (2d + 8) u R². The derivative of the power is at most p (c + R²)^(p−1). The power
        itself has at most p products.
        """
        if type(self) is not Polynomial:
            return super().evaluation_error(dim)
        return 4 * self.degree * (dim + 8) * 2.0**-53 * self.diagonal_bound

    def _at(self, products):
        return (self.offset + products) ** self.degree


def _is_within_range(base: float, degree: int) -> bool:
    return 1e-100 <= base <= 1e100 and -100 <= degree * math.log10(base) <= 100


def _set_floats(kernel: object, *names: str) -> None:
    for name in names:
        object.__setattr__(kernel, name, float(getattr(kernel, name)))


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Exponential(DotProduct):
    """k(x, y) = exp(γ ⟨x, y⟩) for points within R. A point further out counts as the nearest point of the ball.

    Attributes:
      gamma: γ > 0, in 1 / (unit of x)².
      radius: R > 0, in the unit of x, with γR² ≤ 20. A radius whose powers overflow in the series is refused.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Exponential
      >>> round(float(Exponential(gamma=0.5, radius=2.0)(np.array([1.0, 0.5]), np.array([1.0, 1.0]))), 4)  # exp(0.75)
      2.117
    """

    gamma: float = dataclasses.field(metadata={"static": True})
    radius: float = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        _set_floats(self, "gamma", "radius")
        self.validate()

    def validate(self):
        check_positive("Exponential: gamma and radius", self.gamma, self.radius)
        most = self.gamma * (self.radius * self.radius)
        require(
            1e-30 <= most <= _MAX_EXPONENT,
            f"Exponential: gamma · radius² must be from 1e-30 to {_MAX_EXPONENT:g}, got {most:.3g}",
        )
        powers = 2 * (len(self._terms) - 1) * math.log10(self.radius)
        require(
            abs(powers) <= _MAX_LOG_OF_POWERS,
            f"Exponential: powers of the radius {self.radius:.3g} are out of range; scale the columns",
        )

    @property
    def _terms(self) -> list[float]:
        """a_n R^(2n)."""
        most, terms, n = self.gamma * self.radius**2, [1.0], 0
        while terms[-1] > _NEGLIGIBLE * math.exp(most) or n < most:  # the next terms fall at least geometrically
            n += 1
            terms.append(terms[-1] * most / n)
        return terms

    @property
    def coefficients(self):
        terms = np.array(self._terms)
        return terms / self.radius ** (2.0 * np.arange(len(terms)))

    @property
    def diagonal_bound(self) -> float:
        """exp(γR²)."""
        return math.exp(self.gamma * self.radius**2)

    @property
    def is_nonnegative(self) -> bool:
        return True

    def evaluation_error(self, dim):
        """4 (1 + γR²) (d + 8) u κ, as for a :class:`Polynomial`: the derivative of the exponential is at most κ."""
        if type(self) is not Exponential:
            return super().evaluation_error(dim)
        return 4 * (1 + self.gamma * self.radius**2) * (dim + 8) * 2.0**-53 * self.diagonal_bound

    def _at(self, products):
        return jnp.exp(self.gamma * products)
