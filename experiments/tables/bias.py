"""Many releases of the same rows: do the means and deviations of their numbers miss on one side?

python -m experiments.tables.bias --data_dir=FOLDER                              # an hour on two cores
python -m experiments.tables.bias --data_dir=FOLDER --datasets=adult --num_releases=5

One release shows the error of a mean. Many releases show how much of it is *bias*: the part that would remain if one
averaged over releases. The unit is the standard deviation of a direct noisy mean, see experiments.tables.numbers. A
column *holds* if its bias is at most a quarter of the unit, or at most 0.5 % of the private standard deviation. It is
*open* if the bias is larger, by less than two standard errors: more releases would have to tell. The rows are those of
seed 0, and each release has noise and public choices of its own.

Results go to <output_dir>/tables_bias.json. An interrupted run continues.
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
from experiments.tables.numbers import PRECISE, number_errors, percent
from experiments.tables.releases import protective_delta, release
from kme_jax import PrivacyBudget

_UNITS, _DEVIATIONS = 0.25, 0.005  # the bias of a column that holds: in units, or in private standard deviations
_CERTAIN = 2.0  # standard errors


@dataclasses.dataclass(frozen=True)
class BiasConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with a folder for each data set, such as adult_pgm.")
    datasets: tuple[str, ...] = flag(
        ("adult", "adult_pgm", "covtype", "credit"),
        f"What to release, of {', '.join(datasets.NAMES)}.",
        quick=("adult",),
    )
    num_releases: int = flag(20, "Releases of each data set.", quick=2)
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    secure: bool = flag(True, "Secure noise; without it simulated noise, which is reproducible and not private.")
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.data_dir:
            raise InputError("--data_dir is missing: give the folder with a folder for each data set")
        if unknown := set(self.datasets) - set(datasets.NAMES):
            raise InputError(f"--datasets: no {min(unknown)!r}; there are {', '.join(datasets.NAMES)}")
        at_least(self, 2, "num_releases")
        valid_budgets((self.epsilon,), self.delta)


def run(
    config: BiasConfig,
    load: Callable[[str, str], datasets.Dataset] = datasets.load,
    make: Callable[..., pa.Table] = release,
) -> dict[str, Any]:
    """All releases. Each record is written to <output_dir>/tables_bias.json when it is done.

    Args:
      config: the configuration.
      load: (name, data_dir) -> data set.
      make: see :func:`experiments.tables.releases.release`.
    """
    stages, folder = Stages("tables_bias"), check_output_dir(config.output_dir)
    cells = Cells(
        folder / "tables_bias.json", "tables_bias", config.settings("data_dir", "datasets"), ("dataset", "seed")
    )
    for name in config.datasets:
        dataset = load(name, config.data_dir)
        private = dataset.schema.encode(dataset.private)
        budget = PrivacyBudget(config.epsilon, protective_delta(config.delta, len(private)))
        with stages.stage(name) as progress:
            for seed in range(config.num_releases):
                if (name, seed) not in cells:
                    rows = make(dataset.private, dataset.schema, dataset.target, budget, seed, config.secure)
                    errors = number_errors(dataset.schema, private, dataset.schema.encode(rows), budget)
                    cells.add({"dataset": name, "seed": seed, "columns": errors["columns"]})
                progress(seed + 1, config.num_releases)
    return cells.result


def _verdict(units: np.ndarray, deviations: np.ndarray) -> str:
    """Whether a column holds: "yes", "no" or "open"."""
    excesses = []
    for errors, limit in ((units, _UNITS), (deviations, _DEVIATIONS)):
        bias, error = abs(errors.mean()), errors.std(ddof=1) / np.sqrt(len(errors))
        if bias <= limit:
            return "yes"
        excesses.append((bias - limit) / max(error, 1e-300))
    return "open" if min(excesses) <= _CERTAIN else "no"


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: a line for each column, and one for each data set."""
    lines = [
        "| table | column | error of the mean | bias | bias, % of the SD | holds | SD | noise of a direct SD |",
        "|---" * 8 + "|",
    ]
    for dataset in dict.fromkeys(cell["dataset"] for cell in result["cells"]):
        releases = [cell["columns"] for cell in result["cells"] if cell["dataset"] == dataset]
        by_name = {
            name: [column for columns in releases for column in columns if column["name"] == name]
            for name in dict.fromkeys(column["name"] for columns in releases for column in columns)
        }
        squares, ratios, noises, holding = [], [], [], 0
        for name, columns in by_name.items():
            units, deviations, sds = (
                np.array([column[field] for column in columns]) for field in ("mean", "bias", "sd")
            )
            error = units.std(ddof=1) / np.sqrt(len(units)) if len(units) > 1 else np.nan
            verdict = _verdict(units, deviations)
            bias = f"{units.mean():+.2f} ± {error:.2f} | {100 * deviations.mean():+.2f}"
            noises.append(np.mean([column["sd_noise"] for column in columns]))
            line = f"{np.sqrt(np.mean(units**2)):.2f} | {bias} | {verdict} | × {sds.mean():.3f} | {percent(noises[-1])}"
            lines.append(f"| {dataset} | {name} | {line} |")
            squares.append(np.mean(units**2))
            ratios.append(np.mean(np.abs(sds - 1)))
            holding += verdict == "yes"
        judged = np.asarray(noises) <= PRECISE
        of_judged = f", {np.mean(np.asarray(ratios)[judged]):.1%} if judged" if judged.any() else ""
        lines.append(
            f"| {dataset} | all, {len(releases)} releases | {np.sqrt(np.mean(squares)):.2f} | | "
            f"| {holding} of {len(by_name)} | off by {np.mean(ratios):.1%}{of_judged} "
            f"| {np.median(noises):.1%} (median) |"
        )
    return "\n".join(lines)


def main(config: BiasConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'tables_bias.json'}")


if __name__ == "__main__":
    run_main(main, BiasConfig)
