"""What a mechanism is: noise of a registered kind, calibrated to a sensitivity and a budget.

A kind of noise is one module: a subclass of :class:`Noise`, registered by :func:`register_noise`. ``gaussian`` and
``laplace`` are two. ``perturb`` adds noise of any kind.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import numpy as np

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy import secure as secure_noise
from kme_jax.privacy.budget import PrivacyBudget

Diameter = Literal["proved", "published"]


class Calibrated(NamedTuple):
    """How wide noise has to be, in the units of the sensitivity.

    Attributes:
      scale: of the noise, per coordinate.
      calibration: the name of the rule.
      epsilon: ε of this measurement by itself.
      rho: ρ of zero-concentrated differential privacy, for secure noise that has one.
    """

    scale: float
    calibration: str
    epsilon: float
    rho: float | None = None


class Noise(abc.ABC):
    """A kind of noise, the same for every coordinate and independent.

    Secure noise for δ > 0 must state ρ: groups of rows, and several releases, are accounted for by it. Noise without ρ
    is for δ = 0.

    Attributes:
      name: in a ``Mechanism`` and in the privacy statement: small letters, digits, blanks and hyphens.
      norm: of the sensitivity it is calibrated to.
      square_variance: Var(X²) / Var(X)² of a draw X: 2 for a Gaussian.
    """

    name: ClassVar[str]
    norm: ClassVar[Literal["L1", "L2"]]
    square_variance: ClassVar[float]

    @abc.abstractmethod
    def variance(self, scale: float) -> float:
        """Of the noise of a scale, per coordinate."""

    @abc.abstractmethod
    def sensitivity(self, diameter: float, num_features: int, *, integers: bool) -> float:
        """The sensitivity in :attr:`norm` of vectors [F] that differ by no more than ``diameter`` in L2; of vectors of
        integers, a bound that may be rounded up to an integer."""

    @abc.abstractmethod
    def calibrate(self, sensitivity: float, budget: PrivacyBudget, calibration: str, share: float) -> Calibrated:
        """Simulated noise, continuous.

        Args:
          sensitivity: in :attr:`norm`.
          budget: (ε, δ), with what may fail taken off δ.
          calibration: "analytic" or another rule of this noise.
          share: of the budget.

        Raises:
          ValueError: the budget, the rule or the share is not possible for this noise.
        """

    @abc.abstractmethod
    def calibrate_securely(self, sensitivity: float, budget: PrivacyBudget, share: float) -> Calibrated:
        """Secure noise, discrete, for integers.

        Formal guarantee: noise of this scale, added to integers that differ by no more than the sensitivity, is
        (ε, δ)-differentially private for share 1, and ρ-zero-concentrated differentially private where ρ is given.
        Shares that sum to 1 are (ε, δ) together.

        Args:
          sensitivity: in :attr:`norm`, in integers.
          budget: (ε, δ), with what may fail taken off δ.
          share: of the budget.

        Raises:
          ValueError: the budget or the share is not possible for this noise; noise beyond 64-bit integers.
        """

    @abc.abstractmethod
    def add_securely(self, values: np.ndarray, scale: float) -> np.ndarray:
        """values [F] + discrete noise from a cryptographic generator, int64."""

    @abc.abstractmethod
    def draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Simulated noise of scale 1, continuous. Traceable."""

    def mu(self, mechanism: Mechanism) -> float | None:
        """μ of Gaussian differential privacy (Dong, Roth & Su 2022), for continuous noise that has one."""
        del mechanism

    @abc.abstractmethod
    def check(self, mechanism: Mechanism, budget: PrivacyBudget, share: float) -> None:
        """Refuses a mechanism whose scale, calibration, ε or ρ is not what calibration to its sensitivity gives.

        Args:
          mechanism: as it was read from a file.
          budget: (ε, δ) of all measurements, with what may fail taken off δ.
          share: of the budget.

        Raises:
          ValueError: such a mechanism.
        """

    def source(self) -> str:
        """Where secure noise comes from, for the privacy statement. It ends in "(discrete, cryptographic)"."""
        return secure_noise.source()

    def is_source(self, text: str) -> bool:
        """Whether this, or an earlier version of it, is a source of this noise."""
        return re.fullmatch(r"OpenDP \d+(\.\d+)+ \(discrete, cryptographic\)", text) is not None


_KINDS: dict[str, Noise] = {}


def register_noise(noise: Noise) -> None:
    """Adds a kind of noise, which :func:`noise_of` finds from then on.

    Raises:
      ValueError: a name that is none, or of another kind.
    """
    if not re.fullmatch("[a-z][a-z0-9 -]{0,40}", noise.name):
        raise ValueError(f"noise: the name {noise.name!r} is not made of small letters, digits, blanks and hyphens")
    if type(_KINDS.setdefault(noise.name, noise)) is not type(noise):
        raise ValueError(f"noise: there is a kind named {noise.name} already")


def noise_of(name: str) -> Noise:
    """The kind of noise of a name.

    Raises:
      ValueError: there is none.
    """
    if name not in _KINDS:
        known = " or ".join(f'"{kind}"' for kind in _KINDS)
        raise ValueError(f'noise must be {known}, got "{name}"')
    return _KINDS[name]


@storable(former_fields={"private": "secure"})
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is done to a mean embedding: all of it public.

    Attributes:
      noise: the name of the noise: "gaussian", "laplace" or another that is registered, see :class:`Noise`.
      scale: σ of the Gaussian, or b of the Laplace noise, per coordinate.
      sensitivity: the L2 (Gaussian) or L1 (Laplace) sensitivity it was calibrated to.
      epsilon: ε.
      delta: δ.
      calibration: "analytic", "classical" or (discrete) "zcdp" for Gaussian noise, "exact" for Laplace.
      num_rows: N.
      secure: whether the noise is secure: cryptographic and exact. What simulated noise made must not be published.
      noise_source: where the noise comes from.
      rho: ρ of zero-concentrated differential privacy, for secure Gaussian noise.
      grid: what the released coordinates are integer multiples of, for secure noise.
      failure_probability: the part of δ that is for a sensitivity that may fail, over public randomness.
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

    def validate(self) -> None:
        """Refuses a mechanism that was read from a file, with noise that is not registered.

        Raises:
          ValueError: such noise.
        """
        noise_of(self.noise)

    @property
    def variance(self) -> float:
        """Of the noise, per coordinate: σ², or 2b²."""
        return noise_of(self.noise).variance(self.scale)

    @property
    def mu(self) -> float | None:
        """μ = sensitivity / σ of continuous Gaussian noise (Dong, Roth & Su 2022); None of any other."""
        return noise_of(self.noise).mu(self)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NoisyEmbedding:
    """μ̃ = μ̂ + noise: what step 3 may see, and all it may see.

    Attributes:
      feature_map: ψ.
      coordinates: μ̃, [F].
      mechanism: what was done.
    """

    feature_map: FeatureMap
    coordinates: np.ndarray
    mechanism: Mechanism


class HasDiameter(Protocol):
    """What noise is calibrated to: a feature map, an integer map, or bounds that hold for several.

    Attributes:
      diameter: a proved upper bound of the L2 distance between the vectors of two rows.
      certain_diameter: one that cannot fail.
      failure_probability: the probability that ``diameter`` is too small.
    """

    @property
    def diameter(self) -> float: ...

    @property
    def certain_diameter(self) -> float: ...

    @property
    def failure_probability(self) -> float: ...


class HasIntegers(HasDiameter, Protocol):
    """What secure noise is calibrated to: an integer map, or bounds that hold for several.

    Attributes:
      units: s, integers per 1 of ψ.
      num_features: F, the number of released integers, or an upper bound.
    """

    @property
    def units(self) -> float: ...

    @property
    def num_features(self) -> int: ...


def proved_diameter(measured: HasDiameter, delta: float) -> tuple[float, float]:
    """The diameter to calibrate to, and the δ that is left: where the diameter may fail, that probability is taken off.
    A δ below ten times as much takes a diameter that is certain."""
    failure = measured.failure_probability
    if delta < 10 * failure:
        return measured.certain_diameter, delta
    return measured.diameter, delta - failure


def check_diameter(diameter: str) -> None:
    """Raises ValueError unless ``diameter`` is "proved" or "published"."""
    if diameter not in ("proved", "published"):
        raise ValueError(f'diameter must be "proved" or "published", got "{diameter}"')
