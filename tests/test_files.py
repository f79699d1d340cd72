import numpy as np
import pyarrow as pa
import pytest

from kme_jax.embedding import private_points
from kme_jax.points import files
from kme_jax.table import Numeric, Schema, open_table


def _read(tmp_path, text, **options):
    path = tmp_path / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.read_rows(path, **options)


def test_columns_by_name_in_any_order_and_with_spaces(tmp_path):
    rows = _read(tmp_path, 'a, b ,"c, too"\n1,2,3\n4,5,6\n', columns=["c, too", "b"])
    np.testing.assert_array_equal(rows, [[3, 2], [6, 5]])
    rows = _read(tmp_path, b"\xef\xbb\xbfa,b\r\n1,2\r\n", columns=["a"])  # a byte order mark
    np.testing.assert_array_equal(rows, [[1]])


def test_no_cell_changes_the_number_of_rows(tmp_path):
    options = {"header": False, "num_columns": 1}
    np.testing.assert_array_equal(_read(tmp_path, "\n0.2\n0.3\n", **options), [[np.nan], [0.2], [0.3]])
    np.testing.assert_array_equal(_read(tmp_path, "0.1\n\n0.3\n", **options), [[0.1], [np.nan], [0.3]])
    np.testing.assert_array_equal(_read(tmp_path, "1,2\n\n3,4\n", header=False), [[1, 2], [3, 4]])
    long = "9" * 200_000
    rows = _read(tmp_path, f"a,b\n{long},{'x' * 200_000}\n".encode() + b"\x00,\xff\n", columns=["a", "b"])
    np.testing.assert_array_equal(rows, [[np.inf, np.nan], [np.nan, np.nan]])


def test_text_in_arrays(tmp_path):
    np.save(tmp_path / "r.npy", np.array([[b"0.1", b"\xff"], [b"", b"-inf"]]))
    np.testing.assert_array_equal(files.read_rows(tmp_path / "r.npy"), [[0.1, np.nan], [np.nan, -np.inf]])
    np.savez(tmp_path / "r.npz", other=np.ones(3), rows=np.array([["1", "x"]]))
    np.testing.assert_array_equal(files.read_rows(tmp_path / "r.npz", array="rows"), [[1, np.nan]])


def test_written_rows_are_read_again(tmp_path, rng):
    rows = rng.normal(size=(20, 2)) * 1e-300
    names = ("a,b", 'say "c"')
    files.write_rows(tmp_path / "w.csv", rows, names)
    np.testing.assert_array_equal(files.read_rows(tmp_path / "w.csv", columns=names), rows)
    files.write_rows(tmp_path / "w.npz", rows, names)
    np.testing.assert_array_equal(files.read_rows(tmp_path / "w.npz", array="rows"), rows)
    with pytest.raises(files.FileError, match="exists"):
        files.write_rows(tmp_path / "w.csv", rows, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.csv", "w.npz"]


def test_no_file_is_written_into_a_release(tmp_path, rng):
    rows, folder = rng.normal(size=(2, 1)), tmp_path / "published" / "more"
    folder.mkdir(parents=True)
    manifest = folder.parent / "manifest.json"
    manifest.write_text('{"kind": "table_release", "version": 1, "files": {}}')
    (tmp_path / "link").symlink_to(folder)
    for place in (folder, folder.parent, tmp_path / "link"):
        with pytest.raises(files.FileError, match="published is the folder of a release"):
            files.write_rows(place / "w.csv", rows, ("a",))
    for text in ('{"name": "an app"}', "[]", "no JSON"):  # of another program
        manifest.write_text(text)
        files.write_rows(folder / f"{len(text)}.csv", rows, ("a",))


def test_cells_that_are_objects(recwarn):
    """Nothing that a cell of a list or of an array of objects is raises an error, or a warning."""

    class Odd:
        def __float__(self):
            raise RuntimeError

    class Huge:
        def __float__(self):
            raise OverflowError

    cells = [[Huge(), 1], [b"\xff", "a"], [np.complex128(1 + 2j), None], [10**400, -(10**400)], [Odd(), "0.5"]]
    expected = [[np.nan, 1], [np.nan, np.nan], [np.nan, np.nan], [np.inf, -np.inf], [np.nan, 0.5]]
    np.testing.assert_array_equal(private_points(cells), expected)
    assert not recwarn.list


CELLS = ["1", "true", "FALSE", "2.5", "(3+0j)", "1j", "n/a", "", "1_000", "٣", "0x10", " 7 ", "1e400", "nan", "2" * 400]
NUMBERS = [1, 1, 0, 2.5, 3, *[np.nan] * 6, 7, np.inf, np.nan, np.inf]


def test_text_is_the_number_that_was_written(tmp_path):
    np.testing.assert_array_equal(private_points([[cell] for cell in CELLS])[:, 0], NUMBERS)
    np.testing.assert_array_equal(private_points(np.array(CELLS)[:, None])[:, 0], NUMBERS)
    rows = _read(tmp_path, "\n".join(f'"{cell}"' for cell in CELLS), header=False)
    np.testing.assert_array_equal(rows[:, 0], NUMBERS)


def test_two_readers_of_one_file_agree(tmp_path):
    """Of columns of numbers, and of a table; in chunks of any size."""
    column = Numeric("x", -10, 10, step=0.25, nullable=True)
    rows = _read(tmp_path, "x\n" + "\n".join(f'"{cell}"' for cell in CELLS), columns=["x"])
    source = open_table(tmp_path / "rows.csv", Schema((column,)))
    codes = np.concatenate(list(source.codes()))[:, 0]
    np.testing.assert_array_equal(codes, column.encode(pa.array(rows[:, 0])))
    for batch in source.batches():
        for start in range(len(CELLS)):
            np.testing.assert_array_equal(column.encode(batch.column(0)[start:]), codes[start:])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[True], [False]], [1, 0]),
        ([[True], [2.5]], [1, 2.5]),
        ([["True"], ["2.5"]], [1, 2.5]),
        ([[1j], [2]], [np.nan, 2]),
        ([[complex(np.nan, 0)], [complex(2, np.nan)]], [np.nan, np.nan]),
        ([[np.float32(0.1)], [np.longdouble(3)]], [float(np.float32(0.1)), 3]),
        ([[2**60 + 1], [0.5]], [2.0**60, 0.5]),
        ([[2**63], [-1]], [2.0**63, -1]),
        ([[np.datetime64("2024-01-01")], [np.datetime64("NaT", "D")]], [np.nan, np.nan]),
        ([[np.timedelta64(5, "s")], [np.timedelta64(6, "s")]], [np.nan, np.nan]),
    ],
    ids=str,
)
def test_arrays_of_any_type_hold_the_same_numbers(tmp_path, rows, expected):
    np.testing.assert_array_equal(private_points(rows)[:, 0], expected)
    arrays = [np.array(rows), np.array(rows, object), np.array([[cell] for (cell,) in rows] + [["x"]])[:-1]]
    for array in arrays[: 2 if isinstance(rows[0][0], np.floating) else 3]:  # NumPy writes them with fewer digits
        np.testing.assert_array_equal(private_points(array)[:, 0], expected)
        if array.dtype != object:
            np.save(tmp_path / "r.npy", array)
            np.testing.assert_array_equal(files.read_rows(tmp_path / "r.npy")[:, 0], expected)


def test_lists_are_refused_for_their_shape_alone():
    for cell in ([1], [1, 2], (3,), {4}, np.ones(2), np.ones(1), "ab", None, object()):
        for other in (cell, 5.0):
            rows = private_points([[cell], [other], [cell]])
            assert rows.shape == (3, 1)
            assert np.isnan(rows[[0, 2]]).all()
    with pytest.raises(ValueError, match="rows of one length, got 1 and 2"):
        private_points([[1], [1, 2]])
    for rows in (["ab", "cd"], [1, 2], [{"a": 1}], [None]):
        with pytest.raises(ValueError, match="rows: expected lists of numbers"):
            private_points(rows)
