"""Counts of several marginals of the same rows. Marginals that share columns are counted together.

A *joint table* counts rows by all columns of several marginals. Each of the marginals is a sum of it over the other
columns, so one joint table takes the place of several passes over the rows.

Formal guarantee: the sizes of marginals, which are public, decide which marginals share a table. They and the number of
rows decide every type and size of an array. Counts are whole numbers in int64, so each marginal has the counts that it
has without the others. A row adds 1 to one cell of each marginal, or nothing where it is not counted.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer, Real

from kme_jax._numerics.short_repr import short_repr

_PIECE = 1 << 16  # rows whose bins are in memory at once
CHUNK_ROWS = 1 << 13
"""Rows of which a few columns fit the first caches."""
_SHORT = np.dtype(np.uint16)  # of bins, and of cells of joint tables with at most so many
_MOST_CELLS = 1 << _SHORT.itemsize * 8

_MOST_IN_ALL = 1 << 24  # cells of all joint tables, if marginals do not need more; there are mostly far fewer
_LOOKED_AT = 16  # tables with an axis that a marginal may join

# What takes how long, in nanoseconds. Joint tables are chosen by it.
_ROW, _ROW_OF_AXIS, _CELL_OF_PIECE = 1.6, 0.2, 1.0  # to count a row, for each axis, and for each cell once in a piece
_SUM, _CELL = 4000.0, 5.0  # to sum a marginal out of a joint table, and for each cell of the table


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """Bins of a column, along which marginals count rows.

    Attributes:
      column: the index of the column.
      bins: the bin of every cell of the column, from 0. With parts, bin 0 is for rows that are not counted.
      parts: 0, or the number of parts that each bin but the first is cut into.
      width: the number of codes of a cell, if there are parts.
    """

    column: int
    bins: Integer[np.ndarray, "cells"]
    parts: int = 0
    width: int = 1

    @functools.cached_property
    def size(self) -> int:
        """The number of bins, or of their parts."""
        last = int(self.bins.max())
        return last * self.parts + 1 if self.parts else last + 1

    def bins_of(self, codes: Integer[np.ndarray, "n"], cells: Integer[np.ndarray, "n"]) -> Integer[np.ndarray, "n"]:
        """The bin of each row, with its part, [n].

        Args:
          codes: of the column, [n].
          cells: the cells of these codes, [n].
        """
        bins = np.take(self.bins, cells)
        if not self.parts:
            return bins
        part = (codes - codes // self.width * self.width) * self.parts // self.width  # % is several times as slow
        return np.where(bins == 0, 0, (bins.astype(np.int64) - 1) * self.parts + part + 1)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class JointTable:
    """Marginals that are counted together.

    Attributes:
      axes: the indices of the axes of the joint table, increasing.
      shape: their sizes.
      marginals: the indices of the marginals.
      kind: of the weights of rows.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    marginals: tuple[int, ...]
    kind: Hashable

    def count(
        self, bins: Sequence[Integer[np.ndarray, "n"]], weights: Real[np.ndarray, "n"] | None
    ) -> Real[np.ndarray, "cells"]:
        """How many rows each cell has, or the sum of their weights.

        Args:
          bins: of each axis of all marginals, [n] each.
          weights: of the rows, [n]; None for a weight of 1 each.
        """
        cells = math.prod(self.shape)
        index = bins[self.axes[0]]
        if len(self.axes) > 1:
            index = index.astype(smallest_kind(cells + 1))  # the size of an axis has to fit, too
            for axis, size in zip(self.axes[1:], self.shape[1:], strict=True):
                index *= size
                index += bins[axis]
        return np.bincount(index, weights, cells)


class MarginalCounter:
    """The joint tables for marginals, each by some axes.

    Attributes:
      tables: the joint tables.
    """

    tables: tuple[JointTable, ...]

    def __init__(
        self,
        cells_of: Sequence[Callable[[np.ndarray], Any]],
        axes: Sequence[Axis],
        marginals: Sequence[tuple[int, ...]],
        kinds: Sequence[Hashable],
    ):
        """Chooses the joint tables.

        Args:
          cells_of: for each column, a function from its codes [n] to their cells [n].
          axes: of all marginals.
          marginals: the indices of the axes of each marginal, all different.
          kinds: of the weights of each marginal. Those of different kinds are never counted together.
        """
        self._cells_of, self._axes, self._marginals = cells_of, axes, marginals
        self.tables = _joint_tables([axis.size for axis in axes], marginals, kinds)

    def bins(self, rows: Real[np.ndarray, "n d"]) -> list[Integer[np.ndarray, "n"]]:
        """The bin of each row along every axis, [n] each.

        Args:
          rows: category codes, whole numbers, [n, d].
        """
        columns: dict[int, list[int]] = {}
        for place, axis in enumerate(self._axes):
            columns.setdefault(axis.column, []).append(place)
        bins = [np.empty(len(rows), smallest_kind(axis.size)) for axis in self._axes]
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            for column, places in columns.items():
                codes = np.ascontiguousarray(rows[chunk, column], np.int64)
                cells = self._cells_of[column](codes)
                for place in places:
                    bins[place][chunk] = self._axes[place].bins_of(codes, cells)
        return bins

    def marginals(self, totals: Sequence[Real[np.ndarray, "_"]]) -> list[Real[np.ndarray, "..."]]:
        """The marginals, with the sizes of their axes.

        Args:
          totals: of the cells of each joint table.
        """
        found: dict[int, np.ndarray] = {}
        for table, total in zip(self.tables, totals, strict=True):
            for place in table.marginals:
                axes = self._marginals[place]
                others = tuple(i for i, axis in enumerate(table.axes) if axis not in axes)
                kept = [axis for axis in table.axes if axis in axes]
                summed = total.reshape(table.shape).sum(axis=others)
                found[place] = summed.transpose([kept.index(axis) for axis in axes])
        return [found[place] for place in range(len(self._marginals))]


class RunningCounts:
    """Counts of the rows so far, or sums of their weights. SENSITIVE.

    Counts are whole numbers, so the order and the batches of the rows have no influence on them.
    """

    def __init__(self, counter: MarginalCounter, kind: type[np.int64] | type[np.float64]):
        """No rows yet.

        Args:
          counter: of the marginals.
          kind: np.int64 if weights are whole numbers, or there are none.
        """
        self._counter = counter
        self._totals = [np.zeros(math.prod(table.shape), kind) for table in counter.tables]

    def add(
        self, rows: Real[np.ndarray, "n d"], weights: Mapping[Hashable, Real[np.ndarray, "n"]] | None = None
    ) -> None:
        """Counts more rows.

        Args:
          rows: category codes, whole numbers, [n, d].
          weights: for each kind, the weights of the rows, [n]; None for a weight of 1 each. If they are whole numbers,
            those of these rows have a sum of at most 2⁵³.
        """
        for start in range(0, len(rows), _PIECE):
            piece = slice(start, start + _PIECE)
            bins = self._counter.bins(rows[piece])
            for table, total in zip(self._counter.tables, self._totals, strict=True):
                counts = table.count(bins, None if weights is None else weights[table.kind][piece])
                total += counts.astype(total.dtype, copy=False)  # sums of whole numbers are exact floats

    def marginals(self) -> list[Real[np.ndarray, "..."]]:
        """The marginals of all rows so far, with the sizes of their axes."""
        return self._counter.marginals(self._totals)


def smallest_kind(size: int) -> np.dtype:
    """The type of the numbers of so many bins or cells. It depends on this number alone."""
    return _SHORT if size <= _MOST_CELLS else np.dtype(np.int64)


def _joint_tables(
    sizes: Sequence[int], marginals: Sequence[tuple[int, ...]], kinds: Sequence[Hashable]
) -> tuple[JointTable, ...]:
    """Joint tables for marginals. They have few cells together, unless the marginals alone have more.

    Each marginal, the largest first, joins the table where this costs least, or begins a new one. Only the last tables
    with one of its axes are looked at, so that this takes little time for many marginals, too.
    """
    most = min(_MOST_CELLS, _MOST_IN_ALL // max(1, len(marginals)))
    cells_of = [math.prod(sizes[axis] for axis in axes) for axes in marginals]
    joint: list[tuple[set[int], list[int]]] = []
    cells: list[int] = []  # of each of these tables
    recent: dict[tuple[Hashable, int], collections.deque[int]] = {}  # tables of a kind with an axis
    for place in sorted(range(len(marginals)), key=lambda place: -cells_of[place]):
        axes, kind, best = marginals[place], kinds[place], None
        more = _SUM + _CELL * cells_of[place]
        least = more + _PIECE * (_ROW + _ROW_OF_AXIS * len(axes)) + _CELL_OF_PIECE * cells_of[place]  # of a new table
        for other in dict.fromkeys(other for axis in axes for other in recent.get((kind, axis), ())):
            theirs, members = joint[other]
            added = [axis for axis in axes if axis not in theirs]
            together = cells[other] * math.prod(sizes[axis] for axis in added)
            if together > most and added:
                continue
            growth = (together - cells[other]) * (_CELL_OF_PIECE + _CELL * len(members))
            costs = _SUM + _CELL * together + growth + _PIECE * _ROW_OF_AXIS * len(added)
            if costs < least:
                best, least = other, costs
        if best is None:
            best = len(joint)
            joint.append((set(), []))
            cells.append(1)
        theirs, members = joint[best]
        for axis in axes:
            if axis not in theirs:
                theirs.add(axis)
                cells[best] *= sizes[axis]
                recent.setdefault((kind, axis), collections.deque(maxlen=_LOOKED_AT)).append(best)
        members.append(place)
    tables = []
    for theirs, members in joint:
        order = tuple(sorted(theirs))
        tables.append(JointTable(order, tuple(sizes[axis] for axis in order), tuple(members), kinds[members[0]]))
    return tuple(tables)
