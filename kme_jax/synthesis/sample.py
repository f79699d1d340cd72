"""What step 3 makes: a weighted synthetic database."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from kme_jax.numerics import check_points
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.pytrees import pytree_dataclass


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


def uniform(points: np.ndarray) -> WeightedSample:
    """Weights 1/M: the baseline of [B] figure 1."""
    points = check_points(points, "points")
    return WeightedSample(points, np.full(len(points), 1 / len(points)))
