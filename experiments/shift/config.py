"""The configuration of the experiment."""

from __future__ import annotations

import dataclasses
import math

from experiments.common.config import Config, at_least, flag, one_or_more_of
from experiments.common.errors import InputError, input_errors
from kme_jax import PrivacyBudget
from kme_jax.privacy import gaussian_noise_multiplier

SCENARIOS = ("biased", "moved")
PARTS = (*SCENARIOS, "proposal")


@dataclasses.dataclass(frozen=True)
class ShiftConfig(Config):
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = flag(PARTS, f"What to run: {', '.join(PARTS)}.")
    dims: tuple[int, ...] = flag((2, 5), "D, the numbers of columns.", quick=(2,))
    biases: tuple[float, ...] = flag(
        (0.0, 0.5, 1.0, 2.0, 4.0, 8.0),
        "b: a row of a biased sample is drawn with probability proportional to exp(b · x₁ / standard deviation).",
        quick=(0.0, 1.0, 4.0),
    )
    moves: tuple[float, ...] = flag(
        (0.0, 0.25, 0.5, 1.0, 2.0, 4.0),
        "s: every cluster of the other population is moved by s kernel lengths.",
        quick=(0.0, 0.5, 2.0),
    )
    epsilons: tuple[float, ...] = flag((0.1, 1.0), "Privacy levels ε, at most 1.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    num_rows: int = flag(20_000, "N, the number of private rows.", quick=2000)
    num_points: int = flag(500, "M, the number of public rows.", quick=100)
    num_features: int = flag(10_000, "J with a proposal, where a lattice of as many features covers it.", quick=1000)
    num_random_features: int = flag(2000, "J with a proposal, where the features are random.", quick=1000)
    num_draws: int = flag(5, "Draws of the public rows and of the noise.", quick=2)
    num_proposals: int = flag(5, "Releases with a proposal alone.", quick=2)
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "parts", PARTS)
        for name, least, number in (("dims", 1, 1), ("biases", 0, 2), ("moves", 0, 2), ("epsilons", 0, 1)):
            values = getattr(self, name)
            increasing = list(values) == sorted(set(values)) and all(math.isfinite(value) for value in values)
            if len(values) < number or not increasing or values[0] < least:
                text = ",".join(map(str, values))
                raise InputError(
                    f"--{name}: expected {number} or more increasing numbers of at least {least}, got {text!r}"
                )
        at_least(self, 2, "num_rows", "num_points", "num_draws", "num_proposals")
        for name in ("num_features", "num_random_features"):
            if (number := getattr(self, name)) < 2 or number % 2:
                raise InputError(f"--{name} must be even and at least 2, got {number}")
        with input_errors():
            for epsilon in self.epsilons:
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), "classical")

    def strengths(self, scenario: str) -> tuple[float, ...]:
        """The strengths of the shift in a scenario."""
        return self.biases if scenario == "biased" else self.moves
