"""Rows that count by their weights: sums, their sensitivity, releases, and answers about the population."""

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import kme_jax
from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, Weight, load, measure_table, release_table
from kme_jax.analysis import bootstrap, two_sample_test
from kme_jax.cli import main
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.feature_maps.base import IntegerMap
from kme_jax.feature_maps.table import LEVELS, TableMap
from kme_jax.privacy.statement import describe
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import planning as plans
from kme_jax.table.check import describe_weights
from kme_jax.table.constraints import Implies
from kme_jax.table.evaluate import evaluate_table
from kme_jax.table.expected import expected_errors
from kme_jax.table.readers import open_table
from kme_jax.table.rehearsal import made_up_rows
from kme_jax.table.release import COUNT, NAMES, binnings_and_target, public_inputs

pytestmark = pytest.mark.usefixtures("no_fits")

COLUMNS = Numeric("age", 0, 110, integer=True), Categorical("job", ("a", "b"), nullable=True)
SCHEMA = Schema((COLUMNS[0], Weight("homes", 50), COLUMNS[1]))
BUDGET = PrivacyBudget(1.0, 1e-6, "add_remove")
RULE = Implies("age<30", "job=b")


def _survey(num_rows=4000, seed=0):
    """Old people have large weights, and mostly the job a."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, num_rows)
    job = np.where(rng.random(num_rows) < age / 100, "a", "b")
    return pa.table({"age": age, "homes": age / 2 + rng.random(num_rows), "job": job})


def _maps(seed=0):
    """Maps of all three measurements of a table, with moments and products."""
    schema = Schema((Numeric("x", 0, 999, integer=True, nullable=True), Numeric("y", 0, 99, integer=True), COLUMNS[1]))
    rng = np.random.default_rng(seed)
    layout = plans.Layout.create(*binnings_and_target(schema, None), 5000, 0.05, "add_remove")
    singles_map = plans.singles_map(layout)
    plan = plans.Plan([np.arange(b.num_cells) // 8 for b in layout.binnings], [], np.zeros((0, 2), np.int64))
    pairs = layout.blocks([[(0, plan.bins[0]), (1, plan.bins[1])], [(1, plan.bins[1]), (2, plan.bins[2])]])
    product = kme_jax.feature_maps.table.Moment((0, 1), (100, 0), (800, 99), 12345)
    rows = np.column_stack([rng.integers(0, c.num_codes, 300) for c in schema.columns]).astype(float)
    return [singles_map, TableMap(layout.binnings, tuple(pairs), (product,))], rows


@pytest.mark.parametrize("place", [0, 1])
def test_no_row_counts_more_than_in_full(place):
    """The norm of each row's integers is at most the bound, for every level, and each integer is at most that."""
    maps, rows = _maps()
    integers = maps[place].integers(1000)
    levels = np.random.default_rng(1).choice([0, 1, 7, 1000, LEVELS - 1, LEVELS], len(rows))
    for row, level in zip(rows[:, None], levels, strict=True):
        at_level = integers.sum_at_levels(row, np.asarray([level]))
        in_full = integers.sum(row, np.ones(1, bool))
        assert np.all(np.abs(at_level) <= np.abs(in_full))
        assert np.linalg.norm(at_level.astype(float)) <= integers.norm_bound
        np.testing.assert_allclose(at_level, in_full * (level / LEVELS), atol=1)
        assert level < LEVELS or np.array_equal(at_level, in_full)
        assert level or not at_level.any()


def test_sums_are_those_of_single_rows():
    maps, rows = _maps()
    levels = np.random.default_rng(2).integers(0, LEVELS + 1, len(rows))
    for feature_map in maps:
        integers = feature_map.integers(1000)
        together = integers.sum_at_levels(rows, levels)
        one_by_one = [integers.sum_at_levels(rows[i : i + 1], levels[i : i + 1]) for i in range(len(rows))]
        np.testing.assert_array_equal(together, np.sum(one_by_one, axis=0))


def test_sums_of_the_largest_weights_are_exact():
    """Floats are exact up to 2⁵³, which these sums exceed after 2¹⁴ rows."""
    feature_map, rng = TableMap.of_codes(3, weight=2**39 - 1), np.random.default_rng(0)
    codes, levels = rng.integers(0, 3, 40_000), rng.integers(0, LEVELS + 1, 40_000)
    found = feature_map.integers(2**20).sum_at_levels(codes[:, None].astype(float), levels)
    terms = (2**39 - 1) * levels // LEVELS
    assert found.tolist() == [sum(terms[codes == code].tolist()) for code in range(3)]


def test_levels_need_a_private_number_of_rows():
    (feature_map, _), rows = _maps()
    with_levels = np.column_stack([rows, np.full(len(rows), LEVELS)])
    with pytest.raises(ValueError, match="the number of rows must be private"):
        integer_embedding_of_batches(feature_map, [with_levels], len(rows), has_levels=True)
    found = integer_embedding_of_batches(feature_map, [with_levels], len(rows), has_levels=True, rows_planned=10**6)
    plain = integer_embedding_of_batches(feature_map, [rows], len(rows), rows_planned=10**6)
    np.testing.assert_array_equal(found.total, plain.total)


def test_other_maps_have_no_levels():
    fourier = kme_jax.FourierMap.from_kernel(jax.random.key(0), kme_jax.Gaussian(gamma=1.0), 8, 1).integers(10)
    assert isinstance(fourier, IntegerMap)
    with pytest.raises(ValueError, match="no rows that count in part"):
        fourier.sum_at_levels(np.zeros((1, 1)), np.ones(1, np.int64))


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["25", "nan", "", "-3", "1e9", "x", None, "1.0"]),
        pa.array([25.0, np.nan, None, -3, 1e9, None, None, 1.0]),
        pa.chunked_array([pa.array([25.0, np.nan]), pa.array([None, -3, np.inf, None, None, 1.0])]),
        pa.array(["25", "nan", "", "-3", "1e9", "x", None, "1.0"]).dictionary_encode(),
    ],
)
def test_cells_of_weights(cells):
    levels = Weight("homes", 50).levels(cells).tolist()
    assert levels[1:7] == [0, 0, 0, LEVELS, 0, 0]
    np.testing.assert_allclose([levels[0], levels[7]], [LEVELS / 2, LEVELS / 50], atol=0.5)


def test_one_row_moves_every_sum_by_no_more_than_the_claim():
    """The attack: the sums of a table, and of the table with one row of a weight far above the bound."""
    source, added = _survey(500), pa.table({"age": [110], "homes": [1e12], "job": ["b"]})
    more = pa.concat_tables([source, added.cast(source.schema)])
    layout = plans.Layout.create(*binnings_and_target(SCHEMA, None), 400, 0.05, "add_remove")
    feature_map = plans.singles_map(layout)
    sums = []
    for table in (source, more):
        codes = list(open_table(table, SCHEMA).codes(levels=True))
        found = integer_embedding_of_batches(
            feature_map, (c.astype(float) for c in codes), len(table), has_levels=True, rows_planned=10**9
        )
        sums.append(found.total)
    distance = np.linalg.norm((sums[1] - sums[0]).astype(float))
    bound = feature_map.integers(10**9).norm_bound
    assert 0.5 * bound < distance <= bound


@pytest.fixture(scope="module")
def released():
    return release_table(_survey(), SCHEMA, budget=PrivacyBudget(5.0, 1e-6, "add_remove"), secure=False)


def test_a_release_is_about_the_population(released):
    survey = _survey().to_pandas()
    frame, total = released.to_pandas(), survey.homes.sum()
    assert list(frame.columns) == ["age", "homes", "job"]
    assert frame.homes.nunique() == 1
    assert frame.homes.sum() == pytest.approx(total, rel=0.02)
    weighted = np.average(survey.age, weights=survey.homes)
    assert abs(frame.age.mean() - weighted) < 0.25 * abs(survey.age.mean() - weighted)
    share = np.average(survey.job == "a", weights=survey.homes)
    assert abs((frame.job == "a").mean() - share) < 0.25 * abs((survey.job == "a").mean() - share)
    assert released.columns == released.schema.released_names == ("age", "homes", "job")


def test_rows_of_weight_zero_do_not_count():
    survey = _survey(2000)
    empty = pa.table({"age": np.zeros(2000, int), "homes": np.zeros(2000), "job": ["b"] * 2000})
    both = pa.concat_tables([survey, empty])
    measured = [measure_table(t, SCHEMA, budget=BUDGET, secure=False, seed=3) for t in (survey, both)]
    for name in (COUNT, *NAMES):
        one, other = (m.measured[name].coordinates for m in measured)
        np.testing.assert_array_equal(one, other)


def test_full_weights_are_rows_without_weights():
    survey = _survey(1000)
    full = survey.set_column(1, "homes", pa.array(np.full(1000, 50.0)))
    plain = Schema(COLUMNS, dropped=("homes",))
    one = measure_table(full, SCHEMA, budget=BUDGET, secure=False, seed=3)
    other = measure_table(full, plain, budget=BUDGET, secure=False, seed=3)
    for name in (COUNT, *NAMES):
        np.testing.assert_array_equal(one.measured[name].coordinates, other.measured[name].coordinates)


def test_answers_are_in_units_of_the_population(released):
    survey = _survey().to_pandas()
    for question, value in (
        ("count(job=a)", survey.homes[survey.job == "a"].sum()),
        ("sum(age)", (survey.homes * survey.age).sum()),
        ("mean(age)", np.average(survey.age, weights=survey.homes)),
        ("share(job=a)", np.average(survey.job == "a", weights=survey.homes)),
    ):
        answer = kme_jax.estimate(released, question)
        assert abs(answer.value - value) < 4 * answer.standard_error, question
        assert answer.standard_error < 0.05 * value, question
    replicates = bootstrap(released, 4)
    by_bootstrap = kme_jax.estimate(released, "count(job=a)", replicates=replicates)
    assert by_bootstrap.value == pytest.approx(survey.homes[survey.job == "a"].sum(), rel=0.1)
    total = replicates.estimate(lambda frame: frame.homes.sum())
    assert total.value == pytest.approx(released.to_pandas().homes.sum())
    support = released.support("job=a")
    assert support.rows == pytest.approx(survey.homes[survey.job == "a"].sum(), rel=0.1)
    assert "weights of about" in support.describe()


def test_errors_are_those_of_weighted_statistics(released):
    survey = _survey()
    errors = evaluate_table(released, survey)
    weighted = np.average(survey["age"], weights=survey["homes"])
    assert errors["columns"][0]["mean"]["private"] == pytest.approx(weighted, rel=1e-3)
    assert errors["columns"][0]["total_variation"] < 0.05
    with pytest.raises(ValueError, match="no row has a weight above 0"):
        evaluate_table(released, survey.set_column(1, "homes", pa.array(np.zeros(len(survey)))))


def test_a_release_is_saved_and_read(released, tmp_path):
    loaded = load(released.save(tmp_path / "x"))
    assert loaded.table.equals(released.table)
    assert loaded.schema == SCHEMA
    assert Schema.read(tmp_path / "x" / "schema.json") == SCHEMA
    assert json.loads((tmp_path / "x" / "schema.json").read_text())["schema_version"] == 3
    frame = released.to_pandas()
    assert loaded.sample(10)["homes"].to_numpy().sum() == pytest.approx(frame.homes.sum())
    old = loaded.sample(10, where="age>=65")["homes"].to_numpy().sum()
    assert old == pytest.approx(frame.homes[frame.age >= 65].sum())
    assert old == pytest.approx(loaded.support("age>=65").rows)
    text = describe(loaded.statement)
    assert "Rows count by homes, at most 50: the number of rows is the sum of the weights" in text
    assert "counted by their weights" in (tmp_path / "x" / "report.html").read_text()


def test_edited_weights_are_refused(released, tmp_path):
    folder = released.save(tmp_path / "x")
    table = pyarrow.parquet.read_table(folder / "synthetic.parquet")
    edited = table.set_column(1, "homes", pa.array(2 * table["homes"].to_numpy()))
    pyarrow.parquet.write_table(edited, folder / "synthetic.parquet")
    with pytest.raises(ReleaseError):
        load(folder)


def test_a_statement_of_weights_under_replace_one_is_refused(tmp_path):
    schema = Schema(COLUMNS, dropped=("homes",))
    plain = measure_table(_survey(200), schema, budget=PrivacyBudget(1.0, 1e-5), secure=False)
    statement = plain.statement | {"public_inputs": public_inputs(SCHEMA, None)}
    forged = dataclasses.replace(plain, schema=SCHEMA, statement=statement).save(tmp_path / "x")
    with pytest.raises(ReleaseError, match="need 'add_remove'"):
        load(forged)


def test_bounds_are_stated_in_full():
    weighted = Schema((*COLUMNS, Weight("homes", 2500000.4)))
    assert "homes, at most 2500000.4:" in " ".join(public_inputs(weighted, None))
    assert "homes, at most 50:" in " ".join(public_inputs(SCHEMA, None))


def test_weights_may_have_decimal_commas():
    cells = pa.array(["12,5", "1.000,0", "7"])
    levels = Weight("homes", 50, decimal=",").levels(cells)
    np.testing.assert_allclose(levels, [LEVELS / 4, LEVELS, 7 / 50 * LEVELS], atol=0.5)
    schema = Schema((*COLUMNS, Weight("homes", 50, decimal=",")))
    assert Schema.from_json(schema.to_json()) == schema


def test_levels_beyond_their_range_count_in_full():
    (feature_map, _), rows = _maps()
    integers = feature_map.integers(1000)
    beyond, within = np.full(len(rows), LEVELS + 30_000), np.full(len(rows), LEVELS)
    np.testing.assert_array_equal(integers.sum_at_levels(rows, beyond), integers.sum_at_levels(rows, within))


def test_made_up_rows_count_in_full():
    assert made_up_rows(SCHEMA, 3)["homes"].to_pylist() == [50.0, 50.0, 50.0]


def test_constraints_and_weights_go_together():
    found = release_table(_survey(), Schema(SCHEMA.released, constraints=[RULE]), budget=BUDGET, secure=False)
    frame, survey = found.to_pandas(), _survey().to_pandas()
    assert set(frame.job[frame.age < 30].dropna()) <= {"b"}
    assert frame.homes.sum() == pytest.approx(survey.homes.sum(), rel=0.05)
    assert frame.age.mean() == pytest.approx(np.average(survey.age, weights=survey.homes), rel=0.03)


def test_rows_of_persons_may_have_weights():
    rng = np.random.default_rng(0)
    rows = _survey(3000).append_column("id", pa.array(rng.integers(0, 1000, 3000)))
    schema = Schema((*COLUMNS, Weight("homes", 50)), dropped=("id",))
    budget = PrivacyBudget(5.0, 1e-6, "add_remove_person", 3, "id")
    found = release_table(rows, schema, budget=budget, secure=False)
    assert found.table.column_names == ["age", "job", "homes"]
    used = open_table(rows, schema, person="id", max_rows=3).persons.used
    assert sum(found.table["homes"].to_pylist()) == pytest.approx(rows["homes"].to_numpy()[used].sum(), rel=0.1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Weight("homes", 0), "lower must be below upper"),
        (lambda: Weight("homes", -3), "lower must be below upper"),
        (lambda: Weight("homes", float("inf")), "upper must be finite"),
        (lambda: Weight("homes", "50"), "upper must be a number"),
        (lambda: Weight("homes", 98302 * 5e-324), "upper must be from 1e-100 to 1e\\+100"),
        (lambda: Weight("homes", 1e200), "upper must be from 1e-100 to 1e\\+100"),
        (lambda: Weight("homes", 50, decimal=";"), 'decimal must be "." or ","'),
        (lambda: Weight("", 50), "a name must be"),
        (lambda: Schema((*COLUMNS, Weight("a", 1), Weight("b", 1))), "more than one column has weights: a, b"),
        (lambda: Schema((*COLUMNS, Weight("age", 1))), "more than one column is named age"),
        (lambda: Schema((Weight("a", 1),)), "no columns that are measured"),
        (lambda: release_table(_survey(50), SCHEMA, budget=PrivacyBudget(1.0, 1e-5)), "need 'add_remove'"),
        (lambda: expected_errors(SCHEMA, 50, PrivacyBudget(1.0, 1e-5)), "need 'add_remove'"),
        (
            lambda: expected_errors(Schema(SCHEMA.released, constraints=[RULE]), 50, PrivacyBudget(1.0, 1e-5)),
            "need 'add_remove'",
        ),
        (lambda: open_table(_survey(50).drop_columns("homes"), SCHEMA), "it lacks the schema's homes"),
        (lambda: open_table(_survey(50), SCHEMA, person="homes"), "homes is released"),
        (lambda: release_table(_survey(50), SCHEMA, budget=BUDGET, target="homes"), "has the kind weight"),
        (
            lambda: Schema.from_json({"schema_version": 2, "columns": [{"name": "w", "kind": "weight", "upper": 3}]}),
            "schema_version must be 3",
        ),
        (
            lambda: Schema.from_json({"schema_version": 3, "columns": [{"name": "w", "kind": "weight"}]}),
            "upper is not given",
        ),
        (
            lambda: Schema.from_json({"schema_version": 3, "columns": [{"name": "w", "kind": "weight", "lower": 1}]}),
            "lower does not apply to kind weight|upper is not given",
        ),
    ],
)
def test_mistakes(make, error):
    with pytest.raises(ValueError, match=error) as found:
        make()
    assert "\n" not in str(found.value)


def test_questions_that_weights_do_not_have(released):
    with pytest.raises(ValueError, match="has the kind weight"):
        kme_jax.estimate(released, "mean(homes)")
    with pytest.raises(ValueError, match="has the kind weight"):
        released.sample(5, where="homes>=3")
    with pytest.raises(ValueError, match="population: weighted statistics"):
        kme_jax.estimate(released, "mean(age)", population=True)
    with pytest.raises(ValueError, match="sample without weighted"):
        released.sample(5, weighted=True)
    with pytest.raises(ValueError, match="rows had weights"):
        two_sample_test(released, _survey())


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(_survey(2000), "survey.csv")
    SCHEMA.write("schema.json")
    flags = ["survey.csv", "--schema=schema.json", "--epsilon=2", "--delta=1e-6", "--output=out"]
    assert main(["release", *flags]) == 2
    assert "need 'add_remove'" in capsys.readouterr().err
    assert main(["release", *flags, "--dry_run"]) == 2
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    assert main(["check", "survey.csv", "--schema=schema.json"]) == 0
    said = capsys.readouterr().out
    assert "rows count by homes, whose sum is" in said
    assert "the noise is as large as for" in said
    assert main(["release", *flags, "--relation=add_remove"]) == 0
    assert "Rows count by homes" in capsys.readouterr().out
    assert main(["show", "out"]) == 0
    assert "weight, at most 50; the same in every row" in capsys.readouterr().out
    assert main(["evaluate", "out", "--against=survey.csv"]) == 0
    assert main(["estimate", "out", "count(job=a)"]) == 0
    assert main(["sample", "out", "--num_rows=7", "--output=more.csv"]) == 0
    capsys.readouterr()
    assert pd.read_csv("more.csv").homes.sum() == pytest.approx(load("out").table["homes"].to_numpy().sum())
    assert main(["plan", "--schema=schema.json", "--num_rows=1000", "--epsilon=1", "--delta=1e-6"]) == 2
    assert "need 'add_remove'" in capsys.readouterr().err


def test_what_check_says():
    text = describe_weights(open_table(pa.table({"age": [1, 2], "homes": [100.0, None], "job": ["a", "b"]}), SCHEMA))
    assert text.splitlines()[0] == "rows count by homes, whose sum is 50"
    assert "1 rows do not count, and 1 have the largest weight" in text
    assert describe_weights(open_table(_survey(3), Schema(COLUMNS, dropped=("homes",)))) == ""
