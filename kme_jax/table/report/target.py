"""The section on the target: its shares by the value of each other column."""

from __future__ import annotations

import numpy as np

from kme_jax.table.report.bins import FEW, bins_of, joint_counts
from kme_jax.table.report.data import ReportData, Section
from kme_jax.table.report.drawing import Bar, Bars, parts_of
from kme_jax.table.report.words import percent, shortened

_MAX_PARTS = 5  # bins of the target column
_TOO_FEW = "few rows"
_MAX_DESCRIBED = 15  # width in em of the name of a bin where it is repeated in each bar


def section(data: ReportData) -> Section | None:
    """The shares of the target by each other column; None without a target, or for a table of one column.

    A target of two values is shown by the shares of the rarer one, and other targets by the shares of all values.
    """
    if data.target is None or len(data.columns) < 2:
        return None
    names, place, bins, strength = data.schema.names, data.target, data.bins, data.strength[data.target]
    target = bins_of(*data.columns[place], _MAX_PARTS)
    others = sorted((k for k in range(len(names)) if k != place), key=lambda k: -strength[k])
    shares = {k: (counts := joint_counts(bins[k], target)) / counts.sum(1, keepdims=True) for k in others}
    kinds = [f"p{i}" for i in range(len(target.labels) - target.missing)] + ["missing"] * target.missing
    values = {"name": names[place], "ordered": target.ordered, "rarer": None, "mark": None, "legend": []}
    values["has_noise"] = data.noise > 0
    if len(kinds) == 2:
        rarer = int(target.shares[1] <= target.shares[0])
        kinds, shown = kinds[:1], [target.labels[rarer]]
        shares = {k: share[:, [rarer]] for k, share in shares.items()}
        known = [share[data.noise * FEW <= bins[k].shares * len(data.codes)] for k, share in shares.items()]
        unit = max((share.max() for share in known if share.size), default=1.0) or 1.0
        values["rarer"] = {"label": target.labels[rarer], "share": percent(target.shares[rarer])}
        values["mark"] = 100 * target.shares[rarer] / unit
    else:
        unit, shown = 1.0, [shortened(label, _MAX_DESCRIBED) for label in target.labels]
        values["legend"] = [
            {"kind": kind, "label": label, "share": percent(share)}
            for kind, label, share in zip(kinds, target.labels, target.shares, strict=True)
        ]

    def bar(label: str, row: np.ndarray, noise: float) -> Bar:
        few = noise > 1 / FEW
        parts = [] if few else parts_of(dict(zip(kinds, row.tolist(), strict=True)), unit)
        if few:
            return Bar(label, parts, _TOO_FEW)
        if values["rarer"]:
            return Bar(label, parts, f"{percent(row[0])} ± {max(1, round(100 * noise))}" if noise else percent(row[0]))
        described = (f"{name}: {percent(share)}" for name, share in zip(shown, row, strict=True) if share)
        return Bar(label, parts, "", ", ".join(described))

    values["cards"] = [
        {
            "name": names[k],
            "strength": strength[k],
            "bars": Bars(
                f"Shares of {names[place]} by {names[k]}",
                list(map(bar, bins[k].labels, shares[k], data.noise / (bins[k].shares * len(data.codes)))),
                "one" if values["rarer"] else "parts",
            ),
        }
        for k in others
    ]
    return Section("target", f"Target: {names[place]}", values)
