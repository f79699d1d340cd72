"""The picture of the audit."""

from __future__ import annotations

import json
import pathlib

from experiments.common.plots import COLOURS, pyplot, save


def draw(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.audit: the lower bound of each attack, divided by the claim.

    Args:
      path: the JSON result.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    result = json.loads(pathlib.Path(path).read_text())
    cells = [cell for cell in result["cells"] if cell["measure"] != "violations"]
    figure, axes = pyplot().subplots(figsize=(8, 0.24 * len(cells) + 1.4), layout="constrained")
    for position, cell in enumerate(cells):
        colour = COLOURS[1] if cell["should_be_violated"] else COLOURS[0]
        bound, estimate = (cell[name] / cell["claim"] for name in ("lower_bound", "estimate"))
        axes.plot(bound, position, ">", color=colour)
        axes.plot([bound, estimate], [position, position], color=colour, linewidth=1)
    axes.axvline(1, color="black", linewidth=1)
    axes.plot([], [], ">", color=COLOURS[0], label="lower bound (99 %), and estimate")
    axes.plot([], [], ">", color=COLOURS[1], label="broken on purpose")
    labels = [f"{cell['mechanism']}, {cell['map']}, ε = {cell['epsilon']:g}" for cell in cells]
    axes.set_yticks(range(len(cells)), labels, fontsize=8)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("found by attack / claimed (beyond 1 the claim is wrong)")
    axes.grid(True, axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return save(figure, outputs)
