"""Critics, which DP-SGD trains: plain matrices, and the inputs and gradients of each layer for each row.

Rows of a batch do not influence each other, so a critic has no batch normalisation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.rivals.columns import Columns
from experiments.rivals.dp_sgd import Layer

_SLOPE = 0.2  # of leaky ReLU
_SIZE, _STRIDE = 4, 2  # of the windows of convolutions, in pixels

Matrices = list[jax.Array]
"""Parameters: a matrix for each layer, whose last row is the bias, and last a row for each label."""


@dataclasses.dataclass(frozen=True)
class Critic:
    """Description of a critic: layers, and a score that depends on the label.

    The score is ⟨w + w_y, h⟩ + b for the last hidden layer h and the label y (Miyato & Koyama 2018).

    Attributes:
      channels: of convolutions of stride 2, for images; none for other rows.
      widths: units of the linear layers after them.
    """

    channels: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    def start(self, columns: Columns, key: jax.Array) -> Matrices:
        """Random matrices (He et al. 2015), biases of 0, and zeros for the labels."""
        depths = [_SIZE**2 * depth for depth in (1, *self.channels)]
        shapes = list(zip(depths, self.channels, strict=False))
        width = columns.width
        if self.channels:
            width = (columns.side // _STRIDE ** len(self.channels)) ** 2 * self.channels[-1]
        shapes += itertools.pairwise((width, *self.widths, 1))
        matrices = []
        for own, (before, after) in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
            weights = (2 / before) ** 0.5 * jax.random.normal(own, (before, after))
            matrices.append(jnp.concatenate([weights, jnp.zeros((1, after))]))
        return [*matrices, jnp.zeros((columns.num_labels, shapes[-1][0]))]

    def scores(
        self, columns: Columns, matrices: Matrices, rows: jax.Array, labels: jax.Array, taps: list | None = None
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Scores [n] of rows [n, width], and the input of each layer, [n, places, inputs].

        Args:
          columns: of the rows.
          matrices: the parameters.
          rows: from 0 to 1.
          labels: of the rows, [n].
          taps: what is added to the output of each layer, [n, places, outputs]; nothing if None. The score's gradient
            by it is the gradient by the output.
        """
        inputs: list[jax.Array] = []

        def layer(x: jax.Array) -> jax.Array:
            number = len(inputs)
            inputs.append(jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1))
            y = inputs[number] @ matrices[number]
            return y if taps is None else y + taps[number]

        x = (2 * rows - 1)[:, None]
        for size in range(len(self.channels)):
            side = columns.side // _STRIDE**size
            windows = _windows(x.reshape(len(rows), side, side, -1))
            x = jax.nn.leaky_relu(layer(windows), _SLOPE)
        x = x.reshape(len(rows), 1, -1)
        for _ in self.widths:
            x = jax.nn.leaky_relu(layer(x), _SLOPE)
        score = layer(x)
        inputs.append(jax.nn.one_hot(labels, columns.num_labels)[:, None])
        of_label = inputs[-1] @ matrices[-1]
        of_label = of_label if taps is None else of_label + taps[-1]
        return (score[..., 0] + jnp.sum(of_label * x, axis=-1))[:, 0], inputs

    def layers(
        self,
        columns: Columns,
        matrices: Matrices,
        rows: jax.Array,
        labels: jax.Array,
        loss: Callable[[jax.Array], jax.Array],
    ) -> list[Layer]:
        """Inputs of each layer, and gradients of the loss of each row by its outputs.

        ``loss`` maps scores [n] to losses [n].
        """
        shapes = jax.eval_shape(lambda: self.scores(columns, matrices, rows, labels)[1])
        taps = [jnp.zeros((*shape.shape[:2], matrix.shape[1])) for shape, matrix in zip(shapes, matrices, strict=True)]

        def total(taps: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            scores, inputs = self.scores(columns, matrices, rows, labels, taps)
            return jnp.sum(loss(scores)), inputs

        gradients, inputs = jax.grad(total, has_aux=True)(taps)
        return list(zip(inputs, gradients, strict=True))


def _windows(images: jax.Array) -> jax.Array:
    """All windows of 4 x 4 pixels at stride 2, [n, h, w, c] -> [n, h/2 * w/2, 16 c]. The border is zeros.

    With them a convolution is a matrix product.
    """
    num, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = itertools.product(range(_SIZE), range(_SIZE))
    parts = [padded[:, i : i + height : _STRIDE, j : j + width : _STRIDE] for i, j in places]
    return jnp.concatenate(parts, axis=-1).reshape(num, height * width // _STRIDE**2, -1)
