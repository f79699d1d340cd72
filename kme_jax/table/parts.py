"""A table in files, summed in parts: by several processes of this machine, and so that an interrupted run can go on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from kme_jax._numerics.short_repr import short_repr
from kme_jax.embedding import IntegerEmbedding
from kme_jax.partial import Partial, Task, combine, merge, partial_sums
from kme_jax.partial.runs import RunFolder
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.base import Reader
from kme_jax.table.readers import TableSource
from kme_jax.table.sources import RowSource

PART_ROWS = 1 << 22
"""The largest number of rows of a part. Each file is a part, or several."""


@short_repr
@dataclasses.dataclass(frozen=True)
class TablePart:
    """Rows of one file.

    Attributes:
      number: of the part, from 0.
      file: the number of the file.
      start: the first row of the file that belongs to the part.
      stop: the row after the last one.
      before: the number of rows of the files before this one.
    """

    number: int
    file: int
    start: int
    stop: int
    before: int


def parts_of(files: Sequence[Reader], most: int) -> list[TablePart]:
    """The parts of a table: at least one for each file.

    Args:
      files: the readers of its files.
      most: the largest number of rows of a part.
    """
    parts, before = [], 0
    for file, reader in enumerate(files):
        for start in range(0, max(reader.num_rows, 1), most):
            stop = min(start + most, reader.num_rows)
            parts.append(TablePart(len(parts), file, start, stop, before))
        before += reader.num_rows
    return parts


class PartedSource(RowSource):
    """A table in files that is summed part by part. As a context manager, it ends its processes.

    Formal guarantee: each row is in one part, and each part counts once (``kme_jax.partial.merge``). If persons have
    several rows, which of them are used was decided once, for the whole table, by ``kme_jax.table.persons``. So the
    sums are those of a ``TableSource``, to the last bit.
    """

    is_text = False

    def __init__(
        self, source: TableSource, run: RunFolder | None = None, processes: int = 1, part_rows: int | None = None
    ):
        """The parts of a table.

        Args:
          source: the table.
          run: the folder that keeps the sums of finished parts, if an interrupted run is to go on.
          processes: how many processes sum parts. With one, it is this process.
          part_rows: the largest number of rows of a part; None for ``PART_ROWS``.
        """
        self.label, self.schema, self.is_text = source.label, source.schema, source.is_text
        self.person, self.max_rows, self.num_rows = source.person, source.max_rows, source.num_rows
        self._source, self._run, self._processes = source, run, processes
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._here_still: multiprocessing.connection.Connection | None = None
        self._parts = parts_of(source.files, PART_ROWS if part_rows is None else part_rows)

    def __enter__(self) -> PartedSource:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Ends the processes: at once if there is an error."""
        if self._pool is None or self._here_still is None:
            return
        if kind is not None:
            self._here_still.close()
        self._pool.shutdown(cancel_futures=True)
        self._here_still.close()

    def sum(self, task: Task, progress: Callable[[int], None] | None = None) -> IntegerEmbedding:
        """The exact sum over all rows that are used, see ``RowSource.sum``. SENSITIVE.

        Raises:
          FileError: a file has changed since it was opened, or a process has ended before its work was done.
          RunError: the folder of the run cannot be written, or holds sums that do not belong to it.
        """
        self._source.check_unchanged()
        whole = None if self._run is None else self._run.sums(task)
        done = set() if whole is None else set(_of(whole).parts)
        missing = [part for part in self._parts if part.number not in done]
        sums = self._here(task, missing) if self._processes == 1 else self._elsewhere(task, missing)
        for some in sums:
            whole = some if whole is None else combine([whole, some], task)
            if self._run is not None:
                self._run.keep_sums(task, whole)
            if progress:
                progress(_of(whole).num_rows)
        self._source.check_unchanged()
        return merge([] if whole is None else [whole], task, num_rows=self.num_rows)

    def _used(self, part: TablePart) -> Bool[np.ndarray, "rows"] | None:
        persons = self._source.persons
        return None if persons is None else persons.used[part.before + part.start : part.before + part.stop]

    def _here(self, task: Task, missing: list[TablePart]) -> Iterator[pa.RecordBatch]:
        for file, parts in itertools.groupby(missing, lambda part: part.file):
            some = list(parts)
            used = [self._used(part) for part in some]
            yield from sums_of_file(self._source.files[file], some, used, task, len(self._parts))

    def _elsewhere(self, task: Task, missing: list[TablePart]) -> Iterator[pa.RecordBatch]:
        """A process sums one part, or all of a file that can only be read from its beginning."""
        files = self._source.files
        work: list[list[TablePart]] = []
        for file, parts in itertools.groupby(missing, lambda part: part.file):
            of_file = list(parts)
            work += [[part] for part in of_file] if files[file].seeks else [of_file]
        if self._pool is None:  # the same processes sum the rows of all measurements
            processes, context = min(self._processes, len(work) or 1), multiprocessing.get_context("spawn")
            end, self._here_still = context.Pipe(duplex=False)
            self._pool = concurrent.futures.ProcessPoolExecutor(processes, context, _ends_with, (end,))
        try:
            with _not_interrupted():  # processes start here
                futures = [
                    self._pool.submit(
                        combined_sums_of_file,
                        files[some[0].file],
                        some,
                        [self._used(part) for part in some],
                        task,
                        len(self._parts),
                    )
                    for some in work
                ]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except concurrent.futures.process.BrokenProcessPool:
            raise FileError(
                f"{self.label}: a process has ended before its work was done; is there memory for "
                f"{self._processes} processes?"
            ) from None


def _ends_with(end: multiprocessing.connection.Connection) -> None:
    """Ends this process as soon as the other end of a pipe is closed, or the process that has it was killed."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            end.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _not_interrupted() -> Iterator[None]:
    """Context manager: processes that start within are not interrupted from the keyboard, and print no trace."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _of(batch: pa.RecordBatch) -> Partial:
    (partial,) = Partial.of_batch(batch)
    return partial


class _Rows:
    """The rows of a file, in their order. Pieces are taken one after the other."""

    def __init__(self, reader: Reader, start: int):
        self._reader = reader
        self._at, self._batches = reader.batches_from(start) if reader.num_rows else (0, iter(()))
        self._rest: pa.RecordBatch | None = None

    def between(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` up to ``stop``, which are not before those that were taken already.

        Raises:
          FileError: the file has other rows than when it was opened.
        """
        while self._at < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise self._changed()
            size = min(batch.num_rows, stop - self._at)
            self._rest = batch.slice(size) if size < batch.num_rows else None
            skipped = max(start - self._at, 0)
            self._at += size
            if skipped < size:
                yield batch.slice(skipped, size - skipped)
        if self._at == self._reader.num_rows and (self._rest is not None or next(self._batches, None) is not None):
            raise self._changed()

    def _changed(self) -> FileError:
        return FileError(f"{self._reader.label}: it has changed while it was read")


def sums_of_file(
    reader: Reader,
    parts: Sequence[TablePart],
    used: Sequence[Bool[np.ndarray, "_"] | None],
    task: Task,
    num_parts: int,
) -> Iterator[pa.RecordBatch]:
    """The partial of each of some parts of a file, which is read once. SENSITIVE.

    Args:
      reader: of the file.
      parts: in the order of their rows.
      used: which rows of each part are used; None for all.
      task: what is summed.
      num_parts: the number of all parts of the table.

    Raises:
      FileError: the file has changed since it was opened.
    """
    rows = _Rows(reader, parts[0].start)
    for part, of_part in zip(parts, used, strict=True):
        batches = _kept(rows.between(part.start, part.stop), of_part)
        yield partial_sums(batches, task, part=part.number, num_parts=num_parts, ahead=True)


def combined_sums_of_file(
    reader: Reader,
    parts: Sequence[TablePart],
    used: Sequence[Bool[np.ndarray, "_"] | None],
    task: Task,
    num_parts: int,
) -> pa.RecordBatch:
    """One partial in place of those of :func:`sums_of_file`. It is the work of a process. SENSITIVE."""
    return combine(sums_of_file(reader, parts, used, task, num_parts), task)


def _kept(batches: Iterator[pa.RecordBatch], used: Bool[np.ndarray, "_"] | None) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        yield batch if used is None else batch.filter(pa.array(used[at : at + batch.num_rows]))
        at += batch.num_rows
