"""How close the improved release is where only a proposal is public (figure 2): a part of experiments.accuracy.

There is one release for every ε and seed, with its own frequencies, noise and sampler. No setting depends on ε or D.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from experiments.accuracy.config import AccuracyConfig
from experiments.accuracy.subset import mixture_reference
from experiments.common.mixture import proposal
from experiments.common.progress import Stages
from experiments.common.published import balog2018
from experiments.common.results import Cells, check_output_dir
from kme_jax import (
    FourierMap,
    Gaussian,
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    WeightedSample,
    adaptive_weights,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    spectral_map,
)
from kme_jax._numerics.precision import Progress
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import PosteriorMean, joint_reduced_set

NUM_POINTS = 1000  # the default of kme_jax.improved
_FEW_POINTS = 100
_SCALE = 500.0  # of the proposal, as published
_RESAMPLED_ROWS = 10_000
# What is measured of a release: key, description.
MEASURES = {
    "improved": f"improved, {NUM_POINTS} points",
    "joint": f"joint reduced set (algorithm 2, Σ|w| ≤ 1, {_FEW_POINTS} points)",
    "fixed_points": f"{NUM_POINTS} draws of the proposal, adaptive weights",
    "few_points": f"improved, {_FEW_POINTS} points",
    "resampled": f"improved, resampled to {_RESAMPLED_ROWS} unweighted rows",
    "unweighted": f"improved, {NUM_POINTS} optimised rows of weight 1/{NUM_POINTS}",
}


@dataclasses.dataclass(frozen=True)
class ReleaseSettings:
    """Settings of every release.

    Attributes:
      num_features: J.
      num_compared: number of seeds for which other methods are measured, too. For the other seeds it is `improved` and
        its resampled rows only.
      sampler: options of ``posterior_mean``.
      representation: options of ``represent``.
    """

    num_features: int = 10_000
    num_compared: int = 2
    sampler: Mapping[str, int] = dataclasses.field(default_factory=dict)
    representation: Mapping[str, int] = dataclasses.field(default_factory=dict)


DEFAULT = ReleaseSettings()


class _Embeddings:
    """Embeddings of the private rows under the three maps that are compared, each computed when it is first used."""

    def __init__(self, key: jax.Array, kernel: Gaussian, rows: np.ndarray, num_features: int):
        self._key, self._kernel, self._rows, self._dim = key, kernel, rows, rows.shape[1]
        self._num_features = num_features

    @functools.cached_property
    def improved(self) -> MeanEmbedding:
        return mean_embedding(spectral_map(self._key, self._kernel, prior(self._dim), self._num_features), self._rows)

    @functools.cached_property
    def fourier(self) -> MeanEmbedding:
        if isinstance(self.improved.feature_map, FourierMap):
            return self.improved
        return mean_embedding(
            FourierMap.from_kernel(self._key, self._kernel, self._num_features, self._dim), self._rows
        )

    @functools.cached_property
    def subspace(self) -> MeanEmbedding:
        points = proposal(10_000, self._dim, scale=_SCALE)[:NUM_POINTS]
        return mean_embedding(SubspaceMap.from_points(self._kernel, points), self._rows)


def prior(dim: int) -> NormalProposal:
    """The published proposal."""
    return NormalProposal.create(np.zeros(dim), _SCALE)


def release(
    reference: Reference,
    embedding: MeanEmbedding,
    budget: PrivacyBudget,
    keys: jax.Array,
    progress: Progress,
    settings: ReleaseSettings = DEFAULT,
) -> tuple[PosteriorMean, dict[str, Any]]:
    """Computes one improved release with its own noise and sampler.

    Args:
      reference: the private rows.
      embedding: embedding of the private rows.
      budget: ε and δ.
      keys: of the noise and of the sampler.
      progress: of the sampler.
      settings: of the release.

    Returns:
      The posterior mean, and a record of distances, noise and sampling.
    """
    noisy = perturb(keys[0], embedding, budget)
    started = time.perf_counter()
    mean, report = posterior_mean(
        keys[1], noisy, prior(embedding.feature_map.dim), progress=progress, **settings.sampler
    )
    sample, _ = represent(mean, NUM_POINTS, **settings.representation)
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


def _comparisons(
    reference: Reference,
    embeddings: _Embeddings,
    mean: PosteriorMean,
    budget: PrivacyBudget,
    keys: jax.Array,
    settings: ReleaseSettings,
) -> dict[str, float]:
    """Δ of other methods with the same privacy."""
    options = settings.representation
    candidates = proposal(10_000, mean.feature_map.dim, scale=_SCALE)
    samples = {
        "joint": joint_reduced_set(keys[2], perturb(keys[0], embeddings.fourier, budget), candidates, _FEW_POINTS)[0],
        "fixed_points": adaptive_weights(perturb(keys[0], embeddings.subspace, budget))[0],
        "few_points": represent(mean, _FEW_POINTS, **options)[0],
        "unweighted": represent(mean, NUM_POINTS, weights="uniform", **options)[0],
    }
    return {name: _distance(reference, sample) for name, sample in samples.items()}


def run(config: AccuracyConfig, settings: ReleaseSettings = DEFAULT) -> dict[str, Any]:
    """All releases. Each is written to <output_dir>/accuracy_proposal.json when it is done."""
    stages = Stages("accuracy, proposal")
    path = check_output_dir(config.output_dir) / "accuracy_proposal.json"
    cells = Cells(path, "accuracy_proposal", config.settings("parts"), ("dim", "epsilon", "seed"))
    for dim in config.dims:
        todo = [(e, s) for s in range(config.num_releases) for e in config.epsilons if (dim, float(e), s) not in cells]
        if not todo:
            continue
        reference = mixture_reference(config, dim, stages)
        embeddings: dict[int, _Embeddings] = {}  # of the last seed only
        for epsilon, seed in todo:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), dim), 2)
            with stages.stage(f"D = {dim}, ε = {epsilon:g}, seed {seed}") as progress:
                if seed not in embeddings:
                    new = _Embeddings(keys[0], reference.kernel, reference.rows, settings.num_features)
                    embeddings = {seed: new}
                own = jax.random.split(jax.random.fold_in(keys[1], config.epsilons.index(epsilon)), 3)
                budget = PrivacyBudget(epsilon, config.delta)
                mean, record = release(reference, embeddings[seed].improved, budget, own, progress, settings)
                if seed < settings.num_compared:
                    others = _comparisons(reference, embeddings[seed], mean, budget, own, settings)
                    record["distances"] |= others
            cells.add({"dim": dim, "epsilon": float(epsilon), "seed": seed} | record)
    return cells.result


def published_best() -> dict[tuple[int, float], float]:
    """The least published Δ over M and both algorithms, {(D, ε): Δ}."""
    panels = balog2018()
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
    published = published_best() if same else {}
    groups: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for record in result["cells"]:
        groups.setdefault((record["dim"], record["epsilon"]), []).append(record)
    lines = []
    for (dim, epsilon), records in sorted(groups.items()):
        improved = [r["distances"]["improved"] for r in records]
        error = float(np.std(improved, ddof=1) / math.sqrt(len(improved))) if len(improved) > 1 else None
        others = {name: [r for r in records if name in r["distances"]] for name in MEASURES}
        others = {name: measured for name, measured in others.items() if measured}
        lines.append(
            {
                "dim": dim,
                "epsilon": epsilon,
                "num_seeds": len(records),
                "published": published.get((dim, epsilon)),
                "standard_error": error,
                "seconds": float(np.median([r["seconds"] for r in records])),
                "converged": sum(r["converged"] for r in records),
                "means": {name: _mean(r["distances"][name] for r in measured) for name, measured in others.items()},
                # Ratios to `improved` of the same releases.
                "ratios": {
                    name: _mean(r["distances"][name] / r["distances"]["improved"] for r in measured)
                    for name, measured in others.items()
                },
            }
        )
    return lines


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _number(values: dict[str, float], name: str, form: str) -> str:
    """A value as text, or a dash if it was not measured."""
    sign, _, form = form.rpartition(" ")
    return f"{sign} {values[name]:{form}}".strip() if name in values else "–"


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table of Markdown."""
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
