"""Runs what releases do with private rows, for two databases that differ in one row, and keeps every program that JAX
compiles: python -m tests.release_programs FOLDER [all]

FOLDER/first and FOLDER/second get the programs as text, before XLA's optimisations, and FOLDER/cache what the compile
cache keeps. The standard output is JSON: the cache's entries after the first database and after the second. With
"all", also the programs of what is done with noisy numbers: weights, a reduced set, and the training of a generator.
"""

import json
import os
import pathlib
import sys

import jax
import numpy as np
import pyarrow as pa

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    LabelledMap,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    algorithm1,
    algorithm2,
    dp_merf,
    integer_embedding,
    mean_embedding,
    measure,
    perturb,
    perturb_securely,
    release,
)
from kme_jax._numerics.compile_cache import use_compile_cache
from kme_jax.generators.measure import measure_generator
from kme_jax.generators.networks import MLP
from kme_jax.generators.settings import Training
from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.measure import measure_table
from kme_jax.table.schema import Schema

# The row in which the two differ. Its numbers are nowhere else.
VALUES = {"first": (0.7312987, -0.2190743), "second": (-0.4128764, 0.8850139)}
KERNEL = Gaussian(0.5)
BUDGET = PrivacyBudget(1.0, 1e-6)
SCHEMA = Schema((Numeric("a", -4, 4), Numeric("b", -4, 4), Categorical("c", ("no", "yes"))))


def database(name):
    """Private rows [300, 2], and their classes."""
    rng = np.random.default_rng(20180710)
    rows, labels = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    rows[137], labels[137] = VALUES[name], name == "first"
    return rows, labels


def _points(rows, labels):
    points = np.random.default_rng(1).normal(size=(40, 2))
    algorithm1(jax.random.key(0), rows, KERNEL, points, budget=BUDGET)
    measure(rows, KERNEL, points, budget=BUDGET)


def _fourier(rows, labels):
    fourier = FourierMap.from_kernel(jax.random.key(1), KERNEL, 100, 2)
    perturb(jax.random.key(0), mean_embedding(fourier, rows), BUDGET)
    perturb_securely(integer_embedding(fourier, rows), BUDGET)


def _lattice(rows, labels):
    lattice = LatticeMap.from_box(KERNEL, np.full(2, -4.0), np.full(2, 4.0), 2000)
    perturb(jax.random.key(0), mean_embedding(lattice, rows), BUDGET)
    measure(rows, KERNEL, NormalProposal.create(np.zeros(2), 2.0), budget=BUDGET, num_features=2000)
    bounds = Bounds.create(np.full(2, -4.0), np.full(2, 4.0))
    measure(rows, KERNEL, bounds=bounds, budget=BUDGET, num_features=2000)


def _labelled(rows, labels):
    return np.column_stack([rows, labels]), LabelledMap(FourierMap.from_kernel(jax.random.key(1), KERNEL, 100, 2), 2)


def _generator(rows, labels):
    measure_generator(*_labelled(rows, labels), budget=BUDGET)


def _table(rows, labels):
    classes = np.asarray(["no", "yes"])[labels]
    table = pa.table({"a": rows[:, 0].clip(-4, 4), "b": rows[:, 1].clip(-4, 4), "c": classes})
    for secure in (False, True):  # which cells are measured depends on noisy counts
        measure_table(table, SCHEMA, budget=BUDGET, target="c", secure=secure)


def _synthesis(rows, labels):
    points = np.random.default_rng(1).normal(size=(40, 2))
    release(rows, KERNEL, points, budget=BUDGET)
    algorithm2(jax.random.key(0), rows, KERNEL, points, 5, budget=BUDGET, num_features=100)
    training = Training(num_steps=3, num_cycles=1, batch_size=20)
    dp_merf(jax.random.key(0), *_labelled(rows, labels), MLP(widths=(5,), code=2), training, budget=BUDGET)


def main(folder, *what):
    os.environ["KME_JAX_CACHE_DIR"] = str(folder / "cache")
    cache = use_compile_cache()
    entries = {}
    for name in VALUES:
        jax.clear_caches()
        jax.config.update("jax_dump_ir_to", str(folder / name))
        for path in (_points, _fourier, _lattice, _generator, _table, *([_synthesis] if what else [])):
            path(*database(name))
        entries[name] = sorted(path.name for path in cache.iterdir())
    print(json.dumps(entries))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
