"""ψ(x): random binning features (Rahimi & Recht 2007, section 4), for a Laplacian kernel."""

from __future__ import annotations

import dataclasses
import math
import operator
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, Int64, PRNGKeyArray, Real

from kme_jax._numerics.precision import Progress, float64
from kme_jax._numerics.progress import reporter
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, check_positive, require
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap
from kme_jax.feature_maps.boxes import are_inside, box_between, check_box_fields, check_same_box, checked_bounds
from kme_jax.feature_maps.table import COUNT_WEIGHT
from kme_jax.kernels import Laplacian

_PRIME_BITS = 31
_PRIME = 2**_PRIME_BITS - 1  # a prime. Products of two numbers below it, and one number more, fit an int64
_MAX_FEATURES = 2**26
_BLOCK_ROWS = 1 << 14
_BLOCK = 1 << 17  # pairs of a row and a grid that are computed at once


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RandomBinningMap(FeatureMap):
    """One-hot vectors e_b(x)/√P for each of P random grids, where b(x) is the bucket of the bin of the row x.

    A grid p has a pitch δ_pj and an origin o_pj in each column j. A row has one bin in it: i_j = ⌊(x_j − o_pj) / δ_pj⌋
    for all j. Pitches have the density δ k̈(δ) of [Rahimi & Recht 2007, section 4], where k̈ is the second derivative
    of exp(−γδ). This is a Gamma distribution of shape 2 and scale 1/γ. Origins are uniform. Two rows then share a bin
    with probability k(x, y).

    The bins of a grid are many: their number is a product over columns. So they are hashed into B buckets. The bucket
    of a bin is ((Σ_j m_pj i_j + c_p) mod (2³¹ − 1)) mod B (Carter & Wegman 1979), where m and c are random and public.
    Two bins share a bucket with a probability of at most 1/B + 2⁻³⁰ over m and c. So

        k(x, y) ≤ E ⟨ψ(x), ψ(y)⟩ ≤ k(x, y) + (1 − k(x, y)) (1/B + 2⁻³⁰),

    and the standard deviation is at most 1/(2√P). If the box of the rows has at most B bins in a grid, each bin has a
    bucket of its own, and this grid has no bias. Build a map with :meth:`from_box`.

    Attributes:
      kernel: k, Laplacian.
      centre: the centre of the box of the rows, [d].
      half_widths: half of the widths of the box, and a millionth more, so that rows on a bound are inside, [d]. A row
        outside of the box counts as the zero vector.
      rates: 1/δ, the number of bins in a unit of x, [P, d].
      origins: o, in the unit of x, [P, d]. Bins of rows in the box have i ≥ 0.
      multipliers: m, [P, d].
      constants: c, [P].
      num_buckets: B. ψ has P B features, in P blocks.

    Examples:
      >>> import jax
      >>> from kme_jax import Laplacian, RandomBinningMap
      >>> features = RandomBinningMap.from_box(jax.random.key(0), Laplacian(gamma=1.0), [0, 0], [4, 4], num_grids=100)
      >>> print(f"{features.num_buckets} buckets, {features.num_features} features, diameter {features.diameter:.3f}")
      40 buckets, 4000 features, diameter 1.414
    """

    kernel: Laplacian  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    centre: Float64[np.ndarray, "d"]
    half_widths: Float64[np.ndarray, "d"]
    rates: Float64[AnyArray, "grids d"]
    origins: Float64[AnyArray, "grids d"]
    multipliers: Int64[AnyArray, "grids d"]
    constants: Int64[AnyArray, "grids"]
    num_buckets: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_box(
        cls,
        key: PRNGKeyArray,
        kernel: Laplacian,
        lower: Real[AnyArray, "d"],
        upper: Real[AnyArray, "d"],
        num_grids: int = 400,
        num_buckets: int | None = None,
    ) -> RandomBinningMap:
        """Draws the grids of a map for rows between bounds.

        Args:
          key: a JAX random key. The grids are public, and independent of the rows and of the noise.
          kernel: k, Laplacian.
          lower: public lower bounds of the columns, [d].
          upper: upper bounds, [d].
          num_grids: P. The standard deviation of an inner product is at most 1/(2√P).
          num_buckets: the largest B. The map has fewer buckets if no grid has so many bins in the box. If None, 4√P
            rounded up, so that the bias by collisions is at most half of the largest standard deviation.

        Raises:
          ValueError: if the kernel is not Laplacian, or P or B is below 1, or P B is more than 2²⁶, or bounds are not
            finite and in order, or the box is so large that a grid has 2³¹ − 1 or more bins in a column.
        """
        if not isinstance(kernel, Laplacian):
            raise ValueError(
                f"a RandomBinningMap needs a Laplacian kernel, got {type(kernel).__name__}; use a FourierMap"
            )
        num_grids = operator.index(num_grids)
        if num_grids < 1:
            raise ValueError(f"num_grids must be at least 1, got {num_grids}")
        num_buckets = math.ceil(4 * math.sqrt(num_grids)) if num_buckets is None else operator.index(num_buckets)
        if num_buckets < 1:
            raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")
        if num_grids * num_buckets > _MAX_FEATURES:
            raise ValueError(f"{num_grids} grids of {num_buckets} buckets: expected at most 2^26 features")
        lower, upper = checked_bounds(lower, upper)
        gamma, dim = float(kernel.gamma), len(lower)
        centre, half_widths = box_between(lower, upper, 1 / gamma)
        low, high = centre - half_widths, centre + half_widths
        pitch_key, hash_key = jax.random.split(key)
        with float64():
            uniform = np.asarray(jax.random.uniform(pitch_key, (3, num_grids, dim), np.float64))
            hashes = np.asarray(jax.random.randint(hash_key, (num_grids, dim + 1), 0, _PRIME, np.int64))
        # A Gamma variable of shape 2 is a sum of two exponential ones. The largest of 53 bits is below 1.
        pitches = -(np.log1p(-uniform[0]) + np.log1p(-uniform[1])) / gamma
        origins = low - uniform[2] * pitches
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rates = 1 / pitches
            bins = np.floor((high - origins) * rates) + 1  # in each column
        if not (bins < _PRIME).all():
            raise ValueError("the box is too large for bins of this kernel: use a smaller gamma, or a FourierMap")
        bins_of_grids = np.prod(bins, axis=1)
        num_buckets = int(min(num_buckets, bins_of_grids.max()))
        # A grid with few bins numbers them in the order of the columns, and needs no hash.
        has_few = bins_of_grids <= num_buckets
        before = np.concatenate([np.ones((num_grids, 1)), np.cumprod(bins[:, :-1], axis=1)], axis=1)
        multipliers = np.where(has_few[:, None], np.where(has_few[:, None], before, 0).astype(np.int64), hashes[:, :-1])
        return cls(
            kernel=kernel,
            centre=centre,
            half_widths=half_widths,
            rates=rates,
            origins=origins,
            multipliers=multipliers,
            constants=np.where(has_few, 0, hashes[:, -1]),
            num_buckets=num_buckets,
        )

    def check_box(self, lower, upper):
        check_same_box(self.centre, self.half_widths, lower, upper, "map")

    def validate(self):
        check_array(self.rates, "rates", "f", (None, None))
        check_box_fields(self.centre, self.half_widths, self.dim)
        check_array(self.origins, "origins", "f", self.rates.shape)
        check_array(self.multipliers, "multipliers", "i", self.rates.shape)
        check_array(self.constants, "constants", "i", self.rates.shape[:1])
        check_positive("rates", float(np.min(self.rates)))
        with np.errstate(over="ignore", invalid="ignore"):
            shifts = (self.centre - self.half_widths - self.origins) * self.rates
        in_first_bin = (shifts >= -1e-6) & (shifts <= 1 + 1e-6)
        require(bool(in_first_bin.all()), "origins: the first bin does not have the lower corner of the box")
        for name in ("multipliers", "constants"):
            values = np.asarray(getattr(self, name))
            require(bool(((values >= 0) & (values < _PRIME)).all()), f"{name}: expected numbers from 0 to 2^31 - 2")
        require(self.num_buckets >= 1 and self.num_features <= _MAX_FEATURES, "num_buckets: is out of range")

    @property
    def num_grids(self) -> int:
        """P."""
        return self.rates.shape[0]

    @property
    def num_features(self) -> int:
        return self.num_grids * self.num_buckets

    @property
    def dim(self) -> int:
        return self.rates.shape[1]

    @property
    def public_inputs(self):
        return ("kernel", "grids")

    @property
    def has_derivative(self) -> bool:
        """False: ψ is constant within bins."""
        return False

    @property
    def diameter(self) -> float:
        """√2, for any grids and any hash.

        Formal guarantee: each of the P blocks of ψ(x) has one entry 1/√P and zeros, because a row has one bucket in
        each grid. So ‖ψ(x) − ψ(x′)‖² is a sum over blocks, and a block adds 0 if the buckets are equal, or 2/P. The
        sum is at most 2. The squared distance from the zero vector is 1. No step depends on how a bucket is computed,
        so rounding of bins changes nothing.
        """
        return math.sqrt(2) * (1 + 1e-15)

    @property
    def l1_diameter(self) -> float:
        """2√P: a block adds 0 or 2/√P."""
        return 2 * math.sqrt(self.num_grids) * (1 + 1e-15)

    @property
    def norm_bound(self) -> float:
        """1: P entries 1/√P."""
        return 1 + 1e-15

    @property
    def published_diameter(self) -> float:
        """√2: the paper has none of its own."""
        return self.diameter

    @property
    def row_bound(self) -> float:
        """The largest absolute value of an entry in the box; see also :meth:`covers`."""
        return float(np.max(np.abs(self.centre) + self.half_widths))

    def covers(self, rows):
        return are_inside(rows, self.centre, self.half_widths)

    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ(x_n) in float64, for public points in the box: [n, d] -> [n, P B]. Its derivative is 0.

        Raises:
          ValueError: if rows are not float64: call this within ``kme_jax.float64()``. In float32, a row could be in
            another bin than in sums over rows.
        """
        x = jnp.asarray(x)
        if x.dtype != np.float64:
            raise ValueError("RandomBinningMap needs float64 rows: call it within kme_jax.float64()")
        buckets = self._buckets(x, slice(None), jnp)
        features = jax.nn.one_hot(buckets, self.num_buckets, dtype=np.float64) / math.sqrt(self.num_grids)
        return features.reshape(x.shape[0], self.num_features)

    def _buckets(self, rows: Any, grids: slice, numpy: ModuleType) -> Any:
        """The bucket of each row in some grids: rows in float64 [n, d] -> int64 [n, number of grids].

        Each entry is computed from its row and its grid alone, by a difference and a product, which IEEE 754 rounds in
        one way. (XLA may replace a quotient by a product with a rounded reciprocal.)
        """
        rates, origins, multipliers, constants = (
            numpy.asarray(values)[grids] for values in (self.rates, self.origins, self.multipliers, self.constants)
        )
        total = constants[None, :]
        for j in range(self.dim):
            bins = numpy.floor((rows[:, j, None] - origins[None, :, j]) * rates[None, :, j])
            bins = numpy.clip(bins, 0.0, _PRIME - 1.0).astype(np.int64)
            total = total + multipliers[None, :, j] * bins
            total = (total & _PRIME) + (total >> _PRIME_BITS)  # the same modulo 2³¹ − 1, and below 2³³
        return total % _PRIME % self.num_buckets

    def counts(
        self, rows: Real[AnyArray, "n d"], weights: Real[AnyArray, "n"] | None, *, progress: Progress | bool = False
    ) -> Real[np.ndarray, "F"]:
        """Σ_n a_n over the rows in each bucket: √P Σ_n a_n ψ(x_n).

        Args:
          rows: x, [n, d].
          weights: a, [n]; None for a weight of 1 each.
          progress: a function that is called with (rows done, n).

        Returns:
          [F], int64 without weights, and float64 with weights. The weights 0 and 1 give whole numbers without rounding.
        """
        report = reporter(progress)
        total = np.zeros(self.num_features, np.int64 if weights is None else np.float64)
        for start in range(0, len(rows), _BLOCK_ROWS):
            batch = np.asarray(rows[start : start + _BLOCK_ROWS], np.float64)
            step = max(1, _BLOCK // len(batch))
            for first in range(0, self.num_grids, step):
                buckets = self._buckets(batch, slice(first, first + step), np)
                num_grids = buckets.shape[1]
                places = (buckets + np.arange(num_grids) * self.num_buckets).reshape(-1)
                repeated = None if weights is None else np.repeat(weights[start : start + len(batch)], num_grids)
                features = slice(first * self.num_buckets, (first + num_grids) * self.num_buckets)
                total[features] += np.bincount(places, repeated, num_grids * self.num_buckets)
            if report:
                report(start + len(batch), len(rows))
        return total

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices
        return self.counts(np.asarray(rows), np.asarray(weights, np.float64), progress=progress or False) / math.sqrt(
            self.num_grids
        )

    def integers(self, num_rows):
        return BinningIntegers.create(self, num_rows)


# -- in integers


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class BinningIntegers(IntegerMap):
    """q(x) = s ψ(x): 2²⁰ times the one-hot vectors, without rounding. Integer noise is then so fine that it is like
    continuous noise.

    Attributes:
      feature_map: a RandomBinningMap.
      units: s = 2²⁰ √P.
    """

    feature_map: RandomBinningMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    is_of_rows: ClassVar[bool] = True
    uses_devices: ClassVar[bool] = False

    @classmethod
    def create(cls, feature_map: RandomBinningMap, num_rows: int) -> BinningIntegers:
        """See ``FeatureMap.integers``."""
        if num_rows * COUNT_WEIGHT >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, COUNT_WEIGHT * math.sqrt(feature_map.num_grids))

    @property
    def diameter(self) -> float:
        """2²⁰ √(2P), which is √(2P) in counts of rows.

        Formal guarantee: each of P blocks has one entry 2²⁰ and zeros. So a block adds 0 or 2 · 2⁴⁰ to the squared
        distance. The squared distance from the zero vector is 2⁴⁰ P.
        """
        return COUNT_WEIGHT * math.sqrt(2 * self.feature_map.num_grids) * (1 + 1e-15)

    @property
    def certain_diameter(self) -> float:
        return self.diameter

    @property
    def l1_diameter(self) -> float:
        """2²⁰ · 2P: a block adds 0 or 2 · 2²⁰."""
        return float(2 * COUNT_WEIGHT * self.feature_map.num_grids)

    @property
    def norm_bound(self) -> float:
        """2²⁰ √P."""
        return self.units * (1 + 1e-15)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        del rows_planned, devices
        usable = np.asarray(usable, bool)
        counts = self.feature_map.counts(
            rows, None if usable.all() else usable.astype(np.float64), progress=progress or False
        )
        return counts.astype(np.int64) * COUNT_WEIGHT

    def released(self, total):
        return total
