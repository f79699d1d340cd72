"""Runs the rivals, our releases and real rows, and judges them by the same classifiers."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from experiments.common.errors import InputError
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.rivals import sources, tasks
from experiments.rivals.config import SOURCES, RivalsConfig

# Fields that say which records there are. A record does not depend on them.
_SWEEP = ("datasets", "sources", "num_seeds")


def result_path(config: RivalsConfig, dataset: str) -> pathlib.Path:
    """Where the results of a data set are kept."""
    return pathlib.Path(config.output_dir) / f"rivals_{dataset}.json"


def run(config: RivalsConfig) -> dict[str, dict[str, Any]]:
    """All data sets, {name: result}. Each record is written to its JSON when it is done.

    Raises:
      InputError: if data are missing, δ is 1/N or more, or the budget is too small for a rival.
    """
    check_output_dir(config.output_dir)
    return {name: _run(config, name) for name in config.datasets}


def _run(config: RivalsConfig, name: str) -> dict[str, Any]:
    settings = config.settings("data_dir", *_SWEEP) | {"dataset": name}
    cells = Cells(result_path(config, name), "rivals", settings, ("source", "seed"))
    for seed in range(config.num_seeds):
        wanted = [source for source in config.sources if source != "release_table" or name == "adult"]
        missing = [source for source in wanted if (source, seed) not in cells]
        if not missing:
            continue
        task = tasks.load(name, config.data_dir, seed, config.validation)
        if config.delta * len(task.rows) >= 1:
            raise InputError(
                f"--delta={config.delta:g} protects nobody among the {len(task.rows)} rows of {name}: give one well "
                "below 1/N"
            )
        for source in missing:
            stages = Stages(f"{task.title}, {SOURCES[source]}, seed {seed}")
            rows, about = sources.make(config, task, source, seed, stages)
            with stages.stage("classifiers") as progress:
                scores = task.scores(
                    task.design(rows),
                    rows[:, -1].astype(int),
                    task.test,
                    task.truth,
                    seed,
                    names=config.classifiers,
                    num_processes=max(1, os.cpu_count() or 1),
                    progress=progress,
                )
            cell = {"source": source, "seed": seed} | about
            cells.add(cell | {"scores": scores, "seconds": dict(stages.seconds)})
    return cells.result
