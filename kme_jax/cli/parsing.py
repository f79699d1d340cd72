"""Parses the words of the command line into the arguments of a command."""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Sequence

from absl.flags import argparse_flags

from kme_jax._version import __version__
from kme_jax.cli.commands import COMMANDS
from kme_jax.cli.errors import InputError

_DESCRIPTION = """Publish a synthetic database instead of a private one, with differential privacy.

a table with columns of any kind: describe it, check it, release it, draw rows
  kme-jax schema people.parquet --output=schema.json     # a draft: fill in bounds and categories
  kme-jax check people.parquet --schema=schema.json      # NOT PRIVATE: does the schema fit the file?
  kme-jax plan --schema=schema.json --num_rows=50000 --epsilon=0.3,1 --delta=1e-6  # the noise to expect
  kme-jax release people.parquet --schema=schema.json --epsilon=1 --delta=1e-6 --output=published
  kme-jax sample published --where="age>=65" --num_rows=1000 --output=old.csv
  kme-jax estimate published "mean(age)" "share(age>=65)"  # with intervals
a few columns of numbers: plan the accuracy (this reads no file), and release them
  kme-jax plan --num_rows=50000 --dim=2 --epsilon=0.1,1,10 --delta=1e-6
  kme-jax release people.csv --columns=age,income --lower=0,0 --upper=100,2e5 \\
    --epsilon=1 --delta=1e-6 --output=published
what a release is, and how private it is
  kme-jax show published
what anyone can do with a release
  kme-jax sample published --num_rows=10000 --output=synthetic.csv
  kme-jax test published other                            # do both have rows of the same distribution?
NOT PRIVATE, for the curator alone: the errors of a release
  kme-jax evaluate published --against=people.csv

kme-jax COMMAND --help explains each command. Compiled programs are kept in ~/.cache/kme_jax. They hold no private
value. KME_JAX_CACHE_DIR names another folder. KME_JAX_CACHE_DIR=off keeps no programs."""

_DEBUG = "Show where an error was raised. The text may show private values: read it before you pass it on."


class _Parser(argparse_flags.ArgumentParser):
    def __init__(self, *args, **options):
        # A flag that is cut short could be meant for another one: --eps is no --epsilon.
        super().__init__(*args, allow_abbrev=False, **options)
        self.commands: dict[str, _Parser] = {}
        self.remedies: dict[str, str] = {}  # for flags that only other commands have

    def error(self, message):
        raise InputError(f"{message}; see {self.prog} --help")

    def refuse_unknown_flags(self, words: Sequence[str]) -> None:
        """Names the first flag that this parser does not have, and one that is spelt nearly the same.

        Raises:
          InputError: if there is such a flag.
        """
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                near = [name for name in known if len(flag) > 3 and name.startswith(flag)]
                near = near or difflib.get_close_matches(flag, known, n=1)
                remedy = self.remedies.get(flag, f"did you mean {' or '.join(near)}?" if near else "")
                self.error(f"unknown flag {flag}" + f": {remedy}" * bool(remedy))


def numbers(text: str) -> list[float]:
    """Numbers separated by commas. The type of an argument."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from error


def names(text: str) -> list[str]:
    """Names separated by commas. The type of an argument."""
    return [word.strip() for word in text.split(",")]


def seed(text: str) -> int:
    """A whole number from 0 to 2^32 - 1. The type of an argument."""
    if not (text.isdecimal() and int(text) < 2**32):
        raise argparse.ArgumentTypeError(f"expected a whole number below 2^32, got {text!r}")
    return int(text)


def make_parser() -> _Parser:
    """The parser of the command line, with a parser for each command."""
    parser = _Parser(prog="kme-jax", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    parser.add_argument("--version", action="version", version=f"kme-jax {__version__}", help="Show the version.")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"kme_jax.cli.commands.{name}")
        command_parser = parsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            inherited_absl_flags=None,
        )
        command_parser.set_defaults(run=command.run)
        command_parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)
        command.add_flags(command_parser)
        command_parser.remedies = getattr(command, "REMEDIES", {})
        parser.commands[name] = command_parser
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; ``run`` is the function that does its work.

    Args:
      arguments: the words that follow the program's name.

    Raises:
      InputError: if the arguments are not valid.
    """
    if any("\0" in word for word in arguments):  # no file name can have a null byte
        raise InputError("an argument has a null byte")
    for word in _before_dashes(arguments):
        if word.startswith("--") and word.endswith("=--"):  # argparse would read it as a flag without a value
            raise InputError(f"{word}: -- is not a value")
    parser, words = make_parser(), _with_underscores(arguments)
    try:
        return parser.parse_args(words)
    except InputError:
        # A flag that is misspelt is often one that is required. Its name says more than that a flag is missing.
        before = _before_dashes(words)
        command = next((word for word in before if not word.startswith("-")), None)
        if command in parser.commands:
            parser.commands[command].refuse_unknown_flags(before[before.index(command) + 1 :])
        raise


def wants_trace(arguments: Sequence[str]) -> bool:
    """Whether --debug is among the words. The other words may be invalid."""
    return "--debug" in _before_dashes(arguments)


def _with_underscores(arguments: Sequence[str]) -> list[str]:
    """The words, with _ for - in names of flags: both spellings mean the same."""
    words, before = list(arguments), len(_before_dashes(arguments))
    for i, word in enumerate(words[:before]):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            words[i] = f"--{name[2:].replace('-', '_')}{equals}{value}"
    return words


def _before_dashes(arguments: Sequence[str]) -> list[str]:
    """The words before --, after which no word is a flag."""
    words = list(arguments)
    return words[: words.index("--")] if "--" in words else words
