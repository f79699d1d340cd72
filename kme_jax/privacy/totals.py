"""Entries of the ledger, the total of several releases of the same rows, and a cap of this total."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kme_jax._numerics.short_repr import short_repr
from kme_jax.privacy.budget import (
    ADD_REMOVE,
    ADD_REMOVE_PERSON,
    MIN_EPSILON,
    RELATIONS,
    REPLACE_ONE,
    PrivacyBudget,
    Relation,
    steps_between,
)
from kme_jax.privacy.calibration import discrete_epsilon
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import Mechanism

# A relation other than replace_one, τ if there is one, and the column of persons. Earlier versions refuse a ledger with
# what they do not know.
OPTIONAL = {"relation": str, "discreteness": float, "person": str}
OF_ENTRIES = OPTIONAL | {"run": str}

LARGEST = 1e100  # a limit of all numbers in a ledger
_BISECTIONS = 60


@short_repr
@dataclasses.dataclass(frozen=True)
class Entry:
    """The record of one release.

    Attributes:
      database: the name that the curator gave to the private rows.
      time: the time of the record, in UTC, ISO 8601.
      epsilon: ε.
      delta: δ.
      rho: ρ of zero-concentrated differential privacy; ε²/2 for a pure ε (Bun & Steinke 2016, proposition 1.4).
      failure_probability: the failure probability of the sensitivity, over public randomness.
      relation: which databases are neighbours.
      discreteness: τ of fine discrete Gaussian noise, see ``kme_jax.privacy.calibration.fine_rho``; None for others.
      person: the column with the ids of persons, under add_remove_person.
      run: the name of the run, if it can be interrupted and go on; see ``Ledger.spend``.
    """

    database: str
    time: str
    epsilon: float
    delta: float
    rho: float
    failure_probability: float
    relation: Relation = REPLACE_ONE
    discreteness: float | None = None
    person: str | None = None
    run: str | None = None

    @classmethod
    def of(cls, database: str, time: str, mechanism: Mechanism | Composition, run: str | None = None) -> Entry:
        """The record of a release with this mechanism, or this composition."""
        rho = mechanism.epsilon**2 / 2 if mechanism.rho is None else mechanism.rho
        epsilon, delta, failure = mechanism.epsilon, mechanism.delta, mechanism.failure_probability
        numbers = float(epsilon), float(delta), float(rho), float(failure)
        return cls(database, time, *numbers, mechanism.relation, mechanism.discreteness, mechanism.person, run)

    @property
    def record(self) -> dict[str, str | float]:
        """What a line of the ledger holds."""
        record = dataclasses.asdict(self)
        if self.relation == REPLACE_ONE:
            del record["relation"]
        if self.discreteness is None:
            del record["discreteness"]
        if self.person is None:
            del record["person"]
        if self.run is None:
            del record["run"]
        return record

    def under(self, relation: Relation) -> Entry:
        """The same release under a relation.

        Formal guarantee: the release has the ρ of a group under its own relation, see ``steps_between``. τ is a
        property of the noise alone. ε is that of this ρ and τ at δ. Its noise is Gaussian, and its sensitivity cannot
        fail, see :meth:`Ledger.spend`.

        Raises:
          ValueError: if the release has no guarantee under the relation.
        """
        steps = steps_between(self.relation, relation)
        if steps == 1:
            return self
        rho = steps**2 * self.rho
        epsilon = discrete_epsilon(rho, self.delta, self.discreteness)
        return dataclasses.replace(self, epsilon=epsilon, rho=rho, relation=relation, person=None)


_TOTAL_FIELDS = ("releases", "rho", "epsilon", "delta", "failure_probability", "pure_epsilons", "at_delta")
_ROUNDING = 2.0**-50  # relative: above the rounding of a few sums and products in float64
_TOLERANCE = 1e-6  # relative: a total is computed again, and another version of SciPy may round differently


def total(spendings: list[Entry]) -> dict[str, Any]:
    """The budget of several releases of the same rows, in the form of the privacy statement.

    Formal guarantee: together the releases are (``epsilon``, ``delta``)-differentially private, and they also are for
    the ε and δ of ``at_delta``. ρ adds up (Bun & Steinke 2016, lemma 1.7); a pure ε has ρ = ε²/2 (proposition 1.4).
    Failure probabilities add up, too (a union bound). If no sensitivity fails, the releases are (ε, δ′)-differentially
    private for δ′ = δ − the failure probabilities, see :func:`composed_epsilon`. All numbers are rounded up.

    Args:
      spendings: the entries of the same rows, oldest first; at least one. The total is for the last relation, in the
        order of ``RELATIONS``, that the guarantees of all of them imply, see :meth:`Entry.under`. Persons of different
        columns are different units, such as households and their members. The total is then for rows.

    Returns:
      A dictionary of plain JSON values:

      * "releases": the number of releases.
      * "rho": their ρ.
      * "epsilon", "delta": ε and δ of all of them. δ is the largest δ of any release. The failure probabilities are
        added to it if they are more than half of it.
      * "failure_probability": the sum of the failure probabilities.
      * "pure_epsilons": ε of each release with δ = 0.
      * "at_delta": the "epsilon" of all releases at the "delta" of the last one. It is None if that ε is not finite:
        there are releases with δ > 0, and the last one has δ = 0, or a δ that is not above the failure probabilities.
      * "relation": of the total, unless it is replace_one.
      * "person": the column of persons, if the relation is add_remove_person.
      * "discreteness": Σ τ, if all releases have a τ.

    Raises:
      ValueError: if the total δ is 1 or more, which protects nobody.
    """
    relation, person = unit_of_all(spendings)
    spendings = [s.under(relation) for s in spendings]
    last = spendings[-1]
    rho, failure = math.fsum(s.rho for s in spendings), math.fsum(s.failure_probability for s in spendings)
    pure = [s.epsilon for s in spendings if s.delta == 0]
    delta = max(s.delta for s in spendings)
    delta = delta if delta >= 2 * failure else delta + failure
    if not delta < 1:
        raise ValueError(f"the total delta of all releases is {delta:g}: it must be below 1")
    parts = [s.discreteness for s in spendings if s.discreteness is not None]
    discreteness = math.fsum(parts) if len(parts) == len(spendings) else None
    if len(spendings) == 1:
        epsilon, last_epsilon = last.epsilon, last.epsilon
    else:
        spent = len(spendings), rho, pure, failure
        epsilon, last_epsilon = (composed_epsilon(*spent, d, discreteness) for d in (delta, last.delta))
    return {
        "releases": len(spendings),
        "rho": rho,
        "epsilon": epsilon,
        "delta": delta,
        "failure_probability": failure,
        "pure_epsilons": pure,
        "at_delta": {"epsilon": last_epsilon, "delta": last.delta} if math.isfinite(last_epsilon) else None,
    } | _if_known(relation=None if relation == REPLACE_ONE else relation, discreteness=discreteness, person=person)


def units_in_words(spendings: Sequence[Entry]) -> str:
    """What the total of releases protects, in words."""
    relation, person = unit_of_all(spendings)
    if relation == ADD_REMOVE_PERSON:
        return f"persons ({person})"
    mixed = len({(s.relation, s.person) for s in spendings}) > 1
    return f"rows ({relation}{', which releases of several kinds add up to' * mixed})"


def unit_of_all(spendings: Sequence[Entry]) -> tuple[Relation, str | None]:
    """The relation of the total of releases, and the column of persons, see :func:`total`."""
    relation = RELATIONS[min((RELATIONS.index(s.relation) for s in spendings), default=0)]
    persons = {s.person for s in spendings}
    if relation == ADD_REMOVE_PERSON and len(persons) > 1:
        return ADD_REMOVE, None
    return relation, persons.pop() if relation == ADD_REMOVE_PERSON else None


def _if_known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def composed_epsilon(
    releases: int,
    rho: float,
    pure_epsilons: Sequence[float],
    failure_probability: float,
    delta: float,
    discreteness: float | None = None,
) -> float:
    """ε of several releases of the same rows at a δ, rounded up; inf if no finite ε is valid.

    Formal guarantee: the result is the least ε of this list that is valid. A release with δ = 0 is *pure*.

    * Σ ε of the pure releases, at any δ, if all releases are pure (Dwork & Roth 2014, theorem 3.14).
    * ε of ρ at δ less the failure probabilities (Canonne, Kamath & Steinke 2020, proposition 12). If there is a τ, also
      the ε of continuous noise, see ``kme_jax.privacy.calibration.discrete_epsilon``.
    * Σ ε of the pure releases, plus ε of the ρ of the other releases at δ less the failure probabilities: basic
      composition of (Σ ε, 0) and (ε, δ). The ρ of the other releases is the total ρ less Σ ε²/2, with the rounding of
      the difference added.

    Args:
      releases: the number of releases.
      rho: ρ of all releases.
      pure_epsilons: ε of each pure release.
      failure_probability: the sum of the failure probabilities of the sensitivities.
      delta: δ.
      discreteness: Σ τ; None if a release has no τ.
    """
    pure = math.fsum(pure_epsilons) * (1 + _ROUNDING) if len(pure_epsilons) > 1 else math.fsum(pure_epsilons)
    remaining_delta = delta - failure_probability * (1 + _ROUNDING)
    valid = [pure] if len(pure_epsilons) == releases else []
    if remaining_delta > 0:
        valid.append(discrete_epsilon(rho, remaining_delta, discreteness))
    if remaining_delta > 0 and 0 < len(pure_epsilons) < releases:
        other_rho = rho * (1 + _ROUNDING) - math.fsum(epsilon**2 / 2 for epsilon in pure_epsilons)
        other_epsilon = discrete_epsilon(max(other_rho, rho * _ROUNDING), remaining_delta, None)
        valid.append((pure + other_epsilon) * (1 + _ROUNDING))
    return min(valid, default=math.inf)


def check_total(
    total: Mapping[str, Any],
    epsilon: float,
    delta: float,
    rho: float | None,
    failure_probability: float,
    relation: Relation = REPLACE_ONE,
    discreteness: float | None = None,
    person: str | None = None,
) -> None:
    """Checks a total that was read from a file against the statement that contains it.

    Args:
      total: a result of :func:`total`.
      epsilon: ε of the statement, which is that of the last release.
      delta: δ of the statement.
      rho: ρ of the statement; None for Laplace noise. The ledger has the ρ that was reserved, which may be larger.
      failure_probability: the sum of the failure probabilities of the statement's measurements.
      relation: that of the statement.
      discreteness: that of the statement.
      person: that of the statement.

    Raises:
      ValueError: if a number does not follow from the rest, up to a relative error of 1e-6, or is less than that of the
        last release alone.
    """
    if not isinstance(total, Mapping) or set(total) - set(OPTIONAL) != set(_TOTAL_FIELDS):
        raise ValueError(f"total: expected {', '.join(_TOTAL_FIELDS)}")
    of_total = total.get("relation", REPLACE_ONE)
    known = "relation" not in total or of_total in RELATIONS[1:]
    if not known or RELATIONS.index(of_total) > RELATIONS.index(relation):
        raise ValueError("total: the relation does not follow from that of the statement")
    if total.get("person") != (person if of_total == ADD_REMOVE_PERSON else None):
        raise ValueError("total: the column of persons does not follow from that of the statement")
    if relation != of_total and rho is not None and delta > 0:
        rho = steps_between(relation, of_total) ** 2 * rho
        epsilon = discrete_epsilon(rho, delta, discreteness)
    releases, pure, at_delta = total["releases"], total["pure_epsilons"], total["at_delta"]
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise ValueError("total: releases must be a whole number, at least 1")
    if not isinstance(pure, list) or len(pure) > releases:
        raise ValueError("total: pure_epsilons must be a list of numbers, at most one for each release")
    if at_delta is not None and not (isinstance(at_delta, Mapping) and set(at_delta) == {"epsilon", "delta"}):
        raise ValueError("total: at_delta must have epsilon and delta, or be null")
    numbers = {name: total[name] for name in ("rho", "epsilon", "delta", "failure_probability")}
    numbers |= {name: total[name] for name in ("discreteness",) if name in total}
    numbers |= {f"pure_epsilons {i}": value for i, value in enumerate(pure)}
    numbers |= {} if at_delta is None else {f"at_delta {name}": value for name, value in at_delta.items()}
    for name, value in numbers.items():
        positive = "epsilon" in name or name in ("rho", "discreteness")
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 if positive else value >= 0):
            raise ValueError(f"total: {name} must be a number{' above 0' if positive else ', at least 0'}")
        below_one = name == "discreteness" or ("delta" in name and "epsilon" not in name)
        if not value < (1 if below_one else LARGEST):
            raise ValueError(f"total: {name} is too large")

    def follows(name: str, value: float, expected: float) -> None:
        if not math.isclose(value, expected, rel_tol=_TOLERANCE, abs_tol=0.0):
            raise ValueError(f"total: {name} is {value:.9g}, but {expected:.9g} follows from the other numbers")

    def at_least(name: str, least: float) -> None:
        if not numbers[name] >= least * (1 - _TOLERANCE):
            raise ValueError(f"total: {name} is {numbers[name]:.9g}, less than the {least:.9g} of the last release")

    tau = total.get("discreteness")
    if tau is not None:
        if discreteness is None or pure:
            raise ValueError("total: discreteness must be absent, as a release has none")
        at_least("discreteness", discreteness)
    last_rho, all_pure = epsilon**2 / 2 if rho is None else rho, len(pure) == releases
    pure_rho = math.fsum(value**2 / 2 for value in pure)
    if delta == 0:
        if not pure:
            raise ValueError("total: pure_epsilons is empty, but the last release has δ = 0")
        follows("the last of pure_epsilons", pure[-1], epsilon)
    elif all_pure:
        raise ValueError("total: all releases have δ = 0, but the last one has δ > 0")
    at_least("rho", pure_rho + (last_rho if delta else 0.0))
    at_least("delta", delta)
    at_least("failure_probability", failure_probability)
    if all_pure:
        for name, expected in {"rho": pure_rho, "delta": 0.0, "failure_probability": 0.0}.items():
            follows(name, numbers[name], expected)
    elif numbers["delta"] == 0 or numbers["delta"] < numbers["failure_probability"]:
        raise ValueError("total: delta must be positive, and at least failure_probability")
    if releases == 1:
        if relation != of_total:
            raise ValueError("total: the relation of a single release is that of the statement")
        follows("epsilon", numbers["epsilon"], epsilon)
        follows("delta", numbers["delta"], delta)
        spent = 1, numbers["rho"], pure, numbers["failure_probability"]
        expected, least = epsilon, composed_epsilon(*spent, delta, tau)
        if not least <= epsilon * (1 + _TOLERANCE):
            raise ValueError(f"total: rho is {numbers['rho']:.9g}, which is more than epsilon and delta allow")
    else:
        spent = releases, numbers["rho"], pure, numbers["failure_probability"]
        follows("epsilon", numbers["epsilon"], composed_epsilon(*spent, numbers["delta"], tau))
        expected = composed_epsilon(*spent, delta, tau)
    if (at_delta is None) != math.isinf(expected):
        raise ValueError("total: at_delta must be null if and only if no ε is finite at the δ of the last release")
    if at_delta is not None:
        follows("epsilon of at_delta", at_delta["epsilon"], expected)
        follows("delta of at_delta", at_delta["delta"], delta)
        at_least("at_delta epsilon", epsilon)


@short_repr
@dataclasses.dataclass(frozen=True)
class Cap:
    """The most that all releases of the same rows may spend together, set by the curator.

    Attributes:
      database: the name that the curator gave to the private rows.
      time: the time of the record, in UTC, ISO 8601.
      epsilon: the largest ε of the total.
      delta: δ, at which this ε is.
    """

    database: str
    time: str
    epsilon: float
    delta: float

    @property
    def record(self) -> dict[str, str | float]:
        """What a line of the ledger holds."""
        return {"database": self.database, "time": self.time, "cap_epsilon": self.epsilon, "cap_delta": self.delta}

    def allows(self, spendings: Sequence[Entry]) -> bool:
        """Whether releases together are within the cap."""
        return self.spent(spendings) <= self.epsilon * (1 + _TOLERANCE)

    def spent(self, spendings: Sequence[Entry]) -> float:
        """ε of all releases together at the δ of the cap, see :func:`total`; inf if no finite ε is valid."""
        if not spendings:
            return 0.0
        try:
            both = total(list(spendings))
        except ValueError:  # δ of all releases is 1 or more
            return math.inf
        numbers = both["rho"], both["pure_epsilons"], both["failure_probability"]
        return composed_epsilon(both["releases"], *numbers, self.delta, both.get("discreteness"))

    def left(self, spendings: Sequence[Entry]) -> float | None:
        """The largest ε of one more release with Gaussian noise at the δ of the cap; None if no release is within it.

        The release is for the relation of the total.
        """
        if self.delta == 0:
            return max(0.0, self.epsilon - self.spent(spendings)) or None
        relation, person = unit_of_all(spendings)

        def fits(epsilon: float) -> bool:
            planned = Composition.planned(PrivacyBudget(epsilon, self.delta, relation, person=person))
            return self.allows([*spendings, Entry.of(self.database, "", planned)])

        low, high = MIN_EPSILON, self.epsilon
        if not fits(low):
            return None
        if fits(high):
            return high
        for _ in range(_BISECTIONS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
