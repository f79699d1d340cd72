"""Random numbers of many shapes by few compiled programs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

_LARGEST_PADDED = 1 << 20  # more numbers take longer than the compiler


def normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    """``jax.random.normal``, which it equals to the last bit. Not traceable.

    All sizes up to the same power of two share one program: with ``jax_threefry_partitionable``, JAX's default, a
    longer draw begins with the numbers of a shorter one. Without it, each size has a program of its own.

    Args:
      key: a JAX random key.
      shape: of the draw.
      dtype: floating-point type.
    """
    size = math.prod(shape)
    begins_alike = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs
    if not (begins_alike and 0 < size <= _LARGEST_PADDED):
        return jax.random.normal(key, shape, dtype)
    padded = jax.random.normal(key, (1 << (size - 1).bit_length(),), dtype)
    return jnp.asarray(np.asarray(padded)[:size].reshape(shape))
