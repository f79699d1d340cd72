"""Boxes of rows, for maps that are made for rows between public bounds."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Real

from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import check_array, check_positive, require

_EDGE = 1e-6  # a box is widened by this share of its entries, because decimals and float32 miss a bound by less
_NEAR = 2e-4  # the share of a width by which a box that was read from a file may differ from [0, 1]^d


def checked_bounds(
    lower: Real[AnyArray, "d"], upper: Real[AnyArray, "d"]
) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]]:
    """Public bounds of the columns in float64, [d] each.

    Raises:
      ValueError: if the shapes differ, or bounds are not finite and in order.
    """
    lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    if lower.ndim != 1 or not lower.size or lower.shape != upper.shape:
        raise ValueError(f"bounds: expected shapes [d] and [d], got {list(lower.shape)} and {list(upper.shape)}")
    if not (np.isfinite(upper - lower).all() and (lower < upper).all()):
        raise ValueError("every lower bound must be finite and below its upper bound")
    return lower, upper


def box_between(
    lower: Float64[np.ndarray, "d"], upper: Float64[np.ndarray, "d"], length: float
) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]]:
    """The centre of the box between bounds, and half of its widths, [d] each.

    The half-widths are a millionth more, but at most a length of the kernel, so that rows on a bound are inside.
    """
    centre, half_widths = (lower + upper) / 2, (upper - lower) / 2
    return centre, half_widths + np.minimum(_EDGE * (np.abs(centre) + half_widths), length)


def are_inside(
    rows: Real[AnyArray, "n d"], centre: Float64[np.ndarray, "d"], half_widths: Float64[np.ndarray, "d"]
) -> Bool[np.ndarray, "n"]:
    """Which rows are in the box. Always in float64, because float32 may be too coarse to tell a row from a bound."""
    return np.all(np.abs(np.asarray(rows, np.float64) - centre) <= half_widths, axis=1)


def check_same_box(
    centre: Float64[np.ndarray, "d"],
    half_widths: Float64[np.ndarray, "d"],
    lower: Float64[np.ndarray, "d"],
    upper: Float64[np.ndarray, "d"],
    name: str,
) -> None:
    """Checks that a box is the one between these bounds.

    Raises:
      ValueError: if it is another one. ``name`` is that of the map in the error.
    """
    expected_centre, expected_widths = (lower + upper) / 2, (upper - lower) / 2
    near = np.abs(centre - expected_centre) <= _NEAR * expected_widths
    near &= np.abs(half_widths - expected_widths) <= _NEAR * expected_widths
    require(bool(near.all()), f"the {name} is not made for rows from 0 to 1")


def check_box_fields(centre: Float64[np.ndarray, "d"], half_widths: Float64[np.ndarray, "d"], dim: int) -> None:
    """Checks a box that was read from a file.

    Raises:
      ValueError: if it does not have ``dim`` columns, or a half-width is not positive.
    """
    check_array(centre, "centre", "f", (dim,))
    check_array(half_widths, "half_widths", "f", (dim,))
    check_positive("half_widths", float(np.min(half_widths)))
