"""Sparse weights: least squares with an L1 penalty or an L1 constraint, for any feature vectors.

The solver for feature vectors in the host's memory solves for a working set of weights by an interior-point method, in
float64 (:mod:`kme_jax.synthesis.interior_point`). Feature vectors of near-by points are nearly parallel, so first-order
methods would need tens of thousands of steps. An interior-point step costs one Cholesky factorisation, of the size of
the working set. If many weights are not zero, feature vectors are hardly parallel, and accelerated first-order steps
are used instead. Every result has a gap that bounds its error.

Feature vectors on a GPU stay there, and :mod:`kme_jax.synthesis.lasso_device` solves for their weights. Both solvers
extend a working set in rounds, and compute the gap from all feature vectors.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import scipy.linalg
import threadpoolctl
from jaxtyping import Float, Float64, Int

from kme_jax._numerics import html
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.synthesis.interior_point import minimised_on_the_host
from kme_jax.synthesis.lasso_device import DeviceRows, fits

_FACTOR_LIMIT = 3000  # weights of a working set, above which only first-order steps are affordable
_MANY_STEPS = 400
_FEW = 100  # weights that a working set may keep, or that may join it at any time
_NEAR = 0.7  # share of λ: weights of a larger |aᵀr| stay in the working set of a device
_MAX_ROUNDS = 100  # extensions of the working set
_LEAST = 1e-3  # progress of a round, in units of the gap that is allowed
_ROWS_PER_PRODUCT = 1024
# On a machine with other work, small factorisations are several times slower with more than one BLAS thread, because
# each of them waits for all threads.
_BLAS = threadpoolctl.ThreadpoolController()


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class SolverReport:
    """The report of an optimisation.

    Attributes:
      objective: its value at every check, [checks].
      gap: an upper bound of the final objective minus the optimum.
      converged: whether the gap reached the tolerance.
      num_iterations: number of iterations.
    """

    objective: Float64[np.ndarray, "checks"]
    gap: float
    converged: bool
    num_iterations: int

    def _repr_html_(self) -> str:
        facts = [("solved", f"{self.num_iterations} iterations: {html.converged(self.converged)}")]
        facts += [("above the optimum", f"by at most {html.number(self.gap)}")]
        return html.card("SolverReport", facts, html.trace(self.objective, "objective"))


class HostRows:
    """Feature vectors a_m in the host's memory, [M, F].

    Products with vectors have the precision of the feature vectors. Sums of products are float64.

    Attributes:
      shape: (M, F).
      dtype: of the feature vectors.
    """

    def __init__(self, features: Float[np.ndarray, "M F"]):
        self._features, self.shape, self.dtype = features, features.shape, features.dtype

    def inner(self, vector: Float[np.ndarray, "F"], count: int) -> Float64[np.ndarray, "m"]:
        """a_mᵀv for the first ``count`` feature vectors, float64 [count]."""
        return (self._features[:count] @ vector.astype(self._features.dtype)).astype(np.float64)

    def combination(self, weights: Float64[np.ndarray, "M"]) -> Float64[np.ndarray, "F"]:
        """Σ_m w_m a_m for weights w [M], float64 [F]."""
        active = np.flatnonzero(weights)
        total = np.zeros(self._features.shape[1])
        for i in range(0, len(active), _ROWS_PER_PRODUCT):
            indices = active[i : i + _ROWS_PER_PRODUCT]
            total += weights[indices] @ self._features[indices].astype(np.float64)
        return total

    def gram(self, first: Int[np.ndarray, "n"], second: Int[np.ndarray, "m"]) -> Float64[np.ndarray, "n m"]:
        """a_iᵀa_j for i in ``first`` and j in ``second``."""
        products = np.empty((len(first), len(second)))
        rows = self._features[first].astype(np.float64)
        for i in range(0, len(second), _ROWS_PER_PRODUCT):
            indices = second[i : i + _ROWS_PER_PRODUCT]
            products[:, i : i + _ROWS_PER_PRODUCT] = rows @ self._features[indices].astype(np.float64).T
        return products

    def operators(self, working: Int[np.ndarray, "n"]) -> tuple[Callable, Callable]:
        """Functions v -> (a_mᵀv) and w -> Σ_m w_m a_m over m in ``working``, in the precision of the features."""
        rows = self._features[: len(working)] if len(working) == working[-1] + 1 else self._features[working]
        return lambda vector: rows @ vector, lambda weights: weights @ rows


class LeastSquares(abc.ABC):
    """½‖y − Σ_m w_m a_m‖² and the rounds that minimise it with an L1 penalty: what both solvers share.

    Args:
      rows: the feature vectors a, [M, F].
      target: y, [F].

    Attributes:
      target: y, [F].
      target_norm: ‖y‖².
      num_weights: M.
      inner: aᵀy, [M].
    """

    rounds_to_wait = 1  # before a round without progress is the last

    def __init__(self, rows: HostRows | DeviceRows, target: Float[AnyArray, "F"]):
        self.target, self.num_weights = np.asarray(target, np.float64), rows.shape[0]
        if len(rows.shape) != 2 or self.target.shape != rows.shape[1:]:
            shapes = f"{list(rows.shape)} and target {list(self.target.shape)}"
            raise ValueError(f"features {shapes} do not fit: expected [M, F] and [F]")
        finite = np.isfinite(self.target).all()
        self.target_norm = float(self.target @ self.target) if finite else np.nan
        if finite:
            self.inner, _ = self.correlation(np.zeros(self.num_weights), self.num_weights)
        if not (finite and np.isfinite(self.inner).all()):
            raise ValueError("features and target must be finite")

    @abc.abstractmethod
    def correlation(
        self, weights: Float64[np.ndarray, "M"], count: int
    ) -> tuple[Float64[np.ndarray, "m"], Float64[np.ndarray, "F"]]:
        """aᵀr of the first ``count`` weights, and r = y − Σ w a."""

    @abc.abstractmethod
    def gram(self, indices: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n n"]:
        """a_iᵀa_j for i, j in ``indices``."""

    @abc.abstractmethod
    def improved(
        self,
        weights: Float64[np.ndarray, "M"],
        correlation: Float64[np.ndarray, "m"],
        working: Int[np.ndarray, "n"],
        penalty: float,
        allowed: float,
    ) -> tuple[Float64[np.ndarray, "M"], Int[np.ndarray, "k"], int]:
        """One round: chooses a working set, and minimises over its weights.

        Args:
          weights: before the round, [M].
          correlation: aᵀr of the weights that may differ from zero, [m].
          working: the working set of the round before, or the weights other than zero.
          penalty: λ.
          allowed: the duality gap at which to stop.

        Returns:
          The weights, the working set for the next round, and the number of steps.
        """

    def primal_and_gap(self, weights, residual, correlation, penalty) -> tuple[float, float]:
        """The primal value and the duality gap of weights, from their r and aᵀr."""
        fit, largest = self.target - residual, float(np.abs(correlation).max(initial=0))
        l1_norm = float(np.abs(weights).sum(dtype=np.float64))
        return lasso_gap(self.target_norm, float(self.target @ fit), float(fit @ fit), largest, penalty, l1_norm)


class DeviceLeastSquares(LeastSquares):
    """:class:`LeastSquares` of feature vectors on a GPU, by the interior-point method of ``lasso_device``.

    Attributes:
      solver: the feature vectors, and the solver for a working set.
    """

    rounds_to_wait = 5  # a weight that joins late may change the dual value alone

    def __init__(self, features: Float[jax.Array, "M F"], target: Float[AnyArray, "F"]):
        self.solver = DeviceRows(features)
        super().__init__(self.solver, target)

    def correlation(self, weights, count):
        correlation, residual = self.solver.correlation(self.target, weights)
        return correlation[:count], residual

    def gram(self, indices):
        return self.solver.gram(indices)

    def improved(self, weights, correlation, working, penalty, allowed):
        # The working set keeps the weights that matter. Violators of |aᵀr| ≤ λ join, and the next best fill its shape.
        score = np.abs(correlation)
        kept = working[(weights[working] != 0) | (score[working] > _NEAR * penalty)]
        score[kept] = np.inf
        joining = min(int(np.sum((score > penalty) & (score < np.inf))), max(_FEW, len(kept) // 2))
        needed = max(len(kept) + joining, 2 * int(np.count_nonzero(weights)))
        size = min(len(score), self.solver.working_size(needed))
        working = np.argsort(-score, kind="stable")[:size]
        arguments = self.inner, weights, working, penalty, self.target_norm
        solution, taken = self.solver.solve(*arguments, 0.3 * allowed)
        weights[working] = solution
        return weights, working, taken


class HostLeastSquares(LeastSquares):
    """:class:`LeastSquares` in the host's memory, with the Gram matrix of those a_m that were ever in the working set.

    Args:
      features: a, [M, F].
      target: y, [F].
      many: number of weights other than zero, above which first-order steps on feature vectors are tried.

    Attributes:
      dtype: of the feature vectors.
      many: see the argument.
      first_order_helps: False once first-order steps did not converge for a large working set.
    """

    def __init__(self, features: Float[np.ndarray, "M F"], target: Float[AnyArray, "F"], *, many: int = 1000):
        self._rows, self.many, self.dtype = HostRows(features), many, features.dtype
        self._known = np.zeros(0, int)  # the weights in the Gram matrix, in its order
        self._position = np.full(len(features), -1)
        self._gram = np.zeros((0, 0))
        self._probe = 1.5 + np.cos(np.arange(len(features)))
        self.first_order_helps = True
        super().__init__(self._rows, target)

    def correlation(self, weights, count):
        residual = self.target - self._rows.combination(weights) if weights.any() else self.target
        scale = np.linalg.norm(residual) or 1.0  # a float32 product of a small residual keeps its relative accuracy
        return scale * self._rows.inner(residual / scale, count), residual

    def gram(self, indices):
        new = indices[self._position[indices] < 0]
        if len(new):
            old, size = len(self._known), len(self._known) + len(new)
            if size > len(self._gram):
                capacity = min(self.num_weights, max(size, 2 * len(self._gram), 256))
                grown = np.zeros((capacity, capacity))
                grown[:old, :old] = self._gram[:old, :old]
                self._gram = grown
            self._known = np.concatenate([self._known, new])
            self._position[new] = np.arange(old, size)
            product = self._rows.gram(new, self._known)
            self._gram[old:size, :size] = product
            self._gram[:old, old:size] = product[:, :old].T
        position = self._position[indices]
        return self._gram[np.ix_(position, position)]

    def accelerated(
        self, weights: Float64[np.ndarray, "n"], working: Int[np.ndarray, "n"], penalty: float, allowed: float
    ) -> tuple[Float64[np.ndarray, "n"], int]:
        """First-order steps on the feature vectors in ``working``: see :func:`_accelerated`."""
        inner, combination = self._rows.operators(working)

        def curvature(vector):
            return inner(combination(vector))

        probe, lipschitz = _largest_eigenvalue(curvature, self._probe[working].astype(self.dtype), 10)
        self._probe[working] = probe
        target = self.target.astype(self.dtype)
        residual = target

        def gradient(weights):
            nonlocal residual
            residual = target - combination(weights)
            return inner(residual)

        def gap(weights, correlation):
            return self.primal_and_gap(weights, residual, correlation, penalty)[1]

        start, lipschitz = weights.astype(self.dtype), 1.05 * lipschitz
        solution, taken = _accelerated(gradient, gap, start, penalty, lipschitz, allowed, _MANY_STEPS)
        return solution.astype(np.float64), taken

    def improved(self, weights, correlation, working, penalty, allowed):
        # A weight outside of the working set joins it if it violates |aᵀr| ≤ λ, the worst first.
        violation, count = np.abs(correlation), len(correlation)
        violation[working] = 0
        joining = np.argsort(-violation)[: np.count_nonzero(violation > penalty)]
        if len(working) > (self.many if self.first_order_helps else _FACTOR_LIMIT):
            working = np.sort(np.concatenate([working, joining]))
            if 2 * len(working) > count:
                working = np.arange(count)
            solution, taken = self.accelerated(weights[working], working, penalty, 0.3 * allowed)
            self.first_order_helps &= taken < _MANY_STEPS
        else:
            working = np.concatenate([working, joining[: max(100, len(working))]])
            gram = self.gram(working)
            # So the gradient at these weights is the one that the gap was computed from.
            inner = correlation[working] + gram @ weights[working]
            with _BLAS.limit(limits=1, user_api="blas"):
                solution, taken = minimised_on_the_host(gram, inner, penalty, self.target_norm, 0.3 * allowed)
        weights[working] = solution
        if len(working) > _FEW:  # few weights all stay: if they left and came back, rounds would repeat
            working = working[solution != 0]
        return weights, working, taken


def least_squares_of(features: Float[AnyArray, "M F"], target: Float[AnyArray, "F"]) -> LeastSquares:
    """The problem of feature vectors [M, F] and a target [F], where they are if that is a GPU, or on the host."""
    if isinstance(features, jax.Array) and fits(features):
        return DeviceLeastSquares(features, target)
    return HostLeastSquares(np.asarray(features), target)


def _largest_eigenvalue(matrix: Callable, probe: np.ndarray, num_steps: int) -> tuple[np.ndarray, float]:
    """The largest eigenvalue of a positive semi-definite matrix and its eigenvector, by power iteration."""
    for _ in range(num_steps):
        probe = matrix(probe / (np.linalg.norm(probe) or 1.0))
    return probe, float(np.linalg.norm(probe)) + 1e-30


def _accelerated(gradient, gap, weights, penalty, lipschitz, allowed, num_steps: int) -> tuple[np.ndarray, int]:
    """Accelerated proximal gradient steps (FISTA) with gradient restart (O'Donoghue & Candès 2015).

    Args:
      gradient: a function of weights that returns aᵀr, which is minus the gradient of the smooth part.
      gap: a function of weights and this gradient that returns the duality gap.
      weights: at which to start.
      penalty: λ.
      lipschitz: an upper bound of the largest eigenvalue of the Gram matrix.
      allowed: the gap at which to stop.
      num_steps: the number of steps after which to stop.

    Returns:
      The weights, and the number of steps.
    """
    ahead, momentum = weights, 1.0
    for step in range(num_steps):
        correlation = gradient(ahead)
        if gap(ahead, correlation) <= allowed:
            return ahead, step
        new = _soft_threshold(ahead + correlation / lipschitz, penalty / lipschitz)
        if (ahead - new) @ (new - weights) > 0:
            next_momentum, ahead = 1.0, new
        else:
            next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / next_momentum * (new - weights)
        weights, momentum = new, next_momentum
    return weights, num_steps


def _soft_threshold(values: np.ndarray, threshold: float) -> np.ndarray:
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0)


def lasso_gap(target_norm, fit_inner, fit_norm, largest, penalty, l1_norm) -> tuple[float, float]:
    """The primal value and the duality gap of ½‖y − Aw‖² + λ‖w‖₁, from ‖y‖², yᵀAw, ‖Aw‖², ‖Aᵀr‖_∞ and ‖w‖₁.

    The dual point θ is the residual r = y − Aw, scaled down so that ‖Aᵀθ‖_∞ ≤ λ. The dual value is ½‖y‖² − ½‖y − θ‖².
    """
    residual_norm = target_norm - 2 * fit_inner + fit_norm
    primal = 0.5 * residual_norm + penalty * l1_norm
    inner = target_norm - fit_inner  # yᵀr
    shrink = min(1.0, penalty / largest) if largest > 0 else 1.0
    return primal, primal - (shrink * inner - 0.5 * shrink**2 * residual_norm)


def _solve(problem: LeastSquares, weights, count, penalty, allowed):
    """The Lasso for the first ``count`` weights, from ``weights`` [M], to a duality gap of ``allowed``."""
    weights, trace, gap, steps = weights.copy(), [], math.inf, 0
    working = np.flatnonzero(weights)
    for round_ in range(_MAX_ROUNDS + 1):
        correlation, residual = problem.correlation(weights, count)
        primal, gap = problem.primal_and_gap(weights, residual, correlation, penalty)
        trace.append(primal)
        waits = round_ <= problem.rounds_to_wait or trace[-1] < trace[-2] - _LEAST * allowed
        if gap <= allowed or round_ == _MAX_ROUNDS or not waits:
            break  # converged, or rounding allows no more accuracy
        weights, working, taken = problem.improved(weights, correlation, working, penalty, allowed)
        steps += taken
    return weights, SolverReport(np.asarray(trace), max(float(gap), 0.0), bool(gap <= allowed), steps)


def lasso_path(
    features: Float[AnyArray, "M F"],
    target: Float[AnyArray, "F"],
    penalty: float,
    sizes: Sequence[int],
    *,
    tolerance: float = 1e-5,
) -> Iterator[tuple[Float64[np.ndarray, "m"], SolverReport]]:
    """argmin ½‖y − Σ_m w_m a_m‖² + λ‖w‖₁ for growing sets of feature vectors. Each solve starts at the one before.

    Args:
      features: a, one row for each weight, [M, F]. On a GPU whose memory is large enough they stay there.
      target: y, [F].
      penalty: λ > 0.
      sizes: increasing numbers of feature vectors to use, each from 1 to M.
      tolerance: of the duality gap, in units of ½‖y‖².

    Yields:
      For each size, the weights, float64 [size], and the report of the solver. ``report.gap`` is the duality gap.

    Raises:
      ValueError: λ ≤ 0, sizes do not increase or are out of range, a value is not finite, or shapes mismatch.
    """
    if not penalty > 0:
        raise ValueError(f"penalty must be positive, got {penalty}")
    sizes = [int(size) for size in sizes]
    if sizes != sorted(set(sizes)) or not sizes or sizes[0] < 1 or sizes[-1] > len(features):
        raise ValueError(f"sizes must increase and be from 1 to {len(features)}, got {sizes}")
    yield from solve_path(least_squares_of(features, target), penalty, sizes, tolerance)


def solve_path(
    problem: LeastSquares, penalty: float, sizes: Sequence[int], tolerance: float
) -> Iterator[tuple[Float64[np.ndarray, "m"], SolverReport]]:
    """The solutions of :func:`lasso_path`, for a problem that was built before. The arguments are not checked.

    Args:
      problem: of all M feature vectors.
      penalty: λ > 0.
      sizes: increasing numbers of feature vectors to use, each from 1 to M.
      tolerance: of the duality gap, in units of ½‖y‖².

    Yields:
      As :func:`lasso_path`.
    """
    weights = np.zeros(problem.num_weights)
    for size in sizes:
        allowed = tolerance * 0.5 * problem.target_norm
        weights, report = _solve(problem, weights, size, penalty, allowed)
        yield weights[:size].copy(), report


def l1_ball_least_squares(
    features: Float[AnyArray, "M F"],
    target: Float[AnyArray, "F"],
    *,
    radius: float = 1.0,
    start: Float[AnyArray, "M"] | None = None,
    tolerance: float = 1e-9,
    max_solves: int = 60,
) -> tuple[Float64[np.ndarray, "M"], SolverReport]:
    """argmin ½‖y − Σ_m w_m a_m‖² over Σ_m |w_m| ≤ C, by the Lasso whose solution has L1 norm C.

    ‖w(λ)‖₁ decreases with λ. It is linear in λ while the signs of w stay the same. So λ is found by Newton steps within
    a bracket.

    Args:
      features: a, one row for each weight, [M, F].
      target: y, [F].
      radius: C > 0.
      start: weights at which to start, [M]; zeros if None.
      tolerance: of the Frank–Wolfe gap, which is an upper bound of objective minus optimum.
      max_solves: largest number of values of λ to try.

    Returns:
      The best weights w with Σ|w_m| ≤ C, float64 [M], and a report with one objective for each λ that was tried.
    """
    problem = least_squares_of(features, target)
    weights = np.zeros(problem.num_weights) if start is None else np.asarray(start, np.float64)
    largest = float(np.abs(problem.inner).max(initial=0))  # from this λ on, w(λ) = 0
    low, high, penalty, accuracy = 0.0, largest, 0.1 * largest, 0.1 * tolerance
    best, best_value, best_gap, trace, steps = np.zeros_like(weights), 0.5 * problem.target_norm, np.inf, [], 0
    for _ in range(max_solves):
        weights, report = _solve(problem, weights, len(weights), penalty, accuracy)
        steps += report.num_iterations
        norm = float(np.abs(weights).sum())
        feasible = weights * min(1.0, radius / norm) if norm else weights
        correlation, residual = problem.correlation(feasible, len(weights))
        # Frank–Wolfe gap: max over the ball of ⟨∇, w − u⟩ ≥ objective(w) − optimum, by convexity.
        gap = radius * float(np.abs(correlation).max(initial=0)) - float(feasible @ correlation)
        if gap < best_gap:
            best, best_value, best_gap = feasible, 0.5 * float(residual @ residual), gap
        elif report.num_iterations == 0:  # the start is accurate enough for this λ, but not for the constraint
            accuracy = max(0.1 * accuracy, 1e-16 * problem.target_norm)
        trace.append(best_value)
        if best_gap <= tolerance:
            break
        low, high = (penalty, high) if norm > radius else (low, penalty)
        active = np.flatnonzero(weights)
        path = _path_direction(problem.gram(active), np.sign(weights[active]))  # −dw/dλ
        slope = float(path @ np.sign(weights[active]))
        change = (norm - radius) / slope if slope > 0 else np.inf
        if low < penalty + change < high:
            penalty += change
            moved = weights[active] - change * path
            weights[active] = np.where(moved * weights[active] > 0, moved, 0)
        else:
            penalty = math.sqrt(low * high) if low > 0 else 0.05 * high
    return best, SolverReport(np.asarray(trace), max(best_gap, 0.0), best_gap <= tolerance, steps)


def _path_direction(gram: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """G⁻¹s: minus the derivative of the weights by λ, as long as their signs s stay the same."""
    if not len(signs):
        return np.zeros(0)
    system = gram + 1e-12 * gram.diagonal().max() * np.eye(len(gram))
    return scipy.linalg.solve(system, signs, assume_a="sym")
