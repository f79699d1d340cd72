import csv
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import types
import zipfile

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kme_jax import (
    Gaussian,
    Ledger,
    Release,
    __version__,
    cli,
    load,
)
from kme_jax.cli import commands, model, parsing
from kme_jax.cli.commands import COMMANDS
from kme_jax.cli.parsing import make_parser
from kme_jax.points.files import read_rows
from kme_jax.points.measure import plan_map
from kme_jax.points.release import Measurement
from kme_jax.privacy import statement
from tests import artifacts

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = [sys.executable, "-W", "ignore", "-m", "kme_jax"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
NUM_ROWS = 300
RELEASE = {
    "file": "rows.csv",
    "columns": "a,b",
    "lower": "0,-1",
    "upper": "1,1",
    "epsilon": "1",
    "delta": "1e-4",
    "points": "points.csv",
    "output": "out",
}


def _command(**changes):
    flags = RELEASE | changes
    words = [flags.pop("file"), *(flags.pop("words", []))]
    return ["release", *words, *(f"--{name}={value}" for name, value in flags.items() if value is not None)]


def _write_csv(path, rows, names=("id", "b", "a")):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def _rows(seed=0):
    rng = np.random.default_rng(seed)
    return rng.beta(2, 5, NUM_ROWS), rng.normal(0.2, 0.3, NUM_ROWS)


def _fill(folder, seed=0):
    a, b = _rows(seed)
    # A number to look for in what is printed: 0.31415926.
    a[7] = 0.31415926
    _write_csv(folder / "rows.csv", [[i, y, x] for i, (x, y) in enumerate(zip(a, b, strict=True))])
    grid = np.random.default_rng(5).uniform([0, -1], [1, 1], (40, 2))
    _write_csv(folder / "points.csv", [[0, y, x] for x, y in grid])
    np.save(folder / "rows.npy", np.stack([a, b], axis=1))


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with a private file and a release of it."""
    folder = tmp_path_factory.mktemp("released")
    _fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(_command()) == 0
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch, released):
    """The same in a folder of the test's own, where commands run."""
    _fill(tmp_path)
    for path in (released / "out").iterdir():
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_release_has_what_it_should(released):
    assert sorted(path.name for path in released.iterdir()) == [
        "out",
        "points.csv",
        "rows.csv",
        "rows.csv.ledger",
        "rows.npy",
    ]
    made = load(released / "out")
    assert made.columns == ("a", "b")
    assert made.noisy.mechanism.secure
    jsonschema.Draft202012Validator(statement.schema()).validate(made.statement)
    assert made.statement["public_inputs"] == ["kernel", "public points", "bounds of a, b"]
    points = read_rows(released / "points.csv", columns=["a", "b"])
    np.testing.assert_allclose(made.sample.points, points, atol=1e-12)
    # The noise has no seed: errors are 0.013 ± 0.010 and -0.016 ± 0.027 (means and standard deviations of 40 runs).
    errors = made.sample.expectation(lambda z: z) - [x.mean() for x in _rows()]
    assert (np.abs(errors) < [0.1, 0.25]).all()
    assert made.sample.weights.min() >= 0
    assert made.sample.weights.sum() == pytest.approx(1)
    (spent,) = Ledger(released / "rows.csv.ledger").spent("rows.csv")
    assert (spent.epsilon, spent.delta) == (1.0, 1e-4)


def test_columns_of_any_file_are_released_by_name(place, capsys):
    a, b = np.load("rows.npy").T
    (place / "data").mkdir()
    pq.write_table(pa.table({"b": b, "name": ["secret"] * NUM_ROWS, "a": a}), "data/rows.parquet")
    assert cli.main(_command(file="data/rows.parquet")) == 0
    assert len(Ledger("data/rows.parquet.ledger").spent("rows.parquet")) == 1
    assert "wrote out; the ledger data/rows.parquet.ledger records what was spent" in capsys.readouterr().out
    said = []
    for name in ("data/rows.parquet", "rows.npy", "rows.csv"):
        assert cli.main(["evaluate", "out", f"--against={name}", "--no_distance"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert cli.main(["evaluate", "out", "--against=rows.csv", "--no_distance", "--separator=;"]) == 2


def test_lengths_reach_from_one_public_point_to_the_next():
    line = np.array([0.0, 0.1, 0.2, 0.3, 0.3, 0.9])[:, None]  # one of them twice, and one far away
    assert model.default_length(line) == pytest.approx(0.2)
    assert model.default_length(line[3:5]) == 0
    crowd = np.random.default_rng(0).uniform(size=(5000, 2))
    assert 0.01 < model.default_length(crowd) < 0.03
    many_columns = np.random.default_rng(0).uniform(size=(100, 20))
    assert model.default_length(many_columns) == pytest.approx((20 / 6) ** 0.5 / 2)
    args = make_parser().parse_args(_command())
    assert model.length(args, 1, line) == pytest.approx(0.2)
    assert model.length(args, 2, crowd) == model.length(args, 2) == pytest.approx(0.03 * 2**0.5)
    args.length = 0.3
    assert model.length(args, 1, line) == 0.3
    assert model.kernel(args, 0.1) == Gaussian(1 / (2 * 0.1**2))


def test_show(released, capsys):
    assert cli.main(["show", str(released / "out")]) == 0
    text = capsys.readouterr().out
    assert "(1, 0.0001)-differential privacy for one row of 300" in text
    assert "40 points" in text
    assert cli.main(["show", str(released / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == load(released / "out").statement


@pytest.mark.slow
def test_points_beyond_the_bounds_are_told(place, capsys):
    _write_csv(place / "points.csv", [[0, -3, 0.5], [1, 0.5, 0.5], [2, 0.5, 1.5]])
    assert cli.main(_command()) == 0
    assert "warning: points.csv: 2 of 3 rows were beyond a bound, and were moved to it" in capsys.readouterr().err
    np.testing.assert_allclose(load("out").sample.points, [[0.5, -1], [0.5, 0.5], [1, 0.5]])


def test_sample(place, capsys):
    assert cli.main(["sample", "old", "--output=s.csv", "--num_rows=500"]) == 0
    rows = read_rows(place / "s.csv", columns=["b", "a"])
    points = load(place / "old").sample.points
    assert rows.shape == (500, 2)
    assert {tuple(row[::-1]) for row in rows} <= {tuple(point) for point in points}
    assert cli.main(["sample", "old", "--output=w.npz", "--weighted"]) == 0
    with np.load(place / "w.npz") as file:
        assert list(file["columns"]) == ["a", "b", "weight"]
        np.testing.assert_array_equal(file["rows"][:, :2], points)
    assert "500 rows" in capsys.readouterr().out


def test_evaluate(place, capsys):
    assert cli.main(["evaluate", "old", "--against=rows.csv", "--output=errors.json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("NOT PRIVATE")
    found = json.loads((place / "errors.json").read_text())
    assert found["warning"].startswith("NOT PRIVATE")
    sample, rows = load(place / "old").sample, np.load("rows.npy")
    for i, column in enumerate(found["columns"]):
        x, z, w = rows[:, i].clip([0, -1][i], 1), sample.points[:, i], sample.weights
        assert column["mean"] == pytest.approx({"rows": x.mean(), "release": w @ z})
        spread = np.sqrt(w @ (z - w @ z) ** 2)
        assert column["standard_deviation"] == pytest.approx({"rows": x.std(), "release": spread})
        at = np.concatenate([x, z])
        worst = max(abs((x <= t).mean() - w @ (z <= t + 1e-12)) for t in at)
        assert column["cumulative_error"] == pytest.approx(worst, abs=2e-3)
    x = rows.clip([0, -1], 1)
    covariance = np.cov(sample.points.T, aweights=sample.weights)
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert found["correlation_error"] == pytest.approx(abs(np.corrcoef(x.T)[0, 1] - correlation))
    assert 0 < found["distance"] < 0.5
    assert "0.31415926" not in text
    assert cli.main(["evaluate", "old", "--against=rows.npy", "--no_distance"]) == 0


@pytest.mark.long
@pytest.mark.parametrize("process", [False, True])
def test_with_bounds_alone(process, place, capsys):
    """A whole session. As a user would have it, each command is another process."""

    def do(*words):
        if process:
            return subprocess.run(
                [*PROGRAM, *words], capture_output=True, text=True, check=True, env=ENVIRONMENT
            ).stdout
        if words == ("--help",):
            with pytest.raises(SystemExit, match="0"):
                cli.main(list(words))
        else:
            assert cli.main(list(words)) == 0
        return capsys.readouterr().out

    text = do(*_command(points=None, num_features=100, num_points=50, kernel="matern52", length=0.4))
    assert "differential privacy" in text
    made = load("out")
    assert made.sample.points.shape == (50, 2)
    assert (made.sample.points >= [0, -1]).all()
    assert (made.sample.points <= 1).all()
    assert "70 points" in do("synthesise", "out", "--output=again", "--num_points=70", "--seed=3")
    again = load("again")
    assert again.statement == made.statement
    assert again.seed == 3
    assert again.sample.points.shape == (70, 2)
    assert "rows" in do("sample", "again", "--output=rows-for-all.csv")
    assert "a" in do("--help")
    assert not list(place.glob("*.measured"))


PLAN = ["plan", "--num_rows=3000", "--dim=1", "--epsilon=0.1,10", "--delta=1e-6", "--length=0.3"]


@pytest.mark.long
def test_a_plan_estimates_errors(capsys):
    assert cli.main([*PLAN, "--json"]) == 0
    little, much = json.loads(capsys.readouterr().out)
    assert 0 < much["mean_error"] < little["mean_error"] < 0.2
    assert 0 < much["probability_error"] < little["probability_error"] < 0.4


def test_plan(capsys):
    assert cli.main([*PLAN, "--no_errors", "--json"]) == 0
    little, much = json.loads(capsys.readouterr().out)
    assert little["sigma"] > 10 * much["sigma"]
    assert little["noise_norm"] == pytest.approx(little["sigma"] * little["num_features"] ** 0.5)
    assert cli.main([*PLAN, "--no-errors", "--public-points=20"]) == 0
    text = capsys.readouterr().out
    assert "3000 rows of 1 columns" in text
    assert "mean" not in text


@pytest.mark.parametrize(("length", "is_random"), [("0.15", False), ("0.05", True)])
def test_a_plan_says_that_features_are_random(length, is_random, capsys):
    """With three columns, the default length has random features, which may have no intervals later."""
    words = [*PLAN, "--no_errors", "--dim=3", f"--length={length}"]
    assert cli.main(words) == 0
    assert ("random features: there is no test" in capsys.readouterr().out) is is_random


def test_every_module_of_commands_is_a_command():
    folder = pathlib.Path(commands.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(COMMANDS)


def test_a_command_is_one_module_and_one_line(monkeypatch, capsys):
    """A new one, tried as a contributor would add it."""
    new = types.ModuleType("kme_jax.cli.commands.count", "kme_jax count: how many rows.")
    new.SUMMARY, new.DESCRIPTION = "Count.", "Count the rows."
    new.add_flags = lambda parser: parser.add_argument("file")
    new.run = lambda args: print(f"counted {args.file}")
    monkeypatch.setitem(sys.modules, new.__name__, new)
    monkeypatch.setattr(parsing, "COMMANDS", (*COMMANDS, "count"))
    assert cli.main(["count", "rows.csv"]) == 0
    assert capsys.readouterr().out == "counted rows.csv\n"
    assert cli.main(["count"]) == 2


def _save_generator(name, folder):
    """A generator that was hardly trained: of numbers, or of numbers with labels."""
    import jax

    from kme_jax import FourierMap, LabelledMap, PrivacyBudget
    from kme_jax.generators import MLP, Training, measure_generator

    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(500, 2)), rng.integers(0, 3, 500)
    features = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 20, 2)
    if name == "labelled":
        features, rows = LabelledMap(features, 3), np.column_stack([rows, labels])
    measurement = measure_generator(rows, features, budget=PrivacyBudget(2.0, 1e-4))
    network, training = MLP(widths=(4,), code=2), Training(num_steps=50)  # as in test_artifacts: a program for both
    return measurement.synthesise(network, training).save(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the generator does not fit")
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("numbers", ["x1", "x2"]),
        ("labelled", ["x1", "x2", "label"]),
    ],
)
def test_rows_of_a_generator(name, columns, tmp_path_factory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = str(_save_generator(name, tmp_path_factory.mktemp("generators") / name))
    expected = load(folder).sample(30, seed=3)
    assert cli.main(["sample", folder, "--num_rows=30", "--seed=3", "--output=s.csv"]) == 0
    assert "wrote s.csv: 30 rows" in capsys.readouterr().out
    np.testing.assert_array_equal(read_rows("s.csv", columns=columns), expected)
    assert pathlib.Path("s.csv").read_text().startswith(",".join(columns) + "\n")
    assert cli.main(["sample", folder, "--num_rows=30", "--seed=3", "--output=s.npz"]) == 0
    with np.load("s.npz") as file:
        assert list(file["columns"]) == columns
        np.testing.assert_array_equal(file["rows"], expected)
    assert cli.main(["show", folder]) == 0
    assert f"kme-jax sample {folder} --output=rows.csv draws rows from it" in capsys.readouterr().out
    for words, message in (
        (["--output=s.parquet"], "expected a .csv or .npz file"),
        (["--output=t.csv", "--weighted"], "--weighted does not apply to a generator"),
        (["--output=t.csv", "--where=x1>0"], "--where is for releases of tables"),
    ):
        assert cli.main(["sample", folder, *words]) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.csv", "s.npz"]


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kme-jax {__version__}\n")


def test_every_command_has_help(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            cli.main([name, "--help"])
        assert stopped.value.code == 0
        assert f"usage: kme-jax {name}" in capsys.readouterr().out


def test_nothing_that_is_printed_depends_on_values(place, capsys):
    """Cells that are empty, text, infinite, out of bounds or constant take the same way as any others."""
    said = []
    cells = ["", "NA", "inf", "-inf", "nan", "1e400", "-1e308", "secret", "0x10", '"quoted, with a comma"', "-0", "٣"]
    for case in range(3):
        lines = ["id,b,a"]
        for i in range(NUM_ROWS):
            pair = [("0.5", "0.25"), (cells[i % 12], cells[(5 * i) % 11]), ("", "")][case]
            lines.append(f"{i},{pair[0]},{pair[1]}")
        (place / "rows.csv").write_text("\n".join(lines) + "\n")
        assert cli.main(_command(output="new", again=None, ledger=f"l{case}")) == 0
        captured = capsys.readouterr()
        said.append((captured.out.replace(f"l{case}", "l"), captured.err))
        (place / "new").rename(place / f"new{case}")
    assert said[0] == said[1] == said[2]
    assert said[0][1] == ""


def test_cells_are_clamped_and_filled(place):
    """inf is the bound, and what is no number the middle, in the sums themselves."""
    from kme_jax import Bounds, integer_embedding

    bounds = Bounds.create([0.0, -1.0], [1.0, 1.0])
    feature_map = plan_map(model.KERNELS["gaussian"](0.2), bounds.proposal, bounded=True)
    strange = np.array([["inf", "nan"], ["7", "what"], ["-1e400", "-2"]])
    plain = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    totals = [integer_embedding(feature_map, rows, bounds=bounds).total for rows in (strange, plain)]
    np.testing.assert_array_equal(*totals)
    outside = integer_embedding(feature_map, bounds.to_unit(plain)).total
    np.testing.assert_array_equal(totals[1], outside)
    assert (bounds.from_unit(np.array([[-1.0, 2.0]])) == [[0.0, 1.0]]).all()


# -- bad input


def _ragged(place):
    (place / "rows.csv").write_text("id,b,a\n1,2,3\n1,2\n")


def _one_row(place):
    _write_csv(place / "rows.csv", [[0, 0.1, 0.2]])


def _later_version(place):
    path = place / "old" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))


def _forged(**others):
    """Other arrays for points, and a manifest that fits."""

    def forge(place):
        path = place / "old" / "points.npz"
        path.write_bytes(artifacts.write_arrays(artifacts.read_arrays(path.read_bytes()) | others))
        artifacts.seal(place / "old")

    return forge


def _spent(place):
    source = load("old").noisy.mechanism
    Ledger(place / "rows.csv.ledger").spend("rows.csv", source)


SAVE = np.save
BAD = {
    "no command": ([], "COMMAND"),
    "unknown command": (["publish"], "invalid choice"),
    "unknown flag": (_command(fancy=1), "^error: unknown flag --fancy; see kme-jax release --help$"),
    "a flag of others": (
        ["plan", "--person=id"],
        "^error: unknown flag --person: a plan reads .* --max_rows alone; see",
    ),
    "misspelt flag": (_command(epsilom=1), "^error: unknown flag --epsilom: did you mean --epsilon[?]; see"),
    "misspelt required flag": (_command(epsilon=None, epsilom=1), "^error: unknown flag --epsilom: did you mean"),
    "flag cut short": (_command(epsilon=None, eps=1, delta=None), "^error: unknown flag --eps: did you mean --epsilon"),
    "no bounds": (_command(lower=None, upper=None), "--lower"),
    "no upper bounds": (_command(upper=None), "--upper"),
    "no epsilon": (_command(epsilon=None), "--epsilon"),
    "no delta": (_command(delta=None), "--delta"),
    "no output": (_command(output=None), "--output"),
    "bounds reversed": (_command(lower="0,1", upper="1,-1"), "bounds of b"),
    "bounds equal": (_command(lower="0,1"), "bounds of b"),
    "bounds not finite": (_command(upper="1,inf"), "bounds of b"),
    "bounds without a number": (_command(upper="1,nan"), "bounds of b"),
    "bounds no numbers": (_command(upper="1,x"), "expected numbers"),
    "bounds too wide for floats": (_command(lower="0,-1.7e308", upper="1,1.7e308"), "bounds of b"),
    "bounds of different length": (_command(upper="1"), "as many lower as upper"),
    "a bound too many": (_command(lower="0,0,0", upper="1,1,1"), "one pair for each of 2 columns"),
    "a column too many": (_command(columns=None, words=["--no_header"]), "row 1 has 3 cells, expected 2"),
    "a column too few": (_command(columns="a", lower="0", upper="1", file="rows.npy"), "2 columns, but 1"),
    "epsilon 0": (_command(epsilon=0), "epsilon must be positive"),
    "epsilon negative": (_command(epsilon=-1), "epsilon must be positive"),
    "epsilon nan": (_command(epsilon="nan"), "epsilon must be positive"),
    "epsilon infinite": (_command(epsilon="inf"), "epsilon must be positive"),
    "epsilon huge": (_command(epsilon=1e200), "at most"),
    "epsilon a word": (_command(epsilon="much"), "--epsilon"),
    "epsilon tiny": (_command(epsilon=1e-14), "larger epsilon"),
    "delta 0": (_command(delta=0), "delta"),
    "delta 1": (_command(delta=1), "delta must be"),
    "delta negative": (_command(delta=-1e-6), "delta must be"),
    "delta of 1/N": (_command(delta=1 / NUM_ROWS), "below 1/N"),
    "no such file": (_command(file="none.csv"), "no such file"),
    "wrong suffix": (_command(file="rows.txt"), r"expected a \.csv"),
    "a folder for a file": (_command(file="f.csv"), "folder without files", lambda place: (place / "f.csv").mkdir()),
    "no names of columns": (_command(columns=None), "give the names of columns"),
    "unknown column": (_command(columns="a,c"), "no column 'c'"),
    "column twice in file": (
        _command(),
        "columns 1 and 2 have the same name",
        lambda place: (place / "rows.csv").write_text("a,a,b\n1,2,3\n"),
    ),
    "column named twice": (_command(columns="a,a"), "must be different"),
    "column without a name": (_command(columns="a,"), "not empty"),
    "lines of different length": (_command(), r"row 3 \(the header line is row 1\) has 2 cells, expected 3", _ragged),
    "empty file": (_command(), "is empty", lambda place: (place / "rows.csv").write_text("")),
    "no rows": (_command(), "at least one row", lambda place: (place / "rows.csv").write_text("a,b\n")),
    "one row": (_command(), "at least 2 rows", _one_row),
    "damaged .npy": (_command(file="bad.npy"), "damaged", lambda place: (place / "bad.npy").write_bytes(b"hello")),
    "damaged .npz": (_command(file="bad.npz"), "damaged", lambda place: (place / "bad.npz").write_bytes(b"PK")),
    "one dimension": (_command(file="flat.npy"), "shape", lambda place: SAVE(place / "flat.npy", np.ones(9))),
    "objects": (
        _command(file="o.npy"),
        "objects",
        lambda place: SAVE(place / "o.npy", np.array([[{}, 1]], object), allow_pickle=True),
    ),
    "several arrays": (
        _command(file="s.npz"),
        "say which one: x, y",
        lambda place: np.savez(place / "s.npz", x=np.ones((9, 2)), y=np.ones(3)),
    ),
    "unknown array": (
        _command(file="s.npz", array="z"),
        "no array 'z'",
        lambda place: np.savez(place / "s.npz", x=np.ones((9, 2)), y=np.ones(3)),
    ),
    "existing folder": (_command(output="old"), "never overwritten"),
    "existing file": (_command(output="rows.csv"), "never overwritten"),
    "no folder to write to": (_command(output="none/out"), "cannot be written"),
    "read-only folder": (_command(output="/proc/out"), "cannot be written"),
    "interrupted before": (
        _command(),
        "kme-jax synthesise out.measured --output=out",
        lambda place: (place / "out.measured").mkdir(),
    ),
    "ledger is a folder": (_command(ledger="old"), "is not a file"),
    "ledger where the release goes": (_command(ledger="./out"), "this is a folder of the release"),
    "ledger where the measurement goes": (_command(ledger="out.measured"), "this is a folder of the release"),
    "partials where the release goes": (
        _command(partials="./out"),
        "this is a folder of the release, and the sums are private",
    ),
    "partials among other files": (_command(partials="old"), "is not a folder of partial sums"),
    "partials in no folder": (_command(partials="none/sums"), "cannot be used"),
    "ledger is another file": (_command(ledger="rows.csv"), "line 1 is not a line of a ledger"),
    "ledger in no folder": (_command(ledger="none/ledger"), "cannot be opened"),
    "ledger read-only": (_command(ledger="/proc/ledger"), "cannot be opened"),
    "no name in the ledger": (_command(database=""), "needs a name"),
    "released before": (_command(), r"was released before, with a total of \(ε, δ\) = \(1, 0.0001\)", _spent),
    "no points": (_command(points=None, num_points=0), "--num_points"),
    "odd features": (_command(points=None, num_features=7), "--num_features"),
    "length 0": (_command(length=0), "--length"),
    "length negative": (_command(length=-1), "--length"),
    "length nan": (_command(length="nan"), "--length"),
    "unknown kernel": (_command(kernel="linear"), "invalid choice"),
    "no such points": (_command(points="none.csv"), "no such file"),
    "points missing a number": (
        _command(),
        "points.csv: row 1 does not have a number in every column",
        lambda place: (place / "points.csv").write_text("a,b\n,1\n"),
    ),
    "points of other columns": (
        _command(file="rows.npy", points="p.npy", columns=None),
        "3 columns",
        lambda place: SAVE(place / "p.npy", np.ones((5, 3))),
    ),
    "the private file as points": (_command(points="rows.csv"), "is the private file"),
    "a number of points that are given": (_command(num_points=7), "does not apply"),
    "a name that is too long": (_command(output="o" * 250), "too long"),
    "the folder one is in": (_command(output="."), "exists"),
    "a quote that does not end": (
        _command(),
        "a quote is not closed",
        lambda place: (place / "rows.csv").write_text('id,b,a\n1,2,3\n1,"2,3\n1,2,3\n'),
    ),
    "a file that is no array": (
        _command(file="t.npz"),
        "something else",
        lambda place: zipfile.ZipFile(place / "t.npz", "w").writestr("rows.txt", "1 2"),
    ),
    "names that are numbers": (_command(columns="0.1,0.2"), "--no_header"),
    "show a measurement": (
        ["show", "measured"],
        "kme-jax synthesise measured",
        lambda place: load(place / "old").measurement.save(place / "measured"),
    ),
    "negative seed": (_command(seed=-1), "--seed"),
    "show nothing": (["show", "none"], "no such folder"),
    "show no release": (["show", "."], "is no release"),
    "show what is damaged": (
        ["show", "old"],
        "is damaged",
        lambda place: (place / "old" / "release.npz").write_bytes(b"x"),
    ),
    "show a later version": (["show", "old"], "version 99.*update", _later_version),
    "show an altered statement": (
        ["show", "old"],
        "not the file that manifest",
        lambda place: (place / "old" / "privacy.json").write_text("{}"),
    ),
    "sample to another suffix": (["sample", "old", "--output=s.txt"], r"expected a \.csv or \.npz"),
    "sample over a file": (["sample", "old", "--output=rows.csv"], "exists"),
    "sample into no folder": (["sample", "old", "--output=none/s.csv"], "no such folder"),
    "sample no rows": (["sample", "old", "--output=s.csv", "--num_rows=0"], "--num_rows"),
    "sample signed weights": (
        ["sample", "old", "--output=s.csv"],
        "probability vector",
        _forged(weights=np.full(40, -0.5)),
    ),
    "evaluate against nothing": (["evaluate", "old", "--against=none.csv"], "no such file"),
    "evaluate against other columns": (["evaluate", "old", "--against=points.csv", "--no_header"], "3 cells"),
    "evaluate into the release": (
        ["evaluate", "old", "--against=rows.csv", "--output=old/errors.json"],
        "NOT PRIVATE",
    ),
    "plan with no delta": (["plan", "--num_rows=99", "--dim=1", "--epsilon=1", "--delta=0"], "above 0"),
    "points of another width": (
        ["show", "old"],
        "points: expected the shape",
        _forged(points=np.ones((3, 1)), weights=np.ones(3) / 3),
    ),
    "evaluate over a file": (["evaluate", "old", "--against=rows.csv", "--output=rows.csv"], r"\.json"),
    "synthesise over a folder": (["synthesise", "old", "--output=old"], "never overwritten"),
    "synthesise given points": (
        ["synthesise", "old", "--output=new", "--num_points=5"],
        "does not apply with public points",
    ),
    "synthesise no points": (["synthesise", "old", "--output=new", "--num_points=0"], "--num_points"),
    "plan for one row": (["plan", "--num_rows=1", "--dim=1", "--epsilon=1", "--delta=1e-6"], "at least 2 rows"),
    "plan for too many rows": (
        ["plan", f"--num_rows={10**15}", "--dim=1", "--epsilon=1", "--delta=1e-18"],
        "rows can be summed",
    ),
    "plan for no columns": (["plan", "--num_rows=99", "--dim=0", "--epsilon=1", "--delta=1e-6"], "--dim"),
    "plan with a large delta": (["plan", "--num_rows=99", "--dim=1", "--epsilon=1", "--delta=0.1"], "below 1/N"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(case, place, capsys):
    words, match, *prepare = BAD[case]
    (place / "rows.txt").write_text("1 2\n")
    for step in prepare:
        step(place)
    before = _tree(place)
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 400
    assert re.search(match, lines[0]), lines[0]
    assert "0.3141" not in captured.err
    assert _tree(place) == before


def test_a_full_disk(place, capsys, monkeypatch):
    """Nothing is spent, since room is looked for first."""
    before = _tree(place)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(_command()) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert _tree(place) == before


def test_without_opendp(place, capsys, monkeypatch):
    before = _tree(place)
    monkeypatch.setitem(sys.modules, "opendp", None)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    assert cli.main(_command()) == 2
    assert 'pip install "kme_jax[secure]"' in capsys.readouterr().err
    assert _tree(place) == before


def test_an_interrupted_synthesis_can_be_finished(place, capsys, monkeypatch):
    with monkeypatch.context() as patch:

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(Measurement, "synthesise", interrupt)
        assert cli.main(_command()) == 130
    assert "kme-jax synthesise out.measured --output=out" in capsys.readouterr().err
    assert not (place / "out").exists()
    assert cli.main(["synthesise", "out.measured", "--output=out"]) == 0
    assert load("out").statement == Measurement.load("out.measured").statement
    assert len(Ledger("rows.csv.ledger").spent("rows.csv")) == 1


def test_again_adds_up(place, capsys):
    assert cli.main(_command()) == 0
    assert cli.main([*_command(output="second"), "--again"]) == 0
    total = load("second").statement["total"]
    assert total["releases"] == 2
    assert 1.3 < total["epsilon"] < 1.7


def test_a_link_is_another_name_of_the_same_rows(place, capsys):
    assert cli.main(_command()) == 0
    (place / "alias.csv").symlink_to("rows.csv")
    assert cli.main(_command(file="alias.csv", output="second")) == 2
    assert "was released before" in capsys.readouterr().err


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_files_follow_the_umask_and_errors_are_for_the_curator_alone(place, umask):
    before = os.umask(umask)
    try:
        assert cli.main(_command()) == 0
        assert cli.main(["sample", "out", "--output=s.csv"]) == 0
        assert cli.main(["evaluate", "out", "--against=rows.csv", "--output=e.json", "--no_distance"]) == 0
    finally:
        os.umask(before)
    files = [*(place / "out").iterdir(), place / "s.csv"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}
    assert (place / "out").stat().st_mode & 0o777 == 0o777 & ~umask
    assert (place / "e.json").stat().st_mode & 0o777 == 0o600
    assert (place / "rows.csv.ledger").stat().st_mode & 0o777 == 0o600


def test_extreme_budgets(place, capsys):
    """A tiny δ is calibrated to. A smaller one is refused before anything is spent."""
    before = _tree(place)
    assert cli.main(_command(delta=1e-310)) == 2
    assert "delta must be 0 or at least 1e-300" in capsys.readouterr().err
    assert _tree(place) == before
    assert cli.main(_command(delta=1e-300)) == 0
    assert cli.main(_command(epsilon=1e6, output="much", ledger="other")) == 0
    assert capsys.readouterr().err == ""


def _program(*words, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [*PROGRAM, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT | environment
    )


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.long
def test_a_full_standard_output_does_not_hide_that_work_is_complete(place, buffered):
    """The device /dev/full fails to write, at once or when a buffer is written out."""
    environment = {"PYTHONUNBUFFERED": "" if buffered else "1"}
    failed = "error: standard output cannot be written (No space left on device)"
    with open("/dev/full", "w") as full:
        release = _program(*_command(), stdout=full, **environment)
        sample = _program("sample", "old", "--output=s.csv", stdout=full, **environment)
        show = _program("show", "old", stdout=full, **environment)
    complete = "the release is complete: out; the ledger rows.csv.ledger records what was spent"
    assert release.stderr == f"{failed}; {complete}\n"
    assert len(load("out").sample.points) == 40
    assert sample.stderr == f"{failed}; s.csv is complete\n"
    assert len(read_rows("s.csv", columns=["a", "b"])) == 10_000
    assert show.stderr == f"{failed}\n"
    assert (release.returncode, sample.returncode, show.returncode) == (2, 2, 2)


@pytest.mark.long
def test_output_that_nobody_reads_is_no_error(place):
    reader, writer = os.pipe()
    os.close(reader)
    show = _program("show", "old", stdout=writer)
    os.close(writer)
    assert (show.returncode, show.stderr) == (0, "")


@pytest.mark.long
def test_unknown_platforms_are_no_defect(place):
    """Nothing is spent, and the line names the variable."""
    before = _tree(place)
    release = _program(*_command(), JAX_PLATFORMS="abacus", KME_JAX_CACHE_DIR="off")
    assert release.returncode == 2
    (line,) = release.stderr.splitlines()
    assert line.startswith("error: JAX_PLATFORMS=abacus: JAX cannot use the devices it is told to use (")
    assert "defect" not in line
    assert _tree(place) == before
    plan = _program("plan", "--num_rows=99", "--dim=1", "--epsilon=1", "--delta=1e-6", JAX_PLATFORMS="abacus")
    assert (plan.returncode, plan.stdout) == (2, "")
    (line,) = plan.stderr.splitlines()
    assert line.startswith("error: JAX_PLATFORMS=abacus: ")


def _start(place, *words):
    return subprocess.Popen(
        [*PROGRAM, *words],
        cwd=place,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_two_programs_on_one_ledger(place):
    """Both want to release the same rows for the first time: one does, and the other is refused."""
    processes = [_start(place, *_command(output=f"out{i}")) for i in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2]
    assert "was released before" in "".join(errors)
    assert len(list(place.glob("out?"))) == 1
    assert len(Ledger(place / "rows.csv.ledger").spent("rows.csv")) == 1


@pytest.mark.long
def test_killed_at_any_moment_there_is_a_whole_release_or_none(place):
    """Real programs, killed at random moments of their lives."""
    started = time.perf_counter()
    first = _start(place, *_command(output="first"))
    first.communicate()
    assert first.returncode == 0
    whole = time.perf_counter() - started
    rng = random.Random(0)
    moments = [rng.uniform(0.4, 1.2) * whole for _ in range(6)]
    for i in range(0, 6, 2):
        running = {j: _start(place, *_command(output=f"out{j}"), "--again") for j in (i, i + 1)}
        began = time.perf_counter()
        for j in sorted(running, key=lambda j: moments[j]):
            time.sleep(max(0.0, began + moments[j] - time.perf_counter()))
            running[j].send_signal(signal.SIGKILL)
            running[j].communicate()
    known = len(Ledger(place / "rows.csv.ledger").spent("rows.csv"))
    folders = {path.name.removesuffix(".measured") for path in place.glob("out*")}
    for path in place.glob("out*"):
        (Measurement if path.name.endswith(".measured") else Release).load(path)
    assert len(folders) + 1 <= known <= 7
