"""Dependence between columns that noise could hide from a release of a table. Post-processing.

Released columns depend on each other as far as noisy counts of pairs clearly show. Weak dependence is lost. A replicate
of the release (``kme_jax.analysis.replicates``) that starts from released rows never had it, and does not show that it
was lost. So rows that take the place of the private ones get dependence that noise leaves open, drawn anew for each
replicate.

A *feature* of an ordered column is the normal score of its bins, with mean 0 and variance 1. Features of another column
are indicators of the unions of its bins. The sum over all rows of the product of two features is known from the noisy
counts of the pair of columns. Let R be its difference from the sum over released rows, and s the standard deviation of
its noise. The sum over the rows in the place of the private ones is that over released rows plus κ R + √κ s Z, with
standard normal Z. This is its posterior distribution if such differences have variance τ² without noise, and κ = τ² /
(τ² + s²). The m products of a pair of columns share one ratio τ² / s². It is the largest one that is plausible: the
mean of R² / s² − 1, or 0 if that is negative, and two standard errors more, 2 √(2 / m). So the single product of two
ordered columns is as the noisy counts say, nearly, and many products that look like noise are as in the release. But τ
is at most N E|f| E|g| for features f and g: that is the count of two unions if they are independent. So combinations of
rare categories do not become frequent.

If nothing is known of a product, its deviation is this largest τ. That is so if a pair was not counted, or if its
counts show hardly anything of the scores, as where noise left a column a single bin.

Unions hide a part of the normal scores of bins. If the unions of both columns show the shares B and B′ of the variance,
R and s are divided by B B′: that is right for weak dependence, and in the median of public tables. What it misses there
has about the deviation (1 − B B′) (0.11² + 0.45² ρ²)^½, as a correlation, where ρ is the correlation of the scores. So s
has this, too. The numbers describe 6582 choices of unions in fifty public tables of R packages, which are in no
benchmark of this project.

The same holds for a column and the classes, which are the values of a target that all counts are split by.

To get these sums, values of a column are exchanged between rows. So no column changes by itself. Missing cells of
ordered columns stay where they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.directions import normal_scores
from kme_jax.table.fit import observe
from kme_jax.table.observed import Observed
from kme_jax.table.planning import Singles
from kme_jax.table.release import NAMES, TableRelease

_ERRORS = 2.0  # standard errors that the estimate of τ² / s² is raised by
_LEAST_DEVIATION = 1e-3  # of the normal scores of a column, for it to have features
_LEAST_SHOWN = 0.1  # of the variance of both features, for counts to say anything
_HIDDEN_ANYWAY, _HIDDEN_PART = 0.11, 0.45  # of what unions do not show: a correlation, and a part of the correlation
_MOST_ROWS, _BATCH = 1 << 15, 256  # rows with exchanges; pairs of rows in one step
_LEAST_SWEEPS, _MOST_SWEEPS = 2, 16  # over all columns; the more, the fewer rows there are


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class HiddenPairs:
    """What noise leaves open of the sums of the products of features.

    Features are numbered through all columns, F in all. Matrices are symmetric, and 0 for two features of one column.

    Attributes:
      release: of a table.
      features: for each column except ``split``, the features of its bins, [B, f]. If there are classes, indicators of
        them follow, [T, T].
      exchanged: for each column except ``split``, the number of bins whose values are exchanged. They come first.
      means: of how much larger sums are than those of the released rows, [F, F].
      deviations: standard deviations of the same, [F, F].
      precisions: 1/s, [F, F]; 0 for two features of one column.
      unknown: names of the pairs of columns, except ``split``, of whose products nothing is known.
    """

    release: TableRelease
    features: tuple[Float64[np.ndarray, "bins f"], ...]
    exchanged: tuple[int, ...]
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
        features = [_features(observed, a, of_rows) for a, of_rows in enumerate(bins.T)]
        counted = {(a, b): measured for a, b, measured in observed.measured_pairs()}
        known = {
            pair: _of_pair(observed, pair, counted[pair][0], features, bins, scale) if pair in counted else None
            for pair in itertools.combinations(range(len(features)), 2)
        }
        if layout.split >= 0:
            classes, last = codes[:, layout.split], len(features)
            for a, (of_bins, of_rows) in enumerate(zip(features, bins.T, strict=True)):
                known[a, last] = _of_classes(observed, a, of_bins, of_rows, classes, scale)
            features.append(np.eye(layout.num_classes))
        parts = _parts(features)
        means, deviations, precisions = np.zeros((3, parts[-1].stop, parts[-1].stop))
        columns = np.column_stack([bins, codes[:, layout.split]]) if layout.split >= 0 else bins
        usual = [np.abs(of_bins[b]).mean(0) for of_bins, b in zip(features, columns.T, strict=True)]
        for (a, b), of_pair in known.items():
            most = len(codes) * np.outer(usual[a], usual[b])
            if of_pair is None:  # anything is possible
                blocks = np.zeros_like(most), most, 1 / np.maximum(most, 1.0)
            else:
                missed, noise = of_pair
                kappa = _kept(missed, noise, most)
                blocks = kappa * missed, np.sqrt(kappa) * noise, 1 / noise
            for matrix, block in zip((means, deviations, precisions), blocks, strict=True):
                matrix[parts[a], parts[b]], matrix[parts[b], parts[a]] = block, block.T
        sizes = np.diff(observed.offsets).tolist()
        exchanged = tuple(ordered or size for ordered, size in zip(observed.num_ordered, sizes, strict=True))
        names = [release.schema.measured.names[j] for j in layout.columns]
        unknown = tuple((names[a], names[b]) for (a, b), of_pair in known.items() if of_pair is None and b < len(names))
        return cls(release, tuple(features), exchanged, means, deviations, precisions, unknown)

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
        bins = self.release.rows.bins_of(codes[rows])[:, columns]
        values = np.concatenate([of_bins[b] for of_bins, b in zip(self.features, bins.T, strict=True)], axis=1)
        weights = np.square(self.precisions)
        sweeps = min(max(_LEAST_SWEEPS, _MOST_ROWS // max(len(rows), 1)), _MOST_SWEEPS)
        for _, a in itertools.product(range(sweeps), range(len(layout.columns))):
            part = parts[a]
            if not weights[part].any():
                continue
            first, second = _partners(bins[:, a], self.exchanged[a], random)
            for start in range(0, len(first), _BATCH):
                one, other = first[start : start + _BATCH], second[start : start + _BATCH]
                steps, others = values[other, part] - values[one, part], values[one] - values[other]
                better = _better(steps, others, weights[part], missing[part])
                one, other = one[better], other[better]
                missing[part] -= np.where(weights[part] > 0, steps[better].T @ others[better], 0)
                missing[:, part] = missing[part].T
                for array, place in ((values, part), (bins, a)):
                    array[one, place], array[other, place] = array[other, place], array[one, place]
                j, i, k = layout.columns[a], rows[one], rows[other]
                codes[i, j], codes[k, j] = codes[k, j], codes[i, j]


def _parts(features: Sequence[Float64[np.ndarray, "bins f"]]) -> list[slice]:
    """Where the features of each column are among all features."""
    ends = itertools.accumulate((of_bins.shape[1] for of_bins in features), initial=0)
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


def _features(observed: Observed, a: int, bins: Int64[np.ndarray, "n"]) -> Float64[np.ndarray, "bins f"]:
    """The features of the bins of a column; none if it is ordered and hardly varies.

    Args:
      observed: the noisy counts.
      a: place of the column.
      bins: of the released rows.
    """
    if not observed.num_ordered[a]:
        return observed.members(a)
    counts = np.bincount(bins, minlength=observed.offsets[a + 1] - observed.offsets[a]).astype(np.float64)
    scores = normal_scores(counts, observed.num_ordered[a])
    deviation = math.sqrt(counts @ np.square(scores) / max(counts.sum(), 1.0))
    return scores[:, None] / deviation if deviation > _LEAST_DEVIATION else np.zeros((len(scores), 0))


def _of_pair(
    observed: Observed,
    places: tuple[int, int],
    measured: tuple[slice, slice, float],
    features: Sequence[Float64[np.ndarray, "bins f"]],
    bins: Int64[np.ndarray, "n columns"],
    scale: float,
) -> tuple[Float64[np.ndarray, "f g"], Float64[np.ndarray, "f g"]] | None:
    """How much larger the sums of the products of two columns are than for released rows, and their noise.

    Args:
      observed: the noisy counts.
      places: of the columns.
      measured: where their counts are among the parts, and σ.
      features: of all columns.
      bins: of the released rows.
      scale: released rows for each private one.

    Returns:
      None if the counts do not show the features.
    """
    of_parts, of_rows, shown = [], [], 1.0
    for a, part in zip(places, measured[:2], strict=True):
        of_bins, members = features[a], np.eye(len(features[a]))
        if part.start != observed.offsets[a]:
            members = observed.members(a)
        rows = np.bincount(bins[:, a], minlength=len(of_bins)) + 1e-9
        of_parts.append((members.T * rows) @ of_bins / (members.T @ rows)[:, None])
        of_rows.append(of_bins[bins[:, a]])
        if observed.num_ordered[a] and of_bins.shape[1]:
            of_rows[-1] = (members @ of_parts[-1])[bins[:, a]]
            shown *= float(np.mean(np.square(of_rows[-1])))
    left, right = of_parts
    if not (left.size and right.size) or shown < _LEAST_SHOWN:
        return None
    missed = scale * left.T @ observed.pairs[:, measured[0], measured[1]].sum(0) @ right - of_rows[0].T @ of_rows[1]
    # Sums over all unions of a column are known: they are about the other column alone.
    if left.shape[1] > 1:
        missed = missed - of_rows[0].mean(0)[:, None] * missed.sum(0)
    if right.shape[1] > 1:
        missed = missed - of_rows[1].mean(0) * missed.sum(1, keepdims=True)
    sigma = scale * measured[2] * math.sqrt(len(observed.pairs))
    noise = sigma * np.outer(np.linalg.norm(left, axis=0), np.linalg.norm(right, axis=0))
    missed, noise = missed / shown, noise / shown
    noise = np.hypot(noise, _unions_hide(shown, missed, [features[a][bins[:, a]] for a in places]))
    by_itself = _product(observed, places, bins, scale)
    if by_itself is None:
        return missed, noise
    weight = noise**2 / (noise**2 + by_itself[1] ** 2)  # of the best weighted mean
    return missed + weight * (by_itself[0] - missed), noise * np.sqrt(1 - weight)


def _unions_hide(
    shown: float, missed: Float64[np.ndarray, "f g"], values: Sequence[Float64[np.ndarray, "n f"]]
) -> Float64[np.ndarray, "f g"]:
    """Deviations of sums of products for what unions hide of two columns.

    Args:
      shown: B B′.
      missed: R.
      values: features of the rows of both columns.
    """
    first, second = values
    largest = np.maximum(len(first) * np.outer(first.std(0), second.std(0)), 1e-300)
    sizes = first.T @ second - len(first) * np.outer(first.mean(0), second.mean(0)) + missed
    correlations = np.minimum(np.abs(sizes) / largest, 1)
    return max(1 - shown, 0) * largest * np.hypot(_HIDDEN_ANYWAY, _HIDDEN_PART * correlations)


def _of_classes(
    observed: Observed,
    a: int,
    features: Float64[np.ndarray, "bins f"],
    bins: Int64[np.ndarray, "n"],
    classes: Int64[np.ndarray, "n"],
    scale: float,
) -> tuple[Float64[np.ndarray, "f classes"], Float64[np.ndarray, "f classes"]] | None:
    """The same as :func:`_of_pair`, for a column and the classes.

    Args:
      observed: the noisy counts.
      a: place of the column.
      features: of its bins.
      bins: of the released rows.
      classes: of the released rows.
      scale: released rows for each private one.
    """
    part, number = slice(*observed.offsets[a : a + 2]), len(observed.singles)
    sigma = scale * np.linalg.norm(observed.singles_sigma[part, None] * features, axis=0)
    if not features.size or not (sigma > 0).all():
        return None
    indicators = np.eye(number)[classes]
    missed = scale * features.T @ observed.singles[:, part].T - features[bins].T @ indicators
    missed = missed - indicators.mean(0) * missed.sum(1, keepdims=True)
    if features.shape[1] > 1:
        missed = missed - features[bins].mean(0)[:, None] * missed.sum(0)
    return missed, np.repeat(sigma[:, None], number, axis=1)


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
    bins: Int64[np.ndarray, "n"], number: int, random: np.random.Generator
) -> tuple[Int64[np.ndarray, "pairs"], Int64[np.ndarray, "pairs"]]:
    """Pairs of rows in different bins of a column, in random order. Each row is in one pair at most.

    Args:
      bins: of the rows.
      number: of bins that count. They come first.
      random: what is drawn.
    """
    order = random.permutation(np.flatnonzero(bins < number))
    first, second = order[: len(order) // 2 * 2].reshape(-1, 2).T
    useful = bins[first] != bins[second]
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
