"""Step 1: the mean of ψ over the private rows. The only module that turns private rows into something else."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.cells import points_of
from kme_jax._numerics.precision import (
    Progress,
    check_columns,
    is_on_accelerator,
    precision_of,
)
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax.domain import Bounds
from kme_jax.feature_maps.base import FeatureMap, IntegerMap


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MeanEmbedding:
    """μ̂ = (1/N) Σ_n ψ(x_n). SENSITIVE: it must go through a mechanism of ``kme_jax.privacy`` before anyone sees it.

    Attributes:
      feature_map: ψ, public.
      coordinates: μ̂, [F].
      num_rows: N, public.
    """

    feature_map: FeatureMap
    coordinates: np.ndarray
    num_rows: int = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        shape = list(np.shape(self.coordinates))
        return f"MeanEmbedding(SENSITIVE, coordinates: {shape}, num_rows={self.num_rows})"


_BATCH_ROWS = 1 << 20  # rows that are scaled at once


def private_array(rows: Any) -> np.ndarray:
    """Rows as an array; of objects for lists, which NumPy would turn into what their cells suggest.

    Raises:
      ValueError: lists of different length, or rows that are none.
    """
    if isinstance(rows, np.ma.MaskedArray):  # whose cells may be missing, and whose mask np.asarray forgets
        return points_of(rows)
    if hasattr(rows, "__array__"):
        return np.asarray(rows)
    if not isinstance(rows, list | tuple):
        return np.asarray(rows, object)
    # NumPy would look into cells, and find more dimensions where all of them are lists.
    if not all(_is_row(row) for row in rows):
        raise ValueError("rows: expected lists of numbers, one for each row")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(f"rows: expected rows of one length, got {lengths[0]} and {lengths[-1]}")
    array = np.empty((len(rows), *lengths), object)
    for place, row in enumerate(rows):
        for column, cell in enumerate(np.asarray(row) if hasattr(row, "__array__") else row):
            array[place, column] = cell
    return array


def _is_row(row: Any) -> bool:
    return isinstance(row, list | tuple) or (hasattr(row, "__array__") and len(np.shape(row)) > 0)


def private_points(rows: Any) -> np.ndarray:
    """Rows as a floating-point array [n, d], refused for their shape alone: a cell that is no number is NaN.

    Each cell becomes a number by itself, see ``kme_jax._numerics.cells``. The type of the array does not count,
    because one row can decide it.

    Raises:
      ValueError: not two-dimensional.
    """
    array = private_array(rows)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"rows: expected numbers of shape [rows, columns], got shape {list(array.shape)}")
    return points_of(array)


def _exact_points(rows: Any) -> np.ndarray:
    """The same in float64. Comparisons in float32 round bounds, so that a row at a bound of the map would count in an
    array of one type alone."""
    return private_points(rows).astype(np.float64, copy=False)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class IntegerEmbedding:
    """Σ_n q(x_n), in integers. SENSITIVE: it must go through ``kme_jax.privacy.perturb_securely``.

    Attributes:
      integer_map: q, public.
      total: the sum, int64.
      num_rows: N, public.
    """

    integer_map: IntegerMap = dataclasses.field(metadata={"static": True})
    total: np.ndarray
    num_rows: int = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        shape = list(np.shape(self.total))
        return f"IntegerEmbedding(SENSITIVE, total: {shape}, num_rows={self.num_rows})"


@jax.jit
def _safe_on_device(rows, usable):
    """What ``_usable`` makes of rows on the host; and their weights."""
    return jnp.where(usable[:, None], rows, 0), usable.astype(rows.dtype)


@np.errstate(all="ignore")  # no warning may depend on values
def _usable(feature_map: FeatureMap, rows: np.ndarray, bounds: Bounds | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n, d] of which those that are not usable, [n], are replaced by a public constant, so that they raise no
    error and take no other route. Their weight is to be 0."""
    rows = private_points(rows)
    check_columns(rows, feature_map.dim, "rows")
    if bounds is not None:
        rows = bounds.to_unit(rows)
    usable = feature_map.covers(rows)
    return np.where(usable[:, None], rows, 0), usable


@np.errstate(all="ignore")  # no warning may depend on values
def class_labels(feature_map: FeatureMap, rows: np.ndarray) -> np.ndarray:
    """The labels of rows [N, d] of a ``LabelledMap`` as they are to be counted, [N, 1]: −1, which is none, for a row
    that the map does not cover and that so has no part in the embedding. SENSITIVE.

    Formal guarantee: each depends on its own row alone, so that replacing one row changes one count by 1 at most, and
    another one.

    Raises:
      ValueError: rows that are not an [N, d] array.
    """
    rows = private_points(rows)
    check_columns(rows, feature_map.dim, "rows")
    found = np.full((len(rows), 1), -1.0)
    for start in range(0, len(rows), _BATCH_ROWS):
        batch = _exact_points(rows[start : start + _BATCH_ROWS])
        found[start : start + _BATCH_ROWS, 0] = np.where(feature_map.covers(batch), batch[:, -1], -1)
    return found


@np.errstate(all="ignore")
def _sum_of(feature_map: FeatureMap, rows: np.ndarray, devices, progress) -> tuple[np.ndarray, int]:
    with precision_of(rows):  # an array of float64 that is on an accelerator exists within it only
        if is_on_accelerator(rows) and rows.ndim == 2 and rows.dtype in (np.float32, np.float64) and len(rows):
            check_columns(rows, feature_map.dim, "rows")
            safe, weights = _safe_on_device(rows, feature_map.covers(rows))
        else:
            safe, usable = _usable(feature_map, np.asarray(rows) if is_on_accelerator(rows) else rows)
            weights = usable.astype(safe.dtype)
        if not len(safe):
            return np.zeros(feature_map.num_features), 0
        return feature_map.weighted_sum(safe, weights, devices=devices, progress=progress), len(safe)


def _mean(feature_map: FeatureMap, total: np.ndarray, num_rows: int) -> MeanEmbedding:
    if not num_rows:
        raise ValueError("rows: there are none")
    return MeanEmbedding(feature_map, total / num_rows, num_rows)


def mean_embedding(
    feature_map: FeatureMap, rows: np.ndarray, *, devices=None, progress: Progress | None = None
) -> MeanEmbedding:
    """μ̂ = (1/N) Σ_n ψ(x_n).

    Formal guarantee: replacing one row moves μ̂ by at most ``feature_map.diameter / N`` in L2, because the sums
    differ in one term and the diameter bounds ‖ψ(x) − ψ(x′)‖ with the zero vector included. (In exact arithmetic: sums
    of floats, those of float32 features above all, add rounding errors that this does not cover.) A row that the
    map does not cover (``FeatureMap.covers``: an entry that is NaN, infinite, too large, or outside of a box)
    contributes the zero vector and still counts in N, so that neither an error nor the divisor depends on values.

    Args:
      feature_map: ψ, chosen without looking at the rows.
      rows: private rows x, [N, d]; an array that is on an accelerator already is used where it is.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (work done, work in all).

    Raises:
      ValueError: rows that are not an [N, d] array, N ≥ 1.
    """
    return _mean(feature_map, *_sum_of(feature_map, rows, devices, progress))


def mean_embedding_of_batches(feature_map: FeatureMap, batches: Iterable[np.ndarray], *, devices=None) -> MeanEmbedding:
    """:func:`mean_embedding` of rows that arrive in batches [n_i, d], of which one at a time is in memory.

    Raises:
      ValueError: no rows at all, or a batch of a wrong shape.
    """
    total, num_rows = np.zeros(feature_map.num_features), 0
    for batch in batches:
        batch_total, batch_rows = _sum_of(feature_map, batch, devices, None)
        total, num_rows = total + batch_total, num_rows + batch_rows
    return _mean(feature_map, total, num_rows)


def batches_of(rows: np.ndarray, size: int = _BATCH_ROWS) -> Iterator[np.ndarray]:
    """Batches of rows [N, d], in their order: [size, d] each, of which the last may be smaller. One batch if N is 0."""
    for start in range(0, max(1, len(rows)) if rows.ndim else 1, size):
        yield rows[start : start + size] if rows.ndim else rows


def integer_embedding(
    feature_map: FeatureMap,
    rows: np.ndarray,
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Progress | None = None,
) -> IntegerEmbedding:
    """Σ_n q(x_n) of ``kme_jax.feature_maps.integer``, for secure noise.

    Formal guarantee: replacing one row moves what is released of the sum by at most ``integer_map.diameter`` in L2,
    with all rounding included, since sums of integers have none. Rows that the map does not cover count as in
    :func:`mean_embedding`. ``Bounds.to_unit`` maps every row by itself, so it changes nothing of that. A row has the
    same integers in an array of any type that holds its numbers, see :func:`private_points`.

    Args:
      feature_map: ψ, chosen without looking at the rows.
      rows: private rows x, [N, d].
      bounds: public; the map's rows are then those in [0, 1]^d.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (rows done, N).

    Raises:
      ValueError: rows that are not an [N, d] array, N ≥ 1; as ``integer_map``.
    """
    rows = private_array(rows)
    num_rows = len(rows) if rows.ndim else 0
    return integer_embedding_of_batches(
        feature_map, batches_of(rows), num_rows, bounds=bounds, devices=devices, progress=progress
    )


def _part(progress: Progress, before: int, size: int, num_rows: int, done: int, total: int) -> None:
    """Progress with one batch as progress with all rows."""
    progress(before + size * done // total, num_rows)


@np.errstate(all="ignore")
def integer_embedding_of_batches(
    feature_map: FeatureMap,
    batches: Iterable[np.ndarray],
    num_rows: int,
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Progress | None = None,
) -> IntegerEmbedding:
    """:func:`integer_embedding` of N rows that arrive in batches [n_i, d]: bit for bit the same, however they are cut.

    Raises:
      ValueError: as :func:`integer_embedding`; another number of rows.
    """
    integers, total, found = None, None, 0
    for batch in batches:
        safe, usable = _usable(feature_map, _exact_points(batch), bounds)
        integers = integers or feature_map.integers(num_rows)
        found += len(safe)
        if len(safe):
            inner = progress and functools.partial(_part, progress, found - len(safe), len(safe), num_rows)
            some = integers.sum(safe, usable, devices=devices, progress=inner)
            total = some if total is None else total + some
    if not found:
        raise ValueError("rows: there are none")
    if found != num_rows:
        raise ValueError(f"rows: expected {num_rows}, got {found}")
    return IntegerEmbedding(integers, total, num_rows)
