"""Statistics of distances over draws of the noise, or over repeats: what the curves show."""

from __future__ import annotations

from typing import Any

import numpy as np


def percentiles_of_draws(distances: np.ndarray) -> dict[str, list[float]]:
    """Mean, root mean square, and the 0.5 and 99.5 percentiles over draws, for distances [draws, M]."""
    low, high = np.percentile(distances, [0.5, 99.5], axis=0)
    rms = np.sqrt(np.mean(np.square(distances), axis=0))
    return {"mean": distances.mean(axis=0).tolist(), "rms": rms.tolist(), "low": low.tolist(), "high": high.tolist()}


def range_of_repeats(distances: np.ndarray) -> dict[str, Any]:
    """Mean, root mean square and range over repeats, and each repeat's least over M, for distances [repeats, M]."""
    rms = np.sqrt(np.mean(np.square(distances), axis=0))
    return {
        "mean": distances.mean(axis=0).tolist(),
        "rms": rms.tolist(),
        "low": distances.min(axis=0).tolist(),
        "high": distances.max(axis=0).tolist(),
        "best_of_each_repeat": distances.min(axis=1).tolist(),
    }


def ranges_of_repeats(distances: list[np.ndarray]) -> dict[str, list[float]]:
    """Mean, root mean square and range for every M, for one array of distances [repeats] per M. The number of repeats
    may differ between them."""
    return {
        "mean": [float(np.mean(values)) for values in distances],
        "rms": [float(np.sqrt(np.mean(np.square(values)))) for values in distances],
        "low": [float(np.min(values)) for values in distances],
        "high": [float(np.max(values)) for values in distances],
    }
