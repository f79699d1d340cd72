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
_MANY_STEPS = 1000  # a gap with more steps than this has the scale "log"


@short_repr
@dataclasses.dataclass(frozen=True)
class Order(Constraint):
    """The value of a column is at most that of another one: a trip begins before it ends.

    The gap between both is measured, instead of the larger column. So a release has durations as they are, at any time.
    Where the larger value of a private row is below the smaller one, it is set to the smaller one. Where the smaller
    value is missing, there is no order, and the gap is that to the lower bound of the smaller column. Values without a
    step are exact up to the grid of the gap.

    Attributes:
      smaller: name of a numeric or datetime column.
      larger: name of another column of the same kind, and of the same resolution. Its upper bound is not smaller.
      largest_gap: a public bound of the gap, in the unit of the columns, such as minutes. Larger gaps are set to it. By
        default, the gap is as large as the bounds allow.
      scale: of the gap, see ``Numeric``: "log" for gaps that are mostly small. By default it is "log" if there are more
        than 1000 different gaps.

    Examples:
      >>> from kme_jax import Datetime, Schema
      >>> from kme_jax.table.constraints import Order
      >>> times = [Datetime(name, "2025-01-01", "2025-12-31", "minute") for name in ("begin", "end")]
      >>> schema = Schema(times, constraints=[Order("begin", "end", largest_gap=1440)])
      >>> schema.measured.names
      ('begin', 'end - begin')
    """

    kind = "order"
    smaller: str
    larger: str
    largest_gap: float | None = None
    scale: str | None = None

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

    @property
    def text(self) -> str:
        return f"{self.smaller} <= {self.larger}"

    def determination(self, columns):
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
        if smaller.nullable and (self.largest_gap is not None or least < lower):
            raise ValueError(
                f"{self.smaller} may be missing: then there is no largest_gap, and the lower bound of {self.larger} "
                f"is not below that of {self.smaller}"
            )
        first, end = max(0, least - upper), last - lower
        if self.largest_gap is not None and self.largest_gap < end:
            end = self.largest_gap
            if end < max(first, least - lower) or not first < end:
                raise ValueError(
                    f"largest_gap must be above {max(first, least - lower):g}, the gap between the lower bounds of "
                    f"{self.smaller} and {self.larger}, or {first:g} between their nearest values"
                )
            if step and abs((end - first) / step - round((end - first) / step)) > _ROUNDING:
                raise ValueError(f"largest_gap must be {first:g} and a number of steps of {step:g}, got {end:g}")
        if not first < end:
            raise ValueError(f"{self.smaller} and {self.larger} have one value each: there is nothing to order")
        scale = self.scale or ("log" if step is None or (end - first) / step > _MANY_STEPS else "linear")
        gap = Numeric(
            f"{self.larger} - {self.smaller}",
            int(first) if integer else float(first),
            int(end) if integer else float(end),
            integer=integer,
            step=None if step is None or (integer and step == 1) else step,
            unit=unit,
            nullable=larger.nullable,
            scale=scale,
        )
        # Whether every gap is possible for every value of the smaller column, and is measured exactly.
        is_free = step is not None and upper + end <= last and lower + first >= least
        return _Gap(self, smaller, larger, gap, is_free)


class _Gap(Determination):
    """See ``Order``."""

    def __init__(
        self,
        constraint: Order,
        smaller: Numeric | Datetime,
        larger: Numeric | Datetime,
        gap: Numeric,
        is_free: bool,
    ):
        self.columns, self.sources = (constraint.larger,), (constraint.smaller,)
        self.measured, self._smaller, self._larger, self._gap = (gap,), smaller, larger, gap
        self._is_free = is_free
        if not (smaller.nullable or larger.nullable) and isinstance(larger, Numeric):
            self.addends = (constraint.smaller, gap.name)

    def _starts(self, codes):
        """Values of the smaller column. A missing one is its lower bound."""
        return numbers_of(self._smaller, np.where(codes == self._smaller.num_values, 0, codes))

    def to_measured(self, codes, sources):
        return (nearest_codes(self._gap, numbers_of(self._larger, codes[0]) - self._starts(sources[0])),)

    def breaks(self, codes, sources):
        gaps = numbers_of(self._larger, codes[0]) - self._starts(sources[0])
        step = np.diff(numbers_of(self._larger, np.array([0, 1])))[0]  # a released value may be rounded by one
        is_ordered = sources[0] != self._smaller.num_values
        return (is_ordered & (gaps < 0)) | (gaps > self._gap.upper + step)

    def keeps(self, part, codes):
        size = self._gap.num_values
        values = [(first, min(last, size)) for first, last in codes.ranges if first < size]
        return self._is_free or values in ([], [(0, size)])

    def to_released(self, measured, sources):
        starts = self._starts(sources[0])
        ends = starts + numbers_of(self._gap, measured[0])
        found = nearest_codes(self._larger, ends)
        # The grids of both columns may differ. The next value is not below the start: the last one is the upper bound.
        below = numbers_of(self._larger, found) < starts
        return (np.where(below, np.minimum(found + 1, self._larger.num_values - 1), found),)


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
