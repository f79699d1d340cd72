"""Releases of other systems, on the same splits and the same machine.

The systems run in another virtual environment, see ``experiments.tables.peer_program``. They know columns of categories
alone. So an ordered column of many values is cut into cells of equal width, and a synthetic value is drawn at random
within its cell.
"""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import time
from typing import Any

import numpy as np

from kme_jax.table.columns import Column
from kme_jax.table.schema import Schema

PEERS = {"mst": "MST (dpmm)", "aim": "AIM (dpmm)"}
"""The name of each system, by its name in ``--peers``."""

_MOST_VALUES, _NUM_CELLS = 128, 32  # an ordered column of more values has so many cells
_PROGRAM = pathlib.Path(__file__).with_name("peer_program.py")
_LINES = 3  # of an error, which are shown


def has_peers(python: str) -> bool:
    """Whether this is the Python of an environment with the other systems."""
    try:
        done = subprocess.run([python, "-I", "-c", "import dpmm"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def run_peer(
    peer: str, schema: Schema, codes: np.ndarray, epsilon: float, delta: float, seed: int, python: str, minutes: float
) -> dict[str, Any]:
    """One release of another system.

    Args:
      peer: a name of ``PEERS``.
      schema: of the columns.
      codes: of the private rows, [n, C].
      epsilon: ε of the release.
      delta: δ of the release.
      seed: of the release.
      python: the interpreter of the environment of the system.
      minutes: the time limit.

    Returns:
      "codes" of as many synthetic rows, [n, C], "version" of the package, and "seconds". Or "failed": why there are
      none, if the time was too short or the system had an error.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        given, made = (pathlib.Path(folder) / name for name in ("given.npz", "made.npz"))
        cells, sizes = zip(*map(_cells, schema.columns, codes.T), strict=True)
        np.savez(given, cells=np.stack(cells, axis=1), sizes=sizes)
        command = [python, "-I", str(_PROGRAM), peer, *map(str, (epsilon, delta, seed, given, made))]
        start = time.perf_counter()
        try:
            done = subprocess.run(command, timeout=60 * minutes, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"it took more than {minutes:g} minutes"}
        if done.returncode:
            text = " ".join(done.stderr.strip().splitlines()[-_LINES:]).replace("|", "/")
            return {"failed": f"exit status {done.returncode} {text}".strip()}
        seconds = time.perf_counter() - start
        with np.load(made) as arrays:
            synthetic, version = arrays["cells"], str(arrays["version"])
    columns = [_codes(column, values, rng) for column, values in zip(schema.columns, synthetic.T, strict=True)]
    return {"codes": np.stack(columns, axis=1), "version": version, "seconds": seconds}


def _width(column: Column) -> int:
    return -(-column.num_values // _NUM_CELLS) if column.ordered and column.num_values > _MOST_VALUES else 1


def _cells(column: Column, codes: np.ndarray) -> tuple[np.ndarray, int]:
    """The cells of codes, and the number of cells. A missing value has the last cell."""
    width = _width(column)
    num_cells = -(-column.num_values // width)
    return np.where(codes < column.num_values, codes // width, num_cells), num_cells + column.nullable


def _codes(column: Column, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes drawn at random within cells."""
    width = _width(column)
    first = np.minimum(cells * width, column.num_values - 1)
    drawn = rng.integers(first, np.minimum(first + width, column.num_values))
    return np.where(cells < -(-column.num_values // width), drawn, column.num_values)
