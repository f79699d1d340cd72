import jax
import numpy as np
import pytest

from kme_jax import Bounds, FourierMap, Gaussian, NormalProposal, Polynomial, algorithm1, algorithm2, improved
from kme_jax._numerics.precision import float64
from kme_jax.nonprivate import Reference
from kme_jax.privacy.budget import PrivacyBudget
from tests import reference
from tests.arguments import arguments


@pytest.mark.parametrize(
    ("num_rows", "num_points"),
    [pytest.param(50, 1, marks=pytest.mark.long), (333, 70), pytest.param(97, 260, marks=pytest.mark.long)],
)
def test_algorithm1_is_the_papers_box(num_rows, num_points, rng):
    rows, points = rng.normal(size=(num_rows, 2)), rng.normal(size=(num_points, 2))
    sample = algorithm1(jax.random.key(9), rows, Gaussian(0.3), points, budget=PrivacyBudget(0.8, 1e-4))
    rank = reference.gram_schmidt(reference.gaussian_gram(points, points, 0.3), 1e-5)[0].shape[0]
    with float64():
        noise = sample.mechanism.scale * np.asarray(jax.random.normal(jax.random.key(9), (rank,), np.float64))
    _, _, weights, _ = reference.algorithm1(rows, points, 0.3, noise)
    # The function in the RKHS is what counts: the weights of nearly dependent points amplify rounding.
    gram = reference.gaussian_gram(points, points, 0.3)
    np.testing.assert_allclose(gram @ sample.weights, gram @ weights, atol=1e-7)
    np.testing.assert_array_equal(sample.points, points)


def test_a_users_own_array(rng):
    rows = rng.normal(10, 2, size=(20_000, 2)).astype(np.float32)
    points = rng.normal(10, 6, size=(200, 2))
    for weights in ("closed_form", "l1_ball"):
        sample = algorithm1(
            jax.random.key(0), rows, Gaussian(0.02), points, budget=PrivacyBudget(1, 1e-6), weights=weights
        )
        np.testing.assert_allclose(sample.expectation(lambda z: z), rows.mean(axis=0), atol=0.3)
        assert sample.weights.sum() == pytest.approx(1, abs=0.02)
    assert np.abs(sample.weights).sum() <= 1 + 1e-9


@pytest.mark.long
def test_improved_on_a_users_own_array(rng):
    rows = rng.normal(10, 2, size=(20_000, 2)).astype(np.float32)
    points = rng.normal(10, 6, size=(200, 2))
    sample = improved(jax.random.key(0), rows, Gaussian(0.02), points, budget=PrivacyBudget(0.1, 1e-6))
    np.testing.assert_allclose(sample.expectation(lambda z: z), rows.mean(axis=0), atol=0.3)
    assert sample.weights.min() >= 0
    assert sample.weights.sum() == pytest.approx(1)
    assert sample.mechanism.calibration == "analytic"
    assert sample.mechanism.sensitivity == pytest.approx(np.sqrt(2) / 20_000, rel=1e-3)
    plain = algorithm1(jax.random.key(0), rows, Gaussian(0.02), points, budget=PrivacyBudget(0.1, 1e-6))
    reference = Reference.from_rows(Gaussian(0.02), rows)
    assert reference.distance(points, sample.weights) < 0.5 * reference.distance(points, plain.weights)
    with pytest.raises(ValueError, match=f"weights: expected {len(points)}, one for each point, got 3"):
        reference.distance(points, np.ones(3))
    with pytest.raises(ValueError, match="rows: expected 2 columns"):
        improved(jax.random.key(0), rows[:, :1], Gaussian(0.02), points, budget=PrivacyBudget(0.1, 1e-6))


@pytest.mark.long
def test_sweeping_epsilon_and_gamma_compiles_nothing_new(rng):
    rows, points = rng.normal(size=(3000, 2)), rng.normal(size=(300, 2))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    counts = []
    for epsilon, gamma in [(1, 0.5), (1, 0.5), (0.3, 0.5), (2, 0.5), (1, 0.51), (1, 0.6), (0.5, 0.7)]:
        before = len(compiled)
        algorithm1(jax.random.key(0), rows, Gaussian(gamma), points, budget=PrivacyBudget(epsilon, 1e-6))
        counts.append(len(compiled) - before)
    assert counts[0] > 0
    assert counts[1:] == [0] * 6


@pytest.mark.parametrize(
    "reduced_set", [pytest.param("joint", marks=pytest.mark.long), pytest.param("greedy", marks=pytest.mark.slow)]
)
def test_algorithm_2_on_a_users_own_array(reduced_set, rng):
    rows = rng.normal([1.0, -2.0], [1.0, 0.5], size=(20_000, 2))
    candidates = rng.uniform(-5, 5, size=(200, 2))
    options = arguments(num_features=600, reduced_set=reduced_set)
    sample = algorithm2(jax.random.key(0), rows, Gaussian(0.1), candidates, 30, **options)
    assert sample.points.shape == (30, 2)
    assert not sample.mechanism.secure
    np.testing.assert_allclose(sample.expectation(lambda z: z), [1, -2], atol=0.15 if reduced_set == "joint" else 0.6)
    again = algorithm2(jax.random.key(0), rows, Gaussian(0.1), candidates, 30, **options)
    np.testing.assert_array_equal(sample.weights, again.weights)


def test_bad_arguments_of_algorithm_2(rng):
    rows, candidates = rng.normal(size=(10, 2)), rng.normal(size=(5, 2))
    for message, change in [
        ("num_points must be at least 1, got 0", {"num_points": 0}),
        ("num_points must be at most the number of candidates, 5, got 6", {"num_points": 6}),
        ("num_points must be a whole number, got 2.5", {"num_points": 2.5}),
        ("num_features must be even", {"num_features": 7}),
        ("num_features must be even", {"num_features": 0}),
        ('reduced_set must be "joint" or "greedy"', {"reduced_set": "best"}),
        ("rows: expected 2 columns", {"rows": np.ones((4, 3))}),
        (r"points to algorithm1 \(points=.*\), or to improved, .* \(public=", {"kernel": Polynomial(2, radius=9.0)}),
        ("candidates: row 0 is NaN", {"candidates": np.full((2, 2), np.nan)}),
        ("epsilon must be positive", {"epsilon": -1}),
    ]:
        flat = {"rows": rows, "kernel": Gaussian(1.0), "candidates": candidates, "num_points": 3, "delta": 1e-3}
        with pytest.raises(ValueError, match=message):
            algorithm2(jax.random.key(0), **arguments(**(flat | change)))


def test_bad_arguments(rng):
    rows, points = rng.normal(size=(10, 2)), rng.normal(size=(5, 2))

    def call(rows=rows, points=points, **options):
        return algorithm1(jax.random.key(0), rows, Gaussian(1.0), points, **arguments(**options))

    for message, options in [
        ("epsilon must be positive", {"epsilon": 0}),
        ("delta = 0 is not possible", {"delta": 0}),
        (r"delta must be in \[0, 1\)", {"delta": 1.5}),
        ("epsilon <= 1", {"epsilon": 2, "calibration": "classical"}),
        ('weights must be "closed_form"', {"weights": "all"}),
        ("rows: expected 2 columns, as the points have, got 3", {"rows": np.ones((4, 3))}),
        (r"rows: expected shape \[rows, columns\]", {"rows": np.ones(4)}),
        ('diameter must be "proved"', {"diameter": "small"}),
        ("points: row 0 is NaN", {"points": np.full((2, 2), np.nan)}),
        ("write NormalProposal.from_bounds", {"points": Bounds.create([0, 0], [1, 1])}),
        ("rows: expected 3 columns, as the proposal has", {"points": NormalProposal.from_bounds([0] * 3, [1] * 3)}),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**options)


@pytest.mark.long
def test_distance_by_coordinates_and_from_points_and_weights(mixture_rows):
    """Δ² = projection² + ‖β − α‖² for the closed form, and the same from all rows ([B] B.1)."""
    mixture_rows = mixture_rows[:500]
    kernel, points = Gaussian(1e-4 / 3), mixture_rows[:120]
    truth = Reference.from_rows(kernel, mixture_rows)
    for i, epsilon in enumerate([0.1, 1.0, 5.0]):
        sample = algorithm1(jax.random.key(i), mixture_rows, kernel, points, budget=PrivacyBudget(epsilon, 1e-5))
        alpha, *_ = reference.algorithm1(mixture_rows, points, kernel.gamma, np.zeros(120))
        with float64():
            noise = np.asarray(jax.random.normal(jax.random.key(i), (len(alpha),), np.float64)) * sample.mechanism.scale
        by_coordinates = np.sqrt(truth.squared_norm - alpha @ alpha + float(noise @ noise))
        exact = truth.distance(sample.points, sample.weights)
        assert exact == pytest.approx(by_coordinates, abs=1e-6)
        assert exact == pytest.approx(reference.distance(mixture_rows, points, sample.weights, kernel.gamma), abs=1e-6)


@pytest.mark.long
def test_distances_of_several_weights_are_those_of_each(rng):
    rows, points = rng.normal(size=(200, 2)), rng.normal(size=(30, 2))
    truth = Reference.from_rows(Gaussian(0.5), rows)
    weights = rng.normal(size=(3, 30))
    weights[0, :10] = 0
    weights[2] = 0
    together = truth.distances(points, weights)
    np.testing.assert_allclose(together, [truth.distance(points, w) for w in weights], rtol=1e-12)
    assert together[2] == np.sqrt(truth.squared_norm)


def test_a_number_is_no_key_and_a_map_is_no_kernel(rng):
    rows, points, budget = rng.normal(size=(10, 2)), rng.normal(size=(5, 2)), PrivacyBudget(1.0, 1e-3)
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(1.0), 8, 2)
    calls = [
        lambda key, kernel: algorithm1(key, rows, kernel, points, budget=budget),
        lambda key, kernel: algorithm2(key, rows, kernel, points, num_points=3, budget=budget),
        lambda key, kernel: improved(key, rows, kernel, points, budget=budget),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"key: expected a key, such as jax.random.key\(0\), got 0"):
            call(0, Gaussian(1.0))
        with pytest.raises(ValueError, match="release and measure take one in the place of a kernel"):
            call(jax.random.key(0), fourier)
        with pytest.raises(ValueError, match="kernel: expected a kernel, such as"):
            call(jax.random.PRNGKey(0), 0.5)
