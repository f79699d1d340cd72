"""Docstrings as the library writes them, made ready for reStructuredText.

Docstrings are read in editors and shells too, so they have |B|, k1 * k2 and a_n without backslashes. Here these
characters are escaped, outside of literals, roles, emphasis, and code.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

# What is kept as it is: literals, roles, emphasis, and the bullet of a list.
_KEPT = re.compile(r"``.+?``|:[\w:]+:`[^`]+`|`[^`]+`__?|(?<![\w*])\*\w(?:[^*\n]*\w)?\*(?![\w*])|^\s*\* ")

_AFTER_LITERAL = " -:/'\".,;!?)]}>"


def escaped(line: str) -> str:
    """A line in which |, * and a trailing _ have no meaning in reStructuredText."""
    parts, last = [], 0
    for kept in _KEPT.finditer(line):
        following = line[kept.end() : kept.end() + 1]
        # A literal has to end before a space or a mark: "\\ " is a space of no width.
        gap = "\\ " if following and kept[0].endswith("`") and following not in _AFTER_LITERAL else ""
        parts += [_escape(line[last : kept.start()]), kept[0], gap]
        last = kept.end()
    return "".join([*parts, _escape(line[last:])])


def _escape(words: str) -> str:
    return re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", re.sub(r"([|*])", r"\\\1", words))


def process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Escapes a docstring in place. Indented code after ``::`` and doctests stay."""
    code_indent: int | None = None  # the indentation of the text before the code
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if code_indent is not None and line.strip() and indent <= code_indent:
            code_indent = None
        doctest = line.lstrip().startswith((">>>", "..."))
        if code_indent is None and not doctest:
            lines[i] = escaped(line)
            if line.rstrip().endswith("::"):
                code_indent = indent


def shorten(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """A signature that says Array for the array of JAX, whose own name is that of a hidden module."""
    return tuple(text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returned))


def setup(app: Sphinx) -> dict[str, Any]:
    """Runs before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", shorten)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
