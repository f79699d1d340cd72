"""Formats of dates that are text."""

import datetime
import itertools

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kme_jax import Datetime, Schema
from kme_jax._numerics.cells import is_time_format, parse_time, parse_time_in
from kme_jax.table.readers import open_table

FORMATS = tuple(
    sign.join(f"%{letter}" for letter in letters) + clock
    for letters in (*itertools.permutations("dmY"), *itertools.permutations("dmy"))
    for sign in (".", "/", "-", " ")
    for clock in ("", " %H:%M", "T%H:%M:%S")
    if not (letters[0] == "Y" and sign == "-")
)


@pytest.mark.parametrize("text", FORMATS)
def test_formats_are_read_as_by_the_standard_library(text):
    rng = np.random.default_rng(0)
    assert is_time_format(text)
    for _ in range(20):
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=int(rng.integers(0, 2**31)))
        written = moment.strftime(text)
        expected = datetime.datetime.strptime(written, text).replace(tzinfo=datetime.UTC)
        assert parse_time_in(text, written.encode()) == int(expected.timestamp())


@given(st.datetimes(), st.sampled_from(FORMATS))
def test_no_format_reads_iso_text_or_numbers(moment, text):
    """One cell of a DataFrame turns typed times into ISO text, and numbers into text. They must stay what they are."""
    digits = moment.strftime("%Y%m%d")
    cells = [moment.isoformat(), moment.isoformat(" "), str(moment.date()), digits, f"{digits}.0", f"{float(digits):e}"]
    for cell in cells:
        assert parse_time_in(text, cell.encode()) is None


def test_types_of_a_column_have_no_influence():
    column = Datetime("day", "2000-01-01", "2030-12-31", format="%d.%m.%Y", nullable=True)
    days = pandas.to_datetime(["2024-02-01", "2001-12-11", "2030-01-02"])
    schema, odd = Schema([column]), [datetime.date(2024, 2, 1), "01.02.2024", None, "x", 20240201]
    typed = np.concatenate(list(open_table(pandas.DataFrame({"day": days}), schema).codes()))[:, 0]
    mixed = pandas.DataFrame({"day": pandas.Series([*days, *odd], dtype=object)})
    found = np.concatenate(list(open_table(mixed, schema).codes()))[:, 0]
    assert found[:3].tolist() == typed.tolist()
    february = typed[0]
    assert found[3:].tolist() == [february, february, column.num_values, column.num_values, february]


def test_zones_and_bounds_are_as_the_guide_says():
    """Times with a zone are in UTC, and a bound without a time of day is midnight."""
    zoned = pandas.date_range("2025-07-01T00:30", periods=2, freq="D", tz="Europe/Berlin")
    schema = Schema([Datetime("t", "2025-01-01", "2025-12-31", "minute")])
    for cells in (zoned, [time.isoformat() for time in zoned], ["2025-06-30 22:30", "2025-07-01 22:30"]):
        codes = np.concatenate(list(open_table(pandas.DataFrame({"t": cells}), schema).codes()))
        times = schema.to_pandas(schema.decode(codes))["t"]
        assert times.astype(str).tolist() == ["2025-06-30 22:30:00", "2025-07-01 22:30:00"]
    last = np.concatenate(list(open_table(pa.table({"t": ["2025-12-31 15:30"]}), schema).codes()))
    assert str(schema.to_pandas(schema.decode(last))["t"][0]) == "2025-12-31 00:00:00"


def test_cells_of_a_format():
    column = Datetime("at", "2024-01-01", "2024-12-31T23:59", "minute", format="%d/%m/%Y %H:%M", default="2024-06-01")
    cells = [
        "1/2/2024 3:04",
        "01/02/2024 03:04",
        "2024-02-01 03:04",
        "31/02/2024 03:04",
        "1/2/2024",
        "1/2/2024 24:00",
        "٣/2/2024 3:04",
    ]
    at, unreadable = column.code("2024-02-01T03:04"), column.code("2024-06-01")
    assert column.encode(pa.array(cells)).tolist() == [at, at, at, *[unreadable] * 4]
    assert column.look(pa.array(cells)).tolist() == [at, at, at, -2, -2, -2, -2]
    assert Schema.from_json(Schema([column]).to_json()) == Schema([column])
    assert "format" not in Datetime("at", "2024-01-01", "2024-12-31").to_json()
    words = Datetime("at", "2024-01-01", "2024-12-31", format="%d.%m.%Y", nullable=True, missing=("01.01.1900",))
    assert words.encode(pa.array(["01.01.1900"])).tolist() == [words.num_values]


@pytest.mark.parametrize(
    "text",
    ["", "%d", "%d%m%Y", "%Y-%m-%d", "%d.%m-%Y", "%d.%m.%d", "%b %d %Y", "%d.%m.%Y %p", "%d.%m.%Y%H:%M", 3, "%d.%m"],
)
def test_other_formats_are_refused_in_one_line(text):
    with pytest.raises(ValueError, match="format must be like") as found:
        Datetime("at", "2024-01-01", "2024-12-31", format=text)
    assert "\n" not in str(found.value)
    assert parse_time(b"2024-01-01") is not None
