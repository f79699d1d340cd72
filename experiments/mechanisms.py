"""Every mechanism of Balog et al. 2018 at the same budget: distances, answers to fixed queries, and function values.

python -m experiments.mechanisms                         # ten minutes on two cores
python -m experiments.mechanisms --dims=1 --epsilons=1   # a part of it

Private rows are mixtures as in the figures, clipped to public bounds. Public are the bounds, and a grid of points
within them. δ is 0 for the exponential mechanism, permute-and-flip and Laplace noise. The others have the δ of the
flag, and an analytic calibration. Noise is simulated. The errors are

* the distance Δ of the embeddings of the release and of the private rows,
* the root mean square error of four answers: the mean and the mean square of the first column, scaled to [0, 1], and
  the shares of rows above the middle of the first column, and in the middle half of all columns,
* the root mean square error of the released function Σ w k(z, ·) at the points of the grid.

Results go to <output_dir>/mechanisms.json and mechanisms.png. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.mixture import mixture
from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import (
    Gaussian,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    WeightedSample,
    adaptive_weights,
    algorithm1,
    algorithm2,
    closed_form_weights,
    improved,
    mean_embedding,
    noisy_function,
    perturb,
    uniform,
)
from kme_jax.algorithms.small_databases import ComparedDatabases, compare_databases
from kme_jax.gram import gram, kernel_mean
from kme_jax.nonprivate import Reference

LOWER, UPPER = -500.0, 700.0  # of each column
# Points of the grid in each column, and rows of a small database: about half a million databases, or fewer.
GRIDS = {1: (25, 6), 2: (7, 4)}
_DRAWS = 20  # from the probabilities of one private database
ERRORS = {"distance": "Δ", "queries": "four answers", "function": "function"}


@dataclasses.dataclass(frozen=True)
class MechanismsConfig(Config):
    """Configuration: one field per flag."""

    dims: tuple[int, ...] = flag((1, 2), "D, of 1 and 2.", quick=(1,))
    num_rows: tuple[int, ...] = flag((1000, 10_000), "N, numbers of private rows.", quick=(1000,))
    epsilons: tuple[float, ...] = flag((0.1, 1.0, 10.0), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of the mechanisms with Gaussian noise.")
    gamma_scale: float = flag(1.0, "γ of the kernel exp(-γ‖x-y‖²), in multiples of 1e-4 / D.")
    num_features: int = flag(1000, "J of algorithm 2, and the largest of improved with a proposal.", quick=200)
    num_seeds: int = flag(5, "Mixtures, each with noise of its own.", quick=1)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        for name in ("dims", "num_rows", "epsilons"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"--{name} must be one or more, and different, got {values}")
        if not set(self.dims) <= set(GRIDS):
            raise InputError(f"--dims must be of 1 and 2, got {','.join(map(str, self.dims))}")
        if min(self.num_rows) < 2:
            raise InputError(f"--num_rows must be at least 2 each, got {self.num_rows}")
        if self.num_features < 2 or self.num_features % 2:
            raise InputError(f"--num_features must be even and at least 2, got {self.num_features}")
        if not self.gamma_scale > 0:
            raise InputError(f"--gamma_scale must be positive, got {self.gamma_scale}")
        at_least(self, 1, "num_seeds")
        valid_budgets(self.epsilons, self.delta)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Private rows, and what is public about them.

    Attributes:
      rows: [N, D].
      kernel: k.
      grid: public points, [M, D].
      subspace: coordinates in the span of the grid.
      small: the number of rows of a small database.
      num_features: J.
    """

    rows: np.ndarray
    kernel: Gaussian
    grid: np.ndarray
    subspace: SubspaceMap
    small: int
    num_features: int

    @functools.cached_property
    def compared(self) -> ComparedDatabases:
        """The distances of all small databases."""
        return compare_databases(self.rows, self.subspace, self.grid, self.small, budget=PrivacyBudget(1.0, 0.0))


Samples = list[WeightedSample]


def _drawn(problem: Problem, budget: PrivacyBudget, seed: int, *, flips: bool = False) -> Samples:
    compared, rng = problem.compared, np.random.default_rng(seed)
    size = len(compared.distances)
    scores = -(compared.distances - compared.distances.min()) / compared.scale(budget.epsilon)
    noise = rng.exponential if flips else rng.gumbel
    chosen = [int(np.argmax(scores + noise(size=size))) for _ in range(_DRAWS)]
    return [uniform(problem.grid[compared.databases[index]]) for index in chosen]


def _laplace(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    embedding = mean_embedding(problem.subspace, problem.rows)
    noisy = perturb(jax.random.key(seed), embedding, PrivacyBudget(budget.epsilon, 0.0), noise="laplace")
    return [adaptive_weights(noisy)[0]]


def _algorithm1(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    key = jax.random.key(seed)
    return [algorithm1(key, problem.rows, problem.kernel, problem.grid, budget=budget, diameter="published")]


def _algorithm2(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    candidates = np.random.default_rng(seed).uniform(LOWER, UPPER, (200, problem.rows.shape[1]))
    key, size = jax.random.key(seed), problem.num_features
    return [algorithm2(key, problem.rows, problem.kernel, candidates, 30, budget=budget, num_features=size)]


def _function(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    key = jax.random.key(seed)
    return [
        closed_form_weights(noisy_function(problem.rows, problem.kernel, problem.grid, budget=budget, key=key).noisy)
    ]


def _improved_grid(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    return [improved(jax.random.key(seed), problem.rows, problem.kernel, problem.grid, budget=budget)]


def _improved_proposal(problem: Problem, budget: PrivacyBudget, seed: int) -> Samples:
    dim = problem.rows.shape[1]
    proposal = NormalProposal.from_bounds([LOWER] * dim, [UPPER] * dim)
    arguments = jax.random.key(seed), problem.rows, problem.kernel, proposal
    return [improved(*arguments, budget=budget, num_points=200, num_features=problem.num_features)]


METHODS: dict[str, Callable[[Problem, PrivacyBudget, int], Samples]] = {
    "grid with equal weights (no private rows)": lambda problem, budget, seed: [uniform(problem.grid)],
    "exponential mechanism, δ = 0": _drawn,
    "permute-and-flip, δ = 0": functools.partial(_drawn, flips=True),
    "Laplace noise, δ = 0": _laplace,
    "algorithm 1": _algorithm1,
    "algorithm 2": _algorithm2,
    "Gaussian process on the grid": _function,
    "improved, grid": _improved_grid,
    "improved, proposal": _improved_proposal,
}


def problem_of(config: MechanismsConfig, dim: int, num_rows: int, seed: int) -> Problem:
    """The private rows of a seed, with the grid and the kernel."""
    per_column, small = GRIDS[dim]
    axis = np.linspace(LOWER, UPPER, per_column)
    grid = np.array(list(itertools.product(axis, repeat=dim)))
    kernel = Gaussian(config.gamma_scale * 1e-4 / dim)
    rows = np.clip(mixture(num_rows, dim, seed=seed), LOWER, UPPER)
    return Problem(rows, kernel, grid, SubspaceMap.from_points(kernel, grid), small, config.num_features)


def answers(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The four answers from weighted rows, [4]."""
    unit = (points - LOWER) / (UPPER - LOWER)
    first, inside = unit[:, 0], (np.abs(unit - 0.5) < 0.25).all(axis=1)
    return weights @ np.stack([first, np.square(first), first > 0.5, inside], axis=1).astype(float)


def errors(problem: Problem, reference: Reference, samples: Samples) -> dict[str, float]:
    """Root mean square errors over samples, by the names of ``ERRORS``."""
    private = answers(problem.rows, np.full(len(problem.rows), 1 / len(problem.rows)))
    function = np.asarray(kernel_mean(problem.kernel, problem.grid, problem.rows), np.float64)
    squares = []
    for sample in samples:
        points, weights = np.asarray(sample.points, np.float64), np.asarray(sample.weights, np.float64)
        values = np.asarray(gram(problem.kernel, problem.grid, points), np.float64) @ weights
        distance = reference.distance(points, weights)
        off = np.square(answers(points, weights) - private).mean(), np.square(values - function).mean()
        squares.append([distance**2, *off])
    return dict(zip(ERRORS, map(float, np.sqrt(np.mean(squares, axis=0))), strict=True))


def run(config: MechanismsConfig, methods: dict[str, Callable[..., Samples]] = METHODS) -> dict[str, Any]:
    """All mechanisms. Each record is written to <output_dir>/mechanisms.json when it is done."""
    stages, folder = Stages("mechanisms"), check_output_dir(config.output_dir)
    names = ("dim", "num_rows", "seed", "method", "epsilon")
    cells = Cells(folder / "mechanisms.json", "mechanisms", config.settings(), names)
    for dim, num_rows in itertools.product(config.dims, config.num_rows):
        with stages.stage(f"D = {dim}, N = {num_rows}") as progress:
            for seed in range(config.num_seeds):
                wanted = itertools.product(methods, config.epsilons)
                missing = [one for one in wanted if (dim, num_rows, seed, *one) not in cells]
                if missing:
                    problem = problem_of(config, dim, num_rows, seed)
                    reference = Reference.from_rows(problem.kernel, problem.rows)
                for method, epsilon in missing:
                    samples = methods[method](problem, PrivacyBudget(epsilon, config.delta), seed)
                    key = dict(zip(names, (dim, num_rows, seed, method, epsilon), strict=True))
                    cells.add(key | errors(problem, reference, samples))
                progress(seed + 1, config.num_seeds)
    return cells.result


def means(result: dict[str, Any], dim: int, num_rows: int, method: str, epsilon: float) -> dict[str, float]:
    """Root mean square errors over seeds, by the names of ``ERRORS``."""
    wanted = (dim, num_rows, method, epsilon)
    cells = [c for c in result["cells"] if (c["dim"], c["num_rows"], c["method"], c["epsilon"]) == wanted]
    return {name: float(np.sqrt(np.mean([cell[name] ** 2 for cell in cells]))) for name in ERRORS}


def _methods(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(cell["method"] for cell in result["cells"]))


def markdown(result: dict[str, Any]) -> str:
    """A line for each D and mechanism: Δ, the error of four answers and that of the function, for each N and ε."""
    config = result["config"]
    columns = list(itertools.product(config["num_rows"], config["epsilons"]))
    heads = " | ".join(f"N = {num_rows}, ε = {epsilon:g}" for num_rows, epsilon in columns)
    lines = [f"| D | {', '.join(ERRORS.values())} | {heads} |", "|---|---|" + "---|" * len(columns)]
    for dim, method in itertools.product(config["dims"], _methods(result)):
        texts = []
        for num_rows, epsilon in columns:
            values = means(result, dim, num_rows, method, epsilon)
            texts.append(", ".join(f"{values[name]:.2g}" for name in ERRORS))
        lines.append(f"| {dim} | {method} | {' | '.join(texts)} |")
    return "\n".join(lines)


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the errors against ε: a row of panels for each D and N, a column for each error."""
    config = result["config"]
    rows = list(itertools.product(config["dims"], config["num_rows"]))
    size = (4.2 * len(ERRORS) + 3.4, 3.1 * len(rows))
    figure, grid = pyplot().subplots(len(rows), len(ERRORS), figsize=size, layout="constrained", squeeze=False)
    colours = ("0.6", *COLOURS, "black", "#8B4513")
    for (dim, num_rows), panels in zip(rows, grid, strict=True):
        for (name, title), axes in zip(ERRORS.items(), panels, strict=True):
            for i, method in enumerate(_methods(result)):
                values = [means(result, dim, num_rows, method, epsilon)[name] for epsilon in config["epsilons"]]
                style = {"color": colours[i % len(colours)], "marker": "os^v"[i % 4], "markersize": 4}
                axes.plot(
                    config["epsilons"], values, label=method, linestyle="--" if "δ = 0" in method else "-", **style
                )
            axes.set(xscale="log", yscale="log", xlabel="ε", title=f"D = {dim}, N = {num_rows}: {title}")
            axes.grid(True, alpha=0.3)
    grid[0, 0].set_ylabel("root mean square error")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=9, frameon=False)
    return save(figure, [output])


def main(config: MechanismsConfig) -> None:
    """Runs the experiment, draws its picture and prints its table."""
    result, path = run(config), pathlib.Path(config.output_dir) / "mechanisms"
    print(f"{markdown(result)}\nwrote {path}.json and {draw(result, path.with_suffix('.png'))}")


if __name__ == "__main__":
    run_main(main, MechanismsConfig)
