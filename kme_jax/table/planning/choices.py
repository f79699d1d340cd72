"""Which pairs and triples of columns are measured again, as the noisy counts of the second measurement say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kme_jax.feature_maps.table import Moment
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.planning.layout import MOST_PARITIES, Layout
from kme_jax.table.planning.maps import TRIPLES_SHARE, is_triple
from kme_jax.table.planning.noisy_sums import map_of, sigma
from kme_jax.table.planning.plan import Plan
from kme_jax.table.planning.singles import Singles
from kme_jax.table.tilt import cell_scores

_GAIN = 0.6  # approximate share of the noise of a pair that remains after the fit
_MEAN_SIZE = 0.8  # E|g| for a standard normal g
# The total variation of a pair that noise causes, approximately, as a part of the sum of σ over its cells by N.
ERROR_OF_NOISE = _GAIN * _MEAN_SIZE / 2
# A product is measured if the noisy correlation is at least this, and so many times its noise.
_STRONG, _CLEARLY = 0.15, 2.0
_MOST_TRIPLES, _PARITY_NOISE = 4096, 0.12  # largest number of triples; largest standard deviation of a parity
# A triple is measured again if its third cumulant exceeds both its noise, in standard deviations, and a level.
_STANDS_OUT_OF_ALL, _LEAST_CUMULANT = 5.0, 0.1


def triples_pay(layout: Layout, num_rows: int, rho: float) -> bool:
    """Whether triples of columns are measured. It depends on public sizes alone.

    A parity is the mean product of three signs, one for each half of a column. Triples are measured if there are at
    most ``_MOST_TRIPLES``, and if the noise of a parity has a standard deviation of at most ``_PARITY_NOISE``.

    Args:
      layout: of the columns.
      num_rows: N.
      rho: ρ of the second measurement.
    """
    number = math.comb(len(layout.columns), 3)
    if not 0 < number <= _MOST_TRIPLES:
        return False
    return math.sqrt(8 * number / (TRIPLES_SHARE * rho)) <= _PARITY_NOISE * num_rows


def triple_counts(
    layout: Layout, noisy: NoisyEmbedding | None
) -> tuple[list[tuple[int, ...]], Float[np.ndarray, "n 2 2 2"], float]:
    """The triples of the second or third measurement, as positions in ``layout.columns``, with their noisy counts.

    Args:
      layout: of the columns.
      noisy: the measurement; None if there is none.

    Returns:
      The triples, their counts, [n, 2, 2, 2], and the standard deviation of the noise.
    """
    if noisy is None:
        return [], np.zeros((0, 2, 2, 2)), math.inf
    marginals = map_of(noisy).marginals(noisy.coordinates, noisy.mechanism.num_rows)
    blocks = [(b, m) for b, m in zip(map_of(noisy).blocks, marginals, strict=True) if is_triple(layout, b)]
    if not blocks:
        return [], np.zeros((0, 2, 2, 2)), math.inf
    triples = [tuple(map(layout.columns.index, block.columns)) for block, _ in blocks]
    counts = np.zeros((len(blocks), 2, 2, 2))
    for i, (_, marginal) in enumerate(blocks):  # a column of a single bin has an empty half
        counts[i, : marginal.shape[0], : marginal.shape[1], : marginal.shape[2]] = marginal
    return triples, counts, sigma(noisy, blocks[0][0])


def choose_triples(layout: Layout, noisy: NoisyEmbedding) -> list[tuple[int, ...]]:
    """Triples of columns that depend on each other in a way that their pairs do not show, at most ``MOST_PARITIES``.

    Every half of a column has a sign. The third cumulant of three signs is 0 if one of them is independent of the other
    two. If one is the product of two others that are independent and balanced, the cumulant is 1. A triple is chosen if
    its cumulant is large beside its noise, and by itself.

    Args:
      layout: of the columns.
      noisy: the second measurement.
    """
    triples, counts, noise = triple_counts(layout, noisy)
    if not triples:
        return []
    num_rows = noisy.mechanism.num_rows
    # The mean product of the signs of every subset of the three columns, [n, 2, 2, 2].
    signs = np.asarray([[1, 1], [-1, 1]])
    means = np.einsum("nijk,ai,bj,ck->nabc", counts, signs, signs, signs) / num_rows
    one = np.stack([means[:, 1, 0, 0], means[:, 0, 1, 0], means[:, 0, 0, 1]], axis=1)
    others = np.stack([means[:, 0, 1, 1], means[:, 1, 0, 1], means[:, 1, 1, 0]], axis=1)
    cumulants = np.abs(means[:, 1, 1, 1] - np.sum(one * others, axis=1) + 2 * np.prod(one, axis=1))
    products = np.stack([one[:, 1] * one[:, 2], one[:, 0] * one[:, 2], one[:, 0] * one[:, 1]], axis=1)
    # Of the cumulant, by its derivatives: the noise of all eight means is independent, and equally large.
    squares = 1 + np.sum(np.square(one), axis=1) + np.sum(np.square(2 * products - others), axis=1)
    spread = noise * math.sqrt(8) / num_rows * np.sqrt(squares)
    stands_out = (cumulants > _STANDS_OUT_OF_ALL * spread) & (cumulants > _LEAST_CUMULANT)
    order = np.argsort(-cumulants, kind="stable")
    return sorted(triples[i] for i in order[stands_out[order]][:MOST_PARITIES])


def association(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding, *, doubt: float = 0.0
) -> Float[np.ndarray, "pairs"]:
    """How far each pair is from independence within the classes: an approximate total variation, [pairs].

    It is computed from the second measurement. The expected contribution of its noise is subtracted.

    Args:
      layout: of the columns.
      plan: the unions.
      singles: the first measurement.
      noisy: the second measurement.
      doubt: how many standard deviations of this contribution are subtracted, too.
    """
    num_rows, feature_map, distances = noisy.mechanism.num_rows, map_of(noisy), []
    merged = [
        np.stack([np.bincount(union, row) for row in counts])
        for union, counts in zip(plan.merged, singles.smoothed, strict=True)
    ]
    marginals = feature_map.marginals(noisy.coordinates, num_rows)
    for (a, b), block, marginal in zip(layout.pairs(), feature_map.blocks, marginals, strict=False):  # then triples
        first, second = merged[a], merged[b]
        independent = first[:, :, None] * second[:, None, :] / np.maximum(first.sum(1), 1)[:, None, None]
        of_noise = sigma(noisy, block) ** 2 * (1 + doubt * math.sqrt(2 / marginal.size))
        excess = np.mean(np.square(marginal.reshape(independent.shape) - independent)) - of_noise
        distances.append(_MEAN_SIZE * marginal.size * math.sqrt(max(excess, 0)) / (2 * num_rows))
    return np.asarray(distances)


def choose_pairs(
    layout: Layout, plan: Plan, association: Float[np.ndarray, "pairs"], num_rows: int, rho: float
) -> list[int]:
    """The pairs of the third measurement, as increasing positions in ``layout.pairs()``.

    The most associated pairs are chosen. Their number minimises the sum of the estimated errors of all pairs; the error
    of a pair that is not measured is its association. Pairs with the target are always measured.

    Args:
      layout: of the columns.
      plan: the bins.
      association: of every pair, [pairs].
      num_rows: N.
      rho: ρ of the third measurement.
    """
    pairs = layout.pairs()
    sizes = np.asarray([layout.num_classes * math.prod(int(plan.bins[i].max()) + 1 for i in pair) for pair in pairs])
    place = layout.columns.index(layout.target) if layout.target >= 0 > layout.split else -1
    has_target = np.asarray([place in pair for pair in pairs], bool)
    order = np.lexsort((-association, ~has_target))
    weights = sizes[order] ** (1 / 3)
    # σ of a marginal is √(Σ ω² / ρ) / ω, with Σ over all measured marginals. Its error is half the sum of the errors
    # of its cells.
    noise = np.sqrt(np.cumsum(np.square(weights)) / rho) * np.cumsum(sizes[order] / weights)
    errors = ERROR_OF_NOISE * noise / num_rows - np.cumsum(association[order])
    least = max(1, int(has_target.sum()))
    return sorted(order[: least + int(np.argmin(errors[least - 1 :]))].tolist())


def correlations(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding
) -> tuple[Float[np.ndarray, "pairs"], Float[np.ndarray, "pairs"]]:
    """Noisy correlations of the scores of all pairs of columns, and the standard deviations of their noise, [pairs].

    They are computed from the unions of the second measurement. Both are 0 for pairs of columns without scores.
    """
    num_rows, feature_map = noisy.mechanism.num_rows, map_of(noisy)
    scores: dict[int, Float[np.ndarray, "unions"]] = {}
    deviations: dict[int, float] = {}
    for a, (low, high) in zip(layout.scored, plan.ranges.tolist(), strict=True):
        j, union, counts = layout.columns[a], plan.merged[a], singles.smoothed[a].sum(0)
        first = layout.binnings[j].first_codes()
        of_cells = cell_scores(Moment((j,), (low,), (high,), 1), 0, layout.binnings[j], first[:-1], first[1:])
        mean, square = of_cells @ counts / max(counts.sum(), 1e-300)
        deviations[a] = math.sqrt(max(square - mean**2, 1e-12))
        masses = np.maximum(np.bincount(union, counts), 1e-9)
        scores[a] = np.bincount(union, counts * of_cells[0]) / masses - mean
    correlation, noise = np.zeros(len(layout.pairs())), np.zeros(len(layout.pairs()))
    marginals = feature_map.marginals(noisy.coordinates, num_rows)
    for i, ((a, b), block) in enumerate(zip(layout.pairs(), feature_map.blocks, strict=False)):  # then triples
        if a in scores and b in scores:
            counts = marginals[i].reshape(-1, len(scores[a]), len(scores[b])).sum(0)
            size = math.sqrt(layout.num_classes) * np.linalg.norm(scores[a]) * np.linalg.norm(scores[b])
            unit = num_rows * deviations[a] * deviations[b]
            correlation[i], noise[i] = scores[a] @ counts @ scores[b] / unit, sigma(noisy, block) * size / unit
    return correlation, noise


def strong_pairs(
    layout: Layout, plan: Plan, singles: Singles, noisy: NoisyEmbedding, chosen: Sequence[int]
) -> list[tuple[int, int]]:
    """The chosen pairs of columns whose products are measured, as indices of columns.

    They are those whose correlations in the second measurement are not weak, and stand out from the noise. Where there
    are few of them, each is measured well.

    Args:
      layout: of the columns.
      plan: the unions and the ranges of scores.
      singles: the first measurement.
      noisy: the second measurement.
      chosen: positions of pairs in ``layout.pairs()``.
    """
    correlation, noise = correlations(layout, plan, singles, noisy)
    pairs = layout.pairs()
    strong = [i for i in chosen if abs(correlation[i]) >= max(_STRONG, _CLEARLY * noise[i]) and noise[i] > 0]
    return [(layout.columns[a], layout.columns[b]) for a, b in (pairs[i] for i in strong)]
