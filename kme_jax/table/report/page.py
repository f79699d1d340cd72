"""The page of a report: its head, its list of sections, and its style."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kme_jax.table.report.data import ReportData
from kme_jax.table.report.sections import SECTIONS
from kme_jax.table.report.words import escaped, power
from kme_jax.table.schema import Schema


def report(table: pa.Table, schema: Schema, statement: dict[str, Any], target: str | None = None) -> str:
    """The report of a release, as HTML that needs no other file and no network. A release always has the same report.

    Args:
      table: the synthetic rows.
      schema: of the columns.
      statement: the privacy statement.
      target: the name of the column that the other columns are meant to predict, or None.
    """
    data = ReportData.create(table, schema, statement, target)
    sections = [section for section in (make(data) for make in SECTIONS) if section is not None]
    private = statement["private"]
    size = f"{table.num_rows:,} rows and {len(schema.columns):,} columns"
    return _PAGE.format(
        title=("" if private else "NOT PRIVATE: ") + f"Synthetic table of {size}",
        style=_STYLE,
        banner="" if private else _BANNER,
        size=size,
        promise=f"with ({statement['epsilon']:g}, {power(statement['delta'])})-differential privacy"
        if private
        else "without protection",
        facts="".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _facts(statement, table)),
        links="".join(f'<li><a href="#{section.key}">{section.heading}</a></li>' for section in sections),
        sections="".join(
            f'<section id="{section.key}"><h2>{section.heading}</h2>{section.html}</section>' for section in sections
        ),
        version=escaped(statement["versions"]["kme_jax"]),
    )


def _facts(statement: dict[str, Any], table: pa.Table) -> list[tuple[str, str]]:
    facts = [
        ("Synthetic rows", f"{table.num_rows:,}"),
        ("Private rows", f"{statement['num_rows']:,}"),
        ("Columns", f"{table.num_columns:,}"),
    ]
    if not statement["private"]:
        return [*facts, ("Protected", "nobody")]
    epsilon, delta = f"{statement['epsilon']:g}", power(statement["delta"])
    return [*facts, ("ε (epsilon)", epsilon), ("δ (delta)", delta), ("Protected", escaped(statement["unit"]))]


_BANNER = """<div class="banner" role="alert"><strong>NOT PRIVATE. Do not publish this folder.</strong>
Its noise was simulated, which protects nobody. Treat it like the private table itself.</div>"""


_PAGE = """<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{banner}
<header>
<h1>Synthetic table</h1>
<p class="lead">This folder has a made-up table of {size} that imitates a private one. Its rows describe nobody: they
were drawn from noisy summaries of the private rows, {promise}.</p>
<dl class="facts">{facts}</dl>
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main>
{sections}
</main>
<footer><p>Made by kme_jax {version} from the release alone: no private row was read for it.</p></footer>
</body>
</html>
"""


_STYLE = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --ink: #10161c; --soft: #55606b; --line: #dcdfe2;
  --blue: 0 76 138; --bar: #0072b2; --atom: #d55e00; --missing: #8b9299; --on-dark: #fff; --on-light: #000;
  --note: #fff4d6; --note-line: #b98900; --p1: #e69f00; --p2: #009e73; --p3: #cc79a7; --p4: #56b4e9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161a; --card: #1b2126; --ink: #e8ebed; --soft: #a5afb8; --line: #343c44;
    --blue: 67 154 207; --bar: #4ba5de; --atom: #f0813a; --missing: #7d868e; --on-dark: #000; --on-light: #fff;
    --note: #3a2f10; --note-line: #d9a92a; --p1: #e69f00; --p2: #1fb68b; --p3: #d78fb6; --p4: #a9d9f5; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 3.5rem; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
header, main, footer { max-width: 86rem; margin: 0 auto; padding: 0 1.25rem; }
h1 { margin: 2.5rem 0 .5rem; font-size: 2.1rem; line-height: 1.15; letter-spacing: -.015em; }
h2 { margin: 3.5rem 0 .75rem; font-size: 1.5rem; line-height: 1.2; letter-spacing: -.01em; }
h3 { margin: 2rem 0 .5rem; font-size: 1.05rem; line-height: 1.3; }
h4, article h3 { margin: 0; font-size: 1rem; line-height: 1.3; }
sup { line-height: 0; }
small { font-size: .85em; font-weight: 400; color: var(--soft); }
p, li { max-width: 44rem; }
p { margin: 0 0 .9rem; }
ul { margin: 0 0 .9rem; padding-left: 1.2rem; }
a { color: inherit; text-decoration-color: var(--bar); text-underline-offset: .18em; }
a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
code { overflow-wrap: anywhere; font: .85em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
th, td, a, li, strong, h2, h3, h4, .sub { unicode-bidi: isolate; }
.lead { font-size: 1.15rem; }
.sub { margin: 0 0 .5rem; font-size: .8125rem; line-height: 1.45; color: var(--soft); }
.banner { padding: 1rem 1.25rem; background: #b00020; color: #fff; font-size: 1.1rem; text-align: center;
  position: sticky; top: 0; z-index: 3; }
.banner strong { display: block; font-size: 1.4rem; }
.note { padding: .7rem 1rem; background: var(--note); border-left: 4px solid var(--note-line); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1px; margin: 1.5rem 0;
  background: var(--line); border: 1px solid var(--line); border-radius: .5rem; overflow: hidden; max-width: 62rem; }
.facts div { padding: .7rem 1rem; background: var(--card); }
.facts dt { font-size: .8125rem; color: var(--soft); }
.facts dd { margin: 0; font-size: 1.3rem; font-weight: 600; line-height: 1.3; }
nav { border: solid var(--line); border-width: 1px 0; background: var(--page); }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; max-width: 86rem; margin: 0 auto; padding: .6rem 1.25rem;
  list-style: none; }
footer { margin-top: 4rem; padding-bottom: 2rem; color: var(--soft); font-size: .875rem; }
table { border-collapse: collapse; }
th { text-align: left; font-weight: 400; }
.plain, .numbers { margin: 0 0 1rem; font-size: .9375rem; line-height: 1.4; }
.plain { width: 100%; max-width: 62rem; table-layout: fixed; }
.plain th:first-child { width: 30%; }
.plain th:nth-child(4) { width: 17%; }
.code th:first-child { width: 6rem; }
.numbers td:last-child, .numbers th:last-child { padding-right: 0; }
.plain th, .plain td, .numbers th, .numbers td { padding: .4rem 1rem .4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { font-size: .8125rem; color: var(--soft); vertical-align: bottom; }
.numbers th, .numbers td { text-align: right; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem 4rem; }
.two h3:first-child { margin-top: 0; }
.cards { columns: 19rem; column-gap: 1rem; }
.cards.large { columns: 24rem; }
article { margin-bottom: 1rem; padding: .9rem 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; break-inside: avoid; }
.matrix { width: calc(10rem + var(--n) * 2.6rem); max-width: 100%; }
.bars { width: 100%; table-layout: fixed; font-size: .8125rem; line-height: 1.25; }
.bars th { width: 42%; padding: .15rem .6rem .15rem 0; }
.bars th span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden; }
.bars td { padding: .15rem 0; }
.bars td:last-child { width: 4.2rem; text-align: right; }
.bars div { display: flex; gap: 1px; height: .85rem; }
.bars i { min-width: 1px; border-radius: 1px; }
.bars.parts td:last-child { width: 0; }
.bars.one td:nth-child(2) { background: linear-gradient(var(--ink), var(--ink)) var(--mark) 0 / 1px 100% no-repeat; }
i.bar, .p0 { background: var(--bar); }
.missing { background: var(--missing); fill: var(--missing); }
.atom { background: var(--atom); fill: var(--atom); }
.p1 { background: var(--p1); } .p2 { background: var(--p2); }
.p3 { background: var(--p3); } .p4 { background: var(--p4); }
.ordered .p0 { background: rgb(var(--blue) / .2); } .ordered .p1 { background: rgb(var(--blue) / .4); }
.ordered .p2 { background: rgb(var(--blue) / .6); } .ordered .p3 { background: rgb(var(--blue) / .8); }
.ordered .p4 { background: rgb(var(--blue)); }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; }
.keys { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; font-size: .875rem; }
svg { display: block; width: 100%; height: auto; margin-bottom: .4rem; }
svg text { font-size: 10.5px; fill: var(--soft); }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .bar { fill: var(--bar); }
.axis { stroke: var(--soft); fill: none; } .grid { stroke: var(--line); fill: none; }
.gap { stroke: var(--card); stroke-width: 3; fill: none; }
.scroll { overflow-x: auto; }
.map { width: 100%; table-layout: fixed; font-size: .6875rem; line-height: 1.1; }
.map th span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.map thead th { padding: 0 0 .3rem; font-size: .75rem; }
.map thead span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 7rem; margin: 0 auto;
  line-height: 1.3; }
.map thead td { width: 30%; }
.matrix thead td { width: 8rem; }
.map tbody th { padding: 0 .5rem 0 0; position: sticky; left: 0; background: var(--card); font-size: .75rem; }
.map tbody td { height: 1.6rem; padding: 0; text-align: center; overflow-wrap: normal; border: 1px solid var(--card);
  background: rgb(var(--blue) / var(--v, 0)); color: var(--on-light); }
.map tbody td.dark { color: var(--on-dark); }
.matrix .map { min-width: calc(6rem + var(--n) * .95rem); }
.matrix td { height: 1.9rem; }
@media (max-width: 600px) {
  .plain { font-size: .8125rem; }
  .plain th, .plain td { padding-right: .5rem; }
  .plain thead th { font-size: .75rem; }
  .matrix thead td { width: 6rem; }
  .matrix tbody td { height: 1.2rem; font-size: .5625rem; }
}
@media print { .banner { position: static; } nav { display: none; } }
"""
