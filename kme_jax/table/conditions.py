"""Conditions on rows, such as age>=65 and (sex=Female or job in (nurse, baker)).

A condition is brought into terms. A row meets it if it meets one of the terms. A term has ranges of codes for some
columns, and may compare columns with each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64, Shaped

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import shown_for
from kme_jax.table.columns import MISSING, Column

_OPERATORS = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARED = re.compile(r"\s*(.+?)\s*(?:>=|<=|!=|==|=|>|<)")
_CONDITION = re.compile(r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*$", re.DOTALL)
_IN = re.compile(r"\s+(not\s+)?in\s*\((.*)\)\s*$", re.DOTALL | re.IGNORECASE)
_MIRROR = re.compile(r"\s*((?:(?!\s(?:and|or)\s)[^<>=!()])+?)\s*(<=|<|>=|>)\s*(?=\S)(?!=)", re.IGNORECASE)
_MOST_TERMS, _MOST_LETTERS, _MOST_SHOWN = 64, 10_000, 200

Ranges = list[tuple[int, int]]


@short_repr
@dataclasses.dataclass(frozen=True)
class Term:
    """Conditions that a row meets all of.

    Attributes:
      ranges: by index of a column, the disjoint ranges of codes [first, last) that are allowed.
      compared: comparisons of columns: the index of a column, the comparison, and the index of another column.
    """

    ranges: Mapping[int, Ranges]
    compared: tuple[tuple[int, str, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no row can meet it, because a column has no code left."""
        return not all(self.ranges.values())

    def met(self, columns: Sequence[Column], codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
        """Which rows meet it, [n].

        Args:
          columns: of the schema.
          codes: of the rows.
        """
        met = np.ones(len(codes), bool)
        for j, ranges in self.ranges.items():
            met &= np.any([(codes[:, j] >= low) & (codes[:, j] < high) for low, high in ranges or [(0, 0)]], axis=0)
        for j, comparison, k in self.compared:
            ours, theirs = (_comparable(columns[i], codes[:, i]) for i in (j, k))
            present = (codes[:, j] < columns[j].num_values) & (codes[:, k] < columns[k].num_values)
            met &= present & _OPERATORS[comparison](ours, theirs)
        return met

    def both(self, other: Term) -> Term:
        """What rows meet that meet this term and the other one."""
        ranges = dict(self.ranges)
        for j, allowed in other.ranges.items():
            ranges[j] = _intersection(ranges[j], allowed) if j in ranges else list(allowed)
        return Term(ranges, tuple(dict.fromkeys((*self.compared, *other.compared))))


def terms_of(columns: Sequence[Column], conditions: Sequence[str]) -> list[Term]:
    """The terms of conditions that a row has to meet all of. There is at least one, which may be empty.

    Args:
      columns: of the schema.
      conditions: such as "age>=65" or "age>=65 and (sex=Female or end>begin)", see ``TableRelease.sample``.

    Raises:
      ValueError: a condition cannot be read, or has too many alternatives.
    """
    if not isinstance(conditions, Iterable):
        raise ValueError(f"conditions: expected text such as age>=65, got a {type(conditions).__name__}")
    terms = [Term({})]
    for text in conditions:
        if not isinstance(text, str):
            raise ValueError(f"condition: expected text such as age>=65, got a {type(text).__name__}")
        if len(text) > _MOST_LETTERS:
            raise ValueError(f"condition: it has {len(text)} letters, and at most {_MOST_LETTERS} are read")
        try:
            terms = _all_of(text, [terms, _terms(columns, text.strip())])
        except RecursionError:
            raise ValueError("condition: it has too many brackets within brackets") from None
    return terms


def ranges_of(columns: Sequence[Column], conditions: Sequence[str]) -> dict[int, Ranges]:
    """By index of a column, the ranges of codes [first, last) that meet all conditions.

    Args:
      columns: of the schema.
      conditions: as for :func:`terms_of`. If columns are compared, or alternatives are about different columns, there
        are no such ranges.

    Raises:
      ValueError: a condition cannot be read, or there are no such ranges.
    """
    terms = terms_of(columns, conditions)
    if len(terms) > 1 or terms[0].compared:
        what = "two columns are compared" if any(term.compared for term in terms) else "or joins different columns"
        text = " and ".join(conditions)
        raise ValueError(f"condition {text!r}: {what}, which a sample of rows can tell alone (kme-jax sample --where)")
    return {j: list(ranges) for j, ranges in terms[0].ranges.items()}


def _all_of(text: str, parts: Sequence[list[Term]]) -> list[Term]:
    terms = [Term({})]
    for part in parts:
        if len(terms) * len(part) > _MOST_TERMS**2 // 8:
            raise ValueError(f"condition {_shown(text)}: it has too many alternatives")
        terms = _simplified(text, [one.both(other) for one in terms for other in part])
    return terms


def _shown(text: str) -> str:
    """A text for an error, cut if it is long."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def _simplified(text: str, terms: list[Term]) -> list[Term]:
    """The same terms. Those that differ in one column are one term, and empty ones are left out if there are others.

    Raises:
      ValueError: there are too many.
    """
    kept, merged = [term for term in terms if not term.is_empty] or terms[:1], True
    if len(kept) > _MOST_TERMS**2 // 8:
        raise ValueError(f"condition {_shown(text)}: it has too many alternatives")
    while merged:
        merged = False
        for first, second in itertools.combinations(range(len(kept)), 2):
            union = _union(kept[first], kept[second])
            if union is not None:
                kept = [*kept[:first], union, *kept[first + 1 : second], *kept[second + 1 :]]
                merged = True
                break
    if len(kept) > _MOST_TERMS:
        raise ValueError(f"condition {_shown(text)}: it has more than {_MOST_TERMS} alternatives")
    return kept


def _union(one: Term, other: Term) -> Term | None:
    """A term for what meets one or the other; None if there is none."""
    if one.compared != other.compared or one.ranges.keys() != other.ranges.keys():
        return None
    different = [j for j, ranges in one.ranges.items() if ranges != other.ranges[j]]
    if len(different) > 1:
        return None
    return Term({**one.ranges, **{j: _joined([*one.ranges[j], *other.ranges[j]]) for j in different}}, one.compared)


def _joined(ranges: Ranges) -> Ranges:
    """The same codes as disjoint ranges, in order."""
    joined: Ranges = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        elif low < high:
            joined.append((low, high))
    return joined


def _intersection(one: Ranges, other: Ranges) -> Ranges:
    both = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return _joined([(low, high) for low, high in both if low < high])


def _terms(columns: Sequence[Column], text: str) -> list[Term]:
    """The terms of a text.

    A value may have the words "and" and "or", and brackets, in it. So a text that can be read as one condition is one.
    These words join conditions where the text after them begins like a condition.
    """
    try:
        return [_condition(columns, text)]
    except ValueError as error:
        failed = error
    if text.startswith("(") and _closing(text) == len(text) - 1:
        return _terms(columns, text[1:-1].strip())
    if text.count("(") != text.count(")"):
        raise ValueError(f"condition {_shown(text)}: its brackets are not in pairs")
    for word in ("or", "and"):
        parts = list(_split(columns, text, word))
        if len(parts) > 1:
            terms = [_terms(columns, part) for part in parts]
            either = [term for part in terms for term in part]
            return _simplified(text, either) if word == "or" else _all_of(text, terms)
    raise failed


def _split(columns: Sequence[Column], text: str, word: str) -> Iterator[str]:
    """The parts of a text between a word, outside of brackets."""
    start = 0
    for match in re.finditer(rf"\s+{word}\s+", text, re.IGNORECASE):
        if _is_outside(text, match.start()) and _begins(columns, text[match.end() :]):
            yield text[start : match.start()].strip()
            start = match.end()
    yield text[start:].strip()


def _is_outside(text: str, place: int) -> bool:
    """Whether a place is outside of brackets."""
    return text.count("(", 0, place) == text.count(")", 0, place)


def _closing(text: str) -> int:
    """The place of the bracket that closes the first one; −1 if none does."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    return -1


def _begins(columns: Sequence[Column], text: str) -> bool:
    """Whether a text begins like a condition."""
    text = text.lstrip("( \t\n")
    mirror = _MIRROR.match(text)
    after = "" if mirror is None else text[mirror.end() :]
    return _parts(columns, text) is not None or any(after.startswith(column.name) for column in columns)


def _parts(columns: Sequence[Column], text: str) -> tuple[int, str] | None:
    """The column that a text begins with, and the rest of the text, which is a comparison; None if there is none.

    Names may contain any characters. So the longest name is taken that is followed by a comparison.
    """
    text = text.strip()
    rests = [(j, text[len(c.name) :]) for j, c in enumerate(columns) if text.startswith(c.name)]
    found = [(j, rest) for j, rest in rests if _CONDITION.match(rest) or re.match(r"\s+(not\s+)?in\s*\(", rest, re.I)]
    return max(found, key=lambda parts: len(columns[parts[0]].name), default=None)


def _condition(columns: Sequence[Column], text: str) -> Term:
    """The term of one condition."""
    parts = _parts(columns, text)
    if parts is None:
        mirror = _MIRROR.match(text)
        if mirror is not None:  # the value comes first: 18<=age, or 18<=age<65
            after = text[mirror.end() :].strip()
            inner, names = _parts(columns, after), [column.name for column in columns]
            if after in names:
                return _comparison(columns, names.index(after), _MIRRORED[mirror[2]], mirror[1], text)
            if inner is not None:
                first = _comparison(columns, inner[0], _MIRRORED[mirror[2]], mirror[1], text)
                return first.both(_condition(columns, after))
        unknown, names = _COMPARED.match(text), [column.name for column in columns]
        if unknown:
            time = f"{unknown[1].removesuffix(' hour')} time"
            if unknown[1].endswith(" hour") and time in names:
                raise ValueError(f"condition {text!r}: hours are groups (by {unknown[1]}); here, ask for {time}")
            raise ValueError(
                f"condition {text!r}: there is no column {unknown[1]!r}, only {shown_for(unknown[1], names)}"
            )
        remedy = "age>=65 or job=missing"
        raise ValueError(f"condition {text!r}: expected a column, one of = != < <= > >=, and a value: {remedy}")
    j, rest = parts
    listed = _IN.match(rest)
    if listed is None:
        match = _CONDITION.match(rest)
        if match is None:
            raise ValueError(f"condition {text!r}: a bracket is not closed")
        return _comparison(columns, j, match[1], match[2], text)
    values = _values(listed[2])
    if not values:
        raise ValueError(f"condition {text!r}: expected values in the brackets, such as {columns[j].name} in (1, 2)")
    allowed = _joined([r for value in values for r in _ranges(columns[j], "=", value, text)])
    return Term({j: _others(allowed, columns[j].num_codes) if listed[1] else allowed})


def _others(ranges: Ranges, num_codes: int) -> Ranges:
    edges = [0, *(code for both in ranges for code in both), num_codes]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def _values(text: str) -> list[str]:
    """The values of a list, which commas separate. A value with a comma is in quotes."""
    return [match[0].strip() for match in re.finditer(r"\s*(?:\"[^\"]*\"|'[^']*'|[^,])+", text) if match[0].strip()]


def _comparison(columns: Sequence[Column], j: int, comparison: str, value: str, text: str) -> Term:
    """The term of a comparison with a value; or with another column, if there is no such value."""
    try:
        return Term({j: _ranges(columns[j], comparison, value, text)})
    except ValueError:
        names = [column.name for column in columns]
        if value not in names:
            raise
    k = names.index(value)
    ours, theirs = columns[j], columns[k]
    ordered = {column.kind for column in (ours, theirs)} in ({"numeric"}, {"datetime"})
    if j == k or (not ordered and (comparison not in ("=", "==", "!=") or ours.ordered or theirs.ordered)):
        raise ValueError(f"condition {text!r}: {ours.name} and {theirs.name} cannot be compared in this way")
    if not ordered and not set(_texts_of(ours)) & set(_texts_of(theirs)):
        raise ValueError(f"condition {text!r}: {ours.name} and {theirs.name} have no value in common")
    return Term({}, ((j, comparison, k),))


def _texts_of(column: Column) -> list[str]:
    return column.decode(np.arange(column.num_values)).cast(pa.string()).to_pylist()


def _ranges(column: Column, comparison: str, value: str, text: str) -> Ranges:
    """The ranges of codes of one comparison with a value. A value may have quotes around it."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if comparison not in ("=", "==", "!=") and (not column.ordered or value == MISSING):
        raise ValueError(f"condition {text!r}: values of {column.name} have no order; use = or !=")
    try:
        return _ranges_of_comparison(column, comparison, value)
    except ValueError as error:
        if is_quoted:
            with contextlib.suppress(ValueError):
                return _ranges_of_comparison(column, comparison, value[1:-1])
        if comparison == "=" and value[:1] in ("<", ">") and column.ordered:
            raise ValueError(f"condition {text!r}: write {column.name}{value[0]}={value[1:].strip()}") from None
        hint = f"; {column.name}={MISSING} asks for missing cells" if column.nullable else ""
        raise ValueError(f"condition {text!r}: {error}{hint}") from None


def _ranges_of_comparison(column: Column, comparison: str, value: str) -> Ranges:
    """The ranges of codes [first, last) of one comparison with a value."""
    if comparison in ("=", "==", "!="):
        code = column.code(value)
        return _others([(code, code + 1)], column.num_codes) if comparison == "!=" else [(code, code + 1)]
    below, until = column.below(value)
    last = column.num_values
    low, high = {"<": (0, below), "<=": (0, until), ">=": (below, last), ">": (until, last)}[comparison]
    return [(low, high)] if low < high else []


def _comparable(column: Column, codes: Int64[np.ndarray, "n"]) -> Shaped[np.ndarray, "n"]:
    """What codes stand for, so that it can be compared with another column of the same kind, [n]."""
    values: Any = column.decode(codes)
    if column.kind == "numeric":
        return values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    if column.kind == "datetime":
        return values.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(values.cast(pa.string()).fill_null("").to_pylist(), object)
