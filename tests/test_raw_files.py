"""A release of a file as it is: words for missing cells, decimal commas, another encoding, and bools as bools."""

import json

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import cli, load
from kme_jax.table.columns import Categorical, Numeric, Ordinal
from kme_jax.table.readers import open_table
from kme_jax.table.release import TableRelease
from kme_jax.table.schema import Schema

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("Größe", 0, 250, step=0.1, nullable=True, decimal=",", missing=(-9, "k. A.", 99)),
        Categorical("member", ("False", "True"), nullable=True, missing=("?",)),
        Categorical("paid", ("true", "false")),
        Ordinal("late", ("false", "true")),
    )
)
TYPES = [pa.float64(), pa.bool_(), pa.bool_(), pa.string()]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("raw"), np.random.default_rng(0)
    rows = [
        f"{rng.choice(['1,5', '99', '-9', 'k. A.', '1.234,5', '170,3'])};{rng.choice(['TRUE', '0', '?'])};"
        f"{rng.choice(['1', 'false'])};{rng.choice(['true', 'false'])}"
        for _ in range(600)
    ]
    (folder / "rows.csv").write_bytes("\n".join(["Größe;member;paid;late", *rows]).encode("utf-16"))
    SCHEMA.write(folder / "schema.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["--schema=schema.json", "--epsilon=20", "--delta=1e-5", "--output=out", "--encoding=utf-16"]
        assert cli.main(["release", "rows.csv", *words, "--target=paid"]) == 0
    return folder


def test_words_count_as_missing_in_the_release(released):
    made = load(released / "out")
    assert made.schema == SCHEMA
    sizes, members = (made.table.column(name).to_pylist() for name in ("Größe", "member"))
    assert abs(sizes.count(None) / 600 - 3 / 6) < 0.15
    assert abs(members.count(None) / 600 - 1 / 3) < 0.15
    assert abs(sizes.count(250.0) / 600 - 1 / 6) < 0.1  # 1.234,5 is beyond the bound


def test_bools_are_bools_in_files_and_samples(released, tmp_path, monkeypatch):
    assert pq.read_schema(released / "out" / "synthetic.parquet").types == TYPES
    made = load(released / "out")
    assert made.table.schema.types == made.sample(5).schema.types == TYPES
    SCHEMA.check(made.table)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sample", str(released / "out"), "--num_rows=50", "--output=a.parquet", "--where=paid=True"]) == 0
    table = pq.read_table("a.parquet")
    assert table.schema.types == TYPES
    assert set(table.column("paid").to_pylist()) == {True}
    assert pandas.read_parquet("a.parquet")["paid"].dtype == bool
    for suffix in (".csv", ".feather"):
        assert cli.main(["sample", str(released / "out"), "--num_rows=50", f"--output=a{suffix}"]) == 0
        plain = Schema(tuple(type(c)(**(vars_of(c) | {"missing": ()})) for c in SCHEMA.columns))
        plain = Schema((Numeric("Größe", 0, 250, step=0.1, nullable=True), *plain.columns[1:]))
        codes = np.concatenate(list(open_table(f"a{suffix}", plain).codes()))
        np.testing.assert_array_equal(codes, SCHEMA.encode(made.sample(50), words=False))


def vars_of(column):
    return {name: getattr(column, name) for name in column.__dataclass_fields__}


def test_folders_with_bools_as_text_still_load(released, tmp_path):
    """Earlier versions wrote them so."""
    made = load(released / "out")
    texts = pa.table(
        [c.decode(SCHEMA.encode(made.table, words=False)[:, j]) for j, c in enumerate(SCHEMA.columns)], SCHEMA.names
    )
    assert texts.schema.types == [pa.float64(), *[pa.string()] * 3]
    old = TableRelease(made.measurement, made.rows, texts, made.seed).save(tmp_path / "old")
    assert pq.read_schema(old / "synthetic.parquet").types == texts.schema.types
    loaded = load(old)
    assert loaded.table.equals(made.table)
    assert loaded.to_pandas().equals(made.to_pandas())
    assert loaded.support("paid=false") == made.support("paid=false")
    assert loaded.sample(20, where="member=true").equals(made.sample(20, where="member=true"))
    assert cli.main(["evaluate", str(old), f"--against={released / 'rows.csv'}", "--encoding=utf-16"]) == 0


def test_evaluate_reads_the_file_as_the_release_did(released, tmp_path, capsys):
    words = ["evaluate", str(released / "out"), f"--against={released / 'rows.csv'}", f"--output={tmp_path / 'e.json'}"]
    assert cli.main([*words, "--encoding=utf-16", "--separator=;"]) == 0
    errors = json.loads((tmp_path / "e.json").read_text())
    assert errors["mean_total_variation"]["1"] < 0.15
    (tmp_path / "e.json").unlink()
    for flag, message in (("--encoding=hex", "no text encoding"), ("--separator=9", "cannot separate cells")):
        capsys.readouterr()
        assert cli.main([*words, flag]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "e.json").exists()


@pytest.mark.parametrize("categories", [("true", "false"), ("False", "True"), ("FALSE", "true")])
@pytest.mark.parametrize("nullable", [False, True])
def test_columns_that_are_checked(categories, nullable):
    column = Categorical("x", categories, nullable=nullable)
    truth = [word.lower() == "true" for word in categories] + [None] * nullable
    text = column.decode(np.arange(column.num_codes))
    typed = column.released(text)
    assert (typed.type, typed.to_pylist()) == (pa.bool_(), truth)
    for array in (typed, text, pa.chunked_array([typed]), text.dictionary_encode()):
        column.check(array)
        assert column.released(array).to_pylist() == truth
        assert column.encode(array).tolist() == list(range(column.num_codes))
    if not nullable:
        with pytest.raises(ValueError, match="1 cells are no values of it"):
            column.check(pa.array([True, None]))
    for other in (Categorical("x", ("yes", "no")), Ordinal("x", ("false", "true"))):
        with pytest.raises(ValueError, match="type bool, expected string"):
            other.check(pa.array([True]))
