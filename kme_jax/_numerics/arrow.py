"""Conversion of Arrow arrays to numbers, seconds and bytes, each cell by itself."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64, Int, Int64

from kme_jax._numerics.cells import (
    parse_float,
    parse_time,
    point_of,
)

_MAX_INTEGER = 2**53  # beyond it, neighbouring whole numbers are no longer different floats
_TEXT = ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary"]


_NUMBERS = ["integer", "floating", "decimal", "boolean"]


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of text or bytes."""
    return any(getattr(pa.types, f"is_{name}")(kind) for name in _TEXT)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of numbers, bools included."""
    return any(getattr(pa.types, f"is_{name}")(kind) for name in _NUMBERS)


def is_time(kind: pa.DataType) -> bool:
    """Whether a type is one of dates or timestamps."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary type; any other type unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def text_cells(array: pa.Array) -> list[bytes]:
    """The cells of an array of text, without blanks around them. Missing cells are empty."""
    return [(cell or b"").strip() for cell in array.cast(pa.large_binary()).to_pylist()]


def taken_from(array: pa.Array, places: Int[np.ndarray, "n"]) -> pa.Array:
    """The values of an array at places [n]."""
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):  # pyarrow cannot take from views
        array = array.cast(pa.large_binary())
    return array.take(pa.array(places))


def missing_cells(array: pa.Array | pa.ChunkedArray) -> Bool[np.ndarray, "n"]:
    """Which cells are missing, [n]. PyArrow before 26 finds none in a union."""
    if pa.types.is_union(array.type):
        return np.array([not cell.is_valid for cell in array], bool)
    return array.is_null().to_numpy(zero_copy_only=False)


def floats_of(array: pa.Array) -> Float64[np.ndarray, "n"]:
    """An array of numbers as float64 [n]. Missing cells are NaN. Numbers beyond 2⁵³ are rounded."""
    if pa.types.is_decimal(array.type):
        return floats_of_decimals(array)
    return pc.cast(array, pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)


def floats_of_decimals(array: pa.Array) -> Float64[np.ndarray, "n"]:
    """Decimals as float64 [n], each rounded once. A division of two exact floats does so; other decimals go by text."""
    kind, missing = array.type, missing_cells(array)
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= 22 and len(array):
        words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        low = np.ascontiguousarray(words[::2])
        values = low / 10.0**kind.scale
        rest = np.zeros(len(array), bool)
        if kind.precision > 15:
            rest = (words[1::2] != low >> 63) | (low > _MAX_INTEGER) | (low < -_MAX_INTEGER)
    else:
        values, rest = np.empty(len(array)), np.ones(len(array), bool)
    values[missing] = np.nan
    rest &= ~missing
    if rest.any():
        values[rest] = [parse_float(str(number).encode()) for number in array.filter(pa.array(rest)).to_pylist()]
    return values


def seconds_of(array: pa.Array) -> Int64[np.ndarray, "n"]:
    """Whole seconds since 1970 of an array of dates or timestamps, int64 [n]. Missing cells are 0."""
    days = pa.types.is_date32(array.type)
    numbers = array.view(pa.int32() if days else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if days:
        return numbers * 86400
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    return numbers // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


def seconds_of_digits(number: float) -> int | None:
    """Whole seconds since 1970 of a day written as a number of eight digits; None for other numbers."""
    return parse_time(b"%d" % int(number)) if 1e7 <= number < 1e8 and number == int(number) else None


def parse_clock(cell: bytes) -> float | None:
    """Seconds since midnight of text such as 10:30; None for other text."""
    try:
        time = datetime.time.fromisoformat(cell.decode("ascii")) if cell[2:3] == b":" else None
    except ValueError:
        return None
    if time is None or time.tzinfo:
        return None
    return time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6


_PLAIN_NUMBER = r"^-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$"
_MAX_PLAIN = 64  # bytes: so many digits and such an exponent are within the range of float64


def numbers_of(array: pa.Array | pa.ChunkedArray) -> Float64[np.ndarray, "n"]:
    """Cells of any type as entries of rows of numbers, float64 [n], each by itself. NaN where there is no number.

    A cell becomes the same number as an object of an array does, see ``kme_jax._numerics.cells.point_of``.
    """
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([np.empty(0), *map(numbers_of, array.chunks)])
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        ends = np.asarray(array.run_ends.to_numpy(), np.int64) - array.offset
        lengths = np.diff(np.clip(ends, 0, len(array)), prepend=0)
        return np.repeat(numbers_of(array.values), lengths)
    if pa.types.is_dictionary(kind):
        numbers = np.append(numbers_of(array.dictionary), np.nan)
        places = array.indices.cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
        # Only damaged files have other indices.
        return numbers[np.where((places >= 0) & (places < len(numbers) - 1), places, len(numbers) - 1)]
    if is_number(kind):
        return floats_of(array)
    return _numbers_of_text(array.cast(pa.large_binary())) if is_text(kind) else np.full(len(array), np.nan)


def _numbers_of_text(cells: pa.Array) -> Float64[np.ndarray, "n"]:
    """Text as numbers [n], see :func:`numbers_of`.

    Arrow reads most cells. It rounds as Python does, and what it accepts is a number for Python, too. Python reads the
    others one by one.
    """
    filled = pc.if_else(pc.equal(pc.binary_length(cells), 0), None, cells)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return _parsed(filled)
    except pa.ArrowInvalid:
        pass
    short = pc.less_equal(pc.binary_length(filled), _MAX_PLAIN)  # pyright: ignore[reportAttributeAccessIssue]
    plain = pc.and_(pc.match_substring_regex(filled, _PLAIN_NUMBER), short).fill_null(False)  # pyright: ignore[reportAttributeAccessIssue]
    is_plain = plain.to_numpy(zero_copy_only=False)
    numbers = np.empty(len(cells))
    numbers[is_plain] = _parsed(filled.filter(plain))
    numbers[~is_plain] = [point_of(cell or b"") for cell in cells.filter(pc.invert(plain)).to_pylist()]  # pyright: ignore[reportAttributeAccessIssue]
    return numbers


def _parsed(cells: pa.Array) -> Float64[np.ndarray, "n"]:
    """Text as numbers by Arrow, NaN for missing cells. Raises ArrowInvalid if a cell is not one."""
    return pc.cast(cells.view(pa.large_string()), pa.float64()).to_numpy(zero_copy_only=False)
