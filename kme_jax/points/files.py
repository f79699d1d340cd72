"""Reads tables of numbers from .csv, .npy and .npz files, and writes .csv and .npz. No value of a cell is an error."""

from __future__ import annotations

import array as arrays
import contextlib
import csv
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Real, Shaped

from kme_jax._numerics.cells import parse_number, points_of
from kme_jax.storage.files import FileError, new_file


def read_rows(
    path: str | os.PathLike,
    *,
    columns: Sequence[str] | None = None,
    num_columns: int | None = None,
    header: bool = True,
    array: str | None = None,
) -> Shaped[np.ndarray, "n d"]:
    """The rows of a file, [N, d]. A cell that is not a number becomes NaN.

    Errors depend on the structure of the file alone, and show no cell.

    Each cell is read independently of the others, see ``kme_jax._numerics.cells``. It becomes the same number from a
    .csv file and from an array of any type. An array of Python objects, such as NumPy makes from rows with None, is
    refused, because reading it would run code from the file.

    The reader does not guess whether there is a header line. With a wrong guess, a private row could be published as
    the names of the columns.

    In a .csv file commas, line breaks and quotes are structure. A file with an inconsistent structure is refused. An
    empty line is not a row, unless rows have one cell. Then it is a row with a missing cell.

    Args:
      path: a .csv file (in UTF-8, cells separated by commas), a .npy file, or a .npz file.
      columns: the names of the columns to read, as in the header line. Without a header line, names for all columns.
      num_columns: the expected number of columns; any number if None.
      header: whether the first line of a .csv file has the names of the columns.
      array: the name of the array in a .npz file. It is not needed if there is only one array.

    Raises:
      FileError: if the file does not exist, or has another suffix, or is not a table of numbers, or lacks a column.
    """
    path = pathlib.Path(path)
    if path.suffix not in (".csv", ".npy", ".npz"):
        raise FileError(f"{path}: expected a .csv, .npy or .npz file")
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    try:
        if path.suffix == ".csv":
            rows = _read_csv(path, columns, num_columns or len(columns or ()), header)
        else:
            rows = _read_numpy(path, array)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror or 'damaged'})") from error
    if not len(rows):
        raise FileError(f"{path}: it has no rows")
    if columns is not None and rows.shape[1] != len(columns):
        raise FileError(f"{path}: it has {rows.shape[1]} columns, but {len(columns)} names were given")
    if num_columns is not None and rows.shape[1] != num_columns:
        raise FileError(f"{path}: it has {rows.shape[1]} columns, but bounds of {num_columns} were given")
    return rows


def _number(cell: str) -> float:
    number = parse_number(cell.encode(errors="replace").strip())
    return np.nan if number is None else number


@contextlib.contextmanager
def _cells_of_any_length() -> Iterator[None]:
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _read_csv(path: pathlib.Path, columns: Sequence[str] | None, width: int, header: bool) -> Shaped[np.ndarray, "n d"]:
    if header and columns is None:
        raise FileError(f"{path}: give the names of columns in its header line, or say that it has no header line")
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file, _cells_of_any_length():
        reader = csv.reader(file, strict=True)
        try:
            indices = None
            if header:
                names = [name.strip() for name in next(reader, [])]
                width, indices = len(names), [_column_index(path, names, name) for name in columns or ()]
            values = arrays.array("d")
            num_rows = 0
            for cells in reader:
                if not cells and width != 1:
                    continue  # an empty line is not a row, unless rows have one cell
                cells = cells or [""]
                width = width or len(cells)
                if len(cells) != width:
                    raise FileError(f"{path}: line {reader.line_num} has {len(cells)} cells, expected {width}")
                values.extend(map(_number, cells if indices is None else [cells[index] for index in indices]))
                num_rows += 1
        except csv.Error as error:
            raise FileError(f"{path}: line {reader.line_num} is not comma-separated values") from error
    return np.frombuffer(values).reshape(num_rows, -1) if num_rows else np.empty((0, width))


def _column_index(path: pathlib.Path, names: Sequence[str], name: str) -> int:
    if names.count(name) != 1:
        count = "more than one" if name in names else "no"
        raise FileError(f"{path}: its header line (cells are separated by commas) has {count} column {name!r}")
    return names.index(name)


def _read_numpy(path: pathlib.Path, array: str | None) -> Shaped[np.ndarray, "n d"]:
    try:
        content = np.load(path, allow_pickle=False)
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
    except Exception as error:
        raise FileError(f"{path}: is damaged, or has objects rather than numbers") from error
    if not isinstance(content, np.ndarray) or content.ndim != 2:
        # The message must not show the dtype, because one cell can decide it.
        description = f"shape {list(content.shape)}" if isinstance(content, np.ndarray) else "something else"
        raise FileError(f"{path}: expected numbers of shape [rows, columns], got {description}")
    return points_of(content)


def write_rows(path: str | os.PathLike, rows: Real[np.ndarray, "n d"], columns: Sequence[str]) -> None:
    """Writes rows [n, d] with the names of their columns to a new file. After an error there is no file.

    Args:
      path: a .csv file, which gets a header line, or a .npz file, which gets arrays ``rows`` and ``columns``.
      rows: [n, d].
      columns: the names of the d columns.

    Raises:
      FileError: as ``kme_jax.storage.files.new_file``.
    """
    with new_file(path, (".csv", ".npz")) as file:
        if pathlib.Path(path).suffix == ".npz":
            np.savez_compressed(file, rows=rows, columns=np.asarray(columns))
        else:
            file.write((_csv_line(columns) + "\n").encode())
            for row in rows.tolist():
                file.write((",".join(map(repr, row)) + "\n").encode())


def _csv_line(cells: Sequence[str]) -> str:
    quoted = ['"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\r\n') else cell for cell in cells]
    return ",".join(quoted)
