"""Draws figure 1 or 2 again from JSON results.

python -m experiments.figures.redraw --input=results/figure1_D2.json,results/figure1_D5.json --output=figure1.pdf
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

from experiments.common.config import Config, flag
from experiments.common.errors import InputError, input_errors
from experiments.common.program import run_main
from experiments.common.results import check_output_dir
from experiments.figures import plot
from experiments.figures.catalogue import FIGURES


@dataclasses.dataclass(frozen=True)
class RedrawConfig(Config):
    """Configuration: one field per flag."""

    input: tuple[str, ...] = flag((), "JSON results of one figure, one for each panel.")
    output: str = flag("", "Picture to write: .png, .pdf or .svg.")

    def validate(self) -> None:
        """Checks the flags, see ``Config``."""
        if not self.input:
            raise InputError("--input is missing: give the JSON results of one figure, separated by commas")
        if pathlib.Path(self.output).suffix not in (".png", ".pdf", ".svg"):
            raise InputError(f"--output={self.output}: the suffix must be .png, .pdf or .svg")


def main(config: RedrawConfig) -> None:
    """Draws the picture."""
    output = pathlib.Path(config.output)
    names = set()
    for path in config.input:
        with input_errors(f"--input={path}: "):
            result = json.loads(pathlib.Path(path).read_text())
        name = result.get("experiment") if isinstance(result, dict) else None
        if name not in FIGURES:
            raise InputError(f"--input={path}: not a result of {' or '.join(f'experiments.{n}' for n in FIGURES)}")
        names.add(name)
    if len(names) > 1:
        raise InputError(f"--input: the results are of several figures: {', '.join(sorted(names))}")
    check_output_dir(output.parent)
    plot.draw(FIGURES[names.pop()], [pathlib.Path(path) for path in config.input], output)
    print(f"wrote {output}")


if __name__ == "__main__":
    run_main(main, RedrawConfig)
