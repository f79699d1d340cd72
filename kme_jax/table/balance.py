"""Samples of relaxed rows whose pairs of columns agree with the distribution.

Rows are drawn at random. So pairs of values occur more or less often than the distribution says, and a statistic of the
rows has an error of drawing beside the error of the noise. Exchanging the values of a column between two rows of the
same relaxed row changes no column, and no probability of the distribution. So values are exchanged as long as the
counts of pairs come closer to those of the distribution.

Pairs are counted in groups of values. A cell of two columns has four rows on average, or more. If cells had less than
one, counts would be closest to the distribution with all rows where it is largest, and columns would depend on each
other far too much. Rows of rare classes, which have few rows in a cell, keep their values.

If three columns depend on each other in a way that pairs do not show, values are exchanged until they have the parity
that was measured, too. This is post-processing: it spends nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.conditional import ConditionalRows
from kme_jax.table.relaxed import RelaxedRows

_MOST_GROUPS, _LEAST_GROUPS = 128, 4  # of a column
_ROWS_OF_CELL, _LEAST_OF_CELL = (
    4,
    2,
)  # of two columns, on average: in usual classes, and in all where rows are exchanged
_FEW_GROUPS = 16  # of a column, for which there must be room if classes are told apart
_USUAL = 0.9  # share of the rows that are in usual classes, the largest ones
_MOST_CELLS = 1 << 23  # of all pairs of groups, of all classes
_MOST_SWEEPS, _MOST_WORK = 8, 4e8  # sweeps over all columns, and rows times pairs of columns in all sweeps
_BATCHES, _LEAST_BATCH = 64, 128  # of exchanges that are decided at the same time
_LEAST_STEP = 4  # of a parity, in one exchange


def sample(
    rows: RelaxedRows | ConditionalRows,
    num_rows: int,
    seed: int,
    *,
    keeps_rare: bool = True,
    sweeps: int = _MOST_SWEEPS,
) -> Int64[np.ndarray, "n d"]:
    """Category codes of rows, int64 [num_rows, d], in random order, see ``RelaxedRows.sample``.

    Rows without conditions on coupled columns are balanced: values are exchanged within relaxed rows. Columns that are
    coupled within relaxed rows keep their values. If there are very many rows or columns, nothing is exchanged: the
    errors of drawing are small then, or there is too much work.

    Args:
      rows: the distribution.
      num_rows: number of rows.
      seed: of the sampling.
      keeps_rare: see ``keeps_counts`` of ``RelaxedRows.with_rare``. Rows that meet conditions do not keep them.
      sweeps: over all columns, at most.
    """
    if isinstance(rows, ConditionalRows):
        return rows.sample(num_rows, seed)
    codes, source = rows.sample_with_source(num_rows, seed)
    sweeps = int(min(sweeps, _MOST_WORK // max(1, num_rows * len(rows.leaves) ** 2)))
    if len(rows.leaves) > 1 and sweeps:
        Exchange.create(rows, codes, source).sweep(sweeps, np.random.default_rng([seed, 1]))
    return rows.with_rare(codes, seed, keeps_counts=keeps_rare)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The state of an exchange.

    Groups are neighbouring ranges of codes of a column. They are numbered through all columns, D in all.

    Attributes:
      codes: of the rows, changed in place, [n, d].
      columns: index among all columns of each of the C columns except ``split``.
      source: the relaxed row of each row, [n].
      classes: the class of each row, [n]; 0 if classes are not told apart.
      groups: the group of every row and column, changed in place, [n, C].
      excess: counts of every class and pair of groups, less those that the distribution says, changed in place,
        [T, D, D].
      free: positions of the columns whose values may be exchanged.
      has_enough: whether the class of a row has so many rows that values are exchanged, [n].
      triples: positions of three columns each, whose parity is known, [P, 3].
      signs: −1 or 1 for every row and column, the halves of the columns, changed in place, int64 [n, C].
      missing: the known sums of the products of three signs, less those of the rows, changed in place, [P].
    """

    codes: Int64[np.ndarray, "n d"]
    columns: list[int]
    source: Int64[np.ndarray, "n"]
    classes: Int64[np.ndarray, "n"]
    groups: Int64[np.ndarray, "n columns"]
    excess: Float64[np.ndarray, "classes D D"]
    free: list[int]
    has_enough: Bool[np.ndarray, "n"]
    triples: Int64[np.ndarray, "P 3"]
    signs: Int64[np.ndarray, "n columns"]
    missing: Float64[np.ndarray, "P"]

    @classmethod
    def create(cls, rows: RelaxedRows, codes: Int64[np.ndarray, "n d"], source: Int64[np.ndarray, "n"]) -> Exchange:
        """The state for rows that were drawn."""
        num_classes, each = rows.weights.shape
        tells_apart = num_classes * (_FEW_GROUPS * len(rows.leaves)) ** 2 <= _MOST_CELLS
        classes = source // each if tells_apart else np.zeros_like(source)
        room = (_MOST_CELLS / (num_classes if tells_apart else 1)) ** 0.5 / len(rows.leaves)
        sizes = np.bincount(classes)
        largest = np.sort(sizes)[::-1]
        usual = int(largest[np.searchsorted(np.cumsum(largest), _USUAL * len(codes))])
        most = int(max(_LEAST_GROUPS, min(_MOST_GROUPS, room, math.sqrt(usual / _ROWS_OF_CELL))))
        has_enough = (sizes >= _LEAST_OF_CELL * most**2)[classes]
        groups, probabilities, offset = [], [], 0
        for a, j in enumerate(rows.others):
            of_codes, of_rows = _groups(rows, a, codes[:, j], most)
            groups.append(of_codes + offset)
            probabilities.append(of_rows)
            offset += of_rows.shape[-1]
        by_row = np.concatenate(probabilities, axis=-1)  # [T, K, D]
        expected = np.stack([(p * w[:, None]).T @ p for p, w in zip(by_row, rows.weights, strict=True)])
        excess = -len(codes) * (expected if tells_apart else expected.sum(0, keepdims=True))
        ends = np.cumsum([0, *(of_rows.shape[-1] for of_rows in probabilities)])
        parts = [slice(*ends[a : a + 2]) for a in range(len(groups))]
        for a, b in itertools.combinations(range(len(groups)), 2):
            (low, end), (start, stop) = ends[a : a + 2], ends[b : b + 2]
            shape = (len(excess), int(end - low), int(stop - start))
            index = (classes * shape[1] + groups[a] - low) * shape[2] + groups[b] - start
            counts = np.bincount(index, minlength=math.prod(shape)).reshape(shape)
            excess[:, parts[a], parts[b]] += counts
            excess[:, parts[b], parts[a]] += counts.transpose(0, 2, 1)
        cells = np.stack(groups, axis=1)
        free = sorted(set(range(len(rows.leaves))) - set(rows.coupled()))
        return cls(codes, rows.others, source, classes, cells, excess, free, has_enough, *_parities(rows, codes))

    def sweep(self, sweeps: int, random: np.random.Generator) -> None:
        """Exchanges values of every column in turn, so many times."""
        for _ in range(sweeps):
            for place in self.free:
                first, second = self._partners(place, random)
                parts = max(1, min(_BATCHES, len(first) // _LEAST_BATCH))
                for i in range(parts):
                    self._exchange(place, first[i::parts], second[i::parts])

    def _partners(
        self, place: int, random: np.random.Generator
    ) -> tuple[Int64[np.ndarray, "pairs"], Int64[np.ndarray, "pairs"]]:
        """Pairs of rows of the same relaxed row that have different values of a column. Each row is in one pair."""
        order = random.permutation(len(self.source))
        source = self.source.astype(np.min_scalar_type(int(self.source.max(initial=0))))  # short numbers sort faster
        order = order[np.argsort(source[order], kind="stable")]
        start = int(random.integers(2))
        size = (len(order) - start) // 2
        first, second = order[start : start + 2 * size : 2], order[start + 1 : start + 2 * size : 2]
        same_row = self.source[first] == self.source[second]
        useful = same_row & self.has_enough[first] & (self.groups[first, place] != self.groups[second, place])
        shuffled = random.permutation(np.flatnonzero(useful))
        return first[shuffled], second[shuffled]

    def _exchange(self, place: int, first: Int64[np.ndarray, "pairs"], second: Int64[np.ndarray, "pairs"]) -> None:
        """Exchanges the values of pairs of rows where this lowers the sum of the squared excess counts."""
        size = self.excess.shape[-1]
        flat = self.excess.reshape(-1)
        ours, theirs = self.groups.take(first, 0), self.groups.take(second, 0)
        start = (self.classes[first] * size)[:, None]
        old, new = start + ours[:, place, None], start + theirs[:, place, None]  # rows of the excess counts
        from_old, from_new = old * size, new * size
        change = flat.take(from_new + ours) - flat.take(from_old + ours)
        change += flat.take(from_old + theirs) - flat.take(from_new + theirs) + 2
        change[ours == theirs] = 0
        change[:, place] = 0
        change = change.sum(1)
        steps = self._parity_steps(place, first, second)  # [P, pairs]
        better = change < 0
        if len(steps):
            # A parity is a table of eight cells, each of which has an eighth of what is missing.
            better = change + (np.square(steps) - 2 * self.missing[:, None] * steps).sum(0) / 16 < 0
        for step, missing in zip(steps, self.missing, strict=True):
            # Exchanges at the same time must not add up to more than is missing.
            taken = np.cumsum(np.where(better, step, 0)) * np.sign(missing)
            better &= (taken <= max(abs(missing), _LEAST_STEP)) | (change < 0) | (step * missing <= 0)
        better = np.flatnonzero(better)
        if not len(better):
            return
        others = [a for a in range(self.groups.shape[1]) if a != place]
        start, old, new, ours, theirs = (of_pairs[better] for of_pairs in (start, old, new, ours, theirs))
        ours, theirs = ours.take(others, 1), theirs.take(others, 1)
        for cells, step in (((old, theirs), (new, ours)), 1.0), (((old, ours), (new, theirs)), -1.0):
            for row, column in cells:
                np.add.at(flat, (row * size + column).reshape(-1), step)
                np.add.at(flat, ((start + column) * size + row - start).reshape(-1), step)
        self.missing[:] -= steps[:, better].sum(1)
        first, second, column = first[better], second[better], self.columns[place]
        for values, j in ((self.groups, place), (self.signs, place), (self.codes, column)):
            values[first, j], values[second, j] = values[second, j], values[first, j]

    def _parity_steps(
        self, place: int, first: Int64[np.ndarray, "pairs"], second: Int64[np.ndarray, "pairs"]
    ) -> Int64[np.ndarray, "P pairs"]:
        """How much the sums of the products of three signs grow if two rows exchange the value of a column."""
        steps = np.zeros((len(self.triples), len(first)), np.int64)
        for step, triple in zip(steps, self.triples.tolist(), strict=True):
            if place in triple:
                others = [a for a in triple if a != place]
                product = self.signs[first][:, others].prod(1) - self.signs[second][:, others].prod(1)
                step[:] = (self.signs[second, place] - self.signs[first, place]) * product
        return steps


def _parities(
    rows: RelaxedRows, codes: Int64[np.ndarray, "n d"]
) -> tuple[Int64[np.ndarray, "P 3"], Int64[np.ndarray, "n columns"], Float64[np.ndarray, "P"]]:
    """The fields ``triples``, ``signs`` and ``missing`` of an exchange."""
    signs = np.ones((len(codes), len(rows.leaves)), np.int64)
    if rows.parities is None:
        return np.zeros((0, 3), np.int64), signs, np.zeros(0)
    for a, j in enumerate(rows.others):
        leaf = np.searchsorted(rows.leaves[a].first, codes[:, j], side="right") - 1
        signs[:, a] = rows.parities.signs[rows.offsets[a] + rows.leaves[a].bins[leaf]]
    triples = rows.parities.triples
    return triples, signs, len(codes) * rows.parities.means - signs[:, triples].prod(2).sum(0)


def _groups(
    rows: RelaxedRows, a: int, codes: Int64[np.ndarray, "n"], most: int
) -> tuple[Int64[np.ndarray, "n"], Float64[np.ndarray, "classes K groups"]]:
    """The group of each code of a column, [n], and the probability of each group in each relaxed row, [T, K, G].

    Leaves are merged to groups of about equal shares.

    Args:
      rows: the distribution.
      a: place of the column among all except ``split``.
      codes: of the column.
      most: the largest number of groups.
    """
    leaves, parts = rows.leaves[a], np.asarray(rows.probabilities[..., slice(*rows.offsets[a : a + 2])], np.float64)
    densities = parts[..., leaves.bins] * leaves.shares[:, None]
    densities /= np.maximum(densities.sum(-1, keepdims=True), np.finfo(float).tiny)
    of_leaves = np.arange(len(leaves.first))
    if len(of_leaves) > most:
        shares = np.einsum("tk,tkl->l", rows.weights, densities)
        before = np.cumsum(shares) - shares
        _, of_leaves = np.unique(np.floor(before / max(shares.sum(), 1e-300) * most), return_inverse=True)
    starts = np.flatnonzero(np.diff(of_leaves, prepend=-1))
    place = np.searchsorted(leaves.first, codes, side="right") - 1
    return of_leaves[place], np.add.reduceat(densities, starts, axis=-1)
