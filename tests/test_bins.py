"""Bins of ordered columns: of about equal counts, and never on both sides of a gap."""

import numpy as np
import pytest

from kme_jax import Numeric
from kme_jax.feature_maps.table import Binning
from kme_jax.table.planning import choose_bins

CODES = Binning(41, ordered=False, missing=True, width=1)


def _two_modes(rng, noise):
    """12 000 rows in cells 100 to 140, 8000 in cells 700 to 780, and noise in the cells between them."""
    counts = np.zeros(1000)
    counts[100:140], counts[700:780] = 300, 100
    counts[140:700] = np.maximum(noise * rng.normal(size=560), 0)
    return counts


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_no_bin_is_on_both_sides_of_a_gap(rng, noise):
    binning, counts = Binning(1000, ordered=True, missing=False, width=1), _two_modes(rng, noise)
    bins = choose_bins(binning, counts, 7, 500.0)
    assert set(bins[100:140]).isdisjoint(bins[700:780])
    assert (np.diff(bins) >= 0).all()
    assert set(bins) == set(range(bins.max() + 1))
    assert np.bincount(bins, counts).min() >= 500


def test_rows_beyond_a_gap_that_make_no_bin_stay_with_the_others(rng):
    binning, counts = Binning(1001, ordered=True, missing=True, width=1), _two_modes(rng, 0.0)
    counts[900:910] = 10
    bins = choose_bins(binning, np.append(counts, 50), 7, 500.0)
    assert bins[905] == bins[779]
    assert bins[-1] == bins[:-1].max() + 1


def test_a_column_without_gaps_has_bins_of_about_equal_counts():
    counts = np.full(1000, 20.0)
    bins = choose_bins(Binning(1000, ordered=True, missing=False, width=1), counts, 10, 500.0)
    np.testing.assert_allclose(np.bincount(bins, counts), 2000)


def test_few_values_among_many_cells_have_bins_of_their_own():
    """Prices: a column of many cells, of which few have rows, is like a column of few cells."""
    counts, prices = np.zeros(500), np.arange(40, 460, 14)  # 30 prices
    counts[prices] = 1000.0
    counts[prices + 3] = 2.0  # what noise leaves
    bins = choose_bins(Binning(500, ordered=True, missing=False, width=1), counts, 20, 400.0)
    assert len(set(bins[prices])) == len(prices)
    smooth = choose_bins(Binning(500, ordered=True, missing=False, width=1), np.full(500, 60.0), 20, 400.0)
    assert smooth.max() < 25


def _codes():
    """Two frequent codes, 20 rare ones of family 0, 15 of family 1, 3 of family 2, and the missing cell."""
    counts = np.array([900.0, 800.0, *[40.0] * 20, *[30.0] * 15, *[10.0] * 3, 5.0])
    return counts, np.array([0, 1, *[0] * 20, *[1] * 15, *[2] * 3, 3])


def test_rare_categories_share_a_bin_with_their_family():
    counts, family = _codes()
    bins = choose_bins(CODES, counts, 10, 200.0, [family])
    np.testing.assert_array_equal(bins, [0, 1, *[2] * 20, *[3] * 15, *[4] * 3, 5])


def test_families_come_before_frequent_categories():
    counts, family = _codes()
    bins = choose_bins(CODES, counts, 1.0, 200.0, [family])  # three bins at most, beside that of the missing cell
    np.testing.assert_array_equal(bins, [0, 1, *[0] * 20, *[1] * 15, *[2] * 3, 3])


def test_families_that_are_too_small_join_larger_ones():
    counts, family = _codes()
    halves, one = np.where(np.arange(41) % 2, family, family + 4), np.zeros(41, np.int64)
    bins = choose_bins(CODES, counts, 10, 700.0, [halves, family, one])
    np.testing.assert_array_equal(bins, [0, 1, *[2] * 20, *[3] * 18, 4])


def test_without_families_rare_categories_share_bins_with_their_neighbours():
    counts, _ = _codes()
    bins = choose_bins(CODES, counts, 10, 200.0)
    np.testing.assert_array_equal(bins, [0, 1, *[2] * 5, *[3] * 5, *[4] * 5, *[5] * 5, *[6] * 7, *[7] * 11, 8])
    np.testing.assert_array_equal(choose_bins(CODES, counts, 10, 1000.0), [0, 0, *[1] * 38, 2])
    assert choose_bins(CODES, counts, 1.4, 200.0).max() == 4  # four bins at most, and that of the missing cell


def test_bins_end_in_valleys_and_not_on_the_way_down():
    cells = np.arange(300)
    counts = 100 * np.exp(-0.5 * ((cells - 60) / 15) ** 2) + 300 * np.exp(-0.5 * ((cells - 150) / 20) ** 2) + 0.5
    bins = choose_bins(Binning(300, ordered=True, missing=False, width=1), counts, 4, 400.0)
    ends = np.flatnonzero(np.diff(bins)) + 1
    assert ((ends > 90) & (ends < 115)).any()  # between both hills
    assert np.bincount(bins, counts).min() >= 400
    assert (np.diff(bins) >= 0).all()
    step = np.repeat([400.0, 20.0], [20, 600])  # a tail is no valley
    tail = choose_bins(Binning(620, ordered=True, missing=False, width=1), step, 3, 400.0)
    assert np.searchsorted(tail, 1) == 17  # a third of all
    flat = choose_bins(Binning(300, ordered=True, missing=False, width=1), np.full(300, 60.0), 4, 400.0)
    np.testing.assert_array_equal(np.bincount(flat), 75)


def test_bins_begin_at_knots_with_enough_rows():
    column = Numeric("minutes", 0, 299, integer=True, knots=(41, 200))
    binning = Binning.create(300, ordered=True, missing=False, knots=column.codes_of_knots)
    counts = np.bincount(binning.cells(np.repeat(np.arange(160), 40)), minlength=binning.num_cells)
    plain = choose_bins(Binning.create(300, ordered=True, missing=False), np.repeat([40, 0], [160, 140]), 4, 400.0)
    assert plain[40] == plain[41]
    bins = choose_bins(binning, counts, 4, 400.0)
    knot, rare = binning.cells(np.array([41, 200]))
    assert bins[knot] == bins[knot - 1] + 1
    assert bins[rare] == bins[rare - 1]  # no rows are there
