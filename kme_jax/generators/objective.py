"""The objective of the training of a generator, one block of features at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.transformed import TransformedMap
from kme_jax.feature_maps.transforms import Transform
from kme_jax.generators.rare import Seen
from kme_jax.generators.settings import Training
from kme_jax.privacy.mechanisms import NoisyEmbedding

Array = jax.Array


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """The training objective: a weighted sum over classes of ‖μ̃_c − μ_{G,c}‖², for one block of features at a time.

    Attributes:
      features: φ, the map of rows without labels.
      turns: frequencies of a FourierMap, [blocks, J/2/blocks, d]; None for another map, which has one block.
      targets: μ̃, [blocks, L, F/blocks].
      shares: of the classes, [L].
      weights: of the classes in the objective, [L].
      unbiased: see :class:`Training`.
      seen: further terms, of the directions in which rare classes are seen. They use all features in every step.
      seen_targets: ⟨a_i, μ̃_c/π_c⟩ for these directions, [R, directions].
    """

    features: FeatureMap
    turns: Float[Array, "blocks _ d"] | None
    targets: Float[Array, "blocks classes _"]
    shares: Float[Array, "classes"]
    weights: Float[Array, "classes"]
    unbiased: bool = dataclasses.field(metadata={"static": True})
    seen: Seen | None = None
    seen_targets: Float[Array, "rare directions"] | None = None

    def __call__(
        self, relaxed: Float[Array, "n outputs"], styles: Float[Array, "classes styles"], block: Int[Array, ""]
    ) -> Float[Array, ""]:
        """An estimate of the objective for one block of features.

        For a class let μ_G = Σ_s p_s μ_s, and let m̂_s be the mean over m rows of style s. Then E‖Σ_s p_s m̂_s‖² =
        ‖μ_G‖² + Σ_s p_s² v_s/m, and (mean ‖φ‖² − ‖m̂_s‖²)/(m − 1) is an unbiased estimate of v_s/m.

        Args:
          relaxed: relaxed rows [L S m, D], m rows of each of S styles of each class in turn.
          styles: p, shares of the styles in each class, [L, S].
          block: index of the block.
        """
        size = relaxed.shape[0] // styles.size
        means, squares = self._means(relaxed, styles.shape, block)
        mean, square = self._mixed(means, squares, styles, size)
        target = self.targets[block]
        inner, constant = jnp.sum(target * mean, axis=1), jnp.sum(jnp.square(target), axis=1)
        total = jnp.sum(self.weights * (jnp.square(self.shares) * square - 2 * self.shares * inner + constant))
        if self.seen is None:
            return total
        labels, num_labels = self.seen.labels, styles.shape[0]
        rows = relaxed.reshape(num_labels, -1, relaxed.shape[1])[labels]
        values = relaxed_features(self.features, rows.reshape(-1, relaxed.shape[1])).reshape(*rows.shape[:2], -1)
        values = jnp.einsum("rnf,rdf->rnd", values, self.seen.directions, precision=jax.lax.Precision.HIGHEST)
        values = values.reshape(len(labels), styles.shape[1], size, -1)
        squares = jnp.mean(jnp.sum(jnp.square(values), axis=3), axis=2)
        mean, square = self._mixed(jnp.mean(values, axis=2), squares, styles[labels], size)
        target = cast(Array, self.seen_targets)
        distances = square - 2 * jnp.sum(target * mean, axis=1) + jnp.sum(jnp.square(target), axis=1)
        return total + jnp.sum(distances) / num_labels

    def _mixed(self, means: Array, squares: Array | float, styles: Array, size: int) -> tuple[Array, Array]:
        """The means of classes, [L, F], and their squared lengths, [L], from those of styles [L, S, F] and [L, S]."""
        mean = jnp.einsum("ls,lsf->lf", styles, means, precision=jax.lax.Precision.HIGHEST)
        square = jnp.sum(jnp.square(mean), axis=1)
        if self.unbiased:
            spread = squares - jnp.sum(jnp.square(means), axis=2)
            square = square - jnp.sum(jnp.square(styles) * spread, axis=1) / (size - 1)
        return mean, square

    def _means(self, relaxed: Array, groups: tuple[int, ...], block: Array) -> tuple[Array, Array | float]:
        """Means over groups of consecutive rows: of φ, [L, S, F/blocks], and of ‖φ‖², [L, S] or one number for all."""
        if self.turns is None:
            values = relaxed_features(self.features, relaxed)
            values = values.reshape(*groups, -1, values.shape[1])
            return jnp.mean(values, axis=2), jnp.mean(jnp.sum(jnp.square(values), axis=3), axis=2)
        # ‖φ‖² is the same for all rows, so all gradients pass through the means. One evaluation of sines and cosines
        # then serves both the matrix product of the angles and the one of their gradients.
        transform, fourier = fourier_of(self.features)
        features = FourierMap(fourier.kernel, cast(Any, self.turns[block]))  # traced
        values = features(relaxed if transform is None else transform(relaxed))
        return jnp.mean(values.reshape(*groups, -1, values.shape[1]), axis=2), fourier.kernel.diagonal_bound


def objective_of(
    embedding: NoisyEmbedding, shares: Float[np.ndarray, "classes"], training: Training
) -> tuple[Objective, int]:
    """The training objective, and the number of its blocks of features.

    Args:
      embedding: μ̃, of rows with or without labels.
      shares: of the L classes, [L]; [1] for rows without labels.
      training: configuration of the training.
    """
    num_labels, features = labels_and_features(embedding.feature_map)
    num_labels = max(num_labels, 1)
    targets = np.asarray(embedding.coordinates, np.float64).reshape(num_labels, -1)
    turns, num_blocks = None, 1
    _, fourier = fourier_of(features)
    if isinstance(fourier, FourierMap):
        num_frequencies = len(fourier.turns)
        num_blocks = max(1, round(2 * num_frequencies / (training.features_per_step or 2 * num_frequencies)))
        size = num_frequencies // num_blocks  # a few frequencies at the end may be in no block
        turns = jnp.asarray(fourier.turns[: size * num_blocks].reshape(num_blocks, size, -1))
        halves = targets.reshape(num_labels, 2, num_frequencies)[:, :, : size * num_blocks]
        halves = halves.reshape(num_labels, 2, num_blocks, size).transpose(2, 0, 1, 3)
        targets = halves.reshape(num_blocks, num_labels, -1) * math.sqrt(num_frequencies / size)
    else:
        targets = targets[None]
    weights = 1 / (num_labels * np.square(shares))  # classes count equally, and the objective is of order 1
    single = functools.partial(jnp.asarray, dtype=jnp.float32)
    objective = Objective(features, turns, single(targets), single(shares), single(weights), training.unbiased)
    return objective, num_blocks


def fourier_of(features: FeatureMap) -> tuple[Transform | None, FeatureMap]:
    """The transform of rows, None if there is none, and the map of transformed rows."""
    return (features.transform, features.features) if isinstance(features, TransformedMap) else (None, features)


def labels_and_features(feature_map: FeatureMap) -> tuple[int, FeatureMap]:
    """The number of labels, 0 if rows have none, and the map of rows without them."""
    if isinstance(feature_map, LabelledMap):
        return feature_map.num_labels, feature_map.features
    return 0, feature_map


def relaxed_features(features: FeatureMap, rows: Float[Array, "n columns"]) -> Float[Array, "n F"]:
    """φ of relaxed rows. If rows have categories, the mean of φ over their probabilities."""
    return features.relaxed(rows) if isinstance(features, MixedMap) else features(rows)
