"""The device: its memory bandwidth, and how fast it evaluates exponentials."""

from __future__ import annotations

import functools
import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark.task import Contender, Run
from experiments.common.errors import InputError
from experiments.common.results import usable_cores
from kme_jax._numerics.precision import precision_of

PAUSE = 0.02  # seconds before a timing on a CPU, in which the threads of earlier work stop spinning
# Seconds of the runs in a row before a timing and within it, on an accelerator: a run after a pause is slower.
WARM_UP, IN_A_ROW = 0.02, 0.04


def choose_device(name: str | None) -> None:
    """Makes JAX use one kind of device. Call it before JAX's first computation.

    Raises:
      InputError: if there is no such device.
    """
    if name in ("cpu", "tpu"):
        # The host's CPU stays available beside a TPU: float64 is computed there.
        jax.config.update("jax_platforms", {"cpu": "cpu", "tpu": "tpu,cpu"}[name])
    try:
        default = jax.default_backend()
    except RuntimeError as error:
        raise InputError(f"--device={name}: {' '.join(str(error).split())}") from error
    if name not in (None, default):
        raise InputError(f"--device={name}: JAX finds none here, only {default}")


def seconds_of(run: Run, pause: float = PAUSE) -> float:
    """Wall seconds of one run, after a pause."""
    time.sleep(pause)
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def seconds_in_a_row(run: Run, warm_up: float = WARM_UP, in_a_row: float = IN_A_ROW) -> float:
    """Mean wall seconds of runs in a row, one after the other.

    Args:
      run: one run. One that takes longer than ``in_a_row`` is timed once.
      warm_up: about how many seconds runs take before the first that counts. At least one does.
      in_a_row: about how many seconds the runs that count take.
    """
    started, warming = time.perf_counter(), 0
    while not warming or time.perf_counter() - started < warm_up:
        jax.block_until_ready(run())
        warming += 1
    number = math.ceil(in_a_row * warming / (time.perf_counter() - started))
    started = time.perf_counter()
    for _ in range(number):
        jax.block_until_ready(run())
    return (time.perf_counter() - started) / number


def fastest(variants: dict[str, Run], num_trials: int = 2) -> str:
    """The variant with the shortest run. Variants run by turns, after a warm-up."""
    for run in variants.values():
        jax.block_until_ready(run())
    best = dict.fromkeys(variants, math.inf)
    for _, (name, run) in itertools.product(range(num_trials), variants.items()):
        best[name] = min(best[name], seconds_of(run))
    return min(best, key=best.__getitem__)


def is_accelerator() -> bool:
    """Whether JAX computes on an accelerator."""
    return jax.default_backend() != "cpu"


def copy_bandwidth(num_bytes: int, num_trials: int = 5) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    values = jnp.zeros(num_bytes // 4, jnp.float32)
    copy = jax.jit(lambda values: values + 1)
    jax.block_until_ready(copy(values))
    return 2 * values.nbytes / min(seconds_of(lambda: copy(values)) for _ in range(num_trials))


@functools.partial(jax.jit, static_argnames=("num_passes", "depth"))
def exp_passes(tile: jax.Array, *, num_passes: int, depth: int) -> jax.Array:
    """Applies exp(−·) to a tile repeatedly, ``depth`` times in each pass over it.

    Each exponential is the argument of the next, so the compiler can drop none. The minus keeps values in [0, 1].
    """

    def one_pass(_, values):
        for _ in range(depth):
            values = jnp.exp(-values)
        return values

    return jax.lax.fori_loop(0, num_passes, one_pass, tile)


@functools.cache
def exp_ceiling(dtype: str, num_elements: int) -> tuple[Contender, int]:
    """The fastest variant that evaluates exponentials on every core and device, and how many exponentials it evaluates.

    Variants on a CPU are a tile in each core's cache with one thread for each core, and a larger array that XLA divides
    among the cores. Variants on an accelerator are arrays that fill it, with one or several exponentials for each read
    and write. The number of exponentials is ``num_elements``, rounded to a whole number of passes.
    """
    devices = jax.local_devices()
    if dtype == "float64" and devices[0].platform == "tpu":
        devices = jax.local_devices(backend="cpu")
    shapes = [(2**e, depth, 1) for e in (20, 22, 24) for depth in (1, 8, 64)]
    if devices[0].platform == "cpu":
        threads = max(1, usable_cores() // len(devices))
        shapes = [(2**e, 1, threads) for e in range(11, 16)] + [(2**e, 1, 1) for e in (16, 18, 20)]
    pool = ThreadPoolExecutor(len(devices) * max(threads for _, _, threads in shapes))

    def build(size: int, depth: int, threads: int, total: int) -> tuple[Run, int]:
        with precision_of(np.empty(0, dtype)):
            start = np.random.default_rng(0).uniform(size=size).astype(dtype)
            tiles = [jax.device_put(start, device) for device in devices for _ in range(threads)]
        num_passes = max(1, total // (size * depth * len(tiles)))

        def work(tile: jax.Array) -> None:
            with precision_of(tile):  # each thread has a setting of its own
                jax.block_until_ready(exp_passes(tile, num_passes=num_passes, depth=depth))

        return lambda: list(pool.map(work, tiles)), num_passes * size * depth * len(tiles)

    names = {
        f"{len(devices) * threads} x {size}, depth {depth}": (size, depth, threads) for size, depth, threads in shapes
    }
    trial = max(num_elements // 16, 2**22)  # a multiple of every variant's size, or nearly
    best = fastest({name: build(*shape, trial)[0] for name, shape in names.items()}, num_trials=8)
    run, exact = build(*names[best], num_elements)
    run()  # compiles
    return Contender(run, best), exact
