"""Distances to the private rows. NOT PRIVATE: for experiments, tests and the evaluation of releases alone."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Real

from kme_jax import gram
from kme_jax._numerics.precision import (
    Progress,
    check_points,
    in_float64,
    reproducible_jit,
)
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.kernels import Kernel

WARNING = "NOT PRIVATE: computed from the private rows; not to be published"


@functools.partial(reproducible_jit, static_argnames="num_rows")
def _quadratic_form(kernel, points, columns, start, *, num_rows: int):
    """Σ_ij c_i k(z_i, z_j) c_j for each column c of ``columns`` [M, r]. The sum is over ``num_rows`` values of i from
    ``start`` on, and over all j."""
    points_i, columns_i = [jax.lax.dynamic_slice_in_dim(array, start, num_rows) for array in (points, columns)]
    block = gram.gram(kernel, points_i, points)
    return jnp.sum(columns_i * jnp.matmul(block, columns, precision=jax.lax.Precision.HIGHEST), axis=0)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """The exact mean embedding μ̂_X of private rows, as the reference of distances to releases. SENSITIVE.

    Attributes:
      kernel: k.
      rows: x, [N, d].
      squared_norm: ‖μ̂_X‖² = (1/N²) Σ k(x_n, x_n').

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian
      >>> from kme_jax.nonprivate import Reference
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
      >>> points = np.random.default_rng(1).normal(size=(20, 2))
      >>> reference = Reference.from_rows(Gaussian(gamma=0.5), rows)
      >>> round(reference.distance(points, np.full(20, 1 / 20)), 3)  # Δ of equal weights
      0.196
    """

    kernel: Kernel
    rows: Float64[np.ndarray, "N d"]
    squared_norm: float

    def _in_short(self) -> str:
        return f"SENSITIVE, rows: {list(np.shape(self.rows))}"

    @classmethod
    def from_rows(cls, kernel: Kernel, rows: Real[AnyArray, "N d"], *, progress: Progress | bool = False) -> Reference:
        """The reference of private rows [N, d]. It computes ‖μ̂_X‖² in float64, with N²/2 kernel evaluations."""
        rows = check_points(rows, "rows").astype(np.float64)
        return cls(kernel, rows, gram.double_mean(kernel, rows, progress=progress))

    def kernel_mean(
        self, points: Real[AnyArray, "M d"], *, progress: Progress | bool = False
    ) -> Float64[np.ndarray, "M"]:
        """μ̂_X(z_m) for points [M, d], float64 [M]."""
        return gram.kernel_mean(self.kernel, np.asarray(points, np.float64), self.rows, progress=progress)

    def distance(
        self,
        points: Real[AnyArray, "M d"],
        weights: Real[AnyArray, "M"],
        kernel_mean: Float[np.ndarray, "M"] | None = None,
    ) -> float:
        """Δ = ‖μ̂_X − Σ_m w_m k(z_m, ·)‖ in the RKHS of the exact kernel ([B] B.1), from its definition in float64.

        Args:
          points: z, [M, d].
          weights: w, [M].
          kernel_mean: :meth:`kernel_mean` of the points, [M]; computed if None.

        Raises:
          ValueError: if the computed Δ² is negative by more than the rounding of sums of this size.
        """
        return float(self.distances(points, np.asarray(weights)[None, :], kernel_mean)[0])

    @in_float64
    def distances(
        self,
        points: Real[AnyArray, "M d"],
        weights: Real[AnyArray, "r M"],
        kernel_mean: Float[np.ndarray, "M"] | None = None,
    ) -> Float64[np.ndarray, "r"]:
        """:meth:`distance` for each row of weights [r, M] of the same points [M, d], float64 [r]."""
        points, weights = np.asarray(points, np.float64), np.asarray(weights, np.float64)
        if weights.shape[1:] != points.shape[:1]:
            raise ValueError(f"weights: expected {len(points)}, one for each point, got {weights.shape[-1]}")
        used = np.any(weights != 0, axis=0)
        points, weights = points[used], weights[:, used]
        if not len(points):
            return np.full(len(weights), np.sqrt(self.squared_norm))
        cross_terms = weights @ (self.kernel_mean(points) if kernel_mean is None else kernel_mean[used])
        squared_norms = np.zeros(len(weights))
        # Points of weight zero are appended, so that few shapes are compiled.
        size = len(points)
        size = max(64, 1 << (size - 1).bit_length()) if size <= 1024 else -(-size // 1024) * 1024
        points = np.pad(points, [(0, size - len(points)), (0, 0)], mode="edge")
        columns = np.pad(weights.T, [(0, size - weights.shape[1]), (0, 0)])
        for start in range(0, size, 1024):
            squared_norms += np.asarray(_quadratic_form(self.kernel, points, columns, start, num_rows=min(1024, size)))
        squared = self.squared_norm - 2 * cross_terms + squared_norms
        rounding = 1e-13 * self.kernel.diagonal_bound * np.square(1 + np.abs(weights).sum(axis=1))
        if np.any(squared < -rounding):
            worst = int(np.argmin(squared + rounding))
            raise ValueError(
                f"squared distance {squared[worst]} is below 0 by more than rounding, {rounding[worst]:.1g}"
            )
        return np.sqrt(np.maximum(squared, 0.0))
