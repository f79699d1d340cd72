"""Attacks on whole releases, and on how cells become codes."""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas
import pyarrow as pa

from experiments.audit import cases, encoders
from experiments.audit.attack import PILOT, gaussian_mu, lower_bound, share_of_diameter
from experiments.audit.containers import CONTAINERS
from experiments.audit.mechanisms import KERNEL, NUM_ROWS, Pair
from kme_jax import Bounds, Gaussian, PrivacyBudget, cli, integer_embedding
from kme_jax._numerics.precision import Progress
from kme_jax.points.measure import plan_map
from kme_jax.points.release import Measurement
from kme_jax.privacy import secure_mechanism
from kme_jax.privacy.calibration import zcdp_epsilon
from kme_jax.privacy.composition import Composition
from kme_jax.table import Categorical, Numeric, Schema, Weight, measure_table

_NUM_TABLE_ROWS = 100


def whole_command(pair: Pair, budget: PrivacyBudget, runs: int, progress: Progress) -> dict[str, Any]:
    """Attacks the command ``kme-jax release``, run many times from a private file to a folder."""
    bounds = Bounds.create([-8.0], [8.0])
    points, databases = pair.feature_map.points, pair.databases()
    length = 1 / math.sqrt(2 * KERNEL.gamma) / 16
    feature_map = plan_map(Gaussian(1 / (2 * length**2)), bounds.to_unit(points), bounded=True)
    embeddings = [integer_embedding(feature_map, rows, bounds=bounds) for rows in databases]
    integers = embeddings[0].integer_map
    totals = [embedding.integer_map.released(embedding.total) for embedding in embeddings]
    direction = (totals[1] - totals[0]) / np.linalg.norm((totals[1] - totals[0]).astype(np.float64))
    mechanism = secure_mechanism(integers, NUM_ROWS, budget)
    done = 0

    def sample(which, count):
        nonlocal done
        values = []
        for _ in range(count):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                np.save(folder / "rows.npy", databases[which])
                np.save(folder / "points.npy", points)
                words = ["release", f"{folder}/rows.npy", f"--points={folder}/points.npy", "--lower=-8", "--upper=8"]
                words += [f"--length={length!r}", f"--epsilon={budget.epsilon!r}", f"--delta={budget.delta!r}"]
                with contextlib.redirect_stdout(io.StringIO()):
                    status = cli.main([*words, f"--output={folder}/out"])
                if status:
                    raise RuntimeError("the command failed")
                coordinates = Measurement.load(folder / "out").noisy.coordinates
            values.append((coordinates / mechanism.grid - totals[0]) @ direction)
            done += 1
            progress(done, 2 * (runs + max(20, runs // PILOT)))
        return np.asarray(values)

    bound = lower_bound(sample, runs, gaussian_mu)
    share = share_of_diameter(totals, mechanism.sensitivity / mechanism.grid)
    return bound | {"measure": "mu", "claim": math.sqrt(2 * mechanism.rho), "share_of_diameter": share}


_BOOLS = Schema((Numeric("x", 0, 1, integer=True, nullable=True),))


def _frames() -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Two DataFrames that differ in one cell. The cell makes the column one of bools, or of objects."""
    cells = [True] * (_NUM_TABLE_ROWS - 1)
    return pandas.DataFrame({"x": [*cells, False]}), pandas.DataFrame({"x": [*cells, "n/a"]})


def release_of_frames(budget: PrivacyBudget, runs: int, progress: Progress, *, old: bool = False) -> dict[str, Any]:
    """Attacks ``measure_table`` of neighbouring DataFrames. ``old`` uses the rows as the former encoder read them."""
    databases, runs = _frames(), max(40, runs)  # fewer could not refute anything
    if old:
        databases = [_BOOLS.decode(encoders.old_encoder(frame, _BOOLS)) for frame in databases]
    done = 0

    def measure(which):
        return measure_table(databases[which], _BOOLS, budget=budget)

    ((_, noisy),) = measure(0).measured.items()
    totals = []
    for data in databases:
        codes = _BOOLS.encode(data) if old else encoders.new_encoder(data, _BOOLS)
        embedding = integer_embedding(noisy.feature_map, codes.astype(np.float64))
        totals.append(embedding.total * noisy.mechanism.grid)
    direction = (totals[1] - totals[0]) / np.linalg.norm(totals[1] - totals[0])

    def sample(which, count):
        nonlocal done
        values = []
        for _ in range(count):
            ((_, released),) = measure(which).measured.items()
            values.append((released.coordinates - totals[0]) @ direction)
            done += 1
            progress(done, 2 * (runs + max(20, runs // PILOT)))
        return np.asarray(values)

    bound = lower_bound(sample, runs, gaussian_mu)
    share = share_of_diameter(totals, noisy.mechanism.sensitivity)
    return bound | {"measure": "mu", "claim": math.sqrt(2 * noisy.mechanism.rho), "share_of_diameter": share}


_PEOPLE = Schema((Numeric("x", 0, 100, integer=True), Categorical("y", ("a", "b"))))


def release_of_neighbours(
    budget: PrivacyBudget, runs: int, progress: Progress, *, broken: bool = False
) -> dict[str, Any]:
    """Attacks ``measure_table`` of a table and of the same table with one row more, under add_remove.

    ``broken`` has a tenth of the noise that the claim needs.
    """
    rows = {"x": [0] * _NUM_TABLE_ROWS + [100], "y": ["a"] * _NUM_TABLE_ROWS + ["b"]}
    more = pa.table(rows)
    rho = cast(float, Composition.planned(budget).rho)
    used = PrivacyBudget(zcdp_epsilon(100 * rho, budget.delta), budget.delta, budget.relation) if broken else budget
    return _attack_release(
        [more.slice(0, _NUM_TABLE_ROWS), more], _PEOPLE, used, runs, progress, claim=math.sqrt(2 * rho)
    )


_VISITS = Schema(_PEOPLE.columns, dropped=("person",))
_MOST_VISITS = 40


def release_of_persons(budget: PrivacyBudget, runs: int, progress: Progress, *, broken: bool = False) -> dict[str, Any]:
    """Attacks ``measure_table`` of visits of persons, and of the same visits with those of one person more.

    This person has forty visits, and the budget is for fewer. ``broken`` leaves out the cut: each row has an id of its
    own, so all forty are used.
    """
    of_person = [i for i in range(_NUM_TABLE_ROWS) for _ in range(1 + i % _MOST_VISITS)]
    number = len(of_person)
    ids = list(range(number + _MOST_VISITS)) if broken else [*of_person, *[_NUM_TABLE_ROWS] * _MOST_VISITS]
    rows = {"person": ids, "x": [0] * number + [100] * _MOST_VISITS, "y": ["a"] * number + ["b"] * _MOST_VISITS}
    more = pa.table(rows)
    claim = math.sqrt(2 * cast(float, Composition.planned(budget).rho))
    return _attack_release([more.slice(0, number), more], _VISITS, budget, runs, progress, claim=claim, broken=broken)


_SURVEY = Schema((*_PEOPLE.columns, Weight("w", 2.0)))
_UNBOUNDED = 5  # times the largest weight


def release_of_weighted_row(
    budget: PrivacyBudget, runs: int, progress: Progress, *, broken: bool = False
) -> dict[str, Any]:
    """Attacks ``measure_table`` of rows with weights, and of the same rows with one more, under add_remove.

    The weight of this row is far above the bound. ``broken`` lets it count five times, as if the bound were larger.
    """
    copies = _UNBOUNDED if broken else 1
    more = pa.table(
        {
            "x": [0] * _NUM_TABLE_ROWS + [100] * copies,
            "y": ["a"] * _NUM_TABLE_ROWS + ["b"] * copies,
            "w": [0.5 + i % 2 for i in range(_NUM_TABLE_ROWS)] + [1e6] * copies,
        }
    )
    claim = math.sqrt(2 * cast(float, Composition.planned(budget).rho))
    databases = [more.slice(0, _NUM_TABLE_ROWS), more]
    return _attack_release(databases, _SURVEY, budget, runs, progress, claim=claim, broken=broken)


def _attack_release(
    databases: Sequence[pa.Table],
    schema: Schema,
    budget: PrivacyBudget,
    runs: int,
    progress: Progress,
    *,
    claim: float,
    broken: bool = False,
) -> dict[str, Any]:
    """Attacks ``measure_table`` of two databases, of which the second one has more rows, all equal.

    The attacker sees all measurements: the noisy number of rows, and those whose maps depend on it. The best statistic
    is the sum, over measurements, of the projections of the noisy sums on the features of the added row, each divided
    by the variance of its noise.

    Args:
      databases: the last row of the second one is an added row.
      schema: of their columns.
      budget: of the release.
      runs: the number of runs for each database.
      progress: is called with (work done, total work).
      claim: μ of the claim.
      broken: whether the bound of what a person, or a row, may add is left out.
    """
    runs, done = max(40, runs), 0
    code = schema.encode(databases[1].slice(databases[1].num_rows - 1)).astype(np.float64)
    most = databases[1].num_rows - databases[0].num_rows if broken else budget.max_rows

    def statistic(measured):
        total = 0.0
        for noisy in measured.measured.values():
            mechanism, integers = noisy.mechanism, noisy.feature_map.integers(1)
            features = integers.sum(code, np.ones(1, bool)).astype(np.float64)
            total += noisy.coordinates / mechanism.grid @ features / (mechanism.scale / mechanism.grid) ** 2
        return total

    def sample(which, count):
        nonlocal done
        values = []
        for _ in range(count):
            values.append(statistic(measure_table(databases[which], schema, budget=budget)))
            done += 1
            progress(done, 2 * (runs + max(20, runs // PILOT)))
        return np.asarray(values)

    bound = lower_bound(sample, runs, gaussian_mu)
    moved = sum(
        (most * np.linalg.norm(noisy.feature_map.integers(1).sum(code, np.ones(1, bool))) * noisy.mechanism.grid) ** 2
        / noisy.mechanism.scale**2
        for noisy in measure_table(databases[1], schema, budget=budget).measured.values()
    )
    return bound | {"measure": "mu", "claim": claim, "share_of_diameter": math.sqrt(moved) / claim}


def violations(num_cases: int, seed: int, progress: Progress, *, old: bool = False) -> dict[str, Any]:
    """Counts the random cases in which a row changes the code of another row."""
    names = ("DataFrame of lists", "DataFrame of rows") if old else tuple(CONTAINERS)
    encoder = encoders.old_encoder if old else encoders.new_encoder
    counts = cases.num_violations(num_cases, seed, encoder=encoder, containers=names, progress=progress)
    number = counts["violations"]
    return counts | {"measure": "violations", "claim": 0, "lower_bound": number, "estimate": number, "runs": num_cases}
