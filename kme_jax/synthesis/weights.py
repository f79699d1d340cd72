"""Step 3 with public points: their weights. This is post-processing of μ̃, which spends no budget.

A ``SubspaceMap`` has public points, and its features are coordinates in an orthonormal basis of their span. For any
other map the caller gives the points. The same problems are then solved by least squares in the span of their features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Real

from kme_jax._numerics import html
from kme_jax._numerics.precision import Progress, in_float64, reproducible_jit
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.facts import public_features
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding, check_noisy
from kme_jax.synthesis.entropic import BatchFit, EntropicBatch, padded_sizes, project_features
from kme_jax.synthesis.lasso import SolverReport, l1_ball_least_squares
from kme_jax.synthesis.sample import WeightedSample

Array = jax.Array

# The penalties of adaptive_weights() are a geometric sequence.
_PENALTY_RATIO = 2.0
_MAX_PENALTIES = 60
_RISES_TO_STOP = 3  # the sequence ends when the risk has risen so often in a row
_SMALLEST_PENALTY = 1e-3  # in σ²
_TEMPERATURE = 4.0  # of the aggregate, in σ²
_RELATIVE_GAP = 1e-10  # in F σ²: the distance of the fit from the best one is then at most 1.5e-5 of the noise's norm


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    """Weights on points, for noisy coordinates in an orthonormal basis of the span of the points' features.

    Attributes:
      points: z, [M, d].
      features: the coordinates of ψ(z_m), float64 [M, F].
      noisy: the coordinates of μ̃, float64 [F]. Their noise is independent, with the variance of the noise of μ̃.
    """

    points: Float[np.ndarray, "M d"]
    features: Float64[np.ndarray, "M F"]
    noisy: Float64[np.ndarray, "F"]

    @classmethod
    def of(cls, embedding: NoisyEmbedding, points: Real[AnyArray, "M d"] | None) -> _Problem:
        """The problem for the points that the map was made from, or for other points.

        The component of μ̃ outside of the span is the same for all weights, and is left out.

        Args:
          embedding: μ̃.
          points: z, [M, d]; those that the map was made from, if None.

        Raises:
          ValueError: if there are no points, or they have another number of columns than rows of the map, or the map
            has no features for one of them.
        """
        check_noisy(embedding)
        feature_map = embedding.feature_map
        are_points_of_map = points is None
        if are_points_of_map:
            points = feature_map.public_points
        if points is None:
            raise ValueError(f"points: a {type(feature_map).__name__} has no points: give the points to be weighted")
        points, features = public_features(feature_map, points)
        if are_points_of_map and isinstance(feature_map, SubspaceMap):
            return cls(points, features, embedding.coordinates)  # the basis of the map is orthonormal
        return cls(points, *project_features(features, np.asarray(embedding.coordinates, np.float64)))

    def expand(self, coordinates: Float64[np.ndarray, "F"]) -> Float64[np.ndarray, "M"]:
        """The weights of least norm whose coordinates are closest to these coordinates [F], [M]."""
        return np.linalg.lstsq(self.features.T, coordinates, rcond=1e-12)[0]


def closed_form_weights(embedding: NoisyEmbedding, points: Real[AnyArray, "M d"] | None = None) -> WeightedSample:
    """w = Bᵀβ: the weights whose embedding is equal to μ̃ ([B] algorithm 1, line 8). Dropped points have weight 0.

    The weights are signed and grow with ‖B‖ times the noise; their L1 norm is not bounded. See :func:`l1_ball_weights`.

    Args:
      embedding: μ̃.
      points: z, [M, d]; those that the map was made from, if None. If points are given, or the map is not a
        ``SubspaceMap``, the result is the weights of least norm whose embedding is closest to μ̃.

    Raises:
      TypeError: if the embedding is not a ``NoisyEmbedding``.
      ValueError: if there are no points, or they have another number of columns than rows of the map, or the map has no
        features for one of them (``FeatureMap.covers``).

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, closed_form_weights, mean_embedding, perturb
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> embedding = mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> sample = closed_form_weights(perturb(jax.random.key(0), embedding, PrivacyBudget(1.0, 1e-5)))
      >>> sample.weights.shape, bool(sample.weights.min() < 0)  # no probabilities
      ((20,), True)
    """
    check_noisy(embedding)
    feature_map = embedding.feature_map
    if points is None and isinstance(feature_map, SubspaceMap):
        return WeightedSample(feature_map.points, feature_map.expand(embedding.coordinates), embedding.mechanism)
    problem = _Problem.of(embedding, points)
    return WeightedSample(problem.points, problem.expand(problem.noisy), embedding.mechanism)


def check_radius(radius: float) -> None:
    """Raises ValueError unless 1 ≤ C < ∞. A smaller ball does not contain the embeddings of probability measures."""
    if not 1 <= radius < np.inf:
        raise ValueError(f"radius must be at least 1 ([B] theorem 11) and finite, got {radius}")


def noise_tolerance(embedding: NoisyEmbedding) -> float:
    """1 % of ½ E‖noise‖². More exact weights would fit the noise."""
    return 0.005 * len(embedding.coordinates) * embedding.mechanism.variance


def l1_ball_weights(
    embedding: NoisyEmbedding,
    points: Real[AnyArray, "M d"] | None = None,
    *,
    radius: float = 1.0,
    tolerance: float | None = None,
    max_solves: int = 60,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m k(z_m, ·)‖² over Σ_m |w_m| ≤ C ([B] theorem 11).

    With the L1 norm bounded, applying any continuous function to the points gives a consistent estimate of the
    embedding of the transformed variable ([B] theorem 11). This is not proved for closed-form weights.

    Args:
      embedding: μ̃.
      points: z, [M, d]; those that the map was made from, if None.
      radius: C ≥ 1.
      tolerance: the tolerance of the duality gap, see :func:`kme_jax.synthesis.lasso.l1_ball_least_squares`;
        :func:`noise_tolerance` if None.
      max_solves: see :func:`kme_jax.synthesis.lasso.l1_ball_least_squares`.

    Returns:
      The sample, and the report of the solver.

    Raises:
      TypeError: as for :func:`closed_form_weights`.
      ValueError: if C < 1 (the ball would not contain the embeddings of probability measures), or as
        :func:`closed_form_weights`.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, l1_ball_weights, mean_embedding, perturb
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> embedding = mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> sample, report = l1_ball_weights(perturb(jax.random.key(0), embedding, PrivacyBudget(1.0, 1e-5)))
      >>> report.converged, bool(np.abs(sample.weights).sum() < 1 + 1e-6)
      (True, True)
    """
    check_radius(radius)
    problem = _Problem.of(embedding, points)
    if tolerance is None:
        tolerance = noise_tolerance(embedding)
    weights, report = l1_ball_least_squares(
        problem.features, problem.noisy, radius=radius, tolerance=tolerance, max_solves=max_solves
    )
    return WeightedSample(problem.points, weights, embedding.mechanism), report


@short_repr
@dataclasses.dataclass(frozen=True)
class Candidate:
    """Weights that :func:`adaptive_weights` compared.

    Attributes:
      kind: "uniform", "signed" or "probability".
      penalty: τ of the Kullback–Leibler penalty (probability), or the share of μ̃ (signed: 1 is the closed form).
      degrees_of_freedom: an estimate of Σ_f ∂fit_f / ∂β_f.
      risk: an unbiased estimate of E‖fit − α‖², with α the coordinates of μ̂. It may be negative.
      gap: the duality gap (probability), else 0.
      share: the share of these weights in the mean of all candidates.
    """

    kind: Literal["uniform", "signed", "probability"]
    penalty: float
    degrees_of_freedom: float
    risk: float
    gap: float = 0.0
    share: float = 0.0


@short_repr
@dataclasses.dataclass(frozen=True)
class RiskReport:
    """The candidates of :func:`adaptive_weights`, with their risks.

    Attributes:
      chosen: the candidate of least risk. Its share is the largest.
      candidates: all candidates, in the order of computation.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]

    def _repr_html_(self) -> str:
        best = self.chosen
        facts = [("chosen", f"{best.kind} weights, risk {html.number(best.risk)}, share {html.number(best.share)}")]
        facts += [("compared", f"{len(self.candidates)} candidates; those of least risk:")]
        names = ["kind", "penalty", "degrees of freedom", "risk", "share"]
        ordered = sorted(self.candidates, key=lambda candidate: candidate.risk)
        rows = [[c.kind, c.penalty, c.degrees_of_freedom, c.risk, c.share] for c in ordered[: html.MAX_ROWS]]
        return html.card("RiskReport", facts, html.first_rows(names, rows, len(ordered)))


def adaptive_weights(
    embedding: NoisyEmbedding,
    points: Real[AnyArray, "M d"] | None = None,
    *,
    signed: bool = True,
    progress: Progress | bool = False,
) -> tuple[WeightedSample, RiskReport]:
    """Weights with a small estimated risk, from probability vectors shrunk towards uniform weights, and signed weights.

    There are two families of candidates. The first is argmin ½‖μ̃ − Σ w_m k(z_m, ·)‖² + τ KL(w ‖ uniform) over
    probability vectors (Nikolov, Talwar & Zhang 2013). τ goes from values with nearly uniform w down to values at
    which w is nearly the projection of μ̃ onto mixtures of the points. The second is the closed form ([B] algorithm 1,
    line 8), shrunk towards the uniform embedding by James & Stein's factor (positive part; Efron & Morris 1973).

    Candidates are compared by Stein's unbiased risk estimate. For a fit v(β) that is weakly differentiable,
    β ~ N(α, σ² I_F),

        E‖v(β) − α‖² = E[‖v(β) − β‖² − F σ² + 2 σ² Σ_f ∂v_f/∂β_f]   (Stein 1981),

    where σ is public. So the comparison uses μ̃, the points and the mechanism alone: it is post-processing, and spends
    no budget. The error outside of the span of the basis is the same for all candidates (up to the tolerance of its
    drop rule), so the least risk is the least distance to μ̂. The noise of the estimate is that of ‖β − α‖², about
    σ² √(2F). Most of it is common to all candidates; the rest is about σ². If signed weights have the least risk, they
    are the result. Else the result is the mean of all probability vectors with weights ∝ exp(−risk / 4σ²) (Leung &
    Barron 2006 prove for least-squares fits that the mean costs little). If risks differ by far more than σ², the mean
    is nearly the candidate of least risk. If they do not, the mean is better than any single candidate.

    Consistency: with N → ∞ the noise vanishes. The families contain the projection (τ → 0) and the closed form, so the
    limit is that of [B] theorem 4.

    Args:
      embedding: μ̃, with Gaussian noise. (For Laplace noise the estimate is only approximate.)
      points: z, [M, d]; those that the map was made from, if None.
      signed: whether signed weights are allowed. If not, the weights are a probability vector.
      progress: True for a bar, or a function that is called with (penalties tried, most penalties possible).

    Returns:
      The sample, and the report of risks. The weights are a probability vector unless signed weights have the least
      risk.

    Raises:
      TypeError: as for :func:`closed_form_weights`.
      ValueError: as :func:`adaptive_weights_batch`.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, adaptive_weights, mean_embedding, perturb
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> embedding = mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> noisy = perturb(jax.random.key(0), embedding, PrivacyBudget(1.0, 1e-5))
      >>> sample, report = adaptive_weights(noisy, signed=False)
      >>> bool(sample.weights.min() >= 0), round(float(sample.weights.sum()), 3)
      (True, 1.0)
    """
    return adaptive_weights_batch([embedding], points, signed=signed, progress=progress)[0]


@in_float64
@shows_progress("weights")
def adaptive_weights_batch(
    embeddings: Sequence[NoisyEmbedding],
    points: Real[AnyArray, "M d"] | None = None,
    *,
    signed: bool = True,
    progress: Progress | bool = False,
) -> list[tuple[WeightedSample, RiskReport]]:
    """:func:`adaptive_weights` for a list of noisy embeddings of one map, such as several ε and draws of the noise.

    This takes much less time than one call for each. All embeddings have the same penalties.

    Args:
      embeddings: noisy embeddings μ̃ of the same map.
      points: see :func:`adaptive_weights`.
      signed: see :func:`adaptive_weights`.
      progress: True for a bar, or a function that is called with (penalties tried, most penalties possible).

    Returns:
      The result of :func:`adaptive_weights` for each embedding.

    Raises:
      TypeError: as for :func:`closed_form_weights`.
      ValueError: if there are no embeddings, or they have different maps, or there are no points, or the points have
        another number of columns than rows of the map, or the map has no features for one of them
        (``FeatureMap.covers``).
    """
    if not embeddings:
        raise ValueError("embeddings: expected one or more, got none")
    for embedding in embeddings:
        check_noisy(embedding)
    feature_map = embeddings[0].feature_map
    if any(embedding.feature_map is not feature_map for embedding in embeddings):
        raise ValueError(
            "embeddings: expected the same feature map for all of them, got different ones; call this for each"
        )
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

    noises, distances = num_features * variances, np.sum(np.square(targets - mean), axis=1)
    candidates_of: list[list[Candidate]] = [[Candidate("uniform", np.inf, 0.0, float(r))] for r in distances - noises]
    weights = [[uniform] for _ in embeddings]
    penalty = size - float(mean @ mean)  # tr C of uniform weights, with which the fit has at most one degree of freedom
    fit: BatchFit | None = None
    rises, previous = np.zeros(len(embeddings), int), np.full(len(embeddings), np.inf)
    # If all points are equal, all weights have the same embedding.
    active = np.full(len(embeddings), penalty > 1e-12 * size)
    for num_tried in range(_MAX_PENALTIES):
        if not active.any():
            break
        fit = problem.solve(penalty, _RELATIVE_GAP * noises, start=fit, active=active)
        active = active & fit.converged  # without convergence, the degrees of freedom are not those of a solution
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
        if callable(progress):
            progress(num_tried + 1, _MAX_PENALTIES)
    if callable(progress):
        progress(_MAX_PENALTIES, _MAX_PENALTIES)
    return [
        _aggregate(
            WeightedSample(points, uniform, embedding.mechanism),
            noisy,
            candidates,
            np.stack(candidate_weights),
            mean,
            signed,
            expand,
        )
        for embedding, noisy, candidates, candidate_weights in zip(
            embeddings, targets, candidates_of, weights, strict=True
        )
    ]


@reproducible_jit
def _moments(features: Array, num_points: Array | np.int32) -> tuple[Array, Array]:
    """Σ a / M and Σ ‖a‖² / M over the features a of the first M points."""
    counted = jnp.arange(len(features), dtype=jnp.int32) < num_points
    share = counted.astype(features.dtype) / num_points.astype(features.dtype)
    return share @ features, share @ jnp.sum(jnp.square(features), axis=1)


def _aggregate(
    start: WeightedSample,
    noisy: Float64[np.ndarray, "F"],
    candidates: list[Candidate],
    weights: Float64[np.ndarray, "candidates M"],
    mean: Float64[np.ndarray, "F"],
    signed: bool,
    expand: Callable[[Float64[np.ndarray, "F"]], Float64[np.ndarray, "M"]],
) -> tuple[WeightedSample, RiskReport]:
    """The mean of the candidates, or signed weights if these have less risk.

    Args:
      start: the points, with uniform weights.
      noisy: the coordinates of μ̃, [F].
      candidates: the candidates with probability weights. The first has uniform weights.
      weights: the weights of the candidates, [candidates, M].
      mean: the coordinates of the uniform weights, [F].
      signed: see :func:`adaptive_weights`.
      expand: a function from coordinates to signed weights.
    """
    beta, variance = noisy, cast(Mechanism, start.mechanism).variance
    noise, dof = len(beta) * variance, max(len(beta) - 2, 0)
    if signed:
        distance = float(np.sum(np.square(beta - mean)))
        share = max(0.0, 1 - dof * variance / distance) if distance else 0.0
        risk = noise - (dof * variance) ** 2 / distance if share else distance - noise
        degrees = (risk + noise - (1 - share) ** 2 * distance) / (2 * variance)
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
