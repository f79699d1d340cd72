import datetime
import decimal
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kme_jax._numerics.arrow import floats_of
from kme_jax._numerics.text import said
from kme_jax.storage.files import FileError
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.draft import draft_schema
from kme_jax.table.readers import open_table
from kme_jax.table.schema import Schema, write_json

AGE = Numeric("age", 0, 100, integer=True, nullable=True)
JOB = Categorical("job", ("clerk", "émigré"), nullable=True)
DAY = Datetime("day", "2024-01-01", "2024-12-31", "day", nullable=True)
COLUMNS = [
    AGE,
    Numeric("hours", -20, 80, integer=True, step=5),
    Numeric("price", 0.5, 99.99, step=0.01, default=1.5),
    Numeric("size", 1e9, 1e9 + 1, nullable=True),
    JOB,
    Ordinal("grade", ("low", "high")),
    DAY,
    *(Datetime(unit, "1969-12-31T22:00", "1970-01-02", unit, nullable=True) for unit in ("hour", "minute", "second")),
    Numeric("fortune", -5, 1e9, scale="log", nullable=True),
    Numeric("weight", 0, 6000, integer=True, knots=(2000, 4500)),
]
SCHEMA = Schema(tuple(COLUMNS))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_codes_survive_decoding(column, data):
    codes = np.array(data.draw(st.lists(st.integers(0, column.num_codes - 1), min_size=1)))
    values = column.decode(codes)
    column.check(values)
    assert values.type == column.type
    assert values.null_count == np.sum(codes == column.num_values)
    np.testing.assert_array_equal(column.encode(values), codes)
    np.testing.assert_array_equal(column.encode(pa.chunked_array([values, values[:1]])), [*codes, codes[0]])
    np.testing.assert_array_equal(column.encode(values.dictionary_encode()), codes)
    assert [column.code(label) for label in column.labels(codes)] == list(codes)
    if column.kind in ("numeric", "datetime"):
        ordered = column.decode(np.unique(codes)).drop_null().to_pylist()
        assert ordered == sorted(set(ordered))


def test_knots_and_scales_are_codes():
    """A binary logarithm has knots at powers of two steps from the lower bound."""
    assert Numeric("a", 10, 30, integer=True, scale="log").codes_of_knots == (1, 2, 4, 8, 16, 20)
    assert Numeric("a", 10, 30, integer=True, knots=(11, 20)).codes_of_knots == (1, 2, 10, 11, 20)
    assert Numeric("a", 10, 30, knots=(20,)).num_values == 2**24
    assert Numeric("a", 10, 30).codes_of_knots == AGE.codes_of_knots == JOB.codes_of_knots == ()
    assert max(Numeric("a", 0, 1e12, scale="log").codes_of_knots) < 2**24
    column = Numeric("a", 0, 9, knots=[3, 5.5])
    assert Schema.from_json(Schema((column,)).to_json()).columns == (column,)
    assert not {"scale", "knots"} & AGE.to_json().keys()


@given(
    st.floats(-1e12, 1e12), st.floats(1e-3, 1e12), st.sampled_from([None, 1e-6, 0.01, 0.25, 3.0]), st.integers(0, 2**60)
)
@settings(max_examples=200, deadline=None)
def test_every_grid_is_exact(lower, width, step, seed):
    upper = lower + width if step is None else lower + step * max(1, int(min(width / step, 2**40)))
    try:
        column = Numeric("x", lower, upper, step=step)
    except ValueError:
        assert max(abs(lower), abs(upper)) > 2**30 * (step or width / 2**16)
        return
    codes = np.random.default_rng(seed).integers(column.num_codes, size=100)
    codes[:2] = 0, column.num_codes - 1
    values = column.decode(codes).to_numpy()
    assert lower <= values.min() <= values.max() <= upper
    np.testing.assert_array_equal(column.encode(pa.array(values)), codes)


def test_values_are_exact_and_short():
    assert Numeric("x", 0, 99.99, step=0.01).decode([1234]).to_pylist() == [12.34]
    assert Numeric("x", 0.05, 100.05, step=0.1).decode([3, 1000]).to_pylist() == [0.35, 100.05]
    assert Numeric("x", 1 - 2**52, 2**52, integer=True).decode([0, 2**53 - 1]).to_pylist() == [1 - 2**52, 2**52]
    assert Numeric("x", 0, 2**53 - 1, integer=True, nullable=True).encode(pa.array([None, 2**60])).tolist() == [
        2**53,
        2**53 - 1,
    ]
    assert Numeric("x", 0, 1).num_codes == 2**16
    assert Numeric("x", 0, 1).labels([0, 1, 65535]) == ["0.00000", "0.00002", "1.00000"]
    assert COLUMNS[2].labels([0, 1]) == ["0.50", "0.51"]
    assert DAY.decode([60]).to_pylist() == [datetime.date(2024, 3, 1)]
    assert DAY.labels([60, 366]) == ["2024-03-01", "missing"]
    assert COLUMNS[7].labels([0, 26, 27]) == ["1969-12-31 22:00", "1970-01-02 00:00", "missing"]
    assert COLUMNS[9].labels([61]) == ["1969-12-31 22:01:01"]


CENTURY = Numeric("x", 0, 100, integer=True)
ODD_NUMBERS = {
    **{b"7": 7, b" 7.4\t": 7, b"+7": 7, b"7e0": 7, b"-0": 0, b"1e400": 100, b"-inf": 0, b"Infinity": 100},
    **{b"9" * 5000: 100, b"-" + b"9" * 5000: 0, b"18446744073709551616": 100, b"-1": 0, b"100.0000001": 100},
    **{b"": None, b"  ": None, b"nan": None, b"NaN": None, b"-nan": None},
    **dict.fromkeys([b"0x10", b"1_000", b"1,5", b"\xff", b"\x00", b"7 7", b"seven", "٧".encode(), b"1e", b"--1"]),
}
ODD_TIMES = {
    **{
        b"2024-01-02": 1,
        b"20240102": 1,
        b"2024-01-02 23:59:59.999": 1,
        b"2024-01-03T00:30+01:00": 1,
        b" 2024-01-02 ": 1,
    },
    **{b"0001-01-01T00:00+14:00": 0, b"9999-12-31T23:59-14:00": 365, b"1066-10-14": 0},
    **dict.fromkeys(
        [b"", b"2024-02-30", b"12024-01-01", b"2024", b"nan", b"\xff", b"1704153600", "٢٠٢٤-01-01".encode()]
    ),
}
ODD_CATEGORIES = {
    **{b"clerk": 0, b" clerk\r": 0, "émigré".encode(): 1, b"": None, b" ": None},
    **dict.fromkeys(["émigré".encode("latin-1"), b"Clerk", b"clerk\x00", b"\xff\xfe", b"missing", b"x" * 10**5]),
}
ODD = [
    *((Numeric("x", 0, 100, integer=True, nullable=True), cell, code, 101) for cell, code in ODD_NUMBERS.items()),
    *((CENTURY, cell, code, 50) for cell, code in ODD_NUMBERS.items()),
    *((DAY, cell, code, 366) for cell, code in ODD_TIMES.items()),
    *((JOB, cell, code, 2) for cell, code in ODD_CATEGORIES.items()),
    *((Ordinal("x", JOB.categories), cell, code, 0) for cell, code in ODD_CATEGORIES.items()),
    *((Ordinal("x", JOB.categories, default="émigré"), cell, code, 1) for cell, code in ODD_CATEGORIES.items()),
]


@pytest.mark.parametrize("column", [column for i, (column, *_) in enumerate(ODD) if column is not ODD[i - 1][0]])
def test_odd_text_passes_in_silence(column):
    cells, codes, others = zip(*((cell, code, other) for c, cell, code, other in ODD if c is column), strict=True)
    expected = [other if code is None else code for code, other in zip(codes, others, strict=True)]
    array = pa.array(cells, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(array), array.buffers())  # not valid UTF-8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (
            array,
            text,
            array.cast(pa.large_binary()),
            array.cast(pa.binary_view()),
            array.dictionary_encode(),
        ):
            assert column.encode(kind).tolist() == expected, kind.type
        assert column.encode(array[:0]).tolist() == []
        missing = {column.encode(pa.nulls(1, kind)).item() for kind in (pa.null(), pa.string(), pa.binary(3))}
        assert missing == {column.encode(pa.array([""])).item()}


def test_missing_and_unreadable_cells_of_a_nullable_column_with_a_default():
    for column, good in [
        (Numeric("x", 0, 10, integer=True, nullable=True, default=3), 3),
        (Categorical("x", ("a", "b"), nullable=True, default="b"), 1),
        (Datetime("x", "2024-01-01", "2024-01-09", "day", nullable=True, default="2024-01-03"), 2),
    ]:
        assert column.encode(pa.array(["", None, "?"])).tolist() == [column.num_values, column.num_values, good]
        assert column.num_codes == column.num_values + 1


SIGNALLING_NAN = np.array([0x7FF0000000000001], np.uint64).view(np.float64)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([-5, 3, None, 127], pa.int8()), [0, 3, 50, 100]),
        (pa.array([2**64 - 1, 4], pa.uint64()), [100, 4]),
        (pa.array([-(2**63), 2**63 - 1]), [0, 100]),
        (pa.array([np.nan, np.inf, -np.inf, 2.6, -0.0, 1e308, None]), [50, 100, 0, 3, 0, 100, 50]),
        (pa.array(SIGNALLING_NAN), [50]),
        (pa.array([np.float16(2.6), None]), [3, 50]),
        (pa.array([True, False, None]), [1, 0, 50]),
        (pa.array([decimal.Decimal(10) ** 37, decimal.Decimal(7), None], pa.decimal128(38, 0)), [100, 7, 50]),
        (pa.array([decimal.Decimal(-(10**75))], pa.decimal256(76, 0)), [0]),
        (pa.array([decimal.Decimal("7.50")], pa.decimal32(5, 2)), [8]),
        (pa.array([7, None, 7]).dictionary_encode(), [7, 50, 7]),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["8", None])), [8, 50, 50]),
        (pa.DictionaryArray.from_arrays(pa.array([127], pa.int8()), pa.array(range(128))), [100]),
    ],
)
def test_numbers_of_any_type(array, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CENTURY.encode(array).tolist() == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2, None, 3], pa.uint8()),
        pa.array([1, 2, None, 3], pa.float32()),
        pa.array([1, 2, np.nan, 3e300]),
        pa.array([decimal.Decimal(1), decimal.Decimal(2), None, decimal.Decimal(3)], pa.decimal64(12, 2)),
        pa.array(["1", "+2e0", None, "1.5"]),
    ],
)
def test_numbers_as_categories(array):
    assert Categorical("x", ("2", "1"), nullable=True).encode(array).tolist() == [1, 0, 2, 2]


def test_one_cell_however_it_is_written():
    """Whole numbers, floats, bools and their texts are one cell, for a schema that has one of them as a category."""
    cells = [pa.array(["1", "1.0", "01", "true", "TRUE", "1e0", "(1+0j)"]), pa.array([1]), pa.array([1.0])]
    cells += [pa.array([True]), pa.array([decimal.Decimal("1.00")]), pa.array([np.float32(1)])]
    for category in ("1", "1.0", "true", "True", "01"):
        column = Categorical("x", ("0", category, "b"), nullable=True)
        assert {code for array in cells for code in column.encode(array)} == {1}
    times = [pa.array(["2024-03-01", "2024-03-01 00:00:00+00:00", "2024-03-01T01:00:00.5+01:00"])]
    times += [pa.array([datetime.date(2024, 3, 1)]), pa.array([datetime.datetime(2024, 3, 1)])]
    for category in ("2024-03-01", "2024-03-01T00:00"):
        column = Categorical("x", ("2024", category), nullable=True)
        assert {code for array in times for code in column.encode(array)} == {1}
    for array in (
        pa.array(["10:30", "10:30:00"]),
        pa.array([datetime.time(10, 30)]),
        pa.array([37800], pa.time32("s")),
    ):
        assert set(Categorical("x", ("a", "10:30"), nullable=True).encode(array)) == {1}
    for array in (pa.array(["20240301", "20240301.0", "2024-03-01"]), pa.array([20240301]), pa.array([20240301.0])):
        assert set(DAY.encode(array)) == {60}
    odd = pa.array([2024.0, 20240301.5, 20241301.0, np.inf, np.nan, -20240301.0])
    assert DAY.encode(odd).tolist() == [366] * 6
    assert DAY.encode(pa.array(["2024", "20240301.5", "20241301", "true", "20240301123"])).tolist() == [366] * 5


def test_words_for_missing_cells_are_missing():
    column = Categorical("x", ("a", "NA"), nullable=True, default="a")
    assert column.encode(pa.array(["n/a", "NULL", "nan", "NaT", "NA", "?"])).tolist() == [2, 2, 2, 2, 1, 0]
    column = Numeric("x", 0, 9, integer=True, nullable=True, default=4)
    assert column.encode(pa.array(["n/a", "NULL", "nan", "NaT", "NA", "?"])).tolist() == [10] * 5 + [4]
    column = Datetime("x", "2024-01-01", "2024-01-09", "day", nullable=True, default="2024-01-03")
    assert column.encode(pa.array(["n/a", "nan", "?", "5"])).tolist() == [9, 9, 2, 2]


def test_narrow_floats_are_the_category_that_is_rounded_to_them():
    column = Categorical("x", ("0.1", "0.3", "3", "0.2", "0.20000000001", "16777217"), nullable=True)
    narrow = np.array([0.1, 0.3, 3, 0.2, 16777217], np.float32)
    assert column.encode(pa.array(narrow)).tolist() == [0, 1, 2, 6, 6]
    assert column.encode(pa.array(narrow.astype(np.float64))).tolist() == [0, 1, 2, 6, 6]
    assert column.encode(pa.array([str(float(x)) for x in narrow])).tolist() == [0, 1, 2, 6, 6]
    assert column.encode(pa.array(np.array([0.1, 0.3], np.float16))).tolist() == [0, 1]
    assert Categorical("x", ("70000.5", "a"), nullable=True).encode(pa.array([np.inf, 70000.5])).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "01"),
        ("1", "true"),
        ("False", "false"),
        ("9007199254740993", "9007199254740992"),
        ("1234567890123456789", "1234567890123456790"),
        ("2024-01-01", "2024-01-01T00:00"),
        ("10:30", "10:30:00"),
    ],
)
def test_categories_that_are_the_same_number_or_time_need_raw_text(tmp_path, first, second):
    schema = Schema((Categorical("x", (first, second, "b"), nullable=True),))
    tables = [pa.table({"x": pa.array(cells)}) for cells in (["a", first], [1, 2], [0.5, None], [[1], []])]
    pq.write_table(tables[0], tmp_path / "x.parquet")
    for data in (*tables, tmp_path / "x.parquet", tables[0].to_pandas(), tables[1].to_pandas()):
        with pytest.raises(FileError, match=r"column x: categories .* and .* are the same .*: rename or") as error:
            open_table(data, schema)
        assert "\n" not in str(error.value)
    path = tmp_path / "x.csv"
    path.write_text(f"x\n{first}\n{second}\n{first} \n+1\n2024-01-01 00:00\n\n")
    (codes,) = open_table(path, schema).codes()
    assert codes[:, 0].tolist() == [0, 1, 0, 3, 3, 3]


def test_decimals_are_rounded_once(rng):
    with decimal.localcontext(decimal.Context(prec=60)):
        for kind in (pa.decimal128(18, 3), pa.decimal128(38, 25), pa.decimal256(50, 30), pa.decimal64(15, 2)):
            numbers = [decimal.Decimal(int(x)).scaleb(-kind.scale) for x in rng.integers(-(10**14), 10**14, size=300)]
            array = pa.array([*numbers, None], kind)
            expected = [float(str(number)) for number in array.to_pylist()[:-1]]
            np.testing.assert_array_equal(floats_of(array)[:-1], expected)
            np.testing.assert_array_equal(floats_of(array[7:])[:-1], expected[7:])
            assert np.isnan(floats_of(array)[-1])


def test_a_dictionary_of_views_that_is_longer_than_its_batch():
    words = pa.array([f"word {i}" for i in range(20)])
    for kind in (pa.string_view(), pa.binary_view()):
        array = pa.DictionaryArray.from_arrays(pa.array([3, None, 19]), words.cast(pa.binary()).cast(kind))
        assert Categorical("x", ("word 19", "word 3"), nullable=True).encode(array).tolist() == [1, 2, 0]


def test_values_below_any_public_one():
    age, tens = Numeric("x", 0, 100, integer=True), Numeric("x", -20, 80, step=10)
    for text, expected in {"3": (3, 4), "3.5": (4, 4), "-1": (0, 0), "101": (101, 101), "inf": (101, 101)}.items():
        assert age.below(text) == expected
    assert tens.below("-14") == (1, 1)
    assert tens.below("-16") == (1, 1)
    assert tens.below(" -10 ") == (1, 2)
    day = Datetime("x", "2024-01-01", "2024-12-31", "day")
    for text, expected in {
        "2024-01-02": (1, 2),
        "2024-01-02T00:00:01": (2, 2),
        "2023-05-05": (0, 0),
        "2024-12-31T23:59": (366, 366),
        "2030-01-01": (366, 366),
    }.items():
        assert day.below(text) == expected
    size = Ordinal("x", ("S", "M", "L"))
    assert size.below("M") == (1, 2)
    for column, text in ((age, "old"), (age, "nan"), (day, "soon"), (size, "XL")):
        with pytest.raises(ValueError, match=f"{text}' is no"):
            column.below(text)


def test_large_numbers_and_fractions_as_categories():
    column = Categorical("x", ("12345678901", "0.1"))
    assert column.encode(pa.array([0.1, 12345678901.0])).tolist() == [1, 0]
    assert column.encode(pa.array([0.1], pa.float32())).tolist() == [1]
    assert Categorical("x", ("1", "0")).encode(pa.array([-0.0, 0.0, 1.0])).tolist() == [1, 1, 0]
    assert Categorical("x", ("false", "true")).encode(pa.array([True, False])).tolist() == [1, 0]
    assert Categorical("x", ("yes", "no"), default="no").encode(pa.array([True, False])).tolist() == [1, 1]


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(),
        pa.date64(),
        *(pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in (None, "Asia/Tokyo")),
    ],
    ids=str,
)
def test_times_of_any_type(kind):
    days = pa.array([19724, -(10**4), 10**5, None], pa.int32()).cast(pa.date32())
    assert DAY.encode(days.cast(kind)).tolist() == [1, 0, 365, 366]
    before = pa.array([-1], pa.int64()).cast(pa.timestamp("ns"))
    hour = Datetime("x", "1969-12-31T22:00", "1970-01-02", "hour")
    assert hour.labels(hour.encode(before)) == ["1969-12-31 23:00"]
    extremes = pa.array([-(2**63), 2**63 - 1]).cast(pa.timestamp("s"))
    assert DAY.encode(extremes).tolist() == [0, 365]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1], None, [2]]),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array([5, None, 7], pa.duration("s")),
        pa.array([(1, 2, 3), None, (4, 5, 6)], pa.month_day_nano_interval()),
        pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.array([[1]])),
        pa.UnionArray.from_sparse(
            pa.array([0, 1, 0], pa.int8()), [pa.array([[1], [1], [2]]), pa.array([None, None, None], pa.float64())]
        ),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array([[1], None, [2]])),
    ],
    ids=lambda array: str(array.type)[:30],
)
def test_types_without_values_are_unreadable(array):
    for column in (*COLUMNS, Numeric("x", 0, 9, integer=True, nullable=True, default=4)):
        missing, unreadable = column.encode(pa.array([None, "?"]))
        assert column.encode(array).tolist() == [unreadable, missing, unreadable]
        assert column.encode(pa.chunked_array([array, array])[1:4]).tolist() == [missing, unreadable, unreadable]


def test_types_that_other_kinds_of_columns_have_are_unreadable():
    times, numbers = pa.array([None, 5], pa.timestamp("s")), pa.array([None, 5.0])
    for column, array in ((AGE, times), (JOB, times), (DAY, numbers), (AGE, pa.array([None, 5], pa.time32("s")))):
        assert column.encode(array).tolist() == [column.num_values] * 2
    filled = Numeric("x", 0, 9, integer=True, nullable=True, default=4)
    assert filled.encode(times).tolist() == [10, 4]


def test_runs_are_decoded(rng):
    array = pa.array(np.repeat([1.0, np.nan, 7.0, 200.0], [3, 1, 4, 2]))
    runs = pc.run_end_encode(array)
    for start in range(10):
        assert CENTURY.encode(runs[start:9]).tolist() == CENTURY.encode(array[start:9]).tolist()


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (AGE, "65", 65),
        (AGE, 65.0, 65),
        (AGE, " missing", 101),
        (AGE, None, 101),
        (JOB, "émigré", 1),
        (Categorical("x", ("a", "missing")), "missing", 1),
        (DAY, "2024-03-01", 60),
        (DAY, datetime.date(2024, 3, 1), 60),
        *(
            (AGE, value, "not one of its values, 0 to 100")
            for value in ("old", "", "nan", "101", "inf", "6_5", "64.5", True)
        ),
        (COLUMNS[1], "7", "-20 to 80 in steps of 5"),
        (COLUMNS[1], "missing", "not nullable"),
        (JOB, "Clerk", "not one of its values, clerk, émigré"),
        (DAY, "2025-01-01", "2024-01-01 to 2024-12-31"),
        (DAY, "\ud800", "2024-01-01 to 2024-12-31"),
    ],
)
def test_literals(column, value, expected):
    if isinstance(expected, int):
        assert column.code(value) == expected
        return
    with pytest.raises(ValueError, match=f"column {column.name}: .*{expected}"):
        column.code(value)


def test_decoding_refuses_other_numbers():
    for codes in ([102], [-1]):
        with pytest.raises(ValueError, match="column age: codes must be at least 0 and below 102"):
            AGE.decode(codes)
    with pytest.raises(ValueError, match="shape"):
        SCHEMA.decode(np.zeros((3, 2), int))


@pytest.mark.parametrize(
    ("column", "array"),
    [
        (AGE, pa.array([1, 101])),
        (AGE, pa.array([1, 2.5])),
        (AGE, pa.array(["1", "2"])),
        (COLUMNS[1], pa.array([5, 7])),
        (COLUMNS[1], pa.array([5, None])),
        (COLUMNS[2], pa.array([0.5, 0.505])),
        (COLUMNS[3], pa.array([1e9, np.nan])),
        (COLUMNS[3], pa.array([1e9, 2e9])),
        (JOB, pa.array(["clerk", "x"])),
        (JOB, pa.array(["clerk", " clerk"])),
        (DAY, pa.array([datetime.date(2024, 1, 1), datetime.date(2025, 1, 1)])),
        (DAY, pa.array([1, 2], pa.timestamp("us"))),
        (COLUMNS[7], pa.array([0, 60], pa.timestamp("s"))),
    ],
)
def test_check_refuses_invalid_values(column, array):
    with pytest.raises(ValueError, match=f"column {column.name}: (1 cells .* row 2|type .* expected)"):
        column.check(array)


def test_check_of_a_table():
    table = SCHEMA.decode(SCHEMA.encode(pa.table({name: pa.nulls(3) for name in SCHEMA.names})))
    SCHEMA.check(table)
    SCHEMA.check(table.set_column(3, "size", pa.array([1e9 + 0.123456] * 3)))  # its grid is no property of values
    with pytest.raises(ValueError, match="columns must be age, "):
        SCHEMA.check(table.select(SCHEMA.names[::-1]))


def test_tables_are_encoded_by_name():
    table = pa.table({name: pa.array(["7", "clerk"]) for name in reversed(SCHEMA.names)})
    codes = SCHEMA.encode(table)
    assert codes.dtype == np.int64
    assert codes.shape == (2, len(COLUMNS))
    assert codes[:, 0].tolist() == [7, 101]
    assert codes[:, SCHEMA.index("job")].tolist() == [2, 0]
    for batch in table.to_batches():
        np.testing.assert_array_equal(SCHEMA.encode(batch), codes)
    with pytest.raises(ValueError, match="no column 'x' in the schema, which has age"):
        SCHEMA.index("x")


BAD_COLUMNS = [
    ({"kind": "numeric", "lower": 0, "upper": 9, "scale": "cubic"}, 'scale must be "linear" or "log"'),
    ({"kind": "numeric", "lower": 0, "upper": 9, "scale": "log", "knots": [3]}, "either knots or the scale"),
    ({"kind": "numeric", "lower": 0, "upper": 9, "knots": 3}, "knots must be a list of numbers, got 3"),
    *(
        ({"kind": "numeric", "lower": 0, "upper": 9, "knots": [x]}, "between the bounds")
        for x in (0, 9, True, "3", None)
    ),
    ({"kind": "numeric", "lower": 0, "upper": 9, "integer": True, "knots": [3, 3]}, "knots must increase"),
    ({"kind": "numeric", "lower": 0, "upper": 9, "integer": True, "knots": [5, 3]}, "knots must increase"),
    ({"kind": "numeric", "lower": 0, "upper": 9, "knots": [1 + i / 99 for i in range(29)]}, "at most 28 knots"),
    ({"kind": "numeric", "lower": 5, "upper": 5}, "lower must be below upper, got 5.0 and 5.0"),
    ({"kind": "numeric", "lower": 5, "upper": 1}, "lower must be below upper"),
    ({"kind": "numeric", "lower": None, "upper": 1}, "lower is null: fill in a bound from public knowledge"),
    ({"kind": "numeric", "lower": 1}, "upper is not given: fill in"),
    *(({"kind": "numeric", "lower": 0, "upper": x}, "upper must be finite") for x in (np.nan, np.inf, 10**400, -1e308)),
    *(({"kind": "numeric", "lower": 0, "upper": x}, "upper must be a number") for x in ("9", True, [9])),
    ({"kind": "numeric", "lower": 0, "upper": 1.5, "integer": True}, "upper must be a whole number"),
    ({"kind": "numeric", "lower": 0, "upper": 2, "integer": 1}, "integer must be true or false"),
    ({"kind": "numeric", "lower": 0, "upper": 2, "integer": None}, "integer is null"),
    ({"kind": "numeric", "lower": 0, "upper": 2**53, "integer": True}, "its grid is too large"),
    ({"kind": "numeric", "lower": -(2**53), "upper": 2**53, "integer": True}, "its grid is too large"),
    ({"kind": "numeric", "lower": 0, "upper": 1e6, "step": 1e-12}, "its grid is too large"),
    ({"kind": "numeric", "lower": 1e17, "upper": 1e17 + 100}, "its grid is too large"),
    ({"kind": "numeric", "lower": 0, "upper": 1e-320}, "its grid is too large"),
    ({"kind": "numeric", "lower": 17, "upper": 90, "step": 5}, "upper is 90.0, which steps of 5.0 miss; take 92"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "step": 0}, "step must be positive"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "unit": 5}, "unit must be text"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "default": 2}, "'2' is not one of its values"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "nullable": None}, "nullable is null: fill in true"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "nullable": "yes"}, "nullable must be true or false"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "minimum": 2}, "unknown field 'minimum' .*do you mean lower.$"),
    ({"kind": "categorical", "categories": ["a", "missing"], "nullable": True}, "a category is named 'missing'"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "categories": ["a"]}, "categories does not apply to kind numeric"),
    ({"kind": "categorical", "categories": None}, "categories is null: list them"),
    ({"kind": "categorical", "categories": []}, "the list of categories is empty"),
    ({"kind": "categorical", "categories": "ab"}, "categories must be a list"),
    ({"kind": "categorical", "categories": 3}, "categories must be a list"),
    ({"kind": "categorical", "categories": ["a", "b", "a"]}, "categories appear more than once: a; list each once$"),
    *(
        ({"kind": "ordinal", "categories": ["a", x]}, "a category must be text")
        for x in (1, "", " b", None, "\ud800", ["b"])
    ),
    ({"kind": "ordinal", "categories": [*map(str, range(10**5))]}, "100000 categories, more than 4096: group them"),
    ({"kind": "categorical", "categories": ["a"], "default": "b"}, "'b' is not one of its values"),
    ({"kind": "categorical", "categories": ["a"], "default": True}, "'True' is not one of its values"),
    (
        {"kind": "categorical", "categories": [1067]},
        r"got the number 1067: write it with quotes.*zeros, as in \"01067\"",
    ),
    ({"kind": "categorical", "categories": [True, "True"]}, "categories appear more than once: True"),
    ({"kind": "datetime", "lower": "2024-01-01", "upper": "2024-01-01T05", "resolution": "day"}, "lower must be below"),
    ({"kind": "datetime", "lower": "2024-01-01", "upper": "2024-13-01", "resolution": "day"}, "upper must be ISO text"),
    ({"kind": "datetime", "lower": "2024-01-01", "upper": 2025, "resolution": "day"}, "upper must be ISO text"),
    (
        {"kind": "datetime", "lower": "2024-01-01", "upper": "2025-01-01", "resolution": "week"},
        "resolution must be one",
    ),
    *(
        ({"kind": x}, "unknown kind .*free text and identifiers cannot be released: give them the kind drop")
        for x in ("text", "ids", 3, [])
    ),
    *(
        (
            {"name": name, "kind": "categorical", "categories": ["x"]},
            f"column {shown}.*: a name must be text of at most",
        )
        for name, shown in (
            ("a\nb", r"'a\\nb'"),
            ("a\u202eb", r"'a\\u202eb'"),
            ("a\u2028b", r"'a\\u2028b'"),
            ("\x1b[31mred", r"'\\x1b\[31mred'"),
            ("a" * 10**6, r"'a{99} \(1000002 characters\)"),
        )
    ),
    *(
        (
            {"kind": "categorical", "categories": ["a", x]},
            "a category must be text of at most 1000 printable characters",
        )
        for x in ("a\rb", "\u200b", "a\u00a0b", "a" * 1001, [[]], {}, 1e999)
    ),
    *(
        ({"kind": "numeric", "lower": 0, "upper": 1, "unit": x}, "unit must be text of at most 1000 printable")
        for x in ("k\tg", "a" * 1001, [], {}, True, 1)
    ),
    *(
        ({"kind": "datetime", "lower": "2024-01-01", "upper": "2025-01-01", "resolution": x}, "resolution must be one")
        for x in ({}, ["day"], 1, np.nan, True, "d" * 10**6)
    ),
    *(
        ({"kind": "numeric", "lower": 0, "upper": 1, field: x}, f"{field} must be|{field} .* grid is too")
        for field in ("lower", "upper", "step", "integer", "nullable")
        for x in ({}, [], [[1]], "1" * 10**6, "\u202e", np.nan, -np.inf)
    ),
    *(
        ({"kind": "numeric", "lower": 0, "upper": 1, "default": x}, "(default must be|is not) one of its values")
        for x in ({}, [], [[1]], "1" * 10**6, "\u202e", np.nan, -np.inf, True)
    ),
    *(({"kind": x}, "unknown kind") for x in ({}, True, 1.5, "x" * 10**6, "a\u2028b")),
    ({"kind": "numeric", "lower": 0, "upper": 1, "x" * 10**6: 2}, "unknown field 'x"),
    ({"kind": "numeric", "lower": 0, "upper": 1, "a\u2028b": 2}, r"unknown field 'a\\u2028b'"),
    ({"kind": None}, "kind is null: fill in numeric, categorical"),
]


def test_bools_as_categories(tmp_path):
    path = tmp_path / "schema.json"
    column = {"name": "insured", "kind": "categorical", "categories": [False, True], "default": True}
    path.write_text(json.dumps({"schema_version": 1, "columns": [column]}))
    schema = Schema.read(path)
    assert schema == Schema((Categorical("insured", (False, True), default=True),))
    assert schema.columns[0].categories == ("False", "True")
    assert schema.columns[0].default == "True"
    assert Schema.from_json(schema.to_json()) == schema
    for cells in ([True, False, None], ["true", "FALSE", "unknown"], [1, 0, 7]):
        assert schema.encode(pa.table({"insured": cells}))[:, 0].tolist() == [1, 0, 1]
    frame = schema.to_pandas(schema.decode(np.array([[1], [0]])))
    assert frame["insured"].dtype == bool
    assert frame["insured"].tolist() == [True, False]


@pytest.mark.parametrize("column", [Categorical, Ordinal])
def test_public_values_are_read_as_cells_are(column):
    for categories, value, code in (
        ((False, True), "true", 1),
        ((False, True), 0, 0),
        (("01067", "10115"), "1067", 0),
        (("01067", "1067"), "1067", 1),  # exactly this text
        (("2024-03-01", "other"), "20240301", None),
        (("01067", "01068", "1068"), "1068.0", None),  # one number, two categories
        (("clerk", "nurse"), "NURSE", None),
    ):
        made = column("x", categories)
        if code is None:
            with pytest.raises(ValueError, match="not one of its values"):
                made.code(value)
        else:
            assert made.code(value) == code
            assert made.encode(pa.array([str(value)])).tolist() == [code]


@pytest.mark.parametrize(("fields", "message"), BAD_COLUMNS)
def test_bad_columns_are_named_in_one_line(tmp_path, fields, message):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"schema_version": 1, "columns": [{"name": "height"} | fields]}))
    with pytest.raises(FileError, match=message) as caught:
        Schema.read(path)
    name = said(fields["name"]) if "name" in fields else "height"
    assert str(caught.value).startswith(f"{path}: column {name}: ")
    assert len(str(caught.value)) - len(str(path)) < 400
    assert str(caught.value).isprintable()


GOOD = {"name": "a", "kind": "categorical", "categories": ["x"]}


DROPPED = {"name": "id", "kind": "drop"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, letter 1 is no JSON"),
        ('{\n"columns": [,]}', "line 2, letter 13 is no JSON"),
        (b"\xff\xfe{}", "is no JSON in UTF-8"),
        ("[" * 10**5, "is nested too deeply"),
        ('{"schema_version": 1, "columns": [' + "[" * 500 + "]" * 500 + "]}", "column 1: expected an object"),
        (
            '{"schema_version": 1, "columns": [{"name": ' + "[" * 500 + "]" * 500 + ', "kind": "ordinal"}]}',
            "categories",
        ),
        ('{"schema_version": ' + "9" * 5000 + ', "columns": []}', "Exceeds the limit"),
        *(
            (f'{{"schema_version": {x}, "columns": []}}', "schema_version must be 1, got")
            for x in ("true", "NaN", "[1]")
        ),
        ("[]", 'expected a JSON object with a list "columns"'),
        ('{"schema_version": 1, "columns": {}}', 'a list "columns"'),
        ('{"columns": []}', "schema_version must be 1, got None"),
        ('{"schema_version": 4, "columns": []}', "schema_version must be 1, got 4; it is 2 if there are constraints"),
        ('{"schema_version": 1, "columns": []}', "the schema has no columns"),
        ('{"schema_version": 1, "columns": [3]}', "column 1: expected an object"),
        ('{"schema_version": 1, "columns": [], "rows": 3}', "unknown field 'rows'"),
        (json.dumps({"schema_version": 1, "columns": [GOOD, GOOD]}), "more than one column is named a;"),
        (json.dumps({"schema_version": 1, "columns": [GOOD], "filled_from_data": 1}), "filled_from_data must be"),
        (
            json.dumps({"schema_version": 1, "columns": [GOOD, DROPPED | {"name": "a"}]}),
            "more than one column is named a;",
        ),
        (
            json.dumps({"schema_version": 1, "columns": [GOOD, DROPPED | {"lower": 3}]}),
            "lower does not apply to kind drop",
        ),
        (json.dumps({"schema_version": 1, "columns": [DROPPED]}), "the schema has no columns"),
        *(
            (json.dumps({"schema_version": 1, "columns": [GOOD, DROPPED | {"name": name}]}), "a name must be text")
            for name in ("", " a", 3, None, "\ud800")
        ),
        *(
            (json.dumps({"schema_version": 1, "columns": [GOOD | {"name": name}]}), "a name must be text")
            for name in ("", " a", 3, "\ud800")
        ),
        (
            json.dumps({"schema_version": 1, "columns": [{"kind": "ordinal", "categories": ["x"]}]}),
            "column 1: name is not given",
        ),
    ],
)
def test_bad_schemas(tmp_path, text, message):
    path = tmp_path / "schema.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=message) as caught:
        Schema.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_schemas_are_written_and_read(tmp_path):
    path = tmp_path / "schema.json"
    schema = Schema(SCHEMA.columns, filled_from_data=True)
    schema.write(path)
    assert Schema.read(path) == schema
    lines = path.read_text().splitlines()
    assert '{"name": "job", "kind": "categorical", "categories": ["clerk", "émigré"], "nullable": true},' in map(
        str.strip, lines
    )
    assert len(lines) == len(COLUMNS) + 6
    with pytest.raises(FileError, match="exists"):
        schema.write(path)
    with pytest.raises(FileError, match="cannot be read"):
        Schema.read(tmp_path / "other.json")


def test_dropped_columns_are_not_looked_at(tmp_path):
    """A file may have them or not. Rows, the schema and its file say the same as without them."""
    document = {"schema_version": 1, "columns": [DROPPED | {"lower": None}, *(column.to_json() for column in COLUMNS)]}
    schema = Schema.from_json(document)
    assert schema == Schema(COLUMNS, dropped=["id"])
    assert schema.names == SCHEMA.names
    assert repr(schema).endswith("and id dropped)")
    schema.write(tmp_path / "schema.json")
    assert Schema.read(tmp_path / "schema.json") == schema
    table = SCHEMA.decode(np.zeros((3, len(COLUMNS)), int))
    for extra in (table, table.append_column("id", pa.array([{"deep": [1]}] * 3))):
        np.testing.assert_array_equal(schema.encode(extra), SCHEMA.encode(table))
    with pytest.raises(ValueError, match="the schema lacks id: add it to the schema, with the kind drop if it is not"):
        SCHEMA.encode(table.append_column("id", pa.array([1, 2, 3])))
    for dropped in ("id", [3], [""]):
        with pytest.raises(ValueError, match="dropped: expected a list of names"):
            Schema(COLUMNS, dropped=dropped)


# -- drafts

PEOPLE = pa.table(
    {
        "age": pa.array([31, 32, None] * 5, pa.int8()),
        "income": [100.25, 1e5, 31.5] * 5,
        "wave": [0.123456789, 2.0, 3.0] * 5,
        "city": pa.array(["Rome", "Bonn", "Bonn"] * 5).dictionary_encode(),
        "member": [True, False, None] * 5,
        "born": pa.array([1, 2, 3] * 5, pa.int32()).cast(pa.date32()),
        "seen": pa.array([3600, 7200, None] * 5, pa.int64()).cast(pa.timestamp("s")),
        "id": [f"person {i}" for i in range(15)],
        "none": pa.nulls(15, pa.float64()),
        "tags": [["a"]] * 15,
    }
)


def _draft(tmp_path, table, suffix, **options):
    path = tmp_path / f"people{suffix}"
    if isinstance(table, str):
        path.write_text(table)
    else:
        pq.write_table(table, path)
    draft, left_out = draft_schema(path, **options)
    return {column["name"]: column for column in draft["columns"]}, left_out, draft


def test_a_private_file_tells_names_and_types_alone(tmp_path):
    columns, left_out, draft = _draft(tmp_path, PEOPLE, ".parquet")
    assert list(left_out) == ["tags"]
    assert "list" in left_out["tags"]
    assert {name: column["kind"] for name, column in columns.items()} == {
        **dict.fromkeys(["age", "income", "wave", "none"], "numeric"),
        **dict.fromkeys(["city", "member", "id"], "categorical"),
        **dict.fromkeys(["born", "seen"], "datetime"),
        "tags": "drop",
    }
    assert columns["age"] == {**columns["income"], "name": "age", "integer": True}
    assert columns["city"]["categories"] is columns["age"]["lower"] is columns["born"]["upper"] is None
    other = PEOPLE.slice(0, 2).set_column(0, "age", pa.array([90, None], pa.int8()))
    assert _draft(tmp_path, other, ".parquet")[2] == draft
    path = tmp_path / "draft.json"
    write_json(path, draft)
    with pytest.raises(FileError, match="column age: lower is null: fill in"):
        Schema.read(path)


def test_a_private_csv_file_tells_names_alone(tmp_path):
    columns, left_out, draft = _draft(tmp_path, "age, city\n31,Rome\n32,Bonn\n", ".csv")
    empty = {"kind": None, "lower": None, "upper": None, "categories": None, "nullable": None}
    assert columns == {"age": {"name": "age"} | empty, "city": {"name": "city"} | empty}
    assert not left_out
    draft["columns"][0] |= {"kind": "numeric", "lower": 0, "upper": 99, "nullable": False}  # the other fields stay null
    draft["columns"][1] |= {"kind": "ordinal", "categories": ["Rome"], "nullable": True}
    assert Schema.from_json(draft).names == ("age", "city")
    with pytest.raises(FileError, match="is there a header line") as caught:
        _draft(tmp_path, "31,Rome\n32,Bonn\n", ".csv")
    assert "Rome" not in str(caught.value)


def test_a_public_file_fills_its_schema(tmp_path):
    columns, left_out, draft = _draft(tmp_path, PEOPLE, ".parquet", public=True)
    schema = Schema.from_json(draft)
    assert schema.filled_from_data
    assert columns["age"] | {"lower": 31, "upper": 32, "integer": True, "nullable": True} == columns["age"]
    assert columns["income"] | {"lower": 31.5, "upper": 1e5, "step": 0.01, "nullable": False} == columns["income"]
    assert columns["wave"] | {"lower": 0.123456789, "upper": 3.0} == columns["wave"]
    assert "step" not in columns["wave"]
    assert columns["city"]["categories"] == ["Bonn", "Rome"]
    assert columns["member"]["nullable"] is True
    assert columns["born"] | {"lower": "1970-01-02", "upper": "1970-01-04", "resolution": "day"} == columns["born"]
    assert columns["seen"] | {"lower": "1970-01-01T01:00:00", "resolution": "hour"} == columns["seen"]
    assert list(left_out) == ["id", "none", "tags"]
    assert "identifiers cannot be released" in left_out["id"]
    for name in set(schema.names) - {"member", "seen"}:
        schema.columns[schema.index(name)].check(PEOPLE.column(name))


def test_a_public_file_without_rows(tmp_path):
    with pytest.raises(FileError, match=r"people\.csv: it has no rows"):
        _draft(tmp_path, "a,b\n", ".csv", public=True)
    assert _draft(tmp_path, "a,b\n", ".csv")[0].keys() == {"a", "b"}


def test_a_public_csv_file_tells_types(tmp_path):
    rows = [f"{i % 3}, {i % 2}.5,2024-01-0{i % 3 + 1},{'' if i else 'x'},{i},a{i},-,{9**20}\n" for i in range(9)]
    columns, left_out, draft = _draft(tmp_path, "n,f,d,x,i,t,c,huge\n" + "".join(rows), ".csv", public=True)
    assert {name: column["kind"] for name, column in columns.items()} == {
        **dict.fromkeys(["n", "f", "i"], "numeric"),
        **dict.fromkeys(["x", "c"], "categorical"),
        "d": "datetime",
        **dict.fromkeys(["t", "huge"], "drop"),
    }
    assert columns["n"]["integer"]
    assert columns["f"]["step"] == 0.1
    assert columns["x"]["nullable"]
    assert list(left_out) == ["t", "huge"]
    Schema.from_json(draft)
    table = pa.table(
        {"zip": ["01234", "1234"] * 3, "day": [f"2024-01-0{i}" for i in range(1, 7)], "x": [2.0**50, 0] * 3}
    )
    columns, left_out, _ = _draft(tmp_path, table, ".parquet", public=True)
    assert [columns["zip"]["kind"], columns["day"]["kind"], *left_out] == ["categorical", "datetime", "x"]
    assert columns["x"] == {"name": "x", "kind": "drop"}


def test_a_public_file_with_constant_columns_and_other_encodings(tmp_path):
    path = tmp_path / "people.csv"
    path.write_bytes(b"a,b,c,d\n" + "1,0.5,2024-01-01,é\n".encode("latin-1") * 2 + b"1,0.5,2024-01-01,e\n")
    draft, left_out = draft_schema(path, public=True)
    assert left_out == {}
    schema = Schema.from_json(draft)
    assert [column.num_values for column in schema.columns] == [2, 2, 2, 1]
    assert schema.columns[3] == Categorical("d", ("e",), nullable=True)


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        (Numeric("creatinine", 0.2, 12.3), [0.2, 0.9, 1.0, 1.25, 12.3]),
        (Numeric("share", 0, 1), [0.0, 0.1, 0.25, 0.5, 0.75]),  # 0.5 is in the middle of two points
        (Numeric("change", -3, 5.3), [-3.0, -1.0, 0.0, 0.33]),
        (Numeric("fortune", 0, 1e9, scale="log"), [0.0, 100.0, 1e6, 5e8, 1e9]),
        (Numeric("tiny", -1 / 3 * 1e-7, 2e-7), [0.0, 1e-7]),
        (Numeric("big", -1e9, 1e9), [-5e8, 0.0, 1e8]),
    ],
)
def test_round_numbers_stay_as_they_are_on_a_default_grid(column, numbers):
    assert column.decode(column.encode(pa.array(numbers))).to_pylist() == numbers
    codes = np.append(np.random.default_rng(0).integers(0, column.num_values, 5000), [0, 1, column.num_values - 1])
    codes = np.unique(codes)
    values = column.decode(codes)
    assert np.array_equal(column.encode(values), codes)
    assert (np.diff(values.to_numpy()) > 0).all()
    assert "-0.0" not in map(str, values.to_pylist())


@pytest.mark.parametrize(
    "column", [Numeric("x", 0, 100), Numeric("x", -0.001, 0.0004), Numeric("x", 0, 1e7, scale="log")]
)
def test_numbers_of_a_default_grid_have_few_decimals(column):
    """15.54818 in place of 15.548180361638819, and still the same code."""
    codes = np.unique(np.linspace(0, column.num_values - 1, 5000).astype(int))
    values = column.decode(codes).to_pylist()
    assert column.encode(pa.array(values)).tolist() == codes.tolist()
    assert max(len(f"{value!r}".split(".")[-1].split("e")[0]) for value in values) <= 10
    assert min(values) == column.lower
    assert max(values) == column.upper


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Numeric("x", np.int64(0), np.float32(5), default=np.int8(3)), Numeric("x", 0, 5, default=3)),
        (Numeric("x", 0, 9, knots=np.array([1.5, 4])), Numeric("x", 0, 9, knots=(1.5, 4))),
        (Numeric("x", 0, 9, integer=True, step=np.int64(3)), Numeric("x", 0, 9, integer=True, step=3)),
        (
            Datetime("x", datetime.date(2024, 1, 1), np.datetime64("2024-12-31")),
            Datetime("x", "2024-01-01", "2024-12-31T00:00:00"),
        ),
        (
            Datetime("x", datetime.datetime(2024, 1, 1, 12), "2024-02-01", "hour", default=datetime.date(2024, 1, 9)),
            Datetime("x", "2024-01-01T12:00:00", "2024-02-01", "hour", default="2024-01-09"),
        ),
    ],
)
def test_numbers_and_times_of_other_libraries_become_those_of_json(given, plain):
    assert given == plain
    assert json.loads(json.dumps(Schema((given,)).to_json())) == Schema((plain,)).to_json()


def test_what_is_no_time_is_refused_as_text_is():
    with pytest.raises(ValueError, match="lower must be ISO text"):
        Datetime("x", np.datetime64("NaT", "s"), "2024-01-01")


def test_an_array_is_no_list_of_categories_because_it_may_come_from_rows():
    with pytest.raises(ValueError, match="categories must be a list, got ndarray; list them, from public knowledge"):
        Categorical("x", np.array(["a", "b"]))
