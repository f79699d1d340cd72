"""Figure 1 of Balog et al. 2018: a publishable subset. Algorithm 1 reweights the first M rows, which are public.

python -m experiments.figure1 --dim=2
python -m experiments.figure1 --dim=5
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import common, curves
from kme_jax.nonprivate import Reference


def _first_rows(config: common.MixtureConfig, rows: np.ndarray) -> np.ndarray:
    if config.max_points > len(rows):
        raise common.InputError(f"--max_points={config.max_points} is more than the {len(rows)} private rows there are")
    return rows[: config.max_points]


def run(config: common.MixtureConfig, reference: Reference | None = None) -> dict[str, Any]:
    """One panel: see :func:`experiments.curves.run_panel`."""
    return curves.run_panel("figure1", config, _first_rows, points_are_rows=True, reference=reference)


if __name__ == "__main__":
    common.run_main(common.define_mixture_flags, lambda: curves.main(run))
