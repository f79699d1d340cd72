import subprocess
import sys
from fractions import Fraction

import jax
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    SubspaceMap,
    integer_embedding,
    integer_embedding_of_batches,
    mean_embedding,
)
from kme_jax._numerics.exact import exact_product
from kme_jax._numerics.precision import float64
from kme_jax.feature_maps.waves import CosSin, IntegerCosSin
from tests import compiled

NUM_ROWS = 5000


def _fourier(dim=3):
    return FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 600, dim)


def _lattice():
    return LatticeMap.from_box(Gaussian(0.5), [-6.0, -6.0], [6.0, 6.0])


def _subspace(kernel=None):
    points = np.random.default_rng(1).normal(0, 2, (150, 3))
    return SubspaceMap.from_points(kernel or Gaussian(0.5), points)


MAPS = {
    "fourier": _fourier,
    "fourier, 10 columns": lambda: _fourier(10),
    "lattice": _lattice,
    "subspace": _subspace,
    "subspace, Laplacian": lambda: _subspace(Laplacian(0.5)),
}


SUMMED = ("fourier", "lattice", "subspace")  # one of each class; tests of the others are slow


@pytest.fixture(
    params=[
        pytest.param(make, id=name, marks=() if name in SUMMED else pytest.mark.slow) for name, make in MAPS.items()
    ]
)
def feature_map(request):
    return request.param()


def _rows(dim, num_rows=NUM_ROWS):
    rows = np.random.default_rng(2).normal(0, 1.5, (num_rows, dim))
    rows[::97] = np.nan  # counts as the zero vector
    return rows


def _features(feature_map, rows):
    with float64():
        dtype = np.float64 if isinstance(feature_map, SubspaceMap) else np.float32
        return np.asarray(compiled.features(feature_map, jax.numpy.asarray(rows, dtype)), np.float64)


def _one(feature_map, row):
    """What is released of one row."""
    embedding = integer_embedding(feature_map, row[None, :])
    return embedding.integer_map.released(embedding.total)


def test_integers_are_the_features_in_units(feature_map):
    rows = _rows(feature_map.dim)
    embedding = integer_embedding(feature_map, rows)
    integers = embedding.integer_map
    released = integers.released(embedding.total)
    assert released.dtype == np.int64
    assert released.shape == (feature_map.num_features,)
    mean = mean_embedding(feature_map, rows)
    found = released / (integers.units * NUM_ROWS)
    # Roundings of single rows average out, so this is far below the share of rounding in the diameter.
    assert np.linalg.norm(found - mean.coordinates) < 1e-4
    assert embedding.num_rows == NUM_ROWS
    assert "SENSITIVE" in repr(embedding)
    assert str(embedding.total[0]) not in repr(embedding)


@pytest.mark.parametrize("sizes", [(7, 1025), pytest.param((1, 1024, 4999), marks=pytest.mark.slow)], ids=str)
def test_sums_do_not_depend_on_order_or_batches(feature_map, sizes):
    rows = _rows(feature_map.dim)
    expected = integer_embedding(feature_map, rows).total
    rng = np.random.default_rng(3)
    for size in sizes:
        shuffled = rows[rng.permutation(NUM_ROWS)]
        head = shuffled[: min(NUM_ROWS, 10 * size)]  # in batches of one row, not all of them
        batches = [head[i : i + size] for i in range(0, len(head), size)] + [shuffled[len(head) :]]
        found = integer_embedding_of_batches(feature_map, batches, NUM_ROWS)
        np.testing.assert_array_equal(found.total, expected, err_msg=f"batches of {size}")


def test_a_float32_sum_of_the_same_rows_depends_on_their_order():
    """Which is why there are integers."""
    fourier, rows = _fourier(), _rows(3)
    shuffled = rows[np.random.default_rng(3).permutation(NUM_ROWS)]
    first, second = (mean_embedding(fourier, some).coordinates for some in (rows, shuffled))
    assert (first != second).mean() > 0.5


@pytest.mark.long
def test_sums_do_not_depend_on_the_number_of_devices():
    code = """
import os
os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
import jax, numpy as np
from kme_jax import integer_embedding
from tests.test_integer import MAPS, SUMMED, _rows
for name in SUMMED:
    feature_map = MAPS[name]()
    rows = _rows(feature_map.dim)
    totals = [integer_embedding(feature_map, rows, devices=jax.devices()[:n]).total for n in (1, 3, 8)]
    print(name, all((total == totals[0]).all() for total in totals), totals[0].any())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"{name} True True" for name in SUMMED]


def test_neighbours_are_within_the_diameter_and_some_attain_it(feature_map):
    """Pairs of rows far from each other, and a row that counts as zero."""
    integers = feature_map.integers(1)
    rng = np.random.default_rng(4)
    if isinstance(feature_map, SubspaceMap):
        far = feature_map.points[rng.permutation(len(feature_map.points))[:60]]
    else:
        far = rng.uniform(-5.9, 5.9, (60, feature_map.dim))
    vectors = [_one(feature_map, row) for row in [*far, np.full(feature_map.dim, np.nan)]]
    distances = [np.linalg.norm((a - b).astype(float)) for a in vectors for b in vectors]
    assert max(distances) <= integers.diameter <= integers.certain_diameter
    # Random frequencies: the proof is for all pairs of rows, and a few draws do not find the worst.
    assert max(distances) > (0.75 if isinstance(feature_map, FourierMap) else 0.99) * integers.diameter
    # Rounding costs next to nothing.
    assert integers.diameter <= 1.001 * integers.units * feature_map.diameter


def test_no_row_is_longer_than_is_enforced():
    fourier = _fourier()
    integers = fourier.integers(1)
    norms = [np.linalg.norm(_one(fourier, row).astype(float)) for row in _rows(3, 50)[1:]]
    assert 0.999 * integers.certain_diameter / 2 < max(norms) <= integers.certain_diameter / 2


def test_features_that_were_computed_wrongly_count_as_zero():
    """A cosine of 2, of which no device is safe: the sensitivity holds all the same."""

    class Broken(CosSin):
        def __call__(self, turns, rows):
            cos, sin = super().__call__(turns, rows)
            return jax.numpy.where(cos > 0.9, 2 * cos, cos), sin

    class Integers(IntegerCosSin):
        values = Broken()

    cos, sin = Integers()(np.array([[0.0, 32000.0], [0.25, 32000.0]], np.float32), np.array([[1.0]], np.float32))
    np.testing.assert_array_equal(cos, [[0], [0]])
    np.testing.assert_array_equal(sin, [[0], [32000]])


@pytest.mark.parametrize("size", [1, 700])
def test_exact_product_is_the_rational_one(size, rng):
    matrix = np.tril(rng.normal(size=(size, size)) * 10.0 ** rng.integers(-8, 5, (size, size)))
    vector = rng.integers(-(2**61), 2**61, size)
    found = exact_product(matrix, vector, 40)
    for row in range(0, size, 97):
        exact = sum(
            Fraction(round(Fraction(a) * 2**40), 2**40) * int(v) for a, v in zip(matrix[row], vector, strict=True)
        )
        assert abs(found[row] - exact) <= Fraction(1, 2)
    assert exact_product(np.zeros((2, 2)), np.array([1, -1]), 40).tolist() == [0, 0]


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(ValueError, match="rows can be summed"):
        _fourier().integers(2**50)
    with pytest.raises(ValueError, match="more than can be summed exactly"):
        _subspace().integers(2**50)
    with pytest.raises(ValueError, match="float32"):
        FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 20, 2, dtype=np.float64).integers(10)
    with pytest.raises(ValueError, match="rows: expected at least one row"):
        integer_embedding(_fourier(), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="expected 12, got 10"):
        integer_embedding_of_batches(_fourier(), [np.zeros((10, 3))], 12)
    with pytest.raises(ValueError, match="expected 3 columns, got 2"):
        integer_embedding(_fourier(), np.zeros((10, 2)))


def test_more_rows_than_fit_an_int32():
    """2^17 rows of the largest feature, 32000."""
    fourier = FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 4, 1)
    embedding = integer_embedding(fourier, np.zeros((2**17, 1)))
    assert embedding.total.tolist() == [32000 * 2**17] * 2 + [0, 0]


def test_rows_in_memory_are_scaled_in_parts():
    """The same sum, and progress over all of them."""
    from kme_jax import embedding

    feature_map = LatticeMap.from_box(Gaussian(0.5), [-6.0, -6.0], [6.0, 6.0])
    rows = np.random.default_rng(0).normal(0, 1, (1000, 2))
    whole = integer_embedding(feature_map, rows).total
    steps, batches = [], list(embedding.batches_of(rows, 300))
    assert [len(batch) for batch in batches] == [300, 300, 300, 100]
    parts = embedding.integer_embedding_of_batches(
        feature_map, batches, 1000, progress=lambda *done: steps.append(done)
    ).total
    np.testing.assert_array_equal(whole, parts)
    assert steps[-1] == (1000, 1000)
    assert steps == sorted(steps)
    assert len({done for done, _ in steps}) >= 4
