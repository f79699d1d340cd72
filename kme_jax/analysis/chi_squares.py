"""Weighted sums of χ² variables: the statistics of the two-sample tests.

Let z_i be independent standard normal variables if the hypothesis is true. For a random difference of size τ, z_i has
the variance 1 + τ κ_i, where κ is the information about its direction i. The logarithm of the ratio of both densities
of z is, up to a constant and a factor,

    T = Σ κ_i / (1 + τ κ_i) z_i².

So T is the most powerful statistic for differences of this size on average (Neyman & Pearson 1933; King 1987 calls it
point optimal). τ is 9 over the largest κ. So the test is made for differences that are just large enough to be found:
in the direction of most information, z² is 10 on average. Directions with less than a ninth of this information count
less. Quantiles of T are simulated.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

_DRAWS = 20_000  # of the statistic if the hypothesis is true
_NEGLIGIBLE = 1e-4  # of the largest weight
_SIZE = 9.0  # τ times the largest κ


def check_num_public(number: int) -> None:
    """Refuses too few public rows.

    Raises:
      ValueError: there are less than 20.
    """
    if number < 20:
        raise ValueError(f"rows: a test needs at least 20 public rows, got {number}")


def compared(
    squares: Float64[np.ndarray, "r"], information: Float64[np.ndarray, "r"], seed: int
) -> tuple[float, float]:
    """The statistic T of the module's text over its mean if the hypothesis is true, and its p-value.

    Args:
      squares: z², χ² variables of one degree if the hypothesis is true.
      information: κ, not negative.
      seed: of the simulated quantiles.
    """
    largest = float(np.max(information, initial=0.0))
    if not largest > 0:
        return 1.0, 1.0
    weights = information / (1 + _SIZE * information / largest)
    total, rng = float(weights.sum()), np.random.default_rng(seed)
    statistic, large = float(weights @ squares), weights[weights > _NEGLIGIBLE * weights.max()]
    draws = np.full(_DRAWS, total - float(large.sum()))  # small weights count with their mean
    for some in np.array_split(np.sort(large)[::-1], max(1, len(large) // 50)):
        draws += rng.chisquare(1, (_DRAWS, len(some))) @ some
    return statistic / total, (1 + int((draws >= statistic).sum())) / (1 + _DRAWS)
