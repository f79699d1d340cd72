"""The section on distributions: one picture for each column."""

from __future__ import annotations

from kme_jax.table.report.bins import bins_of
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import bars_html
from kme_jax.table.report.histogram import histogram_html
from kme_jax.table.report.words import escaped, kind_of, number, percent

_MAX_BARS = 12  # categories in the picture of a marginal


def section(data: ReportData) -> Section:
    """A histogram or bars of each column."""
    num_used = len(data.codes)
    sample = "" if num_used == data.num_rows else f" Shares are of {number(num_used)} rows, evenly spaced in the table."
    cards = []
    for i, (column, codes) in enumerate(data.columns):
        if column.kind in ("numeric", "datetime") or (column.ordered and column.num_values > 2 * _MAX_BARS):
            picture = histogram_html(column, codes)
        else:
            bins = bins_of(column, codes, 2 * _MAX_BARS if column.ordered else _MAX_BARS)
            kinds = ["bar"] * (len(bins.labels) - bins.missing) + ["missing"] * bins.missing
            rows = [
                (label, {kind: share}, percent(share))
                for label, kind, share in zip(bins.labels, kinds, bins.shares, strict=True)
            ]
            picture = bars_html(f"Shares of {column.name}", rows, unit=bins.shares.max())
        cards.append(
            f'<article id="column{i}"><h3>{escaped(column.name)}</h3><p class="sub">{kind_of(column)}</p>{picture}'
            "</article>"
        )
    text = (
        f"<p>The share of synthetic rows by value.{sample} "
        'A value of many rows is drawn as a <b class="key atom"></b>&nbsp;spike of its own; a spike with a gap is '
        'longer than drawn. Missing values are <b class="key missing"></b>&nbsp;grey.</p>'
        f'<div class="cards">{"".join(cards)}</div>'
    )
    return Section("distributions", "Distributions", text)
