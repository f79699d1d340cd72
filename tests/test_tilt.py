"""Histograms that agree with noisy moments, and numbers that depend on each other within bins."""

import numpy as np
import pyarrow as pa
import pytest

from kme_jax.feature_maps.table import Binning, Moment
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.table import mixture
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.fit import shares_in_bin
from kme_jax.table.histogram import project_to_simplex, standing_out
from kme_jax.table.measure import release_table
from kme_jax.table.schema import Schema
from kme_jax.table.tilt import Moments, cell_scores, tilted

pytestmark = pytest.mark.usefixtures("no_fits")

NUM_ROWS = 10_000


def _measured(binning, counts, sigma, shift=0.0):
    """Moments of cells of one code each."""
    moment = Moment((0,), (0,), (binning.num_codes - binning.missing - 1,), 1000)
    first = binning.first_codes()
    features = cell_scores(moment, 0, binning, first[:-1], first[1:])
    return Moments(moment, binning, features @ counts + shift, sigma, NUM_ROWS), features


def test_scores_of_cells_are_means_over_their_codes():
    binning = Binning(101, ordered=True, missing=True, width=1)
    moment = Moment((0,), (20,), (79,), 1000)
    first, last = np.array([0, 20, 40, 80, 100]), np.array([20, 40, 80, 100, 101])
    codes = [moment.scores(0, binning, np.arange(i, j)) for i, j in zip(first, last, strict=True)]
    expected = np.array([[np.mean(u) for u in codes], [np.mean(u**2) for u in codes]])
    np.testing.assert_allclose(cell_scores(moment, 0, binning, first, last), expected, atol=1e-12)
    assert expected[:, -1].tolist() == [0.0, 0.0]  # the code for missing cells


@pytest.mark.parametrize("missing", [False, True])
def test_a_histogram_agrees_with_its_moments(missing):
    """Noise in an empty tail looks like rows. The moments take them away, and an atom that is known well stays."""
    rng = np.random.default_rng(0)
    binning = Binning(400 + missing, ordered=True, missing=missing, width=1)
    truth = np.zeros(400 + missing)
    truth[:60] = rng.dirichlet(np.ones(60)) * 4000
    truth[0], truth[-1] = 6000, 300 if missing else truth[-1]
    truth *= NUM_ROWS / truth.sum()
    measured, features = _measured(binning, truth, sigma=5.0)
    wrong = truth.copy()
    wrong[60:400] += np.where(rng.random(340) < 0.1, 20, 0)
    wrong *= NUM_ROWS / wrong.sum()
    first = binning.first_codes()
    changed = tilted(wrong[None] * [[0.3], [0.7]], first[:-1], first[1:], [measured], noise=CellNoise(15.0))
    np.testing.assert_allclose(changed.sum(), NUM_ROWS)
    occupied = changed.sum(0) > 1e-9
    np.testing.assert_allclose((changed[1] / changed.sum(0))[occupied], 0.7)  # classes are changed alike
    both = changed.sum(0)
    assert (both >= 0).all()
    assert np.abs(features @ both - measured.sums).max() < 0.05 * np.abs(features @ wrong - measured.sums).max()
    assert both[60:400].sum() < 0.3 * wrong[60:400].sum()
    assert both[0] == pytest.approx(wrong[0], abs=60)


def test_classes_keep_their_sizes():
    """A moment that is wrong for two classes of very different shapes does not move rows from one to the other."""
    binning = Binning(100, ordered=True, missing=False, width=1)
    low, high = np.zeros(100), np.zeros(100)
    low[:30], high[70:] = 6000 / 30, 4000 / 30
    measured, features = _measured(binning, low + high, sigma=5.0, shift=np.asarray([200.0, 0.0]))
    first = binning.first_codes()
    changed = tilted(np.stack([low, high]), first[:-1], first[1:], [measured], noise=CellNoise(30.0))
    np.testing.assert_allclose(changed.sum(1), [6000, 4000], rtol=1e-9)
    before, after = (np.abs(features @ counts - measured.sums) for counts in (low + high, changed.sum(0)))
    assert after.max() < 0.2 * before.max()


@pytest.mark.parametrize(("sigma", "far"), [(5.0, True), (20_000.0, False)])
def test_rows_far_away_need_a_moment_that_contradicts(sigma, far):
    """Beyond the cells with rows, moments put rows if they clearly tell of them. Otherwise noise would put them."""
    binning = Binning(400, ordered=True, missing=False, width=1)
    counts, first = np.zeros(400), binning.first_codes()
    counts[:20] = NUM_ROWS / 20
    truth = counts.copy()
    truth[390] = 100.0
    measured, _ = _measured(binning, truth * NUM_ROWS / truth.sum(), sigma=sigma, shift=2 * sigma)
    changed = tilted(counts[None], first[:-1], first[1:], [measured], noise=CellNoise(15.0))
    assert (changed[0, 20:].sum() > 50) == far
    assert far or not changed[0, 20:].any()


def test_margins_of_a_logarithmic_scale():
    """Numbers of all sizes: neither below nor above the rows do noisy counts of empty cells look like rows."""
    rng = np.random.default_rng(0)
    private = np.exp(10 + 0.5 * rng.normal(size=30_000))
    schema = Schema((Numeric("income", 0, 2_000_000, integer=True, scale="log"),))
    budget = PrivacyBudget(0.3, 1e-6)
    released = [
        release_table(pa.table({"income": private.round()}), schema, budget=budget, secure=False, seed=seed).table
        for seed in range(4)
    ]
    deviations = [np.log(np.maximum(table["income"].to_numpy(), 1)).std() for table in released]
    assert np.mean(deviations) == pytest.approx(0.5, rel=0.15)
    assert max(deviations) < 0.75


def test_moments_of_more_noise_than_the_cells_change_nothing():
    binning = Binning(30, ordered=True, missing=False, width=1)
    counts = np.full(30, NUM_ROWS / 30)
    measured, _ = _measured(binning, counts, sigma=1e6, shift=3e6)
    first = binning.first_codes()
    changed = tilted(counts[None], first[:-1], first[1:], [measured], noise=CellNoise(1.0))
    np.testing.assert_allclose(changed[0], counts, rtol=1e-3)


@pytest.mark.filterwarnings("error")
def test_no_noise_is_too_large_or_too_small():
    """The budget is spent by then. So whatever was drawn, there is a distribution, and no error."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        size, missing, num_rows = (
            int(rng.choice([2, 13, 101])),
            bool(rng.random() < 0.3),
            int(10 ** rng.uniform(0.5, 14)),
        )
        binning = Binning(size + missing, ordered=True, missing=missing, width=1)
        counts = np.zeros((1, size + missing))
        counts[0, rng.integers(0, size + missing, int(rng.choice([1, 2, 50])))] = 1
        counts[0, size // 2] += rng.random() < 0.5
        first, sigma = binning.first_codes(), float(10 ** rng.uniform(-6, 18))
        sums = sigma * rng.normal(size=2) + num_rows * rng.uniform(-1, 1, 2)
        measured = Moments(Moment((0,), (0,), (size - 1,), 99), binning, sums, sigma, num_rows)
        counts *= num_rows / counts.sum()
        changed = tilted(counts, first[:-1], first[1:], [measured], noise=CellNoise(float(10 ** rng.uniform(-6, 16))))
        assert (changed >= 0).all()
        assert changed.sum() == pytest.approx(num_rows)


def test_what_stands_out_of_noise():
    rng = np.random.default_rng(0)
    counts = np.zeros(1000)
    counts[100:140], counts[700] = 20, 200
    empty = 0
    for _ in range(100):
        noise = 10 * rng.normal(size=1000)
        first, last = standing_out(counts + noise, 10.0)
        assert 96 <= first <= 128  # an interval of cells, none of which stands out alone
        assert 701 <= last <= 768
        empty += standing_out(noise, 10.0) == (0, 1000)
    assert empty >= 95


def _rows(seed):
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(10, 0.7, NUM_ROWS))
    return {
        "income": income,
        "price": np.exp(6 + 0.5 * np.log(income) + rng.normal(0, 0.2, NUM_ROWS)),
        "sex": rng.choice(["f", "m"], NUM_ROWS),
    }


@pytest.mark.long
def test_means_deviations_and_correlations_of_skewed_columns(no_fits, monkeypatch):
    """Over releases: no bias in mean and standard deviation, and most of the correlation."""
    monkeypatch.setattr(mixture, "fit", no_fits)
    schema = Schema((Numeric("income", 0, 1e6), Numeric("price", 0, 5e5), Categorical("sex", ("f", "m"))))
    ratios = []
    for seed in range(5):
        rows = _rows(seed)
        released = release_table(pa.table(rows), schema, budget=PrivacyBudget(1.0, 1e-6), secure=False, seed=seed).table
        ours = {name: np.asarray(released[name]) for name in ("income", "price")}
        logs = [[np.log(np.maximum(table[name], 100)) for name in ours] for table in (ours, rows)]
        ratios.append(
            [ours[name].mean() / rows[name].mean() for name in ours]
            + [ours[name].std() / rows[name].std() for name in ours]
            + [np.corrcoef(logs[0])[0, 1] / np.corrcoef(logs[1])[0, 1]]
        )
    mean = np.mean(ratios, axis=0)
    np.testing.assert_allclose(mean[:2], 1, atol=0.04)
    np.testing.assert_allclose(mean[2:4], 1, atol=0.15)
    assert 0.8 < mean[4] < 1.1


def test_moments_move_a_cell_alone_by_its_own_noise():
    """Rows at a bound are far from the others. So moments would take most of what they miss from these rows."""
    binning = Binning(400, ordered=True, missing=False, width=1)
    counts, first = np.zeros(400), binning.first_codes()
    counts[:40], counts[-1] = (NUM_ROWS - 200) / 40, 200
    measured, _ = _measured(binning, counts, sigma=200.0, shift=np.asarray([-250.0, 0.0]))
    alone = np.arange(400) == 399
    without, own = (
        tilted(counts[None], first[:-1], first[1:], [measured], CellNoise(40.0), cells)[0] for cells in (None, alone)
    )
    assert without[-1] < 0.85 * 200
    assert without[-1] + 10 < own[-1] < 200


def test_the_noise_of_a_bin_is_not_taken_from_a_bound():
    """A bin has many noisy cells, and a bound that many rows share. The bound keeps its estimate if there is room."""
    rng = np.random.default_rng(0)
    estimate = np.append(np.maximum(0.002 + 0.01 * rng.normal(size=100), 0), 0.3)
    alone = np.arange(101) == 100
    shares = shares_in_bin(estimate, alone)
    np.testing.assert_allclose(shares.sum(), 1)
    assert (shares >= 0).all()
    assert shares[-1] == pytest.approx(0.3)
    np.testing.assert_allclose(shares_in_bin(5 * estimate, alone), project_to_simplex(5 * estimate, 1.0))
    np.testing.assert_allclose(shares_in_bin(estimate, ~alone & alone), project_to_simplex(estimate, 1.0))
    np.testing.assert_allclose(shares_in_bin(np.array([0.2]), np.array([True])), [1.0])


def test_moments_change_the_cells_of_a_bin_if_bins_are_known():
    """A mean that is off because of the shape within bins does not move rows between bins."""
    binning = Binning(400, ordered=True, missing=False, width=1)
    counts = np.repeat([10.0, 30.0, 20.0, 10.0], 100)
    first, bins = binning.first_codes(), np.repeat(np.arange(4), 100)
    measured, _ = _measured(binning, counts, sigma=1.0, shift=np.asarray([150.0, 0.0]))
    arguments = counts[None], first[:-1], first[1:], [measured], CellNoise(30.0)
    before = np.bincount(bins, counts)
    free = np.bincount(bins, tilted(*arguments)[0])
    known = np.bincount(bins, tilted(*arguments, known=(bins, before, np.full(4, 1.0)))[0])
    unknown = np.bincount(bins, tilted(*arguments, known=(bins, before, np.full(4, 1e9)))[0])
    assert np.abs(free - before).max() > 50
    np.testing.assert_allclose(known, before, atol=10)
    np.testing.assert_allclose(unknown, free, atol=1)
