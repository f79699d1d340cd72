"""Budgets and sizes that several commands ask for, and the flags that say how a file of numbers is organised."""

from __future__ import annotations

import argparse
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


def budget(epsilon: float, delta: float, relation: str | None = None) -> kme_jax.PrivacyBudget:
    """(ε, δ) for Gaussian noise.

    Args:
      epsilon: ε.
      delta: δ.
      relation: one of ``RELATIONS``; None for the first.

    Raises:
      ValueError: if ε or δ is out of range.
      InputError: if δ is 0.
    """
    checked = kme_jax.PrivacyBudget(epsilon, delta, cast(Any, relation or RELATIONS[0]))
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
