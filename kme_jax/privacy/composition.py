"""The composition of several measurements of the same rows: the budget that they spend together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kme_jax._numerics.registry import storable
from kme_jax.privacy.budget import MAX_EPSILON, REPLACE_ONE, PrivacyBudget, Relation, check_budget
from kme_jax.privacy.calibration import (
    fine_delta,
    fine_rho,
    gaussian_delta,
    largest_discreteness,
    takes_fine_noise,
    zcdp_delta,
    zcdp_rho,
)
from kme_jax.privacy.mechanisms import Mechanism

_SUM_ROUNDING = 1e-12  # relative: above the rounding of a sum of a few shares, and far below that of ``zcdp_rho``


@storable(former_fields={"private": "secure"}, added_fields=("relation", "discreteness", "max_rows", "person"))
@dataclasses.dataclass(frozen=True)
class Composition:
    """Several measurements of the same rows with Gaussian noise, as one mechanism.

    A measurement may depend on the results of earlier ones. Together the measurements are (ε, δ)-differentially
    private, because ρ adds up for discrete noise (Bun & Steinke 2016, lemma 1.7) and μ² for continuous noise (Dong,
    Roth & Su 2022, corollary 3.3), and for fine discrete noise, see ``kme_jax.privacy.calibration.fine_rho``.

    Attributes:
      epsilon: ε.
      delta: δ.
      rho: the sum of the ρ of the measurements, or the ρ that is reserved for them; None for continuous noise.
      failure_probability: the sum of the failure probabilities of the measurements.
      secure: whether the noise of all measurements is secure.
      mu: √Σ μ² for continuous noise, else None.
      relation: which databases are neighbours.
      discreteness: τ of fine discrete noise, the sum of those of the measurements or what is reserved for them; None
        for other noise.
      max_rows: the largest number of rows of one person, see ``PrivacyBudget``.
      person: the name of the column with the ids of persons, or None.
    """

    epsilon: float
    delta: float
    rho: float | None
    failure_probability: float
    secure: bool
    mu: float | None = None
    relation: Relation = REPLACE_ONE
    discreteness: float | None = None
    max_rows: int = 1
    person: str | None = None

    def _in_short(self) -> str:
        noise = "secure" if self.secure else "NOT PRIVATE, simulated"
        return f"ε={self.epsilon:g}, δ={self.delta:g}, {noise} noise"

    @classmethod
    def planned(cls, budget: PrivacyBudget, failure_probability: float = 0.0) -> Composition:
        """The composition of future secure measurements that may spend all of a budget.

        Args:
          budget: (ε, δ).
          failure_probability: the sum of the failure probabilities of the maps to be measured.

        Raises:
          ValueError: it is no budget.
        """
        check_budget(budget)
        within = _within(budget, failure_probability)
        fine = takes_fine_noise(within)
        rho, tau = (fine_rho(within), largest_discreteness(within)) if fine else (zcdp_rho(within), None)
        return cls(
            budget.epsilon,
            budget.delta,
            rho,
            failure_probability,
            True,
            relation=budget.relation,
            discreteness=tau,
            max_rows=budget.max_rows,
            person=budget.person,
        )

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], budget: PrivacyBudget, *, tolerance: float = 0.0) -> Composition:
        """The composition of measurements that were made.

        Formal guarantee: it is (ε, δ)-differentially private for the given budget. For discrete noise, Σ ρ is at most
        the ρ of the budget, or δ of Σ ρ is small enough. ``zcdp_rho`` and ``fine_rho`` round the ρ of the budget down
        by 1e-9, which covers the rounding of a sum of shares. So measurements whose shares add up to 1 or less are
        never refused here, after they were made. If one of them has no τ, none is used.

        Args:
          mechanisms: of the measurements.
          budget: (ε, δ).
          tolerance: by how much they may spend more, relative to ε. It is for measurements that were read from a file:
            other versions of the libraries round otherwise.

        Raises:
          ValueError: if the measurements spend more than the budget, or their noise is not Gaussian, or is of both
            kinds, continuous and discrete, or their relation is not that of the budget.
        """
        unit = budget.relation, budget.max_rows, budget.person
        if any((m.relation, m.max_rows, m.person) != unit for m in mechanisms):
            raise ValueError("the measurements are for another relation than the budget")
        rho = mu = tau = None
        allowed = dataclasses.replace(budget, epsilon=min(budget.epsilon * (1 + tolerance), MAX_EPSILON))
        failure = math.fsum(mechanism.failure_probability for mechanism in mechanisms)
        rhos = [mechanism.rho for mechanism in mechanisms if mechanism.rho is not None]
        if len(rhos) == len(mechanisms):
            rho, left = math.fsum(rhos), _within(allowed, failure)
            parts = [mechanism.discreteness for mechanism in mechanisms if mechanism.discreteness is not None]
            if len(parts) == len(mechanisms):
                # Maps that depend on earlier results may have other τ than they happen to have here.
                reserved = largest_discreteness(_within(budget, failure))
                tau = max(math.fsum(parts), reserved)
                most = fine_rho(left) if tau <= reserved * (1 + _SUM_ROUNDING) else 0.0
                delta = fine_delta(rho, allowed.epsilon, tau)
            else:
                most, delta = zcdp_rho(left), zcdp_delta(rho, allowed.epsilon)
            delta = 0.0 if rho <= most * (1 + _SUM_ROUNDING) else delta
        else:
            mus = [mechanism.mu for mechanism in mechanisms if mechanism.mu is not None]
            if len(mus) < len(mechanisms):
                raise ValueError("a composition needs measurements with Gaussian noise, all continuous or all discrete")
            mu = math.sqrt(math.fsum(value**2 for value in mus))
            delta = gaussian_delta(1 / mu, allowed.epsilon)
        if delta + failure > budget.delta:
            raise ValueError(f"the measurements spend more than (ε, δ) = ({budget.epsilon:g}, {budget.delta:g})")
        secure = all(m.secure for m in mechanisms)
        return cls(
            budget.epsilon, budget.delta, rho, failure, secure, mu, budget.relation, tau, budget.max_rows, budget.person
        )


def _within(budget: PrivacyBudget, failure_probability: float) -> PrivacyBudget:
    """The budget less what may fail."""
    return dataclasses.replace(budget, delta=budget.delta - failure_probability)
