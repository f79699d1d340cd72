"""What a feature map ψ: R^d → R^F has to provide, and its version in integers, which secure noise is added to.

Sums of floats depend on the order of the rows, and can differ between neighbours by more than the terms do
(Casacuberta, Shoemate, Vadhan & Wagaman 2022). Noise added in floats leaks (Mironov 2012). So for a release every row
becomes a vector of integers q(x) ≈ s ψ(x), by itself. Integers are summed without rounding, and the sum gets integer
noise. A map and its integer version stand in one module.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.kernels import Kernel

MAX_SUM_BITS = 61  # |Σ_n q(x_n)| < 2^61: noise has room in an int64


def are_codes(values: np.ndarray, num_codes: int | np.ndarray) -> np.ndarray:
    """Which values [..., n] are whole numbers from 0 to ``num_codes`` − 1, of the same shape; NaN is none."""
    return (values >= 0) & (values < num_codes) & (values == np.floor(values))


@jax.jit
def _within(rows, bound):
    return (jnp.abs(rows) <= bound).all(axis=1)


class FeatureMap(abc.ABC):
    """A finite-dimensional feature map with a proved diameter.

    Subclasses are frozen dataclasses registered as pytrees, and hold nothing that is not public.

    Attributes:
      kernel: the kernel k that ⟨ψ(x), ψ(y)⟩ stands for.
    """

    kernel: Kernel

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """F, the length of ψ(x)."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """d, the number of columns of a row."""

    @property
    @abc.abstractmethod
    def diameter(self) -> float:
        """A proved upper bound of sup ‖ψ(x) − ψ(x′)‖₂ over all pairs of rows, the zero vector included (see
        :meth:`covers`). The L2 sensitivity of the mean of ψ over N rows under replace-one is
        diameter / N."""

    @property
    def failure_probability(self) -> float:
        """Probability, over public random choices made for this map, that :attr:`diameter` is too small.

        A mechanism takes it off δ. Maps drawn until one pleases have the sum of theirs.
        """
        return 0.0

    @property
    def certain_diameter(self) -> float:
        """An upper bound that cannot fail, for mechanisms whose δ leaves no room for one that can."""
        return self.diameter

    @property
    def norm_bound(self) -> float:
        """An upper bound of ‖ψ(x)‖₂ that cannot fail: here the diameter, as the zero vector is within it."""
        return self.certain_diameter

    @property
    @abc.abstractmethod
    def published_diameter(self) -> float:
        """The diameter used in the paper that the map comes from, for reproducing its figures."""

    @property
    @abc.abstractmethod
    def row_bound(self) -> float:
        """Entries up to this size give finite features."""

    @property
    def public_inputs(self) -> tuple[str, ...]:
        """What the map was made from, all of it public: names for the privacy statement."""
        return ("kernel",)

    @property
    def public_points(self) -> np.ndarray | None:
        """Points [M, d] that the map was made from, and that step 3 puts weights on; None if there are none."""
        return None

    def integers(self, num_rows: int) -> IntegerMap:
        """The map in integers, for sums over N rows. N and the map are all it depends on.

        Raises:
          ValueError: the map has no integer version; N is too large.
        """
        raise ValueError(f"{type(self).__name__} has no integer version, and secure noise needs one")

    @property
    def proof(self) -> str:
        """Where the proof of :attr:`diameter` is, for the privacy statement."""
        return f"kme_jax.{type(self).__name__}.diameter"

    def cell_noise(self, scale: float, num_rows: int) -> tuple[float, float] | None:
        """The smallest and the largest noise of a count, in rows, where features are counts of rows; else None.

        Args:
          scale: of the noise, per coordinate of the mean.
          num_rows: N.
        """
        del scale, num_rows

    def check_box(self, lower: np.ndarray, upper: np.ndarray) -> None:  # noqa: B027
        """Refuses a map that is not made for rows between these bounds, [d] each.

        Raises:
          ValueError: it is made for others.
        """

    def validate(self) -> None:  # noqa: B027
        """Refuses fields of a map that was read from a file.

        Raises:
          ValueError: they do not fit together.
        """

    def covers(self, rows: np.ndarray) -> np.ndarray:
        """Which rows [n, d] have features, [n]: here those without an entry that is missing or beyond
        :attr:`row_bound`. Any other counts as the zero vector in every mean: a fixed rule for each row by itself, so
        nothing fails because of what a private row holds."""
        bound = min(self.row_bound, float(np.finfo(rows.dtype).max))
        return _within(rows, bound) if isinstance(rows, jax.Array) else np.all(np.abs(rows) <= bound, axis=1)

    @abc.abstractmethod
    def __call__(self, x: jax.Array) -> jax.Array:
        """ψ of every row: [n, d] -> [n, F]. Traceable."""

    @abc.abstractmethod
    def weighted_sum(
        self,
        rows: np.ndarray,
        weights: np.ndarray,
        *,
        rows_planned: int | None = None,
        devices=None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Σ_n a_n ψ(x_n): [F] in float64. The one place where rows are summed.

        Args:
          rows: x, [N, d], that the map :meth:`covers`.
          weights: a, [N].
          rows_planned: how many rows compiled programs are made for, N if None: a public number where N is private.
          devices: JAX devices to spread the rows over; all local devices if None.
          progress: called with (work done, work in all).
        """


class IntegerMap(abc.ABC):
    """q: rows -> integers, and what follows from Σ_n q(x_n). Holds nothing that is not public.

    Attributes:
      feature_map: ψ.
      units: s, integers per 1 of ψ.
    """

    feature_map: FeatureMap
    units: float
    is_of_rows: ClassVar[bool] = True  # whether ``released`` gives back the sum as it is

    @property
    @abc.abstractmethod
    def diameter(self) -> float:
        """A proved upper bound of the L2 distance by which ``released`` sums of neighbours differ, in integers."""

    @property
    @abc.abstractmethod
    def certain_diameter(self) -> float:
        """One that cannot fail; see ``FeatureMap.certain_diameter``."""

    @property
    def num_features(self) -> int:
        """F, how many integers are released."""
        return self.feature_map.num_features

    @property
    def proof(self) -> str:
        """Where the proof of :attr:`diameter` is, for the privacy statement."""
        return f"{type(self).__module__} ({type(self).__name__}.diameter)"

    @property
    def failure_probability(self) -> float:
        """See ``FeatureMap.failure_probability``."""
        return self.feature_map.failure_probability

    @property
    def norm_bound(self) -> float:
        """An upper bound of ‖q(x)‖₂ that cannot fail."""
        return self.certain_diameter

    @abc.abstractmethod
    def sum(
        self,
        rows: np.ndarray,
        usable: np.ndarray,
        *,
        rows_planned: int | None = None,
        devices=None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Σ_n q(x_n) over the usable rows [N], int64: the same for any order, batches and number of devices of one
        kind. SENSITIVE.

        Args:
          rows: [N, d], with finite entries that the map covers.
          usable: which of them count, [N].
          rows_planned: a public number to be used instead of N, where N is private, for whatever decides how a row's
            integers are computed; see ``tiles.pair_sums``.
        """

    @abc.abstractmethod
    def released(self, total: np.ndarray) -> np.ndarray:
        """The integers [F], int64, close to s Σ_n ψ(x_n), that noise is added to, from ``sum`` over all rows."""
