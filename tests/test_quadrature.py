import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import (
    Bounds,
    FeatureMap,
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    QuadratureMap,
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
from kme_jax.storage.codec import decode, encode
from tests import compiled

KERNEL = Gaussian(0.5)  # ℓ = 1
BUDGET = PrivacyBudget(1.0, 1e-6)
BOXES = [([-3.0], [9.0]), ([100.0, 1.0], [101.0, 3.0]), ([0.0, -1.0, 2.0], [1.0, 1.0, 3.0])]


def _map(box, num_features=10_000, **options):
    return QuadratureMap.from_box(KERNEL, *map(np.array, box), num_features, **options)


def _features(feature_map, x):
    with float64():
        return np.asarray(compiled.features(feature_map, jnp.asarray(x)), np.float64)


def _exact(x, y):
    return np.exp(-0.5 * np.sum(np.square(x[:, None] - y[None]), axis=2))


def _in(box, num_rows, rng):
    """Rows in a box, with the two corners that are furthest apart."""
    return np.concatenate([np.array(box), rng.uniform(*box, (num_rows, len(box[0])))])


def _largest_error(feature_map, box, rng):
    rows = _in(box, 60, rng)
    features = _features(feature_map, rows)
    return np.abs(features @ features.T - _exact(rows, rows)).max()


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-5), (np.float64, 2e-6)])
@pytest.mark.parametrize("box", BOXES, ids=lambda box: f"d{len(box[0])}")
def test_inner_products_are_the_kernel_in_the_box(box, dtype, error, rng):
    feature_map = _map(box, dtype=dtype)
    assert feature_map.turns.dtype == feature_map.amplitudes.dtype == dtype
    assert _largest_error(feature_map, box, rng) < error


@pytest.mark.parametrize("box", BOXES, ids=lambda box: f"d{len(box[0])}")
def test_features_are_the_formula(box, rng):
    """All nodes of NumPy's rules, with one of ω and −ω, without those that together weigh 1e-6."""
    feature_map, rows = _map(box, dtype=np.float64), _in(box, 10, rng)
    rules = [np.polynomial.hermite_e.hermegauss(count) for count in feature_map.counts]
    rules = [(nodes, weights / weights.sum()) for nodes, weights in rules]
    chosen = {}
    for indices in itertools.product(*map(range, feature_map.counts)):
        node = np.array([nodes[i] for i, (nodes, _) in zip(indices, rules, strict=True)])
        weight = math.prod(weights[i] for i, (_, weights) in zip(indices, rules, strict=True))
        first = next((value for value in node if abs(value) > 1e-12), 0)
        if first >= 0:
            chosen[tuple(node)] = weight * (2 if first else 1)
    assert sum(chosen.values()) == pytest.approx(1, abs=1e-12)
    heaviest = sorted(chosen.values(), reverse=True)
    left_out = sum(heaviest[len(feature_map.turns) :])
    assert left_out <= 1e-6 < left_out + heaviest[len(feature_map.turns) - 1]
    np.testing.assert_allclose(np.square(feature_map.amplitudes), heaviest[: len(feature_map.turns)], rtol=1e-9)
    nodes = np.array(list(chosen))
    for omega, amplitude in zip(2 * np.pi * feature_map.turns, feature_map.amplitudes, strict=True):
        distances = np.abs(nodes - omega).sum(axis=1)
        assert distances.min() < 1e-11
        assert chosen[tuple(nodes[np.argmin(distances)])] == pytest.approx(amplitude**2, rel=1e-9)
    angles = 2 * np.pi * (rows - feature_map.centre) @ feature_map.turns.T
    expected = np.concatenate([feature_map.amplitudes * f(angles) for f in (np.cos, np.sin)], axis=1)
    np.testing.assert_allclose(_features(feature_map, rows), expected, atol=1e-13)


def _rule(count):
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def test_the_error_of_a_rule_is_below_its_classical_bound():
    for count in (2, 5, 9, 20):
        nodes, weights = _rule(count)
        for delta in (0.3, 1.0, 2.5, 5.0):
            error = abs(weights @ np.cos(nodes * delta) - math.exp(-(delta**2) / 2))
            bound = math.exp(math.lgamma(count + 1) - math.lgamma(2 * count + 1) + 2 * count * math.log(delta))
            assert error <= bound + 1e-14
            if delta <= 1:
                assert error > bound / 5 or error < 1e-14  # so it is no mere upper bound of anything


def test_the_error_falls_much_faster_than_that_of_random_features(rng):
    """Four times as many features: half of the error of random features, and less than a hundredth of it here."""
    box = ([0.0, 0.0], [2.0, 2.0])
    maps = [_map(box, num_features, dtype=np.float64) for num_features in (24, 48, 96)]
    assert [feature_map.num_features for feature_map in maps] == pytest.approx([24, 48, 96], abs=8)
    errors = [_largest_error(feature_map, box, rng) for feature_map in maps]
    assert errors[0] < 0.03
    assert errors[1] < errors[0] / 10
    assert errors[2] < errors[0] / 1000
    for feature_map, error in zip(maps, errors, strict=True):
        fourier = FourierMap.from_kernel(jax.random.key(0), KERNEL, feature_map.num_features, 2, dtype=np.float64)
        assert _largest_error(fourier, box, rng) > 4 * error


@pytest.mark.parametrize(
    ("dim", "width", "fewer", "diameters"),
    [
        pytest.param(1, 30.0, 1.1, 1.0, marks=pytest.mark.long),
        pytest.param(2, 16.0, 1.25, 1.0, marks=pytest.mark.long),
        (2, 1.0, 2.0, 0.8),
        (3, 1.0, 3.0, 0.9),
        pytest.param(3, 4.0, 1.4, 1.0, marks=pytest.mark.long),
    ],
)
def test_it_needs_fewer_features_than_a_lattice_in_a_small_box(dim, width, fewer, diameters, rng):
    """For the same error. In a wide box of one or two columns both need about the same number."""
    box = [0.0] * dim, [width] * dim
    feature_map = _map(box, dtype=np.float64)
    lattice = LatticeMap.from_box(KERNEL, *map(np.array, box), dtype=np.float64)
    for some in (feature_map, lattice):
        assert _largest_error(some, box, rng) < 2e-6
    ratio = lattice.num_features / feature_map.num_features
    assert 1 <= ratio <= fewer if width > 4 else fewer <= ratio
    assert feature_map.diameter <= lattice.diameter * diameters + 1e-6


CASES = [  # boxes, numbers of features, and what the diameter is
    (([0.0], [20.0]), 10_000, math.sqrt(2)),
    (([-8.0, 0.0], [8.0, 9.0]), 10_000, math.sqrt(2)),
    (([0.0, 0.0], [5.0, 5.0]), 48, None),  # inner products are below 0
    (([0.0, 0.0], [1.0, 1.0]), 10_000, math.sqrt(2 - 2 / math.e)),
    (([0.0, 0.0, 0.0], [1.0, 0.5, 1.0]), 200, math.sqrt(2 - 2 * math.exp(-9 / 8))),
    (([0.0], [0.5]), 10_000, 1.0),  # from the zero vector
]


def _furthest(box, rng):
    """Rows of which two are about as far apart as any, with some between: corners, faces and random rows."""
    corners = np.array(list(itertools.product(*zip(*box, strict=True))))
    lines = box[0] + np.linspace(0, 1, 400)[:, None] * np.subtract(box[1], box[0])
    single = [np.where(np.arange(len(box[0])) == j, lines, box[0]) for j in range(len(box[0]))]
    return np.concatenate([corners, lines, *single, rng.uniform(*box, (100, len(box[0])))])


def _largest_distance(vectors):
    squares = np.sum(vectors**2, axis=1)
    return math.sqrt(max((squares[:, None] + squares - 2 * vectors @ vectors.T).max(), squares.max()))


@pytest.mark.parametrize(("box", "num_features", "expected"), CASES)
def test_no_two_rows_are_further_apart_than_the_diameter_and_some_attain_it(box, num_features, expected, rng):
    feature_map = _map(box, num_features, dtype=np.float64)
    corners = feature_map.centre + feature_map.half_widths * np.array([[-1.0], [1.0]]) * (1 - 1e-12)
    rows = np.concatenate([_furthest(box, rng), corners])
    assert feature_map.covers(rows).all()
    largest = _largest_distance(_features(feature_map, rows))
    assert 0.99 * feature_map.diameter < largest <= feature_map.diameter * (1 + 1e-12)
    if expected is None:
        assert feature_map.least_cosine < -1e-3
        assert feature_map.diameter > math.sqrt(2) * (1 + 1e-3)
    else:
        assert feature_map.diameter == pytest.approx(expected, rel=1e-5)
    assert feature_map.certain_diameter == feature_map.diameter
    assert feature_map.failure_probability == 0
    assert feature_map.norm_bound <= 1 + 1e-13


@pytest.mark.parametrize(("box", "num_features", "expected"), CASES[2:])
def test_integers_of_two_rows_are_no_further_apart_than_their_diameter(box, num_features, expected, rng):
    del expected
    feature_map = _map(box, num_features)
    integers = feature_map.integers(1)
    rows = np.concatenate([np.array(box), _furthest(box, rng)[rng.permutation(500)[:80]]])
    vectors = np.stack([integers.sum(row[None], np.array([True])) for row in rows]).astype(float)
    largest = _largest_distance(vectors)
    assert 0.95 * integers.diameter < largest <= integers.diameter <= integers.certain_diameter
    assert np.linalg.norm(vectors, axis=1).max() <= integers.norm_bound


def test_the_least_cosine_is_proved_for_rounded_nodes():
    """In float32, against sums on a much finer grid, and not far below them."""
    for box, num_features in ((([0.0], [3.0]), 10), (([0.0, 0.0], [5.0, 3.0]), 40), (([0.0, 0.0], [1.0, 0.3]), 20)):
        feature_map = _map(box, num_features)
        least = []
        for count, half_width in zip(feature_map.counts, feature_map.half_widths, strict=True):
            nodes, weights = _rule(count)
            delta = np.linspace(0, 2 * half_width, 20_011)
            least.append(np.min(np.cos(delta[:, None] * nodes.astype(np.float32).astype(float)) @ weights))
        expected = math.prod(least) if min(least) >= 0 else min(least)
        assert expected - 1e-5 < feature_map.least_cosine <= expected


def test_float32_rounding_is_in_the_diameter():
    narrow, wide = (_map(BOXES[0], dtype=dtype).diameter for dtype in (np.float64, np.float32))
    assert narrow * (1 + 30 * 2**-24) < wide < narrow * (1 + 1e-4)


def test_integer_sums_are_units_times_float_sums_in_any_order_and_batches(rng):
    box = BOXES[2]
    feature_map, rows = _map(box), _in(box, 4998, rng)
    rows[::97] = np.nan
    whole = integer_embedding(feature_map, rows)
    found = whole.total / (whole.integer_map.units * 5000)
    assert np.linalg.norm(found - mean_embedding(feature_map, rows).coordinates) < 1e-4
    shuffled = rows[rng.permutation(5000)]
    batches = [shuffled[i : i + 1024] for i in range(0, 5000, 1024)]
    np.testing.assert_array_equal(integer_embedding_of_batches(feature_map, batches, 5000).total, whole.total)


def test_the_embedding_is_the_mean_of_the_features_and_rows_outside_count_as_zero(rng):
    box = BOXES[1]
    feature_map, inside = _map(box), _in(box, 300, rng)
    assert feature_map.covers(np.array(box).astype(np.float32)).all()
    outside = np.array([[np.nan, 2], [np.inf, 2], [101.001, 2], [100.5, 0.99], [-1e300, 2], [100.5, 3.01]])
    embedding = mean_embedding(feature_map, np.concatenate([inside, outside]))
    expected = _features(feature_map, inside).sum(axis=0) / 308
    np.testing.assert_allclose(embedding.coordinates, expected, atol=2e-5)


def test_waves_of_a_mixture_are_the_mean_of_the_features_of_its_points(rng):
    """In coordinates of our own. The first frequencies are the heaviest, so no smaller set of them stands for all."""
    feature_map = _map(BOXES[1])
    centre, length = np.array(BOXES[1][0]) + 0.1, 0.8
    z, weights = rng.uniform(0, 1, (4, 2)).astype(np.float32), np.array([0.2, 0.4, 0.3, 0.1], np.float32)
    waves = feature_map.waves(centre, length)
    found = np.asarray(jax.jit(waves.mixture)(z, weights))
    np.testing.assert_allclose(found, weights @ _features(feature_map, centre + length * z), atol=2e-5)
    assert waves.fewer(4, found)[0] is waves


@pytest.mark.long
def test_three_steps(rng):
    box = ([0.0, 0.0], [2.0, 1.0])
    rows, points = rng.beta(2, 5, (20_000, 2)) * [2, 1], rng.uniform(*box, (20, 2))
    feature_map = _map(box)
    embedding = mean_embedding(feature_map, rows)
    securely = perturb_securely(integer_embedding(feature_map, rows), BUDGET)
    assert securely.mechanism.secure
    assert securely.mechanism.sensitivity == pytest.approx(feature_map.diameter / 20_000, rel=1e-3)
    for noisy in (perturb(jax.random.key(1), embedding, BUDGET), securely):
        sample = closed_form_weights(noisy, points)
        assert np.linalg.norm(sample.weights) > 0
        noise = np.linalg.norm(noisy.coordinates - embedding.coordinates)
        assert noise == pytest.approx(math.sqrt(feature_map.num_features * noisy.mechanism.variance), rel=0.3)


@pytest.mark.long
def test_the_posterior_mean_is_closer_than_the_noisy_embedding(rng):
    proposal = NormalProposal.create(np.array([0.5, 0.5]), 0.5)
    rows = np.clip(rng.normal([0.3, 0.6], 0.1, (5000, 2)), 0, 1)
    feature_map = QuadratureMap.from_box(Gaussian(8.0), [0, 0], [1, 1])
    embedding = mean_embedding(feature_map, rows)
    noisy = perturb(jax.random.key(1), embedding, PrivacyBudget(0.1, 1e-6))
    mean, _ = posterior_mean(jax.random.key(2), noisy, proposal, num_atoms=20, num_trajectories=8, num_leaps=15)
    noise = np.linalg.norm(noisy.coordinates - embedding.coordinates)
    assert np.linalg.norm(mean.coordinates - embedding.coordinates) < 0.5 * noise


@pytest.mark.parametrize("has_points", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_measurement_loads_equal(has_points, tmp_path, rng):
    """With bounds alone, or with points that get the weights."""
    feature_map = QuadratureMap.from_box(Gaussian(4.0), [0, 0], [1, 1], 200)
    rows, bounds = rng.beta(2, 5, (3000, 2)) * [10, 1], Bounds.create([0, 0], [10, 1])
    public = rng.uniform(size=(30, 2)) * [10, 1] if has_points else None
    measured = measure(rows, feature_map, public, budget=BUDGET, bounds=bounds, folder=tmp_path / "measured")
    loaded = load(tmp_path / "measured")
    _assert_equal(loaded.noisy.feature_map, feature_map)
    np.testing.assert_array_equal(loaded.noisy.coordinates, measured.noisy.coordinates)
    assert loaded.statement == measured.statement
    with pytest.raises(ValueError, match="not made for rows from 0 to 1"):
        measure(rows, _map(([0, 0], [1, 2])), budget=BUDGET, bounds=bounds)


def _assert_equal(found, expected):
    assert type(found) is type(expected)
    assert found.kernel == expected.kernel
    for field in dataclasses.fields(expected):
        if field.name != "kernel":
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_map_that_was_read_is_checked(dtype):
    feature_map = _map(([0.0, 0.0], [1.0, 2.0]), dtype=dtype)
    assert len(set(feature_map.counts)) == 2
    turns, amplitudes = feature_map.turns, feature_map.amplitudes
    opposite = np.concatenate([turns[:-1], -turns[:1]])

    def read(**changes):
        arrays = {}
        return decode(encode(dataclasses.replace(feature_map, **changes), arrays, "map"), arrays, FeatureMap)

    _assert_equal(read(), feature_map)
    _assert_equal(read(least_cosine=-0.5), dataclasses.replace(feature_map, least_cosine=-0.5))  # it is true
    for changes, error in (
        ({"least_cosine": feature_map.least_cosine + 1e-6}, "larger than the proved bound"),
        ({"least_cosine": -1.1}, "a number from -1 to 1"),
        ({"half_widths": feature_map.half_widths * 1.01}, "larger than the proved bound"),
        ({"half_widths": -feature_map.half_widths}, "half_widths: expected positive"),
        ({"kernel": Gaussian(0.6)}, "not the nodes of the kernel"),
        ({"kernel": Laplacian(0.5)}, "expected a Gaussian"),
        ({"counts": feature_map.counts[::-1].copy()}, "not the nodes of the kernel"),
        ({"counts": feature_map.counts * 1000}, "expected 1 to 512 nodes"),
        ({"turns": turns * np.array(1.01, dtype)}, "not the nodes of the kernel"),
        ({"turns": opposite}, "a frequency, or its negative, appears twice"),
        ({"amplitudes": amplitudes * np.array(0.99, dtype)}, "do not match the kernel"),
        ({"amplitudes": -amplitudes}, "amplitudes: expected positive"),
        ({"amplitudes": amplitudes.astype(np.float16)}, "another precision"),
    ):
        with pytest.raises(ValueError, match=error):
            read(**changes)


def test_a_box_may_be_as_good_as_a_point():
    feature_map = _map(([0.0, 0.0], [1e-9, 2.0]), dtype=np.float64)
    assert feature_map.counts[0] == 1
    rows = np.array([[0.0, 0.0], [1e-9, 2.0]])
    features = _features(feature_map, rows)
    np.testing.assert_allclose(features @ features.T, _exact(rows, rows), atol=2e-6)
    single = _map(([0.0], [1e-9]))
    assert single.num_features == 2
    assert single.diameter == pytest.approx(1, rel=1e-5)
    assert single.integers(10).sum(np.zeros((3, 1)), np.ones(3, bool)).tolist() == [96_000, 0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="needs a Gaussian kernel, got Laplacian"):
        QuadratureMap.from_box(Laplacian(1.0), [0.0], [1.0])
    for num_features in (0, 1, 7):
        with pytest.raises(ValueError, match="must be even and at least 2"):
            QuadratureMap.from_box(KERNEL, [0.0], [1.0], num_features)
    with pytest.raises(ValueError, match="dtype must be float32 or float64"):
        QuadratureMap.from_box(KERNEL, [0.0], [1.0], dtype=np.float16)
    with pytest.raises(ValueError, match=r"expected shapes \[d\] and \[d\]"):
        QuadratureMap.from_box(KERNEL, [0.0], [1.0, 2.0])
    for lower, upper in (([1.0], [1.0]), ([np.nan], [1.0]), ([-1e308], [1e308])):
        with pytest.raises(ValueError, match="finite and below its upper bound"), np.errstate(over="ignore"):
            QuadratureMap.from_box(KERNEL, lower, upper)
    for width, dim, num_features in ((40, 2, 100), (50, 1, 10_000), (1e300, 1, 10_000), (16, 4, 10_000), (1, 12, 10)):
        with pytest.raises(ValueError, match=f"too large for quadrature with {num_features} features"):
            _map(([0] * dim, [width] * dim), num_features)
    with pytest.raises(ValueError, match="must be called within"):
        _map(BOXES[0], dtype=np.float64)(np.zeros((1, 1)))
    with pytest.raises(ValueError, match="float32"):
        _map(BOXES[0], dtype=np.float64).integers(10)
