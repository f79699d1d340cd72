"""How far the improved release goes where nothing but a proposal is public (figure 2): a part of experiments.accuracy.

Every ε and seed is one release with frequencies, noise and sampler of its own; no setting depends on ε or D.
"""

from __future__ import annotations

import json
import math
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.mixture import mixture, proposal
from kme_jax import (
    FourierMap,
    Gaussian,
    NormalProposal,
    PrivacyBudget,
    WeightedSample,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    uniform,
)
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import joint

NUM_POINTS = 1000  # the default of kme_jax.improved
_FEW_POINTS = 100
_NUM_FEATURES = 10_000
_SCALE = 500.0  # of the proposal, as published
_RESAMPLED_ROWS = 10_000
# What each release is measured by: key, description.
MEASURES = {
    "joint": f"joint reduced set (algorithm 2, Σ|w| ≤ 1, {_FEW_POINTS} points), same noise",
    "improved": f"improved, {NUM_POINTS} points",
    "few_points": f"improved, {_FEW_POINTS} points",
    "resampled": f"improved, resampled to {_RESAMPLED_ROWS} unweighted rows",
    "unweighted": f"improved, {NUM_POINTS} optimised rows of weight 1/{NUM_POINTS}",
}


def _release(reference: Reference, embedding, budget: PrivacyBudget, keys, progress) -> dict[str, Any]:
    """One release and its distances."""
    noise_key, solver_key, joint_key = keys
    dim, distance = embedding.feature_map.dim, reference.distance
    private = perturb(noise_key, embedding, budget)
    started = time.perf_counter()
    mean, report = posterior_mean(
        solver_key, private, NormalProposal.create(np.zeros(dim), _SCALE), progress=lambda *done: progress(*done)
    )
    sample, _ = represent(mean, NUM_POINTS)
    seconds = time.perf_counter() - started
    few, _ = represent(mean, _FEW_POINTS)
    unweighted, _ = represent(mean, NUM_POINTS, weights="uniform")
    other, _ = joint(joint_key, private, proposal(10_000, dim, scale=_SCALE), _FEW_POINTS)
    measured: dict[str, WeightedSample] = {
        "joint": other,
        "improved": sample,
        "few_points": few,
        "resampled": uniform(sample.resample(_RESAMPLED_ROWS, seed=0)),
        "unweighted": unweighted,
    }
    truth = embedding.coordinates
    return {
        "distances": {name: distance(each.points, each.weights) for name, each in measured.items()},
        "denoised": float(np.linalg.norm(mean.coordinates - truth)),
        "noise": float(np.linalg.norm(private.coordinates - truth)),
        "sigma": private.mechanism.scale,
        "seconds": seconds,
        "converged": report.converged,
        "acceptance": report.acceptance,
        "width": float(np.mean(mean.widths)),
    }


def run(config: Any) -> dict[str, Any]:
    """All releases, kept in <output_dir>/accuracy_proposal.json as they come.

    Args:
      config: an ``experiments.accuracy.AccuracyConfig``.
    """
    stages = common.Stages("accuracy, proposal")
    path = common.check_output_dir(config.output_dir) / "accuracy_proposal.json"
    result = config.begun(path, "accuracy_proposal")
    before = result["wall_seconds"]
    known = {(record["dim"], record["epsilon"], record["seed"]) for record in result["cells"]}
    for dim in config.dims:
        todo = [(e, s) for s in range(config.num_releases) for e in config.epsilons if (dim, float(e), s) not in known]
        if not todo:
            continue
        rows, kernel = mixture(config.num_rows, dim, seed=config.data_seed), Gaussian(config.gamma_scale * 1e-4 / dim)
        with stages.stage(f"D = {dim}: norm of the embedding") as progress:
            reference = Reference.from_rows(kernel, rows, progress=progress)
        made: dict[int, Any] = {}
        for epsilon, seed in todo:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), dim), 2)
            with stages.stage(f"D = {dim}, ε = {epsilon:g}, seed {seed}") as progress:
                if seed not in made:
                    fourier = FourierMap.from_kernel(keys[0], kernel, _NUM_FEATURES, dim)
                    made = {seed: mean_embedding(fourier, rows)}
                own = jax.random.split(jax.random.fold_in(keys[1], config.epsilons.index(epsilon)), 3)
                record = {"dim": dim, "epsilon": float(epsilon), "seed": seed}
                record |= _release(reference, made[seed], PrivacyBudget(epsilon, config.delta), own, progress)
            result["cells"].append(record)
            result["wall_seconds"] = before + stages.total_seconds
            common.write_json(path, result)
    return result


def _published() -> dict[tuple[int, float], float]:
    """The least published Δ over M and both algorithms, {(D, ε): Δ}."""
    panels = json.loads(pathlib.Path(__file__).with_name("published.json").read_text())
    best = {}
    for dim in (2, 5):
        panel = panels[f"figure2_D{dim}"]
        for epsilon in panel["algorithm1"]:
            curves = [panel[name][epsilon] for name in ("algorithm1", "algorithm2") if epsilon in panel.get(name, {})]
            best[dim, float(epsilon)] = min(min(curve) for curve in curves)
    return best


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Means over seeds for every D and ε, beside the published best where the settings are the published ones."""
    config = result["config"]
    same = (config["num_rows"], config["gamma_scale"], config["data_seed"], config["delta"]) == (100_000, 1, 0, 1e-6)
    published = _published() if same else {}
    groups: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for record in result["cells"]:
        groups.setdefault((record["dim"], record["epsilon"]), []).append(record)
    lines = []
    for (dim, epsilon), records in sorted(groups.items()):
        means = {name: float(np.mean([r["distances"][name] for r in records])) for name in MEASURES}
        improved = [r["distances"]["improved"] for r in records]
        error = float(np.std(improved, ddof=1) / math.sqrt(len(improved))) if len(improved) > 1 else None
        lines.append(
            {
                "dim": dim,
                "epsilon": epsilon,
                "num_seeds": len(records),
                "published": published.get((dim, epsilon)),
                "standard_error": error,
                "seconds": float(np.median([r["seconds"] for r in records])),
                "converged": sum(r["converged"] for r in records),
                **means,
            }
        )
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table for the README."""
    lines = [
        "| D | ε | published, best over M | joint, 100 points | improved, 1000 points | gain | 100 points | "
        "10 000 rows | 1000 rows | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in summary(result):
        published, gain = "–", "–"
        if row["published"]:
            published, gain = f"{row['published']:.3g}", f"{row['published'] / row['improved']:.1f}"
        numbers = [row["joint"], row["improved"], gain, row["few_points"], row["resampled"], row["unweighted"]]
        numbers = " | ".join(value if isinstance(value, str) else f"{value:.3g}" for value in numbers)
        lines.append(f"| {row['dim']} | {row['epsilon']:g} | {published} | {numbers} | {row['seconds']:.0f} |")
    return "\n".join(lines)
