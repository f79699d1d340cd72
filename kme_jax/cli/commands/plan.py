"""kme-jax plan: the accuracy to expect of a release, from public quantities alone."""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING

import kme_jax
from kme_jax._numerics.text import printable
from kme_jax.cli import model, parsing, sizes
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_json, print_line, progress_bar

if TYPE_CHECKING:
    from kme_jax.table.expected import ExpectedTable
    from kme_jax.table.rehearsal import Rehearsal

SUMMARY = "Show the accuracy to expect. It reads no rows."
DESCRIPTION = """Show how large the noise will be, for one ε or several, and how large the errors will be.

The command reads no rows.

A table with --schema: for each column, the noise of a count, the smallest share of the rows that stands out, and the
error of a mean; and the noise and the distance of pairs of columns. At once.

With --rehearse, the command also releases N made-up rows, drawn from the schema alone, and saves nothing. It shows how
long that takes, how much memory it takes, and how large the errors are. It takes as long as a release for each ε.

A few columns of numbers with --dim: the errors of a mean and of a probability. They are computed on invented tables,
which takes as long as a few releases. With --no_errors it shows the noise alone, at once."""

REMEDIES = {"--person": "a plan reads no rows, and needs --max_rows alone"}
"""For flags of other commands that a plan does not have."""
_MAX_COLUMNS = 10_000
_MAX_PUBLIC_POINTS = 20_000
_NUM_PAIRS = 5  # of the worst pairs, which are shown
_FLAGS_OF_TABLES, _FLAGS_OF_POINTS = (
    ("target", "relation", "max_rows", "pairs", "rehearse"),
    ("public_points", "kernel", "length", "num_features"),
)
_JSON_FIELDS = ("num_features", "noise_norm", "mean_error", "probability_error")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--num_rows",
        type=int,
        required=True,
        metavar="N",
        help="N, the number of private rows, or about that. With weights: their sum, divided by the largest one.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--schema", metavar="FILE", help="The schema of a table, a .json file.")
    which.add_argument("--dim", type=int, metavar="D", help="D, the number of columns of points.")
    parser.add_argument("--epsilon", type=parsing.numbers, required=True, metavar="E,...", help="One ε or several.")
    parser.add_argument("--delta", type=float, required=True, help="δ, above 0 and below 1/N.")
    parser.add_argument(
        "--public_points",
        type=int,
        metavar="M",
        help="Plan for M public points instead of bounds alone. The plan uses uniform points in their place, also for "
        "the default of --length. For points in clusters, the default of kme-jax release is shorter.",
    )
    parser.add_argument("--target", metavar="COLUMN", help="For a table: the column that others are meant to predict.")
    parser.add_argument(
        "--relation", choices=sizes.RELATIONS, help="For a table: which databases the guarantee compares."
    )
    sizes.add_max_rows(parser, "For a table of persons with several rows:")
    parser.add_argument(
        "--pairs",
        action="store_const",
        const=True,
        help=f"For a table: show all pairs of columns, not only the worst {_NUM_PAIRS}.",
    )
    parser.add_argument(
        "--rehearse",
        action="store_const",
        const=True,
        help="For a table: release made-up rows with simulated noise, save nothing, and show the "
        "seconds, the memory and the errors.",
    )
    model.add_flags(parser)
    parser.add_argument("--no_errors", dest="errors", action="store_false", help="Compute the noise alone, at once.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument is not valid.
    """
    if args.schema is not None:
        _plan_table(args)
        return
    for name in _FLAGS_OF_TABLES:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is for tables: give it with --schema")
    import numpy as np

    from kme_jax.feature_maps.lattice import LatticeMap
    from kme_jax.points.measure import plan_map, plan_mechanism
    from kme_jax.points.plan import plan
    from kme_jax.privacy.budget import check_num_rows

    if not 1 <= args.dim <= _MAX_COLUMNS:
        raise InputError(f"--dim must be from 1 to {_MAX_COLUMNS}, got {args.dim}")
    if args.public_points is not None and not 1 <= args.public_points <= _MAX_PUBLIC_POINTS:
        raise InputError(f"--public_points must be from 1 to {_MAX_PUBLIC_POINTS}, got {args.public_points}")
    num_features = model.num_features(args)
    budgets = [sizes.budget(epsilon, args.delta) for epsilon in args.epsilon]
    for budget in budgets:
        check_num_rows(args.num_rows, budget)
    if args.public_points is None:
        points = None
        public = proposal = kme_jax.Bounds.create(np.zeros(args.dim), np.ones(args.dim)).proposal
    else:
        proposal = None
        public = points = np.random.default_rng(args.seed).uniform(size=(args.public_points, args.dim))
    length = model.length(args, args.dim, points)
    kernel = model.kernel(args, length)
    feature_map = plan_map(kernel, public, num_features=num_features, bounded=True, seed=args.seed)
    plans = []
    for budget in budgets:
        mechanism = plan_mechanism(args.num_rows, feature_map, budget)
        with progress_bar(f"ε = {budget.epsilon:g}") as progress:
            plans.append(plan(feature_map, mechanism, proposal, errors=args.errors, progress=progress))
    if args.json:
        print_json(
            [
                {"epsilon": p.mechanism.epsilon, "delta": p.mechanism.delta, "sigma": p.mechanism.scale}
                | {name: getattr(p, name) for name in _JSON_FIELDS}
                for p in plans
            ]
        )
        return
    print_line(
        f"{args.num_rows} rows of {args.dim} columns, δ = {args.delta:g}: {plans[0].num_features} features, "
        f"length {length:.3g}"
    )
    print_line(f"{'ε':>8} {'σ':>10} {'noise norm':>12}" + f" {'mean ±':>10} {'probability ±':>14}" * args.errors)
    for p in plans:
        line = f"{p.mechanism.epsilon:8g} {p.mechanism.scale:10.3g} {p.noise_norm:12.3g}"
        print_line(line + (f" {p.mean_error:10.2g} {p.probability_error:14.2g}" if args.errors else ""))
    if args.errors:
        print_line("mean ±: the error of a column's mean, as a share of the column's range")
        print_line("probability ±: the error of the probability that a column is below a level")
    if proposal is not None and not isinstance(feature_map, LatticeMap):
        print_line(
            "random features: there is no test of independence, and if many rows are near a bound, there may be no "
            "intervals; a Gaussian kernel with more --num_features or a longer --length may have both"
        )


def _plan_table(args: argparse.Namespace) -> None:
    """What to expect of a release of a table."""
    import dataclasses

    from kme_jax.table.expected import expected_errors
    from kme_jax.table.schema import Schema

    for name in _FLAGS_OF_POINTS:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is for points: give it with --dim")
    budgets = [sizes.budget(epsilon, args.delta, args.relation, args.max_rows) for epsilon in args.epsilon]
    schema = Schema.read(args.schema)
    tables = [expected_errors(schema, args.num_rows, budget, target=args.target) for budget in budgets]
    rehearsals = []
    for budget in budgets if args.rehearse else ():
        from kme_jax.table.rehearsal import rehearse

        with progress_bar(f"rehearsal, ε = {budget.epsilon:g}") as progress:
            rehearsals.append(
                rehearse(schema, args.num_rows, budget, target=args.target, seed=args.seed, progress=progress)
            )
    if args.json:
        documents = [dataclasses.asdict(expected) for expected in tables]
        for document, rehearsal in zip(documents, rehearsals, strict=False):
            document["rehearsal"] = dataclasses.asdict(rehearsal)
            del document["rehearsal"]["expected"]
        print_json(documents)
        return
    for expected in tables:
        print_line(f"{args.num_rows} rows, ε = {expected.budget.epsilon:g}, δ = {args.delta:g}")
        print_line(f"{'column':<30} {'cells':>6} {'noise':>8} {'stands out':>11} {'distance ≤':>11} {'mean ≤':>10}")
        for column in expected.columns:
            line = f"{printable(column.name):<30.30} {column.num_cells:6} {column.noise:8.3g}"
            mean = "" if column.mean_bound is None else f"{column.mean_bound:.2g}"
            print_line(f"{line} {column.smallest_share:11.2%} {column.total_variation_bound:11.2g} {mean:>10}")
        if expected.pairs:
            _print_pairs(expected, len(expected.pairs) if args.pairs else _NUM_PAIRS)
    print_line("noise: of the count of a cell, in rows")
    print_line("stands out: the share of the rows that a cell needs to be clearly more than noise")
    print_line("distance ≤: the total variation, which noisy counts rarely exceed; smooth columns come much closer")
    print_line("mean ≤: the error of the mean, rarely exceeded if rows fill the bounds; a long, thin tail adds to it")
    if any(expected.pairs for expected in tables):
        print_line(
            "a pair: the noise of its own counts alone; what bins hide and the noise of single columns add to it"
        )
    for rehearsal in rehearsals:
        _print_rehearsal(rehearsal)
    if rehearsals:
        from kme_jax.table.rehearsal import CANNOT_KNOW

        print_line(CANNOT_KNOW)


def _print_rehearsal(rehearsal: Rehearsal) -> None:
    """What a release of made-up rows took, and its errors beside what the plan says."""
    print_line(
        f"rehearsal, {rehearsal.expected.num_rows} made-up rows, ε = {rehearsal.expected.budget.epsilon:g}: "
        f"{rehearsal.seconds_to_measure:.3g} s to measure, {rehearsal.seconds_to_synthesise:.3g} s to synthesise, "
        f"{rehearsal.peak_memory:.2g} GiB of memory at most, {rehearsal.rows_memory:.2g} of them for the rows"
    )
    print_line(f"{'mean distance of':<30} {'error':>8} {'plan ≤':>8} {'yardstick':>10} {'above the plan':>15}")
    for word, size in (("columns", 1), ("pairs", 2)):
        errors = [one for one in rehearsal.errors if len(one.names) == size]
        if errors:
            means = [
                statistics.fmean(numbers)
                for numbers in zip(*((e.total_variation, e.bound, e.yardstick) for e in errors), strict=True)
            ]
            beyond = f"{sum(one.total_variation > one.bound for one in errors)} of {len(errors)}"
            label = f"{len(errors)} {word}"
            print_line(f"{label:<30} {means[0]:8.2g} {means[1]:8.2g} {means[2]:10.2g} {beyond:>15}")
    print_line("yardstick: of as many rows, drawn from the made-up ones with replacement: this much is not noise")


def _print_pairs(expected: ExpectedTable, number: int) -> None:
    """The worst pairs of columns, so many of them, and the median of all."""
    if expected.coarse_noise is not None:
        noise = f"about {expected.coarse_noise:.3g} rows, then about {expected.fine_noise:.3g} for half of them"
        print_line(f"counts of {expected.num_pairs} pairs of columns: noise of {noise}")
    worst = sorted(expected.pairs, key=lambda pair: -pair.total_variation_bound)
    median = statistics.median(pair.total_variation_bound for pair in worst)
    shown = "all" if number >= len(worst) else f"the worst {number} of {len(worst)}"
    title = f"pair ({shown})"
    print_line(f"{title:<48} {'cells':>6} {'noise':>8} {'then':>8} {'distance ≤':>11}")
    for pair in worst[:number]:
        first = pair.coarse_noise if pair.first_noise is None else pair.first_noise
        then = "" if pair.fine_noise is None else f"{pair.fine_noise:.3g}"
        names = printable(" and ".join(pair.names))
        line = f"{names:<48.48} {pair.num_cells:6} {first:8.3g} {then:>8}"
        print_line(f"{line} {pair.total_variation_bound:11.2g}")
    print_line(f"{'median of all pairs':<48} {median:35.2g}")
