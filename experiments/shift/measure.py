"""The distances Δ of releases from the private rows, each measured once for every strength and draw.

A draw has its own public rows and noise. Its random numbers are the same for all strengths, so that strengths are
compared with each other. With public rows there are four distances:

* ``improved``: of ``kme_jax.improved`` with the public rows,
* ``published``: of algorithm 1 as published, with the same rows,
* ``uniform``: of the public rows with equal weights, which has no privacy cost,
* ``limit``: of the best weights, which would need the private rows without noise. No weights on these rows are closer.

With a proposal there is ``improved`` alone.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from experiments.common.mixture import mixture
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.shift.config import PARTS, ShiftConfig
from experiments.shift.populations import Clusters
from kme_jax import (
    Gaussian,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    improved,
    mean_embedding,
    perturb,
    spectral_map,
)
from kme_jax.nonprivate import Reference

PROPOSAL_SCALE = 500.0  # as published
Distances = dict[str, float | list[float]]


def public_rows(config: ShiftConfig, scenario: str, dim: int, strength: float, draw: int) -> np.ndarray:
    """Public rows of a scenario, [M, D]."""
    population = Clusters.of_figures(dim)
    rng = np.random.default_rng((draw, dim, PARTS.index(scenario)))
    if scenario == "biased":
        return population.biased(strength).rows(config.num_points, rng)
    kernel_length = 1 / math.sqrt(2 * kernel_of(dim).gamma)
    return population.moved(strength * kernel_length, rng).rows(config.num_points, rng)


def kernel_of(dim: int) -> Gaussian:
    """The kernel of the figures. Its length is 100 for D = 2, and 158 for D = 5."""
    return Gaussian(1e-4 / dim)


def with_rows(reference: Reference, points: np.ndarray, key: jax.Array, config: ShiftConfig) -> Distances:
    """Distances with public rows, for methods with noise one for each ε.

    Args:
      reference: the private rows.
      points: the public rows, [M, D].
      key: of the noise.
      config: the configuration.
    """
    embedding = mean_embedding(SubspaceMap.from_points(reference.kernel, points), reference.rows)
    weights = [np.full(len(points), 1 / len(points))]
    for own, epsilon in zip(jax.random.split(key, len(config.epsilons)), config.epsilons, strict=True):
        keys, budget = jax.random.split(own), PrivacyBudget(epsilon, config.delta)
        weights.append(adaptive_weights(perturb(keys[0], embedding, budget))[0].weights)
        noisy = perturb(keys[1], embedding, budget, calibration="classical", diameter="published")
        weights.append(closed_form_weights(noisy).weights)
    uniform, *others = reference.distances(points, np.stack(weights)).tolist()
    unexplained = reference.squared_norm - float(np.sum(np.square(embedding.coordinates)))
    return {
        "uniform": uniform,
        "limit": float(np.sqrt(max(unexplained, 0.0))),
        "improved": others[::2],
        "published": others[1::2],
    }


def with_proposal(reference: Reference, key: jax.Array, config: ShiftConfig) -> Distances:
    """Distances of ``improved`` with the published proposal, one for each ε."""
    proposal, distances = NormalProposal.create(np.zeros(reference.rows.shape[1]), PROPOSAL_SCALE), []
    is_lattice = isinstance(spectral_map(key, reference.kernel, proposal, config.num_features), LatticeMap)
    number = config.num_features if is_lattice else config.num_random_features
    for own, epsilon in zip(jax.random.split(key, len(config.epsilons)), config.epsilons, strict=True):
        budget = PrivacyBudget(epsilon, config.delta)
        sample = improved(own, reference.rows, reference.kernel, proposal, budget=budget, num_features=number)
        distances.append(reference.distance(sample.points, sample.weights))
    return {"improved": distances}


def run(config: ShiftConfig) -> dict[str, Any]:
    """All parts. Each record is written to <output_dir>/shift.json when it is done."""
    stages, folder = Stages("shift"), check_output_dir(config.output_dir)
    names = ("part", "dim", "strength", "draw")
    cells = Cells(folder / "shift.json", "shift", config.settings("parts"), names)
    for dim in config.dims:
        todo = [key for key in _keys(config, dim) if key not in cells]
        if not todo:
            continue
        reference = Reference.from_rows(kernel_of(dim), mixture(config.num_rows, dim))
        for part in dict.fromkeys(key[0] for key in todo):
            own = [key for key in todo if key[0] == part]
            with stages.stage(f"{part}, D = {dim}") as progress:
                for i, key in enumerate(own):
                    cells.add(
                        dict(zip(names, key, strict=True)) | {"distances": measured_distances(config, reference, *key)}
                    )
                    progress(i + 1, len(own))
    return cells.result


def _keys(config: ShiftConfig, dim: int) -> list[tuple[str, int, float, int]]:
    """What is measured for D columns: part, D, strength, draw."""
    keys = []
    for part in config.parts:
        if part == "proposal":
            keys += [(part, dim, 0.0, draw) for draw in range(config.num_proposals)]
        else:
            strengths = config.strengths(part)
            keys += [(part, dim, strength, draw) for draw in range(config.num_draws) for strength in strengths]
    return keys


def measured_distances(
    config: ShiftConfig, reference: Reference, part: str, dim: int, strength: float, draw: int
) -> dict[str, Any]:
    key = jax.random.key(draw)
    for value in (dim, PARTS.index(part)):
        key = jax.random.fold_in(key, value)
    if part == "proposal":
        return with_proposal(reference, key, config)
    return with_rows(reference, public_rows(config, part, dim, strength, draw), key, config)
