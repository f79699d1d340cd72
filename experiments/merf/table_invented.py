"""Invented tables, on which the rule of our generator for tables was chosen (seed 100). No real rows chose anything.

Each has what one of the eight tables is known for: many correlated columns and few rows ("sounds"), classes that
differ in amplitude alone ("waves"), far outliers of a rare class ("scores"), and counts over many orders of magnitude
("counts").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from experiments.common.dataset_rows import Dataset
from kme_jax.table.columns import Categorical, Column, Numeric
from kme_jax.table.schema import Schema

_NUM_TEST = 3000


def _sounds(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """300 numbers in [−1, 1] that follow 30 hidden ones. Classes differ in ten of the hidden ones."""
    mixing = np.random.default_rng(0).normal(size=(30, 300)) / 30**0.5
    hidden = rng.normal(size=(len(labels), 30))
    hidden[:, :10] += 1.2 * labels[:, None]
    return list(np.tanh(0.8 * hidden @ mixing + 0.2 * rng.normal(size=(len(labels), 300))).T)


def _waves(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """100 values of a series within ±2048. Its amplitude is 60 or, in the second class, about 250."""
    noise = rng.normal(size=(len(labels), 100))
    for j in range(1, 100):
        noise[:, j] = 0.9 * noise[:, j - 1] + (1 - 0.9**2) ** 0.5 * noise[:, j]
    amplitude = np.where(labels == 1, 250, 60) * np.exp(0.4 * rng.normal(size=len(labels)))
    return list((amplitude[:, None] * noise).T)


def _scores(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """30 scores of standard deviation 1 within ±20. Those of the rare class are far away in eight columns."""
    scores = rng.normal(size=(len(labels), 30))
    distances = np.abs(rng.normal(3, 3, size=(len(labels), 1)))
    scores[:, :8] += labels[:, None] * distances * np.tile([1, -1], 4)
    return list(scores.T)


def _counts(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """Ten counts up to 2²⁰ whose logarithms tell five classes apart, ten shares, and two categories."""
    centres = np.random.default_rng(1).uniform(0, 9, size=(5, 10))
    counts = np.expm1(np.maximum(0, centres[labels] + rng.normal(size=(len(labels), 10))))
    counts[rng.uniform(size=counts.shape) < 0.3] = 0
    shares = rng.beta(0.3, 0.3 + labels[:, None] / 3, size=(len(labels), 10))
    categories = (labels[:, None] + rng.integers(0, 3, size=(len(labels), 2))) % 6
    return [*counts.T, *shares.T, *categories.T]


@dataclasses.dataclass(frozen=True)
class Invented:
    """A kind of invented table.

    Attributes:
      columns: without the label.
      draw: the columns of rows with labels [n].
      shares: of the classes.
      num_rows: private rows.
    """

    columns: tuple[Column, ...]
    draw: Callable[[np.random.Generator, np.ndarray], list[np.ndarray]]
    shares: tuple[float, ...]
    num_rows: int

    def dataset(self, name: str, seed: int) -> Dataset:
        """Private rows, and 3000 rows for testing."""
        rng = np.random.default_rng(seed)
        labels = rng.choice(len(self.shares), size=self.num_rows + _NUM_TEST, p=self.shares)
        cells = dict(zip([column.name for column in self.columns], self.draw(rng, labels), strict=True))
        schema = Schema((*self.columns, Categorical("label", tuple(map(str, range(len(self.shares)))))))
        cells["label"] = labels.astype(str)
        rows = pa.table(cells)
        return Dataset(name, rows.slice(0, self.num_rows), rows.slice(self.num_rows), schema, "label")


INVENTED = {
    "sounds": Invented(tuple(Numeric(f"x{j}", -1, 1) for j in range(300)), _sounds, (0.8, 0.2), 1500),
    "waves": Invented(tuple(Numeric(f"x{j}", -2048, 2047, integer=True) for j in range(100)), _waves, (0.8, 0.2), 8000),
    "scores": Invented(tuple(Numeric(f"x{j}", -20, 20) for j in range(30)), _scores, (0.92, 0.08), 4000),
    "counts": Invented(
        (
            *(Numeric(f"count{j}", 0, 2**20, integer=True) for j in range(10)),
            *(Numeric(f"share{j}", 0, 1, step=0.01) for j in range(10)),
            *(Categorical(f"kind{j}", tuple(map(str, range(6)))) for j in range(2)),
        ),
        _counts,
        (0.7, 0.2, 0.07, 0.02, 0.01),
        50_000,
    ),
}
