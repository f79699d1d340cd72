"""Partial sums, and their merger."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import platform
from collections.abc import Generator, Iterable
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from kme_jax._numerics.ahead import read_ahead
from kme_jax._numerics.precision import Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.short_repr import in_short, short_repr
from kme_jax._numerics.text import shown
from kme_jax._version import __version__
from kme_jax.embedding import IntegerEmbedding, integer_sum
from kme_jax.feature_maps.base import MAX_SUM_BITS, IntegerMap
from kme_jax.partial.task import Task
from kme_jax.privacy.budget import check_integer

_LIBRARIES = ("jax", "jaxlib", "numpy", "pyarrow")
_MOST_PARTS = 2**31
UNKNOWN = 0
"""The number of parts, where a worker does not know it. ``merge`` then needs the number of rows."""

PARTIAL_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("measurement", pa.string()),
        ("parts", pa.list_(pa.int64())),
        ("num_parts", pa.int64()),
        ("num_rows", pa.int64()),
        ("sensitive_sums", pa.list_(pa.int64())),
        ("task", pa.string()),
        ("library", pa.string()),
        ("device", pa.string()),
        ("checksum", pa.string()),
    ]
)
"""The columns of a partial."""


class PartialError(ValueError):
    """Partial sums do not belong together, or are damaged."""


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Partial:
    """The exact sums of a part of the rows. SENSITIVE: whoever has them knows sums of private rows without noise.

    Attributes:
      run: of the task.
      measurement: of the task.
      parts: the numbers of the parts that are summed, from 0, in increasing order: one, or several after ``combine``.
      num_parts: the number of all parts; 0 if the worker did not know it.
      num_rows: the number of rows of these parts. SENSITIVE if N is private.
      sums: Σ q(x) over these rows, [sums]. SENSITIVE.
      task: the digest of the task.
      library: versions of the libraries that made the integers.
      device: the kind of device that made the integers.
    """

    run: str
    measurement: str
    parts: tuple[int, ...]
    num_parts: int
    num_rows: int
    sums: Int64[np.ndarray, "sums"]
    task: str
    library: str
    device: str

    def _in_short(self) -> str:
        of = f"measurement={in_short(self.measurement)}, parts={in_short(self.parts)}"
        return f"SENSITIVE, {of}, sums: {list(np.shape(self.sums))}"

    @property
    def checksum(self) -> str:
        """A SHA-256 digest of all fields. It detects damage, and no forger."""
        text = repr((self.run, self.measurement, self.parts, self.num_parts, self.num_rows))
        text += repr((self.task, self.library, self.device))
        return hashlib.sha256(text.encode() + np.asarray(self.sums, "<i8").tobytes()).hexdigest()

    def to_batch(self) -> pa.RecordBatch:
        """The partial as one row of Arrow data, see ``PARTIAL_SCHEMA``."""
        values = (
            *(self.run, self.measurement, self.parts, self.num_parts, self.num_rows, self.sums),
            *(self.task, self.library, self.device, self.checksum),
        )
        arrays = [pa.array([value], field.type) for value, field in zip(values, PARTIAL_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=PARTIAL_SCHEMA)

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch | pa.Table) -> list[Partial]:
        """The partials of rows of Arrow data.

        Raises:
          PartialError: the columns are not those of partials, or a row is damaged.
        """
        if not isinstance(batch, pa.RecordBatch | pa.Table) or set(batch.schema.names) != set(PARTIAL_SCHEMA.names):
            raise PartialError("partials: expected rows of Arrow data with the columns of partial_sums")
        try:
            batch = batch.select(PARTIAL_SCHEMA.names).cast(PARTIAL_SCHEMA)
        except (pa.ArrowException, ValueError):  # its message may show cells
            raise PartialError("partials: a column has another type than in a partial; sum the rows again") from None
        columns = {name: batch.column(name) for name in PARTIAL_SCHEMA.names}
        return [cls._of_row({name: column[i] for name, column in columns.items()}) for i in range(batch.num_rows)]

    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> Partial:
        lists = row["parts"], row["sensitive_sums"]
        if any(not value.is_valid for value in row.values()) or any(cells.values.null_count for cells in lists):
            raise PartialError("partials: a row is damaged (a value is missing); sum its part again")
        sums, parts = row.pop("sensitive_sums").values.to_numpy().astype(np.int64), tuple(row.pop("parts").as_py())
        checksum = row.pop("checksum").as_py()
        partial = cls(**{name: value.as_py() for name, value in row.items()}, parts=parts, sums=sums)
        if partial.checksum != checksum:
            raise PartialError("partials: a row is damaged (its checksum differs); sum its part again")
        return partial

    @property
    def _label(self) -> str:
        return f"part {shown(list(map(str, self.parts))) or 'without a number'}"

    def _check(self, task: Task, size: int) -> None:
        """Refuses a partial that is not of the task, or cannot come from rows.

        Raises:
          PartialError: see :func:`merge`.
        """
        if (self.run, self.measurement) != (task.run, task.measurement):
            raise PartialError(f"{self._label}: it is of another run or measurement; leave it out")
        if self.task != task.digest:
            raise PartialError(f"{self._label}: it was summed for another map, schema or number of rows")
        if self.num_rows < 0:
            raise PartialError(f"{self._label}: the number of rows is negative; sum it again")
        if len(self.sums) != size:
            raise PartialError(f"{self._label}: expected {size} sums, got {len(self.sums)}; sum it again")
        last = self.num_parts - 1 if self.num_parts else _MOST_PARTS
        increasing = list(self.parts) == sorted(set(self.parts))
        if not (self.parts and increasing and 0 <= self.parts[0] <= self.parts[-1] <= last):
            raise PartialError(f"{self._label}: it has no valid numbers of parts; sum it again")
        _check_range(self.sums, f"{self._label}: its sums are")


def library_versions() -> str:
    """The versions of the libraries on which the integers of a row may depend."""
    others = (f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
    return ", ".join((f"kme_jax {__version__}", *others))


def device_kind(integers: IntegerMap) -> str:
    """The kind of device on which the integers of a row may depend."""
    host = f"cpu {platform.machine()}"
    if not integers.uses_devices:
        return host
    device = jax.local_devices()[0]
    return host if device.platform == "cpu" else f"{device.platform} {device.device_kind}"


@shows_progress("rows")
def partial_sums(
    batches: Iterable[pa.RecordBatch],
    task: Task,
    *,
    part: int = 0,
    num_parts: int = 1,
    ahead: bool = False,
    devices=None,
    progress: Progress | bool = False,
) -> pa.RecordBatch:
    """The exact sums of a part of the private rows, as one row of Arrow data. SENSITIVE.

    It is a pure function: it reads the batches, and nothing else. Call it on each part of the rows, in any process on
    any machine, and give all results to :func:`merge`. Do it again for a part whose worker has failed. A part may have
    no rows.

    Formal guarantee: see ``kme_jax.embedding.integer_sum``. No error depends on the value of a cell.

    Args:
      batches: private rows of this part.
      task: what is summed.
      part: the number of this part, from 0.
      num_parts: the number of all parts; 0 if it is not known here.
      ahead: whether a thread reads and converts the next batch while the current one is summed.
      devices: JAX devices to spread the rows over; all local devices if None.
      progress: True for a bar, or a function that is called with (rows done in this part, rows planned in all).

    Raises:
      ValueError: the numbers of parts are invalid, or a column is missing.
      PartialError: the rows are more than planned, or pyarrow cannot convert the type of a column.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Gaussian, SubspaceMap
      >>> from kme_jax.partial import PointEncoding, Task, merge, partial_sums
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> task = Task(SubspaceMap.from_points(Gaussian(gamma=0.5), points), PointEncoding(("x", "y")), 1000)
      >>> parts = [pa.record_batch({"x": rows[i::2, 0], "y": rows[i::2, 1]}) for i in range(2)]
      >>> partials = [partial_sums([batch], task, part=i, num_parts=2) for i, batch in enumerate(parts)]
      >>> merge(partials, task)
      IntegerEmbedding(SENSITIVE, total: [19])
    """
    num_parts = check_integer("num_parts", num_parts, UNKNOWN, _MOST_PARTS)
    part = check_integer("part", part, 0, (num_parts or _MOST_PARTS) - 1)
    report = reporter(progress)
    integers, total, num_rows = integer_sum(
        task.feature_map,
        read_ahead(_rows(batches, task)) if ahead else _rows(batches, task),
        task.rows_planned,
        bounds=task.encoding.bounds,
        devices=devices,
        progress=report and (lambda done: report(done, task.rows_planned)),
        has_levels=task.encoding.has_levels,
    )
    made_by = library_versions(), device_kind(integers)
    return Partial(task.run, task.measurement, (part,), num_parts, num_rows, total, task.digest, *made_by).to_batch()


def _rows(batches: Iterable[pa.RecordBatch], task: Task) -> Generator[np.ndarray]:
    num_rows = 0
    for batch in batches:
        num_rows += batch.num_rows
        if num_rows > task.rows_planned:  # before integers could overflow
            raise PartialError(f"rows: a part has more than the {task.rows_planned} rows that are planned")
        try:
            rows = task.encoding.rows(batch)
        except pa.ArrowException:  # its message may show cells
            raise PartialError("rows: pyarrow cannot convert the type of a column; cast it before") from None
        yield rows


def combine(partials: Iterable[pa.RecordBatch | pa.Table], task: Task) -> pa.RecordBatch:
    """One partial in place of several of different parts. SENSITIVE.

    Workers that do so, in groups, leave little for :func:`merge`. Partials are read one after the other, so any number
    of them takes the memory of two.

    Args:
      partials: as for :func:`merge`; some of the parts.
      task: what was summed.

    Raises:
      PartialError: as for :func:`merge`, except that parts may be missing.
    """
    return _added(partials, task).to_batch()


def _added(partials: Iterable[pa.RecordBatch | pa.Table], task: Task) -> Partial:
    integers, nothing = task.feature_map.integers(task.rows_planned), np.zeros((0, task.feature_map.dim))
    total = integers.sum(nothing, np.zeros(0, bool), rows_planned=task.rows_planned)
    first: Partial | None = None
    parts: set[int] = set()
    num_rows = 0
    for partial in itertools.chain.from_iterable(map(Partial.of_batch, partials)):
        partial._check(task, len(total))
        first = first or partial
        for what, value, other in (
            ("versions of the libraries", first.library, partial.library),
            ("kinds of devices", first.device, partial.device),
        ):
            if value != other:
                raise PartialError(f"partials: they come from different {what}: {value} and {other}; use one")
        if first.num_parts != partial.num_parts:
            raise PartialError("partials: they say different numbers of parts; split the rows once")
        if twice := sorted(parts.intersection(partial.parts)):
            raise PartialError(f"partials: part {shown(list(map(str, twice)))} is there twice; give each part once")
        parts |= set(partial.parts)
        num_rows += partial.num_rows
        if num_rows > task.rows_planned:
            raise PartialError(f"partials: they have more than the {task.rows_planned} rows that are planned")
        total = total + partial.sums  # both are below 2^61 in size
        _check_range(total, "partials: their sums are")
    if first is None:
        raise PartialError("partials: expected at least one, got none")
    return dataclasses.replace(first, parts=tuple(sorted(parts)), num_rows=num_rows, sums=total)


def merge(
    partials: Iterable[pa.RecordBatch | pa.Table], task: Task, *, num_rows: int | None = None
) -> IntegerEmbedding:
    """The sum over all rows, from all partials of a task, in any order. SENSITIVE.

    Formal guarantee: every part counts once, and none is missing. So the sum is that of
    ``integer_embedding_of_batches`` over all rows, to the last bit. Whether partials are refused depends on their
    numbers of rows and not on the values of rows: sums of rows within the planned number are below 2⁶¹ in size, so
    larger ones come from damage alone. If N is private, give the sum a public count next:
    ``IntegerEmbedding.with_public_count``.

    Args:
      partials: the results of :func:`partial_sums`, one for each part, or of :func:`combine`; a piece of Arrow data may
        have several.
      task: what was summed.
      num_rows: N as it was counted in another way. If N is public, it is that of the task.

    Raises:
      PartialError: there are none; a part is missing, or there twice; a partial is damaged, or is of another task,
        measurement or run, or was made with other versions or another kind of device than the others; a sum has a wrong
        length, or is too large; a count is negative; or the counts do not add up to N.
    """
    if num_rows is None and task.rows_are_public:
        num_rows = task.rows_planned
    whole = _added(partials, task)
    if whole.num_parts == UNKNOWN and num_rows is None:
        raise PartialError("partials: they do not say how many parts there are; give num_rows")
    expected = range(whole.num_parts or len(whole.parts))
    if missing := [str(number) for number in sorted(set(expected) - set(whole.parts))]:
        raise PartialError(f"partials: part {shown(missing)} is missing; sum it too")
    if num_rows is not None and whole.num_rows != num_rows:
        numbers = f" ({num_rows} expected, {whole.num_rows} found)" if task.rows_are_public else ""
        raise PartialError(f"partials: a part is missing, or the rows have changed while they were summed{numbers}")
    return IntegerEmbedding(task.feature_map.integers(task.rows_planned), whole.sums, whole.num_rows)


def _check_range(sums: Int64[np.ndarray, "sums"], what: str) -> None:
    if np.any(sums >= 2**MAX_SUM_BITS) or np.any(sums <= -(2**MAX_SUM_BITS)):
        raise PartialError(f"{what} beyond the range of exact sums, 2^{MAX_SUM_BITS}; sum the rows again")
