"""Points that are summed in parts, and go on after an interruption: the sum, the one draw of noise, the ledger."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from kme_jax import Bounds, FourierMap, Gaussian, Ledger, PrivacyBudget, Spending, integer_embedding, load, open_rows
from kme_jax import measure as measure_points
from kme_jax.partial import RunError, open_run, remove_run
from kme_jax.points.resumed import rows_of_part, sum_in_parts, task_of
from kme_jax.privacy.ledger import LedgerError

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = Bounds.create([-3.0, -3.0], [3.0, 3.0], ["x", "y"])
BUDGET = PrivacyBudget(1.0, 1e-5)
NUM_ROWS = 1000


@functools.lru_cache
def _map(seed=0):
    return FourierMap.from_kernel(jax.random.key(seed), Gaussian(gamma=2.0), num_features=16, dim=2)


@functools.lru_cache
def _rows():
    rows = np.random.default_rng(0).normal(size=(NUM_ROWS, 2))
    rows[::9, 0] = np.nan
    return rows


class Stream:
    """Batches of rows. The stream breaks after so many rows, once."""

    def __init__(self, breaks=None, size=130):
        self.breaks, self.size, self.read = breaks, size, 0

    def __call__(self):
        breaks, self.breaks = self.breaks, None
        for start in range(0, NUM_ROWS, self.size):
            if breaks is not None and start >= breaks:
                raise OSError("the disk is gone")
            batch = _rows()[start : start + self.size]
            self.read += len(batch)
            yield batch


def _source(stream):
    return open_rows(stream, num_rows=NUM_ROWS, num_columns=2)


def _measure(rows, folder, feature_map=None, budget=BUDGET, **options):
    return measure_points(
        rows, feature_map or _map(), BOUNDS.proposal, bounds=BOUNDS, budget=budget, partials=folder, **options
    )


def _parts(folder):
    return sorted(path.name for path in folder.glob("part-*.arrow"))


def _run(folder, facts=None):
    return open_run(folder, facts or {"rows": 1})


@pytest.mark.parametrize("rows_per_part", [1, 97, 300, NUM_ROWS, 5000])
def test_parts_have_the_sum_of_all_rows(tmp_path, rows_per_part):
    if rows_per_part == 1:
        rows, num_rows = _rows()[:5], 5
    else:
        rows, num_rows = _source(Stream()), NUM_ROWS
    with _run(tmp_path / "sums") as run:
        task = task_of(_map(), BOUNDS, num_rows, run.name)
        embedding = sum_in_parts(run, rows, task, rows_per_part=rows_per_part)
    expected = integer_embedding(_map(), _rows()[:num_rows], bounds=BOUNDS)
    np.testing.assert_array_equal(embedding.total, expected.total)
    assert embedding.num_rows == num_rows
    assert len(_parts(tmp_path / "sums")) == -(-num_rows // rows_per_part)


def test_parts_that_are_kept_are_not_summed_again(tmp_path):
    stream, folder, done = Stream(), tmp_path / "sums", []
    expected = integer_embedding(_map(), _rows(), bounds=BOUNDS).total
    with _run(folder) as run:
        task = task_of(_map(), BOUNDS, NUM_ROWS, run.name)
        total = functools.partial(sum_in_parts, run, _source(stream), task, rows_per_part=200)
        np.testing.assert_array_equal(total().total, expected)
        before = {name: (folder / name).stat().st_ino for name in _parts(folder)}
        (folder / "part-1.arrow").write_bytes((folder / "part-1.arrow").read_bytes()[:-20])
        (folder / "part-3.arrow").unlink()
        np.testing.assert_array_equal(total(progress=lambda rows, _: done.append(rows)).total, expected)
        after = {name: (folder / name).stat().st_ino for name in _parts(folder)}
        assert {name for name in before if before[name] == after[name]} >= {f"part-{i}.arrow" for i in (0, 2, 4)}
        assert {(rows - 1) // 200 for rows in done} == {1, 3}
        read = stream.read
        np.testing.assert_array_equal(total().total, expected)
        assert stream.read == read  # nothing is read if all parts are there


def test_parts_follow_from_the_number_of_rows():
    assert [rows_of_part(n) for n in (2, 10**6, 10**7, 10**9, 10**12)] == [2**16, 2**16, 2**17, 2**24, 2**24]


def test_files_are_for_their_owner_alone(tmp_path):
    folder = tmp_path / "sums"
    with pytest.raises(OSError, match="gone"):
        _measure(_source(Stream(breaks=900)), folder)
    with _run(tmp_path / "other") as run:
        sum_in_parts(run, _rows(), task_of(_map(), BOUNDS, NUM_ROWS, run.name), rows_per_part=400)
    for place in (folder, tmp_path / "other"):
        assert place.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}


def test_an_interrupted_measurement_goes_on(tmp_path):
    """It is charged once and drawn once, and the sums are deleted when nobody needs them."""
    folder, stream, ledger = tmp_path / "sums", Stream(breaks=900), Ledger(tmp_path / "ledger")
    again = functools.partial(_measure, _source(stream), folder, spending=Spending(ledger, "rows"))
    with pytest.raises(OSError, match="the disk is gone"):
        again()
    assert ledger.spent("rows") == []
    first, second = again(), again()
    assert len(ledger.spent("rows")) == 1
    np.testing.assert_array_equal(first.noisy.coordinates, second.noisy.coordinates)
    np.testing.assert_array_equal(first.noisy.coordinates, load(folder / "measured").noisy.coordinates)
    assert first.statement == second.statement
    assert sorted(path.name for path in folder.iterdir()) == ["complete.json", "measured", "run.json"]
    expected = integer_embedding(_map(), _rows(), bounds=BOUNDS)
    errors = first.noisy.coordinates - expected.total / (expected.integer_map.units * NUM_ROWS)
    assert 0 < np.abs(errors).max() < 8 * first.noisy.mechanism.scale
    with pytest.raises(LedgerError, match="was released before"):
        _measure(_source(stream), tmp_path / "more", spending=Spending(ledger, "rows"))
    remove_run(folder)
    assert not folder.exists()


def test_a_run_that_was_charged_is_not_charged_again(tmp_path):
    """It was killed between the ledger and the noise."""
    folder, ledger = tmp_path / "sums", Ledger(tmp_path / "ledger")
    mechanism = _measure(_rows(), tmp_path / "for the mechanism").noisy.mechanism
    source = _source(Stream(breaks=900))
    with pytest.raises(OSError, match="the disk is gone"):
        _measure(source, folder)
    run = json.loads((folder / "run.json").read_text())["run"]
    ledger.spend("rows", mechanism, run=run)
    _measure(source, folder, spending=Spending(ledger, "rows"))
    (entry,) = ledger.spent("rows")
    assert entry.run == run


def test_a_run_is_of_one_measurement(tmp_path):
    np.save(tmp_path / "rows.npy", _rows())
    folder, path = tmp_path / "sums", tmp_path / "rows.npy"
    other_budget = PrivacyBudget(2.0, 1e-5)
    _measure(open_rows(path), folder)
    cases = [
        (lambda: _measure(open_rows(path), folder, budget=other_budget), "other budget or noise"),
        (lambda: _measure(open_rows(path), folder, feature_map=_map(1)), "other map or bounds"),
        (lambda: _measure(open_rows(path, columns=["y", "x"]), folder), "other rows"),
        (lambda: _measure(_rows(), folder), "other rows"),
    ]
    for call, text in cases:
        with pytest.raises(RunError, match=text):
            call()
    _measure(open_rows(path), folder)
    os.utime(path, ns=(1, 1))
    with pytest.raises(RunError, match="other rows"):
        _measure(open_rows(path), folder)


def test_rows_that_change_while_they_are_summed(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, _rows())
    with _run(tmp_path / "sums") as run:
        source, task = open_rows(path), task_of(_map(), BOUNDS, NUM_ROWS, run.name)
        with pytest.raises(RunError, match="has changed while it was summed"):
            sum_in_parts(run, source, task, progress=lambda *_: os.utime(path, ns=(1, 1)))


def test_folders_that_hold_something_else(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{}")
    (tmp_path / "file").write_text("")
    complete = tmp_path / "complete"
    with _run(complete) as run:
        run.complete()
        with pytest.raises(RunError, match="another process works in it"), _run(complete):
            pass
    for name, text in {
        "full": "no partial sums, but other files",
        "damaged": "run.json is damaged, or of another version",
        "file": "cannot be written",
        "none/sums": "cannot be written",
        "complete": "its noise was drawn, and the result is gone",
    }.items():
        with pytest.raises(RunError, match=text), _run(tmp_path / name):
            pass
    remove_run(tmp_path / "full")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="several processes keep none"):
        _measure_of_processes(tmp_path)


def _measure_of_processes(tmp_path):
    from kme_jax import Processes

    with Processes() as processes:
        _measure(_rows(), tmp_path / "sums", processes=processes)


def test_what_a_killed_run_left_is_cleared(tmp_path):
    with _run(tmp_path / "sums"):
        pass
    for name in (".0123.arrow", ".0123.json"):
        (tmp_path / "sums" / name).write_bytes(b"half")
    (tmp_path / "sums" / ".kme_jax-0123").mkdir()
    with _run(tmp_path / "sums"):
        assert [path.name for path in (tmp_path / "sums").iterdir()] == ["run.json"]


COMMAND = [
    *("release", "rows.npy", "--columns=a,b", "--lower=-3,-3", "--upper=3,3", "--epsilon=1", "--delta=1e-7"),
    *("--points=points.npy", "--output=out", "--partials=sums"),
]


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(1_500_000, 2)))
    np.save(tmp_path / "points.npy", np.random.default_rng(1).uniform(-3, 3, size=(100, 2)))
    program = [sys.executable, "-W", "ignore", "-m", "kme_jax", *COMMAND]
    start = functools.partial(
        subprocess.Popen, program, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    killed = start()
    while killed.poll() is None and not (tmp_path / "sums" / "part-3.arrow").exists():
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = {path.name: path.stat().st_ino for path in (tmp_path / "sums").glob("part-*")}
    assert 4 <= len(before) < 23
    assert not (tmp_path / "rows.npy.ledger").exists()
    going_on = start()
    while going_on.poll() is None and not (tmp_path / "sums" / "part-22.arrow").exists():
        kept = {path.name: path.stat().st_ino for path in (tmp_path / "sums").glob("part-*")}
        assert not kept or before.items() <= kept.items()
        time.sleep(0.01)
    _, errors = going_on.communicate()
    assert going_on.returncode == 0, errors
    assert load(tmp_path / "out").noisy.mechanism.num_rows == 1_500_000
    assert len(Ledger(tmp_path / "rows.npy.ledger").spent("rows.npy")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "points.npy", "rows.npy", "rows.npy.ledger"]
