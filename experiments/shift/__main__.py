"""Measures releases whose public rows are not like the private ones, beside releases without public rows.

python -m experiments.shift                            # everything, 7 minutes of processor time
python -m experiments.shift --parts=biased --dims=2    # only a biased sample, without the line of the proposal

Private rows are the mixture of the figures. Public rows are fresh ones: a biased sample of the same population, or a
sample of a population whose clusters have moved. The *break-even* is the strength of the shift from which on a proposal
alone gives a smaller error than the public rows. Noise is simulated. See experiments.shift.populations and .measure.

Results go to <output_dir>/shift.json and shift.png. An interrupted run continues.
"""

from __future__ import annotations

import pathlib

from experiments.common.program import run_main
from experiments.shift.config import ShiftConfig


def main(config: ShiftConfig) -> None:
    """Runs the experiment, draws its picture and prints its tables."""
    from experiments.shift import measure, plot, report

    result, path = measure.run(config), pathlib.Path(config.output_dir) / "shift"
    picture = plot.draw(result, path.with_suffix(".png"))
    print(f"{report.markdown(result)}\n\n{report.break_even_markdown(result)}\nwrote {path}.json and {picture}")


if __name__ == "__main__":
    run_main(main, ShiftConfig)
