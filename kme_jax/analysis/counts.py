"""Answers about columns that were counted together, from the counts. Post-processing.

See ``kme_jax.analysis.direct`` for the method.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.queries import Query
from kme_jax.analysis.sums import LEAST_SIGNAL, Answer, Sums, cells_inside, root
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import numeric_values
from kme_jax.table.planning import block_counts
from kme_jax.table.release import NAMES


@short_repr
class Counts(NamedTuple):
    """Noisy counts of the combinations of bins of some columns.

    Attributes:
      columns: indices of the columns.
      bins: for each of them, the bin of every cell of its binning.
      counts: of all combinations.
      noise: of the counts along the last axis. It is independent along the others.
      is_first: whether they are from the first measurement.
    """

    columns: tuple[int, ...]
    bins: tuple[Int[np.ndarray, "_"], ...]
    counts: Float64[np.ndarray, "..."]
    noise: CellNoise
    is_first: bool

    def error(self, values: Float64[np.ndarray, "..."]) -> float:
        """Standard deviation of the noise of the sum of values, each times its count."""
        return float(np.linalg.norm(self.noise.of(values)))


def tables_of(sums: Sums, asked: set[int]) -> list[Counts]:
    """All measured counts of the columns that are asked for, together, with the other columns of a block summed out."""
    layout, singles = sums.layout, sums.singles
    others = sorted(asked - {layout.split})
    tables = []
    if len(others) == 1 and others[0] in layout.columns:
        a = layout.columns.index(others[0])
        cells = np.arange(layout.binnings[others[0]].num_cells)
        if layout.split in asked:
            bins = np.arange(layout.num_classes), cells
            tables.append(Counts((layout.split, others[0]), bins, *singles.of_classes(a), True))
        else:
            tables.append(Counts((others[0],), (cells,), *singles.of_all(a), True))
    if len(asked) == 1:
        return tables
    for name in NAMES[1:]:
        noisy = sums.measurement.measured.get(name)
        for block, counts, noise in block_counts(noisy):
            if asked <= set(block.columns) and not block.zoom:
                summed = tuple(i for i, j in enumerate(block.columns) if j not in asked)
                columns, bins = zip(
                    *(p for p in zip(block.columns, block.bins, strict=True) if p[0] in asked), strict=True
                )
                noise *= math.sqrt(math.prod(counts.shape[i] for i in summed))
                tables.append(Counts(columns, bins, counts.sum(axis=summed), CellNoise(noise), False))
    return tables


def _of_bins(cells: Bool[np.ndarray, "cells"], bins: Int[np.ndarray, "cells"]) -> Bool[np.ndarray, "bins"] | None:
    """Which bins consist of these cells; None if some cells of a bin are among them, and others are not."""
    shares = np.bincount(bins, cells) / np.bincount(bins)
    return shares == 1 if np.isin(shares, (0, 1)).all() else None


def of_conditions(sums: Sums, query: Query, asked: set[int]) -> Answer | None:
    """The answer for the rows that meet conditions on columns that were counted together.

    Of all counts that tell it exactly, those with the least noise in the sum of the rows that count give the answer.
    """
    answers = []
    for table in tables_of(sums, asked):
        masks = _masks(sums, query, table)
        if masks is not None:
            counted = functools.reduce(np.multiply.outer, masks.counted)
            answer = _of_table(sums, query, table, masks)
            if answer is not None:
                answers.append((table.error(counted.astype(float)), answer))
    return min(answers, key=lambda pair: pair[0])[1] if answers else None


@short_repr
class Masks(NamedTuple):
    """Which bins of each column of a table meet the conditions, and where the cells of the columns do.

    Attributes:
      counted: bins of the rows that count, for each column.
      met: bins that meet the conditions of a share, for each column.
      cells: cells of the rows that count, for each column.
    """

    counted: list[Bool[np.ndarray, "_"]]
    met: list[Bool[np.ndarray, "_"]]
    cells: list[Bool[np.ndarray, "_"]]


def _masks(sums: Sums, query: Query, table: Counts) -> Masks | None:
    """The masks of a query; None if a condition cuts a bin."""
    masks = Masks([], [], [])
    for conditions, of_bins in ((query.where, masks.counted), (query.share, masks.met)):
        ranges = sums.ranges_of(conditions)
        for j, bins in zip(table.columns, table.bins, strict=True):
            edges = sums.edges(j)
            cells = cells_inside(edges, ranges[j]) if j in ranges else np.ones(len(edges) - 1, bool)
            mask = None if cells is None else _of_bins(cells, bins)
            if cells is None or mask is None:
                return None
            of_bins.append(mask)
            if of_bins is masks.counted:
                masks.cells.append(cells)
    return masks


def _of_table(sums: Sums, query: Query, table: Counts, masks: Masks) -> Answer | None:
    """The answer from counts. It is a ratio of two noisy sums over bins.

    Its error is that of the delta method, unless the number of rows that count is known from elsewhere.
    """
    counted = [np.array(mask) for mask in masks.counted]
    place = None  # of the column of a mean
    if query.statistic == "share":
        values = functools.reduce(np.multiply.outer, masks.met).astype(float)
        left_out = None
    else:
        j = sums.schema.index(str(query.column))
        place = table.columns.index(j)
        of_bins = _values(sums, j, table.bins[place], counted[place])
        if of_bins is None:
            return None
        shape = [1] * table.counts.ndim
        shape[place] = -1
        values = np.broadcast_to(np.nan_to_num(of_bins).reshape(shape), table.counts.shape)
        left_out = np.isnan(of_bins) & counted[place]
        counted[place] &= ~left_out
    mask = functools.reduce(np.multiply.outer, counted)
    sizes = number_of_rows(sums, table, masks, place)
    if sizes is not None and left_out is not None and left_out.any():
        of_columns = [left_out if i == place else m for i, m in enumerate(masks.counted)]
        missing = functools.reduce(np.multiply.outer, of_columns)
        error = table.error(missing.astype(float))
        sizes = sizes[0] - float(table.counts[missing].sum()), math.hypot(sizes[1], error)
    mean = _ratio(table, mask, values, sizes)
    if query.statistic != "sd" or mean is None:
        return mean
    centre = min(max(mean.value, values[mask].min()), values[mask].max())
    square = _ratio(table, mask, np.square(values - centre), sizes)
    return square and root(square.around(mean))


def _values(
    sums: Sums, j: int, bins: Int[np.ndarray, "cells"], counted: Bool[np.ndarray, "bins"]
) -> Float64[np.ndarray, "bins"] | None:
    """The number of each bin of a column, NaN for missing cells; None if a bin that counts has several numbers."""
    edges = sums.edges(j)
    codes = np.bincount(bins, np.diff(edges))
    if (codes[counted] > 1).any():
        return None
    first = np.unique(bins, return_index=True)[1]
    return numeric_values(sums.schema.columns[j], edges[:-1][first])


def number_of_rows(sums: Sums, table: Counts, masks: Masks, place: int | None) -> tuple[float, float] | None:
    """The number of rows that meet the conditions, and the standard deviation of its noise, if the noise of the table
    is not in it; None if it is known from the table alone. Missing cells of the column of a mean are among them."""
    chosen = [i for i, cells in enumerate(masks.cells) if not cells.all()]
    layout, singles, rows = sums.layout, sums.singles, (sums.rows, sums.rows_noise)
    if not chosen:
        return rows
    if len(chosen) > 1 or chosen[0] == place:
        return None
    j, cells = table.columns[chosen[0]], masks.cells[chosen[0]]
    if j == layout.split:
        if singles.classes is None:
            return None
        return float(singles.classes[cells].sum()), singles.classes_sigma * math.sqrt(cells.sum())
    if table.is_first:
        return None
    a = layout.columns.index(j)
    counts, noise = singles.of_all(a)
    inside, outside = (float(noise.of(of_cells.astype(float))) for of_cells in (cells, ~cells))
    outside = math.hypot(rows[1], outside)
    if inside <= outside:
        return float(counts[cells].sum()), inside
    return rows[0] - float(counts[~cells].sum()), outside


def _ratio(
    table: Counts,
    counted: Bool[np.ndarray, "..."],
    values: Float64[np.ndarray, "..."],
    sizes: tuple[float, float] | None,
) -> Answer | None:
    """The mean of values over the rows of the counted cells.

    Args:
      table: noisy counts.
      counted: which cells count.
      values: of the cells.
      sizes: the number of rows in the counted cells, and its standard deviation, if it is known from elsewhere.
    """
    y, v = table.counts[counted], values[counted]
    if not y.size:
        return None
    rows, noise_of_rows = sizes or (float(y.sum()), table.error(counted.astype(float)))
    if rows < 1 or rows < LEAST_SIGNAL * noise_of_rows:
        return None
    if sizes is None:
        value = float(v @ y) / rows
        return Answer(value, table.error(np.where(counted, values - value, 0)) / rows)
    centre = float(v.mean())
    value = centre + float((v - centre) @ y) / rows
    variance = table.error(np.where(counted, values - centre, 0)) ** 2 + ((value - centre) * noise_of_rows) ** 2
    return Answer(value, math.sqrt(variance) / rows)
