"""Figure 2 of Balog et al. 2018: no publishable subset. Algorithms 1 and 2 from points of a public proposal.

python -m experiments.figure2 --dim=2
python -m experiments.figure2 --dim=5
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import common, curves
from experiments.mixture import proposal
from kme_jax.nonprivate import Reference


def _proposal(config: common.MixtureConfig, rows: np.ndarray) -> np.ndarray:
    del rows  # the points must not depend on them
    return proposal(config.max_points, config.dim, scale=config.proposal_scale, seed=config.data_seed)


def run(config: common.MixtureConfig, reference: Reference | None = None) -> dict[str, Any]:
    """One panel: see :func:`experiments.curves.run_panel`."""
    return curves.run_panel("figure2", config, _proposal, points_are_rows=False, reference=reference)


if __name__ == "__main__":
    common.run_main(common.define_mixture_flags, lambda: curves.main(run))
