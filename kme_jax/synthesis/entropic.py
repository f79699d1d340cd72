"""Probability weights shrunk towards uniform ones: least squares with a Kullback–Leibler penalty, for any features.

    minimise  ½‖Σ_m w_m a_m − y‖² + τ KL(w ‖ p)   over probability vectors w,

where p has the value 1/M for every point. τ → 0 projects y onto the convex hull of the a_m (the projection mechanism of
Nikolov, Talwar & Zhang 2013). τ → ∞ gives p itself. The dual problem has one variable for each feature and no
constraint,

    minimise  D(r) = ½‖r‖² − yᵀr + τ log Σ_m p_m exp(a_mᵀr / τ),

is 1-strongly convex and smooth. Its minimiser r is the residual y − Σ w_m a_m of the solution w ∝ p exp(a r / τ). For
any r and its w, the duality gap is ½‖∇D(r)‖². The gap also bounds ½‖Σ (w − w*)_m a_m‖².

Newton's method solves the dual problem. Its linear equations have the matrix I + C/τ, with C the covariance of the
features under w. Conjugate gradients solve these. Without a preconditioner they need about as many steps as C has
eigenvalues above τ. There are two preconditioners. The first is a diagonal matrix, in the eigenvectors of the
covariance under p. It costs nothing, and is good as long as w is near p. The second is the inverse of I + C/τ for the
weights at the start. It is good for any w, and costs a factorisation for each target and τ.

Targets that share the features are solved together, so that one pass over the features serves all of them. Arrays are
padded to a few sizes, so that few programs are compiled. A padded feature is zero for every point, so it has r = 0 and
adds nothing to any product. A padded point has prior 0 and weight 0.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from kme_jax._numerics.precision import reproducible_jit
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.synthesis.lasso import SolverReport

Array = jax.Array

_ARMIJO = 1e-4
_MAX_HALVINGS = 30
_MAX_CG_STEPS = 1000
_MAX_NEWTON_STEPS = 100
_STAGE_RATIO = 8.0  # of one penalty to the next
_NUM_PROBES = 16
_PROBE_SEED = 20130614

# With at most this many features, inverses are computed once the products of the steps for all probes cost as much as
# an inverse.
_MAX_INVERTED = 3072
_STEPS_PER_INVERSE = 1 / (2 * _NUM_PROBES)  # of F
_MAX_INVERSE_BYTES = 2**30  # for all targets


def padded_sizes(num_weights: int, num_features: int) -> tuple[int, int]:
    """The sizes to which M and F are padded."""
    weights = max(128, 1 << (num_weights - 1).bit_length()) if num_weights <= 1024 else -(-num_weights // 2048) * 2048
    step = 128 if num_features <= 1024 else 1024
    return weights, -(-num_features // step) * step


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _Problem:
    """The part of the problem that all targets share.

    Attributes:
      features: a, [M, F].
      transposed: the transpose, [F, M], so that each product reads its matrix in the order of memory.
      log_prior: log p, [M], −∞ where p is 0.
      spectrum: the diagonal of the features' covariance under p, [F].
    """

    features: Float[Array, "M F"]
    transposed: Float[Array, "F M"]
    log_prior: Float[Array, "M"]
    spectrum: Float[Array, "F"]

    def covariance_product(
        self, weights: Float[Array, "targets M"], vectors: Float[Array, "targets k F"]
    ) -> Float[Array, "targets k F"]:
        """C v for the covariance C = Σ w a aᵀ − (Σ w a)(Σ w a)ᵀ of every target: w [P, M], v [P, k, F]."""
        products = _rows_times(vectors, self.transposed)
        centred = products - jnp.sum(weights[:, None, :] * products, axis=2, keepdims=True)
        return _rows_times(weights[:, None, :] * centred, self.features)


def _rows_times(rows: Array, matrix: Array) -> Array:
    """rows [P, k, n] times a matrix [n, m], as one product."""
    return (rows.reshape(-1, rows.shape[2]) @ matrix).reshape(*rows.shape[:2], matrix.shape[1])


@functools.partial(reproducible_jit, static_argnames="rotate")
def _prepare(features: Array, prior: Array, *, rotate: bool) -> tuple[_Problem, Array | None]:
    """The shared problem. If ``rotate``, in the eigenvectors of the features' covariance, which are also returned."""
    mean = prior @ features
    rotation = None
    if rotate:
        covariance = (features.T * prior[None, :]) @ features - mean[:, None] * mean[None, :]
        spectrum, rotation = jnp.linalg.eigh(covariance)
        features = features @ rotation
    else:
        spectrum = prior @ jnp.square(features) - jnp.square(mean)
    return _Problem(features, features.T, jnp.log(prior), jnp.maximum(spectrum, 0)), rotation


@reproducible_jit
def _inverses(problem: _Problem, weights: Array, penalty: Array, active: Array | np.ndarray) -> Array:
    """(I + C/τ)⁻¹ for the weights [P, M] of every active target, [P, F, F]; zeros for other targets."""
    identity = jnp.eye(problem.features.shape[1], dtype=problem.features.dtype)

    def inverse(weights):
        mean = weights @ problem.features
        covariance = (problem.transposed * weights[None, :]) @ problem.features - mean[:, None] * mean[None, :]
        factor = jnp.linalg.cholesky(identity + covariance / penalty)
        return jax.scipy.linalg.cho_solve((factor, True), identity)

    def one(target):
        return jax.lax.cond(target[1], inverse, lambda _: jnp.zeros_like(identity), target[0])

    return jax.lax.map(one, (weights, active))


def conjugate_gradients(
    product, precondition, right: Float[Array, "targets k F"], tolerance: Float[Array, "..."]
) -> tuple[Float[Array, "targets k F"], Int[Array, ""]]:
    """Solves A x = b for every b [P, k, F], A symmetric and ≥ I, to ‖A x − b‖ ≤ tolerance · ‖b‖.

    Each system stops by itself. Its result does not depend on the other systems.

    Args:
      product: a function V -> A V.
      precondition: a function V -> an approximation of A⁻¹ V.
      right: b.
      tolerance: relative, [P, 1, 1] or a scalar.

    Returns:
      x, and the number of steps.
    """

    def inner(a, b):
        return jnp.sum(a * b, axis=2, keepdims=True)

    def ratio(a, b):
        return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)

    limit = jnp.square(tolerance) * inner(right, right)

    def unfinished(state):
        step, _, residual, _, _ = state
        return (step < _MAX_CG_STEPS) & jnp.any(inner(residual, residual) > limit)

    def advance(state):
        step, x, residual, direction, before = state
        image = product(direction)
        length = jnp.where(inner(residual, residual) > limit, ratio(before, inner(direction, image)), 0)
        x, residual = x + length * direction, residual - length * image
        step_direction = precondition(residual)
        after = inner(residual, step_direction)
        return step + 1, x, residual, step_direction + ratio(after, before) * direction, after

    direction = precondition(right)
    start = (jnp.int32(0), jnp.zeros_like(right), right, direction, inner(right, direction))
    steps, x, *_ = jax.lax.while_loop(unfinished, advance, start)
    return x, steps


def _newton_equations(problem: _Problem, weights: Array, penalty: Array, inverses: Array | None):
    """Functions of V [P, k, F]: (I + C/τ) V, and an approximation of (I + C/τ)⁻¹ V."""

    def product(vectors):
        return vectors + problem.covariance_product(weights, vectors) / penalty

    def precondition(vectors):
        return vectors / (1 + problem.spectrum / penalty)[None, None, :] if inverses is None else vectors @ inverses

    return product, precondition


@functools.partial(reproducible_jit, static_argnames="max_steps")
def _solve(problem: _Problem, targets, penalty, duals, tolerances, active, inverses, *, max_steps: int):
    """Newton's method on D for every active target [P, F], from ``duals`` [P, F].

    Returns:
      r [P, F], w [P, M], Σ w a [P, F], gaps [P], numbers of Newton steps [P], and the trace of the primal objectives,
      padded with NaN, [max_steps + 1, P].
    """

    def evaluate(duals, scores):
        """D and w at r, from r and the scores a r."""
        logits = problem.log_prior[None, :] + scores / penalty
        largest = jnp.max(logits, axis=1, keepdims=True)
        scaled = jnp.exp(logits - largest)
        total = jnp.sum(scaled, axis=1, keepdims=True)
        log_total = (largest + jnp.log(total))[:, 0]
        return jnp.sum((0.5 * duals - targets) * duals, axis=1) + penalty * log_total, scaled / total

    def state_at(step, steps, duals, scores, trace):
        values, weights = evaluate(duals, scores)
        gradients = duals - targets + weights @ problem.features
        gaps = 0.5 * jnp.sum(jnp.square(gradients), axis=1)
        return step, steps, duals, scores, values, weights, gradients, gaps, trace.at[step].set(gaps - values)

    def is_unfinished(gaps):
        return active & (gaps > tolerances)

    def unfinished(state):
        step, gaps = state[0], state[7]
        return (step < max_steps) & jnp.any(is_unfinished(gaps))

    def advance(state):
        step, steps, duals, scores, values, weights, gradients, gaps, trace = state
        moving = is_unfinished(gaps)
        right = jnp.where(moving[:, None], gradients, 0)
        norms = jnp.linalg.norm(right, axis=1)
        forcing = jnp.minimum(0.1, jnp.sqrt(norms / (1e-30 + jnp.linalg.norm(targets, axis=1))))
        product, precondition = _newton_equations(problem, weights, penalty, inverses)
        solution, _ = conjugate_gradients(product, precondition, right[:, None, :], forcing[:, None, None])
        directions = -solution[:, 0, :]
        slopes = jnp.sum(gradients * directions, axis=1)
        score_directions = directions @ problem.transposed

        def too_long(lengths):
            trial, _ = evaluate(duals + lengths[:, None] * directions, scores + lengths[:, None] * score_directions)
            return moving & ~(trial <= values + _ARMIJO * lengths * slopes + 1e-15 * jnp.abs(values))

        def halve(search):
            halvings, lengths, too_long_now = search
            lengths = jnp.where(too_long_now, lengths / 2, lengths)
            return halvings + 1, lengths, too_long(lengths)

        lengths = jnp.ones_like(slopes)
        search = (jnp.int32(0), lengths, too_long(lengths))
        lengths = jax.lax.while_loop(lambda s: (s[0] < _MAX_HALVINGS) & jnp.any(s[2]), halve, search)[1][:, None]
        steps = steps + moving.astype(steps.dtype)
        return state_at(step + 1, steps, duals + lengths * directions, scores + lengths * score_directions, trace)

    trace = jnp.full((max_steps + 1, len(targets)), jnp.nan, targets.dtype)
    start = state_at(jnp.int32(0), jnp.zeros(len(targets), jnp.int32), duals, duals @ problem.transposed, trace)
    _, steps, duals, _, _, weights, gradients, gaps, trace = jax.lax.while_loop(unfinished, advance, start)
    return duals, weights, gradients - duals + targets, gaps, steps, trace


@reproducible_jit
def _degrees_of_freedom(problem: _Problem, weights, penalty, probes, active, inverses):
    """tr(C (τ I + C)⁻¹) of every active target, [P], and the number of steps of conjugate gradients.

    The trace is estimated by zᵀ(I − (I + C/τ)⁻¹)z for the rows z of ``probes`` [k, F] with E[z zᵀ] = I.
    """
    right = jnp.where(active[:, None, None], probes[None, :, :], 0)
    product, precondition = _newton_equations(problem, weights, penalty, inverses)
    solution, steps = conjugate_gradients(product, precondition, right, jnp.asarray(1e-3, probes.dtype))
    return jnp.mean(jnp.sum(right * (right - solution), axis=2), axis=1), steps


def project_features(
    features: Float[np.ndarray, "M F"], target: Float[np.ndarray, "F"]
) -> tuple[Float[np.ndarray, "M R"], Float[np.ndarray, "R"]]:
    """The least-squares problem ‖Σ w_m a_m − y‖² in at most M features, for fewer points than features.

    The part of y outside of the span of the a_m adds a constant, which is dropped. With A Aᵀ = U Λ Uᵀ the rest is
    ‖Λ^½ Uᵀ w − Λ^-½ Uᵀ A y‖². Eigenvalues below 1e-11 of the largest are rounding errors, and are dropped.

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


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class BatchFit:
    """The solutions for one penalty and P targets, in the coordinates and padded sizes of :class:`EntropicBatch`.

    Attributes:
      penalty: τ.
      weights: w, [P, M], padded, on the device.
      residuals: the dual variables r, [P, F], padded, on the device.
      distances: ‖Σ w_m a_m − y‖², [P].
      gaps: duality gaps, [P].
      converged: whether the gaps reached their tolerances, [P].
      num_steps: numbers of Newton steps, [P].
      objectives: primal objectives at every step, [steps + 1, P].
      inverses: approximate inverses of I + C/τ, [P, F, F], on the device; None if they were not computed.
    """

    penalty: float
    weights: Float[Array, "targets M"]
    residuals: Float[Array, "targets F"]
    distances: Float[np.ndarray, "targets"]
    gaps: Float[np.ndarray, "targets"]
    converged: Bool[np.ndarray, "targets"]
    num_steps: Int[np.ndarray, "targets"]
    objectives: Float[np.ndarray, "checks targets"]
    inverses: Float[Array, "targets F F"] | None


class EntropicBatch:
    """The problem at the top of this module for fixed features and P targets.

    It is solved for one τ after another, from large to small. For features in float64, call it within
    ``kme_jax.float64()``.

    Args:
      features: a, [M', F'] with M' ≥ M and F' ≥ F. Rows beyond M may be any finite numbers. Columns beyond F are zeros.
      targets: y, [P, F].
      num_weights: M.
      invert: whether to use inverses from the start, see the top of this module.
      always_inverted: with at most this many features, inverses are used from the start in any case.

    Attributes:
      probes: the rows z by which traces are estimated, in the padded and rotated coordinates of the solver, [16, F'].
    """

    def __init__(
        self,
        features: Float[AnyArray, "_ _"],
        targets: Float[np.ndarray, "targets F"],
        num_weights: int,
        *,
        invert: bool = False,
        always_inverted: int = 512,
    ):
        self._num_weights, (num_targets, num_features) = num_weights, targets.shape
        sizes = padded_sizes(self._num_weights, num_features)
        if features.shape != sizes:
            features = np.asarray(features)
            features = np.pad(features, [(0, size - n) for size, n in zip(sizes, features.shape, strict=True)])
        features = jnp.asarray(features)
        dtype, (size, width) = features.dtype, sizes
        uniform = np.full(num_weights, 1 / num_weights)
        self._prior = jnp.asarray(np.pad(uniform, (0, size - num_weights)), dtype)
        self._can_invert = width <= _MAX_INVERTED and num_targets * width**2 * dtype.itemsize <= _MAX_INVERSE_BYTES
        self._invert = self._can_invert and (invert or width <= always_inverted)
        rotate = not self._invert and width <= _MAX_INVERTED
        self._problem, self._rotation = _prepare(features, self._prior, rotate=rotate)
        probes = np.random.default_rng(_PROBE_SEED).choice([-1.0, 1.0], (num_features, _NUM_PROBES))
        self._targets, self.probes = self._inwards(targets), self._inwards(probes.T)
        self._num_features = num_features

    def _inwards(self, vectors: Float[np.ndarray, "n F"]) -> Float[Array, "n _"]:
        """Vectors [n, F] in the padded and rotated coordinates of the solver."""
        width = self._problem.features.shape[1]
        padded = np.pad(np.asarray(vectors), [(0, 0), (0, width - np.shape(vectors)[1])])
        inwards = jnp.asarray(padded, self._problem.features.dtype)
        return inwards if self._rotation is None else inwards @ self._rotation

    def residuals(self, fit: BatchFit) -> Float[np.ndarray, "targets F"]:
        """The dual variables in the coordinates of the features, [P, F]."""
        vectors = fit.residuals if self._rotation is None else fit.residuals @ self._rotation.T
        return np.asarray(vectors)[:, : self._num_features]

    def weights(self, fit: BatchFit) -> Float[np.ndarray, "targets M"]:
        """w, positive, [P, M]. Each row sums to 1."""
        return np.asarray(fit.weights)[:, : self._num_weights]

    def solve(
        self,
        penalty: float,
        tolerances: Float[np.ndarray, "targets"],
        *,
        start: BatchFit | None = None,
        active: Bool[np.ndarray, "targets"] | None = None,
        max_steps: int = _MAX_NEWTON_STEPS,
    ) -> BatchFit:
        """The solutions for τ.

        Args:
          penalty: τ > 0.
          tolerances: of the duality gaps, [P].
          start: the solutions for another τ, at which to start; None to start at uniform weights.
          active: whether to solve for each target, bool [P]; all if None. The other targets keep their start.
          max_steps: largest number of Newton steps.
        """
        dtype, num_targets = self._targets.dtype, len(self._targets)
        active = np.ones(num_targets, bool) if active is None else active
        tau, tolerances = jnp.asarray(penalty, dtype), np.asarray(tolerances, dtype)
        if start is None:
            duals, weights = jnp.zeros_like(self._targets), jnp.tile(self._prior[None, :], (num_targets, 1))
        else:
            duals, weights = start.residuals, start.weights
        inverses = _inverses(self._problem, weights, tau, active) if self._invert else None
        duals, weights, fitted, gaps, steps, trace = _solve(
            self._problem, self._targets, tau, duals, tolerances, active, inverses, max_steps=max_steps
        )
        distances = np.asarray(_squared_distances(fitted, self._targets))
        gaps, steps = np.asarray(gaps), np.asarray(steps)
        objectives = np.asarray(trace)[: int(steps.max()) + 1]
        return BatchFit(penalty, weights, duals, distances, gaps, gaps <= tolerances, steps, objectives, inverses)

    def degrees_of_freedom(
        self, fit: BatchFit, active: Bool[np.ndarray, "targets"] | None = None
    ) -> Float[np.ndarray, "targets"]:
        """Σ_f ∂(Σ_m w_m a_m)_f / ∂y_f at the solutions, = tr(C (τ I + C)⁻¹) by the implicit function theorem, [P].

        The trace is estimated by Hutchinson's method with 16 fixed vectors of random signs. The relative standard error
        is at most √(2 / (16 · df)).

        Args:
          fit: the solutions.
          active: whether to estimate it for each target, bool [P]; all if None.
        """
        active = np.ones(len(self._targets), bool) if active is None else active
        penalty = jnp.asarray(fit.penalty, self._targets.dtype)
        degrees, steps = _degrees_of_freedom(self._problem, fit.weights, penalty, self.probes, active, fit.inverses)
        slow = int(steps) > _STEPS_PER_INVERSE * self._targets.shape[1]
        self._invert = self._invert or (self._can_invert and slow)
        return np.asarray(degrees)


@reproducible_jit
def _squared_distances(fitted: Array, targets: Array) -> Array:
    return jnp.sum(jnp.square(fitted - targets), axis=1)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class EntropicFit:
    """The solution for one penalty.

    Attributes:
      penalty: τ.
      weights: w, positive, with sum 1, [M].
      residual: the dual variable r, approximately y − Σ w_m a_m, [F].
      report: of the optimisation.
      batch: the solution in the form of :class:`EntropicBatch`.
    """

    penalty: float
    weights: Float[np.ndarray, "M"]
    residual: Float[np.ndarray, "F"]
    report: SolverReport
    batch: BatchFit = dataclasses.field(repr=False)


class EntropicLeastSquares:
    """The problem at the top of this module for fixed features and target, solved for one τ after another.

    Args:
      features: a, [M, F]. For float64, call it within ``kme_jax.float64()``.
      target: y, [F].

    Attributes:
      batch: the same problem as a batch of one target.

    Raises:
      ValueError: shapes mismatch.
    """

    def __init__(self, features: Float[AnyArray, "M F"], target: Float[AnyArray, "F"]):
        features = np.asarray(features)
        if features.ndim != 2 or np.shape(target) != features.shape[1:]:
            shapes = f"{list(features.shape)} and target {list(np.shape(target))}"
            raise ValueError(f"features {shapes} do not fit: [M, F] and [F] are needed")
        num_weights = features.shape[0]
        uniform = np.full(num_weights, 1 / num_weights)
        self._spread = float(uniform @ np.square(features).sum(axis=1) - np.square(uniform @ features).sum())  # tr C
        self.batch = EntropicBatch(features, np.asarray(target)[None, :], num_weights, invert=True)

    def solve(
        self,
        penalty: float,
        tolerance: float,
        *,
        start: EntropicFit | None = None,
        max_steps: int = _MAX_NEWTON_STEPS,
    ) -> EntropicFit:
        """The solution for τ.

        Args:
          penalty: τ > 0.
          tolerance: of the duality gap.
          start: the solution for another τ, at which to start; None to start at uniform weights.
          max_steps: largest number of Newton steps. ``report.converged`` says whether they were enough.

        Raises:
          ValueError: τ is not positive.
        """
        if not penalty > 0:
            raise ValueError(f"penalty must be positive, got {penalty}")
        before = None if start is None else start.batch
        fit = self.batch.solve(penalty, np.asarray([tolerance]), start=before, max_steps=max_steps)
        steps = int(fit.num_steps[0])
        report = SolverReport(fit.objectives[:, 0], float(fit.gaps[0]), bool(fit.converged[0]), steps)
        return EntropicFit(penalty, self.batch.weights(fit)[0], self.batch.residuals(fit)[0], report, fit)

    def solve_from_afar(self, penalty: float, tolerance: float) -> EntropicFit:
        """The solution for a small τ, from uniform weights.

        If Newton's method does not converge from there, larger penalties are solved first. Each solution is the start
        for the next penalty.

        Args:
          penalty: τ > 0.
          tolerance: of the duality gap.
        """
        fit = self.solve(penalty, tolerance)
        if fit.report.converged:
            return fit
        num_stages = math.ceil(math.log(max(self._spread / penalty, _STAGE_RATIO), _STAGE_RATIO))
        for stage in range(num_stages, -1, -1):
            start = None if stage == num_stages else fit
            fit = self.solve(penalty * _STAGE_RATIO**stage, tolerance, start=start)
        return fit

    def degrees_of_freedom(self, fit: EntropicFit) -> float:
        """See :meth:`EntropicBatch.degrees_of_freedom`."""
        return float(self.batch.degrees_of_freedom(fit.batch)[0])
