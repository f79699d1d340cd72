"""Local use of float64, reproducible compilation, checks of inputs, and the type of progress reports.

Nothing here changes JAX's global configuration. The same holds for the rest of the library, except for main functions.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import numbers
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

MAX_SEED = 2**32 - 1  # of random keys and generators
Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` between pieces of long work."""

_F = TypeVar("_F", bound=Callable[..., Any])


def hide_absent_devices() -> None:
    """Stops JAX from reporting which kinds of device are absent. It does so in programs that use absl.

    For the main function of a program, because it changes the level of a logger.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Context manager: JAX computes in float64, on the default device, or on the host's CPU if that is a TPU.

    Examples:
      >>> import jax.numpy as jnp
      >>> from kme_jax import float64
      >>> with float64():
      ...     print(jnp.zeros(2).dtype)
      float64
      >>> jnp.zeros(2).dtype
      dtype('float32')
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        if jax.default_backend() == "tpu":
            stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        yield


def in_float64(function: _F) -> _F:
    """Decorator: runs the function within :func:`float64`."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with float64():
            return function(*args, **kwargs)

    return cast(_F, wrapper)


# XLA chooses algorithms by timings, so the choice and the last bit may differ from process to process. With these
# options cuBLAS computes matrix products and chooses their algorithms, and every sum has a fixed order.
_REPRODUCIBLE = {
    "gpu": {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
}


def reproducible_jit(function: _F, platform: str | None = None, **options: Any) -> _F:
    """``jax.jit`` of a function that gives the same bits in every process, on the same device with the same versions.

    It also compiles faster on a GPU, because nothing is timed. Within another jitted function it is ``jax.jit``.

    Args:
      function: the function to compile.
      platform: of the devices it runs on; JAX's default platform if None.
      options: of ``jax.jit``.

    Returns:
      The compiled function. Its method ``num_programs()`` returns the number of programs that were compiled for it.
    """

    compiled: dict[str, Any] = {}

    within = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return within(*args, **kwargs)  # it becomes part of another program, whose options apply
        on = platform or jax.default_backend()
        if on not in compiled:  # a thread that comes second uses the function of the first
            compiled.setdefault(on, jax.jit(function, compiler_options=_REPRODUCIBLE.get(on), **options))
        return compiled[on](*args, **kwargs)

    cast(Any, call).num_programs = lambda: sum(jitted._cache_size() for jitted in compiled.values())
    return cast(_F, call)


def precision_of(*arrays: object) -> contextlib.AbstractContextManager[None]:
    """:func:`float64` if any of the arrays is float64 (NumPy arrays included), otherwise a null context."""
    wide = any(np.dtype(getattr(array, "dtype", np.float32)) == np.float64 for array in arrays)
    return float64() if wide else contextlib.nullcontext()


def check_points(points: Any, name: str = "points") -> np.ndarray:
    """Public points as a finite floating-point array [n, d] with n, d ≥ 1, on the host.

    Float32 and float64 keep their precision. Integers and booleans become float64. Not for private rows of a release:
    an error that depends on their values leaks information (see ``kme_jax.embedding``).

    Args:
      points: anything that NumPy can turn into an array.
      name: of the points in an error.

    Raises:
      ValueError: the points are not a two-dimensional, non-empty array of finite numbers.
    """
    array = _checked(np.asarray(points), name)
    if not np.isfinite(array).all():
        _refuse_not_finite(array, name)
    return array


def check_points_in_place(points: Any, name: str = "points") -> np.ndarray | jax.Array:
    """:func:`check_points`, but an array on an accelerator stays there, and its values are not checked.

    See :func:`check_finite` for its values.
    """
    return _checked(points, name) if is_on_accelerator(points) else check_points(points, name)


def check_finite(array: np.ndarray | jax.Array, name: str) -> Callable[[], None]:
    """Starts to check the values of an array that is on an accelerator. What is on the host is not checked.

    Returns:
      A function that raises ValueError if a value is not finite. It waits for the device, so it should be called after
      other work was started.
    """
    if not is_on_accelerator(array):
        return lambda: None
    finite = _all_finite(array)
    return lambda: None if finite else _refuse_not_finite(array, name)


def is_on_accelerator(array: Any) -> bool:
    """Whether this is a JAX array in the memory of a GPU or TPU."""
    return isinstance(array, jax.Array) and all(device.platform != "cpu" for device in array.devices())


@jax.jit
def _all_finite(array):
    return jnp.isfinite(array).all()


def _checked(array: Any, name: str) -> Any:
    """The array [n, d] in floating point.

    Raises:
      ValueError: it is not a two-dimensional, non-empty array of numbers.
    """
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name}: expected numbers, got an array of {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name}: expected a non-empty array of shape [rows, columns], got shape {array.shape}")
    return array


def _refuse_not_finite(array: np.ndarray | jax.Array, name: str) -> None:
    row = int(np.flatnonzero(~np.isfinite(np.asarray(array)).all(axis=1))[0])
    raise ValueError(f"{name}: row {row} is NaN or infinite; remove or impute such rows first")


def is_size(value: Any) -> bool:
    """Whether this is a whole number, 1 or more."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and cast(int, value) >= 1


def are_sizes(values: Any) -> bool:
    """Whether this is a tuple of whole numbers, 1 or more each."""
    return isinstance(values, tuple) and all(map(is_size, values))


def check_columns(points: np.ndarray | jax.Array, num_columns: int, name: str) -> None:
    """Raises ValueError unless points [n, d] has d = num_columns."""
    if points.shape[1] != num_columns:
        raise ValueError(f"{name}: expected {num_columns} columns, got {points.shape[1]}")
