"""How far the marginals of two tables are apart."""

from __future__ import annotations

import itertools
import math

import numpy as np

from kme_jax.table.schema import Schema

ORDERS = (1, 2, 3)
_MAX_CODES, _CELLS = 128, 64
_MAX_SETS = 1000
_MOST_CELLS = 1 << 24


def _cells(schema: Schema, codes: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Cells of the codes [n, C], by column [C, n], and how many each column has."""
    cells, sizes = np.array(codes.T, np.int64, order="C"), []
    for values, column in zip(cells, schema.columns, strict=True):
        sizes.append(column.num_codes)
        if column.ordered and column.num_codes > _MAX_CODES:
            values *= _CELLS
            values //= column.num_values  # the code for missing, after all values, comes to the cell after theirs
            sizes[-1] = _CELLS + column.nullable
    return cells, sizes


def total_variation(schema: Schema, ours: np.ndarray, theirs: np.ndarray) -> dict[tuple[str, ...], float]:
    """Total variation between the marginals of two tables, by the names of the columns: of all sets of one, two and
    three columns, or of 1000 that are drawn with a fixed seed where there are more. An ordered column of more than 128
    codes is cut into 64 cells of equal width of its public range, and one for missing.

    Args:
      schema: of both.
      ours: codes, [n, C].
      theirs: codes, [m, C].
    """
    (first, sizes), (second, _) = _cells(schema, ours), _cells(schema, theirs)

    def joint(cells: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
        return np.ravel_multi_index([cells[j] for j in columns], [sizes[j] for j in columns])

    def apart(columns: tuple[int, ...]) -> float:
        both, size = [joint(first, columns), joint(second, columns)], math.prod(sizes[j] for j in columns)
        if size > _MOST_CELLS:  # those that there are
            occupied, places = np.unique(np.concatenate(both), return_inverse=True)
            both, size = np.split(places, [len(ours)]), len(occupied)
        shares = [np.bincount(places, minlength=size) / len(places) for places in both]
        return float(np.abs(shares[0] - shares[1]).sum() / 2)

    found = {}
    for order in ORDERS:
        sets = list(itertools.combinations(range(len(sizes)), order))
        if len(sets) > _MAX_SETS:
            sets = [sets[i] for i in np.random.default_rng(0).choice(len(sets), _MAX_SETS, replace=False)]
        for columns in sets:
            found[tuple(schema.names[j] for j in columns)] = apart(columns)
    return found


def means(distances: dict[tuple[str, ...], float]) -> dict[str, float]:
    """Mean total variation, {"1": ..., "2": ..., "3": ...} by the number of columns."""
    orders = {order: [d for names, d in distances.items() if len(names) == order] for order in ORDERS}
    return {str(order): float(np.mean(some)) for order, some in orders.items() if some}
