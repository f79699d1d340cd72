"""What the sources of all engines share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from kme_jax.embedding import IntegerEmbedding
from kme_jax.partial import Task, merge, partial_sums
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import checked_names
from kme_jax.table.readers import check_fields
from kme_jax.table.schema import Schema
from kme_jax.table.sources import RowSource

MOST_PARTIALS = 64
"""How many partials the driver adds at most. More of them are combined by workers first."""


class EngineError(ValueError):
    """A job of an engine has failed, or the engine lacks what a release needs."""


class EngineSource(RowSource):
    """A table whose parts are summed by the workers of an engine.

    Formal guarantee: the code of a cell depends on this cell and the schema alone, in every part. Each part counts once
    (``kme_jax.partial.merge``), also if the engine repeats its task. So the sum is the same as on one machine, to the
    last bit, for any number of parts. Noise is drawn by the driver alone.

    The engine must give the same rows each time. A table with random rows, or of a source that changes, is refused if
    the number of its rows changes. Otherwise nothing can tell: store such a table before it is released.
    """

    is_text = False
    max_rows = 1
    person = None

    def __init__(self, label: str, names: Sequence[str], schema: Schema, person: str | None):
        """Checks the names of columns, as the engine states them, without reading rows.

        Raises:
          FileError: the columns do not fit the schema, or there are persons.
        """
        self.label, self.schema = label, schema
        names = checked_names(label, names)
        check_fields(label, schema, pa.schema([(name, pa.null()) for name in names]), is_text=False)
        if person is not None:
            raise FileError(
                f"{label}: persons need all rows of a person in one place, and an engine has them in parts: write the "
                "table to a folder of files, and give the folder"
            )
        self._needed = [name in needed_names(schema) for name in names]

    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        partials = [partial for partial in self._partials(task) if partial.num_rows]
        if not partials:  # a table without rows may have no parts
            partials = [partial_sums([], task)]
        embedding = merge(partials, task, num_rows=self.num_rows)
        if progress:
            progress(self.num_rows)
        return embedding

    @abc.abstractmethod
    def _partials(self, task: Task) -> Iterable[pa.RecordBatch | pa.Table]:
        """Partials of all parts."""


def needed_names(schema: Schema) -> list[str]:
    """Names of the columns that are read."""
    return [*schema.names, *([] if schema.weight is None else [schema.weight.name])]
