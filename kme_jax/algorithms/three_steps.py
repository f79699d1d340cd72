"""The algorithms of the papers, line by line, and an improved algorithm."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Real, Shaped

from kme_jax._numerics.precision import Progress, check_points
from kme_jax._numerics.shapes import AnyArray
from kme_jax.domain import Bounds, NormalProposal, in_order
from kme_jax.embedding import mean_embedding, rows_shape
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.choice import spectral_map
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.subspace import DEFAULT_TOLERANCE, SubspaceMap
from kme_jax.kernels import Kernel
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier, perturb
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.calibration import Calibration
from kme_jax.privacy.mechanisms import Diameter, NoisyEmbedding, check_diameter
from kme_jax.synthesis import (
    WeightedSample,
    adaptive_weights,
    closed_form_weights,
    greedy_preimages,
    joint_reduced_set,
    l1_ball_weights,
    lasso_weights,
    posterior_mean,
    represent,
)

_MOST_POINTS = 10**9


def algorithm1(
    key: PRNGKeyArray,
    rows: Shaped[AnyArray, "N d"],
    kernel: Kernel,
    points: Real[AnyArray, "M d"],
    *,
    budget: PrivacyBudget,
    weights: Literal["closed_form", "l1_ball"] = "closed_form",
    calibration: Calibration = "analytic",
    diameter: Diameter = "proved",
    tolerance: float = DEFAULT_TOLERANCE,
) -> WeightedSample:
    """Differentially private database release via a synthetic data subspace ([B] algorithm 1).

    Formal guarantee: (ε, δ)-differential privacy of the weights under replace-one neighbours with N public ([B]
    proposition 3), in exact arithmetic; the noise is simulated, see ``kme_jax.privacy.mechanisms``.

    Args:
      key: a JAX random key for the noise, used once.
      rows: the private database x, [N, d]. A row with a NaN or infinite entry contributes nothing (see
        ``mean_embedding``).
      kernel: k, with a bandwidth that does not come from the private rows.
      points: public points z, [M, d], chosen independently of the rows that are to be protected (lines 1 and 2).
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      weights: "closed_form" (line 8) or "l1_ball" (theorem 11, C = 1).
      calibration: "analytic", or "classical" as published.
      diameter: "proved" (√2 times a factor just above 1 for k ≥ 0), or "published" (2).
      tolerance: see ``SubspaceMap.from_points``.

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, algorithm1
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> sample = algorithm1(jax.random.key(0), rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5))
      >>> sample.points.shape, sample.weights.shape
      ((20, 2), (20,))
    """
    if weights not in ("closed_form", "l1_ball"):
        raise ValueError(f'weights must be "closed_form" or "l1_ball", got "{weights}"')
    gaussian_noise_multiplier(budget, calibration)
    check_diameter(diameter)
    _check_key_and_kernel(key, kernel)
    rows, points = in_order(rows, points, None)
    check_shapes(rows_shape(rows), points)
    subspace = SubspaceMap.from_points(kernel, points, tolerance=tolerance)  # lines 3 and 4
    alpha = mean_embedding(subspace, rows)  # lines 5 and 6
    beta = perturb(key, alpha, budget, calibration=calibration, diameter=diameter)  # line 7
    if weights == "closed_form":
        return closed_form_weights(beta)  # lines 8 and 9
    sample, report = l1_ball_weights(beta)
    if not report.converged:
        warnings.warn(
            f"the L1-ball weights have not converged: ½‖μ̃ − Σ w k(z, ·)‖² is {report.objective[-1]:.2g}, and exceeds "
            f"its minimum by up to {report.gap:.2g}; call l1_ball_weights with a larger max_solves",
            stacklevel=2,
        )
    return sample


def improved(
    key: PRNGKeyArray,
    rows: Shaped[AnyArray, "N d"],
    kernel: Kernel,
    public: Real[AnyArray, "M d"] | NormalProposal,
    *,
    budget: PrivacyBudget,
    num_points: int = 1000,
    num_features: int = 10_000,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress | bool = False,
) -> WeightedSample:
    """A weighted sample from one noisy embedding, with less noise and more accurate weights than [B]: the default.

    σ is from the exact condition for the Gaussian mechanism (Balle & Wang 2018). The public input decides the method,
    before any private row is read:

    * Public points like the rows ([B] figure 1): the features are coordinates in the span of k(z_m, ·), of sensitivity
      √2/N rather than 2/N for k ≥ 0. The weights on these points have the least estimated risk,
      ``kme_jax.synthesis.adaptive_weights``.
    * A proposal only ([B] figure 2): the features are Fourier features (``kme_jax.spectral_map``), of sensitivity √2/N
      on a lattice (``LatticeMap``: a Gaussian kernel and few columns) and about 1.5/N at random (``FourierMap``).
      ``kme_jax.synthesis.posterior_mean`` computes the posterior mean given the noisy embedding.
      ``kme_jax.synthesis.represent`` finds points whose embedding is close to it. The result is a probability measure.

    Formal guarantee: (ε, δ)-differential privacy as for :func:`algorithm1` and :func:`algorithm2`. All later
    computations use the noisy embedding and public quantities alone (post-processing: Dwork & Roth 2014,
    proposition 2.1).

    Args:
      key: a JAX random key, used once. It is split into keys for the noise, the frequencies and the sampler.
      rows: the private database x, [N, d], as in :func:`algorithm1`.
      kernel: k, with a bandwidth that does not come from the private rows; shift-invariant for a proposal.
      public: points z, [M, d], or a proposal: chosen independently of the rows that are to be protected.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      num_points: M, for a proposal. (With public points, all of them are used.)
      num_features: J, even, for a proposal. A lattice may have fewer features.
      tolerance: for public points, see ``SubspaceMap.from_points``.
      progress: True for a bar, or a function that is called with (work done, most work possible).

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid, or a proposal is so far from the origin
        that the features of its rows are inaccurate.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, NormalProposal, PrivacyBudget, improved
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> proposal = NormalProposal.from_bounds([-4, -4], [4, 4])  # public
      >>> budget = PrivacyBudget(1.0, 1e-5)
      >>> sample = improved(jax.random.key(0), rows, Gaussian(gamma=0.5), proposal, budget=budget, num_points=50)
      >>> sample.points.shape
      (50, 2)
      >>> bool(np.abs(sample.expectation(lambda z: z)).max() < 0.3)  # the mean of the rows is about [0, 0]
      True
    """
    num_points = check_integer("num_points", num_points, 1, _MOST_POINTS)
    gaussian_noise_multiplier(budget)
    _check_key_and_kernel(key, kernel)
    rows, public = in_order(rows, public, None)
    check_shapes(rows_shape(rows), public)
    proposal = public if isinstance(public, NormalProposal) else None
    # With points only the noise is random.
    feature_key, noise_key, solver_key = (key, key, key) if proposal is None else jax.random.split(key, 3)
    features = public_feature_map(feature_key, kernel, public, num_features=num_features, tolerance=tolerance)
    noisy = perturb(noise_key, mean_embedding(features, rows, progress=progress is True), budget)
    return synthesise(solver_key, noisy, proposal, num_points, progress=progress)


def public_feature_map(
    key: PRNGKeyArray,
    kernel: Kernel,
    public: Real[AnyArray, "M d"] | NormalProposal,
    *,
    num_features: int = 10_000,
    tolerance: float = DEFAULT_TOLERANCE,
    box: tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]] | None = None,
) -> FeatureMap:
    """The map of :func:`improved`: coordinates in the span of public points, or Fourier features for a proposal.

    Args:
      key: a JAX random key for the frequencies, used for a proposal only.
      kernel: k.
      public: points z, [M, d], or a proposal.
      num_features: J, even, for a proposal.
      tolerance: for points, see ``SubspaceMap.from_points``.
      box: for a proposal, see ``spectral_map``.
    """
    if isinstance(public, NormalProposal):
        return spectral_map(key, kernel, public, num_features, box=box)
    return SubspaceMap.from_points(kernel, public, tolerance=tolerance)


def synthesise(
    key: PRNGKeyArray,
    noisy: NoisyEmbedding,
    public: Real[AnyArray, "M d"] | NormalProposal | None = None,
    num_points: int = 1000,
    *,
    box: tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]] | None = None,
    signed: bool = True,
    progress: Progress | bool = False,
) -> WeightedSample:
    """Step 3 of :func:`improved`. It is post-processing: it spends no budget, and may be repeated.

    Args:
      key: a JAX random key for the sampler.
      noisy: μ̃.
      public: points [M, d] to be weighted, or a proposal. If None, the points of the feature map are weighted.
      num_points: M, for a proposal.
      box: for a proposal, the lower and upper limits of the points, see ``represent``.
      signed: whether weights of public points may be signed, see ``adaptive_weights``.
      progress: True for a bar, or a function that is called with (work done, most work possible).

    Returns:
      The weighted sample.
    """
    if not isinstance(public, NormalProposal):
        return adaptive_weights(noisy, public, signed=signed, progress=progress)[0]
    mean, report = posterior_mean(key, noisy, public, progress=progress)
    if not report.converged:
        warnings.warn(
            "the sampler found no mixture that explains the noisy embedding to within its noise, so the result keeps a "
            "share of the noisy embedding: the rows have finer structure than the mixtures have (the privacy of the "
            "result is unaffected)",
            stacklevel=2,
        )
    return represent(mean, num_points, box=box, progress=progress is True)[0]


def algorithm2(
    key: PRNGKeyArray,
    rows: Shaped[AnyArray, "N d"],
    kernel: Kernel,
    candidates: Real[AnyArray, "candidates d"],
    num_points: int,
    *,
    budget: PrivacyBudget,
    num_features: int = 10_000,
    orthogonal: bool = True,
    reduced_set: Literal["joint", "greedy"] = "joint",
    calibration: Calibration = "analytic",
    progress: Progress | bool = False,
) -> WeightedSample:
    """Differentially private database release via a random features RKHS ([B] algorithm 2).

    Formal guarantee: (ε, δ)-differential privacy under replace-one neighbours with N public ([B] proposition 9, with
    ‖ψ(x)‖² = κ exactly), in exact arithmetic; the noise is simulated, see ``kme_jax.privacy.mechanisms``.

    Args:
      key: a JAX random key, used once. It is split into keys for the frequencies, the noise and the solver.
      rows: the private database x, [N, d], as in :func:`algorithm1`.
      kernel: k, shift-invariant, with a bandwidth that does not come from the private rows.
      candidates: public points, [C, d], C ≥ M, drawn without looking at the rows. The search for the reduced set
        starts at such points.
      num_points: M.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      num_features: J, even.
      orthogonal: whether the frequencies are orthogonal rather than independent.
      reduced_set: "joint" (locations and weights together, Σ|w| ≤ 1) or "greedy" (the published code's procedure).
      calibration: "analytic", or "classical" as published.
      progress: True for a bar, or a function that is called with (work done, total work) by the reduced set method.

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, algorithm2
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> candidates = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> budget = PrivacyBudget(1.0, 1e-5)
      >>> sample = algorithm2(
      ...     jax.random.key(0), rows, Gaussian(gamma=0.5), candidates, num_points=10, budget=budget, num_features=64
      ... )
      >>> sample.points.shape
      (10, 2)
    """
    if reduced_set not in ("joint", "greedy"):
        raise ValueError(f'reduced_set must be "joint" or "greedy", got "{reduced_set}"')
    gaussian_noise_multiplier(budget, calibration)
    _check_key_and_kernel(key, kernel)
    rows, candidates = in_order(rows, candidates, None)
    check_shapes(rows_shape(rows), candidates)
    candidates = check_points(candidates, "candidates")
    num_points = check_integer("num_points", num_points, 1, _MOST_POINTS)
    if num_points > len(candidates):
        raise ValueError(f"num_points must be at most the number of candidates, {len(candidates)}, got {num_points}")
    feature_key, noise_key, solver_key = jax.random.split(key, 3)
    fourier = FourierMap.from_kernel(
        feature_key, kernel, num_features, candidates.shape[1], orthogonal=orthogonal
    )  # lines 1 and 2
    embedding = mean_embedding(fourier, rows, progress=progress is True)  # line 3
    noisy = perturb(noise_key, embedding, budget, calibration=calibration)  # line 4
    if reduced_set == "joint":
        return joint_reduced_set(solver_key, noisy, candidates, num_points, progress=progress)[0]  # lines 5 to 7
    points = greedy_preimages([noisy], candidates[:num_points], progress=progress)[0]
    return next(lasso_weights(noisy, points))[0]


def _check_key_and_kernel(key: Any, kernel: Any) -> None:
    """Raises ValueError if the key is a number, or the kernel is none."""
    is_typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_typed and np.shape(key) != (2,):  # two numbers are a key of JAX's earlier kind
        raise ValueError(f"key: expected a key, such as jax.random.key(0), got {key!r:.50}")
    if isinstance(kernel, FeatureMap):
        raise ValueError("kernel: this is a feature map; release and measure take one in the place of a kernel")
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel: expected a kernel, such as Gaussian(gamma=0.5), got a {type(kernel).__name__}")


def check_shapes(
    row_shape: tuple[int, ...], public: Real[AnyArray, "M d"] | NormalProposal, owner: str = "the points have"
) -> None:
    """Checks that the shapes of private rows and public points match, before anything is computed.

    Args:
      row_shape: the shape of the private rows: (N, d) for rows that may be used.
      public: points [M, d], or a proposal.
      owner: of the columns of the points, for the error.

    Raises:
      ValueError: if the shapes mismatch, or there are bounds in the place of a proposal.
    """
    if isinstance(public, Bounds):
        raise ValueError("public: expected points or a NormalProposal, got Bounds; write NormalProposal.from_bounds")
    points = public.mean[None, :] if isinstance(public, NormalProposal) else public
    point_shape = np.shape(points)
    if len(row_shape) != 2 or not row_shape[0]:
        raise ValueError(f"rows: expected shape [rows, columns] with at least one row, got {list(row_shape)}")
    if len(point_shape) == 2 and row_shape[1] != point_shape[1]:
        source = "the proposal has" if isinstance(public, NormalProposal) else owner
        raise ValueError(f"rows: expected {point_shape[1]} columns, as {source}, got {row_shape[1]}")
