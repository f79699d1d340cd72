"""Tails of columns of numbers that noise could hide."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

from kme_jax.table.columns import Column, Numeric, numeric_values
from kme_jax.table.report.data import MeasuredCells

_FEW = 0.001  # the largest share of synthetic rows in a tail
_RARELY = 2.0  # standard deviations of noise, which are rarely exceeded
_MUCH = 0.25  # the least shift of the mean that is worth a sentence, in standard deviations of the column
_MOST = 0.5  # the largest share of rows in a tail for which a mean is said


def hidden_tails(column: Column, codes: Int[np.ndarray, "n"], cells: MeasuredCells) -> list[str]:
    """Sentences about the private rows that noise could hide beyond nearly all synthetic rows of a column of numbers.

    Two noisy numbers tell how many rows are in such a tail: the sum of the counts there, and all rows less the others.
    If their best weighted mean has noise of standard deviation s, as a share of the rows, a share of 2 s can look like
    none. If these rows are spread evenly over the tail, they move the mean by the share times the distance from the
    mean to the middle of the tail. The sum of the numbers was measured, too. So the mean is rarely off by more than
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
    low, high = present[few], present[len(present) - 1 - few]
    values = numeric_values(column, present)
    ends = numeric_values(column, np.asarray([0, low, high, column.num_values - 1]))
    mean, unit = float(values.mean()), max(float(values.std()), float(ends[3] - ends[0]) / column.num_values)
    digits = 1 - math.floor(math.log10(unit))
    sentences = []
    sides = (("below", ends[1], 0, int(low)), ("above", ends[2], int(high) + 1, column.num_values))
    for side, end, first, last in sides:
        if first >= last:
            continue
        beyond, others = cells.error_between(first, last), cells.error_of_others(first, last)
        share = _RARELY * beyond * others / max(math.hypot(beyond, others), 1e-300) / part
        middle = float(numeric_values(column, np.asarray([first, last - 1])).mean())
        shift = min(share * abs(middle - mean), _RARELY * cells.mean_error / part)
        if shift < _MUCH * unit:
            continue
        edge = _number(column, float(end), 0 if column.integer else digits)
        if share > _MOST:
            sentences.append(f"Noise hides how many private values are {side} {edge}.")
            continue
        other = mean + (shift if side == "above" else -shift)
        share_in_words, means = (
            f"{100 * share:.1f}\N{NO-BREAK SPACE}%",
            [_number(column, x, digits) for x in (other, mean)],
        )
        sentences.append(
            f"Hardly any synthetic value is {side} {edge}. Up to {share_in_words} of the private values may be there, "
            f"hidden by noise. If these are spread evenly, the mean may be {means[0]} instead of {means[1]}."
        )
    return sentences


def _number(column: Numeric, value: float, digits: int) -> str:
    """A number with so many digits after the point. Those of a column of whole numbers like years have no comma."""
    rounded = round(value, digits) + 0.0  # not −0
    like_years = column.integer and column.lower >= 1000 and column.upper < 3000
    return f"{rounded:{'' if like_years else ','}.{max(digits, 0)}f}".replace("-", "−")
