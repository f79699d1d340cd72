"""kme-jax evaluate: the errors of a release against the private rows. NOT PRIVATE."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import kme_jax
from kme_jax.cli import sizes
from kme_jax.cli.artifacts import RELEASES, is_of_points, real_path
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_lines, progress_bar, report_of

SUMMARY = "Compute the errors of a release against the private rows. NOT PRIVATE."
DESCRIPTION = """Compute the errors of a release against the private rows.

NOT PRIVATE: the errors are exact, and for the curator alone."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release.")
    parser.add_argument("--against", required=True, metavar="FILE", help="The private file.")
    sizes.add_file_flags(parser)
    sizes.add_text_flags(parser)
    parser.add_argument("--output", metavar="FILE", help="Also write the errors to a new .json file. NOT PRIVATE.")
    parser.add_argument(
        "--no_distance",
        dest="distance",
        action="store_false",
        help="For points alone, not for tables: leave out the distance Δ, which takes N² evaluations of the kernel.",
    )


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument, the folder or the file is not valid.
      OSError: if a file cannot be read or written.
    """
    from kme_jax.storage.files import check_new_file

    if args.output is not None and real_path(args.folder) in real_path(args.output).parents:
        raise InputError(f"{args.output}: the errors are NOT PRIVATE: do not write them into the published folder")
    output = None if args.output is None else check_new_file(args.output, (".json",))
    release = kme_jax.load(args.folder, RELEASES)
    errors, text = (_evaluate_points if is_of_points(release) else _evaluate_table)(args, release)
    if output is None:
        print_lines(text)
        return
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(errors, indent=2, allow_nan=False) + "\n")
    with report_of(f"{output} is complete"):
        print_lines(text)


def _evaluate_table(args: argparse.Namespace, release: Any) -> tuple[dict[str, Any], str]:
    """The errors, and the same as text."""
    for name, is_set in {"no_header": not args.header, "array": args.array, "no_distance": not args.distance}.items():
        if is_set:
            raise InputError(f"--{name} does not apply to a table")
    from kme_jax.privacy.statement import rows_used
    from kme_jax.table.evaluate import describe_table, evaluate_table

    errors = evaluate_table(release, args.against, encoding=args.encoding, separator=args.separator)
    used = rows_used(release.statement)
    note = f"against the private rows that were used: {used}\n" if used else ""
    return errors, note + describe_table(errors)


def _evaluate_points(args: argparse.Namespace, release: kme_jax.Release) -> tuple[dict[str, Any], str]:
    """The errors, and the same as text."""
    from kme_jax.points.evaluate import describe, evaluate
    from kme_jax.points.files import read_rows

    if release.measurement.bounds is None:
        raise InputError(f"{args.folder}: the release has no bounds, and errors are computed for columns with bounds")
    rows = read_rows(args.against, **sizes.layout_of(args, args.against, release.columns))
    with progress_bar("distance") as progress:
        errors = evaluate(release, rows, distance=args.distance, progress=progress)
    return errors, describe(errors)
