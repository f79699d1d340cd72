"""What a mixture of relaxed rows misses, of all that noisy counts of pairs of columns clearly show.

Each fit of a mixture has few relaxed rows, so it weakens how columns depend on each other. All fits do so in the same
way, and their mean does, too: a price depends less on a zone than it should. A single count does not show this beside
its noise. But a *direction* does: a weighted sum of all counts of a pair of columns, such as the product of the scores
of an area and of a price. This is post-processing: it spends nothing.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float, Float64
from scipy.special import ndtri

from kme_jax.table.observed import Observed

# How far counts differ from those of a mixture in a direction, in units of their noise: in products of scores, which
# decide correlations, and in others.
_PROBABLY, _CLEARLY = 2.0, 4.0
# The same where a mixture weakens dependence that counts clearly show: how far they differ from independence, and how
# far from the mixture.
_SHOWN, _WEAKENED, _WEAKENED_CELL = 4.0, 1.0, 2.0
_LOST = 0.1  # the least part of a dependence that a mixture has lost, to be one that it weakens
_NUM_LEADING = 2  # directions in which a mixture itself has most dependence, of each pair of columns
_ABOVE_EDGE = 1.1  # the smallest singular value that stands out, in units of the largest one of noise
_EXTREME = 1e-6  # share of all rows, beyond which a score grows no more
_NEW = 1e-3  # the smallest part of a direction that others do not have
_LEAST_COUNT = 1e-9
_NUM_RAKES = 20


def missed(
    observed: Observed, counts: Float[np.ndarray, "classes parts parts"]
) -> Float64[np.ndarray, "classes parts parts"]:
    """Counts of all pairs of parts [T, F, F] that a mixture should have.

    They are the counts of the mixture, corrected in a few directions for each pair of columns that was measured:

    * the product of the normal scores of both columns, if both are ordered;
    * if neither column has an order, and both have four parts or more, the cells in which noisy counts differ from
      independence by more than four times the noise: where one category goes with one of the other column, as the room
      that is paid for and the one that is given, each cell is a direction of its own;
    * the two directions in which the mixture itself has most dependence (correspondence analysis);
    * singular vectors of the difference between noisy counts and the mixture, if they stand out: the largest singular
      value of noise alone is about σ (√rows + √columns) of the table.

    Directions are orthonormal, so each of them has noise σ √T in counts of all T classes together. What is more than
    four times as large, or twice for scores, is corrected, up to the part that noise may explain: the correction of a
    difference c is c − σ² T / c (James & Stein 1961).

    Mixtures weaken dependence. So in the directions of scores, and in those of the mixture itself, less is enough if
    noisy counts differ from *independence* by more than four times the noise: dependence of which the mixture misses as
    much as the noise, and a tenth. In cells it is twice the noise, because they are chosen by their noisy counts. The
    correction is c − σ² T / g, where g is how far counts are from independence. Where cells are corrected, the others
    give way, so that sums over rows and columns of a table nearly stay. Bins tell what their unions have.

    Corrections are divided between the classes in proportion to their sizes.

    Args:
      observed: the noisy counts.
      counts: of the mixture, for all pairs of parts, both ways.
    """
    counts, places = np.array(counts, np.float64), observed.places()
    for a, b, measured in observed.measured_pairs():
        (bins, unions), (other_bins, other_unions) = places[a], places[b]
        for first, second, sigma in measured:
            of_classes = counts[:, first, second].sum((1, 2))
            of_classes /= of_classes.sum()
            table = counts[:, first, second].sum(0)
            difference = observed.pairs[:, first, second].sum(0) - table
            ordered = tuple(observed.num_ordered_parts(j, n) for j, n in zip((a, b), table.shape, strict=True))
            correction = clear_part(difference, table, math.sqrt(len(counts)) * sigma, ordered)
            if correction is None:
                continue
            counts[:, first, second] += of_classes[:, None, None] * correction
            counts[:, second, first] = np.swapaxes(counts[:, first, second], 1, 2)
            if (first, second) == (bins, other_bins) != (unions, other_unions):
                of_parts = observed.members(a).T @ counts[:, first, second] @ observed.members(b)
                counts[:, unions, other_unions] = of_parts
                counts[:, other_unions, unions] = np.swapaxes(of_parts, 1, 2)
    return counts


def normal_scores(counts: Float[np.ndarray, "bins"], num_ordered: int) -> Float[np.ndarray, "bins"]:
    """Normal quantiles of the middles of ordered bins, with mean 0, [bins]; 0 for other bins, such as missing values.

    Args:
      counts: of the bins.
      num_ordered: the number of bins that are ordered. They come first.
    """
    shares = np.where(np.arange(len(counts)) < num_ordered, counts, 0)
    shares = shares / max(shares.sum(), np.finfo(float).tiny)
    scores = ndtri(np.clip(np.cumsum(shares) - shares / 2, _EXTREME, 1 - _EXTREME))
    scores -= shares @ scores
    return np.where(np.arange(len(counts)) < num_ordered, scores, 0)


def clear_part(
    difference: Float[np.ndarray, "m n"], table: Float[np.ndarray, "m n"], noise: float, ordered: tuple[int, ...]
) -> Float[np.ndarray, "m n"] | None:
    """What is clear of the difference between noisy counts of a pair of columns and a table, [m, n], or None.

    It is the correction of :func:`missed`, which says in which directions, and from which size on.

    Args:
      difference: noisy counts less those of the table, [m, n].
      table: counts of the mixture, [m, n].
      noise: standard deviation of the noise of a count.
      ordered: for both columns, how many parts have an order; 0 for none.
    """
    rows, columns = table.sum(1), table.sum(0)
    expected = np.maximum(np.outer(rows, columns) / max(table.sum(), _LEAST_COUNT), _LEAST_COUNT)
    directions, num_scores = [], 0
    if all(ordered):
        of_rows, of_columns = (normal_scores(*of) for of in zip((rows, columns), ordered, strict=True))
        directions.append(np.outer(rows * of_rows, columns * of_columns))
        num_scores = 1
    cells = np.abs(table + difference - expected) > _SHOWN * noise
    if any(ordered) or min(table.shape) <= _NUM_LEADING + 1:  # a few directions tell all of a small table
        cells[:] = False
    left, _, right = np.linalg.svd((table - expected) / np.sqrt(expected), full_matrices=False)
    num_leading = min(_NUM_LEADING, min(table.shape) - 1)
    directions += [np.outer(left[:, i], right[i]) * np.sqrt(expected) for i in range(num_leading)]
    num_own = len(directions)
    left, sizes, right = np.linalg.svd(difference, full_matrices=False)
    edge = noise * (math.sqrt(len(rows)) + math.sqrt(len(columns)))
    directions += [np.outer(left[:, i], right[i]) for i in np.flatnonzero(sizes > _ABOVE_EDGE * edge)]
    correction = np.where(cells, _shrunken(difference, table + difference - expected, noise, _WEAKENED_CELL), 0.0)
    basis: list[np.ndarray] = []
    for i, direction in enumerate(directions):
        direction = direction / max(float(np.linalg.norm(direction)), np.finfo(float).tiny)
        direction = np.where(cells, 0.0, direction)
        for other in basis:
            direction = direction - other * np.vdot(other, direction)
        size = float(np.linalg.norm(direction))
        if size < _NEW:
            continue
        basis.append(direction / size)
        component = float(np.vdot(basis[-1], difference))
        shown = component + float(np.vdot(basis[-1], table - expected)) if i < num_own else 0.0
        least = _PROBABLY if i < num_scores else _CLEARLY
        correction += float(_shrunken(component, shown, noise, _WEAKENED, least)) * basis[-1]
    if not correction.any():
        return None
    free = ~cells | (correction == 0)
    return correction if free.all() else _balanced(table + correction, free, rows, columns) - table


def _shrunken(
    component: Float[np.ndarray, "*n"] | float,
    shown: Float[np.ndarray, "*n"] | float,
    noise: float,
    weakened: float,
    least: float = _CLEARLY,
) -> Float[np.ndarray, "*n"]:
    """What is corrected of differences in some directions, see :func:`missed`; 0 where they are not clear.

    Args:
      component: differences between noisy counts and the mixture.
      shown: differences between noisy counts and independence; 0 where they do not count.
      noise: standard deviation of the noise of both.
      weakened: how far counts are from a mixture that weakens what they show, in units of their noise.
      least: how far they are from any other one.
    """
    is_weakened = (np.abs(shown) > _SHOWN * noise) & (
        component * np.sign(shown) > np.maximum(weakened * noise, _LOST * np.abs(shown))
    )
    divisor = np.where(is_weakened, shown, component)
    is_clear = is_weakened | (np.abs(component) > least * noise)
    return np.where(is_clear, component - noise**2 / np.where(is_clear, divisor, 1.0), 0.0)


def _balanced(
    table: Float[np.ndarray, "m n"],
    free: Bool[np.ndarray, "m n"],
    rows: Float[np.ndarray, "m"],
    columns: Float[np.ndarray, "n"],
) -> Float[np.ndarray, "m n"]:
    """A table whose free cells were multiplied by factors of rows and of columns, and whose sums are about given ones.

    Args:
      table: counts. Those below 0 count as 0.
      free: the cells that may change.
      rows: sums of rows.
      columns: sums of columns.
    """
    kept, moved = np.where(free, 0, np.maximum(table, 0)), np.where(free, np.maximum(table, _LEAST_COUNT), 0)
    for _ in range(_NUM_RAKES):
        moved *= (np.maximum(rows - kept.sum(1), 0) / np.maximum(moved.sum(1), _LEAST_COUNT))[:, None]
        moved *= np.maximum(columns - kept.sum(0), 0) / np.maximum(moved.sum(0), _LEAST_COUNT)
    return kept + moved
