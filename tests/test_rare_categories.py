"""Rare categories keep what they say about other columns."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, estimate, load, measure_table
from kme_jax.storage.folders import ReleaseError
from kme_jax.table import mixture
from kme_jax.table import planning as plans
from kme_jax.table.rare_categories import RareCategories
from kme_jax.table.rare_fit import SURELY, choose_rare, log_linear_model
from kme_jax.table.release import NAMES

pytestmark = pytest.mark.usefixtures("no_fits")

NUM_ROWS, NUM_TRADES, NUM_SECTORS = 30_000, 200, 8
BUDGET = PrivacyBudget(2.0, 1e-6)
SCHEMA = Schema(
    (
        Categorical("trade", tuple(f"t{i}" for i in range(NUM_TRADES))),
        Categorical("sector", tuple(f"s{i}" for i in range(NUM_SECTORS))),
        Numeric("wage", 0, 100, integer=True),
        Categorical("sex", ("f", "m")),
    )
)


def _people(seed: int = 0, *, tells: bool = True) -> pa.Table:
    """Each trade is in one sector, which decides about the wage, if the trade tells anything at all."""
    random = np.random.default_rng(seed)
    sizes = 1 / (3.0 + np.arange(NUM_TRADES))
    trade = random.choice(NUM_TRADES, NUM_ROWS, p=sizes / sizes.sum())
    sector = trade * 5 % NUM_SECTORS if tells else random.integers(0, NUM_SECTORS, NUM_ROWS)
    wage = np.clip(random.normal(20 + 8 * sector, 5), 0, 100).round().astype(np.int64)
    sex = random.integers(0, 2, NUM_ROWS)
    return pa.table(
        {
            "trade": [f"t{i}" for i in trade],
            "sector": [f"s{i}" for i in sector],
            "wage": wage,
            "sex": np.asarray(["f", "m"])[sex],
        }
    )


@pytest.fixture(scope="module")
def release():
    return measure_table(_people(), SCHEMA, budget=BUDGET, secure=False).synthesise()


def _in_sector(table: pa.Table, rare: RareCategories) -> float:
    """The share of the rows of rare trades that are in the sector of their trade."""
    trade = np.asarray([int(name[1:]) for name in table["trade"].to_pylist()])
    sector = np.asarray([int(name[1:]) for name in table["sector"].to_pylist()])
    rows = rare.are_rare(trade)
    assert rows.sum() > 0.1 * len(trade)
    return float(np.mean(trade[rows] * 5 % NUM_SECTORS == sector[rows]))


def test_rare_categories_keep_their_sector(release):
    (rare,) = release.rows.rare
    assert SCHEMA.names[rare.place] == "trade"
    assert 0 in {abs(SCHEMA.names.index("sector") - release.rows.others[place]) for place in rare.parents}
    without = dataclasses.replace(release.rows, rare=())
    codes = without.sample(NUM_ROWS, 0)
    rows = rare.are_rare(codes[:, 0])
    assert _in_sector(release.table, rare) > 0.6
    assert np.mean(codes[rows, 0] * 5 % NUM_SECTORS == codes[rows, 1]) < 0.3


@pytest.mark.long
def test_rare_categories_keep_their_sector_in_fitted_rows(no_fits, monkeypatch):
    monkeypatch.setattr(mixture, "fit", no_fits)
    release = measure_table(_people(), SCHEMA, budget=BUDGET, secure=False).synthesise()
    assert _in_sector(release.table, release.rows.rare[0]) > 0.75


def test_counts_of_categories_stay(release):
    without = dataclasses.replace(release.rows, rare=())
    before, after = (np.bincount(rows.sample(5000, 3)[:, 0], minlength=NUM_TRADES) for rows in (without, release.rows))
    np.testing.assert_array_equal(before, after)


def test_samples_with_conditions_and_weights_follow_the_model(release):
    (rare,) = release.rows.rare
    trade = int(rare.codes[0])
    name, sector = f"t{trade}", f"s{trade * 5 % NUM_SECTORS}"
    rows = release.sample(200, where=[f"trade={name}"])
    assert set(rows["trade"].to_pylist()) == {name}
    assert np.mean([value == sector for value in rows["sector"].to_pylist()]) > 0.6
    both = release.sample(100, where=[f"trade={name}", "sex=f"])
    assert set(both["sex"].to_pylist()) == {"f"}
    one = release.sample(400, where=[f"sector={sector}"])
    assert set(one["sector"].to_pylist()) == {sector}
    assert _in_sector(one, rare) > 0.6
    weighted = release.sample(2000, weighted=True)
    assert _in_sector(weighted, rare) > 0.6
    assert sum(weighted["weight"].to_pylist()) == pytest.approx(1)


def test_many_rows_of_one_rare_category(release):
    """Rows are weighted, not drawn until enough of them have the category."""
    (rare,) = release.rows.rare
    shares = rare.probabilities(
        np.stack(np.meshgrid([0], *(range(len(o)) for o in rare.of_parents)), -1).reshape(-1, 3)
    )
    last = int(rare.codes[np.argsort(shares.mean(0))[len(rare.codes) // 4]])
    rows = release.sample(2000, where=[f"trade=t{last}"])
    assert rows.num_rows == 2000
    assert set(rows["trade"].to_pylist()) == {f"t{last}"}
    two = release.sample(100, where=[f"trade in (t{last}, t0)"])
    assert {"t0"} <= set(two["trade"].to_pylist()) <= {"t0", f"t{last}"}
    weighted = release.sample(100, where=[f"trade=t{last}"], weighted=True)
    assert set(weighted["trade"].to_pylist()) == {f"t{last}"}


def test_conditions_on_categories_of_several_models(release):
    """Each model has the rare categories of one bin. Rows have the allowed ones of all of them, and no others."""
    (rare,) = release.rows.rare
    halves = [rare.restricted(np.arange(len(rare.codes)) % 2 == i) for i in range(2)]
    both = dataclasses.replace(release, rows=dataclasses.replace(release.rows, rare=tuple(halves)))
    trades = [int(half.codes[i]) for half in halves for i in (0, 1)]
    rows = both.sample(1200, where=[f"trade in ({', '.join(f't{trade}' for trade in trades)})"])
    found = np.asarray([int(name[1:]) for name in rows["trade"].to_pylist()])
    sectors = np.asarray([int(name[1:]) for name in rows["sector"].to_pylist()])
    assert set(found) == set(trades)
    for trade in trades:
        assert np.mean(sectors[found == trade] == trade * 5 % NUM_SECTORS) > 0.3  # 0.125 by chance
    # The second condition leaves one category of the first model, and none of the second one.
    one = both.sample(100, where=[f"trade in (t{trades[0]}, t{trades[2]})", f"trade=t{trades[0]}", "sex=f"])
    assert set(one["trade"].to_pylist()) == {f"t{trades[0]}"}


def test_estimates_use_the_counts_of_rare_categories(release):
    (rare,) = release.rows.rare
    trade = int(rare.codes[1])
    sector = f"s{trade * 5 % NUM_SECTORS}"
    right, wrong = (
        estimate(release, f"share(sector={name}) where trade=t{trade}") for name in (sector, f"s{(trade * 5 + 1) % 8}")
    )
    assert right.low <= 1.0
    assert right.value > 0.6
    assert wrong.low <= 0.0 < wrong.high
    assert wrong.value < 0.4


def test_nothing_is_measured_for_categories_that_say_nothing():
    measured = measure_table(_people(tells=False), SCHEMA, budget=BUDGET, secure=False)
    layout = measured.plan.layout(measured.measured[NAMES[0]].feature_map.binnings, -1, measured.measured[NAMES[0]])
    assert len(plans.rare_cells(layout, measured.plan, 0)) > 50
    blocks = measured.measured[NAMES[2]].feature_map.blocks
    assert not any(plans.is_of_rare(layout, measured.plan, block) for block in blocks)


def test_the_choice_sees_noisy_counts_alone(release):
    """The map of the third measurement follows from the first two, and its bound holds for it."""
    measured = release.measurement.measured
    layout = release.measurement.plan.layout(measured[NAMES[0]].feature_map.binnings, -1, measured[NAMES[0]])
    plan, rho = release.measurement.plan, release.statement["rho"]
    singles, coarse = plans.Singles.read(layout, measured[NAMES[0]]), measured[NAMES[1]]
    associated, surely = (plans.association(layout, plan, singles, coarse, doubt=doubt) for doubt in (0.0, SURELY))
    assert (surely <= associated).all()
    chosen = plans.choose_pairs(layout, plan, associated, NUM_ROWS, plans.SHARES[2] * rho)
    rare, share = choose_rare(layout, plan, singles, surely, chosen, NUM_ROWS, plans.SHARES[2] * rho)
    assert rare
    products = plans.strong_pairs(layout, plan, singles, coarse, chosen)
    zooms = plans.zoom_blocks(layout, singles)
    found = measured[NAMES[2]].feature_map
    of_plan = plans.pairs_map(layout, plan, chosen, zooms, products, plans.choose_triples(layout, coarse), rare, share)
    assert found.equals(of_plan)
    without = plans.pairs_map(layout, plan, chosen, zooms, products, plans.choose_triples(layout, coarse))
    costs = [sum(block.weight**2 for block in of_map.blocks) for of_map in (found, without)]
    assert costs[1] < costs[0] <= costs[1] / (1 - share)
    largest = plans.largest_maps(layout)[2]
    integers = found.integers(NUM_ROWS)
    assert integers.diameter <= largest.diameter
    assert max(block.weight for block in found.blocks) <= largest.weight


def test_a_release_with_rare_categories_can_be_loaded(release, tmp_path):
    loaded = load(release.save(tmp_path / "release"))
    (ours,), (theirs,) = release.rows.rare, loaded.rows.rare
    np.testing.assert_array_equal(ours.of_classes, theirs.of_classes)
    assert loaded.sample(100, seed=4).equals(release.sample(100, seed=4))


@pytest.mark.parametrize(
    "changes",
    [
        {"codes": np.asarray([3, 2, 1])},
        {"parents": (0, 1)},
        {"parents": (1, 9)},
        {"of_classes": np.zeros((2, 3))},
        {"of_parents": (np.zeros((8, 3)),)},
        {"of_parents": (np.zeros((8, 3)), np.full((5, 3), np.nan))},
        {"of_parents": (np.zeros((8, 3)), np.full((5, 3), 1e308))},
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes):
    valid = RareCategories(0, np.asarray([1, 2, 4]), (1, 2), np.zeros((1, 3)), (np.zeros((8, 3)), np.zeros((5, 3))))
    valid.check(1, [3, 8, 5])
    with pytest.raises(ValueError, match=r"."):
        dataclasses.replace(valid, **changes).check(1, [3, 8, 5])


def test_a_measurement_with_other_weights_is_refused(release, tmp_path):
    measured = release.measurement.measured
    third = measured[NAMES[2]]
    blocks = (*third.feature_map.blocks[:-1], dataclasses.replace(third.feature_map.blocks[-1], weight=7))
    other = dataclasses.replace(third, feature_map=dataclasses.replace(third.feature_map, blocks=blocks))
    changed = dataclasses.replace(release.measurement, measured={**measured, NAMES[2]: other})
    folder = dataclasses.replace(release, measurement=changed).save(tmp_path / "changed")
    with pytest.raises(ReleaseError):
        load(folder)


def test_two_models_of_a_column_are_refused(release):
    twice = dataclasses.replace(release.rows, rare=release.rows.rare * 2)
    with pytest.raises(ValueError, match="two models"):
        twice.validate()


def test_a_bin_without_rows_keeps_what_its_counts_say():
    counts = np.full((4, 3), 1.0)
    counts[:, 0], counts[0, 1:] = 100, 100
    groups = np.zeros((400, 2), np.int64)
    groups[200:, 1] = 1  # no row is in the last bin
    model = log_linear_model(0, np.arange(4), (1,), counts.sum(1)[None], [counts], groups)
    shares = model.probabilities(np.asarray([[0, 1], [0, 2]]))
    assert shares[:, 0].min() > 0.8


def test_counts_that_contradict_each_other_make_no_endless_factors():
    random = np.random.default_rng(0)
    groups = np.stack([np.zeros(3000, np.int64), np.repeat(np.arange(6), 500), np.repeat(np.arange(6), 500)], axis=1)
    one, other = np.diag(np.full(6, 500.0)), np.roll(np.diag(np.full(6, 500.0)), 1, axis=0)
    model = log_linear_model(
        0, np.arange(6), (1, 2), np.full((1, 6), 500.0), [one + 1, other + 1 + random.random((6, 6))], groups
    )
    model.check(1, [6, 6, 6])
    assert np.isfinite(model.probabilities(np.unique(groups, axis=0))).all()


def test_categories_are_drawn_in_proportion():
    odds = np.log(np.asarray([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]))
    rare = RareCategories(0, np.asarray([2, 5, 9]), (1,), np.zeros((1, 3)), (odds,))
    codes = np.concatenate([np.repeat([2, 5, 9], 1000), np.zeros(50, np.int64)])
    groups = np.stack([np.zeros(3050, np.int64), np.tile([0, 1], 1525)], axis=1)
    for keeps_counts in (False, True):
        drawn = rare.drawn(codes, groups, np.random.default_rng(0), keeps_counts=keeps_counts)
        np.testing.assert_array_equal(drawn[3000:], 0)
        first = [np.mean(drawn[:3000][groups[:3000, 1] == 0] == code) for code in rare.codes]
        if keeps_counts:
            np.testing.assert_array_equal(np.bincount(drawn[:3000])[rare.codes], 1000)
            assert first[0] > 0.5 > 0.15 > first[2]
        else:
            np.testing.assert_allclose(first, [0.7, 0.2, 0.1], atol=0.01)
