"""Releases with constraints between columns: is every row valid, and does it cost accuracy?

python -m experiments.tables.constrained --data_dir=FOLDER     # 20 minutes on two cores
python -m experiments.tables.constrained --datasets=trips,households,firms --num_seeds=1

Each table is released twice, with the constraints of its schema and without them. Columns are the same. A million rows
are drawn from the release with constraints, and every row is checked. The other release tells how many rows break a
constraint if the schema says nothing of it.

Results go to <output_dir>/tables_constrained.json. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
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
from experiments.tables.invented import DOCUMENTED, INVENTED, Invented
from experiments.tables.releases import protective_delta
from kme_jax import PrivacyBudget, Schema, release_table
from kme_jax.table import marginals

_MOST_AT_ONCE = 100_000  # rows that are drawn and checked at once
_NAMES = (*INVENTED, *DOCUMENTED)


@dataclasses.dataclass(frozen=True)
class ConstrainedConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", f"Folder with a folder for each data set, for {' and '.join(DOCUMENTED)}.")
    datasets: tuple[str, ...] = flag(_NAMES, f"What to release, of {', '.join(_NAMES)}.", quick=("trips",))
    num_rows: int = flag(20_000, "Rows of each invented table.", quick=2000)
    num_seeds: int = flag(3, "Releases of each table.", quick=1)
    num_checked: int = flag(1_000_000, "Rows that are drawn and checked, of each release.", quick=5000)
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    secure: bool = flag(True, "Secure noise; without it simulated noise, which is reproducible and not private.")
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        unknown = set(self.datasets) - set(_NAMES)
        if unknown:
            raise InputError(f"--datasets: no {min(unknown)!r}; there are {', '.join(_NAMES)}")
        if set(self.datasets) & set(DOCUMENTED) and not self.data_dir:
            raise InputError(f"--data_dir is missing: give the folder with folders for {' and '.join(DOCUMENTED)}")
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_seeds", "num_checked")
        valid_budgets((self.epsilon,), self.delta)


def table_of(name: str, config: ConstrainedConfig, seed: int, load: Callable[..., datasets.Dataset]) -> Invented:
    """The private rows, and their schema with constraints."""
    if name in INVENTED:
        return INVENTED[name](config.num_rows, seed)
    dataset = load(name, config.data_dir, seed)
    return Invented(dataset.private, dataclasses.replace(dataset.schema, constraints=DOCUMENTED[name]))


def run(config: ConstrainedConfig, load: Callable[..., datasets.Dataset] = datasets.load) -> dict[str, Any]:
    """All releases. Each record is written to <output_dir>/tables_constrained.json when it is done.

    Args:
      config: the configuration.
      load: (name, data_dir, seed) -> data set.
    """
    stages, folder = Stages("tables_constrained"), check_output_dir(config.output_dir)
    path = folder / "tables_constrained.json"
    cells = Cells(path, "tables_constrained", config.settings("data_dir", "datasets"), ("dataset", "seed"))
    for name in config.datasets:
        with stages.stage(name) as progress:
            for seed in range(config.num_seeds):
                if (name, seed) not in cells:
                    cells.add({"dataset": name, "seed": seed} | _compared(name, config, seed, load))
                progress(seed + 1, config.num_seeds)
    return cells.result


def _compared(name: str, config: ConstrainedConfig, seed: int, load: Callable[..., datasets.Dataset]) -> dict[str, Any]:
    """Errors of a release with constraints and of one without them."""
    rows, schema = table_of(name, config, seed, load)
    private = schema.encode(rows)
    budget = PrivacyBudget(config.epsilon, protective_delta(config.delta, len(private)))
    facts: dict[str, Any] = {"num_rows": len(private), "num_columns": len(schema.columns)}
    facts |= {"num_measured": len(schema.measured.columns), "private_broken": int(_broken(schema, rows).sum())}
    without = dataclasses.replace(schema, constraints=())
    for label, of_release in (("with", schema), ("without", without)):
        start = time.perf_counter()
        released = release_table(rows, of_release, budget=budget, seed=seed, secure=config.secure)
        seconds = time.perf_counter() - start
        codes = schema.encode(released.table)
        errors = marginals.means(marginals.total_variation(schema, private, codes))
        facts[label] = {"seconds": seconds, "broken": int(_broken(schema, released.table).sum()), "errors": errors}
        if of_release is schema:
            checked, broken, part = 0, 0, 0
            while checked < config.num_checked:
                drawn = released.sample(min(_MOST_AT_ONCE, config.num_checked - checked), seed=1000 + part)
                checked, broken, part = checked + drawn.num_rows, broken + int(_broken(schema, drawn).sum()), part + 1
            facts |= {"num_checked": checked, "broken": broken}
    return facts


def _broken(schema: Schema, rows: pa.Table) -> np.ndarray:
    """Whether each row breaks a constraint, [n]."""
    return schema.recoding.broken(schema.encode(rows))


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: a line for each data set. Errors are means over releases."""
    lines = [
        "| table | columns: released, measured | private rows that break a constraint | of 1 000 000 released rows | "
        "without constraints | 1-way: with, without | 2-way: with, without | 3-way: with, without |",
        "|---" * 8 + "|",
    ]
    for name in dict.fromkeys(cell["dataset"] for cell in result["cells"]):
        cells = [cell for cell in result["cells"] if cell["dataset"] == name]
        first, num_rows = cells[0], cells[0]["num_rows"]
        broken = f"{max(cell['broken'] / cell['num_checked'] for cell in cells) * 1e6:.0f}"
        private = f"{np.mean([cell['private_broken'] for cell in cells]) / num_rows:.2%}"
        otherwise = f"{np.mean([cell['without']['broken'] for cell in cells]) / num_rows:.1%}"
        errors = [
            ", ".join(f"{np.mean([cell[label]['errors'][k] for cell in cells]):.4f}" for label in ("with", "without"))
            for k in first["with"]["errors"]
        ]
        sizes = f"{first['num_columns']}, {first['num_measured']}"
        lines.append(f"| {name} | {sizes} | {private} | {broken} | {otherwise} | {' | '.join(errors)} |")
    return "\n".join(lines)


def main(config: ConstrainedConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'tables_constrained.json'}")


if __name__ == "__main__":
    run_main(main, ConstrainedConfig)
