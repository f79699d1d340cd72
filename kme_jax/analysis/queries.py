"""Questions about a table as text: mean(income) where age>=65 and sex=Female."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.grammar import check_known, column_and_quantile, conditions_of, parts_of
from kme_jax.table.conditions import ranges_of
from kme_jax.table.evaluate import numeric_values
from kme_jax.table.schema import Schema

_MOST_GROUPS = 64
EXAMPLES = "mean(age), sd(age), median(age), quantile(age, 0.9), share(age>=65)"

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
      statistic: "mean", "sd", "median", "quantile" or "share".
      column: the name of its column; None for "share".
      quantile: the share of rows below a quantile, or None.
      share: conditions of the rows whose share is asked for.
      where: conditions of the rows that count at all.
      by: the column whose values are groups, or None.
    """

    text: str
    statistic: str
    column: str | None = None
    quantile: float | None = None
    share: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    by: str | None = None

    @classmethod
    def parse(cls, text: str, schema: Schema) -> Query:
        """The query that a text asks.

        Args:
          text: a statistic with its column in brackets, then perhaps "where" and conditions, and "by" and a column.
          schema: of the table.

        Raises:
          ValueError: the text cannot be read, or its column does not fit the statistic.
        """
        parts = parts_of(text, [*_STATISTICS, "quantile", "share"], EXAMPLES)
        quantile, column, share = None, None, ()
        if parts.statistic == "share":
            share = conditions_of(parts.inside, schema.names)
        elif parts.statistic == "quantile":
            column, quantile = column_and_quantile(text, parts.inside)
        else:
            column = parts.inside
        where = conditions_of(parts.where, schema.names)
        query = cls(text, parts.statistic, column, quantile, share, where, parts.by)
        query._check(schema)
        return query

    def _check(self, schema: Schema) -> None:
        if self.column is not None:
            check_known(self.text, self.column, schema.names)
            if schema.columns[schema.index(self.column)].kind != "numeric":
                raise ValueError(f"query {self.text!r}: {self.column} is not numeric; ask for share({self.column}=...)")
        for conditions in (self.share, self.where):
            try:
                ranges_of(schema, conditions)
            except ValueError as error:
                raise ValueError(f"query {self.text!r}: {error}") from None
        if self.by is not None:
            check_known(self.text, self.by, schema.names)
            column = schema.columns[schema.index(self.by)]
            if column.num_codes > _MOST_GROUPS:
                raise ValueError(
                    f"query {self.text!r}: {self.by} has {column.num_codes} values, and at most {_MOST_GROUPS} groups "
                    "are possible; use where with a range"
                )

    def groups(self, schema: Schema) -> dict[str, int]:
        """The codes of the groups by the text of their value; {"": −1} if there is one group of all rows."""
        if self.by is None:
            return {"": -1}
        column = schema.columns[schema.index(self.by)]
        values = column.decode(np.arange(column.num_codes)).to_pylist()
        return {"missing" if value is None else str(value): code for code, value in enumerate(values)}

    def asked_columns(self, schema: Schema) -> set[str]:
        """The names of all columns that the query asks for."""
        names = {schema.names[j] for conditions in (self.share, self.where) for j in ranges_of(schema, conditions)}
        return names | {name for name in (self.column, self.by) if name is not None}

    def values(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
        """The numbers of the column, [n]; NaN for missing cells. A share has the numbers 1 and 0 of its conditions."""
        if self.column is None:
            return _meet(schema, self.share, codes).astype(float)
        j = schema.index(self.column)
        return numeric_values(schema.columns[j], codes[:, j])

    def numbers(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> Float64[np.ndarray, "k"]:
        """The numbers of the rows that count, groups aside, [k]."""
        values = self.values(schema, codes)
        return values[_meet(schema, self.where, codes) & ~np.isnan(values)]

    def answer(self, schema: Schema, codes: Int64[np.ndarray, "n d"]) -> dict[str, float]:
        """The statistic of each group, by the text of the group's value; NaN for a group without rows.

        Args:
          schema: of the table.
          codes: category codes of the rows.
        """
        values = self.values(schema, codes)
        kept = _meet(schema, self.where, codes) & ~np.isnan(values)
        answers = {}
        for name, code in self.groups(schema).items():
            rows = kept if self.by is None else kept & (codes[:, schema.index(self.by)] == code)
            answers[name] = self._of(values[rows]) if rows.any() else math.nan
        return answers

    def _of(self, values: Float64[np.ndarray, "n"]) -> float:
        if self.quantile is not None:
            return float(np.quantile(values, self.quantile))
        return _STATISTICS["mean" if self.statistic == "share" else self.statistic](values)


def _meet(schema: Schema, conditions: tuple[str, ...], codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
    """Which rows meet all conditions, [n]."""
    met = np.ones(len(codes), bool)
    for j, ranges in ranges_of(schema, conditions).items():
        met &= np.any([(codes[:, j] >= low) & (codes[:, j] < high) for low, high in ranges or [(0, 0)]], axis=0)
    return met
