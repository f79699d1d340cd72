"""What has been spent on which private database: the curator's own record, which never leaves the building.

One JSON object per line, appended under a lock and flushed to the disk before noise is drawn: a release that was
interrupted may be recorded and not exist, and never the other way round. The file can be read and written by its owner
alone. It says when, how much, and under which name; nothing of the rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from kme_jax.privacy.calibration import zcdp_epsilon
from kme_jax.privacy.mechanisms import Composition, Mechanism

_FIELDS = {"database": str, "time": str, "epsilon": float, "delta": float, "rho": float, "failure_probability": float}

_BEGINNING = b'{"database": "'
_UNFINISHED = b" # not finished\n"


class LedgerError(ValueError):
    """A ledger that cannot be used, or a budget that may not be spent."""


@dataclasses.dataclass(frozen=True)
class Spending:
    """One release.

    Attributes:
      database: the name that the curator gave to the private rows.
      time: when, in UTC, ISO 8601.
      epsilon: ε.
      delta: δ.
      rho: ρ of zero-concentrated differential privacy; ε²/2 for a pure ε (Bun & Steinke 2016, proposition 1.4).
      failure_probability: of the sensitivity, over public randomness.
    """

    database: str
    time: str
    epsilon: float
    delta: float
    rho: float
    failure_probability: float


def total(spendings: list[Spending]) -> dict[str, Any]:
    """Of several releases of the same rows, as the privacy statement has it: ρ adds up (Bun & Steinke 2016, lemma 1.7),
    pure ε too, and so do failure probabilities. δ is the largest of any release."""
    rho, delta = math.fsum(s.rho for s in spendings), max(s.delta for s in spendings)
    failure = math.fsum(s.failure_probability for s in spendings)
    if delta == 0:
        epsilon = math.fsum(s.epsilon for s in spendings)
    else:
        delta = delta if delta >= 2 * failure else delta + failure
        epsilon = min(s.epsilon for s in spendings) if len(spendings) == 1 else zcdp_epsilon(rho, delta - failure)
    return {"releases": len(spendings), "rho": rho, "epsilon": epsilon, "delta": delta}


@dataclasses.dataclass(frozen=True)
class Ledger:
    """An append-only file.

    Attributes:
      path: of the file; it is made when first needed.
    """

    path: pathlib.Path

    def __post_init__(self):
        object.__setattr__(self, "path", pathlib.Path(self.path))

    def spent(self, database: str) -> list[Spending]:
        """All that is recorded for a database, oldest first.

        Raises:
          LedgerError: the file is not a ledger, or cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                return [s for s in self._parse(file.read())[0] if s.database == database]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read ({error.strerror})") from error

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Adds to any error, and to an interruption, that the budget is spent."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"the budget is recorded as spent in {self.path}: another try needs --again, and adds to it")
            raise

    def spend(self, database: str, mechanism: Mechanism | Composition, *, again: bool = False) -> dict[str, Any]:
        """Records a release that is about to be made, and returns the total with it, see :func:`total`.

        Args:
          database: name of the private rows, of the curator's choice.
          mechanism: of the release.
          again: whether there may be an earlier release of the same rows.

        Raises:
          LedgerError: an earlier release and not ``again``; noise that is not secure; a ledger that cannot be written.
        """
        if not mechanism.private:
            raise LedgerError("a ledger is for secure noise: simulated noise releases nothing")
        if not database:
            raise LedgerError("database: a ledger needs a name for the private rows")
        rho = mechanism.epsilon**2 / 2 if mechanism.rho is None else mechanism.rho
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        numbers = (float(v) for v in (mechanism.epsilon, mechanism.delta, rho, mechanism.failure_probability))
        new = Spending(database, time, *numbers)
        with self._locked() as file:
            content = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
            entries, rest = self._parse(content)
            earlier = [s for s in entries if s.database == database]
            if earlier and not again:
                raise LedgerError(
                    f'{self.path}: "{database}" was released before, at ε = {total(earlier)["epsilon"]:.4g} in all; '
                    "to release it once more, and add to what is spent, say so: again=True, or --again"
                )
            line = json.dumps(dataclasses.asdict(new), allow_nan=False).encode() + b"\n"
            # What an interrupted run left of a line is closed off; its noise was never drawn.
            self._append(file, (_UNFINISHED if rest else b"") + line)
            self._flush_folder()
        return total([*earlier, new])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file's descriptor, for reading and appending, with other processes kept out."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise LedgerError(f"{self.path}: is not a file")
            import fcntl  # here, so that the rest of the library can be imported where there is none

            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        except ModuleNotFoundError as error:
            raise LedgerError("a ledger needs a system with POSIX file locks") from error
        finally:
            os.close(file)

    def _append(self, file: int, data: bytes) -> None:
        try:
            written = os.write(file, data)
            if written != len(data):
                raise LedgerError(f"{self.path}: could not be written: the disk is full")
            os.fsync(file)
        except OSError as error:
            raise LedgerError(f"{self.path}: could not be written ({error.strerror})") from error

    def _flush_folder(self) -> None:
        """So that a file that is new is found after a power failure."""
        descriptor = os.open(self.path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise LedgerError(f"{self.path}: could not be written ({error.strerror})") from error
        finally:
            os.close(descriptor)

    def _parse(self, content: bytes) -> tuple[list[Spending], bytes]:
        """Entries, and a last line that was not finished.

        A line may be incomplete only where it is the file's last, or was closed off with a mark when the next one was
        written. A complete record counts, whether or not a line break follows.
        """
        lines, entries, rest = content.split(b"\n"), [], b""
        for number, line in enumerate(lines, 1):
            entry, last = _entry(line), number == len(lines)
            if entry is not None:
                entries.append(entry)
                rest = line if last else rest
            elif last and (_BEGINNING.startswith(line[: len(_BEGINNING)])):
                rest = line
            elif not line.endswith(_UNFINISHED.rstrip(b"\n")):
                raise LedgerError(f"{self.path}: line {number} is not a ledger's; repair it or use another file")
        return entries, rest


def _entry(line: bytes) -> Spending | None:
    """A record, whatever there is of the mark after it, or None for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        text = line.decode()
        record, end = json.JSONDecoder().raw_decode(text)
        marked = _UNFINISHED.decode().startswith(text[end:])
        if marked and isinstance(record, dict) and set(record) == set(_FIELDS):
            numbers = [value for value in record.values() if isinstance(value, float)]
            kinds = all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
            if kinds and all(math.isfinite(number) and number >= 0 for number in numbers):
                return Spending(**record)
    return None
