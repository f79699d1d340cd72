"""Public knowledge about where rows are: bounds of the columns, or a distribution that is wide enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.validation import require


@storable()
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


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Public bounds of the columns. They must not come from the private rows. Build them with :meth:`create`.

    Attributes:
      lower: [d].
      upper: [d], each above its lower bound.
      names: of the columns, [d], public.
    """

    lower: np.ndarray
    upper: np.ndarray
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(cls, lower: np.ndarray, upper: np.ndarray, names: Sequence[str] | None = None) -> Bounds:
        """From bounds [d] each; columns without names are x1, x2, and so on.

        Raises:
          ValueError: shapes that differ; bounds that are not finite, or not in order, with the column's name; names
            that are not d different ones.
        """
        lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        if lower.ndim != 1 or not lower.size or lower.shape != upper.shape:
            raise ValueError(f"bounds: expected as many lower as upper ones, got {lower.size} and {upper.size}")
        names = tuple(f"x{i + 1}" for i in range(len(lower))) if names is None else tuple(map(str, names))
        if len(names) != len(lower):
            raise ValueError(f"bounds: expected one pair for each of {len(names)} columns, got {len(lower)}")
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"columns: names must be different and not empty, got {','.join(names)!r}")
        with np.errstate(over="ignore", invalid="ignore"):
            ranges = upper - lower
        for name, low, high, width in zip(names, lower, upper, ranges, strict=True):
            if not (np.isfinite([low, high, width]).all() and low < high):
                raise ValueError(
                    f"bounds of {name}: the lower must be finite and below the upper, got {low} and {high}"
                )
        return cls(lower, upper, names)

    def validate(self) -> None:
        """Refuses fields of bounds that were read from a file, as :meth:`create` does.

        Raises:
          ValueError: see :meth:`create`.
        """
        self.create(self.lower, self.upper, self.names)

    @property
    def dim(self) -> int:
        """d."""
        return len(self.lower)

    @property
    def proposal(self) -> NormalProposal:
        """Of rows in [0, 1]^d: two standard deviations from the middle to each bound."""
        return NormalProposal.from_bounds(np.zeros(self.dim), np.ones(self.dim))

    @np.errstate(all="ignore")
    def to_unit(self, rows: np.ndarray) -> np.ndarray:
        """Rows [n, d] in [0, 1]^d, float64: each entry by itself, whatever it is. What is beyond a bound, ±inf too,
        goes to the bound; NaN goes to the middle."""
        rows = np.asarray(rows, np.float64)
        rows = np.where(np.isnan(rows), self.lower + (self.upper - self.lower) / 2, rows)
        unit = (np.clip(rows, self.lower, self.upper) - self.lower) / (self.upper - self.lower)
        return np.clip(unit, 0, 1)

    def from_unit(self, points: np.ndarray) -> np.ndarray:
        """The inverse for points of [0, 1]^d, [n, d]; others are moved into it first."""
        rows = self.lower + np.clip(np.asarray(points, np.float64), 0, 1) * (self.upper - self.lower)
        return np.clip(rows, self.lower, self.upper)


def unit_box(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds, [d] each, of [0, 1]^d."""
    return np.zeros(dim), np.ones(dim)
