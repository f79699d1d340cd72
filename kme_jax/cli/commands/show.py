"""kme-jax show: what a release is, and how private it is."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import kme_jax
from kme_jax._numerics.text import printable, shown
from kme_jax.cli.artifacts import GENERATOR, RELEASES, is_of_points
from kme_jax.cli.printing import print_json, print_line, print_lines

SUMMARY = "Show what a release is, and how private it is."
DESCRIPTION = """Show what a release is, and how private it is: the privacy statement in words, and the columns.
A warning names files in the folder that are no part of the release."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release.")
    parser.add_argument("--json", action="store_true", help="Print the privacy statement as JSON, and nothing else.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if the folder is not a release.
    """
    from kme_jax.privacy.statement import describe
    from kme_jax.storage.folders import unnamed_files

    release = kme_jax.load(args.folder, (*RELEASES, GENERATOR))
    if others := unnamed_files(args.folder):
        remedy = f"do not publish {'it unless it is' if len(others) == 1 else 'them unless they are'} public"
        print(f"warning: the manifest does not name {shown(others)}: {remedy}", file=sys.stderr)
    if args.json:
        print_json(release.statement)
        return
    print_lines(describe(release.statement))
    if hasattr(release, "generator"):
        _show_generator(release.generator, args.folder)
    elif is_of_points(release):
        _show_points(release)
    else:
        _show_table(release)


def _show_generator(generator: Any, folder: str) -> None:
    shares = ""
    if generator.shares is not None:
        shares = f", shares of the classes {', '.join(f'{share:.3f}' for share in generator.shares)}"
    print_lines(f"\nA generator, {type(generator.network).__name__}{shares}")
    print_line(f"kme-jax sample {folder} --output=rows.csv draws rows from it")
    fit, expected = generator.report.fit, generator.report.expected
    print_line(f"‖μ̃ − μ_G‖² = {fit:.3g}; the noise alone would give {expected:.3g}")
    if generator.report.below_noise:
        classes = ", ".join(map(str, generator.report.below_noise))
        print_line(f"classes below the noise, whose rows mostly show what all classes share: {classes}")


def _show_table(release: Any) -> None:
    from kme_jax.table.written import note_on_persons

    print_lines(f"\n{release.table.num_rows} rows of {len(release.columns)} columns; report.html shows them:")
    for column in release.schema.released:
        if column in release.schema.columns:
            text = f"{column.kind}, {column.num_values} values{', or missing' * column.nullable}"
        else:
            text = f"{column.text}; not measured"
        print_line(f"{printable(column.name):<30.30} {printable(text)}")
    if note := note_on_persons(release.schema.written_columns, release.statement.get("person")):
        print_line(note)
    for constraint in release.schema.constraints:
        print_line(f"every row meets: {printable(constraint.text)}")


def _show_points(release: kme_jax.Release) -> None:
    sample, bounds = release.sample, release.measurement.bounds
    print_lines(f"\n{len(sample.points)} points, whose weights are a probability distribution:")
    print_line(f"{'column':<20} {'lower':>12} {'upper':>12} {'mean':>12}")
    means = sample.expectation(lambda z: z)
    for i, name in enumerate(release.columns):
        lower, upper = (math.nan, math.nan) if bounds is None else (bounds.lower[i], bounds.upper[i])
        print_line(f"{printable(name):<20.20} {lower:12.5g} {upper:12.5g} {means[i]:12.5g}")
