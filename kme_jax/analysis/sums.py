"""Answers about one column of a table from its own noisy sums. Post-processing.

See ``kme_jax.analysis.direct`` for the method.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.estimates import Estimate
from kme_jax.analysis.queries import Query
from kme_jax.feature_maps.table import Block
from kme_jax.table.columns import Column, numeric_values
from kme_jax.table.conditions import ranges_of
from kme_jax.table.constraints import Codes
from kme_jax.table.planning import Layout, Singles, block_counts, narrow_moments
from kme_jax.table.release import NAMES, TableMeasurement
from kme_jax.table.schema import Schema
from kme_jax.table.tilt import Moments

# Moments over a narrow range count a number beyond it as the end of the range. This is corrected by the noisy counts of
# the cells beyond it: of those that stand out, such as a bound that many rows share, and of the others. Where the
# others have much noise together they do not count: then the standard error allows for this share of the rows,
# for the noise of a cell, and for what the noisy number of rows there exceeds its noise by, in the middle of what is
# beyond.
_BEYOND = 0.001
_EMPTY = 0.01  # rows, in a denoised cell
_DENOISED = 0.1  # relative error of a variance of denoised counts; standard deviations are within 5 % on average
_RARELY = 0.01  # the probability that any empty cell of a column stands out
_AT_BOUND = 2.0  # how far the first and the last cell stand out, in σ: many rows often share a bound
LEAST_SIGNAL = 3.0  # a variance, or a number of rows, is used if it exceeds so many of its standard errors


@short_repr
class Answer(NamedTuple):
    """An answer from noisy sums, and the standard deviation of its noise.

    Attributes:
      value: the answer.
      standard_error: its standard deviation, to first order in the noise.
      square: if the answer is a root, its square, and the standard deviation of the noise of that; else None.
      guess: the part of the standard error for what bins hide, which is no noise.
    """

    value: float
    standard_error: float
    square: tuple[float, float] | None = None
    guess: float = 0.0

    def times(self, factor: float) -> Answer:
        """The answer times a positive number. It must not be a root."""
        return Answer(factor * self.value, factor * self.standard_error, guess=factor * self.guess)

    def around(self, mean: Answer) -> Answer:
        """A mean square around a noisy mean, as a variance. It is least around the true mean, so it has the second
        order of the noise of the mean alone.

        Args:
          mean: around which the mean square was taken.
        """
        return Answer(self.value, math.hypot(self.standard_error, mean.standard_error**2), guess=self.guess)

    def estimate(self, level: float, *, sampling: float = 0.0, population: bool = False) -> Estimate:
        """The estimate with an interval. That of a root has the roots of the ends of the interval of the square.

        Args:
          level: of the interval.
          sampling: standard error of drawing rows from a population.
          population: whether the estimate is for the population.
        """
        if self.square is None:
            error = math.hypot(self.standard_error, sampling)
            return Estimate.of(self.value, error, level, method="direct", population=population)
        error = math.hypot(self.square[1], 2 * self.value * sampling)
        square = Estimate.of(self.square[0], error, level, method="direct", population=population)
        within = square.within(0.0, math.inf)
        low, high = math.sqrt(within.low), math.sqrt(within.high)
        error = math.hypot(self.standard_error, sampling)
        return dataclasses.replace(within, value=self.value, standard_error=error, low=low, high=high)


@short_repr
class Met(NamedTuple):
    """How much of each cell of a column meets a condition.

    Attributes:
      shares: of the rows of each cell.
      guess: standard error of the number of rows in all cells that the condition cuts, if their codes count as equally
        frequent. If m rows may be counted wrongly, it is m/√3, as that of an error that is uniform up to m.
      noise: standard deviation of the noise of the counts of parts of cells.
    """

    shares: Float64[np.ndarray, "cells"]
    guess: float
    noise: float


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """The noisy sums of single columns of a measurement.

    Attributes:
      measurement: of a table.
      layout: of its columns.
      singles: the counts of the first measurement, not denoised.
      rows: the number of rows, or its noisy count.
      rows_noise: standard deviation of the noise of ``rows``: 0 if the number is public.
    """

    measurement: TableMeasurement
    layout: Layout
    singles: Singles
    rows: float
    rows_noise: float

    @classmethod
    def read(cls, measurement: TableMeasurement) -> Sums:
        """The sums of a measurement."""
        layout = measurement.layout
        singles = Singles.read(layout, measurement.measured[NAMES[0]], denoised=False)
        return cls(measurement, layout, singles, float(measurement.statement["num_rows"]), measurement.rows_noise)

    @property
    def schema(self) -> Schema:
        """Of the columns."""
        return self.measurement.schema.measured

    def ranges_of(self, conditions: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
        """By index of a measured column, the ranges of codes that meet all conditions.

        Conditions may be on a column that a measured one determines.

        Raises:
          ValueError: a condition cannot be read, or is on a column that follows from others in another way.
        """
        schema, found = self.measurement.schema, {}
        extended = schema.extended
        for j, ranges in ranges_of(extended.columns, conditions).items():
            name, codes = schema.recoding.codes_of(extended.names[j], Codes.union([Codes(tuple(ranges))]))
            place = self.schema.index(name)
            others = [Codes(tuple(found[place])).others(self.schema.columns[place].num_codes)] if place in found else []
            excluded = Codes.union([codes.others(self.schema.columns[place].num_codes), *others])
            found[place] = list(excluded.others(self.schema.columns[place].num_codes).ranges)
        return found

    def measured_names(self, query: Query) -> set[str] | None:
        """The names of all measured columns that a query asks for; None if it asks for one that follows from others.

        A condition on a column that a measured one determines asks for this one.
        """
        schema, names = self.measurement.schema, set()
        for name in query.asked_columns(schema.extended):
            try:
                measured = schema.recoding.codes_of(name, Codes(()))[0]
            except ValueError:
                return None
            if measured != name and name == query.column:
                return None
            names.add(measured)
        try:
            self.ranges_of(query.share)
            self.ranges_of(query.where)
        except ValueError:  # a range that a measured column cuts
            return None
        return names

    @functools.cached_property
    def _estimates(self) -> dict[int, Float64[np.ndarray, "cells"]]:
        return {}

    def denoised(self, j: int) -> Float64[np.ndarray, "cells"]:
        """Estimated counts of the cells of a column, which are not negative. They are as the release has them."""
        if j not in self._estimates:
            a = 0 if j == self.layout.split else self.layout.columns.index(j)
            counts = self.singles.denoise(self.layout, a, round(self.rows))[0]
            self._estimates[j] = counts.sum(1 if j == self.layout.split else 0)
        return self._estimates[j]

    def noise(self, j: int) -> float:
        """Standard deviation of the noise of the counts of single cells of a column, all rows together."""
        if j == self.layout.split:
            return self.singles.classes_sigma
        return self.singles.sums_sigmas[self.layout.columns.index(j)]

    @functools.cached_property
    def _parts(self) -> dict[int, tuple[Block, Float64[np.ndarray, "cut parts"], float]]:
        """By index of a column, the block that cuts some of its cells into parts, its noisy counts, and their noise."""
        third = block_counts(self.measurement.measured.get(NAMES[2]))
        return {block.columns[0]: (block, counts, noise) for block, counts, noise in third if block.zoom}

    def met(self, j: int, allowed: list[tuple[int, int]]) -> Met:
        """Which part of each cell of a column is within ranges of codes.

        If a range cuts a cell, the counts of the parts of the cell tell how many of its rows are inside, if they were
        measured. Otherwise its codes count as equally frequent.
        """
        edges = self.edges(j)
        shares, guess, variance = shares_inside(edges, allowed), 0.0, 0.0
        cut = np.flatnonzero((shares > 0) & (shares < 1))
        is_split = j == self.layout.split
        counts = self.singles.classes if is_split else self.singles.of_all(self.layout.columns.index(j))[0]
        for cell in cut.tolist():
            rows = 0.0 if counts is None else max(float(counts[cell]), 0.0)
            of_parts = self._inside_of_parts(j, cell, allowed, rows)
            if of_parts is None or rows <= self.noise(j):
                guess += max(shares[cell], 1 - shares[cell]) * (rows + self.noise(j))
            else:
                shares[cell] = min(max(of_parts[0] / rows, 0.0), 1.0)
                variance += of_parts[1] ** 2
        return Met(shares, guess / math.sqrt(3), math.sqrt(variance))

    def _inside_of_parts(
        self, j: int, cell: int, allowed: list[tuple[int, int]], rows: float
    ) -> tuple[float, float] | None:
        """The noisy number of the rows of a cell that are within ranges, and its noise; None if parts do not tell.

        Args:
          j: index of the column.
          cell: of the column.
          allowed: ranges of codes.
          rows: the number of rows of the cell. Its noise is not counted.
        """
        block, counts, noise = self._parts.get(j, (None, None, 0.0))
        if block is None or counts is None or block.bins[0][cell] < 0:
            return None
        first, width = int(self.edges(j)[cell]), self.layout.binnings[j].width
        starts = first + -(-np.arange(block.zoom + 1) * width // block.zoom)
        inside = shares_inside(starts, allowed)
        if not np.isin(inside, (0, 1)).all():
            return None
        of_cell = counts[block.bins[0][cell]]
        if (inside == 1).sum() > len(inside) / 2:  # the others have less noise
            return rows - float(of_cell[inside == 0].sum()), noise * math.sqrt((inside == 0).sum())
        return float(of_cell[inside == 1].sum()), noise * math.sqrt((inside == 1).sum())

    def edges(self, j: int) -> Int64[np.ndarray, "ends"]:
        """The first code of every cell of a column, and the number of codes. Classes are cells of one code."""
        if j == self.layout.split:
            return np.arange(self.layout.num_classes + 1)
        return self.layout.binnings[j].first_codes()


def combined(answers: list[Answer]) -> Answer | None:
    """The mean of independent answers, weighted by inverse variances; None if there are none."""
    if not answers:
        return None
    precisions = np.asarray([1 / max(answer.standard_error, 1e-300) ** 2 for answer in answers])
    value = float(np.average([answer.value for answer in answers], weights=precisions))
    return Answer(value, float(precisions.sum() ** -0.5))


def shares_inside(edges: Int64[np.ndarray, "ends"], allowed: list[tuple[int, int]]) -> Float64[np.ndarray, "cells"]:
    """The share of the codes of each cell that lie within ranges of codes."""
    parts = [np.minimum(edges[1:], high) - np.maximum(edges[:-1], low) for low, high in allowed]
    return np.sum([np.maximum(part, 0) for part in parts], axis=0) / np.diff(edges)


def cells_inside(edges: Int64[np.ndarray, "ends"], allowed: list[tuple[int, int]]) -> Bool[np.ndarray, "cells"] | None:
    """Which cells lie within ranges of codes; None if a range cuts a cell."""
    inside = shares_inside(edges, allowed)
    return inside == 1 if np.isin(inside, (0, 1)).all() else None


class NumberSums:
    """The noisy sums of a numeric column, over the rows that have a number."""

    def __init__(self, sums: Sums, j: int):
        self.column, self.binning = sums.schema.columns[j], sums.layout.binnings[j]
        a = sums.layout.columns.index(j)
        self.counts, self._noise_of_cells = sums.singles.of_all(a)
        self.noise = self._noise_of_cells.sigma
        wide = sums.singles.moments[a]
        narrow = narrow_moments(sums.layout, j, sums.measurement.measured.get(NAMES[2]))
        self._scaled = [_Scaled.of(self.column, one) for one in ([] if wide is None else [wide]) + narrow]
        rows, noise = sums.rows, sums.rows_noise
        if self.binning.missing:
            rows, noise = rows - float(self.counts[-1]), math.hypot(noise, self.noise)
        self.rows, self.noise_of_rows = rows, noise
        first = self.binning.first_codes()
        self.is_exact = bool((np.diff(first) == 1).all())
        size = self.binning.num_values
        ends = [numeric_values(self.column, codes) for codes in (first[:size], first[1 : size + 1] - 1)]
        self.values = np.mean(ends, axis=0)  # of the middles of cells
        self._halves = (ends[1] - ends[0]) / 2
        self._stands_out = self.counts[:size] > -float(scipy.special.ndtri(_RARELY / size)) * self.noise
        self._stands_out[[0, -1]] = self.counts[[0, size - 1]] > _AT_BOUND * self.noise

    def _share_beyond(self, one: _Scaled) -> float:
        """The share of rows that may be beyond the range of moments, though noise hides most of them.

        There are two independent noisy numbers of these rows: the sum of their counts, and all rows less the others.
        Cells that stand out are among the others.
        """
        if not one.beyond:
            return 0.0
        outside = (np.abs(self.values - one.middle) > one.half * (1 + 1e-9)) & ~self._stands_out
        counts = self.counts[: len(outside)]
        numbers = np.asarray([counts[outside].sum(), self.rows - counts[~outside].sum()])
        errors = np.asarray([self._spread(cells.astype(float)) for cells in (outside, ~outside)])
        precisions = 1 / np.maximum(np.square(errors), self.noise**2 / 2)
        clearly = float(numbers @ precisions / precisions.sum()) - 1 / math.sqrt(precisions.sum())
        return _BEYOND + (self.noise + max(clearly, 0.0)) / self.rows

    def _corrected(self, answer: Answer, hidden: float, differences: Float64[np.ndarray, "cells"]) -> Answer:
        """An answer from moments over a narrow range, with the smaller error of two.

        Args:
          answer: as if all numbers were within the range.
          hidden: how far it may be off.
          differences: by how much each cell is off. The noisy counts of cells tell the sum.
        """
        noise = self._spread(differences) / self.rows
        if noise >= hidden:
            differences = np.where(self._stands_out, differences, 0.0)
            noise = math.hypot(self._spread(differences) / self.rows, hidden)
        value = answer.value + float(differences @ self.counts[: len(differences)]) / self.rows
        return Answer(value, math.hypot(answer.standard_error, noise))

    def _spread(self, values: Float64[np.ndarray, "cells"]) -> float:
        """Standard deviation of the noise of the sum of values of the cells, each times its count."""
        padded = np.zeros(len(self.counts))
        padded[: len(values)] = values
        return float(self._noise_of_cells.of(padded))

    @property
    def _hidden(self) -> bool:
        return self.rows < LEAST_SIGNAL * self.noise_of_rows or self.rows < 1

    def _linear(self, values: Float64[np.ndarray, "cells"]) -> Answer:
        """The mean of values of the cells."""
        centre = float(values.mean())
        value = centre + float((values - centre) @ self.counts[: len(values)]) / self.rows
        variance = self._spread(values - centre) ** 2 + ((value - centre) * self.noise_of_rows) ** 2
        return Answer(value, math.sqrt(variance) / self.rows)

    def mean(self) -> Answer | None:
        """The mean of the column."""
        if self._hidden:
            return None
        answers = [self._linear(self.values)] * self.is_exact
        for one in self._scaled:
            score = one.sums[0] / self.rows
            error = one.half * math.hypot(one.noise, score * self.noise_of_rows) / self.rows
            answer = Answer(one.middle + one.half * score, error)
            differences = self.values - np.clip(self.values, one.middle - one.half, one.middle + one.half)
            answers.append(self._corrected(answer, self._share_beyond(one) * one.beyond, differences))
        return combined(answers)

    def mean_inside(self, met: Met) -> Answer | None:
        """The mean over the rows whose numbers are in some cells.

        Args:
          met: the part of each cell that counts.
        """
        mean = self.mean()
        return mean and self._inside(met, mean, self.values, self._halves)

    def sd_inside(self, met: Met) -> Answer | None:
        """The standard deviation over the rows whose numbers are in some cells.

        Args:
          met: the part of each cell that counts.
        """
        inside = self.mean_inside(met)
        square = inside and self.mean_square(inside.value)
        if inside is None or square is None:
            return None
        far = np.abs(self.values - inside.value)
        values = np.square(far) + np.square(self._halves) / 3
        variance = self._inside(met, square, values, 2 * far * self._halves + np.square(self._halves))
        return variance and root(variance.around(inside))

    def _inside(
        self, met: Met, mean: Answer, values: Float64[np.ndarray, "cells"], halves: Float64[np.ndarray, "cells"]
    ) -> Answer | None:
        """The mean of a function over rows in some cells: the mean over all rows, less what is in the other cells.

        Noise of the mean and of counts may be correlated. The standard error is the largest that it can then be.

        Args:
          met: the part of each cell that counts.
          mean: over all rows.
          values: of the function, in the cells.
          halves: how far the function may be from these values within a cell.
        """
        size = len(values)
        outside, counts = 1 - met.shares[:size], self.counts[:size]
        rows = self.rows - float(outside @ counts)
        if rows < max(1.0, LEAST_SIGNAL * math.hypot(self.noise_of_rows, self._spread(outside))):
            return None
        value = mean.value + float((outside * counts) @ (mean.value - values)) / rows
        # Rows that are counted wrongly are in a cell that a limit cuts.
        cut = (outside > 0) & (outside < 1)
        furthest = float(np.max(np.abs(value - values) + halves, initial=0.0, where=cut))
        noise = math.hypot(
            self._spread(outside * (value - values)),
            (mean.value - value) * self.noise_of_rows,
            met.noise * furthest,
        )
        # Numbers of a cell may be anywhere within it.
        within = float((halves * np.maximum(counts, 0))[outside > 0].sum()) / math.sqrt(3)
        guess = within + met.guess * furthest
        return Answer(value, (self.rows * mean.standard_error + noise + guess) / rows, guess=guess / rows)

    def mean_square(self, centre: float) -> Answer | None:
        """The mean of the squared distance from a number."""
        mean, variance = self.mean(), self.variance()
        if mean is None or variance is None:
            return None
        distance = mean.value - centre
        error = math.hypot(variance.standard_error, 2 * distance * mean.standard_error)
        return Answer(variance.value + distance**2, error)

    def variance(self) -> Answer | None:
        """The variance of the column, by the delta method from its mean and mean square."""
        if self._hidden:
            return None
        answers = []
        if self.is_exact:
            answers.append(self._linear(np.square(self.values - self._linear(self.values).value)))
        for one in self._scaled:
            score, square = one.sums[0] / self.rows, one.sums[1] / self.rows
            slope = math.sqrt(1 + 4 * score**2) * one.noise
            error = math.hypot(slope, (2 * score**2 - square) * self.noise_of_rows) / self.rows
            mean = one.middle + one.half * score
            furthest = abs(one.far - mean) if one.beyond else 0.0
            clipped = np.clip(self.values, one.middle - one.half, one.middle + one.half)
            differences = np.square(self.values - mean) - np.square(clipped - mean)
            answer = Answer(one.half**2 * (square - score**2), one.half**2 * error)
            answers.append(self._corrected(answer, self._share_beyond(one) * furthest**2, differences))
        return combined(answers)

    def smooth_variance(self, masses: Float64[np.ndarray, "cells"]) -> Answer:
        """The variance of the denoised column.

        Its error is that of noise in the cells that are not empty, a part of the variance for what denoising does, and
        the squared distance of a few rows in the middle of what is beyond these cells, where noise could hide them.

        Args:
          masses: denoised counts of the cells.
        """
        masses = masses[: len(self.values)]
        total = max(float(masses.sum()), 1e-300)
        squares = np.square(self.values - masses @ self.values / total)
        variance = float(masses @ squares) / total
        occupied = np.flatnonzero(masses > _EMPTY)
        noise = self._spread(np.where(masses > _EMPTY, squares, 0.0)) / max(self.rows, 1.0)
        occupied = occupied if len(occupied) else np.arange(len(masses))
        ends = self.values[occupied[[0, -1]]]
        middles = (ends + self.values[[0, -1]]) / 2
        beyond = np.where(ends == self.values[[0, -1]], 0, np.square(middles - masses @ self.values / total))
        hidden = (_BEYOND + self.noise / max(self.rows, 1.0)) * float(beyond.max())
        return Answer(variance, math.hypot(noise, _DENOISED * variance, hidden))

    def sd(self) -> Answer | None:
        """The standard deviation of the column."""
        variance = self.variance()
        return variance and root(variance)


@short_repr
class _Scaled(NamedTuple):
    """Noisy moments of a column, and the range of numbers that have the scores −1 to 1.

    Attributes:
      middle: the number with the score 0.
      half: half of the range.
      sums: noisy sums of scores and of their squares.
      noise: standard deviation of their noise.
      far: the middle of the numbers beyond the range, whose scores are −1 or 1. If both sides have some, of the longer.
      beyond: the distance between this middle and the range; 0 if there are none.
    """

    middle: float
    half: float
    sums: Float64[np.ndarray, "2"]
    noise: float
    far: float
    beyond: float

    @classmethod
    def of(cls, column: Column, moments: Moments) -> _Scaled:
        """The moments of a numeric column."""
        codes = np.asarray([0, moments.moment.low[0], moments.moment.high[0], column.num_values - 1])
        first, low, high, last = numeric_values(column, codes).tolist()
        far = (high + last) / 2 if last - high >= low - first else (first + low) / 2
        half = (high - low) / 2
        return cls(low + half, half, moments.sums, moments.sigma, far, max(last - high, low - first) / 2)


def root(square: Answer) -> Answer:
    """The square root of an answer. If noise hides it, its standard error is that of a number as large as the noise."""
    value = math.sqrt(max(square.value, 0.0))
    slope = 1 / (2 * math.sqrt(max(square.value, square.standard_error, 1e-300)))
    error, guess = slope * square.standard_error, slope * square.guess
    return Answer(value, error, (square.value, square.standard_error), guess)
