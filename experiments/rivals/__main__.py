"""DP-GAN and DP-CGAN beside our releases, on MNIST, FashionMNIST and Adult, with the same classifiers and seeds.

python -m experiments.rivals --data_dir=FOLDER                       # three data sets, one seed
python -m experiments.rivals --data_dir=FOLDER --datasets=adult --num_seeds=3

It needs the extra "experiments". Each result is written when it is done; the same command continues a run that was
interrupted.
"""

from __future__ import annotations

import pathlib

from experiments.common.program import run_main
from experiments.rivals.config import RivalsConfig
from experiments.rivals.plot import draw
from experiments.rivals.report import markdown
from experiments.rivals.run import result_path, run


def main(config: RivalsConfig) -> None:
    """Runs the experiment, prints its tables and draws it."""
    results = run(config)
    print("\n\n".join(map(markdown, results.values())))
    paths = [result_path(config, name) for name in results]
    written = [*paths]
    if any("sheet" in cell for result in results.values() for cell in result["cells"]):
        written.append(draw(paths, pathlib.Path(config.output_dir) / "rivals.png"))
    print(f"wrote {', '.join(map(str, written))}")


if __name__ == "__main__":
    run_main(main, RivalsConfig)
