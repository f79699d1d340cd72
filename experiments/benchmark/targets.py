"""The goals of the project's issues for times, by device."""

from __future__ import annotations

from experiments.benchmark.task import Task

SINCOS_ERROR = 2e-7
FULL_PAIRS = 10**9  # of num_rows * num_points: smaller runs have no targets


# {device: (case, sizes, dtype, goals)}. "seconds" and "max_error" are upper limits. "pairs_per_second", "ceiling" (a
# share of the ceiling) and a peer's name (a ratio of rates) are lower limits.
_FULL = {"N": 100_000, "M": 10_000}
_LARGE = {"N": 1_000_000, "M": 10_000}
_SINCOS = ("sincos", {}, "float32", {"jax.numpy": 5.0, "max_error": SINCOS_ERROR})
TARGETS: dict[str, tuple[tuple[str, dict[str, int], str, dict[str, float]], ...]] = {
    "cpu": (
        *(("kernel_means", _FULL | {"D": d}, "float32", {"scikit-learn": 12.0, "ceiling": 0.8}) for d in (2, 5)),
        *(("kernel_means", _FULL | {"D": d}, "float64", {"scikit-learn": 4.5, "ceiling": 0.8}) for d in (2, 5)),
        ("improved", {"N": 100_000, "M": 1000, "J": 10_000, "D": 2}, "float32", {"seconds": 10.0}),
        ("improved", {"N": 100_000, "M": 1000, "J": 10_000, "D": 5}, "float32", {"seconds": 20.0}),
        _SINCOS,
    ),
    "H100": (
        ("kernel_means", _LARGE | {"D": 2}, "float32", {"pairs_per_second": 2e12, "pytorch": 10.0}),
        ("kernel_means", _LARGE | {"D": 5}, "float32", {"pairs_per_second": 1e12, "pytorch": 5.0}),
        ("kernel_means", _LARGE | {"D": 20}, "float32", {"pairs_per_second": 5e11, "pytorch": 5.0}),
        ("kernel_means", _LARGE | {"D": 2}, "float64", {"pairs_per_second": 5e11, "pytorch": 5.0}),
        ("kernel_means", _LARGE | {"D": 5}, "float64", {"pytorch": 5.0}),
        ("kernel_means", _LARGE | {"D": 20}, "float64", {"pytorch": 5.0}),
        ("fourier_mean", {"N": 1_000_000, "J": 10_000, "D": 2}, "float32", {"pairs_per_second": 1e12}),
        ("improved", {"N": 100_000, "M": 1000, "J": 10_000, "D": 2}, "float32", {"seconds": 1.0}),
        ("improved", {"N": 100_000, "M": 1000, "J": 10_000, "D": 5}, "float32", {"seconds": 1.0}),
        ("sincos", {}, "float32", {"max_error": 2e-7}),
    ),
}


def targets(task: Task, device: str) -> dict[str, float]:
    """The goals of a task, {what: limit}. On an accelerator only tasks with rows on the device have goals.

    Args:
      task: the task.
      device: "cpu", or the kind of the accelerator; "" for no goals.
    """
    for kind, goals in TARGETS.items():
        if kind in device and (kind == "cpu" or "N" not in task.sizes or task.rows_on_device or not task.pairs):
            for case, sizes, dtype, wanted in goals:
                if (case, dtype) == (task.case, task.dtype) and sizes.items() <= task.sizes.items():
                    return wanted
    return {}
