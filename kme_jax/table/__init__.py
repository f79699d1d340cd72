"""Tables of any columns: from a private file and its schema to a synthetic table.

They need pyarrow: ``pip install "kme_jax[tables]"``.
"""

try:
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('tables need pyarrow: pip install "kme_jax[tables]"', name="pyarrow") from error

from kme_jax.table.check import ColumnCheck, check_table
from kme_jax.table.columns import Categorical, Column, Datetime, Numeric, Ordinal
from kme_jax.table.encoding import TableEncoding
from kme_jax.table.measure import measure_table, release_table
from kme_jax.table.readers import TableSource, open_table, write_table
from kme_jax.table.release import TableMeasurement, TableRelease
from kme_jax.table.schema import Schema
from kme_jax.table.sources import RowSource
from kme_jax.table.weights import Weight
from kme_jax.table.written import Constant, Identifier, WrittenColumn

__all__ = [
    "Categorical",
    "Column",
    "ColumnCheck",
    "Constant",
    "Datetime",
    "Identifier",
    "Numeric",
    "Ordinal",
    "RowSource",
    "Schema",
    "TableEncoding",
    "TableMeasurement",
    "TableRelease",
    "TableSource",
    "Weight",
    "WrittenColumn",
    "check_table",
    "measure_table",
    "open_table",
    "release_table",
    "write_table",
]
