"""The section on distributions: one picture for each column."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Int

from kme_jax.table.columns import Column
from kme_jax.table.report.bins import bins_of
from kme_jax.table.report.data import MeasuredCells, ReportData, Section
from kme_jax.table.report.drawing import Bar, Bars, parts_of
from kme_jax.table.report.histogram import histogram_of
from kme_jax.table.report.tails import hidden_tails
from kme_jax.table.report.words import kind_of, number, percent, with_error

_MAX_BARS = 12  # categories in the picture of a marginal
_MEAN_SIZE = 0.8  # E|g| for a standard normal g
_RARELY = 2.0  # standard deviations above the mean, which are rarely exceeded
_MAY_BE_NOISE = 2.0  # standard deviations
# How far to trust a column, by the share of rows that noise rarely puts into a wrong bar.
_TRUST = ((0.01, "Very reliable"), (0.04, "Reliable"), (0.12, "Rough"), (0.3, "Very rough"))
_NO_TRUST = "Mostly noise"


def section(data: ReportData) -> Section:
    """A histogram or bars of each column."""
    num_used = len(data.codes)
    cards = []
    for j, (column, codes) in enumerate(data.columns):
        cells = None if data.cells is None else data.cells[j]
        histogram = column.kind in ("numeric", "datetime") or (column.ordered and column.num_values > 2 * _MAX_BARS)
        cards.append(
            {
                "name": column.name,
                "kind": kind_of(column),
                "released": data.num_columns is None or j < data.num_columns,
                "histogram": histogram_of(column, codes, cells) if histogram else None,
                "bars": None if histogram else _bars(column, codes, cells),
                "trust": _follows(data, column) if cells is None else trust(errors_of_bars(column, codes, cells)),
                "tails": [] if cells is None else hidden_tails(column, codes, cells),
            }
        )
    rows_used = None if num_used == data.num_rows else number(num_used)
    return Section(
        "distributions",
        "Distributions",
        {
            "cards": cards,
            "rows_used": rows_used,
            "has_errors": data.cells is not None,
            "has_tails": any(card["tails"] for card in cards),
        },
    )


def errors_of_bars(column: Column, codes: Int[np.ndarray, "n"], cells: MeasuredCells) -> Float64[np.ndarray, "bars"]:
    """Standard deviations of the noise of the shares of bars, [bars], when they were measured.

    Args:
      column: the column.
      codes: category codes of its synthetic rows, [n].
      cells: those that were counted.
    """
    bins = bins_of(column, codes, 2 * _MAX_BARS)
    return np.asarray([cells.error(np.unique(codes[bins.ids == i])) for i in range(len(bins.labels))])


def trust(errors: Float64[np.ndarray, "bars"]) -> str:
    """How far a column can be trusted, as two sentences.

    The first number is the expected total variation between noisy shares of bars and the private ones, and the second
    one is two standard deviations more. Other measurements and smoothing make it smaller, and where there is little
    noise, drawing rows makes it larger. Details within a bar are not looked at.

    Args:
      errors: of the shares of the bars, see :func:`errors_of_bars`.
    """
    wrong = _MEAN_SIZE / 2 * float(errors.sum())
    most = wrong + _RARELY * math.sqrt(1 - _MEAN_SIZE**2) / 2 * float(np.linalg.norm(errors))
    wrong, most = min(1.0, wrong), min(1.0, most)
    word = next((word for limit, word in _TRUST if most < limit), _NO_TRUST)
    moved = f"noise puts about {percent(wrong)} of the rows into a wrong bar, rarely more than {percent(most)}"
    return f"{word}: {moved}. Bars below {percent(min(1.0, _MAY_BE_NOISE * float(np.median(errors))))} may be noise."


def _follows(data: ReportData, column: Column) -> str | None:
    """What a column follows from, as a sentence; None if it does not follow from others."""
    names = data.follows.get(column.name)
    if data.cells is None or not names:
        return None
    return f"Not measured by itself: it follows from {' and '.join(names)}, and has the errors of all of them."


def _bars(column: Column, codes: np.ndarray, cells: MeasuredCells | None) -> Bars:
    bins = bins_of(column, codes, 2 * _MAX_BARS if column.ordered else _MAX_BARS)
    kinds = ["bar"] * (len(bins.labels) - bins.missing) + ["missing"] * bins.missing
    unit = bins.shares.max()
    bars = []
    for i, (label, kind, share) in enumerate(zip(bins.labels, kinds, bins.shares.tolist(), strict=True)):
        error = 0.0 if cells is None else cells.error(np.unique(codes[bins.ids == i]))
        bars.append(Bar(label, parts_of({kind: share}, unit), with_error(share, error)))
    return Bars(f"Shares of {column.name}", bars)
