"""The seconds that JAX takes to compile programs."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from kme_jax._numerics.compile_cache import temporary_compile_cache


@contextlib.contextmanager
def compile_seconds() -> Iterator[list[float]]:
    """Seconds that JAX takes within the block to lower programs, and to compile them or to load them from its cache."""
    seconds: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/") and "trace" not in event:  # traces nest, and would count twice
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def first_calls(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Times first calls of a function: one with an empty persistent cache, and one with the programs in that cache.

    JAX forgets all compiled programs before each call, those of other functions too. The persistent cache is a
    temporary one, so the programs of earlier runs have no effect.

    Returns:
      The function's value, and seconds. "first_seconds" are those of the call with an empty cache; "compile_seconds"
      are the compiler's part of them. "cached_first_seconds" and "cached_compile_seconds" are those of the other call.
    """
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, temporary_compile_cache(pathlib.Path(folder)):
        for prefix in ("", "cached_"):
            jax.clear_caches()
            started = time.perf_counter()
            with compile_seconds() as durations:
                value = jax.block_until_ready(function())
            times |= {f"{prefix}first_seconds": time.perf_counter() - started}
            times |= {f"{prefix}compile_seconds": sum(durations)}
    return value, times
