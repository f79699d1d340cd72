"""The picture of the releases of tables."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from experiments.common.plots import COLOURS, pyplot, save
from experiments.tables.live_peers import PEERS
from experiments.tables.releases import data_title

_MARKERS = dict(zip(PEERS.values(), ("s", "^"), strict=True))  # of other systems


def draw(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws results of experiments.tables against ε: errors of marginals, and areas under the curve. Controls are
    horizontal lines, and other systems are marks. Lines that say nothing, an error of 0 and an area of about 0.5, are
    left out.

    Args:
      inputs: JSON results, one for each data set.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    classifiers = ("logistic_regression", "random_forest", "gradient_boosting")
    styles = {"real rows": "--", "real sample": ":", "independent columns": "-."}
    errors = {f"{order}-way": f"{order}-way marginals" for order in (1, 2, 3)}
    areas = {f"auc {name}": name.replace("_", " ") for name in classifiers}
    panels = [
        ("mean total variation of marginals", errors, ("real sample", "independent columns")),
        ("area under the curve, real test rows", areas, ("real rows", "real sample")),
    ]
    figure, all_axes = pyplot().subplots(
        len(results), 2, figsize=(10, 3.4 * len(results) + 1), squeeze=False, layout="constrained"
    )
    for row, result in zip(all_axes, results, strict=True):
        releases = sorted(
            (line for line in result["summary"] if line["source"] == "release"), key=lambda line: line["epsilon"]
        )
        peers = [line for line in result["summary"] if line["source"] in _MARKERS]
        for axes, (title, metrics, controls) in zip(row, panels, strict=True):
            for colour, (metric, label) in zip(COLOURS, metrics.items(), strict=False):
                axes.errorbar(
                    [line["epsilon"] for line in releases],
                    [line["mean"][metric] for line in releases],
                    [line["error"][metric] or 0 for line in releases],
                    color=colour,
                    marker="o",
                    markersize=4,
                    capsize=2,
                    label=label,
                )
                for line in peers:
                    marker = _MARKERS[line["source"]]
                    axes.plot(line["epsilon"], line["mean"][metric], marker, color=colour, fillstyle="none")
                for line in result["summary"]:
                    if line["source"] in controls and line["mean"][metric] > 0:
                        axes.axhline(line["mean"][metric], color=colour, linestyle=styles[line["source"]], linewidth=1)
            axes.set_xscale("log")
            axes.set_xlabel("ε")
            axes.set_ylabel(title)
            axes.set_title(data_title(result), fontsize=10)
            axes.grid(True, alpha=0.3)
        row[0].set_yscale("log")
    handles = [handle for axes in all_axes[0] for handle in axes.get_legend_handles_labels()[0]]
    handles += [pyplot().Line2D([], [], color="grey", linestyle=style, label=name) for name, style in styles.items()]
    drawn = {line["source"] for result in results for line in result["summary"]}
    handles += [
        pyplot().Line2D([], [], color="grey", linestyle="", marker=marker, fillstyle="none", label=name)
        for name, marker in _MARKERS.items()
        if name in drawn
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    config = results[0]["config"]
    noise = "secure" if config["secure"] else "simulated"
    figure.suptitle(
        f"Releases of tables, {noise} noise: mean and standard error, seeds: {config['num_seeds']}",
        fontsize=9,
    )
    return save(figure, outputs)
