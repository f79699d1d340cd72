"""The noise that a budget needs. All is computed on the host, in float64, and rounded to the safe side."""

from __future__ import annotations

import functools
import math
from typing import Literal

from kme_jax.privacy.budget import PrivacyBudget, check_budget

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
    return high * (1 + max(_ENLARGEMENT, _CANCELLATION * noise_multiplier))


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
    check_budget(budget)
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


# -- fine discrete Gaussian noise, which is nearly that of rounded continuous Gaussian noise

_RESERVED = 1e-3  # part of δ for the difference
_LARGEST_EXPONENT = 700.0  # of exp
_LEAST_ROOM = 2e-10  # of δ / (1 + e^ε). Below it, noise would have to be finer than the integers of a table are


def discreteness(scale: float, num_features: int) -> float:
    """An upper bound τ of the total variation between discrete Gaussian noise and rounded continuous Gaussian noise.

    Formal guarantee: let P be the discrete Gaussian distribution of parameter σ on the integers, and R that of a normal
    number of standard deviation σ, rounded to an integer. Let φ be the normal density, S = Σ_k φ(k), and s and t
    independent and uniform on [−1/2, 1/2]. Then P(k) = φ(k) / S, and R(k) = φ(k) E exp(−(2ks + s²) / 2σ²), which is
    the integral of φ around k. So Σ_k R(k)² / P(k) = S² E_k E_st exp(−(2k(s + t) + s² + t²) / 2σ²), with k from P.
    By Poisson summation Σ_k φ(k − a) = 1 + 2 Σ_j exp(−2π²σ²j²) cos(2πja) ≤ S for every a. So E_k exp(λk) =
    exp(λ²σ²/2) Σ_k φ(k − λσ²) / S ≤ exp(λ²σ²/2). With λ = −(s + t)/σ², the sum is at most S² E exp(st/σ²) =
    S² E cosh(st/σ²) ≤ S² (1 + E(st)² cosh(1/4σ²) / 2σ⁴) = S² (1 + cosh(1/4σ²) / 288σ⁴), as cosh x ≤ 1 + x² cosh(x) / 2.
    For σ ≥ 1, S ≤ 1 + 3 exp(−2π²σ²). So χ² = Σ R²/P − 1 is at most
    (1 + 3 exp(−2π²σ²))² (1 + cosh(1/4σ²) / 288σ⁴) − 1. Coordinates are independent, so 1 + χ² becomes (1 + χ²)^F. The
    total variation, E_P |R/P − 1| / 2, is at most half the root of (1 + χ²)^F − 1 (Cauchy–Schwarz).

    Args:
      scale: σ, of noise on integers.
      num_features: F, the number of coordinates with independent noise.
    """
    if scale < 1:
        return 1.0
    poisson = 3 * math.exp(-2 * math.pi**2 * scale**2)
    log_ratio = 2 * math.log1p(poisson) + math.log1p(math.cosh(1 / (4 * scale**2)) / (288 * scale**4))
    exponent = num_features * log_ratio
    return min(1.0, math.sqrt(math.expm1(exponent)) / 2 * (1 + _ENLARGEMENT)) if exponent < 1 else 1.0


def finest_scale(num_features: int, largest: float) -> float:
    """A scale σ ≥ 1 for which ``discreteness(σ, F)`` is at most ``largest``, a positive number.

    Args:
      num_features: F.
      largest: of the total variation.
    """
    scale = max(1.0, (num_features / 288) ** 0.25 / math.sqrt(2 * largest))
    while discreteness(scale, num_features) > largest:
        scale *= 1.01
    return scale


def takes_fine_noise(budget: PrivacyBudget) -> bool:
    """Whether secure Gaussian noise for a budget is calibrated like continuous noise, if it is fine enough."""
    return budget.delta >= _LEAST_ROOM * (1 + math.exp(min(budget.epsilon, _LARGEST_EXPONENT)))


def largest_discreteness(budget: PrivacyBudget) -> float:
    """τ that :func:`fine_rho` leaves room for: (1 + e^ε) τ is a thousandth of δ."""
    return _RESERVED * budget.delta / (1 + math.exp(min(budget.epsilon, _LARGEST_EXPONENT)))


@functools.lru_cache(maxsize=256)
def fine_rho(budget: PrivacyBudget) -> float:
    """The largest ρ of fine discrete Gaussian noise that is (ε, δ)-differentially private, rounded down.

    Formal guarantee: let M be a sequence of measurements with discrete Gaussian noise, and R the same with rounded
    continuous noise. Integers plus a rounded number are the rounded sum. So R is post-processing of continuous noise,
    and (ε, δ′)-differentially private for δ′ = ``gaussian_delta(1/√(2ρ), ε)``, because Σ ρ = Σ μ²/2, and μ² adds up
    (Dong, Roth & Su 2022, corollary 3.3). Let τ be the sum of upper bounds of the ``discreteness`` of all measurements,
    which hold whatever the results of earlier ones are. Results of M and R on the same rows have a total variation of
    at most τ: replace the noise of one measurement after the other.
    So for any event and neighbours, M(D) ≤ R(D) + τ ≤ e^ε R(D′) + δ′ + τ ≤ e^ε M(D′) + δ′ + (1 + e^ε) τ.

    Raises:
      ValueError: if δ = 0, or float64 is too inaccurate for the budget.
    """
    # Twice what is reserved is subtracted, which covers rounding.
    within = PrivacyBudget(budget.epsilon, budget.delta * (1 - 2 * _RESERVED))
    return (1 - _ENLARGEMENT) / (2 * gaussian_noise_multiplier(within) ** 2)


def fine_delta(rho: float, epsilon: float, discreteness: float) -> float:
    """A δ for which fine discrete Gaussian noise is (ε, δ)-differentially private, see :func:`fine_rho`.

    Args:
      rho: Σ ρ.
      epsilon: ε.
      discreteness: τ, the sum of those of all measurements.
    """
    room = (1 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * discreteness
    return (gaussian_delta(1 / math.sqrt(2 * rho), epsilon) + room) * (1 + _ENLARGEMENT)


def discrete_epsilon(rho: float, delta: float, discreteness: float | None) -> float:
    """ε at δ of measurements with discrete Gaussian noise, rounded up: the lesser one of two that are valid.

    One is ``zcdp_epsilon``. The other is the least ε with ``gaussian_delta(1/√(2ρ), ε)`` + (1 + e^ε) τ ≤ δ, see
    :func:`fine_rho`.

    Args:
      rho: Σ ρ.
      delta: δ.
      discreteness: τ, the sum of those of all measurements; None if it is not known.

    Examples:
      >>> from kme_jax import PrivacyBudget
      >>> from kme_jax.privacy import discrete_epsilon, fine_rho, zcdp_epsilon
      >>> rho = fine_rho(PrivacyBudget(1.0, 1e-6))
      >>> print(f"{discrete_epsilon(rho, 1e-6, 1e-12):.3f} instead of {zcdp_epsilon(rho, 1e-6):.3f}")
      1.000 instead of 1.078
    """
    least = zcdp_epsilon(rho, delta)
    if discreteness is None or rho == 0:
        return least
    epsilon, multiplier = 0.0, 1 / math.sqrt(2 * rho)
    for _ in range(100):  # increasing, with the least solution as its limit
        rest = delta - (1 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * discreteness
        if rest <= 0:
            return least
        before, epsilon = epsilon, gaussian_epsilon(multiplier, rest)
        if epsilon <= before * (1 + _ENLARGEMENT):
            break
    epsilon *= 1 + _ENLARGEMENT
    return min(least, epsilon) if fine_delta(rho, epsilon, discreteness) <= delta else least


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
