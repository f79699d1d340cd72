"""Tables in .arrow and .feather files: the IPC file format of Arrow."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.ipc

from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import Format, Reader

_MAGIC = b"ARROW1"


class ArrowReader(Reader):
    def __init__(self, path: pathlib.Path):
        self._path = path
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise FileError(f"{path}: is no Arrow file")
        with self._open() as file:
            super().__init__(str(path), file.schema.names, file.schema.types)
            self._num_rows = sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))

    @property
    def path(self) -> pathlib.Path:
        return self._path

    @contextlib.contextmanager
    def _open(self) -> Iterator[pyarrow.ipc.RecordBatchFileReader]:
        try:
            with pa.memory_map(str(self._path)) as source, pyarrow.ipc.open_file(source) as file:
                yield file
        except FileError:
            raise
        except (pa.ArrowException, OSError, ValueError):  # their messages may show private cells
            raise FileError(f"{self._path}: is damaged, or no Arrow file") from None

    def count(self) -> int:
        return self._num_rows

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            for i in range(file.num_record_batches):
                yield file.get_batch(i)


def _write(table: pa.Table, file: IO[bytes]) -> None:
    with pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


FORMATS = [Format(suffix, ArrowReader, _write) for suffix in (".arrow", ".feather")]
