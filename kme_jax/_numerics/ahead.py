"""Work that a thread does ahead of time."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Generator
from typing import Any


def read_ahead(items: Generator[Any]) -> Generator[Any]:
    """The same items. A thread computes each one before it is asked for."""
    with contextlib.closing(items), concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
