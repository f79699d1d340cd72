"""Several processes of ``jax.distributed`` that measure their rows together."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64

_POLL = 1.0  # seconds, at most: how often a process that waits looks whether the others are there
_DEFAULT_TIMEOUT = 60.0  # below the 100 s after which JAX itself ends all processes if one is not heard
_numbers = itertools.count()  # the same in all processes, as each of them makes the same calls


class ProcessError(ValueError):
    """Another process failed, or was not heard from, or was given other public arguments."""


class Store(Protocol):
    """Where processes leave bytes for each other, by key. All methods may be called from several threads.

    A method raises ConnectionError if the store cannot be reached.
    """

    def put(self, key: str, content: bytes) -> None:
        """Keeps the content, in the place of what the key had before."""
        ...

    def look(self, key: str) -> bytes | None:
        """The content of a key; None if there is none."""
        ...

    def wait(self, key: str, seconds: float) -> bytes | None:
        """The content of a key, as soon as there is one; None if there is none after so many seconds."""
        ...

    def remove(self, key: str) -> None:
        """Forgets a key."""
        ...


class Processes:
    """The processes of ``jax.distributed``, each of which has some of the private rows. A context manager.

    ``measure(rows, ..., processes=processes)`` is called in every process with the same public arguments, and with the
    rows of the process alone, of which there may be none. The integers of all rows are added exactly, as bytes of
    64-bit integers. So the sum is bit for bit that of one process that has all rows, on devices of one kind.

    What each process learns:

    * Process 0 gets the exact sum of each other process. It adds them, draws the noise, and has the measurement. Its
      ledger and folder are used.
    * The others get the number of all rows, and ``None`` in the place of the measurement. They see neither noise nor
      the sum of another process. (An all-reduce would show every process the exact sum of all rows.)

    Formal guarantee: that of ``measure`` for all rows together. All processes have the same budget, kind of noise, map
    and bounds, which is checked before rows are summed. Process 0 draws noise once, after all sums have arrived, and
    after its ledger was charged. If a process fails before that, nothing is spent.

    Sums are exact and SENSITIVE. They go through the key-value store of ``jax.distributed``, which is a part of process
    0, without encryption. So the network between the processes must be trusted as the rows are.

    In the block of the context manager a process is heard by the others, however long it is busy. So open files within
    the block, too. An error within the block ends the others with a ``ProcessError``, and so does a process that is not
    heard for ``timeout`` seconds. (JAX itself ends all processes if one has been missing for its
    ``heartbeat_timeout_seconds``.) The other processes leave the block when process 0 does.

    Attributes:
      index: the number of this process.
      count: how many processes there are.

    Args:
      timeout: the number of seconds after which a process that is not heard counts as lost. JAX's
        ``heartbeat_timeout_seconds`` should be longer.
      store: for processes without ``jax.distributed``: where they leave bytes for each other. It is for one block.
      index: with a store: the number of this process.
      count: with a store: how many processes there are.

    Raises:
      ValueError: the timeout is not positive, or there are several processes and no ``jax.distributed.initialize``.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Bounds, Gaussian, PrivacyBudget, Processes, measure
      >>> rows = np.random.default_rng(0).uniform(size=(1000, 2))  # private: those of this process
      >>> with Processes() as processes:  # after jax.distributed.initialize(...), unless there is one process only
      ...     bounds = Bounds.create([0, 0], [1, 1])
      ...     measured = measure(
      ...         rows, Gaussian(gamma=9.0), bounds=bounds, budget=PrivacyBudget(1.0, 1e-5), processes=processes
      ...     )
      >>> measured is not None  # in process 0
      True
    """

    index: int
    count: int

    def __init__(
        self,
        timeout: float = _DEFAULT_TIMEOUT,
        *,
        store: Store | None = None,
        index: int | None = None,
        count: int | None = None,
    ):
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self._timeout = float(timeout)
        self._space = "kme_jax"
        if store is None:
            index, count, store = _of_jax()
            self._space += f"/{next(_numbers)}"  # blocks one after the other share the store
        if index is None or count is None or not 0 <= index < count:
            raise ValueError("processes: a store needs the index of this process, below their count")
        self.index, self.count, self._store = index, count, store
        self._steps = itertools.count()
        self._heard: dict[int, tuple[bytes | None, float]] = {}
        self._beats: _Beats | None = None

    def __repr__(self) -> str:
        return f"Processes(index={self.index}, count={self.count})"

    def __enter__(self) -> Processes:
        if self._beats is not None:
            raise ValueError("processes: this block can be entered once")
        self._beats = _Beats(self._store, self._key("beat", self.index), min(_POLL, self._timeout / 5))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None:
                if not isinstance(error, ProcessError):  # otherwise the others know it already
                    with contextlib.suppress(ConnectionError):
                        self._store.put(self._key("failed"), str(self.index).encode())
            elif self.index == 0:
                self._put(self._key("left"), b"")
            else:
                self._receive(self._key("left"), 0)
        finally:
            if self._beats is not None:
                self._beats.stop()

    def gather(self, content: bytes) -> list[bytes] | None:
        """What all processes give, in their order, in process 0; None in the others. All processes call it.

        Raises:
          ProcessError: another process failed, or is not heard.
          ValueError: the call is not in the block of the context manager.
        """
        key = self._step()
        if self.index:
            self._put(f"{key}/{self.index}", content)
            return None
        contents = [content]
        for other in range(1, self.count):
            contents.append(self._receive(f"{key}/{other}", other))
            self._store.remove(f"{key}/{other}")
        return contents

    def broadcast(self, content: bytes) -> bytes:
        """What process 0 gives, in all processes. All processes call it; the others may give anything.

        Raises:
          ProcessError: another process failed, or is not heard.
          ValueError: the call is not in the block of the context manager.
        """
        key = self._step()
        if self.index:
            return self._receive(key, 0)
        self._put(key, content)
        return content

    def total(self, number: int) -> int:
        """The sum of a whole number of each process, in all processes. All processes call it.

        Raises:
          ProcessError: another process failed, or is not heard.
          ValueError: the call is not in the block of the context manager.
        """
        numbers = self.gather(str(number).encode())
        return int(self.broadcast(str(sum(map(int, numbers or ()))).encode()))

    def sum(self, integers: Int64[np.ndarray, "sums"]) -> Int64[np.ndarray, "sums"] | None:
        """The sum of an array of each process, in process 0; None in the others. SENSITIVE. All processes call it.

        It is exact: integers of 64 bits are sent as bytes. (Without x64, arrays of JAX would have 32 bits.)

        Raises:
          ProcessError: another process failed, or is not heard.
          ValueError: the call is not in the block of the context manager.
        """
        contents = self.gather(np.asarray(integers, "<i8").tobytes())
        if contents is None:
            return None
        return sum((np.frombuffer(content, "<i8") for content in contents), np.zeros(integers.size, np.int64))

    def agree(self, digest: bytes, what: str = "maps or bounds") -> None:
        """Checks that all processes have the same public arguments. All processes call it.

        Args:
          digest: of the arguments.
          what: the arguments in words, for the error.

        Raises:
          ProcessError: they have not; or another process failed, or is not heard.
          ValueError: the call is not in the block of the context manager.
        """
        digests = self.gather(digest)
        answer = self.broadcast(b"same" if digests is None or len(set(digests)) == 1 else b"other")
        if answer != b"same":
            self.gather(b"")  # the store ends with process 0, so all others have to hear the answer first
            raise ProcessError(f"processes: they have different {what}; give each the same public arguments")

    def _step(self) -> str:
        if self._beats is None:
            raise ValueError("processes: use them in their block: with Processes() as processes")
        return self._key("step", next(self._steps))

    def _key(self, *words: str | int) -> str:
        return "/".join([self._space, *map(str, words)])

    def _put(self, key: str, content: bytes) -> None:
        try:
            self._store.put(key, content)
        except ConnectionError:
            raise ProcessError(_LOST) from None

    def _receive(self, key: str, sender: int) -> bytes:
        try:
            while (content := self._store.wait(key, min(_POLL, self._timeout / 5))) is None:
                self._check(sender)
        except ConnectionError:
            raise ProcessError(_LOST) from None
        return content

    def _check(self, sender: int) -> None:
        """Raises ProcessError if a process has failed, or one that counts is not heard any more."""
        failed = self._store.look(self._key("failed"))
        if failed is not None:
            raise ProcessError(f"process {failed.decode()} of {self.count} failed: its own error says why")
        now = time.monotonic()
        for other in range(1, self.count) if self.index == 0 else (sender,):
            beat = self._store.look(self._key("beat", other))
            before, since = self._heard.get(other, (None, now))
            self._heard[other] = before, since = (beat, now if beat != before else since)
            if now - since > self._timeout:
                raise ProcessError(f"process {other} of {self.count} was not heard for {self._timeout:g} seconds")


_LOST = "process 0, through which the processes talk, cannot be reached"


class _Beats:
    """A thread that says again and again that this process is there. It ends with its owner."""

    def __init__(self, store: Store, key: str, seconds: float):
        self._stopped = threading.Event()
        thread = threading.Thread(target=_beat, args=(store, key, seconds, self._stopped), daemon=True)
        weakref.finalize(self, self._stopped.set)
        thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()


def _beat(store: Store, key: str, seconds: float, stopped: threading.Event) -> None:
    for number in itertools.count():
        with contextlib.suppress(ConnectionError):
            store.put(key, str(number).encode())
        if stopped.wait(seconds):
            return


class _Alone:
    """The store of a single process, which talks to nobody."""

    def put(self, key: str, content: bytes) -> None:
        del key, content

    def look(self, key: str) -> None:
        del key

    def wait(self, key: str, seconds: float) -> None:
        del key, seconds

    def remove(self, key: str) -> None:
        del key


def _of_jax() -> tuple[int, int, Store]:
    """The index of this process, the number of processes, and their store, as ``jax.distributed`` has them."""
    import jax

    if not jax.distributed.is_initialized():
        return 0, 1, _Alone()
    # JAX has no public name for its key-value store. Checkpoints of Orbax use the same one.
    from jax._src import distributed

    return jax.process_index(), jax.process_count(), _OfJax(distributed.global_state.client)


@dataclasses.dataclass(frozen=True)
class _OfJax:
    """The key-value store of ``jax.distributed``. Its errors show no content."""

    client: Any

    def put(self, key: str, content: bytes) -> None:
        self._call(lambda: self.client.key_value_set_bytes(key, content, allow_overwrite=True))

    def look(self, key: str) -> bytes | None:
        return self._call(lambda: self.client.key_value_try_get_bytes(key))

    def wait(self, key: str, seconds: float) -> bytes | None:
        return self._call(lambda: self.client.blocking_key_value_get_bytes(key, math.ceil(1000 * seconds)))

    def remove(self, key: str) -> None:
        self._call(lambda: self.client.key_value_delete(key))

    def _call(self, call: Callable[[], Any]) -> Any:
        import jax

        try:
            return call()
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
                return None
            raise ConnectionError from None
