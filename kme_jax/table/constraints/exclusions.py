"""Combinations of values that no row has."""

from __future__ import annotations

import dataclasses

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.constraints.base import Clause, Constraint, sets_of


def _text(value, field):
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be conditions as text, such as age<16 and sex=Female; got {said(value)}")


@short_repr
@dataclasses.dataclass(frozen=True)
class Implies(Constraint):
    """If rows meet some conditions, then they meet another one: children have no wage.

    Attributes:
      when: conditions on measured columns, with "and" between them.
      then: conditions on one other measured column. It gives way in rows that break the constraint.
      both_ways: whether rows that meet ``then`` also meet ``when``.

    Examples:
      >>> from kme_jax import Numeric, Schema
      >>> from kme_jax.table.constraints import Implies
      >>> columns = [Numeric("age", 0, 110, integer=True), Numeric("wage", 0, 9000, integer=True, nullable=True)]
      >>> schema = Schema(columns, constraints=[Implies("age<15", "wage=missing")])
      >>> schema.released_codes(schema.measured_codes([[10, 500], [40, 500]])).tolist()
      [[10, 9001], [40, 500]]
    """

    kind = "implies"
    when: str
    then: str
    both_ways: bool = False

    def __post_init__(self):
        _text(self.when, "when")
        _text(self.then, "then")
        if not isinstance(self.both_ways, bool):
            raise ValueError(f"both_ways must be true or false, got {said(self.both_ways)}")

    @property
    def text(self) -> str:
        return f"{self.when} {'if and only if' if self.both_ways else 'implies'} {self.then}"

    def clauses(self, columns):
        when, then = sets_of(columns, self.when), sets_of(columns, self.then)
        if len(then) > 1:
            raise ValueError(f"then is about {len(then)} columns; write a constraint for each")
        num_codes = {column.name: column.num_codes for column in columns}
        ((name, allowed),) = then.items()
        if name in when:
            raise ValueError(f"when and then are both about {name}")
        found = [Clause((when,), name, allowed.others(num_codes[name]))]
        if self.both_ways:
            not_when = [{source: codes.others(num_codes[source])} for source, codes in when.items()]
            found.append(Clause(tuple(not_when), name, allowed))
        return found


@short_repr
@dataclasses.dataclass(frozen=True)
class Forbidden(Constraint):
    """No row meets all of some conditions: no man is pregnant.

    Attributes:
      when: conditions on measured columns, with "and" between them. In rows that break the constraint, the column that
        is named last gives way.

    Examples:
      >>> from kme_jax.table.constraints import Forbidden
      >>> Forbidden("sex=male and pregnant=yes").text
      'never sex=male and pregnant=yes'
    """

    kind = "forbidden"
    when: str

    def __post_init__(self):
        _text(self.when, "when")

    @property
    def text(self) -> str:
        return f"never {self.when}"

    def clauses(self, columns):
        sets = sets_of(columns, self.when)
        last = list(sets)[-1]
        return [Clause(({name: codes for name, codes in sets.items() if name != last},), last, sets[last])]
