"""Runs in parts: by several processes, and interrupted at every place. Nothing counts twice, and no noise is drawn
twice."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import (
    Categorical,
    Ledger,
    Numeric,
    PrivacyBudget,
    Schema,
    Spending,
    cli,
    load,
    measure_table,
    perturb_securely,
)
from kme_jax.partial.runs import RunError, RunFolder
from kme_jax.privacy.ledger import LedgerError
from kme_jax.storage.files import FileError
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import measure, open_table, parts
from tests import engine_tables
from tests.engine_tables import RELATIONS, SCHEMA, WEIGHTED, assert_equal, measured, people

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Killed(BaseException):
    """In place of the end of a process."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 64)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: the path of the same rows}: a file of Parquet with row groups, a .csv file, and a folder of both."""
    folder, frame = tmp_path_factory.mktemp("files"), people(500)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, folder / "rows.parquet", row_group_size=90)
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "several").mkdir()
    for i, start in enumerate([0, 200, 200, 330]):
        end = [200, 200, 330, 500][i]
        path = folder / "several" / f"{i}.parquet"
        if i == 3:
            frame.iloc[start:end].to_csv(path.with_suffix(".csv"), index=False)
        else:
            pq.write_table(table.slice(start, end - start), path, row_group_size=50)
    return {"parquet": folder / "rows.parquet", "csv": folder / "rows.csv", "folder": folder / "several"}


@pytest.mark.parametrize(
    ("kind", "relation"),
    [
        ("folder", "add_remove"),
        *(
            pytest.param(kind, relation, marks=pytest.mark.slow)
            for kind in ("parquet", "csv")
            for relation in RELATIONS
        ),
    ],
)
def test_parts_give_the_same_release(files, kind, relation, tmp_path):
    expected = measured(files[kind], relation=relation)
    assert_equal(measured(files[kind], relation=relation, partials=tmp_path / "run"), expected)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "lock"}


def test_parts_of_a_table(files):
    found = parts.parts_of(open_table(files["folder"], SCHEMA).files, 64)
    assert [(part.file, part.start, part.stop) for part in found if part.file < 2] == [
        *((0, start, min(start + 64, 200)) for start in (0, 64, 128, 192)),
        (1, 0, 0),
    ]
    assert [part.number for part in found] == list(range(len(found)))
    assert sum(part.stop - part.start for part in found) == 500


def test_rows_with_weights_and_persons(tmp_path):
    frame = people(300).assign(**{"stands for": np.random.default_rng(1).uniform(-1, 4, 300)})
    frame["note"] = np.random.default_rng(2).integers(0, 90, 300)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    budget = PrivacyBudget(1.0, 1e-5, "add_remove_person", 2, "note")
    expected = measured(tmp_path / "rows.csv", WEIGHTED, budget=budget)
    assert_equal(measured(tmp_path / "rows.csv", WEIGHTED, budget=budget, partials=tmp_path / "run"), expected)


@pytest.mark.slow
def test_processes_give_the_same_release(files, tmp_path):
    """With sums that are kept."""
    assert_equal(measured(files["folder"], processes=2, partials=tmp_path / "run"), measured(files["folder"]))


@pytest.mark.long
def test_processes_sum_rows_of_files_and_of_persons(files, tmp_path):
    for kind in ("folder", "parquet"):
        expected = measured(files[kind])
        assert_equal(measured(files[kind], processes=2), expected)
    frame = people(300)
    frame["note"] = np.random.default_rng(2).integers(0, 90, 300)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "rows.parquet", row_group_size=50)
    budget = PrivacyBudget(1.0, 1e-5, "add_remove_person", 2, "note")
    expected = measured(tmp_path / "rows.parquet", budget=budget)
    assert_equal(measured(tmp_path / "rows.parquet", budget=budget, processes=2), expected)


# -- interruptions


def _trap(function, number, after=False):
    """The function, which ends the work at one of its calls: before it, or after it."""
    calls = itertools.count(1)

    def call(*args, **options):
        is_last = next(calls) == number
        if is_last and not after:
            raise Killed
        result = function(*args, **options)
        if is_last:
            raise Killed
        return result

    return call


def _interrupt(monkeypatch, place, name, number, source, options, after=False):
    """A run that ends at a call of a function, which is a name of a place."""
    with monkeypatch.context() as patch:
        patch.setattr(place, name, _trap(getattr(place, name), number, after))
        with pytest.raises(Killed) as error:
            measure_table(source, SCHEMA, **options)
    return error.value


def _options(tmp_path, **options):
    spending = Spending(Ledger(tmp_path / "ledger"), "people")
    shared = {"budget": engine_tables.budget(), "target": "rich", "spending": spending}
    return shared | {"folder": tmp_path / "measured", "partials": tmp_path / "run"} | options


# Where the work ends: a function, the number of its call, whether after it; then, how many noisy results are kept, and
# how often noise is drawn in all.
PLACES = {
    "while the first rows are summed": (parts, "partial_sums", 3, False, 0, 3),
    "before the ledger is written": (Ledger, "spend", 1, False, 0, 3),
    "after the ledger is written": (Ledger, "spend", 1, True, 0, 3),
    "before noise is drawn": (measure, "perturb_securely", 1, False, 0, 3),
    "after noise is drawn": (measure, "perturb_securely", 1, True, 0, 4),
    "before a noisy result is kept": (RunFolder, "keep_noisy", 2, False, 1, 4),
    "after a noisy result is kept": (RunFolder, "keep_noisy", 1, True, 1, 3),
    "while the second rows are summed": (parts, "partial_sums", 14, False, 1, 3),
    "after the last noisy result is kept": (RunFolder, "keep_noisy", 3, True, 3, 3),
}


@pytest.fixture
def drawn(monkeypatch):
    """The coordinates of all noisy results, in the order in which noise is drawn."""
    found = []

    def noted(*args, **options):
        noisy = perturb_securely(*args, **options)
        found.append(noisy.coordinates)
        return noisy

    monkeypatch.setattr(measure, "perturb_securely", noted)
    return found


QUICK = ("after the ledger is written", "after noise is drawn", "while the second rows are summed")


@pytest.mark.parametrize(
    "place", [place if place in QUICK else pytest.param(place, marks=pytest.mark.slow) for place in PLACES]
)
def test_an_interrupted_run_goes_on(files, place, tmp_path, monkeypatch, drawn):
    owner, name, number, after, num_kept, num_drawn = PLACES[place]
    error = _interrupt(monkeypatch, owner, name, number, files["folder"], _options(tmp_path), after)
    assert error.__notes__ == [f"what is finished is kept in {tmp_path / 'run'}: do the same again to go on"]
    assert not (tmp_path / "measured").exists()
    assert len(list((tmp_path / "run").glob("noisy*"))) == num_kept
    kept = drawn[:num_kept]
    measure_table(files["folder"], SCHEMA, **_options(tmp_path))
    assert len(drawn) == num_drawn
    measurement = load(tmp_path / "measured")
    released = [noisy.coordinates for noisy in measurement.measured.values()]
    for found, expected in zip(released, [*kept, *drawn[num_kept - 3 :]][:3], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert measurement.statement["total"]["releases"] == 1
    assert len(Ledger(tmp_path / "ledger").spent("people")) == 1


def test_a_complete_run_does_not_go_on(files, tmp_path, drawn):
    measure_table(files["csv"], SCHEMA, **_options(tmp_path))
    with pytest.raises(RunError, match=r"run: its run is complete; for another release of the rows, choose a new "):
        measure_table(files["csv"], SCHEMA, **_options(tmp_path, folder=tmp_path / "again"))
    assert len(drawn) == 3


@pytest.mark.slow
def test_an_interruption_before_the_run_is_complete(files, tmp_path, monkeypatch, drawn):
    _interrupt(monkeypatch, RunFolder, "complete", 1, files["csv"], _options(tmp_path))
    assert load(tmp_path / "measured").statement["total"]["releases"] == 1
    with pytest.raises(ReleaseError, match="measured exists: a release is never overwritten"):
        measure_table(files["csv"], SCHEMA, **_options(tmp_path))
    assert len(drawn) == 3


def test_finished_parts_are_not_summed_again(files, tmp_path, monkeypatch):
    _interrupt(monkeypatch, parts, "partial_sums", 5, files["csv"], _options(tmp_path))
    summed = []

    def noted(*args, sums=parts.partial_sums, **options):
        summed.append(options["part"])
        return sums(*args, **options)

    monkeypatch.setattr(parts, "partial_sums", noted)
    measure_table(files["csv"], SCHEMA, **_options(tmp_path))
    assert summed == [4, 5, 6, 7, *range(8), *range(8)]


def test_a_run_of_a_private_number_goes_on(files, tmp_path, monkeypatch, drawn):
    options = _options(tmp_path, budget=engine_tables.budget("add_remove"))
    _interrupt(monkeypatch, measure, "perturb_securely", 3, files["csv"], options)
    assert len(list((tmp_path / "run").glob("noisy*"))) == 2
    assert len(measure_table(files["csv"], SCHEMA, **options).measured) == 4
    assert len(drawn) == 4
    assert len(Ledger(tmp_path / "ledger").spent("people")) == 1


# -- what is refused


@pytest.fixture
def interrupted(files, tmp_path, monkeypatch):
    """A run that was interrupted while the rows of its second measurement were summed: its options."""
    shutil.copy2(files["csv"], tmp_path / "rows.csv")
    _interrupt(monkeypatch, parts, "partial_sums", 11, tmp_path / "rows.csv", _options(tmp_path))
    return _options(tmp_path)


def _assert_refused(tmp_path, text, schema=SCHEMA, **options):
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(RunError) as error:
        measure_table(tmp_path / "rows.csv", schema, **options)
    assert text in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert len(Ledger(tmp_path / "ledger").spent("people")) == 1


def test_another_run_is_refused(interrupted, tmp_path, monkeypatch):
    _assert_refused(tmp_path, "another budget;", **interrupted | {"budget": PrivacyBudget(1.5, 1e-5)})
    _assert_refused(tmp_path, "another target;", **interrupted | {"target": None})
    _assert_refused(tmp_path, "another ledger;", **interrupted | {"spending": None})
    other = Schema((Numeric("age", 0, 111, integer=True), *SCHEMA.columns[1:]), dropped=("note",))
    _assert_refused(tmp_path, "another schema;", other, **interrupted)
    with monkeypatch.context() as patch:
        patch.setattr("kme_jax.table.measure.library_versions", lambda: "kme_jax 0.0.1")
        _assert_refused(tmp_path, "another version of a library;", **interrupted)
    os.utime(tmp_path / "rows.csv", ns=(0, 0))
    _assert_refused(tmp_path, "another table;", **interrupted)


@pytest.mark.slow
def test_another_size_of_parts_is_refused(interrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "PART_ROWS", 65)
    _assert_refused(tmp_path, "another size of parts;", **interrupted)


def test_a_copy_is_refused(interrupted, tmp_path):
    (tmp_path / "run").rename(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "run")
    _assert_refused(tmp_path, "is a copy, which could draw noise twice; go on with the first folder", **interrupted)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "first").rename(tmp_path / "run")
    assert len(measure_table(tmp_path / "rows.csv", SCHEMA, **interrupted).measured) == 3


def test_a_copy_in_the_place_of_the_folder_is_refused(interrupted, tmp_path):
    """Such as a backup. The folder may have the same inode as before."""
    text = "is a copy, which could draw noise twice; go on with the first folder"
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    for path in (tmp_path / "backup").iterdir():
        shutil.copy2(path, tmp_path / "run" / path.name)
    _assert_refused(tmp_path, text, **interrupted)
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / "backup", tmp_path / "run")
    _assert_refused(tmp_path, text, **interrupted)


def test_files_that_are_put_back_do_not_undo_that_a_run_is_complete(tmp_path):
    """Programs that restore a backup leave files alone that have not changed, such as the lock."""
    folder, made_of = tmp_path / "run", {"table": 1}
    with RunFolder.opened(folder, made_of):
        before = (folder / "run.json").read_bytes()
    with RunFolder.opened(folder, made_of) as run:
        run.complete()
    (folder / "run.json").write_bytes(before)
    with pytest.raises(RunError, match=r"is a copy, which could draw noise twice"), RunFolder.opened(folder, made_of):
        pass


def test_other_files_in_the_folder_stay(files, tmp_path):
    (tmp_path / "run").mkdir()
    ledger = Ledger(tmp_path / "run" / "ledger")
    measured(files["csv"], partials=tmp_path / "run", spending=Spending(ledger, "people"), secure=True)
    assert len(ledger.spent("people")) == 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "lock", "ledger"}


@pytest.mark.slow
def test_a_second_process_is_refused(interrupted, tmp_path):
    code = f"""
import fcntl, sys
file = open({str(tmp_path / "run" / "lock")!r}, "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as other:
        assert other.stdout.readline() == b"locked\n"
        _assert_refused(tmp_path, "another process uses it; wait until that ends", **interrupted)
        other.communicate()


DAMAGED = {
    "sums*": "is damaged, or of another run; delete it to sum its rows again",
    "noisy*": "is damaged, or of another run; the run cannot go on: choose a new folder",
    "run.json": "is damaged, or of another version; choose a new folder",
}


@pytest.mark.parametrize("is_short", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("pattern", DAMAGED)
def test_damage_is_refused(interrupted, tmp_path, pattern, is_short):
    (path,) = (tmp_path / "run").glob(pattern)
    content = path.read_bytes()
    if is_short:
        path.write_bytes(content[:-9])
    elif pattern == "run.json":
        path.write_text(json.dumps(json.loads(content) | {"version": 2}))
    else:
        place = content.index(b"kme_jax") if pattern == "sums*" else 1000  # within the version of the libraries
        path.write_bytes(content[:place] + b"#" + content[place + 1 :])
    assert path.read_bytes() != content
    _assert_refused(tmp_path, DAMAGED[pattern], **interrupted)


@pytest.mark.slow
def test_sums_of_another_run_are_refused(interrupted, tmp_path, monkeypatch):
    other = interrupted | {"partials": tmp_path / "other", "spending": None}
    _interrupt(monkeypatch, parts, "partial_sums", 11, tmp_path / "rows.csv", other)
    (path,), (theirs,) = ((tmp_path / folder).glob("sums*") for folder in ("run", "other"))
    path.write_bytes(theirs.read_bytes())
    _assert_refused(tmp_path, "it is of another run or measurement; leave it out)", **interrupted)
    path.unlink()
    assert len(measure_table(tmp_path / "rows.csv", SCHEMA, **interrupted).measured) == 3


@pytest.mark.slow
def test_a_folder_without_its_run_is_refused(interrupted, tmp_path, monkeypatch):
    other = interrupted | {"partials": tmp_path / "other", "spending": None}
    _interrupt(monkeypatch, parts, "partial_sums", 11, tmp_path / "rows.csv", other)
    (theirs,) = (tmp_path / "other").glob("noisy*")
    shutil.copy(theirs, tmp_path / "run")
    _assert_refused(tmp_path, "is damaged, or of another run; the run cannot go on: choose a new folder", **interrupted)
    (tmp_path / "run" / "run.json").unlink()
    _assert_refused(tmp_path, "is damaged (it has no run.json); choose a new folder", **interrupted)


def test_only_the_owner_can_read_the_folder(interrupted, tmp_path):
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["lock", "noisy single columns.npz", "run.json", "sums of pairs, coarsely.arrow"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()} == {0o600}
    text = (tmp_path / "run" / "run.json").read_text()
    assert "rows.csv" not in text
    assert set(json.loads(text)) == {"version", "run", "complete", "of", "folder"}


def test_a_ledger_whose_run_has_another_budget_is_refused(interrupted, tmp_path):
    line = json.loads((tmp_path / "ledger").read_text())
    (tmp_path / "ledger").write_text(json.dumps(line | {"epsilon": 0.5}) + "\n")
    with pytest.raises(LedgerError, match="this run was recorded with another budget"):
        measure_table(tmp_path / "rows.csv", SCHEMA, **interrupted)


def test_other_folders_and_sources_are_refused(files, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    for path in (tmp_path / "mine", tmp_path / "mine" / "file"):
        with pytest.raises(RunError, match=r"is not a folder of partial sums; choose a new or an empty one$"):
            measured(files["csv"], partials=path)
    with pytest.raises(RunError, match="cannot be used"):
        measured(files["csv"], partials=tmp_path / "missing" / "run")
    with pytest.raises(RunError, match="is in the folder of the rows, and would count as rows"):
        measured(files["folder"], partials=files["folder"] / "run")
    assert not (files["folder"] / "run").exists()
    for options in ({"partials": tmp_path / "run"}, {"processes": 2}):
        with pytest.raises(ValueError, match=r"^partials and processes: they need a table in files"):
            measured(people(), **options)
    with pytest.raises(ValueError, match="processes"):
        measured(files["csv"], processes=0)
    assert not (tmp_path / "run").exists()


def test_a_file_that_changes_is_refused(files, tmp_path, monkeypatch):
    shutil.copy(files["csv"], tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines(keepends=True)

    def change(*args, sums=parts.partial_sums, **options):
        (tmp_path / "rows.csv").write_text("".join(lines[:-1]))
        return sums(*args, **options)

    monkeypatch.setattr(parts, "partial_sums", change)
    with pytest.raises(FileError, match=r"rows.csv: it has changed while it was read"):
        measured(tmp_path / "rows.csv", partials=tmp_path / "run")


# -- the command


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("rich", ("no", "yes"))))
    schema.write("schema.json")
    people(400)[["age", "rich"]].to_csv("rows.csv", index=False)
    words = ["release", "rows.csv", "--schema=schema.json", "--epsilon=1", "--delta=1e-5"]
    return [*words, "--output=out", "--partials=run"]


@pytest.mark.slow
def test_the_command_goes_on_after_it_was_killed(command, tmp_path, capsys):
    program = textwrap.dedent(f"""
        import os, signal
        from kme_jax import cli
        from kme_jax.partial import runs
        keep = runs.RunFolder.keep_noisy
        def killed(self, *args):
            keep(self, *args)
            os.kill(os.getpid(), signal.SIGKILL)
        runs.RunFolder.keep_noisy = killed
        cli.main({command!r})
    """)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
        assert killed.returncode == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
    assert cli.main(command) == 0
    assert load("out").statement["total"]["releases"] == 1
    assert len(Ledger("rows.csv.ledger").spent("rows.csv")) == 1
    assert [path.name for path in sorted((tmp_path / "run").iterdir())] == ["lock", "run.json"]
    shutil.rmtree("out")
    capsys.readouterr()
    assert cli.main(command) == 2
    assert "run: its run is complete" in capsys.readouterr().err
    assert len(Ledger("rows.csv.ledger").spent("rows.csv")) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    ["os.killpg(0, signal.SIGINT)", "os.kill(os.getpid(), signal.SIGKILL)"],
)
def test_processes_end_with_the_command(command, files, tmp_path, how):
    shutil.copytree(files["folder"], tmp_path / "several")
    Schema(SCHEMA.columns, dropped=SCHEMA.dropped).write(tmp_path / "several.json")
    command = ["release", "several", "--schema=several.json", *command[3:], "--processes=2"]
    program = textwrap.dedent(f"""
        import os, signal
        from kme_jax import cli
        from kme_jax.partial import runs
        from kme_jax.table import parts
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it
        parts.PART_ROWS = {parts.PART_ROWS}
        keep = runs.RunFolder.keep_sums
        def ended(self, *args):
            keep(self, *args)
            {how}
        runs.RunFolder.keep_sums = ended
        raise SystemExit(cli.main({command!r}))
    """)
    # It waits for all processes that write to the pipe of the errors.
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=100,
    )
    if "SIGKILL" in how:
        assert ended.returncode == -signal.SIGKILL
    else:
        assert ended.returncode == 130
        assert ended.stderr == "interrupted; what is finished is kept in run: do the same again to go on\n"
    assert cli.main(command) == 0
    assert load("out").statement["total"]["releases"] == 1


def test_processes_need_a_schema(command, capsys):
    words = ["release", "rows.csv", "--lower=0", "--upper=1", *command[3:], "--processes=2"]
    assert cli.main(words) == 2
    assert "--processes needs --schema" in capsys.readouterr().err
