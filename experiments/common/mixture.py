"""The private data of Balog et al. 2018, appendix B, a mixture of ten Gaussians; and the public points."""

from __future__ import annotations

import numpy as np

NUM_COMPONENTS = 10
MEAN, MEAN_SD, COMPONENT_SD = 100.0, 200.0, 30.0


def components(rng: np.random.RandomState, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Means [10, dim] and probabilities [10] of the Gaussians, drawn with the generator of the rows."""
    shares = 1 / np.arange(1, NUM_COMPONENTS + 1)
    return rng.normal(MEAN, MEAN_SD, (NUM_COMPONENTS, dim)), shares / shares.sum()


def mixture(num_rows: int, dim: int, *, seed: int = 0) -> np.ndarray:
    """N rows of the mixture, [N, dim] in float64, bit for bit as published for seed 0.

    The paper's text gives 200 I and 30 I as covariances; the numbers behind its figures have standard deviations
    200 and 30.
    """
    rng = np.random.RandomState(seed)
    means, shares = components(rng, dim)
    members = rng.choice(NUM_COMPONENTS, num_rows, p=shares)
    return means[members] + rng.normal(0, COMPONENT_SD, (num_rows, dim))


def proposal(num_points: int, dim: int, *, scale: float = 500.0, seed: int = 0) -> np.ndarray:
    """Points from q = N(0, scale² I), [num_points, dim]: [B] figure 2, where no row is public.

    A generator draws [10000, dim] points in the published code, so fewer points are the first rows of more points.
    """
    return np.random.RandomState(seed).normal(0, scale, (num_points, dim))
