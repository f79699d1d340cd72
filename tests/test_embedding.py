import functools

import jax
import numpy as np
import pytest

from kme_jax import (
    Bounds,
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    Matern32,
    Matern52,
    SubspaceMap,
    integer_embedding,
    mean_embedding,
    mean_embedding_of_batches,
)
from kme_jax.embedding import integer_embedding_of_batches, private_points
from tests import reference


@pytest.fixture
def subspace(rng):
    return SubspaceMap.from_points(Gaussian(0.4), rng.normal(size=(30, 2)))


def test_mean_is_the_mean_of_the_features(subspace, rng):
    rows = rng.normal(size=(101, 2))
    alpha, *_ = reference.algorithm1(rows, subspace.points, 0.4, np.zeros(30))
    embedding = mean_embedding(subspace, rows)
    np.testing.assert_allclose(embedding.coordinates, alpha, atol=1e-10)
    assert embedding.num_rows == 101
    integers = mean_embedding(subspace, np.array([[0, 1], [2, 3]]))
    np.testing.assert_array_equal(integers.coordinates, mean_embedding(subspace, [[0.0, 1.0], [2.0, 3.0]]).coordinates)


def test_batches_give_the_same_mean(subspace, rng):
    rows = rng.normal(size=(1000, 2))
    whole = mean_embedding(subspace, rows)
    batches = mean_embedding_of_batches(subspace, (rows[i : i + 77] for i in range(0, 1000, 77)))
    np.testing.assert_allclose(batches.coordinates, whole.coordinates, atol=1e-12)
    assert batches.num_rows == 1000


def test_a_row_that_is_not_finite_counts_and_contributes_zero(subspace, rng):
    rows = rng.normal(size=(10, 2))
    broken = rows.copy()
    broken[[2, 5, 7]] = [[np.nan, 1], [np.inf, 0], [-np.inf, np.nan]]
    kept = mean_embedding(subspace, np.delete(rows, [2, 5, 7], axis=0))
    np.testing.assert_allclose(mean_embedding(subspace, broken).coordinates, kept.coordinates * 7 / 10, atol=1e-12)
    assert np.isfinite(mean_embedding(subspace, np.full((3, 2), np.nan)).coordinates).all()


def test_its_repr_shows_no_values(subspace, rng):
    embedding = mean_embedding(subspace, rng.normal(size=(10, 2)))
    assert repr(embedding) == f"MeanEmbedding(SENSITIVE, coordinates: [{subspace.num_features}], num_rows=10)"


def test_a_cell_that_is_no_number_is_missing(subspace):
    rows = [[1.0, 2.0], [0.5, None], ["3", "secret"], [10**400, 0.0]]
    expected = mean_embedding(subspace, np.array([[1.0, 2.0], [np.nan, 0], [np.nan, 0], [np.nan, 0]]))
    np.testing.assert_allclose(mean_embedding(subspace, rows).coordinates, expected.coordinates)


@functools.cache
def _two_maps(kernel, dim):
    points = np.random.default_rng(dim).normal(size=(15, dim))
    return SubspaceMap.from_points(kernel, points), FourierMap.from_kernel(jax.random.key(0), kernel, 16, dim)


@pytest.mark.parametrize(
    ("kernel", "dim"),
    [
        (Gaussian(0.4), 1),
        pytest.param(Gaussian(0.4), 20, marks=pytest.mark.slow),
        pytest.param(Matern52(1.0) + Laplacian(0.3), 1, marks=pytest.mark.slow),
        pytest.param(Matern32(1.0), 5, marks=pytest.mark.long),
        pytest.param(Matern52(1.0) + Laplacian(0.3), 20, marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_row_makes_a_release_fail(kernel, dim, dtype, rng):
    """One row, however strange, must neither raise nor turn the sum into NaN."""
    maps = _two_maps(kernel, dim)
    rows = rng.normal(size=(4, dim)).astype(dtype)
    for feature_map in maps:
        usual = mean_embedding(feature_map, rows).coordinates
        for value in (np.nan, np.inf, -np.inf, np.finfo(dtype).max, 1e30, -1e38, 1e-45):
            changed = rows.copy()
            changed[2, -1] = value
            coordinates = mean_embedding(feature_map, changed).coordinates
            assert np.isfinite(coordinates).all(), (type(feature_map), value)
            assert np.linalg.norm(coordinates - usual) <= feature_map.diameter / 4 * (1 + 1e-5)


def test_bad_rows_are_refused_by_structure_alone(subspace):
    with pytest.raises(ValueError, match="rows: expected 2 columns, got 3"):
        mean_embedding(subspace, np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"rows: expected numbers of shape \[rows, columns\], got shape \[4\]"):
        mean_embedding(subspace, np.ones(4))
    with pytest.raises(ValueError, match="rows: expected at least one row"):
        mean_embedding(subspace, np.ones((0, 2)))
    with pytest.raises(ValueError, match="rows: expected at least one row"):
        mean_embedding_of_batches(subspace, [])
    batches = mean_embedding_of_batches(subspace, [np.ones((0, 2)), np.ones((3, 2))])
    assert batches.num_rows == 3


def test_no_warning_depends_on_values():
    signalling = np.array([0x7FF0000000000001], np.uint64).view(np.float64)[0]
    rows = np.array([[0.1], [np.nan], [np.inf], [signalling], [1e-300], [1.7e308], [-1.7e308]])
    kernel = Gaussian(0.5)
    maps = [SubspaceMap.from_points(kernel, np.zeros((1, 1))), LatticeMap.from_box(kernel, [-1.0], [1.0])]
    maps.append(FourierMap.from_kernel(jax.random.key(0), kernel, 10, 1))
    wide = np.array([[np.finfo(np.longdouble).max], [0.1]], np.longdouble)
    with np.errstate(all="raise"):
        for feature_map in maps:
            assert np.isfinite(mean_embedding(feature_map, rows).coordinates).all()
            assert np.isfinite(mean_embedding(feature_map, wide).coordinates).all()


def test_a_row_has_the_same_integers_in_an_array_of_any_type(rng):
    """Also where bounds are not numbers of 32 bits, which comparisons in float32 would round."""
    inside, bound = np.float32(1.3), float(np.nextafter(np.float32(1.3), np.float32(0))) + 1e-9
    kernel = Gaussian(0.5)
    maps = [LatticeMap.from_box(kernel, [-1.0], [bound]), SubspaceMap.from_points(kernel, np.zeros((1, 1)))]
    maps.append(FourierMap.from_kernel(jax.random.key(0), kernel, 10, 1))
    rows = np.concatenate([[inside, np.float32(bound), 3e38, np.nan, np.inf, 0], rng.normal(size=50)])
    rows = rows.astype(np.float32)[:, None]
    for feature_map in maps:
        for bounds in (None, Bounds.create([-bound], [0.1])):
            several = [rows, rows.astype(np.float64), rows.astype(object), rows.astype(np.longdouble), rows.tolist()]
            totals = [integer_embedding(feature_map, some, bounds=bounds).total for some in several]
            assert all(np.array_equal(total, totals[0]) for total in totals)
            parts = (rows[i : i + 7].astype([np.float32, np.float64, object][i % 3]) for i in range(0, len(rows), 7))
            batches = integer_embedding_of_batches(feature_map, parts, len(rows), bounds=bounds)
            np.testing.assert_array_equal(batches.total, totals[0])


def test_masked_cells_are_missing_and_text_ends_before_its_nuls():
    """np.asarray forgets the mask; an array of text drops NULs at the end, and one of objects keeps them."""
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    np.testing.assert_array_equal(private_points(masked), [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(private_points(masked.astype(int)), [[1, np.nan], [3, 4]])
    for other in ("2", None):
        np.testing.assert_array_equal(private_points([["1\0"], [other]])[0], private_points(np.array([["1\0"]]))[0])
