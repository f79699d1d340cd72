"""Keeps compiled programs from one run to the next, by JAX's persistent compilation cache.

Only the main function of a program calls :func:`use_compile_cache`. It changes JAX's global configuration. Importing
the library never does.

JAX runs the programs that are in the folder, so no other user may write there. Compiled programs depend on shapes and
public settings, and on no value of a private row; a test shows it. Still, only the owner may read the folder, because
names and times of files tell what was run, and when.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
from jax.experimental.compilation_cache import compilation_cache

MAX_BYTES = 1 << 29
"""Limit of the size of the folder. It is enforced when a program starts, so one run may exceed it."""

_VARIABLE = "KME_JAX_CACHE_DIR"
# A run compiles hundreds of small programs, which together take as long as the large ones.
_KEEP_ALL = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}
_OPTIONS = ("jax_compilation_cache_dir", "jax_logging_level", *_KEEP_ALL)


class UnsafeFolderError(ValueError):
    """Other users can write to the folder, or could have written to it."""


def cache_folder(environment: Mapping[str, str]) -> pathlib.Path | None:
    """The folder that environment variables name, or None if the cache is off.

    It is ``KME_JAX_CACHE_DIR``, else ``$XDG_CACHE_HOME/kme_jax``, else ``~/.cache/kme_jax``. An empty
    ``KME_JAX_CACHE_DIR``, or ``KME_JAX_CACHE_DIR=off``, switches the cache off.
    """
    chosen = environment.get(_VARIABLE)
    if chosen is not None:
        return None if chosen.strip().lower() in ("", "off") else pathlib.Path(chosen).expanduser().absolute()
    base = pathlib.Path(environment.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the standard says that a relative path is ignored
        try:
            base = pathlib.Path.home() / ".cache"
        except RuntimeError:  # this user has no home
            return None
    return base / "kme_jax"


def _others_may_write(status: os.stat_result) -> bool:
    """Whether another user may add or replace entries of a folder. A group with the user's own number is private."""
    group = bool(status.st_mode & stat.S_IWGRP) and status.st_gid != status.st_uid
    return group or bool(status.st_mode & stat.S_IWOTH)


def private_folder(folder: pathlib.Path) -> pathlib.Path:
    """Creates a folder of mode 0700, or checks that programs can be loaded safely from an existing one.

    If others can read the folder, its mode becomes 0700.

    Args:
      folder: an absolute path.

    Returns:
      Its path without symbolic links.

    Raises:
      UnsafeFolderError: the folder, or a file in it, belongs to another user; or other users can write to the folder,
        or to a folder above it, so that they can replace it.
      OSError: the folder cannot be created, read or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve(strict=True)
    owners = {0, os.geteuid()}
    for parent in reversed(folder.parents):
        status = parent.stat()
        if status.st_uid not in owners or (_others_may_write(status) and not status.st_mode & stat.S_ISVTX):
            raise UnsafeFolderError(f"{folder}: other users can replace it, as they can write to {parent}")
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise UnsafeFolderError(f"{folder}: it belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFolderError(f"{folder}: other users can write to it; empty it, and run chmod 700 on it")
    if any(file.st_uid not in owners for _, file in _files(folder)):
        raise UnsafeFolderError(f"{folder}: something in it belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def _files(folder: pathlib.Path) -> list[tuple[pathlib.Path, os.stat_result]]:
    """The files in a folder and its subfolders, with their status. Files that another process removes are left out."""
    files = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = pathlib.Path(parent, name)
                files.append((path, path.lstat()))
    return files


def prune(folder: pathlib.Path, max_bytes: int) -> None:
    """Removes the least recently used files, until the rest has at most ``max_bytes``.

    JAX can limit the cache itself (``jax_compilation_cache_max_size``), but only if a package for locks is installed.
    In JAX 0.10 one incomplete entry then stops it from keeping more programs.
    """
    files = _files(folder)
    excess = sum(status.st_size for _, status in files) - max_bytes
    for path, status in sorted(files, key=lambda file: max(file[1].st_atime_ns, file[1].st_mtime_ns)):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= status.st_size


def use_compile_cache() -> pathlib.Path | None:
    """Makes JAX keep compiled programs, and use those that earlier runs kept. For the main function of a program.

    A cache that was set up for JAX itself, by ``JAX_COMPILATION_CACHE_DIR`` or in its configuration, is not changed. If
    the folder cannot be created or written, there is no cache. If the folder is unsafe, there is no cache, and one line
    on standard error says why.

    Returns:
      The folder that JAX uses, or None if there is no cache.
    """
    config = cast(Any, jax.config)  # it has its attributes from when JAX is imported
    if not config.jax_enable_compilation_cache:
        return None
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or config.jax_compilation_cache_dir:
        return pathlib.Path(config.jax_compilation_cache_dir) if config.jax_compilation_cache_dir else None
    folder = cache_folder(os.environ)
    if folder is None or not hasattr(os, "geteuid"):  # Windows has other permissions than those checked here
        return None
    try:
        folder = private_folder(folder)
        prune(folder, MAX_BYTES)
    except UnsafeFolderError as error:
        print(f"warning: compiled programs are not kept: {error} (or set {_VARIABLE})", file=sys.stderr)
        return None
    except OSError:
        return None
    _start(folder)
    return folder


def _start(folder: pathlib.Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in _KEEP_ALL.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    if jax.__version_info__ < (0, 11) and "JAX_LOGGING_LEVEL" not in os.environ and jax.default_backend() == "cpu":
        # JAX 0.10 reports an error for each program that it loads for a CPU, although the machine is the right one
        # (github.com/jax-ml/jax/issues/38445). The machine's features are part of a program's name in the cache.
        jax.config.update("jax_logging_level", "CRITICAL")


@contextlib.contextmanager
def temporary_compile_cache(folder: pathlib.Path) -> Iterator[None]:
    """Context manager: JAX keeps compiled programs in a private folder. For programs that measure compile times."""
    logging.getLogger("jax._src.compilation_cache").setLevel(logging.WARNING)  # absl's programs show more
    before = {name: getattr(jax.config, name) for name in _OPTIONS}
    _start(folder)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
