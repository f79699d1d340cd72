"""Tails of columns of numbers that noise could hide."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

from kme_jax.table.columns import Column, Numeric, numeric_values
from kme_jax.table.report.data import MeasuredCells
from kme_jax.table.report.words import label_of, number_of, percent

_FEW = 0.001  # the largest share of synthetic rows in a tail
_RARELY = 2.0  # standard deviations of noise, which are rarely exceeded
_MUCH = 0.25  # the least shift of the mean that is worth a sentence, in standard deviations of the column


def hidden_tails(column: Column, codes: Int[np.ndarray, "n"], cells: MeasuredCells) -> list[str]:
    """Sentences about the private rows that noise could hide beyond nearly all synthetic rows of a column of numbers.

    The sum of the counts of all cells there has noise of standard deviation s, as a share of the rows. A share of 2 s
    can look like none. If these rows are spread evenly there, they move the mean by the share times the distance from
    the mean to the middle of the tail. The sum of the numbers was measured, too. So the mean is rarely off by more than
    twice the noise of that. There is a sentence for each side on which the smaller of both is at least a quarter of the
    standard deviation of the synthetic rows. Only public numbers are used: the synthetic rows, and the noise.

    Args:
      column: the column.
      codes: category codes of its synthetic rows, [n].
      cells: those that were counted.
    """
    present = np.sort(codes[codes < column.num_values])
    if not isinstance(column, Numeric) or not len(present):
        return []
    few, part = int(_FEW * len(present)), len(present) / len(codes)
    values = numeric_values(column, present)
    ends = numeric_values(column, np.asarray([0, column.num_values - 1]))
    mean, unit = float(values.mean()), max(float(values.std()), float(ends[1] - ends[0]) / column.num_values)
    digits = 1 - math.floor(math.log10(unit))
    low, high = int(present[few]), int(present[len(present) - 1 - few])
    sentences = []
    for side, code, first, last in (("below", low, 0, low), ("above", high, high + 1, column.num_values)):
        if first >= last:
            continue
        share = min(_RARELY * cells.error_between(first, last) / part, 1.0)
        middle = float(numeric_values(column, np.asarray([first, last - 1])).mean())
        shift = min(share * abs(middle - mean), _RARELY * cells.mean_error / part)
        if shift < _MUCH * unit:
            continue
        other = mean + (shift if side == "above" else -shift)
        sentences.append(
            f"Hardly any synthetic row is {side} {label_of(column, code)}. Noise could hide up to {percent(share)} of "
            f"the private rows there. The mean may be {number_of(column, round(other, digits))} instead of "
            f"{number_of(column, round(mean, digits))}."
        )
    return sentences
