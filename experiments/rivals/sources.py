"""Rows of each source: the rivals, our releases, and real rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from experiments.common.errors import input_errors
from experiments.common.progress import Stages
from experiments.merf import image_files, images, release, table_files
from experiments.rivals import gan
from experiments.rivals.config import RIVALS, RivalsConfig
from experiments.rivals.settings import SETTINGS
from experiments.rivals.tasks import Task
from kme_jax import FourierMap, MixedMap, PrivacyBudget
from kme_jax.feature_maps import LabelledMap
from kme_jax.generators.networks import MLP
from kme_jax.generators.train import Generator, Training
from kme_jax.kernels import GaussianSum
from kme_jax.table.measure import release_table

_SHOWN_PER_CLASS = 10
_SCALES = (1.0, 2.0, 4.0)  # of the default for images: γ in units of 1/(d/6), see ``merf.images``
_NETWORK = MLP(widths=(200, 500), styles=16)
_TRAINING = Training(num_steps=500, num_cycles=10, batch_size=500, learning_rate=5e-3, features_per_step=2000)
_NUM_FEATURES = 10_000


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
        of_images = images.ImagesConfig(delta=config.delta, num_steps=config.num_steps)
        variant = images.VARIANTS["improved"]
        generator, about = images.generate(of_images, variant, task.name, task.rows, config.epsilon, seed, stages)
        about |= {"relation": budget.relation}
    else:
        generator, about = _table_generator(config, task, budget, seed, stages)
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
) -> tuple[Generator, dict[str, Any]]:
    """The generator with the defaults for images, on numbers and categories. No setting was chosen on tables."""
    columns, keys = task.columns, jax.random.split(jax.random.key(seed), 3)
    kernel = GaussianSum(np.outer(_SCALES, np.full(columns.dim, 6 / columns.dim)))
    fourier = FourierMap.from_kernel(keys[0], kernel, _NUM_FEATURES, columns.dim, orthogonal=True)
    features = LabelledMap(MixedMap(fourier, columns.categories), columns.num_labels)
    training = _TRAINING
    if config.num_steps:
        training = dataclasses.replace(training, num_steps=config.num_steps, num_cycles=1)
    with stages.stage("embedding") as progress:
        sums = release.mean_of(features, task.rows, progress)
    with input_errors():
        measured = release.Privacy(class_counts=True).measure(keys[1], sums, budget)
    with stages.stage("training") as progress:
        generator = release.train(keys[2], measured, _NETWORK, training, (0.0, 1.0), progress=progress)
    return generator, release.report(generator, measured) | {"relation": budget.relation}


def _table_rows(config: RivalsConfig, task: Task, budget: PrivacyBudget, seed: int, stages: Stages) -> np.ndarray:
    assert task.table is not None
    schema, target = task.table.schema, task.table.target
    with stages.stage("training"):
        released = release_table(
            task.table.private, schema, budget=budget, target=target, seed=seed, secure=False
        ).table
    return _some(table_files.Layout(schema, target).rows(schema.encode(released)), config.num_samples, seed)
