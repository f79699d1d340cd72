"""Sine and cosine together, of angles in turns.

On a CPU this is several times faster than XLA's functions. The range reduction is exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

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


def within_half(difference: Array) -> Array:
    """u − round(u) for a product u, at most ½ in size. Traceable, elementwise.

    A processor may subtract from the exact product, in one fused operation. The difference then includes the error of
    rounding u. For a huge u that is huge, and polynomials of it overflow. The limits move an angle by no more than that
    error. A sum of several products is rounded before the difference, so it needs no limits.

    Args:
      difference: u − round(u), as it was computed.
    """
    return jnp.clip(difference, -0.5, 0.5)


@jax.custom_jvp
def sincos_turns(u: Array) -> tuple[Array, Array]:
    """(sin 2πu, cos 2πu) for an angle in turns. Traceable, differentiable, elementwise.

    Range: every finite u. Subtraction of round(u) and of quarter turns is exact in floating point. So a large argument
    costs no accuracy beyond its own spacing. (An angle of 1e4 turns in float32 has a spacing of 1e-3 turns.) Absolute
    error for exactly this u: at most 1.2e-7 in float32, 4e-16 in float64. If u is not finite, the result is not finite.

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


# Terms of the polynomials for half a turn: of odd powers for the sine, of even ones for the cosine.
_HALF_TURN_TERMS = {4: (5, 5), 8: (10, 10)}
# By bytes of the type: the integer of that size, and a number whose sum with a whole number k has k's last bit last.
_INTEGERS = {4: (jnp.int32, 1.5 * 2.0**23), 8: (jnp.int64, 1.5 * 2.0**52)}


def sincos_half_turns(
    h: Array, *, of_product: bool = False, sine: Callable[[Array], Array] | None = None
) -> tuple[Array, Array]:
    """(sin πh, cos πh) in fewer instructions, for loops that become one kernel. Traceable, elementwise.

    With k = round(h) and r = h − k, both are (−1)^k times a polynomial of r, |r| ≤ ½.

    Range: |h| below 2^22 in float32, 2^51 in float64; beyond it both may have the wrong sign. Absolute error for
    exactly this h: at most 2.1e-7 in float32, 4e-16 in float64.

    Args:
      h: float32 or float64.
      of_product: whether h is a product that was computed just before; see :func:`within_half`.
      sine: sin x for |x| ≤ π/2, in the place of the polynomial: a GPU has an instruction for it. Its error comes in the
        place of that of the polynomial.
    """
    (integer, carrier), bits = _INTEGERS[h.dtype.itemsize], 8 * h.dtype.itemsize
    odd_terms, even_terms = _half_turn_polynomials(*_HALF_TURN_TERMS[h.dtype.itemsize])
    k = jnp.round(h)
    r = within_half(h - k) if of_product else h - k
    y = r * r
    last_bit = jax.lax.bitcast_convert_type(k + jnp.asarray(carrier, h.dtype), integer)
    sign = last_bit << jnp.asarray(bits - 1, integer)

    def signed(value):
        return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(value, integer) ^ sign, h.dtype)

    def polynomial(coefficients):
        value = jnp.asarray(coefficients[-1], h.dtype) * y + jnp.asarray(coefficients[-2], h.dtype)
        for coefficient in coefficients[-3::-1]:
            value = value * y + jnp.asarray(coefficient, h.dtype)
        return value

    odd = r * polynomial(odd_terms) if sine is None else sine(r * jnp.asarray(math.pi, h.dtype))
    return signed(odd), signed(polynomial(even_terms))


@functools.cache
def _half_turn_polynomials(num_odd: int, num_even: int) -> tuple[list[float], list[float]]:
    """Coefficients of r^(2i+1) for sin πr and of r^(2i) for cos πr on |r| ≤ ½: Chebyshev series in t = 2r, from
    sin(zt) = 2 Σ_k (−1)^k J_{2k+1}(z) T_{2k+1}(t) and cos(zt) = J_0(z) + 2 Σ_k (−1)^k J_{2k}(z) T_{2k}(t), z = π/2."""
    from scipy.special import jv

    odd, even = np.zeros(2 * num_odd), np.zeros(2 * num_even - 1)
    orders = np.arange(max(num_odd, num_even))
    odd[1::2] = (2 * (-1.0) ** orders * jv(2 * orders + 1, math.pi / 2))[:num_odd]
    even[0::2] = (2 * (-1.0) ** orders * jv(2 * orders, math.pi / 2))[:num_even]
    even[0] /= 2
    sine, cosine = (np.polynomial.chebyshev.cheb2poly(series) for series in (odd, even))
    return (sine[1::2] * 2.0 ** (2 * orders[:num_odd] + 1)).tolist(), (cosine[::2] * 4.0 ** orders[:num_even]).tolist()


@sincos_turns.defjvp
def _sincos_turns_jvp(primals, tangents):
    sin, cos = sincos_turns(*primals)
    rate = 2 * math.pi * tangents[0]
    return (sin, cos), (cos * rate, -sin * rate)
