"""A primal-dual interior-point method (Mehrotra 1992) for the Lasso of a working set of weights, in float64.

It minimises ½wᵀGw − cᵀw + λ‖w‖₁ in 10 to 20 steps for any features, however parallel they are. Each step costs one
Cholesky factorisation of the size of the working set.

The weights are w = u − v for u, v ≥ 0. Their multipliers are z = (λ + g, λ − g) ≥ 0, where g = Gw − c is the gradient
of the smooth part. Newton steps solve (G + D) Δw = b, where D is diagonal.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float64, Int32

from kme_jax._numerics.short_repr import short_repr

Array = jax.Array

_TO_BOUNDARY = 0.99  # share of the way to the boundary
_DAMPING = 1e-13  # share of the largest ‖a‖² that is added to the diagonal, so that the factor exists
_START = 0.1  # u and v at the start, in units of ‖y‖/‖a‖
_THRESHOLDS = 10.0 ** np.arange(1, -8.5, -0.5)  # at which weights become zero, the sparsest first
_MAX_STEPS = 60
_PATIENCE = 8  # steps without a smaller gap
_EXACT = 1e-4  # share of the allowed gap to reach: the weights that are zero are then clear


@short_repr
@dataclasses.dataclass(frozen=True)
class LassoProblem:
    """½wᵀGw − cᵀw + λ‖w‖₁ for n weights, in arrays of NumPy or of JAX, and steps of the interior-point method.

    Attributes:
      namespace: numpy or jax.numpy.
      product: a function v -> Gv, of vectors [n] or of columns [n, k].
      factorised: a function of a positive definite matrix A that returns b -> A⁻¹b. It may overwrite A.
      gram: G, [n, n].
      inner: c, [n].
      penalty: λ.
      target_norm: ‖y‖², so that the objective plus ½‖y‖² is that of the Lasso.
    """

    namespace: types.ModuleType
    product: Callable
    factorised: Callable
    gram: Any
    inner: Any
    penalty: Any
    target_norm: Any

    def gaps(self, weights: Any, image: Any) -> Any:
        """The duality gaps of columns of weights w, for their Gw, all [n, k], as in ``lasso.lasso_gap``: [k]."""
        xp = self.namespace
        largest = xp.max(xp.abs(self.inner[:, None] - image), axis=0)
        fit_inner, fit_norm = self.inner @ weights, xp.sum(weights * image, axis=0)
        residual_norm = self.target_norm - 2 * fit_inner + fit_norm
        shrink = xp.minimum(1, self.penalty / xp.maximum(largest, 1e-300))
        primal = 0.5 * residual_norm + self.penalty * xp.sum(xp.abs(weights), axis=0)
        return primal - (shrink * (self.target_norm - fit_inner) - 0.5 * shrink**2 * residual_norm)

    def gap(self, weights: Any, image: Any) -> Any:
        """The duality gap of weights w [n], for their Gw."""
        return self.gaps(weights[:, None], image[:, None])[0]

    def start(self) -> tuple[Any, Any]:
        """x = (u, v) and its multipliers z, each [2, n], at which the method starts: at w = 0, where g = −c."""
        xp = self.namespace
        norm = xp.sqrt(xp.maximum(xp.max(xp.diagonal(self.gram)), 1e-300))
        x = xp.ones((2, len(self.inner))) * (_START * xp.sqrt(self.target_norm) / norm)
        return x, xp.maximum(self.penalty + self._both(-self.inner), self.penalty)

    def step(self, x: Any, z: Any, gradient: Any) -> tuple[Any, Any]:
        """One step from x = (u, v) and its multipliers z, each [2, n], for the gradient g [n]: the new x and z.

        The linearised conditions are Δz = ±GΔw + ρ with ρ = (λ + g, λ − g) − z, and xΔz + zΔx = b.
        """
        xp = self.namespace
        missing = self.penalty + self._both(gradient) - z  # ρ
        ratio = x / z
        diagonal = 1 / (ratio[0] + ratio[1])
        damping = _DAMPING * xp.max(xp.diagonal(self.gram))
        solve = self.factorised(self.gram + xp.diag(diagonal + damping))
        larger = xp.stack([x[0] >= x[1], x[0] < x[1]])

        def direction(b):
            right = b / z - ratio * missing
            change = solve((right[0] - right[1]) * diagonal)
            dz = self._both(self.product(change)) + missing
            dx = (b - x * dz) / z
            # The larger of Δu and Δv follows from Δu − Δv = Δw: then z is z(w) to the last bit, and errors of the
            # factorisation do no harm.
            return xp.where(larger, dx[::-1] + self._both(change), dx), dz

        def longest(dx, dz):  # the step to the boundary
            return 1 / xp.maximum(xp.maximum(xp.max(-dx / x), xp.max(-dz / z)), 1e-300)

        dx, dz = direction(-x * z)
        length = xp.minimum(1, longest(dx, dz))
        mean = xp.mean(x * z)
        centring = (xp.mean((x + length * dx) * (z + length * dz)) / mean) ** 3
        dx, dz = direction(centring * mean - x * z - dx * dz)
        length = xp.minimum(1, _TO_BOUNDARY * longest(dx, dz))
        return x + length * dx, z + length * dz

    def sparse(self, weights: Any, allowed: Any, gap: Any) -> Any:
        """The weights with as many zeros as a gap of ``allowed`` permits, or the ``gap`` that they have.

        A weight of the solution is zero if |aᵀr| < λ. An interior point is not there yet: its w and λ − |aᵀr| are small
        or large, one against the other. So weights become zero in the order of the ratio.
        """
        xp = self.namespace
        slack = self.penalty - xp.sign(weights) * (self.inner - self.product(weights))
        slack = xp.maximum(slack, 1e-12 * self.penalty)
        ratio = xp.abs(weights) * self.penalty / (slack * xp.maximum(xp.max(xp.abs(weights)), 1e-300))
        candidates = xp.where(ratio[:, None] > np.append(_THRESHOLDS, -1.0)[None], weights[:, None], 0)
        good = self.gaps(candidates, self.product(candidates)) <= xp.maximum(allowed, gap)
        none = len(_THRESHOLDS)  # the last candidate has all weights
        return xp.take(candidates, xp.where(xp.any(good), xp.argmax(good), none), axis=1)

    def _both(self, vector):
        """(a, −a), for u and for v."""
        return self.namespace.stack([vector, -vector])


def goes_on(gap: Any, allowed: Any, taken: Any, waited: Any) -> Any:
    """Whether to take one more step, after ``taken`` steps and ``waited`` steps without a smaller gap."""
    return (gap > _EXACT * allowed) & (taken < _MAX_STEPS) & (waited < _PATIENCE)


def minimised_on_the_host(
    gram: Float64[np.ndarray, "n n"],
    inner: Float64[np.ndarray, "n"],
    penalty: float,
    target_norm: float,
    allowed: float,
) -> tuple[Float64[np.ndarray, "n"], int]:
    """argmin ½wᵀGw − cᵀw + λ‖w‖₁, to a duality gap of ``allowed``.

    Args:
      gram: G.
      inner: c.
      penalty: λ.
      target_norm: ‖y‖².
      allowed: the largest gap. If rounding does not allow it, the gap is as small as rounding allows.

    Returns:
      The weights, and the number of steps.
    """

    def factorised(matrix):
        factor = scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        return lambda vector: scipy.linalg.cho_solve(factor, vector, check_finite=False)

    problem = LassoProblem(np, lambda vectors: gram @ vectors, factorised, gram, inner, penalty, target_norm)
    best = image = np.zeros_like(inner)
    least, taken, waited = problem.gap(best, image), 0, 0
    x, z = problem.start()
    while goes_on(least, allowed, taken, waited):
        try:
            x, z = problem.step(x, z, image - inner)
        except np.linalg.LinAlgError:
            break  # by rounding, the matrix is not positive definite
        weights = x[0] - x[1]
        image, taken = gram @ weights, taken + 1
        gap = problem.gap(weights, image)
        if not np.isfinite(gap):
            break
        best, least, waited = (weights, gap, 0) if gap < least else (best, least, waited + 1)
    return problem.sparse(best, allowed, least), taken


def minimised_on_the_device(
    problem: LassoProblem, allowed: Float64[Array, ""] | float
) -> tuple[Float64[Array, "n"], Int32[Array, ""]]:
    """As :func:`minimised_on_the_host`, for a problem in arrays of JAX, in one loop of a compiled program."""

    def advance(state):
        x, z, image, best, least, taken, waited = state
        x, z = problem.step(x, z, image - problem.inner)
        weights = x[0] - x[1]
        image = problem.product(weights)
        gap = problem.gap(weights, image)
        better = gap < least
        waited = jnp.where(better, 0, jnp.where(jnp.isfinite(gap), waited + 1, _PATIENCE))
        best, least = jnp.where(better, weights, best), jnp.where(better, gap, least)
        return x, z, image, best, least, taken + 1, waited

    zero = jnp.zeros_like(problem.inner)
    state = (*problem.start(), zero, zero, problem.gap(zero, zero), jnp.int32(0), jnp.int32(0))
    state = jax.lax.while_loop(lambda state: goes_on(state[4], allowed, *state[5:]), advance, state)
    _, _, _, weights, least, taken, _ = state
    return problem.sparse(weights, allowed, least), taken
