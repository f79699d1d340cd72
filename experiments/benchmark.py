"""Times the library beside its peers and the device's own ceilings, on a CPU or an accelerator.

python -m experiments.benchmark                             # everything, into results/benchmark_cpu.{json,png}
python -m experiments.benchmark --quick                     # a tenth of the sizes, into results/quick/
python -m experiments.benchmark --cases=kernel_means --dims=2 --device=gpu
python -m experiments.benchmark --input=a/benchmark_cpu.json,b/benchmark_nvidia_h100_80gb_hbm3.json --output_dir=figures
                                                            # tables, and one picture, of earlier results

In one process and on the same arrays, every contender first runs once and its result is checked against float64; only
then all are timed in turn, round after round, and medians compared. What the compiler takes is measured apart, in a
first call without any program that was compiled before, and in one that finds them in JAX's persistent cache. A peer
has a limited time: one that is slow gets fewer rows, and its rate is that for so many.
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
import re
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import common, plots
from experiments.common import flag
from experiments.mixture import mixture, proposal
from kme_jax import (
    FourierMap,
    Gaussian,
    LabelledMap,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive,
    algorithm1,
    algorithm2,
    improved,
    mean_embedding,
    perturb,
)
from kme_jax._numerics.precision import Progress, precision_of
from kme_jax._numerics.sincos import sincos_turns
from kme_jax.generators.networks import MLP
from kme_jax.generators.train import Training, train_generator
from kme_jax.gram import double_mean, kernel_mean
from kme_jax.synthesis import reduced_set

Run = Callable[[], Any]

TOLERANCES = {"float32": 2e-5, "float64": 1e-12}  # of a mean of terms in [−1, 1]
# What the project's issues ask for, by device: (case, sizes, dtype) and goals. "ceiling" is a share of it, "seconds"
# and "max_error" are at most so much, "pairs_per_second" at least, and a peer's name is a ratio of rates, at least.
_FULL = {"N": 100_000, "M": 10_000}
_LARGE = {"N": 1_000_000, "M": 10_000}
_SINCOS = ("sincos", {}, "float32", {"jax.numpy": 5.0, "max_error": 2e-7})
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
_FULL_PAIRS = 10**9  # of num_rows * num_points, from which on targets apply
_MOST_ROWS = 100_000  # of the cases in which rows are not what takes long
_LARGEST_DIM = 5  # of those in which points are chosen
_LONG_SECONDS, _LONG_TIMINGS = 10, 3  # what takes longer is timed fewer times
_PAUSE = 0.02  # seconds before a timing, in which the threads of what ran before stop spinning
_FIRST_ROWS = 1000  # on which a peer is tried first
_NUM_CHECKED = {100_000: 100, math.inf: 20}  # points, or frequencies, at which a mean is recomputed, up to so many rows
_GENERATOR_STEPS = 200
_KNOWN_DOUBLE_MEAN = {100_000: 0.16729849632}  # of the mixture's first N rows, D = 5


class WrongResultError(RuntimeError):
    """A contender's result is wrong, so its time means nothing."""


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """Configuration: one field per flag."""

    cases: tuple[str, ...] = flag(
        (
            *("kernel_means", "double_mean", "basis", "fourier_mean", "sincos", "joint_step", "greedy_step"),
            *("adaptive", "improved", "algorithm1", "algorithm2", "generator"),
        ),
        "What to time.",
    )
    dims: tuple[int, ...] = flag((2, 5, 20), f"D of kernel_means, and up to {_LARGEST_DIM} of basis and improved.")
    dtypes: tuple[str, ...] = flag(("float32", "float64"), "Precisions of kernel_means.")
    num_rows: int | None = flag(
        None, "N, the number of rows; what it matters little for takes 100000 at most. "
        "Default: 100000 on a CPU, 1000000 on an accelerator."
    )  # fmt: skip
    num_points: int = flag(
        10_000, "M; joint_step, adaptive, improved and algorithm1 take a tenth of it, algorithm2 a hundredth."
    )
    num_features: int = flag(10_000, "J, the number of Fourier features, even.")
    num_timings: int = flag(5, "Rounds of timing; three for what takes over 10 s.")
    peer_seconds: int = flag(60, "What a peer may take for one task, about; a slow one gets fewer rows.")
    max_seconds: int = flag(0, "Begin no further task after so many seconds; 0: do them all.")
    output_dir: str = "results"

    def validate(self) -> None:
        """Raises InputError for what cannot be run."""
        for name, allowed in (("cases", CASES), ("dtypes", TOLERANCES)):
            values = getattr(self, name)
            if not values or set(values) - set(allowed):
                raise common.InputError(f"--{name} must be among {','.join(allowed)}, got {','.join(values)!r}")
        if not self.dims or min(self.dims) < 1:
            raise common.InputError(f"--dims must be positive, got {','.join(map(str, self.dims))!r}")
        for name in ("num_rows", "num_points", "num_timings", "peer_seconds"):
            if getattr(self, name) < 1:
                raise common.InputError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.max_seconds < 0:
            raise common.InputError(f"--max_seconds must be at least 0, got {self.max_seconds}")
        if self.num_points > self.num_rows:
            raise common.InputError(f"--num_points={self.num_points} is more than --num_rows={self.num_rows}")
        if self.num_features < 2 or self.num_features % 2:
            raise common.InputError(f"--num_features must be even and at least 2, got {self.num_features}")


class Contender(NamedTuple):
    """Something to run, which variant of it was the fastest, and on how many of the rows it runs if not on all."""

    run: Run
    variant: str | None = None
    num_rows: int | None = None


Prepare = Callable[[float], Contender]  # of a peer: seconds it may take for all -> what to run


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
      rows_on_device: whether the rows were on the accelerator before.
      peers: others that do the same.
      error: (contender, result, number of rows or None for all) -> maximal absolute error against float64.
      tolerance: of that error, and half of what results may differ by where they are ``comparable`` arrays.
      exponentials: that a pair takes, for a comparison with the exponential alone; 0 for none.
    """

    case: str
    sizes: dict[str, int]
    dtype: str
    ours: Run
    units: int = 1
    pairs: int | None = None
    rows_on_device: bool = False
    peers: dict[str, Prepare] = dataclasses.field(default_factory=dict)
    error: Callable[[str, Any, int | None], float] | None = None
    tolerance: float = 0.0
    comparable: bool = True
    exponentials: int = 0

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{key} = {size}" for key, size in self.sizes.items())
        return f"{self.case}, {sizes}, {self.dtype}" + (", rows on the device" if self.rows_on_device else "")


# --- timing --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError within the block once the time is over: where it next comes back to Python, in the main
    thread. Elsewhere nothing does."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"over the limit of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


def _check(task: Task, name: str, contender: Contender, result: Any, ours: Any) -> float | None:
    """The error of a contender's result; raises WrongResultError where that, or the distance to ours, is too large."""
    if not task.error:
        return None
    error = float(task.error(name, result, contender.num_rows))
    comparable = task.comparable and contender.num_rows is None
    apart = float(np.max(np.abs(np.subtract(result, ours)))) if comparable else 0.0
    if not (error <= task.tolerance and apart <= 2 * task.tolerance):  # NaN is wrong too
        raise WrongResultError(
            f"{task.name}: {name} is {error:.2g} off float64 and {apart:.2g} off ours, where {task.tolerance:g} is "
            "allowed, so times are not compared"
        )
    return error


def _prepared(task: Task, name: str, ours: Any, limit: float) -> tuple[Contender, dict[str, Any]] | str:
    """A peer with its error, or the reason why there is none. Only a wrong result is an error of the benchmark."""
    try:
        with _time_limit(limit):
            contender = task.peers[name](limit)
            result = jax.block_until_ready(contender.run())
    except Exception as error:
        text = " ".join(str(error).split())
        expected = isinstance(error, (ImportError, NotImplementedError, TimeoutError))
        return text if expected else f"{type(error).__name__}: {text}"[:300]
    return contender, {"max_error": _check(task, name, contender, result, ours)}


def measure(
    task: Task, num_timings: int, progress: Progress, *, device: str = "", peer_seconds: float = 60.0
) -> dict[str, Any]:
    """Checks, then times, the contenders of a task: one record of the result.

    Args:
      task: what to time.
      num_timings: rounds.
      progress: called with (timings done, timings in all).
      device: what targets are chosen by; see TARGETS.
      peer_seconds: what a peer may take, about.

    Raises:
      WrongResultError: a contender's result is off. Nothing has been timed then.
    """
    ours, first = common.first_calls(task.ours)
    contenders = {"ours": Contender(task.ours)}
    checked: dict[str, dict[str, Any]] = {
        "ours": first | {"max_error": _check(task, "ours", contenders["ours"], ours, ours)}
    }
    reasons: dict[str, str] = {}
    for name in task.peers:
        found = _prepared(task, name, ours, peer_seconds)
        if isinstance(found, str):
            reasons[name] = found
        else:
            contenders[name], checked[name] = found
    if task.exponentials:
        contenders["ceiling"], num_exponentials = exp_ceiling(task.dtype, task.pairs)
        contenders["ceiling"].run()  # programs were forgotten for the first calls
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    total = num_timings * len(contenders)
    for i, (j, (name, contender)) in itertools.product(range(num_timings), enumerate(contenders.items())):
        if i < _LONG_TIMINGS or max(seconds[name]) < _LONG_SECONDS:
            seconds[name].append(_seconds(contender.run) / task.units)
        progress(i * len(contenders) + j + 1, total)

    def record(name: str, pairs: float | None) -> dict[str, Any]:
        median, contender = statistics.median(seconds[name]), contenders[name]
        times = {"seconds": seconds[name], "median_seconds": median}
        times |= {"pairs_per_second": pairs / median if pairs else None, "num_rows": contender.num_rows}
        return times | checked.get(name, {}) | {"variant": contender.variant}

    mine, peers, ceiling = record("ours", task.pairs), {}, None
    for name in task.peers:
        if name in reasons:
            peers[name] = {"seconds": None, "ratio": None, "reason": reasons[name]}
            continue
        part = contenders[name].num_rows
        share = 1.0 if part is None else part / task.sizes["N"]
        peers[name] = record(name, task.pairs and task.pairs * share)
        peers[name]["ratio"] = peers[name]["median_seconds"] / share / mine["median_seconds"]
    if task.exponentials:
        ceiling = record("ceiling", num_exponentials / task.exponentials)
        ceiling["share"] = mine["pairs_per_second"] / ceiling["pairs_per_second"]
    return {
        "case": task.case,
        "name": task.name,
        "sizes": task.sizes,
        "dtype": task.dtype,
        "rows_on_device": task.rows_on_device,
        "pairs": task.pairs,
        **mine,
        "tolerance": task.tolerance,
        "peers": peers,
        "ceiling": ceiling,
        "targets": _targets(task, device),
        "peak_memory_bytes": _peak_memory(),
    }


def _targets(task: Task, device: str) -> dict[str, float]:
    """The goals of a task; with an accelerator those are for rows that it has."""
    for kind, goals in TARGETS.items():
        if kind in device and (kind == "cpu" or "N" not in task.sizes or task.rows_on_device or not task.pairs):
            for case, sizes, dtype, wanted in goals:
                if (case, dtype) == (task.case, task.dtype) and sizes.items() <= task.sizes.items():
                    return wanted
    return {}


# --- the machine ---------------------------------------------------------------------------------------------------


def _peak_memory() -> int:
    """The most memory this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _is_accelerator() -> bool:
    return jax.default_backend() != "cpu"


def copy_bandwidth(num_bytes: int, num_trials: int = 5) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    values = jnp.zeros(num_bytes // 4, jnp.float32)
    copy = jax.jit(lambda values: values + 1)
    jax.block_until_ready(copy(values))
    return 2 * values.nbytes / min(_seconds(lambda: copy(values)) for _ in range(num_trials))


@functools.partial(jax.jit, static_argnames=("num_passes", "depth"))
def _exp_passes(tile: jax.Array, *, num_passes: int, depth: int) -> jax.Array:
    """exp(−·) of a tile again and again, ``depth`` times per pass over it. Each is an argument of the next, so none
    can be left out; the minus keeps values in [0, 1]."""

    def one_pass(_, values):
        for _ in range(depth):
            values = jnp.exp(-values)
        return values

    return jax.lax.fori_loop(0, num_passes, one_pass, tile)


@functools.cache
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
        threads = max(1, common.usable_cores() // len(devices))
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


class Peer(NamedTuple):
    """Ways to compute Σ_n k(z_m, x_n), or other sums, over blocks of rows.

    Attributes:
      ways: rows of a block -> sums over them.
      place: rows as NumPy has them -> rows as the ways take them, on the device.
      gather: what is summed over blocks -> NumPy.
    """

    ways: dict[str, Callable[[Any], Any]]
    place: Callable[[np.ndarray], Any] = lambda rows: rows
    gather: Callable[[Any], np.ndarray] = np.asarray


def _scikit_learn(points: np.ndarray, gamma: float) -> Peer:
    """On the host's CPU, whichever device JAX uses."""
    from sklearn.metrics.pairwise import rbf_kernel

    return Peer({"rbf_kernel": lambda block: rbf_kernel(points, block, gamma=gamma).sum(axis=1).astype(np.float64)})


def _torch_device() -> str:
    import torch

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        raise NotImplementedError(f"this PyTorch has no {jax.default_backend()} device")
    return device


def _pytorch(points: np.ndarray, gamma: float) -> Peer:
    """On the type of device that JAX uses."""
    import torch

    device = _torch_device()
    z = torch.as_tensor(points, device=device)

    def cdist(block):
        return torch.exp(-gamma * torch.cdist(z, block) ** 2).sum(dim=1).double()

    def expanded(block):
        exponent = torch.addmm(-gamma * block.square().sum(dim=1), z, block.T, alpha=2 * gamma)
        return exponent.sub_(gamma * z.square().sum(dim=1, keepdim=True)).exp_().sum(dim=1).double()

    place = functools.partial(torch.as_tensor, device=device)
    return Peer({"cdist": cdist, "expanded": expanded}, place, lambda sums: sums.cpu().numpy())


def _keops(points: np.ndarray, gamma: float) -> Peer:
    """On the type of device that JAX uses."""
    import pykeops
    import torch
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    device = _torch_device()
    z = LazyTensor(torch.as_tensor(points, device=device)[:, None, :])

    def sums(block, **options):
        squared = ((z - LazyTensor(block[None, :, :])) ** 2).sum(-1)
        return (-gamma * squared).exp().sum(dim=1, **options)[:, 0].double()

    ways = {"sum": sums}
    if device == "cuda":
        ways |= {name: functools.partial(sums, backend=name) for name in ("GPU_1D", "GPU_2D")}
    return Peer(ways, functools.partial(torch.as_tensor, device=device), lambda sums: sums.cpu().numpy())


def _jax_numpy(points: np.ndarray, gamma: float) -> Peer:
    """The plain expressions, jitted."""
    gamma = points.dtype.type(gamma)

    @jax.jit
    def differences(points, block):
        columns = (jnp.square(points[:, None, i] - block[None, :, i]) for i in range(points.shape[1]))
        return jnp.sum(jnp.exp(-gamma * sum(columns)), axis=1)

    @jax.jit
    def expanded(points, block):
        products = jnp.matmul(points, block.T, precision=jax.lax.Precision.HIGHEST)
        squares = jnp.sum(jnp.square(points), axis=1)[:, None] + jnp.sum(jnp.square(block), axis=1)[None]
        return jnp.sum(jnp.exp(gamma * (2 * products - squares)), axis=1)

    return _of_jax({"differences": differences, "expanded": expanded}, points)


def _of_jax(functions: dict[str, Callable[[Any, Any], Any]], points: Any) -> Peer:
    """A peer of jitted functions of (points, block of rows)."""

    def placed(array):
        with precision_of(array):
            return jnp.asarray(array)

    def way(function):
        def sums(block):
            with precision_of(block):
                return np.asarray(function(points, block), np.float64)

        return sums

    points = placed(points)
    return Peer({name: way(function) for name, function in functions.items()}, placed)


PEERS = {"scikit-learn": _scikit_learn, "pytorch": _pytorch, "keops": _keops, "jax.numpy": _jax_numpy}
_ON_THE_HOST = ("scikit-learn",)


def _blocks() -> tuple[int, ...]:
    """Rows per block: a peer gets the fastest."""
    return (10_000, 100_000) if _is_accelerator() else (1000, 10_000)


def _blocked_mean(peer: Peer, way: str, rows: Any, block: int, *, on_device: bool) -> np.ndarray:
    parts = (rows[start : start + block] for start in range(0, len(rows), block))
    sums = sum(peer.ways[way](part if on_device else peer.place(part)) for part in parts)
    return peer.gather(sums) / len(rows)


def _fastest_blocked(
    build: Callable[[], Peer], rows: np.ndarray, num_timings: int, limit: float, *, on_device: bool
) -> Contender:
    """The mean over the rows, in the fastest of a peer's ways and blocks as tried on some rows: over as many of them
    as half of the limit allows for all timings. The other half is for the trials, and for mistaken estimates.

    Args:
      build: of the peer.
      rows: [N, d], on the host.
      num_timings: how often it is going to be run, besides once for its result.
      limit: seconds.
      on_device: whether rows are placed before; else within each run, block by block.

    Raises:
      TimeoutError: not even the first rows can be done often enough.
    """
    peer = build()
    settings = {f"{way}, blocks of {block}": (way, block) for way in peer.ways for block in _blocks()}
    placed = peer.place(rows) if on_device else rows

    def runs(num_rows: int) -> dict[str, Run]:
        return {
            name: functools.partial(_blocked_mean, peer, way, placed[:num_rows], block, on_device=on_device)
            for name, (way, block) in settings.items()
        }

    def drop_failing(num_rows: int) -> None:
        """Runs all once, which compiles them too; settings that fail, for lack of memory say, go unless all do."""
        for name, run in runs(num_rows).items():
            try:
                run()
            except RuntimeError:
                settings.pop(name)
                if not settings:
                    raise

    first = min(len(rows), _FIRST_ROWS)
    drop_failing(first)
    slowest = max(_seconds(run) for run in runs(first).values())
    share = limit / 4 / (4 * len(settings)) / slowest  # four runs of each
    trial = max(first, min(len(rows), 2 * max(_blocks()), int(share * first)))
    drop_failing(trial)
    best = _fastest(runs(trial))
    expected = min(_seconds(runs(trial)[best]) for _ in range(2)) / trial
    possible = int(limit / 2 / (num_timings + 1) / expected)
    if possible < first:
        raise TimeoutError(f"over the limit of {limit:g} s")
    num_rows = min(len(rows), possible)
    return Contender(runs(num_rows)[best], best, None if num_rows == len(rows) else num_rows)


# --- cases ---------------------------------------------------------------------------------------------------------


def _sample(size: int, num_rows: int) -> np.ndarray:
    number = next(number for most, number in _NUM_CHECKED.items() if num_rows <= most)
    return np.unique(np.linspace(0, size - 1, number).astype(int))


def _kernel_means(config: BenchmarkConfig) -> Iterator[Task]:
    for dim, dtype in itertools.product(config.dims, config.dtypes):
        rows, gamma = mixture(config.num_rows, dim).astype(dtype), 1e-4 / dim
        points = rows[: config.num_points]
        index = _sample(len(points), len(rows))

        @functools.cache
        def exact(num_rows, rows=rows, gamma=gamma, index=index):
            wide = rows[:num_rows].astype(np.float64)
            points = rows[index].astype(np.float64)
            return np.asarray([np.exp(-gamma * np.square(wide - point).sum(axis=1)).mean() for point in points])

        def error(_, values, num_rows, index=index, exact=exact):
            return np.max(np.abs(np.asarray(values)[index] - exact(num_rows)))

        with precision_of(rows):
            arrays = {False: (points, rows)}
            if _is_accelerator():
                arrays[True] = (jax.device_put(points), jax.device_put(rows))
        for on_device, (some_points, some_rows) in arrays.items():
            # With an accelerator, what computes on the host is beside rows from there, and the rest beside the others.
            names = [name for name in PEERS if len(arrays) == 1 or on_device != (name in _ON_THE_HOST)]
            builders = {name: functools.partial(PEERS[name], points, gamma) for name in names}
            yield Task(
                "kernel_means",
                {"N": len(rows), "M": len(points), "D": dim},
                dtype,
                functools.partial(kernel_mean, Gaussian(gamma), some_points, some_rows),
                pairs=len(rows) * len(points),
                rows_on_device=on_device,
                peers={
                    name: functools.partial(_fastest_blocked, build, rows, config.num_timings, on_device=on_device)
                    for name, build in builders.items()
                },
                error=error,
                tolerance=TOLERANCES[dtype],
                exponentials=1,
            )


def _double_mean(config: BenchmarkConfig) -> Iterator[Task]:
    dim = 5
    rows, gamma = mixture(min(config.num_rows, _MOST_ROWS), dim), 1e-4 / dim
    known = _KNOWN_DOUBLE_MEAN.get(len(rows))
    if known is None and len(rows) <= 2000:
        known = np.mean([np.exp(-gamma * np.square(rows - row).sum(axis=1)).mean() for row in rows])
    error = None if known is None else lambda _, value, num_rows: abs(value - known)
    sizes, pairs = {"N": len(rows), "D": dim}, len(rows) * (len(rows) + 1) // 2
    mean = functools.partial(double_mean, Gaussian(gamma), rows)
    yield Task("double_mean", sizes, "float64", mean, pairs=pairs, error=error, tolerance=1e-11, exponentials=1)


def _small(dims: Sequence[int]) -> Iterator[int]:
    return (dim for dim in dims if dim <= _LARGEST_DIM)


def _basis(config: BenchmarkConfig) -> Iterator[Task]:
    for dim in _small(config.dims):
        points = mixture(config.num_rows, dim)[: config.num_points]
        build = functools.partial(SubspaceMap.from_points, Gaussian(1e-4 / dim), points)
        yield Task("basis", {"M": len(points), "D": dim}, "float64", build)


def _fourier(config: BenchmarkConfig, num_features: int | None = None) -> FourierMap:
    return FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5e-4), num_features or config.num_features, 2)


@jax.jit
def _plain_cos_sin(frequencies, block):
    angles = jnp.matmul(frequencies, block.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.concatenate([jnp.sum(jnp.cos(angles), axis=1), jnp.sum(jnp.sin(angles), axis=1)])


def _fourier_mean(config: BenchmarkConfig) -> Iterator[Task]:
    rows, fourier = mixture(config.num_rows, 2).astype(np.float32), _fourier(config)
    half = config.num_features // 2
    index = _sample(half, len(rows))
    turns = np.asarray(fourier.turns)

    @functools.cache
    def exact(num_rows):
        angles = [2 * np.pi * rows[:num_rows].astype(np.float64) @ turn for turn in turns[index].astype(np.float64)]
        return np.asarray([*(np.cos(angle).mean() for angle in angles), *(np.sin(angle).mean() for angle in angles)])

    def error(_, values, num_rows):
        return np.max(np.abs(np.asarray(values)[np.concatenate([index, half + index])] - exact(num_rows)))

    plain = functools.partial(_of_jax, {"jitted": _plain_cos_sin}, np.float32(2 * np.pi) * turns)
    arrays = {False: rows} | ({True: jax.device_put(rows)} if _is_accelerator() else {})
    for on_device, some_rows in arrays.items():
        beside = functools.partial(_fastest_blocked, plain, rows, config.num_timings, on_device=on_device)
        yield Task(
            "fourier_mean",
            {"N": len(rows), "J": config.num_features, "D": 2},
            "float32",
            lambda some_rows=some_rows: mean_embedding(fourier, some_rows).coordinates / fourier.scale,
            pairs=len(rows) * half,
            rows_on_device=on_device,
            peers={"jax.numpy": beside} if on_device or len(arrays) == 1 else {},
            error=error,
            tolerance=TOLERANCES["float32"],
            exponentials=2,
        )


def _sincos(config: BenchmarkConfig) -> Iterator[Task]:
    size = 2**18
    calls = max(1, min(config.num_rows, _MOST_ROWS) * config.num_points // (32 * size))  # tenths of a second
    angles = jnp.asarray(np.random.default_rng(0).normal(0, 10, size), jnp.float32)

    def repeated(function):
        def run():
            for _ in range(calls):
                values = function(angles)  # the one before is freed: fresh memory would cost more than the work
            return values

        return run

    def error(name, values, num_rows):
        # The same numbers are turns to ours and radians to jax.numpy.
        radians = np.asarray(angles, np.float64) * (2 * np.pi if name == "ours" else 1)
        return np.max(np.abs(np.asarray(values) - [np.sin(radians), np.cos(radians)]))

    plain = Contender(repeated(jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))), "jitted")
    yield Task(
        "sincos",
        {"size": size},
        "float32",
        repeated(jax.jit(sincos_turns)),
        units=calls,
        pairs=size,
        peers={"jax.numpy": lambda limit: plain},
        error=error,
        tolerance=_SINCOS[3]["max_error"],
        comparable=False,
    )


def _budget() -> PrivacyBudget:
    return PrivacyBudget(1.0, 1e-6)


def _joint_step(config: BenchmarkConfig) -> Iterator[Task]:
    fourier, num_points, num_steps = _fourier(config), max(1, config.num_points // 10), 10
    target = mean_embedding(fourier, mixture(config.num_rows, 2)[:1000]).coordinates
    weights = np.full(num_points, 1 / num_points)
    arrays = [jnp.asarray(x, jnp.float32) for x in (target, proposal(num_points, 2), weights, 1.0, 50.0, 0.1)]
    steps = functools.partial(reduced_set._joint_steps, fourier.turns, fourier.scale, *arrays, num_steps=num_steps)
    yield Task("joint_step", {"M": num_points, "J": config.num_features, "D": 2}, "float32", steps, units=num_steps)


def _greedy_step(config: BenchmarkConfig) -> Iterator[Task]:
    fourier, starts, num_steps = _fourier(config), proposal(32, 2), 10
    noisy = perturb(jax.random.key(0), mean_embedding(fourier, mixture(config.num_rows, 2)[:1000]), _budget())
    steps = functools.partial(reduced_set.greedy_preimages, [noisy], starts, num_steps=num_steps)
    sizes = {"J": config.num_features, "D": 2}
    yield Task("greedy_step", sizes, "float32", steps, units=num_steps * len(starts))


def _adaptive(config: BenchmarkConfig) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 10)
    subspace = SubspaceMap.from_points(Gaussian(0.5e-4), rows[:num_points])
    noisy = perturb(jax.random.key(0), mean_embedding(subspace, rows), _budget())
    yield Task("adaptive", {"M": num_points, "D": 2}, "float64", lambda: adaptive(noisy)[0].weights)


def _improved(config: BenchmarkConfig) -> Iterator[Task]:
    for dim in _small(config.dims):
        rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), dim), max(1, config.num_points // 10)
        public = NormalProposal.create(np.zeros(dim), 500.0)
        sizes = {"N": len(rows), "M": num_points, "J": config.num_features, "D": dim}
        release = functools.partial(improved, jax.random.key(0), rows, Gaussian(1e-4 / dim), public)
        options = {"epsilon": 1.0, "delta": 1e-6, "num_points": num_points, "num_features": config.num_features}
        yield Task("improved", sizes, "float32", lambda run=release, options=options: run(**options).weights)


def _algorithm1(config: BenchmarkConfig) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 10)
    kernel, options = Gaussian(0.5e-4), {"epsilon": 1.0, "delta": 1e-6}
    release = functools.partial(algorithm1, jax.random.key(0), rows, kernel, rows[:num_points], **options)
    yield Task("algorithm1", {"N": len(rows), "M": num_points, "D": 2}, "float64", lambda: release().weights)


def _algorithm2(config: BenchmarkConfig) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 100)
    kernel, points = Gaussian(0.5e-4), proposal(10 * num_points, 2)
    options = {"epsilon": 1.0, "delta": 1e-6, "num_features": config.num_features}
    release = functools.partial(algorithm2, jax.random.key(0), rows, kernel, points, num_points, **options)
    sizes = {"N": len(rows), "M": num_points, "J": config.num_features, "D": 2}
    yield Task("algorithm2", sizes, "float32", lambda: release().weights)


def _generator(config: BenchmarkConfig) -> Iterator[Task]:
    num_features, num_labels, num_steps = max(2, config.num_features // 20 * 2), 2, _GENERATOR_STEPS
    features = LabelledMap(_fourier(config, num_features), num_labels)
    rows = mixture(1000, 2)
    labels = np.arange(len(rows)) % num_labels
    embedding = mean_embedding(features, np.column_stack([rows, labels]))
    noisy = perturb(jax.random.key(0), embedding, _budget())
    training = Training(num_steps=num_steps, num_cycles=1, batch_size=500)
    train = functools.partial(train_generator, jax.random.key(1), noisy, MLP(), training)
    yield Task("generator", {"J": num_features, "steps": num_steps, "D": 2}, "float32", lambda: train().shares)


_CASES = (
    *(_kernel_means, _double_mean, _basis, _fourier_mean, _sincos, _joint_step, _greedy_step),
    *(_adaptive, _improved, _algorithm1, _algorithm2, _generator),
)
CASES: dict[str, Callable[[BenchmarkConfig], Iterator[Task]]] = {case.__name__[1:]: case for case in _CASES}


# --- results -------------------------------------------------------------------------------------------------------


def run(config: BenchmarkConfig, keep: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Runs the cases: the result, with one entry of "records" per task (see :func:`measure`).

    Args:
      config: the configuration.
      keep: called with the result so far after each task.

    Raises:
      InputError: a configuration that cannot be run; before long work.
      WrongResultError: see :func:`measure`.
    """
    if config.num_rows is None:
        config = dataclasses.replace(config, num_rows=1_000_000 if _is_accelerator() else 100_000)
    config.validate()
    common.check_output_dir(config.output_dir)
    load = os.getloadavg()[0]
    environment = common.environment() | {"device_kind": jax.devices()[0].device_kind}
    bandwidth = copy_bandwidth(2**30 if _is_accelerator() else 2**27)
    stages, records, skipped = common.Stages(), [], []
    kind = "cpu" if not _is_accelerator() else environment["device_kind"]
    device = kind if config.num_rows * config.num_points >= _FULL_PAIRS else ""  # small tasks have no targets

    def result() -> dict[str, Any]:
        return {
            "experiment": "benchmark",
            "config": dataclasses.asdict(config) | {"output_dir": common.portable_path(config.output_dir)},
            "environment": environment | {"load_average": [load, os.getloadavg()[0]]},
            "wall_seconds": stages.total_seconds,
            "stage_seconds": stages.seconds,
            "peak_memory_bytes": _peak_memory(),
            "memory_bytes_per_second": bandwidth,
            "records": records,
            "skipped": skipped,
        }

    for case in config.cases:
        for task in CASES[case](config):
            if config.max_seconds and stages.total_seconds > config.max_seconds:
                skipped.append(task.name)
                continue
            with stages.stage(task.name) as progress:
                records.append(
                    measure(task, config.num_timings, progress, device=device, peer_seconds=config.peer_seconds)
                )
            keep(result())
    return result()


def table(result: dict[str, Any]) -> str:
    """The result as text, with targets beside the numbers."""
    where = result["environment"]
    lines = [
        f"{where['device']} ({where['processor']}, {where['usable_cores']} cores), jax {where['jax']}; "
        f"copies move {result['memory_bytes_per_second'] / 1e9:.0f} GB/s"
    ]
    for record in result["records"]:
        rate, ceiling, goals = record["pairs_per_second"], record["ceiling"], record["targets"]
        speed = f", {rate:.3g} pairs/s" if rate else ""
        lines.append(f"{record['name']}: {record['median_seconds']:.3g} s{speed}")
        notes = [  # (what a target may be set for, its value, text)
            ("seconds", record["median_seconds"], ""),
            ("pairs_per_second", rate, ""),
            (
                None,
                None,
                f"first call {record['first_seconds']:.3g} s ({record['compile_seconds']:.2g} s to compile), "
                f"with the compile cache {record['cached_first_seconds']:.3g} s",
            ),
        ]
        if record["max_error"] is not None:
            notes.append(("max_error", record["max_error"], f"within {record['max_error']:.1e} of float64"))
        for name, peer in record["peers"].items():
            text = f"{peer['ratio']:.3g} x {name} ({_shown(peer)})" if peer["ratio"] else f"{name}: {peer['reason']}"
            notes.append((name, peer["ratio"], text))
        if ceiling:
            text = f"{ceiling['share']:.0%} of the exp ceiling ({ceiling['variant']})"
            notes.append(("ceiling", ceiling["share"], text))
        for name, value, text in notes:
            goal, verdict = goals.get(name), ""
            if goal is not None and value is not None:
                met = value <= goal if name in ("max_error", "seconds") else value >= goal
                verdict = f"target {goal:g}{'' if text else f' {name}'.replace('_', ' ')}: {'met' if met else 'MISSED'}"
            if text or verdict:
                lines.append(f"    {'; '.join(part for part in (text, verdict) if part)}")
    lines += [f"not begun, for want of time: {name}" for name in result["skipped"]]
    return "\n".join(lines)


def _shown(contender: dict[str, Any]) -> str:
    rows = f", {contender['num_rows']} rows" if contender["num_rows"] else ""
    return f"{contender['variant']}{rows}"


def _define_flags() -> None:
    for field in dataclasses.fields(BenchmarkConfig):
        if isinstance(field.default, tuple):
            flags.DEFINE_list(field.name, [str(value) for value in field.default], field.metadata["help"])
        elif not isinstance(field.default, str):
            flags.DEFINE_integer(field.name, field.default, field.metadata["help"])
    flags.DEFINE_string("output_dir", None, "Folder for the results. Default: results, or results/quick with --quick.")
    flags.DEFINE_bool("quick", False, "A tenth of N, M and J.")
    flags.DEFINE_enum(
        "device",
        None,
        ["cpu", "gpu", "tpu"],
        "What to run on. Default: what JAX prefers. It has not been run on a TPU: tpu follows JAX's documentation.",
    )
    flags.DEFINE_list(
        "input",
        None,
        "Earlier results: print them, draw them side by side, and time nothing. Parts of one run on one device, of "
        "one commit, are put together. With --output_dir, results and picture are written there.",
    )


def choose_device(name: str | None) -> None:
    """Has JAX use one kind of device. Before its first computation.

    Raises:
      InputError: there is none.
    """
    if name in ("cpu", "tpu"):
        # The host's CPU stays available beside a TPU: float64 is computed there.
        jax.config.update("jax_platforms", {"cpu": "cpu", "tpu": "tpu,cpu"}[name])
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        raise common.InputError(f"--device={name}: {' '.join(str(error).split())}") from error
    if name not in (None, found):
        raise common.InputError(f"--device={name}: JAX finds none here, only {found}")


def _config_from_flags() -> BenchmarkConfig:
    """The configuration that the flags say, for the device that they choose."""
    values = {field.name: getattr(flags.FLAGS, field.name) for field in dataclasses.fields(BenchmarkConfig)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    try:
        values["dims"] = tuple(int(dim) for dim in values["dims"])
    except ValueError as error:
        raise common.InputError(f"--dims must be whole numbers separated by commas: {error}") from error
    choose_device(flags.FLAGS.device)
    if values["num_rows"] is None:
        values["num_rows"] = 1_000_000 if _is_accelerator() else 100_000
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
    if not isinstance(result, dict) or result.get("experiment") != "benchmark" or "skipped" not in result:
        raise common.InputError(f"--input={path}: not a result of experiments.benchmark")
    return result


def file_name(result: dict[str, Any]) -> str:
    """benchmark_cpu.json, or that with the kind of accelerator."""
    platform, kind = result["environment"]["device"].partition(":")[0], result["environment"]["device_kind"]
    return f"benchmark_{'cpu' if platform == 'cpu' else re.sub('[^a-z0-9]+', '_', kind.lower()).strip('_')}.json"


def merge(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One result for each device: records of the same name are the last one's.

    Raises:
      InputError: parts of different commits, versions or machines.
    """
    merged: dict[str, dict[str, Any]] = {}
    for result in results:
        name, varying = file_name(result), ("load_average",)
        if name not in merged:
            merged[name] = result
            continue
        before = merged[name]
        for key, value in result["environment"].items():
            if key not in varying and before["environment"].get(key) != value:
                raise common.InputError(
                    f"--input: two results for {name} differ in {key}: {before['environment'].get(key)} and {value}"
                )
        records = {record["name"]: record for record in before["records"] + result["records"]}
        cases = dict.fromkeys([*before["config"]["cases"], *result["config"]["cases"]])
        merged[name] = before | {
            "config": result["config"] | {"cases": list(cases)},
            "wall_seconds": before["wall_seconds"] + result["wall_seconds"],
            "stage_seconds": before["stage_seconds"] | result["stage_seconds"],
            "peak_memory_bytes": max(before["peak_memory_bytes"], result["peak_memory_bytes"]),
            "records": list(records.values()),
            "skipped": [name for name in before["skipped"] + result["skipped"] if name not in records],
        }
    return list(merged.values())


def _main() -> None:
    if flags.FLAGS.input:
        results = merge([load(path) for path in flags.FLAGS.input])
        folder = common.check_output_dir(flags.FLAGS.output_dir or "results")
        picture = folder / "benchmark.png"
    else:
        config = _config_from_flags()
        folder = common.check_output_dir(config.output_dir)
        try:
            results = [run(config, lambda result: common.write_json(folder / file_name(result), result))]
        except WrongResultError as error:
            sys.exit(f"error: {error}")
        picture = (folder / file_name(results[0])).with_suffix(".png")
    paths = [folder / file_name(result) for result in results]
    for path, result in zip(paths, results, strict=True):
        common.write_json(path, result)
    plots.draw_benchmark(paths, picture)
    print("\n\n".join(map(table, results)))
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    common.run_main(_define_flags, _main, compile_cache=False)  # so that it measures what compiling takes
