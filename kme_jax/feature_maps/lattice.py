"""ψ(x): Fourier features on a lattice of frequencies, for a Gaussian kernel and few columns, without random error."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int32, Real

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.sincos import sincos_turns
from kme_jax._numerics.validation import check_array, check_positive, require
from kme_jax.feature_maps.boxes import are_inside, box_between, check_box_fields, check_same_box, checked_bounds
from kme_jax.feature_maps.waves import LatticeWaves, SpectralMap
from kme_jax.kernels import Gaussian

_MARGIN = 6.0  # lengths ℓ added to the box, so that the periodic kernel of opposite faces is small: exp(−18)
_TARGET_LOSS = 1e-6  # the share of the kernel's spectral mass to leave out, if the number of features allows it
_MAX_LOSS = 1e-4  # the largest share that may be left out
_REACH = 8.0  # frequency, in 1/ℓ: a share of less than 1e-14 of a column's mass is beyond it
_MAX_TABLE = 2**22  # the largest number of frequencies that are compared
_IMAGES = 3  # after so many periods, of at least _MARGIN lengths each, the kernel is below 1e-70


def _check(kernel: Gaussian, num_features: int) -> None:
    if not isinstance(kernel, Gaussian):
        raise ValueError(f"a LatticeMap needs a Gaussian kernel, got {type(kernel).__name__}; use a FourierMap")
    num_features = operator.index(num_features)
    if num_features < 2 or num_features % 2:
        raise ValueError(f"num_features must be even and at least 2 (cos and sin are paired), got {num_features}")


def _heaviest(
    kernel: Gaussian, widths: np.ndarray, num_features: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, float] | None]:
    """Periods and the heaviest frequencies for a box.

    Args:
      kernel: k.
      widths: the widths of the box, [d].
      num_features: J, twice the largest number of frequencies.

    Returns:
      periods: L, [d].
      heaviest: (indices n, [n, d]; their masses a_n², [n]; P(0)), or None if these frequencies leave out too much mass.
    """
    length = 1 / math.sqrt(2 * kernel.gamma)
    periods = widths + _MARGIN * length
    lengths = periods / length
    reach = np.ceil(_REACH * lengths / (2 * math.pi))
    if np.sum(np.log(2 * reach + 1)) > math.log(_MAX_TABLE):
        return periods, None
    # For one column, p_n is √(2π)/L exp(−(2πn/L)²/2) in units of ℓ. For d columns, p_n and P are products over columns.
    columns = [np.arange(-size, size + 1) for size in reach]
    factors = [
        math.sqrt(2 * math.pi) / period * np.exp(-0.5 * np.square(2 * math.pi * column / period))
        for column, period in zip(columns, lengths, strict=True)
    ]
    total = _total_mass(lengths)
    # Keep the one of n and −n that is later in the lexicographic order of the grid. The middle of the grid is 0.
    grid = np.stack(np.meshgrid(*columns, indexing="ij"), axis=-1).reshape(-1, len(columns))
    half = slice(len(grid) // 2, None)
    grid, masses = grid[half], 2 * functools.reduce(np.multiply.outer, factors).reshape(-1)[half]
    masses[0] /= 2
    order = np.argsort(-masses, kind="stable")[: num_features // 2]
    left_out = total - np.cumsum(masses[order])
    if left_out[-1] > _MAX_LOSS * total:
        return periods, None
    used = order[: 1 + int(np.argmax(left_out <= max(_TARGET_LOSS * total, left_out[-1])))]
    return periods, (grid[used].astype(np.int32), masses[used], total)


def _total_mass(lengths: np.ndarray) -> float:
    """P(0) for periods in units of ℓ."""
    images = np.arange(-_IMAGES, _IMAGES + 1)
    return math.prod(float(np.sum(np.exp(-0.5 * np.square(period * images)))) for period in lengths)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeMap(SpectralMap):
    """a_n [cos ω_nᵀ(x − c), ...; sin ω_nᵀ(x − c), ...] for the heaviest frequencies ω_n of a lattice, 2π n_i / L_i.

    By Poisson's summation formula the Fourier series of the kernel made periodic, P(δ) = Σ_n k(δ + n L), has the
    coefficients p_n = (Π 1/L_i) k̂(n/L) > 0, where k̂ is the kernel's Fourier transform. With a_n² = 2 p_n (n and −n
    share their features) and a_0² = p_0, ⟨ψ(x), ψ(y)⟩ is P(x − y) without the mass left out, which is at most 1e-4 and
    mostly 1e-6. P is k up to about 2d exp(−18) for x and y in the box. Such regular Fourier features have been used for
    Gaussian processes (Hensman, Durrande & Solin 2018; Greengard, Rachh & Barnett 2022). Their number grows like
    (box / length)^d: a box of 60 lengths takes about 100 features in one column, and 10 000 in two. Build one with
    :meth:`from_box`.

    Attributes:
      kernel: k.
      centre: c, the centre of the box, [d].
      half_widths: half of the widths of the box, and a millionth more, so that rows on a bound are inside, [d]. A row
        outside of the box counts as the zero vector.
      periods: L, [d].
      indices: n, integers, [J/2, d]. They have one of n and −n, and the heaviest frequency is first.
      amplitudes: a, [J/2]. Features are computed in their dtype.
      total_mass: P(0), the mass of the whole lattice: Σ p_n.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, LatticeMap
      >>> features = LatticeMap.from_box(Gaussian(gamma=0.5), [-4, -4], [4, 4])
      >>> print(f"{features.num_features} features, diameter {features.diameter:.3f}")
      432 features, diameter 1.414
    """

    kernel: Gaussian  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    centre: Float64[np.ndarray, "d"]
    half_widths: Float64[np.ndarray, "d"]
    periods: Float64[np.ndarray, "d"]
    indices: Int32[np.ndarray, "frequencies d"]
    amplitudes: Float[np.ndarray, "frequencies"]
    total_mass: float

    @classmethod
    def from_box(
        cls,
        kernel: Gaussian,
        lower: Real[np.ndarray, "d"],
        upper: Real[np.ndarray, "d"],
        num_features: int = 10_000,
        *,
        dtype=np.float32,
    ) -> LatticeMap:
        """The map for rows between bounds.

        Args:
          kernel: k, Gaussian.
          lower: public lower bounds of the columns, [d].
          upper: upper bounds, [d].
          num_features: the largest J, even. The map has fewer features if these leave out at most 1e-6 of the spectral
            mass.
          dtype: float32 or float64.

        Raises:
          ValueError: if the kernel is not Gaussian, or J is odd or below 2, or the dtype is another one, or bounds are
            not finite and in order, or the box is so large that J features leave out more than 1e-4 of the mass.
        """
        _check(kernel, num_features)
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        lower, upper = checked_bounds(lower, upper)
        periods, chosen = _heaviest(kernel, upper - lower, num_features)
        if chosen is None:
            raise ValueError(f"the box is too large for a lattice of {num_features} features; use a FourierMap")
        indices, masses, total = chosen
        centre, half_widths = box_between(lower, upper, 1 / math.sqrt(2 * kernel.gamma))
        return cls(
            kernel=kernel,
            centre=centre,
            half_widths=half_widths,
            periods=periods,
            indices=indices,
            amplitudes=np.sqrt(masses).astype(dtype),
            total_mass=total,
        )

    @staticmethod
    def fits(
        kernel: Gaussian, lower: Real[np.ndarray, "d"], upper: Real[np.ndarray, "d"], num_features: int = 10_000
    ) -> bool:
        """Whether ``num_features`` are enough for :meth:`from_box` and a box with finite bounds [d] in order."""
        _check(kernel, num_features)
        widths = np.asarray(upper, np.float64) - np.asarray(lower, np.float64)
        return bool((widths > 0).all()) and _heaviest(kernel, widths, num_features)[1] is not None

    def check_box(self, lower, upper):
        check_same_box(self.centre, self.half_widths, lower, upper, "lattice")

    def validate(self):
        check_array(self.indices, "indices", "i", (None, None))
        check_box_fields(self.centre, self.half_widths, self.dim)
        check_array(self.periods, "periods", "f", (self.dim,))
        check_array(self.amplitudes, "amplitudes", "f", (len(self.indices),))
        for name in ("periods", "amplitudes"):
            check_positive(name, float(np.min(getattr(self, name))))
        require(bool((self.periods >= self.half_widths).all()), "periods: the box is larger than a period")
        signs = np.sign(np.take_along_axis(self.indices, np.argmax(self.indices != 0, axis=1)[:, None], axis=1))
        unique_indices = np.unique(np.where(signs < 0, -self.indices, self.indices), axis=0)
        require(len(unique_indices) == len(self.indices), "indices: an index, or its negative, appears twice")
        # The mass of each frequency and the total mass, as in _heaviest.
        lengths = self.periods * math.sqrt(2 * self.kernel.gamma)
        turns = np.asarray(self.indices, np.float64) * (2 * math.pi / lengths)
        masses = 2 * np.prod(math.sqrt(2 * math.pi) / lengths) * np.exp(-0.5 * np.sum(np.square(turns), axis=1))
        masses[~np.any(self.indices, axis=1)] /= 2
        close = np.allclose(np.square(self.amplitudes, dtype=np.float64), masses, rtol=1e-5, atol=0)
        require(close, "amplitudes: they do not match the kernel")
        total = _total_mass(lengths)
        require(math.isclose(self.total_mass, total, rel_tol=1e-9), "total_mass: it does not match the kernel")

    @property
    def num_features(self) -> int:
        return 2 * self.indices.shape[0]

    @property
    def dim(self) -> int:
        return self.indices.shape[1]

    @property
    def length_scale(self) -> float:
        """ℓ = 1/√(2γ)."""
        return 1 / math.sqrt(2 * self.kernel.gamma)

    @property
    def diameter(self) -> float:
        """Just above √(2 P(0)) ≈ √2. The frequencies are not random, so the bound cannot fail.

        Formal guarantee, for the features of each row (sums of float32 features add errors of their own, see
        ``mean_embedding``): with θ_n = ω_nᵀ(x − x′), ‖ψ(x) − ψ(x′)‖² = Σ 2 a_n² (1 − cos θ_n) over the frequencies in
        use. No term is negative, so it is at most the same sum over the whole lattice, which is 2 P(0) − 2 P(x − x′) ≤
        2 P(0), as P > 0 is a sum of values of k. The squared distance from the zero vector is Σ a_n² ≤ P(0).

        Rounding (x − c)/L gives the features of another row, which the bound covers. Rounding a product and a sum with
        n, |(x − c)/L| ≤ ½, moves an angle by no more than π (d + 1) u ‖n‖₁, with u the unit roundoff. It moves an inner
        product by twice that, weighted. A factor 1 + 32u covers the rounding of the amplitudes, and of sines and
        cosines.
        """
        roundoff = float(np.finfo(self.amplitudes.dtype).eps) / 2
        sizes = np.sum(np.abs(np.asarray(self.indices, np.float64)), axis=1)
        moved = np.minimum(2, 2 * math.pi * (self.dim + 1) * roundoff * sizes)
        slack = float(np.sum(np.square(np.asarray(self.amplitudes, np.float64)) * moved))
        return math.sqrt(2 * (self.total_mass + slack)) * (1 + 32 * roundoff)

    @property
    def norm_bound(self) -> float:
        """√P(0), because the frequencies in use have at most the whole mass, and a factor for rounded amplitudes."""
        return math.sqrt(self.total_mass) * (1 + 32 * float(np.finfo(self.amplitudes.dtype).eps))

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
        """ψ(x_n) in the precision of the map, for public points: [n, d] -> [n, J]. It is periodic beyond the box.

        x − c is computed in the precision of the map, so for float32 c should not be many lengths from the origin.
        (:meth:`weighted_sum` computes it in float64.)

        Raises:
          ValueError: if a float64 map is called outside of ``kme_jax.float64()``.
        """
        dtype = self.amplitudes.dtype
        if jnp.asarray(self.amplitudes).dtype != dtype:
            raise ValueError("a float64 LatticeMap must be called within kme_jax.float64()")
        centre, periods, amplitudes = (
            jnp.asarray(v, dtype)[None, :] for v in (self.centre, self.periods, self.amplitudes)
        )
        angles = (jnp.asarray(x, dtype) - centre) / periods
        turns = jnp.matmul(angles, jnp.asarray(self.indices, dtype).T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(turns)
        return jnp.concatenate([amplitudes * cos, amplitudes * sin], axis=1)

    def angles(self, rows):
        dtype = self.amplitudes.dtype
        local = (np.asarray(rows, np.float64) - self.centre) / self.periods
        return np.asarray(self.indices, dtype), local.astype(dtype)

    def waves(self, centre, length):
        return LatticeWaves.of_lattice(
            self.amplitudes, self.indices, length / self.periods, (centre - self.centre) / self.periods
        )
