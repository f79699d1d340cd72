import json
import math

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, cli, measure_table, release_table
from kme_jax.privacy.composition import Composition
from kme_jax.table.evaluate import evaluate_table
from kme_jax.table.expected import expected_errors
from kme_jax.table.marginals import compared_cells
from kme_jax.table.planning import Layout, Plan, Singles, comparable_rho, map_of, narrow_moments, sigma
from kme_jax.table.release import binnings_and_target

SCHEMA = Schema(
    (
        Numeric("age", 0, 110, integer=True),
        Numeric("income", 0, 200_000, step=0.01, nullable=True),
        Categorical("job", ("baker", "clerk", "nurse", "other")),
        Categorical("rich", ("no", "yes")),
    )
)


def _rows(rng, num_rows):
    age, job = rng.integers(18, 91, num_rows), rng.integers(0, 4, num_rows)
    income = np.exp(rng.normal(9 + 0.2 * job, 0.5)).clip(0, 200_000)
    rich = np.where(income > 12_000, "yes", "no")
    jobs = np.asarray(["baker", "clerk", "nurse", "other"])[job]
    return pa.table(
        {"age": age, "income": pa.array(income, mask=rng.random(num_rows) < 0.1), "job": jobs, "rich": rich}
    )


@pytest.mark.parametrize("target", [None, "rich"])
def test_the_noise_is_that_of_releases(rng, target):
    """Of single columns exactly, of pairs within a quarter, and of means if rows fill the bounds."""
    budget, num_rows = PrivacyBudget(1.0, 1e-6), 20_000
    expected = expected_errors(SCHEMA, num_rows, budget, target=target)
    measured = measure_table(_rows(rng, num_rows), SCHEMA, budget=budget, target=target, secure=False)
    singles = Singles.read(measured.layout, measured.measured["single columns"])
    assert [column.noise for column in expected.columns] == pytest.approx(singles.sums_sigmas, rel=0.01)
    assert expected.columns[0].smallest_share == pytest.approx(4 * singles.sums_sigmas[0] / num_rows, rel=0.01)
    assert expected.columns[1].mean_error < 0.5 * 100_000 * singles.moments[1].sigma / num_rows
    ends = {"age": rng.choice([0, 110], num_rows), "income": rng.choice([0.0, 200_000.0], num_rows)}
    full = measure_table(
        pa.table({**{n: _rows(rng, num_rows)[n] for n in ("job", "rich")}, **ends}).select(SCHEMA.names),
        SCHEMA, budget=budget, target=target, secure=False,
    )  # fmt: skip
    (again,) = narrow_moments(full.layout, 1, full.measured["some pairs, finely"])
    noises = 100_000 * np.asarray([singles.moments[1].sigma, again.sigma]) / num_rows
    assert expected.columns[1].mean_error == pytest.approx(np.sum(noises**-2.0) ** -0.5, rel=0.15)
    assert expected.columns[2].mean_error is None
    coarse = measured.measured["pairs, coarsely"]
    blocks = [b for b in map_of(coarse).blocks if len(set(b.columns) - {measured.layout.split}) == 2]
    noise = np.median([sigma(coarse, block) for block in blocks]) * math.sqrt(measured.layout.num_classes)
    assert expected.coarse_noise == pytest.approx(noise, rel=0.25)
    assert expected.num_pairs == len(measured.layout.pairs())
    assert len(expected.columns) == (4 if measured.layout.split < 0 else 3)


def _spread(binning, column, parts):
    """The share of the rows of each part that is in each compared cell, by hand."""
    first = binning.first_codes()[:-1]
    cells = compared_cells(Schema((column,)), first[:, None])[0][0]
    shares = np.zeros((cells.max() + 1, parts.max() + 1))
    np.add.at(shares, (cells, parts), 1 / np.bincount(parts)[parts])
    return shares


@pytest.mark.parametrize("num_rows", [20_000, 10**8])  # bins are wider than compared cells, or narrower
def test_the_distance_of_a_pair_is_that_of_its_noise(rng, num_rows):
    schema = Schema((Numeric("a", 0, 999, integer=True), Numeric("b", 0, 200, integer=True, nullable=True)))
    budget = PrivacyBudget(1.0, 1e-9)
    expected = expected_errors(schema, num_rows, budget)
    (pair,) = expected.pairs
    assert (pair.names, pair.first_noise) == (("a", "b"), None)
    assert (pair.coarse_noise, pair.fine_noise) == (expected.coarse_noise, expected.fine_noise)
    layout = Layout.create(*binnings_and_target(schema, None), num_rows, comparable_rho(Composition.planned(budget)))
    even = [np.full((1, b.num_cells), num_rows / b.num_cells) for b in layout.binnings]
    singles = Singles(even, [1.0, 1.0], None, [], None, 0.0, [c[0] for c in even], [1.0, 1.0], [None] * 2, even, [], [])
    plan = Plan.create(layout, singles, num_rows, comparable_rho(Composition.planned(budget)), {})
    found = []
    for noise, of_columns in ((pair.coarse_noise, plan.merged), (pair.fine_noise, plan.bins)):
        one, other = (_spread(*three) for three in zip(layout.binnings, schema.columns, of_columns, strict=True))
        errors = noise * rng.standard_normal((100, one.shape[1], other.shape[1]))
        distances = np.abs(one @ errors @ other.T).sum((1, 2)) / 2 / num_rows
        found.append(distances)
    assert pair.num_cells == (plan.bins[0].max() + 1) * (plan.bins[1].max() + 1)
    worst = max(found, key=np.mean)
    assert pair.total_variation == pytest.approx(worst.mean(), rel=0.02)
    assert np.mean(worst > pair.total_variation_bound) < 0.08
    assert pair.total_variation_bound < pair.total_variation + 3.5 * worst.std()


def test_pairs_with_the_target_are_counted_first():
    expected = expected_errors(SCHEMA, 20_000, PrivacyBudget(1.0, 1e-6), target="rich")
    assert expected.num_pairs == 3
    assert [pair.names for pair in expected.pairs if pair.first_noise] == [
        (n, "rich") for n in ("age", "income", "job")
    ]
    for pair in expected.pairs:
        assert (pair.first_noise is None) == ("rich" not in pair.names)
        assert (pair.coarse_noise is None) == (pair.fine_noise is None) == ("rich" in pair.names)
        assert 0 < pair.total_variation < pair.total_variation_bound < 1
    assert expected.pairs[2].num_cells == 8
    sizes = {pair.names: pair.num_cells for pair in expected.pairs}
    assert sizes["income", "rich"] == 2 * (1024 + 1)


@pytest.mark.slow
def test_releases_are_within_what_is_expected(rng):
    budget = PrivacyBudget(1.0, 1e-6)
    planned = expected_errors(SCHEMA, 20_000, budget)
    expected, pairs, parts = {column.name: column for column in planned.columns}, planned.pairs, []
    for seed in range(2):
        rows = _rows(rng, 20_000)
        errors = evaluate_table(release_table(rows, SCHEMA, budget=budget, secure=False, seed=seed), rows)
        distances = {tuple(pair["names"]): pair["total_variation"] for pair in errors["pairs"]}
        parts += [distances[pair.names] / pair.total_variation_bound for pair in pairs]
        for column in errors["columns"]:
            bound = expected[column["name"]]
            assert bound.total_variation < bound.total_variation_bound
            assert column["total_variation"] < bound.total_variation_bound
            if bound.mean_bound is not None:
                assert bound.mean_bound == 2 * bound.mean_error
                assert abs(column["mean"]["synthetic"] - column["mean"]["private"]) < bound.mean_bound
    assert np.mean(np.asarray(parts) < 1) >= 0.8  # bounds are rarely exceeded, about one in twenty, and hardly
    assert max(parts) < 1.2


def test_what_is_expected_of_a_single_column_and_of_a_private_number_of_rows():
    alone = Schema((Numeric("age", 0, 110, integer=True),))
    expected = expected_errors(alone, 1000, PrivacyBudget(1.0, 1e-6))
    assert (expected.num_pairs, expected.coarse_noise, expected.fine_noise) == (0, None, None)
    private, public = (
        expected_errors(SCHEMA, 20_000, PrivacyBudget(1.0, 1e-6, relation)).columns[0].noise
        for relation in ("add_remove", "replace_one")
    )
    assert private < public
    for num_rows, message in ((1, "at least 2 rows"), (2 * 10**6, "1/N")):
        with pytest.raises(ValueError, match=message):
            expected_errors(SCHEMA, num_rows, PrivacyBudget(1.0, 1e-6))
    with pytest.raises(ValueError, match="no column 'poor'"):
        expected_errors(SCHEMA, 1000, PrivacyBudget(1.0, 1e-6), target="poor")


def test_the_command(tmp_path, capsys):
    path = tmp_path / "schema.json"
    SCHEMA.write(path)
    words = ["plan", f"--schema={path}", "--num_rows=20000", "--epsilon=0.3,1", "--delta=1e-6"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert text.count("counts of 6 pairs of columns") == text.count("pair (the worst 5 of 6)") == 2
    assert text.count("\nincome  ") == text.count("median of all pairs") == 2
    assert "job and rich" not in text
    assert "the error of the mean, rarely exceeded if rows fill the bounds; a long, thin tail adds to it" in text
    assert cli.main([*words, "--pairs"]) == 0
    assert capsys.readouterr().out.count("job and rich") == 2
    assert cli.main([*words, "--json", "--target=rich"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["columns"][0]["noise"] > second["columns"][0]["noise"]
    assert len(first["pairs"]) == 6
    assert first["pairs"][3]["names"] == ["age", "income"]
    assert first["pairs"][3]["total_variation"] > second["pairs"][3]["total_variation"]
    for more, message in (
        (["--kernel=gaussian"], "--kernel is for points"),
        (["--dim=2"], "not allowed with argument --schema"),
        (["--target=poor"], "no column 'poor'"),
    ):
        assert cli.main([*words, *more]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["plan", "--dim=2", *words[2:], "--relation=add_remove"]) == 2
    assert "--relation is for tables" in capsys.readouterr().err
    assert cli.main(["plan", "--dim=2", *words[2:], "--pairs"]) == 2
    assert "--pairs is for tables" in capsys.readouterr().err
