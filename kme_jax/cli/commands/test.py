"""kme-jax test: hypotheses about releases."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import kme_jax
from kme_jax.cli import parsing, sizes
from kme_jax.cli.artifacts import RELEASES, is_of_points
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_line, report_of, warn_of_simulated_noise

SUMMARY = "Test whether a release and other rows have the same distribution."
DESCRIPTION = """Test a hypothesis about the private rows of a release. Nothing is spent. Quantiles take account of the
noise of privacy and of the sampling of rows. There is nothing to choose.

  kme-jax test published other            # two releases: do their rows have the same distribution?
  kme-jax test published public.csv       # and public rows?
  kme-jax test points --independent=x,y   # are two columns of a release of points independent?

Columns of a table are compared one by one; a change of their dependence alone is not found. For points, the squared
distance of the embeddings (MMD) is printed, too.

Rows in a file must be public: a test of private rows is not private. They must be of other people than the private
rows. Cells are moved into the bounds or the schema, as those of the private rows were."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release of points or of a table.")
    parser.add_argument("other", nargs="?", help="Another release, or a file of public rows.")
    parser.add_argument(
        "--independent", type=parsing.names, metavar="COLUMN,COLUMN", help="Two columns of a release of points."
    )
    sizes.add_file_flags(parser)
    sizes.add_text_flags(parser)
    parser.add_argument("--seed", type=parsing.seed, default=0, help="The seed of simulated quantiles. Default: 0.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument, a folder or the file is not valid.
      OSError: if a file cannot be read.
    """
    from kme_jax.analysis import independence_test, mmd, two_sample_test

    if (args.other is None) == (args.independent is None):
        raise InputError("give another release or a file of public rows, or else --independent")
    release = kme_jax.load(args.folder, RELEASES)
    warn_of_simulated_noise(release)
    if args.independent is not None:
        if len(args.independent) != 2:
            raise InputError("--independent: expected two columns with a comma between them")
        if not is_of_points(release):
            raise InputError("--independent: only columns of a release of points can be tested")
        result = independence_test(release, *args.independent, seed=args.seed)
        print_line(str(result))
        return
    if os.path.isdir(args.other):
        other = kme_jax.load(args.other, RELEASES)
        if is_of_points(release) != is_of_points(other):
            raise InputError("one is a release of points, and the other of a table")
        warn_of_simulated_noise(other)
    else:
        other = _public_rows(args, release)
    result = two_sample_test(release, other, seed=args.seed)
    with report_of("the test"):
        print_line(str(result))
        if is_of_points(release):
            print_line(f"squared distance (MMD²): {mmd(release, other)}")
        for name, p_value in sorted(result.parts.items(), key=lambda part: part[1]):
            print_line(f"  {name}: p = {p_value:.2g}")


def _public_rows(args: argparse.Namespace, release: Any) -> Any:
    """The rows of the file, for points; the open table, for a table. A file with a ledger is private: refused."""
    if "://" not in args.other and not os.path.exists(args.other):
        raise InputError(f"{args.other}: no such file or folder")
    if os.path.exists(f"{args.other}.ledger"):
        raise InputError(f"{args.other} has a ledger, so it is private: a test of private rows is not private")
    print(f"this result is public only if {args.other} is", file=sys.stderr)
    if not is_of_points(release):
        for name, is_set in {"no_header": not args.header, "array": args.array}.items():
            if is_set:
                raise InputError(f"--{name} does not apply to a table")
        from kme_jax.table.readers import open_table

        return open_table(args.other, release.schema, encoding=args.encoding, separator=args.separator)
    from kme_jax.points.files import read_rows

    return read_rows(args.other, **sizes.layout_of(args, args.other, release.columns))
