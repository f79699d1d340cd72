"""The papers' algorithms, line by line, and what improves on them."""

from __future__ import annotations

import warnings
from typing import Literal

import jax
import numpy as np

from kme_jax._numerics.precision import Progress, check_points
from kme_jax.domain import NormalProposal
from kme_jax.embedding import mean_embedding
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.choice import spectral_map
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.subspace import DEFAULT_TOLERANCE, SubspaceMap
from kme_jax.kernels import Kernel
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier, perturb
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


def algorithm1(
    key: jax.Array,
    rows: np.ndarray,
    kernel: Kernel,
    points: np.ndarray,
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
    """
    if weights not in ("closed_form", "l1_ball"):
        raise ValueError(f'weights must be "closed_form" or "l1_ball", got "{weights}"')
    gaussian_noise_multiplier(budget, calibration)
    check_diameter(diameter)
    check_shapes(rows, points)
    subspace = SubspaceMap.from_points(kernel, points, tolerance=tolerance)  # lines 3 and 4
    alpha = mean_embedding(subspace, rows)  # lines 5 and 6
    beta = perturb(key, alpha, budget, calibration=calibration, diameter=diameter)  # line 7
    if weights == "closed_form":
        return closed_form_weights(beta)  # lines 8 and 9
    sample, report = l1_ball_weights(beta)
    if not report.converged:
        warnings.warn(
            f"the L1-constrained weights are within {report.gap:.2g} of the least ½‖μ̃ − Σ w k(z, ·)‖² only "
            f"(it is {report.objective[-1]:.2g} now); call l1_ball_weights with a larger max_solves",
            stacklevel=2,
        )
    return sample


def improved(
    key: jax.Array,
    rows: np.ndarray,
    kernel: Kernel,
    public: np.ndarray | NormalProposal,
    *,
    budget: PrivacyBudget,
    num_points: int = 1000,
    num_features: int = 10_000,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress | None = None,
) -> WeightedSample:
    """A release by one noisy mean embedding with tight noise and the better post-processing: what to use by default.

    σ is from the exact condition for the Gaussian mechanism (Balle & Wang 2018). What is public decides the rest,
    before anything private is looked at:

    * points like the rows ([B] figure 1): coordinates in the span of k(z_m, ·), of sensitivity √2/N rather than 2/N for
      k ≥ 0, and weights of least estimated risk on these points, ``kme_jax.synthesis.adaptive_weights``;
    * a proposal only ([B] figure 2): Fourier features (``kme_jax.spectral_map``), of sensitivity √2/N on a lattice
      (``LatticeMap``: a Gaussian kernel and few columns) and about 1.5/N at random (``FourierMap``), the posterior mean
      given the noisy ones (``kme_jax.synthesis.posterior_mean``), and points whose embedding is close to it
      (``kme_jax.synthesis.represent``): a probability measure.

    Formal guarantee: (ε, δ)-differential privacy as for :func:`algorithm1` and :func:`algorithm2`; what follows looks
    at the noisy embedding and public quantities alone (post-processing: Dwork & Roth 2014, proposition 2.1).

    Args:
      key: a JAX random key, used once: for noise, and for frequencies and the sampler, which get keys of their own.
      rows: the private database x, [N, d], as in :func:`algorithm1`.
      kernel: k, with a bandwidth that does not come from the private rows; shift-invariant for a proposal.
      public: points z, [M, d], or a proposal: chosen independently of the rows that are to be protected.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      num_points: M, for a proposal. (Points that are given are all used.)
      num_features: J, even, for a proposal; at most, on a lattice.
      tolerance: see ``SubspaceMap.from_points``, for points.
      progress: called with (work done, work at most).

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid; if a proposal is so far from the origin
        that features of rows there are inaccurate.
    """
    if num_points < 1:
        raise ValueError(f"num_points must be at least 1, got {num_points}")
    gaussian_noise_multiplier(budget)
    check_shapes(rows, public)
    proposal = public if isinstance(public, NormalProposal) else None
    # With points only the noise is random.
    feature_key, noise_key, solver_key = (key, key, key) if proposal is None else jax.random.split(key, 3)
    features = public_feature_map(feature_key, kernel, public, num_features=num_features, tolerance=tolerance)
    noisy = perturb(noise_key, mean_embedding(features, rows), budget)
    return synthesise(solver_key, noisy, proposal, num_points, progress=progress)


def public_feature_map(
    key: jax.Array,
    kernel: Kernel,
    public: np.ndarray | NormalProposal,
    *,
    num_features: int = 10_000,
    tolerance: float = DEFAULT_TOLERANCE,
    box: tuple[np.ndarray, np.ndarray] | None = None,
) -> FeatureMap:
    """The map of :func:`improved`: coordinates in the span of public points, or Fourier features for a proposal (and a
    box, see ``spectral_map``)."""
    if isinstance(public, NormalProposal):
        return spectral_map(key, kernel, public, num_features, box=box)
    return SubspaceMap.from_points(kernel, public, tolerance=tolerance)


def synthesise(
    key: jax.Array,
    noisy: NoisyEmbedding,
    public: np.ndarray | NormalProposal | None = None,
    num_points: int = 1000,
    *,
    box: tuple[np.ndarray, np.ndarray] | None = None,
    signed: bool = True,
    progress: Progress | None = None,
) -> WeightedSample:
    """Step 3 of :func:`improved`: post-processing, as often as one likes.

    Args:
      key: a JAX random key for the sampler.
      noisy: μ̃.
      public: points [M, d] to be weighted, or a proposal; None for the points that the map was made from.
      num_points: M, for a proposal.
      box: where points may be, for a proposal; see ``represent``.
      signed: whether weights of public points may be signed; see ``adaptive_weights``.
      progress: called with (work done, work at most).
    """
    if not isinstance(public, NormalProposal):
        return adaptive_weights(noisy, public, signed=signed, progress=progress)[0]
    mean, report = posterior_mean(key, noisy, public, progress=progress)
    if not report.converged:
        warnings.warn(
            "the sampler found no mixture that explains the noisy embedding to within its noise, and keeps some of it "
            "as it is: the rows have finer structure than that (nothing is wrong with the privacy of the result)",
            stacklevel=2,
        )
    return represent(mean, num_points, box=box)[0]


def algorithm2(
    key: jax.Array,
    rows: np.ndarray,
    kernel: Kernel,
    candidates: np.ndarray,
    num_points: int,
    *,
    budget: PrivacyBudget,
    num_features: int = 10_000,
    orthogonal: bool = True,
    reduced_set: Literal["joint", "greedy"] = "joint",
    calibration: Calibration = "analytic",
    progress: Progress | None = None,
) -> WeightedSample:
    """Differentially private database release via a random features RKHS ([B] algorithm 2).

    Formal guarantee: (ε, δ)-differential privacy under replace-one neighbours with N public ([B] proposition 9, with
    ‖ψ(x)‖² = κ exactly), in exact arithmetic; the noise is simulated, see ``kme_jax.privacy.mechanisms``.

    Args:
      key: a JAX random key for frequencies, noise and solver, which get keys of their own.
      rows: the private database x, [N, d], as in :func:`algorithm1`.
      kernel: k, shift-invariant, with a bandwidth that does not come from the private rows.
      candidates: public points, [C, d], C ≥ M, drawn without looking at the rows: where the reduced set starts.
      num_points: M.
      budget: (ε, δ), with δ in (0, 1), well below 1/N.
      num_features: J, even.
      orthogonal: orthogonal rather than independent frequencies.
      reduced_set: "joint" (locations and weights together, Σ|w| ≤ 1) or "greedy" (the published code's procedure).
      calibration: "analytic", or "classical" as published.
      progress: called with (work done, work in all) by the reduced set method.

    Returns:
      The weighted synthetic database.

    Raises:
      ValueError: if shapes mismatch, or the budget or an option is invalid.
    """
    if reduced_set not in ("joint", "greedy"):
        raise ValueError(f'reduced_set must be "joint" or "greedy", got "{reduced_set}"')
    gaussian_noise_multiplier(budget, calibration)
    check_shapes(rows, candidates)
    candidates = check_points(candidates, "candidates")
    if not 1 <= num_points <= len(candidates):
        raise ValueError(
            f"num_points must be between 1 and the {len(candidates)} candidates there are, got {num_points}"
        )
    feature_key, noise_key, solver_key = jax.random.split(key, 3)
    fourier = FourierMap.from_kernel(
        feature_key, kernel, num_features, candidates.shape[1], orthogonal=orthogonal
    )  # lines 1 and 2
    embedding = mean_embedding(fourier, rows)  # line 3
    noisy = perturb(noise_key, embedding, budget, calibration=calibration)  # line 4
    if reduced_set == "joint":
        return joint_reduced_set(solver_key, noisy, candidates, num_points, progress=progress)[0]  # lines 5 to 7
    points = greedy_preimages([noisy], candidates[:num_points], progress=progress)[0]
    return next(lasso_weights(noisy, points))[0]


def check_shapes(rows, public) -> None:
    """Refuses private rows and public points of shapes that do not fit together, before anything is computed.

    Args:
      rows: private rows, [N, d].
      public: points [M, d], or a proposal.

    Raises:
      ValueError: other shapes.
    """
    points = public.mean[None, :] if isinstance(public, NormalProposal) else public
    row_shape, point_shape = np.shape(rows), np.shape(points)
    if len(row_shape) != 2 or not row_shape[0]:
        raise ValueError(f"rows: expected shape [rows, columns], got {list(row_shape)}")
    if len(point_shape) == 2 and row_shape[1] != point_shape[1]:
        raise ValueError(f"rows: expected {point_shape[1]} columns, as the points have, got {row_shape[1]}")
