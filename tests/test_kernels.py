import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import FourierMap, kernels
from kme_jax._numerics.precision import float64
from kme_jax.kernels import Kernel
from kme_jax.storage import codec
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


@pytest.mark.parametrize("dim", [1, 3])
def test_two_point_form_is_the_formula(dim, rng):
    with float64():
        x, y = rng.normal(size=(2, 5, dim))
        for kernel, values in zip(UNIT, compiled.one_by_one_of_each(UNIT, x, y), strict=True):
            formula = FORMULAS[type(kernel).__name__]
            expected = [[formula(kernel, one - other) for other in y] for one in x]
            np.testing.assert_allclose(values, expected, rtol=1e-12, err_msg=str(kernel))


@pytest.mark.parametrize(
    "dim", [pytest.param(1, marks=pytest.mark.long), 20]
)  # with few columns, and with so many that a form can be expanded
@pytest.mark.parametrize("expand", [pytest.param(False, marks=pytest.mark.long), True])
def test_pairwise_matches_two_point_form(dim, expand, rng):
    every = UNIT + COMBINED
    with float64():
        x, y = rng.normal(size=(7, dim)), rng.normal(size=(4, dim))
        y[0] = x[0]
        pairs = compiled.pairwise_of_each(every, x, y, expand=expand)
        diagonals = jax.jit(lambda kernels, x: [kernel.diagonal(x) for kernel in kernels])(every, x)
        for kernel, values, expected, diagonal in zip(
            every, pairs, compiled.one_by_one_of_each(every, x, y), diagonals, strict=True
        ):
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-14, err_msg=str(kernel))
            np.testing.assert_allclose(diagonal, kernel.diagonal_bound, rtol=1e-14, err_msg=str(kernel))


def test_an_expanded_form_is_for_many_columns():
    gaussian, laplacian = kernels.Gaussian(1.0), kernels.Laplacian(1.0)
    assert not gaussian.expands(8)
    assert gaussian.expands(9)
    assert not laplacian.expands(100)
    assert (gaussian * laplacian).expands(9)


def test_positive_definite_nonnegative_and_bounded(rng):
    every = UNIT + COMBINED
    with float64():
        grams = compiled.pairwise_of_each(every, *[rng.normal(0, 2, size=(60, 2))] * 2)
    for kernel, gram in zip(every, map(np.asarray, grams), strict=True):
        assert np.linalg.eigvalsh(gram).min() > -1e-12, kernel
        assert kernel.is_nonnegative, kernel
        assert gram.min() >= 0, kernel
        assert gram.max() <= kernel.diagonal_bound * (1 + 1e-12), kernel


@pytest.mark.long
def test_spectral_sample_reproduces_the_kernel():
    every = UNIT + COMBINED
    x, y = np.float32([[0.3, -0.2, 0.5]]), np.float32([[-0.1, 0.4, 0.2]])
    samples = jax.jit(lambda key: [kernel.spectral_sample(key, 100_000, 3) for kernel in every])(jax.random.key(3))
    for kernel, frequencies, exact in zip(every, samples, compiled.pairwise_of_each(every, x, y), strict=True):
        assert frequencies.dtype == jnp.float32, kernel
        values = kernel.diagonal_bound * np.cos(np.asarray(frequencies, np.float64) @ (x - y)[0])
        error = 4 * values.std() / math.sqrt(values.size)
        assert values.mean() == pytest.approx(float(exact[0, 0]), abs=error), kernel


def test_gradient_is_finite_where_points_coincide():
    @jax.jit
    def gradients(point):
        pairs = [jax.grad(lambda x, k=kernel: k.pairwise(x, point[None]).sum())(point[None])[0] for kernel in UNIT]
        return [jax.grad(kernel)(point, point) for kernel in UNIT] + pairs

    assert np.isfinite(gradients(jnp.ones(2))).all()


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


@pytest.mark.parametrize(
    "kernel", [kernels.Gaussian(0.5), kernels.Laplacian(0.5), kernels.Polynomial(2, 1.0), kernels.Matching()]
)
def test_points_of_different_numbers_of_columns_are_refused(kernel):
    x, y = np.ones((5, 3)), np.ones((4, 2))
    for one, other in ((x, y), (y, x)):
        with pytest.raises(ValueError, match=r"expected points \[n, d\] and \[m, d\], got the shapes"):
            kernel.pairwise(one, other)


def test_one_number_is_expected_and_not_one_for_each_column():
    with pytest.raises(
        ValueError, match=r"gamma must be one number, got \[1.0, 2.0\]; GaussianSum has a length for each"
    ):
        kernels.Gaussian([1.0, 2.0])
    with pytest.raises(ValueError, match=r"Matern32: length_scale must be one number, got \(1, 2\)$"):
        kernels.Matern32((1, 2))


@pytest.mark.parametrize("kernel", [*UNIT, kernels.Polynomial(2, 1.0), kernels.Matching(), UNIT[0] + UNIT[1]], ids=str)
def test_several_points_are_not_taken_for_one(kernel):
    for x, y in [
        (np.zeros((4, 2)), np.zeros((4, 2))),
        (np.zeros(2), np.zeros((4, 2))),
        (np.zeros(1), np.zeros(2)),
        (0, 1),
    ]:
        with pytest.raises(ValueError, match="expected two points of the same shape"):
            kernel(x, y)


def test_columns_that_points_do_not_have_are_refused():
    for start, stop in [(2, 2), (3, 2), (-1, 2)]:
        with pytest.raises(ValueError, match="0 <= start < stop"):
            kernels.OnColumns(kernels.Gaussian(1.0), start, stop)
    kernel = kernels.OnColumns(kernels.Gaussian(1.0), 1, 3)
    for call in (kernel, kernel.pairwise):
        with pytest.raises(ValueError, match="columns 1 to 2 of points with 2 columns"):
            call(*np.zeros((2, 2) if call == kernel else (2, 5, 2)))


def test_parameters_adapt_to_the_points():
    assert kernels.Gaussian(np.float64(0.1)) == kernels.Gaussian(0.1)
    with float64():
        for parameter, dtype in [(np.float64(0.1), np.float32), (np.float32(0.5), np.float64)]:
            kernel = kernels.Gaussian(parameter)
            # Not by jit, which would make arrays of JAX of the parameters.
            assert jax.eval_shape(lambda x, k=kernel: k.pairwise(x, x), np.ones((2, 1), dtype)).dtype == dtype


def test_integers_do_not_wrap_around():
    x, y = np.uint8([[0, 3]]), np.uint8([[200, 1], [1, 2]])
    expected = compiled.pairwise_of_each(UNIT, x.astype(np.float32), y.astype(np.float32))
    pairs, points = compiled.pairwise_of_each(UNIT, x, y), compiled.one_by_one_of_each(UNIT, x, y)
    for kernel, pair, point, exact in zip(UNIT, pairs, points, expected, strict=True):
        np.testing.assert_array_equal(pair, exact, err_msg=str(kernel))
        np.testing.assert_allclose(point, exact, rtol=1e-6, atol=1e-30, err_msg=str(kernel))


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

    def test_columns_that_a_term_ignores_may_be_read_from_a_file(self):
        arrays = {}
        tree = codec.encode(self.KERNEL, arrays, "kernel")
        again = codec.decode(tree, arrays, Kernel)
        again.validate()
        np.testing.assert_array_equal(again.gammas, self.KERNEL.gammas)

    def test_is_the_sum(self, rng):
        with float64():
            x, y = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
            difference = np.square(x[:, None] - y[None])
            first = np.exp(-0.5 * difference[:, :, 0] - 0.2 * difference[:, :, 2])
            expected = 0.25 * first + 0.75 * np.exp(-0.1 * difference.sum(axis=2))
            np.testing.assert_allclose(self.KERNEL.pairwise(x, y), expected, rtol=1e-12)
            np.testing.assert_allclose(compiled.one_by_one(self.KERNEL, x, y), expected, rtol=1e-12)
        assert self.KERNEL.diagonal_bound == 1

    @pytest.mark.parametrize(
        "normal", [jax.random.normal, pytest.param(kernels.orthogonal_normal, marks=pytest.mark.long)]
    )
    def test_spectral_sample_reproduces_the_kernel(self, normal):
        sample = jax.jit(lambda key: self.KERNEL.spectral_sample(key, 100_000, 3, normal=normal))
        frequencies = np.asarray(sample(jax.random.key(3)), np.float64)
        differences = np.float32([[0.4, -0.6, 0.3], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, -2.0]])
        exact = compiled.one_by_one(self.KERNEL, differences, np.zeros((1, 3), np.float32))[:, 0]
        for difference, expected in zip(differences, exact, strict=True):
            values = np.cos(frequencies @ difference)
            error = 4 * values.std() / math.sqrt(values.size)
            assert values.mean() == pytest.approx(float(expected), abs=error)

    def test_frequencies_of_different_blocks_are_independent(self):
        """Terms are drawn anew for every frequency: no more equal terms of neighbours than chance makes."""
        frequencies = np.asarray(jax.jit(lambda key: self.KERNEL.spectral_sample(key, 40_000, 3))(jax.random.key(5)))
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

    @pytest.mark.long
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

    @pytest.mark.parametrize("columns", [1, 2])
    def test_points_with_other_columns_are_refused(self, columns):
        """Broadcasting would take a single column for all of them."""
        for points in (np.zeros((2, columns)), np.zeros((2, 5, columns))):
            with pytest.raises(ValueError, match=f"for 3 columns, got {columns}"):
                (self.KERNEL if points.ndim == 2 else self.KERNEL.pairwise)(*points)
