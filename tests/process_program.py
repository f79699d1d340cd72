"""One of two processes that measure rows together: python -m tests.process_program INDEX PORT WHAT FOLDER.

Process 0 has 700 rows, and process 1 has 300, or none. It prints one line: what the process got, or the error.
"""

import os
import pathlib
import sys

import jax
import numpy as np

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    Ledger,
    PrivacyBudget,
    Processes,
    Spending,
    integer_embedding_of_processes,
    measure,
    open_rows,
)

BOUNDS = Bounds.create([-3.0, -3.0], [3.0, 3.0], ["x", "y"])
BUDGET = PrivacyBudget(1.0, 1e-5)
TIMEOUT = 4.0  # seconds


def all_rows() -> np.ndarray:
    """The rows of both processes, [1000, 2], with some that are no numbers."""
    rows = np.random.default_rng(0).normal(size=(1000, 2))
    rows[::9, 0] = np.nan
    return rows


def fourier(seed: int = 0) -> FourierMap:
    """A map of [0, 1]², whatever the rows are."""
    return FourierMap.from_kernel(jax.random.key(seed), Gaussian(gamma=2.0), num_features=64, dim=2)


def _rows(index: int, what: str) -> np.ndarray:
    if what == "one with none":
        return all_rows() if index == 0 else np.empty((0, 2))
    return all_rows()[:700] if index == 0 else all_rows()[700:]


def _batches(index: int, what: str):
    rows = _rows(index, what)
    for start in range(0, len(rows), 150):
        if what == f"{index} dies" and start:
            os._exit(9)  # without a word, as if it was killed
        if what == f"{index} fails" and start:
            raise OSError("this disk is damaged")
        yield rows[start : start + 150]


def main(index: int, what: str, folder: pathlib.Path) -> str:
    """What the process says."""
    with Processes(TIMEOUT) as processes:
        count = len(_rows(index, what))
        source = open_rows(lambda: _batches(index, what), num_rows=count, num_columns=2)
        sums = integer_embedding_of_processes(
            fourier(index if what == "other maps" else 0), source.batches(), count, processes, bounds=BOUNDS
        )
        spending = Spending(Ledger(folder / f"{index}.ledger"), "rows")
        measured = measure(
            source, fourier(), BOUNDS.proposal, bounds=BOUNDS, budget=BUDGET, spending=spending,
            folder=folder / f"measured{index}", processes=processes,
        )  # fmt: skip
        if sums is not None:
            np.save(folder / "total.npy", sums.total)
    return f"measurement: {measured is not None}, sum: {sums is not None}"


if __name__ == "__main__":
    own_index, port, told, place = sys.argv[1:]
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, int(own_index), heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20
    )
    status = 0
    try:
        line = main(int(own_index), told, pathlib.Path(place))
    except (ValueError, OSError) as error:
        line, status = f"{type(error).__name__}: {error}", 3
    print(line, flush=True)
    if status:
        os._exit(status)  # at a usual end, JAX would wait for a process that is lost
