"""Dependence that follows noise is told from dependence that is in the private table."""

import dataclasses

import jax
import numpy as np
import pytest

from kme_jax.table import interactions, mixture
from kme_jax.table.observed import Observed

NUM_ROWS, SIGMA = 20_000, 15.0


def observed_of(tables, sizes, noise, ordered=None):
    """What is observed of counts of pairs of columns, {(a, b): [m, n]}, behind noise {(a, b): [m, n]}."""
    offsets = (0, *np.cumsum(sizes).tolist())
    bins = offsets[-1]
    pairs, precision, singles = np.zeros((1, bins, bins)), np.zeros((bins, bins)), np.zeros((1, bins))
    for (a, b), table in tables.items():
        first, second = slice(*offsets[a : a + 2]), slice(*offsets[b : b + 2])
        pairs[0, first, second], precision[first, second] = table + noise[a, b], 1 / SIGMA
        singles[0, first], singles[0, second] = table.sum(1), table.sum(0)
    zeros = np.zeros(bins)
    return Observed(
        offsets,
        NUM_ROWS,
        singles,
        singles,
        np.full(bins, 10.0),
        zeros,
        zeros,
        np.zeros((bins, 0)),
        pairs,
        precision,
        None,
        *(np.zeros((bins, 0)), np.zeros((0, 0)), np.zeros((0, 0))),
        *(np.zeros((bins, len(sizes))), np.zeros((0, 3), np.int64), np.zeros(0), np.zeros(0)),
        zeros,
        tuple(ordered or [0] * len(sizes)),
    )


def mixture_of(table):
    """A mixture with a relaxed row for each bin of the first of two columns, whose counts are a table [m, n]."""
    rows = table.sum(1)
    probabilities = np.concatenate([np.eye(len(table)), table / rows[:, None]], axis=1)
    return (rows / rows.sum())[None], probabilities[None]


def counts_of(fitted):
    weights, parts = fitted
    return NUM_ROWS * np.einsum("tk,tka,tkb->tab", weights, parts, parts)


def followed(private, noise, part):
    """A table that follows the noise of the dependence of another one to a part, and its sums not at all."""
    centred = noise - noise.mean(0) - noise.mean(1)[:, None] + noise.mean()
    return private + part * centred


@pytest.mark.parametrize(("strength", "least", "most"), [(0.0, 0.0, 0.4), (1.0, 0.9, 1.1)])
def test_a_factor_is_small_where_all_is_noise(strength, least, most):
    """The fit follows 0.4 of the noise, of which the disturbed fit tells. So the factor is that of least error."""
    shares = np.full(8, 1 / 8), np.full(12, 1 / 12)
    independent = NUM_ROWS * np.outer(*shares)
    wave = np.outer(np.cos(np.arange(8) * np.pi / 4), np.cos(np.arange(12) * np.pi / 6))
    private = independent + strength * 100 * wave
    before, after, factors = [], [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noise, added = SIGMA * rng.normal(size=(2, 8, 12))
        observed = observed_of({(0, 1): private}, (8, 12), {(0, 1): noise})
        table, disturbed = followed(private, noise, 0.4), followed(private, noise + added, 0.4)
        z = np.zeros((1, 20, 20))
        z[0, :8, 8:] = added
        fits = mixture_of(table), mixture_of(disturbed)
        counts = interactions.shrunken(observed, counts_of(fits[0]), z, *fits)
        np.testing.assert_allclose(counts, np.swapaxes(counts, 1, 2))
        result = counts[0, :8, 8:]
        np.testing.assert_allclose(result.sum(0), table.sum(0))
        np.testing.assert_allclose(result.sum(1), table.sum(1))
        factors.append(np.vdot(result - independent, table - independent) / np.sum((table - independent) ** 2))
        before.append(np.linalg.norm(table - private))
        after.append(np.linalg.norm(result - private))
    assert least <= np.mean(factors) <= most
    assert np.mean(after) < (0.5 if strength == 0 else 1.05) * np.mean(before)


def test_scores_of_ordered_columns_have_a_factor_of_their_own():
    """A correlation is kept, while all else, which is noise, is not."""
    independent = NUM_ROWS * np.full((8, 12), 1 / 96)
    scores = [np.linspace(-1, 1, size) for size in (8, 12)]
    private = independent + 60 * np.outer(*scores)
    kept, rest = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        noise, added = SIGMA * rng.normal(size=(2, 8, 12))
        observed = observed_of({(0, 1): private}, (8, 12), {(0, 1): noise}, (8, 12))
        table = followed(private, noise, 0.5)
        z = np.zeros((1, 20, 20))
        z[0, :8, 8:] = added
        fits = mixture_of(table), mixture_of(followed(private, noise + added, 0.5))
        result = interactions.shrunken(observed, counts_of(fits[0]), z, *fits)[0, :8, 8:]
        kept.append((scores[0] @ (result - independent) @ scores[1]) / (scores[0] @ (table - independent) @ scores[1]))
        rest.append(np.linalg.norm(result - private) / np.linalg.norm(table - private))
    assert 0.85 < np.mean(kept) < 1.15
    assert np.mean(rest) < 0.75


def test_a_pair_that_tells_little_has_the_factor_of_the_others():
    """Two pairs of columns: one tells much, and of the other one nothing was fitted."""
    rng = np.random.default_rng(0)
    sizes = (8, 12, 3)
    independent = {(0, 1): NUM_ROWS * np.full((8, 12), 1 / 96), (0, 2): NUM_ROWS * np.full((8, 3), 1 / 24)}
    noise = {pair: np.zeros(table.shape) for pair, table in independent.items()}
    wave = np.outer(np.cos(np.arange(8) * np.pi / 4), np.cos(np.arange(12) * np.pi / 6))
    observed = observed_of(independent | {(0, 1): independent[0, 1] + 200 * wave}, sizes, noise)
    counts = np.zeros((1, 23, 23))
    counts[0, :8, 8:20] = independent[0, 1] + 200 * wave / 1.2
    small = rng.normal(size=(8, 3))
    counts[0, :8, 20:] = independent[0, 2] + 0.01 * (small - small.mean(0) - small.mean(1)[:, None] + small.mean())
    counts = counts + np.swapaxes(counts, 1, 2)
    still = np.ones((1, 1)), np.full((1, 1, 23), 0.1)
    result = interactions.shrunken(observed, counts, np.zeros((1, 23, 23)), still, still)
    factors = [
        np.linalg.norm(result[0, :8, part] - independent[pair])
        / np.linalg.norm(counts[0, :8, part] - independent[pair])
        for pair, part in (((0, 1), slice(8, 20)), ((0, 2), slice(20, 23)))
    ]
    assert factors == pytest.approx([1.2, 1.2], rel=0.01)


@pytest.mark.long
def test_a_fit_invents_little_dependence():
    """Six independent columns: what the fits of noisy counts show of dependence is noise, and little of it is left."""
    rng = np.random.default_rng(1)
    sizes = (6,) * 6
    pairs = [(a, b) for a in range(6) for b in range(a + 1, 6)]
    tables = {pair: NUM_ROWS * np.full((6, 6), 1 / 36) for pair in pairs}
    noise = {pair: SIGMA * rng.normal(size=(6, 6)) for pair in pairs}
    observed = observed_of(tables, sizes, noise)
    invented = []
    for rounds in (0, 3):
        fitted = mixture.fit(jax.random.key(0), observed, num_fits=4, num_relaxed=60, rounds_together=rounds)
        counts = counts_of(fitted)
        table = np.concatenate([counts[:, 6 * a : 6 * a + 6, 6 * b : 6 * b + 6] for a, b in pairs])
        invented.append(np.sqrt(np.mean(np.square(interactions.interaction(table)))))
    assert invented[1] < 0.6 * invented[0]


def test_the_disturbed_fit_is_the_same_beside_the_others_and_after_them(monkeypatch):
    """So the limit of memory does not decide what a table is."""
    rng = np.random.default_rng(2)
    wave = np.outer(np.cos(np.arange(6) * np.pi / 3), np.cos(np.arange(6) * np.pi / 3))
    table = NUM_ROWS * np.full((6, 6), 1 / 36) + 200 * wave
    observed = observed_of({(0, 1): table}, (6, 6), {(0, 1): SIGMA * rng.normal(size=(6, 6))})
    given = []
    shrunken = mixture.shrunken
    monkeypatch.setattr(mixture, "shrunken", lambda *args: given.append(args) or shrunken(*args))
    sizes = {"num_fits": 2, "num_relaxed": 6, "num_steps": 30, "rounds_together": 1}
    for limit in (1 << 26, 1):
        mixture.fit(jax.random.key(0), observed, max_entries=limit, **sizes)
    (_, counts, noise, *fits), (_, other_counts, other_noise, *other_fits) = given
    np.testing.assert_allclose(counts, other_counts, atol=0.01)
    np.testing.assert_array_equal(noise, other_noise)
    undisturbed, disturbed = (counts_of(fit) for fit in fits)
    assert np.abs(disturbed - undisturbed).max() > 1
    np.testing.assert_allclose(undisturbed, counts_of(other_fits[0]), atol=0.01)
    np.testing.assert_allclose(disturbed, counts_of(other_fits[1]), atol=0.01)


def test_nothing_is_fitted_together_where_no_pair_was_measured():
    rng = np.random.default_rng(3)
    table = NUM_ROWS * np.full((6, 6), 1 / 36)
    observed = observed_of({(0, 1): table}, (6, 6), {(0, 1): rng.normal(size=(6, 6))})
    observed = dataclasses.replace(observed, pairs=np.zeros((1, 12, 12)), pairs_precision=np.zeros((12, 12)))
    calls = []
    sizes = {"num_fits": 2, "num_relaxed": 6, "num_steps": 30}
    mixture.fit(jax.random.key(0), observed, **sizes, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]
    assert sorted(calls) == calls
