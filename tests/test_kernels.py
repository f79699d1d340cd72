import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import FourierMap, kernels
from kme_jax._numerics.precision import float64
from tests import compiled

UNIT = [kernels.Gaussian(0.3), kernels.Laplacian(0.4), kernels.Matern32(1.5), kernels.Matern52(0.8)]
COMBINED = [UNIT[0] + UNIT[2], UNIT[1] * UNIT[3], (UNIT[0] + UNIT[1]) * UNIT[3] + UNIT[2]]
FORMULAS = {
    "Gaussian": lambda k, d: math.exp(-k.gamma * np.sum(d**2)),
    "Laplacian": lambda k, d: math.exp(-k.gamma * np.sum(np.abs(d))),
    "Matern32": lambda k, d: (
        (1 + math.sqrt(3) * np.linalg.norm(d) / k.length_scale)
        * math.exp(-math.sqrt(3) * np.linalg.norm(d) / k.length_scale)
    ),
    "Matern52": lambda k, d: (
        (1 + math.sqrt(5) * np.linalg.norm(d) / k.length_scale + 5 * d @ d / (3 * k.length_scale**2))
        * math.exp(-math.sqrt(5) * np.linalg.norm(d) / k.length_scale)
    ),
}


@pytest.mark.parametrize("kernel", UNIT, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("dim", [1, 3])
def test_two_point_form_is_the_formula(kernel, dim, rng):
    with float64():
        for _ in range(5):
            x, y = rng.normal(size=(2, dim))
            assert float(kernel(x, y)) == pytest.approx(FORMULAS[type(kernel).__name__](kernel, x - y), rel=1e-12)


@pytest.mark.parametrize("kernel", UNIT + COMBINED, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 5, 20])
@pytest.mark.parametrize("expand", [False, True])
def test_pairwise_matches_two_point_form(kernel, dim, expand, rng):
    with float64():
        x, y = rng.normal(size=(7, dim)), rng.normal(size=(4, dim))
        y[0] = x[0]
        each = compiled.one_by_one(kernel, x, y)
        np.testing.assert_allclose(compiled.pairwise(kernel, x, y, expand=expand), each, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(kernel.diagonal(x), kernel.diagonal_bound, rtol=1e-14)


def test_an_expanded_form_is_for_many_columns():
    gaussian, laplacian = kernels.Gaussian(1.0), kernels.Laplacian(1.0)
    assert not gaussian.expands(8)
    assert gaussian.expands(9)
    assert not laplacian.expands(100)
    assert (gaussian * laplacian).expands(9)


@pytest.mark.parametrize("kernel", UNIT + COMBINED, ids=str)
def test_positive_definite_nonnegative_and_bounded(kernel, rng):
    with float64():
        gram = np.asarray(compiled.pairwise(kernel, *[rng.normal(0, 2, size=(60, 2))] * 2))
    assert np.linalg.eigvalsh(gram).min() > -1e-12
    assert kernel.is_nonnegative
    assert gram.min() >= 0
    assert gram.max() <= kernel.diagonal_bound * (1 + 1e-12)


@pytest.mark.parametrize("kernel", UNIT + COMBINED, ids=str)
def test_spectral_sample_reproduces_the_kernel(kernel):
    x, y = np.float32([[0.3, -0.2, 0.5]]), np.float32([[-0.1, 0.4, 0.2]])
    frequencies = kernel.spectral_sample(jax.random.key(3), 400_000, 3)
    assert frequencies.dtype == jnp.float32
    values = kernel.diagonal_bound * jnp.cos(frequencies @ (x - y)[0])
    error = 4 * float(values.std()) / math.sqrt(values.size)
    assert float(values.mean()) == pytest.approx(float(kernel.pairwise(x, y)[0, 0]), abs=error)


@pytest.mark.parametrize("kernel", UNIT, ids=lambda k: type(k).__name__)
def test_gradient_is_finite_where_points_coincide(kernel):
    point = jnp.ones(2)
    assert np.isfinite(jax.jit(jax.grad(kernel))(point, point)).all()
    pairs = jax.jit(jax.grad(lambda x: kernel.pairwise(x, jnp.ones((1, 2))).sum()))(point[None])
    assert np.isfinite(pairs).all()


def test_parameters_are_dynamic():
    traces = []

    @jax.jit
    def evaluate(kernel, x):
        traces.append(1)
        return kernel.pairwise(x, x)

    for gamma in (0.1, 0.2, 0.7):
        evaluate(kernels.Gaussian(gamma), jnp.ones((2, 2)))
    assert len(traces) == 1


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_bad_parameters_are_refused(value):
    for kind, name in [(kernels.Gaussian, "gamma"), (kernels.Laplacian, "gamma"), (kernels.Matern32, "length_scale")]:
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            kind(value)


@pytest.mark.parametrize(
    "value", [np.float32(-1), jnp.asarray(-1.0), np.array(np.nan), np.int64(0), "0.1", np.array([1.0, 2.0]), True]
)
def test_parameters_that_are_not_python_floats_are_checked_too(value):
    with pytest.raises(ValueError, match="gamma must be positive"):
        kernels.Gaussian(value)


def test_parameters_adapt_to_the_points():
    assert kernels.Gaussian(np.float64(0.1)) == kernels.Gaussian(0.1)
    with float64():
        assert kernels.Gaussian(np.float64(0.1)).pairwise(*[np.ones((2, 1), np.float32)] * 2).dtype == np.float32
        assert kernels.Gaussian(np.float32(0.5)).pairwise(*[np.ones((2, 1))] * 2).dtype == np.float64


@pytest.mark.parametrize("kernel", UNIT, ids=lambda k: type(k).__name__)
def test_integers_do_not_wrap_around(kernel):
    x, y = np.uint8([[0, 3]]), np.uint8([[200, 1], [1, 2]])
    expected = kernel.pairwise(x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(kernel.pairwise(x, y), expected)
    np.testing.assert_allclose(kernel(x[0], y[1]), expected[0, 1], rtol=1e-6)


def test_a_kernel_without_spectral_measure_says_so():
    @dataclasses.dataclass(frozen=True)
    class Linear(kernels.Kernel):
        diagonal_bound = 1.0
        is_nonnegative = False

        def __call__(self, x, y):
            return x @ y

        def pairwise(self, x, y, *, expand=False):
            return x @ y.T

    for kernel in (Linear(), Linear() + UNIT[0], UNIT[0] * Linear()):
        with pytest.raises(ValueError, match="not shift-invariant"):
            kernel.spectral_sample(jax.random.key(0), 2, 2)


class TestGaussianSum:
    KERNEL = kernels.GaussianSum([[0.5, 0.0, 0.2], [0.1, 0.1, 0.1]], [1.0, 3.0])

    def test_is_the_sum(self, rng):
        with float64():
            x, y = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
            difference = np.square(x[:, None] - y[None])
            first = np.exp(-0.5 * difference[:, :, 0] - 0.2 * difference[:, :, 2])
            expected = 0.25 * first + 0.75 * np.exp(-0.1 * difference.sum(axis=2))
            np.testing.assert_allclose(self.KERNEL.pairwise(x, y), expected, rtol=1e-12)
            np.testing.assert_allclose(compiled.one_by_one(self.KERNEL, x, y), expected, rtol=1e-12)
        assert self.KERNEL.diagonal_bound == 1

    @pytest.mark.parametrize("normal", [jax.random.normal, kernels.orthogonal_normal])
    def test_spectral_sample_reproduces_the_kernel(self, normal):
        frequencies = self.KERNEL.spectral_sample(jax.random.key(3), 300_000, 3, normal=normal)
        for difference in np.float32([[0.4, -0.6, 0.3], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, -2.0]]):
            values = jnp.cos(frequencies @ difference)
            error = 4 * float(values.std()) / math.sqrt(values.size)
            assert float(values.mean()) == pytest.approx(float(self.KERNEL(difference, 0 * difference)), abs=error)

    def test_frequencies_of_different_blocks_are_independent(self):
        """Terms are drawn anew for every frequency: no more equal terms of neighbours than chance makes."""
        frequencies = np.asarray(self.KERNEL.spectral_sample(jax.random.key(5), 40_000, 3))
        first = frequencies[:, 1] == 0  # of the term that does not look at the second column
        assert first.mean() == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 40_000))
        both = first[1:] & first[:-1]
        assert both.mean() == pytest.approx(0.25**2, abs=5 * math.sqrt(0.06 / 40_000))

    def test_decreases_along_rays(self, rng):
        """What the diameter of many Fourier features relies on."""
        with float64():
            differences = rng.normal(0, 2, size=(200, 3))
            values = jax.jit(jax.vmap(lambda d: self.KERNEL(d, 0 * d)))
            at = [np.asarray(values(scale * differences)) for scale in (1, 2)]
        assert (at[1] >= 0).all()
        assert (at[1] <= at[0]).all()
        assert self.KERNEL.decreases_along_rays

    @pytest.mark.slow
    def test_a_map_of_many_frequencies_has_a_small_diameter(self, rng):
        for orthogonal in (False, True):
            found = FourierMap.from_kernel(jax.random.key(0), self.KERNEL, 20_000, 3, orthogonal=orthogonal)
            assert math.sqrt(2) < found.diameter < 1.75
            features = np.asarray(compiled.features(found, rng.normal(0, 20, size=(300, 3)).astype(np.float32)))
            assert np.sqrt(2 - 2 * (features @ features.T).min()) <= found.diameter

    def test_arrays_of_jax_are_checked_too(self):
        found = kernels.GaussianSum(jnp.full((2, 3), 0.5), jnp.asarray([1.0, 1.0]))
        np.testing.assert_array_equal(found.weights, [0.5, 0.5])
        assert float(found(jnp.zeros(3), jnp.zeros(3))) == found.diagonal_bound
        with pytest.raises(ValueError, match="gammas"):
            kernels.GaussianSum(jnp.asarray([[-1.0, 0.0]]))

    def test_parameters_are_dynamic(self):
        traces = []

        @jax.jit
        def evaluate(kernel, x):
            traces.append(1)
            return kernel(x, 0 * x)

        x = jnp.ones(3)
        for factor in (1.0, 2.0):
            kernel = kernels.GaussianSum(factor * self.KERNEL.gammas, self.KERNEL.weights)
            assert float(evaluate(kernel, x)) == pytest.approx(float(kernel(x, 0 * x)), rel=1e-6)
        assert len(traces) == 1

    def test_what_cannot_be_is_refused(self):
        for gammas in ([1.0], [[]], [[0.0, 0.0]], [[-1.0, 2.0]], [[np.inf, 1.0]]):
            with pytest.raises(ValueError, match="gammas"):
                kernels.GaussianSum(gammas)
        for weights in ([1.0], [0.0, 1.0], [np.nan, 1.0]):
            with pytest.raises(ValueError, match="weights"):
                kernels.GaussianSum([[1.0], [2.0]], weights)
        with pytest.raises(ValueError, match="columns"):
            self.KERNEL.spectral_sample(jax.random.key(0), 10, 2)
