"""Fourier features of mixtures of normal distributions, in local coordinates that the caller chooses, for step 3.

In units of a length ℓ from a centre c, a mixture Σ_k w_k N(c + ℓ z_k, ℓ² s² I) has the features

    a_j exp(−s² ‖ℓ ω_j‖² / 2) Σ_k w_k (cos, sin)(ω_jᵀ(c + ℓ z_k)),

because E exp(iωᵀξ) = exp(−‖ω‖²/2) for standard normal ξ. Phases ω_jᵀc are computed in float64, so that float32 is
accurate enough for z with any centre c.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Int32

from kme_jax._numerics import fused, tiles
from kme_jax._numerics.faddeeva import normal_tail
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.sincos import sincos_half_turns, sincos_turns, within_half
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap

Array = jax.Array


class Waves(abc.ABC):
    """The J features of mixtures in local coordinates, in float32: n cosines and then n sines.

    Sums over points are computed as a *table*: an array in an order that each class chooses. It may have entries
    without a frequency. ``features`` puts a table into the order of the map.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
    """

    amplitudes: Float[Array, "frequencies"]
    turns: Float[Array, "frequencies d"]

    @abc.abstractmethod
    def table_of_normals(
        self, centres: Float[AnyArray, "K d"], weights: Float[AnyArray, "K"], widths: Float[AnyArray, "groups"]
    ) -> Float[Array, "..."]:
        """ψ(Σ_k w_k N(z_k, s_g² I)), with k in group g, as a table. Traceable and differentiable.

        Args:
          centres: z, [K, d].
          weights: w, [K].
          widths: s, [G]: one for each group. Each of the G groups has K/G consecutive centres.

        Returns:
          The table, with 0 in entries without a frequency.
        """

    @abc.abstractmethod
    def table(self, features: Float[AnyArray, "F"]) -> Float[AnyArray, "..."]:
        """Features [J] as a table, with 0 in entries without a frequency."""

    @abc.abstractmethod
    def features(self, table: Float[Array, "..."]) -> Float[Array, "F"]:
        """The inverse of ``table``, [J]."""

    def fewer(self, number: int, table: Float[AnyArray, "..."]) -> tuple[Waves, Float[AnyArray, "..."]]:
        """Waves of the first ``number`` frequencies, which are a random sample of all, and their entries of a table.

        All frequencies are returned if there are fewer, or if the first are not a random sample (the default).
        """
        del number
        return self, table

    def cut_at(self, lower: Float[AnyArray, "d"], upper: Float[AnyArray, "d"]) -> Waves | None:
        """Waves whose normal distributions are cut: what is beyond a bound of a column is moved to that bound.

        The default is None: the features of cut distributions would take too long.

        Args:
          lower: lower bounds in the units of the centres, [d].
          upper: upper bounds.
        """
        del lower, upper
        return None

    def squares(self) -> Float[Array, "frequencies"]:
        """‖ℓ ω‖², [n]."""
        return (2 * math.pi) ** 2 * jnp.sum(jnp.square(self.turns), axis=1)

    def mixture(self, centres: Float[Array, "K d"], weights: Float[Array, "K"]) -> Float[Array, "F"]:
        """ψ of weighted points, [J], for points z [K, d] and weights w [K]. Traceable."""
        return self.features(self.table_of_normals(centres, weights, jnp.zeros(1, centres.dtype)))

    def mixtures(
        self, centres: Float[AnyArray, "K d"], weights: Float[AnyArray, "K"], widths: Float[AnyArray, "groups"]
    ) -> Float[Array, "groups F"]:
        """ψ of Σ_k w_k N(z_k, s_g² I) over k in group g, for every group, [G, J]. Traceable."""
        groups = widths.shape[0], weights.shape[0] // widths.shape[0]
        tables = jax.vmap(self.table_of_normals)(centres.reshape(*groups, -1), weights.reshape(groups), widths[:, None])
        return jax.vmap(self.features)(tables)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FreeWaves(Waves):
    """Waves for any frequencies. The table has the cosines and the sines, [2, n].

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      phases: ωᵀc / 2π, [n].
    """

    amplitudes: Float[Array, "frequencies"]
    turns: Float[Array, "frequencies d"]
    phases: Float[Array, "frequencies"]

    def table_of_normals(self, centres, weights, widths):
        return _free_table(self, centres, weights, widths)

    def table(self, features):
        return features.reshape(2, -1)

    def features(self, table):
        return table.reshape(-1)

    def fewer(self, number, table):
        return jax.tree.map(lambda values: values[:number], self), table[:, :number]


# sin(2πr) for |r| ≤ 1/4: r times a polynomial in r² (least squares at Chebyshev's nodes). The error is at most 4e-9.
_SINE = (6.28318516, -41.34165493, 81.60099819, -76.54965682, 39.53581371)


def _sin(turns: Array) -> Array:
    """sin 2πu in float32, to 3e-7 plus the effect of rounding u. It costs half as much as ``sincos_turns``."""
    x = 0.25 - jnp.abs(turns - 0.25 - jnp.round(turns - 0.25))
    y = x * x
    value = jnp.full_like(y, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        value = value * y + coefficient
    return x * value


@jax.custom_vjp
def _free_table(waves: FreeWaves, centres: Array, weights: Array, widths: Array) -> Array:
    return _free_table_forward(waves, centres, weights, widths)[0]


def _free_table_forward(waves, centres, weights, widths):
    groups = widths.shape[0], weights.shape[0] // widths.shape[0], 1
    angle = jnp.matmul(centres, waves.turns.T, precision=jax.lax.Precision.HIGHEST) + waves.phases[None, :]
    angle = angle.reshape(*groups[:2], -1)
    sin, cos = _sin(angle), _sin(angle + 0.25)
    damping = waves.amplitudes[None, :] * jnp.exp(-0.5 * jnp.square(widths)[:, None] * waves.squares()[None, :])
    sums = [damping * jnp.sum(weights.reshape(groups) * values, axis=1) for values in (cos, sin)]
    table = jnp.stack([jnp.sum(values, axis=0) for values in sums])
    return table, (waves, weights, widths, cos, sin, damping, sums)


def _free_table_backward(residuals, cotangent):
    """Cotangents, from the cosines and sines of the forward pass. Those of waves are 0, because waves are data."""
    waves, weights, widths, cos, sin, damping, sums = residuals
    cotangent_cos, cotangent_sin = cotangent[0][None, :], cotangent[1][None, :]
    along_cos, along_sin = damping * cotangent_cos, damping * cotangent_sin
    of_angles = cos * along_sin[:, None, :] - sin * along_cos[:, None, :]
    of_positions = jnp.matmul(of_angles.reshape(-1, cos.shape[2]), waves.turns, precision=jax.lax.Precision.HIGHEST)
    of_centres = 2 * math.pi * weights[:, None] * of_positions
    along_both = [
        jnp.matmul(values, along[:, :, None], precision=jax.lax.Precision.HIGHEST)
        for values, along in ((cos, along_cos), (sin, along_sin))
    ]
    of_weights = cast(jax.Array, sum(along_both))
    of_damping = sums[0] * cotangent_cos + sums[1] * cotangent_sin
    of_widths = -widths * jnp.matmul(of_damping, waves.squares(), precision=jax.lax.Precision.HIGHEST)
    return jax.tree.map(jnp.zeros_like, waves), of_centres, of_weights.reshape(-1), of_widths


_free_table.defvjp(_free_table_forward, _free_table_backward)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeWaves(Waves):
    """Waves for frequencies ω_i = 2π n_i / L_i with integer n.

    The angle of a frequency is a sum of one angle for each column. So K Σ_i R_i cosines and sines, and a matrix
    product, replace K n cosines and sines.

    A frequency is (n_1, ±r) with n_1 = 0, ..., R_1 and r in one half of the lattice of the other columns. The angles of
    both signs have the same four products of cosines and sines. The table is [2, 2, R_1 + 1, number of r]: cosines and
    sines, signs, n_1 and r.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      spacing: ℓ / L, [d].
      phases: c / L, [d].
      places: the index of each frequency in a flattened table of all (sign, n_1, r), int32 [n].
      heights: a in such a table, [2, R_1 + 1, number of r]; 0 in entries without a frequency.
      reach: R, the largest |n_i| of each column, static.
      box: bounds at which normal distributions are cut, in units of ℓ from c, [2, d]; None if they are not.
    """

    amplitudes: Float[Array, "frequencies"]
    turns: Float[Array, "frequencies d"]
    spacing: Float[Array, "d"]
    phases: Float[Array, "d"]
    places: Int32[Array, "frequencies"]
    heights: Float[Array, "2 first rest"]
    reach: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    box: Float[Array, "2 d"] | None = None

    @classmethod
    def of_lattice(
        cls,
        amplitudes: Float[np.ndarray, "frequencies"],
        indices: Int[np.ndarray, "frequencies d"],
        spacing: Float[np.ndarray, "d"],
        phases: Float[np.ndarray, "d"],
    ) -> LatticeWaves:
        """The waves of a lattice.

        Args:
          amplitudes: a, [n].
          indices: the integers of the frequencies, [n, d], with n_1 ≥ 0. No two rows are equal or opposite.
          spacing: ℓ / L, [d].
          phases: c / L, [d].
        """
        reach = np.max(np.abs(indices), axis=0)
        first, rest = indices[:, 0], indices[:, 1:]
        sizes = [int(reach[0]) + 1]
        minus = np.zeros(len(indices), bool)
        if rest.shape[1]:
            # If r_1 < 0, use −r and the sign minus: (n_1, r) is (n_1, −(−r)).
            minus = rest[:, 0] < 0
            rest = np.where(minus[:, None], -rest, rest)
            sizes += [int(reach[1]) + 1, *(2 * int(size) + 1 for size in reach[2:])]
            rest = rest + np.concatenate([[0], reach[2:]]).astype(rest.dtype)
        places = np.ravel_multi_index((minus.astype(int), first, *rest.T), (2, *sizes))
        heights = np.zeros(2 * math.prod(sizes), np.float32)
        heights[places] = amplitudes
        return cls(
            amplitudes=jnp.asarray(amplitudes, jnp.float32),
            turns=jnp.asarray(indices * spacing, jnp.float32),
            spacing=jnp.asarray(spacing, jnp.float32),
            phases=jnp.asarray(phases, jnp.float32),
            places=jnp.asarray(places, jnp.int32),
            heights=jnp.asarray(heights.reshape(2, sizes[0], -1)),
            reach=tuple(int(size) for size in reach),
        )

    def cut_at(self, lower, upper):
        return dataclasses.replace(self, box=jnp.asarray(np.stack([lower, upper]), jnp.float32))

    def table_of_normals(self, centres, weights, widths):
        columns = centres * self.spacing[None, :] + self.phases[None, :]

        def powers(i):
            """(cos, sin) of 2π n_i u_i for all n_i, [K, ·] each, times the damping of column i by the widths."""
            steps = np.arange(0 if i <= 1 else -self.reach[i], self.reach[i] + 1, dtype=columns.dtype)
            sin, cos = sincos_turns(columns[:, i, None] * steps[None, :])
            waves = 2 * math.pi * self.spacing[i] * widths[:, None] * steps[None, :]
            damping = jnp.repeat(jnp.exp(-0.5 * jnp.square(waves)), columns.shape[0] // widths.shape[0], axis=0)
            normals = damping * cos, damping * sin
            return normals if self.box is None else cut(self.box[:, i], i, steps, waves, normals)

        def cut(bounds, i, steps, waves, normals):
            """The same for a normal distribution that is cut at the bounds of column i.

            The part of N(z, s²) inside a bound b > z is all of it without its tail, which begins at a = (b − z)/s
            standard deviations. If z is beyond b, it is a tail that begins at −a. The rest of its mass is at b.
            """
            cos, sin = normals
            size = columns.shape[0] // widths.shape[0]
            waves, spreads = (jnp.repeat(values, size, axis=0) for values in (waves, widths))
            lower, upper = bounds
            starts = (
                jnp.stack([centres[:, i] - lower, upper - centres[:, i]]) / jnp.maximum(spreads, _NARROWEST)[None, :]
            )
            signs = jnp.where(starts >= 0, jnp.float32(1), jnp.float32(-1))
            tail = normal_tail(jnp.abs(starts)[:, :, None], jnp.broadcast_to(waves, (2, *waves.shape)))
            mass = jax.scipy.special.ndtr(-starts)[:, :, None]
            reals = mass - signs[:, :, None] * tail[0]
            imags = np.array([-1, 1], np.float32)[:, None, None] * tail[1]
            of_bounds = sincos_turns((bounds * self.spacing[i] + self.phases[i])[:, None] * steps[None, :])
            sins, cosines = (values[:, None, :] for values in of_bounds)
            whole = jnp.min(jnp.maximum(signs, 0), axis=0)[:, None]
            return (
                whole * cos + jnp.sum(cosines * reals - sins * imags, axis=0),
                whole * sin + jnp.sum(cosines * imags + sins * reals, axis=0),
            )

        def times(left, right):
            """(cos, sin) of all sums of two angles."""
            (a, b), (c, d) = left, right
            cos = a[:, :, None] * c[:, None, :] - b[:, :, None] * d[:, None, :]
            sin = b[:, :, None] * c[:, None, :] + a[:, :, None] * d[:, None, :]
            return cos.reshape(len(cos), -1), sin.reshape(len(sin), -1)

        first, dim = powers(0), len(self.reach)
        ones = jnp.ones((centres.shape[0], 1), columns.dtype)
        rest = functools.reduce(times, [powers(i) for i in range(2, dim)], powers(1)) if dim > 1 else (ones, 0 * ones)
        left = weights[:, None] * jnp.concatenate(first, axis=1)
        products = jnp.matmul(left.T, jnp.concatenate(rest, axis=1), precision=jax.lax.Precision.HIGHEST)
        products = products.reshape(2, first[0].shape[1], 2, rest[0].shape[1])
        (cos_cos, cos_sin), (sin_cos, sin_sin) = products[0].swapaxes(0, 1), products[1].swapaxes(0, 1)
        cosines = jnp.stack([cos_cos - sin_sin, cos_cos + sin_sin])
        sines = jnp.stack([sin_cos + cos_sin, sin_cos - cos_sin])
        return self.heights[None] * jnp.stack([cosines, sines])

    def table(self, features):
        empty = jnp.zeros((2, self.heights.size), features.dtype)
        table = empty.at[:, self.places].set(features.reshape(2, -1), unique_indices=True)
        return table.reshape(2, *self.heights.shape)

    def features(self, table):
        return table.reshape(2, -1)[:, self.places].reshape(-1)


_NARROWEST = 1e-6  # the smallest width that is told from 0 where normal distributions are cut, in units of ℓ

# Up to this many columns, products of columns are as fast as a matrix product that has to be stored.
_ELEMENTWISE_COLUMNS = 8


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class CosSin:
    """cos and sin of 2π times the inner products of frequencies and rows, for ``tiles.pair_sums``."""

    num_values: ClassVar[int] = 2

    def __call__(
        self, turns: Float[AnyArray, "m d"], rows: Float[AnyArray, "n d"]
    ) -> tuple[Float[Array, "m n"], Float[Array, "m n"]]:
        if self.is_elementwise(rows.shape[1]):
            columns = [turns[:, c, None] * rows[None, :, c] for c in range(rows.shape[1])]
            angle = functools.reduce(operator.add, columns)
            if len(columns) == 1:
                angle = within_half(jnp.asarray(angle - jnp.round(angle)))
        else:
            angle = jnp.matmul(turns, rows.T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(angle)
        return cos, sin

    def is_elementwise(self, dim):
        return dim <= _ELEMENTWISE_COLUMNS

    def columns(self, turns, rows):
        def values(_, half_turns, rows, exp2):
            del exp2
            angle = functools.reduce(operator.add, map(operator.mul, half_turns, rows))
            # In float32 the kernel's sine is the GPU's approximate instruction. The cosine is not, because both
            # together would wait for the unit that has this instruction.
            sine = jnp.sin if angle.dtype == np.float32 else None
            sin, cos = sincos_half_turns(angle, of_product=len(rows) == 1, sine=sine)
            return cos, sin

        return fused.Columns(2 * turns, rows, values)


class SpectralMap(FeatureMap):
    """A feature map of cosines and sines: [cosines, sines]. E ψ(z + sξ) has a closed form for normal ξ.

    Attributes:
      amplitudes: a, the factor of the cosine and the sine of each frequency, [J/2].
    """

    amplitudes: Float[np.ndarray, "frequencies"]

    @abc.abstractmethod
    def angles(self, rows: Float[AnyArray, "N d"]) -> tuple[Float[np.ndarray, "frequencies d"], Float[AnyArray, "N d"]]:
        """Frequencies [J/2, d] and rows [N, d] whose inner products are the angles, in turns. Both have the dtype that
        features are computed in."""

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        frequencies, rows = self.angles(rows)
        weights = weights if weights.dtype == rows.dtype else weights.astype(rows.dtype)
        sums = tiles.pair_sums(
            CosSin(), frequencies, rows, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        return (np.asarray(self.amplitudes, np.float64) * sums).reshape(-1)

    @property
    def public_inputs(self):
        return ("kernel", "frequencies")

    def integers(self, num_rows):
        return SpectralIntegers.create(self, num_rows)

    @property
    @abc.abstractmethod
    def length_scale(self) -> float:
        """A length over which the kernel varies."""

    @abc.abstractmethod
    def waves(self, centre: Float[np.ndarray, "d"], length: float) -> Waves:
        """The map in units of ``length`` from ``centre`` [d]."""


# -- in integers


# The integer of the largest amplitude. The sum of a chunk of 2^15 rows fits an int32, and so do two squares.
_LEVEL = 32000
_LARGEST = 32767
# A bound of |q − s ψ| for each coordinate: ½ for rounding to an integer, and 32000 times the relative errors of sines
# and cosines (1.2e-7), of the level (6e-8) and of their product (6e-8).
_COORDINATE_ERROR = 0.51


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class IntegerCosSin:
    """Rounded multiples of cos and sin, for ``tiles.pair_sums``. Points are frequencies, with the level as their last
    column."""

    num_values: ClassVar[int] = 2
    values: ClassVar[CosSin] = CosSin()

    def __call__(
        self, points: Float[AnyArray, "m p"], rows: Float[AnyArray, "n d"]
    ) -> tuple[Int32[Array, "m n"], Int32[Array, "m n"]]:
        level = points[:, -1, None]
        cos, sin = (
            jnp.clip(jnp.rint(level * value), -_LARGEST, _LARGEST).astype(jnp.int32)
            for value in self.values(points[:, :-1], rows)
        )
        # This bound of the norm holds even if a cosine is computed wrongly, so the sensitivity is certain.
        largest = level.astype(jnp.int32) + 2
        valid = (cos * cos + sin * sin <= largest * largest).astype(jnp.int32)
        return cos * valid, sin * valid

    def is_elementwise(self, dim):
        return self.values.is_elementwise(dim)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class SpectralIntegers(IntegerMap):
    """Fourier features: q = round(l_j cos), round(l_j sin), in int32, with levels l_j = 32000 a_j / max a.

    Attributes:
      feature_map: a FourierMap, LatticeMap or QuadratureMap in float32.
      units: s = 32000 / max a.
      levels: l, float32 [J/2].
    """

    feature_map: SpectralMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    levels: Float32[np.ndarray, "frequencies"]
    is_of_rows: ClassVar[bool] = True

    @classmethod
    def create(cls, feature_map: SpectralMap, num_rows: int) -> SpectralIntegers:
        """See ``FeatureMap.integers``."""
        if num_rows * (_LEVEL + 2) >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: at most {2**MAX_SUM_BITS // (_LEVEL + 2)} rows can be summed, got {num_rows}")
        if feature_map.angles(np.zeros((1, feature_map.dim)))[0].dtype != np.float32:
            raise ValueError("integer features need a map in float32, got one in another precision")
        amplitudes = np.asarray(feature_map.amplitudes, np.float64)
        units = _LEVEL / float(amplitudes.max())
        return cls(feature_map, units, (units * amplitudes).astype(np.float32))

    @property
    def diameter(self) -> float:
        """s · diameter(ψ) + 1.02 √J.

        Formal guarantee: ‖q(x) − s ψ(x)‖_∞ ≤ 0.51, with ψ at the rounded angles, which the diameter of ψ covers. So
        ‖q(x) − q(x′)‖ ≤ s ‖ψ(x) − ψ(x′)‖ + 2 · 0.51 √J, and it is at most :attr:`certain_diameter`.
        """
        rounding = 2 * _COORDINATE_ERROR * math.sqrt(self.feature_map.num_features)
        return min(self.units * self.feature_map.diameter + rounding, self.certain_diameter)

    @property
    def certain_diameter(self) -> float:
        """2 √(Σ_j (⌊l_j⌋ + 2)²): twice :attr:`norm_bound`."""
        return 2 * self.norm_bound

    @property
    def norm_bound(self) -> float:
        """√(Σ_j (⌊l_j⌋ + 2)²), which is enforced in integers."""
        return math.sqrt(sum((int(level) + 2) ** 2 for level in self.levels)) * (1 + 1e-12)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        frequencies, local = self.feature_map.angles(rows)
        sums = tiles.pair_sums(
            IntegerCosSin(),
            np.concatenate([frequencies, self.levels[:, None]], axis=1),
            local,
            np.asarray(usable, np.int32),
            exact=True,
            rows_planned=rows_planned,
            devices=devices,
            progress=progress,
        )
        return sums.reshape(-1)

    def released(self, total):
        return total
