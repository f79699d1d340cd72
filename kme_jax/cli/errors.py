"""Turns exceptions into one line on standard error and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable

from absl import flags

from kme_jax._numerics.text import printable
from kme_jax.cli.printing import discard_output, flush_output

_MAX_CHARACTERS = 1000  # the largest length of an error, which may repeat an argument


class InputError(ValueError):
    """A mistake that the user can correct. The command prints its text in one line and ends with exit status 2."""


class ToldError(Exception):
    """The work ended, and some of it could not be done. :func:`tell_error` has said what. The exit status is 2."""


def guarded(work: Callable[[], None], debug: bool = False) -> int:
    """Runs a function, and turns an exception into one line on standard error and an exit status.

    Args:
      work: the function.
      debug: whether to print where the exception was raised.

    Returns:
      0; or 2 after an error; or 130 after an interruption.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            try:
                work()
            except SystemExit:  # after the help text
                flush_output()
                raise
            flush_output()
    except BrokenPipeError:  # the reader of the output has ended; the work itself is done
        discard_output()
    except ToldError:
        return 2
    except KeyboardInterrupt as error:
        _print_trace(debug)
        print(_one_line(error, "interrupted"), file=sys.stderr)
        return 130
    except (ValueError, OSError, ModuleNotFoundError, MemoryError, flags.Error) as error:
        _print_trace(debug)
        _end_with(_one_line(error))
        return 2
    except Exception as error:
        # The text of the exception is not printed: nobody has checked that it shows no private value.
        _print_trace(debug)
        defect = f"{type(error).__name__}: this is a defect of kme-jax: please report it (--debug shows where it is)"
        _end_with(_one_line(error, device_problem() or defect))
        return 2
    return 0


def check_devices() -> None:
    """Checks that JAX has a device to compute on.

    Raises:
      InputError: if it has none, for instance because JAX_PLATFORMS names a kind of device that does not exist here.
    """
    import jax  # noqa: F401  # device_problem looks for it

    if problem := device_problem():
        raise InputError(problem)


def device_problem() -> str | None:
    """The reason why JAX cannot use any device. None if JAX can use one, or has not been imported."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    try:
        jax.devices()
    except RuntimeError as error:  # it names platforms, and no private value
        platforms = os.environ.get("JAX_PLATFORMS")
        cause = f"JAX_PLATFORMS={platforms}: " if platforms else ""
        return f"{cause}JAX cannot use the devices it is told to use ({error})"
    return None


def tell_error(error: ValueError) -> None:
    """Prints an error in one line on standard error, for work that goes on without what it is about."""
    print(f"error: {_one_line(error)}", file=sys.stderr)


def _end_with(line: str) -> None:
    print(f"error: {line}", file=sys.stderr)
    try:
        flush_output()
    except OSError:
        discard_output()


def _print_warning(message, *_, **__) -> None:
    print(f"warning: {printable(_short_line(message))}", file=sys.stderr)


def _print_trace(debug: bool) -> None:
    if debug:
        print(printable(traceback.format_exc(), lines=True), file=sys.stderr, end="")


def _short_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}..."


def _one_line(error: BaseException, text: str = "") -> str:
    parts = [text or str(error) or type(error).__name__, *getattr(error, "__notes__", [])]
    return printable("; ".join(map(_short_line, parts)))
