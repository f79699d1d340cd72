"""Releases under add_remove: one row more or less is hidden, and so is the number of rows."""

import functools
import json
import math

import jax
import numpy as np
import pyarrow as pa
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    Ledger,
    PrivacyBudget,
    Spending,
    cli,
    integer_embedding,
    load,
    mean_embedding,
    measure,
    perturb,
    perturb_securely,
    release_table,
)
from kme_jax.embedding import IntegerEmbedding
from kme_jax.feature_maps.table import Binning, Block, Moment, TableMap
from kme_jax.generators import measure_generator
from kme_jax.privacy.calibration import gaussian_epsilon, zcdp_epsilon
from kme_jax.privacy.ledger import LedgerError
from kme_jax.privacy.perturb import secure_mechanism
from kme_jax.privacy.statement import describe
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import Categorical, Numeric, Schema, measure_table, mixture, open_table
from kme_jax.table import planning as plans
from kme_jax.table.release import COUNT, NAMES
from tests import artifacts

pytestmark = pytest.mark.usefixtures("no_fits")

SCHEMA = Schema(
    (
        Numeric("age", 0, 110, integer=True),
        Numeric("income", 0, 1e6, nullable=True),
        Categorical("job", ("a", "b", "c")),
        Categorical("rich", ("no", "yes")),
    )
)
BUDGET = PrivacyBudget(1.0, 1e-5, "add_remove")


def _people(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "age": rng.integers(18, 90, num_rows),
            "income": rng.gamma(2, 3e4, num_rows),
            "job": rng.choice(list("abc"), num_rows),
            "rich": rng.choice(["no", "yes"], num_rows),
        }
    )


@pytest.mark.parametrize("relation", ["", "add", "ADD_REMOVE", None, 1, ["add_remove"]])
def test_other_relations_are_refused(relation):
    with pytest.raises(
        ValueError, match=r"^relation must be 'replace_one' or 'add_remove' or 'add_remove_person', got"
    ):
        PrivacyBudget(1.0, 1e-5, relation)


def _maps(num_maps):
    """Random maps with blocks and moments, and rows at the corners of their scores and between them."""
    rng = np.random.default_rng(0)
    for _ in range(num_maps):
        binnings = tuple(
            Binning.create(int(n), ordered=True, missing=bool(m))
            for n, m in zip(rng.integers(3, 3000, 3), rng.integers(0, 2, 3), strict=True)
        )
        blocks, moments = [], []
        for j, binning in enumerate(binnings):
            blocks.append(Block((j,), (np.arange(binning.num_cells),), weight=int(rng.integers(1, 100))))
            high = binning.num_codes - binning.missing - 1
            moments.append(Moment((j,), (0,), (high,), int(rng.integers(1, 100))))
        bins = tuple(
            rng.integers(0, 2, binning.num_cells) | (np.arange(binning.num_cells) == 0) for binning in binnings
        )
        blocks.append(Block((0, 1), bins[:2], weight=int(rng.integers(1, 100))))
        moments.append(Moment((0, 2), (0, 0), (1, 2), int(rng.integers(1, 100))))
        codes = [rng.choice([0, b.num_codes - b.missing - 1, int(rng.integers(b.num_codes))], 30) for b in binnings]
        yield TableMap(binnings, tuple(blocks), tuple(moments)), np.stack(codes, axis=1).astype(np.float64)


def test_no_row_is_longer_than_the_norm_bound():
    """Every row moves the sum by at most the bound, and a row at the corners nearly reaches it."""
    ratios = []
    for feature_map, rows in _maps(40):
        integers = feature_map.integers(100)
        lengths = [np.linalg.norm(integers.sum(row[None], np.ones(1, bool)).astype(float)) for row in rows]
        ratios.append(max(lengths) / integers.norm_bound)
        assert integers.norm_bound < integers.diameter / math.sqrt(2) * (1 + 1e-9)
    assert max(ratios) <= 1
    assert max(ratios) > 0.99


def test_bounds_of_all_plans_bound_their_norms():
    for feature_map, _ in _maps(40):
        weights = [block.weight for block in feature_map.blocks] + [m.weight for m in feature_map.moments]
        squares = sum(b.weight**2 for b in feature_map.blocks)
        squares += sum(2 * (m.weight + 1) ** 2 for m in feature_map.moments)
        largest = plans.Largest(squares, max(weights))
        assert largest.norm_bound >= feature_map.integers(10).norm_bound
        assert largest.norm_bound >= largest.diameter / math.sqrt(2) * (1 - 1e-9)


def test_noise_of_counts_is_smaller():
    (feature_map, _), *_ = _maps(1)
    noises = [
        secure_mechanism(feature_map.integers(10), 10, PrivacyBudget(1.0, 1e-5, relation)).scale
        for relation in ("replace_one", "add_remove")
    ]
    assert noises[0] / noises[1] == pytest.approx(math.sqrt(2), rel=0.1)


def test_other_products_refuse_it():
    rows = np.random.default_rng(0).normal(size=(50, 2))
    fourier = FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), num_features=16, dim=2)
    calls = [
        lambda: perturb(jax.random.key(0), mean_embedding(fourier, rows), BUDGET),
        lambda: perturb_securely(integer_embedding(fourier, rows), BUDGET),
        lambda: measure(rows, Gaussian(0.5), rows[:5], budget=BUDGET),
        lambda: measure_generator(rows, fourier, budget=BUDGET),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"^relation: only tables are released under add_remove; here N is public$"
        ):
            call()


@pytest.mark.parametrize(
    ("epsilon", "num_rows"),
    [
        (1.0, 700),
        pytest.param(1e-3, 0, marks=pytest.mark.slow),
        pytest.param(100.0, 2, marks=pytest.mark.slow),
        *(pytest.param(1e-3, num_rows, marks=pytest.mark.long) for num_rows in (1, 2, 700)),
        *(pytest.param(1.0, num_rows, marks=pytest.mark.long) for num_rows in (0, 1, 2)),
        *(pytest.param(100.0, num_rows, marks=pytest.mark.long) for num_rows in (0, 1, 700)),
    ],
)
def test_any_number_of_rows_is_released(tmp_path, num_rows, epsilon, no_fits, monkeypatch):
    """Few rows with a short fit, which takes any counts."""
    if num_rows < 700:
        monkeypatch.setattr(mixture, "fit", functools.partial(no_fits, num_relaxed=20, num_steps=20))
    budget = PrivacyBudget(epsilon, 1e-5, "add_remove")
    # δ may be above 1/N: nothing may depend on N.
    released = release_table(_people(num_rows), SCHEMA, budget=budget, target="rich")
    said = released.statement
    assert said["relation"].startswith("add or remove one row")
    assert said["private"]
    assert said["measurements"][0]["name"] == COUNT
    assert released.table.num_rows == said["num_rows"] == plans.noisy_count(released.measurement.measured[COUNT])
    if epsilon == 100:
        assert abs(said["num_rows"] - max(num_rows, 2)) < 20
    released.save(tmp_path / "out")
    assert load(tmp_path / "out").statement == said
    assert f"one row of ≈{said['num_rows']} (add or remove one row; the number of rows is noisy)" in describe(said)
    assert "row is added or removed" in (tmp_path / "out" / "report.html").read_text()
    assert "which are public" in describe(said)
    assert "the number of rows, the schema" not in describe(said)


def test_the_text_of_a_source_shows_no_number_of_rows():
    """The number may be private, and a notebook shows the text of an open table."""
    assert repr(open_table(_people(737), SCHEMA)) == "TableSource('the table')"


def test_shares_of_the_budget_add_up():
    measured = measure_table(_people(300), SCHEMA, budget=BUDGET, target="rich")
    rhos = [noisy.mechanism.rho for noisy in measured.measured.values()]
    assert len(rhos) == 4
    assert rhos[0] / sum(rhos) == pytest.approx(plans.COUNT_SHARE)
    assert gaussian_epsilon(1 / math.sqrt(2 * sum(rhos)), 1e-5) == pytest.approx(1.0, rel=1e-3)
    for noisy in measured.measured.values():
        m = noisy.mechanism
        # σ² = Δ² / 2ρ, where Δ is the largest norm of a row.
        largest = noisy.feature_map.integers(1).norm_bound * m.grid
        assert m.scale == pytest.approx(largest / math.sqrt(2 * m.rho), rel=1e-6)


def test_nothing_but_noisy_sums_depends_on_the_number_of_rows(tmp_path, monkeypatch):
    """Two tables of very different sizes, whose sums are replaced by the same integers: all files are the same."""
    real, folders = IntegerEmbedding.with_public_count, []

    def same_sums(embedding, num_rows):
        weights = np.repeat([b.weight for b in embedding.integer_map.feature_map.blocks], 1)
        total = np.zeros_like(embedding.total)
        total[0] = 1000 * int(weights[0])
        return real(IntegerEmbedding(embedding.integer_map, total, embedding.num_rows), num_rows)

    monkeypatch.setattr(IntegerEmbedding, "with_public_count", same_sums)
    for num_rows in (0, 900):
        folders.append(tmp_path / str(num_rows))
        released = release_table(_people(num_rows), SCHEMA, budget=BUDGET, target="rich", secure=False, seed=3)
        released.save(folders[-1])
    for path in folders[0].iterdir():
        for other in folders[1:]:
            assert path.read_bytes() == (other / path.name).read_bytes(), path.name


def test_a_statement_that_was_edited_is_refused(tmp_path):
    measure_table(_people(300), SCHEMA, budget=BUDGET, folder=tmp_path / "out")
    path = tmp_path / "out" / "privacy.json"
    said = json.loads(path.read_text())
    replace_one = "replace one row; the number of rows is public"
    for change in ({"num_rows": said["num_rows"] + 1}, {"relation": replace_one}, {"statement_version": 3}):
        path.write_text(json.dumps(said | change))
        artifacts.seal(tmp_path / "out")
        with pytest.raises(ReleaseError, match=r"privacy\.json"):
            load(tmp_path / "out")


def test_no_relation_can_be_changed_in_the_measurements(tmp_path):
    """A mechanism without a relation has replace_one, as in files of earlier versions. The statement says another."""
    folder = tmp_path / "out"
    measure_table(_people(300), SCHEMA, budget=BUDGET, folder=folder)
    tried = 0
    for file, label, content in artifacts.mutants(folder):
        if file == "measurements.npz" and "relation" in label:
            before = (folder / file).read_bytes()
            (folder / file).write_bytes(content())
            artifacts.seal(folder)
            with pytest.raises(ReleaseError):
                load(folder)
            (folder / file).write_bytes(before)
            tried += 1
    assert tried >= 4


def test_measurements_of_a_private_number_of_rows_need_its_measurement(tmp_path, monkeypatch):
    measured = measure_table(_people(300), SCHEMA, budget=BUDGET)
    for kept in ([NAMES[0]], [COUNT]):
        broken = {name: noisy for name, noisy in measured.measured.items() if name in kept}
        folder = tmp_path / kept[0]
        type(measured)(SCHEMA, None, measured.plan, broken, measured.statement).save(folder)
        with pytest.raises(ReleaseError, match=r"privacy\.json"):
            load(folder)


def test_ledgers_add_up_both_relations(tmp_path):
    """To replace a row is to remove one and to add one: a release for add_remove has four times its ρ then."""
    ledger = Ledger(tmp_path / "ledger")
    rhos = []
    for again, relation in enumerate(["add_remove", "add_remove", "replace_one", "add_remove"]):
        spending = Spending(ledger, "replace_one", allow_repeat=again > 0)  # a name that is also that of a relation
        budget = PrivacyBudget(1.0, 1e-5, relation)
        folder = tmp_path / str(again)
        measured = measure_table(_people(60), SCHEMA, budget=budget, spending=spending, folder=folder)
        entries = ledger.spent("replace_one")
        rhos.append(entries[-1].rho)
        assert [entry.relation for entry in entries][-1] == relation
        total = measured.statement["total"]
        mixed = again >= 2
        factors = [4 if entry.relation == "add_remove" and mixed else 1 for entry in entries]
        assert total["rho"] == pytest.approx(np.dot(factors, rhos))
        expected = gaussian_epsilon(1 / math.sqrt(2 * total["rho"]), 1e-5)
        assert total["epsilon"] == pytest.approx(expected, rel=0.01)
        assert expected < total["epsilon"] < zcdp_epsilon(total["rho"], 1e-5)
        assert total.get("relation") == (None if mixed else "add_remove")
        assert load(folder).statement == measured.statement
        assert ("if one row is added or removed." in describe(measured.statement)) == (again == 1)
        assert ("if one row is replaced." in describe(measured.statement)) == mixed
    with pytest.raises(ValueError, match="no guarantee under add_remove"):
        entries[2].under("add_remove")
    said = json.loads((tmp_path / "3" / "privacy.json").read_text())
    said["total"]["relation"] = "add_remove"
    (tmp_path / "3" / "privacy.json").write_text(json.dumps(said))
    artifacts.seal(tmp_path / "3")
    with pytest.raises(ReleaseError):
        load(tmp_path / "3")


def test_old_ledgers_are_read_and_other_relations_refused(tmp_path):
    path = tmp_path / "ledger"
    line = {"database": "rows", "time": "t", "epsilon": 1.0, "delta": 1e-5, "rho": 0.02, "failure_probability": 0.0}
    path.write_text(json.dumps(line) + "\n")
    assert Ledger(path).spent("rows")[0].relation == "replace_one"
    for relation in ("replace_one", "both", 1, None):
        path.write_text(json.dumps(line | {"relation": relation}) + "\n")
        with pytest.raises(LedgerError, match="line 1 is not a line of a ledger"):
            Ledger(path).spent("rows")


def test_too_many_rows_for_a_private_number_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(plans, "MOST_PRIVATE_ROWS", 100)
    spending = Spending(Ledger(tmp_path / "ledger"), "rows")
    with pytest.raises(ValueError, match=r"^source: a table with a private number of rows has at most 100$"):
        measure_table(open_table(_people(101), SCHEMA), SCHEMA, budget=BUDGET, spending=spending)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.long
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("age,income,job,rich\n")  # no rows
    SCHEMA.write(tmp_path / "schema.json")
    words = ["release", "rows.csv", "--schema=schema.json", "--epsilon=1", "--delta=1e-5", "--output=out"]
    assert cli.main(words) == 2
    assert "rows.csv: expected at least 2 rows, got 0" in capsys.readouterr().err
    assert cli.main([*words, "--relation=add_remove"]) == 0
    assert "(add or remove one row; the number of rows is noisy)" in capsys.readouterr().out
    assert load("out").table.num_rows == load("out").statement["num_rows"]
    assert cli.main(["release", "rows.csv", "--lower=0", "--upper=1", "--relation=add_remove", *words[3:]]) == 2
    assert "--relation needs --schema" in capsys.readouterr().err
