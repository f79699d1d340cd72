"""Results: JSON files that say which configuration, machine and commit they are from."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import kme_jax
from experiments.common.errors import input_errors

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent


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
    """Device, versions, cores and commit that a result was computed with.

    A program may run in a copy of the project without its git history. Then the environment variable
    ``KME_JAX_COMMIT`` names the commit.
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
    """The folder, which is created if it does not exist.

    Raises:
      InputError: if the folder cannot be created or written to.
    """
    path = pathlib.Path(folder)
    with input_errors(f"--output_dir={folder}: cannot write there: "):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    return path


def portable_path(path: str | os.PathLike) -> str:
    """The path as a result records it: relative to the checkout if the path is within it, else its last name alone."""
    resolved = pathlib.Path(path).resolve()
    return str(resolved.relative_to(REPOSITORY)) if resolved.is_relative_to(REPOSITORY) else resolved.name


@contextlib.contextmanager
def atomic_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary path beside ``path`` with the same suffix.

    The file there replaces ``path`` if the block succeeds, and is deleted if the block fails.
    """
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
    """Writes a result atomically.

    Raises:
      ValueError: if a number is NaN or infinite.
    """
    text = json.dumps(result, indent=1, default=_jsonable, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n")


class Cells:
    """Records of a long run, each written to a JSON file when it is computed.

    A later run with the same settings, commit and machine keeps the records of the file and computes the others.

    Args:
      path: the file.
      experiment: name of the experiment.
      settings: of the run. Records of a file with other settings are dropped.
      names: the fields that tell one record from another.

    Attributes:
      result: the contents of the file.
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
        """Adds a record, and writes the file."""
        self.result["cells"].append(cell)
        self.result["wall_seconds"] = self._before + time.perf_counter() - self._started
        write_json(self._path, self.result)
