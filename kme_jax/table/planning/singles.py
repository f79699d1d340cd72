"""The counts of single columns from the first measurement, and estimates from them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float, Int

from kme_jax._numerics.short_repr import short_repr
from kme_jax.feature_maps.table import Binning
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.table.cells import CellNoise, refined
from kme_jax.table.histogram import project_to_simplex, smooth_counts
from kme_jax.table.planning.layout import Layout
from kme_jax.table.planning.noisy_sums import map_of, sigma
from kme_jax.table.reach import Known, cells_alone, cells_with_rows
from kme_jax.table.tilt import Moments, tilted

SIGNIFICANT = 4.0  # the smallest count of a bin, in units of σ
_LITTLE = 1e-6  # rows of a cell, so that a segment without rows can have some
EVENLY = 1e-3  # share of all rows that is spread evenly over classes and cells
_LEAST_CLASS = 0.1  # the smallest count of a class, in units of its noise
NUM_RAKES = 5  # of a histogram, to its sums over classes and to the counts of the classes


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Noisy counts of the segments of a column.

    Attributes:
      bins: the segment of every cell, [cells].
      counts: of every class and segment, [T, segments].
      sigma: standard deviation of the noise of ``counts``.
    """

    bins: Int[np.ndarray, "cells"]
    counts: Float[np.ndarray, "classes segments"]
    sigma: float


@short_repr
@dataclasses.dataclass(frozen=True)
class Singles:
    """The noisy counts of the first measurement, and estimates from them. Each list has one entry for each column.

    Attributes:
      counts: noisy counts of every class and cell, [T, cells].
      sigmas: standard deviations of the noise of ``counts``.
      totals: noisy counts of every cell, measured without classes, [cells]; None if they were not measured.
      totals_sigmas: standard deviations of the noise of ``totals``.
      classes: noisy counts of the classes, [T]; None if they were not measured by themselves.
      classes_sigma: standard deviation of the noise of ``classes``; infinite if they were not measured.
      sums: the best noisy estimates of the counts of every cell, all classes together, [cells].
      sums_sigmas: standard deviations of the noise of ``sums``.
      segments: the segments of columns that were counted in segments, too; None for other columns.
      smoothed: estimates of ``counts`` after denoising, [T, cells], with Σ = N. They agree with the moments.
      moments: the measured moments; None for columns without.
      inside: whether each cell may have rows, [cells], see ``kme_jax.table.reach``. Estimates are 0 elsewhere, where
        positive noise looks like rows.
    """

    counts: list[Float[np.ndarray, "classes _"]]
    sigmas: list[float]
    totals: list[Float[np.ndarray, "_"]] | None
    totals_sigmas: list[float]
    classes: Float[np.ndarray, "classes"] | None
    classes_sigma: float
    sums: list[Float[np.ndarray, "_"]]
    sums_sigmas: list[float]
    segments: list[Segments | None]
    smoothed: list[Float[np.ndarray, "classes _"]]
    moments: list[Moments | None]
    inside: list[Bool[np.ndarray, "_"]]

    @classmethod
    def read(cls, layout: Layout, noisy: NoisyEmbedding, *, denoised: bool = True) -> Singles:
        """The counts of the first measurement, from its noisy embedding.

        Args:
          layout: of the columns.
          noisy: the first measurement.
          denoised: whether there are estimates. Otherwise ``smoothed`` and ``inside`` are empty lists.
        """
        num_rows, feature_map = noisy.mechanism.num_rows, map_of(noisy)
        blocks, marginals = feature_map.blocks, feature_map.marginals(noisy.coordinates, num_rows)
        noises, size = [sigma(noisy, block) for block in blocks], len(layout.columns)
        counts, sigmas = [marginal.reshape(layout.num_classes, -1) for marginal in marginals[:size]], noises[:size]
        totals, totals_sigmas = None, []
        if layout.has_totals:
            totals, totals_sigmas = list(marginals[size : 2 * size]), noises[size : 2 * size]
        classes, classes_sigma = None, math.inf
        segments: list[Segments | None] = [None] * size
        first = len(blocks) - len(layout.segmented)
        for j, marginal, noise in zip(layout.segmented, marginals[first:], noises[first:], strict=True):
            a = layout.columns.index(j)
            segments[a] = Segments(layout.segments(a), marginal.reshape(layout.num_classes, -1), noise)
        if layout.has_classes:
            classes, classes_sigma = marginals[first - 1], noises[first - 1]
        sums = [counts_of_column.sum(0) for counts_of_column in counts]
        sums_sigmas = [noise * math.sqrt(layout.num_classes) for noise in sigmas]
        if totals is not None:
            weights = [s**2 / (s**2 + t**2) for s, t in zip(sums_sigmas, totals_sigmas, strict=True)]
            sums = [(1 - weight) * s + weight * t for weight, s, t in zip(weights, sums, totals, strict=True)]
            sums_sigmas = [s * math.sqrt(1 - weight) for weight, s in zip(weights, sums_sigmas, strict=True)]
        moments: list[Moments | None] = [None] * size
        sums_of_moments = feature_map.moment_sums(noisy.coordinates, num_rows)
        for a, moment, values in zip(layout.numbers, feature_map.moments, sums_of_moments, strict=True):
            moments[a] = Moments(moment, layout.binnings[layout.columns[a]], values, sigma(noisy, moment), num_rows)
        singles = cls(
            counts, sigmas, totals, totals_sigmas, classes, classes_sigma, sums, sums_sigmas, segments, [], moments, []
        )
        if not denoised:
            return singles
        found = [singles.denoise(layout, a, num_rows) for a in range(size)]
        smoothed, inside = ([pair[i] for pair in found] for i in range(2))
        return dataclasses.replace(singles, smoothed=smoothed, inside=inside)

    def of_classes(self, a: int) -> tuple[Float[np.ndarray, "classes cells"], CellNoise]:
        """The best noisy counts of every class and cell, [T, cells], and their noise, which is independent for classes.

        Args:
          a: place of the column among all except ``Layout.split``.
        """
        return self._of_cells(a, self.counts[a], self.sigmas[a], 1)

    def of_all(self, a: int) -> tuple[Float[np.ndarray, "cells"], CellNoise]:
        """The best noisy counts of every cell, all classes together, [cells], and their noise. a as above."""
        return self._of_cells(a, self.sums[a], self.sums_sigmas[a], len(self.counts[a]))

    def _of_cells(self, a: int, counts: np.ndarray, noise: float, number: int) -> tuple[np.ndarray, CellNoise]:
        segments = self.segments[a]
        if segments is None or noise == 0:
            return counts, CellNoise(noise)
        of_segments = segments.counts if counts.ndim > 1 else segments.counts.sum(0)
        return refined(counts, noise, segments.bins, of_segments, segments.sigma * math.sqrt(number))

    def within(
        self, a: int, inside: Bool[np.ndarray, "cells"]
    ) -> tuple[
        Float[np.ndarray, "classes cells"],
        Float[np.ndarray, "cells"],
        tuple[Float[np.ndarray, "classes segments"], Float[np.ndarray, "segments"]] | None,
    ]:
        """Noisy counts of the column at place a, if only some cells have rows.

        Args:
          a: place of the column among all except ``Layout.split``.
          inside: these cells, [cells].

        Returns:
          Counts of every class and cell [T, cells]; those of all classes together [cells]; and both for the segments,
          or None if there are none. Sums of the cells inside agree with those of segments.
        """
        segments = self.segments[a]
        if segments is None or self.sigmas[a] == 0:
            return self.counts[a], self.sums[a], None
        of_all = segments.counts.sum(0), segments.sigma * math.sqrt(len(segments.counts))
        found, of_segments = [], []
        for counts, noise, of_some in (
            (self.counts[a], self.sigmas[a], (segments.counts, segments.sigma)),
            (self.sums[a], self.sums_sigmas[a], of_all),
        ):
            counts = np.array(counts)
            counts[..., inside] = refined(counts[..., inside], noise, segments.bins[inside], *of_some)[0]
            found.append(counts)
            of_segments.append(np.where(inside, counts, 0) @ np.eye(len(of_all[0]))[segments.bins])
        return found[0], found[1], (of_segments[0], of_segments[1])

    def denoise(
        self, layout: Layout, a: int, num_rows: int
    ) -> tuple[Float[np.ndarray, "classes cells"], Bool[np.ndarray, "cells"]]:
        """The entries of ``smoothed`` and ``inside`` of the column at place a.

        Args:
          layout: of the columns.
          a: place of the column among all except ``layout.split``.
          num_rows: N.
        """
        binning, moments = layout.binnings[layout.columns[a]], self.moments[a]
        sums, noise = self.of_all(a)
        inside = np.ones(len(sums), bool)
        if binning.ordered:
            at_bounds = self.at_bounds(a, binning.num_values)
            known = Known.of_moments([] if moments is None else [moments])
            inside = cells_with_rows(binning, sums, noise, num_rows, known, at_bounds)
        counts, sums, of_segments = self.within(a, inside)
        alone = cells_alone(inside, binning.num_values)
        smoothed = np.where(alone, counts, _along_values(binning, counts, self.sigmas[a]))
        estimate = np.where(inside, smoothed, -math.inf)
        of_classes = None
        if self.classes is None:
            estimate = project_to_simplex(estimate.reshape(-1), num_rows).reshape(estimate.shape)
        else:
            of_classes = class_sizes(self.classes, self.classes_sigma, num_rows)
            estimate = np.stack([project_to_simplex(row, n) for row, n in zip(estimate, of_classes, strict=True)])
        estimate = self.with_segments(a, estimate, inside, of_segments and of_segments[0])
        if self.totals is not None:  # sums over classes agree with the totals, nearly
            target = np.where(alone, sums, _along_values(binning, sums, self.sums_sigmas[a]))
            target = np.where(inside, target, -math.inf)
            target = project_to_simplex(target, num_rows)
            target = self.with_segments(a, target, inside, of_segments and of_segments[1])
            estimate = estimate + num_rows * EVENLY / estimate.size
            for _ in range(NUM_RAKES):
                estimate = estimate * (target / np.maximum(estimate.sum(0), 1e-300))
                if of_classes is not None:
                    estimate = estimate * (of_classes / np.maximum(estimate.sum(1), 1e-300))[:, None]
        if moments is not None:
            first = binning.first_codes()
            estimate = tilted(estimate, first[:-1], first[1:], [moments], noise, alone)
        return estimate, inside

    def with_segments(
        self,
        a: int,
        estimate: Float[np.ndarray, "*n cells"],
        inside: Bool[np.ndarray, "cells"],
        of_segments: Float[np.ndarray, "*n segments"] | None,
    ) -> Float[np.ndarray, "*n cells"]:
        """Non-negative counts whose sums over segments are close to noisy ones, [..., cells]. Their sum stays.

        Smoothing hides differences between cells that noise hides in the counts of cells. Those of segments show more.
        Cells that stand out of the noise by themselves stay: a value that many rows share is known well.

        Args:
          a: place of the column.
          estimate: non-negative counts.
          inside: the cells that may have rows.
          of_segments: noisy counts of segments; None for none.
        """
        segments = self.segments[a]
        if segments is None or of_segments is None:
            return estimate
        member, found = np.eye(of_segments.shape[-1])[segments.bins], np.array(estimate)
        noise = self.sigmas[a] if estimate.ndim > 1 else self.sums_sigmas[a]
        for place in np.ndindex(estimate.shape[:-1]):
            row = estimate[place]
            moves = inside & (row <= SIGNIFICANT * noise)
            kept, total = np.where(moves, 0, row), float(row[moves].sum())
            if total > 0:
                sums = np.where(moves @ member > 0, of_segments[place] - kept @ member, -math.inf)
                row = np.where(moves, row + _LITTLE, 0)
                factors = project_to_simplex(sums, total) / np.maximum(row @ member, 1e-300)
                found[place] = kept + row * factors[segments.bins]
        return found

    def at_bounds(self, a: int, num_values: int) -> Float[np.ndarray, "2"]:
        """How far the first and the last value of a column stand out from noise, in σ, [2].

        Often all rows at a bound are of one class. Then the other classes only add noise. So the count of each class
        is taken together with that of all classes, too. One of T classes is chosen, so 2 log T is subtracted from the
        square.

        Args:
          a: place of the column among all except ``Layout.split``.
          num_values: the number of its cells that are values.
        """
        ends = [0, num_values - 1]
        all_classes = self.sums[a][ends] / max(self.sums_sigmas[a], 1e-300)
        if len(self.counts[a]) == 1 or self.sigmas[a] == 0:
            return all_classes
        along, squares = self.counts[a][:, ends] / self.sigmas[a] ** 2, self.sigmas[a] ** -2.0
        if self.totals is not None:
            along = along + self.totals[a][ends] / self.totals_sigmas[a] ** 2
            squares += self.totals_sigmas[a] ** -2.0
        of_class = along.max(0) / math.sqrt(squares)
        chosen = np.sqrt(np.maximum(np.square(np.maximum(of_class, 0)) - 2 * math.log(len(along)), 0))
        return np.maximum(all_classes, chosen)


def class_sizes(counts: Float[np.ndarray, "classes"], noise: float, num_rows: int) -> Float[np.ndarray, "classes"]:
    """Estimates of the counts of the classes, [T], from noisy ones with this σ: positive, with Σ = N.

    A class of a size that noise hides gets a small part of the noise, and at most a thousandth of all rows.
    """
    least = min(_LEAST_CLASS * noise, num_rows * EVENLY / len(counts))
    sizes = np.maximum(project_to_simplex(counts, num_rows), max(least, num_rows * 1e-12))
    return sizes * (num_rows / sizes.sum())


def _along_values(
    binning: Binning, counts: Float[np.ndarray, "*classes cells"], noise: float
) -> Float[np.ndarray, "*classes cells"]:
    """Counts, [..., cells]; those of an ordered column are smoothed along its values."""
    if not binning.ordered:
        return counts
    return np.concatenate(
        [smooth_counts(counts[..., : binning.num_values], noise), counts[..., binning.num_values :]], axis=-1
    )
