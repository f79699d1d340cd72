"""Networks of generators: descriptions, which are small frozen dataclasses, and the flax modules built from them.

A network maps inputs [n, normals + styles + labels] to raw values [n, D]. ``kme_jax.generators.generator`` turns raw
values into numbers between bounds and probabilities of categories. The *latent code* is the standard normal part of the
input. The *style* is a further input, which is discrete.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Float

from kme_jax._numerics.precision import are_sizes, is_size
from kme_jax._numerics.registry import storable
from kme_jax._numerics.text import shown
from kme_jax.generators.nnx import nnx

Array = jax.Array

MOST_MEMBERS = 100
"""The largest number of networks in a pool. Time and memory of a training grow with it."""


class Network(abc.ABC):
    """A description of a network.

    Attributes:
      code: length of the latent code.
      styles: number of styles. A style is a one-hot input. It lets the network have separate modes without a path from
        one to the other. 0 for none.
    """

    code: int
    styles: int

    @abc.abstractmethod
    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        """The flax module, with random parameters.

        Raises:
          ValueError: the network cannot have this number of outputs.
        """

    @abc.abstractmethod
    def num_normals(self, num_outputs: int) -> int:
        """Number of standard normal inputs: those of the latent code, and noise if the network has any."""


def check_module(module: nnx.Module, network: Network, num_labels: int, num_outputs: int) -> None:
    """Refuses a module that cannot be trained or saved.

    Args:
      module: what the network has built.
      network: its description.
      num_labels: L, the number of labels; 0 for rows without labels.
      num_outputs: D, the number of raw values.

    Raises:
      ValueError: the module keeps something that is no number, such as a random key, or it does not turn inputs [n,
        normals + styles + labels] into values [n, D], or fails with them.
    """
    name = type(network).__name__
    graph, state = nnx.split(module)
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
            where = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"network: {name} keeps {leaf.dtype} in {where}, and a generator keeps numbers alone: leave out layers "
                "with random numbers of their own, such as Dropout, because the inputs are random already"
            )
    inputs = network.num_normals(num_outputs) + network.styles + num_labels
    try:
        values = jax.eval_shape(lambda state, x: nnx.merge(graph, state)(x), state, jnp.zeros((2, inputs)))
    except Exception as error:  # of any layer of somebody else's module
        raise ValueError(
            f"network: {name} fails with inputs of shape [2, {inputs}], those of num_normals, the styles "
            f"and the labels: {shown([' '.join(f'{type(error).__name__}: {error}'.split())])}"
        ) from error
    if not isinstance(values, jax.ShapeDtypeStruct):
        raise ValueError(f"network: {name} turns inputs into a {type(values).__name__}, expected one array")
    if values.shape != (2, num_outputs):
        raise ValueError(
            f"network: {name} turns 2 inputs into values of shape {list(values.shape)}, expected [2, {num_outputs}]"
        )


def _check(code: int, styles: int, widths: tuple[int, ...]) -> None:
    if not is_size(code) or not (is_size(styles) or styles == 0):
        raise ValueError(
            f"a network needs a code of 1 or more and styles of 0 or more, in whole numbers, got {code} and {styles}"
        )
    if not are_sizes(widths):
        raise ValueError(f"widths: expected a tuple with a number of units, 1 or more, for each layer, got {widths!r}")


@storable()
@dataclasses.dataclass(frozen=True)
class MLP(Network):
    """Linear layers with batch normalisation and ReLU ([H], experiments on Gaussian mixtures and tables).

    Attributes:
      widths: numbers of units of the hidden layers.
      code: see :class:`Network`.
      styles: see :class:`Network`.

    Examples:
      >>> from kme_jax.generators import MLP
      >>> MLP(widths=(50, 50), styles=4)
      MLP(widths=(50, 50), code=5, styles=4)
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
    """Linear layers to an image of a quarter of the size, then two convolutions, each after bilinear upsampling by two.

    This is the network of [H] for images.

    Attributes:
      height: of images, a multiple of 4.
      width: of images, a multiple of 4.
      hidden: number of units of the first layer.
      channels: numbers of channels of the small image, and after the first convolution.
      size: width of the convolutions' kernels, in pixels.
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
    """Smooth images with independent noise in every pixel.

    The layers are those of :class:`MLP`. A fixed Gaussian blur of their values follows, and then noise, whose size is
    learnt for each class. The blur suppresses the speckles that come from the noise of an embedding. The added noise
    is for classifiers: smooth images alone vary in few directions only, and a classifier that learns from them would
    rely on all other directions without reason.

    Attributes:
      height: of images, in pixels.
      width: of images, in pixels.
      widths: numbers of units of the hidden layers.
      blur: standard deviation of the blur, in pixels.
      noise: initial standard deviation of the noise, in the unit of logits.
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


@storable()
@dataclasses.dataclass(frozen=True)
class Pool(Network):
    """Several networks of one kind, each with parameters of its own. A row comes from one of them.

    Each style of each member is a style of the pool: style s of member m has the number m·max(S, 1) + s, where S is the
    number of styles of a member. ``Training.num_generators`` makes it.

    Attributes:
      network: of the members.
      size: number of members.
    """

    network: Network
    size: int

    def __post_init__(self):
        if not isinstance(self.network, Network) or isinstance(self.network, Pool):
            raise ValueError(f"network: expected a network that is no pool, got {self.network!r:.50}")
        if not is_size(self.size) or self.size > MOST_MEMBERS:
            raise ValueError(f"size must be a whole number from 1 to {MOST_MEMBERS}, got {self.size}")

    @property
    def code(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.network.code

    @property
    def styles(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.size * max(self.network.styles, 1)

    def num_normals(self, num_outputs: int) -> int:
        return self.network.num_normals(num_outputs)

    def build(self, num_labels: int, num_outputs: int, rngs: nnx.Rngs) -> nnx.Module:
        return _Members(self, num_labels, num_outputs, rngs)


class _Members(nnx.Module):
    def __init__(self, pool: Pool, num_labels: int, num_outputs: int, rngs: nnx.Rngs):
        self.pool, self.normals = pool, pool.num_normals(num_outputs)
        self.members = nnx.List([pool.network.build(num_labels, num_outputs, rngs) for _ in range(pool.size)])

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        normals, styles, labels = jnp.split(x, (self.normals, self.normals + self.pool.styles), axis=1)
        styles = styles.reshape(len(x), self.pool.size, -1)
        values = []
        for number, member in enumerate(self.members):
            inputs = [normals, styles[:, number], labels] if self.pool.network.styles else [normals, labels]
            values.append(member(jnp.concatenate(inputs, axis=1)))
        return jnp.sum(jnp.sum(styles, axis=2).T[:, :, None] * jnp.stack(values), axis=0)


def _blur(size: int, width: float) -> Float[Array, "n n"]:
    """Gaussian weights of neighbours, [size, size]. The largest sum of a row is ``_GAIN``."""
    places = jnp.arange(float(size))
    weights = jnp.exp(-0.5 * jnp.square((places[:, None] - places[None, :]) / width))
    return _GAIN * weights / jnp.max(jnp.sum(weights, axis=1))


_GAIN = 1.5  # compensates in part that a blur shrinks independent values


class _Smooth(nnx.Module):
    def __init__(self, network: SmoothImages, num_labels: int, num_outputs: int, rngs: nnx.Rngs):
        self.network = network
        self.layers = _Layers(network, num_labels, num_outputs, rngs)
        self.noise = nnx.Param(jnp.full((max(num_labels, 1), 1), math.log(math.expm1(network.noise))))

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        network = self.network
        size = network.height * network.width
        code, noise, one_hots = jnp.split(x, (network.code, network.code + size), axis=1)
        values = self.layers(jnp.concatenate([code, one_hots], axis=1)).reshape(-1, network.height, network.width)
        rows, columns = _blur(network.height, network.blur), _blur(network.width, network.blur)
        values = jnp.einsum("nij,ai,bj->nab", values, rows, columns).reshape(-1, size)
        labels = one_hots[:, network.styles :]
        labels = labels if labels.shape[1] else jnp.ones_like(x[:, :1])
        return values + labels @ jax.nn.softplus(self.noise[...]) * noise


class _Layers(nnx.Module):
    """Linear layer, batch normalisation and ReLU for each width, then a linear layer.

    With styles, each style of each label has a learnt place in the output. The output of the layers is added to it.
    """

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

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        inputs = x
        for linear, normal in zip(self.linear, self.normal, strict=True):
            x = nnx.relu(normal(linear(x)))
        x = self.last(x)
        if self.styles:
            styles, labels = inputs[:, self.code : self.code + self.styles], inputs[:, self.code + self.styles :]
            labels = labels if labels.shape[1] else jnp.ones_like(inputs[:, :1])
            x = x + jnp.einsum("nl,ns,lsd->nd", labels, styles, self.places[...])
        return x


_SPREAD = 1.5  # of the initial places. The logistic function makes these nearly uniform between the bounds.
_MOMENTUM = 0.95


def _doubled(images: Float[Array, "n h w c"]) -> Float[Array, "n 2*h 2*w c"]:
    """Images [n, h, w, c] after bilinear upsampling by two, [n, 2h, 2w, c]."""
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

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        x = nnx.relu(self.first_normal(self.first(x)))
        x = self.second_normal(self.second(x)).reshape(-1, *self.small)
        x = nnx.relu(self.first_convolution(_doubled(x)))
        return jnp.reshape(self.second_convolution(_doubled(x)), (len(x), -1))
