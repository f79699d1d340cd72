"""The curator's private record of the budget that was spent on each private database.

The file has one JSON object per line. A line is appended under a lock and flushed to the disk before noise is drawn. So
an interrupted release may be recorded without existing, but a release never exists without being recorded. Only the
owner of the file can read and write it. A line has the time, the budget and the name of the database, and nothing about
the rows. The line of a run that can be interrupted and go on also has a random name of the run. A line may also be a
cap: the most that all releases of a database may spend together.

The curator names the private rows, and the ledger knows them by this name alone. It cannot see that a copy of a file, a
hard link to it, the file under a new name, or another file holds the same rows. So give the same rows one name, and use
one ledger for them.
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
from collections.abc import Iterator, Sequence
from typing import Any

from kme_jax._numerics.short_repr import short_repr
from kme_jax.privacy.budget import ADD_REMOVE_PERSON, RELATIONS, REPLACE_ONE, PrivacyBudget
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.privacy.statement import describe_total, rounded_up
from kme_jax.privacy.totals import LARGEST, OF_ENTRIES, Cap, Entry, total, units_in_words

_FIELDS = {"database": str, "time": str, "epsilon": float, "delta": float, "rho": float, "failure_probability": float}
_OF_CAP = {"database": str, "time": str, "cap_epsilon": float, "cap_delta": float}
_BEGINNING = b'{"database": "'
_UNFINISHED = b" # not finished\n"


REPEAT = "allow_repeat=True"
"""What allows another release of the same rows. The command kme-jax puts its own flag in this place of a message."""

KEY_AND_LEDGER = "spending: a key makes simulated noise, which releases nothing; leave out the key or the ledger"


class LedgerError(ValueError):
    """The ledger cannot be used, or the budget may not be spent."""


@short_repr
@dataclasses.dataclass(frozen=True)
class Ledger:
    """A ledger in an append-only file.

    Attributes:
      path: the path of the file. The first release creates it.

    Examples:
      >>> import pathlib, tempfile
      >>> from kme_jax import Ledger
      >>> ledger = Ledger(pathlib.Path(tempfile.mkdtemp()) / "people.ledger")
      >>> ledger.spent("people")  # nothing yet
      []
    """

    path: pathlib.Path

    def __post_init__(self):
        object.__setattr__(self, "path", pathlib.Path(self.path))

    def spent(self, database: str) -> list[Entry]:
        """All entries of a database, oldest first.

        Raises:
          LedgerError: if the file is not a ledger, or cannot be read.
        """
        return [s for s in self._records() if isinstance(s, Entry) and s.database == database]

    def cap(self, database: str) -> Cap | None:
        """The cap that was set last for a database; None if there is none.

        Raises:
          LedgerError: as :meth:`spent`.
        """
        return _cap_of(self._records(), database)

    def databases(self) -> list[str]:
        """The names of all databases of which there are entries or caps, oldest first.

        Raises:
          LedgerError: as :meth:`spent`.
        """
        return list(dict.fromkeys(record.database for record in self._records()))

    def _records(self) -> list[Entry | Cap]:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened without waiting for its writer
            with os.fdopen(file, "rb") as opened:
                self._check_kind(file)
                return self._parse(opened.read())[0]
        except FileNotFoundError:
            return []
        except IsADirectoryError as error:
            raise LedgerError(f"{self.path}: is not a file") from error
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _check_kind(self, file: int) -> None:
        """Raises LedgerError if the file is a folder, a pipe or a device."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LedgerError(f"{self.path}: is not a file")

    def check(
        self,
        database: str,
        mechanism: Mechanism | Composition | None = None,
        *,
        allow_repeat: bool = False,
        run: str | None = None,
    ) -> None:
        """Checks that :meth:`spend` would succeed, without writing anything. Call it before long work.

        Args:
          database: the name of the private rows.
          mechanism: of the release, for the cap; None if it is not known yet.
          allow_repeat: whether there may be an earlier release of the same rows.
          run: as for :meth:`spend`.

        Raises:
          LedgerError: if the name is empty or not text, or there is an earlier release and ``allow_repeat`` is false,
            or the release would pass the cap, or the ledger cannot be read or written.
        """
        self._check_place(database)
        records = self._records()
        earlier = [s for s in records if isinstance(s, Entry) and s.database == database]
        if mechanism is not None and self._is_recorded(earlier, Entry.of(database, "", mechanism, run)):
            return
        self._refuse_repeat(earlier, database, allow_repeat)
        if mechanism is not None:
            self._refuse_beyond(_cap_of(records, database), [*earlier, Entry.of(database, "", mechanism)])

    def _is_recorded(self, earlier: list[Entry], entry: Entry) -> bool:
        """Whether the run of an entry was recorded before.

        Raises:
          LedgerError: it was recorded with another budget.
        """
        same = [s for s in earlier if entry.run is not None and s.run == entry.run]
        if any(dataclasses.replace(s, time=entry.time) != entry for s in same):
            raise LedgerError(f"{self.path}: this run was recorded with another budget")
        return bool(same)

    def _check_place(self, database: str) -> None:
        if not isinstance(database, str):
            raise LedgerError(f"database: expected text, got {type(database).__name__}")
        if not database:
            raise LedgerError("database: a ledger needs a name for the private rows")
        if "\0" in str(self.path):
            raise LedgerError(f"{self.path}: cannot be opened for writing (null byte in its name)")
        try:
            exists = self.path.exists()
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        if not os.access(self.path if exists else self.path.absolute().parent, os.W_OK):
            raise LedgerError(f"{self.path}: cannot be opened for writing")

    def _refuse_repeat(self, earlier: list[Entry], database: str, allow_repeat: bool) -> None:
        if earlier and not allow_repeat:
            raise LedgerError(
                f'{self.path}: "{database}" was released before, with a total of {describe_total(total(earlier))}; '
                f"to release it again, which adds to the total, use {REPEAT}"
            )

    def _refuse_beyond(self, cap: Cap | None, spendings: list[Entry]) -> None:
        """Raises LedgerError if releases together pass the cap."""
        if cap is not None and not cap.allows(spendings):
            spent = cap.spent(spendings)
            what = f"ε = {rounded_up(spent)}" if math.isfinite(spent) else "no finite ε"
            raise LedgerError(
                f'{self.path}: with this release "{cap.database}" would have {what} at δ = {cap.delta:g} for '
                f"{units_in_words(spendings)}, more than the cap of ε = {cap.epsilon:g}; kme-jax ledger shows what is "
                "left"
            )

    def set_cap(self, database: str, epsilon: float, delta: float) -> Cap:
        """Sets the most that all releases of a database may spend together. A later cap replaces an earlier one.

        Args:
          database: the name of the private rows, chosen by the curator.
          epsilon: the largest ε of the total.
          delta: δ of the total.

        Raises:
          LedgerError: if more than the cap is spent already, or the ledger cannot be read or written.
          ValueError: if ε or δ is out of range.
        """
        budget = PrivacyBudget(epsilon, delta)
        self._check_place(database)
        cap = Cap(database, _now(), budget.epsilon, budget.delta)
        with self._locked() as file:
            records, unfinished = self._read(file)
            spendings = [s for s in records if isinstance(s, Entry) and s.database == database]
            if not cap.allows(spendings):
                spent, at_delta = cap.spent(spendings), f"at δ = {cap.delta:g}"
                what = f"has spent ε = {rounded_up(spent)} {at_delta} already, more than this cap"
                if not math.isfinite(spent):
                    what = f"has no finite ε {at_delta}; set a cap with a larger δ"
                raise LedgerError(f'{self.path}: "{database}" {what}')
            self._add(file, cap.record, unfinished)
        return cap

    @contextlib.contextmanager
    def recorded(self, folder: str | os.PathLike | None = None) -> Iterator[None]:
        """Adds a note to any error or interruption: whether the measurement is saved, or the budget is lost.

        Args:
          folder: the folder in which the measurement is saved, if it is. If the folder exists, nothing is lost.
        """
        try:
            yield
        except BaseException as error:
            if folder is not None and os.path.isdir(folder):
                error.add_note(
                    f"the measurement is saved: kme-jax synthesise {folder} finishes the release and spends no budget"
                )
            else:
                error.add_note(
                    f"the budget is recorded as spent in {self.path}: another try needs {REPEAT}, and adds to the total"
                )
            raise

    def spend(
        self,
        database: str,
        mechanism: Mechanism | Composition,
        *,
        allow_repeat: bool = False,
        run: str | None = None,
    ) -> dict[str, Any]:
        """Records a release that is about to be made, and returns the total with it, see :func:`total`.

        Args:
          database: the name of the private rows, chosen by the curator.
          mechanism: the mechanism, or the composition, of the release.
          allow_repeat: whether there may be an earlier release of the same rows.
          run: the name of a run that can be interrupted and go on; it is new and at random for each release. What was
            recorded for it is not recorded again. None for a release that cannot go on.

        Raises:
          LedgerError: as :meth:`check`, or if the noise is not secure, or states no ρ for δ > 0.
        """
        if not mechanism.secure:
            raise LedgerError("a ledger is for secure noise: simulated noise releases nothing")
        if mechanism.rho is None and mechanism.delta > 0:
            raise LedgerError("a ledger adds up ρ, but this mechanism has δ > 0 and states no ρ")
        if mechanism.relation != REPLACE_ONE and (mechanism.rho is None or mechanism.failure_probability):
            raise LedgerError(f"a ledger needs ρ and a certain sensitivity under {mechanism.relation}")
        self.check(database, mechanism, allow_repeat=allow_repeat, run=run)
        entry = Entry.of(database, _now(), mechanism, run)
        with self._locked() as file:
            records, unfinished = self._read(file)
            earlier = [s for s in records if isinstance(s, Entry) and s.database == database]
            if self._is_recorded(earlier, entry):
                return total(earlier)
            self._refuse_repeat(earlier, database, allow_repeat)
            self._refuse_beyond(_cap_of(records, database), [*earlier, entry])
            try:
                new_total = total([*earlier, entry])
            except ValueError as error:
                raise LedgerError(f"{self.path}: {error}") from error
            self._add(file, entry.record, unfinished)
        return new_total

    def _read(self, file: int) -> tuple[list[Entry | Cap], bytes]:
        """:meth:`_parse` of an open file."""
        return self._parse(b"".join(iter(lambda: os.read(file, 1 << 20), b"")))

    def _add(self, file: int, record: dict[str, Any], unfinished: bytes) -> None:
        """Appends a line, and flushes it to the disk.

        An interrupted run may have left an unfinished line. A mark ends it. Its noise was never drawn.
        """
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        self._append(file, (_UNFINISHED if unfinished else b"") + line)
        self._flush_folder()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The descriptor of the file, for reading and appending. A lock keeps other processes out."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        try:
            self._check_kind(file)
            with contextlib.suppress(PermissionError):  # only the owner of a file can change its permissions
                os.fchmod(file, 0o600)
            import fcntl  # here, because systems without POSIX do not have it

            fcntl.flock(file, fcntl.LOCK_EX)
            if not self._is_at_path(file):
                raise LedgerError(f"{self.path}: was replaced or removed while it was opened; try again")
            yield file
        except ModuleNotFoundError as error:
            raise LedgerError("a ledger needs a system with POSIX file locks") from error
        finally:
            os.close(file)

    def _is_at_path(self, file: int) -> bool:
        """Whether the open file is still the one of this path. What is written to another one, nobody reads again."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _append(self, file: int, data: bytes) -> None:
        try:
            written = os.write(file, data)
            if written != len(data):
                raise LedgerError(f"{self.path}: cannot be written: the disk is full")
            os.fsync(file)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _flush_folder(self) -> None:
        """Flushes the folder of the file to the disk, so that a new file exists after a power failure."""
        descriptor = os.open(self.path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be written ({error.strerror})") from error
        finally:
            os.close(descriptor)

    def _parse(self, content: bytes) -> tuple[list[Entry | Cap], bytes]:
        """The entries and caps, and the last line if it is unfinished (else b"").

        A line may be incomplete only if it is the last of the file, or ends with the mark of unfinished lines, which
        was written before the next line. A complete record counts, with or without a line break after it.

        Raises:
          LedgerError: if another line is not a record.
        """
        lines, records, unfinished = content.split(b"\n"), [], b""
        for number, line in enumerate(lines, 1):
            record, is_last = _record_of(line), number == len(lines)
            if record is not None:
                records.append(record)
                unfinished = line if is_last else unfinished
            elif is_last and (_BEGINNING.startswith(line[: len(_BEGINNING)])):
                unfinished = line
            elif not line.endswith(_UNFINISHED.rstrip(b"\n")):
                raise LedgerError(
                    f"{self.path}: line {number} is not a line of a ledger; is it the ledger at all, such as "
                    "rows.csv.ledger? Then repair it, or use another file"
                )
        return records, unfinished


def _now() -> str:
    """The time, in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cap_of(records: Sequence[Entry | Cap], database: str) -> Cap | None:
    """The last cap of a database; None if there is none."""
    caps = [record for record in records if isinstance(record, Cap) and record.database == database]
    return caps[-1] if caps else None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dictionary. Raises ValueError if a key appears twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key appears twice")
    return record


def _record_of(line: bytes) -> Entry | Cap | None:
    """The entry or the cap of a line, or None if the line is no record. The mark of unfinished lines may follow, or a
    prefix of it."""
    with contextlib.suppress(ValueError, RecursionError):
        text = line.decode()
        record, end = json.JSONDecoder(object_pairs_hook=_unique_keys).raw_decode(text)
        only_mark_follows = _UNFINISHED.decode().startswith(text[end:])
        if only_mark_follows and isinstance(record, dict) and set(record) == set(_OF_CAP):
            if all(isinstance(record[name], kind) for name, kind in _OF_CAP.items()):
                budget = PrivacyBudget(record["cap_epsilon"], record["cap_delta"])
                return Cap(record["database"], record["time"], budget.epsilon, budget.delta)
        elif only_mark_follows and isinstance(record, dict) and set(record) - set(OF_ENTRIES) == set(_FIELDS):
            numbers = [value for value in record.values() if isinstance(value, float)]
            types_match = all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
            types_match &= "relation" not in record or record["relation"] in RELATIONS[1:]
            types_match &= isinstance(record.get("discreteness", 1.0), float)
            types_match &= all(isinstance(record.get(name, ""), str) for name in ("person", "run"))
            if types_match and all(0 <= number < LARGEST for number in numbers):
                entry = Entry(**record)
                tau = 0.5 if entry.discreteness is None else entry.discreteness
                valid = entry.epsilon > 0 and entry.rho > 0 and entry.delta < 1 and 0 < tau < 1
                valid = valid and (entry.delta > 0 or (entry.discreteness is None and entry.relation == REPLACE_ONE))
                valid = valid and (entry.relation == ADD_REMOVE_PERSON) == bool(entry.person)
                return entry if valid else None
    return None


@short_repr
@dataclasses.dataclass(frozen=True)
class Spending:
    """The ledger that records the budget of a release, and the name of its private rows.

    Attributes:
      ledger: the curator's ledger.
      database: the name of the private rows in the ledger.
      allow_repeat: whether rows of that name may have been released before. The budgets of all releases add up.

    Examples:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> from kme_jax import Gaussian, Ledger, PrivacyBudget, Spending, measure
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> spending = Spending(Ledger(pathlib.Path(tempfile.mkdtemp()) / "people.ledger"), "people")
      >>> measured = measure(rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5), spending=spending)
      >>> len(spending.ledger.spent("people"))
      1
      >>> measure(rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5), spending=spending)
      Traceback (most recent call last):
      kme_jax.privacy.ledger.LedgerError: ...
    """

    ledger: Ledger
    database: str
    allow_repeat: bool = False

    def check(self, mechanism: Mechanism | Composition | None = None, *, run: str | None = None) -> None:
        """See ``Ledger.check``."""
        self.ledger.check(self.database, mechanism, allow_repeat=self.allow_repeat, run=run)

    def spend(self, mechanism: Mechanism | Composition, *, run: str | None = None) -> dict[str, Any]:
        """See ``Ledger.spend``."""
        return self.ledger.spend(self.database, mechanism, allow_repeat=self.allow_repeat, run=run)

    def recorded(self, folder: str | os.PathLike | None) -> contextlib.AbstractContextManager[None]:
        """See ``Ledger.recorded``."""
        return self.ledger.recorded(folder)
