"""The table of the results of experiments.merf.tables, beside the numbers of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.merf import table_quoted

TITLES = {
    "real": "real rows (not private)",
    "published": "DP-MERF, authors' settings (not private)",
    "private": "DP-MERF, authors' settings, made private",
    "generator": "generator",
    "release_table": "release_table",
}


def is_binary(name: str) -> bool:
    """Whether a data set has two classes. Those of more have F1 in the paper, and no areas."""
    return name not in table_quoted.F1


def mean(cell: dict[str, Any], metric: str) -> float:
    """A metric of a record: the mean over its classifiers."""
    return float(np.mean([scores[metric] for scores in cell["scores"].values()]))


def by_source(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The records of each source that has given rows, in the order of ``TITLES``."""
    scored = [cell for cell in result["cells"] if "failed" not in cell]
    groups = {source: [cell for cell in scored if cell["source"] == source] for source in TITLES}
    return {source: cells for source, cells in groups.items() if cells}


def _shown(cells: list[dict[str, Any]], metric: str) -> str:
    values = np.asarray([mean(cell, metric) for cell in cells])
    return f"{values.mean():.3f}" + (f" ± {values.std(ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else "")


def markdown(results: list[dict[str, Any]]) -> str:
    """All data sets as a table of Markdown: means over classifiers and seeds ± standard errors over seeds.

    Lines of the paper have its numbers. Those of several classes have F1 in the place of areas of labels.
    """
    lines = [
        "| data, source | ROC of labels, or F1 | PRC of labels | ROC | PRC | rows learnt from | seeds "
        "| seconds | MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        name = result["config"]["dataset"]
        first, second = ("hard_roc", "hard_prc") if is_binary(name) else ("f1", None)
        for source, cells in by_source(result).items():
            rows = int(np.median([cell["num_rows"]["learnt from"] for cell in cells]))
            cost = "– | –"
            if source != "real":
                seconds, memory = (np.median([cell[name] for cell in cells]) for name in ("seconds", "peak_bytes"))
                cost = f"{seconds:.0f} | {memory / 2**20:.0f}"
            lines.append(
                f"| {name}, {TITLES[source]} | {_shown(cells, first)} "
                f"| {_shown(cells, second) if second else '–'} | {_shown(cells, 'roc')} | {_shown(cells, 'prc')} "
                f"| {rows} | {len(cells)} | {cost} |"
            )
        failed = [(cell["source"], cell["failed"]) for cell in result["cells"] if "failed" in cell]
        for source, reason in dict.fromkeys(failed):
            seeds = failed.count((source, reason))
            lines.append(f"| {name}, {TITLES[source]} | {reason} | – | – | – | – | {seeds} | – | – |")
        for column, values in table_quoted.quoted(name).items():
            second_text = f"{values[second]:.3f}" if second else "–"
            lines.append(f"| {name}, [H]: {column} | {values[first]:.3f} | {second_text} | – | – | – | 5 | – | – |")
    return "\n".join(lines)
