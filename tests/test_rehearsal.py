"""Rehearsals of releases on made-up rows."""

import json
import pathlib
import signal
import subprocess

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Datetime, Numeric, PrivacyBudget, Schema, cli
from kme_jax.table import rehearsal
from kme_jax.table.constraints import Implies, Order, Sum
from kme_jax.table.rehearsal import made_up_rows, rehearse

SCHEMA = Schema(
    (
        Datetime("begin", "2025-01-01", "2025-03-01", "hour", parts=True),
        Datetime("end", "2025-01-01", "2025-03-03", "hour", nullable=True),
        Numeric("fare", 0, 20, step=0.5),
        Numeric("tip", 0, 10, step=0.5),
        Numeric("paid", 0, 30, step=0.5),
        Categorical("way", ("1", "01", "NA"), nullable=True),  # which only a .csv file tells apart
    ),
    dropped=("note",),
    constraints=(
        Order("begin", "end", largest_gap=48),
        Sum(("fare", "tip"), "paid"),
        Implies("way=1", "tip=0"),
    ),
)
SIMPLE = Schema((Numeric("age", 0, 99, integer=True), Categorical("rich", ("no", "yes"), nullable=True)))


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    found = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(rehearsal.subprocess, "Popen", Recorded)
    return found


def test_made_up_rows_meet_the_constraints():
    rows = made_up_rows(SCHEMA, 3000, persons=("who", 7))
    assert rows.num_rows == 3000
    assert np.unique(rows["who"].to_numpy(), return_counts=True)[1].tolist() == [7] * 428 + [4]
    rows = rows.drop_columns("who")
    SCHEMA.check(rows)
    codes = SCHEMA.encode(rows)
    assert not SCHEMA.recoding.broken(codes).any()
    fares = np.bincount(codes[:, 2], minlength=41)
    assert 40 < fares.min() <= fares.max() < 120  # 73 each
    assert 30 < rows["end"].null_count < 100  # one of 50 gaps
    assert made_up_rows(SCHEMA, 3000).equals(rows)
    assert not made_up_rows(SCHEMA, 3000, seed=1).equals(rows)


@pytest.fixture
def child_has_no_fits(monkeypatch):
    """A fit of a process of its own compiles what no other test has compiled."""
    changed = "from kme_jax.table import mixture; from tests.fits import no_fit; mixture.fit = no_fit; "
    monkeypatch.setattr(rehearsal, "CHILD", changed + rehearsal.CHILD)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[1]))


@pytest.mark.usefixtures("child_has_no_fits")
@pytest.mark.parametrize(
    ("relation", "schema", "target"),
    [
        pytest.param("add_remove_person", SCHEMA, None, marks=pytest.mark.slow),
        pytest.param("replace_one", SCHEMA, "way", marks=pytest.mark.long),
        pytest.param("add_remove", SIMPLE, "rich", marks=pytest.mark.long),
    ],
)
def test_a_rehearsal(relation, schema, target, started):
    budget = PrivacyBudget(2.0, 1e-5, relation, 3 if relation == "add_remove_person" else 1)
    done = []
    found = rehearse(schema, 600, budget, target=target, progress=lambda *work: done.append(work))
    assert found.seconds_to_measure > 0
    assert found.seconds_to_synthesise > 0
    assert 0.05 < found.peak_memory < 64
    assert 0 < found.rows_memory < 0.001
    expected = [(c.name,) for c in found.expected.columns] + [pair.names for pair in found.expected.pairs]
    assert [one.names for one in found.errors] == expected
    assert all(0 <= one.total_variation < 1 and 0 < one.yardstick < 1 and 0 < one.bound <= 1 for one in found.errors)
    small = [one for one in found.errors if one.names in (("way",), ("begin weekday",), ("rich",))]
    assert all(one.total_variation < one.bound + one.yardstick for one in small)
    assert done == sorted(done)
    assert {total for _, total in done} == {100}
    assert started[0].returncode == 0


def test_a_rehearsal_ends_with_its_process(started, monkeypatch):
    """With a process that takes a minute, if nobody ends it."""
    endless = """import sys, time; sys.stdin.read(); print('{"done": 5}', flush=True); time.sleep(60)"""
    monkeypatch.setattr(rehearsal, "CHILD", endless)
    budget = PrivacyBudget(1.0, 1e-5)

    def interrupted(done, total):
        raise KeyboardInterrupt

    def killed(done, total):
        started[-1].send_signal(signal.SIGKILL)

    for progress, error in ((interrupted, KeyboardInterrupt), (killed, MemoryError)):
        with pytest.raises(error):
            rehearse(SIMPLE, 600, budget, progress=progress)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    monkeypatch.setattr(rehearsal, "CHILD", "import sys; sys.exit('no such device')")
    with pytest.raises(RuntimeError, match="the rehearsal has failed: no such device"):
        rehearse(SIMPLE, 600, budget)


def test_the_order_is_checked(started):
    for schema, num_rows, budget, message in (
        (SIMPLE, 10**8, PrivacyBudget(1.0, 1e-9), "100,000,000 made-up cells.*rehearse 25000000 and 50000000 rows"),
        (SIMPLE, 1, PrivacyBudget(1.0, 1e-9), "at least 2 rows"),
        (SIMPLE, 100, PrivacyBudget(1.0, 1e-9, "add_remove_person", 2, "age"), "column 'age' of persons is released"),
    ):
        with pytest.raises(ValueError, match=message):
            rehearse(schema, num_rows, budget)
    with pytest.raises(ValueError, match="no column 'poor'"):
        rehearse(SIMPLE, 100, PrivacyBudget(1.0, 1e-9), target="poor")
    assert started == []


def test_the_command(tmp_path, capsys, monkeypatch):
    path = tmp_path / "schema.json"
    SIMPLE.write(path)
    words = ["plan", f"--schema={path}", "--num_rows=500", "--epsilon=1,3", "--delta=1e-5", "--rehearse"]
    of_child = {"seconds_to_measure": 1.25, "seconds_to_synthesise": 2.5, "peak_memory": 0.75, "rows_memory": 0.01}
    orders = []

    def in_child(order, progress):
        orders.append(order)
        return of_child | {"errors": [0.01, 0.02, 0.9], "yardstick": [0.1, 0.2, 0.3]}

    monkeypatch.setattr(rehearsal, "in_child", in_child)
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert text.count("1.25 s to measure, 2.5 s to synthesise, 0.75 GiB of memory at most, 0.01 of them") == 2
    assert text.count("0 of 2") == text.count("1 of 1") == 2
    assert text.count("a rehearsal does not know the private rows") == 1
    assert cli.main([*words, "--json", "--max_rows=2", "--seed=5"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["rehearsal"]["errors"][2]["names"] == ["age", "rich"]
    assert second["rehearsal"]["peak_memory"] == 0.75
    assert (orders[-1]["budget"]["person"], orders[-1]["seed"]) == ("person", 5)
    assert cli.main([*words[:2], "--num_rows=99999999", *words[3:4], "--delta=1e-9", "--rehearse"]) == 2
    assert "the limit of a rehearsal" in capsys.readouterr().err
    assert cli.main(["plan", "--dim=2", *words[2:]]) == 2
    assert "--rehearse is for tables" in capsys.readouterr().err


def test_the_table_of_a_rehearsal_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal.tempfile, "tempdir", str(tmp_path))
    rows = made_up_rows(SCHEMA, 20)
    with rehearsal.opened(rows, SCHEMA, PrivacyBudget(1.0, 1e-5)) as source:
        assert source.num_rows == 20
        assert len(list(tmp_path.rglob("rows.csv"))) == 1
        assert np.array_equal(np.concatenate(list(source.codes())), SCHEMA.encode(rows))
    with rehearsal.opened(pa.table({"age": [1], "rich": ["no"]}), SIMPLE, PrivacyBudget(1.0, 1e-5)) as source:
        assert list(tmp_path.iterdir()) == []
