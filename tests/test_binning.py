import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from kme_jax import (
    Bounds,
    FeatureMap,
    Gaussian,
    LabelledMap,
    Laplacian,
    Ledger,
    MixedMap,
    NoisyEmbedding,
    PrivacyBudget,
    RandomBinningMap,
    Spending,
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
from kme_jax.privacy.verification import check_sensitivity
from kme_jax.storage.codec import decode, encode
from tests import compiled

KERNEL = Laplacian(1.0)
BUDGET = PrivacyBudget(1.0, 1e-6)
PRIME = 2**31 - 1


def _map(dim=2, num_grids=60, num_buckets=None, *, seed=0, width=4.0, kernel=KERNEL):
    return RandomBinningMap.from_box(
        jax.random.key(seed), kernel, [-width / 2] * dim, [width / 2] * dim, num_grids, num_buckets
    )


def _features(binning, rows):
    with float64():
        return np.asarray(compiled.features(binning, jnp.asarray(rows, jnp.float64)))


def _plain(binning, rows):
    """ψ as the docstring says it, in Python's integers, one row and one grid after the other."""
    features = np.zeros((len(rows), binning.num_grids, binning.num_buckets))
    for n, row in enumerate(rows):
        for p in range(binning.num_grids):
            bins = [math.floor((x - o) * r) for x, o, r in zip(row, binning.origins[p], binning.rates[p], strict=True)]
            products = [int(m) * i for m, i in zip(binning.multipliers[p], bins, strict=True)]
            bucket = (sum(products) + int(binning.constants[p])) % PRIME % binning.num_buckets
            features[n, p, bucket] = 1 / math.sqrt(binning.num_grids)
    return features.reshape(len(rows), -1)


def _share_bin(binning, rows):
    """For all pairs of rows and each grid, whether they are in one bin: [n, n, P]."""
    bins = np.floor((rows[:, None] - binning.origins) * binning.rates)
    return np.all(bins[:, None] == bins[None], axis=3)


def _share_bucket(binning, rows):
    """The same of buckets."""
    counts = [binning.counts(row[None], None).reshape(binning.num_grids, -1) for row in rows]
    buckets = np.argmax(np.stack(counts), axis=2)
    return buckets[:, None] == buckets[None]


@pytest.mark.parametrize(("dim", "num_buckets"), [(1, 10_000), (2, 17), pytest.param(5, None, marks=pytest.mark.long)])
def test_features_and_sums_are_the_formula(dim, num_buckets, rng):
    binning = _map(dim, num_buckets=num_buckets)
    rows, weights = rng.uniform(-2, 2, (40, dim)), rng.normal(size=40)
    expected = _plain(binning, rows)
    np.testing.assert_array_equal(_features(binning, rows), expected)
    np.testing.assert_allclose(binning.weighted_sum(rows, weights), weights @ expected, atol=1e-13)
    counts = binning.counts(rows, None)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, np.rint(expected.sum(axis=0) * math.sqrt(60)))
    np.testing.assert_array_equal(binning.counts(rows, np.ones(40)), counts)


def test_a_row_at_an_edge_has_one_bin_everywhere():
    """Also the numbers next to it: in features of public points, which XLA computes, and in sums over rows."""
    binning = _map(1, 40, 10_000)
    edges = (binning.origins + np.arange(1, 4) / binning.rates).reshape(-1)
    edges = edges[np.abs(edges) <= 2]
    rows = np.concatenate([np.nextafter(edges, -9), edges, np.nextafter(edges, 9)])[:, None]
    features = _features(binning, rows)
    np.testing.assert_array_equal(features, _plain(binning, rows))
    sums = np.stack([binning.integers(1).sum(row[None], [True]) for row in rows])
    np.testing.assert_array_equal(sums, np.rint(features * binning.integers(1).units))


def test_pitches_and_origins_have_their_distributions():
    """A Gamma distribution of shape 2 and scale 1/γ, and a uniform one: within what 20 000 draws may differ."""
    binning = _map(2, 10_000, 2, kernel=Laplacian(3.0))
    pitches = 1 / binning.rates.reshape(-1)
    assert scipy.stats.kstest(pitches, scipy.stats.gamma(2, scale=1 / 3).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(pitches, scipy.stats.gamma(2, scale=1.05 / 3).cdf).pvalue < 1e-5
    shifts = ((binning.centre - binning.half_widths - binning.origins) * binning.rates).reshape(-1)
    assert scipy.stats.kstest(shifts, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(shifts, pitches)[0, 1]) < 0.03


PAIRS = np.array([[[0.3, -0.2, 0.5], [0.1, 0.1, 0.4]], [[1.2, -1.9, 0.0], [1.2, -1.4, 0.9]], [[1.9] * 3, [-1.9] * 3]])


def test_rows_share_a_bin_with_the_probability_of_the_kernel():
    """Within 4 standard errors, and not with γ wrong by a tenth."""
    num_grids = 20_000
    binning = _map(3, num_grids, 5)
    for pair in PAIRS:
        with float64():
            k = float(KERNEL(*pair))
        found = _share_bin(binning, pair)[0, 1].mean()
        assert abs(found - k) <= 4 * math.sqrt(k * (1 - k) / num_grids)
        assert k < 0.01 or abs(found - k**1.1) > 4 * math.sqrt(k * (1 - k) / num_grids)


@pytest.mark.parametrize("num_buckets", [1, 2, 5])
def test_bins_share_a_bucket_with_the_stated_probability(num_buckets):
    binning = _map(3, 20_000, num_buckets, width=8.0)
    assert binning.num_buckets == num_buckets
    for pair in PAIRS[1:]:
        of_different_bins = _share_bucket(binning, pair)[0, 1][~_share_bin(binning, pair)[0, 1]]
        error = math.sqrt((1 - 1 / num_buckets) / num_buckets / len(of_different_bins))
        # A grid with as few bins as there are buckets has no collisions: some one in a thousand of them.
        assert abs(of_different_bins.mean() - 1 / num_buckets) <= 4 * error + 0.002


def test_few_bins_have_buckets_of_their_own(rng):
    """So two rows share a bucket exactly if they share a bin."""
    binning = _map(2, 50, 100_000)
    assert 1 < binning.num_buckets < 100_000
    rows = rng.uniform(-2, 2, (60, 2))
    np.testing.assert_array_equal(_share_bucket(binning, rows), _share_bin(binning, rows))


@pytest.mark.long
def test_the_error_falls_like_the_root_of_the_number_of_grids(rng):
    rows = rng.uniform(-2, 2, (30, 2))
    with float64():
        exact = np.asarray(compiled.pairwise(KERNEL, rows, rows))
    pairs = np.triu_indices(30, 1)
    errors = []
    for num_grids in (50, 200, 800):
        maps = [_map(2, num_grids, 50, seed=seed) for seed in range(4)]
        inner = [np.mean(_share_bucket(binning, rows), axis=2) for binning in maps]
        errors.append(math.sqrt(np.mean([np.square(products - exact)[pairs] for products in inner])))
        assert errors[-1] <= 0.5 / math.sqrt(num_grids) + 1 / 50
    for coarse, fine in itertools.pairwise(errors):
        assert 1.6 < coarse / fine < 2.5


@pytest.mark.parametrize("num_buckets", [2, 40])
def test_no_two_rows_are_further_apart_than_the_diameter_and_some_attain_it(num_buckets, rng):
    """With the zero vector, in floats and in integers. Half of the pairs of buckets are equal if there are two, so a
    search has to look for the worst pair."""
    binning = _map(3, 12, num_buckets)
    rows = rng.uniform(-2, 2, (200, 3))
    integers = binning.integers(1)
    features = np.concatenate([_features(binning, rows), np.zeros((1, binning.num_features))])
    sums = [integers.sum(row[None], [True]) for row in rows]
    sums = np.stack([*sums, integers.sum(rows[:1], [False])])
    for vectors, bound in ((features, binning.diameter), (sums.astype(float), integers.diameter)):
        squares = np.sum(vectors**2, axis=1)
        squared = squares[:, None] + squares - 2 * vectors @ vectors.T
        assert 0.95 * bound < math.sqrt(squared.max()) <= bound * (1 + 1e-12)
    assert integers.diameter == integers.certain_diameter == pytest.approx(2**20 * math.sqrt(2 * 12), rel=1e-14)
    assert binning.failure_probability == 0
    assert np.linalg.norm(sums.astype(float), axis=1).max() <= integers.norm_bound


def test_laplace_noise_is_for_counts(rng):
    """In the sum of absolute values, two rows are twice as many bins apart as there are grids; √F diameter is more."""
    binning = _map(num_grids=20, num_buckets=40)
    rows = rng.uniform(-2, 2, (200, 2))
    integers = binning.integers(200)
    whole = np.stack([integer_embedding(binning, row[None]).total for row in rows]).astype(float)
    for vectors, diameter in ((_features(binning, rows), binning.l1_diameter), (whole, integers.l1_diameter)):
        largest = np.abs(vectors[:, None, :] - vectors[None, :60]).sum(axis=2).max()
        assert 0.95 * diameter < largest <= diameter
    budget = PrivacyBudget(1.0, 0.0)
    for noisy in (
        perturb_securely(integer_embedding(binning, rows), budget),
        perturb(jax.random.key(0), mean_embedding(binning, rows), budget, noise="laplace"),
    ):
        assert noisy.mechanism.sensitivity == pytest.approx(binning.l1_diameter / 200)
        assert noisy.mechanism.sensitivity < math.sqrt(binning.num_features) * binning.diameter / 200 / 4
        check_sensitivity(noisy.mechanism, binning)


def test_integer_sums_are_units_times_float_sums_in_any_order_and_batches(rng):
    binning = _map(2, 30)
    rows = rng.uniform(-2.2, 2.2, (40_000, 2))  # some are outside
    rows[::97] = np.nan
    whole = integer_embedding(binning, rows)
    assert whole.total.dtype == np.int64
    mean = mean_embedding(binning, rows)
    np.testing.assert_allclose(whole.total / (whole.integer_map.units * 40_000), mean.coordinates, rtol=1e-12)
    shuffled = rows[rng.permutation(40_000)]
    for size in (1700, 16_385):
        batches = [shuffled[i : i + size] for i in range(0, 40_000, size)]
        found = integer_embedding_of_batches(binning, batches, 40_000)
        np.testing.assert_array_equal(found.total, whole.total)
    one_by_one = integer_embedding_of_batches(binning, [row[None] for row in rows[:200]], 200)
    np.testing.assert_array_equal(one_by_one.total, integer_embedding(binning, rows[:200]).total)
    steps = []
    integer_embedding(binning, rows, progress=lambda *done: steps.append(done))
    assert steps[-1] == (40_000, 40_000)
    assert steps == sorted(steps)


def test_rows_outside_of_the_box_count_as_zero_and_rows_on_a_bound_do_not():
    lower, upper = np.array([0.1, -0.7]), np.array([0.3, 1e6])
    binning = RandomBinningMap.from_box(jax.random.key(0), Laplacian(1e-3), lower, upper, 5)
    corners = np.stack([lower, upper])
    assert binning.covers(corners).all()
    assert binning.covers(corners.astype(np.float32)).all()
    outside = np.array([[0.09, 0], [np.nan, 0], [0.2, np.inf], [0.2, 1.1e6], [0.2, -1e300]])
    assert not binning.covers(outside).any()
    expected = binning.counts(corners, None) / math.sqrt(5) / 7
    found = mean_embedding(binning, np.concatenate([corners, outside]))
    np.testing.assert_allclose(found.coordinates, expected, rtol=1e-14)


@pytest.mark.long
def test_three_steps(rng):
    rows = rng.beta(2, 5, (20_000, 2)) * 4 - 2
    binning, points = _map(2, 100), rng.uniform(-2, 2, (20, 2))
    embedding = mean_embedding(binning, rows)
    exact = closed_form_weights(NoisyEmbedding(binning, embedding.coordinates, None), points)
    securely = perturb_securely(integer_embedding(binning, rows), BUDGET)
    assert securely.mechanism.secure
    assert securely.mechanism.sensitivity == pytest.approx(math.sqrt(2) / 20_000, rel=1e-9)
    for noisy in (perturb(jax.random.key(1), embedding, BUDGET), securely):
        noise = noisy.coordinates - embedding.coordinates
        assert np.linalg.norm(noise) == pytest.approx(math.sqrt(len(noise) * noisy.mechanism.variance), rel=0.1)
        weights = closed_form_weights(noisy, points).weights
        assert 0 < np.linalg.norm(weights - exact.weights) < 0.1 * np.linalg.norm(exact.weights)


@pytest.mark.slow
def test_a_release_is_like_the_rows(rng):
    rows, bounds = rng.beta(2, 5, (20_000, 2)) * [10, 1], Bounds.create([0, 0], [10, 1])
    points = rng.uniform(size=(60, 2)) * [10, 1]
    binning = RandomBinningMap.from_box(jax.random.key(0), Laplacian(2.0), [0, 0], [1, 1], 200)
    sample = measure(rows, binning, points, budget=BUDGET, bounds=bounds).synthesise().sample
    assert sample.weights.min() >= 0
    found, uniform = sample.expectation(lambda z: z), points.mean(axis=0)
    assert (np.abs(found - rows.mean(axis=0)) < 0.3 * np.abs(uniform - rows.mean(axis=0))).all()


def test_a_measurement_with_points_loads_equal(tmp_path, rng):
    binning = RandomBinningMap.from_box(jax.random.key(0), Laplacian(4.0), [0, 0], [1, 1], 40)
    rows, bounds = rng.beta(2, 5, (3000, 2)) * [10, 1], Bounds.create([0, 0], [10, 1])
    points = rng.uniform(size=(30, 2)) * [10, 1]
    measured = measure(rows, binning, points, budget=BUDGET, bounds=bounds, folder=tmp_path / "measured")
    loaded = load(tmp_path / "measured").noisy
    _assert_equal(loaded.feature_map, binning)
    np.testing.assert_array_equal(loaded.coordinates, measured.noisy.coordinates)
    with pytest.raises(ValueError, match="RandomBinningMap has no frequencies: give points"):
        measure(rows, binning, budget=BUDGET, bounds=bounds)
    with pytest.raises(ValueError, match="not made for rows from 0 to 1"):
        measure(rows, _map(2), points, budget=BUDGET, bounds=bounds)


def _assert_equal(found, expected):
    assert type(found) is type(expected)
    assert found.kernel == expected.kernel
    for field in dataclasses.fields(expected):
        if field.name != "kernel":
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_labels(rng):
    """In a tensor product with the labels of rows, as any other map."""
    labelled = LabelledMap(_map(2, 20), 3)
    rows = np.column_stack([rng.uniform(-2, 2, (50, 2)), rng.integers(0, 3, 50)])
    features = _features(labelled, rows)
    total = integer_embedding(labelled, rows)
    np.testing.assert_allclose(total.total / total.integer_map.units, features.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert labelled.diameter == pytest.approx(math.sqrt(2), rel=1e-12)


def test_a_generator_refuses_features_without_a_derivative():
    from kme_jax.generators.generator import Rows

    with pytest.raises(ValueError, match="features with a derivative, got a RandomBinningMap"):
        Rows.create(_map(), None, 0)


@pytest.mark.parametrize("whole", [None, LabelledMap, MixedMap])
def test_a_generator_refuses_them_before_anything_is_spent(whole, tmp_path, rng):
    features = _map()
    if whole is not None:
        features = whole(features, (2,) if whole is MixedMap else 2)
    rows = np.column_stack([rng.uniform(-2, 2, (50, 2)), rng.integers(0, 2, 50)])[:, : features.dim]
    ledger = Ledger(tmp_path / "ledger")
    name = "MixedMap" if whole is MixedMap else "RandomBinningMap"
    with pytest.raises(ValueError, match=f"features with a derivative, got a {name}"):
        measure_generator(rows, features, budget=BUDGET, spending=Spending(ledger, "rows"))
    assert not (tmp_path / "ledger").exists()


def test_a_map_that_was_read_is_checked():
    binning = _map()

    def read(**changes):
        arrays = {}
        return decode(encode(dataclasses.replace(binning, **changes), arrays, "map"), arrays, FeatureMap)

    _assert_equal(read(), binning)
    for changes, error in (
        ({"rates": -binning.rates}, "rates: expected positive"),
        ({"origins": binning.origins * np.inf}, "not finite"),
        ({"origins": -binning.origins}, "origins: the first bin does not have the lower corner"),
        ({"multipliers": binning.multipliers - PRIME}, "multipliers: expected numbers from 0"),
        ({"constants": binning.constants + PRIME}, "constants: expected numbers from 0"),
        ({"num_buckets": 0}, "num_buckets: is out of range"),
        ({"num_buckets": 2**40}, "num_buckets: is out of range"),
        ({"half_widths": 0 * binning.half_widths}, "half_widths: expected positive"),
        ({"kernel": Gaussian(1.0)}, "expected a Laplacian"),
    ):
        with pytest.raises(ValueError, match=error):
            read(**changes)


def test_bad_arguments_are_refused():
    def make(kernel=KERNEL, lower=(0.0,), upper=(1.0,), num_grids=4, num_buckets=None):
        return RandomBinningMap.from_box(
            jax.random.key(0), kernel, np.array(lower), np.array(upper), num_grids, num_buckets
        )

    with pytest.raises(ValueError, match="needs a Laplacian kernel, got Gaussian"):
        make(Gaussian(1.0))
    with pytest.raises(ValueError, match="num_grids must be at least 1, got 0"):
        make(num_grids=0)
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        make(num_buckets=0)
    with pytest.raises(ValueError, match=r"at most 2\^26 features"):
        make(num_grids=2**14, num_buckets=2**13)
    with pytest.raises(ValueError, match=r"expected shapes \[d\] and \[d\]"):
        make(upper=(1.0, 2.0))
    for lower, upper in (((1.0,), (1.0,)), ((np.nan,), (1.0,)), ((0.0,), (np.inf,))):
        with pytest.raises(ValueError, match="finite and below its upper bound"):
            make(lower=lower, upper=upper)
    with pytest.raises(ValueError, match="too large for bins"):
        make(upper=(1e12,))
    with pytest.raises(ValueError, match="call it within"):
        make()(np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="more than can be summed exactly"):
        make().integers(2**41)
