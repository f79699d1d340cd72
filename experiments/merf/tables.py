"""DP-MERF on eight tables: table 1 of Harder et al. 2021, with the authors' settings, our generator and release_table.

python -m experiments.merf.tables --data_dir=FOLDER                              # eight tables, five seeds
python -m experiments.merf.tables --data_dir=FOLDER --datasets=credit --num_seeds=1
python -m experiments.merf.tables --data_dir=FOLDER --datasets=adult --sources=real,generator --classifiers=lda

For each data set and seed, every source gives rows for the same private rows: real rows, DP-MERF with the authors'
settings (not private: each record says why), the same made private, our generator, and release_table. Twelve
classifiers learn from them and are tested on the same real test rows. A source gives at most --max_rows rows. Scores
are of labels, as in the paper, and of soft predictions. Each record is written when it is done; the same command
continues a run that was interrupted.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.common.dataset_rows import Dataset
from experiments.common.errors import InputError
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir, usable_cores
from experiments.merf import plot, table_classifiers, table_files, table_report, table_sources
from experiments.merf.table_files import Layout

_NAMES = ("source", "seed")
# Fields that say which records there are. A record does not depend on them.
_SWEEP = ("datasets", "sources", "num_seeds")


@dataclasses.dataclass(frozen=True)
class MerfTablesConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with a folder for each data set, such as cervical/.")
    datasets: tuple[str, ...] = flag(
        table_files.NAMES, f"What to release, of {', '.join(table_files.NAMES)}.", quick=("cervical",)
    )
    sources: tuple[str, ...] = flag(
        tuple(table_report.TITLES), f"Where rows come from, of {', '.join(table_report.TITLES)}.",
        quick=("real", "release_table"),
    )  # fmt: skip
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(0.0, "δ; 0 for 1e-5, or for the largest power of ten below 1/N if that is less.")
    num_seeds: int = flag(5, "Seeds: splits, noise, generators and classifiers.", quick=1)
    classifiers: tuple[str, ...] = flag(
        table_classifiers.NAMES, "Which of the twelve classifiers.", quick=("gaussian_nb", "lda")
    )
    max_rows: int = flag(
        10_000, "Most rows that classifiers learn from, the same for every source. Releases use all private rows."
    )
    secure: bool = flag(True, "Secure noise for release_table. Noise of generators is simulated.")
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.data_dir:
            raise InputError("--data_dir is missing: give the folder with a folder for each data set")
        one_or_more_of(self, "datasets", table_files.NAMES)
        one_or_more_of(self, "sources", tuple(table_report.TITLES))
        one_or_more_of(self, "classifiers", table_classifiers.NAMES)
        at_least(self, 1, "num_seeds", "max_rows")
        valid_budgets((self.epsilon,), self.delta or 1e-5)


@dataclasses.dataclass(frozen=True)
class Tools:
    """The functions that a run calls.

    Attributes:
      load: (name, data_dir, seed) -> data set.
      measured: (function, arguments) -> the call's value, time and memory.
    """

    load: Callable[[str, str, int], Dataset] = table_files.load
    measured: Callable[..., Measured] = in_fresh_process


DEFAULT_TOOLS = Tools()


def result_path(config: MerfTablesConfig, dataset: str) -> pathlib.Path:
    """Where the results of a data set are kept."""
    return pathlib.Path(config.output_dir) / f"merf_tables_{dataset}.json"


def run(config: MerfTablesConfig, tools: Tools = DEFAULT_TOOLS) -> dict[str, dict[str, Any]]:
    """All data sets, {name: result}. Each record is written to its JSON when it is done.

    All data sets have their first seed before any has its second.

    Args:
      config: the configuration.
      tools: the functions that are called.

    Raises:
      InputError: data are missing or spoilt, or δ is 1/N or more.
    """
    check_output_dir(config.output_dir)
    for seed in range(config.num_seeds):
        for name in config.datasets:
            cells = _cells(config, name)
            missing = [source for source in config.sources if (source, seed) not in cells]
            if missing:
                _add(config, tools, cells, name, seed, missing)
    return {name: _cells(config, name).result for name in config.datasets}


def _cells(config: MerfTablesConfig, name: str) -> Cells:
    """The records of a data set so far. Its seconds count from here."""
    settings = config.settings("data_dir", *_SWEEP) | {"dataset": name}
    return Cells(result_path(config, name), "merf_tables", settings, _NAMES)


def _add(config: MerfTablesConfig, tools: Tools, cells: Cells, name: str, seed: int, sources: list[str]) -> None:
    """The records of a data set and a seed, for some sources."""
    dataset = tools.load(name, config.data_dir, seed)
    layout, test = Layout(dataset.schema, dataset.target), dataset.schema.encode(dataset.test)
    delta = table_sources.delta_of(config.delta, name, dataset.private.num_rows)
    test_rows = layout.rows(test)
    for source in sources:
        stages = Stages(f"{name}, {source}, seed {seed}")
        with stages.stage("release"):
            task = table_sources.Task(source, dataset, config.epsilon, delta, seed, config.max_rows, config.secure)
            # Real rows cost nothing that is worth a process of its own.
            measured = _here if source == "real" else tools.measured
            released = measured(table_sources.rows_of, task)
        codes, facts = released.value
        if "failed" in facts:
            cells.add({"source": source, "seed": seed} | facts)
            continue
        rows = layout.rows(codes)
        with stages.stage(f"classifiers, {len(rows)} rows") as progress:
            scores = table_classifiers.scores(
                layout.design(rows),
                layout.labels(rows),
                layout.design(test_rows),
                layout.labels(test_rows),
                seed,
                names=config.classifiers,
                num_processes=usable_cores(),
                progress=progress,
            )
        sizes = {"private": dataset.private.num_rows, "learnt from": len(rows), "test": len(test_rows)}
        counts = np.bincount(layout.labels(rows), minlength=layout.num_labels).tolist()
        cell = {"source": source, "seed": seed, "epsilon": None if source == "real" else config.epsilon}
        cell |= {"delta": None if source == "real" else delta, "num_rows": sizes, "labels": counts}
        if source != "real":
            cell |= {"seconds": released.seconds, "peak_bytes": released.peak_bytes}
        cells.add(cell | facts | {"scores": scores, "classifier_seconds": sum(s["seconds"] for s in scores.values())})


def _here(function: Callable[..., Any], *arguments: Any) -> Measured:
    """A call in this process, whose time and memory are not measured."""
    return Measured(function(*arguments), 0.0, 0)


def main(config: MerfTablesConfig) -> None:
    """Runs the experiment, prints its table and draws it."""
    results = run(config)
    print(table_report.markdown(list(results.values())))
    paths = [result_path(config, name) for name in results]
    picture = plot.draw_tables(paths, pathlib.Path(config.output_dir) / "merf_tables.png")
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    run_main(main, MerfTablesConfig)
