"""Distances between releases, two-sample tests and tests of independence."""

import dataclasses
import math
import pathlib
import shutil

import jax
import numpy as np
import pyarrow as pa
import pytest
import scipy.linalg
import scipy.stats

from kme_jax import (
    Bounds,
    Categorical,
    Gaussian,
    Laplacian,
    NormalProposal,
    Numeric,
    PrivacyBudget,
    Release,
    Schema,
    WeightedSample,
    cli,
    mean_embedding,
    measure,
    measure_table,
    perturb,
)
from kme_jax.analysis import independence_test, mmd, two_sample_test
from kme_jax.analysis.chi_squares import compared
from kme_jax.analysis.outcome import TestResult
from kme_jax.analysis.two_sample import smooth_difference
from kme_jax.table.release import TableRelease
from tests import compiled

KERNEL = Gaussian(gamma=8.0)
BOUNDS = Bounds.create(np.full(2, -4.0), np.full(2, 4.0), ("x", "y"))
BUDGET = PrivacyBudget(1.0, 1e-5)


def _rows(rng, number, shift=0.0):
    return np.stack([rng.gamma(2.0, 0.7, number) - 1.4, rng.normal(0, 1, number)], axis=1) + shift


@pytest.fixture(scope="module")
def template():
    """A measurement whose noisy embedding is replaced by those of other rows."""
    return measure(_rows(np.random.default_rng(0), 2000), KERNEL, budget=BUDGET, bounds=BOUNDS)


def _measured(template, rows, seed, budget=BUDGET):
    """A measurement of other rows, with simulated noise: the same as ``measure``, and reproducible."""
    embedding = mean_embedding(template.noisy.feature_map, BOUNDS.to_unit(rows))
    return dataclasses.replace(template, noisy=perturb(jax.random.key(seed), embedding, budget))


def _released(measured, points):
    """A release with other points, because a synthesis takes seconds."""
    weights = np.full(len(points), 1 / len(points))
    return Release(measured, WeightedSample(np.clip(points, -4, 4), weights, measured.noisy.mechanism), 0)


# -- distances


def test_columns_are_matched_by_name(template):
    """As those of private rows are: a DataFrame may have them in another order. Other names are refused."""
    rows = _rows(np.random.default_rng(1), 50)
    table = pa.table({"y": rows[:, 1], "x": rows[:, 0]}).to_pandas()
    released = _released(template, rows)
    assert mmd(template, table) == mmd(template, rows)
    assert two_sample_test(released, table) == two_sample_test(released, rows)
    with pytest.raises(ValueError, match="rows: the columns are y, z, but the bounds have x, y"):
        mmd(template, table.rename(columns={"x": "z"}))
    with pytest.raises(ValueError, match="got a path; kme-jax test reads files"):
        two_sample_test(released, "rows.csv")


def test_cells_that_are_no_numbers_count_as_they_did_in_private_rows(template):
    """With bounds they are moved, as those of the private rows were. Without bounds, and in a whole column, they are
    refused."""
    rng = np.random.default_rng(7)
    rows, moved = _rows(rng, 100), _rows(np.random.default_rng(7), 100)
    rows[:9, 0], moved[:9, 0] = np.nan, 0.0  # the middle of the bounds
    rows[9, 1], moved[9, 1] = np.inf, 4.0
    assert mmd(template, rows) == mmd(template, moved)
    release = _released(template, _rows(rng, 50))
    assert two_sample_test(release, rows) == two_sample_test(release, moved)
    without = measure(moved, KERNEL, moved[:30], budget=PrivacyBudget(1.0, 1e-3))
    for bad, call in [(np.nan, mmd), (np.inf, mmd), (np.nan, two_sample_test), (np.inf, two_sample_test)]:
        with pytest.raises(ValueError, match=r"^rows: row 3 is NaN or infinite; remove or impute such rows first$"):
            call(without.synthesise(), np.concatenate([moved[:3], np.full((1, 2), bad), moved]))
    rows[:, 1] = np.nan
    for call, of in ((mmd, template), (two_sample_test, release)):
        with pytest.raises(ValueError, match=r"^rows: column y has no number$"):
            call(of, rows)


def _plain_mmd(template, rows, others):
    ours, theirs = (
        np.asarray(compiled.features(template.noisy.feature_map, BOUNDS.to_unit(x).astype(np.float32)), np.float64)
        for x in (rows, others)
    )
    return float(np.square(ours.mean(0) - theirs.mean(0)).sum())


@pytest.mark.parametrize(
    ("between_releases", "shift"),
    [
        pytest.param(False, 0.0, marks=pytest.mark.slow),
        pytest.param(False, 0.2, marks=pytest.mark.long),
        pytest.param(True, 0.0, marks=pytest.mark.long),
        pytest.param(True, 0.2, marks=pytest.mark.slow),
    ],
)
def test_the_distance_is_unbiased_and_knows_its_noise(template, shift, between_releases):
    rng = np.random.default_rng(1)
    rows, others = _rows(rng, 1000), _rows(rng, 1000, shift)
    exact, errors, stated = _plain_mmd(template, rows, others), [], []
    for seed in range(100):
        other = _measured(template, others, 1000 + seed) if between_releases else others
        found = mmd(_measured(template, rows, seed), other)
        errors.append(found.value - exact)
        stated.append(found.standard_error)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 10
    assert 0.6 < np.mean(np.square(np.asarray(errors) / stated)) < 1.55
    corrected = template.noisy.mechanism.variance * template.noisy.feature_map.num_features
    assert corrected > 8 * np.std(errors) / 10  # without the correction, the test of the bias would fail


@pytest.mark.long
def test_the_distance_of_populations_is_unbiased(template):
    """It is 0 for rows of one distribution. That of the rows is not."""
    values, of_rows, stated = [], [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        measured, public = _measured(template, _rows(rng, 1000), seed), _rows(rng, 500)
        of_rows.append(mmd(measured, public).value)
        found = mmd(measured, public, population=True)
        values.append(found.value)
        stated.append(found.standard_error)
    assert abs(np.mean(values)) < 4 * np.std(values) / 10
    assert np.mean(of_rows) > 8 * np.std(of_rows) / 10
    assert 0.5 < np.std(values) / np.mean(stated) < 1.2


def test_distances_that_cannot_be(template):
    rng = np.random.default_rng(0)
    rows = _rows(rng, 100)
    other = measure(rows, Gaussian(gamma=9.0), budget=BUDGET, bounds=BOUNDS)
    with pytest.raises(ValueError, match="different features"):
        mmd(template, other)
    wider = Bounds.create(np.full(2, -5.0), np.full(2, 4.0), ("x", "y"))
    released = _released(template, rows)
    with pytest.raises(ValueError, match="different features"):
        two_sample_test(released, measure(rows, KERNEL, budget=BUDGET, bounds=wider))
    with pytest.raises(ValueError, match="both are the same measurement"):
        two_sample_test(released, released)
    with pytest.raises(ValueError, match="a measurement has no points"):
        two_sample_test(template, rows)
    with pytest.raises(ValueError, match="expected rows of numbers or a release of points, got a table"):
        two_sample_test(released, _people(rng, 30))
    with pytest.raises(ValueError, match="expected 2 columns"):
        mmd(template, rows[:, :1])
    with pytest.raises(ValueError, match="at least 2 rows"):
        mmd(template, rows[:1])
    with pytest.raises(ValueError, match="expected a release of points"):
        mmd(rows, rows)
    with pytest.raises(ValueError, match="two measurements have no points"):
        mmd(template, _measured(template, rows, 3), population=True)
    points = measure(rows, KERNEL, rows[:5], budget=BUDGET)
    assert mmd(points, rows).value < 1
    weighted = Release(points, WeightedSample(rows[:5], np.full(5, 0.2), points.noisy.mechanism), 0)
    assert 0 < two_sample_test(weighted, rows).p_value <= 1
    far = np.where(np.arange(100)[:, None] < 5, 1e200, rows)  # rows beyond the reach count as zero on both sides
    assert np.isfinite(two_sample_test(weighted, far).statistic)
    laplace = measure(rows, KERNEL, rows[:5], budget=PrivacyBudget(1.0, 0.0), noise="laplace")
    with pytest.raises(ValueError, match="for Gaussian noise, and this release has laplace noise"):
        two_sample_test(dataclasses.replace(weighted, measurement=laplace), rows)
    with pytest.raises(ValueError, match="needs Fourier features"):
        mmd(points, rows, population=True)


# -- two samples


def test_the_statistic_is_the_formula(rng):
    """The logarithm of the ratio of two normal densities of d: with and without a random difference. Dense matrices."""
    root, difference = rng.normal(size=(7, 5)) / 3, rng.normal(size=5)
    sigma, scale, variance = root.T @ root, 0.1, 0.02
    total = scale * sigma + variance * np.eye(5)
    largest = scipy.linalg.eigh(sigma @ sigma, total, eigvals_only=True)[-1]
    moved = total + 9 / largest * sigma @ sigma
    ratio = np.linalg.inv(total) - np.linalg.inv(moved)
    expected = difference @ ratio @ difference / np.trace(ratio @ total)
    statistic, _ = smooth_difference(difference, root, scale, variance, 0)
    assert statistic == pytest.approx(expected)
    # d along directions that no row has does not count, and few rows are summed the other way.
    beside = np.concatenate([difference, np.full(4, 100.0)])
    wider = np.concatenate([root, np.zeros((7, 4))], axis=1)
    assert smooth_difference(beside, wider, scale, variance, 0)[0] == pytest.approx(expected)


def test_p_values_are_those_of_chi_square():
    for degrees, statistic in ((1, 3.84), (5, 9.0), (80, 100.0)):
        found, p_value = compared(np.full(degrees, statistic / degrees), np.ones(degrees), 0)
        assert p_value == pytest.approx(scipy.stats.chi2.sf(statistic, degrees), abs=0.01)
        assert found == pytest.approx(statistic / degrees)
    assert compared(np.full(3, 1e9), np.ones(3), 0)[1] == pytest.approx(1 / 20_001)
    assert compared(np.ones(3), np.zeros(3), 0) == (1.0, 1.0)


@pytest.mark.parametrize(
    "kind", [pytest.param(20, marks=pytest.mark.slow), pytest.param("release", marks=pytest.mark.long)]
)
def test_the_level_of_the_two_sample_test(template, kind):
    """P-values of 40 true hypotheses are uniform: the share of small ones, and their mean."""
    p_values = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        number = kind if isinstance(kind, int) else 800
        measured, others = _measured(template, _rows(rng, 800), seed), _rows(rng, number)
        other = _measured(template, others, 1000 + seed) if kind == "release" else others
        p_values.append(two_sample_test(_released(measured, _rows(rng, 300)), other, seed=seed).p_value)
    p_values = np.asarray(p_values)
    assert (p_values <= 0.05).mean() <= 0.175  # 3.6 standard errors
    assert 0.33 < p_values.mean() < 0.67
    assert (p_values <= 0.5).mean() > 0.25


@pytest.mark.long
def test_rare_and_repeated_rows_keep_the_level(template):
    """Half of the rows have one value, and one in fifty is far away. Few public rows hardly show where rows vary."""

    def rows(rng, number):
        values = np.where(rng.random((number, 1)) < 0.5, 1.0, rng.normal(size=(number, 2)))
        return np.where(rng.random((number, 1)) < 0.02, -3.5, values)

    p_values = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        released = _released(_measured(template, rows(rng, 5000), seed), rows(rng, 500))
        p_values.append(two_sample_test(released, rows(rng, 50), seed=seed).p_value)
    assert np.mean(np.asarray(p_values) <= 0.05) <= 0.175


def test_the_two_sample_test_finds_a_shift(template):
    rng = np.random.default_rng(3)
    measured = _released(_measured(template, _rows(rng, 2000), 0), _rows(rng, 300))
    assert two_sample_test(measured, np.full((500, 2), 3.9)).p_value < 0.001  # rows that do not vary
    result = two_sample_test(measured, _rows(rng, 2000, 0.2))
    assert result.p_value < 0.001
    assert result.statistic > 3
    assert "rejected at the level 5 %" in str(result)
    assert result.to_json()["parts"] == {}
    with pytest.raises(ValueError, match="at least 20 public rows, got 19"):
        two_sample_test(measured, _rows(rng, 19))
    with pytest.raises(ValueError, match="expected a release of points or of a table, got a ndarray"):
        two_sample_test(_rows(rng, 30), _rows(rng, 30))


# -- tables

SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Numeric("pay", 0, 5000, step=0.01, nullable=True),
        Categorical("town", ("a", "b", "c")),
        Categorical("rich", ("no", "yes")),
    )
)


def _people(rng, number, raised=1.0, towns=(0.6, 0.3, 0.1)):
    age = np.clip(rng.normal(40, 15, number), 0, 99).round().astype(int)
    pay = np.round((raised * rng.gamma(4, 300, number)).clip(0, 5000), 2)
    rich = np.where(rng.random(number) < age / 99, "yes", "no")
    town = rng.choice(["a", "b", "c"], number, p=towns)
    return pa.table({"age": age, "pay": pa.array(pay, mask=rng.random(number) < 0.2), "town": town, "rich": rich})


def _table_release(rng, number, relation="replace_one", target="rich", **options):
    """A release whose synthetic rows are stood in for by public ones, because a synthesis takes seconds."""
    budget = PrivacyBudget(1.0, 1e-5, relation)
    measured = measure_table(
        _people(rng, number, **options), SCHEMA, budget=budget, target=target, secure=False, seed=int(rng.integers(1e9))
    )
    return TableRelease(measured, None, _people(rng, 2000), 0)


@pytest.mark.parametrize(
    "relation",
    [pytest.param("replace_one", marks=pytest.mark.slow), pytest.param("add_remove", marks=pytest.mark.long)],
)
def test_the_level_of_the_test_of_tables(relation):
    rng = np.random.default_rng(5)
    releases = [_table_release(rng, 2000, relation, target="rich" if i % 2 else None) for i in range(16)]
    against_rows = [two_sample_test(one, _people(rng, 2000), seed=i) for i, one in enumerate(releases)]
    pairs = zip(releases[::2], releases[1::2], strict=True)
    of_pairs = [two_sample_test(one, other, seed=i) for i, (one, other) in enumerate(pairs)]
    for name in SCHEMA.names:
        parts = np.asarray([result.parts[name] for result in (*against_rows, *of_pairs)])
        assert (parts <= 0.05).mean() <= 0.22, name  # 24 tests: 3.8 standard errors
        assert 0.27 < parts.mean() < 0.73, name
    assert np.mean([result.p_value <= 0.05 for result in against_rows]) <= 0.32
    assert against_rows[0].p_value == pytest.approx(min(1.0, 4 * min(against_rows[0].parts.values())))


@pytest.mark.long
def test_few_public_rows_keep_the_level_of_tables():
    """A category of forty values, and 100 public rows."""
    schema = Schema((Categorical("code", tuple(f"c{i}" for i in range(40))), Numeric("age", 0, 99, integer=True)))

    def rows(rng, number):
        codes = np.stack([rng.integers(0, 40, number), rng.integers(0, 100, number)], axis=1)
        return schema.decode(codes)

    p_values = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        measured = measure_table(rows(rng, 20_000), schema, budget=BUDGET, secure=False, seed=seed)
        released = TableRelease(measured, None, rows(rng, 2000), 0)
        p_values.append(two_sample_test(released, rows(rng, 100), seed=seed).parts["code"])
    assert np.mean(np.asarray(p_values) <= 0.05) <= 0.21
    assert 0.28 < np.mean(p_values) < 0.72


def test_the_test_of_tables_finds_the_column(tmp_path):
    rng = np.random.default_rng(6)
    released = _table_release(rng, 4000)
    result = two_sample_test(released, _people(rng, 4000, raised=1.4))
    assert min(result.parts, key=result.parts.get) == "pay"
    assert result.p_value < 0.02
    assert two_sample_test(released, _people(rng, 4000, towns=(0.5, 0.3, 0.2))).parts["town"] < 0.02
    constant = _people(rng, 500).set_column(0, "age", pa.array([99] * 500))
    assert two_sample_test(released, constant).parts["age"] < 1e-3
    path = tmp_path / "public.parquet"
    pa.parquet.write_table(_people(np.random.default_rng(7), 500), path)
    again = two_sample_test(released, _people(np.random.default_rng(7), 500))
    assert two_sample_test(released, path).parts == again.parts
    with pytest.raises(ValueError, match="at least 20 public rows"):
        two_sample_test(released, _people(rng, 10))
    with pytest.raises(ValueError, match="both are the same measurement"):
        two_sample_test(released, released)
    points = measure(np.zeros((30, 1)), KERNEL, np.zeros((2, 1)), budget=BUDGET)
    with pytest.raises(ValueError, match="expected a table, got a release of points"):
        two_sample_test(released, points)
    fewer = Schema(SCHEMA.columns[:-1])
    measured = measure_table(_people(rng, 100).drop(["rich"]), fewer, budget=BUDGET, secure=False)
    with pytest.raises(ValueError, match=r"schemas of the two releases differ, first in the column rich$"):
        two_sample_test(released, TableRelease(measured, None, _people(rng, 50).drop(["rich"]), 0))


# -- independence


@pytest.mark.parametrize(
    "epsilon", [pytest.param(1.0, marks=pytest.mark.slow), pytest.param(10.0, marks=pytest.mark.long)]
)
def test_the_level_of_the_test_of_independence(template, epsilon):
    p_values = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        measured = _measured(template, _rows(rng, 1500), seed, PrivacyBudget(epsilon, 1e-5))
        p_values.append(independence_test(_released(measured, _rows(rng, 300)), "x", "y", seed=seed).p_value)
    p_values = np.asarray(p_values)
    assert (p_values <= 0.05).mean() <= 0.21  # 24 tests: 3.6 standard errors
    assert 0.28 < p_values.mean() < 0.72


def test_dependence_without_correlation_is_found(template):
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * math.pi, 3000)
    circle = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    released = _released(_measured(template, circle, 0), circle[:300])
    result = independence_test(released, 0, "y")
    assert result.p_value < 0.01
    assert result.hypothesis == "x and y are independent"
    assert independence_test(released, "y", "x").p_value < 0.01


@pytest.mark.long
def test_independence_of_two_of_three_columns():
    """The frequencies of both columns are those of a lattice of two columns."""
    rng = np.random.default_rng(1)
    first = rng.normal(size=2000)
    rows = np.stack([first, rng.normal(size=2000), 0.7 * first + 0.5 * rng.normal(size=2000)], axis=1)
    bounds = Bounds.create(np.full(3, -4.0), np.full(3, 4.0))
    measured = measure(rows, Gaussian(gamma=4.0), budget=PrivacyBudget(3.0, 1e-5), bounds=bounds)
    released = _released(measured, rows[:300])
    assert independence_test(released, "x1", "x3").p_value < 0.01
    assert independence_test(released, "x1", "x2").p_value > 0.01


def test_what_cannot_be_tested_for_independence(template):
    rng = np.random.default_rng(0)
    released = _released(template, _rows(rng, 50))
    for columns, message in (
        (("x", "z"), "expected one of x, y or its index, got 'z'"),
        (("x", 2), "or its index, got 2"),
        (("x", 0), "expected two different ones"),
    ):
        with pytest.raises(ValueError, match=message):
            independence_test(released, *columns)
    with pytest.raises(ValueError, match="expected a release of points with synthetic points, got a Measurement"):
        independence_test(template, 0, 1)
    with pytest.raises(ValueError, match="all synthetic points have the same value"):
        independence_test(_released(template, np.zeros((50, 2))), 0, np.int64(1))
    proposal = NormalProposal.create(np.zeros(2), 2.0)
    random = measure(_rows(rng, 100), Laplacian(gamma=1.0), proposal, budget=BUDGET, num_features=20)
    with pytest.raises(ValueError, match="needs a LatticeMap"):
        independence_test(_released(random, _rows(rng, 50)), 0, 1)


# -- the command


def test_the_command(template, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    released = _released(template, _rows(rng, 50))
    released.save("published")
    np.save("public.npy", _rows(rng, 500, 0.5))
    assert cli.main(["test", "published", "public.npy"]) == 0
    printed, warned = capsys.readouterr()
    printed = printed.splitlines()
    assert "public only if public.npy is" in warned
    expected = two_sample_test(released, np.load("public.npy"))
    assert printed[0] == str(expected)
    assert printed[1] == f"squared distance (MMD²): {mmd(released, np.load('public.npy'))}"
    shutil.copy("public.npy", "private.npy")
    pathlib.Path("private.npy.ledger").touch()
    assert cli.main(["test", "published", "--independent=x,y"]) == 0
    assert capsys.readouterr().out == f"{independence_test(released, 'x', 'y')}\n"
    for words, message in (
        (["test", "published"], "give another release or a file of public rows, or else --independent"),
        (["test", "published", "public.npy", "--independent=x,y"], "or else --independent"),
        (["test", "published", "--independent=x"], "expected two columns"),
        (["test", "published", "nowhere.csv"], "no such file"),
        (["test", "published", "nowhere"], "nowhere: no such file or folder"),
        (["test", "published", "published"], "both are the same measurement"),
        (["test", "published", "private.npy"], "has a ledger, so it is private"),
    ):
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_result_is_short():
    result = TestResult("x and y are independent", 1.0, 0.2)
    assert str(result) == "p = 0.2: x and y are independent: not rejected at the level 5 %"
    assert repr(result) == f"TestResult({result})"
