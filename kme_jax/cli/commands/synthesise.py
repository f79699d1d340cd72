"""kme-jax synthesise: other synthetic data from the measurement of a release."""

from __future__ import annotations

import argparse

import kme_jax
from kme_jax.cli import parsing, sizes
from kme_jax.cli.artifacts import RELEASES, is_of_points, synthesise_and_save
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_line, report_of

SUMMARY = "Make other synthetic data from a release. It spends nothing."
DESCRIPTION = """Make other synthetic points or rows from the noisy measurement of a release.

This spends nothing: do it as often as you like. It also finishes a release that was interrupted. Give the folder
FOLDER.measured then."""

_MEASUREMENTS = ("measurement", "table measurement")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release, or the measurement of a release that was interrupted.")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="A new folder.")
    parser.add_argument(
        "--num_points",
        type=int,
        metavar="M",
        help="For columns of numbers: the number of synthetic points, unless the release has public points. Default: "
        f"{sizes.DEFAULT_NUM_POINTS}.",
    )
    parser.add_argument(
        "--num_rows",
        type=int,
        metavar="N",
        help="For a table: the number of synthetic rows. Default: the number of private rows.",
    )
    parser.add_argument("--seed", type=parsing.seed, default=0, help="The seed of the synthesis. Default: 0.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or the folder is not valid.
      OSError: if a file cannot be read or written.
    """
    from kme_jax.storage.folders import check_folder

    loaded = kme_jax.load(args.folder, (*RELEASES, *_MEASUREMENTS))
    measurement = getattr(loaded, "measurement", loaded)
    if is_of_points(measurement):
        if args.num_rows is not None:
            raise InputError("--num_rows is for tables: give --num_points")
        size = {"num_points": sizes.num_points(args, measurement.proposal is None)}
    else:
        if args.num_points is not None:
            raise InputError("--num_points does not apply to a table: give --num_rows")
        sizes.check_num_rows(args.num_rows)
        size = {"num_rows": args.num_rows}
    output = check_folder(args.output)
    release = synthesise_and_save(measurement, size, args.seed, output)
    count = f"{len(release.sample.points)} points" if is_of_points(release) else f"{release.table.num_rows} rows"
    with report_of(f"the release is complete: {output}"):
        print_line(f"wrote {output}: {count}; nothing was spent")
        if measurement is loaded:
            print_line(f"{args.folder} is not needed any more")
