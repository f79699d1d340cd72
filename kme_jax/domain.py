"""Public knowledge about the private rows: bounds of the columns, or a distribution that is wide enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Real, Shaped

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import require


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NormalProposal:
    """N(mean, diag(scale²)) on R^d, a public guess of where rows are.

    It must not come from the private rows. It must be wide enough, but need not be accurate.

    Attributes:
      mean: the mean of each column, [d].
      scale: the standard deviation of each column, positive, [d].

    Examples:
      >>> from kme_jax import NormalProposal
      >>> proposal = NormalProposal.from_bounds([0, 0], [100, 8])  # bounds are two standard deviations away
      >>> print(proposal.mean, proposal.scale)
      [50.  4.] [25.  2.]
    """

    mean: Float[np.ndarray, "d"]
    scale: Float[np.ndarray, "d"]

    @classmethod
    def create(cls, mean: Real[AnyArray, "d"], scale: float | Real[AnyArray, "d"]) -> NormalProposal:
        """The proposal with these parameters.

        Args:
          mean: the mean of each column, [d].
          scale: standard deviations, [d], or one number for all columns.

        Raises:
          ValueError: shapes mismatch, a number is not finite, or a scale is not positive.
        """
        mean = np.asarray(mean, np.float64)
        scale = np.asarray(scale, np.float64)
        if mean.ndim != 1 or not mean.size or scale.shape not in ((), mean.shape):
            raise ValueError(f"mean and scale: expected shapes [d] and [d] or [], got {mean.shape} and {scale.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("mean and scale must be finite, and scale positive")
        return cls(mean, np.broadcast_to(scale, mean.shape).copy())

    @classmethod
    def from_bounds(cls, lower: Real[AnyArray, "d"], upper: Real[AnyArray, "d"]) -> NormalProposal:
        """The proposal whose mean is two standard deviations away from public lower and upper bounds, [d] each.

        Raises:
          ValueError: shapes differ, or a lower bound is not below its upper bound.
        """
        lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        if lower.shape != upper.shape or not (lower < upper).all():
            raise ValueError("every lower bound must be below its upper bound")
        return cls.create((lower + upper) / 2, (upper - lower) / 4)

    def validate(self) -> None:
        """Refuses invalid fields of a proposal that was read from a file.

        Raises:
          ValueError: as for :meth:`create`.
        """
        require(np.shape(self.mean) == np.shape(self.scale), "mean and scale: the shapes differ")
        self.create(self.mean, self.scale)

    @property
    def dim(self) -> int:
        """d, the number of columns."""
        return len(self.mean)

    def sample(self, num_points: int, seed: int) -> Float64[np.ndarray, "M d"]:
        """Independent draws, float64 [num_points, d]."""
        return np.random.default_rng(seed).normal(self.mean, self.scale, (num_points, self.dim))


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Public bounds of the columns. They must not come from the private rows. Build them with :meth:`create`.

    Attributes:
      lower: lower bounds, [d].
      upper: upper bounds, each above its lower bound, [d].
      names: public names of the d columns.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Bounds
      >>> bounds = Bounds.create([0, 0], [100, 8], names=["age", "hours"])
      >>> bounds.to_unit(np.array([[50.0, 4.0], [120.0, np.nan]]))
      array([[0.5, 0.5],
             [1. , 0.5]])
    """

    lower: Float[np.ndarray, "d"]
    upper: Float[np.ndarray, "d"]
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(
        cls, lower: Real[AnyArray, "d"], upper: Real[AnyArray, "d"], names: Sequence[str] | None = None
    ) -> Bounds:
        """The bounds of columns.

        Args:
          lower: lower bounds, [d].
          upper: upper bounds, [d].
          names: d names; None for x1, x2, and so on.

        Raises:
          ValueError: shapes differ, a bound is not finite, a lower bound is not below its upper bound, or there are not
            d different names.
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
        """Refuses invalid fields of bounds that were read from a file.

        Raises:
          ValueError: as for :meth:`create`.
        """
        self.create(self.lower, self.upper, self.names)

    @property
    def dim(self) -> int:
        """d, the number of columns."""
        return len(self.lower)

    @property
    def proposal(self) -> NormalProposal:
        """The proposal for rows in [0, 1]^d: each bound is two standard deviations from the middle."""
        return NormalProposal.from_bounds(np.zeros(self.dim), np.ones(self.dim))

    @np.errstate(all="ignore")
    def to_unit(self, rows: Shaped[AnyArray, "n d"]) -> Float64[np.ndarray, "n d"]:
        """Rows [n, d], scaled by the bounds to [0, 1]^d, float64 [n, d]. Each entry is scaled by itself.

        An entry beyond a bound, ±inf included, is moved to the bound. NaN is moved to the middle.
        """
        rows = np.asarray(rows, np.float64)
        rows = np.where(np.isnan(rows), self.lower + (self.upper - self.lower) / 2, rows)
        unit = (np.clip(rows, self.lower, self.upper) - self.lower) / (self.upper - self.lower)
        return np.clip(unit, 0, 1)

    def from_unit(self, points: Real[AnyArray, "n d"]) -> Float64[np.ndarray, "n d"]:
        """The inverse of :meth:`to_unit` for points [n, d]. Points outside of [0, 1]^d are moved into it first."""
        rows = self.lower + np.clip(np.asarray(points, np.float64), 0, 1) * (self.upper - self.lower)
        return np.clip(rows, self.lower, self.upper)


def unit_box(dim: int) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]]:
    """The lower and upper bounds, [d] each, of [0, 1]^d."""
    return np.zeros(dim), np.ones(dim)


def in_order(rows: Any, public: Any, bounds: Bounds | None) -> tuple[Any, Any]:
    """The rows and the public points, with the columns in the order of the bounds, or else of the public points.

    A DataFrame or a pyarrow table has names, and so have bounds whose names were given. What has no names is taken as
    it is.

    Args:
      rows: the private rows, of any type.
      public: public points of any type, a proposal or None.
      bounds: of the columns, or None.

    Raises:
      ValueError: the rows or the points have other names than the bounds, or than each other.
    """
    names, owner = None, "bounds"
    if bounds is not None and bounds.names != Bounds.create(bounds.lower, bounds.upper).names:
        names = bounds.names
    if names is None:
        names, owner = _names_of(public), "points"
    if names is None:
        return rows, public
    return _selected(rows, names, "rows", owner), _selected(public, names, "points", owner)


def _selected(data: Any, names: tuple[str, ...], what: str, owner: str) -> Any:
    own = _names_of(data)
    if own is None or own == names:
        return data
    if sorted(own) != sorted(names):
        raise ValueError(f"{what}: the columns are {', '.join(own)}, but the {owner} have {', '.join(names)}")
    return data.select(list(names)) if hasattr(data, "column_names") else data[list(names)]


def _names_of(data: Any) -> tuple[str, ...] | None:
    """Names of the columns of a DataFrame or a pyarrow table, if all are texts."""
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if names is None or len(names) == 0 or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
