"""ψ(x) in integers, so that sums over private rows are exact: what secure noise is added to.

Sums of floats depend on the order of the rows, and can differ between neighbours by more than the terms do
(Casacuberta, Shoemate, Vadhan & Wagaman 2022); noise added in floats leaks (Mironov 2012). Here every row becomes a
vector of integers q(x) ≈ s ψ(x), by itself; integers are summed without rounding; the sum gets integer noise.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from kme_jax import gram
from kme_jax._numerics import tiles
from kme_jax._numerics.precision import Progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.table import TableMap
from kme_jax.feature_maps.waves import CosSin, SpectralMap
from kme_jax.kernels import Gaussian, Kernel, Laplacian, Matern32, Matern52, Product, Sum

MAX_SUM_BITS = 61  # |Σ_n q(x_n)| < 2^61: noise has room in an int64


class IntegerMap(abc.ABC):
    """q: rows -> integers, and what follows from Σ_n q(x_n). Holds nothing that is not public.

    Attributes:
      feature_map: ψ.
      units: s, integers per 1 of ψ.
    """

    feature_map: FeatureMap
    units: float

    @property
    @abc.abstractmethod
    def diameter(self) -> float:
        """A proved upper bound of the L2 distance by which ``released`` sums of neighbours differ, in integers."""

    @property
    @abc.abstractmethod
    def certain_diameter(self) -> float:
        """One that cannot fail; see ``FeatureMap.certain_diameter``."""

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


def integer_map(feature_map: FeatureMap, num_rows: int) -> IntegerMap:
    """The map in integers, for sums over N rows; N and the map are all it depends on.

    Raises:
      ValueError: a map that has none (a FourierMap or LatticeMap in float64; another class); too many rows.
    """
    if isinstance(feature_map, SpectralMap):
        return SpectralIntegers.create(feature_map, num_rows)
    if isinstance(feature_map, SubspaceMap):
        return SubspaceIntegers.create(feature_map, num_rows)
    if isinstance(feature_map, TableMap):
        return TableIntegers.create(feature_map, num_rows)
    if isinstance(feature_map, MixedMap):
        return MixedIntegers.create(feature_map, num_rows)
    if isinstance(feature_map, LabelledMap):
        return LabelledIntegers.create(feature_map, num_rows)
    raise ValueError(f"there are no integer features for a {type(feature_map).__name__}")


# -- Fourier features


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

    def __call__(self, points, rows):
        level = points[:, -1, None]
        cos, sin = (
            jnp.clip(jnp.rint(level * value), -_LARGEST, _LARGEST).astype(jnp.int32)
            for value in CosSin()(points[:, :-1], rows)
        )
        # The bound that makes the sensitivity certain, whatever computed the cosine.
        largest = level.astype(jnp.int32) + 2
        valid = (cos * cos + sin * sin <= largest * largest).astype(jnp.int32)
        return cos * valid, sin * valid

    def is_elementwise(self, dim):
        return CosSin().is_elementwise(dim)


@dataclasses.dataclass(frozen=True, eq=False)
class SpectralIntegers(IntegerMap):
    """Fourier features: q = round(l_j cos), round(l_j sin), in int32, with levels l_j = 32000 a_j / max a.

    Attributes:
      feature_map: a FourierMap or LatticeMap in float32.
      units: s = 32000 / max a.
      levels: l, float32 [J/2].
    """

    feature_map: SpectralMap
    units: float
    levels: np.ndarray

    @classmethod
    def create(cls, feature_map: SpectralMap, num_rows: int) -> SpectralIntegers:
        """See ``integer_map``."""
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


# -- coordinates in a subspace


_KERNEL_BITS = 38  # a chunk of 2^15 rows sums up to 2^53: exact in float64
_BASIS_BITS = 40  # of B after the point
_DIGIT_BITS, _TOTAL_DIGIT_BITS = 14, 16


@pytree_dataclass
@dataclasses.dataclass(frozen=True)
class IntegerKernelValues:
    """Integers round(s k(z, x)) between 0 (or −sκ) and sκ, as float64, for ``tiles.pair_sums``.

    Attributes:
      kernel: k.
      units: s.
    """

    kernel: Kernel
    units: float
    num_values: ClassVar[int] = 1

    def __call__(self, points, rows):
        (value,) = gram.KernelValues(self.kernel, expand=False)(points, rows)
        most = jnp.ceil(self.units * self.kernel.diagonal_bound)
        least = 0 if self.kernel.is_nonnegative else -most
        return (jnp.clip(jnp.rint(self.units * value), least, most),)

    def is_elementwise(self, dim):
        return gram.KernelValues(self.kernel, expand=False).is_elementwise(dim)


def _evaluation_error(kernel: Kernel, dim: int) -> float:
    """A bound of the error of k(x, y) in float64, for the kernels whose formulas are known here.

    With u = 2^-53: differences are exact to u, a squared distance to (d + 2) u, its root to half of that; x e^-x ≤ 1/e
    turns it into an absolute error of the exponential, itself good to a few u; a Matérn kernel has two more products.
    4 (d + 8) u covers all four. Errors of sums and products of kernels add up, weighted.

    Raises:
      ValueError: a kernel of another class.
    """
    if isinstance(kernel, Sum | Product):
        left, right = _evaluation_error(kernel.left, dim), _evaluation_error(kernel.right, dim)
        sizes = kernel.left.diagonal_bound, kernel.right.diagonal_bound
        both = left + right if isinstance(kernel, Sum) else sizes[1] * left + sizes[0] * right + left * right
        return both + 2.0**-52 * kernel.diagonal_bound
    if type(kernel) not in (Gaussian, Laplacian, Matern32, Matern52):
        raise ValueError(f"{type(kernel).__name__}: how exactly it is computed is not known, so no exact sums of it")
    return 4 * (dim + 8) * 2.0**-53


def _digits(values: np.ndarray, bits: int) -> list[np.ndarray]:
    """Integers in float64 or int64 as Σ_i digit_i 2^(i bits), with digits of absolute value at most 2^(bits−1)."""
    found = []
    while values.any():
        if values.dtype == np.int64:
            upper = (values + (1 << (bits - 1))) >> bits
            found.append((values - (upper << bits)).astype(np.float64))
        else:
            upper = np.rint(np.ldexp(values, -bits))
            found.append(values - np.ldexp(upper, bits))
        values = upper
    return found or [np.zeros(values.shape)]


def exact_product(matrix: np.ndarray, vector: np.ndarray, bits: int) -> np.ndarray:
    """round(A v) for A = round(2^bits matrix) / 2^bits, without any rounding before: products of digits, whose sums are
    exact in float64 in any order.

    Args:
      matrix: [F, M], M < 2^20.
      vector: int64 [M].

    Returns:
      [F], Python integers.
    """
    total = np.zeros(len(matrix), object)
    digits = _digits(vector, _TOTAL_DIGIT_BITS)
    for start in range(0, len(matrix), 512):
        some = slice(start, start + 512)
        for i, left in enumerate(_digits(np.rint(np.ldexp(matrix[some], bits)), _DIGIT_BITS)):
            for j, right in enumerate(digits):
                product = (left @ right).astype(np.int64).astype(object)
                total[some] += product * (1 << (i * _DIGIT_BITS + j * _TOTAL_DIGIT_BITS))
    return (total + (1 << (bits - 1))) // (1 << bits)


@dataclasses.dataclass(frozen=True, eq=False)
class SubspaceIntegers(IntegerMap):
    """q(x) = round(s k_S(x)), and B applied once to the sum, exactly.

    Attributes:
      feature_map: a SubspaceMap.
      units: s, a power of two.
    """

    feature_map: SubspaceMap
    units: float

    @classmethod
    def create(cls, feature_map: SubspaceMap, num_rows: int) -> SubspaceIntegers:
        """See ``integer_map``."""
        most = math.ceil(math.log2(max(num_rows, 2)))
        _evaluation_error(feature_map.kernel, feature_map.dim)
        kappa = math.ceil(max(0.0, math.log2(feature_map.kernel.diagonal_bound)))
        bits = min(_KERNEL_BITS, MAX_SUM_BITS - most) - kappa
        if bits < 20:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, float(2**bits))

    @property
    def diameter(self) -> float:
        """s √(2κλ) + ‖B‖ √F (1 + 2 s e) + √F, and what rounding B to multiples of 2^-40 moves; e is the error of k in
        float64, and λ = λmax + ‖B‖² F e.

        Formal guarantee: with q(x) = s k_S(x) + r, |r_i| ≤ ½ + s e, ‖B q(x) − B q(x′)‖ ≤ s ‖ψ(x) − ψ(x′)‖ +
        2 ‖B‖ √F (½ + s e); rounding the product to integers moves each of two neighbours' coordinates by at most ½, √F
        in all; and B′ − B, which is known, moves ‖B k_S‖ by no more than ‖B′ − B‖ times the norm of a difference of
        k_S, at most 2κ√F. ‖ψ(x) − ψ(x′)‖² ≤ 2κλ (``SubspaceMap.diameter``), where λmax was bounded for the Gram matrix
        as computed, whose norm is off by at most F e. Clamping to what k can be moves q towards s k_S.
        """
        return self._diameter(self.feature_map.lambda_max, self.feature_map.basis_norm)

    @property
    def failure_probability(self) -> float:
        """2e-10: of λmax and of ‖B‖, each over ten random vectors."""
        return 2e-10

    @property
    def certain_diameter(self) -> float:
        """The same with Frobenius norms: ‖B‖ ≤ ‖B‖_F, and ``SubspaceMap.certain_lambda_max``."""
        subspace = self.feature_map
        return self._diameter(subspace.certain_lambda_max, float(np.linalg.norm(subspace.basis)))

    def _diameter(self, lambda_max: float, basis_norm: float) -> float:
        subspace, size = self.feature_map, self.feature_map.num_features
        kappa, error = subspace.kernel.diagonal_bound, _evaluation_error(subspace.kernel, subspace.dim)
        factor = 2 if subspace.kernel.is_nonnegative else 4
        exact = math.sqrt(factor * kappa * (lambda_max + basis_norm**2 * size * error))
        moved = size * 2.0 ** -(_BASIS_BITS + 1)
        exact += moved * 2 * kappa * math.sqrt(size)
        kernel_rounding = (basis_norm + moved) * math.sqrt(size) * (1 + 2 * self.units * error)
        return (self.units * exact + kernel_rounding + math.sqrt(size)) * (1 + 1e-12)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        sums = tiles.pair_sums(
            IntegerKernelValues(self.feature_map.kernel, self.units),
            self.feature_map.pivot_points,
            np.asarray(rows, np.float64),
            np.asarray(usable, np.float64),
            exact=True,
            rows_planned=rows_planned,
            devices=devices,
            progress=progress,
        )
        return sums[0].astype(np.int64)

    def released(self, total):
        product = exact_product(self.feature_map.basis, total, _BASIS_BITS)
        # Beyond 2^61 for no row of a kernel that is computed as said; and clipping brings neighbours no further apart.
        return np.clip(product, -(2**MAX_SUM_BITS), 2**MAX_SUM_BITS).astype(np.int64)


# -- tables


@dataclasses.dataclass(frozen=True, eq=False)
class TableIntegers(IntegerMap):
    """q(x) = (ω_b e_{c_b(x)})_b = s ψ(x), s = √(Σ_b ω_b²), without any rounding: the weights ω are integers.

    Attributes:
      feature_map: a TableMap.
      units: s.
    """

    feature_map: TableMap
    units: float

    @classmethod
    def create(cls, feature_map: TableMap, num_rows: int) -> TableIntegers:
        """See ``integer_map``."""
        largest = max(block.weight for block in feature_map.blocks)
        if num_rows * largest >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, feature_map.norm)

    @property
    def diameter(self) -> float:
        """√(2 Σ_b ω_b²), see ``TableMap.diameter``: it holds for these integers as they are."""
        return math.sqrt(2 * sum(block.weight**2 for block in self.feature_map.blocks)) * (1 + 1e-15)

    @property
    def certain_diameter(self) -> float:
        return self.diameter

    @property
    def norm_bound(self) -> float:
        return self.units * (1 + 1e-15)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        blocks = self.feature_map.blocks
        weights = np.repeat([block.weight for block in blocks], [block.size for block in blocks])
        counts = self.feature_map.weighted_counts(rows if np.all(usable) else rows[usable])
        if progress:
            progress(len(rows), len(rows))
        return counts.astype(np.int64) * weights

    def released(self, total):
        return total


# -- categories and labels


@dataclasses.dataclass(frozen=True, eq=False)
class MixedIntegers(IntegerMap):
    """q(x, c) = (q_φ(x), l e_{c_1}, ..., l e_{c_m}), with the integer l nearest to s/√m.

    Attributes:
      feature_map: a MixedMap.
      units: s, of φ.
      numeric: q_φ.
      level: l.
    """

    feature_map: MixedMap
    units: float
    numeric: SpectralIntegers
    level: int

    @classmethod
    def create(cls, feature_map: MixedMap, num_rows: int) -> MixedIntegers:
        """See ``integer_map``."""
        numeric = SpectralIntegers.create(feature_map.numeric, num_rows)
        level = max(1, round(numeric.units / math.sqrt(len(feature_map.categories))))
        if num_rows * level >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, numeric.units, numeric, level)

    def _with_categories(self, distance: float, changes: int) -> float:
        return math.sqrt(distance**2 + changes * len(self.feature_map.categories) * self.level**2) * (1 + 1e-12)

    @property
    def diameter(self) -> float:
        """√(diameter(q_φ)² + 2 m l²): see ``MixedMap.diameter``; it holds for these integers as they are."""
        return self._with_categories(self.numeric.diameter, 2)

    @property
    def certain_diameter(self) -> float:
        return self._with_categories(self.numeric.certain_diameter, 2)

    @property
    def norm_bound(self) -> float:
        return self._with_categories(self.numeric.norm_bound, 1)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        numbers = np.ascontiguousarray(rows[:, : self.feature_map.numeric.dim])
        first = self.numeric.sum(numbers, usable, rows_planned=rows_planned, devices=devices, progress=progress)
        counts = self.feature_map.weighted_counts(rows[np.asarray(usable, bool)]).astype(np.int64)
        return np.concatenate([first, counts * self.level])

    def released(self, total):
        return total


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledIntegers(IntegerMap):
    """q(x, y) = q_φ(x) ⊗ e_y.

    Attributes:
      feature_map: a LabelledMap.
      units: s, of φ.
      features: q_φ.
    """

    feature_map: LabelledMap
    units: float
    features: IntegerMap

    @classmethod
    def create(cls, feature_map: LabelledMap, num_rows: int) -> LabelledIntegers:
        """See ``integer_map``."""
        if isinstance(feature_map.features, SubspaceMap | LabelledMap):  # a basis is applied to sums, not to rows
            raise ValueError(f"there are no integer features for labels with a {type(feature_map.features).__name__}")
        features = integer_map(feature_map.features, num_rows)
        return cls(feature_map, features.units, features)

    def _with_labels(self, distance: float) -> float:
        several = self.feature_map.num_labels > 1
        return max(distance, math.sqrt(2) * self.features.norm_bound * (1 + 1e-15)) if several else distance

    @property
    def diameter(self) -> float:
        """max(diameter(q_φ), √2 sup ‖q_φ‖): see ``LabelledMap.diameter``; it holds for these integers as they are."""
        return self._with_labels(self.features.diameter)

    @property
    def certain_diameter(self) -> float:
        return self._with_labels(self.features.certain_diameter)

    @property
    def norm_bound(self) -> float:
        return self.features.norm_bound

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        # How many rows a class has is private, and must not decide by which compiled program they are seen.
        planned = -(-(len(rows) if rows_planned is None else rows_planned) // self.feature_map.num_labels)
        return np.concatenate(
            [
                self.features.sum(some, some_usable, rows_planned=planned, devices=devices, progress=report)
                if len(some)
                else np.zeros(self.features.feature_map.num_features, np.int64)
                for some, some_usable, report in self.feature_map.classes(rows, np.asarray(usable), progress)
            ]
        )

    def released(self, total):
        return total
