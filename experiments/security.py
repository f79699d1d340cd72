"""What secure noise costs: exact integer sums and OpenDP's discrete noise beside float sums and simulated noise.

python -m experiments.security                    # figure 1's data, M = 1000, D = 2 and 5: about a minute
python -m experiments.security --dims=2 --num_rows=20000

The same rows, public points, ε and δ; both are measured side by side, after one warm-up: σ, Δ of the adaptive weights
(means over draws), and the seconds of steps 1 and 2 and of the whole release. Results go to
<output_dir>/security.json.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments import common
from experiments.common import flag
from experiments.mixture import mixture
from kme_jax import (
    Gaussian,
    NoisyEmbedding,
    PrivacyBudget,
    SubspaceMap,
    adaptive,
    integer_embedding,
    mean_embedding,
    perturb,
    perturb_securely,
)
from kme_jax.nonprivate import Reference


@dataclasses.dataclass(frozen=True)
class SecurityConfig:
    """Configuration: one field per flag."""

    dims: tuple[int, ...] = flag((2, 5), "D, the numbers of columns.")
    epsilons: tuple[float, ...] = flag((0.01, 0.1, 1.0), "Privacy levels ε.")
    num_rows: int = flag(100_000, "N, the number of private rows.")
    num_points: int = flag(1000, "M, the number of public points, the first rows.")
    delta: float = flag(1e-6, "δ.")
    num_draws: int = flag(10, "Draws of either noise.")
    output_dir: str = flag("results", "Folder for the JSON results.")

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        for name in ("dims", "epsilons"):
            if not getattr(self, name) or min(getattr(self, name)) <= 0:
                raise common.InputError(f"--{name} must be positive, got {getattr(self, name)}")
        if not 1 <= self.num_points <= self.num_rows:
            raise common.InputError(f"--num_points must be between 1 and --num_rows, got {self.num_points}")
        if self.num_draws < 1:
            raise common.InputError(f"--num_draws must be at least 1, got {self.num_draws}")
        with common.input_errors():
            for epsilon in self.epsilons:
                PrivacyBudget(epsilon, self.delta)


def _simulated(subspace: SubspaceMap, rows: np.ndarray, budget: PrivacyBudget, seed: int) -> NoisyEmbedding:
    return perturb(jax.random.key(seed), mean_embedding(subspace, rows), budget)


def _secure(subspace: SubspaceMap, rows: np.ndarray, budget: PrivacyBudget, _seed: int) -> NoisyEmbedding:
    return perturb_securely(integer_embedding(subspace, rows), budget)


_KINDS = {"simulated": _simulated, "secure": _secure}


def run(config: SecurityConfig) -> dict[str, Any]:
    """All measurements, kept in <output_dir>/security.json as they come."""
    stages = common.Stages("security")
    path = common.check_output_dir(config.output_dir) / "security.json"
    settings = dataclasses.asdict(config) | {"output_dir": common.portable_path(config.output_dir)}
    cells = common.Cells(path, "security", settings, ("dim", "epsilon"))
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
                    for kind, make in _KINDS.items():
                        started = time.perf_counter()
                        private = make(subspace, rows, budget, draw + 1)
                        noisy = time.perf_counter()
                        sample, _ = adaptive(private)
                        if draw >= 0:
                            records[kind]["noise_seconds"].append(noisy - started)
                            records[kind]["seconds"].append(time.perf_counter() - started)
                            records[kind]["weights"].append(sample.weights)
                        cell[f"{kind}_sigma"] = private.mechanism.scale
                    progress(draw + 2, config.num_draws + 1)
                for kind, record in records.items():
                    found = reference.distances(points, np.stack(record["weights"]), kernel_mean)
                    cell[f"{kind}_distances"] = found.tolist()
                    cell[f"{kind}_seconds"] = float(np.median(record["seconds"]))
                    cell[f"{kind}_noise_seconds"] = float(np.median(record["noise_seconds"]))
            cells.add(cell)
    return cells.result


def markdown(result: dict[str, Any]) -> str:
    """The results as a table for the README."""
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


def _main() -> None:
    config = common.config_from_flags(SecurityConfig)
    config.validate()
    print(f"{markdown(run(config))}\nwrote {pathlib.Path(config.output_dir) / 'security.json'}")


if __name__ == "__main__":
    common.run_main(lambda: common.define_flags(SecurityConfig), _main)
