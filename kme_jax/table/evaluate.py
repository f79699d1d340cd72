"""Errors of a released table against the private table. NOT PRIVATE: for the curator alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa

from kme_jax._numerics.text import printable
from kme_jax.nonprivate import WARNING
from kme_jax.table.marginals import means, total_variation
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import TableRelease


def evaluate_table(release: TableRelease, source: TableSource | pa.Table | str | os.PathLike | Any) -> dict[str, Any]:
    """Total variation between marginals of the private and of the synthetic table. NOT PRIVATE.

    Args:
      release: the release of the table.
      source: the private table, as ``release_table`` takes it: a path, a pyarrow table, a pandas DataFrame, or what
        ``open_table`` returns. All of its codes are held in memory.

    Returns:
      A dictionary of plain JSON values: "warning", "num_rows", "mean_total_variation" by the number of columns ("1"
      to "3"), "columns" ("name" and "total_variation" of each), and "pairs", the largest distance first.

    Raises:
      ValueError: the table does not fit the release's schema (``FileError``), or was opened with another schema.
    """
    schema = release.schema
    source = source if isinstance(source, TableSource) else open_table(source, schema)
    if source.schema != schema:
        raise ValueError("the table was opened with another schema: give the release's schema to open_table")
    distances = total_variation(schema, np.concatenate(list(source.codes())), schema.encode(release.table))
    pairs = sorted((-d, names) for names, d in distances.items() if len(names) == 2)
    return {
        "warning": WARNING,
        "num_rows": source.num_rows,
        "mean_total_variation": means(distances),
        "columns": [{"name": name, "total_variation": distances[name,]} for name in schema.names],
        "pairs": [{"names": list(names), "total_variation": -d} for d, names in pairs],
    }


def describe_table(errors: dict[str, Any]) -> str:
    """The result of :func:`evaluate_table` as text."""
    lines = [errors["warning"], f"{'column':<40} {'total variation':>16}"]
    lines += [f"{printable(c['name']):<40.40} {c['total_variation']:16.2g}" for c in errors["columns"]]
    for pair in errors["pairs"][:5]:
        lines.append(f"{printable(' and '.join(pair['names'])):<40.40} {pair['total_variation']:16.2g}")
    words = {"1": "single columns", "2": "pairs", "3": "triples"}
    for order, mean in errors["mean_total_variation"].items():
        lines.append(f"{'mean over ' + words[order]:<40} {mean:16.2g}")
    return "\n".join(lines)
