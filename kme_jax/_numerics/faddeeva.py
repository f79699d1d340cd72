"""Tails of waves under a normal distribution, by the Faddeeva function w(ζ) = exp(−ζ²) erfc(−iζ), which JAX lacks.

Complex numbers are pairs of real ones, because compilers for CPUs make these several times faster.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kme_jax._numerics.shapes import AnyArray

Array = jax.Array

_TERMS = 16


def _coefficients(terms: int) -> tuple[float, list[float]]:
    """L and the coefficients of the polynomial, highest first, by Weideman (1994), SIAM J. Numer. Anal. 31, table 1."""
    scale, number = math.sqrt(terms / math.sqrt(2)), 2 * terms
    places = scale * np.tan(np.arange(1 - number, number) * math.pi / (2 * number))
    values = np.concatenate([[0], np.exp(-np.square(places)) * (scale**2 + np.square(places))])
    return scale, [float(c) for c in np.real(np.fft.fft(np.fft.fftshift(values)))[terms:0:-1] / (2 * number)]


_SCALE, _POLYNOMIAL = _coefficients(_TERMS)


@jax.custom_jvp
def faddeeva(x: Float[AnyArray, "..."], y: Float[AnyArray, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The real and the imaginary part of w(x + iy) for y ≥ 0, each to about 3e-6. Traceable, elementwise.

    The derivative of w(ζ) is −2ζ w(ζ) + 2i/√π.
    """
    x, y = jnp.asarray(x), jnp.asarray(y)
    size = 1 / (jnp.square(_SCALE + y) + jnp.square(x))
    a, b = (_SCALE + y) * size, x * size  # 1 / (L − iζ)
    real, imag = (_SCALE - y) * a - x * b, (_SCALE - y) * b + x * a  # (L + iζ) / (L − iζ)
    # A polynomial with real coefficients at a complex number (Knuth 1997, The Art of Computer Programming 2, 4.6.4).
    double, square = 2 * real, jnp.square(real) + jnp.square(imag)
    before, now = jnp.zeros_like(real), jnp.full_like(real, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:-1]:
        before, now = now, coefficient + double * now - square * before
    p, q = real * now - square * before + _POLYNOMIAL[-1], imag * now
    squared, product = a * a - b * b, 2 * a * b
    rest = 1 / math.sqrt(math.pi)
    return 2 * (p * squared - q * product) + rest * a, 2 * (p * product + q * squared) + rest * b


@faddeeva.defjvp
def _derivative(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    real, imag = faddeeva(x, y)
    along, across = 2 * (y * imag - x * real), 2 / math.sqrt(math.pi) - 2 * (x * imag + y * real)
    return (real, imag), (along * dx - across * dy, across * dx + along * dy)


def normal_tail(
    start: Float[AnyArray, "..."], frequency: Float[AnyArray, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """∫_0^∞ exp(−ivu) φ(u + a) du, with the density φ of N(0, 1), for a ≥ 0 and v: its real and imaginary part.

    It is exp(−a²/2) w((−v + ia)/√2) / 2. For v = 0 it is Φ(−a).
    """
    real, imag = faddeeva(-frequency / math.sqrt(2), jnp.broadcast_to(start, jnp.shape(frequency)) / math.sqrt(2))
    height = 0.5 * jnp.exp(-0.5 * jnp.square(start))
    return height * real, height * imag
