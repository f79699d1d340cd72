"""A column of numbers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int

from kme_jax._numerics.cells import (
    parse_float,
    parse_number,
    parse_number_with_comma,
    parse_numbers,
)
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said
from kme_jax.table.columns.base import LABEL, MAX_NUMBER, REMEDIES, Column, is_label, pandas_module, pc
from kme_jax.table.words import Words

# Of the grid of a numeric column without a step. The fine grid is for a column that is not counted in equal steps.
_DEFAULT_POINTS, _FINE_POINTS = 2**16, 2**24
_MAX_KNOTS = 28  # each becomes two knots of a ``Binning``, which has at least 64 cells
# Beyond these limits, neighbouring points of a grid are no longer different numbers.
_MAX_INTEGER = 2**53
MAX_STEPS = 2**50


@short_repr
@dataclasses.dataclass(frozen=True)
class Numeric(Column):
    """Numbers on a grid from a lower to an upper bound.

    Attributes:
      lower: the value of code 0.
      upper: the value of the last code that is not for missing cells. Both bounds are on the grid.
      integer: whether values are whole numbers.
      step: of the grid. By default 1 for integers. For other numbers the default grid has 2¹⁶ points, or 2²⁴ with knots
        or the scale "log". Then a released value is the roundest of the numbers that have its code: 0 or 1.5, and not
        0.00002 or 1.50003.
      unit: of the numbers, as text for people.
      scale: "linear", or "log" for skewed numbers, such as amounts of money or durations. Numbers are counted in cells:
        of equal width, or of a width that grows with the distance from the lower bound.
        Then only the bounds have cells of their own: other values with many rows are spread over their cells.
      knots: numbers between the bounds, increasing, at most 28. About as many cells lie between each knot and the next.
        So numbers are counted finely where knots are close. Knots and bounds have cells of their own. Other values with
        many rows are spread over their cells. Where there are enough rows, knots divide the bins in which pairs of
        columns are counted, too: a knot at 41 keeps films of up to 40 minutes apart from others. Knots are public, as
        the bounds are.
      decimal: "." or ",": what stands before the decimals of cells that are text. With a comma, 1234,5 and 1.234,5 are
        numbers. A dot stands only between complete groups of three digits, so 1234.5 and 1.23 are none. A number with
        an exponent may have either: 1,5e3 or 1.5e3. Numbers that are not text do not change.

    Examples:
      >>> from kme_jax import Numeric
      >>> age = Numeric("age", 0, 110, integer=True, unit="years")
      >>> wage = Numeric("wage", 0, 100, step=0.01, nullable=True)
      >>> age.num_values, wage.num_values
      (111, 10001)
      >>> fortune = Numeric("fortune", 0, 1e9, scale="log")
      >>> grams = Numeric("birth weight", 0, 6000, integer=True, knots=(2000, 4500))
    """

    kind = "numeric"
    name: str
    lower: float
    upper: float
    integer: bool = False
    step: float | None = None
    unit: str | None = None
    nullable: bool = False
    default: float | None = None
    scale: str = "linear"
    knots: tuple[float, ...] = ()
    decimal: str = "."
    missing: tuple[str | float, ...] = ()

    def _validate(self):
        if isinstance(self.knots, np.ndarray):
            object.__setattr__(self, "knots", tuple(self.knots.tolist()))
        if self.scale not in ("linear", "log"):
            raise self._error(f'scale must be "linear" or "log", got {said(self.scale)}')
        if not isinstance(self.decimal, str) or self.decimal not in (".", ","):
            raise self._error(f'decimal must be "." or ",", got {said(self.decimal)}')
        if not isinstance(self.integer, bool):
            raise self._error(f"integer must be true or false, got {said(self.integer)}")
        if self.unit is not None and not (self.unit == "" or is_label(self.unit)):
            raise self._error(f"unit must be {LABEL}, got {said(self.unit)}")
        for field in ("lower", "upper", *["step"] * (self.step is not None)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"{field} must be a number, got {said(value)}; {REMEDIES['lower']}")
            if not abs(value) < MAX_NUMBER:
                raise self._error(f"{field} must be finite; {REMEDIES['lower']}")
            if self.integer and value != int(value):
                raise self._error(f"{field} must be a whole number in an integer column, got {value}")
            object.__setattr__(self, field, int(value) if self.integer else float(value))
        if not self.lower < self.upper:
            raise self._error(f"lower must be below upper, got {self.lower} and {self.upper}")
        if self.step is not None and self.step <= 0:
            raise self._error(f"step must be positive, got {self.step}")
        if self._largest >= self._step * (_MAX_INTEGER if self.integer else MAX_STEPS):
            raise self._error("its grid is too large for exact numbers: take closer bounds, or a larger step")
        steps = (self.upper - self.lower) / self._step
        if abs(steps - round(steps)) > 1e-6:
            reached = self.lower + max(1, round(steps)) * self._step
            raise self._error(f"upper is {self.upper}, which steps of {self.step} miss; take {reached:.15g}")
        self._validate_knots()

    def _validate_knots(self) -> None:
        if isinstance(self.knots, str) or not isinstance(self.knots, Sequence):
            raise self._error(f"knots must be a list of numbers, got {said(self.knots)}")
        knots = tuple(knot.item() if isinstance(knot, np.number) else knot for knot in self.knots)
        object.__setattr__(self, "knots", knots)
        if self.knots and self.scale == "log":
            raise self._error('take either knots or the scale "log"')
        if len(self.knots) > _MAX_KNOTS:
            raise self._error(f"at most {_MAX_KNOTS} knots are possible, got {len(self.knots)}")
        for knot in self.knots:
            if isinstance(knot, bool) or not isinstance(knot, int | float) or not self.lower < knot < self.upper:
                raise self._error(f"a knot must be a number between the bounds, got {said(knot)}")
        codes = [0, *map(self._nearest, self.knots), self.num_values - 1]
        if not all(low < high for low, high in itertools.pairwise(codes)):
            raise self._error(f"knots must increase, and be values at least one step apart, got {said(self.knots)}")

    @property
    def codes_of_knots(self) -> tuple[int, ...]:
        last = self.num_values - 1
        if self.scale == "log":
            return tuple(sorted({1 << i for i in range(last.bit_length())} | {last}))
        if not self.knots:
            return ()
        # Many rows may lie at a bound or at a knot, so these have cells of their own.
        knots = [int(self._nearest(knot)) for knot in self.knots]
        return tuple(sorted({1, *knots, *(knot + 1 for knot in knots), last}))

    @property
    def _step(self) -> float:
        if self.step is None:
            points = _DEFAULT_POINTS if self.scale == "linear" and not self.knots else _FINE_POINTS
            return 1 if self.integer else (self.upper - self.lower) / (points - 1)
        return self.step

    @property
    def _largest(self) -> float:
        return max(abs(self.lower), abs(self.upper), self.upper - self.lower)

    @property
    def _is_fine(self) -> bool:
        """Whether all numbers within the bounds are valid. The grid then only serves to encode them."""
        return self.step is None and not self.integer

    @property
    def _digits(self) -> int:
        """Decimal places of values on the grid. Without a step: as many as are needed to tell them apart."""
        if self.step is None:
            return max(0, math.ceil(-math.log10(self._step)))
        exponents = [Decimal(repr(number)).normalize().as_tuple().exponent for number in (self.lower, self.step)]
        return max(0, *(-cast(int, exponent) for exponent in exponents))

    @property
    def num_values(self) -> int:
        return round((self.upper - self.lower) / self._step) + 1

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.integer else pa.float64()

    @np.errstate(all="ignore")
    def _nearest(self, values: Any) -> Any:
        """The nearest code of each number, as a float; NaN for NaN."""
        return np.rint((np.clip(values, self.lower, self.upper) - self.lower) / self._step)

    def _encode_numbers(self, values, marks):
        codes = self._nearest(values)
        codes[np.isnan(values)] = marks.missing
        if marks.beyond is not None:
            codes[(values < self.lower) | (values > self.upper)] = marks.beyond
        return codes.astype(np.int64)

    def _encode_text(self, cells, marks):
        numbers = parse_numbers(cells) if self.decimal == "." else [parse_number_with_comma(cell) for cell in cells]
        codes = self._encode_numbers(np.array(numbers, np.float64), marks)
        codes[[number is None for number in numbers]] = marks.unreadable
        return codes

    def _encode_times(self, seconds, marks):
        return np.full(len(seconds), marks.unreadable)

    @functools.cached_property
    def _words(self):
        parse = parse_number if self.decimal == "." else parse_number_with_comma
        return Words(self.missing, parse) if self.missing else None

    def _decode_values(self, codes):
        # The last value is the upper bound, also where steps of a float do not reach it exactly.
        values = np.where(codes == self.num_values - 1, self.upper, self.lower + codes * self._step)
        digits = self._digits + (self.step is None)  # of a default grid: so many that each value stays on its own side
        if digits < 16 and self._largest * 10**digits < _MAX_INTEGER:
            values = np.round(values, digits)  # 12.34, not 12.340000000000002
            if self._is_fine:
                inside = np.flatnonzero((codes > 0) & (codes < self.num_values - 1))
                values[inside] = self._roundest(codes[inside], values[inside], digits)
        return pa.array(np.clip(values, self.lower, self.upper), self.type)

    def _roundest(
        self, codes: Int[np.ndarray, "n"], values: Float64[np.ndarray, "n"], digits: int
    ) -> Float64[np.ndarray, "n"]:
        """Of the numbers that have these codes, those with the fewest decimals, [n].

        A code that has no number with so many decimals has none with fewer. So each round leaves fewer codes.

        Args:
          codes: of points of the grid, but for the bounds, [n].
          values: the points, with many decimals, [n].
          digits: how many decimals they have.
        """
        points, left = self.lower + codes * self._step, np.arange(len(codes))
        for decimals in range(digits - 1, -math.ceil(math.log10(self._largest)) - 2, -1):
            rounded = np.round(points[left], decimals)
            same = self._nearest(rounded) == codes[left]
            left, rounded = left[same], rounded[same]
            if not len(left):
                break
            values[left] = rounded + 0.0  # 0.0, not -0.0
        return values

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Values as int64, as Int64 in a nullable column of integers, or as float64 with NaN for missing cells."""
        values = array.cast(self.type)
        if not (self.integer and self.nullable):
            return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
        return pandas_module().Int64Dtype().__from_arrow__(values)

    def _label(self, value):
        return str(value) if self.integer else f"{value:.{self._digits}f}"

    def _find(self, text):
        number = parse_float(text.encode(errors="replace"))
        if number is None or not self.lower <= number <= self.upper:
            return None
        code = int(self._nearest(number))
        return code if self._is_fine or self._decode_values(np.array([code]))[0].as_py() == number else None

    def below(self, text):
        number = parse_float(text.strip().encode(errors="replace"))
        if number is None or math.isnan(number):
            raise self._error(f"{said(text)} is no number")
        if not self.lower <= number <= self.upper:
            return (0, 0) if number < self.lower else (self.num_values, self.num_values)
        code = int(self._nearest(number))
        value = self._decode_values(np.array([code]))[0].as_py()
        if self._is_fine or value == number:
            return code, code + 1
        return (code, code) if value > number else (code + 1, code + 1)

    @property
    def _values_in_words(self):
        steps = "" if self._is_fine else f" in steps of {self._step}"
        return f"{self.lower} to {self.upper}{steps}"

    def _is_valid(self, array):
        if not self._is_fine:
            return super()._is_valid(array)
        return pc.and_(pc.greater_equal(array, self.lower), pc.less_equal(array, self.upper))


def numeric_values(column: Column, codes: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """The values of codes of a numeric column, [n]; NaN for missing cells."""
    return column.decode(codes).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
