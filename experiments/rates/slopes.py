"""Slopes on logarithmic axes, their intervals, and whether errors decay as fast as a bound."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.stats

from experiments.rates.claims import CLAIMS, Claim

LEVEL = 0.95  # of the one-sided limits


@dataclasses.dataclass(frozen=True)
class Slope:
    """The slope of an error on logarithmic axes.

    Attributes:
      value: the mean of the slopes of all repeats.
      low: the one-sided lower limit.
      high: the one-sided upper limit. Low and high together are an interval of 90 %.
    """

    value: float
    low: float
    high: float

    def verdict(self, bound: float, *, convergence_only: bool = False) -> str:
        """Whether the error decays at least as fast as a bound with an exponent.

        Args:
          bound: the exponent.
          convergence_only: whether the claim is that the error vanishes.

        Returns:
          "faster" or "slower" if a limit of the slope shows it; "as fast" if the bound is between the limits. If only
          convergence is claimed: "decays", "grows" and "unclear".
        """
        words = ("decays", "grows", "unclear") if convergence_only else ("faster", "slower", "as fast")
        return words[0] if self.high < bound else words[1] if self.low > bound else words[2]


def fitted(x: list[float], errors: np.ndarray) -> Slope:
    """The slope of the line of least squares for each repeat, and Student's interval of their mean.

    Args:
      x: values of the variable, [n].
      errors: positive, [repeats, n], with independent repeats.
    """
    logarithms = np.log(x) - np.mean(np.log(x))
    slopes = np.log(errors) @ logarithms / np.sum(logarithms**2)
    number = len(slopes)
    mean = float(slopes.mean())
    if number < 2:
        return Slope(mean, -np.inf, np.inf)
    half = float(scipy.stats.t.ppf(LEVEL, number - 1) * slopes.std(ddof=1) / np.sqrt(number))
    return Slope(mean, mean - half, mean + half)


def errors_of(result: dict[str, Any], name: str, curve: str, dim: int) -> np.ndarray:
    """The errors of a curve in all repeats, [repeats, n], with no repeat if it was not measured."""
    claims = [cell["errors"].get(name, {}) for cell in result["cells"] if cell["dim"] == dim]
    return np.asarray([errors[curve] for errors in claims if curve in errors])


def median_interval(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The median over repeats, and an interval of order statistics for it.

    The interval has the level 95 %, or the most that so few repeats can have.

    Args:
      errors: [repeats, n].

    Returns:
      (median, low, high), [n] each.
    """
    ordered, number = np.sort(errors, axis=0), len(errors)
    rank = max(0, int(scipy.stats.binom.ppf(0.025, number, 0.5)) - 1)
    return np.median(errors, axis=0), ordered[rank], ordered[number - 1 - rank]


def slope_of(result: dict[str, Any], name: str, dim: int) -> Slope | None:
    """The slope of the error of a claim; None if it was not measured twice."""
    claim = CLAIMS[name]
    errors = errors_of(result, name, next(iter(claim.curves)), dim)
    return fitted(result["config"][claim.grid], errors) if len(errors) > 1 else None


def _cell(claim: Claim, slope: Slope | None, dim: int) -> str:
    if slope is None:
        return "–"
    verdict = slope.verdict(claim.bound(dim), convergence_only=claim.convergence_only)
    verdict = f"**{verdict}**" if verdict in ("slower", "grows", "unclear") else verdict
    bound = "" if claim.convergence_only else f" (≤ {_signed(claim.bound(dim))})"
    return f"{_signed(slope.value)} [{_signed(slope.low)}, {_signed(slope.high)}]{bound} {verdict}"


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def markdown(result: dict[str, Any]) -> str:
    """Slopes and verdicts as a table of Markdown: a line for each claim, and a column for each D."""
    dims = result["config"]["dims"]
    lines = ["| source | error | variable | bound | " + " | ".join(f"D = {dim}" for dim in dims) + " |"]
    lines.append("|---" * (4 + len(dims)) + "|")
    for name, claim in CLAIMS.items():
        cells = [_cell(claim, slope_of(result, name, dim), dim) for dim in dims]
        lines.append(f"| {claim.source} | {claim.title} | {claim.symbol} | {claim.rate} | {' | '.join(cells)} |")
    return "\n".join(lines)
