"""kme-jax check: how the cells of a private table are read by its schema."""

from __future__ import annotations

import argparse

from kme_jax.cli import sizes
from kme_jax.cli.printing import print_lines

SUMMARY = "Check a schema against a private table. NOT PRIVATE."
DESCRIPTION = """Count three kinds of cells in each column: missing cells, cells that are no value of the column, and
cells beyond a bound. If the schema has constraints, count the rows that break each of them. With --person, count the
rows that are used, and look at these alone. Columns of kind id or constant are not checked, because they are not
measured.

NOT PRIVATE: the counts are exact, and for the curator alone. The command writes nothing and spends nothing. Only this
command shows that a column has the wrong kind or unit: a release accepts cells of every type."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", help="The private table: a file, or a folder of files.")
    parser.add_argument("--schema", required=True, metavar="FILE", help="The schema. See kme-jax schema --help.")
    sizes.add_text_flags(parser)
    sizes.add_person_flags(parser)


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or a file is not valid.
      OSError: if a file cannot be read.
    """
    from kme_jax.table.check import check_constraints, check_table, describe, describe_persons, describe_weights
    from kme_jax.table.readers import open_table
    from kme_jax.table.schema import Schema

    sizes.check_persons(args)
    schema = Schema.read(args.schema)
    source = open_table(
        args.file,
        schema,
        person=args.person,
        max_rows=args.max_rows or 1,
        encoding=args.encoding,
        separator=args.separator,
    )
    checks, broken = check_table(source), check_constraints(source)
    print_lines(describe(checks, source.num_rows, broken, schema.unread_columns))
    if args.person is not None:
        print_lines(describe_persons(source))
    if source.schema.weight is not None:
        print_lines(describe_weights(source))
