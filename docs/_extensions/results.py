"""The directive ``result``: a committed result, as the table or text that its experiment makes of it.

In a page, this shows the table of ``figures/accuracy.json``::

    ```{result} accuracy
    ```

So no number of a result is typed into a page. A page is built again if its result changes.
"""

from __future__ import annotations

from typing import Any

from committed import TABLES, TEXTS, files, text
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Result(SphinxDirective):
    """The directive. Its argument is a name in ``TABLES`` or ``TEXTS``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in TABLES | TEXTS:
            raise self.error(f"no result has the name {name}; there are {', '.join(sorted(TABLES | TEXTS))}")
        for path in files(name):
            self.env.note_dependency(str(path))
        if name in TEXTS:
            return [nodes.literal_block(text(name), text(name), language="text")]
        container = nodes.container(classes=["result-table"])
        self.state.nested_parse(StringList(text(name).splitlines(), source=name), self.content_offset, container)
        return [container]


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("result", Result)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
