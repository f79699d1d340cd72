"""The README's examples, in its order: each name is imported or made by an example before, and the examples run."""

import ast
import builtins
import pathlib
import re

import numpy as np
import pyarrow as pa
import pytest

TEXT = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
READERS_OWN = {"table"}  # what the text says is the reader's


def _names(code):
    """Names that an example defines, and names that it uses."""
    defined, used = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Name):
            (defined if isinstance(node.ctx, ast.Store) else used).add(node.id)
    return defined, used


def test_every_name_is_there():
    known = READERS_OWN | set(dir(builtins))
    assert len(EXAMPLES) >= 8
    for code in EXAMPLES:
        defined, used = _names(code)
        known |= defined
        assert used <= known, f"{used - known} in\n{code}"
        from_the_library = {name for name in used if name in _public() and name not in _imported(code)}
        assert not from_the_library - _imported("\n".join(EXAMPLES[: EXAMPLES.index(code)])), code


def _public():
    import kme_jax

    return set(kme_jax.__all__)


def _imported(code):
    imports = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in imports for alias in node.names}


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rich = np.where(rng.random(500) < 0.2, "yes", "no")
    variables = {"table": pa.table({"age": rng.integers(0, 100, 500), "rich": rich})}
    for code in EXAMPLES:
        exec(compile(code, "README.md", "exec"), variables)
    assert np.shape(variables["synthetic"]) == (1000, 3)
    assert variables["again"].sample.points.shape == (5000, 2)
