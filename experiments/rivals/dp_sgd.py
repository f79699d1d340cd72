"""DP-SGD (Abadi et al. 2016): Poisson sampling, clipped gradients, and noise that dp-accounting calibrates.

A step samples each private row independently with probability ``rate``, clips the gradient of each sampled row to the
norm C, and adds noise N(0, (σC)²) to every coordinate of the sum. The sum of one step changes by at most C if one row
is added or removed. Thus T steps are T Gaussian mechanisms of noise multiplier σ on Poisson samples, and privacy loss
distributions give their ε. Neighbours differ by one row that is added or removed; the rate is taken to be public.

The noise is simulated, see ``kme_jax.privacy.mechanisms``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import pld
from scipy import stats

from kme_jax import PrivacyBudget

_MOST_MULTIPLIER = 1000.0  # a larger σ leaves nothing to learn from
_TOLERANCE = 1e-3  # of σ. The calibration ends on the safe side.
_OVERFLOW = 1e-3  # the part of δ for samples that have no room


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes and noise of DP-SGD, fixed before it sees a row.

    Attributes:
      rate: probability with which a step samples a row.
      num_steps: T.
      room: rows that a step has room for, see :func:`room`.
      noise_multiplier: σ, the noise of a sum over the norm C.
      count_scale: standard deviation of the noise of the number of rows of each class; 0 if they are not measured.
    """

    rate: float
    num_steps: int
    room: int
    noise_multiplier: float
    count_scale: float = 0.0

    def epsilon(self, delta: float) -> float:
        """ε of all steps and of the counts at δ, by privacy loss distributions, if every sample is used as a whole."""
        accountant = pld.PLDAccountant()
        return accountant.compose(_event(self)).get_epsilon(delta)


def _event(plan: Plan) -> dp_accounting.DpEvent:
    """All that is measured. One row changes one count by 1."""
    step = dp_accounting.PoissonSampledDpEvent(plan.rate, dp_accounting.GaussianDpEvent(plan.noise_multiplier))
    events: list[dp_accounting.DpEvent] = [dp_accounting.SelfComposedDpEvent(step, plan.num_steps)]
    if plan.count_scale:
        events.append(dp_accounting.GaussianDpEvent(plan.count_scale))
    return dp_accounting.ComposedDpEvent(events)


def room(num_rows: int, rate: float, num_steps: int, epsilon: float, delta: float) -> int:
    """Rows that a step has room for. Rows beyond them are left out of a sample.

    Formal guarantee: let p be the probability that some sample has more rows. With room for all, DP-SGD is
    (ε, δ′)-private. The distribution of its output changes by at most p in total variation if rows are left out, so it
    is then (ε, δ′ + (1 + exp(ε)) p)-private. (1 + exp(ε)) p is at most ``_OVERFLOW`` δ, for a database of ``num_rows``
    rows and for one with a row more.
    """
    shrunk = math.exp(-epsilon)  # 0 for a large ε, and then there is room for all rows
    rare = _OVERFLOW * delta * shrunk / ((1 + shrunk) * num_steps)
    return min(num_rows + 1, 1 + int(stats.binom.isf(rare, num_rows + 1, rate)))


def plan(num_rows: int, batch_size: int, num_steps: int, budget: PrivacyBudget, count_scale: float = 0.0) -> Plan:
    """The plan with the least noise that the budget allows.

    Args:
      num_rows: N, whose ratio to the batch is the rate.
      batch_size: mean size of a sample, below N.
      num_steps: T.
      budget: (ε, δ).
      count_scale: see :class:`Plan`.

    Raises:
      ValueError: the batch is not below N, or ε is too small for so many steps.
    """
    if not 0 < batch_size < num_rows:
        raise ValueError(f"the batch must have 1 or more rows, and fewer than {num_rows}, got {batch_size}")
    rate = batch_size / num_rows
    places = room(num_rows, rate, num_steps, budget.epsilon, budget.delta)
    delta = (1 - _OVERFLOW) * budget.delta
    if Plan(rate, num_steps, places, _MOST_MULTIPLIER, count_scale).epsilon(delta) > budget.epsilon:
        raise ValueError(
            f"epsilon = {budget.epsilon:g} is too small for {num_steps} steps: noise of {_MOST_MULTIPLIER:g} times the "
            "norm of a gradient is too little"
        )
    multiplier = dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant,
        lambda sigma: _event(Plan(rate, num_steps, places, sigma, count_scale)),
        budget.epsilon,
        delta,
        dp_accounting.LowerEndpointAndGuess(0.0, 2.0),
        tol=_TOLERANCE,
    )
    return Plan(rate, num_steps, places, multiplier, count_scale)


def sample(rng: np.random.Generator, num_rows: int, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """A Poisson sample: indices, int64 [room], and 1 for each of them that is a row, float32 [room]. The rest is
    padding."""
    chosen = rng.permutation(np.flatnonzero(rng.random(num_rows) < plan.rate))
    indices, used = np.zeros(plan.room, np.int64), np.zeros(plan.room, np.float32)
    size = min(len(chosen), plan.room)
    indices[:size], used[:size] = chosen[:size], 1
    return indices, used


Layer = tuple[jax.Array, jax.Array]
"""Of a layer x -> x W: inputs, [n, places, inputs], and gradients of each example's loss by outputs,
[n, places, outputs]. An example's gradient by W is the sum over places of the products."""


# In full precision: an NVIDIA GPU would round to TF32, and a norm that is off by 1e-3 does not bound the sensitivity.
_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def squared_norms(layers: list[Layer]) -> jax.Array:
    """‖gradient‖² of each example over all layers, [n], without the gradients where they are larger than the layers.

    With x_p and g_p at place p, ‖Σ_p x_p g_pᵀ‖² = Σ_pq ⟨x_p, x_q⟩⟨g_p, g_q⟩ (Goodfellow 2015).
    """
    total = jnp.zeros(len(layers[0][0]))
    for inputs, gradients in layers:
        places, sizes = inputs.shape[1], (inputs.shape[2], gradients.shape[2])
        if places * sum(sizes) < sizes[0] * sizes[1]:
            products = [_einsum("npi,nqi->npq", x, x) for x in (inputs, gradients)]
            total += jnp.sum(products[0] * products[1], axis=(1, 2))
        else:
            total += jnp.sum(jnp.square(_einsum("npi,npo->nio", inputs, gradients)), axis=(1, 2))
    return total


def clipped_sum(layers: list[Layer], used: jax.Array, norm: float) -> list[jax.Array]:
    """Sum over examples of the gradients by each layer's matrix, each example's clipped to a norm over all layers.

    Args:
      layers: of each layer.
      used: 1 for an example, 0 for padding, [n].
      norm: C.

    Returns:
      The gradient by each matrix, [inputs, outputs]. If one example is added or removed, all together change by at most
      C in norm, up to rounding.
    """
    factors = used * jnp.minimum(1, norm / jnp.sqrt(jnp.maximum(squared_norms(layers), 1e-24)))
    return [_einsum("npi,npo->io", factors[:, None, None] * x, g) for x, g in layers]


def with_noise(key: jax.Array, gradients: Any, scale: float | jax.Array) -> Any:
    """A pytree of arrays with independent noise N(0, scale²) in every entry."""
    leaves, tree = jax.tree.flatten(gradients)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten([x + scale * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
