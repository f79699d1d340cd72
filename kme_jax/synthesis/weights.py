"""Step 3 for a subspace map: weights on the public points. Post-processing of μ̃, so free of privacy cost."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.numerics import float64, in_float64
from kme_jax.privacy.mechanisms import PrivateEmbedding
from kme_jax.synthesis.sample import WeightedSample

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class SolverReport:
    """How an optimisation went.

    Attributes:
      objective: its value at every check, [checks].
      gap: upper bound of objective minus optimum at the end.
      converged: whether the gap reached the tolerance.
      num_iterations: iterations made.
    """

    objective: np.ndarray
    gap: float
    converged: bool
    num_iterations: int


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


def _project(weights: Array, radius: Array) -> Array:
    """Euclidean projection onto the L1 ball."""
    with jax.numpy_dtype_promotion("standard"):  # optax divides by an integer index
        return optax.projections.projection_l1_ball(weights, radius)


def _objective(features, target, weights):
    residual = target - weights @ features
    return 0.5 * residual @ residual


def _gap(features, target, weights, radius):
    """Frank–Wolfe gap: max over the ball of ⟨∇, w − u⟩ ≥ objective(w) − optimum, by convexity."""
    gradient = features @ (weights @ features - target)
    return weights @ gradient + radius * jnp.max(jnp.abs(gradient))


@functools.partial(jax.jit, static_argnames="num_steps")
def _accelerated_steps(features, target, state, radius, lipschitz, *, num_steps: int):
    """Accelerated projected gradient (FISTA) with gradient restart (O'Donoghue & Candès 2015)."""

    def step(_, carry):
        weights, ahead, momentum = carry
        gradient = features @ (ahead @ features - target)
        new = _project(ahead - gradient / lipschitz, radius)
        restart = jnp.vdot(ahead - new, new - weights) > 0
        next_momentum = jnp.where(restart, 1, (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2)
        ahead = jnp.where(restart, new, new + (momentum - 1) / next_momentum * (new - weights))
        return new, ahead, next_momentum

    state = jax.lax.fori_loop(0, num_steps, step, state)
    return state, _objective(features, target, state[0]), _gap(features, target, state[0], radius)


@jax.jit
def _squared_norm(features):
    """‖features‖₂² by power iteration from a fixed vector, enlarged by 1 %. (The gap certifies the result anyway.)"""

    def step(_, v):
        v = features @ (v @ features)
        return v / jnp.linalg.norm(v)

    v = jax.lax.fori_loop(0, 50, step, 1.5 + jnp.cos(jnp.arange(features.shape[0], dtype=features.dtype)))
    return 1.01 * jnp.linalg.norm(v @ features) ** 2 / (v @ v)


@in_float64
def l1_ball_weights(
    features: np.ndarray,
    target: np.ndarray,
    *,
    radius: float = 1.0,
    start: np.ndarray | None = None,
    tolerance: float = 1e-9,
    max_iterations: int = 20_000,
) -> tuple[np.ndarray, SolverReport]:
    """argmin ½‖y − Σ_m w_m ψ_m‖² over Σ_m |w_m| ≤ C, for any feature vectors.

    Args:
      features: ψ_m, one row per weight, [M, F].
      target: y, [F].
      radius: C > 0.
      start: weights to start from, [M]; zeros if None.
      tolerance: stop when the Frank–Wolfe gap, an upper bound of objective minus optimum, is at most this.
      max_iterations: stop after this many in any case.

    Returns:
      w [M] in float64, and how it went.
    """
    features, target = jnp.asarray(features, jnp.float64), jnp.asarray(target, jnp.float64)
    lipschitz = _squared_norm(features)
    weights = jnp.zeros(len(features)) if start is None else _project(jnp.asarray(start, jnp.float64), radius)
    state, trace, done, gap = (weights, weights, jnp.ones(())), [], 0, np.inf
    while done < max_iterations and gap > tolerance:
        num_steps = min(100, max_iterations - done)
        state, objective, gap = _accelerated_steps(features, target, state, radius, lipschitz, num_steps=num_steps)
        done += num_steps
        trace.append(float(objective))
        gap = float(gap)
    return np.asarray(state[0]), SolverReport(np.asarray(trace), gap, gap <= tolerance, done)


def l1_ball(
    embedding: PrivateEmbedding,
    *,
    radius: float = 1.0,
    tolerance: float = 1e-9,
    max_iterations: int = 20_000,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m k(z_m, ·)‖² over Σ_m |w_m| ≤ C ([B] theorem 11).

    With the L1 norm bounded, applying any continuous function to the points gives a consistent estimate of the
    embedding of the transformed variable ([B] theorem 11); the closed form does not promise that.

    Args:
      embedding: μ̃ of a SubspaceMap.
      radius: C ≥ 1.
      tolerance: see :func:`l1_ball_weights`.
      max_iterations: see :func:`l1_ball_weights`.

    Returns:
      The sample, and how the optimisation went.

    Raises:
      ValueError: C < 1 (an embedding of a probability measure would be out of reach); another kind of map.
    """
    check_radius(radius)
    subspace = _subspace_map(embedding)
    with float64():
        features = subspace(jnp.asarray(subspace.points))
    weights, report = l1_ball_weights(
        features, embedding.coordinates, radius=radius, tolerance=tolerance, max_iterations=max_iterations
    )
    return WeightedSample(subspace.points, weights, embedding.mechanism), report
