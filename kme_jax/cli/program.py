"""The program kme-jax."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from absl import app

from kme_jax.cli import parsing
from kme_jax.cli.errors import guarded


def main(arguments: Sequence[str]) -> int:
    """Runs a command in this process.

    Args:
      arguments: the words that follow the program's name.

    Returns:
      The exit status: 0; or 2 after an error, which is one line; or 130 after an interruption.
    """

    def work() -> None:
        args = parsing.parse(arguments)
        args.run(args)

    return guarded(work, parsing.wants_trace(arguments))


def run() -> None:
    """The program kme-jax, run by absl. --helpfull lists the flags of absl and of JAX."""

    for stream in (sys.stdout, sys.stderr):  # a stream that is closed is None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show ε and ρ

    def parse(arguments: Sequence[str]) -> argparse.Namespace:
        words, parsed = arguments[1:], []
        status = guarded(lambda: parsed.append(parsing.parse(words)), parsing.wants_trace(words))
        return parsed[0] if parsed else sys.exit(status)

    def work(args: argparse.Namespace) -> None:
        from kme_jax._numerics.compile_cache import use_compile_cache
        from kme_jax._numerics.precision import hide_absent_devices

        hide_absent_devices()
        use_compile_cache()
        args.run(args)

    app.run(lambda args: guarded(lambda: work(args), args.debug), flags_parser=parse)
