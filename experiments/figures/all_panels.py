"""Computes and draws all panels of all figures."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from experiments.common.progress import Stages
from experiments.common.results import check_output_dir
from experiments.figures import panel, plot
from experiments.figures.catalogue import FIGURES
from experiments.figures.config import MixtureConfig, load_rows
from kme_jax.nonprivate import Reference

DIMS = (2, 5)


def quick_config(config: MixtureConfig) -> MixtureConfig:
    """The configuration with the quick sizes of ``MixtureConfig``, and the same folder."""
    return config.quick_run("output_dir")


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
    panels = [(figure, dim) for figure in FIGURES.values() for dim in DIMS]
    for number, (figure, dim) in enumerate(panels, 1):
        print(f"panel {number} of {len(panels)}: {figure.name}, D = {dim}", file=sys.stderr)
        config_of_panel = dataclasses.replace(config, dim=dim)
        if dim not in references:
            config_of_panel.validate()
            rows, stages = load_rows(config_of_panel), Stages(f"rows of all figures, D = {dim}")
            references[dim] = panel.private_reference(config_of_panel, rows, stages)
        result = panel.run_panel(figure, config_of_panel, references[dim])
        paths[figure.name].append(panel.write_panel(result, config.output_dir))
    for name, inputs in paths.items():
        plot.draw(FIGURES[name], inputs, folder / f"{name}.png", folder / f"{name}.pdf")
    return paths
