"""Columns from the entries of a schema in JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kme_jax._numerics.text import said, shown
from kme_jax.table.columns.base import LABEL, REMEDIES, Column, is_label
from kme_jax.table.columns.categorical import Categorical, Ordinal
from kme_jax.table.columns.datetime import Datetime
from kme_jax.table.columns.numeric import Numeric

KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Numeric, Categorical, Ordinal, Datetime)}
DROP = "drop"  # of a column that is not looked at
OTHER_KINDS = ("id", "constant", "weight", DROP)  # of columns that are not measured, see ``kme_jax.table.written``
DRAFTED = ("integer",)  # fields that a draft fills in from the type of a file; other kinds have no use for them
_MEANT = {  # other names of fields
    **dict.fromkeys(("min", "minimum"), "lower"),
    **dict.fromkeys(("max", "maximum"), "upper"),
    **dict.fromkeys(("values", "levels"), "categories"),
    "type": "kind",
}
FIELDS = {kind: {field.name: field for field in dataclasses.fields(cls)} for kind, cls in KINDS.items()}


def unknown_field(label: str, key: Any, known: Sequence[str]) -> ValueError:
    """The error of a field that no column has.

    Args:
      label: of the column.
      key: the name of the field.
      known: names of the fields of this kind of column.
    """
    meant = _MEANT.get(str(key).lower())
    hint = f"; do you mean {meant}?" if meant in known else ""
    return ValueError(f"{label}: unknown field {said(key)} (known: {', '.join(known)}){hint}")


def dropped_name(entry: dict[str, Any], place: int) -> str:
    """The name of a column that is dropped, of its JSON entry. Other fields may be null, as in a draft.

    Args:
      entry, place: see :func:`column_of`.

    Raises:
      ValueError: it has no name, or another field.
    """
    name: Any = entry.get("name")
    if not is_label(name):
        raise ValueError(f"column {place}: a name must be {LABEL}, got {said(name)}")
    for key, value in entry.items():
        if key not in ("name", "kind", *DRAFTED) and value is not None:
            raise ValueError(f"column {shown((name,))}: field {shown((key,))} does not apply to kind {DROP}: remove it")
    return name


def column_of(entry: Any, place: int) -> Column:
    """The column of a JSON entry.

    Args:
      entry: the JSON object of the column.
      place: its number in the schema, from 1, for errors.

    Raises:
      ValueError: the entry is not a column that is filled in.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"column {place}: expected an object with name and kind")
    name, kind = entry.get("name"), entry.get("kind")
    label = f"column {shown((name,)) if isinstance(name, str) else place}"
    if kind is None:
        raise ValueError(f"{label}: kind is null: {REMEDIES['kind']}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{label}: unknown kind {said(kind)} (known: {', '.join((*KINDS, *OTHER_KINDS))}); free text and "
            f"identifiers cannot be released: give them the kind {DROP}, or the kind id for new identifiers"
        )
    fields = FIELDS[kind]
    for key, value in entry.items():
        if key not in fields and key != "kind":
            if all(key not in others for others in FIELDS.values()):
                raise unknown_field(label, key, ["kind", *fields])
            if value is not None and key not in DRAFTED:
                raise ValueError(f"{label}: field {shown((key,))} does not apply to kind {kind}: remove it")
    present = {key: entry[key] for key in fields if key in entry}
    for key, field in fields.items():
        if present.get(key, field.default) in (None, dataclasses.MISSING) and field.default is not None:
            raise ValueError(
                f"{label}: {key} is {'null' if key in present else 'not given'}: {REMEDIES.get(key, 'fill it in')}"
            )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in present.items()}
    return KINDS[kind](**values)
