"""The noisy sums of a measurement of a table, by block and moment."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from kme_jax.feature_maps.table import Block, Moment, TableMap
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.planning.layout import MOST_PRIVATE_ROWS, Layout
from kme_jax.table.tilt import Moments


def map_of(noisy: NoisyEmbedding) -> TableMap:
    """The map of a measurement of a table.

    Raises:
      ValueError: it is another map.
    """
    if not isinstance(noisy.feature_map, TableMap):
        raise ValueError(f"expected a TableMap, got a {type(noisy.feature_map).__name__}")
    return noisy.feature_map


def sigma(noisy: NoisyEmbedding, term: Block | Moment) -> float:
    """The standard deviation of the noise of a block's counts, or of the sums of a moment."""
    mechanism = noisy.mechanism
    return mechanism.scale * mechanism.num_rows * map_of(noisy).norm / term.weight


def block_counts(noisy: NoisyEmbedding | None) -> list[tuple[Block, Float[np.ndarray, "..."], float]]:
    """The blocks of a measurement, their noisy marginals, and the standard deviations of the noise."""
    if noisy is None:
        return []
    feature_map = map_of(noisy)
    of_blocks = feature_map.marginals(noisy.coordinates, noisy.mechanism.num_rows)
    return [(b, counts, sigma(noisy, b)) for b, counts in zip(feature_map.blocks, of_blocks, strict=True)]


def noisy_count(noisy: NoisyEmbedding) -> int:
    """The number that replaces a private number of rows: the noisy one, at least 2 and at most a billion."""
    (marginal,) = map_of(noisy).marginals(noisy.coordinates, noisy.mechanism.num_rows)
    return round(min(max(float(marginal[0]), 2.0), float(MOST_PRIVATE_ROWS)))


def narrow_moments(layout: Layout, j: int, noisy: NoisyEmbedding | None) -> list[Moments]:
    """The moments of the column of index j in the third measurement, over the range of the cells that stand out."""
    if noisy is None:
        return []
    num_rows = noisy.mechanism.num_rows
    sums = map_of(noisy).moment_sums(noisy.coordinates, num_rows)
    return [
        Moments(moment, layout.binnings[j], values, sigma(noisy, moment), num_rows)
        for moment, values in zip(map_of(noisy).moments, sums, strict=True)
        if moment.columns == (j,)
    ]
