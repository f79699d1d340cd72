"""What Balog et al. 2018 prove about errors: which error, in which variable, and at which rate at most.

An error that is O(x^b) has a slope of at most b on logarithmic axes. A slope below b means that it decays faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

VARIABLES = {
    "sizes": "N (private rows)",
    "few_sizes": "N (private rows)",
    "num_points": "M (public points)",
    "num_features": "J (Fourier features)",
    "epsilons": "ε (privacy level)",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A bound of an error.

    Attributes:
      source: where the paper proves it.
      title: the error.
      part: of the experiment that measures it.
      bound: D -> the exponent of the bound.
      rate: the bound in words.
      curves: {curve: grid}, the name of the field of the configuration with the values of the variable. The first curve
        is the error. The others are drawn beside it.
      convergence_only: whether the paper proves that the error vanishes, but no rate. The bound is then 0.
      other_bound: a further exponent that is drawn.
    """

    source: str
    title: str
    part: str
    bound: Callable[[int], float]
    rate: str
    curves: Mapping[str, str]
    convergence_only: bool = False
    other_bound: Callable[[int], float] | None = None

    @property
    def grid(self) -> str:
        """The grid of the error."""
        return next(iter(self.curves.values()))

    @property
    def variable(self) -> str:
        """The variable, with what it counts."""
        return VARIABLES[self.grid]

    @property
    def symbol(self) -> str:
        """The letter of the variable."""
        return self.variable.partition(" ")[0]


def corrected_exponent(dim: int) -> float:
    """k of M(N) = N^k in the proof of proposition 5, without its misprint, for a → 0: 2 − 4/(2D + 2)."""
    return 2 - 4 / (2 * dim + 2)


def printed_exponent(dim: int) -> float:
    """k as printed: 1 − 4/(2D + 2)."""
    return 1 - 4 / (2 * dim + 2)


def proposition5(dim: int) -> float:
    """The claimed exponent of N for c → 0."""
    return -1 / (dim + 1)


def rate_of_printed(dim: int) -> float:
    """What the proof gives for the printed M(N): the slowest of N^(-1/2), M^(-1/(2D)) and √M/N."""
    k = printed_exponent(dim)
    return max(-1 / 2, -k / (2 * dim), k / 2 - 1)


def _constant(slope: float) -> Callable[[int], float]:
    return lambda dim: slope


_WITH_IMPROVED = {"published": "sizes", "improved": "sizes"}
CLAIMS: dict[str, Claim] = {
    "sample": Claim(
        "equation 18",
        "error of the private rows, ‖μ̂ − μ‖",
        "sample",
        _constant(-1 / 2),
        "N^(-1/2)",
        {"private": "sizes", "oracle": "sizes"},
    ),
    "privacy_rows": Claim(
        "theorem 2, proof", "noise of algorithm 1, ‖μ̃ − μ̄‖", "fixed_points", _constant(-1), "1/N", _WITH_IMPROVED
    ),
    "privacy_epsilon": Claim(
        "theorem 2, proof",
        "noise of algorithm 1, ‖μ̃ − μ̄‖",
        "fixed_points",
        _constant(-1),
        "1/ε",
        {"published": "epsilons", "improved": "epsilons"},
    ),
    "privacy_points": Claim(
        "theorem 2, proof",
        "noise of algorithm 1, ‖μ̃ − μ̄‖",
        "fixed_points",
        _constant(1 / 2),
        "M^(1/2)",
        {"published": "num_points", "improved": "num_points"},
    ),
    "projection": Claim(
        "lemma 12",
        "projection error, ‖μ̄ − μ̂‖",
        "fixed_points",
        lambda dim: -1 / (2 * dim),
        "M^(-1/(2D))",
        {"published": "num_points"},
    ),
    "proposition5": Claim(
        "proposition 5",
        "algorithm 1, M ∝ Nᵏ with the corrected k",
        "fixed_points",
        proposition5,
        "N^(-1/(D+1))",
        {"published": "sizes", "improved": "few_sizes", "oracle": "sizes"},
    ),
    "proposition5_printed": Claim(
        "proposition 5, misprint",
        "algorithm 1, M = Nᵏ with the printed k",
        "fixed_points",
        proposition5,
        "N^(-1/(D+1))",
        {"published": "sizes", "oracle": "sizes"},
        other_bound=rate_of_printed,
    ),
    "proposition6": Claim(
        "proposition 6",
        "algorithm 1, public rows, M = ηN",
        "public_rows",
        _constant(-1 / 2),
        "N^(-1/2)",
        {"published": "sizes", "improved": "sizes", "uniform": "sizes", "oracle": "sizes"},
    ),
    "theorem11": Claim(
        "theorem 11 with proposition 6",
        "algorithm 1, public rows, ‖w‖₁ ≤ 1",
        "public_rows",
        _constant(-1 / 2),
        "N^(-1/2)",
        {"l1_ball": "sizes", "oracle": "sizes"},
    ),
    "theorem11_transformed": Claim(
        "theorem 11",
        "error for f(X), public rows, ‖w‖₁ ≤ 1",
        "public_rows",
        _constant(0),
        "vanishes",
        {"l1_ball": "sizes", "closed_form": "sizes", "improved": "sizes"},
        convergence_only=True,
    ),
    "deviation": Claim(
        "proposition 8, assumption",
        "largest deviation of ψ(x)ᵀψ(x′) from k",
        "features",
        _constant(-1 / 2),
        "J^(-1/2)",
        {"published": "num_features"},
    ),
    "features": Claim(
        "lemma 14",
        "random features error",
        "features",
        _constant(-1 / 4),
        "J^(-1/4)",
        {"published": "num_features"},
    ),
    "privacy_features": Claim(
        "proposition 8, proof",
        "noise of algorithm 2",
        "features",
        _constant(1 / 2),
        "J^(1/2)",
        {"published": "num_features", "improved": "num_features"},
    ),
    "proposition8": Claim(
        "proposition 8",
        "algorithm 2, J ∝ N^(4/3)",
        "algorithm2",
        _constant(-1 / 3),
        "N^(-1/3)",
        {"published": "few_sizes", "oracle": "few_sizes"},
    ),
    "proposition5_bounded": Claim(
        "proposition 5",
        "algorithm 1, corrected k, bounded rows",
        "bounded_points",
        proposition5,
        "N^(-1/(D+1))",
        {"published": "sizes", "oracle": "sizes"},
    ),
    "proposition8_bounded": Claim(
        "proposition 8",
        "algorithm 2, bounded rows",
        "bounded_algorithm2",
        _constant(-1 / 3),
        "N^(-1/3)",
        {"published": "few_sizes", "oracle": "few_sizes"},
    ),
}
