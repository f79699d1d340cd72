"""Answers that noisy sums give by themselves, with the standard error of their noise. Post-processing.

The noise of the first measurement is independent, and its standard deviation is known. So a linear function of its
counts is unbiased, and its standard error is known, whatever the private rows are. Nothing is fitted, and nothing is
denoised. Where a sum is divided by a noisy number of rows, and for standard deviations, both hold to first order in the
noise (the delta method).

Let y_c be the noisy counts of the cells of a column, with noise σ, n the number of rows, and v_c the values of the
cells. Then a + Σ_c (v_c − a) y_c / n estimates the mean for any a, because Σ_c y_c estimates n. Its variance is
Σ_c (v_c − a)² σ² / n², which is least for the mean a of the values. A column of many values is counted in segments of
cells, too. Then y_c are the best estimates from both counts, and the variance has their covariances
(``kme_jax.table.cells``). The moments of columns of many values are noisy
sums of their scores. Where there are both, they are weighted by their inverse variances (``sums``). There may be
moments over a narrow range, too, which have less noise. They count numbers beyond it as its end. The noisy counts of
the cells beyond correct this: those that stand out from the noise, and the others if they have little noise together.
Otherwise the standard error allows for a few such numbers.
A quantile has an interval from the noisy shares of rows below (``quantiles``). Where conditions are on the column that
is asked for, a mean or a standard deviation is that of all rows less what is in other cells, and a share is a ratio of
two shares.

Cells are counted for each class of the target if marginals are split by it. All pairs of columns are counted in unions
of bins, and some of them in bins. So rows that meet conditions on such columns are a set of cells, too, if no condition
cuts a bin. Their number is N, or a sum of counts of a single column, or else it is the noisy sum of their own counts,
and the mean is a ratio (``counts``). Bins, and the pairs that are counted in bins, were chosen from earlier
measurements, whose noise is independent. So the counts of pairs stay unbiased. Not quite so the count of a rare value
by itself: it is a bin of its own if its noisy count is large, and is then a little too large on average. For the same
reason an answer about few rows is not quite unbiased: there is one only if their noisy number stands out.

If the limit of a share cuts a cell, all, none or some of the rows of the cell meet it. Where many rows share a value,
the parts of the cell were counted, and tell how many. Otherwise the answer counts its codes as equally frequent. If m
rows may be counted wrongly, the standard error has m/√3 for them, as that of an error that is uniform up to m: an
interval of 95 % contains both ends. Where a condition cuts a bin of a pair,
or a bin has several numbers, and for correlations and regressions, the answer is made of covariances of bin means
(``covariances``). What bins hide is a small part of it, and is estimated. If there is an answer without such a guess,
it is only replaced by another one that has a smaller error and hardly guesses.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np
from jaxtyping import Bool

from kme_jax.analysis import covariances
from kme_jax.analysis.counts import of_conditions
from kme_jax.analysis.estimates import Estimate
from kme_jax.analysis.quantiles import quantile
from kme_jax.analysis.queries import Query
from kme_jax.analysis.sums import LEAST_SIGNAL, Answer, NumberSums, Sums
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import MISSING
from kme_jax.table.release import TableMeasurement

_MOST_GUESSED = 0.2  # of a standard error, if another answer guesses less


def direct_answer(measurement: TableMeasurement | Sums, query: Query) -> Answer | dict[str, Answer] | None:
    """The answer to a query about one column, or about columns that were counted together, from noisy sums.

    Args:
      measurement: of a table, or its sums.
      query: any query without groups.

    Returns:
      An answer, or those of a regression by the name of the term. None for a quantile, see :func:`direct_quantile`; or
      if no counts of all of its columns tell the answer, or noise hides it.
    """
    sums = measurement if isinstance(measurement, Sums) else Sums.read(measurement)
    if query.by or query.share_below is not None:
        return None
    names = sums.measured_names(query)
    if names is None:
        return _of_addends(sums, query)
    if query.is_total:
        return _total(sums, query)
    if query.terms:
        is_known, classes = _only_classes(sums, query)
        of_terms = covariances.correlation if query.statistic == "correlation" else covariances.regression
        answer = of_terms(sums, query, classes) if is_known else None
        if query.statistic == "slope" and isinstance(answer, dict):
            return answer[query.terms[1]]
        return answer
    asked = {sums.schema.index(name) for name in names}
    if query.where or len(asked) > 1:
        candidates = (
            of_conditions(sums, query, asked),
            covariances.conditional(sums, query),
            _of_shares(sums, query),
            _of_own_column(sums, query, asked),
        )
        answers = [answer for answer in candidates if answer is not None]
        noisy = [answer for answer in answers if answer.guess <= _MOST_GUESSED * answer.standard_error]
        return min(noisy or answers, key=lambda answer: answer.standard_error, default=None)
    if query.statistic == "share":
        return _share(sums, query)
    j = sums.schema.index(str(query.column))
    if j not in sums.layout.columns:
        return None
    column = NumberSums(sums, j)
    return column.mean() if query.statistic == "mean" else column.sd()


def _of_shares(sums: Sums, query: Query) -> Answer | None:
    """A share among rows that meet conditions on the same column: the ratio of the shares that meet both, and these.

    Noise of the two may be correlated. The standard error is the largest that it can then be.
    """
    asked = sums.ranges_of(query.share)
    if query.statistic != "share" or len(asked) != 1:
        return None
    own = tuple(one for one in query.where if set(sums.ranges_of([one])) <= set(asked))
    if not own:
        return None
    where = tuple(one for one in query.where if one not in own)
    both, among = (
        direct_answer(sums, dataclasses.replace(query, share=share, where=where))
        for share in ((*query.share, *own), own)
    )
    if not (isinstance(both, Answer) and isinstance(among, Answer)):
        return None
    if among.value * sums.rows < 1 or among.value < LEAST_SIGNAL * among.standard_error:
        return None
    value = both.value / among.value
    error, guess = (
        (of_both + abs(value) * of_among) / among.value
        for of_both, of_among in ((both.standard_error, among.standard_error), (both.guess, among.guess))
    )
    return Answer(value, error, guess=guess)


def _of_own_column(sums: Sums, query: Query, asked: set[int]) -> Answer | None:
    """The mean or the standard deviation of a column over rows that meet conditions on this column alone."""
    if query.statistic not in ("mean", "sd") or len(asked) != 1 or not asked <= set(sums.layout.columns):
        return None
    (j,) = asked
    column, met = NumberSums(sums, j), sums.met(j, sums.ranges_of(query.where)[j])
    return column.mean_inside(met) if query.statistic == "mean" else column.sd_inside(met)


def _of_addends(sums: Sums, query: Query) -> Answer | None:
    """The mean or the sum of a column that is not measured, but is the sum of columns that are.

    The noise of their means is nearly independent. That of their sums has the noise of the number of rows in common.
    """
    addends = sums.measurement.schema.recoding.addends(str(query.column))
    if query.statistic not in ("mean", "sum") or not addends or addends == (query.column,):
        return None
    found = []
    for name, times in collections.Counter(addends).items():
        answer = direct_answer(sums, dataclasses.replace(query, column=name))
        if not isinstance(answer, Answer):
            return None
        found.append((times * answer.value, times * answer.standard_error, times * answer.guess))
    values, errors, guesses = zip(*found, strict=True)
    return Answer(sum(values), sum(errors) if query.is_total else math.hypot(*errors), guess=sum(guesses))


def _total(sums: Sums, query: Query) -> Answer | None:
    """A number of rows, or a sum: the mean times the number of rows that have a number.

    Noise of a mean and of a number of rows may be correlated. The standard error is the largest that it can then be.
    """
    conditions = (*query.share, *query.where)
    if query.column is not None and sums.schema.columns[sums.schema.index(query.column)].nullable:
        conditions = (*conditions, f"{query.column}!={MISSING}")
    rows = Answer(sums.rows, sums.rows_noise)
    if conditions:
        of_all = dataclasses.replace(query, statistic="share", column=None, share=conditions, where=())
        share = direct_answer(sums, of_all)
        if not isinstance(share, Answer):
            return None
        rows = share.times(sums.rows)
    if query.column is None:
        return rows
    mean = direct_answer(sums, dataclasses.replace(query, statistic="mean", share=()))
    if not isinstance(mean, Answer):
        return None
    error, guess = (
        rows.value * of_mean + abs(mean.value) * of_rows
        for of_mean, of_rows in ((mean.standard_error, rows.standard_error), (mean.guess, rows.guess))
    )
    return Answer(rows.value * mean.value, error, guess=guess)


def direct_quantile(sums: Sums, query: Query, level: float, *, population: bool = False) -> Estimate | None:
    """The interval of a median or a quantile of a column, for all rows or for classes of the target.

    Args:
      sums: of a measurement.
      query: any query without groups.
      level: of the interval.
      population: whether the interval has the error of drawing rows from a population, too.

    Returns:
      None for other questions, or if noise hides the number of rows.
    """
    if query.share_below is None or sums.measured_names(query) is None:
        return None
    where, j = sums.ranges_of(query.where), sums.schema.index(str(query.column))
    own = where.pop(j, None) if j != sums.layout.split else None
    classes = covariances.classes_of(sums, where.pop(sums.layout.split, None))
    if where or j not in sums.layout.columns or (own is not None and len(own) != 1):
        return None
    inside = own[0] if own else None
    return quantile(sums, str(query.column), query.share_below, level, classes, population=population, inside=inside)


def _only_classes(sums: Sums, query: Query) -> tuple[bool, Bool[np.ndarray, "classes"] | None]:
    """Whether all conditions are on the target by which marginals are split, and the classes that meet them."""
    where = sums.ranges_of(query.where)
    classes = covariances.classes_of(sums, where.pop(sums.layout.split, None))
    return not where, classes


def _share(sums: Sums, query: Query) -> Answer | None:
    """The share of the rows that meet conditions on one column."""
    ranges = sums.ranges_of(query.share)
    if len(ranges) != 1:
        return None
    ((j, allowed),) = ranges.items()
    layout, singles, num_rows, noise_of_rows = sums.layout, sums.singles, sums.rows, sums.rows_noise
    if j == layout.split:
        if singles.classes is None:
            return None
        counts, noise = singles.classes, CellNoise(singles.classes_sigma)
    else:
        counts, noise = singles.of_all(layout.columns.index(j))
    met = sums.met(j, allowed)
    centre = met.shares.mean()
    value = centre + float((met.shares - centre) @ counts) / num_rows
    variance = float(noise.of(met.shares - centre)) ** 2 + ((value - centre) * noise_of_rows) ** 2
    variance, guess = variance + met.noise**2, met.guess
    return Answer(value, math.sqrt(variance + guess**2) / num_rows, guess=guess / num_rows)
