"""Columns in few bins, and how strongly two columns go together."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Real

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Column
from kme_jax.table.report.words import label_of, range_of

MAX_BINS = 10  # bins of a column in a pair, plus one for missing values
WEAK = 0.05  # associations below it are not written as numbers
FEW = 4.0  # rows, in units of the noise of a count: shares of a bin with fewer are mostly noise


@short_repr
@dataclasses.dataclass(frozen=True)
class Bins:
    """A column in few bins.

    Attributes:
      ids: the bin of each row, [n].
      labels: of the bins, [b].
      shares: of the rows, [b].
      ordered: whether bins are in the order of values.
      missing: whether the last bin has the missing values.
    """

    ids: Int[np.ndarray, "n"]
    labels: list[str]
    shares: Float[np.ndarray, "bins"]
    ordered: bool
    missing: bool


def bins_of(column: Column, codes: Int[np.ndarray, "n"], most: int) -> Bins:
    """A column in at most ``most`` bins of values, and one more for missing values if there are any.

    Bins of an ordered column have about equal numbers of rows, and frequent values have bins of their own. Other
    columns have bins for the most frequent categories, and one for all others.

    Args:
      column: the column.
      codes: the category code of each row, [n].
      most: largest number of bins of values.
    """
    values, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    known = values != column.num_values
    num_known = int(known.sum())
    if not column.ordered:
        order = np.lexsort((-counts, ~known))
        place = np.empty(len(values), int)
        kept = num_known if num_known <= most else most - 1
        place[order] = np.minimum(np.arange(len(values)), kept)
        labels = [label_of(column, int(values[i])) for i in order[:kept]]
        if kept < num_known:
            labels.append(f"{num_known - kept} others")
            place[~known] = len(labels)
    else:
        place = np.arange(len(values))
        if num_known > most:
            place[known] = quantile_bins(counts[known], most)
            place[~known] = place[known][-1] + 1
        edges = np.flatnonzero(np.diff(place[known], prepend=-1))
        labels = [
            range_of(column, values[first], values[last - 1]) for first, last in itertools.pairwise([*edges, num_known])
        ]
    if num_known < len(values):
        labels.append("missing")
    shares = np.bincount(place, weights=counts, minlength=len(labels)) / len(codes)
    return Bins(place[inverse], labels, shares, column.ordered, num_known < len(values))


def quantile_bins(counts: Int[np.ndarray, "n"], most: int) -> Int[np.ndarray, "n"]:
    """The bin of each value, of at most ``most`` bins in the order of values, [v].

    Bins have about equal numbers of rows. A value with more than 1/6 of the rows has its own bin.

    Args:
      counts: number of rows of each value, in the order of values, [v].
      most: largest number of bins.
    """
    frequent = np.argsort(-counts, kind="stable")[: (most - 1) // 2]
    alone = np.zeros(len(counts), bool)
    alone[frequent] = counts[frequent] > counts.sum() / 6
    rest = np.where(alone, 0, counts)
    num_quantiles = most - 2 * alone.sum()  # each value that stands alone may split a bin in two
    quantile = (np.cumsum(rest) - rest / 2) * num_quantiles // max(rest.sum(), 1)
    split = alone[1:] | alone[:-1] | (np.diff(quantile) > 0)
    return np.concatenate([[0], np.cumsum(split)])


def joint_counts(one: Bins, other: Bins) -> Int[np.ndarray, "n m"]:
    """Numbers of rows of each pair of bins of two columns, [bins of one, bins of the other]."""
    shape = len(one.labels), len(other.labels)
    return np.bincount(one.ids * shape[1] + other.ids, minlength=shape[0] * shape[1]).reshape(shape)


def cramers_v(counts: Real[np.ndarray, "n m"], noise: float = 0.0) -> float:
    """Cramér's V of counts [r, c], in [0, 1], with Bergsma's (2013) correction for bias; 0 if a column is constant.

    Bins with few rows beside the noise are merged with those after them. What noise of this size adds to the mean
    square contingency is subtracted.

    Args:
      counts: of the pairs of bins.
      noise: approximate standard deviation of the noise of a count.
    """
    groups = [_merged(counts.sum(axis), FEW * noise) for axis in (1, 0)]
    sizes = np.outer(*map(np.bincount, groups))  # how many counts each sum has
    sums = np.zeros(sizes.shape)
    np.add.at(sums, (groups[0][:, None], groups[1][None]), counts)
    counts = sums
    n, (r, c) = counts.sum(), counts.shape
    if min(r, c) < 2 or n < 2:
        return 0.0
    expected = np.outer(counts.sum(1), counts.sum(0)) / n
    phi2 = ((counts - expected) ** 2 / expected).sum() / n
    of_noise = noise**2 * (1 - 1 / r) * (1 - 1 / c) * (sizes / expected).sum() / n
    phi2 = max(phi2 - (r - 1) * (c - 1) / (n - 1) - of_noise, 0)
    return min(math.sqrt(phi2 / max(min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1, 1e-9)), 1.0)


def _merged(counts: Real[np.ndarray, "n"], least: float) -> Int[np.ndarray, "n"]:
    """The group of each bin, numbered from 0, [n]: neighbours are merged until a group has ``least`` rows.

    What is left at the end is merged with the group before, if there is one.
    """
    groups, current, rows = np.zeros(len(counts), int), 0, 0.0
    for i, count in enumerate(counts):
        if i and rows >= least:
            current, rows = current + 1, 0.0
        groups[i], rows = current, rows + count
    if current and rows < least:
        groups[groups == current] = current - 1
    return groups


def associations(bins: Sequence[Bins], noise: float = 0.0) -> Float[np.ndarray, "d d"]:
    """Cramér's V of all pairs of d columns, symmetric, [d, d], with ones on the diagonal, see :func:`cramers_v`."""
    strength = np.eye(len(bins))
    for i, j in itertools.combinations(range(len(bins)), 2):
        strength[i, j] = strength[j, i] = cramers_v(joint_counts(bins[i], bins[j]), noise)
    return strength
