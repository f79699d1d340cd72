"""Conditions on rows, such as age>=65, as ranges of codes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kme_jax._numerics.text import shown
from kme_jax.table.columns import MISSING, Column

_COMPARED = re.compile(r"\s*(.+?)\s*(?:>=|<=|!=|==|=|>|<)")
_AND, _OR = re.compile(r"\s+and\s+", re.IGNORECASE), re.compile(r" or ", re.IGNORECASE)
_CONDITION = re.compile(r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*$", re.DOTALL)


def ranges_of(columns: Sequence[Column], conditions: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """By index of a column, the ranges of codes [first, last) that meet all conditions.

    Args:
      columns: of the schema.
      conditions: such as "age>=65" or "age>=65 and sex=Female", see ``TableRelease.sample``.

    Raises:
      ValueError: a condition cannot be read.
    """
    allowed: dict[int, list[tuple[int, int]]] = {}
    for text in conditions:
        for j, ranges in _ranges_of_text(columns, text):
            before = allowed.get(j, [(0, columns[j].num_codes)])
            both = [(max(a, c), min(b, d)) for a, b in before for c, d in ranges]
            allowed[j] = [(low, high) for low, high in both if low < high]
    return allowed


def _ranges_of_text(columns: Sequence[Column], text: str) -> list[tuple[int, list[tuple[int, int]]]]:
    """For each condition of a text, a column and its ranges of codes. There may be "and" between conditions.

    A value may have this word in it. So a text that can be read as one condition is one.
    """
    try:
        return [_ranges_of_condition(columns, text)]
    except ValueError:
        parts = _AND.split(text)
        if len(parts) == 1 or not all(_parts(columns, part) for part in parts):
            raise
    return [_ranges_of_condition(columns, part) for part in parts]


def _parts(columns: Sequence[Column], text: str) -> tuple[str, str, str] | None:
    """The column, the comparison and the value of one condition; None if it is none.

    Names may contain any characters. So the longest name is taken that starts the condition and is followed by a
    comparison.
    """
    text = text.strip()
    names = [column.name for column in columns if text.startswith(column.name)]
    matches = [(name, _CONDITION.match(text[len(name) :])) for name in names]
    found = [(name, match[1], match[2]) for name, match in matches if match]
    return max(found, key=lambda parts: len(parts[0]), default=None)


def _ranges_of_condition(columns: Sequence[Column], text: str) -> tuple[int, list[tuple[int, int]]]:
    """The column of one condition, and the ranges of codes that meet it."""
    parts, names = _parts(columns, text), [column.name for column in columns]
    if parts is None:
        unknown = _COMPARED.match(text)
        if unknown:
            raise ValueError(f"condition {text!r}: there is no column {unknown[1]!r}, only {shown(names)}")
        remedy = "age>=65 or job=missing"
        raise ValueError(f"condition {text!r}: expected a column, one of = != < <= > >=, and a value: {remedy}")
    name, comparison, value = parts
    column = columns[names.index(name)]
    if comparison not in ("=", "==", "!=") and (not column.ordered or value == MISSING):
        raise ValueError(f"condition {text!r}: values of {name} have no order; use = or !=")
    try:
        return names.index(name), _ranges_of_comparison(column, comparison, value)
    except ValueError as error:
        if comparison == "=" and value[:1] in ("<", ">") and column.ordered:
            raise ValueError(f"condition {text!r}: write {name}{value[0]}={value[1:].strip()}") from None
        hint = f"; {name}={MISSING} asks for missing cells" if column.nullable else ""
        hint = "; write the value without quotes" if value[:1] in ("'", '"') else hint
        hint = "; give each condition by itself, or write and between them" if _OR.search(value) else hint
        raise ValueError(f"condition {text!r}: {error}{hint}") from None


def _ranges_of_comparison(column: Column, comparison: str, value: str) -> list[tuple[int, int]]:
    """The ranges of codes [first, last) of one comparison with a value."""
    if comparison in ("=", "==", "!="):
        code = column.code(value)
        return [(0, code), (code + 1, column.num_codes)] if comparison == "!=" else [(code, code + 1)]
    below, until = column.below(value)
    last = column.num_values
    return [{"<": (0, below), "<=": (0, until), ">=": (below, last), ">": (until, last)}[comparison]]
