"""What the sections of a report read, and what a section is."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import Column
from kme_jax.table.report.bins import MAX_BINS, Bins, associations, bins_of
from kme_jax.table.schema import Schema

_MAX_ROWS = 40_000  # rows from which the report is computed
_REMAINING = 0.6  # approximate part of the noise of a count that remains after the fit


@short_repr
@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
      key: of its link within the page. The template of the section is ``templates/KEY.html``.
      heading: as text.
      values: what the template shows, by name.
      source: the text of the template, for a section from outside of this package. None: the template is a file here.
    """

    key: str
    heading: str
    values: dict[str, Any]
    source: str | None = None


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredCells:
    """The cells of a column whose rows were counted with noise.

    Attributes:
      edges: the first code of every cell, and the number of codes, [cells + 1].
      noise: of the shares of rows in the cells.
      mean_error: standard deviation of the noise of the mean of all rows, in units of the column, when its sum was
        measured; infinite if it was not. It is at most this if the number of rows has noise.
      rows_error: standard deviation of the noise of the number of rows, as a share of it; 0 if it is public.
    """

    edges: Int64[np.ndarray, "ends"]
    noise: CellNoise
    mean_error: float = math.inf
    rows_error: float = 0.0

    def error(self, codes: Int[np.ndarray, "n"]) -> float:
        """Standard deviation of the noise of the share of rows in all cells that have one of these codes."""
        cells = np.searchsorted(self.edges, codes, side="right") - 1
        return self._error(np.isin(np.arange(len(self.edges) - 1), cells))

    def error_between(self, first: int, end: int) -> float:
        """The same for the codes from ``first`` to ``end`` − 1."""
        return self._error(self._between(first, end))

    def error_of_others(self, first: int, end: int) -> float:
        """The same for all rows less those in cells without these codes."""
        return math.hypot(self._error(~self._between(first, end)), self.rows_error)

    def _between(self, first: int, end: int) -> Bool[np.ndarray, "cells"]:
        low, high = np.searchsorted(self.edges, [first, end], side="left")
        low -= int(self.edges[low] != first)
        cells = np.arange(len(self.edges) - 1)
        return (cells >= low) & (cells < high)

    def _error(self, cells: Bool[np.ndarray, "cells"]) -> float:
        return float(self.noise.of(cells.astype(float)))


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ReportData:
    """The public data of a report.

    Attributes:
      schema: of the table, with d columns.
      statement: the privacy statement.
      codes: category codes of the rows that the report is computed from, [n, d].
      num_rows: number of synthetic rows. It exceeds n if the report is computed from a part of them.
      target: the index of the column that the other columns are meant to predict, or None.
      cells: those that were counted, for each column, or None for a column that was not counted. None if they are not
        known.
      num_columns: how many of the columns, from the first one, the release has; None for all.
      follows: for each column that is not measured, but follows from others, the names of these.
    """

    schema: Schema
    statement: dict[str, Any]
    codes: Int64[np.ndarray, "n d"]
    num_rows: int
    target: int | None
    cells: Sequence[MeasuredCells | None] | None = None
    num_columns: int | None = None
    follows: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def create(
        cls,
        table: pa.Table,
        schema: Schema,
        statement: dict[str, Any],
        target: str | None,
        cells: Sequence[MeasuredCells | None] | None = None,
        num_columns: int | None = None,
        follows: Mapping[str, Sequence[str]] | None = None,
    ) -> ReportData:
        """The data of a table. At most 40 000 rows are used, evenly spaced in the table."""
        num_rows = table.num_rows
        num_used = min(num_rows, _MAX_ROWS)
        codes = schema.encode(table.take(pa.array(np.arange(num_used) * num_rows // num_used)), words=False)
        place = None if target is None else schema.index(target)
        return cls(schema, statement, codes, num_rows, place, cells, num_columns, follows or {})

    @property
    def columns(self) -> list[tuple[Column, Int[np.ndarray, "n"]]]:
        """Each column with its codes, [n]."""
        return list(zip(self.schema.columns, self.codes.T, strict=True))

    @functools.cached_property
    def bins(self) -> list[Bins]:
        """Each column in few bins."""
        return [bins_of(column, codes, MAX_BINS) for column, codes in self.columns]

    @functools.cached_property
    def strength(self) -> Float[np.ndarray, "d d"]:
        """Cramér's V of all pairs of columns, [d, d]."""
        return associations(self.bins, self.noise)

    @functools.cached_property
    def noise(self) -> float:
        """Approximate standard deviation of the noise of a count, among the rows that are used: 0 if none is known.

        It is 0.6 times the middle between the smallest and the largest noise of the first measurement of several
        counts. What other counts say makes the noise smaller by about this factor. The noise of a bin that consists of
        many cells is larger.
        """
        return _REMAINING * self._middle_noise(0) * len(self.codes) / max(1, self.statement["num_rows"])

    @property
    def noise_of_pairs(self) -> float:
        """Standard deviation of the noise of a count of two columns, among the private rows: 0 if there is none.

        It is the middle between the smallest and the largest noise of the second measurement.
        """
        return self._middle_noise(1)

    def _middle_noise(self, place: int) -> float:
        """The middle of the noise of a measurement of several counts; 0 if there is none."""
        measurements = [m for m in self.statement["measurements"] if m["feature_map"]["num_features"] > 1]
        noise = measurements[place]["cell_noise"] if place < len(measurements) else None
        return sum(noise) / len(noise) if noise else 0.0
