"""The accuracy to expect of a release of points, from public quantities alone."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Float

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax.domain import NormalProposal
from kme_jax.embedding import mean_embedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding
from kme_jax.synthesis import adaptive_weights, posterior_mean, represent

_TABLES, _MAX_ROWS, _CLUSTERS = 3, 20_000, 5
_LEVELS = (0.25, 0.5, 0.75)
_TRAJECTORIES = 4  # in each round: half as many as in a release, which is enough to estimate the size of its errors


@short_repr
@dataclasses.dataclass(frozen=True)
class Plan:
    """The accuracy to expect of a release. Errors are differences between statistics of the release and of the rows.

    Attributes:
      mechanism: the mechanism of the release.
      num_features: F.
      noise_norm: √F σ, the expected size of the noise in the RKHS before the synthesis reduces it.
      mean_error: the root mean square error of the mean of a column, as a share of the range of the column; None if it
        was not computed.
      probability_error: the root mean square error of the probability that a column is below a quarter, a half, or
        three quarters of its range; None if it was not computed.
    """

    mechanism: Mechanism
    num_features: int
    noise_norm: float
    mean_error: float | None
    probability_error: float | None


def _table(rng: np.random.Generator, num_rows: int, dim: int) -> Float[np.ndarray, "N d"]:
    """Invented rows in [0, 1]^d, in five clusters of random widths. The first cluster is a single point."""
    centres = rng.uniform(0.1, 0.9, (_CLUSTERS, dim))
    widths = np.exp(rng.uniform(math.log(0.02), math.log(0.2), (_CLUSTERS, 1)))
    widths[0] = 0  # many rows have this one value
    members = rng.choice(_CLUSTERS, num_rows, p=rng.dirichlet(np.ones(_CLUSTERS)))
    return np.clip(centres[members] + widths[members] * rng.normal(size=(num_rows, dim)), 0, 1)


def _statistics(
    points: Float[np.ndarray, "M d"], weights: Float[np.ndarray, "M"]
) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]]:
    below = np.stack([weights @ (points <= level) for level in _LEVELS])
    return weights @ points, below


@shows_progress("plan")
def plan(
    feature_map: FeatureMap,
    mechanism: Mechanism,
    proposal: NormalProposal | None,
    *,
    errors: bool = True,
    progress: Progress | bool = False,
) -> Plan:
    """The plan for a map of rows in [0, 1]^d and a mechanism of ``kme_jax.points.measure.plan_mechanism``.

    Errors are computed on three invented tables of up to 20 000 rows in five clusters. One of the clusters is a single
    value. Each table goes through a release with simulated noise of the planned size. The errors of a release of other
    rows depend on these rows, which the plan does not read. Rows with much structure finer than the kernel's length
    have larger errors.

    Args:
      feature_map: ψ.
      mechanism: the mechanism for N rows.
      proposal: the proposal of the synthesis; None for public points.
      errors: whether to compute errors, which takes as long as a few releases.
      progress: True for a bar, or a function that is called with (work done, total work).
    """
    norm = math.sqrt(feature_map.num_features) * mechanism.scale
    if not errors:
        return Plan(mechanism, feature_map.num_features, norm, None, None)
    squared_errors: tuple[list, list] = ([], [])
    for seed in range(_TABLES):
        rng = np.random.default_rng(seed)
        rows = _table(rng, min(mechanism.num_rows, _MAX_ROWS), feature_map.dim)
        coordinates = mean_embedding(feature_map, rows).coordinates
        noisy = coordinates + mechanism.scale * rng.normal(size=coordinates.shape)
        noisy = NoisyEmbedding(feature_map, noisy, dataclasses.replace(mechanism, secure=False))
        if proposal is None:
            sample = adaptive_weights(noisy, signed=False)[0]
            points, weights = sample.points, sample.weights
        else:
            key = jax.random.key(seed)
            mean, _ = posterior_mean(key, noisy, proposal, num_trajectories=_TRAJECTORIES)
            sample = represent(mean, box=(np.zeros(feature_map.dim), np.ones(feature_map.dim)))[0]
            points, weights = sample.points, sample.weights
        exact = _statistics(rows, np.full(len(rows), 1 / len(rows)))
        for squares, estimate, truth in zip(squared_errors, _statistics(points, weights), exact, strict=True):
            squares.append(np.square(estimate - truth).ravel())
        if callable(progress):
            progress(seed + 1, _TABLES)
    mean_error, probability_error = (math.sqrt(np.mean(np.concatenate(squares))) for squares in squared_errors)
    return Plan(mechanism, feature_map.num_features, norm, mean_error, probability_error)
