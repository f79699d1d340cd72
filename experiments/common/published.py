"""Numbers from the papers, which are printed and drawn beside ours. No computation uses them."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any


@functools.cache
def balog2018() -> dict[str, Any]:
    """Curves of the panels of figures 1 and 2, {panel: {curve: values}}."""
    return json.loads(pathlib.Path(__file__).with_name("published.json").read_text())


def published_panel(result: dict[str, Any]) -> dict[str, Any] | None:
    """The published numbers (one random draw) of the panel that a result of figure 1 or 2 reproduces, or None if its
    settings are not the published ones."""
    config = result["config"]
    panel = balog2018().get(f"{result['experiment']}_D{config['dim']}")
    published = {
        "dataset": None,
        "gamma": 1e-4 / config["dim"],
        "delta": 1e-6,
        "data_seed": 0,
        "proposal_scale": 500,
        "num_features": 10_000,
        "calibration": "classical",
        "diameter": "published",
        "tolerance": 1e-5,
    }
    same = result["num_rows"] == 100_000 and all(config[name] == value for name, value in published.items())
    return panel if same else None
