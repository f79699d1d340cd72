"""File formats of tables. To add one, write a module with a ``FORMAT`` and add it to the list below."""

from __future__ import annotations

from kme_jax.table.formats import comma_separated, parquet
from kme_jax.table.formats.base import Format

FORMATS: dict[str, Format] = {format.suffix: format for format in (comma_separated.FORMAT, parquet.FORMAT)}
"""By suffix."""
