import dataclasses
import functools
import json
import math

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Ledger, load
from kme_jax.feature_maps.table import Binning
from kme_jax.privacy import statement
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.calibration import gaussian_delta
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.perturb import secure_mechanism
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import mixture
from kme_jax.table import planning as plans
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.conditions import ranges_of
from kme_jax.table.fit import observe
from kme_jax.table.marginals import means, total_variation
from kme_jax.table.measure import measure_table, release_table
from kme_jax.table.readers import open_table
from kme_jax.table.release import NAMES, TableMeasurement, TableRelease
from kme_jax.table.schema import Schema
from tests import artifacts
from tests.arguments import arguments
from tests.fits import no_fit

JOBS = ("baker", "clerk", "nurse", "smith", "tailor")
SCHEMA = Schema(
    (
        Numeric("age", 0, 99, integer=True),
        Numeric("gain", 0, 99_999, integer=True),
        Categorical("job", JOBS, nullable=True),
        Ordinal("size", ("S", "M", "L")),
        Datetime("since", "2000-01-01", "2019-12-31", "day", nullable=True),
        Numeric("height", 1.0, 2.2),
        Categorical("rich", ("no", "yes")),
    )
)


def made_up(num_rows=4000, seed=0):
    """Rows in which most columns depend on each other, with atoms and missing cells."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(40, 15, num_rows), 0, 99).astype(int)
    job = rng.integers(0, 5, num_rows)
    rich = rng.random(num_rows) < 1 / (1 + np.exp(-(age - 55) / 6 - (job == 2)))
    gain = np.where(rng.random(num_rows) < 0.8, 0, np.where(rich, 15_024, rng.integers(0, 9000, num_rows)))
    since = np.asarray("2000-01-01", "M8[D]") + (7000 * rng.beta(2, 1, num_rows)).astype(int)
    missing = rng.random((2, num_rows)) < 0.1
    return pa.table(
        {
            "age": age,
            "gain": gain,
            "job": pa.array(np.asarray(JOBS)[job], mask=missing[0]),
            "size": np.asarray(["S", "M", "L"])[np.minimum(age // 35, 2)],
            "since": pa.array(since, mask=missing[1]),
            "height": rng.normal(1.7, 0.1, num_rows),
            "rich": np.where(rich, "yes", "no"),
        }
    )


TABLE = made_up()


_FIT = mixture.fit


@pytest.fixture(autouse=True)
def _quick_fits(monkeypatch):
    """Fits that are good enough where accuracy is not looked at; ``made`` has better ones."""
    monkeypatch.setattr(mixture, "fit", functools.partial(mixture.fit, num_relaxed=20, num_steps=30))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release with secure noise, saved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "fit", functools.partial(_FIT, num_relaxed=80, num_steps=120))
        released = release_table(TABLE, SCHEMA, budget=PrivacyBudget(3.0, 1e-6), target="rich", num_rows=5000)
    return released, released.save(tmp_path_factory.mktemp("made") / "release")


def _distances(table, schema=SCHEMA):
    return total_variation(schema, schema.encode(TABLE), schema.encode(table))


def test_a_release_is_close_and_valid(made):
    released, _ = made
    SCHEMA.check(released.table)
    assert released.table.num_rows == 5000
    assert released.table.schema.names == list(SCHEMA.names)
    rng = np.random.default_rng(1)
    codes = SCHEMA.encode(TABLE)
    shuffled = total_variation(SCHEMA, codes, rng.permuted(codes, axis=0))
    found = means(_distances(released.table))
    assert found["1"] < 0.08
    assert found["2"] < 0.17
    # Strong pairs: far better than independent columns, which have the exact single columns.
    for pair in (("age", "size"), ("age", "rich"), ("gain", "rich")):
        assert _distances(released.table)[pair] < max(0.7 * shuffled[pair], 0.08)


def test_atoms_survive(made):
    gain = np.asarray(made[0].table["gain"])
    truth = np.asarray(TABLE["gain"])
    for atom in (0, 15_024):
        assert np.mean(gain == atom) == pytest.approx(np.mean(truth == atom), abs=0.03)
    assert np.mean((gain > 0) & (gain < 98)) < 0.03


def test_saved_and_loaded(made):
    released, folder = made
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "measurements.npz",
        "privacy.json",
        "report.html",
        "rows.npz",
        "schema.json",
        "synthetic.parquet",
    ]
    loaded = load(folder)
    assert isinstance(loaded, TableRelease)
    assert loaded.table.equals(released.table)
    assert (loaded.statement, loaded.schema, loaded.target) == (released.statement, SCHEMA, "rich")
    assert loaded.sample(20, seed=3).equals(released.sample(20, seed=3))
    assert "TableRelease(ε=3" in repr(loaded)


@pytest.mark.slow
def test_a_measurement_that_was_loaded_is_made_into_rows(made):
    again = TableMeasurement.load(made[1])
    assert isinstance(again, TableMeasurement)
    assert again.synthesise(30, seed=1).table.num_rows == 30


def test_a_folder_holds_no_private_cell(made):
    """A value that one row has would stay in what is written only by chance."""
    _, folder = made
    with np.load(folder / "measurements.npz") as file:
        content = b"".join(file[name].tobytes() for name in file.files)
    for height in np.asarray(TABLE["height"])[:200]:
        assert np.float64(height).tobytes() not in content


@pytest.mark.parametrize("name", ["measurements.npz", "rows.npz", "synthetic.parquet", "privacy.json", "schema.json"])
def test_damaged_folders_are_refused(made, tmp_path, name):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in made[1].iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(content[: len(content) // 2] if path.name == name else content)
    with pytest.raises(ReleaseError, match=f"{name}: is damaged"):
        TableRelease.load(folder)
    (folder / name).unlink()
    with pytest.raises(ReleaseError, match=f"has no {name}"):
        TableRelease.load(folder)


def test_the_statement_adds_up(made):
    said = made[0].statement
    jsonschema.Draft202012Validator(statement.schema()).validate(said)
    assert said["private"] is True
    rho = sum(m["sensitivity"] ** 2 / (2 * m["scale"] ** 2) for m in said["measurements"])
    assert said["rho"] == pytest.approx(rho, rel=1e-9)
    mu, epsilon = math.sqrt(2 * rho), said["epsilon"]
    spent = gaussian_delta(1 / mu, epsilon) + (1 + math.exp(epsilon)) * said["discreteness"]
    assert 0.99 * said["delta"] < spent <= said["delta"]
    assert [m["rho"] / said["rho"] for m in said["measurements"]] == pytest.approx(plans.SHARES, rel=1e-6)
    for measured, private in zip(said["measurements"], made[0].measurement.measured.values(), strict=True):
        assert measured["feature_map"]["diameter"] == pytest.approx(np.sqrt(2), rel=1e-4)  # moments are rounded
        assert measured["feature_map"]["num_features"] == len(private.coordinates)
        noise = [plans.sigma(private, block) for block in private.feature_map.blocks]
        assert measured["cell_noise"] == [min(noise), max(noise)]
    words = statement.describe(said)
    assert "(3, 1e-06)-differential privacy" in words
    assert words.count("rows for each count of a marginal") == 3


def test_counts_are_those_of_the_table_and_the_noise(made):
    """Every cell of every table that was measured, within what its noise makes likely."""
    codes = SCHEMA.encode(TABLE)
    for private in made[0].measurement.measured.values():
        feature_map = private.feature_map
        counts = feature_map.marginals(feature_map.weighted_sum(codes, np.ones(len(codes))) / len(codes), len(codes))
        noisy = feature_map.marginals(private.coordinates, len(codes))
        scaled = [
            (theirs - ours).reshape(-1) / plans.sigma(private, block)
            for theirs, ours, block in zip(noisy, counts, feature_map.blocks, strict=True)
        ]
        errors = np.concatenate(scaled)
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(1, abs=6 / np.sqrt(2 * len(errors)))


def test_simulated_noise_is_reproducible_and_said_to_be_no_protection():
    both = [measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), secure=False, seed=4) for _ in range(2)]
    for first, second in zip(*(list(measured.measured.values()) for measured in both), strict=True):
        np.testing.assert_array_equal(first.coordinates, second.coordinates)
    assert both[0].statement["private"] is False
    assert statement.describe(both[0].statement).startswith("NOT PRIVATE")


def test_the_ledger_comes_before_the_noise(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger")
    options = {"ledger": ledger, "database": "people"}
    monkeypatch.setattr("kme_jax.privacy.secure.add_gaussian", lambda *_: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        measure_table(TABLE, SCHEMA, **arguments(**options))
    (spent,) = ledger.spent("people")
    assert (spent.epsilon, spent.delta) == (1.0, 1e-6)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="released before"):
        measure_table(TABLE, SCHEMA, **arguments(**options))
    measured = measure_table(TABLE, SCHEMA, **arguments(**options, allow_repeat=True), folder=tmp_path / "measured")
    assert measured.statement["total"]["releases"] == 2
    assert measured.statement["total"]["rho"] == pytest.approx(2 * spent.rho)
    assert measured.statement["rho"] <= spent.rho
    assert TableMeasurement.load(tmp_path / "measured").statement == measured.statement


@pytest.mark.parametrize(
    ("where", "error"),
    [("secure.source", ModuleNotFoundError("no OpenDP")), ("secure.check_scale", ValueError("no room"))],
)
def test_what_can_fail_does_so_before_the_ledger_is_written(tmp_path, monkeypatch, where, error):
    ledger = Ledger(tmp_path / "ledger")
    monkeypatch.setattr(f"kme_jax.privacy.{where}", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), spending=Spending(ledger, "people"))
    monkeypatch.undo()
    monkeypatch.setattr(Schema, "encode", lambda *_: (_ for _ in ()).throw(pa.ArrowInvalid("secret")))
    with pytest.raises(ValueError, match="cannot convert"):
        measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), spending=Spending(ledger, "people"))
    assert not ledger.path.exists()


@pytest.mark.parametrize("change", [{"private": True}, {"measurements": []}])
def test_a_statement_that_was_changed_is_refused(tmp_path, change):
    measured = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), secure=False, folder=tmp_path / "measured")
    TableMeasurement.load(tmp_path / "measured")
    path = tmp_path / "measured" / "privacy.json"
    path.write_text(json.dumps(measured.statement | change))
    with pytest.raises(ReleaseError, match="not the file that manifest"):
        TableMeasurement.load(tmp_path / "measured")
    artifacts.seal(tmp_path / "measured")
    with pytest.raises(ReleaseError, match=r"privacy.json: is damaged, or was edited"):
        TableMeasurement.load(tmp_path / "measured")


def test_the_source_may_come_in_any_form(tmp_path):
    """The same rows in a file, in another order of columns: the same codes, so the same release."""
    from kme_jax.table.readers import write_table

    reordered = TABLE.select(list(reversed(SCHEMA.names)))
    write_table(tmp_path / "rows.parquet", reordered)
    sources = TABLE, tmp_path / "rows.parquet", open_table(reordered, SCHEMA)
    found = [measure_table(source, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), secure=False) for source in sources]
    for name, expected in found[0].measured.items():
        for other in found[1:]:
            np.testing.assert_array_equal(other.measured[name].coordinates, expected.coordinates)


def test_the_errors_of_a_table_in_any_form(made, tmp_path):
    from kme_jax.table.evaluate import describe_table, evaluate_table
    from kme_jax.table.readers import write_table

    write_table(tmp_path / "rows.parquet", TABLE)
    errors = evaluate_table(made[0], open_table(TABLE, SCHEMA))
    assert errors["num_rows"] == TABLE.num_rows
    age = errors["columns"][0]
    for key, value in (("mean", np.mean), ("sd", np.std)):
        assert age[key]["private"] == pytest.approx(value(np.asarray(TABLE["age"])))
        assert age[key]["synthetic"] == pytest.approx(value(np.asarray(made[0].table["age"])))
    ours, theirs = np.asarray(TABLE["age"]), np.asarray(made[0].table["age"])
    assert age["mean_error"] == pytest.approx((theirs.mean() - ours.mean()) / ours.std())
    quantiles = [np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9]) for values in (ours, theirs)]
    assert age["quantiles"]["private"] == pytest.approx(quantiles[0].tolist())
    assert age["quantile_error"] == pytest.approx(np.abs(quantiles[1] - quantiles[0]).max() / ours.std())
    assert "mean" not in errors["columns"][2]
    slopes = {tuple(pair["names"]): pair["slopes"]["private"] for pair in errors["correlations"]}
    by_age = [
        np.polyfit(*(np.asarray(TABLE[name]) for name in names), 1)[0] for names in (("age", "gain"), ("gain", "age"))
    ]
    assert slopes["age", "gain"] == pytest.approx(by_age)
    unseen = {tuple(pair["names"]): pair.get("unseen") for pair in errors["pairs"]}
    ours, theirs = ({(row["job"], row["size"]) for row in table.to_pylist()} for table in (TABLE, made[0].table))
    assert unseen["job", "size"] >= len(theirs - ours) / TABLE.num_rows
    assert (unseen["job", "size"] == 0) == (theirs <= ours)
    assert unseen["age", "job"] is None
    expected = np.corrcoef(np.asarray(TABLE["age"]), np.asarray(TABLE["gain"]))[0, 1]
    correlations = {tuple(pair["names"]): pair["private"] for pair in errors["correlations"]}
    assert correlations["age", "gain"] == pytest.approx(expected)
    assert list(map(abs, correlations.values())) == sorted(map(abs, correlations.values()), reverse=True)
    yardsticks = [
        errors["yardstick"]["mean_total_variation"]["1"],
        *(column["yardstick"] for column in errors["columns"]),
    ]
    assert np.mean(yardsticks[1:]) == pytest.approx(yardsticks[0])
    assert 0 < yardsticks[0] < errors["mean_total_variation"]["1"] * 3
    explained = {tuple(pair["names"]): pair for pair in errors["explained"]}
    for which, table in (("private", TABLE), ("synthetic", made[0].table)):
        gain, jobs = np.asarray(table["gain"], float), np.asarray(table["job"])
        between = sum((jobs == job).sum() * (gain[jobs == job].mean() - gain.mean()) ** 2 for job in set(jobs))
        assert explained["gain", "job"][which] == pytest.approx(between / len(gain) / gain.var())
    text = describe_table(errors)
    assert text.index("mean ") < text.index("standard deviation") < text.index("quantiles") < text.index("slope of the")
    for source in (TABLE, TABLE.to_pandas(), tmp_path / "rows.parquet", str(tmp_path / "rows.parquet")):
        assert evaluate_table(made[0], source) == errors
    other = open_table(TABLE, Schema(SCHEMA.columns, filled_from_data=True))
    with pytest.raises(ValueError, match="give the release's schema to open_table"):
        evaluate_table(made[0], other)


# -- conditions


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        (["age>=65"], lambda row: row["age"] >= 65),
        ("age < 18", lambda row: row["age"] < 18),
        (["age>20", "age<=30", "rich=yes"], lambda row: 20 < row["age"] <= 30 and row["rich"] == "yes"),
        (["job != baker"], lambda row: row["job"] != "baker"),
        (["job=missing"], lambda row: row["job"] is None),
        (["since>=2010-06-01"], lambda row: str(row["since"]) >= "2010-06-01" and row["since"] is not None),
        (["size>S"], lambda row: row["size"] in ("M", "L")),
        (["age==40"], lambda row: row["age"] == 40),
        (["age>=3.5", "age<=200", "age>-1"], lambda row: row["age"] >= 4),
        (["since<2010-06-01T12:30"], lambda row: row["since"] is not None and str(row["since"]) <= "2010-06-01"),
        (["since>=2010-06-01T12:30"], lambda row: row["since"] is not None and str(row["since"]) > "2010-06-01"),
    ],
)
def test_conditional_samples(made, where, holds):
    rows = made[0].sample(300, where=where).to_pylist()
    assert len(rows) == 300
    assert all(map(holds, rows))


def test_conditional_samples_are_those_that_all_rows_have(made):
    released, _ = made
    many = released.sample(100_000, seed=1)
    old = many.filter(pa.compute.greater_equal(many["age"], 60))
    given = released.sample(50_000, where="age>=60", seed=2)
    for name, value in (("rich", "yes"), ("gain", 0), ("size", "L")):
        shares = [np.mean(np.asarray(table[name]) == value) for table in (old, given)]
        assert shares[0] == pytest.approx(shares[1], abs=0.02)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("height", "expected a column"),
        ("agex>3", "there is no column 'agex', only "),
        ("age>=old", "age: 'old' is no number"),
        ("size>XL", "size: 'XL' is not one of its values"),
        ("since<soon", "since: 'soon' is no date or time, as in 2000-01-01"),
        ("since=2010-06-01T12:30", "since: '2010-06-01T12:30' is not one of its values"),
        ("age>100", "no such rows"),
        ("job>baker", "values of job have no order"),
        ("rich=perhaps", "rich: 'perhaps' is not one of its values"),
        (["age<20", "age>30"], "no such rows"),
        ("since>=missing", "have no order"),
        ("age=>65", "condition 'age=>65': write age>=65$"),
        ("age =< 65", "write age<=65$"),
        ("rich=>no", "rich: '>no' is not one of its values, no, yes$"),
        ("job=", "job: '' is not one of its values, baker, .*; job=missing asks for missing cells$"),
        ("job!=pilot", "'pilot' is not one of its values, baker, .*; job=missing asks for missing cells$"),
        ("since<", "'' is no date or time, .*; since=missing asks for missing cells$"),
        ("rich=", "rich: '' is not one of its values, no, yes$"),
    ],
)
def test_bad_conditions(made, where, message):
    with pytest.raises(ValueError, match=message):
        made[0].sample(10, where=where)


def test_conditions_may_be_joined():
    """A value may have the word "and" in it, too."""
    schema = Schema((Numeric("age", 0, 99, integer=True), Categorical("team", ("Tick and Tock", "others"))))
    joined = ranges_of(schema.columns, ["age>=18 AND age<65"])
    assert joined == ranges_of(schema.columns, ["age>=18", "age<65"])
    assert ranges_of(schema.columns, ["team=Tick and Tock"]) == {1: [(0, 1)]}
    with pytest.raises(ValueError, match="team: 'Tick and Tack' is not one of its values"):
        ranges_of(schema.columns, ["team=Tick and Tack"])
    with pytest.raises(ValueError, match="condition 'age<old': column age: 'old' is no number"):
        ranges_of(schema.columns, ["age>=18 and age<old"])


@pytest.mark.long
def test_the_longest_name_is_meant():
    schema = Schema((Numeric("a", 0, 3, integer=True), Numeric("a>1", 0, 3, integer=True)))
    table = pa.table({"a": [0, 1, 2, 3] * 30, "a>1": [3, 2, 1, 0] * 30})
    released = release_table(table, schema, budget=PrivacyBudget(10.0, 1e-4), secure=False)
    assert set(released.sample(50, where="a>1=2")["a>1"].to_pylist()) == {2}
    assert set(released.sample(50, where="a > 1")["a"].to_pylist()) <= {2, 3}


def test_weighted_samples(made):
    released, _ = made
    table = released.sample(20_000, weighted=True)
    weights = np.asarray(table["weight"])
    assert weights.sum() == pytest.approx(1)
    assert weights @ (np.asarray(table["rich"]) == "yes") == pytest.approx(
        np.mean(np.asarray(released.table["rich"]) == "yes"), abs=0.03
    )
    with pytest.raises(ValueError, match="num_rows"):
        released.sample(0)


# -- odd tables


@pytest.mark.parametrize(
    ("schema", "target", "num_rows"),
    [
        pytest.param(Schema((Numeric("x", 0, 1),)), None, 300, marks=pytest.mark.long),
        pytest.param(Schema((Categorical("only", ("one",)),)), "only", 2, marks=pytest.mark.slow),
        (Schema((Categorical("a", ("u", "v")), Categorical("b", ("u", "v")))), "b", 300),
        pytest.param(
            Schema((Numeric("wide", 0, 10**12, integer=True), Categorical("a", tuple("uvwxyz")))),
            "a",
            300,
            marks=pytest.mark.long,
        ),
        pytest.param(
            Schema((Numeric("x", 0, 1), Numeric("y", -5, 5, nullable=True), Numeric("z", 0, 100, step=0.5))),
            "y",
            2,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_any_schema_can_be_released(schema, target, num_rows):
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, column.num_codes, num_rows) for column in schema.columns], axis=1)
    released = release_table(schema.decode(codes), schema, budget=PrivacyBudget(1.0, 1e-6), target=target, secure=False)
    schema.check(released.table)
    assert released.table.num_rows == num_rows


@pytest.mark.long
def test_columns_of_a_single_value_or_none():
    """What is constant or missing everywhere passes in silence, and stays valid."""
    schema = Schema((Numeric("x", 0, 1, nullable=True), Categorical("a", ("u", "v")), Numeric("n", 0, 9, integer=True)))
    table = pa.table({"x": pa.nulls(200, pa.float64()), "a": ["v"] * 200, "n": [4] * 200})
    released = release_table(table, schema, budget=PrivacyBudget(5.0, 1e-6), secure=False)
    schema.check(released.table)
    assert np.mean(np.asarray(released.table["a"]) == "v") > 0.8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "wealth"}, "no column 'wealth'"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.01}, "delta must be below"),
        ({"num_rows": 0}, "num_rows"),
        ({"ledger": Ledger("nowhere/at/all"), "database": "people"}, "nowhere"),
        ({"ledger": Ledger("ledger"), "database": ""}, "name"),
        ({"ledger": Ledger("ledger"), "database": "people", "secure": False}, "simulated noise releases nothing"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        release_table(TABLE, SCHEMA, **arguments(**changes))


def test_a_source_of_another_schema_is_refused():
    source = open_table(TABLE, SCHEMA)
    other = Schema(SCHEMA.columns, filled_from_data=True)
    with pytest.raises(ValueError, match="another schema"):
        measure_table(source, other, budget=PrivacyBudget(1.0, 1e-6))
    said = measure_table(TABLE, other, budget=PrivacyBudget(1.0, 1e-6), secure=False).statement
    assert "said to be public" in said["public_inputs"][0]


def test_too_many_columns():
    schema = Schema(tuple(Numeric(f"x{i}", 0, 1) for i in range(201)))
    table = pa.table({name: [0.5, 0.5] for name in schema.names})
    with pytest.raises(ValueError, match="at most 200 columns"):
        release_table(table, schema, budget=PrivacyBudget(1.0, 1e-6))


def test_pairs_that_were_measured_twice_say_what_both_measurements_say(rng):
    """Log-likelihoods of two tables differ by as much, from the marginals themselves and from what a fit gets."""
    measured = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(3, 1e-6), secure=False)
    layout, plan, embeddings = measured.layout, measured.plan, [measured.measured[name] for name in NAMES]
    observed = observe(layout, plan, plans.Singles.read(layout, embeddings[0]), *embeddings[1:], TABLE.num_rows)
    rows = rng.dirichlet(np.ones(7), size=2), rng.random((2, 7, observed.offsets[-1]))
    direct, fitted, met = [], [], 0
    for weights, probabilities in zip(*rows, strict=True):
        parts = np.concatenate([probabilities, probabilities @ observed.unions], axis=1)
        counts = TABLE.num_rows * np.einsum("k,ka,kb->ab", weights, parts, parts)
        fitted.append(np.square((counts - observed.pairs[0]) * observed.pairs_precision).sum())
        direct.append(0.0)
        for noisy, labels in ((embeddings[1], plan.merged), (embeddings[2], plan.bins)):
            blocks = noisy.feature_map.blocks
            marginals = noisy.feature_map.marginals(noisy.coordinates, noisy.mechanism.num_rows)
            for block, marginal in zip(blocks, marginals, strict=True):
                if len(block.columns) != 2:
                    continue
                members = []
                for a in block.columns:  # the probability of each bin or union of a column, from its bins
                    to = labels[a][np.unique(plan.bins[a], return_index=True)[1]]
                    own = probabilities[:, slice(*observed.offsets[a : a + 2])]
                    members.append(own @ np.eye(to.max() + 1)[to])
                table = TABLE.num_rows * np.einsum("k,ka,kb->ab", weights, *members)
                direct[-1] += np.square((table - marginal) / plans.sigma(noisy, block)).sum()
                met += 1
    assert met > 4
    assert observed.unions.size > 0
    assert direct[1] - direct[0] == pytest.approx(fitted[1] - fitted[0], rel=1e-9)


def test_plans_do_not_see_rows():
    """Bins, pairs and cells are functions of noisy counts alone."""
    first = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), secure=False)
    rho = first.statement["rho"]
    layout = plans.Layout.create(first.measured["single columns"].feature_map.binnings, -1, TABLE.num_rows, rho)
    singles = plans.Singles.read(layout, first.measured["single columns"])
    plan = plans.Plan.create(layout, singles, TABLE.num_rows, rho, {})
    for ours, theirs in zip(plan.bins + plan.unions, first.plan.bins + first.plan.unions, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    coarse = first.measured["pairs, coarsely"]
    associated = plans.association(layout, plan, singles, coarse)
    chosen = plans.choose_pairs(layout, plan, associated, TABLE.num_rows, plans.SHARES[2] * rho)
    products = plans.strong_pairs(layout, plan, singles, coarse, chosen)
    triples = plans.choose_triples(layout, coarse)
    zooms = plans.zoom_blocks(layout, singles)
    expected = plans.pairs_map(layout, plan, chosen, zooms, products, triples)
    found = first.measured["some pairs, finely"].feature_map
    assert found.moments == expected.moments
    assert [(b.columns, b.weight, b.shape) for b in found.blocks] == [
        (b.columns, b.weight, b.shape) for b in expected.blocks
    ]


@pytest.mark.parametrize("upper", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.long)])
def test_ordered_columns_of_few_values_beside_many_classes(upper, monkeypatch):
    """Their moments are measured, since there are many cells of all classes together. Nothing fails after the noise."""
    monkeypatch.setattr(mixture, "fit", no_fit)
    random, size = np.random.default_rng(0), 20_000
    table = pa.table(
        {
            "class": [f"k{i}" for i in random.integers(0, 14, size)],
            "flag": [f"f{i}" for i in random.integers(0, upper + 1, size)],
            "zone": [f"z{i}" for i in random.integers(0, 3, size)],
        }
    )
    schema = Schema(
        (
            Categorical("class", tuple(f"k{i}" for i in range(14))),
            Ordinal("flag", tuple(f"f{i}" for i in range(upper + 1))),
            Categorical("zone", ("z0", "z1", "z2")),
        )
    )
    measured = measure_table(table, schema, budget=PrivacyBudget(2.0, 1e-6), target="class", secure=False)
    assert len(measured.plan.bins) == 2
    assert measured.synthesise(500).table.num_rows == 500


def test_pairs_that_depend_on_each_other_come_first():
    measured = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(3.0, 1e-6), secure=False)
    private = list(measured.measured.values())
    layout = measured.plan.layout(private[0].feature_map.binnings, -1, private[0])
    singles = plans.Singles.read(layout, private[0])
    found = plans.association(layout, measured.plan, singles, private[1])
    associated = {
        tuple(SCHEMA.names[j] for j in pair): value for pair, value in zip(layout.pairs(), found, strict=True)
    }
    strongest = sorted(associated, key=associated.get)[-4:]
    assert ("age", "size") in strongest
    assert ("age", "rich") in strongest
    chosen = plans.choose_pairs(layout, measured.plan, found, TABLE.num_rows, 0.01)
    assert 1 <= len(chosen) < len(found)
    assert layout.pairs().index((0, 3)) in chosen
    assert len(plans.choose_pairs(layout, measured.plan, found, TABLE.num_rows, 1e6)) == np.count_nonzero(found)


def _exclusive(num_rows, seed):
    """Columns of which one is the exclusive or of two others. All pairs are independent, except for two columns."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.random(num_rows) < 0.5 for name in "abcd"}
    columns["either"] = columns["b"] ^ columns["d"]
    size = rng.normal(50 + 10 * columns["a"], 10).clip(0, 100)
    names = rng.permutation([*columns]).tolist()
    table = {name: np.where(columns[name], "yes", "no") for name in names} | {"size": size}
    schema = Schema((*(Categorical(name, ("no", "yes")) for name in names), Numeric("size", 0, 100)))
    return pa.table(table), schema


@pytest.mark.long
@pytest.mark.parametrize("cells", [([1e250, 0.0, 5e249], [1e200, 0.0, 3e199]), ([0.1] * 1000, [0.3] * 1000)])
def test_errors_of_huge_and_of_constant_numbers_are_numbers(cells):
    from kme_jax.table.evaluate import describe_table, evaluate_table

    schema = Schema((Numeric("x", 0, max(cells[0]) + 1), Numeric("y", 0, max(cells[1]) + 1)))
    rows = pa.table({"x": cells[0], "y": cells[1]})
    errors = evaluate_table(release_table(rows, schema, budget=PrivacyBudget(1.0, 1e-4), secure=False), rows)
    assert json.loads(json.dumps(errors, allow_nan=False)) == errors
    assert describe_table(errors)


def test_names_of_pairs_are_whole_where_errors_are_described(monkeypatch):
    from kme_jax.table.evaluate import describe_table, evaluate_table

    monkeypatch.setattr(mixture, "fit", no_fit)
    names = ("nights_of_a_stay_in_weekends", "nights_of_a_stay_in_weeks")
    nights = np.random.default_rng(0).integers(0, 8, 500)
    rows = pa.table(dict.fromkeys(names, nights))
    schema = Schema(tuple(Numeric(name, 0, 7, integer=True) for name in names))
    errors = evaluate_table(release_table(rows, schema, budget=PrivacyBudget(1.0, 1e-4), secure=False), rows)
    lines = describe_table(errors).splitlines()
    of_pairs = [line for line in lines if line.startswith(" and ".join(names) + " ")]
    assert len(of_pairs) == 3  # a distance, a correlation and a slope
    header = next(line for line in lines if line.startswith("correlation"))
    assert len({len(line) for line in (header, *of_pairs)}) == 1


def test_errors_tell_of_private_cells_that_the_schema_cannot_read(monkeypatch):
    """Both tables are missing then, and no distance shows it."""
    from kme_jax.table.evaluate import describe_table, evaluate_table

    monkeypatch.setattr(mixture, "fit", no_fit)
    born = Datetime("born", "1900-01-01", "2020-12-31", nullable=True)
    schema = Schema((born, Categorical("job", ("a", "b"), default="b"), Numeric("age", 0, 99)))
    rows = pa.table({"born": ["31.12.1980"] * 400, "job": ["a", "c", "a", "a"] * 100, "age": [30, 40] * 200})
    errors = evaluate_table(release_table(rows, schema, budget=PrivacyBudget(1.0, 1e-4), secure=False), rows)
    assert errors["unreadable"] == [
        {"name": "born", "share": 1.0, "count_as": None},
        {"name": "job", "share": 0.25, "count_as": "b"},
    ]
    assert describe_table(errors).splitlines()[1:3] == [
        "born: 100 % of the private cells do not fit the schema, so they count as missing; see kme-jax check",
        "job: 25 % of the private cells do not fit the schema, so they count as b; see kme-jax check",
    ]


@pytest.mark.long
def test_what_pairs_do_not_show_is_found(monkeypatch):
    monkeypatch.setattr(mixture, "fit", functools.partial(_FIT, num_relaxed=100, num_steps=300))
    rows, schema = _exclusive(20_000, 1)
    released = release_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False, seed=1)
    private = list(released.measurement.measured.values())
    layout = released.measurement.plan.layout(private[0].feature_map.binnings, -1, private[0])
    triples = [{schema.names[j] for j in triple} for triple in plans.choose_triples(layout, private[1])]
    assert triples == [{"b", "d", "either"}]
    b, d, either = (np.asarray(released.table[name]) == "yes" for name in ("b", "d", "either"))
    assert np.mean((b ^ d) == either) > 0.93
    assert max(abs(np.corrcoef([b, d, either])[np.triu_indices(3, 1)])) < 0.05


def test_triples_are_measured_where_their_noise_is_small():
    binnings = [Binning.create(2, ordered=False, missing=False)] * 20
    layout = plans.Layout(tuple(binnings), -1, -1)
    assert plans.triples_pay(layout, 50_000, 0.15 * 0.0217)
    assert not plans.triples_pay(layout, 5000, 0.15 * 0.0217)
    assert not plans.triples_pay(plans.Layout(tuple(binnings * 2), -1, -1), 10**9, 1.0)  # there are too many
    assert not plans.triples_pay(plans.Layout(tuple(binnings[:2]), -1, -1), 10**9, 1.0)  # there are none


@pytest.mark.long
def test_a_constant_column_is_in_triples():
    rows, schema = _exclusive(4000, 0)
    rows = rows.set_column(5, "size", pa.array(np.full(4000, 7.0))).set_column(
        0, rows.column_names[0], pa.array(["no"] * 4000)
    )
    released = release_table(rows, schema, budget=PrivacyBudget(10.0, 1e-5), secure=False)
    coarse = released.measurement.measured["pairs, coarsely"]
    assert (1, 2, 2) in [block.shape for block in coarse.feature_map.blocks] or (2, 2, 1) in [
        block.shape for block in coarse.feature_map.blocks
    ]
    assert np.mean(np.asarray(released.table["size"]) - 7.0) == pytest.approx(0, abs=2)


def test_sizes_of_classes():
    sizes = plans.class_sizes(np.asarray([999_900.0, 100.0]), 30.0, 10**6)
    np.testing.assert_allclose(sizes, [999_900, 100])
    sizes = plans.class_sizes(np.asarray([1010.0, -20.0, 5.0]), 30.0, 1000)
    assert sizes.sum() == pytest.approx(1000)
    assert 0 < sizes[1] < 1
    assert (plans.class_sizes(np.zeros(3), 0.0, 10) > 0).all()


def test_noise_is_no_triple(rng):
    """Of 816 triples of independent columns none is chosen, though columns are not balanced."""
    num_rows, shares = 40_000, rng.uniform(0.02, 0.98, 18)
    codes = (rng.random((num_rows, 18)) < shares).astype(np.int64)
    names = [f"c{j}" for j in range(18)]
    schema = Schema(tuple(Categorical(name, ("no", "yes")) for name in names))
    measured = measure_table(schema.decode(codes), schema, budget=PrivacyBudget(1.0, 1e-5), secure=False)
    private = list(measured.measured.values())
    layout = measured.plan.layout(private[0].feature_map.binnings, -1, private[0])
    assert len(private[1].feature_map.blocks) == len(layout.pairs()) + len(layout.triples())
    assert plans.choose_triples(layout, private[1]) == []


@pytest.mark.parametrize("name", ["bins", "unions"])
def test_bins_are_numbered_without_gaps(made, name):
    for bins in getattr(made[0].measurement.plan, name):
        assert sorted(set(bins.tolist())) == list(range(bins.max() + 1))


def test_releases_differ(made):
    """The noise of two secure releases is not the same."""
    other = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(3.0, 1e-6), target="rich")
    first, second = (m.measured["single columns"].coordinates for m in (made[0].measurement, other))
    assert np.mean(first == second) < 0.2
    assert json.dumps(dataclasses.asdict(made[0].measurement.measured["single columns"].mechanism))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "last"),
    [
        ([Categorical(name, ("u", "v", "w", "x", "y")) for name in "abcd"], 4),
        ([Numeric(name, 0, 199, integer=True) for name in "ab"], 199),  # with segments and moments
    ],
)
def test_an_attack_on_the_whole_sequence(columns, last):
    """Of two tables that differ in a row as much as they can, by the likelihood ratio of all three measurements: nobody
    does better than 2ρ says, whatever is chosen on the way, and this attacker does as well."""
    schema = Schema(tuple(columns))
    neighbours = [np.zeros((40, len(columns)), np.int64) for _ in range(2)]
    for codes in neighbours:
        codes[20:] = last  # so that, whatever the noise, bins tell the two rows apart
    neighbours[1][0] = last
    rows = [schema.decode(codes) for codes in neighbours]
    statistics, bounds = [[], []], []
    for _ in range(25):
        for which in (0, 1):
            measured = measure_table(rows[which], schema, budget=PrivacyBudget(10.0, 1e-3))
            statistic = bound = 0.0
            for private in measured.measured.values():
                sums = [private.feature_map.weighted_sum(codes, np.ones(40)) / 40 for codes in neighbours]
                difference, variance = sums[1] - sums[0], private.mechanism.variance
                statistic += (private.coordinates - (sums[0] + sums[1]) / 2) @ difference / variance
                bound += difference @ difference / variance
            statistics[which].append(statistic)
            bounds.append(bound)
            assert bound <= 2 * measured.statement["rho"] * (1 + 1e-9)
    distance = np.mean(statistics[1]) - np.mean(statistics[0])  # of normal distributions of variance d², ± d²/2: d²
    assert distance == pytest.approx(np.mean(bounds), abs=5 * np.sqrt(np.mean(bounds) * 2 / 25))
    assert min(bounds) > 0.9 * 2 * measured.statement["rho"]


@pytest.mark.parametrize(
    ("num_codes", "num_rows", "rho", "splits"),
    [
        (2, 100, 1e-6, True),
        (3, 100, 1e-6, True),
        (4, 100, 1e-6, False),
        (5, 400_000, 0.02, True),
        (5, 1000, 0.02, False),
        (17, 10**9, 1.0, False),
    ],
)
def test_tables_are_split_by_a_target_of_few_classes(num_codes, num_rows, rho, splits):
    binnings = [Binning.create(size, ordered=False, missing=False) for size in (*[8] * 20, num_codes)]
    layout = plans.Layout.create(binnings, 20, num_rows, rho)
    assert layout.split == (20 if splits else -1)
    assert layout.target == 20
    assert layout.num_classes == (num_codes if splits else 1)
    assert len(layout.pairs()) == 20 * (19 if splits else 21) // 2


@pytest.mark.long
def test_a_target_of_several_classes_is_learnt(rng, monkeypatch):
    """Classes that only a pair of columns tells apart: tables of pairs by themselves do not show it."""
    monkeypatch.setattr(mixture, "fit", functools.partial(_FIT, num_relaxed=100, num_steps=300))
    left, right = rng.integers(0, 4, (2, 20_000))
    label = (left + right) % 4
    columns = {"left": left, "right": right, "label": label}
    schema = Schema(tuple(Categorical(name, ("0", "1", "2", "3")) for name in columns))
    table = pa.table({name: pa.array(codes.astype(str)) for name, codes in columns.items()})
    made = release_table(table, schema, budget=PrivacyBudget(3.0, 1e-6), target="label", secure=False).table
    codes = schema.encode(made)
    assert np.mean((codes[:, 0] + codes[:, 1]) % 4 == codes[:, 2]) > 0.9


def test_wide_tables_have_bins_that_there_is_room_for():
    binnings = [Binning.create(900, ordered=True, missing=False) for _ in range(200)]
    layout = plans.Layout.create(binnings, -1, 10**8, 1.0)
    counts = [np.full((1, 900), 10**8 / 900) for _ in binnings]
    ones, sums = [1.0] * 200, [table[0] for table in counts]
    inside = [np.ones(900, bool)] * 200
    singles = plans.Singles(
        counts, ones, None, [], None, np.inf, sums, ones, [None] * 200, counts, [None] * 200, inside
    )
    plan = plans.Plan.create(layout, singles, 10**8, 1.0, {})
    assert sum(int(bins.max()) + 1 for bins in plan.bins) ** 2 <= 1.1 * plans.MOST_CELLS


@pytest.mark.long
def test_skewed_numbers_on_a_logarithmic_scale(tmp_path, rng):
    """Quantiles of small numbers are good though the bounds are wide, and the mean stays where it is."""
    amounts = np.exp(6 + rng.normal(size=6000))
    rows = pa.table({"amount": amounts, "large": np.where(amounts > 500, "yes", "no")})
    schema = Schema((Numeric("amount", 0, 1e7, scale="log"), Categorical("large", ("no", "yes"))))
    released = release_table(rows, schema, budget=PrivacyBudget(2.0, 1e-6), target="large", secure=False)
    found = released.table["amount"].to_numpy()
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.quantile(found, quantile) == pytest.approx(np.quantile(amounts, quantile), rel=0.1)
    assert found.mean() == pytest.approx(amounts.mean(), rel=0.25)
    assert np.mean((found > 500) == (np.asarray(released.table["large"]) == "yes")) > 0.95
    again = load(released.save(tmp_path / "published"))
    assert again.schema == schema
    assert again.table == released.table
    assert min(again.sample(50, where="amount>=1000.5")["amount"].to_pylist()) >= 1000.5


def test_few_rows_have_few_cells():
    """The larger N beside the noise is, the more cells have ordered columns of many values."""
    binnings = [Binning.create(5000, ordered=True, missing=False)] * 30 + [
        Binning.create(2000, ordered=False, missing=False)
    ]
    found = []
    for num_rows in (100, 2000, 8000, 10**6):
        layout = plans.Layout.create(binnings, -1, num_rows, 0.04)
        assert layout.binnings[-1] == binnings[-1]
        found.append(layout.binnings[0].num_cells)
    assert found == [250, 250, 500, 1000]


def test_another_number_of_cells_is_refused(tmp_path, monkeypatch):
    create = plans.Layout.create
    rows, schema = pa.table({"a": np.arange(300.0)}), Schema((Numeric("a", 0, 300),))

    def with_more_cells(*arguments):
        layout = create(*arguments)
        return dataclasses.replace(layout, binnings=tuple(binning.with_cells(1024) for binning in layout.binnings))

    with monkeypatch.context() as patched:
        patched.setattr(plans.Layout, "create", with_more_cells)
        other = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-6), secure=False).save(tmp_path / "other")
    with pytest.raises(ReleaseError, match="the number of cells does not follow from the number of rows"):
        load(other)


def test_wide_columns_do_not_take_the_budget_of_others():
    """The weight of a marginal grows with its cells, but those of an ordered column count up to a limit."""
    binnings = [Binning.create(size, ordered=ordered, missing=False) for size, ordered in
                ((30, True), (64, True), (1000, True), (1000, False), (64, False))]  # fmt: skip
    weights = [b.weight for b in plans.singles_map(plans.Layout.create(binnings, -1, 10**6, 0.04)).blocks]
    assert weights[0] < weights[1] == weights[2] == weights[4] < weights[3]


def test_measurements_of_earlier_versions_have_other_weights():
    """All cells counted for the weights, and the layout of such a measurement is found again."""
    binnings = [Binning.create(size, ordered=True, missing=False) for size in (30, 1000)]
    layout = plans.Layout.create(binnings, -1, 10**6, 0.04)
    layout = dataclasses.replace(layout, counted_cells=None, segmented=())
    first = plans.singles_map(layout)
    assert [round((b.weight / first.blocks[0].weight) ** 3, 3) for b in first.blocks] == [1, 33.333]
    integers = first.integers(10**6)
    mechanism = secure_mechanism(integers, 10**6, PrivacyBudget(1.0, 1e-7), share=0.5)
    noisy = NoisyEmbedding(first, np.zeros(first.num_features), mechanism)
    plan = plans.Plan([np.zeros(30, int), np.zeros(1000, int)], [np.zeros(1, int)] * 2, np.zeros((0, 2), int))
    found = plan.layout(binnings, -1, noisy)
    assert (found.counted_cells, found.unit) == (None, layout.unit)
    other = NoisyEmbedding(
        dataclasses.replace(first, binnings=(binnings[0], binnings[0])), noisy.coordinates, mechanism
    )
    with pytest.raises(ValueError, match="cells of the first measurement are unknown"):
        plan.layout(binnings, -1, other)


@pytest.mark.parametrize("split", [False, True])
def test_segments_of_a_column_cost_nothing_more(split):
    """A column of many values is also counted in 16 segments, and its counts together cost as much as before."""
    sizes = (30, True, True), (2, False, False), (64, True, True), (1000, True, False), (1000, False, False)
    binnings = [Binning.create(size, ordered=ordered, missing=missing) for size, ordered, missing in sizes]
    layout = plans.Layout.create(binnings, 1 if split else -1, 2000, 0.04)
    maps = [plans.singles_map(layout), plans.singles_map(dataclasses.replace(layout, segmented=()))]
    costs = [np.zeros(5), np.zeros(5)]
    for cost, of_map in zip(costs, maps, strict=True):
        for block in of_map.blocks:
            cost[block.columns[-1]] += float(block.weight) ** 2
    np.testing.assert_allclose(*costs, rtol=1e-5)
    assert {m.weight for m in maps[0].moments} == {m.weight for m in maps[1].moments}
    segments = maps[0].blocks[len(maps[1].blocks) :]
    assert [block.columns for block in segments] == [(1, 2), (1, 3)] if split else [(2,), (3,)]
    assert [int(block.bins[-1].max()) + 1 for block in segments] == [17, 16]


@pytest.mark.parametrize("has_segments", [False, True])
def test_whether_there_are_segments_is_found_again(has_segments):
    """Earlier versions did not count segments."""
    binnings = [Binning.create(size, ordered=size > 2, missing=False) for size in (30, 2, 1000)]
    layout = plans.Layout.create(binnings, 1, 2000, 0.04)
    layout = layout if has_segments else dataclasses.replace(layout, segmented=())
    first = plans.singles_map(layout)
    mechanism = secure_mechanism(first.integers(2000), 2000, PrivacyBudget(1.0, 1e-7), share=0.5)
    noisy = NoisyEmbedding(first, np.zeros(first.num_features), mechanism)
    plan = plans.Plan([np.zeros(30, int), np.zeros(1000, int)], [np.zeros(1, int)] * 2, np.zeros((2, 2), int))
    found = plan.layout(binnings, 1, noisy)
    assert found == layout
    singles = plans.Singles.read(found, noisy, denoised=False)
    assert [segment is not None for segment in singles.segments] == [False, has_segments]
    assert singles.classes.shape == (2,)


@pytest.mark.parametrize(("num_rows", "segmented"), [(2000, (0, 2)), (10**5, (2,)), (10**6, ())])
def test_columns_have_segments_where_noise_is_large(num_rows, segmented):
    binnings = [
        Binning.create(size, ordered=ordered, missing=False)
        for size, ordered in ((80, True), (40, True), (1000, True), (1000, False))
    ]
    assert plans.Layout.create(binnings, -1, num_rows, 0.02).segmented == segmented


def test_sums_over_many_cells_have_little_noise(rng):
    """Of a column of a thousand cells: its segments are counted, too."""
    schema = Schema((Numeric("x", 0, 1000), Categorical("y", ("a", "b"))))
    rows = pa.table({"x": rng.uniform(0, 1000, 60_000), "y": rng.choice(["a", "b"], 60_000)})
    measured = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-6), target="y", secure=False)
    singles = plans.Singles.read(measured.layout, measured.measured["single columns"], denoised=False)
    binning = measured.layout.binnings[0]
    halves = (binning.first_codes()[:-1] >= binning.num_codes / 2).astype(int)
    private = np.bincount(binning.cells(schema.encode(rows)[:, 0]), minlength=binning.num_cells)
    counts, noise = singles.of_all(0)
    errors = noise.of_groups(halves)
    assert (errors < 0.35 * singles.sums_sigmas[0] * np.sqrt(np.bincount(halves))).all()
    assert (np.abs(np.bincount(halves, counts - private)) < 5 * errors).all()
    of_classes, noise = singles.of_classes(0)
    assert (np.abs(of_classes.sum(1) - 30_000) < 500 + 5 * noise.of(np.ones(binning.num_cells))).all()


@pytest.mark.parametrize("target", [None, "rich"])
def test_counts_of_bins_are_those_of_the_fit_unless_it_contradicts(target):
    measured = measure_table(TABLE, SCHEMA, budget=PrivacyBudget(1.0, 1e-6), target=target, secure=False)
    first, coarse, pairs = (measured.measured[name] for name in NAMES)
    layout, singles = measured.layout, plans.Singles.read(measured.layout, first)
    observed = observe(layout, measured.plan, singles, coarse, pairs, TABLE.num_rows)
    codes = SCHEMA.encode(TABLE)
    for a, bins in enumerate(measured.plan.bins):
        j = layout.columns[a]
        private = np.bincount(bins[layout.binnings[j].cells(codes[:, j])], minlength=int(bins.max()) + 1).astype(float)
        noise = singles.of_all(a)[1].of_groups(bins)
        close, errors = observed.counts_of_bins(a, private)
        assert (errors < 1.5 * noise).all()
        np.testing.assert_allclose(close, private, atol=1e-6 + 3 * noise.max())
        counted, errors = observed.counts_of_bins(a, private + 1000 * noise)
        assert (np.abs(counted - private) < 5 * noise).all()
        assert (errors < 1.5 * noise).all()


def _levels(num_rows, seed):
    """A level of few values, years that follow from it, nearly, and another number."""
    rng = np.random.default_rng(seed)
    level = rng.choice(4, num_rows, p=[0.7, 0.1, 0.1, 0.1])
    years, other = 9 + 2 * level + rng.integers(0, 2, num_rows), rng.integers(0, 3, num_rows)
    bounds = {"level": (0, 4), "years": (5, 20), "other": (0, 2)}
    schema = Schema(tuple(Numeric(name, *ends, integer=True) for name, ends in bounds.items()))
    return pa.table({"level": level, "years": years, "other": other}), schema


def test_numbers_of_few_values_have_products():
    """Numbers of three values or more have products with others. Their moments follow from their counts."""
    rows, schema = _levels(6000, 0)
    measured = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False)
    moments = measured.measured["some pairs, finely"].feature_map.moments
    assert (measured.layout.numbers, measured.layout.scored) == ([1], [0, 1, 2])
    assert [m.columns for m in moments] == [(1,), (0, 1)]


@pytest.mark.slow
def test_correlations_of_numbers_of_few_values_are_kept(monkeypatch):
    monkeypatch.setattr(mixture, "fit", functools.partial(_FIT, num_relaxed=100, num_steps=300))
    rows, schema = _levels(6000, 0)
    release = release_table(rows, schema, budget=PrivacyBudget(1.0, 1e-5), secure=False)
    private, released = (np.corrcoef(table["level"], table["years"])[0, 1] for table in (rows, release.table))
    assert released == pytest.approx(private, abs=0.1)  # of a small fit


@pytest.mark.slow
def test_a_weak_correlation_beside_strong_ones_is_kept():
    """A price follows an area, and weakly a year, and area and year are independent. Rows of a fit follow the area."""
    rng = np.random.default_rng(0)
    area, year = rng.normal(size=(2, 40_000))
    rows = {"price": area + 0.13 * year + 0.3 * rng.normal(size=40_000), "area": area, "year": year}
    rows |= {"income": area + 0.5 * rng.normal(size=40_000), "rooms": area + 0.4 * rng.normal(size=40_000)}
    schema = Schema(tuple(Numeric(name, -6, 6) for name in rows))
    release = release_table(pa.table(rows), schema, budget=PrivacyBudget(1.0, 1e-6), secure=False)
    private, released = (np.corrcoef(table["price"], table["year"])[0, 1] for table in (rows, release.table))
    assert private > 0.12
    assert released == pytest.approx(private, abs=0.05)  # by the fit alone it was 0.06 too small
    moments = release.measurement.measured[NAMES[2]].feature_map.moments
    assert (0, 2) not in [moment.columns for moment in moments]  # no product of the two was measured


def test_frequent_values_are_like_none_beside_them():
    rng = np.random.default_rng(0)
    amounts = np.where(rng.random(20_000) < 0.6, 0, rng.exponential(100, 20_000))
    rows = pa.table({"amount": amounts, "age": rng.uniform(0, 100, 20_000), "town": rng.choice(["a", "b"], 20_000)})
    schema = Schema((Numeric("amount", 0, 1000), Numeric("age", 0, 100), Categorical("town", ("a", "b"))))
    measurement = measure_table(rows, schema, budget=PrivacyBudget(1.0, 1e-6), secure=False)
    layout, plan, measured = measurement.layout, measurement.plan, measurement.measured
    singles = plans.Singles.read(layout, measured["single columns"])
    parts = (measured.get(name) for name in NAMES[1:])
    neighbours = observe(layout, plan, singles, *parts, 20_000).neighbours
    of_amount, of_age, _ = (int(bins.max()) + 1 for bins in plan.bins)
    expected = [0, *[1] * (of_amount - 2), 0, *[1] * (of_age - 1), 0, 0, 0]
    np.testing.assert_array_equal(neighbours, expected)


def test_a_long_thin_tail_is_not_cut_off():
    """No part of the tail stands out of the noise, but all cells together have N rows."""
    rng = np.random.default_rng(0)
    amounts = np.where(rng.random(20_000) < 0.6, rng.exponential(3e5, 20_000), 10 ** rng.uniform(6.5, 7.8, 20_000))
    is_known = rng.random(20_000) < 0.2
    rows = pa.table({"amount": pa.array(amounts, mask=~is_known)})
    schema = Schema((Numeric("amount", 0, 3e8, nullable=True),))
    private, found = np.mean(is_known & (amounts > 1.2e7)), []
    for seed in range(4):
        measured = measure_table(rows, schema, budget=PrivacyBudget(0.15, 1e-5), secure=False, seed=seed)
        singles = plans.Singles.read(measured.layout, measured.measured["single columns"])
        starts = np.linspace(0, 3e8, measured.layout.binnings[0].num_values, endpoint=False)
        found.append(singles.smoothed[0][0, :-1][starts > 1.2e7].sum() / 20_000)
    assert np.mean(found) == pytest.approx(private, rel=0.5)  # none was found without the number of rows


def test_rows_at_a_bound_are_kept():
    """Rows at a bound that is far from all others are found, although they would not stand out anywhere else."""
    rng = np.random.default_rng(1)
    rows, schema = pa.table({"logarithm": rng.normal(9, 0.3, 20_000)}), Schema((Numeric("logarithm", 0, 15),))
    measured = measure_table(rows, schema, budget=PrivacyBudget(0.1, 1e-5), secure=False)
    singles = plans.Singles.read(measured.layout, measured.measured["single columns"])
    for size, place, is_found in ((4.0, 0, True), (4.0, 3, False), (2.5, 0, False)):
        sums = np.array(singles.sums[0])
        sums[:5] = 0.0
        sums[place] = size * singles.sums_sigmas[0]
        changed = dataclasses.replace(singles, counts=[sums[None]], sums=[sums], segments=[None])
        estimate, inside = changed.denoise(measured.layout, 0, 20_000)
        assert inside[place] == is_found
        assert (estimate[0, place] > sums[place] / 4) == is_found


def test_products_are_of_strong_correlations():
    """Pairs that depend on each other without a correlation have no product. Few products are measured well."""
    rng = np.random.default_rng(3)
    first = rng.uniform(-3, 3, 5000)
    columns = {
        "first": first,
        "line": first + 0.3 * rng.normal(0, 1, 5000),
        "square": first**2 + 0.3 * rng.normal(0, 1, 5000),
        "other": rng.normal(0, 1, 5000),
    }
    schema = Schema(tuple(Numeric(name, -5, 12) for name in columns))
    measured = measure_table(pa.table(columns), schema, budget=PrivacyBudget(4.0, 1e-5), secure=False)
    last = measured.measured["some pairs, finely"].feature_map
    assert (0, 2) in [block.columns for block in last.blocks]
    assert [moment.columns for moment in last.moments if len(moment.columns) == 2] == [(0, 1)]
    singles = plans.Singles.read(measured.layout, measured.measured["single columns"])
    found, spread = plans.correlations(measured.layout, measured.plan, singles, measured.measured["pairs, coarsely"])
    private = np.corrcoef([*columns.values()])[np.triu_indices(4, 1)]
    assert found == pytest.approx(private, abs=0.2)
    assert (spread < 0.1).all()


def test_earlier_versions_had_no_products_of_few_values():
    """The layout of such a measurement is found again, by the ranges in its plan."""
    binnings = [Binning.create(size, ordered=True, missing=False) for size in (5, 30, 2)]
    layout = plans.Layout.create(binnings, -1, 10**4, 0.04)
    first = plans.singles_map(layout)
    noisy = NoisyEmbedding(
        first, np.zeros(first.num_features), secure_mechanism(first.integers(10**4), 10**4, PrivacyBudget(1.0, 1e-5))
    )
    bins, unions = [np.zeros(size, int) for size in (5, 30, 2)], [np.zeros(1, int)] * 3
    for ranges, few, scored in (([(0, 29)], False, [1]), ([(0, 4), (0, 29)], True, [0, 1])):
        plan = plans.Plan(bins, unions, np.asarray(ranges))
        restored = plan.layout(binnings, -1, noisy)
        assert (restored.scores_few, restored.scored, restored.numbers) == (few, scored, [1])
        plan.check(restored)


@pytest.mark.parametrize(("width", "expected"), [(250, (1.0, 0.0, 0.0)), (5000, (0.9, 0.0, 0.1))])
def test_a_table_of_one_column_spends_all(width, expected):
    schema = Schema((Numeric("a", 0, width - 1, integer=True),))
    made = measure_table(pa.table({"a": np.arange(300) % 7}), schema, budget=PrivacyBudget(1.0, 1e-6), secure=False)
    assert plans.shares(plans.Layout(made.measured["single columns"].feature_map.binnings, -1, -1)) == expected
    assert made.measured["single columns"].mechanism.rho >= 0.89 * made.statement["rho"]


@pytest.mark.slow
def test_days_of_the_week_are_kept():
    """Most visits are on Mondays. A year is counted day by day, and noise is larger than a day."""
    rng = np.random.default_rng(0)
    days = rng.integers(0, 364, 8000)
    days = np.where(rng.random(8000) < 0.3, days // 7 * 7, days)  # 2024-01-01 is a Monday
    table = pa.table(
        {"day": pa.array(days + 19_723, pa.int32()).cast(pa.date32()), "ward": rng.choice(["a", "b"], 8000)}
    )
    schema = Schema((Datetime("day", "2024-01-01", "2024-12-31"), Categorical("ward", ("a", "b"))))
    released = release_table(table, schema, budget=PrivacyBudget(1.0, 1e-6), secure=False)
    found = (np.asarray(released.table["day"].cast(pa.int32())) - 19_723) % 7
    expected = np.bincount(days % 7, minlength=7) / 8000
    assert np.abs(np.bincount(found, minlength=7) / 8000 - expected).max() < 0.05
    assert expected[0] > 0.35


@pytest.mark.slow
def test_categories_that_are_all_rare_differ():
    """Thirty grades of 130 rows each: rates grow with the grade. In one bin, all grades would have the same rate."""
    random = np.random.default_rng(0)
    grade = random.integers(0, 30, 4000)
    grades = tuple(f"g{i:02}" for i in range(30))
    rate = np.clip(np.rint(grade + random.normal(0, 3, 4000)), 0, 35)
    others = {name: random.integers(0, 2, 4000).astype(str) for name in "abcd"}
    columns = [Categorical("grade", grades), Numeric("rate", 0, 35, integer=True)]
    schema = Schema((*columns, *(Categorical(name, ("0", "1")) for name in others)))
    table = pa.table({"grade": [grades[i] for i in grade], "rate": rate} | others)
    released = measure_table(table, schema, budget=PrivacyBudget(0.5, 1e-6), secure=False).synthesise().table
    places, rates = np.asarray([grades.index(g) for g in released["grade"].to_pylist()]), np.asarray(released["rate"])
    assert np.corrcoef(places, rates)[0, 1] > 0.6
