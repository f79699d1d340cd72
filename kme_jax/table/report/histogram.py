"""The histogram of a column that has an order, as SVG."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Int, Shaped

from kme_jax.table.columns import Column
from kme_jax.table.report.words import escaped, label_of, number, percent, range_of

_HISTOGRAM_BINS = 40
_ATOM = 0.03  # share of rows from which on a value is drawn by itself


def histogram_html(column: Column, codes: Int[np.ndarray, "n"]) -> str:
    """A histogram of a column with an order, and its quartiles. ``codes`` [n] are the category codes of its rows."""
    num_rows = len(codes)
    values, counts = np.unique(codes[codes != column.num_values], return_counts=True)
    if not len(values):
        return "<p>All values are missing.</p>"
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
    room = 250 if share_missing else 288  # of 320
    x0, y0, height = 30, 116, 104

    def x(code: float) -> float:
        return x0 + (code - first) / (num_bins * width) * room

    def bar(at: float, wide: float, share: float, kind: str, title: str) -> str:
        tall = height * min(share / top, 1)
        text = f'<rect class="{kind}" x="{at:.1f}" y="{y0 - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
        text += f"<title>{escaped(title)}: {percent(share)}</title></rect>"
        if share > top:
            text += f'<path class="gap" d="M{at - 2:.1f} 26l{wide + 4:.1f} -6"/>'
        return text

    step = room / num_bins
    shapes = [f'<path class="axis" d="M{x0} {y0}h{room}"/>']
    for tick in round_ticks(0, top, 3)[1:]:
        y = y0 - height * tick / top
        shapes.append(
            f'<path class="grid" d="M{x0} {y:.1f}h{room}"/>'
            f'<text x="{x0 - 4}" y="{y + 3.5:.1f}" class="end">{100 * tick:.4g}%</text>'
        )
    wide = min(step - 0.6, 24)
    for i in np.flatnonzero(heights):
        start = first + int(i) * width
        title = range_of(column, start, min(start + width, column.num_values) - 1)
        shapes.append(bar(x0 + (i + 0.5) * step - wide / 2, wide, heights[i], "bar", title))
    for code, share in spikes:
        shapes.append(bar(x(code + 0.5) - 1.5, 3, share, "atom", label_of(column, code)))
    if share_missing:
        shapes.append(bar(295, 10, share_missing, "missing", "missing"))
        shapes.append(f'<text x="300" y="{y0 + 14}" class="middle">missing</text>')
    for code, label in _axis(column, first, last):
        at = x(code + 0.5)
        shapes.append(f'<path class="axis" d="M{at:.1f} {y0}v3"/>')
        shapes.append(f'<text x="{at:.1f}" y="{y0 + 14}" class="middle">{escaped(label)}</text>')

    quartiles = [label_of(column, _quantile(values, counts, q)) for q in (0.25, 0.5, 0.75)]
    middle = f"Median {quartiles[1]}, quartiles {quartiles[0]} and {quartiles[2]}"
    notes = [escaped(middle)]
    if spikes:
        spikes.sort(key=lambda spike: -spike[1])
        listed = ", ".join(f"{escaped(label_of(column, code))}: {percent(share)}" for code, share in spikes)
        notes.append(f'<b class="key atom"></b>&nbsp;{listed}')
    if share_missing:
        notes.append(f'<b class="key missing"></b>&nbsp;missing: {percent(share_missing)}')
    if beyond:
        ends = escaped(range_of(column, int(values[0]), int(values[-1])))
        notes.append(f"{percent(beyond)} of rows are not drawn; all values: {ends}")
    return (
        f'<svg viewBox="0 0 320 134" role="img" aria-label="{escaped(f"Histogram of {column.name}. {middle}.")}">'
        f"{''.join(shapes)}</svg>"
        f'<p class="sub">{"<br>".join(notes)}</p>'
    )


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
    if column.kind == "numeric":
        low, high = ends.to_pylist()
        return [(first + (v - low) / (high - low) * (last - first), number(v)) for v in round_ticks(low, high, 5)]
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
