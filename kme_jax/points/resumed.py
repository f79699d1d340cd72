"""Step 1 of points in parts that are kept in a folder, so that a run that was interrupted goes on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax.domain import Bounds
from kme_jax.embedding import IntegerEmbedding, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.partial import PointEncoding, Run, RunError, Task, merge, partial_sums
from kme_jax.privacy.budget import check_integer
from kme_jax.storage.rows import BatchedRows, every_batch

_FEWEST_ROWS, _MOST_ROWS, _PARTS = 2**16, 2**24, 100  # of a part, if there are enough rows; parts, about


def rows_of_part(num_rows: int) -> int:
    """How many rows a part has by default, from N alone: about a hundredth of them, and never much work."""
    whole = -(-num_rows // _PARTS)
    return min(_MOST_ROWS, max(_FEWEST_ROWS, 1 << (whole - 1).bit_length()))


def task_of(feature_map: FeatureMap, bounds: Bounds | None, num_rows: int, run: str = "") -> Task:
    """The task of a measurement of points. It is public.

    Args:
      feature_map: ψ.
      bounds: public bounds of the columns, by which rows are scaled; None if they are not scaled.
      num_rows: N.
      run: the name of the run.
    """
    names = tuple(f"x{i + 1}" for i in range(feature_map.dim)) if bounds is None else bounds.names
    return Task(feature_map, PointEncoding(names, bounds), num_rows, run=run)


@shows_progress("rows")
def sum_in_parts(
    run: Run,
    rows: Shaped[np.ndarray, "N d"] | BatchedRows,
    task: Task,
    *,
    rows_per_part: int | None = None,
    progress: Progress | bool = False,
) -> IntegerEmbedding:
    """Σ_n q(x_n), part by part. SENSITIVE. Parts that the run has kept are not summed again.

    Formal guarantee: as of ``kme_jax.partial.merge``: each part counts once, and the sum is that of one pass over all
    rows, to the last bit. What is kept depends on N and the task alone, except for the sums themselves.

    Args:
      run: where parts are kept.
      rows: private rows, [N, d], in the same order each time.
      task: what is summed, see :func:`task_of`. Its run is ``run.name``.
      rows_per_part: a public number; None for that of :func:`rows_of_part`.
      progress: True for a bar, or a function that is called with (rows done, N).

    Raises:
      RunError: files of rows have changed.
      ValueError: as ``kme_jax.partial.partial_sums`` and ``merge``.
    """
    num_rows, report = task.rows_planned, reporter(progress)
    size = check_integer("rows_per_part", rows_per_part or rows_of_part(num_rows), 1, 2**62)
    num_parts = -(-num_rows // size)
    state = rows.state if isinstance(rows, BatchedRows) else None
    if missing := [part for part in range(num_parts) if run.kept(part) is None]:
        pieces = _Pieces(every_batch(rows))
        for part in range(missing[-1] + 1):
            before = part * size
            piece = pieces.take(min(size, num_rows - before))
            if part not in missing:
                for _ in piece:  # rows that are summed already are only passed over
                    pass
                continue
            partial = partial_sums(
                (_batch(rows, task) for rows in piece),
                task,
                part=part,
                num_parts=num_parts,
                progress=False if report is None else lambda done, _, before=before: report(before + done, num_rows),
            )
            run.keep(part, partial)
        if missing[-1] == num_parts - 1:
            pieces.end()
    if isinstance(rows, BatchedRows) and rows.state != state:
        raise RunError(f"{rows.label}: it has changed while it was summed: sum it again, in a new folder")
    kept = [run.kept(part) for part in range(num_parts)]
    return merge([partial for partial in kept if partial is not None], task)


def _batch(rows: Shaped[np.ndarray, "n d"], task: Task) -> pa.RecordBatch:
    """Rows of numbers as Arrow data, for the task's encoding."""
    points = private_points(rows)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in points.T], names=task.encoding.names)  # pyright: ignore[reportAttributeAccessIssue]  # of points


class _Pieces:
    """Rows in pieces of any number, from batches."""

    def __init__(self, batches: Iterator[np.ndarray]):
        self._batches, self._rest = batches, np.empty((0, 0))

    def take(self, number: int) -> Iterator[np.ndarray]:
        """The next rows, so many. They have to be used up before the next piece is taken."""
        while number:
            if not len(self._rest):
                self._rest = next(self._batches)
            some, self._rest = self._rest[:number], self._rest[number:]
            number -= len(some)
            yield some

    def end(self) -> None:
        """Reads to the end, where a source finds out whether the number of its rows is right."""
        for _ in self._batches:
            pass
