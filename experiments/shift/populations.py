"""The populations that public rows are drawn from: the private one, a biased one, and one with other places."""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.common.mixture import COMPONENT_SD, components


@dataclasses.dataclass(frozen=True, eq=False)
class Clusters:
    """A mixture of normal distributions with one standard deviation.

    Attributes:
      means: of the clusters, [clusters, D].
      shares: probabilities of the clusters, [clusters].
      deviation: standard deviation of every column of every cluster.
    """

    means: np.ndarray
    shares: np.ndarray
    deviation: float

    @classmethod
    def of_figures(cls, dim: int) -> Clusters:
        """The population of the private rows, ``experiments.common.mixture.mixture`` with seed 0."""
        means, shares = components(np.random.RandomState(0), dim)
        return cls(means, shares, COMPONENT_SD)

    @property
    def first_deviation(self) -> float:
        """Standard deviation of the first column x₁."""
        first = self.means[:, 0]
        return float(np.sqrt(self.deviation**2 + self.shares @ np.square(first - self.shares @ first)))

    def biased(self, strength: float) -> Clusters:
        """The population with a density that is multiplied by exp(b · x₁ / sd), and normalised.

        It is a mixture again: the normal density with mean m and variance v, times exp(t x), is proportional to the
        normal density with mean m + t v. The factor is exp(t m + t² v / 2).

        Args:
          strength: b.
        """
        slope = strength / self.first_deviation
        logarithms = np.log(self.shares) + slope * self.means[:, 0]  # the other factors are the same for all clusters
        shares = np.exp(logarithms - logarithms.max())
        means = self.means.copy()
        means[:, 0] += slope * self.deviation**2
        return Clusters(means, shares / shares.sum(), self.deviation)

    def moved(self, distance: float, rng: np.random.Generator) -> Clusters:
        """The population whose clusters are each moved by a distance, in a random direction of their own."""
        directions = rng.normal(size=self.means.shape)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return Clusters(self.means + distance * directions, self.shares, self.deviation)

    def rows(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Independent rows, [number, D]."""
        members = rng.choice(len(self.shares), number, p=self.shares)
        return self.means[members] + rng.normal(0, self.deviation, (number, self.means.shape[1]))
