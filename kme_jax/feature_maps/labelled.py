"""Feature maps of rows with categories and a label ([H] sections 4.1 and 4.3): ψ of a product or a sum of kernels."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import Progress, are_sizes
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax.feature_maps.base import MAX_SUM_BITS, FeatureMap, IntegerMap, are_codes
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.kernels import Kernel, Matching, OnColumns

Array = jax.Array


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MixedMap(FeatureMap):
    """ψ(x, c) = [φ(x), e_{c_1}/√m, ..., e_{c_m}/√m]: Fourier features of numbers, and m categorical columns one-hot
    ([H] equation 19). Its kernel is the sum of φ's kernel and of the share of categories that two rows have in common.

    Rows are numbers x [d] and then codes c [m]. Codes as they are, in the place of one-hot vectors, would have no
    bounded norm: the published code's ε = 1 on Adult is 6.7 or more.

    Attributes:
      numeric: φ, of the numbers.
      categories: how many codes each categorical column has, m of them.
    """

    numeric: SpectralMap
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

        Formal guarantee: the two parts are in coordinates of their own, so squared distances add up; of the second
        part, every categorical column adds 0 or 2/m. Against the zero vector it is ‖φ‖² + 1. (With 2 for either part,
        [H] supplement G has 2√2.)
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
        """Columns of a relaxed row: numbers, and for every categorical column a probability of each of its codes."""
        return self.numeric.dim + sum(self.categories)

    def relaxed(self, rows: Array) -> Array:
        """E ψ of relaxed rows [n, relaxed_dim], whose categories are drawn with these probabilities: [n, F]."""
        numbers = self.numeric.dim
        shares = rows[:, numbers:] / math.sqrt(len(self.categories))
        return jnp.concatenate([self.numeric(rows[:, :numbers]), shares], axis=1)

    def relax(self, rows: Array) -> Array:
        """Rows [n, d + m] as relaxed ones that are certain of their categories."""
        numbers, columns = self.numeric.dim, [rows[:, : self.numeric.dim]]
        for j, size in enumerate(self.categories):
            columns.append(jax.nn.one_hot(rows[:, numbers + j].astype(int), size, dtype=rows.dtype))
        return jnp.concatenate(columns, axis=1)

    def __call__(self, x):
        return self.relaxed(self.relax(jnp.asarray(x)))

    def weighted_sum(self, rows, weights, *, rows_planned=None, devices=None, progress=None):
        numbers = np.ascontiguousarray(rows[:, : self.numeric.dim])
        first = self.numeric.weighted_sum(
            numbers, weights, rows_planned=rows_planned, devices=devices, progress=progress
        )
        counts = self.weighted_counts(rows, np.asarray(weights, np.float64))
        return np.concatenate([first, counts / math.sqrt(len(self.categories))])

    def weighted_counts(self, rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """How many rows [n, d + m], by weight [n], have each code of each categorical column, [Σ categories]."""
        codes = rows[:, self.numeric.dim :].astype(np.int64).T
        pairs = zip(codes, self.categories, strict=True)
        return np.concatenate([np.bincount(column, weights, size) for column, size in pairs])


_PARTS_OF_A_CLASS = 8  # of a class of average size


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LabelledMap(FeatureMap):
    """ψ(x, y) = φ(x) ⊗ e_y ([H] equation 13): the mean of φ in each class, times the class's share.

    Rows are those of φ with one more column, the label, a whole number from 0 to ``num_labels`` − 1. A row with
    another label counts as the zero vector, as one that φ does not cover. Coordinates are those of class 0, of class 1,
    and so on.

    Attributes:
      features: φ.
      num_labels: L.
    """

    features: FeatureMap
    num_labels: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if self.num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, got {self.num_labels}")

    @property
    def kernel(self) -> Kernel:  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
        """k(x, x′) 1[y = y′]."""
        columns = self.features.dim
        return OnColumns(self.features.kernel, 0, columns) * OnColumns(Matching(), columns, columns + 1)

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

        Formal guarantee: rows of one class differ by no more than φ does; those of two classes are orthogonal, so
        ‖ψ − ψ′‖² = ‖φ(x)‖² + ‖φ(x′)‖². Against the zero vector it is ‖φ(x)‖.
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
        """φ's: 2 ([H] section 4.1), or 2√2 for mixed rows (section 4.3)."""
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
        # How many rows a class has is private: all classes are seen by one program, for so few rows that little is
        # filled up with zeros.
        planned = -(-(len(rows) if rows_planned is None else rows_planned) // (_PARTS_OF_A_CLASS * self.num_labels))
        return np.concatenate(
            [
                self.features.weighted_sum(some, some_weights, rows_planned=planned, devices=devices, progress=report)
                if len(some)
                else np.zeros(self.features.num_features)
                for some, some_weights, report in self.classes(rows, weights, progress)
            ]
        )

    def classes(self, rows: np.ndarray, weights: np.ndarray, progress: Progress | None = None):
        """For every class its rows without their label, their weights, and a progress function: of the rows [n, d + 1]
        with weights [n], which may be few or none. Rows of weight 0 are left out.
        """
        labels = rows[:, -1]
        for label in range(self.num_labels):
            chosen = np.flatnonzero((labels == label) & (weights != 0))
            part = _Part(progress, label, self.num_labels, len(rows))
            yield np.ascontiguousarray(rows[chosen, :-1]), weights[chosen], part
            part(1, 1)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Progress with one class as progress with all rows, as if all classes were of one size: how large they are is
    private."""

    whole: Progress | None
    label: int
    num_labels: int
    num_rows: int

    def __call__(self, done: int, total: int) -> None:
        if self.whole:
            self.whole(self.num_rows * (self.label * total + done) // (self.num_labels * total), self.num_rows)


# -- in integers


@dataclasses.dataclass(frozen=True, eq=False)
class MixedIntegers(IntegerMap):
    """q(x, c) = (q_φ(x), l e_{c_1}, ..., l e_{c_m}), with the integer l nearest to s/√m.

    Attributes:
      feature_map: a MixedMap.
      units: s, of φ.
      numeric: q_φ.
      level: l.
    """

    feature_map: MixedMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    numeric: IntegerMap
    level: int

    @classmethod
    def create(cls, feature_map: MixedMap, num_rows: int) -> MixedIntegers:
        """See ``FeatureMap.integers``."""
        numeric = feature_map.numeric.integers(num_rows)
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

    feature_map: LabelledMap  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody writes to it
    units: float
    features: IntegerMap

    @classmethod
    def create(cls, feature_map: LabelledMap, num_rows: int) -> LabelledIntegers:
        """See ``FeatureMap.integers``."""
        features = feature_map.features.integers(num_rows)
        if not features.is_of_rows:  # sums of classes are released as they are
            raise ValueError(f"there are no integer features for labels with a {type(feature_map.features).__name__}")
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
                self.features.sum(of_class, usable_of_class, rows_planned=planned, devices=devices, progress=report)
                if len(of_class)
                else np.zeros(self.features.feature_map.num_features, np.int64)
                for of_class, usable_of_class, report in self.feature_map.classes(rows, np.asarray(usable), progress)
            ]
        )

    def released(self, total):
        return total
