"""Columns that are written into a release without being measured: new ids, and constants."""

import dataclasses
import json
import pathlib

import jsonschema
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from kme_jax import Categorical, Constant, Datetime, Identifier, Numeric, PrivacyBudget, Schema, cli, estimate, load
from kme_jax import release_table as release_of
from kme_jax.analysis import bootstrap, two_sample_test
from kme_jax.storage.files import FileError
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import measure_table, open_table
from kme_jax.table.check import check_table, describe
from kme_jax.table.columns import OTHER_KINDS
from kme_jax.table.constraints import Forbidden, Implies, Lookup, OneOf, Order, Sum
from kme_jax.table.draft import draft_schema
from kme_jax.table.evaluate import describe_table, evaluate_table
from kme_jax.table.expected import expected_errors
from kme_jax.table.json_schema import json_schema
from kme_jax.table.release import public_inputs
from kme_jax.table.schema import WRITTEN
from tests import artifacts

pytestmark = pytest.mark.usefixtures("no_fits")

AGE = Numeric("age", 0, 99, integer=True)
JOB = Categorical("job", ("baker", "clerk", "nurse"), nullable=True)
RICH = Categorical("rich", ("no", "yes"))
ALL = (
    Identifier("patient", prefix="P"),
    AGE,
    Constant("country", "NL"),
    JOB,
    Constant("wave", 3),
    RICH,
    Identifier("row"),
    Constant("pilot", False),
)
SCHEMA = Schema(ALL, dropped=("notes",))
NAMES = ("patient", "age", "country", "job", "wave", "rich", "row", "pilot")
BUDGET = PrivacyBudget(2.0, 1e-5)
SECRET = "31415926"


def _table(num_rows=600, seed=0, **others):
    """Private rows. Others are columns that the schema does not measure."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, num_rows)
    job = pa.array(np.asarray(["baker", "clerk", "nurse"])[rng.integers(0, 3, num_rows)], mask=age < 20)
    return pa.table({"age": age, "job": job, "rich": np.where(age > 50, "yes", "no")} | others)


def _release(schema=SCHEMA, table=None, budget=BUDGET, **options):
    return release_of(_table() if table is None else table, schema, budget=budget, secure=False, **options)


@pytest.fixture(scope="module")
def made():
    return _release(target="rich")


# -- what is written


@pytest.mark.parametrize(
    ("column", "num_rows", "values", "kind"),
    [
        (Identifier("x"), 3, [1, 2, 3], pa.int64()),
        (Identifier("x"), 0, [], pa.int64()),
        (Identifier("x", "P"), 2, ["P000001", "P000002"], pa.string()),
        (Identifier("x", "P"), 0, [], pa.string()),
        (Identifier("x", "Ä-", 1), 11, [*(f"Ä-{i}" for i in range(1, 12))], pa.string()),
        (Constant("x", "NL"), 2, ["NL", "NL"], pa.string()),
        (Constant("x", "2025-12-31"), 1, ["2025-12-31"], pa.string()),
        (Constant("x", True), 2, [True, True], pa.bool_()),
        (Constant("x", 1), 2, [1, 1], pa.int64()),
        (Constant("x", -(2**63 - 1)), 1, [-(2**63 - 1)], pa.int64()),
        (Constant("x", 1.0), 2, [1.0, 1.0], pa.float64()),
        (Constant("x", "NL"), 0, [], pa.string()),
    ],
)
def test_values(column, num_rows, values, kind):
    array = column.values(num_rows)
    assert array.type == column.type == kind
    assert array.to_pylist() == values
    column.check(array)
    column.check(pa.chunked_array([array[:1], array[1:]]))
    column.check(pa.chunked_array([], kind) if not num_rows else array)
    schema = Schema([column, AGE])
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    read = Schema.from_json(json.loads(json.dumps(schema.to_json()))).written_columns[0]
    assert read.type == kind  # 1, 1.0 and true stay apart


def test_columns_are_where_the_schema_lists_them():
    assert SCHEMA.names == ("age", "job", "rich")
    assert SCHEMA.released_names == NAMES
    assert [place for place, _ in SCHEMA.written] == [0, 2, 4, 6, 7]
    assert Schema((AGE, JOB, RICH), dropped=["notes"], written=SCHEMA.written) == SCHEMA
    assert dataclasses.replace(SCHEMA, filled_from_data=True).released_names == NAMES
    codes = np.array([[1, 0, 0], [2, 3, 1]])
    table = SCHEMA.decode(codes)
    assert table.column_names == list(NAMES)
    assert table.to_pylist()[1] == dict(zip(NAMES, ("P000002", 2, "NL", None, 3, "yes", 2, False), strict=True))
    SCHEMA.check(table)
    np.testing.assert_array_equal(SCHEMA.encode(table), codes)
    assert "8 columns: patient, age" in repr(SCHEMA)


def test_schemas_are_written_and_read(tmp_path):
    SCHEMA.write(tmp_path / "schema.json")
    document = json.loads((tmp_path / "schema.json").read_text())
    assert document["schema_version"] == 3
    assert [column["name"] for column in document["columns"]] == [*NAMES, "notes"]
    assert document["columns"][0] == {"name": "patient", "kind": "id", "prefix": "P"}
    assert document["columns"][2] == {"name": "country", "kind": "constant", "value": "NL"}
    assert Schema.read(tmp_path / "schema.json") == SCHEMA
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    # A draft may have filled in what such a column has no use for.
    document["columns"][0] |= {"lower": None, "nullable": None, "categories": None, "integer": True}
    assert Schema.from_json(document) == SCHEMA


def test_other_schemas_are_as_before():
    assert Schema((AGE,)).to_json()["schema_version"] == 1
    assert Schema((AGE,)).written == ()
    assert public_inputs(Schema((AGE, JOB)), None) == ["schema of 2 columns"]


def test_the_kinds_are_known_to_the_columns():
    assert {*WRITTEN, "drop"} == set(OTHER_KINDS)


# -- privacy


class _Batch:
    """A batch that records which of its columns are asked for."""

    def __init__(self, table):
        self.schema, self.num_rows, self.asked, self._table = table.schema, table.num_rows, set(), table

    def column(self, name):
        self.asked.add(name)
        return self._table.column(name)


def test_written_columns_are_not_asked_for():
    batch = _Batch(_table(patient=["x"] * 600, country=["x"] * 600, wave=["x"] * 600))
    SCHEMA.encode(batch)
    assert batch.asked == {"age", "job", "rich"}


ODD = pa.array([[{"deep": SECRET}]] * 600)


def test_private_cells_have_no_influence(made):
    """With other cells of any type in the place of ids and constants, or without these columns, all is the same."""
    others = (
        {"patient": [SECRET] * 600, "country": ["DE"] * 600, "wave": np.arange(600)},
        {"patient": ODD, "country": ODD, "wave": ODD, "row": ODD, "pilot": ODD},
    )
    for columns in others:
        same = _release(table=_table(**columns), target="rich")
        assert same.table.equals(made.table)
        assert same.statement == made.statement
        for name, noisy in made.measurement.measured.items():
            np.testing.assert_array_equal(same.measurement.measured[name].coordinates, noisy.coordinates)


def test_nothing_of_them_is_measured(made):
    """The measurement is that of the schema without them."""
    without = measure_table(_table(), Schema((AGE, JOB, RICH)), budget=BUDGET, target="rich", secure=False)
    for name, noisy in made.measurement.measured.items():
        np.testing.assert_array_equal(without.measured[name].coordinates, noisy.coordinates)
    assert made.table.select(["age", "job", "rich"]).equals(without.synthesise().table)


def test_the_statement_says_what_is_not_measured(made):
    inputs = made.statement["public_inputs"]
    assert "schema of 8 columns" in inputs
    listed = "patient (id), country (constant), wave (constant), row (id), pilot (constant)"
    assert f"columns that are not measured: {listed}" in inputs


# -- releases


def test_a_release_is_saved_and_loaded(made, tmp_path):
    made.save(tmp_path / "out")
    for read in (load(tmp_path / "out"), made):
        assert read.columns == tuple(read.table.column_names) == NAMES
        assert read.table["row"].to_pylist() == [*range(1, 601)]
        assert read.table["patient"][599].as_py() == "P000600"
        assert set(read.table["country"].to_pylist()) == {"NL"}
    report = (tmp_path / "out/report.html").read_text()
    assert "600 rows and 8 columns" in report
    assert "<strong>patient</strong> (id, counted from P000001)," in report
    assert "<strong>pilot</strong> (constant, false)." in report
    assert made.measurement.synthesise(5).table["row"].to_pylist() == [1, 2, 3, 4, 5]


def _set(name, values):
    def edit(table):
        place = table.column_names.index(name)
        return table.set_column(place, name, values(table[name]))

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("row", lambda ids: ids.take(pa.array(np.arange(len(ids))[::-1]))), "column row: 600 cells are not as"),
        (_set("row", lambda ids: pa.array([7, *ids.to_pylist()[1:]])), "column row: 1 cells .* first in row 1"),
        (_set("row", lambda ids: pa.array([None, *ids.to_pylist()[1:]])), "column row: 1 cells"),
        (_set("row", lambda ids: ids.cast(pa.int32())), "column row: type int32, expected int64"),
        (_set("patient", lambda ids: pa.array([f"{SECRET}"] * len(ids))), "column patient: 600 cells"),
        (_set("country", lambda ids: pa.array(["NL"] * 599 + ["DE"])), "column country: 1 cells .* first in row 600"),
        (_set("wave", lambda ids: pa.array([3.0] * 600)), "column wave: type double, expected int64"),
        (_set("pilot", lambda ids: pa.array([True] * 600)), "column pilot: 600 cells"),
        (lambda table: table.drop_columns(["country"]), "columns must be patient, age, country"),
        (lambda table: table.select([*NAMES[1:], "patient"]), "columns must be patient, age, country"),
    ],
)
def test_edited_tables_are_refused(made, tmp_path, edit, message):
    made.save(tmp_path / "out")
    path = tmp_path / "out/synthetic.parquet"
    pq.write_table(edit(pq.read_table(path)), path)
    artifacts.seal(tmp_path / "out")
    with pytest.raises(ReleaseError, match=message):
        load(tmp_path / "out")


def test_samples_count_ids_anew(made):
    for where, weighted in (((), False), (("age>=60", "rich=yes"), False), (("age>=60",), True)):
        rows = made.sample(17, seed=3, where=where, weighted=weighted)
        assert rows.column_names == [*NAMES, *["weight"] * weighted]
        assert rows["row"].to_pylist() == [*range(1, 18)]
        assert rows["patient"][0].as_py() == "P000001"
        assert set(rows["country"].to_pylist()) == {"NL"}
        assert not where or min(rows["age"].to_pylist()) >= 60
        assert made.to_pandas(rows).columns.tolist() == rows.column_names


def test_types_of_a_data_frame(made):
    frame = made.to_pandas()
    assert frame.columns.tolist() == list(NAMES)
    assert {name: str(frame[name].dtype) for name in ("row", "wave", "pilot", "country")} == {
        "row": "int64",
        "wave": "int64",
        "pilot": "bool",
        "country": "category",
    }
    assert pandas.api.types.is_string_dtype(frame["patient"])
    assert frame["patient"].tolist()[:2] == ["P000001", "P000002"]
    again = _release(table=frame, target="rich")
    assert (again.to_pandas().dtypes == frame.dtypes).all()
    floats = Schema([AGE, Constant("x", 0.5)])
    assert floats.to_pandas(floats.decode(np.array([[3]])))["x"].dtype == "float64"
    with pytest.raises(ValueError, match="it lacks the schema's country, which every table of a release has"):
        made.to_pandas(made.table.drop_columns(["country"]))


def test_other_work_goes_on_without_them(made, tmp_path):
    answer = estimate(made, "mean(age) where rich=yes")
    assert answer.low < answer.value < answer.high
    replicates = bootstrap(made, 4)
    assert replicates.estimate(lambda frame: frame.age.mean()).value == pytest.approx(48, abs=6)
    assert set(two_sample_test(made, _table(seed=1)).parts) == {"age", "job", "rich"}
    assert made.support("age>=60").rows > 0
    errors = evaluate_table(made, _table(patient=ODD))
    assert errors["not_measured"] == ["patient", "country", "wave", "row", "pilot"]
    assert [column["name"] for column in errors["columns"]] == ["age", "job", "rich"]
    assert describe_table(errors).endswith("not measured, so not compared: patient, country, wave, row, pilot")
    source = open_table(_table(), SCHEMA)
    text = describe(check_table(source), source.num_rows, written=SCHEMA.written_columns)
    assert "not measured, so not checked: patient (id, counted from P000001), country (constant, NL)," in text
    assert [column.name for column in expected_errors(SCHEMA, 600, BUDGET).columns] == ["age", "job", "rich"]


def test_beside_constraints(tmp_path):
    """Columns that are measured instead of others are in the report. Written ones stay in their places."""
    columns = [Identifier("trip"), *(Datetime(name, "2025-01-01", "2025-12-31") for name in ("begin", "end"))]
    schema = Schema([*columns, Constant("city", "Bonn")], constraints=[Order("begin", "end")])
    assert schema.to_json()["schema_version"] == 3
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.measured.names == ("begin", "end - begin")
    assert schema.extended.names == ("begin", "end", "end - begin")
    days = np.asarray("2025-03-01", "M8[D]") + np.random.default_rng(0).integers(0, 99, 300)
    made = _release(schema, pa.table({"begin": days, "end": days + np.timedelta64(3, "D"), "trip": ["x"] * 300}))
    assert made.table.column_names == ["trip", "begin", "end", "city"]
    made.save(tmp_path / "out")
    assert load(tmp_path / "out").table.equals(made.table)
    assert "300 rows and 4 columns" in (tmp_path / "out/report.html").read_text()
    assert made.sample(5, where="end>begin")["trip"].to_pylist() == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="constraints: end - begin is the name of a column that is measured"):
        Schema([*columns, Identifier("end - begin")], constraints=[Order("begin", "end")])


def test_persons_may_be_in_a_column_of_new_ids(tmp_path, capsys):
    """Their private ids decide which rows are used. Every released row has an id of its own."""
    rng = np.random.default_rng(0)
    table = _table(visitor=[f"{SECRET}{i}" for i in rng.integers(0, 200, 600)])
    schema = Schema([AGE, Identifier("visitor"), JOB])
    dropped = Schema([AGE, JOB], dropped=["visitor"])
    rows = table.select(["age", "visitor", "job"])
    budget = PrivacyBudget(2.0, 1e-5, "add_remove_person", 3, "visitor")
    made = _release(schema, rows, budget)
    ids = made.table["visitor"].to_pylist()
    assert ids == [*range(1, len(ids) + 1)]
    same = _release(dropped, rows, budget)
    assert same.table.equals(made.table.drop_columns(["visitor"]))
    assert "columns that are not measured: visitor (id)" in made.statement["public_inputs"]
    assert made.statement["person"] == "visitor"
    made.save(tmp_path / "out")
    assert load(tmp_path / "out").table.equals(made.table)
    note = "Each synthetic row has an id of its own, so numbers of persons cannot be computed from them."
    assert cli.main(["show", str(tmp_path / "out")]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert note in (tmp_path / "out" / "report.html").read_text()
    same.save(tmp_path / "same")
    assert cli.main(["show", str(tmp_path / "same")]) == 0
    assert note not in capsys.readouterr().out + (tmp_path / "same" / "report.html").read_text()
    for refused in (Constant("visitor", 3), Categorical("visitor", ("a", "b"))):
        with pytest.raises(FileError, match="visitor is released; give it the kind drop or id, to use it as person"):
            open_table(rows, Schema([AGE, refused, JOB]), person="visitor", max_rows=3)
    with pytest.raises(FileError, match="there is no column visitor with the ids of persons"):
        open_table(rows.drop_columns(["visitor"]), schema, person="visitor", max_rows=3)


def test_columns_that_the_schema_lacks_are_still_refused():
    with pytest.raises(FileError, match="the schema lacks name: add it to the schema"):
        open_table(_table(name=["x"] * 600), SCHEMA)
    with pytest.raises(FileError, match="it lacks the schema's age"):
        open_table(_table(patient=["x"] * 600).drop_columns(["age"]), SCHEMA)
    with pytest.raises(FileError, match="it has none of the schema's columns"):
        open_table(pa.table({"patient": ["x"] * 3, "country": ["x"] * 3}), SCHEMA)


# -- bad schemas

BAD_ENTRIES = [
    (
        {"name": "x", "kind": "id", "colour": "red"},
        "column x: unknown field 'colour' .known: kind, name, prefix, digits",
    ),
    ({"name": "x", "kind": "id", "lower": 3}, "column x: field lower does not apply to kind id: remove it"),
    ({"name": "x", "kind": "id", "value": 3}, "column x: unknown field 'value'"),
    ({"name": "x", "kind": "id", "nullable": True}, "column x: field nullable does not apply to kind id"),
    ({"name": "x", "kind": "id", "prefix": 3}, "column x: prefix must be text"),
    ({"name": "x", "kind": "id", "prefix": ""}, "column x: prefix must be text"),
    ({"name": "x", "kind": "id", "prefix": "a\nb"}, "column x: prefix must be text"),
    ({"name": "x", "kind": "id", "digits": 4}, "column x: digits are for ids with a prefix"),
    ({"name": "x", "kind": "id", "prefix": "P", "digits": 0}, "column x: digits must be at least 1"),
    ({"name": "x", "kind": "id", "prefix": "P", "digits": 10**9}, "column x: digits must be at most 18"),
    ({"name": "x", "kind": "id", "prefix": "P", "digits": True}, "column x: digits must be a whole number"),
    ({"name": "x", "kind": "id", "prefix": "P", "digits": None}, "column x: digits must be a whole number"),
    ({"kind": "id"}, "column 2: name is not given"),
    ({"name": "", "kind": "id"}, "column '': a name must be text"),
    ({"name": [3], "kind": "id"}, "a name must be text"),
    ({"name": "age", "kind": "id"}, "more than one column is named age"),
    ({"name": "notes", "kind": "id"}, "more than one column is named notes"),
    ({"name": "x", "kind": "constant"}, "column x: value is not given: fill it in"),
    ({"name": "x", "kind": "constant", "value": None}, "column x: value is null: fill it in"),
    ({"name": "x", "kind": "constant", "value": ["NL"]}, "column x: value must be a number, text, or true or false"),
    ({"name": "x", "kind": "constant", "value": {}}, "column x: value must be a number, text, or true or false"),
    ({"name": "x", "kind": "constant", "value": ""}, "column x: value must be text of at most 1000"),
    ({"name": "x", "kind": "constant", "value": " NL"}, "column x: value must be text of at most 1000"),
    ({"name": "x", "kind": "constant", "value": "x" * 1001}, "column x: value must be text of at most 1000"),
    ({"name": "x", "kind": "constant", "value": float("nan")}, "column x: value must be finite"),
    ({"name": "x", "kind": "constant", "value": 1e999}, "column x: value must be finite"),
    ({"name": "x", "kind": "constant", "value": 2**63}, "column x: value must be finite, and a whole number below"),
    ({"name": "x", "kind": "constant", "value": 10**4000}, "column x: value must be finite, and a whole number below"),
    ({"name": "x", "kind": "constant", "value": 3, "prefix": "P"}, "column x: unknown field 'prefix'"),
    ({"name": "x", "kind": "constant", "values": {}, "value": 3}, "column x: unknown field 'values'"),
    ({"name": "x", "kind": "constant", "value": 3, "default": 3}, "field default does not apply to kind constant"),
]


def _document(*entries, **changes):
    columns = [AGE.to_json(), *entries, {"name": "notes", "kind": "drop"}]
    return {"schema_version": 3, "columns": columns} | changes


@pytest.mark.parametrize(("entry", "message"), BAD_ENTRIES)
def test_bad_entries(tmp_path, entry, message):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(_document(entry)))
    with pytest.raises(FileError, match=message) as caught:
        Schema.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) - len(str(path)) < 400


PATIENT, COUNTRY = ALL[0].to_json(), ALL[2].to_json()
NOT_MEASURED = "patient has the kind id: it is written into a release and never measured"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_document(PATIENT, schema_version=1), "schema_version must be 3, because there is a column of kind id"),
        (_document(COUNTRY, schema_version=2), "schema_version must be 3, because there is a column of kind constant"),
        (_document(PATIENT, PATIENT), "more than one column is named patient"),
        ({"schema_version": 3, "columns": [PATIENT]}, "no columns that are measured, only patient: list one or more"),
        (
            _document({"name": "x", "kind": "id", "prefix": 3}, {"name": "y", "kind": "constant"}),
            "column x: prefix .*; column y: value is not given",
        ),
        *(
            (_document(PATIENT, COUNTRY, JOB.to_json(), constraints=[constraint.to_json()]), NOT_MEASURED)
            for constraint in (
                Order("age", "patient"),
                Sum(("age", "patient"), "age2"),
                Lookup("job", "patient", {"baker": 1}),
                Lookup("patient", "job", {"1": "baker"}),
                OneOf(("patient=1", "job=baker"), required=False),
                Implies("patient=1", "age=3"),
                Implies("age=3", "patient=1"),
                Forbidden("age=3 and patient=1"),
                Forbidden("job=baker and patient=1"),
            )
        ),
        (
            _document(COUNTRY, constraints=[Forbidden("country=NL and age=3").to_json()]),
            "there is no column 'country.*; country has the kind constant: it is written",
        ),
    ],
)
def test_bad_schemas(document, message):
    with pytest.raises(ValueError, match=message) as caught:
        Schema.from_json(document)
    assert str(caught.value).isprintable()


def test_a_value_may_be_spelled_like_a_written_column():
    """Only a name that is refused is explained."""
    job = Categorical("job", ("patient", "nurse"))
    schema = Schema([Identifier("patient"), job, AGE], constraints=[Forbidden("job=patient and age=0")])
    assert len(schema.constraints) == 1
    with pytest.raises(ValueError, match=r"there is no column 'jobs'$"):
        Schema([Identifier("patient"), job, AGE], constraints=[Order("age", "jobs")])
    with pytest.raises(ValueError, match=r"there is no column 'jobs'$"):
        Schema([Identifier("no"), Constant("column", 1), AGE], constraints=[Order("age", "jobs")])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (3, "written: expected places with their columns"),
        ([3], "written: expected places with their columns"),
        ([(0, AGE)], "written: expected places with their columns"),
        ([(3, Identifier("x"))], "written: places must increase, and be places of a release, got .3"),
        ([(-1, Identifier("x"))], "written: places must increase"),
        ([(True, Identifier("x"))], "written: places must increase"),
        ([(1, Identifier("x")), (0, Identifier("y"))], "written: places must increase"),
        ([(1, Identifier("x")), (1, Identifier("y"))], "written: places must increase"),
    ],
)
def test_bad_places(written, message):
    with pytest.raises(ValueError, match=message):
        Schema((AGE, JOB), written=written)
    with pytest.raises(ValueError, match="written: z is in the list of columns: leave written out"):
        Schema((AGE, Identifier("z")), written=written)
    with pytest.raises(ValueError, match="columns: expected a list of columns"):
        Schema(Identifier("z"))


# -- what is refused for a release


@pytest.mark.parametrize(
    "ask",
    [
        lambda made: made.sample(5, where="patient=3"),
        lambda made: made.sample(5, where="3<=patient"),
        lambda made: made.sample(5, where="age>=65 and patient=P000003"),
        lambda made: made.sample(5, where="age>=patient"),
        lambda made: made.sample(5, where="job=patient"),
        lambda made: made.sample(5, where="patient in (1, 2)"),
        lambda made: made.sample(5, where=["age>3", "job=nurse or patient!=2"]),
        lambda made: made.support("patient=3"),
        lambda made: estimate(made, "mean(patient)"),
        lambda made: estimate(made, "median(patient)", method="bootstrap"),
        lambda made: estimate(made, "count(patient=3)"),
        lambda made: estimate(made, "share(age>3) where patient=3"),
        lambda made: estimate(made, "mean(age) by patient"),
        lambda made: estimate(made, "correlation(age, patient)"),
        lambda made: estimate(made, "regression(age ~ patient)"),
        lambda made: measure_table(_table(), SCHEMA, budget=BUDGET, target="patient"),
        lambda made: expected_errors(SCHEMA, 600, BUDGET, target="patient"),
        lambda made: SCHEMA.index("patient"),
    ],
)
def test_questions_about_them_are_refused(made, ask):
    with pytest.raises(ValueError, match=NOT_MEASURED) as caught:
        ask(made)
    assert "\n" not in str(caught.value)


def test_a_column_named_weight(made):
    with pytest.raises(ValueError, match="a column is named weight already"):
        _release(Schema([AGE, Constant("weight", 1)]), _table().select(["age"])).sample(5, weighted=True)


# -- the commands

FLAGS = ["--schema=schema.json", "--epsilon=2", "--delta=1e-5", "--output=out"]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    _fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["release", "rows.csv", *FLAGS, "--target=rich"]) == 0
    return folder


def _fill(folder):
    pyarrow.csv.write_csv(_table(patient=[SECRET] * 600, notes=["x"] * 600), folder / "rows.csv")
    SCHEMA.write(folder / "schema.json")


@pytest.fixture
def place(tmp_path, monkeypatch, released):
    _fill(tmp_path)
    (tmp_path / "old").mkdir()
    for path in (released / "out").iterdir():
        (tmp_path / "old" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands(place, capsys):
    made = load("old")
    assert made.statement["private"]
    assert made.columns == NAMES
    assert all(SECRET.encode() not in path.read_bytes() for path in pathlib.Path("old").iterdir())
    words = ["--where=age>=65", "--num_rows=12", "--output=x.csv"]
    assert cli.main(["sample", "old", *words]) == 0
    lines = pathlib.Path("x.csv").read_text().splitlines()
    assert lines[0] == ",".join(f'"{name}"' for name in NAMES)
    assert lines[1].startswith('"P000001",')
    assert lines[12].startswith('"P000012",')
    assert lines[12].endswith(",12,false")
    capsys.readouterr()
    assert cli.main(["show", "old"]) == 0
    text = capsys.readouterr().out
    assert "600 rows of 8 columns" in text
    shown = [line.split()[0] for line in text.splitlines()[-8:]]
    assert shown == list(NAMES)
    assert "id, counted from P000001; not measured" in text
    assert "constant, NL; not measured" in text
    assert cli.main(["show", "old", "--json"]) == 0
    assert "columns that are not measured: patient (id), country (constant)" in capsys.readouterr().out
    assert cli.main(["check", "rows.csv", "--schema=schema.json"]) == 0
    assert "not measured, so not checked: patient (id" in capsys.readouterr().out
    assert cli.main(["evaluate", "old", "--against=rows.csv"]) == 0
    assert "not measured, so not compared: patient, country" in capsys.readouterr().out
    assert cli.main(["estimate", "old", "mean(age)"]) == 0
    assert cli.main(["synthesise", "old", "--num_rows=7", "--output=new"]) == 0
    assert load("new").table["row"].to_pylist() == [*range(1, 8)]
    assert cli.main(["plan", "--schema=schema.json", "--num_rows=600", "--epsilon=2", "--delta=1e-5"]) == 0
    assert "country" not in capsys.readouterr().out


def _tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def _entry(**fields):
    return lambda document: document["columns"].insert(0, fields)


def _version(version):
    return lambda document: document.update(schema_version=version)


def _constrained(**fields):
    return lambda document: document.update(constraints=[fields])


def _nothing(document):
    return None


RELEASE = ["release", "rows.csv", *FLAGS]
PERSONS = ["--max_rows=2"]
BAD_COMMANDS = {
    "an unknown field": (_entry(name="x", kind="id", color=1), RELEASE, "column x: unknown field 'color'"),
    "a field of another kind": (_entry(name="x", kind="id", lower=1), RELEASE, "lower does not apply to kind id"),
    "no value": (_entry(name="x", kind="constant"), RELEASE, "column x: value is not given"),
    "a value of a wrong type": (_entry(name="x", kind="constant", value=[]), RELEASE, "column x: value must be"),
    "the same name twice": (_entry(name="age", kind="id"), RELEASE, "more than one column is named age"),
    "an earlier version": (_version(1), RELEASE, "schema_version must be 3"),
    "an id as target": (_nothing, [*RELEASE, "--target=patient"], NOT_MEASURED),
    "a constant as target": (_nothing, [*RELEASE, "--target=country"], "country has the kind constant"),
    "an id in a constraint": (_constrained(kind="order", smaller="age", larger="row"), RELEASE, "row has the kind id"),
    "a constant in a constraint": (
        _constrained(kind="forbidden", when="wave=3"),
        RELEASE,
        "wave has the kind constant",
    ),
    "a constant as person": (
        _nothing,
        [*RELEASE, "--person=wave", *PERSONS],
        "wave is released; give it the kind drop",
    ),
    "ids that are not in the file": (_nothing, [*RELEASE, "--person=row", *PERSONS], "there is no column row with"),
    "a condition": (_nothing, ["sample", "old", "--where=patient=3", "--output=x.csv"], NOT_MEASURED),
    "a question": (_nothing, ["estimate", "old", "mean(patient)", "--output=x.json"], NOT_MEASURED),
    "a group": (_nothing, ["estimate", "old", "mean(age) by country"], "country has the kind constant"),
    "a plan": (
        _nothing,
        ["plan", "--schema=schema.json", "--num_rows=600", "--epsilon=2", "--delta=1e-5", "--target=row"],
        "row has the kind id",
    ),
    "a check": (_entry(name="x", kind="constant"), ["check", "rows.csv", "--schema=schema.json"], "value is not given"),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_bad_commands(place, capsys, name):
    change, words, message = BAD_COMMANDS[name]
    document = json.loads((place / "schema.json").read_text())
    change(document)
    (place / "schema.json").write_text(json.dumps(document))
    before = _tree(place)
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert _tree(place) == before


def test_drafts_name_the_kinds(place, capsys):
    draft, _ = draft_schema("rows.csv")
    assert "id (new ids" in draft["comment"]
    assert "constant (value)" in draft["comment"]
    draft["columns"] = [column | {"kind": "id"} for column in draft["columns"] if column["name"] == "patient"]
    draft["columns"].append(AGE.to_json())
    assert Schema.from_json(draft | {"schema_version": 3}).released_names == ("patient", "age")
    with pytest.raises(SystemExit):
        cli.main(["schema", "--help"])
    text = capsys.readouterr().out
    assert "\n  id " in text
    assert "\n  constant " in text
