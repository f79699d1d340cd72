"""Distances to the private data. NOT PRIVATE: for experiments and tests only; the library itself never imports it."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from kme_jax import gram
from kme_jax.kernels import Kernel
from kme_jax.numerics import Progress, check_points, in_float64


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """The exact embedding μ̂_X of private rows, to measure a release against.

    Attributes:
      kernel: k.
      rows: x, [N, d].
      squared_norm: ‖μ̂_X‖² = (1/N²) Σ k(x_n, x_n').
    """

    kernel: Kernel
    rows: np.ndarray
    squared_norm: float

    @classmethod
    def from_rows(cls, kernel: Kernel, rows: np.ndarray, *, progress: Progress | None = None) -> Reference:
        """Computes ‖μ̂_X‖² in float64: N²/2 kernel evaluations."""
        rows = check_points(rows, "rows").astype(np.float64)
        return cls(kernel, rows, gram.double_mean(kernel, rows, progress=progress))

    def kernel_mean(self, points: np.ndarray, *, progress: Progress | None = None) -> np.ndarray:
        """μ̂_X(z_m) for every point: [M, d] -> [M] in float64."""
        return gram.kernel_mean(self.kernel, np.asarray(points, np.float64), self.rows, progress=progress)

    @in_float64
    def distance(self, points: np.ndarray, weights: np.ndarray) -> float:
        """Δ = ‖μ̂_X − Σ_m w_m k(z_m, ·)‖ in the RKHS of the exact kernel ([B] B.1), from its definition in float64.

        Args:
          points: z, [M, d].
          weights: w, [M].

        Raises:
          ValueError: Δ² comes out below −1e-9: the sums have cancelled to noise.
        """
        points, weights = np.asarray(points, np.float64), np.asarray(weights, np.float64)
        cross = weights @ self.kernel_mean(points)
        own = 0.0
        for start in range(0, len(points), 1024):
            block = gram.gram(self.kernel, jnp.asarray(points[start : start + 1024]), jnp.asarray(points))
            own += float(weights[start : start + 1024] @ np.asarray(block @ weights))
        return _root(self.squared_norm - 2 * cross + own)


def _root(squared: float) -> float:
    """√ of a squared distance; a tiny negative value is rounding."""
    if squared < -1e-9:
        raise ValueError(f"squared distance {squared} is negative beyond rounding")
    return float(np.sqrt(max(squared, 0.0)))
