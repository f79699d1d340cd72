"""The section on distributions: one picture for each column."""

from __future__ import annotations

import numpy as np

from kme_jax.table.columns import Column
from kme_jax.table.report.bins import bins_of
from kme_jax.table.report.data import MeasuredCells, ReportData, Section
from kme_jax.table.report.drawing import Bar, Bars, parts_of
from kme_jax.table.report.histogram import histogram_of
from kme_jax.table.report.words import kind_of, number, with_error

_MAX_BARS = 12  # categories in the picture of a marginal


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
            }
        )
    rows_used = None if num_used == data.num_rows else number(num_used)
    return Section(
        "distributions", "Distributions", {"cards": cards, "rows_used": rows_used, "has_errors": data.cells is not None}
    )


def _bars(column: Column, codes: np.ndarray, cells: MeasuredCells | None) -> Bars:
    bins = bins_of(column, codes, 2 * _MAX_BARS if column.ordered else _MAX_BARS)
    kinds = ["bar"] * (len(bins.labels) - bins.missing) + ["missing"] * bins.missing
    unit = bins.shares.max()
    bars = []
    for i, (label, kind, share) in enumerate(zip(bins.labels, kinds, bins.shares.tolist(), strict=True)):
        error = 0.0 if cells is None else cells.error(np.unique(codes[bins.ids == i]))
        bars.append(Bar(label, parts_of({kind: share}, unit), with_error(share, error)))
    return Bars(f"Shares of {column.name}", bars)
