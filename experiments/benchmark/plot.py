"""The picture of the benchmark."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from experiments.common.plots import COLOURS, pyplot, save


def draw(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws results of experiments.benchmark: pairs per second, or seconds of tasks without pairs, for the library, its
    peers and the ceiling. Devices are side by side, with one axis.

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
    names = dict.fromkeys(
        name.partition(",")[0] for _, tasks, _ in groups for contenders in tasks.values() for name in contenders
    )
    others = [name for name in names if name not in ("kme_jax", "exp alone")]
    colours = {"kme_jax": COLOURS[0], "exp alone": "#999999"} | dict(zip(others, COLOURS[1:], strict=False))
    heights = [sum(len(contenders) + 1 for contenders in tasks.values()) for _, tasks, _ in groups]
    figure, all_axes = pyplot().subplots(
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
        for task, contenders in tasks.items():
            ticks.append((position + (len(contenders) - 1) / 2, task.replace(", ", "\n", 1)))
            for name in contenders:
                for axes, value in zip(row, values[task, name], strict=True):
                    if value is not None:
                        axes.barh(position, value, 0.85, color=colours[name.partition(",")[0]])
                        axes.annotate(f" {value:.2g}  {name}", (value, position), va="center", fontsize=6.5)
                position += 1
            position += 1
        row[0].set_yticks([tick for tick, _ in ticks], [text for _, text in ticks], fontsize=7.5)
        shown = [value for of_devices in values.values() for value in of_devices if value is not None]
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
    return save(figure, outputs)
