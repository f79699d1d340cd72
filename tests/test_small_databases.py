"""The exponential mechanism over small databases: its law, its sensitivity and what it refuses."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
import scipy.stats

from kme_jax import (
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    PrivacyBudget,
    SubspaceMap,
    exponential_mechanism,
    integer_embedding,
)
from kme_jax.algorithms.small_databases import compare_databases
from kme_jax.privacy import secure

BUDGET = PrivacyBudget(1.0, 0.0)
LINE = np.linspace(-3, 3, 7)[:, None]
GRID = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=2)))
NAMES = ("subspace", "lattice", "fourier")


@functools.cache
def _case(name):
    """A feature map, the points of a domain, and the size of a database."""
    if name == "subspace":
        return SubspaceMap.from_points(Gaussian(0.5), LINE), LINE, 3
    if name == "lattice":
        return LatticeMap.from_box(Gaussian(0.5), [-2.0, -2.0], [2.0, 2.0], 1000), GRID, 2
    return FourierMap.from_kernel(jax.random.key(0), Laplacian(0.5), 16, 1), LINE[:4], 4


def _rows(feature_map, num_rows=40, seed=0):
    return np.random.default_rng(seed).uniform(-1.5, 1.5, (num_rows, feature_map.dim))


def _brute_force(rows, feature_map, domain, num_points):
    """Distances of all databases in units of μ, one after the other, from the integers of single rows."""
    integers = feature_map.integers(len(rows))
    covered = np.asarray(feature_map.covers(rows))
    sums = [
        integers.sum(np.nan_to_num(row[None]), covered[i : i + 1], rows_planned=len(rows)) for i, row in enumerate(rows)
    ]
    total = integers.released(sum(sums))
    with jax.enable_x64(True):
        features = np.asarray(feature_map(domain), np.float64)
    databases = list(itertools.combinations_with_replacement(range(len(domain)), num_points))
    wanted = total / (integers.units * len(rows))
    distances = [np.linalg.norm(wanted - features[list(chosen)].mean(axis=0)) for chosen in databases]
    return databases, np.array(distances), integers


LATTICE_IS_SLOW = [pytest.param(name, marks=pytest.mark.slow if name == "lattice" else ()) for name in NAMES]


@pytest.mark.parametrize("name", LATTICE_IS_SLOW)
def test_probabilities_are_those_of_brute_force(name):
    feature_map, domain, num_points = _case(name)
    rows = _rows(feature_map)
    databases, distances, integers = _brute_force(rows, feature_map, domain, num_points)
    compared = compare_databases(rows, feature_map, domain, num_points, budget=BUDGET)
    chosen, probabilities = compared.databases, compared.probabilities(BUDGET.epsilon)
    assert [tuple(row) for row in chosen] == databases
    assert len(databases) == math.comb(len(domain) + num_points - 1, num_points)
    drawn = exponential_mechanism(rows, feature_map, domain, num_points, budget=BUDGET, key=jax.random.key(0))
    steps = integers.units * len(rows)
    expected = np.exp(-np.floor(distances * steps) / (drawn.scale * steps))
    np.testing.assert_allclose(probabilities, expected / expected.sum(), rtol=1e-12)
    assert drawn.scale == pytest.approx(2 * drawn.sensitivity / BUDGET.epsilon, rel=1e-12)
    diameter = integers.certain_diameter if integers.failure_probability else integers.diameter
    assert drawn.sensitivity == pytest.approx(diameter / steps, rel=1e-5)
    assert drawn.num_databases == len(databases)


@pytest.mark.parametrize("name", LATTICE_IS_SLOW)
def test_no_row_changes_a_distance_by_more_than_the_sensitivity(name):
    """Nor a probability by more than e^ε. Both are computed, not estimated."""
    feature_map, domain, num_points = _case(name)
    first = _rows(feature_map)
    drawn = exponential_mechanism(first, feature_map, domain, num_points, budget=BUDGET, key=jax.random.key(0))
    largest, ratios = 0.0, []
    _, before, _ = _brute_force(first, feature_map, domain, num_points)
    of_first = compare_databases(first, feature_map, domain, num_points, budget=BUDGET).probabilities(1.0)
    for row in (*_rows(feature_map, 10, seed=1), np.full(feature_map.dim, np.nan), np.full(feature_map.dim, 2.0)):
        second = np.concatenate([first[:-1], row[None]])
        _, after, _ = _brute_force(second, feature_map, domain, num_points)
        largest = max(largest, np.abs(after - before).max())
        of_second = compare_databases(second, feature_map, domain, num_points, budget=BUDGET).probabilities(1.0)
        ratios.append(np.abs(np.log(of_second / of_first)).max())
    assert 0.01 * drawn.sensitivity < largest <= drawn.sensitivity
    assert max(ratios) <= BUDGET.epsilon


def test_the_sensitivity_is_reached():
    """All rows are at one end, one moves to the other end, and the database is at that end."""
    domain = np.array([[-20.0], [20.0]])
    feature_map = SubspaceMap.from_points(Gaussian(0.5), domain)
    ends = np.full((2, 1), -20.0), np.array([[-20.0], [20.0]])
    distances = [_brute_force(rows, feature_map, domain, 1)[1] for rows in ends]
    drawn = exponential_mechanism(ends[0], feature_map, domain, 1, budget=BUDGET, key=jax.random.key(0))
    assert np.abs(distances[1] - distances[0]).max() == pytest.approx(drawn.sensitivity, rel=1e-5)


@pytest.mark.parametrize("key", [None, pytest.param(3, marks=pytest.mark.long)])
def test_draws_have_the_probabilities(key):
    feature_map, domain, num_points = _case("subspace")
    domain, rows = domain[::3], _rows(feature_map)
    compared = compare_databases(rows, feature_map, domain, num_points, budget=BUDGET)
    databases, probabilities = compared.databases, compared.probabilities(BUDGET.epsilon)
    assert "SENSITIVE" in repr(compared)
    keys = [None] * 150 if key is None else jax.random.split(jax.random.key(key), 150)
    counts = np.zeros(len(databases))
    for one in keys:
        drawn = exponential_mechanism(rows, feature_map, domain, num_points, budget=BUDGET, key=one)
        indices = np.searchsorted(domain[:, 0], drawn.sample.points[:, 0])
        counts[np.flatnonzero((databases == indices).all(axis=1))] += 1
    assert drawn.secure is (key is None)
    assert ("NOT PRIVATE" in repr(drawn)) is (key is not None)
    np.testing.assert_array_equal(drawn.sample.weights, 1 / num_points)
    # Rare databases are counted together: a single one of an expected 0.01 would already be far out.
    rare = 150 * probabilities < 5
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, 150 * probabilities))
    assert len(observed) >= 4
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-6


@pytest.mark.parametrize("noise", ["gumbel", "exponential"])
def test_the_noisy_maximum_has_its_law(noise):
    """Two scores: the law of a difference of two Gumbel or exponential variables."""
    scores, scale, runs = np.array([0, -3]), 2.0, 1500
    wins = sum(secure.noisy_max(scores, scale, noise) == 0 for _ in range(runs))
    expected = 1 / (1 + math.exp(-1.5)) if noise == "gumbel" else 1 - math.exp(-1.5) / 2
    assert scipy.stats.binomtest(wins, runs, expected).pvalue > 1e-6


def test_permute_and_flip_is_closer():
    feature_map, domain, num_points = _case("subspace")
    rows, budget = _rows(feature_map), PrivacyBudget(0.5, 0.0)
    databases, distances, _ = _brute_force(rows, feature_map, domain, num_points)
    of_database = dict(zip(databases, distances, strict=True))
    means = {}
    for selection in ("exponential", "permute_and_flip"):
        drawn = [
            exponential_mechanism(
                rows, feature_map, domain, num_points, budget=budget, selection=selection, key=jax.random.key(i)
            )
            for i in range(100)
        ]
        indices = [tuple(np.searchsorted(domain[:, 0], one.sample.points[:, 0])) for one in drawn]
        means[selection] = np.mean([of_database[index] for index in indices])
    assert distances.min() < means["permute_and_flip"] < means["exponential"]


def test_the_law_is_the_same_in_blocks():
    feature_map, domain, num_points = _case("subspace")
    rows, calls = _rows(feature_map), []
    whole = compare_databases(rows, feature_map, domain, num_points, budget=BUDGET)
    parts = compare_databases(
        rows,
        feature_map,
        domain,
        num_points,
        budget=BUDGET,
        entries_at_once=70,
        progress=lambda *done: calls.append(done),
    )
    np.testing.assert_array_equal(parts.distances, whole.distances)
    assert calls[-1] == (len(whole.databases), len(whole.databases))
    assert len(calls) > 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_points": 0}, "num_points must be at least 1"),
        ({"num_points": 40}, "7 points make 9366819 databases of 40 rows, and at most 1048576 are compared"),
        ({"num_points": 60_000}, "more than 10\\^12 databases"),
        ({"most_databases": 5}, "at most 5 are compared"),
        ({"domain": np.zeros((3, 2))}, "domain: "),
        ({"domain": np.full((3, 1), np.nan)}, "domain"),
        ({"selection": "best"}, "selection must be 'exponential' or 'permute_and_flip', got 'best'"),
        ({"budget": PrivacyBudget(1.0, 0.0, "add_remove")}, "relation: "),
        ({"budget": PrivacyBudget(1.0, 0.4)}, "delta must be below 1/N"),
        ({"rows": np.zeros(3)}, "rows"),
        ({"rows": np.zeros((0, 1))}, "rows"),
        ({"rows": np.zeros((1, 1))}, "a release needs at least 2 rows"),
    ],
)
def test_what_cannot_be_is_refused(change, message, monkeypatch):
    """In one line, and before a private row is read, unless the rows have a wrong shape."""
    feature_map, domain, num_points = _case("subspace")
    arguments = {"rows": _rows(feature_map), "feature_map": feature_map, "domain": domain, "num_points": num_points,
                 "budget": BUDGET} | change  # fmt: skip
    if "rows" not in change:
        monkeypatch.setattr("kme_jax.algorithms.small_databases.integer_embedding", None)
    with pytest.raises(ValueError, match=message) as error:
        exponential_mechanism(**arguments)
    assert "\n" not in str(error.value)


def test_a_domain_beyond_the_box_is_refused():
    lattice, domain, _ = _case("lattice")
    with pytest.raises(ValueError, match="domain: some have no features"):
        exponential_mechanism(_rows(lattice), lattice, domain * 9, 2, budget=BUDGET)


def test_a_diameter_that_may_fail_is_paid_for():
    """A budget with δ may use the smaller diameter, and δ is then its failure probability."""
    feature_map = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 2000, 1)
    rows, key = _rows(feature_map), jax.random.key(0)
    drawn = [
        exponential_mechanism(rows, feature_map, LINE[:3], 1, budget=PrivacyBudget(1.0, delta), key=key)
        for delta in (0.0, 1e-6)
    ]
    assert drawn[0].delta == 0
    assert drawn[1].delta == pytest.approx(feature_map.failure_probability)
    assert drawn[1].sensitivity < drawn[0].sensitivity
    integers = integer_embedding(feature_map, rows).integer_map
    assert drawn[1].sensitivity == pytest.approx(integers.diameter / integers.units / len(rows), rel=1e-5)
