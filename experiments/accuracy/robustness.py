"""Whether the improved release is as good on other data: a part of experiments.accuracy.

The data are mixtures of four seeds, the published one (0) and three others. There are settings with fewer rows, another
dimension, and kernels half and twice as wide. The gain is the Δ of the published algorithm 1 divided by the Δ of
`improved`, with the same defaults everywhere. The gain depends on the setting; the experiment shows that it hardly
depends on the seed.

Where rows are public, both Δ are means over draws, and every draw has other public rows and other noise. At ε = 0.01 a
release knows little more than the public rows, and Δ of 1000 public rows varies twofold between draws. Where only a
proposal is public, one release of each mixture is compared with the best of several M of algorithm 1, as in the table
for the published data. The expected Δ² of algorithm 1 is that of its projection plus Fσ².
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from experiments.accuracy import proposal as from_proposal
from experiments.accuracy import subset
from experiments.accuracy.config import AccuracyConfig
from experiments.common.mixture import mixture, proposal
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, mean_embedding, spectral_map
from kme_jax._numerics.precision import Progress
from kme_jax.nonprivate import Reference
from kme_jax.privacy import simulated_mechanism


@dataclasses.dataclass(frozen=True)
class RobustnessSettings:
    """What is compared.

    Attributes:
      data: N, D and the scale of γ of each setting.
      seeds: of the mixtures.
      num_points: M where rows are public.
      num_draws: of the public rows and of the noise.
      proposal_epsilon: ε where only a proposal is public.
      num_releases: of each mixture where only a proposal is public.
      sizes: M of algorithm 1 where only a proposal is public.
      release: settings of a release where only a proposal is public.
    """

    data: tuple[tuple[int, int, float], ...] = (
        *((100_000, 2, 1.0), (20_000, 3, 1.0)),
        *((20_000, 3, 4.0), (20_000, 3, 0.25)),
    )
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    num_points: int = 1000
    num_draws: int = 5
    proposal_epsilon: float = 0.1
    num_releases: int = 1
    sizes: tuple[int, ...] = (10, 31, 100, 316, 1000)
    release: from_proposal.ReleaseSettings = from_proposal.DEFAULT


DEFAULT = RobustnessSettings()


def run(config: AccuracyConfig, settings: RobustnessSettings = DEFAULT) -> dict[str, Any]:
    """All data sets. Each is written to <output_dir>/accuracy_robustness.json when it is done.

    Args:
      config: for its ε, δ and folder.
      settings: what is compared.
    """
    stages = Stages("accuracy, robustness")
    path = check_output_dir(config.output_dir) / "accuracy_robustness.json"
    recorded = {"epsilons": config.epsilons, "delta": config.delta, "draws": settings.num_draws}
    recorded |= {"num_points": settings.num_points, "proposal_epsilon": settings.proposal_epsilon}
    recorded |= {"releases": settings.num_releases, "sizes": settings.sizes}
    cells = Cells(path, "accuracy_robustness", recorded, ("num_rows", "dim", "gamma_scale", "seed"))
    for num_rows, dim, gamma_scale in settings.data:
        for seed in settings.seeds:
            if (num_rows, dim, gamma_scale, seed) in cells:
                continue
            rows, kernel = mixture(num_rows, dim, seed=seed), Gaussian(gamma_scale * 1e-4 / dim)
            cell = {"num_rows": num_rows, "dim": dim, "gamma_scale": gamma_scale, "seed": seed}
            with stages.stage(f"N = {num_rows}, D = {dim}, γ × {gamma_scale:g}, seed {seed}") as progress:
                reference = Reference.from_rows(kernel, rows)
                cell["subset"] = _subset(reference, config, settings, progress)
                cell["proposal"] = _proposal(reference, config.delta, seed, settings, progress)
            cells.add(cell)
    return cells.result


def _subset(
    reference: Reference, config: AccuracyConfig, settings: RobustnessSettings, progress: Progress
) -> list[dict[str, Any]]:
    """Means over draws of the public rows and of the noise. The public rows of the first draw are the first rows."""
    by_epsilon: dict[float, dict[str, list[float]]] = {
        epsilon: {"uniform": [], "published": [], "improved": []} for epsilon in config.epsilons
    }
    for draw in range(settings.num_draws):
        order = np.random.default_rng(draw).permutation(len(reference.rows)) if draw else slice(None)
        points = reference.rows[order][: settings.num_points]
        embedding = mean_embedding(SubspaceMap.from_points(reference.kernel, points), reference.rows)
        cross = reference.kernel_mean(points)
        uniform = reference.distance(points, np.full(len(points), 1 / len(points)), cross)
        for epsilon, distances in by_epsilon.items():
            measured = subset.measure(
                reference,
                embedding,
                cross,
                epsilon,
                config.delta,
                range(draw, draw + 1),
                steps=("published", "improved"),
            )
            distances["uniform"].append(uniform)
            for name, values in measured["distances"].items():
                distances[name].extend(values)
        progress(draw + 1, settings.num_draws + settings.num_releases)
    means = {
        e: {name: float(np.mean(values)) for name, values in distances.items()} for e, distances in by_epsilon.items()
    }
    return [{"epsilon": epsilon, **mean, "distances": by_epsilon[epsilon]} for epsilon, mean in means.items()]


def _algorithm1(reference: Reference, budget: PrivacyBudget, sizes: tuple[int, ...]) -> dict[str, float]:
    """Root mean square Δ of the published algorithm 1 with M points from the proposal, {M: Δ}."""
    dim = reference.rows.shape[1]
    subspace = SubspaceMap.from_points(reference.kernel, proposal(10_000, dim)[: max(sizes)])
    captured = np.cumsum(np.square(mean_embedding(subspace, reference.rows).coordinates))
    mechanism = simulated_mechanism(
        subspace, len(reference.rows), budget, calibration="classical", diameter="published"
    )
    ranks = np.asarray([subspace.rank_at(size) for size in sizes])
    squared = np.maximum(reference.squared_norm - captured[ranks - 1], 0) + ranks * mechanism.variance
    return dict(zip(map(str, sizes), np.sqrt(squared).tolist(), strict=True))


def _proposal(
    reference: Reference, delta: float, seed: int, settings: RobustnessSettings, progress: Progress
) -> dict[str, Any]:
    """Releases from the proposal alone, and the best of the published algorithm 1."""
    kernel, rows, dim = reference.kernel, reference.rows, reference.rows.shape[1]
    budget, records = PrivacyBudget(settings.proposal_epsilon, delta), []
    for release in range(settings.num_releases):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), release), 3)
        features = spectral_map(keys[2], kernel, from_proposal.prior(dim), settings.release.num_features)
        embedding = mean_embedding(features, rows)
        _, record = from_proposal.release(reference, embedding, budget, keys[:2], lambda *_: None, settings.release)
        records.append(record)
        progress(settings.num_draws + release + 1, settings.num_draws + settings.num_releases)
    improved = float(np.mean([record["distances"]["improved"] for record in records]))
    algorithm1 = _algorithm1(reference, budget, settings.sizes)
    return {"improved": improved, "published": min(algorithm1.values()), "algorithm1": algorithm1, "releases": records}


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Gains of all seeds for every setting, every ε, and both kinds of public knowledge."""
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
    """The summary as a table of Markdown. Its spread is the largest relative distance of a gain from their mean."""
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
