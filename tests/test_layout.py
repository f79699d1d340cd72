"""Folders of folders of Parquet files, as engines write them."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, cli
from kme_jax.storage.files import FileError
from kme_jax.table import open_table
from tests.engine_tables import assert_equal, measured

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 110, integer=True),
        Categorical("rich", ("no", "yes")),
        Categorical("town", ("Bonn", "Köln/Deutz", "007"), nullable=True),
        Numeric("year", 2000, 2030, integer=True),
    ),
    dropped=("person",),
)
ROWS = 300


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "age": rng.integers(0, 110, ROWS),
            "rich": rng.choice(["no", "yes"], ROWS),
            "town": pa.array(rng.choice(["Bonn", "Köln/Deutz", "007", "elsewhere"], ROWS)),
            "year": rng.integers(2020, 2023, ROWS),
            "person": rng.integers(0, 60, ROWS),
        }
    ).set_column(2, "town", pa.array([None if i % 9 == 0 else "Bonn" for i in range(ROWS)]))


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout") / "rows"
    parts = pyarrow.dataset.partitioning(pa.schema([("year", pa.int64()), ("town", pa.string())]), flavor="hive")
    pyarrow.dataset.write_dataset(table, folder, format="parquet", partitioning=parts, max_rows_per_group=20)
    (folder / "_SUCCESS").write_text("")
    return folder


def _sorted(codes):
    return codes[np.lexsort(codes.T)]


def test_columns_are_read_from_names_of_folders(table, folder):
    assert {path.name for path in folder.iterdir()} == {"_SUCCESS", "year=2020", "year=2021", "year=2022"}
    expected = np.concatenate(list(open_table(table, SCHEMA).codes()))
    for place in (folder, str(folder), folder.as_uri()):
        source = open_table(place, SCHEMA)
        assert source.num_rows == ROWS
        np.testing.assert_array_equal(_sorted(np.concatenate(list(source.codes()))), _sorted(expected))
    assert len(source.files) == 6


def test_a_release_has_the_same_sums(table, folder, tmp_path):
    assert_equal(measured(folder, SCHEMA), measured(table, SCHEMA))
    assert_equal(measured(folder, SCHEMA, partials=tmp_path / "run"), measured(table, SCHEMA))


def test_persons_of_folders(table, folder):
    budget = PrivacyBudget(1.0, 1e-5, "add_remove_person", 100, "person")  # all rows of each person are used
    assert_equal(measured(folder, SCHEMA, budget=budget), measured(table, SCHEMA, budget=budget))
    by_town = Schema(SCHEMA.columns[:2], dropped=("town", "year", "person"))
    assert open_table(folder, by_town, person="town", max_rows=3).num_rows == 3  # of Bonn; others have no town


def test_the_identity_is_that_of_the_files(folder):
    identities = [reader.identity for reader in open_table(folder, SCHEMA).files]
    assert identities == [reader.identity for reader in open_table(folder.as_uri(), SCHEMA).files]
    assert all(identity[1] > 0 for identity in identities)


def test_what_is_refused(table, folder, tmp_path):
    with pytest.raises(FileError, match=r"the encoding .* is for \.csv files|encoding"):
        open_table(folder, SCHEMA, encoding="latin-1")
    (tmp_path / "empty" / "year=2020").mkdir(parents=True)
    with pytest.raises(FileError, match=r"empty: is a folder without files$"):
        open_table(tmp_path / "empty", SCHEMA)
    with pytest.raises(FileError, match=r"^nothing://here: cannot be read as Parquet files \(\w+\)$"):
        open_table("nothing://here", SCHEMA)
    for year, some in (("2020", table), ("2021", table.drop_columns("age"))):
        (tmp_path / "other" / f"year={year}").mkdir(parents=True)
        pq.write_table(some.drop_columns("year"), tmp_path / "other" / f"year={year}" / "0.parquet")
    with pytest.raises(FileError, match=r"0\.parquet: it has other columns than 0\.parquet$"):
        open_table(tmp_path / "other", SCHEMA)


def test_the_command_asks_for_a_ledger(folder, tmp_path, capsys):
    SCHEMA.write(tmp_path / "schema.json")
    words = ["release", folder.as_uri(), f"--schema={tmp_path / 'schema.json'}", "--epsilon=1", "--delta=1e-5"]
    words += [f"--output={tmp_path / 'out'}", "--dry_run"]
    assert cli.main(words) == 2
    assert "is not on this machine: give --ledger and --database" in capsys.readouterr().err
    assert cli.main([*words, f"--ledger={tmp_path / 'ledger'}", "--database=rows"]) == 0
    assert "nothing was spent" in capsys.readouterr().out
