"""Words for missing cells, and decimal commas: text and typed cells are read alike, and no cell raises."""

import datetime
import decimal
import json

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kme_jax._numerics.cells import parse_number_with_comma
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.draft import draft_schema
from kme_jax.table.json_schema import json_schema
from kme_jax.table.readers import open_table
from kme_jax.table.schema import Schema

WORDS = (-999, "?", "refused", 99, -99.9, "1900-01-01")
COLUMNS = (
    Numeric("number", 0, 110, nullable=True, missing=WORDS),
    Numeric("whole", 0, 110, integer=True, missing=WORDS, default=7),
    Numeric("comma", 0, 110, decimal=",", nullable=True, missing=(-999, "?", "refused", 99, "-99,9", "1900-01-01")),
    Categorical("text", ("a", "b", "2024-01-05", "5"), nullable=True, missing=WORDS),
    Ordinal("rank", ("low", "high"), missing=WORDS, default="high"),
    Datetime("day", "1890-01-01", "2024-12-31", nullable=True, missing=(*WORDS, 20240105)),
)


def _missing(column):
    return int(column.encode(pa.nulls(1))[0])


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_word_is_a_missing_cell_in_text_and_in_typed_cells(column):
    cells = ["?", " refused\t", "-999", "-999.0", "99", "1900-01-01", "1900-01-01T00:00"]
    if column.name == "comma":
        cells[3] = "-999,0"
    arrays = [
        pa.array(cells),
        pa.array(cells).dictionary_encode(),
        pa.array([cell.encode() for cell in cells]),
        pa.array([-999, 99], pa.int64()),
        pa.array([-999.0, 99.0]),
        pa.array([-99.9], pa.float32()),
        pa.array([decimal.Decimal("-99.9"), decimal.Decimal(99)], pa.decimal128(9, 3)),
        pa.array([datetime.date(1900, 1, 1)]),
        pa.array([datetime.datetime(1900, 1, 1)], pa.timestamp("us")),
    ]
    for array in arrays:
        assert column.encode(array).tolist() == [_missing(column)] * len(array), array.type
        assert column.look(array).tolist() == [-1] * len(array), array.type
    typed = pandas.DataFrame({column.name: pandas.Series([-999, 99.0, "?", datetime.date(1900, 1, 1)], dtype=object)})
    codes = np.concatenate(list(open_table(typed, Schema((column,))).codes()))
    assert codes[:, 0].tolist() == [_missing(column)] * 4


def test_other_cells_stay_as_they_are():
    _, whole, _, text, rank, day = COLUMNS
    for column in COLUMNS:
        plain = type(column)(
            **{field: getattr(column, field) for field in column.__dataclass_fields__ if field != "missing"}
        )
        for array in (pa.array(["98", "a", "low", "2024-03-01", "??", "", "NA"]), pa.array([98.0, 5.0, None])):
            np.testing.assert_array_equal(column.encode(array), plain.encode(array))
    assert day.encode(pa.array(["2024-01-05", "20240105"])).tolist() == [_missing(day)] * 2
    assert day.look(pa.array(["2024-01-05T10:00", "2024-01-06"])).min() >= 0
    assert text.look(pa.array(["2024-01-05", "a"])).tolist() == [2, 0]
    assert whole.encode(pa.array(["99", "x"])).tolist() == [7, 7]
    assert rank.encode(pa.array(["99", "low"])).tolist() == [1, 0]


def test_words_need_a_code_for_missing_cells_or_a_default():
    """Otherwise they would count as the middle of the bounds, and nobody would see it."""
    with pytest.raises(ValueError, match=r'column age: words .* need "nullable": true, or a default'):
        Numeric("age", 0, 110, integer=True, missing=(99,))
    column = Numeric("age", 0, 110, integer=True, missing=(99,), default=50)
    assert column.encode(pa.array([99, None, 98])).tolist() == [50, 50, 98]


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [-999, 99, -99.9, 1.234, 1234, 0.5, 20240105, 10**30, "?", "refused", "1900-01-01", "-999.0", "1,5"]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(width=32),
    st.text(max_size=5),
    st.text("0123456789.,-+eE", max_size=8),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(),
    st.times(),
)


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(column, id=column.name, marks=() if column.name in ("number", "text", "day") else pytest.mark.slow)
        for column in COLUMNS
    ],
)
@given(cell=CELLS, other=CELLS)
@settings(max_examples=100, deadline=None)
def test_a_cell_has_one_code_whatever_its_column_has(column, cell, other):
    """By itself with its own type, among objects, and beside another cell."""

    def codes(frame):
        return np.concatenate(list(open_table(frame, Schema((column,))).codes()))[:, 0].tolist()

    alone = codes(pandas.DataFrame({column.name: pandas.Series([cell], dtype=object)}))
    both = codes(pandas.DataFrame({column.name: pandas.Series([cell, other], dtype=object)}))
    assert both[:1] == alone
    if not isinstance(cell, bytes):
        assert codes(pandas.DataFrame({column.name: [cell]})) == alone
    try:
        array = pa.array([cell])
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return
    assert column.encode(array).tolist() == alone


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *(("1234,5", 1234.5), ("1.234,5", 1234.5), ("-12.345.678", -12345678), ("1.234", 1234), ("+7", 7), (",5", 0.5)),
        *(("1,5e3", 1500), ("1.5e3", 1500), ("-2E-1", -0.2), ("1.234e0", 1.234), ("true", 1), ("inf", np.inf)),
        *(
            (cell, None)
            for cell in ("1.5", "1.2345", "1234.567", "0.123", "12.34,5", "1.234.56", ".5", "5.", "5,", ",")
        ),
        *(
            (cell, None)
            for cell in ("1,234.5", "1,2,3", "1_0,5", "1 234,5", "٧", "+", "-,", "1.234,5e3", "x", "1,5 EUR")
        ),
        *((cell, np.nan) for cell in ("", "NA", "nan", "-1.#IND")),
    ],
)
def test_decimal_commas(cell, number):
    found = parse_number_with_comma(cell.encode())
    assert found is None if number is None else np.array_equal(found, number, equal_nan=True)
    column = Numeric("x", -1e9, 1e9, step=0.1, decimal=",", nullable=True)
    assert (column.look(pa.array([cell])) == -2).item() == (number is None)


def test_typed_numbers_have_no_decimal_sign():
    column = Numeric("x", 0, 2000, step=0.001, decimal=",", nullable=True)
    for numbers in (pa.array([1.234]), pa.array([decimal.Decimal("1.234")]), pa.array([1.234]).dictionary_encode()):
        assert column.encode(numbers).tolist() == [1234]
    frame = pandas.DataFrame({"x": pandas.Series([1.234, "1,234", "1.234", decimal.Decimal("1.234")], dtype=object)})
    codes = np.concatenate(list(open_table(frame, Schema((column,))).codes()))
    assert codes[:, 0].tolist() == [1234, 1234, 1_234_000, 1234]
    column.check(column.decode(np.array([1234, 0])))


BAD = [
    ({"missing": "NA"}, "missing must be a list"),
    ({"missing": 5}, "missing must be a list"),
    ({"missing": {"a": 1}}, "missing must be a list"),
    ({"missing": [""]}, "a word must be text of at most"),
    ({"missing": [" x"]}, "a word must be text of at most"),
    ({"missing": ["a\nb"]}, "a word must be text of at most"),
    ({"missing": ["\ud800"]}, "a word must be text of at most"),
    ({"missing": ["x" * 10**6]}, "a word must be text of at most"),
    ({"missing": [None]}, "must be text or a number"),
    ({"missing": [True]}, "must be text or a number"),
    ({"missing": [["a"]]}, "must be text or a number"),
    ({"missing": [float("nan")]}, "must be finite"),
    ({"missing": [10**400]}, "must be finite"),
    ({"missing": ["a", "a"]}, "lists 'a' twice"),
    ({"missing": [1, 1.0]}, "lists 1.0 twice"),
    ({"missing": ["01", 1]}, "lists 1 twice, maybe in two spellings"),
    ({"missing": None}, "missing is null"),
    ({"missing": [5], "default": 5}, "default 5 is also a word for missing cells"),
    ({"decimal": ";"}, 'decimal must be "." or ","'),
    ({"decimal": ["."]}, 'decimal must be "." or ","'),
    ({"decimal": None}, "decimal is null"),
    ({"kind": "categorical", "categories": ["a", "?"], "missing": ["?"]}, "missing has \\?, which is also a category"),
    ({"kind": "categorical", "categories": ["01"], "missing": [1]}, "missing has 01, which is also a category"),
    (
        {"kind": "categorical", "categories": [False, True], "missing": [1]},
        "missing has True, which is also a category",
    ),
    ({"kind": "categorical", "categories": ["0.1"], "missing": [0.1]}, "which is also a category"),
    ({"kind": "categorical", "categories": ["2024-01-01"], "missing": ["2024-01-01T00:00"]}, "is also a category"),
    ({"kind": "ordinal", "categories": ["NA"], "missing": ["NA"]}, "missing has NA, which is also a category"),
    ({"kind": "categorical", "categories": ["a"], "decimal": ","}, "decimal does not apply to kind categorical"),
    ({"kind": "drop", "missing": ["?"]}, "missing does not apply to kind drop"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_contradictions_are_refused_in_one_line(fields, message):
    entry = {"name": "x", "kind": "numeric"} | ({} if "kind" in fields else {"lower": 0, "upper": 10}) | fields
    with pytest.raises(ValueError, match=message) as caught:
        Schema.from_json(
            {"schema_version": 1, "columns": [entry, {"name": "y", "kind": "ordinal", "categories": ["a"]}]}
        )
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_old_schemas_are_unchanged_and_new_ones_return():
    for column in COLUMNS:
        assert Schema.from_json(json.loads(json.dumps(Schema((column,)).to_json()))).columns == (column,)
    assert not {"missing", "decimal"} & Numeric("x", 0, 1).to_json().keys()
    entry = json_schema()["properties"]["columns"]["items"]["allOf"][0]["then"]["properties"]
    assert entry["missing"]["items"] == {"type": ["string", "number"]}
    assert entry["decimal"]["enum"] == [".", ","]


def test_released_rows_have_no_words():
    """A released 99 is a number, although 99 in a private file is not."""
    schema = Schema((Numeric("age", 0, 110, integer=True, nullable=True, missing=(99,)),))
    table = schema.decode(np.array([[99], [98], [111]]))
    schema.check(table)
    assert schema.encode(table, words=False)[:, 0].tolist() == [99, 98, 111]
    assert schema.encode(table)[:, 0].tolist() == [111, 98, 111]


def test_a_category_that_programs_read_as_missing_is_still_refused():
    schema = Schema((Categorical("x", ("NA", "b"), nullable=True, missing=("?", "n/a")),))
    with pytest.raises(ValueError, match="is a word that programs also read as a missing cell"):
        schema.check_keys()
    Schema((Categorical("x", ("a", "b"), nullable=True, missing=("NA", "n/a")),)).check_keys()


def test_decimal_commas_in_drafts(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("amount;job\n1.234,50;a\n7,25;b\n-3;a\n")
    draft, _ = draft_schema(path, True, decimal=",")
    assert draft["columns"][0] == {
        **{"name": "amount", "kind": "numeric", "lower": -3.0, "upper": 1234.5, "integer": False, "step": 0.01},
        **{"nullable": False, "decimal": ","},
    }
    assert "decimal" not in draft["columns"][1]
    schema = Schema.from_json(draft)
    codes = np.concatenate(list(open_table(path, schema).codes()))
    assert schema.decode(codes).column("amount").to_pylist() == [1234.5, 7.25, -3.0]
    assert all("decimal" not in column for column in draft_schema(path, decimal=",")[0]["columns"])
    with pytest.raises(ValueError, match=r'decimal must be "\." or ","'):
        draft_schema(path, decimal="x")
