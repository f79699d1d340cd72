"""Where the documentation is, and its code that needs no Sphinx."""

import functools
import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def pages():
    """Paths of all pages in Markdown."""
    return sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)


@functools.cache
def module(path):
    """A module of the documentation, by its path under docs/."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, DOCS / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def committed():
    """What makes tables and texts from the committed results."""
    return module("_extensions/committed.py")
