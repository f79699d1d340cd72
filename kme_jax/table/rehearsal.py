"""A rehearsal of a release on made-up rows: how long it takes, how much memory, and how large its errors are.

Rows are made up from the schema alone, so a rehearsal spends nothing, and needs no private file. It runs in a process
of its own, whose peak memory is then that of a release.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kme_jax._numerics.compile_cache import use_compile_cache
from kme_jax._numerics.precision import MAX_SEED, Progress, hide_absent_devices
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax.privacy.budget import ADD_REMOVE_PERSON, PrivacyBudget, check_integer
from kme_jax.table.expected import ExpectedTable, expected_errors
from kme_jax.table.marginals import total_variation
from kme_jax.table.measure import measure_table
from kme_jax.table.readers import TableSource, open_table, write_table
from kme_jax.table.schema import Schema

MOST_CELLS = 10**8
"""The largest number of made-up cells: of rows times columns. They take about 5 GiB."""

CANNOT_KNOW = (
    "a rehearsal does not know the private rows: they have other bins, and depend on each other. Times are of this "
    "machine, with simulated noise, and without a file to read"
)
_BATCH = 1 << 16  # rows that are made up at once
_MOST_PAIRS = 1000  # that are compared
# Where each part of the work ends, in per cent, for the progress bar.
_ROWS, _MEASURED, _SYNTHESISED, _DONE = 5, 30, 95, 100
_GIB = 1 << 30
CHILD = "from kme_jax.table.rehearsal import run_child; run_child()"


@short_repr
@dataclasses.dataclass(frozen=True)
class RehearsedErrors:
    """The error of a column or of a pair of columns in a rehearsal.

    Attributes:
      names: of the columns.
      total_variation: between the marginals of the made-up rows and of the release, see ``evaluate_table``.
      bound: what the plan says that noise alone rarely exceeds, see ``expected_errors``.
      yardstick: the distance of as many rows that are drawn from the made-up ones with replacement. It says how much of
        the error is due to the small number of rows.
    """

    names: tuple[str, ...]
    total_variation: float
    bound: float
    yardstick: float


@short_repr
@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a release of made-up rows took, and its errors.

    Attributes:
      expected: what the plan says.
      seconds_to_measure: of ``measure_table``, with the time to compile.
      seconds_to_synthesise: of ``TableMeasurement.synthesise``, with the time to compile.
      peak_memory: the most memory of the process before the errors were computed, in GiB. That of a GPU does not count.
      rows_memory: the part of it that is made-up rows, in GiB. A release of a file does not hold rows in memory.
      errors: of each column that the plan has, and then of each pair; of a thousand of them if there are more.
    """

    expected: ExpectedTable
    seconds_to_measure: float
    seconds_to_synthesise: float
    peak_memory: float
    rows_memory: float
    errors: tuple[RehearsedErrors, ...]


@shows_progress("rehearsal")
def rehearse(
    schema: Schema,
    num_rows: int,
    budget: PrivacyBudget,
    *,
    target: str | None = None,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Rehearsal:
    """Releases made-up rows in a new process, and says what it took. It reads no private rows, and spends nothing.

    All codes of the measured columns are equally frequent and independent in the made-up rows. So the rows meet all
    constraints. If the guarantee is for persons, each person has ``max_rows`` rows. Noise is simulated, and nothing is
    saved. What it cannot know: see ``CANNOT_KNOW``.

    Args:
      schema: of the columns.
      num_rows: N, the number of made-up rows. N times the number of columns is at most ``MOST_CELLS``. For more rows,
        rehearse two smaller numbers, such as N/8 and N/4, and draw a line: seconds and memory grow at most in
        proportion to N.
      budget: (ε, δ) and the relation. A column of persons need not be named.
      target: the name of the column that others are meant to predict.
      seed: of the made-up rows, the noise and the synthesis.
      progress: True for a bar, or a function that is called with (work done, total work).

    Raises:
      ValueError: as ``expected_errors``, or there are too many rows, or persons are told apart by a column that is
        released.
      MemoryError: the system has ended the process, in most cases because it has no memory left.
      RuntimeError: the process has failed.

    Examples:
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema
      >>> from kme_jax.table.rehearsal import rehearse
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("job", ("baker", "clerk", "nurse"))))
      >>> rehearsal = rehearse(schema, 1000, PrivacyBudget(1.0, 1e-5))
      >>> [errors.names for errors in rehearsal.errors]
      [('age',), ('job',), ('age', 'job')]
    """
    expected = expected_errors(schema, num_rows, budget, target=target)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    num_columns = len(schema.extended.columns)
    if num_rows * num_columns > MOST_CELLS:
        most = MOST_CELLS // num_columns
        raise ValueError(
            f"num_rows: {num_rows} rows of {num_columns} columns are more than {MOST_CELLS:,} made-up cells, the limit "
            f"of a rehearsal; rehearse {most // 2} and {most} rows, and draw a line through both"
        )
    person = None
    if budget.relation == ADD_REMOVE_PERSON:
        person = _name_of_persons(schema) if budget.person is None else budget.person
        if person in schema.names:
            raise ValueError(f"budget: the column {person!r} of persons is released; give it the kind drop")
        dropped = (*schema.dropped, *[person] * (person not in schema.dropped))
        schema = dataclasses.replace(schema, dropped=dropped)
    bounds = {(column.name,): column.total_variation_bound for column in expected.columns}
    of_pairs = {pair.names: pair.total_variation_bound for pair in expected.pairs}
    if len(of_pairs) > _MOST_PAIRS:
        chosen = np.random.default_rng(0).choice(len(of_pairs), _MOST_PAIRS, replace=False)
        names = list(of_pairs)
        of_pairs = {names[i]: of_pairs[names[i]] for i in sorted(chosen.tolist())}
    bounds |= of_pairs
    order = {
        "schema": schema.to_json(),
        "budget": dataclasses.asdict(dataclasses.replace(budget, person=person)),
        "target": target,
        "num_rows": num_rows,
        "seed": seed,
        "sets": list(bounds),
    }
    found = in_child(order, reporter(progress))
    errors = zip(bounds.items(), found.pop("errors"), found.pop("yardstick"), strict=True)
    return Rehearsal(expected, **found, errors=tuple(RehearsedErrors(n, e, b, y) for (n, b), e, y in errors))


def made_up_rows(schema: Schema, num_rows: int, seed: int = 0, *, persons: tuple[str, int] | None = None) -> pa.Table:
    """Rows of a schema, in which all codes of the measured columns are equally frequent and independent.

    Args:
      schema: of the columns.
      num_rows: N.
      seed: of the rows.
      persons: the name of a column of ids of persons, and how many rows each one has; None for no such column.
    """
    pieces = []
    for start in range(0, num_rows, _BATCH):
        random, size = np.random.default_rng([seed, start]), min(_BATCH, num_rows - start)
        codes = np.stack([random.integers(0, column.num_codes, size) for column in schema.measured.columns], axis=1)
        piece = schema.decode(schema.released_codes(codes, seed))
        if persons is not None:
            name, max_rows = persons
            piece = piece.append_column(name, pa.array(np.arange(start, start + size) // max_rows))
        pieces.append(piece)
    return pa.concat_tables(pieces)


def _name_of_persons(schema: Schema) -> str:
    """A name that no column has."""
    name = "person"
    while name in (*schema.names, *schema.dropped, *schema.measured.names):
        name += "_"
    return name


def in_child(order: dict[str, Any], report: Progress | None) -> dict[str, Any]:
    """The result of :func:`run_child` in a new process. However this ends, the process ends, too."""
    root = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | {"PYTHONPATH": path}
    result: dict[str, Any] | None = None
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as ordered:  # it may have ended already
                ordered.write(json.dumps(order))
            for line in process.stdout:
                message = json.loads(line)
                if "done" not in message:
                    result = message
                elif report:
                    report(message["done"], _DONE)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        complaints.seek(0)
        lines = complaints.read().splitlines() or [f"it has ended with the status {status}"]
    if result is not None and "error" in result:
        raise ValueError(result["error"])
    if result is None and status < 0:
        raise MemoryError(f"the rehearsal was ended by signal {-status}: give it fewer rows, or more memory")
    if result is None or status:
        raise RuntimeError(f"the rehearsal has failed: {lines[-1]}")
    return result


def run_child() -> None:
    """The program of a rehearsal's own process: an order in JSON on standard input, lines of JSON on standard output.

    A line has the work that is done, {"done"}; or an error of the order, {"error"}; or the result.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)  # so that nothing else is written to it

        def say(message: dict[str, Any]) -> None:
            output.write(json.dumps(message) + "\n")
            output.flush()

        with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the process that ordered has ended
            order = json.loads(sys.stdin.buffer.read())
            hide_absent_devices()
            use_compile_cache()
            try:
                say(_rehearsed(order, lambda done: say({"done": done})))
            except ValueError as error:
                say({"error": str(error)})


def _rehearsed(order: dict[str, Any], say: Callable[[int], None]) -> dict[str, Any]:
    """Makes up rows, releases them, and compares both."""
    schema, num_rows, seed = Schema.from_json(order["schema"]), order["num_rows"], order["seed"]
    budget = PrivacyBudget(**order["budget"])

    def part(low: int, high: int) -> Progress:
        return lambda done, total: say(low + round((high - low) * done / max(total, 1)))

    persons = None if budget.person is None else (budget.person, budget.max_rows)
    table = made_up_rows(schema, num_rows, seed, persons=persons)
    say(_ROWS)
    with opened(table, schema, budget) as source:
        start = time.perf_counter()
        measured = measure_table(
            source,
            schema,
            budget=budget,
            target=order["target"],
            secure=False,
            seed=seed,
            progress=part(_ROWS, _MEASURED),
        )
        between = time.perf_counter()
        released = measured.synthesise(num_rows, seed=seed, progress=part(_MEASURED, _SYNTHESISED))
        end = time.perf_counter()
    peak, extended = _peak_memory(), schema.extended
    ours, theirs = (schema.extended_codes(schema.encode(rows)) for rows in (table.select(schema.names), released.table))
    drawn = np.random.default_rng(0).integers(0, len(ours), len(ours))
    sets = [tuple(names) for names in order["sets"]]
    errors = total_variation(extended, ours, theirs, sets)
    yardstick = total_variation(extended, ours, ours[drawn], sets)
    return {
        "seconds_to_measure": between - start,
        "seconds_to_synthesise": end - between,
        "peak_memory": peak / _GIB,
        "rows_memory": table.nbytes / _GIB,
        "errors": [errors[names] for names in sets],
        "yardstick": [yardstick[names] for names in sets],
    }


@contextlib.contextmanager
def opened(table: pa.Table, schema: Schema, budget: PrivacyBudget) -> Iterator[TableSource]:
    """Made-up rows as a source; as a .csv file that is removed afterwards, if the schema needs one."""
    try:
        schema.check_keys()
    except ValueError:
        with tempfile.TemporaryDirectory(prefix="kme_jax-rehearsal-") as folder:
            path = pathlib.Path(folder) / "rows.csv"
            write_table(path, table)
            yield open_table(path, schema, person=budget.person, max_rows=budget.max_rows)
    else:
        yield open_table(table, schema, person=budget.person, max_rows=budget.max_rows)


def _peak_memory() -> int:
    """The most memory that this process has had so far, in bytes.

    On Linux, ``getrusage`` has the memory of the process that started this one, too, from before it ran this program.
    The kernel's file does not.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status") as status:
        return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
    import resource  # Windows has no such module

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
