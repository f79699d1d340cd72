"""Columns of which at most one, or exactly one, has a certain value."""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns import Categorical
from kme_jax.table.constraints.base import Codes, ColumnCodes, Constraint, Determination, check_texts, sets_of

NONE = "none of them"
_MOST_NAMED = 3  # conditions in the name of the measured column


@short_repr
@dataclasses.dataclass(frozen=True)
class OneOf(Constraint):
    """At most one of several columns with two values has a certain value, or exactly one: dummies of a category.

    One column with a category for each of them is measured instead. So a hundred dummies cost as little as the category
    that they were made of. Where a private row has several, only the first one is left. Where it has none, and one is
    required, it gets the first one.

    Attributes:
      of: conditions, each on one column that has two values and no missing cells, and all on different columns.
      required: whether exactly one condition is met. Otherwise, none may be met, too.

    Examples:
      >>> from kme_jax import Categorical, Schema
      >>> from kme_jax.table.constraints import OneOf
      >>> columns = [Categorical(soil, ("0", "1")) for soil in ("clay", "loam", "sand")]
      >>> schema = Schema(columns, constraints=[OneOf(("clay=1", "loam=1", "sand=1"), required=True)])
      >>> schema.measured.names
      ('one of clay=1, loam=1, sand=1',)
      >>> schema.released_codes([[2], [0]]).tolist()
      [[0, 0, 1], [1, 0, 0]]
    """

    kind = "one of"
    of: tuple[str, ...]
    required: bool = False

    def __post_init__(self):
        object.__setattr__(self, "of", check_texts(self.of, "of", 2))
        if not isinstance(self.required, bool):
            raise ValueError(f"required must be true or false, got {said(self.required)}")

    @property
    def text(self) -> str:
        return f"{'exactly' if self.required else 'at most'} one of {', '.join(self.of)}"

    def determination(self, columns, taken=()):
        chosen: dict[str, int] = {}
        for text in self.of:
            found = sets_of(list(columns.values()), text)
            ((name, codes),) = found.items() if len(found) == 1 else (("", Codes(())),)
            if not name or name in chosen:
                raise ValueError(f"of: {text!r} must be about one column, which no other condition is about")
            if columns[name].num_codes != 2 or len(codes.ranges) != 1 or np.diff(codes.ranges[0]) != 1:
                raise ValueError(f"of: {name} must have two values and no missing cells, of which {text!r} is one")
            chosen[name] = codes.ranges[0][0]
        return _Which(self, chosen)


class _Which(Determination):
    """See ``OneOf``."""

    def __init__(self, constraint: OneOf, chosen: dict[str, int]):
        self.columns, self._chosen = tuple(chosen), list(chosen.values())
        named, more = constraint.of[:_MOST_NAMED], len(constraint.of) - _MOST_NAMED
        name = f"one of {', '.join(named)}" + (f" and {more} more" if more > 0 else "")
        categories = constraint.of if constraint.required else (*constraint.of, NONE)
        self._which = Categorical(name, categories, default=None if constraint.required else NONE)
        self.measured = (self._which,)

    def to_measured(self, codes, sources):
        met = np.stack([of_column == value for of_column, value in zip(codes, self._chosen, strict=True)])
        which: ColumnCodes = np.where(met.any(0), met.argmax(0), self._which.usual)
        return (which,)

    def codes_of(self, name, codes):
        place = self.columns.index(name)
        value, which = self._chosen[place], Codes(((place, place + 1),))
        chosen, not_chosen = (bool(codes.have(np.array([code]))[0]) for code in (value, 1 - value))
        sets = [which] * chosen + [which.others(self._which.num_codes)] * not_chosen
        return self._which.name, Codes.union(sets)

    def to_released(self, measured, sources):
        return [np.where(measured[0] == i, value, 1 - value) for i, value in enumerate(self._chosen)]
