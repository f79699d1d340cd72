"""kme-jax schema: a draft of the description of a table."""

from __future__ import annotations

import argparse
import json

from kme_jax.cli import sizes
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_line, report_of

SUMMARY = "Write a draft of a table's schema, for you to fill in."
DESCRIPTION = """Write a draft of the schema of a .csv or .parquet file: the columns' names, and their types if the file
has types.

Fill in bounds and categories from public knowledge. The kinds of columns are
  numeric      lower, upper, and integer or a step; "scale": "log" for skewed numbers
  categorical  categories
  ordinal      categories, in their order
  datetime     lower, upper, resolution; "parts": true if weekdays and times of day matter
  drop         for free text and the like: the file has the column, and it is neither looked at nor released
  id           for identifiers: released rows have new ids from 1 on, and not those of the file; optionally a prefix
  constant     value: all released rows have this public value, whatever the file has
  weight       upper: how many people or homes a row stands for, as in surveys; rows are counted by it
A column of the first four kinds may be nullable: cells may be missing. Columns that are filled in look like this:
  {"name": "age", "kind": "numeric", "lower": 0, "upper": 110, "integer": true, "unit": "years"}
  {"name": "wage", "kind": "numeric", "lower": 0, "upper": 100, "step": 0.01, "decimal": ",", "nullable": true}
  {"name": "income", "kind": "numeric", "lower": 0, "upper": 1e6, "nullable": true, "missing": [-999, "refused"]}
  {"name": "fortune", "kind": "numeric", "lower": 0, "upper": 1000000000, "scale": "log"}
  {"name": "insured", "kind": "categorical", "categories": [false, true]}
  {"name": "postcode", "kind": "categorical", "categories": ["01067", "04103", "10115"], "nullable": true}
  {"name": "school", "kind": "ordinal", "categories": ["primary", "secondary", "university"]}
  {"name": "since", "kind": "datetime", "lower": "2000-01-01", "upper": "2025-12-31", "format": "%d.%m.%Y"}
  {"name": "patient", "kind": "id", "prefix": "P"}
  {"name": "country", "kind": "constant", "value": "NL"}
  {"name": "homes", "kind": "weight", "upper": 2500}
A schema with the kind id, constant or weight has "schema_version": 3.
What every row meets can be added, with "schema_version": 2 or 3 (the guide to tables has all kinds of constraints):
  "constraints": [{"kind": "order", "smaller": "begin", "larger": "end"}]
Cells such as -999 or "refused" that stand for missing ones are listed as "missing", in a column of any kind. With
"decimal": ",", text such as 1.234,5 is a number. A number has no unit beside it: 68,9 % cannot be read.
A time that names a time zone is read and released in UTC. A bound without a time of day is midnight: for minutes, write
"upper": "2025-12-31T23:59".
Categories are text in quotes, also where they are made of digits: a postal code keeps its leading zeros. Only false and
true may stand without quotes.

--public fills the schema in from the rows. It is only for a file that is not private."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", nargs="?", help="A file of a table, or a folder of files: see kme-jax release --help.")
    parser.add_argument("--output", required=True, metavar="FILE", help="A new .json file.")
    parser.add_argument(
        "--public", action="store_true", help="Fill the schema in from the rows. The file must NOT be private."
    )
    parser.add_argument(
        "--decimal",
        choices=(".", ","),
        help="The decimal sign of numbers that are text. With a comma, numeric columns of the draft say so.",
    )
    sizes.add_text_flags(parser)
    parser.add_argument(
        "--json_schema",
        action="store_true",
        help="Write the JSON Schema of all schemas instead, without a file. Editors complete and check a schema whose "
        'first line is "$schema": "FILE".',
    )


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or a file is not valid.
      OSError: if a file cannot be read or written.
    """
    from kme_jax.storage.files import check_new_file, new_file

    output = check_new_file(args.output, (".json",))
    of_file = [args.public, *(value is not None for value in (args.decimal, args.encoding, args.separator))]
    if args.json_schema == (args.file is not None) or (args.json_schema and any(of_file)):
        raise InputError("give either a file, for a draft of its schema, or --json_schema alone")
    if args.json_schema:
        from kme_jax.table.json_schema import json_schema

        with new_file(output, (".json",)) as file:
            file.write((json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n").encode())
        print_line(f'wrote {output}: let "$schema" of a schema be the path of this file')
        return
    from kme_jax.table.draft import draft_schema
    from kme_jax.table.schema import write_json

    draft, left_out = draft_schema(
        args.file, public=args.public, decimal=args.decimal, encoding=args.encoding, separator=args.separator
    )
    write_json(output, draft)
    remark = "filled in from the rows, which is for public files only" if args.public else "fill in what is null"
    with report_of(f"{output} is complete"):
        for name, reason in left_out.items():
            print_line(f"dropped: {name}: {reason}")
        if args.decimal == "," and any(column["kind"] is None for column in draft["columns"]):
            print_line('columns whose kind is null do not say "decimal": ",": add it to those that you make numeric')
        print_line(f"wrote {output}: {len(draft['columns'])} columns, with the names in the file's header; {remark}")
