"""Tables of numbers from .csv, .npy and .npz files, and to .csv and .npz. What a cell holds never raises an error."""

from __future__ import annotations

import array as arrays
import contextlib
import csv
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from kme_jax._numerics.cells import parse_number, points_of
from kme_jax.storage.files import FileError, new_file


def read_rows(
    path: str | os.PathLike,
    *,
    columns: Sequence[str] | None = None,
    num_columns: int | None = None,
    header: bool = True,
    array: str | None = None,
) -> np.ndarray:
    """Rows [N, d]; a cell that is no number is NaN. Errors depend on the structure of the file alone, and show no cell.

    A cell is read by itself, see ``kme_jax._numerics.cells``: it is the same number in a .csv file and in an array
    of any type. An array of Python objects, which NumPy makes of rows with None among others, is not read at all, since
    whoever reads it runs code from the file.

    Nothing is guessed: were the first line taken for names because it looks like it, a private row could be published
    as names.

    In a .csv file commas, line breaks and quotes are structure: a file in which they do not fit together is refused. A
    line without anything in it is no row, unless rows have one cell; then it is one that is missing.

    Args:
      path: of a .csv file (in UTF-8, cells separated by commas), a .npy file, or a .npz file.
      columns: names of the columns to read, as in the header line; all columns without one.
      num_columns: how many columns there have to be, if that is known.
      header: whether the first line of a .csv file has the names of the columns.
      array: the name of the array in a .npz file; not needed if there is only one.

    Raises:
      FileError: no such file; another suffix; not a table of numbers; columns that are not there.
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
        raise FileError(f"{path}: it has {rows.shape[1]} columns, and {len(columns)} names were given")
    if num_columns is not None and rows.shape[1] != num_columns:
        raise FileError(f"{path}: it has {rows.shape[1]} columns, and bounds of {num_columns} were given")
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


def _read_csv(path: pathlib.Path, columns: Sequence[str] | None, width: int, header: bool) -> np.ndarray:
    if header and columns is None:
        raise FileError(f"{path}: name the columns as in its header line, or say that there is no header line")
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file, _cells_of_any_length():
        reader = csv.reader(file, strict=True)
        try:
            chosen = None
            if header:
                names = [name.strip() for name in next(reader, [])]
                width, chosen = len(names), [_place(path, names, name) for name in columns or ()]
            values = arrays.array("d")
            num_rows = 0
            for cells in reader:
                if not cells and width != 1:
                    continue  # a line without anything holds no row, unless rows have one cell
                cells = cells or [""]
                width = width or len(cells)
                if len(cells) != width:
                    raise FileError(f"{path}: line {reader.line_num} has {len(cells)} cells, expected {width}")
                values.extend(map(_number, cells if chosen is None else [cells[place] for place in chosen]))
                num_rows += 1
        except csv.Error as error:
            raise FileError(f"{path}: line {reader.line_num} is not comma-separated values") from error
    return np.frombuffer(values).reshape(num_rows, -1) if num_rows else np.empty((0, width))


def _place(path: pathlib.Path, names: Sequence[str], name: str) -> int:
    if names.count(name) != 1:
        many = "more than one" if name in names else "no"
        raise FileError(f"{path}: its header line (cells are separated by commas) has {many} column {name!r}")
    return names.index(name)


def _read_numpy(path: pathlib.Path, array: str | None) -> np.ndarray:
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
        # Not the dtype, which one cell can decide.
        found = f"shape {list(content.shape)}" if isinstance(content, np.ndarray) else "something else"
        raise FileError(f"{path}: expected numbers of shape [rows, columns], got {found}")
    return points_of(content)


def write_rows(path: str | os.PathLike, rows: np.ndarray, columns: Sequence[str]) -> None:
    """Writes rows [n, d] with the names of their columns: to a .csv file with a header line, or to a .npz file with
    arrays ``rows`` and ``columns``. All of it, or nothing.

    Raises:
      FileError: see :func:`new_file`.
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
