"""Words and numbers of a report, as text for people."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

import numpy as np

from kme_jax.table.columns import Column, Datetime, Numeric

_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")  # not in HTML, or not in UTF-8


def escaped(text: object) -> str:
    """Any text, escaped as HTML text or for an attribute in quotes."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def number(value: float) -> str:
    """A number for people, for example 48,842, −0.25 or 1.235M."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M")):
        if 10**power <= abs(value) < 1e15:
            return number(round(value / 10**power, 3)) + letter
    return f"{value:,.10g}".replace("-", "−")


def power(value: float, digits: int = 6) -> str:
    """A small or large number, as HTML: 0.001, 5 × 10⁻⁶."""
    text, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return text
    return f"{'' if text == '1' else text + ' × '}10<sup>{int(exponent)}</sup>".replace("-", "−")


def percent(share: float) -> str:
    """A share in [0, 1] in per cent, as HTML."""
    if 0 < share < 0.0005:
        return "&lt; 0.1&nbsp;%"
    return f"{100 * share:.1f}&nbsp;%" if 0 < share < 1 else f"{100 * share:.0f}&nbsp;%"


def label_of(column: Column, code: int) -> str:
    """The value of a code that does not stand for missing cells, as text that is not yet HTML."""
    if not isinstance(column, Numeric):
        return column.labels(np.array([code]))[0]
    value = column.decode(np.array([code]))[0].as_py()
    if column.step is None and not column.integer:
        value = round(value, max(3 - math.floor(math.log10(column.upper - column.lower)), 0))
    return number(value)


def range_of(column: Column, first: int, last: int) -> str:
    """The values from one code to another, as text that is not yet HTML: 3–7, 2020-01-01 to 2023-01-01."""
    low, high = label_of(column, first), label_of(column, last)
    if low == high:
        return low
    short = column.kind == "numeric" and len(low + high) <= 12 and "−" not in low + high
    return f"{low}–{high}" if short else f"{low} to {high}"


def kind_of(column: Column) -> str:
    """The kind of a column, as HTML: whole numbers, dates by day."""
    kind = {
        "numeric": "numbers",
        "categorical": "categories",
        "ordinal": "ordered categories",
        "datetime": "dates",
    }[column.kind]
    if isinstance(column, Numeric):
        kind = "whole " * column.integer + kind + (f", {escaped(column.unit)}" if column.unit else "")
    return kind + (f" by {column.resolution}" if isinstance(column, Datetime) else "")


def noise_range(deviations: Sequence[float] | None) -> str:
    """The smallest and the largest of two standard deviations, as text; a dash for None."""
    if deviations is None:
        return "–"
    low, high = (f"{v:.2g}" if v < 100 else f"{v:,.0f}" for v in deviations)
    return low if low == high else f"{low} to {high}"
