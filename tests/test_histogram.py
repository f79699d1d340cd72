import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize

from kme_jax import Datetime, Schema
from kme_jax.feature_maps.table import Binning
from kme_jax.table.fit import by_class
from kme_jax.table.histogram import of_phases, peaks, project_to_simplex, smooth, smooth_counts, threshold


def test_projection_is_the_nearest_point(rng):
    for size in (1, 2, 7):
        values = 3 * rng.normal(size=size)
        found = project_to_simplex(values, 2.5)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(2.5)
        constraint = {"type": "eq", "fun": lambda x: x.sum() - 2.5}
        best = minimize(
            lambda x, v=values: np.sum((x - v) ** 2),
            np.full(size, 2.5 / size),
            bounds=[(0, None)] * size,
            constraints=constraint,
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(found, best.x, atol=1e-6)


def test_projection_along_the_last_axis(rng):
    values = rng.normal(size=(3, 4, 9))
    found = project_to_simplex(values, 1.0)
    np.testing.assert_allclose(found[1, 2], project_to_simplex(values[1, 2], 1.0))


def _error(estimate, truth):
    return np.sqrt(np.mean(np.square(estimate - truth)))


@pytest.mark.parametrize("size", [5, 64, 300, 1021])
def test_smoothing_finds_a_constant(rng, size):
    truth, sigma = np.full(size, 40.0), 10.0
    noisy = truth + sigma * rng.normal(size=(20, size))
    assert _error(smooth(noisy, sigma), truth) < (0.2 if size > 100 else 0.7) * sigma


def test_smoothing_keeps_what_stands_out(rng):
    truth, sigma = 100 * np.exp(-(((np.arange(200) - 80) / 30) ** 2)), 10.0
    truth[[40, 120]] = 1000.0
    estimate = smooth(truth + sigma * rng.normal(size=(50, 200)), sigma)
    assert _error(estimate[:, [40, 120]], truth[[40, 120]]) < 1.3 * sigma
    assert _error(estimate, truth) < 0.7 * sigma


def _best_partition(values, cost):
    """The least squared error and costs of dyadic intervals of so many cells, and their means, by definition."""
    whole = np.full(len(values), values.mean())
    merged = np.square(values - whole).sum() + cost
    if len(values) == 1:
        return merged, whole
    (left, of_left), (right, of_right) = (_best_partition(half, cost) for half in np.split(values, 2))
    return (merged, whole) if merged <= left + right else (left + right, np.concatenate([of_left, of_right]))


@pytest.mark.parametrize(("shape", "penalty"), [((1,), 3.0), ((2, 21), 6.0), ((1, 3, 17), 16.0), ((40,), 2.0)])
def test_smoothing_averages_the_best_partitions_of_all_shifts(shape, penalty, rng):
    values = 30 * rng.normal(size=shape) + 100 * (rng.random(shape) < 0.2)
    found = smooth(values, 10.0, penalty)
    size = 1 << (shape[-1] + 15).bit_length()
    for place in np.ndindex(shape[:-1]):
        padded = np.pad(values[place], (15, size - shape[-1]), mode="symmetric")
        means = [_best_partition(padded[15 - s : 15 - s + size], penalty * 100)[1][s:] for s in range(16)]
        expected = np.mean([of_shift[: shape[-1]] for of_shift in means], axis=0)
        np.testing.assert_allclose(found[place], expected, atol=1e-9)


def test_rows_are_smoothed_by_themselves(rng):
    """Few of many rows are in memory at once."""
    values = 30 * rng.normal(size=(1200, 40))
    whole = smooth(values, 10.0, 3.0)
    for row in (0, 700, 1199):
        np.testing.assert_allclose(whole[row], smooth(values[row], 10.0, 3.0), atol=1e-9)


def test_smoothing_without_noise_changes_nothing(rng):
    values = rng.normal(size=37)
    np.testing.assert_allclose(smooth(values, 0.0), values)


def test_thresholds_keep_what_stands_out(rng):
    truth, sigma = np.zeros(300), 5.0
    truth[::30] = 100.0
    noisy = truth + sigma * rng.normal(size=(10, 300))
    assert _error(threshold(noisy, sigma), truth) < 0.4 * sigma
    dense = truth + 50
    assert _error(threshold(dense + sigma * rng.normal(size=300), sigma), dense) < 1.2 * sigma


def test_peaks_are_posterior_means(rng):
    """Against sums over a fine grid of counts, with the prior that the peaks were drawn from."""
    sigma, share, mean = 5.0, 0.1, 40.0
    truth = np.where(rng.random(20_000) < share, rng.exponential(mean, 20_000), 0)
    noisy = truth + sigma * rng.normal(size=20_000)
    grid = np.linspace(0, 600, 12_001)
    prior = share * np.exp(-grid / mean) / mean * (grid[1] - grid[0])
    for value, found in zip(noisy[:40], peaks(noisy, sigma)[:40], strict=True):
        of_grid = prior * np.exp(-np.square(value - grid) / (2 * sigma**2))
        of_zero = (1 - share) * np.exp(-(value**2) / (2 * sigma**2))
        assert found == pytest.approx(np.sum(of_grid * grid) / (np.sum(of_grid) + of_zero), rel=0.05, abs=0.05 * sigma)


def test_there_are_no_peaks_in_noise(rng):
    sigma = 5.0
    assert np.abs(peaks(sigma * rng.normal(size=(20, 1000)), sigma)).mean() < 0.02 * sigma


def test_peaks_without_noise_are_the_counts():
    np.testing.assert_array_equal(peaks(np.asarray([3.0, 0, -1, 7]), 0.0), [3, 0, 0, 7])


def test_small_peaks_of_counts_are_kept(rng):
    truth, sigma = np.zeros(1000), 10.0
    truth[::60] = 40.0
    noisy = truth + sigma * rng.normal(size=(20, 1000))
    assert _error(smooth_counts(noisy, sigma), truth) < 0.8 * _error(smooth(noisy, sigma), truth)


def test_counts_without_peaks_are_as_smooth(rng):
    truth, sigma = 100 * np.exp(-(((np.arange(1000) - 400) / 150) ** 2)), 10.0
    noisy = truth + sigma * rng.normal(size=(20, 1000))
    assert _error(smooth_counts(noisy, sigma), truth) < 1.05 * _error(smooth(noisy, sigma), truth)


_SMOOTH = 400 * np.exp(-(((np.arange(300) - 130) / 60) ** 2))


def _classes(truth, sigma, rng):
    """Estimates of the counts of two classes, which lie in one bin, and their mean error in units of σ."""
    binning = Binning.create(truth.shape[1], ordered=True, missing=False)
    noisy = truth + sigma * rng.normal(size=truth.shape)
    sums = truth.sum(0) + sigma * rng.normal(size=truth.shape[1])
    bins, masses = np.zeros(truth.shape[1], int), truth.sum(1, keepdims=True)
    estimate = by_class(binning, bins, noisy, sigma, sums, sigma, masses)
    return estimate, np.abs(estimate - truth).mean() / sigma


def test_classes_of_a_smooth_column_are_smooth(rng):
    """A rare class is not left with the noise of its cells, though all classes together have large counts."""
    truth = np.stack([0.95 * _SMOOTH, 0.05 * _SMOOTH])
    assert np.mean([_classes(truth, 10.0, rng)[1] for _ in range(5)]) < 0.3


def test_a_frequent_value_keeps_its_class(rng):
    truth = np.stack([_SMOOTH, np.zeros(300)])
    truth[1, [40, 250]] = 500.0
    truth[0, [40, 250]] = 0.0
    for _ in range(5):
        estimate, _ = _classes(truth, 10.0, rng)
        assert (estimate[0, [40, 250]] < 40).all()
        assert (np.abs(estimate[1, [40, 250]] - 500) < 60).all()


def test_a_regular_pattern_is_kept_though_noise_hides_each_cell(rng):
    """Mondays have twice the rows of other days. Nothing changes without a pattern, or where it is there already."""
    private = np.full(400, 20.0) * np.where(np.arange(400) % 7 == 0, 2.0, 1.0)
    noisy = private + 20 * rng.normal(size=400)
    smooth = np.full(400, private.mean())
    days = np.arange(400) % 7
    factors = of_phases(smooth, noisy, 20.0, days)
    assert np.ptp(factors[::7]) == 0
    kept = np.bincount(days, smooth * factors)  # of each weekday
    assert kept / 400 == pytest.approx(np.bincount(days, private) / 400, rel=0.25)
    assert (of_phases(smooth, smooth + 20 * rng.normal(size=400), 20.0, days) == 1).all()
    assert (of_phases(private, noisy, 20.0, days) == 1).all()
    exact = of_phases(smooth, private, 1e-9, days)
    assert smooth * exact == pytest.approx(private)


def test_the_months_of_ten_years_are_a_cycle():
    """Cells of four days have phases of a twelfth of a year. Weekdays are lost in them, and one year is no cycle."""
    column = Datetime("day", "1990-01-01", "1999-12-31")
    week, year = column.cycles
    assert week.phases_of(913, 4) is None
    np.testing.assert_array_equal(week.phases_of(3652, 1), np.arange(3652) % 7)
    months = np.asarray([day.month - 1 for day in column.decode(np.arange(0, 3652, 4)).to_pylist()])
    phases = year.phases_of(913, 4)
    assert set(phases) == set(range(12))
    assert np.mean(phases == months) > 0.9
    assert year.phases_of(913, 50) is None  # no twelfths
    assert year.phases_of(180, 4) is None  # not two years
    (of_weeks,) = Schema((dataclasses.replace(column, parts=True),)).measured.columns[0].cycles
    assert np.mean(of_weeks.phases_of(522, 1)[: 52 * 9] == phases[np.arange(52 * 9) * 7 // 4]) > 0.85
