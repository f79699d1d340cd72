"""Random Maclaurin features and TensorSketch."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from kme_jax import (
    Bounds,
    Exponential,
    FeatureMap,
    Gaussian,
    LabelledMap,
    NoisyEmbedding,
    NormalProposal,
    Polynomial,
    PrivacyBudget,
    RandomMaclaurinMap,
    TensorSketchMap,
    adaptive_weights,
    closed_form_weights,
    integer_embedding,
    integer_embedding_of_batches,
    load,
    mean_embedding,
    measure,
    perturb,
    perturb_securely,
    posterior_mean,
)
from kme_jax._numerics.precision import float64
from kme_jax.privacy.verification import check_sensitivity
from kme_jax.storage.codec import decode, encode
from kme_jax.synthesis import joint_reduced_set
from tests import compiled
from tests.far_rows import furthest

BUDGET = PrivacyBudget(1.0, 1e-6)
MAPS = [RandomMaclaurinMap, TensorSketchMap]
ONE_IS_SLOW = [pytest.param(RandomMaclaurinMap, marks=pytest.mark.slow), TensorSketchMap]


def _make(cls, kernel, num_features, dim, seed=0):
    return cls.from_kernel(jax.random.key(seed), kernel, num_features, dim)


def _rows(rng, num_rows, dim, radius):
    rows = rng.normal(size=(num_rows, dim))
    lengths = np.minimum(1, rng.uniform(0.2, 1.5, num_rows))
    return rows * (radius * lengths / np.linalg.norm(rows, axis=1))[:, None]


def _value(kernel, s):
    return (kernel.offset + s) ** kernel.degree if isinstance(kernel, Polynomial) else math.exp(kernel.gamma * s)


def _plain_maclaurin(sketch, row):
    """v as the paper says it: a product of one inner product for each degree."""
    values, start = [1.0] * sketch.factors[0], 0
    for number in sketch.factors:
        for i in range(number):
            values[i - number] *= sum(int(s) * x for s, x in zip(sketch.signs[start + i], row, strict=True))
            values[i - number] /= sketch.kernel.radius
        start += number
    return np.array(values)


def _plain_tensor_sketch(sketch, row):
    """The count sketch of the tensor power of (x, √c), entry by entry, without the entry of the constant."""
    extended, values = [*row, math.sqrt(sketch.kernel.offset)], np.zeros(sketch.num_buckets)
    for places in itertools.product(range(len(extended)), repeat=sketch.kernel.degree):
        if any(j < len(row) for j in places):
            factors = [int(signs[j]) * extended[j] for signs, j in zip(sketch.signs, places, strict=True)]
            bucket = sum(int(buckets[j]) for buckets, j in zip(sketch.buckets, places, strict=True))
            values[bucket % sketch.num_buckets] += math.prod(factors)
    return values


def _plain(sketch, rows):
    """ψ as the docstrings say it, one row after the other."""
    kernel, features = sketch.kernel, []
    of_row = _plain_maclaurin if isinstance(sketch, RandomMaclaurinMap) else _plain_tensor_sketch
    for row in rows:
        values, constant = of_row(sketch, row), _value(kernel, 0.0)
        norm = math.sqrt(max(0.0, _value(kernel, float(row @ row)) - constant))
        values = values * norm / np.linalg.norm(values) if values.any() else values
        features.append(np.concatenate([[math.sqrt(constant)], values]) if constant else values)
    return np.stack(features)


ONE_IS_LONG = [
    pytest.param(RandomMaclaurinMap, marks=pytest.mark.long),
    pytest.param(TensorSketchMap, marks=pytest.mark.slow),
]

CASES = [
    pytest.param(RandomMaclaurinMap, Polynomial(3, 2.0, 0.7), 30, 4, marks=pytest.mark.slow),
    pytest.param(RandomMaclaurinMap, Polynomial(2, 0.5, 0.0), 9, 4, marks=pytest.mark.long),
    pytest.param(RandomMaclaurinMap, Exponential(0.4, 1.5), 40, 3, marks=pytest.mark.long),
    (TensorSketchMap, Polynomial(3, 2.0, 0.7), 30, 4),
    pytest.param(TensorSketchMap, Polynomial(2, 0.5, 0.0), 9, 4, marks=pytest.mark.long),
    pytest.param(TensorSketchMap, Polynomial(1, 1.0), 4, 6, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("cls", "kernel", "num_features", "dim"), CASES)
def test_features_and_sums_are_the_formula(cls, kernel, num_features, dim, rng):
    sketch, rows = _make(cls, kernel, num_features, dim), _rows(rng, 40, dim, kernel.radius)
    rows[0] = 0
    expected = _plain(sketch, rows)
    assert expected.shape == (40, num_features) == (40, sketch.num_features)
    np.testing.assert_allclose(sketch.host_features(rows), expected, rtol=1e-8, atol=1e-9)
    with float64():
        features = np.asarray(compiled.features(sketch, jnp.asarray(rows)))
    np.testing.assert_allclose(features, expected, rtol=1e-8, atol=1e-9)
    in_float32 = compiled.features(sketch, jnp.asarray(rows, jnp.float32))
    assert in_float32.dtype == np.float32
    np.testing.assert_allclose(in_float32, expected, rtol=2e-3, atol=2e-4)
    weights = rng.normal(size=40)
    np.testing.assert_allclose(sketch.weighted_sum(rows, weights), weights @ expected, rtol=1e-8, atol=1e-8)
    norms = np.sum(np.square(sketch.host_features(rows)), axis=1)
    found = [_value(kernel, float(row @ row)) for row in rows[1:]]
    is_zero = np.abs(expected[1:, expected.shape[1] - sketch.num_sketched :]).max(axis=1) == 0
    np.testing.assert_allclose(norms[1:][~is_zero], np.array(found)[~is_zero], rtol=1e-12)


@pytest.mark.parametrize(
    ("cls", "kernel"),
    [
        pytest.param(RandomMaclaurinMap, Polynomial(3, 1.0, 0.5), marks=pytest.mark.long),
        (RandomMaclaurinMap, Polynomial(2, 1.0, 0.0)),
        pytest.param(RandomMaclaurinMap, Exponential(1.0, 1.0), marks=pytest.mark.long),
        (TensorSketchMap, Polynomial(3, 1.0, 0.5)),
        pytest.param(TensorSketchMap, Polynomial(2, 1.0, 0.0), marks=pytest.mark.long),
    ],
)
def test_sketches_before_their_division_have_the_mean_of_the_kernel(cls, kernel, rng):
    """Over many draws, within 4 standard errors; and not that of a kernel of another offset or length."""
    x = _rows(rng, 2, 4, 1.0)
    x[0], x[1] = x[0] / np.linalg.norm(x[0]), 0.9 * x[0] + 0.3 * x[1]
    x[1] /= max(1.0, np.linalg.norm(x[1]))
    size, draws = (9, 300) if cls is TensorSketchMap else (3000 if isinstance(kernel, Exponential) else 9, 300)
    products = []
    for seed in range(draws if size < 100 else 3):
        sketch = _make(cls, kernel, size, 4, seed)
        values = sketch.host_sketches(x)
        if cls is TensorSketchMap:
            scale = (kernel.radius**2 + kernel.offset) ** kernel.degree
            products.append(scale * values[0] @ values[1])
        else:
            products.extend(kernel.series(1.0) * values[0] * values[1])
    expected = _value(kernel, float(x[0] @ x[1])) - _value(kernel, 0.0)
    error = np.std(products) / math.sqrt(len(products))
    assert abs(np.mean(products) - expected) <= 4 * error
    assert error < 0.3 * expected


@pytest.mark.parametrize("cls", [pytest.param(RandomMaclaurinMap, marks=pytest.mark.long), TensorSketchMap])
def test_the_error_falls_like_the_root_of_the_number_of_features(cls, rng):
    kernel, rows = Polynomial(3, 1.0, 0.5), _rows(rng, 30, 30, 1.0)
    rows[:15] = 0.7 * rows[:1] + 0.3 * rows[:15]  # some products are large
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1))[:, None]
    exact, pairs = (0.5 + rows @ rows.T) ** 3, np.triu_indices(30, 1)
    errors = []
    for num_features in (60, 240, 960):
        sketches = [_make(cls, kernel, num_features, 30, seed) for seed in range(6)]
        products = [features @ features.T for features in (sketch.host_features(rows) for sketch in sketches)]
        np.testing.assert_allclose(np.diag(products[0]), np.diag(exact), rtol=1e-12)
        errors.append(math.sqrt(np.mean([np.square(product - exact)[pairs] for product in products])))
    for coarse, fine in itertools.pairwise(errors):
        assert 1.5 < coarse / fine < 2.7
    assert errors[-1] < 0.1 * kernel.diagonal_bound


ATTACKED = [
    pytest.param(RandomMaclaurinMap, Polynomial(2, 1.0, 0.0), 24, 12, marks=pytest.mark.slow),
    (TensorSketchMap, Polynomial(2, 1.0, 0.0), 24, 12),
    pytest.param(RandomMaclaurinMap, Polynomial(2, 1.0, 1.0), 40, 16, marks=pytest.mark.long),
    pytest.param(TensorSketchMap, Polynomial(2, 1.0, 1.0), 40, 16, marks=pytest.mark.long),
    pytest.param(RandomMaclaurinMap, Polynomial(4, 2.0, 1.0), 64, 12, marks=pytest.mark.long),
    pytest.param(TensorSketchMap, Polynomial(4, 2.0, 1.0), 32, 12, marks=pytest.mark.slow),
    pytest.param(TensorSketchMap, Polynomial(3, 1.0, 0.3), 48, 12, marks=pytest.mark.long),
    pytest.param(RandomMaclaurinMap, Exponential(1.0, 2.0), 64, 12, marks=pytest.mark.long),
    pytest.param(RandomMaclaurinMap, Polynomial(2, 0.1, 1.0), 40, 12, marks=pytest.mark.slow),  # the zero vector
    pytest.param(RandomMaclaurinMap, Polynomial(3, 1.0, 0.3), 256, 20, marks=pytest.mark.long),
    pytest.param(TensorSketchMap, Polynomial(3, 1.0, 0.3), 160, 20, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("cls", "kernel", "num_features", "dim"), ATTACKED)
def test_no_two_rows_are_further_apart_than_the_diameter_and_some_are_nearly(cls, kernel, num_features, dim):
    """By gradient ascent, within 5 %, in floats and in integers. The kernels of even degree are not negative, so an
    exact map would have a diameter that is smaller by √2."""
    sketch = _make(cls, kernel, num_features, dim)
    found = furthest(sketch)
    assert 0.95 * sketch.diameter < found <= sketch.diameter
    assert sketch.failure_probability == 0
    assert sketch.certain_diameter == sketch.diameter


@pytest.mark.long
def test_the_diameter_of_a_sketch_of_few_monomials_is_larger_than_what_is_found():
    """Seven times as many monomials as features, where the bound is about 6 % too large, and why no linear function u
    helps: if ⟨u, v(x)⟩ ≥ β ‖v(x)‖ for all x, then 2 √(κ − a_0) √(1 − β²) is a bound. But β is at most the length of any
    mean of vectors v(x)/‖v(x)‖, and some means are almost 0."""
    sketch = _make(TensorSketchMap, Polynomial(3, 1.0, 0.3), 256, 20)
    assert 0.93 * sketch.diameter < furthest(sketch, num_pairs=300) < 0.95 * sketch.diameter
    rows = np.random.default_rng(0).normal(size=(1000, 20))
    features = sketch.host_features(rows / np.linalg.norm(rows, axis=1, keepdims=True))[:, 1:]
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    sums = np.append(np.zeros(sketch.num_sketched), 1)
    weights, _ = scipy.optimize.nnls(np.vstack([directions.T, np.ones(len(rows))]), sums)
    largest = np.linalg.norm(weights @ directions) / weights.sum()
    assert math.sqrt(1 - largest**2) > 0.99


@pytest.mark.parametrize("cls", ONE_IS_SLOW)
def test_integers_of_two_rows_are_no_further_apart_than_their_diameter(cls, rng):
    sketch = _make(cls, Polynomial(3, 1.0, 0.0), 20, 8)
    integers = sketch.integers(100)
    rows = _rows(rng, 50, 8, 1.0)
    rows[1] = -rows[0] / np.linalg.norm(rows[0])
    rows[0] = -rows[1]
    sums = np.stack([integers.sum(row[None], [True]) for row in rows]).astype(float)
    assert (integers.sum(rows[:1], [False]) == 0).all()
    distances = np.linalg.norm(sums[:, None] - sums, axis=2)
    assert 0.999 * integers.diameter < distances.max() <= integers.diameter
    assert integers.diameter == pytest.approx(integers.units * sketch.diameter, rel=1e-6)
    assert np.linalg.norm(sums, axis=1).max() <= integers.norm_bound <= integers.diameter
    features = sketch.host_features(rows)
    assert np.abs(sums - integers.units * features).max() <= 0.5


@pytest.mark.parametrize("cls", ONE_IS_SLOW)
def test_rows_have_the_same_integers_in_any_batch(cls, rng):
    sketch = _make(cls, Polynomial(3, 1.0, 0.5), 61, 12)
    rows = 1.2 * _rows(rng, 600, 12, 1.0)  # some are outside
    rows[::97] = np.nan
    whole = integer_embedding(sketch, rows)
    mean = mean_embedding(sketch, rows)
    np.testing.assert_allclose(whole.total / (whole.integer_map.units * 600), mean.coordinates, atol=1e-6)
    shuffled = rows[rng.permutation(600)]
    for size in (1, 140, 7):
        batches = [shuffled[i : i + size] for i in range(0, 600, size)]
        found = integer_embedding_of_batches(sketch, batches, 600)
        np.testing.assert_array_equal(found.total, whole.total)


@pytest.mark.parametrize("cls", ONE_IS_SLOW)
def test_strange_rows_have_features(cls):
    """Rows at 0, with v = 0, and far beyond the range of squares of float32."""
    kernel = Polynomial(2, 1e-3, 0.0)
    sketch = _make(cls, kernel, 2, 2)
    rows = np.array([[0.0, 0.0], [1e-3, 0.0], [1e-3, 1e-3], [1e-3, -1e-3], [1e-200, 1e-30], [1e-170, 0]])
    features = sketch.host_features(rows)
    assert np.isfinite(features).all()
    assert np.linalg.norm(features, axis=1).max() <= sketch.norm_bound
    with float64():
        assert np.isfinite(compiled.features(sketch, jnp.asarray(rows))).all()
    derivative = jax.jit(jax.jacobian(lambda x: sketch(x[None])[0]))
    for row in rows[:4]:
        assert np.isfinite(derivative(jnp.asarray(row, jnp.float32))).all()


@pytest.mark.parametrize("cls", ONE_IS_SLOW)
def test_sketches_that_are_computed_wrongly_change_no_bound(cls, rng, monkeypatch):
    """Values that are NaN, infinite, huge or tiny: the norm is that of the proof, or 0, also in integers."""
    sketch = _make(cls, Polynomial(2, 1.0, 0.0), 8, 4)
    broken = rng.normal(size=(6, 8)) * np.array([1e300, 1e-300, 1e-310, 1, 1, 0])[:, None]
    broken[3, 2], broken[4, 5] = np.nan, np.inf
    monkeypatch.setattr(cls, "host_sketches", lambda self, rows: broken[: len(rows)])
    rows = np.eye(4)[[0, 1, 2, 3, 0, 1]]
    norms = np.linalg.norm(sketch.host_features(rows), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 1, 0, 0, 0], rtol=1e-12)
    integers = sketch.integers(6)
    assert np.linalg.norm(integers.sum(rows, np.ones(6, bool)).astype(float)) <= 6 * integers.norm_bound


@pytest.mark.parametrize("cls", ONE_IS_LONG)
def test_three_steps(cls, rng):
    kernel, rows = Polynomial(3, 1.0, 0.5), _rows(rng, 20_000, 6, 1.0)
    points, sketch = rows[:30] * 0.9, _make(cls, kernel, 60, 6)
    embedding = mean_embedding(sketch, rows)
    exact = closed_form_weights(NoisyEmbedding(sketch, embedding.coordinates, None), points)
    securely = perturb_securely(integer_embedding(sketch, rows), BUDGET)
    assert securely.mechanism.secure
    assert securely.mechanism.sensitivity == pytest.approx(sketch.diameter / 20_000, rel=1e-5)
    for noisy in (perturb(jax.random.key(1), embedding, BUDGET), securely):
        noise = noisy.coordinates - embedding.coordinates
        assert np.linalg.norm(noise) == pytest.approx(math.sqrt(60 * noisy.mechanism.variance), rel=0.4)
        check_sensitivity(noisy.mechanism, sketch)
        weights = closed_form_weights(noisy, points).weights
        assert 0 < np.linalg.norm(weights - exact.weights) < 0.5 * np.linalg.norm(exact.weights)
        assert adaptive_weights(noisy, points)[0].weights.sum() == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("cls", ONE_IS_LONG)
def test_a_measurement_with_points_loads_equal(cls, tmp_path, rng):
    rows, bounds = rng.beta(2, 5, (3000, 5)), Bounds.create([0] * 5, [1] * 5)
    sketch, points = _make(cls, Polynomial(2, math.sqrt(5)), 15, 5), rng.uniform(size=(30, 5))
    measured = measure(rows, sketch, points, budget=BUDGET, bounds=bounds, folder=tmp_path / "measured")
    loaded = load(tmp_path / "measured").noisy
    _assert_equal(loaded.feature_map, sketch)
    np.testing.assert_array_equal(loaded.coordinates, measured.noisy.coordinates)
    found = measured.synthesise().sample.expectation(lambda z: z)
    assert np.abs(found - rows.mean(axis=0)).max() < 0.1
    with pytest.raises(ValueError, match=f"{cls.__name__} has no frequencies: give points"):
        measure(rows, sketch, budget=BUDGET, bounds=bounds)
    small = _make(cls, Polynomial(2, 1.0), 15, 5)
    with pytest.raises(ValueError, match=r"they have norms up to 2.236, and the radius of the kernel is 1"):
        measure(rows, small, points, budget=BUDGET, bounds=bounds)


def _assert_equal(found, expected):
    assert type(found) is type(expected)
    assert found.kernel == expected.kernel
    for field in dataclasses.fields(expected):
        if field.name != "kernel":
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


@pytest.mark.parametrize("cls", MAPS)
def test_labels(cls, rng):
    sketch = _make(cls, Polynomial(2, 1.0, 0.0), 8, 4)
    labelled = LabelledMap(sketch, 3)
    rows = np.column_stack([_rows(rng, 50, 4, 1.0), rng.integers(0, 3, 50)])
    total = integer_embedding(labelled, rows)
    sums = 50 * mean_embedding(labelled, rows).coordinates
    np.testing.assert_allclose(total.total / total.integer_map.units, sums, atol=1e-4)
    assert labelled.diameter == sketch.diameter


def test_methods_for_other_maps_say_so(rng):
    sketch = _make(TensorSketchMap, Polynomial(2, 1.0), 8, 4)
    noisy = perturb(jax.random.key(0), mean_embedding(sketch, _rows(rng, 50, 4, 1.0)), BUDGET)
    with pytest.raises(ValueError, match=r"expected the noisy embedding of Fourier features.*got TensorSketchMap"):
        posterior_mean(jax.random.key(0), noisy, NormalProposal.from_bounds([-1] * 4, [1] * 4))
    with pytest.raises(ValueError, match="expected the noisy embedding of a FourierMap, got TensorSketchMap"):
        joint_reduced_set(jax.random.key(0), noisy, np.zeros((5, 4)), 2)


def test_a_map_that_was_read_is_checked():
    def read(value):
        arrays = {}
        return decode(encode(value, arrays, "map"), arrays, FeatureMap)

    maclaurin, sketch = (_make(cls, Polynomial(3, 1.0), 12, 4) for cls in MAPS)
    for value in (maclaurin, sketch, _make(RandomMaclaurinMap, Exponential(1.0, 1.0), 12, 4)):
        _assert_equal(read(value), value)
    for value, changes, error in (
        (maclaurin, {"signs": 2 * maclaurin.signs}, "signs: expected -1 and 1"),
        (maclaurin, {"signs": maclaurin.signs[1:]}, "signs: expected the shape"),
        (maclaurin, {"factors": ()}, "factors: expected decreasing"),
        (maclaurin, {"factors": (3, 9)}, "factors: expected decreasing"),
        (maclaurin, {"factors": (3, 2, 1, 1)}, "factors: expected decreasing"),
        (maclaurin, {"factors": (3, 0)}, "factors: expected decreasing"),
        (maclaurin, {"kernel": Gaussian(1.0)}, "expected a DotProduct"),
        (sketch, {"signs": 0 * sketch.signs}, "signs: expected -1 and 1"),
        (sketch, {"signs": sketch.signs[:1], "buckets": sketch.buckets[:1]}, "buckets: expected the shape"),
        (sketch, {"buckets": sketch.buckets - 12}, "buckets: expected numbers from 0"),
        (sketch, {"num_buckets": 2**40}, "num_buckets: is out of range"),
        (sketch, {"num_buckets": 3}, "buckets: expected numbers from 0"),
        (sketch, {"buckets": sketch.buckets[:, :1], "signs": sketch.signs[:, :1]}, "expected columns and a constant"),
        (sketch, {"kernel": Polynomial(2, 1.0)}, "buckets: expected the shape"),
        (sketch, {"kernel": Exponential(1.0, 1.0)}, "expected a Polynomial"),
    ):
        with pytest.raises(ValueError, match=error):
            read(dataclasses.replace(value, **changes))


def test_bad_arguments_are_refused():
    kernel = Polynomial(2, 1.0)
    for cls, kernel_of_case, num_features, dim, error in (
        (RandomMaclaurinMap, Gaussian(1.0), 10, 5, "needs a kernel of inner products.*got Gaussian; use a FourierMap"),
        (TensorSketchMap, Gaussian(1.0), 10, 5, "needs a Polynomial kernel, got Gaussian; use a FourierMap"),
        (TensorSketchMap, Exponential(1.0, 1.0), 10, 5, "got Exponential; use a RandomMaclaurinMap"),
        (RandomMaclaurinMap, kernel, 10, 0, r"dim must be from 1 to 2\^20, got 0"),
        (TensorSketchMap, kernel, 1, 5, "num_features must be at least 2 for this kernel, got 1"),
        (RandomMaclaurinMap, Polynomial(2, 1.0, 0.0), 0, 5, "num_features must be at least 1 for this kernel, got 0"),
        (RandomMaclaurinMap, Exponential(1.0, 1.0), 2**27, 5, r"num_features must be at most 2\^26"),
        (TensorSketchMap, kernel, 21, 5, "21 features: this kernel has only 21 monomials, so use a PolynomialMap"),
    ):
        with pytest.raises(ValueError, match=error):
            _make(cls, kernel_of_case, num_features, dim)
    with pytest.raises(ValueError, match="more than can be summed exactly"):
        _make(TensorSketchMap, kernel, 20, 5).integers(2**40)
