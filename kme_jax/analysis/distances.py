"""Distances between a release of points and public rows, or another release, without the bias of the noise.

The noisy embedding of a release is β = μ̂ + ξ, with noise ξ of a known variance σ² for each of F coordinates. So
‖β − ν‖² is too large by F σ² on average, and this is subtracted. Kim & Schrab (2023) need the private rows for such a
distance. Here the release is enough.
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Real

from kme_jax._numerics.precision import check_columns, check_points, float64
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.estimates import Estimate
from kme_jax.domain import in_order
from kme_jax.embedding import mean_embedding, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy.mechanisms import NoisyEmbedding, noise_of
from kme_jax.storage.codec import encode

PointsRelease = Release | Measurement
_REFERENCE = 1000  # public points for the covariance of the features


@short_repr
class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
      mean: the mean of the features, noisy for a release, [F].
      variance: of the noise of each coordinate; 0 for public rows.
      fourth: Var(ξ²) of this noise.
      num_rows: number of rows.
    """

    mean: Float64[np.ndarray, "F"]
    variance: float
    fourth: float
    num_rows: int


def measurement_of(release: Any) -> Measurement:
    """The measurement of a release of points, or the measurement itself.

    Raises:
      ValueError: it is neither.
    """
    measurement = release.measurement if isinstance(release, Release) else release
    if not isinstance(measurement, Measurement):
        raise ValueError(f"release: expected a release of points, got a {type(release).__name__}")
    return measurement


def sides(release: PointsRelease, other: PointsRelease | Real[AnyArray, "n d"]) -> tuple[Side, Side]:
    """Both sides of a comparison, with the same features.

    Raises:
      ValueError: see :func:`mmd`.
    """
    measurement = measurement_of(release)
    return _side_of_release(measurement), _side_of_other(measurement, other)


def _side_of_release(measurement: Measurement) -> Side:
    mechanism = measurement.noisy.mechanism
    fourth = noise_of(mechanism.noise).square_variance * mechanism.variance**2
    mean = np.asarray(measurement.noisy.coordinates, np.float64)
    return Side(mean, mechanism.variance, fourth, mechanism.num_rows)


def _side_of_other(measurement: Measurement, other: Any) -> Side:
    if isinstance(other, Release | Measurement):
        second = measurement_of(other)
        if np.array_equal(measurement.noisy.coordinates, second.noisy.coordinates):
            raise ValueError(
                "both are the same measurement: a distance and a test need two releases, with noise of their own"
            )
        if not _have_equal_features(measurement, second):
            raise ValueError(
                "the releases have different features: they need the same bounds or proposal, kernel, number of "
                "features and seed"
            )
        return _side_of_release(second)
    if hasattr(other, "schema"):
        raise ValueError("other: expected rows of numbers or a release of points, got a table")
    rows = features_rows(measurement, other)
    mean = mean_embedding(measurement.noisy.feature_map, rows).coordinates
    return Side(np.asarray(mean, np.float64), 0.0, 0.0, len(rows))


def features_rows(measurement: Measurement, rows: Real[AnyArray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """Public rows as the feature map expects them, [n, d].

    With bounds they are scaled, and what is beyond a bound or missing is moved, as for the private rows. Columns that
    have names on both sides, such as those of a DataFrame and of the bounds, are matched by their names.

    Raises:
      ValueError: they have other names than the bounds, or not the shape [n, d], there are less than two, or without
        bounds one is not finite, or with bounds a column has no number.
    """
    rows, _ = in_order(rows, None, measurement.bounds)
    if isinstance(rows, str | os.PathLike):
        raise ValueError("rows: expected an array or a DataFrame, got a path; kme-jax test reads files")
    if measurement.bounds is None:
        points = np.asarray(check_points(rows, "rows"), np.float64)
    else:
        points = np.asarray(private_points(rows), np.float64)
    check_columns(points, measurement.noisy.feature_map.dim, "rows")
    if len(points) < 2:
        raise ValueError(f"rows: expected at least 2 rows, got {len(points)}")
    if measurement.bounds is None:
        return points
    for j in np.flatnonzero(np.isnan(points).all(axis=0)):  # such as texts, which were not meant to be compared
        raise ValueError(f"rows: column {measurement.bounds.names[j]} has no number")
    return measurement.bounds.to_unit(points)


def check_gaussian(noisy: NoisyEmbedding) -> None:
    """Refuses noise for which the tests have no quantiles.

    Raises:
      ValueError: the noise is not Gaussian.
    """
    if noisy.mechanism.noise != "gaussian":
        raise ValueError(f"release: the test is for Gaussian noise, and this release has {noisy.mechanism.noise} noise")


def _have_equal_features(first: Measurement, second: Measurement) -> bool:
    encoded = []
    for measurement in (first, second):
        arrays: dict[str, np.ndarray] = {}
        tree = [encode(measurement.noisy.feature_map, arrays, "map"), encode(measurement.bounds, arrays, "bounds")]
        encoded.append((tree, arrays))
    (tree, arrays), (other_tree, others) = encoded
    same = tree == other_tree and arrays.keys() == others.keys()
    return same and all(np.array_equal(value, others[name]) for name, value in arrays.items())


def mmd(
    release: PointsRelease,
    other: PointsRelease | Real[AnyArray, "n d"],
    *,
    population: bool = False,
    level: float = 0.95,
) -> Estimate:
    """The squared maximum mean discrepancy (MMD) of Gretton et al. (2012), with an interval for the noise. Unbiased.

    It is ‖μ − ν‖² for the embeddings of the private rows and of the other rows, in the features of the release. The
    estimate may be negative, because the noise is subtracted on average. Its standard error is that of the noise for
    the distance that was found. The interval is symmetric, and good if F is large or the distance exceeds the noise.

    Other rows must be public. A distance to private rows is not private: this function adds no noise for them. With
    bounds, other rows are moved into them, and missing cells to the middle, as it was done with the private rows.

    Args:
      release: of points, or its measurement.
      other: public rows, [n, d], whose columns are matched by name if they and the bounds have names; or another
        release with the same features.
      population: whether the distance is that of the populations from which all rows were drawn at random. Otherwise
        it is that of the rows. A population's covariance is estimated from the public rows or the synthetic points.
      level: of the interval.

    Raises:
      ValueError: it is no release of points; releases have different features, or are the same; rows have another
        number of columns, or are less than two, or without bounds one is not finite, or a column has no number; or the
        population is asked for, and the map is none of Fourier features, or there are no points to estimate its
        covariance from.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Bounds, Gaussian, PrivacyBudget, measure
      >>> from kme_jax.analysis import mmd
      >>> rng = np.random.default_rng(0)
      >>> bounds = Bounds.create([0], [100])
      >>> private, public = rng.normal(50, 10, size=(2, 5000, 1))
      >>> measured = measure(private, Gaussian(gamma=5), budget=PrivacyBudget(1.0, 1e-5), bounds=bounds)
      >>> near, far = mmd(measured, public), mmd(measured, public + 5)
      >>> near.value < far.low
      True
    """
    first, second = sides(release, other)
    num_features, variance = len(first.mean), first.variance + second.variance
    # The noise of two releases is independent: Var Σ(ξ − ξ′)² = F (Var ξ² + Var ξ′² + 4 σ² σ′²).
    fourth = first.fourth + second.fourth + 4 * first.variance * second.variance
    value = float(np.square(first.mean - second.mean).sum()) - num_features * variance
    error = num_features * fourth
    if population:
        feature_map = measurement_of(release).noisy.feature_map
        value -= sum(_trace(feature_map, side) / side.num_rows for side in (first, second))
        scale = 1 / first.num_rows + 1 / second.num_rows
        root = covariance_root(release, other)
        error += _sampling_variance(first.mean - second.mean, variance, scale, root)
    error += 4 * variance * max(value, 0.0)
    return Estimate.of(value, math.sqrt(error), level, method="direct", population=population)


def _trace(feature_map: FeatureMap, side: Side) -> float:
    """E ‖ψ(X) − μ‖² of the population. Rows of Fourier features have the same norm, so it needs no other row.

    Raises:
      ValueError: features have no constant norm.
    """
    if not isinstance(feature_map, SpectralMap):
        raise ValueError("population: the release needs Fourier features, which all have the same norm")
    norm = float(np.square(np.asarray(feature_map.amplitudes, np.float64)).sum())
    of_rows = float(np.square(side.mean).sum()) - len(side.mean) * side.variance  # ‖μ̂‖²
    return max(0.0, (norm - of_rows) * side.num_rows / (side.num_rows - 1))


def _sampling_variance(difference: Float64[np.ndarray, "F"], variance: float, scale: float, root: np.ndarray) -> float:
    """Variance of the squared norm of a difference δ + s + ξ that the sampling of rows adds to that of the noise.

    With Var s = c Σ and Var ξ = σ² I, it is 4 c δᵀ Σ δ + 2 c² tr Σ² + 4 c σ² tr Σ.

    Args:
      difference: δ + s + ξ, [F].
      variance: σ².
      scale: c.
      root: R with RᵀR = Σ, [m, F].
    """
    trace = float(np.square(root).sum())
    squared = max(0.0, float(np.square(root @ root.T).sum()) - trace**2 / (len(root) - 1))  # without its bias
    # E (δ + s + ξ)ᵀ Σ (δ + s + ξ) = δᵀ Σ δ + c tr Σ² + σ² tr Σ
    linear = max(0.0, float(np.square(root @ difference).sum()) - scale * squared - variance * trace)
    return 4 * scale * linear + 2 * scale**2 * squared + 4 * scale * variance * trace


def covariance_root(release: PointsRelease, other: Any, *, seed: int = 0) -> Float64[np.ndarray, "m F"]:
    """R with RᵀR = Σ, an estimate of the covariance of the features of a row, from public points.

    These are at most 1000 public rows, and 1000 synthetic points of each release. With public rows alone, Σ would be
    too small exactly where these rows happen to vary little.

    Raises:
      ValueError: there are no points: both are measurements.
    """
    rng, measurement = np.random.default_rng(seed), measurement_of(release)
    parts = []
    for side in (release, other):
        if isinstance(side, Release):
            chosen = _drawn(side.sample.weights, _REFERENCE, rng)
            parts.append(features_rows(measurement, side.sample.points[chosen]))
        elif not isinstance(side, Measurement):
            rows = features_rows(measurement, side)
            parts.append(rows if len(rows) <= _REFERENCE else rows[rng.choice(len(rows), _REFERENCE, replace=False)])
    if not parts:
        raise ValueError("release: two measurements have no points; synthesise() makes a release with points")
    rows, feature_map = np.concatenate(parts), measurement.noisy.feature_map
    covered = np.asarray(feature_map.covers(rows))
    with float64():
        features = np.array(feature_map(np.where(covered[:, None], rows, 0.0)), np.float64)
    features[~covered] = 0
    return (features - features.mean(axis=0)) / math.sqrt(len(features) - 1)


def _drawn(weights: Float64[np.ndarray, "M"], number: int, rng: np.random.Generator) -> np.ndarray:
    positive = np.maximum(np.asarray(weights, np.float64), 0)
    return rng.choice(len(positive), number, p=positive / positive.sum())
