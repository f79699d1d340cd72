import dataclasses
import itertools
import tracemalloc

import jax
import numpy as np
import pytest

from kme_jax.table import directions, mixture
from kme_jax.table.observed import Observed


def _behind_noise(rng, num_classes, sigma):
    """Two dependent columns of 8 and 12 bins: their table of counts, the noise, and what is observed."""
    num_rows = 10_000
    truth = rng.dirichlet(np.ones(3), size=(num_classes, 20))  # three kinds of rows
    kinds = rng.dirichlet(np.full(3, 5.0), size=num_classes) / num_classes
    left, right = (part / part.sum(1, keepdims=True) for part in (truth[:, :8], truth[:, 8:]))
    table = num_rows * np.einsum("tk,tak,tbk->tab", kinds, left, right)
    observed = _observed_behind(rng, table, sigma)
    return table, observed.pairs[:, :8, 8:] - table, observed


def _observed_behind(rng, table, sigma):
    """What is observed of a table of counts of two columns of 8 and 12 bins, [T, 8, 12], behind noise."""
    num_classes, num_rows = len(table), round(table.sum())
    offsets, noise = (0, 8, 20), sigma * rng.normal(size=table.shape)
    pairs, precision = np.zeros((num_classes, 20, 20)), np.zeros((20, 20))
    pairs[:, :8, 8:], precision[:8, 8:] = table + noise, 1 / sigma
    singles = np.concatenate([table.sum(2), table.sum(1)], axis=1) + 10 * rng.normal(size=(num_classes, 20))
    no_scores = np.zeros((20, 0)), np.zeros((0, 0)), np.zeros((0, 0))
    no_triples = np.zeros((20, 2)), np.zeros((0, 3), np.int64), np.zeros(0), np.zeros(0)
    zeros = np.zeros(20)
    return Observed(
        offsets,
        num_rows,
        singles,
        singles,
        np.full(20, 10.0),
        zeros,
        zeros,
        np.zeros((20, 0)),
        pairs,
        precision,
        None,
        *no_scores,
        *no_triples,
        zeros,
        (0, 0),
    )


@pytest.mark.parametrize(
    "num_classes", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.long)]
)
def test_fits_find_tables_behind_noise(rng, num_classes):
    """Two dependent columns of 8 and 12 bins: closer to the truth than the noise is."""
    num_rows = 10_000
    table, noise, observed = _behind_noise(rng, num_classes, 60.0)
    calls, sizes = [], {"num_fits": 4, "num_relaxed": 20, "num_steps": 150}
    key = jax.random.key(0)
    weights, probabilities = mixture.fit(key, observed, **sizes, progress=lambda *work: calls.append(work))
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(probabilities[..., :8].sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(probabilities[..., 8:].sum(-1), 1, atol=1e-5)
    found = _fitted(num_rows, weights, probabilities)
    assert np.sqrt(np.mean(np.square(found - table))) < 0.9 * np.sqrt(np.mean(np.square(noise)))
    assert calls[-1][0] == calls[-1][1]
    calls.clear()
    one_after_another = {"max_entries": 1, "progress": lambda *work: calls.append(work)}
    apart = _fitted(num_rows, *mixture.fit(jax.random.key(0), observed, **sizes, **one_after_another))
    # Rounding differs, and the steps of Adam of all rows together enlarge it.
    assert np.sqrt(np.mean(np.square(apart - found))) < 0.05 * np.sqrt(np.mean(np.square(noise)))
    assert sorted({done for done, _ in calls if done <= 750}) == list(range(30, 751, 30))  # and that of noisier counts
    assert calls[-1][0] == calls[-1][1] == 750 + 3 * 600


def _fitted(num_rows, weights, probabilities):
    """The counts of pairs of the bins of both columns, [T, 8, 12]."""
    return num_rows * np.einsum("tk,tka,tkb->tab", weights, probabilities[..., :8], probabilities[..., 8:])


@pytest.mark.slow
def test_classes_share_how_columns_depend_on_each_other(rng):
    """A rare class has the dependence of the others where its own noise hides it, and its own where it does not."""
    shared = np.outer(np.full(8, 1.0), np.full(12, 1.0)) + 3 * np.outer(np.arange(8) < 4, np.arange(12) < 6)
    shared += 3 * np.outer(np.arange(8) >= 4, np.arange(12) >= 6)
    for opposite in (False, True):
        rare = shared[:, ::-1] if opposite else shared
        table = np.stack([9500 * shared / shared.sum(), 500 * rare / rare.sum()])
        distances = []
        for sigma in (0.5, 20.0):
            observed = _observed_behind(rng, table, sigma)
            fitted = mixture.fit(jax.random.key(0), observed, num_fits=4, num_relaxed=40, num_steps=300)
            distances.append(np.abs(_fitted(10_000, *fitted)[1] - table[1]).sum() / 1000)
        assert distances[0] < 0.05
        noise = np.abs(20 * rng.normal(size=table[1].shape)).sum() / 1000
        assert (distances[1] < 0.25 * noise) == (not opposite)


@pytest.mark.long
def test_bins_of_an_ordered_column_are_like_their_neighbours(rng):
    """Then noise is smoothed away that would be kept between categories without order."""
    left, right = np.arange(8) / 7, np.arange(12) / 11
    ridge = np.exp(-4 * np.square(left[:, None] - right))
    table = 10_000 * ridge[None] / ridge.sum()
    linked, errors = np.ones(20), np.zeros(2)
    linked[[7, 19]] = 0  # the last bin of each column
    for _ in range(4):
        observed = _observed_behind(rng, table, 40.0)
        for i, neighbours in enumerate((np.zeros(20), linked)):
            told = dataclasses.replace(observed, neighbours=neighbours)
            fitted = mixture.fit(jax.random.key(0), told, num_fits=8, num_relaxed=20)
            errors[i] += np.abs(_fitted(10_000, *fitted) - table).sum()
    assert errors[1] < 0.8 * errors[0]


def _observed_of(num_classes, num_bins, noise):
    zeros, precision = np.zeros(num_bins), np.full((num_bins, num_bins), 1 / noise)
    pairs, counts = np.zeros((num_classes, num_bins, num_bins)), np.ones((num_classes, num_bins))
    return Observed(
        (0, num_bins), 10_000, counts, counts, zeros + 1, zeros, zeros, np.zeros((num_bins, 0)), pairs, precision,
        None, np.zeros((num_bins, 0)), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((num_bins, 2)),
        np.zeros((0, 3), np.int64), np.zeros(0), np.zeros(0), zeros, (0,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_classes", "noise", "max_entries", "num_fits"),
    [(1, 60.0, 1 << 26, 16), (2, 60.0, 1 << 26, 16), (2, 4.0, 1 << 26, 8), (5, 60.0, 1 << 26, 6),
     (16, 60.0, 1 << 26, 2), (5, 4.0, 1 << 26, 3), (2, 60.0, 1300, 6), (2, 60.0, 1, 4)],
)  # fmt: skip
def test_the_number_of_fits(num_classes, noise, max_entries, num_fits):
    """Few large fits for many classes, for little noise, and where many do not fit into memory."""
    observed = _observed_of(num_classes, 10, noise)
    assert mixture.choose_num_fits(observed, max_entries) == num_fits


@pytest.mark.parametrize(("num_parts", "num_steps"), [(2, 1500), (565, 1500), (600, 1200), (900, 450), (5000, 450)])
def test_fits_of_many_parts_have_fewer_steps(num_parts, num_steps):
    """Each step takes longer. Tables of few parts have the largest number of steps."""
    assert mixture.choose_num_steps(num_parts) == num_steps


def test_second_moments_and_their_gradient(rng):
    parts, weights, direction = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3)), rng.normal(size=(2, 4, 4))
    direction += np.swapaxes(direction, 1, 2)

    def moments(parts, weights):
        return np.einsum("tka,tk,tkb->tab", parts, weights, parts)

    np.testing.assert_allclose(mixture.second_moments(parts, weights), moments(parts, weights), rtol=1e-4, atol=1e-5)
    of_parts, of_weights = jax.grad(
        lambda *arguments: (mixture.second_moments(*arguments) * direction).sum(), argnums=(0, 1)
    )(parts, weights)
    there, width = np.ones_like(parts[0, 0]), 1e-6
    for t, k in itertools.product(range(2), range(3)):
        step = np.zeros_like(weights)
        step[t, k] = width
        slope = (moments(parts, weights + step) - moments(parts, weights - step)) / (2 * width)
        assert of_weights[t, k] == pytest.approx((slope * direction).sum(), rel=1e-4, abs=1e-4)
        step = step[..., None] * there
        slope = (moments(parts + step, weights) - moments(parts - step, weights)) / (2 * width)
        assert of_parts[t, k].sum() == pytest.approx((slope * direction).sum(), rel=1e-4, abs=1e-4)


def test_pairs_both_ways_have_the_same_misfit(rng):
    """Each pair of parts is measured one way, and no part with itself."""
    one_way = np.triu(rng.random((6, 6)) < 0.7, 1)
    one_way[[1, 4], [4, 1]] = False, True
    precision, pairs = rng.random((6, 6)) * one_way, rng.normal(size=(2, 6, 6)) * one_way
    counts = rng.normal(size=(2, 6, 6))
    counts += np.swapaxes(counts, 1, 2)
    given = (pairs, precision), mixture.both_ways(pairs, precision)
    misfits = [np.square((counts - noisy) * precise).sum() for noisy, precise in given]
    assert misfits[0] == pytest.approx(misfits[1])
    np.testing.assert_array_equal(given[1][0], np.swapaxes(given[1][0], 1, 2))


@pytest.mark.parametrize(
    ("measured", "sizes"),
    [
        ([(0, 4), (1, 5)], [6]),
        ([(0, 4), (6, 7), (5, 7)], [6, 3]),
        ([(5, 6)], [3]),
        ([(0, 4), (0, 6), (1, 6), (2, 6), (3, 7), (4, 7), (5, 7)], [8]),  # all bins beside unions
        ([], []),
    ],
)
def test_blocks_have_every_pair_once(measured, sizes, rng):
    """Six bins, of which the last two go with unions, and two unions of the first four."""
    unions = np.zeros((6, 2), np.float32)
    unions[[0, 1, 2, 3], [0, 0, 1, 1]] = 1
    precision = np.zeros((8, 8))
    for pair in measured:
        precision[pair] = rng.random()
    pairs = rng.normal(size=(2, 8, 8)) * (precision > 0)
    parts, weights = rng.random((2, 3, 6)), rng.random((2, 3))
    all_parts = np.concatenate([parts, parts @ unions], axis=-1)
    expected = np.square((np.einsum("tka,tk,tkb->tab", all_parts, weights, all_parts) - pairs) * precision).sum()
    blocks, misfit = mixture.blocks_of_pairs(unions, pairs, precision), 0.0
    assert [len(of_block) for *_, of_block in blocks] == sizes
    for members, others, counts, of_block in blocks:
        of_parts = parts if members is None else parts @ members
        of_parts = of_parts if others is None else np.concatenate([of_parts, parts @ others], axis=-1)
        misfit += np.square((np.asarray(mixture.second_moments(of_parts, weights)) - counts) * of_block).sum()
    assert misfit == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", [pytest.param(None, marks=pytest.mark.slow), np.asarray([900.0, 100.0])])
def test_a_counted_class_survives_noise(classes):
    """Noise of pairs that is negative for a class would take all of its rows away."""
    num_rows, noise = 1000, 300.0
    pairs, precision = np.zeros((2, 4, 4)), np.zeros((4, 4))
    pairs[0, :2, 2:], pairs[1, :2, 2:], precision[:2, 2:] = 400.0, -300.0, 1 / noise
    prior = np.asarray([[450.0] * 4, [50.0] * 4])
    zeros, sigmas = np.zeros(4), np.full(4, 10 * noise)
    observed = Observed(
        (0, 2, 4), num_rows, prior, prior, sigmas, zeros, zeros, np.zeros((4, 0)), pairs, precision, classes,
        np.zeros((4, 0)), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((4, 2)), np.zeros((0, 3), np.int64), np.zeros(0),
        np.zeros(0), zeros, (0, 0),
    )  # fmt: skip
    weights, _ = mixture.fit(jax.random.key(0), observed, num_fits=4, num_relaxed=4, num_steps=150)
    assert weights.sum() == pytest.approx(1)
    if classes is None:
        assert weights[1].sum() < 0.01
    else:
        np.testing.assert_allclose(weights.sum(1), classes / num_rows, rtol=1e-6)


@pytest.mark.slow
def test_a_fit_stops_when_its_errors_are_those_of_noise(rng):
    """If nothing is small enough, rounds go on until they hardly help. If anything is, the first one is the last."""
    table = 10_000 * rng.dirichlet(np.full(96, 0.1)).reshape(1, 8, 12)
    observed = _observed_behind(rng, table, 0.5)
    steps, errors = {}, {}
    for level in (0.0, 1e9):
        done: list[int] = []
        weights, probabilities = mixture.fit(
            jax.random.key(0),
            observed,
            num_fits=4,
            num_relaxed=20,
            num_steps=900,
            good_enough=level,
            progress=_recorder(done),
        )
        steps[level] = sum(work < 4500 for work in done) * 30
        assert done[-1] == 4500 + 3 * 600  # one more fit is of noisier counts
        assert done == sorted(done)
        errors[level] = np.sqrt(np.mean(np.square(_fitted(10_000, weights, probabilities) - table)))
    assert steps[1e9] == 150 < steps[0.0]
    assert errors[0.0] < errors[1e9]


def _recorder(done):
    return lambda work, total: done.append(work)


def _dependent_table(num_rows=10_000):
    """Two columns of 8 and 12 bins, whose scores have a strong correlation, [1, 8, 12]."""
    left, right = np.linspace(-1, 1, 8), np.linspace(-1, 1, 12)
    table = np.exp(-8 * np.square(left[:, None] - right))
    return num_rows * table[None] / table.sum()


@pytest.mark.slow
def test_what_all_fits_weaken_is_restored(rng):
    """Fits of three relaxed rows lose much of a strong dependence. Together, they have it. Single columns stay."""
    table = _dependent_table()
    observed = dataclasses.replace(_observed_behind(rng, table, 5.0), num_ordered=(8, 12))
    scores = [np.linspace(-1, 1, size) for size in table.shape[1:]]
    products, columns = [], []
    for rounds in (0, 3):
        fitted = mixture.fit(jax.random.key(0), observed, num_fits=8, num_relaxed=3, rounds_together=rounds)
        weights, probabilities = fitted
        products.append(np.einsum("tab,a,b->", _fitted(10_000, *fitted), *scores))
        columns.append(np.einsum("tk,tka->ta", weights, probabilities))
    private = np.einsum("tab,a,b->", table, *scores)
    assert products[0] < 0.9 * private
    assert products[1] == pytest.approx(private, rel=0.03)
    np.testing.assert_allclose(columns[0], columns[1], atol=1e-4)


def test_what_noise_explains_is_hardly_corrected(rng):
    """Counts that differ from a mixture by noise alone move it by the noise of a few directions at most."""
    table = _dependent_table()
    observed = dataclasses.replace(_observed_behind(rng, table, 20.0), num_ordered=(8, 12))
    one_row_each = table[0].sum(1)[None] / table.sum(), np.zeros((1, 8, 20))  # a relaxed row for each bin
    one_row_each[1][0, :, :8] = np.eye(8)
    one_row_each[1][0, :, 8:] = table[0] / table[0].sum(1, keepdims=True)
    counts = directions.missed(observed, counts_of(one_row_each))
    assert np.linalg.norm(counts[:, :8, 8:] - table) < 3 * 20.0
    independent = np.full((1, 1), 1.0), np.concatenate([table.sum(2), table.sum(1)], axis=1)[:, None] / table.sum()
    counts = directions.missed(observed, counts_of(independent))
    assert np.abs(counts[:, :8, 8:] - table).sum() < 0.2 * np.abs(independent_counts(table) - table).sum()
    np.testing.assert_allclose(counts, np.swapaxes(counts, 1, 2))
    unmeasured = dataclasses.replace(observed, pairs_precision=np.zeros((20, 20)))
    np.testing.assert_array_equal(directions.missed(unmeasured, counts_of(independent)), counts_of(independent))


def counts_of(fitted, unions=None):
    """The counts of all pairs of parts in a mixture of 10 000 rows."""
    weights, parts = fitted
    parts = parts if unions is None else np.concatenate([parts, parts @ unions], axis=-1)
    return 10_000 * np.einsum("tk,tka,tkb->tab", weights, parts, parts)


def independent_counts(table):
    """The counts that two independent columns would have."""
    return np.einsum("ta,tb->tab", table.sum(2), table.sum(1)) / table.sum()


@pytest.mark.parametrize(
    ("gap", "strength", "is_corrected"), [(1.9, 8, True), (0.5, 8, False), (-1.9, 8, False), (1.9, 80, False)]
)
def test_dependence_that_counts_clearly_show_is_not_weakened(gap, strength, is_corrected):
    """A mixture misses 1.9 times the noise. That is clear only if it is a good part of a dependence."""
    table = _dependent_table()
    independent = independent_counts(table)
    size = np.linalg.norm(table - independent)
    direction, noise = (table - independent) / size, size / strength
    observed = _observed_behind(np.random.default_rng(0), table, 1e-6)
    precision = np.where(observed.pairs_precision > 0, 1 / noise, 0)
    pairs = np.array(observed.pairs)
    pairs[:, :8, 8:20] = table + gap * noise * direction
    one_row_each = table[0].sum(1)[None] / table.sum(), np.zeros((1, 8, 20))
    one_row_each[1][0, :, :8] = np.eye(8)
    one_row_each[1][0, :, 8:] = table[0] / table[0].sum(1, keepdims=True)
    told = dataclasses.replace(observed, pairs=pairs, pairs_precision=precision)
    moved = np.vdot(direction, directions.missed(told, counts_of(one_row_each))[:, :8, 8:] - table)
    assert (abs(moved) > 1e-6) == is_corrected
    if is_corrected:
        assert 0.25 * gap * noise < moved < gap * noise


def test_pairs_that_are_known_in_unions_alone_are_corrected_there(rng):
    table = _dependent_table()
    observed = _observed_behind(rng, table, 20.0)
    unions = np.zeros((20, 2 + 3))
    unions[np.arange(8), np.arange(8) // 4] = 1
    unions[8 + np.arange(12), 2 + np.arange(12) // 4] = 1
    of_unions = unions[:8, :2].T @ table[0] @ unions[8:, 2:]
    pairs, precision = np.zeros((1, 25, 25)), np.zeros((25, 25))
    pairs[0, 20:22, 22:], precision[20:22, 22:] = of_unions + rng.normal(size=(2, 3)), 1.0
    told = dataclasses.replace(observed, unions=unions, pairs=pairs, pairs_precision=precision, num_ordered=(8, 12))
    assert told.places() == [(slice(0, 8), slice(20, 22)), (slice(8, 20), slice(22, 25))]
    independent = np.full((1, 1), 1.0), np.concatenate([table.sum(2), table.sum(1)], axis=1)[:, None] / table.sum()
    counts = directions.missed(told, counts_of(independent, unions))
    np.testing.assert_allclose(counts[0, 20:22, 22:], of_unions, atol=5)
    np.testing.assert_allclose(counts[0, :8, 8:20], independent_counts(table)[0])


def test_normal_scores():
    scores = directions.normal_scores(np.asarray([10.0, 20.0, 40.0, 5.0]), 3)
    assert (np.diff(scores[:3]) > 0).all()
    assert scores[3] == 0
    assert scores[:3] @ [10, 20, 40] == pytest.approx(0, abs=1e-9)
    assert not directions.normal_scores(np.asarray([10.0, 20.0]), 0).any()


def test_categories_that_go_with_one_another_keep_their_cells(rng):
    """A mixture weakens the diagonal of a table of two categories. Its cells are corrected, and sums stay."""
    shares = 1 / np.arange(1, 9) ** 1.2
    shares /= shares.sum()
    independent = 10_000 * np.outer(shares, shares)
    private = 0.85 * 10_000 * np.diag(shares) + 0.15 * independent
    table = 0.8 * private + 0.2 * independent
    lost, left = [], []
    for _ in range(20):
        noisy = private + 40 * rng.normal(size=(8, 8))
        correction = directions.clear_part(noisy - table, table, 40.0, (0, 0))
        corrected = table + correction
        np.testing.assert_allclose(corrected.sum(1), table.sum(1), atol=60)
        np.testing.assert_allclose(corrected.sum(0), table.sum(0), atol=60)
        assert corrected.min() >= 0
        lost.append(np.abs(np.diag(table - private)).sum())
        left.append(np.abs(np.diag(corrected - private)).sum())
        assert directions.clear_part(0.1 * (noisy - private), private, 40.0, (0, 0)) is None
    assert np.mean(left) < 0.5 * np.mean(lost)


def test_many_clear_cells_need_little_memory(rng):
    """Nearly every cell of a table of many rows is clear. Each one is corrected by itself."""
    size = 60
    table = rng.gamma(1.0, 1000.0, (size, size))
    noisy = table + 300 * rng.choice([-1, 1], (size, size))
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    clear = np.abs(noisy - expected) > 40
    assert clear.mean() > 0.9
    tracemalloc.start()
    correction = directions.clear_part(noisy - table, table, 10.0, (0, 0))
    assert tracemalloc.get_traced_memory()[1] < 1000 * table.nbytes
    tracemalloc.stop()
    np.testing.assert_allclose((table + correction)[clear], np.maximum(noisy, 0)[clear], atol=20)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_counts_of_pairs_tell_those_of_bins(rng, num_classes):
    """Also those of unions of two bins: each of their bins is told a half."""
    _, _, observed = _behind_noise(rng, num_classes, 40.0)
    unions = np.zeros((20, 10))
    unions[np.arange(20), np.arange(20) // 2] = 1
    precision = np.zeros((30, 30))
    precision[:8, 8:20], precision[20:24, 24:] = 1 / 40, 1 / 5
    observed = dataclasses.replace(
        observed,
        unions=unions,
        pairs=np.zeros((num_classes, 30, 30)),
        pairs_precision=precision,
        totals_precision=np.full(20, 0.1),
    )
    of_column = 1 / (num_classes * observed.singles_sigma**2) + 0.1**2
    fitted = observed.singles.sum(0) / (num_classes * observed.singles_sigma**2) + 0.1**2 * observed.totals
    fitted /= of_column
    for a, (bins, others, of_unions) in enumerate([(slice(0, 8), 12, 6), (slice(8, 20), 8, 4)]):
        counts, errors = observed.counts_of_bins(a, fitted[bins])
        known = of_column[bins] + 1 / (num_classes * others * 40**2) + 1 / (num_classes * of_unions * 5**2) / 2
        np.testing.assert_allclose(counts, fitted[bins], rtol=1e-9)
        np.testing.assert_allclose(errors, known**-0.5, rtol=1e-9)
