"""Pictures of the experiments on DP-MERF."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common.plots import COLOURS, pyplot, save
from experiments.merf import image_files, table_quoted, table_report


def draw_gaussians(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.merf.gaussians: samples of its first seed, and real rows ([H] figure 1).

    Args:
      path: the JSON result.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    result = json.loads(pathlib.Path(path).read_text())
    cells = [cell for cell in result["cells"] if "samples" in cell]
    means = {
        cell["variant"]: [other["nll"] for other in result["cells"] if other["variant"] == cell["variant"]]
        for cell in cells
    }
    figure, all_axes = pyplot().subplots(
        1, len(cells), figsize=(4 * len(cells), 4.6), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    for axes, cell in zip(all_axes[0], cells, strict=True):
        for label, colour in zip(range(5), COLOURS, strict=False):
            points = [sample[:2] for sample in cell["samples"] if sample[2] == label]
            axes.plot(*(zip(*points, strict=True) if points else ((), ())), ".", color=colour, markersize=2, alpha=0.6)
        values = means[cell["variant"]]
        seeds = f"mean of {len(values)} seeds" if len(values) > 1 else "one seed"
        nll = f"NLL {sum(values) / len(values):.2f} per point ({seeds})"
        axes.set_title(f"{cell['variant']}\n{nll}, {cell['modes']} of 25 modes", fontsize=9)
        axes.set_xlim(-1, 5)
        axes.set_ylim(-1, 5)
        axes.set_aspect("equal")
    config = result["config"]
    figure.suptitle(
        f"DP-MERF, N = {config['num_rows']}, ε = {config['epsilon']:g}, δ = {config['delta']:g}: "
        "samples of seed 0; colours are classes",
        fontsize=9,
    )
    return save(figure, outputs)


def draw_images(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws sample sheets of experiments.merf.images ([H] figure 2): ten images of each class, for each data set,
    of "published" and "improved" and each ε. Real images are not part of a result, so they are not shown.

    Args:
      inputs: JSON results, one for each data set.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    sheets = []
    for result in results:
        titled = []
        drawn = [cell for cell in result["cells"] if "sheet" in cell]
        main = [cell for cell in drawn if cell["variant"] in ("improved", "published")]
        for cell in main or drawn:  # steps of the ablation only if there is nothing else
            title = f"{cell['variant']}, ε = {cell['epsilon']:g}"
            titled.append((title, cell["sheet"]))
            if "sheet_without_noise" in cell:
                titled.append((f"{title}\nwithout noise in pixels", cell["sheet_without_noise"]))
        sheets.append(titled)
    columns = max(map(len, sheets))
    figure, all_axes = pyplot().subplots(
        len(sheets), columns, figsize=(3 * columns, 3.3 * len(sheets)), squeeze=False, layout="constrained"
    )
    for row, result, titled in zip(all_axes, results, sheets, strict=True):
        for axes in row:
            axes.axis("off")
        for axes, (title, sheet) in zip(row, titled, strict=False):
            _show_sheet(axes, sheet)
            axes.set_title(f"{image_files.TITLES[result['config']['dataset']]}: {title}", fontsize=9)
    figure.suptitle(f"DP-MERF, δ = {results[0]['config']['delta']:g}, seed 0; a row for each class", fontsize=9)
    return save(figure, outputs)


def _show_sheet(axes: Any, sheet: str) -> None:
    """Shows packed images, a row for each class."""
    pixels = image_files.unpack(sheet)
    side = pixels.shape[1]
    grid = pixels.reshape(10, -1, side, side).transpose(0, 2, 1, 3).reshape(10 * side, -1)
    axes.imshow(grid, cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")


def draw_cnn(
    inputs: Sequence[pathlib.Path],
    quoted: Mapping[str, Mapping[str, float]],
    quoted_epsilon: float,
    *outputs: pathlib.Path,
) -> pathlib.Path:
    """Draws results of experiments.merf.cnn: accuracies against ε, and a sample sheet of each variant.

    Sheets are those of the largest ε. Accuracies are means of seeds. Crosses are quoted ones.

    Args:
      inputs: JSON results, one for each data set.
      quoted: {method: {data set: accuracy}}.
      quoted_epsilon: their ε.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    drawn = []
    for result in results:
        cells = sorted((cell for cell in result["cells"] if "sheet" in cell), key=lambda cell: cell["epsilon"])
        drawn.append({cell["variant"]: cell for cell in cells})
    columns = 1 + max(map(len, drawn))
    figure, all_axes = pyplot().subplots(
        len(results), columns, figsize=(4.5 * columns, 5 * len(results)), squeeze=False, layout="constrained"
    )
    for axes, result, sheets in zip(all_axes, results, drawn, strict=True):
        left, name, colours = axes[0], result["config"]["dataset"], itertools.cycle(COLOURS)
        groups: dict[tuple[str, str], dict[float | None, list[float]]] = {}
        for cell in result["cells"]:
            of_epsilon = groups.setdefault((cell["variant"], cell["changes"]), {})
            of_epsilon.setdefault(cell["epsilon"], []).append(cell["accuracy"])
        for (variant, changes), values in groups.items():
            colour, label = next(colours), f"{variant}, changes of training images: {changes}"
            means = {epsilon: sum(of_epsilon) / len(of_epsilon) for epsilon, of_epsilon in values.items()}
            if None in means:
                left.axhline(means[None], color=colour, linestyle=":", label=label)
            else:
                epsilons = sorted(epsilon for epsilon in means if epsilon is not None)
                left.plot(epsilons, [means[epsilon] for epsilon in epsilons], "o-", color=colour, label=label)
        for method, accuracies in quoted.items():
            left.plot([quoted_epsilon], [accuracies[name]], "kx", markersize=5)
            left.annotate(method, (quoted_epsilon, accuracies[name]), xytext=(6, -3), textcoords="offset points")
        left.set(xscale="log", xlabel="ε", ylabel="accuracy on real test images")
        left.set_title(f"{image_files.TITLES[name]}, δ = {result['config']['delta']:g}", fontsize=9)
        left.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12))
        for other in axes[1:]:
            other.axis("off")
        for other, cell in zip(axes[1:], sheets.values(), strict=False):
            _show_sheet(other, cell["sheet"])
            other.set_title(f"{cell['variant']}, ε = {cell['epsilon']:g}, seed 0", fontsize=9)
    figure.suptitle("A network trained on synthetic images; crosses are quoted", fontsize=9)
    return save(figure, outputs)


def draw_tables(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws results of experiments.merf.tables: for each data set the score of every source, mean of classifiers.

    The score is the area under the ROC curve of labels, or F1 for several classes, as in [H], table 1. A mark is one
    seed, a bar is the mean. Crosses are the paper's numbers.

    Args:
      inputs: JSON results, one for each data set.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    quoted = {"real": "real", "published": "DP-MERF"}  # the paper's column for a source
    width = max(6.0, 1.5 * len(results) + 1)
    figure, axes = pyplot().subplots(figsize=(width, 4.2), layout="constrained")
    labelled: set[str] = set()
    for place, result in enumerate(results):
        name = result["config"]["dataset"]
        metric = "hard_roc" if table_report.is_binary(name) else "f1"
        groups = table_report.by_source(result)
        for k, (source, cells) in enumerate(groups.items()):
            x, values = place + 0.16 * (k - (len(groups) - 1) / 2), [table_report.mean(cell, metric) for cell in cells]
            label = None if source in labelled else table_report.TITLES[source]
            colour = COLOURS[list(table_report.TITLES).index(source)]
            axes.bar(x, sum(values) / len(values), 0.15, color=colour, alpha=0.6, label=label)
            axes.plot([x] * len(values), values, ".", color=colour, markersize=4)
            labelled.add(source)
            if source in quoted:
                paper = table_quoted.quoted(name)[quoted[source]][metric]
                label = None if "[H]" in labelled else "the paper's number (other rows, other split)"
                axes.plot(x, paper, "kx", markersize=5, label=label)
                labelled.add("[H]")
    axes.set_xticks(range(len(results)), [result["config"]["dataset"] for result in results])
    axes.set_ylim(0, 1)
    axes.set_ylabel("ROC of labels; F1 for covtype, intrusion", fontsize=9)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, frameon=False)
    axes.set_title(f"mean of the classifiers, ε = {results[0]['config']['epsilon']:g}, real test rows", fontsize=9)
    return save(figure, outputs)
