"""Rows of numbers that are read in batches: the sums of an array, from files of any format and in any batches."""

import functools
import weakref

import jax
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from kme_jax import (
    BatchedRows,
    Bounds,
    FourierMap,
    Gaussian,
    PrivacyBudget,
    algorithm1,
    mean_embedding,
    measure,
    noisy_function,
    open_rows,
    release,
)
from kme_jax._numerics.arrow import numbers_of
from kme_jax._numerics.cells import point_of
from kme_jax.embedding import integer_embedding, integer_embedding_of_batches, private_points
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.comma_separated import CsvReader
from kme_jax.storage.formats.text import TextOptions

BOUNDS = Bounds.create([-1.0, 0.0], [1.0, 9.0], ["x", "y"])
NUM_ROWS = 1000


@functools.lru_cache
def _map():
    return FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=2.0), num_features=16, dim=2)


@functools.lru_cache
def _rows():
    rng = np.random.default_rng(0)
    rows = rng.normal([0, 4], [0.5, 3], (NUM_ROWS, 2))
    rows[::7, 0], rows[3::11, 1], rows[5::13] = np.nan, np.inf, -np.inf
    return rows


@functools.lru_cache
def _expected():
    return integer_embedding(_map(), _rows(), bounds=BOUNDS).total


def _total(source):
    return integer_embedding_of_batches(_map(), source.batches(), source.num_rows, bounds=BOUNDS).total


def _table(columns=("y", "id", "x")):
    """The rows in another order of columns, with one more column. Missing cells are null."""
    columns_of = {"x": _rows()[:, 0], "y": _rows()[:, 1], "id": np.arange(NUM_ROWS)}
    return pa.table({name: pa.array(columns_of[name], from_pandas=True) for name in columns})


def _as_text(table):
    """Every cell as text. Missing cells are empty, text, or a word."""
    words = ["", "secret", "NA", "(1+2j)", "1_000"]
    cells = {
        name: [words[i % 5] if cell is None else repr(cell) for i, cell in enumerate(table[name].to_pylist())]
        for name in table.column_names
    }
    return pa.table(cells)


def _files(folder):
    table, text = _table(), _as_text(_table())
    pyarrow.csv.write_csv(text, folder / "plain.csv")
    with pa.CompressedOutputStream(str(folder / "packed.csv.gz"), "gzip") as file:
        pyarrow.csv.write_csv(text, file)
    (folder / "latin.csv").write_bytes((folder / "plain.csv").read_bytes().replace(b"secret", b"\xe9t\xe9"))
    pq.write_table(table, folder / "typed.parquet", row_group_size=300)
    pq.write_table(text, folder / "text.parquet")
    pyarrow.feather.write_feather(table, str(folder / "typed.feather"), chunksize=70)
    pyarrow.feather.write_feather(text, str(folder / "text.arrow"), compression="uncompressed")
    (folder / "parts").mkdir()
    pq.write_table(table[:400], folder / "parts" / "a.parquet")
    pyarrow.csv.write_csv(text[400:900].select(["id", "x", "y"]), folder / "parts" / "b.csv")
    pyarrow.feather.write_feather(table[900:], str(folder / "parts" / "c.arrow"), compression="uncompressed")
    return ["plain.csv", "packed.csv.gz", "latin.csv", "typed.parquet", "text.parquet", "typed.feather", "text.arrow",
            "parts"]  # fmt: skip


def test_files_of_all_formats_have_the_sums_of_an_array(tmp_path):
    for name in _files(tmp_path):
        source = open_rows(tmp_path / name, columns=["x", "y"])
        assert source.shape == (NUM_ROWS, 2)
        np.testing.assert_array_equal(_total(source), _expected(), err_msg=name)
        np.testing.assert_array_equal(_total(source), _expected(), err_msg=f"{name} for the second time")


def test_arrays_in_files_have_the_same_sums(tmp_path):
    np.save(tmp_path / "rows.npy", np.asfortranarray(_rows()))
    np.savez(tmp_path / "rows.npz", rows=_rows(), other=np.ones(3))
    np.savetxt(tmp_path / "no_header.csv", _rows(), delimiter=",")
    np.savetxt(tmp_path / "bars.csv", _rows(), delimiter="|")
    sources = [
        open_rows(tmp_path / "rows.npy", columns=["x", "y"]),
        open_rows(tmp_path / "rows.npz", array="rows"),
        open_rows(tmp_path / "no_header.csv", header=False),
        open_rows(tmp_path / "bars.csv", header=False, separator="|", num_columns=2),
    ]
    for source in sources:
        np.testing.assert_array_equal(_total(source), _expected(), err_msg=source.label)


def test_tables_in_memory_have_the_same_sums():
    for data in (_table(), _as_text(_table()), _table().to_pandas(), pandas.DataFrame(_as_text(_table()).to_pydict())):
        np.testing.assert_array_equal(_total(open_rows(data, columns=["x", "y"])), _expected())


@pytest.mark.parametrize("size", [1, 7, 300, NUM_ROWS, 5000])
def test_batches_of_any_size_have_the_same_sums(size):
    rows, table = _rows(), _table()

    def arrays():
        return (rows[start : start + size] for start in range(0, NUM_ROWS, size))

    def tables():
        return (table[start : start + size] for start in range(0, NUM_ROWS, size))

    def record_batches():
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=size))

    for function in (arrays, tables, record_batches):
        source = open_rows(function, num_rows=NUM_ROWS, columns=["x", "y"])
        np.testing.assert_array_equal(_total(source), _expected(), err_msg=function.__name__)


def test_batches_are_put_together_and_cut():
    rows = np.random.default_rng(1).normal(size=(150_000, 20))
    sizes = [1, 70_000, 0, 3, 140_000 - 70_004, 10_000]
    ends = np.cumsum(sizes)

    def batches():
        return (rows[end - size : end] for end, size in zip(ends, sizes, strict=True))

    found = list(open_rows(batches, num_rows=len(rows), num_columns=20).batches())
    assert [len(batch) for batch in found] == [2**16, 2**16, 150_000 - 2**17]
    np.testing.assert_array_equal(np.concatenate(found), rows)


def test_few_batches_are_in_memory_at_once():
    alive, most = weakref.WeakSet(), []

    class Batch(np.ndarray):
        """Arrays that can be counted."""

        __hash__ = object.__hash__

    def batches():
        for _ in range(40):
            batch = np.zeros((2**17, 2)).view(Batch)
            alive.add(batch)
            most.append(len(alive))
            yield batch
            del batch

    source = open_rows(batches, num_rows=40 * 2**17, num_columns=2)
    assert sum(len(batch) for batch in source.batches()) == source.num_rows
    assert max(most) <= 10  # of 2 MiB each: those of one batch of 16 MiB


def test_measure_and_release_take_sources(tmp_path):
    rows, budget = np.random.default_rng(0).uniform(size=(200, 2)), PrivacyBudget(1000.0, 1e-4)
    np.save(tmp_path / "rows.npy", rows)
    source, points = open_rows(tmp_path / "rows.npy"), np.random.default_rng(1).uniform(size=(5, 2))
    measured = measure(source, Gaussian(gamma=2.0), points, budget=budget)
    assert measured.noisy.mechanism.num_rows == 200
    of_array = measure(rows, Gaussian(gamma=2.0), points, budget=budget)
    assert measured.noisy.mechanism == of_array.noisy.mechanism
    distance = np.abs(measured.noisy.coordinates - of_array.noisy.coordinates)
    assert distance.max() < 12 * measured.noisy.mechanism.scale
    assert release(source, Gaussian(gamma=2.0), points, budget=budget).statement["private"]
    with pytest.raises(ValueError, match="rows: expected 3 columns, as the points have, got 2"):
        measure(source, Gaussian(gamma=2.0), np.ones((5, 3)), budget=budget)
    with pytest.raises(ValueError, match="at least one row"):
        measure(open_rows(list, num_rows=0, num_columns=2), Gaussian(gamma=2.0), points, budget=budget)


TEXTS = [
    *("1", "true", "FALSE", "2.5", "(3+0j)", "1j", "n/a", "", "1_000", "٣", "0x10", " 7 ", "1e400", "nan", "2" * 400),
    *("+1", "1.", ".5", ".", "1e", "nan(12)", "-Infinity", "1e-400", "1 2", "\0", "1\0", "-0", "1e5", "0b1", "\t3\n"),
    *("1e99999999999", "0." + "0" * 60 + "1e-99", "-nan", "1f", "0x1p3", "1.8e308", "4.9e-324", "9" * 64 + "e99"),
]


def test_arrow_reads_text_as_python_does():
    """Alone, where Arrow may read the whole column, and among cells that it cannot read."""
    rng = np.random.default_rng(0)
    letters = list("0123456789.eE+-naif_ ()j")
    cells = [*TEXTS, *("".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(3000))]
    expected = [point_of(cell) for cell in cells]
    for kind in (pa.binary(), pa.large_binary(), pa.string(), pa.string_view()):
        np.testing.assert_array_equal(numbers_of(pa.array([cell.encode() for cell in cells], kind)), expected)
    alone = [numbers_of(pa.array([cell.encode()]))[0] for cell in cells]
    np.testing.assert_array_equal(alone, expected)
    np.testing.assert_array_equal(private_points([[cell] for cell in cells])[:, 0], expected)


def test_typed_cells_are_the_numbers_of_objects():
    decimals = pa.array(["1.25", None, "-3"]).cast(pa.decimal128(6, 2))
    cells = [
        (pa.array([True, None, False]), [1, np.nan, 0]),
        (pa.array([2**63, None, 2**64 - 1], pa.uint64()), [2.0**63, np.nan, 2.0**64]),
        (pa.array([0.1, None], pa.float32()), [float(np.float32(0.1)), np.nan]),
        (pa.array(np.float16([1.5, 2])), [1.5, 2]),
        (decimals, [1.25, np.nan, -3]),
        (decimals.dictionary_encode(), [1.25, np.nan, -3]),
        (pa.array(["7", "x", None, "7"]).dictionary_encode(), [7, np.nan, np.nan, 7]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([5.0, None])), [5, 5, np.nan]),
        (pa.chunked_array([[1, 2], [3]]), [1, 2, 3]),
        *((pa.array([1, None], pa.int64()).cast(kind), [np.nan] * 2) for kind in (pa.timestamp("s"), pa.duration("s"))),
        (pa.array([[1], [2]]), [np.nan] * 2),
        (pa.array([None, None]), [np.nan] * 2),
    ]
    for array, expected in cells:
        np.testing.assert_array_equal(numbers_of(array), expected, err_msg=str(array.type))


@pytest.mark.parametrize("first", ["PAR1", "PK\x03\x04", "\x1f\x8b", "secret;x;y|z", "\udcff", "x" * 200_000, "a|b\tc"])
def test_no_content_of_a_first_row_is_an_error(tmp_path, first):
    """Without a header line the first line is private, whatever else it might be."""
    path = tmp_path / "rows.csv"
    path.write_bytes(f"{first},1\n3,4\n".encode("utf-8", "surrogateescape"))
    (rows,) = open_rows(path, header=False, num_columns=2).batches()
    np.testing.assert_array_equal(rows, [[np.nan, 1], [3, 4]])
    assert CsvReader(path, text=TextOptions(header=False)).fields.names == ["x1", "x2"]


def _written(path, text):
    path.write_text(text)
    return path


NEED_NAMES = "give the names of columns"


def test_only_structure_is_refused(tmp_path):
    rows, table = np.ones((4, 2)), pa.table({"a": [1, 2], "b": [3, 4]})
    np.save(tmp_path / "flat.npy", np.ones(4))
    np.save(tmp_path / "rows.npy", rows)
    pq.write_table(table, tmp_path / "rows.parquet")
    csv = functools.partial(_written, tmp_path / "rows.csv")
    cases = [
        (
            lambda: open_rows(csv("a,b\n1,2\n")),
            f"{NEED_NAMES}, such as .*, or say that it has no header",
        ),
        (lambda: open_rows(csv("a,b\n1,2\n"), columns=["c"]), "there is no column 'c' among its 2 columns"),
        (
            lambda: open_rows(csv("a,b\n1,2\n"), columns=["a"], num_columns=2),
            "1 columns were named, but 2 are expected",
        ),
        (lambda: open_rows(csv("1,2\n3\n"), header=False), "row 2 has 1 cells, expected 2"),
        (lambda: open_rows(csv("\n\n"), header=False), "it has no rows"),
        (lambda: open_rows(csv('1,"2\n'), header=False), "its first row is not comma-separated"),
        (lambda: open_rows(tmp_path / "rows.parquet"), NEED_NAMES),
        (lambda: open_rows(tmp_path / "rows.parquet", columns=["a"], separator=";"), "separator is for .csv files"),
        (lambda: open_rows(table), NEED_NAMES),
        (lambda: open_rows(tmp_path / "flat.npy"), r"expected numbers of shape \[rows, columns\], got shape \[4\]"),
        (lambda: open_rows(tmp_path / "rows.npy", num_columns=3), "it has 2 columns, but 3 are expected"),
        (lambda: open_rows(tmp_path / "none.npy"), "no such file"),
        (lambda: open_rows(tmp_path / "none.parquet", columns=["a"]), "no such file"),
    ]
    for call, text in cases:
        with pytest.raises(FileError, match=text):
            call()


def test_functions_give_what_they_say():
    rows, table = np.ones((4, 2)), pa.table({"a": [1, 2], "b": [3, 4]})
    cases = [
        (lambda: open_rows(lambda: [rows]), "give both for a function"),
        (lambda: open_rows("rows.npy", num_rows=3), "num_rows: it is for a function"),
        (lambda: open_rows(rows), "expected a path, a table or a function of batches, got a ndarray"),
        (lambda: [*open_rows(lambda: [rows], num_rows=3, num_columns=2).batches()], "expected 3 rows, got more"),
        (lambda: [*open_rows(lambda: [rows], num_rows=5, num_columns=2).batches()], "expected 5 rows, got 4"),
        (lambda: [*open_rows(lambda: [rows], num_rows=4, num_columns=3).batches()], "expected 3 columns, got 2"),
        (lambda: [*open_rows(lambda: [table], num_rows=2, num_columns=2).batches()], NEED_NAMES),
        (lambda: [*open_rows(lambda: [table], num_rows=2, columns=["c"]).batches()], "exactly one column 'c'"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()


def _batches():
    yield from (np.zeros((3, 2)), np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (_batches, r"got a function: open_rows\(function, num_rows=\.\.\., num_columns=\.\.\.\) takes"),
        (_batches(), r"got a generator: open_rows\(function"),
        ([np.zeros((3, 2)), np.zeros((4, 2))], r"got a list of batches: .* open_rows\(lambda: batches"),
        ([np.zeros((3, 2)), np.zeros((3, 2))], "got a list of batches"),
        ("rows.csv", r"got a path: open_rows\(path\) reads it for measure, release and measure_generator$"),
        (open_rows(_batches, num_rows=7, num_columns=2), "got a BatchedRows, which is for measure, release and"),
    ],
    ids=["function", "generator", "list", "equal", "path", "source"],
)
def test_rows_that_are_no_array_are_pointed_to_open_rows(rows, message):
    kernel, points, budget = Gaussian(0.5), np.eye(2), PrivacyBudget(1.0, 1e-3)
    calls = [
        lambda: mean_embedding(_map(), rows),
        lambda: integer_embedding(_map(), rows),
        lambda: algorithm1(jax.random.key(0), rows, kernel, points, budget=budget),
        lambda: noisy_function(rows, kernel, points, budget=budget),
    ]
    if not isinstance(rows, BatchedRows):
        calls.append(lambda: measure(rows, kernel, points, budget=budget))
    for call in calls:
        with pytest.raises(ValueError, match=f"^rows: expected an array, {message}") as error:
            call()
        assert "\n" not in str(error.value)


def test_what_the_errors_say_is_right():
    """The arrays of a list of batches may be given as they say."""
    batches = [np.zeros((3, 2)), np.ones((4, 2))]
    source = open_rows(lambda: batches, num_rows=7, num_columns=2)
    whole = integer_embedding(_map(), np.concatenate(batches), bounds=BOUNDS)
    np.testing.assert_array_equal(_total(source), whole.total)


def test_a_source_shows_no_row(tmp_path):
    path = _written(tmp_path / "rows.csv", "a,b\n123456,2\n")
    source = open_rows(path, columns=["a", "b"])
    assert isinstance(source, BatchedRows)
    assert repr(source) == f"BatchedRows({str(path)!r}, num_rows=1, dim=2)"
    with open(path, "a") as file:
        file.write("3,4\n")
    with pytest.raises(FileError, match="expected 1 rows, got more: have they changed") as caught:
        list(source.batches())
    assert "123456" not in str(caught.value)
