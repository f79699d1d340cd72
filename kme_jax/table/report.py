"""A report on a release, as one HTML file. It explains privacy in words, and shows marginals and pairs in pictures."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kme_jax.privacy.statement import describe_total, rounded_up
from kme_jax.table.columns import Column, Datetime, Numeric
from kme_jax.table.schema import Schema

_MAX_ROWS = 40_000  # rows from which the report is computed
_MAX_PAIRS = 12  # pairs that are shown as pictures
_MAX_BARS = 12  # categories in the picture of a marginal
_MAX_BINS = 10  # bins of a column in a pair, plus one for missing values
_MAX_PARTS = 5  # bins of the target column
_HISTOGRAM_BINS = 40
_WEAK = 0.05  # associations below it are not written as numbers
_ATOM = 0.03  # share of rows from which on a value is drawn by itself
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")  # not in HTML, or not in UTF-8


def report(table: pa.Table, schema: Schema, statement: dict[str, Any], target: str | None = None) -> str:
    """The report of a release, as HTML that needs no other file and no network. A release always has the same report.

    Args:
      table: the synthetic rows.
      schema: of the columns.
      statement: the privacy statement.
      target: the name of the column that the other columns are meant to predict, or None.
    """
    num_rows = table.num_rows
    looked_at = min(num_rows, _MAX_ROWS)
    codes = schema.encode(table.take(pa.array(np.arange(looked_at) * num_rows // looked_at)))
    columns = list(zip(schema.columns, codes.T, strict=True))
    bins = [_bin(column, values, _MAX_BINS) for column, values in columns]
    strength = _associations(bins)

    private = statement["private"]
    size = f"{num_rows:,} rows and {len(columns):,} columns"
    sample = "" if looked_at == num_rows else f" Shares are of {_number(looked_at)} rows, evenly spaced in the table."
    sections = [
        ("privacy", "Privacy", _privacy(statement, schema.filled_from_data)),
        ("columns", "Columns", _columns(columns)),
        ("distributions", "Distributions", _distributions(columns, sample)),
    ]
    if len(columns) > 1:
        place = -1 if target is None else schema.index(target)
        sections.append(("pairs", "Pairs of columns", _pairs(schema.names, bins, strength, place)))
        if place >= 0:
            predicted = _target(schema.names, bins, strength[place], place, _bin(*columns[place], _MAX_PARTS))
            sections.append(("target", f"Target: {_text(target)}", predicted))
    sections.append(("use", "How to read and use it", _use(statement)))
    return _PAGE.format(
        title=("" if private else "NOT PRIVATE: ") + f"Synthetic table of {size}",
        style=_STYLE,
        banner="" if private else _BANNER,
        size=size,
        promise=f"with ({statement['epsilon']:g}, {_power(statement['delta'])})-differential privacy"
        if private
        else "without protection",
        facts="".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _facts(statement, table)),
        links="".join(f'<li><a href="#{key}">{name}</a></li>' for key, name, _ in sections),
        sections="".join(f'<section id="{key}"><h2>{name}</h2>{text}</section>' for key, name, text in sections),
        version=_text(statement["versions"]["kme_jax"]),
    )


# Words and numbers


def _text(text: object) -> str:
    """Any text, escaped as HTML text or for an attribute in quotes."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def _number(value: float) -> str:
    """A number for people, for example 48,842, −0.25 or 1.235M."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M")):
        if 10**power <= abs(value) < 1e15:
            return _number(round(value / 10**power, 3)) + letter
    return f"{value:,.10g}".replace("-", "−")


def _power(value: float, digits: int = 6) -> str:
    """A small or large number, as HTML: 0.001, 5 × 10⁻⁶."""
    text, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return text
    return f"{'' if text == '1' else text + ' × '}10<sup>{int(exponent)}</sup>".replace("-", "−")


def _one_in(delta: float) -> str:
    """1/δ, as HTML."""
    return f"{round(1 / delta):,}" if delta > 1e-15 else _power(1 / delta, 4)


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "&lt; 0.1&nbsp;%"
    return f"{100 * share:.1f}&nbsp;%" if 0 < share < 1 else f"{100 * share:.0f}&nbsp;%"


def _label(column: Column, code: int) -> str:
    """The value of a code that does not stand for missing cells, as text that is not yet HTML."""
    if not isinstance(column, Numeric):
        return column.labels(np.array([code]))[0]
    value = column.decode(np.array([code]))[0].as_py()
    if column.step is None and not column.integer:
        value = round(value, max(3 - math.floor(math.log10(column.upper - column.lower)), 0))
    return _number(value)


def _range(column: Column, first: int, last: int) -> str:
    low, high = _label(column, first), _label(column, last)
    if low == high:
        return low
    short = column.kind == "numeric" and len(low + high) <= 12 and "−" not in low + high
    return f"{low}–{high}" if short else f"{low} to {high}"


# Columns in bins


@dataclasses.dataclass(frozen=True)
class _Bins:
    """A column in few bins.

    Attributes:
      ids: the bin of each row, [n].
      labels: of the bins, [b].
      shares: of the rows, [b].
      ordered: whether bins are in the order of values.
      missing: whether the last bin has the missing values.
    """

    ids: np.ndarray
    labels: list[str]
    shares: np.ndarray
    ordered: bool
    missing: bool


def _bin(column: Column, codes: np.ndarray, most: int) -> _Bins:
    """At most ``most`` bins of values.

    Bins of an ordered column have about equal numbers of rows, and frequent values have bins of their own. Other
    columns have bins for the most frequent categories, and one for all others.
    """
    values, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    known = values != column.num_values
    num_known = int(known.sum())
    if not column.ordered:
        order = np.lexsort((-counts, ~known))
        place = np.empty(len(values), int)
        kept = num_known if num_known <= most else most - 1
        place[order] = np.minimum(np.arange(len(values)), kept)
        labels = [_label(column, int(values[i])) for i in order[:kept]]
        if kept < num_known:
            labels.append(f"{num_known - kept} others")
            place[~known] = len(labels)
    else:
        place = np.arange(len(values))
        if num_known > most:
            place[known] = _quantile_bins(counts[known], most)
            place[~known] = place[known][-1] + 1
        edges = np.flatnonzero(np.diff(place[known], prepend=-1))
        labels = [
            _range(column, values[first], values[last - 1]) for first, last in itertools.pairwise([*edges, num_known])
        ]
    if num_known < len(values):
        labels.append("missing")
    shares = np.bincount(place, weights=counts, minlength=len(labels)) / len(codes)
    return _Bins(place[inverse], labels, shares, column.ordered, num_known < len(values))


def _quantile_bins(counts: np.ndarray, most: int) -> np.ndarray:
    """The bin of each value, of at most ``most`` bins. A value with more than 1/6 of the rows has its own bin."""
    frequent = np.argsort(-counts, kind="stable")[: (most - 1) // 2]
    alone = np.zeros(len(counts), bool)
    alone[frequent] = counts[frequent] > counts.sum() / 6
    rest = np.where(alone, 0, counts)
    num_quantiles = most - 2 * alone.sum()  # each value that stands alone may split a bin in two
    quantile = (np.cumsum(rest) - rest / 2) * num_quantiles // max(rest.sum(), 1)
    split = alone[1:] | alone[:-1] | (np.diff(quantile) > 0)
    return np.concatenate([[0], np.cumsum(split)])


def _counts(one: _Bins, other: _Bins) -> np.ndarray:
    shape = len(one.labels), len(other.labels)
    return np.bincount(one.ids * shape[1] + other.ids, minlength=shape[0] * shape[1]).reshape(shape)


def _cramer(counts: np.ndarray) -> float:
    """Cramér's V with Bergsma's (2013) correction for bias; 0 where a column is constant."""
    n, (r, c) = counts.sum(), counts.shape
    if min(r, c) < 2 or n < 2:
        return 0.0
    expected = np.outer(counts.sum(1), counts.sum(0)) / n
    phi2 = ((counts - expected) ** 2 / expected).sum() / n
    phi2 = max(phi2 - (r - 1) * (c - 1) / (n - 1), 0)
    return min(math.sqrt(phi2 / max(min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1, 1e-9)), 1.0)


def _associations(bins: Sequence[_Bins]) -> np.ndarray:
    strength = np.eye(len(bins))
    for i, j in itertools.combinations(range(len(bins)), 2):
        strength[i, j] = strength[j, i] = _cramer(_counts(bins[i], bins[j]))
    return strength


# Parts of pages


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "plain") -> str:
    """An HTML table. The first cell of each row is its header."""
    head = "".join(f'<th scope="col">{header}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for first, *cells in rows
    )
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _bars(name: str, rows: Iterable[tuple[str, dict[str, float], str]], *, unit: float, kind: str = "") -> str:
    """Horizontal bars, as an HTML table.

    Args:
      name: of the picture.
      rows: for each bar its label, the lengths of its parts by CSS class, and the text beside it.
      unit: the length of a bar that fills the picture.
      kind: further CSS class.
    """
    body = []
    for label, parts, value in rows:
        bar = "".join(f'<i class="{part}" style="width:{100 * v / unit:.2f}%"></i>' for part, v in parts.items() if v)
        label = _text(label)
        body.append(f'<tr><th scope="row" title="{label}"><span>{label}</span></th><td><div>{bar}</div></td>')
        body.append(f"<td>{value}</td></tr>")
    return f'<table class="bars {kind}" aria-label="{_text(name)}"><tbody>{"".join(body)}</tbody></table>'


def _shades(
    name: str, rows: Sequence[str], columns: Sequence[str], shares: np.ndarray, words: Sequence[Sequence[str]]
) -> str:
    """An HTML heat map. ``shares`` [rows, columns] in [0, 1] set how dark cells are, ``words`` their text."""
    head = "".join(f'<th scope="col" title="{_text(label)}"><span>{_text(label)}</span></th>' for label in columns)
    body = []
    for label, values, texts in zip(rows, shares, words, strict=True):
        body.append(f'<tr><th scope="row" title="{_text(label)}"><span>{_text(label)}</span></th>')
        for value, text in zip(values, texts, strict=True):
            dark = ' class="dark"' if value >= 0.75 else ""
            shade = f' style="--v:{value:.2f}"' if value >= 0.005 else ""
            body.append(f"<td{dark}{shade}>{text}</td>")
        body.append("</tr>")
    return (
        f'<table class="map" aria-label="{_text(name)}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


# Sections


def _facts(statement: dict[str, Any], table: pa.Table) -> list[tuple[str, str]]:
    facts = [
        ("Synthetic rows", f"{table.num_rows:,}"),
        ("Private rows", f"{statement['num_rows']:,}"),
        ("Columns", f"{table.num_columns:,}"),
    ]
    if not statement["private"]:
        return [*facts, ("Protected", "nobody")]
    epsilon, delta = f"{statement['epsilon']:g}", _power(statement["delta"])
    return [*facts, ("ε (epsilon)", epsilon), ("δ (delta)", delta), ("Protected", _text(statement["unit"]))]


def _best_guess(epsilon: float, delta: float) -> str:
    """The largest success rate in telling two equally likely rows apart: (1 + TV) / 2, with TV bounded by (ε, δ)."""
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return f"{math.ceil(1000 * share) / 10:.1f}&nbsp;%" if share < 0.999 else "almost 100&nbsp;%"


def _factor(epsilon: float) -> str:
    return _power(math.exp(min(epsilon, 700)), 3)


def _noise(deviations: Sequence[float] | None) -> str:
    """The smallest and the largest standard deviation, as text."""
    if deviations is None:
        return "–"
    low, high = (f"{v:.2g}" if v < 100 else f"{v:,.0f}" for v in deviations)
    return low if low == high else f"{low} to {high}"


def _privacy(statement: dict[str, Any], filled_from_data: bool) -> str:
    epsilon, delta, total = statement["epsilon"], statement["delta"], statement["total"]
    notes = []
    if not statement["private"]:
        notes.append(
            "<strong>Nothing here holds for this folder.</strong> It is what one could say had secure noise of the "
            "same size been used."
        )
    if filled_from_data:
        notes.append(
            "<strong>The schema was filled from a file.</strong> Its bounds and categories were read from data that "
            "the curator declared public. They are not protected."
        )
    if total and total["releases"] > 1:
        notes.append(
            f"<strong>This is not the only release of these rows.</strong> There are {total['releases']:,}. All of "
            f"them together have {_text(describe_total(total))}."
        )
    groups = ((group["rows"], group["epsilon"]) for group in statement["groups"])
    measurements = statement["measurements"]
    spent = [(m["sensitivity"] / m["scale"]) ** 2 for m in measurements]
    sources = dict.fromkeys(
        f"{'discrete ' * m['discrete']}{m['noise'].capitalize()}, {m['source']}" for m in measurements
    )
    return (
        "".join(f'<p class="note">{note}</p>' for note in notes)
        + '<div class="two"><div>'
        + "<p>Suppose someone knows every private row but one, and knows that this one is either A or B, each as "
        f"likely. With this folder they name the right one at most <strong>{_best_guess(epsilon, delta)}</strong> of "
        "the time. Without it they are right 50&nbsp;% of the time.</p>"
        "<p>In the terms of the field, the release is "
        f"<strong>({epsilon:g}, {_power(delta)})-differentially private</strong> for {_text(statement['unit'])} "
        f"({_text(statement['relation'])}). If one row is replaced by any other, the probability of any outcome "
        f"changes by a factor of at most e<sup>ε</sup>&nbsp;=&nbsp;{_factor(epsilon)}, apart from a probability of "
        f"δ = {_power(delta)}"
        + (f", one in {_one_in(delta)}" if delta else "")
        + ". This holds whatever else someone knows, and however the folder is used.</p>"
        "<p>It is no promise that nothing can be learnt about people. What holds for people in general can be learnt "
        "from the table, and it holds for those in it as for others. Whether the table is anonymous in law is for "
        "lawyers to say.</p><h3>What is not covered</h3><ul>"
        + "".join(f"<li>{_text(item)}</li>" for item in statement["not_covered"])
        + "</ul></div><div><h3>People with several rows</h3>"
        "<p>One row is protected. Protection is weaker for a person with more.</p>"
        + _table(
            ("Rows", "ε", "Factor e<sup>ε</sup>", "Right at most"),
            ((f"{k}", rounded_up(e), _factor(e), _best_guess(e, delta)) for k, e in groups),
            "numbers",
        )
        + "<h3>What was measured</h3><p>Noise was added to each number that was computed from the private rows. All "
        "else in this folder was made from these noisy numbers, and tells nothing more about the rows. "
        f"The noise: {_text('; '.join(sources))}.</p>"
        + _table(
            ("Measurement", "Numbers", "Noise of a count, in rows", "Share of the budget"),
            (
                (
                    _text(m["name"].capitalize()),
                    f"{m['feature_map']['num_features']:,}",
                    _noise(m["cell_noise"]),
                    _percent(square / sum(spent)),
                )
                for m, square in zip(measurements, spent, strict=True)
            ),
        )
        + "</div></div>"
    )


def _kind(column: Column) -> str:
    kind = {
        "numeric": "numbers",
        "categorical": "categories",
        "ordinal": "ordered categories",
        "datetime": "dates",
    }[column.kind]
    if isinstance(column, Numeric):
        kind = "whole " * column.integer + kind + (f", {_text(column.unit)}" if column.unit else "")
    return kind + (f" by {column.resolution}" if isinstance(column, Datetime) else "")


def _columns(columns: Sequence[tuple[Column, np.ndarray]]) -> str:
    rows = []
    for i, (column, codes) in enumerate(columns):
        if column.kind in ("numeric", "datetime"):
            allowed = _text(_range(column, 0, column.num_values - 1))
        else:
            allowed = _number(column.num_values) + " categories"
        share = _percent(np.mean(codes == column.num_values)) if column.nullable else "never"
        rows.append((f'<a href="#column{i}">{_text(column.name)}</a>', _kind(column), allowed, share))
    return (
        "<p>Every value is one that the schema allows. Values of private rows beyond a bound were moved to it, so "
        "there may be more rows at a bound than one would expect.</p>"
        + _table(("Column", "Kind", "The schema allows", "Missing"), rows)
    )


def _distributions(columns: Sequence[tuple[Column, np.ndarray]], sample: str) -> str:
    cards = []
    for i, (column, codes) in enumerate(columns):
        if column.kind in ("numeric", "datetime") or (column.ordered and column.num_values > 2 * _MAX_BARS):
            picture = _histogram(column, codes)
        else:
            bins = _bin(column, codes, 2 * _MAX_BARS if column.ordered else _MAX_BARS)
            kinds = ["bar"] * (len(bins.labels) - bins.missing) + ["missing"] * bins.missing
            rows = [
                (label, {kind: share}, _percent(share))
                for label, kind, share in zip(bins.labels, kinds, bins.shares, strict=True)
            ]
            picture = _bars(f"Shares of {column.name}", rows, unit=bins.shares.max())
        cards.append(
            f'<article id="column{i}"><h3>{_text(column.name)}</h3><p class="sub">{_kind(column)}</p>{picture}'
            "</article>"
        )
    return (
        f"<p>The share of synthetic rows by value.{sample} "
        'A value of many rows is drawn as a <b class="key atom"></b>&nbsp;spike of its own; a spike with a gap is '
        'longer than drawn. Missing values are <b class="key missing"></b>&nbsp;grey.</p>'
        f'<div class="cards">{"".join(cards)}</div>'
    )


def _atoms(values: np.ndarray, counts: np.ndarray, num_rows: int) -> np.ndarray:
    """Which values stand out, [values]: they have many rows, and the values beside them far fewer."""
    atoms = np.zeros(len(values), bool)
    if values[-1] - values[0] < _HISTOGRAM_BINS:
        return atoms  # each value has a bar
    of = dict(zip(values.tolist(), counts.tolist(), strict=True))
    for i in np.flatnonzero(counts >= _ATOM * num_rows):
        beside = [of.get(int(values[i]) + d, 0) for d in (-3, -2, -1, 1, 2, 3)]
        atoms[i] = counts[i] > 3 * np.median(beside)
    return atoms


def _quantile(values: np.ndarray, counts: np.ndarray, share: float) -> int:
    return int(values[np.searchsorted(np.cumsum(counts), share * counts.sum())])


def _histogram(column: Column, codes: np.ndarray) -> str:
    """A histogram of a column with an order, and its quartiles."""
    num_rows = len(codes)
    values, counts = np.unique(codes[codes != column.num_values], return_counts=True)
    if not len(values):
        return "<p>All values are missing.</p>"
    share_missing = 1 - counts.sum() / num_rows
    atoms = _atoms(values, counts, num_rows)
    spikes = [(int(v), c / num_rows) for v, c in zip(values[atoms], counts[atoms], strict=True)]

    first, last = int(values[0]), int(values[-1])
    if not atoms.all():  # far-off values are not drawn if they would take half of the room
        low, high = (_quantile(values[~atoms], counts[~atoms], q) for q in (0.005, 0.995))
        low, high = min(low, *values[atoms].tolist(), high), max(low, *values[atoms].tolist(), high)
        if high - low < (last - first) / 2:
            first, last = low, high
    width = -(-(last - first + 1) // _HISTOGRAM_BINS)
    num_bins = -(-(last - first + 1) // width)
    last = first + num_bins * width - 1
    drawn = ~atoms & (values >= first) & (values <= last)
    heights = np.bincount((values[drawn] - first) // width, weights=counts[drawn], minlength=num_bins) / num_rows
    beyond = counts[~atoms & ~drawn].sum() / num_rows

    tallest = max([share for _, share in spikes] + [share_missing])
    top = heights.max()
    top = max(tallest, top) if tallest < 1.6 * top or not top else 1.3 * top
    room = 250 if share_missing else 288  # of 320
    x0, y0, height = 30, 116, 104

    def x(code: float) -> float:
        return x0 + (code - first) / (num_bins * width) * room

    def bar(at: float, wide: float, share: float, kind: str, title: str) -> str:
        tall = height * min(share / top, 1)
        text = f'<rect class="{kind}" x="{at:.1f}" y="{y0 - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
        text += f"<title>{_text(title)}: {_percent(share)}</title></rect>"
        if share > top:
            text += f'<path class="gap" d="M{at - 2:.1f} 26l{wide + 4:.1f} -6"/>'
        return text

    step = room / num_bins
    shapes = [f'<path class="axis" d="M{x0} {y0}h{room}"/>']
    for tick in _ticks(0, top, 3)[1:]:
        y = y0 - height * tick / top
        shapes.append(
            f'<path class="grid" d="M{x0} {y:.1f}h{room}"/>'
            f'<text x="{x0 - 4}" y="{y + 3.5:.1f}" class="end">{100 * tick:.4g}%</text>'
        )
    wide = min(step - 0.6, 24)
    for i in np.flatnonzero(heights):
        start = first + int(i) * width
        title = _range(column, start, min(start + width, column.num_values) - 1)
        shapes.append(bar(x0 + (i + 0.5) * step - wide / 2, wide, heights[i], "bar", title))
    for code, share in spikes:
        shapes.append(bar(x(code + 0.5) - 1.5, 3, share, "atom", _label(column, code)))
    if share_missing:
        shapes.append(bar(295, 10, share_missing, "missing", "missing"))
        shapes.append(f'<text x="300" y="{y0 + 14}" class="middle">missing</text>')
    for code, label in _axis(column, first, last):
        at = x(code + 0.5)
        shapes.append(f'<path class="axis" d="M{at:.1f} {y0}v3"/>')
        shapes.append(f'<text x="{at:.1f}" y="{y0 + 14}" class="middle">{_text(label)}</text>')

    quartiles = [_label(column, _quantile(values, counts, q)) for q in (0.25, 0.5, 0.75)]
    middle = f"Median {quartiles[1]}, quartiles {quartiles[0]} and {quartiles[2]}"
    notes = [_text(middle)]
    if spikes:
        spikes.sort(key=lambda spike: -spike[1])
        listed = ", ".join(f"{_text(_label(column, code))}: {_percent(share)}" for code, share in spikes)
        notes.append(f'<b class="key atom"></b>&nbsp;{listed}')
    if share_missing:
        notes.append(f'<b class="key missing"></b>&nbsp;missing: {_percent(share_missing)}')
    if beyond:
        ends = _text(_range(column, int(values[0]), int(values[-1])))
        notes.append(f"{_percent(beyond)} of rows are not drawn; all values: {ends}")
    return (
        f'<svg viewBox="0 0 320 134" role="img" aria-label="{_text(f"Histogram of {column.name}. {middle}.")}">'
        f"{''.join(shapes)}</svg>"
        f'<p class="sub">{"<br>".join(notes)}</p>'
    )


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from low to high, about as many as asked and not more than one more."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * most >= (high - low) * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _axis(column: Column, first: int, last: int) -> list[tuple[float, str]]:
    """Ticks of an axis: codes, which may be fractions, and labels."""
    last = min(last, column.num_values - 1)  # the last bin may end beyond the last value
    if first >= last or column.kind == "ordinal":
        codes = sorted({first, (first + last) // 2, last})
        return [(code, _label(column, code)) for code in codes]
    ends = column.decode(np.array([first, last]))
    if column.kind == "numeric":
        low, high = ends.to_pylist()
        return [(first + (v - low) / (high - low) * (last - first), _number(v)) for v in _ticks(low, high, 5)]
    low, high = ends.to_numpy(zero_copy_only=False).astype("datetime64[s]")
    ticks = _dates(low, high)
    codes = first + (ticks - low) / (high - low) * (last - first)
    return list(zip(codes.tolist(), (str(tick).replace("T", " ") for tick in ticks), strict=True))


def _dates(low: np.datetime64, high: np.datetime64) -> np.ndarray:
    """Round dates or times from low to high, two to five if there are."""
    ticks = np.empty(0, "datetime64[s]")
    years, minutes = (100, 50, 20, 10, 5, 2, 1), (720, 360, 60, 15, 5, 1)
    for unit, steps in {"Y": years, "M": (6, 3, 1), "D": (14, 7, 2, 1), "m": minutes, "s": (15, 1)}.items():
        first, last = (end.astype(f"datetime64[{unit}]").astype(int) for end in (low, high))
        for step in steps:
            ticks = np.arange(-(-first // step) * step, last + 1, step).astype(f"datetime64[{unit}]")
            ticks = ticks[ticks >= low]
            if len(ticks) > 1:
                return ticks[:: -(-len(ticks) // 5)]
    return ticks


def _pairs(names: Sequence[str], bins: Sequence[_Bins], strength: np.ndarray, target: int) -> str:
    shown = strength * (1 - np.eye(len(names)))
    words = [[f"{v:.2f}".lstrip("0") if v >= _WEAK else "" for v in row] for row in shown]
    pairs = [pair for pair in itertools.combinations(range(len(names)), 2) if strength[pair] >= _WEAK]
    pairs = sorted((pair for pair in pairs if target not in pair), key=lambda pair: -strength[pair])[:_MAX_PAIRS]
    cards = "".join(_pair(names, bins, i, j, strength[i, j]) for i, j in pairs)
    return (
        "<p>How strongly two columns go together: Cramér’s V, from 0 (independent) to 1 (one decides the other), of at "
        f"most {_MAX_BINS} bins of each, and one for missing values. It is corrected for bias. The stronger the "
        f"colour, the stronger the association. Values below {_WEAK} are not written.</p>"
        f'<article class="matrix" style="--n:{len(names)}">'
        '<div class="scroll" tabindex="0" role="region" aria-label="Associations">'
        + _shades("Associations", names, names, shown, words)
        + "</div></article><h3>The strongest pairs</h3><p>"
        + "The target’s are in the next section. " * (target >= 0)
        + (
            "Each picture shows the shares, in %, of the values at the left among rows with the value above. Every "
            f'column adds up to 100&nbsp;%.</p><div class="cards large">{cards}</div>'
            if cards
            else f"No pair reaches {_WEAK}.</p>"
        )
    )


def _pair(names: Sequence[str], bins: Sequence[_Bins], i: int, j: int, strength: float) -> str:
    down, across = sorted((i, j), key=lambda k: (bins[k].ordered, len(bins[k].labels)))
    rows, columns = bins[down], bins[across]
    order = np.arange(len(rows.labels))
    if rows.ordered:  # upwards
        known = len(order) - rows.missing
        order[:known] = order[:known][::-1]
    shares = _counts(rows, columns)[order]
    shares = shares / shares.sum(0)
    words = [[f"{100 * share:.0f}" for share in row] for row in shares]
    labels = [rows.labels[k] for k in order]
    name, other = f"Shares of {names[down]} by {names[across]}", _text(names[across])
    return (
        f'<article><h4>{_text(names[down])} <small>by</small> {other}</h4><p class="sub">V = {strength:.2f}. Across: '
        f"{other}</p>{_shades(name, labels, columns.labels, shares / shares.max(), words)}</article>"
    )


def _target(names: Sequence[str], bins: Sequence[_Bins], strength: np.ndarray, place: int, target: _Bins) -> str:
    name = _text(names[place])
    others = sorted((k for k in range(len(names)) if k != place), key=lambda k: -strength[k])
    shares = {k: (counts := _counts(bins[k], target)) / counts.sum(1, keepdims=True) for k in others}
    parts = [f"p{i}" for i in range(len(target.labels) - target.missing)] + ["missing"] * target.missing
    if len(parts) == 2:
        rarer = int(target.shares[1] <= target.shares[0])
        parts = ["p0"]
        shares = {k: share[:, [rarer]] for k, share in shares.items()}
        unit = max(share.max() for share in shares.values())
        mark = f' style="--mark:{100 * target.shares[rarer] / unit:.2f}%"'
        intro = (
            f"The share of rows with <strong>{name} = {_text(target.labels[rarer])}</strong> by the value of each "
            f"other column. It is {_percent(target.shares[rarer])} of all rows, the line in each picture."
        )
        legend = ""
    else:
        unit, mark = 1.0, ""
        legend = "".join(
            f'<li><b class="key {part}"></b>&nbsp;{_text(label)} ({_percent(share)})</li>'
            for part, label, share in zip(parts, target.labels, target.shares, strict=True)
        )
        intro = f"The shares of values of <strong>{name}</strong> by the value of each other column."
        legend = f'<ul class="keys">{legend}</ul>'
    kind = "one" if mark else "parts"
    cards = []
    for k in others:
        rows = [
            (label, dict(zip(parts, values, strict=True)), _percent(values[0]) if mark else "")
            for label, values in zip(bins[k].labels, shares[k].tolist(), strict=True)
        ]
        cards.append(
            f'<article{mark}><h3>{_text(names[k])}</h3><p class="sub">V = {strength[k]:.2f}</p>'
            + _bars(f"Shares of {names[place]} by {names[k]}", rows, unit=unit, kind=kind)
            + "</article>"
        )
    return (
        f"<p>{intro} The columns that go most with it come first.</p>"
        f'<div class="{"ordered" * target.ordered}">{legend}<div class="cards">{"".join(cards)}</div></div>'
    )


def _use(statement: dict[str, Any]) -> str:
    noise = "".join(
        f"<li>{_text(m['name'])}: {_noise(m['cell_noise'])} rows, "
        f"{_noise([100 * v / statement['num_rows'] for v in m['cell_noise']])}&nbsp;% of all</li>"
        for m in statement["measurements"]
        if m["cell_noise"]
    )
    if noise:
        noise = (
            "<li>Each count that was measured is off by noise. These are its standard deviations, before rows were "
            f"fitted to all counts together:<ul>{noise}</ul></li>"
        )
    return (
        '<div class="two"><div><h3>Load it</h3>'
        + _table(
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
