"""Step 1 of points in parts whose sums are kept in a folder, so that an interrupted run can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Shaped

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax.domain import Bounds
from kme_jax.embedding import IntegerEmbedding, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.partial import Partial, PointEncoding, RunError, RunFolder, Task, combine, merge, partial_sums
from kme_jax.partial.sums import library_versions
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.storage.files import FileError
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


@contextlib.contextmanager
def open_run(
    folder: str | os.PathLike,
    rows: Shaped[np.ndarray, "N d"] | BatchedRows,
    feature_map: FeatureMap,
    bounds: Bounds | None,
    mechanism: Mechanism,
    spending: Spending | None,
) -> Iterator[tuple[RunFolder, Task]]:
    """Context manager: the run of a measurement of points in a folder, and its task, see ``RunFolder.opened``.

    Args:
      folder: its path.
      rows: private rows, [N, d].
      feature_map: ψ.
      bounds: see :func:`task_of`.
      mechanism: of the measurement.
      spending: the ledger; None if there is none.

    Raises:
      RunError: as ``RunFolder.opened``.
    """
    num_rows = rows.shape[0]
    of = {
        "rows": rows.identity if isinstance(rows, BatchedRows) else list(rows.shape),
        "map or bounds": task_of(feature_map, bounds, num_rows).digest,
        "budget or noise": dataclasses.asdict(mechanism),
        "ledger": None if spending is None else [str(spending.ledger.path.absolute()), spending.database],
        "version of a library": library_versions(),
        "size of parts": rows_of_part(num_rows),
    }
    with RunFolder.opened(folder, of, rows.label if isinstance(rows, BatchedRows) else None) as run:
        yield run, task_of(feature_map, bounds, num_rows, run.run)


@shows_progress("rows")
def sum_in_parts(
    run: RunFolder,
    rows: Shaped[np.ndarray, "N d"] | BatchedRows,
    task: Task,
    *,
    rows_per_part: int | None = None,
    progress: Progress | bool = False,
) -> IntegerEmbedding:
    """Σ_n q(x_n), part by part. SENSITIVE. Parts that the run has kept are not summed again.

    Formal guarantee: as of ``kme_jax.partial.merge``: each part counts once, and the sum is that of one pass over all
    rows, to the last bit. N alone decides where parts begin and end. A run that goes on reads the rows of finished
    parts again, and compares their digests. In another order, a row could be in a finished part and in a later one.
    Then it would count twice, and noise would be too small for it.

    Args:
      run: where the sums of finished parts are kept.
      rows: private rows, [N, d], in the same order each time.
      task: what is summed, see :func:`task_of`. Its run is ``run.run``.
      rows_per_part: a public number; None for that of :func:`rows_of_part`.
      progress: True for a bar, or a function that is called with (rows done, N).

    Raises:
      FileError: files of rows have changed.
      RunError: the folder cannot be written, or holds sums that do not belong to it; rows of a finished part are
        others than before.
      ValueError: as ``kme_jax.partial.partial_sums`` and ``merge``.
    """
    num_rows, report = task.rows_planned, reporter(progress)
    size = check_integer("rows_per_part", rows_per_part or rows_of_part(num_rows), 1, 2**62)
    num_parts = -(-num_rows // size)
    identity = rows.identity if isinstance(rows, BatchedRows) else None
    whole, digests = run.sums(task), run.digests(task)
    done = set() if whole is None else set(_parts_of(whole))
    missing = [part for part in range(num_parts) if part not in done]
    pieces = _Pieces(every_batch(rows) if missing else iter(()))
    for part in range(missing[-1] + 1 if missing else 0):
        before, digest = part * size, hashlib.sha256()
        piece = _digested(pieces.take(min(size, num_rows - before)), digest)
        if part in done:
            for _ in piece:  # rows that are summed already are only compared
                pass
            if digests.get(part) != digest.hexdigest():
                raise RunError(
                    f"{run.path}: rows that are summed already are others now, or in another order; choose a new folder"
                )
            continue
        partial = partial_sums(
            (_batch(some, task) for some in piece),
            task,
            part=part,
            num_parts=num_parts,
            progress=False if report is None else lambda of_part, _, before=before: report(before + of_part, num_rows),
        )
        whole = partial if whole is None else combine([whole, partial], task)
        if part == num_parts - 1:
            pieces.end()
        digests[part] = digest.hexdigest()
        run.keep_sums(task, whole, digests)
    if isinstance(rows, BatchedRows) and rows.identity != identity:
        raise FileError(f"{rows.label}: it has changed while it was read: begin again, in a new folder")
    return merge([] if whole is None else [whole], task)


def _parts_of(whole: pa.RecordBatch) -> tuple[int, ...]:
    """The numbers of the parts that are summed."""
    (partial,) = Partial.of_batch(whole)
    return partial.parts


def _digested(pieces: Iterator[Shaped[np.ndarray, "_ d"]], digest: hashlib._Hash) -> Iterator[Float[np.ndarray, "_ d"]]:
    """Rows as numbers, which are added to a digest. It does not depend on how the rows are cut into pieces."""
    for rows in pieces:
        points = private_points(rows)
        digest.update(np.ascontiguousarray(points, np.float64).tobytes())
        yield points


def _batch(points: Float[np.ndarray, "n d"], task: Task) -> pa.RecordBatch:
    """Points as Arrow data, for the task's encoding."""
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
