"""A number or a time that is at most another one."""

from __future__ import annotations

import dataclasses

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns import Datetime, Numeric
from kme_jax.table.constraints.base import Constraint, Determination, check_name, known, nearest_codes, numbers_of

_ROUNDING = 1e-9  # of the largest gap
_MANY_STEPS = 1000  # a gap with more steps than this has the scale "log"


@short_repr
@dataclasses.dataclass(frozen=True)
class Order(Constraint):
    """The value of a column is at most that of another one: a trip begins before it ends.

    The gap between both is measured, instead of the larger column. So a release has durations as they are, at any time.
    The private rows' repair: where the larger value is below the smaller one, it is set to the smaller one. Where the
    smaller value is missing, the gap is that to the smaller column's lower bound.

    Attributes:
      smaller: name of a numeric or datetime column.
      larger: name of another column of the same kind, and of the same resolution. Its upper bound is not smaller.
      largest_gap: a public bound of the gap, in the unit of the columns. Larger gaps are set to it. By default, the gap
        is as large as the bounds allow.
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
            lower, upper = smaller.first_unit, smaller.first_unit + smaller.num_values - 1
            last, step, unit = larger.first_unit + larger.num_values - 1, 1.0, larger.resolution
            integer, above = True, larger.first_unit - upper
        elif isinstance(smaller, Numeric) and isinstance(larger, Numeric):
            lower, upper, last = smaller.lower, smaller.upper, larger.upper
            step, unit, above = _common_step(smaller, larger), larger.unit, larger.lower - upper
            integer = smaller.integer and larger.integer
        else:
            raise ValueError(f"{self.smaller} and {self.larger} must both be numeric, or both datetime columns")
        if upper > last:
            raise ValueError(
                f"the upper bound of {self.larger} is below that of {self.smaller}; a value of {self.smaller} could "
                "have no place"
            )
        first, end = max(0, min(above, last - lower)), last - lower
        if self.largest_gap is not None:
            end = min(end, self.largest_gap)
            if step and end > first:
                end = first + max(1, np.floor((end - first) / step + 1e-9)) * step
        if not first < end:
            raise ValueError(f"largest_gap must be above {first:g}, the smallest gap that the bounds allow")
        scale = self.scale or ("log" if step is None or (end - first) / step > _MANY_STEPS else "linear")
        name = f"{self.larger} - {self.smaller}"
        number = int if integer else float
        gap = Numeric(
            name,
            number(first),
            number(end),
            integer=integer,
            step=None if integer else step,
            unit=unit,
            nullable=larger.nullable,
            scale=scale,
        )
        return _Gap(self, smaller, larger, gap)


class _Gap(Determination):
    """See ``Order``."""

    def __init__(self, constraint: Order, smaller: Numeric | Datetime, larger: Numeric | Datetime, gap: Numeric):
        self.columns, self.sources = (constraint.larger,), (constraint.smaller,)
        self.measured, self._smaller, self._larger, self._gap = (gap,), smaller, larger, gap
        if not (smaller.nullable or larger.nullable) and isinstance(larger, Numeric):
            self.addends = (constraint.smaller, gap.name)

    def _starts(self, codes):
        """Values of the smaller column. A missing one is its lower bound."""
        return numbers_of(self._smaller, np.where(codes == self._smaller.num_values, 0, codes))

    def to_measured(self, codes, sources):
        return (nearest_codes(self._gap, numbers_of(self._larger, codes[0]) - self._starts(sources[0])),)

    def breaks(self, codes, sources):
        gaps, room = numbers_of(self._larger, codes[0]) - self._starts(sources[0]), _ROUNDING * self._gap.upper
        return (gaps < self._gap.lower - room) | (gaps > self._gap.upper + room)

    def to_released(self, measured, sources):
        starts = self._starts(sources[0])
        ends = starts + numbers_of(self._gap, measured[0])
        found = nearest_codes(self._larger, ends)
        # The grids of both columns may differ. The next value is not below the start: the upper bound is not.
        below = numbers_of(self._larger, found) < starts
        return (np.where(below, found + 1, found),)


def _common_step(smaller: Numeric, larger: Numeric) -> float | None:
    """The step of a grid that has all gaps, or None if there is none that is known."""
    if smaller.integer and larger.integer:
        first, second = float(smaller.step or 1), float(larger.step or 1)
    elif smaller.step is None or larger.step is None:
        return None
    else:
        first, second = smaller.step, larger.step
    offset = (larger.lower - smaller.lower) / second
    return second if first == second and abs(offset - round(offset)) < 1e-9 else (1.0 if smaller.integer else None)
