"""Calls a function in a new process, and measures its time and the memory of the process."""

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
    """A call of a function in a new process.

    Attributes:
      value: the function's value.
      seconds: wall time of the call. It includes compilation, but not the start of Python and the import of modules.
      peak_bytes: the most memory that the process used, including modules and arguments.
    """

    value: Any
    seconds: float
    peak_bytes: int


def peak_memory() -> int:
    """The most memory that this process has used so far, in bytes, as the operating system counts it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _own_peak_memory() -> int:
    """As :func:`peak_memory`, but without the memory of the parent process.

    Linux counts the memory that the parent had when it started this process, too.
    """
    status = pathlib.Path("/proc/self/status")
    if status.exists() and (line := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return 1024 * int(line[1])
    return peak_memory()


def _measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Measured:
    started = time.perf_counter()
    value = function(*arguments)
    return Measured(value, time.perf_counter() - started, _own_peak_memory())


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Measured:
    """Calls a function of a module in a new process. Its arguments and its value are pickled."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, function, arguments).result()
