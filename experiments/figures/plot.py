"""Pictures of figures 1 and 2."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.published import published_panel
from experiments.figures.definition import MixtureFigure

_ALGORITHM2 = {
    "algorithm2": ("Algorithm 2, greedy and Lasso", "--", "s"),
    "algorithm2_joint": ("Algorithm 2, joint", "-.", "D"),
}


def _draw_panel(axes, result: dict[str, Any], points_label: str) -> None:
    num_points, curves = result["num_points"], result["curves"]
    published = published_panel(result)
    axes.loglog(num_points, curves["projection"], color="black", linestyle=":", label="projection distance")
    axes.loglog(
        num_points, curves["uniform_baseline"], color="grey", linestyle="-.", label="baseline (uniform weights)"
    )
    for colour, (epsilon, curve) in zip(itertools.cycle(COLOURS), curves["algorithm1"].items(), strict=False):
        axes.loglog(num_points, curve["rms"], color=colour, label=f"Algorithm 1, ε = {epsilon}")
        axes.fill_between(num_points, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
        if published and epsilon in published["algorithm1"]:
            axes.plot(
                published["num_points"], published["algorithm1"][epsilon], ".", color=colour, markersize=3, alpha=0.7
            )
    for name, (label, line, marker) in _ALGORITHM2.items():
        for colour, (epsilon, curve) in zip(itertools.cycle(COLOURS), curves.get(name, {}).items(), strict=False):
            own = curves[f"{name}_num_points"]
            label_here = label if colour == COLOURS[0] else None
            axes.loglog(own, curve["rms"], line, color=colour, marker=marker, markersize=3)
            axes.plot([], [], line, color="grey", marker=marker, markersize=3, label=label_here)
            axes.fill_between(own, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
            if published and epsilon in published.get(name, {}):
                axes.plot(published[f"{name}_num_points"], published[name][epsilon], "x", color=colour, markersize=4)
    for colour, curve in zip(itertools.cycle(COLOURS), curves.get("improved", {}).values(), strict=False):
        label_here = "improved (kme_jax's default)" if colour == COLOURS[0] else None
        own = curves["improved_num_points"]
        axes.loglog(own, curve["rms"], color=colour, marker="*", markersize=8, linewidth=2.5)
        axes.plot([], [], color="grey", marker="*", markersize=8, linewidth=2.5, label=label_here)
    if published:
        axes.plot([], [], ".", color="grey", markersize=3, label="algorithm 1 as published (one draw)")
    if published and "algorithm2" in curves:
        axes.plot([], [], "x", color="grey", markersize=4, label="algorithm 2 as published (one draw)")
    config = result["config"]
    axes.set_title(
        f"D = {config['dim']}" + (f", data of one's own, γ = {config['gamma']:g}" if config.get("dataset") else "")
    )
    axes.set_xlabel(points_label)
    axes.grid(True, which="major", alpha=0.3)
    axes.set_xlim(num_points[0], num_points[-1])


def draw(figure: MixtureFigure, inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws panels of a figure side by side.

    Args:
      figure: which figure.
      inputs: JSON results, one per panel.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    picture, all_axes = pyplot().subplots(
        1,
        len(results),
        figsize=(max(5.2 * len(results) + 0.3, 7), 4.9),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axes, result in zip(all_axes[0], results, strict=True):
        _draw_panel(axes, result, figure.points_label)
    all_axes[0, 0].set_ylabel(r"RKHS distance $\|\hat\mu_X - \cdot\|$")
    picture.legend(
        *all_axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4 if len(results) > 1 else 2,
        fontsize=8,
    )
    first = results[0]
    config = first["config"]
    repeats = f"range of {config['num_repeats']} repeats" if config["num_repeats"] > 1 else "one repeat"
    picture.suptitle(
        f"{figure.scenario}, N = {first['num_rows']}, δ = {config['delta']:g}, "
        f"{config['calibration']} calibration, {config['diameter']} diameter\n"
        f"root mean square and 0.5–99.5 % of {config['num_noise_draws']} draws"
        + (f" (algorithm 2: {repeats})" if "algorithm2" in first["curves"] else ""),
        fontsize=9,
    )
    return save(picture, outputs)
