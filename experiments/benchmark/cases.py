"""The cases: functions that yield tasks. A new case is one function, and its name in ``CASES`` and ``config.CASES``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark.config import LARGEST_DIM, TOLERANCES, BenchmarkConfig
from experiments.benchmark.machine import is_accelerator
from experiments.benchmark.peers import ON_THE_HOST, PEERS, BuildPeer, fastest_blocked, peer_of_jax
from experiments.benchmark.targets import SINCOS_ERROR
from experiments.benchmark.task import Contender, Task
from experiments.common.mixture import mixture, proposal
from experiments.common.results import usable_cores
from kme_jax import (
    FourierMap,
    Gaussian,
    LabelledMap,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    algorithm1,
    algorithm2,
    improved,
    mean_embedding,
    perturb,
)
from kme_jax._numerics.precision import precision_of
from kme_jax._numerics.sincos import sincos_turns
from kme_jax.generators.networks import MLP
from kme_jax.generators.settings import Training
from kme_jax.generators.train import train_generator
from kme_jax.gram import double_mean, kernel_mean
from kme_jax.synthesis import reduced_set

_MOST_ROWS = 100_000  # of the cases in which rows are not what takes long
_NUM_CHECKED = {100_000: 100, math.inf: 20}  # {N up to: points, or frequencies, at which a mean is recomputed}
_KNOWN_DOUBLE_MEAN = {100_000: 0.16729849632}  # of the mixture's first N rows, D = 5


@dataclasses.dataclass(frozen=True)
class Parts:
    """What tasks are made of.

    Attributes:
      peers: {name: builder} of the peers of kernel means.
      kernel_mean: the library's kernel mean.
      first_rows: number of rows of a peer's first trial.
      generator_steps: training steps of a generator.
    """

    peers: Mapping[str, BuildPeer] = dataclasses.field(default_factory=lambda: PEERS)
    kernel_mean: Callable[..., np.ndarray] = kernel_mean
    first_rows: int = 1000
    generator_steps: int = 200


DEFAULT_PARTS = Parts()


def _sample(size: int, num_rows: int) -> np.ndarray:
    number = next(number for most, number in _NUM_CHECKED.items() if num_rows <= most)
    return np.unique(np.linspace(0, size - 1, number).astype(int))


def _in_threads(function: Callable[[np.ndarray], float], values: np.ndarray) -> np.ndarray:
    """The function of each value, in threads: NumPy's loops release the interpreter's lock."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        return np.asarray(list(pool.map(function, values)))


def _kernel_means(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    blocked = functools.partial(fastest_blocked, first_rows=parts.first_rows)
    for dim, dtype in itertools.product(config.dims, config.dtypes):
        rows, gamma = mixture(config.num_rows, dim).astype(dtype), 1e-4 / dim
        points = rows[: config.num_points]
        index = _sample(len(points), len(rows))

        @functools.cache
        def exact(num_rows, rows=rows, gamma=gamma, index=index):
            wide = rows[:num_rows].astype(np.float64)
            return _in_threads(
                lambda point: np.exp(-gamma * np.square(wide - point).sum(axis=1)).mean(),
                rows[index].astype(np.float64),
            )

        def error(_, values, num_rows, index=index, exact=exact):
            return np.max(np.abs(np.asarray(values)[index] - exact(num_rows)))

        with precision_of(rows):
            arrays = ({True: jax.device_put(rows)} if is_accelerator() else {}) | {False: rows}
        for on_device, placed_rows in arrays.items():
            # With an accelerator, peers on the host are compared where rows are there, and other peers where rows are
            # on the device.
            names = [name for name in parts.peers if len(arrays) == 1 or on_device != (name in ON_THE_HOST)]
            builders = {name: functools.partial(parts.peers[name], points, gamma) for name in names}
            yield Task(
                "kernel_means",
                {"N": len(rows), "M": len(points), "D": dim},
                dtype,
                functools.partial(parts.kernel_mean, Gaussian(gamma), points, placed_rows),
                pairs=len(rows) * len(points),
                rows_on_device=on_device,
                peers={
                    name: functools.partial(blocked, build, rows, config.num_timings, on_device=on_device)
                    for name, build in builders.items()
                },
                error=error,
                tolerance=TOLERANCES[dtype],
                exponentials=1,
            )


def _double_mean(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
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
    return (dim for dim in dims if dim <= LARGEST_DIM)


def _basis(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
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


def _fourier_mean(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
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

    blocked = functools.partial(fastest_blocked, first_rows=parts.first_rows)
    plain = functools.partial(peer_of_jax, {"jitted": _plain_cos_sin}, np.float32(2 * np.pi) * turns)
    arrays = ({True: jax.device_put(rows)} if is_accelerator() else {}) | {False: rows}
    for on_device, placed_rows in arrays.items():
        beside = functools.partial(blocked, plain, rows, config.num_timings, on_device=on_device)
        yield Task(
            "fourier_mean",
            {"N": len(rows), "J": config.num_features, "D": 2},
            "float32",
            lambda placed_rows=placed_rows: mean_embedding(fourier, placed_rows).coordinates / fourier.scale,
            pairs=len(rows) * half,
            rows_on_device=on_device,
            peers={"jax.numpy": beside} if on_device or len(arrays) == 1 else {},
            error=error,
            tolerance=TOLERANCES["float32"],
            exponentials=2,
        )


def _sincos(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    size = 2**18
    calls = max(1, min(config.num_rows, _MOST_ROWS) * config.num_points // (32 * size))  # tenths of a second
    angles = jnp.asarray(np.random.default_rng(0).normal(0, 10, size), jnp.float32)

    def repeated(function):
        def run():
            for _ in range(calls):
                values = function(angles)  # this frees the values before: fresh memory would cost more than the work
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
        tolerance=SINCOS_ERROR,
        comparable=False,
    )


def _budget() -> PrivacyBudget:
    return PrivacyBudget(1.0, 1e-6)


def _joint_step(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    fourier, num_points, num_steps = _fourier(config), max(1, config.num_points // 10), 10
    target = mean_embedding(fourier, mixture(config.num_rows, 2)[:1000]).coordinates
    weights = np.full(num_points, 1 / num_points)
    arrays = [jnp.asarray(x, jnp.float32) for x in (target, proposal(num_points, 2), weights, 1.0, 50.0, 0.1)]
    steps = functools.partial(reduced_set.joint_steps, fourier.turns, fourier.scale, *arrays, num_steps=num_steps)
    yield Task("joint_step", {"M": num_points, "J": config.num_features, "D": 2}, "float32", steps, units=num_steps)


def _greedy_step(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    fourier, starts, num_steps = _fourier(config), proposal(32, 2), 10
    noisy = perturb(jax.random.key(0), mean_embedding(fourier, mixture(config.num_rows, 2)[:1000]), _budget())
    steps = functools.partial(reduced_set.greedy_preimages, [noisy], starts, num_steps=num_steps)
    sizes = {"J": config.num_features, "D": 2}
    yield Task("greedy_step", sizes, "float32", steps, units=num_steps * len(starts))


def _adaptive(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 10)
    subspace = SubspaceMap.from_points(Gaussian(0.5e-4), rows[:num_points])
    noisy = perturb(jax.random.key(0), mean_embedding(subspace, rows), _budget())
    yield Task("adaptive", {"M": num_points, "D": 2}, "float64", lambda: adaptive_weights(noisy)[0].weights)


def _improved(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    for dim in _small(config.dims):
        rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), dim), max(1, config.num_points // 10)
        public = NormalProposal.create(np.zeros(dim), 500.0)
        sizes = {"N": len(rows), "M": num_points, "J": config.num_features, "D": dim}
        release = functools.partial(improved, jax.random.key(0), rows, Gaussian(1e-4 / dim), public)
        options = {"budget": _budget(), "num_points": num_points, "num_features": config.num_features}
        yield Task("improved", sizes, "float32", lambda run=release, options=options: run(**options).weights)


def _algorithm1(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 10)
    kernel, options = Gaussian(0.5e-4), {"budget": _budget()}
    release = functools.partial(algorithm1, jax.random.key(0), rows, kernel, rows[:num_points], **options)
    yield Task("algorithm1", {"N": len(rows), "M": num_points, "D": 2}, "float64", lambda: release().weights)


def _algorithm2(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    rows, num_points = mixture(min(config.num_rows, _MOST_ROWS), 2), max(1, config.num_points // 100)
    kernel, points = Gaussian(0.5e-4), proposal(10 * num_points, 2)
    options = {"budget": _budget(), "num_features": config.num_features}
    release = functools.partial(algorithm2, jax.random.key(0), rows, kernel, points, num_points, **options)
    sizes = {"N": len(rows), "M": num_points, "J": config.num_features, "D": 2}
    yield Task("algorithm2", sizes, "float32", lambda: release().weights)


def _generator(config: BenchmarkConfig, parts: Parts) -> Iterator[Task]:
    num_features, num_labels, num_steps = max(2, config.num_features // 20 * 2), 2, parts.generator_steps
    features = LabelledMap(_fourier(config, num_features), num_labels)
    rows = mixture(1000, 2)
    labels = np.arange(len(rows)) % num_labels
    embedding = mean_embedding(features, np.column_stack([rows, labels]))
    noisy = perturb(jax.random.key(0), embedding, _budget())
    training = Training(num_steps=num_steps, num_cycles=1, batch_size=500)
    train = functools.partial(train_generator, jax.random.key(1), noisy, MLP(), training)
    yield Task("generator", {"J": num_features, "steps": num_steps, "D": 2}, "float32", lambda: train().shares)


CASES: dict[str, Callable[[BenchmarkConfig, Parts], Iterator[Task]]] = {
    "kernel_means": _kernel_means,
    "double_mean": _double_mean,
    "basis": _basis,
    "fourier_mean": _fourier_mean,
    "sincos": _sincos,
    "joint_step": _joint_step,
    "greedy_step": _greedy_step,
    "adaptive": _adaptive,
    "improved": _improved,
    "algorithm1": _algorithm1,
    "algorithm2": _algorithm2,
    "generator": _generator,
}
