"""The directive ``result``: a committed result, as the table or text that its experiment makes of it.

In a page, this shows the table of ``figures/accuracy.json``::

    ```{result} accuracy
    ```

So no number of a result is typed into a page. A page is built again if its result changes.
"""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FIGURES = pathlib.Path(__file__).resolve().parents[2] / "figures"
_PANELS = ("figure1_D2", "figure1_D5", "figure2_D2", "figure2_D5")

# What a page may show: the results in figures/, and the function that makes a table of Markdown of them.
TABLES = {
    "accuracy": (("accuracy",), "experiments.accuracy.subset", "markdown"),
    "accuracy_proposal": (("accuracy_proposal",), "experiments.accuracy.proposal", "markdown"),
    "accuracy_robustness": (("accuracy_robustness",), "experiments.accuracy.robustness", "markdown"),
    "audit": (("audit",), "experiments.audit.run", "markdown"),
    "benchmark": (("benchmark",), "experiments.benchmark.report", "markdown"),
    "merf_gaussians": (("merf_gaussians",), "experiments.merf.gaussians", "markdown"),
    "merf_images_fashion_mnist": (("merf_images_fashion_mnist",), "experiments.merf.images", "markdown"),
    "merf_images_mnist": (("merf_images_mnist",), "experiments.merf.images", "markdown"),
    "security": (("security",), "experiments.security", "markdown"),
    "table_peers": (("tables_adult_pgm",), "experiments.tables.peers", "markdown"),
    "table_peers_headline": (("tables_adult_pgm",), "experiments.tables.peers", "headline"),
    "table_scale": (("table_scale",), "experiments.tables.scale", "markdown"),
    "tables_adult": (("tables_adult",), "experiments.tables.releases", "markdown"),
    "tables_adult_pgm": (("tables_adult_pgm",), "experiments.tables.releases", "markdown"),
    "tables_intrusion": (("tables_intrusion",), "experiments.tables.releases", "markdown"),
}
# The same for plain text. A function of several results takes a list of them.
TEXTS = {
    "figures_curves": (_PANELS, "experiments.figures.report", "table"),
    "figures_best": (_PANELS, "experiments.figures.report", "best_table"),
    "figures_summary": (_PANELS, "experiments.figures.report", "summary"),
}


def files(name: str) -> list[pathlib.Path]:
    """The committed files that a table or text is made from."""
    names, _, _ = (TABLES | TEXTS)[name]
    return [FIGURES / f"{file}.json" for file in names]


def text(name: str) -> str:
    """A table in Markdown, or plain text, made from the committed results."""
    names, module, function = (TABLES | TEXTS)[name]
    results: list[dict[str, Any]] = [json.loads(path.read_text()) for path in files(name)]
    several = names == _PANELS
    return getattr(importlib.import_module(module), function)(results if several else results[0])


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
