"""Covariances of two columns that were counted together in bins, and what follows from them. Post-processing.

Conditional means, correlations and the coefficients of a linear regression are functions of means, variances and
covariances. The first two are sums over the cells of a single column. Covariances are sums over the bins of two
columns: let y_ab be the noisy counts, with noise σ, and f̄_a and ḡ_b the means of two functions within the bins, less
their means over all rows. Then Σ y_ab f̄_a ḡ_b / N is the covariance of f̄ and ḡ plus noise of the standard deviation
σ ‖f̄‖ ‖ḡ‖ / N, which is known. The means of bins of several cells have noise as well. Its effect is the derivative of
the sum by a bin mean, times the standard error of the latter, (σ_1² Σ (v_c − f̄_b)²)^½ / n_b for the cells of the bin
that are not empty. The noise of the means over all rows is of second order. Noise may hide the variance of a number
within wide bounds. Then that of the denoised column takes its place, unless rows far beyond its cells could be a large
part of it. Noise may also hide rows in the empty end of a long tail. The standard error of a bin mean allows for hidden
rows in the middle of the empty end, as many as the noise of one cell. The standard error of a covariance allows for the
case that the other column decides which rows these are.

Bins hide the covariance within them. Let B = Var(f̄) / Var(f) be what bins show of f. If f and g depend on each other
weakly, and their density is that of independent ones times 1 + λ f g, then the covariance of f̄ and ḡ is B_f B_g times
that of f and g. If they determine each other, it is (B_f B_g)^½ times as large. If f or g depends on what bins show
alone, it is as large. So the covariance is divided by (B_f B_g)^½, which is a guess. Within a bin, f and g may have any
other dependence. If they had the same correlation there as between bins, (1 − B_f B_g)^½ times the covariance of f̄ and
ḡ would be added, or be taken away. The standard error has a part of this term. If bins hide something of f alone, or f
and g depend on each other strongly, it is 1/√3, as if anything up to the term were as likely. The part grows to 1 if
bins hide as much of f as of g, and dependence is weak. Bins may also hide dependence if they show none: 1 − B_f B_g
times a correlation of 0.06 is added. These numbers describe what bins hid in two dozen public tables that are in no
benchmark of this project. The noise is small or large by chance, and the error is not to follow it. So the mean of the
squared covariance, given the noisy one, takes the place of its square.
There is no answer if bins show less than half of a function, or less than nine tenths for categories, whose neighbours
in a bin may be quite different.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.counts import Counts, tables_of
from kme_jax.analysis.queries import INTERCEPT, Query
from kme_jax.analysis.sums import LEAST_SIGNAL, Answer, NumberSums, Sums, root
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import numeric_values

# Of the variance of a function, the least share that bins show: along an order, where the function is much the same in
# neighbouring bins, and for categories, which have no neighbours.
_LEAST_SHOWN, _LEAST_SHOWN_OF_CATEGORIES = 0.5, 0.9
_HIDDEN_ANYWAY = 0.06  # a correlation, that bins may hide if they show nothing
_ONE_HIDES = 3**-0.5  # the least part of what bins may hide, that is in the standard error
_OF_CONDITIONS = 0.3  # of the standard deviation of a condition within a bin, that may depend on another column
_EMPTY = 1e-3  # rows, in a denoised cell
_LEAST_KNOWN = 3.5  # a variance or an eigenvalue that is divided by, in its standard errors


@short_repr
class Feature(NamedTuple):
    """A function of one column.

    Attributes:
      column: its index.
      values: the mean of the function over the codes of every cell; NaN for missing cells.
      squares: the mean of its square.
      is_number: whether it is the number of the column itself.
      centre: if it is the squared distance of the number from a centre, that centre; else None.
      doubt: standard error of its mean for what is not known of cells that a condition cuts.
    """

    column: int
    values: Float64[np.ndarray, "cells"]
    squares: Float64[np.ndarray, "cells"]
    is_number: bool = False
    centre: float | None = None
    doubt: float = 0.0

    @classmethod
    def number(cls, sums: Sums, j: int) -> Feature:
        """The number of a numeric column."""
        column, edges = sums.schema.columns[j], sums.edges(j)
        first, last = numeric_values(column, edges[:-1]), numeric_values(column, edges[1:] - 1)
        width = np.diff(edges)
        step = (last - first) / np.maximum(width - 1, 1)
        middle = (first + last) / 2
        return cls(j, middle, middle**2 + step**2 * (width**2 - 1) / 12, True)

    @classmethod
    def condition(cls, sums: Sums, j: int, ranges: Sequence[tuple[int, int]]) -> Feature:
        """1 for codes within ranges, and 0 for others."""
        met = sums.met(j, list(ranges))
        return cls(j, met.shares, met.shares, doubt=math.hypot(met.guess, met.noise) / max(sums.rows, 1.0))

    @classmethod
    def of_term(cls, sums: Sums, term: str) -> Feature:
        """The feature of a term of a query: the name of a numeric column, or a condition."""
        if term in sums.schema.names:
            return cls.number(sums, sums.schema.index(term))
        ((j, ranges),) = sums.ranges_of([term]).items()
        return cls.condition(sums, j, ranges)

    def squared_distance(self, centre: float) -> Feature:
        """The square of the distance from a number."""
        values = self.squares - 2 * centre * self.values + centre**2
        return Feature(self.column, values, np.square(values), centre=centre)


@short_repr
class _InBins(NamedTuple):
    """A feature in bins.

    Attributes:
      values: the mean of each bin; NaN for bins of missing cells.
      variance: of the denoised column; 1 if bins hide nothing.
      spread: variances of the noise of the bin means, and of what it hides in a tail.
      shown: the share of the variance that bin means have.
      least_shown: the least share with which the bins are used.
      is_mixed: whether a bin has missing cells beside others. Then its rows do not all have a value.
      hidden: standard deviation within each bin that may depend on the other column in a way that bins do not show: a
        part of that of a condition, and of a number what exceeds half the distance to the next bin, as in a long
        tail.
    """

    values: Float64[np.ndarray, "bins"]
    variance: float
    spread: Float64[np.ndarray, "bins"]
    shown: float
    least_shown: float
    is_mixed: bool
    hidden: Float64[np.ndarray, "bins"]


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The noise of the covariances between the features of two columns, or of one.

    Attributes:
      first: positions of the features of the first column.
      second: of the second column; the same for one column.
      values: the centred values of both, [bins, features of the first] and [bins, features of the second].
      factors: by which covariances were multiplied, [features of the first, features of the second].
      noise: of the counts over the number of rows, along the bins of one column; it is independent along the other.
      axis: of which column: 0 for the first, and 1 for the second.
      slopes: derivatives of the covariances by the values of the first, [bins, features of the second], and the other
        way round; None for one column.
      spreads: variances of the noise of the values of both; None for one column.
    """

    first: list[int]
    second: list[int]
    values: tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, "_ _"]]
    factors: Float64[np.ndarray, "_ _"]
    noise: CellNoise
    axis: int = 1
    slopes: tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, "_ _"]] | None = None
    spreads: tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, "_ _"]] | None = None

    def of_values(self, one: Float64[np.ndarray, "m"], other: Float64[np.ndarray, "m"]) -> float:
        """The standard error of the bilinear form with two vectors that comes from the noise of the bin means."""
        if self.slopes is None or self.spreads is None:
            return 0.0
        both = self.factors * self._both(one, other)
        first, second = self.slopes[0] @ both.T, self.slopes[1] @ both
        variances = np.square(first) * self.spreads[0], np.square(second) * self.spreads[1]
        return math.sqrt(float(sum(variance.sum() for variance in variances)))

    def _both(self, one: Float64[np.ndarray, "m"], other: Float64[np.ndarray, "m"]) -> Float64[np.ndarray, "_ _"]:
        """The coefficients of the covariances in the bilinear form with two vectors."""
        return np.outer(one[self.first], other[self.second]) + np.outer(other[self.first], one[self.second])

    def variance(self, one: Float64[np.ndarray, "m"], other: Float64[np.ndarray, "m"]) -> float:
        """The variance of the bilinear form of the covariances with two vectors."""
        f, g = self.values
        if self.first == self.second:
            weights = (f @ one[self.first]) * (g @ other[self.second])
            return float(self.noise.of(weights - weights.mean())) ** 2
        weights = f @ (self.factors * self._both(one, other)) @ g.T
        return float(np.square(self.noise.of(weights if self.axis else weights.T)).sum())


@short_repr
class _OfTable(NamedTuple):
    """Covariances from the counts of two columns.

    Attributes:
      hidden: the largest share of the variance of a feature of categories that bins hide.
      variances: products of the variances of both features.
      part: the noise.
      covariances: of the means of the bins. Those of the features are larger by ``part.factors``.
      noises: standard deviations of ``covariances``.
      may_hide: what bins may hide beside them, in the same units and over them.
      anyway: standard errors for what bins may hide whatever the covariance is, as in long tails.
    """

    hidden: float
    variances: Float64[np.ndarray, "_ _"]
    part: _Part
    covariances: Float64[np.ndarray, "_ _"]
    noises: Float64[np.ndarray, "_ _"]
    may_hide: Float64[np.ndarray, "_ _"]
    anyway: Float64[np.ndarray, "_ _"]


class Covariances:
    """Noisy means and covariances of features, with the standard errors of linear functions of them.

    Attributes:
      means: [m].
      means_errors: their standard errors, [m].
      matrix: the covariances, [m, m].
      is_known: whether noise does not hide the number of rows, and all covariances were counted.
    """

    def __init__(self, sums: Sums, features: Sequence[Feature], classes: Bool[np.ndarray, "classes"] | None = None):
        """The covariances of rows.

        Args:
          sums: of a measurement.
          features: m of them.
          classes: the classes whose rows count; None for all rows.
        """
        self._sums, self.features, self._classes = sums, features, classes
        size, singles = len(features), sums.singles
        self.rows, self.rows_noise = sums.rows, sums.rows_noise
        self.means, self.means_errors = np.zeros(size), np.zeros(size)
        self.matrix, self._guesses = np.zeros((size, size)), np.zeros((size, size))
        self._of_variances = np.zeros(size)  # standard errors of variances from noisy moments
        self._parts: list[_Part] = []
        self.is_known = True
        if classes is not None:
            if singles.classes is None:
                self.is_known = False
                return
            self.rows = float(singles.classes[classes].sum())
            self.rows_noise = singles.classes_sigma * math.sqrt(classes.sum())
        if self.rows < max(1.0, LEAST_SIGNAL * self.rows_noise):
            self.is_known = False
            return
        by_column: dict[int, list[int]] = {}
        for i, feature in enumerate(features):
            by_column.setdefault(feature.column, []).append(i)
        for j, positions in by_column.items():
            self._add_column(j, positions)
        for first, second in itertools.combinations(by_column, 2):
            self.is_known = self.is_known and self._add_pair(first, second, by_column[first], by_column[second])

    def counts_of(self, j: int) -> tuple[Float64[np.ndarray, "cells"], CellNoise]:
        """The noisy counts of the cells of a column, and their noise."""
        sums, classes = self._sums, self._classes
        if j == sums.layout.split:
            if sums.singles.classes is None:
                total = sums.singles.counts[0].sum(1)  # the marginal of any column with classes
                return total, CellNoise(sums.singles.sigmas[0] * math.sqrt(sums.singles.counts[0].shape[1]))
            return sums.singles.classes, CellNoise(sums.singles.classes_sigma)
        a = sums.layout.columns.index(j)
        if classes is None:
            return sums.singles.of_all(a)
        counts, noise = sums.singles.of_classes(a)
        return counts[classes].sum(0), noise.times(math.sqrt(classes.sum()))

    def _add_column(self, j: int, positions: list[int]) -> None:
        """Means, variances and covariances of the features of one column."""
        counts, noise = self.counts_of(j)
        present = np.all([~np.isnan(self.features[i].values) for i in positions], axis=0)
        rows, rows_noise = self.rows, self.rows_noise
        if not present.all():
            rows -= float(counts[~present].sum())
            rows_noise = math.hypot(rows_noise, float(noise.of((~present).astype(float))))
        if rows < max(1.0, LEAST_SIGNAL * rows_noise):
            self.is_known = False
            return
        counts, noise = counts[present], noise.on(present)
        for i in positions:
            feature = self.features[i]
            values = feature.values[present]
            centre = values.mean()
            self.means[i] = centre + (values - centre) @ counts / rows
            variance = float(noise.of(values - centre)) ** 2 + ((self.means[i] - centre) * rows_noise) ** 2
            self.means_errors[i] = math.sqrt(variance) / rows
            if self._classes is None and (feature.is_number or feature.centre is not None):
                column = NumberSums(self._sums, j)
                mean = column.mean() if feature.centre is None else column.mean_square(feature.centre)
                if mean is not None:
                    self.means[i], self.means_errors[i] = mean.value, mean.standard_error
        if [self.features[i].is_number for i in positions] == [True] and self._classes is None:
            (i,) = positions
            numbers = NumberSums(self._sums, j)
            variance = numbers.variance()
            if variance is None:
                self.is_known = False
            else:
                smooth = numbers.smooth_variance(self._sums.denoised(j))
                variance = min(variance, smooth, key=lambda answer: answer.standard_error)
                self.matrix[i, i], self._of_variances[i] = variance.value, variance.standard_error
            return
        centred = np.stack([self.features[i].values[present] - self.means[i] for i in positions], axis=1)
        for one, i in enumerate(positions):
            for other, k in enumerate(positions):
                products = centred[:, one] * centred[:, other]
                if i == k:
                    products = self.features[i].squared_distance(self.means[i]).values[present]
                middle = products.mean()
                self.matrix[i, k] = middle + (products - middle) @ counts / rows
        ones = np.ones((len(positions),) * 2)
        self._parts.append(_Part(positions, positions, (centred, centred), ones, noise.times(1 / rows)))

    def _in_bins(self, i: int, bins: Int[np.ndarray, "cells"]) -> _InBins:
        """A feature in bins. Bin means are those of denoised counts."""
        sums, feature, j = self._sums, self.features[i], self.features[i].column
        if len(bins) == bins.max() + 1 and (np.diff(sums.edges(j)) == 1).all():  # bins of one code hide nothing
            order = np.argsort(bins)
            return _InBins(
                feature.values[order], 1.0, np.zeros(len(bins)), 1.0, _LEAST_SHOWN, False, np.zeros(len(bins))
            )
        present = ~np.isnan(feature.values)
        masses, noise = sums.denoised(j) + 1e-9, sums.noise(j)
        masses[~present] = 0
        values, squares = np.where(present, feature.values, 0), np.where(present, feature.squares, 0)
        of_bins = np.bincount(bins, masses)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.bincount(bins, masses * values) / of_bins  # NaN where nothing is present
            within = np.sqrt(np.maximum(np.bincount(bins, masses * squares) / of_bins - np.square(means), 0))
        total = masses.sum()
        centre = masses @ values / total
        everything = masses @ squares / total - centre**2
        between = np.nansum(of_bins * np.square(means - centre)) / total
        shown = float(between / everything) if everything > 0 else 1.0
        far = np.where(masses > _EMPTY, np.square(values - np.nan_to_num(means)[bins]), 0)
        share = noise / np.maximum(of_bins, noise + 1)
        tail = share * _to_empty_end(values, masses, bins, np.nan_to_num(means), present)
        spread = np.bincount(bins, far) * share**2 + tail**2
        is_ordered = j != sums.layout.split and sums.layout.binnings[j].ordered
        least = _LEAST_SHOWN if is_ordered else _LEAST_SHOWN_OF_CATEGORIES
        is_mixed = bool(np.isin(bins[~present], bins[present]).any())
        if feature.is_number or feature.centre is not None:
            steps = np.abs(np.diff(means))
            nearest = np.fmin(np.append(steps, np.nan), np.append(np.nan, steps))
            within = np.hypot(np.maximum(within - np.nan_to_num(nearest) / 2, 0), tail)
        else:
            within = _OF_CONDITIONS * within
        return _InBins(means, float(everything), spread, shown, least, is_mixed, np.nan_to_num(within))

    def _add_pair(self, first: int, second: int, ours: list[int], theirs: list[int]) -> bool:
        """Covariances of the features of two columns, from the counts that hide least of categories; whether there are
        any."""
        split, found = self._sums.layout.split, []
        if self._classes is not None and split in (first, second):
            return False
        asked = {first, second} | ({split} if self._classes is not None else set())
        for table in tables_of(self._sums, asked):
            of_table = self._of_table(self._of_classes(table), first, second, ours, theirs)
            if of_table is not None:
                found.append(of_table)
        least = min((of_table.hidden for of_table in found), default=0.0)
        found = [of_table for of_table in found if of_table.hidden <= least + 1e-3]
        if not found:
            return False
        weights = _weights(found)
        for weight, of_table in zip(weights, found, strict=True):
            part = of_table.part
            self._parts.append(dataclasses.replace(part, factors=weight * part.factors))
        values = sum(w * one.part.factors * one.covariances for w, one in zip(weights, found, strict=True))
        guesses = _guesses(weights, found)
        for matrix, block in ((self.matrix, values), (self._guesses, guesses)):
            matrix[np.ix_(ours, theirs)] = block
            matrix[np.ix_(theirs, ours)] = np.transpose(block)
        return True

    def _of_classes(self, table: Counts) -> Counts:
        """The counts of two columns, with the classes that count summed up."""
        if self._classes is None:
            return table
        axis = table.columns.index(self._sums.layout.split)
        counts = np.moveaxis(table.counts, axis, 0)[self._classes].sum(0)
        columns = tuple(j for i, j in enumerate(table.columns) if i != axis)
        bins = tuple(b for i, b in enumerate(table.bins) if i != axis)
        return Counts(columns, bins, counts, table.noise.times(math.sqrt(self._classes.sum())), table.is_first)

    def _of_table(self, table: Counts, first: int, second: int, ours: list[int], theirs: list[int]) -> _OfTable | None:
        """Covariances from the counts of two columns. None if bins hide much or mix missing cells with others, or if
        noise hides the number of rows."""
        places = [table.columns.index(j) for j in (first, second)]
        counts = table.counts if places == [0, 1] else table.counts.T
        f, g = ([self._in_bins(i, table.bins[p]) for i in of] for p, of in zip(places, (ours, theirs), strict=True))
        if any(one.shown < one.least_shown or one.is_mixed for one in (*f, *g)):
            return None
        here = [np.asarray(~np.isnan(np.stack([one.values for one in side], axis=1)).any(1)) for side in (f, g)]
        counts = counts[np.ix_(*here)]
        axis = int(places == [0, 1])  # the last one of the table
        of_counts = table.noise.on(here[axis])
        rows, noise = self.rows, self.rows_noise
        if not all(side.all() for side in here):
            rows = float(counts.sum())
            noise = math.sqrt(counts.shape[1 - axis]) * float(of_counts.of(np.ones(counts.shape[axis])))
        if rows < max(1.0, LEAST_SIGNAL * noise):
            return None
        f_values, g_values = (
            np.stack([one.values for one in side], axis=1)[kept] - self.means[of]
            for side, kept, of in zip((f, g), here, (ours, theirs), strict=True)
        )
        raw = f_values.T @ counts @ g_values / rows
        variances = np.outer([one.variance for one in f], [one.variance for one in g])
        shown = np.outer([one.shown for one in f], [one.shown for one in g])
        factors = shown**-0.5
        of_shares = of_counts.times(1 / rows)
        norms = [np.linalg.norm(values, axis=0) for values in (f_values, g_values)]
        norms[axis] = of_shares.of((f_values, g_values)[axis].T)
        noises = np.outer(*norms)
        correlations = np.minimum(np.abs(raw) / np.sqrt(np.maximum(variances * shown, 1e-300)), 1)
        may_hide = _may_hide([one.shown for one in f], [one.shown for one in g], correlations)
        f_hidden, g_hidden = (
            np.stack([one.hidden for one in side], axis=1)[kept] for side, kept in zip((f, g), here, strict=True)
        )
        in_tails = np.hypot(_hidden(counts, f_hidden, g_values), _hidden(counts.T, g_hidden, f_values).T) / rows
        anyway = np.hypot(in_tails, _HIDDEN_ANYWAY * np.maximum(1 - shown, 0) * np.sqrt(np.maximum(variances, 0)))
        slopes = counts @ g_values / rows, counts.T @ f_values / rows
        f_spread, g_spread = (
            np.stack([one.spread for one in side], axis=1)[kept] for side, kept in zip((f, g), here, strict=True)
        )
        part = _Part(ours, theirs, (f_values, g_values), factors, of_shares, axis, slopes, (f_spread, g_spread))
        hidden = 1 - min((one.shown for one in (*f, *g) if one.least_shown > _LEAST_SHOWN), default=1.0)
        return _OfTable(hidden, np.maximum(variances, 1e-300), part, raw, noises, may_hide, anyway)

    def guess(self, one: Float64[np.ndarray, "m"], other: Float64[np.ndarray, "m"]) -> float:
        """The part of the standard error for what bins hide."""
        both = np.triu(np.outer(one, other) + np.outer(other, one), 1)
        return float(np.linalg.norm(both * self._guesses))

    def error(self, one: Float64[np.ndarray, "m"], other: Float64[np.ndarray, "m"]) -> float:
        """The standard error of the bilinear form of the covariances with two vectors of m entries."""
        variance = sum(part.variance(one, other) for part in self._parts)
        of_values: dict[tuple[int, int], float] = {}  # bin means have the same noise in all counts of two columns
        for part in self._parts:
            pair = part.first[0], part.second[0]
            of_values[pair] = of_values.get(pair, 0.0) + part.of_values(one, other)
        variance += sum(error**2 for error in of_values.values())
        variance += float(np.square(one * other * self._of_variances).sum())
        variance += self.guess(one, other) ** 2
        variance += (float(one @ self.matrix @ other) * self.rows_noise / self.rows) ** 2
        return math.sqrt(variance)


def _may_hide(
    f: Sequence[float], g: Sequence[float], correlations: Float64[np.ndarray, "m k"]
) -> Float64[np.ndarray, "m k"]:
    """Standard errors of covariances for what bins may hide, over the covariances between bins.

    Args:
      f: the shares of the variance that bins show, of features of one column.
      g: of the other column.
      correlations: sizes of correlations between bins.
    """
    hide_f, hide_g = 1 - np.asarray(f), 1 - np.asarray(g)
    # 1 if bins hide as much of both features, and 0 if they hide something of one alone.
    evenly = 4 * np.outer(hide_f, hide_g) / np.maximum(np.square(np.add.outer(hide_f, hide_g)), 1e-300)
    part = _ONE_HIDES + (1 - _ONE_HIDES) * (1 - correlations) * evenly
    return part * np.sqrt(np.maximum(1 - np.outer(f, g), 0))


def _weights(tables: Sequence[_OfTable]) -> Float64[np.ndarray, "tables"]:
    """The weights of the counts of the same two columns, with sum 1: their inverse squared errors.

    What bins may hide is in proportion to a covariance. Counts would get a large weight if noise made theirs small. So
    all have the same covariance here.

    Args:
      tables: the covariances of the counts.
    """
    common = np.mean([np.square(table.covariances * table.part.factors) for table in tables], axis=0)
    errors = []
    for table in tables:
        factors = table.part.factors
        squared = np.square(table.noises * factors) + common * np.square(table.may_hide / factors)
        errors.append(float(((squared + np.square(table.anyway)) / table.variances).sum()))
    weights = 1 / np.maximum(errors, 1e-300)
    return weights / weights.sum()


def _guesses(weights: Float64[np.ndarray, "tables"], tables: Sequence[_OfTable]) -> Float64[np.ndarray, "m k"]:
    """Standard errors of covariances for what bins may hide.

    Args:
      weights: of the counts in the covariances.
      tables: the covariances of counts of the same two columns.
    """
    covariances, noises, may_hide, anyway = (
        np.stack([getattr(table, name) for table in tables]) for name in ("covariances", "noises", "may_hide", "anyway")
    )
    square = np.square(np.tensordot(weights, covariances, 1)) + np.tensordot(np.square(weights), np.square(noises), 1)
    return np.hypot(np.sqrt(square) * np.tensordot(weights, may_hide, 1), np.tensordot(weights, anyway, 1))


def _to_empty_end(
    values: Float64[np.ndarray, "cells"],
    masses: Float64[np.ndarray, "cells"],
    bins: Int[np.ndarray, "cells"],
    means: Float64[np.ndarray, "bins"],
    present: Bool[np.ndarray, "cells"],
) -> Float64[np.ndarray, "bins"]:
    """The distance between the mean of each bin and the middle of its empty end, where noise may hide rows.

    Denoising leaves the end of a long tail empty, if its counts are below the noise. The middle lies between the
    last cell that is not empty and the end of the bin. The further one of the two ends counts. It is 0 for a bin
    without an empty end.

    Args:
      values: of the cells.
      masses: denoised counts.
      bins: of the cells.
      means: of the bins.
      present: which cells are not those of missing values.
    """
    distances = np.zeros(len(means))
    for b, mean in enumerate(means):
        of_bin = present & (bins == b)
        occupied = values[of_bin & (masses > _EMPTY)]
        if len(occupied):
            for end, last in ((values[of_bin].max(), occupied.max()), (values[of_bin].min(), occupied.min())):
                if end != last:
                    distances[b] = max(distances[b], abs((end + last) / 2 - mean))
    return distances


def _hidden(
    counts: Float64[np.ndarray, "bins others"],
    hidden: Float64[np.ndarray, "bins m"],
    values: Float64[np.ndarray, "others k"],
) -> Float64[np.ndarray, "m k"]:
    """Covariances, times the number of rows, if what bins of one column hide depends on the other column entirely.

    Args:
      counts: noisy counts.
      hidden: standard deviations within the bins of one column.
      values: of the bins of the other column.
    """
    rows = np.maximum(counts, 0)
    of_bins = np.maximum(rows.sum(1, keepdims=True), 1e-300)
    deviations = np.sqrt(np.maximum(rows @ np.square(values) / of_bins - np.square(rows @ values / of_bins), 0))
    return (of_bins * hidden).T @ deviations


def _unit(size: int, i: int) -> Float64[np.ndarray, "m"]:
    vector = np.zeros(size)
    vector[i] = 1
    return vector


def correlation(sums: Sums, query: Query, classes: Bool[np.ndarray, "classes"] | None) -> Answer | None:
    """The correlation of two numeric columns. Its error is that of the delta method.

    Args:
      sums: of a measurement.
      query: of two columns.
      classes: the classes whose rows count; None for all rows.

    Returns:
      None if noise hides a variance, or the columns were not counted together in bins that show them.
    """
    estimated = Covariances(sums, [Feature.of_term(sums, name) for name in query.terms], classes)
    if not estimated.is_known:
        return None
    variances = np.diag(estimated.matrix)
    errors = [estimated.error(_unit(2, i), _unit(2, i)) for i in range(2)]
    if any(v <= _LEAST_KNOWN * e for v, e in zip(variances, errors, strict=True)):
        return None
    scale = math.sqrt(variances.prod())
    value = float(estimated.matrix[0, 1]) / scale
    parts = [estimated.error(_unit(2, 0), _unit(2, 1)) / scale]
    parts += [value / 2 * error / variance for error, variance in zip(errors, variances, strict=True)]
    return Answer(min(max(value, -1.0), 1.0), math.hypot(*parts))


def regression(sums: Sums, query: Query, classes: Bool[np.ndarray, "classes"] | None) -> dict[str, Answer] | None:
    """The coefficients of a linear regression with least squares, by the name of the term.

    Missing values do not count for the means and the covariances of their column. So if they depend on other columns,
    the answer is not that of the rows without any.

    They are C⁻¹ c, for the covariances C of the predictors, and c of predictors and response. To first order in the
    noise, the error is C⁻¹ times the noise of the covariances of predictors and residuals.

    Args:
      sums: of a measurement.
      query: its terms are the response and the predictors.
      classes: the classes whose rows count; None for all rows.

    Returns:
      None if some columns were not counted together in bins that show them; or if the smallest eigenvalue of the
      correlations of predictors, or a variance of one, is less than 3.5 of its standard errors, so that noise hides
      the coefficients.
    """
    estimated = Covariances(sums, [Feature.of_term(sums, term) for term in query.terms], classes)
    size = len(query.terms)
    if not estimated.is_known:
        return None
    inner = estimated.matrix[1:, 1:]
    if any(
        inner[k - 1, k - 1] <= _LEAST_KNOWN * estimated.error(_unit(size, k), _unit(size, k)) for k in range(1, size)
    ):
        return None
    scales = np.sqrt(np.diag(inner))
    eigenvalues, vectors = np.linalg.eigh(inner / np.outer(scales, scales))
    weakest = np.append(0, vectors[:, 0] / scales)
    if eigenvalues[0] <= _LEAST_KNOWN * estimated.error(weakest, weakest):
        return None
    coefficients = np.linalg.solve(inner, estimated.matrix[1:, 0])
    residual = np.append(1, -coefficients)
    answers = {}
    intercept = np.append(0, -np.linalg.solve(inner, estimated.means[1:]))
    means_error = float(np.linalg.norm(residual * estimated.means_errors))
    answers[INTERCEPT] = Answer(
        float(residual @ estimated.means), math.hypot(means_error, estimated.error(intercept, residual))
    )
    for k in range(1, size):
        row = np.append(0, np.linalg.solve(inner, _unit(size - 1, k - 1)))
        answers[query.terms[k]] = Answer(float(coefficients[k - 1]), estimated.error(row, residual))
    return answers


def conditional(sums: Sums, query: Query) -> Answer | None:
    """A mean, a standard deviation or a share of one column, for rows that meet conditions on another, or a share of
    conditions on two columns. Conditions on the target may be added. Bins may be cut, and have several numbers.

    The mean of f over the rows with g = 1 is E f + Cov(f, g) / E g. If f may be missing, all three are those of the
    rows where it is not.

    Returns:
      None for other questions, or if noise or bins hide the answer.
    """
    where, share = sums.ranges_of(query.where), sums.ranges_of(query.share)
    classes = classes_of(sums, where.pop(sums.layout.split, None) if len(where) > 1 else None)
    features = [Feature.condition(sums, j, ranges) for j, ranges in share.items()]
    if query.column is not None:
        features = [Feature.number(sums, sums.schema.index(query.column))]
    given = [Feature.condition(sums, j, ranges) for j, ranges in where.items()]
    columns = [feature.column for feature in (*features, *given)]
    if len(columns) != 2 or len(set(columns)) != 2 or (classes is not None and sums.layout.split in columns):
        return None
    answer = _mean(sums, [*features, *given], classes, both=not given)
    if answer is None or query.statistic != "sd":
        return answer
    square = _mean(sums, [features[0].squared_distance(answer.value), *given], classes, both=False)
    return square and root(square.around(answer))


def _mean(
    sums: Sums, features: Sequence[Feature], classes: Bool[np.ndarray, "classes"] | None, *, both: bool
) -> Answer | None:
    """The mean of the product of two features, or of the first where the second is 1."""
    estimated = Covariances(sums, features, classes)
    if not estimated.is_known:
        return None
    covariance, error = float(estimated.matrix[0, 1]), estimated.error(_unit(2, 0), _unit(2, 1))
    guess = estimated.guess(_unit(2, 0), _unit(2, 1))
    (first, second), (first_error, second_error) = estimated.means.tolist(), estimated.means_errors.tolist()
    if both:
        guess = math.hypot(guess, features[0].doubt, features[1].doubt)
        error = math.hypot(error, first * second_error, second * first_error, features[0].doubt, features[1].doubt)
        return Answer(first * second + covariance, error, guess=guess)
    if second <= LEAST_SIGNAL * second_error or second * estimated.rows < 1:
        return None
    second *= _present(sums, features, classes)
    step = covariance / second
    # Rows that are counted wrongly among those with g = 1 differ from the others by up to so much.
    furthest = 2 * math.sqrt(max(float(estimated.matrix[0, 0]), 0.0)) if features[0].is_number else 1.0
    # The rows that f counts wrongly may be among those with g = 1 more often than others.
    doubt = math.hypot(features[0].doubt * min(2.0, 1 / second), features[1].doubt / second * furthest)
    error = math.hypot(error / second, first_error, step * second_error / second, doubt)
    return Answer(first + step, error, guess=math.hypot(guess / second, doubt))


def _present(sums: Sums, features: Sequence[Feature], classes: Bool[np.ndarray, "classes"] | None) -> float:
    """The share of the second feature among rows where the first is not missing, over its share among all rows."""
    first, second = features
    missing = np.isnan(first.values)
    if not missing.any():
        return 1.0
    here = (~missing).astype(float)
    estimated = Covariances(sums, [Feature(first.column, here, here), second], classes)
    if not estimated.is_known:
        return 1.0
    return max(1 + float(estimated.matrix[0, 1]) / max(float(estimated.means.prod()), 1e-300), 1e-3)


def classes_of(sums: Sums, ranges: Sequence[tuple[int, int]] | None) -> Bool[np.ndarray, "classes"] | None:
    """Which classes lie within ranges of codes; None for all of them."""
    if ranges is None:
        return None
    codes = np.arange(sums.layout.num_classes)
    return np.any([(codes >= low) & (codes < high) for low, high in ranges or [(0, 0)]], axis=0)
