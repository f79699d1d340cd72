"""The section on pairs of columns: how strongly they go together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kme_jax.table.report.bins import MAX_BINS, WEAK, Bins, joint_counts
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import HeatMap

_MAX_PAIRS = 12  # pairs that are shown as pictures
_MAX_NAME = 14.0  # width in em of the name of a column above the associations


def section(data: ReportData) -> Section | None:
    """The associations of all pairs of columns, and pictures of the strongest; None for a table of one column."""
    if len(data.columns) < 2:
        return None
    names, strength = data.schema.names, data.strength
    shown = strength * (1 - np.eye(len(names)))
    texts = [[_strength(v) for v in row] for row in shown]
    pairs = [pair for pair in itertools.combinations(range(len(names)), 2) if strength[pair] >= WEAK]
    # The week and the time of a date follow from it.
    told = [{name, f"{name} {part}"} for name in names for part in ("time", "week")]
    pairs = [pair for pair in pairs if data.target not in pair and {names[k] for k in pair} not in told]
    pairs = sorted(pairs, key=lambda pair: -strength[pair])[:_MAX_PAIRS]
    values = {
        "associations": HeatMap.create("Associations", names, names, shown, texts, _MAX_NAME),
        "pairs": [_pair(names, data.bins, i, j) | {"strength": strength[i, j]} for i, j in pairs],
        "has_target": data.target is not None,
        "max_bins": MAX_BINS,
        "weak": WEAK,
    }
    return Section("pairs", "Pairs of columns", values)


def _strength(value: float) -> str:
    """A strength in two digits, without what would make a cell wider: .31, 1."""
    return f"{value:.2f}".lstrip("0").removesuffix(".00") if value >= WEAK else ""


def _pair(names: Sequence[str], bins: Sequence[Bins], i: int, j: int) -> dict[str, Any]:
    """Names of two columns, and the shares of one by the other."""
    down, across = sorted((i, j), key=lambda k: (bins[k].ordered, len(bins[k].labels)))
    rows, columns = bins[down], bins[across]
    order = np.arange(len(rows.labels))
    if rows.ordered:  # upwards
        known = len(order) - rows.missing
        order[:known] = order[:known][::-1]
    shares = joint_counts(rows, columns)[order]
    shares = shares / shares.sum(0)
    texts = [[f"{100 * share:.0f}" for share in row] for row in shares]
    labels = [rows.labels[k] for k in order]
    name = f"Shares of {names[down]} by {names[across]}"
    shades = shares / shares.max()
    return {
        "down": names[down],
        "across": names[across],
        "shares": HeatMap.create(name, labels, columns.labels, shades, texts),
    }
