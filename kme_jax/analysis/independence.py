"""Whether two columns of released points are independent: the Hilbert–Schmidt criterion (HSIC) of a release.

A LatticeMap has the features of the frequencies (n, m) of two columns, of (n, 0) and of (0, m). So the release holds
noisy values of the characteristic function φ of both columns together, and of φ₁ and φ₂ of each by itself. The
criterion of Gretton et al. (2005) is Σ p_nm |φ(n, m) − φ₁(n) φ₂(m)|², with the masses p of the kernel's frequencies. It
is 0 if the columns are independent. Let d_nm be √p_nm times the difference, λ_nm the variance of one row's part of it
if the columns are independent, and σ² that of the noise of a cosine or a sine. The statistic is

    T = Σ (λ / (λ/N + 2σ²))² |d|²,

so that frequencies which the noise hides count less. If the columns are independent, d has two parts. That of the
sampling is approximately normal. Its covariance is that of √p (ψ₁ − φ₁)(ψ₂ − φ₂) for rows whose columns are
independent, and such rows are drawn from the synthetic points. That of the noise is √p (ξ_nm − φ₂ ξ_n − φ₁ ξ_m −
ξ_n ξ_m). Quantiles of T are simulated from both. There is nothing to choose. This is post-processing.
"""

from __future__ import annotations

import math
import numbers

import numpy as np
from jaxtyping import Complex128, Float64, Int

from kme_jax._numerics.precision import MAX_SEED
from kme_jax.analysis.distances import check_gaussian
from kme_jax.analysis.outcome import TestResult
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.points.release import Release
from kme_jax.privacy.budget import check_integer

_DRAWS = 4000  # of the statistic if the columns are independent
_POINTS = 1000  # with independent columns, for the covariance
_AT_ONCE = 500  # draws


def independence_test(release: Release, first: str | int, second: str | int, *, seed: int = 0) -> TestResult:
    """Tests whether two columns of the private rows are independent, from a release of points. Post-processing.

    Args:
      release: of points with bounds, whose map is a LatticeMap: a Gaussian kernel, and few columns.
      first: name or index of one column.
      second: name or index of the other.
      seed: of the simulated quantiles.

    Returns:
      The result. The smallest p-value is 2.5e-4.

    Raises:
      ValueError: it is no such release, or there are no two such columns.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Bounds, Gaussian, PrivacyBudget, release
      >>> from kme_jax.analysis import independence_test
      >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 5000)
      >>> circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # private, not correlated
      >>> bounds = Bounds.create([-2, -2], [2, 2], ["x", "y"])
      >>> released = release(circle, Gaussian(gamma=20), budget=PrivacyBudget(1.0, 1e-5), bounds=bounds, num_points=100)
      >>> independence_test(released, "x", "y").p_value < 0.01
      True
    """
    if not isinstance(release, Release):
        raise ValueError(f"release: expected a release of points with synthetic points, got a {type(release).__name__}")
    check_gaussian(release.noisy)
    columns = [_index(release.columns, column) for column in (first, second)]
    if columns[0] == columns[1]:
        raise ValueError(f"columns: expected two different ones, got {first!r} and {second!r}")
    feature_map, seed = release.noisy.feature_map, check_integer("seed", seed, 0, MAX_SEED)
    if not isinstance(feature_map, LatticeMap):
        raise ValueError(
            "release: the test needs a LatticeMap. A release has one for a Gaussian kernel whose length is long enough "
            "for the number of columns: measure the rows with a longer one, or with more features"
        )
    indices = np.asarray(feature_map.indices)
    joint, alone, signs = _frequencies(indices, columns)
    if not len(joint):
        raise ValueError("release: its map has no features of both columns together")
    amplitudes = np.asarray(feature_map.amplitudes, np.float64)
    heights, variance = amplitudes[joint], release.noisy.mechanism.variance
    rng, num_rows = np.random.default_rng(seed), release.noisy.mechanism.num_rows
    cosines, sines = np.asarray(release.noisy.coordinates, np.float64).reshape(2, -1) / amplitudes
    measured = cosines + 1j * sines

    def parts(values: Complex128[np.ndarray, "... n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of values for all frequencies, those of both columns together, of the first and of the second."""
        of_columns = values[..., alone]
        of_columns = np.where(signs > 0, of_columns, of_columns.conj())
        return values[..., joint], of_columns[..., 0], of_columns[..., 1]

    # Points whose columns are independent, with the margins of the synthetic points.
    unit = (
        release.sample.points
        if release.measurement.bounds is None
        else release.measurement.bounds.to_unit(release.sample.points)
    )
    weights = np.maximum(np.asarray(release.sample.weights, np.float64), 0)
    drawn = [rng.choice(len(weights), _POINTS, p=weights / weights.sum()) for _ in range(2)]
    points = np.tile(np.asarray(feature_map.centre), (_POINTS, 1))
    for column, places in zip(columns, drawn, strict=True):
        points[:, column] = unit[places, column]
    angles = 2 * math.pi * ((points - feature_map.centre) / feature_map.periods) @ indices.T
    _, of_first, of_second = parts(np.exp(1j * angles))
    means = of_first.mean(axis=0), of_second.mean(axis=0)
    influence = heights * (of_first - means[0]) * (of_second - means[1])
    spread = np.mean(np.square(np.abs(influence)), axis=0)
    weight = np.square(spread / (spread / num_rows + 2 * variance))

    def statistic(difference: Complex128[np.ndarray, "... n"]) -> Float64[np.ndarray, "..."]:
        return np.square(np.abs(difference)) @ weight

    together, one, two = parts(measured)
    observed = float(statistic(heights * (together - one * two)))
    simulated = []
    for _ in range(_DRAWS // _AT_ONCE):
        sampled = rng.normal(size=(_AT_ONCE, _POINTS)) @ influence / math.sqrt(_POINTS * num_rows)
        noise = rng.normal(size=(2, _AT_ONCE, len(amplitudes))) * math.sqrt(variance) / amplitudes
        noise_both, noise_one, noise_two = parts(noise[0] + 1j * noise[1])
        noisy = noise_both - means[1] * noise_one - means[0] * noise_two - noise_one * noise_two
        simulated.append(statistic(sampled + heights * noisy))
    expected = np.concatenate(simulated)
    average = float(expected.mean())
    if not average > 0:
        raise ValueError("columns: all synthetic points have the same value in one of them")
    p_value = (1 + int((expected >= observed).sum())) / (1 + len(expected))
    names = [release.columns[column] for column in columns]
    hypothesis = f"{names[0]} and {names[1]} are independent"
    return TestResult(hypothesis, observed / average, p_value)


def _index(names: tuple[str, ...], column: str | int) -> int:
    if isinstance(column, str):
        if column in names:
            return names.index(column)
    elif isinstance(column, numbers.Integral) and 0 <= int(column) < len(names):
        return int(column)
    raise ValueError(f"column: expected one of {', '.join(names)} or its index, got {column!r}")


def _frequencies(
    indices: Int[np.ndarray, "n d"], columns: list[int]
) -> tuple[Int[np.ndarray, "J"], Int[np.ndarray, "J 2"], Int[np.ndarray, "J 2"]]:
    """Places of the frequencies of both columns together, and of those of each column by itself.

    Returns:
      joint: places of the frequencies (n, m) with n and m ≠ 0, [J].
      alone: the places of (n, 0) and of (0, m), [J, 2].
      signs: −1 where the lattice has the opposite frequency instead, otherwise 1, [J, 2].
    """
    within = (np.delete(indices, columns, axis=1) == 0).all(axis=1)
    pair = np.where(within[:, None], indices[:, columns], 0)
    place_of = {
        (side, int(pair[place, side])): int(place)
        for side in (0, 1)
        for place in np.flatnonzero(pair[:, 1 - side] == 0)
    }
    joint, alone, signs = [], [], []
    for place in np.flatnonzero((pair != 0).all(axis=1)):
        numbers = [(side, int(pair[place, side])) for side in (0, 1)]
        sign = [1 if number in place_of else -1 for number in numbers]
        own = [place_of.get((side, s * n)) for (side, n), s in zip(numbers, sign, strict=True)]
        if None not in own:
            joint.append(place)
            alone.append(own)
            signs.append(sign)
    return np.asarray(joint, int), np.asarray(alone, int).reshape(-1, 2), np.asarray(signs, int).reshape(-1, 2)
