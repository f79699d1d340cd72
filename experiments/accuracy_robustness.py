"""Whether the improved release is as good on other data: a part of experiments.accuracy.

Mixtures of four seeds, the published one (0) and three others, with fewer rows, another dimension, and kernels half and
twice as wide. What is compared is the gain: the Δ of algorithm 1 as published over that of `improved`, by the same
defaults everywhere. How large it is depends on the setting; that it does not depend on the seed is the point.

Where some rows are public, both sides are means over draws, and every draw has other public rows and other noise:
at ε = 0.01 little more than the public rows themselves is known, and how well 1000 of them happen to stand for all
differs twofold. Where only a proposal is public, one release of each mixture stands beside the best of several M of
algorithm 1, as in the table for the published data; its expected Δ² is that of its projection plus Fσ².
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from experiments import accuracy_proposal, accuracy_subset, common
from experiments.mixture import mixture, proposal
from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, mean_embedding, spectral_map
from kme_jax.nonprivate import Reference
from kme_jax.privacy import simulated_mechanism

SETTINGS = ((100_000, 2, 1.0), (20_000, 3, 1.0), (20_000, 3, 4.0), (20_000, 3, 0.25))  # N, D, γ scale
SEEDS = (0, 1, 2, 3)
_NUM_POINTS = 1000
_DRAWS = 5
_PROPOSAL_EPSILON = 0.1
_RELEASES = 1
_SIZES = (10, 31, 100, 316, 1000)  # M of algorithm 1 where only a proposal is public


def run(config: Any) -> dict[str, Any]:
    """All data sets, kept in <output_dir>/accuracy_robustness.json as they come.

    Args:
      config: an ``experiments.accuracy.AccuracyConfig``, for its ε, δ and folder.
    """
    stages = common.Stages("accuracy, robustness")
    path = common.check_output_dir(config.output_dir) / "accuracy_robustness.json"
    settings = {"epsilons": config.epsilons, "delta": config.delta, "draws": _DRAWS, "num_points": _NUM_POINTS}
    settings |= {"proposal_epsilon": _PROPOSAL_EPSILON, "releases": _RELEASES, "sizes": _SIZES}
    cells = common.Cells(path, "accuracy_robustness", settings, ("num_rows", "dim", "gamma_scale", "seed"))
    for num_rows, dim, gamma_scale in SETTINGS:
        for seed in SEEDS:
            if (num_rows, dim, gamma_scale, seed) in cells:
                continue
            rows, kernel = mixture(num_rows, dim, seed=seed), Gaussian(gamma_scale * 1e-4 / dim)
            cell = {"num_rows": num_rows, "dim": dim, "gamma_scale": gamma_scale, "seed": seed}
            with stages.stage(f"N = {num_rows}, D = {dim}, γ × {gamma_scale:g}, seed {seed}") as progress:
                reference = Reference.from_rows(kernel, rows)
                cell["subset"] = _subset(reference, config.epsilons, config.delta, progress)
                cell["proposal"] = _proposal(reference, config.delta, seed, progress)
            cells.add(cell)
    return cells.result


def _subset(reference: Reference, epsilons, delta: float, progress) -> list[dict[str, Any]]:
    """Means over draws of the public rows and of the noise; the first draw has the first rows."""
    found: dict[float, dict[str, list[float]]] = {e: {"uniform": [], "published": [], "improved": []} for e in epsilons}
    for draw in range(_DRAWS):
        order = np.random.default_rng(draw).permutation(len(reference.rows)) if draw else slice(None)
        points = reference.rows[order][:_NUM_POINTS]
        embedding = mean_embedding(SubspaceMap.from_points(reference.kernel, points), reference.rows)
        cross = reference.kernel_mean(points)
        uniform = reference.distance(points, np.full(len(points), 1 / len(points)), cross)
        for epsilon, distances in found.items():
            measured = accuracy_subset.measure(
                reference, embedding, cross, epsilon, delta, range(draw, draw + 1), steps=("published", "improved")
            )
            distances["uniform"].append(uniform)
            for name, values in measured["distances"].items():
                distances[name].extend(values)
        progress(draw + 1, _DRAWS + _RELEASES)
    means = {e: {name: float(np.mean(values)) for name, values in distances.items()} for e, distances in found.items()}
    return [{"epsilon": epsilon, **mean, "distances": found[epsilon]} for epsilon, mean in means.items()]


def _algorithm1(reference: Reference, budget: PrivacyBudget) -> dict[str, float]:
    """Root mean square Δ of the published algorithm 1 with M points from the proposal, {M: Δ}."""
    dim = reference.rows.shape[1]
    subspace = SubspaceMap.from_points(reference.kernel, proposal(10_000, dim)[: max(_SIZES)])
    captured = np.cumsum(np.square(mean_embedding(subspace, reference.rows).coordinates))
    mechanism = simulated_mechanism(
        subspace, len(reference.rows), budget, calibration="classical", diameter="published"
    )
    ranks = np.asarray([subspace.rank_at(size) for size in _SIZES])
    squared = np.maximum(reference.squared_norm - captured[ranks - 1], 0) + ranks * mechanism.variance
    return dict(zip(map(str, _SIZES), np.sqrt(squared).tolist(), strict=True))


def _proposal(reference: Reference, delta: float, seed: int, progress) -> dict[str, Any]:
    """Releases from the proposal alone, beside the best of the published algorithm 1."""
    kernel, rows, dim = reference.kernel, reference.rows, reference.rows.shape[1]
    budget, records = PrivacyBudget(_PROPOSAL_EPSILON, delta), []
    for release in range(_RELEASES):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), release), 3)
        features = spectral_map(keys[2], kernel, accuracy_proposal.prior(dim), accuracy_proposal.NUM_FEATURES)
        embedding = mean_embedding(features, rows)
        records.append(accuracy_proposal.release(reference, embedding, budget, keys[:2], lambda *_: None)[1])
        progress(_DRAWS + release + 1, _DRAWS + _RELEASES)
    improved = float(np.mean([record["distances"]["improved"] for record in records]))
    sizes = _algorithm1(reference, budget)
    return {"improved": improved, "published": min(sizes.values()), "algorithm1": sizes, "releases": records}


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
        gains = [cell["proposal"]["published"] / cell["proposal"]["improved"] for cell in cells]
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
