"""Every test runs under strict dtype and rank promotion, and without a change of JAX's global float64 setting.

All workers of a session, and the programs that tests start, share one folder of compiled programs, which is new.
``KME_JAX_TESTS_CACHE_DIR`` names another folder, which is kept. Two sessions that follow each other can share it.
Tests compile with LLVM's level 1 and with XLA's older emitters, which takes a third less time in all. ``XLA_FLAGS`` can
say otherwise.
Arrays in calls of public functions are checked against the shapes in their annotations, see ``tests/shapes.py``.
"""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile

import jax
import numpy as np
import pytest
import threadpoolctl

from tests import shapes
from tests.fits import no_fit

shapes.install()  # before the package is imported

from kme_jax._numerics.compile_cache import use_compile_cache  # noqa: E402

_QUICK_TO_COMPILE = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"  # .ci/run has them, too
_CACHE = pytest.StashKey[str]()


gc.set_threshold(20_000, 20, 20)  # a tenth of the time of Python's own work was spent in its collector


def pytest_collection_finish(session):
    gc.freeze()  # modules and tests live until the end


def pytest_configure(config):
    worker = hasattr(config, "workerinput")
    if not worker:  # workers inherit the environment
        folder = os.environ.get("KME_JAX_TESTS_CACHE_DIR")
        if not folder:
            folder = config.stash[_CACHE] = tempfile.mkdtemp(prefix="kme_jax_tests_")
        os.environ["KME_JAX_CACHE_DIR"] = folder
        flags = f"{_QUICK_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}"
        if _are_known(flags):
            os.environ["XLA_FLAGS"] = flags
    if worker and config.workerinput["workercount"] > 1:
        _use_one_thread()
    if worker or not config.getoption("numprocesses", None):  # this process runs tests
        use_compile_cache()


def _are_known(flags):
    """Whether this version of XLA has these flags. A process ends at one that it does not have."""
    program = [sys.executable, "-c", "import jax; jax.local_devices(backend='cpu')"]
    return subprocess.run(program, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True).returncode == 0


def _use_one_thread():
    """Threads of XLA and of BLAS in workers that run side by side would wait for each other, busily. Programs that
    tests start have all threads."""
    threadpoolctl.threadpool_limits(1)
    os.environ["NPROC"] = "1"  # XLA reads it once, when its client for CPUs starts
    jax.local_devices(backend="cpu")
    del os.environ["NPROC"]


def pytest_unconfigure(config):
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


@pytest.fixture(autouse=True)
def _strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """A function from a name, and a function that fills a folder, to a folder that one worker fills for all."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name, fill):
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (base / name).exists():
                (base / f"{name}.partial").mkdir()
                fill(base / f"{name}.partial")
                (base / f"{name}.partial").rename(base / name)
        return base / name

    return folder


@pytest.fixture(scope="module")
def no_fits():
    """Releases of tables in the module have no fits, see ``tests/fits.py``. The value is the function that fits."""
    from kme_jax.table import mixture

    with pytest.MonkeyPatch.context() as patch:
        fit = mixture.fit
        patch.setattr(mixture, "fit", no_fit)
        yield fit


@pytest.fixture
def rng():
    return np.random.default_rng(20180710)


@pytest.fixture
def mixture_rows():
    """Rows of the published mixture at a small N, [1500, 3]."""
    from experiments.common.mixture import mixture

    return mixture(1500, 3)
