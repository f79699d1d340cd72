"""Dependence of ordered columns within relaxed rows.

Relaxed rows, whose columns are independent within each row, weaken correlations and slopes. Bins hide how columns
depend on each other within a bin. And few rows cannot show everything: if a price depends on an area and on a year, and
area and year are independent, rows that follow the area lose the year. So the columns of each relaxed row are coupled
by a Gaussian copula until *products* agree with what was measured: mean products of scores that were measured by
themselves, and those of the noisy counts of pairs. This is post-processing: it spends nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.directions import normal_scores
from kme_jax.table.observed import Observed
from kme_jax.table.planning import Layout, Plan, map_of, parts_of, sigma
from kme_jax.table.relaxed import RelaxedRows
from kme_jax.table.tilt import cell_scores

NUM_ROWS = 1 << 16  # by which the products of relaxed rows are estimated
_NUM_ROUNDS = 4
_WEAKER = 1 / 3  # typical part of a covariance that relaxed rows lose
_MOST = 0.98  # largest correlation within a relaxed row
# The smallest gap between the correlation that counts of pairs say and that of relaxed rows for which two columns are
# coupled: in units of its noise, and itself. Coupled columns are not balanced (``kme_jax.table.balance``), so small
# gaps are left.
_CLEARLY, _LEAST = 3.0, 0.05
_LEAST_DEVIATION = 1e-3  # of normal quantiles, for a column to have scores
_NUM_PROJECTIONS, _NEARLY = 100, 1e-4  # of a matrix, and the size of a negative eigenvalue that remains


@dataclasses.dataclass(frozen=True)
class _Product:
    """The noisy mean product of the scores of two columns.

    Attributes:
      places: of both columns among all except ``split``.
      scores: for each column, a function of its codes, [n] to [n].
      within: the mean over relaxed rows of the product of the standard deviations of both scores within a row.
      mean: the noisy mean product.
      noise: its standard deviation.
      is_of_pairs: whether it comes from the counts of a pair of columns. Otherwise it was measured by itself.
    """

    places: tuple[int, int]
    scores: tuple[Callable[..., Any], Callable[..., Any]]
    within: float
    mean: float
    noise: float
    is_of_pairs: bool

    def of(self, codes: Int64[np.ndarray, "n d"], columns: Sequence[int]) -> tuple[float, float]:
        """The mean product of the scores of rows of codes, and the covariance of the scores."""
        first, second = (scores(codes[:, columns[a]]) for a, scores in zip(self.places, self.scores, strict=True))
        product = float(np.mean(first * second))
        return product, product - float(first.mean() * second.mean())


def dependent(
    rows: RelaxedRows,
    layout: Layout,
    plan: Plan,
    observed: Observed,
    noisy: NoisyEmbedding,
    seed: int,
    num_rows: int = NUM_ROWS,
) -> RelaxedRows:
    """Relaxed rows whose products of scores are close to what was measured.

    Let m be a noisy mean product with noise of standard deviation s, and c(r) the mean product of the relaxed rows with
    correlation r within each row. The correlation minimises (m − c(r))² / s² + (d r)² / t². Here d is the product of
    the standard deviations of the scores within relaxed rows, on average. t is the size of what relaxed rows lose. For
    a product that was measured by itself it is a third of the covariance. For the counts of pairs it is estimated: t²
    is the mean of (m − c(0))² − s² over all of them (empirical Bayes). It is at most d: r is not much larger than 1.
    So noise that is larger than t changes nothing.
    Pairs whose counts agree with relaxed rows up to their noise, or nearly, are left alone.

    c(r) is estimated by sampling. The minimum is found by a few steps of Newton's method with c′(r) ≈ d. If the matrix
    of all correlations has negative eigenvalues, a matrix close to it without any takes its place.

    Args:
      rows: relaxed rows.
      layout: of the columns.
      plan: the bins.
      observed: the noisy counts.
      noisy: the third measurement.
      seed: of the sampling.
      num_rows: that are drawn to estimate products.
    """
    products = _measured(rows, layout, noisy)
    of_pairs = _of_pairs(rows, layout, plan, observed, {product.places for product in products})
    if not products and not of_pairs:
        return rows
    codes = rows.sample(num_rows, seed)
    of_pairs, size = _significant(of_pairs, codes, layout)
    products += of_pairs
    if not products:
        return rows
    correlations = np.eye(len(layout.columns))
    for round_ in range(_NUM_ROUNDS):
        if round_:
            coupled = dataclasses.replace(rows, dependence=without_negative_eigenvalues(correlations))
            codes = coupled.sample(num_rows, seed)
        for product in products:
            found, covariance = product.of(codes, layout.columns)
            a, b = product.places
            r, gap, d, s = correlations[a, b], product.mean - found, product.within, product.noise
            lost = max(min(size if product.is_of_pairs else _WEAKER * abs(covariance), d), 1e-12)
            r += (gap * d / s**2 - r * (d / lost) ** 2) / ((d / s) ** 2 + (d / lost) ** 2 + 1e-12)
            correlations[a, b] = correlations[b, a] = np.clip(r, -_MOST, _MOST)
    return dataclasses.replace(rows, dependence=without_negative_eigenvalues(correlations))


def _measured(rows: RelaxedRows, layout: Layout, noisy: NoisyEmbedding) -> list[_Product]:
    """The products that were measured by themselves."""
    feature_map, num_rows = map_of(noisy), noisy.mechanism.num_rows
    products = []
    for moment, total in zip(feature_map.moments, feature_map.moment_sums(noisy.coordinates, num_rows), strict=True):
        if len(moment.columns) != 2:
            continue
        a, b = places = tuple(map(layout.columns.index, moment.columns))
        binnings, scores, deviations = [layout.binnings[j] for j in moment.columns], [], []
        for i, (place, binning) in enumerate(zip(places, binnings, strict=True)):
            leaves = rows.leaves[place]
            scores.append(functools.partial(moment.scores, i, binning))
            deviations.append(_deviation(rows, place, cell_scores(moment, i, binning, leaves.first, leaves.last)))
        within, noise = float(np.sum(rows.weights * deviations[0] * deviations[1])), sigma(noisy, moment) / num_rows
        products.append(_Product((a, b), (scores[0], scores[1]), within, float(total[0]) / num_rows, noise, False))
    return products


def _of_pairs(
    rows: RelaxedRows, layout: Layout, plan: Plan, observed: Observed, known: set[tuple[int, int]]
) -> list[_Product]:
    """Products of normal scores of bins, from the noisy counts of pairs of ordered columns without a known product.

    The counts are those of the third measurement, and of the second for pairs that the third does not have.
    """
    of_bins, of_unions, _ = parts_of(plan)
    columns = [_Scored.create(rows, layout, plan, a) for a in range(len(layout.columns))]
    products = []
    for first, second in itertools.combinations([column for column in columns if column is not None], 2):
        places = first.place, second.place
        if places in known or places[::-1] in known:
            continue
        for parts, kind in ((of_bins, "bins"), (of_unions, "unions")):
            cells = parts[first.place], parts[second.place]
            precision = float(observed.pairs_precision[cells].max())
            if precision > 0:
                left, right = (getattr(column, kind) for column in (first, second))
                counts = observed.pairs[:, *cells].sum(0)
                noise = math.sqrt(layout.num_classes) / precision * np.linalg.norm(left) * np.linalg.norm(right)
                mean, noise = (float(value) / observed.num_rows for value in (left @ counts @ right, noise))
                within = float(np.sum(rows.weights * first.deviations(kind) * second.deviations(kind)))
                scores = first.scores(kind), second.scores(kind)
                products.append(_Product(places, scores, within, mean, max(noise, 1e-9), True))
                break
    return products


@dataclasses.dataclass(frozen=True)
class _Scored:
    """The scores of the bins of an ordered column: normal quantiles of their middles, with mean 0 and variance 1.

    Attributes:
      rows, layout, plan: see :func:`dependent`.
      place: of the column among all except ``split``.
      bins: the scores of the bins, [B]; 0 for missing cells.
      unions: the mean scores of the unions of bins.
    """

    rows: RelaxedRows
    layout: Layout
    plan: Plan
    place: int
    bins: Float[np.ndarray, "bins"]
    unions: Float[np.ndarray, "unions"]

    @classmethod
    def create(cls, rows: RelaxedRows, layout: Layout, plan: Plan, place: int) -> _Scored | None:
        """None for a column that has no order, or hardly varies."""
        binning, unions = layout.binnings[layout.columns[place]], plan.unions[place]
        if not binning.ordered:
            return None
        shares = np.einsum("tk,tkb->b", rows.weights, _of_column(rows, place))
        ordered = slice(0, len(shares) - binning.missing)
        scores = normal_scores(shares, ordered.stop)
        deviation = math.sqrt(shares @ scores**2 / max(shares[ordered].sum(), 1e-300))
        if deviation < _LEAST_DEVIATION:
            return None
        scores /= deviation
        return cls(rows, layout, plan, place, scores, np.bincount(unions, scores) / np.bincount(unions))

    def _of_bins(self, kind: str) -> Float[np.ndarray, "bins"]:
        return self.bins if kind == "bins" else self.unions[self.plan.unions[self.place]]

    def scores(self, kind: str) -> Callable[..., Any]:
        """A function of codes."""
        of_cells = self._of_bins(kind)[self.plan.bins[self.place]]
        edges = self.layout.binnings[self.layout.columns[self.place]].first_codes()[1:-1]
        return lambda codes: of_cells[np.searchsorted(edges, codes, side="right")]

    def deviations(self, kind: str) -> Float[np.ndarray, "classes K"]:
        """The standard deviation of the score within each relaxed row, [T, K]."""
        of_leaves = self._of_bins(kind)[self.rows.leaves[self.place].bins]
        return _deviation(self.rows, self.place, np.stack([of_leaves, of_leaves**2]))


def _significant(
    products: list[_Product], codes: Int64[np.ndarray, "n d"], layout: Layout
) -> tuple[list[_Product], float]:
    """The products that relaxed rows miss by more than noise explains, and the typical size of what they miss."""
    if not products:
        return [], 0.0
    gaps = np.asarray([product.mean - product.of(codes, layout.columns)[0] for product in products])
    noises = np.asarray([product.noise for product in products])
    weights = noises**-4.0
    size = np.sqrt(max(float(weights @ (gaps**2 - noises**2) / weights.sum()), 0.0))
    found = np.abs(gaps) > np.maximum(_CLEARLY * noises, _LEAST)
    return [product for product, clear in zip(products, found, strict=True) if clear], float(size)


def _of_column(rows: RelaxedRows, place: int) -> Float[np.ndarray, "classes K bins"]:
    return np.asarray(rows.probabilities[..., slice(*rows.offsets[place : place + 2])], np.float64)


def _deviation(
    rows: RelaxedRows, place: int, of_leaves: Float[np.ndarray, "2 leaves"]
) -> Float[np.ndarray, "classes K"]:
    """The standard deviation of a score within each relaxed row, [T, K].

    Args:
      rows: relaxed rows.
      place: of the column.
      of_leaves: the mean score and the mean squared score of each leaf.
    """
    leaves, probabilities = rows.leaves[place], _of_column(rows, place)
    parts = [dataclasses.replace(leaves, shares=leaves.shares * values) for values in of_leaves]
    mean, square = (np.einsum("tkb,tb->tk", probabilities, part.masses(probabilities.shape[-1])) for part in parts)
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
