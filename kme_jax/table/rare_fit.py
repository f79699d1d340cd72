"""What the measurements of a table say about rare categories. Which pairs are measured for them, and what follows.

The rare categories of a column without order share bins, because each has fewer rows than the noise of a pair of
columns. But the counts of a rare category and the bins of another column, taken together, often show where it belongs:
nearly all rows of a trade are in one sector, and nearly all of a district in one town. So the third measurement counts
the rare categories of a column, each by itself, together with the columns that depend most on it, its *parents*. This
is a function of noisy counts. The rest is post-processing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.planning import (
    ERROR_OF_NOISE,
    MOST_PARENTS,
    RARE_SHARES,
    Layout,
    Plan,
    Singles,
    block_counts,
    is_of_rare,
    rare_cells,
    rare_size,
)
from kme_jax.table.rare_categories import LARGEST_ODDS, RareCategories
from kme_jax.table.relaxed import RelaxedRows

_LEAST_TELLING = 0.2  # smallest share of rows whose bins tell how far a column depends on others
SURELY = 3.0  # standard deviations by which an association is to exceed what noise alone looks like
_MOST_GROUPS = 1 << 15  # of classes and bins of all parents of a column together
_NUM_ROWS, _MOST_ODDS = 1 << 16, 1 << 22  # rows by which a model is fitted, and groups of rows times categories
_WIDTHS = (1.0, 2.0, 4.0)  # of profiles along an ordered parent, in bins
_ANYTHING = 0.02  # share of the common profile in every other one
_NUM_ROUNDS, _NUM_SCALINGS, _SCALED, _HARDLY_LESS = 100, 60, 1e-3, 0.98
_LEAST = 1e-6  # of a count, in rows


@short_repr
class _Candidate(NamedTuple):
    """A column with rare categories and a parent.

    Attributes:
      signal: how far the counts of an average rare category differ from those of one that says nothing, times the
        weight ω of the block.
      most: the total variation that is lost without this block.
      weight: ω of the block.
      places: of both columns.
    """

    signal: float
    most: float
    weight: int
    places: tuple[int, int]


def choose_rare(
    layout: Layout,
    plan: Plan,
    singles: Singles,
    association: Float[np.ndarray, "pairs"],
    chosen: Sequence[int],
    num_rows: int,
    rho: float,
) -> tuple[list[tuple[int, int]], float]:
    """The columns whose rare categories are measured together with a parent, as places of both in ``layout.columns``,
    and the largest share of the third measurement that they have, one of ``RARE_SHARES``.

    Let the categories of a column that are not rare have the association t with another column, as a share of their
    rows. If rare ones are alike, the counts of a rare category with c rows differ by about t c from those of a category
    that says nothing. This is the signal, for the category of an average rare row. If rare ones share several bins, t
    is that of all bins. If they share one bin that nearly all rows are in, the other categories say too little, and
    nothing is measured. Of the other columns, the ``MOST_PARENTS`` with the largest t are candidates. If the signal is
    s times the noise of a count, the total variation of the pair falls by about t (1 − 1 / s) times the share of rare
    rows. All other pairs have more noise, because they have less of the budget. Candidates are taken in the order of s.
    Their number, and the largest share, are those that lower the sum of all errors most.

    Args:
      layout: of the columns.
      plan: the bins.
      singles: the first measurement.
      association: of every pair, [pairs], see ``plan.association``. It should hardly exceed the true one: otherwise
        noise that looks like dependence would take a part of the measurement from other pairs.
      chosen: positions of the pairs that are measured again, in ``layout.pairs()``.
      num_rows: N.
      rho: ρ of the third measurement.
    """
    bins, pairs = [int(of_cells.max()) + 1 for of_cells in plan.bins], layout.pairs()
    sizes = np.asarray([layout.num_classes * math.prod(bins[a] for a in pairs[i]) for i in chosen], np.float64)
    weights = np.asarray([layout.weight(int(size)) for size in sizes], np.float64)
    others = float(np.square(weights).sum())
    noise_of_others = math.sqrt(others / rho) * float(np.sum(sizes / weights))
    found: list[_Candidate] = []
    for a in range(len(layout.columns)):
        cells = rare_cells(layout, plan, a)
        counts = singles.smoothed[a].sum(0)[cells]
        share = float(counts.sum()) / num_rows
        telling = 1 - share if len(np.unique(plan.bins[a][cells])) == 1 else 1.0  # share of rows whose bins tell t
        if share <= 0 or telling < _LEAST_TELLING:
            continue
        typical = float(np.square(counts).sum() / counts.sum())
        strength = {b: min(1.0, association[i] / telling) for i, pair in enumerate(pairs) if a in pair for b in pair}
        groups, number = layout.num_classes, 0
        for b in sorted(set(strength) - {a}, key=lambda b: -strength[b]):
            if number < MOST_PARENTS and groups * bins[b] <= _MOST_GROUPS:
                groups, number = groups * bins[b], number + 1
                weight = layout.weight(rare_size(layout, plan, a, b))
                found.append(_Candidate(strength[b] * typical * weight, strength[b] * share, weight, (a, b)))
    found.sort(key=lambda candidate: -candidate.signal)
    best, best_share, least = 0, RARE_SHARES[0], 0.0
    for share, number in itertools.product(RARE_SHARES, range(1, len(found) + 1)):
        total = float(sum(candidate.weight**2 for candidate in found[:number]))
        factor = min(1.0, math.sqrt(share / (1 - share) * others / total))
        more = math.sqrt(1 + factor**2 * total / others)
        noise = more * math.sqrt(others / rho) / factor
        gain = sum(c.most * max(0.0, 1 - noise / max(c.signal, 1e-300)) for c in found[:number])
        change = ERROR_OF_NOISE * (more - 1) * noise_of_others / num_rows - gain
        if change < least:
            best, best_share, least = number, share, change
    return sorted(candidate.places for candidate in found[:best]), best_share


def rare_categories(
    rows: RelaxedRows, layout: Layout, plan: Plan, noisy: NoisyEmbedding, seed: int
) -> tuple[RareCategories, ...]:
    """Models of the rare categories that were measured together with their parents, one for each bin that some share.

    First, the counts of each category and the bins of a parent are denoised: they are the number of its rows times a
    mean of *profiles*. A profile is a distribution of the bins. There are those of the categories that are not rare,
    that of all rare ones of the same bin together, single bins, and bell curves along an ordered parent. The mean is
    that of the posterior. The prior weights of the profiles are those of largest likelihood (nonparametric empirical
    Bayes, Kiefer & Wolfowitz 1956).

    Then the factors of a log-linear model are fitted by iterative proportional fitting to all of these counts, and to
    those of the categories in every class.

    Args:
      rows: relaxed rows.
      layout: of the columns.
      plan: the bins.
      noisy: the third measurement.
      seed: of the rows that stand for all combinations of bins.
    """
    measured: dict[int, dict[int, tuple[Float[np.ndarray, "K B"], float]]] = {}
    for block, counts, noise in block_counts(noisy):
        if is_of_rare(layout, plan, block):
            a, b = map(layout.columns.index, block.columns)
            measured.setdefault(a, {})[b] = counts[: len(rare_cells(layout, plan, a))], noise
    if not measured:
        return ()
    codes = rows.sample(_NUM_ROWS, seed)
    bins, num_rows = rows.bins_of(codes), noisy.mechanism.num_rows
    classes = codes[:, layout.split] if layout.split >= 0 else np.zeros(len(codes), np.int64)
    models = []
    for a, of_parents in measured.items():
        cells = rare_cells(layout, plan, a)
        crowds = plan.bins[a][cells]
        ours = bins[:, layout.columns[a]]
        of_rows = np.einsum("tk,tkb->tb", rows.weights, rows.probabilities[..., rows.offsets[a] + crowds])
        leaves = rows.leaves[a]
        first = layout.binnings[layout.columns[a]].first_codes()[cells]
        of_classes = num_rows * of_rows * leaves.shares[:, np.searchsorted(leaves.first, first)]
        tables = []
        for b, (counts, noise) in of_parents.items():
            theirs, number = bins[:, layout.columns[b]], int(plan.bins[b].max()) + 1
            joint = np.zeros((int(plan.bins[a].max()) + 1, number))
            np.add.at(joint, (ours, theirs), 1)
            binning = layout.binnings[layout.columns[b]]
            tables.append(np.zeros((len(cells), number)))
            for crowd in np.unique(crowds):
                profiles = _profiles(joint, crowd, number - binning.missing if binning.ordered else 0)
                own = crowds == crowd
                tables[-1][own] = _denoised(counts[own], noise, of_classes[:, own].sum(0), profiles)
        for crowd in np.unique(crowds):
            inside, own = np.flatnonzero(ours == crowd), crowds == crowd
            groups = np.stack([classes[inside], *(bins[inside, layout.columns[b]] for b in of_parents)], axis=1)
            if len(groups):
                of_own = [table[own] for table in tables]
                models.append(log_linear_model(a, first[own], tuple(of_parents), of_classes[:, own], of_own, groups))
    return tuple(models)


def _profiles(joint: Float[np.ndarray, "A B"], crowd: int, num_ordered: int) -> Float64[np.ndarray, "profiles B"]:
    """Distributions of the bins of a parent that a rare category may have. The first one is that of all of them.

    Args:
      joint: counts of the bins of the column and of the parent.
      crowd: the bin that rare categories share.
      num_ordered: how many bins of the parent are on a scale, which come first; 0 if it has none.
    """
    number = joint.shape[1]
    common = joint[crowd] + 1 / number
    known = np.delete(joint, crowd, axis=0)
    parts = [common[None], known[known.sum(1) > 0], np.eye(number)]
    places = np.arange(number)
    for width in _WIDTHS if num_ordered else ():
        bells = np.exp(-0.5 * np.square((places - places[:num_ordered, None]) / width))
        bells[:, num_ordered:] = 0
        parts.append(bells)
    profiles = np.concatenate([part / part.sum(1, keepdims=True) for part in parts])
    return (1 - _ANYTHING) * profiles + _ANYTHING * profiles[0]


def _denoised(
    counts: Float[np.ndarray, "K B"],
    noise: float,
    sizes: Float[np.ndarray, "K"],
    profiles: Float[np.ndarray, "profiles B"],
) -> Float64[np.ndarray, "K B"]:
    """Estimated counts of categories and bins, see :func:`rare_categories`.

    Args:
      counts: noisy ones.
      noise: their standard deviation.
      sizes: estimated numbers of rows of the categories.
      profiles: distributions of the bins.
    """
    along = sizes[:, None] * (counts @ profiles.T) - np.square(sizes)[:, None] * np.square(profiles).sum(1) / 2
    logs = along / max(noise, 1e-9) ** 2
    likelihoods = np.exp(logs - logs.max(1, keepdims=True))
    weights = np.full(len(profiles), 1 / len(profiles))
    posterior = likelihoods
    for _ in range(_NUM_ROUNDS):
        posterior = likelihoods * weights
        posterior /= posterior.sum(1, keepdims=True)
        weights = posterior.mean(0)
    return sizes[:, None] * (posterior @ profiles)


def log_linear_model(
    place: int,
    codes: Int64[np.ndarray, "K"],
    parents: tuple[int, ...],
    of_classes: Float[np.ndarray, "classes K"],
    tables: Sequence[Float[np.ndarray, "K B"]],
    groups: Int64[np.ndarray, "n parents"],
) -> RareCategories:
    """The log-linear model with these counts, by iterative proportional fitting.

    Args:
      place, codes, parents: as in ``RareCategories``.
      of_classes: counts of the categories in every class.
      tables: for each parent, counts of the categories in its bins.
      groups: the class of each row, and its bins in the parents, of rows that stand for all.
    """
    of_groups, sizes = np.unique(groups, axis=0, return_counts=True)
    most_frequent = np.sort(np.argsort(-sizes, kind="stable")[: max(1, _MOST_ODDS // len(codes))])
    of_groups, sizes = of_groups[most_frequent], sizes[most_frequent].astype(np.float64)
    total = sizes.sum()
    of_cells = np.maximum(of_classes.sum(0), _LEAST)
    of_cells *= total / of_cells.sum()
    odds, targets, members = [], [], []
    for i, table in enumerate([of_classes, *(counts.T for counts in tables)]):  # [T or B, K]
        table = np.maximum(table, _LEAST)
        member = scipy.sparse.csr_array(
            (np.ones(len(sizes)), (of_groups[:, i], np.arange(len(sizes)))), (len(table), len(sizes))
        )
        of_bins = member @ sizes
        # Bins without a group keep what their own counts say.
        own = np.log(table / table.sum(1, keepdims=True)) - np.log(of_cells / total)
        odds.append(np.where(of_bins[:, None] > 0, 0.0, own))
        for _ in range(_NUM_SCALINGS):
            table = table * (np.maximum(of_bins, _LEAST) / table.sum(1))[:, None]
            table = table * (of_cells / table.sum(0))
        targets.append(table)
        members.append(member)
    odds[0] = odds[0] + np.log(of_cells / total)
    expected = sizes[:, None] * (of_cells / total)  # [G, K]
    before = math.inf
    for _ in range(_NUM_SCALINGS):
        furthest = 0.0
        for i, (target, member) in enumerate(zip(targets, members, strict=True)):
            found = member @ expected
            furthest = max(furthest, float(np.abs(found - target).sum()) / (2 * total))
            factors = np.where(found > 0, target / np.maximum(found, np.finfo(float).tiny), 1.0)
            odds[i] += np.log(factors)
            expected *= factors[of_groups[:, i]]
            expected *= (sizes / expected.sum(1))[:, None]
        # Noisy tables may contradict each other. Then factors would grow for ever, and change nothing.
        if furthest < _SCALED or furthest > _HARDLY_LESS * before:
            break
        before = furthest
    for i in range(1, len(odds)):  # factors of a category alone are those of the classes
        shift = (members[i] @ sizes) @ odds[i] / total
        odds[i] = np.clip(odds[i] - shift, -LARGEST_ODDS, LARGEST_ODDS)
        odds[0] = odds[0] + shift
    odds[0] = np.maximum(odds[0] - odds[0].max(1, keepdims=True), -LARGEST_ODDS)
    return RareCategories(place, codes, parents, odds[0], tuple(odds[1:]))
