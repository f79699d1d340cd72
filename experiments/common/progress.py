"""Progress bars, and the seconds that each stage of a run takes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from kme_jax._numerics.precision import Progress

_interruptions: list[bool] = []  # empty until the user interrupts the program


def interrupt() -> None:
    """Makes the next call of every progress raise KeyboardInterrupt. A signal handler calls it: Python ignores an
    exception of a handler where compiled code calls back into Python."""
    _interruptions.append(True)


class Stages:
    """A progress bar for each stage of a run, and the seconds that each took.

    Args:
      title: what every bar's label begins with.

    Attributes:
      seconds: {stage: wall seconds}.
    """

    def __init__(self, title: str = ""):
        self._title = title
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Progress]:
        """Shows a bar while the block runs. The block gets ``progress(done, total)``, which moves the bar."""
        started = time.perf_counter()
        interval = 0.2 if sys.stderr.isatty() else 30
        label = f"{self._title}: {name}" if self._title else name
        form = "{l_bar}{bar:24}| {elapsed}<{remaining}"
        with tqdm(desc=f"{label:<44}", total=1, bar_format=form, mininterval=interval, file=sys.stderr) as bar:

            def progress(done: int, total: int) -> None:
                if _interruptions:
                    raise KeyboardInterrupt
                bar.total = total
                bar.update(done - bar.n)

            yield progress
            progress(1, 1)
        self.seconds[name] = time.perf_counter() - started

    @property
    def total_seconds(self) -> float:
        """Wall seconds since the start."""
        return time.perf_counter() - self._started
