"""Measures how fast errors decay, beside the rates of Balog et al. 2018 (propositions 5, 6 and 8, theorems 2 and 11).

python -m experiments.rates                                # all claims, 10 to 15 minutes on two cores
python -m experiments.rates --parts=public_rows --dims=2   # only proposition 6 and theorem 11

The propositions are upper bounds. For each, the error that it bounds is measured against the variable of its rate, with
the others fixed. An error decays *faster* than its bound, or *slower*, if the one-sided 95 % limit of its slope on
logarithmic axes says so; it is *as fast* if neither holds. Noise is simulated. The population is the mixture of the
figures, whose embedding is known exactly, see experiments.rates.population. `improved` with a proposal is measured for
D of at most 2, because it takes long.

Results go to <output_dir>/rates.json and rates.png. An interrupted run continues.
"""

from __future__ import annotations

import pathlib

from experiments.common.program import run_main
from experiments.rates.config import RatesConfig


def main(config: RatesConfig) -> None:
    """Runs the experiment, draws its picture and prints its table."""
    from experiments.rates import plot, run, slopes

    result, path = run.run(config), pathlib.Path(config.output_dir) / "rates"
    picture = plot.draw(result, path.with_suffix(".png"))
    print(f"{slopes.markdown(result)}\nwrote {path}.json and {picture}")


if __name__ == "__main__":
    run_main(main, RatesConfig)
