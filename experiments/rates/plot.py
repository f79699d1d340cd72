"""The picture: a panel for each claim."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.common.plots import COLOURS, pyplot, save
from experiments.rates.claims import CLAIMS, Claim
from experiments.rates.slopes import errors_of, median_interval

_COLUMNS = 4
_BOUND = {"linestyle": "--", "linewidth": 1.1}
_OTHER = {"linestyle": "-.", "linewidth": 1.1}
# Every curve beside the error of the claim.
_BESIDE = {
    "improved": ({"linestyle": ":", "marker": "x", "markersize": 5}, "improved (f: with a proposal)"),
    "uniform": ({"linestyle": ":", "marker": "^", "markersize": 4}, "public rows with equal weights"),
    "closed_form": ({"linestyle": ":", "marker": "s", "markersize": 3.5}, "closed form, ‖w‖₁ not bounded"),
    "oracle": ({"linestyle": "-", "linewidth": 3.5, "alpha": 0.3}, "limit: error of the private rows, √E‖μ̂ − μ‖²"),
}
_ERROR = {"linestyle": "-", "marker": "o", "markersize": 3.5}


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the errors of all claims against their variables, with the bounds.

    Args:
      result: of ``experiments.rates.run.run``.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    rows = -(-(len(CLAIMS) + 1) // _COLUMNS)
    figure, grid = pyplot().subplots(rows, _COLUMNS, figsize=(16.5, 3.9 * rows), layout="constrained")
    panels = list(grid.flat)
    for letter, (name, claim), axes in zip("abcdefghijklmnopqrstuvwxyz", CLAIMS.items(), panels, strict=False):
        _panel(result, name, claim, axes)
        axes.set_title(f"{letter}. {claim.source}: {claim.rate}\n{claim.title}", fontsize=10, loc="left")
    config = result["config"]
    colours = dict(zip(config["dims"], COLOURS, strict=False))
    for axes in panels[len(CLAIMS) :]:
        axes.axis("off")
    lines = [([], [], {"color": colour, "linewidth": 2}, f"D = {dim}") for dim, colour in colours.items()]
    styles = [
        (_ERROR, "error of the claim: median, and its 95 % interval"),
        (_BOUND, "rate of the bound, through the first value"),
        (_OTHER, "g: rate that the proof gives for the printed k"),
    ]
    lines += [([], [], {"color": "black"} | style, label) for style, label in (*styles, *_BESIDE.values())]
    legend = panels[len(CLAIMS)]
    for x, y, style, label in lines:
        legend.plot(x, y, label=label, **style)
    box = legend.legend(loc="upper left", fontsize=10, frameon=False, bbox_to_anchor=(-0.1, 1.05))
    box.set_in_layout(False)  # it is as wide as two panels
    figure.suptitle(
        f"Errors beside the rates of Balog et al. 2018: δ = {config['delta']:g}, ε = {config['epsilon']:g} where it is "
        f"fixed, simulated noise, {config['num_seeds']} repeats ({config['num_searches']} of algorithm 2 and improved, "
        f"{config['num_proposals']} with a proposal)",
        fontsize=11,
    )
    return save(figure, [output])


def _panel(result: dict[str, Any], name: str, claim: Claim, axes: Any) -> None:
    config = result["config"]
    first = next(iter(claim.curves))
    for dim, colour in zip(config["dims"], COLOURS, strict=False):
        for curve, of in claim.curves.items():
            errors, x = errors_of(result, name, curve, dim), config[of]
            if not len(errors):
                continue
            median, low, high = median_interval(errors)
            style = _ERROR if curve == first else _BESIDE[curve][0]
            axes.plot(x, median, color=colour, **style)
            if curve != first:
                continue
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            for bound, dashes in ((claim.bound, _BOUND), (claim.other_bound, _OTHER)):
                if bound is not None and not claim.convergence_only:
                    line = [median[0] * (value / x[0]) ** bound(dim) for value in x]
                    axes.plot(x, line, color=colour, **dashes)
    axes.set(
        xscale="log", yscale="log", xlabel=claim.variable, ylabel=_Y_LABELS.get(name, "RKHS distance, k(x, x) = 1")
    )
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        if high > 9 * low:  # else no power of ten may be in view
            axis.set_minor_formatter(pyplot().NullFormatter())
    axes.grid(True, which="major", alpha=0.3)


_Y_LABELS = {"deviation": "deviation", "features": "difference of distances"}
