"""The command kme-jax: it turns a private file into a folder that may be published, and works with such folders.

Each command is a module of ``kme_jax.cli.commands``. Nothing here imports JAX before a command runs, so that help is
shown at once.
"""

from kme_jax.cli.program import main, run

__all__ = ["main", "run"]
