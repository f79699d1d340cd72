"""The privacy budget (ε, δ) and its checks."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """(ε, δ)-differential privacy under replace-one neighbours: databases of the same, public size N that differ in
    one row ([B] definition 1).

    Attributes:
      epsilon: ε > 0.
      delta: δ in [0, 1). 0 asks for pure ε-differential privacy, which needs the Laplace mechanism. A sensible δ is
        well below 1/N.
    """

    epsilon: float
    delta: float

    def __post_init__(self):
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {self.delta}")


def check_num_rows(num_rows: int, budget: PrivacyBudget) -> None:
    """Raises ValueError for N < 2 and for δ ≥ 1/N."""
    if num_rows < 2:
        raise ValueError(f"a release needs at least 2 rows, got {num_rows}: one row cannot hide among others")
    if budget.delta >= 1 / num_rows:
        raise ValueError(
            f"delta must be below 1/N = {1 / num_rows:.2g}, got {budget.delta}: a larger one protects nobody"
        )
