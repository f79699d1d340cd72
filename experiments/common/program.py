"""How an experiment becomes a program."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from absl import app

from experiments.common import progress
from experiments.common.config import Config
from experiments.common.errors import InputError
from kme_jax._numerics.compile_cache import use_compile_cache
from kme_jax._numerics.precision import hide_absent_devices


def run_main(main: Callable[..., None], *configurations: type[Config], compile_cache: bool = True) -> None:
    """Defines flags, parses the command line and runs ``main``. Input errors and unknown words become one line.

    Args:
      main: called with one validated configuration of each class.
      configurations: classes whose fields are the program's flags.
      compile_cache: whether compiled programs are kept, see ``kme_jax._numerics.compile_cache``.
    """
    for configuration in configurations:
        configuration.define_flags()

    def interrupt(*_):
        progress.interrupt()
        raise KeyboardInterrupt

    def guarded(argv):
        signal.signal(signal.SIGINT, interrupt)
        try:
            if len(argv) > 1:
                raise InputError(f"unknown word {argv[1]!r}: every option is a flag, see --help")
            configs = [configuration.from_flags() for configuration in configurations]
            for config in configs:
                config.validate()
            hide_absent_devices()
            if compile_cache:
                use_compile_cache()
            main(*configs)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        except ModuleNotFoundError as error:
            if (error.name or "kme_jax").split(".")[0] in ("kme_jax", "experiments"):
                raise
            print(f'error: {error.name} is not installed: pip install -e ".[experiments]"', file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on with what is finished, or starts anew", file=sys.stderr)
            sys.exit(130)

    app.run(guarded)
