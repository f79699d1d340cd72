"""Errors that the user can correct. A program reports each as one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class InputError(ValueError):
    """An error that the user can correct. A program reports it as one line and exits with status 2."""


@contextlib.contextmanager
def input_errors(prefix: str = "") -> Iterator[None]:
    """Turns a ValueError or OSError within the block into an :class:`InputError`.

    Args:
      prefix: what the message begins with.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise InputError(prefix + " ".join(str(error).split())) from error
