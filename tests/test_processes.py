"""Several processes that measure their rows together: threads with a store of their own, and real processes of JAX."""

import functools
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from kme_jax import (
    Ledger,
    Measurement,
    NormalProposal,
    PrivacyBudget,
    ProcessError,
    Processes,
    Spending,
    integer_embedding,
    load,
    measure,
)
from kme_jax.embedding import batches_of, integer_embedding_of_processes
from tests import process_program
from tests.process_program import BOUNDS, BUDGET, all_rows, fourier

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Memory:
    """A store within one process."""

    def __init__(self):
        self.contents, self.changed, self.gone = {}, threading.Condition(), False

    def put(self, key, content):
        with self.changed:
            self._check()
            self.contents[key] = content
            self.changed.notify_all()

    def look(self, key):
        return self.wait(key, 0)

    def wait(self, key, seconds):
        with self.changed:
            self.changed.wait_for(lambda: self.gone or key in self.contents, seconds)
            self._check()
            return self.contents.get(key)

    def remove(self, key):
        with self.changed:
            del self.contents[key]

    def _check(self):
        if self.gone:
            raise ConnectionError


def _together(work, count=3, timeout=20.0, store=None):
    """What ``work(processes)`` returns or raises in each of some threads, which share a store."""
    store = store or Memory()
    results = [None] * count

    def run(index):
        try:
            with Processes(timeout, store=store, index=index, count=count) as processes:
                results[index] = work(processes)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@functools.lru_cache
def _expected():
    return integer_embedding(fourier(), all_rows(), bounds=BOUNDS)


@pytest.mark.parametrize("ends", [(700, 700, 1000), (0, 1000, 1000), (1, 2, 1000)], ids=str)
def test_sums_of_processes_are_the_sum_of_one(ends):
    parts = np.split(all_rows(), ends[:-1])

    def work(processes):
        rows = parts[processes.index]
        return integer_embedding_of_processes(fourier(), batches_of(rows, 90), len(rows), processes, bounds=BOUNDS)

    first, *others = _together(work)
    np.testing.assert_array_equal(first.total, _expected().total)
    assert first.num_rows == 1000
    assert others == [None, None]


def test_sums_are_not_cut_to_32_bits():
    def work(processes):
        return processes.sum(np.array([2**60 + processes.index, -(2**40), 3]))

    first, *others = _together(work)
    assert first.tolist() == [3 * 2**60 + 3, -3 * 2**40, 9]
    assert others == [None, None]


def test_process_zero_alone_has_the_measurement(tmp_path):
    parts, store = np.split(all_rows(), [250, 250]), Memory()

    def work(processes):
        index = processes.index
        spending = Spending(Ledger(tmp_path / f"{index}.ledger"), "rows")
        return measure(
            parts[index], fourier(), BOUNDS.proposal, bounds=BOUNDS, budget=BUDGET, spending=spending,
            folder=tmp_path / f"{index}", processes=processes,
        )  # fmt: skip

    first, *others = _together(work, store=store)
    assert isinstance(first, Measurement)
    assert others == [None, None]
    assert first.noisy.mechanism.num_rows == 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0.ledger"]
    assert len(Ledger(tmp_path / "0.ledger").spent("rows")) == 1
    sizes = {len(content) for content in store.contents.values()}
    assert max(sizes) < 64 * 8  # sums are forgotten when they were read
    plain = _expected()
    errors = first.noisy.coordinates - plain.total / (plain.integer_map.units * 1000)
    assert 0 < np.abs(errors).max() < 8 * first.noisy.mechanism.scale


def test_one_process_needs_no_other():
    with Processes() as processes:
        assert (processes.index, processes.count) == (0, 1)
        embedding = integer_embedding_of_processes(fourier(), [all_rows()], 1000, processes, bounds=BOUNDS)
    np.testing.assert_array_equal(embedding.total, _expected().total)


def test_a_failure_of_one_ends_all():
    def work(processes):
        if processes.index == 1:
            raise OSError("this disk is damaged")
        return processes.total(5)

    first, failed, last = _together(work)
    assert isinstance(failed, OSError)
    for error in (first, last):
        assert isinstance(error, ProcessError)
        assert str(error) == "process 1 of 3 failed: its own error says why"


@pytest.mark.slow
def test_a_failure_of_process_zero_after_the_sums_ends_the_others():
    def work(processes):
        processes.sum(np.zeros(3, np.int64))
        if processes.index == 0:
            raise ValueError("the ledger is full")

    first, *others = _together(work)
    assert str(first) == "the ledger is full"
    assert {str(error) for error in others} == {"process 0 of 3 failed: its own error says why"}


def test_a_process_that_is_not_there_is_missed():
    """The last of four processes never comes."""
    store, results = Memory(), [None] * 3

    def run(index):
        try:
            with Processes(0.3, store=store, index=index, count=4) as processes:
                results[index] = processes.total(1)
        except ProcessError as error:
            results[index] = str(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results[0] == "process 3 of 4 was not heard for 0.3 seconds"
    assert set(results[1:]) == {"process 0 of 4 was not heard for 0.3 seconds"}


@pytest.mark.slow
def test_a_process_that_is_busy_is_waited_for():
    def work(processes):
        if processes.index == 2:
            time.sleep(1.0)  # longer than the timeout
        return processes.total(processes.index)

    assert _together(work, timeout=0.5) == [3, 3, 3]


@pytest.mark.slow
def test_a_store_that_is_gone():
    store = Memory()

    def work(processes):
        if processes.index == 0:
            store.gone = True
        return processes.total(1)

    for error in _together(work, store=store):
        assert str(error) == "process 0, through which the processes talk, cannot be reached"


@pytest.mark.parametrize(("epsilon", "noise"), [(0.1, "gaussian"), (1.0, "laplace")])
def test_another_budget_or_noise_is_refused(epsilon, noise):
    """A process can rely on its own budget, although another one draws the noise."""

    def work(processes):
        mine = {"budget": BUDGET} if processes.index == 0 else {"budget": PrivacyBudget(epsilon, 1e-5), "noise": noise}
        return measure(all_rows()[:10], fourier(), NormalProposal.create(np.zeros(2), 1.0), processes=processes, **mine)

    for error in _together(work, count=2):
        assert str(error).startswith("processes: they have different budgets or kinds of noise; ")


def test_other_maps_and_bounds_are_refused():
    def work(processes):
        rows = all_rows()[:10]
        return integer_embedding_of_processes(fourier(processes.index), [rows], 10, processes, bounds=BOUNDS)

    for error in _together(work, count=2):
        assert "different maps or bounds" in str(error)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="timeout must be positive"):
        Processes(0)
    with pytest.raises(ValueError, match="needs the index of this process"):
        Processes(store=Memory())
    processes = Processes()
    with pytest.raises(ValueError, match="use them in their block"):
        processes.total(1)
    with processes, pytest.raises(ValueError, match="entered once"):
        processes.__enter__()


# -- real processes


def _run(folder, what, seconds=120):
    """(exit status, lines) of each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", process_program.__name__, str(index), port, what, str(folder)],
            cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        return [(process.communicate(timeout=seconds)[0].splitlines(), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize(
    "what",
    [pytest.param("both", marks=pytest.mark.slow), pytest.param("one with none", marks=pytest.mark.long)],
)
def test_two_processes_of_jax(tmp_path, what):
    first, second = _run(tmp_path, what)
    assert first == (["measurement: True, sum: True"], 0)
    assert second == (["measurement: False, sum: False"], 0)
    np.testing.assert_array_equal(np.load(tmp_path / "total.npy"), _expected().total)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.ledger", "measured0", "total.npy"]
    measured = load(tmp_path / "measured0")
    assert measured.noisy.mechanism.num_rows == 1000
    assert measured.noisy.mechanism.secure


@pytest.mark.slow
def test_a_process_of_jax_that_dies(tmp_path):
    first, second = _run(tmp_path, "1 dies")
    assert second == ([], 9)
    assert first == (["ProcessError: process 1 of 2 was not heard for 4 seconds"], 3)
    assert not list(tmp_path.iterdir())  # nothing was spent


@pytest.mark.long
def test_process_zero_of_jax_dies(tmp_path):
    """JAX may end the other before it can say why. It ends soon in any case, and with an error."""
    first, (lines, status) = _run(tmp_path, "0 dies")
    assert first == ([], 9)
    assert status != 0
    assert len(lines) <= 1


@pytest.mark.long
def test_a_process_of_jax_that_fails(tmp_path):
    first, second = _run(tmp_path, "1 fails")
    assert second == (["OSError: this disk is damaged"], 3)
    assert first == (["ProcessError: process 1 of 2 failed: its own error says why"], 3)
    (error,) = {lines[0] for lines, _ in _run(tmp_path, "other maps")}
    assert error.startswith("ProcessError: processes: they have different maps or bounds")
