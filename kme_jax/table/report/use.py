"""The section on how to read and use the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from kme_jax.table.columns import Categorical, Column, Numeric
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.words import noise_range, number

# Groups with fewer rows than so many times the noise of a count of pairs: the distance of their means from those of all
# rows is a half of the private one below twice the noise, 0.8 from there to here, and 0.95 above six times the noise.
# This was seen in ten releases of five invented tables and the census, by a script that is not committed.
_SMALL = 4.0
_MOST_VALUES, _MOST_SHOWN = 64, 8  # of a column
_MOST_NUMBERS = 32  # of a column of whole numbers that people may group by


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
    small, long = _small_groups(data), _long_columns(data)
    groups = {"small": small, "long": long, "example": [*small, *long][:1], "limit": number(round(_limit(data)))}
    return Section("use", "How to read and use it", {"noise": noise, "numbers": numbers} | groups)


def _limit(data: ReportData) -> float:
    """The number of private rows below which noise may make, or hide, how the mean of a group differs."""
    return _SMALL * data.noise_of_pairs


def _rows(data: ReportData) -> Iterator[tuple[Column, Float64[np.ndarray, "k"]]]:
    """Each column of categories, or of few whole numbers, with the number of private rows of each code, as the released
    rows have it.

    The target is left out: counts are split by its values, so they have less noise.
    """
    of_all = data.statement["num_rows"] / max(1, len(data.codes))
    for place, (column, codes) in enumerate(data.columns):
        is_of_groups = isinstance(column, Categorical) or (
            isinstance(column, Numeric) and column.integer and column.num_values <= _MOST_NUMBERS
        )
        if is_of_groups and place != data.target:
            yield column, np.bincount(codes, minlength=column.num_codes) * of_all


def _small_groups(data: ReportData) -> list[dict[str, Any]]:
    """For each column of few categories with small groups, its name, their values, and those that no released row has.

    Noise may hide their rows.
    """
    columns = []
    for column, rows in _rows(data):
        if column.num_codes > _MOST_VALUES:
            continue
        small = np.flatnonzero((rows > 0) & (rows < _limit(data)))
        small = small[np.argsort(rows[small], kind="stable")]
        lost = np.flatnonzero((rows == 0) & isinstance(column, Categorical))
        if len(small) or len(lost):
            columns.append({"name": column.name, "small": _first(column, small), "lost": _first(column, lost)})
    return columns


def _first(column: Column, codes: Int[np.ndarray, "k"]) -> str:
    """The first values of some codes, and how many more there are, in words."""
    more = len(codes) - _MOST_SHOWN
    return ", ".join(column.labels(codes[:_MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _long_columns(data: ReportData) -> list[dict[str, Any]]:
    """For each column of many categories with small groups, its name, how many values it has, and how many are small.

    Values that no released row has are among the small ones.
    """
    columns = []
    for column, rows in _rows(data):
        small = int(np.sum(rows < _limit(data)))
        if column.num_codes > _MOST_VALUES and small:
            columns.append({"name": column.name, "small": f"{small:,}", "all": f"{column.num_codes:,}"})
    return columns
