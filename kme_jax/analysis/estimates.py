"""An answer with an interval that takes account of the noise of privacy."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

import scipy.special

from kme_jax._numerics import html
from kme_jax._numerics.short_repr import short_repr

_MOST_HIDDEN = 8  # names that are printed


@short_repr
@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of a statistic of the private rows, or of their population, with an interval. Public.

    Attributes:
      value: the estimate. A bias that was found is removed. NaN if the release has no rows for it.
      standard_error: its standard deviation; infinite if the release has too few rows for an interval.
      low: the lower end of the interval.
      high: the upper end of the interval.
      level: the probability that the interval contains the statistic, about.
      bias: the bias of the same statistic of the released rows, which was removed; 0 if the estimate is unbiased.
      method: "direct", from noisy sums alone; "bootstrap"; or "posterior".
      population: whether the statistic is that of the population from which the private rows were drawn. Then the
        interval has the error of sampling too. Otherwise it is that of the private rows.
      moved: whether noise has put the value beyond an end of what is possible, so it was moved, see :meth:`within`.
    """

    value: float
    standard_error: float
    low: float
    high: float
    level: float
    bias: float
    method: str
    population: bool
    moved: bool = False

    @classmethod
    def of(
        cls,
        value: float,
        standard_error: float,
        level: float,
        *,
        method: str,
        bias: float = 0.0,
        population: bool = False,
        degrees: float = math.inf,
    ) -> Estimate:
        """The estimate with a symmetric interval.

        Args:
          value: the estimate, without the bias.
          standard_error: its standard deviation.
          level: of the interval.
          method: see :class:`Estimate`.
          bias: see :class:`Estimate`.
          population: see :class:`Estimate`.
          degrees: of freedom of the standard error, for quantiles of Student's t distribution; infinite for a normal
            distribution.

        Raises:
          ValueError: the level is not between 0 and 1.
        """
        upper = 1 - (1 - check_level(level)) / 2
        quantile = scipy.special.ndtri(upper) if math.isinf(degrees) else scipy.special.stdtrit(degrees, upper)
        half = float(quantile) * standard_error
        if not math.isfinite(half):
            return cls(value, math.inf, -math.inf, math.inf, level, bias, method, population)
        return cls(value, standard_error, value - half, value + half, level, bias, method, population)

    def within(self, lowest: float, highest: float) -> Estimate:
        """The estimate with a value and an interval that the statistic can have. What is beyond is moved to the end.

        If noise has put the value beyond an end, the interval reaches from this end to the quantile of a normal
        distribution that is cut off there. So it never says that the statistic is exactly at the end.
        """
        low, high = self.low, self.high
        if self.value < lowest:
            high = max(high, lowest + self._beside(lowest - self.value))
        elif self.value > highest:
            low = min(low, highest - self._beside(self.value - highest))
        value, low, high = (min(max(number, lowest), highest) for number in (self.value, low, high))
        moved = self.moved or not (math.isnan(value) or value == self.value)
        return dataclasses.replace(self, value=value, low=low, high=high, moved=moved)

    def has_all(self, lowest: float, highest: float) -> bool:
        """Whether the interval has all values that the statistic can have. Then it says nothing.

        False if the statistic has no smallest value.
        """
        return not math.isinf(lowest) and self.low <= lowest and self.high >= highest

    def _beside(self, distance: float) -> float:
        """The quantile of the distance from an end, of a normal distribution around a place beyond it."""
        if not (0 < self.standard_error < math.inf):
            return 0.0
        place = distance / self.standard_error
        rest = scipy.special.log_ndtr(-place) + math.log1p(-self.level)
        return max(self.standard_error * (-float(scipy.special.ndtri_exp(rest)) - place), 0.0)

    def times(self, factor: float) -> Estimate:
        """The estimate of the statistic times a positive number."""
        names = ("value", "standard_error", "low", "high", "bias")
        return dataclasses.replace(self, **{name: factor * getattr(self, name) for name in names})

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "no answer: no rows of the release count, or noise hides how they vary"
        if math.isinf(self.standard_error):
            return f"no answer: noise hides it; the rows of the release say {html.number(self.value)}"
        ends = f"[{html.number(self.low)}, {html.number(self.high)}]"
        error = html.number(self.standard_error)
        rest = f"{100 * self.level:g} % interval {ends}, standard error {error}"
        if not self.moved:
            return f"{html.number(self.value)}, {rest}"
        bound = f"at most {html.number(self.high)}" if self.value == self.low else f"at least {html.number(self.low)}"
        return f"{bound}, {rest}; noise hides the value"

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain JSON values. Numbers that are not finite are None."""
        fields = dataclasses.asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


class NoAnswerError(ValueError):
    """A question that can be read, and has no answer: noise hides it, or no sums tell it."""


class Estimates(dict[str, Estimate]):
    """Estimates by the value of a group, or by the name of a coefficient. It prints as a line for each.

    Attributes:
      hidden: names of groups and coefficients that noise hides.
    """

    def __init__(self, estimates: Mapping[str, Estimate], hidden: Sequence[str] = ()):
        super().__init__(estimates)
        self.hidden = tuple(hidden)

    def __str__(self) -> str:
        lines = [f"{name}: {estimate}" for name, estimate in self.items()]
        return "\n".join([*lines, *([self.what_is_hidden] if self.hidden else [])])

    @property
    def what_is_hidden(self) -> str:
        """A line that names what noise hides: all, or the first ones if there are many."""
        shown, others = self.hidden[:_MOST_HIDDEN], len(self.hidden) - _MOST_HIDDEN
        return f"noise hides: {', '.join(shown)}" + f" and {others} more" * (others > 0)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each estimate: "value", "standard_error", "low" and "high".

        Raises:
          ModuleNotFoundError: if pandas is not installed.
        """
        import pandas  # not needed otherwise

        fields = ("value", "standard_error", "low", "high")
        rows = [[getattr(estimate, field) for field in fields] for estimate in self.values()]
        return pandas.DataFrame(rows, index=list(self), columns=list(fields))


def check_level(level: float) -> float:
    """Refuses a level of an interval that is not between 0 and 1.

    Raises:
      ValueError: see above.
    """
    if not isinstance(level, numbers.Real) or not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level!r}")
    return level


def number_of(value: Any) -> float:
    """A statistic as a number.

    Raises:
      ValueError: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the statistic must be a number, or a mapping from names to numbers, got {value!r}") from None


def no_release(value: Any) -> ValueError:
    """The error for what is neither a release of points nor one of a table."""
    remedy = "; kme_jax.load(folder) reads what a folder holds" if isinstance(value, str | os.PathLike) else ""
    return ValueError(f"release: expected a release of points or of a table, got a {type(value).__name__}{remedy}")
