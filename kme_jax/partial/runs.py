"""The folder of a run that can be interrupted and go on.

It holds, until the run is complete:

* ``run.json``: a random name of the run, and what it is of: the files of the table, the schema, the budget and so on.
* the sums of the parts that are finished, for the measurement that is under way, and for points the digests of the rows
  of these parts. SENSITIVE: they have no noise.
* the noisy result of each measurement.

Only the owner can read it (0700, files 0600). Each file is written beside its place, flushed to the disk, and then
renamed. So it is there as a whole, or not at all.

Formal guarantee: noise for a measurement is drawn once. A noisy result is on the disk before anything else uses it, and
going on reads it. If a run ends after noise was drawn and before its result was on the disk, nobody has seen that
result, and it had no influence. Other noise may then be drawn in its place. Two processes cannot use the folder at
once. A copy of the folder is refused, also if it is put in the place of the folder, because noise could then be drawn
twice for one entry in the ledger. (A copy is known by the time of its file ``lock``. A disk that is set back as a whole
to an earlier state shows no such sign: do not go on with a run there.) A complete run cannot go on, also if earlier
files are put back: its end changes the time of the lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from kme_jax._numerics.text import shown
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.partial.sums import PartialError, combine
from kme_jax.partial.task import Task
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.storage.codec import decode_embedding, encode, encode_embedding
from kme_jax.storage.folders import Arrays, arrays_writer, flush, parse_json

_RUN, _LOCK, _UNFINISHED = "run.json", "lock", ".kme_jax-"
_VERSION = 1
_DIGEST = hashlib.sha256().digest_size


class RunError(ValueError):
    """The folder of a run cannot be used, or the run cannot go on."""


class RunFolder:
    """The folder of one run. Open it with :meth:`opened`.

    Attributes:
      path: of the folder.
      run: the name of the run.
    """

    path: pathlib.Path
    run: str

    def __init__(self, path: pathlib.Path, run: str):
        self.path, self.run = path, run

    def __repr__(self) -> str:
        return f"RunFolder(SENSITIVE, {str(self.path)!r})"

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, path: str | os.PathLike, made_of: Mapping[str, Any], rows: str | None = None
    ) -> Iterator[RunFolder]:
        """Context manager: a new folder, or that of a run that goes on. No other process can use it within the block.

        Args:
          path: of the folder.
          made_of: what the run is of, in words, with values that are plain JSON. Their digests are kept.
          rows: the path of the private rows; None if they have none.

        Raises:
          RunError: the folder is another one's, or cannot be written; it is in the folder of the rows; another process
            uses it; the run is complete, or of something else; or the folder is a copy.
        """
        path = pathlib.Path(path)
        if rows is not None and os.path.isdir(rows) and path.resolve().is_relative_to(pathlib.Path(rows).resolve()):
            raise RunError(f"{path}: is in the folder of the rows, and would count as rows; choose another place")
        made_of = {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in made_of.items()}
        with _errors(path):
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
            if not path.is_dir() or (os.listdir(path) and not (path / _LOCK).exists()):
                raise RunError(f"{path}: is not a folder of partial sums; choose a new or an empty one")
            path.chmod(0o700)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            import fcntl  # here, because systems without POSIX do not have it

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{path}: another process uses it; wait until that ends") from None
            with _errors(path):
                folder = cls(path, "")
                folder.run = folder._begun(made_of)
            yield folder
        finally:
            os.close(lock)

    def _begun(self, made_of: dict[str, str]) -> str:
        """The name of the run of the folder, which is a new one if there is none."""
        if not (self.path / _RUN).exists():
            if any(path.name != _LOCK and path.name[0] != "." for path in self.path.iterdir()):
                raise RunError(f"{self.path}: is damaged (it has no {_RUN}); choose a new folder")
            document = {"version": _VERSION, "run": secrets.token_hex(16), "complete": False, "of": made_of}
            self._write(_RUN, json.dumps(document | {"folder": self._identity}).encode())
        document = self._document()
        if document["complete"]:
            raise RunError(f"{self.path}: its run is complete; for another release of the rows, choose a new folder")
        if document["folder"] != self._identity:
            raise RunError(f"{self.path}: is a copy, which could draw noise twice; go on with the first folder")
        others = [name for name, digest in made_of.items() if document["of"].get(name) != digest]
        if others or set(document["of"]) != set(made_of):
            raise RunError(f"{self.path}: its run has another {shown(others) or 'format'}; choose a new folder")
        return document["run"]

    @property
    def _identity(self) -> list[int]:
        """What tells the folder from a copy: its inode, and the time at which the file of the lock was last changed.

        A copy may get the inode of a folder that was deleted. It does not get the time, which no program can set.
        """
        return [self.path.stat().st_ino, (self.path / _LOCK).stat().st_ctime_ns]

    def _document(self) -> dict[str, Any]:
        try:
            document = parse_json((self.path / _RUN).read_bytes())
            if set(document) != {"version", "run", "complete", "of", "folder"} or document["version"] != _VERSION:
                raise ValueError("other fields")
            if not isinstance(document["run"], str) or not isinstance(document["of"], dict):
                raise ValueError("other fields")
        except (ValueError, TypeError):
            raise RunError(f"{self.path / _RUN}: is damaged, or of another version; choose a new folder") from None
        return document

    def complete(self) -> None:
        """Ends the run, when its results are safe. All sums and noisy results are deleted, and it cannot go on.

        Other files that somebody has put into the folder, such as a ledger, stay there.
        """
        with _errors(self.path):
            self._write(_RUN, json.dumps(self._document() | {"complete": True}).encode())
            os.utime(self.path / _LOCK)  # so that an earlier run.json, if it is put back, is that of a copy
            flush(self.path / _LOCK)
            for pattern in (self._sums("*"), self._digests("*"), self._noisy("*"), f"{_UNFINISHED}*"):
                for path in self.path.glob(pattern):
                    path.unlink()

    # -- sums

    def sums(self, task: Task) -> pa.RecordBatch | None:
        """The sums of the parts that are finished; None if there are none. SENSITIVE.

        Raises:
          RunError: they are damaged, or of another task.
        """
        path = self.path / self._sums(task.measurement)
        with _errors(self.path):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            with pa.ipc.open_file(pa.BufferReader(content)) as file:
                return combine([file.get_batch(0)], task)
        except (pa.ArrowException, PartialError, ValueError, OSError) as error:
            reason = str(error) if isinstance(error, PartialError) else "it is no Arrow file"
        raise RunError(f"{path}: is damaged, or of another run; delete it to sum its rows again ({reason})")

    def digests(self, task: Task) -> dict[int, str]:
        """The digests of the rows of finished parts, by the number of the part. SENSITIVE.

        Raises:
          RunError: they are damaged.
        """
        path = self.path / self._digests(task.measurement)
        with _errors(self.path):
            if not path.exists():
                return {}
            content = path.read_bytes()
        try:
            return {int(part): str(digest) for part, digest in parse_json(content).items()}
        except (ValueError, TypeError, AttributeError):
            raise RunError(f"{path}: is damaged; choose a new folder") from None

    def keep_sums(self, task: Task, sums: pa.RecordBatch, digests: Mapping[int, str] | None = None) -> None:
        """Keeps the sums of all parts that are finished, in place of those before.

        Args:
          task: what is summed.
          sums: of all finished parts.
          digests: of the rows of at least these parts, by the number of the part; None to keep none.

        Raises:
          RunError: the folder cannot be written.
        """
        content = io.BytesIO()
        if digests is not None:  # before the sums: no part may be finished without its digest
            with _errors(self.path):
                self._write(self._digests(task.measurement), json.dumps(digests).encode())
        with pa.ipc.new_file(content, sums.schema) as writer:
            writer.write_batch(sums)
        with _errors(self.path):
            self._write(self._sums(task.measurement), content.getvalue())

    @staticmethod
    def _sums(measurement: str) -> str:
        return f"sums of {measurement}.arrow"

    @staticmethod
    def _digests(measurement: str) -> str:
        return f"digests of {measurement}.json"

    # -- noisy results

    def noisy(self, measurement: str, feature_map: FeatureMap) -> NoisyEmbedding | None:
        """The noisy result of a measurement; None if noise was not drawn yet.

        Raises:
          RunError: it is damaged, or of another map.
        """
        path = self.path / self._noisy(measurement)
        with _errors(self.path):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
                raise ValueError("another digest")
            arrays = Arrays(content[_DIGEST:])
            tree = arrays.tree()
            noisy = decode_embedding(tree["noisy"], arrays)
            if tree["run"] != self.run:
                raise ValueError("another run")
            if _fields(noisy.feature_map) == _fields(feature_map):
                return noisy
        except Exception:  # damaged bytes may raise any error
            pass
        raise RunError(f"{path}: is damaged, or of another run; the run cannot go on: choose a new folder")

    def keep_noisy(self, measurement: str, noisy: NoisyEmbedding) -> None:
        """Keeps the noisy result of a measurement, before anything else uses it. Its sums are deleted.

        Raises:
          RunError: the folder cannot be written.
        """
        arrays: dict[str, np.ndarray] = {}
        tree, content = {"run": self.run, "noisy": encode_embedding(noisy, arrays, "noisy")}, io.BytesIO()
        arrays_writer(arrays, tree)(cast(Any, content))  # NumPy writes to an open file, too
        sealed = hashlib.sha256(content.getvalue()).digest() + content.getvalue()
        with _errors(self.path):
            self._write(self._noisy(measurement), sealed)
            for name in (self._sums(measurement), self._digests(measurement)):
                (self.path / name).unlink(missing_ok=True)

    @staticmethod
    def _noisy(measurement: str) -> str:
        return f"noisy {measurement}.npz"

    def _write(self, name: str, content: bytes) -> None:
        """A file as a whole, in place of an earlier one, or not at all."""
        temporary = self.path / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self.path / name)
        finally:
            temporary.unlink(missing_ok=True)
        flush(self.path)


def _fields(feature_map: FeatureMap) -> Any:
    """All fields of a map as plain values, so that two maps can be compared."""
    arrays: dict[str, np.ndarray] = {}

    def with_arrays(tree: Any) -> Any:
        if isinstance(tree, dict) and set(tree) == {"array"}:
            array = arrays[tree["array"]]
            return array.dtype.str, array.shape, array.tobytes()
        if isinstance(tree, dict):
            return {name: with_arrays(value) for name, value in tree.items()}
        return [with_arrays(value) for value in tree] if isinstance(tree, list) else tree

    return with_arrays(encode(feature_map, arrays, "map"))


@contextlib.contextmanager
def _errors(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be used ({error.strerror or error})") from error
