"""Groups of questions: hours, months, quarters and years of times."""

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Datetime, Numeric, PrivacyBudget, Schema
from kme_jax.analysis.queries import Query
from kme_jax.analysis.sums import Sums
from kme_jax.analysis.tables import direct_estimates
from kme_jax.table.measure import measure_table

FARE = Numeric("fare", 0, 100, step=0.5)
ZONE = Categorical("zone", ("a", "b"))
HOURS = [f"{hour:02}:00" for hour in range(24)]


def _schema(resolution, *, parts=True, last="2025-06-30"):
    times = Datetime("begin", "2025-01-05", last, resolution, nullable=True, parts=parts)
    return Schema((times, FARE, ZONE))


def _trips(rng, schema, num_rows):
    """Trips that are frequent in the morning and in the evening, with fares that depend on the hour."""
    hours = np.concatenate([rng.normal(9, 2, num_rows // 2), rng.normal(18, 3, num_rows - num_rows // 2)]) % 24
    days = rng.integers(0, 150, num_rows)
    begin = np.datetime64("2025-01-05", "s") + days * 86400 + (hours * 3600).astype(int)
    fares = np.round(2 * np.clip(20 + 15 * np.sin(hours / 12 * np.pi) + 5 * rng.normal(size=num_rows), 0, 100)) / 2
    begin = pa.array(begin, mask=rng.random(num_rows) < 0.05)
    rows = pa.table({"begin": begin, "fare": fares, "zone": np.where(rng.random(num_rows) < hours / 24, "a", "b")})
    return schema.decode(schema.encode(rows))


def _errors(schema, texts, rng, num_rows=8000, number=3):
    """For each question, the errors in units of the standard error, and whether intervals contain the private value."""
    rows = _trips(rng, schema, num_rows)
    codes = schema.extended_codes(schema.encode(rows))
    found = {text: [] for text in texts}
    for seed in range(number):
        sums = Sums.read(measure_table(rows, schema, budget=PrivacyBudget(6.0, 1e-6), secure=False, seed=seed))
        for text, errors in found.items():
            query = Query.parse(text, schema.extended)
            private = query.answer(schema.extended, codes)
            for name, one in direct_estimates(sums, query, 0.95).items():
                exact = private[name] * (num_rows if query.is_total else 1)
                errors.append(((one.value - exact) / one.standard_error, one.low <= exact <= one.high))
    return {text: np.asarray(errors) for text, errors in found.items()}


@pytest.mark.parametrize(
    "resolution",
    [pytest.param("hour", marks=pytest.mark.long), "minute", pytest.param("second", marks=pytest.mark.long)],
)
def test_intervals_of_hours_contain_the_private_values(rng, resolution):
    """Of whole hours exactly; minutes are in bins that hours cut, and seconds in cells, too."""
    texts = ("mean(fare) by begin hour", "count(*) by begin hour", "share(zone=a) by begin hour")
    for text, errors in _errors(_schema(resolution), texts, rng).items():
        assert len(errors) >= (72 if resolution == "hour" or "count" in text else 25), text  # 3 times 24
        assert errors[:, 1].mean() > 0.88, text
        size = np.sqrt(np.square(errors[:, 0]).mean())
        assert (0.75 if resolution == "hour" else 0.2) < size < 1.25, text


def test_intervals_of_months_contain_the_private_values(rng):
    schema = _schema("day", parts=False)
    for text, errors in _errors(schema, ("count(*) by begin month", "count(zone=a) by begin month"), rng).items():
        assert len(errors) >= 12, text
        assert errors[:, 1].mean() > 0.88, text


def test_groups_are_those_of_the_rows(rng):
    schema = _schema("minute")
    rows = _trips(rng, schema, 3000)
    times, fares = np.asarray(rows["begin"], "datetime64[s]"), rows["fare"].to_numpy()
    hours = times.astype("datetime64[h]").astype(int) % 24
    codes = schema.extended_codes(schema.encode(rows))
    query = Query.parse("mean(fare) by begin hour", schema.extended)
    assert query.asked_columns(schema.extended) == {"fare", "begin time"}
    answer = query.answer(schema.extended, codes)
    assert list(answer) == [*HOURS, "missing"]
    assert answer["09:00"] == pytest.approx(fares[(hours == 9) & ~np.isnat(times)].mean())
    assert answer["missing"] == pytest.approx(fares[np.isnat(times)].mean())
    for name, group in query.groups(schema.extended).items():
        text = f"mean(fare) where {' and '.join(group.conditions)}"
        same = Query.parse(text, schema.extended).answer(schema.extended, codes)[""]
        assert answer[name] == pytest.approx(same, nan_ok=True)
    plain = _schema("hour", parts=False)
    months = Query.parse("mean(fare) by begin month", plain.extended)
    answer = months.answer(plain, plain.encode(rows))
    assert list(answer) == [*(f"2025-0{month}" for month in range(1, 7)), "missing"]
    assert answer["2025-02"] == pytest.approx(fares[times.astype("datetime64[M]") == np.datetime64("2025-02")].mean())
    quarters, years = (Query.parse(f"mean(fare) by begin {unit}", plain.extended) for unit in ("quarter", "year"))
    assert list(quarters.groups(plain)) == ["2025-Q1", "2025-Q2", "missing"]
    assert list(years.groups(plain)) == ["2025", "missing"]
    for periods in (months, quarters, years):
        answer = periods.answer(plain, plain.encode(rows))
        for name, group in periods.groups(plain).items():
            text = f"mean(fare) where {' and '.join(group.conditions)}"
            same = Query.parse(text, plain).answer(plain, plain.encode(rows))[""]
            assert answer[name] == pytest.approx(same, nan_ok=True)


@pytest.mark.parametrize(
    ("schema", "by", "message"),
    [
        (_schema("hour", parts=False), "begin hour", 'hours of the day of begin were not counted.* "parts": true'),
        (_schema("day"), "begin hour", "begin has days alone, and no hours"),
        (_schema("hour"), "begin month", "weeks of begin were counted.*a month ends within a week"),
        (_schema("day", parts=False, last="2055-01-01"), "begin month", "begin has 361 months, and at most 256 groups"),
        (_schema("minute"), "begin time", "begin time has 1441 values.* or by begin hour"),
        (_schema("minute"), "begin", "at most 256 groups.* use where with a range, or by begin hour"),
        (_schema("day", parts=False, last="2026-06-30"), "begin", "use where with a range, or by begin month"),
        (_schema("day", last="2026-06-30"), "begin", "use where with a range$"),
        (_schema("day", parts=False), "begin week", "a week of begin was not counted; .* a range, or by begin month$"),
        (_schema("hour", parts=False), "begin weekday", 'weekdays are if the schema says "parts": true of it'),
        (_schema("hour"), "begin year", "weeks of begin were counted.*a year ends within a week"),
        (_schema("hour"), "begin quarter", "weeks of begin were counted.*a quarter ends within a week"),
        (_schema("day"), "fare hour", "there is no column 'fare hour'"),
        (_schema("day"), "zone, begin", "one column at most can follow by"),
    ],
)
def test_groups_that_cannot_be(schema, by, message):
    with pytest.raises(ValueError, match=message) as error:
        Query.parse(f"count(*) by {by}", schema.extended)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("resolution", ["day", "hour"])
def test_weeks_tell_how_many_times_lie_between_mondays(resolution, rng):
    schema = _schema(resolution)
    rows = _trips(rng, schema, 3000)
    measured = measure_table(rows, schema, budget=PrivacyBudget(3.0, 1e-5), secure=False)
    codes = schema.extended_codes(schema.encode(rows))
    lower = schema.columns[schema.names.index("begin")].lower
    for where in ("begin>=2025-02-03", "begin<2025-02-03", "begin>=2025-02-03 and begin<2025-03-03", "begin=missing",
                  f"begin>={lower}", "begin!=missing"):  # fmt: skip
        query = Query.parse(f"share({where})", schema.extended)
        answer = direct_estimates(measured, query, 0.95)[""]
        assert abs(answer.value - query.answer(schema.extended, codes)[""]) < 4 * answer.standard_error < 0.1, where
    within = Query.parse("share(begin>=2025-02-05)", schema.extended)
    with pytest.raises(ValueError, match="take Mondays as limits of begin, whose weeks were counted; the method boot"):
        direct_estimates(measured, within, 0.95)


def test_an_hour_is_no_condition():
    schema = _schema("hour")
    with pytest.raises(ValueError, match=r"hours are groups \(by begin hour\); here, ask for begin time"):
        Query.parse("share(begin hour>=20)", schema.extended)


def test_a_column_of_that_name_comes_first():
    schema = Schema((*_schema("hour").columns, Categorical("begin hour", ("early", "late"))))
    assert list(Query.parse("count(*) by begin hour", schema.extended).groups(schema.extended)) == ["early", "late"]
