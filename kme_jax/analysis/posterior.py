"""Intervals for any statistic of released points, from draws of the posterior of the private distribution.

The noise of a release is known exactly, so Bayes' rule gives the distribution of what was measured. The synthesis
samples this posterior, see ``kme_jax.synthesis.posterior``, and keeps its mean. Here the draws themselves are kept.
Each is a distribution of rows that explains the noisy embedding up to its noise. Any statistic of all draws has a mean
and a standard deviation, which is the standard error that the noise of privacy causes (Bernstein & Sheldon 2018). This
is post-processing: it spends nothing.

Features of a kernel say little about details that are much finer than its length. Draws differ in such details, so
intervals of statistics that depend on them are wide: a share of rows beyond a limit has a wider interval than a mean.

What intervals cover: draws are right on average over distributions like those of the prior, mixtures of normal
distributions within the proposal. ``experiments.inference.coverage`` shows how often intervals contain the private
statistic for other distributions. If the sampler did not converge, there are no intervals, because no mixture explains
the noisy embedding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import scipy.special

from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.estimates import Estimate, check_level, number_of
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy.budget import check_integer
from kme_jax.synthesis.posterior import posterior_mean
from kme_jax.synthesis.sample import WeightedSample

_POINTS_PER_DRAW = 8192


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Distributions that explain a release up to its noise, as weighted points. Public.

    Attributes:
      measurement: of points.
      samples: one weighted sample for each draw, in the units of the private rows. Weights are positive.
      seed: of the draws.
    """

    measurement: Measurement
    samples: tuple[WeightedSample, ...]
    seed: int

    def _in_short(self) -> str:
        return f"{len(self.samples)} draws of {len(self.samples[0].weights)} points"

    def estimate(
        self, statistic: Callable[[WeightedSample], Any], level: float = 0.95, *, population: bool = False
    ) -> Any:
        """An estimate with an interval for a statistic, or for several.

        Args:
          statistic: a function of a :class:`WeightedSample`, such as ``lambda sample: sample.expectation(h)``. It
            returns a number, or a mapping from names to numbers.
          level: of the interval.
          population: whether the statistic is that of the population from which the private rows were drawn at random.
            Then N rows are drawn anew from each draw. Otherwise it is that of the private rows.

        Returns:
          An :class:`Estimate`, or a dictionary of them by name.

        Raises:
          ValueError: the statistic is not a number, or the level is not between 0 and 1.

        Examples:
          >>> import numpy as np
          >>> from kme_jax import Bounds, Gaussian, PrivacyBudget, measure
          >>> from kme_jax.analysis import posterior_draws
          >>> rows = np.random.default_rng(0).normal(50, 10, size=(1000, 1))  # private
          >>> bounds = Bounds.create([0], [100])
          >>> measured = measure(rows, Gaussian(gamma=5), budget=PrivacyBudget(1.0, 1e-5), bounds=bounds)
          >>> draws = posterior_draws(measured)
          >>> mean = draws.estimate(lambda sample: sample.expectation(lambda z: z[:, 0]))
          >>> mean.low < rows.mean() < mean.high
          True
        """
        check_level(level)
        rng = np.random.default_rng(self.seed)
        values: list[Mapping[Any, Any]] = []
        for sample in self.samples:
            if population:
                rows = self.measurement.statement["num_rows"]
                drawn = rng.multinomial(rows, sample.weights / sample.weights.sum()) / rows
                sample = dataclasses.replace(sample, points=sample.points[drawn > 0], weights=drawn[drawn > 0])
            result = statistic(sample)
            values.append(result if hasattr(result, "items") else {"": result})
        estimates = {}
        for name in values[0]:
            drawn = np.asarray([number_of(value.get(name, math.nan)) for value in values])
            deviation = float(drawn.std(ddof=1)) if np.isfinite(drawn).all() else math.inf
            estimates[name] = Estimate.of(
                float(drawn.mean()),
                deviation,
                level,
                method="posterior",
                population=population,
                degrees=len(drawn) - 1,
            )
        return estimates[""] if list(estimates) == [""] else estimates


def posterior_draws(
    release: Release | Measurement, *, seed: int = 0, progress: Progress | bool = False
) -> PosteriorDraws:
    """Draws of the posterior of the private distribution, for intervals of any number of statistics.

    They take as long as a synthesis, so make them once for several questions.

    Args:
      release: of points with a proposal or with bounds, or its measurement.
      seed: of the sampler.
      progress: True for a bar, or a function that is called with (rounds done, total rounds).

    Raises:
      ValueError: it is no release of points, or one of public points, which has no posterior; the sampler did not
        converge; the seed is out of range.
    """
    measurement = release.measurement if isinstance(release, Release) else release
    check_has_posterior(measurement)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    bounds, proposal = measurement.bounds, measurement.proposal
    assert proposal is not None
    mean, report = posterior_mean(jax.random.key(seed), measurement.noisy, proposal, progress=progress)
    if not report.converged:
        raise ValueError(
            "the sampler found no mixture that explains the noisy embedding, so there are no intervals: the rows have "
            "finer structure than the mixtures have"
        )
    samples, rng = [], np.random.default_rng(seed)
    for centres, weights, widths in zip(mean.centres, mean.weights, mean.widths, strict=True):
        points, shares = _points_of(centres, weights, widths, rng)
        points = points if bounds is None else bounds.from_unit(points)
        samples.append(WeightedSample(points, shares, mean.mechanism))
    return PosteriorDraws(measurement, tuple(samples), seed)


def check_has_posterior(measurement: Any) -> None:
    """Refuses what has no posterior.

    Raises:
      ValueError: it is no measurement of points, or has no proposal.
    """
    if not isinstance(measurement, Measurement):
        raise ValueError(f"release: expected a release of points, got a {type(measurement).__name__}")
    if measurement.proposal is None:
        raise ValueError(
            "release: intervals need a release with bounds or a proposal; this one gives weights to public points"
        )


def _points_of(
    centres: np.ndarray, weights: np.ndarray, widths: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted points of Σ_k w_k N(z_k, s_k² I): pairs around each centre, and more of them where weights are large.

    Directions are quasi-random and their pairs opposite, so that integrals of smooth functions have a small error.
    """
    from scipy.stats import qmc  # takes long to import

    pairs = np.maximum(1, np.rint(weights * (_POINTS_PER_DRAW / 2)).astype(int))
    dim, number = centres.shape[1], 1 << int(pairs.max() - 1).bit_length()
    uniform = qmc.Sobol(dim, rng=rng).random(number)
    directions = scipy.special.ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    atoms = np.repeat(np.arange(len(weights)), pairs)
    places = np.concatenate([np.arange(count) for count in pairs])
    shifts = widths[atoms, None] * directions[places]
    shares = (weights / pairs / 2)[atoms]
    points = np.concatenate([centres[atoms] + shifts, centres[atoms] - shifts])
    return points, np.concatenate([shares, shares])
