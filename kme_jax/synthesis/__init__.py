"""Step 3: a weighted synthetic database from a noisy embedding."""

from kme_jax.synthesis.entropic import EntropicFit, EntropicLeastSquares
from kme_jax.synthesis.lasso import SolverReport, l1_ball_least_squares, lasso_path
from kme_jax.synthesis.posterior import PosteriorMean, PosteriorReport, posterior_mean
from kme_jax.synthesis.quantised import Quantised, quantise
from kme_jax.synthesis.reduced_set import greedy_preimages, joint_reduced_set, joint_reduced_sets, lasso_weights
from kme_jax.synthesis.representation import represent
from kme_jax.synthesis.sample import WeightedSample, uniform
from kme_jax.synthesis.shrinkage import ShrunkEmbedding, shrink
from kme_jax.synthesis.weights import (
    Candidate,
    RiskReport,
    adaptive_weights,
    adaptive_weights_batch,
    closed_form_weights,
    l1_ball_weights,
)

__all__ = [
    "Candidate",
    "EntropicFit",
    "EntropicLeastSquares",
    "PosteriorMean",
    "PosteriorReport",
    "Quantised",
    "RiskReport",
    "ShrunkEmbedding",
    "SolverReport",
    "WeightedSample",
    "adaptive_weights",
    "adaptive_weights_batch",
    "closed_form_weights",
    "greedy_preimages",
    "joint_reduced_set",
    "joint_reduced_sets",
    "l1_ball_least_squares",
    "l1_ball_weights",
    "lasso_path",
    "lasso_weights",
    "posterior_mean",
    "quantise",
    "represent",
    "shrink",
    "uniform",
]
