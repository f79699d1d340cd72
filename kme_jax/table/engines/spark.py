"""Tables of Spark: a DataFrame, summed by ``mapInArrow``.

A partition is summed by the Python worker of its task. The types of its columns come from the schema of the DataFrame,
so they are the same in every partition. Spark repeats tasks that fail, and uses one result of each. The number of a
part is that of its partition, from Spark's ``TaskContext``.

Executors need the same versions of kme_jax, JAX, NumPy and pyarrow as the driver.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from kme_jax._numerics.short_repr import short_repr
from kme_jax.partial import UNKNOWN, Task, combine, partial_sums
from kme_jax.table.engines.base import MOST_PARTIALS, EngineError, EngineSource
from kme_jax.table.schema import Schema

_COLUMNS = (
    "run string, measurement string, parts array<bigint>, num_parts bigint, num_rows bigint, "
    "sensitive_sums array<bigint>, task string, library string, device string, checksum string"
)
_OURS = re.compile(r"kme_jax[\w.]*\.(?:PartialError|FileError): ([^\n]*)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


@short_repr
@dataclasses.dataclass(frozen=True)
class SumPartition:
    """The function of a task of Spark: from the rows of a partition to its partial. It can be pickled."""

    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # pyright: ignore[reportMissingImports]

        context: Any = TaskContext.get()
        yield partial_sums(batches, self.task, part=context.partitionId(), num_parts=UNKNOWN)


@short_repr
@dataclasses.dataclass(frozen=True)
class CombinePartials:
    """The function of a task of Spark that combines partials of several partitions. It can be pickled."""

    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = [batch for batch in batches if batch.num_rows]
        if some:
            yield combine(some, self.task)


class SparkSource(EngineSource):
    """A DataFrame of Spark."""

    def __init__(self, frame: Any, schema: Schema, person: str | None = None):
        """Counts the rows.

        Raises:
          EngineError: it is no DataFrame, or a job fails.
          FileError: it does not fit the schema, or there are persons.
          ModuleNotFoundError: pandas is not installed, which Spark needs for Arrow data.
        """
        if not hasattr(frame, "mapInArrow"):
            raise EngineError("the table of Spark: expected a DataFrame")
        if importlib.util.find_spec("pandas") is None:
            raise ModuleNotFoundError('Spark needs pandas: pip install "kme_jax[spark]"', name="pandas")
        super().__init__("the table of Spark", frame.columns, schema, person)
        from pyspark.sql import functions  # pyright: ignore[reportMissingImports]

        # One job, without Python, counts the rows of each partition.
        of_parts = frame.select(functions.spark_partition_id().alias("part")).groupBy("part").count()
        counts = [row["count"] for row in _done(of_parts.collect)]
        self.num_rows, self._groups = sum(counts), math.isqrt(len(counts)) if len(counts) > MOST_PARTIALS else 0
        named = zip(frame.columns, self._needed, strict=True)
        self._frame = frame.select(*[functions.col(f"`{name.replace('`', '``')}`") for name, needed in named if needed])

    def _partials(self, task: Task) -> Iterable[pa.Table]:
        partials = self._frame.mapInArrow(SumPartition(task), _COLUMNS)
        if self._groups:
            partials = partials.repartition(self._groups).mapInArrow(CombinePartials(task), _COLUMNS)
        return [_done(partials.toArrow)]


def _done(job: Any) -> Any:
    """The result of a job of Spark.

    Raises:
      EngineError: the job has failed. Its text is one line. It repeats errors of this package, which show no cell, and
        nothing else of what Spark says, because that may show cells.
    """
    from pyspark.errors import PySparkException  # pyright: ignore[reportMissingImports]

    try:
        return job()
    except PySparkException as error:
        said = str(error)
    if ours := _OURS.search(said):
        raise EngineError(f"the table of Spark: {ours[1]}")
    if missing := _MISSING.search(said):
        package = missing[1].partition(".")[0]
        raise EngineError(f"the workers of Spark have no {package}: install it on each of them, as on the driver")
    raise EngineError("the table of Spark: a job failed; the logs of Spark say why")
