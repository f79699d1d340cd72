"""What is imported when, and that every public name is where an editor looks for it."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import kme_jax
from kme_jax import generators

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What takes long to import, or belongs to an extra.
HEAVY = [
    "blackjax", "dp_accounting", "flax", "jinja2", "jsonschema", "matplotlib", "opendp", "orbax", "pandas", "pyarrow",
    "scipy.signal", "scipy.spatial", "scipy.stats", "sklearn",
]  # fmt: skip
NEEDS_FLAX = ["networks", "train", "release"]


def _imported(code, heavy=HEAVY):
    """Which of the heavy modules a new process has imported after the code."""
    code += f"\nimport sys; print(*[name for name in {[*heavy]!r} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=_environment(), check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1].split()


def _environment(**others):
    return os.environ | {"PYTHONPATH": str(ROOT)} | others


def _without(*missing):
    """Code after which these modules cannot be imported."""
    return "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in missing)


def test_the_package_imports_nothing_heavy():
    assert _imported("import kme_jax", [*HEAVY, "jax", "numpy", "scipy"]) == []


@pytest.mark.slow
def test_the_public_names_import_nothing_heavy():
    code = "import kme_jax\nfor name, module in kme_jax._MODULE_OF.items():\n"
    code += "    assert module == 'kme_jax.table' or getattr(kme_jax, name)"
    assert _imported(code) == []


@pytest.mark.long
def test_the_check_finds_what_is_imported():
    assert _imported("from kme_jax import *\nimport kme_jax.table, flax", ["jax", "pyarrow", "flax", "blackjax"]) == [
        "jax",
        "pyarrow",
        "flax",
    ]


@pytest.mark.parametrize(
    "words", ["--help", *(pytest.param(words, marks=pytest.mark.long) for words in ("release --help", "sample --help"))]
)
def test_help_imports_no_jax(words):
    code = f"""
import sys
from kme_jax.cli import run
sys.argv = ["kme-jax", *{words.split()!r}]
try:
    run()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert _imported(code, [*HEAVY, "jax", "numpy", "scipy"]) == []


def test_a_command_that_is_wrong_imports_no_jax():
    code = "from kme_jax.cli import main\nassert main(['release', 'rows.csv']) == 2"
    assert _imported(code, ["jax", "numpy"]) == []


@pytest.mark.parametrize("package", [kme_jax, generators], ids=lambda package: package.__name__)
def test_lazy_names_are_those_that_type_checkers_see(package):
    """The imports under TYPE_CHECKING, the table of modules and __all__ say the same."""
    tree = ast.parse(pathlib.Path(package.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == package._MODULE_OF
    always = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("kme_jax")
        for alias in node.names
    }
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    assert set(package.__all__) == set(seen) | always | functions
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("package", [kme_jax, generators], ids=lambda package: package.__name__)
def test_lazy_names_are_found(package):
    for name in package.__all__:
        value = getattr(package, name)
        assert not inspect.ismodule(value), name
        assert name in dir(package)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.long
def test_names_of_tables_are_found_at_the_top():
    names = "release_table, measure_table, Schema, Numeric, Categorical, Ordinal, Datetime"
    code = f"import kme_jax\nfrom kme_jax import {names}\nassert Schema is kme_jax.table.Schema"
    code += f"\nassert set('{names}'.split(', ')) <= set(dir(kme_jax))"
    assert _imported(code, ["pyarrow", "flax", "jinja2"]) == ["pyarrow"]  # PyArrow itself may import pandas
    error = 'ModuleNotFoundError: tables need pyarrow: pip install "kme_jax[tables]"'
    assert _error(_without("pyarrow") + "from kme_jax import release_table") == error
    # A star takes them if they can be had.
    starred = "from kme_jax import *\nassert ('Schema' in dir(), 'release' in dir()) == "
    assert _imported(starred + "(True, True)", ["pyarrow"]) == ["pyarrow"]
    assert _imported(_without("pyarrow") + starred + "(False, True)", ["flax"]) == []


@pytest.mark.long
def test_modules_are_attributes_of_the_package():
    assert _imported("import kme_jax\nassert kme_jax.kernels.Gaussian is kme_jax.Gaussian", ["flax"]) == []


# -- without the libraries of extras


POINTS = """
import numpy as np
import kme_jax
rows = np.random.default_rng(0).uniform(size=(50, 2))
release = kme_jax.release(rows, kme_jax.Gaussian(1.0), rows[:5] ** 2, budget=kme_jax.PrivacyBudget(1.0, 1e-4))
release.save({folder!r})
print(len(kme_jax.load({folder!r}).sample.points))
"""


@pytest.mark.long
def test_points_need_neither_flax_nor_pyarrow(tmp_path):
    code = _without("flax", "orbax", "pyarrow", "matplotlib", "pandas") + "from kme_jax import *\n"
    code += POINTS.format(folder=str(tmp_path / "out"))
    assert _imported(code, ["jax", "kme_jax.table", "kme_jax.generators.train"]) == ["jax"]


def _error(code):
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=_environment(), check=False
    )
    assert process.returncode == 1
    return process.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=pytest.mark.long) for name in NEEDS_FLAX],
)
def test_what_needs_flax_says_so(module):
    message = 'ModuleNotFoundError: generators need flax: pip install "kme_jax[generators]"'
    assert _error(_without("flax") + f"import kme_jax.generators.{module}") == message


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("kme_jax.dp_merf(None, None, None, None, budget=None)", marks=pytest.mark.long),
        pytest.param("kme_jax.generators.measure_generator(None, None, budget=None)", marks=pytest.mark.long),
        pytest.param("kme_jax.generators.MLP()", marks=pytest.mark.slow),
    ],
)
def test_functions_that_need_flax_say_so(call):
    code = _without("flax") + f"import kme_jax, kme_jax.generators\n{call}"
    assert _error(code) == 'ModuleNotFoundError: generators need flax: pip install "kme_jax[generators]"'


def test_what_needs_pyarrow_says_so():
    message = 'ModuleNotFoundError: tables need pyarrow: pip install "kme_jax[tables]"'
    assert _error(_without("pyarrow") + "import kme_jax.table") == message


@pytest.mark.long
def test_a_folder_of_an_unknown_kind_says_what_may_be_missing(tmp_path):
    (tmp_path / "manifest.json").write_text('{"kind": "generator", "version": 4, "files": {}}')
    load = f"import kme_jax\nkme_jax.load({str(tmp_path)!r})"
    pyarrow, flax = 'pip install "kme_jax[tables]"', 'pip install "kme_jax[generators]"'
    assert flax in _error(_without("flax") + load)
    both = _error(_without("flax", "pyarrow") + load)
    assert flax in both
    assert pyarrow in both
    (tmp_path / "manifest.json").write_text('{"kind": "nothing", "version": 4, "files": {}}')
    assert "is damaged, or was edited (its kind is not known)" in _error(load)
