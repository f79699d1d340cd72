"""The command kme-jax: from a private file to a folder that may be published, and what can be done with the folder.

Each command is a module of ``kme_jax.cli.commands``. Nothing here imports JAX before a command runs, so that help is
shown at once.
"""

from kme_jax.cli.program import main, run

__all__ = ["main", "run"]
