import gzip
import json
import pathlib
import re
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import Ledger, PrivacyBudget, cli, load
from kme_jax.privacy.composition import Composition
from kme_jax.table.columns import KINDS, Categorical, Numeric
from kme_jax.table.readers import write_table
from kme_jax.table.schema import Schema

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Categorical("job", ("baker", "clerk", "nurse"), nullable=True),
        Categorical("rich", ("no", "yes")),
    )
)
SECRET = "31415926"
RELEASE = {"file": "rows.parquet", "schema": "schema.json", "epsilon": "2", "delta": "1e-5", "output": "out"}


def _command(**changes):
    flags = RELEASE | changes
    words = [flags.pop("file"), *flags.pop("words", [])]
    return ["release", *words, *(f"--{name}={value}" for name, value in flags.items() if value is not None)]


def _table(num_rows=800, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, num_rows)
    job = pa.array(np.asarray(["baker", "clerk", "nurse"])[rng.integers(0, 3, num_rows)], mask=age < 20)
    return pa.table({"age": age, "job": job, "rich": np.where(age > 50, "yes", "no")})


def _fill(folder):
    write_table(folder / "rows.parquet", _table())
    SCHEMA.write(folder / "schema.json")


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    _fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(_command(target="rich")) == 0
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch, released):
    """The same in a folder of the test's own, where commands run."""
    _fill(tmp_path)
    (tmp_path / "old").mkdir()
    for path in (released / "out").iterdir():
        (tmp_path / "old" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_release(released, capsys):
    assert {path.name for path in released.iterdir()} == {"rows.parquet", "schema.json", "rows.parquet.ledger", "out"}
    made = load(released / "out")
    assert made.target == "rich"
    assert made.table.num_rows == 800
    assert made.statement["private"]
    (spent,) = Ledger(released / "rows.parquet.ledger").spent("rows.parquet")
    assert (spent.epsilon, spent.delta) == (2.0, 1e-5)
    report = (released / "out" / "report.html").read_text()
    assert all(name in report for name in SCHEMA.names)


@pytest.mark.long
def test_a_release_ends_with_its_report(place, capsys):
    assert cli.main(_command()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "read the report first: open out/report.html"


def test_a_second_release_is_refused_with_the_flag(place, capsys):
    Ledger("rows.parquet.ledger").spend("rows.parquet", Composition.planned(PrivacyBudget(1.0, 1e-5)))
    assert cli.main(_command()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("which adds to the total, use --again")
    assert "allow_repeat" not in line
    assert cli.main(_command(words=["--dry_run"])) == 2
    assert capsys.readouterr().err.splitlines() == [line]


def test_show(place, capsys):
    assert cli.main(["show", "old"]) == 0
    text = capsys.readouterr().out
    assert "(2, 1e-05)-differential privacy" in text
    assert "800 rows of 3 columns" in text
    assert "categorical, 3 values, or missing" in text
    assert cli.main(["show", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 2


def test_show_warns_of_files_that_are_no_part_of_the_release(place, capsys):
    assert cli.main(["show", "old"]) == 0
    assert capsys.readouterr().err == ""
    for name in ("manifest.json.sig", "claims.csv"):
        (place / "old" / name).write_text(SECRET)
    assert cli.main(["show", "old", "--json"]) == 0
    printed = capsys.readouterr()
    text = "warning: the manifest does not name claims.csv: do not publish it unless it is public\n"
    assert printed.err == text
    assert json.loads(printed.out)["epsilon"] == 2
    (place / "old" / ".people.csv.ledger").write_text(SECRET)
    assert cli.main(["show", "old"]) == 0
    assert "does not name .people.csv.ledger, claims.csv: do not publish them unless" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_sample(place, capsys, suffix):
    words = ["--where=age>=65", "--where=rich = yes", "--num_rows=40", f"--output=some.{suffix}"]
    assert cli.main(["sample", "old", *words]) == 0
    assert "40 rows" in capsys.readouterr().out
    table = pq.read_table("some.parquet") if suffix == "parquet" else pa.csv.read_csv("some.csv")
    assert min(table["age"].to_pylist()) >= 65
    assert set(table["rich"].to_pylist()) == {"yes"}
    assert cli.main(["sample", "old", "--weighted", f"--output=weighted.{suffix}"]) == 0
    assert (place / f"weighted.{suffix}").exists()


def test_synthesise(place, capsys):
    assert cli.main(["synthesise", "old", "--num_rows=77", "--output=new"]) == 0
    assert "77 rows; nothing was spent" in capsys.readouterr().out
    assert load("new").table.num_rows == 77


def test_evaluate(place, capsys):
    assert cli.main(["evaluate", "old", "--against=rows.parquet", "--output=errors.json"]) == 0
    assert capsys.readouterr().out.startswith("NOT PRIVATE")
    found = json.loads((place / "errors.json").read_text())
    assert found["warning"].startswith("NOT PRIVATE")
    assert [column["name"] for column in found["columns"]] == list(SCHEMA.names)
    assert found["mean_total_variation"]["1"] == pytest.approx(
        np.mean([column["total_variation"] for column in found["columns"]])
    )
    assert cli.main(["evaluate", "old", "--against=rows.parquet", "--output=old/errors.json"]) == 2


def test_a_schema_is_drafted_and_filled_in(place, capsys):
    assert cli.main(["schema", "rows.parquet", "--output=draft.json"]) == 0
    assert "fill in what is null" in capsys.readouterr().out
    draft = json.loads((place / "draft.json").read_text())
    assert [column["name"] for column in draft["columns"]] == list(SCHEMA.names)
    assert draft["columns"][0]["lower"] is None
    assert "baker" not in (place / "draft.json").read_text()
    assert cli.main(_command(schema="draft.json")) == 2
    assert "is null" in capsys.readouterr().err
    assert cli.main(["schema", "rows.parquet", "--public", "--output=public.json"]) == 0
    assert "public files only" in capsys.readouterr().out
    filled = Schema.read("public.json")
    assert filled.filled_from_data
    assert filled.columns[1].categories == ("baker", "clerk", "nurse")


def test_an_interrupted_synthesis_can_be_finished(place, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("kme_jax.table.release.synthesise", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli.main(_command(num_rows="90")) == 130
    said = capsys.readouterr().err
    assert cli.main(["show", "out.measured"]) == 2
    assert "; kme-jax synthesise out.measured" in capsys.readouterr().err
    assert "kme-jax synthesise out.measured --output=out --seed=0 --num_rows=90" in said
    assert not (place / "out").exists()
    assert cli.main(["synthesise", "out.measured", "--output=out", "--num_rows=90"]) == 0
    assert "not needed any more" in capsys.readouterr().out
    assert load("out").table.num_rows == 90
    assert len(Ledger("rows.parquet.ledger").spent("rows.parquet")) == 1


def test_an_interrupted_measurement_says_what_is_spent(place, capsys, monkeypatch):
    for stop in (KeyboardInterrupt, MemoryError):
        monkeypatch.setattr("kme_jax.table.measure.perturb_securely", lambda *_, e=stop, **__: (_ for _ in ()).throw(e))
        assert cli.main(_command(words=["--again"])) in (2, 130)
        (line,) = capsys.readouterr().err.splitlines()
        assert "the budget is recorded as spent in" in line
        assert "--again" in line
    assert not (place / "out").exists()
    assert len(Ledger("rows.parquet.ledger").spent("rows.parquet")) == 2


def _write(path, text):
    def write(place):
        (place / path).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def _rewrite(**changes):
    """The schema with changes of its first column."""

    def write(place):
        document = json.loads((place / "schema.json").read_text())
        document["columns"][0] |= changes
        (place / "schema.json").write_text(json.dumps(document))

    return write


def _columns(**changes):
    """The private file with columns changed; None drops one."""

    def write(place):
        table = _table()
        columns = {name: table[name] for name in table.column_names} | changes
        (place / "rows.parquet").unlink()
        write_table(place / "rows.parquet", pa.table({n: c for n, c in columns.items() if c is not None}))

    return write


def _twice(place):
    table = _table()
    (place / "rows.parquet").unlink()
    pq.write_table(pa.Table.from_arrays([*table.columns, table["age"]], [*table.column_names, "age"]), "rows.parquet")


_NOTHING = _write("nothing", "")
_CSV = "age,job,rich\n" + f"{SECRET},baker,yes\n" * 5
# For each: what is done to the files, changes of the command, what is said.
BAD = {
    "no such file": (_NOTHING, {"file": "none.parquet"}, "none.parquet: no such file"),
    "another suffix": (_write("rows.txt", "x"), {"file": "rows.txt"}, "expected a .csv, .csv.gz"),
    "an empty file": (_write("rows.csv", ""), {"file": "rows.csv"}, "rows.csv: is empty"),
    "a header alone": (_write("rows.csv", "age,job,rich\n"), {"file": "rows.csv"}, "at least 2 rows, got 0"),
    "one row": (_write("rows.csv", f"age,job,rich\n{SECRET},a,b\n"), {"file": "rows.csv"}, "at least 2 rows, got 1"),
    "text named parquet": (_write("rows.parquet", _CSV), {}, "rows.parquet: is no Parquet file"),
    "gzip named csv": (
        _write("rows.csv", gzip.compress(_CSV.encode(), mtime=0)),
        {"file": "rows.csv"},
        "is a gzip file",
    ),
    "parquet named csv": (_write("rows.csv", b"PAR1" + b"\0" * 50), {"file": "rows.csv"}, "is a Parquet file"),
    "half a parquet file": (_write("rows.parquet", b"PAR1" + b"x" * 99), {}, "is damaged, or no Parquet file"),
    "a ragged row": (_write("rows.csv", _CSV + f"{SECRET},baker\n"), {"file": "rows.csv"}, "row 7 .* has 2 cells"),
    "a column missing": (_columns(job=None), {}, "job"),
    "a column too many": (_columns(name=pa.array(["x"] * 800)), {}, "name.*drop|drop.*name"),
    "the same name twice": (_twice, {}, "columns . and . have the same name"),
    "categories that are one number": (
        _rewrite(kind="categorical", categories=["1", "01"], lower=None, upper=None, integer=None),
        {},
        "column age: categories 1 and 01 are the same number or time",
    ),
    "no schema": (_NOTHING, {"schema": "none.json"}, "none.json"),
    "a damaged schema": (_write("schema.json", '{"columns": ['), {}, "schema.json"),
    "another schema version": (_write("schema.json", '{"schema_version": 9, "columns": []}'), {}, "version"),
    "bounds reversed": (_rewrite(lower=99, upper=0), {}, "column age: lower must be below upper"),
    "bounds absent": (_rewrite(lower=None), {}, "column age: lower is null: fill in a bound"),
    "bounds not finite": (_rewrite(upper=1e999), {}, "column age: upper must be"),
    "an unknown kind": (_rewrite(kind="text"), {}, "column age: unknown kind 'text'.*free text and identifiers"),
    "an unknown field": (_rewrite(colour="red"), {}, "column age: unknown field 'colour'"),
    "no categories": (
        _rewrite(kind="categorical", categories=[], lower=None, upper=None, integer=None),
        {},
        "categories",
    ),
    "many categories": (
        _rewrite(kind="categorical", categories=[f"c{i}" for i in range(10**5)], lower=None, upper=None, integer=None),
        {},
        "column age: .*4096",
    ),
    "a grid too large": (_rewrite(upper=10**17), {}, "column age: its grid is too large"),
    "an unknown target": (_NOTHING, {"target": "wealth"}, "no column 'wealth'"),
    "no budget": (_NOTHING, {"epsilon": "0"}, "epsilon must be positive"),
    "a large delta": (_NOTHING, {"delta": "0.01"}, "delta must be below 1/N"),
    "no delta": (_NOTHING, {"delta": "0"}, "delta"),
    "no rows asked": (_NOTHING, {"num_rows": "0"}, "--num_rows must be from 1"),
    "bounds and a schema": (_NOTHING, {"lower": "0,0"}, "--lower does not apply with --schema"),
    "a kernel and a schema": (_NOTHING, {"kernel": "gaussian"}, "--kernel does not apply with --schema"),
    "no header": (_NOTHING, {"words": ["--no_header"]}, "--no_header does not apply with --schema"),
    "neither": (_NOTHING, {"schema": None}, "give --schema for a table, or --lower and --upper"),
    "a target without a schema": (
        _NOTHING,
        {"schema": None, "lower": "0", "upper": "1", "target": "a"},
        "needs --schema",
    ),
    "a folder that exists": (_NOTHING, {"output": "old"}, "old exists"),
    "a folder that is nowhere": (_NOTHING, {"output": "no/where"}, "cannot be written"),
    "an unknown flag": (_NOTHING, {"wealth": "3"}, "--wealth"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(place, capsys, name):
    prepare, changes, message = BAD[name]
    prepare(place)
    before = _tree(place)
    assert cli.main(_command(**changes)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert SECRET not in line
    assert _tree(place) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "old", "--output=x.npz"], "expected a .csv or .parquet or .arrow"),
        (["sample", "old", "--output=x.csv", "--where=age"], "expected a column"),
        (["sample", "old", "--output=x.csv", "--where=Age>=65"], "there is no column 'Age', only age, job, rich"),
        (["sample", "old", "--output=x.csv", "--where=age>=65 or rich"], "is no number"),
        (["sample", "old", "--output=x.csv", "--where=age>old"], "age: 'old' is no number"),
        (["evaluate", "old", "--against=rows.parquet", "--no_distance"], "--no_distance does not apply to a table"),
        (["evaluate", "old", "--against=rows.parquet", "--array=a"], "--array does not apply to a table"),
        (["sample", "old", "--output=x.csv", "--num_rows=0"], "--num_rows"),
        (["synthesise", "old", "--output=new", "--num_points=5"], "give --num_rows"),
        (["evaluate", "old", "--against=other.parquet"], "no such file"),
        (["schema", "rows.parquet", "--output=schema.json"], "schema.json exists"),
        (["schema", "none.parquet", "--output=new.json"], "no such file"),
        (["schema", "rows.parquet", "--output=new.txt"], "expected a .json file"),
    ],
)
def test_other_bad_input(place, capsys, words, message):
    (place / "semicolons.csv").write_text("age/job\n40/baker\n")
    before = _tree(place)
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert _tree(place) == before


@pytest.mark.slow
def test_cells_decide_nothing(place, capsys):
    """Odd cells, each in a file of the same structure: the same is printed, but for the noise."""
    texts = []
    for i, cells in enumerate(
        (["40", "baker", "yes"], ["1e999", "\xff", ""], ["nan", "x" * 9, "no,"], [SECRET * 9, "", "'"])
    ):
        row = ",".join(f'"{cell}"' for cell in cells)
        (place / "cells.csv").write_bytes(("age,job,rich\n" + f"{row}\n" * 500).encode("latin-1"))
        assert cli.main(_command(file="cells.csv", output=f"out{i}", words=["--again"], ledger=f"ledger{i}")) == 0
        printed = capsys.readouterr()
        texts.append(printed.err)
        assert SECRET not in printed.out + printed.err
        SCHEMA.check(load(f"out{i}").table)
    assert set(texts) == {""}


@pytest.mark.slow
def test_cells_of_any_type_are_released(place, capsys):
    """Lists are unreadable, as any other cell of no kind; nothing says so but ``check``."""
    table = _table().set_column(0, "age", pa.array([[1]] * 800))
    (place / "rows.parquet").unlink()
    pq.write_table(table, "rows.parquet")
    assert cli.main(_command()) == 0
    SCHEMA.check(load("out").table)
    assert cli.main(["check", "rows.parquet", "--schema=schema.json"]) == 0
    assert "none is read: is the kind right?" in capsys.readouterr().out


def test_a_schema_is_checked_against_the_rows(place, capsys):
    (place / "x.csv").write_text("age,job,rich\n5,baker,yes\n1e9,?,\n-7,,1\nold,baker,no\n\n,,\n")
    before = _tree(place)
    for words in (["check", "x.csv"], ["check", "rows.parquet"]):
        assert cli.main([*words, "--schema=schema.json"]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        assert printed.out.startswith("NOT PRIVATE: ")
        assert SECRET not in printed.out
        found = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines()[3:-1]}
        if words[1] == "x.csv":
            assert "5 rows;" in printed.out
            assert found["age"][:4] == ["numeric", "1", "1", "2"]
            assert "40% beyond a bound: is the unit right?" in printed.out
            assert found["job"][:4] == ["categorical", "2", "1", "0"]
            assert found["rich"][:4] == ["categorical", "2", "1", "0"]
            assert (
                "20% cannot be read. Cells are spelled like the categories. Files are in UTF-8, or need --encoding."
                in printed.out
            )
    assert _tree(place) == before
    (place / "t.csv").write_text("t\n2024-01-01\n2023-12-31\n2030-01-01\nsoon\n20240105\n\n")
    column = {"name": "t", "kind": "datetime", "lower": "2024-01-01", "upper": "2024-12-31", "resolution": "day"}
    (place / "t.json").write_text(json.dumps({"schema_version": 1, "columns": [column]}))
    assert cli.main(["check", "t.csv", "--schema=t.json"]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[1:5] == ["datetime", "1", "1", "2"]


def test_a_check_says_how_cells_of_this_schema_look(place, capsys):
    """A column with a decimal comma or a format is not told to have one."""
    (place / "x.csv").write_text('full;paid;day\n"8,5 %";1,5 EUR;2025/12/31\n"9,5 %";2,5 EUR;2025/12/30\n')
    columns = [
        {"name": "full", "kind": "numeric", "lower": 0, "upper": 100, "decimal": ","},
        {"name": "paid", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "day", "kind": "datetime", "lower": "2025-01-01", "upper": "2025-12-31", "format": "%d.%m.%Y"},
    ]
    (place / "x.json").write_text(json.dumps({"schema_version": 1, "columns": columns}))
    assert cli.main(["check", "x.csv", "--schema=x.json"]) == 0
    full, paid, day = capsys.readouterr().out.splitlines()[3:6]
    assert full.endswith("Numbers look like 1234,5 or 1.234,5, without a unit or a sign such as %.")
    assert paid.endswith('1234.5, without a unit or a sign such as %; 1234,5 needs "decimal": "," in the schema.')
    assert day.endswith("Times look like %d.%m.%Y, or like 2025-12-31 or 2025-12-31 23:59:59.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv", "--schema=schema.json"], "no such file"),
        (["rows.parquet", "--schema=none.json"], "cannot be read"),
        (["rows.parquet"], "--schema"),
        (["schema.json", "--schema=schema.json"], "expected a .csv, .csv.gz"),
    ],
)
def test_a_check_of_nothing(place, capsys, words, message):
    assert cli.main(["check", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_pyarrow(place, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("kme_jax.table")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(_command()) == 2
    assert 'tables need pyarrow: pip install "kme_jax[tables]"' in capsys.readouterr().err


def test_the_columns_in_the_help_and_in_the_guide_are_a_schema(capsys):
    with pytest.raises(SystemExit):
        cli.main(["schema", "--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("{")]
    guide = (pathlib.Path(__file__).parents[1] / "docs/guides/tables.md").read_text()
    for columns in (map(json.loads, lines), json.loads(guide.split("```json")[1].split("```")[0])["columns"]):
        schema = Schema.from_json({"schema_version": 3, "columns": list(columns)})
        assert {column.kind for column in schema.columns} == set(KINDS)
        insured, postcode = (schema.columns[schema.index(name)] for name in ("insured", "postcode"))
        assert insured.is_boolean
        assert postcode.categories[0] == "01067"


def test_help_explains(capsys):
    for words, expected in (
        (["release", "--help"], "synthetic.parquet"),
        (["release", "--help"], "kme-jax check"),
        (["check", "--help"], "NOT PRIVATE"),
        (["schema", "--help"], "public knowledge"),
    ):
        with pytest.raises(SystemExit):
            cli.main(words)
        assert expected in capsys.readouterr().out
