"""Regenerates every committed figure, and prints the achieved distances beside the paper's.

python -m experiments.figures            # full size, into figures/
python -m experiments.figures --quick    # a tenth of the size, into results/quick/
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time

from experiments.common.compilation import compile_seconds
from experiments.common.config import Config, flag
from experiments.common.errors import InputError
from experiments.common.processes import peak_memory
from experiments.common.program import run_main
from experiments.common.results import REPOSITORY
from experiments.figures import report
from experiments.figures.all_panels import quick_config, run
from experiments.figures.config import MixtureConfig


@dataclasses.dataclass(frozen=True)
class FiguresConfig(Config):
    """Configuration: one field per flag."""

    quick: bool = flag(False, "A tenth of the published size, in a minute or two, never into figures/.")
    output_dir: str | None = flag(None, "Where to write. Default: figures/, or results/quick/ with --quick.")

    def folder(self) -> pathlib.Path:
        """Where results and pictures are written."""
        return pathlib.Path(self.output_dir or REPOSITORY / ("results/quick" if self.quick else "figures"))

    def validate(self) -> None:
        """Checks the flags, see ``Config``."""
        if self.quick and self.folder().resolve() == (REPOSITORY / "figures").resolve():
            raise InputError("--quick never writes into figures/: give another --output_dir")


def main(config: FiguresConfig) -> None:
    """Computes and draws all panels, and prints tables."""
    panels = MixtureConfig(output_dir=str(config.folder()))
    started = time.perf_counter()
    with compile_seconds() as compiling:
        paths = run(quick_config(panels) if config.quick else panels)
    seconds = time.perf_counter() - started
    results = [json.loads(path.read_text()) for of_figure in paths.values() for path in of_figure]
    print(report.table(results), report.best_table(results), sep="\n\n")
    print(report.summary(results))
    print(
        f"wrote {' and '.join(paths)} (.png, .pdf) and their JSON to {config.folder()}/ in {seconds:.0f} s, with "
        f"{sum(compiling):.0f} s of compilation in all threads; "
        f"at most {peak_memory() / 2**30:.1f} GiB of host memory"
    )


if __name__ == "__main__":
    run_main(main, FiguresConfig)
