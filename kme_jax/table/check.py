"""How a schema reads the cells of a private table, before anything is spent. NOT PRIVATE: for the curator alone.

No type is refused, and no cell raises an error. If a schema has a wrong kind or unit for a column, all of the column's
cells count as missing or as a bound. Only this check shows such a mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from kme_jax._numerics.short_repr import in_short, short_repr
from kme_jax._numerics.text import printable
from kme_jax.feature_maps.table import LEVELS
from kme_jax.table.columns import Column, Datetime, Numeric
from kme_jax.table.readers import TableSource
from kme_jax.table.written import WrittenColumn, described

_MANY_MOVED = 0.02  # share of all rows


@short_repr
@dataclasses.dataclass(frozen=True)
class ColumnCheck:
    """How the cells of a column are read. SENSITIVE: counts of private cells, without noise.

    Attributes:
      name: of the column.
      kind: of the column.
      missing: number of cells that are missing.
      unreadable: number of cells that cannot be read as a value of the column.
      moved: number of numbers or times beyond a bound, which are moved to the bound.
      filled: the value that missing and unreadable cells count as, as text; None if they count as missing.
      looks: a sentence that says how cells must be written, so that they can be read. It follows from the schema.
    """

    name: str
    kind: str
    missing: int
    unreadable: int
    moved: int
    filled: str | None = None
    looks: str = ""

    def _in_short(self) -> str:
        # Counts are not shown: a notebook keeps what it shows, and may be published.
        return f"SENSITIVE, {in_short(self.name)}, {in_short(self.kind)}, counts in .missing, .unreadable and .moved"


def check_table(source: TableSource) -> list[ColumnCheck]:
    """How the cells of every column are read, in the order of the schema, with that of the weights last. SENSITIVE.

    Args:
      source: the private table, of N rows.

    Raises:
      FileError: there are fewer than two rows, or the file has changed since it was opened.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Numeric, Schema
      >>> from kme_jax.table import check_table, open_table
      >>> schema = Schema((Numeric("age", 0, 110, integer=True, nullable=True),))
      >>> (age,) = check_table(open_table(pa.table({"age": ["30", "old", "200", None]}), schema))
      >>> age.missing, age.unreadable, age.moved
      (1, 1, 1)
    """
    source.check_size()
    weight = source.schema.weight
    columns = (*source.schema.columns, *([] if weight is None else [weight.numbers]))
    counts = np.zeros((len(columns), 3), np.int64)
    for batch in source.batches():
        for place, column in enumerate(columns):
            codes = column.look(batch.column(column.name))
            counts[place] += [np.sum(codes == mark) for mark in (-1, -2, -3)]
    kinds = [*(column.kind for column in source.schema.columns), *([] if weight is None else [weight.kind])]
    filled = [None if c.nullable else c.labels(np.array([c.usual]))[0] for c in columns]
    return [
        ColumnCheck(c.name, kind, *map(int, row), filled=value, looks=_looks(c))
        for c, kind, row, value in zip(columns, kinds, counts, filled, strict=True)
    ]


def _looks(column: Column) -> str:
    """A sentence that says how cells of a column must be written."""
    if isinstance(column, Numeric):
        if column.decimal == ",":
            return "Numbers look like 1234,5 or 1.234,5, without a unit or a sign such as %."
        return (
            'Numbers look like 1234.5, without a unit or a sign such as %; 1234,5 needs "decimal": "," in the schema.'
        )
    if isinstance(column, Datetime):
        iso = "2025-12-31 or 2025-12-31 23:59:59"
        if column.format is None:
            return f'Times look like {iso}; others need a "format" in the schema.'
        return f"Times look like {column.format}, or like {iso}."
    return "Cells are spelled like the categories."


def check_constraints(source: TableSource) -> dict[str, int]:
    """By constraint, as text, how many rows break it. SENSITIVE.

    Such rows are repaired before anything is measured. If they are many, the constraint is wrong.

    Args:
      source: the private table.

    Raises:
      FileError: the file has changed since it was opened.
    """
    constraints, recoding = source.schema.constraints, source.schema.recoding
    counts = np.zeros(len(constraints), np.int64)
    for codes in source.codes() if constraints else ():
        counts += recoding.broken_by(codes).sum(1)
    return dict(zip((one.text for one in constraints), counts.tolist(), strict=True))


def describe_persons(source: TableSource) -> str:
    """How many rows of persons are used, as text. SENSITIVE.

    Args:
      source: the private table, opened with persons.
    """
    persons = source.persons
    if persons is None:
        return ""
    lines = [f"{source.num_read} rows of {persons.num_persons} persons; {source.num_rows} are used"]
    if persons.num_persons == source.num_read > 1:
        lines.append("each row has an id of its own: does this column tell persons apart, or rows?")
    if persons.num_without:
        lines.append(f"{persons.num_without} rows have no id, and are not used")
    return "\n".join(lines)


def describe_weights(source: TableSource) -> str:
    """What the weights of rows are, as text; "" if there are none. SENSITIVE.

    Args:
      source: the private table.
    """
    weight = source.schema.weight
    if weight is None:
        return ""
    levels = np.concatenate([codes[:, -1] for codes in source.codes(levels=True)])
    shares, name = levels / LEVELS, printable(weight.name)
    lines = [f"rows count by {name}, whose sum is {shares.sum() * weight.upper:,.6g}"]
    if not shares.any():
        return f"no row counts: all weights in {name} are 0. Is the kind right?"
    at_most = int((levels == LEVELS).sum())
    lines.append(f"{int((levels == 0).sum())} rows do not count, and {at_most} have the largest weight, or more")
    lines.append(
        f"the noise is as large as for {shares.sum():,.0f} rows without weights, because the largest weight is "
        f"{1 / shares.mean():.3g} times the mean"
    )
    return "\n".join(lines)


def describe(
    checks: list[ColumnCheck],
    num_rows: int,
    broken: Mapping[str, int] | None = None,
    written: Sequence[WrittenColumn] = (),
) -> str:
    """The counts as text. SENSITIVE.

    Args:
      checks: one for each column.
      num_rows: N.
      broken: by constraint, the number of rows that break it.
      written: columns of the schema that are not measured, so their cells are not checked.
    """
    lines = [
        "NOT PRIVATE: what follows is exact, and for your eyes only",
        f"{num_rows} rows; cells of each column that are not read as they are:",
        f"{'column':<30} {'kind':<12} {'missing':>10} {'unreadable':>10} {'beyond':>10}",
    ]
    for c in checks:
        line = f"{c.name:<30.30} {c.kind:<12} {c.missing:>10} {c.unreadable:>10} {c.moved:>10}"
        if c.missing + c.unreadable == num_rows:
            line += f"   none is read: is the kind right? {c.looks}".rstrip()
        else:
            if c.unreadable > _MANY_MOVED * num_rows:
                hints = f"{c.looks} Files are in UTF-8, or need --encoding.".lstrip()
                line += f"   {c.unreadable / num_rows:.0%} cannot be read. {hints}"
            lost = c.missing + c.unreadable
            if c.filled is not None and lost > _MANY_MOVED * num_rows:
                line += f"   {lost / num_rows:.0%} count as {c.filled}, because the column is not nullable."
            if c.moved > _MANY_MOVED * num_rows:
                line += f"   {c.moved / num_rows:.0%} beyond a bound: is the unit right?"
        lines.append(line)
    lines.append("unreadable: no value of the column; beyond: beyond a bound, and moved to it")
    if written:
        lines.append(f"not measured, so not checked: {described(written)}")
    for text, number in (broken or {}).items():
        repaired = ", and are repaired" if number else ""
        many = ": is it right?" if number > _MANY_MOVED * num_rows else ""
        lines.append(f"{number} rows break the constraint {text}{repaired}{many}")
    return "\n".join(lines)
