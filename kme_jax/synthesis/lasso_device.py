"""The solver of :mod:`kme_jax.synthesis.lasso` for feature vectors on a GPU, where everything stays.

A GPU does few large operations well and many small ones badly. So the Lasso for a working set of weights is solved by
the method of :mod:`kme_jax.synthesis.interior_point`, in one compiled program. If the working set is large, accelerated
first-order steps are tried first: feature vectors are then hardly parallel.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int

from kme_jax._numerics.precision import in_float64, reproducible_jit
from kme_jax._numerics.shapes import AnyArray
from kme_jax.synthesis.interior_point import LassoProblem, minimised_on_the_device

Array = jax.Array

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


def _problem(gram, working, count, inner, penalty, target_norm):
    """The problem of a working set [n], for the Gram matrix of all weights.

    Only the first ``count`` indices are used. The others fill up the shape, and their feature vectors are zero here.
    """
    used = jnp.arange(len(working)) < count
    gram = jnp.where(used[:, None] & used[None], gram[working][:, working], 0)

    def product(vectors):
        return jnp.matmul(gram, vectors, precision=jax.lax.Precision.HIGHEST)

    def factorised(matrix):
        factor = jax.lax.linalg.cholesky(matrix, symmetrize_input=False)
        return lambda vector: jax.scipy.linalg.cho_solve((factor, True), vector)

    return LassoProblem(jnp, product, factorised, gram, inner, penalty, target_norm)


@reproducible_jit
def _accelerated(gram, working, count, inner, penalty, target_norm, allowed, start):
    """Accelerated proximal gradient steps with restart, as in ``lasso``: the weights, their gap and the steps."""
    problem = _problem(gram, working, count, inner, penalty, target_norm)
    product = problem.product

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
        return new, ahead, image, following, problem.gap(ahead, image), steps + 1

    def goes_on(state):
        return (state[-2] > allowed) & (state[-1] < _FIRST_ORDER_STEPS)

    image = product(start)
    gap = problem.gap(start, image)
    state = jax.lax.while_loop(goes_on, advance, (start, start, image, jnp.ones_like(gap), gap, jnp.int32(0)))
    return state[1], *state[-2:]


@reproducible_jit
def _solve(gram, working, count, inner, penalty, target_norm, allowed):
    """The weights of a working set by the interior-point method, and the number of steps. See :func:`_problem`."""
    return minimised_on_the_device(_problem(gram, working, count, inner, penalty, target_norm), allowed)
