"""Pictures of results. Reads JSON, computes nothing.

python -m experiments.plots --input=results/figure1_D2.json,results/figure1_D5.json --output=figure1.pdf
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from absl import flags

from experiments import common
from experiments.published import published_panel

# Blue, orange, green of the colour-blind-safe Okabe-Ito palette, then the rest of it, for ε from small to large.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_POINTS_LABEL = {"figure1": "M (number of public data points)", "figure2": "M (number of synthetic data points)"}
_SCENARIO = {"figure1": "Publishable subset", "figure2": "No publishable subset"}


def _draw_panel(axes, result: dict[str, Any]) -> None:
    num_points, curves = result["num_points"], result["curves"]
    published = published_panel(result)
    axes.loglog(num_points, curves["projection"], color="black", linestyle=":", label="projection distance")
    axes.loglog(
        num_points, curves["uniform_baseline"], color="grey", linestyle="-.", label="baseline (uniform weights)"
    )
    for colour, (epsilon, curve) in zip(itertools.cycle(_COLOURS), curves["algorithm1"].items(), strict=False):
        axes.loglog(num_points, curve["rms"], color=colour, label=f"Algorithm 1, ε = {epsilon}")
        axes.fill_between(num_points, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
        if published and epsilon in published["algorithm1"]:
            axes.plot(
                published["num_points"], published["algorithm1"][epsilon], ".", color=colour, markersize=3, alpha=0.7
            )
    if published:
        axes.plot([], [], ".", color="grey", markersize=3, label="as published (one draw)")
    axes.set_title(f"D = {result['config']['dim']}")
    axes.set_xlabel(_POINTS_LABEL[result["experiment"]])
    axes.grid(True, which="major", alpha=0.3)
    axes.set_xlim(num_points[0], num_points[-1])


def draw_mixture_figure(inputs: Sequence[pathlib.Path], *outputs: pathlib.Path) -> pathlib.Path:
    """Draws panels of figure 1 or 2 side by side.

    Args:
      inputs: JSON results, one per panel.
      outputs: pictures to write, their format by suffix.

    Returns:
      The first picture.
    """
    results = [json.loads(pathlib.Path(path).read_text()) for path in inputs]
    figure, all_axes = plt.subplots(
        1, len(results), figsize=(5.2 * len(results) + 0.3, 4.4), squeeze=False, sharey=True, layout="constrained"
    )
    for axes, result in zip(all_axes[0], results, strict=True):
        _draw_panel(axes, result)
    all_axes[0, 0].set_ylabel(r"RKHS distance $\|\hat\mu_X - \cdot\|$")
    all_axes[0, 0].legend(fontsize=8, loc="lower left", framealpha=0.9)
    first = results[0]
    config = first["config"]
    figure.suptitle(
        f"{_SCENARIO[first['experiment']]}, N = {first['num_rows']}, δ = {config['delta']:g}, "
        f"{config['calibration']} calibration, {config['diameter']} diameter: "
        f"root mean square and 0.5–99.5 % of {config['num_noise_draws']} draws",
        fontsize=9,
    )
    for output in outputs:
        with common.atomic_path(pathlib.Path(output)) as temporary:
            figure.savefig(temporary, dpi=160, metadata={"CreationDate": None} if temporary.suffix == ".pdf" else None)
    plt.close(figure)
    return outputs[0]


def _define_flags() -> None:
    flags.DEFINE_list("input", None, "JSON results of figure1 or figure2, one per panel.", required=True)
    flags.DEFINE_string("output", None, "Picture to write: .png, .pdf or .svg.", required=True)


def _main() -> None:
    output = pathlib.Path(flags.FLAGS.output)
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise common.InputError(f"--output={output}: the suffix must be .png, .pdf or .svg")
    for path in flags.FLAGS.input:
        with common.input_errors(f"--input={path}: "):
            result = json.loads(pathlib.Path(path).read_text())
        if not isinstance(result, dict) or result.get("experiment") not in _POINTS_LABEL:
            raise common.InputError(f"--input={path}: not a result of experiments.figure1 or experiments.figure2")
    common.check_output_dir(output.parent)
    draw_mixture_figure([pathlib.Path(path) for path in flags.FLAGS.input], output)
    print(f"wrote {output}")


if __name__ == "__main__":
    common.run_main(_define_flags, _main)
