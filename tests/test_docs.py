"""The documentation: every result and public name is in it, and what it names exists. .ci/run builds it."""

import importlib
import re

import pytest

import kme_jax
from kme_jax import feature_maps, generators, partial, points, privacy, storage, synthesis, table
from tests import documentation

ROOT, DOCS = documentation.ROOT, documentation.DOCS
COMMITTED = documentation.committed()
PACKAGES = (kme_jax, feature_maps, generators, partial, points, privacy, storage, synthesis, table)


def _text():
    return "\n".join(path.read_text() for path in documentation.pages())


def test_every_committed_result_is_on_a_page():
    shown = re.findall(r"```\{result\} (\w+)\n```", _text())
    assert set(shown) == set(COMMITTED.TABLES | COMMITTED.TEXTS) - {"table_peers_headline"}  # that is in the README
    files = {path for name in shown for path in COMMITTED.files(name)}
    assert files == set((ROOT / "figures").glob("*.json"))


def test_every_picture_is_on_a_page():
    shown = re.findall(r"figures/(\w+\.png)\)", _text())
    assert set(shown) == {path.name for path in (ROOT / "figures").glob("*.png")}


@pytest.mark.parametrize("name", COMMITTED.TABLES)
def test_a_table_has_lines_of_one_length(name):
    lines = COMMITTED.text(name).splitlines()
    assert len(lines) >= 4
    assert len({line.count("|") for line in lines}) == 1
    assert set(lines[1]) == {"|", "-"}
    assert not any(re.search(r"\b(nan|None|issue)\b", line) for line in lines)


def test_the_figures_are_compared_with_the_published_numbers():
    assert "figure2" in COMMITTED.text("figures_curves")
    assert "improved" in COMMITTED.text("figures_best")
    assert COMMITTED.text("figures_summary")


def test_other_systems_are_named_with_what_was_measured():
    text = COMMITTED.text("table_peers")
    assert "| SWIFT (google/dpsynth cf8075f), pairs | 0.010 | 0.037 | 0.083 | 0.909 |" in text
    for relation in ("replace_one", "add_remove"):
        assert f"| **kme_jax {kme_jax.__version__}**, {relation} |" in text
    with pytest.raises(ValueError, match="not on adult"):
        importlib.import_module("experiments.tables.peers").markdown([{"config": {"dataset": "adult"}}])


def test_each_word_of_the_glossary_has_one_entry():
    lines = [line.split(" | ") for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    entries = [(line[0].removeprefix("| "), line[2]) for line in lines if line[0] != "| word"]
    words = [word for entry, _ in entries for word in entry.split(", ")]
    assert len(words) > 100
    assert len(words) == len(set(words))
    # Words and symbols that mean two things have no entry without the thing.
    assert not set(words) & {"scale", "cell", "weight", "weights", "share", "shares", "grid", "kind", "μ", "Δ"}
    assert {"noise scale", "scale of a column", "cell of a table", "cell of a binning", "μ of a mechanism"} < set(words)
    assert [entry for entry, symbol in entries if "Δ" in symbol] == ["sensitivity", "RKHS distance"]


def test_tests_that_pages_name_exist():
    named = set(re.findall(r"`(tests/\w+\.py)::(\w+)`", _text()))
    assert len(named) > 60
    missing = [f"{file}::{name}" for file, name in sorted(named) if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_every_claim_of_the_privacy_model_is_proved_and_attacked():
    sections = re.split(r"\n##+ ", (DOCS / "privacy.md").read_text())
    claims = [section for section in sections if "**Claim.**" in section]
    assert len(claims) >= 15
    for section in claims:
        assert section.count("**Claim.**") == section.count("**Proof.**"), section.splitlines()[0]
        assert "*Attacked by* `tests/" in section, section.splitlines()[0]


def _documented():
    names = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", _text(), re.MULTILINE)
    assert len(names) == len(set(names))
    return {name: _value(name) for name in names}


def _value(name):
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_every_public_name_is_in_the_reference():
    values = list(_documented().values())
    missing = [
        f"{package.__name__}.{name}"
        for package in PACKAGES
        for name in package.__all__
        if not name.startswith("__") and not any(getattr(package, name) is value for value in values)
    ]
    assert missing == []


def test_every_name_of_the_reference_has_a_docstring():
    assert [name for name, value in _documented().items() if not (value.__doc__ or "").strip()] == []


def test_a_page_that_loads_something_from_elsewhere_is_found(tmp_path):
    check = documentation.module("check_links.py")
    (tmp_path / "style.css").write_text("a { background: url('missing.png') } b { color: red }")
    page = """<html><head><script src="https://example.org/x.js"></script><link rel="stylesheet" href="style.css">
    <link rel="next" href="https://example.org/next"></head><body style="background: url(//example.org/y.png)">
    <a id="here" href="#here">a</a> <a href="#there">b</a> <a href="other.html">c</a> <a href="https://example.org">d</a>
    <img src="data:image/png;base64,AAAA"></body></html>"""
    (tmp_path / "index.html").write_text(page)
    assert check.faults(tmp_path) == [
        "index.html: loads https://example.org/x.js",
        "index.html: loads //example.org/y.png",
        "style.css: missing.png does not exist",
        "index.html: a link to #there, which has no such target",
        "index.html: a link to other.html, which does not exist",
    ]
    assert check.faults(tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no page"]
