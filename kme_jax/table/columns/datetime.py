"""A column of times."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from kme_jax._numerics.arrow import (
    seconds_of_digits,
)
from kme_jax._numerics.cells import (
    is_time_format,
    parse_number,
    parse_time,
    parse_time_in,
)
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns.base import SECONDS, Column, Cycle, Marks
from kme_jax.table.words import Words

_CYCLES = 86400, 7 * 86400  # a day and a week, in seconds
_DAYS_OF_YEAR, _PHASES_OF_YEAR = 365.2425, 12


def year_in(days: float) -> Cycle:
    """The cycle of a year in a column whose codes have so many days."""
    return Cycle(_DAYS_OF_YEAR / days, _PHASES_OF_YEAR)


@short_repr
@dataclasses.dataclass(frozen=True)
class Datetime(Column):
    """Dates, or times in UTC, from a lower to an upper bound.

    Attributes:
      lower: the first date or time, as ISO text; a date or a datetime of Python, pandas or NumPy becomes text.
      upper: the last date or time, likewise.
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
        for field in ("lower", "upper", "default"):
            object.__setattr__(self, field, _iso(getattr(self, field)))
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
    def cycles(self) -> tuple[Cycle, ...]:
        unit = SECONDS[self.resolution]
        exact = tuple(Cycle(seconds // unit) for seconds in _CYCLES if seconds > unit)
        return (*exact, year_in(unit / 86400))

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


def _iso(value: Any) -> Any:
    """The ISO text of a date or a time; anything else as it is."""
    if isinstance(value, np.datetime64):
        value = value if np.isnat(value) else value.astype("datetime64[s]").item()
    return value.isoformat() if isinstance(value, datetime.date) and value == value else value
