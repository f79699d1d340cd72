"""How rare categories of a column depend on other columns.

The rare categories of a column without order share bins in pairs of columns. Relaxed rows know these bins alone: they
give each row of a bin one of its categories at random. So what a category says beyond its bin would be lost. Here is a
model of it, for each bin: the distribution of the rare categories, given the class of a row and its bins in a few other
columns, the *parents*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require

_MOST_ODDS = 1 << 22  # that are computed at once
LARGEST_ODDS = 30.0  # logarithm of the largest factor of a model
_LARGEST_RATIO = 10.0  # by which a probability is raised to keep the number of rows of a category


@storable()
@pytree_dataclass
@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class RareCategories:
    """The distribution of the rare categories of one bin, given the class and the bins of its parents. Public.

    The probability of a category is proportional to the exponential of a sum: of a number for its class, and of one for
    the bin of each parent. So it is a log-linear model without interactions of the parents.

    Attributes:
      place: of the column, among all columns except the one of the classes.
      codes: of the rare categories, increasing, int64 [K].
      parents: places of the parents.
      of_classes: log odds of the categories in every class, [T, K].
      of_parents: for each parent, log odds of the categories in each of its bins, [B, K].
    """

    place: int = dataclasses.field(metadata={"static": True})
    codes: Int64[np.ndarray, "K"]
    parents: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    of_classes: Float[np.ndarray, "classes K"]
    of_parents: tuple[Float[np.ndarray, "_ K"], ...]

    def check(self, num_classes: int, sizes: Sequence[int]) -> None:
        """Refuses a model that was read from a file and does not fit relaxed rows.

        Args:
          num_classes: T.
          sizes: the number of bins of every column except the one of the classes.

        Raises:
          ValueError: shapes or values are invalid.
        """
        check_array(self.codes, "codes", "i", (None,))
        require(
            len(self.codes) > 0 and bool((np.diff(self.codes, prepend=-1) > 0).all()),
            "codes: expected increasing codes",
        )
        places = (self.place, *self.parents)
        require(len(set(places)) == len(places) > 1, "a column is its own parent, or a parent twice, or has none")
        require(all(0 <= place < len(sizes) for place in places), "parents: there are no such columns")
        require(len(self.of_parents) == len(self.parents), "of_parents: expected one array for each parent")
        check_array(self.of_classes, "of_classes", "f", (num_classes, len(self.codes)))
        for parent, odds in zip(self.parents, self.of_parents, strict=True):
            check_array(odds, "of_parents", "f", (sizes[parent], len(self.codes)))
        largest = max(float(np.abs(odds).max()) for odds in (self.of_classes, *self.of_parents))
        require(largest <= LARGEST_ODDS + 1, "log odds are too large")

    def are_rare(self, codes: Int64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
        """Which codes of the column are among the rare categories."""
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return self.codes[places] == codes

    def probabilities(self, groups: Int64[np.ndarray, "G parents"]) -> Float[np.ndarray, "G K"]:
        """The probabilities of the categories in groups of rows.

        Args:
          groups: the class and the bins of the parents, for each group.
        """
        odds = self.of_classes[groups[:, 0]]
        for of_bins, bins in zip(self.of_parents, groups[:, 1:].T, strict=True):
            odds = odds + of_bins[bins]
        odds = np.exp(odds - odds.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def probability(
        self, groups: Int64[np.ndarray, "n parents"], allowed: Bool[np.ndarray, "K"]
    ) -> Float64[np.ndarray, "n"]:
        """The probability of the categories that are allowed, for rows with a rare category.

        Args:
          groups: the class of each row, and its bins in the parents.
          allowed: which categories are allowed.
        """
        of_groups, group = np.unique(groups, axis=0, return_inverse=True)
        parts = [self.probabilities(of_groups[part])[:, allowed].sum(1) for part in _parts(self, len(of_groups))]
        return np.concatenate([np.zeros(0), *parts])[group.reshape(-1)]

    def restricted(self, allowed: Bool[np.ndarray, "K"]) -> RareCategories:
        """The distribution of the categories that are allowed, given that a row has one of them."""
        of_parents = tuple(odds[:, allowed] for odds in self.of_parents)
        return RareCategories(self.place, self.codes[allowed], self.parents, self.of_classes[:, allowed], of_parents)

    def drawn(
        self,
        codes: Int64[np.ndarray, "n"],
        groups: Int64[np.ndarray, "n parents"],
        random: np.random.Generator,
        *,
        keeps_counts: bool,
        allowed: Bool[np.ndarray, "K"] | None = None,
    ) -> Int64[np.ndarray, "n"]:
        """Codes of the column, of which those of rare categories are drawn from the distribution.

        Args:
          codes: of rows.
          groups: the class of each row, and its bins in the parents.
          random: the source of randomness.
          keeps_counts: whether every category keeps its number of rows in each class. Otherwise the rows of each group
            are drawn by themselves.
          allowed: which rare categories are drawn; None for all of them. Counts are not kept then.
        """
        rare = np.flatnonzero(self.are_rare(codes))
        if not len(rare):
            return codes
        codes, model = np.array(codes), self if allowed is None else self.restricted(allowed)
        of_groups, group, sizes = np.unique(groups[rare], axis=0, return_inverse=True, return_counts=True)
        order = rare[np.argsort(group.reshape(-1), kind="stable")]
        starts = np.cumsum(sizes) - sizes
        for t in np.unique(of_groups[:, 0]):
            of_class = random.permutation(np.flatnonzero(of_groups[:, 0] == t))
            left = None
            if keeps_counts and allowed is None:
                within = rare[groups[rare, 0] == t]
                left = np.bincount(np.searchsorted(self.codes, codes[within]), minlength=len(self.codes))
            numbers = _numbers(model, of_groups[of_class], sizes[of_class], left, random)
            for g, number in zip(of_class, numbers, strict=True):
                chosen = random.permutation(np.repeat(model.codes, number))
                codes[order[starts[g] : starts[g] + sizes[g]]] = chosen
        return codes


def _parts(rare: RareCategories, num_groups: int) -> list[slice]:
    """Parts of groups whose probabilities are computed at once."""
    step = max(1, _MOST_ODDS // len(rare.codes))
    return [slice(start, start + step) for start in range(0, num_groups, step)]


def _numbers(
    rare: RareCategories,
    groups: Int64[np.ndarray, "G parents"],
    sizes: Int64[np.ndarray, "G"],
    left: Int64[np.ndarray, "K"] | None,
    random: np.random.Generator,
) -> Int64[np.ndarray, "G K"]:
    """The number of rows of every group and category, [G, K]: probabilities times sizes, rounded at random.

    Args:
      rare: the distribution.
      groups: of one class.
      sizes: of the groups.
      left: how many rows each category is to have in all groups together; None if that does not matter.
      random: the source of randomness.
    """
    parts = _parts(rare, len(groups))
    expected = sum(sizes[part] @ rare.probabilities(groups[part]) for part in parts)
    numbers = np.zeros((len(groups), len(rare.codes)), np.int64)
    for part in parts:
        for i, of_group in enumerate(rare.probabilities(groups[part]), start=part.start):
            weights, size = of_group, int(sizes[i])
            if left is not None:
                weights = weights * np.minimum(left / np.maximum(expected, 1e-9), _LARGEST_RATIO)
                expected = np.maximum(expected - size * of_group, 0)
                weights = weights if weights.sum() > 0 else left
            edges = np.minimum(np.cumsum(weights / weights.sum()) * size, size)
            edges[-1] = size
            number = np.diff(np.floor(edges + random.random()), prepend=0).astype(np.int64)
            number[np.argmax(number)] += size - number.sum()
            if left is not None:
                beyond = int(np.maximum(number - left, 0).sum())
                number = np.minimum(number, left)
                if beyond:
                    others = random.choice(np.repeat(np.arange(len(left)), left - number), beyond, replace=False)
                    number += np.bincount(others, minlength=len(left))
                left = left - number
            numbers[i] = number
    return numbers
