"""Tables in memory: of pyarrow and of pandas."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from kme_jax._numerics import cells
from kme_jax._numerics.text import shown
from kme_jax.storage.formats.base import BATCH_ROWS, Reader


class MemoryReader(Reader):
    def __init__(self, table: pa.Table):
        super().__init__("the table", table.column_names, table.schema.types)
        self._table = table

    def count(self) -> int:
        return self._table.num_rows

    def _read(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()


class FrameReader(MemoryReader):
    """A DataFrame of pandas. The type of a column depends on all of its cells, so ids are read one by one."""

    def __init__(self, frame: Any, pandas: Any):
        super().__init__(table_of_frame(frame, pandas))
        self._frame = frame

    def hint(self, missing: Sequence[str]) -> str:
        if self._frame.columns.nlevels > 1:
            return f"its columns have {self._frame.columns.nlevels} levels: give each column one name"
        in_index = [name for name in missing if name in self._frame.index.names]
        if not in_index:
            return ""
        which = "the index" if len(self._frame.index.names) == 1 else "in the index"
        return f"{shown(in_index[:1])} is {which} of the DataFrame: give reset_index()"

    def column(self, name: str) -> Iterator[pa.Array]:
        series = self._frame.iloc[:, self.fields.names.index(name)]
        for start in range(0, len(series), BATCH_ROWS):
            values = series.iloc[start : start + BATCH_ROWS].astype(object)
            yield pa.array(map(cells.id_of, values), pa.large_binary())


_NULLABLE = {
    *("boolean", "Float32", "Float64"),
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
}


def _is_plain(kind: pa.DataType) -> bool:
    names = ("boolean", "integer", "floating", "string", "large_string", "binary", "large_binary", "date", "timestamp")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _typed(pandas: Any, series: Any) -> pa.Array | pa.ChunkedArray | None:
    """A column of a plain type as an array; None for a column of any other type."""
    kind = series.dtype
    if isinstance(kind, np.dtype):
        if kind.kind in "biu" or (kind.kind == "f" and kind.itemsize <= 8) or kind.kind == "M":
            return pa.array(series.to_numpy().astype(kind.newbyteorder("="), copy=False))
    elif isinstance(kind, pandas.DatetimeTZDtype):
        return pa.array(series.dt.tz_convert(None).to_numpy())
    elif isinstance(kind, pandas.ArrowDtype):
        return pa.array(series.array, from_pandas=True) if _is_plain(kind.pyarrow_dtype) else None
    elif isinstance(kind, pandas.StringDtype) or kind.name in _NULLABLE:
        return pa.array(series.array, from_pandas=True)
    return None


def _texts(values: Any) -> pa.Array:
    """The text of objects, each converted by itself."""
    return pa.array(map(cells.text_of, values), pa.large_binary())


def _column(pandas: Any, series: Any) -> pa.Array | pa.ChunkedArray:
    with contextlib.suppress(Exception):
        if (array := _typed(pandas, series)) is not None:
            return array
    if isinstance(series.dtype, pandas.CategoricalDtype):  # the type of the categories depends on all of them
        codes = series.cat.codes.to_numpy()
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), _texts(series.cat.categories))
    return _texts(series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array)


def table_of_frame(frame: Any, pandas: Any) -> pa.Table:
    """A DataFrame as a table. Columns of plain types keep their type, and other cells become text one by one.

    A common type of a column would depend on each of its cells. Text and typed cells are read alike.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # objects may warn when they are converted to text
        arrays = [_column(pandas, frame.iloc[:, place]) for place in range(frame.shape[1])]
    return pa.table(arrays, names=[str(name) for name in frame.columns])
