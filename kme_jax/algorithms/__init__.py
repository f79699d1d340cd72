"""Whole algorithms, from private rows to a release: those of [B], the improved one, and mechanisms that [B] names."""

from kme_jax.algorithms.functions import noisy_function
from kme_jax.algorithms.small_databases import exponential_mechanism
from kme_jax.algorithms.three_steps import algorithm1, algorithm2, improved

__all__ = ["algorithm1", "algorithm2", "exponential_mechanism", "improved", "noisy_function"]
