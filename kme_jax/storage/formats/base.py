"""What a file format of tables has to provide."""

from __future__ import annotations

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from kme_jax._numerics.short_repr import short_repr
from kme_jax.storage.files import FileError, identity_of
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
      seeks: whether rows in the middle can be read without those before.
    """

    label: str
    fields: pa.Schema
    is_text: ClassVar[bool] = False
    seeks: ClassVar[bool] = False

    def __init__(self, label: str, names: Sequence[str], types: Sequence[pa.DataType]):
        self.label, names = label, checked_names(label, names)
        self.fields = pa.schema(list(zip(names, types, strict=True)))

    @abc.abstractmethod
    def count(self) -> int:
        """N, the number of rows, counted anew."""

    @functools.cached_property
    def num_rows(self) -> int:
        """N, the number of rows when they were counted first."""
        return self.count()

    @property
    def files(self) -> Sequence[Reader]:
        """The readers of all files, in the order of their rows: this one, unless there is a folder of them."""
        return (self,)

    @property
    def path(self) -> pathlib.Path | None:
        """The path of the file; None for a table in memory."""
        return None

    def hint(self, missing: Sequence[str]) -> str:
        """What may help if the table lacks columns, for the end of an error; "" if nothing is known.

        Args:
          missing: names of the columns.
        """
        del missing
        return ""

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """What tells the file from others and from itself after a change: its path, its size, the time of its last
        change, and how it is read. None for a table in memory.

        Raises:
          FileError: there is no such file any more.
        """
        return None if self.path is None else (*identity_of(self.path), self._how)

    @property
    def _how(self) -> str:
        """How the file is read, if there are several ways."""
        return ""

    def batches_from(self, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Batches from a row on, or from a row before it: the number of their first row, and the batches."""
        del row
        return 0, self.batches()

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
        # A reader may leave out other columns, or may not: if all are read, there is no doubt.
        wanted = None if names is None or len(names) == len(self.fields) else names
        return self._small(self._read(wanted), names)

    def _small(self, batches: Iterator[pa.RecordBatch], names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        names = self.fields.names if names is None else list(names)
        places = [self.fields.names.index(name) for name in names]
        for batch in batches:
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
