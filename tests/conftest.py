"""Every test runs under strict dtype and rank promotion, and without a change of JAX's global float64 setting."""

import os

import jax
import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compile_cache(tmp_path_factory):
    """Programs that tests start keep what they compile in a folder of the tests, not in the user's."""
    os.environ["KME_JAX_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(autouse=True)
def _strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20180710)


@pytest.fixture
def mixture_rows():
    """Rows of the published mixture at a small N, [1500, 3]."""
    from experiments.common.mixture import mixture

    return mixture(1500, 3)
