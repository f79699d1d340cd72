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
    "text",
    "validation",
    "pytrees",
    "cells",
    "numerics",
    "sincos",
    "exponential",
    "proposals",
    "bounds",
    "kernels",
    "fused",
    "tiles",
    "gram",
    "feature_maps",
    "embedding",
    "privacy",
    "synthesis",
    "algorithms",
    "serialisation",
    "ledger",
    "verification",
    "folders",
    "files",
    "table",
    "release",
    "generators",
    "planning",
    "evaluation",
    "compile_cache",
    "cli",
    "__main__",
]
ALLOWED = {*LAYERS, "_version"}
FORBIDDEN_ANYWHERE = {"nonprivate", "experiments", "tests"}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    layer = _layer(path)
    for name in _imports(path):
        top, *rest = name.split(".")
        assert top not in FORBIDDEN_ANYWHERE, f"{path} imports {name}"
        if top != "kme_jax" or not rest or path == PACKAGE / "__init__.py":
            continue
        # `from kme_jax import name` would hide which layer the name is from.
        if layer != "evaluation" or rest[0] != "nonprivate":
            assert rest[0] in ALLOWED, f"{path}: import {name} from the module that defines it"
            assert rest[0] not in FORBIDDEN_ANYWHERE, f"{path} imports {name}"
        assert rest[0] != "evaluation" or layer == "cli", f"{path} imports {name}"
        if layer in LAYERS and rest[0] in LAYERS:
            assert LAYERS.index(rest[0]) <= LAYERS.index(layer), f"{path} imports {name} of a later layer"
        if layer == "synthesis" or path.name == "synthesis.py":
            assert rest[0] not in ("embedding", "nonprivate"), (
                f"step 3 must not see private rows: {path} imports {name}"
            )


def test_no_library_module_changes_global_configuration():
    for path in PACKAGE.rglob("*.py"):
        assert "config.update" not in path.read_text() or path.name == "compile_cache.py", path
    code = "import jax; before = dict(jax.config.values); import kme_jax.cli, kme_jax.compile_cache; "
    code += "print([name for name in before if jax.config.values[name] != before[name]])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_only_the_package_is_packaged():
    from setuptools import find_packages

    found = find_packages(str(ROOT), include=["kme_jax*"])
    assert {name.split(".")[0] for name in found} == {"kme_jax"}
    assert (PACKAGE / "py.typed").exists()
