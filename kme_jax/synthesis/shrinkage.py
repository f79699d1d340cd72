"""Shrinkage of a noisy embedding towards a public one (James & Stein 1961). Post-processing, so it spends no budget.

The estimate is (1 − a) μ̃ + a f, with a public f. The amount a is public, or computed from μ̃ and public numbers.

[B] section 3.2 suggests the shrinkage estimators of Muandet et al. (2016) for step 1. There, a is computed from the
private rows. The mean is then no longer an average of one term for each row, and replacing one row can move it by more
than diameter(ψ) / N. So this library shrinks after the noise. For a fixed amount nothing is lost by this: it gives the
same distribution as shrinkage before the noise. docs/privacy.md has the proofs and the counterexamples.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float64, Real

from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.facts import public_features
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding, check_noisy
from kme_jax.synthesis.sample import WeightedSample
from kme_jax.synthesis.weights import closed_form_weights


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ShrunkEmbedding:
    """(1 − a) μ̃ + a f: a noisy embedding that was shrunk towards a public one. Public.

    It is not a ``NoisyEmbedding``, because its error is not that of the mechanism.

    Attributes:
      feature_map: ψ.
      coordinates: (1 − a) μ̃ + a f, [F].
      amount: a, from 0 (μ̃ is kept) to 1 (only f is left).
      risk: an unbiased estimate of E‖coordinates − μ̂‖² for Gaussian noise. It may be negative.
      mechanism: the mechanism of μ̃.
    """

    feature_map: FeatureMap
    coordinates: Float64[np.ndarray, "F"]
    amount: float
    risk: float
    mechanism: Mechanism

    def _in_short(self) -> str:
        warning = "" if self.mechanism.secure else "NOT PRIVATE, "
        return f"{warning}{np.size(self.coordinates)} features, amount: {self.amount:.3g}, risk: {self.risk:.3g}"

    def weights(self, points: Real[AnyArray, "M d"] | None = None) -> WeightedSample:
        """The closed-form weights of the shrunk embedding, see ``closed_form_weights``. They may be negative.

        Args:
          points: z, [M, d]; those that the map was made from, if None.

        Raises:
          ValueError: as ``closed_form_weights``.
        """
        return closed_form_weights(NoisyEmbedding(self.feature_map, self.coordinates, self.mechanism), points)


def shrink(
    embedding: NoisyEmbedding,
    target_points: Real[AnyArray, "M d"] | None = None,
    *,
    amount: float | None = None,
) -> ShrunkEmbedding:
    """(1 − a) μ̃ + a f, with less risk than μ̃ if a is chosen here.

    Let μ̃ ~ N(μ̂, σ² I_F) with F ≥ 3, and let f be fixed. With

        a = min(1, (F − 2) σ² / ‖μ̃ − f‖²),

    E‖(1 − a) μ̃ + a f − μ̂‖² < F σ² = E‖μ̃ − μ̂‖² for every μ̂. James & Stein (1961) prove this without the minimum, and
    Baranchik (1964) proves that the minimum lowers the risk further. The risk is at most 2σ² above that of the best
    fixed amount, F σ² / (F σ² + ‖μ̂ − f‖²), which is not known. So the gain is large where the noise is large beside
    ‖μ̂ − f‖, and vanishes with the noise.

    Formal guarantee: the result is a function of μ̃ and public inputs, so it has the privacy of μ̃ (post-processing:
    Dwork & Roth 2014, proposition 2.1). This needs an ``amount`` that was not computed from private rows. The amounts
    of Muandet et al. (2014, 2016) are computed from them. They are refused, because replacing one row can move the
    shrunk mean by more than diameter(ψ) / N. There is no argument for private rows here.

    ``adaptive_weights`` contains this estimate as one of its candidates: with signed weights, it shrinks towards
    uniform weights on the points. Its probability weights, and ``posterior_mean``, use that μ̂ is the embedding of a
    distribution. They are usually more accurate, and slower. Use ``shrink`` for the coordinates themselves, for any
    map, or where weights may be signed.

    Args:
      embedding: μ̃, with Gaussian noise. For Laplace noise the risk is not proved to be smaller.
      target_points: public points, [M, d]. f is the mean of their features, or 0 if None.
      amount: a in [0, 1], from public knowledge alone. If None, it is computed as above, and is 0 for F < 3.

    Raises:
      TypeError: if the embedding is not a ``NoisyEmbedding``.
      ValueError: if the amount is not in [0, 1], or the map has no features for a target point.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, mean_embedding, perturb
      >>> from kme_jax.synthesis import shrink
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> embedding = mean_embedding(SubspaceMap.from_points(Gaussian(gamma=0.5), points), rows)
      >>> noisy = perturb(jax.random.key(0), embedding, PrivacyBudget(0.05, 1e-5))
      >>> shrunk = shrink(noisy, points)
      >>> raw, less = (np.linalg.norm(x.coordinates - embedding.coordinates) for x in (noisy, shrunk))
      >>> bool(less < raw), 0 < shrunk.amount <= 1
      (True, True)
    """
    check_noisy(embedding)
    noisy = np.asarray(embedding.coordinates, np.float64)
    target = np.zeros(len(noisy)) if target_points is None else _mean_features(embedding.feature_map, target_points)
    variance, size = embedding.mechanism.variance, len(noisy)
    distance = float(np.sum(np.square(noisy - target)))
    if amount is None:
        least = max(size - 2, 0) * variance
        share = 0.0 if least == 0 else 1.0 if least >= distance else least / distance
        # Where a is below 1, it depends on μ̃, and this adds to Stein's estimate of the risk (Stein 1981).
        risk = distance - size * variance if share == 1 else size * variance - least * share
    else:
        share = float(amount)
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise ValueError(f"amount must be from 0 to 1, got {amount}")
        risk = share**2 * distance + (1 - 2 * share) * size * variance
    # Target plus a multiple of the difference: with amount 1, the result is exactly the target.
    coordinates = noisy.copy() if share == 0 else target + (1 - share) * (noisy - target)
    return ShrunkEmbedding(embedding.feature_map, coordinates, share, risk, embedding.mechanism)


def _mean_features(feature_map: FeatureMap, points: Real[AnyArray, "M d"]) -> Float64[np.ndarray, "F"]:
    """The mean of ψ over public points [M, d].

    Raises:
      ValueError: if the map has no features for a point.
    """
    return public_features(feature_map, points, "target_points")[1].mean(axis=0)
