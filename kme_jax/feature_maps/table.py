"""Features of rows of a table: products of one-hot features of a few columns each. Their means are marginals.

A *marginal* is a table of counts: how many rows have each combination of values of a few columns. A *category code* is
the index of a value of a column. A *binning* says how the codes of a column are grouped into cells.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap, are_codes
from kme_jax.kernels import Kernel

MAX_CELLS = 1024


@storable(former_name="Grid")
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Binning:
    """How a column is cut: the cells in which its category codes 0, ..., num_codes − 1 are counted.

    Each cell has ``width`` neighbouring codes. If the last code stands for a missing value, it has a cell of its own.

    Attributes:
      num_codes: number of codes of the column, the code for a missing value included.
      ordered: whether neighbouring codes stand for neighbouring values.
      missing: whether the last code stands for a missing value.
      width: number of codes in a cell.
    """

    num_codes: int = dataclasses.field(metadata={"static": True})
    ordered: bool = dataclasses.field(metadata={"static": True})
    missing: bool = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})

    def validate(self) -> None:
        """Checks the fields of a binning that was read from a file.

        Raises:
          ValueError: if the binning has no values, or its cells have no codes or more codes than the column.
        """
        require(
            1 + self.missing <= self.num_codes < 2**53 and 1 <= self.width <= self.num_codes,
            "a binning has no values, or the width of its cells is invalid",
        )

    @classmethod
    def create(cls, num_codes: int, *, ordered: bool, missing: bool) -> Binning:
        """At most 1024 cells of equal width for an ordered column; one cell for each code of any other column."""
        width = -(-(num_codes - missing) // MAX_CELLS) if ordered else 1
        return cls(num_codes, ordered, missing, width)

    @property
    def num_values(self) -> int:
        """Number of cells for values: all cells but the one for a missing value."""
        return -(-(self.num_codes - self.missing) // self.width)

    @property
    def num_cells(self) -> int:
        """Number of all cells."""
        return self.num_values + self.missing

    def cells(self, codes: Int[AnyArray, "*n"]) -> Int[AnyArray, "*n"]:
        """The index of the cell of each code: an array of the same shape and kind as ``codes``."""
        if self.width == 1:
            return codes
        cells = codes // self.width
        if not self.missing:
            return cells
        where = jnp.where if isinstance(codes, jax.Array) else np.where
        return where(codes == self.num_codes - 1, self.num_values, cells)

    def first_codes(self) -> Int64[np.ndarray, "ends"]:
        """The first code of every cell, followed by the number of codes: int64 [num_cells + 1]."""
        last = self.num_codes - self.missing
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

    @property
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

    @property
    def may_miss(self) -> bool:
        """Whether the block does not count the rows of at least one cell."""
        return int(np.min(self.bins[0])) < 0


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableKernel(Kernel):
    """k(x, y) = Σ_b ω_b² Π_{j ∈ b} 1[x_j and y_j are in one bin of b] / Σ_b ω_b²: an ANOVA kernel, a sum of products of
    kernels of single columns.

    Attributes:
      binnings: one for each column.
      blocks: the terms of the sum, one for each marginal.
    """

    binnings: tuple[Binning, ...]
    blocks: tuple[Block, ...]

    def _in_short(self) -> str:
        orders = [len(block.columns) for block in self.blocks]
        terms = ", ".join(f"{orders.count(order)} of order {order}" for order in sorted(set(orders)))
        return f"{len(self.binnings)} columns; terms: {terms}"

    def __call__(self, x, y):
        return self.pairwise(x[None], y[None])[0, 0]

    def pairwise(self, x, y, *, expand=False):
        del expand
        features = TableMap(self.binnings, self.blocks)
        return jnp.matmul(features(x), features(y).T, precision=jax.lax.Precision.HIGHEST)

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return True


@storable(former_fields={"grids": "binnings"})
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableMap(FeatureMap):
    """ψ(x) = (ω_b e_{c_b(x)})_b / √(Σ_b ω_b²): for every block a one-hot vector for the cell of its marginal in
    which the row x is counted, or zeros if x is not counted. Rows hold category codes, see ``Binning``.

    Attributes:
      binnings: one for each column.
      blocks: one for each marginal.
    """

    binnings: tuple[Binning, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def of_codes(cls, num_codes: int) -> TableMap:
        """The map whose marginal counts the rows of each code of a single column without order."""
        binning = Binning.create(num_codes, ordered=False, missing=False)
        return cls((binning,), (Block((0,), (np.arange(num_codes),)),))

    def validate(self):
        require(len(self.blocks) > 0, "a map has no blocks")
        for block in self.blocks:
            for j, bins in zip(block.columns, block.bins, strict=True):
                require(0 <= j < len(self.binnings), "a block names a column that the map does not have")
                require(len(bins) == self.binnings[j].num_cells, "bins: expected one bin for each cell")

    def equals(self, other: TableMap) -> bool:
        """Whether two maps have the same fields."""
        equal = self.binnings == other.binnings and len(self.blocks) == len(other.blocks)
        return equal and all(block.equals(theirs) for block, theirs in zip(self.blocks, other.blocks, strict=True))

    @property
    def kernel(self) -> TableKernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k."""
        return TableKernel(self.binnings, self.blocks)

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
        return sum(block.size for block in self.blocks)

    @property
    def dim(self) -> int:
        return len(self.binnings)

    @property
    def norm(self) -> float:
        """√(Σ_b ω_b²)."""
        return math.sqrt(sum(block.weight**2 for block in self.blocks))

    @property
    def diameter(self) -> float:
        """√2.

        Formal guarantee: every block has at most one entry that is not zero, so ‖ψ(x)‖² ≤ Σ_b ω_b² / Σ_b ω_b² = 1; no
        entry is negative, so ‖ψ(x) − ψ(x′)‖² = ‖ψ(x)‖² + ‖ψ(x′)‖² − 2 ⟨ψ(x), ψ(x′)⟩ ≤ 2. The bound also holds for
        zero vectors.
        """
        return math.sqrt(2) * (1 + 1e-15)

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
        num_codes = np.asarray([binning.num_codes for binning in self.binnings])
        return np.all(are_codes(rows, num_codes), axis=1)

    def __call__(self, x):
        """ψ(x), [n, F], in the precision of floating-point rows x."""
        scale, codes, features = 1 / self.norm, x.astype(int), []
        for block in self.blocks:
            index = 0
            for j, bins, size in zip(block.columns, block.bins, block.shape, strict=False):
                index = index * size + jnp.asarray(bins)[self.binnings[j].cells(codes[:, j])]
            if block.zoom:
                index = self._zoomed(block, index, codes[:, block.columns[0]], jnp)
            features.append(block.weight * scale * jax.nn.one_hot(index, block.size, dtype=x.dtype))
        return jnp.concatenate(features, axis=1)

    def _zoomed(self, block: Block, bins, codes, numpy):
        width = self.binnings[block.columns[0]].width
        return numpy.where(bins < 0, -1, bins * block.zoom + codes % width * block.zoom // width)

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
        columns = [np.ascontiguousarray(rows[:, j], np.int64) for j in range(self.dim)]
        cells = [binning.cells(column) for binning, column in zip(self.binnings, columns, strict=True)]
        # Blocks share work: the bins of a column and the indices of shared first columns are computed once.
        binned: dict[tuple[int, int], np.ndarray] = {}
        products: dict[tuple, np.ndarray] = {}
        counts = []
        for block in self.blocks:
            index, key = columns[0], ()
            for j, bins, size in zip(block.columns, block.bins, block.shape, strict=False):
                if (j, id(bins)) not in binned:
                    binned[j, id(bins)] = bins[cells[j]]
                column_bins = binned[j, id(bins)]
                if key:
                    if (key, size) not in products:
                        products[key, size] = index * size
                    index = products[key, size] + column_bins
                else:
                    index = column_bins
                key = (key, j, id(bins))
            if block.zoom:
                index = self._zoomed(block, index, columns[block.columns[0]], np)
            if block.may_miss:
                counts.append(np.bincount(index + 1, weights, block.size + 1)[1:])
            else:
                counts.append(np.bincount(index, weights, block.size))
        return np.concatenate(counts)

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices, progress
        levels = np.repeat([block.weight / self.norm for block in self.blocks], [block.size for block in self.blocks])
        return levels * self.weighted_counts(rows, np.asarray(weights, np.float64))

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


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class TableIntegers(IntegerMap):
    """q(x) = (ω_b e_{c_b(x)})_b = s ψ(x), s = √(Σ_b ω_b²), without any rounding: the weights ω are integers.

    Attributes:
      feature_map: a TableMap.
      units: s.
    """

    feature_map: TableMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    is_of_rows: ClassVar[bool] = True

    @classmethod
    def create(cls, feature_map: TableMap, num_rows: int) -> TableIntegers:
        """See ``FeatureMap.integers``."""
        largest = max(block.weight for block in feature_map.blocks)
        if num_rows * largest >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, feature_map.norm)

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²). The proof of ``TableMap.diameter`` holds for these integers too."""
        return math.sqrt(2 * sum(block.weight**2 for block in self.feature_map.blocks)) * (1 + 1e-15)

    @property
    def certain_diameter(self) -> float:
        return self.diameter

    @property
    def norm_bound(self) -> float:
        return self.units * (1 + 1e-15)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        blocks = self.feature_map.blocks
        weights = np.repeat([block.weight for block in blocks], [block.size for block in blocks])
        counts = self.feature_map.weighted_counts(rows if np.all(usable) else rows[usable])
        if progress:
            progress(len(rows), len(rows))
        return counts.astype(np.int64) * weights

    def released(self, total):
        return total
