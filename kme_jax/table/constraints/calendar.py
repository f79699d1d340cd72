"""The week, the weekday and the time of day of a column of times, as columns that are measured."""

from __future__ import annotations

import numpy as np

from kme_jax.table.columns import SECONDS, Categorical, Column, Cycle, Datetime, Numeric, year_in
from kme_jax.table.constraints.base import Clause, Codes, ColumnCodes, Determination

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONDAY = 4  # days from 1970-01-01, a Thursday, to the first Monday


class _Weeks(Numeric):
    """The number of the week, which may have a pattern of the months."""

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        return (year_in(7),)


class Calendar(Determination):
    """A column of times, which follows from its week, its weekday and its time of day. See ``Datetime.parts``.

    The week is counted from that of the lower bound. A cell is missing if its week is. Where parts lead beyond a bound,
    the week is changed, and so the weekday and the time of day stay, unless the bounds hold no such time. Synthetic
    rows rarely need it: weekdays that the first and the last week do not have are exchanged with other rows, see
    :attr:`clauses`.

    Attributes:
      measured: week and weekday, and the time of day if the resolution is finer than a day.
    """

    def __init__(self, column: Datetime):
        self.columns, self._times = (column.name,), column
        self._of_day = SECONDS["day"] // SECONDS[column.resolution]
        self._first_day = column.first_unit // self._of_day
        self._first_week = (self._first_day - _MONDAY) // 7
        last_week = ((column.first_unit + column.num_values - 1) // self._of_day - _MONDAY) // 7
        last = max(1, last_week - self._first_week)
        nullable = column.nullable
        parts: list[Column] = [
            _Weeks(f"{column.name} week", 0, last, integer=True, unit="weeks", nullable=nullable),
            Categorical(f"{column.name} weekday", WEEKDAYS, nullable=nullable),
        ]
        if self._of_day > 1:
            unit = f"{column.resolution}s"
            parts.append(
                Numeric(f"{column.name} time", 0, self._of_day - 1, integer=True, unit=unit, nullable=nullable)
            )
        self.measured = tuple(parts)

    @property
    def clauses(self) -> list[Clause]:
        """What the first and the last week exclude: the weekdays before the lower and after the upper bound.

        There are none if the bounds are in one week.
        """
        week, weekday = self.measured[0].name, self.measured[1].name
        last_day = (self._times.first_unit + self._times.num_values - 1) // self._of_day
        first, last = (self._first_day - _MONDAY) % 7, (last_day - _MONDAY) % 7
        last_week = (last_day - _MONDAY) // 7 - self._first_week
        if last_week < 1:
            return []
        cut = [(0, (0, first)), (last_week, (last + 1, 7))]
        return [
            Clause(({week: Codes(((place, place + 1),))},), weekday, Codes((days,)))
            for place, days in cut
            if days[0] < days[1]
        ]

    def codes_of(self, name, codes):
        """The weeks, if ranges of days begin and end with whole weeks, on Mondays, or at the bounds."""
        week, ranges = self.measured[0], []
        number, of_week = self._times.num_values, 7 * self._of_day
        # Units from the Monday before the lower bound.
        before = (self._first_day - _MONDAY) % 7 * self._of_day + self._times.first_unit % self._of_day
        for first, end in codes.ranges:
            low, high = (0 if first == 0 else first + before), min(end, number) + before
            if (low % of_week and first < number) or (high % of_week and end < number):
                return None
            weeks = (low // of_week, -(-high // of_week)) if first < number else (week.num_values,) * 2
            ranges.append((weeks[0], week.num_codes if end > number else weeks[1]))
        return week.name, Codes(tuple(ranges))

    def keeps(self, part, codes):
        # The week may be changed, and then the rest stays.
        return part != self.measured[0].name and self._times.num_values >= 7 * self._of_day

    def to_measured(self, codes, sources):
        missing = codes[0] == self._times.num_values
        days, time = np.divmod(self._times.first_unit + codes[0], self._of_day)
        week, weekday = np.divmod(days - _MONDAY, 7)
        parts = [week - self._first_week, weekday, time][: len(self.measured)]
        return [np.where(missing, part.num_values, of_part) for part, of_part in zip(self.measured, parts, strict=True)]

    def to_released(self, measured, sources):
        missing = measured[0] == self.measured[0].num_values
        codes: list[ColumnCodes] = [
            np.where(of_part == part.num_values, part.usual, of_part)
            for part, of_part in zip(self.measured, measured, strict=True)
        ]
        weeks, weekdays, time = codes if len(codes) == 3 else (*codes, np.zeros_like(codes[0]))
        days = 7 * (weeks + self._first_week) + _MONDAY + weekdays
        found = days * self._of_day + time - self._times.first_unit
        week = 7 * self._of_day
        found = np.where(found < 0, found + week, np.where(found >= self._times.num_values, found - week, found))
        return (np.where(missing, self._times.num_values, np.clip(found, 0, self._times.num_values - 1)),)
