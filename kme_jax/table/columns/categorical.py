"""Columns of categories, without an order and with one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kme_jax._numerics.arrow import (
    is_number,
    is_text,
    is_time,
)
from kme_jax._numerics.cells import (
    FIRST_SECOND,
    LAST_SECOND,
    parse_number,
)
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.table.columns.base import LABEL, MISSING, REMEDIES, Column, Marks, is_label, pandas_module, pc
from kme_jax.table.words import key_of

MAX_CATEGORIES = 4096
_NARROW = ("float32", "float16")


@short_repr
@dataclasses.dataclass(frozen=True)
class Categorical(Column):
    """Texts from a list. A cell that is a number or a time is the category with the same number or time.

    Attributes:
      categories: the texts, at most 4096, all different. Rare ones share bins with their neighbours in this list. False
        and True count as the texts "False" and "True".

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
            kind = type(self.categories).__name__ if hasattr(self.categories, "dtype") else said(self.categories)
            raise self._error(f"categories must be a list, got {kind}; {REMEDIES['categories']}")
        if len(self.categories) > MAX_CATEGORIES:
            raise self._error(
                f"{len(self.categories)} categories, more than {MAX_CATEGORIES}: group them, or remove the column "
                "(free text and identifiers cannot be released)"
            )
        if not self.categories:
            raise self._error(f"the list of categories is empty: {REMEDIES['categories']}")
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
