"""Dependence between columns that noise could hide from a release of a table. Post-processing.

Released columns depend on each other as far as noisy counts of pairs clearly show. Weak dependence is lost. A replicate
of the release (``kme_jax.analysis.replicates``) that starts from released rows never had it, and does not show that it
was lost. So rows that take the place of the private ones get dependence that noise leaves open, drawn anew for each
replicate.

A *feature* of an ordered column is the normal score of its values, with mean 0 and variance 1. Features of another
column are indicators of the unions of its bins. The sum over all rows of the product of two features is known from the
noisy counts of the pair of columns, but for what the parts hide in which they were counted. Parts are bins, or unions
of bins. If the parts of both columns show the shares B and B′ of the variance of the scores, the sum over parts is
divided by B B′: that is right for weak dependence, and in the median of public tables. What it misses there has about
the deviation (1 − B B′) (0.11² + 0.45² ρ²)^½, as a correlation, where ρ is the correlation of the scores. These numbers
describe 6582 choices of unions in fifty public tables of R packages, which are in no benchmark of this project, by a
script that is not committed.

Let R be the difference from the sum over released rows, and s the standard deviation of its noise, and of what the
parts miss. The sum over the rows in the place of the private ones is that over released rows plus κ R + √κ s Z, with
standard normal Z. This is its posterior distribution if such differences have variance τ² without noise, and κ = τ² /
(τ² + s²). The m products of a pair of columns share one ratio τ² / s². It is the largest one that is plausible: the
mean of R² / s² − 1, or 0 if that is negative, and two standard errors more, 2 √(2 / m). So the single product of two
ordered columns is as the noisy counts say, nearly, and many products that look like noise are as in the release. But τ
is at most N E|f| E|g| for features f and g: that is the count of two unions if they are independent. So combinations of
rare categories do not become frequent.

If nothing is known of a product, its deviation is this largest τ. That is so if a pair was not counted, or if its
counts show hardly anything of the scores, as where noise left a column a single bin.

The counts of a pair do not tell apart categories that share a part. Released rows give them the same dependence, and
what is special about one of them is lost. So there is a *contrast* for each such category: its indicator, less its
share of that of the union. The sum of the products of a contrast and a feature gets a normal random number with the
deviation 0.35 n √v. Here v is the variance of the feature, and n the sum of the squares of the contrast, which is not
quite the number of rows of the category. If the category has a part of its own where the pair was counted, or a model
of rare categories (``kme_jax.table.rare_fit``), the sum stays. In 2255 pairs of columns of 90 public tables of R
packages, which are in no benchmark of this project, the mean of a feature in a category with fewer than 8 % of the rows
differs from that of all such categories by 0.16 √v in the median, and by 0.34 √v or more for a quarter of the pairs, by
a script that is not committed.

The same holds for a column and the classes, which are the values of a target that all counts are split by.

To get these sums, values of a column are exchanged between rows. So no column changes by itself. Missing cells of
ordered columns stay where they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.columns import Column
from kme_jax.table.directions import normal_scores
from kme_jax.table.fit import observe
from kme_jax.table.observed import Observed
from kme_jax.table.planning import Singles
from kme_jax.table.release import NAMES, TableRelease

_ERRORS = 2.0  # standard errors that the estimate of τ² / s² is raised by
_LEAST_DEVIATION = 1e-3  # of the normal scores of a column, for it to have features
_LEAST_SHOWN = 0.1  # of the variance of both features, for counts to say anything
_HIDDEN_ANYWAY, _HIDDEN_PART = 0.11, 0.45  # of what unions do not show: a correlation, and a part of the correlation
_SPECIAL = 0.35  # deviation of the mean of a feature in a category that shares a part, in units of that of the feature
_MOST_CONTRASTS, _FEWEST_ROWS = 12, 10  # of a column; of a category, for it to have one
_MOST_ROWS, _BATCH = 1 << 15, 256  # rows with exchanges; pairs of rows in one step
_LEAST_SWEEPS, _MOST_SWEEPS = 2, 16  # over all columns; the more, the fewer rows there are


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class HiddenPairs:
    """What noise leaves open of the sums of the products of features.

    Features are numbered through all columns, F in all. Matrices are symmetric, and 0 for two features of one column.

    Attributes:
      release: of a table.
      features: of each column except ``split``, and of the classes if there are any.
      means: of how much larger sums are than those of the released rows, [F, F].
      deviations: standard deviations of the same, [F, F].
      precisions: 1/s, [F, F]; 0 for two features of one column.
      unknown: names of the pairs of columns, except ``split``, of whose products nothing is known.
    """

    release: TableRelease
    features: tuple[_Features, ...]
    means: Float64[np.ndarray, "F F"]
    deviations: Float64[np.ndarray, "F F"]
    precisions: Float64[np.ndarray, "F F"]
    unknown: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, release: TableRelease, codes: Int64[np.ndarray, "n m"]) -> HiddenPairs:
        """What noise leaves open in a release.

        Args:
          release: of a table.
          codes: of the measured columns of its rows.
        """
        measurement = release.measurement
        layout, (first, coarse, pairs) = measurement.layout, map(measurement.measured.get, NAMES)
        if first is None:
            raise ValueError("measured: the first measurement always exists")
        num_rows = first.mechanism.num_rows
        observed = observe(layout, measurement.plan, Singles.read(layout, first), coarse, pairs, num_rows)
        bins, scale = release.rows.bins_of(codes)[:, layout.columns], len(codes) / num_rows
        features = [
            _Features.of(observed, a, codes[:, j], bins[:, a], release.schema.measured.columns[j])
            for a, j in enumerate(layout.columns)
        ]
        values = [of_column.measured_of(codes[:, j]) for of_column, j in zip(features, layout.columns, strict=True)]
        counted = {(a, b): measured for a, b, measured in observed.measured_pairs()}
        known = {
            pair: _of_pair(observed, pair, counted[pair][0], values, bins, scale) if pair in counted else None
            for pair in itertools.combinations(range(len(features)), 2)
        }
        if layout.split >= 0:
            classes = np.arange(layout.num_classes)
            features.append(_Features(classes, np.eye(layout.num_classes), layout.num_classes))
            values.append(features[-1].of_rows(codes[:, layout.split]))
            for a in range(len(layout.columns)):
                known[a, len(layout.columns)] = _of_classes(observed, a, values, bins[:, a], scale)
        parts = _parts(features)
        means, deviations, precisions = np.zeros((3, parts[-1].stop, parts[-1].stop))
        usual = [np.abs(of_rows).mean(0) for of_rows in values]
        for (a, b), of_pair in known.items():
            most = len(codes) * np.outer(usual[a], usual[b])
            if of_pair is None:  # anything is possible
                blocks = np.zeros_like(most), most, 1 / np.maximum(most, 1.0)
            else:
                missed, noise = of_pair
                kappa = _kept(missed, noise, most)
                blocks = kappa * missed, np.sqrt(kappa) * noise, 1 / noise
            for matrix, block in zip((means, deviations, precisions), blocks, strict=True):
                first, second = (slice(parts[c].start, parts[c].start + values[c].shape[1]) for c in (a, b))
                matrix[first, second], matrix[second, first] = block, block.T
        for a, b in itertools.permutations(range(len(features)), 2):
            if features[a].contrasts:
                sizes = _SPECIAL * np.outer(features[a].contrast_sizes(codes[:, layout.columns[a]]), values[b].std(0))
                is_lost = np.zeros(len(sizes), bool)  # the first measurement has the classes of each category
                if b < len(layout.columns):
                    is_lost = _are_lost(release, observed, (a, b), features[a], counted.get((min(a, b), max(a, b))))
                first = slice(parts[a].stop - len(sizes), parts[a].stop)
                second = slice(parts[b].start, parts[b].start + sizes.shape[1])
                for matrix, block in (deviations, is_lost[:, None] * sizes), (precisions, 1 / np.maximum(sizes, 1e-9)):
                    matrix[first, second], matrix[second, first] = block, block.T
        names = [release.schema.measured.names[j] for j in layout.columns]
        unknown = tuple((names[a], names[b]) for (a, b), of_pair in known.items() if of_pair is None and b < len(names))
        return cls(release, tuple(features), means, deviations, precisions, unknown)

    def hide(self, codes: Int64[np.ndarray, "n m"], random: np.random.Generator) -> None:
        """Exchanges values between rows until the sums are about as drawn, in place.

        Args:
          codes: of the measured columns.
          random: what is drawn.
        """
        if not self.precisions.any():
            return
        layout, parts = self.release.measurement.layout, _parts(self.features)
        noise = np.triu(random.standard_normal(self.means.shape), 1)
        missing = self.means + self.deviations * (noise + noise.T)
        rows = random.permutation(len(codes))[:_MOST_ROWS]
        columns = [*layout.columns, layout.split] if layout.split >= 0 else layout.columns
        here = codes[rows[:, None], columns]
        values = np.concatenate(
            [of_column.of_rows(of_rows) for of_column, of_rows in zip(self.features, here.T, strict=True)], axis=1
        )
        weights = np.square(self.precisions)
        sweeps = min(max(_LEAST_SWEEPS, _MOST_ROWS // max(len(rows), 1)), _MOST_SWEEPS)
        for _, a in itertools.product(range(sweeps), range(len(layout.columns))):
            part = parts[a]
            if not weights[part].any():
                continue
            first, second = _partners(here[:, a], self.features[a].exchanged, random)
            for start in range(0, len(first), _BATCH):
                one, other = first[start : start + _BATCH], second[start : start + _BATCH]
                steps, others = values[other, part] - values[one, part], values[one] - values[other]
                better = _better(steps, others, weights[part], missing[part])
                one, other = one[better], other[better]
                missing[part] -= np.where(weights[part] > 0, steps[better].T @ others[better], 0)
                missing[:, part] = missing[part].T
                for array, place in ((values, part), (here, a)):
                    array[one, place], array[other, place] = array[other, place], array[one, place]
        codes[rows[:, None], layout.columns] = here[:, : len(layout.columns)]


@short_repr
class _Features(NamedTuple):
    """The features of the values of a column.

    Attributes:
      codes: of the values that released rows have, increasing, [k].
      values: their features, [k, f].
      exchanged: the number of codes whose values are exchanged. They come first.
      contrasts: places among ``codes`` of the categories that share a union. The last features are their contrasts.
    """

    codes: Int64[np.ndarray, "k"]
    values: Float64[np.ndarray, "k f"]
    exchanged: int
    contrasts: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        observed: Observed,
        a: int,
        codes: Int64[np.ndarray, "n"],
        bins: Int64[np.ndarray, "n"],
        column: Column,
    ) -> _Features:
        """Those of a column. There are none if it is ordered and hardly varies.

        Args:
          observed: the noisy counts.
          a: place of the column.
          codes: of the released rows.
          bins: of the released rows.
          column: of the schema.
        """
        known, first, counts = np.unique(codes, return_index=True, return_counts=True)
        if not observed.num_ordered[a]:
            unions = observed.members(a)[bins[first]]
            of_unions, shared = counts @ unions, unions.sum(0) > 1
            alike = np.flatnonzero((unions @ shared > 0) & (counts >= _FEWEST_ROWS))
            places = np.sort(alike[np.argsort(-counts[alike], kind="stable")][:_MOST_CONTRASTS])
            contrasts = np.eye(len(known))[:, places] - unions @ unions[places].T * (
                counts[places] / (unions @ of_unions)[places]
            )
            return cls(known, np.hstack([unions, contrasts]), column.num_codes, tuple(places.tolist()))
        scores = normal_scores(counts.astype(np.float64), int(np.searchsorted(known, column.num_values)))
        deviation = math.sqrt(counts @ np.square(scores) / len(codes))
        values = scores[:, None] / deviation if deviation > _LEAST_DEVIATION else np.zeros((len(scores), 0))
        return cls(known, values, column.num_values)

    def of_rows(self, codes: Int64[np.ndarray, "n"]) -> Float64[np.ndarray, "n f"]:
        """The features of rows, of which released rows have all values, [n, f]."""
        return self.values[np.searchsorted(self.codes, codes)]

    def measured_of(self, codes: Int64[np.ndarray, "n"]) -> Float64[np.ndarray, "n f"]:
        """The same without contrasts, which come last."""
        return self.of_rows(codes)[:, : self.values.shape[1] - len(self.contrasts)]

    def contrast_sizes(self, codes: Int64[np.ndarray, "n"]) -> Float64[np.ndarray, "contrasts"]:
        """The sums of the squares of the contrasts: the rows of each category, less its share of them."""
        return np.square(self.of_rows(codes)[:, self.values.shape[1] - len(self.contrasts) :]).sum(0)


def _are_lost(
    release: TableRelease,
    observed: Observed,
    places: tuple[int, int],
    of_column: _Features,
    measured: Sequence[tuple[slice, slice, float]] | None,
) -> Bool[np.ndarray, "contrasts"]:
    """Whether nothing tells what is special about each category that has a contrast, for its dependence on a column.

    Args:
      release: of a table.
      observed: the noisy counts.
      places: of the column of the categories, and of the other one.
      of_column: features of the former.
      measured: where the counts of both are among the parts, in the order of the columns, bins before unions; None if
        they were not counted together.
    """
    a, b = places
    codes = of_column.codes[list(of_column.contrasts)]
    leaves = release.rows.leaves[a]
    bins = leaves.bins[np.searchsorted(leaves.first, codes, side="right") - 1]
    is_lost = np.ones(len(codes), bool)
    if measured:
        first, second, _ = measured[0]
        if (first if a < b else second).start == observed.offsets[a]:
            is_lost = np.bincount(leaves.bins)[bins] > 1
    for rare in release.rows.rare:
        if rare.place == a and b in rare.parents:
            is_lost &= ~np.isin(codes, rare.codes)
    return is_lost


def _parts(features: Sequence[_Features]) -> list[slice]:
    """Where the features of each column are among all features."""
    ends = itertools.accumulate((of_column.values.shape[1] for of_column in features), initial=0)
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


def _of_parts(
    parts: Int64[np.ndarray, "n"], number: int, values: Float64[np.ndarray, "n f"]
) -> Float64[np.ndarray, "parts f"]:
    """The mean features of the rows of each part; 0 for a part without rows."""
    sums = np.stack([np.bincount(parts, of_rows, minlength=number) for of_rows in values.T], axis=1)
    return sums / np.maximum(np.bincount(parts, minlength=number), 1)[:, None]


def _of_pair(
    observed: Observed,
    places: tuple[int, int],
    measured: tuple[slice, slice, float],
    values: Sequence[Float64[np.ndarray, "n f"]],
    bins: Int64[np.ndarray, "n columns"],
    scale: float,
) -> tuple[Float64[np.ndarray, "f g"], Float64[np.ndarray, "f g"]] | None:
    """How much larger the sums of the products of two columns are than for released rows, and their noise.

    Args:
      observed: the noisy counts.
      places: of the columns.
      measured: where their counts are among the parts, and σ.
      values: features of the released rows, for all columns.
      bins: of the released rows.
      scale: released rows for each private one.

    Returns:
      None if the counts do not show the features.
    """
    first, second = (values[a] for a in places)
    if not (first.size and second.size):
        return None
    of_parts, shown = [], 1.0
    for a, part in zip(places, measured[:2], strict=True):
        of_rows = bins[:, a] if part.start == observed.offsets[a] else observed.members(a).argmax(1)[bins[:, a]]
        if observed.num_ordered[a]:
            of_parts.append(_of_parts(of_rows, part.stop - part.start, values[a]))
            shown *= float(np.mean(np.square(of_parts[-1][of_rows])))
        else:
            of_parts.append(observed.members(a) if part.start == observed.offsets[a] else np.eye(values[a].shape[1]))
    if shown < _LEAST_SHOWN:
        return None
    left, right = of_parts
    sums = scale * left.T @ observed.pairs[:, measured[0], measured[1]].sum(0) @ right
    sigma = scale * measured[2] * math.sqrt(len(observed.pairs))
    noise = sigma * np.outer(np.linalg.norm(left, axis=0), np.linalg.norm(right, axis=0))
    missed, noise = _shown(sums, noise, shown, first, second)
    # Sums over all unions of a column are known: they are about the other column alone.
    if left.shape[1] > 1:
        missed = missed - first.mean(0)[:, None] * missed.sum(0)
    if right.shape[1] > 1:
        missed = missed - second.mean(0) * missed.sum(1, keepdims=True)
    by_itself = _product(observed, places, bins, scale)
    if by_itself is None:
        return missed, noise
    weight = noise**2 / (noise**2 + by_itself[1] ** 2)  # of the best weighted mean
    return missed + weight * (by_itself[0] - missed), noise * np.sqrt(1 - weight)


def _shown(
    sums: Float64[np.ndarray, "f g"],
    noise: Float64[np.ndarray, "f g"],
    shown: float,
    first: Float64[np.ndarray, "n f"],
    second: Float64[np.ndarray, "n g"],
) -> tuple[Float64[np.ndarray, "f g"], Float64[np.ndarray, "f g"]]:
    """How much larger sums of products are than for released rows, and deviations of noise and of what parts hide.

    Args:
      sums: of the products of mean features of parts.
      noise: of the sums.
      shown: B B′, the share of their variances that parts show.
      first: features of the released rows.
      second: of the other column.
    """
    if shown >= 1:
        return sums - first.T @ second, noise
    largest = np.maximum(len(first) * np.outer(first.std(0), second.std(0)), 1e-300)
    independent = len(first) * np.outer(first.mean(0), second.mean(0))
    correlations = np.clip((sums - independent) / (shown * largest), -1, 1)
    hidden = (1 - shown) * largest * np.hypot(_HIDDEN_ANYWAY, _HIDDEN_PART * correlations)
    return independent + correlations * largest - first.T @ second, np.hypot(noise / shown, hidden)


def _of_classes(
    observed: Observed,
    a: int,
    values: Sequence[Float64[np.ndarray, "n f"]],
    bins: Int64[np.ndarray, "n"],
    scale: float,
) -> tuple[Float64[np.ndarray, "f classes"], Float64[np.ndarray, "f classes"]] | None:
    """The same as :func:`_of_pair`, for a column and the classes.

    Args:
      observed: the noisy counts.
      a: place of the column.
      values: features of the released rows, for all columns. The last ones are of the classes.
      bins: of the released rows.
      scale: released rows for each private one.
    """
    part, first, classes = slice(*observed.offsets[a : a + 2]), values[a], values[-1]
    if not first.size:
        return None
    of_bins, shown = observed.members(a), 1.0
    if observed.num_ordered[a]:
        of_bins = _of_parts(bins, part.stop - part.start, first)
        shown = float(np.mean(np.square(of_bins[bins])))
    sigma = scale * np.linalg.norm(observed.singles_sigma[part, None] * of_bins, axis=0)
    if shown < _LEAST_SHOWN or not (sigma > 0).all():
        return None
    sums = scale * of_bins.T @ observed.singles[:, part].T
    missed, noise = _shown(sums, np.repeat(sigma[:, None], classes.shape[1], axis=1), shown, first, classes)
    missed = missed - classes.mean(0) * missed.sum(1, keepdims=True)
    if first.shape[1] > 1:
        missed = missed - first.mean(0)[:, None] * missed.sum(0)
    return missed, noise


def _product(
    observed: Observed, places: tuple[int, int], bins: Int64[np.ndarray, "n columns"], scale: float
) -> tuple[float, float] | None:
    """The same as :func:`_of_pair`, from a product of scores that was measured by itself. None if there is none.

    Scores are brought to variance 1, and taken for normal ones.
    """
    scores, columns = [], []
    for a in places:
        of_bins = observed.scores[slice(*observed.offsets[a : a + 2])]
        if not of_bins.any():
            return None
        columns.append(int(of_bins.any(0).argmax()))
        scores.append(of_bins[bins[:, a], columns[-1]])
    size = float(scores[0].std() * scores[1].std())
    k, m = columns if observed.products_precision[*columns] else columns[::-1]
    if not size or not observed.products_precision[k, m]:
        return None
    missed = scale * float(observed.products[k, m]) - float(scores[0] @ scores[1])
    return missed / size, scale / (float(observed.products_precision[k, m]) * size)


def _kept(
    missed: Float64[np.ndarray, "f g"], noise: Float64[np.ndarray, "f g"], most: Float64[np.ndarray, "f g"]
) -> Float64[np.ndarray, "f g"]:
    """κ of the products of a pair of columns.

    Args:
      missed: R.
      noise: s.
      most: the largest τ.
    """
    number = math.prod(max(size - 1, 1) for size in missed.shape)
    ratio = max(float(np.square(missed / noise).sum()) / number - 1, 0.0) + _ERRORS * math.sqrt(2 / number)
    ratios = np.minimum(ratio, np.square(most / noise))
    return ratios / (1 + ratios)


def _partners(
    codes: Int64[np.ndarray, "n"], number: int, random: np.random.Generator
) -> tuple[Int64[np.ndarray, "pairs"], Int64[np.ndarray, "pairs"]]:
    """Pairs of rows with different values of a column, in random order. Each row is in one pair at most.

    Args:
      codes: of the rows.
      number: of codes that count. They come first.
      random: what is drawn.
    """
    order = random.permutation(np.flatnonzero(codes < number))
    first, second = order[: len(order) // 2 * 2].reshape(-1, 2).T
    useful = codes[first] != codes[second]
    return first[useful], second[useful]


def _better(
    steps: Float64[np.ndarray, "pairs f"],
    others: Float64[np.ndarray, "pairs F"],
    weights: Float64[np.ndarray, "f F"],
    missing: Float64[np.ndarray, "f F"],
) -> Int64[np.ndarray, "_"]:
    """Which pairs of rows exchange the value of a column.

    Each exchange by itself makes the sum of the squares of what is missing smaller, in units of the noise. All together
    do not go further than the least sum in this direction.

    Args:
      steps: how the features of the column grow in the first row of each pair.
      others: features of the first row, less those of the second.
      weights: 1/s².
      missing: of the sums.
    """
    gain = ((steps @ (weights * missing)) * others).sum(1)
    cost = ((np.square(steps) @ weights) * np.square(others)).sum(1)
    better = np.flatnonzero(2 * gain > cost)
    change = steps[better].T @ others[better]
    size = float((weights * np.square(change)).sum())
    furthest = float((weights * missing * change).sum()) / size if size > 0 else 1.0
    return better[: math.ceil(min(max(furthest, 0.0), 1.0) * len(better))]
