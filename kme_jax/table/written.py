"""Kinds of columns that are written into a release without being measured: new ids, and constants.

The private table may have these columns. Then no cell of them becomes part of a release. What is written is a function
of the schema and of the number of released rows, which are public. So these columns cost no privacy. They have no
category codes, and take no part in anything that is measured, estimated or compared.

The ids of persons may be in a column of kind id. A release for persons reads them, to choose which rows are used
(``kme_jax.table.persons``), and does not write them: released rows have new ids.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kme_jax._numerics.arrow import is_text
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.privacy.budget import check_integer
from kme_jax.table.columns import DRAFTED, FIELDS, LABEL, is_label, pandas_module, unknown_field

_MOST_DIGITS = 18  # of the number of a row
_MAX_INTEGER = 2**63 - 1
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
pc: Any = pyarrow.compute  # most of its functions are created on import


class WrittenColumn(abc.ABC):
    """A column of a release that is not measured.

    Formal guarantee: the cells of a release are those of ``values``, which has the number of released rows as its only
    argument, and knows the fields of this object. The fields are public, as the schema is. The number of released rows
    is public, or a noisy count. So the column is post-processing of what is public, for any content of the private
    column of this name, and also if there is none. The exception is a column of weights (``kme_jax.table.weights``):
    a release scales its values to the noisy sum of the private weights.

    Attributes:
      kind: the name of the kind in JSON.
      name: of the column.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # of subclasses, which are dataclasses
    kind: ClassVar[str]
    name: str

    def __post_init__(self):
        if not is_label(self.name):
            raise ValueError(f"column {said(self.name)}: a name must be {LABEL}")
        self._validate()

    def _error(self, text: str) -> ValueError:
        return ValueError(f"column {shown((self.name,))}: {text}")

    @abc.abstractmethod
    def _validate(self) -> None:
        """Raises ValueError if a field is invalid."""

    @property
    @abc.abstractmethod
    def type(self) -> pa.DataType:
        """The type of the values."""

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The kind and the values, for people."""

    @property
    def refusal(self) -> str:
        """Why nothing can be asked of the column."""
        return f"{shown((self.name,))} has the kind {self.kind}: it is written into a release and never measured"

    @abc.abstractmethod
    def values(self, num_rows: int) -> pa.Array:
        """The cells of a table.

        Args:
          num_rows: of the table.
        """

    @abc.abstractmethod
    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Cells, as from ``values``, for a column of a DataFrame. This column alone decides the type."""

    def check(self, array: pa.Array | pa.ChunkedArray) -> None:
        """Refuses cells that are not those of ``values``.

        Raises:
          ValueError: a cell or the type differs.
        """
        if array.type != self.type and not (is_text(array.type) and is_text(self.type)):
            raise self._error(f"type {array.type}, expected {self.type}")
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        same = pc.equal(array.cast(self.type), self.values(len(array))).fill_null(False)
        valid = same.to_numpy(zero_copy_only=False)
        if not valid.all():
            raise self._error(
                f"{np.sum(~valid)} cells are not as the schema says, the first in row {valid.argmin() + 1}"
            )

    def to_json(self) -> dict[str, Any]:
        """Name, kind, and the fields that differ from their defaults, as plain JSON values."""
        fields = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {"name": self.name, "kind": self.kind} | {
            name: value for name, (value, default) in fields.items() if value != default
        }


@short_repr
@dataclasses.dataclass(frozen=True)
class Identifier(WrittenColumn):
    """New ids, which have nothing to do with those of private rows: 1, 2, 3 and so on, in the order of released rows.

    Every table has ids of its own, from 1 on. So a released row has another id than a row of a sample that is drawn
    later, even if both have the same values.

    Attributes:
      prefix: text before the number. Ids are then text. Without it they are whole numbers.
      digits: the least number of digits after a prefix. A number has zeros before it, and more digits if it needs them.

    Examples:
      >>> from kme_jax import Identifier
      >>> Identifier("patient").values(3).to_pylist()
      [1, 2, 3]
      >>> Identifier("patient", prefix="P").values(2).to_pylist()
      ['P000001', 'P000002']
    """

    kind = "id"
    name: str
    prefix: str | None = None
    digits: int = 6

    def _validate(self):
        if self.prefix is not None and not is_label(self.prefix):
            raise self._error(f"prefix must be {LABEL}, got {said(self.prefix)}")
        try:
            check_integer("digits", self.digits, 1, _MOST_DIGITS)
        except ValueError as error:
            raise self._error(str(error)) from None
        if self.prefix is None and self.digits != 6:
            raise self._error("digits are for ids with a prefix: give one, or leave digits out")

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.prefix is None else pa.string()

    @property
    def text(self) -> str:
        return f"id, counted from {self.values(1)[0].as_py()}"

    def values(self, num_rows: int) -> pa.Array:
        numbers = pa.array(np.arange(1, num_rows + 1, dtype=np.int64))
        if self.prefix is None:
            return numbers
        padded = pc.utf8_lpad(numbers.cast(pa.string()), width=self.digits, padding="0")
        return pc.binary_join_element_wise(pa.scalar(self.prefix), padded, "")

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Ids as int64; with a prefix, as the type that pandas has for text."""
        values = array.cast(self.type)
        if self.prefix is not None:
            return values.to_pandas()
        return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()


@short_repr
@dataclasses.dataclass(frozen=True)
class Constant(WrittenColumn):
    """One public value, which every released row has.

    Attributes:
      value: a number, text, or true or false. A date is text, such as "2025-12-31".

    Examples:
      >>> from kme_jax import Constant
      >>> Constant("country", "NL").values(2).to_pylist()
      ['NL', 'NL']
    """

    kind = "constant"
    name: str
    value: str | float | bool

    def _validate(self):
        value = self.value
        if value is None or not isinstance(value, str | bool | int | float):
            raise self._error(f"value must be a number, text, or true or false, got {said(value)}")
        if isinstance(value, str):
            if not is_label(value):
                raise self._error(f"value must be {LABEL}, got {said(value)}")
        elif not (math.isfinite(value) if isinstance(value, float) else abs(value) <= _MAX_INTEGER):
            raise self._error(f"value must be finite, and a whole number below 2⁶³, got {said(value)}")

    @property
    def type(self) -> pa.DataType:
        return {str: pa.string(), bool: pa.bool_(), int: pa.int64()}.get(_kind(self.value), pa.float64())

    @property
    def text(self) -> str:
        return f"constant, {shown((_written(self.value),))}"

    def values(self, num_rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(self.value, self.type), num_rows)

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values as int64, float64 or bool; text as a categorical with this one category."""
        if isinstance(self.value, str):
            return pandas_module().Categorical.from_codes(np.zeros(len(array), np.int8), [self.value])
        return np.full(len(array), self.value)


def _kind(value: str | float | bool) -> type:
    """The built-in type of a value, also of a subclass. A bool is no whole number."""
    return next(kind for kind in (str, bool, int, float) if isinstance(value, kind))


def _written(value: str | float | bool) -> str:
    """A value as JSON and .csv files have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


KINDS: dict[str, type[WrittenColumn]] = {cls.kind: cls for cls in (Identifier, Constant)}


def written_of(entry: dict[str, Any], place: int, kinds: Mapping[str, type[WrittenColumn]] = KINDS) -> WrittenColumn:
    """The written column of a JSON entry. Fields of other kinds may be null, as in a draft.

    Args:
      entry: the JSON object of the column, with one of ``KINDS`` as its kind.
      place: its number in the schema, from 1, for errors.
      kinds: classes of written columns by kind.

    Raises:
      ValueError: the entry is not a column that is filled in.
    """
    name, kind = entry.get("name"), entry["kind"]
    label = f"column {shown((name,)) if isinstance(name, str) else place}"
    fields = {field.name: field for field in dataclasses.fields(kinds[kind])}
    for key, value in entry.items():
        if key in fields or key == "kind":
            continue
        if all(key not in others for others in FIELDS.values()):
            raise unknown_field(label, key, ["kind", *fields])
        if value is not None and key not in DRAFTED:
            raise ValueError(f"{label}: field {shown((key,))} does not apply to kind {kind}: remove it")
    for key, field in fields.items():
        if field.default is dataclasses.MISSING and entry.get(key) is None:
            raise ValueError(f"{label}: {key} is {'null' if key in entry else 'not given'}: fill it in")
    return kinds[kind](**{key: entry[key] for key in fields if key in entry})


def described(columns: Sequence[WrittenColumn]) -> str:
    """The names of columns with their kinds and values, in one line for people."""
    return ", ".join(f"{shown((column.name,))} ({column.text})" for column in columns)


def note_on_persons(columns: Sequence[WrittenColumn], person: str | None) -> str:
    """A sentence on ids of persons that a release replaces by new ones; "" if it has no such column.

    Args:
      columns: the written columns of a schema.
      person: the column with the ids of persons; None if the release is not for persons.
    """
    if not any(isinstance(column, Identifier) and column.name == person for column in columns):
        return ""
    return "Each synthetic row has an id of its own, so numbers of persons cannot be computed from them."


@contextlib.contextmanager
def refusals_explained(columns: Sequence[WrittenColumn]) -> Iterator[None]:
    """Says in an error about the name of a written column why the name is not known there.

    Args:
      columns: the written columns of a schema.
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        quoted = " ".join(_QUOTED.findall(text))  # what the user wrote: a name may also be a word of the error
        named = [c for c in columns if re.search(rf"(?<!\w){re.escape(c.name)}(?!\w)", quoted)]
        if not named:
            raise
        raise ValueError(f"{text}; {named[0].refusal}") from None
