"""Figure 1 of Balog et al. 2018: a publishable subset. Algorithm 1 reweights the first M rows, which are public.

python -m experiments.figure1 --dim=2
python -m experiments.figure1 --dim=5
"""

from __future__ import annotations

import numpy as np

from experiments.common.errors import InputError
from experiments.common.program import run_main
from experiments.figures import panel
from experiments.figures.config import MixtureConfig
from experiments.figures.definition import MixtureFigure


def _first_rows(config: MixtureConfig, rows: np.ndarray) -> np.ndarray:
    if config.max_points > len(rows):
        raise InputError(f"--max_points={config.max_points} is more than the {len(rows)} private rows there are")
    return rows[: config.max_points]


FIGURE = MixtureFigure(
    name="figure1",
    scenario="Publishable subset",
    points_label="M (number of public data points)",
    public_points=_first_rows,
    points_are_rows=True,
)

if __name__ == "__main__":
    run_main(lambda config: panel.main(FIGURE, config), MixtureConfig)
