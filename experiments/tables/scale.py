"""The time and the memory that measuring a large Parquet file takes.

python -m experiments.tables.scale --data_dir=FOLDER                    # 1 and 10 million rows
python -m experiments.tables.scale --data_dir=FOLDER --num_rows=100000

The file has Adult's columns and artificial rows: atoms, skew, missing cells, and columns that depend on each other. It
is measured with exactly the features that a release of Adult has chosen, and in as many passes. Two new processes write
and measure the file of each size, so that the peak memory is that of one size. Each process measures Adult first, which
warms up. Results go to <output_dir>/table_scale.json; the file is deleted.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from experiments.common import datasets
from experiments.common.config import Config, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import PrivacyBudget
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.privacy import perturb_securely
from kme_jax.table.columns import Column
from kme_jax.table.measure import measure_table
from kme_jax.table.readers import open_table
from kme_jax.table.schema import Schema

_ROWS_PER_GROUP = 2**17
_MISSING = 0.05


@dataclasses.dataclass(frozen=True)
class ScaleConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with adult/adult.data.gz and adult/adult.test.gz.")
    num_rows: tuple[int, ...] = flag((1_000_000, 10_000_000), "N, the numbers of rows.", quick=(100_000,))
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    output_dir: str = flag("results", "Folder for the JSON result, and for the file while it is needed.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.data_dir:
            raise InputError("--data_dir is missing: give the folder with adult/adult.data.gz")
        if not self.num_rows or min(self.num_rows) < 1:
            raise InputError(f"--num_rows must be at least 1 each, got {self.num_rows}")
        valid_budgets((self.epsilon,), self.delta)


def _codes(rng: np.random.Generator, column: Column, shared: np.ndarray) -> np.ndarray:
    """Artificial codes [n].

    Smaller codes are more frequent, half of the numbers are the first one, and half of all cells are large where the
    cells of other columns are large.
    """
    uniform = np.where(rng.random(len(shared)) < 0.5, shared, rng.random(len(shared)))
    codes = (column.num_values * uniform**4).astype(np.int64)
    if column.ordered:
        codes[rng.random(len(codes)) < 0.5] = 0
    if column.nullable:
        codes[rng.random(len(codes)) < _MISSING] = column.num_values
    return codes


def write_rows(
    path: pathlib.Path, schema: Schema, num_rows: int, seed: int = 0, rows_per_group: int = _ROWS_PER_GROUP
) -> None:
    """Writes a Parquet file of artificial rows, one row group at a time."""
    rng, writer = np.random.default_rng(seed), None
    try:
        for start in range(0, num_rows, rows_per_group):
            shared = rng.random(min(rows_per_group, num_rows - start))
            table = schema.decode(np.stack([_codes(rng, column, shared) for column in schema.columns], axis=1))
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer:
            writer.close()


def _measure(path: pathlib.Path, adult: datasets.Dataset, epsilon: float, delta: float) -> dict[str, Any]:
    """Measures a file with the features of a release of Adult. Its noise is simulated, so the features are always the
    same."""
    schema, budget = adult.schema, PrivacyBudget(epsilon, delta)
    chosen = measure_table(
        adult.private, schema, budget=PrivacyBudget(epsilon, delta), target=adult.target, secure=False
    )
    maps = [noisy.feature_map for noisy in chosen.measured.values()]
    source, sums, noise = open_table(path, schema), 0.0, 0.0
    for feature_map in maps:
        started = time.perf_counter()
        embedding = integer_embedding_of_batches(feature_map, source.codes(), source.num_rows)
        summed = time.perf_counter()
        perturb_securely(embedding, budget, share=1 / len(maps))
        sums, noise = sums + summed - started, noise + time.perf_counter() - summed
    return {
        "passes": len(maps),
        "num_features": sum(feature_map.num_features for feature_map in maps),
        "max_nonzeros_per_row": sum(len(feature_map.blocks) for feature_map in maps),  # one for each table of counts
        "sum_seconds": sums,
        "noise_seconds": noise,
        "rows_per_second": source.num_rows / (sums + noise),
    }


def run(
    config: ScaleConfig,
    load: Callable[[str, str], datasets.Dataset] = datasets.load,
    measured: Callable[..., Measured] = in_fresh_process,
) -> dict[str, Any]:
    """All sizes. Each record is written to <output_dir>/table_scale.json when it is done.

    Args:
      config: the configuration.
      load: (name, data_dir) -> data set.
      measured: (function, arguments) -> the call's value, time and memory.
    """
    stages, folder = Stages("table_scale"), check_output_dir(config.output_dir)
    cells = Cells(folder / "table_scale.json", "table_scale", config.settings("data_dir"), ("num_rows",))
    adult = load("adult", config.data_dir)
    for num_rows in config.num_rows:
        if (num_rows,) in cells:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            path = pathlib.Path(temporary) / "rows.parquet"
            with stages.stage(f"writing {num_rows} rows"):
                measured(write_rows, path, adult.schema, num_rows)
            with stages.stage(f"measuring {num_rows} rows"):
                measurement = measured(_measure, path, adult, config.epsilon, config.delta)
            cell = {"num_rows": num_rows, "file_bytes": path.stat().st_size, "peak_bytes": measurement.peak_bytes}
        cells.add(cell | measurement.value)
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown."""
    lines = [
        "| N | file, MiB | F | non-zeros per row | passes | rows/s | seconds: sums | noise | peak memory, MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        lines.append(
            f"| {cell['num_rows']} | {cell['file_bytes'] / 2**20:.0f} | {cell['num_features']} | "
            f"≤ {cell['max_nonzeros_per_row']} | {cell['passes']} | {cell['rows_per_second']:.0f} | "
            f"{cell['sum_seconds']:.1f} | {cell['noise_seconds']:.2f} | {cell['peak_bytes'] / 2**20:.0f} |"
        )
    return "\n".join(lines)


def main(config: ScaleConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'table_scale.json'}")


if __name__ == "__main__":
    run_main(main, ScaleConfig)
