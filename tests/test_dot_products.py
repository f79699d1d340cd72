"""Polynomial kernels and other kernels of inner products, and the exact map of polynomial ones."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import (
    Bounds,
    Exponential,
    FeatureMap,
    FourierMap,
    Gaussian,
    LabelledMap,
    MixedMap,
    Polynomial,
    PolynomialMap,
    PrivacyBudget,
    SubspaceMap,
    closed_form_weights,
    integer_embedding,
    integer_embedding_of_batches,
    load,
    mean_embedding,
    measure,
    perturb,
    perturb_securely,
)
from kme_jax._numerics.precision import float64
from kme_jax.generators import measure_generator
from kme_jax.storage.codec import decode, encode
from tests import compiled
from tests.far_rows import furthest

KERNELS = [
    Polynomial(1, 2.0),
    Polynomial(3, 1.5, 0.5),
    Polynomial(2, 1.0, 0.0),
    Polynomial(4, 0.7, 1.2),
    Exponential(0.8, 1.5),
]
BUDGET = PrivacyBudget(1.0, 1e-6)


def in_ball(rng, num_rows, dim, radius):
    """Random rows in a ball, with some on its sphere."""
    rows = rng.normal(size=(num_rows, dim))
    lengths = np.minimum(1, rng.uniform(0.2, 1.5, num_rows))
    return rows * (radius * lengths / np.linalg.norm(rows, axis=1))[:, None]


def _f(kernel, s):
    return (kernel.offset + s) ** kernel.degree if isinstance(kernel, Polynomial) else np.exp(kernel.gamma * s)


def _at(kernel, x, y):
    """The plain formula, with points outside of the ball moved to the sphere."""
    x, y = (z * np.minimum(1, kernel.radius / np.linalg.norm(z, axis=1))[:, None] for z in (x, y))
    return _f(kernel, x @ y.T)


@pytest.mark.parametrize("dim", [pytest.param(1, marks=pytest.mark.long), 3, pytest.param(20, marks=pytest.mark.long)])
def test_kernels_are_the_formula_also_outside_of_the_ball(dim, rng):
    for kernel in KERNELS:
        x, y = (rng.normal(size=(n, dim)) * kernel.radius for n in (7, 5))
        x[0] *= 1e90
        with float64():
            values = np.asarray(compiled.pairwise(kernel, x, y))
            one_by_one = np.asarray(compiled.one_by_one(kernel, x, y))
        expected = _at(kernel, x, y)
        allowed = kernel.evaluation_error(dim)
        assert np.abs(values - expected).max() <= allowed, kernel
        assert np.abs(one_by_one - expected).max() <= allowed, kernel
        assert allowed < 1e-11 * kernel.diagonal_bound


def test_a_point_counts_as_the_nearest_one_of_the_ball_however_far_it_is():
    for dtype, length in ((np.float32, 1e25), (np.float64, 1e200)):
        far, near = (np.array([[3.0, -4.0]], dtype) * factor for factor in (length, 0.2))
        with float64():
            values = compiled.pairwise(Polynomial(2, 1.0), far, near)
            derivative = jax.jit(jax.grad(lambda x, y=near: Polynomial(2, 1.0)(x, y[0])))(jnp.asarray(far[0]))
        np.testing.assert_allclose(values, [[4.0]], rtol=1e-6)
        assert np.isfinite(derivative).all()


def test_facts_of_kernels(rng):
    for kernel in KERNELS:
        x = 3 * kernel.radius * rng.normal(size=(200, 2))
        values = _at(kernel, x, x)
        assert np.diag(values).max() == pytest.approx(kernel.diagonal_bound, rel=1e-12)
        assert (values.min() >= 0) == kernel.is_nonnegative
        assert np.linalg.eigvalsh(values)[0] > -1e-10 * values.max()
        assert not kernel.is_shift_invariant
        powers = (kernel.radius**2) ** np.arange(len(kernel.coefficients))
        assert kernel.coefficients @ powers == pytest.approx(kernel.diagonal_bound, rel=1e-14)
        assert kernel.series(0.3) + kernel.coefficients[0] == pytest.approx(_f(kernel, 0.3), rel=1e-13)
    assert Polynomial(3, 1.0, 1.0).is_nonnegative


@pytest.mark.long
def test_the_derivative_is_finite_at_the_centre_and_on_the_sphere():
    for kernel in KERNELS:
        features = compiled_features(kernel, 2)
        for point in ([0.0, 0.0], [kernel.radius, 0.0], [5.0, 5.0]):
            derivative = jax.jacobian(lambda x, f=features: f(x[None])[0])(jnp.array(point, jnp.float32))
            assert np.isfinite(derivative).all()


def compiled_features(kernel, dim):
    if isinstance(kernel, Polynomial):
        return PolynomialMap.from_kernel(kernel, dim)
    return lambda x: kernel.pairwise(x, jnp.ones((1, dim), x.dtype))


def test_kernels_with_bad_numbers_are_refused():
    for make, text in (
        (lambda: Polynomial(0, 1.0), "degree must be from 1 to 100, got 0"),
        (lambda: Polynomial(101, 1.0), "degree must be from 1 to 100"),
        (lambda: Polynomial(2, 0.0), "radius must be positive and finite, got 0.0"),
        (lambda: Polynomial(2, math.inf), "radius must be positive"),
        (lambda: Polynomial(2, 1.0, -1.0), "offset must be finite and not negative, got -1.0"),
        (lambda: Polynomial(100, 1e30), "out of range"),
        (lambda: Polynomial(2, 1e200), "out of range"),
        (lambda: Exponential(0.0, 1.0), "gamma and radius: expected positive"),
        (lambda: Exponential(3.0, 3.0), r"gamma · radius² must be from 1e-30 to 20, got 27"),
        (lambda: Exponential(1e-300, 1e200), r"gamma · radius² must be from 1e-30 to 20, got inf"),
        (lambda: Exponential(2e-5, 1000.0), r"powers of the radius 1e\+03 are out of range; scale the columns"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


def test_what_needs_another_kernel_says_so():
    kernel = Polynomial(2, 1.0)
    with pytest.raises(ValueError, match=r"Polynomial is not shift-invariant.*public points to algorithm1 \(points="):
        FourierMap.from_kernel(jax.random.key(0), kernel, 10, 2)
    with pytest.raises(ValueError, match="needs a Polynomial kernel, got Gaussian"):
        PolynomialMap.from_kernel(Gaussian(1.0), 2)
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        PolynomialMap.from_kernel(kernel, 0)
    with pytest.raises(ValueError, match=r"monomials: expected at most 2\^20 features; use a TensorSketchMap"):
        PolynomialMap.from_kernel(kernel, 5000)


def test_a_subspace_of_a_polynomial_kernel(rng):
    """Its span has as many dimensions as there are monomials, and secure noise is possible."""
    kernel, points = Polynomial(2, 2.0), in_ball(rng, 40, 3, 2.0)
    subspace = SubspaceMap.from_points(kernel, points)
    assert subspace.num_features == 10
    rows = 1.5 * in_ball(rng, 300, 3, 2.0)
    with float64():
        features = np.asarray(compiled.features(subspace, jnp.asarray(rows)))
    np.testing.assert_allclose(features @ features.T, _at(kernel, rows, rows), rtol=1e-6, atol=1e-9)
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    assert distances.max() <= subspace.diameter
    noisy = perturb_securely(integer_embedding(subspace, rows), BUDGET)
    assert np.linalg.norm(noisy.coordinates - features.mean(axis=0)) < 20 * math.sqrt(10) * noisy.mechanism.scale


# -- the exact map


def _monomials(kernel, rows):
    """Tensor powers of (x, √c): all p-tuples, of which the tuples of one multiset are merged."""
    extended = np.column_stack([rows, np.full(len(rows), math.sqrt(kernel.offset))])
    merged = {}
    for places in itertools.product(range(extended.shape[1]), repeat=kernel.degree):
        merged.setdefault(tuple(sorted(places)), []).append(np.prod(extended[:, places], axis=1))
    return np.stack([values[0] * math.sqrt(len(values)) for values in merged.values()], axis=1)


@pytest.mark.parametrize(
    ("degree", "offset", "dim"),
    [(2, 0.0, 3), (3, 0.7, 2), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 0.5, 3), (4, 1.0, 1)))],
)
def test_features_are_tensor_powers(degree, offset, dim, rng):
    kernel = Polynomial(degree, 1.5, offset)
    feature_map, rows = PolynomialMap.from_kernel(kernel, dim), in_ball(rng, 30, dim, 1.5)
    expected = _monomials(kernel, rows)
    expected = expected[:, np.any(expected != 0, axis=0)]
    with float64():
        features = np.asarray(compiled.features(feature_map, jnp.asarray(rows)))
    assert features.shape == (30, feature_map.num_features)
    order, expected_order = (np.lexsort(np.round(values[:3], 6)) for values in (features, expected))
    np.testing.assert_allclose(features[:, order], expected[:, expected_order], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(features @ features.T, _at(kernel, rows, rows), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(feature_map.host_features(rows), features, rtol=1e-13)
    weights = rng.normal(size=30)
    np.testing.assert_allclose(feature_map.weighted_sum(rows, weights), weights @ features, rtol=1e-11, atol=1e-11)
    in_float32 = compiled.features(feature_map, jnp.asarray(rows, jnp.float32))
    assert in_float32.dtype == np.float32
    np.testing.assert_allclose(in_float32, features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("degree", "offset"), [(2, 1e-200), (10, 1e-40)])
def test_monomials_whose_weights_underflow_are_left_out(degree, offset):
    feature_map, rows = PolynomialMap.from_kernel(Polynomial(degree, 1.0, offset), 2), np.array([[0.6, 0.8], [0, -0.5]])
    features = feature_map.host_features(rows)
    assert features.shape == (2, feature_map.num_features) == compiled.features(feature_map, rows).shape
    np.testing.assert_allclose(features @ features.T, _at(feature_map.kernel, rows, rows), rtol=1e-12)
    assert len(integer_embedding(feature_map, rows).total) == feature_map.num_features


DIAMETERS = {(2, 2): (), (1, 1): pytest.mark.slow, (3, 1): pytest.mark.slow, (4, 2): pytest.mark.slow}


@pytest.mark.parametrize(
    ("degree", "dim"),
    [
        pytest.param(degree, dim, marks=DIAMETERS.get((degree, dim), pytest.mark.long))
        for degree in (1, 2, 3, 4)
        for dim in (1, 2, 4)
    ],
)
def test_the_diameter_is_attained_and_never_exceeded(dim, degree):
    """By gradient ascent over pairs of rows, and by the zero vector: exactly the claim, whatever the offset is."""
    for offset in (0.0, 0.3, 1.0, 1.5, 20.0):
        feature_map = PolynomialMap.from_kernel(Polynomial(degree, 1.0, offset), dim)
        found = furthest(feature_map)
        assert 0.9999 * feature_map.diameter < found <= feature_map.diameter, offset


def test_the_diameter_of_one_column_is_within_its_grid():
    """Where the worst pair has a row inside of the interval."""
    feature_map = PolynomialMap.from_kernel(Polynomial(4, 1.0, 0.3), 1)
    rows = np.linspace(-1, 1, 4001)[:, None]
    features = feature_map.host_features(rows)
    squares = np.sum(features**2, axis=1)
    largest = math.sqrt((squares[:, None] + squares - 2 * features @ features.T).max())
    assert largest <= feature_map.diameter <= largest * (1 + 1e-6)
    assert feature_map.diameter < 0.99 * math.sqrt(2 * feature_map.kernel.diagonal_bound)


def test_integers_are_the_same_in_any_order_and_batches(rng):
    feature_map = PolynomialMap.from_kernel(Polynomial(3, 1.0), 4)
    rows = 1.3 * in_ball(rng, 2000, 4, 1.0)  # some are outside
    rows[::97] = np.nan
    whole = integer_embedding(feature_map, rows)
    mean = mean_embedding(feature_map, rows)
    np.testing.assert_allclose(whole.total / (whole.integer_map.units * 2000), mean.coordinates, atol=1e-6)
    inside = feature_map.covers(rows)
    assert 0 < inside.sum() < 2000
    np.testing.assert_allclose(mean.coordinates, feature_map.host_features(rows[inside]).sum(axis=0) / 2000, atol=1e-12)
    shuffled = rows[rng.permutation(2000)]
    batches = [shuffled[i : i + 7] for i in range(0, 2000, 7)]
    found = integer_embedding_of_batches(feature_map, batches, 2000)
    np.testing.assert_array_equal(found.total, whole.total)
    steps = []
    integer_embedding(feature_map, rows, progress=lambda *done: steps.append(done))
    assert steps[-1] == (2000, 2000)


def test_rows_on_the_sphere_are_covered_and_rows_beyond_are_not():
    kernel = Polynomial(2, math.sqrt(2), 0.1)
    feature_map = PolynomialMap.from_kernel(kernel, 2)
    corners = np.array([[1.0, 1.0], [-1.0, 1.0]])
    assert feature_map.covers(corners).all()
    assert feature_map.covers(corners.astype(np.float32)).all()
    outside = np.array([[1.0, 1.01], [np.nan, 0], [np.inf, 0], [1e200, 0]])
    assert not feature_map.covers(outside).any()
    norms = np.linalg.norm(feature_map.host_features(corners), axis=1)
    assert norms.max() <= feature_map.norm_bound


def test_a_release_has_the_moments_of_the_rows(tmp_path, rng):
    """The whole path with secure noise: the weights on points have the moments of the rows."""
    rows, bounds = rng.beta(2, 5, (20_000, 2)) * [10, 1], Bounds.create([0, 0], [10, 1])
    points = rng.uniform(size=(60, 2)) * [10, 1]
    feature_map = PolynomialMap.from_kernel(Polynomial(2, math.sqrt(2)), 2)
    measured = measure(rows, feature_map, points, budget=BUDGET, bounds=bounds, folder=tmp_path / "measured")
    assert measured.noisy.mechanism.secure
    assert measured.noisy.mechanism.sensitivity == pytest.approx(feature_map.diameter / 20_000, rel=1e-5)
    loaded = load(tmp_path / "measured")
    assert loaded.noisy.feature_map.kernel == feature_map.kernel
    np.testing.assert_array_equal(loaded.noisy.coordinates, measured.noisy.coordinates)
    with float64():
        exact = np.asarray(compiled.features(feature_map, jnp.asarray(rows / [10, 1])))
    noise = measured.noisy.coordinates - exact.mean(axis=0)
    assert np.linalg.norm(noise) < 10 * measured.noisy.mechanism.scale
    sample = closed_form_weights(measured.noisy, points / [10, 1])
    np.testing.assert_allclose(sample.weights @ sample.points, (rows / [10, 1]).mean(axis=0), atol=0.01)
    released = measured.synthesise()
    np.testing.assert_allclose(released.sample.expectation(lambda z: z), rows.mean(axis=0), rtol=0.1)
    with pytest.raises(ValueError, match=r"not made for rows from 0 to 1: they have norms up to 1.414, and the radius"):
        measure(rows, PolynomialMap.from_kernel(Polynomial(2, 1.0), 2), points, budget=BUDGET, bounds=bounds)
    with pytest.raises(ValueError, match="PolynomialMap has no frequencies: give points"):
        measure(rows, feature_map, budget=BUDGET, bounds=bounds)


def test_labels_and_simulated_noise(rng):
    feature_map = PolynomialMap.from_kernel(Polynomial(2, 1.0), 2)
    labelled = LabelledMap(feature_map, 3)
    rows = np.column_stack([in_ball(rng, 60, 2, 1.0), rng.integers(0, 3, 60)])
    embedding, total = mean_embedding(labelled, rows), integer_embedding(labelled, rows)
    np.testing.assert_allclose(total.total / total.integer_map.units / 60, embedding.coordinates, atol=1e-6)
    noisy = perturb(jax.random.key(0), embedding, BUDGET)
    assert noisy.mechanism.sensitivity == pytest.approx(math.sqrt(2) * feature_map.norm_bound / 60)


def test_categories(tmp_path, rng):
    """What was measured and saved can be loaded."""
    mixed = MixedMap(PolynomialMap.from_kernel(Polynomial(2, 1.0), 2), (3,))
    rows = np.column_stack([in_ball(rng, 60, 2, 1.0), rng.integers(0, 3, 60)])
    measured = measure_generator(rows, mixed, budget=BUDGET, folder=tmp_path / "measured")
    loaded = load(tmp_path / "measured").embedding
    np.testing.assert_array_equal(loaded.coordinates, measured.embedding.coordinates)
    assert loaded.feature_map.diameter == mixed.diameter


def test_a_map_that_was_read_is_checked():
    feature_map = PolynomialMap.from_kernel(Polynomial(2, 1.0, 0.5), 3)

    def read(change=lambda tree: None):
        arrays = {}
        tree = encode(feature_map, arrays, "map")
        change(tree["fields"])
        return decode(tree, arrays, FeatureMap)

    assert (read().kernel, read().columns) == (feature_map.kernel, 3)
    for change, text in (
        (lambda fields: fields.update(columns=0), "columns: is out of range"),
        (lambda fields: fields.update(columns=10**6), "columns: is out of range"),
        (lambda fields: fields["kernel"]["fields"].update(degree=0), "degree must be from 1"),
        (lambda fields: fields["kernel"]["fields"].update(degree=True), "expected int"),
        (lambda fields: fields["kernel"]["fields"].update(offset={"float": (-1.0).hex()}), "offset must be"),
    ):
        with pytest.raises(ValueError, match=text):
            read(change)
