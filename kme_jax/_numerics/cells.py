"""Conversion of a single cell of private rows to a number or to text. The result depends on this cell alone.

The type of an array or a column depends on all of its cells: one text turns a column of bools into objects, and one
missing cell turns whole numbers into floats. So nothing here depends on such a type.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
import uuid
import warnings
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast, overload

import numpy as np

UNREADABLE = b"\xff"
"""Text that is not UTF-8, so it is not a value of any column."""

_WHOLE = re.compile(rb"(-?\d+)\.0*")  # a whole number with a decimal point
_WITH_COMMA = re.compile(rb"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+|(?=,))(?:,\d+)?")
_EXPONENT_WITH_COMMA = re.compile(rb"[+-]?(?:\d+|(?=,))(?:,\d+)?[eE][+-]?\d+")
_WITH_POINT = re.compile(rb"[+-]?(?:\d+\.\d*|\.\d+)")
_TRUTH = {b"true": 1.0, b"false": 0.0}
# Words that pandas.read_csv and pyarrow.csv read as missing, and the word that NumPy writes for a missing time.
_MISSING = frozenset(
    word.encode()
    for word in (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
        *("<NA>", "N/A", "NA", "NULL", "NaT", "None", "n/a", "null"),
    )
)
_NUMBERS = (bool, int, float, complex, np.bool_, np.number, Decimal, Fraction)
_NO_NUMBERS = (np.timedelta64, np.datetime64)  # NumPy counts a timedelta64 as a whole number
# These are unreadable as Arrow types, so they are unreadable as objects too.
_UNREADABLE_TYPES = (datetime.timedelta, list, tuple, dict, set, frozenset, np.ndarray, np.generic, memoryview, range)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)
FIRST_SECOND = (datetime.datetime(1, 1, 1) - _NAIVE_EPOCH) // _SECOND
LAST_SECOND = (datetime.datetime(9999, 12, 31, 23, 59, 59) - _NAIVE_EPOCH) // _SECOND


def parse_float(cell: bytes) -> float | None:
    """The number that a cell has in digits. NaN for an empty cell, None for other text."""
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
    """The number that text without blanks around it stands for.

    "true" and "false", in upper or lower case, are 1 and 0, because bools are written so. A complex number without an
    imaginary part is its real part.

    Returns:
      The number. NaN for text that stands for a missing cell, None for other text.
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
    """``parse_number`` of each cell."""
    numbers: list[float | None] = []
    for cell in cells:
        try:
            numbers.append(float(cell) if b"_" not in cell else None)
        except ValueError:
            numbers.append(parse_number(cell))
    return numbers


def parse_number_with_comma(cell: bytes) -> float | None:
    """The number that text without blanks around it stands for, if its decimals stand behind a comma.

    The text is one of these; a sign may stand before it:

    * digits, and maybe a comma and decimals: 1234 and 1234,5 and ,5
    * the same with a dot before every group of three digits: 1.234,5 and 12.345.678. Groups are complete, and the first
      digit is not 0, so 1.23 and 1.2345 and 1234.567 and 0.123 are no numbers.
    * a number with an exponent, with a comma or a point: 1,5e3 and 1.5e3. Programs write it, and it is never grouped.
    * other text, if it has no decimal point, is read as by ``parse_number``: words such as NA, inf and true.

    Returns:
      The number. NaN for text that stands for a missing cell, None for other text.
    """
    if _WITH_COMMA.fullmatch(cell):
        return float(cell.replace(b".", b"").replace(b",", b"."))
    if _EXPONENT_WITH_COMMA.fullmatch(cell):
        return float(cell.replace(b",", b"."))
    if _WITH_POINT.fullmatch(cell):
        return None
    return parse_number(cell)


def parse_time(cell: bytes) -> int | None:
    """Whole seconds since 1970 of ISO text, in UTC unless it names a zone; None for other text.

    A time outside of the years 1 to 9999 in UTC is moved to the first or the last second of these years.
    """
    try:
        return seconds_of(datetime.datetime.fromisoformat(cell.decode("ascii")))
    except (ValueError, OverflowError):
        return None


def seconds_of(time: datetime.datetime) -> int:
    """Whole seconds since 1970, as from ``parse_time``."""
    since = time - (_NAIVE_EPOCH if time.tzinfo is None else _EPOCH)
    seconds = since.days * 86400 + since.seconds
    if FIRST_SECOND <= seconds <= LAST_SECOND:
        return seconds
    return FIRST_SECOND if seconds < 0 else LAST_SECOND


def is_number_type(value: Any) -> bool:
    """Whether the type of an object is one of numbers, bools included."""
    return isinstance(value, _NUMBERS) and not isinstance(value, _NO_NUMBERS)


def number_of(value: Any) -> float | None:
    """A number of any type as float64, rounded once. None for a complex number with an imaginary part."""
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
    except OverflowError:  # whole numbers and fractions may be too large
        return math.inf if cast(Any, value) > 0 else -math.inf  # no complex number gets here


def _time(value: np.datetime64) -> bytes | None:
    """ISO text of a time; None for NaT."""
    if np.isnat(value):
        return None
    year = int(value.astype("datetime64[Y]").astype(np.int64)) + 1970  # before seconds, which could overflow
    if 1 <= year <= 9999:
        seconds = int(value.astype("datetime64[s]").astype(np.int64))
    else:
        seconds = FIRST_SECOND if year < 1 else LAST_SECOND
    return (_EPOCH + datetime.timedelta(seconds=seconds)).isoformat().encode()


def _digits(number: float) -> bytes:
    """A number as text, with an exponent: so 1.234 is not taken for 1234, where dots stand between thousands."""
    text = repr(number)
    return text.encode() if "e" in text or math.isinf(number) else f"{text}e0".encode()


@overload
def _text_of(value: str | bytes | bytearray) -> bytes: ...


@overload
def _text_of(value: Any) -> bytes | None: ...


def _text_of(value: Any) -> bytes | None:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str):
        return str.encode(value)  # its content, whatever its class shows
    if isinstance(value, bytes | bytearray):
        return b"".join([value])
    if is_number_type(value):
        number = number_of(value)
        if number is None:
            return UNREADABLE
        return None if math.isnan(number) else _digits(number)
    if isinstance(value, np.datetime64):
        return _time(value)
    if isinstance(value, datetime.datetime):
        exact = getattr(value, "asm8", None)  # pandas has more years than Python
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
    """Any object as the text of a cell: numbers as float64 with an exponent, times as ISO text in UTC.

    Returns:
      The text. None for a missing cell, ``UNREADABLE`` for an object without text, also if it raises an error.
    """
    try:
        return _text_of(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return UNREADABLE


def point_of(value: Any) -> float:
    """Any object as an entry of a row of numbers. NaN if it is missing or not a number."""
    try:
        if isinstance(value, str | bytes | bytearray):
            number = parse_number(_text_of(value).rstrip(b"\0").strip())  # arrays of text also drop NULs at the end
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
    """An array of any type and shape as numbers of the same shape: float32 if it is float32, otherwise float64.

    Each entry is converted by itself. It is NaN if it is missing, masked or not a number. Numbers are rounded to
    float64 as by ``point_of``.
    """
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), np.nan, points_of(array.data))
    kind = array.dtype
    if kind in (np.float32, np.float64):
        return array
    if kind.kind in "fiub":
        return array.astype(np.float64)
    if kind.kind == "c":
        real, imaginary = np.real(array).astype(np.float64), np.imag(array)
        return np.where(imaginary == 0, real, np.nan)
    if kind.kind in "Mm" or issubclass(kind.type, np.void):
        return np.full(array.shape, np.nan)
    if kind.kind == "V":  # JAX's floats of fewer bits
        return array.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # objects may warn when they are converted to a number
        return np.array([point_of(cell) for cell in array.astype(object).flat], np.float64).reshape(array.shape)


def id_of(value: Any) -> bytes | None:
    """The id that a cell of any type is, as text without blanks around it; None if it is none.

    What is no text, number, time or UUID is no id, also if it raises an error. See :func:`canonical_id`.
    """
    try:
        text = _id_of(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None
    return None if text is None else canonical_id(text)


def canonical_id(text: bytes) -> bytes | None:
    """The id that text is; None for an empty text.

    Blanks around it do not count. A whole number with a decimal point is the same id as without one: a program may
    write 7 as 7.0 if another cell of the column is missing.
    """
    text = text.strip()
    whole = _WHOLE.fullmatch(text)
    return (b"0" if whole[1] == b"-0" else whole[1]) if whole else text or None


def _id_of(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).encode()
    if isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64):
        return str(int(value)).encode()
    if isinstance(value, float | np.floating | Decimal):
        if not math.isfinite(value):
            return None
        return str(int(value)).encode() if value == int(value) else str(value).encode()
    if isinstance(value, datetime.date) and value == value:  # also datetimes and those of pandas; NaT is not itself
        return value.isoformat().encode()
    return str(value).encode() if isinstance(value, uuid.UUID) else None


_FORMAT = re.compile(r"%([dmYy])([./ -])%([dmYy])\2%([dmYy])(?:[ T]%H:%M(:%S)?)?")
_DIGITS = {"d": r"(\d{1,2})", "m": r"(\d{1,2})", "Y": r"(\d{4})", "y": r"(\d{2})"}
_PIVOT = 69  # years of two digits from here on are of the twentieth century, as in POSIX


@functools.lru_cache(64)
def _pattern_of(text: str) -> tuple[re.Pattern[bytes], str] | None:
    """The pattern of times in a format, and its letters in order; None if it is no format, see ``parse_time_in``."""
    found = _FORMAT.fullmatch(text)
    if found is None:
        return None
    first, sign, second, third, seconds = found.groups()
    letters = first + second + third
    if sorted(letters.lower()) != ["d", "m", "y"] or (first == "Y" and sign == "-"):
        return None
    pattern = re.escape(sign).join(_DIGITS[letter] for letter in letters)
    if "%H" in text:
        pattern += r"[ T](\d{1,2}):(\d{2})" + (r":(\d{2})" if seconds else "")
    return re.compile(pattern.encode(), re.ASCII), letters


def is_time_format(text: str) -> bool:
    """Whether it is a format for :func:`parse_time_in`."""
    return _pattern_of(text) is not None


def parse_time_in(text: str, cell: bytes) -> int | None:
    """A time in a format such as %d.%m.%Y, in whole seconds since 1970, as by ``parse_time``.

    A format has day, month and year, two equal signs of ". / -" or blanks between them, and maybe a time of day:
    %d.%m.%Y %H:%M, or with %S. The year comes not first with hyphens, as in ISO times: one cell of a DataFrame can turn
    typed times into ISO text, and this text must not be another time in the format.

    Args:
      text: the format.
      cell: without blanks around it.

    Returns:
      None if the cell is no such time.
    """
    pattern, letters = cast(tuple[re.Pattern[bytes], str], _pattern_of(text))
    found = pattern.fullmatch(cell)
    if found is None:
        return None
    numbers = [int(digits) for digits in found.groups()]
    of = dict(zip(letters, numbers, strict=False))
    year = of["Y"] if "Y" in of else of["y"] + (1900 if of["y"] >= _PIVOT else 2000)
    try:
        hour, minute, second = (*numbers[3:], 0, 0, 0)[:3]
        return seconds_of(datetime.datetime(year, of["m"], of["d"], hour, minute, second))
    except ValueError:  # no such day, or no such hour
        return None
