"""Attacks on mechanisms: for each feature map, two databases whose embeddings are far apart."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import jax
import numpy as np

from experiments.audit.attack import (
    Sampler,
    gaussian_mu,
    gaussian_sampler,
    laplace_sampler,
    lower_bound,
    pure_epsilon,
    share_of_diameter,
)
from kme_jax import (
    FourierMap,
    Gaussian,
    LatticeMap,
    Polynomial,
    PolynomialMap,
    PrivacyBudget,
    SubspaceMap,
    TensorSketchMap,
    integer_embedding,
    mean_embedding,
    noisy_function,
)
from kme_jax._numerics.precision import Progress, float64
from kme_jax.algorithms.small_databases import compare_databases
from kme_jax.feature_maps import FeatureMap
from kme_jax.privacy import add_noise, gaussian_noise_multiplier, secure, secure_mechanism, simulated_mechanism

KERNEL = Gaussian(0.5)
NUM_ROWS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A feature map, and two rows whose features are far apart."""

    feature_map: FeatureMap
    first: np.ndarray
    second: np.ndarray

    def databases(self) -> tuple[np.ndarray, np.ndarray]:
        """Two databases that differ in the last row."""
        others = np.zeros((NUM_ROWS - 1, len(self.first)))
        return tuple(np.concatenate([others, row[None, :]]) for row in (self.first, self.second))


def _opposite(feature_map: FourierMap, seed: int) -> np.ndarray:
    """The one of many random rows whose features are furthest from those of 0."""
    rows = np.random.default_rng(seed).uniform(-300, 300, (400_000, feature_map.dim))
    angles = rows @ (2 * math.pi * np.asarray(feature_map.turns, np.float64).T)
    return rows[np.argmin(np.cos(angles).mean(axis=1))]


def _colliding(sketch: TensorSketchMap) -> tuple[np.ndarray, np.ndarray]:
    """Two unit vectors of the columns whose sketches have one bucket and opposite signs, if there are such."""
    rows = np.eye(sketch.dim)
    features = sketch.host_features(rows)
    first, second = np.unravel_index(np.argmin(features @ features.T), (sketch.dim, sketch.dim))
    return rows[first], rows[second]


def pairs(seed: int) -> dict[str, Pair]:
    """Feature maps with few features, so that many runs are cheap."""
    fourier = FourierMap.from_kernel(jax.random.key(seed), KERNEL, 4, 1)
    lattice = LatticeMap.from_box(KERNEL, [-4.0], [4.0])
    subspace = SubspaceMap.from_points(KERNEL, np.linspace(-8, 8, 9)[:, None])
    polynomial = PolynomialMap.from_kernel(Polynomial(3, radius=1.0, offset=0.5), 1)
    sketch = TensorSketchMap.from_kernel(jax.random.key(seed), Polynomial(2, radius=1.0, offset=0.0), 4, 12)
    return {
        "fourier": Pair(fourier, np.zeros(1), _opposite(fourier, seed)),
        "lattice": Pair(lattice, np.array([-4.0]), np.array([4.0])),
        "subspace": Pair(subspace, np.array([-8.0]), np.array([8.0])),
        "polynomial": Pair(polynomial, np.array([-1.0]), np.array([1.0])),
        "tensor sketch": Pair(sketch, *_colliding(sketch)),
    }


def _secure_totals(pair: Pair) -> tuple[Any, list[np.ndarray]]:
    """The integer map, and the integer sums of both databases."""
    embeddings = [integer_embedding(pair.feature_map, rows) for rows in pair.databases()]
    return embeddings[0].integer_map, [e.integer_map.released(e.total) for e in embeddings]


def secure_gaussian(
    pair: Pair, budget: PrivacyBudget, runs: int, progress: Progress, *, factor: float = 1.0
) -> dict[str, Any]:
    """Attacks the sums, scale and noise of ``perturb_securely``. A factor below 1 breaks the mechanism."""
    integers, totals = _secure_totals(pair)
    mechanism = secure_mechanism(integers, NUM_ROWS, budget)
    scale = factor * mechanism.scale / mechanism.grid
    bound = lower_bound(
        gaussian_sampler(totals, lambda values: secure.add_gaussian(values, scale)), runs, gaussian_mu, progress
    )
    share = share_of_diameter(totals, mechanism.sensitivity / mechanism.grid)
    return bound | {"measure": "mu", "claim": math.sqrt(2 * mechanism.rho), "share_of_diameter": share}


def secure_laplace(pair: Pair, epsilon: float, runs: int, progress: Progress) -> dict[str, Any]:
    """Attacks the sums, scale and noise of ``perturb_securely`` with δ = 0."""
    integers, totals = _secure_totals(pair)
    mechanism = secure_mechanism(integers, NUM_ROWS, PrivacyBudget(epsilon, 0.0))
    scale = mechanism.scale / mechanism.grid
    sampler = laplace_sampler(totals, scale, lambda values: secure.add_laplace(values, scale))
    bound = lower_bound(sampler, runs, pure_epsilon, progress)
    share = float(np.abs(totals[1] - totals[0]).sum() * mechanism.grid / mechanism.sensitivity)
    return bound | {"measure": "epsilon", "claim": epsilon, "share_of_diameter": share}


def noisy_functions(
    pair: Pair, budget: PrivacyBudget, runs: int, progress: Progress, *, factor: float = 1.0
) -> dict[str, Any]:
    """Attacks the values of ``noisy_function`` at the points of a subspace. A factor below 1 breaks the mechanism.

    The attacker sees the values alone, and projects them in the norm of the noise, (v − v′)ᵀ K⁻¹ (v − v′).
    """
    assert isinstance(pair.feature_map, SubspaceMap)
    kernel, points = pair.feature_map.kernel, pair.feature_map.points
    functions = [noisy_function(rows, kernel, points, budget=budget) for rows in pair.databases()]
    mechanism, covariance = functions[0].mechanism, functions[0].covariance
    with float64():
        features = np.asarray(pair.feature_map(np.asarray(points)))
    _, totals = _secure_totals(pair)
    grid = cast(float, mechanism.grid)
    difference = features @ ((totals[1] - totals[0]) * grid)
    direction = np.linalg.pinv(covariance) @ difference

    def sample(which: int, size: int) -> np.ndarray:
        noisy = secure.add_gaussian(np.tile(totals[which], size), factor * mechanism.scale / grid)
        values = (noisy.reshape(size, -1) - totals[0]) * grid @ features.T
        return values @ direction

    bound = lower_bound(sample, runs, gaussian_mu, progress)
    share = share_of_diameter(totals, mechanism.sensitivity / grid)
    return bound | {"measure": "mu", "claim": math.sqrt(2 * cast(float, mechanism.rho)), "share_of_diameter": share}


def small_databases(epsilon: float, runs: int, progress: Progress, *, factor: float = 1.0) -> dict[str, Any]:
    """Attacks the draws of ``exponential_mechanism``. A factor above 1 takes it for a larger ε, which breaks it.

    One database has two rows at one end, and the other a row at each end. The databases to draw have one row at either
    end. The attacker decides by the ratio of both probabilities.
    """
    domain = np.array([[-20.0], [20.0]])
    feature_map = SubspaceMap.from_points(KERNEL, domain)
    both = [
        compare_databases(rows, feature_map, domain, 1, budget=PrivacyBudget(epsilon, 0.0))
        for rows in (np.array([[20.0], [-20.0]]), np.array([[-20.0], [-20.0]]))
    ]
    ratios = np.log(both[1].probabilities(factor * epsilon) / both[0].probabilities(factor * epsilon))

    def sample(which: int, size: int) -> np.ndarray:
        return ratios[[both[which].draw(factor * epsilon) for _ in range(size)]]

    moved = np.abs(both[1].distances - both[0].distances).max()
    bound = lower_bound(lambda which, size: -sample(1 - which, size), runs, pure_epsilon, progress)
    return bound | {"measure": "epsilon", "claim": epsilon, "share_of_diameter": float(moved / both[0].sensitivity)}


def _simulated(totals, scale: float, seed: int) -> Sampler:
    keys = iter(jax.random.split(jax.random.key(seed), 100_000))

    def add(values):
        with float64():
            return np.asarray(add_noise(next(keys), values, scale))

    return gaussian_sampler(totals, add)


def simulated_gaussian(pair: Pair, budget: PrivacyBudget, runs: int, progress: Progress, seed: int) -> dict[str, Any]:
    """Attacks simulated Gaussian noise, as ``perturb`` adds it."""
    totals = [mean_embedding(pair.feature_map, rows).coordinates for rows in pair.databases()]
    mechanism = simulated_mechanism(pair.feature_map, NUM_ROWS, budget)
    bound = lower_bound(_simulated(totals, mechanism.scale, seed), runs, gaussian_mu, progress)
    share = share_of_diameter(totals, mechanism.sensitivity)
    return bound | {"measure": "mu", "claim": mechanism.sensitivity / mechanism.scale, "share_of_diameter": share}


def unpaired_features(budget: PrivacyBudget, runs: int, progress: Progress, seed: int) -> dict[str, Any]:
    """Attacks √(2/J) cos(ωx + b) with the published noise for a diameter of 2. The diameter is up to 2√2."""
    rng = np.random.default_rng(seed)
    frequencies, shifts = rng.normal(size=4), rng.uniform(0, 2 * math.pi, 4)
    rows = rng.uniform(-300, 300, 400_000)
    features = math.sqrt(2 / 4) * np.cos(rows[:, None] * frequencies + shifts)
    signs = np.sign(features[np.argmax(np.square(features).sum(axis=1))])
    along = features @ signs
    totals = [features[np.argmin(along)] / NUM_ROWS, features[np.argmax(along)] / NUM_ROWS]
    multiplier = gaussian_noise_multiplier(budget)
    bound = lower_bound(_simulated(totals, 2 / NUM_ROWS * multiplier, seed), runs, gaussian_mu, progress)
    return bound | {
        "measure": "mu",
        "claim": 1 / multiplier,
        "share_of_diameter": share_of_diameter(totals, 2 / NUM_ROWS),
    }
