"""kme-jax sample: synthetic rows in a file."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import kme_jax
from kme_jax.cli import parsing, sizes
from kme_jax.cli.artifacts import GENERATOR, RELEASES, is_of_points
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_line, report_of

SUMMARY = "Write synthetic rows to a file."
DESCRIPTION = """Write synthetic rows to a file. Rows have no weights unless you give --weighted: a point with a larger
weight appears more often. The folder is a release of points, of a table, or of a generator. The last column of a
generator that was trained on labelled rows is the label."""

_SUFFIXES_OF_NUMBERS = (".csv", ".npz")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release.")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="A new file: .csv for any release, .parquet for a table, .npz for columns of numbers and for a generator.",
    )
    parser.add_argument("--num_rows", type=int, default=10_000, metavar="N", help="How many rows. Default: 10000.")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help='For a table: only rows that meet the condition, for example "age>=65", "18<=age<65 and sex=Female", '
        '"job in (nurse, baker)" or "end>begin or (age<18 and paid=no)". Operators: = != < <= > >=, in, not in. If you '
        "give several conditions, rows meet all of them.",
    )
    parser.add_argument("--seed", type=parsing.seed, default=0, help="The seed of the sampling. Default: 0.")
    parser.add_argument(
        "--weighted",
        action="store_true",
        help="Add a last column with the name weight. For columns of numbers, the rows are the points themselves. For "
        "a table, rare rows appear more often, and have smaller weights.",
    )


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or the folder is not valid.
      OSError: if a file cannot be read or written.
    """
    from kme_jax.storage.files import check_new_file

    sizes.check_num_rows(args.num_rows)
    check_new_file(args.output, (pathlib.Path(args.output).suffix,))  # which suffix, the kind of release decides
    release = kme_jax.load(args.folder, (*RELEASES, GENERATOR))
    product = "points" if is_of_points(release) else "generator" if hasattr(release, "generator") else "table"
    output = check_new_file(args.output, _suffixes(product))
    if product != "table" and args.where:
        raise InputError("--where is for releases of tables")
    if product == "generator" and args.weighted:
        raise InputError("--weighted does not apply to a generator: its rows have no weights")
    if not release.statement["private"]:
        print("warning: NOT PRIVATE: the noise of this release was simulated; do not publish its rows", file=sys.stderr)
    write = {"points": _write_points, "table": _write_table, "generator": _write_generated}[product]
    num_rows = write(release, args, output)
    with report_of(f"{output} is complete"):
        print_line(f"wrote {output}: {num_rows} rows")


def _suffixes(product: str) -> tuple[str, ...]:
    """Of the files that synthetic rows of a product are written to."""
    if product != "table":
        return _SUFFIXES_OF_NUMBERS
    from kme_jax.storage.formats import written

    return tuple(written())


def _write_table(release: Any, args: argparse.Namespace, output: pathlib.Path) -> int:
    from kme_jax.table.readers import write_table

    table = release.sample(args.num_rows, seed=args.seed, where=args.where, weighted=args.weighted)
    if args.where:
        support = release.support(args.where)
        print(f"{'warning: ' * support.is_weak}{support.describe()}", file=sys.stderr)
    write_table(output, table)
    return table.num_rows


def _write_points(release: kme_jax.Release, args: argparse.Namespace, output: pathlib.Path) -> int:
    import numpy as np

    from kme_jax.points.files import write_rows

    columns = release.columns
    if args.weighted:
        if "weight" in columns:
            raise InputError("--weighted: a column has the name weight already")
        rows = np.concatenate([release.sample.points, release.sample.weights[:, None]], axis=1)
        columns = (*columns, "weight")
    else:
        rows = release.sample.quantise(args.num_rows, args.seed)
        rows = np.random.default_rng(args.seed).permutation(rows)
    write_rows(output, rows, columns)
    return len(rows)


def _write_generated(release: Any, args: argparse.Namespace, output: pathlib.Path) -> int:
    from kme_jax.points.files import write_rows

    rows = release.sample(args.num_rows, seed=args.seed)
    labels = () if release.generator.shares is None else ("label",)
    numbers = [f"x{i + 1}" for i in range(rows.shape[1] - len(labels))]
    write_rows(output, rows, (*numbers, *labels))
    return len(rows)
