"""Intervals for any statistic of a released table, by a parametric bootstrap of the release.

A release is a noisy measurement of the private table, and synthetic rows that were fitted to it. All of this can be
repeated with the synthetic rows in the place of the private ones: the same marginals are measured, with new noise of
the same distribution, and new rows are fitted and drawn. The difference between a statistic of these rows and of those
that were measured is then known. It is distributed about as the difference between the release and the private table:
its mean is the bias, and its standard deviation the standard error (Efron & Tibshirani 1993, chapter 6; for private
releases Ferrando, Wang & Sheldon 2022). This is post-processing: it spends nothing.

A release does not have what noise hides: rows far in a tail, and weak dependence between columns. A replicate that
starts from released rows alone never had them, and would not show that they were lost. So rows in the place of the
private ones get hidden rows (``kme_jax.analysis.hidden``) and hidden dependence (``kme_jax.analysis.hidden_pairs``): a
guess of them, drawn anew for each replicate. Estimates are corrected for what is lost on average, and intervals are
long where noise could hide much.

``experiments.tables.coverage`` shows how often intervals contain the private statistic. Released rows are smoother than
private ones, so a replicate is closer to them than the release is to the private rows: some intervals are too short.
Dependence of three columns that pairs do not show is not guessed, and neither is that of two columns of numbers that
does not grow or fall. Bins, pairs and cells are those of the release; their choice is not repeated.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax.analysis.estimates import Estimate, Estimates, check_level, number_of
from kme_jax.analysis.hidden import HiddenTails
from kme_jax.analysis.hidden_pairs import HiddenPairs
from kme_jax.embedding import mean_embedding
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.statement import is_for_persons
from kme_jax.table import balance
from kme_jax.table.draw import released_codes
from kme_jax.table.fit import synthesise
from kme_jax.table.release import NAMES, TableRelease
from kme_jax.table.schema import Schema

NUM_REPLICATES = 12
_LEAST_REPLICATES, _MOST_REPLICATES = 4, 1000
_PART, _SWEEPS = 0.25, 2  # of the relaxed rows of a release, in a replicate; and the sweeps in which they are balanced
_MOST_THREADS = 4  # each has the memory of a synthesis


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """Replicates of a release, for intervals of any number of statistics. Public.

    Attributes:
      release: of a table.
      measured: the rows that took the place of the private ones, for each replicate. Some are in tails that noise could
        hide.
      replicates: the rows that were released in their place, for each replicate.
      population: whether rows were drawn anew for each replicate, as from a population.
      unknown: names of the pairs of columns of which noise leaves nothing, so replicates do not show how they depend on
        each other.
    """

    release: TableRelease
    measured: tuple[pa.Table, ...]
    replicates: tuple[pa.Table, ...]
    population: bool
    unknown: tuple[tuple[str, str], ...]

    def _in_short(self) -> str:
        return f"{len(self.replicates)} replicates of a release of {self.release.table.num_rows} rows"

    def estimate(self, statistic: Callable[[Any], Any], level: float = 0.95) -> Any:
        """An estimate with an interval for a statistic, or for several.

        The estimate is the statistic of the released rows less its bias, which is the mean of the differences between
        replicates and what they replace. The interval has quantiles of Student's t distribution.

        Args:
          statistic: a function of a pandas DataFrame with the columns of the table. It returns a number, a mapping from
            names to numbers (a pandas Series is one, too), or a DataFrame of numbers, such as a crosstab. For a
            question in words, give the replicates to ``kme_jax.estimate``.
          level: of the interval.

        Returns:
          An :class:`Estimate`, or a dictionary of them by name.

        Raises:
          ValueError: the statistic is no function, or not of numbers; the level is not between 0 and 1.
          ModuleNotFoundError: pandas is not installed.
        """
        if not callable(statistic):
            raise ValueError(
                f"statistic: expected a function of a DataFrame, got {statistic!r}; for a question in words, call "
                "kme_jax.estimate(release, question, replicates=replicates)"
            )

        def of_rows(table: pa.Table) -> dict[Any, float]:
            result = statistic(self.release.to_pandas(table))
            if getattr(result, "ndim", 0) == 2 and hasattr(result, "items"):  # a DataFrame has columns of rows
                result = {f"{row}, {name}": one for name, column in result.items() for row, one in column.items()}
            named = result if hasattr(result, "items") else {"": result}
            return {name: number_of(value) for name, value in named.items()}

        estimates = self.estimates(of_rows, level)
        return estimates[""] if list(estimates) == [""] else Estimates(estimates)

    def estimates(
        self, statistics: Callable[[pa.Table], Mapping[Any, float]], level: float = 0.95
    ) -> dict[Any, Estimate]:
        """Estimates with intervals for numbers by name, from a function of a table. See :meth:`estimate`.

        A number that is missing or not finite for the rows of a replicate has no interval: its ends are infinite.

        Args:
          statistics: a function of a table, which returns a mapping from names to numbers.
          level: of the intervals.

        Raises:
          ValueError: the level is not between 0 and 1.
        """
        check_level(level)
        of_release, errors = statistics(self.release.table), []
        for measured, replicate in zip(self.measured, self.replicates, strict=True):
            before = statistics(measured)
            after = statistics(replicate)
            errors.append([after.get(name, math.nan) - before.get(name, math.nan) for name in of_release])
        number = len(errors)
        bias, deviation = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1) * math.sqrt(1 + 1 / number)
        is_finite = np.isfinite(bias)
        bias, deviation = np.where(is_finite, bias, 0), np.where(is_finite, deviation, math.inf)
        return {
            name: Estimate.of(
                value - float(b),
                float(d),
                level,
                method="bootstrap",
                bias=float(b),
                population=self.population,
                degrees=number - 1,
            )
            for (name, value), b, d in zip(of_release.items(), bias, deviation, strict=True)
        }


@shows_progress("replicates")
def bootstrap(
    release: TableRelease,
    num_replicates: int = NUM_REPLICATES,
    *,
    population: bool = False,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Bootstrap:
    """Replicates of a release of a table, see the text at the top of ``kme_jax.analysis.replicates``.

    A quarter of the relaxed rows of a release is fitted, to save time. Twelve replicates take four to six times as
    long as a synthesis. Up to four are made at the same time, if there are as many cores.

    Args:
      release: of a table.
      num_replicates: from 4 to 1000. Twelve are enough for an interval; many make it about a seventh shorter.
      population: whether statistics are those of the population from which the private rows were drawn at random.
        Otherwise they are those of the private rows.
      seed: of the replicates.
      progress: True for a bar, or a function that is called with (replicates done, all replicates).

    Raises:
      ValueError: it is no release of a table, or a number is out of range.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, release_table
      >>> from kme_jax.analysis import bootstrap
      >>> rng = np.random.default_rng(0)
      >>> age = rng.integers(18, 91, 2000)
      >>> people = pa.table({"age": age, "rich": np.where(rng.random(2000) < age / 100, "yes", "no")})  # private
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("rich", ("no", "yes"))))
      >>> released = release_table(people, schema, budget=PrivacyBudget(1.0, 1e-5), target="rich")
      >>> replicates = bootstrap(released, 4)
      >>> estimate = replicates.estimate(lambda frame: frame.age[frame.rich == "yes"].mean())
      >>> estimate.low < estimate.value < estimate.high
      True
    """
    if not isinstance(release, TableRelease):
        raise ValueError(f"release: expected the release of a table, got a {type(release).__name__}")
    if population:
        check_population(release)
    number = check_integer("num_replicates", num_replicates, _LEAST_REPLICATES, _MOST_REPLICATES)
    seeds = np.random.SeedSequence(check_integer("seed", seed, 0, MAX_SEED)).spawn(number)
    report, pairs = reporter(progress), []
    codes = measured_codes(release.schema, release.table)
    tails = HiddenTails.of(release, codes, number, np.random.default_rng([seed, 1]))
    dependence = HiddenPairs.of(release, codes)

    def one(index: int, of_replicate: np.random.SeedSequence) -> tuple[pa.Table, pa.Table]:
        random = np.random.default_rng(of_replicate)
        rows = codes[random.integers(0, len(codes), release.statement["num_rows"])] if population else codes.copy()
        dependence.hide(rows, random)
        tails.hide(rows, index, random)
        decoded = release.schema.decode(release.schema.released_codes(rows, int(random.integers(MAX_SEED))))
        measured = release.measurement.with_weights(decoded)
        return measured, _replicate(release, measured, random)

    # Each replicate has a source of randomness of its own, so the result is the same for any number of threads.
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        for pair in pool.map(one, range(number), seeds):
            pairs.append(pair)
            if report:
                report(len(pairs), number)
    measured, replicates = zip(*pairs, strict=True)
    return Bootstrap(release, measured, replicates, population, dependence.unknown)


def check_population(release: TableRelease) -> None:
    """Refuses questions about the population if persons have several rows, or rows have weights.

    Raises:
      ValueError: the release is for persons, or its rows had weights.
    """
    if release.schema.weight is not None:
        raise ValueError(
            "population: weighted statistics are about the population already, and how far chance moves them is not "
            "known; leave it out"
        )
    if is_for_persons(release.statement):
        raise ValueError(
            "population: rows of one person were not drawn independently of each other; leave it out, and ask about "
            "the private rows"
        )


def measured_codes(schema: Schema, rows: pa.Table) -> Int64[np.ndarray, "n m"]:
    """Codes of the measured columns of released rows, [n, m]."""
    return schema.measured_codes(schema.encode(rows, words=False)).astype(np.int64)


def _replicate(release: TableRelease, table: pa.Table, random: np.random.Generator) -> pa.Table:
    """Synthetic rows for public rows, which are measured and represented as the private ones were.

    There are as many as in the release. The noise is simulated, and has the same distribution.
    """
    measurement = release.measurement
    schema, measured = measurement.schema, []
    codes = measured_codes(schema, table).astype(np.float64)
    for noisy in map(measurement.measured.get, NAMES):
        if noisy is not None:
            exact = mean_embedding(noisy.feature_map, codes).coordinates
            noise = noisy.mechanism.scale * random.standard_normal(len(exact))
            noisy = dataclasses.replace(noisy, coordinates=exact + noise)
        measured.append(noisy)
    seed = int(random.integers(MAX_SEED))
    rows = synthesise(
        measurement.layout, measurement.plan, measured, cycles=schema.measured.cycles, seed=seed, part=_PART
    )
    codes = balance.sample(rows, release.table.num_rows, seed, sweeps=_SWEEPS)
    drawn = released_codes(rows, schema, codes, seed)
    return measurement.with_weights(schema.decode(drawn))
