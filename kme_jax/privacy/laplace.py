"""Laplace noise, for pure ε-differential privacy."""

from __future__ import annotations

import math

import jax

from kme_jax._numerics.validation import check_follows, require
from kme_jax.privacy import secure
from kme_jax.privacy.mechanisms import Calibrated, Noise, register_noise


class LaplaceNoise(Noise):
    """Laplace noise of scale b, or the discrete Laplace distribution of scale b on integers.

    Formal guarantee: noise of scale Δ₁/ε per coordinate is (ε, 0)-differentially private (Dwork & Roth 2014, theorem
    3.6). The L1 sensitivity Δ₁ is at most √F times the L2 sensitivity (Cauchy–Schwarz). A map with a smaller
    ``l1_diameter`` has this one, see ``kme_jax.privacy.mechanisms.proved_sensitivity``.
    """

    name = "laplace"
    norm = "L1"
    square_variance = 5.0

    def variance(self, scale):
        return 2 * scale**2

    def sensitivity(self, diameter, num_features, *, integers):
        sensitivity = math.sqrt(num_features) * diameter
        return math.ceil(sensitivity) if integers else sensitivity

    def calibrate(self, sensitivity, budget, calibration, share):
        if budget.delta != 0:
            raise ValueError(
                f"the Laplace mechanism gives delta = 0, got {budget.delta}: use delta = 0 or Gaussian noise"
            )
        if share != 1:
            raise ValueError(f"share must be 1 for Laplace noise, got {share}")
        return Calibrated(sensitivity / budget.epsilon, "exact", budget.epsilon)

    def calibrate_securely(self, sensitivity, budget, share, num_features, fine=None):
        if budget.delta != 0:
            raise ValueError(f"Laplace noise gives delta = 0, got {budget.delta}: use delta = 0 or Gaussian noise")
        if share != 1:
            raise ValueError("delta = 0 allows one measurement only: give delta > 0 for a sequence of measurements")
        scale = secure.check_scale(sensitivity / budget.epsilon * (1 + 1e-9))
        return Calibrated(scale, "exact", budget.epsilon)

    def add_securely(self, values, scale):
        return secure.add_laplace(values, scale)

    def draw(self, key, shape, dtype):
        return jax.random.laplace(key, shape, dtype)

    def check(self, mechanism, budget, share):
        m = mechanism
        exact = m.calibration == "exact" and m.delta == 0 and share == 1 and m.rho is None and m.discreteness is None
        require(exact, "the mechanism is not that of Laplace noise")
        check_follows("scale", m.scale, m.sensitivity / m.epsilon)
        check_follows("ε", m.epsilon, budget.epsilon)


register_noise(LaplaceNoise())
