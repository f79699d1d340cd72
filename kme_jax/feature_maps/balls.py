"""Maps of rows in a ball, for kernels of inner products, and their version in integers."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Real

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import reporter
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap
from kme_jax.feature_maps.table import COUNT_WEIGHT
from kme_jax.kernels import DotProduct

_EDGE = 1e-6  # a row may be outside of the ball by this share of its radius, and is moved into it
_BLOCK = 1 << 21  # features of rows that are computed at once


def row_sums(values: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n"]:
    """The sum of each row, [n], in one order of additions that depends on m alone.

    (NumPy and BLAS may add in an order that depends on n, so that a row could have other integers in another batch.)
    """
    while values.shape[1] > 1:
        half = (values.shape[1] + 1) // 2
        folded = values[:, :half].copy()
        folded[:, : values.shape[1] - half] += values[:, half:]
        values = folded
    return values[:, 0]


def moved_into_ball(rows: Float64[np.ndarray, "n d"], radius: float) -> Float64[np.ndarray, "n d"]:
    """Rows outside of the ball replaced by the nearest point of it, as ``dot_products.in_ball`` does, [n, d]."""
    squared = row_sums(np.square(rows))
    outside = squared > radius**2
    return rows * np.where(outside, radius / np.sqrt(np.where(outside, squared, 1.0)), 1.0)[:, None]


class BallMap(FeatureMap):
    """A map of rows within the radius of a kernel. A row whose norm is more than a millionth larger counts as the zero
    vector."""

    kernel: DotProduct  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it

    @abc.abstractmethod
    def host_features(self, rows: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n F"]:
        """ψ in float64, [n, F], of rows in the ball. Each row is computed by itself: in another batch, it has the same
        features to the last bit."""

    @property
    def published_diameter(self) -> float:
        """2√κ ([B] lemma 13)."""
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def row_bound(self) -> float:
        """R, and a millionth more; see also :meth:`covers`."""
        return self.kernel.radius * (1 + _EDGE)

    @np.errstate(all="ignore")
    def covers(self, rows):
        # Always in float64, because float32 may be too coarse to tell a row from the sphere.
        return row_sums(np.square(np.asarray(rows, np.float64))) <= self.row_bound**2

    def check_box(self, lower, upper):
        furthest = float(np.linalg.norm(np.maximum(np.abs(lower), np.abs(upper))))
        require(
            furthest <= self.row_bound,
            f"the map is not made for rows from 0 to 1: they have norms up to {furthest:.4g}, and the radius of the "
            f"kernel is {self.kernel.radius:.4g}",
        )

    def blocks(self, rows: Real[AnyArray, "n d"], *, progress: Progress | bool = False):
        """Yields, for blocks of rows, the slice of the rows and their features [b, F]."""
        report, step = reporter(progress), max(1, _BLOCK // self.num_features)
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            part = moved_into_ball(np.asarray(rows[block], np.float64), self.kernel.radius)
            yield block, self.host_features(part)
            if report:
                report(min(start + step, len(rows)), len(rows))

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices
        weights, total = np.asarray(weights, np.float64), np.zeros(self.num_features)
        for block, features in self.blocks(rows, progress=progress or False):
            total += weights[block] @ features
        return total

    def integers(self, num_rows):
        return BallIntegers.create(self, num_rows)


# -- in integers


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class BallIntegers(IntegerMap):
    """q(x) = round(s ψ(x)), in float64 on the host.

    Attributes:
      feature_map: a BallMap.
      units: s = 2²⁰ √F / diameter, so that rounding adds a millionth to the diameter.
    """

    feature_map: BallMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    is_of_rows: ClassVar[bool] = True
    uses_devices: ClassVar[bool] = False

    @classmethod
    def create(cls, feature_map: BallMap, num_rows: int) -> BallIntegers:
        """See ``FeatureMap.integers``."""
        units = COUNT_WEIGHT * math.sqrt(feature_map.num_features) / feature_map.diameter
        if num_rows * (units * feature_map.norm_bound + 1) >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, units)

    @property
    def diameter(self) -> float:
        """s diameter(ψ) + √F.

        Formal guarantee: ‖q(x) − s ψ(x)‖ ≤ ½ √F, for ψ as computed, which the diameter of ψ covers. A row that does not
        count has q = 0.
        """
        return (self.units * self.feature_map.diameter + math.sqrt(self.feature_map.num_features)) * (1 + 1e-12)

    @property
    def certain_diameter(self) -> float:
        return self.diameter

    @property
    def norm_bound(self) -> float:
        """s sup ‖ψ‖ + ½ √F."""
        rounding = math.sqrt(self.feature_map.num_features) / 2
        return (self.units * self.feature_map.norm_bound + rounding) * (1 + 1e-12)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices
        rows, usable = np.asarray(rows), np.asarray(usable, bool)
        total = np.zeros(self.feature_map.num_features, np.int64)
        for block, features in self.feature_map.blocks(rows, progress=progress or False):
            total += np.rint(self.units * features[usable[block]]).astype(np.int64).sum(axis=0)
        return total

    def released(self, total):
        return total
