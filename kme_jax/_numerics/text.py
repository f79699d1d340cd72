"""Text of any origin (names in files, paths, content of folders), made safe to print."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

_MAX_SHOWN, _MAX_LETTERS = 10, 100


def printable(text: object, *, lines: bool = False) -> str:
    """Text without characters that a terminal acts on or that are invisible. They become escapes such as ``\\x1b``.

    These are control characters (also in escape sequences), marks that change the direction of writing, line
    separators, unpaired surrogates, and invisible characters.

    Args:
      text: of any origin.
      lines: whether line breaks are kept. Only for text whose lines were made safe before.
    """

    def escaped(letter: str) -> str:
        if letter.isprintable() or (lines and letter == "\n"):
            return letter
        return letter.encode("unicode_escape").decode("ascii")

    letters = str(text)
    return letters if letters.isprintable() else "".join(map(escaped, letters))


def _short(text: str) -> str:
    """A text, or the beginning of a long text and its length."""
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} ({len(text)} characters)"


def shown(names: Sequence[str]) -> str:
    """The first ten names, and the number of the others, in one line. Unprintable characters are escaped."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(_short(name if name.isprintable() else repr(name)) for name in names[:_MAX_SHOWN]) + more


def shown_for(name: str, names: Sequence[str]) -> str:
    """Names as :func:`shown`, and the one that is spelled most like a name that is not among them."""
    spelled = {other.replace(" ", "").lower(): other for other in reversed(names)}
    alike = difflib.get_close_matches(name.replace(" ", "").lower(), spelled, n=1)
    return shown(names) + (f"; do you mean {shown([spelled[alike[0]]])}?" if alike else "")


def said(value: Any) -> str:
    """Any value of a schema in one line. A long value is cut."""
    try:
        return _short(repr(value))
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to show"
