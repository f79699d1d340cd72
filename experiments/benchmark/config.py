"""The configuration of the benchmark."""

from __future__ import annotations

import dataclasses

from experiments.common.config import Config, at_least, flag
from experiments.common.errors import InputError

CASES = (
    *("kernel_means", "double_mean", "basis", "fourier_mean", "sincos", "joint_step", "greedy_step"),
    *("adaptive", "improved", "algorithm1", "algorithm2", "generator"),
)
TOLERANCES = {"float32": 2e-5, "float64": 1e-12}  # of a mean of terms in [−1, 1]
LARGEST_DIM = 5  # of the cases in which points are chosen


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Config):
    """Configuration: one field per flag."""

    cases: tuple[str, ...] = flag(CASES, "What to time.")
    dims: tuple[int, ...] = flag((2, 5, 20), f"D of kernel_means, and up to {LARGEST_DIM} of basis and improved.")
    dtypes: tuple[str, ...] = flag(("float32", "float64"), "Precisions of kernel_means.")
    num_rows: int | None = flag(
        None, "N, the number of rows; what it matters little for takes 100000 at most. "
        "Default: 100000 on a CPU, 1000000 on an accelerator."
    )  # fmt: skip
    num_points: int = flag(
        10_000, "M; joint_step, adaptive, improved and algorithm1 take a tenth of it, algorithm2 a hundredth."
    )
    num_features: int = flag(10_000, "J, the number of Fourier features, even.")
    rows: tuple[str, ...] = flag(("device", "host"), "Where rows are at first, on an accelerator: device, host.")
    num_timings: int = flag(5, "Rounds of timing; three for what takes over 10 s.")
    peer_seconds: int | None = flag(
        None, "What a peer may take for one task, about; a slow one gets fewer rows. "
        "Default: 60 on a CPU, 2 on an accelerator."
    )  # fmt: skip
    max_seconds: int = flag(0, "Begin no further task after so many seconds; 0: do them all.")
    output_dir: str = "results"  # BenchmarkCommand has its flag

    def validate(self) -> None:
        """Checks the values, see ``Config``."""
        for name, allowed in (("cases", CASES), ("dtypes", tuple(TOLERANCES)), ("rows", ("device", "host"))):
            values = getattr(self, name)
            if not values or set(values) - set(allowed):
                raise InputError(f"--{name} must be among {','.join(allowed)}, got {','.join(values)!r}")
        if not self.dims or min(self.dims) < 1:
            raise InputError(f"--dims must be positive, got {','.join(map(str, self.dims))!r}")
        at_least(self, 1, "num_points", "num_timings")
        at_least(self, 0, "max_seconds")
        at_least(self, 1, *(name for name in ("num_rows", "peer_seconds") if getattr(self, name) is not None))
        if self.num_rows is not None and self.num_points > self.num_rows:
            raise InputError(f"--num_points={self.num_points} is more than --num_rows={self.num_rows}")
        if self.num_features < 2 or self.num_features % 2:
            raise InputError(f"--num_features must be even and at least 2, got {self.num_features}")


@dataclasses.dataclass(frozen=True)
class BenchmarkCommand(Config):
    """Flags of the program that a result does not record."""

    quick: bool = flag(False, "A tenth of N, M and J.")
    device: str | None = flag(
        None,
        "What to run on. Default: what JAX prefers. It has not been run on a TPU: tpu follows JAX's documentation.",
        choices=("cpu", "gpu", "tpu"),
    )
    input: tuple[str, ...] = flag(
        (),
        "Earlier results: print them, draw them side by side, and time nothing. Parts of one run on one device, of "
        "one commit, are put together. With --output_dir, results and picture are written there.",
    )
    output_dir: str | None = flag(None, "Folder for the results. Default: results, or results/quick with --quick.")

    def applied_to(self, config: BenchmarkConfig, num_rows: int) -> BenchmarkConfig:
        """The configuration that is run.

        Args:
          config: the configuration that the other flags describe.
          num_rows: the device's default of N.
        """
        values = {name: getattr(config, name) for name in ("num_rows", "num_points", "num_features")}
        values["num_rows"] = values["num_rows"] or num_rows
        if self.quick:
            values = {name: value // 10 for name, value in values.items()}
        output_dir = self.output_dir or ("results/quick" if self.quick else "results")
        return dataclasses.replace(config, **values, output_dir=output_dir)
