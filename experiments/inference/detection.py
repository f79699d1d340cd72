"""Tests and distances from a release: their level, their power, and their bias.

python -m experiments.inference.detection                                  # all three parts
python -m experiments.inference.detection --parts=power --num_tests=50

* *level*: private and public rows come from one distribution. How often is that rejected at the level 5 %, by
  ``two_sample_test`` (against public rows, and between two releases) and by ``independence_test``?
* *power*: public rows are moved by a shift. How often is it found by ``two_sample_test``; by dpMMD of Kim & Schrab
  (2023), which has the private rows, and spends the same ε on this single test; and by the permutation test of Gretton
  et al. (2012), which is not private? The features, and so the kernel, are the same.
* *distance*: the error of the squared ``mmd`` against that of the private rows, over many releases of the same rows.

Results go to <output_dir>/inference_detection.json and .png. An interrupted run continues.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import jax
import numpy as np

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError
from experiments.common.plots import COLOURS, pyplot, save
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from kme_jax import (
    Bounds,
    Gaussian,
    Measurement,
    PrivacyBudget,
    Release,
    WeightedSample,
    mean_embedding,
    measure,
    perturb,
)
from kme_jax.analysis import independence_test, mmd, two_sample_test

PARTS = ("level", "power", "distance")
KERNEL = Gaussian(gamma=8.0)  # on [0, 1]²: its length is a quarter of a column
LIMIT = 4.0  # bounds of both columns
LEVEL = 0.05
TESTS = {"two_sample": "against public rows", "releases": "two releases", "independence": "independence"}
METHODS = {"release": "release", "dpmmd": "dpMMD", "not_private": "not private"}


@dataclasses.dataclass(frozen=True)
class DetectionConfig(Config):
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = flag(PARTS, f"What to run: {', '.join(PARTS)}.")
    epsilons: tuple[float, ...] = flag((0.1, 1.0, 10.0), "Privacy levels ε of level and distance.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    num_rows: int = flag(5000, "N, private rows and public rows of level and distance.", quick=500)
    num_level: int = flag(1000, "Repeats of level.", quick=3)
    sizes: tuple[int, ...] = flag(
        (5000, 7500, 10_000, 15_000), "N, private rows and public rows of power.", quick=(500, 1000)
    )
    power_epsilons: tuple[float, ...] = flag((0.1, 1.0), "Privacy levels ε of power.", quick=(1.0,))
    shift: float = flag(0.034, "By how much public rows are moved, in both columns.")
    num_tests: int = flag(100, "Repeats of power.", quick=3)
    num_permutations: int = flag(300, "Permutations of dpMMD and of the test that is not private.", quick=40)
    num_distances: int = flag(500, "Releases of distance.", quick=3)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.parts or set(self.parts) - set(PARTS):
            raise InputError(f"--parts must be of {', '.join(PARTS)}, got {','.join(self.parts)!r}")
        if not self.sizes or min(self.sizes) < 100 or len(set(self.sizes)) < len(self.sizes):
            raise InputError(f"--sizes must be different and at least 100, got {','.join(map(str, self.sizes))!r}")
        at_least(self, 100, "num_rows")
        at_least(self, 1, "num_level", "num_tests", "num_distances")
        at_least(self, 20, "num_permutations")
        valid_budgets((*self.epsilons, *self.power_epsilons), self.delta)


def rows_of(rng: np.random.Generator, number: int, shift: float = 0.0) -> np.ndarray:
    """Rows with two independent columns: one skewed, and one with two peaks."""
    first = rng.gamma(2.0, 0.7, number) - 1.4
    second = np.where(rng.random(number) < 0.5, rng.normal(-0.9, 0.4, number), rng.normal(0.9, 0.5, number))
    return np.stack([first, second], axis=1) + shift


def _measured(rows: np.ndarray, budget: PrivacyBudget) -> Measurement:
    bounds = Bounds.create(np.full(2, -LIMIT), np.full(2, LIMIT))
    return measure(rows, KERNEL, budget=budget, bounds=bounds)


def _released(measured: Measurement, points: np.ndarray) -> Release:
    """A release with other points: a sample stands in for the synthesis, which takes a hundred times as long."""
    weights = np.full(len(points), 1 / len(points))
    return Release(measured, WeightedSample(points, weights, measured.noisy.mechanism), 0)


def _level(seed: int, config: DetectionConfig) -> dict[str, Any]:
    """The p-values of all tests at each ε, where the hypotheses are true."""
    rng = np.random.default_rng(seed)
    private, public, others = (rows_of(rng, config.num_rows) for _ in range(3))
    points, p_values = rows_of(rng, 500), {}
    for epsilon in config.epsilons:
        budget = PrivacyBudget(epsilon, config.delta)
        first, second = (_released(_measured(rows, budget), points) for rows in (private, others))
        results = {
            "two_sample": two_sample_test(first, public, seed=seed),
            "releases": two_sample_test(first, second, seed=seed),
            "independence": independence_test(first, 0, 1, seed=seed),
        }
        p_values[f"{epsilon:g}"] = {name: round(result.p_value, 5) for name, result in results.items()}
    return {"part": "level", "setting": config.num_rows, "seed": seed, "p_values": p_values}


def permuted_distances(
    features: np.ndarray, num_private: int, num_permutations: int, rng: np.random.Generator
) -> np.ndarray:
    """The distances of the mean features of both parts of the rows: as they are, and for random parts.

    Args:
      features: of the private rows and then of the public ones, [n, F].
      num_private: number of private rows.
      num_permutations: B.
      rng: of the permutations.

    Returns:
      [1 + B].
    """
    number = len(features)
    chosen = np.zeros((num_permutations + 1, number), np.float32)
    chosen[0, :num_private] = 1
    for row in chosen[1:]:
        row[rng.choice(number, num_private, replace=False)] = 1
    of_private, total = chosen @ features, features.sum(axis=0)
    differences = of_private / num_private - (total[None, :] - of_private) / (number - num_private)
    return np.linalg.norm(differences.astype(np.float64), axis=1)


def permutation_p_value(distances: np.ndarray) -> float:
    """The p-value of the first distance among all of them."""
    return float((1 + np.sum(distances[1:] >= distances[0])) / len(distances))


def dpmmd(distances: np.ndarray, epsilon: float, delta: float, num_private: int, rng: np.random.Generator) -> float:
    """The p-value of dpMMD (Kim & Schrab 2023, algorithm 1).

    A replaced row moves a distance by at most √2/N. Laplace noise of twice that, over ε + log(1/(1 − δ)), is added to
    each distance. (It is drawn in floats: this is for comparison alone.)

    Args:
      distances: of :func:`permuted_distances`.
      epsilon: ε.
      delta: δ.
      num_private: N, at most the number of public rows.
      rng: of the noise.
    """
    noise = 2 * math.sqrt(2) / num_private / (epsilon - math.log1p(-delta))
    return permutation_p_value(distances + rng.laplace(0, noise, len(distances)))


def _power(size: int, seed: int, config: DetectionConfig) -> dict[str, Any]:
    """The p-values of the three tests for N private rows and as many public ones that are moved."""
    rng = np.random.default_rng((seed, size))
    private, public, p_values = rows_of(rng, size), rows_of(rng, size, config.shift), {}
    distances = None
    for epsilon in config.power_epsilons:
        measured = _measured(private, PrivacyBudget(epsilon, config.delta))
        if distances is None:
            feature_map, bounds = measured.noisy.feature_map, measured.bounds
            assert bounds is not None
            features = np.asarray(feature_map(bounds.to_unit(np.concatenate([private, public]))), np.float32)
            distances = permuted_distances(features, size, config.num_permutations, rng)
        released = _released(measured, rows_of(np.random.default_rng(seed), 500))
        p_values[f"{epsilon:g}"] = {
            "release": round(two_sample_test(released, public, seed=seed).p_value, 5),
            "dpmmd": round(dpmmd(distances, epsilon, config.delta, size, rng), 5),
            "not_private": round(permutation_p_value(distances), 5),
        }
    return {"part": "power", "setting": size, "seed": seed, "p_values": p_values}


def _distances(epsilon: float, config: DetectionConfig) -> dict[str, Any]:
    """Estimates of the squared distance of moved public rows from the private rows, from many releases of these."""
    rng = np.random.default_rng(0)
    private, public = rows_of(rng, config.num_rows), rows_of(rng, config.num_rows, config.shift)
    budget = PrivacyBudget(epsilon, config.delta)
    measured = _measured(private, budget)
    feature_map, bounds = measured.noisy.feature_map, measured.bounds
    assert bounds is not None
    embeddings = [mean_embedding(feature_map, bounds.to_unit(rows)) for rows in (private, public)]
    exact = float(np.square(embeddings[0].coordinates - embeddings[1].coordinates).sum())
    estimates = []
    for seed in range(config.num_distances):
        noisy = perturb(jax.random.key(seed), embeddings[0], budget)
        estimates.append(mmd(dataclasses.replace(measured, noisy=noisy), public))
    errors = np.asarray([estimate.value for estimate in estimates]) - exact
    plain = exact + len(embeddings[0].coordinates) * measured.noisy.mechanism.variance
    values = {
        "exact": exact,
        "mean_error": float(errors.mean()),
        "standard_error": float(errors.std(ddof=1) / math.sqrt(len(errors))),
        "deviation": float(errors.std(ddof=1)),
        "stated_deviation": float(np.mean([estimate.standard_error for estimate in estimates])),
        "covers": float(np.mean([estimate.low <= exact <= estimate.high for estimate in estimates])),
        "bias_without_correction": plain - exact,
    }
    return {"part": "distance", "setting": epsilon, "seed": 0, "estimate": values}


def run(config: DetectionConfig) -> dict[str, Any]:
    """All parts. Records are written to <output_dir>/inference_detection.json when they are done."""
    stages, folder = Stages("inference_detection"), check_output_dir(config.output_dir)
    cells = Cells(
        folder / "inference_detection.json", "inference_detection", config.settings(), ("part", "setting", "seed")
    )
    plan = [("distance", epsilon, 0) for epsilon in config.epsilons]
    plan += [("power", size, seed) for seed in range(config.num_tests) for size in config.sizes]
    plan += [("level", config.num_rows, seed) for seed in range(config.num_level)]
    for part, setting, seed in plan:
        if part not in config.parts or (part, setting, seed) in cells:
            continue
        with stages.stage(f"{part} at {setting:g}, seed {seed}"):
            if part == "distance":
                cells.add(_distances(setting, config))
            else:
                cells.add(_power(int(setting), seed, config) if part == "power" else _level(seed, config))
    return cells.result


def _rejected(result: dict[str, Any], part: str, setting: float, epsilon: str, name: str) -> float:
    """The share of repeats in which a hypothesis is rejected at the level 5 %."""
    records = [c["p_values"][epsilon] for c in result["cells"] if (c["part"], c["setting"]) == (part, setting)]
    return float(np.mean([record[name] <= LEVEL for record in records]))


def _settings(result: dict[str, Any], part: str) -> list[float]:
    return sorted({cell["setting"] for cell in result["cells"] if cell["part"] == part})


def level_markdown(result: dict[str, Any]) -> str:
    """The shares of true hypotheses that are rejected, as a table of Markdown."""
    lines = ["| ε | " + " | ".join(TESTS.values()) + " |", "|---" * (1 + len(TESTS)) + "|"]
    for epsilon in result["config"]["epsilons"]:
        for rows in _settings(result, "level"):
            shares = [_rejected(result, "level", rows, f"{epsilon:g}", name) for name in TESTS]
            lines.append(f"| {epsilon:g} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    return "\n".join(lines)


def needed(result: dict[str, Any], epsilon: str, name: str, power: float = 0.8) -> float | None:
    """The number of rows for a power, interpolated on the logarithm; None if it is out of the range of sizes."""
    sizes = _settings(result, "power")
    powers = np.maximum.accumulate([_rejected(result, "power", size, epsilon, name) for size in sizes])
    if not powers[0] <= power <= powers[-1]:
        return None
    return float(np.exp(np.interp(power, powers, np.log(sizes))))


def power_markdown(result: dict[str, Any]) -> str:
    """The shares of shifts that are found, and the rows that are needed for 80 %, as a table of Markdown."""
    sizes = _settings(result, "power")
    lines = ["| ε | test | " + " | ".join(f"N = {size:g}" for size in sizes) + " | N for 80 % |"]
    lines.append("|---" * (3 + len(sizes)) + "|")
    for epsilon in (f"{epsilon:g}" for epsilon in result["config"]["power_epsilons"]):
        for name, title in METHODS.items():
            powers = [f"{100 * _rejected(result, 'power', size, epsilon, name):.0f} %" for size in sizes]
            rows = needed(result, epsilon, name)
            last = "out of range" if rows is None else f"{rows:.0f}"
            lines.append(f"| {epsilon} | {title} | " + " | ".join(powers) + f" | {last} |")
    return "\n".join(lines)


def distance_markdown(result: dict[str, Any]) -> str:
    """The errors of squared distances, as a table of Markdown."""
    lines = ["| ε | exact | mean error | ± | bias without correction | deviation | as stated | covered |"]
    lines.append("|---" * 8 + "|")
    for cell in result["cells"]:
        if cell["part"] == "distance":
            e = cell["estimate"]
            names = (
                "exact",
                "mean_error",
                "standard_error",
                "bias_without_correction",
                "deviation",
                "stated_deviation",
            )
            numbers = " | ".join(f"{e[name]:.2g}" for name in names)
            lines.append(f"| {cell['setting']:g} | {numbers} | {100 * e['covers']:.0f} % |")
    return "\n".join(lines)


def draw(result: dict[str, Any], output: pathlib.Path) -> pathlib.Path:
    """Draws the levels of all tests, and the power of three.

    Args:
      result: of :func:`run`, with levels and powers.
      output: the picture to write, its format by suffix.

    Returns:
      The picture.
    """
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 4), layout="constrained")
    (rows,) = _settings(result, "level")
    epsilons = result["config"]["epsilons"]
    for (name, title), colour in zip(TESTS.items(), COLOURS, strict=False):
        left.plot(
            epsilons,
            [_rejected(result, "level", rows, f"{e:g}", name) for e in epsilons],
            "o-",
            color=colour,
            label=title,
        )
    left.axhline(LEVEL, color="grey", linewidth=0.8)
    left.set(xscale="log", ylim=(0, 0.15), xlabel="ε", ylabel="true hypotheses rejected", title=f"level, N = {rows:g}")
    left.legend()
    sizes = _settings(result, "power")
    for epsilon, style in zip(result["config"]["power_epsilons"], (":", "-", "--", "-."), strict=False):
        for (name, title), colour in zip(METHODS.items(), COLOURS, strict=False):
            powers = [_rejected(result, "power", size, f"{epsilon:g}", name) for size in sizes]
            is_private = name != "not_private"
            if is_private or epsilon == result["config"]["power_epsilons"][0]:
                label = f"{title}, ε = {epsilon:g}" if is_private else title
                right.plot(sizes, powers, style if is_private else "-", marker="o", color=colour, label=label)
    right.set(xscale="log", ylim=(0, 1.03), xlabel="N", ylabel="shifts found", title="power")
    right.legend(loc="lower right", fontsize="small")
    return save(figure, [output])


def main(config: DetectionConfig) -> None:
    """Runs the experiment, and prints its tables."""
    result, path = run(config), pathlib.Path(config.output_dir) / "inference_detection"
    tables = {"level": level_markdown, "power": power_markdown, "distance": distance_markdown}
    for part in config.parts:
        print(f"{part}\n{tables[part](result)}")
    if {"level", "power"} <= set(config.parts):
        draw(result, path.with_suffix(".png"))
    print(f"wrote {path}.json")


if __name__ == "__main__":
    run_main(main, DetectionConfig)
