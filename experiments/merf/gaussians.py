"""DP-MERF on a grid of Gaussians: figure 1 of Harder et al. 2021, with the published settings and today's default.

python -m experiments.merf.gaussians                         # both variants, five seeds
python -m experiments.merf.gaussians --variants=improved --num_seeds=1

25 Gaussians of standard deviation 0.2 at (0, 0), (0, 1), ..., (4, 4), five of each of five classes; 90 000 private
rows. The exact density of the rows judges a generator: by the negative log-likelihood of its samples, the modes that it
keeps, and the spread of each mode.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.common.errors import InputError
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.merf import plot, release
from kme_jax import FourierMap, PrivacyBudget
from kme_jax.feature_maps import LabelledMap
from kme_jax.generators.networks import MLP
from kme_jax.generators.settings import Training
from kme_jax.kernels import Gaussian, GaussianSum

SIDE = 5  # modes in a row of the grid, and classes
SPREAD = 0.2
_BOUNDS = (-1.0, 5.0)  # public: the grid and a margin of one
_KEPT = 0.2  # share of the samples that a mode should have: a mode with fewer is dropped
_TOLERANCE = 0.15  # of a standard deviation
_NUM_SHOWN = 2000


@dataclasses.dataclass(frozen=True)
class GaussiansConfig(Config):
    """Configuration: one field per flag."""

    variants: tuple[str, ...] = flag(
        ("published", "improved"), "What to run: published (settings of the paper), improved (today's default)."
    )
    epsilon: float = flag(1.0, "ε of (ε, δ)-differential privacy.")
    delta: float = flag(1e-5, "δ.")
    num_rows: int = flag(90_000, "N, private rows, a multiple of 25.", quick=2500)
    num_seeds: int = flag(5, "Seeds: rows, noise and generators.", quick=1)
    num_samples: int = flag(90_000, "Synthetic rows that are judged.", quick=2500)
    num_steps: int = flag(0, "Steps of training, in one cycle; 0 for those of the variant.", quick=200)
    output_dir: str = flag("results", "Folder for the JSON result and its picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "variants", tuple(VARIANTS))
        if self.num_rows < SIDE**2 or self.num_rows % SIDE**2:
            raise InputError(f"--num_rows must be a multiple of {SIDE**2}, got {self.num_rows}")
        at_least(self, 1, "num_seeds", "num_samples")
        at_least(self, 0, "num_steps")
        valid_budgets((self.epsilon,), self.delta)


@dataclasses.dataclass(frozen=True)
class Variant:
    """How DP-MERF is run.

    Attributes:
      length_scales: of the kernel; several have equal weight.
      num_features: J.
      orthogonal: see ``FourierMap``.
      privacy: see ``release.Privacy``.
      network: of the generator.
      training: of it.
      bounded: whether the generator's numbers are between the public bounds.
    """

    length_scales: tuple[float, ...]
    num_features: int
    orthogonal: bool
    privacy: release.Privacy
    network: MLP
    training: Training
    bounded: bool

    def features(self, key: jax.Array) -> LabelledMap:
        """ψ: public."""
        gammas = [1 / (2 * length**2) for length in self.length_scales]
        kernel = Gaussian(gammas[0]) if len(gammas) == 1 else GaussianSum([[gamma] * 2 for gamma in gammas])
        fourier = FourierMap.from_kernel(key, kernel, self.num_features, 2, orthogonal=self.orthogonal)
        return LabelledMap(fourier, SIDE)


# A public rule: rows that are uniform between the bounds have an expected squared distance of d (upper − lower)²/6; its
# root, and its halves down to a 32nd, so that structure of any size is seen.
_LENGTH = math.sqrt(2 / 6) * (_BOUNDS[1] - _BOUNDS[0])
VARIANTS = {
    "published": Variant(
        length_scales=(math.sqrt(0.5),),
        num_features=30_000,
        orthogonal=False,
        privacy=release.Privacy(noise_multipliers=((1.0, 5.0), (0.2, 25.0))),
        network=MLP(),
        training=Training(
            num_steps=10_000,
            num_cycles=1,
            batch_size=500,
            learning_rate=3e-3,
            decay=0.9,
            decay_steps=200,
            unbiased=False,
        ),
        bounded=False,
    ),
    "improved": Variant(
        length_scales=tuple(_LENGTH / 2**k for k in range(6)),
        num_features=10_000,
        orthogonal=True,
        privacy=release.Privacy(class_counts=True),
        network=MLP(styles=16),
        training=Training(num_steps=5000, num_cycles=1, batch_size=1000, features_per_step=2000),
        bounded=True,
    ),
}


def centres() -> tuple[np.ndarray, np.ndarray]:
    """Centres of the Gaussians, [25, 2], and their classes, [25]. Centres of one class share no row and no column."""
    row, column = (values.reshape(-1) for values in np.mgrid[:SIDE, :SIDE])
    return np.stack([row, column], axis=1).astype(float), (row + 2 * column) % SIDE


def draw(num_rows: int, seed: int) -> np.ndarray:
    """Rows of the mixture, [N, 3], equally many of each Gaussian. The last column is the class."""
    means, classes = centres()
    modes = np.repeat(np.arange(len(means)), num_rows // len(means))
    points = means[modes] + SPREAD * np.random.default_rng(seed).normal(size=(len(modes), 2))
    return np.concatenate([points, classes[modes, None]], axis=1)


def negative_log_likelihood(rows: np.ndarray) -> np.ndarray:
    """−log p(x, y) of rows [n, 3] under the mixture, in nats: [n]. (The authors' code has the normaliser of one
    dimension, which makes it larger by −log(√(2π) 0.2) = 0.69.)"""
    means, classes = centres()
    squared = np.sum(np.square(rows[:, None, :2] - means), axis=2)
    logs = -squared / (2 * SPREAD**2) - math.log(2 * math.pi * SPREAD**2 * len(means))
    return -logsumexp(np.where(classes == rows[:, 2:], logs, -np.inf), axis=1)


def judge(rows: np.ndarray) -> dict[str, Any]:
    """Mean negative log-likelihood of samples [n, 3], number of modes kept, and the standard deviation of each mode.

    A sample belongs to the nearest mode of its class, however far away it is. A mode is kept if at least a fifth of the
    samples that it should have are within three standard deviations of it. Its own standard deviation is that of all
    samples that belong to it, the root of the mean over the two columns of their variances; "core" is of those within
    three standard deviations.
    """
    means, classes = centres()
    distances = np.sqrt(np.sum(np.square(rows[:, None, :2] - means), axis=2))
    distances = np.where(classes == rows[:, 2:], distances, np.inf)
    nearest = distances.argmin(axis=1)
    near = distances.min(axis=1) <= 3 * SPREAD
    kept, spreads, cores = 0, [], []
    for mode in range(len(means)):
        belong = nearest == mode
        kept += np.sum(belong & near) >= _KEPT * len(rows) / len(means)
        for which, deviations in ((belong, spreads), (belong & near, cores)):
            deviations.append(float(np.sqrt(np.mean(np.var(rows[which, :2], axis=0)))) if np.sum(which) > 1 else 0.0)
    return {
        "nll": float(np.mean(negative_log_likelihood(rows))),
        "modes": int(kept),
        "spreads": spreads,
        "core_spreads": cores,
        "outside": float(np.mean(~near)),
    }


def run(config: GaussiansConfig, variants: Mapping[str, Variant] | None = None) -> dict[str, Any]:
    """All variants and seeds. Each record is written to the JSON when it is done.

    Args:
      config: the configuration.
      variants: what the names of ``config.variants`` mean.
    """
    check_output_dir(config.output_dir)
    path = pathlib.Path(config.output_dir) / "merf_gaussians.json"
    variants = VARIANTS if variants is None else variants
    settings = config.settings("variants", "num_seeds")
    cells = Cells(path, "merf_gaussians", settings, ("variant", "seed"))
    for seed in range(config.num_seeds):
        rows = draw(config.num_rows, seed)
        real = draw(-(-config.num_samples // SIDE**2) * SIDE**2, seed + 10_000)[: config.num_samples]
        if ("real rows", seed) not in cells:
            shown = np.random.default_rng(seed).permutation(len(real))[:_NUM_SHOWN]
            cells.add({"variant": "real rows", "seed": seed} | judge(real) | _shown(real[shown], seed))
        for name in config.variants:
            if (name, seed) in cells:
                continue
            variant = variants[name]
            if config.num_steps:
                training = dataclasses.replace(variant.training, num_steps=config.num_steps, num_cycles=1)
                variant = dataclasses.replace(variant, training=training)
            keys = jax.random.split(jax.random.key(seed), 3)
            stages = Stages(f"{name}, seed {seed}")
            with stages.stage("embedding") as progress:
                sums = release.mean_of(variant.features(keys[0]), rows, progress)
            measured = variant.privacy.measure(keys[1], sums, PrivacyBudget(config.epsilon, config.delta))
            with stages.stage("training") as progress:
                bounds = _BOUNDS if variant.bounded else None
                generator = release.train(
                    keys[2], measured, variant.network, variant.training, bounds, progress=progress
                )
            samples = generator.sample(config.num_samples, seed=seed)
            cell = {"variant": name, "seed": seed} | judge(samples.astype(float)) | _shown(samples[:_NUM_SHOWN], seed)
            cells.add(cell | {"seconds": stages.seconds} | release.report(generator, measured))
    return cells.result


def _shown(rows: np.ndarray, seed: int) -> dict[str, Any]:
    """Samples of the first seed, for the picture. Other seeds have none."""
    return {"samples": np.round(rows.astype(float), 3).tolist()} if seed == 0 else {}


def markdown(result: dict[str, Any]) -> str:
    """Means over seeds ± standard errors, as a table of Markdown."""
    lines = [
        "| 2-D grid, ε = {epsilon:g}, δ = {delta:g} | NLL per point | modes of 25 | standard deviation of modes, "
        "least and largest mean of seeds | of any one seed | within 15 % of 0.2 | outside of 3 σ | seeds "
        "| seconds |".format(**result["config"]),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(cell["variant"] for cell in result["cells"]):
        cells = [cell for cell in result["cells"] if cell["variant"] == name]
        values = np.asarray([cell["nll"] for cell in cells])
        error = f" ± {values.std(ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        spreads = np.asarray([cell["spreads"] for cell in cells])
        within = np.abs(spreads / SPREAD - 1) <= _TOLERANCE
        modes = sorted({cell["modes"] for cell in cells})
        seconds = np.median([sum(cell["seconds"].values()) for cell in cells]) if "seconds" in cells[0] else None
        lines.append(
            f"| {name} | {values.mean():.3f}{error} | {modes[0]}{f' to {modes[-1]}' if len(modes) > 1 else ''} "
            f"| {spreads.mean(axis=0).min():.3f} to {spreads.mean(axis=0).max():.3f} "
            f"| {spreads.min():.3f} to {spreads.max():.3f} "
            f"| {within.sum()} of {within.size} | {100 * np.mean([cell['outside'] for cell in cells]):.1f} % "
            f"| {len(cells)} | {'–' if seconds is None else f'{seconds:.0f}'} |"
        )
    return "\n".join(lines)


def main(config: GaussiansConfig) -> None:
    """Runs the experiment, prints its table and draws it."""
    result = run(config)
    print(markdown(result))
    path = pathlib.Path(config.output_dir) / "merf_gaussians.json"
    picture = plot.draw_gaussians(path, path.with_suffix(".png"))
    print(f"wrote {path} and {picture}")


if __name__ == "__main__":
    run_main(main, GaussiansConfig)
