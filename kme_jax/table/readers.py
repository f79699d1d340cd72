"""Reading of tables in batches, from files, folders or memory, and writing of tables to files.

The content of a cell never raises an error. Errors depend on the structure of a file alone, and show no cell. The
structure of a .csv file is its commas, line breaks and quotes; the cells of a row have at most 64 MiB together.

Types are not part of the structure, because one row can change the type of a column. Every cell of a DataFrame becomes
a value or text by itself, see ``kme_jax.table.columns``.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64

from kme_jax._numerics.ahead import read_ahead
from kme_jax._numerics.text import shown
from kme_jax.embedding import IntegerEmbedding, integer_sum
from kme_jax.partial import RowEncoding, Task
from kme_jax.privacy.budget import MOST_ROWS_OF_A_PERSON, check_integer
from kme_jax.storage.files import FileError, new_file
from kme_jax.storage.formats import written
from kme_jax.storage.formats.base import Reader
from kme_jax.storage.formats.opening import open_reader
from kme_jax.storage.formats.text import TextOptions
from kme_jax.table.persons import Persons, find_persons, is_of_ids
from kme_jax.table.schema import Schema, check_schema
from kme_jax.table.sources import RowSource
from kme_jax.table.written import Identifier


class TableSource(RowSource):
    """A private table that can be read several times, at most 2¹⁶ rows at a time. Build it with ``open_table``.

    Attributes:
      schema: of its columns.
      num_rows: N, the number of rows that are used. SENSITIVE unless the table is released under replace_one.
      person: the name of the column with the ids of persons; None if every row is used.
      max_rows: the largest number of rows of a person that are used, see ``kme_jax.table.persons``.
      num_read: the number of all rows. SENSITIVE as ``num_rows``.
      persons: the persons, and which rows are used; None if every row is used. SENSITIVE.
      identities: of all files, see ``Reader.identity``, from before the persons were found.

    Rows of persons are known by their places. If a file were written again in another order, more rows of one person
    could be used than noise hides. So the files are compared before and after each time that they are read.
    """

    schema: Schema
    num_rows: int
    person: str | None
    max_rows: int
    num_read: int
    persons: Persons | None
    identities: Sequence[tuple[Any, ...] | None]

    def __init__(self, reader: Reader, schema: Schema, person: str | None = None, max_rows: int = 1):
        if person is not None and person in _not_of_persons(schema):
            raise FileError(
                f"{reader.label}: {shown([person])} is released; give it the kind drop or id, to use it as person"
            )
        if person is not None and person not in reader.fields.names:
            raise FileError(f"{reader.label}: there is no column {shown([person])} with the ids of persons")
        check_fields(reader.label, schema, reader.fields, is_text=reader.is_text, hint=reader.hint)
        self.schema, self.person, self.max_rows, self._reader = schema, person, max_rows, reader
        self.label, self.is_text = reader.label, reader.is_text
        self.num_read = self.num_rows = reader.num_rows
        self.identities = [file.identity for file in reader.files]
        self.persons = None
        if person is not None:
            if not is_of_ids(reader.fields.field(person).type):
                what = f"the column {shown([person])} has no ids, which are text, numbers or times"
                raise FileError(f"{reader.label}: {what}")
            self.persons = find_persons(reader.column(person) if self.num_read else (), max_rows)
            self.num_rows = int(self.persons.used.sum())
            self.check_unchanged()

    def __repr__(self) -> str:
        # Without the number of rows, which may be private: a notebook keeps what it shows, and may be published.
        person = "" if self.person is None else f", person={self.person!r}"
        return f"TableSource({self._reader.label!r}{person})"

    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        """The exact sum over all rows that are used, see ``RowSource.sum``. SENSITIVE.

        The next batch is encoded while the current one is summed.

        Raises:
          FileError: as for :meth:`codes`.
        """
        integers, total, num_rows = integer_sum(
            task.feature_map,
            read_ahead(self._rows(task.encoding)),
            task.rows_planned,
            progress=progress,
            has_levels=task.encoding.has_levels,
        )
        return IntegerEmbedding(integers, total, num_rows)

    def _rows(self, encoding: RowEncoding) -> Generator[Float64[np.ndarray, "_ d"]]:
        for batch in self.batches():
            with safe_errors(self.label):
                rows = encoding.rows(batch)
            yield rows

    @property
    def files(self) -> Sequence[Reader]:
        """The readers of all files, in the order of their rows."""
        return self._reader.files

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows that are used, unchanged. SENSITIVE.

        Raises:
          FileError: the file has changed since it was opened.
        """
        self.check_unchanged()
        num_rows = 0
        for batch in self._reader.batches() if self.num_read else ():  # a .csv file may end after its header line
            start, num_rows = num_rows, num_rows + batch.num_rows
            if self.persons is None:
                yield batch
            elif num_rows <= self.num_read:
                yield batch.filter(pa.array(self.persons.used[start:num_rows]))
        if num_rows != self.num_read:
            raise self._changed()
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Refuses files that are others than when the table was opened, by their sizes and the times of their changes.

        Raises:
          FileError: a file has changed, or is not there any more.
        """
        if [file.identity for file in self.files] != self.identities:
            raise self._changed()

    def _changed(self) -> FileError:
        return FileError(f"{self.label}: it has changed while it was read")

    def codes(self, *, levels: bool = False) -> Generator[Int64[np.ndarray, "_ d"]]:
        """Batches of category codes of all rows, int64 [n, C] each, see ``Schema.encode``. SENSITIVE.

        The next batch is read while the current one is in use.

        Args:
          levels: whether the levels of rows with weights follow as another column: [n, C + 1], see ``Weight.levels``.

        Raises:
          FileError: the file has changed since it was opened, or pyarrow cannot convert a column.
        """
        return read_ahead(self._codes(levels))

    def _codes(self, levels: bool) -> Generator[Int64[np.ndarray, "_ d"]]:
        for batch in self.batches():
            with safe_errors(self.label):
                codes = self.schema.encode(batch)
                if levels and self.schema.weight is not None:
                    of_rows = self.schema.weight.levels(batch.column(self.schema.weight.name))
                    codes = np.concatenate([codes, of_rows[:, None]], axis=1)  # column after column in memory
            yield codes


@contextlib.contextmanager
def safe_errors(label: str) -> Iterator[None]:
    """Context manager: replaces an error of pyarrow, whose message may show cells.

    Raises:
      FileError: pyarrow cannot convert the type of a column.
    """
    try:
        yield
    except pa.ArrowException:
        raise FileError(f"{label}: pyarrow cannot convert the type of a column") from None


def check_fields(
    label: str,
    schema: Schema,
    fields: pa.Schema,
    *,
    is_text: bool,
    hint: Callable[[Sequence[str]], str] = lambda missing: "",
) -> None:
    """Refuses a table that does not fit a schema.

    Args:
      label: of the table, for errors.
      schema: of its columns.
      fields: names of its columns; types are not looked at.
      is_text: whether cells are still the text that somebody wrote.
      hint: what may help if columns are missing, see ``Reader.hint``.

    Raises:
      FileError: columns are missing or extra, or two categories are alike where cells may have been converted.
    """
    try:
        schema.check_fields(fields)
    except ValueError as error:
        more = hint([name for name in schema.names if name not in fields.names])
        raise FileError(f"{label}: {error}{f'; {more}' * bool(more)}") from error
    if is_text:
        return
    try:
        schema.check_keys()
    except ValueError as error:
        raise FileError(f"{label}: {error}") from error


def _not_of_persons(schema: Schema) -> list[str]:
    """Names of columns that cannot have the ids of persons: all of a release, except new ids."""
    return [column.name for column in schema.released if not isinstance(column, Identifier)]


def open_table(
    data: str | os.PathLike | pa.Table | Any,
    schema: Schema,
    *,
    person: str | None = None,
    max_rows: int = 1,
    encoding: str | None = None,
    separator: str | None = None,
) -> TableSource:
    """A private table with the columns of a schema, in any order.

    A file is read in batches, in memory that does not depend on N. A .csv file needs a header line. It is read once at
    the beginning, to count its rows. If there are persons, their ids are read once, in memory that grows with N and
    with the number of persons.

    Args:
      data: the path of a .csv, .csv.gz, .parquet, .arrow or .feather file, or of a folder of such files with the same
        columns; the path of a folder of folders of Parquet files, whose names may hold columns, as in year=2024, or its
        address in an object store, such as s3://bucket/folder; a pyarrow table; or a pandas DataFrame.
      schema: of its columns.
      person: the name of the column with the ids of persons, for a guarantee under add_remove_person. In the schema it
        is dropped, or an ``Identifier``: released rows then have new ids, one for each row. If None, every row is used.
      max_rows: the largest number of rows of a person that are used, see ``kme_jax.table.persons``.
      encoding: of a .csv file: one of Python's text encodings, such as "latin-1", "cp1252" or "utf-16". None for UTF-8.
        A cell with bytes that cannot be decoded is unreadable.
      separator: the character between cells of a .csv file. None for commas, semicolons, tabs or bars: for what is most
        frequent in the header line.

    Raises:
      FileError: there is no such file, or its content does not fit its suffix; an encoding or a separator is given, and
        it is no .csv file; columns are missing or extra; a row of a
        .csv file has another number of cells than its header line; the table is not from a .csv file, and the schema
        has two categories that are the same number or time; there are no ids, or they are in a column that is released.
      ValueError: it is no schema, ``max_rows`` is out of range, or the encoding or the separator is not valid: Python
        has no such encoding, it is not one of text, or one cell could change how others are read in it.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Numeric, Schema
      >>> from kme_jax.table import open_table
      >>> source = open_table(pa.table({"age": [30, 40, 50]}), Schema((Numeric("age", 0, 110, integer=True),)))
      >>> source.num_rows
      3
    """
    check_schema(schema)
    max_rows = check_integer("max_rows", max_rows, 1, MOST_ROWS_OF_A_PERSON)
    if person is None and max_rows > 1:
        raise ValueError("person: name the column with the ids of persons, whose rows are cut to max_rows")
    if person is not None and not isinstance(person, str):
        raise ValueError(f"person: expected the name of a column, got a {type(person).__name__}")
    return TableSource(open_reader(data, TextOptions(encoding, separator)), schema, person, max_rows)


def write_table(path: str | os.PathLike, table: pa.Table) -> None:
    """Writes a table to a new .csv, .parquet, .arrow or .feather file: all of it, or nothing.

    Missing cells are empty in a .csv file.

    Raises:
      FileError: see ``kme_jax.storage.files.new_file``.
    """
    with new_file(path, tuple(written())) as file:
        written()[pathlib.Path(path).suffix](table, file)
