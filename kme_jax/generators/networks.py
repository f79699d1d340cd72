"""Networks of generators: what to build, as small frozen dataclasses that can be written down, and flax modules.

A network maps inputs, [n, normals + styles + labels], to raw values [n, D]; what becomes of those (bounds,
probabilities of categories) is the business of ``kme_jax.generators.train``.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp

from kme_jax._numerics.precision import are_sizes
from kme_jax._numerics.registry import storable
from kme_jax.generators._flax import nnx

Array = jax.Array


class Network(abc.ABC):
    """A description of a network.

    Attributes:
      code: how many standard normal numbers it gets.
      styles: how many values a further input, one-hot, has: modes that are to be told apart without a path from one to
        the other. 0 for none.
    """

    code: int
    styles: int

    @abc.abstractmethod
    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        """The flax module, with random parameters.

        Raises:
          ValueError: a number of outputs that it cannot have.
        """

    @abc.abstractmethod
    def num_normals(self, num_outputs: int) -> int:
        """How many standard normal numbers the module gets, before styles and labels: its code, and noise if any."""


def _check(code: int, styles: int, widths: tuple[int, ...]) -> None:
    if code < 1 or styles < 0:
        raise ValueError(f"a network needs a code of 1 or more and styles of 0 or more, got {code} and {styles}")
    if not are_sizes(widths):
        raise ValueError(f"widths: expected a tuple with a number of units, 1 or more, for each layer, got {widths!r}")


@storable()
@dataclasses.dataclass(frozen=True)
class MLP(Network):
    """Linear layers with batch normalisation and ReLU ([H], experiments on Gaussian mixtures and tables).

    Attributes:
      widths: of the hidden layers.
      code: see :class:`Network`.
      styles: see :class:`Network`.
    """

    widths: tuple[int, ...] = (200, 500, 500, 200)
    code: int = 5
    styles: int = 0

    def __post_init__(self):
        _check(self.code, self.styles, self.widths)

    def num_normals(self, num_outputs: int) -> int:
        del num_outputs
        return self.code

    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        return _Layers(self, num_labels, num_outputs, rngs)


@storable()
@dataclasses.dataclass(frozen=True)
class Convolutional(Network):
    """Linear layers to an image of a quarter of the size, and two convolutions after bilinear upsampling by two ([H],
    experiments on images).

    Attributes:
      height: of images, a multiple of 4.
      width: of images, a multiple of 4.
      hidden: width of the first layer.
      channels: of the small image, and after the first convolution.
      size: of the convolutions' kernels.
      code: see :class:`Network`.
      styles: see :class:`Network`.
    """

    height: int = 28
    width: int = 28
    hidden: int = 200
    channels: tuple[int, int] = (16, 8)
    size: int = 5
    code: int = 5
    styles: int = 0

    def __post_init__(self):
        _check(self.code, self.styles, (self.hidden, *self.channels, self.size))
        if min(self.height, self.width) < 4 or self.height % 4 or self.width % 4:
            raise ValueError(f"height and width must be multiples of 4, got {self.height} x {self.width}")

    def num_normals(self, num_outputs: int) -> int:
        del num_outputs
        return self.code

    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        if num_outputs != self.height * self.width:
            raise ValueError(f"images of {self.height} x {self.width} are not rows of {num_outputs} columns")
        return _Convolutions(self, self.code + self.styles + num_labels, rngs)


@storable()
@dataclasses.dataclass(frozen=True)
class SmoothImages(Network):
    """Images that are smooth but for independent noise in every pixel: the layers of :class:`MLP`, a fixed Gaussian
    blur of their values, and noise of a learnt size in each class.

    Noise in an embedding turns up as speckles, which the blur has no room for. Smooth images alone are confined to few
    directions, and what learns from them trusts all others without reason: hence the noise.

    Attributes:
      height: of images, in pixels.
      width: of images, in pixels.
      widths: of the hidden layers.
      blur: standard deviation of the blur, in pixels.
      noise: standard deviation of the noise at the beginning, in the units of logits.
      code: see :class:`Network`.
      styles: see :class:`Network`.
    """

    height: int = 28
    width: int = 28
    widths: tuple[int, ...] = (200, 500)
    blur: float = 1.0
    noise: float = 6.0
    code: int = 5
    styles: int = 16

    def __post_init__(self):
        _check(self.code, self.styles, (self.height, self.width, *self.widths))
        if not (0 < self.blur < math.inf and 0 < self.noise < math.inf):
            raise ValueError(f"blur and noise must be positive and finite, got {self.blur} and {self.noise}")

    def num_normals(self, num_outputs: int) -> int:
        return self.code + num_outputs

    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        if num_outputs != self.height * self.width:
            raise ValueError(f"images of {self.height} x {self.width} are not rows of {num_outputs} columns")
        return _Smooth(self, num_labels, num_outputs, rngs)


def _blur(size: int, width: float) -> Array:
    """Gaussian weights of neighbours, which sum to ``_GAIN`` in the middle: [size, size]."""
    places = jnp.arange(float(size))
    weights = jnp.exp(-0.5 * jnp.square((places[:, None] - places[None, :]) / width))
    return _GAIN * weights / jnp.max(jnp.sum(weights, axis=1))


_GAIN = 1.5  # a blur of independent values makes them small


class _Smooth(nnx.Module):
    def __init__(self, network: SmoothImages, num_labels: int, num_outputs: int, rngs: nnx.Rngs):
        self.network = network
        self.layers = _Layers(network, num_labels, num_outputs, rngs)
        self.noise = nnx.Param(jnp.full((max(num_labels, 1), 1), math.log(math.expm1(network.noise))))

    def __call__(self, x: Array) -> Array:
        network = self.network
        size = network.height * network.width
        code, noise, rest = jnp.split(x, (network.code, network.code + size), axis=1)
        values = self.layers(jnp.concatenate([code, rest], axis=1)).reshape(-1, network.height, network.width)
        rows, columns = _blur(network.height, network.blur), _blur(network.width, network.blur)
        values = jnp.einsum("nij,ai,bj->nab", values, rows, columns).reshape(-1, size)
        labels = rest[:, network.styles :]
        labels = labels if labels.shape[1] else jnp.ones_like(x[:, :1])
        return values + labels @ jax.nn.softplus(self.noise[...]) * noise


class _Layers(nnx.Module):
    """Linear, batch normalisation and ReLU, as often as there are widths; and a linear layer. With styles, every style
    of every label has a place of its own, to which the layers add."""

    def __init__(self, network: MLP | SmoothImages, num_labels: int, num_outputs: int, rngs: nnx.Rngs):
        self.code, self.styles = network.code, network.styles
        widths = network.code + network.styles + num_labels, *network.widths
        pairs = list(itertools.pairwise(widths))
        self.linear = nnx.List([nnx.Linear(before, after, rngs=rngs) for before, after in pairs])
        self.normal = nnx.List([nnx.BatchNorm(after, momentum=_MOMENTUM, rngs=rngs) for _, after in pairs])
        self.last = nnx.Linear(widths[-1], num_outputs, rngs=rngs)
        if network.styles:
            shape = max(num_labels, 1), network.styles, num_outputs
            self.places = nnx.Param(_SPREAD * jax.random.normal(rngs.params(), shape))

    def __call__(self, x: Array) -> Array:
        inputs = x
        for linear, normal in zip(self.linear, self.normal, strict=True):
            x = nnx.relu(normal(linear(x)))
        x = self.last(x)
        if self.styles:
            styles, labels = inputs[:, self.code : self.code + self.styles], inputs[:, self.code + self.styles :]
            labels = labels if labels.shape[1] else jnp.ones_like(inputs[:, :1])
            x = x + jnp.einsum("nl,ns,lsd->nd", labels, styles, self.places[...])
        return x


_SPREAD = 1.5  # of places: between bounds, those of a logistic function, they are nearly uniform
_MOMENTUM = 0.95


def _doubled(images: Array) -> Array:
    """Bilinear upsampling: [n, h, w, c] -> [n, 2h, 2w, c]."""
    n, height, width, channels = images.shape
    return jax.image.resize(images, (n, 2 * height, 2 * width, channels), "bilinear")


class _Convolutions(nnx.Module):
    def __init__(self, network: Convolutional, num_inputs: int, rngs: nnx.Rngs):
        self.small = network.height // 4, network.width // 4, network.channels[0]
        size = math.prod(self.small)
        window = (network.size, network.size)
        self.first = nnx.Linear(num_inputs, network.hidden, rngs=rngs)
        self.first_normal = nnx.BatchNorm(network.hidden, momentum=_MOMENTUM, rngs=rngs)
        self.second = nnx.Linear(network.hidden, size, rngs=rngs)
        self.second_normal = nnx.BatchNorm(size, momentum=_MOMENTUM, rngs=rngs)
        self.first_convolution = nnx.Conv(*network.channels, window, rngs=rngs)
        self.second_convolution = nnx.Conv(network.channels[1], 1, window, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = nnx.relu(self.first_normal(self.first(x)))
        x = self.second_normal(self.second(x)).reshape(-1, *self.small)
        x = nnx.relu(self.first_convolution(_doubled(x)))
        return jnp.reshape(self.second_convolution(_doubled(x)), (len(x), -1))
