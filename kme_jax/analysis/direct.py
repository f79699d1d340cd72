"""Answers that noisy sums give by themselves, with the standard error of their noise. Post-processing.

The noise of the first measurement is independent, and its standard deviation is known. So a linear function of its
counts is unbiased, and its standard error is known, whatever the private rows are. Nothing is fitted, and nothing is
denoised. Where a sum is divided by a noisy number of rows, and for standard deviations, both hold to first order in the
noise (the delta method).

Let y_c be the noisy counts of the cells of a column, with noise σ, n the number of rows, and v_c the values of the
cells. Then a + Σ_c (v_c − a) y_c / n estimates the mean for any a, because Σ_c y_c estimates n. Its variance is
Σ_c (v_c − a)² σ² / n², which is least for the mean a of the values. The moments of columns of many values are noisy
sums of their scores. Where there are both, they are weighted by their inverse variances.

Cells are counted for each class of the target if marginals are split by it. So rows that meet conditions on the column
and on the target are a set of cells, too. Their number is N, or a sum of class sizes, or else it is the noisy sum of
their counts, and the mean is a ratio.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.queries import Query
from kme_jax.table.conditions import ranges_of
from kme_jax.table.evaluate import numeric_values
from kme_jax.table.plan import Layout, Singles, map_of, sigma
from kme_jax.table.release import COUNT, NAMES, TableMeasurement

_LEAST_SIGNAL = 3.0  # a variance, or a number of rows, is used if it exceeds so many of its standard errors


@short_repr
class Answer(NamedTuple):
    """An answer from noisy sums, and the standard deviation of its noise."""

    value: float
    standard_error: float


def direct_answer(measurement: TableMeasurement, query: Query) -> Answer | None:
    """The answer to a query about one column and the target, from the noisy sums of the first measurement.

    Args:
      measurement: of a table.
      query: any query without groups.

    Returns:
      None unless the query is a mean, a standard deviation or a share; or if it is about two columns of which neither
      is a target whose classes were counted with the other; or if cells do not tell the answer exactly, or noise hides
      it.
    """
    if query.by or query.statistic not in ("mean", "sd", "share"):
        return None
    layout = measurement.layout
    singles = Singles.read(layout, measurement.measured[NAMES[0]], denoised=False)
    asked = {measurement.schema.index(name) for name in query.asked_columns(measurement.schema)}
    if query.where or len(asked) == 2:
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


def _inside(edges: Int64[np.ndarray, "ends"], allowed: list[tuple[int, int]]) -> Bool[np.ndarray, "cells"] | None:
    """Which cells lie within ranges of codes; None if a range cuts a cell."""
    parts = [np.minimum(edges[1:], high) - np.maximum(edges[:-1], low) for low, high in allowed]
    inside = np.sum([np.maximum(part, 0) for part in parts], axis=0) / np.diff(edges)
    return inside == 1 if np.isin(inside, (0, 1)).all() else None


def _conditional(
    measurement: TableMeasurement, query: Query, layout: Layout, singles: Singles, asked: set[int]
) -> Answer | None:
    """The answer for the rows that meet conditions on a column and on the target, from the counts of its cells.

    It is a ratio of two noisy sums over cells. Its error is that of the delta method, unless the number of rows that
    count is known from elsewhere: N, or the noisy sizes of the classes.
    """
    others = sorted(asked - {layout.split})
    if len(others) != 1 or others[0] not in layout.columns:
        return None
    j, schema = others[0], measurement.schema
    a, edges, binning = layout.columns.index(j), layout.binnings[j].first_codes(), layout.binnings[j]
    split = layout.split in asked
    counts = singles.counts[a] if split else singles.sums[a][None]
    noise = singles.sigmas[a] if split else singles.sums_sigmas[a]
    masks = []
    for conditions in (query.where, query.share):
        ranges, mask = ranges_of(schema, conditions), np.ones(counts.shape, bool)
        cells = _inside(edges, ranges[j]) if j in ranges else np.ones(counts.shape[1], bool)
        if cells is None:
            return None
        mask &= cells[None, :]
        if layout.split in ranges:
            codes = np.arange(len(counts))
            mask &= np.any([(codes >= low) & (codes < high) for low, high in ranges[layout.split]], axis=0)[:, None]
        masks.append(mask)
    counted, met = masks
    if query.statistic == "share":
        values = met.astype(float)
    elif query.column != schema.names[j] or not (np.diff(edges) == 1).all():
        return None
    else:
        values = np.broadcast_to(numeric_values(schema.columns[j], edges[:-1]), counts.shape)
        counted = counted & ~np.isnan(values)
        values = np.nan_to_num(values)
    classes, sizes = counted.any(axis=1), None
    left_out = (
        np.zeros(counts.shape[1], bool)
        if query.statistic == "share"
        else np.arange(len(edges) - 1) >= (binning.num_values)
    )
    if (counted == (classes[:, None] & ~left_out[None, :])).all():  # all rows of the classes, but for missing cells
        if classes.all():
            sizes = float(measurement.statement["num_rows"]), rows_noise(measurement)
        elif singles.classes is not None:
            sizes = float(singles.classes[classes].sum()), singles.classes_sigma * math.sqrt(classes.sum())
    if sizes is not None and left_out.any():
        missing = counts[np.ix_(classes, left_out)]
        sizes = sizes[0] - float(missing.sum()), math.hypot(sizes[1], noise * math.sqrt(missing.size))
    mean = _ratio(counts, noise, counted, values, sizes)
    if query.statistic != "sd" or mean is None:
        return mean
    square = _ratio(counts, noise, counted, np.square(values - mean.value), sizes)
    return square and _root(square.value, square.standard_error)


def _ratio(
    counts: Float64[np.ndarray, "classes cells"],
    noise: float,
    counted: Bool[np.ndarray, "classes cells"],
    values: Float64[np.ndarray, "classes cells"],
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
