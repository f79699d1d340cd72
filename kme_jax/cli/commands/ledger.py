"""kme-jax ledger: what was spent on private rows, and what is left."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

import kme_jax
from kme_jax._numerics.text import printable
from kme_jax.cli import parsing
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_json, print_line

SUMMARY = "Show what releases have spent, and set a cap."
DESCRIPTION = """Show what the releases of private rows have spent, and how much is left.

kme-jax release writes a ledger beside the private file, for example people.csv.ledger. A cap is the most that all
releases of the same rows may spend together: --cap=3,1e-6 for ε = 3 at δ = 1e-6. A release that would pass the cap is
refused before anything is spent. A later cap replaces an earlier one.

The ledger is for the curator: do not publish it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", help="A ledger.")
    parser.add_argument(
        "--database",
        metavar="NAME",
        help="Only these rows. Default: all that the ledger knows; for --cap, the only one.",
    )
    parser.add_argument("--cap", type=parsing.numbers, metavar="E,D", help="Set a cap: ε and δ.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or the ledger is not valid.
    """
    if args.cap is not None and len(args.cap) != 2:
        raise InputError("--cap needs two numbers, ε and δ: --cap=3,1e-6")
    ledger = kme_jax.Ledger(args.file)
    if not os.path.lexists(args.file) and (args.cap is None or args.database is None):
        more = "" if args.cap is None else "; to begin one, give --database, the name of the rows"
        raise InputError(f"{args.file}: no such ledger{more}")
    names = ledger.databases() if os.path.lexists(args.file) else []
    if args.database is not None and args.database not in names and args.cap is None:
        raise InputError(f"{args.file}: there are no releases of {args.database!r}, only of {_listed(names)}")
    if args.cap is not None:
        name = names[0] if args.database is None and len(names) == 1 else args.database
        if name is None:
            raise InputError(f"--cap: give the --database, one of {_listed(names)}")
        ledger.set_cap(name, *args.cap)
        names = ledger.databases()
    shown = [_of_database(ledger, name) for name in names if args.database in (None, name)]
    if args.json:
        print_json(shown)
        return
    for one in shown:
        _show(one)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) if names else "none"


def _of_database(ledger: kme_jax.Ledger, name: str) -> dict[str, Any]:
    """What the ledger knows of a database, as plain values."""
    from kme_jax.privacy.totals import total, units_in_words

    entries, cap = ledger.spent(name), ledger.cap(name)
    spent = None if cap is None else cap.spent(entries)
    fields = ("time", "epsilon", "delta", "relation", "person")
    return {
        "database": name,
        "releases": [{field: getattr(entry, field) for field in fields} for entry in entries],
        "total": total(entries) if entries else None,
        "unit": units_in_words(entries),
        "cap": None
        if cap is None
        else {
            "epsilon": cap.epsilon,
            "delta": cap.delta,
            "spent": spent if spent is not None and math.isfinite(spent) else None,
            "left": cap.left(entries),
        },
    }


def _show(one: dict[str, Any]) -> None:
    from kme_jax.privacy.statement import describe_total, rounded_up

    number, cap = len(one["releases"]), one["cap"]
    print_line(f"{printable(one['database'])}: {number} release{'s' * (number != 1)}")
    for entry in one["releases"]:
        of_whom = "" if entry["person"] is None else f" ({printable(entry['person'])})"
        print_line(f"  {entry['time']}  ε = {entry['epsilon']:g}, δ = {entry['delta']:g}, {entry['relation']}{of_whom}")
    if one["total"]:
        print_line(f"  in all {describe_total(one['total'])}")
    if cap:
        print_line(f"  the cap is ε = {cap['epsilon']:g} at δ = {cap['delta']:g}")
        spent = "no finite ε is spent" if cap["spent"] is None else f"ε = {rounded_up(cap['spent'])} is spent"
        spent = spent if one["releases"] else "nothing is spent"
        left = None if cap["left"] is None else _rounded_down(cap["left"])
        more = "nothing is left" if left is None else f"one more release may have ε = {left} at this δ"
        print_line(f"  for {printable(one['unit'])}: {spent}, and {more}")


def _rounded_down(value: float) -> str:
    """A positive number with three digits, rounded down."""
    text = f"{value:.3g}"
    return text if float(text) <= value else f"{value * (1 - 5e-3):.3g}"
