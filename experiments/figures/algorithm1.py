"""The curves of algorithm 1 in figures 1 and 2, with their baseline and their lower limit.

Curves are distances Δ = ‖μ̂_X − Σ w_m k(z_m, ·)‖ against the number of points M.
"""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.common.errors import input_errors
from experiments.common.progress import Stages
from experiments.figures.config import MixtureConfig, epsilon_key
from experiments.figures.improved import improved_from_points
from experiments.figures.statistics import percentiles_of_draws
from kme_jax import MeanEmbedding, PrivacyBudget, SubspaceMap, closed_form_weights, mean_embedding, perturb
from kme_jax._numerics.precision import float64
from kme_jax.gram import prefix_double_means
from kme_jax.nonprivate import Reference
from kme_jax.privacy import add_noise, simulated_mechanism

_DRAWS_PER_CALL = 100
_NOISE_STEP = 2048  # coordinates: F is filled up to a multiple of it, so that few programs are compiled
_NUM_CHECKS = 5


def point_grid(max_points: int) -> np.ndarray:
    """The published grid of M for algorithm 1: int(exp(e)) for 100 equally spaced e up to log(max M), and max M."""
    grid = np.exp(np.linspace(0, np.log(max_points), 100)).astype(int)
    return np.unique(np.append(grid, max_points))


@jax.jit
def _squared_privacy_errors(keys, alpha, sigmas, ranks):
    """‖β − α‖² over the first F coordinates: keys [b], α [F], σ [e], ranks (F at each M) [m] -> [b, e, m].

    The noise of a release at M is the first F(M) coordinates of one draw. The same draw serves every ε (common random
    numbers). Each single release has the distribution of the mechanism.
    """
    noisy = jax.vmap(jax.vmap(add_noise, (None, None, 0)), (0, None, None))(keys, alpha, sigmas)
    first = jnp.arange(len(alpha), dtype=jnp.int32)[:, None] < ranks[None, :]
    return jnp.square(noisy - alpha[None, None, :]) @ first.astype(alpha.dtype)


def algorithm1_curves(
    config: MixtureConfig,
    reference: Reference,
    points: np.ndarray,
    stages: Stages,
    *,
    with_improved: bool,
) -> dict[str, Any]:
    """Projection distance, uniform baseline and algorithm 1 at every M, with one factorisation and one pass over rows.

    Args:
      config: the experiment's configuration.
      reference: the private rows, [N, D].
      points: public points, [max M, D].
      stages: progress.
      with_improved: whether to add the curves of ``experiments.figures.improved.improved_from_points``.

    Returns:
      The part of the result that figures 1 and 2 share, DESIGN section 3.
    """
    kernel, rows, num_rows = config.kernel, reference.rows, len(reference.rows)
    grid = point_grid(len(points))
    with stages.stage("orthonormal basis") as progress, input_errors("--tolerance: "):
        subspace = SubspaceMap.from_points(kernel, points, tolerance=config.tolerance, progress=progress)
    with stages.stage("mean embedding") as progress:
        alpha = mean_embedding(subspace, rows, progress=progress)
    with stages.stage("uniform baseline") as progress:
        kernel_mean = reference.kernel_mean(points, progress=progress)
        cross = np.cumsum(kernel_mean)[grid - 1] / grid
        own = prefix_double_means(kernel, points)[grid - 1]
        baseline = np.sqrt(np.maximum(reference.squared_norm - 2 * cross + own, 0))

    ranks = np.asarray(subspace.rank_at(grid))
    captured = np.cumsum(np.square(alpha.coordinates))[ranks - 1]
    projection_squared = np.maximum(reference.squared_norm - captured, 0)
    mechanisms = {
        epsilon_key(epsilon): simulated_mechanism(
            subspace,
            num_rows,
            PrivacyBudget(epsilon, config.delta),
            calibration=config.calibration,
            diameter=config.diameter,
        )
        for epsilon in config.epsilons
    }
    with stages.stage("noise draws") as progress:
        keys = jax.random.split(jax.random.key(config.seed), config.num_noise_draws + 1)
        check_key, draw_keys = keys[0], keys[1:]
        sigmas = np.asarray([mechanism.scale for mechanism in mechanisms.values()])
        squared = []
        # Coordinates beyond F have no effect: the first coordinates of a longer draw are those of a shorter draw.
        coordinates = np.pad(alpha.coordinates, (0, -len(alpha.coordinates) % _NOISE_STEP))
        with float64():
            for start in range(0, len(draw_keys), _DRAWS_PER_CALL):
                batch = draw_keys[start : start + _DRAWS_PER_CALL]
                errors = _squared_privacy_errors(batch, coordinates, sigmas, ranks.astype(np.int32))
                squared.append(np.asarray(errors))
                progress(min(start + _DRAWS_PER_CALL, len(draw_keys)), len(draw_keys))
        distances = np.sqrt(projection_squared + np.concatenate(squared))
    expected = {
        key: np.sqrt(projection_squared + ranks * mechanism.scale**2).tolist() for key, mechanism in mechanisms.items()
    }
    with stages.stage("check against all rows") as progress:
        checks, samples = _exact_checks(config, reference, alpha, grid, check_key, progress)
    improved = improved_from_points(config, reference, alpha, kernel_mean, stages) if with_improved else {}
    return {
        "num_rows": num_rows,
        "squared_norm": reference.squared_norm,
        "num_points": grid.tolist(),
        "rank": ranks.tolist(),
        "basis": {
            "tolerance": subspace.tolerance,
            "lambda_max": subspace.lambda_max,
            "norm": subspace.basis_norm,
            "proved_diameter": subspace.diameter,
        },
        "mechanisms": {
            key: {"sigma": mechanism.scale, "sensitivity": mechanism.sensitivity}
            for key, mechanism in mechanisms.items()
        },
        "curves": {
            "projection": np.sqrt(projection_squared).tolist(),
            "uniform_baseline": baseline.tolist(),
            "algorithm1": {key: percentiles_of_draws(distances[:, i]) for i, key in enumerate(mechanisms)},
            "algorithm1_expected_rms": expected,
            **improved,
        },
        "checks": checks,
        "samples": samples,
    }


def _exact_checks(config, reference, alpha: MeanEmbedding, grid, key, progress) -> tuple[list[dict[str, Any]], bytes]:
    """Compares Δ by coordinates with Δ recomputed from saved points and weights against all rows, at five settings.

    Returns:
      The entries of "checks", and the contents of the .npz file with the points and weights.
    """
    chosen = grid[np.linspace(0, len(grid) - 1, _NUM_CHECKS).round().astype(int)]
    settings, arrays = [], {}
    for i, num_points in enumerate(chosen.tolist()):
        epsilon = config.epsilons[i % len(config.epsilons)]
        prefix = alpha.feature_map.prefix(num_points)
        embedding = MeanEmbedding(prefix, alpha.coordinates[: prefix.num_features], alpha.num_rows)
        noisy = perturb(
            jax.random.fold_in(key, i),
            embedding,
            PrivacyBudget(epsilon, config.delta),
            calibration=config.calibration,
            diameter=config.diameter,
        )
        sample = closed_form_weights(noisy)
        arrays |= {f"points_{i}": sample.points, f"weights_{i}": sample.weights}
        projection = reference.squared_norm - np.sum(np.square(embedding.coordinates))
        error = np.sum(np.square(noisy.coordinates - embedding.coordinates))
        settings.append((num_points, epsilon, float(np.sqrt(max(projection + error, 0)))))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    file.seek(0)
    checks = []
    with np.load(file) as saved:
        for i, (num_points, epsilon, by_coordinates) in enumerate(settings):
            exact = reference.distance(saved[f"points_{i}"], saved[f"weights_{i}"])
            checks.append(
                {"num_points": num_points, "epsilon": epsilon, "by_coordinates": by_coordinates, "exact": exact}
            )
            progress(i + 1, len(settings))
    return checks, file.getvalue()
