"""Rows in tails that noise could hide from a release of a table. Post-processing.

Where a tail of a column of numbers has few rows for its many cells, noise hides them, and released columns end there.
How many private rows are beyond the end is not known. So a guess of them, drawn anew for each replicate of a release
(``kme_jax.analysis.replicates``), is in the rows that take the place of the private ones.

Let σ be the noise of the count of a cell, and N the number of rows. The number of rows that a tail hides is taken for
exponential, with mean 1.3 (σ + N / 1000). They begin where this many released rows, without the factor, are left. Their
distance from there is exponential, too, with mean 2 f l. Here l is the length of the released tail: of an exponential
distribution that has the right distance between where hidden rows begin and the last tenth of the released rows. The
factor f is log-normal, with median 1 and deviation 1. These constants describe what tails of about fifty columns hid
at ε = 0.3, 1 and 3, in invented tables and in public ones of R packages.

If the released rows of a tail all have one value, they do not tell a length. The mean distance is then anything from 1
to that of the bound, on a logarithmic scale.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.special
from jaxtyping import Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Datetime, Numeric
from kme_jax.table.planning import Singles
from kme_jax.table.release import NAMES, TableRelease

_ROWS, _ANYWAY = 1.3, 0.001  # mean number of hidden rows in units of σ + N / 1000
_MOST = 0.05  # of all rows
# The part of the rows at an end of a column that is taken for its tail; at least, and in units of the hidden part.
_TENTH, _LEAST = 0.1, 3.0
# Of the mean distance: the median, in lengths of the released tail, and the deviation of the logarithm.
_LONGER, _DEVIATION = 2.0, 1.0


@short_repr
@dataclasses.dataclass(frozen=True)
class Tail:
    """An end of a column beyond which noise could hide rows, in codes.

    Attributes:
      column: index of the measured column.
      start: the code where hidden rows begin.
      tail: the code where the tail of the released rows begins.
      length: of the tail, in codes; None if its rows all have one value.
      bound: the last code of the column on this side.
      rows: mean number of hidden rows.
    """

    column: int
    start: int
    tail: int
    length: float | None
    bound: int
    rows: float

    def hide(
        self, codes: Int64[np.ndarray, "n m"], levels: Float64[np.ndarray, "2"], random: np.random.Generator
    ) -> None:
        """Moves some rows of the tail to where noise could hide them, in place.

        Args:
          codes: of the measured columns.
          levels: those of two quantiles, in (0, 1): of the number of hidden rows, and of the factor of their distance.
          random: what else is drawn.
        """
        values = codes[:, self.column]
        first, last = sorted((self.tail, self.bound))
        in_tail = np.flatnonzero((values >= first) & (values <= last))
        number = min(round(-self.rows * math.log1p(-levels[0])), len(in_tail), int(_MOST * len(codes)))
        room = abs(self.bound - self.start)
        if self.length is None:
            scale = room ** float(levels[1])
        else:
            scale = _LONGER * math.exp(_DEVIATION * float(scipy.special.ndtri(levels[1]))) * self.length
        within = -math.expm1(-(room + 1) / scale)  # the probability of the distances up to the bound
        distances = np.floor(-scale * np.log1p(-within * random.random(number))).astype(np.int64)
        moved = random.choice(in_tail, number, replace=False)
        codes[moved, self.column] = self.start + np.sign(self.bound - self.start) * np.minimum(distances, room)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class HiddenTails:
    """The tails of a release beyond which noise could hide rows.

    Attributes:
      tails: those of its columns of numbers and times that end before a bound.
      levels: of quantiles, in (0, 1), for every replicate and tail, [R, tails, 2]. Each quantity has one level in each
        of R equal parts (a Latin hypercube). So the deviation of a few replicates is closer to that of many.
    """

    tails: tuple[Tail, ...]
    levels: Float64[np.ndarray, "replicates tails 2"]

    @classmethod
    def of(
        cls,
        release: TableRelease,
        codes: Int64[np.ndarray, "n m"],
        num_replicates: int,
        random: np.random.Generator,
    ) -> HiddenTails:
        """The tails of a release.

        Args:
          release: of a table.
          codes: of the measured columns of its rows.
          num_replicates: the number of replicates.
          random: what is drawn.
        """
        tails = tuple(_tails(release, codes))
        shape = (num_replicates, len(tails), 2)
        parts = random.permuted(np.broadcast_to(np.arange(num_replicates)[:, None, None], shape), axis=0)
        return cls(tails, (parts + random.uniform(1e-9, 1 - 1e-9, shape)) / num_replicates)

    def hide(self, codes: Int64[np.ndarray, "n m"], index: int, random: np.random.Generator) -> None:
        """Moves some rows to where noise could hide them, in place.

        Args:
          codes: of the measured columns of released rows.
          index: of the replicate.
          random: what is drawn.
        """
        for tail, levels in zip(self.tails, self.levels[index], strict=True):
            tail.hide(codes, levels, random)


def _tails(release: TableRelease, codes: Int64[np.ndarray, "n m"]) -> list[Tail]:
    """The tails of the columns of numbers and times that end before a bound."""
    measurement = release.measurement
    layout, num_rows, tails = measurement.layout, measurement.statement["num_rows"], []
    singles = Singles.read(layout, measurement.measured[NAMES[0]], denoised=False)
    for a, j in enumerate(layout.columns):
        column = measurement.schema.measured.columns[j]
        present = np.sort(codes[codes[:, j] < column.num_values, j])
        if not isinstance(column, (Numeric, Datetime)) or not len(present):
            continue
        hidden = singles.sums_sigmas[a] + _ANYWAY * num_rows
        share = min(hidden / num_rows, _TENTH)
        of_tail = max(_TENTH, _LEAST * share)
        places = [int(part * len(present)) for part in (share, of_tail)]
        for bound, inward in ((column.num_values - 1, present[::-1]), (0, present)):
            if inward[0] != bound:
                start, tail = inward[places].tolist()
                length = abs(start - tail) / math.log(of_tail / share) if start != tail else None
                tails.append(Tail(j, start, tail, length, bound, _ROWS * hidden))
    return tails
