"""How many rows of a made-up mixed table are summed in a second, with how much memory, on one core and on two.

python -m experiments.tables.throughput                          # 1, 10 and 100 million rows
python -m experiments.tables.throughput --earlier=FOLDER         # beside an earlier version, of this checkout
python -m experiments.tables.throughput --quick                  # 100 000 rows

``sums_program.py`` has the table, its 150 tables of counts, and what is timed. Each figure is that of a new process.
The processes of a comparison take turns: this version, the earlier one, one process on one core, and two processes at
the same time, each on a core of its own. So what else the machine does meets all of them. It takes no part of the time
that cores worked for a process, which is recorded, too. Results go to <output_dir>/table_throughput.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from experiments.common.config import Config, at_least, flag
from experiments.common.errors import InputError
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import REPOSITORY, check_output_dir, environment, write_json

PROGRAM = pathlib.Path(__file__).with_name("sums_program.py")


@dataclasses.dataclass(frozen=True)
class ThroughputConfig(Config):
    """Configuration: one field per flag."""

    num_rows: tuple[int, ...] = flag((10**6, 10**7, 10**8), "N, the numbers of rows.", quick=(10**5,))
    compared_rows: int = flag(4 * 10**6, "N of every process of a comparison.", quick=10**5)
    num_repeats: int = flag(5, "How often the processes of a comparison take turns.", quick=1)
    earlier: str = flag("", "Checkout of an earlier version, to compare this one with; empty for none.")
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.num_rows or min(self.num_rows) < 1:
            raise InputError(f"--num_rows must be at least 1 each, got {self.num_rows}")
        at_least(self, 1, "compared_rows", "num_repeats")
        if self.earlier and not (pathlib.Path(self.earlier) / "kme_jax").is_dir():
            raise InputError(f"--earlier={self.earlier}: there is no folder kme_jax in it")


def at_once(checkout: pathlib.Path, num_rows: int, cores: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """What processes measure that sum rows at the same time.

    Args:
      checkout: of the version that they run.
      num_rows: N, of each process.
      cores: of each process.
    """
    settings = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", str(PROGRAM), str(num_rows), ",".join(map(str, of_one))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=settings,
                    text=True,
                )
            )
            for of_one in cores
        ]
        facts = [_line(program) for program in programs]  # all have made their rows
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        return [of_one | _line(program) for of_one, program in zip(facts, programs, strict=True)]


def _line(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise RuntimeError(f"{PROGRAM.name} ended without a result")
    return json.loads(line)


def _commit(checkout: pathlib.Path) -> str:
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def run(
    config: ThroughputConfig,
    measured: Callable[[pathlib.Path, int, Sequence[Sequence[int]]], list[dict[str, Any]]] = at_once,
) -> dict[str, Any]:
    """The comparison, and then all sizes. The result is written when all is done.

    Args:
      config: the configuration.
      measured: see :func:`at_once`.
    """
    stages, folder = Stages("table_throughput"), check_output_dir(config.output_dir)
    cores, number = sorted(os.sched_getaffinity(0))[:2], config.compared_rows
    cases = {"one process": (REPOSITORY, [cores])}
    if config.earlier:
        cases["earlier version"] = (pathlib.Path(config.earlier), [cores])
    cases["one process on one core"] = (REPOSITORY, [cores[:1]])
    if len(cores) == 2:
        cases["two processes, each on one core"] = (REPOSITORY, [[core] for core in cores])
    rates: dict[str, list[float]] = {name: [] for name in cases}
    of_cores: dict[str, list[float]] = {name: [] for name in cases}
    digests = set()
    with stages.stage("comparison") as progress:
        for repeat in range(config.num_repeats):
            for name, (checkout, of_processes) in cases.items():
                found = measured(checkout, number, of_processes)
                rates[name].append(sum(number / one["seconds"] for one in found))
                of_cores[name].append(sum(number / one["core_seconds"] for one in found))
                digests |= {one["digest"] for one in found}
            progress(repeat + 1, config.num_repeats)
    if len(digests) > 1:
        raise RuntimeError("sums of the same rows differ")
    cells = []
    for num_rows in config.num_rows:
        with stages.stage(f"{num_rows} rows"):
            (found,) = measured(REPOSITORY, num_rows, [cores])
        cells.append({"num_rows": num_rows, "rows_per_second": num_rows / found["seconds"], **found})
    result = {
        "experiment": "table_throughput",
        "config": config.settings("earlier"),
        "environment": environment(),
        "wall_seconds": stages.total_seconds,
        "earlier_commit": _commit(pathlib.Path(config.earlier)) if config.earlier else None,
        "rows_per_second": rates,
        "rows_per_core_second": of_cores,
        "cells": cells,
    }
    write_json(folder / "table_throughput.json", result)
    return result


def markdown(result: dict[str, Any]) -> str:
    """The sizes as a table of Markdown."""
    lines = ["| N | F | non-zeros per row | passes | rows/s | peak memory, MiB |", "|---|---|---|---|---|---|"]
    for cell in result["cells"]:
        lines.append(
            f"| {cell['num_rows']} | {cell['num_features']} | {cell['nonzeros_per_row']} | {cell['passes']} | "
            f"{cell['rows_per_second']:.0f} | {cell['peak_bytes'] / 2**20:.0f} |"
        )
    return "\n".join(lines)


def comparison_markdown(result: dict[str, Any]) -> str:
    """The comparison as a table of Markdown. A ratio is the median of those of processes that followed each other."""
    rates, of_cores = result["rows_per_second"], result["rows_per_core_second"]
    beside = {"one process": "earlier version", "two processes, each on one core": "one process on one core"}
    titles = ("processes", "rows/s: median", "best", "rows in a second of cores' work", "compared with")
    lines = [f"| {' | '.join(titles)} | ratio: rows/s | of work |", "|---|---|---|---|---|---|---|"]
    for name, values in rates.items():
        other, ratios = beside.get(name, ""), ["", ""]
        if other in rates:
            both = [(of_all[name], of_all[other]) for of_all in (rates, of_cores)]
            ratios = [f"{statistics.median(map(operator.truediv, *pair)):.2f}" for pair in both]
        numbers = (statistics.median(values), max(values), statistics.median(of_cores[name]))
        lines.append(f"| {' | '.join([name, *(f'{number:.0f}' for number in numbers), other, *ratios])} |")
    return "\n".join(lines)


def main(config: ThroughputConfig) -> None:
    """Runs the experiment, and prints its tables."""
    result = run(config)
    print(f"{comparison_markdown(result)}\n\n{markdown(result)}")
    print(f"wrote {pathlib.Path(config.output_dir) / 'table_throughput.json'}")


if __name__ == "__main__":
    run_main(main, ThroughputConfig)
