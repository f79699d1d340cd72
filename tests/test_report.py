import copy
import datetime
import html.parser
import re
import types

import numpy as np
import pyarrow as pa
import pytest

from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.report import page
from kme_jax.table.report import report as report_of
from kme_jax.table.report.bins import bins_of, cramers_v, quantile_bins
from kme_jax.table.report.data import Section
from kme_jax.table.report.histogram import are_atoms, histogram_html, round_dates, round_ticks
from kme_jax.table.report.words import escaped
from kme_jax.table.schema import Schema

_ATTACK = "</td></title></style><script>alert('x')</script> & \"quoted\""
_VOID = {"meta", "link", "br", "path"}


class _Page(html.parser.HTMLParser):
    """What a page holds; tags that are not balanced raise an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.texts = [], [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
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
    for phrase in ("8 rows", "whole numbers, hours", "dates by day", "20 categories", "2020-01-01 to 2023-01-01"):
        assert (phrase in text) == (phrase != "8 rows")


def test_texts_of_the_schema_are_escaped(release):
    text = report(release)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "work &lt;b&gt;" in text
    assert "memory &lt;use&gt;" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    text.encode()
    assert escaped("\x00\ud800'\"") == "��&#x27;&quot;"


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
    assert re.search(r"</b>&nbsp;0: (89|90|91)\.\d&nbsp;%", text)
    assert re.search(r"</b>&nbsp;40: (49|50|51|52)\.\d&nbsp;%", text)
    assert re.search(r"missing: 2[3-7]\.\d&nbsp;%", text)
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


@pytest.mark.parametrize("nullable", [False, True])
def test_axes_end_at_the_last_value(nullable):
    for size in (*range(25, 200), 997, 4096):
        column = Ordinal("x", [f"level {i}" for i in range(size)], nullable)
        assert "missing" not in histogram_html(column, np.arange(size))


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
    assert "25.0&nbsp;%" in text


def test_a_new_section_is_a_function_in_the_list(release, monkeypatch):
    def section(data):
        return Section("new", "A new section", f"<p>{len(data.codes)} codes by {data.target}</p>")

    monkeypatch.setattr(page, "SECTIONS", (*page.SECTIONS, section, lambda data: None))
    text = report(release)
    assert '<li><a href="#new">A new section</a></li>' in text
    assert '<section id="new"><h2>A new section</h2><p>2000 codes by 7</p></section>' in text
