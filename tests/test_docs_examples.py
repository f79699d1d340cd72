"""Examples in docstrings: the most used public names have one, and all of them run. The build of the documentation runs
the pages with code cells; here, the names that they import are looked at."""

import ast
import doctest
import importlib
import inspect
import re
import tempfile

import pytest

from tests import documentation

# The most used public names, each with an example. Examples share shapes, so that few programs are compiled.
QUICK = (
    "kme_jax.WeightedSample.systematic_counts",
    "kme_jax.analysis.conditional_mean",
    "kme_jax.analysis.push_forward",
    "kme_jax.synthesis.quantise",
    "kme_jax.Bounds",
    "kme_jax.Weight",
    "kme_jax.Gaussian",
    "kme_jax.GaussianSum",
    "kme_jax.LabelledMap",
    "kme_jax.Laplacian",
    "kme_jax.LatticeMap",
    "kme_jax.Ledger",
    "kme_jax.Matern52",
    "kme_jax.MixedMap",
    "kme_jax.NormalProposal",
    "kme_jax.Polynomial",
    "kme_jax.PolynomialMap",
    "kme_jax.PrivacyBudget",
    "kme_jax.Processes",
    "kme_jax.QuadratureMap",
    "kme_jax.RandomBinningMap",
    "kme_jax.RandomMaclaurinMap",
    "kme_jax.Spending",
    "kme_jax.SubspaceMap",
    "kme_jax.WeightedSample",
    "kme_jax.WeightedSample.expectation",
    "kme_jax.WeightedSample.quantise",
    "kme_jax.WeightedSample.to_pandas",
    "kme_jax.algorithm1",
    "kme_jax.closed_form_weights",
    "kme_jax.feature_maps.OrientedEdges",
    "kme_jax.feature_maps.TransformedMap",
    "kme_jax.float64",
    "kme_jax.generators.MLP",
    "kme_jax.generators.Training",
    "kme_jax.gram.double_mean",
    "kme_jax.gram.kernel_mean",
    "kme_jax.integer_embedding",
    "kme_jax.l1_ball_weights",
    "kme_jax.mean_embedding",
    "kme_jax.open_rows",
    "kme_jax.nonprivate.Reference",
    "kme_jax.partial.PointEncoding",
    "kme_jax.partial.Task",
    "kme_jax.partial.partial_sums",
    "kme_jax.table.TableEncoding",
    "kme_jax.perturb",
    "kme_jax.perturb_securely",
    "kme_jax.privacy.discrete_epsilon",
    "kme_jax.privacy.gaussian_noise_multiplier",
    "kme_jax.privacy.zcdp_epsilon",
    "kme_jax.table.Categorical",
    "kme_jax.table.Constant",
    "kme_jax.table.Datetime",
    "kme_jax.table.Identifier",
    "kme_jax.table.Numeric",
    "kme_jax.table.Ordinal",
    "kme_jax.table.Schema",
    "kme_jax.table.check_table",
    "kme_jax.table.constraints.Forbidden",
    "kme_jax.table.constraints.Implies",
    "kme_jax.table.constraints.Lookup",
    "kme_jax.table.constraints.OneOf",
    "kme_jax.table.constraints.Order",
    "kme_jax.table.constraints.Sum",
    "kme_jax.table.expected.expected_errors",
    "kme_jax.table.measure_table",
    "kme_jax.table.open_table",
    "kme_jax.uniform",
)
# The same, for solvers that take long to compile.
SLOW = (
    "kme_jax.exponential_mechanism",
    "kme_jax.FourierMap",
    "kme_jax.synthesis.shrink",
    "kme_jax.Exponential",
    "kme_jax.generators.measure_generator",
    "kme_jax.Matern32",
    "kme_jax.noisy_function",
    "kme_jax.gram.gram",
    "kme_jax.TensorSketchMap",
    "kme_jax.load",
    "kme_jax.adaptive_weights",
    "kme_jax.measure",
    "kme_jax.release",
    "kme_jax.synthesis.joint_reduced_set",
    "kme_jax.table.release_table",
)
# The same, of those that take longest.
LONG = (
    "kme_jax.estimate",
    "kme_jax.analysis.mmd",
    "kme_jax.spectral_map",
    "kme_jax.generators.train_generator",
    "kme_jax.analysis.two_sample_test",
    "kme_jax.algorithm2",
    "kme_jax.analysis.bootstrap",
    "kme_jax.analysis.PosteriorDraws.estimate",
    "kme_jax.analysis.independence_test",
    "kme_jax.dp_merf",
    "kme_jax.improved",
    "kme_jax.represent",
    "kme_jax.posterior_mean",
    "kme_jax.table.rehearsal.rehearse",
)


def _value(name):
    """The object of a dotted name: a name of a module, or of a class in it."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)


def _example(name):
    return doctest.DocTestParser().get_doctest(inspect.getdoc(_value(name)), {}, name, name, 0)


def _failures(test):
    """What a doctest reports; empty if it passes."""
    reports = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False).run(test, out=reports.append)
    assert bool(reports) == bool(results.failed)
    return "".join(reports)


def test_the_most_used_names_have_an_example():
    names = QUICK + SLOW + LONG
    assert len(names) == len(set(names)) >= 40
    assert [name for name in names if not _example(name).examples] == []


def test_every_example_is_listed():
    docstrings = 0
    for path in (documentation.ROOT / "kme_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstrings += ">>> " in (ast.get_docstring(node) or "")
    assert docstrings == len(QUICK + SLOW + LONG)


@pytest.mark.parametrize("name", QUICK)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _failures(_example(name)) == ""


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, marks=pytest.mark.long) for name in LONG),
    ],
)
def test_a_slow_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _failures(_example(name)) == ""


def _executed_pages():
    """By path under docs/, the code of each page that is executed when the documentation is built."""
    code = {}
    for path in documentation.pages():
        cells = re.findall(r"```\{code-cell\} python\n(.*?)```", path.read_text(), re.DOTALL)
        if cells:
            code[path.relative_to(documentation.DOCS).as_posix()] = "\n".join(cells)
    return code


EXECUTED = _executed_pages()


def test_the_notebooks_are_executed():
    notebooks = {
        "notebooks/answers.md",
        "notebooks/figure1.md",
        "notebooks/generator.md",
        "notebooks/points.md",
        "notebooks/table.md",
    }
    assert notebooks | {"extending.md", "tour.md"} == set(EXECUTED)
    for page in EXECUTED:
        assert (documentation.DOCS / page).read_text().startswith("---\nfile_format: mystnb\n"), page


@pytest.mark.parametrize("page", EXECUTED)
def test_an_executed_page_imports_public_names_that_exist(page):
    imports = [node for node in ast.walk(ast.parse(EXECUTED[page])) if isinstance(node, ast.ImportFrom)]
    ours = [
        f"{node.module}.{alias.name}" for node in imports for alias in node.names if node.module.startswith("kme_jax")
    ]
    assert len(ours) >= 5
    for name in ours:
        assert "._" not in name
        _value(name)


def test_a_wrong_example_is_reported():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", "wrong", 0)
    assert "Expected:\n    3\nGot:\n    2\n" in _failures(wrong)
