"""Rows of equal weight, with few digits, for a weighted sample, and their RKHS distance from it ([B] section 3.3).

Let c_j be the number of rows at point x_j, and n their number. The distance of the rows from the sample is
‖Σ_m w_m k(z_m, ·) − (1/n) Σ_j c_j k(x_j, ·)‖. Kernel herding (Chen, Welling & Smola 2010) adds one row at a time, at
the point where it lowers the distance most. The distance then falls about as 1/n, for independent draws as 1/√n.

Two things make it smaller here. Herding is needed only for what is left when each point has the whole part of n w_m
rows. And when all rows are there, single rows move to other points for as long as this lowers the distance. Rows with
few digits are chosen among the rounded points, so that the choice of rows makes up for a part of the rounding.

Herding is for a sample that was released. Herding of private rows has no small sensitivity: one row can change every
herded row, see "Herding of private rows" in docs/privacy.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int, Int64

from kme_jax._numerics.precision import MAX_SEED, check_points
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.domain import Bounds
from kme_jax.gram import gram_matrix, kernel_sums
from kme_jax.kernels import Kernel
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.synthesis.sample import WeightedSample

METHODS = ("herding", "systematic")
MAX_ROWS = 10**6
MAX_CANDIDATES = 10_000  # points that herding takes: it holds their Gram matrix, 800 MB for so many
_MOST_DECIMALS = 15
_DIGITS = 2.0**50  # in units of the last decimal. Larger numbers have no digits to round in float64.
_SWEEPS = 50  # over all points, in each of which rows may move to other points
_FEW = 2048  # points whose Gram matrix is small
_LEAST_GAIN = 1e-9  # of the squared distance times n², for a row to move, as a share of k(x, x)


def _sums(
    kernel: Kernel, x: Float64[np.ndarray, "n d"], y: Float64[np.ndarray, "m d"], weights: Float64[np.ndarray, "m"]
) -> Float64[np.ndarray, "n"]:
    """Σ_j w_j k(x_i, y_j). The program for few points is compiled in a fifth of the time."""
    if max(len(x), len(y)) <= _FEW:
        return gram_matrix(kernel, x, y) @ weights
    return kernel_sums(kernel, x, y, weights)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Quantised:
    """An unweighted database, and how far its embedding is from that of the weighted sample it stands for. Public.

    Attributes:
      rows: float64 [n, d], all of weight 1/n.
      cost: the RKHS distance of the rows from the weighted sample.
      cost_of_rows: the distance of the rows that the same method chooses without rounding. Herding may find slightly
        better rows among rounded points; otherwise the difference is the cost of fewer digits.
      columns: names of the d columns.
      mechanism: of the weighted sample.
    """

    rows: Float64[np.ndarray, "n d"]
    cost: float
    cost_of_rows: float
    columns: tuple[str, ...]
    mechanism: Mechanism | None = None

    def _in_short(self) -> str:
        number, dim = np.shape(self.rows)
        warning = "" if self.mechanism is None or self.mechanism.secure else "NOT PRIVATE, "
        return f"{warning}{number} rows of {dim} columns, cost: {self.cost:.3g}, {self.cost_of_rows:.3g} unrounded"

    def to_pandas(self) -> Any:
        """The rows as a DataFrame of float64.

        Raises:
          ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("a DataFrame needs pandas: pip install pandas", name="pandas") from error
        return pandas.DataFrame(self.rows, columns=list(self.columns))


def quantise(
    sample: WeightedSample,
    kernel: Kernel,
    num_rows: int,
    *,
    method: Literal["herding", "systematic"] = "herding",
    decimals: int | Sequence[int] | None = None,
    bounds: Bounds | None = None,
    seed: int = 0,
) -> Quantised:
    """An unweighted database of the sample's points, and the distance of the two embeddings ([B] section 3.3).

    Herding is explained at the top of ``kme_jax.synthesis.quantised``. It draws nothing at random, and takes weights
    that are negative or do not sum to 1, since it needs the embedding alone. Systematic resampling
    (``WeightedSample.quantise``) takes probability weights of any number of points. For 1000 points of a mixture, and
    100 to 10 000 rows, the cost of herding is 8 to 25 times smaller. Rows are in the order of the points, so shuffle
    them before you take a part of them. Points of weight 0 have no rows. This is post-processing: it spends nothing.

    Args:
      sample: points z, [M, d], and weights w, [M].
      kernel: k, of the RKHS in which the distance is measured.
      num_rows: n, the number of rows, up to a million.
      method: "herding", for at most 10 000 points, or "systematic".
      decimals: to which rows are rounded, for all columns or for each of them: 1 for a tenth, −1 for tens; None to
        round nothing.
      bounds: of the columns. Distances are then those of rows scaled to [0, 1]^d, and rows are rounded towards the
        inside of the bounds where the nearest number is beyond them.
      seed: of systematic resampling.

    Returns:
      The rows and their cost. It is accurate to 1e-7 √k(x, x).

    Raises:
      ValueError: an option is invalid; there are too many points for herding; the weights are no probabilities, and the
        method is systematic; a point is beyond the bounds, or no number with so few decimals is within them.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, WeightedSample
      >>> from kme_jax.synthesis import quantise
      >>> sample = WeightedSample(np.array([[0.12], [1.57], [2.91]]), np.array([0.55, 0.25, 0.2]))
      >>> quantised = quantise(sample, Gaussian(gamma=0.5), 4, decimals=1)
      >>> quantised.rows.T
      array([[0.1, 0.1, 1.6, 2.9]])
      >>> quantised
      Quantised(4 rows of 1 columns, cost: 0.0765, 0.07 unrounded)
    """
    num_rows = check_integer("num_rows", num_rows, 1, MAX_ROWS)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    require(method in METHODS, f"method must be one of {', '.join(METHODS)}, got {method!r}")
    points, weights = check_points(sample.points).astype(np.float64), np.asarray(sample.weights, np.float64)
    check_array(weights, "weights", "f", (len(points),))
    dim = points.shape[1]
    if bounds is not None:
        require(bounds.dim == dim, f"bounds: expected {dim} columns, as the points have, got {bounds.dim}")
        within = (points >= bounds.lower) & (points <= bounds.upper)
        require(bool(within.all()), "points: a point is beyond the bounds")
    columns = tuple(f"x{i + 1}" for i in range(dim)) if bounds is None else bounds.names
    if method == "herding":
        points, weights = points[weights != 0], weights[weights != 0]
        require(len(points) > 0, "weights: all of them are 0")
        if len(points) > MAX_CANDIDATES:
            raise ValueError(
                f"herding takes at most {MAX_CANDIDATES} points, got {len(points)}: synthesise fewer, or use "
                'method="systematic"'
            )
    digits = _decimals_of_columns(decimals, dim)
    rounded = None if digits is None else _rounded(points, digits, columns, bounds)

    def choose(candidates: Float64[np.ndarray, "M d"]) -> tuple[Float64[np.ndarray, "n d"], float]:
        """Rows at points, or at rounded points, and their cost."""
        places = candidates if bounds is None else bounds.to_unit(candidates)
        origins = points if bounds is None else bounds.to_unit(points)
        if method == "systematic":
            counts = sample.systematic_counts(num_rows, seed)
        else:
            counts = herd(kernel, origins, weights, places, num_rows)
        cost = embedding_distance(kernel, origins, weights, places, counts / num_rows)
        return np.repeat(candidates, counts, axis=0), cost

    rows, cost_of_rows = choose(points)
    rows, cost = (rows, cost_of_rows) if rounded is None else choose(rounded)
    return Quantised(rows, cost, cost_of_rows, columns, sample.mechanism)


def _decimals_of_columns(decimals: int | Sequence[int] | None, dim: int) -> list[int] | None:
    """The decimals of d columns, or None.

    Raises:
      ValueError: they are not whole numbers from −15 to 15, or not as many as columns.
    """
    if decimals is None:
        return None
    each = [decimals] * dim if np.ndim(decimals) == 0 else list(decimals)  # pyright: ignore[reportArgumentType]
    require(len(each) == dim, f"decimals: expected one number, or one for each of {dim} columns, got {len(each)}")
    return [check_integer("decimals", number, -_MOST_DECIMALS, _MOST_DECIMALS) for number in each]


def _round(values: Float64[np.ndarray, "n"], digits: int) -> Float64[np.ndarray, "n"]:
    """Values rounded to a number of decimals, without negative zeros."""
    has_digits = np.abs(values) < _DIGITS * 10.0**-digits
    return np.where(has_digits, np.round(np.where(has_digits, values, 0), digits) + 0.0, values)


def _rounded(
    points: Float64[np.ndarray, "M d"], digits: Sequence[int], columns: Sequence[str], bounds: Bounds | None
) -> Float64[np.ndarray, "M d"]:
    """Points with few digits, within the bounds.

    Raises:
      ValueError: no number with so few digits is within the bounds of a column.
    """
    rounded = np.stack([_round(points[:, i], number) for i, number in enumerate(digits)], axis=1)
    if bounds is None:
        return rounded
    for i, (number, name) in enumerate(zip(digits, columns, strict=True)):
        lower, upper = float(bounds.lower[i]), float(bounds.upper[i])
        low, high = _round(np.asarray([lower, upper]), number)
        if low < lower:
            (low,) = _round(np.asarray([lower + 10.0**-number]), number)
        if high > upper:
            (high,) = _round(np.asarray([upper - 10.0**-number]), number)
        require(
            lower <= low <= high <= upper,
            f"decimals: no number with {number} decimals is within the bounds of {name}, {lower:g} and {upper:g}",
        )
        rounded[:, i] = np.clip(rounded[:, i], low, high)
    return rounded


def herd(
    kernel: Kernel,
    points: Float64[np.ndarray, "M d"],
    weights: Float64[np.ndarray, "M"],
    candidates: Float64[np.ndarray, "M d"],
    num_rows: int,
) -> Int[np.ndarray, "M"]:
    """How many rows to place at each candidate, so that their embedding is close to that of a weighted sample.

    Args:
      kernel: k.
      points: z, [M, d].
      weights: w, [M], of any sign and sum.
      candidates: x, [M, d]: the points, or each of them rounded.
      num_rows: n.

    Returns:
      Counts [M], which sum to n.
    """
    # Among candidates that are equal, the first has all rows.
    places, first, group = np.unique(candidates, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # ``unique`` has sorted them
    places, first, group = places[order], first[order], np.argsort(order)[group.reshape(-1)]
    masses = np.bincount(group, weights, len(places))
    counts = np.zeros(len(places), np.int64)
    if (weights >= 0).all():
        whole = masses * (num_rows / max(1.0, masses.sum()))
        counts = np.floor(whole + 1e-9).astype(np.int64)  # 1e-9: a whole number less its rounding is whole
    with_gram = _Herding.of(kernel, points, weights, places, masses, num_rows)
    counts = with_gram.exchanged(with_gram.filled(counts))
    result = np.zeros(len(candidates), np.int64)
    result[first] = counts
    return result


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class _Herding:
    """Numbers c of rows at M places, for the least cᵀKc/2 − cᵀt: half of n² times the squared distance, up to a
    constant."""

    values: Float64[np.ndarray, "M M"]
    target: Float64[np.ndarray, "M"]
    num_rows: int

    @classmethod
    def of(cls, kernel, points, weights, places, masses, num_rows: int) -> _Herding:
        """With K the Gram matrix of the places, and t_j = n Σ_m w_m k(z_m, x_j)."""
        values = gram_matrix(kernel, places, places)
        if len(places) == len(points) and (places == points).all():
            return cls(values, num_rows * (values @ masses), num_rows)
        return cls(values, num_rows * _sums(kernel, places, points, weights), num_rows)

    def filled(self, counts: Int64[np.ndarray, "M"]) -> Int64[np.ndarray, "M"]:
        """Counts, and the rows that are missing, by kernel herding of the embedding that is left.

        Row t + 1 is at the maximum of ⟨ν, φ(x)⟩ − (1 / (t + 1)) (Σ_i k(x, x_i) + k(x, x) / 2), where ν is what is
        left, divided by the number of missing rows. The last term is constant for most kernels."""
        counts, missing = counts.copy(), self.num_rows - int(counts.sum())
        if missing < 1:
            return counts
        left = (self.target - self.values @ counts) / missing
        covered = np.diagonal(self.values) / 2
        for t in range(missing):
            best = np.argmax((t + 1) * left - covered)
            counts[best] += 1
            covered += self.values[best]
        return counts

    def exchanged(self, counts: Int64[np.ndarray, "M"]) -> Int64[np.ndarray, "M"]:
        """Counts after single rows have moved to where they lower the distance most, until none does."""
        counts, slope = counts.copy(), self.values @ counts - self.target
        norms = np.diagonal(self.values).copy()
        least = _LEAST_GAIN * float(norms.max())
        for _ in range(_SWEEPS):
            has_moved = False
            for origin in np.flatnonzero(counts):
                apart = norms + norms[origin] - 2 * self.values[origin]  # squared distances of features
                while counts[origin]:
                    change = 2 * (slope - slope[origin]) + apart
                    best = np.argmin(change)
                    if change[best] > -least:
                        break
                    counts[origin] -= 1
                    counts[best] += 1
                    slope += self.values[best] - self.values[origin]
                    has_moved = True
            if not has_moved:
                break
        return counts


def embedding_distance(
    kernel: Kernel,
    points: Float64[np.ndarray, "n d"],
    weights: Float64[np.ndarray, "n"],
    others: Float64[np.ndarray, "m d"],
    their_weights: Float64[np.ndarray, "m"],
) -> float:
    """‖Σ_m w_m k(z_m, ·) − Σ_j v_j k(x_j, ·)‖, from its definition in float64.

    Points in both sets are counted once, with the difference of their weights. So rounding is relative to this
    difference.

    Args:
      kernel: k.
      points: z, [n, d].
      weights: w, [n].
      others: x, [m, d].
      their_weights: v, [m].

    Raises:
      ValueError: the squared distance is negative by more than the rounding of sums of this size.
    """
    places, group = np.unique(np.concatenate([points, others]), axis=0, return_inverse=True)
    difference = np.bincount(group.reshape(-1), np.concatenate([weights, -their_weights]), len(places))
    used = difference != 0
    if not used.any():
        return 0.0
    places, difference = places[used], difference[used]
    squared = float(difference @ _sums(kernel, places, places, difference))
    rounding = 1e-13 * kernel.diagonal_bound * float(np.abs(difference).sum()) ** 2
    require(squared >= -rounding, f"squared distance {squared} is below 0 by more than rounding, {rounding:.1g}")
    return float(np.sqrt(max(squared, 0.0)))
