"""Relaxed rows for the measurements of a table. This is post-processing: it spends nothing."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int, Int64

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax.feature_maps.table import Binning
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table import mixture
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import Cycle
from kme_jax.table.dependence import NUM_ROWS, dependent
from kme_jax.table.histogram import (
    best_penalty,
    coupled,
    of_phases,
    peaks,
    project_to_simplex,
    smooth,
    smooth_counts,
    threshold,
)
from kme_jax.table.observed import Observed
from kme_jax.table.planning import (
    EVENLY,
    NUM_RAKES,
    Layout,
    Plan,
    Singles,
    block_counts,
    class_sizes,
    is_of_rare,
    map_of,
    narrow_moments,
    parts_of,
    sigma,
    triple_counts,
)
from kme_jax.table.rare_fit import rare_categories
from kme_jax.table.reach import Known, cells_alone, cells_with_rows
from kme_jax.table.relaxed import Leaves, Parities, RelaxedRows
from kme_jax.table.tilt import Moments, cell_scores, tilted

# In units of σ: the count of all classes from which on a cell's own noisy counts say how it is divided between them,
# and the distance of the count of a class from its estimate that noise hardly explains.
_KNOWN, _CONTRADICTS = 4.0, 3.0
_OF_FITS = 0x66697473  # tells the random numbers of fits from those of simulated noise with the same seed
_MULTIPLE = 8  # of triples in a fit
_FREQUENT = 3.0  # the count of a frequent bin, in units of the mean count of the bins of its column


def _pairs(
    layout: Layout, plan: Plan, size: int, measured: Sequence[tuple[NoisyEmbedding | None, Sequence[slice]]]
) -> tuple[Float[np.ndarray, "classes parts parts"], Float[np.ndarray, "parts parts"]]:
    """Noisy counts of pairs of parts, [T, F, F], and 1/σ of each, [F, F]; both are 0 where nothing was measured.

    A pair that was measured twice has the best weighted mean, which says the same about the rows as both.

    Args:
      layout: of the columns.
      plan: the bins.
      size: F, the number of parts.
      measured: measurements, each with the parts of every column.
    """
    sums, precision = np.zeros((layout.num_classes, size, size)), np.zeros((size, size))
    for noisy, places in measured:
        for block, marginal, noise in block_counts(noisy):
            columns = [j for j in block.columns if j != layout.split]
            if len(columns) == 2 and not is_of_rare(layout, plan, block):
                first, second = (places[a] for a in map(layout.columns.index, columns))
                sums[:, first, second] += marginal.reshape(layout.num_classes, *marginal.shape[-2:]) / noise**2
                precision[first, second] += 1 / noise**2
    return sums / np.where(precision > 0, precision, 1), np.sqrt(precision)


def observe(
    layout: Layout,
    plan: Plan,
    singles: Singles,
    coarse: NoisyEmbedding | None,
    pairs: NoisyEmbedding | None,
    num_rows: int,
) -> Observed:
    """The noisy counts that relaxed rows are fitted to.

    Args:
      layout: of the columns.
      plan: the bins.
      singles: the first measurement.
      coarse: the second measurement, or None.
      pairs: the third measurement, or None.
      num_rows: N.
    """
    of_bins, of_unions, unions = parts_of(plan)
    offsets = [0, *(place.stop for place in of_bins)]
    counts: list[Float[np.ndarray, "classes _"]] = []
    spread: list[Float[np.ndarray, "_"]] = []
    for a, bins in enumerate(plan.bins):
        of_classes, of_cells = singles.of_classes(a)
        counts.append(np.stack([np.bincount(bins, row) for row in of_classes]))
        spread.append(of_cells.of_groups(bins))
    for block, marginal, noise in block_counts(pairs):
        columns = [j for j in block.columns if j != layout.split]
        if len(columns) == 1 and not block.zoom:  # a wide column was measured twice: the best weighted mean
            a = layout.columns.index(columns[0])
            weight = spread[a] ** 2 / (spread[a] ** 2 + noise**2)
            counts[a] = (1 - weight) * counts[a] + weight * marginal.reshape(counts[a].shape)
            spread[a] = spread[a] * np.sqrt(1 - weight)
    totals, totals_precision = np.zeros(offsets[-1]), np.zeros(offsets[-1])
    if singles.totals is not None:
        by_column = zip(plan.bins, singles.totals, singles.totals_sigmas, strict=True)
        binned = [(np.bincount(bins, cells), 1 / (s * np.sqrt(np.bincount(bins)))) for bins, cells, s in by_column]
        totals, totals_precision = (np.concatenate(arrays) for arrays in zip(*binned, strict=True))
    prior = [
        np.stack([np.bincount(bins, row) for row in of_classes])
        for bins, of_classes in zip(plan.bins, singles.smoothed, strict=True)
    ]
    return Observed(
        tuple(offsets),
        num_rows,
        np.concatenate(prior, axis=1),
        np.concatenate(counts, axis=1),
        np.concatenate(spread),
        totals,
        totals_precision,
        unions,
        *_pairs(layout, plan, sum(unions.shape), [(coarse, of_unions), (pairs, of_bins)]),
        _classes(layout, singles, coarse, pairs, num_rows),
        *_products(layout, plan, singles, offsets, pairs),
        *_parities(layout, plan, pairs),
        _neighbours(layout, plan, prior),
        _num_ordered(layout, prior),
    )


def _num_ordered(layout: Layout, prior: Sequence[Float[np.ndarray, "classes _"]]) -> tuple[int, ...]:
    """The number of bins on the scale of each column, 0 for a column without a scale.

    Args:
      layout: of the columns.
      prior: as for ``_neighbours``.
    """
    binnings = [layout.binnings[j] for j in layout.columns]
    sizes = [counts.shape[1] - binning.missing for binning, counts in zip(binnings, prior, strict=True)]
    return tuple(size if binning.ordered else 0 for binning, size in zip(binnings, sizes, strict=True))


def _neighbours(
    layout: Layout, plan: Plan, prior: Sequence[Float[np.ndarray, "classes _"]]
) -> Float[np.ndarray, "bins"]:
    """1 where a bin and the next one are alike neighbours on the scale of an ordered column, 0 elsewhere, [D].

    A bin with far more rows than others, such as that of people without an income, is like none beside it.

    Args:
      layout: of the columns.
      plan: the bins.
      prior: for each column, estimated counts of every class and bin, [T, B].
    """
    parts = []
    for j, counts in zip(layout.columns, (counts.sum(0) for counts in prior), strict=True):
        number = len(counts) - layout.binnings[j].missing
        is_alike = (np.arange(len(counts)) < number) & (counts <= _FREQUENT * counts.sum() / max(number, 1))
        is_alike &= layout.binnings[j].ordered
        parts.append(is_alike & np.append(is_alike[1:], False))
    return np.concatenate(parts).astype(float)


def _classes(
    layout: Layout, singles: Singles, coarse: NoisyEmbedding | None, pairs: NoisyEmbedding | None, num_rows: int
) -> Float[np.ndarray, "classes"] | None:
    """Estimated counts of the classes from all measurements, [T]; None if they were not measured by themselves.

    Every marginal with classes has sums that are noisy counts of the classes. The estimate is the best weighted mean.
    """
    if singles.classes is None:
        return None
    counts, variances = [singles.classes], [singles.classes_sigma**2]
    for marginal, noise in zip(singles.counts, singles.sigmas, strict=True):
        counts.append(marginal.sum(1))
        variances.append(marginal.shape[1] * noise**2)
    for block, marginal, noise in [*block_counts(coarse), *block_counts(pairs)]:
        if layout.split in block.columns and not block.zoom:
            cells = marginal.reshape(layout.num_classes, -1)
            counts.append(cells.sum(1))
            variances.append(cells.shape[1] * noise**2)
    precisions = 1 / np.maximum(variances, 1e-100)
    mean = np.einsum("m,mt->t", precisions / precisions.sum(), np.stack(counts))
    return class_sizes(mean, float(precisions.sum() ** -0.5), num_rows)


def _parities(
    layout: Layout, plan: Plan, pairs: NoisyEmbedding | None
) -> tuple[Float[np.ndarray, "bins columns"], Int64[np.ndarray, "n 3"], Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Signs of bins [D, C], triples [n, 3], noisy sums of the products of their signs [n], and their precision [n].

    The number n is 0, or a multiple of 8, so that programs are compiled for few numbers. What is added has precision 0.
    """
    triples, counts, noise = triple_counts(layout, pairs)
    signs = np.asarray(scipy.linalg.block_diag(*[2.0 * half[:, None] - 1 for half in plan.halves(layout)]))
    number, sign = len(triples), np.asarray([-1.0, 1.0])
    added = -number % _MULTIPLE
    places = np.asarray([*triples, *[(0, 0, 0)] * added], np.int64).reshape(-1, 3)
    sums = np.append(np.einsum("nijk,i,j,k->n", counts, sign, sign, sign), np.zeros(added))
    return signs, places, sums, np.append(np.full(number, 1 / max(noise * 8**0.5, 1e-300)), np.zeros(added))


def _of_samples(observed: Observed) -> Parities | None:
    """The measured parities as means, which balanced samples have; None if there are none."""
    measured = observed.parities_precision > 0
    if not measured.any():
        return None
    means = np.clip(observed.parities[measured] / observed.num_rows, -1, 1)
    return Parities(observed.triples[measured], observed.signs.sum(axis=1), means)


def _products(
    layout: Layout, plan: Plan, singles: Singles, offsets: list[int], noisy: NoisyEmbedding | None
) -> tuple[Float[np.ndarray, "bins scored"], Float[np.ndarray, "scored scored"], Float[np.ndarray, "scored scored"]]:
    """Mean scores of bins [D, S], noisy sums of products of scores [S, S], and the precision of the sums [S, S]."""
    moments = [] if noisy is None else [m for m in map_of(noisy).moments if len(m.columns) == 2]
    columns = sorted({j for moment in moments for j in moment.columns})
    scores = np.zeros((offsets[-1], len(columns)))
    products, precision = np.zeros((len(columns),) * 2), np.zeros((len(columns),) * 2)
    if noisy is None:
        return scores, products, precision
    sums = map_of(noisy).moment_sums(noisy.coordinates, noisy.mechanism.num_rows)
    for moment, total in zip(map_of(noisy).moments, sums, strict=True):
        if len(moment.columns) == 1:
            continue
        places = [columns.index(j) for j in moment.columns]
        products[places[0], places[1]], precision[places[0], places[1]] = total[0], 1 / sigma(noisy, moment)
        for i, (place, j) in enumerate(zip(places, moment.columns, strict=True)):
            a, first = layout.columns.index(j), layout.binnings[j].first_codes()
            of_cells = cell_scores(moment, i, layout.binnings[j], first[:-1], first[1:])[0]
            counts = singles.smoothed[a].sum(0) + 1e-9
            masses = np.bincount(plan.bins[a], counts)
            scores[slice(*offsets[a : a + 2]), place] = np.bincount(plan.bins[a], counts * of_cells) / masses
    return scores, products, precision


def by_class(
    binning: Binning,
    bins: Int[np.ndarray, "cells"],
    counts: Float[np.ndarray, "classes cells"],
    noise: float,
    sums: Float[np.ndarray, "cells"],
    sums_noise: float,
    masses: Float[np.ndarray, "classes bins"],
) -> Float[np.ndarray, "classes cells"]:
    """Estimates of the counts of every class and cell, [T, cells].

    There are two estimates for an ordered column. In one of them, all classes have the same shape within a bin, up to
    differences that stand out from the noise (``_similar_shapes``). In the other, every class has a shape of its own,
    and only the sums over classes are shared (``_own_shapes``). The first is better where a column is smooth, the
    second where it has few different values. Each class has the mean of both with the weight of least estimated risk.
    The risk is estimated by ``histogram.coupled``. Arguments as in ``_leaves``.
    """
    along_values = slice(0, binning.num_values)
    common = np.array(sums)
    if binning.ordered:
        common[along_values] = smooth_counts(sums[along_values], sums_noise)
    similar = functools.partial(
        _similar_shapes, binning, bins, common=common, sums=sums, sums_noise=sums_noise, masses=masses
    )
    # A bin of one cell has no shape.
    shaped = np.flatnonzero(np.bincount(bins)[bins[along_values]] > 1)
    if not binning.ordered or len(counts) == 1 or not len(shaped) or noise == 0:
        return similar(counts, noise)
    shared = common * (masses / np.maximum(masses.sum(0), 1e-9))[:, bins]
    similar = functools.partial(similar, penalty=best_penalty((counts - shared)[:, along_values], noise))
    own = functools.partial(
        _own_shapes,
        binning,
        sizes=masses.sum(1),
        total=project_to_simplex(common, max(masses.sum(), 1)),
        penalty=best_penalty(counts[:, along_values], noise),
    )
    splits, along, squares = coupled(counts, noise), np.zeros(len(counts)), np.zeros(len(counts))
    for fitted, judge in zip(splits.fitted, splits.judges, strict=True):
        first = similar(fitted, splits.sigma)
        step = own(fitted, splits.sigma) - first
        along += (step * (judge - first))[:, shaped].sum(1)
        squares += np.square(step[:, shaped]).sum(1)
    weights = np.clip(along / np.maximum(squares, 1e-300), 0, 1)[:, None]
    estimate = similar(counts, noise)
    estimate[:, shaped] += weights * (own(counts, noise) - estimate)[:, shaped]
    return estimate


def _own_shapes(
    binning: Binning,
    counts: Float[np.ndarray, "classes cells"],
    noise: float,
    *,
    sizes: Float[np.ndarray, "classes"],
    total: Float[np.ndarray, "cells"],
    penalty: float,
) -> Float[np.ndarray, "classes cells"]:
    """Counts of every class and cell of an ordered column, [T, cells], smoothed for each class by itself.

    Args:
      binning, counts, noise: as in ``_leaves``.
      sizes: counts of the classes, that the result has, [T].
      total: sums over the classes, that the result has about, [cells].
      penalty: of ``smooth_counts``.
    """
    estimate, sizes = np.array(counts), np.maximum(sizes, 1e-9)
    estimate[:, : binning.num_values] = smooth_counts(counts[:, : binning.num_values], noise, penalty)
    estimate = np.stack([project_to_simplex(row, size) for row, size in zip(estimate, sizes, strict=True)])
    estimate += EVENLY * sizes[:, None] / estimate.shape[1]
    for _ in range(NUM_RAKES):
        estimate *= total / np.maximum(estimate.sum(0), 1e-300)
        estimate *= (sizes / np.maximum(estimate.sum(1), 1e-300))[:, None]
    return estimate


def _similar_shapes(
    binning: Binning,
    bins: Int[np.ndarray, "cells"],
    counts: Float[np.ndarray, "classes cells"],
    noise: float,
    *,
    common: Float[np.ndarray, "cells"],
    sums: Float[np.ndarray, "cells"],
    sums_noise: float,
    masses: Float[np.ndarray, "classes bins"],
    penalty: float | None = None,
) -> Float[np.ndarray, "classes cells"]:
    """Counts of every class and cell, [T, cells], if classes have similar shapes within a bin.

    Every class has the shape of all classes together, except for differences that stand out from the noise. Otherwise
    a classifier would take the different noise of the classes for a rule. But all rows of a frequent value may be of
    one class. So in cells with a large count, classes keep the differences from this estimate that noise hardly
    explains. Of the others they keep the part by which their squares exceed the noise. Peaks of single classes are
    added.

    Args:
      binning, bins, counts, noise, sums, sums_noise, masses: as in ``_leaves``.
      common: an estimate of the counts of all classes together, [cells].
      penalty: of ``smooth``.
    """
    values = slice(0, binning.num_values)
    expected = common * (masses / np.maximum(masses.sum(0), 1e-9))[:, bins]
    differences = counts - expected
    if binning.ordered:
        differences[:, values] = smooth(differences[:, values], noise, penalty)
        differences[:, binning.num_values :] = 0
    else:
        differences = threshold(differences, noise)
    estimate = expected + differences
    is_known = (np.minimum(sums, common) > _KNOWN * sums_noise) & (np.bincount(bins)[bins] > 1)
    is_known[binning.num_values :] = False
    residuals = counts - estimate
    contradict = is_known & (np.abs(residuals) > _CONTRADICTS * noise).any(0)
    others = is_known & ~contradict
    # Of other residuals, the part that exceeds the noise (James & Stein 1961).
    squares = np.square(residuals[:, others]).sum(1, keepdims=True)
    share = np.maximum(1 - others.sum() * noise**2 / np.maximum(squares, 1e-300), 0)
    kept = np.where(contradict, 1.0, np.where(others, share, 0.0))  # [T, cells]
    for cell in np.flatnonzero(kept.any(0)):
        own = estimate[:, cell] + kept[:, cell] * residuals[:, cell]
        estimate[:, cell] = project_to_simplex(own + (common[cell] - own.sum()) / len(own), common[cell])
    if binning.ordered:
        estimate[:, values] += peaks(counts[:, values] - estimate[:, values], noise)
    return estimate


def _leaves(
    binning: Binning,
    bins: Int[np.ndarray, "cells"],
    counts: Float[np.ndarray, "classes cells"],
    noise: float,
    sums: Float[np.ndarray, "cells"],
    sums_noise: float,
    masses: Float[np.ndarray, "classes bins"],
    inside: Bool[np.ndarray, "cells"],
    zoom: tuple | None,
    cycles: Sequence[Cycle],
    agree: Callable[[Float[np.ndarray, "cells"]], Float[np.ndarray, "cells"]],
) -> Leaves:
    """The cells of a column as ranges of codes. A cell that was cut into parts has one range for each part.

    Args:
      binning: of the column.
      bins: the bin of every cell, [cells].
      counts: noisy counts, [T, cells].
      noise: σ of ``counts``.
      sums: noisy counts of all classes together, [cells].
      sums_noise: σ of ``sums``.
      masses: counts of every class and bin in the fit, [T, B].
      inside: whether each cell may have rows, [cells]. If no cell of a bin may, all of them may.
      zoom: block, counts and σ of the parts of cells; None if no cell was cut.
      cycles: after which the column may repeat a pattern.
      agree: a function of non-negative counts of cells, all classes together. Its result agrees with those of segments.
    """
    estimate = by_class(binning, bins, counts, noise, sums, sums_noise, masses)
    alone = cells_alone(inside, binning.num_values) & binning.ordered
    for cell in np.flatnonzero(alone):
        estimate[:, cell] = project_to_simplex(counts[:, cell], max(float(sums[cell]), 1e-9))
    total = np.maximum(estimate, 0).sum(0)
    factors = agree(total) / np.maximum(total, 1e-300)
    estimate = np.where(total > 0, np.maximum(estimate, 0) * factors, estimate)
    shares = np.zeros_like(estimate)
    for b in range(masses.shape[1]):
        cells = (bins == b) & inside if (inside & (bins == b)).any() else bins == b
        for t, mass in enumerate(masses[:, b]):
            shares[t, cells] = shares_in_bin(estimate[t, cells] / max(mass, 1e-9), alone[cells])
    for cycle in cycles:
        shares = _with_phases(binning, bins, shares, sums, sums_noise, masses, cycle)
    first = binning.first_codes()
    leaves = Leaves(first[:-1], first[1:], bins, shares)
    if zoom is None:
        return leaves
    block, inner, inner_noise = zoom
    num_parts = block.zoom
    cut = np.flatnonzero(block.bins[0] >= 0)
    uncut = np.delete(np.arange(binning.num_cells), cut)
    new_first, new_last, new_bins, new_shares = (
        [value[..., uncut]] for value in (leaves.first, leaves.last, bins, shares)
    )
    for cell, row in zip(cut, inner, strict=True):
        starts = leaves.first[cell] + -(-np.arange(num_parts + 1) * binning.width // num_parts)
        kept = starts[:-1] < leaves.last[cell]
        total = max(float(estimate[:, cell].sum()), inner_noise)
        inside = project_to_simplex(smooth_counts(row[kept], inner_noise), total) / total
        new_first.append(starts[:-1][kept])
        new_last.append(np.minimum(starts[1:][kept], leaves.last[cell]))
        new_bins.append(np.full(int(kept.sum()), bins[cell]))
        new_shares.append(shares[:, cell, None] * inside)
    first_codes = np.concatenate(new_first)
    order = np.argsort(first_codes, kind="stable")
    return Leaves(
        first_codes[order],
        np.concatenate(new_last)[order],
        np.concatenate(new_bins)[order],
        np.concatenate(new_shares, axis=1)[:, order],
    )


def shares_in_bin(estimate: Float[np.ndarray, "cells"], alone: Bool[np.ndarray, "cells"]) -> Float[np.ndarray, "cells"]:
    """Shares of the cells of a bin, [cells], with sum 1.

    The noise of many cells makes their sum too large, and the projection then takes the same from each of them. It
    would take it from a bound that many rows share as well, although its noise is that of one cell. So cells alone keep
    their estimates as long as the others have room.

    Args:
      estimate: of the shares, before they are non-negative and have the sum 1.
      alone: see ``reach.cells_alone``.
    """
    kept = np.where(alone, np.maximum(estimate, 0), 0.0)
    rest = 1 - kept.sum()
    if alone.all() or rest <= 0:
        return project_to_simplex(estimate, 1.0)
    kept[~alone] = project_to_simplex(estimate[~alone], rest)
    return kept


def _with_phases(
    binning: Binning,
    bins: Int[np.ndarray, "cells"],
    shares: Float[np.ndarray, "classes cells"],
    sums: Float[np.ndarray, "cells"],
    sums_noise: float,
    masses: Float[np.ndarray, "classes bins"],
    cycle: Cycle,
) -> Float[np.ndarray, "classes cells"]:
    """Shares of cells in their bins that have the regular pattern of noisy counts, see ``histogram.of_phases``.

    Args:
      binning, bins, sums, sums_noise, masses: as in ``_leaves``.
      shares: of cells in their bins, for every class.
      cycle: see ``Cycle.phases_of``.
    """
    phases = None if binning.knots else cycle.phases_of(binning.num_values, binning.width)
    if phases is None:
        return shares
    values = slice(0, binning.num_values)
    counts = (masses[:, bins] * shares).sum(0)
    factors = np.ones(len(bins))
    factors[values] = of_phases(counts[values], sums[values], sums_noise, phases)
    changed = shares * factors
    totals = np.stack([np.bincount(bins, row) for row in changed])[:, bins]
    return np.where(totals > 0, changed / np.maximum(totals, 1e-300), shares)


@shows_progress("synthesis")
def synthesise(
    layout: Layout,
    plan: Plan,
    measured: list[NoisyEmbedding | None],
    *,
    cycles: Mapping[int, Sequence[Cycle]] | None = None,
    seed: int = 0,
    part: float = 1.0,
    progress: Progress | bool = False,
) -> RelaxedRows:
    """Relaxed rows whose embeddings are close to the noisy embeddings.

    Args:
      layout: of the columns.
      plan: the bins.
      measured: the noisy embeddings of the three measurements; None for a measurement that does not exist.
      cycles: by the index of a column, see ``Schema.cycles``.
      seed: of the fit.
      part: of the relaxed rows that are fitted, in (0, 1]. Fewer are faster, and a little less accurate.
      progress: True for a bar, or a function that is called with (work done, total work).
    """
    first, coarse, pairs = measured
    if first is None:
        raise ValueError("measured: the first measurement always exists")
    num_rows = first.mechanism.num_rows
    singles = Singles.read(layout, first)
    observed = observe(layout, plan, singles, coarse, pairs, num_rows)
    key = jax.random.fold_in(jax.random.key(seed), _OF_FITS)
    weights, probabilities = mixture.fit(key, observed, part=part, progress=reporter(progress))
    masses = num_rows * np.einsum("tk,tkd->td", weights, probabilities)
    zooms = {block.columns[0]: (block, parts, noise) for block, parts, noise in block_counts(pairs) if block.zoom}
    leaves, shares_of_bins, rounds = [], [], cycles or {}
    for a, j in enumerate(layout.columns):
        of_column = masses[:, slice(*observed.offsets[a : a + 2])]
        over_bounds = singles.moments[a]
        moments = [] if over_bounds is None else [over_bounds, *narrow_moments(layout, j, pairs)]
        inside = _inside(layout, plan, singles, a, moments, pairs, num_rows)
        counts, sums, of_segments = singles.within(a, inside)
        agree = functools.partial(singles.with_segments, a, inside=inside, of_segments=of_segments and of_segments[1])
        ranges = _leaves(
            layout.binnings[j],
            plan.bins[a],
            counts,
            singles.sigmas[a],
            sums,
            singles.sums_sigmas[a],
            of_column,
            inside,
            zooms.get(j),
            rounds.get(j, ()),
            agree,
        )
        if moments:
            known = observed.counts_of_bins(a, of_column.sum(0))
            ranges, of_column = _with_moments(ranges, of_column, moments, singles.of_all(a)[1], inside, known)
        leaves.append(ranges)
        shares_of_bins.append(of_column / num_rows)
    parities, single = _of_samples(observed), probabilities.astype(np.float32)
    rows = RelaxedRows(weights, single, observed.offsets, tuple(leaves), layout.split, parities=parities)
    rows = rows.raked(shares_of_bins) if layout.numbers else rows
    if pairs is None:
        return rows
    rows = dependent(rows, layout, plan, observed, pairs, seed, round(part * NUM_ROWS))
    return dataclasses.replace(rows, rare=rare_categories(rows, layout, plan, pairs, seed))


def _inside(
    layout: Layout,
    plan: Plan,
    singles: Singles,
    a: int,
    moments: Sequence[Moments],
    pairs: NoisyEmbedding | None,
    num_rows: int,
) -> Bool[np.ndarray, "cells"]:
    """Which cells of a column may have rows, after the third measurement.

    Its moments have less noise than those of the first one, and so have its counts of the bins of a column of many
    cells. So they show tails and parts that the counts of single cells do not.

    Args:
      layout: of the columns.
      plan: the bins.
      singles: the first measurement.
      a: place of the column in ``layout.columns``.
      moments: of the column, from both measurements.
      pairs: the third measurement, or None.
      num_rows: N.
    """
    known, binning = Known.of_moments(moments), layout.binnings[layout.columns[a]]
    if known is None or len(moments) == 1:
        return singles.inside[a]
    for block, counts, noise in block_counts(pairs):
        if [j for j in block.columns if j != layout.split] == [layout.columns[a]] and not block.zoom:
            of_bins = counts.reshape(layout.num_classes, -1).sum(0)
            known = known.with_bins(plan.bins[a], of_bins, noise * math.sqrt(layout.num_classes))
    at_bounds = singles.at_bounds(a, binning.num_values)
    return cells_with_rows(binning, *singles.of_all(a), num_rows, known, at_bounds)


def _with_moments(
    leaves: Leaves,
    masses: Float[np.ndarray, "classes bins"],
    measured: list[Moments],
    noise: CellNoise,
    inside: Bool[np.ndarray, "cells"],
    known: tuple[Float[np.ndarray, "bins"], Float[np.ndarray, "bins"]],
) -> tuple[Leaves, Float[np.ndarray, "classes bins"]]:
    """Leaves and counts of the bins of a column that agree with its noisy moments, see ``tilted``.

    The fit knows the counts of bins from pairs, too, and so better than those of cells. So it is mostly the cells of a
    bin that change.

    Args:
      leaves: of the column.
      masses: counts of every class and bin, [T, B].
      measured: the moments.
      noise: of the counts of cells.
      inside: the cells that may have rows.
      known: estimated counts of bins, all classes together, [B], and their standard errors, [B].
    """
    binning = measured[0].binning
    alone = cells_alone(inside, binning.num_values)[binning.cells(leaves.first)]
    counts = masses[:, leaves.bins] * leaves.shares
    counts = tilted(counts, leaves.first, leaves.last, measured, noise, alone, (leaves.bins, *known))
    masses = dataclasses.replace(leaves, shares=counts).masses(masses.shape[1])
    shares = counts / np.maximum(masses, 1e-300)[:, leaves.bins]
    return dataclasses.replace(leaves, shares=shares), masses
