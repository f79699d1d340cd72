"""Prints text without control characters, JSON and progress bars on behalf of commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kme_jax._numerics.text import printable


class OutputError(OSError):
    """Standard output cannot be written."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Turns errors of writing into OutputError, except BrokenPipeError, which means that the reader has ended."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written ({error.strerror or error})") from error


def _print(text: str) -> None:
    with _writing():
        print(text)


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, and nothing elsewhere.

    Args:
      name: the name of the work, which the bar shows.

    Yields:
      A function to call with (work done, total work).
    """
    from kme_jax._numerics import progress  # here: it imports JAX, which the help of a command does without

    with progress.progress_bar(name, only_on_terminals=True) as report:
        yield report


def print_lines(text: str) -> None:
    """Prints lines. Names and other text from files must have gone through ``printable`` before."""
    _print(printable(text, lines=True))


def print_line(text: str) -> None:
    """Prints one line. Control characters are escaped."""
    _print(printable(text))


def print_json(value: object) -> None:
    """Prints JSON, in ASCII without control characters."""
    _print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def flush_output() -> None:
    """Writes the printed text to standard output.

    Raises:
      BrokenPipeError: if the reader of the output has ended.
      OutputError: if it cannot be written, for instance because the disk is full.
    """
    if sys.stdout is not None:  # it is None if standard output is closed
        with _writing():
            sys.stdout.flush()


def discard_output() -> None:
    """Discards text that was printed but could not be written, so that Python does not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn_of_simulated_noise(release: Any) -> None:
    """Warns on standard error if a release protects nobody."""
    if not release.statement["private"]:
        print("warning: NOT PRIVATE: the noise of this release was simulated", file=sys.stderr)


@contextlib.contextmanager
def report_of(result: str) -> Iterator[None]:
    """A context for printing about finished work. An error of printing then says that the work is finished.

    Args:
      result: the finished work and its place, for example "the release is complete: out".
    """
    try:
        yield
        flush_output()
    except OutputError as error:
        error.add_note(result)
        raise
