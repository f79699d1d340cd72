"""Questions about points as text: mean(income) where age>=64.5, correlation(age, income)."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Float64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.grammar import TOTALS, check_known, column_and_quantile, column_pair, conditions_of, parts_of

EXAMPLES = (
    "mean(age), sum(pay), sd(age), median(age), quantile(age, 0.9), share(age>=64.5), count(age>=64.5), "
    "correlation(age, pay), slope(pay, age)"
)
_OF_ONE = ("mean", "sum", "sd", "median")
_OF_TWO = ("correlation", "slope")
_COMPARED = re.compile(r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*$", re.DOTALL)
_OF_DISCRETE = "points are smooth: ask for a range with limits between values, such as age>=64.5 and age<65.5"
_COMPARISONS: dict[str, Callable[..., Bool[np.ndarray, "M"]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@short_repr
@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on one column, such as age>=64.5.

    Attributes:
      column: its name.
      comparison: one of < <= > >=.
      value: to compare with.
    """

    column: str
    comparison: str
    value: float

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> Condition:
        """The condition that a text states, on one of the named columns.

        Raises:
          ValueError: the text cannot be read.
        """
        stripped = text.strip()
        matches = [(name, _COMPARED.match(stripped[len(name) :])) for name in names if stripped.startswith(name)]
        name, match = max((pair for pair in matches if pair[1]), key=lambda pair: len(pair[0]), default=("", None))
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or math.isnan(value):
            raise ValueError(
                f"condition {text!r}: expected one of the columns {', '.join(names)}, one of < <= > >=, and a number, "
                "such as age>=64.5; several conditions are joined by and, not by or"
            )
        if match[1] not in _COMPARISONS:
            raise ValueError(f"condition {text!r}: {_OF_DISCRETE}")
        return cls(name, match[1], value)


@short_repr
@dataclasses.dataclass(frozen=True)
class PointsQuery:
    """A question about points.

    Attributes:
      text: as it was written.
      statistic: "mean", "sum", "sd", "median", "quantile", "share", "count", "correlation" or "slope".
      columns: the names of its columns; none for "share" and "count", and two for the last two.
      quantile: the share of rows below a quantile, or None.
      share: conditions of the rows whose share or number is asked for.
      where: conditions of the rows that count at all.
    """

    text: str
    statistic: str
    columns: tuple[str, ...]
    quantile: float | None
    share: tuple[Condition, ...]
    where: tuple[Condition, ...]

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> PointsQuery:
        """The query that a text asks.

        Args:
          text: a statistic with its columns in brackets, then perhaps "where" and conditions. The slope of (pay, age)
            is that of a linear regression of pay on age.
          names: of the columns.

        Raises:
          ValueError: the text cannot be read.
        """
        parts = parts_of(text, (*_OF_ONE, "quantile", "share", "count", *_OF_TWO), EXAMPLES)
        if parts.by is not None:
            raise ValueError(f"query {text!r}: there are no groups in points; use where with a range")
        columns, quantile, share = (), None, ()
        if parts.statistic in ("share", "count"):
            share = () if parts.counts_all else _conditions(text, parts.inside, names)
        elif parts.statistic == "quantile":
            name, quantile = column_and_quantile(text, parts.inside)
            columns = (name,)
        elif parts.statistic in _OF_TWO:
            columns = column_pair(text, parts.inside, names)
        else:
            columns = (parts.inside,)
        for name in columns:
            check_known(text, name, names)
        return cls(text, parts.statistic, columns, quantile, share, _conditions(text, parts.where, names))

    @property
    def is_total(self) -> bool:
        """Whether it is a sum over rows: the answer of weighted points is that of one row, and N times as large."""
        return self.statistic in TOTALS

    @property
    def is_quantile(self) -> bool:
        """Whether it is a median or another quantile."""
        return self.statistic in ("median", "quantile")

    @property
    def has_limits(self) -> bool:
        """Whether it depends on where exactly rows are: it has a condition or a quantile."""
        return self.is_quantile or bool(self.share or self.where)

    @property
    def possible(self) -> tuple[float, float]:
        """The smallest and the largest value that the statistic can have."""
        if self.statistic in ("share", "count"):
            return 0.0, 1.0
        if self.statistic == "correlation":
            return -1.0, 1.0
        return (0.0 if self.statistic == "sd" else -math.inf), math.inf

    def answer(self, names: Sequence[str], points: Float[np.ndarray, "M d"], weights: Float[np.ndarray, "M"]) -> float:
        """The statistic of weighted points [M, d]; NaN if no weight counts.

        A number of rows, and a sum, are divided by that of all rows.

        Args:
          names: of the d columns.
          points: z.
          weights: w. Some may be negative.
        """
        values = {name: points[:, i] for i, name in enumerate(names)}
        kept = _meet(values, self.where, len(points)) & (weights != 0)
        of_all, total = weights.sum(), weights[kept].sum()
        if not total > 0:
            return 0.0 if self.is_total else math.nan
        weights = weights[kept] / (of_all if self.is_total else total)
        if self.statistic in ("share", "count"):
            return float(weights @ _meet(values, self.share, len(points))[kept])
        first, *others = (values[name][kept] for name in self.columns)
        mean = float(weights @ first)
        if self.statistic in ("mean", "sum"):
            return mean
        if self.statistic in _OF_ONE or self.quantile is not None:
            if self.statistic == "sd":
                return math.sqrt(max(weights @ np.square(first - mean), 0))
            return _quantile(first, weights, 0.5 if self.quantile is None else self.quantile)
        second = others[0] - weights @ others[0]
        covariance, variance = float(weights @ ((first - mean) * second)), float(weights @ np.square(second))
        if self.statistic == "slope":
            return covariance / variance if variance > 0 else math.nan
        scale = math.sqrt(max(variance * float(weights @ np.square(first - mean)), 0))
        return covariance / scale if scale > 0 else math.nan


def _conditions(text: str, conditions: str | None, names: Sequence[str]) -> tuple[Condition, ...]:
    try:
        return tuple(Condition.parse(condition, names) for condition in conditions_of(conditions, names))
    except ValueError as error:
        raise ValueError(f"query {text!r}: {error}") from None


def _meet(
    values: dict[str, Float[np.ndarray, "M"]], conditions: Sequence[Condition], number: int
) -> Bool[np.ndarray, "M"]:
    """Which points meet all conditions, [M]."""
    met = np.ones(number, bool)
    for condition in conditions:
        met &= _COMPARISONS[condition.comparison](values[condition.column], condition.value)
    return met


def _quantile(values: Float[np.ndarray, "M"], weights: Float64[np.ndarray, "M"], share: float) -> float:
    """The quantile of weighted values, linear between the middles of their steps.

    Where weights are negative, the increasing function that is closest to the cumulative distribution takes its place.
    """
    order = np.argsort(values, kind="stable")
    values, cumulative = values[order], np.cumsum(weights[order]) - weights[order] / 2
    if (np.diff(cumulative) < 0).any():
        from scipy.optimize import isotonic_regression  # takes long to import

        widths = np.gradient(values) + 1e-9 * (values[-1] - values[0]) + np.finfo(float).tiny
        cumulative = isotonic_regression(cumulative, weights=widths).x
    return float(np.interp(share, cumulative, values))
