"""Features of rows of a table: products of one-hot features of a few columns each, and moments of ordered columns.

Means of the first are marginals. A *marginal* is a table of counts: how many rows have each combination of values of a
few columns. A *category code* is the index of a value of a column. A *binning* says how the codes of a column are
grouped into cells.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap, RunningSum, are_codes
from kme_jax.feature_maps.counting import CHUNK_ROWS, Axis, MarginalCounter, RunningCounts, smallest_kind
from kme_jax.kernels import Kernel

MAX_CELLS = 1024
_KNOT_CELLS = 4  # With knots there are so many times fewer cells. They are where they are needed.
COUNT_WEIGHT = 1 << 20
"""ω of a block that is measured by itself. Integer noise is then so fine that it is like continuous noise."""
LEVELS = (1 << 16) - 1
"""The level of a row that counts in full. Rows with weights have levels from 0 to this one, see ``TableIntegers``."""
_FEW_CODES = 1 << 14  # of a column, for which cells and integers are computed once for each code
_MOST_EXACT = 1 << 53  # sums of whole numbers up to here are exact in float64


@storable(former_name="Grid", added_fields=("knots", "max_cells"))
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Binning:
    """How a column is cut: the cells in which its category codes 0, ..., num_codes − 1 are counted.

    Each cell has ``width`` neighbouring codes. With knots, cells have different widths: about the same number of cells
    lies between each knot and the next. If the last code stands for a missing value, it has a cell of its own.

    Attributes:
      num_codes: number of codes of the column, the code for a missing value included.
      ordered: whether neighbouring codes stand for neighbouring values.
      missing: whether the last code stands for a missing value.
      width: number of codes in a cell; 1 if there are knots.
      knots: codes between the first and the last code, increasing.
      max_cells: the largest number of cells for values if there are knots, otherwise 0.
    """

    num_codes: int = dataclasses.field(metadata={"static": True})
    ordered: bool = dataclasses.field(metadata={"static": True})
    missing: bool = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})
    knots: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    max_cells: int = dataclasses.field(default=0, metadata={"static": True})

    def validate(self) -> None:
        """Checks the fields of a binning that was read from a file.

        Raises:
          ValueError: if the binning has no values, or its cells have no codes or more codes than the column.
        """
        require(
            1 + self.missing <= self.num_codes < 2**53 and 1 <= self.width <= self.num_codes,
            "a binning has no values, or the width of its cells is invalid",
        )
        if not self.knots:
            require(self.max_cells == 0, "a binning without knots has a number of cells")
            return
        increasing = all(
            low < high for low, high in itertools.pairwise((0, *self.knots, self.num_codes - self.missing))
        )
        valid = self.ordered and self.width == 1 and len(self.knots) < self.max_cells <= MAX_CELLS
        require(increasing and valid, "knots: expected increasing codes of an ordered column")

    @classmethod
    def create(
        cls, num_codes: int, *, ordered: bool, missing: bool, max_cells: int = MAX_CELLS, knots: tuple[int, ...] = ()
    ) -> Binning:
        """At most ``max_cells`` of equal width for an ordered column, or a quarter as many if there are knots; one cell
        for each code of any other column."""
        if knots:
            return cls(num_codes, ordered, missing, 1, knots, max_cells // _KNOT_CELLS)
        width = -(-(num_codes - missing) // max_cells) if ordered else 1
        return cls(num_codes, ordered, missing, width)

    def with_cells(self, max_cells: int) -> Binning:
        """The binning of the same column with at most so many cells for values, if it is ordered."""
        return Binning.create(
            self.num_codes, ordered=self.ordered, missing=self.missing, max_cells=max_cells, knots=self.knots
        )

    @functools.cached_property
    def _edges(self) -> Int64[np.ndarray, "cells"]:
        """The first code of every cell for values, if there are knots."""
        ends = (0, *self.knots, self.num_codes - self.missing)
        sizes, room = np.diff(np.asarray(ends, np.int64)), self.max_cells
        parts = np.zeros(len(sizes), np.int64)
        order = np.argsort(sizes, kind="stable")
        for left, place in zip(range(len(sizes), 0, -1), order, strict=True):  # short intervals leave room to others
            parts[place] = min(int(sizes[place]), room // left)
            room -= int(parts[place])
        # Of an interval of L codes and n cells, cell i starts at the code ⌈i L / n⌉, as Python's exact integers say.
        starts = [
            low + -(-i * int(size) // int(part))
            for low, size, part in zip(ends[:-1], sizes, parts, strict=True)
            for i in range(int(part))
        ]
        return np.asarray(starts, np.int64)

    @functools.cached_property
    def _cells_of_codes(self) -> Int64[np.ndarray, "codes"]:
        return self._found(np.arange(self.num_codes))

    def _found(self, codes: Int[np.ndarray, "*n"]) -> Int64[np.ndarray, "*n"]:
        """The last edge that is not above each code. All codes are compared at once, several times as fast as
        ``np.searchsorted``, which follows another path for each."""
        step = 1 << (len(self._edges) - 1).bit_length()
        edges = np.concatenate([self._edges[1:], np.full(step - len(self._edges) + 1, np.iinfo(np.int64).max)])
        found = np.zeros(codes.shape, np.int64)
        while step := step // 2:
            found += (np.take(edges, found + (step - 1)) <= codes) * step
        return found

    @property
    def num_values(self) -> int:
        """Number of cells for values: all cells but the one for a missing value."""
        return len(self._edges) if self.knots else -(-(self.num_codes - self.missing) // self.width)

    @property
    def num_cells(self) -> int:
        """Number of all cells."""
        return self.num_values + self.missing

    def cells(self, codes: Int[AnyArray, "*n"]) -> Int[AnyArray, "*n"]:
        """The index of the cell of each code: an array of the same shape and kind as ``codes``."""
        if self.width == 1 and not self.knots:
            return codes
        numpy = jnp if isinstance(codes, jax.Array) else np
        if not self.knots:
            cells = codes // self.width
        elif isinstance(codes, jax.Array):
            edges = jnp.asarray(self._edges, codes.dtype)
            cells = (jnp.searchsorted(edges, codes, side="right") - 1).astype(codes.dtype)
        elif self.num_codes <= _FEW_CODES:
            cells = np.take(self._cells_of_codes, codes).astype(codes.dtype)
        else:
            cells = self._found(codes).astype(codes.dtype, copy=False)
        if not self.missing:
            return cells
        return numpy.where(codes == self.num_codes - 1, self.num_values, cells)

    def first_codes(self) -> Int64[np.ndarray, "ends"]:
        """The first code of every cell, followed by the number of codes: int64 [num_cells + 1]."""
        last = self.num_codes - self.missing
        if self.knots:
            first = np.append(self._edges, last)
        else:
            first = np.minimum(np.arange(self.num_values + 1, dtype=np.int64) * self.width, last)
        return np.append(first, self.num_codes) if self.missing else first


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The features of one marginal: the product of the one-hot features of its columns.

    Attributes:
      columns: indices of the columns.
      bins: for each of these columns, the bin of every cell of its binning, int64 [num_cells]. Bins are numbered 0, 1,
        and so on. A block of one column may also have −1, for cells whose rows it does not count.
      weight: ω of the block, a positive integer. The noise of its counts is inversely proportional to ω.
      zoom: 0, or, for a block of one column, the number of parts of equally many codes that each of its bins is cut
        into. Each bin is then a single cell of the binning.
    """

    columns: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    bins: tuple[Int[np.ndarray, "_"], ...]
    weight: int = dataclasses.field(default=1, metadata={"static": True})
    zoom: int = dataclasses.field(default=0, metadata={"static": True})

    def validate(self) -> None:
        """Checks the fields of a block that was read from a file.

        Raises:
          ValueError: if a field is invalid, or fields contradict each other.
        """
        unique_columns = 0 < len(self.columns) == len(set(self.columns)) == len(self.bins)
        require(unique_columns, "a block has no columns, or one of them twice")
        least = -1 if len(self.columns) == 1 else 0
        for bins in self.bins:
            check_array(bins, "bins", "i", (None,))
            require(least <= bins.min() and 0 <= bins.max() < len(bins), "bins: a number is not the number of a bin")
        require(1 <= self.weight < 2**40, "the weight of a block is not positive, or too large")
        require(
            0 <= self.zoom <= 2**20 * (len(self.columns) == 1), "only a block of one column may cut its bins into parts"
        )

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of bins of every column, and the number of parts of a bin if there are any."""
        sizes = tuple(int(np.max(bins, initial=-1)) + 1 for bins in self.bins)
        return (*sizes, self.zoom) if self.zoom else sizes

    @property
    def size(self) -> int:
        """Number of cells of the marginal."""
        return math.prod(self.shape)

    def equals(self, other: Block) -> bool:
        """Whether two blocks have the same fields."""
        equal = (self.columns, self.weight, self.zoom) == (other.columns, other.weight, other.zoom)
        return equal and all(map(np.array_equal, self.bins, other.bins))

    @functools.cached_property
    def has_uncounted(self) -> bool:
        """Whether the block may not count some rows. It depends on the fields alone."""
        return self.zoom > 0 or int(np.min(self.bins[0])) < 0


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Moment:
    """Moments of the scores of one or two ordered columns.

    The score of a code c is u = 2 (clip(c, low, high) − low) / (high − low) − 1, from −1 to 1. The score of the code
    for a missing value is 0. The features of one column are ω u and ω u². The feature of two columns is ω u u′, where
    u′ is the score of the second column.

    Attributes:
      columns: the index of one column, or of two.
      low: for each of these columns, the code of score −1.
      high: for each of these columns, the code of score 1.
      weight: ω, a positive integer.
    """

    columns: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    low: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    high: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    weight: int = dataclasses.field(metadata={"static": True})

    def validate(self) -> None:
        """Checks the fields of a moment that was read from a file.

        Raises:
          ValueError: if a field is invalid, or fields contradict each other.
        """
        unique = 0 < len(self.columns) == len(set(self.columns)) == len(self.low) == len(self.high) <= 2
        require(unique, "a moment is not of one column or of two different ones")
        require(all(0 <= i < j for i, j in zip(self.low, self.high, strict=True)), "a moment has no range of codes")
        require(1 <= self.weight < 2**31, "the weight of a moment is not positive, or too large")

    @property
    def size(self) -> int:
        """Number of features: two for one column, one for two columns."""
        return 3 - len(self.columns)

    def scores(self, place: int, binning: Binning, codes: Int[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
        """The score u of each code of one of the columns, from −1 to 1.

        Args:
          place: of the column in :attr:`columns`.
          binning: of the column.
          codes: category codes, [...].
        """
        numpy = jnp if isinstance(codes, jax.Array) else np
        low, high = self.low[place], self.high[place]
        steps = 2.0 * (numpy.clip(codes, low, high) - low).astype(float)
        scores = (steps - (high - low)) / (high - low)
        return numpy.where(codes == binning.num_codes - 1, 0.0, scores) if binning.missing else scores


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableKernel(Kernel):
    """k(x, y) = (Σ_b ω_b² Π_{j ∈ b} 1[x_j and y_j are in one bin of b] + Σ_m ω_m² k_m(x, y)) / (Σ_b ω_b² + 2 Σ_m ω_m²):
    an ANOVA kernel, a sum of products of kernels of single columns.

    k_m(x, y) is u(x) u(y) + u(x)² u(y)² for a moment m of one column with score u, and the product of u(x) u(y) over
    both columns for a moment of two.

    Attributes:
      binnings: one for each column.
      blocks: one term of the sum for each marginal.
      moments: one term of the sum for each.
    """

    binnings: tuple[Binning, ...]
    blocks: tuple[Block, ...]
    moments: tuple[Moment, ...] = ()

    def _in_short(self) -> str:
        orders = [len(block.columns) for block in self.blocks]
        terms = ", ".join(f"{orders.count(order)} of order {order}" for order in sorted(set(orders)))
        return f"{len(self.binnings)} columns; terms: {terms}"

    def __call__(self, x, y):
        return self.pairwise(x[None], y[None])[0, 0]

    def pairwise(self, x, y, *, expand=False):
        del expand
        features = TableMap(self.binnings, self.blocks, self.moments)
        return jnp.matmul(features(x), features(y).T, precision=jax.lax.Precision.HIGHEST)

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return not self.moments


@storable(former_fields={"grids": "binnings"}, added_fields=("moments",))
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableMap(FeatureMap):
    """ψ(x) = ((ω_b e_{c_b(x)})_b, (ω_m f_m(x))_m) / √(Σ_b ω_b² + 2 Σ_m ω_m²).

    For every block b, e is a one-hot vector for the cell of its marginal in which the row x is counted, or zeros if x
    is not counted. For every moment m, f_m holds the powers or the product of its scores. Rows hold category codes, see
    ``Binning``.

    Attributes:
      binnings: one for each column.
      blocks: one for each marginal.
      moments: of ordered columns.
    """

    binnings: tuple[Binning, ...]
    blocks: tuple[Block, ...]
    moments: tuple[Moment, ...] = ()
    takes_codes: ClassVar[bool] = True

    @classmethod
    def of_codes(cls, num_codes: int, weight: int = COUNT_WEIGHT) -> TableMap:
        """The map whose marginal counts the rows of each code of a single column without order.

        Args:
          num_codes: number of codes.
          weight: ω, in whose units noise is an integer. Earlier versions measured with 1.
        """
        binning = Binning.create(num_codes, ordered=False, missing=False)
        return cls((binning,), (Block((0,), (np.arange(num_codes),), weight=weight),))

    def validate(self):
        require(len(self.blocks) > 0, "a map has no blocks")
        for block in self.blocks:
            for j, bins in zip(block.columns, block.bins, strict=True):
                require(0 <= j < len(self.binnings), "a block names a column that the map does not have")
                require(len(bins) == self.binnings[j].num_cells, "bins: expected one bin for each cell")
        for moment in self.moments:
            for j, high in zip(moment.columns, moment.high, strict=True):
                valid = 0 <= j < len(self.binnings) and self.binnings[j].ordered
                require(valid, "a moment names a column that the map does not have, or that has no order")
                require(high < self.binnings[j].num_codes - self.binnings[j].missing, "a moment has other codes")

    def equals(self, other: TableMap) -> bool:
        """Whether two maps have the same fields."""
        same_moments = self.moments == other.moments
        equal = same_moments and self.binnings == other.binnings and len(self.blocks) == len(other.blocks)
        return equal and all(block.equals(theirs) for block, theirs in zip(self.blocks, other.blocks, strict=True))

    @property
    def kernel(self) -> TableKernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k."""
        return TableKernel(self.binnings, self.blocks, self.moments)

    @property
    def public_inputs(self):
        return ()

    def integers(self, num_rows):
        return TableIntegers.create(self, num_rows)

    def cell_noise(self, scale, num_rows):
        noise = [scale * num_rows * self.norm / block.weight for block in self.blocks]
        return min(noise), max(noise)

    @property
    def num_features(self) -> int:
        return sum(term.size for term in (*self.blocks, *self.moments))

    @property
    def dim(self) -> int:
        return len(self.binnings)

    @functools.cached_property
    def norm(self) -> float:
        """√(Σ_b ω_b² + 2 Σ_m ω_m²)."""
        squares = [sum(term.weight**2 for term in terms) for terms in (self.blocks, self.moments)]
        return math.sqrt(squares[0] + 2 * squares[1])

    @property
    def diameter(self) -> float:
        """√2.

        Formal guarantee: let s² = Σ_b ω_b² + 2 Σ_m ω_m². The squared distance s² ‖ψ(x) − ψ(x′)‖² is a sum over blocks
        and moments. A block has at most one entry that is not zero, and no entry is negative, so it adds at most 2 ω².
        A moment of two columns is a number from −ω to ω, so it adds at most 4 ω². A moment of one column with scores u
        and u′ adds ω² d² (1 + v²), where d = |u − u′| and v = |u + u′|, as u² − u′² = (u − u′)(u + u′). Both scores are
        from −1 to 1, so v ≤ 2 − d. It adds at most 4 ω², because 4 − d² (1 + (2 − d)²) is the product of 2 − d and
        2 + d − d² (2 − d), and d² (2 − d) ≤ 32/27 < 2 on [0, 2]. Together this is at most 2 s². For a zero vector: a
        block has a norm of at most ω and a moment of at most √2 ω, so ‖ψ(x)‖ ≤ 1.
        """
        return math.sqrt(2) * (1 + 1e-15)

    @property
    def l1_diameter(self) -> float:
        """(Σ_b 2 ω_b + Σ_m n_m) / s, with n_m = 9/4 ω_m for a moment of one column, and n_m = 2 ω_m for two.

        Formal guarantee: a block has at most one entry that is not zero, and it is ω. A moment of two columns is a
        number from −ω to ω. A moment of one column with scores u and u′ adds ω d (1 + v) in the words of
        :attr:`diameter`, and d (1 + v) ≤ d (3 − d) ≤ 9/4. A zero vector is no further away than this.
        """
        return self.l1_weights(0) / self.norm * (1 + 1e-12)

    def l1_weights(self, rounding: float) -> float:
        """Σ_b 2 ω_b + Σ_m n_m, see :attr:`l1_diameter`, with so much more for each moment of one column."""
        total = float(2 * sum(block.weight for block in self.blocks))
        for moment in self.moments:
            total += 2 * moment.weight if len(moment.columns) == 2 else 2.25 * moment.weight + rounding
        return total

    @property
    def norm_bound(self) -> float:
        """1."""
        return 1 + 1e-15

    @property
    def published_diameter(self) -> float:
        return self.diameter

    @property
    def row_bound(self) -> float:
        return 2.0**53

    def covers(self, rows: Real[AnyArray, "n d"]) -> Bool[AnyArray, "n"]:
        """Whether each row holds codes only: whole numbers from 0 to ``num_codes`` − 1. bool [n]."""
        covered = np.ones(len(rows), bool)
        for j, binning in enumerate(self.binnings):  # columns may be contiguous in memory
            covered = covered & are_codes(rows[:, j], binning.num_codes)
        return covered

    def __call__(self, x):
        """ψ(x), [n, F], in the precision of floating-point rows x."""
        scale, codes, features = 1 / self.norm, x.astype(int), []
        for block in self.blocks:
            index = 0
            for j, bins, size in zip(block.columns, block.bins, block.shape, strict=False):
                index = index * size + jnp.asarray(bins)[self.binnings[j].cells(codes[:, j])]
            if block.zoom:
                (j,) = block.columns
                part = codes[:, j] % self.binnings[j].width * block.zoom // self.binnings[j].width
                index = jnp.where(index < 0, -1, index * block.zoom + part)
            features.append(block.weight * scale * jax.nn.one_hot(index, block.size, dtype=x.dtype))
        for moment in self.moments:
            values = jnp.stack(self._moment(moment, codes.T), axis=1)
            features.append((moment.weight * scale * values).astype(x.dtype))
        return jnp.concatenate(features, axis=1)

    def _moment(self, moment: Moment, columns: Any) -> list[Any]:
        """The features of a moment without its weight, [n] each, of the codes [n] of each column."""
        scores = [moment.scores(i, self.binnings[j], columns[j]) for i, j in enumerate(moment.columns)]
        return [scores[0], scores[0] * scores[0]] if len(scores) == 1 else [scores[0] * scores[1]]

    def _counter(self, kinds: list[Hashable]) -> MarginalCounter:
        """What counts the marginals of all blocks.

        Args:
          kinds: of the weights of each block.
        """
        places: dict[Hashable, int] = {}
        axes: list[Axis] = []
        marginals: list[tuple[int, ...]] = []
        for block in self.blocks:
            of_block = []
            for j, bins in zip(block.columns, block.bins, strict=True):
                key = (j, block.zoom, bins.tobytes())
                if key not in places:
                    places[key] = len(axes)
                    shifted = bins + block.has_uncounted
                    kind = smallest_kind(int(shifted.max()) + 1)
                    axes.append(Axis(j, shifted.astype(kind), block.zoom, self.binnings[j].width))
                of_block.append(places[key])
            marginals.append(tuple(of_block))
        return MarginalCounter([binning.cells for binning in self.binnings], axes, marginals, kinds)

    @functools.cached_property
    def counter(self) -> MarginalCounter:
        """What counts the marginals of all blocks. It follows from the map."""
        return self._counter([None] * len(self.blocks))

    @functools.cached_property
    def counter_by_weight(self) -> MarginalCounter:
        """The same if rows have other weights in blocks of another ω, which is the kind of these weights."""
        return self._counter([block.weight for block in self.blocks])

    def counts(self, running: RunningCounts) -> Real[np.ndarray, "cells"]:
        """The counts of all marginals, one after the other.

        Args:
          running: of :attr:`counter`, or of :attr:`counter_by_weight`.
        """
        marginals = zip(self.blocks, running.marginals(), strict=True)
        return np.concatenate([counts[1:] if block.has_uncounted else counts.ravel() for block, counts in marginals])

    def weighted_counts(
        self, rows: Real[AnyArray, "n d"], weights: Real[AnyArray, "n"] | None = None
    ) -> Real[np.ndarray, "F"]:
        """Σ_n a_n e_{c_b(x_n)} for every block b: how many rows are in each cell of each marginal.

        Args:
          rows: category codes, whole numbers, [n, d].
          weights: a, [n]; None for a weight of 1 each.

        Returns:
          Counts of all marginals, [F]: float64 if there are weights, int64 otherwise.
        """
        running = RunningCounts(self.counter, np.int64 if weights is None else np.float64)
        running.add(np.asarray(rows), None if weights is None else {None: np.asarray(weights, np.float64)})
        return self.counts(running)

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices, progress
        weights = np.asarray(weights, np.float64)
        levels = np.repeat([block.weight / self.norm for block in self.blocks], [block.size for block in self.blocks])
        sums = [levels * self.weighted_counts(rows, weights)]
        columns = [np.ascontiguousarray(rows[:, j], np.int64) for j in range(self.dim)]
        for moment in self.moments:
            values = np.stack(self._moment(moment, columns))
            sums.append(moment.weight / self.norm * np.sum(values * weights, axis=1))
        return np.concatenate(sums)

    def integer_moments(
        self, rows: Real[np.ndarray, "n d"], levels: Int64[np.ndarray, "n"] | None = None
    ) -> Int64[np.ndarray, "_"]:
        """Σ_n of the features of all moments, where every term is rounded to an integer.

        Let v = ω u rounded. The features of one column are v, and v² / ω rounded. The feature of two columns is ω u u′
        rounded.

        Args:
          rows: category codes, whole numbers, [n, d].
          levels: of the rows, [n], see ``TableIntegers``; None for rows that count in full.

        Returns:
          One integer for each feature of each moment, in their order.
        """
        used = sorted({j for moment in self.moments for j in moment.columns})
        sums = np.zeros(sum(moment.size for moment in self.moments), np.int64)
        for start in range(0, len(rows) if self.moments else 0, CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            columns = {j: np.ascontiguousarray(rows[chunk, j], np.int64) for j in used}
            terms = []
            for moment, of_codes in zip(self.moments, self._moments_of_codes, strict=True):
                if of_codes is None:
                    terms += self._integer_terms(moment, columns)
                else:
                    terms += [np.take(one, columns[moment.columns[0]]) for one in of_codes]
            sums += [(one if levels is None else _at_levels(one, levels[chunk])).sum() for one in terms]
        return sums

    def _integer_terms(self, moment: Moment, columns: Any) -> list[np.ndarray]:
        """The integers of the features of a moment, [n] each, of the codes [n] of each column."""
        values = np.rint(moment.weight * self._moment(moment, columns)[0]).astype(np.int64)
        if len(moment.columns) == 2:
            return [values]
        return [values, (values * values + moment.weight // 2) // moment.weight]

    @functools.cached_property
    def _moments_of_codes(self) -> list[list[np.ndarray] | None]:
        """For each moment, its integers for every code of its column; None for two columns, or for many codes."""
        found: list[list[np.ndarray] | None] = []
        for moment in self.moments:
            j, num_codes = moment.columns[0], self.binnings[moment.columns[0]].num_codes
            few = len(moment.columns) == 1 and num_codes <= _FEW_CODES
            found.append(self._integer_terms(moment, {j: np.arange(num_codes)}) if few else None)
        return found

    def moment_sums(self, coordinates: Float[np.ndarray, "F"], num_rows: int) -> list[Float[np.ndarray, "_"]]:
        """For each moment, the sums of its features without their weight over N rows: [2] or [1].

        Args:
          coordinates: of the mean embedding, exact or noisy, [F].
          num_rows: N.
        """
        sums, start = [], sum(block.size for block in self.blocks)
        for moment in self.moments:
            sums.append(coordinates[start : start + moment.size] * (num_rows * self.norm / moment.weight))
            start += moment.size
        return sums

    def marginals(self, coordinates: Float[np.ndarray, "F"], num_rows: int) -> list[Float[np.ndarray, "..."]]:
        """The marginals of a mean embedding of N rows, one for each block, of the block's shape.

        Args:
          coordinates: of the mean embedding, exact or noisy, [F].
          num_rows: N.
        """
        marginals, start = [], 0
        for block in self.blocks:
            values = coordinates[start : start + block.size] * (num_rows * self.norm / block.weight)
            marginals.append(values.reshape(block.shape))
            start += block.size
        return marginals


# -- in integers


def _at_levels(integers: Int64[np.ndarray, "n"], levels: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Integers of rows, of a size below 2⁴⁷, times the levels of the rows over ``LEVELS``, rounded toward zero: [n]."""
    return np.sign(integers) * (np.abs(integers) * levels // LEVELS)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class TableIntegers(IntegerMap):
    """q(x) ≈ s ψ(x), s = √(Σ_b ω_b² + 2 Σ_m ω_m²). Counts are exact, because the weights ω are integers. Features of
    moments are rounded, see ``TableMap.integer_moments``.

    Rows may have *levels* l, whole numbers from 0 to ``LEVELS``. A row then counts as the part l / ``LEVELS`` of a row:
    each integer of q(x) is multiplied by it, and rounded toward zero (:meth:`sum_at_levels`).

    Attributes:
      feature_map: a TableMap.
      units: s.
    """

    feature_map: TableMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    is_of_rows: ClassVar[bool] = True
    uses_devices: ClassVar[bool] = False

    @classmethod
    def create(cls, feature_map: TableMap, num_rows: int) -> TableIntegers:
        """See ``FeatureMap.integers``."""
        largest = max(term.weight for term in (*feature_map.blocks, *feature_map.moments))
        if num_rows * largest >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, feature_map.norm)

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b² + Σ_m (2 ω_m + 1)²).

        Formal guarantee: blocks are as in ``TableMap.diameter``. A moment of two columns is an integer from −ω to ω.
        For a moment of one column, v / ω is from −1 to 1, so the proof of ``TableMap.diameter`` bounds the distance of
        (v, v² / ω) by 2 ω. Rounding v² / ω changes the distance by at most 1, because it moves each of both points by
        at most 1/2.
        """
        squares = 2 * sum(block.weight**2 for block in self.feature_map.blocks)
        squares += sum((2 * moment.weight + 1) ** 2 for moment in self.feature_map.moments)
        return math.sqrt(squares) * (1 + 1e-15)

    @property
    def certain_diameter(self) -> float:
        return self.diameter

    @property
    def l1_diameter(self) -> float:
        """Σ_b 2 ω_b + Σ_m n_m, as in ``TableMap.l1_diameter``, and 1 more for each moment of one column.

        Formal guarantee: rounding v² / ω moves each of both points by at most 1/2."""
        return self.feature_map.l1_weights(1)

    @property
    def norm_bound(self) -> float:
        """√(Σ_b ω_b² + Σ_m n_m²), with n_m = √2 ω_m + 1/2 for a moment of one column, and n_m = ω_m for two.

        Formal guarantee: a block has at most one entry that is not zero, and it is ω. A moment of two columns is an
        integer from −ω to ω. A moment of one column has entries v and v² / ω, with v from −ω to ω, so their norm is at
        most √2 ω. Rounding v² / ω moves the point by at most 1/2. At a level, no integer is larger in size than in
        full, so the norm is not larger either.
        """
        squares = float(sum(block.weight**2 for block in self.feature_map.blocks))
        for moment in self.feature_map.moments:
            norm = moment.weight if len(moment.columns) == 2 else math.sqrt(2) * moment.weight + 0.5
            squares += norm**2
        return math.sqrt(squares) * (1 + 1e-12)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        running = self.running_sum()
        running.add(rows, usable, rows_planned=rows_planned, devices=devices, progress=progress)
        return running.total()

    def sum_at_levels(self, rows: Real[np.ndarray, "n d"], levels: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "sums"]:
        """Σ_n of q(x_n) · l_n / ``LEVELS``, each term rounded toward zero: int64. SENSITIVE.

        Formal guarantee: a term depends on its own row and level alone, and its norm is at most :attr:`norm_bound`. So
        the sum has this sensitivity if a row is added or removed. It says nothing of rows that are replaced.

        Args:
          rows: category codes that the map covers, [n, d].
          levels: l, [n]. Those beyond the range from 0 to ``LEVELS`` count as its ends.
        """
        running = self.running_sum()
        running.add_at_levels(rows, levels)
        return running.total()

    def running_sum(self) -> TableSum:
        """See ``IntegerMap.running_sum``. Marginals are summed out of joint tables once, after all batches."""
        return TableSum(self)

    def released(self, total):
        return total


class TableSum(RunningSum):
    """Σ_n q(x_n) over the batches so far. SENSITIVE.

    Formal guarantee: it is the sum of q over the rows, exactly: the integers of a row do not depend on other rows, and
    sums of whole numbers are exact. Counts without levels are int64. Counts with levels are sums of integers of at most
    2⁵³ in float64, which are added up in int64.
    """

    def __init__(self, integers: TableIntegers):
        super().__init__(integers)
        self._map = integers.feature_map
        self._moments = np.zeros(sum(moment.size for moment in self._map.moments), np.int64)
        self._in_full: RunningCounts | None = None
        self._in_part: RunningCounts | None = None

    def add(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        rows = np.asarray(rows if np.all(usable) else rows[usable])
        self._in_full = self._in_full or RunningCounts(self._map.counter, np.int64)
        self._in_full.add(rows)
        self._moments += self._map.integer_moments(rows)
        if progress:
            progress(len(rows), len(rows))

    def add_at_levels(self, rows, levels):
        levels = np.clip(levels, 0, LEVELS)
        self._in_part = self._in_part or RunningCounts(self._map.counter_by_weight, np.int64)
        weights = {block.weight for block in self._map.blocks}
        size = max(1, min(CHUNK_ROWS, _MOST_EXACT // max(weights, default=1)))
        for start in range(0, len(rows), size):
            some, of_some = rows[start : start + size], levels[start : start + size]
            self._in_part.add(some, {weight: _at_levels(np.full(len(some), weight), of_some) for weight in weights})
        self._moments += self._map.integer_moments(np.asarray(rows), levels)

    def total(self):
        blocks = self._map.blocks
        total = np.zeros(sum(block.size for block in blocks), np.int64)
        if self._in_full is not None:
            weights = np.repeat([block.weight for block in blocks], [block.size for block in blocks])
            total += self._map.counts(self._in_full) * weights
        if self._in_part is not None:
            total += self._map.counts(self._in_part)
        return np.concatenate([total, self._moments])
