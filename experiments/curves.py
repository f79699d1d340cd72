"""The curves of figures 1 and 2: distances Δ = ‖μ̂_X − Σ w_m k(z_m, ·)‖ against the number of points M."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import itertools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl

from experiments import common, plots
from kme_jax import (
    FourierMap,
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    closed_form,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    spectral_map,
)
from kme_jax._numerics.precision import Progress, float64
from kme_jax.gram import prefix_double_means
from kme_jax.nonprivate import Reference
from kme_jax.privacy import NoisyEmbedding, add_noise, simulated_mechanism
from kme_jax.synthesis import adaptive_batch, greedy_preimages, joint_reduced_sets, lasso_weights

_DRAWS_PER_CALL = 100
_NOISE_STEP = 2048  # coordinates: what F is filled up to a multiple of, for few programs
_NUM_CHECKS = 5
_LEARNING_RATE = 100.0  # published, for the greedy points
_IMPROVED_LARGE = 1000  # points, beyond which `improved` has one draw in figure 1, and is not drawn in figure 2
_JOINT_MAX_POINTS = 100  # the joint curve stops here: it is flat, and costs M · J per step


def point_grid(max_points: int) -> np.ndarray:
    """The published grid of M for algorithm 1: int(exp(e)) for 100 equally spaced e up to log(max M), and max M."""
    grid = np.exp(np.linspace(0, np.log(max_points), 100)).astype(int)
    return np.unique(np.append(grid, max_points))


@jax.jit
def _squared_privacy_errors(keys, alpha, sigmas, ranks):
    """‖β − α‖² over the first F coordinates: keys [b], α [F], σ [e], ranks (F at each M) [m] -> [b, e, m].

    The noise of a release at M is the first F(M) coordinates of one draw, and the same draw serves every ε (common
    random numbers); each release on its own is the mechanism's.
    """
    noisy = jax.vmap(jax.vmap(add_noise, (None, None, 0)), (0, None, None))(keys, alpha, sigmas)
    first = jnp.arange(len(alpha), dtype=jnp.int32)[:, None] < ranks[None, :]
    return jnp.square(noisy - alpha[None, None, :]) @ first.astype(alpha.dtype)


def _power_grid(max_points: int, step: float) -> np.ndarray:
    """The published grid of M for algorithm 2: int(10^e), e = 0, step, 2 step, ... up to log10(max M)."""
    exponents = np.arange(0, np.log10(max_points) + 1e-9, step)
    return np.unique((10**exponents + 1e-9).astype(int))


def algorithm2_curves(
    config: common.MixtureConfig,
    rows: np.ndarray,
    points: np.ndarray,
    squared_norm: float,
    stages: common.Stages,
) -> dict[str, Any]:
    """Algorithm 2 with the published reduced set (greedy pre-images, Lasso weights) and with the joint one.

    Both work on the same noisy embedding, one for every ε and repeat; frequencies and noise are drawn anew in each
    repeat. Distances are Δ in the RKHS of the exact kernel.

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
    private, solver_keys = [], []
    with stages.stage("Fourier embeddings") as progress:
        for repeat in range(config.num_repeats):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), repeat), len(budgets) + 2)
            fourier = FourierMap.from_kernel(keys[0], kernel, config.num_features, config.dim)
            embedding = mean_embedding(fourier, rows)
            for i, budget in enumerate(budgets):
                options = {"calibration": config.calibration, "diameter": config.diameter}
                private.append(perturb(keys[2 + i], embedding, budget, **options))
                solver_keys.append(jax.random.fold_in(keys[1], i))
            progress(repeat + 1, config.num_repeats)
    with stages.stage("greedy points") as progress:
        found = greedy_preimages(private, points[: grid[-1]], learning_rate=_LEARNING_RATE, progress=progress)
    with stages.stage("Lasso weights") as progress:
        distances, gaps = _lasso_distances(reference, private, found, grid, progress)
        greedy = distances.reshape(config.num_repeats, len(budgets), len(grid))
    joined, constraint = np.zeros((len(private), len(joint_grid))), []
    with stages.stage("joint optimisation") as progress:
        samples = joint_reduced_sets(
            solver_keys, private, points, joint_grid, num_steps=config.joint_steps, progress=progress
        )
        for n, of_sizes in enumerate(samples):
            for j, (sample, _) in enumerate(of_sizes):
                joined[n, j] = reference.distance(sample.points, sample.weights)
                constraint.append(float(np.abs(sample.weights).sum()))
        joined = joined.reshape(config.num_repeats, len(budgets), len(joint_grid))
    keys_of = [common.epsilon_key(epsilon) for epsilon in config.epsilons]
    return {
        "algorithm2_num_points": grid.tolist(),
        "algorithm2": {key: _repeats(greedy[:, i]) for i, key in enumerate(keys_of)},
        "algorithm2_largest_relative_gap": float(gaps.max()),
        "algorithm2_joint_num_points": joint_grid.tolist(),
        "algorithm2_joint": {key: _repeats(joined[:, i]) for i, key in enumerate(keys_of)},
        "algorithm2_joint_largest_l1_norm": max(constraint),
    }


def _lasso_distances(
    reference: Reference,
    private: list[NoisyEmbedding],
    points: np.ndarray,
    grid: np.ndarray,
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """Δ with Lasso weights on the first M points [len(private), max M, D] of every embedding, and the duality gap as a
    share of ½‖μ̃‖²: [len(private), len(grid)] each. As many embeddings at a time as there are cores."""
    distances, gaps = np.zeros((2, len(private), len(grid)))
    done = itertools.count(1)

    def run(n):
        cross = reference.kernel_mean(points[n])
        scale = 0.5 * float(private[n].coordinates @ private[n].coordinates)
        for j, (sample, report) in enumerate(lasso_weights(private[n], points[n], grid)):
            distances[n, j] = reference.distance(sample.points, sample.weights, cross[: sample.weights.size])
            gaps[n, j] = report.gap / scale
            progress(next(done), distances.size)

    with threadpoolctl.threadpool_limits(1, "blas"), concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, range(len(private))))
    return distances, gaps


def _improved_grid(config: common.MixtureConfig, largest: int) -> list[int]:
    """The sizes asked for, as far as there are points; at least one."""
    return sorted({m for m in config.improved_sizes if m <= largest}) or [largest]


def improved_from_points(
    config: common.MixtureConfig,
    reference: Reference,
    alpha: MeanEmbedding,
    kernel_mean: np.ndarray,
    stages: common.Stages,
) -> dict[str, Any]:
    """`kme_jax.improved` where points are public: adaptive weights on the first M points, always with tight noise.

    Args:
      config: the experiment's configuration.
      reference: of the private rows.
      alpha: their embedding in the span of all points.
      kernel_mean: μ̂_X(z_m) at all points, [max M].
      stages: progress.

    Returns:
      Entries for "curves".
    """
    points = alpha.feature_map.points
    grid = _improved_grid(config, len(points))
    draws = [config.improved_draws if m <= _IMPROVED_LARGE else 1 for m in grid]
    found: dict[str, list[np.ndarray]] = {common.epsilon_key(epsilon): [] for epsilon in config.epsilons}
    key = jax.random.fold_in(jax.random.key(config.seed), 4)
    with stages.stage("improved") as progress:
        for i, (num_points, num_draws) in enumerate(zip(grid, draws, strict=True)):
            prefix = alpha.feature_map.prefix(num_points)
            embedding = MeanEmbedding(prefix, alpha.coordinates[: prefix.num_features], alpha.num_rows)
            private = [
                perturb(jax.random.fold_in(key, draw), embedding, PrivacyBudget(epsilon, config.delta))
                for epsilon in config.epsilons
                for draw in range(num_draws)
            ]

            def count(done, total, i=i):
                progress(i * total + done, len(grid) * total)

            weights = np.stack([sample.weights for sample, _ in adaptive_batch(private, progress=count)])
            distances = reference.distances(prefix.points, weights, kernel_mean[:num_points])
            for values, part in zip(found.values(), distances.reshape(-1, num_draws), strict=True):
                values.append(part)
    return {
        "improved_num_points": grid,
        "improved": {epsilon: _repeats_of_each(values) for epsilon, values in found.items()},
        "improved_num_draws": draws,
    }


def improved_from_proposal(
    config: common.MixtureConfig, rows: np.ndarray, squared_norm: float, stages: common.Stages
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
    grid = _improved_grid(config, min(config.max_points, _IMPROVED_LARGE))
    found: dict[str, list[np.ndarray]] = {}
    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), 5), 1 + 2 * len(config.epsilons))
    with stages.stage("improved") as progress:
        with common.input_errors("--proposal_scale: "):
            features = spectral_map(keys[0], config.kernel, prior, config.num_features)
        embedding = mean_embedding(features, rows)
        for i, epsilon in enumerate(config.epsilons):
            private = perturb(keys[1 + 2 * i], embedding, PrivacyBudget(epsilon, config.delta))

            def count(done, total, i=i):
                progress(i * total + done, len(config.epsilons) * total)

            mean, _ = posterior_mean(
                keys[2 + 2 * i], private, prior, num_trajectories=config.improved_trajectories, progress=count
            )
            samples = [represent(mean, num_points)[0] for num_points in grid]
            distances = [np.asarray([reference.distance(s.points, s.weights)]) for s in samples]
            found[common.epsilon_key(epsilon)] = distances
    return {
        "improved_num_points": grid,
        "improved": {epsilon: _repeats_of_each(values) for epsilon, values in found.items()},
        "improved_num_draws": [1] * len(grid),
    }


def _repeats_of_each(distances: list[np.ndarray]) -> dict[str, list[float]]:
    """Mean, root mean square and range for every M, of as many repeats as there are at each."""
    return {
        "mean": [float(np.mean(values)) for values in distances],
        "rms": [float(np.sqrt(np.mean(np.square(values)))) for values in distances],
        "low": [float(np.min(values)) for values in distances],
        "high": [float(np.max(values)) for values in distances],
    }


def _repeats(distances: np.ndarray) -> dict[str, Any]:
    """Over repeats, [repeats, M]: mean, root mean square, range, and the best over M of every repeat."""
    rms = np.sqrt(np.mean(np.square(distances), axis=0))
    return {
        "mean": distances.mean(axis=0).tolist(),
        "rms": rms.tolist(),
        "low": distances.min(axis=0).tolist(),
        "high": distances.max(axis=0).tolist(),
        "best_of_each_repeat": distances.min(axis=1).tolist(),
    }


def _summary(distances: np.ndarray) -> dict[str, list[float]]:
    """Over draws, [draws, M]: mean, root mean square, and the 0.5 and 99.5 percentiles."""
    low, high = np.percentile(distances, [0.5, 99.5], axis=0)
    rms = np.sqrt(np.mean(np.square(distances), axis=0))
    return {"mean": distances.mean(axis=0).tolist(), "rms": rms.tolist(), "low": low.tolist(), "high": high.tolist()}


def algorithm1_curves(
    config: common.MixtureConfig,
    reference: Reference,
    points: np.ndarray,
    stages: common.Stages,
    *,
    with_improved: bool,
) -> dict[str, Any]:
    """Projection distance, uniform baseline and algorithm 1 at every M, with one factorisation and one pass over rows.

    Args:
      config: the experiment's configuration.
      reference: of the private rows, [N, D].
      points: public points, [max M, D].
      stages: progress.
      with_improved: add the curves of :func:`improved_from_points`.

    Returns:
      The part of the result that figures 1 and 2 share, DESIGN section 3.
    """
    kernel, rows, num_rows = config.kernel, reference.rows, len(reference.rows)
    grid = point_grid(len(points))
    with stages.stage("orthonormal basis") as progress, common.input_errors("--tolerance: "):
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
        common.epsilon_key(epsilon): simulated_mechanism(
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
        # Coordinates beyond F take no part, and of a longer draw the first ones are those of a shorter one.
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
            "algorithm1": {key: _summary(distances[:, i]) for i, key in enumerate(mechanisms)},
            "algorithm1_expected_rms": expected,
            **improved,
        },
        "checks": checks,
        "samples": samples,
    }


def _exact_checks(config, reference, alpha: MeanEmbedding, grid, key, progress) -> tuple[list[dict[str, Any]], bytes]:
    """Δ by coordinates and Δ recomputed from saved points and weights against all rows, at five settings; and the
    .npz file they were saved in."""
    chosen = grid[np.linspace(0, len(grid) - 1, _NUM_CHECKS).round().astype(int)]
    settings, arrays = [], {}
    for i, num_points in enumerate(chosen.tolist()):
        epsilon = config.epsilons[i % len(config.epsilons)]
        prefix = alpha.feature_map.prefix(num_points)
        embedding = MeanEmbedding(prefix, alpha.coordinates[: prefix.num_features], alpha.num_rows)
        private = perturb(
            jax.random.fold_in(key, i),
            embedding,
            PrivacyBudget(epsilon, config.delta),
            calibration=config.calibration,
            diameter=config.diameter,
        )
        sample = closed_form(private)
        arrays |= {f"points_{i}": sample.points, f"weights_{i}": sample.weights}
        projection = reference.squared_norm - np.sum(np.square(embedding.coordinates))
        error = np.sum(np.square(private.coordinates - embedding.coordinates))
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


def private_reference(config: common.MixtureConfig, rows: np.ndarray, stages: common.Stages) -> Reference:
    """The private rows [N, D] of a configuration and the norm of their embedding, which figures 1 and 2 share."""
    with stages.stage("norm of the embedding of all rows") as progress:
        return Reference.from_rows(config.kernel, rows, progress=progress)


def run_panel(
    name: str,
    config: common.MixtureConfig,
    public_points: Callable[[common.MixtureConfig, np.ndarray], np.ndarray],
    *,
    points_are_rows: bool,
    reference: Reference | None = None,
) -> dict[str, Any]:
    """Computes one panel of a mixture figure.

    Args:
      name: the experiment's name.
      config: its configuration.
      public_points: (config, rows) -> points [max M, D]; raises InputError if there are none.
      points_are_rows: whether the points are like the rows (figure 1). If not, the curves of algorithm 2 are added, for
        which they are starts and candidates; and `improved` gets the proposal they are from, instead of them.
      reference: :func:`private_reference` of this configuration, where it is known already.

    Returns:
      The result, as DESIGN section 3 has it, and in "samples" the bytes of an .npz file with the points and weights
      behind its checks, which :func:`write_panel` puts into a file of its own.

    Raises:
      InputError: a configuration or data that cannot be used; before long work.
    """
    config.validate()
    common.check_output_dir(config.output_dir)
    rows = common.load_rows(config) if reference is None else reference.rows
    points = public_points(config, rows)
    stages = common.Stages(f"{name}, D = {config.dim}")
    if reference is None:
        reference = private_reference(config, rows, stages)
    body = algorithm1_curves(config, reference, points, stages, with_improved=points_are_rows)
    if not points_are_rows:
        body["curves"] |= algorithm2_curves(config, rows, points, body["squared_norm"], stages)
        body["curves"] |= improved_from_proposal(config, rows, body["squared_norm"], stages)
    return {
        "experiment": name,
        "config": dataclasses.asdict(config)
        | {"gamma": config.kernel.gamma, "output_dir": common.portable_path(config.output_dir)},
        "environment": common.environment(),
        "wall_seconds": stages.total_seconds,
        "stage_seconds": stages.seconds,
        **body,
    }


def write_panel(result: dict[str, Any], output_dir: str) -> pathlib.Path:
    """Writes ``<experiment>_D<dim>.json`` and, beside it, ``..._samples.npz``; returns the former's path."""
    path = pathlib.Path(output_dir) / f"{result['experiment']}_D{result['config']['dim']}.json"
    with common.atomic_path(path.with_name(f"{path.stem}_samples.npz")) as temporary:
        temporary.write_bytes(result["samples"])
    common.write_json(path, {name: value for name, value in result.items() if name != "samples"})
    return path


def main(run: Callable[[common.MixtureConfig], dict[str, Any]]) -> None:
    """The command line of one panel: runs it, writes its JSON and draws it."""
    config = common.mixture_config_from_flags()
    path = write_panel(run(config), config.output_dir)
    picture = plots.draw_mixture_figure([path], path.with_suffix(".png"))
    print(f"wrote {path} and {picture}")
