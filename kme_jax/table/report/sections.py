"""The sections of a report, in their order.

To add a section, write a module with a function ``section``, and add a line here. The function takes the data of the
report. It returns the section, or None if the report of these data does not have it.
"""

from __future__ import annotations

from collections.abc import Callable

from kme_jax.table.report import columns, distributions, pairs, privacy, target, use
from kme_jax.table.report.data import ReportData, Section

SECTIONS: tuple[Callable[[ReportData], Section | None], ...] = (
    privacy.section,
    columns.section,
    distributions.section,
    pairs.section,
    target.section,
    use.section,
)
