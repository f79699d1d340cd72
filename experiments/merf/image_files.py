"""Labelled images: MNIST and FashionMNIST, from idx files or the public originals.

--data_dir names the folder of the files, <name>/train-images-idx3-ubyte.gz and so on, with or without .gz. The files
are not part of the project. It is public that every image has 28 x 28 pixels from 0 to 255, and a label from 0 to 9.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import pathlib
import struct
import zlib

import numpy as np

from experiments.common.errors import InputError

SIDE = 28
NUM_CLASSES = 10
_OPENML = {"mnist": ("mnist_784", 60_000), "fashion_mnist": ("Fashion-MNIST", 60_000)}
NAMES = tuple(_OPENML)
TITLES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
_UNSIGNED_BYTES = 0x08


@dataclasses.dataclass(frozen=True)
class Images:
    """Images to be released, and images to test on.

    Attributes:
      name: by which :func:`load` knows them.
      private: pixels, uint8 [N, 784].
      private_labels: uint8 [N].
      test: pixels, uint8 [n, 784].
      test_labels: uint8 [n].
    """

    name: str
    private: np.ndarray
    private_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    def rows(self) -> np.ndarray:
        """Private rows: pixels from 0 to 1, and the label, float32 [N, 785]."""
        labels = self.private_labels[:, None].astype(np.float32)
        return np.concatenate([self.private.astype(np.float32) / 255, labels], axis=1)


def read_idx(path: pathlib.Path) -> np.ndarray:
    """The array of an idx file of unsigned bytes. If the file does not exist, .gz is appended to its name.

    Raises:
      InputError: if neither file exists, or if the file is damaged.
    """
    packed = path.with_name(path.name + ".gz")
    existing = path if path.is_file() or not packed.is_file() else packed
    if not existing.is_file():
        raise InputError(f"{path}: no such file, nor with .gz; --data_dir needs the four files of the originals")
    try:
        content = gzip.decompress(existing.read_bytes()) if existing.suffix == ".gz" else existing.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{existing}: cannot be read ({error}); fetch it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES or not 1 <= content[3] <= 4:
        raise InputError(f"{existing}: is no idx file of unsigned bytes; fetch it again")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise InputError(f"{existing}: ends within its header; fetch it again")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise InputError(f"{existing}: has {len(content)} bytes, its header says {expected}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _part(folder: pathlib.Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = read_idx(folder / f"{prefix}-images-idx3-ubyte"), read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise InputError(
            f"{folder}/{prefix}-images-idx3-ubyte: expected images of {SIDE} x {SIDE}, got shape {list(images.shape)}"
        )
    if labels.shape != images.shape[:1] or not len(labels):
        raise InputError(
            f"{folder}/{prefix}-labels-idx1-ubyte: expected a label for each of {len(images)} images, "
            f"got shape {list(labels.shape)}"
        )
    if labels.max() >= NUM_CLASSES:
        raise InputError(
            f"{folder}/{prefix}-labels-idx1-ubyte: has a label {labels.max()}, beyond the classes 0 to "
            f"{NUM_CLASSES - 1}; fetch it again"
        )
    return images.reshape(len(images), -1), labels


def load(name: str, data_dir: str) -> Images:
    """A data set.

    Args:
      name: one of ``NAMES``.
      data_dir: folder with a folder for each data set. If it is "", scikit-learn's ``fetch_openml`` downloads the
        public originals to its own folder.

    Raises:
      InputError: if files are missing or damaged, or if the download fails.
    """
    if data_dir:
        folder = pathlib.Path(data_dir) / name
        if not folder.is_dir():
            raise InputError(f"--data_dir={data_dir}: has no folder {name}")
        return Images(name, *_part(folder, "train"), *_part(folder, "t10k"))
    from sklearn.datasets import fetch_openml

    title, num_private = _OPENML[name]
    try:
        pixels, labels = fetch_openml(title, version=1, as_frame=False, return_X_y=True, parser="liac-arff")
    except Exception as error:  # a network fails in many ways
        raise InputError(
            f"{name}: the download failed ({' '.join(str(error).split())}); give --data_dir, a folder with {name}/"
            "train-images-idx3-ubyte.gz and so on"
        ) from error
    pixels, labels = pixels.astype(np.uint8), labels.astype(np.uint8)
    return Images(name, pixels[:num_private], labels[:num_private], pixels[num_private:], labels[num_private:])


def pack(pixels: np.ndarray) -> str:
    """Images of pixels from 0 to 1, [n, 784], as text."""
    return base64.b64encode(zlib.compress(np.rint(255 * pixels).astype(np.uint8).tobytes(), 9)).decode()


def unpack(text: str) -> np.ndarray:
    """The inverse of :func:`pack`: uint8 [n, 28, 28]."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(-1, SIDE, SIDE)
