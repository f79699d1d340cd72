"""Configuration of experiments.rivals."""

from __future__ import annotations

import dataclasses

from experiments.common.config import Config, at_least, flag, one_or_more_of, valid_budgets
from experiments.merf import classifiers, image_files

DATASETS = (*image_files.NAMES, "adult")
SOURCES = {
    "dp_gan": "DP-GAN",
    "dp_cgan": "DP-CGAN",
    "generator": "our generator",
    "release_table": "our `release_table`",
    "real rows": "real rows",
}
"""What classifiers learn from, and its name in tables."""

RIVALS = ("dp_gan", "dp_cgan")


@dataclasses.dataclass(frozen=True)
class RivalsConfig(Config):
    """Configuration: one field per flag."""

    data_dir: str = flag("", "Folder with a folder for each data set. Without it, images are downloaded; Adult is not.")
    datasets: tuple[str, ...] = flag(DATASETS, f"What to release, of {', '.join(DATASETS)}.", quick=("mnist",))
    sources: tuple[str, ...] = flag(
        tuple(SOURCES),
        f"What classifiers learn from, of {', '.join(SOURCES)}. release_table is for adult alone.",
        quick=("dp_gan",),
    )
    epsilon: float = flag(1.0, "Privacy level ε.")
    delta: float = flag(1e-5, "δ of (ε, δ)-differential privacy.")
    num_seeds: int = flag(1, "Seeds: noise, generators and classifiers.")
    num_samples: int = flag(10_000, "Rows that classifiers learn from.", quick=1000)
    num_steps: int = flag(0, "Steps of training of every generator; 0 for its own number.", quick=50)
    classifiers: tuple[str, ...] = flag(
        classifiers.NAMES, "Which of the twelve classifiers.", quick=("logistic_regression", "gaussian_nb")
    )
    validation: int = flag(
        0, "So many of the private rows are set aside and tested on, in the place of the test rows: for choosing."
    )
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "datasets", DATASETS)
        one_or_more_of(self, "sources", tuple(SOURCES))
        one_or_more_of(self, "classifiers", classifiers.NAMES)
        at_least(self, 1, "num_seeds", "num_samples")
        at_least(self, 0, "num_steps", "validation")
        valid_budgets((self.epsilon,), self.delta)
