"""Errors of a release against the private rows. NOT PRIVATE: for the curator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Real

from kme_jax._numerics.precision import Progress, check_columns
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.text import printable
from kme_jax.domain import Bounds
from kme_jax.embedding import private_points
from kme_jax.nonprivate import WARNING, Reference
from kme_jax.points.release import Release


def _cumulative(
    values: Float[np.ndarray, "n"], weights: Float[np.ndarray, "n"], at: Float[np.ndarray, "places"]
) -> Float[np.ndarray, "places"]:
    order = np.argsort(values, kind="stable")
    upto = np.concatenate([[0.0], np.cumsum(weights[order])])
    return upto[np.searchsorted(values[order], at, side="right")]


def _correlations(rows: Float[np.ndarray, "n d"], weights: Float[np.ndarray, "n"]) -> Float[np.ndarray, "d d"]:
    """The correlations of different columns, [d, d]. They are NaN on the diagonal, and for a constant column."""
    centred = rows - weights @ rows
    covariance = (centred * weights[:, None]).T @ centred
    spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    scale = np.outer(spread, spread)
    varies = (spread[:, None] > 1e-9) & (spread[None, :] > 1e-9) & ~np.eye(len(spread), dtype=bool)
    return np.divide(covariance, scale, out=np.full_like(scale, np.nan), where=varies)


def evaluate(
    release: Release, rows: Real[AnyArray, "N d"], *, distance: bool = True, progress: Progress | bool = False
) -> dict[str, Any]:
    """Errors of means, standard deviations, cumulative distributions and correlations, and Δ. NOT PRIVATE.

    Args:
      release: a release with bounds.
      rows: the private rows, [N, d]. They are clamped to the bounds, as they were for the release.
      distance: whether to compute Δ too, the distance of the embeddings in the RKHS: N²/2 kernel evaluations.
      progress: True for a bar, or a function that is called with (work done, total work).

    Returns:
      A dictionary of plain JSON values:

      * "warning", "num_rows".
      * "distance": Δ, or None.
      * "columns": for each column "name"; "mean" and "standard_deviation", each of the rows and of the release; and
        "cumulative_error", the largest difference of the cumulative distributions.
      * "correlation_error": the largest difference of the correlations of two columns, or None.

    Raises:
      ValueError: if the number of columns is another one, or the release has no bounds.
    """
    bounds: Bounds | None = release.measurement.bounds
    if bounds is None:
        raise ValueError("release: expected a release with bounds; kme_jax.nonprivate.Reference computes Δ of others")
    rows = private_points(rows)
    check_columns(rows, bounds.dim, "rows")
    unit, points = bounds.to_unit(rows), bounds.to_unit(release.sample.points)
    weights = np.asarray(release.sample.weights, np.float64)
    share = np.full(len(unit), 1 / len(unit))
    errors: dict[str, Any] = {"warning": WARNING, "num_rows": len(unit), "distance": None, "columns": []}
    if distance:
        reference = Reference.from_rows(release.noisy.feature_map.kernel, unit, progress=progress)
        errors["distance"] = reference.distance(points, weights)
    ranges = bounds.upper - bounds.lower
    samples = {"rows": (unit, share), "release": (points, weights)}
    for i, name in enumerate(bounds.names):
        values = np.unique(np.concatenate([unit[:, i], points[:, i]]))
        difference = _cumulative(unit[:, i], share, values) - _cumulative(points[:, i], weights, values)
        errors["columns"].append(
            {
                "name": name,
                "mean": {of: float(bounds.lower[i] + ranges[i] * (w @ x[:, i])) for of, (x, w) in samples.items()},
                "standard_deviation": {
                    of: float(ranges[i] * _standard_deviation(x[:, i], w)) for of, (x, w) in samples.items()
                },
                "cumulative_error": float(np.max(np.abs(difference))),
            }
        )
    differences = np.abs(_correlations(unit, share) - _correlations(points, weights))
    finite = differences[np.isfinite(differences)]  # without those of constant columns
    errors["correlation_error"] = float(np.max(finite)) if finite.size else None
    return errors


def _standard_deviation(values: Float[np.ndarray, "n"], weights: Float[np.ndarray, "n"]) -> float:
    """The standard deviation; 0 if negative weights make the variance negative."""
    return float(np.sqrt(max(0.0, weights @ np.square(values - weights @ values))))


def describe(errors: dict[str, Any]) -> str:
    """The errors of :func:`evaluate` as text."""
    lines = [
        errors["warning"],
        f"{'column':<20} {'mean':>12} {'release':>12} {'sd':>12} {'release':>12} {'max |CDF|':>10}",
    ]
    for column in errors["columns"]:
        numbers = [column[moment][of] for moment in ("mean", "standard_deviation") for of in ("rows", "release")]
        text = " ".join(f"{number:12.5g}" for number in numbers)
        lines.append(f"{printable(column['name']):<20.20} {text} {column['cumulative_error']:10.2g}")
    if errors["correlation_error"] is not None:
        lines.append(f"largest difference of correlations: {errors['correlation_error']:.2g}")
    if errors["distance"] is not None:
        lines.append(f"distance of the embeddings, Δ: {errors['distance']:.3g}")
    return "\n".join(lines)
