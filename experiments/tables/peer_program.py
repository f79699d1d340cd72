"""Synthetic rows of another system, as a program of its own: it needs another virtual environment.

python -I peer_program.py METHOD EPSILON DELTA SEED INPUT OUTPUT

METHOD is mst or aim, of the package dpmm, which needs versions of NumPy and SciPy that JAX does not work with. INPUT is
a .npz file with "cells", int64 [n, C], and "sizes", the number of cells of each column. OUTPUT is a .npz file with
"cells", as many synthetic rows, and "version", that of dpmm. This file imports nothing of this project.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import numpy as np


def main(method: str, epsilon: float, delta: float, seed: int, source: str, destination: str) -> None:
    """Reads cells, synthesises as many rows, and writes their cells."""
    import pandas as pd

    # By name: dpmm is in no extra of this project, because it needs versions that JAX does not work with.
    models = {"mst": ("dpmm.models.mst", "MSTGM"), "aim": ("dpmm.models.aim", "AIMGM")}
    create = getattr(importlib.import_module(models[method][0]), models[method][1])
    pipelines = importlib.import_module("dpmm.pipelines.base")
    with np.load(source) as arrays:
        cells, sizes = arrays["cells"], arrays["sizes"]
    names = [f"column{j}" for j in range(cells.shape[1])]
    rows = pd.DataFrame(cells, columns=names)
    # All other options have the package's defaults.
    pipeline = pipelines.GenerativePipeline(gen=create(epsilon=epsilon, delta=delta, n_jobs=1))
    pipeline.fit(rows, domain=dict(zip(names, sizes.tolist(), strict=True)), random_state=seed)
    synthetic = pipeline.generate(n_records=len(rows), random_state=seed)
    version = np.asarray(importlib.metadata.version("dpmm"))
    np.savez(destination, cells=synthetic[names].to_numpy(np.int64), version=version)


if __name__ == "__main__":
    name, eps, failure, number, given, wanted = sys.argv[1:]
    main(name, float(eps), float(failure), int(number), given, wanted)
