"""Estimates with intervals for questions about a release of points or of a table. Post-processing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.analysis.estimates import Estimate, Estimates, check_level
from kme_jax.analysis.grammar import check_no_total
from kme_jax.analysis.point_queries import PointsQuery
from kme_jax.analysis.posterior import PosteriorDraws, check_has_posterior, posterior_draws
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.points.release import Measurement, Release

if TYPE_CHECKING:
    from kme_jax.analysis.replicates import Bootstrap
    from kme_jax.table.release import TableRelease

_MANY_ROWS = 0.01  # the share of rows near a bound that makes it matter where they are
METHODS = {"points": ("posterior",), "table": ("direct", "bootstrap")}


def estimate(
    release: Release | Measurement | TableRelease,
    query: str,
    *,
    level: float = 0.95,
    method: str | None = None,
    population: bool = False,
    replicates: PosteriorDraws | Bootstrap | None = None,
    smooth: bool = False,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Estimate | Estimates:
    """The answer to a question about the private rows, with an interval. Nothing is spent.

    *Points* have one method, *posterior*: any statistic of the distributions that explain the noisy embedding up to its
    noise, see ``kme_jax.analysis.posterior``. Draws of them take as long as a synthesis, so make them once for several
    questions, by ``kme_jax.analysis.posterior_draws``.

    Next to a bound with many rows, features tell little about where they are. Intervals of limits, medians and
    quantiles there are wide if the release has a ``LatticeMap``. With other features they may be too short, and a
    warning says so.

    *Tables* have two methods. *direct*: any of the questions below, from noisy sums (``kme_jax.analysis.direct``). This
    takes no time, and the interval is that of the known noise. *bootstrap*: an answer of the released rows, with an
    interval from replicates of the release (``kme_jax.analysis.replicates``). It is often shorter, but contains the
    statistic less often than its level says, see ``experiments.tables.coverage``. Replicates take a while, so make them
    once for several questions.

    The method *direct* answers questions about two columns, to which the target may be added in a condition, and
    regressions on any number of columns. The bootstrap answers all of them, unless noise leaves nothing of how two
    columns go together.

    Args:
      release: of points, with bounds or a proposal; or of a table.
      query: "mean(income)", "sum(income)", "sd(age)", "median(age)", "quantile(income, 0.9)", "share(age>=65)",
        "count(age>=65)", "correlation(age, income)" or "slope(income, age)". It may be followed by "where" and
        conditions, such as "where age>=18 and age<65". For a table there is "regression(income ~ age + sex)", too, and
        the others may be followed by "by" and the name of a column, or the hour, month, quarter or year of a column of
        times: "by begin hour". For points limits must lie between the values of a discrete column: "share(age>=64.5)".
      level: of the interval.
      method: "posterior" for points; "direct" or "bootstrap" for a table. None for the first of them, or for the
        bootstrap if there are replicates of a table.
      population: whether the question is about the population from which the private rows were drawn at random.
        Otherwise it is about the private rows.
      replicates: draws of points, see ``kme_jax.analysis.posterior_draws``, or replicates of a table, see
        ``kme_jax.analysis.bootstrap``; None to make them if they are needed.
      smooth: of points: whether no value of a column is shared by many rows, see
        ``kme_jax.analysis.posterior_draws``. Draws in ``replicates`` were made with it or without it. Tables show
        such values.
      seed: of the replicates.
      progress: True for a bar, or a function that is called with (work done, all work).

    Returns:
      An estimate; or one for each value of the column after "by", by the text of the value; or one for each coefficient
      of a regression, by its name. Several are a dictionary that prints as a line for each, and has ``to_pandas``.
      Values that noise hides from the method *direct* are left out, and so are those whose interval has every possible
      value.

    Raises:
      ValueError: the query cannot be read; the method does not exist, or has no answer; it is no such release;
        replicates are of another release, or of the population if rows are asked for, or the other way round; smooth
        is given, and the release is of a table, or draws were made without it.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, estimate, release_table
      >>> rng = np.random.default_rng(0)
      >>> people = pa.table({"age": rng.integers(18, 91, 2000), "sex": rng.choice(["f", "m"], 2000)})  # private
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("sex", ("f", "m"))))
      >>> released = release_table(people, schema, budget=PrivacyBudget(1.0, 1e-5))
      >>> mean = estimate(released, "mean(age)")
      >>> mean.low < mean.value < mean.high
      True
    """
    is_of_table = not isinstance(release, Release | Measurement)
    method = check_method(release, "bootstrap" if is_of_table and method is None and replicates is not None else method)
    if not isinstance(release, Release | Measurement):
        from kme_jax.analysis.tables import answers  # needs pyarrow

        if smooth:
            raise ValueError("smooth is for points: a table shows the values that many rows share")
        options = {"population": population, "replicates": replicates, "seed": seed, "progress": progress}
        return answers(release, query, level=level, method=method, **options)
    parsed = check_points_query(release, query, population=population)
    check_level(level)
    measurement = release.measurement if isinstance(release, Release) else release
    draws = replicates
    if draws is None:
        draws = posterior_draws(release, smooth=smooth, seed=seed, progress=progress)
    if not isinstance(draws, PosteriorDraws) or not np.array_equal(
        draws.measurement.noisy.coordinates, measurement.noisy.coordinates
    ):
        raise ValueError("replicates: they are of another release")
    if smooth and not draws.smooth:
        raise ValueError("smooth: the draws were made without it; make them by posterior_draws(..., smooth=True)")
    names = columns_of(measurement)
    answer = draws.estimate(lambda s: parsed.answer(names, s.points, s.weights), level, population=population)
    _warn_of_bounds(draws, parsed, names, answer.value)
    answer = answer.within(*parsed.possible)
    return answer.times(measurement.statement["num_rows"]) if parsed.is_total else answer


def _warn_of_bounds(draws: PosteriorDraws, query: PointsQuery, names: tuple[str, ...], value: float) -> None:
    """Warns if an answer depends on where rows are that are closer to a bound than the kernel's length.

    Features hardly tell that. Draws that were not cut while they were sampled do not allow for it, so intervals contain
    the private statistic too rarely. It matters if a limit, a median or a quantile is so close to the bound, and a
    hundredth of the rows are.
    """
    bounds, feature_map = draws.measurement.bounds, draws.measurement.noisy.feature_map
    if bounds is None or not isinstance(feature_map, SpectralMap) or isinstance(feature_map, LatticeMap):
        return
    places = [(condition.column, condition.value) for condition in (*query.share, *query.where)]
    if query.is_quantile:
        places.append((query.columns[0], value))
    lengths = feature_map.length_scale * (bounds.upper - bounds.lower)
    for name, place in places:
        j = names.index(name)
        for bound in (float(bounds.lower[j]), float(bounds.upper[j])):
            if 0 < abs(place - bound) < lengths[j] and bounds.lower[j] <= place <= bounds.upper[j]:
                near = [float(s.weights[np.abs(s.points[:, j] - bound) < lengths[j]].sum()) for s in draws.samples]
                if np.mean(near) >= _MANY_ROWS:
                    warnings.warn(
                        f"query {query.text!r}: many rows are closer to the bound {bound:g} of {name} than the "
                        f"kernel's length, {lengths[j]:.3g}, and features do not tell where: the interval may be too "
                        "short",
                        stacklevel=3,
                    )


def check_method(release: Any, method: str | None) -> str:
    """The method of an estimate; the first one if None.

    Raises:
      ValueError: there is no such method for this release.
    """
    methods = METHODS["points" if isinstance(release, Release | Measurement) else "table"]
    if method is not None and method not in methods:
        raise ValueError(f"method must be {' or '.join(methods)} for this release, got {method!r}")
    return methods[0] if method is None else method


def check_points_query(release: Release | Measurement, text: str, *, population: bool = False) -> PointsQuery:
    """The query that a text asks, which :func:`estimate` can answer for points.

    Raises:
      ValueError: the text cannot be read, or the release has no posterior, or it is about a total and the population
        is asked for.
    """
    measurement = release.measurement if isinstance(release, Release) else release
    check_has_posterior(measurement)
    query = PointsQuery.parse(text, columns_of(measurement))
    if population:
        check_no_total(query)
    return query


def columns_of(measurement: Measurement) -> tuple[str, ...]:
    """The names of the columns of points: those of the bounds, or x1, x2 and so on."""
    if measurement.bounds is not None:
        return measurement.bounds.names
    return tuple(f"x{i + 1}" for i in range(measurement.noisy.feature_map.dim))
