"""Folders of releases with one thing changed: what was edited, damaged or forged."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MANIFEST = "manifest.json"
Content = Callable[[], bytes]
"""Makes a mutant. Most tests try few of all mutants, and a large one takes a second."""


def seal(folder: pathlib.Path) -> None:
    """Makes the sizes and digests of the manifest fit the files, as a forger would."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))


# -- JSON


def places(document: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all values of a document, itself included."""
    yield path
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def at(document: Any, path: tuple) -> Any:
    """The value at a path."""
    for key in path:
        document = document[key]
    return document


_DROPPED = object()


def replaced(document: Any, path: tuple, value: Any) -> Any:
    """A copy with another value at a path, or without it."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    if len(path) == 1 and value is _DROPPED:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(document[path[0]], path[1:], value)
    return copy


def _numbers(value: float) -> dict[str, Any]:
    return {
        "negative": -value if value else -1,
        "larger": value * 1.5 + 1,
        "smaller": value / 3,
        "next": value + 1,
        "huge": 1e300,
        "zero": 0 if value else 1,
    }


def changes(value: Any) -> dict[str, Any]:
    """Other values for one value of a JSON document."""
    found = {"null": None, "text": "x\x1b[31m", "list": [], "object": {}, "true": True, "deep": [[[[[[value]]]]]]}
    if isinstance(value, bool):
        found |= {"flipped": not value, "number": int(value)}
    elif isinstance(value, int | float):
        found |= _numbers(value) | {"as text": str(value), "integer": 7}
    elif isinstance(value, str):
        found |= {
            "longer": value + "a",
            "empty": "",
            "shorter": value[:-1],
            "other": "0" * 64,
            "escape": "\u202e" + value,
        }
    elif isinstance(value, list):
        found |= {"twice": value + value, "fewer": value[:-1], "more": [*value, None]}
    elif isinstance(value, dict):
        found |= {"more": value | {"extra": 1}, "nothing": {}}
        if set(value) == {"float"}:
            number = float.fromhex(value["float"])
            found |= {name: {"float": float(v).hex()} for name, v in _numbers(number).items()}
            found |= {name: {"float": name} for name in ("nan", "inf", "-inf", "0x1p5000", "zz")}
    return {name: other for name, other in found.items() if json.dumps(other) != json.dumps(value)}


def documents(document: Any) -> Iterator[tuple[str, Content]]:
    """Mutants of a JSON document, with their names."""
    for path in places(document):
        label = ".".join(map(str, path)) or "document"
        for name, value in changes(at(document, path)).items():
            yield f"{label}: {name}", functools.partial(_encoded, document, path, value)
        if path:
            yield f"{label}: dropped", functools.partial(_encoded, document, path, _DROPPED)
            yield f"{label}: NaN", functools.partial(_with_nan, document, path)


def _encoded(document: Any, path: tuple, value: Any) -> bytes:
    return json.dumps(replaced(document, path, value)).encode()


def _with_nan(document: Any, path: tuple) -> bytes:
    return json.dumps(replaced(document, path, "@@")).replace('"@@"', "NaN").encode()


def texts(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Mutants of any file."""
    size = len(content)
    for number in range(1, 8):
        yield f"cut {number}", content[: size * number // 8]
    yield "empty", b""
    yield "text", b"hello"
    yield "zeros", bytes(size)
    yield "longer", content + b"\0"
    yield "twice", content + content
    yield "list", b"[]"
    yield "nested", b"[" * 100_000
    yield "UTF-16", content[:100].decode("latin-1").encode("utf-16")
    for number in range(8):
        place = (2 * number + 1) * size // 16
        yield (
            f"flipped {number}",
            content[:place] + bytes(255 - b for b in content[place : place + 9]) + content[place + 9 :],
        )


# -- arrays


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def write_arrays(arrays: dict[str, np.ndarray], save: Callable = np.savez) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _other_arrays(array: np.ndarray) -> dict[str, np.ndarray]:
    flat = array.reshape(-1)
    found = {
        "fewer": flat[:-1],
        "more axes": array[None],
        "empty": flat[:0],
        "scalar": np.asarray(1.0),
        "longer": np.concatenate([flat, flat]),
        "complex": array.astype(np.complex128) if array.dtype.kind in "fiu" else flat[:0],
        "text": array.astype("U30"),
        "swapped": array.astype(array.dtype.newbyteorder(">")),
        "booleans": array.astype(bool) if array.dtype.kind in "fiu" else flat[:0],
        "structure": np.zeros(array.shape, [("a", "f8")]),
    }
    if array.dtype.kind == "f":
        found["float16"] = array.astype(np.float16)
    if array.dtype.kind in "fiu" and array.size:
        found["negative"] = -np.abs(array) - 1
        found["large"] = array * 1000 + 1000
        for name in ("first", "last"):
            place = 0 if name == "first" else -1
            for number in (np.nan, np.inf, 1e300) if array.dtype.kind == "f" else (-5, 2**31 - 1):
                other = array.copy()
                with np.errstate(over="ignore"):
                    other.reshape(-1)[place] = number
                found[f"{name} {number}"] = other
    return found


def npz_files(content: bytes) -> Iterator[tuple[str, Content]]:
    """Mutants of a .npz file: of each array, of the JSON document in it, and of the archive."""
    arrays = read_arrays(content)
    for name, array in arrays.items():
        others = {k: v for k, v in arrays.items() if k != name}
        yield f"{name}: dropped", functools.partial(write_arrays, others)
        renamed = {(f"{k}x" if k == name else k): v for k, v in arrays.items()}
        yield f"{name}: renamed", functools.partial(write_arrays, renamed)
        if name == "json":
            for label, other in documents(json.loads(array.tobytes())):
                yield f"json.{label}", functools.partial(_with_document, arrays, other)
            continue
        for label, other in _other_arrays(array).items():
            yield f"{name}: {label}", functools.partial(write_arrays, arrays | {name: other})
    yield "an array more", functools.partial(write_arrays, arrays | {"more": np.zeros(3)})
    yield "compressed", functools.partial(write_arrays, arrays, np.savez_compressed)
    yield "a large array more", functools.partial(_with_large_array, arrays)
    for label, header in {
        "a header of a large shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "a header of a negative shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "a header with code": "__import__('os').getcwd()",
    }.items():
        yield label, functools.partial(_with_header, arrays, header)


def _with_document(arrays: dict[str, np.ndarray], document: Content) -> bytes:
    return write_arrays(arrays | {"json": np.frombuffer(document(), np.uint8)})


def _with_large_array(arrays: dict[str, np.ndarray]) -> bytes:
    return write_arrays(arrays | {"more": np.zeros(1 << 24)}, np.savez_compressed)


def _with_header(arrays: dict[str, np.ndarray], header: str) -> bytes:
    """With this header of the first array, and without its values."""
    first = next(iter(arrays))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, array in arrays.items():
            if name == first:
                text = header.encode().ljust(118) + b"\n"
                file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
            else:
                member = io.BytesIO()
                np.save(member, array)
                file.writestr(f"{name}.npy", member.getvalue())
    return stream.getvalue()


def mutants(folder: pathlib.Path) -> Iterator[tuple[str, str, Content]]:
    """(file, what was done, content) of every mutant of every file of a release."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for label, other in texts(content):
            yield path.name, label, functools.partial(bytes, other)
        if path.suffix == ".json":
            for label, other in documents(json.loads(content)):
                yield path.name, label, other
        if path.suffix == ".npz":
            for label, other in npz_files(content):
                yield path.name, label, other
