"""Fourier features of mixtures of normal distributions, in coordinates of the caller's own: what step 3 computes with.

In units of a length ℓ from a centre c, a mixture Σ_k w_k N(c + ℓ z_k, ℓ² s² I) has the features

    a_j exp(−s² ‖ℓ ω_j‖² / 2) Σ_k w_k (cos, sin)(ω_jᵀ(c + ℓ z_k)),

because E exp(iωᵀξ) = exp(−‖ω‖²/2) for standard normal ξ. Phases ω_jᵀc are taken in float64, so that float32 is enough
for z, wherever c is.
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

from kme_jax._numerics import fused, tiles
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.sincos import sincos_half_turns, sincos_turns
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap

Array = jax.Array


class Waves(abc.ABC):
    """Features of mixtures in local coordinates, in float32, J of them: n cosines and then n sines.

    Sums over points come in an order of the waves' own, a table that may have places without a frequency. ``features``
    has the map's order.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
    """

    amplitudes: Array
    turns: Array

    @abc.abstractmethod
    def table_of_normals(self, centres: Array, weights: Array, widths: Array) -> Array:
        """ψ(Σ_k w_k N(z_k, s_g² I)), with k in group g, as a table: z [K, d], w [K], and s [G], one for each of the G
        groups of K/G centres that follow one another. Traceable and differentiable. Zero where there is no frequency.
        """

    @abc.abstractmethod
    def table(self, features: Array) -> Array:
        """Features [J] as a table, zero where there is no frequency."""

    @abc.abstractmethod
    def features(self, table: Array) -> Array:
        """The inverse of ``table``, [J]."""

    def fewer(self, number: int, table: Array) -> tuple[Waves, Array]:
        """Waves of so many of the frequencies, a random part of all, and the same part of a table.

        All of them where there are not as many, or where no part stands for the others.
        """
        del number
        return self, table

    def squares(self) -> Array:
        """‖ℓ ω‖², [n]."""
        return (2 * math.pi) ** 2 * jnp.sum(jnp.square(self.turns), axis=1)

    def mixture(self, centres: Array, weights: Array) -> Array:
        """ψ of weighted points, [J]: z [K, d], w [K]. Traceable."""
        return self.features(self.table_of_normals(centres, weights, jnp.zeros(1, centres.dtype)))

    def mixtures(self, centres: Array, weights: Array, widths: Array) -> Array:
        """ψ of Σ_k w_k N(z_k, s_g² I) over k in group g, for every group, [G, J]. Traceable."""
        groups = widths.shape[0], weights.shape[0] // widths.shape[0]
        tables = jax.vmap(self.table_of_normals)(centres.reshape(*groups, -1), weights.reshape(groups), widths[:, None])
        return jax.vmap(self.features)(tables)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FreeWaves(Waves):
    """For any frequencies. The table is the features, [2, n].

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      phases: ωᵀc / 2π, [n].
    """

    amplitudes: Array
    turns: Array
    phases: Array

    def table_of_normals(self, centres, weights, widths):
        return _free_table(self, centres, weights, widths)

    def table(self, features):
        return features.reshape(2, -1)

    def features(self, table):
        return table.reshape(-1)

    def fewer(self, number, table):
        return jax.tree.map(lambda values: values[:number], self), table[:, :number]


# sin(2πr) for |r| ≤ 1/4: r times a polynomial in r² (least squares at Chebyshev's nodes), off by 4e-9 at most.
_SINE = (6.28318516, -41.34165493, 81.60099819, -76.54965682, 39.53581371)


def _sin(turns: Array) -> Array:
    """sin 2πu in float32 to 3e-7 and a rounding of u: half the cost of ``sincos_turns`` for both."""
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


def _free_table_backward(kept, cotangent):
    """From the cosines and sines of the way forward. Waves are data, not parameters: they have no cotangent."""
    waves, weights, widths, cos, sin, damping, sums = kept
    cotangent_cos, cotangent_sin = cotangent[0][None, :], cotangent[1][None, :]
    along_cos, along_sin = damping * cotangent_cos, damping * cotangent_sin
    turning = cos * along_sin[:, None, :] - sin * along_cos[:, None, :]
    moved = jnp.matmul(turning.reshape(-1, cos.shape[2]), waves.turns, precision=jax.lax.Precision.HIGHEST)
    centres = 2 * math.pi * weights[:, None] * moved
    along_both = [
        jnp.matmul(values, along[:, :, None], precision=jax.lax.Precision.HIGHEST)
        for values, along in ((cos, along_cos), (sin, along_sin))
    ]
    grown = cast(jax.Array, sum(along_both))
    each = sums[0] * cotangent_cos + sums[1] * cotangent_sin
    wider = -widths * jnp.matmul(each, waves.squares(), precision=jax.lax.Precision.HIGHEST)
    return jax.tree.map(jnp.zeros_like, waves), centres, grown.reshape(-1), wider


_free_table.defvjp(_free_table_forward, _free_table_backward)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeWaves(Waves):
    """For frequencies ω_i = 2π n_i / L_i with integer n: cosines and sines of sums of angles, one for each column, so
    that K Σ_i R_i of them and a matrix product take the place of K n.

    A frequency is (n_1, ±r) with n_1 = 0, ..., R_1 and r in one half of the lattice of the other columns: the angles of
    both signs have the same four products of cosines and sines. The table is [2, 2, R_1 + 1, number of r]: cosines and
    sines, signs, n_1 and r.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      spacing: ℓ / L, [d].
      phases: c / L, [d].
      places: of each frequency in a table of all (sign, n_1, r), flattened, [n] int32.
      heights: a in such a table, [2, R_1 + 1, number of r]; 0 where there is no frequency.
      reach: R, static.
    """

    amplitudes: Array
    turns: Array
    spacing: Array
    phases: Array
    places: Array
    heights: Array
    reach: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of_lattice(
        cls, amplitudes: np.ndarray, indices: np.ndarray, spacing: np.ndarray, phases: np.ndarray
    ) -> LatticeWaves:
        """For indices n [n, d], n_1 ≥ 0, no two of them equal or opposite."""
        reach = np.max(np.abs(indices), axis=0)
        first, rest = indices[:, 0], indices[:, 1:]
        sizes = [int(reach[0]) + 1]
        minus = np.zeros(len(indices), bool)
        if rest.shape[1]:
            # −r where r_1 < 0, with which (n_1, r) is (n_1, −(−r)).
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

    def table_of_normals(self, centres, weights, widths):
        columns = centres * self.spacing[None, :] + self.phases[None, :]

        def powers(i):
            """(cos, sin) of 2π n_i u_i for all n_i, [K, ·] each; damped, column by column, as the widths say."""
            steps = np.arange(0 if i <= 1 else -self.reach[i], self.reach[i] + 1, dtype=columns.dtype)
            sin, cos = sincos_turns(columns[:, i, None] * steps[None, :])
            damping = jnp.exp(-0.5 * jnp.square(2 * math.pi * self.spacing[i] * widths[:, None] * steps[None, :]))
            damping = jnp.repeat(damping, columns.shape[0] // widths.shape[0], axis=0)
            return damping * cos, damping * sin

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


# Up to this many, products of columns are as fast as a matrix product that has to be stored.
_ELEMENTWISE_COLUMNS = 8


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class CosSin:
    """cos and sin of 2π times the inner products of frequencies and rows, for ``tiles.pair_sums``."""

    num_values: ClassVar[int] = 2

    def __call__(self, turns, rows):
        if self.is_elementwise(rows.shape[1]):
            columns = [turns[:, c, None] * rows[None, :, c] for c in range(rows.shape[1])]
            angle = functools.reduce(operator.add, columns)
        else:
            angle = jnp.matmul(turns, rows.T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(angle)
        return cos, sin

    def is_elementwise(self, dim):
        return dim <= _ELEMENTWISE_COLUMNS

    def columns(self, turns, rows):
        def values(_, half_turns, rows, exp2):
            del exp2
            sin, cos = sincos_half_turns(functools.reduce(operator.add, map(operator.mul, half_turns, rows)))
            return cos, sin

        return fused.Columns(2 * turns, rows, values)


class SpectralMap(FeatureMap):
    """A feature map of cosines and sines: [cosines, sines], so that E ψ(z + sξ) is known for normal ξ.

    Attributes:
      amplitudes: a, what the cosine and the sine of each frequency are multiplied by, [J/2].
    """

    amplitudes: np.ndarray

    @abc.abstractmethod
    def angles(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies [J/2, d] and rows [N, d] whose inner products are the angles, in turns; both of the dtype that
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
    def waves(self, centre: np.ndarray, length: float) -> Waves:
        """The map in units of ``length`` from ``centre`` [d]."""


# -- in integers


_LEVEL = 32000  # q of the largest amplitude: a chunk of 2^15 rows fits an int32 sum, and two squares an int32
_LARGEST = 32767
# |q − s ψ| for each coordinate: rounding to an integer; and 32000 times an error of 1.2e-7 of sines and cosines, 6e-8
# of the level and 6e-8 of their product.
_COORDINATE_ERROR = 0.51


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class IntegerCosSin:
    """Rounded multiples of cos and sin, for ``tiles.pair_sums``: points are frequencies and, last, the level."""

    num_values: ClassVar[int] = 2
    values: ClassVar[CosSin] = CosSin()

    def __call__(self, points, rows):
        level = points[:, -1, None]
        cos, sin = (
            jnp.clip(jnp.rint(level * value), -_LARGEST, _LARGEST).astype(jnp.int32)
            for value in self.values(points[:, :-1], rows)
        )
        # The bound that makes the sensitivity certain, whatever computed the cosine.
        largest = level.astype(jnp.int32) + 2
        valid = (cos * cos + sin * sin <= largest * largest).astype(jnp.int32)
        return cos * valid, sin * valid

    def is_elementwise(self, dim):
        return self.values.is_elementwise(dim)


@dataclasses.dataclass(frozen=True, eq=False)
class SpectralIntegers(IntegerMap):
    """Fourier features: q = round(l_j cos), round(l_j sin), in int32, with levels l_j = 32000 a_j / max a.

    Attributes:
      feature_map: a FourierMap or LatticeMap in float32.
      units: s = 32000 / max a.
      levels: l, float32 [J/2].
    """

    feature_map: SpectralMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    levels: np.ndarray

    @classmethod
    def create(cls, feature_map: SpectralMap, num_rows: int) -> SpectralIntegers:
        """See ``FeatureMap.integers``."""
        if num_rows * (_LEVEL + 2) >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: at most {2**MAX_SUM_BITS // (_LEVEL + 2)} rows can be summed, got {num_rows}")
        if feature_map.angles(np.zeros((1, feature_map.dim)))[0].dtype != np.float32:
            raise ValueError("integer features need a map in float32")
        amplitudes = np.asarray(feature_map.amplitudes, np.float64)
        units = _LEVEL / float(amplitudes.max())
        return cls(feature_map, units, (units * amplitudes).astype(np.float32))

    @property
    def diameter(self) -> float:
        """s · diameter(ψ) + 1.02 √J.

        Formal guarantee: ‖q(x) − s ψ(x)‖_∞ ≤ 0.51, with ψ of the angles as they are rounded, which the diameter of ψ
        covers; so ‖q(x) − q(x′)‖ ≤ s ‖ψ(x) − ψ(x′)‖ + 2 · 0.51 √J, and no more than :attr:`certain_diameter`.
        """
        rounding = 2 * _COORDINATE_ERROR * math.sqrt(self.feature_map.num_features)
        return min(self.units * self.feature_map.diameter + rounding, self.certain_diameter)

    @property
    def certain_diameter(self) -> float:
        """2 √(Σ_j (⌊l_j⌋ + 2)²): of vectors no longer than that, as is enforced in integers."""
        return 2 * self.norm_bound

    @property
    def norm_bound(self) -> float:
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
