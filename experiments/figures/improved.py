"""The curves of `kme_jax.improved` in figures 1 and 2."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from experiments.common.errors import input_errors
from experiments.common.progress import Stages
from experiments.figures.config import MixtureConfig, epsilon_key
from experiments.figures.statistics import ranges_of_repeats
from kme_jax import (
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    spectral_map,
)
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import PosteriorMean, adaptive_weights_batch

_LARGE = 1000  # points: above it there is one draw in figure 1, and no value in figure 2


def _sizes(config: MixtureConfig, largest: int) -> list[int]:
    """The sizes of the configuration up to ``largest``; ``largest`` alone if there are none."""
    return sorted({m for m in config.improved_sizes if m <= largest}) or [largest]


def improved_from_points(
    config: MixtureConfig,
    reference: Reference,
    alpha: MeanEmbedding,
    kernel_mean: np.ndarray,
    stages: Stages,
) -> dict[str, Any]:
    """`kme_jax.improved` where points are public: adaptive weights on the first M points, always with tight noise.

    Args:
      config: the experiment's configuration.
      reference: the private rows.
      alpha: embedding of the private rows in the span of all points.
      kernel_mean: μ̂_X(z_m) at all points, [max M].
      stages: progress.

    Returns:
      Entries for "curves".
    """
    points = alpha.feature_map.points
    grid = _sizes(config, len(points))
    draws = [config.improved_draws if m <= _LARGE else 1 for m in grid]
    distances_by_epsilon: dict[str, list[np.ndarray]] = {epsilon_key(epsilon): [] for epsilon in config.epsilons}
    key = jax.random.fold_in(jax.random.key(config.seed), 4)
    with stages.stage("improved") as progress:
        for i, (num_points, num_draws) in enumerate(zip(grid, draws, strict=True)):
            prefix = alpha.feature_map.prefix(num_points)
            embedding = MeanEmbedding(prefix, alpha.coordinates[: prefix.num_features], alpha.num_rows)
            noisy = [
                perturb(jax.random.fold_in(key, draw), embedding, PrivacyBudget(epsilon, config.delta))
                for epsilon in config.epsilons
                for draw in range(num_draws)
            ]

            def count(done, total, i=i):
                progress(i * total + done, len(grid) * total)

            weights = np.stack([sample.weights for sample, _ in adaptive_weights_batch(noisy, progress=count)])
            distances = reference.distances(prefix.points, weights, kernel_mean[:num_points])
            for values, of_epsilon in zip(distances_by_epsilon.values(), distances.reshape(-1, num_draws), strict=True):
                values.append(of_epsilon)
    return {
        "improved_num_points": grid,
        "improved": {epsilon: ranges_of_repeats(values) for epsilon, values in distances_by_epsilon.items()},
        "improved_num_draws": draws,
    }


def improved_from_proposal(
    config: MixtureConfig, rows: np.ndarray, squared_norm: float, stages: Stages
) -> dict[str, Any]:
    """`kme_jax.improved` where a proposal is public: one release for each ε, represented by M points.

    Args:
      config: the experiment's configuration.
      rows: private rows, [N, D].
      squared_norm: ‖μ̂_X‖².
      stages: progress.

    Returns:
      Entries for "curves".
    """
    reference = Reference(config.kernel, rows, squared_norm)
    prior = NormalProposal.create(np.zeros(config.dim), config.proposal_scale)
    grid = _sizes(config, min(config.max_points, _LARGE))
    distances_of: dict[str, Iterator[np.ndarray]] = {}

    def distance(mean: PosteriorMean, num_points: int) -> np.ndarray:
        sample, _ = represent(mean, num_points)
        return np.asarray([reference.distance(sample.points, sample.weights)])

    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), 5), 1 + 2 * len(config.epsilons))
    # A GPU waits for the host most of the time, so sizes are side by side there, and beside the next ε.
    num_threads = 1 if jax.default_backend() == "cpu" else len(grid)
    with stages.stage("improved") as progress, concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        with input_errors("--proposal_scale: "):
            features = spectral_map(keys[0], config.kernel, prior, config.num_features)
        embedding = mean_embedding(features, rows)
        for i, epsilon in enumerate(config.epsilons):
            noisy = perturb(keys[1 + 2 * i], embedding, PrivacyBudget(epsilon, config.delta))

            def count(done, total, i=i):
                progress(i * total + done, len(config.epsilons) * total)

            mean, _ = posterior_mean(
                keys[2 + 2 * i], noisy, prior, num_trajectories=config.improved_trajectories, progress=count
            )
            running = pool.map(functools.partial(distance, mean), grid)
            distances_of[epsilon_key(epsilon)] = iter(list(running)) if num_threads == 1 else running
        distances_by_epsilon = {epsilon: list(running) for epsilon, running in distances_of.items()}
    return {
        "improved_num_points": grid,
        "improved": {epsilon: ranges_of_repeats(values) for epsilon, values in distances_by_epsilon.items()},
        "improved_num_draws": [1] * len(grid),
    }
