"""Checks of values that were read from files. They raise ValueError."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kme_jax._numerics.shapes import AnyArray

TOLERANCE = 1e-6  # relative: other versions of the libraries round otherwise


def require(condition: bool, text: str) -> None:
    """Raises ValueError with the text unless the condition holds."""
    if not condition:
        raise ValueError(text)


def check_array(array: AnyArray, name: str, kinds: str, shape: Sequence[int | None]) -> None:
    """Refuses an array with an unexpected type or shape, or with numbers that are not finite.

    Args:
      array: the array.
      name: of the array in an error.
      kinds: letters of the NumPy kinds that are allowed: "f" for floats, "i" for integers.
      shape: the expected shape; None for an axis of any length of at least 1.

    Raises:
      ValueError: the array is refused.
    """
    array = np.asarray(array)
    require(array.dtype.kind in kinds, f"{name}: has the type {array.dtype}")
    fits = array.ndim == len(shape) and all(
        size == expected if expected is not None else size > 0
        for size, expected in zip(array.shape, shape, strict=True)
    )
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    require(fits, f"{name}: expected the shape [{sizes}], got {list(array.shape)}")
    require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{name}: has numbers that are not finite")


def check_positive(name: str, *numbers: float) -> None:
    """Refuses numbers that are not positive and finite.

    Raises:
      ValueError: a number is refused.
    """
    require(all(math.isfinite(number) and number > 0 for number in numbers), f"{name}: expected positive numbers")


def are_close(value: float, expected: float) -> bool:
    """Whether two numbers are equal but for rounding."""
    return math.isclose(value, expected, rel_tol=TOLERANCE)


def check_follows(name: str, value: float | None, expected: float | None) -> None:
    """Refuses a number of a mechanism that is not the expected one, but for rounding.

    Raises:
      ValueError: such a number.
    """
    same = value == expected if value is None or expected is None else are_close(value, expected)
    require(same, f"{name} does not follow from the mechanism")
