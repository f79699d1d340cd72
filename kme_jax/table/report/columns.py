"""The section on columns: what the schema allows."""

from __future__ import annotations

import numpy as np

from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import table_html
from kme_jax.table.report.words import escaped, kind_of, number, percent, range_of


def section(data: ReportData) -> Section:
    """The kind and the range of each column, and its share of missing values."""
    rows = []
    for i, (column, codes) in enumerate(data.columns):
        if column.kind in ("numeric", "datetime"):
            allowed = escaped(range_of(column, 0, column.num_values - 1))
        else:
            allowed = number(column.num_values) + " categories"
        share = percent(np.mean(codes == column.num_values)) if column.nullable else "never"
        rows.append((f'<a href="#column{i}">{escaped(column.name)}</a>', kind_of(column), allowed, share))
    text = (
        "<p>Every value is one that the schema allows. Values of private rows beyond a bound were moved to it, so "
        "there may be more rows at a bound than one would expect.</p>"
        + table_html(("Column", "Kind", "The schema allows", "Missing"), rows)
    )
    return Section("columns", "Columns", text)
