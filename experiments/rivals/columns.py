"""Rows of numbers and categories, and what a network sees of them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

_TEMPERATURE = 0.5  # of relaxed categories (Jang, Gu & Poole 2017)
_LEVELS = 255  # steps of pixels


@dataclasses.dataclass(frozen=True)
class Columns:
    """Public facts about the columns of rows: numbers from 0 to 1, then category codes, then the label.

    Attributes:
      dim: d, the number of numbers.
      num_labels: L.
      categories: number of codes of each column of categories.
      side: height and width of images in pixels if the numbers are their pixels; otherwise 0.
    """

    dim: int
    num_labels: int
    categories: tuple[int, ...] = ()
    side: int = 0

    @property
    def width(self) -> int:
        """Number of inputs and outputs of networks: numbers, and one for each category."""
        return self.dim + sum(self.categories)

    def encoded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of a network, float32 [n, width] from 0 to 1, and labels, int32 [n]."""
        blocks = [rows[:, : self.dim].astype(np.float32)]
        for size, codes in zip(self.categories, rows[:, self.dim : -1].T.astype(int), strict=True):
            blocks.append(np.eye(size, dtype=np.float32)[codes])
        return np.concatenate(blocks, axis=1), rows[:, -1].astype(np.int32)

    def relaxed(self, key: jax.Array, raw: jax.Array) -> jax.Array:
        """Outputs of a network as its inputs, [n, width]. Gradients pass: categories are drawn with the Gumbel noise,
        and differentiated as if they were not rounded."""
        blocks = [jax.nn.sigmoid(raw[:, : self.dim])]
        start = self.dim
        for size in self.categories:
            key, own = jax.random.split(key)
            logits = raw[:, start : start + size]
            soft = jax.nn.softmax((logits + jax.random.gumbel(own, logits.shape)) / _TEMPERATURE)
            hard = jax.nn.one_hot(jnp.argmax(soft, axis=1), size)
            blocks.append(soft + jax.lax.stop_gradient(hard - soft))
            start += size
        return jnp.concatenate(blocks, axis=1)

    def decoded(self, encoded: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Rows, float32 [n, columns], of inputs of a network and labels. Pixels are rounded to 255 steps."""
        numbers = encoded[:, : self.dim]
        blocks = [np.rint(_LEVELS * numbers) / _LEVELS if self.side else numbers]
        start = self.dim
        for size in self.categories:
            blocks.append(encoded[:, start : start + size].argmax(axis=1)[:, None])
            start += size
        return np.concatenate([*blocks, labels[:, None]], axis=1).astype(np.float32)
