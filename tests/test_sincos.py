import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax._numerics.precision import precision_of
from kme_jax._numerics.sincos import sincos_half_turns, sincos_turns, within_half

DTYPES = [np.float32, np.float64]
STATED_ERROR = {np.float32: 1.2e-7, np.float64: 4e-16}
WAYS = {"eager": sincos_turns, "jit": jax.jit(sincos_turns), "jit_of_vmap": jax.jit(jax.vmap(sincos_turns))}


def reference(u):
    """(sin 2πu, cos 2πu) in float64, to about a unit in the last place: both reductions are exact."""
    turns = np.fmod(np.asarray(u, np.float64), 1)
    quarters = np.round(4 * turns)
    angle = 2 * np.pi * (turns - 0.25 * quarters)
    sin, cos, quadrant = np.sin(angle), np.cos(angle), quarters.astype(int) % 4
    return np.choose(quadrant, [sin, cos, -sin, -cos]), np.choose(quadrant, [cos, -sin, -cos, sin])


def _eighths(dtype):
    """Where the polynomials' ranges end, and the numbers next to it."""
    eighths = (np.arange(-64, 65) / 8).astype(dtype)
    return np.concatenate([np.nextafter(eighths, dtype(-np.inf)), eighths, np.nextafter(eighths, dtype(np.inf))])


def _angles(dtype, rng):
    info = np.finfo(dtype)
    exponents = rng.uniform(math.log2(info.smallest_subnormal), math.log2(info.max) - 2.01, 50_000)
    coarse = 2.0**info.nmant * np.array([[1 / 4], [1 / 2], [1]]) + np.arange(64)  # spacing 1/4, 1/2 and 1
    tiny = [0, -0.0, info.smallest_subnormal, -info.smallest_subnormal, info.tiny / 2, info.tiny]
    return np.concatenate(
        [
            np.linspace(-1, 1, 200_001),
            _eighths(dtype),
            rng.uniform(-1e5, 1e5, 100_000),
            rng.choice([-1, 1], exponents.size) * 2**exponents,
            np.ravel([coarse, coarse + 0.25, -coarse - 0.5]),
            tiny,
        ]
    ).astype(dtype)


_LENGTH = 1 << 19


def _evaluate(way, u):
    if way == "eager":  # all of one length: else each operation is compiled for each of them
        padded = np.concatenate([u, np.zeros(_LENGTH - len(u), u.dtype)])
        with precision_of(u):
            sin, cos = sincos_turns(jnp.asarray(padded))
            return np.asarray(sin)[: len(u)], np.asarray(cos)[: len(u)]
    with precision_of(u):
        sin, cos = WAYS[way](jnp.asarray(u))
        return np.asarray(sin), np.asarray(cos)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_is_at_most_the_stated_one(dtype, way, rng):
    u = _angles(dtype, rng)
    for value, exact in zip(_evaluate(way, u), reference(u), strict=True):
        np.testing.assert_allclose(value, exact, rtol=0, atol=STATED_ERROR[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_quarters_are_exact(dtype):
    quarters = np.concatenate([np.arange(-9, 10), 4 * 10**6 + np.arange(8), -4 * 10**6 - np.arange(8)])
    sin, cos = _evaluate("jit", (quarters / 4).astype(dtype))
    np.testing.assert_array_equal(sin, np.array([0, 1, 0, -1])[quarters % 4])
    np.testing.assert_array_equal(cos, np.array([1, 0, -1, 0])[quarters % 4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sine_is_odd_and_cosine_even(dtype, rng):
    u = _angles(dtype, rng)
    (sin, cos), (mirrored_sin, mirrored_cos) = _evaluate("jit", u), _evaluate("jit", -u)
    np.testing.assert_array_equal(mirrored_sin, -sin)
    np.testing.assert_array_equal(mirrored_cos, cos)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_range_is_every_finite_angle(dtype, way):
    """4u must not overflow: one infinite feature of one private row would be an infinite release."""
    largest = np.finfo(dtype).max
    u = np.array([largest, -largest, largest / 2, np.nextafter(largest / 4, dtype(np.inf)), -largest / 3], dtype)
    sin, cos = _evaluate(way, u)
    np.testing.assert_array_equal(sin, np.zeros(5))  # all of them are whole turns
    np.testing.assert_array_equal(cos, np.ones(5))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_not_finite_in_not_finite_out(dtype, way):
    for value in _evaluate(way, np.array([np.inf, -np.inf, np.nan, 0.1], dtype)):
        np.testing.assert_array_equal(np.isfinite(value), [False, False, False, True])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shape_and_dtype_are_the_arguments(dtype, rng):
    for shape in [(), (0,), (2, 1, 5)]:
        u = rng.normal(size=shape).astype(dtype)
        for value, exact in zip(_evaluate("jit", u), reference(u), strict=True):
            assert (value.shape, value.dtype) == (shape, dtype)
            np.testing.assert_allclose(value, exact, rtol=0, atol=STATED_ERROR[dtype])


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
def test_derivatives(dtype, rng):
    u = np.concatenate([_eighths(dtype), rng.uniform(-1e3, 1e3, 2000).astype(dtype)])
    tangent, (sin, cos) = rng.normal(size=u.shape).astype(dtype), reference(u)
    error = 2 * math.pi * STATED_ERROR[dtype]
    close = functools.partial(np.testing.assert_allclose, rtol=5 * np.finfo(dtype).eps)

    @jax.jit
    def derivatives(u, t):
        forward = jax.jvp(sincos_turns, (u,), (t,))[1]
        reverse = jax.vjp(sincos_turns, u)[1]((t, 2 * t))[0]
        slopes = [jax.grad(lambda u, i=i: sincos_turns(u)[i]) for i in range(2)]
        once, twice = ([jax.vmap(f)(u) for f in each] for each in (slopes, [jax.grad(slope) for slope in slopes]))
        return forward, reverse, once, twice

    with precision_of(u):
        forward, reverse, once, twice = jax.tree.map(np.asarray, derivatives(u, tangent))
        eager = np.asarray(jax.grad(lambda u: sincos_turns(u)[0])(jnp.asarray(u[0])))
    assert {leaf.dtype for leaf in (*forward, reverse, *once, *twice, eager)} == {np.dtype(dtype)}
    close(once[0], 2 * math.pi * cos, atol=error)
    close(once[1], -2 * math.pi * sin, atol=error)
    close(eager, 2 * math.pi * cos[0], atol=error)
    close(forward[0], 2 * math.pi * cos * tangent, atol=5 * error)
    close(forward[1], -2 * math.pi * sin * tangent, atol=5 * error)
    close(reverse, 2 * math.pi * tangent * (cos - 2 * sin), atol=20 * error)
    close(twice[0], -4 * math.pi**2 * sin, atol=2 * math.pi * error)
    close(twice[1], -4 * math.pi**2 * cos, atol=2 * math.pi * error)


@pytest.mark.parametrize(("dtype", "error", "range_"), [(np.float32, 2.1e-7, 2.0**22), (np.float64, 4e-16, 2.0**51)])
def test_half_turns(dtype, error, range_, rng):
    h = np.concatenate([np.linspace(-3, 3, 100_001), _eighths(dtype), rng.uniform(-range_, range_, 50_000)])
    h = h.astype(dtype)
    with precision_of(h):
        values = jax.jit(sincos_half_turns)(h)
    for value, exact in zip(values, reference(np.fmod(h.astype(np.float64), 2) / 2), strict=True):
        np.testing.assert_allclose(value, exact, rtol=0, atol=error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fused_difference_of_a_huge_product_stays_within_half_a_turn(dtype):
    """Where the processor subtracts from the exact product, the difference is not u − round(u)."""
    with precision_of(np.zeros(1, dtype)):
        found = np.asarray(within_half(jnp.asarray([1e22, -1e22, 0.25], dtype)))
    np.testing.assert_array_equal(found, np.asarray([0.5, -0.5, 0.25], dtype))
