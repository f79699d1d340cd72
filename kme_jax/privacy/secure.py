"""Noise that may be published: OpenDP's discrete Gaussian and Laplace distributions. The only module that knows OpenDP.

Exact integer samplers on a cryptographic generator, without floating point; no seed. OpenDP's wrapper converts what it
is given, so what goes in and comes out is checked here.
"""

from __future__ import annotations

import importlib.metadata
import math

import numpy as np

_MAX_SCALE = 2.0**55  # noise far beyond it would not fit an int64


def _opendp():
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('secure noise needs OpenDP: pip install "kme_jax[secure]"') from error
    dp.enable_features("contrib")
    return dp


def source() -> str:
    """What the statement says of the noise."""
    _opendp()
    return f"OpenDP {importlib.metadata.version('opendp')} (discrete, cryptographic)"


def check_scale(scale: float) -> float:
    """The scale, in integers.

    Raises:
      ValueError: not positive and finite, or noise that would not fit int64.
    """
    if not (math.isfinite(scale) and 0 < scale <= _MAX_SCALE):
        raise ValueError(f"the noise, {scale:.3g} integers wide, is beyond 64-bit integers: ask for a larger epsilon")
    return float(scale)


def _gaussian(scale: float):
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=check_scale(scale))


def gaussian_rho(scale: float, sensitivity: float) -> float:
    """ρ of the discrete Gaussian, by OpenDP, rounded up.

    Args:
      scale: σ, in integers.
      sensitivity: in L2, in integers.
    """
    return float(_gaussian(scale).map(float(sensitivity)))


def _checked(values: np.ndarray, measurement) -> np.ndarray:
    if not (isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1 and values.size):
        raise TypeError("noise is added to a one-dimensional array of int64")
    noisy = np.asarray(measurement(values))
    if noisy.dtype != np.int64 or noisy.shape != values.shape:
        raise RuntimeError("OpenDP returned something else than as many 64-bit integers")
    return noisy


def add_gaussian(values: np.ndarray, scale: float) -> np.ndarray:
    """values [F] + discrete Gaussian noise of parameter σ = scale, int64.

    Raises:
      TypeError: values that are no int64 array [F], F ≥ 1.
    """
    return _checked(values, _gaussian(scale))


def add_laplace(values: np.ndarray, scale: float) -> np.ndarray:
    """values [F] + discrete Laplace noise of the given scale, int64; as :func:`add_gaussian`."""
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l1_distance(T=dp.i64)
    return _checked(values, dp.m.make_laplace(*space, scale=check_scale(scale)))
