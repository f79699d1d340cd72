"""The section on the target: its shares by the value of each other column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kme_jax.table.report.bins import Bins, bins_of, joint_counts
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import bars_html
from kme_jax.table.report.words import escaped, percent

_MAX_PARTS = 5  # bins of the target column


def section(data: ReportData) -> Section | None:
    """The shares of the target by each other column; None without a target, or for a table of one column."""
    if data.target is None or len(data.columns) < 2:
        return None
    names, place = data.schema.names, data.target
    text = _target(names, data.bins, data.strength[place], place, bins_of(*data.columns[place], _MAX_PARTS))
    return Section("target", f"Target: {escaped(names[place])}", text)


def _target(
    names: Sequence[str], bins: Sequence[Bins], strength: Float[np.ndarray, "d d"], place: int, target: Bins
) -> str:
    name = escaped(names[place])
    others = sorted((k for k in range(len(names)) if k != place), key=lambda k: -strength[k])
    shares = {k: (counts := joint_counts(bins[k], target)) / counts.sum(1, keepdims=True) for k in others}
    parts = [f"p{i}" for i in range(len(target.labels) - target.missing)] + ["missing"] * target.missing
    if len(parts) == 2:
        rarer = int(target.shares[1] <= target.shares[0])
        parts = ["p0"]
        shares = {k: share[:, [rarer]] for k, share in shares.items()}
        unit = max(share.max() for share in shares.values())
        mark = f' style="--mark:{100 * target.shares[rarer] / unit:.2f}%"'
        intro = (
            f"The share of rows with <strong>{name} = {escaped(target.labels[rarer])}</strong> by the value of each "
            f"other column. It is {percent(target.shares[rarer])} of all rows, the line in each picture."
        )
        legend = ""
    else:
        unit, mark = 1.0, ""
        legend = "".join(
            f'<li><b class="key {part}"></b>&nbsp;{escaped(label)} ({percent(share)})</li>'
            for part, label, share in zip(parts, target.labels, target.shares, strict=True)
        )
        intro = f"The shares of values of <strong>{name}</strong> by the value of each other column."
        legend = f'<ul class="keys">{legend}</ul>'
    kind = "one" if mark else "parts"
    cards = []
    for k in others:
        rows = [
            (label, dict(zip(parts, values, strict=True)), percent(values[0]) if mark else "")
            for label, values in zip(bins[k].labels, shares[k].tolist(), strict=True)
        ]
        cards.append(
            f'<article{mark}><h3>{escaped(names[k])}</h3><p class="sub">V = {strength[k]:.2f}</p>'
            + bars_html(f"Shares of {names[place]} by {names[k]}", rows, unit=unit, kind=kind)
            + "</article>"
        )
    return (
        f"<p>{intro} The columns that go most with it come first.</p>"
        f'<div class="{"ordered" * target.ordered}">{legend}<div class="cards">{"".join(cards)}</div></div>'
    )
