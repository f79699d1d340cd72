"""The curves of algorithm 2 in figure 2."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from typing import Any

import jax
import numpy as np
import threadpoolctl

from experiments.common.progress import Stages
from experiments.figures.config import MixtureConfig, epsilon_key
from experiments.figures.statistics import range_of_repeats
from kme_jax import FourierMap, PrivacyBudget, mean_embedding, perturb
from kme_jax._numerics.precision import Progress
from kme_jax.nonprivate import Reference
from kme_jax.privacy import NoisyEmbedding
from kme_jax.synthesis import greedy_preimages, joint_reduced_sets, lasso_weights

_LEARNING_RATE = 100.0  # published, for the greedy points
_JOINT_MAX_POINTS = 100  # largest M of the joint curve: it is flat there, and each step costs M · J


def _power_grid(max_points: int, step: float) -> np.ndarray:
    """The published grid of M for algorithm 2: int(10^e), e = 0, step, 2 step, ... up to log10(max M)."""
    exponents = np.arange(0, np.log10(max_points) + 1e-9, step)
    return np.unique((10**exponents + 1e-9).astype(int))


def algorithm2_curves(
    config: MixtureConfig,
    rows: np.ndarray,
    points: np.ndarray,
    squared_norm: float,
    stages: Stages,
) -> dict[str, Any]:
    """Algorithm 2 with the published reduced set (greedy pre-images, Lasso weights) and with the joint one.

    There is one noisy embedding for every ε and repeat, and both reduced sets represent it. Each repeat draws new
    frequencies and new noise. Distances are Δ in the RKHS of the exact kernel.

    Args:
      config: the experiment's configuration.
      rows: private rows, [N, D].
      points: starts and candidates, [max M, D].
      squared_norm: ‖μ̂_X‖².
      stages: progress.

    Returns:
      Entries for "curves".
    """
    kernel, reference = config.kernel, Reference(config.kernel, rows, squared_norm)
    budgets = [PrivacyBudget(epsilon, config.delta) for epsilon in config.epsilons]
    grid = _power_grid(len(points), 0.25)
    joint_grid = _power_grid(min(len(points), _JOINT_MAX_POINTS), 0.5)
    noisy, solver_keys = [], []
    with stages.stage("Fourier embeddings") as progress:
        for repeat in range(config.num_repeats):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), repeat), len(budgets) + 2)
            fourier = FourierMap.from_kernel(keys[0], kernel, config.num_features, config.dim)
            embedding = mean_embedding(fourier, rows)
            for i, budget in enumerate(budgets):
                options = {"calibration": config.calibration, "diameter": config.diameter}
                noisy.append(perturb(keys[2 + i], embedding, budget, **options))
                solver_keys.append(jax.random.fold_in(keys[1], i))
            progress(repeat + 1, config.num_repeats)
    with stages.stage("greedy points") as progress:
        greedy_points = greedy_preimages(noisy, points[: grid[-1]], learning_rate=_LEARNING_RATE, progress=progress)
    with stages.stage("Lasso weights") as progress:
        distances, gaps = _lasso_distances(reference, noisy, greedy_points, grid, progress)
        greedy = distances.reshape(config.num_repeats, len(budgets), len(grid))
    joined, l1_norms = np.zeros((len(noisy), len(joint_grid))), []
    with stages.stage("joint optimisation") as progress:
        samples = joint_reduced_sets(
            solver_keys, noisy, points, joint_grid, num_steps=config.joint_steps, progress=progress
        )
        for n, of_sizes in enumerate(samples):
            for j, (sample, _) in enumerate(of_sizes):
                joined[n, j] = reference.distance(sample.points, sample.weights)
                l1_norms.append(float(np.abs(sample.weights).sum()))
        joined = joined.reshape(config.num_repeats, len(budgets), len(joint_grid))
    keys_of = [epsilon_key(epsilon) for epsilon in config.epsilons]
    return {
        "algorithm2_num_points": grid.tolist(),
        "algorithm2": {key: range_of_repeats(greedy[:, i]) for i, key in enumerate(keys_of)},
        "algorithm2_largest_relative_gap": float(gaps.max()),
        "algorithm2_joint_num_points": joint_grid.tolist(),
        "algorithm2_joint": {key: range_of_repeats(joined[:, i]) for i, key in enumerate(keys_of)},
        "algorithm2_joint_largest_l1_norm": max(l1_norms),
    }


def _lasso_distances(
    reference: Reference,
    noisy: list[NoisyEmbedding],
    points: np.ndarray,
    grid: np.ndarray,
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """Δ with Lasso weights on the first M points of every embedding, and the duality gap as a share of ½‖μ̃‖².

    Each is an array [len(noisy), len(grid)]; the points are [len(noisy), max M, D]. There is one thread for each core
    of a CPU. An accelerator holds two problems at a time, so that it need not wait for the host.
    """
    distances, gaps = np.zeros((2, len(noisy), len(grid)))
    done = itertools.count(1)

    def run(n):
        cross = reference.kernel_mean(points[n])
        scale = 0.5 * float(noisy[n].coordinates @ noisy[n].coordinates)
        for j, (sample, report) in enumerate(lasso_weights(noisy[n], points[n], grid)):
            distances[n, j] = reference.distance(sample.points, sample.weights, cross[: sample.weights.size])
            gaps[n, j] = report.gap / scale
            progress(next(done), distances.size)

    threads = os.cpu_count() if jax.default_backend() == "cpu" else 2
    with threadpoolctl.threadpool_limits(1, "blas"), concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(len(noisy))))
    return distances, gaps
