"""Folders that commands read and write."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from kme_jax.cli.printing import progress_bar

RELEASES = ("release", "table release")
"""Kinds of releases with synthetic rows in them: points and tables."""
GENERATOR = "generator"
"""The kind of a released generator."""


def real_path(path: str | os.PathLike) -> pathlib.Path:
    """The path without links. A circle of links stays in the path: opening it raises the error."""
    return pathlib.Path(os.path.realpath(path))


def is_of_points(artifact: Any) -> bool:
    """Whether a release or a measurement is of points, and not of a table or a generator."""
    from kme_jax.points.release import Measurement, Release

    return isinstance(artifact, (Measurement, Release))


def synthesise_and_save(measurement: Any, sizes: Mapping[str, int | None], seed: int, output: pathlib.Path) -> Any:
    """Makes the synthetic data of a measurement, with a progress bar, and writes the release.

    Args:
      measurement: of points or of a table.
      sizes: arguments of its ``synthesise``; None stands for a default.
      seed: of the synthesis.
      output: a new folder.

    Returns:
      The release.
    """
    chosen_sizes = {name: size for name, size in sizes.items() if size is not None}
    with progress_bar("synthesis") as progress:
        release = measurement.synthesise(**chosen_sizes, seed=seed, progress=progress)
    release.save(output)
    return release
