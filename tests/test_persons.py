"""Releases that protect all rows of a person together."""

import datetime
import json
import math
import os
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import kme_jax
from kme_jax import Categorical, Ledger, Numeric, PrivacyBudget, Schema, Spending, load, measure_table, release_table
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.privacy.budget import steps_between, unit_of
from kme_jax.privacy.statement import describe
from kme_jax.storage.files import FileError
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import planning as plans
from kme_jax.table.evaluate import evaluate_table
from kme_jax.table.persons import find_persons, is_of_ids
from kme_jax.table.readers import open_table
from kme_jax.table.release import COUNT, NAMES, binnings_and_target
from tests import artifacts

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema((Numeric("cost", 0, 1000, integer=True), Categorical("ward", ("a", "b", "c"))), dropped=("visitor",))
BUDGET = PrivacyBudget(1.0, 1e-5, "add_remove_person", 4, "visitor")


def _visits(num_persons=150, seed=0, most=12):
    """Visits of persons in random order; a person has 1 to ``most`` of them."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(num_persons), rng.integers(1, most + 1, num_persons)))
    rows = {"visitor": ids, "cost": rng.integers(0, 1000, len(ids)), "ward": rng.choice(["a", "b", "c"], len(ids))}
    return pa.table(rows)


def _used(ids, max_rows=4):
    return find_persons([pa.array(ids)], max_rows).used


@pytest.mark.parametrize("max_rows", [1, 3, 40])
def test_rows_of_persons_are_cut(max_rows):
    ids = _visits()["visitor"].to_numpy()
    persons = find_persons([pa.array(ids[:100]), pa.array(ids[100:])], max_rows)
    np.testing.assert_array_equal(np.bincount(ids[persons.used]), np.minimum(np.bincount(ids), max_rows))
    assert persons.num_persons == 150
    assert persons.num_without == 0
    np.testing.assert_array_equal(persons.used, _used(ids, max_rows))
    assert "SENSITIVE" in repr(persons)
    assert "150" not in repr(persons)


def test_the_cut_of_a_person_does_not_depend_on_others():
    """Rows of others may come and go, anywhere between: the same rows of each person are used."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.integers(0, 10, 100)
        used = _used(ids, 3)
        kept = rng.random(100) < 0.5
        kept |= ids < 5
        fewer = _used(ids[kept], 3)
        same = ids[kept] < 5
        np.testing.assert_array_equal(fewer[same], used[kept][same])


def test_every_row_of_a_person_is_used_equally_often():
    """2000 persons of ten rows, of which three are used: 600 of each rank, up to five standard deviations."""
    ids = np.tile(np.arange(2000), 10)
    of_ranks = _used(ids, 3).reshape(10, 2000).sum(1)
    assert of_ranks.sum() == 6000
    assert np.abs(of_ranks - 600).max() < 5 * math.sqrt(2000 * 0.3 * 0.7)
    assert of_ranks.std() > 1  # it is no rule such as every third


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["x", " x", "x ", "X"], [1, 2, 2, 2]),
        (["7", "007"], [1, 1]),
        ([b"\xff", b"\xff", b"a"], None),
        ([1, 1, 2, None], None),
        ([1.0, float("nan"), float("nan"), 1.0], None),
        ([True, False, True], None),
        ([None, "", "  "], None),
    ],
)
def test_ids_of_any_type(ids, expected):
    """Blanks around an id do not count, and rows without an id are not used."""
    persons = find_persons([pa.array(ids), pa.array(ids[:0], pa.array(ids).type)], 1)
    names = [str(i).strip() if isinstance(i, str) else i for i in ids]
    missing = [name in (None, "") or name != name for name in names]
    assert persons.num_without == sum(missing)
    assert not persons.used[missing].any()
    assert persons.used.sum() == len({name for name, gone in zip(names, missing, strict=True) if not gone})
    assert expected is None or persons.num_persons == len(set(names))
    by_dictionary = find_persons([pa.array(ids).dictionary_encode()], 1)
    np.testing.assert_array_equal(by_dictionary.used, persons.used)


def test_files_and_frames_have_the_same_persons(tmp_path):
    """Typed ids, and the same ids as text in a .csv file."""
    table = _visits()
    pyarrow.csv.write_csv(table, tmp_path / "visits.csv")
    with_dots = table.rename_columns(["visitor", "visitor.cost", "ward"])
    pyarrow.parquet.write_table(table, tmp_path / "visits.parquet", row_group_size=100)
    pyarrow.parquet.write_table(with_dots, tmp_path / "dots.parquet")
    sources = [
        open_table(data, SCHEMA, person="visitor", max_rows=4)
        for data in (table, table.to_pandas(), tmp_path / "visits.csv", tmp_path / "visits.parquet")
    ]
    dotted = Schema((Numeric("visitor.cost", 0, 1000, integer=True), SCHEMA.columns[1]), dropped=("visitor",))
    sources.append(open_table(tmp_path / "dots.parquet", dotted, person="visitor", max_rows=4))
    codes = [np.concatenate(list(source.codes())) for source in sources]
    expected = SCHEMA.encode(table)[_used(table["visitor"].to_numpy())]
    for source, of_source in zip(sources, codes, strict=True):
        np.testing.assert_array_equal(of_source, expected)
        assert source.num_rows == len(expected)
        assert source.num_read == table.num_rows
        assert str(len(expected)) not in repr(source)


def _sums(table, feature_map, person="visitor", max_rows=4):
    source = open_table(table, SCHEMA, person=person, max_rows=max_rows)
    batches = (codes.astype(np.float64) for codes in source.codes())
    return integer_embedding_of_batches(feature_map, batches, source.num_rows, rows_planned=10**9).total


def test_a_person_moves_sums_by_at_most_k_rows():
    """The proved sensitivity holds for persons with many rows, at any place of the file, and is reached."""
    layout = plans.Layout.create(*binnings_and_target(SCHEMA, None), 500, 0.02, BUDGET.relation)
    feature_map = plans.singles_map(layout)
    integers, ratios = feature_map.integers(100), []
    rng = np.random.default_rng(1)
    for case in range(30):
        others = _visits(40, seed=case)
        number = int(rng.integers(1, 30))
        cost = np.full(number, 1000) if case % 2 else rng.integers(0, 1000, number)
        rows = pa.table({"visitor": np.full(number, 1000), "cost": cost, "ward": ["a"] * number})
        both = pa.concat_tables([others, rows])
        both = both.take(rng.permutation(both.num_rows))
        rest = both.filter(pa.compute.not_equal(both["visitor"], 1000))
        moved = _sums(both, feature_map) - _sums(rest, feature_map)
        ratios.append(np.linalg.norm(moved.astype(float)) / (4 * integers.norm_bound))
    assert max(ratios) <= 1
    assert max(ratios) > 0.99


@pytest.mark.parametrize("partials", [None, "run"])
def test_a_file_that_is_written_again_in_another_order_is_refused(tmp_path, partials):
    """The rows of a person are known by their places. In another order, all 40 of them could be used."""
    rows = pa.table({"visitor": [*range(960), *[-1] * 40], "cost": [1] * 1000, "ward": ["a"] * 960 + ["b"] * 40})
    budget = PrivacyBudget(1.0, 1e-5, "add_remove_person", 1, "visitor")
    for passes in range(3):
        pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
        source = open_table(tmp_path / "rows.parquet", SCHEMA, person="visitor")
        assert source.num_rows == 961
        for _ in range(passes):
            assert sum(len(codes) for codes in source.codes()) == 961
        pyarrow.parquet.write_table(rows.take([*range(960, 1000), *range(960)]), tmp_path / "rows.parquet")
        with pytest.raises(FileError, match="it has changed while it was read"):
            list(source.codes())
        with pytest.raises(FileError, match="it has changed while it was read"):
            measure_table(
                source, SCHEMA, budget=budget, secure=False, partials=partials and tmp_path / f"{partials}{passes}"
            )
    codes = (source := open_table(tmp_path / "rows.parquet", SCHEMA, person="visitor")).codes()
    next(codes)
    os.utime(tmp_path / "rows.parquet", ns=(1, 1))  # within a pass
    with pytest.raises(FileError, match="it has changed while it was read"):
        list(codes)


def test_noise_is_k_times_that_of_a_row():
    rows, persons = (
        measure_table(_visits(), SCHEMA, budget=budget) for budget in (PrivacyBudget(1.0, 1e-5, "add_remove"), BUDGET)
    )
    assert persons.statement["epsilon"] == rows.statement["epsilon"]
    for name in (COUNT, NAMES[0]):
        one, several = rows.measured[name].mechanism, persons.measured[name].mechanism
        sizes = [m.scale * m.num_rows for m in (one, several)]
        assert several.max_rows == 4
        assert several.sensitivity * several.num_rows == pytest.approx(4 * one.sensitivity * one.num_rows, rel=0.01)
        assert sizes[1] / sizes[0] == pytest.approx(4, rel=0.01)
        assert several.scale == pytest.approx(several.sensitivity / math.sqrt(2 * several.rho), rel=1e-6)


def test_a_release_for_persons_says_so_and_is_reloaded(tmp_path):
    released = release_table(_visits(400), SCHEMA, budget=BUDGET, target="ward")
    said = released.statement
    assert said["unit"] == "one person, of whom at most 4 rows are used"
    assert said["relation"] == "add or remove all rows of one person; the number of rows is noisy"
    assert said["max_rows"] == 4
    assert [list(group) for group in said["groups"]] == [["persons", "epsilon"]] * 3
    assert said["num_rows"] == released.table.num_rows
    text = describe(said)
    assert "for one person, of whom at most 4 rows are used, of ≈" in text
    assert "For 2 persons ε is" in text
    assert "largest number of rows of one person, which are public" in text
    assert "add_remove_person" in repr(released)
    released.save(tmp_path / "out")
    again = load(tmp_path / "out")
    assert again.statement == said
    assert again.table.equals(released.table)
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("Persons and their rows", "are not used", "all rows of one person are added or removed"):
        assert words in page
    assert "the same visitor" in page
    for change in (
        {"max_rows": 5},
        {"max_rows": None},
        {"person": "ward"},
        {"person": None},
        {"unit": "one row"},
        {"statement_version": 5},
    ):
        (tmp_path / "out" / "privacy.json").write_text(json.dumps(said | change))
        artifacts.seal(tmp_path / "out")
        with pytest.raises(ReleaseError, match=r"privacy\.json"):
            load(tmp_path / "out")


def test_a_mechanism_with_other_rows_of_a_person_is_refused(tmp_path):
    folder = tmp_path / "out"
    measure_table(_visits(), SCHEMA, budget=BUDGET, folder=folder)
    tried = 0
    for file, label, content in artifacts.mutants(folder):
        if file == "measurements.npz" and ("max_rows" in label or "person" in label):
            before = (folder / file).read_bytes()
            (folder / file).write_bytes(content())
            artifacts.seal(folder)
            with pytest.raises(ReleaseError):
                load(folder)
            (folder / file).write_bytes(before)
            tried += 1
    assert tried >= 4


def test_ledgers_add_up_rows_and_persons(tmp_path):
    """To add a row is to remove a person and to add it with this row: 2 steps, and ρ is four times as large."""
    assert steps_between("add_remove_person", "replace_one") == 4
    assert steps_between("add_remove_person", "add_remove") == 2
    ledger, rows = Ledger(tmp_path / "ledger"), Schema(SCHEMA.columns, dropped=("visitor",))
    budgets = [BUDGET, BUDGET, PrivacyBudget(1.0, 1e-5, "add_remove"), PrivacyBudget(1.0, 1e-5)]
    expected_factors = [[1], [1, 1], [4, 4, 1], [16, 16, 4, 1]]
    texts = [
        " if all rows of one person are added or removed",
        " if one row is added or removed",
        " if one row is replaced",
    ]
    rhos = []
    for i, (budget, factors) in enumerate(zip(budgets, expected_factors, strict=True)):
        spending = Spending(ledger, "visits", allow_repeat=i > 0)
        folder = tmp_path / str(i)
        measured = measure_table(_visits(), rows, budget=budget, spending=spending, folder=folder)
        rhos.append(ledger.spent("visits")[-1].rho)
        total = measured.statement["total"]
        assert total["rho"] == pytest.approx(np.dot(factors, rhos))
        relation = budget.relation
        assert total.get("relation", "replace_one") == relation
        assert load(folder).statement == measured.statement
        assert kme_jax.privacy.statement.describe_total(total).endswith(texts[max(0, i - 1)])
    with pytest.raises(ValueError, match="a release for replace_one has no guarantee under add_remove_person"):
        ledger.spent("visits")[-1].under("add_remove_person")


def test_persons_of_different_columns_are_different_units(tmp_path):
    """A household has many members: a guarantee for members is none for households. The total is then for rows."""
    visits = _visits()
    table = visits.append_column("household", pa.array(visits["visitor"].to_numpy() // 10))
    schema = Schema(SCHEMA.columns, dropped=("visitor", "household"))
    rhos, ledger = [], Ledger(tmp_path / "ledger")
    for i, person in enumerate(["household", "visitor"]):
        budget = PrivacyBudget(1.0, 1e-5, "add_remove_person", 4, person)
        spending = Spending(ledger, "visits", allow_repeat=i > 0)
        folder = tmp_path / str(i)
        measured = measure_table(table, schema, budget=budget, spending=spending, folder=folder)
        rhos.append(ledger.spent("visits")[-1].rho)
        assert load(folder).statement == measured.statement
    total = measured.statement["total"]
    assert total["relation"] == "add_remove"
    assert "person" not in total
    assert total["rho"] == pytest.approx(4 * sum(rhos))
    alone = json.loads((tmp_path / "0" / "privacy.json").read_text())
    assert alone["total"]["person"] == "household"
    (tmp_path / "0" / "privacy.json").write_text(json.dumps(alone | {"total": alone["total"] | {"person": "visitor"}}))
    artifacts.seal(tmp_path / "0")
    with pytest.raises(ReleaseError):
        load(tmp_path / "0")


def _moved(table, more, max_rows=2):
    """How far rows of another person move the sums, in units of the bound."""
    import pandas

    layout = plans.Layout.create(*binnings_and_target(SCHEMA, None), 500, 0.02, BUDGET.relation)
    feature_map = plans.singles_map(layout)
    both = pandas.concat([table, more], ignore_index=True)
    sums = [_sums(rows, feature_map, max_rows=max_rows) for rows in (table, both)]
    return np.linalg.norm((sums[1] - sums[0]).astype(float)) / (max_rows * feature_map.integers(100).norm_bound)


@pytest.mark.parametrize(
    "added", ["x", 2**70, 2.0, None, 1.5, b"\xff", True, datetime.date(2026, 1, 1), ("a", 1), {"a"}, 10**15]
)
def test_an_id_in_a_frame_changes_no_other_id(added):
    """One text or float turns a column of whole numbers into objects or floats. All ids stay what they are."""
    import pandas

    rng = np.random.default_rng(0)
    ids = [10**15 + p for p in range(60) for _ in range(8)]
    table = pandas.DataFrame({"visitor": ids, "cost": rng.integers(0, 1000, 480), "ward": rng.choice(["a", "b"], 480)})
    more = pandas.DataFrame({"visitor": pandas.Series([added] * 5, dtype=object), "cost": 7, "ward": "c"})
    assert _moved(table, more) <= 1
    assert _moved(table.assign(visitor=table.visitor.astype(str)), more) <= 1
    assert _moved(table.assign(visitor=table.visitor.astype("category")), more) <= 1


class _Zone(datetime.tzinfo):
    def utcoffset(self, dt):
        raise RuntimeError("secret")


class _Object:
    def __eq__(self, other):
        return isinstance(other, _Object)

    def __hash__(self):
        return 1


@pytest.mark.parametrize(
    ("ids", "num_persons", "num_without"),
    [
        ([7, "7", 7.0, " 7", np.int64(7), np.float32(7), Decimal("7.00")], 1, 0),
        ([2**60, 2**60 + 1, "z"], 3, 0),
        ([Decimal(2**60), Decimal(2**60 + 1), "z"], 3, 0),
        ([("A", 1), ("B", 2), [1], frozenset("a"), 1j, datetime.timedelta(1), _Object(), _Object(), "z"], 1, 8),
        ([None, float("nan"), float("inf"), "", " ", "z"], 1, 5),
        ([datetime.datetime(2026, 1, 1, 0, 0, 0, 1), datetime.datetime(2026, 1, 1, 0, 0, 0, 2)], 2, 0),
        ([uuid.UUID(int=1), str(uuid.UUID(int=1)), uuid.UUID(int=2)], 2, 0),
        (["\ud800", "\ud801"], 2, 0),
        ([True, False, True], 2, 0),
        ([Decimal("sNaN"), 10**5000, datetime.datetime(2026, 1, 1, tzinfo=_Zone()), "z"], 1, 3),
        (["7.0", "7.", 7.0, "-0.0", 0, "1.50", "1.5"], 4, 0),
    ],
)
def test_ids_of_frames_are_exact(ids, num_persons, num_without):
    import pandas

    frame = pandas.DataFrame({"visitor": pandas.Series(ids, dtype=object), "cost": 1, "ward": "a"})
    persons = open_table(frame, SCHEMA, person="visitor", max_rows=2).persons
    assert (persons.num_persons, persons.num_without) == (num_persons, num_without)


def test_no_cell_decides_whether_ids_are_accepted():
    """Types do: UUIDs, views, and dictionaries with very long ids are read, whatever their bytes are."""
    long = pa.DictionaryArray.from_arrays(np.zeros(70_000, np.int32), pa.array(["x" * 40_000]))
    for ids in (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\xff" * 16] * 3, pa.binary(16))),
        pa.array([b"\xff"] * 3, pa.binary_view()),
        pa.array(["a"] * 3, pa.string_view()),
        pa.array([0.0, -0.0, 0.0]),
        pa.array([1, 1, 1], pa.duration("s")),
        pa.array([1, 1, 1], pa.timestamp("s", tz="Nowhere/Zone")),
        long,
    ):
        persons = find_persons([ids], 2)
        assert persons.num_persons == 1
        assert persons.used.sum() == 2
        assert is_of_ids(ids.type)
    for kind in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.month_day_nano_interval()):
        assert not is_of_ids(kind)


def test_files_without_persons_or_with_one_row_are_released():
    """No number of persons is an error: it is private."""
    for table in (
        _visits(0),
        _visits(1, most=1),
        pa.table({"visitor": [None] * 5, "cost": [1] * 5, "ward": ["a"] * 5}),
    ):
        released = release_table(table, SCHEMA, budget=BUDGET, num_rows=20)
        assert released.table.num_rows == 20


def test_the_units_of_a_guarantee():
    assert unit_of("replace_one", 1) == unit_of("add_remove", 1) == "one row"
    assert unit_of("add_remove_person", 1) == "one person, of whom at most 1 row is used"
    assert "max_rows=4" in repr(BUDGET)
    assert PrivacyBudget(1.0, 1e-5, "add_remove_person", 1).max_rows == 1


@pytest.mark.parametrize(
    ("relation", "max_rows", "message"),
    [
        ("add_remove", 2, "max_rows is for the relation 'add_remove_person'"),
        ("replace_one", 2, "max_rows is for the relation 'add_remove_person'"),
        ("add_remove_person", 0, "max_rows must be at least 1, got 0"),
        ("add_remove_person", 10**5, "max_rows must be at most 10000"),
        ("add_remove_person", 2.0, "max_rows must be a whole number"),
        ("add_remove_person", True, "max_rows must be a whole number"),
    ],
)
def test_bad_budgets_of_persons(relation, max_rows, message):
    with pytest.raises(ValueError, match=message):
        PrivacyBudget(1.0, 1e-5, relation, max_rows)


@pytest.mark.parametrize(
    ("relation", "person"), [("add_remove", "id"), ("add_remove_person", ""), ("add_remove_person", 1)]
)
def test_bad_columns_of_persons(relation, person):
    with pytest.raises(ValueError, match="person: "):
        PrivacyBudget(1.0, 1e-5, relation, 1, person)


def test_bad_persons_are_refused():
    table, rows = _visits(), PrivacyBudget(1.0, 1e-5)
    nested = table.set_column(0, "visitor", pa.array([[1]] * table.num_rows))
    released = Schema((*SCHEMA.columns, Numeric("visitor", 0, 9)))
    named = {name: PrivacyBudget(1.0, 1e-5, "add_remove_person", 4, name) for name in ("who", None)}
    for call, message in [
        (lambda: measure_table(table, SCHEMA, budget=named[None]), "budget: name the column with the ids"),
        (lambda: measure_table(table, SCHEMA, budget=named["who"]), "there is no column who"),
        (lambda: measure_table(table, released, budget=BUDGET), "give it the kind drop"),
        (lambda: measure_table(nested, SCHEMA, budget=BUDGET), "has no ids"),
        (lambda: measure_table(nested.slice(0, 0), SCHEMA, budget=BUDGET), "has no ids"),
        (lambda: open_table(table, SCHEMA, max_rows=3), "person: name the column"),
        (lambda: open_table(table, SCHEMA, person=1, max_rows=3), "person: expected the name of a column"),
        (lambda: open_table(table, SCHEMA, person="visitor", max_rows=0), "max_rows must be at least 1"),
        (lambda: measure_table(open_table(table, SCHEMA), SCHEMA, budget=BUDGET), "opened for other persons"),
        (
            lambda: measure_table(open_table(table, SCHEMA, person="visitor", max_rows=3), SCHEMA, budget=BUDGET),
            "opened for other persons, or another max_rows",
        ),
        (
            lambda: measure_table(open_table(table, SCHEMA, person="visitor", max_rows=1), SCHEMA, budget=rows),
            "opened for other persons",
        ),
    ]:
        with pytest.raises((ValueError, FileError), match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    opened = open_table(table, SCHEMA, person="visitor", max_rows=4)
    assert measure_table(opened, SCHEMA, budget=BUDGET).statement["max_rows"] == 4


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(_visits(300), "visits.csv")
    SCHEMA.write("schema.json")
    return tmp_path


RELEASE = ["release", "visits.csv", "--schema=schema.json", "--epsilon=1", "--delta=1e-6", "--output=out"]


def test_the_command(place, capsys):
    assert kme_jax.cli.main([*RELEASE, "--person=visitor", "--max_rows=4", "--target=ward"]) == 0
    said = capsys.readouterr().out
    assert "for one person, of whom at most 4 rows are used" in said
    assert load("out").statement["max_rows"] == 4
    assert kme_jax.cli.main(["ledger", "visits.csv.ledger"]) == 0
    assert "add_remove_person (visitor)" in capsys.readouterr().out
    assert kme_jax.cli.main(["show", "out"]) == 0
    assert "For 2 persons" in capsys.readouterr().out
    assert kme_jax.cli.main(["check", "visits.csv", "--schema=schema.json", "--person=visitor", "--max_rows=4"]) == 0
    said = capsys.readouterr().out
    assert f"{_visits(300).num_rows} rows of 300 persons; " in said
    assert kme_jax.cli.main(["evaluate", "out", "--against=visits.csv"]) == 0
    said = capsys.readouterr().out
    assert "against the private rows that were used: at most 4 rows of each visitor" in said
    used = open_table("visits.csv", SCHEMA, person="visitor", max_rows=4).num_rows
    assert evaluate_table(load("out"), "visits.csv")["num_rows"] == used
    assert kme_jax.cli.main(["estimate", "out", "sum(cost)"]) == 0
    assert "about the private rows that were used: at most 4 rows of each visitor" in capsys.readouterr().out
    assert "of those that were used (at most 4 rows" in load("out").support("cost<500").describe()
    plan = ["plan", "--schema=schema.json", "--num_rows=1000", "--epsilon=1", "--delta=1e-6"]
    noises = []
    for words in (["--relation=add_remove"], ["--max_rows=4"]):
        assert kme_jax.cli.main([*plan, *words, "--json"]) == 0
        (expected,) = json.loads(capsys.readouterr().out)
        noises.append(expected["columns"][1]["noise"])
    assert noises[1] / noises[0] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--person=visitor"], "--person and --max_rows go together"),
        (["--max_rows=4"], "--person and --max_rows go together"),
        (["--person=visitor", "--max_rows=0"], "--max_rows must be at least 1, got 0"),
        (["--person=visitor", "--max_rows=20000"], "max_rows must be at most 10000"),
        (["--person=visitor", "--max_rows=4", "--relation=add_remove"], "--relation=add_remove is about rows"),
        (["--person=cost", "--max_rows=4"], "give it the kind drop"),
        (["--person=nobody", "--max_rows=4"], "there is no column nobody"),
    ],
)
def test_bad_flags(place, capsys, words, message):
    assert kme_jax.cli.main([*RELEASE, *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (place / "out").exists()
    assert not (place / "visits.csv.ledger").exists()


def test_persons_are_for_tables(place, capsys):
    words = ["release", "visits.csv", "--lower=0", "--upper=1", "--epsilon=1", "--delta=1e-6", "--output=out"]
    assert kme_jax.cli.main([*words, "--columns=cost", "--person=visitor", "--max_rows=2"]) == 2
    assert "--person needs --schema" in capsys.readouterr().err


@pytest.mark.parametrize("number", [7, 10**12, 2**53])
def test_a_person_is_one_in_files_of_any_type(tmp_path, number):
    """A missing id turns whole numbers into floats, in one file of a folder and not in another."""
    columns = {"cost": [1] * 5, "ward": ["a"] * 5}
    for name, ids in (
        ("0", pa.array([number] * 5)),
        ("1", pa.array([float(number)] * 4 + [None])),
        ("2", [str(number)] * 5),
    ):
        pyarrow.parquet.write_table(pa.table({"visitor": ids} | columns), tmp_path / f"{name}.parquet")
    for name, text in (("3", f"{number}.0"), ("4", str(number))):
        (tmp_path / f"{name}.csv").write_text("visitor,cost,ward\n" + f"{text},1,a\n" * 5)
    source = open_table(tmp_path, SCHEMA, person="visitor", max_rows=2)
    assert (source.persons.num_persons, source.persons.num_without, source.num_rows) == (1, 1, 2)


def test_times_of_different_units_are_no_ids(tmp_path):
    for unit in ("s", "us"):
        ids = pa.array([0] * 5, pa.timestamp(unit))
        table = pa.table({"visitor": ids, "cost": [1] * 5, "ward": ["a"] * 5})
        pyarrow.parquet.write_table(table, tmp_path / f"{unit}.parquet")
    with pytest.raises(FileError, match="a column of times has another type in one file"):
        open_table(tmp_path, SCHEMA, person="visitor", max_rows=2)
