"""DP-MERF ([H] algorithm 1), line by line, with simulated noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, Real, Shaped

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax.embedding import class_labels, mean_embedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.measure import COUNT_SHARE, measure_labelled
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier

if TYPE_CHECKING:
    from kme_jax.generators.generator import Generator
    from kme_jax.generators.networks import Network
    from kme_jax.generators.settings import Training


def dp_merf(
    key: PRNGKeyArray,
    rows: Shaped[AnyArray, "N d"],
    features: FeatureMap,
    network: Network,
    training: Training | None = None,
    *,
    budget: PrivacyBudget,
    class_counts: bool = True,
    count_share: float = COUNT_SHARE,
    bounds: tuple[float | Real[np.ndarray, "d"], float | Real[np.ndarray, "d"]] | None = None,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | bool = False,
) -> Generator:
    """Differentially private mean embeddings with random features: a generator ([H] algorithm 1 and sections 3 to 4).

    Formal guarantee: (ε, δ)-differential privacy for one row under replace-one neighbours, N public. One noisy
    embedding is measured, and for labelled rows also noisy counts of the classes. Training is post-processing
    ([H] section 3). The noise is simulated, see ``kme_jax.privacy.mechanisms``. A generator that may be published comes
    from ``kme_jax.generators.release``.

    Args:
      key: a JAX random key for noise and training.
      rows: the private rows, [N, columns]: numbers, then category codes for a ``MixedMap``, then the label for a
        ``LabelledMap``. A row that the map does not cover contributes nothing, for example one whose label is not a
        class.
      features: ψ, public: a map of numbers with a derivative (a ``FourierMap``, ``LatticeMap``, ``QuadratureMap``,
        ``PolynomialMap``, ``RandomMaclaurinMap``, ``TensorSketchMap`` or ``TransformedMap``), a ``MixedMap`` of one, or
        a ``LabelledMap`` of one of these.
      network: of the generator, e.g. ``kme_jax.generators.networks.MLP()``.
      training: configuration of the training; its defaults if None.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      class_counts: whether the counts of the classes are measured too ([H] section 4.2). Otherwise the generator takes
        all classes to be equally frequent.
      count_share: the share of the budget for the counts.
      bounds: public bounds of the numbers, see ``train_generator``.
      levels: see ``train_generator``.
      checkpoint: a folder for checkpoints, see ``train_generator``. A second call with the same key and rows continues
        from the last checkpoint.
      progress: True for a bar, or a function that is called with (steps done, total steps).

    Returns:
      The generator. It cannot be saved, because its noise is simulated: use ``measure_generator`` for one that can.

    Raises:
      ValueError: shapes mismatch, or the budget or an option is invalid.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian, LabelledMap, PrivacyBudget, dp_merf
      >>> from kme_jax.generators import MLP, Training
      >>> rng = np.random.default_rng(0)
      >>> labels = rng.integers(3, size=1000)
      >>> rows = np.column_stack([rng.normal(labels[:, None], 0.3, (1000, 2)), labels])  # private; the label is last
      >>> fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> network, training = MLP(widths=(20,)), Training(num_steps=50, num_cycles=1, batch_size=100)
      >>> generator = dp_merf(
      ...     jax.random.key(1), rows, LabelledMap(fourier, 3), network, training,
      ...     budget=PrivacyBudget(10.0, 1e-5), bounds=(-2, 4),
      ... )
      >>> generator.sample(5).shape
      (5, 3)
    """
    from kme_jax.generators.train import train_generator  # here: it needs flax

    gaussian_noise_multiplier(budget)
    noise_key, training_key = jax.random.split(key)
    embedding, counts = mean_embedding(features, rows, progress=progress is True), None
    if class_counts and isinstance(features, LabelledMap):
        counts = mean_embedding(TableMap.of_codes(features.num_labels), class_labels(features, rows))
    measured = measure_labelled(noise_key, embedding, counts, budget, count_share=count_share)
    return train_generator(
        training_key, measured.embedding, network, training, counts=measured.counts, bounds=bounds, levels=levels,
        checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
