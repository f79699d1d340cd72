"""Drafts of schemas. A person fills them in from public knowledge."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from kme_jax._numerics.arrow import floats_of, is_number, is_text, is_time, plain_type, seconds_of, text_cells
from kme_jax._numerics.cells import (
    parse_float,
    parse_number_with_comma,
    parse_time,
)
from kme_jax._numerics.text import said
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.opening import open_reader
from kme_jax.storage.formats.text import TextOptions
from kme_jax.table.columns import DROP, MAX_CATEGORIES, MAX_STEPS, SECONDS, is_label
from kme_jax.table.schema import WITH_WRITTEN

_COMMENT = (
    "Replace each null by public knowledge, never by what the rows say. Kinds: numeric (lower, upper; optionally "
    "integer, step, unit, scale: log for skewed numbers, knots, and decimal: a comma if text such as 1,5 is a "
    "number), categorical (categories), ordinal (categories, in order), datetime (lower, upper, resolution: day, "
    "hour, minute or second, optionally format); all with nullable, and optionally default, the value for cells that "
    "cannot be read, and missing, a list of words and numbers that stand for missing cells; drop (free text and "
    "identifiers, which are not looked at); id (new ids, optionally with a prefix) and constant (value), whatever the "
    "rows say, and weight (upper), by which rows are counted. Fields that a kind does not have may stay null."
)


def draft_schema(
    path: str | os.PathLike,
    public: bool = False,
    *,
    decimal: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """A draft of a schema for a file, with null where a person has to fill something in.

    Only names and types are read from a file that is not public; a .csv file has no types. Bounds and categories are
    also read from a public file, and the schema then says so.

    Args:
      path: of the .csv or .parquet file.
      public: whether all rows of the file are public.
      decimal: "." or ",": what stands before the decimals of numbers in text, see ``Numeric``. Columns that the draft
        knows to be numeric say so, if it is a comma.
      encoding, separator: of a .csv file, see ``open_table``.

    Returns:
      The JSON document for ``write_json``, and {name: reason} of columns that cannot be released. They are dropped in
      the document.

    Raises:
      FileError: as for ``open_reader``, names of columns are numbers, cells are not separated by commas, or a public
        file has no rows.
      ValueError: the decimal sign, the encoding or the separator is not valid.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f'decimal must be "." or ",", got {said(decimal)}')
    reader = open_reader(path, TextOptions(encoding, separator))
    if any(parse_float(name.encode()) is not None for name in reader.fields.names):
        # Otherwise a row of private numbers would become the published names of columns.
        raise FileError(f"{reader.label}: names of columns are numbers; is there a header line?")
    if public and not reader.count():
        raise FileError(f"{reader.label}: it has no rows")
    table = pa.Table.from_batches(reader.batches()) if public else None
    columns, left_out = [], {}
    for field in reader.fields:
        column = _draft(field.type)
        if table is not None and isinstance(column, dict):
            column = _draft_public(table.column(field.name), column, decimal == ",")
        if isinstance(column, str):
            left_out[field.name] = column
            columns.append({"name": field.name, "kind": DROP})
        else:
            comma = {"decimal": ","} if decimal == "," and column["kind"] == "numeric" else {}
            columns.append({"name": field.name} | column | comma)
    draft = {
        "schema_version": WITH_WRITTEN,  # so that all kinds may be filled in
        "filled_from_data": public,
        "columns": columns,
    }
    return draft if public else {"comment": _COMMENT} | draft, left_out


def _draft(kind: pa.DataType) -> dict[str, Any] | str:
    """The draft of a column from its type, or the reason why it cannot be released."""
    kind = plain_type(kind)
    bounds = {"lower": None, "upper": None}
    if pa.types.is_boolean(kind):
        return {"kind": "categorical", "categories": ["false", "true"], "nullable": None}
    if is_number(kind):
        return {"kind": "numeric"} | bounds | {"integer": pa.types.is_integer(kind), "nullable": None}
    if is_time(kind):
        resolution = "day" if pa.types.is_date(kind) else None
        return {"kind": "datetime"} | bounds | {"resolution": resolution, "nullable": None}
    if pa.types.is_binary(kind) or pa.types.is_null(kind):  # nothing is known, as in a .csv file
        return {"kind": None} | bounds | {"categories": None, "nullable": None}
    if is_text(kind):
        return {"kind": "categorical", "categories": None, "nullable": None}
    return f"its type, {kind}, is not one that can be released"


def _draft_public(column: pa.ChunkedArray, draft: dict[str, Any], with_comma: bool) -> dict[str, Any] | str:
    """The draft of a column from its public values, or the reason why it cannot be released."""
    values = column.unique()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        return draft | {"nullable": values.null_count > 0}
    if pa.types.is_null(values.type):
        return "it has no values"
    if is_number(values.type):
        return _draft_numbers(floats_of(values))
    if is_time(values.type):
        return _draft_times(seconds_of(values.drop_null()), values.null_count > 0)
    cells = set(text_cells(values))
    nullable = b"" in cells
    cells.discard(b"")
    if not cells:
        return "it has no values"
    times = [parse_time(cell) for cell in cells]
    numbers = [(parse_number_with_comma if with_comma else parse_float)(cell) for cell in cells]
    if pa.types.is_binary(values.type) and None not in numbers:  # of a .csv file; digits of another are meant as text
        return _draft_numbers(np.array(numbers + [math.nan] * nullable))
    if None not in times:
        return _draft_times(np.array(times), nullable)
    if len(cells) > MAX_CATEGORIES or len(cells) == len(column):
        return f"{len(cells)} different texts in {len(column)} rows: free text or identifiers cannot be released"
    # Text that is not UTF-8 cannot be a category.
    categories = sorted(
        text for cell in cells if is_label(text := cell.decode(errors="replace")) and text.encode() == cell
    )
    return {"kind": "categorical", "categories": categories, "nullable": nullable or len(categories) < len(cells)}


def _draft_numbers(numbers: Float[np.ndarray, "n"]) -> dict[str, Any] | str:
    """The draft of a column from its different numbers, where NaN is missing; or the reason why there is none."""
    nullable, numbers = bool(np.isnan(numbers).any()), numbers[np.isfinite(numbers)]
    if not len(numbers):
        return "it has no values"
    lower, upper = float(numbers.min()), float(numbers.max())
    largest = max(-lower, upper, upper - lower)
    if largest >= MAX_STEPS:
        return "its numbers are too large to be exact: identifiers cannot be released"
    exact = (d for d in range(5) if largest * 10**d < MAX_STEPS and np.array_equal(np.round(numbers, d), numbers))
    digits = next(exact, None)
    if digits == 0:
        fields = {"lower": int(lower), "upper": int(max(upper, lower + 1)), "integer": True}
    elif digits is None:
        fields = {"lower": lower, "upper": upper, "integer": False}
    else:
        fields = {"lower": lower, "upper": max(upper, round(lower + 10**-digits, digits)), "integer": False}
        fields["step"] = 10**-digits
    return {"kind": "numeric"} | fields | {"nullable": nullable}


def _draft_times(seconds: Int64[np.ndarray, "n"], nullable: bool) -> dict[str, Any] | str:
    """The draft of a column from its different times, in seconds since 1970; or the reason why there is none."""
    if not len(seconds):
        return "it has no values"
    resolution, unit = next((name, unit) for name, unit in SECONDS.items() if not (seconds % unit).any())
    bounds = np.array([seconds.min(), max(seconds.max(), seconds.min() + unit)]).astype("datetime64[s]")
    lower, upper = (str(bound.astype("datetime64[D]") if unit == 86400 else bound) for bound in bounds)
    return {"kind": "datetime", "lower": lower, "upper": upper, "resolution": resolution, "nullable": nullable}
