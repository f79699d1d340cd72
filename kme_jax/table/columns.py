"""Kinds of columns: the values that a column may have, from public knowledge, and the category codes of its cells.

A *category code* is the index of a value of the column. For numbers and times the values lie on a grid. The content of
a cell never raises an error or a warning. A number or time beyond a bound gets the code of the bound. A cell that is
missing or unreadable gets the code for missing cells, or the code of a public default.

The code of a cell depends on this cell and on the schema, and on nothing else. It does not depend on the type of the
column, because one row can change the type: one text among bools makes them objects, and one missing cell makes whole
numbers floats. So every type is accepted, and text and typed cells are read alike:

* A cell is missing, a number, a time (an instant in whole seconds, in UTC unless it names a zone), text, or unreadable.
  None, NaN, NaT, blank text and the words that readers of .csv files take for missing cells are missing.
* A cell that is one of the words for missing cells of its column is missing, see ``kme_jax.table.words``.
  The schema may also say that numbers in text have a decimal comma.
* A bool is the number 1 or 0, and so are the words true and false. A complex number without an imaginary part is its
  real part. Lists, structs, durations and all other types are unreadable.
* A numeric column reads numbers, and text that is a number. A decimal is rounded once, from its text.
* In a categorical column, text is the category of exactly this text. Other text, and typed cells, are the category
  with the same number, the same time, or the same time of day: 1, 1.0, "01" and true are the category "1". A number
  that is not whole, and is exactly a number of 32 or of 16 bits, is also the category that rounds to it, if there is
  only one.
* A datetime column reads times, text that is an ISO time, and whole numbers of eight digits: 20240301 is a day.

Two categories can be the same number or time ("1" and "01"). Only a .csv file can tell them apart, because it has only
text. The same holds for a category that is a word for missing cells ("NA"), unless missing cells count as this
category. With such a schema, a table that is not from a .csv file is refused, whatever its cells hold.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Bool, Float, Int, Int64

from kme_jax._numerics.arrow import (
    floats_of,
    is_number,
    is_text,
    is_time,
    missing_cells,
    plain_type,
    seconds_of,
    seconds_of_digits,
    taken_from,
    text_cells,
)
from kme_jax._numerics.cells import (
    FIRST_SECOND,
    LAST_SECOND,
    is_time_format,
    parse_float,
    parse_number,
    parse_number_with_comma,
    parse_numbers,
    parse_time,
    parse_time_in,
)
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.table.words import Words, key_of

MAX_CATEGORIES = 4096


MISSING = "missing"


# Of the grid of a numeric column without a step. The fine grid is for a column that is not counted in equal steps.
_DEFAULT_POINTS, _FINE_POINTS = 2**16, 2**24
_MAX_KNOTS = 28  # each becomes two knots of a ``Binning``, which has at least 64 cells


# Beyond these limits, neighbouring points of a grid are no longer different numbers.
_MAX_INTEGER = 2**53


MAX_STEPS = 2**50


_MAX_NUMBER = 1e300  # so that differences are finite


pc: Any = pyarrow.compute  # most of its functions are created on import


SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_CYCLES = 86400, 7 * 86400  # a day and a week, in seconds


MAX_LABEL = 1000


LABEL = f"text of at most {MAX_LABEL} printable characters, without blanks around it"


PUBLIC_KNOWLEDGE = "from public knowledge, never from the rows"


_REMEDIES = {
    "kind": "fill in numeric, categorical, ordinal, datetime, id, constant, weight or drop",
    "lower": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "upper": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "categories": f"list them, {PUBLIC_KNOWLEDGE}",
    "resolution": f"fill in {', '.join(SECONDS)}",
    "nullable": "fill in true if cells may be missing, or false",
}


@short_repr
class Marks(NamedTuple):
    """The codes that stand for cells without a value of the column.

    Attributes:
      missing: the code for missing cells.
      unreadable: the code for cells that cannot be read.
      beyond: the code for values beyond a bound; None for the bound's own code.
      words: whether the column's words for missing cells count as missing.
    """

    missing: int
    unreadable: int
    beyond: int | None = None
    words: bool = True


class Column(abc.ABC):
    """One column: its name, and the values that its category codes stand for.

    Attributes:
      kind: the name of the kind in JSON.
      ordered: whether codes, except the code for missing cells, are in the order of the values.
      name: in the file, without blanks around it.
      nullable: whether cells may be missing. The last code then stands for missing cells.
      default: the value of unreadable cells, and, if the column is not nullable, of missing cells. Without a default,
        unreadable cells count as missing in a nullable column. In other columns, unreadable and missing cells then get
        the middle of the bounds, or the first category.
      missing: words for missing cells: what cells hold in place of a value, such as (-999, "?", "refused"). A cell that
        is one of them counts as missing: by its text, or as the same number or time. A number between the bounds may be
        such a word, such as 99 for an unknown age; no cell then has the age 99.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # of subclasses, which are dataclasses
    kind: ClassVar[str]
    ordered: ClassVar[bool] = True
    name: str
    nullable: bool
    default: Any
    missing: tuple[str | float, ...] = ()

    def __post_init__(self):
        if not is_label(self.name):
            raise ValueError(f"column {said(self.name)}: a name must be {LABEL}")
        if not isinstance(self.nullable, bool):
            raise self._error(f"nullable must be true or false, got {said(self.nullable)}")
        self._validate()
        self._validate_words()
        if self.missing and not self.nullable and self.default is None:
            raise self._error('words for missing cells need "nullable": true, or a default to count as')
        if self.default is not None:
            if isinstance(self.default, bool | list | tuple | dict):
                raise self._error(f"default must be one of its values, got {said(self.default)}")
            self.code(self.default)
            public = self.default if isinstance(self.default, int | float) else str(self.default)
            if self._words is not None and self._words.have(public):
                raise self._error(f"default {said(self.default)} is also a word for missing cells: take another one")

    def _validate_words(self) -> None:
        if isinstance(self.missing, str) or not isinstance(self.missing, Sequence):
            raise self._error(f"missing must be a list of words and numbers, got {said(self.missing)}")
        object.__setattr__(self, "missing", tuple(self.missing))
        for word in self.missing:
            if isinstance(word, bool) or not isinstance(word, str | int | float):
                raise self._error(f"missing lists {said(word)}: a word must be text or a number")
            if isinstance(word, str) and not is_label(word):
                raise self._error(f"missing lists {said(word)}: a word must be {LABEL}; empty cells are missing anyway")
            if not isinstance(word, str) and not abs(word) < _MAX_NUMBER:
                raise self._error(f"missing lists {said(word)}: a number must be finite")
        if self._words is not None and (twice := self._words.twice()) is not None:
            raise self._error(f"missing lists {said(twice)} twice, maybe in two spellings: list each word once")

    @functools.cached_property
    def _words(self) -> Words | None:
        return Words(self.missing) if self.missing else None

    def _error(self, text: str) -> ValueError:
        return ValueError(f"column {shown((self.name,))}: {text}")

    @abc.abstractmethod
    def _validate(self) -> None:
        """Raises ValueError if a field is invalid."""

    @property
    @abc.abstractmethod
    def num_values(self) -> int:
        """Number of different values."""

    @property
    def num_codes(self) -> int:
        """Number of codes. A nullable column has one more code than values."""
        return self.num_values + self.nullable

    @property
    def codes_of_knots(self) -> tuple[int, ...]:
        """Codes between which values are counted in as many cells each, see ``Numeric``. There are none by default."""
        return ()

    @property
    def cycles(self) -> tuple[int, ...]:
        """Numbers of codes after which values may repeat a pattern, such as the 7 days of a week. None by default."""
        return ()

    @property
    @abc.abstractmethod
    def type(self) -> pa.DataType:
        """The type of decoded values."""

    @property
    def _unreadable(self) -> int:
        """The code of unreadable cells."""
        if self.default is not None:
            return self.code(self.default)
        return self.num_values if self.nullable else self._fallback

    @property
    def _missing(self) -> int:
        return self.num_values if self.nullable else self._unreadable

    @property
    def _fallback(self) -> int:
        return (self.num_values - 1) // 2

    @property
    def usual(self) -> int:
        """The code of a public value: of the default, or else of the middle of the bounds, or of the first category."""
        return self._fallback if self.default is None else self.code(self.default)

    def encode(self, array: pa.Array | pa.ChunkedArray, *, words: bool = True) -> Int64[np.ndarray, "n"]:
        """The category code of each of n cells of any type, int64 [n]. Each code depends on its cell alone.

        Args:
          array: the cells.
          words: whether words for missing cells count as missing. False for released values, which have no such words.
        """
        return self._encode(array, Marks(self._missing, self._unreadable, words=words))

    def look(self, array: pa.Array | pa.ChunkedArray) -> Int64[np.ndarray, "n"]:
        """Codes as from ``encode``, except for special cells, int64 [n]. SENSITIVE, as all codes are.

        Missing cells have −1, unreadable cells −2, and values beyond a bound −3.
        """
        return self._encode(array, Marks(-1, -2, -3))

    def _encode(self, array: pa.Array | pa.ChunkedArray, marks: Marks) -> Int64[np.ndarray, "n"]:
        if isinstance(array, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *(self._encode(chunk, marks) for chunk in array.chunks)])
        kind = array.type
        if pa.types.is_run_end_encoded(kind):
            ends = np.asarray(array.run_ends.to_numpy(), np.int64) - array.offset
            lengths = np.diff(np.clip(ends, 0, len(array)), prepend=0)
            return np.repeat(self._encode(array.values, marks), lengths)
        if self._by_value(kind) and (pa.types.is_decimal(kind) or pa.types.is_float16(kind)):
            array = pa.array(floats_of(array))  # pyarrow cannot dictionary-encode all of these
        if not pa.types.is_dictionary(kind) and self._by_value(array.type):
            array = array.dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            return self._encode_values(array, marks)
        dictionary, places = array.dictionary, array.indices.cast(pa.int64(), safe=False)
        ends = pc.min_max(places).as_py()
        if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < len(dictionary):  # only in damaged files
            known = pc.and_(pc.greater_equal(places, 0), pc.less(places, len(dictionary)))
            places = pc.if_else(known, places, len(dictionary))
        places = places.fill_null(len(dictionary) + 1).to_numpy()
        if len(dictionary) > len(array) + 2:  # batches may share a dictionary that is as long as the table
            used, places = np.unique(places, return_inverse=True)
            codes = np.where(used == len(dictionary), marks.unreadable, marks.missing)
            within = used < len(dictionary)
            codes[within] = self._encode_values(taken_from(dictionary, used[within]), marks)
        else:
            codes = np.append(self._encode_values(dictionary, marks), [marks.unreadable, marks.missing])
        return np.take(codes, places)

    def _by_value(self, kind: pa.DataType) -> bool:
        """Whether each different value should be encoded only once."""
        return is_text(kind)

    def _encode_values(self, array: pa.Array, marks: Marks) -> Int64[np.ndarray, "n"]:
        kind = array.type
        if pa.types.is_null(kind):
            return np.full(len(array), marks.missing)
        words = self._words if marks.words else None
        if is_text(kind) or pa.types.is_time(kind):
            cells = text_cells(array if is_text(kind) else array.cast(pa.string()))
            codes = self._encode_text(cells, marks)
            return codes if words is None else np.where(words.among_texts(cells), marks.missing, codes)
        if is_number(kind):
            numbers = floats_of(array)
            codes = self._encode_numbers(numbers, marks)
            return codes if words is None else np.where(words.among_numbers(numbers), marks.missing, codes)
        if is_time(kind):
            seconds = seconds_of(array)
            codes = self._encode_times(seconds, marks)
            if words is not None:
                codes = np.where(words.among_times(seconds), marks.missing, codes)
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            return self._encode(array, marks)
        else:
            codes = np.full(len(array), marks.unreadable)
        codes[missing_cells(array)] = marks.missing
        return codes

    @abc.abstractmethod
    def _encode_text(self, cells: Sequence[bytes], marks: Marks) -> Int64[np.ndarray, "n"]:
        """Codes of text cells, which have no blanks around them, int64 [n]."""

    @abc.abstractmethod
    def _encode_numbers(self, values: Float[np.ndarray, "n"], marks: Marks) -> Int64[np.ndarray, "n"]:
        """Codes of float64 numbers [n], where NaN is missing: int64 [n]."""

    @abc.abstractmethod
    def _encode_times(self, seconds: Int64[np.ndarray, "n"], marks: Marks) -> Int64[np.ndarray, "n"]:
        """Codes of whole seconds since 1970, [n]: int64 [n]."""

    def decode(self, codes: Int[np.ndarray, "n"]) -> pa.Array:
        """Values of codes [m], where the code for missing cells gives null.

        Raises:
          ValueError: a number is not a code of this column.
        """
        codes = np.asarray(codes, np.int64)
        if codes.size and not 0 <= codes.min() <= codes.max() < self.num_codes:
            raise self._error(f"codes must be at least 0 and below {self.num_codes}")
        missing = codes == self.num_values
        values = self._decode_values(np.where(missing, 0, codes))
        return pc.if_else(pa.array(missing), pa.scalar(None, self.type), values)

    def released(self, array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Values as from ``decode``, in the type that released tables have. This column alone decides the type.

        Args:
          array: values of this column [m], of any type that ``check`` accepts.
        """
        return array.cast(self.type)

    @abc.abstractmethod
    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values of this column, as from ``decode``, for a column of a DataFrame. This column alone decides the type.

        Args:
          array: values of this column [m], of any type that ``check`` accepts.
        """

    @abc.abstractmethod
    def _decode_values(self, codes: Int64[np.ndarray, "n"]) -> pa.Array:
        """Values of codes that do not stand for missing cells."""

    def labels(self, codes: Int[np.ndarray, "n"]) -> list[str]:
        """Values of codes [m] as text for people."""
        return [MISSING if value is None else self._label(value) for value in self.decode(codes).to_pylist()]

    def _label(self, value: Any) -> str:
        return str(value)

    def code(self, value: Any) -> int:
        """The code of a public value: a number, or text as in ``labels``. None and "missing" stand for missing cells.

        A category may be written in any way in which a cell may hold it: "true" and 1 are the category "True".

        Raises:
          ValueError: it is not a value of this column.
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
            raise self._error("no cell is missing: it is not nullable (nullable=True allows missing cells)")
        return self.num_values

    @abc.abstractmethod
    def _find(self, text: str) -> int | None:
        """The code of exactly this value; None if there is none."""

    def below(self, text: str) -> tuple[int, int]:
        """How many values of an ordered column are below a public value, and how many are not above it.

        The public value may be off the grid or beyond the bounds.

        Raises:
          ValueError: the text cannot be compared with values of this column.
        """
        code = self._find(text.strip())
        if code is None:
            raise self._error(f"{said(text)} is not one of its values, {self._values_in_words}")
        return code, code + 1

    @property
    @abc.abstractmethod
    def _values_in_words(self) -> str:
        """A description of all values, for errors."""

    def check(self, array: pa.Array | pa.ChunkedArray) -> None:
        """Refuses an array with invalid values. Not for private rows, because errors show what they hold.

        Raises:
          ValueError: a value is invalid, a cell is missing in a column that is not nullable, or the type differs.
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
            valid = valid | missing_cells(array)
        if not valid.all():
            raise self._error(f"{np.sum(~valid)} cells are no values of it, the first in row {np.argmin(valid) + 1}")

    def _is_valid(self, array: pa.Array | pa.ChunkedArray) -> Any:
        return pc.equal(array, self.decode(self.encode(array, words=False)))

    def to_json(self) -> dict[str, Any]:
        """Name, kind, and the fields that differ from their defaults, as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {"name": self.name, "kind": self.kind} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != defaults[name]
        }


def is_label(text: Any) -> bool:
    """Whether it is text that can be a label: printable, at most 1000 characters, without blanks around it."""
    return isinstance(text, str) and 0 < len(text) <= MAX_LABEL and text.strip() == text and text.isprintable()


@short_repr
@dataclasses.dataclass(frozen=True)
class Numeric(Column):
    """Numbers on a grid from a lower to an upper bound.

    Attributes:
      lower: the value of code 0.
      upper: the value of the last code that is not for missing cells. Both bounds are on the grid.
      integer: whether values are whole numbers.
      step: of the grid. By default 1 for integers. For other numbers the default grid has 2¹⁶ points, or 2²⁴ with knots
        or the scale "log".
      unit: of the numbers, as text for people.
      scale: "linear", or "log" for skewed numbers, such as amounts of money or durations. Numbers are counted in cells:
        of equal width, or of a width that grows with the distance from the lower bound.
        Then only the bounds have cells of their own: other values with many rows are spread over their cells.
      knots: numbers between the bounds, increasing, at most 28. About as many cells lie between each knot and the next.
        So numbers are counted finely where knots are close. Knots and bounds have cells of their own. Other values with
        many rows are spread over their cells. Knots are public, as the bounds are.
      decimal: "." or ",": what stands before the decimals of cells that are text. With a comma, 1234,5 and 1.234,5 are
        numbers. A dot stands only between complete groups of three digits, so 1234.5 and 1.23 are none. A number with
        an exponent may have either: 1,5e3 or 1.5e3. Numbers that are not text do not change.

    Examples:
      >>> from kme_jax import Numeric
      >>> age = Numeric("age", 0, 110, integer=True, unit="years")
      >>> wage = Numeric("wage", 0, 100, step=0.01, nullable=True)
      >>> age.num_values, wage.num_values
      (111, 10001)
      >>> fortune = Numeric("fortune", 0, 1e9, scale="log")
      >>> grams = Numeric("birth weight", 0, 6000, integer=True, knots=(2000, 4500))
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
    scale: str = "linear"
    knots: tuple[float, ...] = ()
    decimal: str = "."
    missing: tuple[str | float, ...] = ()

    def _validate(self):
        if self.scale not in ("linear", "log"):
            raise self._error(f'scale must be "linear" or "log", got {said(self.scale)}')
        if not isinstance(self.decimal, str) or self.decimal not in (".", ","):
            raise self._error(f'decimal must be "." or ",", got {said(self.decimal)}')
        if not isinstance(self.integer, bool):
            raise self._error(f"integer must be true or false, got {said(self.integer)}")
        if self.unit is not None and not (self.unit == "" or is_label(self.unit)):
            raise self._error(f"unit must be {LABEL}, got {said(self.unit)}")
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
        self._validate_knots()

    def _validate_knots(self) -> None:
        if isinstance(self.knots, str) or not isinstance(self.knots, Sequence):
            raise self._error(f"knots must be a list of numbers, got {said(self.knots)}")
        object.__setattr__(self, "knots", tuple(self.knots))
        if self.knots and self.scale == "log":
            raise self._error('take either knots or the scale "log"')
        if len(self.knots) > _MAX_KNOTS:
            raise self._error(f"at most {_MAX_KNOTS} knots are possible, got {len(self.knots)}")
        for knot in self.knots:
            if isinstance(knot, bool) or not isinstance(knot, int | float) or not self.lower < knot < self.upper:
                raise self._error(f"a knot must be a Python number between the bounds, got {said(knot)}")
        codes = [0, *map(self._nearest, self.knots), self.num_values - 1]
        if not all(low < high for low, high in itertools.pairwise(codes)):
            raise self._error(f"knots must increase, and be values at least one step apart, got {said(self.knots)}")

    @property
    def codes_of_knots(self) -> tuple[int, ...]:
        last = self.num_values - 1
        if self.scale == "log":
            return tuple(sorted({1 << i for i in range(last.bit_length())} | {last}))
        if not self.knots:
            return ()
        # Many rows may lie at a bound or at a knot, so these have cells of their own.
        knots = [int(self._nearest(knot)) for knot in self.knots]
        return tuple(sorted({1, *knots, *(knot + 1 for knot in knots), last}))

    @property
    def _step(self) -> float:
        if self.step is None:
            points = _DEFAULT_POINTS if self.scale == "linear" and not self.knots else _FINE_POINTS
            return 1 if self.integer else (self.upper - self.lower) / (points - 1)
        return self.step

    @property
    def _largest(self) -> float:
        return max(abs(self.lower), abs(self.upper), self.upper - self.lower)

    @property
    def _is_fine(self) -> bool:
        """Whether all numbers within the bounds are valid. The grid then only serves to encode them."""
        return self.step is None and not self.integer

    @property
    def _digits(self) -> int:
        """Decimal places of values on the grid. Without a step: as many as are needed to tell them apart."""
        if self.step is None:
            return max(0, math.ceil(-math.log10(self._step)))
        exponents = [Decimal(repr(number)).normalize().as_tuple().exponent for number in (self.lower, self.step)]
        return max(0, *(-cast(int, exponent) for exponent in exponents))

    @property
    def num_values(self) -> int:
        return round((self.upper - self.lower) / self._step) + 1

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.integer else pa.float64()

    @np.errstate(all="ignore")
    def _nearest(self, values: Any) -> Any:
        """The nearest code of each number, as a float; NaN for NaN."""
        return np.rint((np.clip(values, self.lower, self.upper) - self.lower) / self._step)

    def _encode_numbers(self, values, marks):
        codes = self._nearest(values)
        codes[np.isnan(values)] = marks.missing
        if marks.beyond is not None:
            codes[(values < self.lower) | (values > self.upper)] = marks.beyond
        return codes.astype(np.int64)

    def _encode_text(self, cells, marks):
        numbers = parse_numbers(cells) if self.decimal == "." else [parse_number_with_comma(cell) for cell in cells]
        codes = self._encode_numbers(np.array(numbers, np.float64), marks)
        codes[[number is None for number in numbers]] = marks.unreadable
        return codes

    def _encode_times(self, seconds, marks):
        return np.full(len(seconds), marks.unreadable)

    @functools.cached_property
    def _words(self):
        parse = parse_number if self.decimal == "." else parse_number_with_comma
        return Words(self.missing, parse) if self.missing else None

    def _decode_values(self, codes):
        # The last value is the upper bound, also where steps of a float do not reach it exactly.
        values = np.where(codes == self.num_values - 1, self.upper, self.lower + codes * self._step)
        digits = self._digits + (self.step is None)  # of a default grid: so many that each value stays on its own side
        if digits < 16 and self._largest * 10**digits < _MAX_INTEGER:
            values = np.round(values, digits)  # 12.34, not 12.340000000000002
        return pa.array(np.clip(values, self.lower, self.upper), self.type)

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values as int64, as Int64 in a nullable column of integers, or as float64 with NaN for missing cells."""
        values = array.cast(self.type)
        if not (self.integer and self.nullable):
            return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
        return pandas_module().Int64Dtype().__from_arrow__(values)

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


def _unique(pairs: Iterable[tuple[Any, int]]) -> dict[Any, int | None]:
    """The code of each key, except of the key None; None for a key of several codes."""
    codes: dict[Any, int | None] = {}
    for key, code in pairs:
        if key is not None:
            codes[key] = None if key in codes else code
    return codes


def _word_of_truth(value: Any) -> Any:
    """The text of a bool, as "True"; any other value unchanged."""
    return str(value) if isinstance(value, bool | np.bool_) else value


@short_repr
@dataclasses.dataclass(frozen=True)
class Categorical(Column):
    """Texts from a list. A cell that is a number or a time is the category with the same number or time.

    Attributes:
      categories: the texts, at most 4096, all different. False and True count as the texts "False" and "True".

    Examples:
      >>> from kme_jax import Categorical
      >>> job = Categorical("job", ("baker", "clerk", "nurse"), nullable=True)
      >>> job.num_values, job.num_codes  # missing has a code, too
      (3, 4)
    """

    kind = "categorical"
    ordered = False
    name: str
    categories: tuple[str, ...]
    nullable: bool = False
    default: str | None = None
    missing: tuple[str | float, ...] = ()

    def _validate(self):
        if isinstance(self.categories, str) or not isinstance(self.categories, Sequence):
            raise self._error(f"categories must be a list, got {said(self.categories)}")
        if len(self.categories) > MAX_CATEGORIES:
            raise self._error(
                f"{len(self.categories)} categories, more than {MAX_CATEGORIES}: group them, or remove the column "
                "(free text and identifiers cannot be released)"
            )
        if not self.categories:
            raise self._error(f"the list of categories is empty: {_REMEDIES['categories']}")
        object.__setattr__(self, "categories", tuple(map(_word_of_truth, self.categories)))
        object.__setattr__(self, "default", _word_of_truth(self.default))
        for category in self.categories:
            if isinstance(category, int | np.integer):
                raise self._error(
                    f"a category must be text, got the number {said(category)}: write it with quotes, and with its "
                    'leading zeros, as in "01067"'
                )
            if not is_label(category):
                raise self._error(f"a category must be {LABEL}, got {said(category)}")
        if self.nullable and MISSING in self.categories:
            raise self._error(f"a category is named {MISSING!r}, as missing cells of a nullable column are: rename it")
        if len(set(self.categories)) < len(self.categories):
            twice = [name for i, name in enumerate(self.categories) if name in self.categories[:i]]
            raise self._error(f"categories appear more than once: {shown(twice)}; list each once")

    def _validate_words(self):
        super()._validate_words()
        both = [] if self._words is None else [name for name in self.categories if self._words.may_have(name)]
        if both:
            raise self._error(f"missing has {shown(both)}, which is also a category: take it from one of both lists")

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
        """The code of each number, time and time of day that is a category; None where several categories are."""
        return _unique((key_of(category.encode()), code) for code, category in enumerate(self.categories))

    @functools.cached_property
    @np.errstate(all="ignore")
    def _narrow(self) -> dict[tuple[str, float], int | None]:
        """The code of each number of 32 and of 16 bits to which a category rounds; None where several categories do."""
        numbers = [(key[1], code) for key, code in self._keys.items() if key[0] == "number" and code is not None]
        numbers = [(number, code) for number, code in numbers if math.isfinite(number) and number != int(number)]
        return _unique(((kind, float(np.dtype(kind).type(x))), code) for kind in _NARROW for x, code in numbers)

    def missing_word(self) -> str | None:
        """The first category that is a word for missing cells, unless missing cells count as it; None if there is none.

        Programs read "nan" or "NA" as missing if the other cells of a column are numbers, and as text otherwise.
        """
        for code, category in enumerate(self.categories):
            number = parse_number(category.encode())
            if number is not None and math.isnan(number) and code != self._missing:
                return category
        return None

    def one_of_two(self) -> tuple[str, str] | None:
        """The first two categories that are the same number or time; None if there are none."""
        seen: dict[tuple[str, float], str] = {}
        for category in self.categories:
            key = key_of(category.encode())
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
        """The code of text that is not exactly a category."""
        number = parse_number(cell)
        if number is not None:
            return self._of_number(number, marks)
        key = key_of(cell) if self._keys else None
        code = None if key is None else self._keys.get(key)
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

    @property
    def is_boolean(self) -> bool:
        """Whether the categories are the words true and false, in small or capital letters, and have no order."""
        return not self.ordered and sorted(category.lower() for category in self.categories) == ["false", "true"]

    @property
    def _true(self) -> int:
        """The code of true in a boolean column."""
        return int(self.categories[1].lower() == "true")

    def released(self, array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Values as text, or as bools if the categories are true and false."""
        if not self.is_boolean or pa.types.is_boolean(array.type):
            return array if self.is_boolean else super().released(array)
        return pc.equal(array.cast(self.type), self.categories[self._true])

    def check(self, array: pa.Array | pa.ChunkedArray) -> None:
        if self.is_boolean and pa.types.is_boolean(array.type):
            array = pc.if_else(array, self.categories[self._true], self.categories[1 - self._true])
        super().check(array)

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values as a categorical with all categories, in their order.

        If the categories are true and false, values are bool, or the nullable boolean in a nullable column.
        """
        if not self.is_boolean:
            codes = pc.index_in(array.cast(self.type), pa.array(self.categories, self.type))
            codes = pc.fill_null(codes, -1).to_numpy()
            return pandas_module().Categorical.from_codes(codes, list(self.categories), ordered=self.ordered)
        values = self.released(array)
        if not self.nullable:
            return np.asarray(values, bool)
        return pandas_module().BooleanDtype().__from_arrow__(values)

    def _decode_values(self, codes):
        return pa.array(self.categories, self.type).take(pa.array(codes))

    def _find(self, text):
        if text in self.categories:
            return self.categories.index(text)
        code = self._of_text(text.encode(errors="replace"), Marks(-1, -1))
        return None if code < 0 else code

    @property
    def _values_in_words(self):
        return shown(self.categories)


@short_repr
@dataclasses.dataclass(frozen=True)
class Ordinal(Categorical):
    """Categories in an order.

    Examples:
      >>> from kme_jax import Ordinal
      >>> pain = Ordinal("pain", ("none", "mild", "strong"))
      >>> pain.code("strong")
      2
    """

    kind = "ordinal"
    ordered = True


@short_repr
@dataclasses.dataclass(frozen=True)
class Datetime(Column):
    """Dates, or times in UTC, from a lower to an upper bound.

    Attributes:
      lower: the first date or time, as ISO text.
      upper: the last date or time, as ISO text.
      resolution: "day", "hour", "minute" or "second". Times are rounded down to it.
      parts: whether the week, the weekday and the time of day are measured as columns of their own, such as "begin
        weekday". Then a release knows how they depend on each other and on other columns. Otherwise it only knows about
        when something was, in cells that may be longer than a day.
      format: how text cells are written, such as "%d.%m.%Y" for 31.12.2025, or "%m/%d/%Y %H:%M". Cells with another
        text are read as ISO times, as without a format. Bounds are always ISO text.

    Examples:
      >>> from kme_jax import Datetime
      >>> day = Datetime("day", "2025-01-01", "2025-12-31")
      >>> day.num_values
      365
    """

    kind = "datetime"
    name: str
    lower: str
    upper: str
    resolution: str = "day"
    nullable: bool = False
    default: str | None = None
    parts: bool = False
    missing: tuple[str | float, ...] = ()
    format: str | None = None

    def _validate(self):
        if self.format is not None and not (isinstance(self.format, str) and is_time_format(self.format)):
            raise self._error(
                f"format must be like %d.%m.%Y or %m/%d/%Y %H:%M, with %S for seconds, got {said(self.format)}; times "
                "such as 2025-12-31 need none"
            )
        if not isinstance(self.resolution, str) or self.resolution not in SECONDS:
            raise self._error(f"resolution must be one of {', '.join(SECONDS)}, got {said(self.resolution)}")
        if not isinstance(self.parts, bool):
            raise self._error(f"parts must be true or false, got {said(self.parts)}")
        for field in ("lower", "upper"):
            value = getattr(self, field)
            if not isinstance(value, str) or parse_time(value.encode(errors="replace")) is None:
                raise self._error(f"{field} must be ISO text as in 2024-03-01 or 2024-03-01T12:30, got {said(value)}")
        if not self.first_unit < self._last:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")

    def _units(self, text: str) -> int | None:
        seconds = parse_time(text.encode(errors="replace"))
        return None if seconds is None else seconds // SECONDS[self.resolution]

    @functools.cached_property
    def _words(self):
        return Words(self.missing, digits_are_days=True) if self.missing else None

    @property
    def first_unit(self) -> int:
        """The lower bound in units of the resolution since 1970."""
        return cast(int, self._units(self.lower))

    @property
    def _last(self) -> int:
        return cast(int, self._units(self.upper))

    @property
    def num_values(self) -> int:
        return self._last - self.first_unit + 1

    @property
    def cycles(self) -> tuple[int, ...]:
        return tuple(seconds // SECONDS[self.resolution] for seconds in _CYCLES if seconds > SECONDS[self.resolution])

    @property
    def type(self) -> pa.DataType:
        return pa.date32() if self.resolution == "day" else pa.timestamp("s")

    def _encode_times(self, seconds, marks):
        units = seconds // SECONDS[self.resolution]
        codes = np.clip(units, self.first_unit, self._last) - self.first_unit
        if marks.beyond is not None:
            codes[(units < self.first_unit) | (units > self._last)] = marks.beyond
        return codes

    def _encode_readable(
        self, times: Sequence[int | None], missing: Bool[np.ndarray, "n"], marks: Marks
    ) -> Int64[np.ndarray, "n"]:
        """Codes of seconds, where None is unreadable, and of cells that are missing."""
        codes = self._encode_times(np.array([time or 0 for time in times], np.int64), marks)
        codes[[time is None for time in times]] = marks.unreadable
        codes[missing] = marks.missing
        return codes

    def _encode_text(self, cells, marks):
        times = [parse_time(cell) for cell in cells]
        if self.format is not None:
            of_format = [parse_time_in(self.format, cell) for cell in cells]
            times = [other if one is None else one for one, other in zip(of_format, times, strict=True)]
        missing = np.zeros(len(cells), bool)
        # A time with a hyphen in the fifth place is not a number. Other text may be a number, and is then read as one.
        for place, (cell, time) in enumerate(zip(cells, times, strict=True)):
            if time is None or cell[4:5] != b"-":
                number = parse_number(cell)
                if number is not None:
                    times[place], missing[place] = seconds_of_digits(number), math.isnan(number)
        return self._encode_readable(times, missing, marks)

    def _encode_numbers(self, values, marks):
        different, places = np.unique(values, return_inverse=True)
        times = [seconds_of_digits(number) for number in different.tolist()]
        return self._encode_readable(times, np.isnan(different), marks)[places]

    def _decode_values(self, codes):
        units = self.first_unit + codes
        if self.resolution == "day":
            return pa.array(units.astype(np.int32)).cast(self.type)
        return pa.array(units * SECONDS[self.resolution]).cast(self.type)

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values as datetime64[s], for every resolution. Missing cells are NaT."""
        values = array.cast(self.type).cast(pa.timestamp("s"))
        return np.asarray(values, "datetime64[s]")

    def _label(self, value):
        if self.resolution == "day":
            return value.isoformat()
        return value.isoformat(sep=" ", timespec="seconds" if self.resolution == "second" else "minutes")

    def _find(self, text):
        at, after = self.below(text) if self._units(text) is not None else (0, 0)
        return at if at < after else None

    def below(self, text: str) -> tuple[int, int]:
        seconds = parse_time(text.strip().encode(errors="replace"))
        if seconds is None:
            raise self._error(f"{said(text)} is no date or time, as in {self.lower}")
        unit = SECONDS[self.resolution]
        ends = (-(-seconds // unit), seconds // unit + 1)
        below, not_above = (min(max(end - self.first_unit, 0), self.num_values) for end in ends)
        return below, not_above

    @property
    def _values_in_words(self):
        return f"{self.lower} to {self.upper}"


def pandas_module() -> Any:
    """The module pandas.

    Raises:
      ModuleNotFoundError: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a DataFrame needs pandas: pip install pandas", name="pandas") from error
    return pandas


KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Numeric, Categorical, Ordinal, Datetime)}


DROP = "drop"  # of a column that is not looked at
OTHER_KINDS = ("id", "constant", "weight", DROP)  # of columns that are not measured, see ``kme_jax.table.written``
DRAFTED = ("integer",)  # fields that a draft fills in from the type of a file; other kinds have no use for them
FIELDS = {kind: {field.name: field for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


def dropped_name(entry: dict[str, Any], place: int) -> str:
    """The name of a column that is dropped, of its JSON entry. Other fields may be null, as in a draft.

    Args:
      entry, place: see :func:`column_of`.

    Raises:
      ValueError: it has no name, or another field.
    """
    name: Any = entry.get("name")
    if not is_label(name):
        raise ValueError(f"column {place}: a name must be {LABEL}, got {said(name)}")
    for key, value in entry.items():
        if key not in ("name", "kind", *DRAFTED) and value is not None:
            raise ValueError(f"column {shown((name,))}: field {shown((key,))} does not apply to kind {DROP}: remove it")
    return name


def column_of(entry: Any, place: int) -> Column:
    """The column of a JSON entry.

    Args:
      entry: the JSON object of the column.
      place: its number in the schema, from 1, for errors.

    Raises:
      ValueError: the entry is not a column that is filled in.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"column {place}: expected an object with name and kind")
    name, kind = entry.get("name"), entry.get("kind")
    label = f"column {shown((name,)) if isinstance(name, str) else place}"
    if kind is None:
        raise ValueError(f"{label}: kind is null: {_REMEDIES['kind']}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{label}: unknown kind {said(kind)} (known: {', '.join((*KINDS, *OTHER_KINDS))}); free text and "
            f"identifiers cannot be released: give them the kind {DROP}, or the kind id for new identifiers"
        )
    fields = FIELDS[kind]
    for key, value in entry.items():
        if key not in fields and key != "kind":
            if all(key not in others for others in FIELDS.values()):
                raise ValueError(f"{label}: unknown field {said(key)} (known: {', '.join(['kind', *fields])})")
            if value is not None and key not in DRAFTED:
                raise ValueError(f"{label}: field {shown((key,))} does not apply to kind {kind}: remove it")
    present = {key: entry[key] for key in fields if key in entry}
    for key, field in fields.items():
        if present.get(key, field.default) in (None, dataclasses.MISSING) and field.default is not None:
            raise ValueError(
                f"{label}: {key} is {'null' if key in present else 'not given'}: {_REMEDIES.get(key, 'fill it in')}"
            )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in present.items()}
    return KINDS[kind](**values)
