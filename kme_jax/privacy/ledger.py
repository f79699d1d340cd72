"""What has been spent on which private database: the curator's own record, which never leaves the building.

One JSON object per line, appended under a lock and flushed to the disk before noise is drawn: a release that was
interrupted may be recorded and not exist, and never the other way round. The file can be read and written by its owner
alone. It says when, how much, and under which name; nothing of the rows.

A ledger knows rows by the name that the curator gives them. It cannot see that a copy of a file, a hard link to it, the
file under a new name, or the same rows in another file are the same rows. Give them all one name, and one ledger.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kme_jax.privacy.calibration import zcdp_epsilon
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.privacy.statement import describe_total

_FIELDS = {"database": str, "time": str, "epsilon": float, "delta": float, "rho": float, "failure_probability": float}

_LARGEST = 1e100  # of any number in a ledger

_BEGINNING = b'{"database": "'
_UNFINISHED = b" # not finished\n"


class LedgerError(ValueError):
    """A ledger that cannot be used, or a budget that may not be spent."""


@dataclasses.dataclass(frozen=True)
class Entry:
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


_TOTAL_FIELDS = ("releases", "rho", "epsilon", "delta", "failure_probability", "pure_epsilons", "at_delta")
_ROUNDING = 2.0**-50  # relative; above that of a few sums and products in float64
_TOLERANCE = 1e-6  # relative; of a total that is computed again, which another version of SciPy may round otherwise


def total(spendings: list[Entry]) -> dict[str, Any]:
    """The budget of several releases of the same rows, as the privacy statement has it.

    Formal guarantee: together the releases are (``epsilon``, ``delta``)-differentially private, and so they are for the
    ε and δ of ``at_delta``. ρ adds up (Bun & Steinke 2016, lemma 1.7), a pure ε being ε²/2 (proposition 1.4). Failure
    probabilities add up, too (a union bound). Where no sensitivity fails, the releases are ε-differentially private at
    what δ leaves of them, see :func:`composed_epsilon`. All is rounded up.

    Args:
      spendings: of the same rows, oldest first; at least one.

    Returns:
      A dictionary of plain JSON values. "releases": how many. "rho": their ρ. "epsilon" and "delta": of all of them; δ
      is the largest of any release, and the failure probabilities are added to it where they are more than half of it.
      "failure_probability": the sum. "pure_epsilons": ε of the releases with δ = 0. "at_delta": the "epsilon" of all
      releases at the "delta" of the last one, or None where there is no finite one: after releases with δ > 0, the last
      one has δ = 0 or less than the failure probabilities.

    Raises:
      ValueError: the total δ is 1 or more, which protects nobody.
    """
    last = spendings[-1]
    rho, failure = math.fsum(s.rho for s in spendings), math.fsum(s.failure_probability for s in spendings)
    pure = [s.epsilon for s in spendings if s.delta == 0]
    delta = max(s.delta for s in spendings)
    delta = delta if delta >= 2 * failure else delta + failure
    if not delta < 1:
        raise ValueError(f"the total delta of all releases is {delta:g}: it must be below 1")
    if len(spendings) == 1:
        epsilon, there = last.epsilon, last.epsilon
    else:
        epsilon, there = (composed_epsilon(len(spendings), rho, pure, failure, d) for d in (delta, last.delta))
    return {
        "releases": len(spendings),
        "rho": rho,
        "epsilon": epsilon,
        "delta": delta,
        "failure_probability": failure,
        "pure_epsilons": pure,
        "at_delta": {"epsilon": there, "delta": last.delta} if math.isfinite(there) else None,
    }


def composed_epsilon(
    releases: int, rho: float, pure_epsilons: Sequence[float], failure_probability: float, delta: float
) -> float:
    """ε of several releases of the same rows at a δ, rounded up; inf where there is none.

    Formal guarantee: the least of those that are valid.

    * Σ ε of the pure ones, at any δ, if all releases are pure (Dwork & Roth 2014, theorem 3.14).
    * ε of ρ at δ less the failure probabilities (Canonne, Kamath & Steinke 2020, proposition 12).
    * Σ ε of the pure ones, and ε of the other releases' ρ at δ less the failure probabilities: basic composition of
      (Σ ε, 0) and (ε, δ). ρ of the others is what Σ ε²/2 leaves of all of it, with the rounding of the difference
      added.

    Args:
      releases: how many.
      rho: ρ of all of them.
      pure_epsilons: ε of those with δ = 0.
      failure_probability: of the sensitivities, in all.
      delta: δ.
    """
    pure = math.fsum(pure_epsilons) * (1 + _ROUNDING) if len(pure_epsilons) > 1 else math.fsum(pure_epsilons)
    left = delta - failure_probability * (1 + _ROUNDING)
    valid = [pure] if len(pure_epsilons) == releases else []
    if left > 0:
        valid.append(zcdp_epsilon(rho, left))
    if left > 0 and 0 < len(pure_epsilons) < releases:
        others = rho * (1 + _ROUNDING) - math.fsum(epsilon**2 / 2 for epsilon in pure_epsilons)
        valid.append((pure + zcdp_epsilon(max(others, rho * _ROUNDING), left)) * (1 + _ROUNDING))
    return min(valid, default=math.inf)


def check_total(
    total: Mapping[str, Any], epsilon: float, delta: float, rho: float | None, failure_probability: float
) -> None:
    """Checks a total against the statement that it is in: for what is read from a file.

    Args:
      total: as :func:`total` made it.
      epsilon: ε of the statement, the last release's.
      delta: δ of the statement.
      rho: ρ of the statement; None for Laplace noise. The ledger has what was set aside, which may be more.
      failure_probability: the sum of those of the statement's measurements.

    Raises:
      ValueError: something in it does not follow from the rest, up to a relative error of 1e-6, or is less than the
        last release alone.
    """
    if not isinstance(total, Mapping) or set(total) != set(_TOTAL_FIELDS):
        raise ValueError(f"total: expected {', '.join(_TOTAL_FIELDS)}")
    releases, pure, there = total["releases"], total["pure_epsilons"], total["at_delta"]
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise ValueError("total: releases must be a whole number, at least 1")
    if not isinstance(pure, list) or len(pure) > releases:
        raise ValueError("total: pure_epsilons must be a list of at most as many numbers as there are releases")
    if there is not None and not (isinstance(there, Mapping) and set(there) == {"epsilon", "delta"}):
        raise ValueError("total: at_delta must have epsilon and delta, or be null")
    numbers = {name: total[name] for name in ("rho", "epsilon", "delta", "failure_probability")}
    numbers |= {f"pure_epsilons {i}": value for i, value in enumerate(pure)}
    numbers |= {} if there is None else {f"at_delta {name}": value for name, value in there.items()}
    for name, value in numbers.items():
        positive = "epsilon" in name or name == "rho"
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 if positive else value >= 0):
            raise ValueError(f"total: {name} must be a number{' above 0' if positive else ', at least 0'}")
        if not value < (1 if "delta" in name and "epsilon" not in name else _LARGEST):
            raise ValueError(f"total: {name} is too large")

    def follows(name: str, found: float, expected: float) -> None:
        if not math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=0.0):
            raise ValueError(f"total: {name} is {found:.9g}, and {expected:.9g} follows from the rest")

    def at_least(name: str, least: float) -> None:
        if not numbers[name] >= least * (1 - _TOLERANCE):
            raise ValueError(f"total: {name} is {numbers[name]:.9g}, less than {least:.9g} of the last release")

    own_rho, all_pure = epsilon**2 / 2 if rho is None else rho, len(pure) == releases
    pure_rho = math.fsum(value**2 / 2 for value in pure)
    if delta == 0:
        if not pure:
            raise ValueError("total: pure_epsilons is empty, and the last release has δ = 0")
        follows("the last of pure_epsilons", pure[-1], epsilon)
    elif all_pure:
        raise ValueError("total: all releases are pure, and the last one has δ > 0")
    at_least("rho", pure_rho + (own_rho if delta else 0.0))
    at_least("delta", delta)
    at_least("failure_probability", failure_probability)
    if all_pure:
        for name, expected in {"rho": pure_rho, "delta": 0.0, "failure_probability": 0.0}.items():
            follows(name, numbers[name], expected)
    elif numbers["delta"] == 0 or numbers["delta"] < numbers["failure_probability"]:
        raise ValueError("total: delta leaves no room for the failure probabilities")
    if releases == 1:
        follows("epsilon", numbers["epsilon"], epsilon)
        follows("delta", numbers["delta"], delta)
        expected, least = epsilon, composed_epsilon(1, numbers["rho"], pure, numbers["failure_probability"], delta)
        if not least <= epsilon * (1 + _TOLERANCE):
            raise ValueError(f"total: rho is {numbers['rho']:.9g}, which is more than epsilon and delta allow")
    else:
        known = releases, numbers["rho"], pure, numbers["failure_probability"]
        follows("epsilon", numbers["epsilon"], composed_epsilon(*known, numbers["delta"]))
        expected = composed_epsilon(*known, delta)
    if (there is None) != math.isinf(expected):
        raise ValueError("total: at_delta must be null where the last δ leaves no finite ε, and nowhere else")
    if there is not None:
        follows("epsilon of at_delta", there["epsilon"], expected)
        follows("delta of at_delta", there["delta"], delta)
        at_least("at_delta epsilon", epsilon)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """An append-only file.

    Attributes:
      path: of the file; it is made when first needed.
    """

    path: pathlib.Path

    def __post_init__(self):
        object.__setattr__(self, "path", pathlib.Path(self.path))

    def spent(self, database: str) -> list[Entry]:
        """All that is recorded for a database, oldest first.

        Raises:
          LedgerError: the file is not a ledger, or cannot be read.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for who writes to a pipe
            with os.fdopen(file, "rb") as opened:
                self._check_kind(file)
                return [s for s in self._parse(opened.read())[0] if s.database == database]
        except FileNotFoundError:
            return []
        except IsADirectoryError as error:
            raise LedgerError(f"{self.path}: is not a file") from error
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _check_kind(self, file: int) -> None:
        """Raises LedgerError for a folder, a pipe, a device."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LedgerError(f"{self.path}: is not a file")

    def check(self, database: str, *, allow_repeat: bool = False) -> None:
        """Refuses what :meth:`spend` would refuse, without writing anything: for before long work.

        Raises:
          LedgerError: a name that is not text, or is empty; an earlier release and not ``allow_repeat``; a ledger
            that cannot be read or written.
        """
        if not isinstance(database, str):
            raise LedgerError(f"database: expected text, got {type(database).__name__}")
        if not database:
            raise LedgerError("database: a ledger needs a name for the private rows")
        if "\0" in str(self.path):
            raise LedgerError(f"{self.path}: cannot be opened for writing (null byte in its name)")
        self._refuse_again(self.spent(database), database, allow_repeat)
        try:
            exists = self.path.exists()
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        if not os.access(self.path if exists else self.path.absolute().parent, os.W_OK):
            raise LedgerError(f"{self.path}: cannot be opened for writing")

    def _refuse_again(self, earlier: list[Entry], database: str, allow_repeat: bool) -> None:
        if earlier and not allow_repeat:
            raise LedgerError(
                f'{self.path}: "{database}" was released before, with {describe_total(total(earlier))} in all; '
                "to release it once more, and add to what is spent, say so: allow_repeat=True, or --again"
            )

    @contextlib.contextmanager
    def recorded(self, folder: str | os.PathLike | None = None) -> Iterator[None]:
        """Adds to any error, and to an interruption, what became of the budget that is spent.

        Args:
          folder: where the measurement is saved; if it is there, nothing is lost.
        """
        try:
            yield
        except BaseException as error:
            if folder is not None and os.path.isdir(folder):
                error.add_note(f"what was measured is kept: kme-jax synthesise {folder} finishes it and spends nothing")
            else:
                error.add_note(
                    f"the budget is recorded as spent in {self.path}: another try needs --again, and adds to it"
                )
            raise

    def spend(self, database: str, mechanism: Mechanism | Composition, *, allow_repeat: bool = False) -> dict[str, Any]:
        """Records a release that is about to be made, and returns the total with it, see :func:`total`.

        Args:
          database: name of the private rows, of the curator's choice.
          mechanism: of the release.
          allow_repeat: whether there may be an earlier release of the same rows.

        Raises:
          LedgerError: as :meth:`check`; noise that is not secure.
        """
        if not mechanism.secure:
            raise LedgerError("a ledger is for secure noise: simulated noise releases nothing")
        if mechanism.rho is None and mechanism.delta > 0:
            raise LedgerError("a ledger adds up ρ, and this mechanism has none and is for δ > 0")
        self.check(database, allow_repeat=allow_repeat)
        rho = mechanism.epsilon**2 / 2 if mechanism.rho is None else mechanism.rho
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        numbers = (float(v) for v in (mechanism.epsilon, mechanism.delta, rho, mechanism.failure_probability))
        new = Entry(database, time, *numbers)
        with self._locked() as file:
            content = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
            entries, rest = self._parse(content)
            earlier = [s for s in entries if s.database == database]
            self._refuse_again(earlier, database, allow_repeat)
            try:
                added_up = total([*earlier, new])
            except ValueError as error:
                raise LedgerError(f"{self.path}: {error}") from error
            line = json.dumps(dataclasses.asdict(new), allow_nan=False).encode() + b"\n"
            # What an interrupted run left of a line is closed off; its noise was never drawn.
            self._append(file, (_UNFINISHED if rest else b"") + line)
            self._flush_folder()
        return added_up

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file's descriptor, for reading and appending, with other processes kept out."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        try:
            self._check_kind(file)
            with contextlib.suppress(PermissionError):  # of another owner's file, which that owner has to see to
                os.fchmod(file, 0o600)
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

    def _parse(self, content: bytes) -> tuple[list[Entry], bytes]:
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which no key appears twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key appears twice")
    return record


def _entry(line: bytes) -> Entry | None:
    """A record, whatever there is of the mark after it, or None for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        text = line.decode()
        record, end = json.JSONDecoder(object_pairs_hook=_once).raw_decode(text)
        marked = _UNFINISHED.decode().startswith(text[end:])
        if marked and isinstance(record, dict) and set(record) == set(_FIELDS):
            numbers = [value for value in record.values() if isinstance(value, float)]
            kinds = all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
            if kinds and all(0 <= number < _LARGEST for number in numbers):
                entry = Entry(**record)
                return entry if entry.epsilon > 0 and entry.rho > 0 and entry.delta < 1 else None
    return None


@dataclasses.dataclass(frozen=True)
class Spending:
    """Where the budget of a release is taken from, and recorded.

    Attributes:
      ledger: of the curator.
      database: the name of the private rows in it.
      allow_repeat: whether rows of that name may have been released before. What is spent adds up.
    """

    ledger: Ledger
    database: str
    allow_repeat: bool = False

    def check(self) -> None:
        """See ``Ledger.check``."""
        self.ledger.check(self.database, allow_repeat=self.allow_repeat)

    def spend(self, mechanism: Mechanism | Composition) -> dict[str, Any]:
        """See ``Ledger.spend``."""
        return self.ledger.spend(self.database, mechanism, allow_repeat=self.allow_repeat)

    def recorded(self, folder: str | os.PathLike | None) -> contextlib.AbstractContextManager[None]:
        """See ``Ledger.recorded``."""
        return self.ledger.recorded(folder)
