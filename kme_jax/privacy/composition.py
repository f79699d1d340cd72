"""Several measurements of the same rows, and what they spend together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kme_jax._numerics.registry import storable
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.calibration import gaussian_delta, zcdp_delta, zcdp_rho
from kme_jax.privacy.mechanisms import Mechanism

_SUM = 1e-12  # relative: above the rounding of a sum of a few shares, and far below that of ``zcdp_rho``


@storable(former_fields={"private": "secure"})
@dataclasses.dataclass(frozen=True)
class Composition:
    """Several measurements of the same rows with Gaussian noise, of which later ones may depend on the results of
    earlier ones: together they are (ε, δ)-differentially private, because ρ adds up for discrete noise (Bun & Steinke
    2016, lemma 1.7) and μ² for continuous noise (Dong, Roth & Su 2022, corollary 3.3).

    Attributes:
      epsilon: ε.
      delta: δ.
      rho: the sum of theirs, or what is set aside for them; None for continuous noise.
      failure_probability: the sum of theirs.
      secure: whether the noise of all of them is secure.
      mu: √Σ μ² of continuous noise.
    """

    epsilon: float
    delta: float
    rho: float | None
    failure_probability: float
    secure: bool
    mu: float | None = None

    @classmethod
    def planned(cls, budget: PrivacyBudget, failure_probability: float = 0.0) -> Composition:
        """What may be spent in all, by secure measurements of maps whose diameters fail with this probability."""
        rho = _planned_rho(budget, failure_probability)
        return cls(budget.epsilon, budget.delta, rho, failure_probability, True)

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], budget: PrivacyBudget) -> Composition:
        """What was spent.

        Formal guarantee: no more than the budget. For discrete noise, Σ ρ is at most the ρ that was to be shared, whose
        rounding down by 1e-9 (``zcdp_rho``) covers that of a sum of shares; or δ of Σ ρ is small enough. So shares that
        add up to 1 or less never fail here, after they are spent.

        Raises:
          ValueError: more than the budget; noise of different kinds, or that is not Gaussian.
        """
        rho = mu = None
        failure = math.fsum(mechanism.failure_probability for mechanism in mechanisms)
        rhos = [mechanism.rho for mechanism in mechanisms if mechanism.rho is not None]
        if len(rhos) == len(mechanisms):
            rho = math.fsum(rhos)
            within = rho <= _planned_rho(budget, failure) * (1 + _SUM)
            delta = 0.0 if within else zcdp_delta(rho, budget.epsilon)
        else:
            mus = [mechanism.mu for mechanism in mechanisms if mechanism.mu is not None]
            if len(mus) < len(mechanisms):
                kinds = "continuous or discrete"
                raise ValueError(f"only measurements with Gaussian noise of one kind, {kinds}, compose here")
            mu = math.sqrt(math.fsum(mu**2 for mu in mus))
            delta = gaussian_delta(1 / mu, budget.epsilon)
        if delta + failure > budget.delta:
            raise ValueError(f"the measurements spend more than ε = {budget.epsilon:g}")
        return cls(budget.epsilon, budget.delta, rho, failure, all(m.secure for m in mechanisms), mu)


def _planned_rho(budget: PrivacyBudget, failure_probability: float) -> float:
    return zcdp_rho(PrivacyBudget(budget.epsilon, budget.delta - failure_probability))
