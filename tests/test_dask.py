"""Releases of tables of Dask: the same to the last bit as of the same rows in memory, in any number of partitions."""

import decimal
import json

import numpy as np
import pandas as pd
import pytest

from kme_jax import Ledger, PrivacyBudget, Spending, measure_table, release_table
from kme_jax.storage.files import FileError
from kme_jax.table import planning as plans
from kme_jax.table.engines import base, engine_source
from kme_jax.table.engines.base import EngineError
from tests import engine_tables
from tests.engine_tables import SCHEMA, WEIGHTED, assert_equal, measured, people

pytest.importorskip("dask.dataframe")
import dask
import dask.bag
import dask.dataframe

pytestmark = [pytest.mark.usefixtures("no_fits"), pytest.mark.filterwarnings("error")]


@pytest.fixture(scope="module")
def frame():
    return people()


@pytest.mark.parametrize("relation", ["add_remove", pytest.param("replace_one", marks=pytest.mark.slow)])
def test_any_number_of_partitions_gives_the_same_release(frame, relation):
    expected = measured(frame, relation=relation)
    assert len(expected) >= 3
    for num_partitions in (1, 2, 7):
        assert_equal(measured(dask.dataframe.from_pandas(frame, num_partitions), relation=relation), expected)
    records = dask.bag.from_sequence(frame.to_dict("records"), npartitions=7)
    assert_equal(measured(records, relation=relation), expected)


@pytest.mark.long
def test_workers_combine_many_partials(frame, monkeypatch):
    expected = measured(frame)
    monkeypatch.setattr("kme_jax.table.engines.dask.MOST_PARTIALS", 2)
    assert_equal(measured(dask.dataframe.from_pandas(frame, 40)), expected)
    assert base.MOST_PARTIALS > 2


def test_rows_with_weights(frame):
    weighted = frame.assign(**{"stands for": np.random.default_rng(1).uniform(-1, 4, len(frame))})
    expected = measured(weighted, WEIGHTED, "add_remove")
    assert_equal(measured(dask.dataframe.from_pandas(weighted, 3), WEIGHTED, "add_remove"), expected)


def test_types_of_partitions_have_no_influence(frame):
    """A missing cell turns whole numbers into floats, and one text a column into text, in one partition alone."""
    parts = [frame.iloc[:200].copy(), frame.iloc[200:].astype({"age": object}).copy()]
    parts[1].iloc[3, 0] = None
    parts[1].iloc[4, 0] = "old"
    whole = pd.concat([parts[0].astype({"age": object}), parts[1]])
    found = dask.dataframe.from_map(lambda i: parts[i], [0, 1], meta=parts[0].iloc[:0], enforce_metadata=False)
    assert_equal(measured(found), measured(whole))


@pytest.mark.slow
def test_partitions_without_rows(frame):
    scattered = dask.dataframe.from_pandas(frame, 5)
    kept = scattered[scattered["age"] > 125]
    assert_equal(measured(kept, relation="add_remove"), measured(kept.compute(), relation="add_remove"))
    nothing = scattered[scattered["age"] > 1000]
    assert_equal(measured(nothing, relation="add_remove"), measured(nothing.compute(), relation="add_remove"))
    with pytest.raises(FileError, match=r"^the table of Dask: expected at least 2 rows, got 0$"):
        measured(nothing)


def test_a_release_is_recorded_once(frame, tmp_path):
    spending = Spending(Ledger(tmp_path / "ledger"), "people")
    released = release_table(
        dask.dataframe.from_pandas(frame, 3), SCHEMA, budget=engine_tables.budget(), spending=spending, num_rows=5
    )
    assert released.table.num_rows == 5
    assert released.statement["private"]
    assert len(spending.ledger.spent("people")) == 1


def _lost(parts):
    """A DataFrame whose second computation lacks a row: a source that changes."""
    calls = []

    def load(i):
        calls.append(i)
        return parts[i] if len(calls) <= 2 * len(parts) else parts[i].iloc[1:]

    return dask.dataframe.from_map(load, [0, 1], meta=parts[0].iloc[:0])


def test_a_table_that_changes_releases_nothing(frame, tmp_path):
    spending, folder = Spending(Ledger(tmp_path / "ledger"), "people"), tmp_path / "measured"
    with pytest.raises(ValueError, match=r"^partials: a part is missing, or the rows have changed") as error:
        measure_table(
            _lost([frame.iloc[:300], frame.iloc[300:]]),
            SCHEMA,
            budget=engine_tables.budget(),
            spending=spending,
            folder=folder,
        )
    assert len(str(error.value).splitlines()) == 1
    assert not folder.exists()


@pytest.mark.parametrize("relation", engine_tables.RELATIONS)
def test_a_task_that_fails_releases_nothing(frame, relation, tmp_path):
    spending = Spending(Ledger(tmp_path / "ledger"), "people")
    failing = dask.dataframe.from_pandas(frame, 3).map_partitions(_no_disk, meta=frame.iloc[:0])
    with pytest.raises(OSError, match="disk"):
        measured(failing, relation=relation, secure=True, spending=spending)
    assert not spending.ledger.path.exists()


def _no_disk(part):
    raise OSError("no disk")


def test_one_line_for_partitions_with_other_columns(frame):
    parts = [frame, frame.drop(columns="age")]
    scattered = dask.dataframe.from_map(lambda i: parts[i], [0, 1], meta=frame.iloc[:0], enforce_metadata=False)
    with pytest.raises(EngineError) as error:
        measured(scattered)
    assert str(error.value) == (
        "the table of Dask: a partition cannot be computed (KeyError); do all have the stated columns?"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda frame: frame.drop(columns="age"), "the table of Dask: it lacks the schema's age: add it, or remove"),
        (lambda frame: frame.assign(more=1), "the table of Dask: the schema lacks more: add it to the schema"),
        (lambda frame: frame.rename(columns={"note": " age"}), "the table of Dask: columns 1 and 5 have the same name"),
    ],
)
def test_other_columns_are_refused(frame, change, text):
    with pytest.raises(FileError, match=f"^{text}"):
        measured(dask.dataframe.from_pandas(change(frame), 2))


def test_persons_are_refused(frame):
    with pytest.raises(FileError, match=r"^the table of Dask: persons need all rows of a person in one place, "):
        measure_table(
            dask.dataframe.from_pandas(frame, 2),
            SCHEMA,
            budget=PrivacyBudget(1.0, 1e-5, "add_remove_person", 3, "note"),
        )


def test_too_many_rows_are_refused_before_they_are_summed(frame, monkeypatch):
    monkeypatch.setattr(plans, "MOST_PRIVATE_ROWS", 100)
    with pytest.raises(ValueError, match=r"^source: a table with a private number of rows has at most 100$"):
        measured(dask.dataframe.from_pandas(frame, 2), relation="add_remove")


def test_other_collections_are_refused():
    with pytest.raises(FileError, match=r"^the table of Dask: expected a DataFrame or a Bag of records$"):
        engine_source(dask.delayed(3), SCHEMA)
    assert engine_source(people(3), SCHEMA) is None


def test_errors_show_no_cell(frame):
    def fail(part):
        raise TypeError(f"cannot add 1 to {part['age'].iloc[0]}")

    failing = dask.dataframe.from_pandas(frame, 2).map_partitions(fail, meta=frame.iloc[:0])
    with pytest.raises(EngineError, match=r"^the table of Dask: a partition cannot be computed \(TypeError\)") as error:
        measured(failing)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


@pytest.mark.parametrize("cell", [b"\xff", "\ud800", decimal.Decimal("sNaN")])
def test_unusual_cells_never_raise(frame, cell):
    unusual = frame.astype({"job": object})
    unusual.loc[3, "job"] = cell
    with dask.config.set({"dataframe.convert-string": False}):
        assert_equal(measured(dask.dataframe.from_pandas(unusual, 3)), measured(unusual))


class _Record(dict):
    def get(self, *names):
        raise TypeError("a private cell")


def test_records_of_a_bag_never_raise():
    records = [{}, _Record(), 3, None, {"age": object(), "job": [1], "more": 1}, {"age": "30", "rich": "yes"}]
    expected = measured(pd.DataFrame([{"age": "30", "rich": "yes"}], columns=SCHEMA.names), relation="add_remove")
    found = measured(dask.bag.from_sequence(records[-1:], npartitions=1), relation="add_remove")
    assert_equal(found, expected)
    assert json.dumps({name: list(values.shape) for name, values in found.items()})
    assert measured(dask.bag.from_sequence(records, npartitions=2), relation="add_remove")


def test_an_interruption_before_noise_leaves_no_release(frame, tmp_path, monkeypatch):
    spending, folder = Spending(Ledger(tmp_path / "ledger"), "people"), tmp_path / "measured"

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("kme_jax.table.measure.perturb_securely", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        measured(dask.dataframe.from_pandas(frame, 2), secure=True, spending=spending, folder=folder)
    assert "the budget is recorded as spent" in error.value.__notes__[0]
    assert len(spending.ledger.spent("people")) == 1
    assert not folder.exists()


def test_partials_and_processes_are_for_files(frame, tmp_path):
    scattered = dask.dataframe.from_pandas(frame, 2)
    for options in ({"partials": tmp_path / "run"}, {"processes": 2}):
        with pytest.raises(ValueError, match=r"^partials and processes: they need a table in files"):
            measured(scattered, **options)


def test_an_engine_without_its_libraries(monkeypatch):
    class Frame:
        columns = SCHEMA.names
        mapInArrow = None

    Frame.__module__ = "pyspark.sql.dataframe"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'^Spark needs pandas: pip install "kme_jax\[spark\]"$'):
        engine_source(Frame(), SCHEMA)
