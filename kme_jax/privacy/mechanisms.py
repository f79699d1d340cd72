"""Step 2: noise for the mean embedding. Simulated noise for experiments, secure noise for what is published.

Noise from ``jax.random`` in floating point is reproducible, and not private against an adversary who can look at the
low bits (Mironov 2012) or who knows the key. What :func:`perturb` makes is marked accordingly. :func:`perturb_securely`
adds integer noise from a cryptographic generator to exact integer sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import in_float64
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax.embedding import IntegerEmbedding, MeanEmbedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.integer import IntegerMap
from kme_jax.privacy import secure as secure_noise
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_share
from kme_jax.privacy.calibration import (
    Calibration,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)

Array = jax.Array
Diameter = Literal["proved", "published"]

_MOST_ROWS = 2**62
_SUM = 1e-12  # relative: above the rounding of a sum of a few shares, and far below that of ``zcdp_rho``


def _static():
    return dataclasses.field(metadata={"static": True})


@storable(former_fields={"private": "secure"})
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is done to a mean embedding: all of it public.

    Attributes:
      noise: "gaussian" or "laplace".
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

    noise: Literal["gaussian", "laplace"] = _static()
    scale: float
    sensitivity: float
    epsilon: float
    delta: float
    calibration: str = _static()
    num_rows: int = _static()
    secure: bool = dataclasses.field(default=False, metadata={"static": True})
    noise_source: str = dataclasses.field(default="simulated (jax.random)", metadata={"static": True})
    rho: float | None = None
    grid: float | None = None
    failure_probability: float = 0.0

    @property
    def variance(self) -> float:
        """Of the noise, per coordinate: σ², or 2b²."""
        return self.scale**2 if self.noise == "gaussian" else 2 * self.scale**2

    @property
    def mu(self) -> float | None:
        """μ = sensitivity / σ of continuous Gaussian noise (Dong, Roth & Su 2022); None of any other."""
        return self.sensitivity / self.scale if self.noise == "gaussian" and self.rho is None else None


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
        if all(mechanism.rho is not None for mechanism in mechanisms):
            rho = math.fsum(mechanism.rho for mechanism in mechanisms)
            within = rho <= _planned_rho(budget, failure) * (1 + _SUM)
            delta = 0.0 if within else zcdp_delta(rho, budget.epsilon)
        elif all(mechanism.mu is not None for mechanism in mechanisms):
            mu = math.sqrt(math.fsum(mechanism.mu**2 for mechanism in mechanisms))
            delta = gaussian_delta(1 / mu, budget.epsilon)
        else:
            raise ValueError("only measurements with Gaussian noise of one kind, continuous or discrete, compose here")
        if delta + failure > budget.delta:
            raise ValueError(f"the measurements spend more than ε = {budget.epsilon:g}")
        return cls(budget.epsilon, budget.delta, rho, failure, all(m.secure for m in mechanisms), mu)


def _planned_rho(budget: PrivacyBudget, failure_probability: float) -> float:
    return zcdp_rho(PrivacyBudget(budget.epsilon, budget.delta - failure_probability))


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


def _diameter(feature_map: FeatureMap, diameter: Diameter, delta: float) -> tuple[float, float]:
    """The diameter to calibrate to, and the δ that is left when it may fail."""
    check_diameter(diameter)
    return (feature_map.published_diameter, delta) if diameter == "published" else _proved(feature_map, delta)


def _proved(measured: FeatureMap | IntegerMap, delta: float) -> tuple[float, float]:
    failure = measured.failure_probability
    if delta < 10 * failure:
        return measured.certain_diameter, delta
    return measured.diameter, delta - failure


def check_diameter(diameter: str) -> None:
    """Raises ValueError unless ``diameter`` is "proved" or "published"."""
    if diameter not in ("proved", "published"):
        raise ValueError(f'diameter must be "proved" or "published", got "{diameter}"')


def gaussian_mechanism(
    feature_map: FeatureMap,
    num_rows: int,
    budget: PrivacyBudget,
    *,
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
    share: float = 1.0,
) -> Mechanism:
    """The Gaussian mechanism for the mean of ψ over N rows.

    Formal guarantee: the mean has L2 sensitivity diameter(ψ)/N (see ``mean_embedding``), and σ is that times
    ``gaussian_noise_multiplier``, so adding N(0, σ² I) is (ε, δ)-differentially private ([B] propositions 3 and 9) in
    exact arithmetic with true Gaussian noise. Where the diameter holds except with probability p over the map's own
    public draws, calibration is to δ − p, so that draw and noise together are (ε, δ); δ < 10p takes a diameter that is
    certain.

    Args:
      feature_map: ψ.
      num_rows: N.
      budget: (ε, δ), δ > 0.
      calibration: see ``gaussian_noise_multiplier``.
      diameter: "proved" (the map's own), or "published" (the paper's, to reproduce its figures).
      share: of the budget's μ² that this measurement of a sequence has; its own ε is then smaller. The δ of a sequence
        has to be lowered by the failure probabilities of all its maps, see :class:`Composition`.

    Raises:
      ValueError: as ``gaussian_noise_multiplier``; N < 1; a share that is not in (0, 1].
    """
    num_rows, share = check_integer("num_rows", num_rows, 1, _MOST_ROWS), check_share(share)
    largest, delta = _diameter(feature_map, diameter, budget.delta)
    sensitivity = largest / num_rows
    multiplier = gaussian_noise_multiplier(PrivacyBudget(budget.epsilon, delta), calibration) / math.sqrt(share)
    scale = sensitivity * multiplier
    failure = feature_map.failure_probability if delta < budget.delta else 0.0
    return Mechanism(
        "gaussian",
        scale,
        sensitivity,
        budget.epsilon if share == 1 else gaussian_epsilon(multiplier, delta),
        budget.delta,
        calibration,
        num_rows,
        failure_probability=failure,
    )


def laplace_mechanism(
    feature_map: FeatureMap, num_rows: int, budget: PrivacyBudget, *, diameter: Diameter = "proved"
) -> Mechanism:
    """The Laplace mechanism for the mean of ψ over N rows, with pure ε-differential privacy.

    Formal guarantee: the L1 sensitivity is at most √F times the L2 sensitivity diameter(ψ)/N (Cauchy–Schwarz), and
    Laplace noise of scale Δ₁/ε per coordinate is (ε, 0)-differentially private (Dwork & Roth 2014, theorem 3.6).

    Args:
      feature_map: ψ.
      num_rows: N.
      budget: (ε, 0).
      diameter: as for ``gaussian_mechanism``.

    Raises:
      ValueError: δ > 0 (the Gaussian mechanism is then the better one); N < 1.
    """
    num_rows = check_integer("num_rows", num_rows, 1, _MOST_ROWS)
    if budget.delta != 0:
        raise ValueError(f"the Laplace mechanism gives delta = 0, got {budget.delta}: ask for 0 or use Gaussian noise")
    sensitivity = math.sqrt(feature_map.num_features) * _diameter(feature_map, diameter, 0.0)[0] / num_rows
    scale = sensitivity / budget.epsilon
    return Mechanism("laplace", scale, sensitivity, budget.epsilon, budget.delta, "exact", num_rows)


def add_noise(key: Array, coordinates: Array, scale: Array, *, noise: str = "gaussian") -> Array:
    """coordinates + scale · noise, in the coordinates' precision. Traceable and vmappable over key and scale.

    Args:
      key: a JAX random key.
      coordinates: [F].
      scale: σ or b, a scalar.
      noise: "gaussian" or "laplace" (static).
    """
    coordinates = jnp.asarray(coordinates)
    draw = {"gaussian": jax.random.normal, "laplace": jax.random.laplace}[noise]
    return coordinates + jnp.asarray(scale, coordinates.dtype) * draw(key, coordinates.shape, coordinates.dtype)


_NOISE_BLOCK = 1024
_add_noise = jax.jit(add_noise, static_argnames="noise")


@in_float64
def perturb(
    key: Array,
    embedding: MeanEmbedding,
    budget: PrivacyBudget,
    *,
    noise: Literal["gaussian", "laplace"] = "gaussian",
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
    share: float = 1.0,
) -> NoisyEmbedding:
    """μ̃ = μ̂ + noise ([B] algorithm 1, line 7), simulated. One draw per call, of the key's own.

    The sensitivity comes from the embedding's own feature map and N, so there is nothing to mismatch.

    Args:
      key: a JAX random key; never use it for anything else.
      embedding: μ̂.
      budget: (ε, δ); δ = 0 needs ``noise="laplace"``.
      noise: "gaussian" or "laplace".
      calibration: for Gaussian noise, see ``gaussian_noise_multiplier``.
      diameter: see ``gaussian_mechanism``.
      share: see ``gaussian_mechanism``; 1 for Laplace noise.

    Raises:
      TypeError: another kind of embedding.
      ValueError: as ``gaussian_mechanism`` or ``laplace_mechanism``; an unknown noise.
    """
    if not isinstance(embedding, MeanEmbedding):
        raise TypeError(f"simulated noise is for the mean of mean_embedding, got {type(embedding).__name__}")
    feature_map, num_rows, share = embedding.feature_map, embedding.num_rows, check_share(share)
    if noise == "gaussian":
        mechanism = gaussian_mechanism(
            feature_map, num_rows, budget, calibration=calibration, diameter=diameter, share=share
        )
    elif noise == "laplace":
        if share != 1:
            raise ValueError("shares are of Gaussian noise")
        mechanism = laplace_mechanism(feature_map, num_rows, budget, diameter=diameter)
    else:
        raise ValueError(f'noise must be "gaussian" or "laplace", got "{noise}"')
    # Drawn in whole blocks, so that a number of features that changes with the kernel compiles nothing new.
    num_features = len(embedding.coordinates)
    coordinates = np.pad(np.asarray(embedding.coordinates, np.float64), (0, -num_features % _NOISE_BLOCK))
    noisy = _add_noise(key, coordinates, mechanism.scale, noise=noise)
    return NoisyEmbedding(feature_map, np.asarray(noisy)[:num_features], mechanism)


def secure_mechanism(integer_map: IntegerMap, num_rows: int, budget: PrivacyBudget, *, share: float = 1.0) -> Mechanism:
    """The mechanism of :func:`perturb_securely`, without any rows: discrete Gaussian noise, or discrete Laplace noise
    for δ = 0. Units are those of ψ.

    Args:
      integer_map: q.
      num_rows: N.
      budget: (ε, δ), of all measurements of a sequence.
      share: the part of the budget's ρ that this one has; its own ε is then smaller.

    Raises:
      ValueError: N < 1; noise that integers have no room for; a share that is not in (0, 1], or one of Laplace noise.
    """
    num_rows, share = check_integer("num_rows", num_rows, 1, _MOST_ROWS), check_share(share)
    largest, delta = _proved(integer_map, budget.delta)
    grid = 1 / (integer_map.units * num_rows)
    failure = integer_map.failure_probability if delta < budget.delta else 0.0
    common = {"num_rows": num_rows, "secure": True, "noise_source": secure_noise.source(), "grid": grid}
    common["failure_probability"] = failure
    if delta == 0:
        if share != 1:
            raise ValueError("delta = 0 takes one measurement: give delta > 0 for a sequence of several")
        sensitivity = math.ceil(math.sqrt(integer_map.feature_map.num_features) * largest)  # in L1, by Cauchy–Schwarz
        scale = secure_noise.check_scale(sensitivity / budget.epsilon * (1 + 1e-9))
        return Mechanism("laplace", scale * grid, sensitivity * grid, budget.epsilon, budget.delta, "exact", **common)
    most = share * zcdp_rho(PrivacyBudget(budget.epsilon, delta))
    scale = secure_noise.check_scale(largest / math.sqrt(2 * most))
    rho = secure_noise.gaussian_rho(scale, largest)
    while rho > most:  # rounding
        scale *= 1 + 1e-9
        rho = secure_noise.gaussian_rho(scale, largest)
    epsilon = budget.epsilon if share == 1 else zcdp_epsilon(rho, delta)
    return Mechanism("gaussian", scale * grid, largest * grid, epsilon, budget.delta, "zcdp", rho=rho, **common)


def perturb_securely(embedding: IntegerEmbedding, budget: PrivacyBudget, *, share: float = 1.0) -> NoisyEmbedding:
    """μ̃ = (Σ_n q(x_n) + noise) / (s N), with noise that may be published: integer, exact, from a cryptographic
    generator that cannot be seeded (OpenDP). One draw per call; a second call on the same rows is a second release.

    Formal guarantee: neighbours' integers differ by at most Δ = ``integer_map.diameter`` in L2 (see
    ``IntegerMap``). The discrete Gaussian of parameter σ is Δ²/(2σ²)-zero-concentrated differentially private in any
    dimension (Canonne, Kamath & Steinke 2020, theorem 14 and section 2), which implies (ε, δ) by ``zcdp_delta``; δ is
    lowered by the probability that the diameter fails. For δ = 0 the discrete Laplace distribution of scale √F Δ/ε is
    (ε, 0). Nothing but integers is computed from rows to noise; division by s N is post-processing. Measurements whose
    shares sum to 1 or less are (ε, δ) together, also where a map depends on the results before it: ρ adds up (Bun &
    Steinke 2016, lemma 1.7).

    Args:
      embedding: Σ_n q(x_n).
      budget: (ε, δ).
      share: see :func:`secure_mechanism`.

    Raises:
      TypeError: another kind of embedding.
      ValueError: as :func:`secure_mechanism`.
      ModuleNotFoundError: OpenDP is not installed.
    """
    _check_integers(embedding)
    integers = embedding.integer_map
    mechanism = secure_mechanism(integers, embedding.num_rows, budget, share=share)
    draw = secure_noise.add_gaussian if mechanism.noise == "gaussian" else secure_noise.add_laplace
    noisy = draw(integers.released(embedding.total), mechanism.scale / mechanism.grid)
    return NoisyEmbedding(integers.feature_map, noisy.astype(np.float64) * mechanism.grid, mechanism)


def perturb_integers(
    key: Array, embedding: IntegerEmbedding, budget: PrivacyBudget, *, share: float = 1.0
) -> NoisyEmbedding:
    """What :func:`perturb_securely` returns, with simulated Gaussian noise of the same size, for experiments:
    reproducible, and NOT private.

    Args:
      key: a JAX random key; never use it for anything else.
      embedding: Σ_n q(x_n).
      budget: (ε, δ), δ > 0.
      share: see :func:`secure_mechanism`.

    Raises:
      TypeError: another kind of embedding.
      ValueError: as :func:`secure_mechanism`; δ = 0.
    """
    _check_integers(embedding)
    zcdp_rho(budget)
    integers = embedding.integer_map
    mechanism = secure_mechanism(integers, embedding.num_rows, budget, share=share)
    mechanism = dataclasses.replace(mechanism, secure=False, noise_source=Mechanism.noise_source)
    released = integers.released(embedding.total)
    noise = np.rint(mechanism.scale / mechanism.grid * _standard_normal(key, len(released)))
    return NoisyEmbedding(integers.feature_map, (released + noise) * mechanism.grid, mechanism)


def _check_integers(embedding: Any) -> None:
    if not isinstance(embedding, IntegerEmbedding):
        raise TypeError(f"secure noise is for the sums of integer_embedding, got {type(embedding).__name__}")


@in_float64
def _standard_normal(key: Array, size: int) -> np.ndarray:
    padded = size + -size % _NOISE_BLOCK
    return np.asarray(_add_noise(key, np.zeros(padded), 1.0))[:size]
