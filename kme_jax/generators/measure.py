"""The measurement for a generator: private rows to noisy embeddings ([H] algorithm 1, steps 1 to 3)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import warnings
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, Shaped

from kme_jax._numerics.precision import Progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.validation import are_close
from kme_jax.embedding import MeanEmbedding, class_labels, integer_embedding_of_batches, private_points
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import LabelledMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy import perturb
from kme_jax.privacy.budget import PrivacyBudget, check_num_rows, check_number
from kme_jax.privacy.calibration import Calibration, fine_rho, takes_fine_noise
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import Diameter, Mechanism, NoisyEmbedding, noise_of
from kme_jax.privacy.perturb import perturb_securely, secure_mechanism
from kme_jax.storage.folders import ROOM, check_folder
from kme_jax.storage.rows import BatchedRows, every_batch

if TYPE_CHECKING:
    from kme_jax.generators.release import GeneratorMeasurement

COUNT_SHARE = 0.02  # of the budget, for the counts of classes. Their noise is small beside the differences of classes.


def measure_labelled(
    key: PRNGKeyArray,
    embedding: MeanEmbedding,
    counts: MeanEmbedding | None,
    budget: PrivacyBudget,
    *,
    count_share: float = COUNT_SHARE,
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
) -> GeneratorMeasurement:
    """[H] algorithm 1, steps 1 to 3, with simulated noise.

    Formal guarantee: the counts have the public share ``count_share`` of μ², and the embedding has the rest. μ² adds up
    (``Composition``), which is checked. δ is lowered for both by the probability that the embedding's diameter does not
    hold.

    Args:
      key: a JAX random key for the noise, used once.
      embedding: the mean embedding μ̂ of rows with labels.
      counts: the mean embedding of ``TableMap.of_codes`` over ``class_labels`` of the same rows. If None, the generator
        takes all classes to be equally frequent.
      budget: (ε, δ) of both measurements together.
      count_share: the share of the budget for the counts, in (0, 1).
      calibration: see ``perturb``.
      diameter: of the embedding, see ``perturb``.

    Raises:
      ValueError: as for ``perturb``, or the calibrations of the two mechanisms do not compose.
    """
    from kme_jax.generators.release import GeneratorMeasurement  # here: it needs flax

    if counts is None:
        noisy = perturb(key, embedding, budget, calibration=calibration, diameter=diameter)
        composition = Composition.of([noisy.mechanism], budget)
        warn_of_lost_rows(noisy, None)
        return GeneratorMeasurement(noisy, None, composition)
    if not 0 < count_share < 1:
        raise ValueError(f"count_share must be between 0 and 1, got {count_share}")
    embedding_key, counts_key = jax.random.split(key)
    noisy = perturb(embedding_key, embedding, budget, calibration=calibration, diameter=diameter, share=1 - count_share)
    remaining = PrivacyBudget(budget.epsilon, budget.delta - noisy.mechanism.failure_probability)
    shares = perturb(counts_key, counts, remaining, calibration=calibration, share=count_share)
    composition = Composition.of([noisy.mechanism, shares.mechanism], budget)
    warn_of_lost_rows(noisy, shares)
    return GeneratorMeasurement(noisy, shares, composition)


def measure_generator(
    rows: Shaped[AnyArray, "N d"] | BatchedRows,
    features: FeatureMap,
    *,
    budget: PrivacyBudget,
    count_share: float = COUNT_SHARE,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    progress: Progress | bool = False,
) -> GeneratorMeasurement:
    """[H] algorithm 1, steps 1 to 3, with secure noise. The result may be published.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public. Sums are exact integers, and noise is OpenDP's
    discrete Gaussian, see ``perturb_securely``. The ρ of the two measurements add up to no more than the budget's ρ,
    which is checked (``Composition``). The ledger, if there is one, is written before noise is drawn. No error depends
    on the content of a row: a row that the map does not cover, or whose label is not a class, counts as the zero
    vector. If noisy shares of the classes show that there are many such rows, a warning says so. Another warning says
    if the noisy embedding looks like noise alone.

    Args:
      rows: the private rows, [N, columns]: numbers, then category codes for a ``MixedMap``, then the label for a
        ``LabelledMap``. The caller scales numbers by public bounds first, see ``Bounds.to_unit``. An array, or a source
        of rows that are read in batches (``open_rows``): twice, if shares of the classes are measured.
      features: ψ, public. If it has labels, shares of the classes are measured too.
      budget: (ε, δ), with δ in (0, 1/N).
      count_share: the share of ρ for the shares of the classes, in (0, 1).
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
      folder: a new folder to which the measurement is saved at once, see ``GeneratorMeasurement.save``; None to save
        nothing. If training is interrupted and the measurement is lost, the budget stays spent.
      progress: True for a bar, or a function that is called with (rows done, N), as if all classes were equally
        frequent.

    Raises:
      ValueError: shapes mismatch, the budget or an option is invalid, the ledger says that the budget is spent
        (``LedgerError``), or a source has changed since it was opened (``FileError``).
      ModuleNotFoundError: OpenDP is not installed.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian, LabelledMap, PrivacyBudget
      >>> from kme_jax.generators import measure_generator
      >>> rng = np.random.default_rng(0)
      >>> labels = rng.integers(3, size=1000)
      >>> rows = np.column_stack([rng.normal(labels[:, None], 0.3, (1000, 2)), labels])  # private; the label is last
      >>> fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> measured = measure_generator(rows, LabelledMap(fourier, 3), budget=PrivacyBudget(1.0, 1e-5))
      >>> measured.statement["private"]
      True
    """
    from kme_jax.generators.generator import Rows
    from kme_jax.generators.release import GeneratorMeasurement  # here: it needs flax

    if not isinstance(rows, BatchedRows):
        rows = private_points(rows)
    num_rows = rows.shape[0]
    check_num_rows(num_rows, budget)
    share, labels = 1.0, None
    if isinstance(features, LabelledMap):
        count_share = check_number("count_share", count_share)
        if not 0 < count_share < 1:
            raise ValueError(f"count_share must be between 0 and 1, got {count_share}")
        share, labels = 1 - count_share, TableMap.of_codes(features.num_labels)
    # All checks that can fail come before anything is spent: also whether a generator can be trained by the features.
    Rows.create(features.features if isinstance(features, LabelledMap) else features, None, 0)
    shares_of_maps = [(features, share)] if labels is None else [(features, share), (labels, count_share)]
    mechanisms, fine = _mechanisms(shares_of_maps, num_rows, budget)
    remaining = PrivacyBudget(budget.epsilon, budget.delta - mechanisms[0].failure_probability)
    composition = Composition.of(mechanisms, budget)
    measured_maps: list[FeatureMap] = [features] if labels is None else [features, labels]
    without_noise = [
        NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)
        for feature_map, mechanism in zip(measured_maps, mechanisms, strict=True)
    ]
    draft = GeneratorMeasurement(without_noise[0], without_noise[1] if labels is not None else None, composition)
    json.dumps(draft.statement, allow_nan=False)
    num_bytes = sum(array.nbytes for array in draft.encoded()[0].values())
    if folder is not None:
        check_folder(folder, 2 * num_bytes + ROOM)
    if spending is not None:
        spending.check(composition)
    sums = integer_embedding_of_batches(features, every_batch(rows), num_rows, progress=progress)
    counts = None
    if labels is not None:
        batches = (class_labels(features, batch) for batch in every_batch(rows))
        counts = integer_embedding_of_batches(labels, batches, num_rows)
    total = None if spending is None else spending.spend(composition)
    with contextlib.nullcontext() if spending is None else spending.recorded(folder):
        noisy = perturb_securely(sums, budget, share=share, fine=fine)
        shares = None if counts is None else perturb_securely(counts, remaining, share=count_share, fine=fine)
        measured = GeneratorMeasurement(noisy, shares, composition, total)
        if folder is not None:
            measured.save(folder)
    warn_of_lost_rows(noisy, shares)
    return measured


def _mechanisms(
    shares: list[tuple[FeatureMap, float]], num_rows: int, budget: PrivacyBudget
) -> tuple[list[Mechanism], bool]:
    """The mechanisms of maps with these shares of a budget, and whether their noise is fine.

    It is fine if no noise has to be larger for that. This is decided from the maps, N and the budget alone.
    """

    def calibrated(fine: bool) -> list[Mechanism]:
        mechanisms, left = [], budget
        for feature_map, share in shares:
            integers = feature_map.integers(num_rows)
            mechanisms.append(secure_mechanism(integers, num_rows, left, share=share, fine=fine))
            left = dataclasses.replace(left, delta=left.delta - mechanisms[-1].failure_probability)
        return mechanisms

    mechanisms = calibrated(False)
    left = dataclasses.replace(budget, delta=budget.delta - mechanisms[0].failure_probability)
    if not takes_fine_noise(left):
        return mechanisms, False
    with_fine = calibrated(True)
    whole = [cast(float, mechanism.rho) / share for mechanism, (_, share) in zip(with_fine, shares, strict=True)]
    fine = all(are_close(rho, fine_rho(left)) for rho in whole)
    return (with_fine, True) if fine else (mechanisms, False)


def warn_of_lost_rows(embedding: NoisyEmbedding, counts: NoisyEmbedding | None) -> None:
    """Warns if many rows were not counted, or if the noisy embedding looks like noise alone.

    The first is that ``covered_share`` is below 1. The second is that ‖μ̃‖² is within 5 standard deviations of what the
    noise has, plus what rows have that are all far apart for the kernel. Both are post-processing of what is released.
    An error that depends on the rows themselves would not be private. The budget is already spent, so a setting that
    turns warnings into errors does not lose the measurement.

    Args:
      embedding: the noisy embedding μ̃.
      counts: noisy shares of the classes, [L]; None if they were not measured.
    """
    from kme_jax.generators.fit import covered_share  # here: it needs flax

    share = 1.0 if counts is None else covered_share(counts)
    if counts is not None and share < 1:
        message = (
            f"noisy shares of the classes add up to {share:.3f}, not to 1: the map does not cover the other rows, "
            f"which were not counted. A label is a whole number from 0 to {counts.feature_map.num_features - 1}, in "
            "the last column; codes are below their number of categories; numbers are finite, and within the map's "
            "reach"
        )
    elif _looks_like_noise(embedding):
        message = (
            "the noisy embedding looks like noise alone, so a generator learns little from it: either numbers are not "
            "on the scale of the kernel, for example from 0 to 255 and not from 0 to 1, or the rows are too few for "
            "this budget"
        )
    else:
        return
    with contextlib.suppress(UserWarning):
        warnings.warn(message, stacklevel=3)


def _looks_like_noise(embedding: NoisyEmbedding) -> bool:
    """Whether ‖μ̃‖² is at most that of noise (and 5 standard deviations) and of rows with orthogonal features.

    The mean of N features that are orthogonal to each other has the square ‖φ‖²/N. Twice this is allowed for.
    """
    mechanism, size = embedding.mechanism, embedding.feature_map.num_features
    spread = math.sqrt(noise_of(mechanism.noise).square_variance * size) * mechanism.variance
    apart = 2 * embedding.feature_map.norm_bound**2 / mechanism.num_rows
    return float(np.sum(np.square(embedding.coordinates))) < size * mechanism.variance + 5 * spread + apart
