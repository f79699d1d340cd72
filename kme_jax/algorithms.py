"""The papers' algorithms, line by line."""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np

from kme_jax.embedding import mean_embedding
from kme_jax.feature_maps.subspace import DEFAULT_TOLERANCE, SubspaceMap
from kme_jax.kernels import Kernel
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier, perturb
from kme_jax.privacy.calibration import Calibration
from kme_jax.privacy.mechanisms import Diameter
from kme_jax.synthesis import WeightedSample, closed_form, l1_ball


def algorithm1(
    key: jax.Array,
    rows: np.ndarray,
    kernel: Kernel,
    points: np.ndarray,
    *,
    epsilon: float,
    delta: float,
    weights: Literal["closed_form", "l1_ball"] = "closed_form",
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
    tolerance: float = DEFAULT_TOLERANCE,
) -> WeightedSample:
    """Differentially private database release via a synthetic data subspace ([B] algorithm 1).

    Formal guarantee: (ε, δ)-differential privacy of the weights under replace-one neighbours with N public ([B]
    proposition 3), in exact arithmetic; the noise is simulated, see ``kme_jax.privacy.mechanisms``.

    Args:
      key: a JAX random key for the noise, used once.
      rows: the private database x, [N, d]. A row with a NaN or infinite entry contributes nothing (see
        ``mean_embedding``).
      kernel: k, with a bandwidth that does not come from the private rows.
      points: public points z, [M, d], chosen independently of the rows that are to be protected (lines 1 and 2).
      epsilon: ε > 0.
      delta: δ in (0, 1), well below 1/N.
      weights: "closed_form" (line 8) or "l1_ball" (theorem 11, C = 1).
      calibration: "analytic", or "classical" as published.
      diameter: "proved" (√2 times a factor just above 1 for k ≥ 0), or "published" (2).
      tolerance: see ``SubspaceMap.from_points``.

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: shapes, a budget or an option that cannot be.
    """
    if weights not in ("closed_form", "l1_ball"):
        raise ValueError(f'weights must be "closed_form" or "l1_ball", got "{weights}"')
    budget = PrivacyBudget(epsilon, delta)
    gaussian_noise_multiplier(budget, calibration)  # refuses a bad budget before long work
    subspace = SubspaceMap.from_points(kernel, points, tolerance=tolerance)  # lines 3 and 4
    alpha = mean_embedding(subspace, rows)  # lines 5 and 6
    beta = perturb(key, alpha, budget, calibration=calibration, diameter=diameter)  # line 7
    return closed_form(beta) if weights == "closed_form" else l1_ball(beta)[0]  # lines 8 and 9
