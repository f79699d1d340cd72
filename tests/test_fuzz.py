"""Whatever the command is given: exit status 2 and one line, or 0; nothing is written, nothing is spent, no trace."""

import copy
import dataclasses
import itertools
import json
import os
import random
import signal

import numpy as np
import pyarrow as pa
import pytest

import kme_jax
from kme_jax import Ledger, cli, load
from kme_jax._numerics.text import printable
from kme_jax.cli import parsing
from kme_jax.privacy import statement
from kme_jax.table import mixture
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.evaluate import describe_table
from kme_jax.table.readers import write_table
from kme_jax.table.schema import Schema
from tests.fits import no_fit

SCHEMA = Schema(
    (
        Numeric("a", 0, 9, integer=True, unit="years"),
        Numeric("b", 0.0, 1.0, step=0.25, nullable=True),
        Categorical("c", ("u", "v"), default="v"),
        Ordinal("o", ("S", "M")),
        Datetime("d", "2000-01-01", "2001-12-31", "day"),
    )
)
HEADER, ROW = "a,b,c,o,d", "1,0.5,u,S,2000-02-03"
CSV = f"{HEADER}\n" + f"{ROW}\n" * 30
SECRET = "31415926"
EVIL = "\x1b[31m\u202ered\u2066\n\x07"
SECONDS = 10


class _TooLong(BaseException):
    pass


def _files():
    """Names and contents of files that are no private files, or nearly are."""
    nul = CSV.replace("u", "\0")
    return {
        "empty.csv": "", "empty.parquet": "", "empty.npy": "", "empty.npz": "", "empty.json": "",
        "truncated.csv": CSV[:-7], "quote.csv": CSV + f'"{SECRET}', "quotes.csv": CSV + '1,"0"5,u,S,2000-02-03\n',
        "nul.csv": nul, "nul_header.csv": "\0" + CSV, "no_rows.csv": f"{HEADER}\n", "one_row.csv": f"{HEADER}\n{ROW}\n",
        "ragged.csv": CSV + f"{SECRET}\n", "blank.csv": "\n\n\n", "commas.csv": ",,,,\n" * 9,
        "binary.csv": os.urandom(3000), "binary.parquet": os.urandom(3000), "binary.npy": os.urandom(3000),
        "binary.npz": os.urandom(3000), "binary.json": os.urandom(3000), "magic.parquet": b"PAR1" + os.urandom(99),
        "zip.npz": b"PK\x03\x04" + os.urandom(99), "numpy.npy": b"\x93NUMPY" + os.urandom(99),
        "header.csv": ",".join(f"h{i}" for i in range(4000)) + "\n1\n", "long.csv": "x" * 300_000 + "\n1\n",
        "twice.csv": "a,a,b\n1,2,3\n" * 9, "utf16.csv": CSV.encode("utf-16"), "latin.csv": CSV.encode() + b"\xff,1\n",
        "rows.txt": CSV, "rows": CSV, "evil.csv": f'"{EVIL}",b\n1,2\n', "escape.csv": "\x1b[2J,b\n1,2\n" * 5,
        "gzip.csv": b"\x1f\x8b" + os.urandom(99), "carriage.csv": CSV.replace("\n", "\r"), "bom.csv": "\ufeff",
        f"name{EVIL.strip()}.csv": "", "null.json": "null", "list.json": "[]", "number.json": "1e999",
        "text.json": '"x"', "deep.json": "[" * 50_000, "deeper.json": '{"columns":' * 5000 + "1" + "}" * 5000,
        "half.json": '{"columns": [', "nan.json": "NaN", "surrogate.json": '{"columns": "\\ud800"}',
        "evil.json": json.dumps({"columns": [{"name": EVIL, "kind": EVIL, EVIL: EVIL}]}),
        "huge.json": "1" * 10_000, "keys.json": json.dumps({f"k{i}": i for i in range(20_000)}),
    }  # fmt: skip


SPECIAL = ["loop", "loop.csv", "loop.parquet", "loop.json", "fifo.csv", "fifo.parquet", "fifo.json", "fifo.npy",
           "folder.csv", "folder.parquet", "folder.json", "folder", "dangling.csv", "none.csv", "", ".", "/", "~",
           "/dev/null", "/dev/zero", "/dev/full", "loop/x.csv", "rows.csv/x", "é" * 200, "x" * 300 + ".csv",
           "https://example.org/rows.csv", "*.csv", "-", "a\0b.csv", EVIL, "\udcff.csv"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    for name, content in _files().items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "rows.csv").write_text(CSV)
    SCHEMA.write(folder / "schema.json")
    rows = np.random.default_rng(0).uniform(size=(30, 2))
    np.save(folder / "rows.npy", rows)
    np.save(folder / "complex.npy", rows.astype(complex))
    np.save(folder / "three.npy", np.zeros((2, 2, 2)))
    for suffix in ("", ".csv", ".parquet", ".json"):
        (folder / f"loop{suffix}").symlink_to(f"loop{suffix}")
    for suffix in (".csv", ".parquet", ".json", ".npy"):
        os.mkfifo(folder / f"fifo{suffix}")
    for suffix in ("", ".csv", ".parquet", ".json"):
        (folder / f"folder{suffix}").mkdir()
    (folder / "dangling.csv").symlink_to("nowhere")
    write_table(folder / "rows.parquet", pa.table({"a": [1, 2] * 9, "b": [0.5, None] * 9}))
    (folder / "cut.parquet").write_bytes((folder / "rows.parquet").read_bytes()[:-30])
    (folder / "unreadable.csv").write_text(CSV)
    (folder / "unreadable.csv").chmod(0)
    (folder / "bad.ledger").write_text("not a ledger\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(mixture, "fit", no_fit)
        words = ["--schema=schema.json", "--epsilon=1", "--delta=1e-4", "--output=table", "--ledger=known.ledger"]
        assert cli.main(["release", "rows.csv", *words]) == 0
        words = ["--columns=x,y", "--lower=0,0", "--upper=1,1", "--epsilon=1", "--delta=1e-4", "--output=points"]
        assert cli.main(["release", "rows.npy", *words, "--points=rows.npy", "--ledger=known.ledger"]) in (0, 2)
        np.save(folder / "public.npy", rows[:5] ** 2)
        assert cli.main(["release", "rows.npy", *words, "--points=public.npy", "--ledger=known.ledger"]) == 0
    return folder


TABLE = {"file": "rows.csv", "schema": "schema.json", "epsilon": "1", "delta": "1e-4", "output": "out"}
POINTS = {
    "file": "rows.npy", "columns": "x,y", "lower": "0,0", "upper": "1,1", "points": "public.npy", "epsilon": "1",
    "delta": "1e-4", "output": "out",
}  # fmt: skip


def _words(command, flags):
    flags = dict(flags)
    first = [flags.pop("file")] if "file" in flags else []
    return [command, *(f"--{name}={value}" for name, value in flags.items()), *(["--", *first] if first else [])]


def _file_cases():
    """Everything that is no file of rows, in every place where there is to be a file or a folder."""
    names = [*_files(), *SPECIAL, "complex.npy", "three.npy", "cut.parquet", "unreadable.csv", "bad.ledger"]
    for name in names:
        if name not in ("truncated.csv", "bom.csv", "unreadable.csv", "nul.csv", "latin.csv", "quotes.csv"):
            yield _words("release", TABLE | {"file": name})
        yield _words("release", POINTS | {"file": name})
        yield _words("release", TABLE | {"schema": name})
        yield _words("release", POINTS | {"points": name})
        yield _words("show", {"file": name})
    for name in SPECIAL:
        yield _words("release", TABLE | {"ledger": name or "folder"})
        yield _words("release", TABLE | {"output": name if "none" not in name else "folder"} | {"delta": "0.5"})
        yield _words("evaluate", {"against": name, "file": "table"})
        yield _words("evaluate", {"against": name, "file": "points"})
        yield _words("synthesise", {"output": "out", "file": name})
        yield _words("sample", {"output": "out.csv", "file": name})
        yield _words("schema", {"output": "new.json", "file": name})


VALUES = [None, True, 0, -1, 1.5, 1e308, float("nan"), float("inf"), "", " ", "x" * 10_000, EVIL, [], {}, [[[[1]]]],
          [None], {"a": {"a": 1}}, 10**400, "2000-13-45"]  # fmt: skip


def _schema_cases():
    """Every field of a schema with another value, and fields left out; with a δ that is refused in the end."""
    document = json.loads(json.dumps(SCHEMA.to_json()))
    changed = [document | {name: value} for name in document for value in VALUES]
    changed += [{n: v for n, v in document.items() if n != name} for name in document]
    for place, column in enumerate(document["columns"]):
        for name in column:
            for value in random.Random(f"{place} {name}").sample(VALUES, 6):
                other = copy.deepcopy(document)
                other["columns"][place][name] = value
                changed.append(other)
            other = copy.deepcopy(document)
            del other["columns"][place][name]
            changed.append(other)
    return changed


FLAGS = {
    "release": ["schema", "target", "num_rows", "columns", "lower", "upper", "epsilon", "delta", "output", "points",
                "kernel", "length", "num_features", "num_points", "seed", "ledger", "database", "array", "header"],
    "schema": ["output", "public"],
    "synthesise": ["output", "num_points", "num_rows", "seed"],
    "show": ["json", "seed"],
    "sample": ["output", "num_rows", "where", "seed", "weighted"],
    "plan": ["num_rows", "dim", "epsilon", "delta", "public_points", "kernel", "length", "num_features", "seed"],
    "evaluate": ["against", "array", "output"],
}  # fmt: skip
POOL = ["", "0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "5e-324", "9" * 5000, "1" * 30, "0x10", "1_000", "a,b",
        ",", "1,2,3", "1,nan", "null", "true", "1j", "=", "--", "../x", "loop", "fifo.csv", "folder", "table", EVIL,
        "\udcff", "٣", "½", "a>=1", "c=zzz", "a=", "{}", "%s%n", "$(id)", "x" * 5000]  # fmt: skip


def _flag_cases():
    """Random flags with values that are none; half of the commands are right but for one flag."""
    rng = random.Random(20180710)
    right = {
        "release": [TABLE, POINTS], "schema": [{"file": "rows.csv", "output": "new.json"}],
        "synthesise": [{"file": "table", "output": "out"}, {"file": "points", "output": "out"}],
        "show": [{"file": "table"}], "sample": [{"file": "table", "output": "out.csv"}],
        "plan": [{"num_rows": "100", "dim": "2", "epsilon": "1", "delta": "1"}],
        "evaluate": [{"file": "table", "against": "rows.csv"}],
    }  # fmt: skip
    for command, names in FLAGS.items():
        for _ in range(45 if command == "release" else 16):
            flags = dict(rng.choice(right[command]))
            for name in rng.sample(names, min(rng.choice([1, 1, 3, 6]), len(names))):
                flags[name] = rng.choice(POOL)
            yield _words(command, flags)
    yield from ([], [""], ["--"], ["nothing"], [EVIL], ["release"], ["\udcff"],
                  ["show", "a", "b"], ["plan", "--json"], ["release", "--epsilon"], ["9" * 5000], ["-x"])  # fmt: skip


def _tree(folder):
    found = {}
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            status = os.lstat(os.path.join(root, name))
            found[os.path.join(root, name)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def _run(words, place, capsys, before):
    def stop(*_):
        raise _TooLong(f"{words!r:.300}")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        status = cli.main(words)
    finally:
        signal.alarm(0)
    printed = capsys.readouterr()
    both = printed.out + printed.err
    said = f"{words!r:.300}: {printed.err:.300}"
    assert status in (0, 2), said
    assert "Traceback" not in both, said
    assert SECRET not in both, said
    assert all(letter.isprintable() or letter == "\n" for letter in both), said
    after = _tree(place)
    if status == 0:
        for path in sorted(set(after) - set(before), reverse=True):
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        return 0
    lines = printed.err.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("error: "), said
    assert "defect" not in lines[0], said
    assert len(lines[0]) < 2500, said
    assert printed.out == "", said
    assert {path for path in after if after[path] != before.get(path) and not os.path.isdir(path)} == set(), said
    assert set(after) == set(before), said
    return 2


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(mixture, "fit", no_fit)
    return place


def _check(cases, place, capsys):
    before, found, wrong = _tree(place), [], []
    spent = len(Ledger("known.ledger").spent("rows.csv"))
    for words in cases:
        try:
            found.append(_run(words, place, capsys, before))
        except AssertionError as error:
            wrong.append(str(error).split("\nassert")[0][:500])
    assert not wrong, f"{len(wrong)} of {len(found) + len(wrong)}:\n" + "\n".join(wrong)
    assert len(Ledger("known.ledger").spent("rows.csv")) == spent
    return found


@pytest.mark.parametrize("stride", [16, *(pytest.param(stride, marks=pytest.mark.long) for stride in (4, 1))])
def test_files(inside, capsys, stride):
    """Every case, or one of so many."""
    found = _check(itertools.islice(_file_cases(), 0, None, stride), inside, capsys)
    assert len(found) >= 400 // stride
    assert np.mean(np.equal(found, 2)) > 0.95


@pytest.mark.slow
def test_schemas(inside, capsys, monkeypatch):
    cases = _schema_cases()
    (inside / "other.json").write_text("")

    def words():
        for case in cases:
            text = json.dumps(case)
            (inside / "other.json").write_text(text + " " * max(0, 30_000 - len(text)))
            os.utime("other.json", ns=(0, 0))
            yield _words("release", TABLE | {"schema": "other.json", "delta": "0.5"})

    (inside / "other.json").write_text(" " * 30_000)
    os.utime("other.json", ns=(0, 0))
    found = _check(words(), inside, capsys)
    (inside / "other.json").unlink()
    assert len(found) >= 150
    assert set(found) == {2}


@pytest.mark.long
def test_flags(inside, capsys):
    found = _check(_flag_cases(), inside, capsys)
    assert len(found) >= 120
    assert np.mean(np.equal(found, 2)) > 0.7


# -- what is printed


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError, RecursionError, OverflowError, IndexError])
def test_a_defect_is_one_line_without_its_text(error, inside, capsys, monkeypatch):
    def fail(*_):
        raise error(f"secret {SECRET}")

    monkeypatch.setattr(parsing, "parse", fail)
    assert cli.main(["show", "table"]) == 2
    printed = capsys.readouterr()
    text = "this is a defect of kme-jax: please report it"
    assert printed.err.startswith(f"error: {error.__name__}: {text}")
    assert SECRET not in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("words", [["--debug", "show", "none"], ["show", "none", "--debug"]])
def test_debug_shows_the_trace(words, inside, capsys):
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.splitlines()[-1] == "error: none: no such folder"
    assert cli.main(["show", "--", "--debug"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_printable():
    assert printable("plain text, é 東京 ✓") == "plain text, é 東京 ✓"
    assert printable("\x1b[31m\u202e\u2066\n\r\x7f\x9b\udcff") == "\\x1b[31m\\u202e\\u2066\\n\\r\\x7f\\x9b\\udcff"
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    for code in [*range(32), 127, *range(128, 160), 0x200B, 0x2028, 0x2029, *range(0x202A, 0x202F), 0xFEFF]:
        assert chr(code) not in printable(f"a{chr(code)}b")


def test_what_artifacts_say_is_escaped(inside, capsys, monkeypatch):
    """Names of columns, the relation, the unit and file names reach no terminal as they are."""
    said = json.loads((inside / "table" / "privacy.json").read_text())
    said |= {"relation": EVIL, "unit": EVIL, "not_covered": [EVIL]}
    said["measurements"][0] |= {"name": EVIL, "source": EVIL, "noise": EVIL, "norm": EVIL}
    texts = [statement.describe(said)]
    found = {"warning": "NOT PRIVATE", "mean_total_variation": {}}
    found["columns"] = [{"name": EVIL, "total_variation": 0.5, "yardstick": 0.1}]
    both = {"private": 0.5, "synthetic": None}
    found["columns"][0] |= {"mean": both, "sd": both | {"synthetic": 0.1}, "mean_error": None, "quantile_error": 0.3}
    found |= {
        "pairs": [{"names": [EVIL, EVIL], "total_variation": 0.5, "unseen": 0.1, "yardstick": 0.1}],
        "explained": [{"names": [EVIL, EVIL]} | both],
        "correlations": [{"names": [EVIL, EVIL]} | both | {"slopes": {"private": [1.0, 2.0], "synthetic": None}}],
    }
    texts.append(describe_table(found))
    for text in texts:
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert "red" in text
        assert "\nred" not in text
    release = load("points")
    bounds = dataclasses.replace(release.measurement.bounds, names=(EVIL, "\x1b"))
    release = dataclasses.replace(release, measurement=dataclasses.replace(release.measurement, bounds=bounds))
    monkeypatch.setattr(kme_jax, "load", lambda *_: release)
    for words in (["show", "points"], ["show", "points", "--json"]):
        assert cli.main(words) == 0
        printed = capsys.readouterr().out
        assert "red" in printed
        assert all(letter.isprintable() or letter == "\n" for letter in printed)
    assert cli.main(["sample", "points", f"--output={EVIL.strip()}.csv"]) == 0
    printed = capsys.readouterr()
    assert all(letter.isprintable() or letter == "\n" for letter in printed.out + printed.err)
    os.unlink(f"{EVIL.strip()}.csv")
