"""DP-MERF judged by a residual network that learns from synthetic images: the protocol of DPImageBench.

python -m experiments.merf.cnn --data_dir=FOLDER                                 # both data sets, ε = 1
python -m experiments.merf.cnn --data_dir=FOLDER --epsilons=0.05,0.2,1,5,10      # a curve

For each data set, ε and seed, a generator is trained on one noisy embedding. A network (``experiments.merf.resnet``)
learns from its samples alone and is tested on the real test images, with and without random changes of the training
images. Each result is written when it is done; the same command continues a run that was interrupted.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.common.errors import InputError
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.merf import image_files, images, plot, resnet
from kme_jax import PrivacyBudget

# Accuracies at ε = 1 and δ = 1e-5 as DPImageBench (Gong et al. 2025) has them, with its own classifiers.
QUOTED = {
    "DP-MERF": {"mnist": 0.803, "fashion_mnist": 0.622},
    "DP-Kernel": {"mnist": 0.940, "fashion_mnist": 0.684},
    "DP-GAN": {"mnist": 0.924, "fashion_mnist": 0.718},
    "DPDM": {"mnist": 0.892, "fashion_mnist": 0.764},
    "DP-FETA": {"mnist": 0.956, "fashion_mnist": 0.817},
}
QUOTED_EPSILON = 1.0
VARIANTS = {name: images.VARIANTS[name] for name in ("improved", "edges")}
CHANGES = {"none": None, "affine": resnet.Augmentation()}
_NAMES = ("variant", "epsilon", "seed", "changes")


@dataclasses.dataclass(frozen=True)
class CnnConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag(
        "", "Folder with mnist/train-images-idx3-ubyte.gz and so on; without it the public originals are downloaded."
    )
    datasets: tuple[str, ...] = flag(image_files.NAMES, "What to release, of mnist, fashion_mnist.", quick=("mnist",))
    variants: tuple[str, ...] = flag(
        tuple(VARIANTS), f"How the generator is trained, of {', '.join(VARIANTS)}.", quick=("improved",)
    )
    epsilons: tuple[float, ...] = flag((1.0,), "Privacy levels ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    num_seeds: int = flag(2, "Seeds: frequencies, noise, generators and networks.", quick=1)
    first_seed: int = flag(0, "The first of them.")
    num_samples: int = flag(60_000, "Synthetic images that the network learns from.", quick=1000)
    num_epochs: int = flag(3, "How often it sees each of them.", quick=1)
    changes: tuple[str, ...] = flag(
        tuple(CHANGES),
        "Random changes of its training images, of none, affine (shifts by up to 2 pixels, turns by up to 10 degrees, "
        "sizes by up to a tenth).",
        quick=("none",),
    )
    validation: int = flag(
        0, "So many of the private images are set aside and tested on, in the place of the test images: for choosing."
    )
    num_steps: int = flag(0, "Steps of training, in one cycle; 0 for those of the variant.", quick=100)
    real_rows: bool = flag(True, "Train the network on as many real images, too, for the first seed.", quick=False)
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "datasets", image_files.NAMES)
        one_or_more_of(self, "variants", tuple(VARIANTS))
        one_or_more_of(self, "changes", tuple(CHANGES))
        if not self.epsilons or len(set(self.epsilons)) < len(self.epsilons):
            raise InputError(f"--epsilons must be one or more, and different, got {self.epsilons}")
        at_least(self, 1, "num_seeds", "num_samples", "num_epochs")
        at_least(self, 0, "first_seed", "validation", "num_steps")
        valid_budgets(self.epsilons, self.delta)


# Fields that say which records there are. A record does not depend on them.
_SWEEP = ("datasets", "variants", "epsilons", "num_seeds", "first_seed", "changes", "real_rows")


def result_path(config: CnnConfig, dataset: str) -> pathlib.Path:
    """Where the results of a data set are kept."""
    return pathlib.Path(config.output_dir) / f"merf_cnn_{dataset}.json"


def run(config: CnnConfig, variants: Mapping[str, images.Variant] | None = None) -> dict[str, dict[str, Any]]:
    """All data sets, {name: result}. Each record is written to its JSON when it is done.

    Args:
      config: the configuration.
      variants: what the names of ``config.variants`` mean. Default: ``VARIANTS``.

    Raises:
      InputError: if data are missing.
    """
    check_output_dir(config.output_dir)
    return {name: _run(config, name, VARIANTS if variants is None else variants) for name in config.datasets}


def _run(config: CnnConfig, name: str, variants: Mapping[str, images.Variant]) -> dict[str, Any]:
    data = image_files.load(name, config.data_dir)
    if config.validation:
        data = images.set_aside(data, config.validation)
    settings = config.settings("data_dir", *_SWEEP) | {"dataset": name}
    cells = Cells(result_path(config, name), "merf_cnn", settings, _NAMES)
    rows, seeds = data.rows(), range(config.first_seed, config.first_seed + config.num_seeds)
    releases = [(variant, float(epsilon)) for variant in config.variants for epsilon in config.epsilons]
    for seed in seeds:
        sources = [("real rows", None)] * (config.real_rows and seed == seeds[0]) + releases
        for variant, epsilon in sources:
            missing = [changes for changes in config.changes if (variant, epsilon, seed, changes) not in cells]
            if not missing:
                continue
            title = variant if epsilon is None else f"{variant}, ε = {epsilon:g}"
            stages = Stages(f"{image_files.TITLES[name]}, {title}, seed {seed}")
            about: dict[str, Any] = {}
            if epsilon is None:
                samples = rows[np.random.default_rng(seed).permutation(len(rows))[: config.num_samples]]
            else:
                budget = PrivacyBudget(epsilon, config.delta)
                generator, about = images.generate(
                    variants[variant], name, rows, budget, seed, stages, config.num_steps
                )
                samples = generator.sample(config.num_samples, seed=seed)
                about |= {"sheet": images.sheet(generator)} if seed == 0 else {}
            for changes in missing:
                cell = dict(zip(_NAMES, (variant, epsilon, seed, changes), strict=True))
                cells.add(cell | about | _judged(config, samples, data, seed, changes, stages))
                about.pop("sheet", None)
    return cells.result


def _judged(
    config: CnnConfig, samples: np.ndarray, data: image_files.Images, seed: int, changes: str, stages: Stages
) -> dict[str, Any]:
    """Entries of a record: accuracy, recall of each class, and seconds."""
    started = time.perf_counter()
    with stages.stage(f"network, changes: {changes}") as progress:
        predicted = resnet.predicted(
            samples[:, :-1], samples[:, -1], data.test.astype(np.float32) / 255, seed,
            num_epochs=config.num_epochs, augmentation=CHANGES[changes], progress=progress,
        )  # fmt: skip
    found = predicted == data.test_labels
    recalls = [float(np.mean(found[data.test_labels == label])) for label in np.unique(data.test_labels)]
    seconds = {name: stages.seconds[name] for name in ("embedding", "training") if name in stages.seconds}
    seconds["network"] = time.perf_counter() - started
    return {"accuracy": float(np.mean(found)), "recalls": recalls, "seconds": seconds}


def markdown(result: dict[str, Any]) -> str:
    """Accuracy, mean of seeds, with each kind of changes, as a table of Markdown. Quoted rows come last."""
    config = result["config"]
    name, kinds = config["dataset"], [kind for kind in CHANGES if kind in {c["changes"] for c in result["cells"]}]
    titles = {"none": "accuracy", "affine": "accuracy, training images changed"}
    lines = [
        f"| {image_files.TITLES[name]}, δ = {config['delta']:g} | ε | {' | '.join(titles[kind] for kind in kinds)} "
        "| seeds | seconds of measuring and training | seconds of the network |",
        f"|---|---|{'---|' * len(kinds)}---|---|---|",
    ]
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["variant"], cell["epsilon"]), []).append(cell)
    for (variant, epsilon), cells in sorted(groups.items(), key=lambda group: _order(*group[0])):
        accuracies = " | ".join(_mean([c["accuracy"] for c in cells if c["changes"] == kind]) for kind in kinds)
        measuring = [sum(c["seconds"].get(stage, 0) for stage in ("embedding", "training")) for c in cells]
        network = np.median([c["seconds"]["network"] for c in cells])
        title = f"{variant}: {VARIANTS[variant].about}" if variant in VARIANTS else variant
        lines.append(
            f"| {title} | {'–' if epsilon is None else f'{epsilon:g}'} | {accuracies} "
            f"| {len({c['seed'] for c in cells})} | {'–' if epsilon is None else f'{np.median(measuring):.0f}'} "
            f"| {network:.0f} |"
        )
    for method, accuracies in QUOTED.items():
        others = " – |" * (len(kinds) + 2)
        lines.append(f"| {method} (quoted) | {QUOTED_EPSILON:g} | {accuracies[name]:.3f} |{others}")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    if not values:
        return "–"
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def _order(variant: str, epsilon: float | None) -> tuple[int, float]:
    """Sort key of a line: real rows, then variants, then falling ε."""
    return (list(VARIANTS).index(variant) + 1 if variant in VARIANTS else 0), -(epsilon or 0)


def main(config: CnnConfig) -> None:
    """Runs the experiment, prints its tables and draws it."""
    results = run(config)
    print("\n\n".join(map(markdown, results.values())))
    paths = [result_path(config, name) for name in results]
    picture = plot.draw_cnn(paths, QUOTED, QUOTED_EPSILON, pathlib.Path(config.output_dir) / "merf_cnn.png")
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    run_main(main, CnnConfig)
