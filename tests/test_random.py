import jax
import numpy as np
import pytest

from kme_jax._numerics import random
from kme_jax._numerics.precision import float64


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
def test_padded_draws_are_those_of_jax(dtype):
    with float64():
        for shape in [(1,), (33,), (20, 3), (0, 2)]:
            key = jax.random.key(len(shape))
            draws = random.normal(key, shape, dtype)
            assert draws.dtype == dtype
            # The last bit may differ: one program draws more numbers than the other.
            np.testing.assert_allclose(draws, jax.random.normal(key, shape, dtype), rtol=4 * np.finfo(dtype).eps)


def test_so_they_are_if_longer_draws_begin_otherwise():
    with jax.threefry_partitionable(False):
        key = jax.random.key(0)
        np.testing.assert_array_equal(random.normal(key, (33,), np.float32), jax.random.normal(key, (33,), np.float32))
