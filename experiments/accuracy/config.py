"""The configuration of all parts of the experiment."""

from __future__ import annotations

import dataclasses
import math

from experiments.common.config import Config, at_least, flag
from experiments.common.errors import InputError, input_errors
from kme_jax import PrivacyBudget
from kme_jax.privacy import gaussian_noise_multiplier

PARTS = ("subset", "proposal", "robustness")


@dataclasses.dataclass(frozen=True)
class AccuracyConfig(Config):
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = flag(
        PARTS,
        "What to run: subset (figure 1), proposal (figure 2), robustness (other data).",
        quick=("subset", "proposal"),
    )
    dims: tuple[int, ...] = flag((2, 5), "D, the numbers of columns.", quick=(2,))
    sizes: tuple[int, ...] = flag((10, 31, 100, 316, 1000, 10_000), "M, the numbers of public points.", quick=(10, 100))
    epsilons: tuple[float, ...] = flag(
        (0.01, 0.1, 1.0), "Privacy levels ε; classical calibration needs ε <= 1.", quick=(1.0,)
    )
    num_rows: int = flag(100_000, "N, the number of private rows.", quick=10_000)
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    gamma_scale: float = flag(1.0, "γ of the kernel exp(-γ‖x-y‖²), in multiples of 1e-4 / D.")
    data_seed: int = flag(0, "Seed of the mixture. Published: 0.")
    num_draws: int = flag(50, "Draws of the noise for M up to 1000.", quick=5)
    num_draws_large: int = flag(5, "Draws of the noise for larger M.", quick=1)
    num_releases: int = flag(5, "Releases for each ε, where only a proposal is public.", quick=1)
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.parts or set(self.parts) - set(PARTS):
            raise InputError(f"--parts must be of {', '.join(PARTS)}, got {','.join(self.parts)!r}")
        for name in ("dims", "sizes", "epsilons"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or len(set(values)) < len(values):
                raise InputError(f"--{name} must be positive and different, got {','.join(map(str, values))!r}")
        at_least(self, 1, "num_rows", "num_draws", "num_draws_large", "num_releases")
        if max(self.sizes) > self.num_rows:
            raise InputError(f"--sizes has {max(self.sizes)}, more than --num_rows={self.num_rows}")
        if not 0 < self.gamma_scale < math.inf:
            raise InputError(f"--gamma_scale must be positive and finite, got {self.gamma_scale}")
        if not 0 <= self.data_seed < 2**32:
            raise InputError(f"--data_seed must be in [0, 2^32), got {self.data_seed}")
        with input_errors():
            for epsilon in self.epsilons:
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), "classical")
