"""What a feature map states, compared with its features of public rows. Private rows never come here."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64, Real

from kme_jax._numerics.precision import check_columns, check_points, float64
from kme_jax._numerics.shapes import AnyArray
from kme_jax.feature_maps.base import FeatureMap, IntegerMap

_MOST_ROWS, _MOST_CORNERS = 64, 32
_MOST_NUMBERS = 1 << 21  # features that are computed at once
_ROUNDING = 1e-4  # of features in float32, as a share of the bound


def check_covered(
    feature_map: FeatureMap, points: Real[AnyArray, "M d"], name: str = "points"
) -> Real[np.ndarray, "M d"]:
    """Public points as a finite array [M, d] of rows that the map covers.

    Args:
      feature_map: ψ.
      points: z, [M, d].
      name: of the points in an error.

    Raises:
      ValueError: if points are not a finite [M, d] array, or the map has no features for one of them.
    """
    points = check_points(points, name)
    check_columns(points, feature_map.dim, name)
    if not bool(np.all(feature_map.covers(points))):
        raise ValueError(f"{name}: some have no features in this map; use points within its bounds")
    return points


def public_features(
    feature_map: FeatureMap, points: Real[AnyArray, "M d"], name: str = "points"
) -> tuple[Real[np.ndarray, "M d"], Float64[np.ndarray, "M F"]]:
    """The points of :func:`check_covered`, [M, d], and ψ of them in float64, [M, F].

    Raises:
      ValueError: as there.
    """
    points = check_covered(feature_map, points, name)
    with float64():
        return points, np.asarray(feature_map(jnp.asarray(points, jnp.float64)), np.float64)


def corners_of_box(lower: Float64[np.ndarray, "d"], upper: Float64[np.ndarray, "d"]) -> Float64[np.ndarray, "n d"]:
    """Corners of a box, where features are often furthest apart, [n, d]: all of them if they are few, else some."""
    dim = len(lower)
    if 2**dim <= _MOST_CORNERS:
        at_upper = np.array(list(itertools.product([False, True], repeat=dim)))
    else:
        ends = np.array([[False] * dim, [True] * dim])
        at_upper = np.concatenate([ends, np.random.default_rng(0).random((_MOST_CORNERS - 2, dim)) < 0.5])
    return np.where(at_upper, upper, lower)


def check_diameter_at(feature_map: FeatureMap, rows: Real[np.ndarray, "n d"]) -> None:
    """Refuses a map whose features of some public rows contradict the bounds that it states, on which noise rests.

    This is no proof that the bounds are true. Rows that the map does not cover are left out.

    Args:
      feature_map: ψ.
      rows: public or invented rows, [n, d]. If they are many, some of them are looked at.

    Raises:
      ValueError: features of two rows, or of a row and the zero vector, are further apart than ``diameter``, or have a
        norm above ``norm_bound``, or are not finite.
    """
    name, (rows, features) = type(feature_map).__name__, _looked_at(feature_map, rows)
    if features.shape != (len(rows), feature_map.num_features) or not np.isfinite(features).all():
        raise ValueError(f"{name}: expected {feature_map.num_features} finite features of every public row it covers")
    apart, _ = _furthest(features)
    stated = feature_map.diameter
    if not apart <= stated * (1 + _ROUNDING):
        raise ValueError(f"{name}: features of public rows are {apart:.4g} apart, but its diameter is {stated:.4g}")
    norm, stated = float(np.linalg.norm(features, axis=1).max(initial=0)), feature_map.norm_bound
    if not norm <= stated * (1 + _ROUNDING):
        raise ValueError(f"{name}: features of a public row have norm {norm:.4g}, but its norm_bound is {stated:.4g}")


def check_integers_at(integers: IntegerMap, rows: Real[np.ndarray, "n d"]) -> None:
    """Does the same as :func:`check_diameter_at` for integers, at the two rows whose features are furthest apart.

    Raises:
      ValueError: the integers of these rows are further apart than ``diameter``, or are not one int64 for each feature.
    """
    rows, features = _looked_at(integers.feature_map, rows)
    # A slice that begins after the last row is empty. It stands for the zero vector.
    first, second = (_integers_of(integers, rows[place : place + 1]) for place in _furthest(features)[1])
    apart, stated, name = float(np.linalg.norm(first - second)), integers.diameter, type(integers).__name__
    if not apart <= stated:
        raise ValueError(f"{name}: integers of public rows are {apart:.4g} apart, but its diameter is {stated:.4g}")


def _looked_at(
    feature_map: FeatureMap, rows: Real[np.ndarray, "n d"]
) -> tuple[Real[np.ndarray, "m d"], Float64[np.ndarray, "m F"]]:
    """Some of the rows that the map covers, and their features."""
    rows = rows[np.asarray(feature_map.covers(rows), bool)]
    most = int(np.clip(_MOST_NUMBERS // feature_map.num_features, 2, _MOST_ROWS))
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(int)]
    if not len(rows):
        return rows, np.zeros((0, feature_map.num_features))
    return rows, public_features(feature_map, rows, "rows")[1]


def _furthest(features: Float64[np.ndarray, "m F"]) -> tuple[float, tuple[int, int]]:
    """The largest distance of two vectors, and their places. The zero vector is one of them, at place m."""
    vectors = np.concatenate([features, np.zeros((1, features.shape[1]))])
    squares = np.square(vectors).sum(axis=1)
    apart = squares[:, None] + squares - 2 * vectors @ vectors.T
    first, second = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return float(np.linalg.norm(vectors[first] - vectors[second])), (int(first), int(second))


def _integers_of(integers: IntegerMap, row: Real[np.ndarray, "n d"]) -> Float64[np.ndarray, "F"]:
    """The integers of one row, or of none, [F]."""
    if not len(row):
        return np.zeros(integers.num_features)
    total = integers.released(integers.sum(np.asarray(row, np.float64), np.ones(1, bool)))
    if np.shape(total) != (integers.num_features,) or total.dtype != np.int64:
        raise ValueError(
            f"{type(integers).__name__}: expected {integers.num_features} int64 numbers of a row, got {total.dtype} "
            f"{list(np.shape(total))}"
        )
    return np.asarray(total, np.float64)
