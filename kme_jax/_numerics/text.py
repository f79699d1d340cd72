"""Text from elsewhere (names in files, paths, what artifacts say), made safe to print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MAX_SHOWN, _MAX_LETTERS = 10, 100


def printable(text: object, *, lines: bool = False) -> str:
    """Text without anything that a terminal would act on: control characters (escape sequences among them), marks that
    change the direction of writing, line separators, unpaired surrogates, and characters that nobody sees. They become
    escapes such as ``\\x1b`` and ``\\u202e``.

    Args:
      text: of any origin.
      lines: whether line breaks stay; only for text whose parts have gone through this already.
    """

    def escaped(letter: str) -> str:
        if letter.isprintable() or (lines and letter == "\n"):
            return letter
        return letter.encode("unicode_escape").decode("ascii")

    found = str(text)
    return found if found.isprintable() else "".join(map(escaped, found))


def _short(text: str) -> str:
    """The beginning of a long text, and how long it is."""
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} ({len(text)} characters)"


def shown(names: Sequence[str]) -> str:
    """Some of the names, in one line that a terminal shows as it is: other characters are escaped."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(_short(name if name.isprintable() else repr(name)) for name in names[:_MAX_SHOWN]) + more


def said(value: Any) -> str:
    """Any value of a schema, in one line: the beginning, where it is long or deep."""
    try:
        return _short(repr(value))
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to show"
