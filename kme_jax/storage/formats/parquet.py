"""Tables in .parquet files."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import BATCH_ROWS, Format, Reader

_BUFFER_BYTES = 2**18  # of one column of a .parquet file, because row groups can be large


_MAX_DICTIONARY = 2**12


class ParquetReader(Reader):
    seeks = True

    def __init__(self, path: pathlib.Path, filesystem: pyarrow.fs.FileSystem | None = None):
        """Reads the names and types of columns.

        Args:
          path: of the file.
          filesystem: where it is, such as an object store; None for this machine.

        Raises:
          FileError: it is damaged, or no Parquet file.
        """
        self._path, self._filesystem = path, filesystem or pyarrow.fs.LocalFileSystem()
        with self._filesystem.open_input_file(str(path)) as file:
            if file.read(4) != b"PAR1":
                raise FileError(f"{path}: is no Parquet file")
        with self._open() as file:
            fields, self._num_rows = file.schema_arrow, file.metadata.num_rows
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        super().__init__(str(path), fields.names, fields.types)
        self._group_starts = np.cumsum([0, *sizes])
        self._names = fields.names
        self._texts = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]

    @property
    def path(self) -> pathlib.Path:
        return self._path

    @property
    def identity(self) -> tuple[Any, ...]:
        found = self._filesystem.get_file_info(str(self._path))
        if found.type != pyarrow.fs.FileType.File:
            raise FileError(f"{self._path}: cannot be read (there is no such file any more)")
        place = self._path.absolute() if isinstance(self._filesystem, pyarrow.fs.LocalFileSystem) else self._path
        return str(place), found.size, found.mtime_ns

    @contextlib.contextmanager
    def _open(self, by_dictionary: Sequence[str] = ()) -> Iterator[pyarrow.parquet.ParquetFile]:
        try:
            # A buffer, and no pre-buffering: so no row group is read as a whole.
            with pyarrow.parquet.ParquetFile(
                str(self._path),
                filesystem=self._filesystem,
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

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with self._open(self._by_dictionary) as file:
            if names is None:
                yield from file.iter_batches(BATCH_ROWS)
                return
            of_file = [self._names[self.fields.names.index(name)] for name in names]
            for batch in file.iter_batches(BATCH_ROWS, columns=of_file):
                yield batch.select(of_file)  # a name also selects columns whose names begin with it and a dot

    def batches_from(self, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        first = int(np.searchsorted(self._group_starts[:-1], row, side="right")) - 1
        groups = range(max(first, 0), len(self._group_starts) - 1)
        return int(self._group_starts[groups.start]), self._small(self._of_groups(groups))

    def _of_groups(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        with self._open(self._by_dictionary) as file:
            yield from file.iter_batches(BATCH_ROWS, row_groups=list(groups))


FORMAT = Format(".parquet", ParquetReader, pyarrow.parquet.write_table)
