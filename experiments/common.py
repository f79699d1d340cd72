"""What the experiments share: flags, data, progress, atomic results, one-line errors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import app, flags
from tqdm import tqdm

import kme_jax
from experiments.mixture import mixture
from kme_jax._numerics.compile_cache import temporary_compile_cache, use_compile_cache
from kme_jax._numerics.precision import (
    Progress,
    check_columns,
    check_points,
    hide_absent_devices,
)
from kme_jax.privacy import PrivacyBudget, gaussian_noise_multiplier

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# Flags that functions here define are those of the program that calls them: --help lists them.
flags.disclaim_key_flags()


class InputError(ValueError):
    """Something the user can put right: reported as one line, exit status 2."""


@contextlib.contextmanager
def input_errors(prefix: str = "") -> Iterator[None]:
    """Turns a ValueError or OSError within it into an :class:`InputError`."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise InputError(prefix + " ".join(str(error).split())) from error


# --- configuration -------------------------------------------------------------------------------------------------


def flag(default: Any, text: str) -> Any:
    """A field of a configuration, and the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": text})


def define_flags(configuration: type) -> None:
    """Defines one absl flag for each field of a dataclass whose fields are made by :func:`flag`: for an int, a float,
    a bool or a str, or for a tuple of numbers or text, separated by commas."""
    for field in dataclasses.fields(configuration):
        text, default = field.metadata["help"], field.default
        if isinstance(default, tuple):
            shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in default]
            flags.DEFINE_list(field.name, shown, text)
        else:
            kinds = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
            kinds[bool] = flags.DEFINE_boolean
            kinds[type(default)](field.name, default, text)


def config_from_flags(configuration: type) -> Any:
    """The configuration that the flags of :func:`define_flags` say.

    Raises:
      InputError: a list with something in it that is not a number.
    """
    values = {}
    for field in dataclasses.fields(configuration):
        values[field.name] = getattr(flags.FLAGS, field.name)
        if isinstance(field.default, tuple):
            try:
                values[field.name] = tuple(map(type(field.default[0]), values[field.name]))
            except ValueError as error:
                raise InputError(f"--{field.name} must be numbers separated by commas: {error}") from error
    return configuration(**values)


@dataclasses.dataclass(frozen=True)
class MixtureConfig:
    """Configuration of figures 1 and 2: one field per flag, see :func:`define_mixture_flags`."""

    dim: int = 2
    num_rows: int | None = None
    max_points: int = 10_000
    epsilons: tuple[float, ...] = (0.01, 0.1, 1.0)
    delta: float = 1e-6
    gamma: float | None = None
    calibration: str = "classical"
    diameter: str = "published"
    tolerance: float = 1e-5
    seed: int = 0
    data_seed: int = 0
    num_noise_draws: int = 1000
    num_repeats: int = 3
    num_features: int = 10_000
    joint_steps: int = 400
    improved_trajectories: int = 8
    improved_sizes: tuple[int, ...] = (10, 31, 100, 316, 1000, 10_000)
    improved_draws: int = 5
    proposal_scale: float = 500.0
    dataset: str | None = None
    output_dir: str = "results"

    @property
    def kernel(self) -> kme_jax.Gaussian:
        """exp(−γ‖x − y‖²) with γ = 1e-4 / D unless given ([B] appendix B)."""
        return kme_jax.Gaussian(1e-4 / self.dim if self.gamma is None else self.gamma)

    def validate(self) -> None:
        """Raises InputError for whatever can be refused without data."""
        for name in (
            "dim",
            "max_points",
            "num_noise_draws",
            "num_repeats",
            "joint_steps",
            "improved_trajectories",
            "improved_draws",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, got {getattr(self, name)}")
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


def define_mixture_flags() -> None:
    """Defines one absl flag per field of :class:`MixtureConfig`. Call it from a main module only."""
    default = MixtureConfig()
    flags.DEFINE_integer("dim", default.dim, "D, the number of columns.")
    flags.DEFINE_integer(
        "num_rows", None, "N, the number of private rows. Default: 100000, or all rows of --dataset.", lower_bound=1
    )
    flags.DEFINE_integer("max_points", default.max_points, "The largest M, the number of synthetic points.")
    flags.DEFINE_list("epsilons", [epsilon_key(e) for e in default.epsilons], "Privacy levels ε, separated by commas.")
    flags.DEFINE_float("delta", default.delta, "δ of (ε, δ)-differential privacy, in (0, 1).")
    flags.DEFINE_float("gamma", None, "γ of the kernel exp(-γ‖x-y‖²). Default: 1e-4 / D.")
    flags.DEFINE_enum(
        "calibration",
        default.calibration,
        ["classical", "analytic"],
        "σ from the classical bound, as published (ε <= 1), or from the exact condition of Balle & Wang 2018.",
    )
    flags.DEFINE_enum(
        "diameter",
        default.diameter,
        ["published", "proved"],
        "Sensitivity of one row: 2/N as published, or the tight √2/N that holds for kernels k >= 0.",
    )
    flags.DEFINE_float("tolerance", default.tolerance, "Squared residual norm at or below which a point adds nothing.")
    flags.DEFINE_integer("seed", default.seed, "Seed of the noise.")
    flags.DEFINE_integer("data_seed", default.data_seed, "Seed of the mixture and of the proposal. Published: 0.")
    flags.DEFINE_integer("num_noise_draws", default.num_noise_draws, "Noise draws per curve of algorithm 1.")
    flags.DEFINE_integer("num_repeats", default.num_repeats, "Repeats (frequencies and noise) of algorithm 2's curves.")
    flags.DEFINE_integer(
        "num_features", default.num_features, "J, the number of Fourier features of algorithm 2, even."
    )
    flags.DEFINE_integer("joint_steps", default.joint_steps, "Optimiser steps in each round of algorithm 2, joint.")
    flags.DEFINE_integer(
        "improved_trajectories",
        default.improved_trajectories,
        "Trajectories in each round of the sampler behind `improved` in figure 2.",
    )
    flags.DEFINE_list(
        "improved_sizes",
        [str(m) for m in default.improved_sizes],
        "M of `improved`, as far as there are points; up to 1000 in figure 2.",
    )
    flags.DEFINE_integer(
        "improved_draws", default.improved_draws, "Noise draws of `improved` in figure 1 (one beyond M = 1000)."
    )
    flags.DEFINE_float("proposal_scale", default.proposal_scale, "Standard deviation of the random public points.")
    flags.DEFINE_string(
        "dataset", None, "An .npz file with an array X_private [rows, D], to be used instead of the generated mixture."
    )
    flags.DEFINE_string("output_dir", default.output_dir, "Folder for the JSON result and its picture.")
    for name in (field.name for field in dataclasses.fields(MixtureConfig)):
        # Key flags of the main module are what --help lists.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def mixture_config_from_flags() -> MixtureConfig:
    """The configuration the flags say.

    Raises:
      InputError: an ε or a size that is not a number.
    """
    values = {field.name: getattr(flags.FLAGS, field.name) for field in dataclasses.fields(MixtureConfig)}
    for name, kind in (("epsilons", float), ("improved_sizes", int)):
        try:
            values[name] = tuple(kind(value) for value in values[name])
        except ValueError as error:
            raise InputError(f"--{name} must be numbers separated by commas: {error}") from error
    return MixtureConfig(**values)


def load_rows(config: MixtureConfig) -> np.ndarray:
    """The private rows of an experiment: the mixture, or the array X_private of ``--dataset``.

    Raises:
      InputError: no such file, no such array, or one of a wrong shape or with values that are not finite.
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
    wanted = config.num_rows or len(rows)
    if wanted > len(rows):
        raise InputError(f"{name}: it has {len(rows)} rows, fewer than --num_rows={wanted}")
    return rows[:wanted]


# --- results -------------------------------------------------------------------------------------------------------


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """Device, versions, cores and commit that a result was made with.

    Where the program runs in a copy whose git history is missing or another one, ``KME_JAX_COMMIT`` says which commit
    that is a copy of.
    """

    def git(*words: str) -> str | None:
        try:
            return subprocess.run(
                ["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    stated = os.environ.get("KME_JAX_COMMIT")
    device, processor = jax.devices()[0], _processor()
    kind = processor if device.platform == "cpu" else device.device_kind
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", "kme_jax", "experiments")
    return {
        "device": f"{device.platform}: {kind} x {jax.device_count()}",
        "processor": processor,
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "python": sys.version.split()[0],
        "jax": jax.__version__,
        "numpy": np.__version__,
        "kme_jax": kme_jax.__version__,
        "git_commit": stated or commit,
        "git_changed_files": None if stated or changed is None else len(changed.splitlines()),
    }


def check_output_dir(folder: str | os.PathLike) -> pathlib.Path:
    """The folder, made if need be.

    Raises:
      InputError: it cannot be made or written to.
    """
    path = pathlib.Path(folder)
    with input_errors(f"--output_dir={folder}: cannot write there: "):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    return path


def portable_path(path: str | os.PathLike) -> str:
    """The path as a committed result may show it: relative to the checkout where it lies within."""
    resolved = pathlib.Path(path).resolve()
    return str(resolved.relative_to(REPOSITORY)) if resolved.is_relative_to(REPOSITORY) else str(path)


@contextlib.contextmanager
def atomic_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary path beside ``path`` (same suffix) that takes its place when the block ends well, and goes if not."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} to JSON")


def write_json(path: pathlib.Path, result: dict[str, Any]) -> None:
    """Writes a result atomically; NaN and infinity are refused."""
    text = json.dumps(result, indent=1, default=_jsonable, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n")


# --- compile time --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def compile_seconds() -> Iterator[list[float]]:
    """What JAX takes within the block to lower programs, and to compile them or to load them from its cache."""
    seconds: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/") and "trace" not in event:  # traces nest, and would count twice
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def first_calls(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Calls a function as a first call, twice: nothing is compiled, and then programs are in JAX's persistent cache.

    All compiled programs are forgotten before each, those of other functions too. The persistent cache is a new one,
    whichever else is in use, so that what earlier programs kept makes no difference.

    Returns:
      Its value, and seconds: "first_seconds" and the part of them in the compiler, "compile_seconds"; and
      "cached_first_seconds" and "cached_compile_seconds" with the persistent cache.
    """
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, temporary_compile_cache(pathlib.Path(folder)):
        for prefix in ("", "cached_"):
            jax.clear_caches()
            started = time.perf_counter()
            with compile_seconds() as durations:
                value = jax.block_until_ready(function())
            times |= {f"{prefix}first_seconds": time.perf_counter() - started}
            times |= {f"{prefix}compile_seconds": sum(durations)}
    return value, times


# --- progress ------------------------------------------------------------------------------------------------------


_interrupted: list[bool] = []  # not empty once the user has asked for an end


class Stages:
    """A progress bar per stage of a run, and the seconds each took.

    Attributes:
      seconds: {stage: wall seconds}.
    """

    def __init__(self, title: str = ""):
        self._title = title
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Progress]:
        """Shows a bar while the block runs; the value is its ``progress(done, total)``."""
        started = time.perf_counter()
        interval = 0.2 if sys.stderr.isatty() else 30
        label = f"{self._title}: {name}" if self._title else name
        form = "{l_bar}{bar:24}| {elapsed}<{remaining}"
        with tqdm(desc=f"{label:<44}", total=1, bar_format=form, mininterval=interval, file=sys.stderr) as bar:

            def progress(done: int, total: int) -> None:
                if _interrupted:
                    raise KeyboardInterrupt
                bar.total = total
                bar.update(done - bar.n)

            yield progress
            progress(1, 1)
        self.seconds[name] = time.perf_counter() - started

    @property
    def total_seconds(self) -> float:
        """Wall seconds since the start."""
        return time.perf_counter() - self._started


class Cells:
    """Records of a long run, kept in a JSON file as they come: a run with the same settings, by the same commit and
    machine, goes on where an earlier one was.

    Args:
      path: the file.
      experiment: name of the experiment.
      settings: what has to be the same.
      names: the fields that tell one record from another.

    Attributes:
      result: what is in the file.
    """

    def __init__(self, path: pathlib.Path, experiment: str, settings: dict[str, Any], names: tuple[str, ...]):
        self._path, self._names, self._started = path, names, time.perf_counter()
        begun = {"experiment": experiment, "config": settings, "environment": environment()}
        begun = json.loads(json.dumps(begun))
        self.result = begun | {"wall_seconds": 0.0, "cells": []}
        with contextlib.suppress(OSError, ValueError):
            earlier = json.loads(path.read_text())
            if all(earlier.get(name) == value for name, value in begun.items()):
                self.result = earlier
        self._before = self.result["wall_seconds"]

    def __contains__(self, key: tuple) -> bool:
        return any(tuple(cell[name] for name in self._names) == key for cell in self.result["cells"])

    def add(self, cell: dict[str, Any]) -> None:
        """Keeps one more record."""
        self.result["cells"].append(cell)
        self.result["wall_seconds"] = self._before + time.perf_counter() - self._started
        write_json(self._path, self.result)


def run_main(define_flags: Callable[[], None], main: Callable[[], None], *, compile_cache: bool = True) -> None:
    """Defines flags, parses the command line and runs ``main``; input errors and unknown words become one line.

    Args:
      define_flags: defines the program's flags.
      main: the program.
      compile_cache: whether compiled programs are kept, see ``kme_jax._numerics.compile_cache``.
    """
    define_flags()

    def interrupt(*_):
        # An exception out of a signal handler is lost where compiled code calls back into Python and ignores it;
        # progress raises it again.
        _interrupted.append(True)
        raise KeyboardInterrupt

    def guarded(argv):
        signal.signal(signal.SIGINT, interrupt)
        try:
            if len(argv) > 1:
                raise InputError(f"unknown word {argv[1]!r}: every option is a flag, see --help")
            hide_absent_devices()
            if compile_cache:
                use_compile_cache()
            main()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        except ModuleNotFoundError as error:
            if (error.name or "kme_jax").split(".")[0] in ("kme_jax", "experiments"):
                raise
            print(f'error: {error.name} is not installed: pip install -e ".[experiments]"', file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print("interrupted: nothing was written for the unfinished run", file=sys.stderr)
            sys.exit(130)

    app.run(guarded)
