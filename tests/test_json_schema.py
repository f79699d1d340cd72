"""The JSON Schema of schemas: it accepts what the program accepts, and finds what editors should show."""

import dataclasses
import json
import pathlib

import jsonschema
import pytest

from experiments.tables.invented import INVENTED
from kme_jax.cli import main
from kme_jax.table.columns import FIELDS, OTHER_KINDS, Numeric
from kme_jax.table.constraints import KINDS
from kme_jax.table.draft import draft_schema
from kme_jax.table.json_schema import json_schema
from kme_jax.table.schema import WRITTEN, Schema
from kme_jax.table.weights import Weight
from kme_jax.table.written import Constant, Identifier

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GUIDE = pathlib.Path(__file__).parents[1] / "docs/guides/tables.md"
AGE = {"name": "age", "kind": "numeric", "lower": 0, "upper": 9}
ORDER = {"kind": "order", "smaller": "age", "larger": "last"}


def _entries(name):
    for entry in json_schema()["properties"][name]["items"]["allOf"]:
        yield entry["then"]["title"], entry["then"]


def test_it_knows_all_kinds_and_fields():
    VALIDATOR.check_schema(json_schema())
    columns = dict(_entries("columns"))
    assert set(columns) == {*FIELDS, *WRITTEN, "drop"} == {*FIELDS, *OTHER_KINDS}
    for kind, fields in FIELDS.items():
        assert set(columns[kind]["properties"]) == {"kind", *fields}
    for kind, cls in WRITTEN.items():
        assert set(columns[kind]["properties"]) == {"kind", *(field.name for field in dataclasses.fields(cls))}
    constraints = dict(_entries("constraints"))
    for kind, cls in KINDS.items():
        assert set(constraints[kind]["properties"]) == {"kind", *(field.name for field in dataclasses.fields(cls))}
    for kind, entry in (columns | constraints).items():
        assert entry["description"].endswith("."), kind
        described = [field for name, field in entry["properties"].items() if name not in ("kind", "name")]
        assert kind == "drop" or all(len(field["description"]) > 10 for field in described), kind


def test_what_the_program_accepts_is_valid():
    documents = [table(100, 0).schema.to_json() for table in INVENTED.values()]
    documents.append(json.loads(GUIDE.read_text().split("```json")[1].split("```")[0]))
    documents.append(
        Schema([Identifier("id", "P", 8), Numeric("age", 0, 9), Constant("old", False), Weight("w", 9)]).to_json()
    )
    documents.append({"$schema": "kme_jax.schema.json", **documents[-1]})
    for document in documents:
        Schema.from_json(document)
        assert not list(VALIDATOR.iter_errors(json.loads(json.dumps(document))))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"columns": []}, "non-empty"),
        ({"columns": [{"name": "a"}]}, "kind"),
        ({"columns": [{"name": "a", "kind": "number"}]}, "number"),
        ({"columns": [AGE | {"lower": None}]}, "None"),
        ({"columns": [AGE | {"lower": "0"}]}, "'0'"),
        ({"columns": [{"name": "a", "kind": "numeric", "lower": 0}]}, "upper"),
        ({"columns": [AGE | {"categories": ["x"]}]}, "categories"),
        ({"columns": [AGE | {"scale": "cubic"}]}, "cubic"),
        ({"columns": [AGE | {"step": 0}]}, "0"),
        ({"columns": [{"name": "a", "kind": "categorical", "categories": []}]}, "[]"),
        ({"columns": [AGE], "constraints": [ORDER]}, "1 is less than the minimum of 2"),
        ({"schema_version": 2, "constraints": [{"kind": "order", "smaller": "a"}]}, "larger"),
        ({"schema_version": 2, "constraints": [ORDER | {"gap": 3}]}, "gap"),
        ({"schema_version": 2, "constraints": [{"kind": "sum", "parts": "ab", "total": "c"}]}, "'ab'"),
        ({"schema_version": 4}, "4"),
        ({"columns": [AGE, {"name": "id", "kind": "id"}]}, "1 is less than the minimum of 3"),
        ({"schema_version": 2, "columns": [AGE, {"name": "id", "kind": "id"}]}, "2 is less than the minimum of 3"),
        ({"schema_version": 3, "columns": [AGE, {"name": "id", "kind": "id", "digits": "8"}]}, "'8'"),
        ({"schema_version": 3, "columns": [AGE, {"name": "id", "kind": "id", "value": 8}]}, "value"),
        ({"schema_version": 3, "columns": [AGE, {"name": "land", "kind": "constant"}]}, "value"),
        ({"schema_version": 3, "columns": [AGE, {"name": "land", "kind": "constant", "value": None}]}, "None"),
        ({"columnes": []}, "columnes"),
    ],
)
def test_mistakes_are_found(change, where):
    errors = list(VALIDATOR.iter_errors({"schema_version": 1, "columns": [AGE], **change}))
    assert errors
    assert any(where in error.message for error in errors), [error.message for error in errors]


def test_a_draft_shows_what_is_to_be_filled_in(tmp_path):
    (tmp_path / "x.csv").write_text("age,job\n1,baker\n")
    draft, _ = draft_schema(tmp_path / "x.csv")
    assert {error.json_path for error in VALIDATOR.iter_errors(draft)} >= {"$.columns[0].kind", "$.columns[1].kind"}


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["schema", "--json_schema", "--output=x.json"]) == 0
    assert json.loads((tmp_path / "x.json").read_text()) == json_schema()
    for words in (["schema", "--output=y.json"], ["schema", "rows.csv", "--json_schema", "--output=y.json"]):
        capsys.readouterr()
        assert main(words) == 2
        assert "give either a file" in capsys.readouterr().err
    assert not (tmp_path / "y.json").exists()
