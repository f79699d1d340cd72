"""The configuration of the audit."""

from __future__ import annotations

import dataclasses

from experiments.common.config import Config, at_least, flag, valid_budgets
from experiments.common.errors import InputError


@dataclasses.dataclass(frozen=True)
class AuditConfig(Config):
    """Configuration: one field per flag."""

    epsilons: tuple[float, ...] = flag((1.0, 10.0), "Privacy levels ε to attack.", quick=(1.0,))
    delta: float = flag(1e-6, "δ of the Gaussian mechanisms.")
    num_runs: int = flag(100_000, "Noisy embeddings under each of two neighbouring databases.", quick=2000)
    num_releases: int = flag(
        200, "Whole releases under each: by the command for the largest ε, and of DataFrames for all.", quick=10
    )
    num_cases: int = flag(50_000, "Neighbouring tables in containers of many kinds.", quick=500)
    seed: int = flag(0, "Seed of frequencies and simulated noise. Secure noise has no seed.")
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        if not self.epsilons or min(self.epsilons) <= 0:
            raise InputError(f"--epsilons must be positive, got {self.epsilons}")
        at_least(self, 100, "num_runs")
        at_least(self, 10, "num_releases")
        at_least(self, 20, "num_cases")
        valid_budgets(self.epsilons, self.delta)
