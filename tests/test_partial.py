"""Partial sums: they add up to the last bit, and what does not belong together is refused."""

import dataclasses
import json
import pickle

import jax
import numpy as np
import pyarrow as pa
import pytest

from kme_jax import (
    Bounds,
    Exponential,
    FourierMap,
    Gaussian,
    LabelledMap,
    Laplacian,
    LatticeMap,
    MixedMap,
    Polynomial,
    PolynomialMap,
    QuadratureMap,
    RandomBinningMap,
    RandomMaclaurinMap,
    SubspaceMap,
    TensorSketchMap,
    integer_embedding,
)
from kme_jax.feature_maps.table import TableMap
from kme_jax.partial import Partial, PartialError, PointEncoding, Task, combine, merge, partial_sums

NAMES = ("x", "y")
NUM_ROWS = 3000


def _rows(num_rows=NUM_ROWS, seed=0):
    rows = np.random.default_rng(seed).normal(size=(num_rows, 2))
    rows[::97, 0] = np.nan
    return rows


def _subspace():
    return SubspaceMap.from_points(Gaussian(gamma=0.5), np.random.default_rng(1).normal(size=(20, 2)))


def _fourier():
    return FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), 64, 2)


MAPS = {"subspace": _subspace, "fourier": _fourier, "codes": lambda: TableMap.of_codes(5)}


def _task(name="subspace", num_rows=NUM_ROWS, **fields):
    return Task(MAPS[name](), PointEncoding(NAMES[: 1 + (name != "codes")]), num_rows, **fields)


def _parts(rows, num_parts):
    """Parts of different sizes; one of them has no rows, and one has several batches."""
    sizes = np.arange(num_parts) / max(1, sum(range(num_parts))) * len(rows)
    ends = [*np.cumsum(sizes).astype(int)[:-1], len(rows)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        table = pa.table({name: rows[start:end, i] for i, name in enumerate(NAMES)})
        yield table.to_batches(max_chunksize=701)


def _partials(rows, task, num_parts):
    parts = enumerate(_parts(rows, num_parts))
    return [partial_sums(batches, task, part=i, num_parts=num_parts) for i, batches in parts]


@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize("name", MAPS)
def test_parts_add_up_to_the_last_bit(name, num_parts):
    rows = np.floor(np.abs(_rows()) * 2) if name == "codes" else _rows()
    task = _task(name)
    expected = integer_embedding(task.feature_map, rows[:, : task.feature_map.dim])
    partials = _partials(rows, task, num_parts)
    found = merge(partials[::-1], task)
    np.testing.assert_array_equal(found.total, expected.total)
    assert found.num_rows == NUM_ROWS
    assert expected.total.any()


def test_partials_are_combined_in_groups():
    task, rows = _task(), _rows()
    partials = _partials(rows, task, 7)
    expected = merge(partials, task).total
    groups = [combine(partials[4:], task), combine([partials[2], partials[0]], task), *partials[1:4:2]]
    np.testing.assert_array_equal(merge([combine(groups[1:], task), groups[0]], task).total, expected)
    with pytest.raises(PartialError, match=r"^partials: part 0, 2 is there twice; give each part once$"):
        merge([*groups, groups[1]], task)
    with pytest.raises(PartialError, match=r"^partials: part 1, 3 is missing; sum it too$"):
        merge(groups[:2], task)


def test_bounds_scale_the_rows_of_every_part():
    bounds = Bounds.create([-1, -2], [1, 2], NAMES)
    task = Task(_subspace(), PointEncoding(NAMES, bounds), NUM_ROWS)
    rows = _rows()
    expected = integer_embedding(task.feature_map, rows, bounds=bounds).total
    np.testing.assert_array_equal(merge(_partials(rows, task, 3), task).total, expected)


def test_a_private_number_of_rows():
    task = _task(num_rows=10**6, rows_are_public=False)
    embedding = merge(_partials(_rows(), task, 3), task)
    assert embedding.num_rows == NUM_ROWS
    assert not embedding.has_public_count
    nothing = merge([partial_sums([], task)], task, num_rows=0)
    assert not nothing.total.any()
    assert nothing.total.shape == embedding.total.shape


@pytest.mark.parametrize("name", MAPS)
def test_a_task_travels_by_pickle_and_by_json(name):
    task = dataclasses.replace(_task(name), run="r", measurement="m")
    by_json = Task.from_json(json.loads(json.dumps(task.to_json())))
    by_pickle = pickle.loads(pickle.dumps(task))
    assert {task.digest} == {by_json.digest, by_pickle.digest}
    parts = list(_parts(_rows(), 2))
    mixed = [partial_sums(parts[0], by_json, num_parts=2), partial_sums(parts[1], by_pickle, part=1, num_parts=2)]
    np.testing.assert_array_equal(merge(mixed, task).total, merge(_partials(_rows(), task, 1), task).total)


@pytest.mark.parametrize(
    "change", [{"rows_planned": NUM_ROWS + 1}, {"feature_map": _fourier()}, {"encoding": PointEncoding(("y", "x"))}]
)
def test_the_digest_is_of_what_decides_the_integers(change):
    task = _task()
    assert dataclasses.replace(task, **change).digest != task.digest
    assert dataclasses.replace(task, run="other", measurement="other").digest == task.digest


def test_types_of_columns_have_no_influence():
    task = _task("subspace", 4)
    texts = pa.record_batch({"x": ["1", "0.5", "", "no"], "y": pa.array([1, 2, 3, None], pa.int8())})
    numbers = pa.record_batch({"y": pa.array([1.0, 2, 3, None]), "z": [0] * 4, "x": [1, 0.5, None, np.nan]})
    np.testing.assert_array_equal(
        merge([partial_sums([texts], task)], task).total, merge([partial_sums([numbers], task)], task).total
    )


def _changed(batch, **changes):
    (partial,) = Partial.of_batch(batch)
    return dataclasses.replace(partial, **changes).to_batch()


def _with_cell(batch, name, value):
    place = batch.schema.names.index(name)
    return batch.set_column(place, batch.schema.field(name), pa.array([value], batch.schema.field(name).type))


REFUSED = {
    "partials: expected at least one, got none": lambda p: [],
    "partials: part 1 is there twice; give each part once": lambda p: [*p, p[1]],
    "partials: part 2 is missing; sum it too": lambda p: p[:2],
    "part 0: it was summed for another map, schema or number of rows": lambda p: [_changed(p[0], task="0"), *p[1:]],
    "part 0: it is of another run or measurement; leave it out": (lambda p: [_changed(p[0], run="other"), *p[1:]]),
    "part 1: it is of another run or measurement; leave it out ": (
        lambda p: [p[0], _changed(p[1], measurement="other"), p[2]]
    ),
    "partials: they come from different kinds of devices: ": lambda p: [_changed(p[0], device="gpu H0"), *p[1:]],
    "partials: they come from different versions of the libraries: ": (
        lambda p: [_changed(p[0], library="kme_jax 0.0.1"), *p[1:]]
    ),
    "part 2: expected 19 sums, got 18; sum it again": (lambda p: [*p[:2], _changed(p[2], sums=np.zeros(18, np.int64))]),
    "part 0: the number of rows is negative; sum it again": lambda p: [_changed(p[0], num_rows=-1), *p[1:]],
    "part 0: its sums are beyond the range of exact sums, 2^61; sum the rows again": (
        lambda p: [_changed(p[0], sums=np.full(19, -(2**61))), *p[1:]]
    ),
    "partials: their sums are beyond the range of exact sums, 2^61; sum the rows again": (
        lambda p: [_changed(p[0], sums=np.full(19, 2**61 - 1)), *p[1:]]
    ),
    "partials: a row is damaged (its checksum differs); sum its part again": (
        lambda p: [_with_cell(p[0], "sensitive_sums", [1] * 19), *p[1:]]
    ),
    "partials: a row is damaged (a value is missing); sum its part again": (
        lambda p: [_with_cell(p[0], "num_rows", None), *p[1:]]
    ),
    "partials: a part is missing, or the rows have changed while they were summed (3000 expected, 2999 found)": (
        lambda p: [*p[:2], _changed(p[2], num_rows=Partial.of_batch(p[2])[0].num_rows - 1)]
    ),
    "partials: they have more than the 3000 rows that are planned": (lambda p: [*p[:2], _changed(p[2], num_rows=3000)]),
    "partials: they say different numbers of parts; split the rows once": (
        lambda p: [*p[:2], _changed(p[2], num_parts=4)]
    ),
    "part 0, 0: it has no valid numbers of parts; sum it again": lambda p: [_changed(p[0], parts=(0, 0)), *p[1:]],
    "part without a number: it has no valid numbers of parts; sum it again": lambda p: [
        _changed(p[0], parts=()),
        *p[1:],
    ],
    "part 3: it has no valid numbers of parts; sum it again": lambda p: [_changed(p[0], parts=(3,)), *p[1:]],
    "partials: part 1 is there twice; give each part once ": lambda p: [_changed(p[0], parts=(0, 1)), *p[1:]],
    "partials: expected rows of Arrow data with the columns of partial_sums": lambda p: [p[0].select(["run"])],
    "partials: a column has another type than in a partial; sum the rows again": (
        lambda p: [p[0].set_column(3, "num_parts", pa.array(["one"]))]
    ),
}


@pytest.fixture(scope="module")
def three_parts():
    task = _task()
    return task, _partials(_rows(), task, 3)


@pytest.mark.parametrize("text", REFUSED)
def test_what_does_not_belong_together_is_refused(text, three_parts):
    task, partials = three_parts
    with pytest.raises(PartialError) as error:
        merge(REFUSED[text](partials), task)
    assert str(error.value).startswith(text.strip())
    assert "\n" not in str(error.value)
    assert merge(partials, task).num_rows == NUM_ROWS


def test_an_unknown_number_of_parts_needs_the_number_of_rows():
    task = _task(num_rows=10**6, rows_are_public=False)
    partials = [partial_sums(b, task, part=i, num_parts=0) for i, b in enumerate(_parts(_rows(), 3))]
    with pytest.raises(PartialError, match=r"^partials: they do not say how many parts there are; give num_rows$"):
        merge(partials, task)
    assert merge(partials, task, num_rows=NUM_ROWS).num_rows == NUM_ROWS
    with pytest.raises(PartialError) as error:
        merge(partials[:2], task, num_rows=NUM_ROWS)
    assert str(error.value) == "partials: a part is missing, or the rows have changed while they were summed"


def test_a_part_of_more_rows_than_planned_is_refused():
    with pytest.raises(PartialError, match=r"^rows: a part has more than the 2999 rows that are planned$"):
        _partials(_rows(), _task(num_rows=NUM_ROWS - 1), 1)


def test_partials_say_that_they_are_sensitive(three_parts):
    task, partials = three_parts
    (partial,) = Partial.of_batch(partials[2])
    assert "SENSITIVE" in repr(partial)
    assert str(partial.sums[0]) not in repr(partial)
    assert "sensitive_sums" in partials[0].schema.names
    assert "N = 3000" in repr(task)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rows_planned": 0}, "rows_planned"),
        ({"run": 3}, "run: expected str, got int"),
        ({"encoding": "x"}, "a task needs a feature map and a row encoding"),
    ],
)
def test_invalid_tasks_are_refused(fields, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(_task(), **fields)


def test_damaged_json_of_a_task_is_refused():
    document = _task().to_json()
    for change in ({"version": 2}, {"encoding": "unknown"}, {"map": 3}, {"arrays": {}}, {"rows": {}}):
        with pytest.raises(ValueError, match=r"task|encoding|expected"):
            Task.from_json(document | change)
    with pytest.raises(ValueError, match="it is no task of partial sums"):
        Task.from_json({})


def test_a_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"^rows: expected one column y$"):
        partial_sums([pa.record_batch({"x": [1.0]})], _task())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["lattice", "quadrature", "binning", "polynomial", "maclaurin", "sketch", "labelled", "mixed"]
)
def test_every_other_map_travels_and_adds_up(kind):
    key, kernel = jax.random.key(0), Gaussian(gamma=0.5)
    rows = np.random.default_rng(0).uniform(size=(NUM_ROWS, 2))
    rows[:, 1] = np.floor(3 * rows[:, 1]) if kind in ("labelled", "mixed") else rows[:, 1]
    feature_map = {
        "lattice": lambda: LatticeMap.from_box(kernel, np.zeros(2), np.ones(2)),
        "quadrature": lambda: QuadratureMap.from_box(kernel, np.zeros(2), np.ones(2)),
        "binning": lambda: RandomBinningMap.from_box(key, Laplacian(2.0), np.zeros(2), np.ones(2), 16),
        "polynomial": lambda: PolynomialMap.from_kernel(Polynomial(3, 1.5), 2),
        "maclaurin": lambda: RandomMaclaurinMap.from_kernel(key, Exponential(1.0, 1.5), 16, 2),
        "sketch": lambda: TensorSketchMap.from_kernel(key, Polynomial(5, 1.5), 16, 2),
        "labelled": lambda: LabelledMap(FourierMap.from_kernel(key, kernel, 64, 1), 3),
        "mixed": lambda: MixedMap(FourierMap.from_kernel(key, kernel, 64, 1), (3,)),
    }[kind]()
    task = Task(feature_map, PointEncoding(NAMES), NUM_ROWS)
    task = Task.from_json(json.loads(json.dumps(task.to_json())))
    task = pickle.loads(pickle.dumps(task))
    expected = integer_embedding(feature_map, rows).total
    np.testing.assert_array_equal(merge(_partials(rows, task, 3), task).total, expected)
    assert expected.any()
