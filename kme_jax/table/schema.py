"""What the columns of a table may hold, from public knowledge, as JSON that a person writes; and their cells as codes.

A code is the number of a value on the finest grid of its column. What a cell holds never raises an error or a warning:
what is beyond a bound goes to it, what is missing or no value of the column goes to the code for missing cells, or to a
public default.

The code of a cell depends on this cell and on the schema, and on nothing else. The type of a column does not count,
because one row can change it: one text among bools makes them objects, and one missing cell makes whole numbers floats.
So every type is accepted, and text and typed cells are read alike:

* A cell is missing, a number, a time (an instant in whole seconds, in UTC unless it names a zone), text, or unreadable.
  Missing are None, NaN, NaT, blank text, and the words that readers of .csv files take for missing cells.
* A bool is the number 1 or 0, and so are the words true and false. A complex number without an imaginary part is its
  real part. Lists, structs, durations and all other types are unreadable.
* In a numeric column numbers are read, and text that is a number. Decimals are rounded once, from their text.
* In a column of categories text is the category of exactly this text. Other text, and typed cells, are the category
  with the same number, the same time, or the same time of day: 1, 1.0, "01" and true are the category "1". A number
  that is exactly one of 32 or of 16 bits, and not whole, is also the only category that is rounded to it.
* In a column of times times are read, text that is an ISO time, and whole numbers of eight digits: 20240301 is a day.

Categories that are the same number or time ("1" and "01") can be told apart in a .csv file alone, which has only text.
So can a category that is a word for missing cells ("NA"), unless missing cells count as this category. A table from
anywhere else is refused with such a schema, whatever it holds.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kme_jax.cells import FIRST_SECOND, LAST_SECOND, parse_float, parse_number, parse_numbers, parse_time
from kme_jax.files import FileError, new_file
from kme_jax.table import files

SCHEMA_VERSION = 1
MAX_CATEGORIES = 4096
MISSING = "missing"
_DEFAULT_POINTS = 2**16  # of the grid of a numeric column without a step
# Beyond them neighbours on a grid are no longer different numbers.
_MAX_INTEGER = 2**53
_MAX_STEPS = 2**50
_MAX_NUMBER = 1e300  # so that differences are finite
_SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_MAX_LABEL = 1000
_LABEL = f"text of at most {_MAX_LABEL} printable characters, without blanks around it"
_PUBLIC_KNOWLEDGE = "from public knowledge, never from the rows"
_REMEDIES = {
    "kind": "fill in numeric, categorical, ordinal or datetime",
    "lower": f"fill in a bound {_PUBLIC_KNOWLEDGE}",
    "upper": f"fill in a bound {_PUBLIC_KNOWLEDGE}",
    "categories": f"list them, {_PUBLIC_KNOWLEDGE}",
    "resolution": f"fill in {', '.join(_SECONDS)}",
    "nullable": "fill in true if cells may be missing, or false",
}


# -- types of columns


_TEXT = ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary"]
_NUMBERS = ["integer", "floating", "decimal", "boolean"]


def _is_text(kind: pa.DataType) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in _TEXT)


def _is_number(kind: pa.DataType) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in _NUMBERS)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# -- cells


def _text_cells(array: pa.Array) -> list[bytes]:
    """Of an array of text: without blanks around them, empty for missing ones."""
    return [(cell or b"").strip() for cell in array.cast(pa.large_binary()).to_pylist()]


def _taken(array: pa.Array, places: np.ndarray) -> pa.Array:
    """Some of the values of an array."""
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):  # there is no kernel for views
        array = array.cast(pa.large_binary())
    return array.take(pa.array(places))


def _floats(array: pa.Array) -> np.ndarray:
    """Of an array of numbers; NaN for missing ones. What is beyond 2⁵³ is rounded."""
    if pa.types.is_decimal(array.type):
        return _floats_of_decimals(array)
    return pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _floats_of_decimals(array: pa.Array) -> np.ndarray:
    """The floats that the texts of decimals are rounded to: a division of exact floats is, and text for the others."""
    kind, missing = array.type, array.is_null().to_numpy(zero_copy_only=False)
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


def _seconds(array: pa.Array) -> np.ndarray:
    """Whole seconds since 1970, int64, of an array of dates or timestamps; 0 for missing ones."""
    days = pa.types.is_date32(array.type)
    numbers = array.view(pa.int32() if days else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if days:
        return numbers * 86400
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    return numbers // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


def _seconds_of_digits(number: float) -> int | None:
    """Whole seconds since 1970 of a day that is written as a number of eight digits; None for other numbers."""
    return parse_time(b"%d" % int(number)) if 1e7 <= number < 1e8 and number == int(number) else None


def _parse_clock(cell: bytes) -> float | None:
    """Seconds since midnight of text such as 10:30; None for other text."""
    try:
        time = datetime.time.fromisoformat(cell.decode("ascii")) if cell[2:3] == b":" else None
    except ValueError:
        return None
    if time is None or time.tzinfo:
        return None
    return time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6


class _Marks(NamedTuple):
    """What is written for cells that are no value.

    Attributes:
      missing: for missing cells.
      unreadable: for cells that cannot be read.
      beyond: for values beyond a bound; None for the bound's code.
    """

    missing: int
    unreadable: int
    beyond: int | None = None


# -- columns


class Column(abc.ABC):
    """One column: its name, and the values that its codes stand for.

    Attributes:
      kind: as in the JSON.
      ordered: whether codes, the missing one aside, are in the order of values.
      name: in the file, without blanks around it.
      nullable: whether cells may be missing; the last code stands for these.
      default: where missing cells go in a column that is not nullable, and cells that cannot be read as a value in any.
        Without one, the latter are missing in a nullable column; in another, both go to the middle of the bounds, or to
        the first category.
    """

    kind: ClassVar[str]
    ordered: ClassVar[bool] = True
    name: str
    nullable: bool
    default: Any

    def __post_init__(self):
        if not _is_label(self.name):
            raise ValueError(f"column {files.said(self.name)}: a name must be {_LABEL}")
        if not isinstance(self.nullable, bool):
            raise self._error(f"nullable must be true or false, got {files.said(self.nullable)}")
        self._validate()
        if self.default is not None:
            if isinstance(self.default, bool | list | tuple | dict):
                raise self._error(f"default must be one of its values, got {files.said(self.default)}")
            self.code(self.default)

    def _error(self, text: str) -> ValueError:
        return ValueError(f"column {files.shown((self.name,))}: {text}")

    @abc.abstractmethod
    def _validate(self) -> None:
        """Raises ValueError."""

    @property
    @abc.abstractmethod
    def num_values(self) -> int:
        """How many different values there are."""

    @property
    def num_codes(self) -> int:
        """How many codes there are: one more than values in a nullable column."""
        return self.num_values + self.nullable

    @property
    @abc.abstractmethod
    def type(self) -> pa.DataType:
        """Of decoded values."""

    @property
    def _unreadable(self) -> int:
        """The code of cells that are no value."""
        if self.default is not None:
            return self.code(self.default)
        return self.num_values if self.nullable else self._fallback

    @property
    def _missing(self) -> int:
        return self.num_values if self.nullable else self._unreadable

    @property
    def _fallback(self) -> int:
        return (self.num_values - 1) // 2

    def encode(self, array: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Codes [n], int64, of any cells of any type: of each by itself."""
        return self._encode(array, _Marks(self._missing, self._unreadable))

    def look(self, array: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Codes [n] as ``encode`` has them, but −1 for missing cells, −2 for unreadable ones and −3 for values beyond a
        bound. SENSITIVE, as codes are.
        """
        return self._encode(array, _Marks(-1, -2, -3))

    def _encode(self, array: pa.Array | pa.ChunkedArray, marks: _Marks) -> np.ndarray:
        if isinstance(array, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *(self._encode(chunk, marks) for chunk in array.chunks)])
        kind = array.type
        if pa.types.is_run_end_encoded(kind):
            ends = np.asarray(array.run_ends.to_numpy(), np.int64) - array.offset
            lengths = np.diff(np.clip(ends, 0, len(array)), prepend=0)
            return np.repeat(self._encode(array.values, marks), lengths)
        if self._by_value(kind) and (pa.types.is_decimal(kind) or pa.types.is_float16(kind)):
            array = pa.array(_floats(array))  # some of these have no kernel for dictionaries
        if not pa.types.is_dictionary(kind) and self._by_value(array.type):
            array = array.dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            return self._encode_values(array, marks)
        dictionary, places = array.dictionary, array.indices.cast(pa.int64(), safe=False)
        ends = pc.min_max(places).as_py()
        if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < len(dictionary):  # in damaged files
            known = pc.and_(pc.greater_equal(places, 0), pc.less(places, len(dictionary)))
            places = pc.if_else(known, places, len(dictionary))
        places = places.fill_null(len(dictionary) + 1).to_numpy()
        if len(dictionary) > len(array) + 2:  # batches may share one that is as long as the table
            used, places = np.unique(places, return_inverse=True)
            codes = np.where(used == len(dictionary), marks.unreadable, marks.missing)
            within = used < len(dictionary)
            codes[within] = self._encode_values(_taken(dictionary, used[within]), marks)
        else:
            codes = np.append(self._encode_values(dictionary, marks), [marks.unreadable, marks.missing])
        return np.take(codes, places)

    def _by_value(self, kind: pa.DataType) -> bool:
        """Whether different cells should be looked at once each."""
        return _is_text(kind)

    def _encode_values(self, array: pa.Array, marks: _Marks) -> np.ndarray:
        kind = array.type
        if pa.types.is_null(kind):
            return np.full(len(array), marks.missing)
        if _is_text(kind):
            return self._encode_text(_text_cells(array), marks)
        if pa.types.is_time(kind):
            return self._encode_text(_text_cells(array.cast(pa.string())), marks)
        if _is_number(kind):
            return self._encode_numbers(_floats(array), marks)
        if _is_time(kind):
            codes = self._encode_times(_seconds(array), marks)
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            return self._encode(array, marks)
        else:
            codes = np.full(len(array), marks.unreadable)
        codes[array.is_null().to_numpy(zero_copy_only=False)] = marks.missing
        return codes

    @abc.abstractmethod
    def _encode_text(self, cells: Sequence[bytes], marks: _Marks) -> np.ndarray:
        """Codes of text without blanks around it."""

    @abc.abstractmethod
    def _encode_numbers(self, values: np.ndarray, marks: _Marks) -> np.ndarray:
        """Codes of float64 numbers, of which NaN is missing."""

    @abc.abstractmethod
    def _encode_times(self, seconds: np.ndarray, marks: _Marks) -> np.ndarray:
        """Codes of whole seconds since 1970."""

    def decode(self, codes: np.ndarray) -> pa.Array:
        """Values of codes [m], null for missing ones.

        Raises:
          ValueError: other numbers.
        """
        codes = np.asarray(codes, np.int64)
        if codes.size and not 0 <= codes.min() <= codes.max() < self.num_codes:
            raise self._error(f"codes must be at least 0 and below {self.num_codes}")
        missing = codes == self.num_values
        values = self._decode_values(np.where(missing, 0, codes))
        return pc.if_else(pa.array(missing), pa.scalar(None, self.type), values)

    @abc.abstractmethod
    def _decode_values(self, codes: np.ndarray) -> pa.Array:
        """Values of codes that are not missing."""

    def labels(self, codes: np.ndarray) -> list[str]:
        """Of codes [m], for people."""
        return [MISSING if value is None else self._label(value) for value in self.decode(codes).to_pylist()]

    def _label(self, value: Any) -> str:
        return str(value)

    def code(self, value: Any) -> int:
        """The code of a public value, a number or text as labels have it; of None or "missing", too.

        Raises:
          ValueError: no value of this column.
        """
        try:
            text = MISSING if value is None else str(value).strip()
        except ValueError:  # a whole number of thousands of digits
            raise self._error(f"{files.said(value)} is not one of its values, {self._values_in_words}") from None
        code = self._find(text)
        if code is not None:
            return code
        if text != MISSING:
            raise self._error(f"{files.said(text)} is not one of its values, {self._values_in_words}")
        if not self.nullable:
            raise self._error("no cell is missing: it is not nullable")
        return self.num_values

    @abc.abstractmethod
    def _find(self, text: str) -> int | None:
        """The code of exactly this value."""

    def below(self, text: str) -> tuple[int, int]:
        """How many values are below a public one of an ordered column, and how many are not above it. It need not be
        on the grid, or within the bounds.

        Raises:
          ValueError: it cannot be compared with values of this column.
        """
        code = self._find(text.strip())
        if code is None:
            raise self._error(f"{files.said(text)} is not one of its values, {self._values_in_words}")
        return code, code + 1

    @property
    @abc.abstractmethod
    def _values_in_words(self) -> str:
        """All values, for errors."""

    def check(self, array: pa.Array | pa.ChunkedArray) -> None:
        """Refuses an array with other values. Not for private rows: it tells what they hold.

        Raises:
          ValueError: values that are not on the grid, or missing and must not be; another type.
        """
        try:
            families = (_is_text, _is_number, pa.types.is_date, pa.types.is_timestamp)
            if not any(family(_plain(array.type)) and family(self.type) for family in families):
                raise pa.ArrowTypeError
            array = array.cast(self.type)
        except pa.ArrowException:
            raise self._error(f"type {array.type}, expected {self.type}") from None
        valid = self._is_valid(array).fill_null(False).to_numpy(zero_copy_only=False)
        if self.nullable:
            valid = valid | array.is_null().to_numpy(zero_copy_only=False)
        if not valid.all():
            raise self._error(f"{np.sum(~valid)} cells are no values of it, the first in row {np.argmin(valid) + 1}")

    def _is_valid(self, array: pa.Array | pa.ChunkedArray) -> Any:
        return pc.equal(array, self.decode(self.encode(array)))

    def to_json(self) -> dict[str, Any]:
        """Fields that are not at their defaults."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {"name": self.name, "kind": self.kind} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != defaults[name]
        }


def _is_label(text: Any) -> bool:
    """Whether it is text that a stripped cell in UTF-8 can be, and that is what it looks like."""
    return isinstance(text, str) and 0 < len(text) <= _MAX_LABEL and text.strip() == text and text.isprintable()


@dataclasses.dataclass(frozen=True)
class Numeric(Column):
    """Numbers from a lower to an upper bound, on a grid.

    Attributes:
      lower: the value of code 0.
      upper: the value of the last code; both are on the grid.
      integer: whether values are whole numbers.
      step: of the grid. Default: 1 for integers; for others a grid of 2¹⁶ points.
      unit: for people.
    """

    kind = "numeric"
    name: str
    lower: float
    upper: float
    integer: bool = False
    step: float | None = None
    unit: str | None = None
    nullable: bool = False
    default: float | None = None

    def _validate(self):
        if not isinstance(self.integer, bool):
            raise self._error(f"integer must be true or false, got {files.said(self.integer)}")
        if self.unit is not None and not (self.unit == "" or _is_label(self.unit)):
            raise self._error(f"unit must be {_LABEL}, got {files.said(self.unit)}")
        for field in ("lower", "upper", *["step"] * (self.step is not None)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"{field} must be a number, got {files.said(value)}; {_REMEDIES['lower']}")
            if not abs(value) < _MAX_NUMBER:
                raise self._error(f"{field} must be finite; {_REMEDIES['lower']}")
            if self.integer and value != int(value):
                raise self._error(f"{field} must be a whole number in an integer column, got {value}")
            object.__setattr__(self, field, int(value) if self.integer else float(value))
        if not self.lower < self.upper:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")
        if self.step is not None and self.step <= 0:
            raise self._error(f"step must be positive, got {self.step}")
        if self._largest >= self._step * (_MAX_INTEGER if self.integer else _MAX_STEPS):
            raise self._error("its grid is too large for exact numbers: take closer bounds, or a larger step")
        steps = (self.upper - self.lower) / self._step
        if abs(steps - round(steps)) > 1e-6:
            reached = self.lower + max(1, round(steps)) * self._step
            raise self._error(f"upper is {self.upper}, which steps of {self.step} miss; take {reached:.15g}")

    @property
    def _step(self) -> float:
        if self.step is None:
            return 1 if self.integer else (self.upper - self.lower) / (_DEFAULT_POINTS - 1)
        return self.step

    @property
    def _largest(self) -> float:
        return max(abs(self.lower), abs(self.upper), self.upper - self.lower)

    @property
    def _is_fine(self) -> bool:
        """Whether all numbers within the bounds are valid, and the grid is no more than a means to encode them."""
        return self.step is None and not self.integer

    @property
    def _digits(self) -> int:
        """After the point, of values on the grid; without a step, as many as tell them apart."""
        if self.step is None:
            return max(0, math.ceil(-math.log10(self._step)))
        return max(0, *(-Decimal(repr(number)).normalize().as_tuple().exponent for number in (self.lower, self.step)))

    @property
    def num_values(self) -> int:
        return round((self.upper - self.lower) / self._step) + 1

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.integer else pa.float64()

    @np.errstate(all="ignore")
    def _nearest(self, values: Any) -> Any:
        """Codes as floats; NaN stays."""
        return np.rint((np.clip(values, self.lower, self.upper) - self.lower) / self._step)

    def _encode_numbers(self, values, marks):
        codes = self._nearest(values)
        codes[np.isnan(values)] = marks.missing
        if marks.beyond is not None:
            codes[(values < self.lower) | (values > self.upper)] = marks.beyond
        return codes.astype(np.int64)

    def _encode_text(self, cells, marks):
        numbers = parse_numbers(cells)
        codes = self._encode_numbers(np.array(numbers, np.float64), marks)
        codes[[number is None for number in numbers]] = marks.unreadable
        return codes

    def _encode_times(self, seconds, marks):
        return np.full(len(seconds), marks.unreadable)

    def _decode_values(self, codes):
        values = self.lower + codes * self._step
        if self.step is not None and self._digits < 16 and self._largest * 10**self._digits < _MAX_INTEGER:
            values = np.round(values, self._digits)  # 12.34, not 12.340000000000002
        return pa.array(np.clip(values, self.lower, self.upper), self.type)

    def _label(self, value):
        return str(value) if self.integer else f"{value:.{self._digits}f}"

    def _find(self, text):
        number = parse_float(text.encode(errors="replace"))
        if number is None or not self.lower <= number <= self.upper:
            return None
        code = int(self._nearest(number))
        return code if self._is_fine or self._decode_values(np.array([code]))[0].as_py() == number else None

    def below(self, text):
        number = parse_float(text.strip().encode(errors="replace"))
        if number is None or math.isnan(number):
            raise self._error(f"{files.said(text)} is no number")
        if not self.lower <= number <= self.upper:
            return (0, 0) if number < self.lower else (self.num_values, self.num_values)
        code = int(self._nearest(number))
        value = self._decode_values(np.array([code]))[0].as_py()
        if self._is_fine or value == number:
            return code, code + 1
        return (code, code) if value > number else (code + 1, code + 1)

    @property
    def _values_in_words(self):
        steps = "" if self._is_fine else f" in steps of {self._step}"
        return f"{self.lower} to {self.upper}{steps}"

    def _is_valid(self, array):
        if not self._is_fine:
            return super()._is_valid(array)
        return pc.and_(pc.greater_equal(array, self.lower), pc.less_equal(array, self.upper))


_NARROW = ("float32", "float16")


def _key(cell: bytes) -> tuple[str, float] | None:
    """The number, the time or the time of day that text stands for; None for other text."""
    number = parse_number(cell)
    if number is not None:
        return None if math.isnan(number) else ("number", number)
    for name, value in (("time", parse_time(cell)), ("clock", _parse_clock(cell))):
        if value is not None:
            return name, value
    return None


def _unique(pairs: Iterable[tuple[Any, int]]) -> dict[Any, int | None]:
    """The code of each key that is not None; None for keys of several codes."""
    found: dict[Any, int | None] = {}
    for key, code in pairs:
        if key is not None:
            found[key] = None if key in found else code
    return found


@dataclasses.dataclass(frozen=True)
class Categorical(Column):
    """One of some texts. A cell that is a number or a time is the category that is the same number or time.

    Attributes:
      categories: different, at most 4096.
    """

    kind = "categorical"
    ordered = False
    name: str
    categories: tuple[str, ...]
    nullable: bool = False
    default: str | None = None

    def _validate(self):
        if isinstance(self.categories, str) or not isinstance(self.categories, Sequence):
            raise self._error(f"categories must be a list, got {files.said(self.categories)}")
        if len(self.categories) > MAX_CATEGORIES:
            raise self._error(
                f"{len(self.categories)} categories, more than {MAX_CATEGORIES}: group them, or remove the column "
                "(free text and identifiers cannot be released)"
            )
        if not self.categories:
            raise self._error("the list of categories is empty")
        for category in self.categories:
            if not _is_label(category):
                raise self._error(f"a category must be {_LABEL}, got {files.said(category)}")
        if self.nullable and MISSING in self.categories:
            raise self._error(f"a category is named {MISSING!r}, as missing cells of a nullable column are: rename it")
        object.__setattr__(self, "categories", tuple(self.categories))
        if len(set(self.categories)) < len(self.categories):
            twice = [name for i, name in enumerate(self.categories) if name in self.categories[:i]]
            raise self._error(f"categories appear more than once: {files.shown(twice)}")

    @property
    def num_values(self) -> int:
        return len(self.categories)

    @property
    def type(self) -> pa.DataType:
        return pa.string()

    @property
    def _fallback(self):
        return 0

    @functools.cached_property
    def _keys(self) -> dict[tuple[str, float], int | None]:
        """The code of each number, time and time of day that a category is; None for those of several."""
        return _unique((_key(category.encode()), code) for code, category in enumerate(self.categories))

    @functools.cached_property
    @np.errstate(all="ignore")
    def _narrow(self) -> dict[tuple[str, float], int | None]:
        """The code of each number of 32 and of 16 bits that a category is rounded to; None for those of several."""
        found = [(key[1], code) for key, code in self._keys.items() if key[0] == "number" and code is not None]
        found = [(number, code) for number, code in found if math.isfinite(number) and number != int(number)]
        return _unique(((kind, float(np.dtype(kind).type(x))), code) for kind in _NARROW for x, code in found)

    def missing_word(self) -> str | None:
        """The first category, if there is any, that a missing cell could mean, and that missing cells do not count as:
        programs read "nan" or "NA" as missing where the other cells of a column are numbers, and as text elsewhere."""
        for code, category in enumerate(self.categories):
            number = parse_number(category.encode())
            if number is not None and math.isnan(number) and code != self._missing:
                return category
        return None

    def one_of_two(self) -> tuple[str, str] | None:
        """The first two categories, if there are any, that a number or a time could mean alike."""
        seen: dict[tuple[str, float], str] = {}
        for category in self.categories:
            key = _key(category.encode())
            if key is not None and seen.setdefault(key, category) != category:
                return seen[key], category
        return None

    def _by_value(self, kind):
        return _is_text(kind) or _is_number(kind) or _is_time(kind)

    @np.errstate(all="ignore")
    def _of_number(self, number: float, marks: _Marks) -> int:
        if math.isnan(number):
            return marks.missing
        key = ("number", number)
        if key in self._keys:
            code = self._keys[key]
        elif not self._narrow or math.isinf(number) or number == int(number):
            code = None
        else:
            exact = (kind for kind in _NARROW if float(np.dtype(kind).type(number)) == number)
            codes = (self._narrow.get((kind, number)) for kind in exact)
            code = next((code for code in codes if code is not None), None)
        return marks.unreadable if code is None else code

    def _of_text(self, cell: bytes, marks: _Marks) -> int:
        """The code of text that is no category."""
        number = parse_number(cell)
        if number is not None:
            return self._of_number(number, marks)
        code = self._keys.get(_key(cell)) if self._keys else None
        return marks.unreadable if code is None else code

    def _encode_text(self, cells, marks):
        codes = {category.encode(): code for code, category in enumerate(self.categories)} | {b"": marks.missing}
        return np.array([codes[cell] if cell in codes else self._of_text(cell, marks) for cell in cells], np.int64)

    def _encode_numbers(self, values, marks):
        return np.array([self._of_number(number, marks) for number in values.tolist()], np.int64)

    def _encode_times(self, seconds, marks):
        times = np.clip(seconds, FIRST_SECOND, LAST_SECOND).tolist()
        codes = [self._keys.get(("time", time)) for time in times]
        return np.array([marks.unreadable if code is None else code for code in codes], np.int64)

    def _decode_values(self, codes):
        return pa.array(self.categories, self.type).take(pa.array(codes))

    def _find(self, text):
        return self.categories.index(text) if text in self.categories else None

    @property
    def _values_in_words(self):
        return files.shown(self.categories)


@dataclasses.dataclass(frozen=True)
class Ordinal(Categorical):
    """Categories in an order."""

    kind = "ordinal"
    ordered = True


@dataclasses.dataclass(frozen=True)
class Datetime(Column):
    """Dates, or times in UTC, from a lower to an upper bound.

    Attributes:
      lower: ISO text.
      upper: ISO text.
      resolution: "day", "hour", "minute" or "second"; what is finer is cut off.
    """

    kind = "datetime"
    name: str
    lower: str
    upper: str
    resolution: str
    nullable: bool = False
    default: str | None = None

    def _validate(self):
        if not isinstance(self.resolution, str) or self.resolution not in _SECONDS:
            raise self._error(f"resolution must be one of {', '.join(_SECONDS)}, got {files.said(self.resolution)}")
        for field in ("lower", "upper"):
            value = getattr(self, field)
            if not isinstance(value, str) or parse_time(value.encode(errors="replace")) is None:
                raise self._error(
                    f"{field} must be ISO text as in 2024-03-01 or 2024-03-01T12:30, got {files.said(value)}"
                )
        if not self._first < self._last:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")

    def _units(self, text: str) -> int | None:
        seconds = parse_time(text.encode(errors="replace"))
        return None if seconds is None else seconds // _SECONDS[self.resolution]

    @property
    def _first(self) -> int:
        return self._units(self.lower)

    @property
    def _last(self) -> int:
        return self._units(self.upper)

    @property
    def num_values(self) -> int:
        return self._last - self._first + 1

    @property
    def type(self) -> pa.DataType:
        return pa.date32() if self.resolution == "day" else pa.timestamp("s")

    def _encode_times(self, seconds, marks):
        units = seconds // _SECONDS[self.resolution]
        codes = np.clip(units, self._first, self._last) - self._first
        if marks.beyond is not None:
            codes[(units < self._first) | (units > self._last)] = marks.beyond
        return codes

    def _encode_some(self, times: Sequence[int | None], missing: np.ndarray, marks: _Marks) -> np.ndarray:
        """Codes of seconds, of which None is unreadable."""
        codes = self._encode_times(np.array([time or 0 for time in times], np.int64), marks)
        codes[[time is None for time in times]] = marks.unreadable
        codes[missing] = marks.missing
        return codes

    def _encode_text(self, cells, marks):
        times = [parse_time(cell) for cell in cells]
        missing = np.zeros(len(cells), bool)
        # Text with a hyphen in the fifth place that is a time is no number. Other text may be one, which comes first.
        for place, (cell, time) in enumerate(zip(cells, times, strict=True)):
            if time is None or cell[4:5] != b"-":
                number = parse_number(cell)
                if number is not None:
                    times[place], missing[place] = _seconds_of_digits(number), math.isnan(number)
        return self._encode_some(times, missing, marks)

    def _encode_numbers(self, values, marks):
        different, places = np.unique(values, return_inverse=True)
        times = [_seconds_of_digits(number) for number in different.tolist()]
        return self._encode_some(times, np.isnan(different), marks)[places]

    def _decode_values(self, codes):
        units = self._first + codes
        if self.resolution == "day":
            return pa.array(units.astype(np.int32)).cast(self.type)
        return pa.array(units * _SECONDS[self.resolution]).cast(self.type)

    def _label(self, value):
        if self.resolution == "day":
            return value.isoformat()
        return value.isoformat(sep=" ", timespec="seconds" if self.resolution == "second" else "minutes")

    def _find(self, text):
        at, after = self.below(text) if self._units(text) is not None else (0, 0)
        return at if at < after else None

    def below(self, text):
        seconds = parse_time(text.strip().encode(errors="replace"))
        if seconds is None:
            raise self._error(f"{files.said(text)} is no date or time, as in {self.lower}")
        unit = _SECONDS[self.resolution]
        ends = (-(-seconds // unit), seconds // unit + 1)
        return tuple(min(max(end - self._first, 0), self.num_values) for end in ends)

    @property
    def _values_in_words(self):
        return f"{self.lower} to {self.upper}"


KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Numeric, Categorical, Ordinal, Datetime)}
_FIELDS = {kind: {field.name: field for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


def _column(entry: Any, place: int) -> Column:
    """From JSON."""
    if not isinstance(entry, dict):
        raise ValueError(f"column {place}: expected an object with name and kind")
    name, kind = entry.get("name"), entry.get("kind")
    label = f"column {files.shown((name,)) if isinstance(name, str) else place}"
    if kind is None:
        raise ValueError(f"{label}: kind is null: {_REMEDIES['kind']}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{label}: unknown kind {files.said(kind)} (known: {', '.join(KINDS)}); free text and identifiers cannot "
            "be released: remove the column from the schema and from the file"
        )
    fields = _FIELDS[kind]
    for key, value in entry.items():
        if key not in fields and key != "kind":
            if all(key not in others for others in _FIELDS.values()):
                raise ValueError(f"{label}: unknown field {files.said(key)} (known: {', '.join(['kind', *fields])})")
            if value is not None:
                raise ValueError(f"{label}: field {files.shown((key,))} does not apply to kind {kind}: remove it")
    given = {key: entry[key] for key in fields if key in entry}
    for key, field in fields.items():
        if given.get(key, field.default) in (None, dataclasses.MISSING) and field.default is not None:
            raise ValueError(
                f"{label}: {key} is {'null' if key in given else 'not given'}: {_REMEDIES.get(key, 'say it')}"
            )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return KINDS[kind](**values)


@dataclasses.dataclass(frozen=True)
class Schema:
    """Of a table: public, and not from its rows.

    Attributes:
      columns: C of them, in the order in which they are released.
      filled_from_data: whether a public file told bounds and categories.
    """

    columns: tuple[Column, ...]
    filled_from_data: bool = False

    def __post_init__(self):
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise ValueError("the schema has no columns")
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise ValueError(f"more than one column is named {files.shown(twice)}; rename or drop one")
        if not isinstance(self.filled_from_data, bool):
            raise ValueError(f"filled_from_data must be true or false, got {files.said(self.filled_from_data)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(column.name for column in self.columns)

    def index(self, name: str) -> int:
        """The place of a column.

        Raises:
          ValueError: no such column.
        """
        if name not in self.names:
            raise ValueError(f"no column {files.said(name)} in the schema, which has {files.shown(self.names)}")
        return self.names.index(name)

    def check_fields(self, fields: pa.Schema) -> None:
        """Refuses a table by the names of its columns. Types do not count, because one row can decide them.

        Raises:
          ValueError: columns missing, or extra.
        """
        missing = [name for name in self.names if name not in fields.names]
        extra = [name for name in fields.names if name not in self.names]
        if len(missing) == len(self.names):
            # The names found are not shown: without a header line they would be cells.
            raise ValueError(f"it has none of the schema's columns ({files.shown(missing)}), or no header line")
        if missing or extra:
            texts = [f"it lacks the schema's {files.shown(missing)}"] * bool(missing)
            texts += [f"the schema lacks {files.shown(extra)}: drop extra columns, or add them to the schema"] * bool(
                extra
            )
            raise ValueError("; ".join(texts))

    def check_keys(self) -> None:
        """Refuses this schema for tables that are not raw text, whatever these hold: see the top of this module.

        Raises:
          ValueError: two categories of a column are the same number or time; a category is a word for missing cells,
            and missing cells do not count as this category.
        """
        for column in self.columns:
            if not isinstance(column, Categorical):
                continue
            word = column.missing_word()
            if word is not None:
                raise column._error(
                    f"the category {files.shown((word,))} is a word that programs also read as a missing cell: let it "
                    "be the default of a column that is not nullable, rename it, or give a .csv file"
                )
            found = column.one_of_two()
            if found is not None:
                raise column._error(
                    f"categories {files.shown(found[:1])} and {files.shown(found[1:])} are the same number or time, "
                    "which only a .csv file tells apart: rename or merge the categories, or give a .csv file"
                )

    def encode(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Codes [n, C], int64, of any rows, column after column in memory. The code of a cell depends on this cell and
        on the schema alone.

        Raises:
          ValueError: see ``check_fields``.
        """
        self.check_fields(batch.schema)
        codes = np.empty((batch.num_rows, len(self.columns)), np.int64, order="F")
        for place, column in enumerate(self.columns):
            codes[:, place] = column.encode(batch.column(column.name))
        return codes

    def decode(self, codes: np.ndarray) -> pa.Table:
        """Rows of codes [m, C].

        Raises:
          ValueError: other shapes, or numbers that are no codes.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(f"expected codes of shape [rows, {len(self.columns)}], got {list(codes.shape)}")
        arrays = [column.decode(codes[:, place]) for place, column in enumerate(self.columns)]
        return pa.table(arrays, names=list(self.names))

    def check(self, table: pa.Table) -> None:
        """Refuses a table that has other values than the schema's. Not for private rows: it tells what they hold.

        Raises:
          ValueError: other columns, or in another order; cells that are no values; another type.
        """
        if tuple(table.column_names) != self.names:
            raise ValueError(f"columns must be {files.shown(self.names)}, got {files.shown(table.column_names)}")
        for column in self.columns:
            column.check(table.column(column.name))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "filled_from_data": self.filled_from_data,
            "columns": [column.to_json() for column in self.columns],
        }

    @classmethod
    def from_json(cls, document: Any) -> Schema:
        """From plain JSON values.

        Raises:
          ValueError: another version; fields that are unknown, not filled in or of a wrong type.
        """
        if not isinstance(document, dict) or not isinstance(document.get("columns"), list):
            raise ValueError('expected a JSON object with a list "columns"')
        version = document.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {files.said(version)}")
        unknown = sorted(document.keys() - {"schema_version", "filled_from_data", "columns", "comment"})
        if unknown:
            raise ValueError(f"unknown field {files.said(unknown[0])}")
        columns = tuple(_column(entry, place) for place, entry in enumerate(document["columns"], 1))
        return cls(columns, document.get("filled_from_data", False))

    @classmethod
    def read(cls, path: str | os.PathLike) -> Schema:
        """From a .json file.

        Raises:
          FileError: no such file, no JSON, or no schema that is filled in.
        """
        path = pathlib.Path(path)
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise FileError(f"{path}: is not a file")
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8-sig")))
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror})") from error
        except json.JSONDecodeError as error:
            raise FileError(f"{path}: line {error.lineno} is no JSON: {error.msg}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path}: is no JSON in UTF-8") from error
        except RecursionError as error:
            raise FileError(f"{path}: is no JSON of a schema: it is nested too deeply") from error
        except ValueError as error:
            raise FileError(f"{path}: {error}") from error

    def write(self, path: str | os.PathLike) -> None:
        """To a new .json file.

        Raises:
          FileError: it exists, or cannot be written.
        """
        write_json(path, self.to_json())

    @staticmethod
    def draft(path: str | os.PathLike, public: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
        """The JSON of a schema for a file, null where a person has to fill something in, and columns left out.

        Of a file that is not public only names and types are read; a .csv file has no types. A public one also tells
        bounds and categories, and the schema says so.

        Returns:
          What ``write_json`` writes; and {name: reason} of the columns that cannot be released.

        Raises:
          FileError: see ``open_reader``; names that are numbers; a public file without rows.
        """
        reader = files.open_reader(path)
        if any(parse_float(name.encode()) is not None for name in reader.fields.names):
            # They would be drafted, and published, as names.
            raise FileError(f"{reader.label}: names of columns are numbers; is there a header line?")
        if public and not reader.count():
            raise FileError(f"{reader.label}: it has no rows")
        table = pa.Table.from_batches(reader.batches()) if public else None
        columns, left_out = [], {}
        for field in reader.fields:
            found = _draft(field.type)
            if table is not None and isinstance(found, dict):
                found = _draft_public(table.column(field.name), found)
            if isinstance(found, str):
                left_out[field.name] = found
            else:
                columns.append({"name": field.name} | found)
        draft = {"schema_version": SCHEMA_VERSION, "filled_from_data": public, "columns": columns}
        return draft if public else {"comment": _COMMENT} | draft, left_out


def write_json(path: str | os.PathLike, document: dict[str, Any]) -> None:
    """Writes a schema or the draft of one to a new .json file, one column in each line.

    Raises:
      FileError: it exists, or cannot be written.
    """
    lines = [json.dumps(column, ensure_ascii=False) for column in document["columns"]]
    head = json.dumps(document | {"columns": []}, indent=2, ensure_ascii=False)
    body = ",\n    ".join(lines)
    with new_file(path, (".json",)) as file:
        file.write((head.removesuffix("[]\n}") + f"[\n    {body}\n  ]\n}}\n").encode())


# -- drafts

_COMMENT = (
    "Replace each null by public knowledge, never by what the rows say. Kinds: numeric (lower, upper; optionally "
    "integer, step, unit), categorical (categories), ordinal (categories, in order), datetime (lower, upper, "
    "resolution: day, hour, minute or second); all with nullable, and optionally default, the value for cells that "
    "cannot be read. Fields that a kind does not have may stay null. Remove free text and identifiers, here and from "
    "the file."
)


def _draft(kind: pa.DataType) -> dict[str, Any] | str:
    """A column by its type, or why there cannot be one."""
    kind = _plain(kind)
    bounds = {"lower": None, "upper": None}
    if pa.types.is_boolean(kind):
        return {"kind": "categorical", "categories": ["false", "true"], "nullable": None}
    if _is_number(kind):
        return {"kind": "numeric"} | bounds | {"integer": pa.types.is_integer(kind), "nullable": None}
    if _is_time(kind):
        resolution = "day" if pa.types.is_date(kind) else None
        return {"kind": "datetime"} | bounds | {"resolution": resolution, "nullable": None}
    if pa.types.is_binary(kind) or pa.types.is_null(kind):  # nothing is known, as in a .csv file
        return {"kind": None} | bounds | {"categories": None, "nullable": None}
    if _is_text(kind):
        return {"kind": "categorical", "categories": None, "nullable": None}
    return f"its type, {kind}, is not one that can be released"


def _draft_public(column: pa.ChunkedArray, draft: dict[str, Any]) -> dict[str, Any] | str:
    """A column by its values, or why there cannot be one."""
    values = column.unique()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        return draft | {"nullable": values.null_count > 0}
    if pa.types.is_null(values.type):
        return "it has no values"
    if _is_number(values.type):
        return _draft_numbers(_floats(values))
    if _is_time(values.type):
        return _draft_times(_seconds(values.drop_null()), values.null_count > 0)
    cells = set(_text_cells(values))
    nullable = b"" in cells
    cells.discard(b"")
    if not cells:
        return "it has no values"
    times = [parse_time(cell) for cell in cells]
    numbers = [parse_float(cell) for cell in cells]
    if pa.types.is_binary(values.type) and None not in numbers:  # of a .csv file; digits of another are meant as text
        return _draft_numbers(np.array(numbers + [math.nan] * nullable))
    if None not in times:
        return _draft_times(np.array(times), nullable)
    if len(cells) > MAX_CATEGORIES or len(cells) == len(column):
        return f"{len(cells)} different texts in {len(column)} rows: free text or identifiers cannot be released"
    # What is not UTF-8 cannot be a category.
    categories = sorted(
        text for cell in cells if _is_label(text := cell.decode(errors="replace")) and text.encode() == cell
    )
    return {"kind": "categorical", "categories": categories, "nullable": nullable or len(categories) < len(cells)}


def _draft_numbers(numbers: np.ndarray) -> dict[str, Any] | str:
    """From different numbers, NaN where some are missing."""
    nullable, numbers = bool(np.isnan(numbers).any()), numbers[np.isfinite(numbers)]
    if not len(numbers):
        return "it has no values"
    lower, upper = float(numbers.min()), float(numbers.max())
    largest = max(-lower, upper, upper - lower)
    if largest >= _MAX_STEPS:
        return "its numbers are too large to be exact: identifiers cannot be released"
    exact = (d for d in range(5) if largest * 10**d < _MAX_STEPS and np.array_equal(np.round(numbers, d), numbers))
    digits = next(exact, None)
    if digits == 0:
        fields = {"lower": int(lower), "upper": int(max(upper, lower + 1)), "integer": True}
    elif digits is None:
        fields = {"lower": lower, "upper": upper, "integer": False}
    else:
        fields = {"lower": lower, "upper": max(upper, round(lower + 10**-digits, digits)), "integer": False}
        fields["step"] = 10**-digits
    return {"kind": "numeric"} | fields | {"nullable": nullable}


def _draft_times(seconds: np.ndarray, nullable: bool) -> dict[str, Any] | str:
    """From different seconds since 1970."""
    if not len(seconds):
        return "it has no values"
    resolution, unit = next((name, unit) for name, unit in _SECONDS.items() if not (seconds % unit).any())
    bounds = np.array([seconds.min(), max(seconds.max(), seconds.min() + unit)]).astype("datetime64[s]")
    lower, upper = (str(bound.astype("datetime64[D]") if unit == 86400 else bound) for bound in bounds)
    return {"kind": "datetime", "lower": lower, "upper": upper, "resolution": resolution, "nullable": nullable}
