"""The picture: a panel for each D and scenario."""

from __future__ import annotations

import math
import pathlib
from typing import Any

from experiments.common.plots import COLOURS, pyplot, save
from experiments.shift.config import SCENARIOS
from experiments.shift.report import METHODS, break_evens, level, line, strengths_of

_X_LABELS = {
    "biased": "b (rows are drawn with probability ∝ exp(b · x₁ / sd))",
    "moved": "s (clusters are moved by s kernel lengths)",
}
_TITLES = {"biased": "biased sample of the population", "moved": "another population: moved clusters"}
_LABELS = {
    "uniform": "public rows with equal weights (no private data)",
    "published": "algorithm 1 as published",
    "improved": "improved, with public rows",
    "limit": "limit: best weights, without privacy",
}
_STYLES = {
    "uniform": {"color": "grey", "linestyle": "-.", "marker": "^", "markersize": 4},
    "published": {"linestyle": ":", "marker": "s", "markersize": 3.5},
    "improved": {"linestyle": "-", "marker": "o", "markersize": 4},
    "limit": {"color": "black", "linestyle": (0, (1, 3)), "linewidth": 1.2},
}
_WITHOUT_EPSILON = ("uniform", "limit")


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws Δ against the strength of the shift. Bars are standard errors, and rings are break-evens.

    Args:
      result: of ``experiments.shift.measure.run``.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    config = result["config"]
    dims = config["dims"]
    figure, grid = pyplot().subplots(
        len(dims), len(SCENARIOS), figsize=(12, 4.2 * len(dims) + 1), squeeze=False, layout="constrained"
    )
    labelled: dict[str, Any] = {}
    for dim, row in zip(dims, grid, strict=True):
        for scenario, axes in zip(SCENARIOS, row, strict=True):
            _panel(result, scenario, dim, axes)
            axes.set_title(f"D = {dim}: {_TITLES[scenario]}", fontsize=10, loc="left")
            axes.set(yscale="log", xlabel=_X_LABELS[scenario], ylabel="Δ: RKHS distance to the private embedding")
            strengths = strengths_of(result, scenario)
            least = next(value for value in strengths if value > 0)
            axes.set_xscale("symlog", linthresh=least)
            axes.set_xticks(strengths, [f"{value:g}" for value in strengths])
            axes.set_xlim(strengths[0] - least / 4, strengths[-1] * 1.3)
            axes.xaxis.set_minor_locator(pyplot().NullLocator())
            axes.grid(True, which="major", alpha=0.3)
            handles, labels = axes.get_legend_handles_labels()
            labelled |= dict(zip(labels, handles, strict=True))
    figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(
        f"Public rows under shift: N = {config['num_rows']}, M = {config['num_points']}, δ = {config['delta']:g}, "
        f"simulated noise, means of {config['num_draws']} draws ({config['num_proposals']} with a proposal)",
        fontsize=11,
    )
    return save(figure, [output])


def _panel(result: dict[str, Any], scenario: str, dim: int, axes: Any) -> None:
    strengths, epsilons = strengths_of(result, scenario), result["config"]["epsilons"]
    for method in METHODS:
        for colour, epsilon in zip(COLOURS, epsilons, strict=False):
            own = line(result, scenario, dim, method, epsilon)
            if own is None or (method in _WITHOUT_EPSILON and epsilon != epsilons[0]):
                continue
            label = _LABELS[method] + ("" if method in _WITHOUT_EPSILON else f", ε = {epsilon:g}")
            style = {"color": colour} | _STYLES[method]
            axes.errorbar(strengths, own[0], yerr=own[1], label=label, capsize=2, elinewidth=0.8, **style)
    for colour, epsilon in zip(COLOURS, epsilons, strict=False):
        if (other := level(result, dim, epsilon)) is not None:
            mean, error = other
            label = f"improved, with a proposal alone, ε = {epsilon:g}"
            axes.axhline(mean, color=colour, linestyle="--", linewidth=1.5, label=label)
            axes.axhspan(mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        for row in break_evens(result):
            same = (row["scenario"], row["dim"], row["epsilon"]) == (scenario, dim, epsilon)
            if same and other is not None and math.isfinite(row["value"]):
                ring = {"markersize": 13, "fillstyle": "none", "color": colour, "linestyle": "none"}
                axes.plot([row["value"]], [other[0]], "o", **ring, label=f"break-even, ε = {epsilon:g}")
