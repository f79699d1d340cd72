"""What a figure of Balog et al. 2018 is: which points are public, and what its picture says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.figures.config import MixtureConfig


@dataclasses.dataclass(frozen=True)
class MixtureFigure:
    """A figure of distances against the number of public points.

    Attributes:
      name: of the experiment and of its files.
      scenario: title of the picture.
      points_label: label of the horizontal axis.
      public_points: (config, private rows [N, D]) -> public points [max M, D]. It raises InputError if there are too
        few.
      points_are_rows: whether the public points are private rows (figure 1). Otherwise algorithm 2 has curves too, for
        which the points are starts and candidates; and `improved` gets the points' proposal instead of the points.
    """

    name: str
    scenario: str
    points_label: str
    public_points: Callable[[MixtureConfig, np.ndarray], np.ndarray]
    points_are_rows: bool
