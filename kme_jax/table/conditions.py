"""Conditions on rows, such as age>=65, as ranges of codes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kme_jax._numerics.text import shown
from kme_jax.table.columns import MISSING, Column
from kme_jax.table.schema import Schema

_COMPARED = re.compile(r"\s*(.+?)\s*(?:>=|<=|!=|==|=|>|<)")
_CONDITION = re.compile(r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*$", re.DOTALL)


def ranges_of(schema: Schema, conditions: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """By index of a column, the ranges of codes [first, last) that meet all conditions.

    Args:
      schema: of the columns.
      conditions: such as "age>=65", see ``TableRelease.sample``.

    Raises:
      ValueError: a condition cannot be read.
    """
    allowed: dict[int, list[tuple[int, int]]] = {}
    for text in conditions:
        # Names may contain any characters. So the longest name is taken that starts the condition and is followed by a
        # comparison.
        matches = [(n, _CONDITION.match(text.strip()[len(n) :])) for n in schema.names if text.strip().startswith(n)]
        name, match = max((pair for pair in matches if pair[1]), key=lambda pair: len(pair[0]), default=("", None))
        if match is None:
            unknown = _COMPARED.match(text)
            if unknown:
                raise ValueError(f"condition {text!r}: there is no column {unknown[1]!r}, only {shown(schema.names)}")
            raise ValueError(f"condition {text!r}: expected a column, one of = != < <= > >=, and a value: age>=65")
        column, comparison, value = schema.columns[schema.index(name)], match[1], match[2]
        if comparison not in ("=", "==", "!=") and (not column.ordered or value == MISSING):
            raise ValueError(f"condition {text!r}: values of {name} have no order; use = or !=")
        try:
            ranges = _ranges_of_comparison(column, comparison, value)
        except ValueError as error:
            if comparison == "=" and value[:1] in ("<", ">") and column.ordered:
                raise ValueError(f"condition {text!r}: write {name}{value[0]}={value[1:].strip()}") from None
            hint = f"; {name}={MISSING} asks for missing cells" if column.nullable else ""
            hint = "; give each condition by itself" if re.search(r" (and|or) ", value, re.IGNORECASE) else hint
            raise ValueError(f"condition {text!r}: {error}{hint}") from None
        before = allowed.get(schema.index(name), [(0, column.num_codes)])
        both = [(max(a, c), min(b, d)) for a, b in before for c, d in ranges]
        allowed[schema.index(name)] = [(low, high) for low, high in both if low < high]
    return allowed


def _ranges_of_comparison(column: Column, comparison: str, value: str) -> list[tuple[int, int]]:
    """The ranges of codes [first, last) of one comparison with a value."""
    if comparison in ("=", "==", "!="):
        code = column.code(value)
        return [(0, code), (code + 1, column.num_codes)] if comparison == "!=" else [(code, code + 1)]
    below, until = column.below(value)
    last = column.num_values
    return [{"<": (0, below), "<=": (0, until), ">=": (below, last), ">": (until, last)}[comparison]]
