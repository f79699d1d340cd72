"""Computes and draws all panels of all figures."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import sys

import jax

from experiments.common.progress import Stages
from experiments.common.results import check_output_dir
from experiments.figures import panel, plot
from experiments.figures.catalogue import FIGURES
from experiments.figures.config import MixtureConfig, load_rows
from kme_jax.nonprivate import Reference

DIMS = (2, 5)
_BYTES_OF_A_PANEL = 12 * 2**30  # of an accelerator: two Lasso problems at a time


def quick_config(config: MixtureConfig) -> MixtureConfig:
    """The configuration with the quick sizes of ``MixtureConfig``, and the same folder."""
    return config.quick_run("output_dir")


def num_at_once() -> int:
    """How many panels are computed side by side: one on a CPU, which has no idle core. A panel on a GPU waits for the
    host most of the time, so as many run as its memory has room for."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return 1
    return max(1, int((device.memory_stats() or {}).get("bytes_limit", 0)) // _BYTES_OF_A_PANEL)


def run(config: MixtureConfig) -> dict[str, list[pathlib.Path]]:
    """Computes and draws all panels.

    Args:
      config: of all panels, but for D.

    Returns:
      {figure: paths of its panels' JSON}.
    """
    folder = check_output_dir(config.output_dir)
    paths: dict[str, list[pathlib.Path]] = {name: [] for name in FIGURES}
    references: dict[int, Reference] = {}  # all figures of one D have the same rows and kernel
    configs = {dim: dataclasses.replace(config, dim=dim) for dim in DIMS}
    for dim, config_of_panel in configs.items():
        config_of_panel.validate()
        rows, stages = load_rows(config_of_panel), Stages(f"rows of all figures, D = {dim}")
        references[dim] = panel.private_reference(config_of_panel, rows, stages)
    panels = [(figure, dim) for figure in FIGURES.values() for dim in DIMS]

    def run_one(number: int) -> pathlib.Path:
        figure, dim = panels[number]
        print(f"panel {number + 1} of {len(panels)}: {figure.name}, D = {dim}", file=sys.stderr)
        return panel.write_panel(panel.run_panel(figure, configs[dim], references[dim]), config.output_dir)

    with concurrent.futures.ThreadPoolExecutor(min(num_at_once(), len(panels))) as pool:
        for (figure, _), path in zip(panels, pool.map(run_one, range(len(panels))), strict=True):
            paths[figure.name].append(path)
    for name, inputs in paths.items():
        plot.draw(FIGURES[name], inputs, folder / f"{name}.png", folder / f"{name}.pdf")
    return paths
