"""Constraints between columns: every released row meets them, and private rows are repaired one by one."""

import dataclasses
import datetime
import json

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import (
    Categorical,
    Datetime,
    Numeric,
    Ordinal,
    PrivacyBudget,
    Schema,
    estimate,
    load,
    measure_table,
    release_table,
)
from kme_jax.cli import main
from kme_jax.table import mixture, open_table
from kme_jax.table.check import check_constraints
from kme_jax.table.constraints import KINDS, Forbidden, Implies, Lookup, OneOf, Order, Sum, constraint_of
from kme_jax.table.constraints.exchange import Exchange
from kme_jax.table.evaluate import describe_table, evaluate_table
from kme_jax.table.expected import expected_errors
from kme_jax.table.release import check_columns
from tests import artifacts

pytestmark = pytest.mark.usefixtures("no_fits")

COLUMNS = {
    "zone": Categorical("zone", ("a", "b", "c"), nullable=True),
    "side": Ordinal("side", ("east", "west"), nullable=True),
    "begin": Datetime("begin", "2025-01-01", "2025-12-31T23:59", "minute", parts=True),
    "end": Datetime("end", "2025-01-01", "2026-06-30T23:59", "minute", nullable=True),
    "fare": Numeric("fare", 0, 300, step=0.01),
    "tip": Numeric("tip", 0, 100, step=0.01, nullable=True),
    "paid": Numeric("paid", 0, 400, step=0.01, nullable=True),
    "least": Numeric("least", 0, 10),
    "most": Numeric("most", -5, 25, step=0.5),
    "children": Numeric("children", 0, 9, integer=True),
    "oldest": Numeric("oldest", 0, 40, integer=True, nullable=True),
    "bus": Categorical("bus", ("no", "yes")),
    "tram": Categorical("tram", ("no", "yes")),
    "boat": Categorical("boat", (False, True)),
    "sex": Categorical("sex", ("f", "m")),
    "pregnant": Ordinal("pregnant", ("no", "yes")),
}
CONSTRAINTS = (
    Lookup("zone", "side", {"a": "east", "b": "west", "c": "west"}),
    Order("begin", "end"),
    Sum(("fare", "tip"), "paid"),
    Order("least", "most", scale="linear"),
    Implies("children=0", "oldest=missing", both_ways=True),
    OneOf(("bus=yes", "tram=yes", "boat=true")),
    Forbidden("sex=m and pregnant=yes"),
)
SCHEMA = Schema(tuple(COLUMNS.values()), constraints=CONSTRAINTS)
BIRTH = Datetime("birth", "1920-01-01", "2025-12-31", nullable=True)
VISIT = Datetime("visit", "2023-01-01", "2025-12-31")


def _random_codes(schema, num_rows, seed):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, column.num_codes, num_rows) for column in schema.columns], axis=1)


def _tables(codes, schema=SCHEMA):
    return {column.name: column.decode(codes[:, j]).to_pylist() for j, column in enumerate(schema.columns)}


def _check_values(rows):
    """All constraints, by the values themselves."""
    sides = {"a": "east", "b": "west", "c": "west", None: None}
    assert [sides[zone] for zone in rows["zone"]] == rows["side"]
    assert all(end is None or begin <= end for begin, end in zip(rows["begin"], rows["end"], strict=True))
    for fare, tip, paid in zip(rows["fare"], rows["tip"], rows["paid"], strict=True):
        assert paid is None if tip is None else round(fare + tip, 2) == paid
    assert all(least <= most for least, most in zip(rows["least"], rows["most"], strict=True))
    assert all((n == 0) == (age is None) for n, age in zip(rows["children"], rows["oldest"], strict=True))
    chosen = np.array([rows["bus"], rows["tram"], [{"True": "yes"}.get(boat, boat) for boat in rows["boat"]]])
    assert ((chosen == "yes").sum(0) <= 1).all()
    assert not any(s == "m" and p == "yes" for s, p in zip(rows["sex"], rows["pregnant"], strict=True))


def test_what_is_measured():
    assert SCHEMA.measured.names == (
        *("zone", "begin week", "begin weekday", "begin time", "end - begin", "fare", "tip", "least", "most - least"),
        *("children", "oldest", "one of bus=yes, tram=yes, boat=true", "sex", "pregnant"),
    )
    gap = SCHEMA.measured.columns[4]
    assert (gap.lower, gap.upper, gap.scale, gap.unit, gap.nullable) == (0, 545 * 1440 + 1439, "log", "minutes", True)
    assert SCHEMA.measured.measured is SCHEMA.measured
    assert Schema(SCHEMA.measured.columns).recoding.is_identity


def test_columns_that_follow_from_one_group_its_codes():
    """Of a ward follow its zone, the side of the zone, and its rent. Finest groups come first."""
    wards = tuple("abcdefgh")
    columns = (
        Numeric("age", 0, 100, integer=True),
        Categorical("ward", wards, nullable=True),
        Categorical("zone", ("x", "y", "z")),
        Categorical("side", ("east", "west")),
        Numeric("rent", 0, 3, integer=True),
    )
    zones = dict(zip((*wards, "missing"), "xxxyyyzzz", strict=True))
    rents = dict(zip((*wards, "missing"), (0, 0, 1, 2, 2, 2, 3, 3, 3), strict=True))
    sides = Lookup("zone", "side", {"x": "east", "y": "west", "z": "west"})
    constraints = (sides, Lookup("ward", "zone", zones), Lookup("ward", "rent", rents))
    families = Schema(columns, constraints=constraints).recoding.families
    assert list(families) == [1]
    as_groups = [[list(groups).index(group) for group in groups] for groups in families[1]]
    by_zone, by_side = [0, 0, 0, 3, 3, 3, 6, 6, 6], [0, 0, 0, 3, 3, 3, 3, 3, 3]
    assert as_groups == [[0, 0, 2, 3, 3, 3, 6, 6, 6], by_zone, by_side]
    assert Schema(columns).recoding.families == {}


def test_columns_of_billions_of_codes_have_no_groups():
    columns = (Datetime("t", "1900-01-01", "2100-01-01", "second"), Categorical("x", ("a", "b")))
    assert Schema(columns).recoding.families == {}


def test_values_of_a_number_are_at_most_sixteen_groups():
    codes = tuple(map(str, range(100)))
    columns = (Categorical("code", codes), Numeric("price", 0, 1000, integer=True))
    prices = Lookup("code", "price", {code: 10 * int(code) for code in codes})
    (groups,) = Schema(columns, constraints=(prices,)).recoding.families[0]
    np.testing.assert_array_equal(groups, np.arange(100) * 16 // 100)


@pytest.mark.parametrize("seed", range(3))
def test_any_codes_become_rows_that_meet_all_constraints(seed):
    """Codes of measured columns as they may be drawn, and those of private rows that break everything."""
    drawn = SCHEMA.released_codes(_random_codes(SCHEMA.measured, 3000, seed), seed)
    _check_values(_tables(drawn))
    assert not SCHEMA.recoding.broken(drawn).any()
    private = _random_codes(SCHEMA, 3000, seed)
    assert SCHEMA.recoding.broken(private).mean() > 0.9
    repaired = SCHEMA.released_codes(SCHEMA.measured_codes(private))
    _check_values(_tables(repaired))


def test_rows_that_meet_all_constraints_stay_as_they_are():
    """Measured codes say all of a row. The gap of coarse columns is on their grid, so nothing is rounded."""
    exact = [c for c in COLUMNS.values() if c.name not in ("least", "most", "end")]
    exact += [Datetime("end", "2025-01-01", "2026-06-30T23:59", "minute", nullable=True)]
    schema = Schema(exact, constraints=[c for c in CONSTRAINTS if "least" not in c.text and "end" not in c.text])
    codes = schema.released_codes(_random_codes(schema.measured, 2000, 0))
    assert np.array_equal(schema.released_codes(schema.measured_codes(codes)), codes)
    assert np.array_equal(schema.extended_codes(codes)[:, : len(exact)], codes)
    linear = Schema([COLUMNS["begin"], COLUMNS["end"]], constraints=[Order("begin", "end", scale="linear")])
    codes = linear.released_codes(_random_codes(linear.measured, 2000, 0))
    assert np.array_equal(linear.released_codes(linear.measured_codes(codes)), codes)


def test_each_row_is_repaired_by_itself():
    """The guarantee: one private row decides one row that is measured, and nothing else."""
    codes = _random_codes(SCHEMA, 150, 1)
    together = SCHEMA.measured_codes(codes)
    assert np.array_equal(np.concatenate([SCHEMA.measured_codes(codes[i : i + 1]) for i in range(150)]), together)
    order = np.random.default_rng(0).permutation(150)
    assert np.array_equal(SCHEMA.measured_codes(codes[order]), together[order])
    changed = codes.copy()
    changed[7] = _random_codes(SCHEMA, 1, 2)[0]
    assert np.flatnonzero((SCHEMA.measured_codes(changed) != together).any(1)).tolist() in ([7], [])
    assert SCHEMA.measured_codes(codes[:0]).shape == (0, 14)


def test_repairs():
    columns = [COLUMNS[name] for name in ("children", "oldest", "sex", "pregnant")]
    schema = Schema(columns, constraints=[c for c in CONSTRAINTS if isinstance(c, Implies | Forbidden)])
    codes = [[0, 12, 1, 1], [2, 41, 0, 1], [3, 5, 1, 0]]
    # A child without an age gets the middle of the bounds; a row with excluded values, the nearest others.
    assert schema.measured_codes(codes).tolist() == [[0, 41, 1, 0], [2, 20, 0, 1], [3, 5, 1, 0]]
    ages = Schema([Numeric("age", 0, 9, integer=True), Categorical("works", ("no", "yes", "unknown"))])
    rule = Implies("works=yes", "age>=5")
    assert dataclasses.replace(ages, constraints=[rule]).measured_codes([[3, 1], [3, 0]]).tolist() == [[5, 1], [3, 0]]
    times = Schema([Datetime(n, "2025-01-01", "2025-01-31") for n in "ab"], constraints=[Order("a", "b")])
    assert times.released_codes(times.measured_codes([[20, 3], [3, 20]])).tolist() == [[20, 20], [3, 20]]
    short = Schema(times.columns, constraints=[Order("a", "b", largest_gap=7)])
    assert short.released_codes(short.measured_codes([[3, 20]])).tolist() == [[3, 10]]
    exactly = Schema([COLUMNS["bus"], COLUMNS["tram"]], constraints=[OneOf(("bus=yes", "tram=yes"), required=True)])
    assert exactly.released_codes(exactly.measured_codes([[0, 0], [1, 1], [0, 1]])).tolist() == [[1, 0], [1, 0], [0, 1]]


def test_conditions_may_be_on_what_is_measured_instead():
    children = [COLUMNS["children"], *(dataclasses.replace(COLUMNS["oldest"], name=n) for n in ("youngest", "eldest"))]
    rules = [Implies("children=0", "youngest=missing", both_ways=True), Order("youngest", "eldest")]
    rules.append(Implies("children=0", "eldest - youngest=missing", both_ways=True))
    calm = [Implies("begin weekday=Sunday", "fare=0")]
    for columns, constraints in ((children, rules), ([COLUMNS["begin"], COLUMNS["fare"]], calm)):
        schema = Schema(columns, constraints=constraints)
        codes = schema.released_codes(_random_codes(schema.measured, 2000, 0))
        assert not schema.recoding.broken(codes).any()
        repaired = schema.released_codes(schema.measured_codes(_random_codes(schema, 2000, 1)))
        assert not schema.recoding.broken(repaired).any()
        rows = _tables(repaired, schema)
        if "eldest" in rows:
            missing = np.array([[age is None for age in rows[name]] for name in ("youngest", "eldest")])
            assert np.array_equal(missing, np.array([rows["children"]] * 2) == 0)
        else:
            sundays = [begin.weekday() == 6 for begin in rows["begin"]]
            assert all(fare == 0 for fare, sunday in zip(rows["fare"], sundays, strict=True) if sunday)


def test_values_come_from_similar_rows():
    """A third of the rows needs another value. It depends on other columns as in the rows that have one."""
    rng = np.random.default_rng(0)
    works, age = rng.random(20_000) < 0.7, rng.integers(0, 60, 20_000)
    wage = np.where(rng.random(20_000) < 0.5, 1000, age)
    columns = [
        Categorical("works", ("no", "yes")),
        Numeric("age", 0, 59, integer=True),
        Numeric("wage", 0, 999, integer=True, nullable=True),
    ]
    schema = Schema(columns, constraints=[Implies("works=no", "wage=missing", both_ways=True)])
    codes = schema.released_codes(np.stack([works, age, wage], axis=1), seed=1)
    assert np.array_equal(codes[:, 2] == 1000, ~works)
    assert np.array_equal(codes[:, :2], np.stack([works, age], axis=1))
    assert np.corrcoef(codes[works, 1], codes[works, 2])[0, 1] > 0.98


def test_exchanges_keep_the_distribution():
    """Values are exchanged between rows. So a column that gives way has the counts that it had, as far as possible."""
    rng = np.random.default_rng(0)
    child, age = rng.random(20_000) < 0.2, rng.integers(0, 60, 20_000)
    school = np.where(rng.random(20_000) < 0.2, 0, rng.integers(1, 5, 20_000))
    columns = [
        Categorical("child", ("no", "yes")),
        Numeric("age", 0, 59, integer=True),
        Categorical("school", ("none", "a", "b", "c", "d")),
    ]
    drawn = np.stack([child, age, school], axis=1).astype(np.int64)
    for both_ways, most in ((False, 0), (True, abs(int((school == 0).sum() - child.sum())))):
        rule = Implies("child=yes", "school=none", both_ways=both_ways)
        codes = Schema(columns, constraints=[rule]).released_codes(drawn, seed=1)
        assert np.array_equal(codes[:, :2], drawn[:, :2])
        changes = np.abs(np.bincount(codes[:, 2], minlength=5) - np.bincount(school, minlength=5)).sum() / 2
        assert changes <= max(most, 40)
        assert (codes[child, 2] == 0).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_any_codes_and_bins_become_rows_that_meet_all_constraints(seed):
    """Each column has at most six bins. The rows are the same for the same seed."""
    codes = _random_codes(SCHEMA.measured, 3000, seed)
    bins = codes * 6 // [column.num_codes for column in SCHEMA.measured.columns]
    drawn = SCHEMA.released_codes(codes, seed, bins)
    assert not SCHEMA.recoding.broken(drawn).any()
    _check_values(_tables(drawn))
    assert np.array_equal(drawn, SCHEMA.released_codes(codes, seed, bins))
    assert SCHEMA.released_codes(codes[:0], seed, codes[:0]).shape == (0, len(SCHEMA.columns))


def _children(rng, num_rows=20_000):
    """Codes of ages, shuffled within bins of ten years, and of three columns that are 0 for children below 15."""
    age = rng.integers(0, 60, num_rows)
    pupil, vote, debt = np.where(age < 15, 0, rng.integers(1, 4, (3, num_rows)))
    drawn = np.array(age)
    for decade in range(6):
        drawn[age // 10 == decade] = rng.permutation(age[age // 10 == decade])
    columns = [
        Numeric("age", 0, 59, integer=True),
        *(Categorical(name, ("none", "a", "b", "c")) for name in ("pupil", "vote", "debt")),
    ]
    schema = Schema(columns, constraints=[Implies("age<15", "pupil=none", both_ways=True)])
    return schema, np.stack([drawn, pupil, vote, debt], axis=1)


def test_values_within_a_bin_are_exchanged_before_others(rng):
    """A sixth of the rows is between 10 and 19, where the bin straddles 15. Nearly all of those that break the clause
    exchange ages, so pupil fits the other columns as before. Without bins, pupil gives way in each of them."""
    schema, codes = _children(rng)
    bins = np.concatenate([codes[:, :1] // 10, codes[:, 1:]], axis=1)
    broken = schema.recoding.broken(codes)
    assert broken.sum() > 1000
    rows = schema.released_codes(codes, 1, bins)
    assert not schema.recoding.broken(rows).any()
    assert (rows[:, 1] != codes[:, 1]).mean() < 0.02
    assert np.array_equal(rows[:, 2:], codes[:, 2:])
    assert np.array_equal(rows[:, 0] // 10, codes[:, 0] // 10)
    assert np.array_equal(np.sort(rows, axis=0), np.sort(codes, axis=0))
    without = schema.released_codes(codes, 1)
    assert np.array_equal(without[:, 1] != codes[:, 1], broken)


def test_the_state_of_an_exchange(rng):
    """After an exchange, what was counted before is what counting again says, and columns have the values they had."""
    schema, codes = _children(rng, 2000)
    codes[::7] = codes[rng.permutation(len(codes))[: len(codes[::7])], :]
    codes[:, 3] = rng.permutation(codes[:, 3])
    recoding, names = schema.recoding, list(schema.measured.names)
    clauses = [clause for group in recoding.clauses.values() for clause in group]
    before = Exchange.create(codes, codes // 7, names, clauses)
    after = Exchange.create(codes, codes // 7, names, clauses)
    after.run(np.random.default_rng(0))
    again = Exchange.create(after.codes, after.codes // 7, names, clauses)
    assert not np.array_equal(after.codes, codes)
    assert np.array_equal(np.sort(after.codes, axis=0), np.sort(codes, axis=0))
    assert np.array_equal(after.groups, again.groups)
    assert np.array_equal(after.met, again.met)

    def counts(exchange):
        cells = np.eye(len(exchange.excess), dtype=int)[exchange.groups]  # [n, m, D]
        pairs = np.einsum("nad,nbe->de", cells, cells)
        return pairs * (1 - np.eye(len(pairs), dtype=int))

    assert np.array_equal(after.excess, counts(after) - counts(before))
    assert recoding.broken(codes).sum() > 20 * recoding.broken(after.codes).sum()


@pytest.mark.parametrize("is_fitted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_releases_exchange_values_within_bins(is_fitted, rng, no_fits, monkeypatch):
    """Clauses hold in releases, and columns that depend on the one that gives way do so after it."""
    if is_fitted:
        monkeypatch.setattr(mixture, "fit", no_fits)
    schema, _ = _children(rng)
    age = rng.integers(0, 60, 8000)
    codes = np.stack([age, *np.where(age < 15, 0, rng.integers(1, 4, (3, len(age))))], axis=1)
    released = release_table(schema.decode(codes), schema, budget=PrivacyBudget(3.0, 1e-6), secure=False)
    for rows in (released.table, released.sample(3000, seed=5), released.sample(500, where="vote=a and age>=12")):
        codes = schema.encode(rows)
        assert not schema.recoding.broken(codes).any()
        assert not is_fitted or ((codes[:, 1] == 0) == (codes[:, 2] == 0)).mean() > 0.95


def test_parts_of_times():
    day = Datetime("day", "2024-02-27", "2025-03-05", nullable=True, parts=True)
    schema = Schema([day])
    assert schema.measured.names == ("day week", "day weekday")
    codes = np.arange(day.num_codes)[:, None]
    measured = schema.measured_codes(codes)
    assert np.array_equal(schema.released_codes(measured), codes)
    dates = pa.array(day.decode(codes[:-1, 0])).to_pylist()
    assert measured[:-1, 1].tolist() == [date.weekday() for date in dates]
    hours = Schema([Datetime("at", "2025-01-01", "2025-03-01T05:00", "hour", parts=True)])
    codes = np.arange(hours.columns[0].num_codes)[:, None]
    assert hours.measured.names == ("at week", "at weekday", "at time")
    assert np.array_equal(hours.released_codes(hours.measured_codes(codes)), codes)
    assert hours.measured_codes([[30]]).tolist() == [[0, 3, 6]]  # Thursday 2 January, 6:00
    drawn = _random_codes(hours.measured, 2000, 0)
    found = hours.measured_codes(hours.released_codes(drawn))
    assert np.array_equal(found[:, 2], drawn[:, 2])
    # Weekdays that the first or the last week does not have are exchanged with other rows.
    assert np.array_equal(np.bincount(found[:, 1]), np.bincount(drawn[:, 1]))
    assert np.sum(found[:, 0] == 0) == np.sum(drawn[:, 0] == 0)
    assert found[found[:, 0] == 0, 1].min() == 2  # 1 January is a Wednesday


def test_a_wrong_value_of_a_measured_column_is_named():
    day = Datetime("day", "2025-01-01", "2025-03-05", parts=True)
    with pytest.raises(ValueError, match="'Sonntag' is not one of its values, Monday"):
        Schema([day, COLUMNS["fare"]], constraints=[Implies("day weekday=Sonntag", "fare=0")])


def test_constraints_may_be_about_weekdays_of_weeks_that_a_bound_cuts():
    day = Datetime("day", "2025-01-01", "2025-03-05", parts=True)
    schema = Schema([day, COLUMNS["fare"]], constraints=[Implies("fare>=150", "day weekday=Monday")])
    released = schema.released_codes(_random_codes(schema.measured, 500, 0))
    assert not schema.recoding.broken(released).any()


def test_chains_and_sums_of_what_follows():
    numbers = [Numeric(name, 0, 9, integer=True) for name in "abc"] + [Numeric("sum", 0, 27, integer=True)]
    chain = [Sum(("a", "b", "c"), "sum"), Order("b", "c"), Order("a", "b")]
    schema = Schema(numbers, constraints=chain)
    assert schema.measured.names == ("a", "b - a", "c - b")
    codes = schema.released_codes(_random_codes(schema.measured, 500, 0))
    assert (np.diff(codes[:, :3], axis=1) >= 0).all()
    assert np.array_equal(codes[:, :3].sum(1), codes[:, 3])
    assert schema.recoding.addends("sum") == ("a", "a", "b - a", "a", "b - a", "c - b")


def _people(num_rows=4000, seed=0):
    rng = np.random.default_rng(seed)
    zone = rng.choice(["a", "b", "c"], num_rows)
    begin = (
        np.datetime64("2025-01-06T00:00") + 60 * rng.integers(8, 18, num_rows) + 1440 * rng.integers(0, 300, num_rows)
    )
    minutes = np.exp(rng.normal(2.5 + (zone == "c"), 0.5, num_rows)).astype(int)
    fare = np.round(3 + minutes * 0.9, 2)
    tip = np.round(fare * 0.1 * (rng.random(num_rows) < 0.5), 2)
    return pa.table(
        {
            "zone": zone,
            "side": np.where(zone == "a", "east", "west"),
            "begin": begin.astype("datetime64[s]"),
            "end": (begin + minutes).astype("datetime64[s]"),
            "fare": fare,
            "tip": tip,
            "paid": np.round(fare + tip, 2),
        }
    )


PEOPLE = Schema(
    [
        dataclasses.replace(COLUMNS[name], nullable=False)
        for name in ("zone", "side", "begin", "end", "fare", "tip", "paid")
    ],
    constraints=[*CONSTRAINTS[:3], Implies("zone=c", "tip=0")],
)


@pytest.fixture(scope="module")
def released():
    return release_table(_people(), PEOPLE, budget=PrivacyBudget(10.0, 1e-5), seed=0, secure=False)


class TestRelease:
    def test_rows(self, released):
        codes = PEOPLE.encode(released.table)
        assert released.table.num_rows == 4000
        assert not PEOPLE.recoding.broken(codes).any()
        hours = np.array([begin.hour for begin in released.table["begin"].to_pylist()])
        assert np.mean((hours >= 8) & (hours < 18)) > 0.97

    @pytest.mark.long
    def test_columns_of_a_constraint_depend_on_others(self, no_fits, monkeypatch):
        monkeypatch.setattr(mixture, "fit", no_fits)
        released = release_table(_people(), PEOPLE, budget=PrivacyBudget(10.0, 1e-5), seed=0, secure=False)
        assert not PEOPLE.recoding.broken(PEOPLE.encode(released.table)).any()
        frame = released.to_pandas()
        minutes = (frame.end - frame.begin).dt.total_seconds() / 60
        assert np.corrcoef(minutes, frame.fare)[0, 1] > 0.85

    def test_conditions_are_on_released_columns(self, released):
        conditions = ("end>=2025-07-01", "side=west", "paid>=20")
        rows = released.sample(500, seed=1, where=conditions)
        weighted = released.sample(500, seed=1, where=conditions, weighted=True)
        for table in (rows, weighted.drop_columns(["weight"])):
            assert table.num_rows == 500
            assert min(table["paid"].to_pylist()) >= 20
            assert min(table["end"].to_pylist()).month >= 7
            assert set(table["side"].to_pylist()) == {"west"}
            assert not PEOPLE.recoding.broken(PEOPLE.encode(table)).any()
        assert sum(weighted["weight"].to_pylist()) == pytest.approx(1)
        sundays = released.sample(50, where="begin weekday=Sunday and end - begin>=10").to_pylist()
        assert all(row["begin"].weekday() == 6 and (row["end"] - row["begin"]).seconds >= 600 for row in sundays)
        with pytest.raises(ValueError, match="there are no such rows"):
            released.sample(10, where="side=east and zone=b")

    def test_measured_columns_are_counted(self):
        times = [Datetime(f"d{i}", "2025-01-01", "2025-02-01", "hour", parts=True) for i in range(70)]
        with pytest.raises(ValueError, match="at most 200 columns can be released and measured, got 210"):
            measure_table(pa.table({c.name: [] for c in times}), Schema(times), budget=PrivacyBudget(1.0, 1e-5))

    def test_a_release_is_saved_and_shown(self, released, tmp_path, capsys):
        released.save(tmp_path / "release")
        again = load(tmp_path / "release")
        assert again.schema == PEOPLE
        assert again.table.cast(released.table.schema).equals(released.table)
        assert again.sample(20, seed=3).equals(released.sample(20, seed=3))
        assert "constraints: zone determines side; begin <= end" in again.statement["public_inputs"][1]
        page = (tmp_path / "release/report.html").read_text()
        assert "begin weekday" in page
        assert page.count("measured, but no column of the table") == 4
        assert page.count("Not measured by itself: it follows from") == 4
        assert "it follows from begin and end - begin, and has" in page
        assert "4,000 rows and 7 columns" in page
        document = json.loads((tmp_path / "release/schema.json").read_text())
        assert document["schema_version"] == 2
        assert main(["show", str(tmp_path / "release")]) == 0
        assert "every row meets: fare + tip = paid" in capsys.readouterr().out

    def test_answers(self, released):
        truth = _people().to_pandas()
        truth.loc[truth.zone == "c", "tip"] = 0  # such rows are repaired before they are measured
        truth["paid"] = truth.fare + truth.tip
        minutes = (truth.end - truth.begin).dt.total_seconds() / 60
        for question, value in [
            ("mean(paid)", truth.paid.mean()),
            ("sum(paid)", truth.paid.sum()),
            ("mean(paid) where zone=a", truth.paid[truth.zone == "a"].mean()),
            ("mean(end - begin)", minutes.mean()),
            ("share(side=east)", (truth.side == "east").mean()),
            ("mean(fare) where side=west", truth.fare[truth.side == "west"].mean()),
            ("share(begin time>=720) where side=east", (truth.begin.dt.hour[truth.side == "east"] >= 12).mean()),
            ("count(zone=b) where side=west", (truth.zone == "b").sum()),
            ("share(begin time>=720)", (truth.begin.dt.hour >= 12).mean()),
            ("share(begin weekday=Monday)", (truth.begin.dt.day_of_week == 0).mean()),
        ]:
            answer = estimate(released, question)
            room = 3 * answer.standard_error
            assert answer.value - room <= value <= answer.value + room, question
        assert set(estimate(released, "mean(fare) by side")) == {"east", "west"}
        groups = estimate(released, "share(zone=a) by begin weekday")
        assert set(groups) == {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
        for question in (
            "median(paid)",
            "sd(paid)",
            "correlation(paid, fare)",
            "share(paid>=20) by side",
        ):
            with pytest.raises(ValueError, match="query"):
                estimate(released, question)

    def test_errors_of_the_measured_columns(self, released):
        rows = _people()
        errors = evaluate_table(released, rows)
        derived = {column["name"]: column for column in errors["columns"] if column.get("derived")}
        assert list(derived) == ["begin week", "begin weekday", "begin time", "end - begin"]
        assert [column["name"] for column in errors["columns"]][: len(PEOPLE.names)] == list(PEOPLE.names)
        weekdays = [
            np.bincount([begin.weekday() for begin in table["begin"].to_pylist()], minlength=7) / 4000
            for table in (rows, released.table)
        ]
        expected = np.abs(weekdays[0] - weekdays[1]).sum() / 2
        assert derived["begin weekday"]["total_variation"] == pytest.approx(expected)
        assert 0 < derived["begin weekday"]["yardstick"] < 0.1
        times = zip(rows["begin"].to_pylist(), rows["end"].to_pylist(), strict=True)
        minutes = [(end - begin).total_seconds() / 60 for begin, end in times]
        assert derived["end - begin"]["mean"]["private"] == pytest.approx(np.mean(minutes))
        singles = [column["total_variation"] for column in errors["columns"] if not column.get("derived")]
        assert errors["mean_total_variation"]["1"] == pytest.approx(np.mean(singles))
        text = describe_table(errors)
        assert "derived: begin weekday" in text
        assert text.splitlines()[-1].startswith("derived: measured instead")

    def test_others_know_the_measured_columns(self, released):
        names = [column.name for column in expected_errors(PEOPLE, 4000, PrivacyBudget(1.0, 1e-5)).columns]
        assert names == list(PEOPLE.measured.names)
        broken = check_constraints(open_table(_people().set_column(1, "side", pa.array(["east"] * 4000)), PEOPLE))
        assert broken["fare + tip = paid"] == 0
        assert broken["zone determines side"] > 2000

    def test_the_target_is_measured(self):
        with pytest.raises(ValueError, match="'side' is not measured itself; choose one of zone"):
            measure_table(_people(), PEOPLE, budget=PrivacyBudget(1.0, 1e-5), target="side", secure=False)
        with pytest.raises(ValueError, match="the schema drops 'note'; choose one of zone"):
            check_columns(dataclasses.replace(PEOPLE, dropped=("note",)), "note")
        assert measure_table(_people(), PEOPLE, budget=PrivacyBudget(1.0, 1e-5), target="zone", secure=False)


def test_json(tmp_path):
    path = tmp_path / "schema.json"
    SCHEMA.write(path)
    assert Schema.read(path) == SCHEMA
    assert {constraint.kind for constraint in CONSTRAINTS} == set(KINDS)
    assert all(constraint_of(one.to_json(), 1) == one for one in CONSTRAINTS)
    assert "7 constraints" in repr(SCHEMA)


A, B, C = (Numeric(name, 0, 9, integer=True) for name in "abc")
YES = [Categorical(name, ("no", "yes")) for name in ("x", "y", "z")]


@pytest.mark.parametrize(
    ("columns", "entries", "message"),
    [
        ([A, B], [7], "constraint 1: expected an object with a kind"),
        ([A, B], [{"kind": "sorted"}], "constraint 1: unknown kind 'sorted'"),
        ([A, B], [{"kind": "order", "smaller": "a"}], r"constraint 1 \(order\): larger is not given"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": "b", "gap": 1}], "unknown field 'gap'"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": "d"}], "there is no column 'd'"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": "a"}], "are the same column"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": 3}], "larger must be the name of a column, got 3"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": "b", "largest_gap": 0}], "must be a positive number"),
        ([A, B], [{"kind": "order", "smaller": "a", "larger": "b", "scale": "cubic"}], "scale must be"),
        ([A, YES[0]], [{"kind": "order", "smaller": "a", "larger": "x"}], "must both be numeric, or both datetime"),
        (
            [A, Numeric("b", 0, 5, integer=True)],
            [{"kind": "order", "smaller": "a", "larger": "b"}],
            "the upper bound of b is below that of a",
        ),
        (
            [A, Numeric("b", 50, 60, integer=True)],
            [{"kind": "order", "smaller": "a", "larger": "b", "largest_gap": 20}],
            "largest_gap must be above 50",
        ),
        (
            [Datetime("a", "2025-01-01", "2025-01-09"), Datetime("b", "2025-01-01", "2025-01-09", "hour")],
            [{"kind": "order", "smaller": "a", "larger": "b"}],
            "need the same resolution",
        ),
        (
            [A, B],
            [{"kind": "order", "smaller": "a", "larger": "b"}, {"kind": "order", "smaller": "b", "larger": "a"}],
            "constraints go in a circle",
        ),
        (
            [A, B, C],
            [{"kind": "order", "smaller": "a", "larger": "c"}, {"kind": "order", "smaller": "b", "larger": "c"}],
            r"constraint 2 \(order\): c already follows from other columns",
        ),
        ([A, B, C], [{"kind": "sum", "parts": ["a", "b"], "total": "c"}], "the parts sum to 0 to 18, and c is from 0"),
        ([A, B, C], [{"kind": "sum", "parts": ["a"], "total": "c"}], "list of 2 or more different texts"),
        ([A, B, C], [{"kind": "sum", "parts": "ab", "total": "c"}], "parts must be a list of texts"),
        ([A, B, C], [{"kind": "sum", "parts": ["a", "c"], "total": "c"}], "is one of the parts"),
        ([A, B, YES[0]], [{"kind": "sum", "parts": ["a", "b"], "total": "x"}], "x must be a numeric column"),
        ([A, Numeric("b", 0, 1), C], [{"kind": "sum", "parts": ["a", "b"], "total": "c"}], "b needs a step"),
        (
            [A, Numeric("b", 0, 1, step=0.1), Numeric("c", 0, 10, integer=True)],
            [{"kind": "sum", "parts": ["a", "b"], "total": "c"}],
            "steps of 1 of c miss sums of its parts",
        ),
        (
            [A, dataclasses.replace(B, nullable=True), Numeric("c", 0, 18, integer=True)],
            [{"kind": "sum", "parts": ["a", "b"], "total": "c"}],
            "c must be nullable",
        ),
        (YES, [{"kind": "lookup", "column": "x", "determines": "y", "values": {"no": "yes"}}], "values lacks yes"),
        (YES, [{"kind": "lookup", "column": "x", "determines": "y", "values": 3}], "values must be an object"),
        (
            YES,
            [{"kind": "lookup", "column": "x", "determines": "y", "values": {"no": "yes", "yes": "maybe"}}],
            "'maybe' is not one of its values",
        ),
        ([A, *YES], [{"kind": "lookup", "column": "a", "determines": "y", "values": {}}], "must be a categorical"),
        (YES, [{"kind": "lookup", "column": "x", "determines": "x", "values": {}}], "are the same"),
        (
            [Categorical("x", ("no",), nullable=True), YES[1]],
            [{"kind": "lookup", "column": "x", "determines": "y", "values": {"no": "no"}}],
            "values lacks 'missing'",
        ),
        (YES, [{"kind": "one of", "of": ["x=yes"]}], "2 or more different texts"),
        (YES, [{"kind": "one of", "of": ["x=yes", "x=no"]}], "'x=no' must be about one column"),
        ([A, *YES], [{"kind": "one of", "of": ["x=yes", "a=1"]}], "a must have two values"),
        (YES, [{"kind": "one of", "of": ["x=yes", "y=yes"], "required": 1}], "required must be true or false"),
        (YES, [{"kind": "implies", "when": "x=yes", "then": "x=no"}], "when and then are both about x"),
        (YES, [{"kind": "implies", "when": "x=yes", "then": "y=no and z=no"}], "then is about 2 columns"),
        (YES, [{"kind": "implies", "when": "", "then": "y=no"}], "when must be conditions as text"),
        (YES, [{"kind": "implies", "when": "w=yes", "then": "y=no"}], "there is no column 'w'"),
        (YES, [{"kind": "implies", "when": "x=perhaps", "then": "y=no"}], "'perhaps' is not one of its values"),
        ([A, B], [{"kind": "forbidden", "when": "a<0"}], "no value of a meets it"),
        ([A, B], [{"kind": "forbidden", "when": "a>=0"}], "no value of a is left"),
        (
            YES,
            [
                {"kind": "implies", "when": "x=yes", "then": "y=yes"},
                {"kind": "implies", "when": "z=yes", "then": "y=no"},
            ],
            "no value of y is left if x is yes, z is yes",
        ),
        (
            YES,
            [
                {"kind": "implies", "when": "x=yes", "then": "y=yes"},
                {"kind": "implies", "when": "y=yes", "then": "x=yes"},
            ],
            "constraints go in a circle",
        ),
        (
            [A, B, *YES],
            [
                {"kind": "order", "smaller": "a", "larger": "b"},
                {"kind": "implies", "when": "x=yes", "then": "b=9"},
            ],
            "b follows from a, so nothing else can be said of it",
        ),
        (
            [A, B, Numeric("b - a", 0, 1)],
            [{"kind": "order", "smaller": "a", "larger": "b"}],
            "b - a is the name of a column that is measured",
        ),
    ],
)
def test_bad_constraints(tmp_path, capsys, columns, entries, message):
    """One line that names the constraint, from Python and from a file."""
    document = {"schema_version": 2, "columns": [column.to_json() for column in columns], "constraints": entries}
    with pytest.raises(ValueError, match=message) as caught:
        Schema.from_json(document)
    assert "\n" not in str(caught.value)
    (tmp_path / "schema.json").write_text(json.dumps(document))
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert main(["check", str(tmp_path / "rows.csv"), f"--schema={tmp_path / 'schema.json'}"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_other_bad_arguments():
    with pytest.raises(ValueError, match="schema_version must be 2, because there are constraints"):
        Schema.from_json(
            {"schema_version": 1, "columns": [A.to_json(), B.to_json()], "constraints": [Order("a", "b").to_json()]}
        )
    columns = [A.to_json(), B.to_json(), {"name": "row", "kind": "id"}]
    with pytest.raises(ValueError, match="schema_version must be 3, because there is a column of kind id"):
        Schema.from_json({"schema_version": 1, "columns": columns, "constraints": [Order("a", "b").to_json()]})
    with pytest.raises(ValueError, match="constraints must be a list"):
        Schema.from_json({"schema_version": 2, "columns": [A.to_json()], "constraints": {}})
    with pytest.raises(ValueError, match="constraints: expected a list"):
        Schema([A, B], constraints=Order("a", "b"))
    with pytest.raises(ValueError, match="parts must be true or false"):
        Datetime("a", "2025-01-01", "2025-02-01", parts=1)


def test_contradictions_that_cannot_happen_are_none():
    """Both conditions together are excluded by another constraint."""
    exclusive = [
        Implies("x=yes", "z=no"),
        Implies("x=yes", "y=yes"),
        Implies("z=yes", "y=no"),
    ]
    schema = Schema(YES, constraints=exclusive)
    codes = schema.released_codes(_random_codes(schema, 100, 0))
    assert not schema.recoding.broken(codes).any()


# --- found by an attack on the first version -------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_values_at_equal_upper_bounds_have_codes():
    """The last value of a grid is its upper bound, though steps of a float may miss it. No private cell is an error."""
    third = 1 / 3
    columns = [
        Numeric("a", -216.3, 131.4),
        Numeric("b", -396.6, 131.4, step=third),
        Numeric("c", 0, 10 * third, step=third),
        Numeric("t", -396.6, 131.4 + 10 * third, step=third),
    ]
    schema = Schema(columns, constraints=[Order("a", "b"), Sum(("b", "c"), "t")])
    rows = pa.table({"a": [1.0, 131.4, 131.3999], "b": [2.0, 131.4, 5.0], "c": [1.0] * 3, "t": [3.0] * 3})
    codes = schema.released_codes(schema.measured_codes(schema.encode(rows)))
    released = schema.decode(codes).to_pydict()
    assert released["b"][1] == 131.4
    assert all(a <= b for a, b in zip(released["a"], released["b"], strict=True))
    for lower in np.random.default_rng(0).uniform(-50, 9, 200).round(2).tolist():
        pair = Schema([Numeric("a", 0, 9.9), Numeric("b", lower, 9.9)], constraints=[Order("a", "b")])
        highest = np.full((1, 2), 2**16 - 1)
        assert np.array_equal(pair.released_codes(pair.measured_codes(highest)), highest)


@pytest.mark.parametrize(
    ("columns", "constraints", "message"),
    [
        ([A, B, *YES], [Order("a", "b"), Implies("x=yes", "b - a>=5")], "b - a may change at a bound of b"),
        ([A, B, *YES], [Order("a", "b"), Forbidden("b - a<5 and x=yes")], "b - a may change at a bound of b"),
        (
            [Datetime("d", "2025-01-07", "2025-01-10", parts=True), *YES],
            [Implies("x=yes", "d weekday=Monday")],
            "d weekday may change at a bound of d",
        ),
        (
            [Datetime("d", "2025-01-01", "2025-06-10", parts=True), *YES],
            [Forbidden("d week=1 and x=yes")],
            "d week may change",
        ),
        ([A, B, C, Numeric("d", 0, 18, integer=True), Numeric("b - a", 0, 18, integer=True)],
         [Order("a", "b"), Sum(("b", "c"), "b - a")], "b - a is the name of a column that is measured"),
        ([dataclasses.replace(A, nullable=True), B], [Order("a", "b", largest_gap=3)], "a may be missing"),
        ([dataclasses.replace(A, lower=5, nullable=True), B], [Order("a", "b")], "a may be missing"),
        ([Numeric("a", -30, 5, integer=True), Numeric("b", -9, 30, integer=True)],
         [Order("a", "b", largest_gap=20)], "largest_gap must be above 21"),
        ([A, B], [Order("a", "b", largest_gap=2.5)], "a number of steps of 1, got 2.5"),
        ([BIRTH, VISIT, *YES], [Order("birth", "visit"), Implies("x=yes", "birth<2000-01-01")],
         'say it of visit - birth, or give the order "follows": "larger"'),
        ([A, dataclasses.replace(B, lower=-5)], [Order("a", "b", follows="smaller")], "of b could have no place"),
        ([A, dataclasses.replace(B, nullable=True)], [Order("a", "b", largest_gap=3, follows="smaller")],
         "b may be missing"),
        ([Numeric("a", 0, 9, step=0.5), Numeric("b", 0, 9, step=0.5)], [Order("a", "b", largest_gap=0.7)], "got 0.7"),
        ([COLUMNS["begin"], dataclasses.replace(COLUMNS["end"], parts=True)], [Order("begin", "end")], "end has parts"),
        ([Numeric("a", 0, 1000000.5, step=1.0000005), Numeric("b", 0, 3, step=0.5), Numeric("t", 0, 1000010, step=0.5)],
         [Sum(("a", "b"), "t")], "miss sums of its parts: see a"),
    ],
)  # fmt: skip
def test_constraints_that_could_not_hold(columns, constraints, message):
    with pytest.raises(ValueError, match=message):
        Schema(columns, constraints=constraints)


def test_lookups_that_a_file_cannot_hold():
    for values, message in (
        ({"no": np.int64(1), "yes": 2}, "must be texts or Python numbers"),
        ({1: 3, "1": 5}, "is there twice"),
        (["ab", "cd"], "values must be an object"),
    ):
        with pytest.raises(ValueError, match=message):
            Lookup("x", "y", values)


def test_gaps_and_parts_that_do_not_change():
    """Clauses about them hold, because no bound changes them."""
    room = [A, Numeric("b", 0, 18, integer=True), *YES]
    year = [Datetime("d", "2025-01-01", "2025-12-31T10", "hour", parts=True), *YES]
    for columns, constraints in (
        (room, [Order("a", "b", largest_gap=9), Implies("x=yes", "b - a>=5")]),
        (year, [Implies("x=yes", "d weekday=Monday"), Forbidden("y=yes and d time>=20")]),
    ):
        schema = Schema(columns, constraints=constraints)
        codes = schema.released_codes(_random_codes(schema.measured, 3000, 0))
        assert not schema.recoding.broken(codes).any()


def test_a_gap_of_mixed_steps_is_exact():
    pairs = [
        (Numeric("a", 0, 20, integer=True, step=2), Numeric("b", 0, 25, step=0.25)),
        (Numeric("a", 0, 20, integer=True), Numeric("b", 0, 25.5, step=0.5)),
        (Numeric("a", -30, 20, integer=True, step=5), Numeric("b", 0, 40, integer=True)),
    ]
    for columns in pairs:
        schema = Schema(columns, constraints=[Order("a", "b")])
        codes = schema.released_codes(_random_codes(schema.measured, 500, 0))
        assert np.array_equal(schema.released_codes(schema.measured_codes(codes)), codes)
        assert not schema.recoding.broken(codes).any()


@pytest.mark.parametrize(
    "columns",
    [
        (BIRTH, VISIT),
        (Datetime("birth", "1920-01-01", "2025-12-31"), dataclasses.replace(VISIT, nullable=True)),
        (Numeric("birth", 0, 100, step=0.5), Numeric("visit", 80, 101.5, step=0.25)),
    ],
)
def test_the_column_with_wide_bounds_follows(columns):
    """Both values are as they were, in every row that has an order, and no released row breaks it."""
    schema = Schema(columns, constraints=[Order("birth", "visit")])
    assert schema.measured.names == ("visit - birth", "visit")
    codes = schema.released_codes(_random_codes(schema.measured, 3000, 0))
    assert not schema.recoding.broken(codes).any()
    assert np.array_equal(schema.released_codes(schema.measured_codes(codes)), codes)
    private = _random_codes(schema, 3000, 1)
    repaired, broken = schema.released_codes(schema.measured_codes(private)), schema.recoding.broken(private)
    assert np.array_equal(repaired[~broken], private[~broken])
    assert broken.any()
    assert np.array_equal(repaired[:, 1], private[:, 1])
    assert not schema.recoding.broken(repaired).any()


def test_which_column_follows_may_be_said():
    days = [Datetime(name, "2025-01-01", "2025-12-31") for name in ("begin", "end")]
    for columns, order, measured in (
        ((BIRTH, VISIT), Order("birth", "visit", follows="larger"), ("birth", "visit - birth")),
        (days, Order("begin", "end"), ("begin", "end - begin")),
        (days, Order("begin", "end", largest_gap=9, follows="smaller"), ("end - begin", "end")),
    ):
        schema = Schema(columns, constraints=[order])
        assert schema.measured.names == measured
        assert Schema.from_json(schema.to_json()) == schema
        codes = schema.released_codes(_random_codes(schema.measured, 1000, 0))
        assert not schema.recoding.broken(codes).any()
    # The day of birth follows from the first visit, so the second one follows from it.
    twice = Schema((BIRTH, VISIT, dataclasses.replace(VISIT, name="last")),
                   constraints=[Order("birth", "visit"), Order("birth", "last")])  # fmt: skip
    assert twice.measured.names == ("visit - birth", "visit", "last - birth")


def test_a_column_with_narrow_bounds_is_as_exact_as_without_an_order():
    """If it followed, errors of ages in a century would carry most days of three years to the first or the last one."""
    rng = np.random.default_rng(0)
    visit = np.datetime64("2023-01-01") + rng.integers(0, 1096, 4000)
    rows = pa.table({"birth": visit - rng.integers(0, 90 * 365, 4000), "visit": visit})
    schema = Schema((dataclasses.replace(BIRTH, nullable=False), VISIT), constraints=[Order("birth", "visit")])
    released = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False).synthesise().table
    years = np.bincount([day.year - 2023 for day in released["visit"].to_pylist()], minlength=3) / 4000
    assert np.abs(years - 1 / 3).max() < 0.05
    ages = [(v - b).days / 365 for b, v in zip(*(released[n].to_pylist() for n in ("birth", "visit")), strict=True)]
    assert min(ages) >= 0
    assert np.mean(ages) == pytest.approx(45, abs=3)


def test_orders_that_were_possible_still_are():
    """The smaller column does not follow by default where a rule of it forbids that."""
    last = dataclasses.replace(VISIT, nullable=True)
    schema = Schema((dataclasses.replace(BIRTH, nullable=False), last), constraints=[Order("birth", "visit", 45_000)])
    assert schema.measured.names == ("birth", "visit - birth")


@pytest.mark.parametrize("follows", [None, "larger"])
def test_a_release_keeps_the_column_that_follows(tmp_path, follows):
    """Also one of an earlier version, whose schema has no word for it: it was always the larger column."""
    schema = Schema(
        (dataclasses.replace(BIRTH, nullable=False), VISIT), constraints=[Order("birth", "visit", follows=follows)]
    )
    rows = pa.table({"birth": [datetime.date(1980, 1, 1)] * 50, "visit": [datetime.date(2024, 5, 1)] * 50})
    released = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False).synthesise()
    released.save(tmp_path / "release")
    path = tmp_path / "release/schema.json"
    document = json.loads(path.read_text())
    assert document["constraints"][0]["follows"] == (follows or "smaller")
    if follows:
        del document["constraints"][0]["follows"]
        path.write_text(json.dumps(document))
        artifacts.seal(tmp_path / "release")
    again = load(tmp_path / "release")
    assert again.schema == released.schema
    assert again.sample(20, seed=3).equals(released.sample(20, seed=3))


def test_noise_of_a_column_that_is_in_a_sum_twice():
    """The mean of a + b with b = a + gap has twice the error of a, and not √2 times."""
    numbers = [Numeric(name, 0, 9, integer=True) for name in "ab"] + [Numeric("sum", 0, 18, integer=True)]
    schema = Schema(numbers, constraints=[Order("a", "b"), Sum(("a", "b"), "sum")])
    rows = pa.table({"a": [1, 2, 3] * 500, "b": [4, 5, 6] * 500, "sum": [5, 7, 9] * 500})
    measured = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False).synthesise()
    first, gap, total = (estimate(measured, f"mean({name})").standard_error for name in ("a", "b - a", "sum"))
    assert total == pytest.approx(np.hypot(2 * first, gap))


def test_weights_of_several_draws_are_comparable(released):
    """Rows that are rare are drawn in several parts, and have weights of one size."""
    rows = released.sample(400, seed=0, where="paid>=60", weighted=True)
    weights = np.array(rows["weight"].to_pylist())
    assert weights.sum() == pytest.approx(1)
    assert 1 / np.square(weights).sum() > 80


def test_rows_are_counted_by_constraint(capsys, tmp_path):
    """Also by those about a gap, which only exists by another constraint."""
    rules = [Order("a", "b"), Implies("x=yes", "b - a=0")]
    schema = Schema([A, Numeric("b", 0, 18, integer=True), YES[0]], constraints=[rules[0]])
    assert schema.measured.names == ("a", "b - a", "x")
    columns = [A, Numeric("b", 0, 18, integer=True), YES[0]]
    schema = Schema(columns, constraints=[Order("a", "b", largest_gap=9), rules[1]])
    rows = pa.table({"a": [1, 2, 3], "b": [0, 2, 5], "x": ["no", "yes", "yes"]})
    assert check_constraints(open_table(rows, schema)) == {"a <= b": 1, "x=yes implies b - a=0": 1}
