"""Means over draws, the break-even, and the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.shift.config import SCENARIOS

TITLES = {"biased": "biased sample", "moved": "moved clusters"}
SYMBOLS = {"biased": "b", "moved": "s"}
METHODS = ("uniform", "published", "improved", "limit")


def strengths_of(result: dict[str, Any], scenario: str) -> list[float]:
    """The strengths of the shift in a scenario."""
    return result["config"]["biases" if scenario == "biased" else "moves"]


def line(result: dict[str, Any], scenario: str, dim: int, method: str, epsilon: float) -> np.ndarray | None:
    """Means over draws and their standard errors for all strengths, [2, strengths]; None if it was not measured."""
    columns = []
    for strength in strengths_of(result, scenario):
        values = _values(result, scenario, dim, strength, method, epsilon)
        if not values:
            return None
        columns.append(_summary(values))
    return np.asarray(columns).T


def level(result: dict[str, Any], dim: int, epsilon: float) -> tuple[float, float] | None:
    """Mean and standard error of the releases with a proposal alone; None if they were not measured."""
    values = _values(result, "proposal", dim, 0.0, "improved", epsilon)
    return _summary(values) if values else None


def _values(result: dict[str, Any], part: str, dim: int, strength: float, method: str, epsilon: float) -> list[float]:
    key, number = (part, dim, strength), result["config"]["epsilons"].index(epsilon)
    values = [
        cell["distances"][method] for cell in result["cells"] if (cell["part"], cell["dim"], cell["strength"]) == key
    ]
    return [value[number] if isinstance(value, list) else value for value in values]


def _summary(values: list[float]) -> tuple[float, float]:
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def break_even(strengths: Sequence[float], distances: Sequence[float], other: float) -> float:
    """The least strength from which on a line is above a level.

    The logarithm of the line is interpolated between strengths: linearly in the strength from 0 on, and linearly in its
    logarithm elsewhere. The axis of the picture is the same.

    Args:
      strengths: increasing, [n].
      distances: the line, positive, [n].
      other: the level.

    Returns:
      The strength. It is the first strength if the whole line is above the level, and infinite if the last value is
      not above it.
    """
    above = np.log(np.asarray(distances)) - math.log(other)
    below = np.flatnonzero(above <= 0)
    if not len(below):
        return strengths[0]
    last = int(below[-1])
    if last == len(strengths) - 1:
        return math.inf
    share = -above[last] / (above[last + 1] - above[last])
    low, high = strengths[last], strengths[last + 1]
    return float(low * (high / low) ** share if low > 0 else low + share * (high - low))


def break_evens(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The break-even of every scenario, D and ε for which both methods were measured.

    Its "low" and "high" are for lines that are each one standard error away from their means, in opposite directions.
    """
    lines = []
    for scenario in SCENARIOS:
        strengths = strengths_of(result, scenario)
        for dim in result["config"]["dims"]:
            for epsilon in result["config"]["epsilons"]:
                own, other = line(result, scenario, dim, "improved", epsilon), level(result, dim, epsilon)
                if own is None or other is None:
                    continue
                ends = [
                    break_even(strengths, own[0] - sign * own[1], other[0] + sign * other[1]) for sign in (0, -1, 1)
                ]
                lines.append({"scenario": scenario, "dim": dim, "epsilon": epsilon, "strengths": strengths})
                lines[-1] |= dict(zip(("value", "low", "high"), ends, strict=True))
    return lines


def _strength(value: float, strengths: Sequence[float]) -> str:
    """A break-even as text."""
    if value == math.inf:
        return f"above {strengths[-1]:g}"
    return "no shift" if value <= strengths[0] else f"{value:.2g}"


def break_even_markdown(result: dict[str, Any]) -> str:
    """The break-evens as a table of Markdown."""
    lines = ["| shift | D | ε | Δ, proposal alone | break-even | one standard error to both sides |"]
    lines.append("|---" * 6 + "|")
    for row in break_evens(result):
        value, low, high = (_strength(row[name], row["strengths"]) for name in ("value", "low", "high"))
        mean, error = level(result, row["dim"], row["epsilon"]) or (math.nan, math.nan)
        lines.append(
            f"| {TITLES[row['scenario']]}, {SYMBOLS[row['scenario']]} | {row['dim']} | {row['epsilon']:g} | "
            f"{_number(mean, error)} | **{value}** | {low} to {high} |"
        )
    return "\n".join(lines)


def _number(mean: float, error: float) -> str:
    """A mean with its standard error in units of the last digit that is shown."""
    digits = max(0, 2 - math.floor(math.log10(mean)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def markdown(result: dict[str, Any]) -> str:
    """Δ at every strength as a table of Markdown. It is bold where a proposal alone has a smaller Δ."""
    lines = ["| shift | D | ε | strength | equal weights | algorithm 1 | improved | repaired | limit |"]
    lines.append("|---" * 9 + "|")
    for scenario in SCENARIOS:
        for dim in result["config"]["dims"]:
            for epsilon in result["config"]["epsilons"]:
                curves = {method: line(result, scenario, dim, method, epsilon) for method in METHODS}
                other = level(result, dim, epsilon)
                for i, strength in enumerate(strengths_of(result, scenario)):
                    cells = {method: curve[:, i] for method, curve in curves.items() if curve is not None}
                    if not cells:
                        continue
                    texts = {method: _number(*values) for method, values in cells.items()}
                    if other is not None and cells["improved"][0] > other[0]:
                        texts["improved"] = f"**{texts['improved']}**"
                    lines.append(
                        f"| {TITLES[scenario]} | {dim} | {epsilon:g} | {SYMBOLS[scenario]} = {strength:g} | "
                        f"{texts['uniform']} | {texts['published']} | {texts['improved']} | "
                        f"{100 * repaired(cells['improved'][0], cells['uniform'][0]):.0f} % | {texts['limit']} |"
                    )
    return "\n".join(lines)


def repaired(improved: float, uniform: float) -> float:
    """The share of the error of the public rows that a release repairs: 1 for all of it, and 0 for nothing."""
    return 1 - improved / uniform
