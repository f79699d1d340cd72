"""The section on how to read and use the table."""

from __future__ import annotations

from kme_jax.table.columns import Numeric
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.words import noise_range


def section(data: ReportData) -> Section:
    """How to load the table, what not to do with it, and how far to trust it."""
    statement = data.statement
    noise = [
        {
            "name": m["name"],
            "rows": noise_range(m["cell_noise"]),
            "percent": noise_range([100 * v / statement["num_rows"] for v in m["cell_noise"]]),
        }
        for m in statement["measurements"]
        if m["cell_noise"]
    ]
    numbers = any(isinstance(column, Numeric) for column in data.schema.columns)
    return Section("use", "How to read and use it", {"noise": noise, "numbers": numbers})
