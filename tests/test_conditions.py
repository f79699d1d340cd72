"""Conditions on rows: what they mean, and rows that meet them."""

import itertools
import operator

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Datetime, Numeric, PrivacyBudget, Schema, cli, estimate, load, release_table
from kme_jax.table.conditions import ranges_of, terms_of
from kme_jax.table.constraints import Order

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Numeric("pay (net)", -50, 50, integer=True, nullable=True),
        Categorical("job", ("nurse", "own or rent", "a, b", "x and y (z)"), nullable=True),
        Categorical("father's job", ("nurse", "a, b")),
        Categorical("kind", ("x", "y")),
        Datetime("begin", "2025-01-01", "2025-12-31", "day"),
        Datetime("end", "2025-01-01", "2026-12-31", "day"),
    )
)
OPERATORS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}


def _codes(number=400, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, column.num_codes, number) for column in SCHEMA.columns], axis=1)


CODES = _codes()
ROWS = SCHEMA.decode(CODES).to_pylist()


def _met(text):
    return np.any([term.met(SCHEMA.columns, CODES) for term in terms_of(SCHEMA.columns, [text])], axis=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age>=65", lambda r: r["age"] >= 65),
        ("18<=age<65", lambda r: 18 <= r["age"] < 65),
        ("65>age>=18 and job=nurse", lambda r: 18 <= r["age"] < 65 and r["job"] == "nurse"),
        ("age in (1, 5,7)", lambda r: r["age"] in (1, 5, 7)),
        ("age not in (1, 5,7)", lambda r: r["age"] not in (1, 5, 7)),
        ("job in (nurse, 'a, b')", lambda r: r["job"] in ("nurse", "a, b")),
        ('job not in ("a, b", missing)', lambda r: r["job"] not in ("a, b", None)),
        ("job=own or rent", lambda r: r["job"] == "own or rent"),
        ("job=own or rent or age<3", lambda r: r["job"] == "own or rent" or r["age"] < 3),
        ("job=x and y (z) and age<50", lambda r: r["job"] == "x and y (z)" and r["age"] < 50),
        (
            "(job='x and y (z)' or age<20) AND age!=7",
            lambda r: (r["job"] == "x and y (z)" or r["age"] < 20) != (r["age"] == 7),
        ),
        ("age<10 or age>90 or age=50", lambda r: r["age"] < 10 or r["age"] > 90 or r["age"] == 50),
        ("age<10 or age>50 and job=nurse", lambda r: r["age"] < 10 or (r["age"] > 50 and r["job"] == "nurse")),
        ("((age<10) or (age>50)) and (job=nurse)", lambda r: (r["age"] < 10 or r["age"] > 50) and r["job"] == "nurse"),
        ("end>begin", lambda r: r["end"] > r["begin"]),
        ("begin = end or age = 5", lambda r: r["end"] == r["begin"] or r["age"] == 5),
        ("age<=pay (net)", lambda r: r["pay (net)"] is not None and r["age"] <= r["pay (net)"]),
        ("job=father's job", lambda r: r["job"] == r["father's job"]),
        ("job!=father's job", lambda r: r["job"] is not None and r["job"] != r["father's job"]),
        ("pay (net)=missing or pay (net)>40", lambda r: r["pay (net)"] is None or r["pay (net)"] > 40),
        ("begin>=2025-06-01 and begin < '2025-07-01'", lambda r: str(r["begin"])[:7] == "2025-06"),
        ("2025-06-01<=begin<=2025-06-30", lambda r: str(r["begin"])[:7] == "2025-06"),
    ],
)
def test_what_conditions_mean(text, expected):
    np.testing.assert_array_equal(_met(text), [bool(expected(row)) for row in ROWS])


def test_random_conditions_mean_what_they_say():
    """Conditions of any depth, against Python."""
    rng = np.random.default_rng(1)

    def random_condition(depth):
        if depth and rng.random() < 0.7:
            word = ("and", "or")[rng.integers(2)]
            parts = [random_condition(depth - 1) for _ in range(rng.integers(2, 4))]
            fold = all if word == "and" else any
            text = f" {word} ".join(f"({text})" for text, _ in parts)
            return text, lambda r: fold(met(r) for _, met in parts)
        comparison = list(OPERATORS)[rng.integers(5)]
        compare = OPERATORS[comparison]
        kind, age = rng.integers(4), int(rng.integers(100))
        if kind == 0:
            return f"age{comparison}{age}", lambda r: compare(r["age"], age)
        if kind == 1:
            name = ("=", "!=")[rng.integers(2)]
            return f"job {name} nurse", lambda r: (r["job"] == "nurse") == (name == "=")
        if kind == 2:
            return f"begin {comparison} end", lambda r: compare(r["begin"], r["end"])
        return (
            f"pay (net) {comparison}{age - 50}",
            lambda r: compare(r["pay (net)"], age - 50) if r["pay (net)"] is not None else comparison == "!=",
        )

    for _ in range(150):
        text, met = random_condition(2)
        np.testing.assert_array_equal(_met(text), [bool(met(row)) for row in ROWS], err_msg=text)


def test_alternatives_of_one_column_are_ranges():
    """So noisy sums answer them, and samples meet them at once."""
    ranges = {0: [(0, 18), (65, 100)], 3: [(0, 1)]}
    assert ranges_of(SCHEMA.columns, ["(age<18 or age>=65) and father's job=nurse"]) == ranges
    assert ranges_of(SCHEMA.columns, ["age<18 or 65<=age", "father's job in (nurse)"]) == ranges
    assert ranges_of(SCHEMA.columns, ["age<5 and age>7"]) == {0: []}
    assert len(terms_of(SCHEMA.columns, ["age<5 and age>7 or job=nurse"])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age<18 or jobs=nurse", "there is no column|is no number"),
        ("(age<18", "brackets are not in pairs"),
        ("age<18)", "brackets are not in pairs"),
        ("age<18 or", "is no number"),
        ("age in ()", "expected values in the brackets"),
        ("age in (1", "brackets are not in pairs"),
        ("(age<18 and (job=nurse", "brackets are not in pairs"),
        ("age in (1, x)", "'x' is not one of its values"),
        ("job<father's job", "cannot be compared"),
        ("age>begin", "cannot be compared"),
        ("age=age", "cannot be compared"),
        ("kind=father's job", "no value in common"),
        ("job>nurse", "no order"),
        ("3<job<4", "no order"),
        ("18<=age and", "there is no column"),
        ("job=nobody or age>5", "there is no category|nobody"),
        ("", "expected a column"),
        ("(" * 2000 + "age=1" + ")" * 2000, "too many brackets"),
        ("age=1 or " * 2000 + "age=2", "letters, and at most"),
        ("age=" + '"' * 5000, "is not one of its values"),
        (5, "expected text"),
    ],
)
def test_bad_conditions(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        terms_of(SCHEMA.columns, [text])
    assert "\n" not in str(caught.value)


def test_conditions_have_few_alternatives():
    text = " or ".join(f"age={i} and pay (net)={i - 50}" for i in range(70))
    with pytest.raises(ValueError, match="more than 64 alternatives"):
        terms_of(SCHEMA.columns, [text])


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(0, 100, 3000)
    pay = np.clip(np.rint(age - 50 + rng.normal(0, 10, 3000)), -50, 50).astype(int)
    job = np.where(rng.random(3000) < age / 100, "nurse", "a, b")
    table = pa.table({"age": age, "pay": pay, "job": job})
    schema = Schema(
        (
            Numeric("age", 0, 99, integer=True),
            Numeric("pay", -50, 50, integer=True),
            Categorical("job", ("nurse", "a, b")),
        )
    )
    return release_table(table, schema, budget=PrivacyBudget(20.0, 1e-5), secure=False)


def test_samples_meet_alternatives(released):
    """They are distributed as all rows that meet them."""
    where = "age<20 and job='a, b' or (pay>age and age<60) or age>95"
    met = released.sample(4000, seed=1, where=where).to_pandas()
    assert ((met.age < 20) & (met.job == "a, b") | (met.pay > met.age) & (met.age < 60) | (met.age > 95)).all()
    every = released.sample(60_000, seed=2).to_pandas()
    every = every[
        (every.age < 20) & (every.job == "a, b") | (every.pay > every.age) & (every.age < 60) | (every.age > 95)
    ]
    for edge, name in itertools.product((10, 30, 60), ("age", "pay")):
        shares = [float((rows[name] < edge).mean()) for rows in (met, every)]
        error = (shares[1] * (1 - shares[1]) * (1 / len(met) + 1 / len(every))) ** 0.5
        assert abs(shares[0] - shares[1]) < 5 * error + 1e-9
    weighted = released.sample(2000, seed=1, where=where, weighted=True).to_pandas()
    assert weighted.weight.sum() == pytest.approx(1)


def test_support_says_how_many_rows_meet_conditions(released):
    strong, weak = released.support("age<50"), released.support(["age=3", "job='a, b' or pay>age"])
    assert strong.rows == pytest.approx(1500, rel=0.1)
    assert strong.noise > 0
    assert not strong.is_weak
    assert weak.rows < 40
    assert "may be noise" in weak._replace(noise=weak.rows).describe()
    assert "may be noise" not in strong.describe()
    assert released.support("age>98 and age<2").rows == 0


def test_questions_have_alternatives_of_one_column(released):
    assert estimate(released, "share(age<20 or age>=80)").value == pytest.approx(0.4, abs=0.03)
    mean = estimate(released, "share(job in (nurse)) where (age<20 or age>=80)")
    both = estimate(released, "share(job=nurse) where age<20 or 80<=age")
    assert mean.value == both.value
    with pytest.raises(ValueError, match="two columns are compared, which a sample of rows can tell alone"):
        estimate(released, "share(pay>age)")


def test_conditions_of_releases_with_constraints():
    """Columns that follow from others are compared, too."""
    rng = np.random.default_rng(0)
    begin = rng.integers(0, 50, 1000)
    table = pa.table({"begin": begin, "end": begin + rng.integers(0, 5, 1000)})
    columns = (Numeric("begin", 0, 50, integer=True), Numeric("end", 0, 60, integer=True))
    schema = Schema(columns, constraints=(Order("begin", "end"),))
    released = release_table(table, schema, budget=PrivacyBudget(10.0, 1e-5), secure=False)
    rows = released.sample(500, where="end=begin or end>50").to_pandas()
    assert ((rows.end == rows.begin) | (rows.end > 50)).all()
    assert (rows.end == rows.begin).any()
    assert (rows.end > 50).any()


def test_the_command_tells_the_support(released, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    released.save("out")
    assert cli.main(["sample", "out", "--output=a.csv", "--where=age in (3, 4) or pay>age", "--num_rows=50"]) == 0
    assert "private rows meet the conditions; the noise of a count is up to" in capsys.readouterr().err
    assert cli.main(["sample", "out", "--output=b.csv", "--where=age=1 and pay=50", "--num_rows=5"]) in (0, 2)
    said = capsys.readouterr().err
    assert "may be noise" in said or "there are no such rows" in said
    assert load("out").table.num_rows == 3000


def test_a_name_that_is_spelled_alike_is_suggested():
    columns = [Numeric("income", 0, 9), Numeric("end - begin", 0, 9)]
    for text, meant in (("Incom>=3", "income"), ("end-begin>=3", "end - begin")):
        with pytest.raises(ValueError, match=f"do you mean {meant}") as found:
            terms_of(columns, [text])
        assert "\n" not in str(found.value)
    with pytest.raises(ValueError, match=r"there is no column 'zzz', only income, end - begin$"):
        terms_of(columns, ["zzz>=3"])
