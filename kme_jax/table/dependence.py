"""Dependence of numbers within relaxed rows, so that products of scores agree with their measurement.

Bins hide how numbers depend on each other within a bin, and noise hides it between bins. So relaxed rows, whose columns
are independent within each row, weaken correlations and slopes. The mean product of the scores of two columns is
measured directly. The columns of each relaxed row are coupled by a Gaussian copula until their products agree with it.
This is post-processing: it spends nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from kme_jax.feature_maps.table import Binning, Moment
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.plan import Layout, map_of, sigma
from kme_jax.table.relaxed import RelaxedRows
from kme_jax.table.tilt import cell_scores

_NUM_ROWS = 1 << 16  # by which the products of relaxed rows are estimated
_NUM_ROUNDS = 4
_WEAKER = 1 / 3  # typical part of a covariance that relaxed rows lose
_MOST = 0.98  # largest correlation within a relaxed row
_NUM_PROJECTIONS, _NEARLY = 100, 1e-4  # of a matrix, and the size of a negative eigenvalue that remains


def dependent(rows: RelaxedRows, layout: Layout, noisy: NoisyEmbedding, seed: int) -> RelaxedRows:
    """Relaxed rows whose products of scores are close to those of a measurement.

    Let m be the noisy mean product of two columns with noise of standard deviation s, and c(r) the mean product of the
    relaxed rows with correlation r within each row. The correlation minimises (m − c(r))² / s² + (d r)² / t². Here d
    is the product of the standard deviations of the scores within relaxed rows, on average, and t is a third of the
    covariance: it is what relaxed rows typically lose. So a product whose noise is larger than this changes nothing.
    c(r) is estimated by sampling. The minimum is found by a few steps of Newton's method with c′(r) ≈ d. If the matrix
    of all correlations has negative eigenvalues, a matrix close to it without any takes its place.

    Args:
      rows: relaxed rows.
      layout: of the columns.
      noisy: the third measurement.
      seed: of the sampling.
    """
    feature_map, num_rows = map_of(noisy), noisy.mechanism.num_rows
    sums = feature_map.moment_sums(noisy.coordinates, num_rows)
    products = [(m, float(total[0])) for m, total in zip(feature_map.moments, sums, strict=True) if len(m.columns) == 2]
    if not products:
        return rows
    correlations = np.eye(len(layout.columns))
    steps = [_within(rows, layout, moment) for moment, _ in products]
    for _ in range(_NUM_ROUNDS):
        coupled = dataclasses.replace(rows, dependence=without_negative_eigenvalues(correlations))
        codes = coupled.sample(_NUM_ROWS, seed)
        for (moment, total), step in zip(products, steps, strict=True):
            first, second = (moment.scores(i, layout.binnings[j], codes[:, j]) for i, j in enumerate(moment.columns))
            noise = sigma(noisy, moment) / num_rows
            product = float(np.mean(first * second))
            lost = max(_WEAKER * abs(product - float(first.mean() * second.mean())), 1e-12)
            a, b = (layout.columns.index(j) for j in moment.columns)
            r, gap = correlations[a, b], total / num_rows - product
            r += (gap * step / noise**2 - r * (step / lost) ** 2) / ((step / noise) ** 2 + (step / lost) ** 2 + 1e-12)
            correlations[a, b] = correlations[b, a] = np.clip(r, -_MOST, _MOST)
    return dataclasses.replace(rows, dependence=without_negative_eigenvalues(correlations))


def _within(rows: RelaxedRows, layout: Layout, moment: Moment) -> float:
    """The mean over relaxed rows of the product of the standard deviations of both scores within a row."""
    deviations = [_deviation(rows, layout, layout.binnings[j], moment, i) for i, j in enumerate(moment.columns)]
    return float(np.sum(rows.weights * deviations[0] * deviations[1]))


def _deviation(
    rows: RelaxedRows, layout: Layout, binning: Binning, moment: Moment, place: int
) -> Float[np.ndarray, "classes K"]:
    """The standard deviation of the score of a column within each relaxed row, [T, K]."""
    a = layout.columns.index(moment.columns[place])
    leaves = rows.leaves[a]
    scores = cell_scores(moment, place, binning, leaves.first, leaves.last)
    probabilities = rows.probabilities[..., slice(*rows.offsets[a : a + 2])]
    parts = [dataclasses.replace(leaves, shares=leaves.shares * score) for score in scores]
    of_bins = [part.masses(probabilities.shape[-1]) for part in parts]
    mean, square = (np.einsum("tkb,tb->tk", probabilities, values) for values in of_bins)
    return np.sqrt(np.maximum(square - np.square(mean), 0))


def without_negative_eigenvalues(correlations: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """The correlation matrix with the same zeros that is nearest to a symmetric matrix with unit diagonal, nearly.

    It is found by alternating projections (Higham 2002): on matrices without negative eigenvalues, and on matrices with
    these zeros and this diagonal. Columns without a product thus stay independent. What remains negative after some
    projections is removed by making all correlations a little smaller.
    """
    matrix, correction, least = correlations, np.zeros_like(correlations), 0.0
    for _ in range(_NUM_PROJECTIONS):
        values, vectors = np.linalg.eigh(matrix - correction)
        nonnegative = (vectors * np.maximum(values, 0)) @ vectors.T
        correction = nonnegative - (matrix - correction)
        matrix = np.where(correlations == 0, 0.0, nonnegative)
        np.fill_diagonal(matrix, 1.0)
        least = float(np.linalg.eigvalsh(matrix)[0])
        if least >= -_NEARLY:
            break
    factor = 1 / (1 - min(least, 0.0))
    return factor * matrix + (1 - factor) * np.eye(len(matrix))
