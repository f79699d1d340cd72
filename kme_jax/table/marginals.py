"""Distances between the marginals of two tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64

from kme_jax.feature_maps.counting import Axis, MarginalCounter, RunningCounts
from kme_jax.feature_maps.table import Binning
from kme_jax.table.schema import Schema

ORDERS = (1, 2, 3)
_MAX_CODES, _CELLS, _OF_KNOTS = 128, 64, 256
_MAX_SETS = 1000
_MOST_CELLS, _CELLS_AT_ONCE = 1 << 24, 1 << 22


def compared_cells(schema: Schema, codes: Int[np.ndarray, "n d"]) -> tuple[Int64[np.ndarray, "d n"], list[int]]:
    """The cells of codes [n, C], by column [C, n], and the number of cells of each column."""
    cells, sizes = np.array(codes.T, np.int64, order="C"), []
    for values, column in zip(cells, schema.columns, strict=True):
        sizes.append(column.num_codes)
        knots = column.codes_of_knots
        if knots and column.num_codes > _MAX_CODES:
            binning = Binning.create(
                column.num_codes, ordered=True, missing=column.nullable, max_cells=_OF_KNOTS, knots=knots
            )
            values[:] = binning.cells(values)
            sizes[-1] = binning.num_cells
        elif column.ordered and column.num_codes > _MAX_CODES:
            values *= _CELLS
            values //= column.num_values  # the code for missing, after all values, comes to the cell after theirs
            sizes[-1] = _CELLS + column.nullable
    return cells, sizes


def total_variation(
    schema: Schema,
    ours: Int[np.ndarray, "n d"],
    theirs: Int[np.ndarray, "m d"],
    sets: Sequence[tuple[str, ...]] | None = None,
) -> dict[tuple[str, ...], float]:
    """Total variation between the marginals of two tables, by the names of the columns.

    All sets of one, two and three columns are compared, unless sets are given. If there are more than 1000 sets of a
    size, 1000 of them are drawn with a fixed seed. An ordered column of more than 128 codes is cut into 64 cells of
    equal width over its public range, and one cell for missing values. With the scale "log" or with knots, its cells
    are narrower where it is counted finely.

    Args:
      schema: of both tables.
      ours: category codes of one table, [n, C].
      theirs: category codes of the other table, [m, C].
      sets: the names of the columns of each set that is compared.

    Returns:
      {names of the columns: total variation, from 0 to 1}.
    """
    (first, sizes), (second, _) = compared_cells(schema, ours), compared_cells(schema, theirs)

    if sets is not None:
        places = [tuple(map(schema.index, names)) for names in sets]
        return dict(zip(sets, _apart(first, second, sizes, places), strict=True))
    distances = {}
    for order in ORDERS:
        places = list(itertools.combinations(range(len(sizes)), order))
        if len(places) > _MAX_SETS:
            places = [places[i] for i in np.random.default_rng(0).choice(len(places), _MAX_SETS, replace=False)]
        names = [tuple(schema.names[j] for j in columns) for columns in places]
        distances |= dict(zip(names, _apart(first, second, sizes, places), strict=True))
    return distances


def _apart(
    first: Int64[np.ndarray, "d n"],
    second: Int64[np.ndarray, "d m"],
    sizes: Sequence[int],
    places: Sequence[tuple[int, ...]],
) -> list[float]:
    """Total variation between the marginals of some columns of two tables.

    Args:
      first, second: the cells of the tables, by column.
      sizes: the number of cells of each column.
      places: the columns of each marginal.
    """
    found: dict[tuple[int, ...], float] = {}
    axes = [Axis(j, np.arange(size)) for j, size in enumerate(sizes)]
    for some in _at_once(sizes, places):
        shape = [sizes[j] for j in some[0]]
        if math.prod(shape) > _MOST_CELLS:  # only the cells that occur
            both = [np.ravel_multi_index([cells[j] for j in some[0]], shape) for cells in (first, second)]
            occupied, numbers = np.unique(np.concatenate(both), return_inverse=True)
            parts = np.split(numbers, [first.shape[1]])
            found[some[0]] = _distance(*(np.bincount(part, minlength=len(occupied)) / len(part) for part in parts))
            continue
        counter, shares = MarginalCounter([np.asarray] * len(sizes), axes, some, [None] * len(some)), []
        for cells in (first, second):
            counts = RunningCounts(counter, np.int64)
            counts.add(cells.T)
            shares.append([marginal.reshape(-1) / cells.shape[1] for marginal in counts.marginals()])
        found.update((columns, _distance(*both)) for columns, *both in zip(some, *shares, strict=True))
    return [found[columns] for columns in places]


def _at_once(sizes: Sequence[int], places: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Parts of the sets of columns, with few cells together. A set with many cells is a part of its own."""
    part: list[tuple[int, ...]] = []
    room = 0
    for columns in places:
        size = math.prod(sizes[j] for j in columns)
        if part and room + size > _CELLS_AT_ONCE:
            yield part
            part, room = [], 0
        part.append(columns)
        room += size
    if part:
        yield part


def _distance(ours: Float64[np.ndarray, "cells"], theirs: Float64[np.ndarray, "cells"]) -> float:
    return float(np.abs(ours - theirs).sum() / 2)


def means(distances: dict[tuple[str, ...], float]) -> dict[str, float]:
    """Mean total variation, {"1": ..., "2": ..., "3": ...} by the number of columns."""
    by_order = {order: [d for names, d in distances.items() if len(names) == order] for order in ORDERS}
    return {str(order): float(np.mean(of_order)) for order, of_order in by_order.items() if of_order}
