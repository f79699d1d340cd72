"""What a release of a distributed table costs: messages and bytes of a simulated cluster, and the overhead of engines.

python -m experiments.distributed                              # a few minutes on two cores; needs Spark and Java
python -m experiments.distributed --engines=one_process,dask   # without Spark

*Simulated.* Each release runs as it would on a cluster, with the real plan, tasks, partials and merger. Only the rows
do not exist: workers make up the sums that their share of the rows could have. Rows are spread evenly over all cells,
which gives the largest plans. Then, for the range of the integers, all rows are in one cell of each marginal, which
gives the largest sums. These are compared with Python's integers, which have no limit. More than 16 workers are in
groups of equal size, of which one partial is made; it is counted once for each worker.

*Measured.* Engines release the same file of made-up rows on this machine, one after the other, as often as
``--num_repeats`` says. Each time a new process opens the table and releases it twice; medians are recorded. The load of
the machine, before each release, is recorded as well: other programs may slow an engine down.

Results go to <output_dir>/distributed.json.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from experiments.common.config import Config, at_least, flag
from experiments.common.errors import InputError
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir, usable_cores
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, measure_table
from kme_jax.embedding import IntegerEmbedding
from kme_jax.feature_maps.base import MAX_SUM_BITS
from kme_jax.partial import Partial, Task, combine, merge, partial_sums
from kme_jax.privacy.composition import Composition
from kme_jax.table import RowSource
from kme_jax.table import planning as plans
from kme_jax.table.release import binnings_and_target

ENGINES = ("one_process", "processes", "dask", "spark")
RELATIONS = ("replace_one", "add_remove")
_TARGET = "target"
_GROUP, _MOST_PARTIALS = 16, 64  # as the sources of engines combine partials
_MOST_MADE = 16  # partials that are made
_ROWS_PER_GROUP = 2**16
_EPSILON, _DELTA = 1.0, 1e-18  # δ is below 1/N for all N


@dataclasses.dataclass(frozen=True)
class DistributedConfig(Config):
    """Configuration: one field per flag."""

    num_rows: tuple[int, ...] = flag((10**6, 10**9, 10**12), "N of the simulation.", quick=(10**6, 10**12))
    num_workers: tuple[int, ...] = flag((1, 100, 1000), "Workers of the simulation.", quick=(1, 1000))
    num_columns: tuple[int, ...] = flag((8, 20), "Columns of the simulation, and of the file the first.", quick=(4,))
    measured_rows: int = flag(10**6, "N of the file that engines release; 0 for no file.", quick=20_000)
    engines: tuple[str, ...] = flag(ENGINES, f"Engines that release the file, of {', '.join(ENGINES)}.")
    num_repeats: int = flag(3, "How often an engine releases the file.", quick=1)
    output_dir: str = flag("results", "Folder for the JSON result, and for the file while it is needed.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        for name in ("num_rows", "num_workers", "num_columns"):
            values = getattr(self, name)
            if not values or min(values) < 2 - (name == "num_workers"):
                raise InputError(f"--{name} must be positive, and 2 or more but for workers, got {values}")
        if not set(self.engines) <= set(ENGINES):
            raise InputError(f"--engines must be of {', '.join(ENGINES)}, got {','.join(self.engines)}")
        at_least(self, 0, "measured_rows")
        at_least(self, 1, "num_repeats")


def schema_of(num_columns: int) -> Schema:
    """Half of the columns are numbers, the others categories; the last one is a target of two classes."""
    columns: list[Any] = []
    for i in range(num_columns - 1):
        if i % 2:
            columns.append(Categorical(f"c{i}", tuple(f"v{j}" for j in range(4 + i))))
        else:
            columns.append(Numeric(f"c{i}", 0, 10**6))
    return Schema((*columns, Categorical(_TARGET, ("no", "yes"))))


# -- the simulation


class SimulatedCluster(RowSource):
    """A table of N rows, of which none exists, on W workers. It counts messages and bytes.

    Attributes:
      passes: for each pass, what was counted.
    """

    label, is_text, person, max_rows = "the simulated table", False, None, 1
    passes: list[dict[str, int]]

    def __init__(self, schema: Schema, num_rows: int, num_workers: int, kind: str):
        self.schema, self.num_rows, self.num_workers, self.kind, self.passes = schema, num_rows, num_workers, kind, []

    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        made = min(self.num_workers, _MOST_MADE)
        shares = np.diff(np.linspace(0, self.num_rows, made + 1).astype(np.int64)).tolist()
        pattern = Partial.of_batch(partial_sums([], task))[0]
        partials = [
            dataclasses.replace(
                pattern, parts=(i,), num_parts=made, num_rows=rows, sums=self._sums(task, rows)
            ).to_batch()
            for i, rows in enumerate(shares)
        ]
        size = len(pattern.sums)
        of_partial = statistics.mean(batch.nbytes for batch in partials)
        left, messages = self.num_workers, 2 * self.num_workers  # a task to each worker, and a partial from each
        received = of_partial * self.num_workers
        while left > _MOST_PARTIALS:  # workers combine partials in groups
            left = -(-left // _GROUP)
            messages, received = messages + left, received + of_partial * left
        self.passes.append(
            {
                "num_features": size,
                "non_zeros": len(task.feature_map.blocks) + len(task.feature_map.moments),  # pyright: ignore
                "messages": messages,
                "task_bytes": len(pickle.dumps(task)),
                "partial_bytes": round(of_partial),
                "bytes": round(received) + len(pickle.dumps(task)) * self.num_workers,
                "driver_bytes": round(of_partial * left),
            }
        )
        groups = [combine(partials[i::4], task) for i in range(min(4, made))]
        merged = merge(groups, task, num_rows=self.num_rows)
        exact = [self._sums(task, rows).astype(object) for rows in shares]
        if sum(exact).tolist() != merged.total.tolist():  # pyright: ignore
            raise AssertionError("sums of integers differ from Python's integers")
        self.passes[-1]["largest_sum"] = int(np.abs(merged.total).max())
        return merged

    def _sums(self, task: Task, num_rows: int) -> np.ndarray:
        """Integers as so many rows could give."""
        feature_map: Any = task.feature_map
        parts = []
        for block in feature_map.blocks:
            counts = np.full(block.size, num_rows // block.size if self.kind == "evenly" else 0, np.int64)
            counts[-1] += num_rows - counts.sum()
            parts.append(counts * block.weight)
        last = np.asarray([[b.num_codes - 1 - b.missing for b in feature_map.binnings]])
        return np.concatenate([*parts, num_rows * feature_map.integer_moments(last)])


def room(schema: Schema, num_rows: int, relation: Any) -> dict[str, Any]:
    """Whether sums over N rows fit the integers under every plan, before anything is read.

    Returns:
      The largest weight of a feature, the unit of the weights, and which part of the range of exact sums N rows need.
    """
    budget = PrivacyBudget(_EPSILON, _DELTA, relation)
    rho = plans.comparable_rho(Composition.planned(budget))
    layout = plans.Layout.create(*binnings_and_target(schema, _TARGET), num_rows, rho)
    largest = max(of_map.weight for of_map in plans.largest_maps(layout))
    return {"unit": layout.unit, "largest_weight": largest, "share_of_range": num_rows * largest / 2**MAX_SUM_BITS}


def simulate(num_rows: int, num_workers: int, num_columns: int, relation: Any) -> dict[str, Any]:
    """One release on a simulated cluster, or the line that refuses it."""
    schema, budget = schema_of(num_columns), PrivacyBudget(_EPSILON, _DELTA, relation)
    found: dict[str, Any] = {"room": room(schema, num_rows, relation), "refused": None, "passes": []}
    largest = 0
    for kind in ("evenly", "one cell"):
        cluster = SimulatedCluster(schema, num_rows, num_workers, kind)
        try:
            measure_table(cluster, schema, budget=budget, target=_TARGET, secure=False)
        except ValueError as error:
            found["refused"] = str(error)
            break
        largest = max([largest, *(one.pop("largest_sum") for one in cluster.passes)])
        found["passes"] = found["passes"] or cluster.passes
    return found | {"largest_sum_share_of_range": largest / 2**MAX_SUM_BITS}


# -- engines


def write_rows(path: pathlib.Path, schema: Schema, num_rows: int, seed: int = 0) -> None:
    """Writes a Parquet file of made-up rows, one row group at a time."""
    rng, writer = np.random.default_rng(seed), None
    try:
        for start in range(0, num_rows, _ROWS_PER_GROUP):
            shared = rng.random(min(_ROWS_PER_GROUP, num_rows - start))
            columns = [
                (column.num_codes * np.where(rng.random(len(shared)) < 0.5, shared, rng.random(len(shared))) ** 2)
                for column in schema.columns
            ]
            table = schema.decode(np.stack(columns, axis=1).astype(np.int64))
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer:
            writer.close()


def _opened(engine: str, path: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """The table of an engine, and options of ``measure_table``."""
    if engine == "dask":
        import dask.dataframe

        return dask.dataframe.read_parquet(str(path), split_row_groups=True), {}
    if engine == "spark":
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master(f"local[{usable_cores()}]").config("spark.ui.enabled", "false")
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return session.read.parquet(str(path)), {}
    return path, {"processes": usable_cores() if engine == "processes" else 1}


def release_by(engine: str, path: pathlib.Path, schema: Schema) -> dict[str, Any]:
    """The times of two releases of a file, and sums of their results. Noise is simulated, and equal for all engines."""
    load, started = os.getloadavg()[0], time.perf_counter()
    source, options = _opened(engine, path)
    opened, seconds, found = time.perf_counter() - started, [], None
    budget = PrivacyBudget(_EPSILON, _DELTA)
    for _ in range(2):
        started = time.perf_counter()
        found = measure_table(source, schema, budget=budget, target=_TARGET, secure=False, **options)
        seconds.append(time.perf_counter() - started)
    measured = found.measured.values() if found else []
    maps: list[Any] = [noisy.feature_map for noisy in measured]
    return {
        "start_seconds": opened,
        "first_seconds": seconds[0],
        "seconds": seconds[1],
        "load": load,
        "passes": len(maps),
        "num_features": [feature_map.num_features for feature_map in maps],
        "non_zeros": [len(feature_map.blocks) + len(feature_map.moments) for feature_map in maps],
        "coordinates": [float(np.sum(noisy.coordinates)) for noisy in measured],
    }


def run(config: DistributedConfig, measured: Callable[..., Measured] = in_fresh_process) -> dict[str, Any]:
    """All cells. Each record is written to <output_dir>/distributed.json when it is done.

    Args:
      config: the configuration.
      measured: (function, arguments) -> the call's value, time and memory.
    """
    stages, folder = Stages("distributed"), check_output_dir(config.output_dir)
    names = ("kind", "num_rows", "num_workers", "num_columns", "relation", "engine")
    cells = Cells(folder / "distributed.json", "distributed", config.settings(), names)
    for num_columns in config.num_columns:
        for num_rows in config.num_rows:
            for relation in RELATIONS:
                for num_workers in config.num_workers:
                    key = ("simulated", num_rows, num_workers, num_columns, relation, None)
                    if key in cells:
                        continue
                    with stages.stage(f"{num_rows:.0e} rows, {num_workers} workers, {num_columns} columns"):
                        cell = simulate(num_rows, num_workers, num_columns, relation)
                    cells.add(dict(zip(names, key, strict=True)) | cell)
    if not config.measured_rows:
        return cells.result
    schema = schema_of(config.num_columns[0])
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = pathlib.Path(temporary) / "rows.parquet"
        write_rows(path, schema, config.measured_rows)
        keys = {
            engine: ("measured", config.measured_rows, usable_cores(), config.num_columns[0], RELATIONS[0], engine)
            for engine in config.engines
        }
        found: dict[str, list[dict[str, Any]]] = {engine: [] for engine, key in keys.items() if key not in cells}
        for repeat in range(config.num_repeats):
            for engine, records in found.items():
                with stages.stage(f"{engine}, {repeat + 1}"):
                    records.append(measured(release_by, engine, path, schema).value)
        for engine, records in found.items():
            times = ("start_seconds", "first_seconds", "seconds", "load")
            medians = {name: statistics.median(record[name] for record in records) for name in times}
            record = records[0] | medians | {"file_bytes": path.stat().st_size}
            cells.add(dict(zip(names, keys[engine], strict=True)) | record)
    sums = {tuple(cell["coordinates"]) for cell in cells.result["cells"] if cell["kind"] == "measured"}
    if len(sums) > 1:
        raise AssertionError("engines have different sums")
    return cells.result


# -- tables


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1e5 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


def markdown(result: dict[str, Any]) -> str:
    """What the simulation counted, as a table of Markdown: all passes together, and the driver's largest pass."""
    lines = [
        "| N | workers | columns | relation | passes | F, largest | messages | MiB in all | MiB at the driver | "
        "share of 2⁶¹ |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        if cell["kind"] != "simulated":
            continue
        start = f"| {_number(cell['num_rows'])} | {cell['num_workers']} | {cell['num_columns']} | {cell['relation']} |"
        passes = cell["passes"]
        if cell["refused"] is not None:
            lines.append(f"{start} refused before it starts | | | | | |")
            continue
        numbers = (
            str(len(passes)),
            str(max(one["num_features"] for one in passes)),
            str(sum(one["messages"] for one in passes)),
            f"{sum(one['bytes'] for one in passes) / 2**20:.3g}",
            f"{max(one['driver_bytes'] for one in passes) / 2**20:.3g}",
            f"{cell['largest_sum_share_of_range']:.2g}",
        )
        lines.append(f"{start} {' | '.join(numbers)} |")
    return "\n".join(lines)


def engines_markdown(result: dict[str, Any]) -> str:
    """The times of engines, as a table of Markdown."""
    lines = [
        "| engine | N | cores | passes | F of each | start, s | first, s | second, s | rows/s and core | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        if cell["kind"] == "measured":
            cores = 1 if cell["engine"] == "one_process" else cell["num_workers"]
            rate = cell["num_rows"] * cell["passes"] / cell["seconds"] / cores
            features = ", ".join(map(str, cell["num_features"]))
            lines.append(
                f"| {cell['engine'].replace('_', ' ')} | {_number(cell['num_rows'])} | {cores} | {cell['passes']} | "
                f"{features} | {cell['start_seconds']:.1f} | {cell['first_seconds']:.1f} | {cell['seconds']:.2f} | "
                f"{_number(rate)} | {cell['load']:.1f} |"
            )
    return "\n".join(lines)


def main(config: DistributedConfig) -> None:
    """Runs the experiment, and prints its tables."""
    result = run(config)
    print(f"{markdown(result)}\n\n{engines_markdown(result)}")
    print(f"wrote {pathlib.Path(config.output_dir) / 'distributed.json'}")


if __name__ == "__main__":
    run_main(main, DistributedConfig)
