"""How close the improved release is where rows are public (figure 1): a part of experiments.accuracy.

Every M and ε has its own draws of the noise. All methods get the same draws.
"""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.accuracy.config import AccuracyConfig
from experiments.common.mixture import mixture
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import (
    Gaussian,
    MeanEmbedding,
    NoisyEmbedding,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    mean_embedding,
    perturb,
)
from kme_jax._numerics.precision import Progress, in_float64
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import EntropicLeastSquares

# Steps from the published algorithm 1 to `improved`: (name, calibration, diameter, weights).
STEPS = (
    ("published", "classical", "published", "closed_form"),
    ("calibration", "analytic", "published", "closed_form"),
    ("diameter", "analytic", "proved", "closed_form"),
    ("projection", "analytic", "proved", "projection"),
    ("improved", "analytic", "proved", "adaptive"),
)
_LARGE = 1000  # points: above it there are fewer draws, and no projection, which takes minutes
_PROJECTION_DRAWS = 5
_PROJECTION_PENALTY = 1e-3  # of σ²: no shrinkage to speak of


def mixture_reference(config: AccuracyConfig, dim: int, stages: Stages) -> Reference:
    """The private mixture of a configuration, for exact distances to it."""
    rows, kernel = mixture(config.num_rows, dim, seed=config.data_seed), Gaussian(config.gamma_scale * 1e-4 / dim)
    with stages.stage(f"D = {dim}: norm of the embedding") as progress:
        return Reference.from_rows(kernel, rows, progress=progress)


@in_float64
def _projection(noisy: NoisyEmbedding) -> np.ndarray:
    """Probability weights whose embedding is closest to μ̃ (Nikolov, Talwar & Zhang 2013): no shrinkage."""
    features = noisy.feature_map(jnp.asarray(noisy.feature_map.points))
    variance = noisy.mechanism.variance
    problem = EntropicLeastSquares(features, noisy.coordinates)
    fit, penalty = None, float(jnp.sum(jnp.square(features))) / len(features)
    while (
        fit is None or fit.penalty > _PROJECTION_PENALTY * variance
    ):  # each solution is the start of the next, as in `adaptive`
        penalty = max(penalty / 4, _PROJECTION_PENALTY * variance)
        fit = problem.solve(penalty, 1e-3 * variance, start=fit)
    return fit.weights


def measure(
    reference: Reference,
    embedding: MeanEmbedding,
    kernel_mean: np.ndarray,
    epsilon: float,
    delta: float,
    draws: range,
    *,
    steps: tuple[str, ...] = tuple(name for name, *_ in STEPS),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures Δ of every step for every seed of the noise.

    Args:
      reference: the private rows.
      embedding: embedding of the private rows.
      kernel_mean: μ̂_X(z_m) at the public points, [M].
      epsilon: ε.
      delta: δ.
      draws: seeds of the noise. All steps get the same seeds.
      steps: names of ``STEPS``.
      progress: called with (draws done, draws in all).

    Returns:
      "distances", {step: Δ of each draw}, and for `improved` the "seconds" and the "chosen" weights of each draw.
    """
    points = embedding.feature_map.points
    used = [step for step in STEPS if step[0] in steps]
    weights: dict[str, list[np.ndarray]] = {name: [] for name, *_ in used}
    seconds, chosen = [], []
    for i, seed in enumerate(draws):
        for name, calibration, diameter, method in used:
            noisy = perturb(
                jax.random.key(seed),
                embedding,
                PrivacyBudget(epsilon, delta),
                calibration=calibration,
                diameter=diameter,
            )
            if method == "adaptive":
                started = time.perf_counter()
                sample, report = adaptive_weights(noisy)
                seconds.append(time.perf_counter() - started)
                weights[name].append(sample.weights)
                best = report.chosen
                share = best.penalty / noisy.mechanism.variance if best.kind == "probability" else None
                freedom = best.degrees_of_freedom
                chosen.append({"kind": best.kind, "penalty_over_variance": share, "degrees_of_freedom": freedom})
            elif method == "closed_form":
                weights[name].append(closed_form_weights(noisy).weights)
            elif i < _PROJECTION_DRAWS and len(points) <= _LARGE:
                weights[name].append(_projection(noisy))
        if progress:
            progress(i + 1, len(draws))
    everything = reference.distances(points, np.stack([w for each in weights.values() for w in each]), kernel_mean)
    parts = np.split(everything, np.cumsum([len(each) for each in weights.values()])[:-1])
    distances = {name: part.tolist() for name, part in zip(weights, parts, strict=True) if len(part)}
    return {"distances": distances, "seconds": seconds, "chosen": chosen}


def _summary(distances: list[float]) -> dict[str, float | None]:
    mean = float(np.mean(distances))
    error = float(np.std(distances, ddof=1) / math.sqrt(len(distances))) if len(distances) > 1 else None
    return {"mean": mean, "standard_error": error}


def _compare(cell: dict[str, Any]) -> dict[str, Any]:
    """Means over draws, and a comparison of `improved` with the better of tight algorithm 1 and uniform weights."""
    distances = {name: np.asarray(values) for name, values in cell["distances"].items()}
    better = "diameter" if distances["diameter"].mean() < cell["uniform"] else "uniform"
    other = distances["diameter"] if better == "diameter" else np.full_like(distances["improved"], cell["uniform"])
    excess = distances["improved"] - 1.02 * other
    enough = len(excess) > 1
    return {
        "steps": {name: _summary(values) for name, values in cell["distances"].items()},
        "better_of_two": better,
        "ratio_to_better": float(distances["improved"].mean() / other.mean()),
        "never_worse": bool(excess.mean() <= 2 * excess.std(ddof=1) / math.sqrt(len(excess))) if enough else None,
        "ratio_to_published": float(distances["published"].mean() / distances["improved"].mean()),
    }


def run(config: AccuracyConfig) -> dict[str, Any]:
    """All cells. Each is written to <output_dir>/accuracy.json when it is done."""
    stages = Stages("accuracy")
    path = check_output_dir(config.output_dir) / "accuracy.json"
    cells = Cells(path, "accuracy", config.settings("parts"), ("dim", "num_points", "epsilon"))
    for dim in config.dims:
        if all((dim, m, e) in cells for m in config.sizes for e in config.epsilons):
            continue
        reference = mixture_reference(config, dim, stages)
        public = reference.rows[: max(config.sizes)]
        kernel_means = reference.kernel_mean(public)
        subspace = SubspaceMap.from_points(reference.kernel, public)
        whole = mean_embedding(subspace, reference.rows)
        for num_points in config.sizes:
            prefix = subspace.prefix(num_points)
            # A leading part of the basis, so a leading part of the coordinates.
            embedding = MeanEmbedding(prefix, whole.coordinates[: prefix.num_features], whole.num_rows)
            means = kernel_means[:num_points]
            uniform = reference.distance(public[:num_points], np.full(num_points, 1 / num_points), means)
            for epsilon in config.epsilons:
                if (dim, num_points, epsilon) in cells:
                    continue
                draws = config.num_draws if num_points <= _LARGE else config.num_draws_large
                cell = {"dim": dim, "num_points": num_points, "epsilon": epsilon, "uniform": uniform}
                with stages.stage(f"D = {dim}, M = {num_points}, ε = {epsilon:g}") as progress:
                    cell |= measure(reference, embedding, means, epsilon, config.delta, range(draws), progress=progress)
                cells.add(cell | _compare(cell))
    return cells.result


def _mean_of(cell: dict[str, Any], step: str, form: str) -> str:
    width = form.partition(".")[0]
    return format(cell["steps"][step]["mean"], form) if step in cell["steps"] else format("–", width)


def table(result: dict[str, Any]) -> str:
    """Mean Δ of every cell and step."""
    names = [name for name, *_ in STEPS]
    lines = [
        "mean Δ; `published` is algorithm 1 as published, and every column adds to the one before",
        f"{'D':>2} {'M':>6} {'ε':>5} {'uniform':>9} "
        + " ".join(f"{name:>11}" for name in names)
        + "  gain  / better of two  seconds",
    ]
    for cell in result["cells"]:
        means = " ".join(_mean_of(cell, name, ">11.3g") for name in names)
        worse = "" if cell["never_worse"] in (True, None) else "  WORSE"
        lines.append(
            f"{cell['dim']:>2} {cell['num_points']:>6} {cell['epsilon']:>5g} {cell['uniform']:>9.3g} {means}"
            f" {cell['ratio_to_published']:>5.1f} {cell['ratio_to_better']:>10.3f} {cell['better_of_two']:<9}"
            f" {np.median(cell['seconds']):.2g}{worse}"
        )
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The steps from the published algorithm 1 to `improved` at M = 1000 and 10 000, as a table of Markdown."""
    lines = [
        "| D | M | ε | published | + exact σ | + √2/N | + probability weights | + shrinkage: improved | gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        if cell["num_points"] in (1000, 10_000):
            means = " | ".join(_mean_of(cell, name, ".3g") for name, *_ in STEPS)
            lines.append(
                f"| {cell['dim']} | {cell['num_points']} | {cell['epsilon']:g} | {means} | "
                f"{cell['ratio_to_published']:.1f} |"
            )
    return "\n".join(lines)
