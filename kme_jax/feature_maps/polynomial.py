"""ψ(x): the weighted monomials of a row, whose inner products are a polynomial kernel without any error."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int32, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import require
from kme_jax.feature_maps.balls import BallMap
from kme_jax.kernels import Polynomial
from kme_jax.kernels.dot_products import in_ball

_MAX_FEATURES = 2**20
_GRID = 2**16  # intervals of the grid for the diameter of one column
_SLACK = 1 + 1e-9  # for rounding: features are off by (p + d + 8) u, relative to √κ


def num_monomials(kernel: Polynomial, dim: int) -> int:
    """The number of monomials of positive weight: those of all degrees up to p for c > 0, and of degree p for c = 0.

    If c is so small that the weights of low degrees underflow, their monomials are left out.
    """
    return sum(math.comb(dim + n - 1, n) for n in np.flatnonzero(kernel.coefficients).tolist())


@functools.lru_cache(maxsize=32)
def _monomials(
    dim: int, degree: int
) -> tuple[list[tuple[Int32[np.ndarray, "m"], Int32[np.ndarray, "m"]]], list[Float64[np.ndarray, "m"]]]:
    """For each degree n from 1 to p: the monomial of degree n − 1 and the column whose product is a monomial, and the
    number of orders in which the columns of the monomial can be multiplied, n!/α!."""
    steps, counts = [], []
    indices: dict[tuple[int, ...], int] = {(): 0}
    for _ in range(degree):
        found = [(*columns, j) for columns in indices for j in range(columns[-1] if columns else 0, dim)]
        parents = np.array([indices[columns[:-1]] for columns in found], np.int32)
        steps.append((parents, np.array([columns[-1] for columns in found], np.int32)))
        counts.append(np.array([_orders(columns) for columns in found], np.float64))
        indices = {columns: i for i, columns in enumerate(found)}
    return steps, counts


def _orders(columns: tuple[int, ...]) -> int:
    repeats = (len(list(group)) for _, group in itertools.groupby(columns))
    return math.factorial(len(columns)) // math.prod(map(math.factorial, repeats))


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PolynomialMap(BallMap):
    """√(a_n n!/α!) x^α for the monomials x^α of all degrees n = |α| with a_n > 0, where f(s) = (c + s)^p = Σ_n a_n sⁿ.

    ⟨ψ(x), ψ(y)⟩ = k(x, y), by the multinomial theorem. There are C(d + p, p) features for c > 0, and C(d + p − 1, p)
    for c = 0. If these are too many, a ``TensorSketchMap`` or a ``RandomMaclaurinMap`` has as many as you like, with an
    error, and with a diameter that is up to √2 larger. Build a map with :meth:`from_kernel`.

    Attributes:
      kernel: k, polynomial. A row outside of its ball counts as the zero vector.
      columns: d.

    Examples:
      >>> from kme_jax import Polynomial, PolynomialMap
      >>> features = PolynomialMap.from_kernel(Polynomial(degree=2, radius=1.0), dim=3)
      >>> print(f"{features.num_features} features, diameter {features.diameter:.3f}")
      10 features, diameter 2.828
    """

    kernel: Polynomial  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    columns: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_kernel(cls, kernel: Polynomial, dim: int) -> PolynomialMap:
        """The map of rows with so many columns.

        Args:
          kernel: k, polynomial.
          dim: d.

        Raises:
          ValueError: if the kernel is not polynomial, or d < 1, or there are more than 2²⁰ features.
        """
        if not isinstance(kernel, Polynomial):
            raise ValueError(f"a PolynomialMap needs a Polynomial kernel, got {type(kernel).__name__}")
        dim = operator.index(dim)
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        if num_monomials(kernel, dim) > _MAX_FEATURES:
            raise ValueError(
                f"{num_monomials(kernel, dim)} monomials: expected at most 2^20 features; use a TensorSketchMap"
            )
        return cls(kernel, dim)

    def validate(self):
        require(self.columns >= 1 and self.num_features <= _MAX_FEATURES, "columns: is out of range")

    @property
    def num_features(self) -> int:
        return num_monomials(self.kernel, self.columns)

    @property
    def dim(self) -> int:
        return self.columns

    @property
    def diameter(self) -> float:
        """√max(κ, 2κ − 2m), with κ = (c + R²)^p and m the smallest value of k that two rows on the sphere may have. It
        cannot fail, and two rows, or a row and the zero vector, attain it.

        Formal guarantee, for two or more columns, or odd p, or c ≥ R²: with a = ‖x‖, b = ‖y‖ and s = ⟨x, y⟩,
        ‖ψ(x) − ψ(y)‖² = (c + a²)^p + (c + b²)^p − 2(c + s)^p, where |s| ≤ ab. If p is odd, or c ≥ ab, the smallest
        (c + s)^p is (c − ab)^p, and the sum grows with a and with b. So it is largest for a = b = R, and
        m = (c − R²)^p. If p is even and c < R², (c + s)^p ≥ 0 = m, and (c + a²)^p + (c + b²)^p ≤ 2κ. With two columns
        there are rows on the sphere with s = −c.
        One column, even p and c < R²: ‖ψ(tx) − ψ(ty)‖ grows with t, so one row of the worst pair is R or −R. By
        symmetry it is R. The other row y is looked for on a grid of spacing h. Between the points of the grid, the
        squared distance is larger by at most Bh²/8, where B bounds the second derivative of (c + y²)^p − 2(c + Ry)^p:
        B = 2p(c + R²)^(p−1) + 6p(p − 1)R²(c + R²)^(p−2).
        The distance from the zero vector is at most √κ. The factor 1 + 10⁻⁹ covers the rounding of features.
        """
        return math.sqrt(max(self.kernel.diagonal_bound, self._squared_distance())) * _SLACK

    def _squared_distance(self) -> float:
        degree, offset, squared = self.kernel.degree, self.kernel.offset, self.kernel.radius**2
        kappa = self.kernel.diagonal_bound
        if degree % 2 or offset >= squared:
            return 2 * kappa - 2 * (offset - squared) ** degree
        if self.columns > 1:
            return 2 * kappa
        radius = self.kernel.radius
        other = np.linspace(-radius, radius, _GRID + 1)
        distances = kappa + (offset + np.square(other)) ** degree - 2 * (offset + radius * other) ** degree
        base = offset + squared
        curvature = 2 * degree * base ** (degree - 1) + 6 * degree * (degree - 1) * squared * base ** (degree - 2)
        return float(distances.max()) + curvature * (2 * radius / _GRID) ** 2 / 8

    @property
    def norm_bound(self) -> float:
        """√κ."""
        return math.sqrt(self.kernel.diagonal_bound) * _SLACK

    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ(x_n) in the precision of the rows: [n, d] -> [n, F]."""
        x = in_ball(jnp.asarray(x), self.kernel.radius)
        return jnp.concatenate(self._blocks(x, jnp.ones_like(x[:, :1])), axis=1)

    def host_features(self, rows):
        return np.concatenate(self._blocks(rows, np.ones((len(rows), 1))), axis=1)

    def _blocks(self, rows: Any, ones: Any) -> list[Any]:
        """The features of each degree with a_n > 0: [n, m] each."""
        coefficients = self.kernel.coefficients
        steps, counts = _monomials(self.columns, self.kernel.degree)
        blocks = [ones * math.sqrt(coefficients[0])] if coefficients[0] else []
        values = ones
        for (parents, columns), orders, coefficient in zip(steps, counts, coefficients[1:], strict=True):
            values = values[:, parents] * rows[:, columns]
            if coefficient:
                blocks.append(values * np.sqrt(coefficient * orders).astype(rows.dtype)[None, :])
        return blocks
