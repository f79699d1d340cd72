"""Gaussian noise: continuous by the exact condition of Balle & Wang (2018), discrete in zCDP."""

from __future__ import annotations

import math
from typing import cast

import jax

from kme_jax._numerics.validation import check_follows, require
from kme_jax.privacy import secure
from kme_jax.privacy.calibration import (
    Calibration,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_epsilon,
    zcdp_rho,
)
from kme_jax.privacy.mechanisms import Calibrated, Noise, register_noise


class GaussianNoise(Noise):
    """N(0, σ² I), or the discrete Gaussian distribution of parameter σ on integers.

    Formal guarantee: σ = Δ₂ times ``gaussian_noise_multiplier`` makes N(0, σ² I) (ε, δ)-differentially private. The
    discrete Gaussian is Δ₂²/(2σ²)-zero-concentrated differentially private in any dimension (Canonne, Kamath & Steinke
    2020, theorem 14 and section 2), which implies (ε, δ) by ``zcdp_delta``.
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

    def calibrate_securely(self, sensitivity, budget, share):
        most = share * zcdp_rho(budget)
        scale = secure.check_scale(sensitivity / math.sqrt(2 * most))
        rho = secure.gaussian_rho(scale, sensitivity)
        while rho > most:  # because of rounding
            scale *= 1 + 1e-9
            rho = secure.gaussian_rho(scale, sensitivity)
        epsilon = budget.epsilon if share == 1 else zcdp_epsilon(rho, budget.delta)
        return Calibrated(scale, "zcdp", epsilon, rho)

    def add_securely(self, values, scale):
        return secure.add_gaussian(values, scale)

    def draw(self, key, shape, dtype):
        return jax.random.normal(key, shape, dtype)

    def mu(self, mechanism):
        return mechanism.sensitivity / mechanism.scale if mechanism.rho is None else None

    def check(self, mechanism, budget, share):
        m = mechanism
        if m.grid is not None:
            if m.calibration != "zcdp" or m.rho is None:
                raise ValueError("the mechanism is not that of discrete Gaussian noise")
            check_follows("ρ", m.rho, share * zcdp_rho(budget))
            check_follows("scale", m.scale, m.sensitivity / math.sqrt(2 * m.rho))
            epsilon_of_share = zcdp_epsilon(m.rho, budget.delta)
        else:
            is_continuous = m.calibration in ("analytic", "classical") and m.rho is None
            require(is_continuous, "the mechanism is not that of continuous Gaussian noise")
            multiplier = gaussian_noise_multiplier(budget, cast(Calibration, m.calibration)) / math.sqrt(share)
            check_follows("scale", m.scale, m.sensitivity * multiplier)
            epsilon_of_share = gaussian_epsilon(multiplier, budget.delta)
        check_follows("ε", m.epsilon, budget.epsilon if share == 1 else epsilon_of_share)


register_noise(GaussianNoise())
