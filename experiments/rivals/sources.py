"""Rows of each source: the rivals, our releases, and real rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from experiments.common.errors import input_errors
from experiments.common.progress import Stages
from experiments.merf import image_files, images, table_files, table_generators
from experiments.rivals import gan
from experiments.rivals.config import RIVALS, RivalsConfig
from experiments.rivals.settings import SETTINGS
from experiments.rivals.tasks import Task
from kme_jax import PrivacyBudget
from kme_jax.generators.settings import Training
from kme_jax.table.measure import release_table

_SHOWN_PER_CLASS = 10


def make(config: RivalsConfig, task: Task, source: str, seed: int, stages: Stages) -> tuple[np.ndarray, dict[str, Any]]:
    """``config.num_samples`` rows [n, columns] of a source, or fewer if it has fewer, and entries of a record.

    Args:
      config: the configuration.
      task: the private rows.
      source: a name of ``config.SOURCES``.
      seed: of the source.
      stages: whose bars are shown.

    Raises:
      InputError: if the budget is too small for the source.
    """
    budget = PrivacyBudget(config.epsilon, config.delta)
    if source == "real rows":
        return _some(task.rows, config.num_samples, seed), {}
    if source == "release_table":
        return _table_rows(config, task, budget, seed, stages), {"relation": budget.relation}
    if source in RIVALS:
        generator, about = _rival(config, task, source, budget, seed, stages)
    elif task.table is None:
        variant = images.VARIANTS["improved"]
        generator, about = images.generate(variant, task.name, task.rows, budget, seed, stages, config.num_steps)
        about |= {"relation": budget.relation}
    else:
        return _table_generator(config, task, budget, seed, stages)
    if task.table is None:
        labels = np.repeat(np.arange(task.columns.num_labels), _SHOWN_PER_CLASS)
        about["sheet"] = image_files.pack(generator.sample(len(labels), seed=seed, labels=labels)[:, :-1])
    return generator.sample(config.num_samples, seed=seed), about


def _some(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    return rows[np.random.default_rng(seed).permutation(len(rows))[:size]]


def _rival(
    config: RivalsConfig, task: Task, source: str, budget: PrivacyBudget, seed: int, stages: Stages
) -> tuple[gan.Trained, dict[str, Any]]:
    settings = SETTINGS["images" if task.table is None else "tables"][source]
    if config.num_steps:
        settings = dataclasses.replace(settings, num_steps=config.num_steps)
    with stages.stage("training") as progress, input_errors():
        trained = gan.train(seed, task.rows, task.columns, settings, budget, task.count_scale, progress)
    plan = trained.plan
    about = {"relation": "add_remove", "steps": plan.num_steps, "norm": settings.norm}
    about |= {"critic_steps": settings.critic_steps, "batch_size": settings.batch_size, "room": plan.room}
    about |= {"noise_multiplier": plan.noise_multiplier, "rate": plan.rate, "count_scale": plan.count_scale}
    return trained, about | {"verified_epsilon": plan.epsilon(config.delta)}


def _table_generator(
    config: RivalsConfig, task: Task, budget: PrivacyBudget, seed: int, stages: Stages
) -> tuple[np.ndarray, dict[str, Any]]:
    """Rows of the generator of ``merf.tables``, and entries of a record."""
    assert task.table is not None
    layout = table_files.Layout(task.table.schema, task.table.target)
    rule = table_generators.RULE
    if config.num_steps:
        rule = dataclasses.replace(rule, training=Training(num_steps=config.num_steps, num_cycles=1))
    codes = layout.schema.encode(task.table.private)
    with stages.stage("training") as progress:
        made, about = rule.release(layout, codes, budget, seed, config.num_samples, progress)
    return layout.rows(made), about | {"relation": budget.relation}


def _table_rows(config: RivalsConfig, task: Task, budget: PrivacyBudget, seed: int, stages: Stages) -> np.ndarray:
    assert task.table is not None
    schema, target = task.table.schema, task.table.target
    with stages.stage("training"):
        released = release_table(
            task.table.private, schema, budget=budget, target=target, seed=seed, secure=False
        ).table
    return _some(table_files.Layout(schema, target).rows(schema.encode(released)), config.num_samples, seed)
