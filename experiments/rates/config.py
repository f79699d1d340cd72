"""The configuration of the experiment: the sizes of every sweep."""

from __future__ import annotations

import dataclasses

from experiments.common.config import Config, at_least, flag, one_or_more_of
from experiments.common.errors import InputError, input_errors
from kme_jax import PrivacyBudget
from kme_jax.privacy import gaussian_noise_multiplier

PARTS = (
    "sample", "fixed_points", "public_rows", "features", "algorithm2", "proposal", "bounded_points",
    "bounded_algorithm2",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RatesConfig(Config):
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = flag(PARTS, f"What to run: {', '.join(PARTS)}.", quick=(*PARTS[:4], "bounded_points"))
    dims: tuple[int, ...] = flag((1, 2, 5, 10), "D, the numbers of columns.", quick=(1, 2))
    sizes: tuple[int, ...] = flag(
        (256, 512, 1024, 2048, 4096, 8192, 16384), "N, the numbers of private rows.", quick=(256, 512, 1024)
    )
    num_points: tuple[int, ...] = flag(
        (16, 32, 64, 128, 256, 512, 1024, 2048), "M, the numbers of random public points.", quick=(16, 64, 128)
    )
    num_features: tuple[int, ...] = flag(
        (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), "J, the numbers of Fourier features.", quick=(16, 64, 128)
    )
    epsilons: tuple[float, ...] = flag((0.01, 0.03, 0.1, 0.3, 1.0), "Privacy levels ε, at most 1.", quick=(0.1, 1.0))
    few_sizes: tuple[int, ...] = flag(
        (256, 1024, 4096, 16384), "N, where each release is the result of a long search.", quick=(256, 1024)
    )
    epsilon: float = flag(1.0, "Privacy level ε where it is fixed, at most 1.")
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    public_share: float = flag(1 / 16, "η, the share of the rows that is public.")
    num_fixed: int = flag(256, "M where N or ε varies.", quick=64)
    num_synthetic: int = flag(30, "M of algorithm 2.", quick=10)
    num_seeds: int = flag(20, "Repeats.", quick=3)
    num_searches: int = flag(6, "Repeats of algorithm 2, and of `improved` with public rows.", quick=2)
    num_proposals: int = flag(1, "Repeats of `improved` with a proposal, for D of at most 2.")
    output_dir: str = flag("results", "Folder for the JSON result and the picture.")

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        one_or_more_of(self, "parts", PARTS)
        for name, least in (("dims", 1), ("sizes", 2), ("num_points", 2), ("num_features", 2), ("few_sizes", 2)):
            values = getattr(self, name)
            if not values or min(values) < least or list(values) != sorted(set(values)):
                text = ",".join(map(str, values))
                raise InputError(f"--{name} must be increasing and at least {least}, got {text!r}")
        if list(self.epsilons) != sorted(set(self.epsilons)):
            raise InputError(f"--epsilons must be increasing, got {','.join(map(str, self.epsilons))!r}")
        for name in ("sizes", "num_points", "num_features", "few_sizes", "epsilons"):
            if len(getattr(self, name)) < 2:
                raise InputError(f"--{name}: a slope needs two values or more, got {len(getattr(self, name))}")
        if any(number % 2 for number in self.num_features):
            raise InputError(f"--num_features must be even, got {','.join(map(str, self.num_features))!r}")
        if not 0 < self.public_share < 1 or self.sizes[0] * self.public_share < 2:
            raise InputError(
                f"--public_share={self.public_share:g}: expected a share below 1 that is two rows or more of "
                f"{self.sizes[0]}"
            )
        at_least(self, 2, "num_fixed", "num_synthetic", "num_seeds", "num_searches")
        at_least(self, 1, "num_proposals")
        if self.num_fixed > self.num_points[-1]:
            raise InputError(f"--num_fixed={self.num_fixed} is more than {self.num_points[-1]}, the largest M")
        with input_errors():
            for epsilon in (self.epsilon, *self.epsilons):
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), "classical")
