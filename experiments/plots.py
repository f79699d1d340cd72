"""Pictures of results. Reads JSON, computes nothing.

python -m experiments.plots --input=results/figure1_D2.json,results/figure1_D5.json --output=figure1.pdf
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from absl import flags

from experiments import common, images
from experiments.published import published_panel

# Blue, orange, green of the colour-blind-safe Okabe-Ito palette, then the rest of it, for ε from small to large.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_POINTS_LABEL = {"figure1": "M (number of public data points)", "figure2": "M (number of synthetic data points)"}
_ALGORITHM2 = {
    "algorithm2": ("Algorithm 2, greedy and Lasso", "--", "s"),
    "algorithm2_joint": ("Algorithm 2, joint", "-.", "D"),
}
_SCENARIO = {"figure1": "Publishable subset", "figure2": "No publishable subset"}


def _draw_panel(axes, result: dict[str, Any]) -> None:
    num_points, curves = result["num_points"], result["curves"]
    published = published_panel(result)
    axes.loglog(num_points, curves["projection"], color="black", linestyle=":", label="projection distance")
    axes.loglog(
        num_points, curves["uniform_baseline"], color="grey", linestyle="-.", label="baseline (uniform weights)"
    )
    for colour, (epsilon, curve) in zip(itertools.cycle(_COLOURS), curves["algorithm1"].items(), strict=False):
        axes.loglog(num_points, curve["rms"], color=colour, label=f"Algorithm 1, ε = {epsilon}")
        axes.fill_between(num_points, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
        if published and epsilon in published["algorithm1"]:
            axes.plot(
                published["num_points"], published["algorithm1"][epsilon], ".", color=colour, markersize=3, alpha=0.7
            )
    for name, (label, line, marker) in _ALGORITHM2.items():
        for colour, (epsilon, curve) in zip(itertools.cycle(_COLOURS), curves.get(name, {}).items(), strict=False):
            own = curves[f"{name}_num_points"]
            label_here = label if colour == _COLOURS[0] else None
            axes.loglog(own, curve["rms"], line, color=colour, marker=marker, markersize=3)
            axes.plot([], [], line, color="grey", marker=marker, markersize=3, label=label_here)
            axes.fill_between(own, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
            if published and epsilon in published.get(name, {}):
                axes.plot(published[f"{name}_num_points"], published[name][epsilon], "x", color=colour, markersize=4)
    for colour, curve in zip(itertools.cycle(_COLOURS), curves.get("improved", {}).values(), strict=False):
        label_here = "improved (kme_jax's default)" if colour == _COLOURS[0] else None
        own = curves["improved_num_points"]
        axes.loglog(own, curve["rms"], color=colour, marker="*", markersize=8, linewidth=2.5)
        axes.plot([], [], color="grey", marker="*", markersize=8, linewidth=2.5, label=label_here)
    if published:
        axes.plot([], [], ".", color="grey", markersize=3, label="algorithm 1 as published (one draw)")
    if published and "algorithm2" in curves:
        axes.plot([], [], "x", color="grey", markersize=4, label="algorithm 2 as published (one draw)")
    axes.set_title(f"D = {result['config']['dim']}")
    axes.set_xlabel(_POINTS_LABEL[result["experiment"]])
    axes.grid(True, which="major", alpha=0.3)
    axes.set_xlim(num_points[0], num_points[-1])


def _save(figure, outputs: Sequence[pathlib.Path]) -> pathlib.Path:
    """Writes the pictures, their format by suffix, and closes the figure: the first picture."""
    for output in outputs:
        with common.atomic_path(pathlib.Path(output)) as temporary:
            figure.savefig(temporary, dpi=160, metadata={"CreationDate": None} if temporary.suffix == ".pdf" else None)
    plt.close(figure)
    return outputs[0]


def draw_mixture_figure(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws panels of figure 1 or 2 side by side.

    Args:
      inputs: JSON results, one per panel.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    figure, all_axes = plt.subplots(
        1,
        len(results),
        figsize=(max(5.2 * len(results) + 0.3, 7), 4.9),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axes, result in zip(all_axes[0], results, strict=True):
        _draw_panel(axes, result)
    all_axes[0, 0].set_ylabel(r"RKHS distance $\|\hat\mu_X - \cdot\|$")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    first = results[0]
    config = first["config"]
    figure.suptitle(
        f"{_SCENARIO[first['experiment']]}, N = {first['num_rows']}, δ = {config['delta']:g}, "
        f"{config['calibration']} calibration, {config['diameter']} diameter\n"
        f"root mean square and 0.5–99.5 % of {config['num_noise_draws']} draws"
        + (f" (algorithm 2: range of {config['num_repeats']} repeats)" if "algorithm2" in first["curves"] else ""),
        fontsize=9,
    )
    return _save(figure, outputs)


def draw_benchmark(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws results of experiments.benchmark: pairs per second (or seconds, where pairs are not the work), ours beside
    peers and ceiling. Devices are side by side, with one axis.

    Args:
      inputs: JSON results, one for each device.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    groups = []  # (what is shown, label, {label of a task: contenders on any device}, {(task, contender): [value]})
    for key, label in (("pairs_per_second", "pairs per second (more is better)"), ("median_seconds", "seconds")):
        tasks: dict[str, list[str]] = {}
        values: dict[tuple[str, str], list[float | None]] = {}
        for column, result in enumerate(results):
            for record in result["records"]:
                if (key == "median_seconds") != (record["pairs"] is None):
                    continue
                # N differs between devices, and is in the title; rows on the device are a contender of their own.
                sizes = [f"{k} = {v}" for k, v in record["sizes"].items() if k != "N"]
                task = ", ".join([record["case"], *sizes, record["dtype"]])
                suffix = ", rows on the device" if record["rows_on_device"] else ""
                contenders = {f"kme_jax{suffix}": record}
                contenders |= {f"{name}{suffix}": peer for name, peer in record["peers"].items() if peer["seconds"]}
                contenders |= {"exp alone": record["ceiling"]} if record["ceiling"] else {}
                for name, timing in contenders.items():
                    if name not in tasks.setdefault(task, []):
                        tasks[task].append(name)
                    values.setdefault((task, name), [None] * len(results))[column] = timing[key]
        if tasks:
            groups.append((label, tasks, values))
    names = dict.fromkeys(name.partition(",")[0] for _, tasks, _ in groups for some in tasks.values() for name in some)
    others = [name for name in names if name not in ("kme_jax", "exp alone")]
    colours = {"kme_jax": _COLOURS[0], "exp alone": "#999999"} | dict(zip(others, _COLOURS[1:], strict=False))
    heights = [sum(len(some) + 1 for some in tasks.values()) for _, tasks, _ in groups]
    figure, all_axes = plt.subplots(
        len(groups),
        len(results),
        figsize=(3.2 + 5.4 * len(results), 0.2 * sum(heights) + 1.1 * len(groups) + 0.5),
        height_ratios=[height + 1 for height in heights],
        squeeze=False,
        sharex="row",
        sharey="row",
        layout="constrained",
    )
    for row, (label, tasks, values) in zip(all_axes, groups, strict=True):
        position, ticks = 0.0, []
        for task, some in tasks.items():
            ticks.append((position + (len(some) - 1) / 2, task.replace(", ", "\n", 1)))
            for name in some:
                for axes, value in zip(row, values[task, name], strict=True):
                    if value is not None:
                        axes.barh(position, value, 0.85, color=colours[name.partition(",")[0]])
                        axes.annotate(f" {value:.2g}  {name}", (value, position), va="center", fontsize=6.5)
                position += 1
            position += 1
        row[0].set_yticks([tick for tick, _ in ticks], [text for _, text in ticks], fontsize=7.5)
        shown = [value for some in values.values() for value in some if value is not None]
        row[0].set_xscale("log")
        row[0].set_xlim(min(shown) / 3, max(shown) * (max(shown) / min(shown)) ** 0.45)
        row[0].set_ylim(position - 1, -1)
        for axes in row:
            axes.set_xlabel(label)
            axes.grid(True, axis="x", alpha=0.3)
            axes.set_axisbelow(True)
    for axes, result in zip(all_axes[0], results, strict=True):
        where, config = result["environment"], result["config"]
        on = "" if where["device"].startswith("cpu") else f"{where['processor']}, "
        axes.set_title(
            f"{where['device']}\n{on}{where['usable_cores']} cores; N = {config['num_rows']}, jax {where['jax']}",
            fontsize=9,
        )
    return _save(figure, outputs)


def draw_accuracy(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.accuracy: Δ against M, a panel for each D.

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
    figure, all_axes = plt.subplots(
        1, len(dims), figsize=(max(5.2 * len(dims) + 0.3, 7), 4.6), squeeze=False, sharey=True, layout="constrained"
    )
    for axes, dim in zip(all_axes[0], dims, strict=True):
        cells = [cell for cell in result["cells"] if cell["dim"] == dim]
        sizes = sorted({cell["num_points"] for cell in cells})
        uniform = {cell["num_points"]: cell["uniform"] for cell in cells}
        axes.loglog(sizes, [uniform[m] for m in sizes], color="grey", linestyle="-.", label="uniform weights")
        epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
        for colour, epsilon in zip(itertools.cycle(_COLOURS), epsilons, strict=False):
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
        axes.set_xlabel(_POINTS_LABEL["figure1"])
        axes.grid(True, which="major", alpha=0.3)
    all_axes[0, 0].set_ylabel(r"RKHS distance $\|\hat\mu_X - \cdot\|$")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    config = result["config"]
    figure.suptitle(
        f"Publishable subset, N = {config['num_rows']}, δ = {config['delta']:g}, "
        f"means of {config['num_draws']} draws ({config['num_draws_large']} for M > 1000)",
        fontsize=9,
    )
    return _save(figure, outputs)


def draw_audit(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.audit: lower bounds found by attack, over what is claimed.

    Args:
      path: the JSON result.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    result = json.loads(pathlib.Path(path).read_text())
    cells = [cell for cell in result["cells"] if cell["measure"] != "violations"]
    figure, axes = plt.subplots(figsize=(8, 0.24 * len(cells) + 1.4), layout="constrained")
    for position, cell in enumerate(cells):
        colour = _COLOURS[1] if cell["should_be_violated"] else _COLOURS[0]
        bound, estimate = (cell[name] / cell["claim"] for name in ("lower_bound", "estimate"))
        axes.plot(bound, position, ">", color=colour)
        axes.plot([bound, estimate], [position, position], color=colour, linewidth=1)
    axes.axvline(1, color="black", linewidth=1)
    axes.plot([], [], ">", color=_COLOURS[0], label="lower bound (99 %), and estimate")
    axes.plot([], [], ">", color=_COLOURS[1], label="broken on purpose")
    labels = [f"{cell['mechanism']}, {cell['map']}, ε = {cell['epsilon']:g}" for cell in cells]
    axes.set_yticks(range(len(cells)), labels, fontsize=8)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("found by attack / claimed (beyond 1 the claim is wrong)")
    axes.grid(True, axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return _save(figure, outputs)


def draw_tables(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws results of experiments.tables against ε: errors of marginals, and areas under the curve. Controls are
    horizontal lines, where they tell something: an error of 0 and an area of about 0.5 are left out.

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
    figure, all_axes = plt.subplots(
        len(results), 2, figsize=(10, 3.4 * len(results) + 1), squeeze=False, layout="constrained"
    )
    for row, result in zip(all_axes, results, strict=True):
        releases = sorted(
            (line for line in result["summary"] if line["epsilon"] is not None), key=lambda line: line["epsilon"]
        )
        for axes, (title, metrics, controls) in zip(row, panels, strict=True):
            for colour, (metric, label) in zip(_COLOURS, metrics.items(), strict=False):
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
                for line in result["summary"]:
                    if line["source"] in controls and line["mean"][metric] > 0:
                        axes.axhline(line["mean"][metric], color=colour, linestyle=styles[line["source"]], linewidth=1)
            axes.set_xscale("log")
            axes.set_xlabel("ε")
            axes.set_ylabel(title)
            axes.set_title(f"{result['config']['dataset']}, δ = {releases[0]['delta']:g}", fontsize=10)
            axes.grid(True, alpha=0.3)
        row[0].set_yscale("log")
    handles = [handle for axes in all_axes[0] for handle in axes.get_legend_handles_labels()[0]]
    handles += [plt.Line2D([], [], color="grey", linestyle=style, label=name) for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    config = results[0]["config"]
    noise = "secure" if config["secure"] else "simulated"
    figure.suptitle(
        f"Releases of tables, {noise} noise: mean and standard error, seeds: {config['num_seeds']}",
        fontsize=9,
    )
    return _save(figure, outputs)


def draw_gaussians(path: pathlib.Path, *outputs: pathlib.Path) -> pathlib.Path:
    """Draws a result of experiments.merf_gaussians: samples of its first seed, beside real rows ([H] figure 1).

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
    figure, all_axes = plt.subplots(
        1, len(cells), figsize=(4 * len(cells), 4.6), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    for axes, cell in zip(all_axes[0], cells, strict=True):
        for label, colour in zip(range(5), _COLOURS, strict=False):
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
    return _save(figure, outputs)


def draw_images(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws sample sheets of experiments.merf_images ([H] figure 2): ten images of each class, for each data set,
    of "published" and "improved" and each ε. Real ones are not shown: they are no part of a result.

    Args:
      inputs: JSON results, one for each data set.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    sheets = []
    for result in results:
        found = []
        drawn = [cell for cell in result["cells"] if "sheet" in cell]
        main = [cell for cell in drawn if cell["variant"] in ("improved", "published")]
        for cell in main or drawn:  # steps of the ablation only if there is nothing else
            title = f"{cell['variant']}, ε = {cell['epsilon']:g}"
            found.append((title, cell["sheet"]))
            if "sheet_without_noise" in cell:
                found.append((f"{title}\nwithout noise in pixels", cell["sheet_without_noise"]))
        sheets.append(found)
    columns = max(map(len, sheets))
    figure, all_axes = plt.subplots(
        len(sheets), columns, figsize=(3 * columns, 3.3 * len(sheets)), squeeze=False, layout="constrained"
    )
    for row, result, found in zip(all_axes, results, sheets, strict=True):
        for axes in row:
            axes.axis("off")
        for axes, (title, sheet) in zip(row, found, strict=False):
            pixels = images.unpack(sheet)
            side = pixels.shape[1]
            grid = pixels.reshape(10, -1, side, side).transpose(0, 2, 1, 3).reshape(10 * side, -1)
            axes.imshow(grid, cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(f"{images.TITLES[result['config']['dataset']]}: {title}", fontsize=9)
    figure.suptitle(f"DP-MERF, δ = {results[0]['config']['delta']:g}, seed 0; a row for each class", fontsize=9)
    return _save(figure, outputs)


def _define_flags() -> None:
    flags.DEFINE_list("input", None, "JSON results of figure1 or figure2, one per panel.", required=True)
    flags.DEFINE_string("output", None, "Picture to write: .png, .pdf or .svg.", required=True)


def _main() -> None:
    output = pathlib.Path(flags.FLAGS.output)
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise common.InputError(f"--output={output}: the suffix must be .png, .pdf or .svg")
    for path in flags.FLAGS.input:
        with common.input_errors(f"--input={path}: "):
            result = json.loads(pathlib.Path(path).read_text())
        if not isinstance(result, dict) or result.get("experiment") not in _POINTS_LABEL:
            raise common.InputError(f"--input={path}: not a result of experiments.figure1 or experiments.figure2")
    common.check_output_dir(output.parent)
    draw_mixture_figure([pathlib.Path(path) for path in flags.FLAGS.input], output)
    print(f"wrote {output}")


if __name__ == "__main__":
    common.run_main(_define_flags, _main)
