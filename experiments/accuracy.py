"""How far tight noise and better post-processing go: Δ beside the published algorithms'.

python -m experiments.accuracy                                # everything, about 50 minutes on two cores
python -m experiments.accuracy --parts=proposal --dims=5      # only where nothing but a proposal is public
python -m experiments.accuracy --dims=2 --sizes=100,1000      # fewer points
python -m experiments.accuracy --num_rows=20000 --dims=3 --gamma_scale=4 --data_seed=1

Two parts: "subset", where some of the rows are public (figure 1; every M and ε has its own draws of the noise, the same
for all methods), and "proposal", where no row is (figure 2; see experiments.accuracy_proposal). Results are kept as
they come, in <output_dir>/accuracy.json and accuracy_proposal.json: an interrupted run with the same flags, commit and
machine goes on where it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
import time
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import accuracy_proposal, common, plots
from experiments.mixture import mixture
from kme_jax import Gaussian, MeanEmbedding, PrivacyBudget, SubspaceMap, adaptive, closed_form, mean_embedding, perturb
from kme_jax.nonprivate import Reference
from kme_jax.privacy import gaussian_noise_multiplier

# Steps from the published algorithm 1 to `improved`: (name, calibration, diameter, weights).
STEPS = (
    ("published", "classical", "published", "closed_form"),
    ("calibration", "analytic", "published", "closed_form"),
    ("diameter", "analytic", "proved", "closed_form"),
    ("improved", "analytic", "proved", "adaptive"),
)
_LARGE = 1000  # points above which there are fewer draws


def _flag(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class AccuracyConfig:
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = _flag(("subset", "proposal"), "What to run: subset (figure 1), proposal (figure 2).")
    dims: tuple[int, ...] = _flag((2, 5), "D, the numbers of columns.")
    sizes: tuple[int, ...] = _flag((10, 31, 100, 316, 1000, 10_000), "M, the numbers of public points.")
    epsilons: tuple[float, ...] = _flag((0.01, 0.1, 1.0), "Privacy levels ε; classical calibration needs ε <= 1.")
    num_rows: int = _flag(100_000, "N, the number of private rows.")
    delta: float = _flag(1e-6, "δ of (ε, δ)-differential privacy.")
    gamma_scale: float = _flag(1.0, "γ of the kernel exp(-γ‖x-y‖²), in multiples of 1e-4 / D.")
    data_seed: int = _flag(0, "Seed of the mixture. Published: 0.")
    num_draws: int = _flag(50, "Draws of the noise for M up to 1000.")
    num_draws_large: int = _flag(5, "Draws of the noise for larger M.")
    num_releases: int = _flag(5, "Releases for each ε, where only a proposal is public.")
    output_dir: str = _flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        if not self.parts or set(self.parts) - {"subset", "proposal"}:
            raise common.InputError(f"--parts must be of subset and proposal, got {','.join(self.parts)!r}")
        for name in ("dims", "sizes", "epsilons"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or len(set(values)) < len(values):
                raise common.InputError(f"--{name} must be positive and different, got {','.join(map(str, values))!r}")
        for name in ("num_rows", "num_draws", "num_draws_large", "num_releases"):
            if getattr(self, name) < 1:
                raise common.InputError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if max(self.sizes) > self.num_rows:
            raise common.InputError(f"--sizes has {max(self.sizes)}, more than --num_rows={self.num_rows}")
        if not 0 < self.gamma_scale < math.inf:
            raise common.InputError(f"--gamma_scale must be positive and finite, got {self.gamma_scale}")
        if not 0 <= self.data_seed < 2**32:
            raise common.InputError(f"--data_seed must be in [0, 2^32), got {self.data_seed}")
        with common.input_errors():
            for epsilon in self.epsilons:
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), "classical")

    def begun(self, path: pathlib.Path, experiment: str) -> dict[str, Any]:
        """The result of an earlier run with the same flags, by the same code on the same machine, or an empty one."""
        settings = dataclasses.asdict(self) | {"output_dir": common.portable_path(self.output_dir)}
        del settings["parts"]
        begun = {"experiment": experiment, "config": settings, "environment": common.environment()}
        begun = json.loads(json.dumps(begun))
        with contextlib.suppress(OSError, ValueError):
            earlier = json.loads(path.read_text())
            if all(earlier.get(name) == value for name, value in begun.items()):
                return earlier
        return begun | {"wall_seconds": 0.0, "cells": []}


def _cell_draws(reference: Reference, embedding: MeanEmbedding, kernel_mean, epsilon: float, delta: float, draws: int):
    """Δ of every step and draw, seconds of each `improved`, and what it chose."""
    points = embedding.feature_map.points
    distances: dict[str, list[float]] = {name: [] for name, *_ in STEPS}
    seconds, chosen = [], []
    for seed in range(draws):
        for name, calibration, diameter, weights in STEPS:
            private = perturb(
                jax.random.key(seed),
                embedding,
                PrivacyBudget(epsilon, delta),
                calibration=calibration,
                diameter=diameter,
            )
            if weights == "adaptive":
                started = time.perf_counter()
                sample, report = adaptive(private)
                seconds.append(time.perf_counter() - started)
                best = report.chosen
                share = best.penalty / private.mechanism.variance if best.kind == "probability" else None
                freedom = best.degrees_of_freedom
                chosen.append({"kind": best.kind, "penalty_over_variance": share, "degrees_of_freedom": freedom})
            else:
                sample = closed_form(private)
            distances[name].append(reference.distance(points, sample.weights, kernel_mean))
        yield seed + 1
    yield {"distances": distances, "seconds": seconds, "chosen": chosen}


def _summary(distances: list[float]) -> dict[str, float | None]:
    mean = float(np.mean(distances))
    error = float(np.std(distances, ddof=1) / math.sqrt(len(distances))) if len(distances) > 1 else None
    return {"mean": mean, "standard_error": error}


def _compare(cell: dict[str, Any]) -> dict[str, Any]:
    """Means over draws, and `improved` beside the better of tight algorithm 1 and uniform weights."""
    distances = {name: np.asarray(values) for name, values in cell["distances"].items()}
    better = "diameter" if distances["diameter"].mean() < cell["uniform"] else "uniform"
    other = distances["diameter"] if better == "diameter" else np.full_like(distances["improved"], cell["uniform"])
    excess = distances["improved"] - 1.02 * other
    enough = len(excess) > 1
    return {
        "steps": {name: _summary(values) for name, values in cell["distances"].items()},
        "better_of_two": better,
        "ratio_to_better": float(distances["improved"].mean() / other.mean()),
        "never_worse": bool(excess.mean() <= 2 * excess.std(ddof=1) / math.sqrt(len(excess))) if enough else None,
        "ratio_to_published": float(distances["published"].mean() / distances["improved"].mean()),
    }


def run(config: AccuracyConfig) -> dict[str, Any]:
    """The part "subset": all cells, kept in <output_dir>/accuracy.json as they come."""
    config.validate()
    stages = common.Stages("accuracy")
    path = common.check_output_dir(config.output_dir) / "accuracy.json"
    result = config.begun(path, "accuracy")
    before = result["wall_seconds"]
    known = {(cell["dim"], cell["num_points"], cell["epsilon"]) for cell in result["cells"]}
    for dim in config.dims:
        if all((dim, m, e) in known for m in config.sizes for e in config.epsilons):
            continue
        rows, kernel = mixture(config.num_rows, dim, seed=config.data_seed), Gaussian(config.gamma_scale * 1e-4 / dim)
        with stages.stage(f"D = {dim}: norm of the embedding") as progress:
            reference = Reference.from_rows(kernel, rows, progress=progress)
        public = rows[: max(config.sizes)]
        kernel_means = reference.kernel_mean(public)
        subspace = SubspaceMap.from_points(kernel, public)
        whole = mean_embedding(subspace, rows)
        for num_points in config.sizes:
            prefix = subspace.prefix(num_points)
            # A leading part of the basis, so a leading part of the coordinates.
            embedding = MeanEmbedding(prefix, whole.coordinates[: prefix.num_features], whole.num_rows)
            means = kernel_means[:num_points]
            uniform = reference.distance(public[:num_points], np.full(num_points, 1 / num_points), means)
            for epsilon in config.epsilons:
                if (dim, num_points, epsilon) in known:
                    continue
                draws = config.num_draws if num_points <= _LARGE else config.num_draws_large
                cell = {"dim": dim, "num_points": num_points, "epsilon": epsilon, "uniform": uniform}
                with stages.stage(f"D = {dim}, M = {num_points}, ε = {epsilon:g}") as progress:
                    for done in _cell_draws(reference, embedding, means, epsilon, config.delta, draws):
                        if isinstance(done, int):
                            progress(done, draws)
                        else:
                            cell |= done
                cell |= _compare(cell)
                result["cells"].append(cell)
                result["wall_seconds"] = before + stages.total_seconds
                common.write_json(path, result)
    return result


def table(result: dict[str, Any]) -> str:
    """Mean Δ of every cell and step."""
    names = [name for name, *_ in STEPS]
    lines = [
        "mean Δ; `published` is algorithm 1 as published, and every column adds to the one before",
        f"{'D':>2} {'M':>6} {'ε':>5} {'uniform':>9} "
        + " ".join(f"{name:>11}" for name in names)
        + "  gain  / better of two  seconds",
    ]
    for cell in result["cells"]:
        means = " ".join(f"{cell['steps'][name]['mean']:>11.3g}" for name in names)
        worse = "" if cell["never_worse"] in (True, None) else "  WORSE"
        lines.append(
            f"{cell['dim']:>2} {cell['num_points']:>6} {cell['epsilon']:>5g} {cell['uniform']:>9.3g} {means}"
            f" {cell['ratio_to_published']:>5.1f} {cell['ratio_to_better']:>10.3f} {cell['better_of_two']:<9}"
            f" {np.median(cell['seconds']):.2g}{worse}"
        )
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """The steps from the published algorithm 1 to `improved` at M = 1000 and 10 000, as a table for the README."""
    lines = [
        "| D | M | ε | published | + exact σ | + √2/N | + adaptive weights | gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        if cell["num_points"] in (1000, 10_000):
            means = " | ".join(f"{cell['steps'][name]['mean']:.3g}" for name, *_ in STEPS)
            lines.append(
                f"| {cell['dim']} | {cell['num_points']} | {cell['epsilon']:g} | {means} | "
                f"{cell['ratio_to_published']:.1f} |"
            )
    return "\n".join(lines)


def _define_flags() -> None:
    for field in dataclasses.fields(AccuracyConfig):
        text = field.metadata["help"]
        if isinstance(field.default, tuple):
            default = [value if isinstance(value, str) else f"{value:g}" for value in field.default]
            flags.DEFINE_list(field.name, default, text)
        elif isinstance(field.default, int):
            flags.DEFINE_integer(field.name, field.default, text)
        elif isinstance(field.default, float):
            flags.DEFINE_float(field.name, field.default, text)
        else:
            flags.DEFINE_string(field.name, field.default, text)


def _config_from_flags() -> AccuracyConfig:
    values = {field.name: getattr(flags.FLAGS, field.name) for field in dataclasses.fields(AccuracyConfig)}
    values["parts"] = tuple(values["parts"])
    for name, kind in (("dims", int), ("sizes", int), ("epsilons", float)):
        try:
            values[name] = tuple(kind(value) for value in values[name])
        except ValueError as error:
            raise common.InputError(f"--{name} must be numbers separated by commas: {error}") from error
    return AccuracyConfig(**values)


def _main() -> None:
    config = _config_from_flags()
    config.validate()
    folder = pathlib.Path(config.output_dir)
    if "subset" in config.parts:
        path = folder / "accuracy.json"
        text = table(run(config))
        print(f"{text}\nwrote {path} and {plots.draw_accuracy(path, path.with_suffix('.png'))}")
    if "proposal" in config.parts:
        result = accuracy_proposal.run(config)
        print(f"mean Δ where only a proposal is public\n{accuracy_proposal.markdown(result)}")
        print(f"wrote {folder / 'accuracy_proposal.json'}")


if __name__ == "__main__":
    common.run_main(_define_flags, _main)
