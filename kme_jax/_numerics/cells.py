"""One cell of private rows as a number, or as text, by what this cell is alone.

The type of an array or of a column depends on all of its cells: one text turns a column of bools into one of objects,
and one missing cell turns whole numbers into floats. Nothing here looks at such a type.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

UNREADABLE = b"\xff"
"""Text that is no value of any column, because it is not UTF-8."""

_TRUTH = {b"true": 1.0, b"false": 0.0}
# What pandas.read_csv and pyarrow.csv take for missing, and what NumPy writes for a missing time.
_MISSING = frozenset(
    word.encode()
    for word in (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
        *("<NA>", "N/A", "NA", "NULL", "NaT", "None", "n/a", "null"),
    )
)
_NUMBERS = (bool, int, float, complex, np.bool_, np.number, Decimal, Fraction)
_NO_NUMBERS = (np.timedelta64, np.datetime64)  # NumPy counts a timedelta64 as a whole number
# They are unreadable in Arrow, so they are unreadable as objects, too.
_UNREADABLE_TYPES = (datetime.timedelta, list, tuple, dict, set, frozenset, np.ndarray, np.generic, memoryview, range)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)
FIRST_SECOND = (datetime.datetime(1, 1, 1) - _NAIVE_EPOCH) // _SECOND
LAST_SECOND = (datetime.datetime(9999, 12, 31, 23, 59, 59) - _NAIVE_EPOCH) // _SECOND


def parse_float(cell: bytes) -> float | None:
    """A number written in digits; NaN for an empty cell; None for other text."""
    try:
        return float(cell or b"nan") if b"_" not in cell else None
    except ValueError:
        return None


def _real(value: complex | np.complexfloating) -> float | None:
    real, imaginary = float(value.real), float(value.imag)
    if math.isnan(real) or math.isnan(imaginary):
        return math.nan
    return real if imaginary == 0 else None


def parse_number(cell: bytes) -> float | None:
    """The number that a text without blanks around it stands for.

    "true" and "false", in any case, are 1 and 0: they are what is written for bools. A complex number without an
    imaginary part is its real part.

    Returns:
      NaN for text that stands for a missing cell; None for text that is no number.
    """
    number = parse_float(cell)
    if number is not None:
        return number
    if cell in _MISSING:
        return math.nan
    if cell.endswith((b"j", b"j)")) and b"_" not in cell:
        try:
            return _real(complex(cell.decode("ascii")))
        except ValueError:
            return None
    return _TRUTH.get(cell.lower()) if len(cell) < 6 else None


def parse_numbers(cells: Iterable[bytes]) -> list[float | None]:
    """``parse_number`` of several texts."""
    found: list[float | None] = []
    for cell in cells:
        try:
            found.append(float(cell) if b"_" not in cell else None)
        except ValueError:
            found.append(parse_number(cell))
    return found


def parse_time(cell: bytes) -> int | None:
    """Whole seconds since 1970 of ISO text, in UTC unless it names a zone; None for other text.

    What is outside of the years 1 to 9999 in UTC counts as their ends.
    """
    try:
        return seconds_of(datetime.datetime.fromisoformat(cell.decode("ascii")))
    except (ValueError, OverflowError):
        return None


def seconds_of(time: datetime.datetime) -> int:
    """Whole seconds since 1970, as ``parse_time`` has them."""
    since = time - (_NAIVE_EPOCH if time.tzinfo is None else _EPOCH)
    seconds = since.days * 86400 + since.seconds
    if FIRST_SECOND <= seconds <= LAST_SECOND:
        return seconds
    return FIRST_SECOND if seconds < 0 else LAST_SECOND


def is_number_type(value: Any) -> bool:
    """Whether an object is of a type of numbers; bools are."""
    return isinstance(value, _NUMBERS) and not isinstance(value, _NO_NUMBERS)


def number_of(value: Any) -> float | None:
    """An object of a type of numbers as float64, rounded once; NaN if it is; None for what has an imaginary part."""
    try:
        if isinstance(value, int):
            return int.__float__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, complex | np.complexfloating):
            return _real(value)
        if isinstance(value, Decimal) and value.is_nan():
            return math.nan
        return float(value)
    except OverflowError:  # of a whole number, or of a fraction
        return math.inf if value > 0 else -math.inf


def _time(value: np.datetime64) -> bytes | None:
    """ISO text of a time, or None if it is none."""
    if np.isnat(value):
        return None
    year = int(value.astype("datetime64[Y]").astype(np.int64)) + 1970  # before seconds, which could overflow
    if 1 <= year <= 9999:
        seconds = int(value.astype("datetime64[s]").astype(np.int64))
    else:
        seconds = FIRST_SECOND if year < 1 else LAST_SECOND
    return (_EPOCH + datetime.timedelta(seconds=seconds)).isoformat().encode()


def _text_of(value: Any) -> bytes | None:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str):
        return str.encode(value)  # what it holds, not what its class shows
    if isinstance(value, bytes | bytearray):
        return b"".join([value])
    if is_number_type(value):
        number = number_of(value)
        if number is None:
            return UNREADABLE
        return None if math.isnan(number) else repr(number).encode()
    if isinstance(value, np.datetime64):
        return _time(value)
    if isinstance(value, datetime.datetime):
        exact = getattr(value, "asm8", None)  # of pandas, whose years are more than those of Python
        if isinstance(exact, np.datetime64):
            return _time(exact)
        return (_EPOCH + datetime.timedelta(seconds=seconds_of(value))).isoformat().encode()
    if isinstance(value, datetime.date):
        return datetime.date.isoformat(value).encode()
    if isinstance(value, datetime.time):
        return UNREADABLE if value.tzinfo else datetime.time.isoformat(value).encode()
    if isinstance(value, np.timedelta64) and np.isnat(value):
        return None
    if isinstance(value, _UNREADABLE_TYPES):
        return UNREADABLE
    if hasattr(value, "as_py"):  # of pyarrow
        return _text_of(value.as_py())
    return str.encode(str(value))


def text_of(value: Any) -> bytes | None:
    """Any object as the text of a cell: numbers as float64, times as ISO text in UTC.

    Returns:
      None for a missing cell; ``UNREADABLE`` for what has no text, whatever the object does when it is asked.
    """
    try:
        return _text_of(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return UNREADABLE


def point_of(value: Any) -> float:
    """Any object as an entry of a row of numbers; NaN for what is missing or no number."""
    try:
        if isinstance(value, str | bytes | bytearray):
            number = parse_number(_text_of(value).rstrip(b"\0").strip())  # arrays of text drop NULs at the end, too
        elif is_number_type(value):
            number = number_of(value)
        elif isinstance(value, np.generic) or np.ndim(value):
            number = math.nan
        else:
            number = float(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return math.nan
    return math.nan if number is None else number


@np.errstate(all="ignore")
def points_of(array: np.ndarray) -> np.ndarray:
    """An array of any type and shape as one of float32, if it is one, or else of float64: each entry by itself.

    What is missing, masked or no number is NaN. Other numbers are rounded to float64, as ``point_of`` does it.
    """
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), np.nan, points_of(array.data))
    kind = array.dtype
    if kind in (np.float32, np.float64):
        return array
    if kind.kind in "fiub":
        return array.astype(np.float64)
    if kind.kind == "c":
        real, imaginary = array.real.astype(np.float64), array.imag
        return np.where(imaginary == 0, real, np.nan)
    if kind.kind in "Mm" or issubclass(kind.type, np.void):
        return np.full(array.shape, np.nan)
    if kind.kind == "V":  # floats of fewer bits, as JAX has them
        return array.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what objects do when they are asked for a number
        return np.array([point_of(cell) for cell in array.astype(object).flat], np.float64).reshape(array.shape)
