"""Where a curator expects rows to be, from public knowledge alone: a distribution rather than points."""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax.pytrees import pytree_dataclass
from kme_jax.validation import require


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NormalProposal:
    """N(mean, diag(scale²)) on R^d. It must not come from the private rows; it need not be accurate, only wide enough.

    Attributes:
      mean: [d].
      scale: standard deviations, [d], positive.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def create(cls, mean: np.ndarray, scale: np.ndarray) -> NormalProposal:
        """From a mean [d] and standard deviations [d], or one for all columns.

        Raises:
          ValueError: not finite numbers of shape [d], or a scale that is not positive.
        """
        mean = np.asarray(mean, np.float64)
        scale = np.asarray(scale, np.float64)
        if mean.ndim != 1 or not mean.size or scale.shape not in ((), mean.shape):
            raise ValueError(f"mean and scale: expected shapes [d] and [d] or [], got {mean.shape} and {scale.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("mean and scale must be finite, and scale positive")
        return cls(mean, np.broadcast_to(scale, mean.shape).copy())

    @classmethod
    def from_bounds(cls, lower: np.ndarray, upper: np.ndarray) -> NormalProposal:
        """From public bounds of the columns, [d] each, which are taken to be two standard deviations out.

        Raises:
          ValueError: shapes that differ, or a lower bound that is not below its upper bound.
        """
        lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        if lower.shape != upper.shape or not (lower < upper).all():
            raise ValueError("every lower bound must be below its upper bound")
        return cls.create((lower + upper) / 2, (upper - lower) / 4)

    def validate(self) -> None:
        """Refuses fields of a proposal that was read from a file, as :meth:`create` does.

        Raises:
          ValueError: see :meth:`create`.
        """
        require(np.shape(self.mean) == np.shape(self.scale), "mean and scale: the shapes differ")
        self.create(self.mean, self.scale)

    @property
    def dim(self) -> int:
        """d."""
        return len(self.mean)

    def sample(self, num_points: int, seed: int) -> np.ndarray:
        """Independent draws, [num_points, d]."""
        return np.random.default_rng(seed).normal(self.mean, self.scale, (num_points, self.dim))
