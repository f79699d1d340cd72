"""Small pieces of HTML for notebooks, without scripts, style sheets or pictures from elsewhere. All text is escaped.

Colours are those of the notebook's theme, light or dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kme_jax._numerics.text import printable

MAX_POINTS = 500  # of a picture
MAX_ROWS, MAX_COLUMNS, MAX_CELL = 5, 10, 40  # of a table, and letters of a cell
_WIDTH, _HEIGHT, _MARGIN = 320, 200, 8  # of a picture, in pixels
_BLUE, _RED = "#4c78a8", "#e45756"


def escaped(text: object) -> str:
    """Text of any origin, safe within an element of HTML. Unprintable characters become escapes such as ``\\x1b``."""
    return html.escape(printable(text))


def number(value: Any) -> str:
    """A number with four digits; whole numbers, and the whole part of large numbers, in full."""
    if isinstance(value, int | np.integer):
        return f"{int(value)}"
    return f"{float(value):,.0f}" if 1e4 <= abs(value) < 1e15 else f"{float(value):.4g}"


def converged(whether: bool) -> str:
    """Whether a method converged, in words."""
    return "converged" if whether else "NOT converged"


def card(title: str, facts: Iterable[tuple[str, str]], *pieces: str, warning: str = "") -> str:
    """A title, names and values of facts, and further pieces of HTML below each other.

    Args:
      title: text.
      facts: pairs of text.
      pieces: HTML.
      warning: text that is shown in a frame under the title; none if empty.
    """
    frame = f"border:2px solid {_RED};padding:2px 6px;margin:4px 0;display:inline-block"
    rows = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escaped(name)}</th>'
        f'<td style="text-align:left">{escaped(value)}</td></tr>'
        for name, value in facts
    )
    framed = f'<div><div style="{frame}"><b>{escaped(warning)}</b></div></div>' if warning else ""
    blocks = "".join(f'<div style="margin-top:6px">{piece}</div>' for piece in pieces if piece)
    return f"<div><b>{escaped(title)}</b><div>{framed}</div><table><tbody>{rows}</tbody></table>{blocks}</div>"


def first_rows(names: Sequence[str], rows: Sequence[Sequence[Any]], num_rows: int) -> str:
    """The first rows and columns of a table.

    Args:
      names: of all columns.
      rows: the cells of rows. A float is rounded, and None is shown as missing.
      num_rows: number of rows of the whole table.
    """
    hidden = len(names) - MAX_COLUMNS
    head = "".join(f"<th>{escaped(_cut(name))}</th>" for name in names[:MAX_COLUMNS])
    body = "".join(f"<tr>{''.join(map(_cell, row[:MAX_COLUMNS]))}</tr>" for row in rows[:MAX_ROWS])
    more = [f"{num_rows - MAX_ROWS} more rows"] * (num_rows > MAX_ROWS) + [f"{hidden} more columns"] * (hidden > 0)
    below = f"<div>and {' and '.join(more)}</div>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cut(text: object) -> str:
    letters = str(text)
    return letters if len(letters) <= MAX_CELL else f"{letters[: MAX_CELL - 3]}..."


def _cell(value: Any) -> str:
    if value is None:
        return "<td><i>missing</i></td>"
    text = number(value) if isinstance(value, float | np.floating) else str(value)
    return f"<td>{escaped(_cut(text))}</td>"


def size_of_points(points: np.ndarray) -> str:
    """The size of points [M, d] in words."""
    size, dim = np.shape(points)
    return f"{size} points of {dim} column{'s' * (dim > 1)}"


def weighted_points(points: np.ndarray, weights: np.ndarray, columns: Sequence[str] | None = None) -> tuple[str, str]:
    """Two pieces of HTML: a picture of points of one or two columns, and the first points with their weights.

    Args:
      points: [M, d].
      weights: [M].
      columns: names of the columns; x1, x2 and so on if None.
    """
    points, weights = np.asarray(points), np.asarray(weights)
    names = [f"x{i + 1}" for i in range(points.shape[1])] if columns is None else list(columns)
    # The weight is in the first column, so that it is shown for points of many columns.
    few = [[w, *row] for row, w in zip(points[:MAX_ROWS], weights, strict=False)]
    return scatter(points, weights), first_rows(["weight", *names], few, len(points))


def scatter(points: np.ndarray, weights: np.ndarray) -> str:
    """A picture of weighted points of one or two columns; empty for more columns.

    The area of a circle is proportional to the size of the weight. Negative weights are red. One column is shown
    with the weights as heights.

    Args:
      points: [M, d].
      weights: [M].
    """
    points, weights = np.asarray(points, np.float64), np.asarray(weights, np.float64)
    if points.ndim != 2 or points.shape[1] not in (1, 2):
        return ""
    usable = np.isfinite(points).all(axis=1) & np.isfinite(weights) & (weights != 0)
    points, weights = points[usable], weights[usable]
    if not len(points):
        return ""
    largest = np.argsort(-np.abs(weights), kind="stable")[:MAX_POINTS]
    shown, heaviest = weights[largest], float(np.abs(weights).max())
    across = _pixels(points[largest, 0], points[:, 0], _WIDTH)
    if points.shape[1] == 2:
        up = _HEIGHT - _pixels(points[largest, 1], points[:, 1], _HEIGHT)
        radii = np.maximum(4 * np.sqrt(np.abs(shown) / heaviest), 0.8)
        shapes = [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{_BLUE if w > 0 else _RED}"/>'
            for x, y, r, w in zip(across, up, radii, shown, strict=True)
        ]
    else:
        ends = np.append(shown, [0.0])
        up = _HEIGHT - _pixels(ends, np.append(weights, 0.0), _HEIGHT)
        shapes = [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up[-1]:.1f}" y2="{y:.1f}" stroke="{_BLUE if w > 0 else _RED}"/>'
            for x, y, w in zip(across, up[:-1], shown, strict=True)
        ]
    limits = ", ".join(f"x{i + 1} from {number(c.min())} to {number(c.max())}" for i, c in enumerate(points.T))
    part = f"; the {MAX_POINTS} largest weights of {len(weights)}" if len(weights) > MAX_POINTS else ""
    signs = "; negative weights are red" if (shown < 0).any() else ""
    return _picture(shapes, f"{limits}{part}{signs}")


def trace(values: np.ndarray, name: str) -> str:
    """A picture of numbers [n] in their order, with a logarithmic axis if they are positive and differ much.

    Numbers that are not finite are left out. The picture is empty for fewer than two numbers.
    """
    values = np.asarray(values, np.float64).reshape(-1)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    if len(values) > MAX_POINTS:
        values = values[np.linspace(0, len(values) - 1, MAX_POINTS).round().astype(int)]
    logarithmic = values.min() > 0 and values.max() > 10 * values.min()
    heights = np.log10(values) if logarithmic else values
    across = _pixels(np.arange(len(values)), np.arange(len(values)), _WIDTH)
    up = _HEIGHT / 2 - _pixels(heights, heights, _HEIGHT / 2)
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    line = f'<polyline points="{corners}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>'
    axis = ", logarithmic axis" if logarithmic else ""
    limits = f"{name}: {number(values[0])} at first, {number(values[-1])} at last{axis}"
    return _picture([line], limits, height=_HEIGHT // 2)


def _pixels(values: np.ndarray, all_values: np.ndarray, length: float) -> np.ndarray:
    low, high = float(np.min(all_values)), float(np.max(all_values))
    middle, spread = low / 2 + high / 2, high / 2 - low / 2
    if not (spread > 0 and math.isfinite(spread)):
        return np.full(len(values), length / 2)
    return length / 2 + (values / 2 - middle / 2) / (spread / 2) * (length / 2 - _MARGIN)


def _picture(shapes: Sequence[str], text: str, height: int = _HEIGHT) -> str:
    frame = f'<rect width="{_WIDTH}" height="{height}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{frame}{"".join(shapes)}</svg>'
    return f"{picture}<div><small>{escaped(text)}</small></div>"
