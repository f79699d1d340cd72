"""Pictures and tables that several sections of a report share, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from kme_jax.table.report.words import escaped


def table_html(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "plain") -> str:
    """An HTML table. The first cell of each row is its header."""
    head = "".join(f'<th scope="col">{header}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for first, *cells in rows
    )
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def bars_html(name: str, rows: Iterable[tuple[str, dict[str, float], str]], *, unit: float, kind: str = "") -> str:
    """Horizontal bars, as an HTML table.

    Args:
      name: of the picture.
      rows: for each bar its label, the lengths of its parts by CSS class, and the text beside it.
      unit: the length of a bar that fills the picture.
      kind: further CSS class.
    """
    body = []
    for label, parts, value in rows:
        bar = "".join(f'<i class="{part}" style="width:{100 * v / unit:.2f}%"></i>' for part, v in parts.items() if v)
        label = escaped(label)
        body.append(f'<tr><th scope="row" title="{label}"><span>{label}</span></th><td><div>{bar}</div></td>')
        body.append(f"<td>{value}</td></tr>")
    return f'<table class="bars {kind}" aria-label="{escaped(name)}"><tbody>{"".join(body)}</tbody></table>'


def heat_map_html(
    name: str,
    rows: Sequence[str],
    columns: Sequence[str],
    shares: Float[np.ndarray, "n m"],
    words: Sequence[Sequence[str]],
) -> str:
    """An HTML heat map. ``shares`` [rows, columns] in [0, 1] set how dark cells are, ``words`` their text."""
    head = "".join(f'<th scope="col" title="{escaped(label)}"><span>{escaped(label)}</span></th>' for label in columns)
    body = []
    for label, values, texts in zip(rows, shares, words, strict=True):
        body.append(f'<tr><th scope="row" title="{escaped(label)}"><span>{escaped(label)}</span></th>')
        for value, text in zip(values, texts, strict=True):
            dark = ' class="dark"' if value >= 0.75 else ""
            shade = f' style="--v:{value:.2f}"' if value >= 0.005 else ""
            body.append(f"<td{dark}{shade}>{text}</td>")
        body.append("</tr>")
    return (
        f'<table class="map" aria-label="{escaped(name)}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )
