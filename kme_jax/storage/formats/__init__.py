"""File formats of tables. To add one, write a module with a ``FORMAT`` and add it to the list below."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

import pyarrow as pa

from kme_jax.storage.formats import arrow_file, comma_separated, parquet
from kme_jax.storage.formats.base import Format

_ALL = (comma_separated.FORMAT, comma_separated.COMPRESSED, parquet.FORMAT, *arrow_file.FORMATS)
FORMATS: dict[str, Format] = {format.suffix: format for format in _ALL}
"""By suffix."""


def written() -> dict[str, Callable[[pa.Table, IO[bytes]], None]]:
    """How tables are written, by suffix; formats that are only read are left out."""
    return {suffix: format.write for suffix, format in FORMATS.items() if format.write is not None}


def suffix_of(name: str) -> str:
    """The suffix of a file's name, in small letters; of a compressed file, both suffixes."""
    words = name.lower().rsplit(".", 2)
    if len(words) > 2 and words[-1] == "gz":
        return f".{words[-2]}.gz"
    return f".{words[-1]}" if len(words) > 1 else ""
