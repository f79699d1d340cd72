"""A DataFrame comes back with the types that its public schema says, whatever the private DataFrame's types are."""

import pathlib

import jax
import numpy as np
import pandas
import pyarrow as pa
import pytest

import kme_jax
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.table import Categorical, Datetime, Numeric, Ordinal, Schema, release_table

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Numeric("visits", 0, 9, integer=True, nullable=True),
        Numeric("height", 1.0, 2.2),
        Categorical("smokes", ("false", "true")),
        Categorical("insured", ("True", "False"), nullable=True),
        Categorical("job", ("baker", "clerk", "nurse"), nullable=True),
        Ordinal("size", ("S", "M", "L")),
        Datetime("since", "2000-01-01", "2019-12-31", "day", nullable=True),
        Datetime("seen", "2020-01-01", "2020-01-02", "minute"),
    )
)
TYPES = {
    "age": "int64",
    "visits": "Int64",
    "height": "float64",
    "smokes": "bool",
    "insured": "boolean",
    "job": pandas.CategoricalDtype(["baker", "clerk", "nurse"]),
    "size": pandas.CategoricalDtype(["S", "M", "L"], ordered=True),
    "since": "datetime64[s]",
    "seen": "datetime64[s]",
}


def _frame(num_rows=60):
    """A DataFrame with the types of the schema, with missing cells wherever they may be."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(0, 100, num_rows),
            "visits": rng.integers(0, 10, num_rows),
            "height": rng.uniform(1, 2.2, num_rows),
            "smokes": rng.random(num_rows) < 0.5,
            "insured": rng.random(num_rows) < 0.5,
            "job": rng.choice(["baker", "clerk"], num_rows),  # no nurse
            "size": rng.choice(["S", "M", "L"], num_rows),
            "since": np.asarray("2005-03-01", "M8[D]") + rng.integers(0, 900, num_rows),
            "seen": np.asarray("2020-01-01T00:00", "M8[m]") + rng.integers(0, 1440, num_rows),
        }
    ).astype(TYPES)
    for name in ("visits", "insured", "job", "since"):
        frame.loc[rng.integers(0, num_rows, 5), name] = None
    return frame


def _codes(frame):
    return SCHEMA.encode(pa.Table.from_batches(kme_jax.table.open_table(frame, SCHEMA).batches()))


def _types(frame):
    return dict(zip(frame.columns, frame.dtypes, strict=True))


def _same_as(types):
    return {name: pandas.api.types.pandas_dtype(kind) for name, kind in types.items()}


def test_every_cell_and_type_comes_back():
    frame = _frame()
    exact = ["age", "visits", "smokes", "insured", "job", "size", "since", "seen"]
    back = SCHEMA.to_pandas(SCHEMA.decode(_codes(frame)))
    pandas.testing.assert_frame_equal(back[exact], frame[exact])
    assert np.abs(back["height"] - frame["height"]).max() <= 1.2 / 2**16
    assert _types(back) == _same_as(TYPES)


@pytest.mark.parametrize("num_rows", [0, 1])
def test_few_rows_have_the_same_types(num_rows):
    table = SCHEMA.decode(_codes(_frame())[:num_rows])
    assert _types(SCHEMA.to_pandas(table)) == _same_as(TYPES)
    assert len(SCHEMA.to_pandas(table)) == num_rows


def test_the_types_after_a_file_are_the_same(tmp_path):
    """Parquet has other types of text and of time."""
    table = SCHEMA.decode(_codes(_frame()))
    kme_jax.table.write_table(tmp_path / "rows.parquet", table)
    again = pa.parquet.read_table(tmp_path / "rows.parquet")
    pandas.testing.assert_frame_equal(SCHEMA.to_pandas(again), SCHEMA.to_pandas(table))
    combined = pa.concat_tables([again, table.cast(again.schema)])  # more than one chunk
    assert len(SCHEMA.to_pandas(combined)) == 2 * len(_frame())


# In each, one row decides the type of a column of the private DataFrame.
ONE_ROW = {
    "smokes": [None, "n/a", 1, np.float32(0)],
    "insured": ["yes"],
    "age": [None, 0.5, "?", 10**30],
    "visits": ["many"],
    "job": ["a new job"],
    "size": [3],
    "since": ["yesterday"],
    "seen": ["?", 20200101],
}


@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name, cells in ONE_ROW.items() for cell in cells])
def test_one_row_decides_no_type(name, cell):
    frame = _frame()
    other = frame.astype({name: object})
    other.loc[7, name] = cell
    other[name] = other[name].infer_objects()
    assert other[name].dtype != frame[name].dtype  # the private types differ
    first, second = (SCHEMA.to_pandas(SCHEMA.decode(_codes(rows))) for rows in (frame, other))
    assert _types(first) == _types(second)
    pandas.testing.assert_frame_equal(first.drop(index=7), second.drop(index=7))


def test_one_row_decides_no_type_of_a_release(monkeypatch):
    names = ["visits", "smokes"]
    schema, types = (
        Schema([SCHEMA.columns[SCHEMA.index(name)] for name in names]),
        {name: TYPES[name] for name in names},
    )
    frame = _frame()[names]
    other = frame.astype(object)
    other.loc[7] = ["many", "n/a"]
    assert (other.dtypes != frame.dtypes).all()
    budget = PrivacyBudget(1.0, 1e-3)
    for source in (frame, other):
        release = release_table(source, schema, budget=budget, secure=False)
        assert _types(release.to_pandas()) == _same_as(types)
        assert len(release.to_pandas()) == len(frame)
        sample = release.sample(5, weighted=True)
        assert _types(release.to_pandas(sample)) == _same_as(types | {"weight": "float64"})


def test_points_come_back_as_a_frame():
    release = kme_jax.load(pathlib.Path(__file__).parent / "data/folders_of_0.1/release")
    frame = release.to_pandas()
    assert list(frame.columns) == [*release.columns, "weight"]
    np.testing.assert_array_equal(frame.to_numpy()[:, :-1], release.sample.points)
    np.testing.assert_array_equal(frame["weight"], release.sample.weights)


def test_words_of_truth_are_boolean_only_without_others():
    assert Categorical("a", ("TRUE", "False")).is_boolean
    for categories in (("true",), ("true", "false", "unknown"), ("yes", "no"), ("0", "1")):
        assert not Categorical("a", categories).is_boolean
    assert not Ordinal("a", ("false", "true")).is_boolean
    with pytest.raises(ValueError, match="lacks the schema's"):
        SCHEMA.to_pandas(pa.table({"age": [1]}))


@pytest.mark.slow
def test_columns_of_points_are_matched_by_their_names():
    """Columns at the place of another one would give means of the wrong columns, without a word."""
    rng, names = np.random.default_rng(0), ["a", "b", "c"]
    rows = pandas.DataFrame(rng.normal([0.2, 0.5, 0.8], 0.05, (3000, 3)), columns=names)
    points = pandas.DataFrame(rng.uniform(size=(40, 3)), columns=names)
    bounds, turned = kme_jax.Bounds.create([0] * 3, [1] * 3, names), ["c", "a", "b"]
    kernel, budget = kme_jax.Gaussian(5.0), PrivacyBudget(5.0, 1e-5)
    for of_rows, of_points, within in (
        (rows[turned], points, bounds),
        (rows, points[turned], bounds),
        (rows[turned], points, None),
        (pa.table({name: rows[name] for name in turned}), points.to_numpy(), bounds),
    ):
        measured = kme_jax.measure(of_rows, kernel, of_points, bounds=within, budget=budget)
        sample = measured.synthesise().sample
        means = np.asarray(sample.weights @ sample.points) / sample.weights.sum()
        order = [0, 1, 2] if within is not None or list(of_points.columns) == names else [2, 0, 1]
        np.testing.assert_allclose(means[order], [0.2, 0.5, 0.8], atol=0.1)
    for wrong in (rows.rename(columns={"c": "d"}), rows[["a", "b"]]):
        with pytest.raises(ValueError, match=r"rows: the columns are a, b.*, but the bounds have a, b, c"):
            kme_jax.measure(wrong, kernel, points, bounds=bounds, budget=budget)
    key, rest = jax.random.key(0), {"budget": budget}
    expected = kme_jax.algorithm1(key, rows, kernel, points, **rest).weights
    np.testing.assert_allclose(kme_jax.algorithm1(key, rows[turned], kernel, points, **rest).weights, expected)
    sample = kme_jax.improved(key, rows[turned], kernel, points, **rest)
    np.testing.assert_allclose(sample.expectation(lambda z: z), [0.2, 0.5, 0.8], atol=0.1)
    unnamed = kme_jax.Bounds.create([0] * 3, [1] * 3)  # x1, x2, x3
    kme_jax.measure(rows, kernel, None, bounds=unnamed, budget=budget, num_features=10)
