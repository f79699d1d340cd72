"""The README and the guides: their examples run, and every name in them is imported or made by an example before."""

import ast
import builtins
import importlib.util
import json
import pathlib
import re
import shlex
import shutil
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import Categorical, Numeric, Schema, cli
from kme_jax.cli import parsing
from tests import documentation

ROOT = documentation.ROOT
README = ROOT / "README.md"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
BASH = re.compile(r"```bash\n(.*?)```", re.DOTALL)
# What the text says is the reader's own.
READERS_OWN = {
    "README.md": set(),
    "docs/accelerators.md": {"kernel", "points", "rows"},
    "docs/guides/distributed.md": set(),
    "docs/guides/generators.md": set(),
    "docs/guides/points.md": set(),
    "docs/guides/tables.md": {"table"},
    "docs/index.md": set(),
    "docs/privacy.md": set(),
    "docs/sharp_edges.md": set(),
}
# Commands of the README that install, and so are run by .ci/run and not by a test.
INSTALLATIONS = [
    'pip install -e ".[tables]" pandas',
    'pip install -e ".[experiments]" && python -m experiments.figures',
    'pip install -e ".[test]" && python -m pytest',
    'pip install -e ".[docs]" && python -m sphinx -W -j auto docs docs/_build/html',
]
FILLED_IN = {  # what a person fills in after "kme-jax schema", as the README says
    "age": {"kind": "numeric", "lower": 0, "upper": 110, "nullable": False, "integer": True},
    "job": {"kind": "categorical", "categories": ["baker", "clerk", "nurse"], "nullable": True},
    "rich": {"kind": "categorical", "categories": ["no", "yes"], "nullable": False},
}


def _examples(page, pattern=PYTHON):
    return pattern.findall((ROOT / page).read_text())


def _commands(page):
    """Each line of the blocks of commands, without comments."""
    lines = [line for block in _examples(page, BASH) for line in block.splitlines()]
    return [line.split("  #")[0].rstrip() for line in lines if line.strip()]


def _names(code):
    """Names that an example defines, and names that it uses."""
    defined, used = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name):
            (defined if isinstance(node.ctx, ast.Store) else used).add(node.id)
    return defined, used


@pytest.mark.parametrize("page", READERS_OWN)
def test_every_name_is_there(page):
    known = READERS_OWN[page] | set(dir(builtins))
    examples = _examples(page)
    assert examples
    for i, code in enumerate(examples):
        defined, used = _names(code)
        known |= defined
        assert used <= known, f"{used - known} in\n{code}"
        from_the_library = {name for name in used if name in _public() and name not in _imported(code)}
        assert not from_the_library - _imported("\n".join(examples[:i])) - READERS_OWN[page], code


def test_every_page_with_examples_is_looked_at():
    pages = [path for path in documentation.pages() if PYTHON.search(path.read_text())]
    assert {path.relative_to(ROOT).as_posix() for path in pages} == set(READERS_OWN) - {"README.md"}


def _public():
    import kme_jax

    return set(kme_jax.__all__)


def _imported(code):
    imports = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


def test_the_table_of_the_readme_is_made_from_the_results():
    assert f"\n\n{documentation.committed().text('table_peers_headline')}\n\n" in README.read_text()


def test_files_that_the_readme_names_exist():
    links = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert len(links) > 15
    assert [link for link in links if not link.startswith("https:") and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/guides/points.md", "docs/guides/tables.md", "docs/tour.md"])
def test_commands_are_installations_or_those_of_kme_jax(page):
    commands = _commands(page)
    assert len(commands) >= 4
    for command in commands:
        if command in INSTALLATIONS:
            continue
        program, *words = shlex.split(command)
        assert program == "kme-jax", command
        assert parsing.parse(words).run, command  # an unknown flag raises an error


def test_each_installation_has_a_block_of_its_own():
    blocks = [block.strip() for block in _examples("README.md", BASH)]
    assert [block for block in blocks if block in INSTALLATIONS] == INSTALLATIONS


def _people(num_rows=500):
    rng = np.random.default_rng(0)
    job = rng.choice(["baker", "clerk", "nurse"], num_rows)
    job = np.where(rng.random(num_rows) < 0.1, None, job)
    rich = np.where(rng.random(num_rows) < 0.2, "yes", "no")
    return pd.DataFrame({"age": rng.integers(18, 91, num_rows), "job": job, "rich": rich})


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    variables = {}
    for code in _examples("README.md"):
        exec(compile(code, "README.md", "exec"), variables)
    text = capsys.readouterr().out
    assert all(job in text for job in ("baker", "clerk", "nurse"))
    np.testing.assert_allclose(variables["sample"].expectation(lambda z: z), [1, -2], atol=0.1)
    assert len(variables["released"].table) == 5000
    assert (tmp_path / "published" / "report.html").exists()


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _people(5000).to_csv("people.csv", index=False)  # noise could hide all old people among 500
    commands = [command for command in _commands("README.md") if command not in INSTALLATIONS]
    assert len(commands) == 6
    for command in commands:
        _, *words = shlex.split(command)
        assert cli.main(words) == 0, capsys.readouterr().err
        if words[0] == "schema":
            path = pathlib.Path("schema.json")
            draft = json.loads(path.read_text())
            for column in draft["columns"]:
                filled_in = FILLED_IN[column["name"]]
                assert all(column.get(field) is None for field in filled_in)  # the null that the README says to replace
                column |= filled_in
            path.write_text(json.dumps(draft))
            assert json.dumps(draft["columns"][0]) in " ".join(README.read_text().split())
    printed = capsys.readouterr().out
    assert "mean(age) by rich = yes: " in printed
    assert "share(rich=yes): " in printed
    older = pd.read_csv("older.csv")
    assert len(older) == 1000
    assert older["age"].min() >= 65
    assert set(older["rich"]) <= {"no", "yes"}


def _run_page(page, **variables):
    """The variables after all examples of a page have run."""
    for code in _examples(page):
        exec(compile(code, page, "exec"), variables)
    return variables


# The examples of generators are run by tests/test_generator.py, the script of privacy.md by tests/test_release.py.
@pytest.mark.slow
def test_the_examples_of_the_guide_of_tables_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rich = np.where(rng.random(500) < 0.2, "yes", "no")
    _people()[["age", "rich"]].to_csv("survey.csv", index=False)
    pathlib.Path("visits.csv").write_text("age;town\n30;Köln\n40;Bonn\n", encoding="cp1252")
    Schema((Numeric("age", 0, 110), Categorical("town", ("Bonn", "Köln")))).write("visits.json")
    after = _run_page("docs/guides/tables.md", table=pa.table({"age": rng.integers(0, 100, 500), "rich": rich}))
    assert after["released"].table.num_rows == 500
    assert after["source"].num_rows == 2
    _people()[["age", "rich"]].to_csv("people.csv", index=False)
    _run_page("docs/index.md")
    assert (tmp_path / "published" / "synthetic.parquet").exists()


@pytest.mark.long
def test_the_examples_of_the_guide_of_points_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _run_page("docs/guides/points.md")["again"].sample.points.shape == (5000, 2)


@pytest.mark.slow
def test_the_examples_of_the_guide_of_distributed_tables_run(tmp_path, monkeypatch):
    """That of Spark is run if Spark is installed. It needs Java."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("visits").mkdir()
    rng = np.random.default_rng(0)
    for i in range(2):
        ward = rng.choice(["A", "B", "C", None], 200)
        pq.write_table(pa.table({"age": rng.integers(0, 100, 200), "ward": ward.astype(str)}), f"visits/{i}.parquet")
    has_spark = importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    page, found = "docs/guides/distributed.md", {}
    examples = _examples(page)
    assert len(examples) == 4
    for code in examples:
        if "pyspark" not in code or has_spark:
            variables = {}
            exec(compile(code, page, "exec"), variables)
            found |= {name: variables[name] for name in ("released", "noisy", "source", "spark") if name in variables}
    if has_spark:
        found["spark"].stop()
        assert (tmp_path / "published" / "synthetic.parquet").exists()
    assert found["released"].table.num_rows == found["source"].num_rows == 400
    assert found["noisy"].mechanism.secure


@pytest.mark.slow
def test_the_short_examples_run(tmp_path, monkeypatch):
    import jax

    from kme_jax import Gaussian, float64

    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(50, 2))
    variables = {"rows": rows, "points": rows[:5], "kernel": Gaussian(gamma=0.1)}
    for code in [*_examples("docs/accelerators.md"), *_examples("docs/sharp_edges.md")]:
        exec(compile(code, "docs", "exec"), variables)
    with float64():
        expected = jax.numpy.exp(-0.1 * ((rows[:5, None] - rows) ** 2).sum(-1)).mean(1)
    np.testing.assert_allclose(variables["mean"], expected, rtol=1e-4)
