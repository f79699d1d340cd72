"""The configuration of figures 1 and 2, and the private rows that it describes."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from experiments.common.config import Config, at_least, flag
from experiments.common.errors import InputError, input_errors
from experiments.common.mixture import mixture
from kme_jax import Gaussian, PrivacyBudget
from kme_jax._numerics.precision import check_columns, check_points
from kme_jax.privacy import gaussian_noise_multiplier


@dataclasses.dataclass(frozen=True)
class MixtureConfig(Config):
    """Configuration of figures 1 and 2: one field per flag."""

    dim: int = flag(2, "D, the number of columns.")
    num_rows: int | None = flag(
        None, "N, the number of private rows. Default: 100000, or all rows of --dataset.", quick=10_000
    )
    max_points: int = flag(10_000, "The largest M, the number of synthetic points.", quick=1000)
    epsilons: tuple[float, ...] = flag((0.01, 0.1, 1.0), "Privacy levels ε, separated by commas.")
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy, in (0, 1).")
    gamma: float | None = flag(None, "γ of the kernel exp(-γ‖x-y‖²). Default: 1e-4 / D, for the generated mixture.")
    calibration: str = flag(
        "classical",
        "σ from the classical bound, as published (ε <= 1), or from the exact condition of Balle & Wang 2018.",
        choices=("classical", "analytic"),
    )
    diameter: str = flag(
        "published",
        "Sensitivity of one row: 2/N as published, or the tight √2/N that holds for kernels k >= 0.",
        choices=("published", "proved"),
    )
    tolerance: float = flag(1e-5, "Squared residual norm at or below which a point adds nothing.")
    seed: int = flag(0, "Seed of the noise.")
    data_seed: int = flag(0, "Seed of the mixture and of the proposal. Published: 0.")
    num_noise_draws: int = flag(1000, "Noise draws per curve of algorithm 1.", quick=100)
    num_repeats: int = flag(3, "Repeats (frequencies and noise) of algorithm 2's curves.", quick=1)
    num_features: int = flag(10_000, "J, the number of Fourier features of algorithm 2, even.", quick=1000)
    joint_steps: int = flag(400, "Optimiser steps in each round of algorithm 2, joint.", quick=30)
    improved_trajectories: int = flag(
        8, "Trajectories in each round of the sampler behind `improved` in figure 2.", quick=1
    )
    improved_sizes: tuple[int, ...] = flag(
        (10, 31, 100, 316, 1000, 10_000),
        "M of `improved`, as far as there are points; up to 1000 in figure 2.",
        quick=(100,),
    )
    improved_draws: int = flag(5, "Noise draws of `improved` in figure 1 (one beyond M = 1000).", quick=1)
    proposal_scale: float = flag(500.0, "Standard deviation of the random public points.")
    dataset: str | None = flag(
        None, "An .npz file with an array X_private [rows, D], to be used instead of the generated mixture."
    )
    output_dir: str = flag("results", "Folder for the JSON result and its picture.")

    @property
    def kernel(self) -> Gaussian:
        """exp(−γ‖x − y‖²) with γ = 1e-4 / D unless given ([B] appendix B)."""
        return Gaussian(1e-4 / self.dim if self.gamma is None else self.gamma)

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        at_least(self, 1, "dim", "max_points", "num_noise_draws", "num_repeats", "joint_steps")
        at_least(self, 1, "improved_trajectories", "improved_draws")
        if self.dataset is not None and self.gamma is None:
            raise InputError(
                "--dataset needs --gamma: the default is for the generated mixture. Two rows at a distance of 1/√(2γ) "
                "have k = 0.61"
            )
        if not self.improved_sizes or min(self.improved_sizes) < 1:
            raise InputError(
                f"--improved_sizes must be at least 1 each, got {','.join(map(str, self.improved_sizes))!r}"
            )
        if self.num_features < 2 or self.num_features % 2:
            raise InputError(f"--num_features must be even and at least 2, got {self.num_features}")
        if self.num_rows is not None and self.num_rows < 1:
            raise InputError(f"--num_rows must be at least 1, got {self.num_rows}")
        if not self.epsilons:
            raise InputError("--epsilons is empty: give one or more, such as --epsilons=0.01,0.1,1")
        if len({epsilon_key(e) for e in self.epsilons}) < len(self.epsilons):
            raise InputError(f"--epsilons has a value twice: {','.join(map(epsilon_key, self.epsilons))}")
        for name in ("tolerance", "proposal_scale"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"--{name} must be positive and finite, got {getattr(self, name)}")
        if self.diameter not in ("published", "proved"):
            raise InputError(f'--diameter must be "published" or "proved", got "{self.diameter}"')
        if self.tolerance >= 1:
            raise InputError(f"--tolerance must be below k(z, z) = 1, got {self.tolerance}")
        for name in ("seed", "data_seed"):
            if not 0 <= getattr(self, name) < 2**32:
                raise InputError(f"--{name} must be in [0, 2^32), got {getattr(self, name)}")
        with input_errors():
            _ = self.kernel
            for epsilon in self.epsilons:
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), self.calibration)


def epsilon_key(epsilon: float) -> str:
    """ε as a key of a result: "0.01", "0.1", "1"."""
    return f"{epsilon:g}"


def load_rows(config: MixtureConfig) -> np.ndarray:
    """The private rows of an experiment: the mixture, or the array X_private of ``--dataset``.

    Raises:
      InputError: if the file or the array does not exist, the array's shape is wrong, or a value is not finite.
    """
    if config.dataset is None:
        return mixture(config.num_rows or 100_000, config.dim, seed=config.data_seed)
    name = f"--dataset={config.dataset}"
    if not os.path.isfile(config.dataset):
        raise InputError(f"{name}: no such file; give an .npz file with an array X_private [rows, columns]")
    try:
        archive = np.load(config.dataset, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile) or "X_private" not in archive:
            raise InputError(f"{name}: it has no array X_private; save it with np.savez(path, X_private=rows)")
        with archive:
            rows = archive["X_private"]
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: not a readable .npz file ({' '.join(str(error).split())})") from error
    with input_errors(f"{name}: "):
        rows = check_points(rows, "X_private").astype(np.float64)
        check_columns(rows, config.dim, "X_private does not match --dim")
    num_rows = config.num_rows or len(rows)
    if num_rows > len(rows):
        raise InputError(f"{name}: it has {len(rows)} rows, fewer than --num_rows={num_rows}")
    return rows[:num_rows]
