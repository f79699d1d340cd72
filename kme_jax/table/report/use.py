"""The section on how to read and use the table."""

from __future__ import annotations

from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import table_html
from kme_jax.table.report.words import escaped, noise_range


def section(data: ReportData) -> Section:
    """How to load the table, what not to do with it, and how far to trust it."""
    statement = data.statement
    noise = "".join(
        f"<li>{escaped(m['name'])}: {noise_range(m['cell_noise'])} rows, "
        f"{noise_range([100 * v / statement['num_rows'] for v in m['cell_noise']])}&nbsp;% of all</li>"
        for m in statement["measurements"]
        if m["cell_noise"]
    )
    if noise:
        noise = (
            "<li>Each count that was measured is off by noise. These are its standard deviations, before rows were "
            f"fitted to all counts together:<ul>{noise}</ul></li>"
        )
    text = (
        '<div class="two"><div><h3>Load it</h3>'
        + table_html(
            ("With", "Code"),
            (
                ("pandas", '<code>pandas.read_parquet("synthetic.parquet")</code>'),
                ("R", '<code>arrow::read_parquet("synthetic.parquet")</code>'),
                ("DuckDB", "<code>SELECT * FROM 'synthetic.parquet'</code>"),
                ("more rows", '<code>kme_jax.load("folder").sample(100_000)</code>'),
            ),
            "plain code",
        )
        + "<p>Every row counts the same. More rows can be drawn from this folder at no cost to privacy. They reduce "
        "the chance in the drawing, not the noise.</p><h3>What not to do</h3><ul>"
        "<li>Do not look for a person. No row is anybody’s, however much it looks like someone.</li>"
        "<li>Do not decide about single persons by it.</li>"
        "<li>Do not rely on a result about a small group.</li></ul></div>"
        "<div><h3>How far to trust it</h3><ul>"
        f"<li>A share of many rows is accurate. A share of few rows may be mostly noise.</li>{noise}"
        "<li>Single columns are most accurate, then pairs of columns. What takes three or more columns to see is kept "
        "in part only.</li>"
        "<li>Noise can make a weak association, and can hide one.</li>"
        "<li>Standard errors and p-values that software prints know nothing of the noise. They are too small.</li>"
        "</ul></div></div>"
    )
    return Section("use", "How to read and use it", text)
