"""Times the library beside its peers and the processor's own ceiling, on whatever devices JAX finds.

python -m experiments.benchmark                                  # everything, into results/benchmark.{json,png}
python -m experiments.benchmark --quick                          # a tenth of the sizes, into results/quick/
python -m experiments.benchmark --cases=kernel_means --dims=2
python -m experiments.benchmark --input=results/benchmark.json   # table and picture of an earlier run

In one process and on the same arrays, every contender first runs once (which compiles it) and its result is checked
against float64; only then all are timed in turn, round after round, and medians compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import common, plots
from experiments.common import flag
from experiments.mixture import mixture, proposal
from kme_jax import FourierMap, Gaussian, SubspaceMap, algorithm1, algorithm2, mean_embedding
from kme_jax.gram import kernel_mean
from kme_jax.numerics import Progress, precision_of
from kme_jax.sincos import sincos_turns
from kme_jax.synthesis import reduced_set

Run = Callable[[], Any]
Sums = Callable[[np.ndarray], Any]  # rows of a block [b, d] -> sums over them

BLOCKS = (1000, 10_000)  # rows per block: a peer gets the faster one
TOLERANCES = {"float32": 2e-5, "float64": 1e-12}  # of a mean of terms in [−1, 1]
# What the project's issue asks for, at full size and on two cores.
TARGETS = {
    ("kernel_means", "float32"): {"scikit-learn": 12.0, "ceiling": 0.8},
    ("kernel_means", "float64"): {"scikit-learn": 4.5, "ceiling": 0.8},
    ("sincos", "float32"): {"jax.numpy": 5.0, "max_error": 2e-7},
}
_FULL_PAIRS = 10**9
_LONG_SECONDS, _LONG_TIMINGS = 10, 3  # what takes longer is timed fewer times
_PAUSE = 0.02  # seconds before a timing, in which the threads of what ran before stop spinning
_TRIAL_ROWS = 20_000  # rows on which a peer's variants are tried
_NUM_CHECKED = 100  # points, or frequencies, at which a mean is recomputed in float64


class WrongResultError(RuntimeError):
    """A contender's result is wrong, so its time means nothing."""


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """Configuration: one field per flag."""

    cases: tuple[str, ...] = flag(
        ("kernel_means", "basis", "fourier_mean", "sincos", "joint_step", "algorithm1", "algorithm2"), "What to time."
    )
    dims: tuple[int, ...] = flag((2, 5), "D of kernel_means and basis; the others have D = 2.")
    dtypes: tuple[str, ...] = flag(("float32", "float64"), "Precisions of kernel_means.")
    num_rows: int = flag(100_000, "N, the number of rows.")
    num_points: int = flag(10_000, "M; joint_step and algorithm1 take a tenth of it, algorithm2 a hundredth.")
    num_features: int = flag(10_000, "J, the number of Fourier features, even.")
    num_timings: int = flag(5, "Rounds of timing; three for what takes over 10 s.")
    output_dir: str = "results"

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        for name, allowed in (("cases", CASES), ("dtypes", TOLERANCES)):
            values = getattr(self, name)
            if not values or set(values) - set(allowed):
                raise common.InputError(f"--{name} must be among {','.join(allowed)}, got {','.join(values)!r}")
        if not self.dims or min(self.dims) < 1:
            raise common.InputError(f"--dims must be positive, got {','.join(map(str, self.dims))!r}")
        for name in ("num_rows", "num_points", "num_timings"):
            if getattr(self, name) < 1:
                raise common.InputError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.num_points > self.num_rows:
            raise common.InputError(f"--num_points={self.num_points} is more than --num_rows={self.num_rows}")
        if self.num_features < 2 or self.num_features % 2:
            raise common.InputError(f"--num_features must be even and at least 2, got {self.num_features}")


class Contender(NamedTuple):
    """Something to run, and which variant of it was the fastest."""

    run: Run
    variant: str | None = None


@dataclasses.dataclass
class Task:
    """Something to time.

    Attributes:
      case: a key of CASES.
      sizes: N, M, J, D as far as they apply.
      dtype: what it computes in.
      ours: does it ``units`` times; its result is what ``error`` takes.
      units: what seconds are divided by.
      pairs: pairs of (row, point) or (row, frequency) in one unit, where that is the work.
      peers: others that do the same, or the reason why one cannot.
      error: (contender, result) -> maximal absolute error against float64.
      tolerance: of that error, and half of what results may differ by where they are ``comparable`` arrays.
      ceiling: the exponential alone, and how many it evaluates.
    """

    case: str
    sizes: dict[str, int]
    dtype: str
    ours: Run
    units: int = 1
    pairs: int | None = None
    peers: dict[str, Contender | str] = dataclasses.field(default_factory=dict)
    error: Callable[[str, Any], float] | None = None
    tolerance: float = 0.0
    comparable: bool = True
    ceiling: tuple[Contender, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.case}, {', '.join(f'{key} = {size}' for key, size in self.sizes.items())}, {self.dtype}"


# --- timing --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _compile_seconds() -> Iterator[list[float]]:
    """What JAX's compiler takes within the block."""
    seconds: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/") and "trace" not in event:  # traces nest, and would count twice
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _seconds(run: Run) -> float:
    time.sleep(_PAUSE)
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def _fastest(variants: dict[str, Run], num_trials: int = 2) -> str:
    """The variant with the shortest of a few interleaved runs, after a warm-up."""
    for run in variants.values():
        jax.block_until_ready(run())
    best = dict.fromkeys(variants, math.inf)
    for _, (name, run) in itertools.product(range(num_trials), variants.items()):
        best[name] = min(best[name], _seconds(run))
    return min(best, key=best.__getitem__)


def _check(task: Task, name: str, result: Any, ours: Any) -> float | None:
    """The error of a contender's result; raises WrongResultError where that, or the distance to ours, is too large."""
    if not task.error:
        return None
    error = float(task.error(name, result))
    apart = float(np.max(np.abs(np.subtract(result, ours)))) if task.comparable else 0.0
    if not (error <= task.tolerance and apart <= 2 * task.tolerance):  # NaN is wrong too
        raise WrongResultError(
            f"{task.name}: {name} is {error:.2g} off float64 and {apart:.2g} off ours, where {task.tolerance:g} is "
            "allowed, so times are not compared"
        )
    return error


def measure(task: Task, num_timings: int, progress: Progress) -> dict[str, Any]:
    """Checks, then times, the contenders of a task: one record of the result.

    Raises:
      WrongResultError: a contender's result is off. Nothing has been timed then.
    """
    contenders = {"ours": Contender(task.ours)} | {
        k: peer for k, peer in task.peers.items() if not isinstance(peer, str)
    }
    ours, checked = None, {}
    for name, contender in contenders.items():
        with _compile_seconds() as durations:
            result = jax.block_until_ready(contender.run())
        ours = result if name == "ours" else ours
        checked[name] = {"compile_seconds": sum(durations), "max_error": _check(task, name, result, ours)}
    if task.ceiling:
        contenders["ceiling"] = task.ceiling[0]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for i, (j, (name, contender)) in itertools.product(range(num_timings), enumerate(contenders.items())):
        if i < _LONG_TIMINGS or max(seconds[name]) < _LONG_SECONDS:
            seconds[name].append(_seconds(contender.run) / task.units)
        progress(i * len(contenders) + j + 1, num_timings * len(contenders))

    def record(name: str, pairs: int | None) -> dict[str, Any]:
        median = statistics.median(seconds[name])
        rate = pairs / median if pairs else None
        times = {"seconds": seconds[name], "median_seconds": median, "pairs_per_second": rate}
        return times | checked.get(name, {}) | {"variant": contenders[name].variant}

    mine, peers, ceiling = record("ours", task.pairs), {}, None
    for name, peer in task.peers.items():
        if isinstance(peer, str):
            peers[name] = {"seconds": None, "ratio": None, "reason": peer}
        else:
            peers[name] = record(name, task.pairs)
            peers[name]["ratio"] = peers[name]["median_seconds"] / mine["median_seconds"]
    if task.ceiling:
        ceiling = record("ceiling", task.ceiling[1])
        ceiling["share"] = mine["pairs_per_second"] / ceiling["pairs_per_second"]
    return {
        "case": task.case,
        "name": task.name,
        "sizes": task.sizes,
        "dtype": task.dtype,
        "pairs": task.pairs,
        **mine,
        "tolerance": task.tolerance,
        "peers": peers,
        "ceiling": ceiling,
        "targets": TARGETS.get((task.case, task.dtype), {}),
        "peak_memory_bytes": _peak_memory(),
    }


# --- the machine ---------------------------------------------------------------------------------------------------


def _peak_memory() -> int:
    """The most memory this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.partial(jax.jit, static_argnames=("num_passes", "depth"))
def _exp_passes(tile: jax.Array, *, num_passes: int, depth: int) -> jax.Array:
    """exp(−·) of a tile again and again, ``depth`` times per pass over it. Each is an argument of the next, so none
    can be left out; the minus keeps values in [0, 1]."""

    def one_pass(_, values):
        for _ in range(depth):
            values = jnp.exp(-values)
        return values

    return jax.lax.fori_loop(0, num_passes, one_pass, tile)


def exp_ceiling(dtype: str, num_elements: int) -> tuple[Contender, int]:
    """The fastest way found to evaluate exponentials on every core and device there is, and how many it evaluates:
    ``num_elements``, rounded to what it needs.

    On a CPU: a tile in each core's cache, one thread per core, or a larger array that XLA divides among them. On an
    accelerator: arrays that fill it, also with several exponentials per read and write.
    """
    devices = jax.local_devices()
    if dtype == "float64" and devices[0].platform == "tpu":
        devices = jax.local_devices(backend="cpu")
    shapes = [(2**e, depth, 1) for e in (20, 22, 24) for depth in (1, 8, 64)]
    if devices[0].platform == "cpu":
        threads = max(1, _cores() // len(devices))
        shapes = [(2**e, 1, threads) for e in range(11, 16)] + [(2**e, 1, 1) for e in (16, 18, 20)]
    pool = ThreadPoolExecutor(len(devices) * max(threads for _, _, threads in shapes))

    def build(size: int, depth: int, threads: int, total: int) -> tuple[Run, int]:
        with precision_of(np.empty(0, dtype)):
            start = np.random.default_rng(0).uniform(size=size).astype(dtype)
            tiles = [jax.device_put(start, device) for device in devices for _ in range(threads)]
        num_passes = max(1, total // (size * depth * len(tiles)))

        def work(tile: jax.Array) -> None:
            with precision_of(tile):  # each thread has a setting of its own
                jax.block_until_ready(_exp_passes(tile, num_passes=num_passes, depth=depth))

        return lambda: list(pool.map(work, tiles)), num_passes * size * depth * len(tiles)

    names = {
        f"{len(devices) * threads} x {size}, depth {depth}": (size, depth, threads) for size, depth, threads in shapes
    }
    trial = max(num_elements // 16, 2**22)  # a multiple of every variant's size, or nearly
    best = _fastest({name: build(*shape, trial)[0] for name, shape in names.items()}, num_trials=8)
    run, exact = build(*names[best], num_elements)
    run()  # compiles
    return Contender(run, best), exact


# --- peers ---------------------------------------------------------------------------------------------------------


def _scikit_learn(points: np.ndarray, gamma: float) -> dict[str, Sums]:
    """Ways to compute Σ_n k(z_m, x_n) over a block of rows."""
    from sklearn.metrics.pairwise import rbf_kernel

    return {"rbf_kernel": lambda block: rbf_kernel(points, block, gamma=gamma).sum(axis=1)}


def _pytorch(points: np.ndarray, gamma: float) -> dict[str, Sums]:
    """As :func:`_scikit_learn`, on the type of device that JAX uses."""
    import torch

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        raise NotImplementedError(f"this PyTorch has no {jax.default_backend()} device")
    z = torch.as_tensor(points, device=device)

    def cdist(block):
        distances = torch.cdist(z, torch.as_tensor(block, device=device))
        return torch.exp(-gamma * distances**2).sum(dim=1).cpu()

    def expanded(block):
        x = torch.as_tensor(block, device=device)
        exponent = torch.addmm(-gamma * x.square().sum(dim=1), z, x.T, alpha=2 * gamma)
        return exponent.sub_(gamma * z.square().sum(dim=1, keepdim=True)).exp_().sum(dim=1).cpu()

    return {"cdist": cdist, "expanded": expanded}


PEERS = {"scikit-learn": _scikit_learn, "pytorch": _pytorch}


def _blocked_mean(sums: Sums, rows: np.ndarray, block: int) -> np.ndarray:
    parts = (rows[start : start + block] for start in range(0, len(rows), block))
    return sum(np.asarray(sums(part), np.float64) for part in parts) / len(rows)


def _best_blocked(ways: dict[str, Sums], rows: np.ndarray) -> Contender:
    """The mean over the rows, in the fastest of the ways and BLOCKS as tried on some of them."""
    settings = {f"{way}, blocks of {block}": (ways[way], block) for way in ways for block in BLOCKS}
    part = rows[:_TRIAL_ROWS]
    best = _fastest({name: functools.partial(_blocked_mean, sums, part, b) for name, (sums, b) in settings.items()})
    return Contender(functools.partial(_blocked_mean, settings[best][0], rows, settings[best][1]), best)


# --- cases ---------------------------------------------------------------------------------------------------------


def _sample(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, _NUM_CHECKED).astype(int))


def _kernel_means(config: BenchmarkConfig) -> Iterator[Task]:
    for dim, dtype in itertools.product(config.dims, config.dtypes):
        rows, gamma = mixture(config.num_rows, dim).astype(dtype), 1e-4 / dim
        points = rows[: config.num_points]
        index, wide = _sample(len(points)), rows.astype(np.float64)
        exact = [np.exp(-gamma * np.square(wide - wide[i]).sum(axis=1)).mean() for i in index]
        peers: dict[str, Contender | str] = {}
        for name, builder in PEERS.items():
            try:
                peers[name] = _best_blocked(builder(points, gamma), rows)
            except (ImportError, NotImplementedError) as error:
                peers[name] = str(error)
        yield Task(
            "kernel_means",
            {"N": len(rows), "M": len(points), "D": dim},
            dtype,
            functools.partial(kernel_mean, Gaussian(gamma), points, rows),
            pairs=len(rows) * len(points),
            peers=peers,
            error=lambda _, values, index=index, exact=exact: np.max(np.abs(values[index] - exact)),
            tolerance=TOLERANCES[dtype],
            ceiling=exp_ceiling(dtype, len(rows) * len(points)),
        )


def _basis(config: BenchmarkConfig) -> Iterator[Task]:
    for dim in config.dims:
        points = mixture(config.num_rows, dim)[: config.num_points]
        build = functools.partial(SubspaceMap.from_points, Gaussian(1e-4 / dim), points)
        yield Task("basis", {"M": len(points), "D": dim}, "float64", build)


def _fourier(config: BenchmarkConfig) -> FourierMap:
    return FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5e-4), config.num_features, 2)


@jax.jit
def _plain_cos_sin(frequencies, block):
    angles = jnp.matmul(frequencies, block.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.concatenate([jnp.sum(jnp.cos(angles), axis=1), jnp.sum(jnp.sin(angles), axis=1)])


def _fourier_mean(config: BenchmarkConfig) -> Iterator[Task]:
    rows, fourier = mixture(config.num_rows, 2).astype(np.float32), _fourier(config)
    half, index = config.num_features // 2, _sample(config.num_features // 2)
    angles = 2 * np.pi * rows.astype(np.float64) @ np.asarray(fourier.turns, np.float64)[index].T
    exact = np.concatenate([np.cos(angles).mean(axis=0), np.sin(angles).mean(axis=0)])
    yield Task(
        "fourier_mean",
        {"N": len(rows), "J": config.num_features, "D": 2},
        "float32",
        lambda: mean_embedding(fourier, rows).coordinates / fourier.scale,
        pairs=len(rows) * half,
        peers={
            "jax.numpy": _best_blocked({"jitted": functools.partial(_plain_cos_sin, 2 * np.pi * fourier.turns)}, rows)
        },
        error=lambda _, values: np.max(np.abs(values[np.concatenate([index, half + index])] - exact)),
        tolerance=TOLERANCES["float32"],
    )


def _sincos(config: BenchmarkConfig) -> Iterator[Task]:
    size = 2**18
    calls = max(1, config.num_rows * config.num_points // (32 * size))  # some tenths of a second at full size
    angles = jnp.asarray(np.random.default_rng(0).normal(0, 10, size), jnp.float32)

    def repeated(function):
        def run():
            for _ in range(calls):
                values = function(angles)  # the one before is freed: fresh memory would cost more than the work
            return values

        return run

    def error(name, values):
        # The same numbers are turns to ours and radians to jax.numpy.
        radians = np.asarray(angles, np.float64) * (2 * np.pi if name == "ours" else 1)
        return np.max(np.abs(np.asarray(values) - [np.sin(radians), np.cos(radians)]))

    yield Task(
        "sincos",
        {"size": size},
        "float32",
        repeated(jax.jit(sincos_turns)),
        units=calls,
        pairs=size,
        peers={"jax.numpy": Contender(repeated(jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))), "jitted")},
        error=error,
        tolerance=TARGETS["sincos", "float32"]["max_error"],
        comparable=False,
    )


def _joint_step(config: BenchmarkConfig) -> Iterator[Task]:
    fourier, num_points, num_steps = _fourier(config), max(1, config.num_points // 10), 10
    target = mean_embedding(fourier, mixture(config.num_rows, 2)[:1000]).coordinates
    weights = np.full(num_points, 1 / num_points)
    arrays = [jnp.asarray(x, jnp.float32) for x in (target, proposal(num_points, 2), weights, 1.0, 50.0, 0.1)]
    steps = functools.partial(reduced_set._joint_steps, fourier.turns, fourier.scale, *arrays, num_steps=num_steps)
    yield Task("joint_step", {"M": num_points, "J": config.num_features, "D": 2}, "float32", steps, units=num_steps)


def _algorithm1(config: BenchmarkConfig) -> Iterator[Task]:
    rows, num_points, kernel = mixture(config.num_rows, 2), max(1, config.num_points // 10), Gaussian(0.5e-4)
    release = functools.partial(algorithm1, jax.random.key(0), rows, kernel, rows[:num_points], epsilon=1, delta=1e-6)
    yield Task("algorithm1", {"N": len(rows), "M": num_points, "D": 2}, "float64", lambda: release().weights)


def _algorithm2(config: BenchmarkConfig) -> Iterator[Task]:
    rows, num_points, kernel = mixture(config.num_rows, 2), max(1, config.num_points // 100), Gaussian(0.5e-4)
    points, options = proposal(10 * num_points, 2), {"epsilon": 1, "delta": 1e-6, "num_features": config.num_features}
    release = functools.partial(algorithm2, jax.random.key(0), rows, kernel, points, num_points, **options)
    sizes = {"N": len(rows), "M": num_points, "J": config.num_features, "D": 2}
    yield Task("algorithm2", sizes, "float32", lambda: release().weights)


_CASES = (_kernel_means, _basis, _fourier_mean, _sincos, _joint_step, _algorithm1, _algorithm2)
CASES: dict[str, Callable[[BenchmarkConfig], Iterator[Task]]] = {case.__name__[1:]: case for case in _CASES}


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Runs the cases: the result, with one entry of "records" per task (see :func:`measure`).

    Raises:
      InputError: a configuration that cannot be run; before long work.
      WrongResultError: see :func:`measure`.
    """
    config.validate()
    common.check_output_dir(config.output_dir)
    stages, records, load = common.Stages(), [], os.getloadavg()[0]
    for case in config.cases:
        for task in CASES[case](config):
            with stages.stage(task.name) as progress:
                records.append(measure(task, config.num_timings, progress))
            if config.num_rows * config.num_points < _FULL_PAIRS:
                records[-1]["targets"] = {}
    machine = {"device_kind": jax.devices()[0].device_kind, "processor": _processor(), "usable_cores": _cores()}
    return {
        "experiment": "benchmark",
        "config": dataclasses.asdict(config) | {"output_dir": common.portable_path(config.output_dir)},
        "environment": common.environment() | machine | {"load_average": [load, os.getloadavg()[0]]},
        "wall_seconds": stages.total_seconds,
        "stage_seconds": stages.seconds,
        "peak_memory_bytes": _peak_memory(),
        "records": records,
    }


def table(result: dict[str, Any]) -> str:
    """The result as text, with targets beside the numbers."""
    where = result["environment"]
    lines = [f"{where['device']} ({where['processor']}, {where['usable_cores']} cores), jax {where['jax']}"]
    for record in result["records"]:
        rate, ceiling, goals = record["pairs_per_second"], record["ceiling"], record["targets"]
        speed = f"{rate:.3g} pairs/s, {1e9 / rate:.2g} ns a pair, " if rate else ""
        lines.append(
            f"{record['name']}: {record['median_seconds']:.3g} s, {speed}compiled in {record['compile_seconds']:.2g} s"
        )
        notes = []  # (what a target may be set for, its value, text)
        if record["max_error"] is not None:
            notes.append(("max_error", record["max_error"], f"within {record['max_error']:.1e} of float64"))
        for name, peer in record["peers"].items():
            text = f"{peer['ratio']:.1f} x {name} ({peer['variant']})" if peer["ratio"] else f"{name}: {peer['reason']}"
            notes.append((name, peer["ratio"], text))
        if ceiling:
            notes.append(
                ("ceiling", ceiling["share"], f"{ceiling['share']:.0%} of the exp ceiling ({ceiling['variant']})")
            )
        for name, value, text in notes:
            goal, verdict = goals.get(name), ""
            if goal is not None and value is not None:
                met = value <= goal if name == "max_error" else value >= goal
                verdict = f"; target {goal:g}: {'met' if met else 'MISSED'}"
            lines.append(f"    {text}{verdict}")
    return "\n".join(lines)


def _define_flags() -> None:
    for field in dataclasses.fields(BenchmarkConfig):
        if isinstance(field.default, tuple):
            flags.DEFINE_list(field.name, [str(value) for value in field.default], field.metadata["help"])
        elif isinstance(field.default, int):
            flags.DEFINE_integer(field.name, field.default, field.metadata["help"])
    flags.DEFINE_string("output_dir", None, "Folder for the results. Default: results, or results/quick with --quick.")
    flags.DEFINE_bool("quick", False, "A tenth of N, M and J.")
    flags.DEFINE_string("input", None, "An earlier benchmark.json: print it, draw it beside, and time nothing.")


def _config_from_flags() -> BenchmarkConfig:
    values = {field.name: getattr(flags.FLAGS, field.name) for field in dataclasses.fields(BenchmarkConfig)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    try:
        values["dims"] = tuple(int(dim) for dim in values["dims"])
    except ValueError as error:
        raise common.InputError(f"--dims must be whole numbers separated by commas: {error}") from error
    if flags.FLAGS.quick:
        values |= {name: values[name] // 10 for name in ("num_rows", "num_points", "num_features")}
    values["output_dir"] = values["output_dir"] or ("results/quick" if flags.FLAGS.quick else "results")
    return BenchmarkConfig(**values)


def load(path: str) -> dict[str, Any]:
    """An earlier result.

    Raises:
      InputError: there is none in that file.
    """
    with common.input_errors(f"--input={path}: "):
        result = json.loads(pathlib.Path(path).read_text())
    if not isinstance(result, dict) or result.get("experiment") != "benchmark":
        raise common.InputError(f"--input={path}: not a result of experiments.benchmark")
    return result


def _main() -> None:
    if flags.FLAGS.input:
        path, result = pathlib.Path(flags.FLAGS.input), load(flags.FLAGS.input)
    else:
        config = _config_from_flags()
        try:
            result = run(config)
        except WrongResultError as error:
            sys.exit(f"error: {error}")
        path = pathlib.Path(config.output_dir) / "benchmark.json"
        common.write_json(path, result)
    picture = plots.draw_benchmark(path, path.with_suffix(".png"))
    print(f"{table(result)}\nwrote {path} and {picture}")


if __name__ == "__main__":
    common.run_main(_define_flags, _main)
