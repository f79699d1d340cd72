"""The accuracy to expect of a release of a table, from public quantities alone: the schema, N and the budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float64, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy.budget import REPLACE_ONE, PrivacyBudget, check_budget, check_num_rows
from kme_jax.privacy.calibration import takes_fine_noise
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.perturb import secure_mechanism
from kme_jax.table import planning as plans
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import numeric_values
from kme_jax.table.marginals import compared_cells
from kme_jax.table.release import binnings_and_target, check_columns, check_relation
from kme_jax.table.schema import Schema

_MEAN_SIZE = math.sqrt(2 / math.pi)  # E|g| of a standard normal g
_RARELY = 2.0  # standard deviations, which errors exceed rarely
_STANDS_OUT = 4.0  # σ, from which on a count is clearly more than noise


@short_repr
@dataclasses.dataclass(frozen=True)
class ExpectedColumn:
    """What to expect of one column.

    Attributes:
      name: of the column.
      kind: "numeric", "categorical", "ordinal" or "datetime".
      num_cells: the number of cells in which its rows are counted.
      noise: standard deviation of the noise of the count of a cell, all classes of the target together, in rows.
      smallest_share: of the rows that a single cell needs to stand out clearly.
      total_variation: the expected distance between the marginals of the private rows and of the noisy counts
        themselves, in the cells of ``evaluate_table``. Denoising makes it smaller where a column is smooth, often by
        far.
      total_variation_bound: what this distance exceeds rarely: two standard deviations above its mean.
      mean_error: for a number, the standard deviation of the noise of its mean from the first and the third
        measurement, in its units, if rows fill its bounds. It is smaller if they fill a part of them. None for others.
      mean_bound: two standard deviations.
    """

    name: str
    kind: str
    num_cells: int
    noise: float
    smallest_share: float
    total_variation: float
    total_variation_bound: float
    mean_error: float | None
    mean_bound: float | None


@short_repr
@dataclasses.dataclass(frozen=True)
class ExpectedPair:
    """What to expect of a pair of measured columns, from the noise of its own counts alone.

    Rows are taken to be spread evenly over the cells of each column, and independent within a bin. What bins hide of
    real rows is no noise, and is not in here. Nor is the noise of single columns, which decides how the rows of a bin
    are spread over its cells: it adds at most the distances of both columns. The fit leaves less noise than this.

    Attributes:
      names: of both columns.
      num_cells: the number of cells: of combinations of bins in the third measurement. If one of the columns is the
        target that all marginals are split by: of classes and cells in the first one.
      first_noise: standard deviation of the noise of a count in the first measurement, in rows. None unless one of the
        columns is the target that all marginals are split by. Then the other measurements do not have the pair.
      coarse_noise: the same in the second measurement, all classes of the target together, or None.
      fine_noise: the same in the third measurement, if it has half of all pairs and this one is among them, or None.
      total_variation: the expected distance between the marginals of the private rows and of the noisy counts, in the
        cells of ``evaluate_table``. A count is spread evenly over the cells of its bins. It is that of the first
        measurement; or the larger of those of the second and of the third one, as it is not known beforehand whether a
        pair is measured again.
      total_variation_bound: what this distance exceeds rarely: two standard deviations above its mean, or a little
        more.
    """

    names: tuple[str, str]
    num_cells: int
    first_noise: float | None
    coarse_noise: float | None
    fine_noise: float | None
    total_variation: float
    total_variation_bound: float


@short_repr
@dataclasses.dataclass(frozen=True)
class ExpectedTable:
    """What to expect of a release of a table.

    Attributes:
      num_rows: N.
      budget: the budget.
      columns: one for each measured column but the target, if all marginals are split by it.
      num_pairs: how many pairs of columns the second measurement has.
      coarse_noise: standard deviation of the noise of a count of a pair of columns in the second measurement, in rows:
        the median of all pairs. None if there are no pairs.
      fine_noise: the same in the third measurement, if it has half of all pairs.
      pairs: one for each pair of measured columns.
    """

    num_rows: int
    budget: PrivacyBudget
    columns: tuple[ExpectedColumn, ...]
    num_pairs: int
    coarse_noise: float | None
    fine_noise: float | None
    pairs: tuple[ExpectedPair, ...]


def expected_errors(
    schema: Schema, num_rows: int, budget: PrivacyBudget, *, target: str | None = None
) -> ExpectedTable:
    """The noise and the errors to expect of ``release_table``. It reads no rows, and spends nothing.

    The noise of single columns is exact. That of pairs is for rows that are spread evenly: bins depend on the first
    measurement, and how many pairs are measured again on the second. See :class:`ExpectedPair`.

    Args:
      schema: of the columns.
      num_rows: N, or about N if it is private. If rows have weights: their sum, divided by the largest weight.
      budget: (ε, δ) and the relation.
      target: the name of the column that others are meant to predict.

    Raises:
      ValueError: there is no such target, or the budget or N is invalid.

    Examples:
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema
      >>> from kme_jax.table.expected import expected_errors
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("job", ("baker", "clerk", "nurse"))))
      >>> age, job = expected_errors(schema, 10_000, PrivacyBudget(1.0, 1e-6)).columns
      >>> age.mean_error < 1, job.total_variation < 0.01
      (True, True)
    """
    check_columns(schema, target)
    check_budget(budget)
    check_relation(schema, budget.relation)
    families, schema = schema.recoding.families, schema.measured
    if num_rows < 2:
        raise ValueError(f"num_rows: expected at least 2 rows, got {num_rows}")
    if budget.relation == REPLACE_ONE:
        check_num_rows(num_rows, budget)
    rho = plans.comparable_rho(Composition.planned(budget))
    layout = plans.Layout.create(*binnings_and_target(schema, target), num_rows, rho, budget.relation)
    shares = plans.shares_of_all(layout, budget.relation)
    singles = plans.Singles.read(
        layout, _without_rows(plans.singles_map(layout), num_rows, budget, shares[0]), denoised=False
    )
    pairs = _pairs_with_classes(schema, layout, singles, num_rows)
    coarse_noise, fine_noise, third = None, None, None
    if layout.pairs():
        even = _spread_evenly(layout, singles, num_rows)
        plan = plans.Plan.create(layout, even, num_rows, rho, families)
        has_triples = plans.triples_pay(layout, num_rows, plans.shares(layout)[1] * rho)
        half = range(math.ceil(len(layout.pairs()) / 2))
        coarse = plans.coarse_map(layout, plan, has_triples)
        fine = plans.pairs_map(layout, plan, half, [], [], [])
        third = _without_rows(fine, num_rows, budget, shares[2]) if fine is not None else None
        unit_noises = [
            _unit_noise(layout, of_pairs, num_rows, budget, share)
            for of_pairs, share in ((coarse, shares[1]), (fine, shares[2]))
        ]
        others = _other_pairs(schema, layout, plan, unit_noises, num_rows)
        coarse_noise = float(np.median([cast(float, pair.coarse_noise) for pair in others]))
        fine_noise = float(np.median([cast(float, pair.fine_noise) for pair in others]))
        pairs += others
    columns = tuple(_column(schema, layout, singles, third, a, num_rows) for a in range(len(layout.columns)))
    return ExpectedTable(num_rows, budget, columns, len(layout.pairs()), coarse_noise, fine_noise, tuple(pairs))


def _without_rows(feature_map: TableMap, num_rows: int, budget: PrivacyBudget, share: float) -> NoisyEmbedding:
    """A measurement that is all zero, with the mechanism that it would have."""
    integers = feature_map.integers(num_rows)
    mechanism = secure_mechanism(integers, num_rows, budget, share=share, fine=takes_fine_noise(budget))
    return NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)


def _unit_noise(
    layout: plans.Layout, feature_map: TableMap | None, num_rows: int, budget: PrivacyBudget, share: float
) -> float:
    """The noise of a count in a block of weight 1, all classes together. That of weight ω is 1/ω of it."""
    if feature_map is None:
        return math.inf
    block = feature_map.blocks[0]
    noise = plans.sigma(_without_rows(feature_map, num_rows, budget, share), block)
    return noise * block.weight * math.sqrt(layout.num_classes)


@short_repr
class _Parts(NamedTuple):
    """How the cells of ``evaluate_table`` and the parts of a column overlap. Parts are bins, unions of bins, or cells.

    Attributes:
      number: of parts.
      norms: Σ_i (Σ_u w_iu²)^½, with w_iu the share of the rows of part u that are in the compared cell i, if rows are
        spread evenly over the cells of the column. It is the number of parts if each compared cell is within one part.
    """

    number: int
    norms: float

    @classmethod
    def of(cls, schema: Schema, layout: plans.Layout, j: int, parts: Int[np.ndarray, "cells"]) -> _Parts:
        """The overlap for the part of each cell of the column of index j."""
        number = int(parts.max()) + 1
        places, counts = np.unique(_compared(schema, layout, j) * number + parts, return_counts=True)
        compared, part = np.divmod(places, number)
        shares = counts / np.bincount(parts)[part]
        return cls(number, float(np.sqrt(np.bincount(compared, np.square(shares))).sum()))


def _compared(schema: Schema, layout: plans.Layout, j: int) -> Int64[np.ndarray, "cells"]:
    """The cell of ``evaluate_table`` that each cell of a column begins in."""
    first = layout.binnings[j].first_codes()[:-1]
    return compared_cells(Schema((schema.columns[j],)), first[:, None])[0][0]


def _distances(noise: float, parts: tuple[_Parts, _Parts], num_rows: int) -> tuple[float, float]:
    """The expected total variation between a marginal of two columns and its noisy counts, and a bound.

    The error of the compared cell (i, j) is Σ_uv w_iu w_jv g_uv, with independent noise g of the counts. So the
    expected sum of absolute errors is √(2/π) σ Σ_ij (Σ_uv w_iu² w_jv²)^½, a product of a number for each column.

    Its variance is at most (1 − 2/π) σ² times the number of counts. Proof: the covariance of |x| and |y|, for normal x
    and y with correlation ρ and standard deviations s and t, is at most (1 − 2/π) ρ² s t, because it is a power series
    in ρ² without negative terms. So the variance is at most (1 − 2/π) times the sum of all covariances, which are not
    negative. This is the variance of Σ_uv g_uv, as the shares of each count sum to 1.
    """
    distance = _MEAN_SIZE * noise * math.prod(part.norms for part in parts) / (2 * num_rows)
    deviation = math.sqrt(1 - _MEAN_SIZE**2) * noise * math.sqrt(math.prod(p.number for p in parts)) / (2 * num_rows)
    return min(1.0, distance), min(1.0, distance + _RARELY * deviation)


def _distances_of_cells(
    noise: CellNoise, compared: Int[np.ndarray, "cells"], num_classes: int, num_rows: int
) -> tuple[float, float]:
    """The expected total variation between a marginal of one column and its noisy counts, and a bound.

    The expected sum of absolute errors is √(2/π) Σ_i s_i, with the standard deviation s_i of the noise of compared cell
    i. Its variance is at most (1 − 2/π) Σ_ij ρ_ij² s_i s_j, with the correlations ρ_ij, see :func:`_distances`.

    Args:
      noise: of the counts of cells, for each class.
      compared: the compared cell of every cell.
      num_classes: T; the noise of the classes is independent.
      num_rows: N.
    """
    _, groups = np.unique(compared, return_inverse=True)
    spread = noise.of_groups(groups)
    distance = _MEAN_SIZE * num_classes * float(spread.sum()) / (2 * num_rows)
    variance = num_classes * float(np.square(spread).sum())  # without correlations
    if noise.segments is not None:
        squares = np.square(noise.covariance_of_groups(groups))
        variance = num_classes * float((squares / np.maximum(np.outer(spread, spread), 1e-300)).sum())
    deviation = math.sqrt((1 - _MEAN_SIZE**2) * variance) / (2 * num_rows)
    return min(1.0, distance), min(1.0, distance + _RARELY * deviation)


def _pairs_with_classes(
    schema: Schema, layout: plans.Layout, singles: plans.Singles, num_rows: int
) -> list[ExpectedPair]:
    """The pairs of each column and the target, if all marginals are split by it."""
    if layout.split < 0:
        return []
    classes, pairs = layout.num_classes, []
    for a, j in enumerate(layout.columns):
        noise = singles.of_classes(a)[1]
        names, size = (schema.names[j], schema.names[layout.split]), layout.binnings[j].num_cells * classes
        distances = _distances_of_cells(noise, _compared(schema, layout, j), classes, num_rows)
        pairs.append(ExpectedPair(names, size, noise.sigma, None, None, *distances))
    return pairs


def _other_pairs(
    schema: Schema, layout: plans.Layout, plan: plans.Plan, unit_noises: Sequence[float], num_rows: int
) -> list[ExpectedPair]:
    """The pairs of the second measurement.

    Args:
      schema: of the measured columns.
      layout: of these columns.
      plan: the bins.
      unit_noises: of the second and of the third measurement, see :func:`_unit_noise`.
      num_rows: N.
    """
    of_columns = [
        [_Parts.of(schema, layout, j, parts) for parts in both]
        for j, *both in zip(layout.columns, plan.merged, plan.bins, strict=True)
    ]
    pairs = []
    for a, b in layout.pairs():
        both = list(zip(of_columns[a], of_columns[b], strict=True))
        sizes = [one.number * other.number for one, other in both]
        noises = [
            noise / layout.weight(layout.num_classes * size) for noise, size in zip(unit_noises, sizes, strict=True)
        ]
        found = [_distances(noise, parts, num_rows) for noise, parts in zip(noises, both, strict=True)]
        names = schema.names[layout.columns[a]], schema.names[layout.columns[b]]
        distance, bound = (max(numbers) for numbers in zip(*found, strict=True))
        pairs.append(ExpectedPair(names, sizes[1], None, noises[0], noises[1], distance, bound))
    return pairs


def _spread_evenly(layout: plans.Layout, singles: plans.Singles, num_rows: int) -> plans.Singles:
    """The first measurement of rows that are spread evenly over the cells of every column."""
    counts: list[Float64[np.ndarray, "classes _"]] = [np.full(c.shape, num_rows / c.size) for c in singles.counts]
    inside = [np.ones(c.shape[1], bool) for c in counts]
    sums = [c.sum(0) for c in counts]
    segments: list[plans.Segments | None] = [None] * len(counts)
    return dataclasses.replace(singles, counts=counts, sums=sums, segments=segments, smoothed=counts, inside=inside)


def _column(
    schema: Schema, layout: plans.Layout, singles: plans.Singles, third: NoisyEmbedding | None, a: int, num_rows: int
) -> ExpectedColumn:
    """What noise does to one column.

    Args:
      schema: of the measured columns.
      layout: of these columns.
      singles: the first measurement, without rows.
      third: the third measurement of rows that fill all bounds; None if there is none.
      a: place of the column.
      num_rows: N.
    """
    j = layout.columns[a]
    column, binning, (_, of_cells) = schema.columns[j], layout.binnings[j], singles.of_all(a)
    noise, edges = of_cells.sigma, binning.first_codes()
    distances = _distances_of_cells(of_cells, _compared(schema, layout, j), 1, num_rows)
    mean_error = None
    if column.kind == "numeric":
        moments = singles.moments[a]
        if moments is None:
            values = numeric_values(column, edges[: binning.num_values])
            centred = np.append(values - values.mean(), np.zeros(int(binning.missing)))
            mean_error = float(of_cells.of(centred)) / num_rows
        else:
            errors = []
            for both in (moments, *plans.narrow_moments(layout, j, third)):
                ends = numeric_values(column, np.asarray([both.moment.low[0], both.moment.high[0]]))
                errors.append(float(np.ptp(ends)) / 2 * both.sigma / num_rows)
            mean_error = 1 / math.sqrt(sum(error**-2 for error in errors))
    smallest = min(1.0, _STANDS_OUT * noise / num_rows)
    return ExpectedColumn(
        column.name,
        column.kind,
        binning.num_cells,
        noise,
        smallest,
        *distances,
        mean_error,
        None if mean_error is None else _RARELY * mean_error,
    )
