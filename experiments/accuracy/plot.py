"""The picture of the accuracy where rows are public."""

from __future__ import annotations

import itertools
import json
import pathlib

from experiments.common.plots import COLOURS, pyplot, save


def draw(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.accuracy.subset: Δ against M, a panel for each D.

    Args:
      path: the JSON result.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    result = json.loads(pathlib.Path(path).read_text())
    dims = list(dict.fromkeys(cell["dim"] for cell in result["cells"]))
    lines = {"published": (":", "algorithm 1 as published"), "diameter": ("--", "algorithm 1, tight noise")}
    lines |= {"improved": ("-", "improved")}
    figure, all_axes = pyplot().subplots(
        1, len(dims), figsize=(max(5.2 * len(dims) + 0.3, 7), 4.6), squeeze=False, sharey=True, layout="constrained"
    )
    for axes, dim in zip(all_axes[0], dims, strict=True):
        cells = [cell for cell in result["cells"] if cell["dim"] == dim]
        sizes = sorted({cell["num_points"] for cell in cells})
        uniform = {cell["num_points"]: cell["uniform"] for cell in cells}
        axes.loglog(sizes, [uniform[m] for m in sizes], color="grey", linestyle="-.", label="uniform weights")
        epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
        for colour, epsilon in zip(itertools.cycle(COLOURS), epsilons, strict=False):
            own = sorted((c for c in cells if c["epsilon"] == epsilon), key=lambda c: c["num_points"])
            for name, (style, label) in lines.items():
                means = [cell["steps"][name]["mean"] for cell in own]
                marker = "o" if name == "improved" else None
                axes.loglog(
                    [cell["num_points"] for cell in own],
                    means,
                    style,
                    color=colour,
                    marker=marker,
                    markersize=3,
                    label=f"{label}, ε = {epsilon:g}",
                )
        axes.set_title(f"D = {dim}")
        axes.set_xlabel("M (number of public data points)")
        axes.grid(True, which="major", alpha=0.3)
    all_axes[0, 0].set_ylabel(r"RKHS distance $\|\hat\mu_X - \cdot\|$")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    config = result["config"]
    figure.suptitle(
        f"Publishable subset, N = {config['num_rows']}, δ = {config['delta']:g}, "
        f"means of {config['num_draws']} draws ({config['num_draws_large']} for M > 1000)",
        fontsize=9,
    )
    return save(figure, outputs)
