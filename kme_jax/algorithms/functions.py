"""Release of the function μ̂ itself at fixed points, with Gaussian-process noise ([B] section 3.2; Hall, Rinaldo &
Wasserman 2013)."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Real, Shaped

from kme_jax._numerics.precision import Progress, check_columns, check_points, float64
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.algorithms.three_steps import check_shapes
from kme_jax.embedding import integer_embedding, mean_embedding, rows_shape
from kme_jax.feature_maps.subspace import DEFAULT_TOLERANCE, SubspaceMap
from kme_jax.kernels import Kernel
from kme_jax.privacy import PrivacyBudget, perturb, perturb_securely
from kme_jax.privacy.budget import check_num_rows
from kme_jax.privacy.ledger import KEY_AND_LEDGER, Spending
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding
from kme_jax.privacy.perturb import secure_mechanism


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Values:
    """A released function at some points.

    Attributes:
      values: [n].
      standard_error: of the noise, [n].
      largest_bias: how far the values would be at most from μ̂ without noise, [n]; 0 at the points of the release.
    """

    values: Float[np.ndarray, "n"]
    standard_error: Float[np.ndarray, "n"]
    largest_bias: Float[np.ndarray, "n"]


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class NoisyFunction:
    """μ̂ + G at the points z_1, ..., z_M, for a Gaussian process G with covariance σ² k. Public, if secure.

    μ̂(z) = (1/N) Σ_n k(x_n, z) is a smoothed histogram: how many rows are near z.

    Attributes:
      noisy: coordinates of μ̂ + G in an orthonormal basis of the span of k(z_m, ·).
    """

    noisy: NoisyEmbedding

    @property
    def _map(self) -> SubspaceMap:
        feature_map = self.noisy.feature_map
        assert isinstance(feature_map, SubspaceMap)  # by ``noisy_function``
        return feature_map

    @property
    def points(self) -> Float[np.ndarray, "M d"]:
        """z, [M, d]."""
        return np.asarray(self._map.points)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that added the noise. Its scale is σ."""
        return self.noisy.mechanism

    @property
    def values(self) -> Float[np.ndarray, "M"]:
        """μ̂(z_m) + G(z_m), [M]."""
        return self._features(self.points) @ self.noisy.coordinates

    @property
    def covariance(self) -> Float[np.ndarray, "M M"]:
        """The covariance of the noise of :attr:`values`, σ² k(z, z), [M, M]."""
        features = self._features(self.points)
        return self.mechanism.variance * features @ features.T

    def at(self, points: Real[AnyArray, "n d"]) -> Values:
        """The released function at any points. This is post-processing: it spends nothing.

        The private function is not looked at again. So the result is the projection of μ̂ + G onto the span of
        k(z_m, ·), the mean of a Gaussian process given its values at z. Beyond the noise it misses what is orthogonal
        to this span: at most ‖μ̂‖ (k(x, x) − ‖ψ(x)‖²)^½ ≤ (κ (k(x, x) − ‖ψ(x)‖²))^½ by Cauchy–Schwarz.

        Args:
          points: x, [n, d].

        Raises:
          ValueError: if the points are not finite, or have another number of columns.
        """
        points = check_points(points, "points")
        check_columns(points, self._map.dim, "points")
        features, kernel = self._features(points), self._map.kernel
        with float64():
            diagonal = np.asarray(jax.vmap(lambda x: kernel(x, x))(np.asarray(points, np.float64)))
        squares = np.square(features).sum(axis=1)
        return Values(
            features @ self.noisy.coordinates,
            np.sqrt(self.mechanism.variance * squares),
            np.sqrt(kernel.diagonal_bound * np.maximum(diagonal - squares, 0)),
        )

    def _features(self, points: Real[AnyArray, "n d"]) -> Float[np.ndarray, "n F"]:
        with float64():
            return np.asarray(self._map(np.asarray(points, np.float64)))


def noisy_function(
    rows: Shaped[AnyArray, "N d"],
    kernel: Kernel,
    points: Real[AnyArray, "M d"],
    *,
    budget: PrivacyBudget,
    key: PRNGKeyArray | None = None,
    spending: Spending | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress | bool = False,
) -> NoisyFunction:
    """The function μ̂(z) = (1/N) Σ_n k(x_n, z) at fixed points, plus Gaussian-process noise with covariance σ² k.

    Formal guarantee: (ε, δ)-differential privacy under replace-one neighbours with N public. Another row moves μ̂ by at
    most Δ in the RKHS, and noise of covariance σ² k with σ for this Δ is private at any finite set of points (Hall,
    Rinaldo & Wasserman 2013, proposition 8 and corollary 9). Here it is a case of algorithm 1: the values at the points
    are L α, with coordinates α in an orthonormal basis of the span of k(z_m, ·), and K = L Lᵀ. Independent noise of
    variance σ² in α is noise of covariance σ² K in the values. So secure noise for α, which is exact and discrete, is
    secure noise for the function. Points have to be fixed beforehand: a value at a later point would need the private
    function again. ``NoisyFunction.at`` predicts later values instead.

    Args:
      rows: the private database x, [N, d]. A row with a NaN or infinite entry contributes nothing.
      kernel: k, with a bandwidth that does not come from the private rows.
      points: z, [M, d], chosen independently of the rows.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      key: None for secure noise. A JAX random key makes simulated, reproducible noise, which is NOT PRIVATE.
      spending: the curator's ledger, and the name of the rows in it. It is checked before a row is read, and written
        before noise is drawn. It is for secure noise. If None, nothing is recorded.
      tolerance: see ``SubspaceMap.from_points``.
      progress: True for bars, or a function that is called with (work done, all work) for the rows.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid (δ ≥ 1/N, N < 2), or the budget may not
        be spent (``LedgerError``), or there are both a key and a ledger.
      ModuleNotFoundError: if OpenDP is not installed, for secure noise.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, noisy_function
      >>> rows = np.random.default_rng(0).normal(size=(10_000, 1))  # private
      >>> points = np.linspace(-3, 3, 7)[:, None]  # public
      >>> function = noisy_function(rows, Gaussian(gamma=2.0), points, budget=PrivacyBudget(1.0, 1e-6))
      >>> function.values.shape, function.mechanism.secure
      ((7,), True)
    """
    check_shapes(rows_shape(rows), points)
    check_num_rows(rows_shape(rows)[0], budget)
    if spending is not None and key is not None:
        raise ValueError(KEY_AND_LEDGER)
    subspace = SubspaceMap.from_points(kernel, points, tolerance=tolerance, progress=progress is True)
    if key is None:
        if spending is not None:
            num_rows = rows_shape(rows)[0]
            spending.check(secure_mechanism(subspace.integers(num_rows), num_rows, budget))
        embedding = integer_embedding(subspace, rows, progress=progress)
        return NoisyFunction(perturb_securely(embedding, budget, spending=spending))
    return NoisyFunction(perturb(key, mean_embedding(subspace, rows, progress=progress), budget))
