"""Probability weights shrunk towards uniform ones: least squares with a Kullback–Leibler penalty, for any features.

    minimise  ½‖Σ_m w_m a_m − y‖² + τ KL(w ‖ p)   over probability vectors w,

p a public prior. τ → 0 projects y onto the convex hull of the a_m (the projection mechanism of Nikolov, Talwar & Zhang
2013); τ → ∞ gives p itself. The dual problem has one variable per feature and no constraint,

    minimise  D(r) = ½‖r‖² − yᵀr + τ log Σ_m p_m exp(a_mᵀr / τ),

is 1-strongly convex and smooth, and its minimiser r is the residual y − Σ w_m a_m of the solution w ∝ p exp(a r / τ).
For any r and the w that it gives, the duality gap is ½‖∇D(r)‖², and bounds ½‖Σ (w − w*)_m a_m‖² too.
Newton's method solves it; the Newton equations, with the matrix I + C/τ for the covariance C of the features under w,
by conjugate gradients. Those need about as many steps as C has eigenvalues above τ; where there are not too many
features, that matrix at the starting point is factorised and makes it a few.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax.synthesis.lasso import SolverReport

Array = jax.Array

_ARMIJO = 1e-4
_MAX_HALVINGS = 30
_MAX_CG_STEPS = 1000
_MAX_FACTORED = 3000  # features
_NUM_PROBES = 16
_PROBE_SEED = 20130614


def _log_sum_exp(logits: Array) -> tuple[Array, Array]:
    """log Σ exp and the softmax."""
    largest = jnp.max(logits)
    scaled = jnp.exp(logits - largest)
    total = jnp.sum(scaled)
    return largest + jnp.log(total), scaled / total


def _covariance_product(features: Array, weights: Array, vectors: Array) -> Array:
    """C V for the covariance C = Σ w a aᵀ − (Σ w a)(Σ w a)ᵀ of the features [M, F] and V [F, r]."""
    products = features @ vectors
    centred = products - (weights @ products)[None, :]
    return features.T @ (weights[:, None] * centred)


@jax.jit
def _newton_factor(features: Array, weights: Array, penalty: Array) -> Array:
    """The lower Cholesky factor of I + C/τ, [F, F]."""
    mean = weights @ features
    covariance = features.T @ (weights[:, None] * features) - mean[:, None] * mean[None, :]
    return jnp.linalg.cholesky(jnp.eye(len(mean), dtype=features.dtype) + covariance / penalty)


def _conjugate_gradients(product, right: Array, tolerance: Array, factor: Array | None = None) -> tuple[Array, Array]:
    """Solves A x = b for each column of b [F, r], A symmetric and ≥ I, to ‖A x − b‖ ≤ tolerance · ‖b‖.

    Args:
      product: V -> A V.
      right: b.
      tolerance: relative, a scalar.
      factor: lower triangular L with L Lᵀ near A, to precondition with.

    Returns:
      x, and the number of steps made.
    """

    def precondition(vectors):
        return vectors if factor is None else jax.scipy.linalg.cho_solve((factor, True), vectors)

    def inner(a, b):
        return jnp.sum(a * b, axis=0, keepdims=True)

    def ratio(a, b):
        return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)

    limit = jnp.square(tolerance) * inner(right, right)

    def unfinished(state):
        step, _, residual, _, _ = state
        return (step < _MAX_CG_STEPS) & jnp.any(inner(residual, residual) > limit)

    def advance(state):
        step, x, residual, direction, before = state
        image = product(direction)
        length = ratio(before, inner(direction, image))
        x, residual = x + length * direction, residual - length * image
        step_direction = precondition(residual)
        after = inner(residual, step_direction)
        return step + 1, x, residual, step_direction + ratio(after, before) * direction, after

    direction = precondition(right)
    start = (jnp.int32(0), jnp.zeros_like(right), right, direction, inner(right, direction))
    steps, x, *_ = jax.lax.while_loop(unfinished, advance, start)
    return x, steps


@functools.partial(jax.jit, static_argnames="max_steps")
def _solve(features, target, log_prior, penalty, dual, tolerance, factor, *, max_steps: int):
    """Newton's method on D from ``dual``.

    Returns:
      r, w, the gap, the trace of the primal objective padded with NaN [max_steps + 1], and Newton steps made.
    """

    def evaluate(dual, scores):
        """D and w at r, from a r."""
        log_total, weights = _log_sum_exp(log_prior + scores / penalty)
        return 0.5 * dual @ dual - target @ dual + penalty * log_total, weights

    def state_at(step, dual, scores, trace):
        value, weights = evaluate(dual, scores)
        gradient = dual - target + weights @ features
        gap = 0.5 * gradient @ gradient
        return step, dual, scores, value, weights, gradient, gap, trace.at[step].set(gap - value)

    def unfinished(state):
        step, gap = state[0], state[6]
        return (step < max_steps) & (gap > tolerance)

    def advance(state):
        step, dual, scores, value, weights, gradient, _, trace = state
        norm = jnp.linalg.norm(gradient)

        def product(vectors):
            return vectors + _covariance_product(features, weights, vectors) / penalty

        forcing = jnp.minimum(0.1, jnp.sqrt(norm / (1e-30 + jnp.linalg.norm(target))))
        direction = -_conjugate_gradients(product, gradient[:, None], forcing, factor)[0][:, 0]
        slope = gradient @ direction
        score_direction = features @ direction

        def too_long(search):
            halvings, length = search
            trial, _ = evaluate(dual + length * direction, scores + length * score_direction)
            return (halvings < _MAX_HALVINGS) & ~(trial <= value + _ARMIJO * length * slope + 1e-15 * jnp.abs(value))

        _, length = jax.lax.while_loop(too_long, lambda s: (s[0] + 1, s[1] / 2), (jnp.int32(0), jnp.ones_like(slope)))
        return state_at(step + 1, dual + length * direction, scores + length * score_direction, trace)

    trace = jnp.full(max_steps + 1, jnp.nan, features.dtype)
    state = jax.lax.while_loop(unfinished, advance, state_at(jnp.int32(0), dual, features @ dual, trace))
    step, dual, _, _, weights, _, gap, trace = state
    return dual, weights, gap, trace, step


@jax.jit
def _degrees_of_freedom(features, weights, penalty, probes, factor):
    """tr(C (τ I + C)⁻¹), estimated by zᵀ(I − (I + C/τ)⁻¹)z for the columns z of ``probes`` with E[z zᵀ] = I."""

    def product(vectors):
        return vectors + _covariance_product(features, weights, vectors) / penalty

    inverse, _ = _conjugate_gradients(product, probes, jnp.asarray(1e-3, probes.dtype), factor)
    return jnp.mean(jnp.sum(probes * (probes - inverse), axis=0))


def project_features(features: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same least-squares problem in at most M features, for fewer points than features.

    ‖Σ w_m a_m − y‖² loses the constant that is y's part outside of the span of the a_m; with A Aᵀ = U Λ Uᵀ the rest is
    ‖Λ^½ Uᵀ w − Λ^-½ Uᵀ A y‖². Eigenvalues below 1e-11 of the largest, which are rounding, are left out.

    Args:
      features: a, [M, F].
      target: y, [F].

    Returns:
      Features [M, R] and target [R], R ≤ M.
    """
    values, vectors = np.linalg.eigh(features @ features.T)
    used = values > 1e-11 * values[-1]
    roots, vectors = np.sqrt(values[used]), vectors[:, used]
    return vectors * roots[None, :], vectors.T @ (features @ target) / roots


@dataclasses.dataclass(frozen=True, eq=False)
class EntropicFit:
    """The solution for one penalty.

    Attributes:
      penalty: τ.
      weights: w, [M], positive, summing to 1.
      residual: the dual variable r, about y − Σ w_m a_m, [F].
      report: how the optimisation went.
      factor: of about I + C/τ, [F, F]; None where F is large.
    """

    penalty: float
    weights: np.ndarray
    residual: np.ndarray
    report: SolverReport
    factor: Array | None = dataclasses.field(default=None, repr=False)


class EntropicLeastSquares:
    """The problem of the module's text for fixed features, target and prior, solved for one τ after another.

    Args:
      features: a, [M, F], float64 unless the caller wants less. Must be called within ``numerics.float64()`` then.
      target: y, [F].
      prior: p, [M], positive, summing to 1; uniform if None.

    Raises:
      ValueError: shapes that do not fit; a prior that is not a positive probability vector.
    """

    def __init__(self, features: Array, target: np.ndarray, prior: np.ndarray | None = None):
        self.features = jnp.asarray(features)
        if self.features.ndim != 2 or np.shape(target) != self.features.shape[1:]:
            shapes = f"{list(self.features.shape)} and target {list(np.shape(target))}"
            raise ValueError(f"features {shapes} do not fit: [M, F] and [F] are needed")
        num_weights = self.features.shape[0]
        prior = np.full(num_weights, 1 / num_weights) if prior is None else np.asarray(prior, np.float64)
        if prior.shape != (num_weights,) or not (prior > 0).all() or abs(prior.sum() - 1) > 1e-6:
            raise ValueError(f"prior must be {num_weights} positive numbers that sum to 1")
        self.prior = prior
        dtype = self.features.dtype
        self.target = jnp.asarray(target, dtype)
        self._log_prior = jnp.asarray(np.log(prior), dtype)
        probes = np.random.default_rng(_PROBE_SEED).choice([-1.0, 1.0], (self.features.shape[1], _NUM_PROBES))
        self._probes = jnp.asarray(probes, dtype)

    def solve(
        self, penalty: float, tolerance: float, *, start: EntropicFit | None = None, max_steps: int = 100
    ) -> EntropicFit:
        """The solution for τ.

        Args:
          penalty: τ > 0.
          tolerance: of the duality gap.
          start: the solution for another τ, to start from.
          max_steps: Newton steps after which to give up; ``report.converged`` tells.
        """
        if not penalty > 0:
            raise ValueError(f"penalty must be positive, got {penalty}")
        dtype = self.features.dtype
        dual = jnp.zeros_like(self.target) if start is None else jnp.asarray(start.residual, dtype)
        arguments = [jnp.asarray(value, dtype) for value in (penalty, tolerance)]
        factor = None
        if self.features.shape[1] <= _MAX_FACTORED:
            weights = self.prior if start is None else start.weights
            factor = _newton_factor(self.features, jnp.asarray(weights, dtype), arguments[0])
        residual, weights, gap, trace, steps = _solve(
            self.features, self.target, self._log_prior, arguments[0], dual, arguments[1], factor, max_steps=max_steps
        )
        objective = np.asarray(trace)[: int(steps) + 1]
        report = SolverReport(objective, float(gap), bool(gap <= tolerance), int(steps))
        return EntropicFit(penalty, np.asarray(weights), np.asarray(residual), report, factor)

    def degrees_of_freedom(self, fit: EntropicFit) -> float:
        """Σ_f ∂(Σ_m w_m a_m)_f / ∂y_f at a solution, = tr(C (τ I + C)⁻¹) by the implicit function theorem.

        Estimated by Hutchinson's method with 16 fixed vectors of random signs (relative standard error at most
        √(2 / (16 · df))).
        """
        penalty = jnp.asarray(fit.penalty, self.features.dtype)
        weights = jnp.asarray(fit.weights, self.features.dtype)
        return float(_degrees_of_freedom(self.features, weights, penalty, self._probes, fit.factor))
