"""The distributions that private rows are drawn from, with their exact mean embeddings.

One is the mixture of the figures (Balog et al. 2018, appendix B), the other has bounded rows, as propositions 5 and 8
assume. For a Gaussian kernel both embeddings have a closed form, so distances to the population are exact.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

import numpy as np
import scipy.special

from experiments.common.mixture import COMPONENT_SD, components, proposal
from kme_jax import Gaussian
from kme_jax.gram import double_mean, gram_matrix

# Squared distances are differences of numbers near 1 in float64. Smaller distances than this are rounding.
FLOOR = 1e-6
PROPOSAL_SCALE = 500.0  # of the random points, as published


def rooted(squared: float) -> float:
    """A distance from its square, and ``FLOOR`` if it is smaller."""
    return float(np.sqrt(max(squared, FLOOR**2)))


class Population(abc.ABC):
    """A distribution of rows, and a Gaussian kernel.

    Attributes:
      kernel: exp(−γ‖x − y‖²).
    """

    kernel: Gaussian

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """D."""

    @abc.abstractmethod
    def rows(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Independent rows, [number, D]."""

    @abc.abstractmethod
    def points(self, number: int, seed: int) -> np.ndarray:
        """Independent draws of a public proposal, [number, D]. Fewer points are the first rows of more points."""

    @abc.abstractmethod
    def kernel_mean(self, points: np.ndarray) -> np.ndarray:
        """μ(x) = E k(x, X) at points x [n, D], [n]."""

    @property
    @abc.abstractmethod
    def squared_norm(self) -> float:
        """‖μ‖² = E k(X, X')."""

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
class Mixture(Population):
    """A mixture of normal distributions with one standard deviation.

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
    def of_figures(cls, dim: int) -> Mixture:
        """The distribution of ``experiments.common.mixture.mixture`` for seed 0, with the kernel of the figures."""
        means, shares = components(np.random.RandomState(0), dim)
        return cls(Gaussian(1e-4 / dim), means, shares, COMPONENT_SD)

    @property
    def dim(self):
        return self.means.shape[1]

    def rows(self, number, rng):
        members = rng.choice(len(self.shares), number, p=self.shares)
        return self.means[members] + rng.normal(0, self.deviation, (number, self.dim))

    def points(self, number, seed):
        return proposal(number, self.dim, scale=PROPOSAL_SCALE, seed=seed)

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

    def kernel_mean(self, points):
        return self._smoothed(points, 1) @ self.shares

    @functools.cached_property
    def squared_norm(self):
        return float(self.shares @ self._smoothed(self.means, 2) @ self.shares)


@dataclasses.dataclass(frozen=True, eq=False)
class Cubes(Population):
    """A mixture of uniform distributions on small cubes in [0, 1]^D. The proposal is uniform on [0, 1]^D.

    So rows are bounded, and the density of the proposal is bounded away from zero where rows are, as propositions 5
    and 8 assume.

    Attributes:
      kernel: exp(−γ‖x − y‖²).
      corners: the lowest corner of each cube, [cubes, D].
      shares: of the cubes, [cubes].
      side: of all cubes.
    """

    kernel: Gaussian
    corners: np.ndarray
    shares: np.ndarray
    side: float

    @classmethod
    def create(cls, dim: int) -> Cubes:
        """Ten cubes with the shares of the figures and a side of 0.3. 1/γ is the mean squared distance of two points of
        the proposal, D/6."""
        _, shares = components(np.random.RandomState(0), dim)
        corners = np.random.default_rng(dim).uniform(0, 0.7, (len(shares), dim))
        return cls(Gaussian(6 / dim), corners, shares, 0.3)

    @property
    def dim(self):
        return self.corners.shape[1]

    def rows(self, number, rng):
        members = rng.choice(len(self.shares), number, p=self.shares)
        return self.corners[members] + rng.uniform(0, self.side, (number, self.dim))

    def points(self, number, seed):
        return np.random.default_rng(seed).uniform(size=(number, self.dim))

    def kernel_mean(self, points):
        root = np.sqrt(float(self.kernel.gamma))
        lower = root * (self.corners[None, :, :] - points[:, None, :])
        integrals = scipy.special.erf(lower + root * self.side) - scipy.special.erf(lower)
        return np.prod(np.sqrt(np.pi) / (2 * root * self.side) * integrals, axis=2) @ self.shares

    @functools.cached_property
    def squared_norm(self):
        root = np.sqrt(float(self.kernel.gamma))

        def integrated(t: np.ndarray) -> np.ndarray:
            """A function whose second derivative is exp(−γ t²)."""
            return np.sqrt(np.pi) / (2 * root) * t * scipy.special.erf(root * t) + np.exp(-np.square(root * t)) / (
                2 * root**2
            )

        apart = self.corners[:, None, :] - self.corners[None, :, :]
        integrals = integrated(apart + self.side) + integrated(apart - self.side) - 2 * integrated(apart)
        return float(self.shares @ np.prod(integrals / self.side**2, axis=2) @ self.shares)


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
    def of(cls, population: Mixture) -> Transformed:
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
