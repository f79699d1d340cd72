"""A column that another one determines, by a public list."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown
from kme_jax.table.columns import MISSING, Categorical
from kme_jax.table.constraints.base import Codes, ColumnCodes, Constraint, Determination, check_name, known


@short_repr
@dataclasses.dataclass(frozen=True)
class Lookup(Constraint):
    """A column determines another one: each zone lies in one borough.

    The determined column is not measured, and that of private rows is not looked at.

    Attributes:
      column: name of a categorical or ordinal column.
      determines: name of another column, of any kind.
      values: for every category of ``column``, the value of the other one, as a mapping of texts. If cells of
        ``column`` may be missing, "missing" is in the list, or the other cell is missing, too.

    Examples:
      >>> from kme_jax import Categorical, Schema
      >>> from kme_jax.table.constraints import Lookup
      >>> columns = [Categorical("zone", ("airport", "harbour")), Categorical("side", ("east", "west"))]
      >>> side = Lookup("zone", "side", {"airport": "west", "harbour": "east"})
      >>> Schema(columns, constraints=[side]).measured.names
      ('zone',)
    """

    kind = "lookup"
    column: str
    determines: str
    values: Mapping[str, Any] | tuple[tuple[str, Any], ...]

    def __post_init__(self):
        check_name(self.column, "column")
        check_name(self.determines, "determines")
        if self.column == self.determines:
            raise ValueError(f"column and determines are the same, {said(self.column)}")
        pairs = tuple(self.values.items()) if isinstance(self.values, Mapping) else self.values
        if not isinstance(pairs, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise ValueError(f'values must be an object such as {{"1": "Bronx"}}, got {said(self.values)}')
        for key, value in pairs:
            if not isinstance(key, str | int) or not isinstance(value, str | int | float | None):
                raise ValueError(f"values: {said(key)} and {said(value)} must be texts or Python numbers")
        names = [str(key) for key, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("values: a value is there twice, once as a number and once as text")
        object.__setattr__(self, "values", tuple((str(key), value) for key, value in pairs))

    @property
    def text(self) -> str:
        return f"{self.column} determines {self.determines}"

    def to_json(self):
        return super().to_json() | {"values": dict(self.values)}

    def determination(self, columns, taken=()):
        source, target = known(columns, self.column), known(columns, self.determines)
        if not isinstance(source, Categorical):
            raise ValueError(f"{self.column} must be a categorical or ordinal column")
        codes: dict[int, int] = {}
        for text, value in dict(self.values).items():
            code = source.code(text)
            if code in codes:
                raise ValueError(f"values: {text!r} and another one are the same value of {self.column}")
            codes[code] = target.code(value)
        if source.nullable and source.num_values not in codes:
            if not target.nullable:
                raise ValueError(f"values lacks {MISSING!r}: cells of {self.column} may be missing")
            codes[source.num_values] = target.num_values
        gaps = [source.categories[code] for code in range(source.num_values) if code not in codes]
        if gaps:
            raise ValueError(f"values lacks {shown(gaps)}: give the value of {self.determines} for each")
        return _Looked(self, np.array([codes[code] for code in range(source.num_codes)], np.int64))


class _Looked(Determination):
    """See ``Lookup``."""

    def __init__(self, constraint: Lookup, values: ColumnCodes):
        self.columns, self.sources, self._values = (constraint.determines,), (constraint.column,), values

    def codes_of(self, name, codes):
        places = np.flatnonzero(codes.have(self._values)).tolist()
        return self.sources[0], Codes.union([Codes(((place, place + 1),)) for place in places])

    def to_released(self, measured, sources):
        return (self._values[sources[0]],)
