"""The configuration of an experiment: one frozen dataclass, with one command-line flag for each field.

    @dataclasses.dataclass(frozen=True)
    class MyConfig(Config):
        num_rows: int = flag(100_000, "N, the number of private rows.", quick=1000)
        epsilons: tuple[float, ...] = flag((0.1, 1.0), "Privacy levels ε.")
        output_dir: str = flag("results", "Folder for the JSON result.")

        def validate(self) -> None:
            at_least(self, 1, "num_rows")

``experiments.common.program.run_main(main, MyConfig)`` defines the flags, parses and validates them, and calls
``main(config)``. ``config.settings()`` is what a result records. If a field has a quick value, the program has a flag
``--quick``: it runs with the quick values and writes to results/quick/. A flag that is given beside it is obeyed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, Self

from absl import flags

from experiments.common.errors import InputError, input_errors
from experiments.common.results import REPOSITORY, portable_path
from kme_jax import PrivacyBudget

# Flags that this module defines belong to the program: register_key_flag_for_module lists them in its --help.
flags.disclaim_key_flags()


QUICK_DIR = "results/quick"
_NO_VALUE = object()


def flag(default: Any, text: str, *, choices: Sequence[str] = (), quick: Any = _NO_VALUE) -> Any:
    """A field of a configuration that has a flag.

    Args:
      default: value of the field if the flag is not given.
      text: help text of the flag.
      choices: the allowed values of a text; empty for any.
      quick: value of the field with ``--quick``, if the flag is not given; the default if left out.
    """
    small = {} if quick is _NO_VALUE else {"quick": quick}
    return dataclasses.field(default=default, metadata={"help": text, "choices": tuple(choices), **small})


@dataclasses.dataclass(frozen=True)
class Config:
    """Base class of configurations.

    A field is of type bool, int, float or str, one of these or None, or a tuple of ints, floats or strs. A field that
    :func:`flag` has not made has no flag.
    """

    @classmethod
    def define_flags(cls) -> None:
        """Defines one absl flag for each field, and lists it in the program's --help."""
        for field, kind, is_list in cls._flagged_fields():
            text, default = field.metadata["help"], field.default
            if is_list:
                flags.DEFINE_list(field.name, default and [_shown(value) for value in default], text)
            elif field.metadata["choices"]:
                flags.DEFINE_enum(field.name, default, list(field.metadata["choices"]), text)
            else:
                _DEFINE[kind](field.name, default, text)
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[field.name])
        if cls._is_quick():
            sizes = " ".join(f"--{name}={_listed(value)}" for name, value in cls._quick_values().items())
            _DEFINE[bool]("quick", False, f"A small run, as with these flags where they are not given: {sizes}")
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS["quick"])

    @classmethod
    def from_flags(cls) -> Self:
        """The configuration that the flags describe.

        Raises:
          InputError: if an element of a list is not a number where numbers are expected, or a quick run would be
            written into figures/.
        """
        values = {}
        for field, kind, is_list in cls._flagged_fields():
            value = getattr(flags.FLAGS, field.name)
            if is_list and value is not None:
                try:
                    value = tuple(map(kind, value))
                except ValueError as error:
                    numbers = "whole numbers" if kind is int else "numbers"
                    raise InputError(f"--{field.name} must be {numbers} separated by commas: {error}") from error
            values[field.name] = value
        config = cls(**values)
        if not (cls._is_quick() and flags.FLAGS["quick"].value):
            return config
        config = config.quick_run(*(name for name in values if flags.FLAGS[name].present))
        if pathlib.Path(getattr(config, "output_dir", QUICK_DIR)).resolve() == (REPOSITORY / "figures").resolve():
            raise InputError("--quick never writes into figures/: give another --output_dir")
        return config

    def quick_run(self, *given: str) -> Self:
        """This configuration with the quick values, and with results/quick as the folder.

        Args:
          given: names of fields that keep their values.
        """
        values = {name: value for name, value in self._quick_values().items() if name not in given}
        return dataclasses.replace(self, **values)

    @classmethod
    def _is_quick(cls) -> bool:
        """Whether the program has a flag ``--quick`` for this class."""
        return any("quick" in field.metadata for field in dataclasses.fields(cls))

    @classmethod
    def _quick_values(cls) -> dict[str, Any]:
        values = {f.name: f.metadata["quick"] for f in dataclasses.fields(cls) if "quick" in f.metadata}
        return values | {f.name: QUICK_DIR for f in dataclasses.fields(cls) if f.name == "output_dir"}

    def validate(self) -> None:
        """Checks all values that can be checked without data.

        Raises:
          InputError: if a value is invalid.
        """

    def settings(self, *without: str) -> dict[str, Any]:
        """What a result records: every field, with a portable output folder.

        Args:
          without: names of fields that the result does not depend on.
        """
        settings = dataclasses.asdict(self)
        if "output_dir" in settings:
            settings["output_dir"] = portable_path(settings["output_dir"])
        return {name: value for name, value in settings.items() if name not in without}

    @classmethod
    def _flagged_fields(cls) -> list[tuple[dataclasses.Field, type, bool]]:
        """Every field that has a flag, the type of its value or of its elements, and whether it is a list."""
        hints = typing.get_type_hints(cls)
        return [(f, *_kind(hints[f.name])) for f in dataclasses.fields(cls) if "help" in f.metadata]


_DEFINE = {
    bool: flags.DEFINE_boolean,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def _kind(hint: Any) -> tuple[type, bool]:
    """(type, whether it is the type of a tuple's elements) of ``int``, ``int | None``, ``tuple[int, ...]``."""
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
    is_list = typing.get_origin(hint) is tuple
    return (typing.get_args(hint)[0] if is_list else hint), is_list


def _listed(value: Any) -> str:
    return ",".join(map(_shown, value)) if isinstance(value, tuple) else _shown(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- checks that configurations share --------------------------------------------------------------------------------


def at_least(config: Config, least: int, *names: str) -> None:
    """Checks that fields are ``least`` or more.

    Raises:
      InputError: if one is less.
    """
    for name in names:
        if getattr(config, name) < least:
            raise InputError(f"--{name} must be at least {least}, got {getattr(config, name)}")


def one_or_more_of(config: Config, name: str, known: Sequence[str]) -> None:
    """Checks that a field is a tuple of one or more different values among ``known``.

    Raises:
      InputError: if it is not.
    """
    values = getattr(config, name)
    if not values or len(set(values)) < len(values) or set(values) - set(known):
        raise InputError(
            f"--{name}: expected one or more different names among {', '.join(known)}, got {', '.join(values)!r}"
        )


def valid_budgets(epsilons: Sequence[float], delta: float) -> None:
    """Checks that every (ε, δ) is a privacy budget.

    Raises:
      InputError: if one is not.
    """
    with input_errors():
        for epsilon in epsilons:
            PrivacyBudget(epsilon, delta)
