"""DP-MERF on MNIST and FashionMNIST: table 3 and figure 2 of Harder et al. 2021, with published settings and today's.

python -m experiments.merf.images --data_dir=FOLDER                       # both data sets, five seeds
python -m experiments.merf.images --data_dir=FOLDER --datasets=mnist --num_seeds=1 --epsilons=1

For each data set, ε and seed, a generator is trained on one noisy embedding. Twelve classifiers learn from its samples
and are tested on the real test images. Each result is written when it is done; the same command continues a run that
was interrupted.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.common.errors import InputError, input_errors
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.merf import classifiers, image_files, plot, release
from kme_jax import FourierMap, PrivacyBudget
from kme_jax.feature_maps import LabelledMap, OrientedEdges, TransformedMap
from kme_jax.generators.generator import Generator
from kme_jax.generators.networks import (
    MLP,
    Convolutional,
    Network,
    SmoothImages,
)
from kme_jax.generators.settings import Training
from kme_jax.kernels import Gaussian, GaussianSum

# [H] table 3: accuracy, mean of the classifiers.
PUBLISHED = {("mnist", 1.0): 0.65, ("mnist", 0.2): 0.61, ("fashion_mnist", 1.0): 0.61, ("fashion_mnist", 0.2): 0.53}
_SHOWN_PER_CLASS = 10
_PIXELS = image_files.SIDE**2


@dataclasses.dataclass(frozen=True)
class ImagesConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag(
        "", "Folder with mnist/train-images-idx3-ubyte.gz and so on; without it the public originals are downloaded."
    )
    datasets: tuple[str, ...] = flag(image_files.NAMES, "What to release, of mnist, fashion_mnist.", quick=("mnist",))
    variants: tuple[str, ...] = flag(
        ("improved", "published"),
        "What to run: published (settings of the authors' code), improved (today's default), and the steps between, "
        "each with all that is before it: exact noise, orthogonal, scales, unbiased, styles, smooth; and, instead of "
        "improved, edges (kernels on edges beside those on pixels) or pooled (three generators of one embedding).",
        quick=("improved",),
    )
    epsilons: tuple[float, ...] = flag((1.0, 0.2), "Privacy levels ε.", quick=(1.0,))
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    num_seeds: int = flag(5, "Seeds: frequencies, noise, generators and classifiers.", quick=1)
    num_samples: int = flag(10_000, "Synthetic images that classifiers learn from.", quick=1000)
    large_samples: int = flag(60_000, "Synthetic images that they learn from once more, for the first seeds.")
    num_large_seeds: int = flag(1, "Seeds for which they do; 0 for none.", quick=0)
    classifiers: tuple[str, ...] = flag(
        classifiers.NAMES, "Which of the twelve classifiers.", quick=("logistic_regression", "gaussian_nb")
    )
    validation: int = flag(
        0, "So many of the private images are set aside and tested on, in the place of the test images: for choosing."
    )
    num_steps: int = flag(0, "Steps of training, in one cycle; 0 for those of the variant.", quick=100)
    real_rows: bool = flag(True, "Train the classifiers on as many real images, too.", quick=False)
    output_dir: str = flag("results", "Folder for the JSON results and pictures.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "datasets", image_files.NAMES)
        one_or_more_of(self, "variants", tuple(VARIANTS))
        one_or_more_of(self, "classifiers", classifiers.NAMES)
        if not self.epsilons or len(set(self.epsilons)) < len(self.epsilons):
            raise InputError(f"--epsilons must be one or more, and different, got {self.epsilons}")
        at_least(self, 1, "num_seeds", "num_samples", "large_samples")
        at_least(self, 0, "validation", "num_steps", "num_large_seeds")
        valid_budgets(self.epsilons, self.delta)


# A public rule: two images with pixels uniform between 0 and 1 are at an expected squared distance of 784/6.
_SQUARE = _PIXELS / 6
# Edges of smooth random images, with amplitudes of f^-1.5, are then at about the same distance.
_EDGES = OrientedEdges(weight=11.0)
_PUBLISHED_SQUARES = {"mnist": 105.0, "fashion_mnist": 127.0}  # σ² in the authors' code
# Fields that say which records there are. A record does not depend on them.
_SWEEP = ("datasets", "variants", "epsilons", "num_seeds", "num_samples", "large_samples", "num_large_seeds")


@dataclasses.dataclass(frozen=True)
class Variant:
    """How DP-MERF is run.

    Attributes:
      about: what it is, or what it adds to the variant before it.
      privacy: of the measurements.
      network: of the generator.
      training: of the generator.
      orthogonal: see ``FourierMap``.
      scales: γ of the kernel exp(−γ ‖x − y‖²) as multiples of 1/(784/6); several have equal weight. If it is empty, γ
        is that of the authors' code, which is close to a median of private distances.
      edges: the same for kernels on edges, in equal parts with those on pixels, of ``scales``; empty for
        pixels alone.
      num_features: J.
    """

    about: str
    privacy: release.Privacy
    network: Network
    training: Training
    orthogonal: bool = True
    scales: tuple[float, ...] = (0.5,)
    edges: tuple[float, ...] = ()
    num_features: int = 10_000

    def features(self, key: jax.Array, dataset: str) -> LabelledMap:
        """ψ."""
        if self.edges:
            columns = np.arange(_EDGES.num_outputs) < _EDGES.num_pixels
            terms = [scale * columns for scale in self.scales] + [scale * ~columns for scale in self.edges]
            kernel, dim = GaussianSum(np.asarray(terms) / _SQUARE), _EDGES.num_outputs
            fourier = FourierMap.from_kernel(key, kernel, self.num_features, dim, orthogonal=self.orthogonal)
            return LabelledMap(TransformedMap(fourier, _EDGES), image_files.NUM_CLASSES)
        gammas = [scale / _SQUARE for scale in self.scales] or [1 / (2 * _PUBLISHED_SQUARES[dataset])]
        kernel = Gaussian(gammas[0]) if len(gammas) == 1 else GaussianSum([[gamma] * _PIXELS for gamma in gammas])
        fourier = FourierMap.from_kernel(key, kernel, self.num_features, _PIXELS, orthogonal=self.orthogonal)
        return LabelledMap(fourier, image_files.NUM_CLASSES)


_NOISE = release.Privacy(noise_multipliers=((1.0, 5.0), (0.2, 25.0)))
_EXACT = release.Privacy(class_counts=True)
_PUBLISHED = Training(
    num_steps=3000, num_cycles=1, batch_size=100, learning_rate=0.01, decay=0.9, decay_steps=600, unbiased=False
)
_TRAINING = Training(num_steps=1000, num_cycles=1, batch_size=500, learning_rate=5e-3, features_per_step=2000)
_CYCLES = dataclasses.replace(_TRAINING, num_steps=500, num_cycles=10)
_SCALES = (1.0, 2.0, 4.0)
VARIANTS = {
    "published": Variant(
        "settings of the authors' code", _NOISE, Convolutional(), _PUBLISHED, orthogonal=False, scales=()
    ),
    "exact noise": Variant(
        "σ from the exact condition; counts of classes", _EXACT, Convolutional(), _PUBLISHED, False, ()
    ),
    "orthogonal": Variant("orthogonal features, length from a public rule", _EXACT, Convolutional(), _PUBLISHED),
    "scales": Variant("three shorter lengths", _EXACT, Convolutional(), _PUBLISHED, scales=_SCALES),
    "unbiased": Variant("linear layers, unbiased objective", _EXACT, MLP(widths=(200, 500)), _TRAINING, scales=_SCALES),
    "styles": Variant(
        "a discrete input of 16 values", _EXACT, MLP(widths=(200, 500), styles=16), _TRAINING, scales=_SCALES
    ),
    "smooth": Variant("smooth images with noise in pixels", _EXACT, SmoothImages(), _TRAINING, scales=_SCALES),
    "improved": Variant("training up to the size of the noise", _EXACT, SmoothImages(), _CYCLES, scales=_SCALES),
    "edges": Variant(
        "kernels on edges beside those on pixels", _EXACT, SmoothImages(), _CYCLES, scales=_SCALES, edges=_SCALES
    ),
    "pooled": Variant(
        "three generators of one noisy embedding",
        _EXACT,
        SmoothImages(),
        dataclasses.replace(_CYCLES, num_generators=3),
        scales=_SCALES,
    ),
}


def result_path(config: ImagesConfig, dataset: str) -> pathlib.Path:
    """Where the results of a data set are kept."""
    return pathlib.Path(config.output_dir) / f"merf_images_{dataset}.json"


def run(config: ImagesConfig, variants: Mapping[str, Variant] | None = None) -> dict[str, dict[str, Any]]:
    """All data sets, {name: result}. Each record is written to its JSON when it is done.

    Args:
      config: the configuration.
      variants: what the names of ``config.variants`` mean. Default: ``VARIANTS``.

    Raises:
      InputError: if data are missing.
    """
    check_output_dir(config.output_dir)
    return {name: _run(config, name, VARIANTS if variants is None else variants) for name in config.datasets}


def _run(config: ImagesConfig, name: str, variants: Mapping[str, Variant]) -> dict[str, Any]:
    data = image_files.load(name, config.data_dir)
    if config.validation:
        data = set_aside(data, config.validation)
    names = ("variant", "epsilon", "seed", "num_samples")
    settings = config.settings("data_dir", "real_rows", *_SWEEP) | {"dataset": name}
    cells = Cells(result_path(config, name), "merf_images", settings, names)
    rows = data.rows()
    for seed in range(config.num_seeds):
        sizes = [config.num_samples] + [config.large_samples] * (seed < config.num_large_seeds)
        for source in _sources(config):
            missing_sizes = [size for size in sizes if (*source, seed, size) not in cells]
            if not missing_sizes:
                continue
            variant, epsilon = source
            title = variant if epsilon is None else f"{variant}, ε = {epsilon:g}"
            stages = Stages(f"{image_files.TITLES[name]}, {title}, seed {seed}")
            generator, about = None, {}
            if epsilon is not None:
                budget = PrivacyBudget(epsilon, config.delta)
                generator, about = generate(variants[variant], name, rows, budget, seed, stages, config.num_steps)
            for size in missing_sizes:
                samples = _samples(generator, rows, size, seed)
                with stages.stage(f"classifiers, {size} rows") as progress:
                    scores = classifiers.scores(
                        samples[:, :-1],
                        samples[:, -1].astype(int),
                        data.test.astype(np.float32) / 255,
                        data.test_labels,
                        seed,
                        names=config.classifiers,
                        num_processes=max(1, os.cpu_count() or 1),
                        progress=progress,
                    )
                cell = dict(zip(names, (variant, epsilon, seed, size), strict=True)) | about | {"scores": scores}
                if generator is not None and seed == 0 and size == sizes[0]:
                    cell["sheet"] = sheet(generator)
                    if isinstance(generator.network, SmoothImages):
                        cell["sheet_without_noise"] = sheet(generator, noise=False)
                cells.add(cell | {"seconds": dict(stages.seconds)})
    return cells.result


def _sources(config: ImagesConfig) -> list[tuple[str, float | None]]:
    """Sources of the rows that classifiers learn from: real rows, and every variant at every ε."""
    releases = [(variant, float(epsilon)) for variant in config.variants for epsilon in config.epsilons]
    return [("real rows", None)] * config.real_rows + releases


def _samples(generator: Generator | None, rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Rows [size, 785] of a generator, or real rows if there is none (at most all of them)."""
    if generator is not None:
        return generator.sample(size, seed=seed)
    return rows[np.random.default_rng(seed).permutation(len(rows))[:size]]


def set_aside(data: image_files.Images, number: int) -> image_files.Images:
    """Removes the last ``number`` private images, and puts them in the place of the test images.

    Raises:
      InputError: if there are not more private images than ``number``.
    """
    if number >= len(data.private):
        raise InputError(f"--validation must be below the {len(data.private)} private images, got {number}")
    return image_files.Images(
        data.name,
        data.private[:-number],
        data.private_labels[:-number],
        data.private[-number:],
        data.private_labels[-number:],
    )


def generate(
    variant: Variant,
    dataset: str,
    rows: np.ndarray,
    budget: PrivacyBudget,
    seed: int,
    stages: Stages,
    num_steps: int = 0,
) -> tuple[Generator, dict[str, Any]]:
    """Trains one generator on rows [N, 785] whose last column is the label, and returns it with entries of a record.

    ``num_steps`` are those of the training, in one cycle; 0 for those of the variant.
    """
    if num_steps:
        training = dataclasses.replace(variant.training, num_steps=num_steps, num_cycles=1)
        variant = dataclasses.replace(variant, training=training)
    keys = jax.random.split(jax.random.key(seed), 3)
    with stages.stage("embedding") as progress:
        sums = release.mean_of(variant.features(keys[0], dataset), rows, progress)
    with input_errors():
        measured = variant.privacy.measure(keys[1], sums, budget)
    with stages.stage("training") as progress:
        generator = release.train(
            keys[2], measured, variant.network, variant.training, (0.0, 1.0), levels=255, progress=progress
        )
    return generator, release.report(generator, measured)


def sheet(generator: Generator, noise: bool = True) -> str:
    """Ten images of each class, as text."""
    labels = np.repeat(np.arange(image_files.NUM_CLASSES), _SHOWN_PER_CLASS)
    return image_files.pack(generator.sample(len(labels), seed=0, labels=labels, noise=noise)[:, :-1])


def accuracy(cell: dict[str, Any]) -> float:
    """Accuracy of a record: the mean over its classifiers."""
    return float(np.mean([scores["accuracy"] for scores in cell["scores"].values()]))


def markdown(result: dict[str, Any]) -> str:
    """Accuracy, mean of the classifiers and of seeds ± standard error, as a table of Markdown."""
    name = result["config"]["dataset"]
    lines = [
        f"| {image_files.TITLES[name]}, δ = {result['config']['delta']:g} | ε | images learnt from | accuracy, mean of "
        f"{len(result['config']['classifiers'])} classifiers | [H] | seeds | seconds of measuring and training |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["variant"], cell["epsilon"], cell["num_samples"]), []).append(cell)
    for variant, epsilon, size in sorted(groups, key=_order):
        cells = groups[variant, epsilon, size]
        values = np.asarray([accuracy(cell) for cell in cells])
        error = f" ± {values.std(ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        seconds = np.median(
            [sum(cell["seconds"].get(stage, 0) for stage in ("embedding", "training")) for cell in cells]
        )
        title = f"{variant}: {VARIANTS[variant].about}" if variant in VARIANTS else variant
        lines.append(
            f"| {title} | {'–' if epsilon is None else f'{epsilon:g}'} | {size} | {values.mean():.3f}{error} "
            f"| {PUBLISHED.get((name, epsilon), '–')} | {len(cells)} | {'–' if epsilon is None else f'{seconds:.0f}'} |"
        )
    return "\n".join(lines)


def _order(group: tuple[str, float | None, int]) -> tuple[int, int, float]:
    """Sort key of a line: size, then real rows before variants in the order of the ablation, then falling ε."""
    variant, epsilon, size = group
    return size, (list(VARIANTS).index(variant) + 1 if variant in VARIANTS else 0), -(epsilon or 0)


def main(config: ImagesConfig) -> None:
    """Runs the experiment, prints its tables and draws it."""
    results = run(config)
    print("\n\n".join(map(markdown, results.values())))
    paths = [result_path(config, name) for name in results]
    picture = plot.draw_images(paths, pathlib.Path(config.output_dir) / "merf_images.png")
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    run_main(main, ImagesConfig)
