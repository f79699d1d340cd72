"""What the installed JAX must get right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax._numerics.precision import float64


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 16_385), (np.float32, 32_769)])
def test_products_followed_by_sums(dtype, size):
    """jaxlib 0.10.2 gets the last rows wrong on CPUs: github.com/jax-ml/jax/issues/39103."""
    with float64():
        rows = jnp.zeros((size, 3), dtype).at[:, 0].set(jnp.arange(size, dtype=dtype))
        matrix = jnp.eye(3, dtype=dtype)
        squares = jax.jit(jax.vmap(lambda row: jnp.sum(jnp.matmul(matrix, row, precision="highest") ** 2)))(rows)
        np.testing.assert_allclose(squares, np.arange(size, dtype=dtype) ** 2, rtol=1e-5)
