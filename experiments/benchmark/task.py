"""What a benchmark times: tasks, and the contenders of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

Run = Callable[[], Any]


class Contender(NamedTuple):
    """Something to run.

    Attributes:
      run: runs it.
      variant: its fastest variant, if it has variants.
      num_rows: number of rows on which it runs; None for all.
    """

    run: Run
    variant: str | None = None
    num_rows: int | None = None


Prepare = Callable[[float], Contender]
"""Prepares a peer: seconds that all its runs may take -> contender."""


@dataclasses.dataclass
class Task:
    """Something to time.

    Attributes:
      case: a name of ``config.CASES``.
      sizes: N, M, J and D, as far as they apply.
      dtype: precision of the computation.
      ours: does the work ``units`` times with this library, and returns its result.
      units: the seconds of a run are divided by it.
      pairs: number of pairs (row, point) or (row, frequency) in one unit; None if the work is of another kind.
      rows_on_device: whether the rows are on the accelerator before a run.
      peers: other software that does the same.
      error: (contender, result, number of rows or None for all) -> maximal absolute error against float64.
      tolerance: largest allowed error. Results that are ``comparable`` may differ by twice as much.
      comparable: whether the results of all contenders are arrays of the same numbers.
      exponentials: exponentials in one pair, for a comparison with the exponential alone; 0 for no comparison.
    """

    case: str
    sizes: dict[str, int]
    dtype: str
    ours: Run
    units: int = 1
    pairs: int | None = None
    rows_on_device: bool = False
    peers: dict[str, Prepare] = dataclasses.field(default_factory=dict)
    error: Callable[[str, Any, int | None], float] | None = None
    tolerance: float = 0.0
    comparable: bool = True
    exponentials: int = 0

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{key} = {size}" for key, size in self.sizes.items())
        return f"{self.case}, {sizes}, {self.dtype}" + (", rows on the device" if self.rows_on_device else "")
