"""ψ(x) = φ(h(x)): Fourier features of transformed rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Real

from kme_jax._numerics.precision import reproducible_jit
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.base import FeatureMap, IntegerMap
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.transforms import Transform
from kme_jax.kernels import Kernel

_ROWS_AT_ONCE = 2**13  # rows whose h is in memory at a time


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class OfTransform(Kernel):
    """k(x, y) = kernel(h(x), h(y)).

    Attributes:
      kernel: a kernel on the outputs of h.
      transform: h.
    """

    kernel: Kernel
    transform: Transform = dataclasses.field(metadata={"static": True})

    def __call__(self, x, y):
        return self.kernel(self.transform(x[None])[0], self.transform(y[None])[0])

    def pairwise(self, x, y, *, expand=False):
        return self.kernel.pairwise(self.transform(x), self.transform(y), expand=expand)

    @property
    def diagonal_bound(self) -> float:
        return self.kernel.diagonal_bound

    @property
    def is_nonnegative(self) -> bool:
        return self.kernel.is_nonnegative


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TransformedMap(FeatureMap):
    """ψ(x) = φ(h(x)): Fourier features φ of rows that a public transform h has changed.

    Attributes:
      features: φ, the map of h(x).
      transform: h.

    Examples:
      >>> import jax
      >>> from kme_jax import FourierMap, Gaussian
      >>> from kme_jax.feature_maps import OrientedEdges, TransformedMap
      >>> edges = OrientedEdges(height=8, width=8, cells=2)
      >>> fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), 64, dim=edges.num_outputs)
      >>> features = TransformedMap(fourier, edges)
      >>> features.dim, features.num_features, features.diameter
      (64, 64, 2.0)
    """

    features: FourierMap
    transform: Transform = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not isinstance(self.features, FeatureMap):  # JAX puts other objects in the place of fields
            return
        if not isinstance(self.features, FourierMap):  # other maps may not cover all h(x)
            raise ValueError(f"a TransformedMap needs a FourierMap, got a {type(self.features).__name__}")
        if isinstance(self.features.turns, np.ndarray) and self.features.dim != self.transform.num_outputs:
            raise ValueError(
                f"the features take {self.features.dim} columns, and the transform has {self.transform.num_outputs}"
            )

    @property
    def kernel(self) -> Kernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k(h(x), h(y))."""
        return OfTransform(self.features.kernel, self.transform)

    @property
    def public_inputs(self):
        return (*self.features.public_inputs, "transform of rows")

    def integers(self, num_rows):
        return TransformedIntegers.create(self, num_rows)

    @property
    def proof(self):
        return "kme_jax.feature_maps.TransformedMap.diameter"

    @property
    def has_derivative(self):
        return self.features.has_derivative

    @property
    def num_features(self) -> int:
        return self.features.num_features

    @property
    def dim(self) -> int:
        return self.transform.dim

    @property
    def diameter(self) -> float:
        """diameter(φ).

        Formal guarantee: ψ(x) is the value of φ at the row h(x), so sup ‖ψ(x) − ψ(x′)‖ over x and x′ is at most
        sup ‖φ(y) − φ(y′)‖ over all y and y′. h is public and looks at one row at a time.
        """
        return self.features.diameter

    @property
    def failure_probability(self) -> float:
        return self.features.failure_probability

    @property
    def certain_diameter(self) -> float:
        return self.features.certain_diameter

    @property
    def l1_diameter(self) -> float:
        return self.features.l1_diameter

    @property
    def norm_bound(self) -> float:
        """sup ‖φ‖, which bounds ‖φ(h(x))‖."""
        return self.features.norm_bound

    @property
    def published_diameter(self) -> float:
        return self.features.published_diameter

    @property
    def row_bound(self) -> float:
        """A bound of rows whose h(x) is within the bound of φ, with room for rounding. Sums within h do not overflow.
        φ covers every row within its bound."""
        return min(self.features.row_bound, float(np.finfo(np.float32).max) / 4) / (self.transform.gain * 1.01)

    def __call__(self, x):
        return self.features(self.transform(x))

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        total, planned = np.zeros(self.num_features), len(rows) if rows_planned is None else rows_planned
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            piece = slice(start, start + _ROWS_AT_ONCE)
            total += self.features.weighted_sum(
                transformed(self.transform, rows[piece]), np.asarray(weights[piece]),
                rows_planned=min(planned, _ROWS_AT_ONCE), devices=devices,
            )  # fmt: skip
            if progress:
                progress(min(start + _ROWS_AT_ONCE, len(rows)), len(rows))
        return total


@functools.partial(reproducible_jit, static_argnames="transform")
def _one_by_one(rows, count, *, transform):
    """h of the first ``count`` rows of [n, d], [n, num_outputs]. The others are zero."""
    empty = jnp.zeros((len(rows), transform.num_outputs), jnp.float32)
    return jax.lax.fori_loop(0, count, lambda i, out: out.at[i].set(transform(rows[i][None])[0]), empty)


def transformed(transform: Transform, rows: Real[AnyArray, "n d"]) -> Float32[np.ndarray, "n outputs"]:
    """h of rows [n, d], as [n, num_outputs], on the host.

    One program takes one row after another. So h(x) does not depend on the place of x among the rows, not even in its
    last bit: a matrix product of many rows may round the last ones differently.
    """
    padded = np.zeros((_ROWS_AT_ONCE, transform.dim), np.float32)
    parts = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        piece = np.asarray(rows[start : start + _ROWS_AT_ONCE], np.float32)
        padded[: len(piece)] = piece
        parts.append(np.asarray(_one_by_one(padded, np.int32(len(piece)), transform=transform))[: len(piece)])
    return np.concatenate(parts) if parts else np.zeros((0, transform.num_outputs), np.float32)


# -- in integers


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class TransformedIntegers(IntegerMap):
    """q(x) = q_φ(h(x)).

    Attributes:
      feature_map: a TransformedMap.
      units: s, the units of q_φ.
      features: q_φ.
    """

    feature_map: TransformedMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    features: IntegerMap
    is_of_rows: ClassVar[bool] = True

    @classmethod
    def create(cls, feature_map: TransformedMap, num_rows: int) -> TransformedIntegers:
        """See ``FeatureMap.integers``."""
        features = feature_map.features.integers(num_rows)
        return cls(feature_map, features.units, features)

    @property
    def diameter(self) -> float:
        """diameter(q_φ). The proof of ``TransformedMap.diameter`` holds for these integers too: h(x), as it is
        computed, depends on x alone."""
        return self.features.diameter

    @property
    def certain_diameter(self) -> float:
        return self.features.certain_diameter

    @property
    def l1_diameter(self) -> float:
        return self.features.l1_diameter

    @property
    def norm_bound(self) -> float:
        return self.features.norm_bound

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        total, planned = np.zeros(self.num_features, np.int64), len(rows) if rows_planned is None else rows_planned
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            piece = slice(start, start + _ROWS_AT_ONCE)
            total += self.features.sum(
                transformed(self.feature_map.transform, rows[piece]), np.asarray(usable)[piece],
                rows_planned=min(planned, _ROWS_AT_ONCE), devices=devices,
            )  # fmt: skip
            if progress:
                progress(min(start + _ROWS_AT_ONCE, len(rows)), len(rows))
        return total

    def released(self, total):
        return total
