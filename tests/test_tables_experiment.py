import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import threadpoolctl

from experiments.common import datasets
from experiments.common.errors import InputError
from experiments.common.processes import Measured, in_fresh_process
from experiments.common.results import REPOSITORY, write_json
from experiments.tables import (
    bias,
    classifiers,
    constrained,
    coverage,
    hard,
    invented,
    live_peers,
    numbers,
    peers,
    planned,
    plot,
    releases,
    scale,
    sums_program,
    throughput,
)
from experiments.tables.config import TablesConfig
from kme_jax import PrivacyBudget
from kme_jax.analysis.queries import Query
from kme_jax.embedding import integer_embedding
from kme_jax.privacy.composition import Composition
from kme_jax.table import mixture
from kme_jax.table.columns import Categorical, Numeric
from kme_jax.table.constraints import KINDS
from kme_jax.table.schema import Schema

# The real files are no part of the project.
DATA = pathlib.Path(os.environ.get("KME_JAX_DATA", REPOSITORY.parent / "shared" / "data"))

SCHEMA = Schema(
    (
        Categorical("colour", ("red", "green", "blue"), nullable=True),
        Numeric("size", 0, 9, integer=True, nullable=True),
        Numeric("wealth", 0, 999, integer=True, nullable=True),
        Categorical("rich", ("no", "yes")),
    )
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Those of gradient boosting wait for each other, busily, where tests run side by side."""
    with threadpoolctl.threadpool_limits(1):
        yield


def _codes(rng, num_rows=400):
    """The target depends on two columns."""
    columns = [rng.integers(0, column.num_codes, num_rows) for column in SCHEMA.columns[:3]]
    rich = (columns[2] > 500) ^ (columns[0] == 1) ^ (rng.random(num_rows) < 0.1)
    return np.stack([*columns, rich], axis=1).astype(np.int64)


@pytest.mark.long
def test_classifiers_learn_what_there_is_to_learn(rng):
    train, test = _codes(rng, 1000), _codes(rng, 1000)
    real = classifiers.utility(SCHEMA, "rich", train, test)
    shuffled = classifiers.utility(SCHEMA, "rich", rng.permuted(train, axis=0), test)
    assert set(real) == set(classifiers.CLASSIFIERS)
    for name in ("random_forest", "gradient_boosting"):
        assert real[name]["auc"] > 0.85
        assert real[name]["f1"] > 0.8
        assert abs(shuffled[name]["auc"] - 0.5) < 0.15
    assert 0.55 < real["logistic_regression"]["auc"] < 0.85  # no interactions


@pytest.mark.parametrize("rich", [[0], [1], [0] * 30 + [1]])
def test_a_class_that_synthetic_rows_lack(rng, rich):
    train, test = _codes(rng, 31), _codes(rng, 50)
    train[:, 3] = rich if len(rich) > 1 else rich[0]
    for scores in classifiers.utility(SCHEMA, "rich", train, test).values():
        assert scores["auc"] == 0.5
        assert (scores["f1"] > 0) == (rich == [1])


def test_of_several_classes_each_counts_the_same():
    """The test rows have three of four classes; the training rows lack one of them."""
    schema = Schema((Numeric("x", 0, 3, integer=True), Categorical("y", ("a", "b", "c", "d"))))
    y = np.repeat(np.arange(3), (500, 100, 50))
    test = np.stack([np.minimum(y, 1), y], axis=1)
    for scores in classifiers.utility(schema, "y", test[y != 2], test).values():
        # Rows of c look like those of b: of 150 taken for b, 100 are.
        assert scores["auc"] == pytest.approx((1 + (500 + 50 * 0.5) / 550 + 0.5) / 3)
        assert scores["f1"] == pytest.approx((1 + 200 / 250 + 0) / 3)


def test_a_missing_number_is_no_large_number(rng):
    """In a linear model, too: the target is whether it is missing, or not large."""
    train, test = _codes(rng), _codes(rng)
    for codes in (train, test):
        codes[:, 2] = np.where(rng.random(len(codes)) < 0.3, 1000, codes[:, 2])
        codes[:, 3] = (codes[:, 2] == 1000) | (codes[:, 2] < 300)
    assert classifiers.utility(SCHEMA, "rich", train, test)["logistic_regression"]["auc"] > 0.98


# --- the experiment --------------------------------------------------------------------------------------------------


def _sample(rows, schema, target, budget, seed, secure, times):
    """In place of a release: rows of the table, in some of which a column is another's."""
    assert (target, budget.delta, secure) == ("rich", 1e-5, True)
    codes = schema.encode(rows)
    changed = np.random.default_rng(seed).random(len(codes)) < 0.3 / (1 + budget.epsilon)
    codes[changed, 0] = np.roll(codes[:, 0], 1)[changed]
    return schema.decode(np.tile(codes, (times, 1)))


def _load(name, data_dir, seed):
    assert data_dir == "somewhere"
    private, test = (SCHEMA.decode(_codes(np.random.default_rng([seed, k]))) for k in range(2))
    return datasets.Dataset(name, private, test, SCHEMA, "rich")


def _here(call, *words):
    """In place of a call in a new process."""
    return Measured(call(*words), 2.0, 3 * 2**20)


TOOLS = releases.Tools(load=_load, release=_sample, measured=_here)


@pytest.fixture
def tiny(tmp_path):
    return TablesConfig(
        data_dir="somewhere", datasets=("adult_pgm",), epsilons=(0.1, 1.0), num_seeds=2, output_dir=str(tmp_path)
    )


def test_numbers_are_in_units_of_direct_noisy_answers(rng):
    """Two columns with known shifts: errors follow from their definitions."""
    schema = Schema((Numeric("x", 0, 100, integer=True), Numeric("y", 0, 50, integer=True), SCHEMA.columns[3]))
    x = rng.integers(20, 60, 1000)
    private = np.stack([x, x // 2 + rng.integers(0, 5, 1000), x % 2], axis=1)
    synthetic = np.stack([x + 2, 40 - private[:, 1], private[:, 2]], axis=1)
    budget = PrivacyBudget(1.0, 1e-5)
    rho, errors = Composition.planned(budget).rho, numbers.number_errors(schema, private, synthetic, budget)
    first, second = errors["columns"]
    noise = 100 / 1000 / np.sqrt(2 * rho / 3)  # one row moves the mean by 100 / 1000
    assert first["mean"] == pytest.approx(2 / noise)
    assert first["bias"] == first["quantile"] == pytest.approx(2 / x.std())
    assert first["sd"] == second["sd"] == pytest.approx(1)
    share = rho / 3 / 2  # a mean and a mean square around 50; a row moves the square by at most 50² / 1000
    of_square, of_mean = 50**2 / 1000 / np.sqrt(2 * share), 100 / 1000 / np.sqrt(2 * share)
    of_variance = np.hypot(of_square, 2 * (x.mean() - 50) * of_mean)
    assert first["sd_noise"] == pytest.approx(of_variance / (2 * x.var()))
    (pair,) = errors["pairs"]
    assert pair["correlation"] == pytest.approx(-1)
    assert pair["slopes"] == pytest.approx([-1, -1])
    covariance = np.cov(private[:, 0], private[:, 1], bias=True)[0, 1]
    assert pair["noise"] == pytest.approx(100 * 50 / 2 / 1000 / np.sqrt(2 * rho) / covariance)
    total = numbers.summary([errors, numbers.number_errors(schema, private, private, budget)])
    # If one row is added or removed, sums around the middle of the bounds move half as much.
    private_size = numbers.number_errors(schema, private, synthetic, PrivacyBudget(1.0, 1e-5, "add_remove"))
    assert private_size["columns"][0]["mean"] == pytest.approx(2 * first["mean"])
    assert private_size["pairs"][0]["noise"] == pytest.approx(pair["noise"] / 2)
    worst = total["columns"][0]
    expected = {column["name"]: column["mean"] / np.sqrt(2) for column in (first, second)}
    assert {column["name"]: column["mean"] for column in total["columns"]} == pytest.approx(
        {name: abs(error) for name, error in expected.items()}
    )
    assert worst["mean"] == pytest.approx(max(map(abs, expected.values())))
    assert worst["bias"] == pytest.approx(expected[worst["name"]] / np.sqrt(2))
    assert total["pairs"][0]["correlation"] == pytest.approx(0)


def test_means_of_groups():
    """A release that halves differences between groups, and one without rows of a group."""
    schema = Schema(
        (Numeric("x", 0, 100, integer=True), Categorical("g", ("a", "b", "c")), Categorical("h", ("a", "b")))
    )
    g, h = np.repeat([0, 1, 2], [50, 30, 20]), np.arange(100) % 3 % 2
    private, halved = np.stack([20 * g, g, h], axis=1), np.stack([10 * g + 7, g, h], axis=1)
    budget = PrivacyBudget(1.0, 1e-5)
    first, second = numbers.number_errors(schema, private, halved, budget)["groups"]
    assert (first["names"], second["names"]) == (["x", "g"], ["x", "h"])
    assert first["spread"] == pytest.approx(0.5)
    errors = np.asarray([7, -3, -13])
    assert first["error"] == pytest.approx(np.sqrt(np.mean(np.square(errors[g]))) / (20 * g).std())
    share = Composition.planned(budget).rho / 2  # a row that moves from one group to another moves two sums by 50
    noise = 100 / np.asarray([50, 30, 20]) / np.sqrt(2 * share)
    assert first["noise"] == pytest.approx(np.sqrt(np.mean(np.square(noise[g]))) / (20 * g).std())
    without = numbers.number_errors(schema, private, halved[g != 2], budget)["groups"][0]
    mean = halved[g != 2, 0].mean()
    assert without["error"] == pytest.approx(
        np.sqrt(np.mean(np.square(np.asarray([7, -3, mean - 40])[g]))) / (20 * g).std()
    )
    result = {
        "summary": [{"epsilon": 1.0, "numbers": numbers.summary([{"columns": [], "pairs": [], "groups": [first]}])}]
    }
    assert "| 1 | x | g | × 0.50 |" in numbers.groups_markdown(result)


def test_a_constant_column_has_no_errors():
    schema = Schema((Numeric("x", 0, 9, integer=True), Numeric("y", 0, 9, integer=True, nullable=True)))
    rows = np.stack([np.full(50, 3), np.arange(50) % 10], axis=1)
    nothing = np.stack([np.full(50, 3), np.full(50, 10)], axis=1)
    errors = numbers.number_errors(schema, rows, nothing, PrivacyBudget(1.0, 1e-5))
    assert errors == {"columns": [], "pairs": [], "groups": []}
    independent = np.asarray([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert numbers.number_errors(schema, independent, independent, PrivacyBudget(1.0, 1e-5))["pairs"] == []


@pytest.mark.slow
def test_releases_with_more_rows(tiny, tmp_path):
    """They stand beside releases as they are published, also in the JSON, and the picture leaves them out."""
    config = dataclasses.replace(tiny, epsilons=(1.0,), num_seeds=1, more_rows=3)
    result = releases.run(config, TOOLS)["adult_pgm"]
    sources = [line["source"] for line in result["summary"]]
    assert sources[-2:] == ["release", "release, 3 times the rows"]
    assert result["config"]["more_rows"] == 3
    assert plot.draw([releases.result_path(config, "adult_pgm")], tmp_path / "tables.png").exists()


@pytest.mark.slow
def test_a_release_of_more_rows_has_so_many(monkeypatch):
    monkeypatch.setattr(mixture, "fit", functools.partial(mixture.fit, num_relaxed=20, num_steps=30))
    rows, budget = SCHEMA.decode(_codes(np.random.default_rng(0), 200)), PrivacyBudget(1.0, 1e-5)
    arguments = rows, SCHEMA, "rich", budget, 0, False
    assert [releases.release(*arguments, times).num_rows for times in (1, 4)] == [200, 800]


@pytest.mark.long
def test_a_small_run_and_its_picture(tiny, tmp_path):
    result = releases.run(tiny, TOOLS)["adult_pgm"]
    path = releases.result_path(tiny, "adult_pgm")
    assert json.loads(path.read_text()) == result
    assert "somewhere" not in path.read_text()
    rows = {(row["source"], row["epsilon"]): row for row in result["summary"]}
    controls = ["real rows", "independent columns", "real sample"]
    assert list(rows) == [(control, None) for control in controls] + [("release", 0.1), ("release", 1.0)]
    assert {row["num_seeds"] for row in rows.values()} == {2}
    real, shuffled, sample = (rows[control, None]["mean"] for control in controls)
    assert [real[f"{order}-way"] for order in (1, 2, 3)] == [0, 0, 0]
    assert shuffled["1-way"] == 0 < sample["1-way"] < sample["2-way"] < sample["3-way"]
    assert shuffled["auc gradient_boosting"] < 0.65 < real["auc gradient_boosting"]
    assert 0 < rows["release", 1.0]["mean"]["2-way"] < rows["release", 0.1]["mean"]["2-way"]
    scores = [c["utility"]["random_forest"]["f1"] for c in result["cells"] if c["source"] == "real sample"]
    assert sample["f1 random_forest"] == pytest.approx(np.mean(scores))
    error = rows["real sample", None]["error"]["f1 random_forest"]
    assert error == pytest.approx(abs(scores[0] - scores[1]) / 2)
    assert "numbers" not in rows["real rows", None]
    of_numbers = rows["release", 1.0]["numbers"]
    assert {column["name"] for column in of_numbers["columns"]} == {"size", "wealth"}
    assert "| 1 | wealth |" in numbers.columns_markdown(result)
    assert "size and wealth" in numbers.pairs_markdown(result)
    text = releases.markdown(result)
    assert text.startswith("| adult_pgm, δ = 1e-05 |")
    assert f"| {np.mean(scores):.3f} ± {error:.3f} |" in text
    assert text.splitlines()[6].endswith("| 2 | 3 |")
    assert len({line.count("|") for line in text.splitlines()}) == 1
    assert plot.draw([path, path], tmp_path / "tables.png").stat().st_size > 20_000


def test_delta_protects_somebody():
    assert releases.protective_delta(1e-5, 30_000) == 1e-5
    for num_rows in (100_000, 395_216, 999_999, 1_000_000):
        assert 0.09 < releases.protective_delta(1e-5, num_rows) * num_rows < 1


@pytest.mark.long
def test_an_interrupted_run_goes_on(tiny):
    tiny = dataclasses.replace(tiny, num_seeds=1)
    first = releases.run(tiny, TOOLS)["adult_pgm"]
    kept = dict(first, cells=[dict(cell, kept=True) for cell in first["cells"][:4]])
    write_json(releases.result_path(tiny, "adult_pgm"), kept)
    again = releases.run(tiny, TOOLS)["adult_pgm"]
    assert again["cells"][:4] == kept["cells"]  # not computed again
    assert [c["total_variation"] for c in again["cells"]] == [c["total_variation"] for c in first["cells"]]
    assert [row["num_seeds"] for row in again["summary"]] == [1] * 5


_WITH_PEERS = {"peers": ("mst",), "relation": "add_remove", "peer_python": sys.executable}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data_dir": ""}, "--data_dir"),
        ({"datasets": ("adult", "mnist")}, "no 'mnist'"),
        ({"datasets": ()}, "--datasets"),
        ({"epsilons": (1.0, 1.0)}, "--epsilons"),
        ({"epsilons": (-1.0,)}, "epsilon"),
        ({"num_seeds": 0}, "--num_seeds"),
        ({"peers": ("mst",)}, "--relation=add_remove alone"),
        ({"peers": ("mist",), "relation": "add_remove"}, "no 'mist'"),
        ({"peers": ("mst",), "relation": "add_remove"}, "--peer_python"),
        (_WITH_PEERS | {"peer_minutes": 0}, "above 0"),
        (_WITH_PEERS | {"peer_seeds": 0}, "--peer_seeds"),
        (_WITH_PEERS | {"peer_epsilons": (3.0,)}, "3 is not one of --epsilons"),
    ],
)
def test_what_cannot_be_run_is_refused(tiny, change, text, monkeypatch):
    monkeypatch.setattr("experiments.tables.config.has_peers", lambda python: python == sys.executable)
    tiny.validate()
    dataclasses.replace(tiny, epsilons=(2.0,)).validate()
    with pytest.raises(InputError, match=text):
        dataclasses.replace(tiny, **change).validate()


# --- other systems ---------------------------------------------------------------------------------------------------


def _fake_python(folder, code):
    """A program in place of the Python of another environment. Its words are those of ``peer_program``."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport sys, time, numpy as np\ngiven, made = sys.argv[-2:]\n{code}\n")
    path.chmod(0o755)
    return str(path)


def test_another_system_in_another_environment(rng, tmp_path):
    """Its rows are the private ones in another order. Values are drawn within their cells."""
    code = (
        "assert sys.argv[1:-2] == ['-I', sys.argv[2], 'aim', '1.0', '1e-05', '3']\n"
        "with np.load(given) as arrays: np.savez(made, cells=arrays['cells'][::-1], version='7')"
    )
    schema, codes = SCHEMA, _codes(rng)
    made = live_peers.run_peer("aim", schema, codes, 1.0, 1e-5, 3, _fake_python(tmp_path, code), 1.0)
    assert made["version"] == "7"
    assert made["seconds"] > 0
    np.testing.assert_array_equal(made["codes"][::-1][:, [0, 1, 3]], codes[:, [0, 1, 3]])
    width = -(-1000 // 32)
    np.testing.assert_array_equal(made["codes"][::-1, 2] // width, codes[:, 2] // width)
    assert np.any(made["codes"][::-1, 2] != codes[:, 2])
    schema.check(schema.decode(made["codes"]))


def test_an_environment_without_other_systems_is_seen(tmp_path):
    assert not live_peers.has_peers("no such program")
    assert not live_peers.has_peers(_fake_python(tmp_path, "").replace("python", "nothing"))


def test_a_missing_value_of_a_wide_column_stays_missing(tmp_path):
    schema = Schema((Numeric("wide", 0, 999, integer=True, nullable=True), Categorical("a", ("x", "y"))))
    codes = np.asarray([[1000, 0], [999, 1], [0, 0]])
    code = (
        "with np.load(given) as a: assert a['sizes'].tolist() == [33, 2]; np.savez(made, cells=a['cells'], version='7')"
    )
    made = live_peers.run_peer("mst", schema, codes, 1.0, 1e-5, 0, _fake_python(tmp_path, code), 1.0)
    assert made["codes"][0, 0] == 1000
    assert made["codes"][1, 0] >= 992
    assert made["codes"][2, 0] < 32


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "minutes", "text"),
    [("time.sleep(60)", 0.005, "more than 0.005 minutes"), ("raise MemoryError('all of it')", 1.0, "all of it")],
)
def test_another_system_that_fails(code, minutes, text, rng, tmp_path):
    python = _fake_python(tmp_path, code)
    assert text in live_peers.run_peer("mst", SCHEMA, _codes(rng), 1.0, 1e-5, 0, python, minutes)["failed"]


@pytest.mark.long
def test_other_systems_beside_releases(tiny, tmp_path):
    def run_peer(peer, schema, codes, epsilon, delta, seed, python, minutes):
        assert (schema, delta, python, minutes) == (SCHEMA, 1e-5, "python", 15.0)
        if peer == "aim":
            return {"failed": "it took more than 15 minutes"}
        return {"codes": np.roll(codes, 1 + seed, axis=0), "version": "7", "seconds": 9.0}

    config = dataclasses.replace(tiny, peers=("mst", "aim"), relation="add_remove", peer_python="python", peer_seeds=2)
    result = releases.run(config, dataclasses.replace(TOOLS, run_peer=run_peer))["adult_pgm"]
    (ours,) = (line for line in result["summary"] if line["source"] == "MST (dpmm)")
    assert (ours["mean"]["1-way"], ours["mean"]["seconds"], ours["num_seeds"]) == (0, 9, 2)
    assert "AIM (dpmm), ε = 1: it took more than 15 minutes (2 of 2)" in releases.markdown(result)
    assert not [name for name in result["config"] if name.startswith("peer")]
    assert {cell.get("version") for cell in result["cells"]} == {None, "7"}
    path = releases.result_path(config, "adult_pgm")
    assert plot.draw([path], tmp_path / "tables.png").stat().st_size > 20_000
    table = peers.markdown([result])
    assert "| MST (dpmm 7), this machine, seeds: 2 | 0.000 |" in table
    assert "AIM (dpmm" not in table


@pytest.mark.long
def test_a_process_of_its_own_has_its_own_peak():
    np.ones(400 << 17)
    small, large = (in_fresh_process(eval, f"len(b'1' * ({megabytes} << 20))") for megabytes in (1, 200))
    assert small.value == 1 << 20
    assert 150 < (large.peak_bytes - small.peak_bytes) / 2**20 < 250
    assert 0 < small.seconds < 10


@pytest.mark.long
def test_a_real_release_of_a_few_rows(rng, monkeypatch):
    monkeypatch.setattr(mixture, "fit", functools.partial(mixture.fit, num_relaxed=20, num_steps=30))
    rows = SCHEMA.decode(_codes(rng))
    released = releases.release(rows, SCHEMA, "rich", PrivacyBudget(10.0, 1e-5), 0, False)
    SCHEMA.check(released)
    assert released.num_rows == rows.num_rows


# --- hard tables -----------------------------------------------------------------------------------------------------


def test_direct_marginals_have_the_error_of_their_noise(rng):
    """Half the normal noise of two cells remains, as their sum is known."""
    schema, budget = Schema((Categorical("a", ("x", "y")),)), PrivacyBudget(1.0, 1e-5)
    codes = rng.integers(0, 2, (1000, 1))
    errors = [hard.direct_error(schema, codes, budget, seed) for seed in range(400)]
    sigma = np.sqrt(2 / (2 * Composition.planned(budget).rho))
    assert np.mean(errors) == pytest.approx(sigma / np.sqrt(2) * np.sqrt(2 / np.pi) / 1000, rel=0.15)
    add_remove = [hard.direct_error(schema, codes, PrivacyBudget(1.0, 1e-5, "add_remove"), seed) for seed in range(400)]
    assert np.mean(add_remove) == pytest.approx(np.mean(errors) / np.sqrt(2), rel=0.01)


def test_pairs_do_not_show_an_exclusive_or():
    table, schema, names = hard.exclusive_or(20_000, 3)
    assert (table.num_rows, len(schema.columns)) == (20_000, 20)
    schema.check(table)
    first, second, both = (np.asarray(table[name]) == "yes" for name in names)
    np.testing.assert_array_equal(first ^ second, both)
    assert abs(np.corrcoef(first, both)[0, 1]) < 0.4


@pytest.mark.long
def test_a_small_run_of_hard_tables(tmp_path):
    calls = []

    def measured(function, rows, schema, target, *others):
        assert function is releases.release
        calls.append((rows.num_rows, target))
        return Measured(rows, 2.0, 1)

    config = hard.HardConfig(data_dir="somewhere", datasets=("credit",), num_rows=(50, 9000), num_seeds=2, num_tables=1,
                             output_dir=str(tmp_path))  # fmt: skip
    config.validate()
    result = hard.run(config, _load, measured, exclusive_rows=100)
    assert calls == [(100, None)] + [(50, "rich"), (50, None), (400, "rich"), (400, None)] * 2
    text = hard.markdown(result)
    assert "| credit | 50 | 2 | 0.0000 |" in text
    assert "| 0 | 100 | 1.000 | 2 |\n| mean | | 1.000 | 2 |" in text
    assert hard.run(config, _load, None, exclusive_rows=100)["cells"] == result["cells"]  # nothing is run again
    with pytest.raises(InputError, match="--num_rows"):
        dataclasses.replace(config, num_rows=(1,)).validate()


# --- constraints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(invented.INVENTED))
def test_invented_rows_meet_their_constraints(name):
    rows, schema = invented.INVENTED[name](2000, 1)
    codes = schema.encode(rows)
    schema.check(rows.cast(schema.decode(codes).schema))
    assert not schema.recoding.broken(codes).any()
    kinds = {type(one) for table in invented.INVENTED.values() for one in table(100, 0).schema.constraints}
    assert kinds == set(KINDS.values())


@pytest.mark.long
def test_a_small_run_with_constraints(tmp_path):
    sizes = {"num_rows": 300, "num_seeds": 1, "num_checked": 700}
    config = constrained.ConstrainedConfig(datasets=("trips",), secure=False, output_dir=str(tmp_path), **sizes)
    config.validate()
    result = constrained.run(config)
    (cell,) = result["cells"]
    assert (cell["broken"], cell["with"]["broken"], cell["num_checked"], cell["private_broken"]) == (0, 0, 700, 0)
    assert cell["without"]["broken"] > 100
    assert "| trips | 9, 9 | 0.00% | 0 |" in constrained.markdown(result)
    assert constrained.run(config)["cells"] == result["cells"]  # nothing is run again
    for wrong, message in (
        ({"datasets": ("rides",)}, "no 'rides'"),
        ({"datasets": ("census",)}, "--data_dir is missing"),
    ):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(config, **wrong).validate()


# --- bias ------------------------------------------------------------------------------------------------------------


def test_bias_is_what_remains_of_the_errors_of_many_releases(tmp_path):
    """One column misses by turns above and below, the other always above."""

    def make(rows, schema, target, budget, seed, secure):
        assert (target, budget.epsilon, secure) == ("rich", 1.0, True)
        codes = schema.encode(rows)
        codes[codes[:, 1] == 4, 1] = 8 * (seed % 2)
        codes[:, 2] = np.minimum(codes[:, 2] + 100, 999)
        return schema.decode(codes)

    config = bias.BiasConfig(
        data_dir="somewhere", datasets=("credit",), num_releases=4, delta=1e-9, output_dir=str(tmp_path)
    )
    config.validate()
    result = bias.run(config, lambda name, folder: _load(name, folder, 0), make)
    assert len(result["cells"]) == 4
    lines = [[cell.strip() for cell in line.split("|")] for line in bias.markdown(result).splitlines()[2:]]
    assert [(line[2], line[6]) for line in lines] == [
        ("size", "yes"),
        ("wealth", "no"),
        ("all, 4 releases", "1 of 2"),
    ]
    assert float(lines[1][5]) == pytest.approx(100 * 95 / 289, rel=0.1)  # percent of the SD; some are at the bound
    assert bias.run(config, lambda name, folder: _load(name, folder, 0), None)["cells"] == result["cells"]
    with pytest.raises(InputError, match="--num_releases"):
        dataclasses.replace(config, num_releases=1).validate()
    with pytest.raises(InputError, match="--datasets: no 'x'"):
        dataclasses.replace(config, datasets=("x",)).validate()


# --- data sets -------------------------------------------------------------------------------------------------------

_ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Husband, White, Male, 2174, 0, 40, ?, <=50K"


def test_the_format_of_adult(tmp_path):
    folder = tmp_path / "adult"
    folder.mkdir()
    for name, text in (("data", f"{_ADULT}\n\n"), ("test", f"|1x3 Cross validator\n{_ADULT}.\n{_ADULT}.\n\n")):
        with pa.CompressedOutputStream(str(folder / f"adult.{name}.gz"), "gzip") as file:
            file.write(text.encode())
    adult = datasets.load("adult", str(tmp_path), seed=3)
    assert (adult.private.num_rows, adult.test.num_rows) == (1, 2)
    assert adult.test.slice(0, 1) == adult.test.slice(1, 1) == adult.private
    row = adult.private.to_pylist()[0]
    assert [row[name] for name in ("age", "workclass", "occupation", "income")] == [39, "State-gov", None, "<=50K"]
    adult.schema.check(adult.private)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InputError, match=r"--data_dir=.*: data set adult: .*adult\.data\.gz"):
        datasets.load("adult", str(tmp_path))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}; KME_JAX_DATA names their folder")
@pytest.mark.parametrize(
    ("name", "num_private", "num_test"),
    [
        ("adult", 32561, 16281),
        ("adult_pgm", 39073, 9769),
        ("intrusion", 395216, 98805),
        ("census", 79809, 19953),
        ("covtype", 16000, 4000),
        ("credit", 4233, 1059),
        ("cervical", 686, 172),
        ("epileptic", 9200, 2300),
        ("isolet", 1248, 312),
    ],
)
def test_real_tables(name, num_private, num_test):
    dataset = datasets.load(name, str(DATA), seed=1)
    assert (dataset.private.num_rows, dataset.test.num_rows) == (num_private, num_test)
    assert dataset.schema.columns[-1].name == dataset.target
    for column in dataset.schema.columns:
        values = dataset.private[column.name]
        # All cells have been read; nearly all lie within the public bounds.
        decoded = column.decode(column.encode(values))
        assert column.nullable == (dataset.test[column.name].null_count + values.null_count > 0)
        if column.kind == "categorical":
            assert decoded.equals(values.combine_chunks())
        else:
            rounded, cells = (np.nan_to_num(array.to_numpy(zero_copy_only=False)) for array in (decoded, values))
            assert np.mean(np.abs(rounded - cells) > (column.upper - column.lower) / 1000) < 0.01


# --- scale -----------------------------------------------------------------------------------------------------------


def test_artificial_rows_are_valid_skewed_and_dependent(tmp_path):
    schema = datasets.adult_schema()
    scale.write_rows(tmp_path / "rows.parquet", schema, 2500, rows_per_group=1000)
    assert pq.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 3
    rows = pq.read_table(tmp_path / "rows.parquet")
    assert rows.num_rows == 2500
    schema.check(rows)
    codes = schema.encode(rows)
    gains = codes[:, schema.index("capital-gain")]
    assert 0.5 < np.mean(gains == 0) < 0.6
    assert len(np.unique(gains)) > 500
    assert 0 < rows["occupation"].null_count < 250
    assert np.corrcoef(codes[:, schema.index("education")], codes[:, schema.index("marital-status")])[0, 1] > 0.1


@pytest.mark.long
def test_measurements_of_two_sizes_have_the_same_features(tmp_path):
    schema = datasets.adult_schema()
    scale.write_rows(tmp_path / "adult.parquet", schema, 500)
    adult = pq.read_table(tmp_path / "adult.parquet")
    dataset = datasets.Dataset("adult", adult, adult, schema, "income")
    config = scale.ScaleConfig(data_dir="somewhere", num_rows=(100, 300), output_dir=str(tmp_path / "out"))
    cells = scale.run(config, lambda *_: dataset, _here)["cells"]
    assert cells[0]["num_features"] == cells[1]["num_features"] > 100
    assert cells[1]["rows_per_second"] == 300 / (cells[1]["sum_seconds"] + cells[1]["noise_seconds"])
    assert scale.markdown({"cells": cells}).splitlines()[3].startswith("| 300 | 0 |")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["table_scale.json"]


@pytest.mark.long
@pytest.mark.parametrize("module", ["tables", "tables.scale"])
def test_the_command_lines_need_data_alone(module, tmp_path):
    command = [sys.executable, "-m", f"experiments.{module}", f"--data_dir={tmp_path}", f"--output_dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 2
    assert f"error: --data_dir={tmp_path}: data set adult: " in done.stderr.splitlines()[-1]


# --- throughput ------------------------------------------------------------------------------------------------------


def test_the_features_that_are_timed():
    maps = sums_program.maps()
    for feature_map in maps:
        feature_map.validate()
    assert sum(len(feature_map.blocks) for feature_map in maps) == 150
    assert sum(feature_map.num_features for feature_map in maps) > 20_000


def test_batches_are_summed_again_and_again():
    rng, (one, two) = np.random.default_rng(0), (sums_program.ROWS_OF_BATCH, 2 * sums_program.ROWS_OF_BATCH)
    batches = [sums_program.batch(rng) for _ in range(2)]
    codes = np.concatenate([sums_program.SCHEMA.encode(batch) for batch in batches])
    for j, column in enumerate(sums_program.SCHEMA.columns):
        share = np.mean(codes[:, j] == column.num_values)
        assert 0.04 < share < 0.06 if column.nullable else share == 0
    found, rows = sums_program.sums(batches, two + 900), codes[np.arange(two + 900) % two]
    for feature_map, total in zip(sums_program.maps(), found, strict=True):
        np.testing.assert_array_equal(total, integer_embedding(feature_map, rows).total)
    assert not np.array_equal(codes[:one], codes[one:])


def test_ratios_are_of_processes_in_turn(tmp_path):
    calls = []

    def measured(checkout, num_rows, cores):
        calls.append((checkout, num_rows, len(cores)))
        seconds = [4.0, 1.0] if str(checkout) == "." else [2.0, 2.5]
        facts = {"digest": num_rows, "peak_bytes": 2**20, "num_features": 7, "nonzeros_per_row": 3, "passes": 3}
        return [facts | {"seconds": second, "core_seconds": 2 * second} for second in seconds[: len(cores)]]

    config = throughput.ThroughputConfig(num_rows=(50, 90), compared_rows=10, num_repeats=2, earlier=".",
                                         output_dir=str(tmp_path))  # fmt: skip
    config.validate()
    result = throughput.run(config, measured)
    assert calls[:2] == [(REPOSITORY, 10, 1), (pathlib.Path("."), 10, 1)]
    assert [call[1] for call in calls[-2:]] == [50, 90]
    text = throughput.comparison_markdown(result)
    assert "| one process | 5 | 5 | 2 | earlier version | 2.00 | 2.00 |" in text
    if len(os.sched_getaffinity(0)) > 1:
        assert "| two processes, each on one core | 9 | 9 | 4 | one process on one core | 1.80 | 1.80 |" in text
    assert throughput.markdown(result).endswith("| 50 | 7 | 3 | 3 | 25 | 1 |\n| 90 | 7 | 3 | 3 | 45 | 1 |")
    assert json.loads((tmp_path / "table_throughput.json").read_text())["earlier_commit"] == result["earlier_commit"]
    with pytest.raises(RuntimeError, match="differ"):
        throughput.run(config, lambda *call: [one | {"digest": len(calls)} for one in measured(*call)])
    with pytest.raises(InputError, match="no folder kme_jax"):
        dataclasses.replace(config, earlier=str(tmp_path)).validate()


@pytest.mark.long
def test_processes_sum_the_same_rows_at_once():
    core = min(os.sched_getaffinity(0))
    first, second = throughput.at_once(REPOSITORY, 1000, [[core], [core]])
    assert first["digest"] == second["digest"]
    assert first["nonzeros_per_row"] == 150


# --- intervals -------------------------------------------------------------------------------------------------------


def test_invented_people_fit_their_schema_and_depend_on_each_other():
    table = coverage.people(3000, 0)
    coverage.SCHEMA.check(table)
    income, member = table["income"].to_numpy(), np.asarray(table["member"]) == "yes"
    assert income[member].mean() > income[~member].mean() + 2


def test_naive_intervals_are_those_of_a_sample():
    table = coverage.people(400, 1)
    income, member = table["income"].to_numpy(), np.asarray(table["member"]) == "yes"
    for text, values in (("mean(income)", income), ("mean(income) where member=yes", income[member]),
                         ("share(member=yes)", member.astype(float))):  # fmt: skip
        found = coverage.naive(Query.parse(text, coverage.SCHEMA), coverage.SCHEMA, table)[""]
        assert found.value == pytest.approx(values.mean())
        assert found.standard_error == pytest.approx(values.std() / np.sqrt(len(values)))
    assert coverage.naive(Query.parse("median(income)", coverage.SCHEMA), coverage.SCHEMA, table) == {}
    fit = np.polynomial.Polynomial.fit(table["age"].to_numpy(), income, 1).convert().coef
    regression = Query.parse("regression(income ~ age)", coverage.SCHEMA)
    assert coverage.naive(regression, coverage.SCHEMA, table)["age"].value == pytest.approx(fit[1])


def test_a_small_run_of_coverage(tmp_path):
    config = coverage.CoverageConfig(num_rows=400, epsilons=(3.0,), num_releases=1, num_syntheses=0,
                                     output_dir=str(tmp_path))  # fmt: skip
    answers = coverage.run(config)["cells"][0]["answers"]
    assert {"mean(age)", "mean(income) by sex: m"} < set(answers)
    assert set(answers["mean(age)"]) == {"private", "direct"}
    assert coverage.run(config)["cells"][0]["answers"] == answers  # kept
    with pytest.raises(ValueError, match="dataset must be people, adult or adult_pgm"):
        dataclasses.replace(config, dataset="iris").validate()


def test_coverage_is_counted(tmp_path):
    def interval(low, high):
        return {"value": 0.0, "standard_error": 1.0, "low": low, "high": high}

    answers = {text: {"private": 1.0, "bootstrap": interval(0, 2)} for text in coverage.QUERIES}
    bounds = {"bootstrap": interval(0, 4), "direct": interval(0, 9)}
    others = {text: {"private": 5.0, **bounds} for text in coverage.QUERIES}
    cells = [{"epsilon": 1.0, "seed": seed, "answers": a} for seed, a in enumerate((answers, others))]
    result, text = {"cells": cells}, coverage.QUERIES[0]
    assert coverage.coverage(result, 1.0, text, "bootstrap") == (0.5, 3.0, 2)
    assert coverage.coverage(result, 1.0, text, "direct") == (1.0, 9.0, 1)
    assert coverage.coverage(result, 1.0, text, "naive") is None
    assert f"| {text} | 100 %\\* (9) | 50 % (3) | – |" in coverage.markdown(result)
    assert coverage.draw(result, tmp_path / "coverage.png").stat().st_size > 1000


@pytest.mark.slow
def test_plans_are_compared_with_releases(tmp_path):
    config = planned.PlannedConfig(
        datasets=("firms",), num_rows=2000, num_seeds=2, epsilons=(1.0,), secure=False, output_dir=str(tmp_path)
    )
    result = planned.run(config)
    (row,) = planned.summary(result)
    assert row["columns"] == sum(len(cell["columns"]) for cell in result["cells"])
    assert row["noise_ratio"] == pytest.approx(1, abs=0.2)
    assert row["within"] > 0.8
    assert row["means_within"] > 0.8
    assert "| firms | 1 | × " in planned.markdown(result)
    assert planned.run(config)["cells"] == result["cells"]  # nothing is run again
    with pytest.raises(InputError, match="--data_dir is missing"):
        planned.PlannedConfig(datasets=("adult_pgm",)).validate()
