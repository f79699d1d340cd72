"""The configuration of an experiment: one frozen dataclass, with one command-line flag for each field.

    @dataclasses.dataclass(frozen=True)
    class MyConfig(Config):
        num_rows: int = flag(1000, "N, the number of private rows.")
        epsilons: tuple[float, ...] = flag((0.1, 1.0), "Privacy levels ε.")
        output_dir: str = flag("results", "Folder for the JSON result.")

        def validate(self) -> None:
            at_least(self, 1, "num_rows")

``experiments.common.program.run_main(main, MyConfig)`` defines the flags, parses and validates them, and calls
``main(config)``. ``config.settings()`` is what a result records.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, Self

from absl import flags

from experiments.common.errors import InputError, input_errors
from experiments.common.results import portable_path
from kme_jax import PrivacyBudget

# Flags that this module defines belong to the program: register_key_flag_for_module lists them in its --help.
flags.disclaim_key_flags()


def flag(default: Any, text: str, *, choices: Sequence[str] = ()) -> Any:
    """A field of a configuration that has a flag.

    Args:
      default: value of the field if the flag is not given.
      text: help text of the flag.
      choices: the allowed values of a text; empty for any.
    """
    return dataclasses.field(default=default, metadata={"help": text, "choices": tuple(choices)})


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

    @classmethod
    def from_flags(cls) -> Self:
        """The configuration that the flags describe.

        Raises:
          InputError: if an element of a list is not a number where numbers are expected.
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
        return cls(**values)

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
