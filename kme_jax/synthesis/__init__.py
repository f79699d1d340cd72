"""Step 3: a weighted synthetic database from a private embedding."""

from kme_jax.synthesis.reduced_set import greedy_preimages, joint, lasso, lasso_weights
from kme_jax.synthesis.sample import WeightedSample, uniform
from kme_jax.synthesis.weights import SolverReport, closed_form, l1_ball

__all__ = [
    "SolverReport",
    "WeightedSample",
    "closed_form",
    "greedy_preimages",
    "joint",
    "l1_ball",
    "lasso",
    "lasso_weights",
    "uniform",
]
