"""A function in a process of its own: how long it takes there, and how much memory the process needs."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import pathlib
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a function returned.

    Attributes:
      value: of the function.
      seconds: wall time of the call; starting Python and importing modules is not in it, compilation is.
      peak_bytes: the most memory that the process has had, modules and arguments included.
    """

    value: Any
    seconds: float
    peak_bytes: int


def _peak_bytes() -> int:
    status = pathlib.Path("/proc/self/status")
    # On Linux getrusage has the peak of the parent too, from before this process became itself.
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return 1024 * int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Measured:
    started = time.perf_counter()
    value = function(*arguments)
    return Measured(value, time.perf_counter() - started, _peak_bytes())


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Measured:
    """Calls a function of a module in a new process; what goes in and comes out is pickled."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, function, arguments).result()
