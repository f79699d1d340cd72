"""What ``kme-jax plan`` says before a release, and what releases have: is it true?

python -m experiments.tables.planned --data_dir=FOLDER     # 15 minutes on two cores
python -m experiments.tables.planned --datasets=trips,firms --num_seeds=1

The plan reads no rows. For each column it states the noise of a count, and bounds that errors rarely exceed. Here
tables are released, and compared with it: the noise of the counts, the total variation of each column, and the error of
the mean of each number. Columns are those that are measured.

Results go to <output_dir>/tables_planned.json. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.common import datasets
from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.tables.invented import INVENTED
from kme_jax import PrivacyBudget, Schema, release_table
from kme_jax.table.columns import numeric_values
from kme_jax.table.expected import expected_errors
from kme_jax.table.marginals import compared_cells
from kme_jax.table.measure import NAMES
from kme_jax.table.planning import Singles

_REAL = ("adult_pgm", "cervical")
_NAMES = (*INVENTED, *_REAL)


@dataclasses.dataclass(frozen=True)
class PlannedConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", f"Folder with a folder for each data set, for {' and '.join(_REAL)}.")
    datasets: tuple[str, ...] = flag(_NAMES, f"What to release, of {', '.join(_NAMES)}.", quick=("firms",))
    num_rows: int = flag(20_000, "Rows of each invented table.", quick=2000)
    num_seeds: int = flag(5, "Releases of each table, and invented tables.", quick=1)
    epsilons: tuple[float, ...] = flag((0.3, 3.0), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    secure: bool = flag(True, "Secure noise; without it simulated noise, which is reproducible and not private.")
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        unknown = set(self.datasets) - set(_NAMES)
        if unknown:
            raise InputError(f"--datasets: no {min(unknown)!r}; there are {', '.join(_NAMES)}")
        if set(self.datasets) & set(_REAL) and not self.data_dir:
            raise InputError(f"--data_dir is missing: give the folder with folders for {' and '.join(_REAL)}")
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_seeds")
        valid_budgets(self.epsilons, self.delta)


def _table_of(
    name: str, config: PlannedConfig, seed: int, load: Callable[..., datasets.Dataset]
) -> tuple[pa.Table, Schema, str | None]:
    """The private rows, their schema, and the target."""
    if name in INVENTED:
        return *INVENTED[name](config.num_rows, seed), None
    dataset = load(name, config.data_dir, seed)
    return dataset.private, dataset.schema, dataset.target


def _compared(
    rows: pa.Table, schema: Schema, target: str | None, config: PlannedConfig, epsilon: float, seed: int
) -> list[dict[str, Any]]:
    """For each measured column, what was planned and what a release has."""
    budget, measured = PrivacyBudget(epsilon, config.delta), schema.measured
    planned = expected_errors(schema, rows.num_rows, budget, target=target)
    released = release_table(rows, schema, budget=budget, target=target, seed=seed, secure=config.secure)
    layout = released.measurement.layout
    singles = Singles.read(layout, released.measurement.measured[NAMES[0]], denoised=False)
    ours, theirs = (schema.measured_codes(schema.encode(table)) for table in (rows, released.table))
    cells = compared_cells(measured, np.concatenate([ours, theirs]))[0]
    columns = []
    for a, j in enumerate(layout.columns):
        column, expected, binning = measured.columns[j], planned.columns[a], layout.binnings[j]
        exact = np.bincount(binning.cells(ours[:, j]), minlength=binning.num_cells)
        shares = [
            np.bincount(part, minlength=cells[j].max() + 1) / len(part)
            for part in (cells[j][: len(ours)], cells[j][len(ours) :])
        ]
        entry = {
            "name": column.name,
            "num_cells": binning.num_cells,
            "noise": float(np.sqrt(np.mean(np.square(singles.sums[a] - exact)))),
            "noise_planned": expected.noise,
            "total_variation": float(np.abs(shares[0] - shares[1]).sum() / 2),
            "total_variation_bound": expected.total_variation_bound,
        }
        if expected.mean_bound is not None:
            means = [np.nanmean(numeric_values(column, codes[:, j])) for codes in (ours, theirs)]
            entry |= {"mean": float(abs(means[0] - means[1])), "mean_bound": expected.mean_bound}
        columns.append(entry)
    return columns


def run(config: PlannedConfig, load: Callable[..., datasets.Dataset] = datasets.load) -> dict[str, Any]:
    """All releases. Each record is written to <output_dir>/tables_planned.json when it is done.

    Args:
      config: the configuration.
      load: (name, data_dir, seed) -> data set.
    """
    stages, folder = Stages("tables_planned"), check_output_dir(config.output_dir)
    path = folder / "tables_planned.json"
    settings = config.settings("data_dir", "datasets", "epsilons", "num_seeds")
    cells = Cells(path, "tables_planned", settings, ("dataset", "epsilon", "seed"))
    for name in config.datasets:
        with stages.stage(name) as progress:
            for done, (epsilon, seed) in enumerate(
                (epsilon, seed) for epsilon in config.epsilons for seed in range(config.num_seeds)
            ):
                if (name, epsilon, seed) not in cells:
                    compared = _compared(*_table_of(name, config, seed, load), config, epsilon, seed)
                    cells.add({"dataset": name, "epsilon": epsilon, "seed": seed, "columns": compared})
                progress(done + 1, len(config.epsilons) * config.num_seeds)
    return cells.result


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """For each table and ε: the ratio of noise, over all columns, and the shares of columns within their bounds."""
    rows = []
    for name, epsilon in dict.fromkeys((cell["dataset"], cell["epsilon"]) for cell in result["cells"]):
        columns = [
            column
            for cell in result["cells"]
            if (cell["dataset"], cell["epsilon"]) == (name, epsilon)
            for column in cell["columns"]
        ]
        # Of a column with many cells, the noise that is seen is close to its standard deviation.
        squares = [(c["num_cells"] * (c["noise"] / c["noise_planned"]) ** 2, c["num_cells"]) for c in columns]
        means = [c["mean"] <= c["mean_bound"] for c in columns if "mean" in c]
        rows.append(
            {
                "dataset": name,
                "epsilon": epsilon,
                "columns": len(columns),
                "noise_ratio": float(np.sqrt(sum(s for s, _ in squares) / sum(n for _, n in squares))),
                "within": float(np.mean([c["total_variation"] <= c["total_variation_bound"] for c in columns])),
                "means_within": float(np.mean(means)) if means else None,
            }
        )
    return rows


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table of Markdown."""
    lines = [
        "| table | ε | noise, of the plan | total variation within the bound | means within the bound |",
        "|---|---|---|---|---|",
    ]
    for row in summary(result):
        means = "" if row["means_within"] is None else f"{row['means_within']:.0%}"
        lines.append(
            f"| {row['dataset']} | {row['epsilon']:g} | × {row['noise_ratio']:.3f} | {row['within']:.0%} | {means} |"
        )
    return "\n".join(lines)


def main(config: PlannedConfig) -> None:
    """Runs the experiment and prints the table."""
    print(markdown(run(config)))
    print(f"wrote {pathlib.Path(config.output_dir) / 'tables_planned.json'}")


if __name__ == "__main__":
    run_main(main, PlannedConfig)
