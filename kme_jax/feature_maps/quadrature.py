"""ψ(x): Fourier features at Gauss-Hermite nodes (Mutny & Krause 2018), for a Gaussian kernel and a small box."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float, Float64, Int64, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.sincos import sincos_turns
from kme_jax._numerics.validation import check_array, check_positive, require
from kme_jax.feature_maps.boxes import are_inside, box_between, check_box_fields, check_same_box, checked_bounds
from kme_jax.feature_maps.waves import FreeWaves, SpectralMap, Waves
from kme_jax.kernels import Gaussian

_TARGETS = 10.0 ** np.linspace(-6, -2, 17)  # of the error; the smallest is used, if the number of features allows it
_MAX_NODES = 512  # of a column
_MAX_WIDTH = 64.0  # in lengths ℓ: sums over so many nodes nearly repeat after 2 √512 = 45 lengths
_MAX_TABLE = 2**22  # the largest number of nodes of all columns together that are compared
_COARSE = 0.05  # in lengths ℓ: between the differences of rows at which the error of a rule is looked at
_FINE = 1e-3  # the same, for the proved bound of inner products
_BLOCK = 1 << 20
_ROUNDING = 1e-9  # above the error of a cosine sum in float64, also if another library computes the nodes


@functools.lru_cache(maxsize=128)
def _rule(count: int) -> tuple[Float64[np.ndarray, "nodes"], Float64[np.ndarray, "nodes"]]:
    """Gauss-Hermite nodes of the standard normal distribution, increasing, and their weights, of sum 1 (Golub & Welsch
    1969). They are symmetric to the last bit."""
    nodes, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(count), np.sqrt(np.arange(1.0, count)))
    weights = np.square(vectors[0])
    weights = weights + weights[::-1]
    return (nodes - nodes[::-1]) / 2, weights / weights.sum()


def _cosines(nodes: np.ndarray, weights: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Σ_i w_i cos(t_i δ) for each δ."""
    half = slice(len(nodes) // 2, None)  # the others are symmetric
    twice = np.where(nodes[half] > 0, 2.0, 1.0) * weights[half]
    step = max(1, _BLOCK // len(twice))
    blocks = [differences[i : i + step] for i in range(0, len(differences), step)]
    return np.concatenate([np.cos(block[:, None] * nodes[half]) @ twice for block in blocks])


@functools.lru_cache(maxsize=1024)
def _error(count: int, width: float) -> float:
    """max |Σ_i w_i cos(t_i δ) − exp(−δ²/2)| over 0 ≤ δ ≤ width, in lengths ℓ, on a grid."""
    differences = np.linspace(0, width, 2 + int(width / _COARSE))
    return float(np.max(np.abs(_cosines(*_rule(count), differences) - np.exp(-0.5 * np.square(differences)))))


def _nodes_for(width: float, target: float) -> int | None:
    """The smallest number of nodes found with an error of at most ``target``, or None if the largest has more."""
    if width > _MAX_WIDTH:
        return None
    high = 1
    while _error(high, width) > target:
        if high == _MAX_NODES:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _error(middle, width) <= target else (middle, high)
    return high


def _heaviest(counts: tuple[int, ...], target: float) -> tuple[np.ndarray, np.ndarray]:
    """The frequencies of a tensor grid without the lightest ones, which together weigh at most ``target``.

    Returns:
      The index of the node of each column, [n, d], and weights, [n], from the largest on. Of a frequency and its
      opposite, which have the same features, one is there, with the weight of both.
    """
    weights = functools.reduce(np.multiply.outer, [_rule(count)[1] for count in counts]).reshape(-1)
    # In the order of the grid, the opposite of the first is the last. The middle of an odd number of nodes is 0.
    half = len(weights) // 2
    halved = 2 * weights[half:]
    if len(weights) % 2:
        halved[0] /= 2
    order = np.argsort(-halved, kind="stable")
    left_out = np.cumsum(halved[order][::-1])[::-1]  # by leaving out this one and all lighter ones
    used = order[: max(1, int(np.sum(left_out > target)))]
    return np.stack(np.unravel_index(used + half, counts), axis=1), halved[used]


@functools.lru_cache(maxsize=256)
def _least_in_column(count: int, unit: float, dtype: np.dtype, width: float) -> float:
    """A lower bound of q(δ) = Σ_i w_i cos 2πt_i δ over |δ| ≤ width, for the nodes t in turns as ``dtype`` rounds them.

    Proof. |q″| ≤ S = Σ_i w_i (2πt_i)². Between two points of a grid of spacing h, q is at least the line through its
    values there without h² S / 8, and so at least the smaller value without it. 1e-9 is for rounding.

    Args:
      count: number of nodes.
      unit: t of the node 1 of a standard normal distribution.
      dtype: of t.
      width: the largest difference.
    """
    nodes, weights = _turns(count, unit, dtype).astype(np.float64) * (2 * math.pi), _rule(count)[1]
    num_steps = 1 + int(width * 2 * math.pi * unit / _FINE)
    values = _cosines(nodes, weights, np.linspace(0, width, num_steps + 1))
    slack = (width / num_steps) ** 2 * float(np.sum(weights * np.square(nodes))) / 8
    return max(-1.0, float(values.min()) - slack - _ROUNDING)


def _turns(count: int, unit: float, dtype: np.dtype) -> np.ndarray:
    """The nodes of a column in turns per unit of x."""
    return (_rule(count)[0] * unit).astype(dtype)


def _unit(kernel: Gaussian) -> float:
    """The frequency, in turns, of the node 1: √(2γ) / 2π."""
    return math.sqrt(2 * float(kernel.gamma)) / (2 * math.pi)


def _least_cosine(kernel: Gaussian, counts: np.ndarray, half_widths: np.ndarray, dtype: np.dtype) -> float:
    """A lower bound of Q(x − x′) over rows in the box, see ``QuadratureMap.diameter``. From −1 to 1."""
    least = [
        _least_in_column(int(count), _unit(kernel), dtype, 2 * float(width) * (1 + 1e-6))
        for count, width in zip(counts, half_widths, strict=True)
    ]
    return math.prod(least) if min(least) >= 0 else min(least)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class WeightedWaves(FreeWaves):
    """Waves of frequencies in the order of their weights. The first are no random sample of all."""

    def fewer(self, number, table):
        return Waves.fewer(self, number, table)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class QuadratureMap(SpectralMap):
    """√w_i [cos ω_iᵀ(x − c), ...; sin ω_iᵀ(x − c), ...] for Gauss-Hermite nodes ω_i with weights w_i.

    A Gaussian kernel is E cos ωᵀ(x − y) for normal ω. Gauss-Hermite quadrature with m_j nodes in column j replaces this
    mean by a weighted sum Q(x − y) over the tensor grid of Π m_j nodes (Mutny & Krause 2018). In one column its error
    at a difference δ of rows is at most m! (2γδ²)^m / (2m)!. So it falls faster than exponentially once m exceeds
    γδ²/2. The lightest frequencies are left out, see :meth:`from_box`, which builds a map.

    Compared with other maps, in lengths ℓ = 1/√(2γ) of the kernel:

    * ``LatticeMap`` needs a margin of six lengths in every column, and this map needs none. For the same error, this
      map has fewer features: less than a half in two columns of one length, less than a third in three, but about as
      many in a box that is wider than 16 lengths.
    * ``FourierMap`` has an error of J^-½ for any box and any number of columns. The error of this map is smaller if the
      map exists. It does not exist for wide boxes of more than three columns.
    * Its diameter is smaller than √2 in a box of up to about two lengths, and just above √2 otherwise.

    Attributes:
      kernel: k, Gaussian.
      centre: c, the centre of the box, [d].
      half_widths: half of the widths of the box, and a millionth more, so that rows on a bound are inside, [d]. A row
        outside of the box counts as the zero vector.
      counts: m, the number of nodes of each column, [d].
      turns: ω / 2π, [J/2, d]. They have one of ω and −ω, and the heaviest frequency is first. Features are computed in
        their dtype.
      amplitudes: √w, or √(2w) for a frequency that stands for its opposite, too, [J/2].
      least_cosine: lower bound of Q(x − x′) for rows in the box, from −1 to 1.

    Examples:
      >>> from kme_jax import Gaussian, QuadratureMap
      >>> features = QuadratureMap.from_box(Gaussian(gamma=0.5), [0, 0, 0], [1, 1, 1])
      >>> print(f"{features.num_features} features, diameter {features.diameter:.3f}")
      302 features, diameter 1.246
    """

    kernel: Gaussian  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    centre: Float64[np.ndarray, "d"]
    half_widths: Float64[np.ndarray, "d"]
    counts: Int64[np.ndarray, "d"]
    turns: Float[AnyArray, "frequencies d"]
    amplitudes: Float[np.ndarray, "frequencies"]
    least_cosine: float

    @classmethod
    def from_box(
        cls,
        kernel: Gaussian,
        lower: Real[AnyArray, "d"],
        upper: Real[AnyArray, "d"],
        num_features: int = 10_000,
        *,
        dtype=np.float32,
    ) -> QuadratureMap:
        """The map for rows between bounds.

        Let e be the smallest of 10⁻⁶, ..., 10⁻² (four in a decade) for which J features are enough. Each column has the
        fewest nodes with an error of at most e/d for rows in the box. The lightest frequencies, which together weigh at
        most e, are left out. So ⟨ψ(x), ψ(y)⟩ is k(x, y) up to 2e.

        Args:
          kernel: k, Gaussian.
          lower: public lower bounds of the columns, [d].
          upper: upper bounds, [d].
          num_features: the largest J, even.
          dtype: float32 or float64.

        Raises:
          ValueError: if the kernel is not Gaussian, or J is odd or below 2, or the dtype is another one, or bounds are
            not finite and in order, or the box is so large, or has so many columns, that J features are not enough for
            e = 10⁻².
        """
        if not isinstance(kernel, Gaussian):
            raise ValueError(f"a QuadratureMap needs a Gaussian kernel, got {type(kernel).__name__}; use a FourierMap")
        num_features, dtype = operator.index(num_features), np.dtype(dtype)
        if num_features < 2 or num_features % 2:
            raise ValueError(f"num_features must be even and at least 2 (cos and sin are paired), got {num_features}")
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        lower, upper = checked_bounds(lower, upper)
        length = 1 / math.sqrt(2 * float(kernel.gamma))
        chosen = _choose(tuple((upper - lower) / length), num_features)
        if chosen is None:
            raise ValueError(f"the box is too large for quadrature with {num_features} features; use a FourierMap")
        counts, indices, weights = chosen
        centre, half_widths = box_between(lower, upper, length)
        columns = [_turns(count, _unit(kernel), dtype) for count in counts]
        return cls(
            kernel=kernel,
            centre=centre,
            half_widths=half_widths,
            counts=np.asarray(counts, np.int64),
            turns=np.stack([column[index] for column, index in zip(columns, indices.T, strict=True)], axis=1),
            amplitudes=np.sqrt(weights).astype(dtype),
            least_cosine=_least_cosine(kernel, np.asarray(counts), half_widths, dtype),
        )

    def check_box(self, lower, upper):
        check_same_box(self.centre, self.half_widths, lower, upper, "map")

    def validate(self):
        check_array(self.turns, "turns", "f", (None, None))
        check_box_fields(self.centre, self.half_widths, self.dim)
        check_array(self.counts, "counts", "i", (self.dim,))
        check_array(self.amplitudes, "amplitudes", "f", (len(self.turns),))
        require(self.amplitudes.dtype == self.turns.dtype, "amplitudes: they have another precision than turns")
        require(bool(((self.counts >= 1) & (self.counts <= _MAX_NODES)).all()), "counts: expected 1 to 512 nodes")
        check_positive("amplitudes", float(np.min(self.amplitudes)))
        dtype, unit = self.turns.dtype, _unit(self.kernel)
        places, weights = [], np.ones(len(self.turns))
        for count, turns in zip(self.counts.tolist(), np.asarray(self.turns, np.float64).T, strict=True):
            nodes, node_weights = _turns(count, unit, dtype).astype(np.float64), _rule(count)[1]
            nearest = np.argmin(np.abs(turns[:, None] - nodes), axis=1)
            close = np.allclose(turns, nodes[nearest], rtol=1e-5, atol=1e-9 * unit)
            require(close, "turns: they are not the nodes of the kernel")
            places.append(2 * nearest - (count - 1))  # opposite for opposite nodes
            weights = weights * node_weights[nearest]
        places = np.stack(places, axis=1)
        signs = np.sign(np.take_along_axis(places, np.argmax(places != 0, axis=1)[:, None], axis=1))
        unique_places = np.unique(np.where(signs < 0, -places, places), axis=0)
        require(len(unique_places) == len(places), "turns: a frequency, or its negative, appears twice")
        weights = np.where(np.any(places, axis=1), 2, 1) * weights
        close = np.allclose(np.square(self.amplitudes, dtype=np.float64), weights, rtol=1e-5, atol=0)
        require(close, "amplitudes: they do not match the kernel")
        least = _least_cosine(self.kernel, self.counts, self.half_widths, dtype)
        require(self.least_cosine <= least + _ROUNDING, "least_cosine: larger than the proved bound")
        require(self.least_cosine >= -1, "least_cosine: expected a number from -1 to 1")

    @property
    def num_features(self) -> int:
        return 2 * self.turns.shape[0]

    @property
    def dim(self) -> int:
        return self.turns.shape[1]

    @property
    def length_scale(self) -> float:
        """ℓ = 1/√(2γ)."""
        return 1 / math.sqrt(2 * self.kernel.gamma)

    @property
    def diameter(self) -> float:
        """√(2(1 − c)) or 1, whichever is larger, with c = :attr:`least_cosine`: just above √2 for a wide box, and less
        for a small one. Nodes are not random, so the bound cannot fail.

        Formal guarantee, for the features of each row (sums of float32 features add errors of their own, see
        ``mean_embedding``): with θ_i = ω_iᵀ(x − x′), ‖ψ(x) − ψ(x′)‖² = Σ 2 w_i (1 − cos θ_i) over the frequencies in
        use. No term is negative, so it is at most the same sum over the whole tensor grid, which is 2 − 2 Q(x − x′),
        because all weights sum to 1. Q is a product of one sum q_j of cosines for each column, with q_j ≤ 1.
        ``_least_in_column`` proves q_j ≥ c_j for rows in the box. If all c_j ≥ 0, Q ≥ Π c_j. Otherwise Q ≥ min c_j: a
        negative product has a negative factor, and no other factor is larger than 1 in absolute value. The squared
        distance from the zero vector is Σ w_i ≤ 1.

        Rounding x − c gives the features of another row, for which the box is widened by a millionth. c is computed for
        the rounded nodes, which are a tensor grid too. Rounding a product and a sum with ω, |x − c| ≤ r, moves an angle
        by no more than (d + 1) u Σ_j |ω_ij| r_j, with u the unit roundoff. It moves an inner product by twice that,
        weighted. A factor 1 + 32u covers the rounding of the amplitudes, and of sines and cosines.
        """
        roundoff = float(np.finfo(self.amplitudes.dtype).eps) / 2
        sizes = 2 * math.pi * np.abs(np.asarray(self.turns, np.float64)) @ self.half_widths
        moved = np.minimum(2, 2 * (self.dim + 1) * roundoff * sizes)
        slack = float(np.sum(np.square(np.asarray(self.amplitudes, np.float64)) * moved))
        return max(math.sqrt(2 * (1 - self.least_cosine + slack)) * (1 + 32 * roundoff), self.norm_bound)

    @property
    def norm_bound(self) -> float:
        """1, because the weights sum to 1 or less, and a factor for rounded amplitudes."""
        return 1 + 32 * float(np.finfo(self.amplitudes.dtype).eps)

    @property
    def published_diameter(self) -> float:
        """2 ([B] proposition 9, for Fourier features of norm 1)."""
        return 2.0

    @property
    def row_bound(self) -> float:
        """The largest absolute value of an entry in the box; see also :meth:`covers`."""
        return float(np.max(np.abs(self.centre) + self.half_widths))

    def covers(self, rows):
        return are_inside(rows, self.centre, self.half_widths)

    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ(x_n) in the precision of the map, for public points: [n, d] -> [n, J].

        x − c is computed in the precision of the map, so for float32 c should not be many lengths from the origin.
        (:meth:`weighted_sum` computes it in float64.) Beyond the box, inner products are not those of the kernel.

        Raises:
          ValueError: if a float64 map is called outside of ``kme_jax.float64()``.
        """
        dtype = self.amplitudes.dtype
        if jnp.asarray(self.amplitudes).dtype != dtype:
            raise ValueError("a float64 QuadratureMap must be called within kme_jax.float64()")
        local = jnp.asarray(x, dtype) - jnp.asarray(self.centre, dtype)[None, :]
        turns = jnp.matmul(local, jnp.asarray(self.turns, dtype).T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(turns)
        amplitudes = jnp.asarray(self.amplitudes, dtype)[None, :]
        return jnp.concatenate([amplitudes * cos, amplitudes * sin], axis=1)

    def angles(self, rows):
        dtype = self.amplitudes.dtype
        return np.asarray(self.turns), (np.asarray(rows, np.float64) - self.centre).astype(dtype)

    def waves(self, centre, length):
        turns = np.asarray(self.turns, np.float64)
        return WeightedWaves(
            amplitudes=jnp.asarray(self.amplitudes, jnp.float32),
            turns=jnp.asarray(turns * length, jnp.float32),
            phases=jnp.asarray(np.remainder(turns @ (centre - self.centre), 1), jnp.float32),
        )


def _choose(widths: tuple[float, ...], num_features: int) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """The numbers of nodes of the columns, and the frequencies that are kept: indices and weights, see ``_heaviest``.

    Args:
      widths: of the box, in lengths ℓ, [d].
      num_features: the largest J.
    """
    chosen = None
    for target in _TARGETS[::-1]:  # the first ones are the quickest, and often say that there is none
        counts = [_nodes_for(float(width), float(target) / len(widths)) for width in widths]
        numbers = tuple(count for count in counts if count is not None)
        if len(numbers) < len(counts) or math.prod(numbers) > _MAX_TABLE:
            break
        indices, weights = _heaviest(numbers, float(target))
        if 2 * len(weights) > num_features:
            break
        chosen = numbers, indices, weights
    return chosen
