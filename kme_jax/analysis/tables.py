"""Estimates with intervals for questions about a released table. Post-processing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from kme_jax._numerics.precision import Progress
from kme_jax.analysis.direct import direct_answer, direct_quantile
from kme_jax.analysis.estimates import Estimate, Estimates, NoAnswerError, check_level, no_release
from kme_jax.analysis.grammar import check_no_total
from kme_jax.analysis.hidden_pairs import HiddenPairs
from kme_jax.analysis.queries import Query
from kme_jax.analysis.replicates import Bootstrap, bootstrap, check_population, measured_codes
from kme_jax.analysis.sums import Answer, Sums
from kme_jax.privacy.budget import REPLACE_ONE
from kme_jax.privacy.statement import relation_of
from kme_jax.table.columns import Numeric
from kme_jax.table.release import TableMeasurement, TableRelease
from kme_jax.table.schema import Schema


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
) -> Estimate | Estimates:
    """The answer to a question about the private rows of a table. See ``kme_jax.estimate``."""
    query = check_query(release, text, population=population)
    check_level(level)
    if method == "direct":
        found = direct_estimates(release.measurement, query, level, release.table if population else None)
        groups = [] if query.terms and query.by is None else query.groups(release.schema.extended)
        return found[""] if list(found) == [""] else Estimates(found, [name for name in groups if name not in found])
    if replicates is not None and (
        not isinstance(replicates, Bootstrap)
        or replicates.release is not release
        or replicates.population != population
    ):
        raise ValueError("replicates: they are of another release, or of the population instead of the rows")
    _check_is_shown(release, query, replicates)
    if replicates is None:
        replicates = bootstrap(release, population=population, seed=seed, progress=progress)

    def of_rows(table: pa.Table) -> dict[str, float]:
        schema = release.schema
        return query.answer(schema.extended, schema.extended_codes(schema.encode(table, words=False)))

    estimates, units = replicates.estimates(of_rows, level), 1.0
    if query.is_total:
        units = release.schema.units_of_row
        estimates = {name: one.times(release.statement["num_rows"] * units) for name, one in estimates.items()}
    # A correction for bias may be more than what is possible.
    ends = [units * end for end in _possible(release.measurement, query)]
    estimates = {name: one.within(*ends) for name, one in estimates.items()}
    return estimates[""] if list(estimates) == [""] else Estimates(estimates)


def check_query(release: TableRelease, text: str, *, population: bool = False) -> Query:
    """The query that a text asks.

    Raises:
      ValueError: as ``kme_jax.estimate``.
    """
    if not isinstance(release, TableRelease):
        raise no_release(release)
    query = Query.parse(text, release.schema.extended)
    if population:
        check_population(release)
        check_no_total(query)
    return query


def _check_is_shown(release: TableRelease, query: Query, replicates: Bootstrap | None) -> None:
    """Refuses a question about two columns if noise left nothing of how they depend on each other.

    Raises:
      NoAnswerError: there are such columns.
    """
    others, known = _others(release.measurement, query)
    if len(others) < 2:
        return
    if replicates is None:
        hidden = HiddenPairs.of(release, measured_codes(release.schema, release.table)).unknown
    else:
        hidden = replicates.unknown
    for pair in hidden:
        if set(pair) <= set(others):
            raise NoAnswerError(
                f"query {query.text!r}: noise hides how {_listed(pair)} go together, also from replicates; ask about "
                f"{known}"
            )


def _others(measurement: TableMeasurement, query: Query) -> tuple[list[str], str]:
    """The columns of a query, less the target if marginals are split by it; and which questions are of one column."""
    is_split = measurement.layout.split >= 0
    others = sorted(query.asked_columns(measurement.schema.extended) - ({measurement.target} if is_split else set()))
    return others, f"one column and the target {measurement.target}" if is_split else "one column"


def direct_estimates(
    measurement: TableMeasurement | Sums, query: Query, level: float, released: pa.Table | None = None
) -> dict[str, Estimate]:
    """Estimates from noisy sums, by the text of the group or the name of the coefficient; "" if there is one alone.

    An interval with all values that are possible says nothing, so such an estimate is left out.

    Args:
      measurement: of a table, or its sums: read them once for several questions.
      query: any query.
      level: of the intervals.
      released: synthetic rows, for intervals that are about the population. None for the private rows themselves.

    Raises:
      ValueError: noise hides all answers, or the columns were not counted in bins that tell them.
    """
    sums = measurement if isinstance(measurement, Sums) else Sums.read(measurement)
    measurement, found, population = sums.measurement, {}, released is not None
    schema, ends, is_wide = measurement.schema, _possible(measurement, query), False
    codes = None if released is None else schema.extended_codes(schema.encode(released, words=False))
    for group, of_group in _by_group(schema.extended, query).items():
        if query.share_below is not None:
            estimated = direct_quantile(sums, of_group, level, population=population)
            if estimated is not None and estimated.has_all(*ends):
                is_wide = True
            elif estimated is not None:
                found[group] = estimated
            continue
        answer = direct_answer(sums, of_group)
        named = answer if isinstance(answer, dict) else {group: answer}
        errors = {} if codes is None else _sampling_errors(measurement, codes, of_group, named)
        for name, one in named.items():
            if one is not None:
                estimated = one.estimate(level, sampling=errors.get(name, 0.0), population=population)
                possible = estimated.within(*ends)
                if possible.has_all(*ends):
                    is_wide = True
                else:
                    found[name] = possible.times(measurement.schema.units_of_row) if query.is_total else possible
    if not found:
        others, known = _others(measurement, query)
        # A correlation of two columns cannot be asked about one.
        remedy = f"ask about {known}, use fewer conditions, or take" if not query.terms or query.where else "take"
        reason = (
            f"no direct interval, because noise or coarse bins hide how {_listed(others)} go together; {remedy} the "
            "method bootstrap, whose intervals may be too short"
            if len(others) > 1
            else "noise hides it: every possible value is in its interval"
            if is_wide
            else f"noisy sums do not answer it by themselves; {_in_weeks(schema, query)}the method bootstrap does"
        )
        raise NoAnswerError(f"query {query.text!r}: {reason}")
    return found


def _in_weeks(schema: Schema, query: Query) -> str:
    """A remedy if a limit of a time may be within a week, of which weeks were counted; otherwise empty."""
    names = [name for name in query.asked_columns(schema.extended) if f"{name} week" in schema.measured.names]
    return f"take Mondays as limits of {names[0]}, whose weeks were counted; " if names else ""


def _possible(measurement: TableMeasurement, query: Query) -> tuple[float, float]:
    """The smallest and the largest value that the statistic can have by the schema and the number of rows."""
    if query.statistic == "share":
        return 0.0, 1.0
    if query.statistic == "correlation":
        return -1.0, 1.0
    num_rows = measurement.statement["num_rows"] if relation_of(measurement.statement) == REPLACE_ONE else math.inf
    if query.statistic == "count":
        return 0.0, num_rows
    schema = measurement.schema.extended
    column = None if query.column is None else schema.columns[schema.index(query.column)]
    if isinstance(column, Numeric):
        lower, upper = column.lower, column.upper
        if query.statistic in ("mean", "median", "quantile"):
            return lower, upper
        if query.statistic == "sd":
            return 0.0, (upper - lower) / 2
        if query.statistic == "sum":
            return num_rows * lower if lower < 0 else 0.0, num_rows * upper if upper > 0 else 0.0
    return -math.inf, math.inf


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _by_group(schema: Schema, query: Query) -> dict[str, Query]:
    """A query for each group, by the text of the group's value; {"": query} if there are no groups."""
    return {
        name: query if group is None else dataclasses.replace(query, by=None, where=(*query.where, *group.conditions))
        for name, group in query.groups(schema).items()
    }


def _sampling_errors(
    measurement: TableMeasurement,
    codes: Int64[np.ndarray, "n d"],
    query: Query,
    answers: Mapping[str, Answer | None],
) -> dict[str, float]:
    """By name, standard errors of statistics of N rows of a population, of which some count, from synthetic rows."""
    schema, of_all = measurement.schema.extended, measurement.statement["num_rows"] / len(codes)
    if query.terms:
        values, kept = query.of_terms(schema, codes)
        values = values[kept]
        rows = max(1.0, of_all * len(values))
        if query.statistic == "correlation":
            return {name: (1 - one.value**2) / math.sqrt(rows) for name, one in answers.items() if one is not None}
        design = np.column_stack([np.ones(len(values)), values[:, 1:]])
        inverse = np.linalg.pinv(design.T @ design / max(1, len(values)))
        residuals = values[:, 0] - design @ (inverse @ (design.T @ values[:, 0] / max(1, len(values))))
        influence = (design * residuals[:, None]) @ inverse  # heteroscedastic residuals (White 1980)
        errors = np.sqrt(np.square(influence).mean(0) / rows).tolist() if len(values) else [math.inf] * len(inverse)
        return dict(zip(answers, errors if query.statistic == "regression" else errors[1:], strict=False))
    return {
        name: _sampling_error(query, schema, codes, of_all, one.value)
        for name, one in answers.items()
        if one is not None
    }


def _sampling_error(
    query: Query, schema: Schema, codes: Int64[np.ndarray, "n d"], of_all: float, value: float
) -> float:
    """Standard error of a mean, a share or a standard deviation."""
    numbers = query.numbers(schema, codes)
    rows = max(1.0, of_all * len(numbers))
    if query.statistic == "share":
        return math.sqrt(max(value * (1 - value), 0) / rows)
    if not len(numbers):
        return math.inf
    variance = float(numbers.var())
    if query.statistic == "mean":
        return math.sqrt(variance / rows)
    fourth = float(((numbers - numbers.mean()) ** 4).mean())
    return math.sqrt(max(fourth - variance**2, 0) / rows) / (2 * max(math.sqrt(variance), 1e-300))
