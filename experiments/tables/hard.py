"""Tables that are hard to release: few rows, and a dependence that pairs of columns do not show.

python -m experiments.tables.hard --data_dir=FOLDER                 # half an hour on two cores
python -m experiments.tables.hard --data_dir=FOLDER --num_tables=0  # few rows alone

*Few rows.* The first rows of a data set are released twice, with the target and without one. The error of single
columns is compared with that of *direct marginals*: somebody who knows that only single columns are asked for gives
each an equal share of the budget, counts the cells that are compared, and projects the noisy counts onto possible ones.
Gradient boosting is trained on both releases and tested on real rows.

*A dependence that pairs do not show.* Invented tables of 20 columns, in random order: eight of two categories, of which
one is the exclusive or of two others, five of five categories, and seven numbers. The columns depend on each other. The
*accuracy* is the share of synthetic rows in which the rule holds. A half would be chance.

Results go to <output_dir>/tables_hard.json. An interrupted run continues.
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
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.tables.classifiers import utility
from experiments.tables.releases import release
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema
from kme_jax.privacy.composition import Composition
from kme_jax.table import marginals
from kme_jax.table.histogram import project_to_simplex

EXCLUSIVE = "exclusive or"


@dataclasses.dataclass(frozen=True)
class HardConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with a folder for each data set, such as adult_pgm.")
    datasets: tuple[str, ...] = flag(
        ("adult_pgm", "credit"), "Data sets of which the first rows are released.", quick=("adult_pgm",)
    )
    num_rows: tuple[int, ...] = flag(
        (2000, 5000, 10_000), "Numbers of rows; of smaller data sets, all rows.", quick=(2000,)
    )
    num_seeds: int = flag(5, "Splits of each data set, and releases of each number of rows.", quick=1)
    num_tables: int = flag(10, "Invented tables with an exclusive or.", quick=1)
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    secure: bool = flag(True, "Secure noise; without it simulated noise, which is reproducible and not private.")
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.data_dir and self.datasets:
            raise InputError("--data_dir is missing: give the folder with a folder for each data set")
        if unknown := set(self.datasets) - set(datasets.NAMES):
            raise InputError(f"--datasets: no {min(unknown)!r}; there are {', '.join(datasets.NAMES)}")
        if self.num_rows and min(self.num_rows) < 2:
            raise InputError(f"--num_rows must be at least 2 each, got {self.num_rows}")
        at_least(self, 1, "num_seeds")
        at_least(self, 0, "num_tables")
        valid_budgets((self.epsilon,), self.delta)


def direct_error(schema: Schema, codes: np.ndarray, budget: PrivacyBudget, seed: int) -> float:
    """The mean total variation of noisy marginals of single columns that share the whole budget.

    A count changes by one in two cells if a row is replaced, and in one cell if a row is added or removed.
    """
    rng, (cells, sizes) = np.random.default_rng(seed), marginals.compared_cells(schema, codes)
    planned = Composition.planned(budget)
    moved = 2 if budget.relation == "replace_one" else 1
    noise = np.sqrt(moved * len(sizes) / (2 * (planned.rho or 0)))
    errors = []
    for of_column, size in zip(cells, sizes, strict=True):
        counts = np.bincount(of_column, minlength=size)
        noisy = project_to_simplex(counts + noise * rng.normal(size=size), len(codes))
        errors.append(np.abs(noisy - counts).sum() / 2 / len(codes))
    return float(np.mean(errors))


def exclusive_or(num_rows: int, seed: int) -> tuple[pa.Table, Schema, tuple[str, str, str]]:
    """An invented table, its schema, and the names of the two columns and of their exclusive or."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(num_rows, 3))

    def mixed(scale: float) -> np.ndarray:
        return scale * hidden @ rng.normal(size=3) + rng.normal(size=num_rows)

    halves = [mixed(0.4) > 0.2 * rng.normal() for _ in range(7)]
    halves.append(halves[0] ^ halves[1])
    columns = [(Categorical(f"half{i}", ("no", "yes")), np.where(half, "yes", "no")) for i, half in enumerate(halves)]
    for i in range(5):
        fifth = np.clip(np.floor(mixed(0.5) + 2.5), 0, 4).astype(int)
        columns.append((Categorical(f"fifth{i}", tuple("abcde")), np.asarray(list("abcde"))[fifth]))
    columns += [(Numeric(f"number{i}", -10, 10, step=0.01), np.clip(np.round(mixed(1), 2), -10, 10)) for i in range(7)]
    columns = [columns[i] for i in rng.permutation(len(columns))]
    table = pa.table({column.name: values for column, values in columns})
    return table, Schema(tuple(column for column, _ in columns)), ("half0", "half1", "half7")


def run(
    config: HardConfig,
    load: Callable[[str, str, int], datasets.Dataset] = datasets.load,
    measured: Callable[..., Measured] = in_fresh_process,
    exclusive_rows: int = 50_000,
) -> dict[str, Any]:
    """All tables. Each record is written to <output_dir>/tables_hard.json when it is done.

    Args:
      config: the configuration.
      load: (name, data_dir, seed) -> data set.
      measured: (function, arguments) -> the call's value, time and memory.
      exclusive_rows: number of rows of the invented tables.
    """
    stages, folder = Stages("tables_hard"), check_output_dir(config.output_dir)
    cells = Cells(
        folder / "tables_hard.json", "tables_hard", config.settings("data_dir"), ("table", "num_rows", "seed")
    )
    budget = PrivacyBudget(config.epsilon, config.delta)
    for seed in range(config.num_tables):
        if (EXCLUSIVE, exclusive_rows, seed) not in cells:
            with stages.stage(f"{EXCLUSIVE}, table {seed}"):
                table, schema, names = exclusive_or(exclusive_rows, seed)
                released = measured(release, table, schema, None, budget, seed, config.secure)
                first, second, both = (np.asarray(released.value[name]) == "yes" for name in names)
                accuracy = float(np.mean((first ^ second) == both))
            key = {"table": EXCLUSIVE, "num_rows": exclusive_rows, "seed": seed}
            cells.add(key | {"accuracy": accuracy, "seconds": released.seconds})
    for name in config.datasets:
        for seed in range(config.num_seeds):
            dataset = load(name, config.data_dir, seed)
            for num_rows in sorted({min(size, dataset.private.num_rows) for size in config.num_rows}):
                if (name, num_rows, seed) in cells:
                    continue
                with stages.stage(f"{name}, {num_rows} rows, seed {seed}"):
                    key = {"table": name, "num_rows": num_rows, "seed": seed}
                    cells.add(key | _few(config, dataset, num_rows, budget, seed, measured))
    return cells.result


def _few(
    config: HardConfig,
    dataset: datasets.Dataset,
    num_rows: int,
    budget: PrivacyBudget,
    seed: int,
    measured: Callable[..., Measured],
) -> dict[str, Any]:
    """Releases of the first rows of a data set, with the target and without."""
    schema, rows = dataset.schema, dataset.private.slice(0, num_rows)
    codes, test = schema.encode(rows), schema.encode(dataset.test)
    record: dict[str, Any] = {"direct": direct_error(schema, codes, budget, seed)}
    for title, target in (("target", dataset.target), ("no target", None)):
        released = measured(release, rows, schema, target, budget, seed, config.secure)
        synthetic = schema.encode(released.value)
        scores = utility(schema, dataset.target, synthetic, test, seed)["gradient_boosting"]
        distances = marginals.means(marginals.total_variation(schema, codes, synthetic))
        record[title] = {"1-way": distances["1"], "auc": scores["auc"], "seconds": released.seconds}
    return record


def _groups(result: dict[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["table"], cell["num_rows"]), []).append(cell)
    return groups


def few_markdown(result: dict[str, Any]) -> str:
    """Few rows as a table of Markdown: means over seeds."""
    lines = [
        "| table | N | seeds | 1-way error | that of direct marginals | ratio | AUC with the target | without |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, num_rows), cells in _groups(result).items():
        if name != EXCLUSIVE:
            error, direct, auc, without = (
                float(np.mean(values))
                for values in zip(
                    *((c["target"]["1-way"], c["direct"], c["target"]["auc"], c["no target"]["auc"]) for c in cells),
                    strict=True,
                )
            )
            numbers = f"{error:.4f} | {direct:.4f} | {error / direct:.2f} | {auc:.3f} | {without:.3f}"
            lines.append(f"| {name} | {num_rows} | {len(cells)} | {numbers} |")
    return "\n".join(lines)


def exclusive_markdown(result: dict[str, Any]) -> str:
    """The exclusive or as a table of Markdown: one line for each invented table, and their mean."""
    lines = ["| invented table | N | accuracy of the rule | seconds |", "|---|---|---|---|"]
    cells = [cell for cell in result["cells"] if cell["table"] == EXCLUSIVE]
    for cell in cells:
        lines.append(f"| {cell['seed']} | {cell['num_rows']} | {cell['accuracy']:.3f} | {cell['seconds']:.0f} |")
    if cells:
        accuracy, seconds = (float(np.mean([cell[field] for cell in cells])) for field in ("accuracy", "seconds"))
        lines.append(f"| mean | | {accuracy:.3f} | {seconds:.0f} |")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The result as two tables of Markdown."""
    return f"{few_markdown(result)}\n\n{exclusive_markdown(result)}"


def main(config: HardConfig) -> None:
    """Runs the experiment, and prints its tables."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'tables_hard.json'}")


if __name__ == "__main__":
    run_main(main, HardConfig)
