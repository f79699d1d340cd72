import math

import jax
import numpy as np
import pytest

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    Measurement,
    NormalProposal,
    PrivacyBudget,
    integer_embedding,
    integer_embedding_of_batches,
    measure,
    posterior_mean,
    release,
    represent,
    spectral_map,
)
from kme_jax.points.measure import plan_map
from kme_jax.privacy.perturb import perturb_integers
from kme_jax.storage.folders import ReleaseError
from tests import compiled
from tests.arguments import arguments

BOUNDS = Bounds.create([-2.0, 0.0], [2.0, 1000.0], ["left", "right"])
KERNEL = Gaussian(50.0)  # a length of 0.1


@pytest.mark.parametrize(
    ("lower", "upper", "names", "match"),
    [
        ([0], [1, 2], None, "as many lower as upper"),
        ([], [], None, "as many lower"),
        ([0, 1], [1, 1], None, "bounds of x2"),
        ([0, math.nan], [1, 1], ["a", "b"], "bounds of b"),
        ([-1.7e308], [1.7e308], None, "bounds of x1"),
        ([0, 0], [1, 1], ["a"], "one pair for each of 1 columns"),
        ([0, 0], [1, 1], ["a", "a"], "different"),
    ],
)
def test_bounds_that_are_refused(lower, upper, names, match):
    with pytest.raises(ValueError, match=match):
        Bounds.create(lower, upper, names)


def test_every_entry_is_mapped_by_itself(rng):
    rows = np.array([[-2, 0], [2, 1000], [0, 250], [np.nan, -1e300], [np.inf, -np.inf], [1e308, np.nan]])
    unit = BOUNDS.to_unit(rows)
    np.testing.assert_array_equal(unit, [[0, 0], [1, 1], [0.5, 0.25], [0.5, 0], [1, 0], [1, 0.5]])
    inside = rng.uniform([-2, 0], [2, 1000], (100, 2))
    np.testing.assert_allclose(BOUNDS.from_unit(BOUNDS.to_unit(inside)), inside, rtol=1e-14, atol=1e-12)
    np.testing.assert_array_equal(BOUNDS.from_unit(np.array([[-1.0, 3.0]])), [[-2, 1000]])


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_rows_within_odd_bounds_are_within_the_unit_box(scale, rng):
    bounds = Bounds.create([0.1 * scale], [0.7 * scale])
    unit = bounds.to_unit(rng.uniform(0, scale, (1000, 1)))
    assert unit.min() == 0
    assert unit.max() == 1
    back = bounds.from_unit(unit)
    assert (back >= 0.1 * scale).all()
    assert (back <= 0.7 * scale).all()


def test_the_map_covers_every_clamped_row(rng):
    """Of a lattice over the unit box and of random frequencies; so no row counts as zero."""
    rows = rng.normal(0, 1e4, (500, 2))
    rows[0] = np.nan
    for kernel in (KERNEL, Laplacian(5.0)):
        feature_map = plan_map(kernel, BOUNDS.proposal, num_features=2000, bounded=True)
        assert isinstance(feature_map, LatticeMap if kernel is KERNEL else FourierMap)
        assert feature_map.covers(BOUNDS.to_unit(rows)).all()
        whole = integer_embedding(feature_map, rows, bounds=BOUNDS)
        batches = integer_embedding_of_batches(feature_map, [rows[:200], rows[200:]], 500, bounds=BOUNDS)
        np.testing.assert_array_equal(whole.total, batches.total)
        np.testing.assert_array_equal(whole.total, integer_embedding(feature_map, BOUNDS.to_unit(rows)).total)


def test_a_box_is_what_the_lattice_is_for():
    proposal = NormalProposal.create(np.zeros(1), 10.0)
    narrow = spectral_map(jax.random.key(0), KERNEL, proposal, 400, box=(np.zeros(1), np.ones(1)))
    assert narrow.covers(np.array([[0.0], [1.0]])).all()
    assert not narrow.covers(np.array([[1.1]])).any()
    assert narrow.num_features < 60
    with pytest.raises(ValueError, match="the box reaches beyond it: use a kernel with a larger length"):
        spectral_map(jax.random.key(0), Laplacian(1e6), proposal, 400, box=(np.zeros(1), np.ones(1)))


@pytest.mark.long
def test_points_stay_in_the_box(rng):
    """Rows on a bound, where a mixture of normal distributions has half of its mass outside."""
    rows = np.where(rng.uniform(size=(5000, 1)) < 0.7, 0, rng.uniform(size=(5000, 1)))
    feature_map = plan_map(KERNEL, Bounds.create([0], [1]).proposal, bounded=True)
    noisy = perturb_integers(jax.random.key(1), integer_embedding(feature_map, rows), PrivacyBudget(0.5, 1e-6))
    proposal = NormalProposal.from_bounds([0], [1])
    mean, _ = posterior_mean(jax.random.key(0), noisy, proposal, num_atoms=20, num_trajectories=4, num_leaps=10)
    free, _ = represent(mean, 50, num_steps=100)
    kept, report = represent(mean, 50, box=(np.zeros(1), np.ones(1)), num_steps=100)
    assert free.points.min() < 0 <= kept.points.min()
    truth = integer_embedding(feature_map, rows)
    exact = truth.total / (truth.integer_map.units * len(rows))
    distance = np.linalg.norm(
        kept.weights @ np.asarray(compiled.features(feature_map, kept.points.astype(np.float32))) - exact
    )
    assert distance < 0.05
    assert report.gap < 1
    for num_points in (2000, 4000):  # which are not moved, or not even weighed
        assert represent(mean, num_points, box=(np.zeros(1), np.ones(1)))[0].points.min() >= 0


@pytest.mark.slow
def test_a_measurement_is_a_release_without_points(tmp_path, rng):
    rows = rng.uniform([-2, 0], [2, 1000], (400, 2))
    points = rng.uniform([-2, 0], [2, 1000], (30, 2))
    options = arguments(bounds=BOUNDS)
    measured = measure(rows, KERNEL, points, **options, folder=tmp_path / "measured")
    again = Measurement.load(tmp_path / "measured")
    np.testing.assert_array_equal(again.noisy.coordinates, measured.noisy.coordinates)
    assert again.bounds.names == ("left", "right")
    made = again.synthesise()
    np.testing.assert_allclose(made.sample.points, points, rtol=1e-12)
    assert made.sample.weights.min() >= 0
    np.testing.assert_allclose(made.sample.expectation(lambda z: z), rows.mean(axis=0), rtol=0.3, atol=0.3)
    names = sorted(path.name for path in (tmp_path / "measured").iterdir())
    assert names == ["manifest.json", "privacy.json", "release.npz"]
    with pytest.raises(ReleaseError, match="exists"):
        measure(rows, KERNEL, points, **options, folder=tmp_path / "measured")


def test_a_proposal_in_the_units_of_the_rows(rng):
    rows = rng.uniform([-2, 0], [2, 1000], (400, 2))
    proposal = NormalProposal.create([1.0, 250.0], [0.4, 100.0])
    measured = measure(rows, KERNEL, proposal, budget=PrivacyBudget(1.0, 1e-6), bounds=BOUNDS)
    np.testing.assert_allclose(measured.proposal.mean, [0.75, 0.25])
    np.testing.assert_allclose(measured.proposal.scale, [0.1, 0.1])


@pytest.mark.parametrize(
    ("public", "bounds", "match"),
    [
        (None, None, "give bounds, public points or a proposal"),
        (np.ones((4, 3)), BOUNDS, "points: expected 2 columns"),
        (NormalProposal.create(np.zeros(3), 1.0), BOUNDS, "proposal: expected 2 columns"),
        (np.array([[0.0, np.nan]]), BOUNDS, "row 0 is NaN"),
    ],
)
def test_what_is_public_has_to_fit(public, bounds, match):
    with pytest.raises(ValueError, match=match):
        release(np.ones((50, 2)), KERNEL, public, budget=PrivacyBudget(1.0, 1e-6), bounds=bounds)
