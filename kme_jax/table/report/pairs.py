"""The section on pairs of columns: how strongly they go together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kme_jax.table.report.bins import MAX_BINS, WEAK, Bins, joint_counts
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import heat_map_html
from kme_jax.table.report.words import escaped

_MAX_PAIRS = 12  # pairs that are shown as pictures


def section(data: ReportData) -> Section | None:
    """The associations of all pairs of columns, and pictures of the strongest; None for a table of one column."""
    if len(data.columns) < 2:
        return None
    target = -1 if data.target is None else data.target
    return Section("pairs", "Pairs of columns", _pairs(data.schema.names, data.bins, data.strength, target))


def _pairs(names: Sequence[str], bins: Sequence[Bins], strength: Float[np.ndarray, "d d"], target: int) -> str:
    shown = strength * (1 - np.eye(len(names)))
    words = [[f"{v:.2f}".lstrip("0") if v >= WEAK else "" for v in row] for row in shown]
    pairs = [pair for pair in itertools.combinations(range(len(names)), 2) if strength[pair] >= WEAK]
    pairs = sorted((pair for pair in pairs if target not in pair), key=lambda pair: -strength[pair])[:_MAX_PAIRS]
    cards = "".join(_pair(names, bins, i, j, strength[i, j]) for i, j in pairs)
    return (
        "<p>How strongly two columns go together: Cramér’s V, from 0 (independent) to 1 (one decides the other), of at "
        f"most {MAX_BINS} bins of each, and one for missing values. It is corrected for bias. The stronger the "
        f"colour, the stronger the association. Values below {WEAK} are not written.</p>"
        f'<article class="matrix" style="--n:{len(names)}">'
        '<div class="scroll" tabindex="0" role="region" aria-label="Associations">'
        + heat_map_html("Associations", names, names, shown, words)
        + "</div></article><h3>The strongest pairs</h3><p>"
        + "The target’s are in the next section. " * (target >= 0)
        + (
            "Each picture shows the shares, in %, of the values at the left among rows with the value above. Every "
            f'column adds up to 100&nbsp;%.</p><div class="cards large">{cards}</div>'
            if cards
            else f"No pair reaches {WEAK}.</p>"
        )
    )


def _pair(names: Sequence[str], bins: Sequence[Bins], i: int, j: int, strength: float) -> str:
    down, across = sorted((i, j), key=lambda k: (bins[k].ordered, len(bins[k].labels)))
    rows, columns = bins[down], bins[across]
    order = np.arange(len(rows.labels))
    if rows.ordered:  # upwards
        known = len(order) - rows.missing
        order[:known] = order[:known][::-1]
    shares = joint_counts(rows, columns)[order]
    shares = shares / shares.sum(0)
    words = [[f"{100 * share:.0f}" for share in row] for row in shares]
    labels = [rows.labels[k] for k in order]
    name, other = f"Shares of {names[down]} by {names[across]}", escaped(names[across])
    return (
        f'<article><h4>{escaped(names[down])} <small>by</small> {other}</h4><p class="sub">V = {strength:.2f}. Across: '
        f"{other}</p>{heat_map_html(name, labels, columns.labels, shares / shares.max(), words)}</article>"
    )
