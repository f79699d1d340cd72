import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from kme_jax import (
    FourierMap,
    Gaussian,
    GaussianSum,
    Laplacian,
    Matern32,
    Matern52,
    kernels,
    mean_embedding,
    mean_embedding_of_batches,
    pytree_dataclass,
)
from kme_jax._numerics.precision import float64, precision_of
from tests import compiled
from tests.far_waves import furthest_waves

UNIT = [Gaussian(0.3), Laplacian(0.4), Matern32(1.5), Matern52(0.8)]
KERNELS = [*UNIT, UNIT[0] + UNIT[2], (UNIT[0] + UNIT[1]) * UNIT[3] + UNIT[2]]
DTYPES = [np.float32, np.float64]


@functools.cache
def _large_map(kernel, orthogonal):
    """120 001 frequencies in 3 columns: the last block of orthogonal ones is cut short."""
    return FourierMap.from_kernel(jax.random.key(5), kernel, 2 * 120_001, 3, orthogonal=orthogonal)


def _given(kernel, turns, dtype=np.float64):
    """A map with given frequencies, where any will do."""
    with precision_of(np.empty(0, dtype)):
        return FourierMap(kernel, jnp.asarray(turns, dtype))


def _scaled(kernel, factor):
    """The kernel with γ (ℓ for Matérn) times a factor, in all its parts."""
    return jax.tree.map(lambda value: value * factor, kernel)


def _features(fourier, x):
    """ψ(x) as the map computes it, returned in float64."""
    with precision_of(fourier.turns):
        features = compiled.features(fourier, jnp.asarray(x, fourier.turns.dtype))
        assert features.dtype == fourier.turns.dtype
        return np.asarray(features, np.float64)


def test_no_kernel_of_the_library_is_forgotten_here():
    shift_invariant = kernels.UnitShiftInvariant
    found = {kind for kind in vars(kernels).values() if isinstance(kind, type) and issubclass(kind, shift_invariant)}
    found = {kind for kind in found if not kind.__name__.startswith("_")} - {shift_invariant}
    # A GaussianSum is for a number of columns of its own: tests/test_kernels.py.
    assert found == {type(kernel) for kernel in UNIT} | {kernels.GaussianSum}


@pytest.mark.parametrize("kernel", [UNIT[0], KERNELS[-1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_features_are_the_formula(kernel, dtype, rng):
    x = rng.normal(size=(60, 2)).astype(dtype)
    fourier = _given(kernel, rng.normal(size=(31, 2)), dtype)
    assert (fourier.num_features, fourier.dim) == (62, 2)
    angles = 2 * np.pi * x.astype(np.float64) @ np.asarray(fourier.turns, np.float64).T
    expected = math.sqrt(kernel.diagonal_bound / 31) * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(_features(fourier, x), expected, atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_has_norm_root_kappa(kernel, dtype, rng):
    """Far away the angle itself is known to no better than whole turns; the norm is exact all the same."""
    x = rng.normal(size=(60, 2)) * np.repeat([0, 1, 1e3, 1e7, 1e15, 1e30], 10)[:, None]
    for num_frequencies in (1, 31):
        squared = np.sum(_features(_given(kernel, rng.normal(size=(num_frequencies, 2)), dtype), x) ** 2, axis=1)
        np.testing.assert_allclose(squared, kernel.diagonal_bound, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("kernel", "orthogonal"),
    [
        (UNIT[0], False),
        pytest.param(UNIT[0], True, marks=pytest.mark.slow),
        pytest.param(KERNELS[-1], False, marks=pytest.mark.slow),
        pytest.param(KERNELS[-1], True, marks=pytest.mark.long),
        *(
            pytest.param(kernel, orthogonal, marks=pytest.mark.long)
            for kernel in UNIT[1:]
            for orthogonal in (False, True)
        ),
    ],
    ids=str,
)
def test_inner_products_are_unbiased(kernel, orthogonal):
    """Within 4 standard errors of k, and more than 6 away from k with γ or ℓ wrong by 10 %, so the test has power."""
    pairs = np.float32([[[0.5, -0.2, 0.3], [-0.2, 0.4, 0.1]], [[0, 1.1, 0], [0, 0.1, 0]], [[8.6, 8, 8], [8, 8.6, 8.6]]])
    features = _features(_large_map(kernel, orthogonal), pairs.reshape(-1, 3)).reshape(3, 2, 2, -1)
    for pair, (first, second) in zip(pairs.astype(np.float64), features, strict=True):
        products = np.sum(first * second, axis=0)
        estimate = products.sum()
        blocks = products[:-1].reshape(-1, 3).mean(axis=1) * len(products)  # these are independent of each other
        error = blocks.std() / math.sqrt(len(blocks))
        with float64():
            exact, *wrong = (float(_scaled(kernel, factor)(*pair)) for factor in (1, 0.9, 1.1))
        assert abs(estimate - exact) <= 4 * error
        assert min(abs(estimate - value) for value in wrong) > 6 * error


@pytest.mark.long
def test_orthogonal_frequencies_have_smaller_variance():
    """Yu et al. 2016, theorem 1: in 3 columns, and where k = 0.74, about a half of the variance."""
    variances = []
    for orthogonal in (False, True):
        features = _features(_large_map(UNIT[0], orthogonal), np.float32([[0, 0, 0], [1, 0, 0]]))
        products = np.sum((features[0] * features[1]).reshape(2, -1), axis=0)
        variances.append(products[:-1].reshape(-1, 3).sum(axis=1).var())
    assert variances[1] < 0.8 * variances[0]


def _cosines(blocks):
    """Between the frequencies of a block, but for each with itself: [..., k, d] -> [..., k, k]."""
    directions = blocks / np.linalg.norm(blocks, axis=-1, keepdims=True)
    return np.abs(directions @ np.swapaxes(directions, -1, -2) - np.eye(blocks.shape[-2]))


@pytest.mark.long
@pytest.mark.parametrize("kernel", [UNIT[0], UNIT[2], UNIT[3]], ids=str)
def test_blocks_of_frequencies_are_orthogonal(kernel):
    turns, plain = (np.asarray(_large_map(kernel, orthogonal).turns, np.float64) for orthogonal in (True, False))
    assert _cosines(turns[:-1].reshape(-1, 3, 3)).max() <= 1e-5
    assert _cosines(turns[1:].reshape(-1, 3, 3)).max() > 0.9  # blocks are independent of each other
    assert _cosines(plain[:-1].reshape(-1, 3, 3)).max() > 0.9


@pytest.mark.long
def test_fewer_orthogonal_frequencies_than_columns_in_float64():
    fourier = FourierMap.from_kernel(jax.random.key(3), UNIT[0], 6, 4, orthogonal=True, dtype=np.float64)
    assert (fourier.turns.shape, fourier.turns.dtype) == ((3, 4), np.float64)
    assert _cosines(np.asarray(fourier.turns)).max() <= 1e-14


@pytest.mark.long
def test_every_part_of_a_kernel_has_orthogonal_frequencies():
    shapes = []

    def normal(key, shape, dtype):
        shapes.append(shape)
        return jnp.ones(shape, dtype)

    ((UNIT[0] + UNIT[1]) * UNIT[0]).spectral_sample(jax.random.key(0), 6, 3, np.float32, normal=normal)
    assert shapes == [(6, 3)] * 3


def _check_distribution(sample, distribution, wrong):
    """Kolmogorov–Smirnov; a scale that is ``wrong`` times too large or too small would be found."""
    p, *wrong_p = (
        scipy.stats.kstest(sample * s, distribution.cdf, method="asymp").pvalue for s in (1, wrong, 1 / wrong)
    )
    assert p > 1e-3
    assert max(wrong_p) < 1e-3


@pytest.mark.parametrize(
    ("kernel", "unit", "coordinate", "squared_norm", "orthogonal"),
    [
        pytest.param(*case[1:], orthogonal, id=f"{case[0]}-{orthogonal}", marks=mark)
        for case in [
            ("Gaussian", Gaussian(0.3), math.sqrt(0.6), scipy.stats.norm(), scipy.stats.chi2(3)),
            ("Laplacian", Laplacian(0.4), 0.4, scipy.stats.cauchy(), None),
            ("Matern32", Matern32(1.5), 1 / 1.5, scipy.stats.t(3), scipy.stats.f(3, 3, scale=3)),
            ("Matern52", Matern52(0.8), 1 / 0.8, scipy.stats.t(5), scipy.stats.f(3, 5, scale=3)),
        ]
        for orthogonal, mark in ((False, () if case[0] == "Gaussian" else pytest.mark.slow), (True, pytest.mark.long))
    ],
)
def test_frequencies_have_the_spectral_measure(kernel, unit, coordinate, squared_norm, orthogonal):
    """Several places in a block and columns, and (elliptical ones) the norm, against the law in closed form."""
    turns = np.asarray(_large_map(kernel, orthogonal).turns, np.float64)
    frequencies = 2 * np.pi * turns[:-1].reshape(-1, 3, 3) / unit  # [block, place, column]
    wrong = math.sqrt(1.1) if isinstance(kernel, Gaussian) else 1.1  # γ, or ℓ, by 10 %
    for place, column in [(0, 0), (0, 2), (2, 1)]:
        _check_distribution(frequencies[:, place, column], coordinate, wrong)
    if squared_norm is None:  # its columns are independent
        assert abs(scipy.stats.spearmanr(np.abs(frequencies[:, 0, 0]), np.abs(frequencies[:, 0, 1])).statistic) < 0.02
    else:
        _check_distribution(np.sum(frequencies[:, 1] ** 2, axis=1), squared_norm, wrong**2)


@pytest.mark.long
def test_lengths_of_orthogonal_gaussian_frequencies_are_chi():
    """Lengths within a block are independent of each other, as those of independent normal rows are."""
    turns = np.asarray(_large_map(UNIT[0], True).turns, np.float64)
    lengths = 2 * np.pi * np.linalg.norm(turns, axis=1) / math.sqrt(0.6)
    _check_distribution(lengths, scipy.stats.chi(3), math.sqrt(1.1))
    first, second, _ = lengths[:-1].reshape(-1, 3).T
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(len(first))


@pytest.mark.long
def test_orthogonal_gaussian_frequencies_in_one_column_are_normal():
    fourier = FourierMap.from_kernel(jax.random.key(13), UNIT[0], 2 * 60_000, 1, orthogonal=True)
    frequencies = 2 * np.pi * np.asarray(fourier.turns, np.float64)[:, 0] / math.sqrt(0.6)
    _check_distribution(frequencies, scipy.stats.norm(), math.sqrt(1.1))


def _furthest_pair_found(fourier, rng, *, spread):
    """Adversarial search: gradient ascent on ‖ψ(x) − ψ(x′)‖ from 300 pairs.

    The kernel decides a factor of ψ only. So all kernels share the program of one.
    """
    with float64():
        pairs = rng.normal(0, spread, size=(300, 2, fourier.dim))
        distances = _ascend(FourierMap(UNIT[0], jnp.asarray(fourier.turns)), pairs)
        return math.sqrt(fourier.kernel.diagonal_bound) * float(np.max(distances))


@jax.jit
def _ascend(fourier, pairs):
    def distance(pair):
        features = fourier(pair)
        return jnp.linalg.norm(features[0] - features[1])

    def ascend(pair):
        def step(i, state):
            pair, best = state
            value, gradient = jax.value_and_grad(distance)(pair)
            length = 0.5 * 0.98**i
            return pair + length * gradient / (1e-6 + jnp.linalg.norm(gradient)), jnp.maximum(best, value)

        return jax.lax.fori_loop(0, 400, step, (pair, 0.0))[1]

    return jax.lax.map(ascend, pairs, batch_size=20)


@pytest.mark.parametrize(
    ("kernel", "num_frequencies", "dim"),
    [
        (UNIT[0], 1, 1),
        pytest.param(UNIT[1], 8, 8, marks=pytest.mark.slow),
        pytest.param(KERNELS[4], 3, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_few_given_frequencies_reach_the_diameter(kernel, num_frequencies, dim, rng):
    fourier = _given(kernel, 0.2 * rng.normal(size=(num_frequencies, dim)))
    assert fourier.diameter == fourier.published_diameter == 2 * math.sqrt(kernel.diagonal_bound)
    found = _furthest_pair_found(fourier, rng, spread=8)
    assert found <= fourier.diameter * (1 + 1e-14)
    assert found >= 0.99 * fourier.diameter  # approached, so √2 would be wrong although k ≥ 0


@pytest.mark.parametrize(
    ("kernel", "dtype", "dim", "num_features"),
    [
        (UNIT[0], np.float32, 2, 8),
        pytest.param(UNIT[0], np.float32, 2, 32, marks=pytest.mark.slow),
        pytest.param(KERNELS[4], np.float32, 5, 32, marks=pytest.mark.slow),
        pytest.param(UNIT[1], np.float32, 20, 32, marks=pytest.mark.slow),
        pytest.param(UNIT[0], np.float32, 2, 48, marks=pytest.mark.slow),
        pytest.param(UNIT[0], np.float64, 2, 32, marks=pytest.mark.slow),
        pytest.param(UNIT[0], np.float64, 2, 128, marks=pytest.mark.long),
        pytest.param(UNIT[0], np.float32, 5, 128, marks=pytest.mark.long),
        pytest.param(UNIT[2], np.float32, 20, 128, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_more_frequencies_reach_the_diameter_with_rows_that_are_far_away(kernel, dtype, dim, num_features):
    """By lattice reduction, within 5 %, in floats up to their rounding, and in integers: see ``tests/far_waves.py``."""
    fourier = FourierMap.from_kernel(jax.random.key(0), kernel, num_features, dim, dtype=dtype)
    assert fourier.diameter == 2 * math.sqrt(kernel.diagonal_bound)
    rows, found = furthest_waves(fourier)
    assert 0.95 * fourier.diameter < found <= fourier.diameter * (1 + 2 * np.finfo(dtype).eps)
    if dtype == np.float32:
        integers = fourier.integers(1)
        first, second = (integers.sum(row[None], [True]).astype(float) for row in rows)
        assert 0.95 * integers.diameter < np.linalg.norm(first - second) <= integers.diameter


@pytest.mark.parametrize(
    ("kernel", "dim", "orthogonal"),
    [
        (UNIT[0], 1, False),
        pytest.param(UNIT[0], 1, True, marks=pytest.mark.slow),
        pytest.param(UNIT[1], 1, False, marks=pytest.mark.slow),
        pytest.param(UNIT[1], 1, True, marks=pytest.mark.long),
        pytest.param(KERNELS[-1], 2, False, marks=pytest.mark.long),
        pytest.param(KERNELS[-1], 2, True, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_no_pair_of_rows_is_further_apart_than_the_smaller_diameter_of_many_frequencies(kernel, dim, orthogonal, rng):
    fourier = FourierMap.from_kernel(jax.random.key(3), kernel, 1000, dim, orthogonal=orthogonal, dtype=np.float64)
    root_two_kappa = math.sqrt(2 * kernel.diagonal_bound)
    assert fourier.diameter < fourier.published_diameter * 0.95
    found = _furthest_pair_found(fourier, rng, spread=30)
    assert root_two_kappa * 1.02 < found < fourier.diameter
    assert (fourier.diameter - root_two_kappa) < 4 * (found - root_two_kappa)  # and not by much


@pytest.mark.parametrize(
    "num_draws", [pytest.param(3, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.long)]
)
def test_the_least_cosine_holds_for_many_draws_over_a_long_line(num_draws):
    differences = np.linspace(0, 3000, 30_001)[:, None]  # in spacings of 0.1, at a length scale of 1
    for seed in range(num_draws):
        fourier = FourierMap.from_kernel(jax.random.key(seed), Gaussian(0.5), 1000, 1)
        assert fourier.radius > 3000
        cosines = np.cos(2 * np.pi * differences @ np.asarray(fourier.turns, np.float64).T).mean(axis=1)
        assert fourier.least_cosine < cosines.min() < 0.2 * fourier.least_cosine


@pytest.mark.slow
def test_more_frequencies_have_a_smaller_diameter_and_too_few_the_trivial_one():
    maps = [FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 2 * 10**p, 2) for p in range(1, 6)]
    diameters = [fourier.diameter for fourier in maps]
    assert diameters[0] == 2
    assert maps[0].radius == math.inf
    assert all(a >= b for a, b in itertools.pairwise(diameters))
    assert math.sqrt(2) < diameters[-1] < 1.45
    blocks = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 20_000, 2, orthogonal=True)
    assert blocks.least_cosine < maps[3].least_cosine  # fewer independent draws


def test_a_kernel_that_may_increase_along_a_ray_has_the_trivial_diameter():
    class Waves(Gaussian):
        """Says nothing of rays, as a kernel of somebody's own."""

        decreases_along_rays = False

    assert FourierMap.from_kernel(jax.random.key(0), Waves(0.5), 20_000, 1).diameter == 2
    assert FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 20_000, 1).diameter < 1.5


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_kernels_decrease_along_rays(kernel, rng):
    assert kernel.decreases_along_rays
    directions = rng.normal(size=(500, 3)) * rng.exponential(size=(500, 1))
    with float64():
        values = jax.jit(jax.vmap(kernel, (0, None)))
        near, far = (np.asarray(values(scale * directions, np.zeros(3))) for scale in (1, 2))
    assert (far >= 0).all()
    assert (far <= near).all()


def test_rows_beyond_the_radius_count_as_zero():
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 2000, 1)
    inside, outside = [[0.0], [0.999 * fourier.radius]], [[0.0], [1.001 * fourier.radius]]
    assert fourier.row_bound == fourier.radius
    zero = compiled.features(fourier, np.zeros((1, 1), np.float32))[0]
    lengths = [np.linalg.norm(mean_embedding(fourier, rows).coordinates - 0.5 * zero)
               for rows in (inside, outside)]  # fmt: skip
    np.testing.assert_allclose(lengths, [0.5, 0], atol=1e-6)


@pytest.mark.parametrize("kernel", [UNIT[0], UNIT[0] + UNIT[2]], ids=str)
@pytest.mark.parametrize(("dtype", "slack"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_replacing_one_row_moves_the_mean_by_at_most_the_sensitivity(kernel, dtype, slack, rng):
    fourier = _given(kernel, rng.normal(size=(4, 4)), dtype)
    rows = rng.normal(size=(20, 4))
    mean = mean_embedding(fourier, rows).coordinates
    opposite = np.linalg.solve(np.asarray(fourier.turns, np.float64), np.full(4, 0.5))  # half a turn of every frequency
    moves = []
    for replacement in (rows[4] + opposite, rows[3], np.full(4, 1e9), [np.nan, 0, 0, 0], np.full(4, -np.inf)):
        changed = rows.copy()
        changed[4] = replacement
        moves.append(np.linalg.norm(mean_embedding(fourier, changed).coordinates - mean))
    sensitivity = fourier.diameter / 20
    assert max(moves) <= sensitivity * (1 + slack)
    assert moves[0] >= sensitivity * (1 - slack)  # attained
    assert moves[-2:] == pytest.approx([sensitivity / 2] * 2, rel=slack)  # the zero vector is half as far
    assert min(moves) > 0


@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 2e-6), pytest.param(np.float64, 1e-14, marks=pytest.mark.slow)]
)
def test_the_embedding_is_the_mean_of_the_features_in_memory_and_streamed(dtype, error, rng):
    fourier = _given(KERNELS[-1], rng.normal(size=(25, 3)), dtype)
    rows = rng.normal(size=(803, 3)).astype(dtype)
    whole = mean_embedding(fourier, rows)
    np.testing.assert_allclose(whole.coordinates, _features(fourier, rows).mean(axis=0), rtol=0, atol=error)
    cuts = [0, 5, 5, 400, 803]  # one batch is empty
    streamed = mean_embedding_of_batches(fourier, (rows[a:b] for a, b in itertools.pairwise(cuts)))
    np.testing.assert_allclose(streamed.coordinates, whole.coordinates, rtol=0, atol=error)
    assert streamed.num_rows == whole.num_rows == 803


@pytest.mark.filterwarnings("error")  # a warning would depend on the values of private rows, too
@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 1e-6), pytest.param(np.float64, 1e-15, marks=pytest.mark.slow)]
)
def test_a_row_that_is_missing_or_huge_counts_and_contributes_zero(dtype, error, rng):
    fourier = _given(KERNELS[4], rng.normal(size=(5, 2)), dtype)
    rows = rng.normal(size=(12, 2))
    bad = [[np.nan, 0], [0, np.inf], [-np.inf, np.nan], [0, np.finfo(np.float64).max], [-1.01 * fourier.row_bound, 0]]
    broken = rows.copy()
    broken[[1, 4, 5, 8, 11]] = bad
    kept = mean_embedding(fourier, np.delete(rows, [1, 4, 5, 8, 11], axis=0)).coordinates
    np.testing.assert_allclose(mean_embedding(fourier, broken).coordinates, kept * 7 / 12, rtol=0, atol=error)
    np.testing.assert_array_equal(mean_embedding(fourier, np.array(bad)).coordinates, np.zeros(10))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-3, 0.4, 1, 30, 1e10])
@pytest.mark.parametrize("dim", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_up_to_the_row_bound_have_finite_features(size, dim, dtype, rng):
    """The bound is taken in the directions that make the largest angles. 4 times an angle must not overflow either."""
    turns = size * rng.uniform(-1, 1, size=(20, dim))
    turns[0] = size
    fourier = _given(KERNELS[4], turns, dtype)
    for row in np.sign([turns[0], -turns[0], turns[1], -turns[1]]):
        coordinates = mean_embedding(fourier, fourier.row_bound * row[None]).coordinates
        assert np.linalg.norm(coordinates) == pytest.approx(math.sqrt(2), rel=1e-6)


def test_bad_arguments_are_refused():
    for num_features in (-2, 0, 1, 3, 101):
        with pytest.raises(ValueError, match=rf"^num_features must be even and at least 2 .*, got {num_features}$"):
            FourierMap.from_kernel(jax.random.key(0), UNIT[0], num_features, 2)
    for dim in (0, -1):
        with pytest.raises(ValueError, match=rf"^dim must be at least 1, got {dim}$"):
            FourierMap.from_kernel(jax.random.key(0), UNIT[0], 4, dim)


@dataclasses.dataclass(frozen=True)
class _Linear(kernels.Kernel):
    """xᵀy, which is not shift-invariant."""

    diagonal_bound = math.inf
    is_nonnegative = False

    def __call__(self, x, y):
        return x @ y

    def pairwise(self, x, y, *, expand=False):
        return x @ y.T


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize(
    "kernel", [_Linear(), _Linear() + UNIT[0], UNIT[0] * _Linear()], ids=lambda k: type(k).__name__
)
def test_a_kernel_without_spectral_measure_is_refused_in_one_line(kernel, orthogonal):
    with pytest.raises(ValueError, match=rf"^{type(kernel).__name__} is not shift-invariant, or .*") as error:
        FourierMap.from_kernel(jax.random.key(0), kernel, 4, 2, orthogonal=orthogonal)
    assert "\n" not in str(error.value)


def test_frequencies_come_from_the_key_alone():
    def turns(seed, **options):
        return np.asarray(FourierMap.from_kernel(jax.random.key(seed), UNIT[0], 12, 3, **options).turns)

    np.testing.assert_array_equal(turns(0), turns(0))
    assert np.abs(turns(0) - turns(1)).min() > 0
    with float64():  # no dependence on the caller's float64 setting
        np.testing.assert_array_equal(turns(0), FourierMap.from_kernel(jax.random.key(0), UNIT[0], 12, 3).turns)


def test_a_length_is_that_of_columns_that_are_not_ignored():
    """Most frequencies of this kernel are 0. Optimisers of points take steps of this length."""
    kernel = GaussianSum([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]])
    features = FourierMap.from_kernel(jax.random.key(0), kernel, 1000, dim=3)
    assert (features.turns == 0).mean() > 0.5
    assert features.length_scale == pytest.approx(1.0, rel=0.2)


def test_a_map_is_a_pytree_and_new_frequencies_do_not_recompile(rng):
    traces = []

    @jax.jit
    def evaluate(fourier, x):
        traces.append(1)
        return fourier(x)

    x = rng.normal(size=(5, 3)).astype(np.float32)
    for seed, gamma in enumerate((0.1, 0.2, 0.7)):
        fourier = FourierMap.from_kernel(jax.random.key(seed), Gaussian(gamma), 12, 3)
        np.testing.assert_allclose(evaluate(fourier, x), compiled.features(fourier, x), atol=1e-6)
    assert len(traces) == 1


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _OtherFrequencies(Gaussian):
    """A Gaussian kernel with frequencies of another one: a mistake by a factor, such as 2π."""

    factor: float = 1.0

    def spectral_sample(self, key, num_frequencies, dim, dtype=None, **options):
        return self.factor * super().spectral_sample(key, num_frequencies, dim, dtype, **options)


@pytest.mark.parametrize("orthogonal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_frequencies_that_contradict_the_kernel_are_refused(orthogonal):
    for factor in (2 * np.pi, 1 / (2 * np.pi)):
        with pytest.raises(ValueError, match=r"mean cosine .* where the kernel is"):
            FourierMap.from_kernel(jax.random.key(0), _OtherFrequencies(0.5, factor), 2000, 3, orthogonal=orthogonal)
    for seed in range(20):
        FourierMap.from_kernel(jax.random.key(seed), _OtherFrequencies(0.5), 2000, 3, orthogonal=orthogonal)
