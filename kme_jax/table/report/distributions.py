"""The section on distributions: one picture for each column."""

from __future__ import annotations

import numpy as np

from kme_jax.table.columns import Column
from kme_jax.table.report.bins import bins_of
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import Bar, Bars, parts_of
from kme_jax.table.report.histogram import histogram_of
from kme_jax.table.report.words import kind_of, number, percent

_MAX_BARS = 12  # categories in the picture of a marginal


def section(data: ReportData) -> Section:
    """A histogram or bars of each column."""
    num_used = len(data.codes)
    cards = []
    for column, codes in data.columns:
        histogram = column.kind in ("numeric", "datetime") or (column.ordered and column.num_values > 2 * _MAX_BARS)
        cards.append(
            {
                "name": column.name,
                "kind": kind_of(column),
                "histogram": histogram_of(column, codes) if histogram else None,
                "bars": None if histogram else _bars(column, codes),
            }
        )
    rows_used = None if num_used == data.num_rows else number(num_used)
    return Section("distributions", "Distributions", {"cards": cards, "rows_used": rows_used})


def _bars(column: Column, codes: np.ndarray) -> Bars:
    bins = bins_of(column, codes, 2 * _MAX_BARS if column.ordered else _MAX_BARS)
    kinds = ["bar"] * (len(bins.labels) - bins.missing) + ["missing"] * bins.missing
    unit = bins.shares.max()
    bars = [
        Bar(label, parts_of({kind: share}, unit), percent(share))
        for label, kind, share in zip(bins.labels, kinds, bins.shares.tolist(), strict=True)
    ]
    return Bars(f"Shares of {column.name}", bars)
