"""ψ(x): paired random Fourier features (Rahimi & Recht 2007), [B] algorithm 2."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax import tiles
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.kernels import Kernel, orthogonal_normal
from kme_jax.numerics import precision_of
from kme_jax.pytrees import pytree_dataclass
from kme_jax.sincos import sincos_turns

Array = jax.Array

# Up to this many, products of columns are as fast as a matrix product that has to be stored.
_ELEMENTWISE_COLUMNS = 8


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class _CosSin:
    """cos and sin of 2π times the inner product of turns and rows, for ``tiles.pair_sums``."""

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


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FourierMap(FeatureMap):
    """√(2κ/J) [cos ω_1ᵀx, ..., cos ω_{J/2}ᵀx, sin ω_1ᵀx, ..., sin ω_{J/2}ᵀx], ω from the spectral measure.

    ⟨ψ(x), ψ(y)⟩ is an unbiased estimate of k(x, y) with standard error O(J^-½), and ‖ψ(x)‖ = √κ for every x. Build one
    with :meth:`from_kernel`.

    Attributes:
      kernel: k.
      turns: ω / 2π, [J/2, d], on the host; its dtype is the one that features are computed in.
    """

    kernel: Kernel
    turns: np.ndarray

    @classmethod
    def from_kernel(
        cls,
        key: Array,
        kernel: Kernel,
        num_features: int,
        dim: int,
        *,
        orthogonal: bool = False,
        dtype=np.float32,
    ) -> FourierMap:
        """Draws frequencies.

        Args:
          key: a JAX random key. The frequencies are public, and independent of the rows and of the noise.
          kernel: k, shift-invariant.
          num_features: J, even: one cosine and one sine for each of J/2 frequencies.
          dim: d.
          orthogonal: orthogonal frequencies (Yu et al. 2016), of smaller variance; see ``Kernel.spectral_sample``.
          dtype: float32 or float64.

        Raises:
          ValueError: J odd or below 2; d < 1; another dtype; a kernel that is not shift-invariant, or one whose
            frequencies overflow the dtype.
        """
        num_features, dim, dtype = operator.index(num_features), operator.index(dim), np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        if num_features < 2 or num_features % 2:
            raise ValueError(f"num_features must be even and at least 2 (cos and sin are paired), got {num_features}")
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        with precision_of(np.empty(0, dtype)):
            normal = orthogonal_normal if orthogonal else jax.random.normal
            frequencies = kernel.spectral_sample(key, num_features // 2, dim, dtype, normal=normal)
            turns = np.asarray(frequencies / (2 * math.pi))
        if not (np.isfinite(turns).all() and turns.any()):
            raise ValueError(f"{kernel}: its frequencies are beyond the range of {dtype}; scale the columns")
        return cls(kernel, turns)

    @property
    def num_features(self) -> int:
        return 2 * self.turns.shape[0]

    @property
    def dim(self) -> int:
        return self.turns.shape[1]

    @property
    def scale(self) -> float:
        """√(2κ/J), what every cosine and sine is multiplied by."""
        return math.sqrt(self.kernel.diagonal_bound / self.turns.shape[0])

    @property
    def diameter(self) -> float:
        """2√κ.

        Formal guarantee: cos² + sin² = 1 gives ‖ψ(x)‖² = (J/2)(2κ/J) = κ for every x, so ‖ψ(x) − ψ(x′)‖ ≤ 2√κ ([B]
        proposition 9); it is approached, as inner products of features reach −κ, so √2 would be wrong even for k ≥ 0.
        """
        return 2 * math.sqrt(self.kernel.diagonal_bound)

    @property
    def published_diameter(self) -> float:
        """2√κ, as proved. (Too small for the published code's cos(ωᵀx + b) features, whose norm reaches √2.)"""
        return self.diameter

    @property
    def row_bound(self) -> float:
        """Half of what could overflow ωᵀx in the map's precision."""
        largest = float(np.abs(np.asarray(self.turns)).max())
        return float(np.finfo(self.turns.dtype).max) / (2 * self.dim * max(largest, 1.0))

    def __call__(self, x: Array) -> Array:
        """ψ(x_n) in the map's precision: [n, d] -> [n, J]. A float64 map must be called within ``numerics.float64()``.

        Raises:
          ValueError: a float64 map outside of it.
        """
        if jnp.asarray(self.turns).dtype != self.turns.dtype:
            raise ValueError("a float64 FourierMap must be called within kme_jax.numerics.float64()")
        angle = jnp.matmul(jnp.asarray(x, self.turns.dtype), self.turns.T, precision=jax.lax.Precision.HIGHEST)
        sin, cos = sincos_turns(angle)
        return self.scale * jnp.concatenate([cos, sin], axis=1)

    def weighted_sum(self, rows, weights, *, devices=None, progress=None):
        dtype = self.turns.dtype
        sums = tiles.pair_sums(
            _CosSin(),
            np.asarray(self.turns),
            np.asarray(rows, dtype),
            np.asarray(weights, dtype),
            devices=devices,
            progress=progress,
        )
        return self.scale * sums.reshape(-1)
