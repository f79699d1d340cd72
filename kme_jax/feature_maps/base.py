"""The interface of a feature map ψ: R^d → R^F, and of its integer version, which secure noise is added to.

Sums of floats depend on the order of the rows, and can differ between neighbours by more than the terms do
(Casacuberta, Shoemate, Vadhan & Wagaman 2022). Noise added in floats leaks (Mironov 2012). So a release turns each row,
independently of the others, into a vector of integers q(x) ≈ s ψ(x). Integers are summed without rounding, and integer
noise is added to the sum. A map and its integer version are in one module.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64, Real

from kme_jax._numerics.pieces import safe_rows, safe_rows_within, within
from kme_jax._numerics.precision import Progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax.kernels import Kernel

MAX_SUM_BITS = 61  # |Σ_n q(x_n)| < 2^61, so that an int64 has room for the noise


def are_codes(values: Real[AnyArray, "*n"], num_codes: int | Int[np.ndarray, "d"]) -> Bool[AnyArray, "*n"]:
    """Which values [..., n] are whole numbers from 0 to ``num_codes`` − 1, in the same shape. NaN is not a code."""
    if values.dtype.kind in "iu":
        return (values >= 0) & (values < num_codes)
    return (values >= 0) & (values < num_codes) & (values == np.floor(values))


_within, _safe_rows = jax.jit(within), jax.jit(safe_rows)


class FeatureMap(abc.ABC):
    """A finite-dimensional feature map with a proved diameter.

    Subclasses are frozen dataclasses registered as pytrees. All their fields are public.

    Attributes:
      kernel: the kernel k that ⟨ψ(x), ψ(y)⟩ equals or approximates.
      takes_codes: whether rows are whole numbers, so that arrays of integers are used as they are. The integers of a
        row then do not depend on the type of the array, and ``IntegerMap.sum`` looks at no row that is not usable.
    """

    kernel: Kernel
    takes_codes: ClassVar[bool] = False

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
        """A proved upper bound of sup ‖ψ(x) − ψ(x′)‖₂ over all pairs of rows, with the zero vector included (see
        :meth:`covers`). The L2 sensitivity of the mean of ψ over N rows under replace-one is diameter / N."""

    @property
    def failure_probability(self) -> float:
        """The probability that :attr:`diameter` is too small, over the public random choices made for this map.

        A mechanism subtracts it from δ. If a map is chosen from several draws, its failure probability is the sum of
        theirs.
        """
        return 0.0

    @property
    def certain_diameter(self) -> float:
        """An upper bound like :attr:`diameter` that cannot fail, for mechanisms with δ ≤ failure probability."""
        return self.diameter

    @property
    def l1_diameter(self) -> float:
        """A proved upper bound of sup ‖ψ(x) − ψ(x′)‖₁, with the zero vector included, that cannot fail.

        Infinity if there is none that is better than √F times :attr:`diameter`, which holds for every map."""
        return math.inf

    @property
    def norm_bound(self) -> float:
        """An upper bound of ‖ψ(x)‖₂ that cannot fail. By default :attr:`certain_diameter`, which includes the zero
        vector."""
        return self.certain_diameter

    @property
    @abc.abstractmethod
    def published_diameter(self) -> float:
        """The diameter used in the paper that the map comes from, for reproducing its figures."""

    @property
    @abc.abstractmethod
    def row_bound(self) -> float:
        """Rows whose entries have at most this absolute value have finite features."""

    @property
    def public_inputs(self) -> tuple[str, ...]:
        """The public inputs that the map was made from, by the names that the privacy statement uses."""
        return ("kernel",)

    @property
    def public_points(self) -> Float[np.ndarray, "M d"] | None:
        """The points [M, d] that the map was made from, which step 3 weights. None if the map was made from none."""
        return None

    def integers(self, num_rows: int) -> IntegerMap:
        """The map in integers, for sums over N rows. It depends on N and the map alone.

        Raises:
          ValueError: if the map has no integer version, or N is too large.
        """
        raise ValueError(f"{type(self).__name__} has no integer version, and secure noise needs one")

    @property
    def has_derivative(self) -> bool:
        """Whether ψ changes gradually with a row. Generators are trained by its derivative."""
        return True

    @property
    def proof(self) -> str:
        """The place of the proof of :attr:`diameter`, for the privacy statement."""
        return f"kme_jax.{type(self).__name__}.diameter"

    def cell_noise(self, scale: float, num_rows: int) -> tuple[float, float] | None:
        """The smallest and the largest noise scale of a count, in rows. None if features are not counts of rows.

        Args:
          scale: the noise scale of each coordinate of the mean.
          num_rows: N.
        """
        del scale, num_rows

    def check_box(self, lower: Float[np.ndarray, "d"], upper: Float[np.ndarray, "d"]) -> None:  # noqa: B027
        """Checks that the map is made for rows between these bounds, [d] each.

        Raises:
          ValueError: if it is made for other rows.
        """

    def validate(self) -> None:  # noqa: B027
        """Checks the fields of a map that was read from a file.

        Raises:
          ValueError: if a field is invalid, or fields contradict each other.
        """

    def covers(self, rows: Real[AnyArray, "n d"]) -> Bool[AnyArray, "n"]:
        """Which rows [n, d] have features, [n].

        By default a row is covered if none of its entries is missing or beyond :attr:`row_bound`. A row that is not
        covered counts as the zero vector in every mean. This fixed rule looks at one row at a time, so nothing fails
        because of the values of a private row."""
        bound = self.bound_of(rows)
        return _within(rows, bound) if isinstance(rows, jax.Array) else np.all(np.abs(rows) <= bound, axis=1)

    def bound_of(self, rows: Real[AnyArray, "n d"]) -> float:
        """:attr:`row_bound`, or the largest number of the type of the rows, if that is smaller."""
        return min(self.row_bound, float(np.finfo(rows.dtype).max))

    def sum_on_device(
        self, rows: Float[jax.Array, "N d"], *, devices=None, progress: Progress | None = None
    ) -> Float64[np.ndarray, "F"]:
        """Σ_n ψ(x_n) over the rows that the map :meth:`covers`: [F], for rows x [N, d] on an accelerator.

        The arguments are those of :meth:`weighted_sum`."""
        if type(self).covers is FeatureMap.covers:  # then one program does it all
            safe, weights = safe_rows_within(rows, self.bound_of(rows))
        else:
            safe, weights = _safe_rows(rows, self.covers(rows))
        return self.weighted_sum(safe, weights, devices=devices, progress=progress)

    @abc.abstractmethod
    def __call__(self, x: Real[AnyArray, "n d"]) -> Float[jax.Array, "n F"]:
        """ψ of every row: [n, d] -> [n, F]. Traceable."""

    @abc.abstractmethod
    def weighted_sum(
        self,
        rows: Real[AnyArray, "N d"],
        weights: Real[AnyArray, "N"],
        *,
        rows_planned: int | None = None,
        devices=None,
        progress: Progress | None = None,
    ) -> Float64[np.ndarray, "F"]:
        """Σ_n a_n ψ(x_n): [F] in float64. All sums of features over rows are computed here.

        Args:
          rows: x, [N, d], which the map :meth:`covers`.
          weights: a, [N].
          rows_planned: the number of rows that programs are compiled for; N if None. It must be public, so it is given
            if N is private.
          devices: JAX devices to spread the rows over; all local devices if None.
          progress: called with (work done, total work).
        """


class IntegerMap(abc.ABC):
    """q: rows -> integers, with the diameter of the released sum Σ_n q(x_n). All fields are public.

    Attributes:
      feature_map: ψ.
      units: s, the integer that represents 1 of ψ.
      is_of_rows: whether ``released`` returns the sum unchanged, so that ``diameter`` and ``norm_bound`` hold for q
        itself. Only such integers may become a part of those of another map. A class has to state it.
      uses_devices: whether JAX computes the integers, so that they may depend on the kind of device.
    """

    feature_map: FeatureMap
    units: float
    is_of_rows: ClassVar[bool] = False
    uses_devices: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def diameter(self) -> float:
        """A proved upper bound of the L2 distance by which ``released`` sums of neighbours differ, in integers."""

    @property
    @abc.abstractmethod
    def certain_diameter(self) -> float:
        """An upper bound like :attr:`diameter` that cannot fail, see ``FeatureMap.certain_diameter``."""

    @property
    def l1_diameter(self) -> float:
        """The same in the L1 norm, see ``FeatureMap.l1_diameter``."""
        return math.inf

    @property
    def num_features(self) -> int:
        """F, how many integers are released."""
        return self.feature_map.num_features

    @property
    def proof(self) -> str:
        """The place of the proof of :attr:`diameter`, for the privacy statement."""
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
        rows: Real[AnyArray, "N d"],
        usable: Bool[AnyArray, "N"],
        *,
        rows_planned: int | None = None,
        devices=None,
        progress: Progress | None = None,
    ) -> Int64[np.ndarray, "sums"]:
        """Σ_n q(x_n) over the usable rows, int64. SENSITIVE.

        The sum is the same for any order of the rows, any batches, and any number of devices of one kind.

        Args:
          rows: [N, d], with finite entries that the map covers. If the map ``takes_codes``, rows that are not usable
            may be anything.
          usable: which rows count, [N].
          rows_planned: a public number that replaces N, if N is private, wherever the number of rows decides how the
            integers of a row are computed; see ``tiles.pair_sums``.
          devices: JAX devices to spread the rows over; all local devices if None.
          progress: called with (work done, total work).
        """

    def sum_at_levels(self, rows: Real[np.ndarray, "n d"], levels: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "sums"]:
        """The sum of rows that count in part, see ``TableIntegers.sum_at_levels``. Only tables have such rows.

        Raises:
          ValueError: it is another map.
        """
        raise ValueError(f"levels: {type(self.feature_map).__name__} has no rows that count in part")

    def running_sum(self) -> RunningSum:
        """The sum of no rows yet. Batches are added to it."""
        return RunningSum(self)

    @abc.abstractmethod
    def released(self, total: Int64[np.ndarray, "sums"]) -> Int64[np.ndarray, "F"]:
        """The integers [F], int64, that noise is added to. They are computed from ``sum`` over all rows, and are close
        to s Σ_n ψ(x_n)."""


class RunningSum:
    """Σ_n q(x_n) over the batches so far. SENSITIVE. See ``IntegerMap.running_sum``."""

    def __init__(self, integers: IntegerMap):
        self._integers = integers
        self._total: Int64[np.ndarray, "sums"] | None = None

    def _add(self, more: Int64[np.ndarray, "sums"]) -> None:
        self._total = more if self._total is None else self._total + more

    def add(
        self,
        rows: Real[AnyArray, "N d"],
        usable: Bool[AnyArray, "N"],
        *,
        rows_planned: int | None = None,
        devices=None,
        progress: Progress | None = None,
    ) -> None:
        """Adds a batch, see ``IntegerMap.sum``."""
        self._add(self._integers.sum(rows, usable, rows_planned=rows_planned, devices=devices, progress=progress))

    def add_at_levels(self, rows: Real[np.ndarray, "n d"], levels: Int64[np.ndarray, "n"]) -> None:
        """Adds a batch of rows that count in part, see ``IntegerMap.sum_at_levels``."""
        self._add(self._integers.sum_at_levels(rows, levels))

    def total(self) -> Int64[np.ndarray, "sums"]:
        """The sum over all batches, of which there is at least one."""
        assert self._total is not None
        return self._total
