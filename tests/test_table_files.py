import csv
import datetime
import decimal
import gzip
import io
import os
import traceback
import warnings

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from kme_jax._numerics import ahead
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.comma_separated import CsvLimits, CsvReader
from kme_jax.table.columns import Categorical, Datetime, Numeric
from kme_jax.table.readers import TableSource, open_table, write_table
from kme_jax.table.schema import Schema

SCHEMA = Schema(
    (
        Numeric("age", 0, 100, integer=True, nullable=True),
        Categorical("job", ("clerk", "émigré"), nullable=True),
        Datetime("day", "2024-01-01", "2024-12-31", "day", nullable=True),
    )
)
TABLE = pa.table({"job": ["clerk", None, "x"], "day": ["2024-01-02", "", "?"], "age": [3, None, 200]})
CODES = [[3, 0, 1], [101, 2, 366], [100, 2, 366]]


def _codes(data, schema=SCHEMA):
    source = open_table(data, schema)
    first, second = (list(source.codes()) for _ in range(2))
    codes = np.concatenate(first)
    np.testing.assert_array_equal(np.concatenate(second), codes)
    assert len(codes) == source.num_rows == sum(batch.num_rows for batch in source.batches())
    assert max(map(len, first)) <= 2**16
    return codes.tolist()


def _file(tmp_path, content, name="people.csv"):
    path = tmp_path / name
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", None])
def test_the_same_table_from_anywhere(tmp_path, suffix):
    data = TABLE
    if suffix:
        data = tmp_path / f"people{suffix}"
        write_table(data, TABLE)
    assert _codes(data) == CODES
    assert "clerk" not in repr(open_table(data, SCHEMA))


@pytest.mark.long
def test_many_batches(tmp_path, rng):
    """Of a column with a few texts, and of one in which every other cell is different."""
    ages, clerks = rng.integers(0, 101, size=150_000), rng.integers(2, size=150_000)
    jobs = [f"job {i}" if clerk else "clerk" for i, clerk in enumerate(clerks)]
    table = pa.table({" age ": ages, "job": jobs, "short": np.where(clerks, "b", "a")})
    schema = Schema((*SCHEMA.columns[:2], Categorical("short", ("a", "b"))))
    codes = np.stack([ages, 2 * clerks, clerks], axis=1)
    for path in (tmp_path / "a.csv", tmp_path / "a.parquet"):
        write_table(path, table)
        assert np.array_equal(_codes(path, schema), codes)
    types = [batch.schema.types[1:] for batch in open_table(path, schema).batches()]
    assert types == [[pa.string(), pa.dictionary(pa.int32(), pa.string())]] * len(types)
    assert np.array_equal(_codes(table, schema), codes)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfage, job ,day\r\n 3, clerk , 2024-01-02\r\n,,\r\n1e400,\xe9migr\xe9,\xff\r\n",
        b'"age","job","day"\n"3","clerk",2024-01-02\n\n"","",\n\n999999999999999999999,"a\n\n,""b",never',
        b"age,job,day\r3,clerk,2024-01-02\r,,\r9e9,\x00,0",
        '"day",age,job\n2024-01-02,3,clerk\n,"nan",\n0x10,101,Émigré\n',
    ],
)
def test_odd_csv_files_pass_in_silence(tmp_path, text, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _codes(_file(tmp_path, text)) == CODES
    assert capfd.readouterr() == ("", "")


def test_names_with_commas_and_quotes(tmp_path):
    schema = Schema(tuple(Numeric(name, 0, 9, integer=True) for name in ('say "a"', "b, c", "données")))
    path = tmp_path / "names.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([schema.names, [1, 2, 3], [4, 5, 6]])
    assert _codes(path, schema) == [[1, 2, 3], [4, 5, 6]]


def test_an_empty_line_is_a_row_of_one_column_alone(tmp_path):
    schema = Schema(SCHEMA.columns[:1])
    assert _codes(_file(tmp_path, "age\n\n3\n\n"), schema) == [[101], [3], [101]]
    assert _codes(_file(tmp_path, "age\n\n3"), schema) == [[101], [3]]


def test_long_cells(tmp_path):
    long = "x" * 5_000_000
    assert _codes(_file(tmp_path, f"age,job,day\n3,clerk,2024-01-02\n,{long},\n")) == [CODES[0], [101, 2, 366]]


def test_odd_parquet_types_pass_in_silence(tmp_path):
    table = pa.table(
        {
            "age": pa.array([decimal.Decimal(10) ** 37, None], pa.decimal128(38, 0)),
            "job": pa.array(["clerk", "y"]).dictionary_encode(),
            "day": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "Europe/Rome")),
        }
    )
    assert _codes(_file(tmp_path, table, "p.parquet")) == [[100, 0, 0], [101, 2, 365]]
    array = pa.array([b"\xff", b"clerk"])
    text = pa.Array.from_buffers(pa.string(), 2, array.buffers())  # not valid UTF-8
    table = pa.table({"age": text, "job": text, "day": pa.nulls(2)})
    assert _codes(_file(tmp_path, table, "q.parquet")) == [[101, 2, 366], [101, 0, 366]]


def test_quotes_in_cells(tmp_path):
    schema = Schema((Categorical("a", ("x", '5" pipe')), Categorical("b", ("y",), nullable=True)))
    assert _codes(_file(tmp_path, 'a,b\n5" pipe,y\nx,"y"\n'), schema) == [[1, 0], [0, 0]]
    for text in ('a,b\nx,y\nx,"y\nx,y\nx,y\n', 'a,b\nx,y\nx,y\nx,"y'):
        with pytest.raises(FileError, match="a quote is not closed"):
            open_table(_file(tmp_path, text), schema)


def test_times_of_many_years_in_nanoseconds(tmp_path):
    times = pa.array([datetime.datetime(9999, 12, 31), datetime.datetime(2024, 1, 2)], pa.timestamp("us"))
    path = tmp_path / "old.parquet"
    pa.parquet.write_table(pa.table({"day": times}), path, use_deprecated_int96_timestamps=True)
    assert _codes(path, Schema(SCHEMA.columns[2:])) == [[365], [1]]


def test_a_suffix_may_be_in_capitals(tmp_path):
    for path in (tmp_path / "A.CSV", tmp_path / "A.Parquet"):
        write_table(tmp_path / f"a{path.suffix.lower()}", TABLE)
        (tmp_path / f"a{path.suffix.lower()}").rename(path)
        assert open_table(path, SCHEMA).num_rows == TABLE.num_rows


def test_batches_are_read_ahead():
    seen = []

    def items():
        try:
            for i in range(3):
                seen.append(i)
                yield np.full((1, 2), i)
            raise OSError("gone")
        finally:
            seen.append("closed")

    batches = ahead.read_ahead(items())
    assert next(batches).tolist() == [[0, 0]]
    batches.close()
    assert seen == [0, 1, "closed"]
    found = []
    with pytest.raises(OSError, match="gone"):
        found.extend(batch[0, 0] for batch in ahead.read_ahead(items()))
    assert found == [0, 1, 2]


def test_types_that_cannot_be_converted_are_no_mystery(monkeypatch):
    def fail(*_):
        raise pa.ArrowNotImplementedError("secret")

    monkeypatch.setattr(Schema, "encode", fail)
    with pytest.raises(FileError, match=r"the table: pyarrow cannot convert the type of a column$"):
        next(open_table(TABLE, SCHEMA).codes())


LINES = "age,job,day\n1,clerk,2024-01-01\n2,secret,2024-01-01\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.parquet", "", "is empty"),
        ("a.csv", "\nage,job,day\n", "its first line is empty"),
        ("a.txt", LINES, "expected a .csv, .csv.gz, .parquet, .arrow or .feather file"),
        ("a.csv.gz", gzip.compress(LINES.encode() * 99, mtime=0)[:-9], "is damaged, or cut off: it cannot be unpacked"),
        ("a.csv.gz", LINES, "is no gzip file: rename it"),
        ("a.xlsx", b"PK\x03\x04secret", "expected a .csv, .* or .feather file; save it as .csv$"),
        ("a.txt.gz", gzip.compress(LINES.encode(), mtime=0), "expected a .csv, .csv.gz"),
        ("a.arrow", LINES, "is no Arrow file"),
        ("a.feather", "ARROW1secret", "is damaged, or no Arrow file"),
        ("a.csv", "age;job,day\n40;secret,1\n", "it lacks the schema's age, job"),
        ("a.csv", "age;job;day\n40,secret,1\n", "row 2 .* has 1 cells, expected 3: cells are separated by semicolons"),
        ("a.csv", gzip.compress(LINES.encode(), mtime=0), "is a gzip file: rename it to .csv.gz"),
        ("a.csv", TABLE, "is a Parquet file, not a .csv file"),
        ("a.csv", b"PK\x03\x04secret", "is a zip file"),
        ("a.parquet", LINES, "is no Parquet file"),
        ("a.parquet", "PAR1secret", "is damaged, or no Parquet file"),
        ("a.csv", LINES.encode("utf-16"), "its first line is not text in UTF-8"),
        ("a.csv", "âge,job\n1,2\n".encode("latin-1"), "its first line is not text in UTF-8"),
        ("a.csv", '"age"x,job\n1,2\n', "its first line is not comma-separated names"),
        ("a.csv", "age,,day\n1,2,3\n", "column 2 has no name"),
        ("a.csv", "age,job,age ,day\n1,2,3,4\n", "columns 1 and 3 have the same name; rename"),
        ("a.parquet", TABLE.append_column("age", TABLE["age"]), "have the same name"),
        ("a.csv", "age,day\n1,2\n3,4\n", "it lacks the schema's job: add it, or remove it from the schema$"),
        (
            "a.csv",
            "age,job,day,name,x\n1,2,3,4,5\n",
            "the schema lacks name, x: add each to the schema, with the kind drop",
        ),
        ("a.parquet", TABLE.rename_columns(["age", "JOB", "day"]), "from the schema; the schema lacks JOB: "),
        ("a.csv", "40,secret,1\n41,y,2\n", r"none of the schema's columns \(age, job, day\), or no header line"),
        ("a.csv", "age/job/day\n40/secret/1\n", "or no header line; are there commas between the cells"),
        ("a.csv", LINES.encode() + b"3,secret \xff\xe9\n", "row 4 .* has 2 cells, expected 3"),
        ("a.csv", LINES.encode() * 9999 + b"3,secret \xff\n", "row 29998 .* has 2 cells, expected 3"),
        ("a.csv", LINES + "3,secret\n", r"row 4 \(the header line is row 1\) has 2 cells, expected 3"),
        ("a.csv", LINES.replace(",2024", ",a,secret", 1), "row 2 .* has 4 cells, expected 3"),
        ("a.csv", LINES.replace("secret", '"secret'), "a quote is not closed: what follows it would be one cell"),
        ("a.parquet", TABLE.rename_columns(["age", "job\x1b[2J\n", "day"]), r"the schema lacks 'job\\x1b\[2J'"),
        ("a.parquet", TABLE.set_column(2, "day", pa.array([1, 2, 3])), "have the same name"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path, capfd, name, content, message):
    path = _file(tmp_path, content, name)
    with pytest.raises(FileError, match=message) as caught:
        open_table(path, SCHEMA)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert "secret" not in text
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "content", "num_rows"),
    [
        ("a.csv", "age,job,day", 0),
        ("a.csv", "age,job,day\n\n\n", 0),
        ("a.csv", "age,job,day\n1,clerk,2024-01-01\n", 1),
        ("a.parquet", TABLE[:0], 0),
        ("a.parquet", TABLE[:1], 1),
    ],
)
def test_small_tables_open_but_have_no_public_size(tmp_path, name, content, num_rows):
    """A private number of rows may be 0 or 1."""
    source = open_table(_file(tmp_path, content, name), SCHEMA)
    assert source.num_rows == sum(map(len, source.codes())) == num_rows
    with pytest.raises(FileError, match=f"^.*{name}: expected at least 2 rows, got {num_rows}$"):
        source.check_size()


def test_files_that_are_not_there(tmp_path):
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(FileError, match="no such file"):
            open_table(tmp_path / name, SCHEMA)
        (tmp_path / name).mkdir()
        (tmp_path / name / "_SUCCESS").write_text("")
        with pytest.raises(FileError, match="is a folder without files"):
            open_table(tmp_path / name, SCHEMA)
    with pytest.raises(FileError, match="the table: it lacks the schema's day"):
        open_table(TABLE.drop_columns(["day"]), SCHEMA)


def test_what_is_no_table_is_named_in_one_line():
    batches, frame = "write batches into a folder", r"give pandas.DataFrame\(...\) of it$"
    for data, remedy in (
        ([TABLE], batches),
        ((TABLE for _ in range(2)), batches),
        (TABLE.to_pydict(), frame),
        (TABLE.to_pylist(), frame),
    ):
        with pytest.raises(FileError, match=f"^the table: expected a path, .*, got a {type(data).__name__}; {remedy}"):
            open_table(data, SCHEMA)


def test_a_frame_whose_columns_are_elsewhere_is_explained():
    frame = TABLE.to_pandas()
    with pytest.raises(FileError, match=r"schema's job: .*; job is the index of the DataFrame: give reset_index\(\)$"):
        open_table(frame.set_index("job"), SCHEMA)
    with pytest.raises(FileError, match="; job is in the index of the DataFrame"):
        open_table(frame.set_index(["job", "day"]), SCHEMA)
    levels = pandas.concat({"people": frame}, axis=1)
    with pytest.raises(FileError, match=r"; its columns have 2 levels: give each column one name$"):
        open_table(levels, SCHEMA)
    assert open_table(frame.set_index("job").reset_index(), SCHEMA).num_rows == TABLE.num_rows


def test_a_long_row_is_refused_wherever_it_is(tmp_path):
    """Whether a row fits the blocks depends on where they begin, and so on other rows; the limit does not."""
    limits = CsvLimits((2**11, 2**13, 2**15), 2**13)
    for before in (0, 10, 100, 150, 300):
        rows = LINES + "1,clerk,2024-01-01\n" * before
        for job in ("x" * 8000, '"' + '""' * 8000 + '"', "x" * 2**13):
            path = _file(tmp_path, rows + f"3,{job[: 2**13 - 1] if job[0] == 'x' else job},\n" + rows[12:])
            assert TableSource(CsvReader(path, limits), SCHEMA).num_rows == 5 + 2 * before
        for size in (2**13, 2**14, 10**5):
            _file(tmp_path, rows + "3," + "x" * size + ",\n" + rows[12:])
            with pytest.raises(FileError, match="a row has more than 0 MiB: is a quote not closed"):
                TableSource(CsvReader(path, limits), SCHEMA)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_changes(tmp_path, suffix):
    path = tmp_path / f"people{suffix}"
    write_table(path, TABLE)
    source = open_table(path, SCHEMA)
    for change in (lambda: write_table(path, TABLE[:2]), lambda: path.write_bytes(b"secret"), lambda: None):
        path.unlink()
        change()
        with pytest.raises(FileError, match=r"changed while it was read|damaged|cannot be read|row 1") as caught:
            list(source.codes())
        assert "secret" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_damaged_parquet_files_are_refused_in_one_line(tmp_path, rng):
    whole = _file(tmp_path, pa.concat_tables([TABLE] * 200), "a.parquet").read_bytes()
    refused = []
    for place in rng.integers(4, len(whole), size=200):
        path = _file(tmp_path, whole[:place] + rng.bytes(3) + whole[place + 3 :], "b.parquet")
        try:
            list(open_table(path, SCHEMA).codes())
        except FileError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert not any("\n" in error for error in refused)


def test_memory_does_not_depend_on_the_rows(tmp_path, rng):
    """Arrow's own memory, at its highest, for one row group of 1 and 8 million numbers that do not compress."""
    peaks = []
    for num_rows in (1_000_000, 8_000_000):
        path = tmp_path / f"{num_rows}.parquet"
        pq.write_table(pa.table({"x": rng.normal(size=num_rows)}), path, row_group_size=num_rows, compression="none")
        source = open_table(path, Schema((Numeric("x", -1, 1),)))
        before, highest = pa.total_allocated_bytes(), 0
        for _ in source.codes():
            highest = max(highest, pa.total_allocated_bytes() - before)
        peaks.append(highest)
    assert peaks[1] < peaks[0] + 2**20
    assert peaks[1] < 2**23


def test_data_frames():
    class Odd:
        def __str__(self):
            raise RuntimeError

    cells = [3, "4", None, float("nan"), 10**5000, -(10**5000), Odd(), [1], True, b"\xff", 5.0, pandas.NA, "\ud800"]
    frame = pandas.DataFrame(
        {
            "age": pandas.Series(cells, dtype=object),
            "job": pandas.Categorical(["clerk"] * 12 + [None]),
            "day": pandas.to_datetime(["2024-01-02"] * 12 + [None]),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes = np.array(_codes(frame))
    assert codes[:, 0].tolist() == [3, 4, 101, 101, 100, 0, 101, 101, 1, 101, 5, 101, 101]
    assert codes[:, 1].tolist() == [0] * 12 + [2]
    assert codes[:, 2].tolist() == [1] * 12 + [366]
    question = Schema((Categorical("x", ("a", "?")),))
    assert _codes(pandas.DataFrame({"x": [Odd(), "?"]}, dtype=object), question) == [[0], [1]]
    yes = Schema((Categorical("x", ("true", "no")),))  # whatever type the categories have together
    for second in (True, "no"):
        frame = pandas.DataFrame({"x": pandas.Series([True, second]).astype("category")})
        assert _codes(frame, yes) == [[0], [0 if second is True else 1]]
    days = pandas.Series([datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)]).astype("category")
    assert _codes(pandas.DataFrame({"day": days}), Schema(SCHEMA.columns[2:])) == [[1], [0]]
    assert _codes(pandas.DataFrame({"day": days}), Schema((Numeric("day", 0, 1, integer=True),))) == [[0], [0]]
    digits = Schema((Categorical("x", ("1", "b"), nullable=True),))
    assert _codes(pandas.DataFrame({"x": [1.0, None, 1]}), digits) == [[0], [2], [0]]
    assert _codes(pandas.DataFrame({"x": [1.0, True, 1, "1", "b"]}, dtype=object), digits) == [[0]] * 4 + [[1]]
    with pytest.raises(FileError, match="the table: columns 1 and 2 have the same name"):
        open_table(pandas.DataFrame([[1, 2], [3, 4]], columns=["age", "age"]), SCHEMA)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_written_tables_are_valid_and_read_again(tmp_path, rng, suffix):
    # A Parquet file is not read with a category that is also a word for missing cells.
    last = "nan" if suffix == ".csv" else "nano"
    schema = Schema(
        (
            *SCHEMA.columns,
            Numeric("x", -1, 1),
            Numeric("price", 0, 9.99, step=0.01),
            Categorical("odd, name", ('say "a"', "a,b", "a b", "'", "1", last)),
            Datetime("seen", "1969-12-31", "1970-01-02", "second", nullable=True),
        )
    )
    codes = np.stack([rng.integers(0, column.num_codes, size=300) for column in schema.columns], axis=1)
    path = tmp_path / f"synthetic{suffix}"
    write_table(path, schema.decode(codes))
    np.testing.assert_array_equal(_codes(path, schema), codes)
    if suffix == ".parquet":
        schema.check(pq.read_table(path))
    with pytest.raises(FileError, match="exists"):
        write_table(path, TABLE)
    assert os.listdir(tmp_path) == [path.name]


def test_all_or_nothing(tmp_path, monkeypatch):
    with pytest.raises(FileError, match=r"expected a .csv or .parquet"):
        write_table(tmp_path / "a.xlsx", TABLE)
    with pytest.raises(FileError, match="no such folder"):
        write_table(tmp_path / "b" / "a.csv", TABLE)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    for suffix in (".csv", ".parquet"):
        with pytest.raises(KeyboardInterrupt):
            write_table(tmp_path / f"a{suffix}", TABLE)
    assert not os.listdir(tmp_path)


def _same_rows(data, **options):
    source = open_table(data, SCHEMA, **options)
    return np.concatenate(list(source.codes()))


def test_files_of_all_kinds_have_the_same_rows(tmp_path):
    """Plain, compressed, with semicolons, tabs or bars, of Arrow, and in a folder of several files."""
    expected = _same_rows(TABLE)
    text = io.BytesIO()
    pa.csv.write_csv(TABLE, text)
    text = text.getvalue().decode()
    for separator in ";\t|":
        (tmp_path / "other.csv").write_text(text.replace(",", separator))
        np.testing.assert_array_equal(_same_rows(tmp_path / "other.csv"), expected)
    half = len(text) // 2
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode()))
    np.testing.assert_array_equal(_same_rows(tmp_path / "a.csv.gz"), expected)
    for name in ("a.arrow", "a.feather", "A.PARQUET"):
        if name != "A.PARQUET":
            write_table(tmp_path / name, TABLE)
        else:
            pq.write_table(TABLE, tmp_path / name)
        np.testing.assert_array_equal(_same_rows(tmp_path / name), expected)
    pa.feather.write_feather(TABLE, tmp_path / "b.feather", compression="zstd")
    np.testing.assert_array_equal(_same_rows(tmp_path / "b.feather"), expected)


def test_a_folder_is_one_table(tmp_path):
    """Files are read by their names. Their columns have any order, and notes of other programs are left out."""
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    (folder / ".part.crc").write_text("x")
    pq.write_table(TABLE.slice(0, 1), folder / "part-0.parquet")
    pq.write_table(TABLE.slice(1).select(["day", "age", "job"]), folder / "part-1.parquet")
    source = open_table(folder, SCHEMA)
    assert source.num_rows == TABLE.num_rows
    np.testing.assert_array_equal(np.concatenate(list(source.codes())), _same_rows(TABLE))
    pa.csv.write_csv(TABLE, folder / "part-2.csv")
    assert open_table(folder, SCHEMA).num_rows == 2 * TABLE.num_rows
    pq.write_table(TABLE.drop_columns(["day"]), folder / "part-3.parquet")
    with pytest.raises(FileError, match=r"part-3.parquet: it has other columns than part-0.parquet"):
        open_table(folder, SCHEMA)
    (folder / "part-3.parquet").unlink()
    (folder / "notes.txt").write_text("secret")
    with pytest.raises(FileError, match=r"notes.txt: expected a .csv"):
        open_table(folder, SCHEMA)


def test_persons_of_a_folder(tmp_path):
    """A person has rows in several files."""
    table = TABLE.append_column("who", pa.array([1] * TABLE.num_rows))
    schema = Schema(SCHEMA.columns, dropped=("who",))
    folder = tmp_path / "rows"
    folder.mkdir()
    for i in range(3):
        pq.write_table(table, folder / f"{i}.parquet")
    assert open_table(folder, schema, person="who", max_rows=4).num_rows == 4
