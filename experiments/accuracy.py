"""How far tight noise and better post-processing go: Δ beside the published algorithms'.

python -m experiments.accuracy                                # everything, about 50 minutes on two cores
python -m experiments.accuracy --parts=proposal --dims=5      # only where nothing but a proposal is public
python -m experiments.accuracy --dims=2 --sizes=100,1000      # fewer points
python -m experiments.accuracy --num_rows=20000 --dims=3 --gamma_scale=4 --data_seed=1

Three parts: "subset", where some of the rows are public (figure 1), "proposal", where no row is (figure 2), and
"robustness", both on other mixtures, sizes, dimensions and bandwidths. See experiments.accuracy_subset, _proposal and
_robustness. Results are kept as they come, in <output_dir>/accuracy.json, accuracy_proposal.json and
accuracy_robustness.json: an interrupted run with the same flags, commit and machine goes on where it was.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

from experiments import accuracy_proposal, accuracy_robustness, accuracy_subset, common, plots
from experiments.common import flag
from kme_jax import PrivacyBudget
from kme_jax.privacy import gaussian_noise_multiplier

_PARTS = ("subset", "proposal", "robustness")


@dataclasses.dataclass(frozen=True)
class AccuracyConfig:
    """Configuration: one field per flag."""

    parts: tuple[str, ...] = flag(
        _PARTS, "What to run: subset (figure 1), proposal (figure 2), robustness (other data)."
    )
    dims: tuple[int, ...] = flag((2, 5), "D, the numbers of columns.")
    sizes: tuple[int, ...] = flag((10, 31, 100, 316, 1000, 10_000), "M, the numbers of public points.")
    epsilons: tuple[float, ...] = flag((0.01, 0.1, 1.0), "Privacy levels ε; classical calibration needs ε <= 1.")
    num_rows: int = flag(100_000, "N, the number of private rows.")
    delta: float = flag(1e-6, "δ of (ε, δ)-differential privacy.")
    gamma_scale: float = flag(1.0, "γ of the kernel exp(-γ‖x-y‖²), in multiples of 1e-4 / D.")
    data_seed: int = flag(0, "Seed of the mixture. Published: 0.")
    num_draws: int = flag(50, "Draws of the noise for M up to 1000.")
    num_draws_large: int = flag(5, "Draws of the noise for larger M.")
    num_releases: int = flag(5, "Releases for each ε, where only a proposal is public.")
    output_dir: str = flag("results", "Folder for the JSON results and the picture.")

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        if not self.parts or set(self.parts) - set(_PARTS):
            raise common.InputError(f"--parts must be of {', '.join(_PARTS)}, got {','.join(self.parts)!r}")
        for name in ("dims", "sizes", "epsilons"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or len(set(values)) < len(values):
                raise common.InputError(f"--{name} must be positive and different, got {','.join(map(str, values))!r}")
        for name in ("num_rows", "num_draws", "num_draws_large", "num_releases"):
            if getattr(self, name) < 1:
                raise common.InputError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if max(self.sizes) > self.num_rows:
            raise common.InputError(f"--sizes has {max(self.sizes)}, more than --num_rows={self.num_rows}")
        if not 0 < self.gamma_scale < math.inf:
            raise common.InputError(f"--gamma_scale must be positive and finite, got {self.gamma_scale}")
        if not 0 <= self.data_seed < 2**32:
            raise common.InputError(f"--data_seed must be in [0, 2^32), got {self.data_seed}")
        with common.input_errors():
            for epsilon in self.epsilons:
                gaussian_noise_multiplier(PrivacyBudget(epsilon, self.delta), "classical")

    def settings(self) -> dict[str, Any]:
        """What results depend on."""
        settings = dataclasses.asdict(self) | {"output_dir": common.portable_path(self.output_dir)}
        del settings["parts"]
        return settings


def _main() -> None:
    config = common.config_from_flags(AccuracyConfig)
    config.validate()
    folder = pathlib.Path(config.output_dir)
    if "subset" in config.parts:
        text = accuracy_subset.table(accuracy_subset.run(config))
        path = folder / "accuracy.json"
        print(f"{text}\nwrote {path} and {plots.draw_accuracy(path, path.with_suffix('.png'))}")
    if "proposal" in config.parts:
        result = accuracy_proposal.run(config)
        print(f"mean Δ where only a proposal is public\n{accuracy_proposal.markdown(result)}")
        print(f"wrote {folder / 'accuracy_proposal.json'}")
    if "robustness" in config.parts:
        result = accuracy_robustness.run(config)
        print(f"how many times closer than the published algorithm 1\n{accuracy_robustness.markdown(result)}")
        print(f"wrote {folder / 'accuracy_robustness.json'}")


if __name__ == "__main__":
    common.run_main(lambda: common.define_flags(AccuracyConfig), _main)
