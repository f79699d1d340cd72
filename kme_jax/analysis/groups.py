"""The groups of a question: the values of a column, or hours, months, quarters or years of a column of times.

Groups are ranges of codes of a column that was counted. Hours of the day are ranges of the time of day, which is
measured if the column of times has ``parts``. Months, quarters and years are ranges of the times themselves, which are
counted if it has none. So an answer for a group is that for a condition, and allows for the rows of a cell or a bin
that it cuts in the same way.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.grammar import check_known
from kme_jax.table.columns import MISSING, SECONDS, Datetime
from kme_jax.table.schema import Schema

MOST_GROUPS = 256


@short_repr
class Group(NamedTuple):
    """The rows of one group.

    Attributes:
      column: the index of the column whose codes decide.
      first: its first code.
      end: the code after its last one.
      conditions: that say the same.
    """

    column: int
    first: int
    end: int
    conditions: tuple[str, ...]

    def has(self, codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
        """Which rows are in the group, [n], for codes of rows."""
        of_column = codes[:, self.column]
        return (of_column >= self.first) & (of_column < self.end)


_PERIODS = {"month": 1, "quarter": 3, "year": 12}  # months
_PARTS = ("week", "weekday", "day")  # that a user may ask for


def groups_of(text: str, by: str, schema: Schema) -> dict[str, Group]:
    """The groups by their names, in order.

    Args:
      text: the question, for errors.
      by: a column; or the hour, month, quarter or year of a column of times, such as "begin hour".
      schema: of the released columns and those that are measured instead, see ``Schema.extended``.

    Raises:
      ValueError: there is no such column, it has too many values, or hours or months were not counted.
    """
    if by not in schema.names:
        name, _, unit = by.rpartition(" ")
        column = schema.columns[schema.index(name)] if name in schema.names else None
        if isinstance(column, Datetime) and unit == "hour":
            return _hours(text, column, schema)
        if isinstance(column, Datetime) and unit in _PERIODS:
            return _periods(text, column, schema, unit)
        if isinstance(column, Datetime) and unit in _PARTS:
            raise ValueError(
                f"query {text!r}: a {unit} of {name} was not counted; weeks and weekdays are if the schema says "
                f'"parts": true of it; use where with a range{_other_groups(name, schema)}'
            )
        if set(re.split(r"\s*,\s*|\s+and\s+", by)) <= set(schema.names):
            raise ValueError(f"query {text!r}: one column at most can follow by; use where for another")
    check_known(text, by, schema.names)
    j = schema.index(by)
    column = schema.columns[j]
    if column.num_codes > MOST_GROUPS:
        raise ValueError(
            f"query {text!r}: {by} has {column.num_codes} values, and at most {MOST_GROUPS} groups "
            f"are possible; use where with {'a range' if column.ordered else 'a value'}{_other_groups(by, schema)}"
        )
    values = column.decode(np.arange(column.num_codes)).to_pylist()
    names = [MISSING if value is None else str(value) for value in values]
    return {name: Group(j, code, code + 1, (f"{by}={name}",)) for code, name in enumerate(names)}


def _other_groups(by: str, schema: Schema) -> str:
    """What else could be asked for, if it is a column of times or its time of day."""
    name = by.removesuffix(" time")
    if name in schema.names and isinstance(schema.columns[schema.index(name)], Datetime):
        unit = "hour" if f"{name} time" in schema.names else "month" if f"{name} week" not in schema.names else None
        return "" if unit is None else f", or by {name} {unit}"
    return ""


def _hours(text: str, column: Datetime, schema: Schema) -> dict[str, Group]:
    """The 24 hours of the day, and missing cells."""
    time = f"{column.name} time"
    if column.resolution == "day":
        raise ValueError(f"query {text!r}: {column.name} has days alone, and no hours")
    if time not in schema.names:
        raise ValueError(
            f"query {text!r}: hours of the day of {column.name} were not counted; they are if the schema says "
            f'"parts": true of it'
        )
    j, units = schema.index(time), SECONDS["hour"] // SECONDS[column.resolution]
    groups = {}
    for hour in range(24):
        first, end = hour * units, (hour + 1) * units
        groups[f"{hour:02}:00"] = Group(j, first, end, (f"{time}>={first}", f"{time}<{end}"))
    return groups | _missing(j, schema)


def _periods(text: str, column: Datetime, schema: Schema, unit: str) -> dict[str, Group]:
    """The months, quarters or years of the calendar between the bounds, and missing cells."""
    name, j, size = column.name, schema.index(column.name), _PERIODS[unit]
    if f"{name} week" in schema.names:
        raise ValueError(
            f"query {text!r}: weeks of {name} were counted, because it has parts, and a {unit} ends within a week; use "
            f"where with a range of {name} week"
        )
    seconds = SECONDS[column.resolution]
    ends = np.asarray([column.first_unit, column.first_unit + column.num_values - 1]) * seconds
    first, last = ends.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) // size * size
    months = np.arange(first, last + size + 1, size).astype("datetime64[M]")
    if len(months) - 1 > MOST_GROUPS:
        raise ValueError(
            f"query {text!r}: {name} has {len(months) - 1} {unit}s, and at most {MOST_GROUPS} groups are possible; use "
            "where with a range"
        )
    starts = months.astype("datetime64[s]").astype(np.int64) // seconds - column.first_unit
    codes = np.clip(starts, 0, column.num_values).tolist()
    groups = {}
    for i, (start, end) in enumerate(itertools.pairwise(months.astype(str).tolist())):
        conditions = f"{name}>={start}-01", f"{name}<{end}-01"
        year, month = start.split("-")
        label = {"month": start, "quarter": f"{year}-Q{int(month) // 3 + 1}", "year": year}[unit]
        groups[label] = Group(j, codes[i], codes[i + 1], conditions)
    return groups | _missing(j, schema)


def _missing(j: int, schema: Schema) -> dict[str, Group]:
    column = schema.columns[j]
    if not column.nullable:
        return {}
    return {MISSING: Group(j, column.num_values, column.num_codes, (f"{column.name}={MISSING}",))}
