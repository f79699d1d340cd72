"""Questions about a table as text: mean(income) where age>=65 and sex=Female."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.grammar import TOTALS, check_known, column_and_quantile, column_pair, conditions_of, parts_of
from kme_jax.analysis.groups import Group, groups_of
from kme_jax.table.columns import numeric_values
from kme_jax.table.conditions import ranges_of
from kme_jax.table.schema import Schema
from kme_jax.table.written import refusals_explained

EXAMPLES = (
    "mean(age), sum(pay), sd(age), median(age), quantile(age, 0.9), share(age>=65), count(age>=65), "
    "correlation(age, pay), slope(pay, age), regression(pay ~ age + sex)"
)
INTERCEPT = "(intercept)"
_MOST_TERMS = 64  # of a column without numbers, in a regression

_STATISTICS: dict[str, Callable[[Float64[np.ndarray, "n"]], float]] = {
    "mean": lambda values: float(values.mean()),
    "sd": lambda values: float(values.std()),
    "median": lambda values: float(np.median(values)),
}


@short_repr
@dataclasses.dataclass(frozen=True)
class Query:
    """A question about a table.

    Attributes:
      text: as it was written.
      statistic: "mean", "sum", "sd", "median", "quantile", "share", "count", "correlation", "slope" or "regression".
      column: the name of its column; None for "share" and "count", and for those with terms.
      quantile: the share of rows below a quantile, or None.
      share: conditions of the rows whose share or number is asked for.
      where: conditions of the rows that count at all. Those that "and" joins are apart, if that is the same.
      by: the column whose values are groups, or the hour, month, quarter or year of a column of times, or None.
      terms: numeric columns or conditions: the two columns of a correlation, or the response and the predictors of a
        slope or a regression. Otherwise there are none. The predictors of a column of categories are conditions, one
        for each value except the first.
    """

    text: str
    statistic: str
    column: str | None = None
    quantile: float | None = None
    share: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    by: str | None = None
    terms: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, schema: Schema) -> Query:
        """The query that a text asks.

        Args:
          text: a statistic with its column in brackets, then perhaps "where" and conditions, and "by" and a column.
          schema: of the table.

        Raises:
          ValueError: the text cannot be read, or its column does not fit the statistic, or is not measured.
        """
        with refusals_explained(schema.written_columns):
            return cls._parsed(text, schema)

    @classmethod
    def _parsed(cls, text: str, schema: Schema) -> Query:
        known = [*_STATISTICS, "sum", "quantile", "share", "count", "correlation", "slope", "regression"]
        parts = parts_of(text, known, EXAMPLES)
        quantile, column, share, terms = None, None, (), ()
        if parts.statistic in ("share", "count"):
            share = () if parts.counts_all else (parts.inside,)
        elif parts.statistic == "quantile":
            column, quantile = column_and_quantile(text, parts.inside)
        elif parts.statistic == "regression":
            terms = _terms(text, parts.inside, schema)
        elif parts.statistic in ("correlation", "slope"):
            terms = column_pair(text, parts.inside, schema.names)
        else:
            column = parts.inside
        where = () if parts.where is None else _apart(parts.where, schema)
        query = cls(text, parts.statistic, column, quantile, share, where, parts.by, terms)
        query._check(schema)
        return dataclasses.replace(query, where=tuple(one for one in where if not query._is_met_anyway(schema, one)))

    @property
    def is_total(self) -> bool:
        """Whether it is a sum over rows: the answer of synthetic rows is that of one row, and N times as large."""
        return self.statistic in TOTALS

    @property
    def share_below(self) -> float | None:
        """The share of rows below the median or the quantile that is asked for; None for other statistics."""
        return 0.5 if self.statistic == "median" else self.quantile

    def _check(self, schema: Schema) -> None:
        names = [] if self.column is None else [self.column]
        if self.statistic in ("correlation", "slope"):
            names += self.terms
        for name in names:
            check_known(self.text, name, schema.names)
            if schema.columns[schema.index(name)].kind != "numeric":
                column = schema.columns[schema.index(name)]
                comparison = ">=" if column.ordered else "="
                as_term = self.column is None and column.num_codes <= _MOST_TERMS
                remedy = f"regression(... ~ {name})" if as_term else f"share({name}{comparison}...)"
                raise ValueError(f"query {self.text!r}: {name} is not numeric; ask for {remedy}")
        if len(set(self.terms)) < len(self.terms):
            raise ValueError(f"query {self.text!r}: the same column twice")
        if self.statistic == "regression" and self.by is not None:
            raise ValueError(f"query {self.text!r}: a regression has no groups; use where")
        for conditions in (self.share, self.where):
            try:
                codes = ranges_of(schema.columns, conditions)
                empty = [j for j, ranges in codes.items() if not ranges]
            except ValueError as error:
                raise ValueError(f"query {self.text!r}: {error}") from None
            if empty:
                column = schema.columns[empty[0]]
                ends = column.decode(np.asarray([0, column.num_values - 1])).cast(pa.string()).to_pylist()
                reason = (
                    f"; its values are from {ends[0]} to {ends[1]}" if column.kind in ("numeric", "datetime") else ""
                )
                raise ValueError(f"query {self.text!r}: no value of {column.name} meets the conditions{reason}")
            for name in () if conditions is self.share else names:
                column = schema.columns[schema.index(name)]
                if all(low >= column.num_values for low, _ in codes.get(schema.index(name), [(0, 0)])):
                    raise ValueError(f"query {self.text!r}: only missing cells of {name} meet the conditions")
        if self.by is not None:
            groups_of(self.text, self.by, schema)

    def _is_met_anyway(self, schema: Schema, condition: str) -> bool:
        """Whether a condition leaves out missing numbers alone, of a column whose missing numbers do not count."""
        own = {self.column, *self.terms}
        return all(
            schema.names[j] in own
            and schema.columns[j].kind == "numeric"
            and ranges == [(0, schema.columns[j].num_values)]
            for j, ranges in ranges_of(schema.columns, [condition]).items()
        )

    def groups(self, schema: Schema) -> dict[str, Group | None]:
        """The groups by the text of their value; {"": None} if there is one group of all rows."""
        return {"": None} if self.by is None else dict(groups_of(self.text, self.by, schema))

    def asked_columns(self, schema: Schema) -> set[str]:
        """The names of all columns that the query asks for."""
        names = {
            schema.names[j] for conditions in (self.share, self.where) for j in ranges_of(schema.columns, conditions)
        }
        names |= {_column_of(schema, term) for term in self.terms}
        names |= {schema.names[group.column] for group in self.groups(schema).values() if group is not None}
        return names if self.column is None else names | {self.column}

    def values(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
        """The numbers of the column, [n]; NaN for missing cells. Shares and counts have the numbers 1 and 0."""
        if self.column is None:
            return _meet(schema, self.share, codes).astype(float)
        j = schema.index(self.column)
        return numeric_values(schema.columns[j], codes[:, j])

    def numbers(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> Float64[np.ndarray, "k"]:
        """The numbers of the rows that count, groups aside, [k]."""
        values = self.values(schema, codes)
        return values[_meet(schema, self.where, codes) & ~np.isnan(values)]

    def of_terms(
        self, schema: Schema, codes: Int64[np.ndarray, "n d"]
    ) -> tuple[Float64[np.ndarray, "n terms"], Bool[np.ndarray, "n"]]:
        """The numbers of the terms, [n, terms], and which rows count, groups aside, [n]."""
        values = np.stack([_values_of_term(schema, term, codes) for term in self.terms], axis=1)
        return values, _meet(schema, self.where, codes) & ~np.isnan(values).any(1)

    def answer(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> dict[str, float]:
        """The statistic of each group, by the text of the group's value; NaN for a group without rows.

        A regression has a coefficient for each term instead. A number of rows, and a sum, are divided by that of all
        rows.

        Args:
          schema: of the table.
          codes: category codes of the rows.
        """
        if self.terms:
            return self._of_terms(schema, codes)
        values = self.values(schema, codes)
        kept = _meet(schema, self.where, codes) & ~np.isnan(values)
        answers = {}
        for name, group in self.groups(schema).items():
            rows = kept if group is None else kept & group.has(codes)
            if self.is_total:
                answers[name] = float(values[rows].sum()) / max(1, len(codes))
            else:
                answers[name] = self._of(values[rows]) if rows.any() else math.nan
        return answers

    def _of_terms(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> dict[str, float]:
        """A correlation or a slope of each group, or the coefficients of a regression by the name of the term."""
        values, kept = self.of_terms(schema, codes)
        if self.statistic == "regression":
            return dict(zip((INTERCEPT, *self.terms[1:]), _least_squares(values[kept]), strict=True))
        answers = {}
        for name, group in self.groups(schema).items():
            of_group = values[kept if group is None else kept & group.has(codes)]
            if self.statistic == "slope":
                answers[name] = _least_squares(of_group)[1]
            else:
                centred = of_group - of_group.mean(0) if len(of_group) else of_group
                scale = math.sqrt(float(np.square(centred).sum(0).prod()))
                answers[name] = float(centred.prod(1).sum()) / scale if scale > 0 else math.nan
        return answers

    def _of(self, values: Float64[np.ndarray, "n"]) -> float:
        if self.quantile is not None:
            return float(np.quantile(values, self.quantile))
        return _STATISTICS["mean" if self.statistic == "share" else self.statistic](values)


def _apart(text: str, schema: Schema) -> tuple[str, ...]:
    """The conditions that "and" joins; the whole text if there are brackets, alternatives or values with "and"."""
    conditions = conditions_of(text, schema.names)
    try:
        is_same = ranges_of(schema.columns, conditions) == ranges_of(schema.columns, [text])
    except ValueError:  # also if the text itself cannot be read, which ``Query._check`` says
        is_same = False
    return conditions if is_same else (text,)


def _meet(schema: Schema, conditions: tuple[str, ...], codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
    """Which rows meet all conditions, [n]."""
    met = np.ones(len(codes), bool)
    for j, ranges in ranges_of(schema.columns, conditions).items():
        met &= np.any([(codes[:, j] >= low) & (codes[:, j] < high) for low, high in ranges or [(0, 0)]], axis=0)
    return met


def _terms(text: str, inside: str, schema: Schema) -> tuple[str, ...]:
    """The response and the predictors of a regression. A column of categories is a condition for each value but one.

    Raises:
      ValueError: the text cannot be read, or a column cannot be a predictor.
    """
    response, tilde, rest = inside.partition("~")
    if not tilde:
        raise ValueError(f"query {text!r}: expected a response and its predictors, such as regression(pay ~ age + sex)")
    terms = [response.strip()]
    for word in re.split(r"\s\+\s", rest):
        name = word.strip()
        if name in schema.names and schema.columns[schema.index(name)].kind != "numeric":
            column = schema.columns[schema.index(name)]
            if column.num_codes > _MOST_TERMS:
                raise ValueError(
                    f"query {text!r}: {name} has {column.num_codes} values, and at most {_MOST_TERMS} can be terms; "
                    f"use a condition such as {name}{'>=' if column.ordered else '='}..."
                )
            values = column.decode(np.arange(column.num_codes)).to_pylist()
            terms += [f"{name}={'missing' if value is None else value}" for value in values[1:]]
        else:
            terms.append(name)
    for term in terms:
        if term not in schema.names:
            try:
                number = len(ranges_of(schema.columns, [term]))
            except ValueError as error:
                known = f"expected a column, or a condition such as sex=f, between ~ and + with blanks: {error}"
                raise ValueError(f"query {text!r}: {known}") from None
            assert number == 1
        elif schema.columns[schema.index(term)].kind != "numeric":
            raise ValueError(f"query {text!r}: {term} is not numeric; the response may be a condition: {term}=...")
    return tuple(terms)


def _column_of(schema: Schema, term: str) -> str:
    """The name of the column of a term."""
    return term if term in schema.names else schema.names[next(iter(ranges_of(schema.columns, [term])))]


def _values_of_term(schema: Schema, term: str, codes: Int64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
    if term not in schema.names:
        return _meet(schema, (term,), codes).astype(float)
    j = schema.index(term)
    return numeric_values(schema.columns[j], codes[:, j])


def _least_squares(values: Float64[np.ndarray, "n terms"]) -> list[float]:
    """The intercept and the coefficients of a linear regression of the first column on the others. NaN for a predictor
    that is 0 in all rows, such as a category without rows, and for all if the rows do not determine the others."""
    design = np.column_stack([np.ones(len(values)), values[:, 1:]])
    present = design.any(0)
    coefficients = np.full(design.shape[1], math.nan)
    found, _, rank, _ = np.linalg.lstsq(design[:, present], values[:, 0], rcond=None)
    if rank == present.sum():
        coefficients[present] = found
    return coefficients.tolist()
