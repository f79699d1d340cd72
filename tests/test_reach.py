"""Where a column has rows: tails end, and rows that are missing are found."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, measure_table
from kme_jax.feature_maps.table import Binning, Moment
from kme_jax.table.cells import CellNoise
from kme_jax.table.measure import NAMES
from kme_jax.table.planning import Singles
from kme_jax.table.reach import Known, cells_alone, cells_with_rows
from kme_jax.table.tilt import Moments, cell_scores

NUM_ROWS, SIZE, NOISE = 20_000, 1000, 20.0


def _noisy(counts, rng, noise=NOISE, sigma=400.0, missing=False):
    """A binning of cells of one code each, noisy counts, and noisy moments over all of the bounds."""
    binning = Binning(len(counts), ordered=True, missing=missing, width=1)
    moment = Moment((0,), (0,), (len(counts) - missing - 1,), 1000)
    first = binning.first_codes()
    sums = cell_scores(moment, 0, binning, first[:-1], first[1:]) @ counts
    num_rows = round(counts.sum())
    moments = Moments(moment, binning, sums + sigma * rng.normal(size=2), sigma, num_rows)
    return (
        binning,
        counts + noise * rng.normal(size=len(counts)),
        CellNoise(noise),
        num_rows,
        Known.of_moments([moments]),
    )


def _histogram(codes, missing=0):
    counts = np.bincount(np.clip(codes, 0, SIZE - 1), minlength=SIZE).astype(float)
    return np.append(counts, missing) if missing else counts


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("normal", lambda rng: np.rint(rng.normal(500, 30, NUM_ROWS))),
        ("uniform", lambda rng: rng.integers(300, 420, NUM_ROWS)),
        ("exponential", lambda rng: rng.exponential(25, NUM_ROWS)),
        ("one value", lambda rng: np.full(NUM_ROWS, 17)),
    ],
)
def test_tails_end_where_rows_do(name, codes):
    """Few empty cells are kept, and hardly any row is lost, although bounds are much wider than the rows."""
    rng = np.random.default_rng(1)
    counts = _histogram(codes(rng).astype(int))
    occupied = np.flatnonzero(counts)
    empty = np.ones(SIZE, bool)
    empty[occupied[0] : occupied[-1] + 1] = False
    kept, lost = [], []
    for _ in range(40):
        inside = cells_with_rows(*_noisy(counts, rng))
        kept.append(np.sum(inside & empty))
        lost.append(counts[~inside].sum())
    assert np.mean(kept) < 0.1 * SIZE
    assert np.median(kept) < 0.05 * SIZE
    assert np.mean(lost) < 3 * NOISE


def test_rows_that_no_cell_shows_are_found():
    """3 % of all rows are far away, two or fewer in a cell, where the noise of a cell is 20."""
    rng = np.random.default_rng(2)
    counts = _histogram(np.rint(rng.normal(60, 10, 19_400)).astype(int)) + _histogram(rng.integers(500, 900, 600))
    found = [counts[400:][cells_with_rows(*_noisy(counts, rng, sigma=60.0))[400:]].sum() for _ in range(30)]
    assert np.mean(np.asarray(found) > 100) > 0.9
    found = [cells_with_rows(*_noisy(_histogram(np.full(20_000, 60)), rng, sigma=60.0))[400:].any() for _ in range(30)]
    assert np.mean(found) < 0.1


def test_a_single_value_far_away_is_found_beside_missing_cells():
    rng = np.random.default_rng(3)
    counts = _histogram(np.append(np.full(15_000, 3), np.full(130, 900)), missing=4000)
    every = np.stack([cells_with_rows(*_noisy(counts, rng, missing=True)) for _ in range(30)])
    assert every[:, [3, -1]].all()
    assert every[:, 900].mean() > 0.9
    assert every[:, 950:1000].mean() < 0.1


def test_a_gap_between_a_bound_and_the_rows():
    """A third of the rows has the value 0, and no other row is small. The noise of the gap looks like no rows."""
    rng = np.random.default_rng(6)
    counts = _histogram(np.append(np.zeros(7000, int), np.rint(rng.normal(700, 60, 13_000)).astype(int)))
    inside = np.stack([cells_with_rows(*_noisy(counts, rng)) for _ in range(30)])
    assert inside[:, 0].all()
    assert np.median(inside[:, 1:400].mean(1)) < 0.02
    assert np.mean([counts[~one].sum() for one in inside]) < 5 * NOISE
    # Half a row in a cell: no cell shows it, but all of them together do.
    counts[1:500] += 0.5 * NOISE
    inside = np.stack([cells_with_rows(*_noisy(counts, rng)) for _ in range(30)])
    assert inside[:, 1:500].mean() > 0.9


def test_bounds_that_many_rows_share():
    rng = np.random.default_rng(4)
    counts = _histogram(np.append(rng.integers(450, 550, 19_900), np.full(100, 0)))
    inside = np.mean([cells_with_rows(*_noisy(counts, rng))[[0, SIZE - 1]] for _ in range(30)], axis=0)
    assert inside[0] > 0.9
    assert inside[1] < 0.1


def test_counts_of_bins_show_rows_that_cells_do_not():
    rng = np.random.default_rng(6)
    codes = np.append(np.rint(rng.normal(200, 30, 19_400)).astype(int), rng.integers(700, 900, 600))
    counts, bins, rows = _histogram(codes), np.digitize(np.arange(SIZE), [180, 200, 220, 650]), []
    for _ in range(20):
        *arguments, moments = _noisy(counts, rng, sigma=4000.0)
        known = moments.with_bins(bins, np.bincount(bins, counts) + 60 * rng.normal(size=5), 60.0)
        rows.append([counts[650:][cells_with_rows(*arguments, sums)[650:]].sum() for sums in (moments, known)])
    without, with_bins = np.mean(rows, axis=0)
    assert without < 300
    assert with_bins > 350


def test_everything_may_have_rows_if_nothing_stands_out():
    rng = np.random.default_rng(5)
    counts = np.full(SIZE, 1.0)
    binning, _, noise, num_rows, moments = _noisy(counts, rng)
    assert cells_with_rows(binning, np.zeros(SIZE), noise, num_rows, moments).all()
    assert cells_with_rows(binning, counts, CellNoise(0.0), num_rows, moments).all()


@pytest.mark.filterwarnings("error")
def test_no_noise_is_too_large_or_too_small():
    """The budget is spent by then. So whatever was drawn, there is an answer, and no error."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        size, missing = int(rng.choice([2, 5, 13, 101, 1000])), bool(rng.random() < 0.3)
        num_rows, noise = int(10 ** rng.uniform(0.5, 14)), float(10 ** rng.uniform(-6, 16))
        counts = np.zeros(size + missing)
        counts[rng.integers(0, size + missing, int(rng.choice([1, 2, 50])))] = 1
        counts *= num_rows / counts.sum()
        sigma = noise * 10 ** rng.uniform(-1, 3)
        *arguments, moments = _noisy(counts, rng, noise=noise, sigma=sigma, missing=missing)
        bins = np.sort(rng.integers(0, 6, len(counts)))
        bins = np.unique(bins, return_inverse=True)[1]
        of_bins = np.bincount(bins, counts) + sigma * rng.normal(size=int(bins.max()) + 1)
        for measured in (moments, moments.with_bins(bins, of_bins, sigma), None):
            inside = cells_with_rows(*arguments, measured)
            assert inside.any()
            assert inside[size:].all()


def test_tails_of_columns_of_few_values_end():
    """Numbers of children: noise in the empty cells above them does not make the mean and the deviation larger."""
    children = np.random.default_rng(2).poisson(0.4, NUM_ROWS)
    table = pa.table({"children": children, "b": children % 2})
    schema = Schema((Numeric("children", 0, 11, integer=True), Categorical("b", ("0", "1"))))
    means, deviations = [], []
    for seed in range(40):
        measured = measure_table(table, schema, budget=PrivacyBudget(0.2, 1e-6), secure=False, seed=seed)
        assert not measured.layout.numbers  # no moments are measured
        singles = Singles.read(measured.layout, measured.measured[NAMES[0]])
        shares = singles.smoothed[0].sum(0) / NUM_ROWS
        means.append(shares @ np.arange(12))
        deviations.append(np.sqrt(shares @ np.square(np.arange(12) - means[-1])))
    assert np.mean(means) == pytest.approx(children.mean(), abs=0.012 * children.std())
    assert np.mean(deviations) == pytest.approx(children.std(), rel=0.03)


def test_a_count_at_a_bound_is_not_smoothed_away():
    """One row in a hundred is at the upper bound, far from all others: its noisy count is known well enough."""
    assert cells_alone(np.array([1, 0, 1, 1, 0, 1, 1], bool), 6).tolist() == [1, 0, 0, 0, 0, 1, 0]
    rng = np.random.default_rng(7)
    gains = np.where(rng.random(20_000) < 0.01, 9999, rng.integers(0, 800, 20_000))
    table = pa.table({"gain": gains, "b": rng.choice(["x", "y"], 20_000)})
    schema = Schema((Numeric("gain", 0, 9999, integer=True), Categorical("b", ("x", "y"))))
    found = []
    for seed in range(8):
        measured = measure_table(table, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False, seed=seed)
        singles = Singles.read(measured.layout, measured.measured["single columns"])
        found.append(singles.smoothed[0].sum(0)[-1])
    assert np.mean(found) == pytest.approx((gains == 9999).sum(), rel=0.08)


def test_rows_of_one_class_at_a_bound_are_found():
    """The noise of the other class hides rows at a bound, if they are looked for in the sum of both alone."""
    table = pa.table({"gain": np.zeros(NUM_ROWS, int), "rich": np.arange(NUM_ROWS) % 2})
    schema = Schema((Numeric("gain", 0, SIZE - 1, integer=True), Categorical("rich", ("0", "1"))))
    budget = PrivacyBudget(1.0, 1e-6)
    measured = measure_table(table, schema, budget=budget, target="rich", seed=0, secure=False)
    layout, noisy = measured.layout, measured.measured[NAMES[0]]
    singles, rng = Singles.read(layout, noisy), np.random.default_rng(3)
    found = np.zeros(2)
    for _ in range(300):
        truth = np.zeros((2, SIZE))
        truth[1, -1] = 3.2 * singles.sums_sigmas[0]
        counts = truth + singles.sigmas[0] * rng.normal(size=truth.shape)
        totals = truth.sum(0) + singles.totals_sigmas[0] * rng.normal(size=SIZE)
        shares = np.array([2 * singles.sigmas[0] ** 2, singles.totals_sigmas[0] ** 2]) ** -1.0
        sums = np.average([counts.sum(0), totals], axis=0, weights=shares)
        noisy = dataclasses.replace(singles, counts=[counts], totals=[totals], sums=[sums])
        found += [sums[-1] > 2.75 * singles.sums_sigmas[0], noisy.at_bounds(0, SIZE)[1] > 2.75]
        assert noisy.at_bounds(0, SIZE)[1] >= sums[-1] / singles.sums_sigmas[0]
    assert found[1] > found[0] + 15
