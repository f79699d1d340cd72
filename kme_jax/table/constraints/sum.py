"""A number that is the sum of others."""

from __future__ import annotations

import dataclasses

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Column, Numeric
from kme_jax.table.constraints.base import (
    Constraint,
    Determination,
    check_name,
    check_texts,
    known,
    nearest_codes,
    numbers_of,
    step_of,
)

_EXACT = 1e-6  # of a step


@short_repr
@dataclasses.dataclass(frozen=True)
class Sum(Constraint):
    """A column is the sum of others: fare and tip make the total.

    The parts are measured, and the total is not. So the total of private rows is not looked at: it is what the parts
    say. If a part is missing, so is the total.

    Attributes:
      parts: names of numeric columns that are integers, or have a step.
      total: name of another numeric column. Its grid has all sums, and its bounds hold them.

    Examples:
      >>> from kme_jax import Numeric, Schema
      >>> from kme_jax.table.constraints import Sum
      >>> money = [Numeric(name, 0, most, step=0.01) for name, most in (("fare", 200), ("tip", 50), ("paid", 250))]
      >>> Schema(money, constraints=[Sum(("fare", "tip"), "paid")]).measured.names
      ('fare', 'tip')
    """

    kind = "sum"
    parts: tuple[str, ...]
    total: str

    def __post_init__(self):
        object.__setattr__(self, "parts", check_texts(self.parts, "parts", 2))
        for part in self.parts:
            check_name(part, "each of parts")
        check_name(self.total, "total")
        if self.total in self.parts:
            raise ValueError(f"total: {self.total!r} is one of the parts")

    @property
    def text(self) -> str:
        return f"{' + '.join(self.parts)} = {self.total}"

    def determination(self, columns, taken=()):
        parts, total = [known(columns, name) for name in self.parts], known(columns, self.total)
        for name, column in zip((*self.parts, self.total), (*parts, total), strict=True):
            if not isinstance(column, Numeric):
                raise ValueError(f"{name} must be a numeric column, for a sum")
            if step_of(column) is None:
                raise ValueError(f"{name} needs a step, such as 0.01: a sum of other numbers is not exact")
        return _Added(self, *_checked(self, parts, total))


def _checked(constraint: Sum, parts: list[Column], total: Column) -> tuple[list[Numeric], Numeric]:
    numbers, of_all = [part for part in parts if isinstance(part, Numeric)], total
    assert isinstance(of_all, Numeric)
    step = step_of(of_all)
    assert step is not None
    lower, upper = sum(part.lower for part in numbers), sum(part.upper for part in numbers)
    if lower < of_all.lower - _EXACT * step or upper > of_all.upper + _EXACT * step:
        raise ValueError(
            f"the parts sum to {lower:.15g} to {upper:.15g}, and {constraint.total} is from {of_all.lower:.15g} to "
            f"{of_all.upper:.15g}; take bounds that hold all sums"
        )
    distances = [(constraint.total, lower - of_all.lower)]
    distances += [(p.name, distance) for p in numbers for distance in (step_of(p) or 0, p.upper - p.lower)]
    for name, distance in distances:
        if abs(distance / step - round(distance / step)) > _EXACT:
            raise ValueError(f"steps of {step:g} of {constraint.total} miss sums of its parts: see {name}")
    if any(part.nullable for part in numbers) and not of_all.nullable:
        raise ValueError(f"{constraint.total} must be nullable, because a part is: a sum is missing if a part is")
    return numbers, of_all


class _Added(Determination):
    """See ``Sum``."""

    def __init__(self, constraint: Sum, parts: list[Numeric], total: Numeric):
        self.columns, self.sources, self._parts, self._total = (constraint.total,), constraint.parts, parts, total
        if not any(part.nullable for part in parts):
            self.addends = constraint.parts

    def to_released(self, measured, sources):
        numbers = [numbers_of(part, of_part) for part, of_part in zip(self._parts, sources, strict=True)]
        return (nearest_codes(self._total, sum(numbers[1:], start=numbers[0])),)
