"""Caps of what releases of the same rows may spend together, and the command that shows them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kme_jax import (
    Categorical,
    Gaussian,
    Ledger,
    Numeric,
    PrivacyBudget,
    Schema,
    Spending,
    SubspaceMap,
    cli,
    measure,
    measure_table,
)
from kme_jax.privacy import secure_mechanism
from kme_jax.privacy.ledger import LedgerError
from kme_jax.privacy.totals import composed_epsilon, total, units_in_words

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema((Numeric("age", 0, 99, integer=True), Categorical("rich", ("no", "yes"))))


def _people(number=100):
    rng = np.random.default_rng(0)
    return pa.table({"age": rng.integers(0, 100, number), "rich": rng.choice(["no", "yes"], number)})


def _spending(ledger, again=True):
    return Spending(ledger, "people", allow_repeat=again)


@pytest.mark.parametrize("relation", ["replace_one", pytest.param("add_remove", marks=pytest.mark.slow)])
def test_releases_within_a_cap_are_made_and_others_refused(tmp_path, relation):
    """The second release fits, the third does not. What is left fits exactly."""
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("people", 1.6, 1e-6)
    assert ledger.cap("people").left([]) == pytest.approx(1.6)
    for _ in range(2):
        measure_table(_people(), SCHEMA, budget=PrivacyBudget(1.0, 1e-6, relation), spending=_spending(ledger))
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(LedgerError, match=r"more than the cap of ε = 1.6; kme-jax ledger shows what is left") as error:
        measure_table(_people(), SCHEMA, budget=PrivacyBudget(1.0, 1e-6, relation), spending=_spending(ledger))
    assert "\n" not in str(error.value)
    assert (tmp_path / "ledger").read_bytes() == before
    spendings, cap = ledger.spent("people"), ledger.cap("people")
    both = total(spendings)
    numbers = both["rho"], [], 0.0, 1e-6, both.get("discreteness")
    assert cap.spent(spendings) == pytest.approx(composed_epsilon(2, *numbers))
    left = cap.left(spendings)
    assert 0.1 < left < 0.9
    budget = PrivacyBudget(left * 1.01, 1e-6, relation)
    with pytest.raises(LedgerError):
        measure_table(_people(), SCHEMA, budget=budget, spending=_spending(ledger))
    measure_table(_people(), SCHEMA, budget=PrivacyBudget(left, 1e-6, relation), spending=_spending(ledger))
    assert cap.spent(ledger.spent("people")) == pytest.approx(1.6, rel=1e-4)
    assert (cap.left(ledger.spent("people")) or 0) < 0.1


def test_caps_hold_for_other_rows_not_and_later_ones_replace_earlier_ones(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("people", 0.5, 1e-6)
    ledger.set_cap("people", 2.0, 1e-6)
    ledger.set_cap("others", 0.1, 1e-6)
    assert ledger.databases() == ["people", "others"]
    assert ledger.cap("people").epsilon == 2.0
    assert ledger.cap("nobody") is None
    measure_table(_people(), SCHEMA, budget=PrivacyBudget(1.0, 1e-6), spending=_spending(ledger, again=False))
    with pytest.raises(LedgerError, match=r"has spent ε = 1.*already, more than this cap"):
        ledger.set_cap("people", 0.9, 1e-6)
    assert ledger.cap("people").epsilon == 2.0


def test_points_are_capped_before_rows_are_read(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("people", 0.5, 1e-5)
    rows = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.raises(LedgerError, match="more than the cap"):
        measure(rows, Gaussian(0.5), rows[:5], budget=PrivacyBudget(1.0, 1e-5), spending=_spending(ledger))
    assert ledger.spent("people") == []


def test_a_cap_without_delta_is_for_pure_releases(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("people", 1.5, 0.0)
    points = np.random.default_rng(0).normal(size=(5, 2))
    integers = SubspaceMap.from_points(Gaussian(0.5), points).integers(100)
    ledger.spend("people", secure_mechanism(integers, 100, PrivacyBudget(1.0, 0.0)))
    assert ledger.cap("people").left(ledger.spent("people")) == pytest.approx(0.5)
    for budget in (PrivacyBudget(0.6, 0.0), PrivacyBudget(0.1, 1e-9)):
        with pytest.raises(LedgerError, match="more than the cap"):
            ledger.spend("people", secure_mechanism(integers, 100, budget), allow_repeat=True)


@pytest.mark.parametrize("change", [{"cap_epsilon": -1.0}, {"cap_epsilon": 1}, {"cap_delta": 2.0}, {"extra": 1}])
def test_damaged_caps_are_refused(tmp_path, change):
    path = tmp_path / "ledger"
    line = {"database": "people", "time": "t", "cap_epsilon": 1.0, "cap_delta": 1e-6}
    path.write_text(json.dumps(line) + "\n")
    assert Ledger(path).cap("people").delta == 1e-6
    path.write_text(json.dumps(line | change) + "\n")
    with pytest.raises(LedgerError, match="line 1 is not a line of a ledger"):
        Ledger(path).spent("people")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pyarrow.parquet.write_table(_people(), "people.parquet")
    SCHEMA.write("schema.json")
    return tmp_path


RELEASE = ["release", "people.parquet", "--schema=schema.json", "--delta=1e-6"]


def test_the_command(place, capsys):
    ledger = "people.parquet.ledger"
    assert cli.main(["ledger", ledger, "--cap=1.2,1e-6", "--database=people.parquet"]) == 0
    said = capsys.readouterr().out
    assert "people.parquet: 0 releases" in said
    assert "for rows (replace_one): nothing is spent, and one more release may have ε = 1.2 at this δ" in said
    assert cli.main([*RELEASE, "--epsilon=1", "--output=one"]) == 0
    capsys.readouterr()
    assert cli.main([*RELEASE, "--epsilon=1", "--output=two", "--again"]) == 2
    said = capsys.readouterr().err
    assert "more than the cap of ε = 1.2" in said
    assert len(said.strip().splitlines()) == 1
    assert not (place / "two").exists()
    assert cli.main(["ledger", ledger]) == 0
    said = capsys.readouterr().out
    assert "1 release\n" in said
    assert "ε = 1, δ = 1e-06, replace_one" in said
    assert "in all (ε, δ) = (1, 1e-06)" in said
    assert cli.main(["ledger", ledger, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["cap"]["epsilon"] == 1.2
    assert 0.1 < shown["cap"]["left"] < 0.7
    assert cli.main([*RELEASE, f"--epsilon={shown['cap']['left']!r}", "--output=two", "--again"]) == 0
    capsys.readouterr()
    assert cli.main(["ledger", ledger, "--cap=5,1e-6"]) == 0
    assert "the cap is ε = 5 at δ = 1e-06" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.ledger"], "none.ledger: no such ledger"),
        (["none.ledger", "--cap=1,1e-6"], "to begin one, give --database"),
        (["people.parquet"], "is not a line of a ledger"),
        (["full.ledger", "--database=nobody"], "there are no releases of 'nobody', only of 'people'"),
        (["full.ledger", "--cap=1"], "--cap needs two numbers"),
        (["full.ledger", "--cap=1,2,3"], "--cap needs two numbers"),
        (["full.ledger", "--cap=0,1e-6"], "epsilon must be positive"),
        (["full.ledger", "--cap=1,1"], "delta must be in"),
        (["full.ledger", "--cap=0.5,1e-6"], "more than this cap"),
        (["full.ledger", "--cap=5,0"], "set a cap with a larger δ"),
        (["new.ledger", "--cap=1,1e-6", "--database="], "needs a name"),
        (["."], "is not a file"),
    ],
)
def test_bad_input(place, capsys, words, message):
    spending = Spending(Ledger(place / "full.ledger"), "people")
    measure_table(_people(), SCHEMA, budget=PrivacyBudget(1.0, 1e-6), spending=spending)
    before = sorted(place.iterdir()), (place / "full.ledger").read_bytes()
    assert cli.main(["ledger", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert (sorted(place.iterdir()), (place / "full.ledger").read_bytes()) == before


def test_a_dry_run_spends_nothing(place, capsys):
    """It finds what a release would find: the columns, the folder, the ledger and its cap."""
    assert cli.main([*RELEASE, "--epsilon=1", "--output=one", "--dry_run"]) == 0
    assert "nothing was spent" in capsys.readouterr().out
    assert not (place / "one").exists()
    assert not (place / "people.parquet.ledger").exists()
    Ledger(place / "people.parquet.ledger").set_cap("people.parquet", 0.5, 1e-6)
    (place / "there").mkdir()
    Schema((SCHEMA.columns[0],)).write("other.json")
    for words, message in (
        (["--epsilon=1", "--output=one"], "more than the cap of ε = 0.5"),
        (["--epsilon=0.1", "--output=there"], "there"),
        (["--epsilon=0.1", "--output=one", "--schema=other.json"], "the schema lacks rich"),
        (["--epsilon=0.1", "--output=one", "--target=poor"], "no column 'poor'"),
        (["--epsilon=0.1", "--output=one", "--delta=0.02"], "delta must be below 1/N"),
    ):
        assert cli.main([*RELEASE, *words, "--dry_run"]) == 2
        assert message in capsys.readouterr().err
    assert Ledger(place / "people.parquet.ledger").spent("people.parquet") == []


def test_what_is_left_says_for_whom(tmp_path):
    """Releases for persons, and then for rows, add up as releases for rows, and may pass the cap at once."""
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_cap("people", 2.0, 1e-5)
    schema = Schema((SCHEMA.columns[0],), dropped=("rich",))
    persons = PrivacyBudget(1.0, 1e-6, "add_remove_person", 2, "rich")
    measure_table(_people(), schema, budget=persons, spending=_spending(ledger))
    assert units_in_words(ledger.spent("people")) == "persons (rich)"
    with pytest.raises(LedgerError, match=r"for rows \(replace_one, which releases of several kinds add up to\)"):
        measure_table(_people(), schema, budget=PrivacyBudget(0.01, 1e-6), spending=_spending(ledger))
    measure_table(_people(), schema, budget=persons, spending=_spending(ledger))
