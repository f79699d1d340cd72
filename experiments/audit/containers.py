"""Containers of many kinds, into which a table of Python cells is put.

Losses of the containers themselves are left out:

* Floats of 32 bits that a .csv file holds with fewer digits than they have as floats of 64 bits. pandas writes 0.1 for
  one in a column of them, and 0.10000000149011612 where another row has made the column wider.
* ``pandas.read_csv`` before pandas 3.1, whose own parser of floats is off by a last digit. There, cases use
  ``float_precision="round_trip"``.
* Numbers beside a time in ``pyarrow.array``, and so in ``pyarrow.Table.from_pandas``, ``DataFrame.to_parquet`` and
  series of ``pandas.ArrowDtype``. pyarrow silently makes times of them, microseconds since 1970. A DataFrame itself is
  read as it is.
* Numbers beside a ``numpy.timedelta64`` in ``numpy.array``, which makes durations of them.
* Text that NumPy makes of a missing cell. ``numpy.array(["a", nan])`` holds "nan", which may be a category.
* Containers that do not accept mixed cells at all, such as ``pyarrow.array([1, "a"])``. They raise an error before the
  library sees anything.
"""

from __future__ import annotations

import datetime
import gzip
import io
import pathlib
import warnings
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from kme_jax._numerics.cells import is_number_type
from kme_jax.storage.formats import FORMATS, written
from kme_jax.table import Schema

Container = Callable[[list[list[Any]], Schema, pathlib.Path], Any]
"""(rows, schema, folder for files) -> table."""


_VERSION = tuple(map(int, pandas.__version__.split(".")[:2]))
EXACT = {} if _VERSION >= (3, 1) else {"float_precision": "round_trip"}
"""Options of pandas.read_csv with which it reads floats exactly."""


def columns_of(rows: list[list[Any]]) -> list[list[Any]]:
    """The cells of each column."""
    return [list(cells) for cells in zip(*rows, strict=True)]


def _frame(rows, schema, _folder=None) -> pandas.DataFrame:
    """pandas infers the types."""
    return pandas.DataFrame(dict(zip(schema.names, columns_of(rows), strict=True)))


def _frame_of_rows(rows, schema, _folder=None):
    return pandas.DataFrame(rows, columns=list(schema.names))


def _is_float(cell: Any) -> bool:
    return isinstance(cell, float | np.floating)


def _frame_of_array(rows, schema, _folder=None):
    """NumPy infers the types."""
    for cells in columns_of(rows):
        durations = [isinstance(cell, np.timedelta64 | datetime.timedelta) for cell in cells]
        if any(durations) and not all(durations):
            raise TypeError("numbers would become durations")
        if any(isinstance(cell, str) for cell in cells) and any(cell != cell for cell in cells if _is_float(cell)):
            raise TypeError("a missing cell would become text")
    return pandas.DataFrame({name: np.array(cells) for name, cells in zip(schema.names, columns_of(rows), strict=True)})


def _frame_of_objects(rows, schema, _folder=None):
    return _frame(rows, schema).astype(object)


def _converted(*kinds: Any) -> Container:
    """A DataFrame with given types."""

    def build(rows, schema, _folder=None):
        series = {}
        for place, (name, cells) in enumerate(zip(schema.names, columns_of(rows), strict=True)):
            series[name] = pandas.Series(cells, dtype=kinds[place % len(kinds)])
        return pandas.DataFrame(series)

    return build


def _categories(rows, schema, _folder=None):
    return _frame(rows, schema).astype("category")


def _nullable(backend: str) -> Container:
    return lambda rows, schema, _folder=None: _frame(rows, schema).convert_dtypes(dtype_backend=backend)


def _sparse(rows, schema, _folder=None):
    frame = _frame(rows, schema)
    return pandas.DataFrame({name: pandas.arrays.SparseArray(frame[name].to_numpy()) for name in frame})


def _concatenated(rows, schema, _folder=None):
    """pandas joins the types of two frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.concat([_frame(part, schema) for part in (rows[:1], rows[1:])], ignore_index=True)


_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


def _without_times(container: Container) -> Container:
    """The container, which refuses columns whose numbers would become times."""

    def build(rows, schema, folder=None):
        for cells in columns_of(rows):
            if any(map(is_number_type, cells)) and any(isinstance(cell, _TIMES) for cell in cells):
                raise TypeError("numbers would become times")
        return container(rows, schema, folder)

    return build


@_without_times
def _table(rows, schema, _folder=None) -> pa.Table:
    return pa.table({name: pa.array(cells) for name, cells in zip(schema.names, columns_of(rows), strict=True)})


@_without_times
def _table_of_frame(rows, schema, _folder=None):
    return pa.Table.from_pandas(_frame(rows, schema), preserve_index=False)


def _chunked(rows, schema, _folder=None):
    table = _table(rows, schema, None)
    return pa.concat_tables([table[start : start + 3] for start in range(0, len(rows), 3)])


def _dictionaries(rows, schema, _folder=None):
    return pa.table([column.dictionary_encode() for column in _table(rows, schema, None).columns], names=schema.names)


def _written(write: Callable[[Any, Any], None], suffix: str) -> Callable[[Container], Container]:
    def of(container: Container) -> Container:
        def build(rows, schema, folder):
            path = folder / f"table{suffix}"
            write(container(rows, schema, folder), path)
            return path

        return build

    return of


_parquet = _written(lambda table, path: pyarrow.parquet.write_table(table, path), ".parquet")
_parquet_of_pandas = _written(lambda frame, path: frame.to_parquet(path), ".parquet")
_csv_of_pandas = _written(lambda frame, path: frame.to_csv(path, index=False), ".csv")
_csv_of_arrow = _written(lambda table, path: pyarrow.csv.write_csv(table, path), ".csv")


def _read_again(container: Container, **options: Any) -> Container:
    def build(rows, schema, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = container(rows, schema, folder).read_bytes()
            return pandas.read_csv(io.BytesIO(text), **EXACT, **options)

    return build


def _format_writer(suffix: str) -> Callable[[pa.Table, pathlib.Path], None]:
    def write(table: pa.Table, path: pathlib.Path) -> None:
        with gzip.open(path, "wb") if suffix.endswith(".gz") else open(path, "wb") as file:
            written()[suffix.removesuffix(".gz")](table, cast(IO[bytes], file))

    return write


CONTAINERS: dict[str, Container] = {
    "DataFrame of lists": _frame,
    "DataFrame of rows": _frame_of_rows,
    "DataFrame of arrays": _frame_of_array,
    "DataFrame of objects": _frame_of_objects,
    "DataFrame of floats": _converted("float64", "Float64", "float32", "longdouble"),
    "DataFrame of nullable numbers": _converted("Int64", "Float64", "boolean", "UInt8"),
    "DataFrame of texts": _converted("string", "str", "string[pyarrow]"),
    "DataFrame of categories": _converted("category"),
    "DataFrame turned into categories": _categories,
    "DataFrame of complex numbers": _converted("complex128", "complex64"),
    "DataFrame of times": _converted("datetime64[ns]", "datetime64[s]", "datetime64[us, UTC]", "timedelta64[ns]"),
    "DataFrame of Arrow types": _without_times(
        _converted(
            *(pandas.ArrowDtype(kind) for kind in (pa.float64(), pa.string(), pa.timestamp("us"), pa.decimal128(30, 5)))
        )
    ),
    "nullable DataFrame": _nullable("numpy_nullable"),
    "Arrow DataFrame": _without_times(_nullable("pyarrow")),
    "sparse DataFrame": _sparse,
    "joined DataFrames": _concatenated,
    "pyarrow table": _table,
    "pyarrow table of a DataFrame": _table_of_frame,
    "pyarrow table in chunks": _chunked,
    "pyarrow table of dictionaries": _dictionaries,
    "Parquet": _parquet(_table),
    "Parquet of pandas": _parquet_of_pandas(_without_times(_frame)),
    ".csv of pandas": _csv_of_pandas(_frame),
    ".csv of pyarrow": _csv_of_arrow(_table),
    ".csv of pandas, read again": _read_again(_csv_of_pandas(_frame)),
    ".csv of pandas, read again in Arrow types": _read_again(_csv_of_pandas(_frame), dtype_backend="pyarrow"),
    ".csv of pyarrow, read again": _read_again(_csv_of_arrow(_table)),
} | {
    f"{suffix} file": _written(_format_writer(suffix), suffix)(_table)
    for suffix in FORMATS
    if suffix not in (".csv", ".parquet")
}
