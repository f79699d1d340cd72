"""Synthetic databases of any size for a denoised embedding. The number of points has no effect on privacy."""

from __future__ import annotations

import functools
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Float64

from kme_jax._numerics.precision import Progress, in_float64, reproducible_jit
from kme_jax._numerics.progress import shows_progress
from kme_jax.synthesis.entropic import EntropicLeastSquares, project_features
from kme_jax.synthesis.lasso import SolverReport
from kme_jax.synthesis.posterior import PosteriorMean
from kme_jax.synthesis.sample import WeightedSample

Array = jax.Array

# Locations are optimised for at most this many points. With more points, weights alone are enough, and the locations
# would fit the deviations of the features from the kernel.
_MAX_MOVED = 1000
_MAX_WEIGHTED = 3000  # the problem of the weights has a matrix of this size squared
_LEARNING_RATE = 0.05  # in lengths of the kernel for locations, and of logits for weights
_STEPS_PER_CALL = 50
_PENALTY = 0.1  # factor of the Kullback–Leibler penalty, in σ². It is far below what denoising has gained.
_GAP = 1e-3  # tolerance of the duality gap, in σ²


def _optimiser(num_steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, num_steps))


@functools.partial(reproducible_jit, static_argnames=("num_steps", "schedule_steps", "uniform"))
def _move(waves, target, parameters, state, box, *, num_steps: int, schedule_steps: int, uniform: bool):
    """``num_steps`` steps of Adam on ½‖ȳ − Σ w ψ(z)‖² over locations and logits of the weights.

    Locations are in the unit of ``waves`` and within a box [2, d]. If ``uniform``, logits stay fixed.
    """
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
            parameters = cast(dict[str, Array], optax.apply_updates(parameters, updates))
        points = jnp.clip(parameters["points"], box[0][None, :], box[1][None, :])
        return (parameters | {"points": points}, state), value

    return jax.lax.scan(step, (parameters, state), length=num_steps)


@in_float64
def _weigh(mean: PosteriorMean, points: Float64[np.ndarray, "M d"]) -> tuple[Float64[np.ndarray, "M"], SolverReport]:
    """The probability weights of points [M, d] that minimise ½‖ȳ − Σ w ψ(z)‖² + τ KL(w ‖ uniform)."""
    features = np.asarray(mean.feature_map(jnp.asarray(points)), np.float64)
    variance = mean.mechanism.variance
    problem = EntropicLeastSquares(*project_features(features, mean.coordinates))
    fit = problem.solve_from_afar(_PENALTY * variance, _GAP * variance)
    return fit.weights, fit.report


@shows_progress("points")
def represent(
    mean: PosteriorMean,
    num_points: int = 1000,
    *,
    weights: Literal["probability", "uniform"] = "probability",
    box: tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]] | None = None,
    seed: int = 0,
    num_steps: int = 300,
    progress: Progress | bool = False,
) -> tuple[WeightedSample, SolverReport]:
    """Points whose embedding is close to a denoised embedding ([B] section 3.3 for uniform weights). Post-processing.

    Points start as draws from the distribution of the posterior mean. If there are at most 1000, Adam moves them,
    together with logits of their weights. If there are at most 3000, the weights are then solved for, which is a convex
    problem. The database is unweighted for ``weights="uniform"``, and for more than 3000 points.

    Args:
      mean: the result of :func:`kme_jax.synthesis.posterior_mean`.
      num_points: M.
      weights: "probability", or "uniform" for an unweighted database.
      box: lower and upper bounds of the points, [d] each, which may be infinite; None for no bounds.
      seed: of the starting points.
      num_steps: steps of Adam.
      progress: True for a bar, or a function that is called with (steps done, total steps).

    Returns:
      The sample, whose weights are probabilities, and a report: the objective ½‖ȳ − Σ w ψ(z)‖² at every step of Adam,
      the objective of the problem of the weights, and the gap of that problem.

    Raises:
      ValueError: num_points or num_steps is below 1, or ``weights`` has another value.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, NormalProposal, PrivacyBudget, mean_embedding, perturb
      >>> from kme_jax import posterior_mean, represent, spectral_map
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> proposal = NormalProposal.from_bounds([-4, -4], [4, 4])  # public
      >>> features = spectral_map(jax.random.key(0), Gaussian(gamma=0.5), proposal)
      >>> noisy = perturb(jax.random.key(1), mean_embedding(features, rows), PrivacyBudget(1.0, 1e-5))
      >>> mean, report = posterior_mean(jax.random.key(2), noisy, proposal)
      >>> sample, report = represent(mean, 50)  # as often as you like, of any size
      >>> sample.points.shape
      (50, 2)
    """
    if weights not in ("probability", "uniform"):
        raise ValueError(f'weights must be "probability" or "uniform", got "{weights}"')
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    lower, upper = (-np.inf, np.inf) if box is None else box
    points = np.clip(mean.sample(num_points, seed), lower, upper)
    values = np.full(num_points, 1 / num_points)
    objective, gap, converged = np.empty(0), 0.0, True
    if num_points <= _MAX_MOVED:
        # Float32 is enough whatever the precision of the map, because locations are in lengths from their centre.
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
            size = min(_STEPS_PER_CALL, num_steps - start)
            uniform = weights == "uniform"
            (parameters, state), trace = _move(
                waves, target, parameters, state, limits, num_steps=size, schedule_steps=num_steps, uniform=uniform
            )
            traces.append(np.asarray(trace, np.float64))
            if callable(progress):
                progress(start + size, num_steps)
        points = np.clip(centre + length * np.asarray(parameters["points"], np.float64), lower, upper)
        values = np.asarray(jax.nn.softmax(parameters["logits"]), np.float64)
        values /= values.sum()
        objective = np.concatenate(traces)
    if weights == "probability" and num_points <= _MAX_WEIGHTED:
        values, report = _weigh(mean, points)
        objective = np.append(objective, report.objective[-1])
        gap, converged = report.gap, report.converged
    return WeightedSample(points, values, mean.mechanism), SolverReport(objective, gap, converged, len(objective))
