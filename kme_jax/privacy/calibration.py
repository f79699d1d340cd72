"""The noise that a budget needs. All is computed on the host, in float64, and rounded to the safe side."""

from __future__ import annotations

import functools
import math
from typing import Literal

from kme_jax.privacy.budget import PrivacyBudget

Calibration = Literal["analytic", "classical"]

_ENLARGEMENT = 1e-9  # relative: far above the error of the root finder, and too small to matter
# The relative enlargement of σ for each unit of a noise multiplier. Let t = ε/μ, at most 37 for δ ≥ 1e-300. For large
# t, δ is the share 1 − e^(−x) of Φ(−t), with x about μ/t. Logarithms of Φ, up to t²/2 + 5, are rounded to a few
# 2^-53 of their size. This is a relative error of δ of about 2^-52 t³/μ. δ is about proportional to σ^(−t²). So 4e-14
# covers 2^-52 · 37 four times. For multipliers below 25 000, the enlargement of 1e-9 is the larger one.
_CANCELLATION = 4e-14


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The exact δ(ε) of Gaussian noise with standard deviation ``noise_multiplier`` times the L2 sensitivity
    (Balle & Wang 2018, theorem 8): Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = 1 / noise_multiplier."""
    from scipy.special import log_ndtr

    mu = 1 / noise_multiplier
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = float(log_ndtr(-mu / 2 - epsilon / mu)) + epsilon
    return math.exp(upper) * -math.expm1(lower - upper) if lower < upper else 0.0


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The least ε with ``gaussian_delta(noise_multiplier, ε)`` ≤ δ, rounded up."""
    low, high = 0.0, 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(noise_multiplier, middle) > delta else (low, middle)
    return high * (1 + _ENLARGEMENT)


def _analytic_noise_multiplier(epsilon: float, delta: float) -> float:
    import dp_accounting  # here: it takes a second to import

    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
    enlargement = max(_ENLARGEMENT, _CANCELLATION * sigma)
    while not gaussian_delta(sigma * (1 + enlargement), epsilon) <= delta:  # rounding, at extreme budgets
        enlargement *= 10
        if enlargement > 1e-3:
            raise ValueError(f"float64 is too inaccurate to calibrate noise to epsilon={epsilon} with delta={delta}")
    return sigma * (1 + enlargement)


def gaussian_noise_multiplier(budget: PrivacyBudget, calibration: Calibration = "analytic") -> float:
    """σ / Δ₂ that makes the Gaussian mechanism (ε, δ)-differentially private.

    Formal guarantee:
      * ``"analytic"``: the smallest σ with δ(ε) ≤ δ (Balle & Wang 2018, theorem 8, an equivalence), enlarged by 1e-9
        (more above 25 000, or if rounding requires it) and checked against :func:`gaussian_delta`.
      * ``"classical"``: σ = √(2 ln(1.25/δ)) / ε (Dwork & Roth 2014, theorem A.1; [B] algorithm 1, line 7), whose
        proof needs ε ≤ 1 here; also checked to be no smaller than the analytic one.

    Raises:
      ValueError: if δ = 0, or the calibration is unknown, or ε > 1 for the classical calibration, or float64 is too
        inaccurate for the budget.

    Examples:
      >>> from kme_jax import PrivacyBudget
      >>> from kme_jax.privacy import gaussian_noise_multiplier
      >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
      >>> print(f"{gaussian_noise_multiplier(budget):.3f}, {gaussian_noise_multiplier(budget, 'classical'):.3f}")
      4.225, 5.299
    """
    epsilon, delta = budget.epsilon, budget.delta
    if delta == 0:
        raise ValueError("delta = 0 is not possible with Gaussian noise: give delta > 0 or use the Laplace mechanism")
    analytic = _analytic_noise_multiplier(epsilon, delta)
    if calibration == "analytic":
        return analytic
    if calibration != "classical":
        raise ValueError(f'calibration must be "analytic" or "classical", got "{calibration}"')
    if epsilon > 1:
        raise ValueError(f'classical calibration is proved for epsilon <= 1, got {epsilon}: use "analytic"')
    classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if classical < analytic:  # not known to happen for epsilon <= 1; the guard keeps it so
        raise AssertionError(f"classical calibration is too small at epsilon={epsilon}, delta={delta}")
    return classical


def zcdp_delta(rho: float, epsilon: float) -> float:
    """A δ for which ρ-zero-concentrated differential privacy implies (ε, δ)-differential privacy.

    The least over orders α > 1 of exp((α − 1)(αρ − ε)) (1 − 1/α)^α / (α − 1) (Canonne, Kamath & Steinke 2020,
    proposition 12, with the Rényi divergences αρ); every α gives a valid one. Rounded up.
    """
    from scipy.optimize import minimize_scalar

    if rho == 0:
        return 0.0

    def log_delta(log_excess):
        excess = math.exp(log_excess)
        alpha = 1 + excess
        return excess * (alpha * rho - epsilon) + alpha * math.log1p(-1 / alpha) - log_excess

    # The exponent is least near α = (1 + ε/ρ)/2. δ has one minimum between these bounds.
    minimum = minimize_scalar(log_delta, bounds=(math.log(1e-6), math.log(2 + epsilon / rho)), method="bounded")
    return min(1.0, math.exp(min(0.0, minimum.fun)) * (1 + _ENLARGEMENT))


@functools.lru_cache(maxsize=256)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least ε with ``zcdp_delta(ρ, ε)`` ≤ δ, rounded up.

    Examples:
      >>> from kme_jax import PrivacyBudget
      >>> from kme_jax.privacy import zcdp_epsilon, zcdp_rho
      >>> rho = zcdp_rho(PrivacyBudget(epsilon=1.0, delta=1e-6))
      >>> print(f"one release {zcdp_epsilon(rho, 1e-6):.3f}, two {zcdp_epsilon(2 * rho, 1e-6):.3f}")
      one release 1.000, two 1.451
    """
    if rho == 0:
        return 0.0
    low, high = 0.0, rho + 2 * math.sqrt(rho * -math.log(delta))  # Bun & Steinke 2016, proposition 1.3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_delta(rho, middle) > delta else (low, middle)
    return high * (1 + _ENLARGEMENT)


@functools.lru_cache(maxsize=256)
def zcdp_rho(budget: PrivacyBudget) -> float:
    """The largest ρ for which ρ-zCDP implies (ε, δ)-differential privacy, rounded down.

    Raises:
      ValueError: if δ = 0, because no ρ implies (ε, 0).
    """
    epsilon, delta = budget.epsilon, budget.delta
    if delta == 0:
        raise ValueError("delta = 0 is not possible with Gaussian noise: give delta > 0 or use the Laplace mechanism")
    low, high = 0.0, epsilon
    while zcdp_delta(high, epsilon) <= delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_delta(middle, epsilon) <= delta else (low, middle)
    return low * (1 - _ENLARGEMENT)
