"""Step 1: the mean of ψ over the private rows. The only module that turns private rows into something else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np

from kme_jax.feature_maps.base import FeatureMap
from kme_jax.numerics import Progress, check_columns, check_points


@jax.tree_util.register_dataclass
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


def _sum_of(feature_map: FeatureMap, rows: np.ndarray, devices, progress) -> tuple[np.ndarray, int]:
    rows = check_points(rows, "rows", finite=False)
    check_columns(rows, feature_map.dim, "rows")
    usable = (np.abs(rows) <= feature_map.row_bound).all(axis=1)  # False for NaN
    # A public constant takes the place of a row that is not, and its weight is 0: no error, no other route.
    safe = np.where(usable[:, None], rows, 0)
    return feature_map.weighted_sum(safe, usable.astype(rows.dtype), devices=devices, progress=progress), len(rows)


def mean_embedding(
    feature_map: FeatureMap, rows: np.ndarray, *, devices=None, progress: Progress | None = None
) -> MeanEmbedding:
    """μ̂ = (1/N) Σ_n ψ(x_n).

    Formal guarantee: replacing one row moves μ̂ by at most ``feature_map.diameter / N`` in L2, because the sums
    differ in one term and the diameter bounds ‖ψ(x) − ψ(x′)‖ with the zero vector included. A row with a NaN,
    infinite or absurdly large entry (``feature_map.row_bound``) contributes the zero vector and still counts in N, so
    that neither an error nor the divisor depends on values.

    Args:
      feature_map: ψ, chosen without looking at the rows.
      rows: private rows x, [N, d].
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: called with (work done, work in all).

    Raises:
      ValueError: rows that are not an [N, d] array of numbers.
    """
    total, num_rows = _sum_of(feature_map, rows, devices, progress)
    return MeanEmbedding(feature_map, total / num_rows, num_rows)


def mean_embedding_of_batches(feature_map: FeatureMap, batches: Iterable[np.ndarray], *, devices=None) -> MeanEmbedding:
    """:func:`mean_embedding` of rows that arrive in batches [n_i, d], of which one at a time is in memory.

    Raises:
      ValueError: no batch, or one of a wrong shape.
    """
    total, num_rows = np.zeros(feature_map.num_features), 0
    for batch in batches:
        batch_total, batch_rows = _sum_of(feature_map, batch, devices, None)
        total, num_rows = total + batch_total, num_rows + batch_rows
    if not num_rows:
        raise ValueError("no rows: the iterable of batches is empty")
    return MeanEmbedding(feature_map, total / num_rows, num_rows)
