"""How far the improved release goes where nothing but a proposal is public (figure 2): a part of experiments.accuracy.

Every ε and seed is one release with frequencies, noise and sampler of its own; no setting depends on ε or D.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.accuracy_subset import mixture_reference
from experiments.mixture import proposal
from kme_jax import (
    FourierMap,
    Gaussian,
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    WeightedSample,
    adaptive,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    spectral_map,
)
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import PosteriorMean, joint_reduced_set

NUM_POINTS = 1000  # the default of kme_jax.improved
_FEW_POINTS = 100
NUM_FEATURES = 10_000
_SCALE = 500.0  # of the proposal, as published
_RESAMPLED_ROWS = 10_000
COMPARED = 2  # releases of each setting that everything is measured for; the others for `improved` alone
# What a release is measured by: key, description.
MEASURES = {
    "improved": f"improved, {NUM_POINTS} points",
    "joint": f"joint reduced set (algorithm 2, Σ|w| ≤ 1, {_FEW_POINTS} points)",
    "fixed_points": f"{NUM_POINTS} draws of the proposal, adaptive weights",
    "few_points": f"improved, {_FEW_POINTS} points",
    "resampled": f"improved, resampled to {_RESAMPLED_ROWS} unweighted rows",
    "unweighted": f"improved, {NUM_POINTS} optimised rows of weight 1/{NUM_POINTS}",
}


class _Embeddings:
    """Of the private rows, under the three maps that are compared, as they are needed."""

    def __init__(self, key: jax.Array, kernel: Gaussian, rows: np.ndarray):
        self._key, self._kernel, self._rows, self._dim = key, kernel, rows, rows.shape[1]

    @functools.cached_property
    def improved(self) -> MeanEmbedding:
        return mean_embedding(spectral_map(self._key, self._kernel, prior(self._dim), NUM_FEATURES), self._rows)

    @functools.cached_property
    def fourier(self) -> MeanEmbedding:
        if isinstance(self.improved.feature_map, FourierMap):
            return self.improved
        return mean_embedding(FourierMap.from_kernel(self._key, self._kernel, NUM_FEATURES, self._dim), self._rows)

    @functools.cached_property
    def subspace(self) -> MeanEmbedding:
        points = proposal(10_000, self._dim, scale=_SCALE)[:NUM_POINTS]
        return mean_embedding(SubspaceMap.from_points(self._kernel, points), self._rows)


def prior(dim: int) -> NormalProposal:
    """The published proposal."""
    return NormalProposal.create(np.zeros(dim), _SCALE)


def release(
    reference: Reference, embedding: MeanEmbedding, budget: PrivacyBudget, keys: jax.Array, progress
) -> tuple[PosteriorMean, dict[str, Any]]:
    """One improved release with its own noise and sampler, and what it is like."""
    noisy = perturb(keys[0], embedding, budget)
    started = time.perf_counter()
    mean, report = posterior_mean(keys[1], noisy, prior(embedding.feature_map.dim), progress=progress)
    sample, _ = represent(mean, NUM_POINTS)
    seconds = time.perf_counter() - started
    points, counts = np.unique(sample.quantise(_RESAMPLED_ROWS, seed=0), axis=0, return_counts=True)
    truth = embedding.coordinates
    return mean, {
        "distances": {
            "improved": _distance(reference, sample),
            "resampled": reference.distance(points, counts / _RESAMPLED_ROWS),
        },
        "denoised": float(np.linalg.norm(mean.coordinates - truth)),
        "noise": float(np.linalg.norm(noisy.coordinates - truth)),
        "map": type(embedding.feature_map).__name__,
        "num_features": embedding.feature_map.num_features,
        "sigma": noisy.mechanism.scale,
        "seconds": seconds,
        "converged": report.converged,
        "acceptance": report.acceptance,
        "width": float(np.mean(mean.widths)),
        "kept": report.kept,
        "attempts": report.attempts,
    }


def _distance(reference: Reference, sample: WeightedSample) -> float:
    return reference.distance(sample.points, sample.weights)


def _comparisons(reference, embeddings: _Embeddings, mean: PosteriorMean, budget, keys) -> dict[str, float]:
    """Other ways to the same end, at the same privacy."""
    candidates = proposal(10_000, mean.feature_map.dim, scale=_SCALE)
    samples = {
        "joint": joint_reduced_set(keys[2], perturb(keys[0], embeddings.fourier, budget), candidates, _FEW_POINTS)[0],
        "fixed_points": adaptive(perturb(keys[0], embeddings.subspace, budget))[0],
        "few_points": represent(mean, _FEW_POINTS)[0],
        "unweighted": represent(mean, NUM_POINTS, weights="uniform")[0],
    }
    return {name: _distance(reference, sample) for name, sample in samples.items()}


def run(config: Any) -> dict[str, Any]:
    """All releases, kept in <output_dir>/accuracy_proposal.json as they come.

    Args:
      config: an ``experiments.accuracy.AccuracyConfig``.
    """
    stages = common.Stages("accuracy, proposal")
    path = common.check_output_dir(config.output_dir) / "accuracy_proposal.json"
    cells = common.Cells(path, "accuracy_proposal", config.settings(), ("dim", "epsilon", "seed"))
    for dim in config.dims:
        todo = [(e, s) for s in range(config.num_releases) for e in config.epsilons if (dim, float(e), s) not in cells]
        if not todo:
            continue
        reference = mixture_reference(config, dim, stages)
        made: dict[int, _Embeddings] = {}
        for epsilon, seed in todo:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), dim), 2)
            with stages.stage(f"D = {dim}, ε = {epsilon:g}, seed {seed}") as progress:
                if seed not in made:
                    made = {seed: _Embeddings(keys[0], reference.kernel, reference.rows)}
                own = jax.random.split(jax.random.fold_in(keys[1], config.epsilons.index(epsilon)), 3)
                budget = PrivacyBudget(epsilon, config.delta)
                mean, record = release(reference, made[seed].improved, budget, own, progress)
                if seed < COMPARED:
                    record["distances"] |= _comparisons(reference, made[seed], mean, budget, own)
            cells.add({"dim": dim, "epsilon": float(epsilon), "seed": seed} | record)
    return cells.result


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
        improved = [r["distances"]["improved"] for r in records]
        error = float(np.std(improved, ddof=1) / math.sqrt(len(improved))) if len(improved) > 1 else None
        others = {name: [r for r in records if name in r["distances"]] for name in MEASURES}
        lines.append(
            {
                "dim": dim,
                "epsilon": epsilon,
                "num_seeds": len(records),
                "published": published.get((dim, epsilon)),
                "standard_error": error,
                "seconds": float(np.median([r["seconds"] for r in records])),
                "converged": sum(r["converged"] for r in records),
                "means": {n: float(np.mean([r["distances"][n] for r in some])) for n, some in others.items() if some},
                # Beside the very same releases.
                "ratios": {
                    n: float(np.mean([r["distances"][n] / r["distances"]["improved"] for r in some]))
                    for n, some in others.items()
                    if some
                },
            }
        )
    return lines


def _number(values: dict[str, float], name: str, form: str) -> str:
    """One that was not measured is a dash."""
    sign, _, form = form.rpartition(" ")
    return f"{sign} {values[name]:{form}}".strip() if name in values else "–"


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table for the README."""
    lines = [
        "| D | ε | published, best over M | fixed points | locations: joint | posterior mean: improved | ± | gain "
        "| 100 points | 10 000 rows | 1000 rows | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in summary(result):
        published, gain = "–", "–"
        improved, means, ratios = row["means"]["improved"], row["means"], row["ratios"]
        if row["published"]:
            published, gain = f"{row['published']:.3g}", f"{row['published'] / improved:.1f}"
        error = "–" if row["standard_error"] is None else f"{row['standard_error']:.1g}"
        numbers = [*(_number(means, name, ".3g") for name in ("fixed_points", "joint")), f"{improved:.3g}", error, gain]
        numbers += [_number(ratios, name, "× .2f") for name in ("few_points", "resampled", "unweighted")]
        lines.append(
            f"| {row['dim']} | {row['epsilon']:g} | {published} | {' | '.join(numbers)} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)
