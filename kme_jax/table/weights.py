"""Weights of rows: how many units of a population a row stands for, as in surveys.

A row with the weight w counts as w / U rows, where U is the public upper bound of the weights. So no row counts more
than one row does without weights, and every proof of a sensitivity holds (``TableIntegers.sum_at_levels``). Sums over
rows become weighted sums, in units of U: the noisy number of rows is the sum of all weights, divided by U. Statistics
of released rows are then those of the population, and not those of the private rows.

The noise of a count is that of one row of the largest weight. If U is ten times the mean weight, the noise is as large
as with a tenth of the rows. So U should not be far above the weights that occur.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import shown
from kme_jax.table.columns import Numeric
from kme_jax.table.written import WrittenColumn

_LEAST, _MOST = 1e-100, 1e100


@short_repr
@dataclasses.dataclass(frozen=True)
class Weight(WrittenColumn):
    """The weights of rows: how many units of a population each row stands for.

    Cells that are missing or unreadable, and negative numbers, are a weight of 0: the row does not count. Numbers
    beyond the bound are the bound.

    Released rows have equal weights, whose sum is the noisy sum of the private ones.

    Attributes:
      upper: the largest weight, from public knowledge. The noise is in proportion to it.
      decimal: "." or ",": what stands before the decimals of cells that are text, see ``Numeric``.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Weight
      >>> Weight("households", 3).levels(pa.array([0, 1, 9999, None])).tolist()
      [0, 21845, 65535, 0]
    """

    kind = "weight"
    name: str
    upper: float
    decimal: str = "."

    def _validate(self):
        numbers = self.numbers
        object.__setattr__(self, "upper", numbers.upper)
        if not _LEAST <= self.upper <= _MOST:  # so that levels are exact, and sums of weights finite
            raise self._error(f"upper must be from {_LEAST:g} to {_MOST:g}, got {self.upper:g}")

    @functools.cached_property
    def numbers(self) -> Numeric:
        """The column that reads the weights."""
        return Numeric(self.name, 0, self.upper, default=0, decimal=self.decimal)

    @property
    def type(self) -> pa.DataType:
        return pa.float64()

    @property
    def text(self) -> str:
        return f"weight, at most {self.upper:g}; the same in every row"

    @property
    def refusal(self) -> str:
        return f"{shown((self.name,))} has the kind weight: rows are counted by it, and it is not measured"

    def values(self, num_rows: int) -> pa.Array:
        """The largest weight in every row. A release scales it, see ``TableMeasurement.with_weights``."""
        return pa.array(np.full(num_rows, self.upper))

    def to_pandas(self, array: pa.Array | pa.ChunkedArray) -> Any:
        """Weights as float64."""
        return np.asarray(array.to_numpy())

    def check(self, array: pa.Array | pa.ChunkedArray) -> None:
        """Refuses cells that are not weights of released rows.

        Raises:
          ValueError: they are not equal positive numbers.
        """
        values = array.to_numpy() if array.type == self.type and not array.null_count else np.zeros(1)
        if len(values) and not (np.isfinite(values[0]) and values[0] > 0 and np.all(values == values[0])):
            raise self._error("the weights of released rows are not equal positive numbers")

    def levels(self, cells: pa.Array | pa.ChunkedArray) -> Int64[np.ndarray, "n"]:
        """The level of each of n rows, from 0 to ``LEVELS``: its weight over the largest one. SENSITIVE.

        Formal guarantee: each level depends on its own cell alone, and no cell raises an error.
        """
        return self.numbers.encode(cells)  # of a grid of LEVELS + 1 points

    def repeated(self, levels: Int64[np.ndarray, "n"], num_rows: int) -> Int64[np.ndarray, "m"]:
        """Places of rows, each about as often as its weight says: for statistics of the population. SENSITIVE.

        Args:
          levels: of the rows, see :meth:`levels`.
          num_rows: m, how many places.

        Raises:
          ValueError: no row has a weight.
        """
        upto = np.cumsum(levels)
        if not len(upto) or not upto[-1]:
            raise self._error("no row has a weight above 0")
        at: Float64[np.ndarray, "m"] = (np.arange(num_rows) + 0.5) * (float(upto[-1]) / num_rows)
        return np.minimum(np.searchsorted(upto, at, side="right"), len(upto) - 1)
