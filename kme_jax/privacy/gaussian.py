"""Gaussian noise: by the exact condition of Balle & Wang (2018), or, if it is discrete and coarse, in zCDP."""

from __future__ import annotations

import math
from typing import cast

import jax

from kme_jax._numerics.validation import TOLERANCE, are_close, check_follows, require
from kme_jax.privacy import secure
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.calibration import (
    Calibration,
    discrete_epsilon,
    discreteness,
    fine_rho,
    finest_scale,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    largest_discreteness,
    takes_fine_noise,
    zcdp_rho,
)
from kme_jax.privacy.mechanisms import Calibrated, Noise, register_noise

_ROOM = 0.05  # by which noise that was made larger, so that it is fine enough, may be finer than it has to be


class GaussianNoise(Noise):
    """N(0, σ² I), or the discrete Gaussian distribution of parameter σ on integers.

    Formal guarantee: σ = Δ₂ times ``gaussian_noise_multiplier`` makes N(0, σ² I) (ε, δ)-differentially private. The
    discrete Gaussian is Δ₂²/(2σ²)-zero-concentrated differentially private in any dimension (Canonne, Kamath & Steinke
    2020, theorem 14 and section 2), which implies (ε, δ) by ``zcdp_delta``. This is the calibration "zcdp". If σ is
    large beside 1, the discrete Gaussian is so close to a rounded normal number that the exact condition of continuous
    noise holds for it, too, with nearly all of δ, see ``fine_rho``. This is the calibration "analytic".
    """

    name = "gaussian"
    norm = "L2"
    square_variance = 2.0

    def variance(self, scale):
        return scale**2

    def sensitivity(self, diameter, num_features, *, integers):
        return diameter

    def calibrate(self, sensitivity, budget, calibration, share):
        multiplier = gaussian_noise_multiplier(budget, cast(Calibration, calibration)) / math.sqrt(share)
        epsilon = budget.epsilon if share == 1 else gaussian_epsilon(multiplier, budget.delta)
        return Calibrated(sensitivity * multiplier, calibration, epsilon)

    def calibrate_securely(self, sensitivity, budget, share, num_features, fine=None):
        if fine is None and share == 1 and takes_fine_noise(budget):
            noise = _calibrated(sensitivity, budget, share, fine_rho(budget), num_features)
            if are_close(cast(float, noise.rho), fine_rho(budget)):  # the integers are fine enough
                return noise
        if fine:
            return _calibrated(sensitivity, budget, share, fine_rho(budget), num_features)
        return _calibrated(sensitivity, budget, share, zcdp_rho(budget))

    def add_securely(self, values, scale):
        return secure.add_gaussian(values, scale)

    def draw(self, key, shape, dtype):
        return jax.random.normal(key, shape, dtype)

    def mu(self, mechanism):
        return mechanism.sensitivity / mechanism.scale if mechanism.rho is None else None

    def check(self, mechanism, budget, share):
        m = mechanism
        if m.grid is not None:
            fine = m.calibration == "analytic" and m.discreteness is not None and takes_fine_noise(budget)
            if m.rho is None or not (fine or (m.calibration == "zcdp" and m.discreteness is None)):
                raise ValueError("the mechanism is not that of discrete Gaussian noise")
            most = share * (fine_rho(budget) if fine else zcdp_rho(budget))
            if m.discreteness is not None:
                within = m.discreteness <= share * largest_discreteness(budget) * (1 + TOLERANCE)
                require(within and m.rho <= most * (1 + TOLERANCE), "the noise is too small, or too coarse")
                finest = m.discreteness >= share * largest_discreteness(budget) * (1 - _ROOM)
                require(finest or are_close(m.rho, most), "ρ does not follow from the budget")
            else:
                check_follows("ρ", m.rho, most)
            check_follows("scale", m.scale, m.sensitivity / math.sqrt(2 * m.rho))
            epsilon_of_share = discrete_epsilon(m.rho, budget.delta, m.discreteness)
        else:
            is_continuous = m.calibration in ("analytic", "classical") and m.rho is None
            require(is_continuous, "the mechanism is not that of continuous Gaussian noise")
            multiplier = gaussian_noise_multiplier(budget, cast(Calibration, m.calibration)) / math.sqrt(share)
            check_follows("scale", m.scale, m.sensitivity * multiplier)
            epsilon_of_share = gaussian_epsilon(multiplier, budget.delta)
        check_follows("ε", m.epsilon, budget.epsilon if share == 1 else epsilon_of_share)


def _calibrated(
    sensitivity: float, budget: PrivacyBudget, share: float, whole_rho: float, num_features: int | None = None
) -> Calibrated:
    """Noise of a share of ρ.

    Args:
      sensitivity: of the integers.
      budget: (ε, δ).
      share: of ρ.
      whole_rho: ρ of the budget.
      num_features: F, for noise that has to be fine enough for ``fine_rho``; None for other noise.
    """
    most = share * whole_rho
    scale = secure.check_scale(sensitivity / math.sqrt(2 * most))
    if num_features is not None:
        scale = secure.check_scale(max(scale, finest_scale(num_features, share * largest_discreteness(budget))))
    rho = secure.gaussian_rho(scale, sensitivity)
    while rho > most:  # because of rounding
        scale *= 1 + 1e-9
        rho = secure.gaussian_rho(scale, sensitivity)
    tau = None if num_features is None else discreteness(scale, num_features)
    epsilon = budget.epsilon if share == 1 else discrete_epsilon(rho, budget.delta, tau)
    return Calibrated(scale, "zcdp" if num_features is None else "analytic", epsilon, rho, tau)


register_noise(GaussianNoise())
