"""Budgets and sizes that several commands ask for, and the flags that say how a file of numbers is organised."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any, cast

import kme_jax
from kme_jax.cli.errors import InputError

DEFAULT_NUM_POINTS = 1000
RELATIONS = ("replace_one", "add_remove")  # of ``kme_jax.privacy.budget``, whose import would make --help slow


def add_file_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --no_header and --array."""
    parser.add_argument(
        "--no_header",
        dest="header",
        action="store_false",
        help="For a .csv file without a header line: its first line is a row.",
    )
    parser.add_argument("--array", metavar="NAME", help="The array to read from a .npz file with more than one.")


def layout(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say of a file of numbers: arguments of ``open_rows`` and ``read_rows``."""
    return {name: getattr(args, name) for name in ("header", "array", "encoding", "separator")}


def layout_of(args: argparse.Namespace, path: str, columns: tuple[str, ...]) -> dict[str, Any]:
    """The same for a file with the columns of a release, which are read by their names if the file has names."""
    has_names = args.header and pathlib.Path(path).suffix not in (".npy", ".npz")
    return layout(args) | {"columns": columns if has_names else None, "num_columns": len(columns)}


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --encoding and --separator."""
    of = "Of a .csv file:"
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help=f"{of} one of Python's text encodings, such as latin-1, cp1252 or utf-16. Default: UTF-8. Bytes that "
        "cannot be decoded make their cell unreadable.",
    )
    parser.add_argument(
        "--separator",
        type=_separator,
        metavar="SIGN",
        help=f"{of} the character between cells, such as ';' or '\\t' for tabs. Default: a comma, a semicolon, a tab "
        "or a bar, whichever is most frequent in the header line; a comma if there is no header line.",
    )


def _separator(text: str) -> str:
    """The character that a flag names. A tab may be written as a backslash and t."""
    return "\t" if text == "\\t" else text


def add_person_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --person and --max_rows."""
    parser.add_argument(
        "--person",
        metavar="COLUMN",
        help="With --schema: the column with the ids of persons, for a guarantee that protects all rows of a person "
        "together. The schema gives it the kind drop, or the kind id: every released row then has a new id. Rows "
        "without an id are not used. Needs --max_rows.",
    )
    add_max_rows(parser, "With --person:")


def check_persons(args: argparse.Namespace) -> None:
    """Checks --person and --max_rows.

    Raises:
      InputError: one is given without the other, or the number is not positive.
    """
    if (args.person is None) != (args.max_rows is None):
        raise InputError("--person and --max_rows go together: whose rows are cut, and to how many")
    if args.max_rows is not None and args.max_rows < 1:
        raise InputError(f"--max_rows must be at least 1, got {args.max_rows}")


def add_max_rows(parser: argparse.ArgumentParser, condition: str) -> None:
    """Adds --max_rows."""
    parser.add_argument(
        "--max_rows",
        type=int,
        metavar="K",
        help=f"{condition} at most so many rows of each person are used, chosen by a rule that does not look at "
        "values. Choose it from public knowledge. Noise is K times as large as for one row. The number of rows is then "
        "private, and a noisy count replaces it.",
    )


def budget(
    epsilon: float,
    delta: float,
    relation: str | None = None,
    max_rows: int | None = None,
    person: str | None = None,
) -> kme_jax.PrivacyBudget:
    """(ε, δ) for Gaussian noise.

    Args:
      epsilon: ε.
      delta: δ.
      relation: one of ``RELATIONS``; None for the first.
      max_rows: the largest number of rows of one person, for a guarantee for persons; None for one for rows.
      person: the column with the ids of persons; None if it is not known.

    Raises:
      ValueError: if a number is out of range.
      InputError: if δ is 0, or there is a relation for rows and a guarantee for persons.
    """
    if max_rows is not None and relation is not None:
        raise InputError(f"--relation={relation} is about rows: leave it out, as --max_rows protects persons")
    of_persons = None if max_rows is None else "add_remove_person"
    most = 1 if max_rows is None else max_rows
    checked = kme_jax.PrivacyBudget(epsilon, delta, cast(Any, of_persons or relation or RELATIONS[0]), most, person)
    if delta == 0:
        raise InputError("--delta must be above 0, because the noise is Gaussian. For example: 1e-9")
    return checked


def num_points(args: argparse.Namespace, points_are_public: bool) -> int:
    """The number of synthetic points.

    Args:
      args: --num_points, if it was given.
      points_are_public: whether public points were given, which are all used.

    Raises:
      InputError: if the number is out of range, or does not apply.
    """
    if args.num_points is None:
        return DEFAULT_NUM_POINTS
    if points_are_public:
        raise InputError("--num_points does not apply with public points: all of them are used")
    if not 1 <= args.num_points <= 10**6:
        raise InputError(f"--num_points must be from 1 to a million, got {args.num_points}")
    return args.num_points


def check_num_rows(num_rows: int | None) -> None:
    """Checks a number of synthetic rows. None is the default, and valid.

    Raises:
      InputError: if the number is out of range.
    """
    if num_rows is not None and not 1 <= num_rows <= 10**9:
        raise InputError(f"--num_rows must be from 1 to a billion, got {num_rows}")
