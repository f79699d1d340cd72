"""Estimates with intervals for questions about a released table. Post-processing."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pyarrow as pa

from kme_jax._numerics.precision import Progress
from kme_jax.analysis.bootstrap import NUM_REPLICATES, Bootstrap, bootstrap
from kme_jax.analysis.direct import Answer, direct_answer
from kme_jax.analysis.estimates import Estimate, check_level
from kme_jax.analysis.queries import Query
from kme_jax.table.release import TableRelease

METHODS = ("direct", "bootstrap")


def estimate(
    release: TableRelease,
    query: str,
    *,
    level: float = 0.95,
    method: str = "direct",
    population: bool = False,
    replicates: Bootstrap | None = None,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Estimate | dict[str, Estimate]:
    """The answer to a question about the private rows, with an interval. Nothing is spent.

    There are two methods. *direct*: the mean and the standard deviation of a column, and the share of rows that meet
    conditions on one column, from the noisy sums that were measured first (``kme_jax.analysis.direct``). This takes no
    time, and the interval is that of the known noise. *bootstrap*: any answer of the released rows, with an
    interval from replicates of the release (``kme_jax.analysis.bootstrap``). It is often several times shorter, but
    contains the statistic less often than its level says: about 90 % of intervals with a level of 95 % did in
    ``experiments.tables.coverage``. Replicates take a while, so make them once for several questions.

    Questions are about one column, and about the target if there is one. A question about the dependence of other
    columns is refused: weak dependence is smoothed away in a release, more than its replicates show, and intervals
    would be too short.

    Args:
      release: of a table.
      query: "mean(income)", "sd(age)", "median(age)", "quantile(income, 0.9)" or "share(age>=65)". It may be followed
        by "where" and conditions, such as "where age>=18 and age<65", and by "by" and the name of a column.
      level: of the interval.
      method: "direct" or "bootstrap".
      population: whether the question is about the population from which the private rows were drawn at random.
        Otherwise it is about the private rows.
      replicates: of the release, see :func:`bootstrap`; None to make them if they are needed.
      num_replicates: see :func:`bootstrap`.
      seed: of the replicates.
      progress: True for a bar, or a function that is called with (replicates done, all replicates).

    Returns:
      An estimate; or one for each value of the column after "by", by the text of the value.

    Raises:
      ValueError: the query cannot be read, or is about the dependence of columns; the method does not exist, or has no
        answer; it is no release of a table; replicates are of another release, or of the population if rows are asked
        for, or the other way round.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, estimate, release_table
      >>> rng = np.random.default_rng(0)
      >>> people = pa.table({"age": rng.integers(18, 91, 2000), "sex": rng.choice(["f", "m"], 2000)})  # private
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("sex", ("f", "m"))))
      >>> released = release_table(people, schema, budget=PrivacyBudget(1.0, 1e-5))
      >>> mean = estimate(released, "mean(age)")
      >>> mean.low < mean.value < mean.high
      True
    """
    parsed = check_query(release, query, method)
    check_level(level)
    if method == "direct":
        answer = cast(Answer, direct_answer(release.measurement, parsed))
        error = math.hypot(answer.standard_error, _sampling_error(release, parsed, answer.value) if population else 0.0)
        return Estimate.of(answer.value, error, level, method="direct", population=population)
    if replicates is None:
        replicates = bootstrap(release, num_replicates, population=population, seed=seed, progress=progress)
    if replicates.release is not release or replicates.population != population:
        raise ValueError("replicates: they are of another release, or of the population instead of the rows")

    def of_rows(table: pa.Table) -> dict[str, float]:
        return parsed.answer(release.schema, release.schema.encode(table))

    estimates = replicates.estimates(of_rows, level)
    return estimates if parsed.by is not None else estimates[""]


def check_query(release: TableRelease, text: str, method: str) -> Query:
    """The query that a text asks, which :func:`estimate` can answer.

    Raises:
      ValueError: as :func:`estimate`.
    """
    if not isinstance(release, TableRelease):
        raise ValueError(f"release: expected the release of a table, got a {type(release).__name__}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    query = Query.parse(text, release.schema)
    is_split = release.measurement.layout.split >= 0
    others = sorted(query.asked_columns(release.schema) - ({release.target} if is_split else set()))
    if len(others) > 1:
        known = f"one column and of the target {release.target}" if is_split else "one column"
        raise ValueError(
            f"query {query.text!r}: it is about {others[0]} and {others[1]}; intervals are for questions of {known}"
        )
    if method == "direct" and direct_answer(release.measurement, query) is None:
        raise ValueError(f"query {query.text!r}: noisy sums do not answer it by themselves; the method bootstrap does")
    return query


def _sampling_error(release: TableRelease, query: Query, value: float) -> float:
    """Standard error of a mean, a share or a standard deviation of N rows of a population."""
    rows = release.statement["num_rows"]
    if query.statistic == "share":
        return math.sqrt(max(value * (1 - value), 0) / rows)
    codes = release.schema.encode(release.table)
    numbers = query.values(release.schema, codes)
    numbers = numbers[~np.isnan(numbers)]
    rows = max(1.0, rows * len(numbers) / len(codes))
    variance = float(numbers.var())
    if query.statistic == "mean":
        return math.sqrt(variance / rows)
    fourth = float(((numbers - numbers.mean()) ** 4).mean())
    return math.sqrt(max(fourth - variance**2, 0) / rows) / (2 * max(math.sqrt(variance), 1e-300))
