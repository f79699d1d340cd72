"""Sums of features of made-up rows of a mixed table, as a program of its own: it also runs an earlier version.

python -P sums_program.py NUM_ROWS CORES

With -P, Python takes none of the files beside this one for a module. CORES are the numbers of the cores that the
program may use, such as 0,1. It draws a few batches of Arrow columns: whole and other numbers, days, categories and
missing cells. It then writes a line with what it is about to do, waits for a line, and sums the features of NUM_ROWS
rows. These are the batches, one after the other, again and again, so that any number of rows takes no room. Each of
three passes encodes the rows, as a release does. At the end it writes what it measured. Both lines are JSON.

This file imports nothing of ``experiments``, and only what an earlier ``kme_jax`` has, too.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kme_jax import Categorical, Datetime, Numeric, Ordinal, Schema
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.feature_maps.table import Binning, Block, Moment, TableMap
from kme_jax.table.readers import read_ahead
from kme_jax.table.release import binnings_and_target

ROWS_OF_BATCH, NUM_BATCHES = 2**16, 8
TARGET = "outcome"
SCHEMA = Schema(
    (
        Numeric("age", 0, 110, integer=True, nullable=True),
        Numeric("pay", 0, 1e6, scale="log", nullable=True),
        Numeric("height", 0, 250, step=0.1),
        Numeric("score", 0, 1),
        Numeric("distance", 0, 5000, integer=True, knots=(10, 50, 200)),
        Numeric("hours", 0, 99, integer=True),
        Numeric("visits", 0, 1000, integer=True, nullable=True),
        Datetime("day", "2015-01-01", "2024-12-31"),
        Categorical("town", tuple(f"town {i}" for i in range(60)), nullable=True),
        Categorical("job", tuple(f"job {i}" for i in range(15))),
        Categorical("region", tuple(f"region {i}" for i in range(8))),
        Ordinal("grade", ("none", "low", "middle", "high", "top"), nullable=True),
        Categorical(TARGET, ("no", "yes")),
    )
)
_MISSING = 0.05
_COARSE, _FINE, _NUM_FINE = 10, 16, 57  # bins of a column in the second and third pass; pairs in the third
_WEIGHT = 1 << 20


def batch(rng: np.random.Generator, num_rows: int = ROWS_OF_BATCH) -> pa.RecordBatch:
    """Rows of Arrow columns as a Parquet file gives them. Smaller values are more frequent, and columns depend on each
    other."""
    shared, columns = rng.random(num_rows), {}
    for column in SCHEMA.columns:
        uniform = np.where(rng.random(num_rows) < 0.5, shared, rng.random(num_rows))
        codes = (column.num_values * uniform**2).astype(np.int64)
        codes[rng.random(num_rows) < _MISSING * column.nullable] = column.num_values
        cells = column.decode(codes)
        columns[column.name] = cells.dictionary_encode() if isinstance(column, Categorical) else cells
    return pa.RecordBatch.from_pydict(columns)


def _merged(binning: Binning, size: int) -> np.ndarray:
    """Bins of about equally many cells, at most so many."""
    return np.arange(binning.num_cells) * min(size, binning.num_cells) // binning.num_cells


def maps() -> list[TableMap]:
    """Features as those of the three measurements of a release: 150 tables of counts together.

    First each column in all its cells, alone and by the target; then all pairs by the target in few bins; then most
    pairs in more bins, and the parts of three cells of two columns. Moments of numbers come with the first and third.
    """
    binnings = tuple(binnings_and_target(SCHEMA, TARGET)[0])
    places = range(len(binnings) - 1)
    target, halves = len(binnings) - 1, np.arange(2)
    cells = [np.arange(binning.num_cells) for binning in binnings]
    singles = [((j,), (cells[j],)) for j in (*places, target)]
    singles += [((target, j), (halves, cells[j])) for j in places]
    pairs = list(itertools.combinations(places, 2))
    coarse, fine = ([_merged(binning, size) for binning in binnings] for size in (_COARSE, _FINE))
    second, third = (
        [((target, i, j), (halves, bins[i], bins[j])) for i, j in chosen]
        for bins, chosen in ((coarse, pairs), (fine, pairs[:_NUM_FINE]))
    )
    zoomed = []
    for j in (2, 3):
        looked = np.full(binnings[j].num_cells, -1)
        looked[[1, 5, 9]] = np.arange(3)
        zoomed.append(Block((j,), (looked,), _WEIGHT, zoom=binnings[j].width))
    last = [binning.num_codes - 1 - binning.missing for binning in binnings]
    moments = tuple(Moment((j,), (0,), (last[j],), _WEIGHT) for j in range(7))
    return [
        TableMap(
            binnings,
            (*(Block(columns, bins, _WEIGHT + i) for i, (columns, bins) in enumerate(chosen)), *others),
            of_numbers,
        )
        for chosen, others, of_numbers in ((singles, (), moments), (second, (), ()), (third, zoomed, moments))
    ]


def _codes(batches: list[pa.RecordBatch], num_rows: int) -> Iterator[np.ndarray]:
    """Category codes of so many rows."""
    for some, start in zip(itertools.cycle(batches), range(0, num_rows, ROWS_OF_BATCH), strict=False):
        yield SCHEMA.encode(some.slice(0, num_rows - start))


def sums(batches: list[pa.RecordBatch], num_rows: int) -> list[np.ndarray]:
    """The integers of all maps, summed over so many rows."""
    as_codes = getattr(TableMap, "takes_codes", False)  # earlier versions turned codes into floats
    totals = []
    for feature_map in maps():
        codes: Any = read_ahead(_codes(batches, num_rows))  # pyright: ignore[reportArgumentType]
        rows = codes if as_codes else (some.astype(np.float64) for some in codes)
        totals.append(integer_embedding_of_batches(feature_map, rows, num_rows).total)
    return totals


def _peak_bytes() -> int:
    """The most memory that this process has used."""
    line = re.search(r"VmHWM:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return 1024 * int(line[1]) if line else 0


def main(num_rows: int, cores: list[int]) -> None:
    """See the module."""
    os.sched_setaffinity(0, cores)
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    batches = [batch(rng) for _ in range(NUM_BATCHES)]
    making = time.perf_counter() - started
    of_maps = maps()
    sums(batches, 2 * ROWS_OF_BATCH)  # warms up
    facts = {
        "making_seconds": making,
        "rows_drawn": NUM_BATCHES * ROWS_OF_BATCH,
        "columns": len(SCHEMA.columns),
        "passes": len(of_maps),
        "num_features": sum(feature_map.num_features for feature_map in of_maps),
        "nonzeros_per_row": sum(len(feature_map.blocks) for feature_map in of_maps),
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.readline()
    started, of_cores = time.perf_counter(), time.process_time()
    totals = sums(batches, num_rows)
    seconds, of_cores = time.perf_counter() - started, time.process_time() - of_cores
    digest = int(np.bitwise_xor.reduce(np.concatenate(totals) * np.arange(1, 1 + sum(map(len, totals)))))
    found = {"seconds": seconds, "core_seconds": of_cores, "peak_bytes": _peak_bytes(), "digest": digest}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(core) for core in sys.argv[2].split(",")])
