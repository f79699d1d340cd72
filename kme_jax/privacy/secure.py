"""Secure noise: OpenDP's discrete Gaussian and Laplace distributions, and its noisy maximum. No other module uses
OpenDP.

OpenDP has exact integer samplers on a cryptographic generator, without floating point and without a seed. Its Python
wrapper converts its arguments, so this module checks the types of arguments and results.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from typing import Literal

import numpy as np
from jaxtyping import Int64

_MAX_SCALE = 2.0**55  # noise of a much larger scale would not fit an int64


def _opendp():
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('secure noise needs OpenDP: pip install "kme_jax[secure]"') from error
    dp.enable_features("contrib")
    return dp


@functools.cache
def source() -> str:
    """The source of the noise, for the privacy statement."""
    _opendp()
    return f"OpenDP {importlib.metadata.version('opendp')} (discrete, cryptographic)"


def check_scale(scale: float) -> float:
    """The scale of noise on integers, as a float.

    Raises:
      ValueError: if the scale is not positive and finite, or the noise would not fit an int64.
    """
    if not scale > 0:
        raise ValueError(f"the scale of noise must be positive, got {scale:.3g}: is the diameter of the map right?")
    if scale > _MAX_SCALE:
        raise ValueError(f"noise of scale {scale:.3g} does not fit 64-bit integers: use a larger epsilon")
    return float(scale)


def _gaussian(scale: float):
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=check_scale(scale))


def gaussian_rho(scale: float, sensitivity: float) -> float:
    """ρ of the discrete Gaussian, by OpenDP, rounded up.

    Args:
      scale: σ, of noise on integers.
      sensitivity: the L2 sensitivity of the integers.
    """
    return float(_gaussian(scale).map(float(sensitivity)))


def _checked(values: Int64[np.ndarray, "F"], measurement) -> Int64[np.ndarray, "F"]:
    if not (isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1 and values.size):
        raise TypeError("secure noise can be added to a one-dimensional array of int64 only")
    noisy = np.asarray(measurement(values))
    if noisy.dtype != np.int64 or noisy.shape != values.shape:
        raise RuntimeError("OpenDP did not return the same number of 64-bit integers")
    return noisy


def add_gaussian(values: Int64[np.ndarray, "F"], scale: float) -> Int64[np.ndarray, "F"]:
    """values [F] + discrete Gaussian noise of parameter σ = scale, int64.

    Raises:
      TypeError: if the values are not an int64 array [F] with F ≥ 1.
    """
    return _checked(values, _gaussian(scale))


def add_laplace(values: Int64[np.ndarray, "F"], scale: float) -> Int64[np.ndarray, "F"]:
    """values [F] + discrete Laplace noise of this scale, int64.

    Raises:
      TypeError: as :func:`add_gaussian`.
    """
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l1_distance(T=dp.i64)
    return _checked(values, dp.m.make_laplace(*space, scale=check_scale(scale)))


def noisy_max(scores: Int64[np.ndarray, "n"], scale: float, noise: Literal["gumbel", "exponential"]) -> int:
    """The index of the largest score / scale + noise, with independent noise of scale 1, in exact arithmetic.

    With Gumbel noise, index i has a probability in proportion to exp(scores[i] / scale): it is the exponential
    mechanism. With exponential noise, it is permute-and-flip (McKenna & Sheldon 2020).

    Formal guarantee: (2Δ/scale, 0)-differential privacy, if each score changes by at most Δ between neighbours.

    Args:
      scores: integers, [n].
      scale: positive and finite.
      noise: "gumbel" or "exponential".

    Raises:
      TypeError: if the scores are not an int64 array [n] with n ≥ 1.
      ValueError: if the scale is not positive and finite.
    """
    if not (isinstance(scores, np.ndarray) and scores.dtype == np.int64 and scores.ndim == 1 and scores.size):
        raise TypeError("the noisy maximum is of a one-dimensional array of int64 only")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale}: use a larger epsilon")
    dp = _opendp()
    measure = {"gumbel": dp.zero_concentrated_divergence, "exponential": dp.max_divergence}[noise]()
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.linf_distance(T=dp.i64)
    return int(dp.m.make_noisy_max(*space, measure, scale=float(scale))(scores))
