"""How cells of a private table are read by a schema, before anything is spent. NOT PRIVATE: for the curator alone.

No type is refused, and no cell raises an error. So a wrong kind or a wrong unit of a column shows nowhere else: all of
its cells count as missing, or as a bound.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax.table.readers import TableSource


@dataclasses.dataclass(frozen=True)
class ColumnCheck:
    """How the cells of a column are read. SENSITIVE: counts of private cells, without noise.

    Attributes:
      name: of the column.
      kind: of the column.
      missing: how many cells are missing.
      unreadable: how many cells are no value of the column.
      moved: how many numbers or times are beyond a bound, and are moved to it.
    """

    name: str
    kind: str
    missing: int
    unreadable: int
    moved: int


def check_table(source: TableSource) -> list[ColumnCheck]:
    """How the cells of every column are read, in the order of the schema. SENSITIVE.

    Args:
      source: the private table, of N rows.

    Raises:
      FileError: the file has changed.
    """
    columns = source.schema.columns
    counts = np.zeros((len(columns), 3), np.int64)
    for batch in source.batches():
        for place, column in enumerate(columns):
            codes = column.look(batch.column(column.name))
            counts[place] += [np.sum(codes == mark) for mark in (-1, -2, -3)]
    return [ColumnCheck(c.name, c.kind, *map(int, some)) for c, some in zip(columns, counts, strict=True)]


def describe(found: list[ColumnCheck], num_rows: int) -> str:
    """A table of the counts, for people. SENSITIVE.

    Args:
      found: of every column.
      num_rows: N.
    """
    lines = [
        "NOT PRIVATE: what follows is exact, and for your eyes only",
        f"{num_rows} rows; cells of each column that are not read as they are:",
        f"{'column':<30} {'kind':<12} {'missing':>10} {'unreadable':>10} {'beyond':>10}",
    ]
    for c in found:
        some = f"{c.name:<30.30} {c.kind:<12} {c.missing:>10} {c.unreadable:>10} {c.moved:>10}"
        lines.append(some + "   none is read: is the kind right?" * (c.missing + c.unreadable == num_rows))
    lines.append("unreadable: no value of the column; beyond: beyond a bound, and moved to it")
    return "\n".join(lines)
