"""From private rows to the noisy embeddings that a generator is trained on: [H] algorithm 1, steps 1 to 3."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import TYPE_CHECKING

import jax
import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.embedding import MeanEmbedding, class_labels, integer_embedding, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy import perturb
from kme_jax.privacy.budget import PrivacyBudget, check_num_rows, check_number
from kme_jax.privacy.calibration import Calibration
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import Diameter, NoisyEmbedding
from kme_jax.privacy.perturb import perturb_securely, secure_mechanism
from kme_jax.storage.folders import (
    ROOM,
    check_folder,
)

if TYPE_CHECKING:
    from kme_jax.generators.release import GeneratorMeasurement

COUNT_SHARE = 0.02  # of the budget, for the counts of classes: their noise is small beside what classes differ by


def measure_labelled(
    key: jax.Array,
    embedding: MeanEmbedding,
    counts: MeanEmbedding | None,
    budget: PrivacyBudget,
    *,
    count_share: float = COUNT_SHARE,
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
) -> GeneratorMeasurement:
    """[H] algorithm 1, steps 1 to 3, with simulated noise.

    Formal guarantee: the counts have the public part ``count_share`` of μ², and the embedding the rest; μ² adds up
    (``Composition``), which is checked. δ is lowered for both by the probability that the embedding's diameter fails.

    Args:
      key: a JAX random key for the noise, used once.
      embedding: μ̂ of rows with labels.
      counts: mean of ``TableMap.of_codes`` over ``class_labels`` of the same rows; None to take classes as of one size.
      budget: (ε, δ) of both.
      count_share: in (0, 1).
      calibration: see ``perturb``.
      diameter: see ``perturb``; of the embedding.

    Raises:
      ValueError: as ``perturb``; two calibrations that do not compose.
    """
    from kme_jax.generators.release import GeneratorMeasurement  # here: it needs flax

    if counts is None:
        noisy = perturb(key, embedding, budget, calibration=calibration, diameter=diameter)
        return GeneratorMeasurement(noisy, None, Composition.of([noisy.mechanism], budget))
    if not 0 < count_share < 1:
        raise ValueError(f"count_share must be between 0 and 1, got {count_share}")
    embedding_key, counts_key = jax.random.split(key)
    noisy = perturb(embedding_key, embedding, budget, calibration=calibration, diameter=diameter, share=1 - count_share)
    left = PrivacyBudget(budget.epsilon, budget.delta - noisy.mechanism.failure_probability)
    shares = perturb(counts_key, counts, left, calibration=calibration, share=count_share)
    both = Composition.of([noisy.mechanism, shares.mechanism], budget)
    warn_of_uncounted_rows(shares)
    return GeneratorMeasurement(noisy, shares, both)


def measure_generator(
    rows: np.ndarray,
    features: FeatureMap,
    *,
    budget: PrivacyBudget,
    count_share: float = COUNT_SHARE,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> GeneratorMeasurement:
    """[H] algorithm 1, steps 1 to 3, with noise that may be published.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public: exact integer sums and OpenDP's discrete
    Gaussian noise, see ``perturb_securely``; ρ of the two measurements adds up to no more than the budget's, which is
    checked (``Composition``). The ledger, if there is one, is written before noise is drawn. No error depends on what a
    row holds: one that the map does not cover, or whose label is none of the classes, counts as the zero vector.
    Where noisy shares of the classes show that such rows are many, a warning says so.

    Args:
      rows: the private rows, [N, d]: numbers, codes of categories for a ``MixedMap``, and the label in the last column
        for a ``LabelledMap``. Numbers are scaled by public bounds before, see ``Bounds.to_unit``.
      features: ψ, public. Shares of the classes are measured too where it has labels.
      budget: (ε, δ), with δ in (0, 1/N).
      count_share: of ρ, for the shares of the classes; in (0, 1).
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
      folder: a new one that the measurement is saved to at once, see ``GeneratorMeasurement.save``. Training may
        take long and be interrupted, and what is lost is spent all the same.
      progress: called with (rows done, N), as if all classes were of one size.

    Raises:
      ValueError: shapes, a budget or an option that cannot be; a spent budget (``LedgerError``).
      ModuleNotFoundError: OpenDP is not installed.
    """
    from kme_jax.generators.release import GeneratorMeasurement  # here: it needs flax

    rows = private_points(rows)
    check_num_rows(len(rows), budget)
    share, labels = 1.0, None
    if isinstance(features, LabelledMap):
        count_share = check_number("count_share", count_share)
        if not 0 < count_share < 1:
            raise ValueError(f"count_share must be between 0 and 1, got {count_share}")
        share, labels = 1 - count_share, TableMap.of_codes(features.num_labels)
    # What can fail does so before anything is spent.
    mechanisms = [secure_mechanism(features.integers(len(rows)), len(rows), budget, share=share)]
    left = PrivacyBudget(budget.epsilon, budget.delta - mechanisms[0].failure_probability)
    if labels is not None:
        mechanisms.append(secure_mechanism(labels.integers(len(rows)), len(rows), left, share=count_share))
    composition = Composition.of(mechanisms, budget)
    nothing = [
        NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)
        for feature_map, mechanism in zip([features] + [labels] * (labels is not None), mechanisms, strict=True)
    ]
    draft = GeneratorMeasurement(nothing[0], nothing[1] if labels is not None else None, composition)
    json.dumps(draft.statement, allow_nan=False)
    num_bytes = sum(array.nbytes for array in draft.encoded()[0].values())
    if folder is not None:
        check_folder(folder, 2 * num_bytes + ROOM)
    if spending is not None:
        spending.check()
    sums = integer_embedding(features, rows, progress=progress)
    counts = None if labels is None else integer_embedding(labels, class_labels(features, rows))
    planned = Composition.planned(budget, composition.failure_probability)
    total = None if spending is None else spending.spend(planned)
    with contextlib.nullcontext() if spending is None else spending.recorded(folder):
        noisy = perturb_securely(sums, budget, share=share)
        shares = None if counts is None else perturb_securely(counts, left, share=count_share)
        measured = GeneratorMeasurement(noisy, shares, composition, total)
        if folder is not None:
            measured.save(folder)
    if shares is not None:
        warn_of_uncounted_rows(shares)
    return measured


def warn_of_uncounted_rows(counts: NoisyEmbedding) -> None:
    """Warns where ``covered_share`` is below 1. Post-processing of what is private, where an error about the rows
    themselves would not be. The measurement is spent, and is not lost where warnings are made errors.

    Args:
      counts: noisy shares of the classes, [L].
    """
    from kme_jax.generators.train import covered_share  # here: it needs flax

    share, num_labels = covered_share(counts), counts.feature_map.num_features
    if share < 1:
        with contextlib.suppress(UserWarning):
            warnings.warn(
                f"noisy shares of the classes add up to {share:.3f}, not to 1: the map does not cover the other rows, "
                f"which were not counted. A label is a whole number from 0 to {num_labels - 1}, in the last column; "
                "codes are below their number of categories; numbers are finite, and within the map's reach",
                stacklevel=3,
            )
