"""Columns of rows, points and bounds that have names are matched by their names, which are public."""

from __future__ import annotations

from typing import Any

from kme_jax.domain import Bounds
from kme_jax.storage.rows import BatchedRows


def in_order(rows: Any, public: Any, bounds: Bounds | None) -> tuple[Any, Any]:
    """The rows and the public points, with the columns in the order of the bounds, or else of the public points.

    A DataFrame or a pyarrow table has names, and so have bounds whose names were given. What has no names is taken as
    it is.

    Args:
      rows: the private rows, of any type.
      public: public points of any type, a proposal or None.
      bounds: of the columns, or None.

    Raises:
      ValueError: the rows or the points have other names than the bounds, or than each other.
    """
    names, owner = None, "bounds"
    if bounds is not None and bounds.names != Bounds.create(bounds.lower, bounds.upper).names:
        names = bounds.names
    if names is None:
        names, owner = _names_of(public), "points"
    if names is None:
        return rows, public
    return _selected(rows, names, "rows", owner), _selected(public, names, "points", owner)


def _selected(data: Any, names: tuple[str, ...], what: str, owner: str) -> Any:
    own = _names_of(data)
    if own is None or own == names:
        return data
    if sorted(own) != sorted(names):
        raise ValueError(f"{what}: the columns are {', '.join(own)}, but the {owner} have {', '.join(names)}")
    return data.select(list(names)) if hasattr(data, "column_names") else data[list(names)]


def _names_of(data: Any) -> tuple[str, ...] | None:
    """Names of the columns of a DataFrame or a pyarrow table, if all are texts."""
    if isinstance(data, BatchedRows):
        return None
    names = getattr(data, "column_names", None) or getattr(data, "columns", None)
    if names is None or len(names) == 0 or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
