import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from kme_jax import (
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
    spectral_map,
)
from kme_jax._numerics.faddeeva import normal_tail
from kme_jax._numerics.precision import float64
from kme_jax.nonprivate import Reference
from tests import compiled

KERNEL = Gaussian(0.5)  # ℓ = 1
BOXES = [([-4.0], [9.0]), ([-3.0, 1.0], [3.0, 11.0]), ([0.0, -1.0, 2.0], [2.0, 1.0, 5.0])]


def _map(box, **options):
    return LatticeMap.from_box(KERNEL, *map(np.array, box), 10_000, **options)


def _features(lattice, x):
    with float64():
        return np.asarray(compiled.features(lattice, jnp.asarray(x)))


@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 3e-5), pytest.param(np.float64, 2e-6, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("box", [*BOXES[:2], pytest.param(BOXES[2], marks=pytest.mark.long)], ids=str)
def test_inner_products_are_the_kernel_in_the_box(box, dtype, error, rng):
    lattice = _map(box, dtype=dtype)
    x, y = rng.uniform(*box, (40, len(box[0]))), rng.uniform(*box, (50, len(box[0])))
    found = _features(lattice, x) @ _features(lattice, y).T
    with float64():
        expected = np.asarray(compiled.pairwise(KERNEL, x, y))
    np.testing.assert_allclose(found, expected, atol=error)


def test_amplitudes_are_the_fourier_coefficients_of_the_periodic_kernel():
    lattice = _map(BOXES[1], dtype=np.float64)
    first, second = lattice.periods
    grid = np.stack(np.meshgrid(*[np.arange(64) / 64 * period for period in (first, second)], indexing="ij"), axis=-1)
    images = [np.array(n) * (first, second) for n in itertools.product(range(-3, 4), repeat=2)]
    periodic = sum(np.exp(-0.5 * np.sum((grid + image) ** 2, axis=-1)) for image in images)
    coefficients = np.fft.fft2(periodic).real / 64**2
    twice = np.where(np.any(lattice.indices, axis=1), 2, 1)
    expected = twice * coefficients[lattice.indices[:, 0], lattice.indices[:, 1]]
    np.testing.assert_allclose(np.square(lattice.amplitudes), expected, rtol=1e-8, atol=1e-12)
    assert lattice.total_mass == pytest.approx(periodic[0, 0], abs=1e-12)
    assert np.sum(expected) == pytest.approx(1, abs=2e-6)


def test_one_of_each_frequency_and_its_opposite_the_heaviest_first():
    lattice = _map(BOXES[2])
    seen = {tuple(n) for n in lattice.indices.tolist()}
    assert len(seen) == len(lattice.indices)
    assert not {tuple(-np.array(n)) for n in seen if any(n)} & seen
    assert (0, 0, 0) in seen
    assert (np.diff(lattice.amplitudes) <= 0).all()


@pytest.mark.parametrize("num_features", [58, 10_000])
def test_no_pair_of_rows_is_further_apart_than_the_diameter(num_features, rng):
    """Anywhere, also where few features leave out some of the mass; and nearly as far there is one."""
    lattice = LatticeMap.from_box(KERNEL, [-20.0], [20.0], num_features, dtype=np.float64)
    x = np.linspace(-lattice.periods[0] / 2, lattice.periods[0] / 2, 4001)[:, None]
    features = _features(lattice, np.concatenate([np.zeros((1, 1)), x, 1e6 * rng.normal(size=(1000, 1))]))
    distances = np.linalg.norm(features - features[0], axis=1)  # by shift invariance from one point to all
    largest = max(distances.max(), np.linalg.norm(features, axis=1).max())
    assert 0.9999 * lattice.diameter < largest <= lattice.diameter * (1 + 1e-12)
    assert lattice.diameter == pytest.approx(math.sqrt(2), rel=1e-6)
    assert lattice.failure_probability == 0
    assert lattice.certain_diameter == lattice.diameter


def test_float32_rounding_is_in_the_diameter():
    narrow, wide = (_map(BOXES[1], dtype=dtype).diameter for dtype in (np.float64, np.float32))
    assert narrow * (1 + 30 * 2**-24) < wide < narrow * (1 + 1e-4)


@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float32, 1e-5), pytest.param(np.float64, 1e-12, marks=pytest.mark.slow)]
)
def test_the_embedding_is_the_mean_of_the_features_and_rows_outside_count_as_zero(dtype, error, rng):
    box = BOXES[1]
    lattice = _map(box, dtype=dtype)
    inside = rng.uniform(*box, (300, 2))
    outside = np.array([[np.nan, 2], [np.inf, 2], [3.01, 2], [0, 0.99], [-1e300, 2], [0, 11.01]])
    embedding = mean_embedding(lattice, np.concatenate([inside, outside]))
    assert embedding.num_rows == 306
    np.testing.assert_allclose(embedding.coordinates, _features(lattice, inside).sum(axis=0) / 306, atol=error)


@pytest.mark.parametrize(
    "box",
    [BOXES[0], pytest.param(BOXES[1], marks=pytest.mark.slow), pytest.param(BOXES[2], marks=pytest.mark.long)],
    ids=lambda box: f"d{len(box[0])}",
)
def test_waves_of_a_mixture_are_the_mean_of_the_features_of_its_draws(box, rng):
    """Points: exactly; normal distributions: against many draws. In coordinates of our own."""
    lattice, dim = _map(box), len(box[0])
    centre, length = np.array(box[0]) + 0.7, 0.8
    waves = lattice.waves(centre, length)
    z, weights, widths = rng.uniform(0, 1, (4, dim)), np.array([0.2, 0.4, 0.3, 0.1]), np.array([0.4, 0.1])
    points = _features(lattice, centre + length * z)
    single = [jnp.asarray(value, jnp.float32) for value in (z, weights)]
    np.testing.assert_allclose(np.asarray(jax.jit(waves.mixture)(*single)), weights @ points, atol=3e-6)
    draws = (centre + length * z)[:, None] + length * np.repeat(widths, 2)[:, None, None] * rng.normal(
        size=(4, 20_000, dim)
    )
    means = np.stack([_features(lattice, some).mean(axis=0) for some in draws])
    parts = (*single, jnp.asarray(widths, jnp.float32))
    found = np.asarray(jax.jit(waves.mixtures)(*parts))
    together = np.asarray(jax.jit(lambda *parts: waves.features(waves.table_of_normals(*parts)))(*parts))
    np.testing.assert_allclose(together, found.sum(axis=0), atol=3e-6)
    for group in (0, 1):  # the first two centres, and the others
        members = slice(2 * group, 2 * group + 2)
        assert np.linalg.norm(found[group] - weights[members] @ means[members]) < 3 / math.sqrt(20_000)


@pytest.mark.parametrize("dim", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.long)])
def test_waves_of_a_cut_mixture_are_those_of_draws_that_are_moved_to_the_bounds(dim, rng):
    """Centres are inside, on a bound and beyond one. Widths are narrow, middle and wide."""
    lower, upper = np.zeros(dim), np.linspace(1.0, 1.5, dim)
    lattice, centre, length = LatticeMap.from_box(Gaussian(20.0), lower, upper, 400), np.full(dim, 0.3), 0.2
    waves = lattice.waves(centre, length)
    cut = waves.cut_at((lower - centre) / length, (upper - centre) / length)
    z, weights, widths = rng.uniform(-0.3, 1.6, (9, dim)), rng.dirichlet(np.ones(9)), np.array([1e-4, 0.05, 0.6])
    z[0], z[4, 0] = 0.0, 1.0
    directions = scipy.stats.norm.ppf(scipy.stats.qmc.Sobol(dim, rng=rng).random(1 << 14))
    draws = [np.clip(z[k] + widths[k // 3] * directions, lower, upper) for k in range(9)]
    expected = sum(weight * _features(lattice, some).mean(axis=0) for weight, some in zip(weights, draws, strict=True))
    parts = [jnp.asarray(part, jnp.float32) for part in ((z - centre) / length, weights, widths / length)]
    np.testing.assert_allclose(
        np.asarray(jax.jit(lambda *parts: cut.features(cut.table_of_normals(*parts)))(*parts)), expected, atol=2e-4
    )
    inside = [jnp.full((3, dim), 0.5), jnp.full(3, 1 / 3), jnp.full(3, 0.05)]  # far from all bounds
    tables = [np.asarray(jax.jit(some.table_of_normals)(*inside)) for some in (waves, cut)]
    np.testing.assert_allclose(*tables, atol=1e-6)


def test_tails_of_normal_waves_and_their_gradients():
    """Against SciPy's complex function, and finite differences of it."""
    start, frequency = (part.ravel() for part in np.meshgrid(np.geomspace(1e-3, 30, 25), np.linspace(-40, 40, 61)))

    def exact(a, v):
        return 0.5 * np.exp(-(a**2) / 2) * scipy.special.wofz((-v + 1j * a) / math.sqrt(2))

    parts = [jnp.asarray(part, jnp.float32) for part in (start, frequency)]
    real, imag = jax.jit(normal_tail)(*parts)
    expected = exact(start, frequency)
    np.testing.assert_allclose(np.asarray(real) + 1j * np.asarray(imag), expected, atol=1e-6)
    slopes = jax.jit(jax.grad(lambda a, v: sum(jnp.sum(part) for part in normal_tail(a, v)), argnums=(0, 1)))(*parts)
    for slope, (da, dv) in zip(slopes, ((1e-5, 0), (0, 1e-5)), strict=True):
        change = (exact(start + da, frequency + dv) - exact(start - da, frequency - dv)) / 2e-5
        np.testing.assert_allclose(np.asarray(slope), change.real + change.imag, atol=2e-5)


def test_free_and_lattice_waves_agree_for_the_same_frequencies(rng):
    lattice = _map(BOXES[1])
    omega = 2 * np.pi * lattice.indices / lattice.periods
    centres = rng.normal(size=(4, 2))
    angles = (centres - lattice.centre) @ omega.T
    expected = np.concatenate([(lattice.amplitudes * f(angles)).mean(axis=0) for f in (np.cos, np.sin)])
    mixture = jax.jit(lattice.waves(np.zeros(2), 1.0).mixture)
    found = mixture(jnp.asarray(centres, jnp.float32), jnp.full(4, 0.25, jnp.float32))
    np.testing.assert_allclose(np.asarray(found), expected, atol=3e-6)


@pytest.mark.long
def test_the_posterior_mean_of_lattice_features(rng):
    """Far from the origin; the distance in features is the distance in the Hilbert space."""
    centres = np.array([[1002.0, -501.0], [997.0, -499.5]])
    rows = centres[rng.choice(2, 20_000, p=[0.7, 0.3])] + rng.normal(0, 0.3, (20_000, 2))
    proposal = NormalProposal.create(np.array([1000.0, -500.0]), 3.0)
    lattice = spectral_map(jax.random.key(0), KERNEL, proposal)
    assert isinstance(lattice, LatticeMap)
    embedding = mean_embedding(lattice, rows)
    noisy = perturb(jax.random.key(1), embedding, PrivacyBudget(0.1, 1e-6))
    mean, report = posterior_mean(jax.random.key(2), noisy, proposal, num_atoms=20, num_trajectories=8, num_leaps=15)
    assert report.converged
    noise = np.linalg.norm(noisy.coordinates - embedding.coordinates)
    error = np.linalg.norm(mean.coordinates - embedding.coordinates)
    assert error < 0.2 * noise
    sample, _ = represent(mean, 200)
    assert Reference.from_rows(KERNEL, rows).distance(sample.points, sample.weights) == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize(
    ("kernel", "scale", "num_features", "expected"),
    [
        (KERNEL, [4.0, 4.0], 10_000, LatticeMap),
        (KERNEL, [4.0], 200, LatticeMap),
        pytest.param(KERNEL, [4.0, 4.0], 2000, FourierMap, marks=pytest.mark.slow),  # too few
        (KERNEL, [4.0, 4.0, 4.0], 10_000, FourierMap),  # too many columns
        (KERNEL, [1e9], 10_000, FourierMap),
        (Laplacian(1.0), [4.0], 10_000, FourierMap),
    ],
)
def test_what_is_public_chooses_the_map(kernel, scale, num_features, expected):
    proposal = NormalProposal.create(np.zeros(len(scale)), np.array(scale))
    if scale == [1e9]:
        with pytest.raises(ValueError, match="count as zero"):
            spectral_map(jax.random.key(0), kernel, proposal, num_features)
        return
    found = spectral_map(jax.random.key(0), kernel, proposal, num_features)
    assert isinstance(found, expected)
    assert found.num_features <= num_features


def test_rows_on_a_bound_are_in():
    lower, upper = np.array([0.1, -0.7]), np.array([0.3, 1e6])
    lattice = LatticeMap.from_box(Gaussian(1e-11), lower, upper)
    corners = np.stack([lower, upper])
    assert lattice.covers(corners).all()
    assert lattice.covers(corners.astype(np.float32)).all()
    assert (lattice.half_widths < lattice.periods / 2).all()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="needs a Gaussian kernel, got Laplacian"):
        LatticeMap.from_box(Laplacian(1.0), [0.0], [1.0])
    for num_features in (0, 1, 7):
        with pytest.raises(ValueError, match="must be even and at least 2"):
            LatticeMap.from_box(KERNEL, [0.0], [1.0], num_features)
        with pytest.raises(ValueError, match="must be even and at least 2"):
            spectral_map(jax.random.key(0), KERNEL, NormalProposal.create(np.zeros(1), 1.0), num_features)
    assert not LatticeMap.fits(KERNEL, [1e17], [1e17])
    with pytest.raises(ValueError, match="dtype must be float32 or float64"):
        LatticeMap.from_box(KERNEL, [0.0], [1.0], dtype=np.float16)
    with pytest.raises(ValueError, match=r"expected shapes \[d\] and \[d\]"):
        LatticeMap.from_box(KERNEL, [0.0], [1.0, 2.0])
    for lower, upper in (([1.0], [1.0]), ([np.nan], [1.0]), ([-1e308], [1e308])):
        with pytest.raises(ValueError, match="finite and below its upper bound"), np.errstate(over="ignore"):
            LatticeMap.from_box(KERNEL, lower, upper)
    with pytest.raises(ValueError, match="too large for a lattice of 100 features"):
        LatticeMap.from_box(KERNEL, [-20.0, -20.0], [20.0, 20.0], 100)
