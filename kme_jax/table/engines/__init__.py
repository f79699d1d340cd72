"""Tables that an engine holds in parts, such as Dask or Spark. Its workers sum their parts, and the driver adds them.

No engine is imported before it is needed: a table of an engine comes from a program that has imported it.
"""

from __future__ import annotations

from typing import Any

from kme_jax.table.schema import Schema
from kme_jax.table.sources import RowSource


def engine_source(data: Any, schema: Schema, person: str | None = None) -> RowSource | None:
    """The source of a table that an engine holds; None for other data.

    Args:
      data: a DataFrame of Dask or of Spark, a Bag of Dask, or anything else.
      schema: of its columns.
      person: the column with the ids of persons, which an engine cannot use.

    Raises:
      FileError: the table does not fit the schema, or there are persons.
      ModuleNotFoundError: a library is missing that the engine needs.
    """
    package = type(data).__module__.partition(".")[0]
    if package == "dask":
        from kme_jax.table.engines.dask import DaskSource

        return DaskSource(data, schema, person)
    if package == "pyspark":
        from kme_jax.table.engines.spark import SparkSource

        return SparkSource(data, schema, person)
    return None
