"""The rules of the house that a program can check."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kme_jax"
# Each layer may import itself and the layers before it.
LAYERS = [
    "_numerics",
    "kernels",
    "gram",
    "domain",
    "feature_maps",
    "embedding",
    "privacy",
    "synthesis",
    "algorithms",
    "nonprivate",
    "storage",
    ("points", "table", "generators"),
    "analysis",
    "cli",
    "__main__",
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in ([names] if isinstance(names, str) else names)}
MOST_AT_THE_TOP = 9  # modules of the package itself
STEP_THREE = ("synthesis", "table/fit.py", "generators/train.py")


def _modules():
    """Paths of all modules, by their names."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(path):
    """Names of everything that a module imports, within functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES or node.module not in MODULES else f"{node.module}:{alias.name}"


def _imported_modules(path):
    for name in _imports(path):
        module = name.partition(":")[0]
        if module in MODULES:
            yield module


@pytest.mark.parametrize("path", sorted(MODULES.values()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    place = path.relative_to(PACKAGE)
    layer = place.parts[0].removesuffix(".py")
    for name in _imports(path):
        top, *rest = name.partition(":")[0].split(".")
        assert top not in ("experiments", "tests"), f"{place} imports {name}"
        if top != "kme_jax" or layer in ("__init__", "_version"):
            continue
        other = rest[0] if rest else "__init__"
        if other == "_version":
            continue
        assert other in RANK or (other == "__init__" and layer == "cli"), (
            f"{place}: import {name} from where it is defined"
        )
        if other in RANK:
            assert RANK[other] <= RANK[layer], f"{place} imports {name} of a later layer"
            same_rank = RANK[other] == RANK[layer]
            assert not same_rank or other == layer, f"{place} imports {name} of another product"
        if other == "nonprivate":
            assert place.name == "evaluate.py", f"only experiments, tests and evaluations see private rows: {place}"
        if str(place).startswith(STEP_THREE):
            assert other not in ("embedding", "nonprivate"), f"step 3 must not see private rows: {place} imports {name}"


def test_no_circle_of_imports():
    """Of any size, with those within functions."""
    arrows = {name: set(_imported_modules(path)) - {name} for name, path in MODULES.items() if name != "kme_jax"}
    # A package is imported before any of its modules, which is no circle of its own making.
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            arrows.pop(name, None)
    while arrows:
        free = {name for name, others in arrows.items() if not others & arrows.keys()}
        assert free, f"a circle among {sorted(arrows)}"
        for name in free:
            del arrows[name]


def test_few_modules_at_the_top():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_AT_THE_TOP


def test_every_layer_exists():
    there = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()} - {"__pycache__", "__init__", "_version"}
    assert {name for name in there if not name.startswith("py.")} <= RANK.keys()


def test_no_library_module_changes_global_configuration():
    for path in PACKAGE.rglob("*.py"):
        assert "config.update" not in path.read_text() or path.name == "compile_cache.py", path
    code = "import jax; before = dict(jax.config.values); import kme_jax.cli, kme_jax._numerics.compile_cache; "
    code += "print([name for name in before if jax.config.values[name] != before[name]])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_only_the_package_is_packaged():
    from setuptools import find_packages

    found = find_packages(str(ROOT), include=["kme_jax*"])
    assert {name.split(".")[0] for name in found} == {"kme_jax"}
    assert (PACKAGE / "py.typed").exists()
