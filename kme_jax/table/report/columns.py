"""The section on columns: what the schema allows."""

from __future__ import annotations

import numpy as np

from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.words import kind_of, number, percent, range_of


def section(data: ReportData) -> Section:
    """The kind and the range of each column, and its share of missing values; and which columns are not measured."""
    rows = []
    for column, codes in data.columns:
        if column.kind in ("numeric", "datetime"):
            allowed = range_of(column, 0, column.num_values - 1)
        else:
            allowed = f"{number(column.num_values)} categories"
        missing = percent(np.mean(codes == column.num_values)) if column.nullable else "never"
        rows.append({"name": column.name, "kind": kind_of(column), "allowed": allowed, "missing": missing})
    written = [{"name": column.name, "text": column.text} for column in data.schema.unread_columns]
    return Section("columns", "Columns", {"columns": rows, "written": written})
