"""The tables and texts that pages show, made from the committed results in ``figures/``."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

FIGURES = pathlib.Path(__file__).resolve().parents[2] / "figures"
_RELATIONS = ("tables_adult_pgm", "tables_adult_pgm_add_remove")
_EIGHT = tuple(
    f"merf_tables_{name}"
    for name in ("adult", "census", "cervical", "credit", "epileptic", "isolet", "covtype", "intrusion")
)
_PANELS = tuple(sorted(path.stem for path in FIGURES.glob("figure*_D*.json")))  # of the figures of the catalogue

# What a page may show: the results in figures/, and the function that makes a table of Markdown of them.
TABLES = {
    "accuracy": (("accuracy",), "experiments.accuracy.subset", "markdown"),
    "accuracy_proposal": (("accuracy_proposal",), "experiments.accuracy.proposal", "markdown"),
    "accuracy_robustness": (("accuracy_robustness",), "experiments.accuracy.robustness", "markdown"),
    "audit": (("audit",), "experiments.audit.run", "markdown"),
    "benchmark_cpu": (("benchmark_cpu",), "experiments.benchmark.report", "markdown"),
    "benchmark_gpu": (("benchmark_nvidia_h200",), "experiments.benchmark.report", "markdown"),
    "distributed": (("distributed",), "experiments.distributed", "markdown"),
    "distributed_engines": (("distributed",), "experiments.distributed", "engines_markdown"),
    "mechanisms": (("mechanisms",), "experiments.mechanisms", "markdown"),
    "merf_gaussians": (("merf_gaussians",), "experiments.merf.gaussians", "markdown"),
    "merf_images_fashion_mnist": (("merf_images_fashion_mnist",), "experiments.merf.images", "markdown"),
    "merf_images_mnist": (("merf_images_mnist",), "experiments.merf.images", "markdown"),
    "merf_cnn_mnist": (("merf_cnn_mnist",), "experiments.merf.cnn", "markdown"),
    "merf_cnn_fashion_mnist": (("merf_cnn_fashion_mnist",), "experiments.merf.cnn", "markdown"),
    "merf_rare_mnist": (("merf_rare_mnist",), "experiments.merf.rare", "markdown"),
    "merf_tables": (_EIGHT, "experiments.merf.table_report", "markdown"),
    "rates": (("rates",), "experiments.rates.slopes", "markdown"),
    **{
        f"rivals_{name}": ((f"rivals_{name}",), "experiments.rivals.report", "markdown")
        for name in ("mnist", "fashion_mnist", "adult")
    },
    "security": (("security",), "experiments.security", "markdown"),
    "streams": (("streams",), "experiments.streams", "markdown"),
    "shift": (("shift",), "experiments.shift.report", "markdown"),
    "shift_break_even": (("shift",), "experiments.shift.report", "break_even_markdown"),
    "table_peers": (_RELATIONS, "experiments.tables.peers", "markdown"),
    "table_peers_headline": (_RELATIONS, "experiments.tables.peers", "headline"),
    "table_scale": (("table_scale",), "experiments.tables.scale", "markdown"),
    "table_throughput": (("table_throughput",), "experiments.tables.throughput", "markdown"),
    "table_throughput_turns": (("table_throughput",), "experiments.tables.throughput", "comparison_markdown"),
    **{
        f"{kind}_{name}": ((f"tables_{name}",), "experiments.tables.numbers", f"{kind}_markdown")
        for kind in ("columns", "pairs")
        for name in ("adult_pgm", "adult_pgm_add_remove", "census", "cervical", "covtype", "credit")
    },
    "groups_adult_pgm": (("tables_adult_pgm",), "experiments.tables.numbers", "groups_markdown"),
    "tables_planned": (("tables_planned",), "experiments.tables.planned", "markdown"),
    "tables_bias": (("tables_bias",), "experiments.tables.bias", "markdown"),
    "tables_adult": (("tables_adult",), "experiments.tables.releases", "markdown"),
    "tables_adult_pgm": (("tables_adult_pgm",), "experiments.tables.releases", "markdown"),
    **{
        f"tables_{name}": ((f"tables_{name}",), "experiments.tables.releases", "markdown")
        for name in ("adult_pgm_add_remove", "census", "cervical", "covtype", "credit")
    },
    "inference_coverage": (("inference_coverage",), "experiments.inference.coverage", "markdown"),
    "inference_coverage_heaped": (("inference_coverage_heaped",), "experiments.inference.coverage", "markdown"),
    "inference_coverage_two_columns": (
        ("inference_coverage_two_columns",),
        "experiments.inference.coverage",
        "markdown",
    ),
    "inference_distance": (("inference_detection",), "experiments.inference.detection", "distance_markdown"),
    "inference_level": (("inference_detection",), "experiments.inference.detection", "level_markdown"),
    "inference_power": (("inference_detection",), "experiments.inference.detection", "power_markdown"),
    "tables_constrained": (("tables_constrained",), "experiments.tables.constrained", "markdown"),
    "tables_coverage": (("tables_coverage",), "experiments.tables.coverage", "markdown"),
    "tables_coverage_adult": (("tables_coverage_adult",), "experiments.tables.coverage", "markdown"),
    "tables_exclusive": (("tables_hard",), "experiments.tables.hard", "exclusive_markdown"),
    "tables_few": (("tables_hard",), "experiments.tables.hard", "few_markdown"),
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
    takes_all = names in (_PANELS, _RELATIONS, _EIGHT)
    return getattr(importlib.import_module(module), function)(results if takes_all else results[0])
