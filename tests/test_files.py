import numpy as np
import pytest

from kme_jax import files
from kme_jax.embedding import private_points


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
