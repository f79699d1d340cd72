"""Encodings and separators of .csv files: good files are read, and no cell turns a file into an error."""

import gzip
import io
import pathlib
import random
import tracemalloc

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import PrivacyBudget, cli, load, release_table
from kme_jax.storage.files import FileError
from kme_jax.storage.formats.comma_separated import CsvLimits, CsvReader
from kme_jax.storage.formats.text import TextOptions
from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.draft import draft_schema
from kme_jax.table.evaluate import evaluate_table
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.schema import Schema

SCHEMA = Schema(
    (Numeric("age", 0, 99, integer=True, nullable=True), Categorical("town", ("Köln", "Orly"), nullable=True))
)
TEXT = "age;town\r\n3;Köln\r\n4;Orly\r\n;?\r\n"
CODES = [[3, 0], [4, 1], [100, 2]]
EAST = ["big5", "cp932", "cp949", "euc_jp", "euc_kr", "gb18030", "gbk", "johab", "shift_jis", "shift_jisx0213"]
WEST = ["utf-8", "latin-1", "cp1252", "cp437", "mac_roman", "cp500", "iso8859_15"]
# Those of which the gate changes cells. The tests of the others are long.
ENCODINGS = dict.fromkeys(["utf-8", "gb18030", "utf-16"], ()) | dict.fromkeys(
    ["cp1252", "cp500", "shift_jis", "euc_kr", "utf-32"], pytest.mark.slow
)
UNITS = {"utf-16": 2, "utf-16-le": 2, "utf-16-be": 2, "utf-32": 4, "utf-32-be": 4}


def _codes(path, schema=SCHEMA, **options):
    source = open_table(path, schema, **options)
    return np.concatenate([np.zeros((0, len(schema.columns)), int), *source.codes()]).tolist()


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "latin-1", "cp1252", "cp500", *UNITS])
def test_files_in_many_encodings_are_read(tmp_path, encoding):
    content = TEXT.encode(encoding)
    for name, data in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        assert _codes(tmp_path / name, encoding=encoding) == CODES
        assert _codes(tmp_path / name, encoding=encoding, separator=";") == CODES
    assert _codes(tmp_path, encoding=encoding) == CODES * 2


def test_a_mark_of_the_order_of_bytes_is_no_part_of_a_name(tmp_path):
    (tmp_path / "a.csv").write_bytes(("\ufeff" + TEXT).encode("utf-16-le"))
    for encoding in ("utf-16", "utf-16-le"):
        assert _codes(tmp_path / "a.csv", encoding=encoding) == CODES


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ":", " ", "\x01", "~"])
def test_any_separator(tmp_path, separator):
    """Also where another sign is more frequent in the header line."""
    schema = Schema((Numeric("a,;;;||||,,", 0, 9, integer=True), Numeric("b", 0, 9, integer=True)))
    name = schema.names[0] if separator not in schema.names[0] else f'"{schema.names[0]}"'
    (tmp_path / "a.csv").write_text(f"{name}{separator}b\n1{separator}2\n3{separator}4\n")
    assert _codes(tmp_path / "a.csv", schema, separator=separator) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "encoding",
    [pytest.param(name, marks=ENCODINGS.get(name, pytest.mark.long)) for name in (*WEST, *EAST, *UNITS)],
)
def test_one_cell_changes_no_other_one(tmp_path, encoding):
    """Whatever bytes it has that are no separator, quote or line break: nothing is raised, and other cells are read."""
    random_bytes, schema = random.Random(0), Schema((SCHEMA.columns[0], Categorical("b", ("x",), nullable=True)))
    exact = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(encoding, encoding)
    unit, path = UNITS.get(encoding, 1), tmp_path / "a.csv"
    structure = {letter.encode(exact) for letter in ',"\r\n'}
    for last in (",", ",x\r\n"):  # an empty cell may be the last one of the file, without a line break
        for _ in range(40):
            junk = b""
            while len(junk) < unit * random_bytes.randint(1, 4):
                letter = bytes(random_bytes.choice([random_bytes.randrange(256), 0x8F, 0xD8]) for _ in range(unit))
                junk += b"" if letter in structure else letter
            text = "age,b\r\n1,x\r\n".encode(encoding), junk, last.encode(exact)
            path.write_bytes(b"".join(text))
            codes = _codes(path, schema, encoding=encoding)
            assert codes[0] == [1, 0]
            assert [row[1] for row in codes] == [0, int(last == ",")]
            path.write_bytes(b"".join((text[0], "2,".encode(exact), junk, "\r\n3,x".encode(exact))))
            codes = _codes(path, schema, encoding=encoding)
            assert [row[0] for row in codes] == [1, 2, 3]


def test_bytes_that_cannot_be_decoded_are_unreadable(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(TEXT.encode("cp1252").replace(b"Orly", b"Orl\x81y").replace(b"4", b"4\x81"))
    assert _codes(path, encoding="cp1252") == [[3, 0], [100, 2], [100, 2]]
    question = Schema((SCHEMA.columns[0], Categorical("town", ("Köln", "Orl\ufffdy", "Orly"), nullable=True)))
    assert _codes(path, question, encoding="cp1252")[1] == [100, 3]
    path.write_bytes(TEXT.rstrip().encode("utf-16-le") + b"\n")  # half of a letter at the end
    assert _codes(path, encoding="utf-16-le") == CODES


def test_ids_of_persons_in_another_encoding(tmp_path):
    schema = Schema(SCHEMA.columns, dropped=("who",))
    (tmp_path / "a.csv").write_bytes("age,town,who\n1,Köln,Zoë\n2,Köln,Zoë\n3,Orly,Ann\n".encode("utf-16"))
    source = open_table(tmp_path / "a.csv", schema, person="who", max_rows=1, encoding="utf-16")
    assert (source.num_read, source.num_rows) == (3, 2)


def test_memory_does_not_depend_on_the_rows(tmp_path):
    """pyarrow reads up to 32 blocks ahead, so blocks are small here."""
    schema, peaks = Schema((Categorical("a", ("é",), nullable=True), Categorical("b", ("x",)))), []
    for num_rows in (800_000, 2_400_000):
        (tmp_path / "a.csv").write_bytes("a,b\n".encode("utf-16") + "é,x\n".encode("utf-16-le") * num_rows)
        source = TableSource(CsvReader(tmp_path / "a.csv", CsvLimits((2**15,)), TextOptions("utf-16")), schema)
        tracemalloc.start()
        assert sum(map(len, source.codes())) == num_rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**19


BAD_OPTIONS = [
    *(({"encoding": name}, "Python has no text encoding") for name in ("klingon", "", "utf 8 x", "a\0", "é", "\ud800")),
    *(({"encoding": name}, "Python has no text encoding") for name in ("hex", "base64", "zip", "rot13", "undefined")),
    *(({"encoding": name}, "expected a name such as latin-1") for name in (5, b"utf-8", ["utf-8"])),
    *(
        ({"encoding": name}, "one cell can change how others are read")
        for name in ("utf-7", "iso2022_jp", "hz", "idna")
    ),
    ({"encoding": "unicode_escape"}, "one cell can change how others are read"),
    *(({"separator": sign}, "expected a single character") for sign in ("", ";;", 5, b";", ["x"])),
    *(({"separator": sign}, "cannot separate cells") for sign in ('"', "\n", "\r", "\0", "a", "0", "§", "\ud800")),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_is_read(tmp_path, options, message):
    for work in (
        lambda: open_table(tmp_path / "none.csv", SCHEMA, **options),
        lambda: open_table(pa.table({"age": [1]}), SCHEMA, **options),
        lambda: draft_schema(tmp_path / "none.csv", **options),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            work()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("options", [{"encoding": "utf-8"}, {"separator": ","}])
def test_options_of_text_are_for_csv_files(tmp_path, options):
    table = pa.table({"age": [1, 2], "town": ["Orly", "secret"]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("age,town\n1,Orly\n")
    for data in (table, table.to_pandas(), tmp_path / "a.parquet", tmp_path, tmp_path / "none.arrow"):
        with pytest.raises(FileError, match=r"(encoding|separator) is for \.csv files; leave it out") as caught:
            open_table(data, SCHEMA, **options)
        assert str(caught.value).isprintable()
    opened = open_table(table, SCHEMA)
    released = type("Release", (), {"schema": SCHEMA})()
    with pytest.raises(ValueError, match="the table is open; give them to open_table"):
        evaluate_table(released, opened, **options)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (TEXT.encode("utf-16"), {}, "its first line is not text in UTF-8: give the encoding of the file"),
        (TEXT.encode("latin-1").replace(b"town", b"t\xf6wn"), {}, "its first line is not text in UTF-8"),
        (TEXT.encode("utf-16"), {"encoding": "latin-1"}, "its first line is not text in iso8859-1"),
        (TEXT.encode("utf-16-le"), {"encoding": "utf-16"}, "no mark of utf-16 at its beginning; give utf-16-le or"),
        (TEXT.encode(), {"encoding": "utf-32"}, "no mark of utf-32 at its beginning"),
        (TEXT.encode("cp500"), {"encoding": "latin-1"}, "not text in|none of the schema's columns"),
        (b"age|town\n1|secret\n", {"encoding": "shift_jis"}, "bars cannot separate cells of a file in shift_jis"),
        (b"age;town\n1;secret\n", {"encoding": "johab"}, "semicolons cannot separate cells of a file in johab"),
        (b"age,town\n1;secret\n", {"separator": ";"}, "columns .age, town.*are there semicolons between"),
        (b"age:town\n1:secret:x\n", {"separator": ":"}, "row 2 .* has 3 cells, expected 2: cells are separated by ':'"),
        ("age;town\n1;secret;x\n".encode("utf-16"), {"encoding": "utf-16"}, "row 2 .* separated by semicolons"),
        ('age;town\n1;"secret\n'.encode("utf-16"), {"encoding": "utf-16"}, "a quote is not closed"),
        (gzip.compress(TEXT.encode("utf-16"), mtime=0)[:-9], {"encoding": "utf-16"}, "is a gzip file: rename it"),
        (b"", {"encoding": "utf-16"}, "is empty"),
        ("\r\n".encode("utf-16"), {"encoding": "utf-16"}, "its first line is empty"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path, content, options, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        open_table(path, SCHEMA, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.isprintable()
    assert "secret" not in text


def test_utf_8_is_read_without_a_copy():
    assert TextOptions().is_utf_8
    assert TextOptions("utf-8-sig").is_utf_8
    assert not TextOptions("latin-1").is_utf_8


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_bytes(("age,town\n" + "3,Köln\n4,Orly\n" * 20).replace(",", ":").encode("utf-16"))
    pandas.DataFrame({"age": [1, 2], "town": ["Orly", "Orly"]}).to_parquet(tmp_path / "rows.parquet")
    SCHEMA.write(tmp_path / "schema.json")
    return tmp_path


def test_commands_read_them(place, capsys):
    text = ["--encoding=utf-16", "--separator=:"]
    assert cli.main(["check", "rows.csv", "--schema=schema.json", *text]) == 0
    assert "40 rows" in capsys.readouterr().out
    assert cli.main(["schema", "rows.csv", "--output=draft.json", "--public", "--decimal=,", *text]) == 0
    assert Schema.read("draft.json").columns[0] == Numeric("age", 3, 4, integer=True, decimal=",")
    release = ["release", "rows.csv", "--schema=schema.json", "--epsilon=9", "--delta=1e-6", "--output=out", *text]
    assert cli.main([*release, "--dry_run"]) == 0
    (place / "tabs.csv").write_text("age,;\ttown,;\n1\tx\n")
    assert cli.main(["schema", "tabs.csv", "--output=tabs.json", "--separator", "\\t"]) == 0
    assert '"town,;"' in (place / "tabs.json").read_text()
    capsys.readouterr()
    assert cli.main(["schema", "tabs.csv", "--output=comma.json", "--separator", "\\t", "--decimal=,"]) == 0
    assert 'kind is null do not say "decimal": ","' in capsys.readouterr().out


@pytest.mark.parametrize(
    "encoding", ["ascii", "euc_jp", "big5", "gb2312", "cp856", "iso8859_6", "utf-16-le", "utf-32-le"]
)
def test_bytes_do_not_depend_on_where_blocks_end(encoding):
    """An id is compared by its bytes. Rows before it move the ends of blocks, and must not change them."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        content = bytes(rng.integers(0, 256, 64 - rng.integers(0, 4), dtype=np.uint8))
        found = set()
        for size in (1, 2, 3, 5, 2**20):
            found.add(TextOptions(encoding).in_utf_8(io.BytesIO(content), size).read())
        assert len(found) == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_ids_that_cannot_be_decoded_are_no_ids(tmp_path, suffix):
    """All of them would be alike, and several persons would be one."""
    lines = b"id,age,town\nM\x81,1,Orly\nM\x8d,2,Orly\nM\xe9,3,Orly\nM,4,Orly\n"
    path = tmp_path / f"rows.csv{suffix}"
    path.write_bytes(gzip.compress(lines) if suffix else lines)
    schema = Schema(SCHEMA.columns, dropped=("id",))
    persons = open_table(path, schema, person="id", encoding="cp1252").persons
    assert persons.used.tolist() == [False, False, True, True]
    assert (persons.num_persons, persons.num_without) == (2, 2)
    assert open_table(path, schema, person="id").persons.num_persons == 4  # as they are, bytes are different


@pytest.mark.long
def test_rows_beside_a_release_of_points_may_have_another_encoding(tmp_path, capsys):
    folder = pathlib.Path(__file__).parent / "data" / "folders_of_0.1" / "release"
    rows = np.random.default_rng(0).normal(size=(300, 2))
    path = tmp_path / "rows.csv"
    names = load(folder).columns
    path.write_text(f"{names[0]};{names[1]}\n" + "".join(f"{x};{y}\n" for x, y in rows), encoding="utf-16")
    for words in (["evaluate", str(folder), f"--against={path}"], ["test", str(folder), str(path)]):
        assert cli.main(words) == 2
        assert "not text in UTF-8" in capsys.readouterr().err
        assert cli.main([*words, "--encoding=utf-16", "--separator=;"]) == 0
        capsys.readouterr()


@pytest.mark.long
def test_public_rows_of_a_test_may_have_another_encoding(place, capsys):
    rows = pa.table({"age": [3, 4] * 300, "town": ["Köln", "Orly"] * 300})
    release_table(rows, SCHEMA, budget=PrivacyBudget(5.0, 1e-6), secure=False).save("out")
    assert cli.main(["test", "out", "rows.csv"]) == 2
    assert "not text in UTF-8" in capsys.readouterr().err
    assert cli.main(["test", "out", "rows.csv", "--encoding=utf-16", "--separator=:"]) == 0
    assert "not rejected" in capsys.readouterr().out


RELEASE = ["release", "rows.csv", "--epsilon=9", "--delta=1e-6", "--output=out"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "rows.csv", "--schema=schema.json"], "its first line is not text in UTF-8"),
        (["check", "rows.csv", "--schema=schema.json", "--encoding=x"], "Python has no text encoding 'x'"),
        (["check", "rows.parquet", "--schema=schema.json", "--encoding=utf-8"], "encoding is for .csv files"),
        (["check", "rows.csv", "--schema=schema.json", "--separator=xy"], "expected a single character"),
        (["schema", "rows.csv", "--output=d.json", "--encoding=hex"], "Python has no text encoding 'hex'"),
        (["schema", "rows.csv", "--output=d.json", "--decimal=x"], "invalid choice"),
        (["schema", "--json_schema", "--output=d.json", "--encoding=utf-8"], "give either a file"),
        ([*RELEASE, "--schema=schema.json", "--encoding=utf-7"], "one cell can change how others are read"),
        ([*RELEASE, "--schema=schema.json", "--separator=a"], "cannot separate cells"),
        ([*RELEASE, "--columns=age", "--lower=0", "--upper=1", "--encoding=utf-7"], "one cell can change how others"),
        ([*RELEASE, "--columns=age", "--lower=0", "--upper=1", "--separator=xy"], "expected a single character"),
    ],
)
def test_bad_flags_end_in_one_line(place, capsys, words, message):
    before = {path: path.read_bytes() for path in place.rglob("*")}
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert {path: path.read_bytes() for path in place.rglob("*")} == before
