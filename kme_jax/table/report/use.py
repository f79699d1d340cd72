"""The section on how to read and use the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.words import noise_range, number

# Groups with fewer rows than so many times the noise of a count of pairs: the distance of their means from those of all
# rows is a half of the private one below twice the noise, 0.8 from there to here, and 0.95 above six times the noise.
# This was seen in ten releases of five invented tables and the census, by a script that is not committed.
_PULLED = 4.0
_MOST_VALUES, _MOST_SHOWN = 64, 8  # of a column


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
    values = {"noise": noise, "numbers": numbers, "pulled": _pulled(data), "limit": number(round(_limit(data)))}
    return Section("use", "How to read and use it", values)


def _limit(data: ReportData) -> float:
    """The number of private rows below which the means of a group are pulled to those of all rows."""
    return _PULLED * data.noise_of_pairs


def _pulled(data: ReportData) -> list[dict[str, Any]]:
    """For each column of categories with small groups, its name, their values, and how many more there are.

    Values of the target are left out: counts are split by them, so they have less noise.
    """
    columns, of_all = [], data.statement["num_rows"] / max(1, len(data.codes))
    for place, (column, codes) in enumerate(data.columns):
        if not isinstance(column, Categorical) or column.num_codes > _MOST_VALUES or place == data.target:
            continue
        rows = np.bincount(codes, minlength=column.num_codes) * of_all
        small = np.flatnonzero((rows > 0) & (rows < _limit(data)))
        small = small[np.argsort(rows[small], kind="stable")]
        if len(small):
            labels = column.labels(small[:_MOST_SHOWN])
            columns.append({"name": column.name, "values": labels, "more": len(small) - len(labels)})
    return columns
