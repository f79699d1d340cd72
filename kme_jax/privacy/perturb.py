"""Step 2: noise for the mean embedding. Experiments use simulated noise. Everything published needs secure noise.

Noise from ``jax.random`` in floating point is reproducible. It does not protect against an adversary who can look at
the low bits (Mironov 2012) or who knows the key. :func:`perturb` marks its results as simulated.
:func:`perturb_securely` adds integer noise from a cryptographic generator to exact integer sums.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, PRNGKeyArray

from kme_jax._numerics.precision import in_float64
from kme_jax._numerics.shapes import AnyArray
from kme_jax.embedding import IntegerEmbedding, MeanEmbedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy import gaussian, laplace  # noqa: F401  # kinds of noise: add the module of a new one here
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_replace_one, check_share
from kme_jax.privacy.calibration import Calibration, zcdp_rho
from kme_jax.privacy.mechanisms import (
    Diameter,
    HasIntegers,
    Mechanism,
    NoisyEmbedding,
    check_diameter,
    noise_of,
    proved_diameter,
    proved_distance,
    proved_sensitivity,
)

if TYPE_CHECKING:
    from kme_jax.privacy.ledger import Spending

Array = jax.Array

_MOST_ROWS = 2**62


def simulated_mechanism(
    feature_map: FeatureMap,
    num_rows: int,
    budget: PrivacyBudget,
    *,
    noise: str = "gaussian",
    calibration: str = "analytic",
    diameter: Diameter = "proved",
    share: float = 1.0,
) -> Mechanism:
    """The mechanism of :func:`perturb` for the mean of ψ over N rows. It does not need the rows.

    Formal guarantee: the mean has L2 sensitivity diameter(ψ)/N (see ``mean_embedding``). The noise is calibrated to
    it (see the kinds of :class:`Noise`; [B] propositions 3 and 9), so adding it is (ε, δ)-differentially private in
    exact arithmetic with true noise. If the diameter holds except with probability p over the public draws of the map,
    the noise is calibrated to δ − p, so that draw and noise together are (ε, δ). For δ < 10p, the certain diameter is
    used instead.

    Args:
      feature_map: ψ.
      num_rows: N.
      budget: (ε, δ); δ > 0 for Gaussian noise and δ = 0 for Laplace noise.
      noise: a kind of noise.
      calibration: for Gaussian noise, see ``gaussian_noise_multiplier``.
      diameter: "proved" (that of the map), or "published" (that of the paper, to reproduce its figures).
      share: the share of the budget's μ² for this measurement of a sequence. Its own ε is then smaller. The δ of a
        sequence must be lowered by the failure probabilities of all its maps, see ``Composition``.

    Raises:
      ValueError: if N < 1, or the share is not in (0, 1], or this noise does not allow the budget or the calibration;
        or the relation is add_remove.
    """
    check_replace_one(budget)
    kind = noise_of(noise)
    num_rows, share = check_integer("num_rows", num_rows, 1, _MOST_ROWS), check_share(share)
    check_diameter(diameter)
    published = diameter == "published"
    largest, delta = (
        (feature_map.published_diameter, budget.delta) if published else proved_diameter(feature_map, budget.delta)
    )
    size = feature_map.num_features
    if published:
        sensitivity = kind.sensitivity(largest, size, integers=False) / num_rows
    else:
        sensitivity = proved_sensitivity(kind, feature_map, largest, size, integers=False) / num_rows
    calibrated = kind.calibrate(sensitivity, PrivacyBudget(budget.epsilon, delta), calibration, share)
    return Mechanism(
        noise,
        calibrated.scale,
        sensitivity,
        calibrated.epsilon,
        budget.delta,
        calibrated.calibration,
        num_rows,
        failure_probability=feature_map.failure_probability if delta < budget.delta else 0.0,
    )


def add_noise(
    key: PRNGKeyArray, coordinates: Float[AnyArray, "F"], scale: float | Float[AnyArray, ""], *, noise: str = "gaussian"
) -> Float[Array, "F"]:
    """coordinates + scale · noise, in the precision of the coordinates. Traceable and vmappable over key and scale.

    Args:
      key: a JAX random key.
      coordinates: [F].
      scale: σ or b, a scalar.
      noise: a kind of noise (static).
    """
    coordinates = jnp.asarray(coordinates)
    draws = noise_of(noise).draw(key, coordinates.shape, coordinates.dtype)
    return coordinates + jnp.asarray(scale, coordinates.dtype) * draws


_NOISE_BLOCK = 1024
_add_noise = jax.jit(add_noise, static_argnames="noise")


@in_float64
def perturb(
    key: PRNGKeyArray,
    embedding: MeanEmbedding,
    budget: PrivacyBudget,
    *,
    noise: str = "gaussian",
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
    share: float = 1.0,
) -> NoisyEmbedding:
    """μ̃ = μ̂ + noise ([B] algorithm 1, line 7), with simulated noise. Each call makes one draw with its key.

    The feature map and N of the embedding determine the sensitivity, so a caller cannot pass a wrong one.

    Args:
      key: a JAX random key; never use it for anything else.
      embedding: μ̂.
      budget: (ε, δ); δ = 0 needs ``noise="laplace"``.
      noise: "gaussian", "laplace" or another registered kind.
      calibration: for Gaussian noise, see ``gaussian_noise_multiplier``.
      diameter: see :func:`simulated_mechanism`.
      share: see :func:`simulated_mechanism`. It must be 1 for Laplace noise.

    Raises:
      TypeError: if the embedding is not a ``MeanEmbedding``.
      ValueError: as :func:`simulated_mechanism`, or if the noise is unknown.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, mean_embedding, perturb
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> embedding = mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> noisy = perturb(jax.random.key(0), embedding, PrivacyBudget(1.0, 1e-5))
      >>> print(f"σ = {noisy.mechanism.scale:.4f}, secure: {noisy.mechanism.secure}")
      σ = 0.0053, secure: False
    """
    if not isinstance(embedding, MeanEmbedding):
        raise TypeError(f"simulated noise needs the result of mean_embedding, got {type(embedding).__name__}")
    mechanism = simulated_mechanism(
        embedding.feature_map,
        embedding.num_rows,
        budget,
        noise=noise,
        calibration=calibration,
        diameter=diameter,
        share=share,
    )
    # Noise is drawn in whole blocks, so that a similar number of features does not compile a new program.
    num_features = len(embedding.coordinates)
    coordinates = np.pad(np.asarray(embedding.coordinates, np.float64), (0, -num_features % _NOISE_BLOCK))
    noisy = _add_noise(key, coordinates, mechanism.scale, noise=noise)
    return NoisyEmbedding(embedding.feature_map, np.asarray(noisy)[:num_features], mechanism)


def secure_mechanism(
    integer_map: HasIntegers,
    num_rows: int,
    budget: PrivacyBudget,
    *,
    share: float = 1.0,
    noise: str | None = None,
    fine: bool | None = None,
) -> Mechanism:
    """The mechanism of :func:`perturb_securely`, in the units of ψ. It does not need the rows.

    The noise of the sum of integers does not depend on N.

    Args:
      integer_map: q, or bounds that hold for several.
      num_rows: N, or a public number in its place under add_remove.
      budget: (ε, δ), for all measurements of a sequence together.
      share: the share of the budget's ρ for this measurement. Its own ε is then smaller.
      noise: a kind of noise. If None, discrete Gaussian noise, or discrete Laplace noise for δ = 0.
      fine: whether Gaussian noise is calibrated by ``fine_rho``, and made larger if it would be too coarse for it. It
        has to be the same for all measurements of a sequence. If None, it is calibrated by ``fine_rho`` if the share is
        1 and the integers are fine enough, and by ``zcdp_rho`` otherwise.

    Raises:
      ValueError: if N < 1, or the noise does not fit 64-bit integers, or the share is not in (0, 1] (for Laplace noise:
        not 1), or this noise does not allow the budget, or the map does not allow the relation.
    """
    num_rows, share = check_integer("num_rows", num_rows, 1, _MOST_ROWS), check_share(share)
    largest, delta = proved_distance(integer_map, budget.delta, budget.relation)
    kind = noise_of(noise or ("laplace" if delta == 0 else "gaussian"))
    size = integer_map.num_features
    sensitivity = proved_sensitivity(kind, integer_map, largest, size, integers=True, max_rows=budget.max_rows)
    calibrated = kind.calibrate_securely(sensitivity, dataclasses.replace(budget, delta=delta), share, size, fine)
    if calibrated.rho is None and budget.delta > 0:
        raise ValueError(f"{kind.name} noise states no ρ, so it is for delta = 0 only, got {budget.delta}")
    grid = 1 / (integer_map.units * num_rows)
    return Mechanism(
        kind.name,
        calibrated.scale * grid,
        sensitivity * grid,
        calibrated.epsilon,
        budget.delta,
        calibrated.calibration,
        num_rows,
        secure=True,
        noise_source=kind.source(),
        rho=calibrated.rho,
        grid=grid,
        failure_probability=integer_map.failure_probability if delta < budget.delta else 0.0,
        relation=budget.relation,
        discreteness=calibrated.discreteness,
        max_rows=budget.max_rows,
        person=budget.person,
    )


def perturb_securely(
    embedding: IntegerEmbedding,
    budget: PrivacyBudget,
    *,
    share: float = 1.0,
    noise: str | None = None,
    fine: bool | None = None,
    spending: Spending | None = None,
) -> NoisyEmbedding:
    """μ̃ = (Σ_n q(x_n) + noise) / (s N), with secure noise. The result may be published.

    The noise is integer and exact, from a cryptographic generator that cannot be seeded (OpenDP). Each call makes one
    draw. A second call on the same rows is a second release.

    Formal guarantee: the integers of neighbours differ by at most Δ in L2 (see ``proved_distance``): the diameter if
    one row is replaced, the largest norm of a row if one is added or removed, and k times that for a person with k
    rows. Unless a row is replaced, N is private: the sum is divided by a public number that replaces it
    (``IntegerEmbedding.with_public_count``). The discrete Gaussian of
    parameter σ is Δ²/(2σ²)-zero-concentrated differentially private in any dimension (Canonne, Kamath & Steinke 2020,
    theorem 14 and section 2), which implies (ε, δ) by ``zcdp_delta``. If it is fine, ``fine_rho`` is used, which needs
    less noise; δ is lowered by the probability that the diameter
    fails. For δ = 0 the discrete Laplace distribution of scale √F Δ/ε is (ε, 0). All numbers from the features of the
    rows to the noisy sum are integers; division by s N is post-processing. Measurements whose shares sum to 1 or less
    are (ε, δ) together, even if a map depends on the results of earlier measurements: ρ adds up (Bun & Steinke 2016,
    lemma 1.7).

    Args:
      embedding: Σ_n q(x_n).
      budget: (ε, δ).
      share: see :func:`secure_mechanism`.
      noise: see :func:`secure_mechanism`.
      fine: see :func:`secure_mechanism`.
      spending: the curator's ledger, and the name of the rows in it. It is written and flushed before noise is drawn.
        Each call is a release of its own there. So a sequence of shares needs ``allow_repeat=True``. If None, nothing
        is recorded.

    Raises:
      TypeError: if the embedding is not an ``IntegerEmbedding``.
      ValueError: as :func:`secure_mechanism`, or the embedding is for another relation, or the budget may not be spent
        (``LedgerError``).
      ModuleNotFoundError: if OpenDP is not installed.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, integer_embedding, perturb_securely
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> total = integer_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> noisy = perturb_securely(total, PrivacyBudget(1.0, 1e-5))
      >>> print(f"σ = {noisy.mechanism.scale:.4f}, secure: {noisy.mechanism.secure}")
      σ = 0.0053, secure: True
    """
    _check_integers(embedding, budget)
    integers = embedding.integer_map
    mechanism = secure_mechanism(integers, embedding.num_rows, budget, share=share, noise=noise, fine=fine)
    add, grid = noise_of(mechanism.noise).add_securely, cast(float, mechanism.grid)
    released = integers.released(embedding.total)
    if spending is not None:
        spending.spend(mechanism)
    with contextlib.nullcontext() if spending is None else spending.recorded(None):
        noisy = add(released, mechanism.scale / grid)
    return NoisyEmbedding(integers.feature_map, noisy.astype(np.float64) * grid, mechanism)


def perturb_integers(
    key: PRNGKeyArray,
    embedding: IntegerEmbedding,
    budget: PrivacyBudget,
    *,
    share: float = 1.0,
    fine: bool | None = None,
) -> NoisyEmbedding:
    """:func:`perturb_securely` with simulated Gaussian noise of the same size. NOT PRIVATE.

    The result is reproducible, and for experiments only.

    Args:
      key: a JAX random key; never use it for anything else.
      embedding: Σ_n q(x_n).
      budget: (ε, δ), δ > 0.
      share: see :func:`secure_mechanism`.
      fine: see :func:`secure_mechanism`.

    Raises:
      TypeError: if the embedding is not an ``IntegerEmbedding``.
      ValueError: as :func:`secure_mechanism`, or if δ = 0.
    """
    _check_integers(embedding, budget)
    zcdp_rho(budget)
    integers = embedding.integer_map
    mechanism = secure_mechanism(integers, embedding.num_rows, budget, share=share, fine=fine)
    mechanism = dataclasses.replace(mechanism, secure=False, noise_source=Mechanism.noise_source)
    released = integers.released(embedding.total)
    grid = cast(float, mechanism.grid)
    noise = np.rint(mechanism.scale / grid * _standard_normal(key, len(released)))
    return NoisyEmbedding(integers.feature_map, (released + noise) * grid, mechanism)


def _check_integers(embedding: Any, budget: PrivacyBudget) -> None:
    if not isinstance(embedding, IntegerEmbedding):
        raise TypeError(f"secure noise needs the result of integer_embedding, got {type(embedding).__name__}")
    if not embedding.has_public_count:
        check_replace_one(budget)


@in_float64
def _standard_normal(key: PRNGKeyArray, size: int) -> Float64[np.ndarray, "F"]:
    padded = size + -size % _NOISE_BLOCK
    return np.asarray(_add_noise(key, np.zeros(padded), 1.0))[:size]
