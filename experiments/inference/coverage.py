"""How often intervals for released points contain the private statistic.

python -m experiments.inference.coverage                              # 30 releases in each of six settings
python -m experiments.inference.coverage --dims=2 --epsilons=1 --num_releases=20
python -m experiments.inference.coverage --heaped=0.5                 # half the rows are rounded

Private rows are new for each release: ten normal clusters at random places, as in the figures of Balog et al. 2018,
with bounds. Each table is released with secure noise. ``posterior_draws`` gives an interval for the mean of each of
twelve functions. It covers if the mean of the private rows is in it. Two other intervals stand beside it: a *direct*
one, of somebody who spends the whole budget on this one mean; and a *naive* one, which takes the released points for
real rows that were sampled, and knows nothing of the noise.

With ``--heaped`` a part of the rows is rounded to values that are 40 apart, less than the length of the kernel. These
values are new for each table. *smooth* intervals are then those of somebody who wrongly says that no value is shared
by many rows. Without ``--heaped`` this is right, and all intervals are made with it.

Results go to <output_dir>/inference_coverage.json and .png. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.mixture import mixture
from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import Bounds, Gaussian, PrivacyBudget, WeightedSample, measure
from kme_jax.analysis import posterior_draws
from kme_jax.privacy import gaussian_noise_multiplier

LEVEL = 0.95
METHODS = ("posterior", "direct", "naive")
SMOOTH = "smooth"  # intervals for heaped rows that are made as if they were not
LOWER, UPPER = -700.0, 900.0  # of each column
HEAPS = 40.0  # the distance of the values to which rows are rounded

# Functions of rows x in [0, 1]^d, by a name that shows them, with their ranges.
FUNCTIONS: dict[str, tuple[float, Callable[[np.ndarray], Any]]] = {
    "x1": (1, lambda x: x[:, 0]),
    "mean of x": (1, lambda x: x.mean(axis=1)),
    "x1²": (1, lambda x: np.square(x[:, 0])),
    "|2x − 1|² / D": (1, lambda x: np.square(2 * x - 1).mean(axis=1)),
    "cos 2π x1": (2, lambda x: np.cos(2 * math.pi * x[:, 0])),
    "cos 2π (x1 + xD)": (2, lambda x: np.cos(2 * math.pi * (x[:, 0] + x[:, -1]))),
    "exp(−8 |x − ½|²)": (1, lambda x: np.exp(-8 * np.square(x - 0.5).sum(axis=1))),
    "x1 > 0.5": (1, lambda x: x[:, 0] > 0.5),
    "mean of x > 0.5": (1, lambda x: x.mean(axis=1) > 0.5),
    "0.4 < x1 < 0.6": (1, lambda x: np.abs(x[:, 0] - 0.5) < 0.1),
    "0.2 < x < 0.8": (1, lambda x: (np.abs(x - 0.5) < 0.3).all(axis=1)),
    "x1 > 0.75": (1, lambda x: x[:, 0] > 0.75),
}


@dataclasses.dataclass(frozen=True)
class PointsCoverageConfig(Config):
    """Configuration: one field per flag."""

    dims: tuple[int, ...] = flag((1, 2, 5), "D, the numbers of columns.", quick=(1,))
    epsilons: tuple[float, ...] = flag((0.1, 1.0), "Privacy levels ε.", quick=(1.0,))
    num_rows: int = flag(10_000, "N, rows of each table.", quick=1000)
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    num_features: int = flag(1000, "J, features of the kernel; fewer are used in one and two columns.", quick=200)
    gamma_scale: float = flag(1.0, "γ of the kernel exp(-γ‖x-y‖²), in multiples of 1e-4 / D.", quick=0.1)
    heaped: float = flag(0.0, "Share of the rows that are rounded.")
    num_releases: int = flag(30, "Tables, each released at each ε.", quick=2)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_releases")
        at_least(self, 2, "num_features")
        if not self.dims or min(self.dims) < 1 or len(set(self.dims)) < len(self.dims):
            raise InputError(f"--dims must be positive and different, got {','.join(map(str, self.dims))!r}")
        if not 0 < self.gamma_scale < math.inf:
            raise InputError(f"--gamma_scale must be positive and finite, got {self.gamma_scale}")
        if not 0 <= self.heaped <= 1:
            raise InputError(f"--heaped must be from 0 to 1, got {self.heaped}")
        valid_budgets(self.epsilons, self.delta)


def _rows(dim: int, seed: int, config: PointsCoverageConfig) -> np.ndarray:
    """Private rows, of which a share is rounded in all columns, [N, D]."""
    rows, rng = mixture(config.num_rows, dim, seed=seed), np.random.default_rng((seed, 1))
    start = rng.uniform(0, HEAPS, dim)
    rounded = np.round((rows - start) / HEAPS) * HEAPS + start
    return np.where(rng.random((len(rows), 1)) < config.heaped, rounded, rows)


def _answers(dim: int, budget: PrivacyBudget, seed: int, config: PointsCoverageConfig) -> dict[str, Any]:
    """For each function, the private mean and the intervals. Empty if there are no intervals."""
    bounds = Bounds.create(np.full(dim, LOWER), np.full(dim, UPPER))
    rows, kernel = _rows(dim, seed, config), Gaussian(config.gamma_scale * 1e-4 / dim * (UPPER - LOWER) ** 2)
    measured = measure(rows, kernel, budget=budget, bounds=bounds, num_features=config.num_features, seed=seed)
    try:
        draws = posterior_draws(measured, smooth=not config.heaped, seed=seed)
        smooth = posterior_draws(measured, smooth=True, seed=seed) if config.heaped else None
    except ValueError:  # the sampler did not converge
        return {}

    def means(sample: WeightedSample) -> dict[Any, Any]:
        unit = bounds.to_unit(sample.points)
        values = {name: h(unit).astype(float) for name, (_, h) in FUNCTIONS.items()}
        squares = {(name, "square"): np.square(value) for name, value in values.items()}
        return {name: sample.weights @ value for name, value in (values | squares).items()}

    estimates = draws.estimate(means, LEVEL)
    without = None if smooth is None else smooth.estimate(means, LEVEL)
    rng, quantile, unit = np.random.default_rng(seed), float(ndtri((1 + LEVEL) / 2)), bounds.to_unit(rows)
    answers = {}
    for name, (extent, h) in FUNCTIONS.items():
        private, estimate = float(np.mean(h(unit))), estimates[name]
        noise = gaussian_noise_multiplier(budget) * extent / config.num_rows
        variance = max(estimates[name, "square"].value - estimate.value**2, 0)
        sampling = math.sqrt(variance / config.num_rows)
        intervals = {
            "posterior": (estimate.value, (estimate.high - estimate.low) / 2),
            "direct": (private + noise * rng.normal(), quantile * noise),
            "naive": (estimate.value, quantile * sampling),
        }
        if without is not None:
            intervals[SMOOTH] = without[name].value, (without[name].high - without[name].low) / 2
        answers[name] = {"private": private} | {method: list(map(float, pair)) for method, pair in intervals.items()}
    return answers


def run(config: PointsCoverageConfig) -> dict[str, Any]:
    """All releases. Each record is written to <output_dir>/inference_coverage.json when it is done."""
    stages, folder = Stages("inference_coverage"), check_output_dir(config.output_dir)
    cells = Cells(
        folder / "inference_coverage.json", "inference_coverage", config.settings(), ("dim", "epsilon", "seed")
    )
    for seed in range(config.num_releases):
        for dim in config.dims:
            for epsilon in config.epsilons:
                if (dim, epsilon, seed) not in cells:
                    with stages.stage(f"D = {dim}, ε = {epsilon:g}, table {seed}"):
                        answers = _answers(dim, PrivacyBudget(epsilon, config.delta), seed, config)
                        cells.add({"dim": dim, "epsilon": epsilon, "seed": seed, "answers": answers})
    return cells.result


def coverage(result: dict[str, Any], dim: int, epsilon: float, name: str, method: str) -> tuple[float, float]:
    """The share of intervals that cover, and their median width as a multiple of that of direct ones."""
    cells = [cell for cell in result["cells"] if (cell["dim"], cell["epsilon"]) == (dim, epsilon)]
    records = [cell["answers"][name] for cell in cells if cell["answers"]]
    covers = [abs(record[method][0] - record["private"]) <= record[method][1] for record in records]
    return float(np.mean(covers)), float(np.median([record[method][1] / record["direct"][1] for record in records]))


def settings(result: dict[str, Any]) -> list[tuple[int, float]]:
    """All pairs of D and ε with intervals."""
    return sorted({(cell["dim"], cell["epsilon"]) for cell in result["cells"] if cell["answers"]})


def methods(result: dict[str, Any]) -> tuple[str, ...]:
    """The intervals of a result."""
    return (*METHODS, SMOOTH) if result["config"].get("heaped") else METHODS


def markdown(result: dict[str, Any]) -> str:
    """The result as a table of Markdown: coverage of posterior intervals, with widths in brackets, and of others.

    For heaped rows, that of smooth intervals follows.
    """
    header = [f"D = {dim}, ε = {epsilon:g}" for dim, epsilon in settings(result)]
    lines = ["| function | " + " | ".join(header) + " |", "|---" * (1 + len(header)) + "|"]
    by_method = {
        method: {
            name: [coverage(result, dim, epsilon, name, method) for dim, epsilon in settings(result)]
            for name in FUNCTIONS
        }
        for method in methods(result)
    }
    for name in FUNCTIONS:
        cells = [f"{100 * share:.0f} % ({width:.2g})" for share, width in by_method["posterior"][name]]
        if SMOOTH in by_method:
            cells = [
                f"{cell}; {100 * share:.0f} %" for cell, (share, _) in zip(cells, by_method[SMOOTH][name], strict=True)
            ]
        lines.append(f"| {name.replace('|', '‖')} | " + " | ".join(cells) + " |")
    for method in by_method:
        shares = np.mean([[share for share, _ in cells] for cells in by_method[method].values()], axis=0)
        widths = np.median([[width for _, width in cells] for cells in by_method[method].values()], axis=0)
        cells = [f"{100 * share:.0f} % ({width:.2g})" for share, width in zip(shares, widths, strict=True)]
        lines.append(f"| all, {method} | " + " | ".join(cells) + " |")
    missing = [
        sum(not cell["answers"] for cell in result["cells"] if (cell["dim"], cell["epsilon"]) == pair)
        for pair in settings(result)
    ]
    lines.append("| releases without intervals | " + " | ".join(map(str, missing)) + " |")
    return "\n".join(lines)


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the shares of intervals that cover, for each function, against the level that they claim.

    Args:
      result: of :func:`run`.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    pairs = settings(result)
    dims, epsilons = sorted({dim for dim, _ in pairs}), sorted({epsilon for _, epsilon in pairs})
    figure, all_axes = pyplot().subplots(
        len(epsilons),
        len(dims),
        figsize=(3 + 2.6 * len(dims), 1 + 3.2 * len(epsilons)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for (dim, epsilon), axes in zip(((d, e) for e in epsilons for d in dims), all_axes.flat, strict=True):
        for method, colour, marker in zip(methods(result), COLOURS, ("o", "s", "x", "^"), strict=False):
            shares = [coverage(result, dim, epsilon, name, method)[0] for name in FUNCTIONS]
            axes.plot(shares, range(len(FUNCTIONS)), marker, color=colour, label=method)
        axes.axvline(LEVEL, color="grey", linewidth=0.8)
        axes.set(title=f"D = {dim}, ε = {epsilon:g}", xlim=(-0.03, 1.03))
        axes.set_yticks(range(len(FUNCTIONS)), list(FUNCTIONS))
    for axes in all_axes[-1]:
        axes.set_xlabel("share of intervals that cover")
    all_axes[0, 0].invert_yaxis()
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return save(figure, [output])


def main(config: PointsCoverageConfig) -> None:
    """Runs the experiment, and prints its table."""
    result, path = run(config), pathlib.Path(config.output_dir) / "inference_coverage"
    draw(result, path.with_suffix(".png"))
    error = ndtri((1 + LEVEL) / 2) * math.sqrt(LEVEL * (1 - LEVEL) / config.num_releases)
    print(f"{markdown(result)}\n{config.num_releases} releases: a share of {LEVEL:.0%} is known up to {error:.0%}")
    print(f"wrote {path}.json and .png")


if __name__ == "__main__":
    run_main(main, PointsCoverageConfig)
