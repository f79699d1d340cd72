"""Words for missing cells: what the cells of a column hold in place of a value, such as -999, "?" or "refused".

A cell is such a word in one of three ways, whatever the type of its column is:

* its text is exactly the word,
* it is the same number: -999, -999.0 and "-999" are one cell, and so are 1, "01" and true,
* it is the same time or time of day.

A number that is not whole, and is exactly a number of 32 bits, is also the word that rounds to it: a file may store
-99.9 in 32 bits. All of this depends on the cell and on the words alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from kme_jax._numerics.arrow import parse_clock, seconds_of_digits
from kme_jax._numerics.cells import FIRST_SECOND, LAST_SECOND, parse_number, parse_time
from kme_jax._numerics.short_repr import short_repr

_Key = tuple[str, float]


def key_of(cell: bytes, parse: Callable[[bytes], float | None] = parse_number) -> _Key | None:
    """The number, the time or the time of day that text stands for, with the name of its sort; None for other text.

    Args:
      cell: text without blanks around it.
      parse: the number that it stands for: NaN if it is missing, None if it is none.
    """
    number = parse(cell)
    if number is not None:
        return None if math.isnan(number) else ("number", number)
    for name, value in (("time", parse_time(cell)), ("clock", parse_clock(cell))):
        if value is not None:
            return name, value
    return None


@np.errstate(all="ignore")
def _narrow(number: float) -> float:
    """A number of 32 bits, as float64; a whole number unchanged."""
    return float(np.float32(number)) if math.isfinite(number) and number != int(number) else number


@short_repr
@dataclasses.dataclass(frozen=True)
class Words:
    """Words for missing cells of a column, ready to be looked up.

    Attributes:
      words: texts without blanks around them, and finite numbers.
      parse: the number that text stands for in this column: NaN if it is missing, None if it is none.
      digits_are_days: whether a whole number of eight digits, such as 20240301, is also a day.
    """

    words: tuple[str | float, ...]
    parse: Callable[[bytes], float | None] = parse_number
    digits_are_days: bool = False

    def key(self, word: str | float) -> _Key | None:
        """The number, the time or the time of day that a word or a category stands for; None for other text."""
        return ("number", float(word)) if isinstance(word, int | float) else self._key(word.encode(errors="replace"))

    def _key(self, cell: bytes) -> _Key | None:
        return key_of(cell, self.parse)

    @functools.cached_property
    def _texts(self) -> frozenset[bytes]:
        return frozenset(word.encode() for word in self.words if isinstance(word, str))

    @functools.cached_property
    def _keys(self) -> frozenset[_Key]:
        keys = {key for key in map(self.key, self.words) if key is not None}
        keys |= {(kind, _narrow(value)) for kind, value in keys if kind == "number"}
        return frozenset(keys | self._days(keys))

    def _days(self, keys: Iterable[_Key]) -> set[_Key]:
        """The days that are the numbers among keys."""
        if not self.digits_are_days:
            return set()
        days = (seconds_of_digits(value) for kind, value in keys if kind == "number")
        return {("time", day) for day in days if day is not None}

    def _has(self, key: _Key | None) -> bool:
        return key is not None and (key in self._keys or not self._keys.isdisjoint(self._days([key])))

    def twice(self) -> str | float | None:
        """The first word that says the same as an earlier one; None if there is none."""
        seen: set[Any] = set()
        for word in self.words:
            same = {word if isinstance(word, str) else self.key(word), self.key(word) or word}
            if not seen.isdisjoint(same):
                return word
            seen |= same
        return None

    def have(self, value: str | float) -> bool:
        """Whether a public value of the column would count as missing, if a cell held it."""
        text = value.encode(errors="replace") if isinstance(value, str) else None
        return text in self._texts or self._has(self.key(value))

    def may_have(self, category: str) -> bool:
        """Whether a cell with this text would count as missing, or would if its number were stored in 32 bits."""
        key = self.key(category)
        return self.have(category) or (key is not None and key[0] == "number" and self._has((key[0], _narrow(key[1]))))

    def among_texts(self, cells: Sequence[bytes]) -> Bool[np.ndarray, "n"]:
        """Whether each of n texts is a word. They have no blanks around them."""
        texts, keys = self._texts, self._keys
        return np.array([cell in texts or bool(keys and self._has(self._key(cell))) for cell in cells], bool)

    def among_numbers(self, values: Float[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
        """Whether each of n numbers is a word. NaN is none."""
        found = np.isin(values, [value for kind, value in self._keys if kind == "number"])
        if self.digits_are_days and any(kind == "time" for kind, _ in self._keys):
            different, places = np.unique(values, return_inverse=True)
            found |= np.array([self._has(("number", value)) for value in different.tolist()], bool)[places]
        return found

    def among_times(self, seconds: Int64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
        """Whether each of n times is a word. Times are whole seconds since 1970."""
        times = [int(value) for kind, value in self._keys if kind == "time"]
        return np.isin(np.clip(seconds, FIRST_SECOND, LAST_SECOND), np.array(times, np.int64))
