"""Estimates with intervals for questions about a released table. Post-processing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pyarrow as pa

from kme_jax._numerics.precision import Progress
from kme_jax.analysis.direct import direct_answer
from kme_jax.analysis.estimates import Estimate, check_level
from kme_jax.analysis.queries import Query
from kme_jax.analysis.replicates import Bootstrap, bootstrap
from kme_jax.table.release import TableRelease


def answers(
    release: TableRelease,
    text: str,
    *,
    level: float = 0.95,
    method: str = "direct",
    population: bool = False,
    replicates: Bootstrap | None = None,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Estimate | dict[str, Estimate]:
    """The answer to a question about the private rows of a table. See ``kme_jax.estimate``."""
    query = check_query(release, text, method)
    check_level(level)
    if method == "direct":
        found = {}
        for group, of_group in _by_group(release, query).items():
            answer = direct_answer(release.measurement, of_group)
            if answer is None:  # the noise hides this group, but not all of them
                continue
            sampling = _sampling_error(release, of_group, answer.value) if population else 0.0
            error = math.hypot(answer.standard_error, sampling)
            found[group] = Estimate.of(answer.value, error, level, method="direct", population=population)
        return found if query.by is not None else found[""]
    if replicates is None:
        replicates = bootstrap(release, population=population, seed=seed, progress=progress)
    if (
        not isinstance(replicates, Bootstrap)
        or replicates.release is not release
        or replicates.population != population
    ):
        raise ValueError("replicates: they are of another release, or of the population instead of the rows")

    def of_rows(table: pa.Table) -> dict[str, float]:
        return query.answer(release.schema, release.schema.encode(table))

    estimates = replicates.estimates(of_rows, level)
    return estimates if query.by is not None else estimates[""]


def check_query(release: TableRelease, text: str, method: str) -> Query:
    """The query that a text asks, which :func:`answers` can answer.

    Raises:
      ValueError: as ``kme_jax.estimate``.
    """
    if not isinstance(release, TableRelease):
        raise ValueError(f"release: expected a release of points or of a table, got a {type(release).__name__}")
    query = Query.parse(text, release.schema)
    is_split = release.measurement.layout.split >= 0
    others = sorted(query.asked_columns(release.schema) - ({release.target} if is_split else set()))
    known = f"one column and of the target {release.target}" if is_split else "one column"
    if method == "direct":
        if all(direct_answer(release.measurement, one) is None for one in _by_group(release, query).values()):
            remedy = (
                f"it is about {_listed(others)}, and was not counted in bins that answer it; other intervals are for "
                f"questions of {known}"
                if len(others) > 1
                else "noisy sums do not answer it by themselves; the method bootstrap does"
            )
            raise ValueError(f"query {query.text!r}: {remedy}")
    elif len(others) > 1:
        raise ValueError(
            f"query {query.text!r}: it is about {_listed(others)}; the bootstrap is for questions of {known}, because "
            "a release weakens the dependence of other columns"
        )
    return query


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _by_group(release: TableRelease, query: Query) -> dict[str, Query]:
    """A query for each group, by the text of the group's value; {"": query} if there are no groups."""
    if query.by is None:
        return {"": query}
    groups = query.groups(release.schema)
    return {group: dataclasses.replace(query, by=None, where=(*query.where, f"{query.by}={group}")) for group in groups}


def _sampling_error(release: TableRelease, query: Query, value: float) -> float:
    """Standard error of a mean, a share or a standard deviation of N rows of a population, of which some count."""
    codes = release.schema.encode(release.table)
    numbers = query.numbers(release.schema, codes)
    rows = max(1.0, release.statement["num_rows"] * len(numbers) / len(codes))
    if query.statistic == "share":
        return math.sqrt(max(value * (1 - value), 0) / rows)
    if not len(numbers):
        return math.inf
    variance = float(numbers.var())
    if query.statistic == "mean":
        return math.sqrt(variance / rows)
    fourth = float(((numbers - numbers.mean()) ** 4).mean())
    return math.sqrt(max(fourth - variance**2, 0) / rows) / (2 * max(math.sqrt(variance), 1e-300))
