"""Every cell becomes a code, or a number, by itself: whatever it is put into, and whatever the other rows are.

What containers lose by themselves, and cases leave out for this reason, is listed in ``experiments.audit.containers``.
"""

import datetime
import decimal
import math

import numpy as np
import pandas
import pyarrow as pa
import pytest

from experiments.audit import cases, containers
from experiments.audit.encoders import old_encoder
from kme_jax.storage.files import FileError
from kme_jax.table import Categorical, Datetime, Numeric, Schema, open_table

NUMBER = Numeric("x", 0, 100, integer=True, nullable=True)
STEPS = Numeric("x", 0, 100, step=0.5)
YES = Categorical("x", ("yes", "true", "0"), nullable=True)
LONG = Categorical("x", ("1234567890123456789", "2234567890123456789"), nullable=True)
DAY = Datetime("x", "2024-01-01", "2024-12-31", "day", nullable=True)
FILLED = Numeric("x", 0, 100, integer=True, nullable=True, default=50)
TIMES = [datetime.datetime(2024, 3, 1), datetime.datetime(2024, 1, 1, 12)]
ODD = [None, "n/a", "x", True, 2**60, 1j, np.float32(1), decimal.Decimal(1), datetime.date(2024, 3, 1), [1]]


def _codes(data, column):
    return np.concatenate(list(open_table(data, Schema((column,))).codes()))[:, 0]


@pytest.mark.parametrize(
    ("cells", "column", "expected"),
    [
        ([True, False, True], NUMBER, [1, 0, 1]),
        ([True, False, True], YES, [1, 2, 1]),
        ([1, 2, 3], NUMBER, [1, 2, 3]),
        ([0.5, 1.0, 2.5], STEPS, [1, 2, 5]),
        ([1234567890123456789, 2234567890123456789, 0], LONG, [0, 1, 2]),
        ([1.0, 0.0, 1.0], YES, [1, 2, 1]),
        ([np.float32(0.5), np.float32(1), np.float32(7)], STEPS, [1, 2, 14]),
        ([1j, 1 + 0j, 2 + 0j], NUMBER, [101, 1, 2]),
        ([decimal.Decimal("1.50"), decimal.Decimal(2), decimal.Decimal(3)], STEPS, [3, 4, 6]),
        ([*TIMES, TIMES[0]], DAY, [60, 0, 60]),
        ([20240301, 20240101, 2024], DAY, [60, 0, 366]),
        (["2024-03-01", "2024-01-01", "1"], DAY, [60, 0, 366]),
        (["true", "FALSE", "7"], NUMBER, [1, 0, 7]),
        ([True, False, 3], FILLED, [1, 0, 3]),
        (TIMES, FILLED, [50, 50]),
        ([[1], {}, (1,)], FILLED, [50, 50, 50]),
    ],
    ids=str,
)
@pytest.mark.parametrize("odd", [*ODD[:4], *(pytest.param(odd, marks=pytest.mark.slow) for odd in ODD[4:])], ids=repr)
def test_one_row_changes_no_other_code(tmp_path, cells, column, expected, odd):
    """The last row is another one, and turns the type of the column into another one."""
    frames = [pandas.DataFrame({"x": [*cells, other]}) for other in (cells[0], odd)]
    for frame in frames:
        assert _codes(frame, column)[:-1].tolist() == expected
        assert _codes(frame.astype(object), column)[:-1].tolist() == expected
        frame.to_csv(tmp_path / "x.csv", index=False)
        assert _codes(tmp_path / "x.csv", column)[: len(cells)].tolist() == expected
        again = pandas.read_csv(tmp_path / "x.csv", skip_blank_lines=False, **containers.EXACT)
        assert _codes(again, column)[: len(cells)].tolist() == expected
    assert _codes(frames[1].astype("object").astype({"x": object}), column)[-1] == _codes(frames[1], column)[-1]


@pytest.mark.parametrize(
    "cells",
    [[True, False], ["a", "b"], [TIMES[0], TIMES[1]], [1j, 2j], [[1], [2]], [datetime.timedelta(1)] * 2, [None, None]],
    ids=str,
)
@pytest.mark.parametrize("column", [NUMBER, YES, DAY], ids=lambda column: column.kind)
def test_no_type_is_refused(cells, column):
    for frame in (pandas.DataFrame({"x": cells}), pandas.DataFrame({"x": pandas.Series(cells, dtype=object)})):
        assert len(_codes(frame, column)) == 2
        assert len(_codes(frame.astype(str), column)) == 2
    if cells[0] != 1j:
        assert len(_codes(pa.table({"x": pa.array(cells)}), column)) == 2


def test_a_category_that_is_a_word_for_missing_cells_is_their_category_or_refused():
    """pandas reads "nan" as missing in a column of floats, and as text where one row is no float."""
    frames = [pandas.DataFrame({"x": cells}) for cells in ([math.nan, math.inf, 1.0], ["nan", "inf", "1"])]
    for word, nullable, default in (
        ("nan", False, "inf"),
        ("nan", True, None),
        ("NA", False, "inf"),
        ("None", True, "inf"),
    ):
        schema = Schema((Categorical("x", ("inf", word), nullable=nullable, default=default),))
        for frame in frames:
            with pytest.raises(FileError, match=f"the category {word} is a word that programs also read as a missing"):
                open_table(frame, schema)
    schema = Schema((Categorical("x", ("inf", "nan"), default="nan"),))
    assert [next(iter(open_table(frame, schema).codes()))[:2].tolist() for frame in frames] == [[[1], [0]]] * 2


def test_types_of_pandas():
    """Each column holds 1, a missing cell, and 2, as another type."""
    cells = pandas.Series([1.0, math.nan, 2.0])
    kinds = ["Int8", "UInt64", "Float32", "Float64", "float16", "float32", ">f8", "longdouble", "complex64", "object"]
    kinds += ["category", "Sparse[float64]", "string", "string[pyarrow]", "str", "str", pandas.ArrowDtype(pa.int64())]
    kinds += [pandas.ArrowDtype(pa.float32()), pandas.ArrowDtype(pa.decimal128(9, 2)), pandas.ArrowDtype(pa.string())]
    for kind in kinds:
        assert _codes(pandas.DataFrame({"x": cells.astype(kind)}), NUMBER).tolist() == [1, 101, 2], kind
    times = pandas.Series(pandas.to_datetime(["2024-03-01", None, "2024-01-01"]))
    kinds = ["datetime64[ns]", "datetime64[s]", "datetime64[ms, UTC]", "object", "category", "string", "str"]
    kinds += ["period[D]", pandas.ArrowDtype(pa.timestamp("us")), pandas.ArrowDtype(pa.date32())]
    for kind in kinds:
        zoned = times.dt.tz_localize("UTC") if "UTC" in str(kind) else times
        series = zoned.dt.to_period("D") if kind == "period[D]" else zoned.astype(kind)
        assert _codes(pandas.DataFrame({"x": series}), DAY).tolist() == [60, 366, 0], kind
    tokyo = times.dt.tz_localize("Asia/Tokyo")
    assert _codes(pandas.DataFrame({"x": tokyo}), DAY).tolist() == [59, 366, 0]
    assert _codes(pandas.DataFrame({"x": tokyo.astype(object)}), DAY).tolist() == [59, 366, 0]
    assert _codes(pandas.DataFrame({"x": [datetime.date(1, 1, 1), np.datetime64(2**40, "Y")]}), DAY).tolist() == [
        0,
        365,
    ]


@pytest.mark.parametrize("num_cases", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_no_row_of_a_random_table_changes_the_code_of_another(num_cases, recwarn):
    """Hundreds or thousands of neighbouring tables in all containers, and some of points."""
    counts = cases.num_violations(num_cases, seed=0)
    assert counts["violations"] == 0, counts
    assert counts["compared"] == num_cases
    assert not recwarn.list


@pytest.mark.parametrize(
    "names", [("DataFrame of lists",), pytest.param(("DataFrame of rows",), marks=pytest.mark.slow)], ids=str
)
def test_the_old_encoder_is_found_out(names):
    counts = cases.num_violations(100, seed=0, encoder=old_encoder, containers=names)
    assert counts["violations"] >= 5


def test_every_container_is_compared(tmp_path):
    rng = np.random.default_rng(1)
    for name in containers.CONTAINERS:
        results = (cases.is_violated(cases.random_case(rng, [name]), tmp_path) for _ in range(200))
        assert any(result is not None for result in results), name
