"""How much of the dependence in a mixture of relaxed rows is kept, for each pair of columns.

A fit follows noise a little. Where two columns hardly depend on each other, most of the dependence that it shows was
never in the private table. How much of it is noise can be estimated, because the noise of all counts is known. This is
post-processing: it spends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

from kme_jax.table.directions import normal_scores
from kme_jax.table.observed import Observed

_MOST = 1.5  # the largest factor; few relaxed rows weaken dependence
_SPREAD = 0.5  # standard deviation of the factors of a table, before its pairs of columns are seen
_LEAST_COUNT = 1e-9


def shrunken(
    observed: Observed,
    counts: Float[np.ndarray, "classes parts parts"],
    noise: Float[np.ndarray, "classes parts parts"],
    undisturbed: tuple[Float[np.ndarray, "classes k"], Float[np.ndarray, "classes k bins"]],
    disturbed: tuple[Float[np.ndarray, "classes k"], Float[np.ndarray, "classes k bins"]],
) -> Float64[np.ndarray, "classes parts parts"]:
    """Counts of all pairs of parts [T, F, F], with as much dependence as noisy counts support.

    Let y be the noisy counts of a pair of columns, with noise σ, m what they would be if the columns were independent
    within each class, and e how far the counts of a mixture are from m. The result is m + f e. The squared error of
    this is |m + f e − θ|², where θ are the counts without noise. Up to a constant, Stein's unbiased estimate of it is
    |m + f e − y|² + 2 σ² f d, where d = Σ ∂e/∂y are the degrees of freedom of e (Stein 1981, Estimation of the mean of
    a multivariate normal distribution). It is least for f = (⟨y − m, e⟩ − σ² d) / |e|².

    One more fit tells d. It has the start of one of the fits, and counts to which noise z of the same size σ was added.
    Then σ² d is about ⟨z, e′ − e⟩, where e′ is the dependence in this fit (Ye 1998, On measuring and correcting the
    effects of data mining and model selection; Ramani, Blu & Unser 2008, Monte-Carlo SURE).

    Two parts of e have a factor each: what ordered columns show by their normal scores alone, which decides
    correlations, slopes and the means of groups, and the rest. The estimate of f for one pair of columns has variance
    σ² / |e|². So it is combined with the mean for all pairs, as if the factors of a table had a normal distribution
    about it, with standard deviation 1/2. Factors are from 0 to 1.5.

    Args:
      observed: the noisy counts.
      counts: of the mixture of all fits, for all pairs of parts, both ways.
      noise: what was added to the counts for the disturbed fit, one way.
      undisturbed: weights and probabilities of the relaxed rows of a fit.
      disturbed: the same of the disturbed fit, which had the same start.
    """
    fits = [_of_rows(observed, *fit) for fit in (undisturbed, disturbed)]
    pairs = [
        (a, b, measured, _evidence(observed, counts, noise, fits, (a, b), measured))
        for a, b, measured in observed.measured_pairs()
    ]
    # The estimate of a factor has the variance of its noise, and that of all factors: its weight is 1 over their sum.
    evidence = sum((part / (1 + _SPREAD**2 * part[:, 1:]) for *_, part in pairs), np.zeros((2, 2)))
    mean = np.clip(evidence[:, 0] / np.maximum(evidence[:, 1], np.finfo(float).tiny), 0, _MOST)
    result = np.array(counts, np.float64)
    for a, b, measured, (of_scores, of_rest) in pairs:
        agreements, sizes = np.stack([of_scores, of_rest], axis=1)
        factors = np.clip((agreements + mean / _SPREAD**2) / (sizes + 1 / _SPREAD**2), 0, _MOST)
        for first, second, _ in measured:
            table = counts[:, first, second]
            parts = _split(interaction(table), _directions(observed, (a, b), table))
            table = table + np.einsum("i,itab->tab", factors - 1, parts)
            result[:, first, second], result[:, second, first] = table, np.swapaxes(table, 1, 2)
    return result


def interaction(counts: Float[np.ndarray, "classes m n"]) -> Float[np.ndarray, "classes m n"]:
    """How far counts are from those of independent columns with the same sums, [T, m, n], within each class.

    Args:
      counts: of the classes and of pairs of parts of two columns.
    """
    rows, columns = counts.sum(2, keepdims=True), counts.sum(1, keepdims=True)
    return counts - rows * columns / np.maximum(counts.sum((1, 2), keepdims=True), _LEAST_COUNT)


def _of_rows(
    observed: Observed, weights: Float[np.ndarray, "classes k"], probabilities: Float[np.ndarray, "classes k bins"]
) -> tuple[Float[np.ndarray, "classes k parts"], Float[np.ndarray, "classes k parts"]]:
    """Counts and probabilities of all parts of each relaxed row. Their product is the counts of all pairs of parts."""
    parts = observed.of_parts(probabilities)
    return observed.num_rows * weights[..., None] * parts, parts


def _evidence(
    observed: Observed,
    counts: Float[np.ndarray, "classes parts parts"],
    noise: Float[np.ndarray, "classes parts parts"],
    fits: Sequence[tuple[Float[np.ndarray, "classes k parts"], Float[np.ndarray, "classes k parts"]]],
    columns: tuple[int, int],
    measured: Sequence[tuple[slice, slice, float]],
) -> Float64[np.ndarray, "2 2"]:
    """For both parts of the dependence of a pair of columns, ⟨y − m, e⟩ / σ² − d and |e|² / σ².

    Args:
      observed, counts, noise: see :func:`shrunken`.
      fits: counts and probabilities of the relaxed rows of the undisturbed and of the disturbed fit.
      columns: places of both columns.
      measured: where the pair was measured, and σ.
    """
    total = np.zeros((2, 2))
    for first, second, sigma in measured:
        table = counts[:, first, second]
        dependence, directions = interaction(table), _directions(observed, columns, table)
        before, after = (interaction(np.swapaxes(rows[..., first], 1, 2) @ parts[..., second]) for rows, parts in fits)
        parts, moved = _split(dependence, directions), _split(after - before, directions)
        supported = observed.pairs[:, first, second] - table + dependence
        agreement = np.einsum("tab,itab->i", supported, parts) - np.einsum(
            "tab,itab->i", noise[:, first, second], moved
        )
        total += np.stack([agreement, np.square(parts).sum((1, 2, 3))], axis=1) / sigma**2
    return total


def _directions(
    observed: Observed, columns: tuple[int, int], table: Float[np.ndarray, "classes m n"]
) -> tuple[Float64[np.ndarray, "m"] | None, Float64[np.ndarray, "n"] | None]:
    """Unit vectors, along which counts of the parts of two columns change with their scores; None without an order."""
    unit: list[Float64[np.ndarray, "_"] | None] = []
    for column, sums in zip(columns, (table.sum((0, 2)), table.sum((0, 1))), strict=True):
        direction = sums * normal_scores(sums, observed.num_ordered_parts(column, len(sums)))
        size = float(np.linalg.norm(direction))
        unit.append(direction / size if size > 0 else None)
    return unit[0], unit[1]


def _split(
    dependence: Float[np.ndarray, "classes m n"],
    directions: tuple[Float64[np.ndarray, "m"] | None, Float64[np.ndarray, "n"] | None],
) -> Float64[np.ndarray, "2 classes m n"]:
    """What ordered columns show by their scores alone, and the rest; all is in the rest if there are none."""
    rows, columns = directions
    if rows is None and columns is None:
        return np.stack([np.zeros_like(dependence), dependence])
    of_scores = dependence
    if rows is not None:
        of_scores = rows[:, None] * (rows @ of_scores)[:, None]
    if columns is not None:
        of_scores = (of_scores @ columns)[..., None] * columns
    return np.stack([of_scores, dependence - of_scores])
