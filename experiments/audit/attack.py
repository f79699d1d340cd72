"""An attack on noisy embeddings: a lower bound of the privacy loss, from an attacker's errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats

from kme_jax._numerics.precision import Progress

PILOT = 5  # the threshold is chosen on a fifth as many runs
_CONFIDENCE = 0.995  # of each of two bounds
_BLOCK = 5000  # runs drawn at once


Sampler = Callable[[int, int], np.ndarray]
"""(index of the database, number of runs) -> the attacker's statistic of each run, larger under database 1."""


def _errors(sampler: Sampler, runs: int, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    values = ([], [])
    for start in range(0, runs, _BLOCK):
        for which in (0, 1):
            values[which].append(sampler(which, min(_BLOCK, runs - start)))
        progress(min(start + _BLOCK, runs), runs)
    return np.concatenate(values[0]), np.concatenate(values[1])


def _bounds(successes: np.ndarray, runs: int, side: str) -> np.ndarray:
    """The exact bounds of probabilities (Clopper and Pearson 1934), for numbers of successes in so many runs."""
    missing = runs - successes
    if side == "low":
        return np.where(successes == 0, 0.0, scipy.stats.beta.ppf(1 - _CONFIDENCE, successes, missing + 1))
    return np.where(missing == 0, 1.0, scipy.stats.beta.ppf(_CONFIDENCE, successes + 1, missing))


def gaussian_mu(true_positives: float, false_positives: float) -> float:
    """μ of Gaussian differential privacy at which these rates are possible, and at no smaller μ."""
    return float(scipy.stats.norm.ppf(true_positives) - scipy.stats.norm.ppf(false_positives))


def pure_epsilon(true_positives: float, false_positives: float) -> float:
    """ε of pure differential privacy that the ratio of the rates needs."""
    return math.log(true_positives / false_positives) if true_positives > 0 else -math.inf


def lower_bound(
    sampler: Sampler, runs: int, measure: Callable[[float, float], float], progress: Progress = lambda *_: None
) -> dict[str, float]:
    """A lower bound of μ or ε with 99 % confidence, and an estimate.

    Args:
      sampler: draws statistics, which are larger under the second database.
      runs: number of runs under each database for the bound. A fifth as many other runs fix the threshold.
      measure: (true positive rate, false positive rate) -> μ or ε.
      progress: called with (runs done, runs in all).
    """
    pilot = [np.sort(values) for values in _errors(sampler, max(20, runs // PILOT), lambda *_: None)]
    grid = np.quantile(np.concatenate(pilot), np.linspace(0.02, 0.98, 97))
    size = len(pilot[0])
    first, second = (size - np.searchsorted(values, grid) for values in pilot)
    rates = zip(_bounds(second, size, "low"), _bounds(first, size, "high"), strict=True)
    threshold = grid[int(np.argmax([measure(float(t), float(f)) for t, f in rates]))]
    first, second = _errors(sampler, runs, progress)
    positives = np.asarray([(values >= threshold).sum() for values in (second, first)])
    low = measure(float(_bounds(positives, runs, "low")[0]), float(_bounds(positives, runs, "high")[1]))
    clipped = np.clip(positives / runs, 0.5 / runs, 1 - 0.5 / runs)
    return {"lower_bound": low, "estimate": measure(*clipped), "runs": runs}


def gaussian_sampler(totals: Sequence[np.ndarray], add: Callable[[np.ndarray], np.ndarray]) -> Sampler:
    """The statistic for Gaussian noise: the projection on the line between the two embeddings.

    Args:
      totals: the embeddings of both databases, [F] each.
      add: adds noise.
    """
    direction = (totals[1] - totals[0]).astype(np.float64)
    direction /= np.linalg.norm(direction)
    size = len(direction)

    def sample(which, runs):
        noisy = add(np.tile(totals[which], runs)).reshape(runs, size)
        return (noisy - totals[0]).astype(np.float64) @ direction

    return sample


def laplace_sampler(totals: Sequence[np.ndarray], scale: float, add: Callable[[np.ndarray], np.ndarray]) -> Sampler:
    """The statistic for Laplace noise: the logarithm of the likelihood ratio. See :func:`gaussian_sampler`."""

    def sample(which, runs):
        noisy = add(np.tile(totals[which], runs)).reshape(runs, len(totals[0]))
        far, near = (np.abs((noisy - total).astype(np.float64)).sum(axis=1) for total in totals)
        return (far - near) / scale

    return sample


def share_of_diameter(totals: Sequence[np.ndarray], sensitivity: float) -> float:
    """Distance of the two embeddings, as a share of the sensitivity."""
    return float(np.linalg.norm((totals[1] - totals[0]).astype(np.float64)) / sensitivity)
