"""Constraints between columns, which every row of a release meets.

Two kinds of constraints are met by construction:

* A column that follows from others (``Order``, ``Sum``, ``Lookup``, ``OneOf``) is not measured. What is measured
  instead says what it is: the gap between two times, or the parts of a sum.
* Combinations that no row has (``Implies``, ``Forbidden``) are excluded when rows are drawn: rows that have one
  exchange values with other rows, so that pairs of columns stay nearly as they are, see ``Recoding``.

Constraints are public knowledge, and cost no privacy. Private rows that break one are repaired, each by itself, before
anything is measured.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kme_jax._numerics.text import said
from kme_jax.table.constraints.base import Clause, Codes, Constraint, Determination
from kme_jax.table.constraints.exclusions import Forbidden, Implies
from kme_jax.table.constraints.lookup import Lookup
from kme_jax.table.constraints.one_of import OneOf
from kme_jax.table.constraints.order import Order
from kme_jax.table.constraints.recoding import Recoding
from kme_jax.table.constraints.sum import Sum

__all__ = [
    "Clause",
    "Codes",
    "Constraint",
    "Determination",
    "Forbidden",
    "Implies",
    "Lookup",
    "OneOf",
    "Order",
    "Recoding",
    "Sum",
    "constraint_of",
]

KINDS: dict[str, type[Constraint]] = {cls.kind: cls for cls in (Order, Sum, Lookup, OneOf, Implies, Forbidden)}


def constraint_of(entry: Any, place: int) -> Constraint:
    """The constraint of a JSON entry.

    Args:
      entry: the JSON object of the constraint.
      place: its number in the schema, from 1, for errors.

    Raises:
      ValueError: the entry is no constraint.
    """
    label = f"constraint {place}"
    if not isinstance(entry, dict):
        raise ValueError(f"{label}: expected an object with a kind")
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{label}: unknown kind {said(kind)} (known: {', '.join(KINDS)})")
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    unknown = sorted(entry.keys() - {"kind", *fields})
    if unknown:
        raise ValueError(f"{label} ({kind}): unknown field {said(unknown[0])} (known: {', '.join(fields)})")
    lacks = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in entry]
    if lacks:
        raise ValueError(f"{label} ({kind}): {lacks[0]} is not given")
    try:
        return KINDS[kind](**{name: value for name, value in entry.items() if name != "kind"})
    except ValueError as error:
        raise ValueError(f"{label} ({kind}): {error}") from None
