"""A synthetic database of any size for a denoised embedding: how many points is a question of size, not of privacy."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kme_jax._numerics.precision import Progress, in_float64, reproducible_jit
from kme_jax.synthesis.entropic import EntropicLeastSquares, project_features
from kme_jax.synthesis.lasso import SolverReport
from kme_jax.synthesis.posterior import PosteriorMean
from kme_jax.synthesis.sample import WeightedSample

Array = jax.Array

# Locations are optimised up to this many points. With more there are enough for weights alone (and so many locations
# would fit the features' deviations from the kernel).
_MAX_MOVED = 1000
_MAX_WEIGHTED = 3000  # the weights' problem has a matrix of this size squared
_LEARNING_RATE = 0.05  # in lengths of the kernel, and in logarithms of weights
_STEPS_PER_CALL = 50
_PENALTY = 0.1  # of the Kullback–Leibler penalty, in σ²: far below what denoising was worth
_GAP = 1e-3  # of σ²


def _optimiser(num_steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, num_steps))


@functools.partial(reproducible_jit, static_argnames=("num_steps", "schedule_steps", "uniform"))
def _move(waves, target, parameters, state, box, *, num_steps: int, schedule_steps: int, uniform: bool):
    """Adam on ½‖ȳ − Σ w ψ(z)‖² over locations (in the unit of ``waves``, within a box [2, d]) and logits of the
    weights; fixed logits if ``uniform``."""
    method = _optimiser(schedule_steps)

    def objective(parameters):
        logits = jax.lax.stop_gradient(parameters["logits"]) if uniform else parameters["logits"]
        residual = target - waves.mixture(parameters["points"], jax.nn.softmax(logits))
        return 0.5 * residual @ residual

    def step(carry, _):
        parameters, state = carry
        value, gradient = jax.value_and_grad(objective)(parameters)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, state = method.update(gradient, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        points = jnp.clip(parameters["points"], box[0][None, :], box[1][None, :])
        return (parameters | {"points": points}, state), value

    return jax.lax.scan(step, (parameters, state), length=num_steps)


@in_float64
def _weigh(mean: PosteriorMean, points: np.ndarray) -> tuple[np.ndarray, SolverReport]:
    """Probability weights of the least ½‖ȳ − Σ w ψ(z)‖² + τ KL(w ‖ uniform) for given points."""
    features = np.asarray(mean.feature_map(jnp.asarray(points)), np.float64)
    variance = mean.mechanism.variance
    problem = EntropicLeastSquares(*project_features(features, mean.coordinates))
    fit = problem.solve_from_afar(_PENALTY * variance, _GAP * variance)
    return fit.weights, fit.report


def represent(
    mean: PosteriorMean,
    num_points: int = 1000,
    *,
    weights: Literal["probability", "uniform"] = "probability",
    box: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
    num_steps: int = 300,
    progress: Progress | None = None,
) -> tuple[WeightedSample, SolverReport]:
    """Points whose embedding is close to a denoised one ([B] section 3.3 for uniform weights). Post-processing.

    Points start as draws of the posterior mean's distribution. Up to 1000 of them are moved (Adam on locations and
    logits of the weights together); then the weights are solved for, a convex problem, for up to 3000 points. The
    database is unweighted for ``weights="uniform"``, or with more than 3000 points.

    Args:
      mean: of :func:`kme_jax.synthesis.posterior_mean`.
      num_points: M.
      weights: "probability", or "uniform" for an unweighted database.
      box: lower and upper bounds of the points, [d] each, which may be infinite; none if None.
      seed: of the starting points.
      num_steps: of Adam.
      progress: called with (steps done, steps in all).

    Returns:
      The sample, a probability measure, and a report: the objective ½‖ȳ − Σ w ψ(z)‖² at every step of Adam and that of
      the weights' problem, whose gap it gives.

    Raises:
      ValueError: num_points or num_steps below 1; other weights.
    """
    if weights not in ("probability", "uniform"):
        raise ValueError(f'weights must be "probability" or "uniform", got "{weights}"')
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    lower, upper = (-np.inf, np.inf) if box is None else box
    points = np.clip(mean.sample(num_points, seed), lower, upper)
    chosen = np.full(num_points, 1 / num_points)
    objective, gap, converged = np.empty(0), 0.0, True
    if num_points <= _MAX_MOVED:
        # In float32, whatever the map's own precision: locations in lengths from their centre need no more.
        centre, length = points.mean(axis=0), mean.feature_map.length_scale
        waves, target = mean.feature_map.waves(centre, length), jnp.asarray(mean.coordinates, jnp.float32)
        parameters = {
            "points": jnp.asarray((points - centre) / length, jnp.float32),
            "logits": jnp.zeros(num_points, jnp.float32),
        }
        limits = np.broadcast_arrays((lower - centre) / length, (upper - centre) / length)
        limits = jnp.asarray(np.stack(limits), jnp.float32)
        state, traces = _optimiser(num_steps).init(parameters), []
        for start in range(0, num_steps, _STEPS_PER_CALL):
            now = min(_STEPS_PER_CALL, num_steps - start)
            uniform = weights == "uniform"
            (parameters, state), trace = _move(
                waves, target, parameters, state, limits, num_steps=now, schedule_steps=num_steps, uniform=uniform
            )
            traces.append(np.asarray(trace, np.float64))
            if progress:
                progress(start + now, num_steps)
        points = np.clip(centre + length * np.asarray(parameters["points"], np.float64), lower, upper)
        chosen = np.asarray(jax.nn.softmax(parameters["logits"]), np.float64)
        chosen /= chosen.sum()
        objective = np.concatenate(traces)
    if weights == "probability" and num_points <= _MAX_WEIGHTED:
        chosen, report = _weigh(mean, points)
        objective = np.append(objective, report.objective[-1])
        gap, converged = report.gap, report.converged
    return WeightedSample(points, chosen, mean.mechanism), SolverReport(objective, gap, converged, len(objective))
