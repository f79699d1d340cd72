"""Parquet files in folders of folders, as engines write them, on this machine or in an object store.

Folders may be named after values of columns, as in ``year=2024/month=1`` (the layout of Hive). These columns are then
read from the names, as text. Files whose names begin with a dot or an underscore are left out.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset

from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import BATCH_ROWS, Reader
from kme_jax.storage.formats.folder import FolderReader
from kme_jax.storage.formats.parquet import ParquetReader


class KeyedReader(Reader):
    """A file with more columns, each with one value in all rows: what the names of its folders say."""

    def __init__(self, reader: Reader, keys: Mapping[str, str | None]):
        self._reader, self._keys = reader, dict(keys)
        fields = reader.fields
        super().__init__(reader.label, [*fields.names, *keys], [*fields.types, *[pa.string()] * len(keys)])

    @property
    def seeks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._reader.seeks

    @property
    def path(self) -> pathlib.Path | None:
        return self._reader.path

    @property
    def identity(self):
        return self._reader.identity

    def count(self) -> int:
        return self._reader.num_rows

    def column(self, name: str) -> Iterator[pa.Array]:
        if name not in self._keys:
            yield from self._reader.column(name)
            return
        for start in range(0, self.num_rows, BATCH_ROWS):
            yield _repeated(self._keys[name], min(BATCH_ROWS, self.num_rows - start))

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        del names
        return self._with_keys(self._reader.batches())

    def batches_from(self, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        first, batches = self._reader.batches_from(row)
        return first, self._with_keys(batches)

    def _with_keys(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [_repeated(value, batch.num_rows) for value in self._keys.values()]
            yield pa.RecordBatch.from_arrays([*batch.columns, *values], names=self.fields.names)


def _repeated(value: str | None, size: int) -> pa.Array:
    if value is None:
        return pa.nulls(size, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array([0] * size, pa.int32()), pa.array([value]))


def layout_reader(place: str) -> FolderReader:
    """A reader of all Parquet files below a folder.

    Args:
      place: the path of a folder, or an address such as s3://bucket/folder, see ``pyarrow.fs.FileSystem.from_uri``.

    Raises:
      FileError: there are no such files, or files have different columns.
    """
    try:
        found = pyarrow.dataset.dataset(place, format="parquet", partitioning="hive")
        schema = pa.schema([(name, pa.string()) for name in found.partitioning.schema.names])
        by_name = pyarrow.dataset.partitioning(schema, flavor="hive")
        files = [(path, by_name.parse(path)) for path in sorted(found.files)]
    except (pa.ArrowException, OSError, ValueError) as error:  # its message may show cells
        raise FileError(f"{place}: cannot be read as Parquet files ({type(error).__name__})") from None
    readers: list[Reader] = []
    for path, keys in files:
        reader = ParquetReader(pathlib.Path(path), found.filesystem)
        values = pyarrow.dataset.get_partition_keys(keys)
        readers.append(KeyedReader(reader, {name: values.get(name) for name in schema.names}))
    return FolderReader(place, readers)
