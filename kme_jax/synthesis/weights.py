"""Step 3 with given public points: their weights. Post-processing of μ̃, so free of privacy cost.

A ``SubspaceMap`` has points of its own, and features in an orthonormal basis of their span. For any other map the
points are given, and the same problems are solved by least squares in the span of their features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import Progress, check_columns, check_points, float64, in_float64, reproducible_jit
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.synthesis.entropic import BatchFit, EntropicBatch, padded_sizes, project_features
from kme_jax.synthesis.lasso import SolverReport, l1_ball_least_squares
from kme_jax.synthesis.sample import WeightedSample

Array = jax.Array

# The penalties of adaptive(): a geometric sequence, left when the risk has risen so often in a row.
_PENALTY_RATIO = 2.0
_MAX_PENALTIES = 60
_RISES_TO_STOP = 3
_SMALLEST_PENALTY = 1e-3  # of σ²
_TEMPERATURE = 4.0  # of the aggregate, in σ²
_RELATIVE_GAP = 1e-10  # of F σ²: the fit is then within 1.5e-5 of the noise's norm of the best one


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    """Weights on points, for noisy coordinates in an orthonormal basis of the span of the points' features.

    Attributes:
      points: z, [M, d].
      features: the coordinates of ψ(z_m), float64 [M, F].
      noisy: those of μ̃, float64 [F]. Their noise is that of μ̃, independent for each.
    """

    points: np.ndarray
    features: np.ndarray
    noisy: np.ndarray

    @classmethod
    def of(cls, embedding: NoisyEmbedding, points: np.ndarray | None) -> _Problem:
        """The problem for the points that the map was made from, or for others.

        What μ̃ has outside of the span is the same for all weights, and is left out.

        Raises:
          ValueError: there are no points; points of another number of columns.
        """
        feature_map = embedding.feature_map
        own = points is None
        if own:
            points = feature_map.public_points
        if points is None:
            raise ValueError(f"points: {type(feature_map).__name__} was made from none: give the points to be weighted")
        points = check_points(points)
        check_columns(points, feature_map.dim, "points")
        with float64():
            features = np.asarray(feature_map(jnp.asarray(points, jnp.float64)), np.float64)
        if own and isinstance(feature_map, SubspaceMap):
            return cls(points, features, embedding.coordinates)  # the basis is orthonormal as it is
        return cls(points, *project_features(features, np.asarray(embedding.coordinates, np.float64)))

    def expand(self, coordinates: np.ndarray) -> np.ndarray:
        """The weights of least norm with these coordinates, [M], where there are any, or else with the closest."""
        return np.linalg.lstsq(self.features.T, coordinates, rcond=1e-12)[0]


def closed_form_weights(embedding: NoisyEmbedding, points: np.ndarray | None = None) -> WeightedSample:
    """w = Bᵀβ: the weights whose embedding is μ̃ itself ([B] algorithm 1, line 8). Dropped points have weight 0.

    The weights are signed and grow with ‖B‖ times the noise; their L1 norm is not bounded. See :func:`l1_ball_weights`.

    Args:
      embedding: μ̃.
      points: z, [M, d]; those that the map was made from, if None. For others, and other maps than a ``SubspaceMap``,
        these are the weights of least norm whose embedding is closest to μ̃.

    Raises:
      ValueError: there are no points; points of another number of columns.
    """
    feature_map = embedding.feature_map
    if points is None and isinstance(feature_map, SubspaceMap):
        return WeightedSample(feature_map.points, feature_map.expand(embedding.coordinates), embedding.mechanism)
    problem = _Problem.of(embedding, points)
    return WeightedSample(problem.points, problem.expand(problem.noisy), embedding.mechanism)


def check_radius(radius: float) -> None:
    """Raises ValueError unless 1 ≤ C < ∞: a smaller ball misses the embeddings of probability measures."""
    if not 1 <= radius < np.inf:
        raise ValueError(f"radius must be at least 1 ([B] theorem 11) and finite, got {radius}")


def noise_tolerance(embedding: NoisyEmbedding) -> float:
    """1 % of ½ E‖noise‖²: solving for weights any better would fit noise."""
    return 0.005 * len(embedding.coordinates) * embedding.mechanism.variance


def l1_ball_weights(
    embedding: NoisyEmbedding,
    points: np.ndarray | None = None,
    *,
    radius: float = 1.0,
    tolerance: float | None = None,
    max_solves: int = 60,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m k(z_m, ·)‖² over Σ_m |w_m| ≤ C ([B] theorem 11).

    With the L1 norm bounded, applying any continuous function to the points gives a consistent estimate of the
    embedding of the transformed variable ([B] theorem 11); the closed form does not promise that.

    Args:
      embedding: μ̃.
      points: z, [M, d]; those that the map was made from, if None.
      radius: C ≥ 1.
      tolerance: of the gap, see :func:`kme_jax.synthesis.lasso.l1_ball_least_squares`; :func:`noise_tolerance` if None.
      max_solves: see :func:`kme_jax.synthesis.lasso.l1_ball_least_squares`.

    Returns:
      The sample, and how the optimisation went.

    Raises:
      ValueError: C < 1 (an embedding of a probability measure would be out of reach); there are no points.
    """
    check_radius(radius)
    problem = _Problem.of(embedding, points)
    if tolerance is None:
        tolerance = noise_tolerance(embedding)
    weights, report = l1_ball_least_squares(
        problem.features, problem.noisy, radius=radius, tolerance=tolerance, max_solves=max_solves
    )
    return WeightedSample(problem.points, weights, embedding.mechanism), report


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Weights that :func:`adaptive_weights` could have chosen.

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
    """What :func:`adaptive_weights` tried.

    Attributes:
      chosen: the candidate of least risk, whose share is the largest.
      candidates: all of them, in the order of trial.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]


def adaptive_weights(
    embedding: NoisyEmbedding,
    points: np.ndarray | None = None,
    *,
    signed: bool = True,
    progress: Progress | None = None,
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
      embedding: μ̃, with Gaussian noise. (For Laplace noise the estimate is only approximate.)
      points: z, [M, d]; those that the map was made from, if None.
      signed: whether weights may be signed where these have the least risk. If not they are a probability vector.
      progress: called with (penalties tried, penalties at most).

    Returns:
      The sample, and what was tried. Its weights are a probability vector unless signed ones have the least risk.
    """
    return adaptive_weights_batch([embedding], points, signed=signed, progress=progress)[0]


@in_float64
def adaptive_weights_batch(
    embeddings: Sequence[NoisyEmbedding],
    points: np.ndarray | None = None,
    *,
    signed: bool = True,
    progress: Progress | None = None,
) -> list[tuple[WeightedSample, RiskReport]]:
    """:func:`adaptive_weights` for several noisy embeddings of one map, such as several ε and draws of the noise. All
    together take much less time than one after another. The penalties are the same for all.

    Args:
      embeddings: μ̃ of one map each.
      points: see :func:`adaptive_weights`.
      signed: see :func:`adaptive_weights`.
      progress: called with (penalties tried, penalties at most).

    Returns:
      What :func:`adaptive_weights` returns, for each.

    Raises:
      ValueError: no embedding, no points, or several maps.
    """
    if not embeddings:
        raise ValueError("embeddings: expected one or more, got none")
    feature_map = embeddings[0].feature_map
    if any(embedding.feature_map is not feature_map for embedding in embeddings):
        raise ValueError("embeddings: expected one feature map, which all share, got several")
    if points is None and isinstance(feature_map, SubspaceMap):
        points, expand = feature_map.points, feature_map.expand
        targets = np.stack([embedding.coordinates for embedding in embeddings])
        features = feature_map.features_of_points(*padded_sizes(len(points), targets.shape[1]))
    else:
        problems = [_Problem.of(embedding, points) for embedding in embeddings]
        points, expand = problems[0].points, problems[0].expand
        targets = np.stack([problem.noisy for problem in problems])
        sizes = padded_sizes(len(points), targets.shape[1])
        features = np.pad(problems[0].features, [(0, sizes[0] - len(points)), (0, 0)], mode="edge")
        features = jnp.asarray(np.pad(features, [(0, 0), (0, sizes[1] - targets.shape[1])]))
    variances = np.asarray([embedding.mechanism.variance for embedding in embeddings])
    num_points, num_features = len(points), targets.shape[1]
    uniform = np.full(num_points, 1 / num_points)
    problem = EntropicBatch(features, targets, num_points)
    mean, size = map(np.asarray, _moments(features, np.int32(num_points)))
    mean, size = mean[:num_features], float(size)

    noises, away = num_features * variances, np.sum(np.square(targets - mean), axis=1)
    candidates_of: list[list[Candidate]] = [[Candidate("uniform", np.inf, 0.0, float(d))] for d in away - noises]
    weights = [[uniform] for _ in embeddings]
    penalty = size - float(mean @ mean)  # tr C of uniform weights: at most one degree of freedom is left
    fit: BatchFit | None = None
    rises, previous = np.zeros(len(embeddings), int), np.full(len(embeddings), np.inf)
    # Points that are all the same have one embedding, whatever their weights.
    active = np.full(len(embeddings), penalty > 1e-12 * size)
    for tried in range(_MAX_PENALTIES):
        if not active.any():
            break
        fit = problem.solve(penalty, _RELATIVE_GAP * noises, start=fit, active=active)
        active = active & fit.converged  # elsewhere the divergence is not that of a solution
        degrees = problem.degrees_of_freedom(fit, active)
        risks = fit.distances - noises + 2 * variances * degrees
        solutions = problem.weights(fit)
        for i in np.flatnonzero(active):
            candidate = Candidate("probability", penalty, float(degrees[i]), float(risks[i]), float(fit.gaps[i]))
            candidates_of[i].append(candidate)
            weights[i].append(solutions[i])
        rises = np.where(risks > previous, rises + 1, 0)
        previous = risks
        active = active & (rises < _RISES_TO_STOP) & (penalty >= _SMALLEST_PENALTY * variances)
        penalty /= _PENALTY_RATIO
        if progress:
            progress(tried + 1, _MAX_PENALTIES)
    if progress:
        progress(_MAX_PENALTIES, _MAX_PENALTIES)
    return [
        _aggregate(
            WeightedSample(points, uniform, embedding.mechanism),
            noisy,
            candidates,
            np.stack(tried),
            mean,
            signed,
            expand,
        )
        for embedding, noisy, candidates, tried in zip(embeddings, targets, candidates_of, weights, strict=True)
    ]


@reproducible_jit
def _moments(features: Array, num_points: Array) -> tuple[Array, Array]:
    """Σ a / M and Σ ‖a‖² / M of the first M points' features."""
    counted = jnp.arange(len(features), dtype=jnp.int32) < num_points
    share = counted.astype(features.dtype) / num_points.astype(features.dtype)
    return share @ features, share @ jnp.sum(jnp.square(features), axis=1)


def _aggregate(
    start: WeightedSample,
    noisy: np.ndarray,
    candidates: list[Candidate],
    weights: np.ndarray,
    mean: np.ndarray,
    signed: bool,
    expand: Callable[[np.ndarray], np.ndarray],
) -> tuple[WeightedSample, RiskReport]:
    """The mean of the candidates, of which the first has uniform weights, or signed weights if these are better.

    Args:
      start: the points, with uniform weights.
      noisy: the coordinates of μ̃, [F].
      candidates: of probability weights.
      weights: theirs, [candidates, M].
      mean: the coordinates of the uniform weights, [F].
      signed: see :func:`adaptive_weights`.
      expand: from coordinates to signed weights.
    """
    beta, variance = noisy, start.mechanism.variance
    noise, dof = len(beta) * variance, max(len(beta) - 2, 0)
    if signed:
        away = float(np.sum(np.square(beta - mean)))
        share = max(0.0, 1 - dof * variance / away) if away else 0.0
        risk = noise - (dof * variance) ** 2 / away if share else away - noise
        degrees = (risk + noise - (1 - share) ** 2 * away) / (2 * variance)
        candidates = [*candidates, Candidate("signed", share, degrees, risk)]
        shrunk = (1 - share) * weights[0] + share * expand(beta)
        weights = np.concatenate([weights, shrunk[None, :]])
    risks = np.asarray([candidate.risk for candidate in candidates])
    shares = np.exp((risks.min() - risks) / (_TEMPERATURE * variance))
    best = int(np.argmin(risks))
    signed_is_best = candidates[best].kind == "signed"
    shares[[(candidate.kind == "signed") != signed_is_best for candidate in candidates]] = 0
    shares /= shares.sum()
    candidates = [dataclasses.replace(c, share=float(share)) for c, share in zip(candidates, shares, strict=True)]
    sample = dataclasses.replace(start, weights=shares @ weights)
    return sample, RiskReport(candidates[best], tuple(candidates))
