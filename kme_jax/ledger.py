"""What has been spent on which private database: the curator's own record, which never leaves the building.

One JSON object per line, appended under a lock and flushed to the disk before noise is drawn: a release that was
interrupted may be recorded and not exist, and never the other way round. The file can be read and written by its owner
alone. It says when, how much, and under which name; nothing of the rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import math
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from kme_jax.privacy.calibration import zcdp_epsilon
from kme_jax.privacy.mechanisms import Mechanism

_FIELDS = {"database": str, "time": str, "epsilon": float, "delta": float, "rho": float, "failure_probability": float}


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

    def spend(
        self, database: str, mechanism: Mechanism, *, failure_probability: float = 0.0, again: bool = False
    ) -> dict[str, Any]:
        """Records a release that is about to be made, and returns the total with it, see :func:`total`.

        Args:
          database: name of the private rows, of the curator's choice.
          mechanism: of the release.
          failure_probability: what of δ is for a sensitivity that may fail.
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
        numbers = (float(v) for v in (mechanism.epsilon, mechanism.delta, rho, failure_probability))
        new = Spending(database, time, *numbers)
        with self._locked() as file:
            content = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
            entries, rest = self._parse(content)
            earlier = [s for s in entries if s.database == database]
            if earlier and not again:
                raise LedgerError(
                    f'{self.path}: "{database}" was released before, at ε = {total(earlier)["epsilon"]:.4g} in all; '
                    "to release it once more, and add to what is spent, say so (again)"
                )
            line = json.dumps(dataclasses.asdict(new), allow_nan=False).encode() + b"\n"
            # What an interrupted run left of a line is closed off; its noise was never drawn.
            self._append(file, b"\n" * bool(rest) + line)
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
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
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

    def _parse(self, content: bytes) -> tuple[list[Spending], bytes]:
        """Entries, and a last line that was not finished."""
        *lines, rest = content.split(b"\n")
        entries = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                valid = isinstance(record, dict) and set(record) == set(_FIELDS)
                valid = valid and all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
            except ValueError:
                valid = False
            if valid:
                entries.append(Spending(**record))
            elif not self._unfinished(line):
                raise LedgerError(f"{self.path}: line {number} is not a ledger's; repair it or use another file")
        return entries, rest

    @staticmethod
    def _unfinished(line: bytes) -> bool:
        """Whether this is the beginning of a line that an interrupted run left."""
        return not line or (line.startswith(b'{"database"') and not line.endswith(b"}"))
