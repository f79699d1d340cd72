"""The page of a report: its head, its list of sections, and its style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kme_jax.privacy.statement import has_noisy_count
from kme_jax.table.report.data import MeasuredCells, ReportData, Section
from kme_jax.table.report.rendering import environment
from kme_jax.table.report.sections import SECTIONS
from kme_jax.table.report.words import power
from kme_jax.table.schema import Schema


def report(
    table: pa.Table,
    schema: Schema,
    statement: dict[str, Any],
    target: str | None = None,
    cells: Sequence[MeasuredCells | None] | None = None,
    num_columns: int | None = None,
    follows: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The report of a release, as HTML that needs no other file and no network. A release always has the same report.

    Args:
      table: the synthetic rows.
      schema: of the columns.
      statement: the privacy statement.
      target: the name of the column that the other columns are meant to predict, or None.
      cells: those that were counted, for each column, or None for a column that was not counted; None to show no errors
        of shares.
      num_columns: how many of the measured columns, from the first one, the release has; None for all.
      follows: for each column that is not measured, but follows from others, the names of these.

    Raises:
      ModuleNotFoundError: Jinja2 is not installed.
    """
    page = environment().get_template("page.html")
    data = ReportData.create(table, schema, statement, target, cells, num_columns, follows)
    sections = [section for section in (make(data) for make in SECTIONS) if section is not None]
    return page.render(
        private=statement["private"],
        num_rows=table.num_rows,
        num_private_rows=statement["num_rows"],
        weight=schema.weight and {"name": schema.weight.name, "largest": f"{schema.weight.upper:,g}"},
        count_is_noisy=has_noisy_count(statement),
        num_columns=(num_columns or len(schema.columns)) + len(schema.written),
        epsilon=f"{statement['epsilon']:g}",
        delta=power(statement["delta"]),
        unit=statement["unit"],
        sections=[(section.key, section.heading, _body(section)) for section in sections],
        version=statement["versions"]["kme_jax"],
    )


def _body(section: Section) -> Any:
    """What stands below the heading of a section. The page shows it without escaping it again."""
    templates = environment()
    if section.source is None:
        template = templates.get_template(f"{section.key}.html")
    else:
        template = templates.from_string(section.source)
    return template.make_module(section.values)
