"""Folders that are written whole or not at all, and what is read from them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ROOM = 1 << 20  # bytes, for a statement and points
_TEMPORARY = ".kme_jax-"


class ReleaseError(ValueError):
    """A folder that cannot be written, or is no release."""


def check_folder(folder: str | os.PathLike, num_bytes: int = 0) -> pathlib.Path:
    """Refuses a folder that a release could not be saved to, before anything is spent.

    Args:
      folder: it must not exist, and the folder it is to be in must.
      num_bytes: what there has to be room for.

    Raises:
      ReleaseError: it exists, or cannot be written.
    """
    folder = pathlib.Path(folder)
    if folder.exists() or folder.is_symlink():
        raise ReleaseError(f"{folder} exists: a release is never overwritten; choose another folder")
    try:
        with tempfile.TemporaryFile(dir=folder.parent) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes + 1)
            os.fsync(file.fileno())
    except OSError as error:
        raise ReleaseError(f"{folder.parent}: cannot be written ({error.strerror or error})") from error
    return folder


def save_folder(folder: str | os.PathLike, writers: dict[str, Callable[[pathlib.Path], None]]) -> pathlib.Path:
    """Writes a new folder with files, each by a function of its path: all of them, or nothing.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    folder = check_folder(folder)
    try:
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder.parent))
    except OSError as error:
        raise ReleaseError(f"{folder.parent}: cannot be written ({error.strerror})") from error
    try:
        for name, write in writers.items():
            write(temporary / name)
            os.chmod(temporary / name, 0o644)
            flush(temporary / name)
        os.chmod(temporary, 0o755)
        flush(temporary)
        os.rename(temporary, folder)  # fails if somebody has put a file, or a folder with something in it, there
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(OSError):  # it is there, and complete, whether or not this can be flushed
        flush(folder.parent)
    return folder


def arrays_writer(arrays: dict[str, np.ndarray]) -> Callable[[pathlib.Path], None]:
    """Writes arrays to a .npz file."""
    return lambda path: np.savez_compressed(path, **arrays)


def json_writer(value: Any) -> Callable[[pathlib.Path], None]:
    """Writes a .json file for people."""
    return lambda path: path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def check_files(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    """Raises ReleaseError unless the folder has these files."""
    if not folder.is_dir():
        raise ReleaseError(f"{folder}: no such folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and set(missing) <= {"points.npz", "rows.npz", "synthetic.parquet"}:
        raise ReleaseError(
            f"{folder}: has no {missing[0]} yet; kme-jax synthesise {folder} --output=... makes a release of it"
        )
    if missing:
        raise ReleaseError(f"{folder}: is no release, it has no {missing[0]}")


def check_version(folder: pathlib.Path, found: Any, known: int) -> None:
    """Raises ReleaseError unless a release has the version that this program writes."""
    if found != known:
        remedy = "update" if isinstance(found, int) and found > known else "read it with an earlier one"
        raise ReleaseError(f"{folder}: is of version {found}, this is kme_jax for version {known}: {remedy}")


@contextlib.contextmanager
def damaged(path: pathlib.Path) -> Iterator[None]:
    """Says of any error that the file is damaged.

    Raises:
      ReleaseError: instead.
    """
    try:
        yield
    except Exception as error:  # whatever damaged bytes lead to
        raise ReleaseError(f"{path}: is damaged ({error})") from error


def load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz file.

    Raises:
      ReleaseError: it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}  # an AttributeError, if it is one array
    except Exception as error:
        raise ReleaseError(f"{path}: is damaged ({error})") from error


def flush(path: pathlib.Path) -> None:
    """Has what was written to a file or folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
