"""Reads rows of numbers from files as a whole, and writes .csv and .npz files. No value of a cell is an error."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Real

from kme_jax.storage.files import FileError, new_file
from kme_jax.storage.rows import open_rows


def read_rows(
    path: str | os.PathLike,
    *,
    columns: Sequence[str] | None = None,
    num_columns: int | None = None,
    header: bool = True,
    array: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
) -> Float[np.ndarray, "n d"]:
    """All rows of a file or a folder, [N, d]. A cell that is not a number becomes NaN.

    Args:
      path: see ``kme_jax.open_rows``, which has the same arguments and the same errors.
      columns: the names of the columns to read.
      num_columns: the expected number of columns; any number if None.
      header: whether the first line of a .csv file has the names of the columns.
      array: the name of the array in a .npz file.
      encoding: of a .csv file.
      separator: of a .csv file.

    Raises:
      FileError: as for ``kme_jax.open_rows``, or there are no rows.
      ValueError: as for ``kme_jax.open_rows``.
    """
    source = open_rows(
        path,
        columns=columns,
        num_columns=num_columns,
        header=header,
        array=array,
        encoding=encoding,
        separator=separator,
    )
    if not source.num_rows:
        raise FileError(f"{path}: it has no rows")
    return np.concatenate(list(source.batches()))


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
