"""Public transforms h: R^d → R^h of rows, for a ``TransformedMap``."""

from __future__ import annotations

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kme_jax._numerics.precision import are_sizes
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray

Array = jax.Array


_LEAST_EDGE = 0.1  # with a far smaller one, the weights of all other pixels underflow
_MOST_PIXELS = 1000.0
_MAX_WEIGHT = 1e6  # far below what overflows in float32


class Transform(abc.ABC):
    """A deterministic function h of one row. It is public. Subclasses are frozen dataclasses of static values."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """d, the number of columns of a row."""

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """The length of h(x)."""

    @property
    @abc.abstractmethod
    def gain(self) -> float:
        """A number g with |h(x)_i| ≤ g max_j |x_j| for every row and every i."""

    @abc.abstractmethod
    def __call__(self, x: Float[AnyArray, "n d"]) -> Float[Array, "n outputs"]:
        """h of every row: [n, d] -> [n, num_outputs], in float32. Traceable."""


@storable()
@dataclasses.dataclass(frozen=True)
class OrientedEdges(Transform):
    """Pixels of an image, and how strong its edges are, by direction and place.

    The gradient of the image is taken by derivatives of a Gaussian. Its part along each of ``directions`` angles is
    cut off at zero, and averaged by Gaussian windows around a grid of cells. So edges may move a little within their
    cell. It is a histogram of oriented gradients (Dalal & Triggs 2005) without normalisation, or a scattering transform
    of first order (Bruna & Mallat 2013) with half waves.

    Outputs are pixels, [height, width], and then edges, [directions, cells, cells].

    Attributes:
      height: of images, in pixels.
      width: of images, in pixels.
      directions: number of angles.
      cells: number of cells along each axis.
      edge: standard deviation of the Gaussian of the gradient, in pixels, from 0.1 to 1000.
      blur: standard deviation of the blur of pixels, up to 1000; 0 for none.
      weight: factor of the edges, up to 10⁶.

    Examples:
      >>> import numpy as np
      >>> from kme_jax.feature_maps import OrientedEdges
      >>> transform = OrientedEdges(height=8, width=8, cells=2)
      >>> transform(np.zeros((3, 64), np.float32)).shape  # 64 pixels, and 8 directions in 4 cells
      (3, 96)
    """

    height: int = 28
    width: int = 28
    directions: int = 8
    cells: int = 7
    edge: float = 1.0
    blur: float = 0.0
    weight: float = 1.0

    def __post_init__(self):
        if not are_sizes((self.height, self.width, self.directions, self.cells)):
            raise ValueError("height, width, directions and cells must be whole numbers and at least 1")
        if not (_LEAST_EDGE <= self.edge <= _MOST_PIXELS and 0 <= self.blur <= _MOST_PIXELS):
            raise ValueError(f"edge must be from {_LEAST_EDGE} to {_MOST_PIXELS:g} pixels, and blur from 0 to as many")
        if not 0 < self.weight <= _MAX_WEIGHT:
            raise ValueError(f"weight must be positive and at most {_MAX_WEIGHT:g}, got {self.weight}")

    @property
    def dim(self):
        return self.height * self.width

    @property
    def num_pixels(self) -> int:
        """How many outputs are pixels. They are first."""
        return self.height * self.width

    @property
    def num_outputs(self):
        return self.num_pixels + self.directions * self.cells**2

    @property
    def gain(self):
        """max(1, weight · √2): absolute weights of a blur and of a window add up to 1 at most, and those of a
        derivative too, so that the gradient has a length of √2 at most."""
        return max(1.0, math.sqrt(2) * self.weight) * (1 + 1e-5)

    def __call__(self, x):
        images = jnp.asarray(x, jnp.float32).reshape(-1, self.height, self.width)
        precise = jax.lax.Precision.HIGHEST

        def filtered(left: np.ndarray, right: np.ndarray, values: Array) -> Array:
            return jnp.einsum("ai,...ij,bj->...ab", left, values, right, precision=precise)

        smooth = [_weights(size, size, self.edge) for size in (self.height, self.width)]
        slope = [_slopes(size, self.edge) for size in (self.height, self.width)]
        down, right = filtered(slope[0], smooth[1], images), filtered(smooth[0], slope[1], images)
        angles = 2 * np.pi * np.arange(self.directions, dtype=np.float32) / self.directions
        cos, sin = (values.astype(np.float32)[None, :, None, None] for values in (np.cos(angles), np.sin(angles)))
        edges = jax.nn.relu(cos * right[:, None] + sin * down[:, None])
        above, beside = (_weights(self.cells, size, size / (2 * self.cells)) for size in (self.height, self.width))
        edges = np.float32(self.weight) * filtered(above, beside, edges)
        if self.blur:
            above, beside = (_weights(size, size, self.blur) for size in (self.height, self.width))
            images = filtered(above, beside, images)
        return jnp.concatenate([images.reshape(-1, self.num_pixels), edges.reshape(len(images), -1)], axis=1)


def _distances(cells: int, size: int) -> Float[np.ndarray, "cells size"]:
    """Distances of pixels from the centres of equal cells, in pixels."""
    return np.arange(size)[None, :] - ((np.arange(cells)[:, None] + 0.5) * size / cells - 0.5)


def _weights(cells: int, size: int, width: float) -> Float[np.ndarray, "cells size"]:
    """Gaussian weights of pixels around the centres of cells. Pixels beyond the edge count as 0."""
    reach = np.arange(-math.ceil(6 * width), math.ceil(6 * width) + 1)
    weights = np.exp(-0.5 * np.square(_distances(cells, size) / width))
    return (weights / max(np.exp(-0.5 * np.square(reach / width)).sum(), weights.sum(axis=1).max())).astype(np.float32)


def _slopes(size: int, width: float) -> Float[np.ndarray, "size size"]:
    """Weights of the derivative of a Gaussian. Their absolute values add up to 1, or less near the edge. A single pixel
    has no derivative."""
    distances = _distances(size, size)
    weights = distances * np.exp(-0.5 * np.square(distances / width))
    return (weights / (np.abs(weights).sum(axis=1).max() if size > 1 else 1)).astype(np.float32)
