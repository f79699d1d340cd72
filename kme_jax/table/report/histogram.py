"""The histogram of a column that has an order: what it shows, and where."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Column, Numeric
from kme_jax.table.report.data import MeasuredCells
from kme_jax.table.report.words import label_of, number_of, percent, range_of, shortened, text_width, with_error

_HISTOGRAM_BINS = 40
_ATOM = 0.03  # share of rows from which on a value is drawn by itself
# The drawing, in its own units. A card of the page is about as wide.
WIDTH, HEIGHT = 320, 134
FONT_SIZE = 10.5
_AXIS, _BARS = 116, 104  # where the axis is, from above, and how tall bars may be
_LEFT, _RIGHT = 30, WIDTH - 2  # where the axis starts (further right if labels beside it are wide), and where it ends
_MARGIN = 1  # beside texts
_GAP = 6  # between texts


@short_repr
class Rectangle(NamedTuple):
    """A bar of a histogram.

    Attributes:
      kind: its CSS class: bar, atom (a value that is drawn by itself) or missing.
      x, y, width, height: where it is, in units of the drawing.
      title: its values and their share of the rows.
      broken: whether it is longer than drawn.
      error: the standard error of its length, or 0 if none is drawn.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str
    broken: bool
    error: float


@short_repr
class Label(NamedTuple):
    """A text below the axis.

    Attributes:
      x: of its middle, in units of the drawing.
      text: of it.
    """

    x: float
    text: str


@short_repr
@dataclasses.dataclass(frozen=True)
class Histogram:
    """The histogram of a column, with its quartiles.

    Attributes:
      name: of the picture.
      quartiles: as a sentence.
      left: where the axis starts, in units of the drawing.
      right: where it ends.
      axis: its distance from the upper edge.
      grid: height and label of each grid line.
      bars: of values, of single values with many rows, and of missing values.
      ticks: places of ticks of the axis.
      labels: texts below the axis. They are within the drawing and do not overlap.
      spikes: values that are drawn by themselves, and their shares.
      share_missing: of the rows, or None.
      share_beyond: of the rows that are not drawn because their values are far off, or None.
      all_values: the smallest and the largest.
    """

    name: str
    quartiles: str
    left: float
    right: float
    axis: float
    grid: list[tuple[float, str]]
    bars: list[Rectangle]
    ticks: list[float]
    labels: list[Label]
    spikes: list[tuple[str, str]]
    share_missing: str | None
    share_beyond: str | None
    all_values: str


def histogram_of(column: Column, codes: Int[np.ndarray, "n"], cells: MeasuredCells | None = None) -> Histogram | None:
    """The histogram of a column with an order; None if all values are missing.

    Args:
      column: the column.
      codes: category codes of its rows, [n].
      cells: those that were counted, for the errors of bars; None for no errors.
    """
    num_rows = len(codes)
    values, counts = np.unique(codes[codes != column.num_values], return_counts=True)
    if not len(values):
        return None
    share_missing = 1 - counts.sum() / num_rows
    atoms = are_atoms(values, counts, num_rows)
    spikes = [(int(v), c / num_rows) for v, c in zip(values[atoms], counts[atoms], strict=True)]

    first, last = int(values[0]), int(values[-1])
    if not atoms.all():  # far-off values are not drawn if they would take half of the room
        low, high = (_quantile(values[~atoms], counts[~atoms], q) for q in (0.005, 0.995))
        low, high = min(low, *values[atoms].tolist(), high), max(low, *values[atoms].tolist(), high)
        if high - low < (last - first) / 2:
            first, last = low, high
    width = -(-(last - first + 1) // _HISTOGRAM_BINS)
    num_bins = -(-(last - first + 1) // width)
    last = first + num_bins * width - 1
    drawn = ~atoms & (values >= first) & (values <= last)
    heights = np.bincount((values[drawn] - first) // width, weights=counts[drawn], minlength=num_bins) / num_rows
    beyond = counts[~atoms & ~drawn].sum() / num_rows

    tallest = max([share for _, share in spikes] + [share_missing])
    top = heights.max()
    top = max(tallest, top) if tallest < 1.6 * top or not top else 1.3 * top
    grid = [(_AXIS - _BARS * tick / top, f"{100 * tick:.4g}%") for tick in round_ticks(0, top, 3)[1:]]

    left = max([_LEFT, *(_GAP + FONT_SIZE * text_width(label) for _, label in grid)])
    right, edge = _RIGHT, WIDTH - _MARGIN  # of the axis, and of labels below it
    labels = []
    if share_missing:
        half = FONT_SIZE * text_width("missing") / 2
        labels.append(Label(edge - half, "missing"))
        right = edge = edge - 2 * half - _GAP

    def place(code: float) -> float:
        return left + (code - first) / (num_bins * width) * (right - left)

    def bar(kind: str, middle: float, wide: float, share: float, title: str, codes: tuple[int, int]) -> Rectangle:
        tall, broken = _BARS * min(share / top, 1), bool(share > top)
        error = 0.0 if cells is None else cells.error_between(*codes)
        text, drawn_error = f"{title}: {with_error(share, error)}", 0.0 if broken else _BARS * error / top
        return Rectangle(kind, middle - wide / 2, _AXIS - tall, wide, tall, text, broken, drawn_error)

    step = (right - left) / num_bins
    wide = min(step - 0.6, 24)
    bars = []
    for i in np.flatnonzero(heights):
        start = first + int(i) * width
        end = min(start + width, column.num_values)
        title = range_of(column, start, end - 1)
        bars.append(bar("bar", left + (i + 0.5) * step, wide, heights[i], title, (start, end)))
    for code, share in spikes:
        bars.append(bar("atom", place(code + 0.5), 3, share, label_of(column, code), (code, code + 1)))
    if share_missing:
        codes_of_missing = (column.num_values, column.num_codes)
        bars.append(bar("missing", labels[0].x, 10, share_missing, "missing", codes_of_missing))
    ticks = [Label(place(code + 0.5), label) for code, label in _axis(column, first, last)]

    quartiles = [label_of(column, _quantile(values, counts, q)) for q in (0.25, 0.5, 0.75)]
    sentence = f"Median {quartiles[1]}, quartiles {quartiles[0]} and {quartiles[2]}"
    spikes.sort(key=lambda spike: -spike[1])
    return Histogram(
        name=f"Histogram of {column.name}. {sentence}.",
        quartiles=sentence,
        left=left,
        right=right,
        axis=_AXIS,
        grid=grid,
        bars=bars,
        ticks=[tick.x for tick in ticks],
        labels=labels_that_fit(ticks, _MARGIN, edge) + labels,
        spikes=[(label_of(column, code), percent(share)) for code, share in spikes],
        share_missing=percent(share_missing) if share_missing else None,
        share_beyond=percent(beyond) if beyond else None,
        all_values=range_of(column, int(values[0]), int(values[-1])),
    )


def labels_that_fit(labels: Sequence[Label], left: float, right: float) -> list[Label]:
    """Labels that lie between two edges and do not overlap.

    Labels beyond an edge are moved, and very long ones are shortened. If labels overlap, every second one is left out,
    or two of three, and so on.

    Args:
      labels: from left to right.
      left: where the first may start.
      right: where the last may end.
    """
    room = (right - left) / min(max(len(labels), 1), 2) - _GAP
    labels = [Label(x, shortened(text, room / FONT_SIZE)) for x, text in labels]
    placed: list[Label] = []
    for every in range(1, len(labels) + 1):
        placed, end, fits = [], left - _GAP, True
        for x, text in labels[::every]:
            half = FONT_SIZE * text_width(text) / 2
            x = min(max(x, left + half), right - half)
            fits &= x - half >= end + _GAP - 1e-9
            end = x + half
            placed.append(Label(x, text))
        if fits:
            break
    return placed


def are_atoms(values: Int[np.ndarray, "n"], counts: Int[np.ndarray, "n"], num_rows: int) -> Bool[np.ndarray, "n"]:
    """Which values stand out: they have many rows, and the values beside them far fewer. Bool, [v].

    Args:
      values: codes in increasing order, [v].
      counts: number of rows of each value, [v].
      num_rows: number of all rows, those with missing values too.
    """
    atoms = np.zeros(len(values), bool)
    if values[-1] - values[0] < _HISTOGRAM_BINS:
        return atoms  # each value has a bar
    of = dict(zip(values.tolist(), counts.tolist(), strict=True))
    for i in np.flatnonzero(counts >= _ATOM * num_rows):
        beside = [of.get(int(values[i]) + d, 0) for d in (-3, -2, -1, 1, 2, 3)]
        atoms[i] = counts[i] > 3 * np.median(beside)
    return atoms


def _quantile(values: Int[np.ndarray, "n"], counts: Int[np.ndarray, "n"], share: float) -> int:
    return int(values[np.searchsorted(np.cumsum(counts), share * counts.sum())])


def _axis(column: Column, first: int, last: int) -> list[tuple[float, str]]:
    """Ticks of an axis: codes, which may be fractions, and labels."""
    last = min(last, column.num_values - 1)  # the last bin may end beyond the last value
    if first >= last or column.kind == "ordinal":
        codes = sorted({first, (first + last) // 2, last})
        return [(code, label_of(column, code)) for code in codes]
    ends = column.decode(np.array([first, last]))
    if isinstance(column, Numeric):
        low, high = ends.to_pylist()
        return [
            (first + (v - low) / (high - low) * (last - first), number_of(column, v)) for v in round_ticks(low, high, 5)
        ]
    low, high = ends.to_numpy(zero_copy_only=False).astype("datetime64[s]")
    ticks = round_dates(low, high)
    codes = first + (ticks - low) / (high - low) * (last - first)
    return list(zip(codes.tolist(), (str(tick).replace("T", " ") for tick in ticks), strict=True))


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from low to high, about as many as asked and not more than one more."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * most >= (high - low) * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def round_dates(low: np.datetime64, high: np.datetime64) -> Shaped[np.ndarray, "ticks"]:
    """Round dates or times from low to high, two to five if there are."""
    ticks = np.empty(0, "datetime64[s]")
    years, minutes = (100, 50, 20, 10, 5, 2, 1), (720, 360, 60, 15, 5, 1)
    for unit, steps in {"Y": years, "M": (6, 3, 1), "D": (14, 7, 2, 1), "m": minutes, "s": (15, 1)}.items():
        first, last = (end.astype(f"datetime64[{unit}]").astype(int) for end in (low, high))
        for step in steps:
            ticks = np.arange(-(-first // step) * step, last + 1, step).astype(f"datetime64[{unit}]")
            ticks = ticks[ticks >= low]
            if len(ticks) > 1:
                return ticks[:: -(-len(ticks) // 5)]
    return ticks
