"""Opens a table in any format."""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from typing import Any

import pyarrow as pa

from kme_jax.storage.files import FileError
from kme_jax.storage.formats import FORMATS, suffix_of
from kme_jax.storage.formats.base import Reader
from kme_jax.storage.formats.folder import FolderReader
from kme_jax.storage.formats.layout import layout_reader
from kme_jax.storage.formats.memory import FrameReader, MemoryReader
from kme_jax.storage.formats.text import AS_USUAL, TextOptions

_SHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")
_TEXT = (".tsv", ".tab", ".txt", ".dat", ".data")


def open_reader(data: str | os.PathLike | pa.Table | Any, text: TextOptions = AS_USUAL) -> Reader:
    """A reader of the data. It has read names and types of columns, of a .csv file names only.

    Args:
      data: the path of a file in one of ``FORMATS``, or of a folder of such files, see ``FolderReader`` and
        ``layout_reader``; the address of a folder; a pyarrow table; or a pandas DataFrame.
      text: how the text of a .csv file is written.

    Raises:
      FileError: the data is none of these; an encoding or a separator is given, and it is no .csv file; or there is no
        such file, its content does not fit its suffix, or columns have no names or equal names.
    """
    pandas = sys.modules.get("pandas")
    is_frame = pandas is not None and isinstance(data, pandas.DataFrame)
    if text.given and (is_frame or isinstance(data, pa.Table)):
        raise FileError(f"the table: {text.given} is for .csv files; leave it out for a table in memory")
    if isinstance(data, pa.Table):
        return MemoryReader(data)
    if is_frame:
        return FrameReader(data, pandas)
    if not isinstance(data, str | os.PathLike):
        remedy = "write batches into a folder as .parquet files, and give the path of the folder"
        is_rows = isinstance(data, list) and all(isinstance(row, dict | list | tuple) for row in data[:1])
        if isinstance(data, dict) or is_rows:
            remedy = "give pandas.DataFrame(...) of it"
        kind = type(data).__name__
        raise FileError(f"the table: expected a path, a pyarrow table or a pandas DataFrame, got a {kind}; {remedy}")
    is_address = isinstance(data, str) and "://" in data
    path = pathlib.Path(data)
    if is_address or (path.is_dir() and any(one.is_dir() for one in path.iterdir() if one.name[0] not in "._")):
        if text.given:
            raise FileError(f"{data}: {text.given} is for .csv files; folders of folders hold Parquet files")
        return layout_reader(os.fspath(data))
    read = functools.partial(_of_file, text=text)
    return FolderReader.of_files(path, read) if path.is_dir() else read(path)


def _of_file(path: pathlib.Path, text: TextOptions) -> Reader:
    suffix = suffix_of(path.name)
    if suffix not in FORMATS:
        *others, last = FORMATS
        remedy = "; save it as .csv" if path.suffix.lower() in _SHEETS else ""
        if path.suffix.lower() in _TEXT:
            remedy = "; rename it to .csv if tabs, semicolons, bars or commas are between its cells"
        raise FileError(f"{path}: expected a {', '.join(others)} or {last} file{remedy}")
    read_text = FORMATS[suffix].read_text
    if text.given and read_text is None:
        raise FileError(f"{path}: {text.given} is for .csv files; leave it out for a {suffix} file")
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    if not path.stat().st_size:
        raise FileError(f"{path}: is empty")
    try:
        return FORMATS[suffix].read(path) if read_text is None else read_text(path, text)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
