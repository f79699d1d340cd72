"""The commands. To add one, write a module here and add its name to ``COMMANDS``.

The module's name is the command's name. The module has

* ``SUMMARY``: one line for ``kme-jax --help``;
* ``DESCRIPTION``: the first text of ``kme-jax COMMAND --help``;
* ``add_flags(parser)``: adds the command's arguments to an ``argparse.ArgumentParser``;
* ``run(args)``: does the work. For a mistake that the user can correct, it raises ``InputError``, or any other
  ValueError or OSError. The message becomes one line.

It imports JAX, and what imports JAX, within ``run`` and the functions that ``run`` calls. ``kme_jax.NAME`` is imported
when it is used.
"""

COMMANDS = (
    "release",
    "schema",
    "check",
    "synthesise",
    "show",
    "sample",
    "estimate",
    "test",
    "plan",
    "evaluate",
    "ledger",
)
"""Names of the commands, in the order of ``kme-jax --help``."""
