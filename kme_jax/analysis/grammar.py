"""The grammar of questions: mean(income) where age>=65 by sex."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import shown_for

TOTALS = ("count", "sum")
_STATISTIC = re.compile(r"\s*(\w+)\s*\(")
_OTHER_NAMES = {
    **dict.fromkeys(("avg", "average"), "mean(...)"),
    **dict.fromkeys(("std", "stdev", "stddev"), "sd(...)"),
    **dict.fromkeys(("var", "variance"), "sd(...), the square root of the variance"),
    **dict.fromkeys(("prop", "proportion", "fraction", "probability", "p", "pr", "percent"), "share(...)"),
    **dict.fromkeys(("cor", "corr"), "correlation(...)"),
    **dict.fromkeys(("percentile", "q"), "quantile(...)"),
    **dict.fromkeys(("n", "number", "rows", "size", "total"), "count(...)"),
    **dict.fromkeys(("lm", "ols", "regress"), "regression(...)"),
    "min": "quantile(..., 0)",
    "max": "quantile(..., 1)",
}
_REST = re.compile(r"\s*(?:where\s+(.+?))?\s*(?:\s+by\s+(.+?))?\s*$", re.DOTALL | re.IGNORECASE)


@short_repr
class Parts(NamedTuple):
    """The parts of a question.

    Attributes:
      statistic: in small letters.
      inside: what is in its brackets.
      where: the conditions, as one text, or None.
      by: the column of groups, or None.
    """

    statistic: str
    inside: str
    where: str | None
    by: str | None

    @property
    def counts_all(self) -> bool:
        """Whether it is a number of rows without a condition in its brackets."""
        return self.statistic == "count" and self.inside in ("", "*")


def parts_of(text: str, statistics: Sequence[str], examples: str) -> Parts:
    """The parts of a question.

    Args:
      text: the question.
      statistics: those that are known.
      examples: of questions, for the error.

    Raises:
      ValueError: the text cannot be read, its statistic is not known, or there is nothing in its brackets.
    """
    if not isinstance(text, str):
        raise ValueError(f"query: expected text, such as {examples}, got {text!r}")
    match = _STATISTIC.match(text)
    statistic = "" if match is None else match[1].lower()
    rest = None if match is None else _inside(text, match.end())
    if rest is None or statistic not in statistics or not (rest[0] or statistic == "count"):
        raise ValueError(f"query {text!r}: {_what_is_wrong(text, match, statistics, examples)}")
    inside, where, by = rest
    if where is None and by is not None:  # conditions may come last, too
        by, *conditions = re.split(r"\s+where\s+", by, maxsplit=1, flags=re.IGNORECASE)
        where = conditions[0] if conditions else None
    return Parts(statistic, inside, where, by)


def _what_is_wrong(text: str, match: re.Match[str] | None, statistics: Sequence[str], examples: str) -> str:
    """Why a question cannot be read, if its statistic has no brackets or is not known, or its brackets are wrong.

    Args:
      text: the question.
      match: its statistic and the first bracket; None if there are none.
      statistics: those that are known.
      examples: of questions.
    """
    expected = f"expected one of {', '.join(statistics)} with brackets, such as {examples}"
    if match is None:
        return expected
    if match[1].lower() not in statistics:
        meant = _OTHER_NAMES.get(match[1].lower(), "")
        if meant.partition("(")[0] in statistics:
            return f"ask for {meant} instead of {match[1]}"
        near = difflib.get_close_matches(match[1].lower(), statistics, n=1)
        return f"there is no statistic {match[1]}; " + (f"do you mean {near[0]}?" if near else expected)
    if ")" not in text:
        return "a bracket is not closed"
    if _inside(text, match.end()) is None:
        return "after the brackets, expected where and conditions, or by and a column, as in mean(x) where y=1 by z"
    return f"there is nothing in the brackets of {match[1]}; expected a question such as {examples}"


class HasTotal(Protocol):
    """A question that may be about a sum over rows.

    Attributes:
      text: as it was written.
      is_total: whether it is.
    """

    @property
    def text(self) -> str: ...

    @property
    def is_total(self) -> bool: ...


def check_no_total(query: HasTotal) -> None:
    """Refuses a number of rows or a sum, if the population is asked for: it has no number of rows.

    Raises:
      ValueError: see above.
    """
    if query.is_total:
        raise ValueError(
            f"query {query.text!r}: it is about the private rows; ask for a share or a mean of the population"
        )


def _inside(text: str, start: int) -> tuple[str, str | None, str | None] | None:
    """What is in the brackets that begin before ``start``, the conditions, and the column of groups.

    Names and values may have brackets in them. So the brackets end at the first place where those inside are in pairs
    and the rest of the text can be read; at the last place where it can be read if there is none with pairs.
    """
    last = None
    for end in (match.start() for match in re.finditer(r"\)", text[start:])):
        inside, rest = text[start : start + end], _REST.match(text[start + end + 1 :])
        if rest is not None:
            last = inside.strip(), rest[1], rest[2]
            if inside.count("(") == inside.count(")"):
                return last
    return last


def conditions_of(text: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """The conditions that "and" joins. A value may have "and" in it: a condition starts with the name of a column."""
    if not text:
        return ()
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return tuple(re.split(rf"\s+and\s+(?=(?:{known})\s*[=!<>])", text, flags=re.IGNORECASE))


def column_and_quantile(text: str, inside: str) -> tuple[str, float]:
    """The column, and the share of rows below the quantile.

    Raises:
      ValueError: there is no such share.
    """
    name, _, number = inside.rpartition(",")
    try:
        share = float(number)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= 1:
        raise ValueError(f"query {text!r}: expected a share of rows from 0 to 1 after the column, such as 0.9")
    return name.strip(), share


def column_pair(text: str, inside: str, names: Sequence[str]) -> tuple[str, str]:
    """Two columns that a comma separates. Names may have commas.

    Raises:
      ValueError: there are no two columns.
    """
    words = inside.split(",")
    for cut in range(1, len(words)):
        pair = ",".join(words[:cut]).strip(), ",".join(words[cut:]).strip()
        if set(pair) <= set(names) or len(words) == 2:
            return pair
    raise ValueError(f"query {text!r}: expected two columns with a comma between them")


def check_known(text: str, name: str, names: Sequence[str]) -> None:
    """Refuses a column that does not exist.

    Raises:
      ValueError: see above.
    """
    if name in names:
        return
    if re.match(rf"(?:{'|'.join(map(re.escape, names))})\s*[=!<>]", name):
        raise ValueError(f"query {text!r}: {name} is a condition; ask for share({name}) or count({name})")
    column, *arguments = (argument.strip() for argument in name.split(","))
    if arguments and column in names:
        raise ValueError(f"query {text!r}: only {column} may be in the brackets, without {', '.join(arguments)}")
    raise ValueError(f"query {text!r}: there is no column {name!r}, only {shown_for(name, names)}")
