"""Words and numbers of a report, as text for people. Templates escape it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Column, Datetime, Numeric

# Widths of letters in em, in the widest of the usual sans serif fonts. Letters that are not named here are "other".
_WIDTHS = {
    **dict.fromkeys("'|ijlI", 0.3),
    **dict.fromkeys(" !(),-./:;[]frt", 0.42),
    **dict.fromkeys("0123456789", 0.64),
    **dict.fromkeys("%@MWm—", 1.0),
}
_OTHER_WIDTH, _CAPITAL_WIDTH, _FULL_WIDTH = 0.66, 0.82, 1.1


@short_repr
class Power(NamedTuple):
    """A number, as text that is followed by a power of ten: "5 × " and "−6" for 0.000005.

    Attributes:
      text: the number, or what stands before the ten.
      exponent: of ten; empty if there is no power.
    """

    text: str
    exponent: str


def number(value: float) -> str:
    """A number for people, for example 48,842, −0.25 or 1.235M."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M")):
        if 10**power <= abs(value) < 1e15:
            return number(round(value / 10**power, 3)) + letter
    return f"{value:,.10g}".replace("-", "−")


def power(value: float, digits: int = 6) -> Power:
    """A small or large number with a power of ten: 0.001, 5 × 10⁻⁶."""
    text, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return Power(text, "")
    return Power("" if text == "1" else f"{text} × ".replace("-", "−"), f"{int(exponent)}".replace("-", "−"))


def percent(share: float) -> str:
    """A share in [0, 1] in per cent."""
    if 0 < share < 0.0005:
        return "< 0.1\N{NO-BREAK SPACE}%"
    return f"{100 * share:.{int(0 < share < 1)}f}\N{NO-BREAK SPACE}%"


def with_error(share: float, error: float) -> str:
    """A share in [0, 1] in per cent, with its standard error if that is at least 0.05 %."""
    if error < 0.0005:
        return percent(share)
    return f"{100 * share:.1f} ± {100 * error:.1f} %".replace(" ", "\N{NO-BREAK SPACE}")


def label_of(column: Column, code: int) -> str:
    """The value of a code that does not stand for missing cells."""
    if not isinstance(column, Numeric):
        return column.labels(np.array([code]))[0]
    value = column.decode(np.array([code]))[0].as_py()
    if column.step is None and not column.integer:
        value = round(value, max(3 - math.floor(math.log10(column.upper - column.lower)), 0))
    return number_of(column, value)


def number_of(column: Numeric, value: float) -> str:
    """A number of a column for people. Whole numbers from 1000 to 2999 may be years, and have no comma."""
    is_year = column.integer and column.lower >= 1000 and column.upper < 3000 and value == round(value)
    return f"{value:.0f}" if is_year else number(value)


def range_of(column: Column, first: int, last: int) -> str:
    """The values from one code to another: 3–7, 2020-01-01 to 2023-01-01."""
    low, high = label_of(column, first), label_of(column, last)
    if low == high:
        return low
    short = column.kind == "numeric" and len(low + high) <= 12 and "−" not in low + high
    return f"{low}–{high}" if short else f"{low} to {high}"


def kind_of(column: Column) -> str:
    """The kind of a column: whole numbers, dates by day."""
    kind = {
        "numeric": "numbers",
        "categorical": "categories",
        "ordinal": "ordered categories",
        "datetime": "dates",
    }[column.kind]
    if isinstance(column, Numeric):
        kind = "whole " * column.integer + kind + (f", {column.unit}" if column.unit else "")
    return kind + (f" by {column.resolution}" if isinstance(column, Datetime) else "")


def noise_range(deviations: Sequence[float] | None) -> str:
    """The smallest and the largest of two standard deviations; a dash for None."""
    if deviations is None:
        return "–"
    low, high = (f"{v:.2g}" if v < 99.5 else f"{v:,.0f}" for v in deviations)
    return low if low == high else f"{low} to {high}"


def text_width(text: str) -> float:
    """How wide a text is, in em. It is about an upper bound, because the font is not known."""
    return sum(map(_letter_width, text))


def _letter_width(letter: str) -> float:
    if letter in _WIDTHS:
        return _WIDTHS[letter]
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "FW" or ord(letter) >= 0x10000:
        return _FULL_WIDTH
    return _OTHER_WIDTH if letter.islower() or (letter.isascii() and not letter.isupper()) else _CAPITAL_WIDTH


def shortened(text: str, width: float) -> str:
    """The text, or its two ends with "…" between them, so that it is not wider than ``width`` em."""
    if text_width(text) <= width:
        return text
    half = (width - _FULL_WIDTH) / 2
    return f"{_beginning(text, half).rstrip()}…{_beginning(text[::-1], half)[::-1].lstrip()}"


def _beginning(text: str, width: float) -> str:
    end = 0
    while end < len(text) and text_width(text[: end + 1]) <= width:
        end += 1
    return text[:end]
