"""What is spent is told as it is, is refused before the ledger is written, and is never lost after that."""

import copy
import fcntl
import itertools
import json
import math
import pkgutil
import types

import jax
import jsonschema
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    Ledger,
    MixedMap,
    Spending,
    SubspaceMap,
    cli,
    exponential_mechanism,
    integer_embedding,
    load,
    measure,
    noisy_function,
    perturb_securely,
    release,
)
from kme_jax.embedding import IntegerEmbedding
from kme_jax.feature_maps.table import TableMap
from kme_jax.generators.measure import measure_generator
from kme_jax.privacy import PrivacyBudget, secure, statement, zcdp_delta, zcdp_epsilon, zcdp_rho
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import LedgerError
from kme_jax.privacy.mechanisms import noise_of, proved_sensitivity
from kme_jax.privacy.totals import Entry, check_total, composed_epsilon, total
from kme_jax.table import mixture
from kme_jax.table.columns import Categorical, Datetime, Numeric, Ordinal
from kme_jax.table.measure import measure_table, release_table
from kme_jax.table.observed import Observed
from kme_jax.table.schema import Schema
from kme_jax.table.sources import RowSource
from tests.arguments import arguments
from tests.fits import no_fit


def _gaussian(epsilon, delta, failure=0.0):
    return Entry("rows", "now", epsilon, delta, zcdp_rho(PrivacyBudget(epsilon, delta - failure)), failure)


def _pure(epsilon):
    return Entry("rows", "now", epsilon, 0.0, epsilon**2 / 2, 0.0)


def _checked(found, last):
    """A total after JSON, as a loader has it."""
    found = json.loads(json.dumps(found, allow_nan=False))
    rho = None if last.delta == 0 else last.rho
    check_total(found, last.epsilon, last.delta, rho, last.failure_probability)
    return found


# -- totals


def test_a_total_is_told_with_its_delta():
    """At the δ of the second release, ε of both is 2.93; that of 1.093 holds at the δ of the first."""
    several = [_gaussian(1.0, 9e-3), _gaussian(1.0, 1e-9)]
    found = _checked(total(several), several[-1])
    assert (found["epsilon"], found["delta"]) == (pytest.approx(1.0925, rel=1e-3), 9e-3)
    assert found["at_delta"] == {"epsilon": pytest.approx(2.93, rel=1e-3), "delta": 1e-9}
    for pair in (found, found["at_delta"]):
        assert zcdp_delta(math.fsum(s.rho for s in several), pair["epsilon"]) <= pair["delta"]
    words = statement.describe_total(found)
    assert words == "(ε, δ) = (1.093, 0.009), or ε = 2.928 at δ = 1e-09 if one row is replaced"


def test_pure_releases_add_up_by_epsilon_where_that_is_less():
    few = [_pure(0.5), _pure(0.25)]
    found = _checked(total(few), few[-1])
    assert found["epsilon"] == pytest.approx(0.75, rel=1e-12)
    assert found["epsilon"] >= 0.75
    assert found["delta"] == 0
    assert found["at_delta"] == {"epsilon": found["epsilon"], "delta": 0}
    (alone,) = [_pure(0.5)]
    assert _checked(total([alone]), alone)["epsilon"] == 0.5


def test_pure_and_gaussian_releases_together():
    """ε by ρ alone, or pure ones by their ε: the less one; and nothing finite at δ = 0."""
    strong, weak, other = _pure(10.0), _pure(0.01), _gaussian(1.0, 1e-6)
    found = _checked(total([strong, other]), other)
    assert found["epsilon"] == pytest.approx(11.0, rel=1e-6)
    many = [weak] * 400 + [other]
    found = _checked(total(many), other)
    assert found["epsilon"] == pytest.approx(zcdp_epsilon(math.fsum(s.rho for s in many), 1e-6), rel=1e-9)
    assert found["epsilon"] < 1.6 < 5.0
    found = _checked(total([other, weak]), weak)
    assert found["delta"] == 1e-6
    assert found["at_delta"] is None
    assert "no finite ε" in statement.describe_total(found)


def test_a_total_at_a_delta_without_room_for_failures():
    first, last = _gaussian(1.0, 1e-5, 1e-7), _gaussian(1.0, 5e-8)
    found = _checked(total([first, last]), last)
    assert found["at_delta"] is None
    assert found["delta"] == 1e-5
    many = [_gaussian(1.0, 1e-6, 1e-7)] * 12
    found = _checked(total(many), many[-1])
    assert found["delta"] == pytest.approx(1e-6 + 12e-7)
    assert found["at_delta"] is None
    assert zcdp_delta(found["rho"], found["epsilon"]) + found["failure_probability"] <= found["delta"]


def test_a_total_of_a_mechanism_that_was_set_aside_more_for(rng):
    """The ledger has the budget's ρ; a statement the sum of what was used."""
    one = _gaussian(1.0, 1e-6)
    check_total(total([one]), 1.0, 1e-6, 0.9 * one.rho, 0.0)
    with pytest.raises(ValueError, match="less than"):
        check_total(total([one]), 1.0, 1e-6, 1.1 * one.rho, 0.0)


HISTORIES = {
    "one": [_gaussian(1.0, 1e-6)],
    "one that may fail": [_gaussian(1.0, 1e-6, 1e-10)],
    "one pure": [_pure(0.7)],
    "two": [_gaussian(1.0, 9e-3), _gaussian(1.0, 1e-9, 1e-11)],
    "three pure": [_pure(0.7), _pure(0.1), _pure(3.0)],
    "mixed": [_pure(0.7), _gaussian(0.2, 1e-5), _gaussian(0.3, 1e-7)],
    "mixed, pure at last": [_gaussian(0.2, 1e-5), _pure(0.7)],
    "without room": [_gaussian(1.0, 1e-5, 1e-7), _gaussian(1.0, 5e-8)],
}


def _leaves(value, path=()):
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _leaves(value[key], (*path, key))
    else:
        yield path


def _changed(value, path, change):
    value = copy.deepcopy(value)
    *places, last = path
    inner = value
    for place in places:
        inner = inner[place]
    inner[last] = change(inner[last])
    return value


@pytest.mark.parametrize("name", HISTORIES)
def test_every_number_of_a_total_follows_from_the_rest(name):
    """Each number changed by itself is refused, but for what earlier releases may have been: then ε does not follow."""
    last, found = HISTORIES[name][-1], total(HISTORIES[name])
    _checked(found, last)
    changes = [
        lambda v: None, lambda v: "1", lambda v: True, lambda v: math.nan, lambda v: math.inf, lambda v: -1.0,
        lambda v: [v], lambda v: 1e200,
    ]  # fmt: skip
    if len(HISTORIES[name]) > 1:
        changes += [lambda v: 1.01 * v if v else 1e-3, lambda v: 0.99 * v if v else 0.01]
    for path, change in itertools.product(_leaves(found), changes):
        changed = _changed(found, path, change)
        if changed == found or path == ("releases",):
            continue
        with pytest.raises(ValueError, match="total: "):
            _checked_raw(changed, last)
    for missing in found:
        with pytest.raises(ValueError, match="total: expected"):
            _checked_raw({key: value for key, value in found.items() if key != missing}, last)
    for other in (None, [], found | {"more": 1}, found | {"releases": 0}, found | {"at_delta": {}}):
        with pytest.raises(ValueError, match="total: "):
            _checked_raw(other, last)
    for epsilon, delta in ((9 * last.epsilon, last.delta), (last.epsilon, min(0.9, 2 * last.delta + 0.1))):
        if found["at_delta"] is None and delta == last.delta and delta > 0:
            continue  # nothing in it says what the last release had
        with pytest.raises(ValueError, match="total: "):
            check_total(found, epsilon, delta, last.rho if last.delta else None, last.failure_probability)


def _checked_raw(found, last):
    check_total(found, last.epsilon, last.delta, last.rho if last.delta else None, last.failure_probability)


def test_totals_fit_the_schema():
    checker = jsonschema.Draft202012Validator(statement.schema())
    jsonschema.Draft202012Validator.check_schema(checker.schema)
    inner = checker.evolve(schema=checker.schema["properties"]["total"])
    for several in HISTORIES.values():
        found = json.loads(json.dumps(total(several)))
        inner.validate(found)
        for path in _leaves(found):
            for change in (lambda v: "1", lambda v: -1.0, lambda v: None):
                if not inner.is_valid(_changed(found, path, change)):
                    continue
                assert path == ("at_delta",)
        with pytest.raises(jsonschema.ValidationError):
            inner.validate(found | {"more": 1})


def test_a_ledger_without_a_total(tmp_path):
    """Large δ, which add up to nothing, are refused before they are written."""
    path = tmp_path / "ledger"
    lines = [Entry("rows", "t", 1.0, 0.9, 0.1, 0.0)] + [Entry("rows", "t", 1.0, 0.9, 0.1, 0.06)] * 9
    path.write_text("".join(json.dumps(s.record) + "\n" for s in lines))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="total delta of all releases is"):
        Ledger(path).spend("rows", _Planned(), allow_repeat=True)
    assert path.read_bytes() == before


class _Planned:
    """As much of a mechanism as a ledger asks for."""

    secure, epsilon, delta, rho, failure_probability, relation = True, 1.0, 1e-6, 0.02, 0.0, "replace_one"
    discreteness = person = None


@pytest.mark.parametrize("change", [{"epsilon": 0.0}, {"rho": 0.0}, {"delta": 1.0}, {"rho": 1e300}, {"epsilon": 1e300}])
def test_numbers_that_no_release_has_are_no_entry(tmp_path, change):
    path = tmp_path / "ledger"
    path.write_text(json.dumps(_gaussian(1.0, 1e-6).record | change) + "\n")
    with pytest.raises(LedgerError, match="line 1 is not a line of a ledger"):
        Ledger(path).spent("rows")


def test_composed_epsilon_is_never_below_the_last_release():
    for epsilon, delta in itertools.product([1e-3, 1.0, 30.0], [1e-12, 1e-6]):
        one = _gaussian(epsilon, delta)
        for count in (2, 5, 50):
            found = composed_epsilon(count, count * one.rho, [], 0.0, delta)
            assert epsilon < found <= count * epsilon * (1 + 1e-6)


def test_numbers_are_rounded_up_for_people():
    assert statement.rounded_up(1.0932) == "1.094"
    assert statement.rounded_up(1e-9) == "1e-09"
    assert statement.rounded_up(0.009) == "0.009"
    assert statement.rounded_up(2.0) == "2"
    for value in np.random.default_rng(0).lognormal(0, 9, 50):
        assert float(statement.rounded_up(value)) >= value


# -- nothing fails when the budget is spent


def _schema(kind):
    """Schemas that reach the ends of what a plan can do: wide grids, many categories, a target of many classes."""
    if kind == "one column":
        return Schema((Numeric("a", 0, 10**9, integer=True),)), None
    if kind == "wide":
        columns = [Numeric("n0", -1e9, 1e9, nullable=True)]
        return Schema((*columns, Datetime("t", "1900-01-01", "2100-01-01", "second"))), "n0"
    if kind == "many categories":
        names = tuple(f"c{i}" for i in range(300))
        return Schema((Categorical("a", names), Categorical("b", names, nullable=True))), "a"
    classes = tuple(f"k{i}" for i in range(16))
    return Schema((Categorical("k", classes), Numeric("x", 0, 1), Ordinal("o", ("S", "M", "L")))), "k"


class _Source(RowSource):
    """A table of N rows of which none exists: its sums are made up, as N rows could give them.

    All rows are in one cell of each table, or evenly in all.
    """

    label, is_text, person, max_rows = "rows", False, None, 1

    def __init__(self, schema, num_rows, kind):
        self.schema, self.num_rows, self.kind = schema, num_rows, kind

    def sum(self, task, progress=None):
        feature_map, parts = task.feature_map, []
        for block in feature_map.blocks:
            counts = np.zeros(block.size, np.int64)
            if self.kind == "one cell":
                counts[-1] = self.num_rows
            else:
                counts[:] = self.num_rows // block.size
            parts.append(counts * block.weight)
        last = np.asarray([[b.num_codes - 1 - b.missing for b in feature_map.binnings]])
        parts.append(self.num_rows * feature_map.integer_moments(last))
        return IntegerEmbedding(feature_map.integers(self.num_rows), np.concatenate(parts), self.num_rows)


def _fast_noise(values, scale):
    """As wide as it should be, and millions of numbers at once."""
    secure.check_scale(scale)
    return values + np.rint(scale * np.random.default_rng(0).normal(size=values.shape)).astype(np.int64)


EXTREME_BUDGETS = [(1e-9, 1e-300), (1e6, 1e-13)]
BUDGETS = [*EXTREME_BUDGETS, (1e-9, 1e-13), (1.0, 1e-300)]


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [
        ("many categories", 2),
        ("many categories", 2**40),
        pytest.param("one column", 2, marks=pytest.mark.long),
        pytest.param("one column", 2**40, marks=pytest.mark.slow),
        pytest.param("wide", 2, marks=pytest.mark.slow),
        pytest.param("wide", 2**40, marks=pytest.mark.long),
        pytest.param("many classes", 2, marks=pytest.mark.slow),
        pytest.param("many classes", 2**40, marks=pytest.mark.long),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_table_is_refused_before_it_is_spent_or_released(kind, num_rows, tmp_path, monkeypatch):
    """Extreme budgets, numbers of rows and schemas, to the end of the release."""
    monkeypatch.setattr(mixture, "fit", no_fit)
    monkeypatch.setattr(secure, "add_gaussian", _fast_noise)
    schema, target = _schema(kind)
    made = 0
    all_budgets = num_rows == 2 and kind == "many classes"  # the quickest kind
    for i, (epsilon, delta) in enumerate(BUDGETS if all_budgets else EXTREME_BUDGETS):
        source = _Source(schema, num_rows, ["one cell", "evenly"][i % 2])
        ledger, folder = Ledger(tmp_path / f"ledger{i}"), tmp_path / f"measured{i}"
        try:  # δ has to be below 1/N
            options = arguments(epsilon=epsilon, delta=delta, target=target, ledger=ledger, database="rows")
            measured = measure_table(source, schema, folder=folder, **options)
        except ValueError:
            assert not ledger.path.exists()
            assert not folder.exists()
            continue
        made += 1
        released = measured.synthesise(20)
        released.save(tmp_path / f"release{i}")
        assert "nan" not in (tmp_path / f"release{i}" / "report.html").read_text()
        schema.check(released.table)
        jsonschema.Draft202012Validator(statement.schema()).validate(measured.statement)
        assert len(ledger.spent("rows")) == 1
    assert made >= (3 if all_budgets else 1)


@pytest.mark.parametrize(
    "num_rows",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(10**3, marks=pytest.mark.long),
        pytest.param(2**45, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_fit_has_no_limits(num_rows):
    """Relaxed rows for counts that noise has hidden, or hardly touched, are a distribution: in float32."""
    random = np.random.default_rng(0)
    for noise in (1e-6, 1.0, 1e6, 1e15):
        counts = num_rows / 4 + noise * random.normal(size=(1, 4))
        pairs = np.zeros((1, 4, 4))
        pairs[:, :2, 2:] = num_rows / 4 + noise * random.normal(size=(1, 2, 2))
        precision = np.zeros((4, 4))
        precision[:2, 2:] = 1 / noise
        prior = np.full((1, 4), num_rows / 2)
        totals = np.zeros(4)
        observed = Observed(
            (0, 2, 4), num_rows, prior, counts, np.full(4, noise), totals, totals, np.zeros((4, 0)), pairs, precision,
            np.full(1, float(num_rows)), np.zeros((4, 0)), np.zeros((0, 0)), np.zeros((0, 0)),
            np.zeros((4, 2)), np.zeros((0, 3), np.int64), np.zeros(0), np.zeros(0), totals, (0, 0),
        )  # fmt: skip
        weights, probabilities = mixture.fit(jax.random.key(0), observed, num_relaxed=4, num_steps=30)
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(probabilities[..., :2].sum(-1), 1, rtol=1e-5)


# -- what is measured is kept


NUM_ROWS = 200
TABLE = ["release", "rows.csv", "--schema=schema.json", "--epsilon=1", "--delta=1e-5", "--output=out", "--num_rows=50"]
POINTS = [
    "release", "rows.csv", "--columns=x,y", "--lower=0,0", "--upper=1,1", "--points=points.csv", "--epsilon=1",
    "--delta=1e-5", "--output=out",
]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a private file, public points and a schema, where commands run."""
    rows = np.random.default_rng(0).uniform(size=(NUM_ROWS, 2))
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="x,y", comments="")
    np.savetxt(tmp_path / "points.csv", rows[:9] ** 2, delimiter=",", header="x,y", comments="")
    Schema((Numeric("x", 0, 1, step=0.25), Numeric("y", 0, 1, step=0.5))).write(tmp_path / "schema.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mixture, "fit", no_fit)
    return tmp_path


def _raises(error, matches=lambda *_: True):
    def wrapper(original):
        def function(*args, **kwargs):
            if matches(*args):
                raise error("secret 31415926")
            return original(*args, **kwargs)

        return function

    return wrapper


# Where it stops, whether what was measured is kept then.
STEPS = {
    "table noise": (TABLE, "kme_jax.table.measure.perturb_securely", None, False),
    "table save": (
        TABLE,
        "kme_jax.storage.folders.flush",
        lambda path: path.name == "privacy.json" and _spent(),
        False,
    ),
    "table synthesis": (TABLE, "kme_jax.table.release.synthesise", None, True),
    "table report": (TABLE, "kme_jax.table.release.report", None, True),
    "table rename": (TABLE, "os.rename", lambda _, to: str(to) == "out", True),
    "points noise": (POINTS, "kme_jax.points.measure.perturb_securely", None, False),
    "points save": (
        POINTS,
        "kme_jax.storage.folders.flush",
        lambda path: path.name == "privacy.json" and _spent(),
        False,
    ),
    "points synthesis": (POINTS, "kme_jax.points.release.synthesise", None, True),
    "points rename": (POINTS, "os.rename", lambda _, to: str(to) == "out", True),
    "after the measurement": (POINTS, "kme_jax.points.release.Measurement.save", "after", True),
}


# Also stopped by Ctrl-C, for both kinds of releases: before the measurement is kept, and after.
INTERRUPTED = ["table noise", "table synthesis", "points save", "after the measurement"]


def _spent():
    return len(Ledger("rows.csv.ledger").spent("rows.csv"))


@pytest.mark.parametrize(
    ("step", "error"),
    [*((step, RuntimeError) for step in STEPS), *((step, KeyboardInterrupt) for step in INTERRUPTED)],
)
def test_what_is_measured_is_kept_wherever_it_stops(step, error, place, capsys, monkeypatch):
    words, target, matches, kept = STEPS[step]
    module, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(module)
    original = getattr(owner, name)
    with monkeypatch.context() as patch:
        if matches == "after":

            def late(*args):
                original(*args)
                raise error("secret 31415926")

            patch.setattr(owner, name, late)
        else:
            patch.setattr(owner, name, _raises(error, matches or (lambda *_: True))(original))
        assert cli.main(words) == (130 if error is KeyboardInterrupt else 2)
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert "31415926" not in line
    assert _spent() == 1
    assert not (place / "out").exists()
    assert (place / "out.measured").exists() == kept
    assert not list(place.glob(".kme_jax-*"))
    if not kept:
        assert "the budget is recorded as spent in" in line
        assert "another try needs --again" in line
        return
    assert "kme-jax synthesise out.measured --output=out" in line
    assert "spends no budget" in line
    assert "--again" not in line
    assert cli.main(["synthesise", "out.measured", "--output=out"]) == 0
    assert load("out").statement["private"]
    assert _spent() == 1


@pytest.mark.parametrize("words", [TABLE, POINTS], ids=["table", "points"])
def test_a_ledger_that_was_open_to_all_is_the_owners(words, place):
    path = place / "rows.csv.ledger"
    path.write_text("")
    path.chmod(0o666)
    assert cli.main(words) == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_new", [True, False])
def test_a_ledger_that_is_replaced_while_it_is_locked_records_nothing(is_new, tmp_path, monkeypatch):
    """What is written to a file that is no longer there would be a release without a record."""
    ledger, one = Ledger(tmp_path / "people.ledger"), Composition.planned(PrivacyBudget(1.0, 1e-6))
    ledger.spend("others", one)
    real = fcntl.flock

    def flock(file, how):
        real(file, how)
        ledger.path.unlink()
        if is_new:
            ledger.path.write_text("")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LedgerError, match=r"was replaced or removed while it was opened; try again$"):
        ledger.spend("people", one)
    monkeypatch.undo()
    ledger.spend("people", one)
    assert len(ledger.spent("people")) == 1


ARGUMENTS = [
    {"epsilon": True}, {"epsilon": "1"}, {"epsilon": math.nan}, {"epsilon": 1j}, {"epsilon": 1e-300},
    {"epsilon": 1e308}, {"delta": 5e-324}, {"delta": 5.6e-309}, {"delta": None}, {"delta": math.inf}, {"seed": -1},
    {"seed": 2**32}, {"seed": "0"}, {"seed": 1.5}, {"seed": True}, {"database": 5}, {"database": ""},
    {"folder": "a\0b"}, {"folder": "none/m"}, {"folder": "x" * 300},
]  # fmt: skip


@pytest.mark.parametrize("change", ARGUMENTS, ids=str)
def test_arguments_that_cannot_be_are_refused_before_they_are_spent(change, place):
    """Of a table, of points, and of labelled rows."""
    ledger, rows = Ledger("ledger"), np.random.default_rng(0).uniform(size=(50, 2))
    table = Schema.read("schema.json")
    flat = {"epsilon": 1.0, "delta": 1e-4, "ledger": ledger, "database": "rows", "folder": "measured"} | change
    before = sorted(path.name for path in place.rglob("*"))
    with pytest.raises((ValueError, OSError)):
        measure_table("rows.csv", table, **arguments(**flat))
    with pytest.raises((ValueError, OSError)):
        measure(rows, Gaussian(1.0), rows[:3], **arguments(**flat))
    if "seed" not in change:
        features = FourierMap.from_kernel(jax.random.key(0), Gaussian(1.0), 10, 2)
        with pytest.raises((ValueError, OSError)):
            measure_generator(rows, features, **arguments(**flat))
    assert sorted(path.name for path in place.rglob("*")) == before


def test_a_generator_of_codes_is_refused_before_it_is_spent(place):
    features = MixedMap(TableMap.of_codes(3), (2,))
    with pytest.raises(ValueError, match="a generator needs features of numbers, got a TableMap"):
        measure_generator(
            np.zeros((50, 2)), features, **arguments(delta=1e-4, ledger=Ledger("ledger"), database="rows")
        )
    assert not (place / "ledger").exists()


def test_a_generator_of_float64_features_is_refused_before_it_is_spent(place):
    subspace = SubspaceMap.from_points(Gaussian(1.0), np.eye(2))
    with pytest.raises(ValueError, match="a generator needs features in float32, and a SubspaceMap is in float64"):
        measure_generator(
            np.zeros((50, 2)), subspace, **arguments(delta=1e-4, ledger=Ledger("ledger"), database="rows")
        )
    assert not (place / "ledger").exists()


@pytest.mark.parametrize("num_points", [0, -1, 10**6 + 1, 2.0, "9", None, True])
def test_sizes_that_cannot_be_are_refused_before_they_are_spent(num_points, place):
    ledger = Ledger("ledger")
    options = arguments(delta=1e-4, ledger=ledger, database="rows")
    with pytest.raises(ValueError, match="num_points must be"):
        release(np.zeros((50, 2)), Gaussian(1.0), np.eye(2), num_points=num_points, **options)
    if num_points not in (None, 10**6 + 1):
        with pytest.raises(ValueError, match="num_rows must be"):
            release_table("rows.csv", Schema.read("schema.json"), num_rows=num_points, **options)
    assert not ledger.path.exists()


def test_simulated_noise_is_said_to_be_not_private(place, capsys):
    schema = Schema.read("schema.json")
    made = release_table("rows.csv", schema, budget=PrivacyBudget(1.0, 1e-5), secure=False, num_rows=9)
    assert "NOT PRIVATE" in repr(made)
    made.save("simulated")
    assert cli.main(["sample", "simulated", "--output=some.csv", "--num_rows=5"]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().err
    noisy = release_table("rows.csv", schema, budget=PrivacyBudget(1.0, 1e-5), num_rows=9)
    assert "NOT PRIVATE" not in repr(noisy)


# -- single functions


PUBLIC = np.linspace(-2, 2, 4)[:, None]
ROWS = np.random.default_rng(0).normal(size=(40, 1))
MAP = SubspaceMap.from_points(Gaussian(gamma=0.5), PUBLIC)


def _perturbed(spending, epsilon=1.0, rows=ROWS):
    return perturb_securely(integer_embedding(MAP, rows), PrivacyBudget(epsilon, 1e-6), spending=spending)


def _function(spending, epsilon=1.0, rows=ROWS, **options):
    budget = PrivacyBudget(epsilon, 1e-6)
    return noisy_function(rows, Gaussian(gamma=0.5), PUBLIC, budget=budget, spending=spending, **options)


def _drawn(spending, epsilon=1.0, rows=ROWS, delta=0.0, **options):
    budget = PrivacyBudget(epsilon, delta)
    return exponential_mechanism(rows, MAP, PUBLIC, 2, budget=budget, spending=spending, **options)


SPENDERS = {"perturb_securely": _perturbed, "noisy_function": _function, "exponential_mechanism": _drawn}


@pytest.mark.parametrize("name", SPENDERS)
def test_single_functions_record_what_they_spend(name, tmp_path):
    """A second call is refused, with allow_repeat it adds to the total, and the cap holds for both."""
    spend, ledger = SPENDERS[name], Ledger(tmp_path / "ledger")
    spend(Spending(ledger, "rows"))
    (entry,) = ledger.spent("rows")
    is_pure = name == "exponential_mechanism"
    assert (entry.epsilon, entry.delta) == (1.0, 0.0 if is_pure else 1e-6)
    assert entry.rho == (0.5 if is_pure else spend(None).mechanism.rho)
    with pytest.raises(LedgerError, match=r"released before, with .* use allow_repeat=True") as error:
        spend(Spending(ledger, "rows"))
    assert "\n" not in str(error.value)
    ledger.set_cap("rows", 2.5, 1e-6)
    again = Spending(ledger, "rows", allow_repeat=True)
    spend(again)
    with pytest.raises(LedgerError, match="more than the cap"):
        spend(again, epsilon=2.0)
    assert len(ledger.spent("rows")) == 2


@pytest.mark.parametrize("name", ["noisy_function", "exponential_mechanism"])
def test_single_functions_are_refused_before_a_row_is_read(name, tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("rows", 0.5, 1e-6)
    for place in ("functions", "small_databases"):
        monkeypatch.setattr(f"kme_jax.algorithms.{place}.integer_embedding", lambda *_, **__: pytest.fail("rows read"))
    with pytest.raises(LedgerError, match="more than the cap"):
        SPENDERS[name](Spending(ledger, "rows"))
    with pytest.raises(ValueError, match="leave out the key or the ledger"):
        SPENDERS[name](Spending(ledger, "others"), key=jax.random.key(0))
    assert not ledger.spent("rows")


@pytest.mark.parametrize("name", SPENDERS)
def test_single_functions_record_before_noise_is_drawn(name, tmp_path, monkeypatch):
    """An interruption then says that the budget is spent."""
    ledger = Ledger(tmp_path / "ledger")

    def interrupted(*_):
        assert len(ledger.spent("rows")) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(secure, "add_gaussian", interrupted)
    monkeypatch.setattr(secure, "noisy_max", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        SPENDERS[name](Spending(ledger, "rows"))
    assert "the budget is recorded as spent" in error.value.__notes__[0]


def test_a_draw_whose_sensitivity_may_fail_is_recorded_with_its_delta(tmp_path):
    """Two such draws add up to a finite ε."""
    spending = Spending(Ledger(tmp_path / "ledger"), "rows", allow_repeat=True)
    drawn = [_drawn(spending, delta=1e-6) for _ in range(2)]
    entries = spending.ledger.spent("rows")
    assert 0 < drawn[0].delta < 1e-7
    assert entries[0].failure_probability == pytest.approx(drawn[0].delta, rel=1e-5)
    assert [entry.delta for entry in entries] == [1e-6, 1e-6]
    assert 1 < total(entries)["epsilon"] < 20


def test_shares_of_a_sequence_add_up_in_the_ledger(tmp_path):
    """Two halves of ρ spend the budget together."""
    spending, budget = Spending(Ledger(tmp_path / "ledger"), "rows", allow_repeat=True), PrivacyBudget(1.0, 1e-6)
    for _ in range(2):
        perturb_securely(integer_embedding(MAP, ROWS), budget, share=0.5, spending=spending)
    spent = total(spending.ledger.spent("rows"))
    assert spent["rho"] == pytest.approx(zcdp_rho(budget), rel=1e-3)
    assert spent["epsilon"] == pytest.approx(1.0, rel=1e-3)


# -- runs that are interrupted and go on


def test_a_run_that_goes_on_is_recorded_once(tmp_path):
    ledger, planned = Ledger(tmp_path / "ledger"), Composition.planned(PrivacyBudget(1.0, 1e-6))
    first = ledger.spend("rows", planned, run="first")
    assert ledger.spend("rows", planned, run="first") == first
    ledger.check("rows", planned, run="first")
    assert [entry.run for entry in ledger.spent("rows")] == ["first"]
    for run in (None, "second"):
        with pytest.raises(LedgerError, match="was released before"):
            ledger.spend("rows", planned, run=run)
    with pytest.raises(LedgerError, match="this run was recorded with another budget"):
        ledger.spend("rows", Composition.planned(PrivacyBudget(2.0, 1e-6)), run="first")
    ledger.spend("rows", planned, run="second", allow_repeat=True)
    assert ledger.spend("rows", planned, run="first")["releases"] == 2
    assert len(ledger.spent("rows")) == 2


def test_a_run_that_goes_on_does_not_pass_a_cap_twice(tmp_path):
    ledger, planned = Ledger(tmp_path / "ledger"), Composition.planned(PrivacyBudget(1.0, 1e-6))
    ledger.set_cap("rows", 1.01, 1e-6)
    ledger.spend("rows", planned, run="first")
    ledger.check("rows", planned, run="first")
    with pytest.raises(LedgerError, match="more than the cap"):
        ledger.check("rows", planned, run="second", allow_repeat=True)


@pytest.mark.parametrize("diameter", [-1.0, math.nan, math.inf])
def test_a_map_that_states_an_impossible_diameter_is_refused(diameter):
    measured = types.SimpleNamespace(l1_diameter=math.inf)
    with pytest.raises(ValueError, match="the diameter of a map must be positive and finite"):
        proved_sensitivity(noise_of("gaussian"), measured, diameter, 10, integers=True)
