"""The papers' own numbers, to print and draw beside ours. None of them is used in a computation."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any


@functools.cache
def _balog2018() -> dict[str, Any]:
    return json.loads(pathlib.Path(__file__).with_name("published.json").read_text())


def published_panel(result: dict[str, Any]) -> dict[str, Any] | None:
    """The numbers behind a published panel of figures 1 and 2 (one random draw), or None if the result has other
    settings."""
    config = result["config"]
    panel = _balog2018().get(f"{result['experiment']}_D{config['dim']}")
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
