"""Tables of Dask: a DataFrame, or a Bag of records.

A partition is summed where it is, as one task of the graph. Types may differ from partition to partition, because each
cell becomes a value by itself (``kme_jax.storage.formats.memory``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kme_jax._numerics.cells import UNREADABLE, text_of
from kme_jax.partial import PartialError, Task, combine, partial_sums
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import BATCH_ROWS
from kme_jax.storage.formats.memory import FrameReader
from kme_jax.table.columns import pandas_module
from kme_jax.table.engines.base import MOST_PARTIALS, EngineError, EngineSource, needed_names
from kme_jax.table.schema import Schema

_GROUP = 16  # partials that a worker combines


class DaskSource(EngineSource):
    """A DataFrame or a Bag of Dask. Its parts are computed by the scheduler of ``dask.compute``, or by a client."""

    def __init__(self, data: Any, schema: Schema, person: str | None = None):
        """Counts the rows.

        Raises:
          FileError: it is neither a DataFrame nor a Bag, or does not fit the schema, or there are persons.
        """
        import dask

        is_bag = type(data).__name__ == "Bag"
        if not is_bag and type(data).__name__ != "DataFrame":
            raise FileError("the table of Dask: expected a DataFrame or a Bag of records")
        labels = needed_names(schema) if is_bag else list(data.columns)
        super().__init__("the table of Dask", list(map(str, labels)), schema, person)
        if not is_bag:
            data = data[list(itertools.compress(labels, self._needed))]
        self._parts, self._of_part = data.to_delayed(), sum_records if is_bag else sum_frame
        self.num_rows = sum(_computed([dask.delayed(_count, pure=False)(part) for part in self._parts]))

    def _partials(self, task: Task) -> Iterable[pa.RecordBatch]:
        import dask

        sent = dask.delayed(task, pure=False, traverse=False)
        of_part, combined = dask.delayed(self._of_part, pure=False), dask.delayed(combine, pure=False)
        partials = [of_part(part, sent, i, len(self._parts)) for i, part in enumerate(self._parts)]
        while len(partials) > MOST_PARTIALS:
            partials = [combined(partials[i : i + _GROUP], sent) for i in range(0, len(partials), _GROUP)]
        return _computed(partials)


def _computed(delayed: Sequence[Any]) -> Sequence[Any]:
    """The values of delayed objects.

    Raises:
      EngineError: a partition is not what the collection says, or the functions that make it fail. Its text is one
        line: what Dask, pandas and these functions say may show cells.
      OSError: a file or a machine failed. Other errors without cells, about modules and memory, also stay as they are.
    """
    import dask

    try:
        return dask.compute(*delayed)
    except (FileError, PartialError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        kind = type(error).__name__
    raise EngineError(f"the table of Dask: a partition cannot be computed ({kind}); do all have the stated columns?")


def _count(rows: Any) -> int:
    return len(rows) if hasattr(rows, "__len__") else sum(1 for _ in rows)


def sum_frame(frame: Any, task: Task, part: int, num_parts: int) -> pa.RecordBatch:
    """The partial of a partition of a DataFrame. SENSITIVE."""
    return partial_sums(FrameReader(frame, pandas_module()).batches(), task, part=part, num_parts=num_parts)


def sum_records(records: Iterable[Any], task: Task, part: int, num_parts: int) -> pa.RecordBatch:
    """The partial of a partition of a Bag. SENSITIVE.

    A record is a mapping from names to cells. Other fields of it are not looked at. A field that it does not have is a
    missing cell, and so are all fields of what is no mapping.
    """
    names = needed_names(task.encoding.schema)  # pyright: ignore[reportAttributeAccessIssue]  # of a table

    def batches() -> Iterable[pa.RecordBatch]:
        pending = iter(records)
        while some := list(itertools.islice(pending, BATCH_ROWS)):
            arrays = [pa.array([_cell(record, name) for record in some], pa.large_binary()) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    return partial_sums(batches(), task, part=part, num_parts=num_parts)


def _cell(record: Any, name: str) -> bytes | None:
    """The text of a field of a record, see ``text_of``. A mapping of a class of its own may raise any error."""
    try:
        value = record.get(name) if isinstance(record, Mapping) else None
    except Exception:
        return UNREADABLE
    return text_of(value)
