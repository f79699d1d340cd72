"""The table of experiments.rivals: what ran here, and published figures, which are named as quoted."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from experiments.rivals.config import SOURCES

QUOTED = pathlib.Path(__file__).with_name("quoted.json")
_RELATIONS = {"replace_one": "replace one", "add_remove": "add or remove one"}
_METRICS = {
    "images": {"accuracy": "accuracy"},
    "tables": {"roc": "ROC", "prc": "PRC", "hard_roc": "ROC of labels", "hard_prc": "PRC of labels"},
}
_TITLES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "adult": "Adult"}


def metrics_of(dataset: str) -> dict[str, str]:
    """{metric: its title} of a data set."""
    return _METRICS["tables" if dataset == "adult" else "images"]


def mean_score(cell: dict[str, Any], metric: str) -> float:
    """A metric of a record: the mean over its classifiers."""
    return float(np.mean([scores[metric] for scores in cell["scores"].values()]))


def markdown(result: dict[str, Any]) -> str:
    """Means of the classifiers and of seeds ± standard error, for each source, as a table of Markdown."""
    config = result["config"]
    metrics = metrics_of(config["dataset"])
    lines = [
        f"| {_TITLES[config['dataset']]}, δ = {config['delta']:g} | ε | neighbours | {' | '.join(metrics.values())} "
        "| seeds | steps of the critic | σ | ε by dp-accounting | seconds of training |",
        "|---|---|---|" + "---|" * (len(metrics) + 5),
    ]
    for source, title in SOURCES.items():
        cells = [cell for cell in result["cells"] if cell["source"] == source]
        if cells:
            lines.append(_line(title, cells, metrics, config["epsilon"]))
    for row in json.loads(QUOTED.read_text())["rows"]:
        if row["dataset"] == config["dataset"]:
            values = [f"{row[metric]:.3f}" if metric in row else "–" for metric in metrics]
            epsilon = "–" if row["epsilon"] is None else f"{row['epsilon']:g}"
            title = f"quoted: {row['method']} ({row['source']})"
            lines.append(f"| {title} | {epsilon} | – | {' | '.join(values)} | – | – | – | – | – |")
    return "\n".join(lines)


def _line(title: str, cells: list[dict[str, Any]], metrics: dict[str, str], epsilon: float) -> str:
    values = []
    for metric in metrics:
        of_seeds = np.asarray([mean_score(cell, metric) for cell in cells])
        error = f" ± {of_seeds.std(ddof=1) / len(cells) ** 0.5:.3f}" if len(cells) > 1 else ""
        values.append(f"{of_seeds.mean():.3f}{error}")
    first = cells[0]
    private = "relation" in first
    seconds = np.median([cell["seconds"].get("embedding", 0) + cell["seconds"].get("training", 0) for cell in cells])
    facts = [
        str(len(cells)),
        str(first["steps"]) if "steps" in first else "–",
        f"{first['noise_multiplier']:.2f}" if "noise_multiplier" in first else "–",
        f"{max(cell['verified_epsilon'] for cell in cells):.4f}" if "verified_epsilon" in first else "–",
        f"{seconds:.0f}" if private else "–",
    ]
    relation = _RELATIONS[first["relation"]] if private else "–"
    return (
        f"| {title} | {f'{epsilon:g}' if private else '–'} | {relation} | {' | '.join(values)} | {' | '.join(facts)} |"
    )
