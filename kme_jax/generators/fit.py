"""How far the mean embedding of a generator is from the noisy one, the shares of its styles, and those of classes."""

from __future__ import annotations

import functools
import math
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kme_jax._numerics.precision import reproducible_jit
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.generator import network_inputs
from kme_jax.generators.nnx import nnx
from kme_jax.generators.objective import relaxed_features
from kme_jax.generators.rare import Seen
from kme_jax.privacy.mechanisms import NoisyEmbedding

NUM_GROUPS, ROWS_PER_BLOCK = 4, 512  # of the rows from which the fit of a generator is estimated
_MOST_BYTES = {"cpu": 2**24, "other": 2**28}  # of the features of such rows that are in memory at a time
_LEAST_COVERED = 0.01  # smallest share of covered rows
_LEAST_SHARE = 1e-3  # of a class whose noisy count is near or below zero


@functools.partial(
    reproducible_jit, static_argnames=("graph", "network", "num_labels", "num_blocks", "size", "at_once")
)
def style_means(features, rows, parameters, statistics, key, *, graph, network, num_labels, num_blocks, size, at_once):
    """Means of φ over new rows of each style of each class, for ``NUM_GROUPS`` groups of rows: [groups, L, S, F].

    A group has ``num_blocks`` blocks of ``size`` rows. ``at_once`` blocks are computed together.
    """
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()
    num_classes, num_styles = parameters["styles"].shape
    total = NUM_GROUPS * num_classes * num_styles * num_blocks

    def inputs(number):
        label, style = jnp.divmod(number // num_blocks % (num_classes * num_styles), num_styles)
        ones = jnp.ones(size, jnp.int32)
        code_key = jax.random.fold_in(key, number)
        return network_inputs(code_key, network, rows, num_labels, label * ones, style * ones)

    def block_means(numbers):
        blocks = jax.vmap(inputs)(numbers)
        values = relaxed_features(features, rows.relaxed(module(blocks.reshape(at_once * size, -1))))
        return jnp.mean(values.reshape(at_once, size, -1), axis=1)

    numbers = jnp.arange(-(-total // at_once) * at_once).reshape(-1, at_once)  # surplus blocks are cut off
    means = jax.lax.map(block_means, numbers).reshape(numbers.size, -1)[:total]
    return jnp.mean(means.reshape(NUM_GROUPS, num_classes, num_styles, num_blocks, -1), axis=3)


@functools.partial(reproducible_jit, static_argnames=("graph", "network", "num_labels"))
def features_of_rows(features, rows, parameters, statistics, key, labels, *, graph, network, num_labels):
    """φ of new relaxed rows with labels [n]: [n, F]."""
    module = nnx.merge(graph, parameters["network"], statistics)
    module.eval()
    code_key, style_key = jax.random.split(key)
    styles = jax.random.categorical(style_key, parameters["styles"][labels])
    return relaxed_features(
        features, rows.relaxed(module(network_inputs(code_key, network, rows, num_labels, labels, styles)))
    )


def blocks_at_once(size: int, num_features: int, total: int) -> int:
    """Number of blocks of ``size`` rows, of ``total`` blocks, whose features are in memory at a time.

    The 4-byte features take at most ``_MOST_BYTES``. The calls have about equal numbers of blocks.
    """
    limit = _MOST_BYTES["cpu" if jax.default_backend() == "cpu" else "other"]
    most = max(1, limit // (4 * size * num_features))
    return -(-total // -(-total // most))


def simplex_least_squares(vectors: Float[np.ndarray, "n F"], target: Float[np.ndarray, "F"]) -> Float[np.ndarray, "n"]:
    """argmin ‖Σ_s p_s a_s − y‖² over probability vectors p, [S], for vectors a [S, F] and a target y [F].

    For probability vectors the objective is ‖Σ_s p_s (a_s − y)‖². If (1 − Σ_s p_s)² is added, the minimiser over all
    p ≥ 0 is a multiple of the solution. The problem depends on the vectors through their inner products only.
    """
    from scipy.optimize import nnls

    differences = vectors - target
    squares, axes = np.linalg.eigh(differences @ differences.T)
    system = np.concatenate([np.sqrt(np.maximum(squares, 0))[:, None] * axes.T, np.ones((1, len(vectors)))])
    multiple, _ = nnls(system, np.append(np.zeros(len(vectors)), 1.0))
    return multiple / multiple.sum()


def estimated_fit(
    means: Float[np.ndarray, "groups classes styles F"],
    coordinates: Float[np.ndarray, "classes F"],
    shares: Float[np.ndarray, "classes"],
    seen: Seen | None = None,
) -> tuple[Float[np.ndarray, "classes styles"], Float[np.ndarray, "groups classes F"]]:
    """The best shares of the styles, [L, S], and residuals μ̃ − μ_G with these shares for each group of rows.

    Args:
      means: of φ over new rows of each style of each class, for groups of rows, [groups, L, S, F].
      coordinates: μ̃, [L, F].
      shares: of the classes, [L].
      seen: the metric in which the shares of styles of rare classes are fitted; None if there are none.
    """
    targets = coordinates / shares[:, None]
    pairs = list(zip(means.mean(axis=0), targets, strict=True))
    for place, label in enumerate([] if seen is None else seen.labels):
        mean, goal = pairs[label]
        pairs[label] = cast(Seen, seen).coordinates(place, mean), cast(Seen, seen).coordinates(place, goal)
    styles = [simplex_least_squares(mean, goal) for mean, goal in pairs]
    return np.asarray(styles), coordinates - shares[:, None] * np.einsum("ls,glsf->glf", styles, means)


def squared_distance(residuals: Float[np.ndarray, "groups classes F"]) -> tuple[float, float]:
    """‖μ̃ − μ_G‖² and its standard error, from residuals μ̃ − μ_G for groups of rows, [groups, L, F].

    Given the generator, the residuals of two groups of rows are independent, so their inner product is an unbiased
    estimate. The standard error is the jackknife's over groups.
    """
    products = np.einsum("glf,hlf->gh", residuals, residuals)

    def fit(products: np.ndarray) -> float:
        return float((products.sum() - np.trace(products)) / (len(products) * (len(products) - 1)))

    size = len(products)
    without = [fit(np.delete(np.delete(products, k, axis=0), k, axis=1)) for k in range(size)]
    return fit(products), math.sqrt((size - 1) * np.var(without))


def class_shares(counts: NoisyEmbedding, num_labels: int) -> Float[np.ndarray, "classes"]:
    """Shares of the classes from noisy counts, [L], with Σ = 1. Noisy shares below a thousandth are raised to it first.

    Raises:
      ValueError: the counts are not the marginal of one column with ``num_labels`` codes.
    """
    marginal = label_marginal(counts)
    if marginal.shape != (num_labels,):
        raise ValueError(f"counts: expected {num_labels} classes, got a marginal of shape {list(marginal.shape)}")
    shares = np.maximum(marginal, _LEAST_SHARE)
    return shares / shares.sum()


def covered_share(counts: NoisyEmbedding) -> float:
    """The share of rows that are in a class, by noisy counts. Post-processing.

    It is 1, which is exact if every row is in a class. Only if the noisy shares add up to less than noise makes likely
    (5 standard deviations below 1) is it their sum.

    Args:
      counts: noisy shares of the classes, [L].

    Raises:
      ValueError: as for :func:`class_shares`.
    """
    marginal = label_marginal(counts)
    total = float(np.sum(marginal))
    return max(total, _LEAST_COVERED) if total < 1 - 5 * math.sqrt(marginal.size * counts.mechanism.variance) else 1.0


def label_marginal(counts: NoisyEmbedding) -> Float[np.ndarray, "..."]:
    feature_map = counts.feature_map
    if not (isinstance(feature_map, TableMap) and len(feature_map.blocks) == 1):
        raise ValueError(
            "counts: expected the noisy embedding of the marginal of the label, as measure_generator returns"
        )
    return feature_map.marginals(counts.coordinates, 1)[0]
