"""Measures how much tight noise and better post-processing reduce Δ, compared with the published algorithms.

python -m experiments.accuracy                                # everything, about 25 minutes on two cores
python -m experiments.accuracy --parts=proposal --dims=5      # only where nothing but a proposal is public
python -m experiments.accuracy --dims=2 --sizes=100,1000      # fewer points
python -m experiments.accuracy --num_rows=20000 --dims=3 --gamma_scale=4 --data_seed=1

There are three parts: "subset", where rows are public (figure 1), "proposal", where no row is public (figure 2), and
"robustness", which repeats both for other mixtures, sizes, dimensions and bandwidths. See experiments.accuracy.subset,
.proposal and .robustness. Results go to <output_dir>/accuracy.json, accuracy_proposal.json and
accuracy_robustness.json. An interrupted run continues if flags, commit and machine are the same.
"""

from __future__ import annotations

import pathlib

from experiments.accuracy.config import AccuracyConfig
from experiments.common.program import run_main


def main(config: AccuracyConfig) -> None:
    """Runs the parts of the configuration, and prints their tables."""
    from experiments.accuracy import plot, proposal, robustness, subset

    folder = pathlib.Path(config.output_dir)
    if "subset" in config.parts:
        text = subset.table(subset.run(config))
        path = folder / "accuracy.json"
        print(f"{text}\nwrote {path} and {plot.draw(path, path.with_suffix('.png'))}")
    if "proposal" in config.parts:
        result = proposal.run(config)
        print(f"mean Δ where only a proposal is public\n{proposal.markdown(result)}")
        print(f"wrote {folder / 'accuracy_proposal.json'}")
    if "robustness" in config.parts:
        result = robustness.run(config)
        print(f"how many times closer than the published algorithm 1\n{robustness.markdown(result)}")
        print(f"wrote {folder / 'accuracy_robustness.json'}")


if __name__ == "__main__":
    run_main(main, AccuracyConfig)
