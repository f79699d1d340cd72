"""ψ(x): paired random Fourier features (Rahimi & Recht 2007), [B] algorithm 2."""

from __future__ import annotations

import dataclasses
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Real

from kme_jax._numerics import random, tiles
from kme_jax._numerics.precision import float64
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.sincos import sincos_turns
from kme_jax._numerics.validation import check_array, require
from kme_jax.feature_maps.waves import CosSin, FreeWaves, SpectralMap
from kme_jax.kernels import Kernel, orthogonal_normal

# A lower bound of all inner products is proved on grids of 2^20 points per axis, see _least_cosine.
_GRID_BITS = 20
_FAILURE_PROBABILITY = 1e-10
_NUM_EXPONENTS = 2100  # at least the number of exponents of float64
_SLACK = 0.01
# Differences at which frequencies are compared with the kernel: lengths in 1/‖ω‖, and directions of columns.
_SCALES, _NUM_DIRECTIONS, _MISTAKEN = (0.5, 1.0, 2.0), 3, 1e-9


def _least_cosine(frequencies: Float[np.ndarray, "n d"], block: int, roundoff: float) -> tuple[float, float]:
    """A lower bound of f(δ) = mean_j cos ω_jᵀδ for all |δ_i| ≤ 2r, and r. It is (−1, ∞) if no better one is proved.

    Proof. Let ω be a draw of the spectral measure and m = k(δ)/κ = E cos ωᵀδ ≥ 0. As cos²u = (1 + cos 2u)/2,
    E cos² ωᵀδ = (1 + k(2δ)/κ)/2 ≤ (1 + m)/2, because 0 ≤ k(2δ) ≤ k(δ) (``Kernel.decreases_along_rays``). Since
    exp(−λc) ≤ 1 − λc + c² g(λ) for c ∈ [−1, 1] and g(λ) = exp(λ) − 1 − λ,

        E exp(−λ cos ωᵀδ) ≤ 1 − λm + (1 + m) g(λ)/2 ≤ exp(g(λ)/2)   where g(λ) ≤ 2λ,

    and with n independent frequencies, P(f(δ) ≤ −t) ≤ exp(n (g(λ)/2 − λt)) (Bennett 1962). λ = log(1 + 2t), for which
    g(λ) ≤ 2λ as t ≤ 1, gives the exponent −n h(2t)/2 with h(u) = (1 + u) log(1 + u) − u. If the frequencies come in
    blocks of ``block``, and only those within a block depend on each other (orthogonal frequencies), Hölder's
    inequality within a block gives the same for n / block. A last block that is cut short counts in proportion
    (log E exp is convex). By the union bound, f(δ) > −t holds at all points of the 2100 grids of 2^20 points per axis
    and spacings 2^e in float64, except with probability 1e-10 over the frequencies. Between a point of the grid and the
    points closest to it, f changes by no more than mean_j min(2, ‖ω_j‖₁ · spacing/2). Frequencies are drawn in float64.
    They are rounded once to float32, and angles are computed in float32. Both together move f by no more than
    mean_j min(2, (d + 2) u ‖ω_j‖₁ · 2r) with u the unit roundoff.

    Args:
      frequencies: ω, [n, d]: independent draws of the spectral measure, or of blocks of them.
      block: how many consecutive frequencies may depend on each other.
      roundoff: u.

    Returns:
      The lower bound, and r.
    """
    num_frequencies, dim = frequencies.shape
    sizes = np.sum(np.abs(frequencies), axis=1)
    typical = float(np.median(sizes))
    if not 1e-290 < typical < 1e290:
        return -1.0, math.inf
    spacing = 2.0 ** math.floor(math.log2(2 * _SLACK / typical))
    half_width = spacing * 2 ** (_GRID_BITS - 1)
    slack = float(np.mean(np.minimum(2, sizes * (spacing / 2 + (dim + 2) * roundoff * half_width))))
    log_events = dim * _GRID_BITS * math.log(2) + math.log(_NUM_EXPONENTS / _FAILURE_PROBABILITY)
    target = 2 * log_events * block / num_frequencies
    if 3 * math.log(3) - 2 <= target:  # h(2): no t below 1 is proved
        return -1.0, math.inf
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + middle) * math.log1p(middle) - middle < target else (low, middle)
    least = -(high / 2 + slack)
    return (least, half_width / 2) if least > -1 else (-1.0, math.inf)


def _check_frequencies(kernel: Kernel, frequencies: Float[np.ndarray, "n d"], block: int) -> None:
    """Refuses frequencies whose mean cosine contradicts the kernel at some differences of rows.

    The proof of the diameter, and the name of the kernel in a statement, rest on E cos ωᵀδ = k(δ)/κ. This is no proof
    that it is true. By Hoeffding's inequality (within a block as in :func:`_least_cosine`), at fixed differences right
    frequencies are refused with a probability of 1e-9 at most.

    Args:
      kernel: k.
      frequencies: ω, float64 [n, d].
      block: how many consecutive frequencies may depend on each other.

    Raises:
      ValueError: they contradict it.
    """
    num_frequencies, dim = frequencies.shape
    length = 1 / max(float(np.median(np.linalg.norm(frequencies, axis=1))), 1e-290)
    directions = np.concatenate([np.eye(dim)[:_NUM_DIRECTIONS], np.full((1, dim), 1 / math.sqrt(dim))])
    differences = np.concatenate([scale * length * directions for scale in _SCALES])
    with float64():
        values = jax.vmap(lambda difference: kernel(difference, jnp.zeros_like(difference)))(jnp.asarray(differences))
        expected = np.asarray(values, np.float64) / kernel.diagonal_bound
    means = np.cos(frequencies @ differences.T).mean(axis=0)
    most = math.sqrt(2 * block * math.log(2 * len(differences) / _MISTAKEN) / num_frequencies)
    worst = int(np.argmax(np.abs(means - expected)))
    if abs(means[worst] - expected[worst]) > most:
        raise ValueError(
            f"{type(kernel).__name__}: frequencies of spectral_sample have the mean cosine {means[worst]:.3g} where "
            f"the kernel is {expected[worst]:.3g} times diagonal_bound; expected radians for each unit of x"
        )


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FourierMap(SpectralMap):
    """√(2κ/J) [cos ω_1ᵀx, ..., cos ω_{J/2}ᵀx, sin ω_1ᵀx, ..., sin ω_{J/2}ᵀx], ω from the spectral measure.

    ⟨ψ(x), ψ(y)⟩ is an unbiased estimate of k(x, y) with standard error O(J^-½), and ‖ψ(x)‖ = √κ for every x. Build one
    with :meth:`from_kernel`.

    Attributes:
      kernel: k.
      turns: ω / 2π, [J/2, d], on the host. Features are computed in its dtype.
      least_cosine: lower bound of ⟨ψ(x), ψ(x′)⟩/κ for rows within ``radius``. −1 holds for any frequencies.
      radius: the largest absolute value of an entry. A row with a larger entry counts as the zero vector.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian
      >>> features = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> features(np.zeros((3, 2), np.float32)).shape
      (3, 64)
      >>> features.diameter
      2.0
    """

    kernel: Kernel
    turns: Float[AnyArray, "frequencies d"]
    least_cosine: float = -1.0
    radius: float = math.inf

    @classmethod
    def from_kernel(
        cls,
        key: PRNGKeyArray,
        kernel: Kernel,
        num_features: int,
        dim: int,
        *,
        orthogonal: bool = False,
        dtype=np.float32,
    ) -> FourierMap:
        """Draws the frequencies of a map.

        Args:
          key: a JAX random key. The frequencies are public, and independent of the rows and of the noise.
          kernel: k, shift-invariant.
          num_features: J, even: one cosine and one sine for each of J/2 frequencies.
          dim: d.
          orthogonal: whether the frequencies are orthogonal (Yu et al. 2016). The variance is then smaller; see
            ``Kernel.spectral_sample``.
          dtype: float32 or float64.

        Raises:
          ValueError: if J is odd or below 2, or d < 1, or the dtype is another one, or the kernel is not
            shift-invariant, or its frequencies overflow the dtype, or contradict the kernel.
        """
        num_features, dim, dtype = operator.index(num_features), operator.index(dim), np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        if num_features < 2 or num_features % 2:
            raise ValueError(f"num_features must be even and at least 2 (cos and sin are paired), got {num_features}")
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        with float64():
            normal = orthogonal_normal if orthogonal else random.normal
            frequencies = np.asarray(kernel.spectral_sample(key, num_features // 2, dim, np.float64, normal=normal))
        with np.errstate(over="ignore", under="ignore"):
            turns = (frequencies / (2 * math.pi)).astype(dtype)
        if not (np.isfinite(turns).all() and turns.any()):
            raise ValueError(f"{kernel}: its frequencies are outside the range of {dtype}; scale the columns")
        block = dim if orthogonal else 1
        _check_frequencies(kernel, frequencies, block)
        if not kernel.decreases_along_rays:
            return cls(kernel, turns)
        roundoff = float(np.finfo(dtype).eps) / 2
        return cls(kernel, turns, *_least_cosine(frequencies, block, roundoff))

    def validate(self):
        check_array(self.turns, "turns", "f", (None, None))
        require(bool(np.any(self.turns)), "turns: all are zero")
        require(-1 <= self.least_cosine < 1, "least_cosine: expected a number from -1 to 1")
        require(self.radius > 0, "radius: expected a positive number")
        if self.least_cosine > -1:  # compare with the bounds proved for independent and for orthogonal frequencies
            frequencies = 2 * math.pi * np.asarray(self.turns, np.float64)
            roundoff = float(np.finfo(self.turns.dtype).eps) / 2
            bounds = [_least_cosine(frequencies, block, roundoff) for block in (1, self.dim)]
            is_proved = any(
                self.least_cosine <= cosine + 1e-5 * abs(cosine) and self.radius <= radius * (1 + 1e-5)
                for cosine, radius in bounds
            )
            require(self.kernel.decreases_along_rays and is_proved, "least_cosine: larger than the proved bound")
            all_differ = len(np.unique(self.turns, axis=0)) == len(self.turns)
            require(all_differ, "turns: two frequencies are equal, so they are not independent draws")

    @property
    def num_features(self) -> int:
        return 2 * self.turns.shape[0]

    @property
    def dim(self) -> int:
        return self.turns.shape[1]

    @property
    def scale(self) -> float:
        """√(2κ/J), the factor of every cosine and sine."""
        return math.sqrt(self.kernel.diagonal_bound / self.turns.shape[0])

    @property
    def length_scale(self) -> float:
        """A length over which the kernel varies, from its frequencies: 1/|ω| for a typical coordinate that is not 0.

        Coordinates are 0 for the columns that a term of a ``GaussianSum`` ignores.
        """
        turns = np.abs(np.asarray(self.turns))
        turns = turns[turns > 0]
        return 0.6745 / (2 * math.pi * float(np.median(turns))) if turns.size else math.inf

    @property
    def diameter(self) -> float:
        """√(2κ(1 − c)) with c = :attr:`least_cosine`: 2√κ for any frequencies, and close to √(2κ) for many.

        Formal guarantee: cos² + sin² = 1 gives ‖ψ(x)‖² = (J/2)(2κ/J) = κ for every x, so ‖ψ(x) − ψ(x′)‖² =
        2κ − 2⟨ψ(x), ψ(x′)⟩ ≤ 2κ(1 − c), and c ≥ −1 always ([B] proposition 9). Inner products can be negative although
        k ≥ 0, so √(2κ) would be wrong. ``_least_cosine`` bounds them from below, except with
        :attr:`failure_probability`. The distance from the zero vector is √κ.
        """
        return math.sqrt(2 * self.kernel.diagonal_bound * (1 - self.least_cosine))

    @property
    def failure_probability(self) -> float:
        """1e-10 over the draw of the frequencies of this map, or 0 if :attr:`diameter` is 2√κ."""
        return _FAILURE_PROBABILITY if self.least_cosine > -1 else 0.0

    @property
    def certain_diameter(self) -> float:
        """2√κ, for any frequencies."""
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def norm_bound(self) -> float:
        """√κ, the norm of every row's features."""
        return math.sqrt(self.kernel.diagonal_bound)

    @property
    def published_diameter(self) -> float:
        """2√κ ([B] proposition 9). (It is too small for the features cos(ωᵀx + b) of the published code, whose norm is
        up to √2.)"""
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def row_bound(self) -> float:
        """:attr:`radius` (about 6000 / d of the kernel's lengths), or a quarter of the size at which ωᵀx could
        overflow, if that is smaller."""
        largest = float(np.abs(np.asarray(self.turns)).max())
        return min(self.radius, float(np.finfo(self.turns.dtype).max) / (4 * self.dim * max(largest, 1.0)))

    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ(x_n) in the precision of the map: [n, d] -> [n, J].

        Raises:
          ValueError: if a float64 map is called outside of ``kme_jax.float64()``.
        """
        if jnp.asarray(self.turns).dtype != self.turns.dtype:
            raise ValueError("a float64 FourierMap must be called within kme_jax.float64()")
        angle = jnp.matmul(jnp.asarray(x, self.turns.dtype), self.turns.T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(angle)
        return self.scale * jnp.concatenate([cos, sin], axis=1)

    @property
    def amplitudes(  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        self,
    ) -> Float[np.ndarray, "frequencies"]:
        """:attr:`scale` for each frequency, [J/2]."""
        return np.full(self.turns.shape[0], self.scale)

    def sum_on_device(self, rows, *, devices=None, progress=None):
        if rows.dtype != self.turns.dtype:
            return super().sum_on_device(rows, devices=devices, progress=progress)
        # The program that cuts rows into pieces looks at the bound, too: a program of its own would cost a launch.
        turns, largest = np.asarray(self.turns), self.bound_of(rows)
        sums = tiles.pair_sums(CosSin(), turns, rows, None, largest=largest, devices=devices, progress=progress)
        return self.scale * sums.reshape(-1)

    def angles(self, rows):
        return np.asarray(self.turns), rows if rows.dtype == self.turns.dtype else rows.astype(self.turns.dtype)

    def waves(self, centre, length):
        turns = np.asarray(self.turns, np.float64)
        return FreeWaves(
            amplitudes=jnp.full(len(turns), self.scale, jnp.float32),
            turns=jnp.asarray(turns * length, jnp.float32),
            phases=jnp.asarray(np.remainder(turns @ centre, 1), jnp.float32),
        )
