"""What is installed: what JAX must get right, and which extra brings which library."""

import ast
import configparser
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax._numerics.precision import float64

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWN = {"kme_jax", "experiments", "tests"}
# What a distribution is called that is imported under another name.
DISTRIBUTIONS = {
    "absl": "absl-py",
    "dp_accounting": "dp-accounting",
    "joblib": "scikit-learn",
    "orbax": "orbax-checkpoint",
    "sklearn": "scikit-learn",
}
# Peers that the benchmark is timed against where they are installed.
OPTIONAL = {"pykeops", "torch"}


def _requirements(extra=None):
    """Names of distributions that the package needs, with one of its extras."""
    config = configparser.ConfigParser(comment_prefixes="#")
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"] if extra is None else config["options.extras_require"][extra]
    names = set() if extra is None else _requirements()
    for line in filter(None, lines.splitlines()):
        own = re.fullmatch(r"kme_jax\[(.*)\]", line)
        names |= set().union(*map(_requirements, own[1].split(","))) if own else {re.split(r"[\s<>=!;\[]", line)[0]}
    return names


def _third_party(folder):
    """Names of distributions whose modules a folder's modules import, in functions too."""
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    names -= {*OWN, *OPTIONAL, *sys.stdlib_module_names}
    return {DISTRIBUTIONS.get(name, name) for name in names}


def test_tables_need_no_generator_and_no_plot():
    for extra in (None, "secure", "tables"):
        assert not _requirements(extra) & {"flax", "orbax-checkpoint", "matplotlib", "pandas", "scikit-learn"}
    assert {"opendp", "pyarrow"} <= _requirements("tables")
    assert {"flax", "orbax-checkpoint"} <= _requirements("generators")
    assert "matplotlib" in _requirements("experiments")


def test_all_is_all():
    config = configparser.ConfigParser(comment_prefixes="#")
    config.read(ROOT / "setup.cfg")
    extras = set(config["options.extras_require"])
    assert {"secure", "tables", "generators", "experiments", "benchmark", "test", "all"} <= extras
    assert _requirements("all") == set().union(*map(_requirements, extras))


@pytest.mark.long
@pytest.mark.parametrize(("folder", "extra"), [("kme_jax", "test"), ("tests", "test"), ("experiments", "experiments")])
def test_extras_bring_what_is_imported(folder, extra):
    missing = _third_party(folder) - {name.removesuffix("-cpu") for name in _requirements(extra)}
    assert missing == set()


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 16_385), (np.float32, 32_769)])
def test_products_followed_by_sums(dtype, size):
    """jaxlib 0.10.2 gets the last rows wrong on CPUs: github.com/jax-ml/jax/issues/39103."""
    with float64():
        rows = jnp.zeros((size, 3), dtype).at[:, 0].set(jnp.arange(size, dtype=dtype))
        matrix = jnp.eye(3, dtype=dtype)
        squares = jax.jit(jax.vmap(lambda row: jnp.sum(jnp.matmul(matrix, row, precision="highest") ** 2)))(rows)
        np.testing.assert_allclose(squares, np.arange(size, dtype=dtype) ** 2, rtol=1e-5)
