"""Tables in .csv files, plain or compressed."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from kme_jax._numerics.short_repr import short_repr
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import Format, Reader
from kme_jax.storage.formats.text import AS_USUAL, NO_LETTER, TextOptions

_GZIP = b"\x1f\x8b"
_NOT_CSV = {_GZIP: "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


_COMPRESSED = ".gz"
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SEPARATORS = "".join(_WORDS)  # of cells; in the first line, the most frequent one outside of quotes


@short_repr
@dataclasses.dataclass(frozen=True)
class CsvLimits:
    """How much memory a .csv file may take.

    Attributes:
      block_bytes: sizes of the blocks that a file is read in. Larger blocks are used only if a row does not fit a
        smaller one.
      row_bytes: of the cells of a row. Such a row fits the largest block with all quotes doubled.
    """

    block_bytes: tuple[int, ...] = (2**21, 2**26, 2**28)
    row_bytes: int = 2**26


class CsvReader(Reader):
    """Reader of .csv files. Every cell is bytes.

    Commas, line breaks and quotes are structure. In place of commas there may be semicolons, tabs or bars: the header
    line says what separates cells, unless the caller does. Cells are in UTF-8, whatever the encoding of the file is.

    An empty line is skipped if rows have several cells. If rows have one cell, an empty line is a row with a missing
    cell.

    Privacy: the first line of a file without a header line is a private row. What it holds is not looked at, except for
    the number of its cells, if no other number is expected.
    """

    is_text = True

    def __init__(self, path: pathlib.Path, limits: CsvLimits = CsvLimits(), text: TextOptions = AS_USUAL):
        self._options = text
        self._path, self._is_compressed = path, path.suffix.lower() == _COMPRESSED
        self._limits, self._block_bytes = limits, limits.block_bytes[0]
        with open(path, "rb") as file:
            start = file.read(4)
        if self._is_compressed and not start.startswith(_GZIP):
            raise FileError(f"{path}: is no gzip file: rename it")
        if text.header:
            self._check_start(start)
        self._separator = text.separator or (self._likely_separator() if text.header else _SEPARATORS[0])
        self._word = _WORDS.get(self._separator, repr(self._separator))
        if not text.keeps(self._separator):
            what = f"{self._word} cannot separate cells of a file in {text.name}, where they are a part of letters"
            raise FileError(f"{path}: {what}: convert it to UTF-8")
        self._skipped, self._empty = 0, False  # lines of the header; whether nothing follows it
        names = self._names() if text.header else [f"x{i + 1}" for i in range(text.width or self._width())]
        super().__init__(str(path), names, [pa.binary()] * len(names))

    def _check_start(self, start: bytes) -> None:
        """Raises FileError if a file begins as one of another format."""
        if start.startswith(_GZIP) and not self._is_compressed:
            raise FileError(f"{self._path}: is a gzip file: rename it to .csv.gz")
        for magic, name in _NOT_CSV.items():
            if start.startswith(magic) and magic != _GZIP:
                raise FileError(f"{self._path}: is a {name} file, not a .csv file: unpack or rename it")

    def _likely_separator(self) -> str:
        with self._text("utf-8-sig", "surrogateescape") as file:
            return _separator(file.readline())

    def _names(self) -> list[str]:
        """The names of the columns, from the header line."""
        path = self._path
        with self._text("utf-8-sig", "surrogateescape") as file:
            lines = csv.reader(file, strict=True, delimiter=self._separator)
            try:
                names = next(lines, [])
            except csv.Error as error:
                raise FileError(f"{path}: its first line is not comma-separated names") from error
            self._skipped, self._empty = lines.line_num, not file.read(1)
        if not names:
            raise FileError(f"{path}: its first line is empty; it must have the names of the columns")
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in "".join(names)):
            raise FileError(
                f"{path}: its first line is not text in {self._options.name}: give the encoding of the file; it must "
                "have the names of the columns"
            )
        return names

    def _width(self) -> int:
        """The number of cells of the first row of a file without a header line."""
        with self._text("latin-1") as file, _cells_of_any_length():
            rows = csv.reader(file, strict=True, delimiter=self._separator)
            try:
                width = next((len(row) for row in rows if row), 0)
            except csv.Error:
                raise FileError(f"{self._path}: its first row is not comma-separated") from None
        if not width:
            raise FileError(f"{self._path}: it has no rows")
        return width

    @property
    def path(self) -> pathlib.Path:
        return self._path

    def hint(self, missing: Sequence[str]) -> str:
        if len(self.fields) > 1 or len(missing) < 2:
            return ""
        return f"are there {self._word} between the cells of its first line?"

    @property
    def _how(self) -> str:
        return f"{self._options.name} {self._separator!r}"

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The bytes of the file, uncompressed and in UTF-8.

        Raises:
          FileError: the compressed file is damaged, or cut off, or the file does not begin as its encoding does.
        """
        try:
            with gzip.open(self._path) if self._is_compressed else open(self._path, "rb") as file:
                yield self._options.in_utf_8(cast(IO[bytes], file))
        except UnicodeError:
            name = self._options.name
            raise FileError(
                f"{self._path}: has no mark of {name} at its beginning; give {name}-le or {name}-be"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise FileError(f"{self._path}: is damaged, or cut off: it cannot be unpacked") from None

    @contextlib.contextmanager
    def _text(self, encoding: str, errors: str = "strict") -> Iterator[IO[str]]:
        """The text of the file."""
        with self._open() as file, io.TextIOWrapper(file, encoding, errors, newline="") as text:
            yield text

    def column(self, name: str) -> Iterator[pa.Array]:
        """See ``Reader.column``. Cells with bytes that cannot be decoded are missing: they would all be alike."""
        for cells in super().column(name):
            if self._options.is_utf_8:
                yield cells
            else:
                yield pc.if_else(pc.match_substring(cells, NO_LETTER), None, cells)  # pyright: ignore[reportAttributeAccessIssue]

    def count(self) -> int:
        if self._empty:
            return 0
        if self._ends_in_quotes():
            raise FileError(f"{self.label}: a quote is not closed: what follows it would be one cell")
        for self._block_bytes in self._limits.block_bytes:  # noqa: B020
            with contextlib.suppress(_LongRow):
                if self._block_bytes == self._limits.block_bytes[0] or self._has_short_rows():
                    return sum(batch.num_rows for batch in self._read(self.fields.names[:1]))
                break
        most = self._limits.row_bytes >> 20
        raise FileError(f"{self.label}: a row has more than {most} MiB: is a quote not closed?")

    def _has_short_rows(self) -> bool:
        """Whether no row has more than ``CsvLimits.row_bytes``. A longer row may fit a block, by chance of where blocks
        begin."""
        for batch in self._read():
            lengths = np.zeros(batch.num_rows, np.int64)
            for column in batch.columns:
                lengths += pc.binary_length(column).fill_null(0).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
            if lengths.max(initial=0) > self._limits.row_bytes:
                return False
        return True

    def _ends_in_quotes(self) -> bool:
        with self._open() as file:
            quotes = sum(
                block.count(b'"') for block in iter(functools.partial(file.read, self._limits.block_bytes[0]), b"")
            )
        if quotes % 2 == 0:
            return False
        try:
            with self._text("latin-1") as file, _cells_of_any_length():
                collections.deque(csv.reader(file, strict=True, delimiter=self._separator), maxlen=0)
        except csv.Error as error:
            return "unexpected end" in str(error)
        return False

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        try:
            with (
                self._open() as file,
                pyarrow.csv.open_csv(
                    self._path if self._options.is_utf_8 and not self._is_compressed else file,
                    # With several threads, errors would not have the row's number.
                    pyarrow.csv.ReadOptions(
                        use_threads=False,
                        block_size=self._block_bytes,
                        skip_rows=self._skipped,
                        column_names=self.fields.names,
                    ),
                    pyarrow.csv.ParseOptions(
                        delimiter=self._separator, newlines_in_values=True, ignore_empty_lines=len(self.fields) > 1
                    ),
                    pyarrow.csv.ConvertOptions(
                        check_utf8=False, column_types=self.fields, include_columns=names or self.fields.names
                    ),
                ) as batches,
            ):
                yield from batches
            return
        except FileError:
            raise
        except OSError as error:
            raise FileError(f"{self.label}: cannot be read ({error.strerror})") from None
        except pa.ArrowException as error:
            # Only the numbers of its message are passed on, because it also shows the row. (A handler of invalid rows
            # would fail and show bytes if a row is not UTF-8.)
            numbers = re.match(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if numbers is None:
            raise _LongRow(f"{self.label}: it has changed while it was read")
        counted = " (the header line is row 1)" if self._options.header else ""
        raise FileError(
            f"{self.label}: row {numbers[1]}{counted} has {numbers[3]} cells, expected {numbers[2]}: "
            f"cells are separated by {self._word}, and those with {self._word} in quotes"
        )


@contextlib.contextmanager
def _cells_of_any_length() -> Iterator[None]:
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _separator(line: str) -> str:
    """What separates the cells of a header line. Commas are taken if there are as many of them as of another one."""
    outside = re.sub(r'"[^"]*"', "", line)
    return max(_SEPARATORS, key=outside.count)


class _LongRow(FileError):
    """A row that is longer than a block."""


def _read_text(path: pathlib.Path, text: TextOptions) -> CsvReader:
    return CsvReader(path, text=text)


FORMAT = Format(".csv", CsvReader, pyarrow.csv.write_csv, _read_text)
COMPRESSED = Format(".csv.gz", CsvReader, None, _read_text)
