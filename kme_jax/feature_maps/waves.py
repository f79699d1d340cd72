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
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax import fused, tiles
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.pytrees import pytree_dataclass
from kme_jax.sincos import folded_sincos_turns, sincos_turns

Array = jax.Array


class Waves(abc.ABC):
    """Features of mixtures in local coordinates, in float32, J of them: n cosines and then n sines.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
    """

    amplitudes: Array
    turns: Array

    @abc.abstractmethod
    def sums(self, centres: Array, weights: Array) -> tuple[Array, Array]:
        """Σ_k w_k cos and Σ_k w_k sin of the angles at centres z [K, d] with weights w [K]: two arrays [n]."""

    def squares(self) -> Array:
        """‖ℓ ω‖², [n]."""
        return (2 * math.pi) ** 2 * jnp.sum(jnp.square(self.turns), axis=1)

    def mixture(self, centres: Array, weights: Array) -> Array:
        """ψ of weighted points, [J]: z [K, d], w [K]. Traceable."""
        cosines, sines = self.sums(centres, weights)
        return jnp.concatenate([self.amplitudes * cosines, self.amplitudes * sines])

    def mixtures(self, centres: Array, weights: Array, widths: Array) -> Array:
        """ψ of Σ_k w_k N(z_k, s_g² I) over k in group g, for every group, [G, J]: z [K, d], w [K], and s [G], one for
        each of the G groups of K/G centres that follow one another. Traceable."""
        groups = widths.shape[0], weights.shape[0] // widths.shape[0]
        cosines, sines = jax.vmap(self.sums)(centres.reshape(*groups, -1), weights.reshape(groups))
        damping = self.amplitudes[None, :] * jnp.exp(-0.5 * jnp.square(widths)[:, None] * self.squares()[None, :])
        return jnp.concatenate([damping * cosines, damping * sines], axis=1)

    def mixture_of_normals(self, centres: Array, weights: Array, widths: Array) -> Array:
        """The sum of ``mixtures`` over the groups, [J]."""
        return jnp.sum(self.mixtures(centres, weights, widths), axis=0)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FreeWaves(Waves):
    """For any frequencies.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      phases: ωᵀc / 2π, [n].
    """

    amplitudes: Array
    turns: Array
    phases: Array

    def sums(self, centres, weights):
        angle = jnp.matmul(centres, self.turns.T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(angle + self.phases[None, :])
        return weights @ cos, weights @ sin


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeWaves(Waves):
    """For frequencies ω_i = 2π n_i / L_i with integer n: cosines and sines of sums of angles, one for each column, so
    that K Σ_i R_i of them and a matrix product take the place of K n.

    Attributes:
      amplitudes: a, [n].
      turns: ℓ ω / 2π, [n, d].
      spacing: ℓ / L, [d].
      phases: c / L, [d].
      places: of each frequency in the table of all n_1 = 0, ..., R_1, |n_i| ≤ R_i, [n] int32.
      reach: R, static.
    """

    amplitudes: Array
    turns: Array
    spacing: Array
    phases: Array
    places: Array
    reach: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def sums(self, centres, weights, widths=None):
        """As in the base class; of the characteristic functions of N(z_k, s_k² I) for widths s [K]."""
        columns = centres * self.spacing[None, :] + self.phases[None, :]

        def powers(i):
            """(cos, sin) of 2π n_i u_i for all n_i, [K, ·] each."""
            steps = np.arange(0 if i == 0 else -self.reach[i], self.reach[i] + 1, dtype=columns.dtype)
            sin, cos = sincos_turns(columns[:, i, None] * steps[None, :])
            if widths is None:
                return cos, sin
            damping = jnp.exp(-0.5 * jnp.square(2 * math.pi * self.spacing[i] * widths[:, None] * steps[None, :]))
            return damping * cos, damping * sin

        def times(left, right):
            """(cos, sin) of all sums of two angles."""
            (a, b), (c, d) = left, right
            cos = a[:, :, None] * c[:, None, :] - b[:, :, None] * d[:, None, :]
            sin = b[:, :, None] * c[:, None, :] + a[:, :, None] * d[:, None, :]
            return cos.reshape(len(cos), -1), sin.reshape(len(sin), -1)

        first, dim = powers(0), len(self.reach)
        ones = jnp.ones((centres.shape[0], 1), columns.dtype)
        rest = functools.reduce(times, [powers(i) for i in range(1, dim)], (ones, jnp.zeros_like(ones)))
        left = weights[:, None] * jnp.concatenate(first, axis=1)
        table = jnp.matmul(left.T, jnp.concatenate(rest, axis=1), precision=jax.lax.Precision.HIGHEST)
        table = table.reshape(2, first[0].shape[1], 2, rest[0].shape[1])
        cosines, sines = table[0, :, 0] - table[1, :, 1], table[1, :, 0] + table[0, :, 1]
        return cosines.reshape(-1)[self.places], sines.reshape(-1)[self.places]

    def mixture_of_normals(self, centres, weights, widths):
        # Damped column by column, so that one table does for all groups.
        cosines, sines = self.sums(centres, weights, jnp.repeat(widths, weights.shape[0] // widths.shape[0]))
        return jnp.concatenate([self.amplitudes * cosines, self.amplitudes * sines])


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
        def values(_, turns, rows, exp2):
            del exp2
            sin, cos = folded_sincos_turns(functools.reduce(operator.add, map(operator.mul, turns, rows)))
            return cos, sin

        return fused.Columns(turns, rows, values)


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
        weights = weights.astype(rows.dtype)
        sums = tiles.pair_sums(
            CosSin(), frequencies, rows, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        return (np.asarray(self.amplitudes, np.float64) * sums).reshape(-1)

    @property
    @abc.abstractmethod
    def length_scale(self) -> float:
        """A length over which the kernel varies."""

    @abc.abstractmethod
    def waves(self, centre: np.ndarray, length: float) -> Waves:
        """The map in units of ``length`` from ``centre`` [d]."""
