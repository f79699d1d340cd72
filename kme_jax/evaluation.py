"""Errors of a release against the private rows. NOT PRIVATE: for the curator's eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kme_jax.bounds import Bounds
from kme_jax.embedding import private_points
from kme_jax.nonprivate import Reference
from kme_jax.numerics import Progress, check_columns
from kme_jax.release import Release
from kme_jax.text import printable

if TYPE_CHECKING:
    from kme_jax.table.files import TableSource
    from kme_jax.table.release import TableRelease

WARNING = "NOT PRIVATE: computed from the private rows; not to be published"


def _cumulative(values: np.ndarray, weights: np.ndarray, at: np.ndarray) -> np.ndarray:
    order = np.argsort(values, kind="stable")
    upto = np.concatenate([[0.0], np.cumsum(weights[order])])
    return upto[np.searchsorted(values[order], at, side="right")]


def _correlations(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of different columns, [d, d]; NaN on the diagonal, and for a column that is constant."""
    centred = rows - weights @ rows
    covariance = (centred * weights[:, None]).T @ centred
    spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    scale = np.outer(spread, spread)
    varies = (spread[:, None] > 1e-9) & (spread[None, :] > 1e-9) & ~np.eye(len(spread), dtype=bool)
    return np.divide(covariance, scale, out=np.full_like(scale, np.nan), where=varies)


def evaluate(
    release: Release, rows: np.ndarray, *, distance: bool = True, progress: Progress | None = None
) -> dict[str, Any]:
    """Errors of means, standard deviations, cumulative distributions and correlations, and Δ. NOT PRIVATE.

    Args:
      release: with bounds, for rows as it was made from; they are clamped to the bounds here as there.
      rows: private, [N, d].
      distance: whether to compute Δ too, the distance of the embeddings in the RKHS: N²/2 kernel evaluations.
      progress: called with (work done, work in all).

    Returns:
      A dictionary of plain JSON values: "warning", "num_rows", "distance" (or None), "columns" (for each, "name",
      "mean" and "standard_deviation", each of rows and of the release, and "cumulative_error", the largest difference
      of the cumulative distributions) and "correlation_error", the largest difference of any, or None.

    Raises:
      ValueError: another number of columns; a release without bounds.
    """
    bounds: Bounds | None = release.measurement.bounds
    if bounds is None:
        raise ValueError("needs a release that was made with bounds")
    rows = private_points(rows)
    check_columns(rows, bounds.dim, "rows")
    unit, points = bounds.to_unit(rows), bounds.to_unit(release.sample.points)
    weights = np.asarray(release.sample.weights, np.float64)
    share = np.full(len(unit), 1 / len(unit))
    found: dict[str, Any] = {"warning": WARNING, "num_rows": len(unit), "distance": None, "columns": []}
    if distance:
        reference = Reference.from_rows(release.private.feature_map.kernel, unit, progress=progress)
        found["distance"] = reference.distance(points, weights)
    ranges = bounds.upper - bounds.lower
    both = {"rows": (unit, share), "release": (points, weights)}
    for i, name in enumerate(bounds.names):
        at = np.unique(np.concatenate([unit[:, i], points[:, i]]))
        difference = _cumulative(unit[:, i], share, at) - _cumulative(points[:, i], weights, at)
        found["columns"].append(
            {
                "name": name,
                "mean": {of: float(bounds.lower[i] + ranges[i] * (w @ x[:, i])) for of, (x, w) in both.items()},
                "standard_deviation": {of: float(ranges[i] * _spread(x[:, i], w)) for of, (x, w) in both.items()},
                "cumulative_error": float(np.max(np.abs(difference))),
            }
        )
    gap = np.abs(_correlations(unit, share) - _correlations(points, weights))
    known = gap[np.isfinite(gap)]  # not those of a column that is constant
    found["correlation_error"] = float(np.max(known)) if known.size else None
    return found


def _spread(values: np.ndarray, weights: np.ndarray) -> float:
    """The standard deviation; 0 where weights that may be negative make the variance so."""
    return float(np.sqrt(max(0.0, weights @ np.square(values - weights @ values))))


def evaluate_table(release: TableRelease, source: TableSource) -> dict[str, Any]:
    """Total variation between marginals of the private and of the synthetic table. NOT PRIVATE.

    Args:
      release: of the table.
      source: the private table; all of its codes are held in memory.

    Returns:
      A dictionary of plain JSON values: "warning", "num_rows", "mean_total_variation" by the number of columns, "1" to
      "3", "columns" (for each, "name" and "total_variation"), and "pairs", those that are furthest apart first.
    """
    from kme_jax.table.marginals import means, total_variation

    schema = release.schema
    distances = total_variation(schema, np.concatenate(list(source.codes())), schema.encode(release.table))
    pairs = sorted((-d, names) for names, d in distances.items() if len(names) == 2)
    return {
        "warning": WARNING,
        "num_rows": source.num_rows,
        "mean_total_variation": means(distances),
        "columns": [{"name": name, "total_variation": distances[name,]} for name in schema.names],
        "pairs": [{"names": list(names), "total_variation": -d} for d, names in pairs],
    }


def describe_table(found: dict[str, Any]) -> str:
    """The errors as text."""
    lines = [found["warning"], f"{'column':<40} {'total variation':>16}"]
    lines += [f"{printable(c['name']):<40.40} {c['total_variation']:16.2g}" for c in found["columns"]]
    for pair in found["pairs"][:5]:
        lines.append(f"{printable(' and '.join(pair['names'])):<40.40} {pair['total_variation']:16.2g}")
    words = {"1": "single columns", "2": "pairs", "3": "triples"}
    for order, mean in found["mean_total_variation"].items():
        lines.append(f"{'mean over ' + words[order]:<40} {mean:16.2g}")
    return "\n".join(lines)


def describe(found: dict[str, Any]) -> str:
    """The errors as text."""
    lines = [
        found["warning"],
        f"{'column':<20} {'mean':>12} {'release':>12} {'sd':>12} {'release':>12} {'max |CDF|':>10}",
    ]
    for column in found["columns"]:
        numbers = [column[moment][of] for moment in ("mean", "standard_deviation") for of in ("rows", "release")]
        text = " ".join(f"{number:12.5g}" for number in numbers)
        lines.append(f"{printable(column['name']):<20.20} {text} {column['cumulative_error']:10.2g}")
    if found["correlation_error"] is not None:
        lines.append(f"largest difference of correlations: {found['correlation_error']:.2g}")
    if found["distance"] is not None:
        lines.append(f"distance of the embeddings, Δ: {found['distance']:.3g}")
    return "\n".join(lines)
