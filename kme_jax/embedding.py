"""Step 1: the mean of ψ over the private rows. No other module computes an embedding of private rows."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from kme_jax._numerics.cells import points_of
from kme_jax._numerics.precision import (
    Progress,
    check_columns,
    is_on_accelerator,
    precision_of,
)
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import in_short
from kme_jax._version import __version__
from kme_jax.domain import Bounds
from kme_jax.feature_maps.base import FeatureMap, IntegerMap, RunningSum
from kme_jax.processes import Processes


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MeanEmbedding:
    """μ̂ = (1/N) Σ_n ψ(x_n). SENSITIVE: a mechanism of ``kme_jax.privacy`` must add noise before anyone sees it.

    Attributes:
      feature_map: ψ, public.
      coordinates: μ̂, [F].
      num_rows: N, public.
    """

    feature_map: FeatureMap
    coordinates: Float[np.ndarray, "F"]
    num_rows: int = dataclasses.field(metadata={"static": True})

    def _in_short(self) -> str:
        return f"SENSITIVE, coordinates: {list(np.shape(self.coordinates))}, num_rows={in_short(self.num_rows)}"


_BATCH_ROWS = 1 << 20  # the number of rows that are scaled at once


_READERS = "for measure, release and measure_generator"


def rows_shape(rows: Any) -> tuple[int, ...]:
    """The shape of private rows, before they are read.

    Raises:
      ValueError: as :func:`private_array`.
    """
    check_are_rows(rows)
    return np.shape(private_array(rows) if isinstance(rows, list | tuple) else rows)


def check_are_rows(rows: Any) -> None:
    """Refuses what is no array of rows, but something from which rows can be read, and says how.

    It looks at types and shapes, and never at a value.

    Raises:
      ValueError: rows are a path, a function, an iterator, a source of ``open_rows``, or a list of arrays [n, d].
    """
    if hasattr(rows, "__array__"):
        return
    kind, arguments = type(rows).__name__, "num_rows=..., num_columns=..."
    if isinstance(rows, str | os.PathLike):
        raise ValueError(f"rows: expected an array, got a path: open_rows(path) reads it {_READERS}")
    if hasattr(rows, "batches"):
        raise ValueError(f"rows: expected an array, got a {kind}, which is {_READERS}")
    if isinstance(rows, Iterator) or callable(rows):
        raise ValueError(
            f"rows: expected an array, got a {kind}: open_rows(function, {arguments}) takes a function that gives "
            f"batches, {_READERS}"
        )
    if isinstance(rows, list | tuple) and any(len(getattr(row, "shape", ())) > 1 for row in rows):
        raise ValueError(
            "rows: expected an array, got a list of batches: np.concatenate(batches) makes an array of them, and "
            f"open_rows(lambda: batches, {arguments}) takes them {_READERS}"
        )


def private_array(rows: Any) -> Shaped[np.ndarray, "..."]:
    """The rows as an array. Lists become an array of objects: NumPy would choose the type by the values of the cells.

    Raises:
      ValueError: if rows are lists of different lengths, or an element of a list of rows is not a row, or as
        :func:`check_are_rows`.
    """
    check_are_rows(rows)
    if isinstance(rows, np.ma.MaskedArray):  # masked cells are missing, and np.asarray would drop the mask
        return points_of(rows)
    if hasattr(rows, "__array__"):
        return np.asarray(rows)
    if not isinstance(rows, list | tuple):
        return np.asarray(rows, object)
    # NumPy would look into the cells, and add dimensions if all of them are lists.
    if not all(_is_row(row) for row in rows):
        raise ValueError("rows: expected lists of numbers, one for each row")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(f"rows: expected rows of one length, got {lengths[0]} and {lengths[-1]}")
    array = np.empty((len(rows), *lengths), object)
    for row_index, row in enumerate(rows):
        for column, cell in enumerate(np.asarray(row) if hasattr(row, "__array__") else row):
            array[row_index, column] = cell
    return array


def _is_row(row: Any) -> bool:
    return isinstance(row, list | tuple) or (hasattr(row, "__array__") and len(np.shape(row)) > 0)


def private_points(rows: Any) -> Float[np.ndarray, "N d"]:
    """The rows as a floating-point array [n, d]. A cell that is not a number becomes NaN.

    Each cell becomes a number independently of the others, see ``kme_jax._numerics.cells``. The type of the given array
    has no influence, because one row can decide it. Only the shape of the rows can cause an error.

    Raises:
      ValueError: if the rows are not two-dimensional.
    """
    array = private_array(rows)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"rows: expected numbers of shape [rows, columns], got shape {list(array.shape)}")
    return points_of(array)


def _has_codes(feature_map: FeatureMap, rows: Any) -> bool:
    """Whether rows are an array of integers, which the map takes as it is."""
    is_array = isinstance(rows, np.ndarray) and not isinstance(rows, np.ma.MaskedArray)
    return feature_map.takes_codes and is_array and rows.ndim == 2 and rows.dtype.kind in "iu"


def _exact_points(rows: Any) -> np.ndarray:
    """The points of :func:`private_points` in float64.

    Comparisons in float32 round the bounds of a map. A row at a bound would then count in float64 and not in float32,
    or the other way round."""
    return private_points(rows).astype(np.float64, copy=False)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class IntegerEmbedding:
    """Σ_n q(x_n), in integers. SENSITIVE: ``kme_jax.privacy.perturb_securely`` must add noise before anyone sees it.

    Attributes:
      integer_map: q, public.
      total: the sum, int64.
      num_rows: N, which is public under replace_one, or a public number in its place.
      has_public_count: whether ``num_rows`` is public although N is private, see :meth:`with_public_count`.
    """

    integer_map: IntegerMap = dataclasses.field(metadata={"static": True})
    total: Int64[np.ndarray, "sums"]
    num_rows: int = dataclasses.field(metadata={"static": True})
    has_public_count: bool = dataclasses.field(default=False, metadata={"static": True})

    def _in_short(self) -> str:
        # Without a number of rows that may be private: a notebook keeps what it shows, and may be published.
        number = f", num_rows={in_short(self.num_rows)}" if self.has_public_count is True else ""
        return f"SENSITIVE, total: {list(np.shape(self.total))}{number}"

    def with_public_count(self, num_rows: int) -> IntegerEmbedding:
        """The same sum, for a release under add_remove, where N is private. The sum is divided by ``num_rows`` instead.

        Args:
          num_rows: a number that does not depend on private rows, or that is computed from a noisy count of them.
        """
        return dataclasses.replace(self, num_rows=num_rows, has_public_count=True)


@np.errstate(all="ignore")  # no warning may depend on values
def _usable(
    feature_map: FeatureMap, rows: AnyArray, bounds: Bounds | None = None
) -> tuple[Float[np.ndarray, "n d"], Bool[AnyArray, "n"]]:
    """Safe rows [n, d], and which rows are usable, [n].

    A row that is not usable is replaced by a public constant. It then raises no error, and is computed in the same way
    as the others. Its weight must be 0."""
    rows = private_points(rows)
    check_columns(rows, feature_map.dim, "rows")
    if bounds is not None:
        rows = bounds.to_unit(rows)
    usable = feature_map.covers(rows)
    return np.where(usable[:, None], rows, 0), usable


@np.errstate(all="ignore")  # no warning may depend on values
def class_labels(feature_map: FeatureMap, rows: Shaped[AnyArray, "N d"]) -> Float64[np.ndarray, "N 1"]:
    """The labels of rows [N, d] of a ``LabelledMap``, for counting, [N, 1]. SENSITIVE.

    A row that the map does not cover contributes nothing to the embedding. Its label is −1, which is not a class.

    Formal guarantee: each label depends on its own row alone. So replacing one row changes two counts at most, each by
    1 at most.

    Raises:
      ValueError: if rows are not an [N, d] array.
    """
    rows = private_points(rows)
    check_columns(rows, feature_map.dim, "rows")
    labels = np.full((len(rows), 1), -1.0)
    for start in range(0, len(rows), _BATCH_ROWS):
        batch = _exact_points(rows[start : start + _BATCH_ROWS])
        labels[start : start + _BATCH_ROWS, 0] = np.where(feature_map.covers(batch), batch[:, -1], -1)
    return labels


@np.errstate(all="ignore")
def _sum_of(feature_map: FeatureMap, rows: AnyArray, devices, progress) -> tuple[Float[np.ndarray, "F"], int]:
    with precision_of(rows):  # a float64 array on an accelerator can be used only within this context
        if is_on_accelerator(rows) and rows.ndim == 2 and rows.dtype in (np.float32, np.float64) and len(rows):
            check_columns(rows, feature_map.dim, "rows")
            total = feature_map.sum_on_device(cast(jax.Array, rows), devices=devices, progress=reporter(progress))
            return total, len(rows)
        safe, usable = _usable(feature_map, np.asarray(rows) if is_on_accelerator(rows) else rows)
        weights = usable.astype(safe.dtype)
        if not len(safe):
            return np.zeros(feature_map.num_features), 0
        return feature_map.weighted_sum(safe, weights, devices=devices, progress=reporter(progress)), len(safe)


def _mean(feature_map: FeatureMap, total: Float[np.ndarray, "F"], num_rows: int) -> MeanEmbedding:
    if not num_rows:
        raise ValueError("rows: expected at least one row, got none")
    return MeanEmbedding(feature_map, total / num_rows, num_rows)


@shows_progress("rows")
def mean_embedding(
    feature_map: FeatureMap, rows: Shaped[AnyArray, "N d"], *, devices=None, progress: Progress | bool = False
) -> MeanEmbedding:
    """μ̂ = (1/N) Σ_n ψ(x_n).

    Formal guarantee: replacing one row moves μ̂ by at most ``feature_map.diameter / N`` in L2, because the sums
    differ in one term and the diameter bounds ‖ψ(x) − ψ(x′)‖ with the zero vector included. This holds in exact
    arithmetic: sums of floats add rounding errors that the guarantee does not cover, above all sums of float32
    features. A row that the map does not cover contributes the zero vector and still counts in N. So neither an error
    nor the divisor depends on values. (``FeatureMap.covers``: an entry of such a row is NaN, infinite, too large, or
    outside of a box.)

    Args:
      feature_map: ψ, chosen without looking at the rows.
      rows: private rows x, [N, d]. An array that is on an accelerator stays there.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: True for a bar, or a function that is called with (work done, total work).

    Raises:
      ValueError: if rows are not an [N, d] array with N ≥ 1.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, SubspaceMap, mean_embedding
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)  # the text shows no values
      MeanEmbedding(SENSITIVE, coordinates: [19], num_rows=1000)
    """
    return _mean(feature_map, *_sum_of(feature_map, rows, devices, progress))


def mean_embedding_of_batches(
    feature_map: FeatureMap, batches: Iterable[Shaped[AnyArray, "_ d"]], *, devices=None
) -> MeanEmbedding:
    """:func:`mean_embedding` of rows that arrive in batches [n_i, d]. One batch at a time is in memory.

    Raises:
      ValueError: if there are no rows, or a batch has a wrong shape.
    """
    total, num_rows = np.zeros(feature_map.num_features), 0
    for batch in batches:
        batch_total, batch_rows = _sum_of(feature_map, batch, devices, False)
        total, num_rows = total + batch_total, num_rows + batch_rows
    return _mean(feature_map, total, num_rows)


def batches_of(rows: Shaped[np.ndarray, "..."], size: int = _BATCH_ROWS) -> Iterator[Shaped[np.ndarray, "..."]]:
    """Batches of rows [N, d], in their order: [size, d] each, of which the last may be smaller. One batch if N is 0."""
    for start in range(0, max(1, len(rows)) if rows.ndim else 1, size):
        yield rows[start : start + size] if rows.ndim else rows


def integer_embedding(
    feature_map: FeatureMap,
    rows: Shaped[AnyArray, "N d"],
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Progress | bool = False,
) -> IntegerEmbedding:
    """Σ_n q(x_n) for the integer features q of a map (``feature_map.integers(N)``), for secure noise.

    Formal guarantee: replacing one row moves the value that is released of the sum by at most ``integer_map.diameter``
    in L2, with all rounding included, since sums of integers have no rounding. Rows that the map does not cover count
    as in :func:`mean_embedding`. ``Bounds.to_unit`` maps each row independently of the others, so the guarantee holds
    with bounds too. A row has the same integers in an array of any type that holds its numbers, see
    :func:`private_points`.

    Args:
      feature_map: ψ, chosen without looking at the rows.
      rows: private rows x, [N, d].
      bounds: public bounds. If given, the rows are scaled to [0, 1]^d, and ψ is a map of that cube.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: True for a bar, or a function that is called with (rows done, N).

    Raises:
      ValueError: if rows are not an [N, d] array with N ≥ 1, or the map has no integer version for N rows.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, SubspaceMap, integer_embedding
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> integer_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      IntegerEmbedding(SENSITIVE, total: [19])
    """
    rows = private_array(rows)
    num_rows = len(rows) if rows.ndim else 0
    return integer_embedding_of_batches(
        feature_map, batches_of(rows), num_rows, bounds=bounds, devices=devices, progress=progress
    )


@np.errstate(all="ignore")  # no warning may depend on values
def integer_sum(
    feature_map: FeatureMap,
    batches: Iterable[Shaped[AnyArray, "_ d"]],
    rows_planned: int,
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Callable[[int], None] | None = None,
    has_levels: bool = False,
) -> tuple[IntegerMap, Int64[np.ndarray, "sums"], int]:
    """Σ_n q(x_n) over some rows, their number, and q. SENSITIVE. Of no rows, the sum is zero.

    Formal guarantee: each row has the same integers wherever it is, because the map, the planned number of rows and the
    bounds alone decide how they are computed. So sums of parts of the rows, added in any order, are the sum of all rows
    to the last bit, on devices of one kind and with the same versions of the libraries.

    Args:
      feature_map: ψ.
      batches: private rows.
      rows_planned: N, or a public number that is at least N. The integers are made for it.
      bounds: as in :func:`integer_embedding`.
      devices: as in :func:`integer_embedding`.
      progress: called with the number of rows done.
      has_levels: as in :func:`integer_embedding_of_batches`.

    Raises:
      ValueError: if a batch has a wrong shape, or the map has no integer version for so many rows, or there are levels
        and the map is not one of tables.
    """
    integers: IntegerMap | None = None
    running: RunningSum | None = None
    rows_read = 0
    for batch in batches:
        levels = np.asarray(batch[:, -1], np.int64) if has_levels else None
        rows = batch[:, :-1] if has_levels else batch
        if bounds is None and _has_codes(feature_map, rows):
            check_columns(rows, feature_map.dim, "rows")
            safe, usable = rows, feature_map.covers(rows)
        else:
            safe, usable = _usable(feature_map, _exact_points(rows), bounds)
        integers = integers or feature_map.integers(rows_planned)
        running = running or integers.running_sum()
        rows_before, rows_read = rows_read, rows_read + len(safe)
        if not len(safe):
            continue
        if levels is None:
            report = progress and functools.partial(_report_batch, progress, rows_before, len(safe))
            running.add(safe, usable, rows_planned=rows_planned, devices=devices, progress=report)
        else:
            running.add_at_levels(np.asarray(safe)[usable], levels[usable])
            if progress:
                progress(rows_read)
    integers = integers or feature_map.integers(rows_planned)
    if running is None or not rows_read:
        running, nothing = integers.running_sum(), np.zeros((0, feature_map.dim))
        running.add(nothing, np.zeros(0, bool), rows_planned=rows_planned, devices=devices)
    return integers, running.total(), rows_read


def _report_batch(progress: Callable[[int], None], before: int, size: int, done: int, total: int) -> None:
    """Reports progress with one batch as progress with all rows.

    Args:
      progress: called with the number of rows done.
      before: the number of rows in the batches before.
      size: the number of rows in this batch.
      done: work done in this batch.
      total: work in this batch.
    """
    progress(before + size * done // total)


@shows_progress("rows")
def integer_embedding_of_batches(
    feature_map: FeatureMap,
    batches: Iterable[Shaped[AnyArray, "_ d"]],
    num_rows: int,
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Progress | bool = False,
    rows_planned: int | None = None,
    has_levels: bool = False,
) -> IntegerEmbedding:
    """:func:`integer_embedding` of N rows that arrive in batches [n_i, d].

    The result is bit for bit the same for all sizes of batches.

    With levels, each row counts as a part of a row, see ``TableIntegers.sum_at_levels``. The guarantee is then for rows
    that are added or removed, and not for rows that are replaced.

    Args:
      feature_map: ψ.
      batches: private rows.
      num_rows: N.
      bounds: as in :func:`integer_embedding`.
      devices: as in :func:`integer_embedding`.
      progress: as in :func:`integer_embedding`.
      rows_planned: a public number, at least N, for which the integers are made if N is private. There may then be no
        rows.
      has_levels: whether the last column of each batch holds the levels of its rows. Only tables have levels, and only
        if N is private.

    Raises:
      ValueError: as :func:`integer_embedding`, or if the batches do not have N rows in total, or ``rows_planned`` rows
        are not enough, or there are levels although N is not private, or the map is not one of tables.
    """
    if has_levels and rows_planned is None:
        raise ValueError("has_levels: the number of rows must be private")
    planned = num_rows if rows_planned is None else rows_planned
    report = reporter(progress)
    integers, total, rows_read = integer_sum(
        feature_map,
        batches,
        planned,
        bounds=bounds,
        devices=devices,
        progress=report and (lambda done: report(done, num_rows)),
        has_levels=has_levels,
    )
    if not rows_read and rows_planned is None:
        raise ValueError("rows: expected at least one row, got none")
    if rows_read != num_rows:
        raise ValueError(f"rows: expected {num_rows}, got {rows_read}")
    if rows_read > planned:
        raise ValueError(f"rows: at most {planned} can be summed exactly")
    return IntegerEmbedding(integers, total, num_rows)


def integer_embedding_of_processes(
    feature_map: FeatureMap,
    batches: Iterable[Shaped[AnyArray, "_ d"]],
    num_rows: int,
    processes: Processes,
    *,
    bounds: Bounds | None = None,
    devices=None,
    progress: Progress | bool = False,
) -> IntegerEmbedding | None:
    """:func:`integer_embedding` of the rows of all processes, in process 0; None in the others.

    Every process calls this with the same map and bounds, and with its own rows, of which there may be none. The result
    is bit for bit that of one process with all rows, on devices of one kind and with the same versions of the
    libraries. See ``Processes`` for what each process learns.

    Formal guarantee: as of :func:`integer_embedding` for all rows together. The sum of all rows is the sum of the
    processes' sums, and no sum is rounded. Each process makes the integers for the same map, bounds and N, which is
    checked before rows are read.

    Args:
      feature_map: ψ, chosen without looking at the rows.
      batches: private rows of this process, [n_i, d] each.
      num_rows: the number of rows of this process. The sum of these numbers, N, is public, and so is every one to the
        other processes.
      processes: all processes, in their block.
      bounds: as in :func:`integer_embedding`.
      devices: as in :func:`integer_embedding`.
      progress: True for a bar, or a function that is called with (rows done, rows of this process).

    Raises:
      ProcessError: another process failed, or is not heard, or has another map or other bounds.
      ValueError: as :func:`integer_embedding`, or if the batches do not have ``num_rows`` rows in total.
    """
    total_rows = processes.total(num_rows)
    processes.agree(_digest((feature_map, bounds)))
    own = integer_embedding_of_batches(
        feature_map, batches, num_rows, bounds=bounds, devices=devices, progress=progress, rows_planned=total_rows
    )
    total = processes.sum(own.total)
    return None if total is None else IntegerEmbedding(own.integer_map, total, total_rows)


def _digest(public: Any) -> bytes:
    """A SHA-256 digest of a public pytree and of the version of this package."""
    leaves, structure = jax.tree.flatten(public)
    digest = hashlib.sha256(f"{__version__} {structure}".encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        digest.update(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.digest()
