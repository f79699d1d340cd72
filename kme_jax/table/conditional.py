"""Rows of a release that meet conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int64
from scipy.special import ndtr, ndtri

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.relaxed import Coupled, Leaves, RelaxedRows, systematic

_POOL = 4  # draws for each row that is kept, if draws have weights
_LEAST_POOL = 1 << 15
NO_ROWS = "there are no such rows in the release; ask for fewer conditions"

Ranges = Mapping[int, Sequence[tuple[int, int]]]


def conditioned(rows: RelaxedRows, ranges: Ranges) -> RelaxedRows | ConditionalRows:
    """The conditional distribution of rows whose codes are within ranges.

    Args:
      rows: the distribution of all rows.
      ranges: by index of a column, the disjoint ranges of codes [first, last) that are allowed.

    Raises:
      ValueError: the release has no such rows. With conditions on several coupled columns, ``sample`` may find out.
    """
    coupled = {rows.others[a] for a in rows.coupled()}
    weights, leaves = np.array(rows.weights, np.float64), list(rows.leaves)
    for j, allowed in ranges.items():
        if j == rows.split:
            kept = [any(low <= t < high for low, high in allowed) for t in range(len(weights))]
            weights = weights * np.asarray(kept)[:, None]
            continue
        a = rows.others.index(j)
        inside = leaves[a].within(allowed)
        weights = weights * _masses(rows, a, inside)
        if j not in coupled:
            leaves[a] = inside
    if not weights.sum() > 0:
        raise ValueError(NO_ROWS)
    result = dataclasses.replace(rows, weights=weights / weights.sum(), leaves=tuple(leaves), parities=None)
    coupled_ranges = {rows.others.index(j): allowed for j, allowed in ranges.items() if j in coupled}
    return ConditionalRows(result, coupled_ranges) if coupled_ranges else result


def _masses(rows: RelaxedRows, a: int, leaves: Leaves) -> Float[np.ndarray, "classes K"]:
    """The probability of leaves in each relaxed row, [T, K]."""
    i, k = rows.offsets[a : a + 2]
    return np.einsum("tka,ta->tk", rows.probabilities[..., i:k], leaves.masses(k - i))


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ConditionalRows:
    """Rows whose coupled columns lie within ranges of codes. Columns with conditions of other kinds are in ``rows``.

    A range of codes is an interval of a normal variable in each relaxed row. The normal variables of the columns with
    conditions are drawn one after the other within their intervals, given those before. The probability of the
    intervals, given those before, is the weight of a draw (the sampler of Geweke, Hajivassiliou and Keane). Rows are
    drawn in proportion to these weights. With one condition all weights are equal. Then the sample is exact.

    Attributes:
      rows: relaxed rows. Their weights have the probabilities of all ranges, as if columns were independent.
      ranges: by index of a column among all except ``split``, the disjoint ranges of codes [first, last).
    """

    rows: RelaxedRows
    ranges: Ranges

    def sample(self, num_rows: int, seed: int) -> Int64[np.ndarray, "n d"]:
        """Category codes of rows, int64 [num_rows, d], in random order.

        Raises:
          ValueError: no rows were found.
        """
        return self.rows.with_rare(self._sample(num_rows, seed, 1.0)[0], seed, keeps_counts=False)

    def weighted_sample(self, num_rows: int, seed: int) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"]]:
        """Category codes of rows, int64 [num_rows, d], and weights of the rows, [num_rows], with Σ = 1, as
        ``RelaxedRows.weighted_sample``.

        Raises:
          ValueError: no rows were found.
        """
        codes, weights = self._sample(num_rows, seed, 0.5)
        return self.rows.with_rare(codes, seed, keeps_counts=False), weights / weights.sum()

    def _sample(
        self, num_rows: int, seed: int, power: float
    ) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"]]:
        """Codes of rows, and their weights. A relaxed row of probability p has rows in proportion to p**power."""
        random, rows = np.random.default_rng(seed), self.rows
        size = num_rows if len(self.ranges) == 1 else max(_POOL * num_rows, _LEAST_POOL)
        often = rows.weights.reshape(-1) ** power
        each = systematic(random, often, size)
        source = np.repeat(np.arange(len(each)), each)
        normal, intervals, log_weights = self._normals(random, source)
        log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
        if not np.isfinite(log_weights).any():
            raise ValueError(NO_ROWS)
        weights = np.exp(log_weights - log_weights.max())
        # The probability of the conditions in each relaxed row, beside that for independent columns.
        factors = np.bincount(source, weights, len(each)) / np.maximum(each, 1)
        weights = weights * np.maximum(factors[source], np.finfo(float).tiny) ** (power - 1)
        chosen = np.repeat(np.arange(size), systematic(random, weights, num_rows))
        coupled = {}
        for a, normals in self._others(random, {a: values[chosen] for a, values in normal.items()}).items():
            anything = np.repeat([[0], [rows.leaves[a].last.max()]], num_rows, axis=1)
            coupled[a] = Coupled(ndtr(normals), *(intervals[a][:, chosen] if a in intervals else anything))
        codes, order = rows.codes_of(random, source[chosen], coupled)
        probabilities = rows.weights.reshape(-1) * factors
        return codes, probabilities[source[chosen]][order] ** (1 - power)

    def _normals(
        self, random: np.random.Generator, source: Int64[np.ndarray, "n"]
    ) -> tuple[dict[int, Float[np.ndarray, "n"]], dict[int, Int64[np.ndarray, "2 n"]], Float[np.ndarray, "n"]]:
        """Normal variables of columns with conditions, the range of codes of each draw, and logarithms of weights."""
        normal: dict[int, Float[np.ndarray, "n"]] = {}
        intervals: dict[int, Int64[np.ndarray, "2 n"]] = {}
        log_weights = np.zeros(len(source))
        for a, allowed in self.ranges.items():
            edges = np.asarray(allowed, np.int64).reshape(-1, 2)
            quantiles = np.stack([self._quantile(a, edge) for edge in edges.reshape(-1).tolist()]).reshape(
                len(edges), 2, -1
            )
            mean, deviation = self._given(a, normal)
            low, high = np.moveaxis((ndtri(quantiles)[..., source] - mean) / deviation, 1, 0)  # [ranges, n]
            # Tails are measured from the end that is closer, where ndtr is precise.
            upper = low > 0
            start, end = np.where(upper, ndtr(-high), ndtr(low)), np.where(upper, ndtr(-low), ndtr(high))
            probabilities = np.maximum(end - start, 0)
            total = probabilities.sum(0)
            place = random.random(len(source)) * total
            which = np.minimum((np.cumsum(probabilities, 0) <= place).sum(0), len(edges) - 1)
            column = (which, np.arange(len(source)))
            inside = start[column] + random.random(len(source)) * probabilities[column]
            standard = np.where(upper[column], -1, 1) * ndtri(np.clip(inside, np.finfo(float).tiny, None))
            standard = np.clip(standard, low[column], high[column])
            normal[a] = mean + deviation * np.where(np.isfinite(standard), standard, 0.0)
            intervals[a] = edges[which].T
            independent = np.maximum((quantiles[:, 1] - quantiles[:, 0]).sum(0), np.finfo(float).tiny)[source]
            with np.errstate(divide="ignore"):
                log_weights += np.log(total) - np.log(independent)
        return normal, intervals, log_weights

    def _quantile(self, a: int, code: int) -> Float[np.ndarray, "rows"]:
        """The probability of codes below a code of column a, for each relaxed row, [T K]."""
        leaves = self.rows.leaves[a]
        below = _masses(self.rows, a, leaves.within([(0, code)]))
        return (below / np.maximum(_masses(self.rows, a, leaves), np.finfo(float).tiny)).reshape(-1).clip(0, 1)

    def _given(
        self, a: int, normal: Mapping[int, Float[np.ndarray, "n"]]
    ) -> tuple[Float[np.ndarray, "n"] | float, float]:
        """Mean and standard deviation of the normal variable of column a, given those of other columns."""
        matrix = self.rows.dependence
        assert matrix is not None  # there are ranges of coupled columns only
        before = list(normal)
        if not before:
            return 0.0, 1.0
        factors = np.linalg.lstsq(matrix[np.ix_(before, before)], matrix[before, a], rcond=1e-9)[0]
        variance = 1 - factors @ matrix[before, a]
        return factors @ np.stack([normal[b] for b in before]), float(np.sqrt(max(variance, 1e-9)))

    def _others(
        self, random: np.random.Generator, normal: dict[int, Float[np.ndarray, "n"]]
    ) -> dict[int, Float[np.ndarray, "n"]]:
        """Normal variables of all coupled columns, given those of the columns with conditions."""
        complete = dict(normal)
        for a in self.rows.coupled():
            if a not in complete:
                mean, deviation = self._given(a, complete)
                size = len(next(iter(complete.values())))
                complete[a] = mean + deviation * random.standard_normal(size)
        return complete
