"""Errors of a released table against the private table. NOT PRIVATE: for the curator alone."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int

from kme_jax._numerics.text import printable
from kme_jax.nonprivate import WARNING
from kme_jax.table.columns import Column
from kme_jax.table.marginals import means, total_variation
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import TableRelease
from kme_jax.table.schema import Schema


def evaluate_table(release: TableRelease, source: TableSource | pa.Table | str | os.PathLike | Any) -> dict[str, Any]:
    """Errors of the marginals, means, standard deviations and correlations of a release. NOT PRIVATE.

    Args:
      release: the release of the table.
      source: the private table, as ``release_table`` takes it: a path, a pyarrow table, a pandas DataFrame, or what
        ``open_table`` returns. All of its codes are held in memory.

    Returns:
      A dictionary of plain JSON values: "warning", "num_rows", "mean_total_variation" by the number of columns ("1"
      to "3"), "columns" ("name" and "total_variation" of each; for numbers also "mean" and "sd", each {"private",
      "synthetic"}, or None if no cell has a value), "pairs", the largest distance first, and "correlations" of pairs of
      numbers, each {"names", "private", "synthetic"}, the strongest private one first. Rows with a missing value do not
      count.

    Raises:
      ValueError: the table does not fit the release's schema (``FileError``), or was opened with another schema.
    """
    schema = release.schema
    source = source if isinstance(source, TableSource) else open_table(source, schema)
    if source.schema != schema:
        raise ValueError("the table was opened with another schema: give the release's schema to open_table")
    ours, theirs = np.concatenate(list(source.codes())), schema.encode(release.table)
    distances = total_variation(schema, ours, theirs)
    pairs = sorted((-d, names) for names, d in distances.items() if len(names) == 2)
    return {
        "warning": WARNING,
        "num_rows": source.num_rows,
        "mean_total_variation": means(distances),
        "columns": [
            {"name": column.name, "total_variation": distances[column.name,]}
            | _moments(column, ours[:, j], theirs[:, j])
            for j, column in enumerate(schema.columns)
        ],
        "pairs": [{"names": list(names), "total_variation": -d} for d, names in pairs],
        "correlations": _correlations(schema, ours, theirs),
    }


def _values(column: Column, codes: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """The values of codes of a numeric column, [n]; NaN for missing cells."""
    return column.decode(codes).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)


def _moments(column: Column, ours: Int[np.ndarray, "n"], theirs: Int[np.ndarray, "m"]) -> dict[str, Any]:
    if column.kind != "numeric":
        return {}
    values = {"private": _values(column, ours), "synthetic": _values(column, theirs)}
    present = {table: cells[~np.isnan(cells)] for table, cells in values.items()}
    if not all(len(cells) for cells in present.values()):
        return {"mean": None, "sd": None}
    return {
        "mean": {table: float(cells.mean()) for table, cells in present.items()},
        "sd": {table: float(cells.std()) for table, cells in present.items()},
    }


def _correlation(first: Float64[np.ndarray, "n"], second: Float64[np.ndarray, "n"]) -> float | None:
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    if len(first) < 2 or not first.std() or not second.std():
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _correlations(schema: Schema, ours: Int[np.ndarray, "n d"], theirs: Int[np.ndarray, "m d"]) -> list[dict[str, Any]]:
    """Correlations of all pairs of numeric columns in both tables, the strongest first."""
    numeric = [(j, column) for j, column in enumerate(schema.columns) if column.kind == "numeric"]
    values = {column.name: [_values(column, codes[:, j]) for codes in (ours, theirs)] for j, column in numeric}
    pairs = [
        {
            "names": [one, other],
            "private": _correlation(values[one][0], values[other][0]),
            "synthetic": _correlation(values[one][1], values[other][1]),
        }
        for one, other in itertools.combinations(values, 2)
    ]
    known = [pair for pair in pairs if pair["private"] is not None]
    return sorted(known, key=lambda pair: -abs(pair["private"]))


def describe_table(errors: dict[str, Any]) -> str:
    """The result of :func:`evaluate_table` as text."""
    lines = [errors["warning"], f"{'column':<40} {'total variation':>16}"]
    lines += [f"{printable(c['name']):<40.40} {c['total_variation']:16.2g}" for c in errors["columns"]]
    for pair in errors["pairs"][:5]:
        lines.append(f"{printable(' and '.join(pair['names'])):<40.40} {pair['total_variation']:16.2g}")
    for title, key in (("mean", "mean"), ("standard deviation", "sd")):
        known = [column for column in errors["columns"] if column.get(key)]
        lines += [f"{title:<40} {'private':>16} {'synthetic':>16}"] * bool(known)
        lines += [_both(column["name"], column[key]) for column in known]
    strongest = errors["correlations"][:5]
    lines += [f"{'correlation':<40} {'private':>16} {'synthetic':>16}"] * bool(strongest)
    lines += [_both(" and ".join(pair["names"]), pair) for pair in strongest]
    words = {"1": "single columns", "2": "pairs", "3": "triples"}
    for order, mean in errors["mean_total_variation"].items():
        lines.append(f"{'mean over ' + words[order]:<40} {mean:16.2g}")
    return "\n".join(lines)


def _both(name: str, values: dict[str, float | None]) -> str:
    ours, theirs = ("–" if value is None else f"{value:.4g}" for value in (values["private"], values["synthetic"]))
    return f"{printable(name):<40.40} {ours:>16} {theirs:>16}"
