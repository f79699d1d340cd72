"""A folder that keeps the finished parts of one measurement, so that an interrupted run goes on. SENSITIVE.

It holds ``run.json`` (what the run is), ``part-0.arrow`` and so on (exact sums of parts of the rows), and ``measured``
(the noisy result, which is public) when noise was drawn. Folder and files are for their owner alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from kme_jax._numerics.short_repr import short_repr
from kme_jax.partial.sums import Partial
from kme_jax.storage.files import new_file
from kme_jax.storage.folders import flush

_VERSION = 1
_FIELDS = {"version", "run", "facts"}
_FILE, _COMPLETE, _MEASURED = "run.json", "complete.json", "measured"


class RunError(ValueError):
    """A folder of partial sums is of another measurement, is complete, is in use, or cannot be written."""


@short_repr
@dataclasses.dataclass(frozen=True)
class Run:
    """One measurement whose parts are kept until its noise is drawn. Open it with :func:`open_run`. SENSITIVE.

    Formal guarantee: a run has one noisy result. It is kept before anybody sees it, and the run is complete from then
    on: going on returns what was kept, and never draws again. A draw that was interrupted before it was kept was seen
    by nobody. The ledger knows the run by its name, and is charged once.

    Attributes:
      folder: of the run.
      name: of the run, chosen at random: ``Task.run`` of its sums, and ``run`` of ``Spending.spend``.
    """

    folder: pathlib.Path
    name: str

    @property
    def measured(self) -> pathlib.Path:
        """The folder of the noisy result, which exists if noise was drawn."""
        return self.folder / _MEASURED

    def _path(self, part: int) -> pathlib.Path:
        return self.folder / f"part-{part}.arrow"

    def keep(self, part: int, partial: pa.RecordBatch) -> None:
        """Keeps the sums of a part: all of the file, or nothing.

        Raises:
          FileError: the file cannot be written.
        """
        with _private_file(self._path(part)) as file, pyarrow.ipc.new_file(file, partial.schema) as writer:
            writer.write_batch(partial)

    def kept(self, part: int) -> pa.RecordBatch | None:
        """The sums of a part; None if they are not there, or damaged."""
        path = self._path(part)
        if not path.is_file():
            return None
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            with pa.OSFile(str(path)) as source, pyarrow.ipc.open_file(source) as file:
                batch = file.get_batch(0)
            Partial.of_batch(batch)  # it looks at the checksum
            return batch
        path.unlink()
        return None

    def complete(self) -> None:
        """Says that the noisy result is in :attr:`measured`, and deletes the sums, which nobody needs any more."""
        if not (self.folder / _COMPLETE).exists():
            with _private_file(self.folder / _COMPLETE) as file:
                file.write(b"{}\n")
        for path in self.folder.glob("part-*.arrow"):
            path.unlink()


@contextlib.contextmanager
def open_run(folder: str | os.PathLike, facts: Mapping[str, Any]) -> Iterator[Run]:
    """Context manager: begins a run in a new folder, or goes on with the one that the folder holds.

    Args:
      folder: its path, in an existing folder.
      facts: what must not change while a run is interrupted, as plain JSON, by words that an error may show.

    Raises:
      RunError: the folder holds a run with other facts, or something else; or its run is complete, but its result is
        gone; or another process works in it; or it cannot be written.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            stack.enter_context(_locked(folder))
            run = _opened(folder, {name: _digest(value) for name, value in facts.items()})
        except OSError as error:
            raise RunError(f"{folder}: cannot be written ({error.strerror or error})") from error
        yield run


def remove_run(folder: str | os.PathLike) -> None:
    """Deletes the files of a run, and the folder if nothing else is in it."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder / _MEASURED, ignore_errors=True)
    for path in [*folder.glob("part-*.arrow"), folder / _COMPLETE, folder / _FILE]:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _opened(folder: pathlib.Path, facts: dict[str, str]) -> Run:
    if not (folder / _FILE).exists():
        if any(path.name[0] != "." for path in folder.iterdir()):
            raise RunError(f"{folder}: it has no partial sums, but other files: choose a new folder")
        document = {"version": _VERSION, "run": secrets.token_hex(16), "facts": facts}
        with _private_file(folder / _FILE) as file:
            file.write(json.dumps(document).encode() + b"\n")
    try:
        found = json.loads((folder / _FILE).read_bytes())
        valid = set(found) == _FIELDS and found["version"] == _VERSION and isinstance(found["facts"], dict)
    except (ValueError, TypeError):
        valid, found = False, {}
    if not valid:
        raise RunError(f"{folder}: {_FILE} is damaged, or of another version: choose a new folder")
    others = [name for name, digest in facts.items() if found["facts"].get(name) != digest]
    if others or len(facts) != len(found["facts"]):
        what = f"other {' and '.join(others or ['facts'])}"
        raise RunError(f"{folder}: its partial sums are of another measurement ({what}): choose a new folder")
    for path in folder.glob(".*"):  # left by a run that was killed while it wrote
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = Run(folder, found["run"])
    if (folder / _COMPLETE).exists() and not run.measured.is_dir():
        raise RunError(f"{folder}: its noise was drawn, and the result is gone: another measurement needs a new folder")
    return run


def _digest(fact: Any) -> str:
    return hashlib.sha256(json.dumps(fact, sort_keys=True, allow_nan=False).encode()).hexdigest()


@contextlib.contextmanager
def _private_file(path: pathlib.Path) -> Iterator[Any]:
    """A new file for its owner alone, see ``new_file``. When the block ends, it is on the disk."""
    with new_file(path, (path.suffix,)) as file:
        os.fchmod(file.fileno(), 0o600)
        yield file
    flush(path.parent)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other processes out of a folder."""
    try:
        import fcntl  # here, because systems without POSIX do not have it
    except ModuleNotFoundError as error:
        raise RunError("a folder of partial sums needs a system with POSIX file locks") from error
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise RunError(f"{folder}: another process works in it: wait for it, or choose another folder") from error
    finally:
        os.close(descriptor)
