"""The solver of :mod:`kme_jax.synthesis.lasso` for feature vectors on a GPU, where everything stays.

A GPU does few large operations well and many small ones badly. So the Lasso for a working set of weights is solved by a
primal-dual interior-point method (Mehrotra 1992) in float64. It takes 10 to 20 steps for any features, however parallel
they are. Each step costs one Cholesky factorisation of the size of the working set. If that is large, accelerated
first-order steps are tried first: feature vectors are then hardly parallel.

The weights are w = u − v for u, v ≥ 0. Their multipliers are z = (λ + g, λ − g) ≥ 0, where g = Gw − c is the gradient
of the smooth part. Newton steps solve (G + D) Δw = b, where D is diagonal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int

from kme_jax._numerics.precision import in_float64, reproducible_jit
from kme_jax._numerics.shapes import AnyArray

Array = jax.Array

_MAX_STEPS = 60
_PATIENCE = 8  # steps without a smaller gap
_TO_BOUNDARY = 0.99  # share of the way to the boundary
_EXACT = 1e-4  # share of the allowed gap to reach: the weights that are zero are then clear
_DAMPING = 1e-13  # share of the largest ‖a‖² that is added to the diagonal, so that the factor exists
_START = 0.1  # u and v at the start, in units of ‖y‖/‖a‖
_THRESHOLDS = 10.0 ** np.arange(1, -8.5, -0.5)  # at which weights become zero, the sparsest first
_MEMORY_SHARE = 0.4  # of a device's memory that one problem may need
_SMALLEST = 128  # working set
_FIRST_ORDER_STEPS = 1500
_POWER_STEPS = 20


def fits(features: Float[AnyArray, "M F"]) -> bool:
    """Whether feature vectors [M, F] are on a GPU whose memory is large enough to solve for their weights there.

    Those of a TPU do not fit: it has no float64.
    """
    if not isinstance(features, jax.Array) or features.ndim != 2 or len(features.devices()) != 1:
        return False
    (device,) = features.devices()
    limit = (device.memory_stats() or {}).get("bytes_limit", 0) if device.platform == "gpu" else 0
    return memory_needed(*features.shape) <= _MEMORY_SHARE * limit


def memory_needed(num_weights: int, num_features: int) -> int:
    """Bytes of a device's memory that one problem needs at most, beside its features [M, F].

    The Gram matrix, its block for the working set, the sum of that block and a diagonal matrix, and the factor of this
    sum have 8M² bytes each. The features are converted to float64 once.
    """
    return 8 * num_weights * (4 * num_weights + num_features)


@reproducible_jit
def _gram(features):
    features = features.astype(jnp.float64)
    return jnp.matmul(features, features.T, precision=jax.lax.Precision.HIGHEST)


@reproducible_jit
def _correlation(features, target, weights):
    features = features.astype(jnp.float64)
    residual = target - jnp.matmul(weights, features, precision=jax.lax.Precision.HIGHEST)
    return jnp.matmul(features, residual, precision=jax.lax.Precision.HIGHEST), residual


@reproducible_jit
def _block(gram, rows, columns):
    return gram[rows][:, columns]


class DeviceRows:
    """Feature vectors a_m on a GPU, and their Gram matrix.

    Args:
      features: a, [M, F].

    Attributes:
      shape: (M, F).
      large: the size of a working set above which first-order steps are tried.
      first_order_helps: False once first-order steps did not reach the gap that was allowed.
    """

    large = 2048

    @in_float64
    def __init__(self, features: Float[Array, "M F"]):
        self.first_order_helps = True
        self.shape = features.shape
        self._features, self._gram = features, _gram(features)

    def working_size(self, count: int) -> int:
        """The smallest size of a program for ``count`` weights: 128, 256, 512, 1024, 1536, 2048, 3072, ..., M."""
        size = _SMALLEST
        while size < count:
            size = size * 3 // 2 if size >= 1024 and size & (size - 1) == 0 else 1 << size.bit_length()
        return min(size, self.shape[0])

    @in_float64
    def correlation(
        self, target: Float64[np.ndarray, "F"], weights: Float64[np.ndarray, "M"]
    ) -> tuple[Float64[np.ndarray, "M"], Float64[np.ndarray, "F"]]:
        """aᵀr for r = y − Σ_m w_m a_m, and r, in float64."""
        correlation, residual = _correlation(self._features, target, weights)
        return np.asarray(correlation), np.asarray(residual)

    @in_float64
    def gram(self, indices: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n n"]:
        """a_iᵀa_j for i, j in ``indices``."""
        padded = _padded(indices, self.working_size(len(indices)))
        return np.asarray(_block(self._gram, padded, padded))[: len(indices), : len(indices)]

    @in_float64
    def solve(
        self,
        inner: Float64[np.ndarray, "M"],
        weights: Float64[np.ndarray, "M"],
        working: Int[np.ndarray, "n"],
        penalty: float,
        target_norm: float,
        allowed: float,
    ) -> tuple[Float64[np.ndarray, "n"], int]:
        """argmin ½wᵀGw − cᵀw + λ‖w‖₁ over the weights in ``working``, to a duality gap of ``allowed``.

        Args:
          inner: c = aᵀy, [M].
          weights: at which first-order steps start, [M].
          working: indices of weights.
          penalty: λ.
          target_norm: ‖y‖².
          allowed: the largest gap. It may be below what rounding allows.

        Returns:
          The weights, and the number of steps.
        """
        size, taken = self.working_size(len(working)), 0
        padded = _padded(working, size)
        inner, start = (np.pad(vector[working], (0, size - len(working))) for vector in (inner, weights))
        arguments = self._gram, padded, len(working), inner, penalty, target_norm, allowed
        if size > self.large and self.first_order_helps:
            solution, gap, steps = _accelerated(*arguments, start)
            taken, self.first_order_helps = int(steps), bool(gap <= allowed)
            if self.first_order_helps:
                return np.asarray(solution)[: len(working)], taken
        solution, steps = _solve(*arguments)
        return np.asarray(solution)[: len(working)], taken + int(steps)


def _padded(indices: np.ndarray, size: int) -> np.ndarray:
    return np.pad(indices, (0, size - len(indices))).astype(np.int32)


def _gap(target_norm: Any, fit_inner: Any, fit_norm: Any, largest: Any, penalty: Any, l1_norm: Any) -> Any:
    """The duality gap as in :func:`kme_jax.synthesis.lasso.lasso_gap`, for arrays of a device."""
    residual_norm = target_norm - 2 * fit_inner + fit_norm
    shrink = jnp.minimum(1, penalty / jnp.maximum(largest, 1e-300))
    primal = 0.5 * residual_norm + penalty * l1_norm
    return primal - (shrink * (target_norm - fit_inner) - 0.5 * shrink**2 * residual_norm)


def _problem(gram, working, count, inner, penalty, target_norm):
    """The Gram matrix of a working set [n], its product with vectors, and the duality gaps of columns of weights.

    Only the first ``count`` indices are used. The others fill up the shape, and their feature vectors are zero here.
    """
    used = jnp.arange(len(working)) < count
    gram = jnp.where(used[:, None] & used[None], gram[working][:, working], 0)

    def product(vectors):
        return jnp.matmul(gram, vectors, precision=jax.lax.Precision.HIGHEST)

    def gaps(weights, image):
        largest = jnp.max(jnp.abs(inner[:, None] - image), axis=0)
        fit_inner, fit_norm = inner @ weights, jnp.sum(weights * image, axis=0)
        return _gap(target_norm, fit_inner, fit_norm, largest, penalty, jnp.sum(jnp.abs(weights), axis=0))

    return gram, product, gaps


@reproducible_jit
def _accelerated(gram, working, count, inner, penalty, target_norm, allowed, start):
    """Accelerated proximal gradient steps with restart, as in ``lasso``: the weights, their gap and the steps."""
    _, product, gaps = _problem(gram, working, count, inner, penalty, target_norm)

    def power(_, vector):
        return product(vector / jnp.maximum(jnp.linalg.norm(vector), 1e-300))

    probe = jax.lax.fori_loop(0, _POWER_STEPS, power, 1.5 + jnp.cos(jnp.arange(len(working), dtype=inner.dtype)))
    lipschitz = 1.05 * jnp.linalg.norm(probe) + 1e-300

    def advance(state):
        weights, ahead, image, momentum, _, steps = state
        new = ahead + (inner - image) / lipschitz
        new = jnp.sign(new) * jnp.maximum(jnp.abs(new) - penalty / lipschitz, 0)
        restart = jnp.vdot(ahead - new, new - weights) > 0
        following = jnp.where(restart, 1.0, (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2)
        ahead = new + jnp.where(restart, 0.0, (momentum - 1) / following) * (new - weights)
        image = product(ahead)
        return new, ahead, image, following, gaps(ahead[:, None], image[:, None])[0], steps + 1

    def goes_on(state):
        return (state[-2] > allowed) & (state[-1] < _FIRST_ORDER_STEPS)

    image = product(start)
    (gap,) = gaps(start[:, None], image[:, None])
    state = jax.lax.while_loop(goes_on, advance, (start, start, image, jnp.ones_like(gap), gap, jnp.int32(0)))
    return state[1], *state[-2:]


@reproducible_jit
def _solve(gram, working, count, inner, penalty, target_norm, allowed):
    """The weights of a working set by the interior-point method, and the number of steps. See :func:`_problem`."""
    gram, product, gaps = _problem(gram, working, count, inner, penalty, target_norm)

    def advance(state):
        x, z, image, best, least, steps, waited = state
        x, z = _interior_step(gram, product, x, z, image - inner, penalty)
        weights = x[0] - x[1]
        image = product(weights)
        (gap,) = gaps(weights[:, None], image[:, None])
        better = gap < least
        waited = jnp.where(better, 0, jnp.where(jnp.isfinite(gap), waited + 1, _PATIENCE))
        best, least = jnp.where(better, weights, best), jnp.where(better, gap, least)
        return x, z, image, best, least, steps + 1, waited

    def goes_on(state):
        *_, least, steps, waited = state
        return (least > _EXACT * allowed) & (steps < _MAX_STEPS) & (waited < _PATIENCE)

    zero = jnp.zeros_like(inner)
    norm = jnp.sqrt(jnp.maximum(jnp.max(jnp.diagonal(gram)), 1e-300))
    x = jnp.full((2, len(working)), 1.0) * (_START * jnp.sqrt(target_norm) / norm)
    z = jnp.maximum(penalty + _both(-inner), penalty)
    (least,) = gaps(zero[:, None], zero[:, None])
    state = jax.lax.while_loop(goes_on, advance, (x, z, zero, zero, least, jnp.int32(0), jnp.int32(0)))
    _, _, _, weights, least, steps, _ = state
    return _sparse(product, gaps, weights, inner, penalty, allowed, least), steps


def _both(vector):
    """(a, −a), for u and for v."""
    return jnp.stack([vector, -vector])


def _interior_step(gram, product, x, z, gradient, penalty):
    """One step of the interior-point method from x = (u, v) and its multipliers z, for the gradient g.

    The linearised conditions are Δz = ±GΔw + ρ with ρ = (λ + g, λ − g) − z, and xΔz + zΔx = b.
    """
    missing = penalty + _both(gradient) - z  # ρ
    ratio = x / z
    diagonal = 1 / (ratio[0] + ratio[1])
    damping = _DAMPING * jnp.max(jnp.diagonal(gram))
    factor = jax.lax.linalg.cholesky(gram + jnp.diag(diagonal + damping), symmetrize_input=False)
    larger = jnp.stack([x[0] >= x[1], x[0] < x[1]])

    def direction(b):
        right = b / z - ratio * missing
        change = jax.scipy.linalg.cho_solve((factor, True), (right[0] - right[1]) * diagonal)
        dz = _both(product(change)) + missing
        dx = (b - x * dz) / z
        # The larger of Δu and Δv follows from Δu − Δv = Δw: then z is z(w) to the last bit, and errors of the
        # factorisation do no harm.
        return jnp.where(larger, dx[::-1] + _both(change), dx), dz

    def longest(dx, dz):  # the step to the boundary
        return 1 / jnp.maximum(jnp.maximum(jnp.max(-dx / x), jnp.max(-dz / z)), 1e-300)

    dx, dz = direction(-x * z)
    length = jnp.minimum(1, longest(dx, dz))
    mean = jnp.mean(x * z)
    centring = (jnp.mean((x + length * dx) * (z + length * dz)) / mean) ** 3
    dx, dz = direction(centring * mean - x * z - dx * dz)
    length = jnp.minimum(1, _TO_BOUNDARY * longest(dx, dz))
    return x + length * dx, z + length * dz


def _sparse(product, gaps, weights, inner, penalty, allowed, gap):
    """The weights with as many zeros as a gap of ``allowed`` permits, or the gap that they have.

    A weight of the solution is zero if |aᵀr| < λ. An interior point is not there yet: its w and λ − |aᵀr| are small or
    large, one against the other. So weights become zero in the order of the ratio.
    """
    slack = jnp.maximum(penalty - jnp.sign(weights) * (inner - product(weights)), 1e-12 * penalty)
    ratio = jnp.abs(weights) * penalty / (slack * jnp.maximum(jnp.max(jnp.abs(weights)), 1e-300))
    candidates = jnp.where(ratio[:, None] > jnp.append(_THRESHOLDS, -1.0)[None], weights[:, None], 0)
    good = gaps(candidates, product(candidates)) <= jnp.maximum(allowed, gap)
    return jnp.take(candidates, jnp.argmax(good.at[-1].set(True)), axis=1)
