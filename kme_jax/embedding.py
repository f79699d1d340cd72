"""Step 1: the mean of ψ over the private rows. The only module that turns private rows into something else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from kme_jax.feature_maps.base import FeatureMap
from kme_jax.numerics import Progress, check_columns
from kme_jax.pytrees import pytree_dataclass


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


def _private_points(rows: Any) -> np.ndarray:
    """Rows as a floating-point array [n, d], refused for their structure alone: a cell that is no number is NaN.

    Raises:
      ValueError: not two-dimensional, or of a type that holds no numbers at all.
    """
    array = np.asarray(rows)
    if array.dtype.kind in "OUS":

        def number(cell):
            try:
                return float(cell)
            except (TypeError, ValueError, OverflowError):
                return np.nan

        array = np.vectorize(number, otypes=[np.float64])(array) if array.size else array.astype(np.float64)
    if array.dtype.kind not in "fiub" or array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"rows: expected numbers of shape [rows, columns], got shape {list(array.shape)}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


@np.errstate(all="ignore")  # no warning may depend on values
def _sum_of(feature_map: FeatureMap, rows: np.ndarray, devices, progress) -> tuple[np.ndarray, int]:
    rows = _private_points(rows)
    check_columns(rows, feature_map.dim, "rows")
    if not len(rows):
        return np.zeros(feature_map.num_features), 0
    usable = feature_map.covers(rows)
    # A public constant takes the place of a row that is not, and its weight is 0: no error, no other route.
    safe = np.where(usable[:, None], rows, 0)
    return feature_map.weighted_sum(safe, usable.astype(rows.dtype), devices=devices, progress=progress), len(rows)


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
      rows: private rows x, [N, d].
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
