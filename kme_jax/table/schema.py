"""What the columns of a table may hold, from public knowledge, as JSON that a person writes; and their cells as codes.

A code is the number of a value on the finest grid of its column. What a cell holds never raises an error or a warning:
what is beyond a bound goes to it, what is missing or no value of the column goes to the code for missing cells, or to a
public default.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime
import json
import math
import os
import pathlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
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


def _parse_number(cell: bytes) -> float | None:
    """A number, NaN for an empty cell, None for what is no number."""
    try:
        return float(cell or b"nan") if b"_" not in cell else None
    except ValueError:
        return None


def _parse_time(cell: bytes) -> int | None:
    """Seconds since 1970 of ISO text, in UTC unless it names a zone; None for other text."""
    try:
        time = datetime.datetime.fromisoformat(cell.decode("ascii"))
        time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
        return (time - _EPOCH) // datetime.timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None


def _text_cells(array: pa.Array) -> list[bytes]:
    """Of an array of text: without blanks around them, empty for missing ones."""
    return [(cell or b"").strip() for cell in array.cast(pa.large_binary()).to_pylist()]


def _floats(array: pa.Array) -> np.ndarray:
    """Of an array of numbers; NaN for missing ones. What is beyond 2⁵³ is rounded."""
    return pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _seconds(array: pa.Array) -> np.ndarray:
    """Whole seconds since 1970, int64, of an array of dates or timestamps; 0 for missing ones."""
    days = pa.types.is_date32(array.type)
    numbers = array.view(pa.int32() if days else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if days:
        return numbers * 86400
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    return numbers // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


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
            raise ValueError(f"column {self.name!r}: a name must be text without blanks around it")
        if not isinstance(self.nullable, bool):
            raise self._error(f"nullable must be true or false, got {self.nullable!r}")
        self._validate()
        if self.default is not None:
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

    def _accepts(self, kind: pa.DataType) -> bool:
        return _is_number(kind)

    def check_type(self, kind: pa.DataType) -> None:
        """Refuses a type of arrays that cannot be encoded.

        Raises:
          ValueError: such a type.
        """
        plain = _plain(kind)
        if not (self._accepts(plain) or _is_text(plain) or pa.types.is_null(plain)):
            raise self._error(f"type {kind} does not fit kind {self.kind}: convert it, or change the schema")

    def encode(self, array: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Codes [n], int64, of any cells.

        Raises:
          ValueError: see ``check_type``.
        """
        if isinstance(array, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *map(self.encode, array.chunks)])
        self.check_type(array.type)
        if pa.types.is_dictionary(array.type) and len(array.dictionary) > len(array):
            # Batches may share one that is as long as the table. (Views have no kernel for it.)
            if pa.types.is_string_view(array.type.value_type) or pa.types.is_binary_view(array.type.value_type):
                plain = array.dictionary.cast(pa.large_binary())
                array = pa.DictionaryArray.from_arrays(array.indices, plain)
            array = array.dictionary_decode()
        if pa.types.is_decimal(array.type):
            array = pc.cast(array, pa.float64(), safe=False)
        if self._by_text(array.type):
            array = array.dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            return self._encode_values(array)
        codes = np.append(self._encode_values(array.dictionary), self._missing)
        indices = array.indices.cast(pa.int64()).fill_null(len(codes) - 1).to_numpy()
        return np.take(codes, indices, mode="clip")  # damaged files have indices beyond the dictionary

    def _by_text(self, kind: pa.DataType) -> bool:
        """Whether different cells should be looked at once each."""
        return _is_text(kind)

    def _encode_values(self, array: pa.Array) -> np.ndarray:
        if pa.types.is_null(array.type):
            return np.full(len(array), self._missing)
        return self._encode_text(_text_cells(array)) if _is_text(array.type) else self._encode_typed(array)

    @abc.abstractmethod
    def _encode_text(self, cells: Sequence[bytes]) -> np.ndarray:
        """Codes of cells, of which empty ones are missing."""

    @abc.abstractmethod
    def _encode_typed(self, array: pa.Array) -> np.ndarray:
        """Codes of an array of a type that is accepted."""

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
        text = MISSING if value is None else str(value).strip()
        code = self._find(text)
        if code is not None:
            return code
        if text != MISSING:
            raise self._error(f"{text!r} is not one of its values, {self._values_in_words}")
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
            raise self._error(f"{text!r} is not one of its values, {self._values_in_words}")
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
    """Whether it is text that a stripped cell in UTF-8 can be."""
    return isinstance(text, str) and text.strip() == text != "" and text.encode(errors="replace").decode() == text


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
            raise self._error(f"integer must be true or false, got {self.integer!r}")
        if not isinstance(self.unit, str | None):
            raise self._error(f"unit must be text, got {self.unit!r}")
        for field in ("lower", "upper", *["step"] * (self.step is not None)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"{field} must be a number, got {value!r}; {_REMEDIES['lower']}")
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

    def _encode_numbers(self, values: np.ndarray) -> np.ndarray:
        codes = self._nearest(values)
        codes[np.isnan(values)] = self._missing
        return codes.astype(np.int64)

    def _encode_text(self, cells):
        numbers = [_parse_number(cell) for cell in cells]
        codes = self._encode_numbers(np.array(numbers, np.float64))
        codes[[number is None for number in numbers]] = self._unreadable
        return codes

    def _encode_typed(self, array):
        return self._encode_numbers(_floats(array))

    def _decode_values(self, codes):
        values = self.lower + codes * self._step
        if self.step is not None and self._digits < 16 and self._largest * 10**self._digits < _MAX_INTEGER:
            values = np.round(values, self._digits)  # 12.34, not 12.340000000000002
        return pa.array(np.clip(values, self.lower, self.upper), self.type)

    def _label(self, value):
        return str(value) if self.integer else f"{value:.{self._digits}f}"

    def _find(self, text):
        number = _parse_number(text.encode(errors="replace"))
        if number is None or not self.lower <= number <= self.upper:
            return None
        code = int(self._nearest(number))
        return code if self._is_fine or self._decode_values(np.array([code]))[0].as_py() == number else None

    def below(self, text):
        number = _parse_number(text.strip().encode(errors="replace"))
        if number is None or math.isnan(number):
            raise self._error(f"{text!r} is no number")
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


@dataclasses.dataclass(frozen=True)
class Categorical(Column):
    """One of some texts. Whole numbers count as their digits, bool as true and false.

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
            raise self._error(f"categories must be a list, got {self.categories!r}")
        if len(self.categories) > MAX_CATEGORIES:
            raise self._error(
                f"{len(self.categories)} categories, more than {MAX_CATEGORIES}: group them, or remove the column "
                "(free text and identifiers cannot be released)"
            )
        if not self.categories:
            raise self._error("the list of categories is empty")
        for category in self.categories:
            if not _is_label(category):
                raise self._error(f"a category must be text without blanks around it, got {category!r}")
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

    def check_type(self, kind):
        super().check_type(kind)
        # Otherwise every cell would be unreadable, in silence.
        if pa.types.is_boolean(_plain(kind)) and not {"true", "false"} & set(self.categories):
            raise self._error("type bool: its categories must be true and false")

    def _by_text(self, kind):
        return _is_text(kind) or _is_number(kind)

    def _encode_text(self, cells):
        codes = {category.encode(): i for i, category in enumerate(self.categories)} | {b"": self._missing}
        unreadable = self._unreadable
        return np.array([codes.get(cell, unreadable) for cell in cells], np.int64)

    def _encode_typed(self, array):
        if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
            return self._encode_text(_text_cells(array.cast(pa.string())))
        numbers = pc.cast(array, pa.float64(), safe=False) if pa.types.is_decimal(array.type) else array
        numbers = numbers.to_numpy(zero_copy_only=False) + 0.0  # no −0
        texts = (np.format_float_positional(x, trim="-") for x in numbers)  # 1, not 1.0
        return self._encode_text([b"" if text == "nan" else text.encode() for text in texts])

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
        if self.resolution not in _SECONDS:
            raise self._error(f"resolution must be one of {', '.join(_SECONDS)}, got {self.resolution!r}")
        for field in ("lower", "upper"):
            value = getattr(self, field)
            if not isinstance(value, str) or _parse_time(value.encode(errors="replace")) is None:
                raise self._error(f"{field} must be ISO text as in 2024-03-01 or 2024-03-01T12:30, got {value!r}")
        if not self._first < self._last:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")

    def _units(self, text: str) -> int | None:
        seconds = _parse_time(text.encode(errors="replace"))
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

    def _accepts(self, kind):
        return _is_time(kind)

    def _nearest(self, seconds: np.ndarray) -> np.ndarray:
        return np.clip(seconds // _SECONDS[self.resolution], self._first, self._last) - self._first

    def _encode_text(self, cells):
        times = [_parse_time(cell) for cell in cells]
        codes = self._nearest(np.array([time or 0 for time in times], np.int64))
        codes[[time is None for time in times]] = self._unreadable
        codes[[not cell for cell in cells]] = self._missing
        return codes

    def _encode_typed(self, array):
        codes = self._nearest(_seconds(array))
        codes[array.is_null().to_numpy(zero_copy_only=False)] = self._missing
        return codes

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
        seconds = _parse_time(text.strip().encode(errors="replace"))
        if seconds is None:
            raise self._error(f"{text!r} is no date or time, as in {self.lower}")
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
            f"{label}: unknown kind {kind!r} (known: {', '.join(KINDS)}); free text and identifiers cannot be "
            "released: remove the column from the schema and from the file"
        )
    fields = _FIELDS[kind]
    for key, value in entry.items():
        if key not in fields and key != "kind":
            if all(key not in others for others in _FIELDS.values()):
                raise ValueError(f"{label}: unknown field {key!r} (known: {', '.join(['kind', *fields])})")
            if value is not None:
                raise ValueError(f"{label}: field {key} does not apply to kind {kind}: remove it")
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
            raise ValueError(f"filled_from_data must be true or false, got {self.filled_from_data!r}")

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
            raise ValueError(f"no column {name!r} in the schema, which has {files.shown(self.names)}")
        return self.names.index(name)

    def check_fields(self, fields: pa.Schema) -> None:
        """Refuses a table by the names and types of its columns.

        Raises:
          ValueError: columns missing, extra, or of a type that they cannot have.
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
        for column in self.columns:
            column.check_type(fields.field(column.name).type)

    def encode(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Codes [n, C], int64, of any rows, column after column in memory.

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
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {version!r}")
        unknown = sorted(document.keys() - {"schema_version", "filled_from_data", "columns", "comment"})
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        columns = tuple(_column(entry, place) for place, entry in enumerate(document["columns"], 1))
        return cls(columns, document.get("filled_from_data", False))

    @classmethod
    def read(cls, path: str | os.PathLike) -> Schema:
        """From a .json file.

        Raises:
          FileError: no such file, no JSON, or no schema that is filled in.
        """
        path = pathlib.Path(path)
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8-sig")))
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror})") from error
        except json.JSONDecodeError as error:
            raise FileError(f"{path}: line {error.lineno} is no JSON: {error.msg}") from error
        except (UnicodeDecodeError, RecursionError) as error:
            raise FileError(f"{path}: is no JSON in UTF-8") from error
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
        if any(_parse_number(name.encode()) is not None for name in reader.fields.names):
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
    times = [_parse_time(cell) for cell in cells]
    numbers = [_parse_number(cell) for cell in cells]
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
