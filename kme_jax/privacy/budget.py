"""The privacy budget (ε, δ), and checks of a caller's numbers."""

from __future__ import annotations

import dataclasses
import numbers
import operator
from typing import Any, Literal

from kme_jax._numerics.short_repr import in_short, short_repr

# Within these limits, calibration in float64 is on the safe side. A larger ε protects nobody. With a smaller ε or δ the
# result has no information.
MIN_EPSILON, MAX_EPSILON, MIN_DELTA = 1e-9, 1e6, 1e-300

Relation = Literal["replace_one", "add_remove", "add_remove_person"]
"""Which databases are neighbours, see :class:`PrivacyBudget`."""

REPLACE_ONE: Relation = "replace_one"
ADD_REMOVE: Relation = "add_remove"
ADD_REMOVE_PERSON: Relation = "add_remove_person"
RELATIONS: tuple[Relation, ...] = (REPLACE_ONE, ADD_REMOVE, ADD_REMOVE_PERSON)
"""Each one implies those before it, see :func:`steps_between`."""

MOST_ROWS_OF_A_PERSON = 10_000


@short_repr
@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """(ε, δ)-differential privacy, for one of three relations between neighbouring databases.

    Under "replace_one", neighbours have the same, public number of rows N, and differ in one row ([B] definition 1).
    Under "add_remove", one database has one row more than the other. N is then private, and a noisy count replaces it.
    The noise is smaller by up to √2 for counts. Under "add_remove_person", one database has all rows of one person, and
    the other one has none of them. At most ``max_rows`` rows of each person are used, and N is private. Only tables are
    released under the last two relations.

    A guarantee for add_remove implies one for replace_one, with the ε of two rows of one person. The converse does not
    hold.

    Attributes:
      epsilon: ε, from 1e-9 to 1e6.
      delta: δ, at least 1e-300 and below 1, or 0. δ = 0 means pure ε-differential privacy, and needs the Laplace
        mechanism. A sensible δ is well below 1/N.
      relation: "replace_one", "add_remove" or "add_remove_person".
      max_rows: k, the largest number of rows of one person; 1 unless the relation is add_remove_person. Noise is k
        times as large as for k = 1.
      person: the name of the column with the ids of persons, for add_remove_person. It is public. None for rows, or as
        long as it is not known.

    Raises:
      ValueError: if ε or δ is out of range, or not a real number, such as a bool or text; or there is no such relation;
        or ``max_rows`` or ``person`` does not fit it.

    Examples:
      >>> from kme_jax import PrivacyBudget
      >>> PrivacyBudget(epsilon=1.0, delta=1e-6)
      PrivacyBudget(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float
    relation: Relation = REPLACE_ONE
    max_rows: int = 1
    person: str | None = None

    def _in_short(self) -> str:
        relation = "" if self.relation == REPLACE_ONE else f", relation={in_short(self.relation)}"
        if self.relation == ADD_REMOVE_PERSON:
            relation += f", max_rows={self.max_rows}, person={in_short(self.person)}"
        return f"epsilon={in_short(self.epsilon)}, delta={in_short(self.delta)}{relation}"

    def __post_init__(self):
        epsilon, delta = check_number("epsilon", self.epsilon), check_number("delta", self.delta)
        if not 0 < epsilon < float("inf"):
            raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
        if epsilon < MIN_EPSILON:
            raise ValueError(f"epsilon must be at least {MIN_EPSILON:g}, got {epsilon}: use a larger epsilon")
        if epsilon > MAX_EPSILON:
            raise ValueError(
                f"epsilon must be at most {MAX_EPSILON:g}, got {epsilon:g}: a larger epsilon protects nobody"
            )
        if not 0 <= delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {delta}")
        if 0 < delta < MIN_DELTA:
            raise ValueError(f"delta must be 0 or at least {MIN_DELTA:g}, got {delta}")
        if self.relation not in RELATIONS:
            raise ValueError(f"relation must be {' or '.join(map(repr, RELATIONS))}, got {_shown(self.relation)}")
        most = check_integer("max_rows", self.max_rows, 1, MOST_ROWS_OF_A_PERSON)
        if most > 1 and self.relation != ADD_REMOVE_PERSON:
            raise ValueError(
                f"max_rows is for the relation {ADD_REMOVE_PERSON!r}: the rows of each person are cut to it"
            )
        object.__setattr__(self, "max_rows", most)
        if self.person is not None and not isinstance(self.person, str):
            raise ValueError(f"person: expected the name of a column, got a {type(self.person).__name__}")
        if self.person is not None and (not self.person or self.relation != ADD_REMOVE_PERSON):
            raise ValueError(f"person: a column of persons is for the relation {ADD_REMOVE_PERSON!r}")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta + 0.0)  # −0 becomes 0


def steps_between(stronger: Relation, weaker: Relation) -> int:
    """How many steps between neighbours of one relation lead from a database to a neighbour of another relation.

    Formal guarantee: to replace a row is to remove one and to add one: 2 steps of add_remove. To add a row, or to
    remove it, is to remove all rows of its person and to add them again, with or without this row: 2 steps of
    add_remove_person. A mechanism with ρ for the first relation has at most the square of the number of steps times ρ
    for the second one (group privacy, Bun & Steinke 2016, proposition 1.9).

    Args:
      stronger: the relation that the guarantee is for.
      weaker: the relation that is asked for.

    Raises:
      ValueError: a guarantee for the first relation implies none for the second.
    """
    steps = RELATIONS.index(stronger) - RELATIONS.index(weaker)
    if steps < 0:
        raise ValueError(f"a release for {stronger} has no guarantee under {weaker}")
    return 2**steps


def unit_of(relation: Relation, max_rows: int) -> str:
    """What a guarantee protects, in words."""
    if relation != ADD_REMOVE_PERSON:
        return "one row"
    return f"one person, of whom at most {max_rows} row{'s are' if max_rows > 1 else ' is'} used"


def check_number(name: str, value: Any) -> float:
    """The value as a float.

    Raises:
      ValueError: if the value is not a real number, such as a bool, text, a complex number, None or an array.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a number, got {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a number that fits float64") from None


def check_integer(name: str, value: Any, least: int, most: int) -> int:
    """The value as an int.

    Raises:
      ValueError: if the value is not a whole number (a bool and a float are not), or not from ``least`` to ``most``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {_shown(value)}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number if number > -(10**30) else 'less'}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number if number < 10**30 else 'more'}")
    return number


def check_share(share: Any) -> float:
    """The share of a budget for one measurement of a sequence, as a float.

    Raises:
      ValueError: if the share is not a number, or not above 0 and at most 1.
    """
    share = check_number("share", share)
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    return share


def _shown(value: Any) -> str:
    """A public argument as text, shortened for an error message."""
    text = repr(value) if isinstance(value, bool | int | float | complex | str | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


def check_budget(budget: Any) -> None:
    """Raises ValueError if it is no budget."""
    if not isinstance(budget, PrivacyBudget):
        raise ValueError(
            f"budget: expected a PrivacyBudget, got {_shown(budget)}: write PrivacyBudget(epsilon=1.0, delta=1e-6)"
        )


def check_replace_one(budget: PrivacyBudget) -> None:
    """Raises ValueError if the relation is add_remove, or it is no budget. What calls this function uses the number of
    rows as public."""
    check_budget(budget)
    if budget.relation != REPLACE_ONE:
        raise ValueError(f"relation: only tables are released under {budget.relation}; here N is public")


def check_num_rows(num_rows: int, budget: PrivacyBudget) -> None:
    """Checks that a public N and δ are reasonable for a release.

    Raises:
      ValueError: if N < 2, or δ ≥ 1/N, or N is not public under the relation of the budget.
    """
    check_replace_one(budget)
    num_rows = check_integer("num_rows", num_rows, 0, 2**62)
    if num_rows < 2:
        raise ValueError(f"a release needs at least 2 rows, got {num_rows}: one row cannot hide among others")
    if budget.delta >= 1 / num_rows:
        raise ValueError(
            f"delta must be below 1/N = {1 / num_rows:.2g}, got {budget.delta}: a larger one protects nobody"
        )
