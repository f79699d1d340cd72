"""Text from elsewhere (names in files, paths, what artifacts say), made safe to print."""

from __future__ import annotations


def printable(text: object, *, lines: bool = False) -> str:
    """Text without anything that a terminal would act on: control characters (escape sequences among them), marks that
    change the direction of writing, line separators, unpaired surrogates, and characters that nobody sees. They become
    escapes such as ``\\x1b`` and ``\\u202e``.

    Args:
      text: of any origin.
      lines: whether line breaks stay; only for text whose parts have gone through this already.
    """

    def shown(letter: str) -> str:
        if letter.isprintable() or (lines and letter == "\n"):
            return letter
        return letter.encode("unicode_escape").decode("ascii")

    found = str(text)
    return found if found.isprintable() else "".join(map(shown, found))
