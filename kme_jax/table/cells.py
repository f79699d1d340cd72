"""Noisy counts of the cells of a column and of its segments as one estimate. Post-processing.

A column of many values is counted in cells, and in a few segments of many cells each. The noise of a count does not
depend on how many cells it is of. So the count of a segment is much less noisy than the sum of those of its cells. The
estimate is the best one that is linear and unbiased (Hay et al. 2010, "Boosting the accuracy of differentially private
histograms through consistency").
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from kme_jax._numerics.short_repr import short_repr


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class CellNoise:
    """The noise of the counts of the cells of a column.

    The noise of cells of different segments is independent. Within a segment p, it consists of independent noise with
    standard deviation σ, less its mean over the cells, and of noise of the sum over the segment with standard deviation
    s_p, which all cells have an equal share in. So Σ_c v_c y_c has the variance σ² Σ_c (v_c − v̄_p)² + Σ_p s_p² v̄_p²,
    where v̄_p is the mean of v over the cells of segment p.

    Attributes:
      sigma: σ. The noise of a single count is at most as large.
      segments: the segment of every cell, [cells]; None if the noise of all cells is independent.
      sums: s_p, [segments]; empty without segments.
    """

    sigma: float
    segments: Int[np.ndarray, "cells"] | None = None
    sums: Float[np.ndarray, "segments"] = dataclasses.field(default_factory=lambda: np.zeros(0))

    def covariance(self, values: Float[np.ndarray, "k cells"]) -> Float[np.ndarray, "k k"]:
        """The covariances of the noise of k sums Σ_c v_c y_c, [k, k].

        Args:
          values: v, [k, cells].
        """
        within, means = self._within(values)
        return self.sigma**2 * within @ within.T + (means * np.square(self.sums)) @ means.T

    def of(self, values: Float[np.ndarray, "*n cells"]) -> Float[np.ndarray, "*n"]:
        """The standard deviation of the noise of Σ_c v_c y_c, [...], for v along the last axis."""
        within, means = self._within(values)
        return np.asarray(np.sqrt(self.sigma**2 * np.square(within).sum(-1) + np.square(means) @ np.square(self.sums)))

    def of_groups(self, groups: Int[np.ndarray, "cells"]) -> Float[np.ndarray, "groups"]:
        """The standard deviations of the noise of sums over groups of cells, [groups].

        Args:
          groups: the group of every cell, from 0 without gaps.
        """
        if self.segments is None:
            return self.sigma * np.sqrt(np.bincount(groups))
        number, sizes = len(self.sums), np.bincount(self.segments)
        both, counts = np.unique(groups * number + self.segments, return_counts=True)
        group, segment = np.divmod(both, number)
        shares = counts / sizes[segment]
        variances = self.sigma**2 * counts * (1 - shares) + np.square(shares * self.sums[segment])
        return np.sqrt(np.bincount(group, variances))

    def of_ranges(
        self, cells: Bool[np.ndarray, "cells"], start: Int[np.ndarray, "n"], stop: Int[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n"]:
        """The standard deviations of the noise of sums over those of some cells that are within ranges, [n].

        Args:
          cells: the cells that count.
          start: the first cell of each range.
          stop: the cell after its last one.
        """
        member = np.ones((len(cells), 1)) if self.segments is None else np.eye(len(self.sums))[self.segments]
        until = np.pad(np.cumsum(cells[:, None] * member, axis=0), [(1, 0), (0, 0)])
        numbers = until[stop] - until[start]  # cells in each segment
        if self.segments is None:
            return self.sigma * np.sqrt(numbers[:, 0])
        shares = numbers / member.sum(0)
        return np.sqrt(self.sigma**2 * (numbers * (1 - shares)).sum(1) + np.square(shares) @ np.square(self.sums))

    def covariance_of_groups(self, groups: Int[np.ndarray, "cells"]) -> Float[np.ndarray, "groups groups"]:
        """The covariances of the noise of sums over groups of cells, [groups, groups]. ``groups`` as above."""
        if self.segments is None:
            return np.diag(np.square(self.of_groups(groups)))
        return self.covariance(np.eye(int(groups.max()) + 1)[groups].T)

    def on(self, cells: Bool[np.ndarray, "cells"]) -> CellNoise:
        """The noise of the counts of some cells, which must be complete segments."""
        if self.segments is None:
            return self
        kept, segments = np.unique(self.segments[cells], return_inverse=True)
        return CellNoise(self.sigma, segments, self.sums[kept])

    def times(self, factor: float) -> CellNoise:
        """The noise of counts that are so many times as large."""
        return CellNoise(factor * self.sigma, self.segments, factor * self.sums)

    def _within(
        self, values: Float[np.ndarray, "*n cells"]
    ) -> tuple[Float[np.ndarray, "*n cells"], Float[np.ndarray, "*n segments"]]:
        """Values less their means over segments, and these means. Without segments, there are none to take away."""
        if self.segments is None:
            return values, values[..., :0]
        member = np.eye(len(self.sums))[self.segments]
        means = values @ (member / member.sum(0))
        return values - means[..., self.segments], means


def refined(
    counts: Float[np.ndarray, "*n cells"],
    sigma: float,
    segments: Int[np.ndarray, "cells"],
    of_segments: Float[np.ndarray, "*n segments"],
    sigma_of_segments: float,
) -> tuple[Float[np.ndarray, "*n cells"], CellNoise]:
    """Counts of cells that agree with the counts of segments as well as noise allows, and their noise.

    These are the least squares estimates from both. The sum over a segment is the mean of the sum of its cells and of
    its own count, weighted by their inverse variances. Each cell changes by the same number.

    Args:
      counts: noisy counts of cells, [..., cells].
      sigma: standard deviation of their noise.
      segments: the segment of every cell.
      of_segments: noisy counts of segments, [..., segments]. Their noise is independent of that of ``counts``.
      sigma_of_segments: standard deviation of their noise.
    """
    member = np.eye(of_segments.shape[-1])[segments]
    sizes = np.maximum(member.sum(0), 1)
    variances = sizes * sigma**2
    share = variances / np.maximum(variances + sigma_of_segments**2, 1e-300)
    change = share * (of_segments - counts @ member) / sizes
    return counts + change[..., segments], CellNoise(sigma, segments, np.sqrt(share) * sigma_of_segments)
