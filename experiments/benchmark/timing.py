"""Checks the results of contenders, then times them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from experiments.benchmark.machine import PAUSE, exp_ceiling, is_accelerator, seconds_in_a_row, seconds_of
from experiments.benchmark.targets import targets
from experiments.benchmark.task import Contender, Run, Task
from experiments.common.compilation import first_calls
from experiments.common.processes import peak_memory
from kme_jax._numerics.precision import Progress

_START_UP = 8  # seconds more, on an accelerator, in which a peer is imported and compiled


class WrongResultError(RuntimeError):
    """The result of a contender is wrong, so its time means nothing."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError within the block when the time is over, as soon as compiled code returns to Python.

    There is no limit outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"over the limit of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check(task: Task, name: str, contender: Contender, result: Any, ours: Any) -> float | None:
    """The error of a contender's result.

    Raises:
      WrongResultError: if the error or the distance to our result is too large.
    """
    if not task.error:
        return None
    error = float(task.error(name, result, contender.num_rows))
    comparable = task.comparable and contender.num_rows is None
    apart = float(np.max(np.abs(np.subtract(result, ours)))) if comparable else 0.0
    if not (error <= task.tolerance and apart <= 2 * task.tolerance):  # NaN is wrong too
        raise WrongResultError(
            f"{task.name}: {name} is {error:.2g} off float64 and {apart:.2g} off ours, where {task.tolerance:g} is "
            "allowed, so times are not compared"
        )
    return error


def _prepared(task: Task, name: str, ours: Any, limit: float) -> tuple[Contender, dict[str, Any]] | str:
    """A peer with its error, or the reason why it cannot be timed. Only a wrong result is an error of the benchmark."""
    try:
        with _time_limit(limit + _START_UP if is_accelerator() else limit):
            contender = task.peers[name](limit)
            result = jax.block_until_ready(contender.run())
    except Exception as error:
        text = " ".join(str(error).split())
        expected = isinstance(error, (ImportError, NotImplementedError, TimeoutError))
        return text if expected else f"{type(error).__name__}: {text}"[:300]
    return contender, {"max_error": _check(task, name, contender, result, ours)}


@dataclasses.dataclass(frozen=True)
class Rules:
    """How contenders are timed.

    Attributes:
      pause: seconds before a timing of one run.
      in_a_row: whether a timing is the mean of runs in a row, see ``seconds_in_a_row``. On an accelerator if None.
      long_seconds: a contender that takes longer is timed ``long_timings`` times at most.
      long_timings: see ``long_seconds``.
      first_calls: function -> (its value, {"first_seconds": seconds, ...}).
    """

    pause: float = PAUSE
    in_a_row: bool | None = None
    long_seconds: float = 10
    long_timings: int = 3
    first_calls: Callable[[Run], tuple[Any, dict[str, float]]] = first_calls


DEFAULT_RULES = Rules()


def measure(
    task: Task,
    num_timings: int,
    progress: Progress,
    *,
    device: str = "",
    peer_seconds: float = 60.0,
    rules: Rules = DEFAULT_RULES,
) -> dict[str, Any]:
    """Checks, then times, the contenders of a task: one record of the result.

    Args:
      task: what to time.
      num_timings: number of rounds.
      progress: called with (timings done, timings in all).
      device: see ``targets``.
      peer_seconds: about how long a peer may take.
      rules: how contenders are timed.

    Raises:
      WrongResultError: if the result of a contender is wrong. It is raised before any timing.
    """
    ours, first = rules.first_calls(task.ours)
    contenders = {"ours": Contender(task.ours)}
    checked: dict[str, dict[str, Any]] = {
        "ours": first | {"max_error": _check(task, "ours", contenders["ours"], ours, ours)}
    }
    reasons: dict[str, str] = {}
    for name in task.peers:
        prepared = _prepared(task, name, ours, peer_seconds)
        if isinstance(prepared, str):
            reasons[name] = prepared
        else:
            contenders[name], checked[name] = prepared
    if task.exponentials:
        contenders["ceiling"], num_exponentials = exp_ceiling(task.dtype, task.pairs)
        contenders["ceiling"].run()  # the first calls have dropped its programs
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    total = num_timings * len(contenders)
    in_a_row = is_accelerator() if rules.in_a_row is None else rules.in_a_row
    for i, (j, (name, contender)) in itertools.product(range(num_timings), enumerate(contenders.items())):
        if i < rules.long_timings or max(seconds[name]) < rules.long_seconds:
            once = seconds_in_a_row(contender.run) if in_a_row else seconds_of(contender.run, rules.pause)
            seconds[name].append(once / task.units)
        progress(i * len(contenders) + j + 1, total)

    def record(name: str, pairs: float | None) -> dict[str, Any]:
        median, contender = statistics.median(seconds[name]), contenders[name]
        times = {"seconds": seconds[name], "median_seconds": median}
        times |= {"pairs_per_second": pairs / median if pairs else None, "num_rows": contender.num_rows}
        return times | checked.get(name, {}) | {"variant": contender.variant}

    mine, peers, ceiling = record("ours", task.pairs), {}, None
    for name in task.peers:
        if name in reasons:
            peers[name] = {"seconds": None, "ratio": None, "reason": reasons[name]}
            continue
        num_rows = contenders[name].num_rows
        share = 1.0 if num_rows is None else num_rows / task.sizes["N"]
        peers[name] = record(name, task.pairs and task.pairs * share)
        peers[name]["ratio"] = peers[name]["median_seconds"] / share / mine["median_seconds"]
    if task.exponentials:
        ceiling = record("ceiling", num_exponentials / task.exponentials)
        ceiling["share"] = mine["pairs_per_second"] / ceiling["pairs_per_second"]
    return {
        "case": task.case,
        "name": task.name,
        "sizes": task.sizes,
        "dtype": task.dtype,
        "rows_on_device": task.rows_on_device,
        "in_a_row": in_a_row,
        "pairs": task.pairs,
        **mine,
        "tolerance": task.tolerance,
        "peers": peers,
        "ceiling": ceiling,
        "targets": targets(task, device),
        "peak_memory_bytes": peak_memory(),
    }
