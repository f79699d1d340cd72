"""Estimates with intervals, from releases of tables."""

import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, cli, estimate, release_table
from kme_jax.analysis import Estimate, Estimates, bootstrap
from kme_jax.analysis.counts import Masks, number_of_rows, tables_of
from kme_jax.analysis.direct import direct_answer, direct_quantile
from kme_jax.analysis.estimates import NoAnswerError
from kme_jax.analysis.hidden import HiddenTails
from kme_jax.analysis.hidden_pairs import HiddenPairs
from kme_jax.analysis.queries import Query
from kme_jax.analysis.replicates import measured_codes
from kme_jax.analysis.sums import Answer, NumberSums, Sums
from kme_jax.analysis.tables import direct_estimates
from kme_jax.embedding import mean_embedding
from kme_jax.privacy import NoisyEmbedding
from kme_jax.table import mixture
from kme_jax.table.measure import measure_table
from kme_jax.table.planning import sigma
from kme_jax.table.release import COUNT, NAMES

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Numeric("pay, net", 0, 5000, step=0.01, nullable=True),
        Categorical("town", ("a", "b", "c and d")),
        Categorical("rich", ("no", "yes")),
    )
)


def _people(rng, num_rows):
    age = np.clip(rng.normal(40, 15, num_rows), 0, 99).round().astype(int)
    pay = np.round(rng.gamma(4, 300, num_rows).clip(0, 5000), 2)
    rich = np.where(rng.random(num_rows) < age / 99, "yes", "no")
    towns = rng.choice(["a", "b", "c and d"], num_rows, p=[0.6, 0.3, 0.1])
    missing = rng.random(num_rows) < 0.2
    return pa.table({"age": age, "pay, net": pa.array(pay, mask=missing), "town": towns, "rich": rich})


@pytest.fixture(scope="module")
def released():
    rows = _people(np.random.default_rng(0), 3000)
    return release_table(rows, SCHEMA, budget=PrivacyBudget(2.0, 1e-5), target="rich", secure=False)


@pytest.fixture(scope="module")
def replicates(released):
    return bootstrap(released, 4)


def test_an_interval_has_its_level():
    normal = Estimate.of(1.0, 2.0, 0.95, method="direct")
    assert (normal.low, normal.high) == pytest.approx((1 - 1.959964 * 2, 1 + 1.959964 * 2))
    few = Estimate.of(1.0, 2.0, 0.95, method="bootstrap", degrees=4)
    assert few.high - few.value == pytest.approx(2.776445 * 2)
    unknown = Estimate.of(1.0, math.inf, 0.9, method="bootstrap")
    assert (unknown.low, unknown.high) == (-math.inf, math.inf)
    assert json.loads(json.dumps(unknown.to_json(), allow_nan=False))["high"] is None
    assert str(normal) == "1, 95 % interval [-2.92, 4.92], standard error 2"
    assert normal.within(0.0, 3.0) == dataclasses.replace(normal, low=0.0, high=3.0)
    several = Estimates({"f": normal, "m": few})
    assert str(several).splitlines() == [f"f: {normal}", f"m: {few}"]
    assert several.to_pandas().loc["f"].to_list() == [normal.value, 2.0, normal.low, normal.high]
    for beyond in (-0.5, -30.0, 2.0):  # noise has put the value beyond what is possible
        mended = Estimate.of(beyond, 0.1, 0.95, method="direct").within(0.0, 1.0)
        assert 0 <= mended.low < mended.high <= 1
        assert mended.value == np.clip(beyond, 0, 1)
        assert 0 < mended.high - mended.low < 0.2
        assert mended.moved
        assert mended.to_json()["moved"]
    low, high = (Estimate.of(v, 0.1, 0.95, method="direct").within(0.0, 1.0) for v in (-0.1, 1.1))
    ends = "95 % interval [0, 0.1412], standard error 0.1"
    assert str(low) == f"at most 0.1412, {ends}; noise hides the value"
    assert str(high.times(10)).startswith("at least 8.588, 95 % interval [8.588, 10]")
    hidden = Answer(0.0, 20.0, square=(-100.0, 400.0)).estimate(0.95).within(0.0, 60.0)  # a standard deviation
    assert str(hidden).startswith("at most 26.85, 95 % interval [0, 26.85]")
    assert str(hidden).endswith("noise hides the value")
    # Just beyond an end, the interval is that of half a normal distribution.
    assert Estimate.of(-1e-9, 1.0, 0.95, method="direct").within(0.0, 9.0).high == pytest.approx(1.959964, abs=1e-3)
    assert str(Estimate.of(36_000.0, 0.0, 0.95, method="direct")).startswith("36,000, 95 %")
    for level in (0.0, 1.0, 95, math.nan, "x"):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Estimate.of(1.0, 2.0, level, method="direct")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean(age)", lambda t: np.mean(t["age"])),
        ("SD( age )", lambda t: np.std(t["age"])),
        ("median(age) where town=b", lambda t: np.median(t["age"][t["town"] == "b"])),
        ("quantile(pay, net, 0.9)", lambda t: np.nanquantile(t["pay, net"], 0.9)),
        ("share(age>=65)", lambda t: np.mean(t["age"] >= 65)),
        ("share(age>=20 and age<30 and rich=yes)", lambda t: np.mean((t["age"] // 10 == 2) & (t["rich"] == "yes"))),
        ("share(town=c and d and age>20)", lambda t: np.mean((t["town"] == "c and d") & (t["age"] > 20))),
        ("share(rich=yes) where age<30", lambda t: np.mean(t["rich"][t["age"] < 30] == "yes")),
        ("share(pay, net=missing)", lambda t: np.mean(np.isnan(t["pay, net"]))),
        ("count(*)", lambda t: 1.0),
        ("count() where town=b", lambda t: np.mean(t["town"] == "b")),
        ("count(age>=65) where town=b", lambda t: np.mean((t["age"] >= 65) & (t["town"] == "b"))),
        ("sum(pay, net) where rich=yes", lambda t: np.nansum(np.where(t["rich"] == "yes", t["pay, net"], 0)) / 500),
    ],
)
def test_queries_are_answered_as_by_hand(rng, text, expected):
    table = _people(rng, 500)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    answer = Query.parse(text, SCHEMA).answer(SCHEMA, SCHEMA.encode(table))
    assert answer[""] == pytest.approx(expected(columns))


def test_groups(rng):
    table = _people(rng, 500).filter(pa.compute.not_equal(pa.array(["x"] * 500), "y"))
    table = table.filter(pa.compute.not_equal(table["town"], "a"))
    answer = Query.parse("mean(age) by town", SCHEMA).answer(SCHEMA, SCHEMA.encode(table))
    assert list(answer) == ["a", "b", "c and d"]
    assert math.isnan(answer["a"])
    in_b = np.asarray(table["town"]) == "b"
    assert answer["b"] == pytest.approx(np.mean(table["age"].to_numpy()[in_b]))


BAD = {
    "mean": "expected one of mean, sd",
    "mode(age)": "there is no statistic mode; do you mean|expected one of mean, sd",
    "share()": "there is nothing in the brackets of share",
    "avg(age)": r"ask for mean\(...\) instead of avg",
    "max(age)": r"ask for quantile\(..., 1\) instead of max",
    "mean(age": "a bracket is not closed",
    "mean(age) for rich": "after the brackets, expected where and conditions, or by and a column",
    "sum(town)": "town is not numeric; ask for share",
    "mean(age) where town=a and town=b": "no value of town meets the conditions",
    "mean(age) by town, rich": "one column at most can follow by",
    "mean(age) where town='z'": "town",
    "mean(age) where town=a or age>5": "or joins different columns",
    "share(age>=200)": "no value of age meets the conditions; its values are from 0 to 99",
    "mean(aeg)": "there is no column 'aeg'",
    "mean(town)": "town is not numeric; ask for share",
    "quantile(age)": "there is no column ''|expected a share",
    "quantile(age, 2)": "share of rows from 0 to 1",
    "share(age)": "expected a column, one of",
    "share(town>a)": "have no order",
    "mean(age) where": "after the brackets, expected where and conditions",
    "mean(age) by city": "no column 'city'",
    "mean(age) by town and rich": "one column at most can follow by",
    "mean(town=a)": r"town=a is a condition; ask for share\(town=a\) or count\(town=a\)",
    "quantile(age, 0.9, 0.5)": "only age may be in the brackets, without 0.9",
    "mean(age) where town=a and pay, net=missing": "no direct interval, because noise or coarse bins hide how "
    "age, pay, net and town go together; ask about one column and the target rich",
    "share(town=a and age>3 and pay, net=missing)": "how age, pay, net and town go together",
    "correlation(age, town)": "town is not numeric; ask for regression",
    "correlation(age)": "expected two columns",
    "slope(age, age)": "the same column twice",
    "correlation(age, aeg)": "there is no column 'aeg'",
    "regression(age)": "expected a response and its predictors",
    "regression(town ~ age)": "town is not numeric; the response may be a condition: town=...",
    "regression(age ~ city)": "expected a column, or a condition",
    "regression(age ~ town) by rich": "a regression has no groups",
    "regression(age ~ town) where town=a": "how age and town go together",
    "mean(pay, net) where pay, net=missing": "only missing cells of pay, net meet the conditions",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_queries(released, text):
    with pytest.raises(ValueError, match=BAD[text]) as error:
        estimate(released, text, method="direct")
    assert "\n" not in str(error.value)


def _exact_sums(measured, table):
    """The sums without noise, which take longer than everything that is done with them."""
    codes = SCHEMA.encode(table).astype(float)
    maps = {name: measured.measured[name].feature_map for name in NAMES if name in measured.measured}
    return {name: table.num_rows * mean_embedding(one, codes).coordinates for name, one in maps.items()}


def _measured_again(measured, exact, number, random):
    """The number of rows, if it is private, and all noisy sums, with new noise."""
    again, statement, num_rows = dict(measured.measured), dict(measured.statement), number
    if COUNT in again:
        unit = sigma(again[COUNT], again[COUNT].feature_map.blocks[0])
        number = round(num_rows + unit * random.normal())
        statement["num_rows"] = number
    for name in filter(again.__contains__, NAMES):
        before = again[name]
        noise = before.mechanism.scale * before.mechanism.num_rows
        mechanism = dataclasses.replace(before.mechanism, num_rows=number, scale=noise / number)
        noisy = (exact[name] + noise * random.normal(size=len(exact[name]))) / number
        again[name] = NoisyEmbedding(before.feature_map, noisy, mechanism)
    return dataclasses.replace(measured, measured=again, statement=statement)


def _check_errors(table, measured, texts, rng, number):
    """Errors in units of the standard error, of so many releases with new noise, are standard normal."""
    errors, codes, sums = {text: [] for text in texts}, SCHEMA.encode(table), _exact_sums(measured, table)
    for _ in range(number):
        again = Sums.read(_measured_again(measured, sums, table.num_rows, rng))
        for text, found in errors.items():
            query = Query.parse(text, SCHEMA)
            answer = direct_answer(again, query)
            exact = query.answer(SCHEMA, codes)[""] * (table.num_rows if query.is_total else 1)
            found.append((answer.value - exact) / answer.standard_error)
    least, most = scipy.stats.chi2.ppf((5e-4, 1 - 5e-4), number) / number
    for text, found in errors.items():
        assert abs(np.mean(found)) < 4 / number**0.5, text
        assert least < np.mean(np.square(found)) < most, text


@pytest.mark.parametrize(
    ("relation", "number"), [pytest.param("replace_one", 30, marks=pytest.mark.slow), ("add_remove", 10)]
)
def test_direct_answers_are_unbiased_and_know_their_noise(relation, number):
    texts = ("mean(age)", "sd(age)", "mean(pay, net)", "share(age>=50)", "share(town=b)", "share(rich=yes)")
    texts += ("mean(age) where rich=yes", "sd(age) where rich=no", "share(age>=50 and rich=yes)")
    texts += ("share(town=b) where rich=no", "share(rich=yes) where age<30", "mean(age) where age>=20 and rich=no")
    texts += ("share(age>=70) where age>=50", "share(pay, net=missing) where rich=yes", "mean(age) where age<30")
    rng = np.random.default_rng(1)
    table, budget = _people(rng, 2000), PrivacyBudget(8.0, 1e-5, relation)
    first = measure_table(table, SCHEMA, budget=budget, target="rich", secure=False)
    _check_errors(table, first, texts, rng, number)


def test_numbers_of_rows_and_sums():
    """Numbers of rows, and sums of all rows, have the standard errors of shares and means. Other sums have more."""
    rng = np.random.default_rng(3)
    table, budget = _people(rng, 2000), PrivacyBudget(8.0, 1e-5)
    measured = measure_table(table, SCHEMA, budget=budget, target="rich", secure=False)
    texts = ("count(town=b)", "count(age>=50) where rich=yes", "count() where rich=yes and town=a", "sum(age)")
    _check_errors(table, measured, texts, rng, 15)
    sums, codes = Sums.read(measured), SCHEMA.encode(table)
    assert direct_answer(sums, Query.parse("count(*)", SCHEMA))[:2] == (2000.0, 0.0)
    for text, mean, number in (
        ("sum(pay, net)", "mean(pay, net)", "share(pay, net!=missing)"),
        ("sum(age) where rich=yes", "mean(age) where rich=yes", "share(rich=yes)"),
    ):
        total, *parts = (direct_answer(sums, Query.parse(one, SCHEMA)) for one in (text, mean, number))
        of_mean, of_number = ([part.value, part.standard_error] for part in parts)
        assert total.value == pytest.approx(2000 * of_mean[0] * of_number[0])
        relative = of_mean[1] / of_mean[0] + of_number[1] / of_number[0]
        assert total.standard_error == pytest.approx(relative * total.value)
        exact = 2000 * Query.parse(text, SCHEMA).answer(SCHEMA, codes)[""]
        assert abs(total.value - exact) < 4 * total.standard_error


def test_totals_of_all_methods(released, replicates):
    shares = estimate(released, "share(rich=yes) by town")
    counts = estimate(released, "count(rich=yes) by town")
    assert list(counts) == list(shares) == ["a", "b", "c and d"]
    assert 0 <= counts["b"].low < counts["b"].high <= 3000
    of_rows = estimate(released, "count(rich=yes)", method="bootstrap", replicates=replicates)
    share = estimate(released, "share(rich=yes)", method="bootstrap", replicates=replicates)
    assert of_rows.value == pytest.approx(3000 * share.value)
    assert of_rows.high - of_rows.low == pytest.approx(3000 * (share.high - share.low))
    with pytest.raises(ValueError, match="ask for a share or a mean of the population"):
        estimate(released, "count(rich=yes)", population=True)


@pytest.mark.parametrize(
    ("relation", "target", "texts"),
    [
        ("replace_one", None, ["share(town=b and rich=yes)", "share(rich=yes) where town=a",
                               "share(town!=b) where rich=no", "share(pay, net=missing) where town=a"]),
        pytest.param("add_remove", None, ["share(town=b and rich=yes)", "share(rich=yes) where town=b"],
                     marks=pytest.mark.slow),
        pytest.param("add_remove", "rich", ["share(pay, net=missing) where town=a",
                                            "share(town=b and pay, net=missing and rich=no)",
                                            "share(town=a) where pay, net=missing and rich=yes"],
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_answers_of_columns_that_were_counted_together(relation, target, texts):
    rng = np.random.default_rng(2)
    table, budget = _people(rng, 2000), PrivacyBudget(8.0, 1e-5, relation)
    first = measure_table(table, SCHEMA, budget=budget, target=target, secure=False)
    _check_errors(table, first, texts, rng, 15)


def _dependent(rng, num_rows):
    """People whose pay depends on their age and their town."""
    table = _people(rng, num_rows)
    age, town = table["age"].to_numpy(), table["town"].to_numpy()
    pay = np.round(np.clip(300 + 12 * age + 400 * (town == "b") + 200 * rng.normal(size=num_rows), 0, 5000), 2)
    return table.set_column(1, "pay, net", pa.array(pay, mask=rng.random(num_rows) < 0.1))


TOGETHER = ("correlation(age, pay, net)", "slope(pay, net, age)", "regression(pay, net ~ age + town + rich)")
TOGETHER += ("regression(rich=yes ~ age + town)", "mean(pay, net) where town=b", "mean(pay, net) where rich=yes")
TOGETHER += ("mean(age) where town=a and rich=no", "sd(age) where town=a", "share(age>=43) where town=b")


@pytest.mark.parametrize(
    "relation",
    [pytest.param("replace_one", marks=pytest.mark.slow), pytest.param("add_remove", marks=pytest.mark.long)],
)
def test_what_follows_from_covariances(relation):
    """Errors are about standard normal; what bins hide is a part of the error that noise does not change."""
    rng = np.random.default_rng(3)
    table, budget = _dependent(rng, 8000), PrivacyBudget(6.0, 1e-5, relation)
    first, codes = measure_table(table, SCHEMA, budget=budget, target="rich", secure=False), SCHEMA.encode(table)
    errors, exact = {}, _exact_sums(first, table)
    for _ in range(15):
        sums = Sums.read(_measured_again(first, exact, table.num_rows, rng))
        for text in TOGETHER:
            query = Query.parse(text, SCHEMA)
            answer, private = direct_answer(sums, query), query.answer(SCHEMA, codes)
            for name, one in (answer if isinstance(answer, dict) else {"": answer}).items():
                assert one is not None, text
                errors.setdefault((text, name), []).append((one.value - private[name]) / one.standard_error)
    assert {text for text, _ in errors} == set(TOGETHER)
    squares = {question: float(np.mean(np.square(found))) for question, found in errors.items()}
    assert max(squares.values()) < 3.0, squares  # a bias of 1.4 standard errors at most
    assert 0.25 < np.mean(list(squares.values())) < 1.5, squares


def test_missing_cells_may_depend_on_the_group():
    rng = np.random.default_rng(5)
    table = _dependent(rng, 8000)
    pay, in_b = table["pay, net"].to_numpy(), table["town"].to_numpy() == "b"
    pay = pa.array(pay, mask=np.isnan(pay) | (in_b & (rng.random(8000) < 0.7)))
    table = table.set_column(1, "pay, net", pay)
    measured = measure_table(table, SCHEMA, budget=PrivacyBudget(20.0, 1e-5), target="rich", secure=False)
    query = Query.parse("mean(pay, net) where town=b", SCHEMA)
    answer, private = direct_answer(measured, query), query.answer(SCHEMA, SCHEMA.encode(table))[""]
    others = Query.parse("mean(pay, net)", SCHEMA).answer(SCHEMA, SCHEMA.encode(table))[""]
    assert abs(answer.value - private) < 0.1 * abs(private - others)


def test_missing_cells_do_not_count_as_values():
    """Half a column as one bin has the missing cells beside large numbers. Such counts do not tell a mean."""
    rng = np.random.default_rng(0)
    group = rng.random(40_000) < 0.15
    distance = rng.normal(np.where(group, 15_000, 12_000), 3000).clip(0, 30_000).round()
    missing = rng.random(40_000) < np.where(group, 0.0, 0.25)
    table = pa.table({"distance": pa.array(distance, mask=missing), "group": np.where(group, "yes", "no"),
                      "other": rng.integers(0, 50, 40_000)})  # fmt: skip
    schema = Schema((Numeric("distance", 0, 30_000, integer=True, nullable=True), Categorical("group", ("no", "yes")),
                     Numeric("other", 0, 60, integer=True)))  # fmt: skip
    errors: dict[str, list[float]] = {"no": [], "yes": []}
    for seed in range(4):
        measured = measure_table(table, schema, budget=PrivacyBudget(1.0, 1e-6), secure=False, seed=seed)
        for value, mask in (("no", ~group), ("yes", group)):
            answer = direct_answer(measured, Query.parse(f"mean(distance) where group={value}", schema))
            errors[value].append((answer.value - distance[mask & ~missing].mean()) / answer.standard_error)
    assert all(abs(np.mean(of_group)) < 0.75 for of_group in errors.values()), errors  # 1.5 with such counts


def test_a_tail_that_noise_hides_has_no_correlation():
    """Few very large orders make most of a variance. The bulk alone would give a much larger correlation."""
    rng = np.random.default_rng(0)
    price = rng.gamma(2.0, 10.0, 30_000)
    total = price * rng.gamma(3.0, 2.0, 30_000)
    total[:60] *= 200
    schema = Schema((Numeric("price", 0, 500, step=0.01), Numeric("total", 0, 100_000, step=0.01, scale="log")))
    table = pa.table({"price": price.clip(0, 500), "total": total.clip(0, 100_000)})
    private = np.corrcoef(table["price"].to_numpy(), table["total"].to_numpy())[0, 1]
    assert private < 0.6 * np.corrcoef(price[60:], total[60:])[0, 1]
    for seed in range(3):
        measured = measure_table(table, schema, budget=PrivacyBudget(3.0, 1e-6), secure=False, seed=seed)
        answer = direct_answer(measured, Query.parse("correlation(price, total)", schema))
        assert answer is None or abs(answer.value - private) < 3 * answer.standard_error


def test_conditions_may_come_after_groups():
    first, last = (
        Query.parse(f"mean(age) {rest}", SCHEMA) for rest in ("where rich=yes by town", "by town where rich=yes")
    )
    assert dataclasses.replace(last, text=first.text) == first


def test_values_are_where_the_statistic_can_be():
    wide = Estimate.of(-5.0, 10.0, 0.95, method="direct").within(0.0, 7.0)
    assert (wide.value, wide.low, wide.high) == (0.0, 0.0, 7.0)


def test_conditions_on_the_column_that_is_asked_for():
    """Means, deviations and shares of the rows with some values of the same column. Limits may cut a cell."""
    rng = np.random.default_rng(6)
    table, budget = _people(rng, 2000), PrivacyBudget(4.0, 1e-5)
    measured = measure_table(table, SCHEMA, budget=budget, target="rich", secure=False)
    texts = (
        "mean(pay, net) where pay, net>0",
        "mean(pay, net) where pay, net>=777.7",
        "mean(pay, net) where pay, net<1500",
        "sd(pay, net) where pay, net>0",
        "sd(pay, net) where pay, net>=777.7",
        "sd(age) where age<30",
        "share(pay, net>=1500) where pay, net!=missing",
        "share(pay, net>=1500) where pay, net!=missing and rich=yes",
        "share(pay, net>=1500) where pay, net>=1000",
    )
    errors, codes, exact = {text: [] for text in texts}, SCHEMA.encode(table), _exact_sums(measured, table)
    for _ in range(12):
        sums = Sums.read(_measured_again(measured, exact, table.num_rows, rng))
        for text, found in errors.items():
            query = Query.parse(text, SCHEMA)
            answer, truth = direct_answer(sums, query), query.answer(SCHEMA, codes)[""]
            if answer.square is None:
                found.append((answer.value - truth) / answer.standard_error)
            else:
                found.append((answer.square[0] - truth**2) / answer.square[1])
    for text, found in errors.items():
        assert np.mean(np.square(found)) < 2, text
    # With noise as it is, an answer is worth something.
    standard_errors = {text: direct_answer(sums, Query.parse(text, SCHEMA)).standard_error for text in texts}
    assert standard_errors["mean(pay, net) where pay, net>0"] < 100
    assert standard_errors["sd(pay, net) where pay, net>0"] < 400
    assert standard_errors["share(pay, net>=1500) where pay, net!=missing"] < 0.05


def test_missing_numbers_do_not_count_anyway():
    for text in ("mean(pay, net)", "sd(pay, net)", "median(pay, net)", "correlation(age, pay, net)", "sum(pay, net)"):
        assert Query.parse(f"{text} where pay, net!=missing", SCHEMA).where == ()
        kept = Query.parse(f"{text} where pay, net!=missing and rich=yes", SCHEMA).where
        assert kept == ("rich=yes",)
    for text in ("share(age>30)", "mean(age)"):
        assert Query.parse(f"{text} where pay, net!=missing", SCHEMA).where == ("pay, net!=missing",)
    for whole in ("town=a or town=b and town!=a", "(age>5 and town=a)", "town=c and d"):
        assert Query.parse(f"mean(age) where {whole}", SCHEMA).where == (whole,)
    assert Query.parse("mean(age) where (town=a) and age>5", SCHEMA).where == ("(town=a)", "age>5")


def test_quantiles_have_intervals_that_contain_them():
    rng = np.random.default_rng(4)
    table = _people(rng, 2000)
    first = measure_table(table, SCHEMA, budget=PrivacyBudget(3.0, 1e-5), target="rich", secure=False)
    texts = (
        "median(age)",
        "quantile(age, 0.9)",
        "median(pay, net)",
        "median(age) where rich=no",
        "quantile(age, 0.01)",
        "quantile(age, 0)",
        "quantile(age, 1)",
        "median(age) where age>=40",
        "quantile(pay, net, 0.9) where pay, net>=500.5 and pay, net<2000",
        "median(age) where age<50 and rich=yes",
    )
    inside, codes, exact = [], SCHEMA.encode(table), _exact_sums(first, table)
    for _ in range(12):
        sums = Sums.read(_measured_again(first, exact, table.num_rows, rng))
        for text in texts:
            query = Query.parse(text, SCHEMA)
            found, private = direct_quantile(sums, query, 0.9), query.answer(SCHEMA, codes)[""]
            assert found.low <= found.value <= found.high
            inside.append(found.low <= private <= found.high)
    assert np.mean(inside) > 0.85
    assert direct_quantile(sums, Query.parse("quantile(age, 0)", SCHEMA), 0.9).value < 30
    narrow, wide = (direct_quantile(sums, Query.parse("median(pay, net)", SCHEMA), level) for level in (0.5, 0.99))
    assert wide.low < narrow.low <= narrow.high < wide.high


def test_a_median_of_a_small_class_is_not_pulled_to_the_middle_of_the_bounds():
    """The counts of 600 cells have more noise than the class has rows."""
    rng = np.random.default_rng(5)
    ill = np.arange(6000) < 500
    days = np.where(ill, rng.exponential(100, 6000), rng.exponential(200, 6000)).round().clip(0, 1199).astype(int)
    table = pa.table({"days": days, "ill": np.where(ill, "yes", "no")})
    schema = Schema((Numeric("days", 0, 1199, integer=True), Categorical("ill", ("no", "yes"))))
    medians = []
    for seed in range(12):
        measured = measure_table(table, schema, budget=PrivacyBudget(1.0, 1e-5), target="ill", secure=False, seed=seed)
        medians.append(direct_quantile(Sums.read(measured), Query.parse("median(days) where ill=yes", schema), 0.95))
    private = float(np.median(days[ill]))
    assert np.mean([one.low <= private <= one.high for one in medians]) > 0.8
    assert np.mean([one.value for one in medians]) == pytest.approx(private, rel=0.15)


def test_rows_that_share_a_bound_are_in_a_mean_whose_moments_end_before_it(rng):
    gain = np.where(rng.random(20_000) < 0.9, 0, rng.gamma(2, 3000, 20_000)).round().clip(0, 30_000).astype(int)
    gain[:500] = 15_000
    gain[:110] = 99_999  # at four standard deviations of noise, some releases see them, and others do not
    schema = Schema((Numeric("gain", 0, 99_999, integer=True), Categorical("sex", ("f", "m"))))
    table = pa.table({"gain": gain, "sex": rng.choice(["f", "m"], len(gain))})
    errors, num_narrow = [], 0
    for seed in range(16):
        measured = measure_table(table, schema, budget=PrivacyBudget(0.4, 1e-6), secure=False, seed=seed)
        sums = Sums.read(measured)
        num_narrow += any(one.beyond for one in NumberSums(sums, 0)._scaled)
        for text, private in (("mean(gain)", gain.mean()), ("sd(gain)", gain.std())):
            found = direct_estimates(sums, Query.parse(text, schema), 0.95)[""]
            errors.append((found.value - private) / found.standard_error)
    assert num_narrow > 2
    assert np.mean(np.abs(errors) < 1.96) > 0.85
    assert abs(np.mean(errors)) < 0.5


def test_regressions_are_those_of_the_rows(rng):
    table = _dependent(rng, 400)
    frame = {name: table[name].to_numpy() for name in table.column_names}
    kept = ~np.isnan(frame["pay, net"])
    design = np.column_stack([np.ones(kept.sum()), frame["age"][kept], frame["town"][kept] == "b",
                              frame["town"][kept] == "c and d"])  # fmt: skip
    expected = np.linalg.lstsq(design.astype(float), frame["pay, net"][kept], rcond=None)[0]
    answer = Query.parse("regression(pay, net ~ age + town)", SCHEMA).answer(SCHEMA, SCHEMA.encode(table))
    assert list(answer) == ["(intercept)", "age", "town=b", "town=c and d"]
    assert list(answer.values()) == pytest.approx(expected)
    codes = SCHEMA.encode(table)
    others = frame["town"][kept] != "b"  # the category without rows has no coefficient, and the others have theirs
    remaining = design.astype(float)[others][:, [0, 1, 3]]
    expected = np.linalg.lstsq(remaining, frame["pay, net"][kept][others], rcond=None)[0]
    without = Query.parse("regression(pay, net ~ age + town)", SCHEMA).answer(SCHEMA, codes[frame["town"] != "b"])
    assert math.isnan(without.pop("town=b"))
    assert list(without.values()) == pytest.approx(expected)
    correlation = np.corrcoef(frame["age"][kept], frame["pay, net"][kept])[0, 1]
    assert Query.parse("correlation(age, pay, net)", SCHEMA).answer(SCHEMA, codes)[""] == pytest.approx(correlation)
    slopes = Query.parse("slope(pay, net, age) by town", SCHEMA).answer(SCHEMA, codes)
    in_b = kept & (frame["town"] == "b")
    assert slopes["b"] == pytest.approx(np.polyfit(frame["age"][in_b], frame["pay, net"][in_b], 1)[0])


@pytest.mark.parametrize("all_above", [False, True])
def test_a_limit_inside_a_cell(all_above):
    """Noisy counts of the parts of a cell with a peak tell on which side of the limit its rows are.

    Without them nobody can tell, and the interval contains both ends.
    """
    schema = Schema((Numeric("x", 0, 102_399, integer=True),))
    number = 100 * np.random.default_rng(0).integers(0, 1024, 20_000) + (90 if all_above else 10)
    number[:3000] = 50_090 if all_above else 50_010
    measured = measure_table(pa.table({"x": number}), schema, budget=PrivacyBudget(5.0, 1e-6), secure=False)
    without = Sums.read(measured)
    vars(without)["_parts"] = {}
    asked = ((50_000, measured), (50_050, measured), (50_050, without))
    answers = [direct_answer(sums, Query.parse(f"share(x>={limit})", schema)) for limit, sums in asked]
    assert answers[0].guess == answers[1].guess == 0 < answers[2].guess
    for (limit, _), answer, least, most in zip(asked, answers, (0, 0, 0.15), (0.05, 0.05, 0.25), strict=True):
        estimated = answer.estimate(0.95)
        assert estimated.low < np.mean(number >= limit) < estimated.high
        assert least < estimated.high - estimated.low < most


def test_what_noisy_sums_do_not_answer(released):
    texts = ("median(age) where town=a", "correlation(age, pay, net) where age>20")
    for text in (*texts, "share(pay, net<0.02) where rich=yes", "mean(age) where age>98"):
        assert direct_answer(released.measurement, Query.parse(text, SCHEMA)) is None
        with pytest.raises(ValueError, match=r"the method bootstrap does|how age(,| and) (pay, net|town)"):
            estimate(released, text, method="direct")
    hidden = measure_table(_people(np.random.default_rng(0), 60), SCHEMA, budget=PrivacyBudget(0.01, 1e-5),
                           secure=False)  # fmt: skip
    unknown = direct_answer(hidden, Query.parse("sd(age)", SCHEMA)).estimate(0.95)
    assert unknown.low == 0
    assert unknown.high > 100
    with pytest.raises(ValueError, match=r"how age and pay, net go together; take the method bootstrap"):
        direct_estimates(hidden, Query.parse("correlation(age, pay, net)", SCHEMA), 0.95)


def test_groups_that_noise_hides_are_left_out():
    schema = Schema((*SCHEMA.columns[:-1], Categorical("rich", ("no", "yes"), nullable=True)))
    rows = _people(np.random.default_rng(0), 3000)
    measured = measure_table(rows, schema, budget=PrivacyBudget(2.0, 1e-5), target="rich", secure=False)
    assert list(direct_estimates(measured, Query.parse("mean(age) by rich", schema), 0.95)) == ["no", "yes"]
    with pytest.raises(ValueError, match="noisy sums do not answer it"):
        direct_estimates(measured, Query.parse("mean(age) where rich=missing", schema), 0.95)


def test_shares_of_a_spike_and_of_all_others_add_up_to_one():
    """A limit next to a bound that most rows have, within a cell. The share of the others has as little noise."""
    rng = np.random.default_rng(0)
    loss = np.where(rng.random(4000) < 0.1, rng.integers(0, 40_000, 4000), 0)
    schema = Schema((Numeric("loss", 0, 40_000, integer=True), Categorical("job", ("a", "b"))))
    rows = pa.table({"loss": loss, "job": ["a"] * 4000})
    sums = Sums.read(measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False))
    some, none = (direct_answer(sums, Query.parse(f"share(loss{one}0)", schema)) for one in (">", "<="))
    assert some.value + none.value == pytest.approx(1)
    assert some.standard_error == pytest.approx(none.standard_error)
    assert abs(some.value - np.mean(loss > 0)) < 4 * some.standard_error < 0.1


def test_a_part_of_a_cell_has_the_rows_that_its_own_parts_count():
    """A column that is also counted in segments, and a limit within a cell that stands out."""
    pay = np.random.default_rng(0).integers(0, 100_000, 4000)
    pay[:1000], pay[1000:2000] = 50_000, 50_040
    schema = Schema((Numeric("pay", 0, 99_999, integer=True), Categorical("job", ("a", "b"))))
    rows = pa.table({"pay": pay, "job": ["a"] * 4000})
    sums = Sums.read(measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False))
    assert sums.layout.segmented == (0,)
    (cell,) = np.flatnonzero((sums.edges(0)[:-1] <= 50_000) & (sums.edges(0)[1:] > 50_000))
    met = sums.met(0, [(0, 50_020)])
    rows_of_parts, noise = sums._inside_of_parts(0, cell, [(0, 50_020)], 0.0)
    assert 0 < met.shares[cell] < 1
    np.testing.assert_allclose(met.shares[cell] * sums.singles.of_all(0)[0][cell], rows_of_parts, rtol=1e-9)
    np.testing.assert_allclose(met.noise, noise)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
def test_numbers_of_rows_are_counted_with_the_smaller_noise(relation):
    """Rows that meet a condition are counted, or the others, of which the number of all rows is known or noisy."""
    schema = Schema((Numeric("age", 0, 99, integer=True), Categorical("job", ("a", "b", "c", "d"))))
    rng = np.random.default_rng(0)
    rows = pa.table({"age": rng.integers(0, 100, 4000), "job": rng.choice(["a", "b", "c", "d"], 4000)})
    sums = Sums.read(measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5, relation), secure=False))
    table = next(of for of in tables_of(sums, {0, 1}) if not of.is_first)
    counts, noise = sums.singles.of_all(1)
    for number in range(1, 4):
        cells = np.arange(4) < number
        found = number_of_rows(sums, table, Masks([], [], [np.ones(100, bool), cells]), 0)
        inside, outside = noise.sigma * number**0.5, np.hypot(sums.rows_noise, noise.sigma * (4 - number) ** 0.5)
        np.testing.assert_allclose(found[1], min(inside, outside))
        by_others = sums.rows - counts[~cells].sum()
        np.testing.assert_allclose(found[0], counts[cells].sum() if inside <= outside else by_others)


def test_an_interval_with_all_possible_values_is_no_answer():
    """The ages of one group are all missing, so their mean is noise. Groups that noise hides keep the order of the
    schema."""
    rng = np.random.default_rng(0)
    jobs = rng.choice(["2", "1"], 3000)
    ages = [None if job == "2" else int(age) for job, age in zip(jobs, rng.integers(20, 60, 3000), strict=True)]
    schema = Schema((Numeric("age", 0, 110, integer=True, nullable=True), Categorical("job", ("10", "9", "2", "1"))))
    rows = pa.table({"age": pa.array(ages), "job": pa.array(jobs)})
    measured = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False)
    answers = estimate(measured.synthesise(1000), "mean(age) by job")
    assert list(answers) == ["1"]
    assert answers.hidden == ("10", "9", "2")
    assert str(answers).splitlines()[1:] == ["noise hides: 10, 9, 2"]
    assert str(Estimates({}, list("abcdefghij"))) == "noise hides: a, b, c, d, e, f, g, h and 2 more"
    hidden = measure_table(rows.slice(0, 60), schema, budget=PrivacyBudget(0.01, 1e-5), secure=False)
    for text in ("count(age>=40)", "share(age>=40)"):
        with pytest.raises(NoAnswerError, match="every possible value is in its interval"):
            direct_estimates(hidden, Query.parse(text, schema), 0.95)
    assert Estimate.of(0.5, 9.0, 0.95, method="direct").within(0.0, 1.0).has_all(0.0, 1.0)
    assert not Estimate.of(1.5, 0.1, 0.95, method="direct").within(0.0, 1.0).has_all(0.0, 1.0)
    assert not Estimate.of(1.5, math.inf, 0.95, method="direct").has_all(-math.inf, math.inf)


def test_the_bootstrap_knows_bias_and_noise(replicates, released):
    """A replicate has errors of known size: they were made by hand."""
    table = released.table
    ages = np.asarray(table["age"], np.float64)
    moved = []
    for step in (0, 2, 4, 6):
        codes = released.schema.encode(table)
        codes[:, 0] = np.minimum(codes[:, 0] + step, 99)
        moved.append(released.schema.decode(codes))
    of_steps = dataclasses.replace(replicates, measured=(table,) * 4, replicates=tuple(moved))
    steps = [np.mean(np.minimum(ages + step, 99)) - np.mean(ages) for step in (0, 2, 4, 6)]
    mean_age = of_steps.estimate(lambda frame: frame.age.mean())
    assert mean_age.bias == pytest.approx(np.mean(steps))
    assert mean_age.value == pytest.approx(np.mean(ages) - np.mean(steps))
    assert mean_age.standard_error == pytest.approx(np.std(steps, ddof=1) * math.sqrt(1 + 1 / 4))
    with pytest.raises(ValueError, match=r"got 'mean\(age\)'; for a question in words, call kme_jax.estimate"):
        of_steps.estimate("mean(age)")
    crossed = of_steps.estimate(lambda frame: frame[["age"]].agg(["mean", "max"]))
    assert list(crossed) == ["mean, age", "max, age"]
    assert crossed["mean, age"] == mean_age
    several = of_steps.estimate(lambda frame: {"mean": frame.age.mean(), "rows": len(frame)})
    assert several["mean"] == mean_age
    assert (several["rows"].low, several["rows"].high) == (table.num_rows, table.num_rows)
    nowhere = of_steps.estimate(lambda frame: {"nobody": frame.age[frame.age > 200].mean()})
    assert nowhere["nobody"].high == math.inf
    assert str(nowhere["nobody"]).startswith("no answer: ")
    with pytest.raises(ValueError, match="must be a number"):
        of_steps.estimate(lambda frame: "large")
    codes = released.schema.encode(table)
    codes[:, 0] = 99
    of_ends = dataclasses.replace(replicates, measured=(table,) * 4, replicates=(released.schema.decode(codes),) * 4)
    assert of_ends.estimate(lambda frame: frame.age.mean()).value < 0
    possible = estimate(released, "mean(age)", method="bootstrap", replicates=of_ends)
    assert (possible.value, possible.moved) == (0.0, True)


def test_hidden_rows_are_where_noise_could_hide_them(released):
    """Their number is exponential, in equal parts of it; they are within the bounds, and come from the tail."""
    schema, table = released.schema, released.table
    codes = measured_codes(schema, table)
    tails = HiddenTails.of(released, codes, 40, np.random.default_rng(0))
    ages = [tail for tail in tails.tails if tail.column == 0]
    assert ages
    assert {tail.bound for tail in ages} <= {0, 99}
    for tail in ages:
        upward = tail.bound == 99
        assert (tail.start >= tail.tail) if upward else (tail.start <= tail.tail)
    (upper,) = (tail for tail in ages if tail.bound == 99)
    of_upper = tails.levels[:, tails.tails.index(upper), 0]
    np.testing.assert_array_equal(np.sort((40 * of_upper).astype(int)), np.arange(40))
    numbers, distances = [], []
    for i, level in enumerate(of_upper):
        moved = np.array(codes)
        upper.hide(moved, np.asarray([level, 0.5]), np.random.default_rng(i))
        others = [j for j in range(codes.shape[1]) if j]
        np.testing.assert_array_equal(moved[:, others], codes[:, others])
        changed = moved[:, 0] != codes[:, 0]
        assert (codes[changed, 0] >= upper.tail).all()
        assert ((moved[changed, 0] >= upper.start) & (moved[changed, 0] <= 99)).all()
        numbers.append(changed.sum())
        distances += (moved[changed, 0] - upper.start).tolist()
    # A row that is moved to its own value is not counted.
    assert np.mean(numbers) == pytest.approx(upper.rows, rel=0.1)
    # Distances are exponential, rounded down, as far as the bound.
    scale, room = 2 * upper.length, 100 - upper.start
    assert np.mean(distances) == pytest.approx(scale - room / math.expm1(room / scale) - 0.5, rel=0.15)
    rows = codes.copy()
    tails.hide(rows, 0, np.random.default_rng(0))
    changed = (rows != codes).any(1)
    assert 0 < changed.sum() < 0.2 * len(rows)


def test_a_tail_of_one_value_does_not_tell_how_long_it_is(released):
    """Hidden rows are then at distances of any size, as far as the bound."""
    rows = measured_codes(SCHEMA, released.table)
    tails = HiddenTails.of(released, rows, 4, np.random.default_rng(0)).tails
    (tail,) = (one for one in tails if one.column == 0 and one.bound == 99)
    codes = np.full((3000, 4), 2)
    flat, furthest = dataclasses.replace(tail, start=2, tail=2, length=None, rows=100.0), []
    for level in (0.1, 0.5, 0.9):
        moved = codes.copy()
        flat.hide(moved, np.asarray([0.5, level]), np.random.default_rng(0))
        assert 2 <= moved[:, 0].min() <= moved[:, 0].max() <= 99
        furthest.append(moved[:, 0].max())
    assert furthest[0] < 15 < furthest[1] < 60 < furthest[2]


def _sums(hidden, release, codes):
    """Sums over rows of the products of all features, [F, F]."""
    layout = release.measurement.layout
    columns = zip(hidden.features, codes.T[[*layout.columns, layout.split]], strict=True)
    values = np.concatenate([features.of_rows(of_rows) for features, of_rows in columns], axis=1)
    return values.T @ values


def test_hidden_dependence_is_as_drawn(released):
    """Sums of products change by what is drawn, and columns stay as they are. Missing cells stay in their rows."""
    codes = measured_codes(released.schema, released.table)
    hidden = HiddenPairs.of(released, codes)
    known, before = hidden.precisions > 0, _sums(hidden, released, codes)
    assert [features.values.shape[1] for features in hidden.features] == [1, 1, 3, 2]  # age, pay, town; and the classes
    np.testing.assert_array_equal(known, known.T)
    assert known[0, 1:].all()
    assert not known[2:5, 2:5].any()
    # Nothing is known better than by the noise, and numbers are hardly drawn towards the release.
    kept = hidden.deviations[known] * hidden.precisions[known]
    assert 0 < kept.min() <= kept.max() < 1
    assert kept.max() > 0.85
    drawn = np.zeros_like(before)
    drawn[0, 1] = drawn[1, 0] = 300.0  # a correlation of a tenth
    drawn[0, 2] = drawn[2, 0] = 100.0  # people in the first town are older than others
    drawn[0, 3] = drawn[3, 0] = -100.0
    without_noise = dataclasses.replace(hidden, means=drawn, deviations=np.zeros_like(drawn))
    moved = codes.copy()
    without_noise.hide(moved, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(moved, axis=0), np.sort(codes, axis=0))
    np.testing.assert_array_equal(moved[:, 3], codes[:, 3])
    is_missing = codes[:, 1] == SCHEMA.columns[1].num_values
    assert is_missing.any()
    np.testing.assert_array_equal(moved[:, 1] == SCHEMA.columns[1].num_values, is_missing)
    errors = (_sums(hidden, released, moved) - before - drawn)[known] * hidden.precisions[known]
    assert np.sqrt(np.mean(np.square(errors))) < 0.05
    assert ((_sums(hidden, released, codes) - before - drawn) * hidden.precisions)[0, 1] < -1


def test_what_is_special_about_a_category_that_shares_a_part_is_guessed(rng):
    names = tuple(f"job{i:02}" for i in range(12))
    jobs = rng.choice(["clerk", "farmer", *names], 6000, p=[0.4, 0.36, *[0.02] * 12])
    rows = pa.table({"age": rng.normal(50, 12, 6000).clip(0, 99).round().astype(int), "job": jobs})
    schema = Schema((Numeric("age", 0, 99, integer=True), Categorical("job", ("clerk", "farmer", *names))))
    release = release_table(rows, schema, budget=PrivacyBudget(0.1, 1e-5), secure=False)
    codes = measured_codes(release.schema, release.table)
    hidden = HiddenPairs.of(release, codes)
    rare = hidden.features[1].codes[list(hidden.features[1].contrasts)]
    assert set(rare) <= set(range(2, 14))  # the frequent jobs have parts of their own
    assert len(rare) >= 6
    means = []
    for seed in range(12):
        changed = codes.copy()
        hidden.hide(changed, np.random.default_rng(seed))
        assert np.array_equal(np.sort(changed, axis=0), np.sort(codes, axis=0))
        ages = (changed[:, 0] - codes[:, 0].mean()) / codes[:, 0].std()
        is_rare = np.isin(changed[:, 1], rare)
        means.append([ages[changed[:, 1] == code].mean() - ages[is_rare].mean() for code in rare])
    assert 0.2 < np.std(means) < 0.5


@pytest.mark.slow
def test_weak_dependence_that_a_release_loses_is_in_intervals(no_fits, monkeypatch):
    """Two columns with a correlation of 0.2, of which noise hides most. The interval of the bootstrap has it."""
    monkeypatch.setattr(mixture, "fit", no_fits)  # real ones
    schema = Schema((Numeric("a", -4, 4, step=0.01), Numeric("b", -4, 4, step=0.01)))
    covered, lost = 0, []
    for seed in range(4):
        rows = np.random.default_rng(seed).multivariate_normal([0, 0], [[1, 0.2], [0.2, 1]], 2000).clip(-4, 4)
        released = release_table(
            pa.table(dict(zip("ab", rows.T.round(2), strict=True))),
            schema,
            budget=PrivacyBudget(0.5, 1e-5),
            secure=False,
            seed=seed,
        )
        private = np.corrcoef(rows.T)[0, 1]
        interval = estimate(released, "correlation(a, b)", method="bootstrap", replicates=bootstrap(released, 8))
        covered += interval.low <= private <= interval.high
        lost.append(abs(np.corrcoef(np.stack([released.table[name] for name in "ab"]))[0, 1] - private))
    assert covered >= 3
    assert max(lost) > 0.05


@pytest.mark.long
def test_replicates_are_reproducible_and_differ(replicates, released):
    assert [rows.num_rows for rows in replicates.replicates] == [released.table.num_rows] * 4
    assert len({rows["age"].to_numpy().tobytes() for rows in replicates.replicates}) == 4
    for rows in replicates.replicates:
        SCHEMA.check(rows)
    again = bootstrap(released, 4)
    assert all(one.equals(other) for one, other in zip(again.replicates, replicates.replicates, strict=True))
    twice = dataclasses.replace(released, table=released.sample(2 * released.table.num_rows))
    population = bootstrap(twice, 4, population=True)  # as many rows are drawn as the private table has
    assert [rows.num_rows for rows in population.measured] == [released.statement["num_rows"]] * 4
    assert [rows.num_rows for rows in population.replicates] == [twice.table.num_rows] * 4
    population = dataclasses.replace(population, release=released)
    assert not any(rows.equals(released.table) for rows in population.measured)
    with pytest.raises(ValueError, match="of another release, or of the population"):
        estimate(released, "median(age)", method="bootstrap", replicates=population)
    for number in (3, 1001):
        with pytest.raises(ValueError, match="num_replicates"):
            bootstrap(released, number)
    with pytest.raises(ValueError, match="expected the release of a table"):
        bootstrap(released.measurement)


def test_estimates_of_all_methods(released, replicates):
    private = np.mean(_people(np.random.default_rng(0), 3000)["age"])
    found = {
        method: estimate(released, "mean(age)", method=method, replicates=replicates)
        for method in ("direct", "bootstrap")
    }
    assert estimate(released, "mean(age)") == found["direct"]
    for one in found.values():
        assert abs(one.value - private) < 6 * one.standard_error
    groups = estimate(released, "median(age) by rich", method="bootstrap", replicates=replicates)
    assert list(groups) == ["no", "yes"]
    assert groups["no"].value < groups["yes"].value
    direct_groups = estimate(released, "mean(age) by rich")
    assert list(direct_groups) == ["no", "yes"]
    assert direct_groups["yes"] == estimate(released, "mean(age) where rich=yes")
    for group, one in direct_groups.items():
        codes = SCHEMA.encode(_people(np.random.default_rng(0), 3000))
        private_of_group = Query.parse("mean(age) by rich", SCHEMA).answer(SCHEMA, codes)[group]
        assert abs(one.value - private_of_group) < 6 * one.standard_error
        assert one.standard_error < estimate(released, "mean(age) by rich", population=True)[group].standard_error
    direct = estimate(released, "mean(age)", method="direct", population=True)
    assert direct.standard_error > found["direct"].standard_error
    assert direct.population
    with pytest.raises(ValueError, match="method must be direct or bootstrap"):
        estimate(released, "mean(age)", method="best")
    with pytest.raises(ValueError, match="expected a release of points or of a table"):
        estimate(released.table, "mean(age)")
    with pytest.raises(ValueError, match=r"got a str; kme_jax.load\(folder\) reads what a folder holds"):
        estimate("published", "mean(age)")


def test_the_command(released, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    released.save("published")
    words = ["estimate", "published", "mean(age)", "share(rich=yes)"]
    assert cli.main([*words, "--method=direct", "--output=answers.json"]) == 0
    printed = capsys.readouterr()
    expected = estimate(released, "mean(age)", method="direct")
    assert f"mean(age): {expected}  (direct)\n" in printed.out
    assert "NOT PRIVATE" in printed.err
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers["mean(age)"][""]["value"] == expected.value
    assert cli.main([*words[:2], "median(age) by rich", "--method=bootstrap", "--num_replicates=4"]) == 0
    assert capsys.readouterr().out.startswith("median(age) by rich = no: ")
    for wrong, message in (
        ([*words, "--output=answers.json"], "exists"),
        (["estimate", "published", "mean(town)"], "is not numeric"),
        (["estimate", "published", "mean(age)", "--level=95"], "between 0 and 1"),
        (
            ["estimate", "published", "median(age) where town=a"],
            "noise or coarse bins hide how age and town go together",
        ),
        (["estimate", "published", "mean(age)", "--method=bootstrap", "--num_replicates=1"], "num_replicates"),
        (["estimate", "published", "mean(age)", "--num_replicates=9"], "is for --method=bootstrap"),
        (["estimate", "published", "count(*)", "--population"], "ask for a share or a mean of the population"),
        (["estimate", "nowhere", "mean(age)"], "no such folder"),
    ):
        assert cli.main(wrong) == 2
        error = capsys.readouterr().err
        assert message in error.splitlines()[-1]


def test_a_misspelt_question_does_not_end_the_command(released, tmp_path, monkeypatch, capsys):
    """The others are answered, and each of the misspelt ones is one line on standard error."""
    monkeypatch.chdir(tmp_path)
    released.save("published")
    words = ["estimate", "published", "mean(aeg)", "mean(age)", "maen(age)"]
    assert cli.main([*words, "--output=answers.json"]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("mean(age): ")
    told = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(told) == 2
    assert "there is no column 'aeg'" in told[0]
    assert "query 'maen(age)': there is no statistic maen; do you mean mean?" in told[1]
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert set(answers) == {"mean(aeg)", "mean(age)", "maen(age)"}
    assert "no column 'aeg'" in answers["mean(aeg)"]["error"]
    assert cli.main(["estimate", "published", "mean(aeg)", "maen(age)", "--output=none.json"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("error: ")) == ("", 2)
    assert not (tmp_path / "none.json").exists()
