"""Step 3 for a subspace map: weights on the public points. Post-processing of μ̃, so free of privacy cost."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.numerics import float64
from kme_jax.privacy.mechanisms import PrivateEmbedding
from kme_jax.synthesis.lasso import SolverReport, l1_ball_weights
from kme_jax.synthesis.sample import WeightedSample


def closed_form(embedding: PrivateEmbedding) -> WeightedSample:
    """w = Bᵀβ: the weights whose embedding is μ̃ itself ([B] algorithm 1, line 8). Dropped points have weight 0.

    The weights are signed and grow with ‖B‖ times the noise; their L1 norm is not bounded. See :func:`l1_ball`.
    """
    subspace = _subspace_map(embedding)
    return WeightedSample(subspace.points, subspace.expand(embedding.coordinates), embedding.mechanism)


def _subspace_map(embedding: PrivateEmbedding) -> SubspaceMap:
    if not isinstance(embedding.feature_map, SubspaceMap):
        raise ValueError(f"needs the embedding of a SubspaceMap, got {type(embedding.feature_map).__name__}")
    return embedding.feature_map


def check_radius(radius: float) -> None:
    """Raises ValueError unless 1 ≤ C < ∞: a smaller ball misses the embeddings of probability measures."""
    if not 1 <= radius < np.inf:
        raise ValueError(f"radius must be at least 1 ([B] theorem 11) and finite, got {radius}")


def noise_tolerance(embedding: PrivateEmbedding) -> float:
    """1 % of ½ E‖noise‖²: solving for weights any better would fit noise."""
    return 0.005 * len(embedding.coordinates) * embedding.mechanism.variance


def l1_ball(
    embedding: PrivateEmbedding,
    *,
    radius: float = 1.0,
    tolerance: float | None = None,
    max_solves: int = 60,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m k(z_m, ·)‖² over Σ_m |w_m| ≤ C ([B] theorem 11).

    With the L1 norm bounded, applying any continuous function to the points gives a consistent estimate of the
    embedding of the transformed variable ([B] theorem 11); the closed form does not promise that.

    Args:
      embedding: μ̃ of a SubspaceMap.
      radius: C ≥ 1.
      tolerance: of the gap, see :func:`kme_jax.synthesis.lasso.l1_ball_weights`. By default :func:`noise_tolerance`.
      max_solves: see :func:`kme_jax.synthesis.lasso.l1_ball_weights`.

    Returns:
      The sample, and how the optimisation went.

    Raises:
      ValueError: C < 1 (an embedding of a probability measure would be out of reach); another kind of map.
    """
    check_radius(radius)
    subspace = _subspace_map(embedding)
    with float64():
        features = subspace(jnp.asarray(subspace.points))
    if tolerance is None:
        tolerance = noise_tolerance(embedding)
    weights, report = l1_ball_weights(
        np.asarray(features), embedding.coordinates, radius=radius, tolerance=tolerance, max_solves=max_solves
    )
    return WeightedSample(subspace.points, weights, embedding.mechanism), report
