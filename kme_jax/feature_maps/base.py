"""What a feature map ψ: R^d → R^F has to provide."""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import Progress
from kme_jax.kernels import Kernel


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
