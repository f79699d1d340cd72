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
    settings = (config["dataset"], result["num_rows"], config["gamma"], config["delta"], config["data_seed"])
    same = settings == (None, 100_000, 1e-4 / config["dim"], 1e-6, 0) and config["proposal_scale"] == 500
    return panel if same else None
