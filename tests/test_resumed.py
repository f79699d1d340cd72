"""Points that are summed in parts, and go on after an interruption: the sum, the one draw of noise, the ledger."""

import functools
import hashlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow as pa
import pytest

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    Ledger,
    PrivacyBudget,
    Processes,
    Spending,
    integer_embedding,
    load,
    open_rows,
)
from kme_jax import measure as measure_points
from kme_jax.partial import Partial, RunError, RunFolder, combine, partial_sums
from kme_jax.points.resumed import rows_of_part, sum_in_parts, task_of
from kme_jax.privacy.ledger import LedgerError
from kme_jax.storage.files import FileError
from kme_jax.storage.folders import ReleaseError

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


def _measure(rows, partials, feature_map=None, budget=BUDGET, **options):
    return measure_points(
        rows, feature_map or _map(), BOUNDS.proposal, bounds=BOUNDS, budget=budget, partials=partials, **options
    )


def _run(folder):
    return RunFolder.opened(folder, {"rows": 1})


@pytest.mark.parametrize("rows_per_part", [1, 97, 300, NUM_ROWS, 5000])
def test_parts_have_the_sum_of_all_rows(tmp_path, rows_per_part):
    if rows_per_part == 1:
        rows, num_rows = _rows()[:5], 5
    else:
        rows, num_rows = _source(Stream()), NUM_ROWS
    with _run(tmp_path / "sums") as run:
        task = task_of(_map(), BOUNDS, num_rows, run.run)
        embedding = sum_in_parts(run, rows, task, rows_per_part=rows_per_part)
        (partial,) = Partial.of_batch(run.sums(task))
    expected = integer_embedding(_map(), _rows()[:num_rows], bounds=BOUNDS)
    np.testing.assert_array_equal(embedding.total, expected.total)
    assert embedding.num_rows == num_rows
    assert partial.parts == tuple(range(-(-num_rows // rows_per_part)))


def test_parts_that_are_kept_are_not_summed_again(tmp_path):
    stream, done = Stream(), []
    expected = integer_embedding(_map(), _rows(), bounds=BOUNDS).total
    with _run(tmp_path / "sums") as run:
        task = task_of(_map(), BOUNDS, NUM_ROWS, run.run)
        batches = [pa.record_batch({"x": some[:, 0], "y": some[:, 1]}) for some in np.split(_rows(), 5)]
        some = [partial_sums([batches[part]], task, part=part, num_parts=5) for part in (0, 2, 4)]
        digests = {part: hashlib.sha256(np.split(_rows(), 5)[part].tobytes()).hexdigest() for part in (0, 2, 4)}
        run.keep_sums(task, combine(some, task), digests)
        total = functools.partial(sum_in_parts, run, _source(stream), task, rows_per_part=200)
        np.testing.assert_array_equal(total(progress=lambda rows, _: done.append(rows)).total, expected)
        assert {(rows - 1) // 200 for rows in done} == {1, 3}
        read = stream.read
        np.testing.assert_array_equal(total().total, expected)
        assert stream.read == read  # nothing is read if all parts are there


def test_rows_in_another_order_do_not_go_on(tmp_path):
    """A row that is in a finished part, and in a later one in the new order, would count twice."""

    def end(rows, _):
        if rows > 500:
            raise KeyboardInterrupt

    with _run(tmp_path / "sums") as run:
        task = task_of(_map(), BOUNDS, NUM_ROWS, run.run)
        with pytest.raises(KeyboardInterrupt):
            sum_in_parts(run, _rows(), task, rows_per_part=500, progress=end)
        assert list(run.digests(task)) == [0]
        for rows in (_rows()[::-1], np.roll(_rows(), 1, axis=0)):
            with pytest.raises(RunError, match="rows that are summed already are others now, or in another order"):
                sum_in_parts(run, rows, task, rows_per_part=500)
        expected = integer_embedding(_map(), _rows(), bounds=BOUNDS).total
        np.testing.assert_array_equal(sum_in_parts(run, _rows(), task, rows_per_part=500).total, expected)
        (tmp_path / "sums" / "digests of rows.json").write_text("[1]")
        with pytest.raises(RunError, match="is damaged"):
            run.digests(task)


def test_parts_follow_from_the_number_of_rows():
    assert [rows_of_part(n) for n in (2, 10**6, 10**7, 10**9, 10**12)] == [2**16, 2**16, 2**17, 2**24, 2**24]


def test_an_interrupted_measurement_goes_on(tmp_path):
    """It is charged once, and the sums are deleted when nobody needs them."""
    folder, stream, ledger = tmp_path / "sums", Stream(breaks=900), Ledger(tmp_path / "ledger")
    options = {"spending": Spending(ledger, "rows"), "folder": tmp_path / "measured"}
    again = functools.partial(_measure, _source(stream), folder, **options)
    with pytest.raises(OSError, match="the disk is gone"):
        again()
    assert ledger.spent("rows") == []
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    measured = again()
    assert [entry.epsilon for entry in ledger.spent("rows")] == [1.0]
    np.testing.assert_array_equal(measured.noisy.coordinates, load(tmp_path / "measured").noisy.coordinates)
    assert measured.statement == load(tmp_path / "measured").statement
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "run.json"]
    expected = integer_embedding(_map(), _rows(), bounds=BOUNDS)
    errors = measured.noisy.coordinates - expected.total / (expected.integer_map.units * NUM_ROWS)
    assert 0 < np.abs(errors).max() < 8 * measured.noisy.mechanism.scale
    with pytest.raises(RunError, match="its run is complete"):
        again()
    with pytest.raises(LedgerError, match="was released before"):
        _measure(_source(stream), tmp_path / "more", spending=Spending(ledger, "rows"))


def test_noise_is_not_drawn_again(tmp_path):
    """The run ends when its noise is kept, and its measurement is not saved yet, because its folder is in the way."""
    folder, ledger = tmp_path / "sums", Ledger(tmp_path / "ledger")

    def in_the_way(*_):
        (tmp_path / "measured").mkdir(exist_ok=True)  # after the folder was looked at

    options = {"spending": Spending(ledger, "rows"), "folder": tmp_path / "measured"}
    with pytest.raises(ReleaseError, match="exists"):
        _measure(_rows(), folder, progress=in_the_way, **options)
    (tmp_path / "measured").rmdir()
    assert len(ledger.spent("rows")) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "noisy rows.npz", "run.json"]
    with np.load(_content(folder / "noisy rows.npz")) as kept:
        drawn = kept["noisy.coordinates"]
    measured = _measure(_rows(), folder, **options)
    np.testing.assert_array_equal(measured.noisy.coordinates, drawn)
    assert len(ledger.spent("rows")) == 1


def _content(path):
    """A noisy result as an open file, without its digest."""
    return io.BytesIO(path.read_bytes()[32:])


def test_a_run_is_of_one_measurement(tmp_path):
    np.save(tmp_path / "rows.npy", _rows())
    folder, path = tmp_path / "sums", tmp_path / "rows.npy"
    with pytest.raises(ReleaseError, match="exists"):  # it is interrupted
        _measure(open_rows(path), folder, folder=tmp_path)
    cases = [
        (lambda: _measure(open_rows(path), folder, budget=PrivacyBudget(2.0, 1e-5)), "another budget or noise"),
        (lambda: _measure(open_rows(path), folder, feature_map=_map(1)), "another map or bounds"),
        (lambda: _measure(open_rows(path, columns=["y", "x"]), folder), "another rows"),
        (lambda: _measure(_rows(), folder), "another rows"),
        (lambda: _measure(open_rows(path), folder, spending=Spending(Ledger(tmp_path / "l"), "x")), "another ledger"),
    ]
    for call, text in cases:
        with pytest.raises(RunError, match=text):
            call()
    os.utime(path, ns=(1, 1))
    with pytest.raises(RunError, match="another rows"):
        _measure(open_rows(path), folder)
    with pytest.raises(ValueError, match="several processes keep none"), Processes() as processes:
        _measure(_rows(), folder, processes=processes)


def test_rows_that_change_while_they_are_summed(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, _rows())
    with _run(tmp_path / "sums") as run:
        source, task = open_rows(path), task_of(_map(), BOUNDS, NUM_ROWS, run.run)
        with pytest.raises(FileError, match="has changed while it was read"):
            sum_in_parts(run, source, task, progress=lambda *_: os.utime(path, ns=(1, 1)))


COMMAND = [
    *("release", "rows.npy", "--columns=a,b", "--lower=-3,-3", "--upper=3,3", "--epsilon=1", "--delta=1e-7"),
    *("--points=points.npy", "--partials=run"),
]


@pytest.mark.long
def test_a_command_that_is_killed_goes_on(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(1_500_000, 2)))
    np.save(tmp_path / "points.npy", np.random.default_rng(1).uniform(-3, 3, size=(100, 2)))

    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "kme_jax", *COMMAND, *(words or ["--output=out"])],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip

    kept = tmp_path / "run" / "sums of rows.arrow"
    killed = start()
    while killed.poll() is None and not kept.exists():
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert kept.exists()
    assert not (tmp_path / "rows.npy.ledger").exists()
    _, errors = (going_on := start()).communicate()
    assert going_on.returncode == 0, errors
    assert load(tmp_path / "out").noisy.mechanism.num_rows == 1_500_000
    assert len(Ledger(tmp_path / "rows.npy.ledger").spent("rows.npy")) == 1
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out", "points.npy", "rows.npy", "rows.npy.ledger", "run"]
    _, errors = (once_more := start("--again", "--output=more")).communicate()
    assert once_more.returncode == 2
    assert "its run is complete; for another release of the rows, choose a new folder" in errors
