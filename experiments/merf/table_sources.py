"""The sources of the rows that classifiers learn from. Each runs in a process of its own, and so is a function here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from experiments.common.dataset_rows import Dataset
from experiments.common.errors import InputError
from experiments.merf import table_generators, table_published
from experiments.merf.table_files import Layout
from kme_jax import PrivacyBudget
from kme_jax.table.measure import release_table

_DELTA = 1e-5  # that of the paper


def delta_of(delta: float, name: str, num_rows: int) -> float:
    """δ for a data set: the given one, or if it is 0 that of the paper or the next smaller power of ten below 1/N.

    Raises:
      InputError: the given one is 1/N or more.
    """
    below = 10.0 ** -(math.floor(math.log10(num_rows)) + 1)
    if delta * num_rows >= 1:
        raise InputError(
            f"--delta={delta:g} protects nobody among the {num_rows} rows of {name}: take {below:g}, or 0 for a δ that "
            "fits each data set"
        )
    return delta or min(_DELTA, below)


@dataclasses.dataclass(frozen=True)
class Task:
    """One release.

    Attributes:
      source: one of ``table_report.TITLES``.
      dataset: private rows and their schema.
      epsilon: ε.
      delta: δ.
      seed: of everything that is random, except secure noise.
      num_rows: of the synthetic rows that are used, at most.
      secure: whether noise of release_table is secure.
      limits: of a published training.
    """

    source: str
    dataset: Dataset
    epsilon: float
    delta: float
    seed: int
    num_rows: int
    secure: bool = True
    limits: table_published.Limits = dataclasses.field(default_factory=table_published.Limits)


def rows_of(task: Task) -> tuple[np.ndarray, dict[str, Any]]:
    """Codes of the schema [n, C], n at most ``num_rows``, and entries of a record.

    If a source refuses the schema, or a training diverges, there are no rows, and the record has "failed" with the
    reason.
    """
    dataset = task.dataset
    private = dataset.schema.encode(dataset.private)
    if task.source == "real":
        return _some(private, task), {"is_private": False}
    try:
        return _synthetic(task, private)
    except ValueError as error:
        return private[:0], {"failed": " ".join(str(error).split())}


def _synthetic(task: Task, private: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    dataset, budget = task.dataset, PrivacyBudget(task.epsilon, task.delta)
    layout, num_rows = Layout(dataset.schema, dataset.target), min(task.num_rows, len(private))
    if task.source == "published":
        return table_published.release(dataset.name, layout, private, budget, task.seed, num_rows, task.limits)
    if task.source == "private":
        settings = table_published.SETTINGS[dataset.name]
        rule = table_generators.made_private(settings, len(private), layout, task.limits)
        return rule.release(layout, private, budget, task.seed, num_rows)
    if task.source == "generator":
        return table_generators.RULE.release(layout, private, budget, task.seed, num_rows)
    released = release_table(
        dataset.private, dataset.schema, budget=budget, target=dataset.target, seed=task.seed, secure=task.secure
    )
    dataset.schema.check(released.table)
    return _some(dataset.schema.encode(released.table), task), {"is_private": True}


def _some(codes: np.ndarray, task: Task) -> np.ndarray:
    return codes[np.random.default_rng(task.seed).permutation(len(codes))[: task.num_rows]]
