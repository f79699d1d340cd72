"""Sparse weights: least squares with an L1 penalty or an L1 constraint, for any feature vectors.

One solver serves both, on the host in float64: Newton steps on a working set of weights. Feature vectors of near-by
points are nearly parallel, so first-order methods need tens of thousands of steps here, while a Newton step costs one
Cholesky factorisation of the few weights that are not zero. Every answer comes with a gap that certifies it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.linalg
import threadpoolctl

_DENSE_LIMIT = 3000  # weights other than zero above which first-order steps go on: so many are hardly parallel
_FIRST_ORDER_STEPS = 50
_SHORTEST, _LONGEST = 1.0, 1e12  # σ of the proximal point steps, for feature vectors of norm about 1
_MAX_NEWTON_STEPS = 40  # per proximal point step
_MAX_STEPS = 5000  # per working set
_ROWS_PER_PRODUCT = 1024
# Thousands of small factorisations are several times slower with more than one BLAS thread on a machine that has other
# work, as every one of them waits for all threads.
_BLAS = threadpoolctl.ThreadpoolController()


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


class _LeastSquares:
    """½‖y − Σ_m w_m a_m‖² with the Gram matrix of those a_m that were ever in the working set.

    Attributes:
      features: a, one row per weight, [M, F].
      target: y, [F].
      inner: aᵀy, [M].
      known: the weights in ``gram``, in its order.
      gram: [known, known].
    """

    def __init__(self, features: np.ndarray, target: np.ndarray):
        self.features, self.target = np.asarray(features), np.asarray(target, np.float64)
        if self.features.ndim != 2 or self.target.shape != self.features.shape[1:]:
            shapes = f"{list(self.features.shape)} and target {list(self.target.shape)}"
            raise ValueError(f"features {shapes} do not fit: [M, F] and [F] are needed")
        if not (np.isfinite(self.target).all() and np.isfinite(self.features).all()):
            raise ValueError("features and target must be finite")
        self.known = np.zeros(0, int)
        self._position = np.full(len(self.features), -1)
        self._gram = np.zeros((0, 0))
        self._rows = np.zeros((0, self.target.size), self.features.dtype)
        blocks = range(0, len(self.features), _ROWS_PER_PRODUCT)
        parts = [self.features[i : i + _ROWS_PER_PRODUCT].astype(np.float64) @ self.target for i in blocks]
        self.inner = np.concatenate([np.zeros(0), *parts])
        self.target_norm = float(self.target @ self.target)

    def correlation(self, weights: np.ndarray, count: int) -> tuple[np.ndarray, float]:
        """aᵀr of the first ``count`` weights, r = y − Σ w a, and ‖r‖²."""
        active = np.flatnonzero(weights)
        residual = self.target.copy()
        for i in range(0, len(active), _ROWS_PER_PRODUCT):
            part = active[i : i + _ROWS_PER_PRODUCT]
            residual -= weights[part] @ self.features[part].astype(np.float64)
        norm = float(residual @ residual)
        scale = np.sqrt(norm) or 1.0  # a float32 product of a small residual keeps its relative accuracy
        product = self.features[:count] @ (residual / scale).astype(self.features.dtype)
        return scale * product.astype(np.float64), norm

    def gram(self, indices: np.ndarray) -> np.ndarray:
        """a_iᵀa_j for i, j in ``indices``; inner products are computed once."""
        new = indices[self._position[indices] < 0]
        if len(new):
            old, size = len(self.known), len(self.known) + len(new)
            if size > len(self._gram):
                capacity = min(len(self.features), max(size, 2 * len(self._gram), 256))
                grown = np.zeros((capacity, capacity))
                grown[:old, :old] = self._gram[:old, :old]
                self._gram = grown
            self.known = np.concatenate([self.known, new])
            self._position[new] = np.arange(old, size)
            added = self.features[new].astype(np.float64)
            for start in range(0, size, _ROWS_PER_PRODUCT):
                part = self.known[start : start + _ROWS_PER_PRODUCT]
                product = self.features[part].astype(np.float64) @ added.T
                self._gram[start : start + len(part), old:size] = product
                self._gram[old:size, start : start + len(part)] = product.T
        position = self._position[indices]
        return self._gram[np.ix_(position, position)]


def _accelerated(gram, inner, weights, penalty, num_steps: int):
    """Accelerated proximal gradient steps (FISTA) with gradient restart (O'Donoghue & Candès 2015)."""
    probe = 1.5 + np.cos(np.arange(len(gram)))
    for _ in range(20):
        probe = gram @ (probe / np.linalg.norm(probe))
    lipschitz = 1.05 * float(np.linalg.norm(probe)) + 1e-300
    ahead, momentum = weights, 1.0
    for _ in range(num_steps):
        moved = ahead + (inner - gram @ ahead) / lipschitz
        new = _soft_threshold(moved, penalty / lipschitz)
        if (ahead - new) @ (new - weights) > 0:
            next_momentum, ahead = 1.0, new
        else:
            next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / next_momentum * (new - weights)
        weights, momentum = new, next_momentum
    return weights


def _soft_threshold(values: np.ndarray, threshold: float) -> np.ndarray:
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0)


def _proximal_step(gram, inner, weights, penalty, length, accuracy) -> tuple[np.ndarray, int]:
    """argmin_u ½uᵀGu − cᵀu + λ‖u‖₁ + ‖u − w‖²/2σ for σ = ``length``, by semi-smooth Newton steps on its dual.

    The dual variable is a residual y − Σ v_m a_m, kept as v; its objective is ½vᵀGv + ‖p‖²/2σ with
    p = soft(w + σ(c − Gv), σλ), and its gradient Σ (p_m − v_m) a_m, which vanishes where u = p = v
    (Li, Sun & Toh 2018).
    """
    v, product = weights, gram @ weights

    def primal(product):
        return _soft_threshold(weights + length * (inner - product), length * penalty)

    p = primal(product)
    value = 0.5 * float(v @ product) + float(p @ p) / (2 * length)
    for step in range(_MAX_NEWTON_STEPS):
        q = p - v
        image = gram @ q
        squared = float(q @ image)  # of the gradient
        if squared <= accuracy:
            return p, step
        active = np.flatnonzero(p)
        direction = q
        if len(active):
            system = gram[np.ix_(active, active)]
            system.flat[:: len(active) + 1] += 1 / length
            try:
                factor = scipy.linalg.cho_factor(system, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                return p, _MAX_NEWTON_STEPS  # 1/σ is lost in rounding
            direction = q.copy()
            direction[active] -= scipy.linalg.cho_solve(factor, image[active], check_finite=False)
        change = gram @ direction
        descent, size = -float(direction @ image), 1.0
        while True:
            new_v, new_product = v + size * direction, product + size * change
            new_p = primal(new_product)
            new_value = 0.5 * float(new_v @ new_product) + float(new_p @ new_p) / (2 * length)
            if new_value <= value + 1e-4 * size * descent:
                break
            size *= 0.5
            if size < 1e-6:
                return p, step + 1  # as accurate as rounding lets it be
        v, product, p, value = new_v, new_product, new_p, new_value
    return p, _MAX_NEWTON_STEPS


def _solve_working_set(gram, inner, weights, penalty, target_norm, allowed, outer_gap) -> tuple[np.ndarray, int]:
    """½wᵀGw − cᵀw + λ‖w‖₁ to a duality gap of ``allowed`` within the working set: a few first-order steps, which find
    most of the zeros, then proximal point steps of growing length.

    Where so many weights remain that only first-order steps are affordable, a gap well below the ``outer_gap`` of the
    whole problem will do: the working set is far from its final one.
    """
    scale = max(float(gram.diagonal().max()), 1e-300)
    steps, length, longest = 0, _SHORTEST / scale, _LONGEST / scale
    while True:
        gradient = inner - gram @ weights  # −∇ of the smooth part: the correlations with the residual
        fit_inner = float(weights @ inner)
        fit_norm = fit_inner - float(weights @ gradient)
        largest, l1_norm = float(np.abs(gradient).max()), float(np.abs(weights).sum())
        _, gap = lasso_gap(target_norm, fit_inner, fit_norm, largest, penalty, l1_norm)
        dense = np.count_nonzero(weights) > _DENSE_LIMIT
        if gap <= (max(allowed, 0.1 * outer_gap) if dense else allowed) or steps >= _MAX_STEPS:
            return weights, steps
        if steps < _FIRST_ORDER_STEPS or dense:
            weights = _accelerated(gram, inner, weights, penalty, _FIRST_ORDER_STEPS)
            steps += _FIRST_ORDER_STEPS
            continue
        new, taken = _proximal_step(gram, inner, weights, penalty, length, 0.1 * allowed)
        steps += taken + 1
        before, after = (_value(w, inner, inner - gram @ w, penalty) for w in (weights, new))
        if after <= before + allowed:
            weights, length = new, min(length * (5 if taken <= 10 else 3), longest)
        else:  # the step was too long for the Newton method
            length /= 30


def _value(weights, inner, gradient, penalty) -> float:
    """½wᵀGw − cᵀw + λ‖w‖₁, for c = inner and c − Gw = gradient."""
    return -0.5 * float(weights @ (inner + gradient)) + penalty * float(np.abs(weights).sum())


def lasso_gap(target_norm, fit_inner, fit_norm, largest, penalty, l1_norm) -> tuple[float, float]:
    """Primal value and duality gap of ½‖y − Aw‖² + λ‖w‖₁, from ‖y‖², yᵀAw, ‖Aw‖², ‖Aᵀr‖_∞ and ‖w‖₁.

    The dual point is the residual r = y − Aw, shrunk so that ‖Aᵀθ‖_∞ ≤ λ; the dual value is ½‖y‖² − ½‖y − θ‖².
    """
    residual_norm = target_norm - 2 * fit_inner + fit_norm
    primal = 0.5 * residual_norm + penalty * l1_norm
    inner = target_norm - fit_inner  # yᵀr
    shrink = min(1.0, penalty / largest) if largest > 0 else 1.0
    return primal, primal - (shrink * inner - 0.5 * shrink**2 * residual_norm)


def _solve(problem: _LeastSquares, weights, count, penalty, allowed, max_rounds):
    """The Lasso for the first ``count`` weights, from ``weights`` [M], to a duality gap of ``allowed``."""
    weights, trace, steps = weights.copy(), [], 0
    working = np.flatnonzero(weights)
    for round_ in range(max_rounds + 1):
        correlation, residual_norm = problem.correlation(weights, count)
        fit_inner = float(weights @ problem.inner)
        fit_norm = residual_norm - problem.target_norm + 2 * fit_inner
        largest = float(np.abs(correlation).max(initial=0))
        primal, gap = lasso_gap(
            problem.target_norm, fit_inner, fit_norm, largest, penalty, float(np.abs(weights).sum())
        )
        trace.append(primal)
        if gap <= allowed or round_ == max_rounds or (round_ > 1 and not trace[-1] < trace[-2]):
            break  # done, or as good as rounding lets it be
        # Weights that left stay out until they violate |aᵀr| ≤ λ; violators join, the worst first.
        violation = np.abs(correlation)
        violation[working] = 0
        joining = np.argsort(-violation)[: max(100, len(working))]
        working = np.concatenate([working, joining[violation[joining] > penalty]])
        gram, inner = problem.gram(working), problem.inner[working]
        many = len(working) > _DENSE_LIMIT
        with contextlib.nullcontext() if many else _BLAS.limit(limits=1, user_api="blas"):
            solution, taken = _solve_working_set(
                gram, inner, weights[working], penalty, problem.target_norm, 0.3 * allowed, gap
            )
        weights[working] = solution
        working = working[solution != 0]
        steps += taken
    return weights, SolverReport(np.asarray(trace), max(float(gap), 0.0), bool(gap <= allowed), steps)


def lasso_path(
    features: np.ndarray,
    target: np.ndarray,
    penalty: float,
    sizes: Sequence[int],
    *,
    tolerance: float = 1e-5,
    max_rounds: int = 100,
) -> Iterator[tuple[np.ndarray, SolverReport]]:
    """argmin ½‖y − Σ_m w_m a_m‖² + λ‖w‖₁ for growing sets of feature vectors, each solve starting at the last.

    Args:
      features: a, one row per weight, [M, F].
      target: y, [F].
      penalty: λ > 0.
      sizes: how many of the feature vectors to use, increasing, each in 1, ..., M.
      tolerance: stop when the duality gap is at most this times ½‖y‖².
      max_rounds: extensions of the working set before giving up.

    Yields:
      For each size its weights, float64 [size], and how it went; ``report.gap`` is the duality gap.

    Raises:
      ValueError: λ ≤ 0, sizes that do not increase or are out of range, values that are not finite, or shapes that do
        not fit.
    """
    if not penalty > 0:
        raise ValueError(f"penalty must be positive, got {penalty}")
    sizes = [int(size) for size in sizes]
    if sizes != sorted(set(sizes)) or not sizes or sizes[0] < 1 or sizes[-1] > len(features):
        raise ValueError(f"sizes must increase and lie in 1, ..., {len(features)}, got {sizes}")
    problem = _LeastSquares(features, target)
    weights = np.zeros(len(problem.features))
    for size in sizes:
        allowed = tolerance * 0.5 * problem.target_norm
        weights, report = _solve(problem, weights, size, penalty, allowed, max_rounds)
        yield weights[:size].copy(), report


def l1_ball_weights(
    features: np.ndarray,
    target: np.ndarray,
    *,
    radius: float = 1.0,
    start: np.ndarray | None = None,
    tolerance: float = 1e-9,
    max_solves: int = 60,
) -> tuple[np.ndarray, SolverReport]:
    """argmin ½‖y − Σ_m w_m a_m‖² over Σ_m |w_m| ≤ C, by the Lasso whose solution has L1 norm C.

    ‖w(λ)‖₁ falls with λ, and is linear in it while the signs of w stay the same, so λ is found by Newton steps kept
    within a bracket.

    Args:
      features: a, one row per weight, [M, F].
      target: y, [F].
      radius: C > 0.
      start: weights to start from, [M]; zeros if None.
      tolerance: stop when the Frank–Wolfe gap, an upper bound of objective minus optimum, is at most this.
      max_solves: values of λ tried before giving up.

    Returns:
      w [M] in float64 with Σ|w_m| ≤ C, the best found, and how it went; one objective for each λ tried.
    """
    problem = _LeastSquares(features, target)
    weights = np.zeros(len(problem.features)) if start is None else np.asarray(start, np.float64)
    largest = float(np.abs(problem.inner).max(initial=0))  # from this λ on, w(λ) = 0
    low, high, penalty, accuracy = 0.0, largest, 0.1 * largest, 0.1 * tolerance
    best, best_value, best_gap, trace, steps = np.zeros_like(weights), 0.5 * problem.target_norm, np.inf, [], 0
    for _ in range(max_solves):
        weights, report = _solve(problem, weights, len(weights), penalty, accuracy, 100)
        steps += report.num_iterations
        norm = float(np.abs(weights).sum())
        feasible = weights * min(1.0, radius / norm) if norm else weights
        correlation, residual_norm = problem.correlation(feasible, len(weights))
        # Frank–Wolfe gap: max over the ball of ⟨∇, w − u⟩ ≥ objective(w) − optimum, by convexity.
        gap = radius * float(np.abs(correlation).max(initial=0)) - float(feasible @ correlation)
        if gap < best_gap:
            best, best_value, best_gap = feasible, 0.5 * residual_norm, gap
        elif report.num_iterations == 0:  # the start was accurate enough already, but not for this constraint
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
    """G⁻¹s: minus the derivative of the weights by λ while their signs s stay."""
    if not len(signs):
        return np.zeros(0)
    system = gram + 1e-12 * gram.diagonal().max() * np.eye(len(gram))
    return scipy.linalg.solve(system, signs, assume_a="sym")
