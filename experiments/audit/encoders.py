"""The library's encoder of cells, and the one before it, which an attack has to detect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pyarrow as pa

from kme_jax._numerics.cells import UNREADABLE
from kme_jax.table import Categorical, Numeric, Schema, open_table

Encoder = Callable[[Any, Schema], np.ndarray]
"""(table, schema) -> codes [n, C]."""


def new_encoder(data: Any, schema: Schema) -> np.ndarray:
    """The library's codes.

    Raises:
      AssertionError: if the codes depend on the batches.
    """
    batches = list(open_table(data, schema).batches())
    codes = np.concatenate([schema.encode(batch) for batch in batches])
    parts = [batch[start : start + 2] for batch in batches for start in range(0, batch.num_rows, 2)]
    if not np.array_equal(np.concatenate([schema.encode(part) for part in parts]), codes):
        raise AssertionError("codes depend on the batches")
    return codes


def _old_cell(value: Any) -> bytes | None:
    try:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bool | np.bool_):
            return str(bool(value)).lower().encode()
        if isinstance(value, int):
            return b"%d" % max(-(2**64), min(value, 2**64))
        if isinstance(value, float):
            return np.format_float_positional(value, trim="-").encode()
        return str(value).encode(errors="replace")
    except Exception:
        return UNREADABLE


def _old_float(cell: bytes) -> float | None:
    try:
        return float(cell or b"nan")
    except ValueError:
        return None


def old_encoder(frame: pandas.DataFrame, schema: Schema) -> np.ndarray:
    """BROKEN: the former encoder of a DataFrame. A bool in a column of bools is the number 1; in a column of
    objects it is the text "true", which is no number. Categories are compared as text.
    """
    codes = []
    for column in schema.columns:
        series = frame[column.name]
        missing, unreadable = (int(column.encode(pa.array([cell]))[0]) for cell in (None, []))
        if series.dtype != object and not hasattr(series, "cat"):
            codes.append(column.encode(pa.Array.from_pandas(series)))
            continue
        cells = [_old_cell(None if pandas.isna(x) is True else x) or b"" for x in series.astype(object)]
        if isinstance(column, Numeric):
            numbers = [_old_float(cell.strip()) for cell in cells]
            of_column = column.encode(pa.array(numbers, pa.float64()))
            of_column[[number is None for number in numbers]] = unreadable
        elif isinstance(column, Categorical):
            known = {category.encode(): code for code, category in enumerate(column.categories)}
            known |= {b"": missing}
            of_column = np.array([known.get(cell.strip(), unreadable) for cell in cells])
        else:
            of_column = column.encode(pa.array(cells, pa.large_binary()))
        codes.append(of_column)
    return np.stack(codes, axis=1)
