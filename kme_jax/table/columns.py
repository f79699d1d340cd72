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
import functools
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kme_jax._numerics.cells import (
    FIRST_SECOND,
    LAST_SECOND,
    parse_float,
    parse_number,
    parse_numbers,
    parse_time,
)
from kme_jax._numerics.text import said, shown
from kme_jax.table.arrow import (
    floats_of,
    is_number,
    is_text,
    is_time,
    parse_clock,
    plain_type,
    seconds_of,
    seconds_of_digits,
    taken_from,
    text_cells,
)

MAX_CATEGORIES = 4096


MISSING = "missing"


_DEFAULT_POINTS = 2**16  # of the grid of a numeric column without a step


# Beyond them neighbours on a grid are no longer different numbers.
_MAX_INTEGER = 2**53


MAX_STEPS = 2**50


_MAX_NUMBER = 1e300  # so that differences are finite


SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


MAX_LABEL = 1000


_LABEL = f"text of at most {MAX_LABEL} printable characters, without blanks around it"


PUBLIC_KNOWLEDGE = "from public knowledge, never from the rows"


_REMEDIES = {
    "kind": "fill in numeric, categorical, ordinal or datetime",
    "lower": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "upper": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "categories": f"list them, {PUBLIC_KNOWLEDGE}",
    "resolution": f"fill in {', '.join(SECONDS)}",
    "nullable": "fill in true if cells may be missing, or false",
}


class Marks(NamedTuple):
    """What is written for cells that are no value.

    Attributes:
      missing: for missing cells.
      unreadable: for cells that cannot be read.
      beyond: for values beyond a bound; None for the bound's code.
    """

    missing: int
    unreadable: int
    beyond: int | None = None


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
        if not is_label(self.name):
            raise ValueError(f"column {said(self.name)}: a name must be {_LABEL}")
        if not isinstance(self.nullable, bool):
            raise self._error(f"nullable must be true or false, got {said(self.nullable)}")
        self._validate()
        if self.default is not None:
            if isinstance(self.default, bool | list | tuple | dict):
                raise self._error(f"default must be one of its values, got {said(self.default)}")
            self.code(self.default)

    def _error(self, text: str) -> ValueError:
        return ValueError(f"column {shown((self.name,))}: {text}")

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
        return self._encode(array, Marks(self._missing, self._unreadable))

    def look(self, array: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Codes [n] as ``encode`` has them, but −1 for missing cells, −2 for unreadable ones and −3 for values beyond a
        bound. SENSITIVE, as codes are.
        """
        return self._encode(array, Marks(-1, -2, -3))

    def _encode(self, array: pa.Array | pa.ChunkedArray, marks: Marks) -> np.ndarray:
        if isinstance(array, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *(self._encode(chunk, marks) for chunk in array.chunks)])
        kind = array.type
        if pa.types.is_run_end_encoded(kind):
            ends = np.asarray(array.run_ends.to_numpy(), np.int64) - array.offset
            lengths = np.diff(np.clip(ends, 0, len(array)), prepend=0)
            return np.repeat(self._encode(array.values, marks), lengths)
        if self._by_value(kind) and (pa.types.is_decimal(kind) or pa.types.is_float16(kind)):
            array = pa.array(floats_of(array))  # some of these have no kernel for dictionaries
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
            codes[within] = self._encode_values(taken_from(dictionary, used[within]), marks)
        else:
            codes = np.append(self._encode_values(dictionary, marks), [marks.unreadable, marks.missing])
        return np.take(codes, places)

    def _by_value(self, kind: pa.DataType) -> bool:
        """Whether different cells should be looked at once each."""
        return is_text(kind)

    def _encode_values(self, array: pa.Array, marks: Marks) -> np.ndarray:
        kind = array.type
        if pa.types.is_null(kind):
            return np.full(len(array), marks.missing)
        if is_text(kind):
            return self._encode_text(text_cells(array), marks)
        if pa.types.is_time(kind):
            return self._encode_text(text_cells(array.cast(pa.string())), marks)
        if is_number(kind):
            return self._encode_numbers(floats_of(array), marks)
        if is_time(kind):
            codes = self._encode_times(seconds_of(array), marks)
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            return self._encode(array, marks)
        else:
            codes = np.full(len(array), marks.unreadable)
        codes[array.is_null().to_numpy(zero_copy_only=False)] = marks.missing
        return codes

    @abc.abstractmethod
    def _encode_text(self, cells: Sequence[bytes], marks: Marks) -> np.ndarray:
        """Codes of text without blanks around it."""

    @abc.abstractmethod
    def _encode_numbers(self, values: np.ndarray, marks: Marks) -> np.ndarray:
        """Codes of float64 numbers, of which NaN is missing."""

    @abc.abstractmethod
    def _encode_times(self, seconds: np.ndarray, marks: Marks) -> np.ndarray:
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
            raise self._error(f"{said(value)} is not one of its values, {self._values_in_words}") from None
        code = self._find(text)
        if code is not None:
            return code
        if text != MISSING:
            raise self._error(f"{said(text)} is not one of its values, {self._values_in_words}")
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
            raise self._error(f"{said(text)} is not one of its values, {self._values_in_words}")
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
            families = (is_text, is_number, pa.types.is_date, pa.types.is_timestamp)
            if not any(family(plain_type(array.type)) and family(self.type) for family in families):
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


def is_label(text: Any) -> bool:
    """Whether it is text that a stripped cell in UTF-8 can be, and that is what it looks like."""
    return isinstance(text, str) and 0 < len(text) <= MAX_LABEL and text.strip() == text and text.isprintable()


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
            raise self._error(f"integer must be true or false, got {said(self.integer)}")
        if self.unit is not None and not (self.unit == "" or is_label(self.unit)):
            raise self._error(f"unit must be {_LABEL}, got {said(self.unit)}")
        for field in ("lower", "upper", *["step"] * (self.step is not None)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"{field} must be a number, got {said(value)}; {_REMEDIES['lower']}")
            if not abs(value) < _MAX_NUMBER:
                raise self._error(f"{field} must be finite; {_REMEDIES['lower']}")
            if self.integer and value != int(value):
                raise self._error(f"{field} must be a whole number in an integer column, got {value}")
            object.__setattr__(self, field, int(value) if self.integer else float(value))
        if not self.lower < self.upper:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")
        if self.step is not None and self.step <= 0:
            raise self._error(f"step must be positive, got {self.step}")
        if self._largest >= self._step * (_MAX_INTEGER if self.integer else MAX_STEPS):
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
            raise self._error(f"{said(text)} is no number")
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
    for name, value in (("time", parse_time(cell)), ("clock", parse_clock(cell))):
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
            raise self._error(f"categories must be a list, got {said(self.categories)}")
        if len(self.categories) > MAX_CATEGORIES:
            raise self._error(
                f"{len(self.categories)} categories, more than {MAX_CATEGORIES}: group them, or remove the column "
                "(free text and identifiers cannot be released)"
            )
        if not self.categories:
            raise self._error("the list of categories is empty")
        for category in self.categories:
            if not is_label(category):
                raise self._error(f"a category must be {_LABEL}, got {said(category)}")
        if self.nullable and MISSING in self.categories:
            raise self._error(f"a category is named {MISSING!r}, as missing cells of a nullable column are: rename it")
        object.__setattr__(self, "categories", tuple(self.categories))
        if len(set(self.categories)) < len(self.categories):
            twice = [name for i, name in enumerate(self.categories) if name in self.categories[:i]]
            raise self._error(f"categories appear more than once: {shown(twice)}")

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
        return is_text(kind) or is_number(kind) or is_time(kind)

    @np.errstate(all="ignore")
    def _of_number(self, number: float, marks: Marks) -> int:
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

    def _of_text(self, cell: bytes, marks: Marks) -> int:
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
        return shown(self.categories)


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
        if not isinstance(self.resolution, str) or self.resolution not in SECONDS:
            raise self._error(f"resolution must be one of {', '.join(SECONDS)}, got {said(self.resolution)}")
        for field in ("lower", "upper"):
            value = getattr(self, field)
            if not isinstance(value, str) or parse_time(value.encode(errors="replace")) is None:
                raise self._error(f"{field} must be ISO text as in 2024-03-01 or 2024-03-01T12:30, got {said(value)}")
        if not self._first < self._last:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")

    def _units(self, text: str) -> int | None:
        seconds = parse_time(text.encode(errors="replace"))
        return None if seconds is None else seconds // SECONDS[self.resolution]

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
        units = seconds // SECONDS[self.resolution]
        codes = np.clip(units, self._first, self._last) - self._first
        if marks.beyond is not None:
            codes[(units < self._first) | (units > self._last)] = marks.beyond
        return codes

    def _encode_some(self, times: Sequence[int | None], missing: np.ndarray, marks: Marks) -> np.ndarray:
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
                    times[place], missing[place] = seconds_of_digits(number), math.isnan(number)
        return self._encode_some(times, missing, marks)

    def _encode_numbers(self, values, marks):
        different, places = np.unique(values, return_inverse=True)
        times = [seconds_of_digits(number) for number in different.tolist()]
        return self._encode_some(times, np.isnan(different), marks)[places]

    def _decode_values(self, codes):
        units = self._first + codes
        if self.resolution == "day":
            return pa.array(units.astype(np.int32)).cast(self.type)
        return pa.array(units * SECONDS[self.resolution]).cast(self.type)

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
            raise self._error(f"{said(text)} is no date or time, as in {self.lower}")
        unit = SECONDS[self.resolution]
        ends = (-(-seconds // unit), seconds // unit + 1)
        return tuple(min(max(end - self._first, 0), self.num_values) for end in ends)

    @property
    def _values_in_words(self):
        return f"{self.lower} to {self.upper}"


KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Numeric, Categorical, Ordinal, Datetime)}


FIELDS = {kind: {field.name: field for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


def column_of(entry: Any, place: int) -> Column:
    """From JSON."""
    if not isinstance(entry, dict):
        raise ValueError(f"column {place}: expected an object with name and kind")
    name, kind = entry.get("name"), entry.get("kind")
    label = f"column {shown((name,)) if isinstance(name, str) else place}"
    if kind is None:
        raise ValueError(f"{label}: kind is null: {_REMEDIES['kind']}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{label}: unknown kind {said(kind)} (known: {', '.join(KINDS)}); free text and identifiers cannot "
            "be released: remove the column from the schema and from the file"
        )
    fields = FIELDS[kind]
    for key, value in entry.items():
        if key not in fields and key != "kind":
            if all(key not in others for others in FIELDS.values()):
                raise ValueError(f"{label}: unknown field {said(key)} (known: {', '.join(['kind', *fields])})")
            if value is not None:
                raise ValueError(f"{label}: field {shown((key,))} does not apply to kind {kind}: remove it")
    given = {key: entry[key] for key in fields if key in entry}
    for key, field in fields.items():
        if given.get(key, field.default) in (None, dataclasses.MISSING) and field.default is not None:
            raise ValueError(
                f"{label}: {key} is {'null' if key in given else 'not given'}: {_REMEDIES.get(key, 'say it')}"
            )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return KINDS[kind](**values)
