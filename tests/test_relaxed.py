import dataclasses
import itertools

import numpy as np
import pytest

from kme_jax.table import balance, relaxed
from kme_jax.table.conditional import ConditionalRows, conditioned
from kme_jax.table.dependence import without_negative_eigenvalues
from kme_jax.table.relaxed import Leaves, Parities, RelaxedRows

# Columns: 0 with 6 codes in 2 bins, 1 is the split with two classes, 2 with 9 codes in 3 bins.
_FIRST = Leaves(np.asarray([0, 2, 3]), np.asarray([2, 3, 6]), np.asarray([0, 0, 1]), np.asarray([[0.5, 0.5, 1.0]] * 2))
_LAST = Leaves(np.asarray([0, 1, 4]), np.asarray([1, 4, 9]), np.asarray([2, 0, 1]), np.asarray([[1.0, 1.0, 1.0]] * 2))


@pytest.fixture
def rows(rng):
    weights = rng.gamma(1.0, size=(2, 3))
    parts = [rng.gamma(0.5, size=(2, 3, size)) for size in (2, 3)]
    probabilities = np.concatenate([part / part.sum(2, keepdims=True) for part in parts], axis=2)
    return RelaxedRows(weights / weights.sum(), probabilities, (0, 2, 5), (_FIRST, _LAST), 1)


def _joint(rows):
    """Probabilities of all codes, [6, 2, 9], from the definition."""
    joint = np.zeros((6, 2, 9))
    for t, k in itertools.product(range(2), range(3)):
        columns = []
        for leaves, start, size in ((_FIRST, 0, 6), (_LAST, 2, 9)):
            column = np.zeros(size)
            for first, last, bin_, share in zip(leaves.first, leaves.last, leaves.bins, leaves.shares[t], strict=True):
                column[first:last] += rows.probabilities[t, k, start + bin_] * share / (last - first)
            columns.append(column)
        joint[:, t] += rows.weights[t, k] * np.outer(*columns)
    return joint


def _histogram(codes, weights=None):
    index = np.ravel_multi_index(codes.T, (6, 2, 9))
    return np.bincount(index, weights, 108).reshape(6, 2, 9) / (len(codes) if weights is None else 1)


def test_samples_have_the_distribution(rows):
    joint = _joint(rows)
    assert joint.sum() == pytest.approx(1)
    codes = rows.sample(200_000, 0)
    assert codes.shape == (200_000, 3)
    assert np.abs(_histogram(codes) - joint).sum() / 2 < 0.012
    # Strata: classes and leaves are taken as often as they should be, which independent draws would miss by 1e-3.
    found = _histogram(codes)
    np.testing.assert_allclose(found.sum((0, 2)), joint.sum((0, 2)), atol=1e-5)
    for axes, starts in (((1, 2), _FIRST.first), ((0, 1), np.sort(_LAST.first))):
        leaves = [np.add.reduceat(table.sum(axes), starts) for table in (found, joint)]
        np.testing.assert_allclose(*leaves, atol=2e-4)
    np.testing.assert_array_equal(rows.sample(50, 3), rows.sample(50, 3))
    assert not np.array_equal(rows.sample(50, 3), rows.sample(50, 4))


def test_rows_are_in_random_order(rows):
    codes = rows.sample(20_000, 0)
    np.testing.assert_allclose(codes[:10_000].mean(0), codes[10_000:].mean(0), atol=0.15)


def test_samples_are_the_same_for_any_number_of_threads(rows, monkeypatch):
    samples = []
    for threads in (1, 3):
        monkeypatch.setattr(relaxed, "num_threads", lambda num_rows, threads=threads: threads)
        samples.append(rows.sample(500, 4))
    np.testing.assert_array_equal(*samples)


def test_many_rows_have_few_threads():
    assert relaxed.num_threads(1) == relaxed.num_threads(1 << 19) >= 1
    assert relaxed.num_threads(1 << 22) == relaxed.num_threads(10**9) == 1


def test_weighted_samples_have_the_distribution(rows):
    codes, weights = rows.weighted_sample(200_000, 0)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() > 0
    assert np.abs(_histogram(codes, weights) - _joint(rows)).sum() / 2 < 0.016


def test_conditional_distributions(rows):
    joint = _joint(rows)
    ranges = {0: [(1, 3), (4, 5)], 2: [(0, 5)], 1: [(1, 2)]}
    kept = np.zeros_like(joint)
    for codes in itertools.product(range(6), range(2), range(9)):
        inside = all(any(low <= codes[j] < high for low, high in allowed) for j, allowed in ranges.items())
        kept[codes] = joint[codes] * inside
    codes = conditioned(rows, ranges).sample(100_000, 1)
    assert np.abs(_histogram(codes) - kept / kept.sum()).sum() / 2 < 0.014
    with pytest.raises(ValueError, match="no such rows"):
        conditioned(rows, {2: [(7, 7)]})
    with pytest.raises(ValueError, match="no such rows"):
        conditioned(rows, {2: []})


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param({0: [(3, 6)]}, marks=pytest.mark.long),
        pytest.param({2: [(0, 2), (8, 9)]}, marks=pytest.mark.long),
        pytest.param({0: [(1, 3), (4, 5)], 2: [(0, 5)]}, marks=pytest.mark.long),
        {0: [(0, 1)], 2: [(6, 9)], 1: [(1, 2)]},
    ],
)
@pytest.mark.parametrize("correlation", [-0.95, pytest.param(0.6, marks=pytest.mark.long)])
def test_conditions_on_coupled_columns(rows, ranges, correlation):
    """A condition on a column changes the others as it does among rows that were drawn without it."""
    coupled = dataclasses.replace(rows, dependence=np.asarray([[1.0, correlation], [correlation, 1.0]]))
    codes = coupled.sample(1_000_000, 0)
    inside = [np.any([(low <= codes[:, j]) & (codes[:, j] < high) for low, high in r], 0) for j, r in ranges.items()]
    expected = _histogram(codes[np.all(inside, axis=0)])
    given = conditioned(coupled, ranges)
    assert isinstance(given, ConditionalRows)
    found = given.sample(50_000, 1)
    assert found.shape == (50_000, 3)
    assert not _histogram(found)[expected == 0].any()
    assert np.abs(_histogram(found) - expected).sum() / 2 < 0.02
    assert np.abs(_histogram(*given.weighted_sample(50_000, 1)) - expected).sum() / 2 < 0.03


def test_a_weighted_sample_with_conditions_shows_what_is_rare(rows):
    rare = dataclasses.replace(rows, weights=np.asarray([[1 - 1e-6, 0, 0], [1e-6, 0, 0]]))
    coupled = dataclasses.replace(rare, dependence=np.asarray([[1.0, 0.5], [0.5, 1.0]]))
    for ranges in ({0: [(0, 5)]}, {0: [(0, 5)], 2: [(0, 8)]}):
        codes, weights = conditioned(coupled, ranges).weighted_sample(5000, 0)
        shown = codes[:, 1] == 1
        assert 0 < shown.sum() < 50
        assert 1e-8 < weights[shown].sum() < 1e-4


def test_what_hardly_has_a_probability_is_found(rows):
    tiny = np.zeros((2, 3, 5))
    tiny[..., 0], tiny[..., 1] = 1, [1e-15, 1e-17, 0]
    tiny[..., 2], tiny[..., 4] = 0.5, 0.5
    coupled = dataclasses.replace(rows, probabilities=tiny, dependence=np.asarray([[1.0, 0.5], [0.5, 1.0]]))
    codes = conditioned(coupled, {0: [(3, 6)], 2: [(0, 4)]}).sample(100, 0)
    assert (codes[:, 0] >= 3).all()
    assert (codes[:, 2] < 4).all()


def test_no_class_without_a_split(rng, rows):
    alone = RelaxedRows(
        rows.weights[:1] / rows.weights[0].sum(), rows.probabilities[:1], (0, 2, 5), (_FIRST, _LAST), -1
    )
    assert alone.dim == 2
    codes = alone.sample(30_000, 0)
    joint = _joint(rows)[:, 0] / rows.weights[0].sum()
    found = np.bincount(codes @ [9, 1], minlength=54).reshape(6, 9) / len(codes)
    assert np.abs(found - joint).sum() / 2 < 0.015


@pytest.mark.parametrize("num_rows", [1, 2, 5000])
def test_balanced_samples_have_the_same_columns_and_closer_pairs(num_rows, rng):
    """Two relaxed rows, three columns of 12, 5 and 40 values, of which the last has wide leaves."""
    sizes, offsets = (12, 5, 40), (0, 12, 17, 57)
    probabilities = np.concatenate([rng.dirichlet(np.full(size, 0.5), (2, 3)) for size in sizes], axis=-1)
    leaves = [Leaves(w * np.arange(b), w * np.arange(b) + w, np.arange(b), np.ones((2, b))) for w, b in
              zip((1, 1, 7), sizes, strict=True)]  # fmt: skip
    rows = RelaxedRows(rng.dirichlet(np.ones(6)).reshape(2, 3), probabilities.astype(np.float32), offsets,
                       tuple(leaves), 1)  # fmt: skip
    drawn, balanced = rows.sample(num_rows, 0), balance.sample(rows, num_rows, 0)
    np.testing.assert_array_equal(np.sort(drawn, axis=0), np.sort(balanced, axis=0))
    np.testing.assert_array_equal(balanced, balance.sample(rows, num_rows, 0))
    np.testing.assert_array_equal(drawn[:, 1], balanced[:, 1])  # the classes
    expected = np.einsum("tk,tka,tkb->tab", rows.weights, probabilities[..., :12], probabilities[..., 12:17])
    apart = []
    for codes in (drawn, balanced):
        counts = np.zeros((2, 12, 5))
        np.add.at(counts, (codes[:, 1], codes[:, 0], codes[:, 2]), 1)
        apart.append(np.abs(counts - num_rows * expected).sum())
    assert apart[1] < 0.8 * apart[0] or num_rows < 3


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("num_rows", [300, 2000])
def test_balanced_samples_of_many_values_keep_the_correlation(num_rows, rare, rng):
    """Pairs of many values have less than one row each. Rows do not gather where there are most of them, also not in a
    class with few rows."""
    edges = np.arange(0, 1001, 10)
    leaves = tuple(Leaves(edges[:-1], edges[1:], np.arange(100), np.ones((1 + rare, 100))) for _ in range(2))
    centres = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 60).T * 18 + 50
    shapes = np.exp(-0.5 * np.square((np.arange(100) - centres[..., None]) / 30))  # [2, 60, 100]
    probabilities = np.tile(np.concatenate(shapes / shapes.sum(-1, keepdims=True), axis=1), (1 + rare, 1, 1))
    weights = np.repeat(np.array([[0.95], [0.05]] if rare else [[1.0]]), 60, axis=1) / 60
    rows = RelaxedRows(weights, probabilities, (0, 100, 200), leaves, 2 if rare else -1)

    def correlation(codes):
        of_rare = codes[codes[:, 2] == 1] if rare else codes
        return [np.corrcoef(some[:, :2].T)[0, 1] for some in (codes, of_rare)]

    exact = correlation(rows.sample(200_000, 0))[0]
    correlations = np.array([correlation(balance.sample(rows, num_rows, seed)) for seed in range(8)])
    assert 0.05 < exact < 0.2
    of_all, of_rare = correlations.mean(0) - exact
    assert abs(of_all) < 3 / np.sqrt(8 * num_rows)
    assert abs(of_rare) < 4 / np.sqrt(8 * num_rows * (0.05 if rare else 1))


def test_balanced_samples_keep_coupled_columns_and_conditions(rng):
    dependence = np.asarray([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    leaves = tuple(Leaves(np.arange(20), np.arange(20) + 1, np.arange(20), np.ones((1, 20))) for _ in range(3))
    probabilities = rng.dirichlet(np.ones(20), (1, 2, 3)).reshape(1, 2, 60).astype(np.float32)
    rows = RelaxedRows(np.full((1, 2), 0.5), probabilities, (0, 20, 40, 60), leaves, -1, dependence)
    drawn, balanced = rows.sample(2000, 0), balance.sample(rows, 2000, 0)
    np.testing.assert_array_equal(drawn[:, :2], balanced[:, :2])
    assert not np.array_equal(drawn[:, 2], balanced[:, 2])
    given = conditioned(rows, {0: [(3, 6)]})
    np.testing.assert_array_equal(balance.sample(given, 100, 0), given.sample(100, 0))


def test_bins_of_codes():
    """A column of three bins, of which the first has two ranges, and a column of two classes."""
    leaves = Leaves(np.asarray([0, 2, 5, 6]), np.asarray([2, 5, 6, 9]), np.asarray([0, 1, 0, 2]), np.ones((2, 4)))
    probabilities = np.full((2, 1, 3), 1 / 3, np.float32)
    rows = RelaxedRows(np.full((2, 1), 0.5), probabilities, (0, 3), (leaves,), 0)
    codes = np.stack([np.arange(9) % 2, np.arange(9)], axis=1)
    assert rows.bins_of(codes)[:, 1].tolist() == [0, 0, 1, 1, 1, 0, 2, 2, 2]
    assert np.array_equal(rows.bins_of(codes)[:, 0], codes[:, 0])


@pytest.mark.parametrize("mean", [0.9, -0.5])
def test_balanced_samples_have_the_parities(mean, rng):
    """Of three columns of 2, 2 and 6 values. The fourth is far from the uniform distribution, and has no parity."""
    sizes, offsets = (2, 2, 6, 3), (0, 2, 4, 10, 13)
    probabilities = [np.full((1, 4, 2), 0.5), np.full((1, 4, 2), 0.5), np.full((1, 4, 6), 1 / 6),
                     rng.dirichlet(np.ones(3), (1, 4))]  # fmt: skip
    leaves = tuple(Leaves(np.arange(b), np.arange(b) + 1, np.arange(b), np.ones((1, b))) for b in sizes)
    signs = np.asarray([-1, 1, -1, 1, -1, -1, -1, 1, 1, 1, -1, 1, 1.0])
    parities = Parities(np.asarray([[0, 1, 2]]), signs, np.asarray([mean]))
    rows = RelaxedRows(np.full((1, 4), 0.25), np.concatenate(probabilities, -1).astype(np.float32), offsets, leaves,
                       -1, parities=parities)  # fmt: skip
    rows.validate()
    codes = balance.sample(rows, 4000, 0)
    product = (2 * codes[:, 0] - 1) * (2 * codes[:, 1] - 1) * np.where(codes[:, 2] < 3, -1, 1)
    assert np.mean(product) == pytest.approx(mean, abs=0.04)
    np.testing.assert_array_equal(np.sort(codes, axis=0), np.sort(rows.sample(4000, 0), axis=0))
    assert np.abs(np.corrcoef(codes[:, :3], rowvar=False)[np.triu_indices(3, 1)]).max() < 0.02
    assert balance.sample(rows, 3, 0).shape == (3, 4)
    assert conditioned(rows, {3: [(0, 1)]}).parities is None


@pytest.mark.parametrize(
    "change",
    [{"triples": np.asarray([[0, 1, 1]])}, {"triples": np.asarray([[0, 1, 3]])}, {"signs": np.zeros(3)},
     {"signs": np.ones(2)}, {"means": np.asarray([1.5])}],
)  # fmt: skip
def test_invalid_parities_are_refused(change):
    leaves = (Leaves(np.arange(1), np.arange(1) + 1, np.arange(1), np.ones((1, 1))),) * 3
    parities = Parities(np.asarray([[0, 1, 2]]), np.ones(3), np.zeros(1))
    valid = RelaxedRows(np.ones((1, 1)), np.ones((1, 1, 3), np.float32), (0, 1, 2, 3), leaves, -1, parities=parities)
    valid.validate()
    with pytest.raises(ValueError, match=r"triples|signs|means|sign or a mean"):
        dataclasses.replace(valid, parities=dataclasses.replace(parities, **change)).validate()


@pytest.mark.parametrize("size", [(10**8, 4), (300_000, 60)])
def test_very_large_samples_are_only_drawn(size, monkeypatch):
    num_rows, num_columns = size
    leaves = (Leaves(np.arange(2), np.arange(2) + 1, np.arange(2), np.ones((1, 2))),) * num_columns
    rows = RelaxedRows(np.ones((1, 1)), np.full((1, 1, 2 * num_columns), 0.5, np.float32),
                       tuple(range(0, 2 * num_columns + 1, 2)), leaves, -1)  # fmt: skip
    nothing = np.zeros((0, num_columns), np.int64), np.zeros(0, np.int64)
    monkeypatch.setattr(RelaxedRows, "sample_with_source", lambda *_: nothing)
    monkeypatch.setattr(balance.Exchange, "create", lambda *_: pytest.fail("values are exchanged"))
    assert len(balance.sample(rows, num_rows, 0)) == 0


def test_raking_reaches_marginals_where_rows_are_pure():
    """Relaxed rows of one bin each cannot change within themselves. Their weights change instead."""
    probabilities = np.asarray([[[1, 0, 1, 0], [0, 1, 0, 1.0]], [[1, 0, 1, 0], [0.5, 0.5, 0, 1]]])
    leaves = Leaves(np.arange(2), np.arange(1, 3), np.arange(2), np.ones((2, 2)))
    rows = RelaxedRows(np.full((2, 2), 0.25), probabilities, (0, 2, 4), (leaves, leaves), 2)
    masses = [np.asarray([[0.1, 0.4], [0.4, 0.1]]), np.asarray([[0.1, 0.4], [0.3, 0.2]])]
    raked = rows.raked(masses)
    for a, target in enumerate(masses):
        part = raked.probabilities[..., 2 * a : 2 * a + 2]
        np.testing.assert_allclose(np.einsum("tk,tkb->tb", raked.weights, part), target, atol=1e-4)
    np.testing.assert_allclose(raked.weights.sum(1), 0.5)
    np.testing.assert_allclose(raked.weights[0], [0.1, 0.4], atol=1e-4)
    np.testing.assert_allclose(raked.probabilities.reshape(2, 2, 2, 2).sum(-1), 1, rtol=1e-6)


def test_raking_keeps_classes_without_the_values_that_they_should_have():
    """Probabilities may be 0 after rounding. A release that is paid for must not fail because of this."""
    leaves = Leaves(np.arange(2), np.arange(1, 3), np.arange(2), np.ones((2, 2)))
    probabilities = np.asarray([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0, 1]]])
    rows = RelaxedRows(np.full((2, 2), 0.25), probabilities, (0, 2), (leaves,), 1)
    raked = rows.raked([np.asarray([[0.0, 0.5], [0.2, 0.3]])])
    raked.validate()
    np.testing.assert_allclose(raked.weights.sum(1), 0.5)
    np.testing.assert_allclose(raked.probabilities.sum(-1), 1)
    np.testing.assert_allclose(np.einsum("k,kb->b", raked.weights[1], raked.probabilities[1]), [0.2, 0.3], atol=1e-4)


def test_raking_twice_changes_nothing(rows):
    masses = [np.asarray([[0.3, 0.2], [0.1, 0.4]]), np.asarray([[0.1, 0.1, 0.3], [0.2, 0.2, 0.1]])]
    once = rows.raked(masses)
    again = once.raked(masses)
    np.testing.assert_allclose(again.weights, once.weights, atol=1e-4)
    np.testing.assert_allclose(again.probabilities, once.probabilities, atol=1e-3)


def test_correlations_that_contradict_each_other_become_possible(rng):
    correlations = np.clip(rng.normal(size=(30, 30)), -0.98, 0.98)
    correlations[rng.random((30, 30)) < 0.5] = 0
    correlations = np.triu(correlations, 1) + np.triu(correlations, 1).T + np.eye(30)
    nearest = without_negative_eigenvalues(correlations)
    assert np.linalg.eigvalsh(correlations)[0] < -1
    assert np.linalg.eigvalsh(nearest)[0] > -1e-9
    np.testing.assert_array_equal(nearest[correlations == 0], 0)
    np.testing.assert_allclose(np.diag(nearest), 1)
    # Nearer than the same matrix with all correlations made smaller by one factor.
    factor = 1 / (1 - np.linalg.eigvalsh(correlations)[0])
    smaller = factor * correlations + (1 - factor) * np.eye(30)
    assert np.linalg.norm(nearest - correlations) < 0.9 * np.linalg.norm(smaller - correlations)
    possible = np.asarray([[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]])
    np.testing.assert_allclose(without_negative_eigenvalues(possible), possible, atol=1e-12)


def test_cells_of_a_bin_have_their_shares_in_every_class():
    """Relaxed rows have few rows each, and a bin many cells. All relaxed rows together have the shares of the cells."""
    rng = np.random.default_rng(0)
    cells, bins, rows = 60, np.repeat([0, 1, 2], 20), 400
    shares = np.stack([np.concatenate([rng.dirichlet(np.full(20, 0.5)) for _ in range(3)]) for _ in range(2)])
    first = np.arange(cells)
    probabilities = rng.dirichlet(np.ones(3), size=(2, rows)).astype(np.float32)
    weights = rng.dirichlet(np.ones(2 * rows)).reshape(2, rows)
    relaxed = RelaxedRows(weights, probabilities, (0, 3), (Leaves(first, first + 1, bins, shares),), 0)
    codes = relaxed.sample(5000, seed=1)
    for t in range(2):
        values = codes[codes[:, 0] == t, 1]
        of_bins = np.bincount(bins[values], minlength=3)
        expected = of_bins[bins] * shares[t]
        assert np.abs(np.bincount(values, minlength=cells) - expected).max() < 2
