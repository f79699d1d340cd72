"""What a constraint between columns is, and sets of category codes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns import Column, Datetime, Numeric, is_label
from kme_jax.table.conditions import ranges_of

ColumnCodes = Int64[np.ndarray, "n"]


@short_repr
@dataclasses.dataclass(frozen=True)
class Codes:
    """A set of category codes of a column.

    Attributes:
      ranges: disjoint ranges [first, last), in order.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def union(cls, sets: Sequence[Codes]) -> Codes:
        """All codes of any of the sets."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(pair for one in sets for pair in one.ranges if pair[0] < pair[1]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def others(self, num_codes: int) -> Codes:
        """All other codes of a column with so many codes."""
        ends = [0, *(end for pair in self.ranges for end in pair), num_codes]
        return Codes(tuple((a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b))

    def have(self, codes: ColumnCodes) -> Bool[np.ndarray, "n"]:
        """Whether each code is in the set, [n]."""
        ends = np.array([end for pair in self.ranges for end in pair], np.int64)
        return np.searchsorted(ends, codes, side="right") % 2 == 1

    def nearest(self, codes: ColumnCodes) -> ColumnCodes:
        """The code of the set that is nearest to each code, [n]; the smaller one of two. The set is not empty."""
        ends = np.array([[first, last - 1] for first, last in self.ranges])
        inside = np.clip(codes[:, None], ends[:, 0], ends[:, 1])
        return np.take_along_axis(inside, np.abs(inside - codes[:, None]).argmin(1)[:, None], 1)[:, 0]


@short_repr
@dataclasses.dataclass(frozen=True)
class Clause:
    """Codes of one column that rows must not have if their other columns have certain codes.

    Attributes:
      when: combinations of codes of other columns, by the names of these columns. Any of them suffices. One that is
        empty is met by all rows.
      column: the name of the column.
      excluded: its codes that such rows must not have.
    """

    when: tuple[Mapping[str, Codes], ...]
    column: str
    excluded: Codes

    @property
    def sources(self) -> set[str]:
        """Names of the other columns."""
        return {name for combination in self.when for name in combination}

    def applies(self, codes: Mapping[str, ColumnCodes], num_rows: int) -> Bool[np.ndarray, "n"]:
        """Whether the clause is about each row, [n].

        Args:
          codes: of the columns, by name.
          num_rows: n.
        """
        found = np.zeros(num_rows, bool)
        for combination in self.when:
            met = np.ones(num_rows, bool)
            for name, values in combination.items():
                met &= values.have(codes[name])
            found |= met
        return found


class Determination(abc.ABC):
    """How columns follow from others, and which columns are measured instead.

    Attributes:
      columns: the names of the columns that follow.
      sources: names of the released columns that they follow from.
      measured: the columns that are measured instead. There are none if all follows from the sources alone.
      addends: names of measured or released columns whose sum the column is, or None.
      remedy: what else could follow, as the end of a sentence of an error.
    """

    columns: tuple[str, ...]
    sources: tuple[str, ...] = ()
    measured: tuple[Column, ...] = ()
    addends: tuple[str, ...] | None = None
    remedy: str = ""

    def to_measured(self, codes: Sequence[ColumnCodes], sources: Sequence[ColumnCodes]) -> Sequence[ColumnCodes]:
        """Codes of the measured columns for codes of the columns and of their sources. Each row by itself.

        Rows that break the constraint get the codes of a row that meets it.
        """
        return ()

    @abc.abstractmethod
    def to_released(self, measured: Sequence[ColumnCodes], sources: Sequence[ColumnCodes]) -> Sequence[ColumnCodes]:
        """Codes of the columns, for those of the measured columns and of the sources. Each row by itself."""

    def breaks(self, codes: Sequence[ColumnCodes], sources: Sequence[ColumnCodes]) -> Bool[np.ndarray, "n"]:
        """Whether each row, with codes of the columns and of their sources, does not meet the constraint, [n]."""
        released = self.to_released(self.to_measured(codes, sources), sources)
        return np.any([ours != theirs for ours, theirs in zip(released, codes, strict=True)], axis=0)

    def keeps(self, part: str, codes: Codes) -> bool:
        """Whether a measured column has one of these codes after any row was released, if it had one before.

        A value that leads beyond a bound may be changed. Clauses may only be about codes that are kept.

        Args:
          part: the name of one of ``measured``.
          codes: of this column.
        """
        return True

    def codes_of(self, name: str, codes: Codes) -> tuple[str, Codes] | None:
        """Another column, and its codes that stand for codes of one of ``columns``. None if there is none.

        Args:
          name: of one of ``columns``.
          codes: of this column.
        """
        return None


class Constraint(abc.ABC):
    """A constraint between columns that every row of a release meets. It is public, as the schema is."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # of subclasses, which are dataclasses
    kind: ClassVar[str]

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The constraint in one line, for people."""

    def clauses(self, columns: Sequence[Column]) -> list[Clause]:
        """What the constraint excludes.

        Args:
          columns: that are measured.

        Raises:
          ValueError: a column does not fit.
        """
        return []

    def determination(self, columns: Mapping[str, Column], taken: Collection[str] = ()) -> Determination | None:
        """How columns follow from others, or None if none does.

        Args:
          columns: that are released, by name.
          taken: names of columns that follow from others by an earlier constraint.

        Raises:
          ValueError: a column does not fit.
        """
        return None

    def resolved(self, determination: Determination | None) -> Constraint:
        """The constraint with all that its columns decide, so that what is saved does not depend on a rule.

        Args:
          determination: of the constraint.
        """
        return self

    def to_json(self) -> dict[str, Any]:
        """Kind, and the fields that differ from their defaults, as plain JSON values."""
        fields = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {"kind": self.kind} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, (value, default) in fields.items()
            if value != default
        }


def check_name(value: Any, field: str) -> None:
    """Raises ValueError if it is no name of a column."""
    if not is_label(value):
        raise ValueError(f"{field} must be the name of a column, got {said(value)}")


def check_texts(values: Any, field: str, least: int) -> tuple[str, ...]:
    """A list of texts as a tuple.

    Raises:
      ValueError: it is none, or has fewer than ``least`` texts, or a text twice.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{field} must be a list of texts, got {said(values)}")
    if len(values) < least or len(set(values)) < len(values):
        raise ValueError(f"{field} must be a list of {least} or more different texts, got {said(list(values))}")
    return tuple(values)


def known(columns: Mapping[str, Column], name: str) -> Column:
    """The column of this name.

    Raises:
      ValueError: there is none.
    """
    if name not in columns:
        raise ValueError(f"there is no column {said(name)}")
    return columns[name]


def sets_of(columns: Sequence[Column], text: Any) -> dict[str, Codes]:
    """The codes that meet conditions, by the name of the column. There may be "and" between conditions.

    Raises:
      ValueError: the conditions cannot be read, or no value meets them.
    """
    if not isinstance(text, str):
        raise ValueError(f"conditions must be text such as age>=65 and sex=Female, got {said(text)}")
    sets = {columns[j].name: Codes.union([Codes(tuple(r))]) for j, r in ranges_of(columns, [text]).items()}
    for name, codes in sets.items():
        if not codes.ranges:
            raise ValueError(f"condition {text!r}: no value of {name} meets it")
    return sets


def step_of(column: Numeric) -> float | None:
    """The distance of neighbouring values; None if all numbers within the bounds are values."""
    return float(column.step or 1) if column.integer else column.step


def numbers_of(column: Numeric | Datetime, codes: ColumnCodes) -> Float64[np.ndarray, "n"]:
    """The numbers that codes stand for, [n]. Times are in units of the resolution. NaN for missing cells."""
    if isinstance(column, Datetime):
        return np.where(codes == column.num_values, np.nan, column.first_unit + codes)
    return column.decode(codes).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)


def nearest_codes(column: Numeric | Datetime, numbers: Float64[np.ndarray, "n"]) -> ColumnCodes:
    """The codes of the nearest values, [n]. Missing numbers have the code for missing cells.

    The column is nullable, or no number is missing.
    """
    if isinstance(column, Datetime):
        nearest = np.clip(np.nan_to_num(np.rint(numbers)) - column.first_unit, 0, column.num_values - 1)
        return np.where(np.isnan(numbers), column.num_values, nearest).astype(np.int64)
    return column.encode(pa.array(numbers), words=False)
