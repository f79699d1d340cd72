"""The time and the memory that measuring many rows of numbers takes, when they are read in batches.

python -m experiments.streams                        # up to 10^8 rows, made up while they are read
python -m experiments.streams --num_rows=1000000000  # for a night

The rows have five columns: skewed numbers, whole numbers, two columns that depend on each other, and missing cells. A
function makes them up, one batch after the other, so they are never all in memory. Then as many rows as
``--rows_in_files`` are in a file of each format. Each case runs in a new process, on as many cores as ``--cores`` says,
so its peak memory is its own. A first measurement of a few rows warms it up. Results go to <output_dir>/streams.json;
files are deleted.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.common.config import Config, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import BatchedRows, Bounds, Gaussian, PrivacyBudget, measure, open_rows

FILES = {"rows.npy": "array", "rows.parquet": "Parquet", "rows.arrow": "Arrow", "rows.csv": "CSV"}
MADE_UP = "function"
NAMES = ("income", "age", "height", "weight", "distance")
_BOUNDS = Bounds.create([0, 0, 120, 20, 0], [200_000, 100, 220, 160, 50], NAMES)
_ROWS_PER_BATCH = 2**18
_WARM_UP = 2 * _ROWS_PER_BATCH
_MISSING = 0.02
_TARGET = 10**9


@dataclasses.dataclass(frozen=True)
class StreamsConfig(Config):
    """Configuration: one field per flag."""

    num_rows: tuple[int, ...] = flag((10**6, 10**7, 10**8), "N, the numbers of rows that are made up.", quick=(10**5,))
    rows_in_files: int = flag(10**7, "N, the number of rows in each file; 0 for no files.", quick=10**4)
    num_features: int = flag(1000, "J, the number of features, even.", quick=64)
    length: float = flag(0.2, "The length of the kernel, as a share of the columns' ranges.")
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-10, "δ of (ε, δ)-differential privacy.")
    cores: int = flag(1, "How many cores a case may use.")
    output_dir: str = flag("results", "Folder for the JSON result, and for files while they are needed.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.num_rows or min(self.num_rows) < 2:
            raise InputError(f"--num_rows must be at least 2 each, got {self.num_rows}")
        if self.rows_in_files and self.rows_in_files < 2:
            raise InputError(f"--rows_in_files must be 0 or at least 2, got {self.rows_in_files}")
        if self.num_features < 2 or self.num_features % 2:
            raise InputError(f"--num_features must be even and at least 2, got {self.num_features}")
        if self.cores < 1 or not self.length > 0:
            raise InputError(f"--cores and --length must be positive, got {self.cores} and {self.length}")
        valid_budgets((self.epsilon,), self.delta)


def rows_of(num_rows: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Batches of made-up rows, [n, 5]."""
    rng = np.random.default_rng(seed)
    for start in range(0, num_rows, _ROWS_PER_BATCH):
        size = min(_ROWS_PER_BATCH, num_rows - start)
        rows = rng.standard_normal((size, 5))
        rows[:, 0] = np.exp(10 + 0.8 * rows[:, 0])
        rows[:, 1] = np.rint(45 + 18 * rows[:, 1])
        rows[:, 2] = 170 + 10 * rows[:, 2]
        rows[:, 3] = rows[:, 2] - 100 + 12 * rows[:, 3]
        rows[:, 4] = np.exp(1 + rows[:, 4])
        rows[rng.random(size) < _MISSING, 4] = np.nan
        yield rows


def _made_up(num_rows: int) -> BatchedRows:
    return open_rows(lambda: rows_of(num_rows), num_rows=num_rows, columns=NAMES)


def write_rows(path: pathlib.Path, num_rows: int) -> None:
    """Writes made-up rows to a file of one of the formats."""
    import pyarrow as pa

    from kme_jax.table import write_table

    rows = np.concatenate(list(rows_of(num_rows)))
    if path.suffix == ".npy":
        np.save(path, rows)
    else:
        write_table(path, pa.table({name: pa.array(rows[:, i], from_pandas=True) for i, name in enumerate(NAMES)}))


def _measure(path: pathlib.Path | None, num_rows: int, config: StreamsConfig) -> dict[str, Any]:
    """Measures rows of a file, or rows that are made up."""
    if hasattr(os, "sched_setaffinity"):  # before JAX looks how many cores there are
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: config.cores])
    kernel, budget = Gaussian(1 / (2 * config.length**2)), PrivacyBudget(config.epsilon, config.delta)

    def measured(source: BatchedRows):
        return measure(source, kernel, bounds=_BOUNDS, budget=budget, num_features=config.num_features)

    measured(_made_up(min(num_rows, _WARM_UP)))
    started = time.perf_counter()
    source = _made_up(num_rows) if path is None else open_rows(path, columns=NAMES)
    feature_map = measured(source).noisy.feature_map
    seconds, started = time.perf_counter() - started, time.perf_counter()
    for _ in source.batches():
        pass
    return {
        "map": type(feature_map).__name__,
        "num_features": feature_map.num_features,
        "seconds": seconds,
        "reading_seconds": time.perf_counter() - started,
        "rows_per_second": num_rows / seconds,
    }


def run(config: StreamsConfig, measured: Callable[..., Measured] = in_fresh_process) -> dict[str, Any]:
    """All cases. Each record is written to <output_dir>/streams.json when it is done.

    Args:
      config: the configuration.
      measured: (function, arguments) -> the call's value, time and memory.
    """
    stages, folder = Stages("streams"), check_output_dir(config.output_dir)
    cells = Cells(folder / "streams.json", "streams", config.settings("num_rows"), ("source", "num_rows"))
    files = list(FILES) if config.rows_in_files else []
    cases = [(MADE_UP, None, size) for size in config.num_rows]
    cases += [(FILES[name], name, config.rows_in_files) for name in files]
    for source, name, num_rows in cases:
        if (source, num_rows) in cells:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as temporary, stages.stage(f"{num_rows} rows, {source}"):
            path = None if name is None else pathlib.Path(temporary) / name
            if path is not None:
                measured(write_rows, path, num_rows)
            measurement = measured(_measure, path, num_rows, config)
            num_bytes = None if path is None else path.stat().st_size
        cell = {"source": source, "num_rows": num_rows, "file_bytes": num_bytes, "peak_bytes": measurement.peak_bytes}
        cells.add(cell | measurement.value)
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown. The last line is computed from the longest stream."""
    lines = [
        "| rows from | N | file, MiB | F | rows/s | seconds | of these, to read or make rows | peak memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        size = "" if cell["file_bytes"] is None else f"{cell['file_bytes'] / 2**20:.0f}"
        lines.append(
            f"| {cell['source']} | {cell['num_rows']:,} | {size} | {cell['num_features']} | "
            f"{cell['rows_per_second']:,.0f} | {cell['seconds']:.1f} | {cell['reading_seconds']:.1f} | "
            f"{cell['peak_bytes'] / 2**20:.0f} |"
        )
    longest = max((c for c in result["cells"] if c["source"] == MADE_UP), key=lambda cell: cell["num_rows"])
    times = _TARGET / longest["num_rows"]
    lines.append(
        f"| {MADE_UP}, *estimated* | {_TARGET:,} |  | {longest['num_features']} | {longest['rows_per_second']:,.0f} | "
        f"{times * longest['seconds']:,.0f} | {times * longest['reading_seconds']:,.0f} | "
        f"{longest['peak_bytes'] / 2**20:.0f} |"
    )
    return "\n".join(lines)


def main(config: StreamsConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'streams.json'}")


if __name__ == "__main__":
    run_main(main, StreamsConfig)
