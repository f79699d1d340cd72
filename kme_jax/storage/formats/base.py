"""What a file format of tables has to provide."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, ClassVar

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from kme_jax._numerics.short_repr import short_repr
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.text import TextOptions

BATCH_ROWS = 2**16


def checked_names(label: str, names: Sequence[str]) -> list[str]:
    """Names of columns without blanks around them.

    Args:
      label: of the table, for errors.
      names: in the order of the columns.

    Raises:
      FileError: a column has no name, or two have the same.
    """
    names = [name.strip() for name in names]
    if not all(names):
        hint = "pandas writes no such column with to_csv(index=False)"
        raise FileError(f"{label}: column {names.index('') + 1} has no name; {hint}")
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):  # errors show no name: the first line may be private and no header
        if (first := places.setdefault(name, place)) != place:
            raise FileError(f"{label}: columns {first} and {place} have the same name; rename or drop one")
    return names


class Reader(abc.ABC):
    """Rows of a table in batches, unchanged. They can be read several times.

    Attributes:
      label: the path, for errors.
      fields: names of the columns, without blanks around them, and their types.
      is_text: whether cells are still the text that somebody wrote. False if a program may have converted them.
    """

    label: str
    fields: pa.Schema
    is_text: ClassVar[bool] = False

    def __init__(self, label: str, names: Sequence[str], types: Sequence[pa.DataType]):
        self.label, names = label, checked_names(label, names)
        self.fields = pa.schema(list(zip(names, types, strict=True)))

    @abc.abstractmethod
    def count(self) -> int:
        """N, the number of rows."""

    @abc.abstractmethod
    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of any size. If there are names, other columns may be left out."""

    def column(self, name: str) -> Iterator[pa.Array]:
        """All cells of a column, in pieces of any size.

        Args:
          name: one of those of ``fields``.
        """
        place = self.fields.names.index(name)
        for batch in self._read((name,)):
            yield batch.column(place if batch.num_columns == len(self.fields) else 0)

    def batches(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most ``BATCH_ROWS`` rows.

        Args:
          names: the columns, of those of ``fields``; None for all, with their names there.
        """
        names = self.fields.names if names is None else list(names)
        # A reader may leave out other columns, or may not: if all are read, there is no doubt.
        wanted = None if len(names) == len(self.fields) else names
        places = [self.fields.names.index(name) for name in names]
        for batch in self._read(wanted):
            whole = batch.num_columns == len(self.fields)
            columns = [batch.column(place) for place in (places if whole else range(len(names)))]
            for start in range(0, batch.num_rows, BATCH_ROWS):
                pieces = [column.slice(start, BATCH_ROWS) for column in columns]
                yield pa.RecordBatch.from_arrays(pieces, names=names)


@short_repr
@dataclasses.dataclass(frozen=True)
class Format:
    """A file format of tables.

    Attributes:
      suffix: of its files, in small letters, with the dot.
      read: opens a file that exists and is not empty.
      write: writes a table to a file that is open for writing bytes; None for a format that is only read.
      read_text: opens such a file whose text is written in a certain way; None for a format that says it itself.
    """

    suffix: str
    read: Callable[[pathlib.Path], Reader]
    write: Callable[[pa.Table, IO[bytes]], None] | None
    read_text: Callable[[pathlib.Path, TextOptions], Reader] | None = None
