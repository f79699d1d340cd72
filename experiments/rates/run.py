"""Measures all errors. An interrupted run continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.rates.config import RatesConfig
from experiments.rates.measure import MEASURES, Errors, Setup, population_of

_DIGITS = 5
_PROPOSAL_COLUMNS = 2  # in five columns, four releases take longer than all other parts of five columns together


def num_repeats(config: RatesConfig, part: str, dim: int) -> int:
    """Repeats of a part for D columns."""
    if part == "proposal":
        return config.num_proposals if dim <= _PROPOSAL_COLUMNS else 0
    return config.num_searches if part.endswith("algorithm2") else config.num_seeds


def run(config: RatesConfig, measures: Mapping[str, Callable[[Setup], Errors]] = MEASURES) -> dict[str, Any]:
    """All parts. Each record is written to <output_dir>/rates.json when it is done.

    Args:
      config: the configuration.
      measures: {part: see ``experiments.rates.measure``}.
    """
    stages, folder = Stages("rates"), check_output_dir(config.output_dir)
    cells = Cells(folder / "rates.json", "rates", config.settings("parts"), ("part", "dim", "seed"))
    for part in config.parts:
        for dim in config.dims:
            population, repeats = population_of(part, dim), num_repeats(config, part, dim)
            if all((part, dim, seed) in cells for seed in range(repeats)):
                continue
            with stages.stage(f"{part}, D = {dim}") as progress:
                for seed in range(repeats):
                    if (part, dim, seed) not in cells:
                        errors = measures[part](Setup(config, population, part, seed))
                        cells.add({"part": part, "dim": dim, "seed": seed, "errors": _rounded(errors)})
                    progress(seed + 1, repeats)
    return cells.result


def _rounded(errors: Errors) -> Errors:
    return {
        claim: {curve: [float(f"{value:.{_DIGITS}g}") for value in values] for curve, values in curves.items()}
        for claim, curves in errors.items()
    }
