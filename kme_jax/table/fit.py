"""Relaxed rows for the measurements of a table: post-processing."""

from __future__ import annotations

import jax
import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.feature_maps.table import Binning, Block
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table import relaxed
from kme_jax.table.histogram import project_to_simplex, smooth, threshold
from kme_jax.table.plan import (
    Layout,
    Plan,
    Singles,
    sigma,
)
from kme_jax.table.relaxed import Leaves, Observed, RelaxedRows


def _tables(noisy: NoisyEmbedding | None) -> list[tuple[Block, np.ndarray, float]]:
    """Blocks of a measurement, their noisy counts and the noise of these."""
    if noisy is None:
        return []
    feature_map = noisy.feature_map
    tables = feature_map.marginals(noisy.coordinates, noisy.mechanism.num_rows)
    return [(b, table, sigma(noisy, b)) for b, table in zip(feature_map.blocks, tables, strict=True)]


def _pairs(layout: Layout, offsets: list[int], noisy: NoisyEmbedding | None) -> tuple[np.ndarray, np.ndarray]:
    """Noisy counts of pairs of bins, [T, D, D], and 1/σ, [D, D]."""
    size = offsets[-1]
    counts, precision = np.zeros((layout.num_classes, size, size)), np.zeros((size, size))
    for block, table, noise in _tables(noisy):
        columns = [j for j in block.columns if j != layout.split]
        if len(columns) == 2:
            left, right = (slice(*offsets[a : a + 2]) for a in map(layout.columns.index, columns))
            counts[:, left, right] = table.reshape(layout.num_classes, *table.shape[-2:])
            precision[left, right] = 1 / noise
    return counts, precision


def observe(
    layout: Layout,
    plan: Plan,
    singles: Singles,
    coarse: NoisyEmbedding | None,
    pairs: NoisyEmbedding | None,
    num_rows: int,
) -> Observed:
    """What relaxed rows are fitted to."""
    sizes = [int(bins.max()) + 1 for bins in plan.bins]
    union_sizes = [int(union.max()) + 1 for union in plan.unions]
    offsets, union_offsets = ([0, *np.cumsum(some).tolist()] for some in (sizes, union_sizes))
    unions = np.zeros((offsets[-1], union_offsets[-1]))
    unions[
        np.arange(offsets[-1]), np.concatenate([u + o for u, o in zip(plan.unions, union_offsets, strict=False)])
    ] = 1
    counts = [
        np.stack([np.bincount(bins, row) for row in table])
        for bins, table in zip(plan.bins, singles.counts, strict=True)
    ]
    spread = [s * np.sqrt(np.bincount(bins)) for bins, s in zip(plan.bins, singles.sigmas, strict=True)]
    for block, table, noise in _tables(pairs):
        columns = [j for j in block.columns if j != layout.split]
        if len(columns) == 1 and not block.zoom:  # the bins of a column once more: the best mean of both
            a = layout.columns.index(columns[0])
            part = spread[a] ** 2 / (spread[a] ** 2 + noise**2)
            counts[a] = (1 - part) * counts[a] + part * table.reshape(counts[a].shape)
            spread[a] = spread[a] * np.sqrt(1 - part)
    totals, totals_precision = np.zeros(offsets[-1]), np.zeros(offsets[-1])
    if singles.totals is not None:
        several = zip(plan.bins, singles.totals, singles.totals_sigmas, strict=True)
        found = [(np.bincount(bins, table), 1 / (s * np.sqrt(np.bincount(bins)))) for bins, table, s in several]
        totals, totals_precision = (np.concatenate(some) for some in zip(*found, strict=True))
    prior = [
        np.stack([np.bincount(bins, row) for row in table])
        for bins, table in zip(plan.bins, singles.smoothed, strict=True)
    ]
    return Observed(
        tuple(offsets),
        num_rows,
        np.concatenate(prior, axis=1),
        np.concatenate(counts, axis=1),
        np.concatenate(spread),
        totals,
        totals_precision,
        *_pairs(layout, offsets, pairs),
        *_pairs(layout, union_offsets, coarse),
        unions,
    )


def _by_class(
    binning: Binning,
    bins: np.ndarray,
    counts: np.ndarray,
    noise: float,
    sums: np.ndarray,
    sums_noise: float,
    masses: np.ndarray,
) -> np.ndarray:
    """Counts of every class and cell, [T, cells]: within a bin as those of all classes together, but for what stands
    out from the noise. A classifier would take noise that differs between classes for a rule."""
    values = slice(0, binning.num_values)
    common = np.array(sums)
    if binning.ordered:
        common[values] = smooth(common[values], sums_noise)
    expected = common * (masses / np.maximum(masses.sum(0), 1e-9))[:, bins]
    differences = counts - expected
    if binning.ordered:
        differences[:, values] = smooth(differences[:, values], noise)
        differences[:, binning.num_values :] = 0
    else:
        differences = threshold(differences, noise)
    return expected + differences


def _leaves(
    binning: Binning,
    bins: np.ndarray,
    counts: np.ndarray,
    noise: float,
    sums: np.ndarray,
    sums_noise: float,
    masses: np.ndarray,
    zoom: tuple | None,
) -> Leaves:
    """The cells of a column as ranges of codes, cells that were looked into as their parts.

    Args:
      binning: of the column.
      bins: of its cells.
      counts: noisy, [T, cells].
      noise: σ of counts.
      sums: noisy, of all classes together, [cells].
      sums_noise: σ of these.
      masses: what the fit gives every class and bin, [T, B].
      zoom: (block, counts, σ) of a look into cells.
    """
    estimate = _by_class(binning, bins, counts, noise, sums, sums_noise, masses)
    shares = np.empty_like(estimate)
    for b in range(masses.shape[1]):
        inside = bins == b
        for t, mass in enumerate(masses[:, b]):
            shares[t, inside] = project_to_simplex(estimate[t, inside] / max(mass, 1e-9), 1.0)
    first = binning.first_codes()
    leaves = Leaves(first[:-1], first[1:], bins, shares)
    if zoom is None:
        return leaves
    block, inner, inner_noise = zoom
    parts = block.zoom
    looked = np.flatnonzero(block.bins[0] >= 0)
    pieces = [np.delete(np.arange(binning.num_cells), looked)]
    new_first, new_last, new_bins, new_shares = (
        [value[..., pieces[0]]] for value in (leaves.first, leaves.last, bins, shares)
    )
    for cell, row in zip(looked, inner, strict=True):
        starts = leaves.first[cell] + -(-np.arange(parts + 1) * binning.width // parts)
        kept = starts[:-1] < leaves.last[cell]
        total = max(float(estimate[:, cell].sum()), inner_noise)
        inside = project_to_simplex(smooth(row[kept], inner_noise), total) / total
        new_first.append(starts[:-1][kept])
        new_last.append(np.minimum(starts[1:][kept], leaves.last[cell]))
        new_bins.append(np.full(int(kept.sum()), bins[cell]))
        new_shares.append(shares[:, cell, None] * inside)
    return Leaves(
        np.concatenate(new_first),
        np.concatenate(new_last),
        np.concatenate(new_bins),
        np.concatenate(new_shares, axis=1),
    )


def synthesise(
    layout: Layout,
    plan: Plan,
    measured: list[NoisyEmbedding | None],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> RelaxedRows:
    """Relaxed rows whose embeddings are close to those measured.

    Args:
      layout: the columns.
      plan: bins.
      measured: the three measurements; None for one that there was nothing to measure in.
      seed: of the fit.
      progress: called with (work done, work in all).
    """
    first, coarse, pairs = measured
    num_rows = first.mechanism.num_rows
    singles = Singles.read(layout, first)
    observed = observe(layout, plan, singles, coarse, pairs, num_rows)
    weights, probabilities = relaxed.fit(jax.random.key(seed), observed, progress=progress)
    masses = num_rows * np.einsum("tk,tkd->td", weights, probabilities)
    zooms = {block.columns[0]: (block, table, noise) for block, table, noise in _tables(pairs) if block.zoom}
    leaves = [
        _leaves(
            layout.binnings[j],
            plan.bins[a],
            singles.counts[a],
            singles.sigmas[a],
            singles.sums[a],
            singles.sums_sigmas[a],
            masses[:, slice(*observed.offsets[a : a + 2])],
            zooms.get(j),
        )
        for a, j in enumerate(layout.columns)
    ]
    probabilities = probabilities.astype(np.float32)
    return RelaxedRows(weights, probabilities, observed.offsets, tuple(leaves), layout.split)
