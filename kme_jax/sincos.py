"""sin and cos together, in turns: several times faster than XLA's on a CPU, and exact range reduction."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

Array = jax.Array

# Taylor coefficients in r² for |r| ≤ 1/8 turn, r in turns: the remainders, (π/4)^(2k+1)/(2k+1)! and (π/4)^(2k)/(2k)!
# of the first omitted term, are 1.8e-9 and 1.1e-10 for float32, and below 1e-18 for float64.
_NUM_TERMS = {4: (5, 6), 8: (9, 10)}


def _coefficients(first_power: int, num_terms: int) -> list[float]:
    powers = range(first_power, first_power + 2 * num_terms, 2)
    return [(-1) ** i * (2 * math.pi) ** k / math.factorial(k) for i, k in enumerate(powers)]


def _horner(coefficients: list[float], y: Array) -> Array:
    value = jnp.full_like(y, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * y + coefficient
    return value


@jax.custom_jvp
def sincos_turns(u: Array) -> tuple[Array, Array]:
    """(sin 2πu, cos 2πu) for an angle in turns. Traceable, differentiable, elementwise.

    Range: every finite u. u − round(u), and the quarter turns taken off it, are exact in floating point, so a large
    argument costs no accuracy beyond its own spacing (an angle of 1e4 turns in float32 is known to 1e-3 turns, whoever
    computes its sine). Absolute error for the given u: at most 1.2e-7 in float32, 4e-16 in float64. Not finite in, not
    finite out.

    Args:
      u: float32 or float64.
    """
    sin_terms, cos_terms = _NUM_TERMS[u.dtype.itemsize]
    u = u - jnp.round(u)  # first, because 4u overflows where u does not
    quarters = jnp.round(4 * u)  # -2, ..., 2
    r = u - 0.25 * quarters
    y = r * r
    s = r * _horner(_coefficients(1, sin_terms), y)
    c = _horner(_coefficients(0, cos_terms), y)
    odd, half = jnp.abs(quarters) == 1, jnp.abs(quarters) == 2
    sin, cos = jnp.where(odd, c, s), jnp.where(odd, s, c)
    return jnp.where(half | (quarters == -1), -sin, sin), jnp.where(half | (quarters == 1), -cos, cos)


_FOLDED_TERMS = {4: 5, 8: 10}


def folded_sincos_turns(u: Array) -> tuple[Array, Array]:
    """(sin 2πu, cos 2πu) in fewer instructions, for a loop that a compiler makes into one kernel. Traceable, elementwise.

    cos 2πu = −sin 2π(|v| − ¼) for v = u − round(u), and sin 2πu = sin 2π(2c − v) for v clipped to c in [−¼, ¼]: both are
    one odd polynomial of an angle of up to a quarter turn.

    Range: every finite u. Absolute error for the given u: at most 2e-7 in float32, 4e-16 in float64.

    Args:
      u: float32 or float64.
    """
    quarter = jnp.asarray(0.25, u.dtype)
    v = u - jnp.round(u)
    clipped = jnp.minimum(jnp.maximum(v, -quarter), quarter)
    coefficients = _odd_polynomial(_FOLDED_TERMS[u.dtype.itemsize])

    def sine(r):
        y = r * r
        value = jnp.asarray(coefficients[-1], u.dtype) * y + jnp.asarray(coefficients[-2], u.dtype)
        for coefficient in coefficients[-3::-1]:
            value = value * y + jnp.asarray(coefficient, u.dtype)
        return value * r

    return sine(clipped + clipped - v), -sine(jnp.abs(v) - quarter)


@functools.cache
def _odd_polynomial(num_terms: int) -> list[float]:
    """Coefficients of odd powers of r: the Chebyshev series of sin 2πr on |r| ≤ ¼, from
    sin(z t) = 2 Σ_k (−1)^k J_{2k+1}(z) T_{2k+1}(t) with z = π/2 and t = 4r."""
    series = np.zeros(2 * num_terms)
    orders = np.arange(num_terms)
    series[1::2] = 2 * (-1.0) ** orders * scipy.special.jv(2 * orders + 1, math.pi / 2)
    powers = np.polynomial.chebyshev.cheb2poly(series)
    return (powers[1::2] * 4.0 ** (2 * orders + 1)).tolist()


@sincos_turns.defjvp
def _sincos_turns_jvp(primals, tangents):
    sin, cos = sincos_turns(*primals)
    rate = 2 * math.pi * tangents[0]
    return (sin, cos), (cos * rate, -sin * rate)
