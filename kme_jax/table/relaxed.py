"""Relaxed rows: a distribution of rows, whose entries are probability distributions of values, not values."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64, Real
from scipy.special import ndtr

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.table.rare_categories import RareCategories

# Threads that draw columns at the same time, rows of all of them, and numbers that each of them keeps.
_MOST_THREADS, _MOST_ROWS, _MOST_DENSITIES = 8, 1 << 22, 1 << 22
_MOST_RAKES, _RAKED, _LARGEST_RATIO = 200, 1e-5, 1e6  # of marginals: rounds, and the total variation that remains


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
    """The ranges of codes that the bins of a column consist of, in order.

    Attributes:
      first: the first code of each range, int64 [L].
      last: the code after the last code of each range, int64 [L].
      bins: the bin of each range, int64 [L].
      shares: the share of each range in its bin, for every class, [T, L]. Codes of one range are equally likely.
    """

    first: Int64[np.ndarray, "leaves"]
    last: Int64[np.ndarray, "leaves"]
    bins: Int64[np.ndarray, "leaves"]
    shares: Float[np.ndarray, "classes leaves"]

    def validate(self) -> None:
        """Refuses invalid fields of leaves that were read from a file.

        Raises:
          ValueError: shapes differ, a range has no codes, or a share is negative.
        """
        check_array(self.first, "first", "i", (None,))
        for name in ("last", "bins"):
            check_array(getattr(self, name), name, "i", self.first.shape)
        check_array(self.shares, "shares", "f", (None, len(self.first)))
        require(bool((self.first >= 0).all() and (self.first < self.last).all()), "a range has no codes")
        require(bool((self.bins >= 0).all() and (self.shares >= 0).all()), "a bin or a share is negative")

    def within(self, ranges: Sequence[tuple[int, int]]) -> Leaves:
        """The intersection of the leaves with disjoint ranges of codes [first, last). Shares may sum to less than 1."""
        pieces = [Leaves(self.first[:0], self.last[:0], self.bins[:0], self.shares[:, :0])]
        for low, high in ranges:
            first, last = np.maximum(self.first, low), np.minimum(self.last, high)
            overlaps = last > first
            share = self.shares[:, overlaps] * ((last - first)[overlaps] / (self.last - self.first)[overlaps])
            pieces.append(Leaves(first[overlaps], last[overlaps], self.bins[overlaps], share))
        joined = (np.concatenate([getattr(p, n) for p in pieces], axis=-1) for n in ("first", "last", "bins", "shares"))
        return Leaves(*joined)

    def masses(self, num_bins: int) -> Real[np.ndarray, "classes bins"]:
        """The sum of the shares of every class and bin, [T, num_bins]."""
        return np.stack([np.bincount(self.bins, shares, num_bins) for shares in self.shares])


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Parities:
    """Mean products of the signs of three columns, which balanced samples have, see ``kme_jax.table.balance``.

    Attributes:
      triples: the places of three columns each among all columns except the one of the classes, int64 [n, 3].
      signs: −1 or 1 for each bin, [D].
      means: the mean product of the three signs, [n].
    """

    triples: Int64[np.ndarray, "triples 3"]
    signs: Float[np.ndarray, "bins"]
    means: Float[np.ndarray, "triples"]

    def check(self, num_bins: int, num_columns: int) -> None:
        """Refuses parities that were read from a file.

        Raises:
          ValueError: shapes or values are invalid.
        """
        check_array(self.triples, "triples", "i", (None, 3))
        check_array(self.signs, "signs", "f", (num_bins,))
        check_array(self.means, "means", "f", (len(self.triples),))
        distinct = all(len(set(triple)) == 3 for triple in self.triples.tolist())
        valid = bool(((self.triples >= 0) & (self.triples < num_columns)).all())
        require(valid and distinct, "triples: there are no such columns")
        of_signs = bool((np.abs(self.signs) == 1).all() and (np.abs(self.means) <= 1).all())
        require(of_signs, "a sign or a mean is invalid")


@storable(added_fields=("dependence", "parities", "rare"))
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedRows:
    """A distribution of rows: a mixture of products of distributions of the columns. Public.

    With ``dependence``, the columns of each relaxed row are coupled by a Gaussian copula instead of being independent.

    Attributes:
      weights: of the relaxed rows, [T, K], with Σ = 1. The T classes are the values of the column ``split``.
      probabilities: of the bins of every column except ``split``, float32 [T, K, D].
      offsets: the first bin of each of these columns, followed by D.
      leaves: the ranges of codes of each of these columns.
      split: index of the column whose values are the classes, or −1 for a single class.
      dependence: correlations of the normal variables whose ranks decide the values of the columns except ``split``
        within each relaxed row, [C, C]; None if columns are independent there.
      parities: what balanced samples have beside the pairs of the distribution; None if there is nothing.
      rare: models of the rare categories of some columns, which samples follow.
    """

    weights: Float[np.ndarray, "classes K"]
    probabilities: Float[np.ndarray, "classes K bins"]
    offsets: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    leaves: tuple[Leaves, ...]
    split: int = dataclasses.field(metadata={"static": True})
    dependence: Float[np.ndarray, "columns columns"] | None = None
    parities: Parities | None = None
    rare: tuple[RareCategories, ...] = ()

    def validate(self) -> None:
        """Refuses invalid fields of relaxed rows that were read from a file.

        Raises:
          ValueError: shapes differ, or weights or probabilities are invalid.
        """
        check_array(self.weights, "weights", "f", (None, None))
        check_array(self.probabilities, "probabilities", "f", (*self.weights.shape, None))
        ends = self.probabilities.shape[2]
        increasing = all(i < j for i, j in itertools.pairwise(self.offsets))
        valid = len(self.offsets) == len(self.leaves) + 1 and self.offsets[0] == 0 and self.offsets[-1] == ends
        require(bool(self.leaves) and increasing and valid, "offsets: expected the bins of every column")
        require(-1 <= self.split < self.dim, "split: there is no such column")
        sizes = [j - i for i, j in itertools.pairwise(self.offsets)]
        for leaves, size in zip(self.leaves, sizes, strict=True):
            require(len(leaves.shares) == len(self.weights), "leaves: expected shares for every class")
            require(int(leaves.bins.max()) < size, "leaves: there is no such bin")
        nonnegative = bool((self.weights >= 0).all() and (self.probabilities >= 0).all())
        require(nonnegative and abs(float(self.weights.sum()) - 1) < 1e-6, "weights or probabilities are invalid")
        if self.dependence is not None:
            check_array(self.dependence, "dependence", "f", (len(self.leaves),) * 2)
            symmetric = np.allclose(self.dependence, self.dependence.T) and np.allclose(np.diag(self.dependence), 1)
            require(symmetric and bool((np.linalg.eigvalsh(self.dependence) > -1e-6).all()), "dependence is invalid")
        if self.parities is not None:
            self.parities.check(ends, len(self.leaves))
        modelled = [(rare.place, code) for rare in self.rare for code in rare.codes.tolist()]
        require(len(set(modelled)) == len(modelled), "a category has two models")
        for rare in self.rare:
            rare.check(len(self.weights), sizes)
            leaves = self.leaves[rare.place]
            places = np.minimum(np.searchsorted(leaves.first, rare.codes), len(leaves.first) - 1)
            require(np.array_equal(leaves.first[places], rare.codes), "codes: the column has no such categories")
            require(len(np.unique(leaves.bins[places])) == 1, "codes: rare categories are in several bins")

    def check_codes(self, num_codes: Sequence[int]) -> None:
        """Refuses relaxed rows that do not fit columns with these numbers of codes.

        Raises:
          ValueError: the number of columns differs, or there are classes or codes that a column does not have.
        """
        require(len(num_codes) == self.dim, "the rows have another number of columns")
        require(self.split < 0 or len(self.weights) == num_codes[self.split], "the rows have other classes")
        require(
            self.split >= 0 or len(self.weights) == 1,
            "the rows have several classes, and no column whose values they are",
        )
        for j, leaves in zip(self.others, self.leaves, strict=True):
            require(int(leaves.last.max()) <= num_codes[j], "the rows have codes that a column does not have")

    def raked(self, masses: Sequence[Float[np.ndarray, "classes _"]]) -> RelaxedRows:
        """The distribution with these marginals of single columns that is closest to this one in relative entropy.

        It is found by iterative proportional fitting (Csiszár 1975): the probability of every row is multiplied by the
        ratio of both marginals at its value of a column, for one column after the other, again and again. A mixture of
        products stays one: the probabilities of a column change within each relaxed row, and so do the weights. The
        weights of the classes stay.

        Args:
          masses: for each column except ``split``, the shares of every class and bin, [T, B].
        """
        weights, probabilities = raked(self.weights, self.probabilities, self.offsets, masses)
        return dataclasses.replace(self, weights=weights, probabilities=probabilities.astype(np.float32))

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.leaves) + (self.split >= 0)

    @property
    def others(self) -> list[int]:
        """Indices of all columns except ``split``."""
        return [j for j in range(self.dim) if j != self.split]

    def bins_of(self, codes: Int64[np.ndarray, "n d"]) -> Int64[np.ndarray, "n d"]:
        """The bin of each code of rows, [n, d]. A bin of the column ``split`` is one of its codes."""
        bins = np.array(codes)
        for leaves, j in zip(self.leaves, self.others, strict=True):
            bins[:, j] = leaves.bins[np.searchsorted(leaves.first, codes[:, j], side="right") - 1]
        return bins

    def sample(self, num_rows: int, seed: int) -> Int64[np.ndarray, "n d"]:
        """Category codes of rows, int64 [num_rows, d], in random order.

        The number of rows of each relaxed row is in proportion to its weight. Within a relaxed row the number of rows
        of each bin of a column is in proportion to its probability. Within a class and a bin, the number of rows of
        each cell is in proportion to its share. Numbers are rounded at random. The values of different columns are
        combined at random, or by ranks of correlated normal variables.
        """
        return self.with_rare(self.sample_with_source(num_rows, seed)[0], seed)

    def sample_with_source(self, num_rows: int, seed: int) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        """:meth:`sample` before :meth:`with_rare`, and the index of the relaxed row of each row among all classes,
        [num_rows]."""
        return self._sample(num_rows, self.weights.reshape(-1), seed)

    def weighted_sample(self, num_rows: int, seed: int) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"]]:
        """Category codes of rows, int64 [num_rows, d], and weights of the rows, [num_rows], with Σ = 1.

        The number of rows of each relaxed row is in proportion to the square root of its weight. So a small sample
        shows more of what is rare.
        """
        weights = self.weights.reshape(-1)
        codes, source = self._sample(num_rows, np.sqrt(weights), seed)
        row_weights = np.sqrt(weights)[source]
        return self.with_rare(codes, seed, keeps_counts=False), row_weights / row_weights.sum()

    def with_rare(
        self, codes: Int64[np.ndarray, "n d"], seed: int, *, keeps_counts: bool = True
    ) -> Int64[np.ndarray, "n d"]:
        """Codes of rows whose rare categories follow their models, see ``RareCategories.drawn``.

        Args:
          codes: of rows, [n, d].
          seed: of the rare categories.
          keeps_counts: whether every category keeps its number of rows in each class.
        """
        if not self.rare:
            return codes
        random, codes = np.random.default_rng([seed, 2]), np.array(codes)
        groups = [self.groups_of(rare, codes) for rare in self.rare]
        for rare, of_rows in zip(self.rare, groups, strict=True):
            column = self.others[rare.place]
            codes[:, column] = rare.drawn(codes[:, column], of_rows, random, keeps_counts=keeps_counts)
        return codes

    def groups_of(self, rare: RareCategories, codes: Int64[np.ndarray, "n d"]) -> Int64[np.ndarray, "n parents"]:
        """The class of each row, and its bins in the parents of a column with rare categories."""
        bins = self.bins_of(codes)
        classes = codes[:, self.split] if self.split >= 0 else np.zeros(len(codes), np.int64)
        return np.stack([classes, *(bins[:, self.others[parent]] for parent in rare.parents)], axis=1)

    def _sample(
        self, num_rows: int, often: Float[np.ndarray, "rows"], seed: int
    ) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        random = np.random.default_rng(seed)
        each = systematic(random, often, num_rows)
        source = np.repeat(np.arange(len(each)), each)
        coupled = {a: Coupled(normal) for a, normal in self._normal(random, num_rows).items()}
        codes, order = self.codes_of(random, source, coupled)
        return codes, source[order]

    def codes_of(
        self, random: np.random.Generator, source: Int64[np.ndarray, "n"], coupled: Mapping[int, Coupled]
    ) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        """Category codes of rows, int64 [n, d], in random order.

        Args:
          random: the source of randomness.
          source: the index of the relaxed row of each row, increasing, [n].
          coupled: by index of a column among all except ``split``, where its values are to be.

        Returns:
          The codes, and the order of the rows: row i is of the relaxed row source[order[i]].
        """
        num_rows = len(source)
        each = np.bincount(source, minlength=self.weights.size)
        within = (np.arange(num_rows) - np.repeat(np.cumsum(each) - each, each), each[source])
        codes = np.empty((num_rows, self.dim), np.int64)
        if self.split >= 0:
            codes[:, self.split] = source // self.weights.shape[1]

        def draw(a: int, j: int, random: np.random.Generator) -> None:
            codes[:, j] = self._codes_of_column(random, a, source, within, coupled.get(a))

        # Each column has a source of randomness of its own, so the result is the same for any number of threads.
        with concurrent.futures.ThreadPoolExecutor(num_threads(num_rows)) as pool:
            list(pool.map(draw, range(len(self.leaves)), self.others, random.spawn(len(self.leaves))))
        order = random.permutation(num_rows)
        return codes[order], order

    def _codes_of_column(
        self,
        random: np.random.Generator,
        a: int,
        source: Int64[np.ndarray, "n"],
        within: tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]],
        given: Coupled | None,
    ) -> Int64[np.ndarray, "n"]:
        """Codes of the column at place a among all except ``split``, see :meth:`codes_of`.

        Args:
          random, source: see :meth:`codes_of`.
          a: place of the column.
          within: the number of each row within its relaxed row, from 0, and the number of rows of the relaxed row.
          given: where the values are to be, or None.
        """
        (numbers, counts), leaves, (i, k) = within, self.leaves[a], self.offsets[a : a + 2]
        if given is None or given.first is None:
            # Ranks of random numbers within each relaxed row: strata in random order.
            quantiles = np.empty(len(source))
            order = random.random(len(source)) if given is None else ndtr(given.place)
            quantiles[_by_group(source, order)] = numbers
            quantiles = (quantiles + random.random(len(source))) / counts
        else:
            quantiles = given.place
        probabilities = self.probabilities[..., i:k].reshape(-1, k - i)
        leaf, place = _choose(quantiles, source, probabilities, leaves, self.weights.shape[1])
        if given is None or given.first is None:
            leaf, place = _spread(random, leaf, place, source // self.weights.shape[1], leaves)
        first, last = leaves.first[leaf], leaves.last[leaf]
        if given is None:
            return random.integers(first, last)
        chosen = first + np.floor(place * (last - first)).astype(np.int64).clip(0, last - first - 1)
        if given.first is not None and given.last is not None:  # a quantile is rounded, its range is not
            chosen = np.clip(chosen, given.first, given.last - 1)
        return chosen

    def coupled(self) -> list[int]:
        """Indices, among all columns except ``split``, of the columns that depend on another within relaxed rows."""
        if self.dependence is None:
            return []
        return np.flatnonzero((self.dependence != np.eye(len(self.dependence))).any(1)).tolist()

    def _normal(self, random: np.random.Generator, num_rows: int) -> dict[int, Float[np.ndarray, "n"]]:
        """Correlated normal numbers [num_rows] for each column that depends on another within relaxed rows."""
        linked = self.coupled()
        if self.dependence is None or not linked:
            return {}
        values, vectors = np.linalg.eigh(self.dependence[np.ix_(linked, linked)])
        factor = vectors * np.sqrt(np.maximum(values, 0))
        columns = factor @ random.standard_normal((len(linked), num_rows))
        return dict(zip(linked, columns, strict=True))


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Coupled:
    """Where the values of one column of rows are to be, within the relaxed row of each row.

    Attributes:
      place: numbers whose ranks decide the values. With ``first`` and ``last``, the quantiles of the values, [n].
      first: the first code of the range that the value of each row is in, [n], or None if values have no ranges.
      last: the code after the last code of this range, [n], or None.
    """

    place: Float[np.ndarray, "n"]
    first: Int64[np.ndarray, "n"] | None = None
    last: Int64[np.ndarray, "n"] | None = None


def raked(
    weights: Float[np.ndarray, "classes K"],
    probabilities: Float[np.ndarray, "classes K bins"],
    offsets: Sequence[int],
    masses: Sequence[Float[np.ndarray, "classes _"]],
) -> tuple[Float64[np.ndarray, "classes K"], Float64[np.ndarray, "classes K bins"]]:
    """Weights and probabilities of relaxed rows with these marginals, see :meth:`RelaxedRows.raked`.

    Args:
      weights, probabilities, offsets: as in :class:`RelaxedRows`.
      masses: see :meth:`RelaxedRows.raked`.
    """
    of_classes = weights.sum(1)
    parts = [np.array(probabilities[..., i:k], np.float64) for i, k in itertools.pairwise(offsets)]
    for _ in range(_MOST_RAKES):
        furthest = 0.0
        for a, target in enumerate(masses):
            target = target * (of_classes / np.maximum(target.sum(1), 1e-300))[:, None]
            marginal = np.einsum("tk,tkb->tb", weights, parts[a])
            furthest = max(furthest, float(np.abs(marginal - target).sum()) / 2)
            part = parts[a] * np.minimum(target / np.maximum(marginal, 1e-300), _LARGEST_RATIO)[:, None]
            of_rows = part.sum(-1)
            parts[a] = np.where(of_rows[..., None] > 0, part / np.maximum(of_rows, 1e-300)[..., None], parts[a])
            scaled = weights * of_rows
            sums = scaled.sum(1)[:, None]  # 0 for a class whose rows have none of the values that they should have
            weights = np.where(sums > 0, scaled * (of_classes[:, None] / np.maximum(sums, 1e-300)), weights)
        if furthest < _RAKED:
            break
    return weights, np.concatenate(parts, axis=-1)


def num_threads(num_rows: int) -> int:
    """The number of threads that draw columns: up to eight, one for each core, and fewer for millions of rows.

    Each of them needs about 120 bytes for a row.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores, _MOST_ROWS // max(num_rows, 1)))


def systematic(random: np.random.Generator, weights: Float[np.ndarray, "n"], num_rows: int) -> Int64[np.ndarray, "n"]:
    """Counts with sum num_rows, in proportion to weights up to rounding, by systematic sampling: int64, as weights."""
    edges = np.cumsum(weights) * (num_rows / weights.sum())
    edges[-1] = num_rows
    return np.diff(np.floor(edges + random.random()), prepend=0).astype(np.int64)


def _by_group(groups: Int64[np.ndarray, "n"], places: Float[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """The order of rows by group, and by place within each group, [n].

    Args:
      groups: numbers from 0.
      places: between 0 and 1. Differences below 1e-9 may not count.
    """
    return np.argsort(groups + np.clip(places, 0, 1 - 1e-9))  # one key sorts several times faster than two


def _choose(
    quantiles: Float[np.ndarray, "n"],
    source: Int64[np.ndarray, "n"],
    probabilities: Float[np.ndarray, "rows bins"],
    leaves: Leaves,
    each: int,
) -> tuple[Int64[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The leaf at each quantile of its relaxed row, and the place within the leaf.

    Args:
      quantiles: in [0, 1), [n].
      source: the index of the relaxed row of each quantile, increasing, [n].
      probabilities: of the bins, for each relaxed row of each class, [T K, B].
      leaves: of the column.
      each: K, the number of relaxed rows of a class.

    Returns:
      Indices of leaves, int64 [n], and places between 0, the start of the leaf, and 1, its end, [n].
    """
    chosen, places = np.empty(len(quantiles), np.int64), np.empty(len(quantiles))
    step = max(1, _MOST_DENSITIES // max(1, len(leaves.first)))
    for start in range(0, len(probabilities), step):
        rows = np.arange(start, min(start + step, len(probabilities)))
        densities = np.asarray(probabilities[rows], np.float64)[:, leaves.bins] * leaves.shares[rows // each]
        edges = np.cumsum(densities, axis=1)
        edges /= np.maximum(edges[:, -1:], np.finfo(float).tiny)
        first, last = np.searchsorted(source, [rows[0], rows[-1] + 1])
        row, inside = source[first:last] - start, slice(first, last)
        place = np.searchsorted((edges + np.arange(len(rows))[:, None]).reshape(-1), row + quantiles[inside], "right")
        leaf = np.clip(place - row * edges.shape[1], 0, edges.shape[1] - 1)
        low, high = np.where(leaf > 0, edges[row, leaf - 1], 0), edges[row, leaf]
        chosen[inside] = leaf
        places[inside] = ((quantiles[inside] - low) / np.maximum(high - low, np.finfo(float).tiny)).clip(0, 1)
    return chosen, places


def _spread(
    random: np.random.Generator,
    leaf: Int64[np.ndarray, "n"],
    place: Float[np.ndarray, "n"],
    classes: Int64[np.ndarray, "n"],
    leaves: Leaves,
) -> tuple[Int64[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Leaves and places of rows, of which those of a class and a bin are spread evenly over the cells of the bin.

    Rows keep their classes and bins, and their order within these. A relaxed row has few rows, and a column may have
    many cells. So if each relaxed row drew its cells by itself, their counts would have nearly the error of drawing all
    rows independently. All relaxed rows of a class have the same shares of cells within a bin.

    Args:
      random: the source of randomness.
      leaf, place: see ``_choose``, [n].
      classes: the class of each row, [n].
      leaves: of the column.
    """
    num_bins = int(leaves.bins.max()) + 1
    order = np.argsort(leaves.bins, kind="stable")  # the leaves of each bin, one after the other
    firsts = np.searchsorted(leaves.bins[order], np.arange(num_bins + 1))
    rank_of_leaf = np.empty(len(order), np.int64)
    rank_of_leaf[order] = np.arange(len(order))
    edges = np.concatenate([np.zeros((len(leaves.shares), 1)), np.cumsum(leaves.shares[:, order], axis=1)], axis=1)
    bins, ranks = leaves.bins[leaf], rank_of_leaf[leaf]
    within = edges[classes, ranks] + place * (edges[classes, ranks + 1] - edges[classes, ranks])
    low, high = edges[classes, firsts[bins]], edges[classes, firsts[bins + 1]]
    groups = classes * num_bins + bins
    by_place = _by_group(groups, (within - low) / np.maximum(high - low, np.finfo(float).tiny))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    quantiles = np.empty(len(leaf))
    quantiles[by_place] = np.arange(len(leaf)) - starts[groups[by_place]]
    quantiles = (quantiles + random.random(len(leaf))) / counts[groups]
    targets = low + quantiles * (high - low)
    for t in np.unique(classes):
        of_class = classes == t
        ranks[of_class] = np.searchsorted(edges[t, 1:], targets[of_class], "right")
    ranks = np.clip(ranks, firsts[bins], firsts[bins + 1] - 1)
    start, end = edges[classes, ranks], edges[classes, ranks + 1]
    empty = end <= start  # no row lies there, up to rounding
    places = ((targets - start) / np.where(empty, 1.0, end - start)).clip(0, 1)
    return np.where(empty, leaf, order[ranks]), np.where(empty, place, places)
