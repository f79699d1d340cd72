import itertools
import math

import jax
import mpmath
import numpy as np
import pytest
from scipy import stats

from kme_jax import FourierMap, Gaussian, MeanEmbedding, PrivacyBudget, SubspaceMap, perturb
from kme_jax._numerics.precision import float64
from kme_jax.privacy import (
    add_noise,
    calibration,
    discrete_epsilon,
    discreteness,
    fine_rho,
    gaussian_delta,
    gaussian_noise_multiplier,
    simulated_mechanism,
    zcdp_epsilon,
    zcdp_rho,
)


def exact_delta(multiplier, epsilon):
    """δ of Gaussian noise by 50-digit integration of the positive part of p − e^ε q."""
    with mpmath.workdps(50):
        mu = 1 / mpmath.mpf(multiplier)
        above = epsilon / mu - mu / 2  # where the privacy loss of N(μ, 1) against N(0, 1), shifted by μ, is ε
        return float(mpmath.ncdf(-above) - mpmath.exp(epsilon) * mpmath.ncdf(-above - mu))


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.1, 1, 5, 20])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_analytic_calibration_is_tight_and_safe(epsilon, delta):
    multiplier = gaussian_noise_multiplier(PrivacyBudget(epsilon, delta))
    assert gaussian_delta(multiplier, epsilon) == pytest.approx(exact_delta(multiplier, epsilon), rel=1e-8)
    assert exact_delta(multiplier, epsilon) <= delta
    assert exact_delta(multiplier * (1 - 1e-6), epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_nobody_guesses_better_than_the_bound(epsilon, delta):
    """The best guess of which of two rows is there, from the noise of a release, and from a mechanism that is worst."""
    bound = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    best = stats.norm.cdf(1 / gaussian_noise_multiplier(PrivacyBudget(epsilon, delta)) / 2)  # of N(0, 1) and N(μ, 1)
    assert 0.5 < best < bound
    p, q = bound, 1 - bound  # of saying D under D and D'
    assert max(p - math.exp(epsilon) * q, (1 - q) - math.exp(epsilon) * (1 - p)) == pytest.approx(delta, rel=1e-6)
    assert (p + 1 - q) / 2 == pytest.approx(bound)


def _discrete_and_rounded(sigma):
    """Probabilities of discrete Gaussian noise and of rounded normal numbers on −K, ..., K, with 40 digits."""
    with mpmath.workdps(40):
        places = range(-int(12 * sigma) - 1, int(12 * sigma) + 2)
        edges = [mpmath.ncdf((mpmath.mpf(k) - mpmath.mpf(1) / 2) / sigma) for k in (*places, places[-1] + 1)]
        rounded = [b - a for a, b in itertools.pairwise(edges)]
        density = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in places]
        total = mpmath.fsum(density)
        return [p / total for p in density], rounded


@pytest.mark.parametrize("sigma", [1.0, 1.7, 5.0, 30.0])
def test_discreteness_bounds_the_total_variation(sigma):
    """Of one coordinate, and χ² of many, which is exact for independent coordinates."""
    discrete, rounded = _discrete_and_rounded(sigma)
    apart = float(mpmath.fsum(abs(p - r) for p, r in zip(discrete, rounded, strict=True)) / 2)
    assert apart <= discreteness(sigma, 1) <= 2 * apart
    chi_squared = float(mpmath.fsum((p - r) ** 2 / p for p, r in zip(discrete, rounded, strict=True) if p > 1e-40))
    for size in (1, 7, 1000):
        exact = math.sqrt(math.expm1(size * math.log1p(chi_squared))) / 2
        assert exact <= discreteness(sigma, size) or exact >= 1
        assert discreteness(sigma, size) <= min(1.0, 1.1 * exact)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(5.0, 7), (12.0, 3), (40.0, 35)])
def test_discrete_noise_has_the_delta_of_fine_noise(sigma, sensitivity):
    """The exact δ of a single count with discrete Gaussian noise, by a sum over all its values."""
    places = np.arange(-int(40 * sigma), int(40 * sigma) + 1)
    density = np.exp(-(places**2) / (2 * sigma**2))
    shifted = np.exp(-((places - sensitivity) ** 2) / (2 * sigma**2))
    rho = sensitivity**2 / (2 * sigma**2)
    for epsilon in (0.1, 1.0, 3.0):
        exact = float(np.maximum(shifted - math.exp(epsilon) * density, 0).sum() / density.sum())
        assert exact <= calibration.fine_delta(rho, epsilon, discreteness(sigma, 1))
        assert exact == pytest.approx(gaussian_delta(sigma / sensitivity, epsilon), rel=0.2, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0])
def test_fine_noise_spends_its_budget_and_never_more(epsilon):
    budget = PrivacyBudget(epsilon, 1e-5)
    rho, most = fine_rho(budget), calibration.largest_discreteness(budget)
    assert calibration.fine_delta(rho, epsilon, most) <= 1e-5
    assert calibration.fine_delta(rho * 1.01, epsilon, most) > 1e-5
    assert zcdp_rho(budget) < rho
    assert epsilon * 0.999 < discrete_epsilon(rho, 1e-5, most) <= epsilon
    assert discrete_epsilon(rho, 1e-5, None) == zcdp_epsilon(rho, 1e-5) > epsilon
    assert discrete_epsilon(rho, 1e-5, 0.1) == zcdp_epsilon(rho, 1e-5)  # noise that is too coarse
    groups = [discrete_epsilon(k**2 * rho, 1e-5, most) for k in (1, 2, 5, 100)]
    assert groups == sorted(groups)
    assert all(value <= zcdp_epsilon(k**2 * rho, 1e-5) for k, value in zip((1, 2, 5, 100), groups, strict=True))


@pytest.mark.parametrize("num_features", [1, 1000, 10**7])
@pytest.mark.parametrize("largest", [1e-30, 1e-12, 1e-3])
def test_the_finest_scale_is_fine_enough(num_features, largest):
    scale = calibration.finest_scale(num_features, largest)
    assert discreteness(scale, num_features) <= largest
    assert scale == 1 or discreteness(0.95 * scale, num_features) > largest


def test_classical_calibration_is_the_papers():
    assert gaussian_noise_multiplier(PrivacyBudget(0.1, 1e-6), "classical") == pytest.approx(
        math.sqrt(2 * math.log(1.25e6)) / 0.1
    )
    subspace = SubspaceMap.from_points(Gaussian(1.0), np.zeros((1, 1)))
    mechanism = simulated_mechanism(
        subspace, 100_000, PrivacyBudget(0.1, 1e-6), calibration="classical", diameter="published"
    )
    assert mechanism.scale**2 == pytest.approx(8 * math.log(1.25 / 1e-6) / (100_000 * 0.1) ** 2)  # line 7


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
def test_analytic_noise_is_smaller_than_classical(epsilon):
    """DESIGN: σ smaller by 1.73, 1.46 and 1.25 at δ = 1e-6."""
    budget = PrivacyBudget(epsilon, 1e-6)
    ratio = gaussian_noise_multiplier(budget, "classical") / gaussian_noise_multiplier(budget)
    assert ratio == pytest.approx({0.01: 1.73, 0.1: 1.46, 1.0: 1.25}[epsilon], abs=0.01)


def test_classical_noise_suffices_wherever_it_is_accepted():
    for epsilon in np.geomspace(1e-4, 1, 15):
        for delta in [1e-15, 1e-9, 1e-3, 0.1, 0.5, 0.99]:
            assert exact_delta(gaussian_noise_multiplier(PrivacyBudget(epsilon, delta), "classical"), epsilon) <= delta


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0, 1e-6, "epsilon must be positive"),
        (-1, 1e-6, "epsilon must be positive"),
        (math.inf, 1e-6, "epsilon must be positive"),
        (math.nan, 1e-6, "epsilon must be positive"),
        (1, -1e-6, r"delta must be in \[0, 1\)"),
        (1, 1, r"delta must be in \[0, 1\)"),
        (1, math.nan, r"delta must be in \[0, 1\)"),
        (1e-300, 1e-6, "use a larger epsilon"),
        (5e-324, 1e-6, "use a larger epsilon"),
        (1e308, 1e-6, "a larger epsilon protects nobody"),
        (1, 5e-324, "delta must be 0 or at least 1e-300"),
        (1, 5.6e-309, "delta must be 0 or at least 1e-300"),
        (10**400, 1e-6, "a number that fits float64"),
        (True, 1e-6, "epsilon must be a number, got True"),
        (1, False, "delta must be a number, got False"),
        ("1", 1e-6, "epsilon must be a number, got '1'"),
        (1, "1e-6", "delta must be a number"),
        (1 + 0j, 1e-6, "epsilon must be a number"),
        (None, 1e-6, "epsilon must be a number, got None"),
        (np.array([1.0]), 1e-6, "epsilon must be a number, got ndarray"),
    ],
)
def test_impossible_budgets(epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        PrivacyBudget(epsilon, delta)


def test_a_budget_is_of_floats():
    budget = PrivacyBudget(np.float32(0.5), -0.0)
    assert (type(budget.epsilon), budget.epsilon) == (float, 0.5)
    assert math.copysign(1, budget.delta) == 1


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-9, 0.4])
def test_extreme_budgets_are_calibrated_to_on_the_safe_side(epsilon, delta):
    """With 50 digits, where δ in float64 is the difference of two numbers that are nearly equal."""
    multiplier, rho = gaussian_noise_multiplier(PrivacyBudget(epsilon, delta)), zcdp_rho(PrivacyBudget(epsilon, delta))
    assert exact_delta(multiplier, epsilon) <= delta
    assert exact_delta(multiplier * (1 - 1e-2), epsilon) > delta
    with mpmath.workdps(50):

        def log_delta(excess):
            return (
                excess * ((1 + excess) * rho - epsilon) - (1 + excess) * mpmath.log1p(1 / excess) - mpmath.log(excess)
            )

        best = mpmath.mpf(min(np.geomspace(1e-6, 2 + epsilon / rho, 500).tolist(), key=log_delta))
        fine = [best * (1 + mpmath.mpf(i) / 3000) for i in range(-200, 201)]
        assert min(map(log_delta, fine)) <= mpmath.log(delta) + 1e-4
    assert zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-5) or delta == 0.4
    assert 1 / math.sqrt(2 * rho) > multiplier


def test_calibration_refuses_what_is_not_proved():
    with pytest.raises(ValueError, match="delta = 0 is not possible with Gaussian noise"):
        gaussian_noise_multiplier(PrivacyBudget(1, 0))
    with pytest.raises(ValueError, match="classical calibration is proved for epsilon <= 1"):
        gaussian_noise_multiplier(PrivacyBudget(1.01, 1e-6), "classical")
    with pytest.raises(ValueError, match="calibration must be"):
        gaussian_noise_multiplier(PrivacyBudget(1, 1e-6), "guess")


def _embedding(num_features, num_rows=50):
    points = 100.0 * np.arange(num_features)[:, None]  # orthonormal to machine precision
    subspace = SubspaceMap.from_points(Gaussian(1.0), points)
    return MeanEmbedding(subspace, np.linspace(0, 0.1, num_features), num_rows)


def _scale_is_accepted(noise, distribution):
    return stats.kstest(noise, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_has_the_right_scale_and_not_two_thirds_or_three_halves_of_it(kind):
    embedding = _embedding(40)
    budget = PrivacyBudget(0.7, 1e-5 if kind == "gaussian" else 0)
    draws = [perturb(key, embedding, budget, noise=kind) for key in jax.random.split(jax.random.key(5), 200)]
    noise = np.concatenate([draw.coordinates - embedding.coordinates for draw in draws])
    feature_map = embedding.feature_map
    if kind == "gaussian":
        left = PrivacyBudget(0.7, 1e-5 - feature_map.failure_probability)
        scale = feature_map.diameter / 50 * gaussian_noise_multiplier(left)
        family = stats.norm
    else:
        scale = math.sqrt(40) * feature_map.certain_diameter / 50 / 0.7
        family = stats.laplace
    assert draws[0].mechanism.scale == pytest.approx(scale, rel=1e-12)
    assert _scale_is_accepted(noise, family(scale=scale))
    for wrong in (2 / 3, 3 / 2):
        assert not _scale_is_accepted(noise, family(scale=wrong * scale))
    assert len(np.unique(noise)) == noise.size  # independent across coordinates and keys


def test_noise_is_the_keys(rng):
    embedding, budget = _embedding(5), PrivacyBudget(1, 1e-6)
    first, again = (perturb(jax.random.key(1), embedding, budget) for _ in range(2))
    np.testing.assert_array_equal(first.coordinates, again.coordinates)
    other = perturb(jax.random.key(2), embedding, budget)
    assert np.all(first.coordinates != other.coordinates)
    assert first.coordinates.dtype == np.float64
    assert not first.mechanism.secure
    assert "simulated" in first.mechanism.noise_source


def test_mechanisms_refuse_a_budget_of_the_other_kind():
    embedding = _embedding(3)
    with pytest.raises(ValueError, match="delta = 0 is not possible"):
        perturb(jax.random.key(0), embedding, PrivacyBudget(1, 0))
    with pytest.raises(ValueError, match="Laplace mechanism gives delta = 0"):
        perturb(jax.random.key(0), embedding, PrivacyBudget(1, 1e-6), noise="laplace")
    with pytest.raises(ValueError, match="noise must be"):
        perturb(jax.random.key(0), embedding, PrivacyBudget(1, 1e-6), noise="uniform")
    with pytest.raises(ValueError, match="diameter must be"):
        perturb(jax.random.key(0), embedding, PrivacyBudget(1, 1e-6), diameter="none")
    for noise in ("gaussian", "laplace"):
        with pytest.raises(ValueError, match="num_rows must be at least 1"):
            simulated_mechanism(embedding.feature_map, 0, PrivacyBudget(1, 1e-6), noise=noise)


def test_epsilon_is_dynamic():
    traces = []

    @jax.jit
    def noisy(key, private, scale):
        traces.append(1)
        return add_noise(key, private.coordinates, scale)

    embedding = _embedding(4)
    with float64():
        for epsilon in (0.1, 0.5, 2.0):
            private = perturb(jax.random.key(0), embedding, PrivacyBudget(epsilon, 1e-6))
            noisy(jax.random.key(1), private, private.mechanism.scale)
    assert len(traces) == 1


def test_a_diameter_that_may_fail_is_paid_for_with_delta():
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 2000, 2)
    assert fourier.failure_probability == 1e-10
    assert fourier.diameter < 1.8
    mechanism = simulated_mechanism(fourier, 100, PrivacyBudget(0.5, 2e-9))
    assert mechanism.sensitivity == fourier.diameter / 100
    assert mechanism.delta == 2e-9
    multiplier = gaussian_noise_multiplier(PrivacyBudget(0.5, 1.9e-9))
    assert mechanism.scale == pytest.approx(mechanism.sensitivity * multiplier, rel=1e-12)
    assert multiplier > gaussian_noise_multiplier(PrivacyBudget(0.5, 2e-9))
    # No room in δ: the diameter that holds for any frequencies.
    small = simulated_mechanism(fourier, 100, PrivacyBudget(0.5, 5e-10))
    assert small.sensitivity == 2 / 100
    assert small.scale == pytest.approx(2 / 100 * gaussian_noise_multiplier(PrivacyBudget(0.5, 5e-10)), rel=1e-12)
    pure = simulated_mechanism(fourier, 100, PrivacyBudget(0.5, 0.0), noise="laplace")
    assert pure.sensitivity == pytest.approx(np.sqrt(2000) * 2 / 100)


def test_a_diameter_that_cannot_fail_costs_nothing():
    few = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 20, 2)
    assert few.failure_probability == 0
    assert few.certain_diameter == few.diameter
    mechanism = simulated_mechanism(few, 10, PrivacyBudget(0.5, 1e-10))
    multiplier = gaussian_noise_multiplier(PrivacyBudget(0.5, 1e-10))
    assert mechanism.scale == pytest.approx(few.diameter / 10 * multiplier, rel=1e-12)


def test_the_diameter_of_a_subspace_is_paid_for_with_delta(rng):
    """λmax is bounded by ten random vectors, which fails with probability 1e-10, in simulated noise, too. It costs less
    than a thousandth of σ for δ ≥ 1e-8."""
    subspace = SubspaceMap.from_points(Gaussian(0.5), rng.normal(size=(60, 2)))
    assert subspace.failure_probability == pytest.approx(1e-10, rel=1e-12)
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        for delta in (1e-8, 1e-6, 1e-3):
            budget = PrivacyBudget(epsilon, delta)
            mechanism = simulated_mechanism(subspace, 10, budget)
            assert mechanism.failure_probability == subspace.failure_probability
            multiplier = gaussian_noise_multiplier(PrivacyBudget(epsilon, delta - 1e-10))
            assert mechanism.scale == pytest.approx(subspace.diameter / 10 * multiplier, rel=1e-9)
            before = subspace.diameter / 10 * gaussian_noise_multiplier(budget)
            assert before < mechanism.scale < 1.001 * before
            published = simulated_mechanism(subspace, 10, budget, diameter="published")
            assert published.scale == 2 / 10 * gaussian_noise_multiplier(budget)
            assert published.failure_probability == 0
    small = simulated_mechanism(subspace, 10, PrivacyBudget(0.5, 9e-10))  # no room for it: a bound that cannot fail
    assert small.sensitivity == subspace.certain_diameter / 10
    assert small.failure_probability == 0


def test_the_certain_diameter_of_a_subspace_is_a_bound(rng):
    subspace = SubspaceMap.from_points(Gaussian(0.05), rng.normal(size=(200, 2)))
    with float64():
        gram = np.asarray(subspace.kernel.pairwise(subspace.pivot_points, subspace.pivot_points))
    largest = np.linalg.eigvalsh(subspace.basis @ gram @ subspace.basis.T).max()
    assert largest <= subspace.certain_lambda_max < 1.001
    assert math.sqrt(2 * largest) <= subspace.certain_diameter < 1.001 * subspace.diameter
