import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from kme_jax import (
    FourierMap,
    Gaussian,
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    l1_ball_weights,
    mean_embedding,
    perturb,
    posterior_mean,
)
from kme_jax._numerics.precision import float64
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import (
    greedy_preimages,
    joint_reduced_set,
    joint_reduced_sets,
    l1_ball_least_squares,
    lasso,
    lasso_path,
    lasso_weights,
    preimage_kernel,
    reduced_set,
)
from tests import compiled, reference

KERNEL = Gaussian(0.5)


@pytest.fixture
def rows(rng):
    return np.concatenate([rng.normal(-2, 0.4, size=(300, 2)), rng.normal(1, 0.7, size=(700, 2))])


def _private(rows, seed=0, epsilon=1.0, num_features=400):
    fourier = FourierMap.from_kernel(jax.random.key(seed), KERNEL, num_features, rows.shape[1])
    return perturb(jax.random.key(seed + 1), mean_embedding(fourier, rows), PrivacyBudget(epsilon, 1e-6))


def _features(feature_map, points):
    angles = 2 * np.pi * points @ np.asarray(feature_map.turns, np.float64).T
    return float(feature_map.scale) * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _problem(seed, num_weights, num_features):
    """Feature vectors with near-duplicates among them, as neighbouring points have."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_weights, num_features)) / np.sqrt(num_features)
    features[1::3] = features[: len(features[1::3])] + 1e-5 * features[1::3]
    return features, features.T @ rng.laplace(size=num_weights) / num_weights + 0.01 * rng.normal(size=num_features)


def test_greedy_is_the_published_procedure(rows, rng):
    noisy = _private(rows)
    starts = rng.normal(0, 2, size=(4, 2))
    found = greedy_preimages([noisy], starts, num_steps=30, learning_rate=0.05)[0]

    def correlation(z, r):
        return _features(noisy.feature_map, z[None])[0] @ r

    residual, optimiser = np.asarray(noisy.coordinates, np.float64), optax.adam(0.05)
    for m, z in enumerate(starts):
        state = optimiser.init(z)
        for _ in range(30):
            shifts = 1e-6 * np.eye(2)
            gradient = [-(correlation(z + h, residual) ** 2 - correlation(z - h, residual) ** 2) / 2e-6 for h in shifts]
            with float64(), jax.numpy_dtype_promotion("standard"):
                updates, state = optimiser.update(np.asarray(gradient), state)
            z = z + np.asarray(updates)
        np.testing.assert_allclose(found[m], z, atol=2e-3)
        residual = residual - correlation(z, residual) * _features(noisy.feature_map, z[None])[0]


@pytest.mark.long
def test_greedy_embeddings_do_not_influence_each_other(rows, rng):
    fourier = FourierMap.from_kernel(jax.random.key(0), KERNEL, 100, 2)
    embedding = mean_embedding(fourier, rows)
    noisy = [perturb(jax.random.key(i), embedding, PrivacyBudget(1.0, 1e-6)) for i in range(3)]
    starts = rng.normal(0, 2, size=(7, 2))
    together = greedy_preimages(noisy, starts, num_steps=10, learning_rate=0.1)
    for i in range(3):
        alone = greedy_preimages(noisy[i : i + 1], starts, num_steps=10, learning_rate=0.1)[0]
        np.testing.assert_allclose(together[i], alone, atol=1e-3)
    prefix = greedy_preimages(noisy, starts[:3], num_steps=10, learning_rate=0.1)
    np.testing.assert_allclose(together[:, :3], prefix, atol=1e-3)


@pytest.mark.parametrize("num_features", [400, pytest.param(1024, marks=pytest.mark.slow)])
def test_greedy_in_one_kernel(num_features, rows, rng):
    """In Pallas' interpreter: the kernel is for GPUs."""
    if jax.__version_info__ < (0, 11):
        pytest.skip("JAX 0.11 or later is needed")
    from jax.experimental.pallas import mosaic_gpu as plgpu

    noisy = [_private(rows, seed, num_features=num_features) for seed in range(2)]
    turns = np.stack([p.feature_map.turns for p in noisy])
    residuals = np.stack([p.coordinates for p in noisy]).astype(np.float32).reshape(2, 2, -1)
    starts, rates = rng.normal(0, 2, size=(3, 2)).astype(np.float32), np.float32([0.05, 0.2])
    arguments = [jnp.asarray(array) for array in (turns, rates, residuals, starts)]
    expected = reduced_set.greedy_points_of_all(*arguments, num_steps=4)
    found = preimage_kernel.greedy_points(*arguments, num_steps=4, interpret=plgpu.InterpretGPUParams())
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, other, atol=1e-5)
    one = reduced_set.greedy_points(*(array[1] for array in arguments[:3]), arguments[3], num_steps=4)
    for array, other in zip(one, expected, strict=True):
        np.testing.assert_allclose(array, other[1], atol=1e-5)


def test_the_kernel_needs_a_gpu_that_it_fits():
    assert not preimage_kernel.is_supported(jax.devices("cpu")[0], 5000, 2, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cosine_of_turns(dtype):
    turns = np.linspace(-40, 40, 100_001).astype(dtype)
    with float64():
        found = np.asarray(reduced_set.cosine_of_turns(jnp.asarray(turns)), np.float64)
    tolerance = 1e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(found, np.cos(2 * np.pi * np.remainder(turns.astype(float), 1)), atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "penalty"),
    [
        (np.float64, 3e-3),
        (np.float64, 1e-4),
        pytest.param(np.float32, 3e-3, marks=pytest.mark.long),
        pytest.param(np.float32, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_lasso_agrees_with_scikit_learn(penalty, dtype):
    features, target = _problem(0, 60, 40)
    size = target.size
    theirs = Lasso(alpha=penalty / size, fit_intercept=False, tol=1e-6, max_iter=10**6)
    theirs.fit(features.T, target)
    ((weights, report),) = lasso_path(features.astype(dtype), target, penalty, [60], tolerance=1e-7)

    def objective(w):
        return 0.5 * np.sum((target - w @ features) ** 2) + penalty * np.abs(w).sum()

    assert report.converged
    assert objective(weights) <= objective(theirs.coef_) * (1 + 1e-4)
    assert report.objective[-1] == pytest.approx(objective(weights), rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 40), log_penalty=st.floats(-5, 1))
def test_lasso_satisfies_its_optimality_conditions(seed, size, log_penalty):
    features, target = _problem(seed, size, 25)
    penalty = 10**log_penalty
    sizes = sorted({1, size // 2 + 1, size})
    for (weights, report), count in zip(
        lasso_path(features, target, penalty, sizes, tolerance=1e-9), sizes, strict=True
    ):
        assert report.converged
        assert len(weights) == count
        used = features[:count]
        correlation = used @ (target - weights @ used)
        scale = np.sqrt(target @ target)
        assert np.abs(correlation).max() <= penalty + 1e-3 * scale
        np.testing.assert_allclose(np.abs(weights) * (correlation * np.sign(weights) - penalty), 0, atol=1e-3 * scale)
        # The gap is a certificate: nothing does better than it says.
        best = report.objective[-1] - report.gap
        for factor in (0, 0.9, 1.1):
            other = factor * weights
            value = 0.5 * np.sum((target - other @ used) ** 2) + penalty * np.abs(other).sum()
            assert value >= best - 1e-12


def test_lasso_with_a_large_penalty_is_zero():
    features, target = _problem(3, 10, 8)
    ((weights, report),) = lasso_path(features, target, 1.001 * np.abs(features @ target).max(), [10])
    assert not weights.any()
    assert report.gap == pytest.approx(0, abs=1e-12)
    ((weights, report),) = lasso_path(features, np.zeros(8), 0.1, [10])
    assert not weights.any()
    assert report.converged


def test_lasso_with_many_weights_uses_first_order_steps():
    features, target = _problem(4, 60, 80)
    ((expected, _),) = lasso_path(features, target, 1e-3, [60], tolerance=1e-8)
    problem = lasso.HostLeastSquares(features, target, many=5)
    ((weights, report),) = lasso.solve_path(problem, 1e-3, [60], 1e-6)
    assert report.converged
    np.testing.assert_allclose(weights @ features, expected @ features, atol=1e-3)


def test_l1_ball_of_feature_vectors_larger_than_one():
    features, target = _problem(5, 30, 20)
    scaled, report = l1_ball_least_squares(100 * features, 100 * target, radius=0.3, tolerance=1e-6)
    plain, _ = l1_ball_least_squares(features, target, radius=0.3, tolerance=1e-10)
    assert report.converged
    assert np.abs(scaled).sum() <= 0.3 + 1e-12
    np.testing.assert_allclose(scaled @ features, plain @ features, atol=1e-4)


def test_lasso_weights_are_of_the_noisy_embedding(rows, rng):
    noisy = _private(rows)
    points = rng.normal(0, 2, size=(40, 2))
    samples = list(lasso_weights(noisy, points, [1, 10, 40]))
    assert [len(sample.points) for sample, _ in samples] == [1, 10, 40]
    weights = samples[-1][0].weights
    features = _features(noisy.feature_map, points)
    correlation = features @ (np.asarray(noisy.coordinates, np.float64) - weights @ features)
    assert np.abs(correlation).max() <= 100 / (2 * len(rows)) * (1 + 1e-2)
    assert samples[-1][0].mechanism == noisy.mechanism


@pytest.mark.slow
def test_joint_stays_in_the_ball_and_gets_close(rows, rng):
    noisy = _private(rows, epsilon=5.0)
    candidates = rng.uniform(-5, 5, size=(100, 2))
    sample, report = joint_reduced_set(jax.random.key(3), noisy, candidates, 20, num_steps=100)
    assert np.abs(sample.weights).sum() <= 1 + 1e-6
    assert sample.points.shape == (20, 2)
    assert len(report.objective) == 300 + 1
    assert report.objective[-1] <= report.objective[299] * (1 + 1e-3)
    features = _features(noisy.feature_map, sample.points)
    residual = np.asarray(noisy.coordinates, np.float64) - sample.weights @ features
    assert 0.5 * residual @ residual == pytest.approx(report.objective[-1], rel=1e-2)
    exact = Reference.from_rows(KERNEL, rows)
    uniform = exact.distance(candidates[:20], np.full(20, 1 / 20))
    assert exact.distance(sample.points, sample.weights) < 0.25 * uniform


@pytest.mark.long
def test_joint_reduced_sets_are_joint_reduced_sets_of_single_sizes(rows, rng):
    noisy, candidates = [_private(rows, seed) for seed in (0, 5)], rng.uniform(-5, 5, size=(700, 2))
    keys = [jax.random.key(7), jax.random.key(8)]
    together = joint_reduced_sets(keys, noisy, candidates, [1, 6], num_steps=30)
    for key, embedding, of_sizes in zip(keys, noisy, together, strict=True):
        for size, (sample, report) in zip([1, 6], of_sizes, strict=True):
            alone, other = joint_reduced_set(key, embedding, candidates, size, num_steps=30)
            np.testing.assert_allclose(sample.points, alone.points, atol=1e-2)
            assert report.objective[-1] == pytest.approx(other.objective[-1], rel=1e-3)


def test_joint_steps_descend_along_the_gradient(rows, rng):
    noisy = _private(rows)
    points, weights = rng.normal(size=(2, 2)).astype(np.float32), np.float32([0.3, 0.2])
    target = np.asarray(noisy.coordinates, np.float32)
    turns, scale = noisy.feature_map.turns, np.float32(noisy.feature_map.scale)
    waves = reduced_set.CosineWaves.of(jnp.asarray(turns))
    products_of = jax.jit(lambda waves, points, residual: (waves(points), waves.with_gradient(residual)))
    values, _ = products_of(waves, points, target)
    np.testing.assert_allclose(scale * values, compiled.features(noisy.feature_map, points), atol=1e-6)
    residual = target - weights @ compiled.features(noisy.feature_map, points)
    products = np.asarray(values) @ np.asarray(products_of(waves, points, residual)[1]).T

    def objective(points, weights):
        return 0.5 * jnp.sum(jnp.square(target - weights @ noisy.feature_map(points)))

    start, (by_points, by_weights) = jax.jit(jax.value_and_grad(objective, (0, 1)))(points, weights)
    np.testing.assert_allclose(-scale * products[:, 0], by_weights, atol=1e-5)
    np.testing.assert_allclose(-2 * np.pi * scale * weights[:, None] * products[:, 1:], by_points, atol=1e-5)
    *_, trace = reduced_set.joint_steps(turns, scale, target, points, weights, 1.0, 1.0, 0.01, num_steps=50)
    assert trace[0] == pytest.approx(float(start), rel=1e-5)
    assert trace[-1] < trace[0]


@pytest.mark.long
def test_joint_is_a_function_of_its_key(rows, rng):
    noisy, candidates = _private(rows), rng.uniform(-5, 5, size=(30, 2))
    first, again, other = (
        joint_reduced_set(jax.random.key(k), noisy, candidates, 5, num_steps=20)[0] for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.points, again.points)
    assert not np.array_equal(first.points, other.points)


@pytest.mark.parametrize(
    "step",
    [
        closed_form_weights,
        lambda embedding, points: closed_form_weights(embedding),
        l1_ball_weights,
        adaptive_weights,
        lambda embedding, points: adaptive_weights(embedding),
        lambda embedding, points: joint_reduced_set(jax.random.key(0), embedding, points, 2),
        lambda embedding, points: greedy_preimages([embedding], points),
        lambda embedding, points: list(lasso_weights(embedding, points)),
        lambda embedding, points: posterior_mean(jax.random.key(0), embedding, NormalProposal.create([0, 0], 1)),
    ],
)
def test_no_step_3_takes_an_embedding_without_noise(step, rng):
    points = rng.normal(size=(4, 2))
    maps = SubspaceMap.from_points(KERNEL, points), FourierMap.from_kernel(jax.random.key(0), KERNEL, 4, 2)
    for feature_map in maps:
        exact = MeanEmbedding(feature_map, np.zeros(feature_map.num_features), 10)
        with pytest.raises(TypeError, match="expected a noisy embedding, the result of perturb, got a MeanEmbedding"):
            step(exact, points)


def test_bad_arguments(rows, rng):
    noisy, points = _private(rows), rng.normal(size=(10, 2))
    subspace = SubspaceMap.from_points(KERNEL, points)
    of_subspace = perturb(jax.random.key(0), mean_embedding(subspace, rows), PrivacyBudget(1.0, 1e-6))
    key = jax.random.key(0)
    for message, call in [
        (
            "expected the noisy embedding of a FourierMap, got SubspaceMap",
            lambda: joint_reduced_set(key, of_subspace, points, 3),
        ),
        ("expected the noisy embedding of a FourierMap", lambda: greedy_preimages([of_subspace], points)),
        (
            "same precision, number of features",
            lambda: greedy_preimages([noisy, _private(rows, 5, num_features=40)], points),
        ),
        ("starts: expected 2 columns", lambda: greedy_preimages([noisy], np.ones((3, 3)))),
        ("num_points must be at least 1, got 0", lambda: joint_reduced_set(key, noisy, points, 0)),
        ("10 points are fewer than num_points=11", lambda: joint_reduced_set(key, noisy, points, 11)),
        ("radius must be at least 1", lambda: joint_reduced_set(key, noisy, points, 3, radius=0.5)),
        ("points: expected 2 columns", lambda: next(lasso_weights(noisy, np.ones((3, 3))))),
        ("penalty must be positive", lambda: next(lasso_path(np.ones((2, 2)), np.ones(2), 0.0, [2]))),
        ("sizes must increase", lambda: next(lasso_path(np.ones((2, 2)), np.ones(2), 1.0, [2, 1]))),
        ("sizes must increase", lambda: next(lasso_path(np.ones((2, 2)), np.ones(2), 1.0, [0]))),
        ("do not fit", lambda: next(lasso_path(np.ones((2, 2)), np.ones(3), 1.0, [2]))),
        ("must be finite", lambda: next(lasso_path(np.ones((2, 2)), np.array([1.0, np.nan]), 1.0, [2]))),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.long
def test_reference_gram_is_what_the_features_estimate(rows):
    """The helper above computes the library's features, independently of its sincos."""
    noisy = _private(rows, num_features=20_000)
    np.testing.assert_allclose(
        _features(noisy.feature_map, rows[:5]) @ _features(noisy.feature_map, rows[-5:]).T,
        reference.gaussian_gram(rows[:5], rows[-5:], 0.5),
        atol=0.03,
    )
