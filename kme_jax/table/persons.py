"""Persons with several rows: which of their rows are used.

A guarantee for persons needs a bound of how many rows a person has. It holds by a cut: at most k rows of each person
are used. The rule may look at everything of this one person, and at nothing of others. If it did, a person could change
which rows of other people are used.

* A person is all rows with the same id. Blanks around an id do not count, and 7.0 is 7. Other text is compared as it
  is: 7 and 007 are two persons. What an id is depends on its cell alone, and in files and Arrow tables on the type of
  the column.
* Rows without an id are not used: they may be of anybody, so no cut could bound what one person contributes.
* Each row of a person has a rank, in the order of the file. A hash of the id and the rank gives it a number. Rows with
  the k smallest numbers are used. It is like a random choice, and the same in each pass and in each release.

So the choice depends on the id, on how many rows the person has, and on their order. It does not depend on values.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64, UInt64

from kme_jax._numerics.cells import canonical_id
from kme_jax._numerics.short_repr import short_repr

_NO_PERSON = -1
_MOST_WHOLE = 2.0**63
# splitmix64 (Steele, Lea & Flood 2014)
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Persons:
    """The persons of a table. SENSITIVE.

    Attributes:
      used: whether each row is used, [N].
      num_persons: the number of persons.
      num_without: the number of rows without an id.
    """

    used: Bool[np.ndarray, "N"]
    num_persons: int
    num_without: int

    def _in_short(self) -> str:
        return "SENSITIVE"  # counts are not shown: a notebook keeps what it shows, and may be published


def find_persons(ids: Iterable[pa.Array], max_rows: int) -> Persons:
    """The persons of a table, and which of its rows are used. SENSITIVE.

    Formal guarantee: whether a row is used depends on the ids of this row and of those before and after it that are the
    same, and on nothing else. At most ``max_rows`` rows of each id are used.

    Args:
      ids: the column of ids, in pieces.
      max_rows: k, the largest number of rows of one person.

    Raises:
      pa.ArrowException: the type of the column is not of text, numbers or times. No cell raises an error.
    """
    persons, hashes = _numbered(ids)
    order = np.argsort(persons, kind="stable")  # by person, and by rank within each
    order = order[np.searchsorted(persons[order], _NO_PERSON, side="right") :]
    of_person = persons[order]
    counts = np.bincount(of_person, minlength=len(hashes))
    ranks = _within(counts)
    by_number = np.lexsort((_mixed(hashes[of_person] + ranks.astype(np.uint64) * _GOLDEN), of_person))
    used = np.zeros(len(persons), bool)
    used[order[by_number[ranks < max_rows]]] = True
    return Persons(used, len(hashes), len(persons) - len(order))


def _within(counts: Int64[np.ndarray, "persons"]) -> Int64[np.ndarray, "n"]:
    """0, 1, 2, … for each person, one after the other."""
    starts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _mixed(values: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """A hash of 64-bit numbers: the finalizer of splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def _numbered(ids: Iterable[pa.Array]) -> tuple[Int64[np.ndarray, "N"], UInt64[np.ndarray, "persons"]]:
    """The number of the person of each row, [N], −1 for none, and a hash of each id, [persons]."""
    numbers: dict[bytes, int] = {}
    pieces = [np.zeros(0, np.int64)]
    for piece in ids:
        if pa.types.is_dictionary(piece.type):  # a long text may be in many rows, and takes its memory once
            texts, indices = _texts(piece.dictionary), piece.indices
        else:
            encoded = _texts(piece).dictionary_encode()
            texts, indices = encoded.dictionary, encoded.indices
        places = [_NO_PERSON]
        for text in texts.to_pylist():
            text = None if text is None else canonical_id(text)
            places.append(_NO_PERSON if text is None else numbers.setdefault(text, len(numbers)))
        codes = indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        pieces.append(np.asarray(places, np.int64)[codes + 1])
    hashes = np.fromiter(map(_hash, numbers), np.uint64, len(numbers))
    return np.concatenate(pieces), hashes


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def is_of_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds ids. It depends on the type alone, and not on cells."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        _texts(pa.array([], kind))
    except pa.ArrowException:
        return False
    return True


def _texts(ids: pa.Array) -> pa.Array:
    """Ids as bytes; null for a missing one. No id raises an error, and different ids have different bytes.

    Floats without a fraction are written as whole numbers: one missing id turns a column of whole numbers into floats.
    """
    if isinstance(ids, pa.ExtensionArray):
        ids = ids.storage
    kind = ids.type
    if pa.types.is_floating(kind):
        ids = _floats(ids)
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        ids = ids.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if not _is_binary(ids.type):
        ids = ids.cast(pa.large_string())
    return ids.cast(pa.large_binary())


def _floats(ids: pa.Array) -> pa.Array:
    """Floats as text; null for those that are not finite."""
    numbers = ids.cast(pa.float64()).to_numpy(zero_copy_only=False)
    finite = np.isfinite(numbers)
    whole = finite & (np.abs(numbers) < _MOST_WHOLE) & (numbers == np.floor(numbers))
    of_whole = pa.array(np.where(whole, numbers, 0).astype(np.int64), mask=~whole).cast(pa.large_string())
    others = pa.array(numbers, mask=whole | ~finite).cast(pa.large_string())
    return pc.coalesce(of_whole, others)  # pyright: ignore[reportAttributeAccessIssue]


def _is_binary(kind: pa.DataType) -> bool:
    names = ("binary", "large_binary", "fixed_size_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)
