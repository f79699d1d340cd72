"""Functions of random variables, and conditional means, from weighted samples. Post-processing.

A function of all points of a weighted sample gives a consistent estimate of the embedding of the function of the random
variable, and so does a function of all combinations of points of independent samples ([B] section 3.3; Schölkopf et al.
2015, "Computing functions of random variables via reproducing kernel Hilbert space representations"; Simon-Gabriel et
al. 2016). A regression of some columns on others, with the weights of the sample, estimates a conditional mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float64, Int, Real, Shaped

from kme_jax._numerics.precision import MAX_SEED, check_columns, check_points
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.gram import gram_matrix
from kme_jax.kernels import Kernel
from kme_jax.privacy.budget import check_integer, check_number
from kme_jax.privacy.mechanisms import Mechanism
from kme_jax.synthesis.sample import WeightedSample

NUM_COMBINATIONS = 100_000  # of points of several samples, unless the caller wants another number
_MOST_COMBINATIONS = 10**7
_BLOCK = 1024  # places at a time
MAX_INPUTS = 10_000  # points of a regression: their Gram matrix has 800 MB, and is factorised

Columns = int | Sequence[int] | Callable[[Float64[np.ndarray, "M d"]], Shaped[AnyArray, "M *values"]]
"""Column indices, or a function of points."""


def push_forward(
    function: Callable[..., Shaped[AnyArray, "n *values"]],
    *samples: WeightedSample,
    num_points: int | None = None,
    seed: int = 0,
) -> WeightedSample:
    """The weighted sample of f(X), or of f(X, Y, ...) for independent X, Y, ... ([B] section 3.3).

    For one sample, each point z becomes f(z), and keeps its weight. For several samples, the points are f of all
    combinations, and the weights are products. Independence is an assumption about the private rows: two columns of one
    release are not independent, and are parts of the points of one sample.

    If there are more combinations than ``num_points``, that many are drawn. Each sample then has its points drawn by
    systematic resampling in proportion to |w|, and in random order. Signs are kept. The weights of positive and of
    negative combinations are scaled, so that their sums are those of all combinations.

    ``push_forward(lambda x, y: x + y, a, b)`` is the sum X + Y, and
    ``push_forward(lambda x, y: np.hstack([x, y]), a, b)`` the pair (X, Y).

    Args:
      function: f, from one array [n, d_i] for each sample to values [n] or [n, d'].
      samples: of X, Y, ...
      num_points: the most combinations of several samples; 100 000 if None.
      seed: of the resampling.

    Returns:
      The sample of points [n, d'], or [n, 1] if values are [n]. A sample has a place for one mechanism, and several
      releases have several. So this is one of theirs: one with simulated noise if there is any, so that the result is
      marked as not private, and otherwise one with the largest ε. It says less than was spent if the releases are of
      the same rows: their budgets add up.

    Raises:
      ValueError: there is no sample; a value has another shape, or is not finite; num_points is not from 1 to ten
        million, or the seed is out of range; all weights of a sample are 0 and combinations are drawn.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import WeightedSample
      >>> from kme_jax.analysis.transformations import push_forward
      >>> income = WeightedSample(np.array([[10.0], [20.0]]), np.array([0.75, 0.25]))
      >>> taxes = WeightedSample(np.array([[1.0], [2.0]]), np.array([0.5, 0.5]))
      >>> net = push_forward(lambda x, y: x - y, income, taxes)
      >>> net.points.T, net.weights
      (array([[ 9.,  8., 19., 18.]]), array([0.375, 0.375, 0.125, 0.125]))
      >>> push_forward(np.sqrt, income).expectation(lambda z: z**2)
      array([12.5])
    """
    require(len(samples) > 0, "push_forward: expected one sample or several, got none")
    most = NUM_COMBINATIONS if num_points is None else check_integer("num_points", num_points, 1, _MOST_COMBINATIONS)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    parts = [_checked(sample) for sample in samples]
    sizes = [len(weights) for _, weights in parts]
    if len(parts) == 1:
        (points, weights) = parts[0]
        return WeightedSample(_values(function, points), weights, samples[0].mechanism)
    if math.prod(sizes) <= most:
        chosen = [place.reshape(-1) for place in np.indices(sizes)]
        weights = np.prod([w[i] for (_, w), i in zip(parts, chosen, strict=True)], axis=0)
    else:
        chosen, weights = _combinations([weights for _, weights in parts], most, seed)
    values = _values(function, *(points[i] for (points, _), i in zip(parts, chosen, strict=True)))
    return WeightedSample(values, weights, _of_all([sample.mechanism for sample in samples]))


def _checked(sample: WeightedSample) -> tuple[Float64[np.ndarray, "M d"], Float64[np.ndarray, "M"]]:
    """Points and weights in float64.

    Raises:
      ValueError: it is no sample of finite numbers.
    """
    if not isinstance(sample, WeightedSample):
        raise ValueError(f"expected a WeightedSample, got a {type(sample).__name__}; a Release has one in .sample")
    points, weights = check_points(sample.points).astype(np.float64), np.asarray(sample.weights, np.float64)
    check_array(weights, "weights", "f", (len(points),))
    return points, weights


def _of_all(mechanisms: Sequence[Mechanism | None]) -> Mechanism | None:
    """The mechanism with the weakest guarantee; None if there is none."""
    known = [mechanism for mechanism in mechanisms if mechanism is not None]
    return max(known, key=lambda mechanism: (not mechanism.secure, mechanism.epsilon), default=None)


def _values(
    function: Callable[..., Shaped[AnyArray, "n *values"]],
    *points: Float64[np.ndarray, "n _"],
    name: str = "function",
) -> Float64[np.ndarray, "n values"]:
    """Values of a function of points, as [n, d'].

    Raises:
      ValueError: they have another shape, or are not finite numbers.
    """
    values, number = np.asarray(function(*points)), len(points[0])
    if values.ndim == 1:
        values = values[:, None]
    fits = values.ndim == 2 and len(values) == number and values.shape[1] > 0
    require(fits, f"{name}: expected values [n] or [n, d'] with n = {number}, got the shape {list(values.shape)}")
    require(values.dtype.kind in "fiub", f"{name}: expected numbers, got values of {values.dtype}")
    values = values.astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    require(bool(finite.all()), f"{name}: the value of point {int(np.argmin(finite))} is NaN or infinite")
    return values


def _combinations(
    weights: Sequence[Float64[np.ndarray, "_"]], number: int, seed: int
) -> tuple[list[Int[np.ndarray, "n"]], Float64[np.ndarray, "n"]]:
    """Places of points of each sample, for ``number`` combinations, and the weights of combinations.

    Raises:
      ValueError: all weights of a sample are 0.
    """
    random, chosen = np.random.default_rng(seed), []
    total, size, signs = 1.0, 1.0, np.ones(number)  # Σ and Σ |.| of the weights of all combinations
    for w in weights:
        mass = float(np.abs(w).sum())
        require(mass > 0, "weights: all weights of a sample are 0")
        total, size = total * float(w.sum()), size * mass
        shares = WeightedSample(np.zeros((len(w), 1)), np.abs(w) / mass)
        counts = shares.systematic_counts(number, seed=int(random.integers(MAX_SEED)))
        places = random.permutation(np.repeat(np.arange(len(w)), counts))
        signs *= np.sign(w[places])
        chosen.append(places)
    positive = signs > 0
    drawn = np.maximum([positive.sum(), (~positive).sum()], 1)  # a sign without a draw has a share of about 1 / number
    return chosen, np.where(positive, (size + total) / 2 / drawn[0], (total - size) / 2 / drawn[1])


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ConditionalMean:
    """An estimate of E[t(X) | g(X) = x], the function f(x) = Σ_m α_m k(x, x_m). Public.

    Attributes:
      kernel: k.
      inputs: x_m, the values of g at the points of the sample with positive weight, [M, d_in].
      coefficients: α, [M, d_out].
    """

    kernel: Kernel
    inputs: Float64[np.ndarray, "M inputs"]
    coefficients: Float64[np.ndarray, "M outputs"]

    def _in_short(self) -> str:
        (number, num_inputs), num_outputs = np.shape(self.inputs), np.shape(self.coefficients)[1]
        return f"{num_inputs} inputs, {num_outputs} outputs, from {number} points"

    def __call__(self, x: Real[AnyArray, "n inputs"]) -> Float64[np.ndarray, "n outputs"]:
        """f at places x [n, d_in]: [n, d_out].

        Raises:
          ValueError: the places are not finite, or have another number of columns.
        """
        x = check_points(x, "x").astype(np.float64)
        check_columns(x, self.inputs.shape[1], "x")
        blocks = [x[start : start + _BLOCK] for start in range(0, len(x), _BLOCK)]
        return np.concatenate([gram_matrix(self.kernel, block, self.inputs) @ self.coefficients for block in blocks])


def conditional_mean(
    sample: WeightedSample, inputs: Columns, targets: Columns, kernel: Kernel, *, ridge: float
) -> ConditionalMean:
    """E[t(X) | g(X) = x] as a function of x, by kernel ridge regression with the weights of a sample.

    It is the function f in the RKHS of the kernel, once for each target, with the least
    Σ_m w_m (t(z_m) − f(g(z_m)))² + ridge ‖f‖². So two equal points count as one point of twice the weight. Far from all
    inputs f is 0: subtract a typical value from the targets if this matters.

    The coefficients are α = S (S K S + ridge I)⁻¹ S t, with S = diag √w, by a Cholesky factor in float64. Their
    relative error is about 1e-16 Σ_m w_m k(x_m, x_m) / ridge. This takes M³ / 3 operations for M points.

    Args:
      sample: of X, with weights that are not negative, and at most 10 000 points of positive weight.
      inputs: g: the index of a column, indices, or a function of points [M, d] to values [M] or [M, d_in].
      targets: t: the same, with values [M] or [M, d_out].
      kernel: k, of inputs.
      ridge: positive, in the units of the sum of weights: with weights 1/M it is 1/M times that of a sum over points.

    Returns:
      A function from x [n, d_in] to estimates [n, d_out].

    Raises:
      ValueError: weights are negative, or all 0; there are too many points; there is no such column; a value has
        another shape, or is not finite; the ridge is not positive, or too small for float64.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, uniform
      >>> from kme_jax.analysis.transformations import conditional_mean
      >>> x = np.linspace(0, 1, 20)
      >>> mean = conditional_mean(uniform(np.stack([x, x**2], axis=1)), 0, 1, Gaussian(gamma=2.0), ridge=1e-6)
      >>> mean(np.array([[0.25], [0.5]])).round(3)
      array([[0.062],
             [0.25 ]])
    """
    points, weights = _checked(sample)
    ridge = check_number("ridge", ridge)
    require(0 < ridge < math.inf, f"ridge must be positive and finite, got {ridge}")
    smallest = float(weights.min())
    require(
        smallest >= 0,
        f"a regression needs weights that are not negative, and the smallest is {smallest:.2g}; "
        "adaptive_weights(noisy, points, signed=False) gives a probability vector",
    )
    used: Bool[np.ndarray, "M"] = weights > 0
    require(bool(used.any()), "weights: all of them are 0")
    points, weights = points[used], weights[used]
    most = MAX_INPUTS
    require(len(points) <= most, f"a regression takes at most {most} points, got {len(points)}: synthesise fewer")
    x, t = _selected(points, inputs, "inputs"), _selected(points, targets, "targets")
    roots = np.sqrt(weights)[:, None]
    system = gram_matrix(kernel, x, x) * roots * roots.T
    np.fill_diagonal(system, np.diagonal(system) + ridge)
    try:
        factor = scipy.linalg.cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        raise ValueError(f"ridge: {ridge:.2g} is too small for {len(points)} points in float64") from None
    return ConditionalMean(kernel, x, roots * scipy.linalg.cho_solve(factor, roots * t, check_finite=False))


def _selected(points: Float64[np.ndarray, "M d"], which: Columns, name: str) -> Float64[np.ndarray, "M values"]:
    """Columns of points, or values of a function of them, as [M, values].

    Raises:
      ValueError: there is no such column; or as :func:`_values`.
    """
    if callable(which):
        return _values(which, points, name=name)
    indices = [which] if np.ndim(which) == 0 else list(which)  # pyright: ignore[reportArgumentType]
    require(len(indices) > 0, f"{name}: expected a column or several, got none")
    last = points.shape[1] - 1
    return points[:, [check_integer(f"{name}: a column", index, 0, last) for index in indices]]
