"""DP-MERF, line by line ([H] algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.embedding import class_labels, mean_embedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.measure import COUNT_SHARE, measure_labelled
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier

if TYPE_CHECKING:
    from kme_jax.generators.networks import Network
    from kme_jax.generators.train import Generator, Training


def dp_merf(
    key: jax.Array,
    rows: np.ndarray,
    features: FeatureMap,
    network: Network,
    training: Training | None = None,
    *,
    budget: PrivacyBudget,
    class_counts: bool = True,
    count_share: float = COUNT_SHARE,
    bounds: tuple[np.ndarray | float, np.ndarray | float] | None = None,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | None = None,
) -> Generator:
    """Differentially private mean embeddings with random features: a generator ([H] algorithm 1 and sections 3 to 4).

    Formal guarantee: (ε, δ)-differential privacy under replace-one neighbours with N public: one noisy embedding, and
    for labelled rows noisy counts of the classes; training is post-processing ([H] section 3). The noise is simulated,
    see ``kme_jax.privacy.mechanisms``; ``kme_jax.generators.release`` has what may be published.

    Args:
      key: a JAX random key for noise and training.
      rows: the private rows: numbers [N, d], then codes of categories for a ``MixedMap``, and in the last column the
        label for a ``LabelledMap``. Rows that the map does not cover, those with a label that is none of the classes
        among them, contribute nothing.
      features: ψ, public: a ``FourierMap`` or ``LatticeMap``, a ``MixedMap``, or a ``LabelledMap`` of one of these.
      network: of the generator, e.g. ``kme_jax.generators.networks.MLP()``.
      training: how it is trained.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      class_counts: whether the counts of the classes are measured too ([H] section 4.2); if not, synthetic rows are as
        many of each class.
      count_share: the part of the budget for them.
      bounds: public bounds of the numbers; see ``train_generator``.
      levels: see ``train_generator``.
      checkpoint: a folder for the state of training; see ``train_generator``. A second call with the same key and rows
        goes on from there.
      progress: called with (steps done, steps).

    Raises:
      ValueError: shapes, a budget or an option that cannot be.
    """
    from kme_jax.generators.train import train_generator  # here: it needs flax

    gaussian_noise_multiplier(budget)
    noise_key, training_key = jax.random.split(key)
    embedding, counts = mean_embedding(features, rows), None
    if class_counts and isinstance(features, LabelledMap):
        counts = mean_embedding(TableMap.of_codes(features.num_labels), class_labels(features, rows))
    measured = measure_labelled(noise_key, embedding, counts, budget, count_share=count_share)
    return train_generator(
        training_key, measured.embedding, network, training, counts=measured.counts, bounds=bounds, levels=levels,
        checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
