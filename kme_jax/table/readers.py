"""Reading of tables in batches, from .csv and .parquet files or from memory, and writing of tables to files.

The content of a cell never raises an error. Errors depend on the structure of a file alone, and show no cell. The
structure of a .csv file is its commas, line breaks and quotes; the cells of a row have at most 64 MiB together.

Types are not part of the structure, because one row can change the type of a column. Every cell of a DataFrame becomes
a value or text by itself, see ``kme_jax.table.columns``.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import contextlib
import csv
import dataclasses
import functools
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from kme_jax._numerics import cells
from kme_jax.storage.files import FileError, new_file
from kme_jax.table.schema import Schema

BATCH_ROWS = 2**16
_SUFFIXES = (".csv", ".parquet")
_BUFFER_BYTES = 2**18  # of one column of a .parquet file, because row groups can be large
_MAX_DICTIONARY = 2**12
_NOT_CSV = {b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


@dataclasses.dataclass(frozen=True)
class CsvLimits:
    """Limits of the reader of .csv files, in bytes.

    Attributes:
      blocks: sizes of blocks. A larger one is used only if a row does not fit a smaller one.
      row: largest size of the cells of a row. Such a row fits the largest block with all quotes doubled.
    """

    blocks: tuple[int, ...] = (2**21, 2**26, 2**28)
    row: int = 2**26


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
        self.label, names = label, [name.strip() for name in names]
        if not all(names):
            raise FileError(f"{label}: column {names.index('') + 1} has no name")
        places: dict[str, int] = {}
        for place, name in enumerate(names, 1):  # errors show no name: the first line may be private and no header
            if (first := places.setdefault(name, place)) != place:
                raise FileError(f"{label}: columns {first} and {place} have the same name; rename or drop one")
        self.fields = pa.schema(list(zip(names, types, strict=True)))

    @abc.abstractmethod
    def count(self) -> int:
        """N, the number of rows."""

    @abc.abstractmethod
    def _read(self) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of any size."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most ``BATCH_ROWS`` rows, with the column names of ``fields``."""
        for batch in self._read():
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield pa.RecordBatch.from_arrays(batch.slice(start, BATCH_ROWS).columns, names=self.fields.names)


class _CsvReader(Reader):
    """Reader of .csv files. Every cell is bytes.

    Commas, line breaks and quotes are structure. An empty line is skipped if rows have several cells. If rows have one
    cell, an empty line is a row with a missing cell.
    """

    is_text = True

    def __init__(self, path: pathlib.Path, limits: CsvLimits):
        with open(path, "rb") as file:
            start = file.read(4)
        for magic, name in _NOT_CSV.items():
            if start.startswith(magic):
                raise FileError(f"{path}: is a {name} file, not a .csv file: unpack or rename it")
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = csv.reader(file, strict=True)
            try:
                names = next(lines, [])
            except csv.Error as error:
                raise FileError(f"{path}: its first line is not comma-separated names") from error
            self._skipped, self._empty = lines.line_num, not file.read(1)
        if not names:
            raise FileError(f"{path}: its first line is empty; it must have the names of the columns")
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in "".join(names)):
            raise FileError(f"{path}: its first line is not text in UTF-8; it must have the names of the columns")
        super().__init__(str(path), names, [pa.binary()] * len(names))
        self._path, self._limits, self._block_bytes = path, limits, limits.blocks[0]

    def count(self) -> int:
        if self._empty:
            return 0
        if self._ends_in_quotes():
            raise FileError(f"{self.label}: a quote is not closed: what follows it would be one cell")
        for block_bytes in self._limits.blocks:
            self._block_bytes = block_bytes
            with contextlib.suppress(_LongRow):
                if self._block_bytes == self._limits.blocks[0] or self._has_short_rows():
                    return sum(batch.num_rows for batch in self._read(self.fields.names[:1]))
                break
        raise FileError(f"{self.label}: a row has more than {self._limits.row >> 20} MiB: is a quote not closed?")

    def _has_short_rows(self) -> bool:
        """Whether no row is longer than its limit. A longer row fits a block by chance of where blocks begin."""
        for batch in self._read():
            lengths = np.zeros(batch.num_rows, np.int64)
            for column in batch.columns:
                lengths += pyarrow.compute.binary_length(column).fill_null(0).to_numpy()
            if lengths.max(initial=0) > self._limits.row:
                return False
        return True

    def _ends_in_quotes(self) -> bool:
        with open(self._path, "rb") as file:
            quotes = sum(block.count(b'"') for block in iter(functools.partial(file.read, self._limits.blocks[0]), b""))
        if quotes % 2 == 0:
            return False
        limit = csv.field_size_limit(2**31 - 1)
        try:
            with open(self._path, encoding="latin-1", newline="") as file:
                collections.deque(csv.reader(file, strict=True), maxlen=0)
        except csv.Error as error:
            return "unexpected end" in str(error)
        finally:
            csv.field_size_limit(limit)
        return False

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        try:
            with pyarrow.csv.open_csv(
                self._path,
                # With several threads, errors would not have the row's number.
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    block_size=self._block_bytes,
                    skip_rows=self._skipped,
                    column_names=self.fields.names,
                ),
                pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(self.fields) > 1),
                pyarrow.csv.ConvertOptions(
                    check_utf8=False, column_types=self.fields, include_columns=names or self.fields.names
                ),
            ) as batches:
                yield from batches
            return
        except OSError as error:
            raise FileError(f"{self.label}: cannot be read ({error.strerror})") from None
        except pa.ArrowException as error:
            # Only the numbers of its message are passed on, because it also shows the row. (A handler of invalid rows
            # would fail and show bytes if a row is not UTF-8.)
            numbers = re.match(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if numbers is None:
            raise _LongRow(f"{self.label}: it has changed while it was read")
        raise FileError(
            f"{self.label}: row {numbers[1]} (the header line is row 1) has {numbers[3]} cells, expected {numbers[2]}: "
            "cells are separated by commas, and those with commas in quotes"
        )


class _LongRow(FileError):
    """A row that is longer than a block."""


class _ParquetReader(Reader):
    def __init__(self, path: pathlib.Path):
        self._path = path
        with open(path, "rb") as file:
            if file.read(4) != b"PAR1":
                raise FileError(f"{path}: is no Parquet file")
        with self._open() as file:
            fields, self._num_rows = file.schema_arrow, file.metadata.num_rows
        super().__init__(str(path), fields.names, fields.types)
        self._texts = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]

    @contextlib.contextmanager
    def _open(self, by_dictionary: Sequence[str] = ()) -> Iterator[pa.parquet.ParquetFile]:
        try:
            # A buffer, and no pre-buffering: so no row group is read as a whole.
            with pa.parquet.ParquetFile(
                self._path,
                read_dictionary=by_dictionary,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                coerce_int96_timestamp_unit="us",  # in ns the year 9999 would wrap around
            ) as file:
                yield file
        except (pa.ArrowException, OSError, ValueError):  # their messages may show private cells
            raise FileError(f"{self._path}: is damaged, or no Parquet file") from None

    @functools.cached_property
    def _by_dictionary(self) -> list[str]:
        """Names of columns with few different texts. As dictionaries these are read faster, and take little memory."""
        with self._open(self._texts) as file:
            batch = next(file.iter_batches(BATCH_ROWS), None)
        return [name for name in self._texts if batch and len(batch.column(name).dictionary) <= _MAX_DICTIONARY]

    def count(self) -> int:
        return self._num_rows

    def _read(self) -> Iterator[pa.RecordBatch]:
        with self._open(self._by_dictionary) as file:
            yield from file.iter_batches(BATCH_ROWS)


class _MemoryReader(Reader):
    def __init__(self, table: pa.Table):
        super().__init__("the table", table.column_names, table.schema.types)
        self._table = table

    def count(self) -> int:
        return self._table.num_rows

    def _read(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()


_NULLABLE = {
    *("boolean", "Float32", "Float64"),
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
}


def _is_plain(kind: pa.DataType) -> bool:
    names = ("boolean", "integer", "floating", "string", "large_string", "binary", "large_binary", "date", "timestamp")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _typed(pandas: Any, series: Any) -> pa.Array | pa.ChunkedArray | None:
    """A column of a plain type as an array; None for a column of any other type."""
    kind = series.dtype
    if isinstance(kind, np.dtype):
        if kind.kind in "biu" or (kind.kind == "f" and kind.itemsize <= 8) or kind.kind == "M":
            return pa.array(series.to_numpy().astype(kind.newbyteorder("="), copy=False))
    elif isinstance(kind, pandas.DatetimeTZDtype):
        return pa.array(series.dt.tz_convert(None).to_numpy())
    elif isinstance(kind, pandas.ArrowDtype):
        return pa.array(series.array, from_pandas=True) if _is_plain(kind.pyarrow_dtype) else None
    elif isinstance(kind, pandas.StringDtype) or kind.name in _NULLABLE:
        return pa.array(series.array, from_pandas=True)
    return None


def _texts(values: Any) -> pa.Array:
    """The text of objects, each converted by itself."""
    return pa.array(map(cells.text_of, values), pa.large_binary())


def _column(pandas: Any, series: Any) -> pa.Array | pa.ChunkedArray:
    with contextlib.suppress(Exception):
        if (array := _typed(pandas, series)) is not None:
            return array
    if isinstance(series.dtype, pandas.CategoricalDtype):  # the type of the categories depends on all of them
        codes = series.cat.codes.to_numpy()
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), _texts(series.cat.categories))
    return _texts(series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array)


def _from_pandas(frame: Any, pandas: Any) -> pa.Table:
    """A DataFrame as a table. Columns of plain types keep their type, and other cells become text one by one.

    A common type of a column would depend on each of its cells. Text and typed cells are read alike.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # objects may warn when they are converted to text
        arrays = [_column(pandas, frame.iloc[:, place]) for place in range(frame.shape[1])]
    return pa.table(arrays, names=[str(name) for name in frame.columns])


def open_reader(data: str | os.PathLike | pa.Table | Any, limits: CsvLimits | None = None) -> Reader:
    """A reader of the data, see ``open_table``. It has read names and types of columns, of a .csv file names only.

    Args:
      data: see ``open_table``.
      limits: of a .csv file; the defaults if None.

    Raises:
      FileError: there is no such file, its content does not fit its suffix, or columns have no names or equal names.
    """
    if isinstance(data, pa.Table):
        return _MemoryReader(data)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _MemoryReader(_from_pandas(data, pandas))
    path = pathlib.Path(data)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise FileError(f"{path}: expected a {' or '.join(_SUFFIXES)} file")
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    if not path.stat().st_size:
        raise FileError(f"{path}: is empty")
    try:
        return _CsvReader(path, limits or CsvLimits()) if suffix == ".csv" else _ParquetReader(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error


class TableSource:
    """A private table that can be read several times, at most 2¹⁶ rows at a time. Build it with ``open_table``.

    Attributes:
      schema: of its columns.
      num_rows: N.
    """

    schema: Schema
    num_rows: int

    def __init__(self, reader: Reader, schema: Schema):
        try:
            schema.check_fields(reader.fields)
            if not reader.is_text:
                schema.check_keys()
        except ValueError as error:
            raise FileError(f"{reader.label}: {error}") from error
        self.schema, self.num_rows, self._reader = schema, reader.count(), reader
        if self.num_rows < 2:
            raise FileError(f"{reader.label}: expected at least 2 rows, got {self.num_rows}")

    def __repr__(self) -> str:
        return f"TableSource({self._reader.label!r}, num_rows={self.num_rows})"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, unchanged. SENSITIVE.

        Raises:
          FileError: the file has changed since it was opened.
        """
        num_rows = 0
        for batch in self._reader.batches():
            num_rows += batch.num_rows
            yield batch
        if num_rows != self.num_rows:
            raise FileError(f"{self._reader.label}: it has changed while it was read")

    def codes(self) -> Generator[np.ndarray]:
        """Batches of category codes of all rows, int64 [n, C] each, see ``Schema.encode``. SENSITIVE.

        The next batch is read while the current one is in use.

        Raises:
          FileError: the file has changed since it was opened, or pyarrow cannot convert a column.
        """
        return read_ahead(self._codes())

    def _codes(self) -> Generator[np.ndarray]:
        for batch in self.batches():
            try:
                codes = self.schema.encode(batch)
            except pa.ArrowException:  # its message may show cells
                raise FileError(f"{self._reader.label}: pyarrow cannot convert the type of a column") from None
            yield codes


def read_ahead(items: Generator[np.ndarray]) -> Generator[np.ndarray]:
    """The same items. A thread computes each one before it is asked for."""
    with contextlib.closing(items), concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def open_table(data: str | os.PathLike | pa.Table | Any, schema: Schema) -> TableSource:
    """A private table with the columns of a schema, in any order.

    A file is read in batches, in memory that does not depend on N. A .csv file needs a header line. It is read once at
    the beginning, to count its rows.

    Args:
      data: the path of a .csv file (cells separated by commas) or of a .parquet file, a pyarrow table, or a pandas
        DataFrame.
      schema: of its columns.

    Raises:
      FileError: there is no such file, or its content does not fit its suffix; columns are missing or extra; there are
        fewer than two rows; a row of a .csv file has another number of cells than its header line; the table is not
        from a .csv file, and the schema has two categories that are the same number or time.
    """
    return TableSource(open_reader(data), schema)


def write_table(path: str | os.PathLike, table: pa.Table) -> None:
    """Writes a table to a new .csv or .parquet file: all of it, or nothing. Missing cells are empty in a .csv file.

    Raises:
      FileError: see ``kme_jax.storage.files.new_file``.
    """
    with new_file(path, _SUFFIXES) as file:
        if pathlib.Path(path).suffix == ".csv":
            pyarrow.csv.write_csv(table, file)
        else:
            pyarrow.parquet.write_table(table, file)
