"""The accuracy to expect of a release of a table, from public quantities alone: the schema, N and the budget."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy.budget import REPLACE_ONE, PrivacyBudget, check_budget, check_num_rows
from kme_jax.privacy.calibration import takes_fine_noise
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.perturb import secure_mechanism
from kme_jax.table import plan as plans
from kme_jax.table.evaluate import numeric_values
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
      mean_error: for a number, the standard deviation of the noise of its mean in the first measurement, in its units;
        otherwise None. The third one measures it again, within the range of most rows.
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
class ExpectedTable:
    """What to expect of a release of a table.

    Attributes:
      num_rows: N.
      budget: the budget.
      columns: one for each measured column but the target, if all marginals are split by it.
      num_pairs: how many pairs of columns there are.
      coarse_noise: standard deviation of the noise of a count of a pair of columns in the second measurement, in rows;
        None if there are no pairs.
      fine_noise: the same in the third measurement, if it has half of all pairs.
    """

    num_rows: int
    budget: PrivacyBudget
    columns: tuple[ExpectedColumn, ...]
    num_pairs: int
    coarse_noise: float | None
    fine_noise: float | None


def expected_errors(
    schema: Schema, num_rows: int, budget: PrivacyBudget, *, target: str | None = None
) -> ExpectedTable:
    """The noise and the errors to expect of ``release_table``. It reads no rows, and spends nothing.

    The noise of single columns is exact. That of pairs is for rows that are spread evenly: bins depend on the first
    measurement, and how many pairs are measured again on the second.

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
    schema = schema.measured
    if num_rows < 2:
        raise ValueError(f"num_rows: expected at least 2 rows, got {num_rows}")
    check_budget(budget)
    check_relation(schema, budget.relation)
    if budget.relation == REPLACE_ONE:
        check_num_rows(num_rows, budget)
    rho = plans.comparable_rho(Composition.planned(budget))
    layout = plans.Layout.create(*binnings_and_target(schema, target), num_rows, rho, budget.relation)
    shares = plans.shares_of_all(layout, budget.relation)
    singles = plans.Singles.read(
        layout, _without_rows(plans.singles_map(layout), num_rows, budget, shares[0]), denoised=False
    )
    columns = tuple(_column(schema, layout, singles, a, num_rows) for a in range(len(layout.columns)))
    coarse_noise, fine_noise = None, None
    if layout.pairs():
        even = _spread_evenly(layout, singles, num_rows)
        plan = plans.Plan.create(layout, even, num_rows, rho)
        has_triples = plans.triples_pay(layout, num_rows, plans.shares(layout)[1] * rho)
        half = range(math.ceil(len(layout.pairs()) / 2))
        coarse = plans.coarse_map(layout, plan, has_triples)
        fine = plans.pairs_map(layout, plan, half, [], [], [])
        coarse_noise = _noise_of_pairs(layout, coarse, num_rows, budget, shares[1])
        fine_noise = _noise_of_pairs(layout, fine, num_rows, budget, shares[2])
    return ExpectedTable(num_rows, budget, columns, len(layout.pairs()), coarse_noise, fine_noise)


def _without_rows(feature_map: TableMap, num_rows: int, budget: PrivacyBudget, share: float) -> NoisyEmbedding:
    """A measurement that is all zero, with the mechanism that it would have."""
    integers = feature_map.integers(num_rows)
    mechanism = secure_mechanism(integers, num_rows, budget, share=share, fine=takes_fine_noise(budget))
    return NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)


def _noise_of_pairs(
    layout: plans.Layout, feature_map: TableMap | None, num_rows: int, budget: PrivacyBudget, share: float
) -> float | None:
    """The median noise of the counts of pairs of columns, all classes together."""
    if feature_map is None:
        return None
    noisy = _without_rows(feature_map, num_rows, budget, share)
    pairs = [block for block in feature_map.blocks if len(set(block.columns) - {layout.split}) == 2]
    noises = [plans.sigma(noisy, block) * math.sqrt(layout.num_classes) for block in pairs]
    return float(np.median(noises)) if noises else None


def _spread_evenly(layout: plans.Layout, singles: plans.Singles, num_rows: int) -> plans.Singles:
    """The first measurement of rows that are spread evenly over the cells of every column."""
    counts: list[Float64[np.ndarray, "classes _"]] = [np.full(c.shape, num_rows / c.size) for c in singles.counts]
    inside = [np.ones(c.shape[1], bool) for c in counts]
    sums = [c.sum(0) for c in counts]
    return dataclasses.replace(singles, counts=counts, sums=sums, smoothed=counts, inside=inside)


def _column(schema: Schema, layout: plans.Layout, singles: plans.Singles, a: int, num_rows: int) -> ExpectedColumn:
    j = layout.columns[a]
    column, binning, noise = schema.columns[j], layout.binnings[j], singles.sums_sigmas[a]
    edges = binning.first_codes()
    codes = np.zeros((binning.num_cells, len(schema.columns)), np.int64)
    codes[:, j] = edges[:-1]
    _, together = np.unique(compared_cells(schema, codes)[0][j], return_counts=True)  # cells in each compared cell
    distance = _MEAN_SIZE * noise * float(np.sqrt(together).sum()) / (2 * num_rows)
    deviation = math.sqrt(1 - _MEAN_SIZE**2) * noise * math.sqrt(together.sum()) / (2 * num_rows)
    mean_error = None
    if column.kind == "numeric":
        moments = singles.moments[a]
        if moments is None:
            values = numeric_values(column, edges[: binning.num_values])
            mean_error = noise * float(np.linalg.norm(values - values.mean())) / num_rows
        else:
            ends = numeric_values(column, np.asarray([moments.moment.low[0], moments.moment.high[0]]))
            mean_error = float(np.ptp(ends)) / 2 * moments.sigma / num_rows
    smallest = min(1.0, _STANDS_OUT * noise / num_rows)
    return ExpectedColumn(
        column.name,
        column.kind,
        binning.num_cells,
        noise,
        smallest,
        min(1.0, distance),
        min(1.0, distance + _RARELY * deviation),
        mean_error,
        None if mean_error is None else _RARELY * mean_error,
    )
