"""The curator's private record of the budget that was spent on each private database.

The file has one JSON object per line. A line is appended under a lock and flushed to the disk before noise is drawn. So
an interrupted release may be recorded without existing, but a release never exists without being recorded. Only the
owner of the file can read and write it. A line has the time, the budget and the name of the database, and nothing about
the rows.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kme_jax._numerics.short_repr import short_repr
from kme_jax.privacy.budget import RELATIONS, REPLACE_ONE, Relation, steps_between
from kme_jax.privacy.calibration import discrete_epsilon
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.privacy.statement import describe_total

_FIELDS = {"database": str, "time": str, "epsilon": float, "delta": float, "rho": float, "failure_probability": float}
# A relation other than replace_one, and τ if there is one. Earlier versions refuse a ledger with them.
_OPTIONAL = {"relation": str, "discreteness": float}

_LARGEST = 1e100  # a limit of all numbers in a ledger

_BEGINNING = b'{"database": "'
_UNFINISHED = b" # not finished\n"


REPEAT = "allow_repeat=True"
"""What allows another release of the same rows. The command kme-jax puts its own flag in this place of a message."""


class LedgerError(ValueError):
    """The ledger cannot be used, or the budget may not be spent."""


@short_repr
@dataclasses.dataclass(frozen=True)
class Entry:
    """The record of one release.

    Attributes:
      database: the name that the curator gave to the private rows.
      time: the time of the record, in UTC, ISO 8601.
      epsilon: ε.
      delta: δ.
      rho: ρ of zero-concentrated differential privacy; ε²/2 for a pure ε (Bun & Steinke 2016, proposition 1.4).
      failure_probability: the failure probability of the sensitivity, over public randomness.
      relation: which databases are neighbours.
      discreteness: τ of fine discrete Gaussian noise, see ``kme_jax.privacy.calibration.fine_rho``; None for others.
    """

    database: str
    time: str
    epsilon: float
    delta: float
    rho: float
    failure_probability: float
    relation: Relation = REPLACE_ONE
    discreteness: float | None = None

    @property
    def record(self) -> dict[str, str | float]:
        """What a line of the ledger holds."""
        record = dataclasses.asdict(self)
        if self.relation == REPLACE_ONE:
            del record["relation"]
        if self.discreteness is None:
            del record["discreteness"]
        return record

    def under(self, relation: Relation) -> Entry:
        """The same release under a relation.

        Formal guarantee: the release has the ρ of a group under its own relation, see ``steps_between``. τ is a
        property of the noise alone. ε is that of this ρ and τ at δ. Its noise is Gaussian, and its sensitivity cannot
        fail, see :meth:`Ledger.spend`.

        Raises:
          ValueError: if the release has no guarantee under the relation.
        """
        steps = steps_between(self.relation, relation)
        if steps == 1:
            return self
        rho = steps**2 * self.rho
        epsilon = discrete_epsilon(rho, self.delta, self.discreteness)
        return dataclasses.replace(self, epsilon=epsilon, rho=rho, relation=relation)


_TOTAL_FIELDS = ("releases", "rho", "epsilon", "delta", "failure_probability", "pure_epsilons", "at_delta")
_ROUNDING = 2.0**-50  # relative: above the rounding of a few sums and products in float64
_TOLERANCE = 1e-6  # relative: a total is computed again, and another version of SciPy may round differently


def total(spendings: list[Entry]) -> dict[str, Any]:
    """The budget of several releases of the same rows, in the form of the privacy statement.

    Formal guarantee: together the releases are (``epsilon``, ``delta``)-differentially private, and they also are for
    the ε and δ of ``at_delta``. ρ adds up (Bun & Steinke 2016, lemma 1.7); a pure ε has ρ = ε²/2 (proposition 1.4).
    Failure probabilities add up, too (a union bound). If no sensitivity fails, the releases are (ε, δ′)-differentially
    private for δ′ = δ − the failure probabilities, see :func:`composed_epsilon`. All numbers are rounded up.

    Args:
      spendings: the entries of the same rows, oldest first; at least one. The total is for the last relation, in the
        order of ``RELATIONS``, that the guarantees of all of them imply, see :meth:`Entry.under`.

    Returns:
      A dictionary of plain JSON values:

      * "releases": the number of releases.
      * "rho": their ρ.
      * "epsilon", "delta": ε and δ of all of them. δ is the largest δ of any release. The failure probabilities are
        added to it if they are more than half of it.
      * "failure_probability": the sum of the failure probabilities.
      * "pure_epsilons": ε of each release with δ = 0.
      * "at_delta": the "epsilon" of all releases at the "delta" of the last one. It is None if that ε is not finite:
        there are releases with δ > 0, and the last one has δ = 0, or a δ that is not above the failure probabilities.
      * "relation": of the total, unless it is replace_one.
      * "discreteness": Σ τ, if all releases have a τ.

    Raises:
      ValueError: if the total δ is 1 or more, which protects nobody.
    """
    relation = RELATIONS[min(RELATIONS.index(s.relation) for s in spendings)]
    spendings = [s.under(relation) for s in spendings]
    last = spendings[-1]
    rho, failure = math.fsum(s.rho for s in spendings), math.fsum(s.failure_probability for s in spendings)
    pure = [s.epsilon for s in spendings if s.delta == 0]
    delta = max(s.delta for s in spendings)
    delta = delta if delta >= 2 * failure else delta + failure
    if not delta < 1:
        raise ValueError(f"the total delta of all releases is {delta:g}: it must be below 1")
    parts = [s.discreteness for s in spendings if s.discreteness is not None]
    discreteness = math.fsum(parts) if len(parts) == len(spendings) else None
    if len(spendings) == 1:
        epsilon, last_epsilon = last.epsilon, last.epsilon
    else:
        spent = len(spendings), rho, pure, failure
        epsilon, last_epsilon = (composed_epsilon(*spent, d, discreteness) for d in (delta, last.delta))
    return {
        "releases": len(spendings),
        "rho": rho,
        "epsilon": epsilon,
        "delta": delta,
        "failure_probability": failure,
        "pure_epsilons": pure,
        "at_delta": {"epsilon": last_epsilon, "delta": last.delta} if math.isfinite(last_epsilon) else None,
    } | _if_known(relation=None if relation == REPLACE_ONE else relation, discreteness=discreteness)


def _if_known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def composed_epsilon(
    releases: int,
    rho: float,
    pure_epsilons: Sequence[float],
    failure_probability: float,
    delta: float,
    discreteness: float | None = None,
) -> float:
    """ε of several releases of the same rows at a δ, rounded up; inf if no finite ε is valid.

    Formal guarantee: the result is the least ε of this list that is valid. A release with δ = 0 is *pure*.

    * Σ ε of the pure releases, at any δ, if all releases are pure (Dwork & Roth 2014, theorem 3.14).
    * ε of ρ at δ less the failure probabilities (Canonne, Kamath & Steinke 2020, proposition 12). If there is a τ, also
      the ε of continuous noise, see ``kme_jax.privacy.calibration.discrete_epsilon``.
    * Σ ε of the pure releases, plus ε of the ρ of the other releases at δ less the failure probabilities: basic
      composition of (Σ ε, 0) and (ε, δ). The ρ of the other releases is the total ρ less Σ ε²/2, with the rounding of
      the difference added.

    Args:
      releases: the number of releases.
      rho: ρ of all releases.
      pure_epsilons: ε of each pure release.
      failure_probability: the sum of the failure probabilities of the sensitivities.
      delta: δ.
      discreteness: Σ τ; None if a release has no τ.
    """
    pure = math.fsum(pure_epsilons) * (1 + _ROUNDING) if len(pure_epsilons) > 1 else math.fsum(pure_epsilons)
    remaining_delta = delta - failure_probability * (1 + _ROUNDING)
    valid = [pure] if len(pure_epsilons) == releases else []
    if remaining_delta > 0:
        valid.append(discrete_epsilon(rho, remaining_delta, discreteness))
    if remaining_delta > 0 and 0 < len(pure_epsilons) < releases:
        other_rho = rho * (1 + _ROUNDING) - math.fsum(epsilon**2 / 2 for epsilon in pure_epsilons)
        other_epsilon = discrete_epsilon(max(other_rho, rho * _ROUNDING), remaining_delta, None)
        valid.append((pure + other_epsilon) * (1 + _ROUNDING))
    return min(valid, default=math.inf)


def check_total(
    total: Mapping[str, Any],
    epsilon: float,
    delta: float,
    rho: float | None,
    failure_probability: float,
    relation: Relation = REPLACE_ONE,
    discreteness: float | None = None,
) -> None:
    """Checks a total that was read from a file against the statement that contains it.

    Args:
      total: a result of :func:`total`.
      epsilon: ε of the statement, which is that of the last release.
      delta: δ of the statement.
      rho: ρ of the statement; None for Laplace noise. The ledger has the ρ that was reserved, which may be larger.
      failure_probability: the sum of the failure probabilities of the statement's measurements.
      relation: that of the statement.
      discreteness: that of the statement.

    Raises:
      ValueError: if a number does not follow from the rest, up to a relative error of 1e-6, or is less than that of the
        last release alone.
    """
    if not isinstance(total, Mapping) or set(total) - set(_OPTIONAL) != set(_TOTAL_FIELDS):
        raise ValueError(f"total: expected {', '.join(_TOTAL_FIELDS)}")
    of_total = total.get("relation", REPLACE_ONE)
    known = "relation" not in total or of_total in RELATIONS[1:]
    if not known or RELATIONS.index(of_total) > RELATIONS.index(relation):
        raise ValueError("total: the relation does not follow from that of the statement")
    if relation != of_total and rho is not None and delta > 0:
        rho = steps_between(relation, of_total) ** 2 * rho
        epsilon = discrete_epsilon(rho, delta, discreteness)
    releases, pure, at_delta = total["releases"], total["pure_epsilons"], total["at_delta"]
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise ValueError("total: releases must be a whole number, at least 1")
    if not isinstance(pure, list) or len(pure) > releases:
        raise ValueError("total: pure_epsilons must be a list of numbers, at most one for each release")
    if at_delta is not None and not (isinstance(at_delta, Mapping) and set(at_delta) == {"epsilon", "delta"}):
        raise ValueError("total: at_delta must have epsilon and delta, or be null")
    numbers = {name: total[name] for name in ("rho", "epsilon", "delta", "failure_probability")}
    numbers |= {name: total[name] for name in ("discreteness",) if name in total}
    numbers |= {f"pure_epsilons {i}": value for i, value in enumerate(pure)}
    numbers |= {} if at_delta is None else {f"at_delta {name}": value for name, value in at_delta.items()}
    for name, value in numbers.items():
        positive = "epsilon" in name or name in ("rho", "discreteness")
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 if positive else value >= 0):
            raise ValueError(f"total: {name} must be a number{' above 0' if positive else ', at least 0'}")
        below_one = name == "discreteness" or ("delta" in name and "epsilon" not in name)
        if not value < (1 if below_one else _LARGEST):
            raise ValueError(f"total: {name} is too large")

    def follows(name: str, value: float, expected: float) -> None:
        if not math.isclose(value, expected, rel_tol=_TOLERANCE, abs_tol=0.0):
            raise ValueError(f"total: {name} is {value:.9g}, but {expected:.9g} follows from the other numbers")

    def at_least(name: str, least: float) -> None:
        if not numbers[name] >= least * (1 - _TOLERANCE):
            raise ValueError(f"total: {name} is {numbers[name]:.9g}, less than the {least:.9g} of the last release")

    tau = total.get("discreteness")
    if tau is not None:
        if discreteness is None or pure:
            raise ValueError("total: discreteness must be absent, as a release has none")
        at_least("discreteness", discreteness)
    last_rho, all_pure = epsilon**2 / 2 if rho is None else rho, len(pure) == releases
    pure_rho = math.fsum(value**2 / 2 for value in pure)
    if delta == 0:
        if not pure:
            raise ValueError("total: pure_epsilons is empty, but the last release has δ = 0")
        follows("the last of pure_epsilons", pure[-1], epsilon)
    elif all_pure:
        raise ValueError("total: all releases have δ = 0, but the last one has δ > 0")
    at_least("rho", pure_rho + (last_rho if delta else 0.0))
    at_least("delta", delta)
    at_least("failure_probability", failure_probability)
    if all_pure:
        for name, expected in {"rho": pure_rho, "delta": 0.0, "failure_probability": 0.0}.items():
            follows(name, numbers[name], expected)
    elif numbers["delta"] == 0 or numbers["delta"] < numbers["failure_probability"]:
        raise ValueError("total: delta must be positive, and at least failure_probability")
    if releases == 1:
        if relation != of_total:
            raise ValueError("total: the relation of a single release is that of the statement")
        follows("epsilon", numbers["epsilon"], epsilon)
        follows("delta", numbers["delta"], delta)
        spent = 1, numbers["rho"], pure, numbers["failure_probability"]
        expected, least = epsilon, composed_epsilon(*spent, delta, tau)
        if not least <= epsilon * (1 + _TOLERANCE):
            raise ValueError(f"total: rho is {numbers['rho']:.9g}, which is more than epsilon and delta allow")
    else:
        spent = releases, numbers["rho"], pure, numbers["failure_probability"]
        follows("epsilon", numbers["epsilon"], composed_epsilon(*spent, numbers["delta"], tau))
        expected = composed_epsilon(*spent, delta, tau)
    if (at_delta is None) != math.isinf(expected):
        raise ValueError("total: at_delta must be null if and only if no ε is finite at the δ of the last release")
    if at_delta is not None:
        follows("epsilon of at_delta", at_delta["epsilon"], expected)
        follows("delta of at_delta", at_delta["delta"], delta)
        at_least("at_delta epsilon", epsilon)


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
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened without waiting for its writer
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
        """Raises LedgerError if the file is a folder, a pipe or a device."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LedgerError(f"{self.path}: is not a file")

    def check(self, database: str, *, allow_repeat: bool = False) -> None:
        """Checks that :meth:`spend` would succeed, without writing anything. Call it before long work.

        Raises:
          LedgerError: if the name is empty or not text, or there is an earlier release and ``allow_repeat`` is false,
            or the ledger cannot be read or written.
        """
        if not isinstance(database, str):
            raise LedgerError(f"database: expected text, got {type(database).__name__}")
        if not database:
            raise LedgerError("database: a ledger needs a name for the private rows")
        if "\0" in str(self.path):
            raise LedgerError(f"{self.path}: cannot be opened for writing (null byte in its name)")
        self._refuse_repeat(self.spent(database), database, allow_repeat)
        try:
            exists = self.path.exists()
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be opened for writing ({error.strerror})") from error
        if not os.access(self.path if exists else self.path.absolute().parent, os.W_OK):
            raise LedgerError(f"{self.path}: cannot be opened for writing")

    def _refuse_repeat(self, earlier: list[Entry], database: str, allow_repeat: bool) -> None:
        if earlier and not allow_repeat:
            raise LedgerError(
                f'{self.path}: "{database}" was released before, with {describe_total(total(earlier))} in total; '
                f"to release it again, which adds to the total, use {REPEAT}"
            )

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

    def spend(self, database: str, mechanism: Mechanism | Composition, *, allow_repeat: bool = False) -> dict[str, Any]:
        """Records a release that is about to be made, and returns the total with it, see :func:`total`.

        Args:
          database: the name of the private rows, chosen by the curator.
          mechanism: the mechanism, or the composition, of the release.
          allow_repeat: whether there may be an earlier release of the same rows.

        Raises:
          LedgerError: as :meth:`check`, or if the noise is not secure, or states no ρ for δ > 0.
        """
        if not mechanism.secure:
            raise LedgerError("a ledger is for secure noise: simulated noise releases nothing")
        if mechanism.rho is None and mechanism.delta > 0:
            raise LedgerError("a ledger adds up ρ, but this mechanism has δ > 0 and states no ρ")
        if mechanism.relation != REPLACE_ONE and (mechanism.rho is None or mechanism.failure_probability):
            raise LedgerError(f"a ledger needs ρ and a certain sensitivity under {mechanism.relation}")
        self.check(database, allow_repeat=allow_repeat)
        rho = mechanism.epsilon**2 / 2 if mechanism.rho is None else mechanism.rho
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        epsilon, delta, failure = mechanism.epsilon, mechanism.delta, mechanism.failure_probability
        numbers = float(epsilon), float(delta), float(rho), float(failure)
        entry = Entry(database, time, *numbers, mechanism.relation, mechanism.discreteness)
        with self._locked() as file:
            content = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
            entries, unfinished = self._parse(content)
            earlier = [s for s in entries if s.database == database]
            self._refuse_repeat(earlier, database, allow_repeat)
            try:
                new_total = total([*earlier, entry])
            except ValueError as error:
                raise LedgerError(f"{self.path}: {error}") from error
            line = json.dumps(entry.record, allow_nan=False).encode() + b"\n"
            # An interrupted run may have left an unfinished line. A mark ends it. Its noise was never drawn.
            self._append(file, (_UNFINISHED if unfinished else b"") + line)
            self._flush_folder()
        return new_total

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
            yield file
        except ModuleNotFoundError as error:
            raise LedgerError("a ledger needs a system with POSIX file locks") from error
        finally:
            os.close(file)

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

    def _parse(self, content: bytes) -> tuple[list[Entry], bytes]:
        """The entries, and the last line if it is unfinished (else b"").

        A line may be incomplete only if it is the last of the file, or ends with the mark of unfinished lines, which
        was written before the next line. A complete record counts, with or without a line break after it.

        Raises:
          LedgerError: if another line is not a record.
        """
        lines, entries, unfinished = content.split(b"\n"), [], b""
        for number, line in enumerate(lines, 1):
            entry, is_last = _entry(line), number == len(lines)
            if entry is not None:
                entries.append(entry)
                unfinished = line if is_last else unfinished
            elif is_last and (_BEGINNING.startswith(line[: len(_BEGINNING)])):
                unfinished = line
            elif not line.endswith(_UNFINISHED.rstrip(b"\n")):
                raise LedgerError(
                    f"{self.path}: line {number} is not a line of a ledger; repair it or use another file"
                )
        return entries, unfinished


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dictionary. Raises ValueError if a key appears twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key appears twice")
    return record


def _entry(line: bytes) -> Entry | None:
    """The entry of a line, or None if the line is not a record. The mark of unfinished lines may follow, or a prefix
    of it."""
    with contextlib.suppress(ValueError, RecursionError):
        text = line.decode()
        record, end = json.JSONDecoder(object_pairs_hook=_unique_keys).raw_decode(text)
        only_mark_follows = _UNFINISHED.decode().startswith(text[end:])
        if only_mark_follows and isinstance(record, dict) and set(record) - set(_OPTIONAL) == set(_FIELDS):
            numbers = [value for value in record.values() if isinstance(value, float)]
            types_match = all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
            types_match &= "relation" not in record or record["relation"] in RELATIONS[1:]
            types_match &= isinstance(record.get("discreteness", 1.0), float)
            if types_match and all(0 <= number < _LARGEST for number in numbers):
                entry = Entry(**record)
                tau = 0.5 if entry.discreteness is None else entry.discreteness
                valid = entry.epsilon > 0 and entry.rho > 0 and entry.delta < 1 and 0 < tau < 1
                valid = valid and (entry.delta > 0 or entry.discreteness is None)
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

    def check(self) -> None:
        """See ``Ledger.check``."""
        self.ledger.check(self.database, allow_repeat=self.allow_repeat)

    def spend(self, mechanism: Mechanism | Composition) -> dict[str, Any]:
        """See ``Ledger.spend``."""
        return self.ledger.spend(self.database, mechanism, allow_repeat=self.allow_repeat)

    def recorded(self, folder: str | os.PathLike | None) -> contextlib.AbstractContextManager[None]:
        """See ``Ledger.recorded``."""
        return self.ledger.recorded(folder)
