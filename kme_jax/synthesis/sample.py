"""What step 3 makes: a weighted synthetic database."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from kme_jax._numerics.precision import check_points
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax.privacy.mechanisms import Mechanism


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class WeightedSample:
    """A synthetic database (z_1, w_1), ..., (z_M, w_M) standing for Σ_m w_m k(z_m, ·). Public.

    Attributes:
      points: z, [M, d].
      weights: w, [M]. They may be negative, and need not sum to 1, unless the method that made them says so.
      mechanism: the mechanism behind it; None if no private rows were involved.
    """

    points: np.ndarray
    weights: np.ndarray
    mechanism: Mechanism | None = None

    def expectation(self, h: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Σ_m w_m h(z_m), the estimate of E[h(X)] ([B] equation 4). ``h`` maps [M, d] to [M] or [M, ...]."""
        return np.tensordot(np.asarray(self.weights), np.asarray(h(np.asarray(self.points))), axes=1)

    def resample(self, num_rows: int, seed: int) -> np.ndarray:
        """An unweighted database of the sample's points, by systematic resampling (Kitagawa 1996): [num_rows, d].

        Each point appears ⌊num_rows · w⌋ or ⌈num_rows · w⌉ times, num_rows · w in expectation, in the points' order.

        Args:
          num_rows: how many rows to write.
          seed: of the one uniform number it takes.

        Raises:
          ValueError: weights that are no probability vector; num_rows < 1.
        """
        weights = np.asarray(self.weights, np.float64)
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        if weights.min() < 0 or abs(weights.sum() - 1) > 1e-6:
            raise ValueError(
                f"only probability weights can be resampled: these sum to {weights.sum():.4g} and the least is "
                f"{weights.min():.2g}"
            )
        shift = np.random.default_rng(seed).uniform()
        upto = np.cumsum(weights) * (num_rows / weights.sum())
        upto[-1] = num_rows
        counts = np.diff(np.ceil(upto - shift).astype(int), prepend=0)
        return np.repeat(np.asarray(self.points), counts, axis=0)


def uniform(points: np.ndarray) -> WeightedSample:
    """Weights 1/M: the baseline of [B] figure 1."""
    points = check_points(points, "points")
    return WeightedSample(points, np.full(len(points), 1 / len(points)))
