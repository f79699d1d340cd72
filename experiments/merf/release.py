"""What the experiments on DP-MERF share: published or default privacy, measurement, training."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from kme_jax import PrivacyBudget, mean_embedding
from kme_jax._numerics.precision import Progress
from kme_jax.embedding import MeanEmbedding, class_labels
from kme_jax.feature_maps import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.generator import Generator
from kme_jax.generators.measure import measure_labelled
from kme_jax.generators.networks import Network
from kme_jax.generators.release import GeneratorMeasurement
from kme_jax.generators.settings import Training
from kme_jax.generators.train import train_generator
from kme_jax.privacy.calibration import gaussian_epsilon


@dataclasses.dataclass(frozen=True)
class Sums:
    """Means over private rows, without noise. SENSITIVE.

    Attributes:
      embedding: mean of all features.
      counts: mean of the one-hot labels.
    """

    embedding: MeanEmbedding
    counts: MeanEmbedding

    def __repr__(self) -> str:
        return "Sums(SENSITIVE)"


def mean_of(features: LabelledMap, rows: np.ndarray, progress: Progress | None = None) -> Sums:
    """Step 1 for rows with labels."""
    labels = TableMap.of_codes(features.num_labels)
    return Sums(mean_embedding(features, rows, progress=progress), mean_embedding(labels, class_labels(features, rows)))


@dataclasses.dataclass(frozen=True)
class Privacy:
    """How noise is chosen.

    Attributes:
      noise_multipliers: pairs (ε, σ in units of the published sensitivity 2/N), from the authors' code. If it is empty,
        σ follows from the exact condition (Balle & Wang 2018) and the proved diameter.
      class_counts: whether the shares of the classes are measured. Otherwise the shares are equal.
    """

    noise_multipliers: tuple[tuple[float, float], ...] = ()
    class_counts: bool = False

    def measure(self, key: jax.Array, sums: Sums, budget: PrivacyBudget) -> GeneratorMeasurement:
        """Step 2.

        Raises:
          ValueError: if ε has no multiplier, or if the multiplier is too small for (ε, δ).
        """
        counts = sums.counts if self.class_counts else None
        if not self.noise_multipliers:
            return measure_labelled(key, sums.embedding, counts, budget)
        known = dict(self.noise_multipliers)
        if budget.epsilon not in known:
            raise ValueError(
                f"the published noise is known for ε of {', '.join(map(str, known))}, not {budget.epsilon}"
            )
        spent = gaussian_epsilon(known[budget.epsilon], budget.delta)
        if spent > budget.epsilon:
            raise ValueError(f"the published noise has ε = {spent:.3g} at δ = {budget.delta:g}, not {budget.epsilon}")
        # The published multiplier is a round number: the release spends less than the ε that the paper claims.
        tight = PrivacyBudget(spent, budget.delta)
        return measure_labelled(key, sums.embedding, counts, tight, diameter="published")


def train(
    key: jax.Array,
    measured: GeneratorMeasurement,
    network: Network,
    training: Training,
    bounds: tuple[float, float] | None,
    *,
    levels: int = 0,
    checkpoint: str | None = None,
    progress: Progress | None = None,
) -> Generator:
    """Step 3."""
    return train_generator(
        key, measured.embedding, network, training, counts=measured.counts, bounds=bounds, levels=levels,
        checkpoint=checkpoint, progress=progress,
    )  # fmt: skip


def report(generator: Generator, measured: GeneratorMeasurement) -> dict[str, Any]:
    """The entries of a record about noise and fit."""
    mechanism = measured.embedding.mechanism
    return {
        "privacy": {
            "epsilon": measured.composition.epsilon,
            "delta": measured.composition.delta,
            "scale": mechanism.scale,
            "sensitivity": mechanism.sensitivity,
        },
        "objective": {
            "first": generator.report.objective[0],
            "last": generator.report.objective[-1],
            "steps": generator.report.steps[-1],
            "fit": generator.report.fit,
            "standard_error": generator.report.standard_error,
            "expected": generator.report.expected,
            "converged": generator.report.converged,
        },
    }
