"""Writing of folders, complete or not at all, and reading of folders.

Every folder has a ``manifest.json``: its kind and version, and the size and SHA-256 digest of every file. A file is
read once, in full. Its bytes are used only if they have this size and this digest. A digest detects damage and careless
edits. It does not detect a forger who also edits the manifest; only a signature of the folder, by a separate tool,
does. What a forger writes is still checked, see ``kme_jax.storage.codec`` and ``kme_jax.privacy.verification``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from kme_jax._numerics.short_repr import short_repr
from kme_jax.storage.files import MANIFEST, MAX_MANIFEST

ROOM = 1 << 20  # bytes of free space for a statement and points
_SIGNATURE = f"{MANIFEST}.sig"  # what ssh-keygen writes beside the manifest
_TEMPORARY = ".kme_jax-"
_MAX_SAID = 200  # characters of an error
_TREE = "json"  # the array of a .npz file that holds a JSON document


class ReleaseError(ValueError):
    """A folder cannot be written, or is not a valid release."""


class UnknownClassError(ValueError):
    """A file has an object of a class that is not registered."""


class UnknownKindError(ReleaseError):
    """The kind of a folder is not registered."""


@short_repr
@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Attributes:
      name: of the kind in the manifest.
      version: of the format. Other versions are refused.
      files: names of the files.
      about: what the folder holds, in words.
      load: a function that reads a folder of this kind.
      remedy: advice for a user who gives such a folder where another kind is expected. ``{}`` stands for its path.
    """

    name: str
    version: int
    files: tuple[str, ...]
    about: str
    load: Callable[[str | os.PathLike], Any]
    remedy: str = ""


_KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> None:
    """Registers a kind of folder, so that :func:`load` can read it.

    Raises:
      ValueError: another kind has this name.
    """
    if _KINDS.setdefault(kind.name, kind) != kind:
        raise ValueError(f"{kind.name}: there is a kind of this name already")


def load(folder: str | os.PathLike, kinds: Sequence[str] | None = None) -> Any:
    """The release or measurement in a folder.

    Args:
      folder: its path.
      kinds: names of the kinds that are accepted; None for all registered kinds.

    Raises:
      ReleaseError: the folder has none of these kinds, is damaged or edited, or has another version.
    """
    return _KINDS[open_folder(folder, kinds).kind].load(folder)


# -- writing


def check_folder(folder: str | os.PathLike, num_bytes: int = 0) -> pathlib.Path:
    """Refuses a folder to which a release cannot be saved. It is called before anything is spent.

    Args:
      folder: path of a new folder in an existing folder.
      num_bytes: free space that is needed.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    folder = pathlib.Path(folder)
    if "\0" in os.fsdecode(folder):
        raise ReleaseError(f"{os.fsdecode(folder)}: cannot be written (null byte in its name)")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder)  # it also raises an error if the name is too long
            raise ReleaseError(f"{folder} exists: a release is never overwritten; choose another folder")
        with tempfile.TemporaryFile(dir=folder.parent) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes + 1)
            os.fsync(file.fileno())
    except OSError as error:
        raise ReleaseError(f"{folder.parent}: cannot be written ({error.strerror or error})") from error
    return folder


def save_folder(
    folder: str | os.PathLike, kind: str, writers: Mapping[str, Callable[[pathlib.Path], None]]
) -> pathlib.Path:
    """Writes a new folder with all files of its kind and a manifest: all of them, or nothing.

    Permissions follow the umask.

    Args:
      folder: path of the new folder.
      kind: the name of a registered kind.
      writers: for each file name, a function that writes the file to a path.

    Returns:
      The path of the folder.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    folder = check_folder(folder)
    known = _KINDS[kind]
    if set(writers) != set(known.files):
        raise AssertionError(f"{kind}: expected writers of {', '.join(known.files)}")
    temporary = folder.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        temporary.mkdir()
    except OSError as error:
        raise ReleaseError(f"{folder.parent}: cannot be written ({error.strerror})") from error
    try:
        entries = {}
        for name, write in writers.items():
            write(temporary / name)
            flush(temporary / name)
            entries[name] = _entry((temporary / name).read_bytes())
        json_writer({"kind": kind, "version": known.version, "files": entries})(temporary / MANIFEST)
        flush(temporary / MANIFEST)
        flush(temporary)
        os.rename(temporary, folder)  # fails if a file or a folder that is not empty is there by now
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(OSError):  # the folder is complete even if this fails
        flush(folder.parent)
    return folder


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def arrays_writer(arrays: dict[str, np.ndarray], tree: Any = None) -> Callable[[pathlib.Path], None]:
    """A function that writes arrays, and a JSON document if there is one, to a .npz file.

    The file is not compressed, so that a small file cannot hold a large array.
    """
    if tree is not None:
        document = json.dumps(tree, allow_nan=False).encode()
        arrays = arrays | {_TREE: np.frombuffer(document, np.uint8)}
    return lambda path: np.savez(path, **cast(Any, arrays))


def json_writer(value: Any) -> Callable[[pathlib.Path], None]:
    """A function that writes a value to an indented .json file."""

    def write(path: pathlib.Path) -> None:
        path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    return write


def flush(path: pathlib.Path) -> None:
    """Forces the content of a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading


@contextlib.contextmanager
def damaged(path: pathlib.Path) -> Iterator[None]:
    """Context manager: turns any error within the block into a ``ReleaseError`` that says that the file is damaged.

    An unknown class is no damage: it may be the reader's own.

    Raises:
      ReleaseError: the block raised an error.
    """
    try:
        yield
    except ReleaseError:
        raise
    except UnknownClassError as error:
        raise ReleaseError(f"{path}: {error}") from error
    except Exception as error:  # damaged bytes may raise any error
        said = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        said = " ".join(said.split())
        said = said if len(said) <= _MAX_SAID else f"{said[:_MAX_SAID]}, and so on"
        raise ReleaseError(f"{path}: is damaged, or was edited ({said})") from error


def parse_json(content: bytes) -> Any:
    """A JSON document in strict form: UTF-8, no key twice, no NaN and no infinity.

    Raises:
      ValueError: the bytes have another form.
    """

    def once(pairs):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a key appears twice")
        return dict(pairs)

    def refuse(token):
        raise ValueError(f"{token} is no JSON")

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a .npz file that :func:`arrays_writer` has written. Each is read when it is asked for.

    An array holds text or finite numbers. No more memory is taken than the file has bytes.

    Raises:
      ValueError: the file is compressed, has members that are not arrays, or claims more bytes than it has.
    """

    def __init__(self, content: bytes):
        self._file, self._asked = zipfile.ZipFile(io.BytesIO(content)), set()
        members = self._file.infolist()
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        stored = all(m.compress_type == zipfile.ZIP_STORED and m.filename.endswith(".npy") for m in members)
        total = sum(member.file_size for member in members)
        complete = min((m.header_offset for m in members), default=0) == 0 and content[-22:-18] == b"PK\x05\x06"
        if not (stored and complete) or len(self._members) < len(members) or total > len(content):
            raise ValueError("it is not made of arrays without compression")

    def __getitem__(self, name: str) -> np.ndarray:
        self._asked.add(name)
        return _array(self._file.read(self._members[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def tree(self) -> Any:
        """The JSON document of the file."""
        return parse_json(self[_TREE].tobytes())

    def check_all_read(self) -> None:
        """Raises ValueError if an array was never asked for."""
        if unknown := sorted(self._members.keys() - self._asked):
            raise ValueError(f"it has an array that does not belong there, {unknown[0]!r:.50}")


def _array(content: bytes) -> np.ndarray:
    """The array of a .npy file. Its header must describe exactly the bytes that follow."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError("an array has an unknown version")
    shape, fortran, dtype = read[version](stream)
    if dtype.kind not in "fiuU" or not dtype.isnative or (dtype.kind == "f" and dtype.itemsize not in (4, 8)):
        raise ValueError(f"an array has the type {dtype}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise ValueError("an array has another size than its header says")
    array = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C").copy()
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("an array has numbers that are not finite")
    return array


@short_repr
@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder with a valid manifest. Build it with :func:`open_folder`.

    Attributes:
      path: of the folder.
      kind: the name of its kind.
      entries: the size and the digest of each file.
    """

    path: pathlib.Path
    kind: str
    entries: dict[str, tuple[int, str]]

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
          ReleaseError: there is no such file, or it differs from the manifest.
        """
        path, (size, digest) = self.path / name, self.entries[name]
        if not path.exists():
            raise ReleaseError(f"{self.path}: has no {name}, which {MANIFEST} lists")
        with damaged(path):
            content = _read(path, size, digest)
            if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
                raise ValueError(f"it is not the file that {MANIFEST} describes")
        return content

    def json(self, name: str) -> Any:
        """The document of a .json file.

        Raises:
          ReleaseError: as for :meth:`read`, or the file is no JSON.
        """
        content = self.read(name)
        with damaged(self.path / name):
            return parse_json(content)

    @contextlib.contextmanager
    def arrays(self, name: str) -> Iterator[Arrays]:
        """Context manager: the arrays of a .npz file. All of them have to be read within the block.

        Raises:
          ReleaseError: as for :meth:`read`, the block raised an error, or an array was not read.
        """
        content = self.read(name)
        with damaged(self.path / name):
            arrays = Arrays(content)
            yield arrays
            arrays.check_all_read()


def _read(path: pathlib.Path, most: int, digest: str | None = None) -> bytes:
    """The bytes of a file, at most ``most``. A file that does not have the digest is not read into memory."""
    if not path.is_file():
        raise ValueError("there is no such file")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError(f"it has more than {most} bytes")
        if digest is not None and hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ValueError(f"it is not the file that {MANIFEST} describes")
        file.seek(0)
        return file.read()


def open_folder(folder: str | os.PathLike, kinds: Sequence[str] | None = None) -> Folder:
    """Reads the manifest of a folder that :func:`save_folder` has written.

    Args:
      folder: its path.
      kinds: names of the kinds that are accepted; None for all registered kinds.

    Raises:
      ReleaseError: there is no such folder, its manifest is invalid, or its kind or version differs.
    """
    folder = pathlib.Path(folder)
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise ReleaseError(f"{folder}: {'is a file, and no release' if folder.is_file() else 'no such folder'}")
        if not path.exists():
            raise ReleaseError(f"{folder}: has no {MANIFEST}; it is no release, or an earlier version wrote it")
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ReleaseError(f"{folder}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    with damaged(path):
        document = parse_json(_read(path, MAX_MANIFEST))
        if not isinstance(document, dict) or set(document) != {"kind", "version", "files"}:
            raise ValueError("it has other fields than kind, version and files")
        kind, version = document["kind"], document["version"]
        if not isinstance(kind, str) or kind not in _KINDS:
            raise UnknownKindError(f"{path}: is damaged, or was edited (its kind is not known)")
        if type(version) is not int:
            raise ValueError("its version is no whole number")
        known = _KINDS[kind]
        if version != known.version:
            remedy = "update kme_jax" if version > known.version else "read it with the version that wrote it"
            raise ReleaseError(f"{folder}: has version {version} of its format, expected {known.version}: {remedy}")
        entries = document["files"]
        if not isinstance(entries, dict) or set(entries) != set(known.files):
            raise ValueError(f"it does not list the files of {known.about}")
        files = {name: _checked_entry(entry) for name, entry in entries.items()}
    if kinds is not None and kind not in kinds:
        wanted = " or ".join(_KINDS[name].about if name in _KINDS else f"a {name}" for name in kinds)
        remedy = f"; {known.remedy.format(str(folder))}" if known.remedy else ""
        raise ReleaseError(f"{folder}: holds {known.about}, not {wanted}{remedy}")
    return Folder(folder, kind, files)


def unnamed_files(folder: str | os.PathLike) -> list[str]:
    """Names of all files and folders in a folder that its manifest does not name, except a signature of the manifest.

    Args:
      folder: its path.

    Raises:
      ReleaseError: as for :func:`open_folder`, or the folder cannot be listed.
    """
    opened = open_folder(folder)
    try:
        return sorted(set(os.listdir(opened.path)) - {MANIFEST, _SIGNATURE, *opened.entries})
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be read ({error.strerror})") from error


def _checked_entry(entry: Any) -> tuple[int, str]:
    if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
        raise ValueError("a file has other fields than bytes and sha256")
    size, digest = entry["bytes"], entry["sha256"]
    if type(size) is not int or not 0 <= size < 2**50:
        raise ValueError("a file has no valid size")
    if not (isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef")):
        raise ValueError("a file has no valid digest")
    return size, digest
