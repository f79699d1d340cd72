"""Step 2: budget, calibration and mechanisms."""

from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.calibration import (
    gaussian_delta,
    gaussian_noise_multiplier,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from kme_jax.privacy.mechanisms import (
    Mechanism,
    NoisyEmbedding,
    add_noise,
    gaussian_mechanism,
    laplace_mechanism,
    perturb,
    perturb_securely,
    secure_mechanism,
)

__all__ = [
    "Mechanism",
    "NoisyEmbedding",
    "PrivacyBudget",
    "add_noise",
    "gaussian_delta",
    "gaussian_mechanism",
    "gaussian_noise_multiplier",
    "laplace_mechanism",
    "perturb",
    "perturb_securely",
    "secure_mechanism",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]
