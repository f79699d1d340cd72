"""What notebooks show of releases, samples and reports: small, whole and escaped."""

import dataclasses
import html.parser
import pathlib

import numpy as np
import pyarrow as pa
import pytest

import kme_jax
from kme_jax import WeightedSample
from kme_jax._numerics import html as pieces
from kme_jax.generators.generator import GeneratorReport
from kme_jax.privacy.mechanisms import NOT_PRIVATE
from kme_jax.synthesis import Candidate, PosteriorReport, RiskReport, SolverReport
from kme_jax.table import Categorical, Schema

FOLDERS = sorted((pathlib.Path(__file__).parent / "data/folders_of_0.1").iterdir())
_VOID = {"circle", "line", "polyline", "rect"}  # they are written with a slash
_ALLOWED = {"div", "b", "i", "small", "table", "tbody", "thead", "tr", "td", "th", "svg"} | _VOID


class _Reader(html.parser.HTMLParser):
    """Text of a piece of HTML, whose elements must be closed in order, and load nothing."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.elements = [], "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        assert tag in _ALLOWED
        for name, value in attributes:
            assert not name.startswith("on")
            assert name not in ("href", "src", "class", "id")
            assert "url(" not in value
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


def _read(value):
    text = value._repr_html_()
    assert len(text) < 60_000
    return _Reader(text)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_releases_say_budget_noise_and_size(folder):
    artifact = kme_jax.load(folder)
    read, statement = _read(artifact), artifact.statement
    for part in (f"ε = {statement['epsilon']:g}", f"δ = {statement['delta']:g}", f"N = {statement['num_rows']}"):
        assert part in read.text
    assert "secure: OpenDP" in read.text
    assert NOT_PRIVATE not in read.text
    if hasattr(artifact, "sample") and not callable(artifact.sample):
        assert "12 points of 2 columns" in read.text
        assert read.elements.count("circle") == np.count_nonzero(artifact.sample.weights)
        assert "and 7 more rows" in read.text
    if hasattr(artifact, "table"):
        assert "50 rows of 3 columns" in read.text
        assert str(artifact.table.to_pylist()[4]["age"]) in read.text
    if hasattr(artifact, "generator"):
        assert "MLP(widths=" in read.text
        assert "squared distance" in read.text


def test_simulated_noise_is_not_private():
    measurement = kme_jax.load(FOLDERS[0].parent / "measurement_of_frequencies")
    mechanism = dataclasses.replace(measurement.noisy.mechanism, secure=False, noise_source="simulated (jax.random)")
    assert NOT_PRIVATE in _read(WeightedSample(np.zeros((3, 2)), np.ones(3), mechanism)).text
    assert (
        NOT_PRIVATE
        in _read(dataclasses.replace(measurement, statement=measurement.statement | {"private": False})).text
    )


def test_a_generator_says_its_noise():
    generator = kme_jax.load(FOLDERS[0].parent / "generator").generator
    assert "secure: OpenDP" in _read(generator).text
    simulated = tuple(dataclasses.replace(m, secure=False) for m in generator.mechanisms)
    assert NOT_PRIVATE in _read(dataclasses.replace(generator, mechanisms=simulated)).text


def test_totals_are_said():
    measurement = kme_jax.load(FOLDERS[0].parent / "measurement_of_frequencies")
    total = {"releases": 3, "epsilon": 2.5, "delta": 1e-5, "at_delta": {"epsilon": 2.5, "delta": 1e-5}}
    read = _read(dataclasses.replace(measurement, statement=measurement.statement | {"total": total}))
    assert "3 releases of these rows: (ε, δ) = (2.5, 1e-05)" in read.text


@pytest.mark.parametrize("dim", [1, 2, 3, 40])
@pytest.mark.parametrize("size", [1, 3000])
def test_samples(dim, size):
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(size, dim)), rng.normal(size=size)
    read = _read(WeightedSample(points, weights))
    assert f"{size} points of {dim} column" in read.text
    shapes = {1: "line", 2: "circle"}.get(dim)
    assert ("svg" in read.elements) == (shapes is not None)
    if shapes:
        assert read.elements.count(shapes) == min(size, pieces.MAX_POINTS)
    assert f"{weights[0]:.4g}" in read.text
    assert ("negative weights are red" in read.text) == bool(shapes and weights.min() < 0)
    assert ("more columns" in read.text) == (dim == 40)


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((4, 2)),
        np.full((4, 2), np.nan),
        np.array([[1e308, -1e308]] * 2 + [[-1e308, 1e308]] * 2),
        np.zeros((0, 2)),
    ],
    ids=["equal", "nan", "large", "none"],
)
def test_odd_points(points):
    text = WeightedSample(points, np.full(len(points), 0.25))._repr_html_()
    assert "nan" not in text.split("<svg")[-1].split("</svg>")[0] or "<svg" not in text
    _Reader(text)


def test_reports():
    read = _read(SolverReport(np.array([5.0, 2.0, 0.01]), 1e-3, False, 17))
    assert "17 iterations: NOT converged" in read.text
    assert "objective: 5 at first, 0.01 at last, logarithmic axis" in read.text
    read = _read(PosteriorReport(np.linspace(9, 1, 20).reshape(5, 4), 0.7, True, 0.0, 1))
    assert "1 attempt: converged" in read.text
    assert "polyline" in read.elements
    read = _read(GeneratorReport((3.0, 1.0), (10, 20), 0.1, 0.01, 0.09, True))
    assert "20 steps: converged" in read.text
    candidates = tuple(Candidate("probability", 10.0**-i, 3.0, 1.0 - i / 100) for i in range(9))
    read = _read(RiskReport(candidates[-1], candidates))
    assert "and 4 more rows" in read.text
    assert read.text.index("0.92") < read.text.index("0.93")
    for odd in ([], [1.0], [np.inf, 1.0], np.ones(10_000)):
        _read(SolverReport(np.array(odd), np.nan, True, 0))


def test_names_and_cells_are_escaped():
    release = kme_jax.load(FOLDERS[0].parent / "table_release")
    bad = "<script>alert(1)</script>"
    schema = Schema((Categorical(bad, ('"><img src=x>', "&amp;")),))
    measurement = dataclasses.replace(release.measurement, schema=schema, target=bad)
    table = pa.table({bad: ['"><img src=x>', "&amp;", None, "\x1b[31m"]})
    text = dataclasses.replace(release, measurement=measurement, table=table)._repr_html_()
    read = _Reader(text)
    assert "<script" not in text
    assert "<img" not in text
    assert "&amp;amp;" in text
    assert "\x1b" not in text
    assert bad in read.text
    assert "missing" in read.text
