"""Features of rows of a table: products of one-hot features of a few columns each, whose means are tables of shares."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap, are_codes
from kme_jax.kernels import Kernel

MAX_CELLS = 1024


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class Grid:
    """The cells that the codes 0, ..., num_codes − 1 of a column are counted in: ``width`` codes each, and the last
    code by itself where it stands for a missing value.

    Attributes:
      num_codes: of the column, "missing" included.
      ordered: whether neighbouring codes stand for neighbouring values.
      missing: whether the last code stands for a missing value.
      width: codes in a cell.
    """

    num_codes: int = dataclasses.field(metadata={"static": True})
    ordered: bool = dataclasses.field(metadata={"static": True})
    missing: bool = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})

    def validate(self) -> None:
        """Refuses fields of a grid that was read from a file.

        Raises:
          ValueError: no values; cells of no codes.
        """
        require(
            1 + self.missing <= self.num_codes < 2**53 and 1 <= self.width <= self.num_codes, "a grid has no values"
        )

    @classmethod
    def create(cls, num_codes: int, *, ordered: bool, missing: bool) -> Grid:
        """At most about a thousand cells of equal width; one for each code where it has no order."""
        width = -(-(num_codes - missing) // MAX_CELLS) if ordered else 1
        return cls(num_codes, ordered, missing, width)

    @property
    def num_values(self) -> int:
        """Cells of values: all but the missing one."""
        return -(-(self.num_codes - self.missing) // self.width)

    @property
    def num_cells(self) -> int:
        """Cells in all."""
        return self.num_values + self.missing

    def cells(self, codes):
        """The cells of codes, an array of the same shape and kind."""
        if self.width == 1:
            return codes
        cells = codes // self.width
        if not self.missing:
            return cells
        where = jnp.where if isinstance(codes, jax.Array) else np.where
        return where(codes == self.num_codes - 1, self.num_values, cells)

    def first_codes(self) -> np.ndarray:
        """The first code of every cell, and the number of codes at the end, int64 [num_cells + 1]."""
        last = self.num_codes - self.missing
        first = np.minimum(np.arange(self.num_values + 1, dtype=np.int64) * self.width, last)
        return np.append(first, self.num_codes) if self.missing else first


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A table of counts: the product of one-hot features of some columns.

    Attributes:
      columns: which.
      bins: for each of them the bin of every cell of its grid, int64 [num_cells]: 0, 1, ...; in a block of one column
        also −1, for cells whose rows it does not count.
      weight: ω of the block, a positive integer: the noise of its counts is inversely proportional to it.
      zoom: 0, or, for a block of one column, into how many parts of equally many codes each of its bins, which then are
        single cells of the grid, is cut.
    """

    columns: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    bins: tuple[np.ndarray, ...]
    weight: int = dataclasses.field(default=1, metadata={"static": True})
    zoom: int = dataclasses.field(default=0, metadata={"static": True})

    def validate(self) -> None:
        """Refuses fields of a block that was read from a file.

        Raises:
          ValueError: they do not fit together.
        """
        different = 0 < len(self.columns) == len(set(self.columns)) == len(self.bins)
        require(different, "a block has no columns, or one of them twice")
        least = -1 if len(self.columns) == 1 else 0
        for bins in self.bins:
            check_array(bins, "bins", "i", (None,))
            require(least <= bins.min() and 0 <= bins.max() < len(bins), "bins: a number is beyond the bins")
        require(1 <= self.weight < 2**40, "a block has no positive weight")
        require(0 <= self.zoom <= 2**20 * (len(self.columns) == 1), "a block of several columns has parts of bins")

    @property
    def shape(self) -> tuple[int, ...]:
        """Bins of every column, and the parts of a bin."""
        sizes = tuple(int(np.max(bins, initial=-1)) + 1 for bins in self.bins)
        return (*sizes, self.zoom) if self.zoom else sizes

    @property
    def size(self) -> int:
        """Cells of the table."""
        return math.prod(self.shape)

    def equals(self, other: Block) -> bool:
        """Whether two blocks have the same fields."""
        same = (self.columns, self.weight, self.zoom) == (other.columns, other.weight, other.zoom)
        return same and all(map(np.array_equal, self.bins, other.bins))

    @property
    def may_miss(self) -> bool:
        """Whether there are rows that it does not count."""
        return int(np.min(self.bins[0])) < 0


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableKernel(Kernel):
    """k(x, y) = Σ_b ω_b² Π_{j ∈ b} 1[x_j and y_j are in one bin of b] / Σ_b ω_b²: an ANOVA kernel, a sum of products of
    kernels of single columns.

    Attributes:
      grids: of the columns.
      blocks: the terms.
    """

    grids: tuple[Grid, ...]
    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        orders = [len(block.columns) for block in self.blocks]
        terms = ", ".join(f"{orders.count(order)} of order {order}" for order in sorted(set(orders)))
        return f"TableKernel({len(self.grids)} columns; terms: {terms})"

    def __call__(self, x, y):
        return self.pairwise(x[None], y[None])[0, 0]

    def pairwise(self, x, y, *, expand=False):
        del expand
        features = TableMap(self.grids, self.blocks)
        return jnp.matmul(features(x), features(y).T, precision=jax.lax.Precision.HIGHEST)

    @property
    def diagonal_bound(self) -> float:
        return 1.0

    @property
    def is_nonnegative(self) -> bool:
        return True


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TableMap(FeatureMap):
    """ψ(x) = (ω_b e_{c_b(x)})_b / √(Σ_b ω_b²): for every block a one-hot vector that says which cell of its table the
    row x is counted in (or zeros, if in none). Rows are codes, see ``Grid``.

    Attributes:
      grids: of the columns.
      blocks: the tables.
    """

    grids: tuple[Grid, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def of_codes(cls, num_codes: int) -> TableMap:
        """How many rows have each of the codes of a single column without order."""
        grid = Grid.create(num_codes, ordered=False, missing=False)
        return cls((grid,), (Block((0,), (np.arange(num_codes),)),))

    def validate(self):
        require(len(self.blocks) > 0, "a map has no blocks")
        for block in self.blocks:
            for j, bins in zip(block.columns, block.bins, strict=True):
                require(0 <= j < len(self.grids), "a block has a column that the map has not")
                require(len(bins) == self.grids[j].num_cells, "bins: expected one for each cell")

    def equals(self, other: TableMap) -> bool:
        """Whether two maps have the same fields."""
        same = self.grids == other.grids and len(self.blocks) == len(other.blocks)
        return same and all(mine.equals(yours) for mine, yours in zip(self.blocks, other.blocks, strict=True))

    @property
    def kernel(self) -> TableKernel:
        """k."""
        return TableKernel(self.grids, self.blocks)

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
        return len(self.grids)

    @property
    def norm(self) -> float:
        """√(Σ_b ω_b²)."""
        return math.sqrt(sum(block.weight**2 for block in self.blocks))

    @property
    def diameter(self) -> float:
        """√2.

        Formal guarantee: every block has at most one entry that is not zero, so ‖ψ(x)‖² ≤ Σ_b ω_b² / Σ_b ω_b² = 1; no
        entry is negative, so ‖ψ(x) − ψ(x′)‖² = ‖ψ(x)‖² + ‖ψ(x′)‖² − 2 ⟨ψ(x), ψ(x′)⟩ ≤ 2. The zero vector is no
        further.
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

    def covers(self, rows):
        """Rows of codes: whole numbers from 0 to ``num_codes`` − 1."""
        return are_codes(rows, np.asarray([grid.num_codes for grid in self.grids])).all(axis=1)

    def __call__(self, x):
        """ψ(x), [n, F], in the precision of floating-point rows x."""
        scale, codes, features = 1 / self.norm, x.astype(int), []
        for block in self.blocks:
            index = 0
            for j, bins, size in zip(block.columns, block.bins, block.shape, strict=False):
                index = index * size + jnp.asarray(bins)[self.grids[j].cells(codes[:, j])]
            if block.zoom:
                index = self._zoomed(block, index, codes[:, block.columns[0]], jnp)
            features.append(block.weight * scale * jax.nn.one_hot(index, block.size, dtype=x.dtype))
        return jnp.concatenate(features, axis=1)

    def _zoomed(self, block: Block, bins, codes, numpy):
        width = self.grids[block.columns[0]].width
        return numpy.where(bins < 0, -1, bins * block.zoom + codes % width * block.zoom // width)

    def weighted_counts(self, rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Σ_n a_n e_{c_b(x_n)} for every block b: how many of the rows [n, d], whose codes are whole numbers, are in
        each cell of each table, [F]; float64 if they have weights a [n], int64 otherwise."""
        columns = [np.ascontiguousarray(rows[:, j], np.int64) for j in range(self.dim)]
        cells = [grid.cells(column) for grid, column in zip(self.grids, columns, strict=True)]
        # What several blocks have in common is computed once: bins of a column, and products of the first columns.
        binned: dict[tuple[int, int], np.ndarray] = {}
        products: dict[tuple, np.ndarray] = {}
        found = []
        for block in self.blocks:
            index, key = columns[0], ()
            for j, bins, size in zip(block.columns, block.bins, block.shape, strict=False):
                if (j, id(bins)) not in binned:
                    binned[j, id(bins)] = bins[cells[j]]
                new = binned[j, id(bins)]
                if key:
                    if (key, size) not in products:
                        products[key, size] = index * size
                    new = products[key, size] + new
                index, key = new, (key, j, id(bins))
            if block.zoom:
                index = self._zoomed(block, index, columns[block.columns[0]], np)
            if block.may_miss:
                found.append(np.bincount(index + 1, weights, block.size + 1)[1:])
            else:
                found.append(np.bincount(index, weights, block.size))
        return np.concatenate(found)

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices, progress
        levels = np.repeat([block.weight / self.norm for block in self.blocks], [block.size for block in self.blocks])
        return levels * self.weighted_counts(rows, np.asarray(weights, np.float64))

    def tables(self, coordinates: np.ndarray, num_rows: int) -> list[np.ndarray]:
        """Coordinates [F] of a mean embedding of N rows as tables of counts, one for each block, of its shape."""
        found, start = [], 0
        for block in self.blocks:
            values = coordinates[start : start + block.size] * (num_rows * self.norm / block.weight)
            found.append(values.reshape(block.shape))
            start += block.size
        return found


# -- in integers


@dataclasses.dataclass(frozen=True, eq=False)
class TableIntegers(IntegerMap):
    """q(x) = (ω_b e_{c_b(x)})_b = s ψ(x), s = √(Σ_b ω_b²), without any rounding: the weights ω are integers.

    Attributes:
      feature_map: a TableMap.
      units: s.
    """

    feature_map: TableMap
    units: float

    @classmethod
    def create(cls, feature_map: TableMap, num_rows: int) -> TableIntegers:
        """See ``FeatureMap.integers``."""
        largest = max(block.weight for block in feature_map.blocks)
        if num_rows * largest >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, feature_map.norm)

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²), see ``TableMap.diameter``: it holds for these integers as they are."""
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
