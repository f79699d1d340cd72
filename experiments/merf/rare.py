"""DP-MERF where one class is rare: recall of that class and of the others, by a classifier of synthetic images.

python -m experiments.merf.rare --data_dir=FOLDER                                # three classes, five seeds
python -m experiments.merf.rare --data_dir=FOLDER --classes=8 --num_seeds=1 --divisors=10

One class of the private images is cut to a tenth or to a hundredth. A logistic regression learns from equally many
synthetic images of each class, and is tested on the real test images. It also learns from a release of all images, from
real images of the cut data set, and from a release in which rare classes do not borrow. Each result is written when it
is done; the same command continues a run that was interrupted.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.common.errors import InputError, input_errors
from experiments.common.program import run_main
from experiments.common.progress import Stages
from experiments.common.results import Cells, check_output_dir
from experiments.merf import classifiers, image_files, images, release
from kme_jax import PrivacyBudget

SOURCES = {
    "borrowing": "rare classes borrow (default)",
    "alone": "every class alone",
    "real rows": "real images of the cut data set",
}
_NAMES = ("seed", "label", "divisor", "source")


@dataclasses.dataclass(frozen=True)
class RareConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag(
        "", "Folder with mnist/train-images-idx3-ubyte.gz and so on; without it the public originals are downloaded."
    )
    dataset: str = flag("mnist", "What to release.", choices=image_files.NAMES)
    classes: tuple[int, ...] = flag((2, 5, 8), "The classes that are cut, one at a time.", quick=(8,))
    divisors: tuple[int, ...] = flag((10, 100), "The part of the class that is left: one row of so many.", quick=(10,))
    sources: tuple[str, ...] = flag(
        tuple(SOURCES), "What the classifier learns from, of borrowing, alone, real rows.", quick=("borrowing",)
    )
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    num_seeds: int = flag(5, "Seeds: rows that are cut, frequencies, noise, generators and classifiers.", quick=1)
    first_seed: int = flag(0, "The first of them.")
    num_alone_seeds: int = flag(1, "Seeds for the source alone.")
    num_least_seeds: int = flag(1, "Seeds for every divisor but the first.")
    num_samples: int = flag(10_000, "Images that the classifier learns from.", quick=1000)
    num_cycles: int = flag(0, "Largest number of cycles of training; 0 for that of the default.", quick=2)
    num_steps: int = flag(0, "Steps of each cycle of training; 0 for those of the default.", quick=50)
    output_dir: str = flag("results", "Folder for the JSON result.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "sources", tuple(SOURCES))
        if not self.classes or not set(self.classes) <= set(range(image_files.NUM_CLASSES)):
            raise InputError(f"--classes must be one or more numbers from 0 to 9, got {self.classes}")
        if not self.divisors or min(self.divisors) < 2:
            raise InputError(f"--divisors must be one or more numbers of at least 2, got {self.divisors}")
        at_least(self, 1, "num_seeds", "num_samples")
        at_least(self, 0, "first_seed", "num_alone_seeds", "num_least_seeds", "num_cycles", "num_steps")
        valid_budgets((self.epsilon,), self.delta)


# Fields that say which records there are. A record does not depend on them.
_SWEEP = ("classes", "divisors", "sources", "num_seeds", "first_seed", "num_alone_seeds", "num_least_seeds")


def result_path(config: RareConfig) -> pathlib.Path:
    """Where the results are kept."""
    return pathlib.Path(config.output_dir) / f"merf_rare_{config.dataset}.json"


def cut(rows: np.ndarray, label: int, divisor: int, seed: int) -> np.ndarray:
    """Rows [N, 785] without all but one of ``divisor`` rows of a class. Which ones are left is random."""
    of_class = np.random.default_rng(seed).permutation(np.flatnonzero(rows[:, -1] == label))
    return np.delete(rows, of_class[len(of_class) // divisor :], axis=0)


def run(config: RareConfig, variant: images.Variant = images.VARIANTS["improved"]) -> dict[str, Any]:
    """All releases. Each record is written to the JSON when it is done.

    Args:
      config: the configuration.
      variant: how DP-MERF is run.

    Raises:
      InputError: if data are missing.
    """
    check_output_dir(config.output_dir)
    data = image_files.load(config.dataset, config.data_dir)
    cells = Cells(result_path(config), "merf_rare", config.settings("data_dir", *_SWEEP), _NAMES)
    rows, test = data.rows(), data.test.astype(np.float32) / 255
    for key in _keys(config):
        if key in cells:
            continue
        seed, label, divisor, source = key
        kept = rows if label is None else cut(rows, label, divisor, seed)
        title = "all rows" if label is None else f"class {label} over {divisor}"
        stages, about = Stages(f"{image_files.TITLES[config.dataset]}, {title}, {source}, seed {seed}"), {}
        if source == "real rows":
            samples = kept[np.random.default_rng(seed).permutation(len(kept))[: config.num_samples]]
        else:
            samples, about = _released(config, variant, kept, seed, source == "borrowing", stages)
        with stages.stage("classifier"):
            recalls = classifiers.recalls(
                samples[:, :-1], samples[:, -1].astype(int), test, data.test_labels, seed, "logistic_regression"
            )
        cell = dict(zip(_NAMES, key, strict=True)) | {"num_rows": int(np.sum(kept[:, -1] == label))}
        cells.add(cell | about | {"recalls": recalls, "seconds": dict(stages.seconds)})
    return cells.result


def _keys(config: RareConfig) -> list[tuple[int, int | None, int, str]]:
    """The records: for each seed, a release of all rows, and then every class, divisor and source."""
    keys: list[tuple[int, int | None, int, str]] = []
    for number in range(config.num_seeds):
        seed = config.first_seed + number
        keys.append((seed, None, 1, "borrowing"))
        for source in config.sources:
            for divisor in config.divisors:
                wanted = number < config.num_alone_seeds if source == "alone" else True
                wanted = wanted and (divisor == config.divisors[0] or number < config.num_least_seeds)
                keys += [(seed, label, divisor, source) for label in config.classes if wanted]
    return keys


def _released(
    config: RareConfig, variant: images.Variant, rows: np.ndarray, seed: int, borrow: bool, stages: Stages
) -> tuple[np.ndarray, dict[str, Any]]:
    """Equally many synthetic rows of each class, and entries of a record."""
    training = dataclasses.replace(variant.training, borrow=borrow)
    sizes = {"num_steps": config.num_steps, "num_cycles": config.num_cycles}
    training = dataclasses.replace(training, **{name: size for name, size in sizes.items() if size})
    keys = jax.random.split(jax.random.key(seed), 3)
    with stages.stage("embedding") as progress:
        sums = release.mean_of(variant.features(keys[0], config.dataset), rows, progress)
    with input_errors():
        measured = variant.privacy.measure(keys[1], sums, PrivacyBudget(config.epsilon, config.delta))
    with stages.stage("training") as progress:
        generator = release.train(
            keys[2], measured, variant.network, training, (0.0, 1.0), levels=255, progress=progress
        )
    about = release.report(generator, measured) | {
        "shares": np.asarray(generator.shares).tolist(),
        "visibility": list(generator.report.visibility),
        "below_noise": list(generator.report.below_noise),
    }
    return generator.sample(config.num_samples, seed=seed, labels="balanced"), about


def markdown(result: dict[str, Any]) -> str:
    """Recall of the rare class and of the others, for each class, as a table of Markdown.

    The loss of the others is their recall after a release of all rows of the same seed, minus that after this one.
    """
    title = image_files.TITLES[result["config"]["dataset"]]
    lines = [
        f"| {title}, ε = {result['config']['epsilon']:g} | class | its rows | recall of the class | with all rows "
        "| loss of the others | named as below the noise | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    whole = {cell["seed"]: cell["recalls"] for cell in result["cells"] if cell["label"] is None}
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        if cell["label"] is not None:
            groups.setdefault((cell["source"], cell["divisor"], cell["label"]), []).append(cell)
            groups.setdefault((cell["source"], cell["divisor"], None), []).append(cell)
    places = {source: place for place, source in enumerate(SOURCES)}
    for source, divisor, label in sorted(groups, key=lambda g: (g[1], places[g[0]], -1 if g[2] is None else g[2])):
        cells = groups[source, divisor, label]
        own, before, loss = np.transpose([_recalls(cell, whole[cell["seed"]]) for cell in cells])
        named = sum(cell["label"] in cell.get("below_noise", ()) for cell in cells)
        shown = f"{named} of {len(cells)}" if source != "real rows" else "–"
        rows = f"{np.mean([cell['num_rows'] for cell in cells]):.0f}"
        lines.append(
            f"| {SOURCES[source]} | {'mean' if label is None else label} | {rows} | {own.mean():.3f} "
            f"| {before.mean():.3f} | {f'{loss.mean():.3f}' if source != 'real rows' else '–'} | {shown} "
            f"| {len({cell['seed'] for cell in cells})} |"
        )
    return "\n".join(lines)


def _recalls(cell: dict[str, Any], whole: list[float]) -> tuple[float, float, float]:
    """Of a record: the recall of its class, the same after a release of all rows, and the loss of the others."""
    label = cell["label"]
    return (
        cell["recalls"][label],
        whole[label],
        float(np.mean(np.delete(whole, label) - np.delete(cell["recalls"], label))),
    )


def main(config: RareConfig) -> None:
    """Runs the experiment, and prints its table."""
    print(markdown(run(config)))
    print(f"wrote {result_path(config)}")


if __name__ == "__main__":
    run_main(main, RareConfig)
