"""A small residual network that learns from synthetic images and is tested on real ones.

The network has a convolution of 5 x 5 pixels with 16 channels and stride 2, three residual blocks with 16, 32 and 64
channels (the last two with stride 2), the mean over places, and a linear layer: 78 000 parameters. It is trained by
AdamW on one cycle of the learning rate, with batches of 128 images. The setting is the same for every source of images.
It was chosen without real test images.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.merf import image_files
from kme_jax._numerics.precision import Progress
from kme_jax.generators.nnx import nnx

Array = jax.Array

_STEM, _WIDTHS = 16, (16, 32, 64)
_BATCH = 128
_PEAK, _WEIGHT_DECAY, _SMOOTHING = 4e-3, 0.05, 0.1
_TESTED_AT_ONCE = 1000


class _Block(nnx.Module):
    """Two convolutions of 3 x 3 pixels beside a shortcut (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int, rngs: nnx.Rngs):
        convolution = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.first = convolution(before, after, (3, 3), strides=stride)
        self.second = convolution(after, after, (3, 3))
        self.first_normal, self.second_normal = (nnx.BatchNorm(after, momentum=0.95, rngs=rngs) for _ in range(2))
        self.shortcut = convolution(before, after, (1, 1), strides=stride) if before != after else None

    def __call__(self, x: Array) -> Array:
        """Channels [n, h, w, before] to [n, h, w, after] / stride."""
        y = nnx.relu(self.first_normal(self.first(x)))
        y = self.second_normal(self.second(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nnx.Module):
    """Logits of the classes [n, 10] of images [n, 28, 28, 1] with pixels from 0 to 1."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(1, _STEM, (5, 5), strides=2, use_bias=False, rngs=rngs)
        self.normal = nnx.BatchNorm(_STEM, momentum=0.95, rngs=rngs)
        pairs = zip((_STEM, *_WIDTHS[:-1]), _WIDTHS, (1, 2, 2), strict=True)
        self.blocks = nnx.List([_Block(before, after, stride, rngs) for before, after, stride in pairs])
        self.last = nnx.Linear(_WIDTHS[-1], image_files.NUM_CLASSES, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Logits of images."""
        x = nnx.relu(self.normal(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(jnp.mean(x, axis=(1, 2)))


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes of each training image.

    Attributes:
      shift: largest shift along each axis, in pixels.
      turn: largest rotation, in degrees.
      zoom: largest relative change of size.
    """

    shift: float = 2.0
    turn: float = 10.0
    zoom: float = 0.1

    def __call__(self, key: Array, images: Array) -> Array:
        """Changed images [n, 28, 28, 1], by bilinear interpolation. Pixels from outside are 0. Traceable."""
        side = images.shape[1]
        largest = jnp.asarray([[self.shift, self.shift, np.deg2rad(self.turn), self.zoom]])
        changes = largest * jax.random.uniform(key, (len(images), 4), minval=-1.0)
        centred = jnp.arange(float(side)) - (side - 1) / 2

        def changed(image, change):
            cos, sin = (1 + change[3]) * jnp.cos(change[2]), (1 + change[3]) * jnp.sin(change[2])
            rows = cos * centred[:, None] - sin * centred[None, :] + change[0] + (side - 1) / 2
            columns = sin * centred[:, None] + cos * centred[None, :] + change[1] + (side - 1) / 2
            with jax.numpy_dtype_promotion("standard"):
                return jax.scipy.ndimage.map_coordinates(image, [rows, columns], order=1)

        return jax.vmap(changed)(images[..., 0], changes)[..., None]


def _optimiser(num_steps: int) -> optax.GradientTransformation:
    schedule = optax.cosine_onecycle_schedule(num_steps, _PEAK, pct_start=0.2)
    return optax.adamw(schedule, weight_decay=_WEIGHT_DECAY)


@functools.partial(jax.jit, static_argnames=("graph", "num_steps", "augmentation"), donate_argnames=("state",))
def _step(graph, num_steps, augmentation, state, key, images, labels):
    """The state after one step: parameters, statistics and moments."""
    parameters, statistics, moments = state
    if augmentation is not None:
        images = augmentation(key, images)
    targets = optax.smooth_labels(jax.nn.one_hot(labels, image_files.NUM_CLASSES), _SMOOTHING)

    def loss(parameters):
        network = nnx.merge(graph, parameters, statistics, copy=True)
        losses = optax.softmax_cross_entropy(network(images), targets)
        return jnp.mean(losses), nnx.state(network, nnx.Not(nnx.Param))

    gradient, statistics = jax.grad(loss, has_aux=True)(parameters)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
        updates, moments = _optimiser(num_steps).update(gradient, moments, parameters)
    return optax.apply_updates(parameters, updates), statistics, moments


@functools.partial(jax.jit, static_argnames="graph")
def _logits(graph, parameters, statistics, images):
    network = nnx.merge(graph, parameters, statistics)
    network.eval()
    return network(images)


def _images(rows: np.ndarray) -> np.ndarray:
    """Rows of pixels [n, 784] as images, float32 [n, 28, 28, 1]."""
    return np.asarray(rows, np.float32).reshape(-1, image_files.SIDE, image_files.SIDE, 1)


def predicted(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    seed: int,
    *,
    num_epochs: int = 3,
    augmentation: Augmentation | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Trains a network and returns the classes that it finds in test images, [m].

    Args:
      train: pixels from 0 to 1, [n, 784]. At least one batch is trained on, with images that repeat if there are few.
      labels: labels of the training images, [n].
      test: pixels from 0 to 1, [m, 784]. They choose nothing.
      seed: of parameters, order and changes of the images.
      num_epochs: how often each training image is used.
      augmentation: random changes of the training images; None for none.
      progress: called with (steps done, steps).
    """
    rng = np.random.default_rng(seed)
    images, labels = _images(train), np.asarray(labels, np.int32)
    per_epoch = max(1, len(images) // _BATCH)
    num_steps = per_epoch * num_epochs
    key = jax.random.key(seed)
    graph, parameters, statistics = nnx.split(ResNet(nnx.Rngs(key)), nnx.Param, ...)
    state: Any = parameters, statistics, _optimiser(num_steps).init(parameters)
    for epoch in range(num_epochs):
        order = np.resize(rng.permutation(len(images)), per_epoch * _BATCH).reshape(-1, _BATCH)
        for step, chosen in enumerate(order, epoch * per_epoch):
            step_key = jax.random.fold_in(key, step)
            state = _step(graph, num_steps, augmentation, state, step_key, images[chosen], labels[chosen])
            if progress and step % 50 == 49:
                progress(step + 1, num_steps)
    tested = _images(test)
    batches = np.split(tested, range(_TESTED_AT_ONCE, len(tested), _TESTED_AT_ONCE))
    logits = [np.asarray(_logits(graph, *state[:2], batch)) for batch in batches]
    return np.argmax(np.concatenate(logits), axis=1)
