"""Step 3 for Fourier features: reduced sets, where locations are chosen too ([B] algorithm 2, line 5).

Everything here sees a noisy embedding, public points and keys; nothing else. :func:`greedy_preimages` with
:func:`lasso_weights` is the published procedure, :func:`joint` the modern one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.numerics import Progress, check_columns, check_points, precision_of
from kme_jax.privacy.mechanisms import PrivateEmbedding
from kme_jax.sincos import sincos_turns
from kme_jax.synthesis.lasso import SolverReport, l1_ball_weights, lasso_path
from kme_jax.synthesis.sample import WeightedSample
from kme_jax.synthesis.weights import check_radius, noise_tolerance

Array = jax.Array


def _fourier_map(embedding: PrivateEmbedding) -> FourierMap:
    if not isinstance(embedding.feature_map, FourierMap):
        raise ValueError(f"needs the embedding of a FourierMap, got {type(embedding.feature_map).__name__}")
    return embedding.feature_map


# --- the published procedure ---------------------------------------------------------------------------------------

_POINTS_PER_CALL = 50


@functools.partial(jax.jit, static_argnames="num_steps")
def _greedy_block(turns, scale, residuals, starts, learning_rate, *, num_steps: int):
    """One greedy pre-image after another: residuals r [e, 2, J/2] (cosines, sines), starts [b, d].

    Returns:
      residuals after b points, and the points, [b, e, d].
    """
    num_embeddings, dim = residuals.shape[0], starts.shape[1]
    optimiser = optax.adam(learning_rate)

    def features(points):
        sin, cos = sincos_turns(jnp.matmul(points, turns.T, precision=jax.lax.Precision.HIGHEST))
        return scale * jnp.stack([cos, sin], axis=1)

    def correlations(points, residuals):
        return jnp.sum(residuals * features(points), axis=(1, 2))

    squared_norm = scale**2 * turns.shape[0]  # of every feature vector

    def add_point(residuals, start):
        points = jnp.broadcast_to(start, (num_embeddings, dim))

        def objective(points):  # the embeddings do not interact, so one sum has all their gradients
            return -jnp.sum(jnp.square(correlations(points, residuals))) / squared_norm

        def step(_, state):
            points, optimiser_state = state
            gradient = jax.grad(objective)(points)
            with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
                updates, optimiser_state = optimiser.update(gradient, optimiser_state)
            return optax.apply_updates(points, updates), optimiser_state

        points, _ = jax.lax.fori_loop(0, num_steps, step, (points, optimiser.init(points)))
        beta = correlations(points, residuals) / squared_norm
        return residuals - beta[:, None, None] * features(points), points

    return jax.lax.scan(add_point, residuals, starts)


def greedy_preimages(
    embeddings: Sequence[PrivateEmbedding],
    starts: np.ndarray,
    *,
    num_steps: int = 100,
    learning_rate: float | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Iterated approximate pre-images, as in the published code of [B] (figure 2, dashed).

    Point m starts at ``starts[m]``, takes Adam steps on −⟨r, ψ(z)⟩²/‖ψ(z)‖², and the residual r, μ̃ at first, loses its
    component along ψ(z). The points of a prefix are the prefix of the points.

    Args:
      embeddings: μ̃ of one FourierMap, several at once (one per ε, say); they do not influence each other.
      starts: [M, d], public.
      num_steps: Adam steps per point (published: 100).
      learning_rate: of Adam, in the unit of the columns. By default a length over which the kernel varies (published:
        100, which is about that for the published kernel).
      progress: called with (points done, M).

    Returns:
      Points, [len(embeddings), M, d].

    Raises:
      ValueError: another kind of map, different maps, or shapes that do not fit.
    """
    feature_map = _fourier_map(embeddings[0])
    if any(embedding.feature_map is not feature_map for embedding in embeddings):
        raise ValueError("the embeddings must share one FourierMap")
    starts = check_points(starts, "starts")
    check_columns(starts, feature_map.dim, "starts")
    if learning_rate is None:
        learning_rate = feature_map.length_scale
    dtype = feature_map.turns.dtype
    with precision_of(feature_map.turns):
        residuals = jnp.asarray(np.stack([e.coordinates for e in embeddings]).astype(dtype))
        residuals = residuals.reshape(len(embeddings), 2, -1)
        points = []
        scale = np.asarray(feature_map.scale, dtype)
        for start in range(0, len(starts), _POINTS_PER_CALL):
            block = starts[start : start + _POINTS_PER_CALL].astype(dtype)
            residuals, found = _greedy_block(
                feature_map.turns, scale, residuals, block, np.asarray(learning_rate, dtype), num_steps=num_steps
            )
            points.append(np.asarray(found))
            if progress:
                progress(start + len(block), len(starts))
    return np.concatenate(points).transpose(1, 0, 2).astype(np.float64)


def lasso_weights(
    embedding: PrivateEmbedding,
    points: np.ndarray,
    sizes: Sequence[int] | None = None,
    *,
    tolerance: float = 1e-5,
) -> Iterator[tuple[WeightedSample, SolverReport]]:
    """Weights of the published code of [B]: the Lasso on μ̃ with λ = 100 / 2N, N the number of private rows.

    Args:
      embedding: μ̃ of a FourierMap.
      points: z, [M, d].
      sizes: numbers of points, increasing, each at most M; a solve starts at the weights of the last. M alone if None.
      tolerance: see :func:`kme_jax.synthesis.lasso.lasso_path`.

    Yields:
      For each size m the first m points with their weights, and how the optimisation went.
    """
    feature_map = _fourier_map(embedding)
    points = check_points(points, "points")
    check_columns(points, feature_map.dim, "points")
    with precision_of(feature_map.turns):
        features = np.asarray(feature_map(points.astype(feature_map.turns.dtype)))
    penalty = 100 / (2 * embedding.mechanism.num_rows)
    sizes = [len(points)] if sizes is None else sizes
    for weights, report in lasso_path(features, embedding.coordinates, penalty, sizes, tolerance=tolerance):
        yield WeightedSample(points[: len(weights)], weights, embedding.mechanism), report


# --- the modern procedure ------------------------------------------------------------------------------------------

OPTIMISERS = {
    "adam": optax.adam,
    "nadam": optax.nadam,
    "adabelief": optax.adabelief,
    "amsgrad": optax.amsgrad,
    "rmsprop": optax.rmsprop,
}


@functools.partial(jax.jit, static_argnames=("optimiser", "num_steps"))
def _joint_steps(feature_map, target, points, weights, radius, length, rate, *, optimiser: str, num_steps: int):
    """Projected optimiser steps on ½‖μ̃ − Σ w_m ψ(z_m)‖² over locations and weights, with a cosine schedule.

    Locations move in units of ``length``, weights in units of radius / M, so that one learning rate fits both.
    """
    weight_unit = radius / weights.shape[0]
    schedule = optax.cosine_decay_schedule(rate, num_steps)
    # A step per coordinate for locations. One step for all weights together: with a step of its own, the weight of a
    # point that explains nothing would grow as fast as any other.
    method = optax.partition(
        {
            "points": OPTIMISERS[optimiser](schedule),
            "weights": optax.chain(
                optax.trace(0.9, nesterov=True),
                optax.normalize_by_update_norm(),
                optax.scale_by_learning_rate(lambda count: schedule(count) * weights.shape[0] ** 0.5),
            ),
        },
        {"points": "points", "weights": "weights"},
    )

    def objective(parameters):
        residual = target - (weight_unit * parameters["weights"]) @ feature_map(length * parameters["points"])
        return 0.5 * residual @ residual

    def step(carry, _):
        parameters, state = carry
        value, gradient = jax.value_and_grad(objective)(parameters)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, state = method.update(gradient, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
            projected = optax.projections.projection_l1_ball(parameters["weights"], radius / weight_unit)
        return (parameters | {"weights": projected}, state), value

    parameters = {"points": points / length, "weights": weights / weight_unit}
    (parameters, _), trace = jax.lax.scan(step, (parameters, method.init(parameters)), length=num_steps)
    return length * parameters["points"], weight_unit * parameters["weights"], trace


@jax.jit
def _candidate_scores(feature_map, target, points, weights, candidates):
    """⟨r, ψ(c)⟩² for the residual r of the current points."""
    residual = target - weights @ feature_map(points)
    return jnp.square(feature_map(candidates) @ residual)


def joint(
    key: Array,
    embedding: PrivateEmbedding,
    candidates: np.ndarray,
    num_points: int,
    *,
    radius: float = 1.0,
    optimiser: str = "adam",
    learning_rate: float = 0.1,
    num_steps: int = 400,
    num_rounds: int = 3,
    progress: Progress | None = None,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m ψ(z_m)‖² over locations z and weights with Σ|w_m| ≤ C ([B] equation 5), by optax.

    Starts blind to the database. In each round points of negligible weight (all of them at first) are re-seeded, at
    candidates drawn in proportion to ⟨r, ψ(c)⟩² for the current residual r, and a run of the optimiser follows; at the
    end the weights are solved for (a convex problem, whose gap the report gives). Locations are a local optimum.

    Args:
      key: a JAX random key for re-seeding, independent of the noise.
      embedding: μ̃ of a FourierMap.
      candidates: public points, [C, d], C ≥ M: starts, and places to re-seed.
      num_points: M ≥ 1.
      radius: C ≥ 1.
      optimiser: one of OPTIMISERS.
      learning_rate: largest step, in units of the kernel's length (locations) and of C/M (weights).
      num_steps: optimiser steps per round.
      num_rounds: rounds.
      progress: called with (rounds done, rounds).

    Returns:
      The sample, and a report: the objective at every step, the gap of the final weights given the locations, and
      whether the last tenth of the steps improved the objective by less than 1e-3 of it.

    Raises:
      ValueError: M < 1, fewer candidates than M, radius < 1, an unknown optimiser, another kind of map.
    """
    feature_map = _fourier_map(embedding)
    candidates = check_points(candidates, "candidates")
    check_columns(candidates, feature_map.dim, "candidates")
    if num_points < 1:
        raise ValueError(f"num_points must be at least 1, got {num_points}")
    if len(candidates) < num_points:
        raise ValueError(f"candidates: {len(candidates)} points are fewer than num_points={num_points}")
    check_radius(radius)
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser must be one of {', '.join(OPTIMISERS)}, got {optimiser}")
    dtype = feature_map.turns.dtype
    with precision_of(feature_map.turns):
        candidates = jnp.asarray(candidates, dtype)
        target = jnp.asarray(embedding.coordinates, dtype)
        points = candidates[:num_points]
        weights = jnp.full(num_points, radius / num_points, dtype)
        length = jnp.asarray(feature_map.length_scale, dtype)
        traces = []
        for round_ in range(num_rounds):
            dead = jnp.abs(weights) < 0.05 * radius / num_points if round_ else jnp.ones(num_points, bool)
            weights = jnp.where(dead, 0, weights)
            scores = _candidate_scores(feature_map, target, points, weights, candidates)
            seeds = jax.random.choice(
                jax.random.fold_in(key, round_), len(candidates), (num_points,), replace=False, p=scores / scores.sum()
            )
            points = jnp.where(dead[:, None], candidates[seeds], points)
            points, weights, trace = _joint_steps(
                feature_map,
                target,
                points,
                weights,
                jnp.asarray(radius, dtype),
                length,
                jnp.asarray(learning_rate, dtype),
                optimiser=optimiser,
                num_steps=num_steps,
            )
            traces.append(np.asarray(trace))
            if progress:
                progress(round_ + 1, num_rounds)
        features = np.asarray(feature_map(points))
    trace = np.concatenate(traces).astype(np.float64)
    weights, report = l1_ball_weights(
        features,
        embedding.coordinates,
        radius=radius,
        start=np.asarray(weights),
        tolerance=noise_tolerance(embedding),
    )
    late = trace[-max(2, num_steps // 10) :]
    converged = bool(late[0] - late[-1] <= 1e-3 * late[-1])
    report = SolverReport(np.append(trace, report.objective[-1]), report.gap, converged, len(trace))
    return WeightedSample(np.asarray(points, np.float64), weights, embedding.mechanism), report
