"""The structure of experiments/ and its configuration system."""

import ast
import importlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from experiments import __main__ as listed

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "experiments").rglob("*.py"))
}
OWN_TESTS = ("experiments", "accuracy", "audit", "benchmark", "merf_experiments", "tables_experiment", "containers")
TESTS = {f"tests.test_{name}": ROOT / "tests" / f"test_{name}.py" for name in (*OWN_TESTS, "security")}
# The benchmark times one step of a solver, which has no public name.
PRIVATE_NAMES = {("experiments.benchmark.cases", "kme_jax.synthesis.reduced_set", "_joint_steps")}


def _imports(path):
    """(module, name or None) of every import, also of those within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def _imported_experiments(path):
    for module, name in _imports(path):
        full = f"{module}.{name}"
        if full in PATHS:
            yield full
        elif module in PATHS:
            yield module


def test_no_circle_of_imports():
    arrows = {name: set(_imported_experiments(path)) - {name} for name, path in PATHS.items()}
    while arrows:
        free = {name for name, others in arrows.items() if not others & arrows.keys()}
        assert free, f"a circle among {sorted(arrows)}"
        for name in free:
            del arrows[name]


# Experiments that stand on others: rivals run beside generators.
STANDS_ON = {"rivals": ("merf",)}
SHARED_BY_FIGURES = set(_imported_experiments(PATHS["experiments.figures.catalogue"]))


@pytest.mark.parametrize("name", PATHS)
def test_an_experiment_imports_its_own_folder_and_what_is_shared(name):
    own = "figures" if name in SHARED_BY_FIGURES else name.split(".")[1] if "." in name else ""
    for other in _imported_experiments(PATHS[name]):
        folder = other.split(".")[1]
        figure = own == "figures" and other in SHARED_BY_FIGURES
        assert folder in (own, "common", *STANDS_ON.get(own, ())) or figure, f"{name} imports {other}"


@pytest.mark.parametrize(("name", "path"), [*PATHS.items(), *TESTS.items()], ids=lambda value: str(value))
def test_no_underscore_name_of_another_module_is_used(name, path):
    """Names of modules that begin with an underscore are those of packages, such as kme_jax._numerics."""
    modules = {}
    for module, imported in _imports(path):
        if imported is None or module.split(".")[0] not in ("experiments", "kme_jax"):
            continue
        assert not imported.startswith("_") or importlib.util.find_spec(f"{module}.{imported}"), f"{module}.{imported}"
        value = getattr(importlib.import_module(module), imported, None)
        if isinstance(value, types.ModuleType):
            modules[imported] = value.__name__
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        if private and node.value.id in modules:
            assert (name, modules[node.value.id], node.attr) in PRIVATE_NAMES, f"{node.value.id}.{node.attr}"


def test_modules_are_not_long():
    assert {name: size for name, path in PATHS.items() if (size := len(path.read_text().splitlines())) > 400} == {}


def test_commands_in_the_documentation_exist():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md", *pages]
    commands = {match for path in texts for match in re.findall(r"python -m (experiments[.\w]*\w)", path.read_text())}
    assert len(commands) >= 10
    for command in commands:
        path = PATHS.get(f"{command}.__main__") or PATHS[command]
        assert "run_main(" in path.read_text(), command


NEW_EXPERIMENT = '''
"""Counts rows."""

import dataclasses

from experiments.common.config import Config, at_least, flag
from experiments.common.program import run_main
from experiments.common.results import check_output_dir, write_json


@dataclasses.dataclass(frozen=True)
class Shared(Config):
    num_rows: int = flag(7, "N.")

    def validate(self):
        at_least(self, 1, "num_rows")


@dataclasses.dataclass(frozen=True)
class NewConfig(Shared):
    scale: float | None = flag(None, "A number, or nothing.")
    kind: str = flag("slow", "How.", choices=("slow", "fast"))
    quick: bool = flag(False, "Whether.")
    dims: tuple[int, ...] = flag((2, 5), "D.")
    epsilons: tuple[float, ...] = flag((0.1,), "Levels.")
    hidden: int = 3
    output_dir: str = flag("results", "Folder.")


def main(config):
    write_json(check_output_dir(config.output_dir) / "new.json", config.settings("dims"))


if __name__ == "__main__":
    run_main(main, NewConfig)
'''


@pytest.mark.long
def test_all_experiments_are_listed():
    found = dict(listed.programs())
    assert {"experiments.figure1", "experiments.tables", "experiments.tables.coverage"} <= set(found)
    assert all(len(about) > 20 for about in found.values())
    for name in found:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{name}.__main__") is not None


@pytest.mark.long
def test_a_new_experiment_is_one_file(tmp_path):
    (tmp_path / "new_experiment.py").write_text(NEW_EXPERIMENT)

    def run(*words):
        command = [sys.executable, "-m", "new_experiment", f"--output_dir={tmp_path}", *words]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    done = run("--num_rows=3", "--scale=2", "--kind=fast", "--quick", "--epsilons=0.5,1")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "new.json").read_text()) == {
        "num_rows": 3,
        "scale": 2.0,
        "kind": "fast",
        "quick": True,
        "epsilons": [0.5, 1.0],
        "hidden": 3,
        "output_dir": tmp_path.name,
    }
    for word, message in (
        ("--num_rows=0", "--num_rows must be at least 1, got 0"),
        ("--dims=a", "must be whole numbers"),
    ):
        wrong = run(word)
        assert wrong.returncode == 2
        assert message in wrong.stderr
    text = run("--help").stdout
    assert "Counts rows." in text
    assert "--kind: <slow|fast>: How." in text
    assert "hidden" not in text
