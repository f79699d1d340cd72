"""Runs all attacks, and tabulates them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from experiments.audit.config import AuditConfig
from experiments.audit.mechanisms import (
    noisy_functions,
    pairs,
    secure_gaussian,
    secure_laplace,
    simulated_gaussian,
    small_databases,
    unpaired_features,
)
from experiments.audit.releases import (
    release_of_frames,
    release_of_neighbours,
    release_of_persons,
    release_of_weighted_row,
    violations,
    whole_command,
)
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import PrivacyBudget
from kme_jax._numerics.precision import Progress
from kme_jax.privacy.budget import ADD_REMOVE, ADD_REMOVE_PERSON

_SMALL_EPSILON = 1.0
_ROWS_OF_A_PERSON = 5

Attack = Callable[[Progress], dict[str, Any]]
"""Attacks a mechanism: progress -> entries of a record."""


def attacks(config: AuditConfig) -> Iterator[tuple[str, str, float, bool, Attack]]:
    """All attacks: (mechanism, map, ε, whether the mechanism is broken on purpose, attack)."""
    of_maps, runs, releases, seed = pairs(config.seed), config.num_runs, config.num_releases, config.seed
    for epsilon in config.epsilons:
        budget = PrivacyBudget(epsilon, config.delta)
        for name, pair in of_maps.items():
            gaussian = partial(secure_gaussian, pair, budget, runs)
            yield "discrete Gaussian", name, epsilon, False, gaussian
            yield "discrete Laplace", name, epsilon, False, partial(secure_laplace, pair, epsilon, runs)
            yield "simulated Gaussian", name, epsilon, False, partial(simulated_gaussian, pair, budget, runs, seed=seed)
            yield "noise / √2 (broken)", name, epsilon, True, partial(gaussian, factor=math.sqrt(0.5))
        yield (
            "unpaired features (broken)",
            "fourier",
            epsilon,
            True,
            partial(unpaired_features, budget, runs, seed=seed),
        )
        function = partial(noisy_functions, of_maps["subspace"], budget, runs)
        yield "Gaussian process", "subspace", epsilon, False, function
        weak = partial(function, factor=math.sqrt(0.5))
        yield "Gaussian process, noise / √2 (broken)", "subspace", epsilon, True, weak
        frames = partial(release_of_frames, budget, releases)
        yield "release of a DataFrame", "table", epsilon, False, frames
        yield "release, codes by type (broken)", "table", epsilon, True, partial(frames, old=True)
        one_more = partial(release_of_neighbours, PrivacyBudget(epsilon, config.delta, ADD_REMOVE), releases)
        yield "release, one row more", "table", epsilon, False, one_more
        yield "release, one row more, noise / 10 (broken)", "table", epsilon, True, partial(one_more, broken=True)
        weighted = partial(release_of_weighted_row, PrivacyBudget(epsilon, config.delta, ADD_REMOVE), releases)
        yield "release, one weighted row more", "table", epsilon, False, weighted
        yield (
            "release, one weighted row more, no bound (broken)",
            "table",
            epsilon,
            True,
            partial(weighted, broken=True),
        )
        visits = PrivacyBudget(epsilon, config.delta, ADD_REMOVE_PERSON, _ROWS_OF_A_PERSON, "person")
        person = partial(release_of_persons, visits, releases)
        yield "release, one person more", "table", epsilon, False, person
        yield "release, one person more, no cut (broken)", "table", epsilon, True, partial(person, broken=True)
    drawn = partial(small_databases, _SMALL_EPSILON, runs // 4)  # a large ε would need more than e^ε runs
    yield "exponential mechanism", "subspace", _SMALL_EPSILON, False, drawn
    yield "exponential mechanism, 4 ε (broken)", "subspace", _SMALL_EPSILON, True, partial(drawn, factor=4.0)
    codes = partial(violations, config.num_cases, seed)
    yield "codes of cells", "containers", 0, False, codes
    yield "codes by type (broken)", "containers", 0, True, partial(codes, old=True)
    budget = PrivacyBudget(max(config.epsilons), config.delta)
    command = partial(whole_command, of_maps["subspace"], budget, releases)
    yield "command kme-jax release", "subspace", budget.epsilon, False, command


def run(config: AuditConfig) -> dict[str, Any]:
    """All attacks. Each record is written to <output_dir>/audit.json when it is done."""
    stages = Stages("audit")
    path = check_output_dir(config.output_dir) / "audit.json"
    cells = Cells(path, "audit", config.settings(), ("mechanism", "map", "epsilon"))
    for mechanism, name, epsilon, broken, attack in attacks(config):
        if (mechanism, name, epsilon) in cells:
            continue
        with stages.stage(f"{mechanism}, {name}, ε = {epsilon:g}") as progress:
            outcome = attack(progress)
        violated = outcome["lower_bound"] > outcome["claim"]
        cell = {"mechanism": mechanism, "map": name, "epsilon": float(epsilon)}
        cells.add(cell | {"should_be_violated": broken, "violated": violated} | outcome)
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The results as a table of Markdown."""
    lines = [
        "| mechanism | map | ε | of the diameter | claim | lower bound | runs | claim refuted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    symbols = {"mu": "μ", "epsilon": "ε"}
    for cell in result["cells"]:
        if cell["measure"] == "violations":
            lines.append(
                f"| {cell['mechanism']} | {cell['map']} | – | – | no other code changes | {cell['lower_bound']} do | "
                f"{cell['runs']} | {'yes' if cell['violated'] else 'no'} |"
            )
            continue
        symbol = symbols[cell["measure"]]
        lines.append(
            f"| {cell['mechanism']} | {cell['map']} | {cell['epsilon']:g} | {100 * cell['share_of_diameter']:.1f} % | "
            f"{symbol} = {cell['claim']:.4g} | {symbol} ≥ {cell['lower_bound']:.4g} | {cell['runs']} | "
            f"{'yes' if cell['violated'] else 'no'} |"
        )
    return "\n".join(lines)
