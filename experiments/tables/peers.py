"""Releases of adult_pgm beside those of other systems, as a table.

Other systems that ran beside our releases are in the results. More are in ``peers.json``. They were measured outside of
this project, with one seed each.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.tables.live_peers import PEERS
from kme_jax.privacy.budget import REPLACE_ONE

QUOTED = pathlib.Path(__file__).with_name("peers.json")
EPSILON = 1.0  # at which the other systems were run
# The number of digits is that of the other systems' results.
_COLUMNS = {
    "1-way": ("tv1", "1-way", 3),
    "2-way": ("tv2", "2-way", 3),
    "3-way": ("tv3", "3-way", 3),
    "AUC, gradient boosting": ("auc_gradient_boosting", "auc gradient_boosting", 3),
    "F1, gradient boosting": ("f1_gradient_boosting", "f1 gradient_boosting", 3),
    "AUC, logistic regression": ("auc_logistic_regression", "auc logistic_regression", 3),
    "AUC, random forest": ("auc_random_forest", "auc random_forest", 3),
    "seconds": ("seconds", "seconds", 0),
}
HEADLINE = ("1-way", "2-way", "3-way", "AUC, gradient boosting", "seconds")


def read_peers() -> dict[str, Any]:
    """The results of the other systems: "about" says how they were measured, "rows" has one entry for each system."""
    return json.loads(QUOTED.read_text())


def markdown(results: Sequence[dict[str, Any]], columns: tuple[str, ...] = tuple(_COLUMNS)) -> str:
    """Releases at ε = 1 beside the real rows and other systems, as a table of Markdown.

    Args:
      results: of ``experiments.tables.releases`` for adult_pgm, one for each relation.
      columns: the titles of the columns that are shown.

    Raises:
      ValueError: if a result is of another data set, or results have another δ.
    """
    ours, live, deltas, real = [], [], set(), {}
    for result in results:
        if result["config"]["dataset"] != "adult_pgm":
            raise ValueError(f"the other systems were run on adult_pgm, not on {result['config']['dataset']}")
        summary = {(line["source"], line["epsilon"]): line for line in result["summary"]}
        release, real = summary["release", EPSILON], summary["real rows", None]
        deltas.add(release["delta"])
        title = f"**kme_jax {result['environment']['kme_jax']}**, {result['config'].get('relation', REPLACE_ONE)}"
        ours.append(_line(title, _of(release, columns)))
        live += [_line(_title_of(result, line), _of(line, columns)) for line in _live(result)]
    if len(deltas) != 1:
        raise ValueError("the results are for different δ")
    lines = [
        f"| adult_pgm, ε = {EPSILON:g}, δ = {deltas.pop():g} | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
        *ours,
        *live,
    ]
    for peer in read_peers()["rows"]:
        lines.append(_line(peer["method"], [(peer.get(_COLUMNS[c][0]), _COLUMNS[c][2]) for c in columns]))
    lines.append(_line("the real rows", [(real["mean"].get(_COLUMNS[c][1]), _COLUMNS[c][2]) for c in columns]))
    return "\n".join(lines)


def headline(results: Sequence[dict[str, Any]]) -> str:
    """:func:`markdown` with the columns that the README shows."""
    return markdown(results, HEADLINE)


def _of(line: dict[str, Any], columns: tuple[str, ...]) -> list[tuple[float | None, int]]:
    """The values that are shown of a line of a summary, and their digits."""
    return [(line["mean"].get(_COLUMNS[c][1]), _COLUMNS[c][2]) for c in columns]


def _live(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of other systems that ran beside our releases, see ``experiments.tables.live_peers``."""
    return [line for line in result["summary"] if line["source"] in PEERS.values() and line["epsilon"] == EPSILON]


def _title_of(result: dict[str, Any], line: dict[str, Any]) -> str:
    versions = {cell["version"] for cell in result["cells"] if cell["source"] == line["source"] and "version" in cell}
    name = line["source"].replace("dpmm", f"dpmm {', '.join(sorted(versions))}")
    return f"{name}, this machine, seeds: {line['num_seeds']}"


def _line(title: str, values: list[tuple[float | None, int]]) -> str:
    return f"| {title} | {' | '.join('–' if value is None else f'{value:.{digits}f}' for value, digits in values)} |"
