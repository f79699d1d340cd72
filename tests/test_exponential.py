import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax._numerics.exp2 import exp2_nonpositive
from kme_jax._numerics.precision import precision_of


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-7), (np.float64, 6e-16)])
def test_exp2(dtype, error):
    e = np.concatenate([np.linspace(-120, 0, 1_000_001), -np.logspace(-12, 0, 1001), np.linspace(0, 1e-3, 11)])
    e = e.astype(dtype)
    exact = np.exp2(e.astype(np.longdouble))
    with precision_of(e):
        values = np.asarray(jax.jit(exp2_nonpositive)(e))
        assert values.dtype == dtype
        assert np.max(np.abs(values / exact - 1)) < error
        tiny = np.asarray(jax.jit(exp2_nonpositive)(jnp.asarray([-1e4, -1e30], dtype)))
        assert np.all((tiny >= 0) & (tiny <= np.finfo(dtype).tiny))
        slope = jax.jit(jax.grad(exp2_nonpositive))(jnp.asarray(-1.5, dtype))
    assert slope == pytest.approx(np.log(2) * 2**-1.5, rel=1e-6)
