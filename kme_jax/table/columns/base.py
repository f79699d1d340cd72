"""What all kinds of columns share."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Float, Int, Int64

from kme_jax._numerics.arrow import (
    floats_of,
    is_number,
    is_text,
    is_time,
    missing_cells,
    plain_type,
    seconds_of,
    taken_from,
    text_cells,
)
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.table.words import Words

MISSING = "missing"  # the label of missing cells
MAX_LABEL = 1000
LABEL = f"text of at most {MAX_LABEL} printable characters, without blanks around it"
PUBLIC_KNOWLEDGE = "from public knowledge, never from the rows"
MAX_NUMBER = 1e300  # so that differences are finite
SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}  # of the resolutions of times
# What to do about a field of a schema that is not filled in.
REMEDIES = {
    "kind": "fill in numeric, categorical, ordinal, datetime, id, constant, weight or drop",
    "lower": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "upper": f"fill in a bound {PUBLIC_KNOWLEDGE}",
    "categories": f"list them, {PUBLIC_KNOWLEDGE}",
    "resolution": f"fill in {', '.join(SECONDS)}",
    "nullable": "fill in true if cells may be missing, or false",
}
pc: Any = pyarrow.compute  # most of its functions are created on import


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


@short_repr
class Cycle(NamedTuple):
    """After how many codes the values of a column may repeat a pattern, such as weekdays or months.

    Attributes:
      codes: of one round. Those of a year need not be whole.
      number: of phases in a round, of equal length; 0 for one phase for each cell.
    """

    codes: float
    number: int = 0

    def phases_of(self, num_cells: int, width: int) -> Int64[np.ndarray, "cells"] | None:
        """The phase of each cell, from 0; None if cells do not show the pattern, or there are not two rounds.

        Args:
          num_cells: of the column.
          width: codes of a cell.
        """
        if 2 * self.codes > num_cells * width:
            return None
        if self.number:
            rounds = (np.arange(num_cells) + 0.5) * width / self.codes
            shows = width * self.number <= self.codes
            return np.floor(rounds % 1 * self.number).astype(np.int64) if shows else None
        period, rest = divmod(int(self.codes), width)
        return np.arange(num_cells) % period if not rest and period > 1 else None


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
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.number | np.bool_):  # JSON has Python's own
                object.__setattr__(self, field.name, value.item())
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
            if not isinstance(word, str) and not abs(word) < MAX_NUMBER:
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
    def cycles(self) -> tuple[Cycle, ...]:
        """After how many codes values may repeat a pattern. There are none by default."""
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
