"""Writing of new files, complete or not at all, and the error of a file that cannot be read or written."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Sequence
from typing import IO

MANIFEST, MAX_MANIFEST = "manifest.json", 1 << 16  # of the folder of a release, and its bytes


class FileError(ValueError):
    """A file cannot be read or written, or its content does not have the expected form."""


def check_new_file(path: str | os.PathLike, suffixes: Sequence[str]) -> pathlib.Path:
    """Refuses a path to which a new file cannot be written.

    The folder of a release and the folders in it are refused, too: they are published, and exact results about private
    rows could end up there.

    Args:
      path: of the new file.
      suffixes: that are allowed.

    Raises:
      FileError: the suffix is not allowed, the file exists, its folder does not exist, or it is in a release.
    """
    path = pathlib.Path(path)
    if path.suffix not in suffixes:
        raise FileError(f"{path}: expected a {' or '.join(suffixes)} file")
    if path.exists() or path.is_symlink():
        raise FileError(f"{path} exists: choose another file")
    if not path.parent.is_dir():
        raise FileError(f"{path.parent}: no such folder")
    if release := next(filter(_is_release, pathlib.Path(os.path.realpath(path)).parents), None):
        raise FileError(f"{release} is the folder of a release, whose files are fixed: choose another folder")
    return path


def _is_release(folder: pathlib.Path) -> bool:
    """Whether a folder has the manifest of a release. Other programs have files of this name, too."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            document = json.loads(file.read(MAX_MANIFEST))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.keys() >= {"kind", "version", "files"}


def identity_of(path: pathlib.Path) -> tuple[str, int, int]:
    """What tells a file from others and from itself after a change: its path, its size, and the time of its last
    change.

    Raises:
      FileError: there is no such file any more.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    return str(path.absolute()), found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def new_file(path: str | os.PathLike, suffixes: Sequence[str]) -> Iterator[IO[bytes]]:
    """Context manager: a file to write to. It exists after the block only if the block ends without an error.

    Permissions follow the umask.

    Raises:
      FileError: as for :func:`check_new_file`, or the file cannot be written.
    """
    path = check_new_file(path, suffixes)
    try:
        temporary = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from error
