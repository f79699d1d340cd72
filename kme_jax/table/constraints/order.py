"""A number or a time that is at most another one."""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns import Datetime, Numeric
from kme_jax.table.constraints.base import (
    Constraint,
    Determination,
    check_name,
    known,
    nearest_codes,
    numbers_of,
    step_of,
)

_ROUNDING = 1e-9  # of the largest gap
_MANY_STEPS = 1000  # a gap with more steps than this has the scale "log", if the larger column follows from it
_WIDER = 2  # how many times as wide the bounds of the smaller column are, if it follows from the larger one


@short_repr
@dataclasses.dataclass(frozen=True)
class Order(Constraint):
    """The value of a column is at most that of another one: a trip begins before it ends.

    One column is measured with the gap between both, and the other one *follows* from them. So a release has durations
    as they are, at any time. Where the larger value of a private row is below the smaller one, the value that follows
    is set to the other one. Where the value that is measured is missing, there is no order, and the gap is that to the
    lower bound of the smaller column, or to the upper bound of the larger one. Values without a step are exact up to
    the grid of the gap.

    The error of the gap is one of the column that follows. If this has narrow bounds, and gaps may be large, the error
    carries many of its values to a bound. So of a day of birth, in a century, and a day of service, in a year, the day
    of birth follows.

    Attributes:
      smaller: name of a numeric or datetime column.
      larger: name of another column of the same kind, and of the same resolution. Its upper bound is not smaller.
      largest_gap: a public bound of the gap, in the unit of the columns, such as minutes. Larger gaps are set to it. By
        default, the gap is as large as the bounds allow.
      scale: of the gap, see ``Numeric``: "log" for gaps that are mostly small. By default it is "log" if there are more
        than 1000 different gaps, and the larger column follows.
      follows: "larger" or "smaller". By default the smaller column follows if its bounds are more than twice as wide
        as those of the larger one, no earlier constraint decides it, and there is no largest_gap beside missing values
        of the larger one.

    Examples:
      >>> from kme_jax import Datetime, Schema
      >>> from kme_jax.table.constraints import Order
      >>> times = [Datetime(name, "2025-01-01", "2025-12-31", "minute") for name in ("begin", "end")]
      >>> schema = Schema(times, constraints=[Order("begin", "end", largest_gap=1440)])
      >>> schema.measured.names
      ('begin', 'end - begin')
      >>> days = [Datetime("birth", "1920-01-01", "2025-12-31"), Datetime("visit", "2025-01-01", "2025-12-31")]
      >>> Schema(days, constraints=[Order("birth", "visit")]).measured.names
      ('visit - birth', 'visit')
    """

    kind = "order"
    smaller: str
    larger: str
    largest_gap: float | None = None
    scale: str | None = None
    follows: str | None = None

    def __post_init__(self):
        check_name(self.smaller, "smaller")
        check_name(self.larger, "larger")
        if self.smaller == self.larger:
            raise ValueError(f"smaller and larger are the same column, {said(self.smaller)}")
        gap = self.largest_gap
        if gap is not None and (isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 < gap < np.inf):
            raise ValueError(f"largest_gap must be a positive number, got {said(gap)}")
        if self.scale not in (None, "linear", "log"):
            raise ValueError(f'scale must be "linear" or "log", got {said(self.scale)}')
        if self.follows not in (None, "smaller", "larger"):
            raise ValueError(f'follows must be "smaller" or "larger", got {said(self.follows)}')

    @property
    def text(self) -> str:
        return f"{self.smaller} <= {self.larger}"

    def determination(self, columns, taken=()):
        smaller, larger = known(columns, self.smaller), known(columns, self.larger)
        if isinstance(smaller, Datetime) and isinstance(larger, Datetime):
            if smaller.resolution != larger.resolution:
                raise ValueError(f"{self.smaller} and {self.larger} need the same resolution")
            bounds = [(c.first_unit, c.first_unit + c.num_values - 1) for c in (smaller, larger)]
            step, integer, unit = 1.0, True, f"{larger.resolution}s"
        elif isinstance(smaller, Numeric) and isinstance(larger, Numeric):
            bounds = [(c.lower, c.upper) for c in (smaller, larger)]
            step, integer, unit = _common_step(smaller, larger), smaller.integer and larger.integer, larger.unit
        else:
            raise ValueError(f"{self.smaller} and {self.larger} must both be numeric, or both datetime columns")
        (lower, upper), (least, last) = bounds
        if upper > last:
            raise ValueError(
                f"the upper bound of {self.larger} is below that of {self.smaller}; a value of {self.smaller} could "
                "have no place"
            )
        is_wider = upper - lower > _WIDER * (last - least)
        is_possible = self.smaller not in taken and not (larger.nullable and self.largest_gap is not None)
        backward = is_wider and is_possible if self.follows is None else self.follows == "smaller"
        if backward and lower > least:
            raise ValueError(
                f"the lower bound of {self.larger} is below that of {self.smaller}, which follows; a value of "
                f"{self.larger} could have no place"
            )
        if (larger if backward else smaller).nullable and (self.largest_gap is not None or least < lower):
            raise ValueError(
                f"{self.larger if backward else self.smaller} may be missing: then there is no largest_gap, and the "
                f"lower bound of {self.larger} is not below that of {self.smaller}"
            )
        first, end = max(0, least - upper), last - lower
        if self.largest_gap is not None and self.largest_gap < end:
            end = self.largest_gap
            needed = last - upper if backward else least - lower
            if end < max(first, needed) or not first < end:
                raise ValueError(
                    f"largest_gap must be above {max(first, needed):g}, the gap between the "
                    f"{'upper' if backward else 'lower'} bounds of {self.smaller} and {self.larger}, or {first:g} "
                    "between their nearest values"
                )
            if step and abs((end - first) / step - round((end - first) / step)) > _ROUNDING:
                raise ValueError(f"largest_gap must be {first:g} and a number of steps of {step:g}, got {end:g}")
        if not first < end:
            raise ValueError(f"{self.smaller} and {self.larger} have one value each: there is nothing to order")
        many = not backward and (step is None or (end - first) / step > _MANY_STEPS)
        gap = Numeric(
            f"{self.larger} - {self.smaller}",
            int(first) if integer else float(first),
            int(end) if integer else float(end),
            integer=integer,
            step=None if step is None or (integer and step == 1) else step,
            unit=unit,
            nullable=(smaller if backward else larger).nullable,
            scale=self.scale or ("log" if many else "linear"),
        )
        # Whether every gap is possible for every value of the column that is measured, and is measured exactly.
        in_bounds = (least - end >= lower and last - first <= upper, upper + end <= last and lower + first >= least)
        is_free = step is not None and in_bounds[0 if backward else 1]
        return _Gap(smaller, larger, gap, is_free, backward)

    def resolved(self, determination):
        is_smaller = determination is not None and self.smaller in determination.columns
        return dataclasses.replace(self, follows="smaller" if is_smaller else "larger")


class _Gap(Determination):
    """See ``Order``."""

    def __init__(
        self,
        smaller: Numeric | Datetime,
        larger: Numeric | Datetime,
        gap: Numeric,
        is_free: bool,
        backward: bool,
    ):
        self._source, self._follower = (larger, smaller) if backward else (smaller, larger)
        self.columns, self.sources = (self._follower.name,), (self._source.name,)
        self.measured, self._gap, self._is_free = (gap,), gap, is_free
        self._sign, self._end = (-1, larger.num_values - 1) if backward else (1, 0)
        if backward:
            self.remedy = f'; say it of {gap.name}, or give the order "follows": "larger"'
        if not (smaller.nullable or larger.nullable or backward) and isinstance(larger, Numeric):
            self.addends = (smaller.name, gap.name)

    def _starts(self, codes):
        """Values of the column that is measured. A missing one is the bound from which every gap leads inside."""
        return numbers_of(self._source, np.where(codes == self._source.num_values, self._end, codes))

    def _gaps(self, codes, sources):
        return self._sign * (numbers_of(self._follower, codes[0]) - self._starts(sources[0]))

    def to_measured(self, codes, sources):
        return (nearest_codes(self._gap, self._gaps(codes, sources)),)

    def breaks(self, codes, sources):
        gaps = self._gaps(codes, sources)
        step = np.diff(numbers_of(self._follower, np.array([0, 1])))[0]  # a released value may be rounded by one
        is_ordered = sources[0] != self._source.num_values
        return (is_ordered & (gaps < 0)) | (gaps > self._gap.upper + step)

    def keeps(self, part, codes):
        size = self._gap.num_values
        values = [(first, min(last, size)) for first, last in codes.ranges if first < size]
        return self._is_free or values in ([], [(0, size)])

    def to_released(self, measured, sources):
        starts = self._starts(sources[0])
        codes = nearest_codes(self._follower, starts + self._sign * numbers_of(self._gap, measured[0]))
        # The grids of both columns may differ. The next value is not on the wrong side, and the last one is a bound.
        wrong = self._sign * (numbers_of(self._follower, codes) - starts) < 0
        return (np.where(wrong, np.clip(codes + self._sign, 0, self._follower.num_values - 1), codes),)


def _common_step(smaller: Numeric, larger: Numeric) -> float | None:
    """The step of a grid that has all gaps, or None if there is none that is known."""
    first, second = step_of(smaller), step_of(larger)
    if first is None or second is None:
        return None
    step = min(first, second)
    multiples = (
        first / step,
        second / step,
        (larger.lower - smaller.lower) / step,
        (larger.upper - smaller.lower) / step,
    )
    return step if all(abs(number - round(number)) < _ROUNDING * max(1, abs(number)) for number in multiples) else None
