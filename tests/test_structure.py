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
    "processes",
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
    "partial",
    ("points", "table", "generators"),
    "analysis",
    "cli",
    "__main__",
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in ([names] if isinstance(names, str) else names)}
MOST_AT_THE_TOP = 9  # modules of the package itself
STEP_THREE = ("synthesis", "table/fit.py", "generators/train.py", "generators/objective.py", "generators/fit.py")


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


@pytest.mark.slow
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


def _private_names_of_others(text):
    """(line, name) of each underscore name of another module that a module uses.

    Modules of a package with an underscore name, such as ``kme_jax._numerics``, may be used: the names within count.
    """
    tree, modules = ast.parse(text), {}  # {name: the module that it stands for}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if _is_ours(name) and any(map(_is_private, name.split("."))):
                    yield node.lineno, name
                if _is_module(name):
                    modules[alias.asname or alias.name] = name
    modules = {name: module for name, module in modules.items() if _is_ours(module)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner in modules or (_is_ours(owner) and _is_module(owner)):
                yield node.lineno, f"{owner}.{node.attr}"
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "delattr", "setitem"):
            for argument in node.args[:2]:
                for value in ast.walk(argument):  # a name may be put together by an f-string
                    if isinstance(value, ast.Constant) and any(map(_is_private, str(value.value).split("."))):
                        yield node.lineno, value.value


def _is_private(name):
    return name.startswith("_") and not name.endswith("__") and name not in _INTERNAL


def _is_ours(name):
    return name.split(".")[0] in ("kme_jax", "experiments", "tests")


def _is_module(name):
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


_INTERNAL = ("_numerics", "_version")  # internal to the whole of kme_jax
_PYTHON = sorted(path for folder in ("kme_jax", "experiments", "tests") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.slow
def test_no_module_uses_underscore_names_of_another():
    """What is worth a test of its own has a public name; what a test replaces is an argument with a default."""
    uses = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _PYTHON
        for line, name in _private_names_of_others(path.read_text())
    ]
    assert not uses, "\n".join(uses)


@pytest.mark.parametrize(
    "line",
    [
        "from kme_jax.gram import _lower_row_sums",
        "from kme_jax.generators._flax import nnx",
        "from kme_jax import gram\ngram._lower_row_sums",
        "from kme_jax import gram as g\ng._STEP = 3",
        "import kme_jax\nkme_jax.gram._lower_row_sums",
        "monkeypatch.setattr(gram, '_STEP', 3)",
        "monkeypatch.setattr('kme_jax.gram._STEP', 3)",
        "monkeypatch.setattr(gram, f'_{name}', 3)",
    ],
)
def test_underscore_names_of_others_are_seen(line):
    assert list(_private_names_of_others(line))


def test_own_underscore_names_and_internal_packages_are_allowed():
    text = "from kme_jax._numerics import tiles\nimport kme_jax._numerics.tiles\nself._cache = _own(tiles.pad)"
    assert not list(_private_names_of_others(text))
