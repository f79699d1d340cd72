"""Intervals for any statistic of released points, from draws of the posterior of the private distribution.

The noise of a release is known exactly, so Bayes' rule gives the distribution of what was measured. The synthesis
samples this posterior, see ``kme_jax.synthesis.posterior``, and keeps its mean. Here the draws ν themselves are kept.
Each is a distribution of rows that explains the noisy embedding up to its noise. Any statistic of all draws has a mean
and a standard deviation, which is the standard error that the noise of privacy causes (Bernstein & Sheldon 2018). This
is post-processing: it spends nothing.

Draws are mixtures of normal distributions. Private rows are not, so that draws alone would be biased: they lose a part
of a skewed tail, for instance, and the mean with it. Therefore each draw is corrected by what the noisy embedding β
says beyond it. Let the private rows have the density u relative to a measure m, beside the draw, where values of u are
independent with mean 0 and variance τ². Given β, and with new noise ξ of variance σ², their part beside the draw is

    η = W Ψ (Ψᵀ W Ψ + (σ²/τ²) I)⁻¹ (β + ξ − ψ(ν))

for points of m with weights W and features Ψ without their means. The draw becomes ν + η, whose weights may be
negative. For a function h with h ≈ aᵀψ + constant on m, Σ η h is aᵀ(β + ξ − ψ(ν)). So ν + η has the mean aᵀβ of h,
which is unbiased whatever the private rows are, and its standard deviation is σ‖a‖. For what features do not say,
h − aᵀψ, draws differ as before. m is half the mean of the draws, and half the bounds or the proposal. So it reaches
where draws have nothing. τ² is 1/N, the variance that sampling N rows would cause, and 30/N for at most three columns.
With more columns the bounds are mostly empty, and a larger τ makes intervals far too long.

Many private rows may lie on a bound of a column. So draws are cut at the bounds while they are sampled: what is beyond
a bound is moved to it (see ``kme_jax.synthesis.posterior``). Such draws explain the noisy embedding. But features
hardly tell whether rows are on the bound or next to it, and draws prefer one answer. So if draws have a share f of
their rows on a face, τ² at a distance x from it is larger by the factor F = 1 + 33 f/(f + 0.01) exp(−x²/2ℓ²), with the
length ℓ of the kernel. These numbers were chosen on simulated rows. Where draws have nothing on a face, τ² is as above.
η is the mean of what β allows, and features cannot tell the rest. Near such a face draws differ too little in it. So
there a draw begins from a random density v with the variance τ² (F − 1), and becomes ν + v + η, where ψ(ν + v) takes
the place of ψ(ν). This is how one draws from the posterior of a normal distribution.

Draws of maps without a lattice are cut after they were sampled. If this moves their embeddings by more than five
standard deviations of the noise, they explain it no longer, and there are no intervals.

Features of a kernel say little about details that are much finer than its length. Draws differ in such details, so
intervals of statistics that depend on them are wide: a share of rows beyond a limit has a wider interval than a mean.
Draws are smooth, so a value that many private rows share is spread out: a price of 9.99, an age that ends in 0 or 5. β
may not tell, as such heaps can be closer to each other than the length of the kernel. Intervals of shares and quantiles
would be far too short. So, unless whoever asks says that the rows are ``smooth``, half the weight of each draw is moved
to heaps: each column has 24 random values there, and they are others in each draw. Heaps are a random sample of the
draw, moved to the nearest of these values, with the non-negative weights that explain β + ξ best. Such weights are as
far from smooth as rows can be that explain β. Both halves of a draw explain β, nearly, so the draw does. Intervals of
shares are then longer, often several times, and those of means mostly not. In a column of whole numbers, a limit must
still lie between two of them: ask for age>=64.5.
``experiments.inference.coverage`` shows how often intervals contain the private statistic. If the sampler did not
converge, there are no intervals, because no mixture explains the noisy embedding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import scipy.linalg
import scipy.special
from jaxtyping import Float64

from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.estimates import Estimate, Estimates, check_level, number_of
from kme_jax.domain import NormalProposal, unit_box
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy.budget import check_integer
from kme_jax.synthesis.posterior import posterior_mean
from kme_jax.synthesis.sample import WeightedSample

_POINTS_PER_DRAW = 4096
_EVERY = 2  # draws follow each other closely: every second one is used
_ANCHORS = 1200  # points of m
_MOST_MOVED = 5.0  # the largest distance, in standard deviations of the noise, by which draws may be moved when cut
_OF_FACES, _SMALL_SHARE = 33.0, 0.01  # the factor of τ² next to a face, and a share of rows on it that calls for half
_FEW_COLUMNS = 3  # for which τ² N is 30, and 1 for more
# The share of the rows that are on heaps, if rows are not smooth; the values of each column that heaps are on; and the
# number of points of which heaps are chosen.
_HEAPED, _HEAPS_OF_COLUMN, _HEAPS = 0.5, 24, 500
_SUM_PRECISION = 1e6  # of the sum of the weights of heaps, beside the largest precision of a feature


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Distributions that explain a release up to its noise, as weighted points. Public.

    Attributes:
      measurement: of points.
      samples: one weighted sample for each draw, in the units of the private rows. Some weights are negative, and their
        sum is 1.
      seed: of the draws.
      smooth: whether no value is shared by many rows.
    """

    measurement: Measurement
    samples: tuple[WeightedSample, ...]
    seed: int
    smooth: bool = False

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
            Then weights vary as if N rows were drawn. Otherwise it is that of the private rows.

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
          >>> bool(mean.low < rows.mean() < mean.high)
          True
        """
        check_level(level)
        rng = np.random.default_rng(self.seed)
        values: list[Mapping[Any, Any]] = []
        for sample in self.samples:
            if population:
                weights = _resampled(sample.weights, self.measurement.statement["num_rows"], rng)
                sample = dataclasses.replace(sample, weights=weights)
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
        return estimates[""] if list(estimates) == [""] else Estimates(estimates)


def posterior_draws(
    release: Release | Measurement,
    *,
    smooth: bool = False,
    seed: int = 0,
    progress: Progress | bool = False,
) -> PosteriorDraws:
    """Draws of the posterior of the private distribution, for intervals of any number of statistics.

    They take as long as a synthesis, so make them once for several questions.

    Args:
      release: of points with a proposal or with bounds, or its measurement.
      smooth: whether no value of a column is shared by many rows, such as a round price or age. If you know this of the
        columns, intervals of shares, quantiles and statistics with conditions are several times shorter.
      seed: of the sampler.
      progress: True for a bar, or a function that is called with (rounds done, total rounds).

    Raises:
      ValueError: it is no release of points, or one of public points, which has no posterior; the sampler did not
        converge; draws reach too far beyond the bounds, for a map whose draws are not cut while they are sampled; the
        seed is out of range.
    """
    measurement = release.measurement if isinstance(release, Release) else release
    check_has_posterior(measurement)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    bounds, proposal = measurement.bounds, measurement.proposal
    assert proposal is not None
    rng, box = np.random.default_rng(seed), None if bounds is None else unit_box(bounds.dim)
    mean, report = posterior_mean(jax.random.key(seed), measurement.noisy, proposal, box=box, progress=progress)
    if not report.converged:
        raise ValueError(
            "the sampler found no mixture that explains the noisy embedding, so there are no intervals: the rows have "
            "finer structure than the mixtures have"
        )
    draws = [
        _points_of(*draw, rng)
        for draw in zip(mean.centres[::_EVERY], mean.weights[::_EVERY], mean.widths[::_EVERY], strict=True)
    ]
    if box is not None:
        cut = [(np.clip(points, *box), weights) for points, weights in draws]
        if mean.box is None and _moved(measurement, draws, cut) > _MOST_MOVED:
            raise ValueError(
                "there are no intervals: many rows may lie on a bound, or so close that draws reach beyond it; a "
                "release with wider bounds may have them, and one with a longer kernel, which has a LatticeMap"
            )
        draws = cut
    anchors = _anchors(draws, proposal, box, rng)
    samples = []
    factors = None if mean.box is None else _factors(draws, anchors, mean.feature_map.length_scale)
    if not smooth:
        draws = [_with_heaps(measurement, *draw, rng) for draw in draws]
    for (points, weights), added in zip(draws, corrections(measurement, draws, anchors, rng, factors), strict=True):
        points = np.concatenate([points, anchors])
        points = points if bounds is None else bounds.from_unit(points)
        samples.append(WeightedSample(points, np.concatenate([weights, added]), mean.mechanism))
    return PosteriorDraws(measurement, tuple(samples), seed, smooth)


def _with_heaps(
    measurement: Measurement,
    points: Float64[np.ndarray, "M d"],
    weights: Float64[np.ndarray, "M"],
    rng: np.random.Generator,
) -> tuple[Float64[np.ndarray, "n d"], Float64[np.ndarray, "n"]]:
    """A draw of which half is on heaps: see the module's text.

    The non-negative least squares are solved through the Gram matrix of the points, of which there are few.

    Args:
      measurement: with β and ψ.
      points: of the draw.
      weights: of the draw, with sum 1.
      rng: of the points and of the noise ξ.
    """
    from scipy.optimize import nnls  # takes long to import

    feature_map, mechanism = measurement.noisy.feature_map, measurement.noisy.mechanism
    sample = points[rng.choice(len(points), _HEAPS, p=weights / weights.sum())]
    for values in sample.T:
        heaped = np.sort(rng.choice(values, _HEAPS_OF_COLUMN))
        values[:] = heaped[np.searchsorted((heaped[1:] + heaped[:-1]) / 2, values)]
    heaps = np.unique(sample, axis=0)
    features = np.asarray(feature_map(heaps.astype(np.float32)), np.float64)
    noise = math.sqrt(mechanism.variance) * rng.standard_normal(feature_map.num_features)
    gram, target = features @ features.T, features @ (np.asarray(measurement.noisy.coordinates, np.float64) + noise)
    precision = _SUM_PRECISION * float(np.diag(gram).max())
    gram, target = gram + precision, target + precision
    gram[np.diag_indices(len(gram))] += mechanism.variance
    root = scipy.linalg.cholesky(gram, lower=True)
    of_heaps, _ = nnls(root.T, scipy.linalg.solve_triangular(root, target, lower=True), maxiter=20 * len(heaps))
    shares = (1 - _HEAPED) * weights, _HEAPED * of_heaps / of_heaps.sum()
    return np.concatenate([points, heaps]), np.concatenate(shares)


def _moved(
    measurement: Measurement,
    draws: Sequence[tuple[Float64[np.ndarray, "M d"], Float64[np.ndarray, "M"]]],
    cut: Sequence[tuple[Float64[np.ndarray, "M d"], Float64[np.ndarray, "M"]]],
) -> float:
    """How far cutting moves the embeddings of draws: the root mean square of ‖ψ(cut ν) − ψ(ν)‖ / σ."""
    feature_map, squares = measurement.noisy.feature_map, []
    for (points, weights), (ends, _) in zip(draws, cut, strict=True):
        beyond = (points != ends).any(axis=1)
        rows = np.concatenate([ends[beyond], points[beyond]])
        signed = np.concatenate([weights[beyond], -weights[beyond]])
        moved = feature_map.weighted_sum(rows.astype(np.float32), signed.astype(np.float32)) if len(rows) else 0.0
        squares.append(np.sum(np.square(moved)))
    return math.sqrt(np.mean(squares) / measurement.noisy.mechanism.variance)


def _anchors(
    draws: list[tuple[np.ndarray, np.ndarray]],
    proposal: NormalProposal,
    box: tuple[np.ndarray, np.ndarray] | None,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "n d"]:
    """Points of m: half from the draws, and half from all of the box or the proposal."""
    half = _ANCHORS // 2
    points, weights = (np.concatenate(arrays) for arrays in zip(*draws, strict=True))
    own = points[rng.choice(len(points), half, p=weights / weights.sum())]
    if box is None:
        return np.concatenate([own, proposal.sample(half, int(rng.integers(MAX_SEED)))])
    return np.concatenate([own, rng.uniform(*box, (half, proposal.dim))])


def _factors(
    draws: Sequence[tuple[Float64[np.ndarray, "M d"], Float64[np.ndarray, "M"]]],
    anchors: Float64[np.ndarray, "n d"],
    length: float,
) -> Float64[np.ndarray, "n"]:
    """By which τ² is multiplied at each anchor in [0, 1]^d: 1 far from the faces where draws have rows."""
    factors = np.ones(len(anchors))
    for bound in unit_box(anchors.shape[1]):
        shares = np.mean([weights @ (points == bound) for points, weights in draws], axis=0)
        closeness = np.exp(-0.5 * np.square((anchors - bound) / length))
        factors += _OF_FACES * closeness @ (shares / (shares + _SMALL_SHARE))
    return factors


def corrections(
    measurement: Measurement,
    draws: Sequence[tuple[Float64[np.ndarray, "M d"], Float64[np.ndarray, "M"]]],
    anchors: Float64[np.ndarray, "n d"],
    rng: np.random.Generator,
    factors: Float64[np.ndarray, "n"] | None = None,
) -> Float64[np.ndarray, "draws n"]:
    """v + η of the module's text for each draw: weights of the anchors, whose sum is 0.

    Args:
      measurement: with β and ψ.
      draws: points and weights of each ν.
      anchors: points of m.
      rng: of the new noise.
      factors: F, by which τ² is multiplied at each anchor; None for 1.
    """
    feature_map, mechanism = measurement.noisy.feature_map, measurement.noisy.mechanism
    explained = [
        feature_map.weighted_sum(points.astype(np.float32), weights.astype(np.float32)) for points, weights in draws
    ]
    noise = math.sqrt(mechanism.variance) * rng.standard_normal((len(draws), feature_map.num_features))
    left = np.asarray(measurement.noisy.coordinates, np.float64) + noise - np.asarray(explained, np.float64)
    features = np.asarray(feature_map(anchors.astype(np.float32)), np.float64)
    tau_squared = (30.0 if feature_map.dim <= _FEW_COLUMNS else 1.0) / mechanism.num_rows
    shares, begun = np.full(len(anchors), 1 / len(anchors)), np.zeros((len(draws), len(anchors)))  # W and W v
    if factors is not None and (factors > 1).any():
        deviations = np.sqrt(tau_squared * (factors - 1) * shares)
        shares = shares * factors
        begun = _without_sum(deviations * rng.standard_normal(begun.shape), shares)
        left -= begun @ features
    features -= shares @ features / shares.sum()
    features *= np.sqrt(shares)[:, None]
    system = features @ features.T
    system[np.diag_indices(len(anchors))] += mechanism.variance / tau_squared
    solved = scipy.linalg.cho_solve(scipy.linalg.cho_factor(system, lower=True), features @ left.T).T * np.sqrt(shares)
    return begun + _without_sum(solved, shares)


def _without_sum(
    weights: Float64[np.ndarray, "draws n"], shares: Float64[np.ndarray, "n"]
) -> Float64[np.ndarray, "draws n"]:
    """The weights, less their sum in these shares."""
    return weights - weights.sum(axis=1, keepdims=True) * shares / shares.sum()


def _resampled(weights: Float64[np.ndarray, "M"], num_rows: int, rng: np.random.Generator) -> Float64[np.ndarray, "M"]:
    """Weights that vary as the shares of N rows do: a normal approximation, which takes negative weights as 0."""
    positive = np.maximum(weights, 0)
    positive /= positive.sum()
    steps = np.sqrt(positive / num_rows) * rng.standard_normal(len(weights))
    return weights + steps - positive * steps.sum()


def check_has_posterior(measurement: Any) -> None:
    """Refuses what has no posterior.

    Raises:
      ValueError: it is no measurement of points, or has no proposal.
    """
    if not isinstance(measurement, Measurement):
        raise ValueError(f"release: expected a release of points, got a {type(measurement).__name__}")
    if measurement.proposal is None:
        raise ValueError(
            "release: it gives weights to public points, so there are no intervals; for some, release with bounds alone"
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
