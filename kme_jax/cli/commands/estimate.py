"""kme-jax estimate: answers with intervals."""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
from typing import Any

import kme_jax
from kme_jax.cli import parsing
from kme_jax.cli.artifacts import RELEASES, is_of_points
from kme_jax.cli.errors import InputError, ToldError, tell_error
from kme_jax.cli.printing import print_line, progress_bar, report_of, warn_of_simulated_noise

SUMMARY = "Answer questions about the private rows of a release, with intervals."
DESCRIPTION = """Answer questions about the private rows of a release, with intervals for the noise of privacy. Nothing
is spent, and only the release is read. Questions are

  mean(income)   sum(income)   sd(income)   median(income)   quantile(income, 0.9)
  share(age>=65)   count(age>=65)   correlation(age, income)   slope(income, age)

and they may be followed by conditions: mean(income) where age>=18 and age<65

A share and a count are of all rows, those with a missing cell included. A mean leaves them out, and so does
share(bmi>=30) where bmi!=missing

Points: all answers come from draws of the posterior, which take as long as a synthesis. Limits must lie between the
values of a discrete column: share(age>=64.5). Points do not show values that many rows share (prices of 9.99, ages that
end in 0 or 5), and intervals of shares and quantiles allow for them. If there are none, --smooth makes these shorter.

Tables: a column of groups may follow: mean(income) by member. The hours of a column of times that is measured in parts
are groups, too, and the months, quarters and years of one that is not: mean(fare) by begin hour. There are linear
regressions: regression(income ~ age + sex), regression(member=yes ~ age + town). The method "direct" answers all of
these from noisy sums. It takes no time, and its intervals are those of the known noise. A question can be about two
columns and the target. The method "bootstrap" answers nearly all questions. It repeats the release on its own rows, so
it takes a while. Its intervals are often shorter, and may be too short, above all about tails and rare groups.

A question that cannot be read is an error, and the others are answered. The exit status is then 2."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", help="A release of points or of a table.")
    parser.add_argument("queries", nargs="+", metavar="QUESTION", help='Such as "mean(income)".')
    parser.add_argument("--level", type=float, default=0.95, help="The level of the intervals. Default: 0.95.")
    parser.add_argument(
        "--method",
        choices=("posterior", "direct", "bootstrap"),
        help="See above. Default: posterior for points, direct for a table.",
    )
    parser.add_argument(
        "--population",
        action="store_true",
        help="Answer for the population from which the private rows were drawn at random, not for these rows alone.",
    )
    parser.add_argument(
        "--smooth",
        action="store_true",
        help="Points: no value is shared by many rows. Intervals of shares and quantiles are several times shorter.",
    )
    parser.add_argument("--num_replicates", type=int, metavar="B", help="Repetitions for bootstrap. Default: 12.")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="The seed of repetitions and draws. Default: 0.")
    parser.add_argument("--output", metavar="FILE", help="A new JSON file for the answers.")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or the folder is not valid, or no question can be read.
      ToldError: if some of the questions cannot be read. The others are answered.
      OSError: if a file cannot be read or written.
    """
    from kme_jax.analysis import Estimate, estimate
    from kme_jax.analysis.answers import check_method
    from kme_jax.analysis.estimates import Estimates, NoAnswerError, check_level
    from kme_jax.privacy.statement import rows_used
    from kme_jax.storage.files import check_new_file

    check_level(args.level)
    output = None if args.output is None else check_new_file(args.output, (".json",))
    release = kme_jax.load(args.folder, RELEASES)
    method = check_method(release, args.method)
    errors = _errors(args, release, method)
    for error in errors.values():
        if len(args.queries) == 1:
            raise error
        tell_error(error)
    queries = [text for text in args.queries if text not in errors]
    if not queries:
        raise ToldError
    replicates = _replicates(args, release, method)
    answers: dict[str, Estimates | str] = {}
    for text in queries:
        try:
            answer = estimate(
                release,
                text,
                level=args.level,
                method=method,
                population=args.population,
                replicates=replicates,
            )
        except NoAnswerError as error:
            if len(args.queries) == 1:
                raise
            answers[text] = str(error)
        else:
            answers[text] = Estimates({"": answer}) if isinstance(answer, Estimate) else answer
    with report_of("the answers"):
        for text, groups in answers.items():
            if isinstance(groups, str):
                print_line(f"no answer: {groups}")
                continue
            for group, answer in groups.items():
                print_line(f"{text}{f' = {group}' * bool(group)}: {answer}  ({answer.method})")
            if groups.hidden:
                print_line(f"{text}: {groups.what_is_hidden}")
        if is_of_points(release) and not args.smooth and any(_has_limits(release, text) for text in answers):
            print_line(
                "limits and quantiles: intervals allow for values that many rows share; if there are none, use --smooth"
            )
        if used := rows_used(release.statement):
            print_line(f"answers are about the private rows that were used: {used}")
    if output is not None:
        documents = {
            text: {"error": str(errors[text])} if text in errors else _document(answers[text]) for text in args.queries
        }
        _write(output, documents)
    if errors:
        raise ToldError


def _errors(args: argparse.Namespace, release: Any, method: str) -> dict[str, ValueError]:
    """Why questions cannot be asked, by the text of those that cannot.

    Raises:
      ValueError: no question can be asked of this release, or not with these arguments.
    """
    if is_of_points(release):
        from kme_jax.analysis.answers import check_points_query
        from kme_jax.analysis.posterior import check_has_posterior

        check_has_posterior(release.measurement)
        if args.num_replicates is not None:
            raise InputError("--num_replicates does not apply to points")
        check = functools.partial(check_points_query, release, population=args.population)
    else:
        from kme_jax.analysis.replicates import check_population
        from kme_jax.analysis.tables import check_query

        if args.smooth:
            raise InputError("--smooth is for points: a table shows the values that many rows share")
        if args.population:
            check_population(release)
        if method == "direct" and args.num_replicates is not None:
            raise InputError("--num_replicates is for --method=bootstrap")
        check = functools.partial(check_query, release, population=args.population)
    errors: dict[str, ValueError] = {}
    for text in args.queries:
        try:
            check(text)
        except ValueError as error:
            errors[text] = error
    return errors


def _replicates(args: argparse.Namespace, release: Any, method: str) -> Any:
    """The replicates that all questions share; None if they need none."""
    warn_of_simulated_noise(release)
    if is_of_points(release):
        from kme_jax.analysis import posterior_draws

        with progress_bar("posterior") as progress:
            return posterior_draws(release, smooth=args.smooth, seed=args.seed, progress=progress)
    from kme_jax.analysis import bootstrap
    from kme_jax.analysis.replicates import NUM_REPLICATES

    if method == "direct":
        return None
    number = NUM_REPLICATES if args.num_replicates is None else args.num_replicates
    with progress_bar("replicates") as progress:
        return bootstrap(release, number, population=args.population, seed=args.seed, progress=progress)


def _has_limits(release: Any, text: str) -> bool:
    from kme_jax.analysis.answers import check_points_query

    return check_points_query(release, text).has_limits


def _document(groups: Any) -> dict[str, Any]:
    """The answers to a question, as plain JSON values."""
    if isinstance(groups, str):
        return {"no answer": groups}
    return {group: answer.to_json() for group, answer in groups.items()} | dict.fromkeys(groups.hidden)


def _write(output: pathlib.Path, document: dict) -> None:
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except FileExistsError:
        raise InputError(f"{output} exists") from None
    print_line(f"wrote {output}")
