"""Whether the improved release is as good on other data: a part of experiments.accuracy.

Mixtures of four seeds, the published one (0) and three others, with fewer rows, another dimension, and kernels half and
twice as wide. What is compared is the gain: the Δ of algorithm 1 as published over that of `improved`, by the same
defaults everywhere. How large it is depends on the setting; that it does not depend on the seed is the point.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from experiments import accuracy_proposal, accuracy_subset, common
from experiments.mixture import mixture, proposal
from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, closed_form, mean_embedding, perturb, spectral_map
from kme_jax.nonprivate import Reference

SETTINGS = ((100_000, 2, 1.0), (20_000, 3, 1.0), (20_000, 3, 4.0), (20_000, 3, 0.25))  # N, D, γ scale
SEEDS = (0, 1, 2, 3)
_NUM_POINTS = 1000
_DRAWS = 5
_PROPOSAL_EPSILON = 0.1  # one release of each data set


def run(config: Any) -> dict[str, Any]:
    """All data sets, kept in <output_dir>/accuracy_robustness.json as they come.

    Args:
      config: an ``experiments.accuracy.AccuracyConfig``, for its ε, δ and folder.
    """
    stages = common.Stages("accuracy, robustness")
    path = common.check_output_dir(config.output_dir) / "accuracy_robustness.json"
    settings = {"epsilons": config.epsilons, "delta": config.delta, "draws": _DRAWS, "num_points": _NUM_POINTS}
    settings["proposal_epsilon"] = _PROPOSAL_EPSILON
    cells = common.Cells(path, "accuracy_robustness", settings, ("num_rows", "dim", "gamma_scale", "seed"))
    for num_rows, dim, gamma_scale in SETTINGS:
        for seed in SEEDS:
            if (num_rows, dim, gamma_scale, seed) in cells:
                continue
            rows, kernel = mixture(num_rows, dim, seed=seed), Gaussian(gamma_scale * 1e-4 / dim)
            cell = {"num_rows": num_rows, "dim": dim, "gamma_scale": gamma_scale, "seed": seed}
            with stages.stage(f"N = {num_rows}, D = {dim}, γ × {gamma_scale:g}, seed {seed}") as progress:
                reference = Reference.from_rows(kernel, rows)
                cell["subset"] = _subset(reference, config.epsilons, config.delta)
                cell["proposal"] = _proposal(reference, config.delta, seed, progress)
            cells.add(cell)
    return cells.result


def _subset(reference: Reference, epsilons, delta: float) -> list[dict[str, Any]]:
    points = reference.rows[:_NUM_POINTS]
    embedding = mean_embedding(SubspaceMap.from_points(reference.kernel, points), reference.rows)
    cross = reference.kernel_mean(points)
    uniform = reference.distance(points, np.full(len(points), 1 / len(points)), cross)
    found = []
    for epsilon in epsilons:
        measured = accuracy_subset.measure(
            reference, embedding, cross, epsilon, delta, _DRAWS, steps=("published", "improved")
        )
        means = {name: float(np.mean(values)) for name, values in measured["distances"].items()}
        found.append({"epsilon": epsilon, "uniform": uniform, **means})
    return found


def _proposal(reference: Reference, delta: float, seed: int, progress) -> dict[str, Any]:
    """One release from the proposal alone, beside the published algorithm 1 with points drawn from it."""
    kernel, rows, dim = reference.kernel, reference.rows, reference.rows.shape[1]
    budget, keys = PrivacyBudget(_PROPOSAL_EPSILON, delta), jax.random.split(jax.random.key(seed), 3)
    features = spectral_map(keys[2], kernel, accuracy_proposal.prior(dim), accuracy_proposal.NUM_FEATURES)
    _, record = accuracy_proposal.release(reference, mean_embedding(features, rows), budget, keys[:2], progress)
    subspace = SubspaceMap.from_points(kernel, proposal(10_000, dim)[:_NUM_POINTS])
    private = perturb(keys[0], mean_embedding(subspace, rows), budget, calibration="classical", diameter="published")
    sample = closed_form(private)
    record["distances"]["published"] = reference.distance(sample.points, sample.weights)
    return record


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Gains of the seeds for every setting, ε, and kind of public knowledge."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["num_rows"], cell["dim"], cell["gamma_scale"]), []).append(cell)
    lines = []
    for (num_rows, dim, gamma_scale), cells in groups.items():
        setting = {"num_rows": num_rows, "dim": dim, "gamma_scale": gamma_scale}
        for i, first in enumerate(cells[0]["subset"]):
            gains = [cell["subset"][i]["published"] / cell["subset"][i]["improved"] for cell in cells]
            against_uniform = [cell["subset"][i]["improved"] / cell["subset"][i]["uniform"] for cell in cells]
            lines.append(
                setting
                | {
                    "public": "subset",
                    "epsilon": first["epsilon"],
                    "gains": gains,
                    "over_uniform": max(against_uniform),
                }
            )
        releases = [cell["proposal"]["distances"] for cell in cells]
        gains = [distances["published"] / distances["improved"] for distances in releases]
        epsilon = result["config"]["proposal_epsilon"]
        lines.append(setting | {"public": "proposal", "epsilon": epsilon, "gains": gains, "over_uniform": None})
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table for the README; the spread is that of the gains about their mean."""
    lines = [
        "| N | D | γ | public | ε | gain for each mixture | furthest from mean | Δ / Δ of uniform weights, worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in summary(result):
        gains = np.asarray(row["gains"])
        spread = np.max(np.abs(gains / gains.mean() - 1))
        over = "–" if row["over_uniform"] is None else f"{row['over_uniform']:.2f}"
        lines.append(
            f"| {row['num_rows']} | {row['dim']} | × {row['gamma_scale']:g} | {row['public']} | {row['epsilon']:g} | "
            f"{', '.join(f'{gain:.1f}' for gain in gains)} | {100 * spread:.0f} % | {over} |"
        )
    return "\n".join(lines)
