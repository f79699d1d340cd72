"""Mechanisms: noise of a registered kind, calibrated to a sensitivity and a budget.

A kind of noise is one module: a subclass of :class:`Noise`, registered by :func:`register_noise`. ``gaussian`` and
``laplace`` are two. ``perturb`` adds noise of any kind.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import re
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Float, Int64, PRNGKeyArray

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy import secure as secure_noise
from kme_jax.privacy.budget import (
    ADD_REMOVE_PERSON,
    MOST_ROWS_OF_A_PERSON,
    RELATIONS,
    REPLACE_ONE,
    PrivacyBudget,
    Relation,
    unit_of,
)

NOT_PRIVATE = "NOT PRIVATE: the noise was simulated. Do not publish this."

Diameter = Literal["proved", "published"]


@short_repr
class Calibrated(NamedTuple):
    """The result of a calibration, in the units of the sensitivity.

    Attributes:
      scale: the scale of the noise, per coordinate.
      calibration: the name of the rule.
      epsilon: ε of this measurement alone.
      rho: ρ of zero-concentrated differential privacy, for secure noise that states one; else None.
      discreteness: τ of fine discrete Gaussian noise, see ``kme_jax.privacy.calibration.fine_rho``; else None.
    """

    scale: float
    calibration: str
    epsilon: float
    rho: float | None = None
    discreteness: float | None = None


class Noise(abc.ABC):
    """A kind of noise. The noise of coordinates is independent and identically distributed.

    Secure noise for δ > 0 must state ρ, because the privacy of groups of rows, and of several releases, is computed
    from it. Noise without ρ is for δ = 0.

    Attributes:
      name: the name in a ``Mechanism`` and in the privacy statement, of small letters, digits, blanks and hyphens.
      norm: the norm of the sensitivity that the noise is calibrated to.
      square_variance: Var(X²) / Var(X)² of a draw X: 2 for a Gaussian.
    """

    name: ClassVar[str]
    norm: ClassVar[Literal["L1", "L2"]]
    square_variance: ClassVar[float]

    @abc.abstractmethod
    def variance(self, scale: float) -> float:
        """The variance of the noise of a scale, per coordinate."""

    @abc.abstractmethod
    def sensitivity(self, diameter: float, num_features: int, *, integers: bool) -> float:
        """The sensitivity in :attr:`norm` of vectors [F] that differ by at most ``diameter`` in L2.

        For vectors of integers, the result may be rounded up to an integer."""

    @abc.abstractmethod
    def calibrate(self, sensitivity: float, budget: PrivacyBudget, calibration: str, share: float) -> Calibrated:
        """Calibrates simulated noise, which is continuous.

        Args:
          sensitivity: the sensitivity in :attr:`norm`.
          budget: (ε, δ), with the failure probability subtracted from δ.
          calibration: "analytic" or another rule of this noise.
          share: the share of the budget.

        Raises:
          ValueError: if this noise does not allow the budget, the rule or the share.
        """

    @abc.abstractmethod
    def calibrate_securely(
        self, sensitivity: float, budget: PrivacyBudget, share: float, num_features: int, fine: bool | None = None
    ) -> Calibrated:
        """Calibrates secure noise, which is discrete, for integers.

        Formal guarantee: noise of this scale, added to integers that differ by at most the sensitivity, is
        (ε, δ)-differentially private for share 1, and ρ-zero-concentrated differentially private if ρ is given.
        Measurements whose shares sum to 1 are (ε, δ) together.

        Args:
          sensitivity: the sensitivity of the integers in :attr:`norm`.
          budget: (ε, δ), with the failure probability subtracted from δ.
          share: the share of the budget.
          num_features: F, the number of integers.
          fine: see ``secure_mechanism``. Noise that knows of no such choice ignores it.

        Raises:
          ValueError: if this noise does not allow the budget or the share, or the noise does not fit 64-bit integers.
        """

    @abc.abstractmethod
    def add_securely(self, values: Int64[np.ndarray, "F"], scale: float) -> Int64[np.ndarray, "F"]:
        """values [F] + discrete noise from a cryptographic generator, int64."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[jax.Array, "..."]:
        """Draws simulated noise of scale 1, which is continuous. Traceable."""

    def mu(self, mechanism: Mechanism) -> float | None:
        """μ of Gaussian differential privacy (Dong, Roth & Su 2022), for continuous noise that has one; else None."""
        del mechanism

    @abc.abstractmethod
    def check(self, mechanism: Mechanism, budget: PrivacyBudget, share: float) -> None:
        """Checks that the scale, the calibration, ε and ρ of a mechanism follow from its sensitivity and a budget.

        Args:
          mechanism: a mechanism that was read from a file.
          budget: (ε, δ) of all measurements, with the failure probability subtracted from δ.
          share: the share of the budget.

        Raises:
          ValueError: if one of them does not follow.
        """

    def source(self) -> str:
        """The source of secure noise, for the privacy statement. It ends in "(discrete, cryptographic)"."""
        return secure_noise.source()

    def is_source(self, text: str) -> bool:
        """Whether the text is :meth:`source` of this noise, for this version of the source or another one."""
        return re.fullmatch(r"OpenDP \d+(\.\d+)+ \(discrete, cryptographic\)", text) is not None


_KINDS: dict[str, Noise] = {}


def register_noise(noise: Noise) -> None:
    """Registers a kind of noise, so that :func:`noise_of` returns it for its name.

    Raises:
      ValueError: if the name has other characters, or another kind has the same name.
    """
    if not re.fullmatch("[a-z][a-z0-9 -]{0,40}", noise.name):
        raise ValueError(f"noise: expected a name of small letters, digits, blanks and hyphens, got {noise.name!r}")
    if type(_KINDS.setdefault(noise.name, noise)) is not type(noise):
        raise ValueError(f"noise: another kind of noise has the name {noise.name}")


def noise_of(name: str) -> Noise:
    """The kind of noise with this name.

    Raises:
      ValueError: if no kind has this name.
    """
    if name not in _KINDS:
        known = " or ".join(f'"{kind}"' for kind in _KINDS)
        raise ValueError(f'noise must be {known}, got "{name}"')
    return _KINDS[name]


@storable(former_fields={"private": "secure"}, added_fields=("relation", "discreteness", "max_rows", "person"))
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """The noise that is added to a mean embedding, and its guarantee. All fields are public.

    Attributes:
      noise: the name of the noise: "gaussian", "laplace" or another registered kind, see :class:`Noise`.
      scale: σ of Gaussian noise, or b of Laplace noise, per coordinate.
      sensitivity: the L2 (Gaussian) or L1 (Laplace) sensitivity that the noise was calibrated to.
      epsilon: ε.
      delta: δ.
      calibration: "analytic", "classical" or (coarse integers) "zcdp" for Gaussian noise, "exact" for Laplace noise.
      num_rows: N.
      secure: whether the noise is secure: cryptographic and exact. Results with simulated noise must not be published.
      noise_source: the source of the noise.
      rho: ρ of zero-concentrated differential privacy, for secure Gaussian noise.
      grid: the spacing of the released coordinates, for secure noise. They are its integer multiples.
      failure_probability: the share of δ that is reserved for a sensitivity that may fail, over public randomness.
      relation: which databases are neighbours. Unless it is replace_one, ``num_rows`` is a noisy count, or 1 for the
        measurement of this count.
      discreteness: τ of fine discrete Gaussian noise, see ``kme_jax.privacy.calibration.fine_rho``; None for other
        noise.
      max_rows: k, the largest number of rows of one person, see ``PrivacyBudget``. The sensitivity is for k rows.
      person: the name of the column with the ids of persons, or None.
    """

    noise: str = dataclasses.field(metadata={"static": True})
    scale: float
    sensitivity: float
    epsilon: float
    delta: float
    calibration: str = dataclasses.field(metadata={"static": True})
    num_rows: int = dataclasses.field(metadata={"static": True})
    secure: bool = dataclasses.field(default=False, metadata={"static": True})
    noise_source: str = dataclasses.field(default="simulated (jax.random)", metadata={"static": True})
    rho: float | None = None
    grid: float | None = None
    failure_probability: float = 0.0
    relation: Relation = dataclasses.field(default=REPLACE_ONE, metadata={"static": True})
    discreteness: float | None = None
    max_rows: int = dataclasses.field(default=1, metadata={"static": True})
    person: str | None = dataclasses.field(default=None, metadata={"static": True})

    def _in_short(self) -> str:
        noise = "secure" if self.secure else "NOT PRIVATE, simulated"
        budget = f"ε={self.epsilon:g}, δ={self.delta:g}, N={self.num_rows}"
        return f"{budget}, {noise} {self.noise} noise of scale {self.scale:.4g}, sensitivity {self.sensitivity:.4g}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values for people: the budget, the noise and N."""
        return [
            ("privacy", f"ε = {self.epsilon:g}, δ = {self.delta:g} for {unit_of(self.relation, self.max_rows)}"),
            ("noise", f"{'secure' if self.secure else 'simulated'}: {self.noise_source}"),
            ("private rows", f"N = {self.num_rows}" if self.relation == REPLACE_ONE else "private"),
        ]

    def validate(self) -> None:
        """Checks a mechanism that was read from a file.

        Raises:
          ValueError: if its noise is not registered, or there is no such relation.
        """
        noise_of(self.noise)
        if self.relation not in RELATIONS:
            raise ValueError("there is no such relation")
        if not 1 <= self.max_rows <= (MOST_ROWS_OF_A_PERSON if self.relation == ADD_REMOVE_PERSON else 1):
            raise ValueError("the number of rows of one person does not fit the relation")
        if (self.relation == ADD_REMOVE_PERSON) != bool(self.person):
            raise ValueError("the column of persons does not fit the relation")

    @property
    def variance(self) -> float:
        """The variance of the noise, per coordinate: σ², or 2b²."""
        return noise_of(self.noise).variance(self.scale)

    @property
    def mu(self) -> float | None:
        """μ = sensitivity / σ of continuous Gaussian noise (Dong, Roth & Su 2022); None for other noise."""
        return noise_of(self.noise).mu(self)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NoisyEmbedding:
    """μ̃ = μ̂ + noise, the only input of step 3 that depends on private rows.

    Attributes:
      feature_map: ψ.
      coordinates: μ̃, [F].
      mechanism: the mechanism that added the noise.
    """

    feature_map: FeatureMap
    coordinates: Float[np.ndarray, "F"]
    mechanism: Mechanism


def check_noisy(embedding: object) -> None:
    """Refuses what is no noisy embedding. Step 3 sees noisy embeddings alone, and never a mean embedding.

    Raises:
      TypeError: if the embedding is not a ``NoisyEmbedding``.
    """
    if not isinstance(embedding, NoisyEmbedding):
        raise TypeError(f"expected a noisy embedding, the result of perturb, got a {type(embedding).__name__}")


class HasDiameter(Protocol):
    """What noise is calibrated to: a feature map, an integer map, or bounds that hold for several.

    Attributes:
      diameter: a proved upper bound of the L2 distance between the vectors of two rows.
      certain_diameter: one that cannot fail.
      l1_diameter: one in the L1 norm that cannot fail; infinity if there is none but √F times the diameter.
      failure_probability: the probability that ``diameter`` is too small.
    """

    @property
    def diameter(self) -> float: ...

    @property
    def l1_diameter(self) -> float: ...

    @property
    def certain_diameter(self) -> float: ...

    @property
    def failure_probability(self) -> float: ...


class HasIntegers(HasDiameter, Protocol):
    """What secure noise is calibrated to: an integer map, or bounds that hold for several.

    Attributes:
      units: s, integers per 1 of ψ.
      num_features: F, the number of released integers, or an upper bound.
      norm_bound: a proved upper bound of the L2 norm of the vector of one row.
      is_of_rows: whether the bounds hold for the sum that is released, see ``IntegerMap``.
    """

    is_of_rows: ClassVar[bool]

    @property
    def norm_bound(self) -> float: ...

    @property
    def units(self) -> float: ...

    @property
    def num_features(self) -> int: ...


def proved_diameter(measured: HasDiameter, delta: float) -> tuple[float, float]:
    """The diameter to calibrate to, and the δ to calibrate to.

    If the diameter may fail, its failure probability is subtracted from δ. If δ is below ten times that probability,
    the result is the certain diameter, with all of δ.

    Args:
      measured: ψ or q.
      delta: δ.
    """
    failure = measured.failure_probability
    if delta < 10 * failure:
        return measured.certain_diameter, delta
    return measured.diameter, delta - failure


def proved_distance(integers: HasIntegers, delta: float, relation: Relation) -> tuple[float, float]:
    """An upper bound of the L2 distance of the released integers of neighbours, and the δ to calibrate to.

    Formal guarantee: if one row is replaced, the sums differ by q(x) − q(x′), see :func:`proved_diameter`. If one row
    is added or removed, they differ by q(x) or −q(x), and ``norm_bound`` bounds its norm. It cannot fail, so it has all
    of δ. It is a bound for the released integers if these are the sum itself (``is_of_rows``). Under add_remove_person,
    it is the bound for each row of the person, see :func:`proved_sensitivity`.

    Args:
      integers: q, or bounds that hold for several maps.
      delta: δ.
      relation: which databases are neighbours.

    Raises:
      ValueError: if the relation is add_remove, and the released integers are not a sum over rows.
    """
    if relation == REPLACE_ONE:
        return proved_diameter(integers, delta)
    if not integers.is_of_rows:
        raise ValueError("relation: this map has no proved sensitivity under add_remove")
    return integers.norm_bound, delta


def proved_sensitivity(
    kind: Noise, measured: HasDiameter, distance: float, num_features: int, *, integers: bool, max_rows: int = 1
) -> float:
    """The sensitivity of a sum of vectors in the norm of a kind of noise.

    Formal guarantee: if the sums of neighbours differ by at most ``distance`` in L2, the L1 distance is at most √F
    times that (Cauchy–Schwarz). The difference is that of the vectors of two rows, or the vector of one row. So
    ``l1_diameter``, which includes the zero vector, bounds its L1 norm, too.

    Under add_remove_person, the sums differ by q(x_1) + … + q(x_j) or its negative, for the j ≤ k rows of one person
    that are used. Which rows of a person are used depends on the rows of this person alone (``kme_jax.table.persons``).
    So all other terms of the sums are equal, and by the triangle inequality the distance is at most k times that of
    one row, in both norms. If all rows of the person are equal, it is k times as large.

    Args:
      kind: of noise.
      measured: ψ or q.
      distance: of the sums of neighbours in L2, see :func:`proved_diameter` and :func:`proved_distance`.
      num_features: F.
      integers: whether the vectors are of integers.
      max_rows: k, the largest number of rows of one person.

    Raises:
      ValueError: if the distance is negative or not finite, such as that of a map which states a wrong diameter.
    """
    if not 0 <= distance < math.inf:
        raise ValueError(f"the diameter of a map must be positive and finite, got {distance:.3g}")
    sensitivity = kind.sensitivity(distance, num_features, integers=integers)
    return max_rows * (min(sensitivity, measured.l1_diameter) if kind.norm == "L1" else sensitivity)


def check_diameter(diameter: str) -> None:
    """Raises ValueError unless ``diameter`` is "proved" or "published"."""
    if diameter not in ("proved", "published"):
        raise ValueError(f'diameter must be "proved" or "published", got "{diameter}"')
