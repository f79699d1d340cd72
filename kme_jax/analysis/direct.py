"""Answers that noisy sums give by themselves, with the standard error of their noise. Post-processing.

The noise of the first measurement is independent, and its standard deviation is known. So a linear function of its
counts is unbiased, and its standard error is known, whatever the private rows are. Nothing is fitted, and nothing is
denoised. Where a sum is divided by a noisy number of rows, and for standard deviations, both hold to first order in the
noise (the delta method).

Let y_c be the noisy counts of the cells of a column, with noise σ, n the number of rows, and v_c the values of the
cells. Then a + Σ_c (v_c − a) y_c / n estimates the mean for any a, because Σ_c y_c estimates n. Its variance is
Σ_c (v_c − a)² σ² / n², which is least for the mean a of the values. The moments of columns of many values are noisy
sums of their scores. Where there are both, they are weighted by their inverse variances.

Cells are counted for each class of the target if marginals are split by it. All pairs of columns are counted in unions
of bins, and some of them in bins. So rows that meet conditions on such columns are a set of cells, too, if no condition
cuts a bin. Their number is N, or a sum of counts of a single column, or else it is the noisy sum of their own counts,
and the mean is a ratio. Bins, and the pairs that are counted in bins, were chosen from earlier measurements, whose
noise is independent. So the counts of pairs stay unbiased. Not quite so the count of a rare value by itself: it is a
bin of its own if its noisy count is large, and is then a little too large on average. For the same reason an answer
about few rows is not quite unbiased: there is one only if their noisy number stands out.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.queries import Query
from kme_jax.table.conditions import ranges_of
from kme_jax.table.evaluate import numeric_values
from kme_jax.table.plan import Layout, Singles, block_counts, map_of, sigma
from kme_jax.table.release import COUNT, NAMES, TableMeasurement

_LEAST_SIGNAL = 3.0  # a variance, or a number of rows, is used if it exceeds so many of its standard errors


@short_repr
class Answer(NamedTuple):
    """An answer from noisy sums, and the standard deviation of its noise."""

    value: float
    standard_error: float


def direct_answer(measurement: TableMeasurement, query: Query) -> Answer | None:
    """The answer to a query about one column, or about columns that were counted together, from noisy sums.

    Args:
      measurement: of a table.
      query: any query without groups.

    Returns:
      None unless the query is a mean, a standard deviation or a share; or if no counts of all of its columns tell the
      answer exactly, or noise hides it.
    """
    if query.by or query.statistic not in ("mean", "sd", "share"):
        return None
    layout = measurement.layout
    singles = Singles.read(layout, measurement.measured[NAMES[0]], denoised=False)
    asked = {measurement.schema.index(name) for name in query.asked_columns(measurement.schema)}
    if query.where or len(asked) > 1:
        return _conditional(measurement, query, layout, singles, asked)
    if query.statistic == "share":
        return _share(measurement, query, layout, singles)
    j = measurement.schema.index(str(query.column))
    if j not in layout.columns:
        return None
    column = _Numbers(measurement, layout, singles, j)
    return column.mean() if query.statistic == "mean" else column.sd()


def rows_noise(measurement: TableMeasurement) -> float:
    """Standard deviation of the noise of the number of rows: 0 if the number is public."""
    noisy = measurement.measured.get(COUNT)
    if noisy is None:
        return 0.0
    return sigma(noisy, map_of(noisy).blocks[0])


def _combined(answers: list[Answer]) -> Answer | None:
    """The mean of independent answers, weighted by inverse variances; None if there are none."""
    if not answers:
        return None
    precisions = np.asarray([1 / max(answer.standard_error, 1e-300) ** 2 for answer in answers])
    value = float(np.average([answer.value for answer in answers], weights=precisions))
    return Answer(value, float(precisions.sum() ** -0.5))


def _share(measurement: TableMeasurement, query: Query, layout: Layout, singles: Singles) -> Answer | None:
    ranges = ranges_of(measurement.schema, query.share)
    if len(ranges) != 1:
        return None
    ((j, allowed),) = ranges.items()
    num_rows, noise_of_rows = measurement.statement["num_rows"], rows_noise(measurement)
    if j == layout.split:
        if singles.classes is None:
            return None
        counts, noise = singles.classes, singles.classes_sigma
        inside = np.asarray([any(low <= code < high for low, high in allowed) for code in range(len(counts))], float)
    else:
        a = layout.columns.index(j)
        counts, noise = singles.sums[a], singles.sums_sigmas[a]
        cells = _inside(layout.binnings[j].first_codes(), allowed)
        if cells is None:
            return None
        inside = cells.astype(float)
    centre = inside.mean()
    value = centre + float((inside - centre) @ counts) / num_rows
    variance = np.square(inside - centre).sum() * noise**2 + ((value - centre) * noise_of_rows) ** 2
    return Answer(value, math.sqrt(variance) / num_rows)


@short_repr
class _Counts(NamedTuple):
    """Noisy counts of the combinations of bins of some columns, all with independent noise.

    Attributes:
      columns: indices of the columns.
      bins: for each of them, the bin of every cell of its binning.
      counts: of all combinations.
      noise: standard deviation of each count.
      is_first: whether they are from the first measurement.
    """

    columns: tuple[int, ...]
    bins: tuple[Int[np.ndarray, "_"], ...]
    counts: Float64[np.ndarray, "..."]
    noise: float
    is_first: bool


def _tables(measurement: TableMeasurement, layout: Layout, singles: Singles, asked: set[int]) -> list[_Counts]:
    """All measured counts of the columns that are asked for, together, with the other columns of a block summed out."""
    others = sorted(asked - {layout.split})
    tables = []
    if len(others) == 1 and others[0] in layout.columns:
        a = layout.columns.index(others[0])
        cells = np.arange(layout.binnings[others[0]].num_cells)
        if layout.split in asked:
            bins = np.arange(layout.num_classes), cells
            tables.append(_Counts((layout.split, others[0]), bins, singles.counts[a], singles.sigmas[a], True))
        else:
            tables.append(_Counts((others[0],), (cells,), singles.sums[a], singles.sums_sigmas[a], True))
    if len(asked) == 1:
        return tables
    for name in NAMES[1:]:
        noisy = measurement.measured.get(name)
        for block, counts, noise in block_counts(noisy):
            if asked <= set(block.columns) and not block.zoom:
                summed = tuple(i for i, j in enumerate(block.columns) if j not in asked)
                columns, bins = zip(
                    *(p for p in zip(block.columns, block.bins, strict=True) if p[0] in asked), strict=True
                )
                noise *= math.sqrt(math.prod(counts.shape[i] for i in summed))
                tables.append(_Counts(columns, bins, counts.sum(axis=summed), noise, False))
    return tables


def _inside(edges: Int64[np.ndarray, "ends"], allowed: list[tuple[int, int]]) -> Bool[np.ndarray, "cells"] | None:
    """Which cells lie within ranges of codes; None if a range cuts a cell."""
    parts = [np.minimum(edges[1:], high) - np.maximum(edges[:-1], low) for low, high in allowed]
    inside = np.sum([np.maximum(part, 0) for part in parts], axis=0) / np.diff(edges)
    return inside == 1 if np.isin(inside, (0, 1)).all() else None


def _of_bins(cells: Bool[np.ndarray, "cells"], bins: Int[np.ndarray, "cells"]) -> Bool[np.ndarray, "bins"] | None:
    """Which bins consist of these cells; None if some cells of a bin are among them, and others are not."""
    shares = np.bincount(bins, cells) / np.bincount(bins)
    return shares == 1 if np.isin(shares, (0, 1)).all() else None


def _conditional(
    measurement: TableMeasurement, query: Query, layout: Layout, singles: Singles, asked: set[int]
) -> Answer | None:
    """The answer for the rows that meet conditions on columns that were counted together.

    Of all counts that tell it exactly, those with the least noise in the sum of the rows that count give the answer.
    """
    answers = []
    for table in _tables(measurement, layout, singles, asked):
        masks = _masks(measurement, query, layout, table)
        if masks is not None:
            counted = functools.reduce(np.multiply.outer, masks.counted)
            answer = _of_table(measurement, query, layout, singles, table, masks)
            if answer is not None:
                answers.append((table.noise * math.sqrt(counted.sum()), answer))
    return min(answers, key=lambda pair: pair[0])[1] if answers else None


@short_repr
class _Masks(NamedTuple):
    """Which bins of each column of a table meet the conditions, and where the cells of the columns do.

    Attributes:
      counted: bins of the rows that count, for each column.
      met: bins that meet the conditions of a share, for each column.
      cells: cells of the rows that count, for each column.
    """

    counted: list[Bool[np.ndarray, "_"]]
    met: list[Bool[np.ndarray, "_"]]
    cells: list[Bool[np.ndarray, "_"]]


def _masks(measurement: TableMeasurement, query: Query, layout: Layout, table: _Counts) -> _Masks | None:
    """The masks of a query; None if a condition cuts a bin."""
    masks = _Masks([], [], [])
    for conditions, of_bins in ((query.where, masks.counted), (query.share, masks.met)):
        ranges = ranges_of(measurement.schema, conditions)
        for j, bins in zip(table.columns, table.bins, strict=True):
            edges = layout.binnings[j].first_codes()
            cells = _inside(edges, ranges[j]) if j in ranges else np.ones(len(edges) - 1, bool)
            mask = None if cells is None else _of_bins(cells, bins)
            if cells is None or mask is None:
                return None
            of_bins.append(mask)
            if of_bins is masks.counted:
                masks.cells.append(cells)
    return masks


def _of_table(
    measurement: TableMeasurement, query: Query, layout: Layout, singles: Singles, table: _Counts, masks: _Masks
) -> Answer | None:
    """The answer from counts. It is a ratio of two noisy sums over bins.

    Its error is that of the delta method, unless the number of rows that count is known from elsewhere.
    """
    counted = [np.array(mask) for mask in masks.counted]
    place = None  # of the column of a mean
    if query.statistic == "share":
        values = functools.reduce(np.multiply.outer, masks.met).astype(float)
        left_out = None
    else:
        j = measurement.schema.index(str(query.column))
        place = table.columns.index(j)
        of_bins = _values(measurement, layout, j, table.bins[place], counted[place])
        if of_bins is None:
            return None
        shape = [1] * table.counts.ndim
        shape[place] = -1
        values = np.broadcast_to(np.nan_to_num(of_bins).reshape(shape), table.counts.shape)
        left_out = np.isnan(of_bins) & counted[place]
        counted[place] &= ~left_out
    mask = functools.reduce(np.multiply.outer, counted)
    sizes = _sizes(measurement, layout, singles, table, masks, place)
    if sizes is not None and left_out is not None and left_out.any():
        missing = table.counts[np.ix_(*(left_out if i == place else m for i, m in enumerate(masks.counted)))]
        sizes = sizes[0] - float(missing.sum()), math.hypot(sizes[1], table.noise * math.sqrt(missing.size))
    mean = _ratio(table.counts, table.noise, mask, values, sizes)
    if query.statistic != "sd" or mean is None:
        return mean
    square = _ratio(table.counts, table.noise, mask, np.square(values - mean.value), sizes)
    return square and _root(square.value, square.standard_error)


def _values(
    measurement: TableMeasurement,
    layout: Layout,
    j: int,
    bins: Int[np.ndarray, "cells"],
    counted: Bool[np.ndarray, "bins"],
) -> Float64[np.ndarray, "bins"] | None:
    """The number of each bin of a column, NaN for missing cells; None if a bin that counts has several numbers."""
    edges = layout.binnings[j].first_codes()
    codes = np.bincount(bins, np.diff(edges))
    if (codes[counted] > 1).any():
        return None
    first = np.unique(bins, return_index=True)[1]
    return numeric_values(measurement.schema.columns[j], edges[:-1][first])


def _sizes(
    measurement: TableMeasurement, layout: Layout, singles: Singles, table: _Counts, masks: _Masks, place: int | None
) -> tuple[float, float] | None:
    """The number of rows that meet the conditions, and the standard deviation of its noise, if the noise of the table
    is not in it; None if it is known from the table alone. Missing cells of the column of a mean are among them."""
    chosen = [i for i, cells in enumerate(masks.cells) if not cells.all()]
    rows = float(measurement.statement["num_rows"]), rows_noise(measurement)
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
    counts, noise = singles.sums[a], singles.sums_sigmas[a]
    if cells.sum() <= len(cells) / 2:
        return float(counts[cells].sum()), noise * math.sqrt(cells.sum())
    return rows[0] - float(counts[~cells].sum()), math.hypot(rows[1], noise * math.sqrt((~cells).sum()))


def _ratio(
    counts: Float64[np.ndarray, "..."],
    noise: float,
    counted: Bool[np.ndarray, "..."],
    values: Float64[np.ndarray, "..."],
    sizes: tuple[float, float] | None,
) -> Answer | None:
    """The mean of values over the rows of the counted cells.

    Args:
      counts: noisy counts.
      noise: standard deviation of each.
      counted: which cells count.
      values: of the cells.
      sizes: the number of rows in the counted cells, and its standard deviation, if it is known from elsewhere.
    """
    y, v = counts[counted], values[counted]
    if not y.size:
        return None
    rows, noise_of_rows = sizes or (float(y.sum()), noise * math.sqrt(y.size))
    if rows < 1 or rows < _LEAST_SIGNAL * noise_of_rows:
        return None
    if sizes is None:
        value = float(v @ y) / rows
        return Answer(value, noise * float(np.linalg.norm(v - value)) / rows)
    centre = float(v.mean())
    value = centre + float((v - centre) @ y) / rows
    variance = noise**2 * np.square(v - centre).sum() + ((value - centre) * noise_of_rows) ** 2
    return Answer(value, math.sqrt(variance) / rows)


class _Numbers:
    """The noisy sums of a numeric column, over the rows that have a number."""

    def __init__(self, measurement: TableMeasurement, layout: Layout, singles: Singles, j: int):
        self.column, self.binning = measurement.schema.columns[j], layout.binnings[j]
        a = layout.columns.index(j)
        self.counts, self.noise = singles.sums[a], singles.sums_sigmas[a]
        self.moments = singles.moments[a]
        rows, noise = float(measurement.statement["num_rows"]), rows_noise(measurement)
        if self.binning.missing:
            rows, noise = rows - float(self.counts[-1]), math.hypot(noise, self.noise)
        self.rows, self.noise_of_rows = rows, noise
        first = self.binning.first_codes()
        self.is_exact = bool((np.diff(first) == 1).all())
        if self.moments is not None:
            moment = self.moments.moment
            ends = numeric_values(self.column, np.asarray([moment.low[0], moment.high[0]]))
            self.lower, self.half = float(ends[0]), float(ends[1] - ends[0]) / 2
        self.values = numeric_values(self.column, first[: self.binning.num_values])

    @property
    def _hidden(self) -> bool:
        return self.rows < _LEAST_SIGNAL * self.noise_of_rows or self.rows < 1

    def _linear(self, values: Float64[np.ndarray, "cells"]) -> Answer:
        """The mean of values of the cells."""
        centre = float(values.mean())
        value = centre + float((values - centre) @ self.counts[: len(values)]) / self.rows
        variance = np.square(values - centre).sum() * self.noise**2 + ((value - centre) * self.noise_of_rows) ** 2
        return Answer(value, math.sqrt(variance) / self.rows)

    def _of_moments(self) -> tuple[float, float, float]:
        """Means of the scores and of their squares, and the standard deviation of the noise of both sums."""
        assert self.moments is not None
        return float(self.moments.sums[0]) / self.rows, float(self.moments.sums[1]) / self.rows, self.moments.sigma

    def mean(self) -> Answer | None:
        """The mean of the column."""
        if self._hidden:
            return None
        answers = [self._linear(self.values)] * self.is_exact
        if self.moments is not None:
            mean, _, noise = self._of_moments()
            error = self.half * math.hypot(noise, mean * self.noise_of_rows) / self.rows
            answers.append(Answer(self.lower + self.half * (1 + mean), error))
        return _combined(answers)

    def sd(self) -> Answer | None:
        """The standard deviation of the column, by the delta method from its mean and mean square."""
        if self._hidden:
            return None
        answers = []
        if self.is_exact:
            of_squares = np.square(self.values - self._linear(self.values).value)
            square = self._linear(of_squares)
            answers.append(_root(square.value, square.standard_error))
        if self.moments is not None:
            mean, square, noise = self._of_moments()
            variance = square - mean**2
            slope = math.sqrt(1 + 4 * mean**2) * noise
            error = math.hypot(slope, (2 * mean**2 - square) * self.noise_of_rows) / self.rows
            root = _root(variance, error)
            answers.append(root and Answer(self.half * root.value, self.half * root.standard_error))
        return _combined([answer for answer in answers if answer is not None])


def _root(variance: float, error: float) -> Answer | None:
    """The square root of a variance with this standard error; None if noise hides the variance."""
    if variance <= _LEAST_SIGNAL * error:
        return None
    return Answer(math.sqrt(variance), error / (2 * math.sqrt(variance)))
