import configparser
import copy
import dataclasses
import datetime
import html
import html.parser
import itertools
import math
import pathlib
import re
import sys
import types

import jinja2
import numpy as np
import pyarrow as pa
import pytest

import kme_jax.table.report
from kme_jax import PrivacyBudget, estimate, release_table
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.report import page
from kme_jax.table.report import report as report_of
from kme_jax.table.report.bins import bins_of, cramers_v, quantile_bins
from kme_jax.table.report.data import MeasuredCells, Section
from kme_jax.table.report.distributions import errors_of_bars, trust
from kme_jax.table.report.histogram import (
    FONT_SIZE,
    Label,
    are_atoms,
    histogram_of,
    labels_that_fit,
    round_dates,
    round_ticks,
)
from kme_jax.table.report.rendering import environment
from kme_jax.table.report.tails import hidden_tails
from kme_jax.table.report.words import power, shortened, text_width, with_error
from kme_jax.table.schema import Schema

pytestmark = pytest.mark.usefixtures("no_fits")

_ATTACK = "</td></title></style><script>alert('x')</script> & \"quoted\""
ROOT = pathlib.Path(__file__).resolve().parent.parent
_TEMPLATES = pathlib.Path(kme_jax.table.report.__file__).parent / "templates"
_VOID = {"meta", "link", "br", "path"}
_PHRASES = {"a", "b", "code", "h1", "h2", "h3", "h4", "i", "p", "small", "span", "strong", "sup", "title"}
_BLOCKS = {"article", "div", "dl", "h1", "h2", "h3", "h4", "p", "section", "table", "ul"}
_WITHIN = {  # where HTML allows a tag
    **dict.fromkeys(("dt", "dd"), ("div",)),
    **dict.fromkeys(("thead", "tbody"), ("table",)),
    **dict.fromkeys(("th", "td"), ("tr",)),
    **dict.fromkeys(("rect", "text", "path"), ("svg",)),
    "li": ("ul",),
    "tr": ("thead", "tbody"),
    "title": ("head", "rect"),
}


class _Page(html.parser.HTMLParser):
    """What a page holds; tags that are not balanced, or are where HTML does not allow them, raise an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.texts, self.elements = [], [], [], [], {}, []
        self.feed(text)
        self.close()
        assert not self.open
        assert text.startswith("<!DOCTYPE html>\n<html ")

    def handle_starttag(self, tag, attributes):
        assert tag not in _BLOCKS or not self.open or self.open[-1] not in _PHRASES, (tag, self.open)
        assert tag not in _WITHIN or self.open[-1] in _WITHIN[tag], (tag, self.open)
        assert len(dict(attributes)) == len(attributes), (tag, attributes)
        self.tags.append(tag)
        self.elements.append((tag, dict(attributes)))
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in _VOID
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def report(release):
    return report_of(release.table, release.schema, release.statement, release.target)


def _statement(private=True, **changes):
    measurement = {
        "name": "pairs",
        "noise": "gaussian",
        "discrete": private,
        "source": "a source",
        "scale": 0.01,
        "sensitivity": 0.002,
        "feature_map": {"num_features": 1234},
        "cell_noise": [21.0, 43.0],
    }
    return {
        "private": private,
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "replace one row; the number of rows is public",
        "unit": "one row",
        "num_rows": 2000,
        "groups": [{"rows": 1, "epsilon": 1.0}, {"rows": 5, "epsilon": 5.678}],
        "measurements": [measurement, measurement | {"name": "more pairs", "sensitivity": 0.004, "cell_noise": None}],
        "not_covered": ["timing", "memory <use>"],
        "total": None,
        "versions": {"kme_jax": "0.0.1"},
    } | changes


def _release(columns, cells, target=None, **changes):
    """Nothing but what a report may read."""
    schema = Schema(tuple(columns), changes.pop("filled_from_data", False))
    table = pa.table({column.name: pa.array(values) for column, values in zip(columns, cells, strict=True)})
    return types.SimpleNamespace(schema=schema, table=table, statement=_statement(**changes), target=target)


@pytest.fixture
def release(rng):
    n = 2000
    z = rng.normal(size=n)
    gain = np.where(rng.random(n) < 0.9, 0, rng.integers(1, 100_000, n))
    hours = np.where(rng.random(n) < 0.5, 40, rng.integers(1, 100, n))
    day = [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(d)) for d in rng.integers(0, 1000, n)]
    work = ("Private", "Local-gov", _ATTACK)
    letters = [f"letter {i:02}" for i in range(20)]
    columns = [
        Numeric("capital-gain", 0, 99_999, integer=True),
        Numeric("hours", 1, 99, integer=True, unit="hours"),
        Numeric("index", -8.0, 8.0, nullable=True),
        Datetime("day", "2020-01-01", "2023-01-01", "day"),
        Ordinal("education", ("low", "middle", "high")),
        Categorical("work <b>", work, nullable=True),
        Categorical("letter", letters),
        Categorical("income", ("<=50K", ">50K")),
    ]
    cells = [
        gain,
        hours,
        [None if gone else value for gone, value in zip(rng.random(n) < 0.25, np.clip(z, -8, 8), strict=True)],
        day,
        [columns[4].categories[i] for i in np.digitize(z, (-0.5, 0.5))],
        [(*work, None)[i] for i in rng.integers(0, 4, n)],
        [letters[i] for i in rng.integers(0, 20, n) ** 2 // 20],
        [columns[7].categories[int(v)] for v in z + rng.normal(size=n) > 1],
    ]
    return _release(columns, cells, "income")


def test_a_page_that_stands_alone(release):
    text = report(release)
    page = _Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert not {"img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not re.search(r"https?:|//|@import|url\(", text)
    links = [value for name, value in page.attributes if name in ("href", "src")]
    assert all(link == "data:," or link[1:] in page.ids for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert len(text.encode()) < 200_000


def test_every_column_is_there(release):
    text = report(release)
    page = _Page(text)
    for i, name in enumerate(release.schema.names):
        assert f"column{i}" in page.ids
        assert name in page.texts["a"]
        assert page.texts["h3"].count(name) == (1 if name == "income" else 2)  # its distribution, and the target by it
    assert "Target: income" in page.texts["h2"]
    text = re.sub(r'<span class="whole">(.*?)</span>', r"\1", text)  # a date that is not broken between lines
    for phrase in ("8 rows", "whole numbers, hours", "dates by day", "20 categories", "2020-01-01 to 2023-01-01"):
        assert (phrase in text) == (phrase != "8 rows")


def test_how_to_use_the_table_is_said(release):
    page = " ".join(html.unescape(report(release)).split())
    assert "categories come as text" in page
    assert 'kme_jax.load("folder").to_pandas()' in page
    assert "Medians and other" in page
    assert "Medians" not in report(_release([Categorical("a", ("x", "y"))], [["x", "y"] * 20]))  # it has no numbers


def test_small_groups_are_named(release):
    """Those of categories with fewer rows than four times the noise of pairs. The target has classes of its own."""
    coarse = release.statement["measurements"][0] | {"name": "pairs, coarsely", "cell_noise": [20.0, 30.0]}
    measurements = [release.statement["measurements"][0], coarse]
    release = types.SimpleNamespace(**vars(release) | {"statement": release.statement | {"measurements": measurements}})
    page = " ".join(html.unescape(report(release)).split())
    (groups,) = re.findall(r"These groups have fewer than about 100 private rows:.*?</ul>", page)
    assert "noise</b>: a mean may be pulled to the mean of all rows, or scattered about it." in page
    letters, counts = np.unique(release.table["letter"].to_pylist(), return_counts=True)
    small = letters[counts < 100][np.argsort(counts[counts < 100], kind="stable")]
    assert 0 < len(small) <= 8
    assert f"<strong>letter</strong>: {', '.join(small)}; no released row has letter 10, letter 13," in groups
    assert "education" not in groups
    assert "income" not in groups
    assert "pulled to the mean" not in report(_release([Categorical("a", ("x", "y"))], [["x", "y"] * 20]))
    lost = _release([Categorical("a", ("x", "y", "z"))], [["x"] * 900 + ["y"] * 20], measurements=measurements)
    assert "<strong>a</strong>: y; no released row has z</li>" in " ".join(html.unescape(report(lost)).split())


def test_columns_of_many_small_groups_are_counted(release):
    """Their values are too many for a list."""
    coarse = release.statement["measurements"][0] | {"name": "pairs, coarsely", "cell_noise": [20.0, 30.0]}
    measurements = [release.statement["measurements"][0], coarse]
    names = tuple(f"{i:03}" for i in range(100))
    cells = [["000"] * 1000 + [names[i] for i in range(1, 90)]]
    small = _release([Categorical("diagnosis", names)], cells, measurements=measurements)
    page = " ".join(html.unescape(report(small)).split())
    assert "99 of 100 values of <strong>diagnosis</strong> have fewer than about 100 private rows. <b>Diff" in page
    assert "mean(…) by diagnosis</code>" in page
    visits = _release([Numeric("visits", 0, 9, integer=True)], [[0] * 1000 + [3] * 5], measurements=measurements)
    page = " ".join(html.unescape(report(visits)).split())
    assert "<strong>visits</strong>: 3</li>" in page


def test_texts_of_the_schema_are_escaped(release):
    text = report(release)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "work &lt;b&gt;" in text
    assert "memory &lt;use&gt;" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    text.encode()
    shown = environment().from_string('<i title="{{ text }}">').render(text="\x00\ud800'\"<")
    assert shown == '<i title="��&#39;&#34;&lt;">'


def test_templates_escape_all_that_they_show():
    files = list(_TEMPLATES.iterdir())
    assert {"page.html", "pictures.html", "style.css"} < {file.name for file in files}
    for file in files:
        assert not re.search(r"\|\s*(safe|escape|e)\b|autoescape|Markup", file.read_text(encoding="utf-8")), file


def test_templates_are_package_data():
    """Of the wheel; the source distribution has all files of the package."""
    config = configparser.ConfigParser(comment_prefixes="#")
    config.read(ROOT / "setup.cfg")
    package = ROOT / "kme_jax"
    packaged = {path for line in config["options.package_data"]["kme_jax"].split() for path in package.glob(line)}
    assert set(_TEMPLATES.iterdir()) <= packaged
    assert "graft kme_jax" in (ROOT / "MANIFEST.in").read_text().splitlines()


def test_a_report_without_jinja2_says_what_to_install(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r'reports need Jinja2: pip install "kme_jax\[tables\]"'):
        report(release)
    environment.cache_clear()


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


def test_the_same_release_has_the_same_report(release):
    """And nothing else is read: the release of these tests has no other attributes, and this one shares no object."""
    assert report(release) == report(copy.deepcopy(release))


@pytest.mark.parametrize("private", [True, False])
def test_the_banner(release, private):
    release.statement = _statement(private)
    page = _Page(report(release))
    loud = [text for tag in ("strong", "title") for text in page.texts[tag] if "NOT PRIVATE" in text]
    assert len(loud) == (0 if private else 2)
    assert ("nobody" in page.texts["dd"]) != private
    assert ("ε (epsilon)" in page.texts["dt"]) == private


def test_the_statement_in_words(release):
    release.statement = _statement(
        total={"releases": 3, "epsilon": 2.345, "delta": 9e-3, "at_delta": {"epsilon": 3.4561, "delta": 1e-6}}
    )
    page = _Page(report(release))
    words = " ".join(page.texts["p"] + page.texts["strong"])
    assert "73.2\xa0%" in words  # (e + δ) / (1 + e), rounded up
    assert "one in 1,000,000" in words
    assert "have (ε, δ) = (2.345, 0.009), or ε = 3.457 at δ = 1e-06" in words
    cells = page.texts["td"]
    for cell in ("5.678", "1,234", "21 to 43", "20.0\xa0%", "80.0\xa0%"):
        assert cell in cells


def test_a_schema_that_was_filled_from_a_file(release):
    assert "The schema was filled" not in report(release)
    release.schema = Schema(release.schema.columns, True)
    assert "The schema was filled" in report(release)


@pytest.mark.parametrize("delta", [1e-5, 1e-300, 1e-320, 0.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0, 1e4])
def test_any_budget(release, epsilon, delta):
    release.statement = _statement(epsilon=epsilon, delta=delta)
    text = report(release)
    _Page(text)
    assert f"{epsilon:g}" in text


def test_values_of_many_rows_are_drawn_apart(release):
    text = report(release)
    assert text.count('class="atom"') == 2  # gain = 0, hours = 40
    assert re.search(r"</b>&nbsp;0: (89|90|91)\.\d\xa0%", text)
    assert re.search(r"</b>&nbsp;40: (49|50|51|52)\.\d\xa0%", text)
    assert re.search(r"missing: 2[3-7]\.\d\xa0%", text)
    assert 'class="gap"' in text


def test_a_value_among_others_like_it_is_no_atom(rng):
    values, counts = np.unique(np.rint(rng.normal(50, 5, 10_000)), return_counts=True)
    assert counts.max() > 0.07 * 10_000
    values = np.append(values, 200).astype(int)
    np.testing.assert_array_equal(are_atoms(values, np.append(counts, 400), 10_400), values == 200)


def test_rare_categories_are_others(release):
    page = _Page(report(release))
    found = len(release.table["letter"].unique())
    assert f"{found - 11} others" in page.texts["span"]  # twelve bars


@pytest.mark.parametrize("most", [5, 10, 16])
def test_bins_hold_about_as_many_rows_each(rng, most):
    column = Numeric("x", 0, 10_000, integer=True, nullable=True)
    codes = np.where(rng.random(20_000) < 0.4, 7, rng.integers(0, 10_002, 20_000))
    bins = bins_of(column, codes, most)
    assert len(bins.labels) == bins.ids.max() + 1 <= most + 1
    assert bins.missing
    assert bins.labels[-1] == "missing"
    np.testing.assert_allclose(bins.shares, np.bincount(bins.ids) / len(codes))
    np.testing.assert_array_equal(np.diff(bins.ids[np.argsort(codes)]) >= 0, True)
    assert "7" in bins.labels
    others = bins.shares[:-1][np.array(bins.labels[:-1]) != "7"]
    assert others[1:].max() < 1.5 * others[1:].min()


@pytest.mark.parametrize("counts", [[1, 1, 1, 50, 1, 50, 1, 50, 1, 50, 1], [40, 1, 40, 1, 40, 1, 40], [1] * 30])
@pytest.mark.parametrize("most", [2, 5, 10])
def test_never_more_bins_than_asked(counts, most):
    bins = quantile_bins(np.array(counts), most)
    assert bins[0] == 0
    assert set(np.diff(bins)) <= {0, 1}
    assert bins[-1] < most


def test_cramer(rng):
    assert cramers_v(np.diag([3, 5, 9])) == pytest.approx(1)
    assert cramers_v(np.array([[5, 7]])) == 0
    assert cramers_v(np.outer([10, 20, 30], [3, 4])) == 0
    # Chance alone would give about 0.1 without the correction.
    independent = [cramers_v(rng.multinomial(1000, np.full(100, 0.01)).reshape(10, 10)) for _ in range(20)]
    assert np.mean(independent) < 0.04


def test_noise_makes_no_association(rng):
    """Counts of independent columns with noise, one value of which is rare; and counts of dependent columns."""
    shares = np.outer([0.5, 0.3, 0.19, 0.01], [0.85, 0.15])
    dependent = 10_000 * (shares + np.outer([0.05, -0.05, 0, 0], [1, -1]))
    seen = []
    for _ in range(50):
        noise = rng.normal(0, 100, (2, 4, 2))
        noisy = np.maximum(np.stack([10_000 * shares, dependent]) + noise, 1).round()
        seen.append([cramers_v(noisy[0]), cramers_v(noisy[0], 100.0), cramers_v(noisy[1]), cramers_v(noisy[1], 100.0)])
    plain, corrected, _, found = np.mean(seen, axis=0)
    assert corrected < 0.03 < plain
    assert found == pytest.approx(cramers_v(dependent[:3].round()), abs=0.03)
    rare = np.array([[9000, 1000], [150, 150], [140, 160], [160, 140], [150, 150]])  # together they are many
    assert cramers_v(rare, 100.0) == pytest.approx(cramers_v(np.stack([rare[0], rare[1:].sum(0)])), abs=0.05)
    assert cramers_v(np.array([[5, 5], [5, 5]]), 100.0) == 0  # all rows are few


def test_groups_of_few_rows_have_no_share(rng):
    group = np.array(["a"] * 1500 + ["b"] * 450 + ["c"] * 50)
    rich = np.where(rng.random(2000) < 0.3, "yes", "no")
    columns = Categorical("group", ("a", "b", "c")), Categorical("rich", ("no", "yes"))
    text = report(_release(columns, (group, rich), "rich"))
    cells = _Page(text).texts["td"]
    shares = [cell for cell in cells if "±" in cell]
    assert [cell.split("± ")[1] for cell in shares] == ["1", "4"]  # 0.6 · 32 of 1500 rows, and of 450
    assert cells.count("few rows") == 1
    exact = _release(columns, (group, rich), "rich", measurements=[])
    cells = _Page(report(exact)).texts["td"]
    assert not any("±" in cell or cell == "few rows" for cell in cells)


def test_associations_are_ranked(release):
    page = _Page(report(release))
    assert page.texts["h4"][:2] == ["education ", " index"]


@pytest.mark.parametrize("low", ["1900-01-01", "2024-02-27", "2024-02-28T23:59:30", "2024-02-29T03:00"])
@pytest.mark.parametrize("seconds", [2, 400, 7 * 3600, 3 * 86400, 400 * 86400, 90 * 365 * 86400])
def test_dates_are_round(low, seconds):
    low = np.datetime64(low, "s")
    high = low + np.timedelta64(seconds, "s")
    ticks = round_dates(low, high)
    assert 2 <= len(ticks) <= 5
    assert low <= ticks[0] <= ticks[-1] <= high


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-8, 8), (17, 90), (0, 99_999), (1e-9, 3e-9), (0, 0.0031)])
def test_ticks_are_round(low, high):
    ticks = round_ticks(low, high, 5)
    assert 3 <= len(ticks) <= 6
    slack = 1e-9 * (high - low)
    assert low - slack <= ticks[0] < ticks[-1] <= high + slack
    step = ticks[1] - ticks[0]
    assert f"{step:.6e}"[:8] in ("1.000000", "2.000000", "5.000000")
    np.testing.assert_allclose(np.array(ticks) / step, np.rint(np.array(ticks) / step), atol=1e-6)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Numeric("x", 0, 9, integer=True), [3, 3, 3]),
        (Numeric("x", 0.0, 1e6, step=0.5), [2.5, 999_999.5, 0.0]),
        (Numeric("x", -1e-9, 1e-9, nullable=True), [None, 0.0, 1e-9]),
        (Numeric("x", 0, 10**15, integer=True), [0, 10**15, 7]),
        (Numeric("x", 0.0, 1.0, nullable=True), pa.array([None, None, None], pa.float64())),
        (Categorical("x", ("a",)), ["a", "a", "a"]),
        (Categorical("x", ("a", "b"), nullable=True), pa.array([None, None, None], pa.string())),
        *(
            (Ordinal("x", [f"level {i}" for i in range(n)]), ["level 0", f"level {n - 1}", "level 7"])
            for n in (25, 40, 41, 997)
        ),
        (Ordinal("x", [f"level {i}" for i in range(41)], nullable=True), ["level 40", None, "level 7"]),
        (Datetime("x", "1800-01-01", "2200-01-01", "second"), pa.array([0, 1, 10**9], pa.timestamp("s"))),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_odd_columns(column, values, num_rows):
    """Alone, as the target, and beside a target."""
    values = pa.array(values).slice(0, num_rows)
    beside = Categorical("beside", ("a", "b"))
    page = _Page(report(_release([column], [values], "x")))
    assert "table" in page.tags
    for target in ("x", "beside", None):
        _Page(report(_release([column, beside], [values, ["a", "b", "a"][:num_rows]], target)))


@pytest.mark.parametrize(
    "nullable", [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.long)]
)
def test_axes_end_at_the_last_value(nullable):
    for size in (*range(25, 200), 997, 4096):
        column = Ordinal("x", [f"level {i}" for i in range(size)], nullable)
        picture = histogram_of(column, np.arange(size))
        assert "missing" not in repr(dataclasses.astuple(picture))
        assert picture.labels[-1].text == f"level {size - 1}"


def test_many_columns_with_long_names(rng):
    columns = [Categorical(f"{'long' * 30} {i}", ("a" * 300, "b " + "wide " * 50 + "b")) for i in range(60)]
    cells = [[column.categories[i] for i in rng.integers(0, 2, 50)] for column in columns]
    text = report(_release(columns, cells))
    _Page(text)
    assert len(text) < 2_000_000


def test_rows_beyond_40000_are_looked_at_evenly():
    n = 100_000
    text = report(_release([Categorical("x", ("a", "b"))], [np.repeat(["a", "b"], [n // 4, n - n // 4])]))
    assert "40,000 rows, evenly spaced" in text
    assert "25.0\xa0%" in text


def test_a_new_section_is_a_function_in_the_list(release, monkeypatch):
    def section(data):
        values = {"num_codes": len(data.codes), "target": data.target, "text": _ATTACK}
        source = '<p title="{{ text }}">{{ num_codes }} codes by {{ target }}</p>'
        return Section("new", "A new section", values, source)

    monkeypatch.setattr(page, "SECTIONS", (*page.SECTIONS, section, lambda data: None))
    text = report(release)
    assert '<li><a href="#new">A new section</a></li>' in text
    assert '<section id="new"><h2>A new section</h2>\n<p title="' in text
    assert '">2000 codes by 7</p>\n</section>' in text
    assert "<script" not in text
    assert "new" in _Page(text).ids


# --- what is drawn fits ----------------------------------------------------------------------------------------------

_DATES = np.arange("2020-01-01", "2024-01-01", dtype="datetime64[D]")
_FIT = [
    (Datetime("x", "2020-01-01", "2023-01-01", "day"), _DATES[: 3 * 365 + 2]),
    (Datetime("x", "2020-01-01", "2023-01-01", "day", nullable=True), [*_DATES[: 3 * 365 + 2].tolist(), *[None] * 99]),
    (Datetime("x", "2024-02-28T23:59:30", "2024-02-29T00:10", "second"), np.arange(1709164770, 1709165400)),
    (Numeric("x", 0, 99_999, integer=True), np.arange(0, 100_000, 99)),
    (Numeric("x", 0, 10**15, integer=True, nullable=True), [*range(0, 10**15, 10**12), None]),
    (Numeric("x", -1e-9, 1e-9), np.linspace(-1e-9, 1e-9, 101)),
    (Numeric("x", 0.0, 1.0, step=0.001), [0.0] * 5000 + [i / 1000 for i in range(1000)]),
    (Ordinal("x", [f"a level with a long name, number {i}" for i in range(41)]), None),
    (Ordinal("x", ["東京都" * 9, "W" * 99, *(f"level {i}" for i in range(40)), "m" * 99], nullable=True), None),
]


def _drawn(text):
    """The size of the first drawing of a page, and of its texts: content, class, x, y, half of the width."""
    drawing = re.search(r"<svg .*?</svg>", text, re.DOTALL)[0]
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing).groups())
    texts = re.findall(r'<text x="(.*?)" y="(.*?)" class="(.*?)">(.*?)</text>', drawing)
    return width, height, [(label, kind, float(x), float(y), _half(label)) for x, y, kind, label in texts]


def _half(text):
    """Half of the width of a text, in a font whose digits are as wide as those of DejaVu Sans."""
    return FONT_SIZE / 2 * sum(0.636 if letter.isdigit() else 0.3 for letter in text)


@pytest.mark.parametrize(("column", "values"), _FIT, ids=lambda value: getattr(value, "kind", ""))
def test_labels_of_an_axis_are_inside_of_the_drawing_and_apart(column, values):
    if values is None:
        values = [*column.categories, *[None] * (3 * column.nullable)]
    if column.kind == "datetime" and column.resolution == "second":
        values = pa.array(values, pa.timestamp("s"))
    width, height, texts = _drawn(report(_release([column], [values])))
    below = sorted((text for text in texts if text[1] == "middle"), key=lambda text: text[2])
    assert len(below) >= 2
    assert (below[-1][0] == "missing") == column.nullable
    for _, _, x, y, half in below:
        assert 0 <= x - half < x + half <= width
        assert 0 < y < height
    for (_, _, x, _, half), (_, _, after, _, half_after) in itertools.pairwise(below):
        assert x + half < after - half_after
    for _, kind, x, y, half in texts:
        if kind == "end":
            assert x - 2 * half >= 0
            assert 0 < y < height


def test_the_last_label_of_an_axis_is_moved_inside():
    """A year that starts where the axis ends: its middle would be at the edge."""
    column, days = _FIT[0]
    width, _, texts = _drawn(report(_release([column], [days[1:]])))
    label, _, x, _, _ = texts[-1]
    assert label == "2023"
    assert x + FONT_SIZE * text_width(label) / 2 == pytest.approx(width - 1, abs=0.05)


def test_labels_that_have_room_are_all_shown_where_they_belong():
    labels = [Label(40.0 + 60 * i, f"{20 * i},000") for i in range(5)]
    assert labels_that_fit(labels, 1, 319) == labels
    # The first starts at the edge exactly, and the second has just enough room.
    half = FONT_SIZE * text_width("2024-01-01") / 2
    labels = [Label(0.0, "2024-01-01"), Label(1.3 + 3 * half + 6, "2024-01-02")]
    assert labels_that_fit(labels, 1.3, 300) == [Label(1.3 + half, "2024-01-01"), labels[1]]
    placed = labels_that_fit([Label(10.0 * i, "12345") for i in range(10)], 0, 100)
    assert [label.x for label in placed] == [pytest.approx(FONT_SIZE * 1.6), 60]
    assert labels_that_fit([], 0, 100) == []


def test_long_texts_keep_both_ends():
    text = "a level with a long name, number "
    assert shortened(f"{text}7", 12) != shortened(f"{text}8", 12)
    for width in (3, 5.5, 12, 100):
        short = shortened(f"{text}7", width)
        assert text_width(short) <= width
        assert (short == f"{text}7") == (width == 100)
    assert shortened("東" * 30, 10).count("東") == 8


def test_powers():
    assert power(5e-6) == ("5 × ", "−6")
    assert power(1e-6) == ("", "−6")
    assert power(0.001) == ("0.001", "")


def test_nothing_is_wider_than_a_narrow_page(rng):
    """As far as one can tell without a browser: no width in pixels, drawings and tables as wide as what they are in."""
    names = ["measurement_of_the_laboratory_number_" + "9" * i for i in range(1, 40)]
    cells = [rng.random(30) for _ in names]
    text = report(_release([Numeric(name, 0.0, 1.0) for name in names], cells, names[0]))
    page = _Page(text)
    assert "width" not in [name for tag, found in page.elements for name in found if tag not in ("rect",)]
    styles = [found["style"] for _, found in page.elements if "style" in found]
    assert all(re.fullmatch(r"width:\d+\.\d\d%|--(mark:\d+\.\d\d%|v:[01]\.\d\d|n:\d+)", style) for style in styles)
    assert max(float(style[6:-1]) for style in styles if style.startswith("width")) <= 100
    rules = dict(_rules((_TEMPLATES / "style.css").read_text(encoding="utf-8")))
    for selector in ("svg", ".plain", ".bars", ".map"):
        assert "width: 100%" in rules[selector]
    for selector in (".plain", ".bars", ".map"):
        assert "table-layout: fixed" in rules[selector]
    assert "max-width: 100%" in rules[".matrix"]
    assert "overflow-wrap: anywhere" in rules["h1, h2, h3, h4, li, th, .note"]
    # What may be wider scrolls within itself, and can be scrolled by keys.
    assert "overflow-x: auto" in rules[".scroll"]
    scrolls = [found for _, found in page.elements if found.get("class") == "scroll"]
    assert [found["tabindex"] for found in scrolls] == ["0"]
    # Widths in em elsewhere are of columns of cards, which a narrow page makes narrower, or at most 400 px.
    for selector, rule in rules.items():
        for size in re.findall(r"(?<!max-)\b(?:min-)?width: ([\d.]+)rem", rule):
            assert float(size) <= 10, selector


def _rules(style):
    """Selectors and declarations of a style sheet, those for all media."""
    style = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", style)
    return [(selector.strip(), " ".join(rule.split())) for selector, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", style)]


def test_people_who_do_not_see_the_pictures(release):
    """Pictures and tables have names, cells have headers, and headings have an order."""
    page = _Page(report(release))
    for tag, found in page.elements:
        if tag in ("svg", "table", "nav"):
            assert found["aria-label"], tag
        if tag == "svg":
            assert found["role"] == "img"
        if tag == "th":
            assert found["scope"] in ("row", "col")
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert ("html", {"lang": "en-GB"}) in page.elements


def test_shares_of_a_target_of_several_classes_are_in_words(rng):
    columns = [Categorical("x", ("a", "b")), Categorical("class", ("one", "two", "three"))]
    cells = [["a", "a", "a", "a", "b", "b"], ["one", "two", "two", "three", "three", "three"]]
    page = _Page(report(_release(columns, cells, "class")))
    described = [found["aria-label"] for tag, found in page.elements if tag == "div" and found.get("role") == "img"]
    assert described == ["three: 25.0\xa0%, two: 50.0\xa0%, one: 25.0\xa0%", "three: 100\xa0%"]


def test_errors_of_shares(release):
    """Bars have the noise of the counts that they consist of."""
    assert 'class="error"' not in report(release)
    assert "are one standard error" not in report(release)
    column, codes = Numeric("x", 0, 99, integer=True), np.repeat(np.arange(100), 10)
    cells = MeasuredCells(np.arange(0, 101, 4), CellNoise(0.01))
    assert cells.error_between(4, 8) == 0.01
    assert cells.error_between(5, 7) == 0.01  # a part of one cell
    assert cells.error_between(7, 13) == pytest.approx(0.01 * 3**0.5)
    assert cells.error(np.array([3, 4, 5, 99])) == pytest.approx(0.01 * 3**0.5)
    bars = histogram_of(column, codes, cells).bars
    assert {round(bar.title.count("±")) for bar in bars} == {1}
    # Bars of three codes lie in one cell or in two.
    lengths = {round(bar.error / bars[0].height * 0.03, 4) for bar in bars[:-1]}
    assert lengths == {0.01, round(0.01 * 2**0.5, 4)}
    page = report_of(
        pa.table({"x": codes}),
        Schema([column]),
        release.statement,
        None,
        [MeasuredCells(np.arange(0, 101, 4), CellNoise(0.01))],
    )
    assert page.count('class="error"') == len(bars)
    assert "are one standard error" in page
    assert with_error(0.123, 0.0123) == "12.3 ± 1.2 %".replace(" ", "\N{NO-BREAK SPACE}")
    assert with_error(0.5, 1e-5) == "50.0\N{NO-BREAK SPACE}%"


def test_columns_say_how_far_to_trust_them():
    """The stated share of rows in a wrong bar is not exceeded by much, and is not far too large."""
    rng = np.random.default_rng(0)
    age = np.minimum(rng.integers(18, 91, 4000), rng.integers(18, 91, 4000))
    rows = pa.table(
        {"age": age, "job": rng.choice(list("abcdefgh"), 4000, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02])}
    )
    schema = Schema([Numeric("age", 0, 110, integer=True), Categorical("job", tuple("abcdefgh"))])
    private, ratios = schema.encode(rows), []
    for seed in range(5):
        found = release_table(rows, schema, budget=PrivacyBudget(0.3, 1e-6), secure=False, seed=seed)
        for j, column in enumerate(schema.columns):
            codes = schema.encode(found.table)[:, j]
            errors = errors_of_bars(column, codes, found.measurement.measured_cells[j])
            ids = bins_of(column, np.concatenate([codes, private[:, j]]), 24).ids
            shares = [np.bincount(part, minlength=ids.max() + 1) / 4000 for part in np.split(ids, 2)]
            ratios.append(0.5 * np.abs(shares[0] - shares[1]).sum() / (0.4 * errors.sum()))
    assert max(ratios) < 1.6
    assert 0.3 < np.median(ratios) < 1.2
    page = found._report()
    assert page.count('class="trust"') == 2
    # Ages are from 18 to 90 of 110. The sum of 4000 ages is known well enough.
    wide = MeasuredCells(np.arange(112), CellNoise(0.02))
    page = report_of(found.table.select(["age"]), Schema(schema.columns[:1]), found.statement, None, [wide])
    assert page.count('class="tail"') == 2
    ours = found.measurement.measured_cells
    # A direct answer also knows the sum within a narrower range.
    assert 0.2 < estimate(found, "mean(age)").standard_error / ours[0].mean_error < 1.01
    assert ours[1].mean_error == math.inf


@pytest.mark.parametrize(
    ("noise", "errors", "share", "mean"),
    [
        (0.005, (), 4.0, "16.3"),
        (0.005, (math.inf, 0.03), 5.8, "17.1"),  # of the number of rows
        (0.005, (0.5,), 4.0, "15.5"),
        (0.001, (), None, None),
        (0.005, (0.3,), None, None),
    ],
)
def test_tails_that_noise_could_hide(noise, errors, share, mean):
    """Rows are from 10 to 19. The 81 counts above have 9 times the noise, the 20 others less. 60 is the middle."""
    column = Numeric("x", 0, 100, integer=True)
    codes = np.repeat(np.arange(10, 20), 100)
    cells = MeasuredCells(np.arange(102), CellNoise(noise), *errors)
    expected = [
        f"Hardly any synthetic value is above 19. Up to {share} % of the private values may be there, hidden by noise. "
        f"If these are spread evenly, the mean may be {mean} instead of 14.5."
    ]
    found = [sentence.replace("\N{NO-BREAK SPACE}", " ") for sentence in hidden_tails(column, codes, cells)]
    assert found == (expected if mean else [])


@pytest.mark.parametrize(
    ("column", "code", "text"),
    [
        (Numeric("big", 10**9, 10**9 + 100, integer=True), 50, "above 1,000,000,050. Up to"),
        (Numeric("year", 1900, 2000, integer=True), 50, "mean may be 1957.69 instead of 1950.00"),
        (Numeric("small", -0.001, 0.001, step=0.00002), 50, "instead of 0.000000"),
    ],
)
def test_tails_of_numbers_of_any_size(column, code, text):
    cells = MeasuredCells(np.arange(column.num_values + 1), CellNoise(0.03))
    assert any(text in sentence for sentence in hidden_tails(column, np.full(100, code), cells))


def test_tails_of_which_nothing_is_known():
    column, cells = Numeric("x", 0, 100, integer=True), MeasuredCells(np.arange(102), CellNoise(1.0))
    assert hidden_tails(column, np.full(9, 40), cells) == [
        "Noise hides how many private values are below 40.",
        "Noise hides how many private values are above 40.",
    ]
    assert hidden_tails(Categorical("x", ("a", "b")), np.zeros(5, np.int64), cells) == []
    assert hidden_tails(column, np.full(5, 101), cells) == []


@pytest.mark.parametrize(
    ("error", "word"),
    [(0.0001, "Very reliable"), (0.005, "Reliable"), (0.02, "Rough"), (0.05, "Very rough"), (0.2, "Mostly")],
)
def test_trust_in_words(error, word):
    text = trust(np.full(10, error))
    assert text.startswith(word)
    assert text.endswith("may be noise.")


def test_categories_have_errors(release):
    column, codes = Categorical("x", ("a", "b", "c")), ["a"] * 50 + ["b"] * 30
    cells = MeasuredCells(np.arange(4), CellNoise(0.02))
    page = report_of(pa.table({"x": codes}), Schema([column]), release.statement, None, [cells])
    assert "62.5 ± 2.0 %".replace(" ", "\N{NO-BREAK SPACE}") in page
