"""The noisy counts of a table that relaxed rows are fitted to."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float, Float64, Int64

from kme_jax._numerics.short_repr import short_repr

_CLEARLY = 3.0  # distance of a fitted count from a noisy one, in σ, that noise hardly explains


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """The noisy counts that relaxed rows are fitted to.

    Classes are the values of the column that all marginals are split by. There is one class if they are not split. Bins
    are numbered through all columns: those of column a are ``offsets[a]`` to ``offsets[a + 1]`` − 1.

    Attributes:
      offsets: the first bin of each column, followed by the number of all bins D.
      num_rows: N.
      prior: denoised estimates of the counts of every class and bin, [T, D].
      singles: noisy counts of every class and bin, [T, D].
      singles_sigma: σ of ``singles``, [D].
      totals: noisy counts of every bin, all classes together, [D].
      totals_precision: 1/σ of ``totals``, [D]; 0 where nothing was measured.
      unions: 1 where a bin is in a union of bins, 0 elsewhere, [D, E].
      pairs: noisy counts of every class and pair of parts, [T, F, F]; 0 where nothing was measured. The F = D + E parts
        are the bins, followed by the unions.
      pairs_precision: 1/σ of ``pairs``, [F, F]; 0 where nothing was measured.
      classes: estimated counts of the classes, which relaxed rows have, [T] with Σ = N; None if they were not measured
        by themselves. Then they are fitted.
      scores: the mean score of each bin for each column with scores, 0 for the bins of other columns, [D, S].
      products: noisy sums over all rows of the product of the scores of two columns, [S, S]; 0 where nothing was
        measured.
      products_precision: 1/σ of ``products``, [S, S]; 0 where nothing was measured.
      signs: −1 or 1 for each bin of a column, for its two halves; 0 for the bins of other columns, [D, C].
      triples: three columns each, int64 [n, 3].
      parities: noisy sums over all rows of the product of the signs of three columns, [n].
      parities_precision: 1/σ of ``parities``, [n].
      neighbours: 1 where a bin and the next one are neighbours on the scale of an ordered column, 0 elsewhere, [D].
      num_ordered: for each column, the number of bins on its scale, which come first; 0 if it has none.
    """

    offsets: tuple[int, ...]
    num_rows: int
    prior: Float[np.ndarray, "classes bins"]
    singles: Float[np.ndarray, "classes bins"]
    singles_sigma: Float[np.ndarray, "bins"]
    totals: Float[np.ndarray, "bins"]
    totals_precision: Float[np.ndarray, "bins"]
    unions: Float[np.ndarray, "bins unions"]
    pairs: Float[np.ndarray, "classes parts parts"]
    pairs_precision: Float[np.ndarray, "parts parts"]
    classes: Float[np.ndarray, "classes"] | None
    scores: Float[np.ndarray, "bins scored"]
    products: Float[np.ndarray, "scored scored"]
    products_precision: Float[np.ndarray, "scored scored"]
    signs: Float[np.ndarray, "bins columns"]
    triples: Int64[np.ndarray, "triples 3"]
    parities: Float[np.ndarray, "triples"]
    parities_precision: Float[np.ndarray, "triples"]
    neighbours: Float[np.ndarray, "bins"]
    num_ordered: tuple[int, ...]

    def places(self) -> list[tuple[slice, slice]]:
        """For each column, where its bins and its unions are among the parts; the same if it has no unions."""
        places = []
        for first, last in itertools.pairwise(self.offsets):
            unions = np.flatnonzero(self.unions[first:last].any(0)) + len(self.unions)
            bins = slice(first, last)
            places.append((bins, slice(int(unions[0]), int(unions[-1]) + 1) if len(unions) else bins))
        return places

    def measured_pairs(self) -> list[tuple[int, int, list[tuple[slice, slice, float]]]]:
        """For each pair of columns that was measured, their places, and where among the parts their counts are.

        There are one or two such places, bins before unions, and σ is that of their counts.
        """
        places, found = self.places(), []
        for a, b in itertools.combinations(range(len(places)), 2):
            of_bins, of_unions = zip(places[a], places[b], strict=True)
            sides = (of_bins,) if of_bins == of_unions else (of_bins, of_unions)
            precisions = [float(self.pairs_precision[first, second].max(initial=0)) for first, second in sides]
            measured = [(*side, 1 / precision) for side, precision in zip(sides, precisions, strict=True) if precision]
            if measured:
                found.append((a, b, measured))
        return found

    def of_parts(self, probabilities: Float[np.ndarray, "*rows bins"]) -> Float[np.ndarray, "*rows parts"]:
        """Probabilities of all parts, from those of all bins."""
        return np.concatenate([probabilities, probabilities @ self.unions], axis=-1)

    def members(self, a: int) -> Float[np.ndarray, "bins parts"]:
        """1 where a bin of a column is in a part of the coarse measurement: a union, or the bin itself; 0 elsewhere.

        Args:
          a: place of the column.
        """
        bins, unions = self.places()[a]
        if bins == unions:
            return np.eye(bins.stop - bins.start)
        first = len(self.unions)
        return self.unions[bins, unions.start - first : unions.stop - first]

    def num_ordered_parts(self, a: int, num_parts: int) -> int:
        """The number of ordered bins of a column, or of ordered unions of bins; 0 if it has no order.

        Args:
          a: place of the column.
          num_parts: the number of its bins, or of its unions.
        """
        others = self.offsets[a + 1] - self.offsets[a] - self.num_ordered[a]
        return max(num_parts - others, 0) if self.num_ordered[a] else 0

    def counts_of_bins(
        self, a: int, fitted: Float[np.ndarray, "bins"]
    ) -> tuple[Float64[np.ndarray, "bins"], Float64[np.ndarray, "bins"]]:
        """Estimated counts of the bins of a column, all classes together, [bins], and their standard errors, [bins].

        A fit is about as good as the best weighted mean of all noisy sums that tell a count: of the column itself, and
        of its pairs. A union that was counted in place of its bins tells each of them a part. But a fit may not be able
        to follow the counts. If its distance from the count of the column itself is clearly larger than the noise of
        the latter, its error is as much larger. The estimate is the weighted mean of both.

        Args:
          a: place of the column.
          fitted: counts of the bins in the fit.
        """
        places, num_classes = self.places(), len(self.singles)
        bins, unions = places[a]
        variances = num_classes * np.square(np.maximum(self.singles_sigma[bins], np.finfo(float).tiny ** 0.5))
        of_column = 1 / variances + np.square(self.totals_precision[bins])
        counted = self.singles[:, bins].sum(0) / variances
        counted = (counted + self.totals[bins] * np.square(self.totals_precision[bins])) / of_column
        of_all = np.array(of_column)
        for part in (bins,) if unions == bins else (bins, unions):
            squares = np.square(self.pairs_precision[part]) + np.square(self.pairs_precision[:, part]).T  # one is 0
            sums = np.zeros(len(squares))
            for other in {(side.start, side.stop) for pair in (*places[:a], *places[a + 1 :]) for side in pair}:
                of_pairs = squares[:, slice(*other)]
                known = of_pairs.all(1)
                sums[known] += 1 / (num_classes * (1 / of_pairs[known]).sum(1))
            if part != bins:
                members = self.members(a)
                sums = members @ (sums / members.sum(0))
            of_all += sums
        excess = np.maximum(np.square(fitted - counted) - _CLEARLY**2 / of_column, 0)
        errors = 1 / of_all + excess
        weight = excess / (excess + 1 / of_column)
        return weight * counted + (1 - weight) * fitted, np.sqrt((1 - weight) ** 2 * errors + weight**2 / of_column)

    @property
    def num_observations(self) -> int:
        """How many noisy numbers there are."""
        of_classes = np.count_nonzero(self.pairs_precision)
        others = (self.totals_precision, self.products_precision, self.parities_precision)
        return int(len(self.singles) * of_classes + self.singles.size + sum(map(np.count_nonzero, others)))
