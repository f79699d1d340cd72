"""What a third party does with a release: estimates with intervals, distances and tests, transformations.

All of it is post-processing. What needs tables is imported when it is used, because it needs pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kme_jax.analysis.answers import estimate
from kme_jax.analysis.distances import mmd
from kme_jax.analysis.estimates import Estimate, Estimates
from kme_jax.analysis.independence import independence_test
from kme_jax.analysis.outcome import TestResult
from kme_jax.analysis.posterior import PosteriorDraws, posterior_draws
from kme_jax.analysis.transformations import ConditionalMean, conditional_mean, push_forward
from kme_jax.analysis.two_sample import two_sample_test

if TYPE_CHECKING:
    from kme_jax.analysis.replicates import Bootstrap as Bootstrap
    from kme_jax.analysis.replicates import bootstrap as bootstrap

__all__ = [
    "ConditionalMean",
    "Estimate",
    "Estimates",
    "PosteriorDraws",
    "TestResult",
    "conditional_mean",
    "estimate",
    "independence_test",
    "mmd",
    "posterior_draws",
    "push_forward",
    "two_sample_test",
]


def __getattr__(name: str) -> Any:
    if name in ("Bootstrap", "bootstrap"):
        return getattr(importlib.import_module("kme_jax.analysis.replicates"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
