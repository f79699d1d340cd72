"""kme-jax plan: the accuracy to expect of a release, from public quantities alone."""

from __future__ import annotations

import argparse

import kme_jax
from kme_jax.cli import model, parsing, sizes
from kme_jax.cli.errors import InputError
from kme_jax.cli.printing import print_json, print_line, progress_bar

SUMMARY = "Show the accuracy to expect. It reads no file."
DESCRIPTION = """Show how large the noise will be, for one ε or several, and how large the errors of a mean and of a
probability will be.

The command reads no file. It computes the errors on invented tables, which takes as long as a few releases. With
--no_errors it shows the noise alone, at once."""

_MAX_COLUMNS = 10_000
_MAX_PUBLIC_POINTS = 20_000
_JSON_FIELDS = ("num_features", "noise_norm", "mean_error", "probability_error")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--num_rows", type=int, required=True, metavar="N", help="N, the number of private rows.")
    parser.add_argument("--dim", type=int, required=True, metavar="D", help="D, the number of columns.")
    parser.add_argument("--epsilon", type=parsing.numbers, required=True, metavar="E,...", help="One ε or several.")
    parser.add_argument("--delta", type=float, required=True, help="δ, above 0 and below 1/N.")
    parser.add_argument(
        "--public_points",
        type=int,
        metavar="M",
        help="Plan for M public points instead of bounds alone. The plan uses uniform points in their place, also for "
        "the default of --length. For points in clusters, the default of kme-jax release is shorter.",
    )
    model.add_flags(parser)
    parser.add_argument("--no_errors", dest="errors", action="store_false", help="Compute the noise alone, at once.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument is not valid.
    """
    import numpy as np

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
