"""Private rows of numbers that are read in batches, from files, tables or functions.

The content of a cell never raises an error. Errors depend on the structure of the data alone, and show no cell. Each
cell becomes a number by itself, the same one from a file of any format and from an array of any type: see
``kme_jax._numerics.cells``. So rows have the same integers wherever they are.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from kme_jax._numerics.ahead import read_ahead
from kme_jax._numerics.cells import points_of
from kme_jax.embedding import batches_of, private_points
from kme_jax.privacy.budget import check_integer
from kme_jax.storage.files import FileError, identity_of

_BATCH_BYTES = 2**24  # of the numbers of a batch, about
_BATCH_ROWS = 2**15, 2**20  # the fewest and the most rows of a batch that is not the last one
_MOST_ROWS, _MOST_COLUMNS = 2**62, 10**6
_NUMPY = (".npy", ".npz")


class BatchedRows:
    """Private rows of numbers that can be read several times, one batch at a time. Build it with :func:`open_rows`.

    ``measure`` and ``release`` take it in the place of an array.

    Attributes:
      label: the path, or what the rows are, for errors.
      num_rows: N, which is public. (Rows of numbers are released under replace_one.)
      dim: d, the number of columns.
    """

    def __init__(
        self,
        label: str,
        num_rows: int,
        dim: int,
        pieces: Callable[[], Iterable[Any]],
        options: Sequence[Any] = (),
        identity: Callable[[], Any] = lambda: None,
    ):
        self.label, self.num_rows, self.dim, self._pieces = label, num_rows, dim, pieces
        self._options, self._identity = options, identity

    def __repr__(self) -> str:
        return f"BatchedRows({self.label!r}, num_rows={self.num_rows}, dim={self.dim})"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d), as of an array."""
        return self.num_rows, self.dim

    @property
    def identity(self) -> list[Any]:
        """What tells the rows from others and from themselves after a change: N, d, how they are read, and the path,
        the size and the time of each file. It is plain JSON.

        Nothing tells whether a function, or a table in memory, gives other rows.

        Raises:
          FileError: a file is not there any more.
        """
        return [self.num_rows, self.dim, *self._options, self._identity()]

    def batches(self) -> Iterator[Float[np.ndarray, "_ d"]]:
        """All rows, [n, d] each. SENSITIVE. A cell that is not a number is NaN.

        Batches have about 16 MiB. All of them have as many rows as the first one, except for the last.

        Raises:
          FileError: a file has changed since it was opened, or its type of column cannot be converted.
          ValueError: a function gives batches of another shape, or another number of rows.
        """
        size = max(_BATCH_ROWS[0], min(_BATCH_ROWS[1], _BATCH_BYTES // (8 * self.dim)))
        return _of_size(self._checked(), 1 << (size.bit_length() - 1))

    def _checked(self) -> Iterator[Float[np.ndarray, "_ d"]]:
        """The pieces as numbers. There are N rows in total."""
        rows_read = 0
        for piece in self._pieces():
            rows = private_points(piece)
            if rows.shape[1] != self.dim:
                raise ValueError(f"{self.label}: expected {self.dim} columns, got {rows.shape[1]}")
            rows_read += len(rows)
            if rows_read > self.num_rows:
                break
            yield rows
        if rows_read != self.num_rows:
            got = "more" if rows_read > self.num_rows else rows_read
            raise FileError(f"{self.label}: expected {self.num_rows} rows, got {got}: have they changed?")


def _of_size(pieces: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The rows of all pieces, in arrays of ``size`` rows. The last one may have fewer.

    Sums are fastest over arrays of one large size: others are padded, and each shape is a program to compile.
    """
    waiting: list[np.ndarray] = []
    num_waiting = 0
    for piece in pieces:
        start = 0
        while num_waiting + len(piece) - start >= size:
            end = start + size - num_waiting
            waiting.append(piece[start:end])
            yield waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            waiting, num_waiting, start = [], 0, end
        if start < len(piece):
            waiting.append(piece[start:])
            num_waiting += len(piece) - start
    if waiting:
        yield waiting[0] if len(waiting) == 1 else np.concatenate(waiting)


def open_rows(
    data: str | os.PathLike | Callable[[], Iterable[Any]] | Any,
    *,
    columns: Sequence[str] | None = None,
    num_rows: int | None = None,
    num_columns: int | None = None,
    header: bool = True,
    array: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
) -> BatchedRows:
    """Private rows of numbers in files, tables or batches that a function gives.

    They are read in batches, in memory that does not depend on N. (A .npz file is read as a whole. An Arrow file, and a
    .npy file by columns, is mapped into memory, so that what was read may stay there as long as there is room.) A .csv
    file is also read once at the beginning, to count its rows.

    No content of a cell is an error. A cell that is not a number becomes NaN.

    Whether a .csv file has a header line is not guessed. With a wrong guess, a private row could be published as the
    names of columns. In a .csv file separators, line breaks and quotes are structure. A file with an inconsistent
    structure is refused, and so is one with a row of more than 64 MiB. An empty line is not a row, unless rows have one
    cell. Then it is a row with a missing cell.
    An array of Python objects in a .npy file is refused, because reading it would run code from the file.

    Args:
      data: the path of a .csv, .csv.gz, .parquet, .arrow, .feather, .npy or .npz file, or of a folder of such files
        (but for .npy and .npz) with the same columns; a pyarrow table; a pandas DataFrame; or a function without
        arguments that gives batches. These are arrays [n_i, d] of any type, pyarrow tables or record batches. The
        function is called each time that the rows are read.
      columns: names of the columns to read, in this order. They are needed if the data has names: all but .npy and .npz
        files, a .csv file without a header line, and a function that gives arrays. For these, names of all columns.
      num_rows: N, for a function. It is public.
      num_columns: the expected number of columns. A function needs it, or names of columns.
      header: whether the first line of a .csv file has the names of the columns.
      array: the name of the array in a .npz file. It is not needed if there is only one array.
      encoding: of a .csv file, see ``kme_jax.table.open_table``.
      separator: of a .csv file, see ``kme_jax.table.open_table``. Without a header line, None stands for a comma.

    Raises:
      FileError: the file does not exist, or its content does not fit its suffix; it is not a table of numbers, or lacks
        a column, or has another number of columns; an encoding or a separator is given, and it is no .csv file.
      ValueError: a number is out of range; a function has no ``num_rows`` or no number of columns; ``num_rows`` is
        given, and the data is no function; the encoding or the separator is not valid.
      ModuleNotFoundError: pyarrow is not installed, and the data is not a .npy or .npz file, or a function.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import open_rows
      >>> def draw():  # a stream of batches, which are never all in memory
      ...     rng = np.random.default_rng(0)
      ...     for _ in range(10):
      ...         yield rng.normal(size=(1000, 2))
      >>> source = open_rows(draw, num_rows=10_000, num_columns=2)
      >>> source
      BatchedRows('the rows of draw', num_rows=10000, dim=2)
      >>> sum(len(batch) for batch in source.batches())
      10000
    """
    if columns is not None:
        columns = list(columns)
        if num_columns is not None and len(columns) != num_columns:
            raise FileError(f"the rows: {len(columns)} columns were named, but {num_columns} are expected")
        num_columns = len(columns)
    if num_columns is not None:
        num_columns = check_integer("num_columns", num_columns, 1, _MOST_COLUMNS)
    options = [columns, header, array, encoding, separator]
    if callable(data):
        if num_rows is None or num_columns is None:
            raise ValueError("num_rows, num_columns: give both for a function: they are public, and checked")
        num_rows = check_integer("num_rows", num_rows, 0, _MOST_ROWS)
        label = f"the rows of {getattr(data, '__name__', 'a function')}"
        pieces = functools.partial(_of_function, data, columns, label)
        return BatchedRows(label, num_rows, num_columns, pieces, options)
    if num_rows is not None:
        raise ValueError("num_rows: it is for a function, and counted otherwise")
    if isinstance(data, str | os.PathLike):
        path = pathlib.Path(data)
        if path.suffix in _NUMPY:
            return _of_numpy(path, array, num_columns, options)
    elif not hasattr(data, "columns"):
        raise ValueError(f"rows: expected a path, a table or a function of batches, got a {type(data).__name__}")
    try:
        from kme_jax.storage.formats.opening import open_reader
        from kme_jax.storage.formats.text import TextOptions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('these rows need pyarrow: pip install "kme_jax[secure]"', name="pyarrow") from error

    reader = open_reader(data, TextOptions(encoding, separator, header, None if header else num_columns))
    names = reader.fields.names
    if header or not reader.is_text:
        if columns is None:
            names_or_not = ", or say that it has no header line (--no_header)" if reader.is_text else ""
            raise FileError(f"{reader.label}: give the names of columns, such as --columns=a,b{names_or_not}")
        for name in columns:
            if name not in names:
                raise FileError(f"{reader.label}: there is no column {name!r} among its {len(names)} columns")
        names = columns
    _check_width(reader.label, len(names), num_columns)
    pieces = functools.partial(_of_reader, reader, names)
    return BatchedRows(
        reader.label, reader.num_rows, len(names), pieces, options, lambda: [file.identity for file in reader.files]
    )


def every_batch(rows: Shaped[np.ndarray, "N d"] | BatchedRows) -> Iterator[Shaped[np.ndarray, "_ d"]]:
    """The batches of a source, or of an array of rows [N, d]. SENSITIVE."""
    return rows.batches() if isinstance(rows, BatchedRows) else batches_of(rows)


def _check_width(label: str, width: int, expected: int | None) -> None:
    if expected is not None and width != expected:
        raise FileError(f"{label}: it has {width} columns, but {expected} are expected")


def _of_reader(reader: Any, names: Sequence[str]) -> Iterator[np.ndarray]:
    """The rows of a reader of a table. The next batch is read while the current one is in use."""
    return read_ahead(_numbers(reader.batches(names), reader.label))


def _numbers(batches: Iterable[Any], label: str):
    """Record batches as rows of numbers, [n, d] each."""
    import pyarrow as pa

    from kme_jax._numerics.arrow import numbers_of

    for batch in batches:
        try:
            rows = np.stack([numbers_of(column) for column in batch.columns], axis=1)
        except pa.ArrowException:  # its message may show cells
            raise FileError(f"{label}: pyarrow cannot convert the type of a column") from None
        yield rows


def _of_function(function: Callable[..., Any], columns: Sequence[str] | None, label: str) -> Iterator[np.ndarray]:
    """The batches that a function gives."""
    pyarrow = sys.modules.get("pyarrow")
    for batch in function():
        if pyarrow is None or not isinstance(batch, pyarrow.Table | pyarrow.RecordBatch):
            yield batch
            continue
        if columns is None:
            raise ValueError(f"{label}: give the names of columns")
        for name in columns:
            if batch.schema.names.count(name) != 1:
                raise ValueError(f"{label}: a batch does not have exactly one column {name!r}")
        yield from _numbers([batch.select(list(columns))], label)


def _of_numpy(path: pathlib.Path, array: str | None, num_columns: int | None, options: Sequence[Any]) -> BatchedRows:
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    rows = _read_numpy(path, array)
    _check_width(str(path), rows.shape[1], num_columns)
    pieces = functools.partial(_slices, rows)
    return BatchedRows(str(path), len(rows), rows.shape[1], pieces, options, lambda: identity_of(path))


def _slices(rows: Shaped[np.ndarray, "N d"]) -> Iterator[Shaped[np.ndarray, "_ d"]]:
    """Pieces of an array. Those of a file are read, and not mapped, so that what was read takes no memory."""
    dim = rows.shape[1]
    size = max(1, _BATCH_BYTES // (8 * dim))
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        if isinstance(rows, np.memmap) and rows.filename is not None and rows.flags.c_contiguous:
            offset = rows.offset + start * dim * rows.itemsize
            cells = np.fromfile(rows.filename, rows.dtype, piece.size, offset=offset)
            piece = cells[: len(cells) // dim * dim].reshape(-1, dim)  # the file may have become shorter
        yield points_of(piece)


def _read_numpy(path: pathlib.Path, array: str | None) -> Shaped[np.ndarray, "N d"]:
    """The array of a file; that of a .npy file is mapped into memory."""
    try:
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.lib.npyio.NpzFile):
            with content:
                names = content.files
                if array is None and len(names) != 1:
                    raise FileError(f"{path}: it has {len(names)} arrays; say which one: {', '.join(names) or '-'}")
                if array is not None and array not in names:
                    raise FileError(f"{path}: it has no array {array!r}, only {', '.join(names)}")
                content = content[array or names[0]]
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror or 'damaged'})") from error
    except Exception as error:
        raise FileError(f"{path}: is damaged, or has objects rather than numbers") from error
    if not isinstance(content, np.ndarray) or content.ndim != 2 or not content.shape[1]:
        # The message must not show the dtype, because one cell can decide it.
        description = f"shape {list(content.shape)}" if isinstance(content, np.ndarray) else "something else"
        raise FileError(f"{path}: expected numbers of shape [rows, columns], got {description}")
    return content
