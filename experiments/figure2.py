"""Figure 2 of Balog et al. 2018: no publishable subset. Algorithms 1 and 2 start from points of a public proposal.

python -m experiments.figure2 --dim=2
python -m experiments.figure2 --dim=5
"""

from __future__ import annotations

import numpy as np

from experiments.common.mixture import proposal
from experiments.common.program import run_main
from experiments.figures import panel
from experiments.figures.config import MixtureConfig
from experiments.figures.definition import MixtureFigure


def _proposal(config: MixtureConfig, rows: np.ndarray) -> np.ndarray:
    del rows  # the points must not depend on them
    return proposal(config.max_points, config.dim, scale=config.proposal_scale, seed=config.data_seed)


FIGURE = MixtureFigure(
    name="figure2",
    scenario="No publishable subset",
    points_label="M (number of synthetic data points)",
    public_points=_proposal,
    points_are_rows=False,
)

if __name__ == "__main__":
    run_main(lambda config: panel.main(FIGURE, config), MixtureConfig)
