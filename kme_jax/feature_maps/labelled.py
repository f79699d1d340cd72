"""Feature maps of rows with categories or a label ([H] sections 4.1 and 4.3), for a sum or a product of kernels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Real, Shaped

from kme_jax._numerics.precision import Progress, are_sizes, is_size
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap, are_codes
from kme_jax.kernels import Kernel, Matching, OnColumns

Array = jax.Array


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MixedMap(FeatureMap):
    """ψ(x, c) = [φ(x), e_{c_1}/√m, ..., e_{c_m}/√m]: features of the numbers, and one-hot vectors of m categorical
    columns ([H] equation 19, with Fourier features). Its kernel is the sum of two kernels: that of φ, and the share of
    categories that two rows have in common.

    So the embedding does not see how numbers depend on categories, nor how categories depend on each other. More
    features or a longer training do not help. Within a :class:`LabelledMap`, it sees how each column depends on the
    label.

    A row has numbers x [d] and then category codes c [m]. Category codes instead of one-hot vectors would have no
    bounded norm: because of them, the ε = 1 of the published code on Adult is in fact 6.7 or more.

    Attributes:
      numeric: φ, the feature map of the numbers.
      categories: the number of category codes of each categorical column, m numbers.

    Examples:
      >>> import jax
      >>> from kme_jax import FourierMap, Gaussian, MixedMap
      >>> fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> features = MixedMap(fourier, (4, 2))  # codes 0 to 3 in the third column, 0 and 1 in the fourth
      >>> features.num_features, features.dim
      (70, 4)
    """

    numeric: FeatureMap
    categories: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not self.categories or not are_sizes(self.categories):
            raise ValueError(f"categories: expected a tuple of one or more positive numbers, got {self.categories}")

    @property
    def kernel(self) -> Kernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k."""
        numbers, dim = self.numeric.dim, self.dim
        return OnColumns(self.numeric.kernel, 0, numbers) + OnColumns(Matching(), numbers, dim)

    @property
    def has_derivative(self):
        return self.numeric.has_derivative

    @property
    def public_inputs(self):
        return self.numeric.public_inputs

    def integers(self, num_rows):
        return MixedIntegers.create(self, num_rows)

    @property
    def num_features(self) -> int:
        return self.numeric.num_features + sum(self.categories)

    @property
    def dim(self) -> int:
        return self.numeric.dim + len(self.categories)

    @property
    def diameter(self) -> float:
        """√(diameter(φ)² + 2).

        Formal guarantee: numbers and categories have separate coordinates, so their squared distances add up. Every
        categorical column adds 0 or 2/m. The squared distance from the zero vector is ‖φ‖² + 1. ([H] supplement G has
        2√2, from 2 for the numbers and 2 for the categories.)
        """
        return math.hypot(self.numeric.diameter, math.sqrt(2)) * (1 + 1e-15)

    @property
    def failure_probability(self) -> float:
        return self.numeric.failure_probability

    @property
    def certain_diameter(self) -> float:
        return math.hypot(self.numeric.certain_diameter, math.sqrt(2)) * (1 + 1e-15)

    @property
    def norm_bound(self) -> float:
        """√(‖φ‖² + 1)."""
        return math.hypot(self.numeric.norm_bound, 1) * (1 + 1e-15)

    @property
    def published_diameter(self) -> float:
        """2√2 ([H] section 4.3)."""
        return math.hypot(self.numeric.published_diameter, 2)

    @property
    def row_bound(self) -> float:
        return max(self.numeric.row_bound, float(max(self.categories)))

    def covers(self, rows):
        numbers = self.numeric.dim
        codes = are_codes(rows[:, numbers:], np.asarray(self.categories)).all(axis=1)
        return self.numeric.covers(rows[:, :numbers]) & codes

    @property
    def relaxed_dim(self) -> int:
        """The number of columns of a relaxed row: one for each number, and one for each code of a categorical column,
        which has the probability of that code."""
        return self.numeric.dim + sum(self.categories)

    def relaxed(self, rows: Float[AnyArray, "n relaxed"]) -> Float[Array, "n F"]:
        """E ψ of relaxed rows [n, relaxed_dim], with categories drawn with their probabilities: [n, F]."""
        numbers = self.numeric.dim
        shares = rows[:, numbers:] / math.sqrt(len(self.categories))
        return jnp.concatenate([self.numeric(rows[:, :numbers]), shares], axis=1)

    def relax(self, rows: Float[AnyArray, "n d"]) -> Float[Array, "n relaxed"]:
        """Rows [n, d + m] as relaxed rows, [n, relaxed_dim], in which each category has probability 1."""
        numbers, columns = self.numeric.dim, [rows[:, : self.numeric.dim]]
        for j, size in enumerate(self.categories):
            columns.append(jax.nn.one_hot(rows[:, numbers + j].astype(int), size, dtype=rows.dtype))
        return jnp.concatenate(columns, axis=1)

    def __call__(self, x):
        return self.relaxed(self.relax(jnp.asarray(x)))

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        numbers = np.ascontiguousarray(rows[:, : self.numeric.dim])
        numeric_sum = self.numeric.weighted_sum(
            numbers, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        counts = self.weighted_counts(rows, np.asarray(weights, np.float64))
        return np.concatenate([numeric_sum, counts / math.sqrt(len(self.categories))])

    def weighted_counts(
        self, rows: Real[AnyArray, "n d"], weights: Real[AnyArray, "n"] | None = None
    ) -> Real[np.ndarray, "codes"]:
        """The marginals of the categorical columns: how many rows have each category code, [Σ categories].

        Args:
          rows: [n, d + m].
          weights: [n]; None for a weight of 1 each.
        """
        codes = rows[:, self.numeric.dim :].astype(np.int64).T
        pairs = zip(codes, self.categories, strict=True)
        return np.concatenate([np.bincount(column, weights, size) for column, size in pairs])


_PADDING_SHARE = 8  # programs are compiled for this fraction (1/8) of the rows of a class of average size


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LabelledMap(FeatureMap):
    """ψ(x, y) = φ(x) ⊗ e_y ([H] equation 13). Its mean has, for each class, the mean of φ times the share of the class.

    Rows are rows of φ with the label as an additional last column: a whole number from 0 to ``num_labels`` − 1. A row
    with another label counts as the zero vector, like a row that φ does not cover. The coordinates of class 0 are
    first, then those of class 1, and so on.

    Attributes:
      features: φ.
      num_labels: L.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian, LabelledMap
      >>> fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> features = LabelledMap(fourier, num_labels=3)
      >>> features.num_features, features.dim  # the label is a third column
      (192, 3)
      >>> features.covers(np.array([[0.1, 0.2, 2.0], [0.1, 0.2, 7.0]]))  # there is no class 7
      array([ True, False])
    """

    features: FeatureMap
    num_labels: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not is_size(self.num_labels):
            raise ValueError(f"num_labels must be a whole number and at least 1, got {self.num_labels!r:.50}")

    @property
    def kernel(self) -> Kernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k(x, x′) 1[y = y′]."""
        columns = self.features.dim
        return OnColumns(self.features.kernel, 0, columns) * OnColumns(Matching(), columns, columns + 1)

    @property
    def has_derivative(self):
        return self.features.has_derivative

    @property
    def public_inputs(self):
        return self.features.public_inputs

    def integers(self, num_rows):
        return LabelledIntegers.create(self, num_rows)

    @property
    def num_features(self) -> int:
        return self.num_labels * self.features.num_features

    @property
    def dim(self) -> int:
        return self.features.dim + 1

    def _with_labels(self, diameter: float) -> float:
        return diameter if self.num_labels == 1 else max(diameter, math.sqrt(2) * self.features.norm_bound)

    @property
    def diameter(self) -> float:
        """max(diameter(φ), √2 sup ‖φ‖).

        Formal guarantee: the features of two rows of one class differ by at most diameter(φ). Those of rows of two
        classes are orthogonal, so ‖ψ − ψ′‖² = ‖φ(x)‖² + ‖φ(x′)‖². The distance from the zero vector is ‖φ(x)‖.
        """
        return self._with_labels(self.features.diameter)

    @property
    def failure_probability(self) -> float:
        return self.features.failure_probability

    @property
    def certain_diameter(self) -> float:
        return self._with_labels(self.features.certain_diameter)

    @property
    def norm_bound(self) -> float:
        """sup ‖φ‖."""
        return self.features.norm_bound

    @property
    def published_diameter(self) -> float:
        """The published diameter of φ: 2 ([H] section 4.1), or 2√2 for mixed rows (section 4.3)."""
        return self.features.published_diameter

    @property
    def row_bound(self) -> float:
        return max(self.features.row_bound, float(self.num_labels))

    def covers(self, rows):
        return self.features.covers(rows[:, :-1]) & are_codes(rows[:, -1], self.num_labels)

    def __call__(self, x):
        x = jnp.asarray(x)
        features = self.features(x[:, :-1])
        labels = jax.nn.one_hot(x[:, -1].astype(int), self.num_labels, dtype=features.dtype)
        return (labels[:, :, None] * features[:, None, :]).reshape(len(x), self.num_features)

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        # The number of rows of a class is private, so one program sums all classes. It is compiled for few rows, so
        # that few rows of zeros are added.
        planned = -(-(len(rows) if rows_planned is None else rows_planned) // (_PADDING_SHARE * self.num_labels))
        return np.concatenate(
            [
                self.features.weighted_sum(
                    of_class, class_weights, rows_planned=planned, devices=devices, progress=report
                )
                if len(of_class)
                else np.zeros(self.features.num_features)
                for of_class, class_weights, report in self.classes(rows, weights, progress)
            ]
        )

    def classes(
        self, rows: Real[AnyArray, "n d"], weights: Shaped[AnyArray, "n"], progress: Progress | None = None
    ) -> Iterator[tuple[Real[np.ndarray, "_ columns"], Shaped[AnyArray, "_"], Progress]]:
        """Yields, for every class, its rows without their label, their weights, and a progress function.

        A class may have no rows. Rows of weight 0 are left out.

        Args:
          rows: [n, d + 1].
          weights: [n].
          progress: called with (rows done, n), as if all classes had the same size.
        """
        labels = rows[:, -1]
        for label in range(self.num_labels):
            indices = np.flatnonzero((labels == label) & (weights != 0))
            class_progress = _ClassProgress(progress, label, self.num_labels, len(rows))
            yield np.ascontiguousarray(rows[indices, :-1]), weights[indices], class_progress
            class_progress(1, 1)


@dataclasses.dataclass(frozen=True)
class _ClassProgress:
    """Reports progress with one class as progress with all rows. It assumes that all classes have the same size,
    because their sizes are private."""

    progress: Progress | None
    label: int
    num_labels: int
    num_rows: int

    def __call__(self, done: int, total: int) -> None:
        if self.progress:
            self.progress(self.num_rows * (self.label * total + done) // (self.num_labels * total), self.num_rows)


# -- in integers


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class MixedIntegers(IntegerMap):
    """q(x, c) = (q_φ(x), l e_{c_1}, ..., l e_{c_m}), with the integer l nearest to s/√m.

    Attributes:
      feature_map: a MixedMap.
      units: s, the units of q_φ.
      numeric: q_φ.
      level: l.
    """

    feature_map: MixedMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    numeric: IntegerMap
    level: int
    is_of_rows: ClassVar[bool] = True

    @classmethod
    def create(cls, feature_map: MixedMap, num_rows: int) -> MixedIntegers:
        """See ``FeatureMap.integers``."""
        numeric = feature_map.numeric.integers(num_rows)
        if not numeric.is_of_rows:  # the diameter is that of sums which are released unchanged
            raise ValueError(f"a MixedMap of a {type(feature_map.numeric).__name__} has no integer version")
        level = max(1, round(numeric.units / math.sqrt(len(feature_map.categories))))
        if num_rows * level >= 2**MAX_SUM_BITS:
            raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
        return cls(feature_map, numeric.units, numeric, level)

    def _with_categories(self, distance: float, changes: int) -> float:
        return math.sqrt(distance**2 + changes * len(self.feature_map.categories) * self.level**2) * (1 + 1e-12)

    @property
    def diameter(self) -> float:
        """√(diameter(q_φ)² + 2 m l²). The proof of ``MixedMap.diameter`` holds for these integers too."""
        return self._with_categories(self.numeric.diameter, 2)

    @property
    def certain_diameter(self) -> float:
        return self._with_categories(self.numeric.certain_diameter, 2)

    @property
    def norm_bound(self) -> float:
        return self._with_categories(self.numeric.norm_bound, 1)

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        numbers = np.ascontiguousarray(rows[:, : self.feature_map.numeric.dim])
        numeric_sum = self.numeric.sum(numbers, usable, rows_planned=rows_planned, devices=devices, progress=progress)
        counts = self.feature_map.weighted_counts(rows[np.asarray(usable, bool)]).astype(np.int64)
        return np.concatenate([numeric_sum, counts * self.level])

    def released(self, total):
        return total


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class LabelledIntegers(IntegerMap):
    """q(x, y) = q_φ(x) ⊗ e_y.

    Attributes:
      feature_map: a LabelledMap.
      units: s, the units of q_φ.
      features: q_φ.
    """

    feature_map: LabelledMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    features: IntegerMap

    @classmethod
    def create(cls, feature_map: LabelledMap, num_rows: int) -> LabelledIntegers:
        """See ``FeatureMap.integers``."""
        features = feature_map.features.integers(num_rows)
        if not features.is_of_rows:  # the sums of classes must be released unchanged
            raise ValueError(f"a LabelledMap of a {type(feature_map.features).__name__} has no integer version")
        return cls(feature_map, features.units, features)

    def _with_labels(self, distance: float) -> float:
        if self.feature_map.num_labels == 1:
            return distance
        return max(distance, math.sqrt(2) * self.features.norm_bound * (1 + 1e-15))

    @property
    def diameter(self) -> float:
        """max(diameter(q_φ), √2 sup ‖q_φ‖). The proof of ``LabelledMap.diameter`` holds for these integers too."""
        return self._with_labels(self.features.diameter)

    @property
    def certain_diameter(self) -> float:
        return self._with_labels(self.features.certain_diameter)

    @property
    def norm_bound(self) -> float:
        return self.features.norm_bound

    def sum(self, rows, usable, *, rows_planned=None, devices=None, progress=None):
        # The number of rows of a class is private, and must not decide which compiled program sums them.
        planned = -(-(len(rows) if rows_planned is None else rows_planned) // self.feature_map.num_labels)
        return np.concatenate(
            [
                self.features.sum(of_class, usable_of_class, rows_planned=planned, devices=devices, progress=report)
                if len(of_class)
                else np.zeros(self.features.feature_map.num_features, np.int64)
                for of_class, usable_of_class, report in self.feature_map.classes(rows, np.asarray(usable), progress)
            ]
        )

    def released(self, total):
        return total
