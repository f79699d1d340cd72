"""The distribution that private rows are drawn from, with its exact mean embedding.

It is the mixture of the figures (Balog et al. 2018, appendix B). For a Gaussian kernel its embedding has a closed form,
so distances to the population are exact.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from experiments.common.mixture import COMPONENT_SD, components
from kme_jax import Gaussian
from kme_jax.gram import double_mean, gram_matrix

# Squared distances are differences of numbers near 1 in float64. Smaller distances than this are rounding.
FLOOR = 1e-6


def rooted(squared: float) -> float:
    """A distance from its square, and ``FLOOR`` if it is smaller."""
    return float(np.sqrt(max(squared, FLOOR**2)))


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """A mixture of normal distributions with one standard deviation, and a Gaussian kernel.

    Attributes:
      kernel: exp(−γ‖x − y‖²).
      means: of the components, [components, D].
      shares: of the components, [components].
      deviation: standard deviation of every column of every component.
    """

    kernel: Gaussian
    means: np.ndarray
    shares: np.ndarray
    deviation: float

    @classmethod
    def of_figures(cls, dim: int) -> Population:
        """The distribution of ``experiments.common.mixture.mixture`` for seed 0, with the kernel of the figures."""
        means, shares = components(np.random.RandomState(0), dim)
        return cls(Gaussian(1e-4 / dim), means, shares, COMPONENT_SD)

    @property
    def dim(self) -> int:
        """D."""
        return self.means.shape[1]

    def rows(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Independent rows, [number, D]."""
        members = rng.choice(len(self.shares), number, p=self.shares)
        return self.means[members] + rng.normal(0, self.deviation, (number, self.dim))

    def _smoothed(self, points: np.ndarray, variances: float) -> np.ndarray:
        """E k(x, y + e) for points x [n, D], means y of components and normal e, [n, components].

        Args:
          points: [n, D].
          variances: of e, in multiples of the components' variance.
        """
        gamma = float(self.kernel.gamma)
        factor = 1 + 2 * gamma * variances * self.deviation**2
        squared = np.sum(np.square(points[:, None, :] - self.means[None, :, :]), axis=2)
        return factor ** (-self.dim / 2) * np.exp(-gamma * squared / factor)

    def kernel_mean(self, points: np.ndarray) -> np.ndarray:
        """μ(x) = E k(x, X) at points x [n, D], [n]."""
        return self._smoothed(points, 1) @ self.shares

    @functools.cached_property
    def squared_norm(self) -> float:
        """‖μ‖² = E k(X, X')."""
        return float(self.shares @ self._smoothed(self.means, 2) @ self.shares)

    def distance_of_rows(self, rows: np.ndarray) -> float:
        """‖μ̂ − μ‖ for rows [N, D]."""
        own = double_mean(self.kernel, rows)
        return rooted(own - 2 * float(self.kernel_mean(rows).mean()) + self.squared_norm)

    def expected_distance(self, num_rows: int) -> float:
        """√E‖μ̂ − μ‖² for N independent rows: √((1 − ‖μ‖²)/N), as k(x, x) = 1."""
        return float(np.sqrt((1 - self.squared_norm) / num_rows))

    def distance(self, points: np.ndarray, weights: np.ndarray, own_values: np.ndarray | None = None) -> float:
        """‖Σ w k(z, ·) − μ‖.

        Args:
          points: z, [M, D].
          weights: w, [M].
          own_values: k(z, z'), [M, M]; computed if None.
        """
        own = weights @ (gram_matrix(self.kernel, points, points) if own_values is None else own_values) @ weights
        return rooted(float(own - 2 * weights @ self.kernel_mean(points)) + self.squared_norm)


@dataclasses.dataclass(frozen=True, eq=False)
class Transformed:
    """The distribution of f(X) = 100 sin(X₁/100), where X₁ is the first column.

    f is continuous, and several values of X₁ have the same f. The sum over a grid of X₁ has the accuracy of float64,
    because all functions are smooth.

    Attributes:
      values: f at the grid, [n].
      masses: probabilities, [n].
    """

    kernel: Gaussian
    values: np.ndarray
    masses: np.ndarray

    @classmethod
    def of(cls, population: Population) -> Transformed:
        """The distribution for the rows of a population, with the kernel of one column."""
        means, deviation = population.means[:, 0], population.deviation
        grid = np.arange(means.min() - 9 * deviation, means.max() + 9 * deviation, deviation / 4)
        densities = np.exp(-np.square((grid[:, None] - means[None, :]) / deviation) / 2) @ population.shares
        return cls(Gaussian(1e-4), _function(grid), densities / densities.sum())

    @functools.cached_property
    def _squared_norm(self) -> float:
        return float(self.masses @ gram_matrix(self.kernel, self.values[:, None], self.values[:, None]) @ self.masses)

    def distance(self, points: np.ndarray, weights: np.ndarray) -> float:
        """‖Σ w k(f(z), ·) − E k(f(X), ·)‖ for points z [M, D] with weights w [M]."""
        images = _function(points[:, 0])[:, None]
        own = weights @ gram_matrix(self.kernel, images, images) @ weights
        cross = weights @ (gram_matrix(self.kernel, images, self.values[:, None]) @ self.masses)
        return rooted(float(own - 2 * cross) + self._squared_norm)


def _function(first_column: np.ndarray) -> np.ndarray:
    return 100 * np.sin(first_column / 100)
