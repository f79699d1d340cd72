"""A panel of a mixture figure: its result and its program."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.common.progress import Stages
from experiments.common.results import atomic_path, check_output_dir, environment, write_json
from experiments.figures import plot
from experiments.figures.algorithm1 import algorithm1_curves
from experiments.figures.algorithm2 import algorithm2_curves
from experiments.figures.config import MixtureConfig, load_rows
from experiments.figures.definition import MixtureFigure
from experiments.figures.improved import improved_from_proposal
from kme_jax.nonprivate import Reference


def private_reference(config: MixtureConfig, rows: np.ndarray, stages: Stages) -> Reference:
    """The private rows [N, D] of a configuration with the norm of their embedding. All figures of one D share it."""
    with stages.stage("norm of the embedding of all rows") as progress:
        return Reference.from_rows(config.kernel, rows, progress=progress)


def run_panel(figure: MixtureFigure, config: MixtureConfig, reference: Reference | None = None) -> dict[str, Any]:
    """Computes one panel of a figure.

    Args:
      figure: the figure.
      config: its configuration.
      reference: :func:`private_reference` of this configuration, if it has been computed already.

    Returns:
      The result. Its "samples" are the contents of an .npz file with the points and weights behind the checks;
      :func:`write_panel` writes them to a file of their own.

    Raises:
      InputError: if the configuration or the data are invalid. It is raised before long work.
    """
    config.validate()
    check_output_dir(config.output_dir)
    rows = load_rows(config) if reference is None else reference.rows
    points = figure.public_points(config, rows)
    stages = Stages(f"{figure.name}, D = {config.dim}")
    if reference is None:
        reference = private_reference(config, rows, stages)
    body = algorithm1_curves(config, reference, points, stages, with_improved=figure.points_are_rows)
    if not figure.points_are_rows:
        body["curves"] |= algorithm2_curves(config, rows, points, body["squared_norm"], stages)
        body["curves"] |= improved_from_proposal(config, rows, body["squared_norm"], stages)
    return {
        "experiment": figure.name,
        "config": config.settings() | {"gamma": config.kernel.gamma},
        "environment": environment(),
        "wall_seconds": stages.total_seconds,
        "stage_seconds": stages.seconds,
        **body,
    }


def write_panel(result: dict[str, Any], output_dir: str) -> pathlib.Path:
    """Writes ``<experiment>_D<dim>.json`` and ``<experiment>_D<dim>_samples.npz``, and returns the path of the JSON."""
    path = pathlib.Path(output_dir) / f"{result['experiment']}_D{result['config']['dim']}.json"
    with atomic_path(path.with_name(f"{path.stem}_samples.npz")) as temporary:
        temporary.write_bytes(result["samples"])
    write_json(path, {name: value for name, value in result.items() if name != "samples"})
    return path


def main(figure: MixtureFigure, config: MixtureConfig) -> None:
    """The program of one panel: computes it, writes its JSON and draws it."""
    path = write_panel(run_panel(figure, config), config.output_dir)
    picture = plot.draw(figure, [path], path.with_suffix(".png"))
    print(f"wrote {path} and {picture}")
