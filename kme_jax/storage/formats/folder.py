"""A table in several files of one folder."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import Reader


class FolderReader(Reader):
    """The rows of all files of a folder, one file after the other, in the order of their names.

    All of them have the same columns, in any order. Files whose names begin with a dot or an underscore are left out:
    programs that write such folders put notes there.
    """

    def __init__(self, label: str, readers: Sequence[Reader]):
        """The rows of the files of some readers.

        Raises:
          FileError: there are none, or they have different columns.
        """
        if not readers:
            raise FileError(f"{label}: is a folder without files")
        self._readers, fields = readers, readers[0].fields
        super().__init__(label, fields.names, fields.types)
        for reader in readers:
            if sorted(reader.fields.names) != sorted(fields.names):
                raise FileError(f"{reader.label}: it has other columns than {pathlib.Path(readers[0].label).name}")

    @classmethod
    def of_files(cls, folder: pathlib.Path, read: Callable[[pathlib.Path], Reader]) -> FolderReader:
        """The rows of the files of a folder.

        Raises:
          FileError: there are none, or one cannot be read, or they have different columns.
        """
        paths = sorted(path for path in folder.iterdir() if path.name[0] not in "._")
        return cls(str(folder), [read(path) for path in paths])

    @property
    def is_text(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(reader.is_text for reader in self._readers)

    def count(self) -> int:
        return sum(reader.num_rows for reader in self._readers)

    def hint(self, missing: Sequence[str]) -> str:
        return self._readers[0].hint(missing)

    @property
    def files(self) -> Sequence[Reader]:
        return self._readers

    def column(self, name: str) -> Iterator[pa.Array]:
        """See ``Reader.column``.

        Raises:
          FileError: times have different units, so the same time would be two values.
        """
        types = {reader.fields.field(name).type for reader in self._readers}
        if len(types) > 1 and any(map(pa.types.is_temporal, types)):
            raise FileError(f"{self.label}: a column of times has another type in one file than in another")
        for reader in self._readers:
            yield from reader.column(name)

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for reader in self._readers:
            yield from reader.batches(names or self.fields.names)
