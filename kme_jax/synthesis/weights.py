"""Step 3 for a subspace map: weights on the public points. Post-processing of μ̃, so free of privacy cost."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.numerics import Progress, float64, in_float64
from kme_jax.privacy.mechanisms import PrivateEmbedding
from kme_jax.synthesis.entropic import EntropicFit, EntropicLeastSquares
from kme_jax.synthesis.lasso import SolverReport, l1_ball_weights
from kme_jax.synthesis.sample import WeightedSample

# The penalties of adaptive(): a geometric sequence, left when the risk has risen so often in a row.
_PENALTY_RATIO = 2.0
_MAX_PENALTIES = 60
_RISES_TO_STOP = 3
_SMALLEST_PENALTY = 1e-3  # of σ²
_TEMPERATURE = 4.0  # of the aggregate, in σ²
_RELATIVE_GAP = 1e-10  # of F σ²: the fit is then within 1.5e-5 of the noise's norm of the best one


def closed_form(embedding: PrivateEmbedding) -> WeightedSample:
    """w = Bᵀβ: the weights whose embedding is μ̃ itself ([B] algorithm 1, line 8). Dropped points have weight 0.

    The weights are signed and grow with ‖B‖ times the noise; their L1 norm is not bounded. See :func:`l1_ball`.
    """
    subspace = _subspace_map(embedding)
    return WeightedSample(subspace.points, subspace.expand(embedding.coordinates), embedding.mechanism)


def _subspace_map(embedding: PrivateEmbedding) -> SubspaceMap:
    if not isinstance(embedding.feature_map, SubspaceMap):
        raise ValueError(f"needs the embedding of a SubspaceMap, got {type(embedding.feature_map).__name__}")
    return embedding.feature_map


def check_radius(radius: float) -> None:
    """Raises ValueError unless 1 ≤ C < ∞: a smaller ball misses the embeddings of probability measures."""
    if not 1 <= radius < np.inf:
        raise ValueError(f"radius must be at least 1 ([B] theorem 11) and finite, got {radius}")


def noise_tolerance(embedding: PrivateEmbedding) -> float:
    """1 % of ½ E‖noise‖²: solving for weights any better would fit noise."""
    return 0.005 * len(embedding.coordinates) * embedding.mechanism.variance


def l1_ball(
    embedding: PrivateEmbedding,
    *,
    radius: float = 1.0,
    tolerance: float | None = None,
    max_solves: int = 60,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m k(z_m, ·)‖² over Σ_m |w_m| ≤ C ([B] theorem 11).

    With the L1 norm bounded, applying any continuous function to the points gives a consistent estimate of the
    embedding of the transformed variable ([B] theorem 11); the closed form does not promise that.

    Args:
      embedding: μ̃ of a SubspaceMap.
      radius: C ≥ 1.
      tolerance: of the gap, see :func:`kme_jax.synthesis.lasso.l1_ball_weights`. By default :func:`noise_tolerance`.
      max_solves: see :func:`kme_jax.synthesis.lasso.l1_ball_weights`.

    Returns:
      The sample, and how the optimisation went.

    Raises:
      ValueError: C < 1 (an embedding of a probability measure would be out of reach); another kind of map.
    """
    check_radius(radius)
    subspace = _subspace_map(embedding)
    with float64():
        features = subspace(jnp.asarray(subspace.points))
    if tolerance is None:
        tolerance = noise_tolerance(embedding)
    weights, report = l1_ball_weights(
        np.asarray(features), embedding.coordinates, radius=radius, tolerance=tolerance, max_solves=max_solves
    )
    return WeightedSample(subspace.points, weights, embedding.mechanism), report


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Weights that :func:`adaptive` could have chosen.

    Attributes:
      kind: "uniform", "signed" or "probability".
      penalty: τ of the Kullback–Leibler penalty (probability), or the share of μ̃ (signed: 1 is the closed form).
      degrees_of_freedom: Σ_f ∂fit_f / ∂β_f, estimated.
      risk: unbiased estimate of E‖fit − α‖², α the coordinates of μ̂. It may be negative.
      gap: duality gap (probability), else 0.
      share: of these weights in the mean of all.
    """

    kind: Literal["uniform", "signed", "probability"]
    penalty: float
    degrees_of_freedom: float
    risk: float
    gap: float = 0.0
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class RiskReport:
    """What :func:`adaptive` tried.

    Attributes:
      chosen: the candidate of least risk, whose share is the largest.
      candidates: all of them, in the order of trial.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]


@in_float64
def adaptive(
    embedding: PrivateEmbedding, *, signed: bool = True, progress: Progress | None = None
) -> tuple[WeightedSample, RiskReport]:
    """Weights of little estimated risk, from probability vectors shrunk towards uniform ones and signed weights.

    The families: argmin ½‖μ̃ − Σ w_m k(z_m, ·)‖² + τ KL(w ‖ uniform) over probability vectors, for τ from where w is
    all but uniform down to where it is all but the projection of μ̃ onto mixtures of the points (Nikolov, Talwar &
    Zhang 2013); and the closed form ([B] algorithm 1, line 8), shrunk towards the uniform embedding by James & Stein's
    factor (positive part; Efron & Morris 1973).

    Stein's unbiased risk estimate judges: for a fit v(β) that is weakly differentiable, β ~ N(α, σ² I_F),

        E‖v(β) − α‖² = E[‖v(β) − β‖² − F σ² + 2 σ² Σ_f ∂v_f/∂β_f]   (Stein 1981),

    where σ is public. So nothing but μ̃, the points and the mechanism is looked at: post-processing, of no privacy
    cost. As the error outside of the span of the basis is the same for all (up to its drop rule's tolerance), the least
    risk is the least distance to μ̂. The estimate's own noise is that of ‖β − α‖², about σ² √(2F), most of which all
    candidates share; the rest is about σ². So where the least risk is that of signed weights they are taken, and else
    the mean of all probability vectors with weights ∝ exp(−risk / 4σ²) (Leung & Barron 2006, who prove for
    least-squares fits that it costs little): where risks differ by far more than σ² it is the one of least risk, and
    where they do not, a mean is better than a choice.

    Consistency: with N → ∞ the noise vanishes, and the family holds the projection (τ → 0) and the closed form, so the
    limit is that of [B] theorem 4.

    Args:
      embedding: μ̃ of a SubspaceMap, with Gaussian noise. (For Laplace noise the estimate is only approximate.)
      signed: whether weights may be signed where these have the least risk. If not they are a probability vector.
      progress: called with (penalties tried, penalties at most).

    Returns:
      The sample, and what was tried. Its weights are a probability vector unless signed ones have the least risk.
    """
    subspace, beta, variance = _subspace_map(embedding), embedding.coordinates, embedding.mechanism.variance
    num_features = len(beta)
    noise = num_features * variance
    problem = EntropicLeastSquares(subspace(jnp.asarray(subspace.points)), beta)
    mean = np.asarray(problem.prior @ problem.features)

    away = float(np.sum(np.square(beta - mean)))
    uniform_weights = problem.prior
    share = max(0.0, 1 - max(num_features - 2, 0) * variance / away) if away else 0.0
    signed_risk = noise - (max(num_features - 2, 0) * variance) ** 2 / away if share else away - noise
    signed_weights = (1 - share) * uniform_weights + share * subspace.expand(beta)
    candidates = [Candidate("uniform", np.inf, 0.0, away - noise)]
    found = [uniform_weights]

    def consider(candidate: Candidate, weights: np.ndarray) -> None:
        candidates.append(candidate)
        found.append(weights)

    size = float(jnp.sum(jnp.square(problem.features)) / len(subspace.points))
    penalty = size - float(mean @ mean)  # tr C of uniform weights: at most one degree of freedom is left
    fit: EntropicFit | None = None
    rises, previous = 0, np.inf
    # Points that are all the same have one embedding, whatever their weights.
    for tried in range(_MAX_PENALTIES if penalty > 1e-12 * size else 0):
        fit = problem.solve(penalty, _RELATIVE_GAP * noise, start=fit)
        if not fit.report.converged:
            break  # the divergence is that of a solution
        degrees = problem.degrees_of_freedom(fit)
        distance = float(np.sum(np.square(np.asarray(fit.weights @ problem.features) - beta)))
        risk = distance - noise + 2 * variance * degrees
        consider(Candidate("probability", penalty, degrees, risk, fit.report.gap), fit.weights)
        rises = rises + 1 if risk > previous else 0
        previous = risk
        if progress:
            progress(tried + 1, _MAX_PENALTIES)
        if rises == _RISES_TO_STOP or penalty < _SMALLEST_PENALTY * variance:
            break
        penalty /= _PENALTY_RATIO
    if progress:
        progress(_MAX_PENALTIES, _MAX_PENALTIES)
    if signed:
        degrees = (signed_risk + noise - (1 - share) ** 2 * away) / (2 * variance)
        consider(Candidate("signed", share, degrees, signed_risk), signed_weights)
    risks = np.asarray([candidate.risk for candidate in candidates])
    shares = np.exp((risks.min() - risks) / (_TEMPERATURE * variance))
    best = int(np.argmin(risks))
    signed_is_best = candidates[best].kind == "signed"
    shares[[(candidate.kind == "signed") != signed_is_best for candidate in candidates]] = 0
    shares /= shares.sum()
    candidates = [dataclasses.replace(c, share=float(share)) for c, share in zip(candidates, shares, strict=True)]
    sample = WeightedSample(subspace.points, shares @ np.stack(found), embedding.mechanism)
    return sample, RiskReport(candidates[best], tuple(candidates))
