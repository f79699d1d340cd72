"""Step 2: budget, calibration and mechanisms."""

from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.calibration import (
    discrete_epsilon,
    discreteness,
    fine_rho,
    gaussian_delta,
    gaussian_noise_multiplier,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import Calibrated, Mechanism, Noise, NoisyEmbedding, register_noise
from kme_jax.privacy.perturb import (
    add_noise,
    perturb,
    perturb_integers,
    perturb_securely,
    secure_mechanism,
    simulated_mechanism,
)

__all__ = [
    "Calibrated",
    "Composition",
    "Mechanism",
    "Noise",
    "NoisyEmbedding",
    "PrivacyBudget",
    "add_noise",
    "discrete_epsilon",
    "discreteness",
    "fine_rho",
    "gaussian_delta",
    "gaussian_noise_multiplier",
    "perturb",
    "perturb_integers",
    "perturb_securely",
    "register_noise",
    "secure_mechanism",
    "simulated_mechanism",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
