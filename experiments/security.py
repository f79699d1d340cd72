"""What secure noise costs: exact integer sums and OpenDP's discrete noise beside float sums and simulated noise.

python -m experiments.security                    # figure 1's data, M = 1000, D = 2 and 5: about a minute
python -m experiments.security --dims=2 --num_rows=20000

Both kinds of noise are measured side by side, after one warm-up, on the same rows and public points and for the same ε
and δ. Measured are σ, Δ of the adaptive weights (means over draws), the seconds of steps 1 and 2, and the seconds of
the whole release. Results go to <output_dir>/security.json.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.mixture import mixture
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import (
    Gaussian,
    NoisyEmbedding,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    integer_embedding,
    mean_embedding,
    perturb,
    perturb_securely,
)
from kme_jax.nonprivate import Reference


@dataclasses.dataclass(frozen=True)
class SecurityConfig(Config):
    """Configuration: one field per flag."""

    dims: tuple[int, ...] = flag((2, 5), "D, the numbers of columns.", quick=(2,))
    epsilons: tuple[float, ...] = flag((0.01, 0.1, 1.0), "Privacy levels ε.", quick=(1.0,))
    num_rows: int = flag(100_000, "N, the number of private rows.", quick=10_000)
    num_points: int = flag(1000, "M, the number of public points, the first rows.", quick=100)
    delta: float = flag(1e-6, "δ.")
    num_draws: int = flag(10, "Draws of either noise.", quick=2)
    output_dir: str = flag("results", "Folder for the JSON results.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        for name in ("dims", "epsilons"):
            if not getattr(self, name) or min(getattr(self, name)) <= 0:
                raise InputError(f"--{name} must be positive, got {getattr(self, name)}")
        if not 1 <= self.num_points <= self.num_rows:
            raise InputError(f"--num_points must be between 1 and --num_rows, got {self.num_points}")
        at_least(self, 1, "num_draws")
        valid_budgets(self.epsilons, self.delta)


def _simulated(subspace: SubspaceMap, rows: np.ndarray, budget: PrivacyBudget, seed: int) -> NoisyEmbedding:
    return perturb(jax.random.key(seed), mean_embedding(subspace, rows), budget)


def _secure(subspace: SubspaceMap, rows: np.ndarray, budget: PrivacyBudget, _seed: int) -> NoisyEmbedding:
    return perturb_securely(integer_embedding(subspace, rows), budget)


_KINDS = {"simulated": _simulated, "secure": _secure}


def run(config: SecurityConfig) -> dict[str, Any]:
    """All measurements. Each is written to <output_dir>/security.json when it is done."""
    stages = Stages("security")
    path = check_output_dir(config.output_dir) / "security.json"
    cells = Cells(path, "security", config.settings(), ("dim", "epsilon"))
    for dim in config.dims:
        if all((dim, epsilon) in cells for epsilon in config.epsilons):
            continue
        rows, kernel = mixture(config.num_rows, dim), Gaussian(1e-4 / dim)
        points = rows[: config.num_points]
        with stages.stage(f"D = {dim}: norm of the embedding") as progress:
            reference = Reference.from_rows(kernel, rows, progress=progress)
        kernel_mean, subspace = reference.kernel_mean(points), SubspaceMap.from_points(kernel, points)
        for epsilon in config.epsilons:
            if (dim, epsilon) in cells:
                continue
            cell: dict[str, Any] = {"dim": dim, "epsilon": float(epsilon), "num_features": subspace.num_features}
            budget = PrivacyBudget(epsilon, config.delta)
            with stages.stage(f"D = {dim}, ε = {epsilon:g}") as progress:
                records = {kind: {"noise_seconds": [], "seconds": [], "weights": []} for kind in _KINDS}
                for draw in range(-1, config.num_draws):  # the first is the warm-up
                    for kind, perturb_rows in _KINDS.items():
                        started = time.perf_counter()
                        noisy = perturb_rows(subspace, rows, budget, draw + 1)
                        perturbed = time.perf_counter()
                        sample, _ = adaptive_weights(noisy)
                        if draw >= 0:
                            records[kind]["noise_seconds"].append(perturbed - started)
                            records[kind]["seconds"].append(time.perf_counter() - started)
                            records[kind]["weights"].append(sample.weights)
                        cell[f"{kind}_sigma"] = noisy.mechanism.scale
                    progress(draw + 2, config.num_draws + 1)
                for kind, record in records.items():
                    distances = reference.distances(points, np.stack(record["weights"]), kernel_mean)
                    cell[f"{kind}_distances"] = distances.tolist()
                    cell[f"{kind}_seconds"] = float(np.median(record["seconds"]))
                    cell[f"{kind}_noise_seconds"] = float(np.median(record["noise_seconds"]))
            cells.add(cell)
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The results as a table of Markdown."""
    lines = [
        "| D | ε | σ, simulated | σ, secure | ratio | Δ, simulated | Δ, secure | ratio | seconds, simulated | secure "
        "| ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        numbers = []
        for name, form in (("sigma", ".3g"), ("distances", ".3g"), ("seconds", ".2f")):
            pair = [float(np.mean(cell[f"{kind}_{name}"])) for kind in _KINDS]
            numbers += [f"{value:{form}}" for value in pair] + [f"{pair[1] / pair[0]:.2f}"]
        lines.append(f"| {cell['dim']} | {cell['epsilon']:g} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main(config: SecurityConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'security.json'}")


if __name__ == "__main__":
    run_main(main, SecurityConfig)
